"""The linear relaxation: a bound, the worth of every limit, and which few pairs of very many are worth a look.

Only columns are handed to the solver that no other betters, where units move freely.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.optimizer.constraints import STRUCTURAL
from planner.optimizer.highs import Solution, solve_program
from planner.optimizer.layout import Layout, unbettered
from planner.optimizer.program import Program, with_rates

POOLS_A_SLICE = 4
"""Pools kept for each slice and section by either measure. A choice of what is reached in how long: with fewer
the programs are smaller, but good fleets are rarer and take longer to find."""


def relax(program: Program, rate_per_s: FloatArray | None = None) -> Solution | None:
    """Solve the linear relaxation of a program; None where it has no solution.

    Args:
        program: as stated.
        rate_per_s: of each pair in each period, shape (p, t); default: `Layout.tight_rates_per_s`.

    Returns:
        An optimum.
    """
    layout = program.layout
    rate_per_s = layout.tight_rates_per_s if rate_per_s is None else rate_per_s
    program = with_rates(program, rate_per_s)
    if layout.periods == 1 or not layout.is_still.any():
        most, pairs = np.full(program.columns, math.inf), undominated(layout, rate_per_s)
        most[layout.column.rates[~pairs]] = 0.0
        most[np.setdiff1d(layout.column.units, layout.column.units[layout.pair_unit[pairs]])] = 0.0
        program = replace(program, most=most)
    solution = solve_program(program, whole=False)
    return solution if solution.is_found else None


def undominated(layout: Layout, rate_per_s: FloatArray) -> BoolArray:
    """Pairs that no other betters in any period, whatever blocks cost; shape (p,). The relaxation needs no others.

    One betters another of its slice and section that takes the same resources, where it takes no more of any and costs
    no more, per request. (The dominated columns of presolve: E. D. Andersen and K. D. Andersen 1995, "Presolving in
    linear programming", Mathematical Programming 71.)

    Args:
        layout: of a problem whose units move freely.
        rate_per_s: of each pair in each period, shape (p, t) [1/s].

    Returns:
        Which pairs.
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
        kept[mine] |= unbettered(group[mine], burden[mine] / rate[mine, None])
    return kept


def shortlist(program: Program, relaxed: Solution) -> BoolArray:
    """The pairs that are worth a look, shape (p,): all units of a pool (`Layout.pools`) or none, slice by slice.

    Kept are those of which one carries something, and of each slice and `Layout.section` the least missed: what a pair
    costs beyond its worth per request (of the large units that serve at least cost) or per unit (of the small ones that
    fill up what is left of a demand).

    Args:
        program: of one period.
        relaxed: its relaxation.

    Returns:
        Which pairs.
    """
    layout, missed = program.layout, _missed(program, relaxed)
    rate, of_unit = layout.tight_rates_per_s[:, 0], missed[layout.column.units[layout.pair_unit, 0]]
    of_request = missed[layout.column.rates[:, 0]] + of_unit / rate
    slices = len(layout.deferrable)
    place = layout.pools[0][layout.pair_unit] * slices + layout.pair_slice
    _, first, of_pair = np.unique(place, return_index=True, return_inverse=True)
    section = (layout.section[layout.pair_unit] * slices + layout.pair_slice)[first]
    kept = np.zeros(len(first), dtype=bool)
    kept[of_pair[relaxed.values[layout.column.rates[:, 0]] > 0.0]] = True
    for excess in (of_request, of_request * rate):
        least = np.full(len(first), math.inf)
        np.minimum.at(least, of_pair, excess)
        order = np.lexsort((least, section))
        place_in_section = np.arange(len(order)) - np.searchsorted(section[order], section[order])
        kept[order[place_in_section < POOLS_A_SLICE]] = True
    return np.asarray(kept[of_pair])


def affordable(program: Program, relaxed: Solution, most: float) -> BoolArray:
    """The pairs of units that may be in a fleet whose goal is at most so much, shape (p,).

    A fleet costs no less than the relaxation, and with a unit no less than that and what it costs beyond its worth.

    Args:
        program: of least cost.
        relaxed: its relaxation.
        most: of the goal [USD/h].

    Returns:
        Which pairs.
    """
    layout, missed = program.layout, _missed(program, relaxed)
    worth = np.zeros((len(layout.stage), layout.periods))  # of what one unit carries, of the slice where that is most
    np.maximum.at(worth, layout.pair_unit, -missed[layout.column.rates] * layout.tight_rates_per_s)
    beyond = missed[layout.column.units] - worth
    least = np.where(layout.steady, missed[layout.column.units[:, 0]] - worth.sum(axis=1), beyond.min(axis=1))
    return np.asarray((relaxed.bound + least <= most)[layout.pair_unit])


def _missed(program: Program, relaxed: Solution) -> FloatArray:
    """Cost of one of each column beyond its worth in the relaxation, whatever units carry."""
    missed = program.goal.copy()
    for rows, duals in program.by_constraint(relaxed.row_duals):
        if rows.constraint != "carry_rate":
            np.subtract.at(missed, rows.column, rows.value * duals[rows.row])
    return missed


def limit_duals(program: Program) -> dict[str, float]:
    """Worth of every limit in the relaxation [goal per unit of the limit], its limits moved in all periods at once.

    By family of rows that a report lists; empty if the relaxation has no solution.

    Args:
        program: as stated.
    """
    relaxed = relax(program, program.layout.capped_rates_per_s)
    total: dict[str, float] = {}
    for rows, duals in program.by_constraint(relaxed.row_duals) if relaxed else ():
        if rows.constraint not in STRUCTURAL:
            for family, value in zip(rows.families(), duals.tolist(), strict=True):
                total[family] = total.get(family, 0.0) + value
    return {family: value + 0.0 for family, value in total.items()}
