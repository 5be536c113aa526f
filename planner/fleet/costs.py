"""Cost of a fleet by purchase option, deployment, token and period of the day: sums over the purchases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hardware_db import Price
from planner.core import HOURS_PER_MONTH
from planner.fleet.columns import Column
from planner.fleet.types import (
    KV_TIERS,
    SWITCHING,
    BoughtGpus,
    CostBreakdown,
    PlannedDeployment,
    ScheduledPeriod,
    pool_name,
)
from planner.fleet.verification import ScopedSlo, goodput_per_s
from planner.optimizer import Allocation, Period
from planner.serving import input_capacity_share
from planner.supply import Supply, supply_cost, switching_resource
from planner.traffic import DemandSlice


def bought_gpus(allocation: Allocation, supply: Supply, periods: Sequence[Period]) -> tuple[BoughtGpus, ...]:
    """Every purchase option that the allocation uses, with its mean cost over the horizon.

    What is paid for GPUs that are new to the fleet stands beside them as `SWITCHING`.
    """
    bought = []
    for line in supply_cost(allocation.bought, supply, periods):
        purchase = supply.purchase(line.resource, line.purchase)
        is_gpu = (line.resource, line.purchase) in supply.prices
        if not is_gpu and not line.usd_per_hour:
            continue
        bought.append(
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
    return tuple(bought)


def bought_tiers(
    allocation: Allocation, columns: Sequence[Column], periods: Sequence[Period]
) -> tuple[BoughtGpus, ...]:
    """KV tiers with a price of their own, by SKU of the GPUs they are behind; `gpus` are those, in each period."""
    horizon = math.fsum(period.hours for period in periods)
    bought = []
    for sku in dict.fromkeys(column.family.sku for column in columns if column.kv_tiers_usd_per_hour):
        mine = [column for column in columns if column.family.sku == sku and column.kv_tiers_usd_per_hour]
        gpus, usd = [], 0.0
        for t, period in enumerate(periods):
            on = [(allocation.units[column.name][t], column) for column in mine]
            gpus.append(math.fsum(count * column.gpus[sku] for count, column in on))
            usd += math.fsum(count * column.kv_tiers_usd_per_hour for count, column in on) * period.hours
        behind = math.fsum(count * period.hours for count, period in zip(gpus, periods, strict=True))
        bought.append(
            BoughtGpus(
                sku=sku,
                purchase=KV_TIERS,
                price=None,
                committed=False,
                gpus=tuple(gpus),
                usd_per_gpu_hour=usd / behind,
                usd_per_hour=usd / horizon,
            )
        )
    return tuple(bought)


def usd_per_hour_by_sku(bought: Sequence[BoughtGpus]) -> dict[str, float]:
    """Mean cost of all GPUs of a SKU [USD/h]."""
    costs: dict[str, float] = {}
    for purchase in bought:
        costs[purchase.sku] = costs.get(purchase.sku, 0.0) + purchase.usd_per_hour
    return costs


def with_costs(
    planned: Sequence[PlannedDeployment], usd_per_hour: Mapping[str, float]
) -> tuple[PlannedDeployment, ...]:
    """The deployments with what they cost [USD/h].

    Args:
        planned: of the whole fleet.
        usd_per_hour: by SKU, what its GPUs cost in all; shared by GPUs in use.
    """
    used: dict[str, int] = {}
    for deployment in planned:
        for pool in deployment.deployment.pools:
            used[pool.config.sku.id] = used.get(pool.config.sku.id, 0) + pool.gpus
    costed = []
    for deployment in planned:
        pool_usd_per_hour = tuple(
            usd_per_hour.get(pool.config.sku.id, 0.0) * pool.gpus / used[pool.config.sku.id]
            for pool in deployment.deployment.pools
        )
        total = math.fsum(pool_usd_per_hour)
        costed.append(replace(deployment, pool_usd_per_hour=pool_usd_per_hour, usd_per_hour=total))
    return tuple(costed)


def cost_breakdown(
    allocation: Allocation,
    deployments: Sequence[PlannedDeployment],
    slos: Sequence[ScopedSlo],
    users: float | None = None,
) -> CostBreakdown:
    """Cost of the fleet and what one gets for it, as means over the horizon.

    Input and output tokens share the cost of each pool by what they take from its capacity (`input_capacity_share`).
    The mix of requests and the share that meets every target are those of the period of the largest demand.
    """
    total = allocation.cost_usd_per_hour
    requests_per_hour = 3600.0 * allocation.rate_per_s
    rate = math.fsum(planned.workload.rate_per_s for planned in deployments)
    weights = [planned.workload.rate_per_s / rate for planned in deployments]
    lengths = [planned.workload.lengths for planned in deployments]
    inputs = math.fsum(weight * own.mean_input for weight, own in zip(weights, lengths, strict=True))
    outputs = math.fsum(weight * own.mean_output for weight, own in zip(weights, lengths, strict=True))
    attributed = math.fsum(planned.usd_per_hour for planned in deployments)
    share = math.fsum(_input_usd_per_hour(planned) for planned in deployments) / attributed if attributed else 0.0
    goodputs_per_s = {
        name: goodput_per_s([one for one in deployments if one.service == name], slos) / rate * allocation.rate_per_s
        for name in dict.fromkeys(planned.service for planned in deployments)
    }
    goodput = math.fsum(goodputs_per_s.values())
    return CostBreakdown(
        usd_per_hour=total,
        usd_per_month=total * HOURS_PER_MONTH,
        usd_per_million_input_tokens=1e6 * share * total / (requests_per_hour * inputs),
        usd_per_million_output_tokens=1e6 * (1.0 - share) * total / (requests_per_hour * outputs),
        usd_per_million_tokens=1e6 * total / (requests_per_hour * (inputs + outputs)),
        usd_per_thousand_requests=1e3 * total / requests_per_hour,
        goodput_per_s=goodput,
        requests_per_usd=3600.0 * goodput / total if total else math.inf,
        usd_per_user_month=None if users is None else total * HOURS_PER_MONTH / users,
        tokens_per_usd=3600.0 * goodput * (inputs + outputs) / total if total else math.inf,
        goodput_by_service_per_s=goodputs_per_s,
    )


def _input_usd_per_hour(planned: PlannedDeployment) -> float:
    """Cost of input tokens [USD/h]: each pool's cost times the share of its capacity that inputs take."""
    return math.fsum(
        usd * input_capacity_share(pool, planned.workload)
        for usd, pool in zip(planned.pool_usd_per_hour, planned.surviving.pools, strict=True)
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
    schedule = []
    for t, period in enumerate(periods):
        replicas: dict[str, int] = {}
        served_per_s = 0.0
        for column in columns:
            on = allocation.units[column.name][t] * column.replicas
            if on and column.member is not None:
                name = pool_name(column.member)
                replicas[name] = replicas.get(name, 0) + on
            if not column.is_decode:
                served_per_s += math.fsum(rates[t] for rates in allocation.routed_per_s.get(column.name, {}).values())
        gpus: dict[str, float] = {}
        for purchase in bought:
            if purchase.purchase not in (SWITCHING, KV_TIERS):
                gpus[purchase.sku] = gpus.get(purchase.sku, 0.0) + purchase.gpus[t]
        schedule.append(
            ScheduledPeriod(
                name=period.name,
                hours=period.hours,
                demand_per_s=math.fsum(slice_.demand_per_s[t] for slice_ in slices.values() if not slice_.deferrable),
                served_per_s=served_per_s,
                replicas=replicas,
                gpus=gpus,
                usd_per_hour=math.fsum(purchase.gpus[t] * purchase.usd_per_gpu_hour for purchase in bought),
            )
        )
    return tuple(schedule)
