"""Lines between knots, for compiled code."""

from __future__ import annotations

from planner.core.arrays import FloatArray
from planner.core.compiled import compiled


@compiled
def interpolated_at(knots: FloatArray, values: FloatArray, x: float) -> float:
    """`np.interp` for one number.

    Args:
        knots: rising, shape (n,).
        values: at these, shape (n,).
        x: where.

    Returns:
        The value there, in the unit of `values`; that of the nearest knot beyond them.

    Raises:
        Nothing.
    """
    if x <= knots[0]:
        return float(values[0])
    if x >= knots[-1]:
        return float(values[-1])
    i = knot_below(knots, x)
    return float(values[i] + (values[i + 1] - values[i]) / (knots[i + 1] - knots[i]) * (x - knots[i]))


@compiled
def knot_below(knots: FloatArray, x: float) -> int:
    """The last of rising knots at or below a number that lies between the first and the last.

    Args:
        knots: rising, shape (n,).
        x: where.

    Returns:
        Number of the knot; the last but one at most.

    Raises:
        Nothing.
    """
    i, beyond = 0, knots.size - 1
    while beyond - i > 1:
        middle = (i + beyond) // 2
        if x < knots[middle]:
            beyond = middle
        else:
            i = middle
    return i


@compiled
def last_knot(knots: FloatArray, x: float, knot: int) -> int:
    """The last of rising knots at or below a number, looked for from one of these knots on.

    Args:
        knots: rising, shape (n,).
        x: where.
        knot: number of a knot at or below x.

    Returns:
        Number of the knot.

    Raises:
        Nothing.
    """
    while knot < knots.size - 1 and x >= knots[knot + 1]:
        knot += 1
    return knot
