"""Histograms of Prometheus, and the distribution of lengths that a histogram of lengths stands for.

`histogram_of` adds up the series of a histogram: buckets, with the sum and the count of what fell into them.
`bucket_lengths` makes lengths of them:

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, InputError
from planner.traffic.compression import compress
from planner.traffic.fields import float_of
from planner.traffic.prometheus_series import MAX_VALUE, Series
from planner.workload import MAX_TOKENS, TokenLengths

CELLS = 2000
"""Most cells of a joint distribution: as many as a scenario takes."""
LENGTHS_PER_HISTOGRAM = 44
"""About how many lengths stand for one histogram: 44 x 44 is below `CELLS`."""
MAX_LENGTHS_PER_BUCKET, MIN_LENGTHS_PER_BUCKET = 12, 2
"""Lengths inside one bucket. A choice."""
MAX_TILT = 2000.0
"""Largest |t| that is tried: at the far end of a bucket a length then weighs nothing."""
BISECTIONS = 70
"""Halvings of the interval that holds t: far more than a float can tell apart."""
NEGLIGIBLE_SHARE = 1e-12
"""Share of the requests below which a length is left out."""
MEAN_TOLERANCE = 1e-6
"""Relative distance from the mean that is put down to rounding."""
BUCKET_TOLERANCE = 0.01
"""Share of the observations by which a bucket may fall short of the one below it: scrapes are not one instant."""


# --- histograms -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Histogram:
    """Observations counted by bucket.

    Attributes:
        edges: upper ends of the buckets, inclusive, rising, the last infinite. Shape (n,).
        counts: observations in each, not cumulative. Shape (n,).
        total: sum of all observations, in their unit.
    """

    edges: FloatArray
    counts: FloatArray
    total: float

    @property
    def count(self) -> float:
        """Observations."""
        return float(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean of the observations: their sum over their number, not affected by the buckets."""
        return self.total / self.count

    def quantile(self, p: float) -> float:
        """The p-quantile, as far as buckets tell: linear inside a bucket, the highest finite edge in the last one.

        The rule of `histogram_quantile` (https://prometheus.io/docs/prometheus/latest/querying/functions/): the lowest
        bucket begins at 0.

        >>> even = Histogram(np.array([1.0, 2.0, np.inf]), np.array([5.0, 5.0, 0.0]), 10.0)
        >>> even.quantile(0.75)
        1.5
        """
        place = self._place(p)
        low, high = self._ends(place)
        if not math.isfinite(high):
            return low if place else math.inf
        rank, before = p * float(self._below[-1]), float(self._below[place - 1]) if place else 0.0
        inside = (rank - before) / float(self.counts[place]) if self.counts[place] > 0.0 else 1.0
        return low + (high - low) * float(inside)

    def bounds(self, p: float) -> tuple[float, float]:
        """Between what values the p-quantile lies: the ends of its bucket, which is all that is known of it.

        >>> Histogram(np.array([1.0, 2.0, np.inf]), np.array([5.0, 5.0, 0.0]), 10.0).bounds(0.75)
        (1.0, 2.0)
        """
        return self._ends(self._place(p))

    @cached_property
    def _below(self) -> FloatArray:
        """Observations up to each edge."""
        return np.cumsum(self.counts)

    def _place(self, p: float) -> int:
        """The bucket of the p-quantile."""
        return int(np.searchsorted(self._below, p * float(self._below[-1]), side="left"))

    def _ends(self, place: int) -> tuple[float, float]:
        """The edges of a bucket."""
        return float(self.edges[place - 1]) if place else 0.0, float(self.edges[place])


def histogram_of(series: Iterable[Series], name: str, rise: Callable[[Series], float]) -> Histogram | None:
    """The histogram called `name` over all its series; `rise` says by how much a series grew. None where empty.

    Raises InputError for buckets that are not labelled with numbers, or that do not grow with their edge.
    """
    totals: dict[str, float] = {}
    by_edge: dict[float, float] = {}
    for item in series:
        if item.name == f"{name}_bucket":
            edge = float_of(item.labels.get("le"))
            if edge is None or math.isnan(edge) or (abs(edge) > MAX_VALUE and edge != math.inf):
                raise InputError(f"{name}_bucket", item.labels.get("le"), "has no upper end le", "query the raw series")
            by_edge[edge] = by_edge.get(edge, 0.0) + rise(item)
        elif item.name in (f"{name}_sum", f"{name}_count"):
            totals[item.name] = totals.get(item.name, 0.0) + rise(item)
    count = totals.get(f"{name}_count", by_edge.get(math.inf, 0.0))
    if not by_edge or count <= 0.0:
        return None
    if f"{name}_sum" not in totals:
        raise InputError(
            f"{name}_sum", "(missing)", "the mean is the sum over the count", "query it beside the buckets"
        )
    return _histogram(name, by_edge, count, totals[f"{name}_sum"])


