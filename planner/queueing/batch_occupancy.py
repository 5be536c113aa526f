"""How many sequences run: a birth-death process whose death rate follows the step time; and the wait for a slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.core import FloatArray, compiled
from planner.queueing.renewal import SMALLEST_SCV

LEAST_SPARE = 1e-9
"""Share of its largest rate that a server is taken to have left when it is offered all of it."""
SMALLEST_CHANCE = 1e-6
"""A smaller chance of finding no slot is lost in rounding."""
BISECTIONS = 50
"""Halvings of [0, 1] to the root of the GI/M/m equation: to rounding."""
TINY = float(np.finfo(float).tiny)
"""Guards the logarithm of a rate of 0."""
LEAST_WAIT = 0.25
"""Least mean wait of a blocked request [mean completions], whatever the approximations say. A choice."""


class RunningDistribution(NamedTuple):
    """Stationary number of running sequences.

    Attributes:
        counts: numbers running, sorted, from 0, shape (N + 1,).
        probabilities: of these, seen at a random instant, shape (N + 1,).
        blocked: probability that an arrival finds no free slot.
        mean: number running.
        std: standard deviation of the number running.
    """

    counts: FloatArray
    probabilities: FloatArray
    blocked: float
    mean: float
    std: float

    @property
    def empty(self) -> float:
        """Probability that nothing runs."""
        return float(self.probabilities[0])

    def seen_by_tokens(self, step_means_s: FloatArray) -> FloatArray:
        """Share of all output tokens that are made with each of `counts[1:]` running, itself among them, shape (N,).

        With n running they are made at the rate n / T(n). For Poisson arrivals that is the number which a request
        finds, and itself on top (PASTA); for regular arrivals it is smaller, for bursts larger.

        Args:
            step_means_s: T at each of `counts` [s], shape (N + 1,).
        """
        made = self.probabilities[1:] * self.counts[1:] / step_means_s[1:]
        return np.asarray(made / made.sum())


class PromptEffect(NamedTuple):
    """Decodes of a server that also serves prompts.

    Attributes:
        dispersion: z if arrivals were Poisson.
        share: of its time that prompts add, in [0, 1).
    """

    dispersion: float
    share: float


ALONE = PromptEffect(1.0, 0.0)
"""Of a server without prompts."""


def running_distribution(
    counts: FloatArray,
    step_means_s: FloatArray,
    token_rate_per_s: float,
    dispersion: float,
    largest_token_rate_per_s: float = math.inf,
    prompts: PromptEffect = ALONE,
) -> RunningDistribution:
    """Distribution of the number running when n of them advance once per T(n).

    Each request needs E[K] steps, so n -> n + 1 at rate lambda and n -> n - 1 at rate n / (E[K] T(n)). The product form

        pi(n) / pi(n - 1) = lambda E[K] T(n) / n

    depends on K only through its mean (processor sharing). Arrivals whose counts are z times as variable as Poisson
    ones turn it into pi(n) / pi(n - 1) = T(n) (lambda E[K] + (z - 1)(n - 1) / T(n - 1)) / (z n): a negative binomial
    (z > 1) or binomial (z < 1) distribution where T is constant. Tokens are made as fast as they are asked for, sum of
    pi(n) n / T(n) = lambda E[K], for every z.

    That is M^X/M/infinity with geometric batches of mean z. Prompts make such batches: who comes in the steps that
    they lengthen begins to decode behind them together.

    Beyond the last slot requests wait. The mass of those states follows from what flows in and out: tokens are made
    at rate n / T(n) with n < N running, and at the largest rate with all slots taken; the mean is lambda E[K]. For
    M/M/c this is Erlang's formula. Of a batch that exceeds the free slots the rest is served with all slots taken, so
    that while some are free fewer prompts lengthen the steps (`_add_waiting`). `blocked` is what an arrival sees: where
    these are Poisson the mass of the last state (PASTA; Erlang's C), else that changed by the factor by which
    `_hayward_blocking` changes.

    Args:
        counts: numbers running 0, 1, 2, ..., N, shape (N + 1,); N need not be whole (where slots also hold prompts).
        step_means_s: T at each of them [s], shape (N + 1,); entry 0 is not used.
        token_rate_per_s: lambda E[K], decode tokens offered [1/s].
        dispersion: z, > 0.
        largest_token_rate_per_s: of a server with all N slots taken [1/s]; infinite where there are more slots than N.
        prompts: beside the decodes.

    Returns:
        Probabilities of the numbers running, and the probability that an arrival finds no slot.

    Source: Kelly, Reversibility and Stochastic Networks (1979), chapter 3 (symmetric queues); z: Eckberg,
    "Generalized peakedness of teletraffic processes", ITC 10 (1983).

    >>> service = running_distribution(np.arange(3.0), np.ones(3), 1.5, 1.0, 2.0)  # M/M/2 at 75 %
    >>> round(service.blocked, 4)  # Erlang C: 2 rho^2 / (1 + rho)
    0.6429
    """
    return _running(counts, step_means_s, token_rate_per_s, dispersion, largest_token_rate_per_s, *prompts)


@compiled(makes_arrays=True)
def _running(
    counts: FloatArray,
    step_means_s: FloatArray,
    token_rate_per_s: float,
    dispersion: float,
    largest: float,
    by_prompts: float,
    share: float,
) -> RunningDistribution:
    z, blocked = max(dispersion, SMALLEST_SCV), 0.0
    distribution = _probabilities(_product_form(counts, step_means_s, token_rate_per_s, z))
    if largest < math.inf:
        _add_waiting(distribution, counts, step_means_s, token_rate_per_s, largest, share)
        blocked = distribution[-1]
        if z != by_prompts:
            load = min(token_rate_per_s / largest, 1.0 - LEAST_SPARE)
            logs = _product_form(counts, step_means_s, token_rate_per_s, 1.0)
            same, other = _hayward_blocking(logs, by_prompts, load), _hayward_blocking(logs, z, load)
            plain = _probabilities(_product_form(counts, step_means_s, token_rate_per_s, by_prompts))
            _add_waiting(plain, counts, step_means_s, token_rate_per_s, largest, share)
            exact = plain[-1] / same if same > SMALLEST_CHANCE else 1.0
            blocked = min(exact * other, 1.0)
    mean, square = 0.0, 0.0
    for state in range(counts.size):
        mean += distribution[state] * counts[state]
    for state in range(counts.size):
        square += distribution[state] * (counts[state] - mean) ** 2
    return RunningDistribution(counts, distribution, blocked, mean, math.sqrt(square))


@compiled(makes_arrays=True)
def _product_form(counts: FloatArray, step_means_s: FloatArray, token_rate_per_s: float, z: float) -> FloatArray:
    """Logarithms of the probabilities of the numbers running over the largest of them, shape (N + 1,)."""
    logs, largest = np.zeros(counts.size), 0.0
    for state in range(1, counts.size):
        more_per_s = (z - 1.0) * counts[state - 1] / step_means_s[max(state - 1, 1)]
        births = max((token_rate_per_s + more_per_s) * step_means_s[state], TINY)
        apart = counts[state] - counts[state - 1]
        logs[state] = logs[state - 1] + apart * math.log(births / (z * counts[state]))
        largest = max(largest, logs[state])
    for state in range(counts.size):
        logs[state] -= largest
    return logs


@compiled(makes_arrays=True)
def _probabilities(logs: FloatArray) -> FloatArray:
    """Probabilities without the states beyond the last, shape (N + 1,)."""
    distribution, total = np.empty(logs.size), 0.0
    for state in range(logs.size):
        distribution[state] = math.exp(logs[state])
        total += distribution[state]
    for state in range(logs.size):
        distribution[state] /= total
    return distribution


@compiled
def _add_waiting(
    distribution: FloatArray,
    counts: FloatArray,
    step_means_s: FloatArray,
    token_rate_per_s: float,
    largest_token_rate_per_s: float,
    share: float,
) -> None:
    """Add those who wait to the last state.

    While slots are free tokens are made at rate R, and prompts admitted at a rate times E[K] that exceeds R by the flow
    F from the last state without anybody waiting to the one before it. Where these are the share a of all that come
    then (the others wait), steps are shorter than T(n): R = r / (1 - s + s a), r the rate at T(n) and s the share of
    the time that prompts add. a lambda E[K] = R + F is solved for a; for single arrivals it is 1.
    """
    last, made, free = counts.size - 1, 0.0, 0.0
    for state in range(last):
        free += distribution[state]
        made += distribution[state] * counts[state] / step_means_s[max(state, 1)]
    made, flow = made / free, distribution[last] * counts[last] / step_means_s[last] / free
    if share > 0.0:
        linear = token_rate_per_s * (1.0 - share) - flow * share
        product = token_rate_per_s * share * (made + flow * (1.0 - share))
        admitted = (math.sqrt(linear**2 + 4.0 * product) - linear) / (2.0 * token_rate_per_s * share)
        made /= 1.0 - share + share * min(admitted, 1.0)
    spare = max(largest_token_rate_per_s - token_rate_per_s, LEAST_SPARE * largest_token_rate_per_s)
    full = max((token_rate_per_s - made) * free / spare, distribution[last])
    for state in range(last):
        distribution[state] /= free + full
    distribution[last] = full / (free + full)


@compiled
def _hayward_blocking(logs: FloatArray, dispersion: float, load: float) -> float:
    """Probability that an arrival of a stream z times as variable as Poisson finds all slots taken.

    Erlang's formula with slots and load divided by z: requests count in bundles of z. The product form becomes
    pi(n)^(1/z), every z-th state of it; beyond the last slot it falls by the load per bundle.

    Args:
        logs: of the product form for z = 1 over the numbers running, shape (N + 1,).
        dispersion: z.
        load: offered over largest rate, < 1.

    Source: Hayward's approximation, Fredericks, "Congestion in blocking systems - a simple approximation technique",
    Bell System Technical Journal 59 (1980) 805-827.
    """
    below = 0.0
    for state in range(logs.size - 1):
        below += math.exp(logs[state] / dispersion)
    waiting = math.exp(logs[-1] / dispersion) / (1.0 - load)
    return waiting / (below / dispersion + waiting)


def idle_share_at_arrivals(load: float, arrival_scv: float) -> float:
    """1 - s in GI/M/m with Gamma gaps: s is the ratio of successive numbers waiting that an arrival sees.

    s = E exp(-m mu (1 - s) gap) = (1 + SCV (1 - s) / load)^(-1/SCV); 1 - load for Poisson arrivals.

    Args:
        load: offered over largest rate, in (0, 1).
        arrival_scv: squared coefficient of variation of the gaps.

    Returns:
        1 - s, in (0, 1).

    Source: Kleinrock, Queueing Systems I (1975), section 6.4.

    >>> round(idle_share_at_arrivals(0.8, 1.0), 9)
    0.2
    >>> round(idle_share_at_arrivals(0.5, 0.0), 4)  # D/M/1: s = exp(-2 (1 - s)) = 0.2032
    0.7968
    """
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        gap = math.log1p(arrival_scv * middle / load) / arrival_scv if arrival_scv > 1e-9 else middle / load
        low, high = (middle, high) if gap + math.log1p(-middle) > 0.0 else (low, middle)
    return (low + high) / 2.0


@dataclass(frozen=True)
class SlotWork:
    """How variable the completions of a server with all slots taken are.

    Attributes:
        slots: sequences at once.
        holding_scv: SCV of the time that a request holds its slot for reasons of its own.
        shared_scv: SCV of what all slots wait for alike (prompts in the steps), as variance of the work of a request.
    """

    slots: float
    holding_scv: float
    shared_scv: float = 0.0


def mean_wait_when_blocked_s(rate_per_s: float, largest_rate_per_s: float, arrival_scv: float, work: SlotWork) -> float:
    """Mean wait [s] for a slot of a request that has to wait.

        (1 / (1 - s) + d / m + g d / (1 - load) + shared / (2 (1 - load))) / largest rate,   d = (holding SCV - 1) / 2

    The first term is exact for GI/M/m (s: `idle_share_at_arrivals`). In one server the rest of a service in progress
    is longer by d; of m the first to end decides, hence d / m. In the queue behind, variability of the holding times
    tells only as far as the queue's memory, (arrival SCV + holding SCV) / 2 / (1 - load)^2 completions, outlasts a
    holding time: the m slots together complete like a Poisson process at first. With y the ratio of that memory to the
    mean residual holding time, the share g = 1 - (1 - exp(-y)) / y of the dispersion counts where d > 0, and the share
    load where d < 0. Exact for M/M/m and, all together, for M/G/1 in heavy traffic.

    Args:
        rate_per_s: arrivals at the server [1/s].
        largest_rate_per_s: its largest stable rate, with all slots taken [1/s].
        arrival_scv: squared coefficient of variation of the gaps between arrivals.
        work: number of slots, and how variable their completions are.

    Source: Whitt, "Approximations for the GI/G/m queue", Production and Operations Management 2 (1993) 114-161; share
    g: dispersion over the time scale of a queue, Whitt and You, Operations Research 66(1) (2018); load where d < 0:
    agrees with Cosmetatos, INFOR 13 (1975) 328-331, and simulation.

    >>> round(mean_wait_when_blocked_s(8.0, 10.0, 1.0, SlotWork(4, 1.0)), 9)  # M/M/c: 1 / (c mu - lambda)
    0.5
    >>> round(mean_wait_when_blocked_s(8.0, 10.0, 1.0, SlotWork(64, 1.0, 0.5)), 9)  # (1 + 1.5) / 2 / (c mu - lambda)
    0.625
    """
    load = min(max(rate_per_s / largest_rate_per_s, LEAST_SPARE), 1.0 - LEAST_SPARE)
    excess = (work.holding_scv - 1.0) / 2.0
    memory = (arrival_scv + work.holding_scv) / 2.0 / (1.0 - load) ** 2
    y = max(memory / (work.slots * (1.0 + work.holding_scv) / 2.0), 1e-6)
    share = 1.0 + math.expm1(-y) / y if excess > 0.0 else load
    waits = 1.0 / idle_share_at_arrivals(load, arrival_scv) + excess / work.slots
    waits += (excess * share + work.shared_scv / 2.0) / (1.0 - load)
    return max(waits, LEAST_WAIT) / largest_rate_per_s
