"""Distributions as means of probability slices, and operations on them that keep tails: sums, a wait rescaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, compiled
from planner.workload import LatencyDistribution, tail_edges

BINS = 512
"""Between the smallest and the largest of many values. A choice of resolution."""
LEADING_BITS = 4096
"""Values told apart at most before a bin is looked for. Affects speed."""
DISTRIBUTION_EDGES, TERM_EDGES = tail_edges(512), tail_edges(160)
"""Slices of a returned distribution, one support point each, and of each term of a sum; finer towards the tail. A
choice of resolution."""
LARGEST_RATIO = 10.0
"""Most by which one rescaled percentile may exceed both its old value and the scale of the new wait. A choice."""
NEGLIGIBLE = 1e-9
"""Probability of waiting below which a wait counts as none."""


class Sample(NamedTuple):
    """A weighted sample, row by row.

    Attributes:
        values: > 0, shape (rows, n).
        weights: >= 0, shape (rows, n).
        later: additions to the values, a row for each n / m neighbours, shape (m, additions).
        chances: of these, shape (m, additions).
    """

    values: FloatArray
    weights: FloatArray
    later: FloatArray
    chances: FloatArray


def slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray, *, runs: bool = False) -> FloatArray:
    """Mean of each probability slice of weighted samples along the last axis.

    Args:
        values: the samples, shape (..., n).
        weights: >= 0, broadcastable to `values`, with a positive sum.
        edges: cumulative probabilities at which the slices begin and end, from 0 to 1, shape (slices + 1,).
        runs: whether the samples are long runs of rising values, which are sorted in half the time then.

    Returns:
        Shape (..., slices), in the unit of `values`. Weighted with the slices' masses they give the mean of the sample.

    >>> slice_means(np.array([3.0, 1.0, 2.0, 4.0]), np.ones(4), np.array([0.0, 0.5, 1.0])).tolist()
    [1.5, 3.5]
    """
    rows = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
    mass, order = _rows(weights, values.shape), rows.argsort(axis=1, kind="stable" if runs else None)
    at = order + np.arange(0, rows.size, rows.shape[1])[:, None]
    means = slice_means_in_rows(rows.ravel()[at], mass.ravel()[order if mass.shape[0] == 1 else at], edges)
    return means.reshape(*values.shape[:-1], edges.size - 1)


def sorted_slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """`slice_means` of samples already sorted along the last axis.

    Args:
        values: rising along the last axis, broadcastable to `weights`.
        weights: >= 0, with a positive sum in every row, shape (..., n).
        edges: of the slices, from 0 to 1, shape (slices + 1,).

    Returns:
        Shape (..., slices), in the unit of `values`.
    """
    means = slice_means_in_rows(_rows(values, weights.shape), _rows(weights, weights.shape), edges)
    return means.reshape(*weights.shape[:-1], edges.size - 1)


def binned_slice_means(samples: Sequence[Sample], edges: FloatArray) -> FloatArray:
    """`slice_means` of many positive samples together, after sorting them into `BINS` bins of constant ratio.

    A bin is known by its mean, so that means are exact and slices are off by less than a bin.

    Args:
        samples: each with as many rows, and a weight of 1 in each of them.
        edges: of the slices, from 0 to 1, shape (slices + 1,).

    Returns:
        Shape (rows, slices), in the unit of the values.
    """
    rows, low, high = samples[0].values.shape[0], math.inf, 0.0
    for sample in samples:
        alike = sample.values.reshape(rows, sample.later.shape[0], -1)
        low = min(low, float((alike.min(axis=(0, 2))[:, None] + sample.later).min()))
        high = max(high, float((alike.max(axis=(0, 2))[:, None] + sample.later).max()))
    if not high > low * (1.0 + 1e-9):
        return np.full((rows, edges.size - 1), low)
    lower = np.exp(np.log(low) + (np.arange(BINS + 1.0) - 0.5) * (math.log(high / low) / (BINS - 1)))
    lower[0], lower[-1] = low, math.inf
    bins = np.zeros((2, rows, BINS))
    for sample in samples:
        _add_to_bins(*sample, lower, high, bins)
    return slice_means_in_rows(bins[1] / np.maximum(bins[0], np.finfo(float).tiny), bins[0], edges)


@compiled(makes_arrays=True)
def _add_to_bins(
    values: FloatArray,
    weights: FloatArray,
    later: FloatArray,
    chances: FloatArray,
    lower: FloatArray,
    high: float,
    bins: FloatArray,
) -> None:
    """Add the weights of a sample, and these times its values, to bins, shape (2, rows, BINS).

    The bits of a positive float, read as a whole number, rise with it: a table of the leading ones leads to the bin.

    Args:
        values: as in `Sample`.
        weights: likewise.
        later: likewise.
        chances: likewise.
        lower: lower edge of each bin and of what is beyond the last, shape (BINS + 1,).
        high: largest value.
        bins: that are added to.
    """
    rows, size, (parts, additions) = values.shape[0], values.shape[1], later.shape
    ends = np.array([lower[0], high]).view(np.int64)
    dropped = 0
    while (ends[1] >> dropped) - (ends[0] >> dropped) >= LEADING_BITS:
        dropped += 1
    least, at = ends[0] >> dropped, 0
    first = np.empty((ends[1] >> dropped) - least + 1, dtype=np.int16)
    bits = lower.view(np.int64)
    for place in range(first.size):
        while at < BINS - 1 and bits[at + 1] >> dropped < least + place:
            at += 1
        first[place] = at
    value, mass, alike = np.empty(size * additions), np.empty(size * additions), size // parts
    leading, both = value.view(np.int64), np.empty((BINS, 2))
    for row in range(rows):
        for place in range(size):
            part, begin = place // alike, place * additions
            for more in range(additions):
                value[begin + more] = values[row, place] + later[part, more]
                mass[begin + more] = weights[row, place] * chances[part, more]
        both[:] = 0.0  # weight and moment of a bin lie side by side
        for which in range(value.size):
            at = first[(leading[which] >> dropped) - least]
            while value[which] >= lower[at + 1]:
                at += 1
            both[at, 0] += mass[which]
            both[at, 1] += mass[which] * value[which]
        for at in range(BINS):
            bins[0, row, at] += both[at, 0]
            bins[1, row, at] += both[at, 1]


def _rows(array: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """As rows that go with those of a shape: one row for all where every row is the same."""
    if array.ndim <= 1:
        return (array if array.shape == shape[-1:] else np.full(shape[-1:], array))[None, :]
    if array.shape == shape:
        return np.ascontiguousarray(array).reshape(-1, shape[-1])
    return np.ascontiguousarray(np.broadcast_to(array, shape)).reshape(-1, shape[-1])


@compiled(makes_arrays=True)
def slice_means_in_rows(values: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """`sorted_slice_means` for compiled code: means of the slices of each row.

    Args:
        values: rising along each row, shape (rows, n), or (1, n) for all.
        weights: >= 0, with a positive sum, shape (rows, n), or (1, n) for all.
        edges: of the slices, from 0 to 1, shape (slices + 1,).

    Returns:
        Shape (rows, slices), in the unit of `values`.
    """
    size, slices = weights.shape[1], edges.size - 1
    rows = max(values.shape[0], weights.shape[0])
    means = np.empty((rows, slices))
    for row in range(rows):
        value, weight = values[min(row, values.shape[0] - 1)], weights[min(row, weights.shape[0] - 1)]
        total = 0.0
        for mass in weight:
            total += mass
        at, below, passed, moment = 0, 0.0, 0.0, 0.0
        for place in range(size):
            passed += weight[place]
            while at < slices - 1 and passed >= edges[at + 1] * total:
                edge = edges[at + 1] * total
                moment += (edge - below) * value[place]
                means[row, at] = moment / ((edges[at + 1] - edges[at]) * total)
                at, below, moment = at + 1, edge, 0.0
            moment += (passed - below) * value[place]
            below = passed
        means[row, at] = moment / ((edges[at + 1] - edges[at]) * total)
        means[row, at + 1 :] = value[size - 1]
    return means


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
