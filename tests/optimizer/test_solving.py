"""Optima and statuses against brute force, a second solver, closed forms and the symmetries of the problem."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pulp
import pytest

from planner.core import PlannerError
from planner.optimizer import (
    Allocation,
    FleetProblem,
    Objective,
    Period,
    Purchase,
    Resource,
    Slice,
    SolveStatus,
    Unit,
    UnitStage,
    highs,
    solve,
    solving,
)
from planner.optimizer.as_pulp import to_pulp
from planner.optimizer.evaluate_allocation import evaluate_fleet
from planner.optimizer.layout import build_layout
from planner.optimizer.program import build_program
from tests.fleet_oracle import Fleets, small_problem
from tests.optimizer.problems import (
    FOUND,
    MAX_RATE,
    MAX_RATIO,
    MIN_COST,
    chat,
    check_against_brute_force,
    check_allocation,
    golden_problem,
    medium_problem,
    problem,
    unit,
    value,
    with_resource,
)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("block", range(9))
def test_equals_brute_force_on_189_small_problems(objective, block):
    """All features together: slices, periods, stages, channels, purchases, starts, groups, pins, deferrable work."""
    for seed in range(20 * block, 20 * block + 7):
        check_against_brute_force(3000 + seed, objective)


@pytest.mark.parametrize("decade", range(5))
def test_equals_cbc_on_20_medium_problems(decade):
    """CBC reads the program as stated: unscaled, untightened, with all units."""
    path = pulp.PULP_CBC_CMD.pulp_cbc_path
    if not os.access(path, os.X_OK):
        pytest.skip("this PuLP brings no CBC for this machine")
    solved = 0
    for seed in range(10 * decade, 10 * decade + 4):
        stated = medium_problem(seed, count=9, periods=1 + seed % 2)
        other = to_pulp(build_program(build_layout(stated), MIN_COST))
        other.solve(pulp.COIN_CMD(path=path, msg=False, gapRel=1e-3, timeLimit=20))
        answer = solve(stated, MIN_COST, relative_gap=1e-3)
        if other.status == pulp.LpStatusInfeasible:
            assert answer.status is SolveStatus.INFEASIBLE, seed
        else:
            assert answer.status in FOUND, seed
            assert answer.objective == pytest.approx(other.objective.value(), rel=2.1e-3), seed
            solved += 1
    assert solved > 1


@pytest.mark.parametrize("seed", range(5))
def test_least_cost_equals_the_dynamic_program_of_the_covering_knapsack(seed):
    """One slice and no limit: C(d) = min_j k_j + C(d - r_j), exact for whole rates."""
    rng = np.random.default_rng(seed)
    rates, costs = rng.integers(3, 40, 150), rng.integers(2, 60, 150)
    demand = 200
    least = [0] * (demand + 1)
    for d in range(1, demand + 1):
        least[d] = min(int(k) + least[max(0, d - int(r))] for r, k in zip(rates, costs, strict=True))
    units = [unit(f"u{i}", float(r), float(k)) for i, (r, k) in enumerate(zip(rates, costs, strict=True))]
    answer = solve(problem(units, float(demand)), MIN_COST)
    assert (answer.status, answer.objective) == (SolveStatus.OPTIMAL, least[demand])


@pytest.mark.parametrize(("rate", "demand", "count"), [(4.0, 10.0, 3), (4.0, 12.0, 3), (0.1, 0.3, 3), (7.0, 0.01, 1)])
def test_one_unit_takes_the_ceiling_of_demand_over_rate(rate, demand, count):
    answer = solve(problem([unit("a", rate, 2.5)], demand), MIN_COST)
    assert answer.units == {"a": (count,)}
    assert answer.objective == answer.cost_usd_per_hour == 2.5 * count


def test_a_reserved_base_and_peaks_on_demand():
    """The newsvendor of two purchases: reserve what is used for a longer share of the day than the ratio of prices.

    Needs 2, 4, 10 for 8 h each; reserved costs 0.6 of on demand, so units needed at least 14.4 of 24 h are reserved: 4.
    """
    ways = (Purchase(name="on_demand", usd_per_hour=1.0), Purchase(name="reserved", usd_per_hour=0.6, committed=True))
    periods = tuple(Period(name=name, hours=8.0) for name in ("night", "morning", "noon"))
    stated = problem(
        [unit("a", 1.0, takes={"gpu": 1.0})],
        2.0,
        4.0,
        10.0,
        resources=(Resource(name="gpu", purchases=ways),),
        periods=periods,
    )
    answer = solve(stated, MIN_COST)
    assert answer.bought == {"gpu": {"reserved": (4.0, 4.0, 4.0), "on_demand": (0.0, 0.0, 6.0)}}
    assert answer.cost_usd_per_hour == pytest.approx(0.6 * 4 + 6 / 3)


def test_starts_are_counted_around_the_clock():
    """Two units at noon, one at night: one start a day, 24 h x mean cost = 1 start; dear starts keep both on."""
    periods = (Period(name="night", hours=12.0), Period(name="noon", hours=12.0))
    for usd, expected in ((6.0, (1, 2)), (30.0, (2, 2))):
        answer = solve(problem([unit("a", 1.0, 1.0, usd_per_start=usd)], 1.0, 2.0, periods=periods), MIN_COST)
        assert answer.units == {"a": expected}
        assert answer.starts_usd_per_hour == (usd / 24 if expected == (1, 2) else 0.0)


def test_the_ratio_is_a_true_ratio():
    """Neither the cheapest nor the fastest allocation: 5/4 beats 1/1 and 12/10; of equal ratios the most is served."""
    answer = solve(
        problem([unit("small", 1.0, 1.0), unit("good", 5.0, 4.0), unit("large", 12.0, 10.0)], 13.0), MAX_RATIO
    )
    assert (answer.objective, answer.units) == (1.25, {"good": (2,)})
    assert list(answer.iterates) == sorted(answer.iterates) and answer.iterates[-1] == 1.25
    assert answer.constraints[0].dual is None


def test_dinkelbachs_ratios_rise_strictly_to_the_optimum():
    longest = 0
    for seed in range(15):
        answer = solve(small_problem(seed, MAX_RATIO), MAX_RATIO)
        assert all(b > a for a, b in zip(answer.iterates, answer.iterates[1:], strict=False))
        assert answer.objective is None or answer.iterates[-1] == answer.objective
        longest = max(longest, len(answer.iterates))
    assert longest >= 3


@pytest.mark.parametrize("rate", [1e5, 1e7, 1e9, 1e12])
def test_a_unit_far_larger_than_the_demand_is_still_a_whole_unit(rate):
    """Within an integer tolerance of 1e-6 a millionth of such a unit would do."""
    assert solve(problem([unit("a", rate, 3.0)], 1.0), MIN_COST).units == {"a": (1,)}
    two = FleetProblem(
        slices=(chat(1.0), Slice(name="code", demand_per_s=(2.0,))),
        units=(unit("a", {"chat": rate, "code": 1.5}, 3.0),),
    )
    assert solve(two, MIN_COST).units == {"a": (2,)}


def test_nothing_to_serve_costs_nothing():
    answer = solve(problem([unit("a", 1.0, 3.0)], 0.0), MIN_COST)
    assert (answer.status, dict(answer.units), answer.cost_usd_per_hour) == (SolveStatus.OPTIMAL, {}, 0.0)


def hard_problem(**change):
    """A knapsack in 20 dimensions with nearly equal values for their weights: no proof within minutes."""
    rng = np.random.default_rng(0)
    weights = rng.integers(5, 100, (60, 20))
    values = weights.mean(axis=1) + rng.integers(0, 10, 60)
    takes = [{f"r{j}": float(w) for j, w in enumerate(row)} for row in weights]
    units = [unit(f"u{i}", float(v), float(v), take) for i, (v, take) in enumerate(zip(values, takes, strict=True))]
    resources = tuple(Resource(name=f"r{j}", at_most=1000.0) for j in range(20))
    return problem(units, 1e4, resources=resources).model_copy(update=change)


@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
@pytest.mark.parametrize(
    ("limit", "cut"), [({"time_limit_s": 0.5}, SolveStatus.TIME_LIMIT), ({"work": 4e5}, SolveStatus.WORK_LIMIT)]
)
def test_a_limit_of_time_or_work_is_a_status_and_never_called_optimal(objective, limit, cut):
    stated = hard_problem() if objective is MAX_RATE else hard_problem(min_rate_per_s=1050.0)
    answer = solve(stated, objective, **limit)
    assert answer.status in (cut, SolveStatus.NO_SOLUTION_IN_TIME)
    if objective is MAX_RATE:
        assert answer.status is cut and answer.status.has_allocation
        assert answer.gap > 1e-3
        check_allocation(answer, stated, objective)


@pytest.mark.parametrize("objective", Objective)
def test_no_work_at_all(objective, monkeypatch):
    """Stopped at its first check, before there is a fleet: nothing is said of it, and nothing called infeasible."""
    monkeypatch.setattr(highs, "LEAST_CHECKS", 0)
    answer = solve(hard_problem(slices=(chat(900.0),), min_rate_per_s=800.0), objective, work=0.0)
    assert answer.status is SolveStatus.NO_SOLUTION_IN_TIME
    assert (answer.objective, answer.gap, dict(answer.units)) == (None, None, {})


def test_the_gap_bounds_the_distance_to_the_optimum():
    for seed in range(9):
        for objective, worse in ((MAX_RATE, -1), (MAX_RATIO, -1), (MIN_COST, 1)):
            stated = small_problem(seed, objective)
            expected = Fleets(stated, objective is MIN_COST).best(objective)
            if expected is not None:
                answer = solve(stated, objective, relative_gap=0.2)
                assert answer.status in FOUND and answer.gap <= 0.2 + 1e-6
                assert worse * (answer.objective * (1 - worse * answer.gap) - expected[0]) <= 1e-9 * expected[0]


def in_other_units(part, money, time, key=""):
    """What is stated with prices times `money` and rates times `time`; limits a rounding looser."""
    if isinstance(part, dict):
        inside = {name: key if key == "rates_per_s" else name for name in part}
        return {name: in_other_units(each, money, time, inside[name]) for name, each in part.items()}
    if isinstance(part, (list, tuple)):
        return [in_other_units(each, money, time, key) for each in part]
    least, most = time * (1 - 1e-9), money * (1 + 1e-9)
    factors = {"demand_per_s": time, "rates_per_s": time, "min_rate_per_s": least, "budget_usd_per_hour": most}
    factors |= {"usd_per_hour": money, "usd_per_start": money}
    return part if part is None or key not in factors else part * factors[key]


@pytest.mark.parametrize(("money", "time"), [(1e-4, 1e3), (3e5, 7e-4), (90.0, 1e-6)])
def test_units_of_money_and_of_time_do_not_matter(money, time):
    """Cost scales by the one, rate by the other, their ratio by the quotient."""
    factors = {MIN_COST: money, MAX_RATE: time, MAX_RATIO: time / money}
    for seed in range(4):
        for objective, factor in factors.items():
            stated = small_problem(seed, objective)
            expected = value(stated, objective)
            if math.isfinite(expected):
                other = FleetProblem.model_validate(in_other_units(stated.model_dump(), money, time))
                assert value(other, objective) == pytest.approx(factor * expected, rel=1e-6)


def test_the_order_of_units_does_not_matter_and_the_dominated_do_not_either():
    for seed in range(21):
        objective = list(Objective)[seed % 3]
        stated = small_problem(seed, objective)
        last = stated.units[-1]
        worse = last.model_copy(update={"name": "worse", "usd_per_hour": last.usd_per_hour + 0.5})
        more = stated.model_copy(update={"units": (worse, *reversed(stated.units))})
        assert value(more, objective) == pytest.approx(value(stated, objective), rel=1e-9)


def test_tighter_limits_are_never_cheaper():
    """Half the quota, half the budget, one group, a unit less: no cheaper, and no more is served."""
    for seed in range(5):
        for objective in (MIN_COST, MAX_RATE):
            stated = small_problem(seed, objective)
            before = value(stated, objective)
            tighter = [
                stated.model_copy(update={"budget_usd_per_hour": 0.5 * (stated.budget_usd_per_hour or 16.0)}),
                stated.model_copy(update={"max_groups": 1}),
                with_resource(stated, "within_resource", ["x"], 0.5 * (stated.resources[0].at_most or 8.0)),
                stated.model_copy(update={"units": stated.units[1:]}),
            ]
            for changed in tighter:
                after = value(changed, objective) if changed.units else before
                assert after >= before * (1 - 1e-9) if objective is MIN_COST else after <= before * (1 + 1e-9)


def test_units_that_miss_a_limit_are_refused():
    layout = build_layout(problem([unit("a", 4.0, 2.5)], 10.0, budget_usd_per_hour=5.0))
    for count, message in (
        (2, r"serve_demand__chat = 8.0: units miss their limit >= 10"),
        (3, r"within_budget = 7.5: units miss their limit <= 5"),
    ):
        with pytest.raises(PlannerError, match=message):
            evaluate_fleet(MIN_COST, layout, np.array([count, 4.0 * count]))


def test_an_allocation_survives_json():
    for objective in Objective:
        answer = solve(golden_problem(), objective)
        assert Allocation.model_validate_json(answer.model_dump_json()) == answer


def test_an_unlimited_budget_may_be_written_as_a_large_one():
    assert solve(problem([unit("a", 1.0, 0.3)], 2.0, budget_usd_per_hour=1e12), MIN_COST).units == {"a": (2,)}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("objective", "rates_of_parts"),
    [(MIN_COST, solving.RATES_OF_PARTS), (MAX_RATE, solving.RATES_OF_PARTS), (MIN_COST, 0)],
)
def test_each_mark_in_use_is_charged_once(objective, rates_of_parts, seed, monkeypatch):
    """Against every set of marks by itself: the best of the units without others, worse by what the set costs.

    Of large problems only some sets of marks are solved, by their periods: no fleet is better than the bound of what is
    found, if anything is.
    """
    monkeypatch.setattr(solving, "RATES_OF_PARTS", rates_of_parts)
    sign, stated, rng = (
        1.0 if objective is MIN_COST else -1.0,
        small_problem(3000 + seed, objective),
        np.random.default_rng(seed),
    )
    marked = [one.model_copy(update={"marks": tuple(str(m) for m in rng.choice(3, 2))}) for one in stated.units]
    charge = float(rng.uniform(0.1, 2.0))
    best = math.inf
    for used in map(set, itertools.chain(*(itertools.combinations("012", count) for count in range(4)))):
        units = tuple(one for one in marked if used.issuperset(one.marks))
        if units:
            found = value(stated.model_copy(update={"units": units}), objective)
            best = min(best, sign * found + charge * len(used) if found or objective is MIN_COST else math.inf)
    answer = solve(stated.model_copy(update={"units": tuple(marked), "charge": charge}), objective)
    may_stop = (SolveStatus.WORK_LIMIT, SolveStatus.NO_SOLUTION_IN_TIME) if not rates_of_parts else ()
    assert answer.status in (*FOUND, SolveStatus.INFEASIBLE, *may_stop)
    if math.isfinite(best) and answer.status.has_allocation:
        assert not rates_of_parts or answer.objective == pytest.approx(sign * best, rel=1e-6)
        assert answer.objective * sign >= best - 1e-6 * abs(best)
        assert answer.objective * sign - answer.gap * abs(answer.objective) <= best + 1e-6 * abs(best)
    else:
        assert math.isinf(best) or answer.status in may_stop


@pytest.mark.parametrize("dear", ["a", "b"])
def test_a_stage_of_every_channel_is_of_one_kind(dear):
    """Four requests per second by units of three at 3 USD or of one at 1.10: mixed they would cost 4.10."""
    units = [
        Unit(
            name=f"{channel} {name}",
            stage=stage,
            channel=channel,
            kind=kind,
            rates_per_s={"chat": rate},
            usd_per_hour=usd + 9.0 * (channel == dear),
        )
        for channel in "ab"
        for name, stage, kind, rate, usd in (
            ("large", UnitStage.FIRST, "k", 3.0, 3.0),
            ("small", UnitStage.FIRST, "m", 1.0, 1.1),
            ("after", UnitStage.SECOND, "", 4.0, 0.0),
        )
    ]
    assert value(problem(units, 4.0), MIN_COST) == pytest.approx(4.4)


@pytest.mark.parametrize("seed", range(20))
def test_dearer_fleets_are_not_looked_for_and_known_bounds_suffice(seed):
    """Just above the least cost, found by enumeration, there is a fleet; just below there is none."""
    stated = small_problem(3000 + seed, MIN_COST)
    expected = Fleets(stated, True).best(MIN_COST)
    if expected is None or expected[0] <= 0.0:
        return
    least = expected[0]
    found = solve(stated, MIN_COST, most_usd_per_hour=least)
    assert found.objective == pytest.approx(least)
    none = solve(stated, MIN_COST, most_usd_per_hour=0.999 * least)
    assert none.status is SolveStatus.INFEASIBLE and none.diagnosis is None
    known = solve(stated, MIN_COST, at_least_usd_per_hour=least, relative_gap=0.1)
    assert known.objective is not None and least * (1.0 - 1e-6) <= known.objective <= least / 0.9 * (1.0 + 1e-6)
