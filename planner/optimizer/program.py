"""Rows and a goal, made into a PuLP problem and solved by HiGHS. The only importer of pulp.

What the solver says is turned into plain values here: PuLP reports "Optimal" also when the time ran out, so the
outcome is read from HiGHS itself, and integers are rounded, never truncated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

import pulp

from planner.errors import PlannerError
from planner.optimizer.constraints import Row, Rows
from planner.optimizer.types import Sense

SOLVER_TOLERANCE = 1e-8
"""HiGHS options `mip_feasibility_tolerance` and `primal_feasibility_tolerance`, on rows scaled to about 1.

A hundredth of `FEASIBILITY_TOLERANCE`, so that a solution of the solver passes our own check (defaults: 1e-6, 1e-7).
"""
ROUNDING_TOLERANCE = 1e-4
"""Largest distance of a solver's integer from a whole number; more is no rounding but a failure."""
SPREAD_FIX = "bring rates, costs and limits closer together in size"
_FEASIBLE = 2
"""HiGHS `SolutionStatus::kSolutionStatusFeasible` of `HighsInfo.primal_solution_status`."""
_NO_SOLUTION = {"kInfeasible", "kUnboundedOrInfeasible"}
_STOPPED = {"kTimeLimit", "kInterrupt", "kIterationLimit", "kObjectiveBound", "kObjectiveTarget", "kUnknown"}


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


class Outcome(Enum):
    """How one run of the solver ended."""

    PROVEN = auto()
    """A solution within the relative gap asked for, and the proof."""
    FOUND = auto()
    """Time ran out; there is a solution."""
    INFEASIBLE = auto()
    """Proved that there is no solution."""
    UNKNOWN = auto()
    """Time ran out; there is no solution yet and no proof."""


@dataclass(frozen=True)
class Answer:
    """What one run found.

    Attributes:
        outcome: see `Outcome`.
        units: whole units by variable name; empty without a solution.
        bound: no solution has a better goal than this; None if nothing was proved.
    """

    outcome: Outcome
    units: Mapping[str, int]
    bound: float | None

    @property
    def has_units(self) -> bool:
        """Whether there is a solution."""
        return self.outcome in (Outcome.PROVEN, Outcome.FOUND)


class Solver:
    """HiGHS with a time budget that all runs share.

    Args:
        time_limit_s: for all branch-and-bound runs together [s]; building and linear programs come on top.
        relative_gap: stop when the proved |bound - goal| / |goal| is at most this.
    """

    def __init__(self, time_limit_s: float, relative_gap: float) -> None:
        self.time_left_s = time_limit_s
        self.relative_gap = relative_gap

    def run(self, program: Program, ceiling: float | None = None, absolute_gap: float = 0.0) -> Answer:
        """Solve the integer program.

        Args:
            program: as stated by its rows.
            ceiling: largest rate [1/s] that may ever be routed, if known (see `_tightened`).
            absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
        """
        if self.time_left_s <= 0.0:
            return Answer(Outcome.UNKNOWN, {}, None)
        scaled = _Scaled(_tightened(program, ceiling))
        problem = to_pulp(scaled.program)
        gaps = {"gapRel": self.relative_gap, "gapAbs": absolute_gap / scaled.goal_factor}
        _solve(problem, mip=True, timeLimit=self.time_left_s, **gaps)
        self.time_left_s -= problem.solutionTime
        outcome = _outcome(problem)
        units = _units(problem, program) if outcome in (Outcome.PROVEN, Outcome.FOUND) else {}
        return Answer(outcome, units, _bound(problem, scaled) if units else None)


def duals(program: Program) -> dict[str, float]:
    """d(goal)/d(limit) of each row in the LP relaxation, where unit counts may be fractions. Empty if it has none."""
    scaled = _Scaled(program)
    problem = to_pulp(scaled.program)
    _solve(problem, mip=False)
    if _outcome(problem) is not Outcome.PROVEN:
        return {}
    sign = -1.0 if program.maximise else 1.0  # PuLP hands HiGHS the negated goal to minimise
    found = {row.name: float(row.pi) for row in problem.constraints()}
    return {name: sign * pi * scaled.goal_factor / scaled.row_factor[name] + 0.0 for name, pi in found.items()}


def to_pulp(program: Program) -> pulp.LpProblem:
    """The program as a `pulp.LpProblem`, in its own units and under its own names, e.g. to write an LP file."""
    problem = pulp.LpProblem("fleet", pulp.LpMaximize if program.maximise else pulp.LpMinimize)
    variables: dict[str, pulp.LpAffineExpression] = {}
    for name in sorted({name for row in program.rows for name in (*row.used, *row.supply)} | set(program.goal)):
        integer = name in program.granularity
        blocks = name.replace("units__", "blocks__", 1) if program.granularity.get(name, 1) > 1 else name
        variable = problem.add_variable(blocks, 0, None, pulp.LpInteger if integer else pulp.LpContinuous)
        variables[name] = program.granularity.get(name, 1) * variable
    problem += _expression(program.goal, variables)
    for row in program.rows:
        left = _expression({**row.used, **{name: -value for name, value in row.supply.items()}}, variables)
        problem += (left <= row.limit if row.sense is Sense.AT_MOST else left >= row.limit), row.name
    return problem


