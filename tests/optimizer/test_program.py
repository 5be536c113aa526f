"""The program against golden LP files that were read against the equations of the documents."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import highspy
import numpy as np
import pytest

from planner.optimizer import Objective, SolveStatus, constraints, solve
from planner.optimizer.highs import to_pulp
from planner.optimizer.program import build_program
from tests.optimizer.problems import MAX_RATE, MIN_COST, golden_problem
from tests.places import DOCS, LP

PACKAGE = Path(constraints.__file__).parent
LP_FOLDER = LP
CONSTRAINT_NAMES = sorted({function.__name__ for used in constraints.CONSTRAINTS.values() for function in used})
GOLDEN_NAMES = [*CONSTRAINT_NAMES, *(objective.value for objective in Objective)]


def golden_program(name):
    whole = build_program(golden_problem(), Objective(name) if name in list(Objective) else MIN_COST, ratio=0.75)
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
        program = build_program(golden_problem(), objective)
        assert {rows.constraint for rows in program.rows} == {f.__name__ for f in constraints.CONSTRAINTS[objective]}
        assert [row.name for row in to_pulp(program).constraints()] == program.names()
        reported = {row.name for row in solve(golden_problem(), objective).constraints}
        assert reported <= {family for rows in program.rows for family in rows.families()}
        assert not any(name.startswith(tuple(constraints.STRUCTURAL)) for name in reported)


@pytest.mark.parametrize("objective", [MIN_COST, MAX_RATE])
def test_the_file_carries_its_optimum(objective):
    """HiGHS reads the file as it is: unscaled, untightened, without PuLP."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(LP_FOLDER / f"{objective.value}.lp"))
    solver.run()
    assert solve(golden_problem(), objective).objective == pytest.approx(solver.getObjectiveValue(), rel=1e-6)


def test_every_name_is_documented():
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "explanation").glob("*.md"))
    missing = [name for name in [*GOLDEN_NAMES, *(status.value for status in SolveStatus)] if f"`{name}" not in text]
    assert not missing


def test_only_one_module_imports_pulp():
    assert [path.name for path in PACKAGE.glob("*.py") if "import pulp" in path.read_text()] == ["highs.py"]
