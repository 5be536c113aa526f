"""Problems whose periods have nothing in common but what can be bought in each: solved one by one.

The sum over periods of what each costs at least is a bound. Kinds, groups and the budget hold over all periods: they
are left out, and whether the fleet keeps them is looked at afterwards. Where it has too many kinds, it is solved once
more with those of the period of the largest demand.

Of one slice, less demand never costs more: periods between two whose costs are the same have that cost too, and the
fleet of the larger demand serves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.coefficients import mean_cost
from planner.optimizer.covering import keeps_limits, kinds_of_peak, mark_in_use
from planner.optimizer.layout import Layout, build_layout


@dataclass(frozen=True)
class PartAnswer:
    """What is known of a problem.

    Attributes:
        values: of a fleet that keeps all limits, by column; None: none was found.
        usd_per_hour: its cost; infinite without one.
        bound_usd_per_hour: no fleet costs less [USD/h]; infinite where it was proved that there is none.
    """

    values: FloatArray | None
    usd_per_hour: float
    bound_usd_per_hour: float


PartSolver = Callable[[Layout], PartAnswer]
"""Answers a problem of one period."""


def have_nothing_in_common(layout: Layout) -> bool:
    """Whether a problem of least cost has several periods that neither purchases, nor units, nor work link.

    Args:
        layout: of the problem.

    Returns:
        False too where there is one period.
    """
    linked = layout.purchase_committed.any() or layout.steady.any() or layout.deferrable.any()
    return layout.periods > 1 and not linked and not len(layout.start_units)


def solve_by_period(layout: Layout, solve_one: PartSolver, gap: float) -> PartAnswer:
    """A fleet and a bound from the periods by themselves.

    Args:
        layout: of a problem whose periods `have_nothing_in_common`.
        solve_one: answers a problem of one period.
        gap: share of its cost by which the fleet of a period may cost more than that of one of less demand before
            those between them are solved by themselves.

    Returns:
        The best fleet of all periods that was found to keep all limits, with the bound.
    """
    parts = _solve_all(layout, solve_one, gap)
    bound = math.fsum(share * part.bound_usd_per_hour for share, part in zip(layout.share.tolist(), parts, strict=True))
    values = _together(layout, parts)
    if values is not None and not keeps_limits(layout, values):
        allowed = kinds_of_peak(layout, values[layout.units_column].astype(np.int64), layout.demand_per_s)
        values = None
        if not allowed.all():
            fewer = layout.select(allowed)
            of_fewer = _together(fewer, _solve_all(fewer, solve_one, gap))
            if of_fewer is not None:
                whole = _of_more_units(layout, fewer, of_fewer, np.flatnonzero(allowed))
                values = whole if keeps_limits(layout, whole) else None
    usd = math.inf if values is None else math.fsum((mean_cost(layout) * values).tolist())
    return PartAnswer(values, usd, bound)


def _solve_all(layout: Layout, solve_one: PartSolver, gap: float) -> list[PartAnswer]:
    """An answer for each period; periods of the same demand have the same."""
    distinct, period_of = np.unique(layout.demand_per_s, axis=1, return_inverse=True)
    count = distinct.shape[1]
    found: dict[int, PartAnswer] = {}

    def solved(index: int) -> PartAnswer:
        if index not in found:
            found[index] = solve_one(_layout_of_one(layout, distinct[:, index]))
        return found[index]

    def fill(low: int, high: int) -> None:
        least, most = solved(low), solved(high)
        if high - low < 2:
            return
        if most.values is not None and most.usd_per_hour * (1.0 - gap) <= least.bound_usd_per_hour:
            one = _layout_of_one(layout, distinct[:, high])
            for index in range(low + 1, high):
                values = most.values.copy()
                values[one.rate_column] *= distinct[0, index] / distinct[0, high]
                found[index] = replace(most, values=values, bound_usd_per_hour=least.bound_usd_per_hour)
            return
        middle = (low + high) // 2
        fill(low, middle)
        fill(middle, high)

    if len(distinct) == 1:
        fill(0, count - 1)
    return [solved(int(index)) for index in np.ravel(period_of)]


def _layout_of_one(layout: Layout, demand_per_s: FloatArray) -> Layout:
    """The problem of one period."""
    problem = layout.problem
    slices = tuple(
        slice_.model_copy(update={"demand_per_s": (float(demand),)})
        for slice_, demand in zip(problem.slices, demand_per_s, strict=True)
    )
    update = {"slices": slices, "periods": problem.periods[:1], "budget_usd_per_hour": None, "max_groups": None}
    return build_layout(problem.model_copy(update=update))


def _together(layout: Layout, parts: list[PartAnswer]) -> FloatArray | None:
    """The columns of all periods; None where one of them has no fleet."""
    values = np.zeros(layout.columns)
    one = _layout_of_one(layout, layout.demand_per_s[:, 0])
    for period, part in enumerate(parts):
        if part.values is None:
            return None
        for whole, single in (
            (layout.units_column, one.units_column),
            (layout.rate_column, one.rate_column),
            (layout.blocks_column, one.blocks_column),
        ):
            values[whole[:, period]] = part.values[single[:, 0]]
    mark_in_use(layout, values)
    return values


def _of_more_units(layout: Layout, fewer: Layout, values: FloatArray, kept: IntArray) -> FloatArray:
    """Values of the kept units by column of all."""
    whole = np.zeros(layout.columns)
    whole[layout.units_column[kept]] = values[fewer.units_column]
    whole[layout.rate_column[np.isin(layout.pair_unit, kept)]] = values[fewer.rate_column]
    whole[layout.blocks_column] = values[fewer.blocks_column]
    mark_in_use(layout, whole)
    return whole
