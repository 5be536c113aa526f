"""How the rate of a stream of requests varies: factors on its mean, window by window.

A stream is a *drift* times a renewal process: the drift says how the rate moves over seconds to hours, the renewal
process how bursty requests come at any one rate. Requests of a renewal process with mean gap 1/rate happen at
*operational* times; the clock runs through them at the factor of the window (time change of a Cox process: Cox and
Isham, Point Processes, 1980, section 3.3). What is common to all users (drift) stays when more of them come, what is
each user's own (burstiness) averages out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from planner.core import FloatArray, Frozen, InputError, IntArray
from planner.workload.checks import read_only

MAX_DRIFT_WINDOWS = 100_000
"""Most windows of one drift: two months of minutes."""
MAX_RATE_CV = 3.0
"""Largest coefficient of variation of a rate that is drawn: beyond it nearly all requests come in a few windows."""
PATH_CORRELATION_TIMES = 64
"""Length of a drawn path in correlation times, so that its windows show the whole distribution. A choice."""
WINDOWS_PER_CORRELATION_TIME = 4
"""Windows of a drawn path in one correlation time. A choice of resolution."""
STRETCH_LEVELS = 32
"""Levels of the rate at which a stretch of a drift is held against all of it. A choice of resolution."""
WINDOWS_S = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Windows in which a drift is looked for [s], from about the lifetime of a request on. A choice."""
CLEAR_INDEX = 10.0
"""Index of dispersion from which the counts of a window show a drift clearly: a tenth of it is chance. A choice."""
LEAST_INDEX = 3.0
"""The same from which there is any drift worth telling from chance, where no window shows it clearly. A choice."""
FEWEST_WINDOWS = 10
"""Windows that a recording must hold for a drift or the variance of its counts to be read from it. A choice."""
SHORTER = 10.0
"""How much shorter the window is by which chance and drift are told apart. A choice."""
MIX_EDGES = (0.0, 0.8)
"""Shares of the requests, in rising order of the work of their windows, at which a mix of lengths begins. A choice: the
p99 of TTFT and TPOT of the default scenario are within 3 % of those with a mix for each of eleven loads."""
MIX_STEP = 0.02
"""Step to which mean lengths of a mix are rounded, so that pools of all kinds meet the same few. A choice."""
SAME_MIX = 0.03
"""Difference of mean lengths up to which all windows have one mix. A choice."""


class LengthMix(NamedTuple):
    """Windows of a drift that bring about as much work, and what the requests in them are like.

    Attributes:
        windows: their places, rising.
        share: of all requests that come in them.
        rate: mean factor of the windows on the rate.
        inputs: mean input of their requests over that of all.
        outputs: mean output likewise.
    """

    windows: IntArray
    share: float
    rate: float
    inputs: float
    outputs: float


