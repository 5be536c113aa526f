"""Statistics of weighted samples, for the tests of lengths."""

from __future__ import annotations

import math

import numpy as np

from planner.workload import TokenLengths


def quantile(values: np.ndarray, weights: np.ndarray, probability: float) -> float:
    """Smallest value whose cumulative probability reaches `probability`."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum() >= probability - 1e-12
    return float(values[order][np.argmax(reached)])


def correlation(lengths: TokenLengths) -> float:
    p = lengths.probabilities
    x, y = lengths.inputs - lengths.mean_input, lengths.outputs - lengths.mean_output
    return float((x * y) @ p / math.sqrt((x**2 @ p) * (y**2 @ p)))
