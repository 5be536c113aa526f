"""Whole units to routed rates: how much of each slice is served, and an even load."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, IntArray, PlannerError
from planner.optimizer.coefficients import mean_rate
from planner.optimizer.constraint_rows import Terms
from planner.optimizer.constraints import cap_at_demand, carry_rate, hand_over, serve_demand
from planner.optimizer.highs import SolverOutcome, solve_scaled
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Layout
from planner.optimizer.program import SPREAD_FIX, Program, ScaledProgram, scale_program
from planner.optimizer.tightening import cap_rates
from planner.optimizer.types import Objective

MAX_LOAD_LEVELS = 16
"""Most levels of load that are told apart; units still free after them share that of the last. A choice of accuracy."""
_LOAD_TOLERANCE = 1e-9
"""A dual above this says that a unit's load holds the level up; a level or a share of a slice below it is none."""


def routed_rates(layout: Layout, units: IntArray, objective: Objective) -> FloatArray:
    """Rate of every pair in every period [1/s], as evenly spread as the units allow. Shape (p, t).

    What is served: the demand where all of it must be, else as much as the units can. Of one slice, every unit of a
    stage in a channel carries in proportion to its capacity, and so do the channels. Of several slices, the largest
    load sum_s f_s / (r_s n) of any unit is made least, then the next largest (a max-min fair allocation, one linear
    program for each level: D. Bertsekas and R. Gallager 1992, "Data Networks", 2nd ed., section 6.5.2, from memory).

    Args:
        layout: of the units in use.
        units: how many are on, shape (j, t).
        objective: `min_cost` serves all the demand, the others as much as they can.

    Raises:
        PlannerError: the units cannot carry what they were chosen for.
    """
    if len(layout.deferrable) == 1 and not layout.deferrable[0]:
        return np.column_stack([proportional_rates(layout, units[:, t], 0, t) for t in range(layout.periods)])
    served = _served_per_s(layout, units, objective)
    return np.column_stack([_max_min_rates(layout, units[:, t], served[:, t]) for t in range(layout.periods)])


def trimmed_rates(layout: Layout, rates: FloatArray) -> FloatArray:
    """Rates that serve no more than there is, and of which stage SECOND carries as much as stage FIRST.

    Args:
        layout: of the units in use, at least cost.
        rates: of a solution, which may carry more; shape (p, t) [1/s].

    Returns:
        Of the same shape.
    """
    stage, width = layout.stage[layout.pair_unit], len(layout.channels)
    place = layout.pair_slice * width + layout.channel[layout.pair_unit]

    def scaled(mine: BoolArray, group: IntArray, wanted: FloatArray) -> None:
        total = np.zeros_like(wanted)
        np.add.at(total, group[mine], rates[mine])
        factor = np.where(total > wanted, wanted / np.where(total > 0.0, total, 1.0), 1.0)
        rates[mine] *= factor[group[mine]]

    rates = rates.copy()
    firm = np.where(layout.deferrable[:, None], math.inf, layout.demand_per_s)
    scaled(layout.served, layout.pair_slice, firm)
    handed_over = np.zeros((len(firm) * width, layout.periods))
    np.add.at(handed_over, place[stage == FIRST], rates[stage == FIRST])
    scaled(stage == SECOND, place, handed_over)
    return rates


def proportional_rates(layout: Layout, units: IntArray, slice_: int, period: int) -> FloatArray:
    """Rates of one slice in a period in proportion to capacity; a channel is as wide as its narrower stage [1/s].

    Args:
        layout: of the problem.
        units: how many are on for the slice, shape (j,).
        slice_: index of the slice.
        period: index of the period.

    Returns:
        By pair, shape (p,); no more than the demand.
    """
    unit = layout.pair_unit
    width = np.where(layout.pair_slice == slice_, layout.pair_rate * units[unit], 0.0)
    stage, channel = layout.stage[unit], layout.channel[unit]
    for code in range(len(layout.channels)):
        sides = [(stage == part) & (channel == code) for part in (FIRST, SECOND)]
        both = [float(width[side].sum()) for side in sides]
        for side, whole in zip(sides, both, strict=True):
            width[side] *= min(both) / whole if whole > 0.0 else 0.0
    total = float(width[layout.served].sum())
    served = min(total, float(layout.demand_per_s[slice_, period]))
    return np.asarray(width * (served / total if total > 0.0 else 0.0))