def _expression(
    coefficients: Mapping[str, float], variables: Mapping[str, pulp.LpAffineExpression]
) -> pulp.LpAffineExpression:
    return pulp.lpSum(value * variables[name] for name, value in coefficients.items() if value)


def _solve(problem: pulp.LpProblem, **options: float) -> None:
    tolerances = {"mip_feasibility_tolerance": SOLVER_TOLERANCE, "primal_feasibility_tolerance": SOLVER_TOLERANCE}
    problem.solve(pulp.HiGHS(msg=False, **tolerances, **options))


def _outcome(problem: pulp.LpProblem) -> Outcome:
    status = problem.solverModel.getModelStatus().name
    if status == "kOptimal":
        return Outcome.PROVEN
    if status in _NO_SOLUTION:  # every program here is bounded (see planner.optimizer.solving), so: infeasible
        return Outcome.INFEASIBLE
    if status in _STOPPED:
        has_point = problem.solverModel.getInfo().primal_solution_status == _FEASIBLE
        return Outcome.FOUND if has_point else Outcome.UNKNOWN
    raise PlannerError("solver status", status, "HiGHS neither solved the program nor ran out of time", SPREAD_FIX)


def _units(problem: pulp.LpProblem, program: Program) -> dict[str, int]:
    """Whole units by variable name. `int(value)` would turn 2.9999999 into 2."""
    found = {variable.name: variable.value() for variable in problem.variables()}
    units = {}
    for name, granularity in program.granularity.items():
        value = found.get(name, found.get(name.replace("units__", "blocks__", 1))) or 0.0
        if abs(value - round(value)) > ROUNDING_TOLERANCE:
            raise PlannerError(name, value, f"is not a whole number to {ROUNDING_TOLERANCE}", SPREAD_FIX)
        units[name] = max(0, round(value)) * granularity
    return units


def _bound(problem: pulp.LpProblem, scaled: _Scaled) -> float | None:
    bound = float(problem.solverModel.getInfo().mip_dual_bound) * scaled.goal_factor
    if not math.isfinite(bound):
        return None
    return -bound if scaled.program.maximise else bound


def _tightened(program: Program, ceiling: float | None) -> Program:
    """The same integer solutions with a tighter relaxation: no unit supplies more than the ceiling.

    If at most `ceiling` is ever routed, one unit of rate r > ceiling carries all of it, so r may be replaced by the
    ceiling. It also keeps r x (a count that is 1e-8 off zero) from serving anything. Coefficient tightening, see
    Savelsbergh 1994, "Preprocessing and probing techniques for mixed integer programming problems", section 2.
    """
    if ceiling is None:
        return program
    rows = (
        replace(row, supply={name: min(rate, ceiling) for name, rate in row.supply.items()}) for row in program.rows
    )
    return replace(program, rows=tuple(rows))


class _Scaled:
    """The program in units that make rates and limits about 1: HiGHS's tolerances are absolute.

    Factors are powers of two, so no coefficient is rounded.
    """

    def __init__(self, program: Program) -> None:
        self._rate_unit = _power_of_two([rate for row in program.rows for rate in row.supply.values()])
        self.row_factor = {row.name: self._factor_of(row) for row in program.rows}
        self.goal_factor = _power_of_two(list(self._rescaled(program.goal, 1.0, program).values()))
        self.program = replace(
            program,
            rows=tuple(self._row(row, program) for row in program.rows),
            goal=self._rescaled(program.goal, self.goal_factor, program),
        )

    def _factor_of(self, row: Row) -> float:
        return _power_of_two([row.limit] if row.limit else [*row.supply.values()] or [*row.used.values()])

    def _row(self, row: Row, program: Program) -> Row:
        factor = self.row_factor[row.name]
        return replace(
            row,
            used=self._rescaled(row.used, factor, program),
            limit=row.limit / factor,
            supply=self._rescaled(row.supply, factor, program),
        )

    def _rescaled(self, coefficients: Mapping[str, float], factor: float, program: Program) -> dict[str, float]:
        return {
            name: value / factor * (1.0 if name in program.granularity else self._rate_unit)
            for name, value in coefficients.items()
        }


def _power_of_two(values: list[float]) -> float:
    """The power of two just below the largest size among the values; 1 if there is none but 0.

    >>> _power_of_two([0.3, -5.0]), _power_of_two([])
    (4.0, 1.0)
    """
    largest = max((abs(value) for value in values), default=0.0)
    return 2.0 ** (math.frexp(largest)[1] - 1) if largest > 0.0 else 1.0
