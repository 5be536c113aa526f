"""Weighted samples condensed to the means of probability slices: how the theory passes distributions on."""

from __future__ import annotations

import numpy as np

from planner.core import FloatArray


def slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """Mean of each probability slice of weighted samples along the last axis.

    Args:
        values: the samples, shape (..., n).
        weights: >= 0, broadcastable to `values`, with a positive sum.
        edges: cumulative probabilities at which the slices begin and end, from 0 to 1, shape (slices + 1,).

    Returns:
        Shape (..., slices), in the unit of `values`. Weighted with the slices' masses they give the mean of the sample.

    >>> slice_means(np.array([3.0, 1.0, 2.0, 4.0]), np.ones(4), np.array([0.0, 0.5, 1.0])).tolist()
    [1.5, 3.5]
    """
    if values.ndim == 1:
        order = values.argsort(kind="stable")
        return sorted_slice_means(values[order], np.broadcast_to(weights, values.shape)[order], edges)
    order = np.argsort(values, axis=-1, kind="stable")
    ranked = np.take_along_axis(np.broadcast_to(weights, values.shape), order, axis=-1)
    return sorted_slice_means(np.take_along_axis(values, order, axis=-1), ranked, edges)


def sorted_slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """`slice_means` of samples already sorted along the last axis.

    All rows are laid end to end, each of mass 1, so that one running sum and one interpolation serve them all.

    Args:
        values: rising along the last axis, broadcastable to `weights`.
        weights: >= 0, with a positive sum in every row, shape (..., n).
        edges: of the slices, from 0 to 1, shape (slices + 1,).

    Returns:
        Shape (..., slices), in the unit of `values`.
    """
    widths = edges[1:] - edges[:-1]
    if weights.ndim == 1:
        total = np.zeros((2, weights.size + 1))
        np.cumsum(weights, out=total[0, 1:])
        np.cumsum(weights * values, out=total[1, 1:])
        cut = np.interp(edges * total[0, -1], total[0], total[1])
        return np.asarray((cut[1:] - cut[:-1]) / (widths * total[0, -1]))
    rows = weights.reshape(-1, weights.shape[-1])
    mass = rows / rows.sum(axis=1, keepdims=True)
    moments = mass * (values if values.shape == rows.shape else np.broadcast_to(values, weights.shape)).reshape(
        rows.shape
    )
    ranks = np.arange(float(rows.shape[0]))[:, None]
    total = np.zeros((2, rows.size + 1))
    below = total[0, 1:].reshape(rows.shape)
    np.cumsum(mass, axis=1, out=below)
    below += ranks
    below[:, -1] = ranks[:, 0] + 1.0
    np.cumsum(moments.ravel(), out=total[1, 1:])
    cut = np.interp(edges + ranks, total[0], total[1])
    return np.asarray(((cut[:, 1:] - cut[:, :-1]) / widths).reshape(*weights.shape[:-1], edges.size - 1))


def binned_slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray, bins: int = 512) -> FloatArray:
    """`slice_means` of many positive samples, after sorting them into bins of constant ratio.

    A bin is known by its mean, so that means are exact and slices are off by less than a bin.

    Args:
        values: > 0, shape (rows, n).
        weights: >= 0, shape (rows, n).
        edges: of the slices, from 0 to 1, shape (slices + 1,).
        bins: between the smallest and the largest value.

    Returns:
        Shape (rows, slices), in the unit of `values`.
    """
    size = values.shape[0]
    low, high = float(values.min()), float(values.max())
    if not high > low * (1.0 + 1e-9):
        return np.full((size, edges.size - 1), low)
    place = (np.log(values / low) * ((bins - 1) / np.log(high / low)) + 0.5).astype(np.int64)
    place += np.arange(size)[:, None] * bins
    mass = np.bincount(place.ravel(), weights.ravel(), size * bins).astype(np.float64)
    moment = np.bincount(place.ravel(), (weights * values).ravel(), size * bins)
    means = moment / np.maximum(mass, np.finfo(float).tiny)
    return sorted_slice_means(means.reshape(size, bins), mass.reshape(size, bins), edges)
