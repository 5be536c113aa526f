"""Operations on latency distributions that keep their tails: sums, waits of given moments, and one distribution moved as another was."""

from __future__ import annotations

import numpy as np
from scipy.special import gammainc, gammaincinv

from planner.core import InputError
from planner.queueing.quantisation import slice_means, sorted_slice_means, tail_edges
from planner.queueing.types import FloatArray
from planner.workload import LatencyDistribution

POINTS = 512
"""Support points of a distribution that is handed out, finer towards the tail."""
LAW_EDGES = tail_edges(POINTS)
TERM_EDGES = tail_edges(160)
"""Slices of each term of a sum."""
WAIT_EDGES = tail_edges(256)
NEGLIGIBLE = 1e-9


def summed(*terms: LatencyDistribution) -> LatencyDistribution:
    """Distribution of the sum of independent latencies, with the tail kept (slices of 1 / 160^2 of the mass at the top).

    >>> coin = LatencyDistribution.from_samples([0.0, 1.0])
    >>> summed(coin, coin).support_s.tolist(), summed(coin, coin).weights.tolist()
    ([0.0, 1.0, 1.0, 2.0], [0.25, 0.25, 0.25, 0.25])
    """
    if not all(np.isfinite(term.support_s[-1]) for term in terms):
        return LatencyDistribution.unbounded()
    total = terms[0]
    for term in terms[1:]:
        one, other = _shortened(total), _shortened(term)
        sums = np.add.outer(one.support_s, other.support_s).ravel()
        total = tail_condensed(sums, np.multiply.outer(one.weights, other.weights).ravel())
    return total


def tail_condensed(times_s: FloatArray, weights: FloatArray, edges: FloatArray = LAW_EDGES) -> LatencyDistribution:
    """A weighted sample as a distribution of as many points as slices that keeps the mean; zeros stay zeros."""
    if times_s.size < edges.size:
        return LatencyDistribution.from_samples(times_s, weights)
    none = times_s <= 0.0
    if none.any() and not none.all():
        atom = float(weights[none].sum() / weights.sum())
        rest = tail_condensed(times_s[~none], weights[~none], edges)
        both = np.append(atom, (1.0 - atom) * rest.weights)
        return LatencyDistribution.from_samples(np.append(0.0, rest.support_s), both)
    means = slice_means(times_s, weights, edges)
    return LatencyDistribution.from_samples(np.maximum.accumulate(means), np.diff(edges))


def lattice_distribution(distribution: FloatArray, cell_s: float) -> LatencyDistribution:
    """A distribution on 0, 1, 2, ... cells as a distribution of few points; the atom at 0 stays apart."""
    atom = float(distribution[0])
    if atom >= 1.0 - NEGLIGIBLE:
        return LatencyDistribution.constant(0.0)
    means = sorted_slice_means(np.arange(1.0, distribution.size) * cell_s, distribution[1:], LAW_EDGES)
    mass = (1.0 - atom) * np.diff(LAW_EDGES)
    return LatencyDistribution.from_samples(np.append(0.0, np.maximum.accumulate(means)), np.append(atom, mass))


def gamma_slices(mean: FloatArray, variance: FloatArray, edges: FloatArray) -> FloatArray:
    """Slice means of gamma distributions of given mean and variance (both > 0), shape (distributions, slices); exact.

    The mean over a slice of a gamma distribution of shape a is that of its length-biased distribution, of shape a + 1.

    >>> gamma_slices(np.array([1.0]), np.array([1.0]), np.array([0.0, 0.5, 1.0])).round(4).tolist()  # 1 -+ ln 2
    [[0.3069, 1.6931]]
    """
    shape = np.clip(mean**2 / np.maximum(variance, np.finfo(float).tiny), 1e-3, 1e6)[:, None]
    cuts = gammaincinv(shape, edges[None, 1:-1])
    below = np.concatenate([np.zeros((mean.size, 1)), gammainc(shape + 1.0, cuts), np.ones((mean.size, 1))], axis=1)
    return np.asarray(mean[:, None] * np.diff(below, axis=1) / np.diff(edges))


