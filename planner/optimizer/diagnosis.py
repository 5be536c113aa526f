"""Why a problem is infeasible: a smallest set of limits that conflict, and how far each alone would have to move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.optimizer.branching import ProgramSolver
from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.highs import SolverOutcome
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, build_program
from planner.optimizer.relaxation import relax
from planner.optimizer.types import Diagnosis, Objective, Relaxation, Sense

DROP_ORDER = (
    "within_groups",
    "within_resource",
    "within_purchase",
    "pin_resource",
    "within_budget",
    "serve_minimum",
    "serve_demand",
)
"""Order in which limits are dropped: a choice of which conflict is reported, with the budget rather than a resource.
Other rows set no limit (what is taken must be bought) or conflict with nothing."""
_ANY_GAP = 1e9
"""Relative gap so wide that the first solution ends the search: only its existence is asked for."""
_WHOLE_TOLERANCE = 1e-7
"""A limit found this close to a whole number is reported as that number: ten times the solver's tolerance."""


@dataclass(frozen=True)
class _Limit:
    """Rows that differ in the period only: one limit."""

    constraint: str
    family: str
    field: str
    sense: Sense
    largest: float


def diagnose(solver: ProgramSolver, objective: Objective, layout: Layout, *, is_relaxed: bool = False) -> Diagnosis:
    """The conflict of an infeasible problem and the ways out of it.

    A *deletion filter* drops one limit after another and keeps out those without which the program stays infeasible;
    what is left conflicts, and would not without any one of them. The periods of a limit are dropped together. Only
    limits of the conflict can help alone; each is freed in turn and its use made least (what is served: greatest) under
    all other limits, in all periods in proportion.

    Source: J. W. Chinneck and E. W. Dravnieks 1991, "Locating minimal infeasible constraint sets in linear programs",
    ORSA Journal on Computing 3(2).

    Args:
        solver: with the time and work that are left; where they run out the result says so (`is_proven`).
        objective: of the problem, proved infeasible.
        layout: of the problem.
        is_relaxed: the linear relaxation is infeasible already, and the conflict is sought there: of problems too large
            to be written down as integer programs.

    Returns:
        The conflict, and for each of its limits the nearest value that is feasible (of the relaxation none is said).
    """
    program = build_program(layout, objective)

    def outcome_of(fewer: Program) -> SolverOutcome:
        if not is_relaxed:
            return solver.run(fewer, relative_gap=_ANY_GAP).outcome
        if solver.is_out_of_time:
            return SolverOutcome.UNKNOWN
        found = relax(fewer, solver.time_left_s)
        return SolverOutcome.PROVEN if found or solver.is_out_of_time else SolverOutcome.INFEASIBLE

    conflict, is_minimal = _conflict(outcome_of, program)
    names = tuple(limit.family for limit in conflict)
    if is_relaxed:
        return Diagnosis(summary=f"{_together(names)}, not even with parts of units", conflict=names, is_proven=False)
    relaxations = tuple(_relaxation(solver, program, limit) for limit in conflict)
    is_proven = is_minimal and all(relaxation.is_proven for relaxation in relaxations)
    summary = _summary(names, relaxations, is_proven)
    return Diagnosis(summary=summary, conflict=names, relaxations=relaxations, is_proven=is_proven)


def _limits(program: Program) -> list[_Limit]:
    """Every limit of a program once, in the order of its rows."""
    limits: dict[str, _Limit] = {}
    for rows in program.rows:
        if rows.constraint not in DROP_ORDER:
            continue
        for family, source, value in zip(rows.families(), rows.fields(), rows.limit.tolist(), strict=True):
            largest = max(value, limits[family].largest if family in limits else 0.0)
            limits[family] = _Limit(rows.constraint, family, source, rows.sense, largest)
    return list(limits.values())


def _conflict(outcome_of: Callable[[Program], SolverOutcome], program: Program) -> tuple[list[_Limit], bool]:
    """A minimal infeasible set of limits, and whether minimality was proved in time."""
    limits, dropped, is_proven = _limits(program), set[str](), True

    def outcome_without(families: Iterable[str]) -> SolverOutcome:
        return outcome_of(_without(program, dropped.union(families)))

    for constraint in DROP_ORDER:
        families = [limit.family for limit in limits if limit.constraint == constraint]
        if len(families) > 1 and outcome_without(families) is SolverOutcome.INFEASIBLE:
            dropped |= set(families)
            continue
        for family in families:
            outcome = outcome_without([family])
            if outcome is SolverOutcome.INFEASIBLE:
                dropped.add(family)
            is_proven &= outcome is not SolverOutcome.UNKNOWN
    return [limit for limit in limits if limit.family not in dropped], is_proven


def _without(program: Program, dropped: set[str]) -> Program:
    """The program without some limits, and the cost as its goal."""
    rows = (rows.select(np.array([family not in dropped for family in rows.families()])) for rows in program.rows)
    kept = tuple(each for each in rows if len(each))
    return replace(program, rows=kept, goal=program.layout.mean_cost, maximise=False)


def _with_limit_freed(program: Program, limit: _Limit) -> Program:
    """The program whose one limit is v times what it was, v a column of its own; goal: least v, or greatest."""

    def freed(rows: ConstraintRows) -> ConstraintRows:
        mine = np.flatnonzero([family == limit.family for family in rows.families()])
        shape = rows.limit[mine] if limit.largest > 0.0 else np.ones(len(mine))
        left = rows.limit.copy()
        left[mine] = 0.0
        return replace(
            rows,
            limit=left,
            row=np.append(rows.row, mine),
            column=np.append(rows.column, np.full(len(mine), program.layout.columns)),
            value=np.append(rows.value, -shape),
        )

    rows = tuple(freed(each) if each.constraint == limit.constraint else each for each in program.rows)
    goal = np.append(np.zeros(program.layout.columns), 1.0)
    return Program(program.layout, rows, goal, limit.sense is Sense.AT_LEAST, extra_columns=1)


def _relaxation(solver: ProgramSolver, program: Program, limit: _Limit) -> Relaxation:
    """The nearest value of one limit that is feasible with all others unchanged: its largest over the periods."""
    answer = solver.run(_with_limit_freed(program, limit))
    needed = None
    if answer.outcome.has_solution:
        needed = _rounded_if_whole(float(answer.values[-1]) * (limit.largest or 1.0))
    return Relaxation(
        name=limit.family,
        field=limit.field,
        limit=limit.largest,
        needed=needed or None,
        is_proven=answer.outcome in (SolverOutcome.PROVEN, SolverOutcome.INFEASIBLE),
    )


def _rounded_if_whole(value: float) -> float:
    whole = float(round(value))
    return whole if math.isclose(value, whole, rel_tol=_WHOLE_TOLERANCE, abs_tol=_WHOLE_TOLERANCE) else value


def _together(names: Sequence[str]) -> str:
    together = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
    return f"{together} {'cannot hold together' if len(names) > 1 else 'cannot hold'}"


def _summary(names: Sequence[str], relaxations: Sequence[Relaxation], is_proven: bool) -> str:
    helpful = [str(relaxation) for relaxation in relaxations if relaxation.needed is not None]
    change = "no change of one of them alone is enough" if len(names) > 1 else "no change of it is enough"
    remedy = f"enough is any of: {'; '.join(helpful)}" if helpful else change
    if not is_proven:
        remedy = f"{remedy if helpful else 'no way out found yet'} (the search was cut short: a smaller change may do)"
    return f"{_together(names)}; {remedy}"
