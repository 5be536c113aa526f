"""Arithmetic that plain floats and arrays share: kernel forms are written once and serve both."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from planner.core import FloatArray

Number = FloatArray | float
"""A quantity of one step, or of many at once."""
Value = TypeVar("Value", float, FloatArray, FloatArray | float)
PLAIN_NUMBERS = (float, int)
"""Types of plain numbers, to which arrays are the alternative."""
SMALLEST_SCALE = 1e-30
"""Terms of a p-norm are scaled by the largest, but never by less than this: 0 / 0 becomes 0."""


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
    if isinstance(x, PLAIN_NUMBERS) and isinstance(bound, PLAIN_NUMBERS):
        return x if x < bound else bound
    return np.minimum(x, bound)


def rounded_up(x: Value) -> Value:
    """The next whole number: tiles, waves and thread blocks come whole.

    Args:
        x: number or array, any shape.

    Returns:
        ceil(x), shape of `x`.
    """
    return -((-x) // 1.0)


def p_norm(order: float, *terms: Value) -> Value:
    """How times that overlap imperfectly add up: (sum of x^p)^(1/p), between the sum and the maximum.

    Args:
        order: p > 0; 1 is the sum, infinity the maximum.
        *terms: times >= 0, not all 0 at once, of shapes that broadcast [s].

    Returns:
        The norm, broadcast shape of the terms [s].

    >>> p_norm(2.0, 3.0, 4.0), p_norm(math.inf, 3.0, 4.0), p_norm(1.0, 3.0, 4.0)
    (5.0, 4.0, 7.0)
    """
    largest = terms[0]
    for term in terms[1:]:
        largest = at_least(largest, term)
    if math.isinf(order):
        return largest
    scale = at_least(largest, SMALLEST_SCALE)
    total = (terms[0] / scale) ** order
    for term in terms[1:]:
        total = total + (term / scale) ** order
    root: Value = total ** (1.0 / order)
    return scale * root
