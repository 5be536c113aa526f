"""Replicas on GPUs that are paid for and idle, where GPUs come in blocks larger than a fleet needs.

A replica that costs nothing lowers the load of every other one: whoever pays for sixteen GPUs of which fifteen suffice
runs sixteen. The program does not say so, since fleets of both sizes cost the same.
"""

from __future__ import annotations

import math

from planner.fleet.columns import Column
from planner.fleet.program import FleetSearch
from planner.optimizer import Allocation, Objective

SAME_COST = 1e-9
"""Relative difference up to which two fleets cost the same; rounding of the solver."""


def filled_allocation(search: FleetSearch, allocation: Allocation) -> Allocation:
    """The same purchases with replicas added to the busiest pools as long as idle GPUs and all limits allow it.

    What a larger pool carries is what it carried before: no rate is asked of theory. Fleets of several periods stay as
    they are: what idles in one of them is switched off or was bought for another one.

    Args:
        search: that found the fleet.
        allocation: the cheapest fleet, or one that is preferred to it.
    """
    if search.request.objective is not Objective.MIN_COST or len(search.periods) > 1:
        return allocation
    filled = allocation
    while (larger := _with_a_replica_more(search, filled)) is not None:
        filled = larger
    kept = {"gap": allocation.gap, "status": allocation.status}
    return allocation if filled is allocation else filled.model_copy(update=kept)


def _with_a_replica_more(search: FleetSearch, allocation: Allocation) -> Allocation | None:
    """The fleet with one of its pools larger for the same money, the busiest that can be; None where none can be."""
    columns = search.columns.chosen(allocation)
    idle = {
        sku: round(math.fsum(held for (held,) in allocation.bought[sku].values()) - _in_use(columns, allocation, sku))
        for sku in {column.family.sku for column in columns}
    }
    for column in sorted(columns, key=lambda column: -_load(column, allocation)):
        if idle[column.family.sku] < column.family.gpus:
            continue
        (count,) = allocation.units[column.name]
        routed = {name: rate_per_s for name, (rate_per_s,) in _routed(column, allocation).items()}
        larger = search.columns.enlarged(column, count, routed)
        rest = [other for other in columns if other is not column]
        found = search.allocation([*rest, larger], Objective.MIN_COST)
        costs_as_much = found.objective is not None and found.program == allocation.program
        costs_as_much = costs_as_much and found.cost_usd_per_hour <= allocation.cost_usd_per_hour * (1.0 + SAME_COST)
        if costs_as_much and larger.name in found.units:
            return found
    return None


def _in_use(columns: list[Column], allocation: Allocation, sku: str) -> int:
    """GPUs of a SKU that replicas run on."""
    return sum(allocation.units[column.name][0] * column.gpus.get(sku, 0) for column in columns)


def _load(column: Column, allocation: Allocation) -> float:
    """Share of what its pools could carry that is routed to a column."""
    routed = _routed(column, allocation).items()
    busy = math.fsum(rate_per_s / column.rates[name].rate_per_s for name, (rate_per_s,) in routed)
    return busy / allocation.units[column.name][0]


def _routed(column: Column, allocation: Allocation) -> dict[str, tuple[float, ...]]:
    """What is routed to the units of a column in each period, by slice [1/s]."""
    routed = allocation.routed_per_s.get(column.name, {})
    return {name: rates for name, rates in routed.items() if max(rates) > 0.0}
