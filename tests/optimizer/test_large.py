"""Problems too large for one program: periods alone and shortlists, against enumeration and the program written out.

Small problems are treated as if they were large, so that the truth about them can be had.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from planner.optimizer import Allocation, FleetProblem, Slice, SolveStatus, UnitStage, solve, solving
from planner.optimizer.layout import build_layout
from planner.optimizer.periods import undominated_day
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax, shortlist
from tests.fleet_oracle import Fleets, small_problem
from tests.optimizer.large_problems import Explicit, hard_instance, small_instance
from tests.optimizer.problems import FOUND, MIN_COST, check_allocation

TOLERANCE = 1e-6
"""Of every check: `FEASIBILITY_TOLERANCE`."""


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything is too large to be written down as one program."""
    monkeypatch.setattr(solving, "_is_large", lambda layout: True)
    monkeypatch.setattr(solving, "RATES_OF_PARTS", 0)
    yield


def lower_bound(answer: Allocation) -> float:
    """What no fleet costs less than."""
    assert answer.gap is not None
    return answer.cost_usd_per_hour * (1.0 - answer.gap)


def check(problem: FleetProblem, answer: Allocation, best: float, gap: float, known: float = TOLERANCE) -> None:
    """A fleet that meets every limit at the cost it says, between the bound and what is proved (`best` to `known`)."""
    if not answer.status.has_allocation:
        assert answer.status is SolveStatus.NO_SOLUTION_IN_TIME
        return
    assert lower_bound(answer) <= best * (1.0 + TOLERANCE) + 1e-9
    check_allocation(answer, problem, MIN_COST)
    assert answer.cost_usd_per_hour >= best * (1.0 - known) - 1e-9
    is_proven = answer.status in FOUND
    assert is_proven == (answer.gap is not None and answer.gap <= gap + TOLERANCE)


SMALL = range(40, 70)


@pytest.mark.parametrize("seed", range(25))
def test_small_problems_agree_with_the_program_written_out(seed: int, large: None) -> None:
    """Every feature at once: the bound is never above the optimum, the fleet never below."""
    problem = small_instance(seed)
    best, answer = Explicit(problem).solve(gap=2e-3), solve(problem, MIN_COST, relative_gap=0.005)
    if best is None:
        assert not answer.status.has_allocation
    else:
        assert answer.status is not SolveStatus.INFEASIBLE
        check(problem, answer, best, 0.005, 2e-3)


@functools.cache
def solved_small(seed: int) -> tuple[FleetProblem, float | None, Allocation]:
    """A small problem, its optimum by enumeration, and its answer: under `large`, as if it were large."""
    problem = small_problem(seed, MIN_COST)
    best = Fleets(problem, must_serve_all=True).best(MIN_COST)
    return problem, None if best is None else best[0], solve(problem, MIN_COST, relative_gap=0.005)


@pytest.mark.parametrize("seed", SMALL)
def test_small_problems_agree_with_brute_force(seed: int, large: None) -> None:
    """The bound is never above the optimum, the fleet never below it."""
    problem, best, answer = solved_small(seed)
    if best is None:
        assert not answer.status.has_allocation
    else:
        assert answer.status is not SolveStatus.INFEASIBLE
        check(problem, answer, best, 0.005)


def test_small_problems_get_fleets_though_they_count_as_large(large: None) -> None:
    """Of those that can be served, limited in nearly everything, at least six in ten; at most 5 % dearer on average."""
    served = [(best, answer) for _, best, answer in map(solved_small, SMALL) if best is not None]
    dearer = [answer.cost_usd_per_hour / best - 1.0 for best, answer in served if answer.status.has_allocation and best]
    assert len(served) >= 12
    assert len(dearer) >= 0.6 * len(served)
    assert float(np.mean(dearer)) <= 0.05


@pytest.mark.parametrize("seed", range(100, 118))
def test_one_period_is_solved_to_the_gap(seed: int) -> None:
    """Without what links periods, small ones must be proved and equal."""
    problem = small_instance(seed)
    first = tuple(
        one.model_copy(update={"demand_per_s": one.demand_per_s[:1]}) for one in problem.slices if one.demand_per_s
    )
    problem = problem.model_copy(update={"slices": first, "periods": problem.periods[:1]})
    best = Explicit(problem).solve()
    answer = solve(problem, MIN_COST, relative_gap=0.005)
    if best is None:
        assert answer.status is SolveStatus.INFEASIBLE
    else:
        assert answer.status in FOUND
        check(problem, answer, best, 0.005)


