"""A program made into a PuLP problem and solved by HiGHS. The only importer of pulp.

What the solver says is turned into plain values here: PuLP reports "Optimal" also when the time ran out, so the
outcome is read from HiGHS itself, and integers are rounded, never truncated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import pulp

from planner.errors import PlannerError
from planner.optimizer.program import SPREAD_FIX, Program, Scaled, scaled, tightened
from planner.optimizer.types import Sense

SOLVER_TOLERANCE = 1e-8
"""HiGHS options `mip_feasibility_tolerance` and `primal_feasibility_tolerance`, on rows scaled to about 1.

A hundredth of `FEASIBILITY_TOLERANCE`, so that a solution of the solver passes our own check (defaults: 1e-6, 1e-7).
"""
ROUNDING_TOLERANCE = 1e-4
"""Largest distance of a solver's integer from a whole number; more is no rounding but a failure."""
_FEASIBLE = 2
"""HiGHS `SolutionStatus::kSolutionStatusFeasible` of `HighsInfo.primal_solution_status`."""
_NO_SOLUTION = {"kInfeasible", "kUnboundedOrInfeasible"}
_STOPPED = {"kTimeLimit", "kInterrupt", "kIterationLimit", "kUnknown"}


class Outcome(Enum):
    """How one run of the solver ended."""

    PROVEN = auto()
    """A solution within the gap asked for, and the proof."""
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
        """Solve the integer program. It must not be unbounded.

        Args:
            program: as stated by its rows.
            ceiling: largest rate [1/s] that may ever be routed, if known (see `tightened`).
            absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
        """
        if self.time_left_s <= 0.0:
            return Answer(Outcome.UNKNOWN, {}, None)
        stated = scaled(tightened(program, ceiling))
        problem = to_pulp(stated.program)
        gaps = {"gapRel": self.relative_gap, "gapAbs": absolute_gap / stated.goal_factor}
        _solve(problem, mip=True, timeLimit=self.time_left_s, **gaps)
        self.time_left_s -= problem.solutionTime
        outcome = _outcome(problem)
        if outcome in (Outcome.INFEASIBLE, Outcome.UNKNOWN):
            return Answer(outcome, {}, None)
        return Answer(outcome, whole_units(problem, program), _bound(problem, stated))


def duals(program: Program) -> dict[str, float]:
    """d(goal)/d(limit) of each row in the LP relaxation, where unit counts may be fractions. Empty if it has none."""
    stated = scaled(program)
    problem = to_pulp(stated.program)
    _solve(problem, mip=False)
    if _outcome(problem) is not Outcome.PROVEN:
        return {}
    sign = -1.0 if program.maximise else 1.0  # PuLP hands HiGHS the negated goal to minimise
    found = {row.name: sign * float(row.pi) for row in problem.constraints()}
    return {name: pi * stated.goal_factor / stated.row_factors[name] + 0.0 for name, pi in found.items()}


def to_pulp(program: Program) -> pulp.LpProblem:
    """The program as a PuLP problem under its own names, e.g. to write an LP file.

    A pool of granularity g > 1 appears as ``blocks__<pool>``, of g units each.
    """
    problem = pulp.LpProblem("fleet", pulp.LpMaximize if program.maximise else pulp.LpMinimize)
    variables: dict[str, pulp.LpAffineExpression] = {}
    for name in sorted({name for row in program.rows for name in (*row.used, *row.supply)} | set(program.goal)):
        category = pulp.LpInteger if name in program.granularity else pulp.LpContinuous
        variable = problem.add_variable(_column(name, program), 0, None, category)
        variables[name] = program.granularity.get(name, 1) * variable
    problem += _expression(program.goal, variables)
    for row in program.rows:
        left = _expression({**row.used, **{name: -value for name, value in row.supply.items()}}, variables)
        problem += (left <= row.limit if row.sense is Sense.AT_MOST else left >= row.limit), row.name
    return problem


def whole_units(problem: pulp.LpProblem, program: Program) -> dict[str, int]:
    """Units by variable name from a solved problem, rounded: `int(value)` would turn 2.9999999 into 2.

    Raises PlannerError when a value is no whole number to `ROUNDING_TOLERANCE`.
    """
    found = {variable.name: variable.value() or 0.0 for variable in problem.variables()}
    units = {}
    for name, granularity in program.granularity.items():
        value = found.get(_column(name, program), 0.0)
        if abs(value - round(value)) > ROUNDING_TOLERANCE:
            raise PlannerError(name, value, f"is not a whole number to {ROUNDING_TOLERANCE}", SPREAD_FIX)
        units[name] = max(0, round(value)) * granularity
    return units


def _column(name: str, program: Program) -> str:
    return name.replace("units__", "blocks__", 1) if program.granularity.get(name, 1) > 1 else name


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
    if status in _NO_SOLUTION:  # no program given to `run` is unbounded, so: infeasible
        return Outcome.INFEASIBLE
    if status in _STOPPED:
        has_point = problem.solverModel.getInfo().primal_solution_status == _FEASIBLE
        return Outcome.FOUND if has_point else Outcome.UNKNOWN
    raise PlannerError("solver status", status, "HiGHS neither solved the program nor ran out of time", SPREAD_FIX)


def _bound(problem: pulp.LpProblem, stated: Scaled) -> float | None:
    bound = float(problem.solverModel.getInfo().mip_dual_bound) * stated.goal_factor
    if not math.isfinite(bound):
        return None
    return -bound if stated.program.maximise else bound
