"""Which field of a row holds the time, the tokens, the status, whatever it is called.

A row is an object: a line of a table by column, or an object of JSON. `FieldPaths.of` finds the fields by their names;
`ColumnNames` takes the names that a user gives instead. `as_number` and `as_moment` read the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

from planner.core import InputError

Row = Mapping[str, object]
KeyPath = tuple[str, ...]
"""Keys that lead to a value inside nested objects."""

TIME_NAMES = (
    *("requestreceived", "arrival", "arrivaltime", "arrivedat", "requesttime", "requeststarttime", "starttime"),
    *("startedat", "timestamp"),
    *(
        "time",
        "ts",
        "datetime",
        "requesttimestamp",
        "requestcreatedat",
        "createdat",
        "createdtime",
        "createtime",
        "created",
        "date",
    ),
)
"""Names of the time of arrival, the best first: lower case, without separators, and without a unit at the end."""
INPUT_NAMES = (
    *("inputtokens", "prompttokens", "inputlength", "contexttokens", "requesttokens", "numprefilltokens", "inputusage"),
    *("promptlength", "promptlen", "inputlen", "numprompttokens", "numinputtokens", "inputtokencount"),
    *("prompttokencount", "tokensprompt"),
)
"""Names of the input tokens, written likewise."""
OUTPUT_NAMES = (
    *("outputtokens", "completiontokens", "outputlength", "generatedtokens", "responsetokens", "numdecodetokens"),
    *("outputusage", "outputlen", "completionlength", "numcompletiontokens", "numoutputtokens", "outputtokencount"),
    *("completiontokencount", "candidatestokencount", "tokenscompletion"),
)
"""Names of the output tokens, written likewise."""
CACHED_NAMES = (
    *("prompttokensdetailscachedtokens", "inputtokensdetailscachedtokens", "cachedprefixtokens", "cachedtokens"),
    *("cachereadinputtokens", "inputcachedtokens", "inputcacheread", "promptcachehittokens", "numcachedtokens"),
    *("cachedcontenttokencount", "tokenscached", "promptcachereadtokens", "cachereadinputtokencount"),
)
"""Names of the input tokens that a prefix cache held, written likewise."""
TOTAL_NAMES = ("totaltokens", "totaltokencount", "totalusage", "total")
"""Names of all tokens of a request, written likewise."""
STATUS_NAMES = ("status", "statuscode", "httpstatus", "level")
AREA_NAMES = ("area", "userarea", "clientarea", "region", "userregion", "clientregion", "country", "usercountry")
"""Names of where the user is, written likewise."""
MAX_NESTING = 5
"""Objects inside objects that are searched: response.body.usage.prompt_tokens_details.cached_tokens."""

_USAGE_HOLDERS = (
    *("", "usage", "responseusage", "responsebodyusage", "bodyusage", "messageusage", "usagedetails"),
    *("request", "attributesgenaiusage", "usagemetadata", "responseusagemetadata"),
)
_TIME_HOLDERS = ("", "response", "responsebody", "body", "message", "request")
_FULL_NAMES: dict[str, tuple[str, ...]] = {
    "time": (*(holder + name for holder in _TIME_HOLDERS for name in TIME_NAMES), "metadatarequeststart"),
    "input": (
        *(holder + name for holder in _USAGE_HOLDERS for name in INPUT_NAMES),
        *("usageinput", "usagedetailsinput", "inputinputtokencount", "metricsinputsequencelengthvalue"),
    ),
    "output": (
        *(holder + name for holder in _USAGE_HOLDERS for name in OUTPUT_NAMES),
        *("usageoutput", "usagedetailsoutput", "outputoutputtokencount", "metricsoutputsequencelengthvalue"),
    ),
    "cached": tuple(
        holder + name for holder in (*_USAGE_HOLDERS, "metadatausageobject", "input") for name in CACHED_NAMES
    ),
    "total": tuple(holder + name for holder in _USAGE_HOLDERS for name in TOTAL_NAMES),
    "status": (*STATUS_NAMES, "responsestatuscode"),
    "area": AREA_NAMES,
    "blocks": ("hashids", "requestreplayinputsequencehashes"),
}
"""By quantity, the full names of the fields that can hold it (`normalised_name` of each key), the best first."""
_SECONDS_OF_UNIT = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanoseconds"), 1e-9),
}
_QUANTITY_OF_WORD = {
    **dict.fromkeys(("arrival", "arrived", "time", "timestamp"), "time"),
    **dict.fromkeys(("inputtokens", "prompttokens", "input"), "input"),
    **dict.fromkeys(("outputtokens", "completiontokens", "output"), "output"),
    **dict.fromkeys(("cachedtokens", "cachedinputtokens"), "cached"),
    "status": "status",
    **dict.fromkeys(("area", "region", "country"), "area"),
}
"""Quantity of `_FULL_NAMES` by the words a user may name it with, normalised."""
_NULL_WORDS = ("", "null", "none")
"""Text that stands for no value."""


# --- names ----------------------------------------------------------------------------------------------------------


def normalised_name(raw: str) -> str:
    """A name in lower case without separators and without the unit of time that it ends with.

    >>> normalised_name("startTime"), normalised_name("Request tokens"), normalised_name("timestamp_ms")
    ('starttime', 'requesttokens', 'timestamp')
    """
    return _name_and_unit(raw)[0]


def unit_in_name(raw: str) -> float | None:
    """The unit of time [s] that a name ends with; None without one.

    >>> unit_in_name("timestamp_ms"), unit_in_name("timestamp")
    (0.001, None)
    """
    return _name_and_unit(raw)[1]


@lru_cache(maxsize=4096)
def _name_and_unit(raw: str) -> tuple[str, float | None]:
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", raw).lower())
    unit_s = _SECONDS_OF_UNIT.get(words[-1]) if len(words) > 1 else None
    return "".join(words[:-1] if unit_s else words), unit_s


@dataclass(frozen=True)
class ColumnNames:
    """Which column holds what, in a user's own words.

    Attributes:
        columns: by quantity (time, input, output, cached, status, area), the name of the column or path of the field.
        unit_s: of the times [s], where it was stated.
    """

    columns: Mapping[str, str]
    unit_s: float | None = None

    @classmethod
    def of(cls, columns: Mapping[str, str]) -> ColumnNames:
        """From ``{"arrival_s": "ts", "input_tokens": "prompt", "output_tokens": "completion"}``.

        ``arrival_ms`` (or us, ns) states another unit, plain ``arrival`` none. ``cached_tokens``, ``status`` and
        ``area`` are optional, and so is the arrival: without it only the lengths are read.

        Raises InputError for a name that says nothing known, twice the same, or no input or output tokens.

        >>> ColumnNames.of({"arrived_ms": "ts", "input_tokens": "prompt", "output_tokens": "completion"}).unit_s
        0.001
        """
        names: dict[str, str] = {}
        unit_s = None
        for meaning, column in columns.items():
            unit = unit_in_name(str(meaning))
            quantity = _QUANTITY_OF_WORD.get(normalised_name(str(meaning)))
            known = "use arrival_s, input_tokens, output_tokens, cached_tokens, status, area"
            if quantity is None or (unit is not None and quantity != "time"):
                raise InputError("columns", meaning, "is nothing that a trace holds", known)
            if quantity in names:
                bound = f"says again what {names[quantity]} is"
                raise InputError("columns", meaning, bound, "name one column for each")
            if not isinstance(column, str) or not column.strip():
                bound = "must be the name of a column"
                raise InputError(f"columns.{meaning}", printable_value(column), bound, "write its name")
            names[quantity] = column.strip()
            unit_s = unit if quantity == "time" else unit_s
        for quantity in ("input", "output"):
            if quantity not in names:
                fix = f"add {quantity}_tokens and the column that holds them"
                raise InputError("columns", ", ".join(columns), f"does not say which column has {quantity} tokens", fix)
        return cls(names, unit_s)


# --- where a row keeps what -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldPaths:
    """Paths to the quantities in rows of one shape.

    Attributes:
        paths: by quantity of `_FULL_NAMES` that the row has, the keys that lead to it.
        added: by "input" and "output", paths of counts that belong to it but are not included in it.
        names: every full name in the row, normalised.
        unit_s: unit that the name of the time ends with [s].
    """

    paths: Mapping[str, KeyPath]
    added: Mapping[str, tuple[KeyPath, ...]]
    names: frozenset[str]
    unit_s: float | None

    @classmethod
    def of(cls, row: Row, named: ColumnNames | None = None) -> FieldPaths:
        """The paths of a row, and of all that have its shape; `named` says which field is which instead of guessing."""
        leaves: dict[str, KeyPath] = {}
        for path in _leaves(row, ()):
            leaves.setdefault("".join(map(normalised_name, path)), path)
        if named is not None:
            return _named_paths(row, named, frozenset(leaves))
        best = {
            quantity: next((leaves[name] for name in names if name in leaves), ())
            for quantity, names in _FULL_NAMES.items()
        }
        paths = {quantity: path for quantity, path in best.items() if path}
        unit_s = unit_in_name(paths["time"][-1]) if "time" in paths else None
        counts = [quantity for quantity in paths if quantity in ("input", "output")]
        added = {quantity: _added_counts(row, paths[quantity]) for quantity in counts}
        return cls(paths, added, frozenset(leaves), unit_s)

    @property
    def has_tokens(self) -> bool:
        """The row says both token counts."""
        return "input" in self.paths and "output" in self.paths

    def value(self, row: Row, quantity: str) -> object:
        """Value of a quantity in the row; None where it has none."""
        path = self.paths.get(quantity)
        return None if path is None else _value_at(row, path)

    def tokens(self, row: Row, quantity: str, number: int) -> float | None:
        """Tokens of the input or the output, with those counted beside them. Raises InputError naming the row."""
        count = as_number(self.value(row, quantity), f"{quantity}_tokens", number)
        if count is None:
            return None
        return count + sum(as_number(_value_at(row, path), path[-1], number) or 0.0 for path in self.added[quantity])


def _named_paths(row: Row, named: ColumnNames, names: frozenset[str]) -> FieldPaths:
    """Paths of the columns that the user named; a field that is not there is left out."""
    paths: dict[str, KeyPath] = {}
    for quantity, column in named.columns.items():
        path = (column,) if column in row else tuple(column.split("."))
        if column in row or _value_at(row, path) is not None:
            paths[quantity] = path
    added: dict[str, tuple[KeyPath, ...]] = {"input": (), "output": ()}
    return FieldPaths(paths, added, names, named.unit_s)


def _added_counts(row: Row, path: KeyPath) -> tuple[KeyPath, ...]:
    """Token counts that providers keep next to a count instead of in it: cached input, reasoning in the output."""
    names = tuple(map(normalised_name, path))
    if names[-1] == "inputtokens":
        return tuple((*path[:-1], key) for key in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    if names[-1] == "candidatestokencount":
        return ((*path[:-1], "thoughtsTokenCount"),)
    holder = _value_at(row, path[:-1])
    if names not in (("usagedetails", "input"), ("usagedetails", "output")) or not isinstance(holder, dict):
        return ()
    starts = ("input_", "cache_") if names[-1] == "input" else ("output_",)
    return tuple((*path[:-1], key) for key in holder if key.startswith(starts))


def _leaves(row: Row, path: KeyPath) -> Iterator[KeyPath]:
    """Paths of everything in a row that is neither an object nor null, those at the top first."""
    inner = []
    for key, value in row.items():
        if isinstance(value, dict):
            inner.append((key, value))
        elif value is not None:
            yield (*path, key)
    if len(path) + 1 < MAX_NESTING:
        for key, below in inner:
            yield from _leaves(below, (*path, key))


def _value_at(row: Row, path: KeyPath) -> object:
    if len(path) == 1:
        return row.get(path[0])
    value: object = row
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def row_shape(row: Row, depth: int = MAX_NESTING) -> tuple[object, ...]:
    """Shape of a row: equal for rows that keep the same things in the same places; hashable."""
    return tuple(
        (key, row_shape(value, depth - 1) if depth > 1 else None)
        if isinstance(value, dict)
        else ((key,) if value is None else key)
        for key, value in row.items()
    )


# --- values ---------------------------------------------------------------------------------------------------------


def is_null(value: object) -> bool:
    """Nothing, or text that stands for nothing."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NULL_WORDS)


