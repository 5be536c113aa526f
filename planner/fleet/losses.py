"""Does the fleet survive the loss of a replica, or of a server? By theory, without planning again.

Each pool in turn loses one replica, or those of one server; the loss that hurts most is the answer. Its deployment
keeps its traffic with what is left; where several deployments serve the same slices, each takes a share in proportion
to what it still sustains. Latencies [s] are those after queues have settled, in the period of the largest demand, with
the rest of the fleet as planned. A loss within what may fail (`FleetLimits`) is what the plan was verified without, and
is not evaluated again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.core import number_of
from planner.fleet.pairing import shared_rates
from planner.fleet.simulation import evaluated
from planner.fleet.types import Loss, LossOf, PlannedDeployment, TargetCheck
from planner.fleet.verification import ScopedSlo, routed_workload, target_checks, violated_metrics
from planner.serving import Pool
from planner.supply import FleetLimits, replicas_that_may_fail
from planner.traffic import DemandSlice

LIMITS = {LossOf.REPLICA: FleetLimits(spare_replicas=1), LossOf.SERVER: FleetLimits(survives_node_loss=True)}
"""What buys each."""


def worst_losses(
    deployments: Sequence[PlannedDeployment], slos: Sequence[ScopedSlo], slices: Mapping[str, DemandSlice]
) -> tuple[Loss, ...]:
    """The replica and the server whose loss hurts most.

    Args:
        deployments: the fleet.
        slos: its targets.
        slices: of the traffic, by name.
    """
    return tuple(
        max(
            (
                _loss(_Failure(of, deployments, place, index), slos, slices)
                for place, planned in enumerate(deployments)
                for index in range(len(planned.deployment.pools))
            ),
            key=lambda loss: (not loss.holds, loss.share_of_threshold, loss.target is None),
        )
        for of in LossOf
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
    """A pool of a deployment, by their places, loses replicas."""

    of: LossOf
    deployments: Sequence[PlannedDeployment]
    place: int
    index: int

    @property
    def planned(self) -> PlannedDeployment:
        return self.deployments[self.place]

    @property
    def pool(self) -> Pool:
        return self.planned.deployment.pools[self.index]

    @property
    def lost(self) -> int:
        """Replicas."""
        gpus, node_gpus = self.pool.config.parallelism.gpus, self.pool.config.sku.node.gpus
        return replicas_that_may_fail(self.pool.replicas, gpus, node_gpus, LIMITS[self.of])

    @property
    def words(self) -> str:
        return f"{self.lost} of {number_of(self.pool.replicas, f'{self.pool.role} replica')}"

    def left(self, number: int) -> tuple[int, ...]:
        """Replicas of each pool of a deployment that are left."""
        counts = [pool.replicas for pool in self.deployments[number].deployment.pools]
        if number == self.place:
            counts[self.index] -= self.lost
        return tuple(counts)

    def sustained_per_s(self, number: int) -> float:
        """What a deployment still sustains [1/s], in proportion to the replicas it was rated at."""
        planned = self.deployments[number]
        pairs = zip(self.left(number), planned.surviving.pools, strict=True)
        return planned.sustained_per_s * min(left / rated.replicas for left, rated in pairs)


def _loss(failure: _Failure, slos: Sequence[ScopedSlo], slices: Mapping[str, DemandSlice]) -> Loss:
    planned = failure.planned
    if failure.left(failure.place)[failure.index] >= planned.surviving.pools[failure.index].replicas:
        checks = target_checks((planned,), slos)
        return _answer(failure, not violated_metrics(planned, slos, by_theory=False), checks)
    changed = _changed(failure, slices)
    if not changed:
        return Loss(failure.of, failure.words, False, None, math.inf, f"no {failure.pool.role} replica is left")
    holds = all(each.predicted.stable and not violated_metrics(each, slos) for each in changed)
    return _answer(failure, holds, [check for each in changed for check in target_checks((each,), slos)])


def _answer(failure: _Failure, holds: bool, checks: Sequence[TargetCheck]) -> Loss:
    worst = max(checks, key=lambda check: check.predicted_s / check.target.threshold_s, default=None)
    if worst is None:
        return Loss(failure.of, failure.words, holds, None, 0.0 if holds else math.inf, "")
    return Loss(failure.of, failure.words, holds, worst.target, worst.predicted_s, worst.of)


def _changed(failure: _Failure, slices: Mapping[str, DemandSlice]) -> list[PlannedDeployment]:
    """The deployments whose replicas or traffic change, evaluated; none: nothing is left to serve these slices."""
    alike = _alike(failure.deployments, failure.place)
    sustained_per_s = [failure.sustained_per_s(number) for number in alike]
    if not any(sustained_per_s):
        return []
    rates_per_s: list[dict[str, float]] = [{} for _ in alike]
    for name in failure.planned.slices:
        shares = shared_rates([failure.deployments[number].slices[name] for number in alike], sustained_per_s)
        for rates, share in zip(rates_per_s, shares, strict=True):
            rates[name] = share
    return [
        _evaluated(failure.deployments[number], failure.left(number), rates, slices)
        for number, rates, sustained in zip(alike, rates_per_s, sustained_per_s, strict=True)
        if sustained > 0.0
    ]


def _evaluated(
    planned: PlannedDeployment,
    left: tuple[int, ...],
    rates_per_s: Mapping[str, float],
    slices: Mapping[str, DemandSlice],
) -> PlannedDeployment:
    """A deployment with these replicas and rates, by theory alone."""
    deployment = planned.option.deployment(left)
    same = all(math.isclose(rate, planned.slices[name]) for name, rate in rates_per_s.items())
    workload = planned.workload if same else routed_workload(slices, rates_per_s)
    found = evaluated(deployment, workload)
    return replace(
        planned,
        surviving=deployment,
        workload=workload,
        slices=dict(rates_per_s),
        predicted=found,
        simulated=found,
        run=None,
    )
