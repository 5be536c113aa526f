"""The linear relaxation: a bound, the worth of every limit, and which few pairs of very many are worth a look.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out: few rows, and as many columns as there are rates. Of many columns only
those are handed to the solver that no other betters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.constraints import STRUCTURAL
from planner.optimizer.highs import SolverOutcome, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program, with_rates

FEW_COLUMNS = 20_000
"""Columns up to which a relaxation of one period is handed over whole. Affects speed only."""
POOLS_A_SLICE = 4
"""Pools kept for each slice, stage and channel by either measure. A choice of what is reached in how long: with fewer
the programs are smaller, but good fleets are rarer and take longer to find."""


@dataclass(frozen=True)
class RelaxedOptimum:
    """An optimum of the relaxation.

    Attributes:
        bound: no solution is better, in the unit of the goal; of goals that are minimised.
        row_duals: d(goal)/d(limit) by row of the program; 0 for rows `carry_rate` that dropped out.
        values: by column of the program; 0 for units that dropped out.
    """

    bound: float
    row_duals: FloatArray
    values: FloatArray

    def duals_of(self, program: Program) -> Iterator[tuple[ConstraintRows, FloatArray]]:
        """The rows of each constraint of the program that was relaxed, and their duals."""
        begin = np.cumsum([0, *map(len, program.rows)])
        return zip(program.rows, np.split(self.row_duals, begin[1:-1]), strict=True)


def relax(
    program: Program, time_limit_s: float = math.inf, rate_per_s: FloatArray | None = None
) -> RelaxedOptimum | None:
    """Solve the linear relaxation of a program.

    Args:
        program: as stated.
        time_limit_s: of the solver [s].
        rate_per_s: of each pair in each period, shape (p, t); default: `Layout.tight_rates_per_s`.

    Returns:
        None where it has no solution, or where the time ran out.
    """
    layout = program.layout
    rate_per_s = layout.tight_rates_per_s if rate_per_s is None else rate_per_s
    pairs = np.ones(len(rate_per_s), dtype=bool)
    if layout.periods == 1 and program.columns > FEW_COLUMNS:
        pairs = undominated(layout, rate_per_s)
    lp, is_left = _without_units(program, rate_per_s, pairs)
    solution = solve_scaled(lp, whole=False, time_limit_s=time_limit_s)
    if solution.outcome is not SolverOutcome.PROVEN:
        return None
    duals = np.zeros(len(is_left))
    duals[is_left] = solution.row_duals * lp.goal_unit / lp.row_unit
    return RelaxedOptimum(solution.goal * lp.goal_unit, duals, np.asarray(solution.values * lp.column_unit))


def _without_units(program: Program, rate_per_s: FloatArray, pairs: BoolArray) -> tuple[ScaledProgram, BoolArray]:
    """The program of some pairs, sum_s f_s / r_s in place of units that move freely, and which rows are left of it."""
    layout, width = program.layout, program.layout.periods
    is_free = ~layout.is_still if width > 1 else np.ones(len(layout.steady), dtype=bool)
    kept = np.ones(program.columns, dtype=bool)
    kept[layout.column.rates[~pairs]] = False
    rows = with_rates(program, rate_per_s).rows
    scaled = scale_program(replace(program, rows=tuple(each.of_columns(kept) for each in rows)))
    is_left = np.concatenate(
        [np.repeat(~is_free, width) if each.constraint == "carry_rate" else np.ones(len(each), bool) for each in rows]
    )
    moving = pairs & is_free[layout.pair_unit]
    units, own = layout.column.units[layout.pair_unit[moving]].ravel(), layout.column.rates[moving].ravel()
    same = np.setdiff1d(np.flatnonzero(kept), layout.column.units[is_free])
    share = np.append(np.ones(len(same)), scaled.column_unit[own] / rate_per_s[moving].ravel())
    where = (np.append(same, units), np.append(same, own))
    back = sparse.csr_array((share, where), shape=(program.columns, program.columns))
    lp = replace(
        scaled,
        matrix=sparse.csr_array(scaled.matrix[is_left] @ back),
        low=scaled.low[is_left],
        high=scaled.high[is_left],
        goal=np.asarray(back.T @ scaled.goal),
        upper=np.where(kept & ~np.isin(np.arange(program.columns), layout.column.units[is_free]), scaled.upper, 0.0),
        row_unit=scaled.row_unit[is_left],
    )
    return lp, is_left


def undominated(layout: Layout, rate_per_s: FloatArray) -> BoolArray:
    """Pairs that no other betters in any period, whatever blocks cost: the relaxation needs no others.

    One betters another of its slice that takes the same resources, in the same part of the service, where it takes no
    more of any and costs no more, per request. Each is held only against those that are best in one of these. (The
    dominated columns of presolve: E. D. Andersen and K. D. Andersen 1995, "Presolving in linear programming",
    Mathematical Programming 71.)

    Args:
        layout: of a problem whose units move freely.
        rate_per_s: of each pair in each period, shape (p, t).

    Returns:
        Which pairs, shape (p,).
    """
    order = np.argsort(layout.takes == 0.0, axis=1, kind="stable")  # of each unit what it takes comes first
    amount = np.take_along_axis(layout.takes, order, axis=1)[:, : (layout.takes > 0.0).sum(axis=1).max(initial=0)]
    resource = np.where(amount > 0.0, order[:, : amount.shape[1]], -1)
    _, alike = np.unique(np.column_stack([layout.section, resource]), axis=0, return_inverse=True)
    group = alike.ravel()[layout.pair_unit] * len(layout.deferrable) + layout.pair_slice
    burden = np.column_stack([amount, layout.usd_per_hour])[layout.pair_unit]
    kept = np.zeros(len(rate_per_s), dtype=bool)
    by_period = np.where(layout.pair_ceiling_per_s > 0.0, rate_per_s, 0.0).T
    for rate in {each.tobytes(): each for each in by_period}.values():
        mine = np.flatnonzero(rate)
        kept[mine] |= _unbettered(group[mine], burden[mine] / rate[mine, None])
    return kept


def _unbettered(group: IntArray, burden: FloatArray) -> BoolArray:
    """Which are no worse in some column than that of their group which is best in one; of equal ones the first."""
    every, total, kept = np.arange(len(group)), burden.sum(axis=1), np.ones(len(group), dtype=bool)
    best = np.zeros(group.max(initial=-1) + 1, dtype=np.int64)
    for measure in burden.T:
        left = np.flatnonzero(kept)
        first = left[best_of_each(group[left], np.column_stack([measure, total])[left], 1)]
        best[group[first]] = first
        of_group = best[group]
        kept &= (of_group == every) | (burden[of_group] > burden).any(axis=1)
    return kept


def shortlist(program: Program, relaxed: RelaxedOptimum) -> BoolArray:
    """The pairs that are worth a look: all units of a pool (`Layout.pools`) or none, slice by slice.

    Kept are those of which one carries something, and of each slice, stage and channel the least missed: what a pair
    costs beyond its worth per request (of the large units that serve at least cost) or per unit (of the small ones that
    fill up what is left of a demand).

    Args:
        program: of one period.
        relaxed: its relaxation.

    Returns:
        Which pairs, shape (p,).
    """
    layout, missed = program.layout, program.goal.copy()
    for rows, duals in relaxed.duals_of(program):
        np.subtract.at(missed, rows.column, rows.value * duals[rows.row])
    rate, of_unit = layout.tight_rates_per_s[:, 0], missed[layout.column.units[layout.pair_unit, 0]]
    of_request = missed[layout.column.rates[:, 0]] + of_unit / rate
    carries = relaxed.values[layout.column.rates[:, 0]] > 0.0
    slices = len(layout.deferrable)
    place = layout.pools[0][layout.pair_unit] * slices + layout.pair_slice
    stage = layout.stage[layout.pair_unit] * (len(layout.channels) + 1) + layout.channel[layout.pair_unit] + 1
    section = stage * slices + layout.pair_slice
    _, first, of_pair = np.unique(place, return_index=True, return_inverse=True)
    kept = np.zeros(len(first), dtype=bool)
    kept[of_pair[carries]] = True
    for excess in (of_request, of_request * rate):
        least = np.full(len(first), math.inf)
        np.minimum.at(least, of_pair, excess)
        kept[best_of_each(section[first], least, POOLS_A_SLICE)] = True
    return np.asarray(kept[of_pair])


def limit_duals(program: Program) -> dict[str, float]:
    """Worth of every limit in the relaxation: d(goal)/d(limit), its limits moved in all periods at once.

    Args:
        program: as stated.

    Returns:
        By family of rows that a report lists [goal per unit of the limit]; empty if the relaxation has no solution.
    """
    relaxed = relax(program, rate_per_s=program.layout.capped_rates_per_s)
    total: dict[str, float] = {}
    for rows, duals in relaxed.duals_of(program) if relaxed else ():
        if rows.constraint not in STRUCTURAL:
            for family, value in zip(rows.families(), duals.tolist(), strict=True):
                total[family] = total.get(family, 0.0) + value
    return {family: value + 0.0 for family, value in total.items()}


def best_of_each(section: IntArray, cost: FloatArray, count: int) -> IntArray:
    """Indices of the cheapest of each section.

    Args:
        section: of each.
        cost: of each, shape (n,); or (n, columns), of which the first decides, of equal ones the second, and so on.
        count: so many of each section at most.

    Returns:
        Section by section, the cheapest first.

    >>> best_of_each(np.array([0, 1, 0, 1]), np.array([3.0, 1.0, 2.0, 4.0]), 1)
    array([2, 1])
    """
    keys = np.atleast_2d(cost.T)[::-1]
    order = np.lexsort((*keys, section))
    own = section[order]
    return np.asarray(order[np.arange(len(order)) - np.searchsorted(own, own) < count])
