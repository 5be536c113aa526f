"""Made-up planners whose cost is a formula, so that what an explanation should say is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardware_db import HardwareDb
from planner.analysis import PlanningCase, price_now
from planner.core import Metric
from planner.fleet import Plan, PlanRequest, plan
from planner.serving import Deployment
from tests.builders import HARDWARE, replica, small_request

QUICK: dict[str, Any] = {"modes": ["mixed"], "tp": [1], "max_batched_tokens": [2048]}
REQUEST = small_request(confidence=0.9, search=QUICK, simulation={"requests": 300})
REAL = plan(REQUEST)
H100, A100 = "h100-sxm", "a100-sxm-80gb"
Counts = Mapping[tuple[str, int], int]
"""Replicas by SKU and tensor-parallel degree."""


def made_up(request: PlanRequest, counts: Counts, usd_per_hour: float) -> Plan:
    """A plan of so many mixed replicas at a cost; none at all where the cost is infinite."""
    if math.isinf(usd_per_hour):
        return replace(REAL, request=request, deployments=(), cost=None, targets=(), allocation=None)
    assert REAL.cost is not None
    deployments = tuple(
        replace(
            REAL.deployments[0],
            deployment=Deployment.mixed(replica(sku=HARDWARE.skus[sku], tp=tp), count),
            workload=request.workload,
        )
        for (sku, tp), count in counts.items()
    )
    return replace(REAL, request=request, deployments=deployments, cost=replace(REAL.cost, usd_per_hour=usd_per_hour))


def threshold_s(request: PlanRequest, metric: Metric) -> float:
    """The threshold on a metric; a day where there is none."""
    return min((t.threshold_s for t in request.slo.targets if t.metric is metric), default=86_400.0)


def budget(request: PlanRequest) -> float:
    """The budget [USD/h]; unlimited where there is none."""
    usd = request.limits.budget_usd_per_hour
    return math.inf if usd is None else usd


def smooth(request: PlanRequest, hardware: HardwareDb) -> Plan:
    """Cost = rate / TTFT threshold [USD/h], where the budget allows it."""
    usd = request.workload.rate_per_s / threshold_s(request, Metric.TTFT)
    return made_up(request, {(H100, 1): 1}, usd if usd <= budget(request) else math.inf)


def lumpy(request: PlanRequest, hardware: HardwareDb) -> Plan:
    """3 USD/h for every 7 requests/s begun."""
    count = math.ceil(request.workload.rate_per_s / 7.0 - 1e-9)
    return made_up(request, {(H100, 1): count}, 3.0 * count)


def two_skus(request: PlanRequest, hardware: HardwareDb) -> Plan:
    """All H100 (4 of them) or all A100 (7), whichever is cheaper at today's prices and allowed."""
    needed = {H100: 4, A100: 7}
    costs = {
        sku: needed[sku] * (price_now(PlanningCase(request, hardware), sku) or math.inf)
        for sku in request.search.skus
        if request.limits.gpus.get(sku, math.inf) >= needed[sku]
    }
    best = min(costs, key=lambda sku: costs[sku], default=H100)
    return made_up(request, {(best, 1): needed[best]}, costs.get(best, math.inf))


def with_budget(usd: float) -> PlanRequest:
    return small_request(limits={"budget_usd_per_hour": usd})
