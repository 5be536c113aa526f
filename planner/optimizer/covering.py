"""Streams of requests period by period: a covering knapsack for each, and the fleet of all of them.

Where there is one slice and one period, the cheapest fleet is a covering knapsack (`planner.optimizer.knapsack`),
solved exactly in milliseconds. Limits are left out and blocks are taken in parts: what is found is a lower bound, and
it is the answer where it happens to keep the limits. Where it does not, branch and bound takes over and the bound is
kept. Where all units
take one resource alone, the fleet that takes least of it is the answer whatever its blocks: more never costs less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.constraints import build_rows
from planner.optimizer.evaluate_allocation import missed_rows
from planner.optimizer.knapsack import least_cost_cover
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Layout
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import purchase_prices, relax
from planner.optimizer.tightening import tighten_rates
from planner.optimizer.types import Objective

MOST_UNITS_IN_BLOCKS = 5000
"""Units of a resource up to which the cheapest blocks are found exactly. Affects speed only."""


@dataclass(frozen=True)
class Covering:
    """What was found without limits.

    Attributes:
        values: by column of the layout.
        bound_usd_per_hour: no fleet costs less [USD/h]; None where that is not known.
        keeps_limits: whether the values meet every row of the program.
        counts: of the fleet behind the bound, units on; shape (slices, units, periods).
    """

    values: FloatArray
    bound_usd_per_hour: float | None
    keeps_limits: bool
    counts: IntArray


def cheapest_cover(layout: Layout) -> Covering | None:
    """A fleet of units that serve one slice each, the cheapest for every slice and period by itself.

    Where no unit serves two slices, slices and periods are coupled by what is bought or kept for all of them only:
    commitments (`planner.optimizer.relaxation.purchase_prices`), starts (left out), kinds and limits. So the sum is a
    bound, and the fleet is the answer where it costs no more than that. Units of several slices have no bound this way.

    Args:
        layout: of the problem.

    Returns:
        None for steady units beside others, deferrable slices in several periods, pinned units or purchases; where
        nothing covers a demand, or a front grows beyond `planner.optimizer.knapsack.MAX_LABELS`.
    """
    if not _is_covering(layout):
        return None
    demand = layout.demand_per_s
    if layout.steady.any():
        demand = np.broadcast_to(demand.max(axis=1, keepdims=True), demand.shape)
    cost = _unit_costs(layout)
    counts = _unit_counts(layout, demand, cost, np.ones(len(cost), dtype=bool))
    if counts is None:
        return None
    total, behind = counts.sum(axis=0), counts
    shares = len(layout.pair_unit) > len(np.unique(layout.pair_unit))
    bound = None if shares else math.fsum((layout.share * (cost * total).sum(axis=0)).tolist())
    allowed = kinds_of_peak(layout, total, demand)
    if bound is not None and _is_of_one_resource(layout):
        bound = max(bound, float((layout.purchase_usd_per_hour @ _blocks(layout, total)).sum()))
    if not allowed.all():
        counts = _unit_counts(layout, demand, cost, allowed)
        if counts is None:
            return None
    values = _values(layout, counts)
    return Covering(values, bound, keeps_limits(layout, values), behind)


def _is_covering(layout: Layout) -> bool:
    problem = layout.problem
    pinned = any(r.at_least > 0.0 or any(p.at_least > 0.0 for p in r.purchases) for r in problem.resources)
    waits = layout.deferrable.any() and layout.periods > 1
    mixed = layout.steady.any() and not layout.steady.all()
    known = not np.isnan(layout.demand_per_s).any()
    return bool(known and not (pinned or waits or mixed or layout.at_least.any()))


def _unit_costs(layout: Layout) -> FloatArray:
    """Cost of each unit in each period [USD/h], its resources at their least price and in parts of blocks."""
    relaxed = None
    if layout.periods > 1 and not layout.steady.any() and layout.purchase_committed.any():
        relaxed = relax(tighten_rates(build_program(layout, Objective.MIN_COST)))
    usable = layout.purchase_block * layout.purchase_usable
    price = np.full((len(layout.problem.resources), layout.periods), math.inf)
    np.minimum.at(price, layout.purchase_resource, purchase_prices(layout, relaxed) / usable[:, None])
    price = np.where(np.isfinite(price), price, 0.0)
    cost = np.repeat(layout.usd_per_hour[:, None], layout.periods, axis=1)
    np.add.at(cost, layout.take_unit, layout.take_amount[:, None] * price[layout.take_resource])
    return cost


def _is_of_one_resource(layout: Layout) -> bool:
    """Whether cost is what a single resource costs, in one period, and its cheapest blocks are found exactly."""
    resources = {int(resource) for resource in np.unique(layout.take_resource)} & set(layout.purchase_resource.tolist())
    only = len(resources) == 1 and len(set(layout.take_unit[layout.take_resource == min(resources)])) == len(
        layout.stage
    )
    return (
        only and layout.periods == 1 and not layout.usd_per_hour.any() and bool((layout.purchase_usable == 1.0).all())
    )


def _usd_per_usable_unit_hour(layout: Layout) -> FloatArray:
    return np.asarray(layout.purchase_usd_per_hour / (layout.purchase_block * layout.purchase_usable))


def _rates_of_slice(layout: Layout, slice_: int) -> FloatArray:
    """What each unit carries of a slice [1/s]; 0 where it cannot serve it."""
    rate = np.zeros(len(layout.stage))
    mine = layout.pair_slice == slice_
    rate[layout.pair_unit[mine]] = layout.pair_rate[mine]
    return rate


def _unit_counts(layout: Layout, demand: FloatArray, cost: FloatArray, allowed: BoolArray) -> IntArray | None:
    """Units for every slice and period, shape (slices, units, periods); None where something cannot be covered."""
    counts = np.zeros((len(demand), *cost.shape), dtype=np.int64)
    _, first, alike = np.unique(cost, axis=1, return_index=True, return_inverse=True)
    for s, by_period in enumerate(demand):
        rate = _rates_of_slice(layout, s)
        units = np.flatnonzero((rate > 0.0) & allowed)
        for asked, code in sorted(set(zip(by_period[by_period > 0.0].tolist(), alike[by_period > 0.0], strict=True))):
            cover = least_cost_cover(
                asked,
                cost[units, first[code]],
                np.minimum(rate[units], asked),
                layout.stage[units],
                layout.channel[units],
                layout.unit_kind[units],
            )
            if cover is None:
                return None
            counts[s][np.ix_(units, np.flatnonzero((by_period == asked) & (alike == code)))] = cover[:, None]
    return counts


def kinds_of_peak(layout: Layout, counts: IntArray, demand: FloatArray) -> BoolArray:
    """Units that may be used so that all periods have the kinds of the one with the largest demand; all, if they do.

    Args:
        layout: of the problem.
        counts: units on, shape (units, periods).
        demand: shape (slices, periods) [1/s].

    Returns:
        By unit.
    """
    everything = np.ones(len(counts), dtype=bool)
    used = counts.any(axis=1)
    kinds = {layout.kinds[kind] for kind in layout.unit_kind[used] if kind >= 0}
    if len({(stage, channel) for stage, channel, _ in kinds}) == len(kinds):
        return everything
    peak = counts[:, int(demand.sum(axis=0).argmax())] > 0
    wanted = set(layout.unit_kind[peak & (layout.unit_kind >= 0)].tolist())
    return np.array([kind < 0 or kind in wanted for kind in layout.unit_kind.tolist()])


def _values(layout: Layout, counts: IntArray) -> FloatArray:
    """The columns of these units: all of a slice's equally loaded, and the cheapest purchases for them."""
    values = np.zeros(layout.columns)
    total = counts.sum(axis=0)
    values[layout.units_column] = total
    for s, by_period in enumerate(layout.demand_per_s):
        rate = _rates_of_slice(layout, s)
        mine = layout.pair_slice == s
        for t in range(layout.periods):
            carried = _even_rates_per_s(layout, counts[s, :, t] * rate, float(by_period[t]))
            values[layout.rate_column[mine, t]] += carried[layout.pair_unit[mine]]
    values[layout.blocks_column] = _blocks(layout, total)
    on = total[layout.start_units]
    values[layout.starts_column] = np.maximum(on - np.roll(on, 1, axis=1), 0)
    mark_in_use(layout, values)
    return values


