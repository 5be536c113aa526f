"""More work than a server can do, for a while: how backlog and waits grow over a finite time, and how they drain.

To first order (fluid) a server offered rho > 1 times what it can do falls behind by rho - 1 seconds per second, so that
a request that arrives after t seconds waits (rho - 1) t. Around that the work found is a Brownian motion with drift m =
rho - 1 and variance v per second that is pushed back at 0; from an empty start

    P(W(t) <= x) = Phi((x - m t) / sqrt(v t)) - exp(2 m x / v) Phi((-x - m t) / sqrt(v t))

which also holds for loads of 1 and less (the way into a steady state).

Sources: Newell, Applications of Queueing Theory (1982), chapter 2 (fluid approximation); Harrison, Brownian Motion and
Stochastic Flow Systems (1985), section 1.9, eq. 3.63 (reflected Brownian motion); v = rate (Var S + I E[S]^2) as in
Cox, Renewal Theory (1962), section 8.4 (cumulative processes).

Units: seconds and requests per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtr

from planner.core import InputError
from planner.queueing.distributions import summed, tail_condensed
from planner.queueing.types import FloatArray
from planner.workload import LatencyDistribution

INSTANTS = 64
"""Times of arrival told apart in a period."""
LEVELS = 200
"""Waits told apart at one of them."""


def work_variance_per_s(rate_per_s: float, mean_work_s: float, work_scv: float, dispersion: float = 1.0) -> float:
    """Growth of the variance of the work that has arrived, v = rate E[S]^2 (SCV + I) [s^2/s].

    Args:
        rate_per_s: arrivals [1/s].
        mean_work_s: E[S] of a request [s].
        work_scv: squared coefficient of variation of S.
        dispersion: index of dispersion I of the arrival counts in the long run; 1 is Poisson.

    Source: Cox (1962), section 8.4. For Poisson arrivals rate E[S^2].

    >>> work_variance_per_s(2.0, 0.5, 1.0)
    1.0
    """
    return rate_per_s * mean_work_s**2 * (work_scv + dispersion)


def fluid_wait_s(load: float, after_s: float) -> float:
    """Wait [s] of a request that arrives `after_s` into an overload that began with nothing waiting: (rho - 1) t, or 0.

    Source: Newell (1982), chapter 2.

    >>> fluid_wait_s(1.5, 60.0)
    30.0
    """
    return max(load - 1.0, 0.0) * after_s


def drain_s(load: float, lasted_s: float, later_load: float) -> float:
    """Time [s] from the end of an overload until the backlog is gone: (rho - 1) lasted / (1 - later rho).

    Infinite when the later load is 1 or more. Source: Newell (1982), chapter 2.

    >>> drain_s(1.5, 60.0, 0.5)
    60.0
    """
    behind_s = fluid_wait_s(load, lasted_s)
    if behind_s == 0.0:
        return 0.0
    return behind_s / (1.0 - later_load) if later_load < 1.0 else float("inf")


def transient_wait_cdf(waits_s: ArrayLike, after_s: float, drift: float, variance_per_s: float) -> FloatArray:
    """P(wait <= x) of a request that arrives `after_s` after an empty start, the formula above; shape of `waits_s`.

    Args:
        waits_s: x >= 0 [s].
        after_s: t > 0 [s].
        drift: m = rho - 1, any sign [s/s].
        variance_per_s: v > 0 [s^2/s].

    Source: Harrison (1985), section 1.9.

    >>> transient_wait_cdf([2.0], 1e9, -0.5, 1.0).round(4).tolist()  # steady state: 1 - exp(-2 |m| x / v)
    [0.8647]
    """
    x = np.asarray(waits_s, dtype=np.float64)
    scale = np.sqrt(variance_per_s * after_s)
    ahead = ndtr((x - drift * after_s) / scale)
    pushed = np.exp(np.minimum(2.0 * drift * x / variance_per_s + log_ndtr((-x - drift * after_s) / scale), 0.0))
    return np.asarray(np.clip(ahead - pushed, 0.0, 1.0))


def transient_wait_distribution(
    load: float, variance_per_s: float, horizon_s: float, start_s: float = 0.0
) -> LatencyDistribution:
    """Distribution of the wait of the requests that arrive within `horizon_s` after `start_s` of load after an empty start.

    Args:
        load: rho, of any size.
        variance_per_s: v, e.g. of `work_variance_per_s` [s^2/s].
        horizon_s: length of the period, > 0 [s].
        start_s: the load has lasted this long when the period begins [s].

    Raises InputError when a number is out of range.

    >>> distribution = transient_wait_distribution(1.5, 1e-6, 100.0)  # without fluctuation: even over (0, 50) s
    >>> round(distribution.mean_s, 1), round(distribution.quantile_s(0.99))
    (25.0, 50)
    """
    if not (load >= 0.0 and variance_per_s > 0.0 and horizon_s > 0.0 and start_s >= 0.0):
        raise InputError("horizon_s", horizon_s, "horizon and variance must be > 0, load >= 0", "give positive numbers")
    times = start_s + horizon_s * (np.arange(INSTANTS) + 0.5) / INSTANTS
    drift = load - 1.0
    middle = np.clip((np.arange(LEVELS) + 0.5) / LEVELS, 0.0, 1.0)
    parts = []
    for after_s in times:
        top = max(drift * after_s, 0.0) + 8.0 * np.sqrt(variance_per_s * after_s)
        # A stable load settles at an exponential distribution of mean v / (2 |m|); exp(-16) of it is beyond.
        top = min(top, 8.0 * variance_per_s / -drift) if drift < 0.0 else top
        low = max(drift * after_s - 8.0 * np.sqrt(variance_per_s * after_s), 0.0)
        grid = np.linspace(low, top, 4 * LEVELS)
        distribution = np.maximum.accumulate(transient_wait_cdf(grid, float(after_s), drift, variance_per_s))
        rising = np.append(True, np.diff(distribution) > 0.0)
        parts.append(np.maximum(np.interp(middle, distribution[rising], grid[rising]), 0.0))
    every = np.concatenate(parts)
    return tail_condensed(every, np.ones(every.size))


def overloaded_ttft(
    base: LatencyDistribution, load: float, variance_per_s: float, horizon_s: float
) -> LatencyDistribution:
    """Distribution of the TTFT over the first `horizon_s` of an overload: the wait, then what the request itself takes.

    Args:
        base: TTFT without waiting for others' work (e.g. of a nearly idle server, or its own chunks beside a full
            batch).
        load: offered rate over largest stable rate.
        variance_per_s: of the work that arrives, in seconds of work of this server [s^2/s].
        horizon_s: how long the overload is looked at [s].

    The percentiles depend on the horizon: there is no steady state.
    """
    return summed(transient_wait_distribution(load, variance_per_s, horizon_s), base)


@dataclass(frozen=True, eq=False)
class FluidPath:
    """Backlog of work under a rate that is constant in pieces.

    Attributes:
        times_s: start, every change of slope, and end [s], rising.
        backlog_s: work waiting at these times [s], linear in between: the wait of a request that arrives then.
        loads: between these times, shape (len(times_s) - 1,).
    """

    times_s: FloatArray
    backlog_s: FloatArray
    loads: FloatArray

    @property
    def peak_s(self) -> float:
        """Largest backlog [s]."""
        return float(self.backlog_s.max())

    @property
    def ends_s(self) -> float:
        """Backlog at the end [s]."""
        return float(self.backlog_s[-1])


def fluid_path(durations_s: Sequence[float], loads: Sequence[float], backlog_s: float = 0.0) -> FluidPath:
    """Backlog of work over pieces of time with constant load: its slope is rho - 1, and it stays at 0 below that.

    Args:
        durations_s: of the pieces, > 0 [s].
        loads: offered rate over largest stable rate in each, >= 0.
        backlog_s: at the start [s].

    Raises InputError when the pieces do not fit together. Source: Newell (1982), chapter 2.

    >>> path = fluid_path([60.0, 120.0], [1.5, 0.5])
    >>> path.times_s.tolist(), path.backlog_s.tolist()
    ([0.0, 60.0, 120.0, 180.0], [0.0, 30.0, 0.0, 0.0])
    """
    if len(durations_s) != len(loads) or not loads:
        raise InputError("loads", len(loads), f"needs one per duration ({len(durations_s)})", "give one of each")
    if min(durations_s) <= 0.0 or min(loads) < 0.0 or backlog_s < 0.0:
        raise InputError("durations_s", min(durations_s), "must be > 0, loads and backlog >= 0", "drop empty pieces")
    times, levels, pieces = [0.0], [backlog_s], list[float]()
    for lasts, load in zip(durations_s, loads, strict=True):
        level, slope = levels[-1], load - 1.0
        gone = level / -slope if slope < 0.0 else np.inf
        if 0.0 < gone < lasts:
            times, levels, pieces = (
                [*times, times[-1] + gone, times[-1] + lasts],
                [*levels, 0.0, 0.0],
                [*pieces, load, load],
            )
        else:
            times.append(times[-1] + lasts)
            levels.append(max(level + slope * lasts, 0.0))
            pieces.append(load)
    return FluidPath(np.array(times), np.array(levels), np.array(pieces))


def profile_wait_distribution(
    path: FluidPath, steady: Sequence[LatencyDistribution] | None = None
) -> LatencyDistribution:
    """Distribution of the wait of a random request of a profile: pieces weighted with their arrivals.

    Args:
        path: of `fluid_path`.
        steady: wait of each stretch of `path` (as `path.loads`) while there is no backlog, e.g. of a stationary queue
            at that load; none counts as no wait. While a backlog lasts the fluid wait stands alone.

    Raises InputError when nothing arrives or `steady` does not go with the path.

    >>> profile_wait_distribution(fluid_path([60.0, 120.0], [1.5, 0.5])).mean_s  # 90 and 30 requests at 15 s of 150
    12.0
    """
    if steady is not None and len(steady) != path.loads.size:
        raise InputError(
            "steady", len(steady), f"needs one distribution per stretch ({path.loads.size})", "see path.loads"
        )
    arriving = path.loads * np.diff(path.times_s)
    if not arriving.sum() > 0.0:
        raise InputError("loads", path.loads.tolist(), "nothing arrives", "give a load above 0")
    parts = []
    for i, weight in enumerate(arriving.tolist()):
        begin, end = float(path.backlog_s[i]), float(path.backlog_s[i + 1])
        if begin == 0.0 and end == 0.0:
            parts.append((steady[i] if steady is not None else LatencyDistribution.constant(0.0), weight))
        else:
            spots = (np.arange(INSTANTS) + 0.5) / INSTANTS
            parts.append((LatencyDistribution.from_samples(begin + (end - begin) * spots), weight))
    return LatencyDistribution.mixture(parts)
