"""Traces and presets become the types of `planner.workload.workload`: lengths, arrivals, and how bursty they are.

`load_lengths(name)` gives the joint lengths of a packaged trace and `preset_info(name)` says where they come from.
`read_trace(path)` reads a user's own CSV. `compress` brings any number of requests down to a few thousand weighted
cells that keep means, percentiles and correlation. Nothing here resamples or fits: a cell is a mean of real requests.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache, cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from planner.core import Frozen, InputError, UnknownNameError
from planner.presets import preset
from planner.workload import MAX_SCV, MAX_TOKENS, ArrivalProcess, RecordedArrivals, RequestClass, TokenLengths, Workload

MAX_TRACE_BYTES = 100_000_000
"""Largest trace read, after decompression [bytes]: 100 MB, some five million rows of twenty characters."""
MAX_TRACE_ROWS = 5_000_000
"""Most requests read from one trace."""
MAX_TIME_S = 1e11
"""Latest arrival time [s], some three thousand years: refuses epoch times in milliseconds."""
MIN_SPAN_S = 1e-9
"""Least time from first to last arrival for which a rate has a meaning [s]."""
MAX_WINDOWS = 1e9
"""Most windows that arrivals are counted in."""
MIN_CELLS = 100
"""Fewest cells `compress` works with: the anchors alone cut each axis into 9 bins, 81 cells."""
ANCHORS = (0.5, 0.9, 0.95, 0.99)
"""Percentiles that get a narrow bin of their own, so that compression keeps them."""
ANCHOR_HALF_WIDTH = 0.001
"""Half the share of requests in such a bin: p99 lies in the bin from p98.9 to p99.1."""
NEGLIGIBLE_WEIGHT = 1e-30
"""Share of the heaviest weight below which `compress` drops a pair: far below the rounding of a sum."""

_GZIP_MAGIC = b"\x1f\x8b"
_ARRIVAL_NAMES = ("arrival_s", "timestamp")
_INPUT_NAMES = ("input_tokens", "contexttokens", "request tokens")
_OUTPUT_NAMES = ("output_tokens", "generatedtokens", "response tokens")
_PRESETS = preset("lengths")


# --- traces ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival. Build with `read_trace` or `from_arrays`, which validate.

    Attributes:
        arrival_s: arrival times [s] after the first request, sorted, shape (n,).
        input_tokens: per request [tokens], shape (n,).
        output_tokens: per request [tokens], shape (n,).
        source: where the trace comes from.

    >>> trace = Trace.from_arrays([0, 1, 3], [10, 20, 30], [1, 2, 3])
    >>> trace.rate_per_s, round(trace.arrival_scv(), 3)  # gaps 1 and 2: mean 1.5, variance 0.25
    (0.6666666666666666, 0.111)
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    source: str = "given"

    @classmethod
    def from_arrays(
        cls,
        arrival_s: ArrayLike,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        source: str = "given",
        rows: ArrayLike | None = None,
    ) -> Self:
        """From arrays of shape (n,): times [s], sorted, and tokens. `rows` are the row numbers that errors name.

        Raises InputError naming row, column, value, bound and fix when a value is not finite, negative, not a whole
        number of tokens from 1 to `MAX_TOKENS`, or when times go back.
        """
        columns = [_as_floats(column) for column in (arrival_s, input_tokens, output_tokens)]
        sizes = {column.size for column in columns}
        if len(sizes) != 1 or not columns[0].size:
            raise InputError("trace", sorted(sizes), "needs one or more requests and as many of each column")
        numbers = np.arange(1, columns[0].size + 1) if rows is None else np.asarray(rows, dtype=np.int64)
        _check_times(columns[0], numbers)
        _check_tokens("input_tokens", columns[1], numbers)
        _check_tokens("output_tokens", columns[2], numbers)
        return cls(columns[0] - columns[0][0], columns[1].astype(np.int64), columns[2].astype(np.int64), source)

    @cached_property
    def rate_per_s(self) -> float:
        """Mean arrivals [1/s]: one over the mean gap. Raises InputError unless the arrivals span time."""
        return 1.0 / float(self._gaps_s().mean())

    def arrival_scv(self) -> float:
        """Squared coefficient of variation of the interarrival times: variance / mean^2 (1 for Poisson).

        Drift of the rate over minutes hardly shows here: compare `dispersion` over a longer window.
        """
        gaps = self._gaps_s()
        return float((gaps / gaps.mean()).var())

    def dispersion(self, window_s: float) -> float:
        """Index of dispersion for counts: Var[N] / E[N] of the arrivals N in a window [s] (1 for Poisson).

        Counts come from consecutive whole windows from the first arrival. For a renewal process it tends to the SCV of
        the gaps as the window grows; where it exceeds the SCV, gaps are correlated or the rate drifts.
        Source: Fendick and Whitt, Proceedings of the IEEE 77(1), 1989, p. 171-194 (dispersion of counts and work).
        Raises InputError when the trace holds fewer than two whole windows (or more than `MAX_WINDOWS`).

        >>> even = Trace.from_arrays([0, 1, 2, 3, 4], [1] * 5, [1] * 5)
        >>> even.dispersion(2.0)
        0.0
        """
        duration_s = float(self._gaps_s().sum())
        shortest, longest = duration_s / MAX_WINDOWS, duration_s / 2.0
        if not shortest <= window_s <= longest:
            bound = f"must lie between {shortest:g} and {longest:g} s for a trace of {duration_s:g} s"
            raise InputError("window_s", window_s, bound, "give a window of which the trace holds many, such as 10")
        windows = int(duration_s / window_s)
        places = np.floor(self.arrival_s / window_s)
        counts = np.unique(places[places < windows], return_counts=True)[1].astype(np.float64)
        mean = counts.sum() / windows
        return max(0.0, float((np.square(counts).sum() / windows - mean**2) / mean))

    def spread(self, step_s: float, seed: int) -> Trace:
        """The same requests with each arrival moved by a random share of `step_s` [s], in the same order.

        For a clock that ticks every `step_s`: requests of one tick would arrive all at once, and the gaps would look
        far burstier than they are. Uniform spreading keeps the count of every tick and makes no claim inside it.

        >>> ticks = Trace.from_arrays([0, 0, 3, 3], [1] * 4, [1] * 4)
        >>> bool((ticks.spread(3.0, seed=0).arrival_s != ticks.arrival_s).any())
        True
        """
        if not 0.0 < step_s <= MAX_TIME_S:
            raise InputError("step_s", step_s, f"must be > 0 and <= {MAX_TIME_S:g}", "give the tick of the clock in s")
        if seed < 0:
            raise InputError("seed", seed, "must be >= 0", "give a seed of 0 or more")
        moved = np.sort(self.arrival_s + step_s * np.random.default_rng(seed).random(self.arrival_s.size))
        source = f"{self.source}, arrivals spread over {step_s:g} s"
        return Trace(moved - moved[0], self.input_tokens, self.output_tokens, source)

    def lengths(self, cells: int = 2000) -> TokenLengths:
        """The joint lengths of the requests in at most `cells` weighted cells; see `compress`."""
        ones = np.ones(self.arrival_s.size)
        return _compressed(self.input_tokens, self.output_tokens, ones, cells, self.source)

    def arrivals(self, rate_per_s: float | None = None) -> ArrivalProcess:
        """A renewal process with this trace's SCV, at its own mean rate or at another [1/s]."""
        scv = self.arrival_scv()
        if scv > MAX_SCV:
            raise InputError("arrival_scv", scv, f"must be <= {MAX_SCV:g}", "cut out silences, or spread clock ticks")
        rate = self.rate_per_s if rate_per_s is None else rate_per_s
        return ArrivalProcess(rate_per_s=rate, scv=scv, source=self.source)

    def workload(self, rate_per_s: float | None = None) -> Workload:
        """The trace to be replayed request by request, with time rescaled to `rate_per_s` [1/s] if given.

        The theory sees its lengths, its SCV and its dispersion. Raises InputError unless the arrivals span time.

        >>> Trace.from_arrays([0, 1, 3], [10, 20, 30], [1, 2, 3]).workload(rate_per_s=2.0).rate_per_s
        2.0
        """
        self._gaps_s()
        recorded = RecordedArrivals(
            times_s=tuple(self.arrival_s.tolist()),
            input_tokens=tuple(self.input_tokens.tolist()),
            output_tokens=tuple(self.output_tokens.tolist()),
            source=self.source,
        )
        arrivals = recorded if rate_per_s is None else recorded.at_rate(rate_per_s)
        return Workload(arrivals=arrivals, classes=(RequestClass(lengths=self.lengths()),))

    def _gaps_s(self) -> NDArray[np.float64]:
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        if span_s < MIN_SPAN_S:
            bound = f"first to last arrival must take {MIN_SPAN_S:g} s or more"
            raise InputError("arrival_s", span_s, bound, "give a longer trace, or only its lengths")
        return np.diff(self.arrival_s)


