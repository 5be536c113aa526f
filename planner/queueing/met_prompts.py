"""Prompts that a request meets in its K decode steps, and the distribution of what they add to these: rare and large.

A prompt of m steps shares some of them with the K steps of a request, wherever its first step is among m + K - 1: the
smaller of m and K steps at |m - K| + 1 places, each smaller number of steps at two. Prompts come at random, so that
what they add together is a compound Poisson sum, the exponential of whose jump rates is its transform (Feller 1968,
*Introduction to Probability Theory and Its Applications I*, ch. XII).

Prompts that queue for the budget, and those that come while others make steps longer, come in clusters: jumps are that
much larger, and rarer, as makes the variance what the caller knows it to be; none is larger than K full steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, compiled
from planner.queueing.lattice import cis
from planner.queueing.quantisation import slice_means_in_rows

SUM_CELLS = 256
"""Lattice cells of the sum. A choice of resolution: jumps far below a cell widen a sum, which is then close to normal
anyway, and scaled to its variance."""
PART_MIDDLES = np.array([0.125, 0.375, 0.625, 0.875])
"""Shares of an overlap that stand for all smaller ones: the middles of four parts. A choice of resolution."""
DEVIATIONS = 8.0
"""The lattice ends so many standard deviations above the mean. A choice: what lies beyond is below 1e-4."""
BEYOND_LARGEST = 1.2
"""... and at least at this multiple of the largest jump. A choice."""
LEAST_S = 1e-15
"""Guards divisions by a time of 0 [s]."""
TINY = float(np.finfo(float).tiny)
"""Guards a division by a variance of 0."""


@dataclass(frozen=True)
class MetPrompts:
    """Prompts as a request that decodes meets them.

    Attributes:
        per_step: of each group, prompts that begin per step, shape (Q,).
        steps: that one takes, >= 1, shape (Q,).
        added_s: by which each of these steps is longer than one without prompts [s], shape (Q,).
        full_s: by which a full step is [s].
    """

    per_step: FloatArray
    steps: FloatArray
    added_s: FloatArray
    full_s: float

    def shapes(self, gaps: FloatArray, std_s: FloatArray, edges: FloatArray) -> FloatArray:
        """Distributions of what prompts add to k steps, less their mean and over their standard deviation.

        Args:
            gaps: numbers of steps k, > 0, shape (G,).
            std_s: standard deviation of what prompts add to so many steps together [s], > 0, shape (G,).
            edges: of the probability slices whose means are wanted, from 0 to 1, shape (slices + 1,).

        Returns:
            Slice means [-] of mean 0 and variance 1, shape (G, slices); 0 where nothing varies.
        """
        jumps_s, rates, most_s = _jumps(self.per_step, self.steps, self.added_s, self.full_s, gaps)
        return _compound_poisson(jumps_s, rates, most_s, std_s, edges)


@compiled(makes_arrays=True)
def _jumps(
    per_step: FloatArray, steps: FloatArray, added_s: FloatArray, full_s: float, gaps: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What one prompt adds to k steps [s], how many prompts do that, and the most that a cluster adds [s].

    Arguments as in `MetPrompts`; all of shape (G, Q times parts).
    """
    parts = 1 + PART_MIDDLES.size
    jumps_s = np.empty((gaps.size, parts * steps.size))
    rates, most_s = np.empty(jumps_s.shape), np.empty(jumps_s.shape)
    for row in range(gaps.size):
        for at in range(parts * steps.size):
            part, group = at // steps.size, at % steps.size
            shared = min(steps[group], gaps[row])
            if part == 0:
                jumps_s[row, at] = shared * added_s[group]
                rates[row, at] = per_step[group] * (abs(steps[group] - gaps[row]) + 1.0)
            else:
                jumps_s[row, at] = max(shared * PART_MIDDLES[part - 1], 1.0) * added_s[group]
                rates[row, at] = per_step[group] * 2.0 * max(shared - 1.0, 0.0) / PART_MIDDLES.size
            most_s[row, at] = gaps[row] * max(full_s, added_s[group])
    return jumps_s, rates, most_s


