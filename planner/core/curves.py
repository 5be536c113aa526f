"""A monotone curve through points, and the root of a function between two numbers.

Both are those of scipy to the last bit (`scipy.interpolate.PchipInterpolator`, `scipy.optimize.brentq`), whose modules
take longer to load than a plan by theory takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.core.arrays import FloatArray

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
    width = np.diff(at).reshape((-1,) + (1,) * (known.ndim - 1))
    slope = np.diff(known, axis=0) / width
    if at.size == 2:
        tangent = np.stack([slope[0], slope[0]])
    else:
        tangent = np.zeros_like(known)
        ahead, behind = 2.0 * width[1:] + width[:-1], width[1:] + 2.0 * width[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (ahead / slope[:-1] + behind / slope[1:]) / (ahead + behind)
            keeps_on = (np.sign(slope[1:]) == np.sign(slope[:-1])) & (slope[1:] != 0.0)
            tangent[1:-1] = np.where(keeps_on, 1.0 / mean, 0.0)
        for end, inner in ((0, 1), (-1, -2)):
            drawn = (2.0 * width[end] + width[inner]) * slope[end] - width[end] * slope[inner]
            drawn /= width[end] + width[inner]
            turns = (np.sign(slope[end]) != np.sign(slope[inner])) & (np.abs(drawn) > 3.0 * np.abs(slope[end]))
            drawn = np.where(turns, 3.0 * slope[end], drawn)
            tangent[end] = np.where(np.sign(drawn) != np.sign(slope[end]), 0.0, drawn)
    excess = (tangent[:-1] + tangent[1:] - 2.0 * slope) / width
    cubic, square = excess / width, (slope - tangent[:-1]) / width - excess

    def at_places(places: ArrayLike) -> FloatArray:
        wanted = np.asarray(places, dtype=np.float64)
        piece = np.clip(np.searchsorted(at, wanted, side="right") - 1, 0, at.size - 2)
        past = (wanted - at[piece]).reshape(wanted.shape + (1,) * (known.ndim - 1))
        found = known[piece] + tangent[piece] * past + square[piece] * (past * past)
        return np.asarray(found + cubic[piece] * (past * past * past))

    return at_places


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
