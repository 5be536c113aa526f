"""Counts of a renewal arrival process with Gamma gaps: how much burstiness a server sees within a given time."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import gammainc, gammaincc

from planner.queueing.types import FloatArray
from planner.workload import ArrivalProcess

SMALLEST_SCV = 0.02
"""Counts of a process more regular than this oscillate with the window; they are replaced by those of this SCV."""
LARGEST_WINDOW = 30.0
"""Mean arrivals in a window from which on the asymptotic forms hold."""
QUADRATURE_POINTS = 480


def per_server(arrivals: ArrivalProcess, replicas: int) -> ArrivalProcess:
    """What one of `replicas` servers sees behind a round-robin router: every c-th arrival.

    The gap is a sum of c independent gaps: rate / c and SCV / c. Exact; a Gamma gap stays a Gamma gap.

    >>> one = per_server(ArrivalProcess(rate_per_s=8.0, scv=1.0), 4)
    >>> one.rate_per_s, one.scv
    (2.0, 0.25)
    """
    return ArrivalProcess(rate_per_s=arrivals.rate_per_s / replicas, scv=arrivals.scv / replicas)


def arrivals_before(window: float, scv: float) -> float:
    """Mean number of arrivals within the window [mean gaps] just before an arrival (the renewal function).

    M(x) = sum_j P(j, x / scv; Gamma(j / scv)); equals x for a Poisson process, less for a regular one, more for a
    bursty one; tends to x + (scv - 1) / 2. Source: Cox, Renewal Theory (1962), chapter 4.

    >>> arrivals_before(3.0, 1.0)
    3.0
    >>> round(arrivals_before(2.0, 0.5), 4)  # Erlang-2: x - 1/4 + exp(-4 x) / 4
    1.7501
    """
    return window + float(companions(np.array([window]), scv)[0])


def nobody_before(windows: FloatArray, scv: float) -> FloatArray:
    """Probability that the window [mean gaps] before (or after) an arrival holds no other, shape of `windows`.

    That a gap is longer: P(Gamma(1/scv) > x/scv).

    >>> round(float(nobody_before(np.array([2.0]), 1.0)[0]), 6)  # exp(-2)
    0.135335
    """
    scv = max(scv, SMALLEST_SCV)
    return np.asarray(gammaincc(1.0 / scv, windows / scv))


def count_moments(windows: FloatArray, scv: float) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the arrivals within windows [mean gaps] before an arrival, each of the windows' shape.

    P(N >= k) = P(Gamma(k/scv) <= x/scv), summed over k and over (2 k - 1).

    >>> mean, variance = count_moments(np.array([2.0]), 1.0)
    >>> round(float(mean[0]), 6), round(float(variance[0]), 6)  # Poisson
    (2.0, 2.0)
    """
    scv, most = max(scv, SMALLEST_SCV), float(windows.max())
    counts = np.arange(1.0, most + 12.0 * np.sqrt(max(most * scv, 1.0)) + 2.0)
    reached = gammainc(counts[:, None] / scv, windows[None, :] / scv)
    mean = reached.sum(axis=0)
    return mean, np.maximum((2.0 * counts - 1.0) @ reached - mean**2, 0.0)


def companions(windows: FloatArray, scv: float) -> FloatArray:
    """Arrivals by which a window [mean gaps] that begins (or ends) with an arrival has more than one at random.

    M(x) - x, shape of `windows`; 0 for Poisson, negative for regular arrivals, tends to (scv - 1) / 2.
    """
    if scv == 1.0:
        return np.zeros_like(windows)
    points, excess, _ = _excess(max(scv, SMALLEST_SCV))
    return np.interp(windows, points, excess, right=(max(scv, SMALLEST_SCV) - 1.0) / 2.0)


def index_of_dispersion(window: float, scv: float) -> float:
    """Variance over mean of the arrivals in a window [mean gaps] placed at random: 1 for Poisson, tends to the SCV.

    Var N(x) = x + 2 int_0^x (M(s) - s) ds with the renewal function M. Source: Cox, Renewal Theory (1962), chapter 4.

    >>> index_of_dispersion(5.0, 1.0)
    1.0
    >>> round(index_of_dispersion(1.0, 0.5), 3)  # Erlang-2: 1/2 + (1 - exp(-4 x)) / (8 x)
    0.623
    """
    if scv == 1.0 or window <= 0.0:
        return 1.0
    scv = max(scv, SMALLEST_SCV)
    points, _, integral = _excess(scv)
    beyond = max(window - LARGEST_WINDOW, 0.0) * (scv - 1.0) / 2.0
    return 1.0 + 2.0 * (float(np.interp(window, points, integral)) + beyond) / window


@lru_cache(maxsize=256)
def _excess(scv: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Windows x, M(x) - x and its integral from 0 to x, each shape (QUADRATURE_POINTS + 1,)."""
    points = LARGEST_WINDOW * np.linspace(0.0, 1.0, QUADRATURE_POINTS + 1) ** 3
    last = LARGEST_WINDOW + 12.0 * np.sqrt(max(LARGEST_WINDOW * scv, 1.0)) + 12.0 * max(scv, 1.0)
    shapes = np.arange(1, int(last) + 1) / scv
    excess = gammainc(shapes[:, None], points[None, :] / scv).sum(axis=0) - points
    steps = np.diff(points) * (excess[1:] + excess[:-1]) / 2.0
    return points, excess, np.concatenate([[0.0], np.cumsum(steps)])