@compiled(makes_arrays=True)
def _compound_poisson(
    jumps_s: FloatArray, rates: FloatArray, most_s: FloatArray, std_s: FloatArray, edges: FloatArray
) -> FloatArray:
    """Standardised slice means of sums of clusters of jumps, row by row, shape (G, slices)."""
    rows, cells = jumps_s.shape[0], np.empty((1, SUM_CELLS))
    levy, total = np.zeros((rows, SUM_CELLS)), np.empty(rows)
    for row in range(rows):
        total[row] = _add_clusters(levy[row], jumps_s[row], rates[row], most_s[row], std_s[row])
    transform = np.fft.rfft(levy)
    for row in range(rows):
        for k in range(transform.shape[1]):
            transform[row, k] = math.exp(transform[row, k].real - total[row]) * cis(transform[row, k].imag)
    chance = np.fft.irfft(transform, SUM_CELLS)
    for cell in range(SUM_CELLS):
        cells[0, cell] = cell
        for row in range(rows):
            chance[row, cell] = max(chance[row, cell], 0.0)
    means = slice_means_in_rows(cells, chance, edges)
    for row in range(rows):
        _standardise(means[row], edges)
    return means


@compiled
def _add_clusters(levy: FloatArray, jumps_s: FloatArray, rates: FloatArray, most_s: FloatArray, std_s: float) -> float:
    """Put the rates of clusters of jumps on a lattice that holds their sum; all of them together."""
    alone, largest, mean, variance, total = 0.0, 0.0, 0.0, 0.0, 0.0
    for kind in range(jumps_s.size):
        alone += jumps_s[kind] ** 2 * rates[kind]
    clusters = max(std_s**2 / max(alone, LEAST_S**2), 1.0)
    for kind in range(jumps_s.size):
        jump = min(jumps_s[kind] * clusters, most_s[kind])
        mean += rates[kind] * jumps_s[kind]
        variance += rates[kind] * jumps_s[kind] * jump
        largest = max(largest, jump)
    cell_s = max(_lattice_end(mean, variance), BEYOND_LARGEST * largest, LEAST_S) / (SUM_CELLS - 1)
    for kind in range(jumps_s.size):
        if rates[kind] == 0.0:
            continue
        jump = min(jumps_s[kind] * clusters, most_s[kind])
        rate = rates[kind] * jumps_s[kind] / max(jump, LEAST_S)
        below = min(int(jump / cell_s), SUM_CELLS - 2)
        levy[below] += rate * (1.0 - (jump / cell_s - below))
        levy[below + 1] += rate * (jump / cell_s - below)
        total += rate
    return total


@compiled
def _standardise(means: FloatArray, edges: FloatArray) -> None:
    """Bring slice means to mean 0 and variance 1."""
    mean, variance = 0.0, 0.0
    for at in range(means.size):
        mean += means[at] * (edges[at + 1] - edges[at])
    for at in range(means.size):
        variance += (means[at] - mean) ** 2 * (edges[at + 1] - edges[at])
    for at in range(means.size):
        means[at] = (means[at] - mean) / math.sqrt(max(variance, TINY))


@compiled
def _lattice_end(mean: float, variance: float) -> float:
    """`DEVIATIONS` above the mean, of the sum as the lattice has it: cells add at most mean * cell to the variance.

    With t the end, (t - mean)^2 = DEVIATIONS^2 (variance + mean t / (cells - 1)).
    """
    per_end = DEVIATIONS**2 * mean / (SUM_CELLS - 1)
    beyond = per_end**2 + 4.0 * (per_end * mean + DEVIATIONS**2 * variance)
    return mean + (per_end + math.sqrt(beyond)) / 2.0
