"""What a fleet costs: by way of buying, by token, by period of the day. Sums of what was bought, nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hardware_db import Price
from planner.fleet.columns import Column
from planner.fleet.slices import DemandSlice
from planner.fleet.types import BoughtGpus, CostBreakdown, PlannedDeployment, ScheduledPeriod
from planner.fleet.verification import Promise, goodput_per_s
from planner.optimizer import Allocation, Period
from planner.serving import prompt_time_share
from planner.supply import HOURS_PER_MONTH, Supply, cost_of, switching_resource

SWITCHING = "switching"
"""In place of a way of buying: what it costs that GPUs are new to the fleet."""


def bought_gpus(allocation: Allocation, supply: Supply, periods: Sequence[Period]) -> tuple[BoughtGpus, ...]:
    """Every way of buying that the allocation uses, with its mean cost over the horizon.

    What is paid for GPUs that are new to the fleet stands beside them as `SWITCHING`.
    """
    found = []
    for line in cost_of(allocation.bought, supply, periods).purchases:
        purchase = supply.purchase(line.resource, line.purchase)
        is_gpu = (line.resource, line.purchase) in supply.prices
        if not is_gpu and not line.usd_per_hour:
            continue
        found.append(
            BoughtGpus(
                sku=line.resource if is_gpu else line.resource.removesuffix(switching_resource("")),
                purchase=line.purchase if is_gpu else SWITCHING,
                price=line.origin if isinstance(line.origin, Price) else None,
                committed=purchase.committed,
                gpus=tuple(allocation.bought[line.resource][line.purchase]),
                usd_per_gpu_hour=purchase.usd_per_hour,
                usd_per_hour=line.usd_per_hour,
            )
        )
    return tuple(found)


def usd_by_sku(bought: Sequence[BoughtGpus]) -> dict[str, float]:
    """Mean cost of all GPUs of a SKU [USD/h]."""
    costs: dict[str, float] = {}
    for one in bought:
        costs[one.sku] = costs.get(one.sku, 0.0) + one.usd_per_hour
    return costs


def cost_breakdown(
    allocation: Allocation, deployments: Sequence[PlannedDeployment], promises: Sequence[Promise]
) -> CostBreakdown:
    """Cost of the fleet and what one gets for it, as means over the horizon.

    Input and output tokens share the cost of each pool by the step time that prompts add. The mix of requests and the
    share that meets every target are those of the period of the largest demand.
    """
    total = allocation.cost_usd_per_hour
    per_hour = 3600.0 * allocation.rate_per_s
    rate = math.fsum(planned.workload.rate_per_s for planned in deployments)
    weights = [planned.workload.rate_per_s / rate for planned in deployments]
    inputs = math.fsum(w * one.workload.lengths.mean_input for w, one in zip(weights, deployments, strict=True))
    outputs = math.fsum(w * one.workload.lengths.mean_output for w, one in zip(weights, deployments, strict=True))
    attributed = math.fsum(planned.usd_per_hour for planned in deployments)
    share = math.fsum(_usd_on_inputs(planned) for planned in deployments) / attributed if attributed else 0.0
    goodput = goodput_per_s(deployments, promises) / rate * allocation.rate_per_s
    return CostBreakdown(
        usd_per_hour=total,
        usd_per_month=total * HOURS_PER_MONTH,
        usd_per_million_input_tokens=1e6 * share * total / (per_hour * inputs),
        usd_per_million_output_tokens=1e6 * (1.0 - share) * total / (per_hour * outputs),
        usd_per_thousand_requests=1e3 * total / per_hour,
        goodput_per_s=goodput,
        requests_per_usd=3600.0 * goodput / total if total else math.inf,
    )


def _usd_on_inputs(planned: PlannedDeployment) -> float:
    """Cost of input tokens [USD/h]: each pool's cost times the share of its step time that prompts add."""
    return math.fsum(
        usd * prompt_time_share(pool, planned.workload)
        for usd, pool in zip(planned.pool_usd_per_hour, planned.judged.pools, strict=True)
    )


def schedule_of(
    allocation: Allocation,
    columns: Sequence[Column],
    slices: Mapping[str, DemandSlice],
    periods: Sequence[Period],
    bought: Sequence[BoughtGpus],
) -> tuple[ScheduledPeriod, ...]:
    """The fleet period by period; empty where there is only one."""
    if len(periods) == 1:
        return ()
    return tuple(_period(t, period, allocation, columns, slices, bought) for t, period in enumerate(periods))


def _period(
    t: int,
    period: Period,
    allocation: Allocation,
    columns: Sequence[Column],
    slices: Mapping[str, DemandSlice],
    bought: Sequence[BoughtGpus],
) -> ScheduledPeriod:
    replicas: dict[str, int] = {}
    served = 0.0
    for column in columns:
        on = allocation.units[column.name][t] * column.replicas
        if on and column.member is not None:
            name = f"{column.member.role} {column.member.name}"
            replicas[name] = replicas.get(name, 0) + on
        if not column.is_decode:
            served += math.fsum(rates[t] for rates in allocation.routed_per_s.get(column.name, {}).values())
    gpus: dict[str, float] = {}
    for one in [one for one in bought if one.purchase != SWITCHING]:
        gpus[one.sku] = gpus.get(one.sku, 0.0) + one.gpus[t]
    return ScheduledPeriod(
        name=period.name,
        hours=period.hours,
        demand_per_s=math.fsum(part.demand_per_s[t] for part in slices.values() if not part.deferrable),
        served_per_s=served,
        replicas=replicas,
        gpus=gpus,
        usd_per_hour=math.fsum(one.gpus[t] * one.usd_per_gpu_hour for one in bought),
    )
