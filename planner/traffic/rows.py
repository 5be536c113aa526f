"""Rows of logs and tables as requests: which field holds the time, the tokens, the status, whatever it is called.

`planner.traffic.formats` reads the files and says where the names are written down; here a row is an object (a line of
a table, an object of JSON), and `RowReader` turns rows into columns of numbers.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from planner.core import InputError
from planner.traffic.trace import MAX_TRACE_ROWS

TIME_NAMES = (
    *("arrival", "arrivaltime", "arrivedat", "requesttime", "requeststarttime", "starttime", "startedat", "timestamp"),
    *("time", "ts", "datetime", "requesttimestamp", "requestcreatedat", "createdat", "createdtime", "created", "date"),
)
"""Names of the time of arrival, the best first: lower case, without separators, and without a unit at the end."""
INPUT_NAMES = (
    *("inputtokens", "prompttokens", "inputlength", "contexttokens", "requesttokens", "numprefilltokens", "inputusage"),
    *("promptlength", "promptlen", "inputlen", "numprompttokens", "numinputtokens", "inputtokencount"),
    "prompttokencount",
)
"""Names of the input tokens, written likewise."""
OUTPUT_NAMES = (
    *("outputtokens", "completiontokens", "outputlength", "generatedtokens", "responsetokens", "numdecodetokens"),
    *("outputusage", "outputlen", "completionlength", "numcompletiontokens", "numoutputtokens", "outputtokencount"),
    "completiontokencount",
)
"""Names of the output tokens, written likewise."""
CACHED_NAMES = (
    *("prompttokensdetailscachedtokens", "inputtokensdetailscachedtokens", "cachedprefixtokens", "cachedtokens"),
    *("cachereadinputtokens", "inputcachedtokens", "inputcacheread", "promptcachehittokens", "numcachedtokens"),
)
"""Names of the input tokens that a prefix cache held, written likewise."""
STATUS_NAMES = ("status", "statuscode", "httpstatus", "level")
FAILED_WORDS = frozenset({"failure", "failed", "error", "cancelled", "canceled", "timeout"})
"""Values of a status that say that a request was not answered; HTTP codes outside 200 to 299 say so too."""

_USAGE_HOLDERS = ("", "usage", "responseusage", "responsebodyusage", "bodyusage", "messageusage", "usagedetails")
_TIME_HOLDERS = ("", "response", "responsebody", "body", "message")
_ALIASES: dict[str, tuple[str, ...]] = {
    "time": tuple(holder + name for holder in _TIME_HOLDERS for name in TIME_NAMES),
    "input": (*(h + n for h in _USAGE_HOLDERS for n in INPUT_NAMES), "usageinput", "usagedetailsinput"),
    "output": (*(h + n for h in _USAGE_HOLDERS for n in OUTPUT_NAMES), "usageoutput", "usagedetailsoutput"),
    "cached": tuple(h + n for h in (*_USAGE_HOLDERS, "metadatausageobject") for n in CACHED_NAMES),
    "status": (*STATUS_NAMES, "responsestatuscode"),
    "blocks": ("hashids",),
}
"""Full names of what a row can hold, the best first, after `spelled`."""
_UNIT_WORDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanoseconds"), 1e-9),
}
_DEPTH = 5
"""Objects inside objects that are searched: response.body.usage.prompt_tokens_details.cached_tokens."""
MAX_FRUITLESS_ROWS = 10_000
"""Rows without token counts after which a file is given up, unless some of them have any."""
LEAST_FRUIT = 0.01
"""Requests for each row without token counts that a log needs then: a trace of spans has more generations."""
_NOTHING = ("", "null", "none")
"""Text that stands for no value."""
_MAX_SHAPES = 1000
"""Different sets of fields remembered at once."""


# --- fields ---------------------------------------------------------------------------------------------------------

_Path = tuple[str, ...]
_PARTS = {
    **dict.fromkeys(("arrival", "arrived", "time", "timestamp"), "time"),
    **dict.fromkeys(("inputtokens", "prompttokens", "input"), "input"),
    **dict.fromkeys(("outputtokens", "completiontokens", "output"), "output"),
    **dict.fromkeys(("cachedtokens", "cachedinputtokens"), "cached"),
    "status": "status",
}
"""What a user may say a column holds, after `spelled`, and the part of `_ALIASES` it is."""


@dataclass(frozen=True)
class Columns:
    """Which column holds what, in a user's own words.

    Attributes:
        names: by part (time, input, output, cached, status), the name of the column, or the dotted path of a field.
        unit_s: of the times [s], where it was stated.
    """

    names: Mapping[str, str]
    unit_s: float | None = None

    @classmethod
    def of(cls, columns: Mapping[str, str]) -> Columns:
        """From ``{"arrival_s": "ts", "input_tokens": "prompt", "output_tokens": "completion"}``.

        ``arrival_ms`` (or us, ns) states another unit, plain ``arrival`` none. ``cached_tokens`` and ``status`` are
        optional, and so is the arrival: without it only the lengths are read.

        Raises InputError for a name that says nothing known, twice the same, or no input or output tokens.

        >>> Columns.of({"arrived_ms": "ts", "input_tokens": "prompt", "output_tokens": "completion"}).unit_s
        0.001
        """
        names: dict[str, str] = {}
        unit_s = None
        for meaning, column in columns.items():
            word, unit = spelled(str(meaning))
            part = _PARTS.get(word)
            known = "use arrival_s, input_tokens, output_tokens, cached_tokens, status"
            if part is None or (unit is not None and part != "time"):
                raise InputError("columns", meaning, "is nothing that a trace holds", known)
            if part in names:
                raise InputError("columns", meaning, f"says again what {names[part]} is", "name one column for each")
            if not isinstance(column, str) or not column.strip():
                raise InputError(f"columns.{meaning}", _shown(column), "must be the name of a column", "write its name")
            names[part] = column.strip()
            unit_s = unit if part == "time" else unit_s
        for part in ("input", "output"):
            if part not in names:
                fix = f"add {part}_tokens and the column that holds them"
                raise InputError("columns", ", ".join(columns), f"does not say which column has {part} tokens", fix)
        return cls(names, unit_s)


def _named_fields(row: Mapping[str, object], named: Columns, known: frozenset[str]) -> RowFields:
    """Where a row keeps what the user named; a field that is not there is left out."""
    paths: dict[str, _Path] = {}
    for part, column in named.names.items():
        path = (column,) if column in row else tuple(column.split("."))
        if column in row or _at(row, path) is not None:
            paths[part] = path
    beside: dict[str, tuple[_Path, ...]] = dict.fromkeys(("input", "output"), ())
    return RowFields(paths, beside, known, named.unit_s)


@lru_cache(maxsize=4096)
def spelled(raw: str) -> tuple[str, float | None]:
    """A name in lower case without separators, and the unit [s] that it ended with.

    >>> spelled("startTime"), spelled("Request tokens"), spelled("timestamp_ms")
    (('starttime', None), ('requesttokens', None), ('timestamp', 0.001))
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", raw).lower())
    unit_s = _UNIT_WORDS.get(words[-1]) if len(words) > 1 else None
    return "".join(words[:-1] if unit_s else words), unit_s


