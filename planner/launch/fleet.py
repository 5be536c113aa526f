"""The deployments of a plan with their traffic, from which every writer of launch files starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from hardware_db import HardwareDb
from planner.core import InputError, Metric
from planner.fleet import BoughtGpus, Plan, PlannedDeployment, ScheduledPeriod
from planner.scenario import load_plan
from planner.serving import Deployment
from planner.traffic import DemandProfile
from planner.workload import LatencyTarget, Slo, Workload

PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Percentiles of latencies that a plan document keeps."""


@dataclass(frozen=True)
class LaunchedDeployment:
    """Pools that serve together, as they are to be started.

    Attributes:
        service: name of the model's service.
        deployment: with its pool sizes, spare replicas included.
        workload: routed to it.
        slo: the targets of its requests; of several slices, those of the first.
        figures: expectations of the plan; None where there is no plan.
    """

    service: str
    deployment: Deployment
    workload: Workload
    slo: Slo
    figures: PlannedFigures | None = None


@dataclass(frozen=True)
class PlannedFigures:
    """Expectations of a plan for a deployment.

    Attributes:
        expected_s: latency [s] by metric and percentile (`PERCENTILES`): simulated where the plan was simulated.
        sustained_per_replica_s: of each pool, the rate that one replica sustains under the targets [1/s].
        pool_usd_per_hour: of each pool.
    """

    expected_s: Mapping[str, Mapping[float, float]]
    sustained_per_replica_s: tuple[float, ...]
    pool_usd_per_hour: tuple[float, ...]

    def expected(self, target: LatencyTarget) -> float | None:
        """The latency expected at the percentile of a target [s]; None where it was not kept or is unbounded."""
        expected_s = self.expected_s[target.metric.value].get(target.percentile, math.inf)
        return expected_s if math.isfinite(expected_s) else None


@dataclass(frozen=True)
class Fleet:
    """Everything of a plan that is to be started.

    Attributes:
        name: of the request.
        deployments: to run.
        profile: how the demand moves; None where it does not.
        schedule: the fleet in each period of the profile; empty without one.
        bought: GPUs by purchase option.
        day: that the plan is for; None where it is made up.
        survives_node_loss: True if it was planned to survive the loss of any one server.
    """

    name: str
    deployments: tuple[LaunchedDeployment, ...]
    profile: DemandProfile | None = None
    schedule: tuple[ScheduledPeriod, ...] = ()
    bought: tuple[BoughtGpus, ...] = ()
    day: date | None = None
    survives_node_loss: bool = False


def fleet_of(plan: Plan) -> Fleet:
    """The fleet of a plan. Raises InputError for a plan without one."""
    if not plan.deployments:
        fix = "change the request until it is feasible"
        raise InputError("plan", plan.request.name, "has no fleet to launch", fix)
    deployments = tuple(
        LaunchedDeployment(planned.service, planned.deployment, planned.workload, planned.slo, _figures_of(planned))
        for planned in plan.deployments
    )
    request = plan.request
    survives = request.limits.survives_node_loss
    return Fleet(request.name, deployments, request.profile, plan.schedule, plan.bought, request.prices.day, survives)


def _figures_of(planned: PlannedDeployment) -> PlannedFigures:
    latencies = {metric.value: getattr(planned.simulated, metric.value) for metric in Metric}
    return PlannedFigures(
        {name: {p: found.quantile_s(p) for p in PERCENTILES} for name, found in latencies.items()},
        tuple(planned.sustained_per_s / pool.replicas for pool in planned.deployment.pools),
        planned.pool_usd_per_hour,
    )


def read_fleet(path: str | Path, hardware: HardwareDb | None = None) -> Fleet:
    """The fleet of a plan document (``plan.json``). Arguments and errors as `load_plan` and `fleet_of`."""
    return fleet_of(load_plan(path, hardware))
