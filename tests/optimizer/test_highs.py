"""What the solver says, turned into values; limits of work: the same answer on an idle and on a busy machine."""

from __future__ import annotations

import multiprocessing
import time

import highspy
import numpy as np
import pytest

from planner.core import PlannerError
from planner.optimizer import FleetProblem, Purchase, Resource, Slice, SolveStatus, Unit, highs, solve
from planner.optimizer.highs import ProgramSolver
from planner.optimizer.layout import Layout, build_layout
from planner.optimizer.program import build_program
from tests.fleet_oracle import small_problem
from tests.optimizer.problems import MAX_RATE, MIN_COST, check_allocation, problem, unit


def many_alike(seed: int, slices: int = 3, count: int = 40) -> FleetProblem:
    """Units of about equal worth and very different sizes, in blocks: branch and bound takes long to prove the best."""
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(slices)]
    units = []
    for index in range(count):
        size = float(rng.integers(2, 12))
        rates = {name: size * float(rng.uniform(0.9, 1.1)) for name in names}
        units.append(Unit(name=f"u{index}", rates_per_s=rates, takes={f"g{index % 2}": size}, usd_per_hour=0.25))
    demand = tuple(Slice(name=name, demand_per_s=(float(rng.uniform(30.0, 60.0)),)) for name in names)
    resources = tuple(
        Resource(name=f"g{sku}", purchases=(Purchase(name="p", usd_per_hour=1.0 + 0.02 * sku, block=8),))
        for sku in range(2)
    )
    return FleetProblem(slices=demand, units=tuple(units), resources=resources)


def _spin(until: float) -> None:
    while time.monotonic() < until:
        pass


def test_a_busy_machine_answers_what_an_idle_one_does() -> None:
    """Cut short by its work, under as many busy processes as the machine has processors and more: word for word."""
    stated = many_alike(2, slices=6)
    idle = solve(stated, MIN_COST, work=2e5)
    assert idle.status is SolveStatus.WORK_LIMIT
    crowd = [multiprocessing.Process(target=_spin, args=(time.monotonic() + 60.0,), daemon=True) for _ in range(4)]
    for process in crowd:
        process.start()
    try:
        assert solve(stated, MIN_COST, work=2e5) == idle
    finally:
        for process in crowd:
            process.terminate()
            process.join()
    check_allocation(idle, stated, MIN_COST)


def test_more_work_never_finds_a_dearer_fleet_or_proves_less() -> None:
    stated = many_alike(2)
    answers = [solve(stated, MIN_COST, work=work) for work in (1e5, 1e6, 1e7)]
    costs = [answer.cost_usd_per_hour for answer in answers]
    bounds = [answer.cost_usd_per_hour * (1.0 - (answer.gap or 0.0)) for answer in answers]
    assert costs == sorted(costs, reverse=True)
    assert bounds == pytest.approx(sorted(bounds))


def test_a_start_is_no_dearer_than_what_is_found_from_it() -> None:
    """The optimum of one run, given to another that may hardly search: it has nothing to add."""
    layout = build_layout(many_alike(3, slices=1))
    solver = ProgramSolver(1e-3, 1e8)
    best = solver.run(build_program(layout, MIN_COST))
    again = ProgramSolver(0.5, 0.0).run(build_program(layout, MIN_COST), start=best.values)
    goal = build_program(layout, MIN_COST).goal
    assert goal @ again.values <= goal @ best.values * (1.0 + 1e-9)


def test_units_that_another_betters_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same programs over all units: every unit beside one as good, one worse and one that betters it."""
    left_out = 0
    for seed in range(24):
        stated = small_problem(7100 + seed, MIN_COST)
        worse = [
            one.model_copy(update={"name": f"{one.name} {share}", "rates_per_s": lower, "usd_per_hour": more})
            for one in stated.units
            for share, more in ((1.0, one.usd_per_hour), (0.8, one.usd_per_hour + 0.1), (2.0, one.usd_per_hour))
            for lower in [{name: share * rate for name, rate in one.rates_per_s.items()}]
        ]
        units = stated.model_copy(update={"units": (*worse, *stated.units)})
        with monkeypatch.context() as patched:
            patched.setattr("planner.optimizer.solving.cheapest_cover", lambda *_: None)
            fewer = solve(units, MIN_COST)
            left_out += int((~build_layout(units).unbettered()).sum())
            patched.setattr(Layout, "unbettered", lambda layout: np.ones(len(layout.stage), dtype=bool))
            every = solve(units, MIN_COST)
        assert fewer.status is every.status, seed
        assert fewer.objective == (every.objective if every.objective is None else pytest.approx(every.objective)), seed
    assert left_out > 150


def test_goal_and_bound_of_a_greatest_rate_are_in_requests_per_second() -> None:
    """16 USD/h buy three units of 4/s at 5 USD/h; of least cost, five of them for 20 requests per second."""
    few = problem([unit("a", 4.0, 5.0)], 20.0, budget_usd_per_hour=16.0)
    for stated, objective, best in ((few, MAX_RATE, 12.0), (problem([unit("a", 4.0, 5.0)], 20.0), MIN_COST, 25.0)):
        layout = build_layout(stated)
        program = build_program(layout, objective)
        answer = ProgramSolver(0.0, 1e7).run(program)
        assert program.goal @ answer.values == pytest.approx(best) and answer.bound == pytest.approx(best)


def test_integers_are_rounded_not_truncated_and_fractions_refused():
    whole = np.array([True, True, True, False])
    assert highs._rounded(np.array([2.9999999, 3.0000001, -1e-9, 0.5]), whole).tolist() == [3.0, 3.0, 0.0, 0.5]
    with pytest.raises(PlannerError, match=r"column 0 = 2.5: is not a whole number to 0.0001. Fix: bring rates"):
        highs._rounded(np.array([2.5, 0.0, 0.0, 0.0]), whole)
    with pytest.raises(PlannerError, match=r"column 1 = 1.25"):
        highs._rounded(np.array([1.0, 1.25, 7.5, 0.5]), whole)


def test_a_solver_that_fails_is_an_error_not_an_answer(monkeypatch):
    class Broken:
        """What HiGHS would say after a numerical failure."""

        name = "kSolveError"

    solver = highspy.Highs()
    monkeypatch.setattr(type(solver), "getModelStatus", lambda self: Broken)
    with pytest.raises(PlannerError, match=r"solver status = 'kSolveError': HiGHS neither solved the program nor came"):
        highs._ended(solver)
