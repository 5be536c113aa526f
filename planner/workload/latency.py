"""A latency distribution: what both the queueing model and the simulator answer with.

Stored as the support points of a weighted empirical distribution. An analytic distribution is discretised before it
gets here; a simulated one arrives as its samples. One representation, so the two can be compared by anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.core import FloatArray, InputError

ROW_POINTS = 8
"""Points of each group's distribution within an E2E, and between two known percentiles. A choice of resolution."""
MOST_BATCHES = 20
"""Most batches of consecutive requests that a confidence interval is made of (Law, Simulation Modeling and Analysis,
ch. 9)."""
FEWEST_BATCHES = 5
"""Batches below which there is no interval. A choice."""
LONG_TAIL = 10.0
"""Mean number of requests beyond the percentile in one batch below which fewer, longer batches are taken. With 20 short
ones 95 % intervals of a p99 held the truth of a queue at load 0.7 in 61 to 79 of 100 runs of 2250 to 9000 requests;
with these in 81 to 91."""
FEWEST_IN_TAIL = 2.0
"""Least mean number of requests beyond the percentile in one batch: 1000 requests for a p99. A choice."""
STUDENT_95 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262, 11: 2.228, 12: 2.201}
STUDENT_95 |= {13: 2.179, 14: 2.160, 15: 2.145, 16: 2.131, 17: 2.120, 18: 2.110, 19: 2.101, 20: 2.093}
"""97.5 % points of Student's t with b - 1 degrees of freedom, by b (any table)."""