@pytest.mark.parametrize("seed", range(10))
def test_pairs_that_another_betters_are_not_missed_at_any_price(seed: int) -> None:
    """At three price lists: the tightened relaxation of all pairs, and no more than the least cost."""
    problem = small_instance(seed, starts=False)
    random = np.random.default_rng(seed)
    for _ in range(3):
        priced = tuple(
            one.model_copy(
                update={
                    "purchases": tuple(
                        way.model_copy(update={"usd_per_hour": way.usd_per_hour * random.uniform(0.2, 5.0)})
                        for way in one.purchases
                    )
                }
            )
            for one in problem.resources
        )
        stated = problem.model_copy(update={"resources": priced})
        best, layout = Explicit(stated).solve(gap=2e-3), build_layout(stated)
        fewer, rate_per_s = undominated_day(layout)
        of_all, of_few = relax(build_program(layout, MIN_COST)), relax(build_program(fewer, MIN_COST), rate_per_s)
        assert (of_few is None) == (of_all is None)
        if best is not None:
            assert of_all is not None and of_few is not None
            assert of_few.bound == pytest.approx(of_all.bound, rel=TOLERANCE)
            assert of_few.bound <= best * (1.0 + TOLERANCE) + 1e-9


@pytest.mark.parametrize(("seed", "disaggregated"), [(1, False), (6, True)])
def test_medium_problems_agree_with_the_program_written_out(seed: int, disaggregated: bool, large: None) -> None:
    """Pools of three sizes, 3 slices, 2 periods: the optimum, known to 5 %, is between bound and fleet."""
    shape = {"families": 12, "sizes": 2, "slices": 2, "periods": 2}
    problem = hard_instance(seed, gpus=40.0, **shape, disaggregated=disaggregated)
    best, answer = Explicit(problem).solve(gap=5e-2), solve(problem, MIN_COST, relative_gap=0.025)
    assert best is not None
    check_allocation(answer, problem, MIN_COST)
    assert lower_bound(answer) <= best * (1.0 + TOLERANCE)
    assert best * (1.0 - 5e-2 - TOLERANCE) <= answer.cost_usd_per_hour <= best * 1.03


@pytest.mark.parametrize("seed", [1, 6])
@pytest.mark.parametrize("disaggregated", [False, True])
def test_the_relaxation_is_the_linear_program_written_out(seed: int, disaggregated: bool) -> None:
    """Units as the sum of what they carry, but for those that are kept on because a start is dear: its optimum."""
    shape = {"families": 24, "sizes": 3, "slices": 6, "periods": 4}
    features = {"disaggregated": disaggregated, "proportional": seed % 2 > 0, "starts": seed > 5}
    problem = hard_instance(seed, gpus=200.0, **shape, **features)
    dear = (u.model_copy(update={"usd_per_start": 400.0 * u.usd_per_start}) for u in problem.units)  # kept on
    problem = problem.model_copy(update={"units": tuple(dear)})
    program, best = build_program(build_layout(problem), MIN_COST), Explicit(problem).solve(fractions=True)
    found = relax(program, program.layout.capped_rates_per_s)
    assert best is not None and found is not None and found.bound == pytest.approx(best, rel=TOLERANCE)


def test_of_very_many_pairs_few_are_left() -> None:
    """Of 60 families in pools of five: as good as all of them, and an eighth as many."""
    problem = hard_instance(1, gpus=100.0, families=60, sizes=5, slices=8, periods=3)
    layout = build_layout(problem)
    fewer, rate_per_s = undominated_day(layout)
    assert len(fewer.pair_unit) < len(layout.pair_unit) / 8.0
    of_all, of_few = relax(build_program(layout, MIN_COST)), relax(build_program(fewer, MIN_COST), rate_per_s)
    assert of_all is not None and of_few is not None
    assert of_few.bound == pytest.approx(of_all.bound, rel=TOLERANCE)


def test_a_shortlist_holds_an_optimum_of_the_relaxation() -> None:
    problem = hard_instance(1, gpus=100.0, families=60, sizes=5, slices=8, periods=1)
    program = build_program(build_layout(problem), MIN_COST)
    whole = relax(program)
    assert whole is not None
    pairs = shortlist(program, whole)
    assert pairs.sum() < 0.9 * len(pairs)
    few = relax(build_program(program.layout.select(pairs), MIN_COST))
    assert few is not None and few.bound == pytest.approx(whole.bound, rel=TOLERANCE)


