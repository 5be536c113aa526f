"""A monotone curve through points, and the root of a function between two numbers.

Both are those of scipy to the last bit (`scipy.interpolate.PchipInterpolator`, `scipy.optimize.brentq`), whose modules
take longer to load than a plan by theory takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.core.arrays import FloatArray
from planner.core.compiled import compiled
from planner.core.interpolation import knot_below

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LEAST_RTOL = 4.0 * math.ulp(1.0)
"""Smallest relative tolerance of a root: four roundings (a definition)."""
MOST_STEPS = 100
"""Evaluations of a function within which a root is found; bisection of doubles alone takes fewer (a definition)."""


def monotone_curve(nodes: ArrayLike, values: ArrayLike) -> Callable[[ArrayLike], FloatArray]:
    """Cubic pieces through points, which rise and fall only where the points do.

    Args:
        nodes: rising, shape (n,), n at least 2.
        values: at these, shape (n, ...).

    Returns:
        The curve: from places, shape (m,) or none, to values there, shape (m, ...); beyond the nodes it goes on.

    Source:
        Fritsch and Butland, SIAM J. Scientific and Statistical Computing 5 (1984).

    >>> float(monotone_curve([0.0, 1.0, 2.0], [0.0, 1.0, 4.0])(0.5))
    0.3125
    """
    import numpy as np  # noqa: PLC0415 - most of what uses the core needs none

    at, known = np.asarray(nodes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    rows = np.ascontiguousarray(known.reshape(at.size, -1))
    pieces = np.empty((at.size - 1, 4, rows.shape[1]))
    _cut(at, rows, np.empty(at.size - 1), np.empty(at.size), pieces)

    def at_places(places: ArrayLike) -> FloatArray:
        wanted = np.asarray(places, dtype=np.float64)
        found = np.empty((wanted.size, rows.shape[1]))
        _read(at, pieces, wanted.ravel(), found)
        return found.reshape(wanted.shape + known.shape[1:])

    return at_places


@compiled
def _cut(at: FloatArray, known: FloatArray, slope: FloatArray, tangent: FloatArray, pieces: FloatArray) -> None:
    """Find the coefficients of 1, x, x^2 and x^3 of each piece, x from its first node.

    Args:
        at: nodes, shape (n,).
        known: at these, shape (n, m).
        slope: room for those of one curve, shape (n - 1,).
        tangent: likewise, shape (n,).
        pieces: that are filled, shape (n - 1, 4, m).
    """
    for each in range(known.shape[1]):
        for piece in range(slope.size):
            slope[piece] = (known[piece + 1, each] - known[piece, each]) / (at[piece + 1] - at[piece])
        tangent[0] = tangent[-1] = slope[0]
        for node in range(1, slope.size):
            width, last = at[node + 1] - at[node], at[node] - at[node - 1]
            ahead, behind, tangent[node] = 2.0 * width + last, width + 2.0 * last, 0.0
            if slope[node] != 0.0 and _alike(slope[node], slope[node - 1]):
                mean = (ahead / slope[node - 1] + behind / slope[node]) / (ahead + behind)
                tangent[node] = 1.0 / mean
        if slope.size > 1:
            tangent[0] = _end_tangent(at[1] - at[0], at[2] - at[1], slope[0], slope[1])
            tangent[-1] = _end_tangent(at[-1] - at[-2], at[-2] - at[-3], slope[-1], slope[-2])
        for piece in range(slope.size):
            width = at[piece + 1] - at[piece]
            excess = (tangent[piece] + tangent[piece + 1] - 2.0 * slope[piece]) / width
            pieces[piece, 0, each], pieces[piece, 1, each] = known[piece, each], tangent[piece]
            pieces[piece, 2, each] = (slope[piece] - tangent[piece]) / width - excess
            pieces[piece, 3, each] = excess / width


@compiled
def _end_tangent(width: float, next_width: float, slope: float, next_slope: float) -> float:
    """Slope at the end of the curve, of the pieces there and next to it."""
    drawn = (2.0 * width + next_width) * slope - width * next_slope
    drawn /= width + next_width
    if abs(drawn) > 3.0 * abs(slope) and not _alike(slope, next_slope):
        return 3.0 * slope
    return drawn if _alike(drawn, slope) else 0.0


@compiled
def _alike(one: float, other: float) -> bool:
    """Whether two numbers have one sign."""
    return (one > 0.0) == (other > 0.0) and (one < 0.0) == (other < 0.0)


@compiled
def _read(at: FloatArray, pieces: FloatArray, wanted: FloatArray, found: FloatArray) -> None:
    """Fill in the values at places, shape (places, m)."""
    for place in range(wanted.size):
        piece = knot_below(at, wanted[place])
        past = wanted[place] - at[piece]
        square, cube = past * past, past * past * past
        for each in range(found.shape[1]):
            line = pieces[piece, 0, each] + pieces[piece, 1, each] * past
            found[place, each] = line + pieces[piece, 2, each] * square + pieces[piece, 3, each] * cube


def root_between(
    function: Callable[[float], float], low: float, high: float, xtol: float, rtol: float = LEAST_RTOL
) -> float:
    """Where a continuous function is zero.

    Args:
        function: of other signs, or zero, at the two ends.
        low: one end.
        high: the other.
        xtol: how far the root may be off.
        rtol: how far beside that, as a share of the root.

    Raises:
        ValueError: the function has one sign at both ends.

    Source:
        Brent, Algorithms for Minimization Without Derivatives (1973), chapter 4.

    >>> round(root_between(lambda x: x * x - 2.0, 0.0, 2.0, 1e-12), 9)
    1.414213562
    """
    before, now, other = low, high, 0.0
    at_before, at_now, at_other = function(before), function(now), 0.0
    step_before = step = 0.0
    if at_before == 0.0:
        return before
    if at_now != 0.0 and (at_before < 0.0) == (at_now < 0.0):
        raise ValueError("the function has one sign at both ends")
    for _ in range(MOST_STEPS):
        if at_before != 0.0 and at_now != 0.0 and (at_before < 0.0) != (at_now < 0.0):
            other, at_other = before, at_before
            step_before = step = now - before
        if abs(at_other) < abs(at_now):
            before, now, other = now, other, now
            at_before, at_now, at_other = at_now, at_other, at_now
        close = (xtol + rtol * abs(now)) / 2.0
        half = (other - now) / 2.0
        if at_now == 0.0 or abs(half) < close:
            return now
        tried = math.inf
        if abs(step_before) > close and abs(at_now) < abs(at_before):
            if before == other:
                tried = -at_now * (now - before) / (at_now - at_before)
            else:
                rise, rise_other = (at_before - at_now) / (before - now), (at_other - at_now) / (other - now)
                tried = -at_now * (at_other * rise_other - at_before * rise)
                tried /= rise_other * rise * (at_other - at_before)
        is_short = 2.0 * abs(tried) < min(abs(step_before), 3.0 * abs(half) - close)
        step_before, step = (step, tried) if is_short else (half, half)
        before, at_before = now, at_now
        now += step if abs(step) > close else math.copysign(close, half)
        at_now = function(now)
    return now