def gamma_wait(mean_s: float, second_moment_s2: float, chance: float) -> LatencyDistribution:
    """A wait of given first two moments that happens with probability `chance`: gamma where it happens, else none.

    Args:
        mean_s: over all requests [s].
        second_moment_s2: over all requests [s^2]; less than mean^2 / chance counts as a constant.
        chance: probability of waiting, in (0, 1].

    >>> distribution = gamma_wait(1.0, 4.0, 0.5)  # exponential of mean 2: M/M/1 at a load of 1/2
    >>> round(distribution.mean_s, 6), round(distribution.quantile_s(0.99), 1)
    (1.0, 7.8)
    """
    if not 0.0 < chance <= 1.0:
        raise InputError("chance", chance, "must lie in (0, 1]", "give the probability of waiting")
    if mean_s <= 0.0:
        return LatencyDistribution.constant(0.0)
    mean = mean_s / chance
    variance = second_moment_s2 / chance - mean**2
    if variance <= NEGLIGIBLE * mean**2:
        return LatencyDistribution.from_samples([0.0, mean], [1.0 - chance, chance])
    waits = gamma_slices(np.array([mean]), np.array([variance]), WAIT_EDGES)[0]
    return LatencyDistribution.from_samples(
        np.append(0.0, waits), np.append(1.0 - chance, chance * np.diff(WAIT_EDGES))
    )


def wait_between(total: LatencyDistribution, alone: LatencyDistribution, chance: float = 1.0) -> LatencyDistribution:
    """The wait that, added to an independent latency `alone`, has the mean and the variance of `total` (gamma).

    Args:
        total: latency with a queue.
        alone: the same latency of a request that meets nobody.
        chance: probability of waiting at all.
    """
    if not np.isfinite(total.support_s[-1]):
        return LatencyDistribution.unbounded()
    mean = max(total.mean_s - alone.mean_s, 0.0)
    variance = max(total.std_s**2 - alone.std_s**2, 0.0)
    return gamma_wait(mean, variance + mean**2, chance)


def transported(
    distribution: LatencyDistribution, before: LatencyDistribution, after: LatencyDistribution
) -> LatencyDistribution:
    """A wait changed as a reference wait is: each percentile by the ratio of the references, the mean exactly so.

    What a policy does to an abstract queue (`before` to `after`) is done to the wait of a real one (`distribution`).
    Where the reference did not wait before and does after, the wait grows by that much of its own scale.

    >>> distribution, one, three = (LatencyDistribution.from_samples([0.0, x]) for x in (2.0, 1.0, 3.0))
    >>> transported(distribution, one, three).mean_s
    3.0
    """
    ends = (distribution.support_s[-1], before.support_s[-1], after.support_s[-1])
    if not all(np.isfinite(end) for end in ends):
        return LatencyDistribution.unbounded()
    if before.mean_s <= 0.0 or distribution.mean_s <= 0.0:
        return distribution
    fine = _at_slices(distribution), _at_slices(before), _at_slices(after)
    scale = distribution.mean_s / before.mean_s
    ratio = np.where(fine[1] > 0.0, fine[2] / np.where(fine[1] > 0.0, fine[1], 1.0), 1.0)
    # A percentile just above the atom of the reference may be tiny there and not here; the scale bounds its ratio.
    most = LARGEST_RATIO * np.maximum(scale * fine[2], fine[0])
    moved = np.where(fine[1] > 0.0, np.minimum(fine[0] * ratio, most), 0.0)
    moved = np.maximum.accumulate(np.where(fine[1] > 0.0, moved, fine[0] + scale * fine[2]))
    mass = np.diff(LAW_EDGES)
    wanted = distribution.mean_s * after.mean_s / before.mean_s
    mean = float(moved @ mass)
    return LatencyDistribution.from_samples(moved * (wanted / mean if mean > 0.0 else 0.0), mass)


LARGEST_RATIO = 10.0
"""By which one percentile may exceed both its old value and the scale of the new wait."""


def _at_slices(distribution: LatencyDistribution) -> FloatArray:
    return sorted_slice_means(distribution.support_s, distribution.weights, LAW_EDGES)


def _shortened(distribution: LatencyDistribution) -> LatencyDistribution:
    return tail_condensed(distribution.support_s, distribution.weights, TERM_EDGES)
