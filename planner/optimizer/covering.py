"""Streams of requests by themselves: a covering knapsack for each, and the fleet of all of them.

Where units stand still, the cheapest fleet of a slice is a covering knapsack
(`planner.optimizer.knapsack`), solved exactly in milliseconds. Limits are left out and blocks are taken in parts: what
is found is a lower bound, and it is the answer where it happens to keep the limits. Where it does not, branch and bound
takes over and the bound is kept.
"""

from __future__ import annotations

import math

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.evaluate_allocation import PartAnswer
from planner.optimizer.knapsack import least_cost_cover
from planner.optimizer.layout import WHOLE, Layout
from planner.optimizer.load_split import proportional_rates


def cheapest_cover(layout: Layout) -> PartAnswer | None:
    """The cheapest units for every slice by itself, at the largest demand of any period.

    Where no unit serves two slices, they are coupled by blocks and limits only, so the sum is a bound, and the fleet is
    the answer where it costs no more than that. Where units serve several, there is a fleet to start from.

    Args:
        layout: of the problem.

    Returns:
        A fleet that may miss limits, and a bound [USD/h], 0 where units serve several slices. None where units move
        with the periods, for deferrable slices in several periods, pinned resources; where nothing covers a demand, or
        a front grows beyond `planner.optimizer.knapsack.MAX_LABELS`.
    """
    pinned = any(resource.at_least > 0.0 for resource in layout.problem.resources)
    if pinned or (layout.periods > 1 and (layout.deferrable.any() or not layout.steady.all())):
        return None
    price = layout.cheapest(layout.purchase_usd_per_hour / layout.purchase_usable)
    cost, demand = layout.usd_per_hour.copy(), layout.demand_per_s.max(axis=1)
    np.add.at(cost, layout.take_unit, layout.take_amount * price[layout.take_resource])
    counts = np.zeros((len(demand), len(cost)), dtype=np.int64)
    for s in np.flatnonzero(demand > 0.0):
        pairs = layout.pair_slice == s
        units, rate = layout.pair_unit[pairs], np.minimum(layout.pair_rate[pairs], demand[s])
        place = layout.stage[units], layout.channel[units], layout.unit_kind[units]
        cover = least_cost_cover(float(demand[s]), cost[units], rate, *place)
        if cover is None:
            return None
        counts[s, units] = cover
    is_bound = len(layout.pair_unit) == len(np.unique(layout.pair_unit))
    bound = math.fsum((cost * counts.sum(axis=0)).tolist()) if is_bound else 0.0
    return PartAnswer(_values(layout, counts), bound)


def _values(layout: Layout, counts: IntArray) -> FloatArray:
    """The columns of these units: all of a slice's equally loaded, and of each resource the cheapest purchases."""
    values, total = np.zeros(layout.columns), counts.sum(axis=0)
    values[layout.column.units] = total[:, None]
    for s, units in enumerate(counts):
        for t in range(layout.periods):
            values[layout.column.rates[:, t]] += proportional_rates(layout, units, s, t)
    taken, usable = layout.taken(total[:, None])[:, 0], layout.purchase_usable
    for resource in np.unique(layout.purchase_resource[taken[layout.purchase_resource] > 0.0]):
        mine = np.flatnonzero(layout.purchase_resource == resource)
        whole, usd, blocks = np.full(len(mine), WHOLE), layout.purchase_usd_per_hour[mine], None
        if len(mine) > 1:
            blocks = least_cost_cover(float(taken[resource]), usd, usable[mine], whole, whole, whole)
        if blocks is None:
            best = np.arange(len(mine)) == np.argmin(usd / usable[mine])
            blocks = np.where(best, np.ceil(taken[resource] / usable[mine] - 1e-9), 0.0)
        values[layout.column.blocks[mine]] = blocks[:, None]
    layout.fill_in(values)
    return values
