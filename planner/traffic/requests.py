"""Requests read from rows of logs: collected as columns of numbers, and turned into a trace.

`RowReader` collects the requests of rows (`planner.traffic.fields` finds their fields), `build_trace` settles units of
time, order, ticks of a clock and shared prefixes, and notes all that.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from datetime import datetime
from sys import intern
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, InputError, IntArray
from planner.traffic.fields import ColumnNames, FieldPaths, Row, as_moment, as_number, float_of, is_null, row_shape
from planner.traffic.prefix_reuse import MOST_BLOCKS, measured_reuse
from planner.traffic.trace import MAX_TIME_S, MAX_TRACE_ROWS, MIN_SPAN_S, Trace
from planner.workload import PrefixReuse

RECOGNISED_FORMATS = (
    "a table (CSV, TSV or semicolons) that names columns such as timestamp, input_tokens, output_tokens",
    "an Azure, BurstGPT, Mooncake, Dynamo, Weka, ServeGen or Vidur trace",
    "spans of OpenTelemetry or Jaeger with gen_ai.usage attributes (JSON)",
    "a usage log with prompt and completion tokens (OpenAI, LiteLLM, Langfuse; CSV, JSON or JSONL)",
    "a detailed result of vllm bench serve or SGLang bench_serving",
    "conversations (ShareGPT, or messages with roles), with tokens_per_character or a tokenizer",
)
"""Formats that `read_any_trace` recognises, in words."""

FORMAT_FIX = "give " + "; or ".join(RECOGNISED_FORMATS)
"""Fix for a file that is not recognised."""
UNRECORDED = "arrivals are not recorded"
"""Start of the note on requests without times."""
_EPOCH_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Times of at least the first number count in units of the second [s]: the year 1973 in ns, in µs, in ms."""
_UNIT_SHOWN = {1e-3: "milliseconds", 1e-6: "microseconds", 1e-9: "nanoseconds"}
MIN_TICK_S, MAX_TICK_S = 1e-3, 60.0
"""Ticks of a clock over which arrivals are spread [s]: a finer one hides nothing, a coarser one is no clock."""
MIN_TIED_SHARE = 0.05
"""Share of requests at the time of another from which a coarse clock is suspected. A choice."""
MIN_REGULAR_SHARE = 0.95
"""Share of the gaps between distinct times that must be whole numbers of ticks. A choice."""
TICK_TOLERANCE = 0.1
"""Distance of a gap from a whole number of ticks that is allowed [ticks]: Mooncake's clock ticks every 3 to 3.06 s."""
TOTALS_APART = 0.01
"""How far a stated total of tokens may be from the sum of input and output: a choice."""
MOST_IMPOSSIBLE = 0.01
"""Share of requests with more cached than input tokens from which the two are not of one count: a choice."""
MOST_PER_S = 10_000.0
"""Requests per second above which a note doubts the unit of the times: a choice, ten times the public traces."""
MAX_SPAN_S = 20.0 * 365.0 * 86400.0
"""Longest time between the requests of a trace: more are times in two units, or a wrong date."""
FAILED_WORDS = frozenset({"failure", "failed", "error", "cancelled", "canceled", "timeout"})
"""Values of a status that say that a request was not answered; HTTP codes outside 200 to 299 say so too."""
MAX_UNCOUNTED_ROWS = 10_000
"""Rows without token counts after which a file is given up, unless some rows have counts. A choice."""
MIN_REQUESTS_PER_UNCOUNTED_ROW = 0.01
"""Requests for each row without token counts that a log needs then: a trace of spans has more generations. A choice."""
_MAX_SHAPES = 1000
"""Different sets of fields remembered at once; affects speed and memory only."""


@dataclass(frozen=True, eq=False)
class RecognisedTrace:
    """A trace, and how it was found.

    Attributes:
        trace: requests in order of arrival.
        format: name of the format, such as "Azure LLM inference trace (CSV)".
        notes: what was left out, sorted, spread or assumed, one sentence each.
        prefix_share: share of the input tokens that a prefix cache held or could have held; None where unknown.
        lengths_only: the file tells no arrivals: they are evenly spaced, and only the lengths are measured.
        reuse: what caches find by their size, where the file names the blocks of its prompts and when they came.
        logged_share: `prefix_share` was logged by a server, and not counted from blocks.
    """

    trace: Trace
    format: str
    notes: tuple[str, ...] = ()
    prefix_share: float | None = None
    lengths_only: bool = False
    reuse: PrefixReuse | None = None
    logged_share: bool = False


