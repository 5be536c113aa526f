"""Why a problem is infeasible: a smallest set of limits that conflict, and how far each alone would have to move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.optimizer.constraint_rows import ConstraintRows
from planner.optimizer.highs import ProgramSolver
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
_WHOLE_TOLERANCE = 1e-7
"""A limit found this close to a whole number is reported as that number: ten times the solver's tolerance."""


def diagnose(solver: ProgramSolver, objective: Objective, layout: Layout, *, is_relaxed: bool = False) -> Diagnosis:
    """The conflict of an infeasible problem and the ways out of it.

    A *deletion filter* drops one limit after another and keeps out those without which the program stays infeasible;
    what is left conflicts, and would not without any one of them. The periods of a limit are dropped together. Only
    limits of the conflict can help alone; each is freed in turn and its use made least (what is served: greatest) under
    all other limits, in all periods in proportion.

    Source: J. W. Chinneck and E. W. Dravnieks 1991, "Locating minimal infeasible constraint sets in linear programs",
    ORSA Journal on Computing 3(2).

    Args:
        solver: with the work that is left; where it runs out the result says so (`is_proven`).
        objective: of the problem, proved infeasible.
        layout: of the problem.
        is_relaxed: the linear relaxation is infeasible already, and the conflict is sought there: of problems too large
            to be written down as integer programs.

    Returns:
        The conflict, and for each of its limits the nearest value that is feasible (of the relaxation none is said).
    """
    program = build_program(layout, objective)
    others = [rows for rows in program.rows if rows.constraint not in DROP_ORDER]
    limits = {
        name: rows.select(np.array([each == name for each in rows.families()]))
        for rows in program.rows
        if rows.constraint in DROP_ORDER
        for name in dict.fromkeys(rows.families())
    }

    def solved(kept: Sequence[str]) -> tuple[bool, bool]:
        """True if these limits can hold together, and true if that is proved."""
        rows = (*others, *(limits[name] for name in kept))
        fewer = replace(program, rows=rows, goal=np.zeros(program.columns), maximise=False)
        if is_relaxed:
            return relax(fewer) is not None, True
        answer = solver.run(fewer)
        return answer.is_found, answer.is_proven

    names, is_proven = tuple(limits), True
    for constraint in DROP_ORDER:
        families = [name for name in names if limits[name].constraint == constraint]
        for dropped in (families, *([name] for name in families if len(families) > 1)):
            kept = tuple(name for name in names if name not in dropped)
            is_possible, is_known = solved(kept) if len(kept) < len(names) else (True, True)
            if is_known and not is_possible:
                names = kept
            is_proven &= len(dropped) > 1 or is_known
    fields = tuple(limits[name].fields()[0] for name in names)
    if is_relaxed:
        return Diagnosis(conflict=names, fields=fields, is_proven=False, note=", not even with parts of units")
    relaxations = []
    for name in names:
        rows = [*others, *(limits[other] for other in limits if other != name)]
        relaxations.append(_relaxation(solver, replace(program, rows=tuple(rows)), name, limits[name]))
    is_proven &= all(relaxation.is_proven for relaxation in relaxations)
    return Diagnosis(conflict=names, fields=fields, relaxations=tuple(relaxations), is_proven=is_proven)


def _relaxation(solver: ProgramSolver, program: Program, name: str, limit: ConstraintRows) -> Relaxation:
    """The nearest value of one limit that is feasible with all others unchanged: its largest over the periods.

    It is v times what it was in all periods, v a column of its own; goal: least v, or greatest.
    """
    largest, column = max(float(limit.limit.max()), 0.0), program.layout.columns
    freed = replace(
        limit,
        limit=np.zeros(len(limit)),
        row=np.append(limit.row, np.arange(len(limit))),
        column=np.append(limit.column, np.full(len(limit), column)),
        value=np.append(limit.value, -limit.limit if largest > 0.0 else -np.ones(len(limit))),
    )
    goal, rows = np.append(np.zeros(column), 1.0), (*program.rows, freed)
    answer = solver.run(Program(program.layout, rows, goal, limit.sense is Sense.AT_LEAST, extra_columns=1))
    needed = float(answer.values[-1]) * (largest or 1.0) if answer.is_found else 0.0
    if math.isclose(needed, round(needed), rel_tol=_WHOLE_TOLERANCE, abs_tol=_WHOLE_TOLERANCE):
        needed = float(round(needed))
    return Relaxation(
        name=name,
        field=limit.fields()[0],
        limit=largest,
        needed=needed or None,
        is_proven=answer.is_proven,
    )
