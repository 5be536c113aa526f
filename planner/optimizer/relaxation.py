"""The linear relaxation: a bound, the worth of every limit, and what each unit would cost above the bound.

Where nothing but the rate a unit carries asks for more units, their fractional number is n = sum_s f_s / r_s, so that
the columns n and the rows `carry_rate` drop out and a large program becomes one of few rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from planner.optimizer.highs import Outcome, solve_system
from planner.optimizer.layout import Floats, Ints, Layout, Mask
from planner.optimizer.program import Program, System, system_of
from planner.optimizer.tightening import tamed, tight_rates_per_s

PRICED_IN = 64
"""Units added at once; more rounds of smaller programs, or fewer of larger ones."""
PRICING_ROUNDS = 40
"""After so many the plain relaxation has to do."""
_PRICED_OUT = 1e-7
"""A unit must promise more than this to be added, on goals scaled to about 1 (HiGHS `dual_feasibility_tolerance`)."""


@dataclass(frozen=True)
class Relaxed:
    """The relaxation solved, in the units of the system.

    Attributes:
        outcome: see `Outcome`.
        bound: no solution of the system has a smaller goal; minus infinity if nothing was proved.
        row_duals: d goal / d limit of each row (0 for rows that dropped out); empty without a solution.
        penalty: any solution in which the whole column is at least 1 has a goal of at least bound + penalty; 0 for
            columns of which nothing is known. Empty without a solution.
        seconds: taken by the solver.
    """

    outcome: Outcome
    bound: float
    row_duals: Floats
    penalty: Floats
    seconds: float


def relax(system: System, time_limit_s: float = math.inf) -> Relaxed:
    """Solve the linear relaxation.

    The penalty of units n is their reduced cost when each of them carries what is worth most at the duals: with v_s
    the dual worth of the rate of slice s and c~ the dual price of a unit, d = c~ - max(0, max_s r_s v_s) >= 0, and
    weak duality gives goal >= bound + sum d n for every solution. Reduced-cost fixing: G. L. Nemhauser and L. A.
    Wolsey 1988, "Integer and Combinatorial Optimization", section II.5.2 (from memory).
    """
    gone = np.flatnonzero(system.carry_row >= 0)
    smaller, unit_of, per_rate = _without_units(system, gone)
    found = solve_system(smaller, whole=False, time_limit_s=time_limit_s)
    if found.outcome is not Outcome.PROVEN:
        return Relaxed(found.outcome, -math.inf, np.zeros(0), np.zeros(0), found.seconds)
    others = np.ones(system.matrix.shape[0], dtype=bool)
    others[system.carry_row[gone]] = False
    row_duals = np.zeros(len(others))
    row_duals[others] = found.row_duals
    penalty = np.where(system.integer, found.reduced_costs, 0.0)
    priced = system.goal - system.matrix.T @ row_duals
    penalty[gone] = priced[gone]
    rates = np.flatnonzero(unit_of >= 0)
    np.minimum.at(penalty, unit_of[rates], found.reduced_costs[rates] / per_rate[rates])
    return Relaxed(found.outcome, found.bound, row_duals, np.maximum(penalty, 0.0), found.seconds)


def _without_units(system: System, gone: Ints) -> tuple[System, Ints, Floats]:
    """The system with n = sum_s f_s / r_s; and for each column f of such units, which n it is part of, and 1 / r_s."""
    rows = system.carry_row[gone]
    carry = system.matrix[rows].tocoo()
    number, column = carry.coords
    is_rate = carry.data > 0.0
    own = np.zeros(len(gone))
    own[number[~is_rate]] = -carry.data[~is_rate]
    number, column = number[is_rate], column[is_rate]
    share = carry.data[is_rate] / own[number]
    count = len(system.goal)
    unit_of, per_rate = np.full(count, -1, dtype=np.int64), np.ones(count)
    unit_of[column], per_rate[column] = gone[number], share
    stays = np.ones(count, dtype=bool)
    stays[gone] = False
    same = np.flatnonzero(stays)
    back: Any = sparse.csr_array(
        (
            np.concatenate([np.ones(len(same)), share]),
            (np.concatenate([same, gone[number]]), np.concatenate([same, column])),
        ),
        shape=(count, count),
    )
    others = np.ones(system.matrix.shape[0], dtype=bool)
    others[rows] = False
    upper = system.upper.copy()
    upper[column[system.upper[gone[number]] == 0.0]] = 0.0
    upper[gone] = 0.0
    smaller = replace(
        system,
        matrix=sparse.csr_array(system.matrix[others] @ back),
        low=system.low[others],
        high=system.high[others],
        goal=back.T @ system.goal,
        upper=upper,
        carry_row=np.full(count, -1, dtype=np.int64),
    )
    return smaller, unit_of, per_rate


def unit_penalties(layout: Layout, penalty: Floats) -> Floats:
    """Least penalty of having one unit on in any period, by unit."""
    return np.asarray(penalty[layout.units_column].min(axis=1))


def strengthen(program: Program, system: System, kept: Mask, time_limit_s: float) -> Relaxed | None:
    """The relaxation with the rows ``f[j, s, t] <= d[s, t] n[j, t]`` of `with_carry_most`, over all units.

    Solved over a few units at first; the others are priced out at its duals and the most promising added, until none
    is left (column generation; P. C. Gilmore and R. E. Gomory 1961, "A linear programming approach to the
    cutting-stock problem", Operations Research 9(6)). One unit of j is worth at most the fractional knapsack
    ``K = max sum_s v_s f_s`` with ``sum_s f_s / r_s <= 1`` and ``f_s <= d_s``, which takes the slices in falling order
    of v_s r_s; its penalty is the dual price of the unit less K.

    Args:
        program: with the rows of `with_carry_most`.
        system: of that program.
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
    shared = np.concatenate([np.full(len(r), r.constraint not in ("carry_rate", "carry_most")) for r in program.rows])
    for _ in range(PRICING_ROUNDS):
        upper = np.where((owner < 0) | kept[owner], system.upper, 0.0)
        found = solve_system(replace(system, upper=upper), whole=False, time_limit_s=time_limit_s - seconds)
        seconds += found.seconds
        if found.outcome is not Outcome.PROVEN:
            return None
        priced = system.goal - system.matrix.T @ np.where(shared, found.row_duals, 0.0)
        above = _above_worth(layout, system, priced)
        wanted = np.flatnonzero(~kept & (above < -_PRICED_OUT))
        if not len(wanted):
            penalty = np.zeros(program.columns)
            penalty[layout.units_column] = np.maximum(above, 0.0)[:, None]
            return Relaxed(found.outcome, found.bound, found.row_duals, penalty, seconds)
        kept[wanted[np.argsort(above[wanted], kind="stable")[:PRICED_IN]]] = True
    return None


def _above_worth(layout: Layout, system: System, priced: Floats) -> Floats:
    """Dual price of a unit less the most that it can be worth, least over the periods. Shape (j,)."""
    count, periods = layout.units_column.shape
    share = np.minimum(layout.ceiling_per_s[layout.pair_slice] / tight_rates_per_s(layout), 1.0)
    worth = np.zeros((count, periods, len(layout.deferrable)))
    room = np.zeros_like(worth)
    per_share = tight_rates_per_s(layout) / system.column_unit[layout.rate_column]
    worth[layout.pair_unit, :, layout.pair_slice] = np.maximum(-priced[layout.rate_column] * per_share, 0.0)
    room[layout.pair_unit, :, layout.pair_slice] = share
    order = np.argsort(-worth, axis=2, kind="stable")
    worth, room = np.take_along_axis(worth, order, axis=2), np.take_along_axis(room, order, axis=2)
    before = np.cumsum(room, axis=2) - room
    most = (worth * np.clip(1.0 - before, 0.0, room)).sum(axis=2)
    price = priced[layout.units_column]
    still = (layout.units_column == layout.units_column[:, :1]).all(axis=1)
    return np.asarray(np.where(still, price[:, 0] - most.sum(axis=1), (price - most).min(axis=1)))


def duals(program: Program) -> dict[str, float]:
    """d(goal)/d(limit) by family of rows, its limits moved in all periods at once. Empty if the relaxation has none."""
    system = system_of(tamed(program))
    found = relax(system)
    if found.outcome is not Outcome.PROVEN:
        return {}
    worth = found.row_duals * system.goal_unit / system.row_unit
    total: dict[str, float] = {}
    families = [family for rows in program.rows for family in rows.families()]
    for family, value in zip(families, worth.tolist(), strict=True):
        total[family] = total.get(family, 0.0) + value
    return {family: value + 0.0 for family, value in total.items()}