def _served_per_s(layout: Layout, units: IntArray, objective: Objective) -> FloatArray:
    """Of each slice in each period [1/s], shape (s, t).

    Deferrable work is put where it makes the largest load of any period least.
    """
    demand = layout.demand_per_s
    if objective is Objective.MIN_COST and not layout.deferrable.any():
        return demand
    least = objective is Objective.MIN_COST
    carry = carry_rate(layout)
    level = np.full(units.size, layout.columns)
    loaded = replace(carry, supply=Terms(np.arange(units.size), level, units.ravel().astype(float)))
    limit = serve_demand(layout) if least else cap_at_demand(layout)
    goal = np.append(np.zeros(layout.columns) if least else mean_rate(layout), 1.0 if least else 0.0)
    rows = tuple(rows for rows in (loaded, hand_over(layout), limit) if len(rows))
    scaled = scale_program(cap_rates(Program(layout, rows, goal, maximise=not least, extra_columns=1)))
    if not least:
        scaled.upper[-1] = 1.0
    scaled.upper[layout.column.units.ravel()] = 0.0
    solution = solve_scaled(scaled, whole=False)
    if solution.outcome is not SolverOutcome.PROVEN:
        raise PlannerError("units", units.tolist(), "cannot carry what they were chosen for", SPREAD_FIX)
    rates = (solution.values * scaled.column_unit)[layout.column.rates]
    served = np.zeros_like(demand)
    np.add.at(served, layout.pair_slice[layout.served], rates[layout.served])
    exact = layout.deferrable & least
    total = served @ layout.share
    factor = np.where(exact & (total > 0.0), layout.mean_demand_per_s / np.where(total > 0.0, total, 1.0), 1.0)
    served = served * factor[:, None]
    return np.where(layout.deferrable[:, None] | (not least), np.minimum(served, layout.ceiling_per_s), demand)


def _max_min_rates(layout: Layout, units: IntArray, served: FloatArray) -> FloatArray:
    """Rates of one period with the largest load least, then the next largest, and so on."""
    active = np.flatnonzero((units[layout.pair_unit] > 0) & (served[layout.pair_slice] > 0.0))
    rates = np.zeros(len(layout.pair_unit))
    if not len(active):
        return rates
    loads = served[layout.pair_slice[active]] / (layout.pair_rate[active] * units[layout.pair_unit[active]])
    members, unit_row = np.unique(layout.pair_unit[active], return_inverse=True)
    fixed = np.full(len(members), math.nan)
    shares = np.zeros(len(active))
    balance, wanted = _balance_rows(layout, active, served)
    for _ in range(MAX_LOAD_LEVELS):
        solution = solve_scaled(_level_program(loads, unit_row, fixed, balance, wanted), whole=False)
        if solution.outcome is not SolverOutcome.PROVEN:
            if np.isnan(fixed).all():
                raise PlannerError("units", units.tolist(), "cannot carry what they were chosen for", SPREAD_FIX)
            break
        shares = solution.values[:-1]
        level = float(solution.values[-1])
        holds = np.isnan(fixed) & (np.abs(solution.row_duals[: len(members)]) > _LOAD_TOLERANCE)
        fixed[holds] = level
        if level <= _LOAD_TOLERANCE or not holds.any() or not np.isnan(fixed).any():
            break
    rates[active] = np.where(shares > _LOAD_TOLERANCE, shares, 0.0) * served[layout.pair_slice[active]]
    return rates


def _balance_rows(layout: Layout, active: IntArray, served: FloatArray) -> tuple[sparse.csr_array, FloatArray]:
    """Rows over shares of a slice: all of it is served, and what is handed over is taken."""
    unit, own = layout.pair_unit[active], layout.pair_slice[active]
    stage, channel = layout.stage[unit], layout.channel[unit]
    count, width = len(served), len(layout.channels)
    column = np.arange(len(active))
    first: BoolArray = stage != SECOND
    staged: BoolArray = stage != WHOLE
    row = np.concatenate([own[first], count + own[staged] * width + channel[staged]])
    value = np.concatenate([np.ones(first.sum()), np.where(stage[staged] == FIRST, 1.0, -1.0)])
    where = (row, np.concatenate([column[first], column[staged]]))
    matrix = sparse.csr_array((value, where), shape=(count * (1 + width), len(active)))
    return matrix, np.concatenate([(served > 0.0).astype(float), np.zeros(count * width)])


def _level_program(
    loads: FloatArray, unit_row: IntArray, fixed: FloatArray, balance: sparse.csr_array, wanted: FloatArray
) -> ScaledProgram:
    """Least u with sum of loads <= u on every free unit and <= its own level on the others."""
    columns, members = len(loads), len(fixed)
    free = np.isnan(fixed)
    carry = sparse.csr_array((loads, (unit_row, np.arange(columns))), shape=(members, columns))
    level = sparse.csr_array(np.append(np.where(free, -1.0, 0.0), np.zeros(len(wanted)))[:, None])
    matrix = sparse.csr_array(sparse.hstack([sparse.vstack([carry, balance]), level]))
    none = np.full(columns + 1, -1, dtype=np.int64)
    return ScaledProgram(
        matrix=matrix,
        low=np.concatenate([np.full(members, -math.inf), wanted]),
        high=np.concatenate([np.where(free, 0.0, fixed), wanted]),
        goal=np.append(np.zeros(columns), 1.0),
        upper=np.full(columns + 1, math.inf),
        integer=np.zeros(columns + 1, dtype=bool),
        carry_row=none,
        column_unit=np.ones(columns + 1),
        row_unit=np.ones(members + len(wanted)),
        goal_unit=1.0,
    )
