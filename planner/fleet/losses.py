"""Does the fleet survive the loss of a replica, or of a server? By theory, without planning again.

Each pool in turn loses one replica, or all pools what they have on one server (`planner.fleet.packing`); the loss that
hurts most is the answer. A deployment keeps its traffic with what is left; where several serve the same slices, each
takes a share in proportion to what it still sustains. Latencies [s] are those after queues have settled, in the period
of the largest demand, with the rest of the fleet as planned.

It is judged as the plan was: with step times as slow as that reckons with (`planner.fleet.confidence`), and with so
much more traffic that theory misses as much as the simulation did. What may fail (`FleetLimits`) is what the plan was
verified without: it is not evaluated again, and what leaves more holds as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits

from planner.core import number_of
from planner.fleet.confidence import at_factor
from planner.fleet.packing import PackedPool, lost_with_a_server, packed_replicas
from planner.fleet.pairing import shared_rates
from planner.fleet.simulation import evaluated
from planner.fleet.types import Loss, LossOf, PlannedDeployment, TargetCheck
from planner.fleet.verification import ScopedSlo, routed_workload, target_checks, violated_metrics
from planner.traffic import DemandSlice


def worst_losses(
    deployments: Sequence[PlannedDeployment],
    slow: Sequence[PlannedDeployment],
    factors: Sequence[float],
    slos: Sequence[ScopedSlo],
    slices: Mapping[str, DemandSlice],
    bought: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Loss, ...]:
    """The replica and the server whose loss hurts most.

    Args:
        deployments: the fleet, with step times as estimated.
        slow: the same with step times as slow as the fleet was planned for, simulated or not.
        factors: of each deployment, that on its rate at which theory misses as much as its simulation did.
        slos: its targets.
        slices: of the traffic, by name.
        bought: GPUs of every server that is bought, by SKU; None: as many as the replicas take.
    """
    by_place = {
        (place, index): pool
        for place, planned in enumerate(deployments)
        for index, pool in enumerate(planned.deployment.pools)
    }
    packing = packed_replicas([PackedPool.of(pool) for pool in by_place.values()], bought)
    failures = {
        LossOf.REPLICA: [{pool: 1} for pool in by_place],
        LossOf.SERVER: [
            {pool: lost for pool, lost in zip(by_place, on_server, strict=True) if lost}
            for on_server in lost_with_a_server(packing)
        ],
    }
    with threadpool_limits(limits=1, user_api="blas"):  # as for the plan, after which this may be asked
        return tuple(
            _worst([_Failure(of, slow, factors, lost) for lost in failures[of]], deployments, slos, slices)
            for of in LossOf
        )


def _worst(
    failures: Sequence[_Failure],
    estimated: Sequence[PlannedDeployment],
    slos: Sequence[ScopedSlo],
    slices: Mapping[str, DemandSlice],
) -> Loss:
    """The failure that hurts most where steps are slow, and what it does to the fleet as estimated."""
    found = ((failure, _after(failure, slos, slices)) for failure in failures)
    failure, slow = max(found, key=lambda each: each[1].severity)
    if slow.gone:
        return Loss(failure.of, failure.words, False, False, None, math.inf, math.inf, slow.gone)
    expected = _after(replace(failure, deployments=estimated), slos, slices)
    as_estimated = slow.holds or expected.holds
    worst = slow.worst
    if worst is None:
        least_s, slow_s = (0.0 if holds else math.inf for holds in (as_estimated, slow.holds))
        return Loss(failure.of, failure.words, slow.holds, as_estimated, None, least_s, slow_s)
    alike = (check for check in expected.checks if (check.of, check.target) == (worst.of, worst.target))
    expected_s = max(check.predicted_s for check in alike)
    return Loss(
        failure.of, failure.words, slow.holds, as_estimated, worst.target, expected_s, worst.predicted_s, worst.of
    )


def single_replica_warnings(deployments: Sequence[PlannedDeployment]) -> tuple[str, ...]:
    """Pools of one replica that no other deployment stands in for."""
    several = len({planned.service for planned in deployments}) > 1
    return tuple(
        f"{f'{planned.service}: ' if several else ''}{pool.role} pool of 1 replica: its loss stops the service"
        for place, planned in enumerate(deployments)
        for pool in planned.deployment.pools
        if pool.replicas == 1 and len(_alike(deployments, place)) == 1
    )


def _alike(deployments: Sequence[PlannedDeployment], place: int) -> list[int]:
    """Places of the deployments that serve the same slices as one of them, itself included."""
    names = deployments[place].slices.keys()
    return [number for number, other in enumerate(deployments) if other.slices.keys() == names]


@dataclass(frozen=True)
class _Failure:
    """Replicas lost at once, by the place of their deployment in the fleet and of their pool in that."""

    of: LossOf
    deployments: Sequence[PlannedDeployment]
    factors: Sequence[float]
    lost: Mapping[tuple[int, int], int]

    @property
    def words(self) -> str:
        """E.g. ``1 of 8 prefill replicas and 1 of 4 decode replicas``."""
        several = len({planned.service for planned in self.deployments}) > 1
        parts = []
        for (place, index), lost in self.lost.items():
            planned = self.deployments[place]
            pool = planned.deployment.pools[index]
            of = f" of {planned.service}" if several else ""
            parts.append(f"{lost} of {number_of(pool.replicas, f'{pool.role} replica')}{of}")
        return " and ".join(parts)

    @property
    def places(self) -> list[int]:
        """Of the deployments that lose replicas."""
        return list(dict.fromkeys(place for place, _ in self.lost))

    def left(self, number: int) -> tuple[int, ...]:
        """Replicas of each pool of a deployment that are left."""
        pools = self.deployments[number].deployment.pools
        return tuple(pool.replicas - self.lost.get((number, index), 0) for index, pool in enumerate(pools))

    @property
    def more_than_planned(self) -> list[int]:
        """Of every pool of what loses some, replicas left beyond those that it was verified with."""
        return [
            left - rated.replicas
            for place in self.places
            for left, rated in zip(self.left(place), self.deployments[place].surviving.pools, strict=True)
        ]

    def sustained_per_s(self, number: int) -> float:
        """Rate that a deployment still sustains [1/s], in proportion to the replicas it was rated at."""
        planned = self.deployments[number]
        pairs = zip(self.left(number), planned.surviving.pools, strict=True)
        return planned.sustained_per_s * min(left / rated.replicas for left, rated in pairs)

    def gone(self, number: int) -> str:
        """The roles of a deployment of which nothing is left."""
        pools = self.deployments[number].deployment.pools
        roles = (pool.role.value for pool, left in zip(pools, self.left(number), strict=True) if not left)
        return " and no ".join(f"{role} replica" for role in roles)


@dataclass(frozen=True)
class _Aftermath:
    """The rest of a fleet after a failure: whether it holds, its targets, and the roles that are gone."""

    holds: bool
    checks: Sequence[TargetCheck] = ()
    gone: str = ""

    @property
    def worst(self) -> TargetCheck | None:
        """The target that is nearest to its threshold, or furthest beyond it."""
        return max(self.checks, key=lambda check: check.predicted_s / check.target.threshold_s, default=None)

    @property
    def severity(self) -> tuple[bool, float, bool]:
        """By which failures are compared."""
        worst = self.worst
        if worst is None:
            return not self.holds, 0.0 if self.holds else math.inf, bool(self.gone)
        return not self.holds, worst.predicted_s / worst.target.threshold_s, False


def _after(failure: _Failure, slos: Sequence[ScopedSlo], slices: Mapping[str, DemandSlice]) -> _Aftermath:
    more, planned_for = failure.more_than_planned, False
    if min(more) >= 0:
        lost = [failure.deployments[place] for place in failure.places]
        planned_for = not any(violated_metrics(one, slos, by_theory=one.run is None) for one in lost)
        if not any(more) and all(one.run is not None for one in lost):
            verified = target_checks(lost, slos)
            return _Aftermath(planned_for, [replace(check, predicted_s=check.simulated_s) for check in verified])
    changed: dict[int, PlannedDeployment] = {}
    for place in failure.places:
        if place in changed:
            continue
        own = _changed(failure, place, slices)
        if not own:
            return _Aftermath(False, gone=f"no {failure.gone(place)} is left")
        changed |= own
    holds = all(each.predicted.stable and not violated_metrics(each, slos) for each in changed.values())
    checks = [check for each in changed.values() for check in target_checks((each,), slos)]
    return _Aftermath(holds or planned_for, checks)


def _changed(failure: _Failure, place: int, slices: Mapping[str, DemandSlice]) -> dict[int, PlannedDeployment]:
    """The deployments that serve what one of them does, by place and evaluated; none: nothing is left that does."""
    alike = _alike(failure.deployments, place)
    sustained_per_s = [failure.sustained_per_s(number) for number in alike]
    if not any(sustained_per_s):
        return {}
    rates_per_s: list[dict[str, float]] = [{} for _ in alike]
    for name in failure.deployments[place].slices:
        shares = shared_rates([failure.deployments[number].slices[name] for number in alike], sustained_per_s)
        for rates, share in zip(rates_per_s, shares, strict=True):
            rates[name] = share
    return {
        number: _evaluated(failure, number, rates, slices)
        for number, rates, sustained in zip(alike, rates_per_s, sustained_per_s, strict=True)
        if sustained > 0.0
    }


def _evaluated(
    failure: _Failure, number: int, rates_per_s: Mapping[str, float], slices: Mapping[str, DemandSlice]
) -> PlannedDeployment:
    """The rest of a deployment at these rates, by theory alone."""
    planned = failure.deployments[number]
    deployment = planned.option.deployment(failure.left(number))
    same = all(math.isclose(rate, planned.slices[name]) for name, rate in rates_per_s.items())
    workload = planned.workload if same else routed_workload(slices, rates_per_s)
    found = evaluated(deployment, at_factor(workload, failure.factors[number]), figures=False)
    return replace(
        planned,
        surviving=deployment,
        workload=workload,
        slices=dict(rates_per_s),
        predicted=found,
        simulated=found,
        run=None,
    )