class MadeLater:
    """A record whose fields, none of which has a default, may be computed when one of them is looked at."""

    @classmethod
    def made_by(cls, make: Callable[[], Self]) -> Self:
        """The record that `make` answers with, which is asked once.

        Args:
            make: computes it.
        """
        record = object.__new__(cls)
        record.__dict__["_make"] = make
        return record

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """A field that was not computed so far."""
        names = self.__dataclass_fields__
        if name not in names or "_make" not in self.__dict__:
            raise AttributeError(name)
        made = self.__dict__.pop("_make")()
        self.__dict__.update({each: getattr(made, each) for each in names})
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        """State that is pickled: the fields, not how they are computed."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, eq=False)
class LatencyDistribution(MadeLater):
    """A non-negative latency [s] as sorted support points and their probabilities.

    Build with `from_samples`; the fields are sorted and the weights sum to 1.

    >>> d = LatencyDistribution.from_samples([1.0, 2.0, 3.0, 4.0])
    >>> d.mean_s, d.quantile_s(0.5), d.cdf(2.5)
    (2.5, 2.0, 0.5)
    """

    support_s: FloatArray
    weights: FloatArray

    @classmethod
    def from_samples(cls, samples_s: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """From latencies [s], shape (n,), and optional non-negative weights, shape (n,).

        Raises InputError when empty, not finite, negative, or when the weights do not sum to more than 0.
        """
        values = np.asarray(samples_s, dtype=np.float64).ravel()
        mass = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
        if values.size == 0 or values.size != mass.size:
            raise InputError("latency samples", values.size, "needs at least one sample and one weight each")
        if not 0.0 <= values.min() <= values.max() < np.inf:
            raise InputError("latency samples", float(values.min()), "must be finite and >= 0 s")
        total = mass.sum()
        if mass.min() < 0.0 or not total > 0.0:
            raise InputError("latency weights", float(total), "must be >= 0 and sum to more than 0")
        order = np.argsort(values, kind="stable")
        return cls(support_s=values[order], weights=mass[order] / total)

    @classmethod
    def later(cls, make: Callable[[], Self], mean_s: float | None = None) -> Self:
        """The distribution that `make` answers with, which is asked when something of it is looked at.

        Args:
            make: computes it.
            mean_s: its mean [s], where that is known before.

        >>> d = LatencyDistribution.later(lambda: LatencyDistribution.constant(2.0))
        >>> d.mean_s
        2.0
        """
        distribution = cls.made_by(make)
        distribution.__dict__["_mean_s"] = mean_s
        return distribution

    @classmethod
    def from_percentiles(cls, mean_s: float, percentiles_s: Mapping[float, float]) -> Self:
        """A distribution from its mean [s] and latencies [s] by rising percentile, in (0, 1).

        Between two percentiles latencies rise linearly, from 0 on; beyond the last they equal it. Where one is
        infinite, all are.

        >>> d = LatencyDistribution.from_percentiles(0.7, {0.5: 1.0, 0.9: 2.0})
        >>> d.mean_s, d.quantile_s(0.25), d.quantile_s(0.5), d.quantile_s(0.9)
        (0.7, 0.5, 1.0, 2.0)
        """
        knots, latencies_s = [0.0, *percentiles_s], [0.0, *percentiles_s.values()]
        if not np.all(np.isfinite([mean_s, *latencies_s])):
            return cls.unbounded()
        shares = np.concatenate([np.linspace(a, b, ROW_POINTS + 1)[1:] for a, b in pairwise(knots)])
        weights = np.diff([0.0, *shares[:-1], 1.0])
        return cls.later(lambda: cls.from_samples(np.interp(shares, knots, latencies_s), weights), mean_s)

    @classmethod
    def constant(cls, value_s: float) -> Self:
        """All mass at one latency [s]."""
        return cls.from_samples([value_s])

    @classmethod
    def unbounded(cls) -> Self:
        """The latency of an unstable queue: every quantile is infinite and no request ever meets a target."""
        return cls(support_s=np.array([np.inf]), weights=np.array([1.0]))

    @classmethod
    def mixture(cls, components: Sequence[tuple[Self, float]]) -> Self:
        """The distribution of a request drawn from each of (distribution, weight) in proportion to its weight."""
        kept = [(latency, weight) for latency, weight in components if weight > 0.0]
        if len(kept) == 1:
            return kept[0][0]
        if not all(np.isfinite(latency.support_s[-1]) for latency, _ in kept):
            return cls.unbounded()
        return cls.from_samples(
            np.concatenate([latency.support_s for latency, _ in kept]),
            np.concatenate([latency.weights * weight for latency, weight in kept]),
        )

    @classmethod
    def independent_sum(cls, *terms: Self, points: int = 256) -> Self:
        """The distribution of the sum of independent latencies, each first condensed to `points` equal-mass points."""
        if not all(np.isfinite(term.support_s[-1]) for term in terms):
            return cls.unbounded()
        total = terms[0].condensed(points)
        for term in terms[1:]:
            other = term.condensed(points)
            sums = np.add.outer(total.support_s, other.support_s).ravel()
            masses = np.multiply.outer(total.weights, other.weights).ravel()
            total = cls.from_samples(sums, masses).condensed(points)
        return total

    def condensed(self, points: int = 256) -> Self:
        """At most `points` support points of equal mass, each the conditional mean of its slice: keeps the mean."""
        if self.support_s.size <= points:
            return self
        edges = np.linspace(0.0, 1.0, points + 1)
        mass_below = np.concatenate([[0.0], np.cumsum(self.weights)])
        moment_below = np.concatenate([[0.0], np.cumsum(self.weights * self.support_s)])
        moments = np.diff(np.interp(edges, mass_below / mass_below[-1], moment_below))
        return type(self)(support_s=np.maximum.accumulate(moments * points), weights=np.full(points, 1.0 / points))

    @property
    def mean_s(self) -> float:
        """Mean [s]."""
        known = self.__dict__.get("_mean_s")
        return float(self.support_s @ self.weights if known is None else known)

    @property
    def std_s(self) -> float:
        """Standard deviation [s]."""
        if not np.isfinite(self.support_s[-1]):
            return float("inf")
        return float(np.sqrt((self.support_s - self.mean_s) ** 2 @ self.weights))

    def quantile_s(self, probability: float) -> float:
        """Smallest support point [s] whose cumulative probability reaches `probability`, in (0, 1]."""
        if not 0.0 < probability <= 1.0:
            raise InputError("percentile", probability, "must lie in (0, 1]", "write 0.99 for p99")
        index = int(np.searchsorted(np.cumsum(self.weights), probability - 1e-12))
        return float(self.support_s[min(index, self.support_s.size - 1)])

    def cdf(self, latency_s: float) -> float:
        """P(latency <= latency_s)."""
        return float(self.weights[: np.searchsorted(self.support_s, latency_s, side="right")].sum())


@dataclass(frozen=True, eq=False)
class JointDistribution(MadeLater):
    """TTFT and TPOT of a request together: independent of each other once its prompt and its output length are known.

    Attributes:
        first_s: TTFT [s] of each of Q prompt groups at A points, shape (Q, A).
        first_mass: probability of each point, shape (A,).
        token_s: TPOT [s] of each of G output groups at B points, shape (G, B).
        token_mass: probability of each point, shape (B,).
        weights: probability of an output and a prompt group together, shape (G, Q), sums to 1.
        prompts: mean prompt [tokens] of each prompt group, rising, shape (Q,).
        gaps: mean output tokens less one of each output group, shape (G,).
        levels: of a load that varies: points of TTFT and of TPOT stand in so many equal blocks, each of one mass in
            both, and a request has both from one block.
    """

    first_s: FloatArray
    first_mass: FloatArray
    token_s: FloatArray
    token_mass: FloatArray
    weights: FloatArray
    prompts: FloatArray
    gaps: FloatArray
    levels: int

    @classmethod
    def independent(cls, ttft: LatencyDistribution, tpot: LatencyDistribution) -> Self:
        """TTFT and TPOT that are independent of each other."""
        certain = np.ones((1, 1))
        return cls(
            first_s=ttft.support_s[None, :],
            first_mass=ttft.weights,
            token_s=tpot.support_s[None, :],
            token_mass=tpot.weights,
            weights=certain,
            prompts=certain[0],
            gaps=certain[0],
            levels=1,
        )

    def within(self, ttft_s: float, tpot_s: float) -> float:
        """P(TTFT <= ttft_s and TPOT <= tpot_s).

        >>> half = LatencyDistribution.from_samples([1.0, 3.0])
        >>> JointDistribution.independent(half, half).within(2.0, 2.0)
        0.25
        """
        if self.levels > 1:
            return self._within_levels(ttft_s, tpot_s)
        first = (self.first_s <= ttft_s) @ self.first_mass
        token = (self.token_s <= tpot_s) @ self.token_mass
        return float(token @ self.weights @ first)

    def _within_levels(self, ttft_s: float, tpot_s: float) -> float:
        """The same, level by level."""
        chances = []
        for points_s, mass, within_s in (
            (self.first_s, self.first_mass, ttft_s),
            (self.token_s, self.token_mass, tpot_s),
        ):
            inside = ((points_s <= within_s) * mass).reshape(points_s.shape[0], self.levels, -1)
            chances.append(inside.sum(axis=2))
        first, token = chances
        mass = self.first_mass.reshape(self.levels, -1).sum(axis=1)
        return float(((self.weights.T @ token) * first / mass).sum())

    @property
    def mean_e2e_s(self) -> float:
        """Mean of `e2e` [s], where the load does not vary."""
        first_s = self.weights.sum(axis=0) @ (self.first_s @ self.first_mass)
        return float(first_s + self.weights.sum(axis=1) @ (self.gaps * (self.token_s @ self.token_mass)))

    def of_lengths(self, prompts: ArrayLike, gaps: ArrayLike, probabilities: ArrayLike) -> Self:
        """The same server seen by other requests: each goes to the nearest prompt group and the nearest output group.

        Args:
            prompts: input tokens, shape (n,).
            gaps: output tokens less one, shape (n,).
            probabilities: shape (n,).
        """
        weights = np.zeros_like(self.weights)
        np.add.at(
            weights, (nearest_groups(self.gaps, gaps), nearest_groups(self.prompts, prompts)), np.asarray(probabilities)
        )
        return replace(self, weights=weights / weights.sum())

    @property
    def ttft(self) -> LatencyDistribution:
        """TTFT alone."""
        chances = np.outer(self.weights.sum(axis=0), self.first_mass)
        return LatencyDistribution.from_samples(self.first_s, chances)

    @property
    def tpot(self) -> LatencyDistribution:
        """TPOT alone."""
        chances = np.outer(self.weights.sum(axis=1), self.token_mass)
        return LatencyDistribution.from_samples(self.token_s, chances)

    @property
    def e2e(self) -> LatencyDistribution:
        """TTFT + (output tokens - 1) * TPOT."""
        first = _condensed_rows(self.first_s, self.first_mass)
        token = _condensed_rows(self.token_s, self.token_mass) * self.gaps[:, None]
        output, prompt = np.nonzero(self.weights)
        total = first[prompt][:, :, None] + token[output][:, None, :]
        chances = np.broadcast_to(self.weights[output, prompt][:, None, None], total.shape)
        return LatencyDistribution.from_samples(total, chances)


def nearest_groups(groups: FloatArray, values: ArrayLike) -> NDArray[np.intp]:
    """Index of the nearest of the group means for each value."""
    order = np.argsort(groups, kind="stable")
    middles = (groups[order][1:] + groups[order][:-1]) / 2.0
    return order[np.searchsorted(middles, np.asarray(values, dtype=np.float64))]


def _condensed_rows(points: FloatArray, mass: FloatArray) -> FloatArray:
    """Each row's distribution as `ROW_POINTS` equal-mass points that keep its mean, shape (rows, ROW_POINTS)."""
    below = np.append(0.0, np.cumsum(mass))
    order = np.argsort(points, axis=1, kind="stable")
    edges = np.linspace(0.0, below[-1], ROW_POINTS + 1)
    rows = []
    for row, places in zip(points, order, strict=True):
        reached = np.append(0.0, np.cumsum(mass[places]))
        moments = np.append(0.0, np.cumsum(mass[places] * row[places]))
        rows.append(np.diff(np.interp(edges, reached, moments)) * ROW_POINTS / below[-1])
    return np.stack(rows)


