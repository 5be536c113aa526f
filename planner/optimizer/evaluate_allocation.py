"""Whole numbers to everything that follows from them: routed rates, purchases, cost, and whether every limit holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import PlannerError
from planner.optimizer.constraint_rows import Rows, Terms
from planner.optimizer.constraints import STRUCTURAL, mean_cost, mean_rate, rows_for
from planner.optimizer.layout import Floats, Ints, Layout, Mask
from planner.optimizer.load_split import routed_rates
from planner.optimizer.program import SPREAD_FIX
from planner.optimizer.types import FEASIBILITY_TOLERANCE, ConstraintReport, Objective, Sense

_ROUNDING = 1e-9
"""A sum this share off a whole number is that number; far above float rounding, far below one unit."""
_IDLE = 1e-7
"""A rate below this share of all there is to carry is none: ten times the solver's tolerance."""


@dataclass(frozen=True)
class Fleet:
    """What whole units and blocks do.

    Attributes:
        layout: of the units in use.
        values: of its columns, recomputed.
        rows: of the problem over those units.
        cost_usd_per_hour: mean [USD/h].
        starts_usd_per_hour: of that, for starts.
        rate_per_s: served, mean [1/s].
    """

    layout: Layout
    values: Floats
    rows: tuple[Rows, ...]
    cost_usd_per_hour: float
    starts_usd_per_hour: float
    rate_per_s: float

    @property
    def rate_per_cost(self) -> float:
        """Rate served per cost [1/s per USD/h]; infinite for a free fleet."""
        return self.rate_per_s / self.cost_usd_per_hour if self.cost_usd_per_hour else math.inf


def fleet_of(objective: Objective, layout: Layout, values: Floats, *, is_routed: bool = False) -> Fleet:
    """The fleet of a solution, without units and blocks that are not needed.

    Args:
        objective: decides what is served, and which rows must hold.
        layout: of the units that were searched.
        values: by column of that layout, integers rounded.
        is_routed: the rates are kept as they are, instead of being spread evenly.

    Raises PlannerError if the fleet misses a row by more than `FEASIBILITY_TOLERANCE`: the solver was wrong.
    """
    counts = _needed_units(layout, values)
    used: Mask = np.asarray(counts.any(axis=1))
    own = layout.only(used)
    counts = counts[used]
    found = np.zeros(own.columns)
    found[own.units_column] = counts
    kept = values[layout.rate_column[used[layout.pair_unit]]]
    found[own.rate_column] = kept if is_routed else routed_rates(own, counts, objective)
    found[own.blocks_column] = _needed_blocks(own, counts, values[layout.blocks_column])
    on = counts[own.start_units]
    found[own.starts_column] = np.maximum(on - np.roll(on, 1, axis=1), 0)
    found[own.groups_column] = _groups_in_use(own)
    found[own.kinds_column] = np.bincount(own.unit_kind[own.unit_kind >= 0], minlength=len(own.kinds)) > 0
    rows = rows_for(objective, own)
    cost = mean_cost(own) * found
    starts = math.fsum(cost[own.starts_column].ravel().tolist())
    fleet = Fleet(own, found, rows, math.fsum(cost.tolist()), starts, math.fsum((mean_rate(own) * found).tolist()))
    _check(fleet)
    return fleet


def _needed_units(layout: Layout, values: Floats) -> Ints:
    """Units on, no more than carry the load they were given, nor fewer than are pinned. Shape (j, t).

    Units whose start costs something, and steady ones, are only cut to the most they need in any period.
    """
    units = values[layout.units_column].round().astype(np.int64)
    rates = values[layout.rate_column]
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    carries = rates > _IDLE * np.where(np.isfinite(ceiling), ceiling, 0.0)
    load, is_loaded = np.zeros(units.shape), np.zeros(units.shape, dtype=bool)
    np.add.at(load, layout.pair_unit, np.where(carries, rates, 0.0) / layout.pair_rate[:, None])
    np.logical_or.at(is_loaded, layout.pair_unit, carries)
    needed = np.maximum(np.ceil(load - _IDLE), is_loaded).astype(np.int64)
    still = layout.steady.copy()
    still[layout.start_units] = True
    needed = np.where(still[:, None], needed.max(axis=1, keepdims=True, initial=0), needed)
    return np.asarray(np.minimum(units, np.maximum(needed, layout.at_least[:, None])))


