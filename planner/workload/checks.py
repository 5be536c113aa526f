"""Checks that lengths and arrivals share: arrays of numbers that are what their names say, or an `InputError`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray, InputError, IntArray

MAX_TOKENS = 100_000_000
"""Most tokens of one request: ten times the longest advertised context window (10 M tokens, Llama 4 Scout, 2025)."""


def checked_tokens(name: str, values: ArrayLike) -> IntArray:
    """Token counts, shape (n,), or InputError naming the first cell that is not a whole number in range."""
    tokens = _as_floats(name, values)
    bad = ~((tokens >= 1) & (tokens <= MAX_TOKENS) & (tokens == np.floor(tokens)))
    if bad.any():
        index = int(np.argmax(bad))
        value = float(tokens[index])
        raise InputError(
            f"{name}[{index}]",
            int(value) if value.is_integer() else value,
            f"must be a whole number of tokens >= 1 and <= {MAX_TOKENS}",
            "drop or correct that request",
        )
    return tokens.astype(np.int64)


def checked_weights(values: ArrayLike) -> FloatArray:
    """Weights, shape (n,), or InputError naming the first that is negative or not finite."""
    mass = _as_floats("weights", values)
    bad = ~((mass >= 0.0) & np.isfinite(mass))
    if bad.any():
        index = int(np.argmax(bad))
        raise InputError(f"weights[{index}]", float(mass[index]), "must be finite and >= 0", "drop that cell")
    with np.errstate(over="ignore"):
        total = float(mass.sum())
    if not 0.0 < total < np.inf:
        raise InputError("weights", total, "must sum to more than 0 and to a finite number", "rescale the weights")
    return mass


def _as_floats(name: str, values: ArrayLike) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        raise InputError(name, values, "must be numbers", "give a flat list of numbers") from None
    if array.size == 0:
        raise InputError(name, "[]", "needs at least one cell", "give the lengths of at least one request")
    return array


def check_draw(count: int, seed: int) -> None:
    """Raise InputError unless the number of draws and the seed are 0 or more."""
    for name, value in (("count", count), ("seed", seed)):
        if value < 0:
            raise InputError(name, value, "must be >= 0", f"give a {name} of 0 or more")


def read_only(array: FloatArray) -> FloatArray:
    """The same array, no longer writable: what a frozen record derives from its fields and keeps."""
    array.setflags(write=False)
    return array
