"""Arithmetic that kernel forms share, compiled; and what plain floats and arrays share."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from planner.core import FloatArray, compiled, interpolated, vectorized

Number = FloatArray | float
"""A quantity of one step, or of many at once."""
Value = TypeVar("Value", float, FloatArray, FloatArray | float)
PLAIN_NUMBERS = (float, int)
"""Types of plain numbers, to which arrays are the alternative."""
SMALLEST_SIZE = 1e-9
"""Sizes are taken for at least this before their logarithm; a size of 0 lies left of every knot."""


def at_least(x: Value, bound: Value | float) -> Value:
    """The larger of two numbers, for floats as for arrays.

    Args:
        x: number or array, any shape.
        bound: lower bound, a number or of the shape of `x`.

    Returns:
        max(x, bound), shape of `x`.
    """
    if isinstance(x, PLAIN_NUMBERS) and isinstance(bound, PLAIN_NUMBERS):
        return x if x > bound else bound
    return np.maximum(x, bound)


def at_most(x: Value, bound: Value | float) -> Value:
    """The smaller of two numbers, for floats as for arrays.

    Args:
        x: number or array, any shape.
        bound: upper bound, a number or of the shape of `x`.

    Returns:
        min(x, bound), shape of `x`.
    """
    return -at_least(-x, -bound)


@compiled
def p_norm(order: float, one: float, other: float) -> float:
    """Sum of two times that overlap imperfectly: (x^p + y^p)^(1/p), between the sum and the maximum.

    Args:
        order: p > 0; 1 is the sum, infinity the maximum.
        one: a time >= 0 [s].
        other: another [s].

    Returns:
        The norm [s].

    >>> p_norm(2.0, 3.0, 4.0), p_norm(math.inf, 3.0, 4.0), p_norm(1.0, 3.0, 4.0)
    (5.0, 4.0, 7.0)
    """
    more, less = max(one, other), min(one, other)
    return more * (1.0 + (less / more) ** order) ** (1.0 / order) if more > 0.0 else 0.0


@compiled
def pairs_of(new: float, past: float, window: float) -> float:
    """`attended_pairs` of one chunk.

    Args:
        new: new tokens.
        past: tokens before them.
        window: most tokens a query sees; 0 = no window.

    Returns:
        Pairs.
    """
    if window == 0.0:
        return new * past + new * (new + 1.0) / 2.0
    growing = max(min(new, window - past), 0.0)
    return growing * past + growing * (growing + 1.0) / 2.0 + (new - growing) * window


@vectorized()
def attended_pairs(_constants: None, _table: FloatArray, new: float, past: float, window: float) -> float:
    """Query-key pairs of causal attention: sum over i = 1..new of min(past + i, window).

    Args:
        new: new tokens, any shape.
        past: tokens before them.
        window: most tokens a query sees; 0 = no window.

    Returns:
        Pairs, shape of `new`.

    >>> [float(attended_pairs(4.0, *past)) for past in ((0.0, 0.0), (10.0, 0.0), (0.0, 2.0))]
    [10.0, 50.0, 7.0]
    """
    return pairs_of(new, past, window)


@compiled
def limited(x: float, most: float) -> float:
    """The smaller of two numbers, 0 standing for no limit.

    Args:
        x: number.
        most: upper bound; 0 = none.

    Returns:
        min(x, most).
    """
    return min(x, most) if most > 0.0 else x


@compiled
def corrected_s(table: FloatArray, took_s: float, ideal_s: float, first: float, second: float) -> float:
    """Time of a form with its correction, but never below the ideal roofline time [s].

    Args:
        table: of the correction (`SizeCorrection.table`).
        took_s: by the form [s].
        ideal_s: on the roofline [s].
        first: first size the correction is tabulated over.
        second: second size.

    Returns:
        Duration [s].
    """
    first, second = math.log2(max(first, SMALLEST_SIZE)), math.log2(max(second, SMALLEST_SIZE))
    return max(took_s * math.exp(interpolated(table, first, second)), ideal_s)