def _histogram(name: str, by_edge: dict[float, float], count: float, total: float) -> Histogram:
    by_edge.setdefault(math.inf, count)
    edges = np.array(sorted(by_edge))
    counts = np.diff([by_edge[edge] for edge in edges], prepend=0.0)
    if counts.min() < -BUCKET_TOLERANCE * count or not counts.sum() > 0.0:
        bound = "counts fewer up to a higher edge"
        raise InputError(f"{name}_bucket", "not cumulative", bound, "query all buckets over the same range")
    return Histogram(edges, np.maximum(counts, 0.0), total)


# --- lengths --------------------------------------------------------------------------------------------------------


class MarginalLengths(NamedTuple):
    """Lengths of one kind, input or output: weighted whole tokens. Shapes (n,)."""

    tokens: FloatArray
    weights: FloatArray

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

    >>> lengths = bucket_lengths(Histogram(np.array([100.0, 200.0, np.inf]), np.array([3.0, 1.0, 0.0]), 400.0))
    >>> round(lengths.mean, 9), float(lengths.weights[lengths.tokens <= 100].sum() / lengths.weights.sum())
    (100.0, 0.75)
    """
    lows, highs = _bucket_ends(histogram, max_tokens)
    filled = histogram.counts > 0.0
    lows, highs, counts = lows[filled], highs[filled], histogram.counts[filled]
    if highs.max() > MAX_TOKENS:
        raise InputError("bucket edge", float(highs.max()), f"is above {MAX_TOKENS} tokens", "is it one of lengths?")
    per_bucket = int(np.clip(LENGTHS_PER_HISTOGRAM // counts.size, MIN_LENGTHS_PER_BUCKET, MAX_LENGTHS_PER_BUCKET))
    for ends in (False, True):
        lengths = _tilted_lengths(_representatives(lows, highs, per_bucket, ends), counts, histogram.mean)
        if abs(lengths.mean - histogram.mean) <= MEAN_TOLERANCE * histogram.mean:
            return lengths
    bound = f"lies outside what the buckets allow, {lengths.mean:.6g} at the nearest"
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
    input_tokens, output_tokens = np.meshgrid(inputs.tokens, outputs.tokens, indexing="ij")
    weights = np.outer(inputs.weights / inputs.weights.sum(), outputs.weights / outputs.weights.sum())
    return compress(TokenLengths.from_pairs(input_tokens, output_tokens, weights, source), CELLS)


def _bucket_ends(histogram: Histogram, max_tokens: int | None) -> tuple[FloatArray, FloatArray]:
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


def _representatives(lows: FloatArray, highs: FloatArray, per_bucket: int, ends: bool) -> list[FloatArray]:
    """Lengths that stand for each bucket, rising: all it has if they are few, else equally spaced ones."""
    lengths = []
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        width = high - low + 1.0
        if width <= per_bucket:
            lengths.append(np.arange(low, high + 1.0))
        elif ends:
            lengths.append(np.unique(np.round(np.linspace(low, high, per_bucket))))
        else:
            lengths.append(np.floor(low + width * (np.arange(per_bucket) + 0.5) / per_bucket))
    return lengths


def _tilted_lengths(buckets: list[FloatArray], counts: FloatArray, mean: float) -> MarginalLengths:
    """Weights of the lengths in every bucket, tilted until the mean is met or cannot be moved further."""
    tokens = np.concatenate(buckets)
    sizes = np.array([bucket.size for bucket in buckets])
    starts = np.cumsum(sizes) - sizes
    places = np.concatenate([np.linspace(0.0, 1.0, size) if size > 1 else np.zeros(1) for size in sizes.tolist()])

    def weights(tilt: float) -> FloatArray:
        raised = np.exp(tilt * places - max(tilt, 0.0) * np.repeat(places[starts + sizes - 1], sizes))
        shares = raised / np.repeat(np.add.reduceat(raised, starts), sizes)
        return np.asarray(shares * np.repeat(counts, sizes), dtype=np.float64)

    low, high = -MAX_TILT, MAX_TILT
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        if float(weights(middle) @ tokens) < mean * float(counts.sum()):
            low = middle
        else:
            high = middle
    solved = weights(high)
    kept = solved > NEGLIGIBLE_SHARE * counts.sum()
    return MarginalLengths(tokens[kept], solved[kept])
