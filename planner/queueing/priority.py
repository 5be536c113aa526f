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

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray
from planner.workload import LatencyDistribution

SMALLEST_POWER, LARGEST_POWER = 0.25, 4.0
"""Range in which the exponent of a stretched wait is searched. A choice."""
BISECTIONS = 50
"""Halvings of that range: to rounding."""


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
    rates, work, second = (np.asarray(each, dtype=np.float64) for each in (rates_per_s, mean_work_s, second_moment_s2))
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

        u = classes up to k:
        y = rate_u E[S_u^2] / (2 (1 - rho_u)),  E[Y^2] = 2 y^2 + rate_u E[S_u^3] / (3 (1 - rho_u))
        x = rate_b E[S_b^2] / (2 (1 - rho_u)),  E[X^2] = rate_b E[S_b^3] / (3 (1 - rho_u))
        E[W^2] = (E[Y^2] + 2 x y + E[X^2]) / (1 - rho_a)^2 + (x + y) rate_a E[S_a^2] / (1 - rho_a)^3

    Args:
        rates_per_s: shape (classes,) [1/s].
        moments: E[S], E[S^2], E[S^3] of each class, shape (3, classes) [s, s^2, s^3].
        preemptive: X is 0.

    Source: Kella and Yechiali (1988), section 2; one class is the second moment of Pollaczek and Khinchine.

    >>> priority_second_moments([0.5], [[1.0], [2.0], [6.0]]).tolist()  # M/M/1: 2 rho / (1 - rho)^2
    [4.0]
    """
    rates, (first, second, third) = np.asarray(rates_per_s), np.asarray(moments, dtype=np.float64)
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


def stretched_wait(wait: LatencyDistribution, mean_ratio: float, second_moment_ratio: float) -> LatencyDistribution:
    """A wait w turned into a w^b: the chance of waiting is kept, mean and second moment change by the given ratios.

    For use with `priority_waits` and `priority_second_moments`, as ratios to first come, first served. b is searched
    between 1/4 and 4; the mean is met exactly.

    Args:
        wait: distribution of the wait [s].
        mean_ratio: new mean over old, > 0.
        second_moment_ratio: new second moment over old, > 0.

    Returns:
        Distribution of the new wait [s]; unbounded where the mean ratio is infinite.

    >>> distribution = LatencyDistribution.from_samples([0.0, 1.0, 3.0])
    >>> stretched_wait(distribution, 2.0, 4.0).support_s.round(6).tolist()
    [0.0, 2.0, 6.0]
    """
    if not (np.isfinite(mean_ratio) and np.isfinite(wait.support_s[-1])):
        return LatencyDistribution.unbounded()
    if wait.mean_s <= 0.0:
        return wait
    unit, mass = wait.support_s / wait.mean_s, wait.weights
    wanted = float(unit**2 @ mass) * second_moment_ratio / mean_ratio**2
    low, high = SMALLEST_POWER, LARGEST_POWER
    for _ in range(BISECTIONS):
        power = (low + high) / 2.0
        moved = unit**power
        spread = float(moved**2 @ mass) / float(moved @ mass) ** 2
        low, high = (power, high) if spread < wanted else (low, power)
    moved = unit**power
    return LatencyDistribution.from_samples(moved * (mean_ratio * wait.mean_s / float(moved @ mass)), mass)


def _saturated_rest(rates: FloatArray, work: FloatArray, second: FloatArray, upto: FloatArray) -> FloatArray:
    """Mean rest of the service in progress [s] where the lowest classes fill what those above leave free."""
    first = int(np.flatnonzero(upto >= 1.0)[0])
    free = 1.0 - (float(upto[first - 1]) if first else 0.0)
    busy = float(rates[:first] @ second[:first]) / 2.0 + free * float(second[first] / work[first]) / 2.0
    return np.full(rates.size, busy)