def mark_in_use(layout: Layout, values: FloatArray) -> None:
    """Set the columns of the groups and kinds that units which are on belong to.

    Args:
        layout: of the problem.
        values: by column, changed in place.
    """
    used = values[layout.units_column].max(axis=1, initial=0.0) > 0.0
    group = layout.resource_group[layout.take_resource[used[layout.take_unit]]]
    values[layout.groups_column[group[group >= 0]]] = 1.0
    kind = layout.unit_kind[used]
    values[layout.kinds_column[kind[kind >= 0]]] = 1.0


def _even_rates_per_s(layout: Layout, capacity: FloatArray, demand: float) -> FloatArray:
    """Rate of each unit when all that serve a demand are equally loaded, requests of both stages alike."""
    carried = np.zeros(len(capacity))
    transferred = {
        code: min(capacity[_units_at(layout, stage, code)].sum() for stage in (FIRST, SECOND))
        for code in range(len(layout.channels))
    }
    whole = _units_at(layout, WHOLE, -1)
    most = capacity[whole].sum() + math.fsum(transferred.values())
    if not most > 0.0:
        return carried
    share = demand / most
    carried[whole] = share * capacity[whole]
    for channel, both in transferred.items():
        for stage in (FIRST, SECOND):
            mine = _units_at(layout, stage, channel)
            if both > 0.0:
                carried[mine] = share * both * capacity[mine] / capacity[mine].sum()
    return carried


