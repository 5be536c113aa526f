"""A fleet problem as an integer program in plain numbers, and the same in numbers a solver is comfortable with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from planner.core import BoolArray, FloatArray, InputError, IntArray
from planner.optimizer.coefficients import mean_cost, mean_rate
from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.constraints import build_rows
from planner.optimizer.layout import Layout, build_layout
from planner.optimizer.types import FEASIBILITY_TOLERANCE, FleetProblem, Objective, Sense

LARGEST_LIMIT = 2.0**20
"""Rows whose limit is more than a million times their largest coefficient are scaled by the coefficient instead."""
SMALLEST_COEFFICIENT, LARGEST_COEFFICIENT = 1e-9, 1e9
"""Range of scaled coefficients. HiGHS treats those up to its option `small_matrix_value` (default 1e-9) as zero."""
SPREAD_FIX = "bring rates, costs and limits closer together in size"


@dataclass(frozen=True)
class Program:
    """A linear goal over rows; all columns are >= 0, those of `Layout.integer` are whole.

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
        """Which columns hold whole numbers."""
        return np.concatenate([self.layout.integer(), np.zeros(self.extra_columns, dtype=bool)])

    def upper(self) -> FloatArray:
        """Largest value of each column: 1 for a group or kind in use, 0 for a rate of which there is none to carry."""
        most = np.full(self.columns, math.inf) if self.most is None else self.most.copy()
        most[self.layout.column.groups] = 1.0
        most[self.layout.column.kinds] = 1.0
        idle = self.layout.ceiling_per_s[self.layout.pair_slice] == 0.0
        most[self.layout.column.rates[idle]] = 0.0
        return most

    def names(self) -> list[str]:
        """Names of all rows."""
        return [name for rows in self.rows for name in rows.names(self.layout)]


def build_program(problem: FleetProblem | Layout, objective: Objective, ratio: float = 0.0) -> Program:
    """The program of a problem: its rows, and the goal.

    Args:
        problem: see `FleetProblem`; or its layout, where that is known already.
        objective: see `Objective`.
        ratio: for `max_rate_per_cost`, the ratio q [1/s per USD/h] of the parametric goal ``rate - q cost``.

    Returns:
        The program in its own units.

    Raises:
        InputError: a name that the problem does not have.
    """
    layout = problem if isinstance(problem, Layout) else build_layout(problem)
    cost, rate = mean_cost(layout), mean_rate(layout)
    goals: Mapping[Objective, FloatArray] = {
        Objective.MIN_COST: cost,
        Objective.MAX_RATE: rate,
        Objective.MAX_RATE_PER_COST: rate - ratio * cost,
    }
    return Program(layout, build_rows(objective, layout), goals[objective], objective is not Objective.MIN_COST)


@dataclass(frozen=True)
class ScaledProgram:
    """``low <= matrix x <= high``, ``0 <= x <= upper``, some x whole, goal least: what a solver takes.

    Attributes:
        matrix: rows x columns, sparse.
        low, high: of each row.
        goal: to be minimised, by column.
        upper: of each column.
        integer: which columns hold whole numbers.
        carry_row: by column. For units that only `carry_rate` asks for, the number of that row; -1 for all others.
        column_unit: size of a scaled column in the program's unit.
        row_unit: size of a scaled row in the program's unit.
        goal_unit: program's goal = this x goal; negative where it is maximised.
    """

    matrix: Any
    low: FloatArray
    high: FloatArray
    goal: FloatArray
    upper: FloatArray
    integer: BoolArray
    carry_row: IntArray
    column_unit: FloatArray
    row_unit: FloatArray
    goal_unit: float


def scale_program(program: Program) -> ScaledProgram:
    """The rows of a program below one another, in units that suit its size.

    Rates are counted in powers of two of their slice's demand, rows and goal divided by powers of two: no coefficient
    is rounded and all are about 1, because a solver's tolerances are absolute.

    Args:
        program: in its own units.

    Returns:
        The same program for a solver.

    Raises:
        InputError: sizes within one row are too far apart for a solver to see the smallest.
    """
    count = sum(len(rows) for rows in program.rows)
    row, column, value = _entries(program.rows)
    column_unit = _column_unit(program)
    value = value * column_unit[column]
    largest = np.zeros(count)
    np.maximum.at(largest, row, np.abs(value))
    limit = np.concatenate([rows.limit for rows in program.rows]) if program.rows else np.zeros(0)
    in_proportion = (limit >= largest / LARGEST_LIMIT) & (limit <= largest * LARGEST_LIMIT)
    row_unit = powers_of_two(np.where(in_proportion, limit, largest))
    value = value / row_unit[row]
    _check_spread(program, row, column, value)
    matrix = sparse.csr_array((value, (row, column)), shape=(count, program.columns))
    limit = limit / row_unit
    is_most = np.concatenate([np.full(len(rows), rows.sense is Sense.AT_MOST) for rows in program.rows])
    goal = program.goal * column_unit
    goal_unit = float(powers_of_two(np.abs(goal).max(initial=0.0, keepdims=True))[0])
    upper = program.upper() / column_unit
    integer = program.integer()
    upper[_columns_always_zero(matrix, limit, is_most, integer)] = 0.0
    return ScaledProgram(
        matrix=matrix,
        low=np.where(is_most, -math.inf, limit),
        high=np.where(is_most, limit, math.inf),
        goal=(-goal if program.maximise else goal) / goal_unit,
        upper=upper,
        integer=integer,
        carry_row=_carry_row(program),
        column_unit=column_unit,
        row_unit=row_unit,
        goal_unit=-goal_unit if program.maximise else goal_unit,
    )


