"""A program as a PuLP problem: what golden files are written from, and what CBC and the LP solver of PuLP are given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pulp

from planner.core import IntArray
from planner.optimizer.layout import Layout, label
from planner.optimizer.program import Program
from planner.optimizer.types import Sense


def column_names(layout: Layout) -> list[str]:
    """One for each column, e.g. ``rate__<unit>__<slice>__<period>``; without the period where it stands still."""
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


def to_pulp(program: Program) -> pulp.LpProblem:
    """The program as stated, as a PuLP problem under its own names: for LP files and other solvers."""
    problem = pulp.LpProblem("fleet", pulp.LpMaximize if program.maximise else pulp.LpMinimize)
    names = [*column_names(program.layout), *(f"extra_{index}" for index in range(program.extra_columns))]
    integer, upper = program.integer(), program.upper()
    touched = {int(c) for rows in program.rows for c in rows.column}
    touched |= set(np.flatnonzero(program.goal).tolist())
    variables = {}
    for column in sorted(touched, key=names.__getitem__):
        category = pulp.LpInteger if integer[column] else pulp.LpContinuous
        most = float(upper[column]) if math.isfinite(upper[column]) else None
        variables[column] = problem.add_variable(names[column], 0, most, category)
    problem += pulp.lpSum(float(program.goal[c]) * variables[c] for c in sorted(touched) if program.goal[c])
    for rows in program.rows:
        left: list[dict[int, float]] = [{} for _ in range(len(rows))]
        for row, column, value in zip(rows.row, rows.column, rows.value, strict=True):
            left[row][int(column)] = left[row].get(int(column), 0.0) + float(value)
        for name, terms_of_row, limit in zip(rows.names(program.layout), left, rows.limit, strict=True):
            expression = pulp.lpSum(value * variables[column] for column, value in terms_of_row.items() if value)
            is_most = rows.sense is Sense.AT_MOST
            problem += (expression <= float(limit) if is_most else expression >= float(limit)), name
    return problem
