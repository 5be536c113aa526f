"""A latency distribution: what both the queueing model and the simulator answer with.

Stored as the support points of a weighted empirical law. An analytic law is discretised before it gets
here; a simulated one arrives as its samples. One representation, so the two can be compared by anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import InputError


@dataclass(frozen=True, eq=False)
class LatencyDistribution:
    """A non-negative latency [s] as sorted support points and their probabilities.

    Build with `from_samples`; the fields are sorted and the weights sum to 1.

    >>> d = LatencyDistribution.from_samples([1.0, 2.0, 3.0, 4.0])
    >>> d.mean_s, d.quantile_s(0.5), d.cdf(2.5)
    (2.5, 2.0, 0.5)
    """

    support_s: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def from_samples(cls, samples_s: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """From latencies [s], shape (n,), and optional non-negative weights, shape (n,).

        Raises InputError when empty, not finite, negative, or when the weights do not sum to more than 0.
        """
        values = np.asarray(samples_s, dtype=np.float64).ravel()
        mass = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
        if values.size == 0 or values.size != mass.size:
            raise InputError("latency samples", values.size, "needs at least one sample and one weight each")
        if not np.all(np.isfinite(values)) or values.min() < 0.0:
            raise InputError("latency samples", float(values.min()), "must be finite and >= 0 s")
        total = mass.sum()
        if mass.min() < 0.0 or not total > 0.0:
            raise InputError("latency weights", float(total), "must be >= 0 and sum to more than 0")
        order = np.argsort(values, kind="stable")
        return cls(support_s=values[order], weights=mass[order] / total)

    @classmethod
    def constant(cls, value_s: float) -> Self:
        """All mass at one latency [s]."""
        return cls.from_samples([value_s])

    @classmethod
    def unbounded(cls) -> Self:
        """The latency of an unstable queue: every quantile is infinite and no request ever meets a target."""
        return cls(support_s=np.array([np.inf]), weights=np.array([1.0]))

    @classmethod
    def mixture(cls, parts: Sequence[tuple[Self, float]]) -> Self:
        """The law of a request drawn from each distribution with probability proportional to its weight."""
        kept = [(part, weight) for part, weight in parts if weight > 0.0]
        if len(kept) == 1:
            return kept[0][0]
        if not all(np.isfinite(part.support_s[-1]) for part, _ in kept):
            return cls.unbounded()
        return cls.from_samples(
            np.concatenate([part.support_s for part, _ in kept]),
            np.concatenate([part.weights * weight for part, weight in kept]),
        )

    @classmethod
    def independent_sum(cls, *terms: Self, points: int = 256) -> Self:
        """The law of the sum of independent latencies, each first condensed to `points` equal-mass points."""
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
        return float(self.support_s @ self.weights)

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