def _entries(rows: Iterable[ConstraintRows]) -> tuple[IntArray, IntArray, FloatArray]:
    """Row, column and value of ``used - supply``, numbered through."""
    row, column, value, start = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0)], 0
    for block in rows:
        for terms, sign in ((block.used, 1.0), (block.supply, -1.0)):
            row.append(terms.row + start)
            column.append(terms.column)
            value.append(sign * terms.value)
        start += len(block)
    return np.concatenate(row), np.concatenate(column), np.concatenate(value)


def _column_unit(program: Program) -> FloatArray:
    """Rates in powers of two of the largest demand of their slice."""
    layout = program.layout
    unit = np.ones(program.columns)
    by_slice = powers_of_two(layout.ceiling_per_s.max(axis=1))
    unit[layout.column.rates] = by_slice[layout.pair_slice][:, None]
    return unit


def _carry_row(program: Program) -> IntArray:
    """See `ScaledProgram.carry_row`: not steady, and free to start."""
    layout = program.layout
    carry_row = np.full(program.columns, -1, dtype=np.int64)
    start = 0
    for rows in program.rows:
        if rows.constraint == "carry_rate":
            free = ~layout.steady if layout.periods > 1 else np.ones(len(layout.steady), dtype=bool)
            free[layout.start_units] = False
            number = start + np.arange(layout.column.units.size).reshape(layout.column.units.shape)
            carry_row[layout.column.units[free]] = number[free]
        start += len(rows)
    return carry_row


def _columns_always_zero(
    matrix: sparse.csr_array, limit: FloatArray, is_most: BoolArray, integer: BoolArray
) -> IntArray:
    """Whole columns of which already one exceeds a limit that nothing adds to."""
    entries = matrix.tocoo()
    row, column = entries.coords
    adds = np.zeros(len(limit), dtype=bool)
    adds[row[entries.data < 0.0]] = True
    caps = is_most & ~adds
    over = caps[row] & integer[column] & (entries.data > limit[row] * (1.0 + 10.0 * FEASIBILITY_TOLERANCE))
    return np.unique(column[over])


def _check_spread(program: Program, row: IntArray, column: IntArray, value: FloatArray) -> None:
    """Raises InputError in the words of the request where a rate is too small for its slice, else by the row."""
    size = np.abs(value)
    wrong = np.flatnonzero((size > 0.0) & ~((size > SMALLEST_COEFFICIENT) & (size < LARGEST_COEFFICIENT)))
    layout = program.layout
    if len(wrong):
        of_unit = (layout.column.units == column[wrong[0]]).any(axis=1)[layout.pair_unit]
        pairs = np.flatnonzero(of_unit | (layout.column.rates == column[wrong[0]]).any(axis=1))
        for p in pairs:
            demand, unit = layout.ceiling_per_s[layout.pair_slice[p]].max(), layout.problem.units[layout.pair_unit[p]]
            if demand > layout.pair_rate[p] * LARGEST_COEFFICIENT / 2.0:
                bound = f"takes {demand / layout.pair_rate[p]:.2g} of unit {unit.name!r}"
                fix = "plan a part of the demand, or leave out pools that small"
                name = layout.problem.slices[layout.pair_slice[p]].name
                raise InputError(f"slices[{name}].demand_per_s", float(demand), bound, fix)
        bound = f"scaled coefficient must lie in ({SMALLEST_COEFFICIENT:g}, {LARGEST_COEFFICIENT:g})"
        raise InputError(program.names()[int(row[wrong[0]])], float(size[wrong[0]]), bound, SPREAD_FIX)


def powers_of_two(values: FloatArray) -> FloatArray:
    """The power of two just below the size of each value; 1 for 0.

    Args:
        values: of any sign and shape.

    Returns:
        Of the same shape.

    >>> powers_of_two(np.array([0.3, -5.0, 0.0])).tolist()
    [0.25, 4.0, 1.0]
    """
    exponent = np.frexp(np.abs(values))[1] - 1
    return np.where(values == 0.0, 1.0, np.ldexp(1.0, exponent))
