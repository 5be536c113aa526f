"""Counts of a renewal arrival process with Gamma gaps: how much burstiness a server sees within a given time."""

from __future__ import annotations

import numpy as np
from scipy.special import gammainc

from planner.queueing.types import FloatArray
from planner.workload import ArrivalProcess

SMALLEST_SCV = 0.1
"""Counts of a process more regular than this oscillate with the window; they are replaced by those of this SCV."""
LARGEST_WINDOW = 30.0
"""Mean arrivals in a window from which on the asymptotic forms hold."""
QUADRATURE_POINTS = 120


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
    >>> round(arrivals_before(2.0, 0.5), 6)  # Erlang-2: x - 1/4 + exp(-4 x) / 4
    1.750084
    """
    return float(_renewal_function(np.array([window]), scv)[0])


def index_of_dispersion(window: float, scv: float) -> float:
    """Variance over mean of the arrivals in a window [mean gaps] placed at random: 1 for Poisson, tends to the SCV.

    Var N(x) = x + 2 int_0^x (M(s) - s) ds with the renewal function M. Source: Cox, Renewal Theory (1962), chapter 4.

    >>> index_of_dispersion(5.0, 1.0)
    1.0
    >>> round(index_of_dispersion(1.0, 0.5), 3)  # Erlang-2: 1/2 + (1 - exp(-4 x)) / (8 x)
    0.623
    """
    if scv == 1.0:
        return 1.0
    if window > LARGEST_WINDOW:
        limit = max(scv, SMALLEST_SCV)
        return limit + (index_of_dispersion(LARGEST_WINDOW, scv) - limit) * LARGEST_WINDOW / window
    points = window * np.linspace(0.0, 1.0, QUADRATURE_POINTS + 1) ** 2
    excess = np.concatenate([[0.0], _renewal_function(points[1:], scv) - points[1:]])
    return 1.0 + 2.0 * float(np.trapezoid(excess, points)) / window


def _renewal_function(window: FloatArray, scv: float) -> FloatArray:
    scv = max(scv, SMALLEST_SCV)
    if scv == 1.0:
        return window
    largest = float(window.max())
    if largest > LARGEST_WINDOW:
        return window + (scv - 1.0) / 2.0
    last = largest + 12.0 * np.sqrt(max(largest * scv, 1.0)) + 12.0 * max(scv, 1.0)
    shapes = np.arange(1, int(last) + 1) / scv
    return np.asarray(gammainc(shapes[:, None], window[None, :] / scv).sum(axis=0))
