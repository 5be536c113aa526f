"""Waits of request classes that one server takes in order of priority: M/G/1 with static priorities.

Class 0 goes first; within a class it is first come, first served. A class k sees the work of classes up to k, less
those above it, which keep passing it while it waits: with a the classes above k, b those below, rho loads per class,

    W_k = D_a(V_k),   V_k = Y + X

Y is the wait in M/G/1 with the classes up to k alone. X is what is left of a request of a lower class in service, with
probability rho_b / (1 - rho_{<=k}) (nothing when such a request is preempted). D_a(v) is the time until the server has
done v seconds of work and all of classes a that came meanwhile (a delay busy period). Its mean is v / (1 - rho_a) and
its variance v rate_a E[S_a^2] / (1 - rho_a)^3.

Sources: Cobham, "Priority assignment in waiting line problems", Operations Research 2 (1954) 70-76; Phipps, "Machine
repair as a priority waiting-line problem", Operations Research 4 (1956) 76-85; Takacs, "Priority queues", Operations
Research 12 (1964) 63-74; Kella and Yechiali, "Priorities in M/G/1 queue with server vacations", Naval Research
Logistics 35 (1988) 23-34; Kleinrock, Queueing Systems II (1976), chapter 3.

Units: seconds and requests per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.core import InputError
from planner.queueing.classic import mg1_wait_distribution
from planner.queueing.distributions import gamma_slices, summed, tail_condensed
from planner.queueing.lengths import grouped
from planner.queueing.quantisation import tail_edges
from planner.queueing.types import FloatArray
from planner.workload import LatencyDistribution

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


def priority_waits(
    rates_per_s: ArrayLike, mean_work_s: ArrayLike, second_moment_s2: ArrayLike, preemptive: bool = False
) -> FloatArray:
    """Mean delay [s] of each class in M/G/1 with priorities, the highest first; infinite where a class cannot keep up.

    The delay is the sojourn less the request's own work. With s_k = rho_0 + ... + rho_k and R_k = sum rate E[S^2] / 2
    over the classes that can be in its way (all; when preemptive those up to k)::

        not preemptive:  R / ((1 - s_{k-1}) (1 - s_k))
        preemptive:      R_k / ((1 - s_{k-1}) (1 - s_k)) + E[S_k] s_{k-1} / (1 - s_{k-1})

    Args:
        rates_per_s: of each class, shape (classes,) [1/s].
        mean_work_s: E[S] of each class, shape (classes,) [s].
        second_moment_s2: E[S^2] of each class, shape (classes,) [s^2].
        preemptive: an arrival of a higher class interrupts service, which goes on later where it stopped.

    Source: Cobham (1954); Kleinrock II (1976), eqs. 3.31 and 3.38.

    >>> priority_waits([0.25, 0.25], [1.0, 1.0], [2.0, 2.0]).round(4).tolist()  # 1/2 / (3/4), 1/2 / (3/8)
    [0.6667, 1.3333]
    """
    rates, work, second = _classes(rates_per_s, mean_work_s, second_moment_s2)
    upto = np.cumsum(rates * work)
    above = np.append(0.0, upto[:-1])
    rest = np.cumsum(rates * second) / 2.0 if preemptive else np.full(rates.size, float(rates @ second) / 2.0)
    kept = upto < 1.0
    if not preemptive and not kept[-1]:
        # The class that is not kept up with is always there: its requests are in the way of those above it.
        rest = _saturated_rest(rates, work, second, upto)
    spare = np.where(kept, (1.0 - above) * (1.0 - upto), 1.0)
    waits = rest / spare
    if preemptive:
        waits = waits + work * above / np.where(kept, 1.0 - above, 1.0)
    return np.asarray(np.where(kept, waits, np.inf))


def priority_second_moments(rates_per_s: ArrayLike, moments: ArrayLike, preemptive: bool = False) -> FloatArray:
    """E[W^2] [s^2] of the wait until service starts, per class; infinite where a class cannot keep up.

    From W = D_a(Y + X) above, with y, x the means of Y and X::

        y = rate_u E[S_u^2] / (2 (1 - rho_u)),  E[Y^2] = 2 y^2 + rate_u E[S_u^3] / (3 (1 - rho_u))    u = classes up to
        k x = rate_b E[S_b^2] / (2 (1 - rho_u)),  E[X^2] = rate_b E[S_b^3] / (3 (1 - rho_u))
        E[W^2] = (E[Y^2] + 2 x y + E[X^2]) / (1 - rho_a)^2 + (x + y) rate_a E[S_a^2] / (1 - rho_a)^3

    Args:
        rates_per_s: shape (classes,) [1/s].
        moments: E[S], E[S^2], E[S^3] of each class, shape (3, classes) [s, s^2, s^3].
        preemptive: X is 0.

    Source: Kella and Yechiali (1988), section 2; one class is the second moment of Pollaczek and Khinchine.

    >>> priority_second_moments([0.5], [[1.0], [2.0], [6.0]]).tolist()  # M/M/1: 2 rho / (1 - rho)^2
    [4.0]
    """
    first, second, third = np.asarray(moments, dtype=np.float64)
    rates, first, second = _classes(rates_per_s, first, second)
    upto = np.cumsum(rates * first)
    kept = upto < 1.0
    above = np.append(0.0, upto[:-1])
    spare, spare_above = np.where(kept, 1.0 - upto, 1.0), np.where(kept, 1.0 - above, 1.0)
    below = 0.0 if preemptive else 1.0
    total2, total3 = float(rates @ second), float(rates @ third)
    sum2, sum3 = np.cumsum(rates * second), np.cumsum(rates * third)
    y, x = sum2 / (2.0 * spare), below * (total2 - sum2) / (2.0 * spare)
    square = 2.0 * y**2 + 2.0 * x * y + (sum3 + below * (total3 - sum3)) / (3.0 * spare)
    passing = np.append(0.0, sum2[:-1])
    return np.asarray(np.where(kept, square / spare_above**2 + (x + y) * passing / spare_above**3, np.inf))


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
    rates, mean, second = _classes(
        rates_per_s, [w.mean_s for w in works], [float(w.support_s**2 @ w.weights) for w in works]
    )
    loads = rates * mean
    upto = np.cumsum(loads)
    distributions = []
    for k, work in enumerate(works):
        if upto[k] >= 1.0:
            distributions.append(PriorityDistribution(LatencyDistribution.unbounded(), LatencyDistribution.unbounded()))
            continue
        found = mg1_wait_distribution(float(rates[: k + 1].sum()), _mixed(works[: k + 1], rates[: k + 1]))
        if not preemptive and k + 1 < rates.size:
            found = summed(found, _rest_below(works[k + 1 :], rates[k + 1 :], 1.0 - float(upto[k])))
        passing = float(rates[:k].sum()), float(upto[k] - loads[k]), float(rates[:k] @ second[:k])
        wait = _delayed(found, *passing)
        sojourn = _delayed(summed(found, work), *passing) if preemptive else summed(wait, work)
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
    _, shares, member = grouped(points, mass, tail_edges(groups))
    parts = [LatencyDistribution.from_samples(points[member == g], mass[member == g]) for g in range(shares.size)]
    distributions = priority_distributions([rate_per_s * share for share in shares], parts, preemptive)
    return tuple(
        SizeDistribution(float(share), part.mean_s, distribution)
        for share, part, distribution in zip(shares, parts, distributions, strict=True)
    )


def stretched_wait(wait: LatencyDistribution, mean_ratio: float, second_moment_ratio: float) -> LatencyDistribution:
    """A wait w turned into a w^b: the chance of waiting is kept, mean and second moment change by the given ratios.

    For use with `priority_waits` and `priority_second_moments`, as ratios to first come, first served. b is searched
    between 1/4 and 4; the mean is met exactly. Raises InputError when a ratio is not positive.

    >>> distribution = LatencyDistribution.from_samples([0.0, 1.0, 3.0])
    >>> stretched_wait(distribution, 2.0, 4.0).support_s.round(6).tolist()
    [0.0, 2.0, 6.0]
    """
    if not (mean_ratio > 0.0 and second_moment_ratio > 0.0):
        raise InputError("mean_ratio", mean_ratio, "ratios must be > 0", "a wait has positive moments")
    if not (np.isfinite(mean_ratio) and np.isfinite(wait.support_s[-1])):
        return LatencyDistribution.unbounded()
    if wait.mean_s <= 0.0:
        return wait
    unit, mass = wait.support_s / wait.mean_s, wait.weights
    wanted = float(unit**2 @ mass) * second_moment_ratio / mean_ratio**2
    low, high = 0.25, 4.0
    for _ in range(50):
        power = (low + high) / 2.0
        moved = unit**power
        spread = float(moved**2 @ mass) / float(moved @ mass) ** 2
        low, high = (power, high) if spread < wanted else (low, power)
    moved = unit**power
    return LatencyDistribution.from_samples(moved * (mean_ratio * wait.mean_s / float(moved @ mass)), mass)


def _classes(
    rates_per_s: ArrayLike, mean_work_s: ArrayLike, second_moment_s2: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    arrays = [np.asarray(a, dtype=np.float64).ravel() for a in (rates_per_s, mean_work_s, second_moment_s2)]
    if len({a.size for a in arrays}) != 1 or arrays[0].size == 0:
        raise InputError("classes", [a.size for a in arrays], "rates and moments differ in number", "give one of each")
    for name, array in zip(("rates_per_s", "mean_work_s", "second_moment_s2"), arrays, strict=True):
        if not (np.isfinite(array).all() and (array >= 0.0).all()):
            raise InputError(name, array.tolist(), "must be finite and >= 0", "drop that class")
    return arrays[0], arrays[1], arrays[2]


def _saturated_rest(rates: FloatArray, work: FloatArray, second: FloatArray, upto: FloatArray) -> FloatArray:
    """Mean rest of the service in progress [s] where the lowest classes fill what those above leave free."""
    first = int(np.flatnonzero(upto >= 1.0)[0])
    free = 1.0 - (float(upto[first - 1]) if first else 0.0)
    busy = float(rates[:first] @ second[:first]) / 2.0 + free * float(second[first] / work[first]) / 2.0
    return np.full(rates.size, busy)


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
    return tail_condensed(np.append(0.0, rest), np.append(1.0 - chance, chance * mass / mass.sum()))


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
    short = tail_condensed(start.support_s, start.weights, START_EDGES)
    v, mass = short.support_s, short.weights
    some = -np.expm1(-rate_per_s * v)
    busy = some > LEAST_CHANCE
    mean = v[busy] * load / (1.0 - load) / some[busy]
    variance = (v[busy] * square / (1.0 - load) ** 3 + (mean * some[busy]) ** 2) / some[busy] - mean**2
    extra = gamma_slices(mean, np.maximum(variance, 1e-6 * mean**2), DELAY_EDGES)
    late = v[busy][:, None] + extra
    late_mass = (mass[busy] * some[busy])[:, None] * np.diff(DELAY_EDGES)
    prompt_mass = np.where(busy, mass * (1.0 - some), mass)
    return tail_condensed(np.concatenate([v, late.ravel()]), np.concatenate([prompt_mass, late_mass.ravel()]))
