"""The program in PuLP: LP and MPS files of it, and solvers other than HiGHS.

PuLP (https://coin-or.github.io/pulp) knows some twenty solvers by name. The program goes to them as it is stated, under
the names of the report; only its limits differ: other solvers count no work, so they stop after seconds.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulp

from planner.core import FloatArray, InputError, IntArray
from planner.optimizer.highs import OWN_SOLVER, ProgramSolver, Solution
from planner.optimizer.layout import Layout, label
from planner.optimizer.program import Program
from planner.optimizer.types import Sense

MOST_SECONDS = 60.0
"""Time for one program where no limit is set [s]. A choice: fleets of a plan take seconds, and CBC ends with the best
found."""
MOST_LETTERS = 100
"""Longest name in an LP file: what PuLP writes (a definition; CPLEX reads 255)."""


def column_names(layout: Layout) -> list[str]:
    """Name of each column, e.g. ``rate__<unit>__<slice>__<period>``; without the period where it stands still.

    Args:
        layout: of the program.

    Returns:
        Names, in the order of the columns; columns that are one over all periods have one name.
    """
    problem = layout.problem
    units, slices = [label(unit.name) for unit in problem.units], [label(slice_.name) for slice_ in problem.slices]
    periods = [f"__{label(period.name)}" for period in problem.periods]
    names = [""] * layout.columns

    def fill(columns: IntArray, stems: Sequence[str]) -> None:
        for row, stem in zip(columns, stems, strict=True):
            moves = len(set(row.tolist())) > 1
            for column, period in zip(row, periods, strict=True):
                names[column] = stem + (period if moves else "")

    fill(layout.column.units, [f"units__{name}" for name in units])
    pairs = zip(layout.pair_unit, layout.pair_slice, strict=True)
    fill(layout.column.rates, [f"rate__{units[j]}__{slices[s]}" for j, s in pairs])
    fill(layout.column.blocks, [f"blocks__{label(r)}__{label(p)}" for r, p in layout.purchase_names()])
    fill(layout.column.starts, [f"starts__{units[j]}" for j in layout.start_units])
    for column, group in zip(layout.column.groups, layout.groups, strict=True):
        names[column] = f"uses__{label(group)}"
    for column, subject in zip(layout.column.kinds, layout.kind_names(), strict=True):
        names[column] = "__".join(("is", *map(label, subject)))
    return names


def _names(program: Program) -> list[str]:
    return _shortened([*column_names(program.layout), *(f"extra_{index}" for index in range(program.extra_columns))])


def _shortened(names: Sequence[str]) -> list[str]:
    """Names that an LP file may hold: the end of a longer one is its number, after a dot, which no label has."""
    ends = [f".{number}" for number in range(len(names))]
    return [
        name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - len(end)] + end
        for name, end in zip(names, ends, strict=True)
    ]


def to_pulp(program: Program) -> pulp.LpProblem:
    """The program as stated, as a PuLP problem under its own names.

    Args:
        program: in its own units; columns in no row and not in the goal are left out.

    Returns:
        A problem of PuLP.
    """
    problem = pulp.LpProblem("fleet", pulp.LpMaximize if program.maximise else pulp.LpMinimize)
    names = _names(program)
    integer, upper = program.integer(), program.upper()
    touched = {int(c) for rows in program.rows for c in rows.column}
    touched |= set(np.flatnonzero(program.goal).tolist())
    variables = {}
    for column in sorted(touched, key=names.__getitem__):
        category = pulp.LpInteger if integer[column] else pulp.LpContinuous
        most = float(upper[column]) if math.isfinite(upper[column]) else None
        variables[column] = problem.add_variable(names[column], 0, most, category)
    problem += pulp.lpSum(float(program.goal[c]) * variables[c] for c in sorted(touched) if program.goal[c])
    row_names = iter(_shortened(program.names()))
    for rows in program.rows:
        left: list[dict[int, float]] = [{} for _ in range(len(rows))]
        for row, column, value in zip(rows.row, rows.column, rows.value, strict=True):
            left[row][int(column)] = left[row].get(int(column), 0.0) + float(value)
        for terms_of_row, limit in zip(left, rows.limit, strict=True):
            expression = pulp.lpSum(value * variables[column] for column, value in terms_of_row.items() if value)
            is_most = rows.sense is Sense.AT_MOST
            problem += (expression <= float(limit) if is_most else expression >= float(limit)), next(row_names)
    return problem


def pulp_solver(name: str, relative_gap: float, seconds: float) -> Any:  # noqa: ANN401 - PuLP has no types
    """A solver that PuLP finds on this machine, e.g. ``cbc``, ``gurobi``, ``cplex`` or PuLP's own name of it.

    Args:
        name: of the solver, in any case.
        relative_gap: at which it stops, where it can be told.
        seconds: after which it stops, where it can be told [s].

    Returns:
        A solver of PuLP.

    Raises:
        InputError: PuLP knows no such solver, or it is not installed; names those that are.
    """
    asked = name.lower()
    brought = pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path, msg=False, gapRel=relative_gap, timeLimit=seconds)
    if asked == "cbc" and brought.available():
        return brought
    for known in pulp.listSolvers():
        if asked not in (known.lower(), known.lower().split("_")[0]) or not hasattr(pulp, known):
            continue
        solver = getattr(pulp, known)
        takes = inspect.signature(solver.__init__).parameters
        limits = {"gapRel": relative_gap, "timeLimit": seconds}
        options = {key: value for key, value in limits.items() if key in takes or "kwargs" in takes}
        found = solver(msg=False, **options)
        if found.available():
            return found
    here = ", ".join([OWN_SOLVER, *sorted({found.lower() for found in pulp.listSolvers(onlyAvailable=True)})])
    raise InputError("solver", name, "is not found by PuLP on this machine", f"use one of {here}, or install it")


@dataclass
class PulpSolver(ProgramSolver):
    """Solves integer programs by a solver that PuLP finds.

    Attributes:
        name: of the solver.
    """

    name: str = OWN_SOLVER
    is_own = False

    def solution(self, program: Program, share_of_gap: float, start: FloatArray | None, cutoff: float) -> Solution:
        """The best solution found; proved within the gap where the solver says "optimal". The start is not used.

        Args:
            program: in its own units.
            share_of_gap: of the relative gap.
            start: not used.
            cutoff: of what is minimised, no solution has a greater goal.
        """
        gap = share_of_gap * self.relative_gap
        seconds = min(self.until_s - time.monotonic(), MOST_SECONDS)
        stated = to_pulp(program)
        if not program.maximise and math.isfinite(cutoff):
            stated += stated.objective <= cutoff, "cutoff"
        stated.solve(pulp_solver(self.name, gap, max(seconds, 0.0)))
        is_proven = stated.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionInfeasible)
        values, bound = np.zeros(0), -math.inf
        if stated.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            values = np.zeros(program.columns)
            by_name = {variable.name: float(variable.varValue or 0.0) for variable in stated.variables()}
            for column, name in enumerate(_names(program)):
                values[column] = by_name.get(name, 0.0)
            goal = float(program.goal @ values)
            bound = goal + (abs(goal) * gap if program.maximise else -abs(goal) * gap)
        if not is_proven:
            bound = math.inf if program.maximise else -math.inf
        return Solution(is_proven, values, bound, np.zeros(0), 0.0)
