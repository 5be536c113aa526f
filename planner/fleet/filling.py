"""Replicas on GPUs that are paid for and idle, where GPUs come in blocks larger than a fleet needs.

A replica that costs nothing lowers the load of every other one: whoever pays for sixteen GPUs of which fifteen suffice
runs sixteen. The program does not say so, since fleets of both sizes cost the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from planner.fleet.pairing import UsedPool, used_pools
from planner.fleet.program import FleetSearch
from planner.fleet.types import pool_name
from planner.optimizer import Allocation, Objective

SAME_COST = 1e-9
"""Relative difference up to which two fleets cost the same; rounding of the solver."""


def filled_allocation(search: FleetSearch, allocation: Allocation) -> Allocation:
    """The same purchases with replicas added to the busiest pools as long as idle GPUs and all limits allow it.

    What a larger pool carries is what it carried before: no rate is asked of theory, and how busy it is follows from
    its replicas. Fleets of several periods stay as they are: what idles in one of them is switched off or was bought
    for another one.

    Args:
        search: that found the fleet.
        allocation: the cheapest fleet, or one that is preferred to it.
    """
    if search.request.objective is not Objective.MIN_COST or len(search.periods) > 1:
        return allocation
    filled = allocation
    pools = used_pools(search.columns.chosen(allocation), allocation, 0)
    needed = {_key(pool): pool.capacity_share * pool.surviving for pool in pools}
    while (larger := _with_a_replica_more(search, filled, needed)) is not None:
        filled = larger
    kept = {"gap": allocation.gap, "status": allocation.status}
    return allocation if filled is allocation else filled.model_copy(update=kept)


def _key(pool: UsedPool) -> tuple[str, str, str]:
    """What tells pools of one fleet apart, whatever their sizes."""
    return pool.service, pool_name(pool.option), pool.channel


def _with_a_replica_more(
    search: FleetSearch, allocation: Allocation, needed: Mapping[tuple[str, str, str], float]
) -> Allocation | None:
    """The fleet with one of its pools larger for the same money, the busiest that can be; None where none can be.

    `needed` is how many replicas each would keep busy.
    """
    columns = search.columns.chosen(allocation)
    there = replace(search, market=replace(search.market, sites=(search.market.site_of(allocation),)))
    idle = {sku: math.fsum(held for (held,) in bought.values()) for sku, bought in allocation.bought.items()}
    for column in search.chosen(allocation):
        for sku, gpus in column.gpus.items():
            idle[sku] -= allocation.units[column.name][0] * gpus
    busiest = sorted(used_pools(columns, allocation, 0), key=lambda pool: -needed[_key(pool)] / pool.surviving)
    for pool in busiest:
        config = pool.option.config
        if round(idle[config.sku.id]) < config.parallelism.gpus:
            continue
        units = {name: allocation.units[name][0] for name in pool.columns}
        larger = search.columns.enlarged(units, pool.rates_per_s)
        rest = [column for column in columns if column.name not in units]
        found = there.allocation([*rest, larger], Objective.MIN_COST)
        most_usd_per_hour = allocation.cost_usd_per_hour * (1.0 + SAME_COST)
        costs_more = found.objective is None or found.cost_usd_per_hour > most_usd_per_hour
        if not costs_more and larger.name in found.units:
            return found.model_copy(update={"program": allocation.program})
    return None
