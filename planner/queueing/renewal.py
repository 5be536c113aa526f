"""Counts of a renewal arrival process with Gamma gaps: how much burstiness a server sees within a given time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc, gammaincc

from planner.core import FloatArray, compiled, interpolated_at
from planner.workload import ArrivalProcess

SMALLEST_SCV = 0.02
"""Counts of more regular processes oscillate with the window; those of this SCV are taken instead. A choice."""
LARGEST_WINDOW = 30.0
"""Mean arrivals in a window from which on the asymptotic forms hold."""
QUADRATURE_POINTS = 480
"""Windows at which the renewal function is tabulated."""


def round_robin_share(arrivals: ArrivalProcess, replicas: int) -> ArrivalProcess:
    """Arrivals at one of `replicas` servers behind a round-robin router: every c-th one.

    The gap is a sum of c independent gaps: rate / c and SCV / c. Exact; a Gamma gap stays a Gamma gap.

    Args:
        arrivals: at the router.
        replicas: servers, c.

    Returns:
        Arrivals at one server.

    >>> share = round_robin_share(ArrivalProcess(rate_per_s=8.0, scv=1.0), 4)
    >>> share.rate_per_s, share.scv
    (2.0, 0.25)
    """
    return ArrivalProcess(rate_per_s=arrivals.rate_per_s / replicas, scv=arrivals.scv / replicas)


def empty_window_probability(windows: FloatArray, scv: float) -> FloatArray:
    """Probability that the window before (or after) an arrival holds no other.

    That a gap is longer: P(Gamma(1/scv) > x/scv).

    Args:
        windows: x [mean gaps], any shape.
        scv: of the gaps.

    Returns:
        Probabilities, shape of `windows`.

    >>> round(float(empty_window_probability(np.array([2.0]), 1.0)[0]), 6)  # exp(-2)
    0.135335
    """
    scv = max(scv, SMALLEST_SCV)
    return np.asarray(gammaincc(1.0 / scv, windows / scv))


def count_moments(windows: FloatArray, scv: float) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the arrivals within windows before an arrival.

    P(N >= k) = P(Gamma(k/scv) <= x/scv), summed over k and over (2 k - 1).

    Args:
        windows: x [mean gaps], shape (n,).
        scv: of the gaps.

    Returns:
        Mean and variance, each shape (n,).

    >>> mean, variance = count_moments(np.array([2.0]), 1.0)
    >>> round(float(mean[0]), 6), round(float(variance[0]), 6)  # Poisson
    (2.0, 2.0)
    """
    scv, most = max(scv, SMALLEST_SCV), float(windows.max())
    counts = np.arange(1.0, most + 12.0 * np.sqrt(max(most * scv, 1.0)) + 2.0)
    reached = gammainc(counts[:, None] / scv, windows[None, :] / scv)
    mean = reached.sum(axis=0)
    return mean, np.maximum((2.0 * counts - 1.0) @ reached - mean**2, 0.0)


def excess_arrivals(windows: FloatArray, scv: float) -> FloatArray:
    """Arrivals by which a window that begins (or ends) with an arrival has more than one at random: M(x) - x.

    0 for Poisson, negative for regular arrivals, tends to (scv - 1) / 2. The renewal function is
    M(x) = sum_j P(Gamma(j/scv) <= x/scv).

    Args:
        windows: x [mean gaps], any shape.
        scv: of the gaps.

    Returns:
        Shape of `windows`.

    Source: Cox, Renewal Theory (1962), chapter 4.

    >>> round(float(excess_arrivals(np.array([2.0]), 0.5)[0]), 4)  # Erlang-2: -1/4 + exp(-4 x) / 4
    -0.2499
    """
    return _excess(renewal(scv), np.ravel(windows)).reshape(np.shape(windows))


def index_of_dispersion(window: float, scv: float) -> float:
    """Variance over mean of the arrivals in a window placed at random: 1 for Poisson, tends to the SCV.

    Var N(x) = x + 2 int_0^x (M(s) - s) ds with the renewal function M.

    Args:
        window: x [mean gaps].
        scv: of the gaps.

    Returns:
        The index; 1 for an empty window.

    Source: Cox, Renewal Theory (1962), chapter 4.

    >>> index_of_dispersion(5.0, 1.0)
    1.0
    >>> round(index_of_dispersion(1.0, 0.5), 3)  # Erlang-2: 1/2 + (1 - exp(-4 x)) / (8 x)
    0.623
    """
    if window <= 0.0:
        return 1.0
    known = renewal(scv)
    beyond = max(window - LARGEST_WINDOW, 0.0) * (known.scv - 1.0) / 2.0
    return 1.0 + 2.0 * (interpolated_at(known.windows, known.integral, window) + beyond) / window


class Renewal(NamedTuple):
    """The renewal function M of one SCV, for compiled code; arrays of shape (QUADRATURE_POINTS + 1,).

    Attributes:
        scv: of the gaps.
        windows: x [mean gaps].
        excess: M(x) - x.
        integral: of the excess from 0 to x.
    """

    scv: float
    windows: FloatArray
    excess: FloatArray
    integral: FloatArray


@compiled
def excess_at(known: Renewal, window: float) -> float:
    """`excess_arrivals` of one window.

    Args:
        known: the renewal function of the SCV.
        window: x [mean gaps].

    Returns:
        M(x) - x.
    """
    if window > LARGEST_WINDOW:
        return (known.scv - 1.0) / 2.0
    return interpolated_at(known.windows, known.excess, window)


@compiled
def excess_from(known: Renewal, window: float, knot: int) -> float:
    """The same where the last of the tabulated windows at or below it is known.

    Args:
        known: the renewal function of the SCV.
        window: x [mean gaps].
        knot: number of that window.

    Returns:
        M(x) - x.
    """
    if knot == known.windows.size - 1:
        return (known.scv - 1.0) / 2.0
    rise = (known.excess[knot + 1] - known.excess[knot]) / (known.windows[knot + 1] - known.windows[knot])
    return float(known.excess[knot] + rise * (window - known.windows[knot]))


@compiled(makes_arrays=True)
def _excess(known: Renewal, windows: FloatArray) -> FloatArray:
    """The same of many, shape (n,)."""
    found = np.empty(windows.size)
    for place in range(windows.size):
        found[place] = excess_at(known, windows[place])
    return found


@lru_cache(maxsize=256)
def renewal(scv: float) -> Renewal:
    """The renewal function of an SCV of the gaps, of at least `SMALLEST_SCV`; remembered for the latest 256.

    Args:
        scv: of the gaps.

    Returns:
        The function at enough windows to interpolate.
    """
    scv = max(scv, SMALLEST_SCV)
    points = LARGEST_WINDOW * np.linspace(0.0, 1.0, QUADRATURE_POINTS + 1) ** 3
    last = LARGEST_WINDOW + 12.0 * np.sqrt(max(LARGEST_WINDOW * scv, 1.0)) + 12.0 * max(scv, 1.0)
    if scv == 1.0:
        return Renewal(scv, points, np.zeros(points.size), np.zeros(points.size))
    shapes = np.arange(1, int(last) + 1) / scv
    excess = gammainc(shapes[:, None], points[None, :] / scv).sum(axis=0) - points
    steps = np.diff(points) * (excess[1:] + excess[:-1]) / 2.0
    return Renewal(scv, points, excess, np.concatenate([[0.0], np.cumsum(steps)]))