def _needed_blocks(layout: Layout, counts: Ints, blocks: Floats) -> Floats:
    """Blocks bought, without those not needed: the dearest per usable unit go first, by period, then committed ones.

    Exact where a resource has one purchase that is not committed: it is the ceiling of what is taken.
    """
    kept = blocks.copy()
    usable, size = layout.purchase_block * layout.purchase_usable, layout.purchase_block
    pinned = [purchase.at_least for resource in layout.problem.resources for purchase in resource.purchases]
    for index, resource in enumerate(layout.problem.resources):
        mine = np.flatnonzero(layout.purchase_resource == index)
        takes = layout.take_resource == index
        taken = layout.take_amount[takes] @ counts[layout.take_unit[takes]]
        order = sorted(mine, key=lambda q: (layout.purchase_committed[q], -layout.purchase_usd[q] / usable[q]))
        for q in order:
            over = (usable[mine] @ kept[mine] - taken) / usable[q]
            above_pin = (size[mine] @ kept[mine] - resource.at_least) / size[q]
            spare = np.minimum(np.minimum(over, above_pin), kept[q] - pinned[q] / size[q])
            spare = np.floor(spare + _ROUNDING * (1.0 + kept[q]))
            kept[q] -= np.maximum(spare.min() if layout.purchase_committed[q] else spare, 0.0)
    return np.maximum(kept, 0.0)


def _groups_in_use(layout: Layout) -> Floats:
    group = layout.resource_group[layout.take_resource]
    in_use = np.zeros(len(layout.groups))
    in_use[group[group >= 0]] = 1.0
    return in_use


def _check(fleet: Fleet) -> None:
    for rows in fleet.rows:
        used, limit = sides(rows, fleet.values)
        slack = limit - used if rows.sense is Sense.AT_MOST else used - limit
        missed = np.flatnonzero(slack < -FEASIBILITY_TOLERANCE * _size(rows, used, limit))
        if len(missed):
            row = int(missed[0])
            bound = f"units miss their limit {rows.sense.value} {limit[row]:g}"
            raise PlannerError(rows.names(fleet.layout)[row], float(used[row]), bound, SPREAD_FIX)


def _size(rows: Rows, used: Floats, limit: Floats) -> Floats:
    """What a row's slack is measured against: its limit, or where that moves with the rates, the largest of them."""
    size = np.maximum(np.abs(limit), np.abs(used))
    return np.full_like(size, size.max(initial=0.0)) if rows.constraint == "hand_over" else size


def sides(rows: Rows, values: Floats) -> tuple[Floats, Floats]:
    """What is used, and the limit, of each row."""

    def summed(terms: Terms) -> Floats:
        weights = terms.value * values[terms.column]
        return np.bincount(terms.row, weights=weights, minlength=len(rows)).astype(np.float64)

    return summed(rows.used), rows.limit + summed(rows.supply)


def reports(fleet: Fleet, duals: Mapping[str, float]) -> tuple[ConstraintReport, ...]:
    """Each limit once: the period with least slack, the dual summed over periods (`duals` is by family)."""
    found = []
    for rows in fleet.rows:
        if rows.constraint in STRUCTURAL:
            continue
        used, limit = sides(rows, fleet.values)
        slack = limit - used if rows.sense is Sense.AT_MOST else used - limit
        families = rows.families()
        found += [_report(rows, families, row, used, limit, slack, duals) for row in _tightest(families, slack)]
    return tuple(found)


def _tightest(families: Sequence[str], slack: Floats) -> list[int]:
    """Of each family the row with least slack, in the order of the families."""
    best: dict[str, int] = {}
    for row, family in enumerate(families):
        if family not in best or slack[row] < slack[best[family]]:
            best[family] = row
    return list(best.values())


def _report(
    rows: Rows,
    families: Sequence[str],
    row: int,
    used: Floats,
    limit: Floats,
    slack: Floats,
    duals: Mapping[str, float],
) -> ConstraintReport:
    return ConstraintReport(
        name=families[row],
        field=rows.fields()[row],
        sense=rows.sense,
        limit=float(limit[row]),
        used=float(used[row]),
        slack=float(slack[row]),
        dual=duals.get(families[row]),
    )
