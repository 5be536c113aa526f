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
    rows = weights.reshape(-1, weights.shape[-1])
    mass = rows / rows.sum(axis=1, keepdims=True)
    moments = mass * np.broadcast_to(values, weights.shape).reshape(rows.shape)
    below = np.cumsum(mass, axis=1) + np.arange(float(rows.shape[0]))[:, None]
    below[:, -1] = np.arange(1.0, rows.shape[0] + 1.0)
    start = np.zeros(1)
    moment = np.concatenate([start, np.cumsum(moments.ravel())])
    ends = edges + np.arange(float(rows.shape[0]))[:, None]
    cut = np.interp(ends, np.concatenate([start, below.ravel()]), moment)
    return np.asarray((np.diff(cut, axis=1) / np.diff(edges)).reshape(*weights.shape[:-1], edges.size - 1))


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