def _as_floats(column: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.asarray(column, dtype=np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        raise InputError("trace", column, "must be numbers", "give flat lists of numbers") from None


def _check_times(times_s: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
    _refuse("arrival_s", times_s, rows, ~np.isfinite(times_s), "must be finite", "drop or correct the row")
    back = np.diff(times_s, prepend=times_s[0]) < 0.0
    _refuse("arrival_s", times_s, rows, back, "is earlier than the row before", "sort the rows by arrival time")
    _refuse("arrival_s", times_s, rows, times_s < 0.0, "must be >= 0 s", "subtract the time of the first request")
    late = times_s > MAX_TIME_S
    _refuse("arrival_s", times_s, rows, late, f"must be <= {MAX_TIME_S:g} s", "give seconds, not milliseconds")


def _check_tokens(name: str, tokens: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
    good = (tokens >= 1.0) & (tokens <= MAX_TOKENS) & (tokens == np.floor(tokens))
    bound = f"must be a whole number of tokens from 1 to {MAX_TOKENS}"
    _refuse(name, tokens, rows, ~good, bound, "drop the row (a failed request?) or correct it")


def _refuse(
    name: str, values: NDArray[np.float64], rows: NDArray[np.int64], bad: NDArray[np.bool_], bound: str, fix: str
) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        value = float(values[first])
        raise InputError(f"row {rows[first]} {name}", int(value) if value.is_integer() else value, bound, fix)


# --- reading --------------------------------------------------------------------------------------------------------


def read_trace(source: str | Path | IO[str] | IO[bytes]) -> Trace:
    r"""A trace from CSV: a path (``.gz`` allowed) or an open text or binary file.

    The first row names the columns, in any order and case: ``arrival_s`` or ``TIMESTAMP`` (seconds, or ISO dates as in
    the Azure traces), ``input_tokens`` or ``ContextTokens``, ``output_tokens`` or ``GeneratedTokens`` (BurstGPT's
    ``Request tokens`` and ``Response tokens`` too). Other columns, empty rows and rows starting with ``#`` are skipped.
    Times are shifted so that the first is 0.

    Raises InputError naming row, column, value, bound and fix: missing column or value, not a number, negative or
    unsorted time, tokens not a whole number from 1 to `MAX_TOKENS`, more than `MAX_TRACE_ROWS` rows, more than
    `MAX_TRACE_BYTES` bytes (checked before reading, and again while decompressing).

    >>> trace = read_trace(io.StringIO("arrival_s,input_tokens,output_tokens\n0.5,100,10\n2.5,300,20\n"))
    >>> trace.arrival_s.tolist(), trace.input_tokens.tolist()
    ([0.0, 2.0], [100, 300])
    """
    name = Path(source).name if isinstance(source, str | Path) else str(getattr(source, "name", "trace"))
    try:
        content = _read_file(Path(source)) if isinstance(source, str | Path) else _read_stream(source, name)
        return _parse(_as_lines(content, name), name)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError("trace", name, f"is not CSV text ({error})", "save it as UTF-8 CSV, plain or gzip") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError("trace", name, f"cannot be read ({error})", "check the path, or compress it again") from None


def _read_file(path: Path) -> bytes:
    """The content of a regular file within the size limit, or InputError."""
    if not path.is_file():
        raise InputError("trace", str(path), "no such file", "give the path of a CSV file, plain or gzip")
    if path.stat().st_size > MAX_TRACE_BYTES:
        raise _too_big(path.name)
    return path.read_bytes()


def _read_stream(stream: IO[str] | IO[bytes], name: str) -> str | bytes:
    content = stream.read(MAX_TRACE_BYTES + 1)
    if len(content) > MAX_TRACE_BYTES:
        raise _too_big(name)
    return content


def _as_lines(content: str | bytes, name: str) -> Iterable[str]:
    """Lines of plain or gzip content; a gzip that expands beyond the limit is refused on the way."""
    if isinstance(content, str):
        return io.StringIO(content.removeprefix("\ufeff"), newline="")
    if content.startswith(_GZIP_MAGIC):
        with gzip.open(io.BytesIO(content)) as packed:
            content = packed.read(MAX_TRACE_BYTES + 1)
        if len(content) > MAX_TRACE_BYTES:
            raise _too_big(name)
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")


def _too_big(name: str) -> InputError:
    return InputError("trace", name, f"is larger than {MAX_TRACE_BYTES / 1e6:g} MB", "cut it to a busy hour")


def _parse(text: Iterable[str], name: str) -> Trace:
    """Columns of numbers from CSV text; conversion only, `Trace.from_arrays` checks the values."""
    reader = csv.reader(text)
    rows = (row for row in reader if row and not row[0].startswith("#"))
    header = [column.strip() for column in next(rows, [])]
    places = [_find_column(header, names) for names in (_ARRIVAL_NAMES, _INPUT_NAMES, _OUTPUT_NAMES)]
    times, inputs, outputs, numbers = array("d"), array("d"), array("d"), array("q")
    clock = _Clock()
    for row in rows:
        number = reader.line_num
        if len(numbers) >= MAX_TRACE_ROWS:
            bound = f"a trace holds at most {MAX_TRACE_ROWS} requests"
            raise InputError("row", number, bound, "cut it to a busy hour")
        if len(row) <= max(places):
            bound = f"has {len(row)} of {len(header)} columns"
            raise InputError(f"row {number}", ",".join(row), bound, "complete or drop the row")
        times.append(clock.seconds(row[places[0]], number))
        inputs.append(_number(row[places[1]], "input_tokens", number))
        outputs.append(_number(row[places[2]], "output_tokens", number))
        numbers.append(number)
    if not numbers:
        raise InputError("trace", name, "has no requests", "give at least one row below the column names")
    return Trace.from_arrays(times, inputs, outputs, name, numbers)


def _find_column(header: list[str], names: tuple[str, ...]) -> int:
    lowered = [column.lower() for column in header]
    for name in names:
        if name in lowered:
            return lowered.index(name)
    raise InputError(names[0], header, "column is missing", f"name one column {' or '.join(names)}")


class _Clock:
    """Reads times as seconds, or as ISO dates relative to the first one; the first row decides which."""

    def __init__(self) -> None:
        self._start: datetime | None = None
        self._in_seconds = False

    def seconds(self, text: str, row: int) -> float:
        if self._in_seconds:
            return _number(text, "arrival_s", row)
        if self._start is None:
            try:
                value = float(text)
            except ValueError:
                self._start = _moment(text, row)
                return 0.0
            self._in_seconds = True
            return value
        return (_moment(text, row) - self._start).total_seconds()


def _moment(text: str, row: int) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        bound = "must be seconds or an ISO date like the rows before"
        raise InputError(f"row {row} arrival_s", text, bound, "write 12.5 or 2023-11-16 18:15:46.68") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _number(text: str, name: str, row: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"row {row} {name}", text, "must be a number", "drop or correct the row") from None


# --- compression ----------------------------------------------------------------------------------------------------


def compress(lengths: TokenLengths, cells: int = 2000) -> TokenLengths:
    """The same distribution of lengths in at most `cells` cells (at least `MIN_CELLS`).

    A two-dimensional histogram: each axis is cut where *share of requests + share of the range* grows by equal steps,
    so no bin holds many requests and none is wide, and the percentiles in `ANCHORS` get a narrow bin each. The number
    of steps is the largest that leaves at most `cells` occupied. A cell becomes the mean of its requests, rounded to
    whole tokens so that the overall means stay. Distributions that fit in `cells` are kept exactly.

    Kept: total weight; both means to half of the largest cell's probability [tokens]; on the packaged traces p50, p90,
    p95 and p99 within 2 %, standard deviations within 0.1 %, correlation within 0.001.

    >>> many = TokenLengths.from_pairs(range(1, 10_001), range(10_000, 0, -1))
    >>> few = compress(many, cells=500)
    >>> len(few.weights) <= 500, round(few.mean_input, 2), many.mean_input
    (True, 5000.5, 5000.5)
    """
    weights = np.asarray(lengths.weights, dtype=np.float64)
    inputs, outputs = lengths.inputs.astype(np.int64), lengths.outputs.astype(np.int64)
    return _compressed(inputs, outputs, weights, cells, lengths.source)


def _compressed(
    inputs: NDArray[np.int64], outputs: NDArray[np.int64], weights: NDArray[np.float64], cells: int, source: str
) -> TokenLengths:
    if cells < MIN_CELLS:
        raise InputError("cells", cells, f"must be >= {MIN_CELLS}", f"give {MIN_CELLS} or more; 2000 is the default")
    inputs, outputs, weights = _distinct(inputs, outputs, weights)
    if weights.size <= cells:
        return TokenLengths.from_pairs(inputs, outputs, weights, source)
    cell = _finest_cells(_Axis.of(inputs, weights), _Axis.of(outputs, weights), cells)
    mass = _sums(cell, weights)
    share = weights / mass[cell]
    mean_inputs, mean_outputs = _sums(cell, share * inputs), _sums(cell, share * outputs)
    return TokenLengths.from_pairs(_rounded(mean_inputs, mass), _rounded(mean_outputs, mass), mass, source)


def _distinct(
    inputs: NDArray[np.int64], outputs: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Each pair of lengths once, with its total weight; pairs without weight are dropped."""
    heavy = weights > NEGLIGIBLE_WEIGHT * weights.max()
    pairs, which = np.unique(inputs[heavy] * (MAX_TOKENS + 1) + outputs[heavy], return_inverse=True)
    return pairs // (MAX_TOKENS + 1), pairs % (MAX_TOKENS + 1), _sums(which, weights[heavy])


@dataclass(frozen=True, eq=False)
class _Axis:
    """One axis of the histogram.

    Attributes:
        position: mean of share of requests and share of the range, per distinct value, in (0, 1].
        anchors: anchor bins opened plus anchor bins closed up to each distinct value.
        which: index of the distinct value, per pair.
    """

    position: NDArray[np.float64]
    anchors: NDArray[np.int64]
    which: NDArray[np.intp]

    @classmethod
    def of(cls, tokens: NDArray[np.int64], weights: NDArray[np.float64]) -> Self:
        values, which = np.unique(tokens, return_inverse=True)
        total = np.cumsum(_sums(which, weights))
        share = total / total[-1]
        share_before = np.append(0.0, share[:-1])
        width = (values - values[0]) / max(1, int(values[-1] - values[0]))
        opened = np.searchsorted(np.subtract(ANCHORS, ANCHOR_HALF_WIDTH), share, side="right")
        closed = np.searchsorted(np.add(ANCHORS, ANCHOR_HALF_WIDTH), share_before, side="right")
        return cls((share + width) / 2.0, opened + closed, which)

    def bins(self, steps: int) -> NDArray[np.int64]:
        """Bin number of each pair, from 0, when the axis is cut into `steps` equal steps and at the anchors."""
        step = np.ceil(steps * self.position).astype(np.int64) + self.anchors
        numbers: NDArray[np.int64] = np.unique(step, return_inverse=True)[1].astype(np.int64)
        return numbers[self.which]


def _finest_cells(rows: _Axis, columns: _Axis, cells: int) -> NDArray[np.intp]:
    """Cell number of each pair, from 0, for the largest number of steps with at most `cells` occupied cells."""
    best = _occupied(rows, columns, 1)
    low, high = 1, 2 * cells
    while low < high:
        middle = (low + high + 1) // 2
        tried = _occupied(rows, columns, middle)
        if int(tried.max()) < cells:
            low, best = middle, tried
        else:
            high = middle - 1
    return best


def _sums(which: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the values of each group, shape (groups,)."""
    return np.bincount(which, values).astype(np.float64)


def _occupied(rows: _Axis, columns: _Axis, steps: int) -> NDArray[np.intp]:
    across = columns.bins(steps)
    cell: NDArray[np.intp] = np.unique(rows.bins(steps) * (int(across.max()) + 1) + across, return_inverse=True)[1]
    return cell


def _rounded(means: NDArray[np.float64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each mean rounded down or up, up where the fraction is largest, until the weighted total is met.

    The weighted total then differs by at most half of the heaviest cell's mass.
    """
    rounded = np.floor(means)
    fraction = means - rounded
    order = np.argsort(-fraction, kind="stable")
    raised = np.cumsum(mass[order]) - mass[order] / 2.0 <= fraction @ mass
    rounded[order[raised]] += 1.0
    return rounded


# --- presets --------------------------------------------------------------------------------------------------------


class PresetInfo(Frozen):
    """Where a packaged distribution of lengths comes from, and how its requests arrived."""

    name: str
    description: str
    origin: str = Field(description="measured, or how it was synthesised")
    source_url: str = Field(min_length=8)
    licence: str
    citation: str
    recorded_on: str = Field(description="day or period of the recording; empty where unpublished")
    retrieved_on: date = Field(description="date of the snapshot that was read")
    requests: int = Field(ge=1)
    rate_per_s: float = Field(gt=0, description="mean arrivals [1/s]")
    interarrival_scv: float = Field(ge=0, le=MAX_SCV, description="variance / mean^2 of the gaps")
    dispersion_1s: float = Field(ge=0, description="index of dispersion for counts in 1 s windows")
    dispersion_10s: float = Field(ge=0, description="index of dispersion for counts in 10 s windows")
    note: str = ""


def list_lengths() -> tuple[str, ...]:
    """Names of the packaged distributions of lengths, sorted.

    >>> "azure-2023-conv" in list_lengths()
    True
    """
    return table_names(_PRESETS)


def load_lengths(name: str) -> TokenLengths:
    """The joint lengths of a packaged trace, at most 2000 cells. Raises UnknownNameError with the nearest names.

    >>> round(load_lengths("azure-2023-conv").mean_output, 1)  # 211.1 over the 19,366 requests of the trace
    211.1
    """
    return _load(_known(name))[1]


def preset_info(name: str) -> PresetInfo:
    """Source, licence and arrival statistics of a packaged trace. Raises UnknownNameError with the nearest names.

    >>> preset_info("azure-2023-code").requests
    8819
    """
    return _load(_known(name))[0]


def preset_scv(name: str) -> float:
    """SCV of the interarrival times of a packaged trace. Raises UnknownNameError with the nearest names.

    >>> round(preset_scv("azure-2023-conv") ** 0.5, 2)  # coefficient of variation of the full trace
    1.09
    """
    return preset_info(name).interarrival_scv


def preset_arrivals(name: str, rate_per_s: float) -> ArrivalProcess:
    """Arrivals as bursty as a packaged trace at a rate [1/s] of your own. Raises InputError.

    >>> preset_arrivals("mooncake-synthetic", 2.0).rate_per_s
    2.0
    """
    return ArrivalProcess(rate_per_s=rate_per_s, scv=preset_scv(name), source=f"preset {name}")


def _known(name: str) -> str:
    names = list_lengths()
    if name not in names:
        raise UnknownNameError("lengths", name, names)
    return name


@cache
def _load(name: str) -> tuple[PresetInfo, TokenLengths]:
    lines = (_PRESETS / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    facts = dict(table_facts(lines))
    table = np.array([line.split(",") for line in lines if line and line[0].isdigit()], dtype=np.int64)
    lengths = TokenLengths.from_pairs(table[:, 0], table[:, 1], table[:, 2], source=f"preset {name}")
    return PresetInfo.model_validate({"name": name, **facts}), lengths


def table_names(folder: Traversable) -> tuple[str, ...]:
    """Names of the tables (CSV) in a folder of packaged data, sorted."""
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def table_facts(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What ``# key: value`` lines of a packaged table say of it."""
    for line in lines:
        if line.startswith("# "):
            key, _, value = line.removeprefix("# ").partition(":")
            yield key, value.strip()
