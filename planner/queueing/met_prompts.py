"""Prompts that a request meets in its K decode steps, and the distribution of what they add to these: rare and large.

A prompt of m steps shares some of them with the K steps of a request, wherever its first step is among m + K - 1: the
smaller of m and K steps at |m - K| + 1 places, each smaller number of steps at two. Prompts come at random, so that
what they add together is a compound Poisson sum, the exponential of whose jump rates is its transform (Feller 1968,
*Introduction to Probability Theory and Its Applications I*, ch. XII).

Prompts that queue for the budget, and those that come while others make steps longer, come in clusters: jumps are that
much larger, and rarer, as makes the variance what the caller knows it to be; none is larger than K full steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray
from planner.queueing.quantisation import sorted_slice_means

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
        jumps_s, rates = self._jumps(gaps)
        clusters = np.maximum(std_s**2 / np.maximum((jumps_s**2 * rates).sum(axis=1), LEAST_S**2), 1.0)[:, None]
        most_s = gaps[:, None] * np.maximum(self.full_s, np.tile(self.added_s, PART_MIDDLES.size + 1))
        grown_s = np.minimum(jumps_s * clusters, most_s)
        return _compound_poisson(grown_s, rates * jumps_s / np.maximum(grown_s, LEAST_S), edges)

    def _jumps(self, gaps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What one prompt adds to k steps [s], and how many prompts do that, both of shape (G, Q times parts)."""
        shared = np.minimum(self.steps, gaps[:, None])
        whole = self.per_step * (np.abs(self.steps - gaps[:, None]) + 1.0)
        part = self.per_step * 2.0 * (shared - 1.0).clip(0.0) / PART_MIDDLES.size
        sizes = [shared, *(np.maximum(shared * middle, 1.0) for middle in PART_MIDDLES)]
        jumps_s = np.concatenate([size * self.added_s for size in sizes], axis=1)
        return jumps_s, np.concatenate([whole, *[part] * PART_MIDDLES.size], axis=1)


def _compound_poisson(jumps: FloatArray, rates: FloatArray, edges: FloatArray) -> FloatArray:
    """Standardised slice means of sums of jumps that come at these rates, row by row, shape (G, slices)."""
    mean, variance = (jumps * rates).sum(axis=1), (jumps**2 * rates).sum(axis=1)
    top = np.maximum(_lattice_end(mean, variance), BEYOND_LARGEST * jumps.max(axis=1))
    cell = np.maximum(top, LEAST_S)[:, None] / (SUM_CELLS - 1)
    place = jumps / cell
    below = np.minimum(place.astype(np.int64), SUM_CELLS - 2)
    above_share, row = place - below, np.arange(jumps.shape[0])[:, None] * SUM_CELLS
    counted = np.concatenate([(below + row).ravel(), (below + row + 1).ravel()])
    weights = np.concatenate([(rates * (1.0 - above_share)).ravel(), (rates * above_share).ravel()])
    levy = np.bincount(counted, weights, jumps.shape[0] * SUM_CELLS).reshape(-1, SUM_CELLS)
    transform = np.exp(np.fft.rfft(levy, axis=1) - rates.sum(axis=1)[:, None])
    chance = np.maximum(np.fft.irfft(transform, SUM_CELLS, axis=1), 0.0)
    means = sorted_slice_means(np.arange(float(SUM_CELLS)), chance, edges)
    mass = np.diff(edges)
    centred = means - (means @ mass)[:, None]
    return np.asarray(centred / np.sqrt(np.maximum(centred**2 @ mass, np.finfo(float).tiny))[:, None])


def _lattice_end(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """`DEVIATIONS` above the mean, of the sum as the lattice has it: cells add at most mean * cell to the variance.

    With t the end, (t - mean)^2 = DEVIATIONS^2 (variance + mean t / (cells - 1)).
    """
    per_end = DEVIATIONS**2 * mean / (SUM_CELLS - 1)
    beyond = per_end**2 + 4.0 * (per_end * mean + DEVIATIONS**2 * variance)
    return np.asarray(mean + (per_end + np.sqrt(beyond)) / 2.0)