@dataclass(frozen=True)
class RowFields:
    """Where rows of one shape keep what is asked for.

    Attributes:
        paths: of each part in `_ALIASES` that the row has, the keys that lead to it.
        beside: of the input and the output tokens, where counts are that belong to them but are not in them.
        names: every full name in the row, spelled.
        unit_s: unit that the name of the time ends with [s].
    """

    paths: Mapping[str, _Path]
    beside: Mapping[str, tuple[_Path, ...]]
    names: frozenset[str]
    unit_s: float | None

    @classmethod
    def of(cls, row: Mapping[str, object], named: Columns | None = None) -> RowFields:
        """Of a row, and of all that have its shape; `named` says which field is which, and leaves nothing to guess."""
        leaves: dict[str, _Path] = {}
        for path in _leaves(row, ()):
            leaves.setdefault("".join(spelled(key)[0] for key in path), path)
        if named is not None:
            return _named_fields(row, named, frozenset(leaves))
        found = {part: next((leaves[n] for n in names if n in leaves), ()) for part, names in _ALIASES.items()}
        paths = {part: path for part, path in found.items() if path}
        unit_s = spelled(paths["time"][-1])[1] if "time" in paths else None
        counted = [part for part in paths if part in ("input", "output")]
        beside = {part: _beside(row, paths[part]) for part in counted}
        return cls(paths, beside, frozenset(leaves), unit_s)

    @property
    def usable(self) -> bool:
        """The row says both token counts."""
        return "input" in self.paths and "output" in self.paths

    def value(self, row: Mapping[str, object], part: str) -> object:
        """What the row holds of a part; None where it does not."""
        path = self.paths.get(part)
        return None if path is None else _at(row, path)

    def tokens(self, row: Mapping[str, object], part: str, number: int) -> float | None:
        """Tokens of the input or the output, with those counted beside them. Raises InputError naming the row."""
        counted = as_number(self.value(row, part), f"{part}_tokens", number)
        if counted is None:
            return None
        return counted + sum(as_number(_at(row, path), path[-1], number) or 0.0 for path in self.beside[part])


