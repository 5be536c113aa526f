"""Duals against derivatives."""

from __future__ import annotations

from dataclasses import replace

import pulp
import pytest

from planner.optimizer import Period, solve
from planner.optimizer.as_pulp import to_pulp
from planner.optimizer.highs import solve_program
from planner.optimizer.layout import build_layout
from planner.optimizer.program import build_program, with_rates
from planner.optimizer.relaxation import relax, undominated
from tests.optimizer.problems import MAX_RATE, MIN_COST, bought, medium_problem, problem, unit, with_resource


@pytest.mark.parametrize("objective", [MIN_COST, MAX_RATE])
@pytest.mark.parametrize("seed", range(6))
def test_units_that_others_better_change_no_relaxation(seed, objective):
    """They are left out of it, and nothing else is: with all of them the program has the same optimum."""
    stated = medium_problem(seed, count=9, periods=1)
    worse = [
        one.model_copy(update={"name": f"dear {one.name}", "usd_per_hour": one.usd_per_hour + 1.0})
        for one in stated.units
    ]
    layout = build_layout(stated.model_copy(update={"units": (*stated.units, *worse)}))
    program = build_program(layout, objective)
    found, whole = relax(program), solve_program(with_rates(program, layout.tight_rates_per_s), whole=False)
    assert (found is not None) == whole.is_found
    if found is not None:
        assert program.goal @ found.values == pytest.approx(float(program.goal @ whole.values), rel=1e-7)


def test_a_unit_of_another_gpu_betters_none_however_few_it_takes() -> None:
    """One H100 carries more than one L4; of two units of one L4 the dearer is left out."""
    units = [unit("h", 4.0, takes={"h100": 1.0}), unit("l", 1.0, takes={"l4": 1.0}), unit("l2", 1.0, 1.0, {"l4": 1.0})]
    layout = build_layout(problem(units, 6.0, resources=(bought("h100", 9.0), bought("l4", 1.0))))
    assert undominated(layout, layout.tight_rates_per_s).tolist() == [True, True, False]


def test_the_dual_of_the_demand_is_cost_over_rate():
    """LP relaxation of one unit: cost = k d / r, in every period; the report has one row for all periods."""
    periods = (Period(name="night", hours=1.0), Period(name="noon", hours=3.0))
    answer = solve(problem([unit("a", 4.0, 2.5)], 6.0, 10.0, budget_usd_per_hour=50.0, periods=periods), MIN_COST)
    rows = {row.name: row for row in answer.constraints}
    assert set(rows) == {"serve_demand__chat", "within_budget"}
    assert rows["serve_demand__chat"].dual == pytest.approx(2.5 / 4.0)
    assert (rows["within_budget"].dual, rows["within_budget"].used) == (0.0, 2.5 * (2 + 3 * 3) / 4)
    assert [row.name for row in answer.binding] == ["serve_demand__chat"]


@pytest.mark.parametrize("seed", range(8))
def test_duals_are_derivatives_of_the_relaxation(seed):
    """Between the left and the right difference of the relaxed program of PuLP, with the limits really moved."""
    stated = medium_problem(seed, count=9)
    objective = MIN_COST if seed % 2 else MAX_RATE
    answer = solve(stated, objective, relative_gap=0.05)
    if not answer.status.has_allocation:
        pytest.skip("this problem has no allocation")

    def relaxed(changed):
        program = to_pulp(replace(build_program(build_layout(changed), objective)))
        for variable in program.variables():
            variable.cat = pulp.LpContinuous
        program.solve(pulp.HiGHS(msg=False))
        return program.objective.value()

    at, step = relaxed(stated), 1e-3
    for row in answer.constraints:
        kind, *about = row.name.split("__")
        if kind == "within_budget":
            sides = [
                stated.model_copy(update={"budget_usd_per_hour": stated.budget_usd_per_hour + d}) for d in (-step, step)
            ]
        elif kind in ("within_resource", "within_purchase"):
            sides = [with_resource(stated, kind, about, row.limit + d) for d in (-step, step)]
        elif kind in ("serve_demand", "cap_at_demand") and stated.max_groups is None:
            sides = [with_more_demand(stated, about[0], d) for d in (-step, step)]
        else:
            continue
        left, right = (at - relaxed(sides[0])) / step, (relaxed(sides[1]) - at) / step
        assert min(left, right) - 1e-5 <= row.dual <= max(left, right) + 1e-5, row.name


def with_more_demand(stated, name, more):
    changed = (
        s.model_copy(update={"demand_per_s": tuple(d + more for d in s.demand_per_s)}) if s.name == name else s
        for s in stated.slices
    )
    return stated.model_copy(update={"slices": tuple(changed)})
