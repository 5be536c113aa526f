"""Conflicts and ways out against brute force and small cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np

from planner.optimizer import Period, Relaxation, Resource, SolveStatus, constraints, solve
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.highs import ProgramSolver, Solution
from planner.optimizer.layout import build_layout
from planner.optimizer.program import build_program
from tests.fleet_oracle import Fleets, small_problem
from tests.optimizer.problems import MAX_RATE, MIN_COST, problem, unit, with_resource


def without(stated, family):
    """The problem without one limit, by the name of its rows."""
    kind, *about = family.split("__")
    if kind in ("within_groups", "within_budget"):
        key = {"within_groups": "max_groups", "within_budget": "budget_usd_per_hour"}[kind]
        return stated.model_copy(update={key: None})
    if kind == "serve_demand":
        return with_demand(stated, about[0], 0.0)
    return with_resource(stated, kind, about, None if kind.startswith("within") else 0.0)


def with_demand(stated, name, factor):
    changed = (
        s.model_copy(update={"demand_per_s": tuple(d * factor for d in s.demand_per_s)}) if s.name == name else s
        for s in stated.slices
    )
    return stated.model_copy(update={"slices": tuple(changed)})


def moved(stated, relaxation_found, share):
    """The problem with the limit of a relaxation set to a share of what is said to be needed; None: not tried here."""
    kind, *about = relaxation_found.name.split("__")
    value = relaxation_found.needed * share
    if kind == "serve_demand":
        return with_demand(stated, about[0], value / relaxation_found.limit)
    if kind == "within_budget":
        return stated.model_copy(update={"budget_usd_per_hour": value})
    if kind in ("within_resource", "within_purchase"):
        return with_resource(stated, kind, about, value)
    return None


def feasible(stated):
    return bool(Fleets(stated, True).outcomes)


def test_a_diagnosis_is_a_minimal_conflict_with_the_smallest_ways_out():
    """By brute force: without any one of them the rest holds together; what is needed is enough, less is not."""
    checked = helped = 0
    for seed in range(120):
        stated = small_problem(seed, MIN_COST)
        if Fleets(stated, True).outcomes:
            continue
        found = solve(stated, MIN_COST).diagnosis
        assert found.is_proven and found.conflict
        limits = {row.name for row in all_limits(stated)}
        alone = stated
        for name in limits - set(found.conflict):
            alone = without(alone, name)
        if Fleets(alone, True).size > 20000:
            continue
        assert not feasible(alone), seed
        for name in found.conflict:
            assert feasible(without(alone, name)), (seed, name)
        for one in found.relaxations:
            if one.needed is None:
                assert one.name.startswith(("serve", "pin")) or not feasible(without(stated, one.name)), (seed, one)
            elif (at := moved(stated, one, 1.0 + 1e-9 * (1 if one.name.startswith("within") else -1))) is not None:
                assert feasible(at), (seed, one)
                assert not feasible(moved(stated, one, 0.999 if one.name.startswith("within") else 1.001)), (seed, one)
                helped += 1
        checked += 1
    assert checked > 10 and helped > 10


def all_limits(stated):
    """Every limit of a problem as named rows, read off the program of the whole problem."""
    program = build_program(build_layout(stated), MIN_COST)
    for rows in program.rows:
        if rows.constraint not in constraints.STRUCTURAL | {"hold_resource"}:
            for name in set(rows.families()):
                yield type("Row", (), {"name": name})


def test_a_limit_that_does_not_help_alone_says_so():
    """Ten units cost 50 and take 20 GPUs: neither limit alone is enough, so the conflict is with one of them."""
    stated = problem(
        [unit("a", 4.0, 5.0, {"gpu": 2.0})],
        40.0,
        budget_usd_per_hour=40.0,
        resources=(Resource(name="gpu", at_most=8.0),),
    )
    found = solve(stated, MIN_COST).diagnosis
    assert found.conflict == ("serve_demand__chat", "within_budget")
    assert str(found.relaxations[1]) == "budget_usd_per_hour 40 no change of it alone helps"
    assert found.relaxations[0].needed == 16.0


def test_all_periods_of_a_limit_are_one():
    """Quota 2, needs 1 and 3: one limit in conflict, its demand said by the largest period, in proportion."""
    periods = (Period(name="night"), Period(name="noon"))
    stated = problem(
        [unit("a", 1.0, 1.0, {"gpu": 1.0})], 1.0, 3.0, periods=periods, resources=(Resource(name="gpu", at_most=2.0),)
    )
    found = solve(stated, MIN_COST).diagnosis
    assert [str(r) for r in found.relaxations] == ["slices[chat].demand_per_s 3 -> 2", "resources[gpu].at_most 2 -> 3"]


def test_nothing_fits_is_infeasible_not_an_empty_fleet():
    answer = solve(problem([unit("a", 4.0, 5.0)], 9.0, budget_usd_per_hour=4.0), MAX_RATE)
    assert answer.status is SolveStatus.INFEASIBLE
    assert answer.diagnosis.conflict == ("serve_minimum", "within_budget")
    assert [r.needed for r in answer.diagnosis.relaxations] == [None, 5.0]


def test_a_diagnosis_cut_short_says_so(monkeypatch):
    stated = problem(
        [unit("a", 4.0, 5.0, {"gpu": 2.0})],
        40.0,
        budget_usd_per_hour=40.0,
        resources=(Resource(name="gpu", at_most=8.0),),
    )
    nothing = Solution(False, np.zeros(0), -math.inf, np.zeros(0), 0.0)
    monkeypatch.setattr(ProgramSolver, "run", lambda *asked, **limits: nothing)
    late = diagnose(ProgramSolver(0.0, 0.0), MIN_COST, build_layout(stated))
    assert not late.is_proven and not any(r.is_proven for r in late.relaxations)
    assert late.conflict == ("serve_demand__chat", "within_resource__gpu", "within_budget")
    assert late.summary.endswith("no way out found yet (the search was cut short: a smaller change may do)")


def test_what_is_shown_of_a_change_is_enough():
    """Rounded to the side on which the limit holds."""
    less = Relaxation(name="serve_demand__chat", field="slices[chat].demand_per_s", limit=40.0, needed=22.1258181)
    more = Relaxation(name="within_budget", field="budget_usd_per_hour", limit=50.0, needed=96.000012)
    whole = Relaxation(name="within_resource__gpu", field="resources[gpu].at_most", limit=8.0, needed=123_457.0)
    assert [str(each).rpartition(" ")[2] for each in (less, more, whole)] == ["22.125", "96.001", "123457"]


def test_a_limit_below_one_moves_in_proportion_to_itself():
    """Half a kW in all periods, of which the only unit takes 0.8: it must rise to 0.8, not to a multiple of one."""
    periods = (Period(name="night"), Period(name="noon"))
    stated = problem(
        [unit("a", 4.0, 1.0, {"kw": 0.8})], 0.2, 0.4, periods=periods, resources=(Resource(name="kw", at_most=0.5),)
    )
    found = solve(stated, MIN_COST).diagnosis
    assert {r.field: r.needed for r in found.relaxations} == {
        "slices[chat].demand_per_s": None,
        "resources[kw].at_most": 0.8,
    }


def test_a_limit_of_nothing_is_lifted_to_what_is_needed():
    """Three units of one GPU each where there is none: no demand but none at all would do, or three GPUs."""
    none = Resource(name="gpu", at_most=0.0)
    found = solve(problem([unit("a", 1.0, 1.0, {"gpu": 1.0})], 3.0, resources=(none,)), MIN_COST).diagnosis
    assert [(r.field, r.needed) for r in found.relaxations] == [
        ("slices[chat].demand_per_s", None),
        ("resources[gpu].at_most", 3.0),
    ]


def test_a_conflict_in_the_relaxation_says_so_and_no_way_out():
    """Of a large problem only parts of units are looked at: that its limits clash is not proved to be all."""
    stated = problem([unit("a", 1.0, 2.0)], 6.0, budget_usd_per_hour=10.0)
    found = diagnose(ProgramSolver(1e-6, math.inf), MIN_COST, build_layout(stated), is_relaxed=True)
    assert "within_budget" in found.conflict and not found.is_proven and not found.relaxations
