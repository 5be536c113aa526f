"""The linear relaxation: a bound, the worth of every limit, and what committed purchases are worth in each period.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out: few rows, and as many columns as there are rates. Of many columns only
those that pay are handed to the solver (*sifting*: R. E. Bixby, J. W. Gregory, I. J. Lustig, R. E. Marsten and D. F.
Shanno 1992, "Very large-scale linear programming", Operations Research 40(5), 885-897).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.constraints import STRUCTURAL, build_rows
from planner.optimizer.highs import Solution, SolverOutcome, solve_scaled
from planner.optimizer.layout import STAGES, Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program
from planner.optimizer.tightening import cap_rates
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Objective

SIFTED_COLUMNS = 20_000
"""Columns beyond which a relaxation is sifted. Affects speed only."""
SIFTED_AT_ONCE = 4
"""Columns that are added for each slice, stage, channel and period in a round of sifting. Affects speed only."""
SIFTING_GAP = 1e-5
"""Sifting ends when the columns left out could better the goal by this share at most; the bound is less by as much."""
NOT_SERVED = 100.0
"""What not serving costs at first, as a multiple of the dearest column; raised a thousandfold while it pays."""
RAISES = 5
"""Most often that is tried. The bound holds whatever it costs."""


@dataclass(frozen=True)
class RelaxedOptimum:
    """An optimum of the relaxation, but for `SIFTING_GAP`.

    Attributes:
        bound: no solution is better, in the unit of the goal; of goals that are minimised.
        row_duals: d(goal)/d(limit) by row of the program; 0 for rows `carry_rate` that dropped out.
        values: by column of the program; 0 for units that dropped out.
        excess: what one more request per second of a pair would cost beyond its worth; shape (p, t).
        active: columns that were handed to the solver.
    """

    bound: float
    row_duals: FloatArray
    values: FloatArray
    excess: FloatArray
    active: BoolArray


def relax(program: Program, time_limit_s: float = math.inf, begin: BoolArray | None = None) -> RelaxedOptimum | None:
    """Solve the linear relaxation of a program.

    Args:
        program: with rates in its rows `carry_rate` that are tightened or capped.
        time_limit_s: of all runs together [s].
        begin: `RelaxedOptimum.active` of a similar program, from which sifting starts.

    Returns:
        None where it has no solution, or where the time ran out.
    """
    scaled = scale_program(program)
    substituted = np.flatnonzero(scaled.carry_row >= 0)
    others = np.ones(scaled.matrix.shape[0], dtype=bool)
    others[scaled.carry_row[substituted]] = False
    lp = _without_units(scaled, substituted, others)
    layout, rates, active = program.layout, program.layout.column.rates, lp.upper > 0.0
    if active.sum() > SIFTED_COLUMNS:
        section, most = np.full(program.columns, -1), np.zeros(program.columns)
        section[rates] = sections(layout)[:, None] * layout.periods + np.arange(layout.periods)
        most[rates] = layout.ceiling_per_s[layout.pair_slice] / scaled.column_unit[rates]
        found = _Sifting(lp, section, most, time_limit_s).run(begin)
        if found is None:
            return None
        solution, bound, active = found
    else:
        solution = solve_scaled(lp, whole=False, time_limit_s=time_limit_s)
        bound = solution.goal
    if solution.outcome is not SolverOutcome.PROVEN:
        return None
    duals = np.zeros(len(others))
    duals[others] = solution.row_duals
    reduced = lp.goal - lp.matrix.T @ solution.row_duals
    return RelaxedOptimum(
        bound=bound * scaled.goal_unit,
        row_duals=np.asarray(duals * scaled.goal_unit / scaled.row_unit),
        values=np.asarray(solution.values * scaled.column_unit),
        excess=np.asarray(np.maximum(reduced[rates], 0.0) * scaled.goal_unit / scaled.column_unit[rates]),
        active=active,
    )


def sections(layout: Layout) -> IntArray:
    """Of which slice, stage and channel a pair is.

    Args:
        layout: of the problem.

    Returns:
        A number by pair, shape (p,).
    """
    place = layout.stage * (len(layout.channels) + 1) + layout.channel + 1
    return np.asarray(layout.pair_slice * len(STAGES) * (len(layout.channels) + 1) + place[layout.pair_unit])


class _Sifting:
    """A linear program of many columns, solved over those that pay.

    Args:
        lp: the program.
        section: of each column that may be left out for a time; -1: always there.
        most: of all columns of its section together, by column.
        time_limit_s: of all runs together [s].
    """

    def __init__(self, lp: ScaledProgram, section: IntArray, most: FloatArray, time_limit_s: float) -> None:
        self.lp, self.section, self.most, self.time_left_s = lp, section, most, time_limit_s
        self.columns, self.by_column = len(lp.goal), lp.matrix.T.tocsr()
        self.free = np.flatnonzero((section >= 0) & (lp.upper > 0.0))
        needs = np.flatnonzero(lp.low > 0.0)
        count = len(needs)
        lack = sparse.csr_array((np.ones(count), (needs, np.arange(count))), shape=(len(lp.low), count))
        self.matrix = sparse.csr_array(sparse.hstack([lp.matrix, lack]))
        self.upper = np.append(lp.upper, np.full(count, math.inf))
        self.integer = np.zeros(self.columns + count, dtype=bool)

    def run(self, begin: BoolArray | None) -> tuple[Solution, float, BoolArray] | None:
        """Solution, bound and columns used; None where there is no solution, or no time."""
        active = self.section < 0
        active[self._best(self.lp.goal, self.free, SIFTED_AT_ONCE)] = True
        active = active if begin is None else active | begin
        lack_usd = NOT_SERVED * float(np.abs(self.lp.goal).max(initial=0.0))
        for _ in range(RAISES):
            solution, bound = self._run(active, self.lp.goal, lack_usd)
            if not solution.outcome.has_solution:
                return None
            if solution.values[self.columns :].max(initial=0.0) <= FEASIBILITY_TOLERANCE:
                break
            if self._run(active, np.zeros(self.columns), 1.0)[1] > FEASIBILITY_TOLERANCE:
                return None
            lack_usd *= 1e3
        return replace(solution, values=solution.values[: self.columns]), bound, active

    def _run(self, active: BoolArray, goal: FloatArray, lack_usd: float) -> tuple[Solution, float]:
        """The optimum and its bound; `active` grows."""
        lacks = len(self.upper) - self.columns
        lp = replace(self.lp, matrix=self.matrix, goal=np.append(goal, np.full(lacks, lack_usd)), integer=self.integer)
        while True:
            here = np.append(active, np.ones(lacks, dtype=bool))
            upper = np.where(here, self.upper, 0.0)
            solution = solve_scaled(replace(lp, upper=upper), whole=False, time_limit_s=self.time_left_s)
            self.time_left_s -= solution.seconds
            if solution.outcome is not SolverOutcome.PROVEN:
                return replace(solution, outcome=SolverOutcome.UNKNOWN), math.inf
            reduced = goal - self.by_column @ solution.row_duals
            pays = self.free[(reduced[self.free] < 0.0) & ~active[self.free]]
            best = self._best(reduced, pays, 1)
            could_save = -float((reduced[best] * self.most[best]).sum())
            if could_save <= SIFTING_GAP * abs(solution.goal):
                return solution, solution.goal - could_save
            active[self._best(reduced, pays, SIFTED_AT_ONCE)] = True

    def _best(self, cost: FloatArray, columns: IntArray, count: int) -> IntArray:
        return np.asarray(columns[best_of_each(self.section[columns], cost[columns], count)])


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
    same = np.delete(np.arange(count), substituted)
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
        By family of rows that a report lists [goal per unit of the limit]; empty if the relaxation has no solution.
    """
    relaxed = relax(cap_rates(program))
    total: dict[str, float] = {}
    start = 0
    if relaxed is None:
        return total
    for rows in program.rows:
        if rows.constraint not in STRUCTURAL:
            duals = relaxed.row_duals[start : start + len(rows)].tolist()
            for family, value in zip(rows.families(), duals, strict=True):
                total[family] = total.get(family, 0.0) + value
        start += len(rows)
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
