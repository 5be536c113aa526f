"""What fails and what is left: spare replicas, the loss of a server, and the probability that enough are up.

Two views of the same thing. A plan that must *withstand* failures rates a pool of n replicas at the n - f that are left
after the worst allowed failure (`surviving`). The *availability* view asks how often that many are up, from how often
a replica fails and how long its repair takes (`probability_up`). Replicas fail and are repaired independently of one
another in the second view; that a server takes all its replicas with it is in the first.
"""

from __future__ import annotations

import math

from planner.core import InputError
from planner.supply.types import FleetLimits


def replicas_on_server(gpus_per_replica: int, node_gpus: int) -> int:
    """Most replicas that one server holds a part of, and that its loss therefore takes away.

    Replicas fill servers one after the other. One that fits into a server does not straddle two (its GPUs talk over
    the server's links); a larger one has its servers to itself.

    Equation: max(1, floor(node_gpus / gpus_per_replica)).

    >>> replicas_on_server(2, 8), replicas_on_server(16, 8)
    (4, 1)
    """
    for field, value in (("gpus_per_replica", gpus_per_replica), ("node_gpus", node_gpus)):
        if value < 1:
            raise InputError(field, value, "must be >= 1 GPU", "give the number of GPUs")
    return max(1, node_gpus // gpus_per_replica)


def replicas_that_may_fail(replicas: int, gpus_per_replica: int, node_gpus: int, limits: FleetLimits) -> int:
    """Replicas of a pool that may be down at once without a target being missed, at most all of them.

    Equation: f = min(replicas, spare_replicas + [survives_node_loss] replicas_on_server): the spares and a lost server
    may come together.

    >>> replicas_that_may_fail(10, 2, 8, FleetLimits(spare_replicas=1, survives_node_loss=True))
    5
    """
    _check_count("replicas", replicas)
    lost_with_server = replicas_on_server(gpus_per_replica, node_gpus) if limits.survives_node_loss else 0
    return min(replicas, limits.spare_replicas + lost_with_server)


def surviving(replicas: int, gpus_per_replica: int, node_gpus: int, limits: FleetLimits) -> int:
    """Replicas that a pool of `replicas` is rated at: those left after the worst failure it must withstand.

    0 says that a pool of this size cannot withstand it.

    >>> surviving(10, 2, 8, FleetLimits(spare_replicas=1, survives_node_loss=True))
    5
    """
    return replicas - replicas_that_may_fail(replicas, gpus_per_replica, node_gpus, limits)


def availability(up_h: float, down_h: float) -> float:
    """Share of time that something is up that fails and is repaired again and again.

    Equation: A = MTBF / (MTBF + MTTR), for any distributions of the two times with these means (alternating renewal
    process; S. Ross, *Introduction to Probability Models*, 10th edition, section 7.5.1).

    Args:
        up_h: mean time from repair to failure [h].
        down_h: mean time from failure to repair [h].

    Raises InputError unless up_h > 0 and down_h >= 0.

    >>> round(availability(100.0, 5.0), 3)  # https://www.gristprojectmanagement.us/engineering-2/availability.html
    0.952
    """
    if not (math.isfinite(up_h) and up_h > 0.0):
        raise InputError("up_h", up_h, "must be finite and > 0 h", "give the mean time between failures")
    if not (math.isfinite(down_h) and down_h >= 0.0):
        raise InputError("down_h", down_h, "must be finite and >= 0 h", "give the mean time to repair")
    return up_h / (up_h + down_h)


def probability_up(replicas: int, needed: int, available: float) -> float:
    """Probability that at least `needed` of `replicas` are up, each so with probability `available` and independently.

    Equation: sum_{d=0}^{n-m} C(n, d) (1 - A)^d A^(n-d), the binomial tail (P. A. Kullstam 1981, *Availability, MTBF and
    MTTR for repairable M out of N system*, IEEE Transactions on Reliability,
    doi 10.1109/TR.1981.5221134).

    Raises InputError unless replicas >= 0 and 0 < available <= 1.

    >>> round(probability_up(3, 2, 0.9), 12)  # 3 x 0.81 x 0.1 + 0.729
    0.972
    """
    _check_count("replicas", replicas)
    _check_share("available", available)
    if needed <= 0:
        return 1.0
    if needed > replicas or available >= 1.0:
        return float(needed <= replicas)
    if needed < replicas - needed + 1:  # fewer terms below than above
        return max(0.0, 1.0 - _binomial_sum(replicas, range(needed), available))
    return min(1.0, _binomial_sum(replicas, range(needed, replicas + 1), available))


def _binomial_sum(trials: int, successes: range, chance: float) -> float:
    """Probability of a number of successes within `successes`; in logarithms, because the factors leave the floats."""
    hit, miss, whole = math.log(chance), math.log1p(-chance), math.lgamma(trials + 1)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * hit + (trials - k) * miss)
        for k in successes
    )


def replicas_to_hold(needed: int, available: float, probability: float) -> int:
    """Fewest replicas of which at least `needed` are up with this probability, at any time.

    Equation: min {n >= m: `probability_up` (n, m, A) >= p}; the tail rises with n, so it is found by bisection.

    Raises InputError unless needed >= 0, 0 < available <= 1 and 0 < probability < 1.

    >>> replicas_to_hold(2, 0.9, 0.95), replicas_to_hold(2, 0.9, 0.99)  # tails 0.81, 0.972, 0.9963
    (3, 4)
    """
    _check_count("needed", needed)
    _check_share("available", available)
    _check_probability(probability)
    below, enough = needed - 1, max(1, needed)
    while probability_up(enough, needed, available) < probability:
        below, enough = enough, 2 * enough
    while enough - below > 1:
        middle = (below + enough) // 2
        if probability_up(middle, needed, available) >= probability:
            enough = middle
        else:
            below = middle
    return max(needed, enough)


def replicas_sure(replicas: int, available: float, probability: float) -> int:
    """Most replicas that are up at once with this probability, at any time, of a number of replicas.

    Equation: max {m <= n: `probability_up` (n, m, A) >= p}; the tail falls with m, so it is found by bisection.

    Raises InputError unless replicas >= 0, 0 < available <= 1 and 0 < probability < 1.

    >>> replicas_sure(3, 0.9, 0.95), replicas_sure(3, 0.9, 0.99)  # tails of 3, 2 and 1: 0.729, 0.972, 0.999
    (2, 1)
    """
    _check_count("replicas", replicas)
    _check_share("available", available)
    _check_probability(probability)
    sure, above = 0, replicas + 1
    while above - sure > 1:
        middle = (sure + above) // 2
        if probability_up(replicas, middle, available) >= probability:
            sure = middle
        else:
            above = middle
    return sure


def _check_probability(probability: float) -> None:
    if not 0.0 < probability < 1.0:
        raise InputError("probability", probability, "must lie in (0, 1)", "give e.g. 0.99")


def _check_count(field: str, value: int) -> None:
    if value < 0:
        raise InputError(field, value, "must be >= 0", "give a number of replicas")


def _check_share(field: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise InputError(field, value, "must lie in (0, 1]", "give a share of time")
