"""The program against golden LP files that were read against the equations of the documents."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer import (
    FleetProblem,
    Objective,
    Period,
    Resource,
    Slice,
    SolveStatus,
    UnitStage,
    constraints,
    solve,
)
from planner.optimizer.as_pulp import to_pulp
from planner.optimizer.layout import build_layout
from planner.optimizer.program import build_program, pool_rates, unpool_rates
from tests.optimizer.problems import MIN_COST, chat, golden_problem, problem, unit
from tests.places import DOCS, LP

LP_FOLDER = LP
CONSTRAINT_NAMES = sorted({function.__name__ for used in constraints.CONSTRAINTS.values() for function in used})
GOLDEN_NAMES = [*CONSTRAINT_NAMES, *(objective.value for objective in Objective)]


def golden_program(name):
    whole = build_program(
        build_layout(golden_problem()), Objective(name) if name in list(Objective) else MIN_COST, ratio=0.75
    )
    if name in list(Objective):
        return whole
    return replace(whole, rows=(getattr(constraints, name)(whole.layout),), goal=np.zeros_like(whole.goal))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_program_is_the_one_on_file(name, tmp_path):
    """Files in tests/lp were read against the equations of the docs; a difference here is a changed model."""
    to_pulp(golden_program(name)).writeLP(tmp_path / "now.lp")
    assert (tmp_path / "now.lp").read_text() == (LP_FOLDER / f"{name}.lp").read_text()


def test_every_constraint_has_a_file_with_rows_and_every_file_a_constraint():
    returning_rows = {
        name
        for name, function in inspect.getmembers(constraints, inspect.isfunction)
        if function.__module__ == constraints.__name__
        and inspect.signature(function).return_annotation == "ConstraintRows"
        and not name.startswith("_")
    }
    assert sorted(returning_rows) == CONSTRAINT_NAMES, "a constraint no objective uses"
    assert sorted(path.stem for path in LP_FOLDER.glob("*.lp")) == sorted(GOLDEN_NAMES)
    for name in CONSTRAINT_NAMES:
        assert f"\n{name}" in (LP_FOLDER / f"{name}.lp").read_text(), "a file without rows shows nothing"


def test_row_names_are_their_functions_and_survive_pulp():
    for objective in Objective:
        program = build_program(build_layout(golden_problem()), objective)
        assert {rows.constraint for rows in program.rows} == {f.__name__ for f in constraints.CONSTRAINTS[objective]}
        assert [row.name for row in to_pulp(program).constraints()] == program.names()
        reported = {row.name for row in solve(golden_problem(), objective).constraints}
        assert reported <= {family for rows in program.rows for family in rows.families()}
        assert not any(name.startswith(tuple(constraints.STRUCTURAL)) for name in reported)


def test_every_name_is_documented():
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "explanation").glob("*.md"))
    missing = [name for name in [*GOLDEN_NAMES, *(status.value for status in SolveStatus)] if f"`{name}" not in text]
    assert not missing


def test_pooled_rates_of_other_units_stay_zero_and_the_last_useful_unit_is_the_ceiling():
    """10/s by units of 4/s: three at most; of two alike only the first has a rate of its own."""
    layout = build_layout(problem([unit("a", 4.0, 1.0), unit("b", 2.5, 1.0), unit("c", 9.0, 1.0)], 10.0))
    upper = pool_rates(build_program(layout, MIN_COST)).upper()
    assert upper[layout.column.units[:, 0]].tolist() == [3.0, 4.0, 2.0]
    assert upper[layout.column.rates[1:, 0]].tolist() == [0.0, 0.0] and np.isinf(upper[layout.column.rates[0, 0]])
    values = np.zeros(layout.columns)
    values[layout.column.units[:, 0]] = [1.0, 2.0, 0.0]
    values[layout.column.rates[0, 0]] = 8.0
    assert unpool_rates(layout, values)[layout.column.rates[:, 0]].tolist() == [4.0, 4.0, 0.0]


def test_what_a_solver_leaves_at_units_that_are_off_is_dropped() -> None:
    """1e-14 of a request by no unit misses the row that allows it none."""
    hours = (Period(name="night", hours=1.0), Period(name="day", hours=1.0))
    layout = build_layout(problem([unit("a", 4.0)], 8.0, 8.0, periods=hours))
    values = np.zeros(layout.columns)
    values[layout.column.units[0]], values[layout.column.rates[0]] = (0.0, 2.0), (1e-14, 8.0)
    assert unpool_rates(layout, values)[layout.column.rates[0]].tolist() == [0.0, 8.0]


def test_units_are_pooled_with_their_like_only() -> None:
    """Of one stage, channel, kind and set of groups, and with rates in proportion; in units of the first of them."""
    stage = {"stage": UnitStage.FIRST, "channel": "c", "kind": "k"}
    units = [
        unit("small", {"chat": 1.0, "code": 2.0}, takes={"x": 1.0}, **stage),
        unit("twice", {"chat": 2.0, "code": 4.0}, takes={"x": 2.0}, **stage),
        unit("skewed", {"chat": 2.0, "code": 3.0}, takes={"x": 2.0}, **stage),
        unit("other group", {"chat": 1.0, "code": 2.0}, takes={"y": 1.0}, **stage),
        unit("no group", {"chat": 1.0, "code": 2.0}, **stage),
        unit("other kind", {"chat": 1.0, "code": 2.0}, takes={"x": 1.0}, **stage | {"kind": "m"}),
        unit("other channel", {"chat": 1.0, "code": 2.0}, takes={"x": 1.0}, **stage | {"channel": "d"}),
        unit("other stage", {"chat": 1.0, "code": 2.0}, takes={"x": 1.0}, **stage | {"stage": UnitStage.SECOND}),
    ]
    slices = (chat(90.0), Slice(name="code", demand_per_s=(90.0,)))
    resources = (Resource(name="x", group="x"), Resource(name="y", group="y"))
    stated = FleetProblem(slices=slices, units=tuple(units), resources=resources, max_groups=1)
    lead, _, size = build_layout(stated).pools
    assert lead.tolist() == [0, 0, 2, 3, 4, 5, 6, 7]
    assert size[:2, 0].tolist() == [1.0, 2.0]
