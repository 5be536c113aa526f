"""The linear relaxation: a bound, the worth of every limit, what committed purchases are worth, what is worth a look.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out: few rows, and as many columns as there are rates. HiGHS solves 270,000
of them in half a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.constraints import build_rows
from planner.optimizer.highs import SolverOutcome, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program
from planner.optimizer.tightening import cap_rates, tight_rates_per_s
from planner.optimizer.types import Objective

PAIRS_A_SLICE = 20
"""Pairs kept for each slice, stage and channel by either measure (`shortlist`). A choice of what is reached in how
long: pools of one family differ little, so that several sizes of two or three families are among them."""


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


def relax(program: Program, time_limit_s: float = math.inf) -> RelaxedOptimum | None:
    """Solve the linear relaxation of a program.

    Args:
        program: with rates in its rows `carry_rate` that are tightened or capped.
        time_limit_s: of the run [s].

    Returns:
        None where it has no solution, or where the time ran out.
    """
    scaled = scale_program(program)
    substituted = np.flatnonzero(scaled.carry_row >= 0)
    others = np.ones(scaled.matrix.shape[0], dtype=bool)
    others[scaled.carry_row[substituted]] = False
    lp = _without_units(scaled, substituted, others)
    solution = solve_scaled(lp, whole=False, time_limit_s=time_limit_s)
    if solution.outcome is not SolverOutcome.PROVEN:
        return None
    duals, rates = np.zeros(len(others)), program.layout.column.rates
    duals[others] = solution.row_duals
    reduced = lp.goal - lp.matrix.T @ solution.row_duals
    return RelaxedOptimum(
        bound=solution.goal * scaled.goal_unit,
        row_duals=np.asarray(duals * scaled.goal_unit / scaled.row_unit),
        values=np.asarray(solution.values * scaled.column_unit),
        excess=np.asarray(np.maximum(reduced[rates], 0.0) * scaled.goal_unit / scaled.column_unit[rates]),
    )


def _without_units(scaled: ScaledProgram, substituted: IntArray, others: BoolArray) -> ScaledProgram:
    """The program with sum_s f_s / r_s in place of some columns n, without their rows `carry_rate`."""
    carry = scaled.matrix[scaled.carry_row[substituted]].tocoo()
    number, column = carry.coords
    is_rate = carry.data > 0.0
    own = np.zeros(len(substituted))
    own[number[~is_rate]] = -carry.data[~is_rate]
    number, column = number[is_rate], column[is_rate]
    share = carry.data[is_rate] / own[number]
    count = len(scaled.goal)
    same = np.setdiff1d(np.arange(count), substituted)
    row, place = np.concatenate([same, substituted[number]]), np.concatenate([same, column])
    back: Any = sparse.csr_array((np.append(np.ones(len(same)), share), (row, place)), shape=(count, count))
    upper = scaled.upper.copy()
    upper[column[scaled.upper[substituted[number]] == 0.0]] = 0.0
    upper[substituted] = 0.0
    return replace(
        scaled,
        matrix=sparse.csr_array(scaled.matrix[others] @ back),
        low=scaled.low[others],
        high=scaled.high[others],
        goal=back.T @ scaled.goal,
        upper=upper,
    )


def limit_duals(program: Program) -> dict[str, float]:
    """Worth of every limit in the relaxation: d(goal)/d(limit), its limits moved in all periods at once.

    Args:
        program: as stated.

    Returns:
        By family of rows [goal per unit of the limit]; empty if the relaxation has no solution.
    """
    relaxed = relax(cap_rates(program))
    total: dict[str, float] = {}
    if relaxed is not None:
        families = [family for rows in program.rows for family in rows.families()]
        for family, value in zip(families, relaxed.row_duals.tolist(), strict=True):
            total[family] = total.get(family, 0.0) + value
    return {family: value + 0.0 for family, value in total.items()}


def purchase_prices(layout: Layout, relaxed: RelaxedOptimum | None) -> FloatArray:
    """What a block of each purchase costs in each period, that of committed ones split over the periods [USD/h].

    A committed block is worth w_t in period t, the dual price of what it holds as a mean over the horizon; a block by
    the period never more than it costs. With any prices w_t / share_t of which the mean is no more than what the block
    costs, no fleet costs less than its periods by themselves do (weak duality), and these are the best in the
    relaxation.

    Source: A. M. Geoffrion 1974, "Lagrangean relaxation for integer programming", Mathematical Programming Study 2.

    Args:
        layout: of a problem of least cost.
        relaxed: its relaxation; None: the price is the same in all periods.

    Returns:
        Shape (purchases, periods).
    """
    price = np.repeat(layout.purchase_usd_per_hour[:, None], layout.periods, axis=1)
    committed = layout.purchase_committed
    if relaxed is None or not committed.any():
        return price
    worth = np.zeros((len(layout.problem.resources), layout.periods))
    start = 0
    for rows in build_rows(Objective.MIN_COST, layout):
        if rows.constraint == "hold_resource":
            worth[rows.subject, rows.periods] = np.maximum(-relaxed.row_duals[start : start + len(rows)], 0.0)
        start += len(rows)
    worth = worth[layout.purchase_resource] * (layout.purchase_block * layout.purchase_usable)[:, None]
    total = worth.sum(axis=1)
    scale = np.where(total > 0.0, layout.purchase_usd_per_hour / np.where(total > 0.0, total, 1.0), 1.0)
    split = worth * np.minimum(scale, 1.0)[:, None] / layout.share
    return np.asarray(np.where(committed[:, None], split, price))


def shortlist(layout: Layout, relaxed: RelaxedOptimum) -> BoolArray:
    """The few pairs that are worth a look in one period of very many.

    What a pair costs beyond its worth says how little it would be missed: per request of the large units that serve at
    least cost, per unit of the small ones that fill up what is left of a demand. Kept are those that carry something or
    are pinned, and the least missed by either measure.

    Args:
        layout: of a problem of one period.
        relaxed: its relaxation.

    Returns:
        Which pairs, shape (p,).
    """
    kept = (relaxed.values[layout.column.rates[:, 0]] > 0.0) | (layout.at_least[layout.pair_unit] > 0)
    place = (layout.pair_slice, layout.stage[layout.pair_unit], layout.channel[layout.pair_unit])
    _, section = np.unique(np.column_stack(place), axis=0, return_inverse=True)
    of_request = relaxed.excess[:, 0]
    for excess in (of_request, of_request * tight_rates_per_s(layout)[:, 0]):
        kept[best_of_each(section.ravel(), excess, PAIRS_A_SLICE)] = True
    return kept


def best_of_each(section: IntArray, cost: FloatArray, count: int) -> IntArray:
    """Indices of the cheapest of each section.

    Args:
        section: of each.
        cost: of each.
        count: so many of each section at most.

    Returns:
        Section by section, the cheapest first.

    >>> best_of_each(np.array([0, 1, 0, 1]), np.array([3.0, 1.0, 2.0, 4.0]), 1)
    array([2, 1])
    """
    order = np.lexsort((cost, section))
    own = section[order]
    return np.asarray(order[np.arange(len(order)) - np.searchsorted(own, own) < count])
