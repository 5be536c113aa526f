"""A fleet problem as an integer program in plain numbers; the same in fewer columns, and in numbers for a solver."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, InputError, IntArray
from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.constraints import build_rows
from planner.optimizer.layout import Layout
from planner.optimizer.types import Objective, Sense

LARGEST_LIMIT = 2.0**20
"""Rows whose limit is more than a million times their largest coefficient are scaled by the coefficient instead."""
SMALLEST_COEFFICIENT, LARGEST_COEFFICIENT = 1e-9, 1e9
"""Range of scaled coefficients. HiGHS treats those up to its option `small_matrix_value` (default 1e-9) as zero."""
SPREAD_FIX = "bring rates, costs and limits closer together in size"


@dataclass(frozen=True)
class Program:
    """A linear goal over rows; all columns are >= 0, those of `integer` are whole.

    Attributes:
        layout: what the columns stand for.
        rows: the constraints.
        goal: coefficient by column of what is minimised or maximised.
        maximise: direction.
        extra_columns: further real columns after those of the layout.
        most: by column, more than which is of no use; None: not known.
    """

    layout: Layout
    rows: tuple[ConstraintRows, ...]
    goal: FloatArray
    maximise: bool
    extra_columns: int = 0
    most: FloatArray | None = None

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.layout.columns + self.extra_columns

    def integer(self) -> BoolArray:
        """Which columns hold whole numbers: units, blocks, groups and kinds."""
        whole = np.arange(self.columns) < self.layout.columns
        whole[self.layout.column.rates] = whole[self.layout.column.starts] = False
        return whole

    def upper(self) -> FloatArray:
        """Largest value of each column: 1 for a group or kind in use, 0 for a rate of which there is none to carry."""
        most = np.full(self.columns, math.inf) if self.most is None else self.most.copy()
        most[self.layout.column.groups] = 1.0
        most[self.layout.column.kinds] = 1.0
        most[self.layout.column.rates[self.layout.pair_ceiling_per_s == 0.0]] = 0.0
        return most

    def by_constraint(self, by_row: FloatArray) -> Iterator[tuple[ConstraintRows, FloatArray]]:
        """The rows of each constraint, with what is given of all rows, e.g. duals."""
        first = np.cumsum([0, *map(len, self.rows)])
        return zip(self.rows, np.split(by_row, first[1:-1]), strict=True)

    def names(self) -> list[str]:
        """Names of all rows."""
        return [name for rows in self.rows for name in rows.names(self.layout)]


def build_program(layout: Layout, objective: Objective, ratio: float = 0.0) -> Program:
    """The program of a problem: its rows, and the goal [1/s or USD/h].

    Args:
        layout: of the problem.
        objective: see `Objective`.
        ratio: for `max_rate_per_cost`, the ratio q [1/s per USD/h] of the parametric goal ``rate - q cost``.
    """
    goals: Mapping[Objective, FloatArray] = {
        Objective.MIN_COST: layout.mean_cost + layout.charges,
        Objective.MAX_RATE: layout.mean_rate - layout.charges,
        Objective.MAX_RATE_PER_COST: layout.mean_rate - layout.charges - ratio * layout.mean_cost,
    }
    return Program(layout, build_rows(objective, layout), goals[objective], objective is not Objective.MIN_COST)


def with_rates(program: Program, rate_per_s: FloatArray) -> Program:
    """The program with other rates in its rows `carry_rate` [1/s].

    Args:
        program: as stated.
        rate_per_s: of each pair in each period, shape (p, t).
    """
    used = 1.0 / rate_per_s.ravel()
    rows = (
        replace(rows, value=np.append(used, rows.value[used.size :])) if rows.constraint == "carry_rate" else rows
        for rows in program.rows
    )
    return replace(program, rows=tuple(rows))


def pool_rates(program: Program) -> Program:
    """The tightened program in fewer columns, and with a largest count for every unit [units].

    Of units of one stage, channel, kind and set of groups whose rates are in proportion only the sum of what they carry
    matters: ``sum_s f_js / r_js <= n_j`` for each of them is ``sum_s f_s / r_s <= sum_j (r_j / r) n_j``. The sum stands
    in the columns of the first of them; `unpool_rates` gives it back to all.

    One unit more than carries all there is to carry, ``ceil(sum_s d_s / r_s)``, is of no use (of a unit that stands
    still, or whose start costs something, in the busiest period).

    Args:
        program: as stated.
    """
    layout, periods = program.layout, np.arange(program.layout.periods)
    lead, _, size = layout.pools
    leads = np.flatnonzero(lead[layout.pair_unit] == layout.pair_unit)
    unit = np.concatenate([layout.pair_unit[leads], lead])
    row = (unit[:, None] * len(periods) + periods).ravel()
    column = np.concatenate([layout.column.rates[leads], layout.column.units]).ravel()
    value = np.concatenate([1.0 / layout.tight_rates_per_s[leads], -size]).ravel()
    rows = (
        replace(r, row=row, column=column, value=value) if r.constraint == "carry_rate" else r for r in program.rows
    )
    load = layout.load.copy()
    load[layout.is_still] = load[layout.is_still].max(axis=1, keepdims=True)
    most = np.full(program.columns, math.inf)
    most[layout.column.units] = np.ceil(load)
    most[layout.column.rates[lead[layout.pair_unit] != layout.pair_unit]] = 0.0
    return replace(program, rows=tuple(rows), most=most)


def unpool_rates(layout: Layout, values: FloatArray) -> FloatArray:
    """Values of `pool_rates` by unit [1/s]: filled one after the other, so that what is not needed carries nothing.

    Args:
        layout: of the program.
        values: by column of the layout, pooled.
    """
    by_unit, rates = values.copy(), layout.tight_rates_per_s
    lead, pair_of, size = layout.pools
    for first in np.flatnonzero(np.bincount(lead) > 1):
        units, slices = np.flatnonzero(lead == first), np.flatnonzero(pair_of[first] >= 0)
        pooled = values[layout.column.rates[pair_of[first, slices]]]
        used = (pooled / rates[pair_of[first, slices]]).sum(axis=0)
        could = size[units] * values[layout.column.units[units]]
        before = np.cumsum(could, axis=0) - could
        share = np.clip(used - before, 0.0, could) / np.where(used > 0.0, used, 1.0)
        by_unit[layout.column.rates[pair_of[np.ix_(units, slices)]]] = share[:, None] * pooled
    is_off = values[layout.column.units][layout.pair_unit] == 0.0
    by_unit[layout.column.rates[is_off]] = 0.0  # a solver leaves 1e-14 there, and any rate is too much for no unit
    return by_unit


@dataclass(frozen=True)
class ScaledProgram:
    """A program ``least goal x  with  low <= matrix x <= high, 0 <= x <= upper`` for a solver.

    Attributes:
        matrix: rows by columns, as a scipy array (which has no element type of its own).
        low, high: by row.
        goal, upper: by column.
        column_unit: size of a scaled column in the program's unit.
        row_unit: size of a scaled row in the program's unit.
        goal_unit: program's goal = this x goal; negative where it is maximised.
    """

    matrix: Any
    low: FloatArray
    high: FloatArray
    goal: FloatArray
    upper: FloatArray
    column_unit: FloatArray
    row_unit: FloatArray
    goal_unit: float


def scale_program(program: Program) -> ScaledProgram:
    """The rows of a program below one another, in units that suit its size [powers of two of its own].

    Rates are counted in powers of two of their slice's demand, rows and goal divided by powers of two: no coefficient
    is rounded and all are about 1, because a solver's tolerances are absolute.

    Args:
        program: in its own units.

    Raises:
        InputError: sizes within one row are too far apart for a solver to see the smallest.
    """
    layout = program.layout
    first = np.cumsum([0, *map(len, program.rows)])
    row = np.concatenate([rows.row + start for rows, start in zip(program.rows, first[:-1], strict=True)])
    column, value, limit = (
        np.concatenate([getattr(rows, name) for rows in program.rows]) for name in ("column", "value", "limit")
    )
    is_most = np.concatenate([np.full(len(rows), rows.sense is Sense.AT_MOST) for rows in program.rows])
    column_unit = np.ones(program.columns)
    column_unit[layout.column.rates] = _powers_of_two(layout.ceiling_per_s.max(axis=1))[layout.pair_slice][:, None]
    value = value * column_unit[column]
    largest = np.zeros(len(limit))
    np.maximum.at(largest, row, np.abs(value))
    in_proportion = (limit >= largest / LARGEST_LIMIT) & (limit <= largest * LARGEST_LIMIT)
    row_unit = _powers_of_two(np.where(in_proportion, limit, largest))
    value = value / row_unit[row]
    _check_spread(program, row, column, value)
    goal = program.goal * column_unit
    goal_unit = float(_powers_of_two(np.abs(goal).max(initial=0.0, keepdims=True))[0])
    return ScaledProgram(
        matrix=sparse.csr_array((value, (row, column)), shape=(len(limit), program.columns)),
        low=np.where(is_most, -math.inf, limit / row_unit),
        high=np.where(is_most, limit / row_unit, math.inf),
        goal=(-goal if program.maximise else goal) / goal_unit,
        upper=program.upper() / column_unit,
        column_unit=column_unit,
        row_unit=row_unit,
        goal_unit=-goal_unit if program.maximise else goal_unit,
    )


def _check_spread(program: Program, row: IntArray, column: IntArray, value: FloatArray) -> None:
    """Raises InputError in the words of the request where a rate is too small for its slice, else by the row."""
    size = np.abs(value)
    wrong = np.flatnonzero((size > 0.0) & ~((size > SMALLEST_COEFFICIENT) & (size < LARGEST_COEFFICIENT)))
    if not len(wrong):
        return
    layout, at = program.layout, column[wrong[0]]
    of_unit = (layout.column.units == at).any(axis=1)[layout.pair_unit]
    takes = layout.pair_ceiling_per_s.max(axis=1) / layout.pair_rate
    is_small = (of_unit | (layout.column.rates == at).any(axis=1)) & (takes > LARGEST_COEFFICIENT / 2.0)
    for p in np.flatnonzero(is_small):
        bound = f"takes {takes[p]:.2g} of unit {layout.problem.units[layout.pair_unit[p]].name!r}"
        fix = "plan a part of the demand, or leave out pools that small"
        name = layout.problem.slices[layout.pair_slice[p]].name
        raise InputError(f"slices[{name}].demand_per_s", float(layout.pair_ceiling_per_s[p].max()), bound, fix)
    bound = f"scaled coefficient must lie in ({SMALLEST_COEFFICIENT:g}, {LARGEST_COEFFICIENT:g})"
    raise InputError(program.names()[int(row[wrong[0]])], float(size[wrong[0]]), bound, SPREAD_FIX)


def _powers_of_two(values: FloatArray) -> FloatArray:
    """The power of two just below the size of each value, of any sign; 1 for 0."""
    exponent = np.frexp(np.abs(values))[1] - 1
    return np.where(values == 0.0, 1.0, np.ldexp(1.0, exponent))
