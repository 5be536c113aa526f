"""Weighted samples condensed to the means of probability slices: how the theory passes distributions on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, IntArray, compiled

BINS = 512
"""Between the smallest and the largest of many values. A choice of resolution."""
LEADING_BITS = 4096
"""Values told apart at most before a bin is looked for. Affects speed."""


class Sample(NamedTuple):
    """A weighted sample, row by row.

    Attributes:
        values: > 0, shape (rows, n).
        weights: >= 0, shape (rows, n).
        later: equally likely additions to each of the values, shape (n, additions).
    """

    values: FloatArray
    weights: FloatArray
    later: FloatArray


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
    rows = values.reshape(-1, values.shape[-1])
    order = np.argsort(rows, axis=1, kind="stable" if runs else None)
    means = _in_order(rows, order, _rows(weights, values.shape), edges)
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
    ends = np.array([_ends(*sample) for sample in samples])
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    rows = samples[0].values.shape[0]
    if not high > low * (1.0 + 1e-9):
        return np.full((rows, edges.size - 1), low)
    lower = np.exp(np.log(low) + (np.arange(BINS + 1.0) - 0.5) * (math.log(high / low) / (BINS - 1)))
    lower[0], lower[-1] = low, math.inf
    bins = np.zeros((2, rows, BINS))
    for sample in samples:
        _add_to_bins(*sample, lower, high, bins)
    return slice_means_in_rows(bins[1] / np.maximum(bins[0], np.finfo(float).tiny), bins[0], edges)


@compiled
def _ends(values: FloatArray, weights: FloatArray, later: FloatArray) -> tuple[float, float]:
    """The smallest and the largest value of a sample."""
    low, high = math.inf, 0.0
    for place in range(values.shape[1]):
        least, most = math.inf, 0.0
        for row in range(values.shape[0]):
            least, most = min(least, values[row, place]), max(most, values[row, place])
        for more in later[place]:
            low, high = min(low, least + more), max(high, most + more)
    return low, high


@compiled(makes_arrays=True)
def _add_to_bins(
    values: FloatArray, weights: FloatArray, later: FloatArray, lower: FloatArray, high: float, bins: FloatArray
) -> None:
    """Add the weights of a sample, and these times its values, to bins, shape (2, rows, BINS).

    The bits of a positive float, read as a whole number, rise with it: a table of the leading ones leads to the bin.

    Args:
        values: as in `Sample`.
        weights: likewise.
        later: likewise.
        lower: lower edge of each bin and of what is beyond the last, shape (BINS + 1,).
        high: largest value.
        bins: that are added to.
    """
    rows, size, additions = values.shape[0], values.shape[1], later.shape[1]
    ends = np.array([lower[0], high]).view(np.int64)
    dropped = 0
    while (ends[1] >> dropped) - (ends[0] >> dropped) >= LEADING_BITS:
        dropped += 1
    first, at = np.empty((ends[1] >> dropped) - (ends[0] >> dropped) + 1, dtype=np.int64), 0
    bits = lower.view(np.int64)
    for place in range(first.size):
        while at < BINS - 1 and bits[at + 1] >> dropped < (ends[0] >> dropped) + place:
            at += 1
        first[place] = at
    value = np.empty(size * additions)
    leading = value.view(np.int64)
    for row in range(rows):
        for place in range(size):
            for more in range(additions):
                value[place * additions + more] = values[row, place] + later[place, more]
        for place in range(size):
            weight = weights[row, place] / additions
            for which in range(place * additions, (place + 1) * additions):
                at = first[(leading[which] >> dropped) - (ends[0] >> dropped)]
                while value[which] >= lower[at + 1]:
                    at += 1
                bins[0, row, at] += weight
                bins[1, row, at] += weight * value[which]


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


@compiled(makes_arrays=True)
def _in_order(values: FloatArray, order: IntArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """The same of rows that are not sorted, in their order."""
    ranked, mass = np.empty(values.shape), np.empty(values.shape)
    for row in range(values.shape[0]):
        weight = weights[min(row, weights.shape[0] - 1)]
        for place in range(values.shape[1]):
            ranked[row, place] = values[row, order[row, place]]
            mass[row, place] = weight[order[row, place]]
    return slice_means_in_rows(ranked, mass, edges)
