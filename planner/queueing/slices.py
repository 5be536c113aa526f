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
    """`slice_means` of samples already sorted along the last axis; `values` broadcasts to `weights`."""
    rows = weights.reshape(-1, weights.shape[-1])
    moments = (weights * values).reshape(rows.shape)
    start = np.zeros((rows.shape[0], 1))
    below = np.concatenate([start, np.cumsum(rows, axis=1)], axis=1)
    moment = np.concatenate([start, np.cumsum(moments, axis=1)], axis=1)
    cut = np.stack([np.interp(edges * b[-1], b, m) / b[-1] for b, m in zip(below, moment, strict=True)])
    return np.asarray((np.diff(cut, axis=1) / np.diff(edges)).reshape(*weights.shape[:-1], edges.size - 1))
