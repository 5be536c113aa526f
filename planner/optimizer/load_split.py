"""Whole units to routed rates: how much of each slice is served, and an even load."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray, PlannerError
from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.constraints import cap_at_demand, carry_rate, hand_over, serve_demand
from planner.optimizer.highs import Solution, solve_program
from planner.optimizer.layout import FIRST, SECOND, Layout
from planner.optimizer.program import SPREAD_FIX, Program, with_rates
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
    firm = np.zeros_like(layout.deferrable)
    return _max_min_rates(replace(layout, demand_per_s=served, ceiling_per_s=served, deferrable=firm), units)


def trimmed_rates(layout: Layout, rates: FloatArray) -> FloatArray:
    """Rates that serve no more than there is, and of which stage SECOND carries as much as stage FIRST [1/s].

    Args:
        layout: of the units in use, at least cost.
        rates: of a solution, which may carry more; shape (p, t) [1/s].
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
    """Rates of one slice in a period in proportion to capacity, shape (p,), no more than the demand [1/s].

    A channel is as wide as its narrower stage.

    Args:
        layout: of the problem.
        units: how many are on for the slice, shape (j,).
        slice_: index of the slice.
        period: index of the period.
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
    demand, least = layout.demand_per_s, objective is Objective.MIN_COST
    if least and not layout.deferrable.any():
        return demand
    level, rows = (math.nan, serve_demand(layout)) if least else (1.0, cap_at_demand(layout))
    goal = np.append(np.zeros(layout.columns), 1.0) if least else np.append(-layout.mean_rate, 0.0)
    solution = _carried(layout, units, np.full(units.shape, level), rows, goal)
    if not solution.is_found:
        raise PlannerError("units", units.tolist(), "cannot carry what they were chosen for", SPREAD_FIX)
    served = np.zeros_like(demand)
    np.add.at(served, layout.pair_slice[layout.served], solution.values[layout.column.rates[layout.served]])
    total = served @ layout.share
    exact = layout.deferrable & least & (total > 0.0)
    served *= np.where(exact, layout.mean_demand_per_s / np.where(exact, total, 1.0), 1.0)[:, None]
    return np.where(layout.deferrable[:, None] | (not least), np.minimum(served, layout.ceiling_per_s), demand)


def _max_min_rates(layout: Layout, units: IntArray) -> FloatArray:
    """Rates that serve all of firm slices with the largest load of each period least, then the next largest."""
    level = np.where(units > 0, math.nan, 0.0)
    goal = np.append(np.zeros(layout.columns), np.ones(layout.periods))
    best = None
    for _ in range(MAX_LOAD_LEVELS):
        solution = _carried(layout, units, level, serve_demand(layout), goal)
        if not solution.is_found:
            break
        best, reached = solution.values[layout.column.rates], solution.values[layout.columns :]
        is_held = np.abs(solution.row_duals[: units.size].reshape(units.shape)) > _LOAD_TOLERANCE
        held = np.isnan(level) & is_held
        level = np.where(held, reached, level)
        if not held.any() or not (np.isnan(level) & (reached > _LOAD_TOLERANCE)).any():
            break
    if best is None:
        raise PlannerError("units", units.tolist(), "cannot carry what they were chosen for", SPREAD_FIX)
    return trimmed_rates(layout, np.where(best > _LOAD_TOLERANCE * layout.pair_ceiling_per_s, best, 0.0))


def _carried(layout: Layout, units: IntArray, level: FloatArray, served: ConstraintRows, goal: FloatArray) -> Solution:
    """Solution of a program of loads; rows `carry_rate` come first.

    No unit is loaded to more than its `level`, shape (j, t); where that is nan, to no more than one of the columns that
    `goal`, to be least, has beyond those of the layout: that of the period, or the only one.
    """
    carry, entries, is_free = carry_rate(layout), layout.column.rates.size, np.isnan(level)
    levels = np.broadcast_to(np.arange(layout.columns, len(goal)), units.shape)
    loads = replace(
        carry,
        column=np.append(carry.column[:entries], levels),
        value=np.append(carry.value[:entries], np.where(is_free, -units, 0.0)),
        limit=np.where(is_free, 0.0, units * level).ravel(),
    )
    rows = tuple(rows for rows in (loads, hand_over(layout), served) if len(rows))
    program = Program(layout, rows, goal, maximise=False, extra_columns=len(goal) - layout.columns)
    return solve_program(with_rates(program, layout.capped_rates_per_s), whole=False)
