"""Waits by class and by size in M/G/1 with priorities, as distributions: what moments and real waits are held against.

A class k waits W_k = D_a(Y + X), see `planner.queueing.priority`. The work found (Y + X) is exact; the delay busy
period D_a(v) is v, with probability exp(-rate_a v), or else v and a gamma variable that gives it its exact mean and
variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray, InputError
from planner.queueing import priority_waits, sum_of_independent
from planner.queueing.distributions import condensed_with_atom
from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import LatencyDistribution, probability_slices, tail_edges
from tests.queueing.classic_queues import gamma_slices

START_EDGES = tail_edges(128)
"""Slices of the work found by an arrival, each of which is delayed by its own distribution."""
DELAY_EDGES = tail_edges(12)
"""Slices of that delay."""
SIZE_GROUPS = 12
"""Sizes told apart where the shortest go first; finer towards the long ones."""
LEAST_CHANCE = 1e-6


@dataclass(frozen=True, eq=False)
class PriorityDistribution:
    """What one class sees.

    Attributes:
        wait: arrival to the start of service.
        sojourn: arrival to the end of service, interruptions included.
    """

    wait: LatencyDistribution
    sojourn: LatencyDistribution


@dataclass(frozen=True, eq=False)
class SizeDistribution:
    """What requests of about one size see where the shortest go first.

    Attributes:
        share: of the requests.
        mean_work_s: their mean work [s].
        distribution: their wait and sojourn.
    """

    share: float
    mean_work_s: float
    distribution: PriorityDistribution


def priority_distributions(
    rates_per_s: Sequence[float], works: Sequence[LatencyDistribution], preemptive: bool = False
) -> tuple[PriorityDistribution, ...]:
    """Distributions of wait and sojourn of each class in M/G/1 with priorities, the highest first.

    The work found (Y + X above) is exact; the delay busy period is v, with probability exp(-rate_a v), or else v and a
    gamma variable that gives it its exact mean and variance. Classes that cannot keep up get unbounded distributions.

    Args:
        rates_per_s: of each class [1/s], > 0.
        works: distributions of the service times [s].
        preemptive: an arrival of a higher class interrupts service, which goes on later where it stopped.

    >>> both = priority_distributions([0.25, 0.25], [LatencyDistribution.constant(1.0)] * 2)
    >>> [round(one.wait.mean_s, 3) for one in both]  # 1/4 / (3/4), 1/4 / (3/8)
    [0.333, 0.667]
    """
    rates, mean = np.asarray(rates_per_s, dtype=np.float64), np.array([w.mean_s for w in works])
    second = np.array([float(w.support_s**2 @ w.weights) for w in works])
    loads = rates * mean
    upto = np.cumsum(loads)
    distributions = []
    for k, work in enumerate(works):
        if upto[k] >= 1.0:
            distributions.append(PriorityDistribution(LatencyDistribution.unbounded(), LatencyDistribution.unbounded()))
            continue
        found = mg1_wait_distribution(float(rates[: k + 1].sum()), _mixed(works[: k + 1], rates[: k + 1]))
        if not preemptive and k + 1 < rates.size:
            found = sum_of_independent(found, _rest_below(works[k + 1 :], rates[k + 1 :], 1.0 - float(upto[k])))
        passing = float(rates[:k].sum()), float(upto[k] - loads[k]), float(rates[:k] @ second[:k])
        wait = _delayed(found, *passing)
        sojourn = _delayed(sum_of_independent(found, work), *passing) if preemptive else sum_of_independent(wait, work)
        distributions.append(PriorityDistribution(wait, sojourn))
    return tuple(distributions)


def shortest_first_distributions(
    rate_per_s: float, work: LatencyDistribution, preemptive: bool = False, groups: int = SIZE_GROUPS
) -> tuple[SizeDistribution, ...]:
    """Distributions of wait and sojourn by size where the shortest waiting request goes first, in groups of sizes.

    Args:
        rate_per_s: of all requests [1/s].
        work: distribution of their service time [s].
        preemptive: a shorter arrival interrupts service (by its whole work, not by what is left of it).
        groups: of sizes; within one it is first come, first served.

    The distribution of all requests is the mixture of the groups by share.
    """
    points, mass = work.support_s, work.weights
    slices = probability_slices(points, mass, tail_edges(groups))
    shares, member = slices.weights, slices.member
    parts = [LatencyDistribution.from_samples(points[member == g], mass[member == g]) for g in range(shares.size)]
    distributions = priority_distributions([rate_per_s * share for share in shares], parts, preemptive)
    return tuple(
        SizeDistribution(float(share), part.mean_s, distribution)
        for share, part, distribution in zip(shares, parts, distributions, strict=True)
    )


def shortest_first_waits(rate_per_s: float, sizes_s: ArrayLike, weights: ArrayLike) -> FloatArray:
    """Mean wait [s] of each size where the shortest waiting request goes first, not preemptive.

    rate E[S^2] / 2 / ((1 - rho(< x)) (1 - rho(<= x))), rho(< x) the load of requests shorter than x.

    Args:
        rate_per_s: of all requests [1/s].
        sizes_s: service times, rising, shape (sizes,) [s].
        weights: their probabilities, shape (sizes,).

    Source: Phipps (1956); Schrage and Miller, Operations Research 14 (1966) 670-684.

    >>> shortest_first_waits(0.5, [1.0], [1.0]).tolist()  # one size: M/D/1
    [0.5]
    """
    sizes, mass = np.asarray(sizes_s, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if np.any(np.diff(sizes) < 0.0):
        raise InputError("sizes_s", sizes.tolist(), "must rise", "sort the sizes and their weights together")
    return priority_waits(rate_per_s * mass / mass.sum(), sizes, sizes**2)


def _mixed(works: Sequence[LatencyDistribution], rates: FloatArray) -> LatencyDistribution:
    return LatencyDistribution.mixture(list(zip(works, rates.tolist(), strict=True)))


def _rest_below(works: Sequence[LatencyDistribution], rates: FloatArray, spare: float) -> LatencyDistribution:
    """X: with probability rho_b / spare what is left of a service of a lower class, else 0."""
    mixed = _mixed(works, rates)
    below = float(rates.sum()) * mixed.mean_s
    chance = min(below / spare, 1.0)
    # What is left of a service of length x, met with probability in proportion to x, is even over (0, x).
    parts = (np.arange(8) + 0.5) / 8.0
    rest = np.multiply.outer(mixed.support_s, parts).ravel()
    mass = np.repeat(mixed.weights * mixed.support_s, parts.size)
    return condensed_with_atom(np.append(0.0, rest), np.append(1.0 - chance, chance * mass / mass.sum()))


def _delayed(start: LatencyDistribution, rate_per_s: float, load: float, square: float) -> LatencyDistribution:
    """Distribution of D_a(V): V and all work of the classes above that arrives until it is done.

    Args:
        start: distribution of V.
        rate_per_s: of the classes above.
        load: theirs.
        square: sum of rate E[S^2] over them [s].
    """
    if rate_per_s <= 0.0:
        return start
    short = condensed_with_atom(start.support_s, start.weights, START_EDGES)
    v, mass = short.support_s, short.weights
    some = -np.expm1(-rate_per_s * v)
    busy = some > LEAST_CHANCE
    mean = v[busy] * load / (1.0 - load) / some[busy]
    variance = (v[busy] * square / (1.0 - load) ** 3 + (mean * some[busy]) ** 2) / some[busy] - mean**2
    extra = gamma_slices(mean, np.maximum(variance, 1e-6 * mean**2), DELAY_EDGES)
    late = v[busy][:, None] + extra
    late_mass = (mass[busy] * some[busy])[:, None] * np.diff(DELAY_EDGES)
    prompt_mass = np.where(busy, mass * (1.0 - some), mass)
    return condensed_with_atom(np.concatenate([v, late.ravel()]), np.concatenate([prompt_mass, late_mass.ravel()]))
