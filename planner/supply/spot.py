"""Value of spot capacity: how often it is up, and how much of what is bought may be counted on.

Instances fail and come back independently of one another. Equations and sources: docs/explanation/money.md.
"""

from __future__ import annotations

import math

from planner.core import InputError
from planner.supply.types import PricePolicy, SpotTerms

SPOT = "spot"
"""The commitment whose capacity goes away."""


def spot_availability(terms: SpotTerms) -> float:
    """Share of time that one spot instance is up.

    Equation: A = 1 / (1 + r T), r interruptions per hour of uptime, T hours until a replacement serves: the
    `availability` of something that is up for 1/r on average and down for T.

    >>> round(spot_availability(SpotTerms(interruptions_per_hour=0.01, recovery_s=5 * 3600.0)), 3)  # up 100 h, down 5 h
    0.952
    """
    return availability(1.0 / terms.interruptions_per_hour, terms.recovery_s / 3600.0)


def spot_usable_share(terms: SpotTerms, instances: int | None) -> float:
    """Share of the spot instances bought that may be counted on, the rest being headroom.

    Equation: m(n) / n with m(n) = max {m: P(Binomial(n, A) >= m) >= p}, A the `spot_availability` and p
    `SpotTerms.probability`; for n -> infinity it tends to A, and for few instances it may be 0. Instances are
    interrupted independently of one another, which holds the better the more zones they are spread over (*SkyServe*,
    Mao et al. 2025, arXiv 2411.01438, overprovisions spot replicas for the same reason).

    Args:
        terms: of the spot offer.
        instances: n, bought; None: a fleet so large that chance evens out.

    >>> terms = SpotTerms(interruptions_per_hour=1.0, recovery_s=400.0, probability=0.95)  # A = 0.9
    >>> round(spot_usable_share(terms, 3), 3)  # 2 of 3: the tails of 3 and 2 are 0.729 and 0.972
    0.667
    """
    available = spot_availability(terms)
    if instances is None:
        return available
    if instances < 1:
        raise InputError("instances", instances, "must be >= 1", "give how many are bought")
    return most_replicas_up(instances, available, terms.probability) / instances


def least_spot_instances(terms: SpotTerms) -> int:
    """Smallest number of spot instances of which one may be counted on; fewer are worth nothing and are not bought.

    Equation: min {n: P(Binomial(n, A) >= 1) >= p}.

    >>> least_spot_instances(SpotTerms(interruptions_per_hour=1.0, recovery_s=400.0, probability=0.95))  # 0.9, 0.99
    2
    """
    return replicas_needed(1, spot_availability(terms), terms.probability)


def require_spot_terms(policy: PricePolicy) -> None:
    """Refuse a policy that allows spot and does not say what it is worth.

    Raises:
        InputError: `PricePolicy.spot` is missing.
    """
    if SPOT in policy.commitments and policy.spot is None:
        fix = "give interruptions_per_hour and recovery_s, or take spot out of prices.commitments"
        raise InputError("prices.spot", None, "spot capacity goes away, and it is not said how often", fix)


# --- Availability of things that fail and are repaired ---------------------------------------------------------------


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


def replicas_needed(needed: int, available: float, probability: float) -> int:
    """Fewest replicas of which at least `needed` are up with this probability, at any time.

    Equation: min {n >= m: `probability_up` (n, m, A) >= p}; the tail rises with n, so it is found by bisection.

    Raises InputError unless needed >= 0, 0 < available <= 1 and 0 < probability < 1.

    >>> replicas_needed(2, 0.9, 0.95), replicas_needed(2, 0.9, 0.99)  # tails 0.81, 0.972, 0.9963
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


def most_replicas_up(replicas: int, available: float, probability: float) -> int:
    """Most replicas that are up at once with this probability, at any time, of a number of replicas.

    Equation: max {m <= n: `probability_up` (n, m, A) >= p}; the tail falls with m, so it is found by bisection.

    Raises InputError unless replicas >= 0, 0 < available <= 1 and 0 < probability < 1.

    >>> most_replicas_up(3, 0.9, 0.95), most_replicas_up(3, 0.9, 0.99)  # tails of 3, 2 and 1: 0.729, 0.972, 0.999
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
