"""A distribution of lengths from histograms of lengths: buckets, with the sum and the count of what fell into them.

A bucket (a, b] says how many requests had a + 1 to b tokens, and sum over count is the exact mean. Inside a bucket the
requests stand on a few equally spaced lengths with weights proportional to exp(t u), where u from 0 to 1 is the place
in the bucket and t one number for all buckets, chosen so that the mean of the whole is exactly sum over count. Of all
distributions on these lengths with these bucket counts and the same mean place u it is the one of most entropy, which
assumes least (Jaynes, Physical Review 106, 1957, p. 620, eq. 2-7); t = 0 is even inside every bucket, as
`histogram_quantile` of Prometheus assumes. A mean that the middle lengths do not reach is sought with the ends of the
buckets too.

The last bucket has no upper end: it reaches to `max_tokens`, or to twice the last edge, or as far as the mean needs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError
from planner.traffic.prometheus_series import Histogram
from planner.traffic.trace import compress
from planner.workload import MAX_TOKENS, TokenLengths

Floats = NDArray[np.float64]

CELLS = 2000
"""Most cells of a joint distribution: as many as a scenario takes."""
PLACES = 44
"""About how many lengths stand for one histogram: 44 x 44 is below `CELLS`."""
MOST_PLACES, FEWEST_PLACES = 12, 2
"""Lengths inside one bucket."""
STEEPEST = 2000.0
"""Largest tilt t: at the far end of a bucket a length weighs nothing."""
HALVINGS = 70
"""Of the interval that holds t: far more than a float can tell apart."""
LEAST_SHARE = 1e-12
"""Share of the requests below which a length is left out."""
UNREACHED = 1e-6
"""Relative distance from the mean that is put down to rounding."""


class MarginalLengths(NamedTuple):
    """Lengths of one kind, input or output: weighted whole tokens. Shapes (n,)."""

    tokens: Floats
    weights: Floats

    @property
    def mean(self) -> float:
        """Mean [tokens]."""
        return float(self.tokens @ self.weights / self.weights.sum())


def bucket_lengths(histogram: Histogram, max_tokens: int | None = None) -> MarginalLengths:
    """The distribution of lengths of a histogram: its bucket counts and its mean are met.

    Args:
        histogram: of tokens per request; its edges are whole or are rounded down.
        max_tokens: upper end of the last bucket [tokens].

    Raises InputError where sum, count and buckets contradict one another, or for lengths above `MAX_TOKENS`.

    >>> found = bucket_lengths(Histogram(np.array([100.0, 200.0, np.inf]), np.array([3.0, 1.0, 0.0]), 400.0))
    >>> round(found.mean, 9), float(found.weights[found.tokens <= 100].sum() / found.weights.sum())
    (100.0, 0.75)
    """
    lows, highs = _ends(histogram, max_tokens)
    filled = histogram.counts > 0.0
    lows, highs, counts = lows[filled], highs[filled], histogram.counts[filled]
    if highs.max() > MAX_TOKENS:
        raise InputError("bucket edge", float(highs.max()), f"is above {MAX_TOKENS} tokens", "is it one of lengths?")
    places = int(np.clip(PLACES // counts.size, FEWEST_PLACES, MOST_PLACES))
    for ends in (False, True):
        found = _tilted(_spots(lows, highs, places, ends), counts, histogram.mean)
        if abs(found.mean - histogram.mean) <= UNREACHED * histogram.mean:
            return found
    bound = f"lies outside what the buckets allow, {found.mean:.6g} at the nearest"
    raise InputError("mean length", histogram.mean, bound, "query sum, count and buckets over the same range")


def mean_lengths(mean_tokens: float) -> MarginalLengths:
    """Every request alike as far as whole tokens allow: the two around the mean, so that it is met.

    >>> mean_lengths(10.25).tokens.tolist(), mean_lengths(10.25).weights.tolist()
    ([10.0, 11.0], [0.75, 0.25])
    """
    mean = max(1.0, mean_tokens)
    low, share = float(math.floor(mean)), mean - math.floor(mean)
    if share == 0.0:
        return MarginalLengths(np.array([low]), np.array([1.0]))
    return MarginalLengths(np.array([low, low + 1.0]), np.array([1.0 - share, share]))


def joint_lengths(inputs: MarginalLengths, outputs: MarginalLengths, source: str) -> TokenLengths:
    """Both distributions as independent, in at most `CELLS` cells; up to there the means are kept exactly.

    >>> both = joint_lengths(mean_lengths(100.0), mean_lengths(10.5), "example")
    >>> both.mean_input, both.mean_output, len(both.weights)
    (100.0, 10.5, 2)
    """
    of_input, of_output = np.meshgrid(inputs.tokens, outputs.tokens, indexing="ij")
    weights = np.outer(inputs.weights / inputs.weights.sum(), outputs.weights / outputs.weights.sum())
    return compress(TokenLengths.from_pairs(of_input, of_output, weights, source), CELLS)


def _ends(histogram: Histogram, max_tokens: int | None) -> tuple[Floats, Floats]:
    """Shortest and longest length of every bucket [tokens]; at least one token."""
    highs = np.floor(histogram.edges)
    if not math.isfinite(histogram.edges[-1]):
        highs[-1] = _last_end(histogram, max_tokens)
    lows = np.concatenate([[1.0], np.maximum(highs[:-1] + 1.0, 1.0)])
    return lows, np.maximum(highs, lows)


def _last_end(histogram: Histogram, max_tokens: int | None) -> float:
    last = float(np.floor(histogram.edges[-2])) if histogram.edges.size > 1 else 1.0
    end = float(max_tokens) if max_tokens is not None and max_tokens > last else 2.0 * last
    beyond = float(histogram.counts[-1])
    if beyond <= 0.0:
        return end
    edges = np.concatenate([[0.0], histogram.edges[:-1]])
    below = float(histogram.counts[:-1] @ ((edges[:-1] + edges[1:]) / 2.0))
    needed = (histogram.total - below) / beyond
    return max(end, math.ceil(2.0 * needed - last))


def _spots(lows: Floats, highs: Floats, places: int, ends: bool) -> list[Floats]:
    """Lengths that stand for each bucket, rising: all it has if they are few, else equally spaced ones."""
    found = []
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        width = high - low + 1.0
        if width <= places:
            found.append(np.arange(low, high + 1.0))
        elif ends:
            found.append(np.unique(np.round(np.linspace(low, high, places))))
        else:
            found.append(np.floor(low + width * (np.arange(places) + 0.5) / places))
    return found


def _tilted(spots: list[Floats], counts: Floats, mean: float) -> MarginalLengths:
    """Weights of the lengths in every bucket, tilted until the mean is met or cannot be moved further."""
    tokens = np.concatenate(spots)
    sizes = np.array([each.size for each in spots])
    starts = np.cumsum(sizes) - sizes
    places = np.concatenate([np.linspace(0.0, 1.0, each.size) if each.size > 1 else np.zeros(1) for each in spots])

    def weights(tilt: float) -> Floats:
        raised = np.exp(tilt * places - max(tilt, 0.0) * np.repeat(places[starts + sizes - 1], sizes))
        shares = raised / np.repeat(np.add.reduceat(raised, starts), sizes)
        return np.asarray(shares * np.repeat(counts, sizes), dtype=np.float64)

    low, high = -STEEPEST, STEEPEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if float(weights(middle) @ tokens) < mean * float(counts.sum()):
            low = middle
        else:
            high = middle
    found = weights(high)
    kept = found > LEAST_SHARE * counts.sum()
    return MarginalLengths(tokens[kept], found[kept])