class RateDrift(Frozen):
    """Factors on the mean rate over consecutive windows of equal length, over and over; their mean is 1.

    Build with `of` (any non-negative rates), `random` (two numbers) or `measured_drift` (a recording).

    >>> busy = RateDrift.of([10.0, 30.0], window_s=60.0)
    >>> busy.factors, busy.duration_s, busy.cv
    ((0.5, 1.5), 120.0, 0.5)
    """

    window_s: float = Field(gt=0, description="length of a window [s]")
    factors: tuple[float, ...] = Field(
        min_length=2, max_length=MAX_DRIFT_WINDOWS, description="rate of each window over the mean rate"
    )
    input_factors: tuple[float, ...] = Field(
        default=(), description="mean input of the requests of each window over that of all; empty: alike"
    )
    output_factors: tuple[float, ...] = Field(default=(), description="the same of outputs; empty: alike")
    source: str = Field(default="given", description="where the factors come from")

    @model_validator(mode="after")
    def _mean_is_one(self) -> Self:
        if min(self.factors) < 0.0:
            raise InputError("drift.factors", min(self.factors), "must be >= 0", "a rate cannot be negative")
        mean = float(np.mean(self.factors))
        if abs(mean - 1.0) > 1e-6:
            raise InputError("drift.factors", mean, "their mean must be 1", "divide by the mean (RateDrift.of)")
        for name in ("input_factors", "output_factors"):
            of_lengths = getattr(self, name)
            if not of_lengths:
                continue
            if len(of_lengths) != len(self.factors) or min(of_lengths) < 0.0:
                bound = "needs one factor >= 0 for each window"
                raise InputError(f"drift.{name}", len(of_lengths), bound, "leave it empty where lengths are alike")
            mean = float(np.average(of_lengths, weights=self.factors))
            if abs(mean - 1.0) > 1e-6:
                raise InputError(f"drift.{name}", mean, "their mean over all requests must be 1", "divide by it")
        return self

    @classmethod
    def of(cls, rates: ArrayLike, window_s: float, source: str = "given") -> Self:
        """From the rates of consecutive windows, in any unit. Raises InputError unless some rate is > 0."""
        values = np.asarray(rates, dtype=np.float64).ravel()
        if values.size < 2 or not np.isfinite(values).all() or values.min() < 0.0 or not values.sum() > 0.0:
            raise InputError("drift.rates", values.tolist()[:3], "needs two or more finite rates >= 0, one of them > 0")
        return cls(window_s=window_s, factors=tuple((values / values.mean()).tolist()), source=source)

    @classmethod
    def of_counts(cls, counts: FloatArray, window_s: float, source: str = "given", chance: float = 1.0) -> Self | None:
        """From the arrivals in consecutive windows, drawn towards their mean by what chance adds to their variance.

        `chance` is the index of dispersion (variance over mean) that they would have at a steady rate, 1 for Poisson
        arrivals. None where they vary no more than about that.
        """
        index = _dispersion(counts) if counts.size >= 2 and counts.sum() > 0.0 else 0.0
        if not index > chance:
            return None
        factors = 1.0 + np.sqrt(1.0 - chance / index) * (counts / counts.mean() - 1.0)
        return cls.of(np.maximum(factors, 0.0), window_s, source)

    @classmethod
    def random(cls, cv: float, correlation_time_s: float, seed: int = 0) -> Self:
        """A path with a coefficient of variation and a correlation time [s] of the rate.

        Factors are Gamma distributed with mean 1 and standard deviation `cv`; their ranks follow a Gaussian process
        whose correlation falls by e in `correlation_time_s` (a first-order autoregression). Repeats for one seed.
        Raises InputError unless 0 < cv <= 3 and the time is positive.

        >>> round(RateDrift.random(0.4, 300.0).cv, 2)
        0.4
        """
        if not 0.0 < cv <= MAX_RATE_CV:
            raise InputError("drift.cv", cv, f"must be > 0 and <= {MAX_RATE_CV:g}", "0.2 is a calm hour, 0.6 a day")
        if not 0.0 < correlation_time_s < np.inf:
            raise InputError("drift.correlation_time_s", correlation_time_s, "must be > 0 s", "give e.g. 300")
        from scipy.special import gammaincinv  # noqa: PLC0415  (a step time loads no scipy)

        windows = PATH_CORRELATION_TIMES * WINDOWS_PER_CORRELATION_TIME
        kept = np.exp(-1.0 / WINDOWS_PER_CORRELATION_TIME)
        generator = np.random.default_rng(seed)
        normal = generator.standard_normal(windows)
        for place in range(1, windows):
            normal[place] = kept * normal[place - 1] + np.sqrt(1.0 - kept**2) * normal[place]
        ranks = normal.argsort().argsort()
        factors = gammaincinv(cv**-2, (ranks + 0.5) / windows) * cv**2
        factors = np.maximum(1.0 + (factors - factors.mean()) * (cv / factors.std()), 0.0)
        source = f"rate with a coefficient of variation of {cv:g} over {correlation_time_s:g} s"
        return cls.of(factors, correlation_time_s / WINDOWS_PER_CORRELATION_TIME, source)

    @classmethod
    def together(cls, parts: Sequence[tuple[float, RateDrift | None]]) -> RateDrift | None:
        """The drift of streams on one clock, given by rates [1/s] or shares and their drifts; None where none has any.

        Mean factors over windows as long as the shortest of the parts (longer where that would be too many), over the
        duration of the longest.

        >>> alone = RateDrift.of([10.0, 30.0], window_s=60.0)
        >>> RateDrift.together([(1.0, alone), (3.0, None)]).factors
        (0.875, 1.125)
        """
        drifts = [drift for _, drift in parts if drift is not None]
        if not drifts:
            return None
        duration_s = max(drift.duration_s for drift in drifts)
        windows = round(duration_s / min(drift.window_s for drift in drifts))
        edges_s = np.linspace(0.0, duration_s, min(windows, MAX_DRIFT_WINDOWS) + 1)
        rates = [rate * np.diff(edges_s if drift is None else drift.operational_s(edges_s)) for rate, drift in parts]
        source = " + ".join(dict.fromkeys(drift.source for drift in drifts))
        return cls.of(np.sum(rates, axis=0), float(edges_s[1]), source)

    def coarser(self, most_windows: int) -> RateDrift:
        """Itself, or the means over longer windows where there are more than so many.

        >>> RateDrift.of([1.0, 3.0, 3.0, 5.0], 60.0).coarser(2).factors
        (0.6666666666666666, 1.3333333333333333)
        """
        if len(self.factors) <= most_windows:
            return self
        edges_s = np.linspace(0.0, self.duration_s, most_windows + 1)
        return RateDrift.of(np.diff(self.operational_s(edges_s)), self.duration_s / most_windows, self.source)

    @property
    def duration_s(self) -> float:
        """Time after which the factors begin anew [s]."""
        return self.window_s * len(self.factors)

    @cached_property
    def array(self) -> FloatArray:
        """The factors, shape (windows,)."""
        return read_only(np.asarray(self.factors, dtype=np.float64))

    @cached_property
    def cv(self) -> float:
        """Coefficient of variation of the rate over time."""
        return float(self.array.std())

    def work(self, by_inputs: float, by_outputs: float) -> FloatArray:
        """Factors on the work that arrives, shape (windows,), for work that grows so much with mean inputs and outputs.

        Each is the relative growth of the work of a request over that of its length, 1 where it is in proportion.

        >>> busy = RateDrift(window_s=60.0, factors=(0.5, 1.5), input_factors=(1.6, 0.8))
        >>> busy.work(0.0, 1.0).tolist(), busy.work(1.0, 0.0).round(9).tolist()
        ([0.5, 1.5], [0.8, 1.2])
        """
        inputs, outputs = (np.array(of or (1.0,)) for of in (self.input_factors, self.output_factors))
        return np.asarray(self.array * np.maximum(1.0 + by_inputs * (inputs - 1.0) + by_outputs * (outputs - 1.0), 0.0))

    def mixes(self, by_inputs: float, by_outputs: float) -> tuple[LengthMix, ...]:
        """Mixes of requests while little work comes, and while much does; one mix where they are alike.

        Args:
            by_inputs: as `work` has it.
            by_outputs: likewise.

        >>> busy = RateDrift(window_s=60.0, factors=(1.0, 1.0, 1.0), input_factors=(0.8, 0.8, 1.4))
        >>> [(mix.windows.tolist(), mix.rate, mix.inputs, mix.outputs) for mix in busy.mixes(1.0, 0.0)]
        [([0, 1], 1.0, 0.8, 1.0), ([2], 1.0, 1.4, 1.0)]
        """
        work = self.work(by_inputs, by_outputs)
        order = np.argsort(work, kind="stable")
        middle = np.cumsum(self.array[order]) - self.array[order] / 2.0
        first = np.searchsorted(middle, np.array(MIX_EDGES) * float(self.array.sum()))
        found = []
        for windows in np.split(order, first[1:]):
            requests = self.array[windows]
            if requests.sum() <= 0.0:
                continue
            inputs, outputs = (
                round(float(np.average(np.array(of)[windows], weights=requests)) / MIX_STEP) * MIX_STEP if of else 1.0
                for of in (self.input_factors, self.output_factors)
            )
            lengths = round(inputs, 9), round(outputs, 9)
            share = float(requests.sum() / self.array.sum())
            found.append(LengthMix(np.sort(windows), share, float(requests.mean()), *lengths))
        apart = max(abs(of - 1.0) for mix in found for of in (mix.inputs, mix.outputs))
        return tuple(found) if apart > SAME_MIX else (LengthMix(np.arange(work.size), 1.0, 1.0, 1.0, 1.0),)

    @property
    def peak(self) -> float:
        """Largest factor."""
        return max(self.factors)

    @cached_property
    def _elapsed(self) -> tuple[FloatArray, FloatArray]:
        """Edges of the windows [s], and operational time [s] passed at each."""
        edges = np.arange(len(self.factors) + 1.0) * self.window_s
        return edges, np.append(0.0, np.cumsum(self.array * self.window_s))

    def operational_s(self, times_s: FloatArray) -> FloatArray:
        """Operational time [s] passed at clock times [s] >= 0: the integral of the factors, same shape."""
        edges, passed = self._elapsed
        rounds = np.floor(times_s / self.duration_s)
        inside = np.interp(times_s - rounds * self.duration_s, edges, passed)
        return np.asarray(rounds * passed[-1] + inside)

    def clock_s(self, operational_s: FloatArray) -> FloatArray:
        """Clock times [s] at which so much operational time [s] has passed, same shape; inverse of `operational_s`.

        >>> RateDrift.of([1.0, 3.0], window_s=10.0).clock_s(np.array([5.0, 20.0])).tolist()
        [10.0, 20.0]
        """
        edges, passed = self._elapsed
        rounds = np.ceil(operational_s / passed[-1]) - 1.0
        rounds = np.maximum(rounds, 0.0)
        inside = np.interp(operational_s - rounds * passed[-1], passed, edges)
        return np.asarray(rounds * self.duration_s + inside)

    def smoothed(self, memory_s: float) -> FloatArray:
        """Factors as something sees them that forgets exponentially with mean `memory_s` [s], mean of each window.

        The number of requests in service follows the rate like this (Eick, Massey and Whitt, "The physics of the
        M_t/G/infinity queue", Operations Research 41(4), 1993, for exponential service), shape (windows,).
        """
        if memory_s <= 0.0:
            return self.array
        left = float(np.exp(-self.window_s / memory_s))
        windows = len(self.factors)
        ends = forgetting_means(self.array, left)
        before_first = ends[-1] / (1.0 - left**windows)
        ends = ends + before_first * left ** np.arange(1.0, windows + 1.0)
        before = np.append(ends[-1], ends[:-1])
        return np.asarray(self.array + (before - self.array) * (1.0 - left) * memory_s / self.window_s)

    def share_of_requests(self) -> FloatArray:
        """Share of all requests that come in each window, shape (windows,)."""
        return np.asarray(self.array / self.array.sum())

    def stretch_like_all(self, duration_s: float) -> tuple[RateDrift, float]:
        """Consecutive windows of about this length whose rates are distributed most nearly as those of all.

        Nearest in the area between the two distribution functions over `STRETCH_LEVELS` levels of the rate; lengths are
        drawn to the same means as in all windows.

        Args:
            duration_s: wanted [s]; two windows at least, and no more than all.

        Returns:
            Their drift, which repeats after them, and their mean rate over that of all.

        >>> mixed, mean = RateDrift.of([1.0, 1.0, 3.0, 3.0], 60.0).stretch_like_all(120.0)
        >>> mixed.factors, mean
        ((0.5, 1.5), 1.0)
        """
        factors = np.array(self.factors)
        count = min(max(round(duration_s / self.window_s), 2), factors.size)
        levels = np.quantile(factors, (np.arange(STRETCH_LEVELS) + 0.5) / STRETCH_LEVELS)
        widths = np.diff(levels, append=factors.max())
        below = (np.concatenate([factors, factors[:count]])[:, None] <= levels).cumsum(axis=0)
        among = (below[count:] - below[:-count]) / count
        distance = np.abs(among - (factors[:, None] <= levels).mean(axis=0)) @ widths
        total = np.concatenate([factors, factors[:count]]).cumsum()
        distance[total[count:] <= total[:-count]] = np.inf  # nobody comes
        first = (int(distance.argmin()) + 1) % factors.size
        places = (first + np.arange(count)) % factors.size
        mean = float(factors[places].mean())

        def of_lengths(given: tuple[float, ...]) -> tuple[float, ...]:
            values = np.array(given)[places] if given else np.zeros(0)
            return tuple((values / np.average(values, weights=factors[places])).tolist()) if given else ()

        stretch = RateDrift(
            window_s=self.window_s,
            factors=tuple((factors[places] / mean).tolist()),
            input_factors=of_lengths(self.input_factors),
            output_factors=of_lengths(self.output_factors),
            source=self.source,
        )
        return stretch, mean

    def sample_clock_s(self, operational_s: FloatArray, seed: int) -> FloatArray:
        """Clock times [s] after a start at a random point of the drift (by `seed`), same shape."""
        start = float(np.random.default_rng(seed).random()) * self.duration_s
        before = self.operational_s(np.array([start]))
        return np.asarray(self.clock_s(operational_s + before) - start)


