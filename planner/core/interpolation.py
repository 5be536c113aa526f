"""Lines between knots, on one axis or two, for compiled code."""

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


@compiled
def interpolated(table: FloatArray, first: float, second: float) -> float:
    """A table over two grids of at least two knots each: linear between them, constant beyond.

    Args:
        table: knots of the first grid in column 0 and of the second in row 0, from 1 on, values between them, shape
            (1 + m, 1 + n).
        first: where, on the first.
        second: where, on the second.

    Returns:
        The value at one point.
    """
    return value_in(table, *cell_of(table, first, second))


@compiled
def cell_of(table: FloatArray, first: float, second: float) -> tuple[int, float, int, float]:
    """Where a point lies in a table; arguments as of `interpolated`.

    Args:
        table: with its knots.
        first: where, on the first.
        second: where, on the second.

    Returns:
        Row and column of the knots below, each followed by the share of the way to the next.
    """
    rows, columns = table.shape[0] - 1, table.shape[1] - 1
    if first <= table[1, 0]:
        i, u = 1, 0.0
    elif first >= table[rows, 0]:
        i, u = rows - 1, 1.0
    else:
        i, beyond = 1, rows
        while beyond - i > 1:
            middle = (i + beyond) // 2
            if first < table[middle, 0]:
                beyond = middle
            else:
                i = middle
        u = (first - table[i, 0]) / (table[i + 1, 0] - table[i, 0])
    if second <= table[0, 1]:
        j, v = 1, 0.0
    elif second >= table[0, columns]:
        j, v = columns - 1, 1.0
    else:
        j, beyond = 1, columns
        while beyond - j > 1:
            middle = (j + beyond) // 2
            if second < table[0, middle]:
                beyond = middle
            else:
                j = middle
        v = (second - table[0, j]) / (table[0, j + 1] - table[0, j])
    return i, u, j, v


@compiled
def value_in(table: FloatArray, i: int, u: float, j: int, v: float) -> float:
    """The value of a table at a place that `cell_of` found.

    Args:
        table: values, with the knots of the one that was looked in.
        i: row of the knot below.
        u: share of the way to the next.
        j: column of the knot below.
        v: share of the way to the next.

    Returns:
        The value there.
    """
    w = 1.0 - v
    near = table[i, j] * w + table[i, j + 1] * v
    return float(near * (1.0 - u) + (table[i + 1, j] * w + table[i + 1, j + 1] * v) * u)


def with_knots(first: FloatArray, second: FloatArray, values: FloatArray) -> FloatArray:
    """A table for `interpolated`.

    Args:
        first: knots of the first grid, shape (m,).
        second: knots of the second grid, shape (n,).
        values: between them, shape (m, n).

    Returns:
        Knots and values in one, shape (1 + m, 1 + n).

    >>> import numpy as np
    >>> table = with_knots(np.array([0.0, 2.0]), np.array([0.0, 1.0]), np.array([[0.0, 1.0], [4.0, 5.0]]))
    >>> interpolated(table, 1.0, 0.5), interpolated(table, -1.0, 9.0)
    (2.5, 1.0)
    """
    import numpy as np  # noqa: PLC0415 - `planner.core` loads without it

    table = np.zeros((len(first) + 1, len(second) + 1))
    table[1:, 0], table[0, 1:], table[1:, 1:] = first, second, values
    return table
