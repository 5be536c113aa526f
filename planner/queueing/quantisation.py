"""Weighted samples summed up by the means of their probability slices: the common currency of the queueing theory."""

from __future__ import annotations

import numpy as np

from planner.queueing.types import FloatArray


def tail_edges(slices: int) -> FloatArray:
    """Edges of `slices` probability slices that get finer towards 1, shape (slices + 1,).

    >>> tail_edges(2).tolist()
    [0.0, 0.75, 1.0]
    """
    return np.asarray(1.0 - np.linspace(1.0, 0.0, slices + 1) ** 2)


def slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """Mean of each probability slice of weighted samples along the last axis.

    Args:
        values: shape (..., n).
        weights: >= 0, broadcastable to `values`, with a positive sum.
        edges: slice edges in [0, 1], shape (slices + 1,).

    Returns shape (..., slices). The means weighted with the slices' masses give the mean of the sample.

    >>> slice_means(np.array([3.0, 1.0, 2.0, 4.0]), np.ones(4), np.array([0.0, 0.5, 1.0])).tolist()
    [1.5, 3.5]
    """
    order = np.argsort(values, axis=-1, kind="stable")
    ranked = np.take_along_axis(np.broadcast_to(weights, values.shape), order, axis=-1)
    return sorted_slice_means(np.take_along_axis(values, order, axis=-1), ranked, edges)


def sorted_slice_means(values: FloatArray, weights: FloatArray, edges: FloatArray) -> FloatArray:
    """`slice_means` of samples already sorted along the last axis; `values` broadcasts to `weights`.

    All rows are laid end to end, each of mass 1, so that one running sum and one interpolation serve them all.
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
    """`slice_means` of many positive samples, shape (rows, n), after sorting them into bins of constant ratio.

    A bin is known by its mean, so that means are exact and slices are off by less than a bin.
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
