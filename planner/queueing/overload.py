"""Waits over a finite time: how they grow under more work than a server can do, or approach a steady state.

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

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtr

from planner.core import FloatArray, InputError
from planner.queueing.distributions import condensed_with_atom
from planner.workload import LatencyDistribution

INSTANTS, LEVELS = 64, 200
"""Times of arrival told apart in a period, and waits at one of them. A choice of resolution."""


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


def transient_wait_cdf(waits_s: ArrayLike, after_s: float, drift: float, variance_per_s: float) -> FloatArray:
    """P(wait <= x) of a request that arrives `after_s` after an empty start, by the formula of this module.

    Args:
        waits_s: x >= 0, any shape [s].
        after_s: t > 0 [s].
        drift: m = rho - 1, any sign [s/s].
        variance_per_s: v > 0 [s^2/s].

    Returns:
        Probabilities, shape of `waits_s`.

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
    """Distribution of the wait of requests that arrive within `horizon_s`, after an empty start and `start_s` of load.

    Args:
        load: rho, of any size.
        variance_per_s: v, e.g. of `work_variance_per_s` [s^2/s]; 0 (alike requests at equal distances) is the fluid.
        horizon_s: length of the period, > 0 [s].
        start_s: the load has lasted this long when the period begins [s].

    Returns:
        Distribution of the wait [s].

    Raises InputError when a number is out of range.

    >>> distribution = transient_wait_distribution(1.5, 1e-6, 100.0)  # without fluctuation: even over (0, 50) s
    >>> round(distribution.mean_s, 1), round(distribution.quantile_s(0.99))
    (25.0, 50)
    """
    if not (load >= 0.0 and variance_per_s >= 0.0 and horizon_s > 0.0 and start_s >= 0.0):
        raise InputError("horizon_s", horizon_s, "must be > 0, load and variance >= 0", "give positive numbers")
    times = start_s + horizon_s * (np.arange(INSTANTS) + 0.5) / INSTANTS
    drift = load - 1.0
    if variance_per_s == 0.0:
        return condensed_with_atom(np.maximum(drift, 0.0) * times, np.ones(INSTANTS))
    middle = np.clip((np.arange(LEVELS) + 0.5) / LEVELS, 0.0, 1.0)
    waits = []
    for after_s in times:
        top = max(drift * after_s, 0.0) + 8.0 * np.sqrt(variance_per_s * after_s)
        # A stable load settles at an exponential distribution of mean v / (2 |m|); exp(-16) of it is beyond.
        top = min(top, 8.0 * variance_per_s / -drift) if drift < 0.0 else top
        low = max(drift * after_s - 8.0 * np.sqrt(variance_per_s * after_s), 0.0)
        grid = np.linspace(low, top, 4 * LEVELS)
        distribution = np.maximum.accumulate(transient_wait_cdf(grid, float(after_s), drift, variance_per_s))
        rising = np.append(True, np.diff(distribution) > 0.0)
        waits.append(np.maximum(np.interp(middle, distribution[rising], grid[rising]), 0.0))
    every = np.concatenate(waits)
    return condensed_with_atom(every, np.ones(every.size))