# --- collecting -----------------------------------------------------------------------------------------------------


@dataclass
class RequestColumns:
    """Requests as they are read: numbers only, in the order of the file.

    Attributes:
        times: in the unit of the file, NaN where a row has none.
        inputs, outputs: tokens.
        cached: input tokens that a cache held; NaN where a row does not say.
        row_numbers: of each request in the file.
        areas: of the users, as the file names them; empty where it does not.
        block_codes, block_counts: prefix blocks of all requests one after the other, and how many each has.
        failed, uncounted, empty: rows left out: not answered, without token counts, with zero tokens.
        other_totals: requests whose stated total is not the sum of their tokens.
    """

    times: array[float] = field(default_factory=lambda: array("d"))
    inputs: array[float] = field(default_factory=lambda: array("d"))
    outputs: array[float] = field(default_factory=lambda: array("d"))
    cached: array[float] = field(default_factory=lambda: array("d"))
    row_numbers: array[int] = field(default_factory=lambda: array("q"))
    areas: list[str] = field(default_factory=list)
    block_codes: array[int] = field(default_factory=lambda: array("q"))
    block_counts: array[int] = field(default_factory=lambda: array("q"))
    failed: int = 0
    uncounted: int = 0
    empty: int = 0
    other_totals: int = 0

    def __post_init__(self) -> None:
        self._code_of_block: dict[object, int] = {}
        self._first_moment: datetime | None = None
        self._times_are_numbers = False

    def append(
        self, number: int, time: object, tokens: tuple[float, float], cached: float | None, blocks: object
    ) -> bool:
        """Add a request, unless it has no input or no output tokens; whether it was added.

        Args:
            number: of its row, for errors.
            time: a number, an ISO date, or nothing.
            tokens: (input, output).
            cached: input tokens that a cache held; None where unknown.
            blocks: ids of its prefix blocks as a list, or anything else.

        Raises InputError naming the row for a time or block that cannot be read, and above `MAX_TRACE_ROWS` requests.
        """
        if len(self.row_numbers) >= MAX_TRACE_ROWS:
            raise InputError("row", number, f"a trace holds at most {MAX_TRACE_ROWS} requests", "cut it to a busy hour")
        if 0.0 in tokens:
            self.empty += 1
            return False
        self.times.append(self._time(time, number))
        self.inputs.append(tokens[0])
        self.outputs.append(tokens[1])
        self.cached.append(math.nan if cached is None else cached)
        self.row_numbers.append(number)
        self._append_blocks(blocks, number)
        return True

    def _append_blocks(self, blocks: object, number: int) -> None:
        if not isinstance(blocks, list):
            self.block_counts.append(0)
            return
        if not all(isinstance(block, int | str) for block in blocks):
            raise InputError(f"row {number} hash_ids", "a list", "must hold numbers or words", "drop the row")
        self.block_counts.append(len(blocks))
        codes = self._code_of_block
        self.block_codes.extend(codes.setdefault(block, len(codes)) for block in blocks)

    def _time(self, value: object, number: int) -> float:
        """A number, or the seconds from the first date; the first row with either decides which."""
        if is_null(value):
            return math.nan
        if self._times_are_numbers or (self._first_moment is None and float_of(value) is not None):
            self._times_are_numbers = True
            time = as_number(value, "time", number)
            return math.nan if time is None else time
        moment = as_moment(value, number)
        self._first_moment = self._first_moment or moment
        return (moment - self._first_moment).total_seconds()

    def placed(self, trace: Trace, order: NDArray[np.intp], first_s: float) -> Trace:
        """A trace of these requests with the areas of its users, and the time of day at which it starts.

        Args:
            trace: of the requests in `order`.
            order: places of its requests here.
            first_s: time of its first request, from the first date or, of numbers, taken to be from a midnight [s].
        """
        if self._first_moment is not None:
            first = self._first_moment
            first_s += (first - first.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
        areas = np.array(self.areas)[order] if any(self.areas) else None
        return replace(trace, areas=areas, starts_at_hours=first_s / 3600.0 % 24.0)

    @property
    def dated(self) -> bool:
        """The times were dates, and are seconds now."""
        return self._first_moment is not None


class RowReader:
    """Rows as objects -> `RequestColumns`; remembers where rows of each shape keep what."""

    def __init__(self, named: ColumnNames | None = None) -> None:
        self.columns = RequestColumns()
        self.first: FieldPaths | None = None
        self.named = named
        self._paths_of_shape: dict[tuple[object, ...], FieldPaths] = {}

    @property
    def lacks_counts(self) -> bool:
        """Many rows and hardly a token count: no log of requests."""
        uncounted = self.columns.uncounted
        few = len(self.columns.row_numbers) < MIN_REQUESTS_PER_UNCOUNTED_ROW * uncounted
        return uncounted >= MAX_UNCOUNTED_ROWS and few

    def fields(self, row: Row) -> FieldPaths:
        """Paths of the quantities in a row."""
        shape = row_shape(row)
        fields = self._paths_of_shape.get(shape)
        if fields is None:
            if len(self._paths_of_shape) >= _MAX_SHAPES:
                self._paths_of_shape.clear()
            fields = self._paths_of_shape[shape] = FieldPaths.of(row, self.named)
        return fields

    def add(self, number: int, row: Row, fields: FieldPaths | None = None) -> bool:
        """One row, kept or counted as left out. Raises InputError naming it for a value that is no number or date."""
        fields = fields or self.fields(row)
        if _has_failed(fields.value(row, "status")):
            self.columns.failed += 1
            return False
        tokens = fields.tokens(row, "input", number), fields.tokens(row, "output", number)
        if tokens[0] is None or tokens[1] is None:
            self.columns.uncounted += 1
            return False
        self.first = self.first or fields
        cached = as_number(fields.value(row, "cached"), "cached tokens", number)
        time, blocks = fields.value(row, "time"), fields.value(row, "blocks")
        is_kept = self.columns.append(number, time, (tokens[0], tokens[1]), cached, blocks)
        if is_kept:
            total = float_of(fields.value(row, "total"))
            if total and abs(total - tokens[0] - tokens[1]) > TOTALS_APART * total:
                self.columns.other_totals += 1
            self.columns.areas.append(intern(str(fields.value(row, "area") or "").strip()))
        return is_kept


def _has_failed(status: object) -> bool:
    if isinstance(status, bool):
        return False
    if isinstance(status, str) and not status.isdecimal():
        return status.strip().lower() in FAILED_WORDS
    if isinstance(status, int | float | str):
        code = float(status[:9]) if isinstance(status, str) else status
        return 100 <= code < 200 or 300 <= code < 600
    return False


# --- building the trace ---------------------------------------------------------------------------------------------


class RecordedTiming(NamedTuple):
    """Unit of the times of a file [s], and a rate [1/s] to do without them."""

    unit_s: float | None
    rate_per_s: float | None = None


def format_error(name: str, why: str, first: str = "") -> InputError:
    """The error for a file in no known format; `first`: what to try before another file."""
    return InputError("trace", name, f"is in no format that is read: {why}", f"{first}{FORMAT_FIX}")


def build_trace(
    columns: RequestColumns, name: str, label: str, notes: list[str], timing: RecordedTiming
) -> RecognisedTrace:
    """Requests sorted and spread, with their prefix share and notes of what was done.

    Args:
        columns: requests as read.
        name: of the file, for errors; the source of the trace.
        label: name of the format.
        notes: what was left out or assumed while reading.
        timing: what the file says of its times.

    Raises InputError where no request is left, and for lengths or times out of range.
    """
    times = np.array(columns.times)
    timed = np.isfinite(times)
    notes = [*notes, *_left_out(columns, int((~timed).sum()) if timed.any() else 0)]
    if not timed.size:
        raise InputError("trace", name, "has no request with input and output tokens", "; ".join(notes) or FORMAT_FIX)
    used = np.flatnonzero(timed) if timed.any() else np.arange(timed.size)
    seconds, first_s = _seconds(times[used], columns, timing, notes)
    lengths_only = first_s is None
    order = used[np.argsort(seconds, kind="stable")]
    if not lengths_only and (np.diff(order) < 0).any():
        notes.append("rows sorted by time")
    inputs, outputs = np.array(columns.inputs)[order], np.array(columns.outputs)[order]
    trace = Trace.from_arrays(np.sort(seconds), inputs, outputs, name, np.array(columns.row_numbers)[order])
    trace = columns.placed(trace, order, first_s or 0.0)
    tick_s = 0.0 if lengths_only else _tick_s(trace.arrival_s)
    if tick_s:
        trace = trace.spread(tick_s, seed=0)
        notes.append(f"timestamps tick every {tick_s:.3g} s: arrivals spread inside a tick")
    logged = not np.isnan(np.array(columns.cached)[order]).all()
    share = _prefix_share(columns, order, notes)
    reuse = None if logged or lengths_only or not share else _reuse(columns, order, trace.rate_per_s, name, notes)
    return RecognisedTrace(trace, label, tuple(notes), share, lengths_only, reuse, logged)


def _left_out(columns: RequestColumns, untimed: int) -> list[str]:
    counted = (
        (columns.failed, "failed"),
        (columns.empty, "without input or output (failed, or no generation)"),
        (columns.uncounted, "without token counts"),
        (untimed, "without a time"),
    )
    left_out = [f"{n:,} request{'s' if n > 1 else ''} {what} left out" for n, what in counted if n]
    if columns.other_totals:
        left_out.append(
            f"{columns.other_totals:,} requests state a total that is not input + output: which lacks some?"
        )
    return left_out


def _seconds(
    times: FloatArray, columns: RequestColumns, timing: RecordedTiming, notes: list[str]
) -> tuple[FloatArray, float | None]:
    """Arrivals from the first [s], in the order of the file, and its time [s]; None where they are made up."""
    if np.isfinite(times).all():
        largest = float(np.abs(times).max())
        guessed_s = next((unit for least, unit in _EPOCH_UNITS if largest >= least), 1.0)
        unit_s = 1.0 if columns.dated else timing.unit_s or guessed_s
        if unit_s in _UNIT_SHOWN:
            notes.append(f"times read as {_UNIT_SHOWN[unit_s]}")
        with np.errstate(over="ignore"):
            seconds = (times - times.min()) * unit_s
        if MAX_SPAN_S < float(seconds.max()) < math.inf and timing.unit_s is None:
            years = float(seconds.max()) / (365.0 * 86400.0)
            fix = "write all times in one unit, and drop the rows with a wrong date"
            raise InputError("times", f"{years:.3g} years", "is between the first request and the last", fix)
        if times.size > MOST_PER_S * float(seconds.max()) > 0.0:
            per_s = times.size / float(seconds.max())
            notes.append(f"{per_s:,.0f} requests a second: are the times in another unit (--column arrival_ms=NAME)?")
        if float(seconds.max()) >= MIN_SPAN_S:
            return seconds, float(times.min()) * unit_s
        notes.append("all requests carry the same time")
    recorded = timing.rate_per_s if timing.rate_per_s and times.size / timing.rate_per_s <= MAX_TIME_S else None
    rate_per_s, advice = (recorded, "the rate of the run") if recorded else (1.0, "give a rate of your own")
    notes.append(f"{UNRECORDED}: spaced evenly at {rate_per_s:.4g} requests/s ({advice})")
    return np.arange(times.size) / rate_per_s, None


def _tick_s(times_s: FloatArray) -> float:
    """Tick of the clock that stamped sorted times [s]; 0 where no coarse clock shows.

    Many requests share their time, and the gaps between distinct times are whole numbers of the shortest one.

    >>> _tick_s(np.array([0.0, 0.0, 3.0, 3.0, 9.0])), _tick_s(np.array([0.0, 0.0, 0.4, 1.1, 1.3]))
    (3.0, 0.0)
    """
    gaps = np.diff(np.unique(times_s))
    if not gaps.size or gaps.size + 1 > (1.0 - MIN_TIED_SHARE) * times_s.size:
        return 0.0
    tick = float(gaps.min())
    if not MIN_TICK_S <= tick <= MAX_TICK_S:
        return 0.0
    single = gaps[gaps < 1.5 * tick]
    tick = float(np.median(single))
    ticks = gaps / tick
    regular = np.abs(ticks - np.round(ticks)) <= TICK_TOLERANCE
    return float(f"{tick:.3g}") if regular.mean() >= MIN_REGULAR_SHARE else 0.0


def _prefix_share(columns: RequestColumns, order: NDArray[np.intp], notes: list[str]) -> float | None:
    """Share of the input tokens that a cache held, as logged, or could have held, by the blocks of the prompts."""
    inputs = np.array(columns.inputs)
    cached = np.array(columns.cached)[order]
    if not np.isnan(cached).all():
        impossible = np.nan_to_num(cached) > inputs[order]
        if impossible.mean() > MOST_IMPOSSIBLE:
            first = order[int(np.argmax(impossible))]
            bound = f"are more than its {inputs[first]:.0f} input tokens"
            fix = "count cached tokens among the input tokens"
            raise InputError(f"row {columns.row_numbers[first]} cached tokens", columns.cached[first], bound, fix)
        held = np.clip(np.nan_to_num(cached), 0.0, inputs[order])
        return float(held.sum() / inputs[order].sum())
    blocks = np.array(columns.block_counts)
    if not columns.block_codes:
        return None
    tokens = _block_tokens(inputs[blocks > 0], blocks[blocks > 0])
    held = np.minimum(tokens * _leading_blocks(columns, order), inputs[order])
    notes.append(f"prefix share from blocks of {tokens} tokens that an earlier request had; no cache holds more")
    return float(held.sum() / inputs[order].sum())


def _block_tokens(inputs: FloatArray, blocks: IntArray) -> int:
    """Tokens of a prefix block: the smallest power of 2 by which no prompt [tokens] needs more blocks than it has.

    Where most prompts would need fewer than they have, the size is no power of 2, and the least that will do is taken.

    >>> _block_tokens(np.array([6955.0, 655.0]), np.array([14, 2]))  # Mooncake: 6955 tokens in 14 blocks
    512
    >>> _block_tokens(np.array([1600.0, 900.0]), np.array([5, 3]))
    320
    """
    least = float(np.max(np.ceil(inputs / blocks)))
    power = 2 ** math.ceil(math.log2(least))
    several = blocks > 1
    fits = inputs[several] > power * (blocks[several] - 1)
    return int(power if not several.any() or 2 * fits.sum() >= fits.size else least)


def _reuse(
    columns: RequestColumns, order: NDArray[np.intp], rate_per_s: float, name: str, notes: list[str]
) -> PrefixReuse | None:
    """Prefix hits by cache size, from the blocks of the prompts in order of arrival."""
    counts, inputs = np.array(columns.block_counts, dtype=np.int64), np.array(columns.inputs)
    tokens = _block_tokens(inputs[counts > 0], counts[counts > 0])
    starts, sizes = (np.cumsum(counts) - counts)[order], counts[order]
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    blocks = np.array(columns.block_codes, dtype=np.int64)[np.repeat(starts, sizes) + within]
    if blocks.size > MOST_BLOCKS:
        notes.append(f"prefix hits by cache size from the first {MOST_BLOCKS:,} of {blocks.size:,} blocks")
    return measured_reuse(blocks, sizes, inputs[order], tokens, rate_per_s, name)


def _leading_blocks(columns: RequestColumns, order: NDArray[np.intp]) -> IntArray:
    """Blocks at the start of each prompt that an earlier request had, in `order`."""
    codes, blocks = np.array(columns.block_codes), np.array(columns.block_counts)
    starts = np.cumsum(blocks) - blocks
    seen = np.zeros(int(codes.max()) + 1, dtype=bool)
    leading = np.zeros(order.size, dtype=np.int64)
    for place, row in enumerate(order):
        own = codes[starts[row] : starts[row] + blocks[row]]
        if own.size:
            known = seen[own]
            leading[place] = own.size if known.all() else int(np.argmin(known))
            seen[own] = True
    return leading