def _beside(row: Mapping[str, object], path: _Path) -> tuple[_Path, ...]:
    """Token counts that providers keep next to a count instead of in it: cached input, reasoning in the output."""
    names = tuple(spelled(key)[0] for key in path)
    if names[-1] == "inputtokens":
        return tuple((*path[:-1], key) for key in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    around = _at(row, path[:-1])
    if names not in (("usagedetails", "input"), ("usagedetails", "output")) or not isinstance(around, dict):
        return ()
    starts = ("input_", "cache_") if names[-1] == "input" else ("output_",)
    return tuple((*path[:-1], key) for key in around if key.startswith(starts))


def _leaves(row: Mapping[str, object], path: _Path) -> Iterator[_Path]:
    """Paths of everything in a row that is neither an object nor null, those at the top first."""
    inner = []
    for key, value in row.items():
        if isinstance(value, dict):
            inner.append((key, value))
        elif value is not None:
            yield (*path, key)
    if len(path) + 1 < _DEPTH:
        for key, below in inner:
            yield from _leaves(below, (*path, key))


def _at(row: Mapping[str, object], path: _Path) -> object:
    if len(path) == 1:
        return row.get(path[0])
    value: object = row
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _shape(row: Mapping[str, object], depth: int = _DEPTH) -> tuple[object, ...]:
    """What rows have in common that keep the same things in the same places."""
    return tuple(
        (key, _shape(value, depth - 1) if depth > 1 else None)
        if isinstance(value, dict)
        else ((key,) if value is None else key)
        for key, value in row.items()
    )


# --- rows -----------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """Requests as they are read: numbers only, in the order of the file.

    Attributes:
        times: in the unit of the file, NaN where a row has none.
        cached: input tokens that a cache held; NaN where a row does not say.
        codes, blocks: prefix blocks of all requests one after the other, and how many each has.
        failed, uncounted, empty: rows left out: not answered, without token counts, with zero tokens.
    """

    times: array[float] = field(default_factory=lambda: array("d"))
    inputs: array[float] = field(default_factory=lambda: array("d"))
    outputs: array[float] = field(default_factory=lambda: array("d"))
    cached: array[float] = field(default_factory=lambda: array("d"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    codes: array[int] = field(default_factory=lambda: array("q"))
    blocks: array[int] = field(default_factory=lambda: array("q"))
    failed: int = 0
    uncounted: int = 0
    empty: int = 0

    def __post_init__(self) -> None:
        self._known: dict[object, int] = {}
        self._start: datetime | None = None
        self._in_numbers = False

    def keep(self, number: int, time: object, tokens: tuple[float, float], cached: float | None, ids: object) -> None:
        """One request with its tokens, unless it has none."""
        if len(self.numbers) >= MAX_TRACE_ROWS:
            raise InputError("row", number, f"a trace holds at most {MAX_TRACE_ROWS} requests", "cut it to a busy hour")
        if 0.0 in tokens:
            self.empty += 1
            return
        self.times.append(self._time(time, number))
        self.inputs.append(tokens[0])
        self.outputs.append(tokens[1])
        self.cached.append(math.nan if cached is None else cached)
        self.numbers.append(number)
        self._keep_blocks(ids, number)

    def _keep_blocks(self, ids: object, number: int) -> None:
        if not isinstance(ids, list):
            self.blocks.append(0)
            return
        if not all(isinstance(entry, int | str) for entry in ids):
            raise InputError(f"row {number} hash_ids", "a list", "must hold numbers or words", "drop the row")
        self.blocks.append(len(ids))
        self.codes.extend(self._known.setdefault(entry, len(self._known)) for entry in ids)

    def _time(self, value: object, number: int) -> float:
        """A number, or the seconds from the first date; the first row with either decides which."""
        if _is_nothing(value):
            return math.nan
        if self._in_numbers or (self._start is None and _float(value) is not None):
            self._in_numbers = True
            time = as_number(value, "time", number)
            return math.nan if time is None else time
        moment = _moment(value, number)
        self._start = self._start or moment
        return (moment - self._start).total_seconds()

    @property
    def dated(self) -> bool:
        """The times were dates, and are seconds now."""
        return self._start is not None


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def _float(value: object) -> float | None:
    """A number or the text of one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def _moment(value: object, number: int) -> datetime:
    try:
        moment = datetime.fromisoformat(value.strip().removesuffix(" UTC") if isinstance(value, str) else "")
    except ValueError:
        bound = "must be a number of seconds or an ISO date, like the rows before"
        raise InputError(f"row {number} time", _shown(value), bound, "write 12.5 or 2023-11-16 18:15:46.68") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def as_number(value: object, what: str, number: int) -> float | None:
    """A finite number, from a number or text; None for nothing. Raises InputError."""
    found = _float(value)
    if found is None:
        if _is_nothing(value):
            return None
        raise InputError(f"row {number} {what}", _shown(value), "must be a number", "drop or correct the row")
    if not math.isfinite(found):
        raise InputError(f"row {number} {what}", _shown(value), "must be finite", "drop or correct the row")
    return found


def _shown(value: object) -> object:
    """What an error shows of a value: of anything nested only its kind, whose text may be endless."""
    return value if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"


class RowReader:
    """Rows as objects -> `Rows`; remembers where rows of each shape keep what."""

    def __init__(self, named: Columns | None = None) -> None:
        self.rows = Rows()
        self.first: RowFields | None = None
        self.named = named
        self._shapes: dict[tuple[object, ...], RowFields] = {}

    @property
    def fruitless(self) -> bool:
        """Many rows and hardly a token count: no log of requests."""
        bare = self.rows.uncounted
        return bare >= MAX_FRUITLESS_ROWS and len(self.rows.numbers) < LEAST_FRUIT * bare

    def fields(self, row: Mapping[str, object]) -> RowFields:
        """Where a row keeps what is asked for."""
        shape = _shape(row)
        found = self._shapes.get(shape)
        if found is None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            found = self._shapes[shape] = RowFields.of(row, self.named)
        return found

    def add(self, number: int, row: Mapping[str, object], fields: RowFields | None = None) -> None:
        """One row, kept or counted as left out. Raises InputError naming it for a value that is no number or date."""
        fields = fields or self.fields(row)
        if _not_answered(fields.value(row, "status")):
            self.rows.failed += 1
            return
        tokens = fields.tokens(row, "input", number), fields.tokens(row, "output", number)
        if tokens[0] is None or tokens[1] is None:
            self.rows.uncounted += 1
            return
        self.first = self.first or fields
        cached = as_number(fields.value(row, "cached"), "cached tokens", number)
        time, ids = fields.value(row, "time"), fields.value(row, "blocks")
        self.rows.keep(number, time, (tokens[0], tokens[1]), cached, ids)


def _not_answered(status: object) -> bool:
    if isinstance(status, bool):
        return False
    if isinstance(status, str) and not status.isdecimal():
        return status.strip().lower() in FAILED_WORDS
    if isinstance(status, int | float | str):
        code = float(status[:9]) if isinstance(status, str) else status
        return 100 <= code < 200 or 300 <= code < 600
    return False