def _blocks(layout: Layout, counts: IntArray) -> FloatArray:
    """Blocks of each purchase, shape (purchases, periods): the cheapest committed and the cheapest other one.

    A committed block is worth it where what the other costs over the periods that need it is more.
    """
    blocks = np.zeros(layout.blocks_column.shape)
    usable, price = layout.purchase_block * layout.purchase_usable, _usd_per_usable_unit_hour(layout)
    for resource in np.unique(layout.purchase_resource):
        takes = layout.take_resource == resource
        taken = layout.take_amount[takes] @ counts[layout.take_unit[takes]]
        mine = np.flatnonzero(layout.purchase_resource == resource)
        most = float(taken.max(initial=0.0))
        if layout.periods == 1 and most <= MOST_UNITS_IN_BLOCKS and (layout.purchase_usable[mine] == 1.0).all():
            sizes = layout.purchase_block[mine].astype(int).tolist()
            blocks[mine, 0] = cheapest_blocks(
                math.ceil(most - 1e-9), sizes, layout.purchase_usd_per_hour[mine].tolist()
            )
            continue
        kinds = [mine[layout.purchase_committed[mine] == committed] for committed in (True, False)]
        kept, hired = (units[np.argmin(price[units])] if len(units) else -1 for units in kinds)
        levels = np.unique(np.concatenate([[0.0], np.ceil(taken / usable[kept] - 1e-9)])) if kept >= 0 else np.zeros(1)
        if hired < 0:
            levels = levels[-1:]
        rest = np.maximum(taken[None, :] - levels[:, None] * (usable[kept] if kept >= 0 else 0.0), 0.0)
        more = np.ceil(rest / usable[hired] - 1e-9) if hired >= 0 else np.zeros_like(rest)
        cost = (more @ layout.share) * (layout.purchase_usd_per_hour[hired] if hired >= 0 else 0.0)
        cost = cost + levels * (layout.purchase_usd_per_hour[kept] if kept >= 0 else 0.0)
        best = int(np.argmin(cost))
        if kept >= 0:
            blocks[kept] = levels[best]
        if hired >= 0:
            blocks[hired] = more[best]
    return blocks


def cheapest_blocks(units: int, sizes: Sequence[int], usd_per_block: Sequence[float]) -> list[int]:
    """How many blocks of each size hold so many units at least cost, by dynamic programming over the units.

    Args:
        units: to be held at least.
        sizes: units of a block.
        usd_per_block: cost of one.

    Returns:
        Blocks of each size.

    >>> cheapest_blocks(17, [8, 1], [16.0, 3.0]), cheapest_blocks(15, [8, 1], [16.0, 3.0])
    ([2, 1], [2, 0])
    """
    cost, last = [0.0], [-1]
    for held in range(1, units + 1):
        best = min(range(len(sizes)), key=lambda j: cost[max(0, held - sizes[j])] + usd_per_block[j])
        cost.append(cost[max(0, held - sizes[best])] + usd_per_block[best])
        last.append(best)
    counts, left = [0] * len(sizes), units
    while left > 0:
        counts[last[left]] += 1
        left = max(0, left - sizes[last[left]])
    return counts


def _units_at(layout: Layout, stage: int, channel: int) -> IntArray:
    return np.flatnonzero((layout.stage == stage) & (layout.channel == channel))


def keeps_limits(layout: Layout, values: FloatArray) -> bool:
    """Whether values meet every row of the program of least cost.

    Args:
        layout: of the problem.
        values: by column.

    Returns:
        Whether no row is missed by more than `FEASIBILITY_TOLERANCE`.
    """
    return not any(len(missed_rows(rows, values)) for rows in build_rows(Objective.MIN_COST, layout))