def forgetting_means(values: FloatArray, kept: float, start: float = 0.0) -> FloatArray:
    """Means that forget: y_k = kept y_(k-1) + (1 - kept) x_k.

    Stretches of about sqrt(n) are worked out side by side and then joined: `scipy.signal.lfilter` without its import.

    Args:
        values: x, shape (n,).
        kept: share of what went before that is left, in [0, 1).
        start: y before the first.

    Returns:
        y, shape (n,).

    >>> forgetting_means(np.array([1.0, 0.0, 4.0]), 0.5).tolist()
    [0.5, 0.25, 2.125]
    """
    length = max(int(np.sqrt(values.size)), 1)
    padded = np.append(values, np.zeros(-values.size % length)).reshape(-1, length)
    lag = np.arange(length)[:, None] - np.arange(length)
    means = padded @ np.where(lag >= 0, (1.0 - kept) * kept ** np.maximum(lag, 0), 0.0).T
    left = kept ** np.arange(1.0, length + 1.0)
    for place in range(len(means)):
        means[place] += start * left
        start = means[place, -1]
    return np.asarray(means.ravel()[: values.size])


def measured_drift(
    times_s: FloatArray,
    source: str = "given",
    tokens: tuple[IntArray, IntArray] | None = None,
    most_windows: int = MAX_DRIFT_WINDOWS,
) -> RateDrift | None:
    """The drift of recorded arrivals; None where their counts vary little more than chance would have it.

    Counts of the shortest window of `WINDOWS_S` whose index of dispersion (variance over mean) reaches `CLEAR_INDEX`,
    else of the longest that reaches `LEAST_INDEX`. For a drift times a renewal process the index grows as b + a w with
    the window w; b, read from a window a tenth as long, is chance, and factors are drawn towards 1 so that their
    variance is what is left (shrinkage: Efron and Morris, J. Am. Stat. Assoc. 68, 1973, 117-130). Mean lengths of the
    windows are drawn towards that of all requests in the same manner; their chance is the variance of lengths over the
    number of requests.

    Args:
        times_s: after the first request, sorted, shape (n,).
        source: of the recording.
        tokens: input and output tokens of each request, each of shape (n,); None: lengths are alike.
        most_windows: shorter windows, of which there would be more, are passed over.

    >>> even = np.arange(4000.0)
    >>> measured_drift(even) is None
    True
    """
    chosen = 0.0
    for window_s in WINDOWS_S:
        if times_s[-1] < FEWEST_WINDOWS * window_s:
            break
        if times_s[-1] > most_windows * window_s:
            continue
        index = _dispersion(_counts(times_s, window_s))
        if index >= LEAST_INDEX:
            chosen = window_s
        if index >= CLEAR_INDEX:
            break
    if not chosen:
        return None
    counts = _counts(times_s, chosen)
    short = _dispersion(_counts(times_s, chosen / SHORTER))
    chance = max((SHORTER * short - _dispersion(counts)) / (SHORTER - 1.0), 0.0)
    drift = RateDrift.of_counts(counts, chosen, source, chance)
    if tokens is None or drift is None:
        return drift
    inputs, outputs = (_length_factors(times_s, of, drift) for of in tokens)
    return drift.model_copy(update={"input_factors": inputs, "output_factors": outputs})


