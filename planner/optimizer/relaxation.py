"""The linear relaxation: a bound, the worth of every limit, and which few pairs of very many are worth a look.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out: few rows, and as many columns as there are rates. Of many columns only
those are handed to the solver that no other betters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.constraints import STRUCTURAL
from planner.optimizer.highs import SolverOutcome, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program, with_rates

FEW_COLUMNS = 20_000
"""Columns up to which a relaxation is handed over whole. Affects speed only."""
POOLS_A_SLICE = 2
"""Pools kept for each slice, stage and channel by either measure. A choice of what is reached in how long."""


@dataclass(frozen=True)
class RelaxedOptimum:
    """An optimum of the relaxation.

    Attributes:
        bound: no solution is better, in the unit of the goal; of goals that are minimised.
        row_duals: d(goal)/d(limit) by row of the program; 0 for rows `carry_rate` that dropped out.
        values: by column of the program; 0 for units that dropped out.
        excess: what one more request per second of a pair would cost beyond its worth; shape (p, t).
    """

    bound: float
    row_duals: FloatArray
    values: FloatArray
    excess: FloatArray


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
    layout, rates = program.layout, program.layout.column.rates
    lp, is_left = _without_units(program, layout.tight_rates_per_s if rate_per_s is None else rate_per_s)
    kept = lp.upper > 0.0
    if kept.sum() > FEW_COLUMNS:
        kept = _undominated(lp)
    solution = solve_scaled(replace(lp, upper=np.where(kept, lp.upper, 0.0)), whole=False, time_limit_s=time_limit_s)
    if solution.outcome is not SolverOutcome.PROVEN:
        return None
    duals = np.zeros(len(is_left))
    duals[is_left] = solution.row_duals
    reduced = lp.goal - lp.matrix.T @ solution.row_duals
    return RelaxedOptimum(
        bound=solution.goal * lp.goal_unit,
        row_duals=np.asarray(duals * lp.goal_unit / lp.row_unit),
        values=np.asarray(solution.values * lp.column_unit),
        excess=np.asarray(np.maximum(reduced[rates], 0.0) * lp.goal_unit / lp.column_unit[rates]),
    )


def _without_units(program: Program, rate_per_s: FloatArray) -> tuple[ScaledProgram, BoolArray]:
    """The program with sum_s f_s / r_s in place of the units that move freely, and which rows are left of it."""
    layout, scaled = program.layout, scale_program(with_rates(program, rate_per_s))
    is_free = ~layout.is_still if layout.periods > 1 else np.ones(len(layout.steady), dtype=bool)
    is_left = np.concatenate(
        [
            np.repeat(~is_free, layout.periods) if rows.constraint == "carry_rate" else np.ones(len(rows), dtype=bool)
            for rows in program.rows
        ]
    )
    pairs = is_free[layout.pair_unit]
    units, own = layout.column.units[layout.pair_unit[pairs]].ravel(), layout.column.rates[pairs].ravel()
    same = np.setdiff1d(np.arange(program.columns), layout.column.units[is_free])
    share = np.append(np.ones(len(same)), scaled.column_unit[own] / rate_per_s[pairs].ravel())
    where = (np.append(same, units), np.append(same, own))
    back = sparse.csr_array((share, where), shape=(program.columns, program.columns))
    upper = scaled.upper.copy()
    upper[layout.column.units[is_free]] = 0.0
    lp = replace(
        scaled,
        matrix=sparse.csr_array(scaled.matrix[is_left] @ back),
        low=scaled.low[is_left],
        high=scaled.high[is_left],
        goal=back.T @ scaled.goal,
        upper=upper,
    )
    return lp, is_left


def _undominated(lp: ScaledProgram) -> BoolArray:
    """All columns but those of which another, without a limit, is no worse in the goal and in any row.

    Only columns with entries in the same rows are compared, and only with those that are best in the goal or in a row.
    """
    by_column = lp.matrix.tocsc()
    by_column.sort_indices()
    count = np.diff(by_column.indptr)
    is_entry = np.arange(count.max(initial=0)) < count[:, None]
    row, burden = np.full(is_entry.shape, -1), np.zeros(is_entry.shape)
    row[is_entry] = by_column.indices
    burden[is_entry] = by_column.data * np.where(np.isfinite(lp.high), 1.0, -1.0)[by_column.indices]
    burden = np.column_stack([burden, lp.goal])
    order = np.lexsort(row.T)
    group = np.zeros(len(row), dtype=np.int64)
    group[order[1:]] = np.cumsum((row[order[1:]] != row[order[:-1]]).any(axis=1))
    kept, total = lp.upper > 0.0, burden.sum(axis=1)
    for measure in burden.T:
        free = np.flatnonzero(kept & np.isinf(lp.upper))
        first = free[best_of_each(group[free], np.column_stack([measure, total])[free], 1)]
        best = np.full(len(row), -1)
        best[group[first]] = first
        best = best[group]
        kept &= (best < 0) | (best == np.arange(len(row))) | (burden[best] > burden).any(axis=1)
    return kept


def undominated_pairs(program: Program) -> BoolArray:
    """Pairs that no other betters in any period, whatever blocks cost: the relaxation needs no others.

    Args:
        program: as stated.

    Returns:
        Which pairs, shape (p,).
    """
    lp, _ = _without_units(program, program.layout.tight_rates_per_s)
    return np.asarray(_undominated(lp)[program.layout.column.rates].any(axis=1))


def shortlist(layout: Layout, relaxed: RelaxedOptimum) -> BoolArray:
    """The pairs that are worth a look: all units of a pool (`Layout.pools`) or none, slice by slice.

    Kept are those of which one carries something, and of each slice, stage and channel the least missed: what a pair
    costs beyond its worth per request (of the large units that serve at least cost) or per unit (of the small ones that
    fill up what is left of a demand).

    Args:
        layout: of a problem of one period.
        relaxed: its relaxation.

    Returns:
        Which pairs, shape (p,).
    """
    carries = relaxed.values[layout.column.rates[:, 0]] > 0.0
    slices = len(layout.deferrable)
    place = layout.pools[0][layout.pair_unit] * slices + layout.pair_slice
    stage = layout.stage[layout.pair_unit] * (len(layout.channels) + 1) + layout.channel[layout.pair_unit] + 1
    section = stage * slices + layout.pair_slice
    _, first, of_pair = np.unique(place, return_index=True, return_inverse=True)
    kept = np.zeros(len(first), dtype=bool)
    kept[of_pair[carries]] = True
    of_request = relaxed.excess[:, 0]
    for excess in (of_request, of_request * layout.tight_rates_per_s[:, 0]):
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
    start = 0
    for rows in program.rows if relaxed else ():
        if relaxed and rows.constraint not in STRUCTURAL:
            duals = relaxed.row_duals[start : start + len(rows)].tolist()
            for family, value in zip(rows.families(), duals, strict=True):
                total[family] = total.get(family, 0.0) + value
        start += len(rows)
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
    keys = cost.reshape(len(cost), -1).T[::-1]
    order = np.lexsort((*keys, section))
    own = section[order]
    return np.asarray(order[np.arange(len(order)) - np.searchsorted(own, own) < count])