def test_limits_too_tight_are_proved_and_not_an_error(large: None) -> None:
    """A quota below what the demand needs, and a slice that nothing serves."""
    problem = hard_instance(1, gpus=100.0, families=24, sizes=3, slices=4, periods=3)
    tight = tuple(one.model_copy(update={"at_most": 1.0}) for one in problem.resources)
    scarce = problem.model_copy(update={"resources": tight})
    answer = solve(scarce, MIN_COST, relative_gap=0.005)
    assert answer.status is SolveStatus.INFEASIBLE and answer.diagnosis is not None
    assert any(name.startswith("within_resource") for name in answer.diagnosis.conflict)
    assert answer.diagnosis.summary.endswith("cannot hold together, not even with parts of units")
    one = scarce.model_copy(
        update={
            "slices": tuple(s.model_copy(update={"demand_per_s": s.demand_per_s[:1]}) for s in scarce.slices),
            "periods": scarce.periods[:1],
        }
    )
    assert solve(one, MIN_COST, relative_gap=0.005).status is SolveStatus.INFEASIBLE
    nobody = Slice(name="nobody", demand_per_s=(1.0, 1.0, 1.0))
    lonely = problem.model_copy(update={"slices": (*problem.slices, nobody)})
    alone = solve(lonely, MIN_COST, relative_gap=0.1)
    assert alone.status is SolveStatus.INFEASIBLE
    assert alone.diagnosis is not None and alone.diagnosis.conflict == ("serve_demand__nobody",)


def test_a_budget_below_the_bound_is_infeasible_and_one_above_changes_nothing(large: None) -> None:
    problem = hard_instance(1, gpus=100.0, families=24, sizes=3, slices=4, periods=3)
    free = solve(problem, MIN_COST, relative_gap=0.05)
    assert free.status is SolveStatus.WITHIN_GAP
    rich = problem.model_copy(update={"budget_usd_per_hour": free.cost_usd_per_hour * 1.01})
    assert solve(rich, MIN_COST, relative_gap=0.05).cost_usd_per_hour == free.cost_usd_per_hour
    poor = problem.model_copy(update={"budget_usd_per_hour": lower_bound(free) * 0.9})
    refused = solve(poor, MIN_COST, relative_gap=0.05)
    assert refused.status is SolveStatus.INFEASIBLE
    assert refused.diagnosis is not None and refused.diagnosis.conflict == ("within_budget",)


def test_money_in_other_units_is_as_much_cost(large: None) -> None:
    """Prices in another currency scale cost and bound and choose the same fleet."""
    money = 2.0**-12
    problem = hard_instance(3, gpus=100.0, families=24, sizes=4, slices=6, periods=4)
    scaled = tuple(
        one.model_copy(
            update={
                "purchases": tuple(w.model_copy(update={"usd_per_hour": money * w.usd_per_hour}) for w in one.purchases)
            }
        )
        for one in problem.resources
    )
    once = solve(problem, MIN_COST, relative_gap=0.1)
    other = solve(problem.model_copy(update={"resources": scaled}), MIN_COST, relative_gap=0.1)
    assert once.status is SolveStatus.WITHIN_GAP
    assert other.cost_usd_per_hour == pytest.approx(money * once.cost_usd_per_hour, rel=1e-9)
    assert lower_bound(other) == pytest.approx(money * lower_bound(once), rel=1e-4)


def test_pools_that_share_partners_are_of_one_kind(large: None) -> None:
    """Two kinds on each side of two channels: the fleet uses one on each, in all periods."""
    problem = hard_instance(2, gpus=100.0, families=24, sizes=3, slices=2, periods=2, disaggregated=True)
    units = tuple(
        unit if unit.stage is UnitStage.WHOLE else unit.model_copy(update={"kind": unit.name.split("x")[0][-1:] + "k"})
        for unit in problem.units
    )
    kinds = problem.model_copy(update={"units": units})
    answer = solve(kinds, MIN_COST, relative_gap=0.05)
    assert answer.status.has_allocation
    check_allocation(answer, kinds, MIN_COST)
    assert any(unit.stage is not UnitStage.WHOLE for unit in kinds.units if unit.name in answer.units)
