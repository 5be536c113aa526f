"""A trace of requests: its lengths, its arrivals, and how bursty they are; `planner.traffic.readers` reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.core import BoolArray, FloatArray, InputError, IntArray
from planner.traffic.compression import compressed_pairs
from planner.workload import (
    MAX_RECORDED,
    MAX_TOKENS,
    ArrivalProcess,
    RecordedArrivals,
    RequestClass,
    Scaling,
    TokenLengths,
    Workload,
    measured_process,
)

MAX_TRACE_BYTES = 100_000_000
"""Largest open file that is read as a trace, and largest JSON document in one, after decompression [bytes]."""
MAX_TRACE_ROWS = 50_000_000
"""Most requests read from one trace: twice Azure's week of 2024, in some 7 GB of memory."""
MAX_TIME_S = 1e11
"""Latest arrival time [s], some three thousand years: refuses epoch times in milliseconds."""
MIN_SPAN_S = 1e-9
"""Least time from first to last arrival for which a rate has a meaning [s]."""
MAX_WINDOWS = 1e9
"""Most windows that arrivals are counted in."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival. Build with `from_arrays`, which validates; the readers do.

    Attributes:
        arrival_s: arrival times [s] after the first request, sorted, shape (n,).
        input_tokens: per request [tokens], shape (n,).
        output_tokens: per request [tokens], shape (n,).
        source: where the trace comes from.
        areas: where the users of the requests are, as the file names it, shape (n,); None where it does not.
        starts_at_hours: time of day of the first request, of UTC where the file has dates [h].

    >>> trace = Trace.from_arrays([0, 1, 3], [10, 20, 30], [1, 2, 3])
    >>> trace.rate_per_s, round(trace.arrival_scv(), 3)  # gaps 1 and 2: mean 1.5, variance 0.25
    (0.6666666666666666, 0.111)
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    source: str = "given"
    areas: NDArray[np.str_] | None = None
    starts_at_hours: float = 0.0

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
        return replace(self, arrival_s=moved - moved[0], source=source)

    def lengths(self, cells: int = 2000) -> TokenLengths:
        """The joint lengths of the requests in at most `cells` weighted cells; see `compress`."""
        ones = np.ones(self.arrival_s.size)
        return compressed_pairs(self.input_tokens, self.output_tokens, ones, cells, self.source)

    def recorded(self, scaling: Scaling = Scaling.SUPERPOSE) -> RecordedArrivals:
        """The requests to be replayed one by one. Raises InputError unless the arrivals span time, or for too many."""
        self._gaps_s()
        if self.arrival_s.size > MAX_RECORDED:
            bound = f"{self.arrival_s.size:,} requests, more than the {MAX_RECORDED:,} that are replayed or scaled"
            fix = "cut it to its busiest part, or take rate and lengths as they are (no replay, no other rate)"
            raise InputError("trace", self.source, bound, fix)
        return RecordedArrivals(
            times_s=tuple(self.arrival_s.tolist()),
            input_tokens=tuple(self.input_tokens.tolist()),
            output_tokens=tuple(self.output_tokens.tolist()),
            source=self.source,
            scaling=scaling,
        )

    def arrivals(self, rate_per_s: float | None = None, scaling: Scaling = Scaling.SUPERPOSE) -> ArrivalProcess:
        """The drift of this trace and the SCV of its gaps apart from it, at its own mean rate or at another [1/s].

        At another rate they are those of the trace brought to it (`RecordedArrivals.at_rate`).
        """
        if rate_per_s is not None:
            return self.recorded(scaling).at_rate(rate_per_s).process
        return measured_process(self.arrival_s, (self.input_tokens, self.output_tokens), self.rate_per_s, self.source)

    def workload(self, rate_per_s: float | None = None, scaling: Scaling = Scaling.SUPERPOSE) -> Workload:
        """The trace to be replayed request by request, brought to `rate_per_s` [1/s] if given, as `scaling` says.

        The theory sees its lengths, its drift, its SCV and its dispersion. Raises InputError unless the arrivals span
        time.

        >>> Trace.from_arrays([0, 1, 3], [10, 20, 30], [1, 2, 3]).workload(rate_per_s=2.0).rate_per_s
        2.0
        """
        recorded = self.recorded(scaling)
        arrivals = recorded if rate_per_s is None else recorded.at_rate(rate_per_s)
        return Workload(arrivals=arrivals, classes=(RequestClass(lengths=self.lengths()),))

    def _gaps_s(self) -> FloatArray:
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        if span_s < MIN_SPAN_S:
            bound = f"first to last arrival must take {MIN_SPAN_S:g} s or more"
            raise InputError("arrival_s", span_s, bound, "give a longer trace, or only its lengths")
        return np.diff(self.arrival_s)


def _as_floats(column: ArrayLike) -> FloatArray:
    try:
        return np.asarray(column, dtype=np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        raise InputError("trace", column, "must be numbers", "give flat lists of numbers") from None


def _check_times(times_s: FloatArray, rows: IntArray) -> None:
    _refuse("arrival_s", times_s, rows, ~np.isfinite(times_s), "must be finite", "drop or correct the row")
    back = np.diff(times_s, prepend=times_s[0]) < 0.0
    _refuse("arrival_s", times_s, rows, back, "is earlier than the row before", "sort the rows by arrival time")
    _refuse("arrival_s", times_s, rows, times_s < 0.0, "must be >= 0 s", "subtract the time of the first request")
    late = times_s > MAX_TIME_S
    _refuse("arrival_s", times_s, rows, late, f"must be <= {MAX_TIME_S:g} s", "give seconds, not milliseconds")


def _check_tokens(name: str, tokens: FloatArray, rows: IntArray) -> None:
    good = (tokens >= 1.0) & (tokens <= MAX_TOKENS) & (tokens == np.floor(tokens))
    bound = f"must be a whole number of tokens from 1 to {MAX_TOKENS}"
    _refuse(name, tokens, rows, ~good, bound, "drop the row (a failed request?) or correct it")


def _refuse(name: str, values: FloatArray, rows: IntArray, bad: BoolArray, bound: str, fix: str) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        value = float(values[first])
        raise InputError(f"row {rows[first]} {name}", int(value) if value.is_integer() else value, bound, fix)
