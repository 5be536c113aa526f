"""Whole numbers to everything that follows from them: routed rates, purchases, cost, and whether every limit holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray, PlannerError
from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.constraints import STRUCTURAL, build_rows
from planner.optimizer.layout import Layout
from planner.optimizer.load_split import routed_rates, trimmed_rates
from planner.optimizer.program import SPREAD_FIX
from planner.optimizer.types import ConstraintReport, Objective

_WHOLE_TOLERANCE = 1e-9
"""A sum this share off a whole number is that number; far above float rounding, far below one unit."""
_IDLE_SHARE = 1e-7
"""A rate below this share of all there is to carry is none: ten times the solver's tolerance."""


@dataclass(frozen=True)
class PartAnswer:
    """A fleet of a problem, if any, and a bound.

    Attributes:
        values: of a fleet that keeps all limits, by column; None: none was found.
        bound_usd_per_hour: no fleet costs less [USD/h]; infinite where it was proved that there is none.
    """

    values: FloatArray | None
    bound_usd_per_hour: float


@dataclass(frozen=True)
class EvaluatedFleet:
    """Whole units and blocks, with all that follows from them.

    Attributes:
        layout: of the units in use.
        values: of its columns, recomputed.
        rows: of the problem over those units.
        cost_usd_per_hour: mean [USD/h].
        starts_usd_per_hour: of that, for starts.
        rate_per_s: served, mean [1/s].
        charges: of its marks, in the unit of the objective or of the rate of a ratio.
    """

    layout: Layout
    values: FloatArray
    rows: tuple[ConstraintRows, ...]
    cost_usd_per_hour: float
    starts_usd_per_hour: float
    rate_per_s: float
    charges: float

    def value(self, objective: Objective) -> float:
        """The objective, charges included; the ratio of a free fleet is infinite."""
        if objective is Objective.MIN_COST:
            return self.cost_usd_per_hour + self.charges
        rate_per_s = self.rate_per_s - self.charges
        if objective is Objective.MAX_RATE:
            return rate_per_s
        return rate_per_s / self.cost_usd_per_hour if self.cost_usd_per_hour else math.inf

    @property
    def keeps_limits(self) -> bool:
        """True if no row is missed (`ConstraintRows.missed`)."""
        return not any(len(rows.missed(self.values)) for rows in self.rows)


def evaluate_fleet(
    objective: Objective, layout: Layout, values: FloatArray, *, is_routed: bool = False, may_miss: bool = False
) -> EvaluatedFleet:
    """The fleet of a solution, without units and blocks that are not needed, and all that follows [USD/h, 1/s].

    Args:
        objective: decides what is served, and which rows must hold.
        layout: of the units that were searched.
        values: by column of that layout, integers rounded.
        is_routed: the rates are kept, but for what is too much, instead of being spread evenly.
        may_miss: the values may miss a limit, which `EvaluatedFleet.keeps_limits` then says.

    Raises:
        PlannerError: the fleet misses a row by more than `FEASIBILITY_TOLERANCE`, so the solver was wrong.
    """
    counts = _needed_units(layout, values)
    used = np.asarray(counts.any(axis=1))
    mine = used[layout.pair_unit]
    own, counts = layout.select(mine), counts[used]
    recomputed = np.zeros(own.columns)
    recomputed[own.column.units] = counts
    kept = values[layout.column.rates[mine]]
    recomputed[own.column.rates] = trimmed_rates(own, kept) if is_routed else routed_rates(own, counts, objective)
    recomputed[own.column.blocks] = _needed_blocks(own, counts, values[layout.column.blocks])
    own.fill_in(recomputed)
    cost, rate = own.mean_cost * recomputed, own.mean_rate * recomputed
    fleet = EvaluatedFleet(
        own,
        recomputed,
        build_rows(objective, own),
        math.fsum(cost.tolist()),
        math.fsum(cost[own.column.starts].ravel().tolist()),
        math.fsum(rate.tolist()),
        float(own.charges @ recomputed),
    )
    for rows in () if may_miss else fleet.rows:
        for row in rows.missed(recomputed).tolist():
            bound = f"units miss their limit {rows.sense.value} {rows.limit[row]:g}"
            raise PlannerError(rows.names(own)[row], float(rows.used(recomputed)[row]), bound, SPREAD_FIX)
    return fleet


def _needed_units(layout: Layout, values: FloatArray) -> IntArray:
    """Units on, no more than carry the load they were given. Shape (j, t).

    Units whose start costs something, and steady ones, are only cut to the most they need in any period.
    """
    units = values[layout.column.units].round().astype(np.int64)
    rates = values[layout.column.rates]
    carries = rates > _IDLE_SHARE * layout.pair_ceiling_per_s
    load, is_loaded = np.zeros(units.shape), np.zeros(units.shape, dtype=bool)
    np.add.at(load, layout.pair_unit, np.where(carries, rates, 0.0) / layout.pair_rate[:, None])
    np.logical_or.at(is_loaded, layout.pair_unit, carries)
    needed = np.maximum(np.ceil(load - _IDLE_SHARE), is_loaded).astype(np.int64)
    needed = np.where(layout.is_still[:, None], needed.max(axis=1, keepdims=True, initial=0), needed)
    return np.asarray(np.minimum(units, needed))


def _needed_blocks(layout: Layout, counts: IntArray, blocks: FloatArray) -> FloatArray:
    """Blocks bought, without those not needed: the dearest per usable unit go first, by period, then committed ones.

    Exact where a resource has one purchase that is not committed: it is the ceiling of what is taken.
    """
    kept, taken = blocks.copy(), layout.takes.T @ counts
    usable, size, committed = layout.purchase_usable, layout.purchase_block, layout.purchase_committed
    for q in np.lexsort((-layout.purchase_usd_per_hour / usable, committed)).tolist():
        resource = layout.purchase_resource[q]
        mine = layout.purchase_resource == resource
        over = (usable[mine] @ kept[mine] - taken[resource]) / usable[q]
        above_pin = (size[mine] @ kept[mine] - layout.resource_least[resource]) / size[q]
        spare = np.minimum(np.minimum(over, above_pin), kept[q])
        spare = np.floor(spare + _WHOLE_TOLERANCE * (1.0 + kept[q]))
        kept[q] -= np.maximum(spare.min() if committed[q] else spare, 0.0)
    return np.maximum(kept, 0.0)


def constraint_reports(fleet: EvaluatedFleet, duals: Mapping[str, float]) -> tuple[ConstraintReport, ...]:
    """Each limit once, but for what only says what a fleet is (`STRUCTURAL`): the period with least slack [its unit].

    Args:
        fleet: recomputed from whole numbers.
        duals: by family of rows, summed over periods; empty: none are known.
    """
    reports: dict[str, ConstraintReport] = {}
    for rows in fleet.rows:
        if rows.constraint in STRUCTURAL:
            continue
        used, slack, fields = rows.used(fleet.values).tolist(), rows.slack(fleet.values).tolist(), rows.fields()
        for row, family in enumerate(rows.families()):
            if family not in reports or slack[row] < reports[family].slack:
                reports[family] = ConstraintReport(
                    name=family,
                    field=fields[row],
                    sense=rows.sense,
                    limit=float(rows.limit[row]),
                    used=used[row],
                    slack=slack[row],
                    dual=duals.get(family),
                )
    return tuple(reports.values())
