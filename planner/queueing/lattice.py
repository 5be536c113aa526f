"""Probability on a lattice of tokens: discretised distributions, their summaries, and how a random walk descends."""

from __future__ import annotations

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


def shift_down(distribution: FloatArray, cells: float) -> FloatArray:
    """Distribution of max(X - cells, 0) for each row of masses on 0, 1, 2, ...

    Args:
        distribution: probability of 0, 1, 2, ... cells, shape (rows, size).
        cells: >= 0; a fraction is shared between the two neighbours.

    Returns:
        Probabilities, shape (rows, size).
    """
    whole = int(cells)
    share = cells - whole
    near, far = _shifted_whole(distribution, whole), _shifted_whole(distribution, whole + 1)
    return near * (1.0 - share) + far * share


def _shifted_whole(distribution: FloatArray, cells: int) -> FloatArray:
    moved = np.zeros_like(distribution)
    if cells >= distribution.shape[1]:
        moved[:, 0] = distribution.sum(axis=1)
        return moved
    moved[:, : distribution.shape[1] - cells] = distribution[:, cells:]
    moved[:, 0] += distribution[:, :cells].sum(axis=1)
    return moved


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
