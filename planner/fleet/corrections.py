"""What simulation made of the rates of theory in one plan, for plans by theory that are compared with it.

A what-if, another way of buying or a point of a curve is one of many plans and is made by theory, in seconds. Beside a
plan that simulation made larger it would look cheaper than it is. So it starts from what the simulations of that plan
taught: each configuration keeps the share of its rate by theory that it kept there, those not simulated the share that
was expected of them, and pools that held against theory carry what they carried. The request of the plan itself then
comes to the fleet of the plan.

What theory does not see is how traffic bunches: a correction holds for the traffic it was found with, at any rate,
length, price, limit or target, and says nothing of traffic that comes otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.core import Frozen
from planner.serving import Role
from planner.workload import Workload


class TrafficKind(Frozen):
    """How requests come, as far as corrections can be carried over.

    Attributes:
        arrivals: kind of process: renewal, recording or closed loop.
        drifts: whether its rate varies beyond that.
    """

    arrivals: str
    drifts: bool


def traffic_kind(workload: Workload) -> TrafficKind:
    """How the requests of a workload come."""
    arrivals = workload.arrivals
    drifts = getattr(arrivals, "drift", None) is not None
    return TrafficKind(arrivals=type(arrivals).__name__, drifts=drifts)


class KeptShare(Frozen):
    """Share of its rate by theory that a configuration kept.

    Attributes:
        service: it serves.
        role: of its pool.
        family: it belongs to.
        configuration: of its replicas.
        share: 0 to 1.
    """

    service: str
    role: Role
    family: str
    configuration: str
    share: float


class ExpectedShare(Frozen):
    """Share of their rates by theory that configurations not simulated are expected to keep: that of the best tried.

    Attributes:
        service: they serve.
        role: of their pools.
        share: 0 to 1.
    """

    service: str
    role: Role
    share: float


class HeldPool(Frozen):
    """A pool that held although theory says that it would not.

    Attributes:
        service: it served.
        configuration: of its replicas.
        surviving: replicas.
        ratios: by slice, the rate that it carried over that of theory.
    """

    service: str
    configuration: str
    surviving: int
    ratios: Mapping[str, float]


class Corrections(Frozen):
    """What simulation taught about the rates of theory. By names, so that it holds for other requests too.

    Attributes:
        traffic: how requests came.
        kept: by the configurations that missed a target.
        expected: of the others.
        held: pools of the fleet that carried more than theory says.
        deviations: that the fleet was planned with beyond those of the confidence asked for.
    """

    traffic: TrafficKind
    kept: tuple[KeptShare, ...] = ()
    expected: tuple[ExpectedShare, ...] = ()
    held: tuple[HeldPool, ...] = ()
    deviations: float = 0.0

    def of(self, workload: Workload) -> Corrections:
        """These, or none where requests come otherwise."""
        kind = traffic_kind(workload)
        return self if kind == self.traffic else Corrections(traffic=kind, deviations=self.deviations)

    def share_of(self, service: str, role: Role, configuration: str, surviving: int) -> float:
        """Of the rate that a pool of the plan's fleet has by theory, the share it keeps; more where it held more.

        Args:
            service: it serves.
            role: of the pool.
            configuration: of its replicas, as `pool_name` has it.
            surviving: replicas that are left when those that may fail have failed.
        """
        kept = [one.share for one in self.kept if (one.service, one.configuration) == (service, configuration)]
        expected = [one.share for one in self.expected if (one.service, one.role) == (service, role)]
        held = [
            max(pool.ratios.values())
            for pool in self.held
            if (pool.service, pool.configuration, pool.surviving) == (service, configuration, surviving)
        ]
        return max(held + (kept or expected or [1.0])[:1])