def float_of(value: object) -> float | None:
    """A number or the text of one, possibly infinite or NaN; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def as_number(value: object, what: str, number: int) -> float | None:
    """A finite number, from a number or text; None for nothing. Raises InputError naming the row and `what` it is."""
    result = float_of(value)
    if result is None:
        if is_null(value):
            return None
        raise InputError(f"row {number} {what}", printable_value(value), "must be a number", "drop or correct the row")
    if not math.isfinite(result):
        raise InputError(f"row {number} {what}", printable_value(value), "must be finite", "drop or correct the row")
    return result


def as_moment(value: object, number: int) -> datetime:
    """A moment in UTC from an ISO date, or that of a log or mail; UTC without a zone. Raises InputError naming the row.

    >>> as_moment("2026/10/01 10:00:00", 1) == as_moment("01/Oct/2026:12:00:00 +0200", 1)
    True
    """
    text = value.strip().removesuffix(" UTC") if isinstance(value, str) else ""
    for read in (datetime.fromisoformat, _other_moment):
        try:
            moment = read(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, IndexError, OverflowError):
            continue
    bound = "must be a number of seconds or an ISO date, like the rows before"
    fix = "write 12.5 or 2023-11-16 18:15:46.68"
    raise InputError(f"row {number} time", printable_value(value), bound, fix)


def _other_moment(text: str) -> datetime:
    """A date whose order of day and month is plain: year first with slashes, of web servers, of mails and HTTP."""
    if re.match(r"\d{4}/\d\d/\d\d\b", text):
        return datetime.fromisoformat(text.replace("/", "-", 2))
    if re.match(r"\d\d/[A-Z][a-z]{2}/\d{4}:", text):
        return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
    return parsedate_to_datetime(text)


def printable_value(value: object) -> object:
    """A value as an error shows it: of anything nested only its kind, whose text may be endless."""
    return value if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"
