"""Capacity that is up when it is needed: spot capacity that goes away and comes back, and replicas that may fail.

Instances fail and come back independently of one another. A pool of n replicas that must withstand failures is rated at
the n - f that are left after the worst allowed one. Equations and sources: docs/explanation/money.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from scipy.special import bdtrc

from planner.core import InputError
from planner.supply.types import FleetLimits, PricePolicy, SpotTerms

SPOT = "spot"
"""The commitment whose capacity goes away."""


def spot_availability(terms: SpotTerms) -> float:
    """Share of time that one spot instance is up.

    Equation: A = 1 / (1 + r T), r interruptions per hour of uptime, T hours until a replacement serves: MTBF / (MTBF +
    MTTR) for any distributions of the two times with these means (alternating renewal process; S. Ross, *Introduction
    to Probability Models*, 10th edition, section 7.5.1).

    >>> round(spot_availability(SpotTerms(interruptions_per_hour=0.01, recovery_s=5 * 3600.0)), 3)  # up 100 h, down 5 h
    0.952
    """
    up_h, down_h = 1.0 / terms.interruptions_per_hour, terms.recovery_s / 3600.0
    return up_h / (up_h + down_h)


def spot_usable_share(terms: SpotTerms, instances: int | None) -> float:
    """Share of the spot instances bought that may be counted on, the rest being headroom.

    Equation: m(n) / n with m(n) = `most_up`, A the `spot_availability` and p `SpotTerms.probability`; for n -> infinity
    it tends to A, and for few instances it may be 0. Instances are interrupted independently of one another, which
    holds the better the more zones they are spread over (*SkyServe*, Mao et al. 2025, arXiv 2411.01438, overprovisions
    spot replicas for the same reason).

    Args:
        terms: of the spot offer.
        instances: n >= 1, bought; None: a fleet so large that chance evens out.

    >>> terms = SpotTerms(interruptions_per_hour=1.0, recovery_s=400.0, probability=0.95)  # A = 0.9
    >>> round(spot_usable_share(terms, 3), 3)  # 2 of 3: the tails of 3 and 2 are 0.729 and 0.972
    0.667
    """
    available = spot_availability(terms)
    return available if instances is None else most_up(instances, available, terms.probability) / instances


def least_spot_instances(terms: SpotTerms) -> int:
    """Smallest number of spot instances of which one may be counted on; fewer are worth nothing and are not bought.

    Equation: min {n: 1 - (1 - A)^n >= p}.

    >>> least_spot_instances(SpotTerms(interruptions_per_hour=1.0, recovery_s=400.0, probability=0.95))  # 0.9, 0.99
    2
    """
    down = 1.0 - spot_availability(terms)
    return 1 + bisect_left(range(1, 2**60), terms.probability, key=lambda instances: 1.0 - down**instances)


def most_up(instances: int, available: float, probability: float) -> int:
    """Most instances that are up at once with a probability, at any time, of those there are.

    Equation: max {m <= n: P(Binomial(n, A) >= m) >= p} (P. A. Kullstam 1981, *Availability, MTBF and MTTR for
    repairable M out of N system*, IEEE Transactions on Reliability, doi 10.1109/TR.1981.5221134); the tail falls with
    m, so it is found by bisection.

    >>> most_up(3, 0.9, 0.95), most_up(3, 0.9, 0.99)  # tails of 3, 2 and 1: 0.729, 0.972, 0.999
    (2, 1)
    """
    return bisect_right(
        range(1, instances + 1), -probability, key=lambda up: -float(bdtrc(up - 1, instances, available))
    )


def require_spot_terms(policy: PricePolicy) -> None:
    """Refuse a policy that allows spot and does not say what it is worth.

    Raises:
        InputError: `PricePolicy.spot` is missing.
    """
    if SPOT in policy.commitments and policy.spot is None:
        fix = "give interruptions_per_hour and recovery_s, or take spot out of prices.commitments"
        raise InputError("prices.spot", None, "spot capacity goes away, and it is not said how often", fix)


def replicas_that_may_fail(
    replicas: int, gpus_per_replica: int, node_gpus: int, limits: FleetLimits, servers: int = 1
) -> int:
    """Replicas of a pool that may be down at once without a target being missed, at most all of them.

    The spares and a lost server may come together. The replicas of a pool are spread evenly over the servers of its
    SKU, whatever else runs there. One that fits into a server does not straddle two (its GPUs talk over the server's
    links); a larger one has its servers to itself.

    Equation: f = min(n, spares(n) + [survives_node_loss] min(max(1, floor(node_gpus / gpus_per_replica)),
    ceil(n / servers))).

    Args:
        replicas: of the pool.
        gpus_per_replica: GPUs of each.
        node_gpus: GPUs of one server.
        limits: what the fleet must withstand.
        servers: of that SKU that the fleet has at least; with 1 the pool may be all on one, as far as that has room.

    >>> limits = FleetLimits(spare_replicas=1, survives_node_loss=True)
    >>> replicas_that_may_fail(10, 2, 8, limits), replicas_that_may_fail(10, 2, 8, limits, servers=5)
    (5, 3)
    """
    on_server = min(max(1, node_gpus // gpus_per_replica), -(-replicas // servers))
    return min(replicas, limits.spares(replicas) + (on_server if limits.survives_node_loss else 0))
