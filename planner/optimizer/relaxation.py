"""The linear relaxation: a bound, the worth of every limit, and what each unit costs above the bound.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out and a large program becomes one of few rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.highs import SolverOutcome, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program
from planner.optimizer.tightening import cap_rates, tight_rates_per_s

UNITS_ADDED_PER_ROUND = 64
"""Units added in a round of column generation. Affects speed only: few large programs, or many small ones."""
MAX_PRICING_ROUNDS = 40
"""Rounds of column generation after which the plain relaxation has to do. Affects speed only."""
_PRICING_TOLERANCE = 1e-7
"""Least gain for which a unit is added, on goals scaled to about 1 (HiGHS `dual_feasibility_tolerance`)."""


@dataclass(frozen=True)
class RelaxedSolution:
    """The relaxation solved, in the units of the scaled program.

    Attributes:
        outcome: see `SolverOutcome`.
        bound: no solution has a smaller goal; minus infinity if nothing was proved.
        row_duals: d goal / d limit of each row (0 for rows that dropped out); empty without a solution.
        penalty: any solution in which the whole column is at least 1 has a goal of at least bound + penalty; 0 for
            columns of which nothing is known. Empty without a solution.
        seconds: taken by the solver [s].
    """

    outcome: SolverOutcome
    bound: float
    row_duals: FloatArray
    penalty: FloatArray
    seconds: float


def solve_relaxation(scaled: ScaledProgram, time_limit_s: float = math.inf) -> RelaxedSolution:
    """Solve the linear relaxation.

    The penalty of units n is their reduced cost when each of them carries what is worth most at the duals: with v_s
    the dual worth of the rate of slice s and c~ the dual price of a unit, d = c~ - max(0, max_s r_s v_s) >= 0, and
    weak duality gives goal >= bound + sum d n for every solution.

    Source: reduced-cost fixing, G. L. Nemhauser and L. A. Wolsey 1988, "Integer and Combinatorial Optimization",
    section II.5.2 (from memory).

    Args:
        scaled: whose relaxation.
        time_limit_s: of the solver [s].

    Returns:
        Bound, duals and penalties, or only the outcome where it was not solved.
    """
    substituted = np.flatnonzero(scaled.carry_row >= 0)
    smaller = _substitute_units(scaled, substituted)
    solution = solve_scaled(smaller.scaled, whole=False, time_limit_s=time_limit_s)
    if solution.outcome is not SolverOutcome.PROVEN:
        return RelaxedSolution(solution.outcome, -math.inf, np.zeros(0), np.zeros(0), solution.seconds)
    others = np.ones(scaled.matrix.shape[0], dtype=bool)
    others[scaled.carry_row[substituted]] = False
    row_duals = np.zeros(len(others))
    row_duals[others] = solution.row_duals
    penalty = np.where(scaled.integer, solution.reduced_costs, 0.0)
    priced = scaled.goal - scaled.matrix.T @ row_duals
    penalty[substituted] = priced[substituted]
    rates = np.flatnonzero(smaller.unit_of >= 0)
    units = smaller.unit_of[rates]
    np.minimum.at(penalty, units, solution.reduced_costs[rates] / smaller.per_rate[rates])
    return RelaxedSolution(solution.outcome, solution.bound, row_duals, np.maximum(penalty, 0.0), solution.seconds)


@dataclass(frozen=True)
class _Substitution:
    """A program in which sum_s f_s / r_s stands for some columns n.

    Attributes:
        scaled: the program; the columns n are fixed at 0.
        unit_of: for each column f of such units the column n it is part of; -1 for all others.
        per_rate: 1 / r_s of these columns.
    """

    scaled: ScaledProgram
    unit_of: IntArray
    per_rate: FloatArray


def _substitute_units(scaled: ScaledProgram, substituted: IntArray) -> _Substitution:
    """The program without some columns n, and without their rows `carry_rate`."""
    rows = scaled.carry_row[substituted]
    carry = scaled.matrix[rows].tocoo()
    number, column = carry.coords
    is_rate = carry.data > 0.0
    own = np.zeros(len(substituted))
    own[number[~is_rate]] = -carry.data[~is_rate]
    number, column = number[is_rate], column[is_rate]
    share = carry.data[is_rate] / own[number]
    count = len(scaled.goal)
    unit_of, per_rate = np.full(count, -1, dtype=np.int64), np.ones(count)
    unit_of[column], per_rate[column] = substituted[number], share
    stays = np.ones(count, dtype=bool)
    stays[substituted] = False
    same = np.flatnonzero(stays)
    back: Any = sparse.csr_array(
        (
            np.concatenate([np.ones(len(same)), share]),
            (np.concatenate([same, substituted[number]]), np.concatenate([same, column])),
        ),
        shape=(count, count),
    )
    others = np.ones(scaled.matrix.shape[0], dtype=bool)
    others[rows] = False
    upper = scaled.upper.copy()
    upper[column[scaled.upper[substituted[number]] == 0.0]] = 0.0
    upper[substituted] = 0.0
    smaller = replace(
        scaled,
        matrix=sparse.csr_array(scaled.matrix[others] @ back),
        low=scaled.low[others],
        high=scaled.high[others],
        goal=back.T @ scaled.goal,
        upper=upper,
        carry_row=np.full(count, -1, dtype=np.int64),
    )
    return _Substitution(smaller, unit_of, per_rate)


def unit_penalties(layout: Layout, penalty: FloatArray) -> FloatArray:
    """Least penalty of having one unit on in any period.

    Args:
        layout: of the program.
        penalty: by column [goal of the scaled program].

    Returns:
        By unit [goal of the scaled program]; shape (j,).
    """
    return np.asarray(penalty[layout.units_column].min(axis=1))


def strengthen(program: Program, scaled: ScaledProgram, kept: BoolArray, time_limit_s: float) -> RelaxedSolution | None:
    """The relaxation with the rows ``f[j, s, t] <= d[s, t] n[j, t]`` of `add_carry_most_rows`, over all units.

    Solved over a few units at first; the others are priced out at its duals and those that gain most are added, until
    none is left (column generation; P. C. Gilmore and R. E. Gomory 1961, "A linear programming approach to the
    cutting-stock problem", Operations Research 9(6)). One unit of j is worth at most the fractional knapsack
    ``K = max sum_s v_s f_s`` with ``sum_s f_s / r_s <= 1`` and ``f_s <= d_s``, which takes the slices in falling order
    of v_s r_s; its penalty is the dual price of the unit less K.

    Args:
        program: with the rows of `add_carry_most_rows`.
        scaled: of that program.
        kept: units to begin with.
        time_limit_s: for the linear programs [s].

    Returns:
        None if it was not solved in time, or the units to begin with cannot serve the demand.
    """
    layout, kept, seconds = program.layout, kept.copy(), 0.0
    owner = np.full(program.columns, -1, dtype=np.int64)
    owner[layout.units_column] = np.arange(len(kept))[:, None]
    owner[layout.rate_column] = layout.pair_unit[:, None]
    owner[layout.starts_column] = layout.start_units[:, None]
    shared = np.concatenate(
        [np.full(len(rows), rows.constraint not in ("carry_rate", "carry_most")) for rows in program.rows]
    )
    for _ in range(MAX_PRICING_ROUNDS):
        upper = np.where((owner < 0) | kept[owner], scaled.upper, 0.0)
        solution = solve_scaled(replace(scaled, upper=upper), whole=False, time_limit_s=time_limit_s - seconds)
        seconds += solution.seconds
        if solution.outcome is not SolverOutcome.PROVEN:
            return None
        priced = scaled.goal - scaled.matrix.T @ np.where(shared, solution.row_duals, 0.0)
        above = _penalties_over_worth(layout, scaled, priced)
        wanted = np.flatnonzero(~kept & (above < -_PRICING_TOLERANCE))
        if not len(wanted):
            penalty = np.zeros(program.columns)
            penalty[layout.units_column] = np.maximum(above, 0.0)[:, None]
            return RelaxedSolution(solution.outcome, solution.bound, solution.row_duals, penalty, seconds)
        kept[wanted[np.argsort(above[wanted], kind="stable")[:UNITS_ADDED_PER_ROUND]]] = True
    return None


def _penalties_over_worth(layout: Layout, scaled: ScaledProgram, priced: FloatArray) -> FloatArray:
    """Dual price of a unit less the most that it can be worth, least over the periods. Shape (j,)."""
    count, periods = layout.units_column.shape
    share = np.minimum(layout.ceiling_per_s[layout.pair_slice] / tight_rates_per_s(layout), 1.0)
    worth = np.zeros((count, periods, len(layout.deferrable)))
    room = np.zeros_like(worth)
    per_share = tight_rates_per_s(layout) / scaled.column_unit[layout.rate_column]
    worth[layout.pair_unit, :, layout.pair_slice] = np.maximum(-priced[layout.rate_column] * per_share, 0.0)
    room[layout.pair_unit, :, layout.pair_slice] = share
    order = np.argsort(-worth, axis=2, kind="stable")
    worth, room = np.take_along_axis(worth, order, axis=2), np.take_along_axis(room, order, axis=2)
    before = np.cumsum(room, axis=2) - room
    most = (worth * np.clip(1.0 - before, 0.0, room)).sum(axis=2)
    price = priced[layout.units_column]
    still = (layout.units_column == layout.units_column[:, :1]).all(axis=1)
    return np.asarray(np.where(still, price[:, 0] - most.sum(axis=1), (price - most).min(axis=1)))


def limit_duals(program: Program) -> dict[str, float]:
    """Worth of every limit in the relaxation: d(goal)/d(limit), its limits moved in all periods at once.

    Args:
        program: as stated.

    Returns:
        By family of rows [goal per unit of the limit]; empty if the relaxation has no solution.
    """
    scaled = scale_program(cap_rates(program))
    solution = solve_relaxation(scaled)
    if solution.outcome is not SolverOutcome.PROVEN:
        return {}
    worth = solution.row_duals * scaled.goal_unit / scaled.row_unit
    total: dict[str, float] = {}
    families = [family for rows in program.rows for family in rows.families()]
    for family, value in zip(families, worth.tolist(), strict=True):
        total[family] = total.get(family, 0.0) + value
    return {family: value + 0.0 for family, value in total.items()}
