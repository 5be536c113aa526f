"""Other solvers and files: the same program, the same least cost, by programs that are not ours."""

from __future__ import annotations

import os

import highspy
import pulp
import pytest

from planner.core import InputError
from planner.optimizer import SolveStatus, solve, write_program
from tests.optimizer.problems import (
    FOUND,
    MAX_RATE,
    MAX_RATIO,
    MIN_COST,
    chat,
    golden_problem,
    medium_problem,
    problem,
    unit,
)

needs_cbc = pytest.mark.skipif(
    not os.access(pulp.PULP_CBC_CMD.pulp_cbc_path, os.X_OK), reason="this PuLP brings no CBC for this machine"
)


@needs_cbc
@pytest.mark.parametrize("seed", (1, 2, 4))
@pytest.mark.parametrize("objective", [MIN_COST, MAX_RATE, MAX_RATIO])
def test_cbc_finds_what_highs_finds(seed, objective):
    stated = medium_problem(seed, count=5, periods=1 + seed % 2)
    by_cbc, own = solve(stated, objective, relative_gap=1e-3, solver="cbc"), solve(stated, objective, relative_gap=1e-3)
    assert (by_cbc.status in FOUND) == (own.status in FOUND)
    if own.status in FOUND:
        assert by_cbc.objective == pytest.approx(own.objective, rel=2.1e-3)
        assert by_cbc.gap <= 1e-3 + 1e-6


@needs_cbc
def test_cbc_proves_and_diagnoses_that_there_is_no_fleet():
    poor = problem([unit("a", 1.0, 2.0)], 6.0, budget_usd_per_hour=10.0)
    answer = solve(poor, MIN_COST, solver="CBC")
    assert answer.status is SolveStatus.INFEASIBLE
    assert answer.diagnosis == solve(poor, MIN_COST).diagnosis


def test_a_solver_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(InputError) as refused:
        solve(problem([unit("a", 1.0, 2.0)], 6.0), MIN_COST, solver="abacus")
    assert refused.value.field == "solver"
    assert "highs" in refused.value.fix


@pytest.mark.parametrize("suffix", ["lp", "mps"])
@pytest.mark.parametrize("objective", [MIN_COST, MAX_RATE])
def test_a_file_read_by_another_program_has_the_same_optimum(tmp_path, suffix, objective):
    write_program(golden_problem(), objective, tmp_path / f"fleet.{suffix}")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / f"fleet.{suffix}"))
    solver.run()
    expected = solve(golden_problem(), objective).objective
    assert abs(solver.getInfo().objective_function_value) == pytest.approx(expected, rel=1e-6)


def test_names_in_any_script_stay_apart(tmp_path):
    """Two Chinese names counted as equal, and were refused."""
    names = ("模型一", "模型二")
    fleet = problem(
        [unit(f"on {name}", {name: 1.0}, 2.0) for name in names], slices=tuple(chat(3.0, name=name) for name in names)
    )
    assert solve(fleet, MIN_COST).units == {f"on {name}": (3,) for name in names}
    write_program(fleet, MIN_COST, tmp_path / "fleet.lp")
    assert {"units__on_u6a21u578bu4e00", "units__on_u6a21u578bu4e8c"} <= set(
        (tmp_path / "fleet.lp").read_text().split()
    )


@pytest.mark.parametrize("suffix", ["lp", "mps"])
def test_names_of_any_length_are_written_and_stay_apart(tmp_path, suffix):
    """A service may be called by two hundred letters, and stands twice in the name of a rate."""
    names = [200 * "x" + end for end in ("", "y", ".1")]
    fleet = problem(
        [unit(f"on {name}", {name: 1.0}, 2.0) for name in names], slices=tuple(chat(3.0, name=name) for name in names)
    )
    path = tmp_path / f"fleet.{suffix}"
    write_program(fleet, MIN_COST, path)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    solver.run()
    assert solver.getNumCol() == 6
    assert solver.getInfo().objective_function_value == pytest.approx(3 * 3 * 2.0)


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError):
        write_program(problem([unit("a", 1.0, 2.0)], 6.0), MIN_COST, tmp_path / "fleet.txt")
    assert not list(tmp_path.iterdir())
