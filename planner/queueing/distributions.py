"""Operations on latency distributions that keep their tails: sums, and one wait rescaled as another was."""

from __future__ import annotations

import numpy as np

from planner.core import FloatArray
from planner.queueing.quantisation import slice_means, sorted_slice_means
from planner.workload import LatencyDistribution, tail_edges

DISTRIBUTION_EDGES = tail_edges(512)
"""Slices of a returned distribution, one support point each, finer towards the tail. A choice of resolution."""
TERM_EDGES = tail_edges(160)
"""Slices of each term of a sum. A choice as above."""
LARGEST_RATIO = 10.0
"""Most by which one rescaled percentile may exceed both its old value and the scale of the new wait. A choice."""
NEGLIGIBLE = 1e-9
"""Probability of waiting below which a wait counts as none."""


def sum_of_independent(*terms: LatencyDistribution) -> LatencyDistribution:
    """Distribution of the sum of independent latencies, with the tail kept.

    Args:
        terms: distributions of the latencies [s].

    Returns:
        Distribution [s] of at most 512 points; the tail is resolved to slices of 1 / 160^2 of the mass of each term.

    >>> coin = LatencyDistribution.from_samples([0.0, 1.0])
    >>> sum_of_independent(coin, coin).support_s.tolist(), sum_of_independent(coin, coin).weights.tolist()
    ([0.0, 1.0, 1.0, 2.0], [0.25, 0.25, 0.25, 0.25])
    """
    if not all(np.isfinite(term.support_s[-1]) for term in terms):
        return LatencyDistribution.unbounded()
    total = terms[0]
    for term in terms[1:]:
        left, right = sorted((_shortened(total), _shortened(term)), key=lambda each: -each.support_s.size)
        if right.support_s.size == 1:
            total = LatencyDistribution(left.support_s + right.support_s, left.weights)
            continue
        sums = np.add.outer(left.support_s, right.support_s).ravel()
        total = condensed_with_atom(sums, np.multiply.outer(left.weights, right.weights).ravel())
    return total


def condensed_with_atom(
    times_s: FloatArray, weights: FloatArray, edges: FloatArray = DISTRIBUTION_EDGES
) -> LatencyDistribution:
    """A weighted sample as a distribution of as many points as slices that keeps the mean; zeros stay zeros.

    Args:
        times_s: >= 0, shape (n,) [s].
        weights: >= 0, shape (n,).
        edges: of the slices, from 0 to 1, shape (slices + 1,).

    Returns:
        Distribution [s] with the atom at 0, if there is one, as a point of its own.
    """
    if times_s.size < edges.size:
        return LatencyDistribution.from_samples(times_s, weights)
    none = times_s <= 0.0
    if none.any() and not none.all():
        atom = float(weights[none].sum() / weights.sum())
        rest = condensed_with_atom(times_s[~none], weights[~none], edges)
        both = np.append(atom, (1.0 - atom) * rest.weights)
        return LatencyDistribution.from_samples(np.append(0.0, rest.support_s), both)
    means = slice_means(times_s, weights, edges)
    return LatencyDistribution(np.maximum.accumulate(means), np.diff(edges))


def lattice_distribution(distribution: FloatArray, cell_s: float) -> LatencyDistribution:
    """A distribution on 0, 1, 2, ... cells as a distribution of few points; the atom at 0 stays apart.

    Args:
        distribution: probability of 0, 1, 2, ... cells, shape (n,).
        cell_s: lattice spacing [s].

    Returns:
        Distribution [s] of at most 513 points.
    """
    atom = float(distribution[0])
    if atom >= 1.0 - NEGLIGIBLE:
        return LatencyDistribution.constant(0.0)
    means = sorted_slice_means(np.arange(1.0, distribution.size) * cell_s, distribution[1:], DISTRIBUTION_EDGES)
    mass = (1.0 - atom) * np.diff(DISTRIBUTION_EDGES)
    return LatencyDistribution(np.append(0.0, np.maximum.accumulate(means)), np.append(atom, mass))


def rescaled_wait(
    wait: LatencyDistribution, before: LatencyDistribution, after: LatencyDistribution
) -> LatencyDistribution:
    """A wait changed as a reference wait is: each percentile by the ratio of the references, the mean exactly so.

    What a policy does to an abstract queue (`before` to `after`) is done to the wait of a real server. Where the
    reference did not wait before and does after, the wait grows by that much of its own scale.

    Args:
        wait: of the real server [s].
        before: wait of the abstract queue without the policy, e.g. behind a random router [s].
        after: the same with the policy [s].

    Returns:
        Distribution of the real wait under the policy [s]; unbounded where one of the three is.

    >>> wait, one, three = (LatencyDistribution.from_samples([0.0, x]) for x in (2.0, 1.0, 3.0))
    >>> rescaled_wait(wait, one, three).mean_s
    3.0
    """
    ends = (wait.support_s[-1], before.support_s[-1], after.support_s[-1])
    if not all(np.isfinite(end) for end in ends):
        return LatencyDistribution.unbounded()
    if before.mean_s <= 0.0 or wait.mean_s <= 0.0:
        return wait
    real, old, new = _at_slices(wait), _at_slices(before), _at_slices(after)
    scale = wait.mean_s / before.mean_s
    waited = old > 0.0
    ratio = np.where(waited, new / np.where(waited, old, 1.0), 1.0)
    # A percentile just above the atom of the reference may be tiny there and not here; the scale bounds its ratio.
    most = LARGEST_RATIO * np.maximum(scale * new, real)
    moved = np.where(waited, np.minimum(real * ratio, most), 0.0)
    moved = np.maximum.accumulate(np.where(waited, moved, real + scale * new))
    mass = np.diff(DISTRIBUTION_EDGES)
    wanted = wait.mean_s * after.mean_s / before.mean_s
    mean = float(moved @ mass)
    return LatencyDistribution.from_samples(moved * (wanted / mean if mean > 0.0 else 0.0), mass)


def _at_slices(distribution: LatencyDistribution) -> FloatArray:
    return sorted_slice_means(distribution.support_s, distribution.weights, DISTRIBUTION_EDGES)


def _shortened(distribution: LatencyDistribution) -> LatencyDistribution:
    if distribution.support_s.size < TERM_EDGES.size:
        return distribution
    return condensed_with_atom(distribution.support_s, distribution.weights, TERM_EDGES)
