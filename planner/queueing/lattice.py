"""Probability on a lattice of tokens: discretised distributions, their summaries, and how a random walk descends."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, compiled

ComplexArray = NDArray[np.complex128]
"""A discrete Fourier transform, any shape."""

PADDING = 4
"""Length of the transforms of a descent, in lattices. A choice: against eight times this length backlogs of drawn
deployments change by at most 2e-6 of their probability; at half of it by 1e-3."""
NEGLIGIBLE_MASS = 1e-15
"""Rounding noise of a transform; it must not be tilted."""
LARGEST_LOG_GROWTH = 18.0
"""Logarithm of the largest factor by which undoing the tilt magnifies rounding errors (1e-16)."""
TILTS = 24
"""Exponents tried for the exponential tilt; any inside the strip of convergence gives the same factor."""
SMALLEST_TILT, LARGEST_GROWTH = 1e-6, 20.0
"""The smallest of them, and the largest times the longest jump. A choice as above."""
SHORT_STEP = 0.01
"""Steps of the rate up to which an exponential follows from its neighbour by a series."""


@compiled(makes_arrays=True)
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
    distribution = np.zeros(size)
    for point in range(points.size):
        position = points[point] / cell
        low = int(position)
        distribution[min(low, size - 1)] += weights[point] * (1.0 - (position - low))
        distribution[min(low + 1, size - 1)] += weights[point] * (position - low)
    return distribution


@compiled(makes_arrays=True)
def to_power(transform: ComplexArray, power: int) -> ComplexArray:
    """Transform of a sum of so many independent terms of one transform.

    Args:
        transform: of one term, shape (n,).
        power: terms, >= 0.

    Returns:
        By squaring, shape (n,).
    """
    found = np.ones(transform.size, dtype=np.complex128)
    for k in range(transform.size):
        one, left = transform[k], power
        while left > 0:
            if left % 2 == 1:
                found[k] *= one
            one, left = one * one, left // 2
    return found


@compiled(makes_arrays=True)
def shift_down(distribution: FloatArray, cells: float) -> FloatArray:
    """Distribution of max(X - cells, 0).

    Args:
        distribution: probability of 0, 1, 2, ... cells, shape (size,).
        cells: >= 0; a fraction is shared between the two neighbours.

    Returns:
        Probabilities, shape (size,).
    """
    size, whole = distribution.size, int(cells)
    share, shifted = cells - whole, np.zeros(distribution.size)
    for cell in range(size):
        shifted[max(cell - whole, 0)] += (1.0 - share) * distribution[cell]
        shifted[max(cell - whole - 1, 0)] += share * distribution[cell]
    return shifted


@compiled
def cis(angle: float) -> complex:
    """exp(i angle), in half the time of a complex exponential.

    Args:
        angle: [radians].

    Returns:
        On the unit circle.
    """
    return complex(math.cos(angle), math.sin(angle))


@compiled(makes_arrays=True)
def descent_filter(jump: FloatArray, rate: float, down: int, size: int) -> FloatArray:
    """Inverse of the descending Wiener-Hopf factor of a random walk, apart from its pole at 1.

    The walk moves by A - down cells per step, A compound Poisson. With z marking cells, 1 - z^-down E[z^A] is the
    product of a factor in powers of z and one in powers of 1/z; the latter is (1 - 1/z) e(1/z), and 1/e(1/z) is
    returned. The factors are split by the cepstrum (the FFT of the logarithm) on a circle half-way to the saddle
    point, where the logarithm has no singularity near by on either side.

    Args:
        jump: distribution of one batch on 0, 1, 2, ... cells, shape (n,), n <= size; its cells and `down` have no
            common divisor.
        rate: mean batches per step.
        down: cells served per step, >= 1; must exceed rate * mean batch.
        size: coefficients wanted.

    Returns:
        Coefficients of 1, 1/z, 1/z^2, ..., shape (size,).

    Source: Ackroyd, "Computing the waiting time distribution for the G/G/1 queue by signal processing methods", IEEE
    Trans. Communications 28 (1980) 52-58; Asmussen, Applied Probability and Queues (2003), chapter VIII.
    """
    length = PADDING * size
    likely, last, mean = np.zeros(length), 0, 0.0
    for cell in range(jump.size):
        if jump[cell] > NEGLIGIBLE_MASS:
            likely[cell], last, mean = jump[cell], cell, mean + jump[cell] * cell
    tilt = min(_saddle_point(likely[: last + 1], rate, down) / 2.0, LARGEST_LOG_GROWTH / size)
    for cell in range(last + 1):
        likely[cell] *= math.exp(tilt * cell)
    tilted = np.fft.rfft(likely)
    # Numerator and denominator lie right of the imaginary axis, so the principal logarithm is continuous.
    turn, around, shrunk = 2.0 * math.pi / length, 1.0 + 0.0j, math.exp(-tilt)
    once = complex(math.cos(turn), math.sin(turn))
    for k in range(length // 2 + 1):
        above = cis(rate * tilted[k].imag + turn * k * down)
        above = above * math.exp(rate * (tilted[k].real - 1.0) - tilt * down) - 1.0
        ratio = above * (shrunk * around - 1.0).conjugate()
        square = (shrunk * around.real - 1.0) ** 2 + (shrunk * around.imag) ** 2
        if square > 0.0:
            size_log = 0.5 * math.log((ratio.real**2 + ratio.imag**2) / square**2)
            tilted[k] = complex(size_log, math.atan2(ratio.imag, ratio.real))
        else:
            tilted[k] = math.log(down - rate * mean)
        around *= once
    cepstrum = np.fft.irfft(tilted, length)
    cepstrum[: length // 2] = 0.0
    factor = np.fft.rfft(cepstrum)
    for k in range(factor.size):
        factor[k] = math.exp(-factor[k].real) * cis(-factor[k].imag)
    coefficients = np.fft.irfft(factor, length)
    descending = np.empty(size)
    for place in range(size):
        descending[place] = coefficients[-place] * math.exp(tilt * place)
    return descending


@compiled
def _saddle_point(jump: FloatArray, rate: float, down: int) -> float:
    """Tilt t >= 0 that makes exp(-t down) E[exp(t A)] smallest, from a geometric list; 0 when none is below 1.

    The logarithm is convex in t, so that the smallest is found by halving.
    """
    low, high = 0, TILTS - 1
    while low < high:
        middle = (low + high) // 2
        if _log_growth(jump, rate, down, _tilt(jump, middle)) <= _log_growth(jump, rate, down, _tilt(jump, middle + 1)):
            high = middle
        else:
            low = middle + 1
    tilt = _tilt(jump, low)
    return tilt if _log_growth(jump, rate, down, tilt) < 0.0 else 0.0


@compiled
def _tilt(jump: FloatArray, place: int) -> float:
    """Tilts of that list."""
    span = LARGEST_GROWTH / max(jump.size - 1.0, 1.0) / SMALLEST_TILT
    return SMALLEST_TILT * math.pow(span, place / (TILTS - 1.0))


@compiled
def _log_growth(jump: FloatArray, rate: float, down: int, tilt: float) -> float:
    """Logarithm of exp(-t down) E[exp(t A)]."""
    growth = 0.0
    for cell in range(jump.size):
        if jump[cell] > 0.0:
            growth += jump[cell] * math.exp(tilt * cell)
    return rate * (growth - 1.0) - tilt * down


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
    return np.asarray(low * (high / low) ** _even_shares(count))


@cache
def _even_shares(count: int) -> FloatArray:
    return np.linspace(0.0, 1.0, count)


@compiled(makes_arrays=True)
def poisson_sum_transform(rates: FloatArray, transform: ComplexArray) -> ComplexArray:
    """Transforms of sums of a Poisson number of terms: exp(rate (transform - 1)).

    Where rates differ little each follows from the one before, exp(r z) = exp(s z) exp((r - s) z), with the seven terms
    of the series that tell: 0.02^7 / 7! is below rounding.

    Args:
        rates: mean number of terms of each sum, shape (sums,).
        transform: of one term, shape (n,).

    Returns:
        Shape (sums, n).

    Source: Feller, An Introduction to Probability Theory I (1968), chapter XII (compound Poisson).
    """
    sums = np.empty((rates.size, transform.size), dtype=np.complex128)
    real, imaginary = transform.real - 1.0, transform.imag.copy()
    last, turned = np.empty(transform.size), np.empty(transform.size)
    for row in range(rates.size):
        step = rates[row] - rates[row - 1] if row > 0 else math.inf
        if abs(step) > SHORT_STEP:
            for place in range(transform.size):
                size, turn = math.exp(rates[row] * real[place]), cis(rates[row] * imaginary[place])
                last[place], turned[place] = size * turn.real, size * turn.imag
        else:
            _times_exponential(last, turned, real, imaginary, step)
        for place in range(transform.size):
            sums[row, place] = complex(last[place], turned[place])
    return sums


@compiled(makes_arrays=True)
def _times_exponential(
    real: FloatArray, imaginary: FloatArray, along: FloatArray, across: FloatArray, step: float
) -> None:
    """Multiply complex numbers by exp(step z); parts apart, so that processors take several at once."""
    a, b = np.ones(real.size), np.zeros(real.size)
    for term in range(6, 0, -1):
        share = step / term
        for place in range(real.size):
            x, y, before = share * along[place], share * across[place], a[place]
            a[place], b[place] = 1.0 + (before * x - b[place] * y), before * y + b[place] * x
    for place in range(real.size):
        before = real[place]
        real[place], imaginary[place] = (
            before * a[place] - imaginary[place] * b[place],
            before * b[place] + imaginary[place] * a[place],
        )