def batch_quantile_interval(samples_s: ArrayLike, probability: float) -> tuple[float, float] | None:
    """95 % confidence interval [s] of a percentile of a correlated series of latencies, by sectioning.

    The series, in order of arrival, is cut into b batches; with q the percentile of all and q_i that of batch i the
    interval is q +- t(b - 1, 97.5 %) sqrt(sum (q_i - q)^2 / (b (b - 1))). Batches much longer than the memory of the
    queue are nearly independent. Source: Asmussen and Glynn, Stochastic Simulation (2007), section III.5 (sectioning).

    Returns None when the series is too short for five batches that each reach beyond the percentile.

    >>> even = np.tile(np.arange(1.0, 101.0), 40)
    >>> batch_quantile_interval(even, 0.5)
    (50.0, 50.0)
    """
    values = np.asarray(samples_s, dtype=np.float64).ravel()
    in_tail = values.size * min(probability, 1.0 - probability)
    if in_tail < FEWEST_BATCHES * FEWEST_IN_TAIL * (1.0 - 1e-9):
        return None
    batches = min(MOST_BATCHES, max(FEWEST_BATCHES, int(in_tail / LONG_TAIL)))
    whole = LatencyDistribution.from_samples(values).quantile_s(probability)
    cuts = np.array_split(values, batches)
    quantiles = [LatencyDistribution.from_samples(batch).quantile_s(probability) for batch in cuts]
    spread = float(np.sqrt(np.square(np.subtract(quantiles, whole)).sum() / (batches * (batches - 1))))
    half = STUDENT_95[batches] * spread
    return max(0.0, whole - half), whole + half
