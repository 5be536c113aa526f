"""Why a request is infeasible: a smallest set of limits that conflict, and how far each alone would have to move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planner.optimizer.constraints import Row, Rows
from planner.optimizer.fleet import fleet_of
from planner.optimizer.highs import Answer, Outcome, Solver
from planner.optimizer.program import Program
from planner.optimizer.types import Candidate, Diagnosis, Limits, Relaxation, Sense


def diagnose(solver: Solver, program: Program, candidates: Sequence[Candidate], limits: Limits) -> Diagnosis:
    """The conflict of an infeasible program and the way out of it.

    A *deletion filter* drops one limit after another and keeps out those without which the program stays infeasible;
    what is left conflicts, and would not without any one of them: J. W. Chinneck and E. W. Dravnieks 1991, "Locating
    minimal infeasible constraint sets in linear programs", ORSA Journal on Computing 3(2). Limits are dropped in the
    order of the rows (units, resources, budget), so a conflict with the budget is preferred over one with a resource.
    Only limits of the conflict can help alone; each is freed in turn and its use made least (the served rate:
    greatest) under all other limits.

    Args:
        solver: with the time that is left; when it runs out the result says so (`is_proven`).
        program: proved infeasible.
        candidates: of the program.
        limits: of the program. Its demand is more than can be served, so it bounds every rate tried here.
    """
    conflict, is_minimal = _conflict(solver, program, limits)
    relaxations = tuple(_relaxation(solver, program, row, candidates, limits) for row in conflict)
    is_proven = is_minimal and all(relaxation.is_proven for relaxation in relaxations)
    return Diagnosis(
        summary=_summary(conflict, relaxations, is_proven),
        conflict=tuple(row.name for row in conflict),
        relaxations=relaxations,
        is_proven=is_proven,
    )


def _conflict(solver: Solver, program: Program, limits: Limits) -> tuple[Rows, bool]:
    """A minimal infeasible set of limits, and whether minimality was proved in time.

    What a pool carries is no limit (it always stays), and the cap at the demand conflicts with nothing. The row that
    asks for a rate always belongs: without it the empty fleet would do.
    """
    kept = [row for row in program.rows if row.name != "cap_at_demand"]
    is_proven = True
    for row in [row for row in kept if not row.supply and row.sense is Sense.AT_MOST]:
        fewer = [other for other in kept if other is not row]
        outcome = solver.run(replace(program, rows=tuple(fewer), goal={}), limits.demand_per_s).outcome
        if outcome is Outcome.INFEASIBLE:
            kept = fewer
        is_proven &= outcome is not Outcome.UNKNOWN
    return tuple(row for row in kept if not row.supply), is_proven


def _relaxation(
    solver: Solver, program: Program, row: Row, candidates: Sequence[Candidate], limits: Limits
) -> Relaxation:
    """The nearest limit of one row that is feasible with all other rows unchanged."""
    others = tuple(other for other in program.rows if other is not row)
    freed = Program(others, row.used, row.sense is Sense.AT_LEAST, program.granularity)
    answer = solver.run(freed, limits.demand_per_s)
    needed = _use(row, answer, candidates) if answer.has_units else None
    return Relaxation(
        name=row.name,
        field=row.field,
        limit=row.limit,
        needed=needed or None,
        is_proven=answer.outcome in (Outcome.PROVEN, Outcome.INFEASIBLE),
    )


def _use(row: Row, answer: Answer, candidates: Sequence[Candidate]) -> float:
    """What the found units use of a row's limit, from the whole units."""
    if row.sense is Sense.AT_LEAST:
        return fleet_of((), candidates, Limits(), answer.units).capacity_per_s
    return math.fsum(value * answer.units[name] for name, value in row.used.items())


def _summary(conflict: Rows, relaxations: Sequence[Relaxation], is_proven: bool) -> str:
    names = [row.name for row in conflict]
    together = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    helpful = [str(relaxation) for relaxation in relaxations if relaxation.needed is not None]
    way_out = f"enough is any of: {'; '.join(helpful)}" if helpful else "no change of one of them alone is enough"
    if not is_proven:
        way_out = f"{way_out if helpful else 'no way out found yet'} (the time ran out: a smaller change may do)"
    return f"{together} cannot hold together; {way_out}"
