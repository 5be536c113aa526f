"""How many sequences run: a birth-death law whose death rate is set by the step time; and the wait for a slot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.queueing.types import FloatArray

LEAST_SPARE = 1e-9
"""Share of its largest rate that a server is taken to have left when it is offered all of it."""
SMALLEST_DISPERSION = 0.02


@dataclass(frozen=True, eq=False)
class RunningLaw:
    """Stationary number of running sequences.

    Attributes:
        counts: numbers running, sorted, from 0, shape (N + 1,).
        probabilities: of these, seen at a random instant, shape (N + 1,).
        blocked: probability that an arrival finds no free slot.
    """

    counts: FloatArray
    probabilities: FloatArray
    blocked: float

    @cached_property
    def mean(self) -> float:
        """Mean running."""
        return float(self.probabilities @ self.counts)

    @cached_property
    def std(self) -> float:
        """Standard deviation of the number running."""
        return float(np.sqrt(self.probabilities @ (self.counts - self.mean) ** 2))

    @property
    def empty(self) -> float:
        """Probability that nothing runs."""
        return float(self.probabilities[0])


def running_law(
    counts: FloatArray,
    step_means_s: FloatArray,
    token_rate_per_s: float,
    dispersion: float,
    largest_token_rate_per_s: float | None = None,
) -> RunningLaw:
    """Law of the number running when n of them advance once per T(n).

    Each request needs E[K] steps, so n -> n + 1 at rate lambda and n -> n - 1 at rate n / (E[K] T(n)). The product form

        pi(n) / pi(n - 1) = lambda E[K] T(n) / n

    depends on K only through its mean (processor sharing). Arrivals whose counts are z times as variable as Poisson
    ones turn it into pi(n) / pi(n - 1) = (lambda E[K] T(n) + (z - 1)(n - 1)) / (z n): a negative binomial (z > 1) or
    binomial (z < 1) law where T is constant, with mean E[lambda E[K] T(n + 1)] (Little) for every z.

    Beyond the last slot requests wait. The mass of those states follows from what flows in and out: tokens are made
    at rate n / T(n) with n < N running, and at the largest rate with all slots taken; the mean is lambda E[K]. For
    M/M/c this is Erlang's formula.

    Args:
        counts: numbers running 0, d, 2 d, ..., N d, shape (N + 1,); d < 1 where slots also hold prompts.
        step_means_s: T at each of them [s], shape (N + 1,); entry 0 is not used.
        token_rate_per_s: lambda E[K], decode tokens offered [1/s].
        dispersion: z, > 0.
        largest_token_rate_per_s: of a server with all N slots taken; None where there are more slots than N.

    Source: Kelly, Reversibility and Stochastic Networks (1979), chapter 3 (symmetric queues); z: Eckberg,
    "Generalized peakedness of teletraffic processes", ITC 10 (1983).

    >>> service = running_law(np.arange(3.0), np.ones(3), 1.5, 1.0, 2.0)  # M/M/2 at 75 %
    >>> round(service.blocked, 4)  # Erlang C: 2 rho^2 / (1 + rho)
    0.6429
    """
    here, before = counts[1:], counts[:-1]
    z = max(dispersion, SMALLEST_DISPERSION)
    births = np.maximum(token_rate_per_s * step_means_s[1:] + (z - 1.0) * before, np.finfo(float).tiny)
    weights = np.concatenate([[0.0], np.cumsum(np.log(births / (z * here)))])
    law = np.exp(weights - weights.max())
    law /= law.sum()
    if largest_token_rate_per_s is None:
        return RunningLaw(counts=counts, probabilities=law, blocked=0.0)
    made = float(law[1:-1] @ (here[:-1] / step_means_s[1:-1])) + float(law[-1]) * largest_token_rate_per_s
    spare = max(largest_token_rate_per_s - token_rate_per_s, LEAST_SPARE * largest_token_rate_per_s)
    law[-1] += max(token_rate_per_s - made, 0.0) / spare
    law /= law.sum()
    return RunningLaw(counts=counts, probabilities=law, blocked=float(law[-1]))


def mean_wait_when_blocked_s(
    rate_per_s: float, largest_rate_per_s: float, arrival_scv: float, work_scv: float
) -> float:
    """Mean wait [s] for a slot of a request that has to wait.

    (arrival SCV + work SCV) / 2 / (largest rate - rate), the heavy-traffic form for many servers; exact for M/M/c.
    Source: Whitt, "Approximations for the GI/G/m queue", Production and Operations Management 2 (1993) 114-161; for one
    server Kingman, Proc. Cambridge Philosophical Society 57 (1961) 902-904.

    >>> mean_wait_when_blocked_s(8.0, 10.0, 1.0, 1.0)  # M/M/c: 1 / (c mu - lambda)
    0.5
    """
    return (arrival_scv + work_scv) / 2.0 / (largest_rate_per_s - rate_per_s)
