"""Probability on a lattice of tokens: discretised distributions, their summaries, and how a random walk descends."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray

ComplexArray = NDArray[np.complex128]
"""A discrete Fourier transform, any shape."""

LONG_TRANSFORM = 4096
"""Length of a transform [cells] from which on wrapping around is negligible whatever the load."""
NEGLIGIBLE_MASS = 1e-15
"""Rounding noise of a transform; it must not be tilted."""
LARGEST_LOG_GROWTH = 18.0
"""Logarithm of the largest factor by which undoing the tilt magnifies rounding errors (1e-16)."""
TILTS = 24
"""Exponents tried for the exponential tilt; any inside the strip of convergence gives the same factor."""


def lattice_probabilities(points: FloatArray, weights: FloatArray, cell: float, size: int) -> FloatArray:
    """Spread a distribution over 0, cell, 2 cell, ...: each point goes to its two neighbours, so that the mean is kept.

    Args:
        points: >= 0, shape (n,), e.g. [tokens] or [s].
        weights: their probabilities, shape (n,).
        cell: lattice spacing, in the unit of `points`.
        size: lattice points.

    Returns:
        Probability of each lattice point, shape (size,); what lies beyond the end is put on the last one.
    """
    position = points / cell
    low = np.floor(position).astype(np.int64)
    high_share = position - low
    distribution = np.bincount(np.minimum(low, size - 1), weights * (1.0 - high_share), size)
    return np.asarray(distribution + np.bincount(np.minimum(low + 1, size - 1), weights * high_share, size))


def shift_down(distribution: FloatArray, cells: FloatArray) -> FloatArray:
    """Distribution of max(X - cells, 0) for each row of masses on 0, 1, 2, ...

    Args:
        distribution: probability of 0, 1, 2, ... cells, shape (rows, size).
        cells: >= 0, of each row, shape (rows,); a fraction is shared between the two neighbours.

    Returns:
        Probabilities, shape (rows, size).

    >>> shift_down(np.array([[0.25, 0.25, 0.5], [0.0, 0.0, 1.0]]), np.array([0.5, 1.0])).tolist()
    [[0.375, 0.375, 0.25], [0.0, 1.0, 0.0]]
    """
    rows, size = distribution.shape
    whole = np.minimum(cells.astype(np.int64), size)
    share = (cells - np.floor(cells))[:, None]
    each = np.arange(rows)[:, None]
    padded = np.concatenate([distribution, np.zeros((rows, size + 1))], axis=1)
    moved = padded[each, whole[:, None] + np.arange(size + 1)]
    shifted = moved[:, :-1] * (1.0 - share) + moved[:, 1:] * share
    passed = np.concatenate([np.zeros((rows, 1)), np.cumsum(distribution, axis=1)], axis=1)
    low, high = passed[each, whole[:, None]], passed[each, np.minimum(whole[:, None] + 1, size)]
    shifted[:, 0] += (low * (1.0 - share) + high * share)[:, 0]
    return np.asarray(shifted)


def descent_filter(jump: FloatArray, rate: float, down: int, size: int) -> FloatArray:
    """Inverse of the descending Wiener-Hopf factor of a random walk, apart from its pole at 1.

    The walk moves by A - down cells per step, A compound Poisson. With z marking cells, 1 - z^-down E[z^A] is the
    product of a factor in powers of z and one in powers of 1/z; the latter is (1 - 1/z) e(1/z), and 1/e(1/z) is
    returned. The factors are split by the cepstrum (the FFT of the logarithm) on a circle half-way to the saddle
    point, where the logarithm has no singularity near by on either side.

    Args:
        jump: distribution of one batch on 0, 1, 2, ... cells, shape (n,).
        rate: mean batches per step.
        down: cells served per step, >= 1; must exceed rate * mean batch.
        size: coefficients wanted.

    Returns:
        Coefficients of 1, 1/z, 1/z^2, ..., shape (size,).

    Source: Ackroyd, "Computing the waiting time distribution for the G/G/1 queue by signal processing methods", IEEE
    Trans. Communications 28 (1980) 52-58; Asmussen, Applied Probability and Queues (2003), chapter VIII.
    """
    length = max(2 * size, min(8 * size, LONG_TRANSFORM))
    jump = np.where(jump > NEGLIGIBLE_MASS, jump, 0.0)
    tilt = min(_saddle_point(jump, rate, down) / 2.0, LARGEST_LOG_GROWTH / size)
    reach = int(np.flatnonzero(jump)[-1]) + 1
    tilted = np.fft.rfft(jump[:reach] * np.exp(tilt * np.arange(reach)), length)
    turn = 2j * np.pi * np.arange(length // 2 + 1) / length - tilt
    remaining = -np.expm1(turn * down + rate * (tilted - 1.0))
    pole = -np.expm1(turn)
    if tilt == 0.0:
        pole[0], remaining[0] = 1.0, down - rate * float(jump @ np.arange(jump.size))
    # Numerator and denominator lie right of the imaginary axis, so the principal logarithm is continuous.
    cepstrum = np.fft.irfft(np.log(remaining / pole), length)
    cepstrum[: length // 2] = 0.0
    coefficients = np.fft.irfft(np.exp(-np.fft.rfft(cepstrum)), length)
    descending = np.concatenate([coefficients[:1], coefficients[:0:-1]])[:size]
    return np.asarray(descending * np.exp(tilt * np.arange(size)))


def _saddle_point(jump: FloatArray, rate: float, down: int) -> float:
    """Tilt t >= 0 that makes exp(-t down) E[exp(t A)] smallest, from a geometric list; 0 when none is below 1."""
    cells = np.flatnonzero(jump)
    tilts = np.geomspace(1e-6, 20.0 / max(float(cells[-1]), 1.0), TILTS)
    growth = np.exp(np.outer(tilts, cells)) @ jump[cells]
    exponent = rate * (growth - 1.0) - tilts * down
    best = int(np.argmin(exponent))
    return float(tilts[best]) if exponent[best] < 0.0 else 0.0


@lru_cache(maxsize=32)
def _evenly(count: int) -> FloatArray:
    return np.linspace(0.0, 1.0, count)


def geometric(low: float, high: float, count: int) -> FloatArray:
    """`np.geomspace` of positive ends, which takes several times as long.

    Args:
        low: the first, > 0.
        high: the last, > 0.
        count: points.

    Returns:
        Shape (count,), from `low` to `high`.

    >>> geometric(1.0, 4.0, 3).tolist()
    [1.0, 2.0, 4.0]
    """
    return np.asarray(low * (high / low) ** _evenly(count))


def poisson_sum_transform(rates: FloatArray, transform: ComplexArray) -> ComplexArray:
    """Transforms of sums of a Poisson number of terms: exp(rate (transform - 1)).

    Args:
        rates: mean number of terms of each sum, shape (sums,).
        transform: of one term, shape (n,).

    Returns:
        Shape (sums, n).

    Source: Feller, An Introduction to Probability Theory I (1968), chapter XII (compound Poisson).
    """
    return np.exp(rates[:, None] * (transform - 1.0)[None, :])
