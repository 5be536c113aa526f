"""A request as an integer program in plain numbers, and the same program in numbers a solver is comfortable with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.optimizer.constraints import Row, Rows, pools_of, rows_for, total_cost, total_rate, units_name
from planner.optimizer.types import Candidate, Limits, Objective, Sense

LARGEST_LIMIT = 2.0**20
"""Rows whose limit is more than a million times their largest coefficient are scaled by the coefficient instead."""
SMALLEST_COEFFICIENT, LARGEST_COEFFICIENT = 1e-9, 1e9
"""Range of scaled coefficients. HiGHS treats those up to its option `small_matrix_value` (default 1e-9) as zero."""
SPREAD_FIX = "bring rates, costs and limits closer together in size"


@dataclass(frozen=True)
class Program:
    """A linear goal over rows; units are integers (in multiples of their granularity), rates are real and >= 0.

    Attributes:
        rows: the constraints.
        goal: coefficient by variable name of what is minimised or maximised.
        maximise: direction.
        granularity: by name of each integer variable.
    """

    rows: Rows
    goal: Mapping[str, float]
    maximise: bool
    granularity: Mapping[str, int]


def build(candidates: Sequence[Candidate], limits: Limits, objective: Objective, ratio: float = 0.0) -> Program:
    """The program of a request: its rows, and the goal.

    Args:
        candidates: at least one.
        limits: see `Limits`.
        objective: see `Objective`.
        ratio: for `max_rate_per_cost`, the ratio q [1/s per USD/h] of the parametric goal ``rate - q cost``.
    """
    cost, rate = total_cost(candidates), total_rate(candidates)
    goals: Mapping[Objective, Mapping[str, float]] = {
        Objective.MIN_COST: cost,
        Objective.MAX_RATE: rate,
        Objective.MAX_RATE_PER_COST: rate | {name: -ratio * value for name, value in cost.items()},
    }
    return Program(
        rows=rows_for(objective, candidates, limits),
        goal=goals[objective],
        maximise=objective is not Objective.MIN_COST,
        granularity={units_name(pool): pool.granularity for pool in pools_of(candidates)},
    )


def tightened(program: Program, ceiling: float | None = None) -> Program:
    """The same whole solutions with a tighter relaxation and coefficients of one size.

    If at most `ceiling` [1/s] is ever routed, one unit of rate r > ceiling carries all of it, so r may be replaced by
    the ceiling; that also keeps r x (a count that is 1e-8 off zero) from serving anything. A unit that alone takes
    more than twice a limit may as well take twice: it cannot be used either way. Coefficient tightening, see M. W. P.
    Savelsbergh 1994, "Preprocessing and probing techniques for mixed integer programming problems", ORSA Journal on
    Computing 6(4).
    """
    most = math.inf if ceiling is None else ceiling
    return replace(program, rows=tuple(_cut(row, most, program.granularity) for row in program.rows))


def _cut(row: Row, ceiling: float, integers: Mapping[str, int]) -> Row:
    is_cap_on_units = row.sense is Sense.AT_MOST and row.limit > 0.0 and set(row.used) <= set(integers)
    most = 2.0 * row.limit if is_cap_on_units else math.inf
    return replace(
        row,
        used={name: min(value, most) for name, value in row.used.items()},
        supply={name: min(rate, ceiling) for name, rate in row.supply.items()},
    )


@dataclass(frozen=True)
class Scaled:
    """A program whose coefficients and limits are about 1, because a solver's tolerances are absolute.

    Attributes:
        program: rates in `rate_unit`s, each row divided by its factor, the goal by its own.
        goal_factor: goal = this x scaled goal.
        row_factors: by row name; row = this x scaled row.
    """

    program: Program
    goal_factor: float
    row_factors: Mapping[str, float]


def scaled(program: Program) -> Scaled:
    """The program in units that suit its size. Factors are powers of two, so no coefficient is rounded.

    Raises InputError when the sizes within one row are too far apart for a solver to see the smallest.
    """
    rate_unit = power_of_two(rate for row in program.rows for rate in row.supply.values())
    rows, factors = [], {}
    for row in program.rows:
        used, supply = (_in_rate_units(side, rate_unit, program) for side in (row.used, row.supply))
        factor = _row_factor(row.limit, [*used.values(), *supply.values()])
        _check_spread(row.name, [value / factor for value in (*used.values(), *supply.values())])
        rows.append(replace(row, used=_over(used, factor), supply=_over(supply, factor), limit=row.limit / factor))
        factors[row.name] = factor
    goal = _in_rate_units(program.goal, rate_unit, program)
    goal_factor = power_of_two(goal.values())
    return Scaled(replace(program, rows=tuple(rows), goal=_over(goal, goal_factor)), goal_factor, factors)


def _in_rate_units(coefficients: Mapping[str, float], rate_unit: float, program: Program) -> dict[str, float]:
    return {name: value if name in program.granularity else value * rate_unit for name, value in coefficients.items()}


def _over(coefficients: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: value / factor for name, value in coefficients.items()}


def _row_factor(limit: float, coefficients: Sequence[float]) -> float:
    """The limit, or the largest coefficient where the limit is 0 or out of all proportion to it."""
    largest = max(coefficients, default=1.0)
    in_proportion = largest / LARGEST_LIMIT <= limit <= largest * LARGEST_LIMIT
    return power_of_two([limit if in_proportion else largest])


def _check_spread(name: str, coefficients: Iterable[float]) -> None:
    for value in coefficients:
        if value and not SMALLEST_COEFFICIENT < value < LARGEST_COEFFICIENT:
            bound = f"scaled coefficient must lie in ({SMALLEST_COEFFICIENT:g}, {LARGEST_COEFFICIENT:g})"
            raise InputError(name, value, bound, SPREAD_FIX)


def power_of_two(values: Iterable[float]) -> float:
    """The power of two just below the largest size among the values; 1 if there is none but 0.

    >>> power_of_two([0.3, -5.0]), power_of_two([])
    (4.0, 1.0)
    """
    largest = max((abs(value) for value in values), default=0.0)
    return 2.0 ** (math.frexp(largest)[1] - 1) if largest > 0.0 else 1.0