def _length_factors(times_s: FloatArray, tokens: IntArray, drift: RateDrift) -> tuple[float, ...]:
    """Mean tokens of a request in each window over that of all, without what chance adds."""
    counts, sums = _counts(times_s, drift.window_s), _counts(times_s, drift.window_s, tokens)
    filled = counts > 0.0
    mean = float(tokens.mean())
    apart = np.where(filled, sums / np.maximum(counts, 1.0) / mean - 1.0, 0.0)
    spread = float(np.average(apart**2, weights=counts))
    chance = float(tokens.var()) / mean**2 * float(filled.sum() / counts.sum())
    factors = np.maximum(1.0 + apart * np.sqrt(max(1.0 - chance / max(spread, 1e-12), 0.0)), 0.0)
    return tuple((factors / np.average(factors, weights=drift.array)).tolist())


def _counts(times_s: FloatArray, window_s: float, weights: IntArray | None = None) -> FloatArray:
    """Arrivals in consecutive whole windows, or the sum of their weights."""
    whole = int(times_s[-1] // window_s)
    places = (times_s / window_s).astype(np.int64)
    inside = places < whole
    of = None if weights is None else weights[inside]
    return np.bincount(places[inside], of, minlength=whole).astype(np.float64)


def _dispersion(counts: FloatArray) -> float:
    """Variance over mean."""
    return float(counts.var() / counts.mean())
