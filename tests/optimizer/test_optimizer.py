"""The fleet program against brute force, a second solver, closed forms and its symmetries."""

from __future__ import annotations

import inspect
import math
import os
from dataclasses import replace
from pathlib import Path

import highspy
import numpy as np
import pulp
import pytest

from planner.core import InputError, PlannerError
from planner.optimizer import (
    Allocation,
    FleetProblem,
    Objective,
    Period,
    Purchase,
    Resource,
    Slice,
    SolveStatus,
    Stage,
    Unit,
    constraints,
    highs,
    relaxation,
    shortlist,
    solve,
)
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.dominance import dominated
from planner.optimizer.evaluate_allocation import fleet_of
from planner.optimizer.highs import to_pulp
from planner.optimizer.layout import layout_of
from planner.optimizer.program import build
from tests.fleet_oracle import Fleets, small_problem
from tests.places import LP

PACKAGE = Path(constraints.__file__).parent
LP_FOLDER = LP
DOCS = PACKAGE.parents[1] / "docs"
MIN_COST, MAX_RATE, MAX_RATIO = Objective.MIN_COST, Objective.MAX_RATE, Objective.MAX_RATE_PER_COST
FOUND = (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP)


def chat(*demand, **change):
    return Slice(**{"name": "chat", "demand_per_s": demand, **change})


def unit(name, rate, usd=0.0, takes=None, **change):
    rates = rate if isinstance(rate, dict) else {"chat": rate}
    return Unit(name=name, rates_per_s=rates, usd_per_hour=usd, takes=takes or {}, **change)


def bought(name, usd, **change):
    return Resource(name=name, purchases=(Purchase(name="plain", usd_per_hour=usd, **change),))


def problem(units, *demand, **change):
    return FleetProblem(
        **{"slices": (chat(*demand),) if demand else (chat_without_end(),), "units": tuple(units), **change}
    )


def chat_without_end():
    return Slice(name="chat")


# --- brute force -----------------------------------------------------------------------------------------------


def check_against_brute_force(seed, objective):
    stated = small_problem(seed, objective)
    expected = Fleets(stated, objective is MIN_COST).best(objective)
    answer = solve(stated, objective)
    if expected is None:
        assert answer.status is SolveStatus.INFEASIBLE, seed
        return
    assert answer.status is SolveStatus.OPTIMAL, seed
    assert answer.objective == pytest.approx(expected[0], rel=1e-9), seed
    assert answer.cost_usd_per_hour == pytest.approx(expected[1], rel=1e-9), seed
    if expected[2] is not None:
        assert answer.rate_per_s == pytest.approx(expected[2], rel=1e-9), seed
    check_allocation(answer, stated, objective)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("block", range(9))
def test_equals_brute_force_on_540_small_problems(objective, block):
    """All features together: slices, periods, stages, channels, purchases, starts, groups, pins, deferrable work."""
    for seed in range(20 * block, 20 * block + 20):
        check_against_brute_force(3000 + seed, objective)


@pytest.mark.parametrize("objective", Objective)
def test_a_shortlist_is_as_good_as_all_units(objective, monkeypatch):
    """The same truth when all but one unit is left out at first, and units are priced in one by one."""
    monkeypatch.setattr(shortlist, "FEW_UNITS", 1)
    monkeypatch.setattr(relaxation, "PRICED_IN", 1)
    for seed in range(50):
        check_against_brute_force(4000 + seed, objective)


@pytest.mark.parametrize("slices", [1, 2])
def test_a_shortlist_of_few_among_many_is_as_good_as_all_units(slices, monkeypatch):
    """One answer by branch and bound over all of 40 units, the other over the few that its penalties let through."""
    for seed in range(40 // slices**2):
        stated = many_alike(seed, slices)
        monkeypatch.setattr(shortlist, "FEW_UNITS", 1000)
        whole = solve(stated, MIN_COST)
        monkeypatch.setattr(shortlist, "FEW_UNITS", 2)
        assert solve(stated, MIN_COST).objective == pytest.approx(whole.objective, rel=2e-6), seed


def many_alike(seed, slices, count=40):
    """Units of about equal worth and very different sizes, of which a few are used: the relaxation is far off."""
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(slices)]
    units = []
    for index in range(count):
        size = float(rng.integers(2, 12))
        rates = {name: size * float(rng.uniform(0.9, 1.1)) for name in names}
        units.append(Unit(name=f"u{index}", rates_per_s=rates, usd_per_hour=size + float(rng.integers(0, 8)) / 4))
    demand = tuple(Slice(name=name, demand_per_s=(float(rng.uniform(3.0, 12.0)),)) for name in names)
    return FleetProblem(slices=demand, units=tuple(units))


def check_allocation(answer: Allocation, stated: FleetProblem, objective):
    """Everything reported follows from the units, by plain loops that share nothing with the package."""
    hours = [period.hours for period in stated.periods]
    horizon, by_name = sum(hours), {one.name: one for one in stated.units}
    cost = starts = served = 0.0
    for name, counts in answer.units.items():
        one = by_name[name]
        cost += one.usd_per_hour * sum(h * n for h, n in zip(hours, counts, strict=True)) / horizon
        starts += one.usd_per_start * sum(max(0, n - counts[t - 1]) for t, n in enumerate(counts)) / horizon
        assert min(counts) >= one.at_least and max(counts) <= (math.inf if one.at_most is None else one.at_most)
        assert not one.steady or len(set(counts)) == 1
        routed = answer.routed_per_s.get(name, {})
        assert one.at_least or any(sum(rates) > 0.0 for rates in routed.values()), "units that carry nothing"
        for t, n in enumerate(counts):
            assert sum(rates[t] / one.rates_per_s[s] for s, rates in routed.items()) <= n * (1 + 1e-6) + 1e-9
    for resource in stated.resources:
        held = answer.bought.get(resource.name, {})
        ways = {way.name: way for way in resource.purchases}
        for t, h in enumerate(hours):
            taken = sum(by_name[name].takes.get(resource.name, 0.0) * n[t] for name, n in answer.units.items())
            usable = sum(ways[way].usable_share * amounts[t] for way, amounts in held.items())
            assert not ways or usable >= taken - 1e-6
            assert all(amounts[t] % ways[way].block == 0 for way, amounts in held.items())
            cost += sum(ways[way].usd_per_hour * amounts[t] for way, amounts in held.items()) * h / horizon
    for one in stated.slices:
        rates = {name: routed.get(one.name, (0.0,) * len(hours)) for name, routed in answer.routed_per_s.items()}
        total = np.zeros(len(hours))
        for name, row in rates.items():
            total += np.array(row) * (by_name[name].stage is not Stage.SECOND)
        served += total @ hours / horizon
        if objective is MIN_COST and not one.deferrable:
            assert total == pytest.approx(np.array(one.demand_per_s), rel=1e-6, abs=1e-9)
        for channel in {other.channel for other in stated.units if other.stage is not Stage.WHOLE}:
            sides = [
                sum(
                    (
                        np.array(row)
                        for name, row in rates.items()
                        if (by_name[name].stage, by_name[name].channel) == (side, channel)
                    ),
                    np.zeros(len(hours)),
                )
                for side in (Stage.FIRST, Stage.SECOND)
            ]
            assert sides[0] == pytest.approx(sides[1], rel=1e-6, abs=1e-9)
    assert answer.cost_usd_per_hour == pytest.approx(cost + starts, rel=1e-12)
    assert answer.starts_usd_per_hour == pytest.approx(starts)
    assert answer.rate_per_s == pytest.approx(served, rel=1e-6)
    assert all(row.slack >= -1e-6 * max(1.0, abs(row.limit)) for row in answer.constraints)
    assert len({row.name for row in answer.constraints}) == len(answer.constraints), "one row for each limit"


def without(stated, family):
    """The problem without one limit, by the name of its rows."""
    kind, *about = family.split("__")
    if kind in ("within_units", "within_groups", "within_budget"):
        key = {"within_units": "max_units", "within_groups": "max_groups", "within_budget": "budget_usd_per_hour"}[kind]
        return stated.model_copy(update={key: None})
    if kind == "serve_demand":
        return with_demand(stated, about[0], 0.0)
    if kind in ("pin_units", "limit_units"):  # a pin also marks the group and the kind of its unit
        change = {"at_least": 0} if kind == "pin_units" else {"at_most": None}
        return stated.model_copy(
            update={"units": tuple(u.model_copy(update=change if u.name == about[0] else {}) for u in stated.units)}
        )
    return with_resource(stated, kind, about, None if kind.startswith("within") else 0.0)


def with_demand(stated, name, factor):
    changed = (
        s.model_copy(update={"demand_per_s": tuple(d * factor for d in s.demand_per_s)}) if s.name == name else s
        for s in stated.slices
    )
    return stated.model_copy(update={"slices": tuple(changed)})


def with_resource(stated, kind, about, value):
    change = {"at_most" if kind.startswith("within") else "at_least": value}
    found = []
    for resource in stated.resources:
        update = {}
        if resource.name == about[0] and kind.endswith("resource"):
            update = change
        elif resource.name == about[0]:
            ways = (way.model_copy(update=change) if way.name == about[1] else way for way in resource.purchases)
            update = {"purchases": tuple(ways)}
        found.append(resource.model_copy(update=update))
    return stated.model_copy(update={"resources": tuple(found)})


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
    for seed in range(170):
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
    assert checked > 25 and helped > 25


def all_limits(stated):
    """Every limit of a problem as named rows, read off the program of the whole problem."""
    program = build(stated, MIN_COST)
    for rows in program.rows:
        if rows.constraint not in constraints.STRUCTURAL | {"hold_resource"}:
            for name in set(rows.families()):
                yield type("Row", (), {"name": name})


# --- a second solver -------------------------------------------------------------------------------------------


def medium_problem(seed, count=14, slices=2, periods=2):
    rng = np.random.default_rng(seed)
    skus = {"a": (3.0, 2.5), "b": (0.7, 0.8), "c": (7.0, 5.0)}
    names = [f"s{i}" for i in range(slices)]
    demand = rng.uniform(8, 30, (slices, periods))
    units = []
    for index in range(count):
        sku = str(rng.choice(list(skus)))
        size = int(2 ** rng.integers(0, 4))
        stage = (Stage.WHOLE, Stage.FIRST, Stage.SECOND)[index % 3]
        base = skus[sku][0] * size**0.9 * (1 if stage is Stage.WHOLE else 2)
        rates = {name: float(base * rng.uniform(0.6, 1.4)) for name in names}
        units.append(
            Unit(
                name=f"u{index}",
                stage=stage,
                rates_per_s=rates,
                takes={sku: size},
                usd_per_start=0.5 * (index % 4 == 0),
            )
        )
    resources = tuple(
        Resource(
            name=sku,
            group=sku,
            at_most=float(rng.integers(20, 60)),
            purchases=(
                Purchase(name="on_demand", usd_per_hour=price),
                Purchase(name="reserved", usd_per_hour=0.6 * price, committed=True, block=8, at_most=16.0),
            ),
        )
        for sku, (_, price) in skus.items()
    )
    return FleetProblem(
        slices=tuple(Slice(name=n, demand_per_s=tuple(map(float, d))) for n, d in zip(names, demand, strict=True)),
        units=tuple(units),
        resources=resources,
        periods=tuple(Period(name=f"t{t}", hours=8.0 * (t + 1)) for t in range(periods)),
        budget_usd_per_hour=float(rng.uniform(60, 160)),
        max_groups=2 if seed % 3 == 0 else None,
    )


@pytest.mark.parametrize("decade", range(5))
def test_equals_cbc_on_50_medium_problems(decade):
    """CBC reads the program as stated: unscaled, untightened, with all units."""
    path = pulp.PULP_CBC_CMD.pulp_cbc_path
    if not os.access(path, os.X_OK):
        pytest.skip("this PuLP brings no CBC for this machine")
    solved = 0
    for seed in range(10 * decade, 10 * decade + 10):
        stated = medium_problem(seed, count=9, periods=1 + seed % 2)
        other = to_pulp(build(stated, MIN_COST))
        other.solve(pulp.COIN_CMD(path=path, msg=False, gapRel=1e-3, timeLimit=20))
        answer = solve(stated, MIN_COST, relative_gap=1e-3)
        if other.status == pulp.LpStatusInfeasible:
            assert answer.status is SolveStatus.INFEASIBLE, seed
        else:
            assert answer.status in FOUND, seed
            assert answer.objective == pytest.approx(other.objective.value(), rel=2.1e-3), seed
            solved += 1
    assert solved > 5


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


# --- closed forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "demand", "count"), [(4.0, 10.0, 3), (4.0, 12.0, 3), (0.1, 0.3, 3), (7.0, 0.01, 1)])
def test_one_unit_takes_the_ceiling_of_demand_over_rate(rate, demand, count):
    answer = solve(problem([unit("a", rate, 2.5)], demand), MIN_COST)
    assert answer.units == {"a": (count,)}
    assert answer.objective == answer.cost_usd_per_hour == 2.5 * count


def test_stages_are_balanced_with_free_ratios():
    """15/s need five first-stage units of 3/s and three second-stage units of 5/s; other channels are no help."""
    units = [
        unit("first", 3.0, 1.0, stage=Stage.FIRST, channel="fp8"),
        unit("second", 5.0, 1.0, stage=Stage.SECOND, channel="fp8"),
        unit("other", 50.0, 0.1, stage=Stage.SECOND, channel="bf16"),
    ]
    answer = solve(problem(units, 15.0), MIN_COST)
    assert answer.units == {"first": (5,), "second": (3,)}
    assert answer.routed_per_s == {"first": {"chat": (15.0,)}, "second": {"chat": (15.0,)}}


def test_blocks_are_bought_whole_and_headroom_on_top():
    """Nine units take 9; at three quarters usable 12 are needed, bought by eights: 16."""
    answer = solve(
        problem([unit("a", 1.0, takes={"gpu": 1.0})], 9.0, resources=(bought("gpu", 1.0, block=8, usable_share=0.75),)),
        MIN_COST,
    )
    assert (answer.units, answer.bought, answer.cost_usd_per_hour) == ({"a": (9,)}, {"gpu": {"plain": (16.0,)}}, 16.0)


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


def test_deferrable_work_fills_the_valley():
    """Two steady units carry 1 and 2 of chat and, in what is spare, an average of one half of batch work."""
    periods = (Period(name="night", hours=1.0), Period(name="noon", hours=1.0))
    batch = Slice(name="batch", demand_per_s=(0.0, 1.0), deferrable=True)
    stated = FleetProblem(
        slices=(chat(1.0, 2.0), batch), units=(unit("a", {"chat": 1.0, "batch": 1.0}, 1.0),), periods=periods
    )
    answer = solve(stated, MIN_COST)
    assert answer.units == {"a": (2, 2)}
    assert answer.routed_per_s["a"]["batch"] == pytest.approx((1.0, 0.0))


def test_a_pinned_unit_stays_and_an_owned_machine_is_paid_for():
    owned = Resource(
        name="own", purchases=(Purchase(name="owned", usd_per_hour=0.5, committed=True, at_least=4.0, at_most=4.0),)
    )
    units = [unit("a", 1.0, 1.0), unit("idle", 1.0, 2.0, at_least=1), unit("mine", 1.0, takes={"own": 1.0})]
    answer = solve(problem(units, 3.0, resources=(owned,)), MIN_COST)
    assert answer.units == {"idle": (1,), "mine": (2,)}
    assert answer.cost_usd_per_hour == 2.0 + 4 * 0.5


def test_max_rate_spends_no_more_than_it_needs():
    """Both serve the whole demand; a solver that stops at the rate may return the dear one."""
    answer = solve(
        problem([unit("dear", 10.0, 9.0), unit("cheap", 5.0, 2.0)], 10.0, budget_usd_per_hour=100.0), MAX_RATE
    )
    assert (answer.rate_per_s, answer.cost_usd_per_hour, answer.units) == (10.0, 4.0, {"cheap": (2,)})
    assert [row.name for row in answer.binding] == ["cap_at_demand__chat"]


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
    for seed in range(40):
        answer = solve(small_problem(seed, MAX_RATIO), MAX_RATIO)
        assert all(b > a for a, b in zip(answer.iterates, answer.iterates[1:], strict=False))
        assert answer.objective is None or answer.iterates[-1] == answer.objective
        longest = max(longest, len(answer.iterates))
    assert longest >= 3


def test_free_units_are_not_wasted():
    answer = solve(
        problem([unit("own", 2.0, takes={"gpu": 1.0})], 5.0, resources=(Resource(name="gpu", at_most=9.0),)), MIN_COST
    )
    assert (answer.units, answer.cost_usd_per_hour, answer.gap) == ({"own": (3,)}, 0.0, 0.0)


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


# --- an even load ----------------------------------------------------------------------------------------------


def test_one_slice_is_split_in_proportion_to_capacity():
    """A pool and a pair of stages at 9 of 4 + min(6, 8) = 10: all at 90 %, the second stage at 0.9 x 6 / 8."""
    units = [
        unit("whole", 4.0, at_least=1, at_most=1),
        unit("first", 3.0, at_least=2, at_most=2, stage=Stage.FIRST),
        unit("second", 8.0, at_least=1, at_most=1, stage=Stage.SECOND),
    ]
    routed = solve(problem(units, 9.0), MIN_COST).routed_per_s
    assert {name: rates["chat"][0] for name, rates in routed.items()} == pytest.approx(
        {"whole": 3.6, "first": 5.4, "second": 5.4}
    )


def test_a_rounding_in_what_is_handed_over_is_no_error():
    """Rates of 1e-13 that one stage carries and the other does not are rounding, of slices that are served at 1e1."""
    slices = tuple(Slice(name=f"s{i}", demand_per_s=(10.0 / (i + 1),)) for i in range(4))
    rng = np.random.default_rng(1)
    for _ in range(20):
        units = tuple(
            Unit(
                name=f"u{i}",
                stage=(Stage.FIRST, Stage.SECOND, Stage.WHOLE)[i % 3],
                channel="" if i % 3 == 2 else "ab"[i % 2],
                rates_per_s={one.name: float(rng.uniform(1.0, 9.0)) for one in slices},
                usd_per_hour=float(rng.uniform(1.0, 3.0)),
            )
            for i in range(18)
        )
        answer = solve(FleetProblem(slices=slices, units=units), MIN_COST, relative_gap=0.05)
        check_allocation(answer, FleetProblem(slices=slices, units=units), MIN_COST)


def test_several_slices_make_the_largest_load_least_and_then_the_next():
    """chat 6 + code 2 on a (both, 10/s), b (code only, 10/s), c (chat only, 4/s): a and c at 6/14, b takes the code."""
    slices = (chat(6.0), Slice(name="code", demand_per_s=(2.0,)))
    units = (
        unit("a", {"chat": 10.0, "code": 10.0}, at_least=1, at_most=1),
        unit("b", {"code": 10.0}, at_least=1, at_most=1),
        unit("c", {"chat": 4.0}, at_least=1, at_most=1),
    )
    routed = solve(FleetProblem(slices=slices, units=units), MIN_COST).routed_per_s
    assert routed["c"]["chat"][0] == pytest.approx(4 * 6 / 14)
    assert routed["a"]["chat"][0] == pytest.approx(10 * 6 / 14)
    assert routed["b"]["code"][0] == pytest.approx(2.0)


# --- duals and binding limits ----------------------------------------------------------------------------------


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
        program = to_pulp(replace(build(changed, objective)))
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


# --- statuses --------------------------------------------------------------------------------------------------


def hard_problem(**change):
    """A knapsack in 20 dimensions with nearly equal values for their weights: no proof within minutes."""
    rng = np.random.default_rng(0)
    weights = rng.integers(5, 100, (60, 20))
    values = weights.mean(axis=1) + rng.integers(0, 10, 60)
    takes = [{f"r{j}": float(w) for j, w in enumerate(row)} for row in weights]
    units = [unit(f"u{i}", float(v), float(v), take) for i, (v, take) in enumerate(zip(values, takes, strict=True))]
    resources = tuple(Resource(name=f"r{j}", at_most=1000.0) for j in range(20))
    return problem(units, resources=resources).model_copy(update=change)


@pytest.mark.parametrize("few", [8, 96])
@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
def test_a_time_limit_is_a_status_and_never_called_optimal(objective, few, monkeypatch):
    monkeypatch.setattr(shortlist, "FEW_UNITS", few)
    stated = hard_problem() if objective is MAX_RATE else hard_problem(min_rate_per_s=1050.0)
    answer = solve(stated, objective, time_limit_s=0.5)
    assert answer.status in (SolveStatus.TIME_LIMIT, SolveStatus.NO_SOLUTION_IN_TIME)
    if objective is MAX_RATE:
        assert answer.status is SolveStatus.TIME_LIMIT and answer.status.has_allocation
        assert answer.gap > 1e-3
        check_allocation(answer, stated, objective)


@pytest.mark.parametrize("few", [8, 96])
@pytest.mark.parametrize("objective", Objective)
def test_no_time_at_all(objective, few, monkeypatch):
    monkeypatch.setattr(shortlist, "FEW_UNITS", few)
    answer = solve(hard_problem(slices=(chat(900.0),)), objective, time_limit_s=1e-9)
    assert answer.status is SolveStatus.NO_SOLUTION_IN_TIME
    assert (answer.objective, answer.gap, dict(answer.units)) == (None, None, {})


@pytest.mark.parametrize("few", [8, 96])
def test_a_wide_gap_is_said_and_kept(few, monkeypatch):
    monkeypatch.setattr(shortlist, "FEW_UNITS", few)
    best = solve(hard_problem(), MAX_RATE, time_limit_s=0.3).objective
    answer = solve(hard_problem(), MAX_RATE, relative_gap=0.5)
    assert answer.status is SolveStatus.WITHIN_GAP
    assert 1e-6 < answer.gap <= 0.5
    assert answer.objective * (1 + answer.gap) >= best


def test_the_gap_bounds_the_distance_to_the_optimum(monkeypatch):
    monkeypatch.setattr(shortlist, "FEW_UNITS", 1)
    for seed in range(18):
        for objective, worse in ((MAX_RATE, -1), (MAX_RATIO, -1), (MIN_COST, 1)):
            stated = small_problem(seed, objective)
            expected = Fleets(stated, objective is MIN_COST).best(objective)
            if expected is not None:
                answer = solve(stated, objective, relative_gap=0.2)
                assert answer.status in FOUND and answer.gap <= 0.2 + 1e-6
                assert worse * (answer.objective * (1 - worse * answer.gap) - expected[0]) <= 1e-9 * expected[0]


@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
def test_unbounded_says_what_is_missing(objective):
    held = [unit("first", 1.0, stage=Stage.FIRST), unit("second", 1.0, 1.0, {"x": 1.0}, stage=Stage.SECOND)]
    stated = problem(
        [*held, unit("loose", 1.0, 1.0, {"y": 1.0})], resources=(Resource(name="x", at_most=3.0), bought("y", 1.0))
    )
    answer = solve(stated, objective)
    assert answer.status is SolveStatus.UNBOUNDED
    assert answer.diagnosis.summary.startswith(
        "nothing limits unit 'loose': give demand_per_s, budget_usd_per_hour, max_units"
    )
    kept = solve(stated.model_copy(update={"units": tuple(held)}), objective)
    assert (kept.status, kept.rate_per_s, kept.units) == (SolveStatus.OPTIMAL, 3.0, {"first": (3,), "second": (3,)})
    limited = solve(stated.model_copy(update={"budget_usd_per_hour": 7.0}), MAX_RATE)
    assert (limited.status, limited.rate_per_s) == (SolveStatus.OPTIMAL, 3.0 + 2.0)


def test_without_units_there_is_a_diagnosis():
    answer = solve(problem([], 1.0), MIN_COST)
    assert answer.status is SolveStatus.INFEASIBLE and "there is no unit to choose from" in answer.diagnosis.summary


# --- infeasible is an answer -----------------------------------------------------------------------------------


def test_each_limit_of_the_conflict_comes_with_its_smallest_change():
    """40/s need ceil(40/4) = 10 units of 5.73 USD/h and 2 GPUs; 40 USD/h buy 6 units, which serve 24/s."""
    stated = problem(
        [unit("a", 4.0, 5.73, {"gpu": 2.0})],
        40.0,
        budget_usd_per_hour=40.0,
        resources=(Resource(name="gpu", at_most=64.0),),
    )
    found = solve(stated, MIN_COST).diagnosis
    assert found.conflict == ("serve_demand__chat", "within_budget")
    assert [str(r) for r in found.relaxations] == [
        "slices[chat].demand_per_s 40 -> 24",
        "budget_usd_per_hour 40 -> 57.3",
    ]


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
    answer = solve(problem([unit("a", 4.0, 5.0)], budget_usd_per_hour=4.0), MAX_RATE)
    assert answer.status is SolveStatus.INFEASIBLE
    assert answer.diagnosis.conflict == ("serve_minimum", "within_budget")
    assert [r.needed for r in answer.diagnosis.relaxations] == [None, 5.0]


def test_a_slice_nobody_serves_is_the_conflict():
    stated = FleetProblem(slices=(chat(1.0), Slice(name="code", demand_per_s=(1.0,))), units=(unit("a", 1.0, 1.0),))
    found = solve(stated, MIN_COST).diagnosis
    assert found.conflict == ("serve_demand__code",)
    assert found.summary == "serve_demand__code cannot hold; no change of it is enough"


def test_a_diagnosis_cut_short_says_so():
    stated = problem(
        [unit("a", 4.0, 5.0, {"gpu": 2.0})],
        40.0,
        budget_usd_per_hour=40.0,
        resources=(Resource(name="gpu", at_most=8.0),),
    )
    late = diagnose(shortlist.Solver(0.0, 0.0), MIN_COST, layout_of(stated))
    assert not late.is_proven and not any(r.is_proven for r in late.relaxations)
    assert late.conflict == ("serve_demand__chat", "within_resource__gpu", "within_budget")
    assert late.summary.endswith("no way out found yet (the time ran out: a smaller change may do)")


# --- symmetries ------------------------------------------------------------------------------------------------


def value(stated, objective):
    """The objective; what no allocation reaches is worth nothing, or costs without end."""
    answer = solve(stated, objective)
    assert answer.status in (*FOUND, SolveStatus.INFEASIBLE)
    if answer.objective is None:
        return math.inf if objective is MIN_COST else 0.0
    return answer.objective


def in_other_units(stated, money, time):
    """Prices times `money`, rates times `time`."""
    scale = lambda x, factor: None if x is None else x * factor  # noqa: E731
    return stated.model_copy(
        update={
            "slices": tuple(
                s.model_copy(update={"demand_per_s": tuple(d * time for d in s.demand_per_s)}) for s in stated.slices
            ),
            "units": tuple(
                u.model_copy(
                    update={
                        "rates_per_s": {name: rate * time for name, rate in u.rates_per_s.items()},
                        "usd_per_hour": u.usd_per_hour * money,
                        "usd_per_start": u.usd_per_start * money,
                    }
                )
                for u in stated.units
            ),
            "resources": tuple(
                r.model_copy(
                    update={
                        "purchases": tuple(
                            p.model_copy(update={"usd_per_hour": p.usd_per_hour * money}) for p in r.purchases
                        )
                    }
                )
                for r in stated.resources
            ),
            "budget_usd_per_hour": scale(stated.budget_usd_per_hour, money * (1 + 1e-9)),
            "min_rate_per_s": scale(stated.min_rate_per_s, time * (1 - 1e-9)),
        }
    )


@pytest.mark.parametrize(("money", "time"), [(1e-4, 1e3), (3e5, 7e-4), (90.0, 1e-6)])
def test_units_of_money_and_of_time_do_not_matter(money, time):
    """Cost scales by the one, rate by the other, their ratio by the quotient."""
    factors = {MIN_COST: money, MAX_RATE: time, MAX_RATIO: time / money}
    for seed in range(8):
        for objective, factor in factors.items():
            stated = small_problem(seed, objective)
            expected = value(stated, objective)
            if math.isfinite(expected):
                assert value(in_other_units(stated, money, time), objective) == pytest.approx(
                    factor * expected, rel=1e-6
                )


def test_the_order_of_units_does_not_matter_and_the_dominated_do_not_either():
    dropped = 0
    for seed in range(45):
        objective = list(Objective)[seed % 3]
        stated = small_problem(seed, objective)
        last = stated.units[-1]
        worse = last.model_copy(
            update={"name": "worse", "usd_per_hour": last.usd_per_hour + 0.5, "at_least": 0, "at_most": None}
        )
        more = stated.model_copy(update={"units": (worse, *reversed(stated.units))})
        dropped += "worse" in dominated(more)
        assert value(more, objective) == pytest.approx(value(stated, objective), rel=1e-9) or last.at_most is not None
    assert dropped > 15


def test_tighter_limits_are_never_cheaper():
    """Half the quota, half the budget, half the units, one group, a unit less: no cheaper, and no more is served."""
    for seed in range(9):
        for objective in (MIN_COST, MAX_RATE):
            stated = small_problem(seed, objective)
            before = value(stated, objective)
            tighter = [
                stated.model_copy(update={"budget_usd_per_hour": 0.5 * (stated.budget_usd_per_hour or 16.0)}),
                stated.model_copy(update={"max_units": (stated.max_units or 6) // 2}),
                stated.model_copy(update={"max_groups": 1}),
                with_resource(stated, "within_resource", ["x"], 0.5 * (stated.resources[0].at_most or 8.0)),
                stated.model_copy(update={"units": stated.units[1:]}) if not stated.units[0].at_least else stated,
            ]
            for changed in tighter:
                after = value(changed, objective) if changed.units else before
                assert after >= before * (1 - 1e-9) if objective is MIN_COST else after <= before * (1 + 1e-9)


def test_the_same_request_gets_the_same_answer():
    stated = medium_problem(3, count=30)
    assert solve(stated, MIN_COST, relative_gap=0.01) == solve(stated, MIN_COST, relative_gap=0.01)


# --- dominance -------------------------------------------------------------------------------------------------


def test_dominance_needs_every_property():
    base = unit("base", {"chat": 2.0, "code": 2.0}, 2.0, {"x": 1.0}, usd_per_start=1.0)
    change = lambda name, **update: base.model_copy(update={"name": name, **update})  # noqa: E731
    others = {
        "worse_rate": change("worse_rate", rates_per_s={"chat": 2.0, "code": 1.0}),
        "fewer_slices": change("fewer_slices", rates_per_s={"chat": 2.0}),
        "dearer": change("dearer", usd_per_hour=3.0),
        "dearer_start": change("dearer_start", usd_per_start=2.0),
        "takes_more": change("takes_more", takes={"x": 2.0}),
        "limited": change("limited", at_most=3),
        "steady": change("steady", steady=True),
        "twin": change("twin"),
        "other_stage": change("other_stage", stage=Stage.FIRST),
        "other_kind": change("other_kind", stage=Stage.FIRST, kind="k"),
        "third_kind": change("third_kind", stage=Stage.FIRST, kind="m"),
        "takes_other": change("takes_other", takes={"x": 1.0, "y": 1.0}),
        "pinned": change("pinned", at_least=1, at_most=1),
        "faster_at_chat": change("faster_at_chat", rates_per_s={"chat": 3.0, "code": 1.0}),
        "cheaper_start": change("cheaper_start", usd_per_start=0.5, usd_per_hour=3.0),
    }
    slices = (chat(1.0), Slice(name="code", demand_per_s=(1.0,)))
    resources = (Resource(name="x"), Resource(name="y"))
    stated = FleetProblem(slices=slices, units=(base, *others.values()), resources=resources)
    assert dominated(stated) == dict.fromkeys(list(others)[:8], "base")
    only_limited = (
        change("best", at_most=2),
        change("loose", usd_per_hour=3.0),
        change("moves", usd_per_hour=3.0, at_most=1),
    )
    assert dominated(stated.model_copy(update={"units": only_limited})) == {"moves": "loose"}


def test_the_dominator_named_is_not_dominated():
    line = [unit(f"u{k}", float(k), 1.0) for k in range(1, 6)]
    assert dominated(problem(line, 1.0)) == {f"u{k}": "u5" for k in range(1, 5)}


# --- golden programs -------------------------------------------------------------------------------------------


def golden_problem():
    return FleetProblem(
        slices=(
            chat(6.0, 20.0, least_share=0.5),
            Slice(name="night work", demand_per_s=(1.0, 3.0), deferrable=True),
        ),
        units=(
            unit(
                "mixed", {"chat": 4.0, "night work": 8.0}, 0.5, {"gpu-a": 2.0}, usd_per_start=0.4, at_least=1, at_most=6
            ),
            unit("prefill", 5.0, 0.0, {"gpu-a": 1.0, "kw": 0.7}, stage=Stage.FIRST, channel="fp8"),
            unit("decode tp8", 3.5, 0.0, {"gpu b": 2.0}, stage=Stage.SECOND, channel="fp8", kind="tp8", at_least=0),
            unit(
                "decode",
                2.5,
                0.0,
                {"gpu b": 1.0, "kw": 0.3},
                stage=Stage.SECOND,
                channel="fp8",
                kind="tp4",
                steady=True,
                at_least=1,
            ),
        ),
        resources=(
            Resource(
                name="gpu-a",
                group="a",
                at_most=12.0,
                purchases=(
                    Purchase(name="on demand", usd_per_hour=2.0, block=2, at_most=10.0),
                    Purchase(name="reserved", usd_per_hour=1.25, committed=True, at_least=1.0),
                ),
            ),
            Resource(
                name="gpu b",
                group="b",
                at_least=2.0,
                purchases=(Purchase(name="spot", usd_per_hour=0.5, usable_share=0.75),),
            ),
            Resource(name="kw", at_most=5.0),
        ),
        periods=(Period(name="night", hours=8.0), Period(name="day", hours=16.0)),
        budget_usd_per_hour=30.0,
        min_rate_per_s=5.0,
        max_units=12,
        max_groups=2,
    )


CONSTRAINT_NAMES = sorted({function.__name__ for used in constraints.CONSTRAINTS.values() for function in used})
GOLDEN_NAMES = [*CONSTRAINT_NAMES, *(objective.value for objective in Objective)]


def golden_program(name):
    whole = build(golden_problem(), Objective(name) if name in list(Objective) else MIN_COST, ratio=0.75)
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
        and inspect.signature(function).return_annotation == "Rows"
        and not name.startswith("_")
    }
    assert sorted(returning_rows) == CONSTRAINT_NAMES, "a constraint no objective uses"
    assert sorted(path.stem for path in LP_FOLDER.glob("*.lp")) == sorted(GOLDEN_NAMES)
    for name in CONSTRAINT_NAMES:
        assert f"\n{name}" in (LP_FOLDER / f"{name}.lp").read_text(), "a file without rows shows nothing"


def test_row_names_are_their_functions_and_survive_pulp():
    for objective in Objective:
        program = build(golden_problem(), objective)
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
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("science*.md"))
    missing = [name for name in [*GOLDEN_NAMES, *(status.value for status in SolveStatus)] if f"`{name}" not in text]
    assert not missing


def test_only_one_module_imports_pulp():
    assert [path.name for path in PACKAGE.glob("*.py") if "import pulp" in path.read_text()] == ["highs.py"]


# --- rounding and checking -------------------------------------------------------------------------------------


def test_integers_are_rounded_not_truncated_and_fractions_refused():
    whole = np.array([True, True, True, False])
    assert highs.whole_numbers(np.array([2.9999999, 3.0000001, -1e-9, 0.5]), whole).tolist() == [3.0, 3.0, 0.0, 0.5]
    with pytest.raises(PlannerError, match=r"column 0 = 2.5: is not a whole number to 0.0001. Fix: bring rates"):
        highs.whole_numbers(np.array([2.5, 0.0, 0.0, 0.0]), whole)


def test_units_that_miss_a_limit_are_refused():
    layout = layout_of(problem([unit("a", 4.0, 2.5)], 10.0, budget_usd_per_hour=5.0))
    for count, message in (
        (2, r"serve_demand__chat = 8.0: units miss their limit >= 10"),
        (3, r"within_budget = 7.5: units miss their limit <= 5"),
    ):
        with pytest.raises(PlannerError, match=message):
            fleet_of(MIN_COST, layout, np.array([count, 4.0 * count]))


def test_a_solver_that_fails_is_an_error_not_an_answer(monkeypatch):
    class Broken:
        """What HiGHS would say after a numerical failure."""

        name = "kSolveError"

    solver = highspy.Highs()
    monkeypatch.setattr(type(solver), "getModelStatus", lambda self: Broken)
    with pytest.raises(PlannerError, match=r"solver status = 'kSolveError': HiGHS neither solved the program nor ran"):
        highs.outcome_of(solver)


def test_an_allocation_survives_json():
    for objective in Objective:
        answer = solve(golden_problem(), objective)
        assert Allocation.model_validate_json(answer.model_dump_json()) == answer


def test_a_large_problem_is_handed_on_and_agrees(monkeypatch):
    """The decomposition of large problems and branch and bound, each with a proof, on the same problems."""
    from planner.optimizer import solving

    for seed in range(3):
        stated = medium_problem(3 * seed + 1, count=9).model_copy(update={"budget_usd_per_hour": None})
        direct = solve(stated, MIN_COST, relative_gap=0.01)
        monkeypatch.setattr(solving, "LARGE_RATES_OVER_PERIODS", 0)
        handed = solve(stated, MIN_COST, relative_gap=0.02)
        monkeypatch.undo()
        assert handed.status.has_allocation == direct.status.has_allocation
        if handed.status.has_allocation:
            assert handed.objective * (1 - handed.gap) <= direct.objective * (1 + 1e-6)
            assert direct.objective * (1 - direct.gap) <= handed.objective * (1 + 1e-6)
            check_allocation(handed, stated, MIN_COST)


# --- errors ----------------------------------------------------------------------------------------------------

ONE = unit("a", 1.0, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unit("p", 0.0), r"rates_per_s.chat = 0.0: Input should be greater than 0"),
        (lambda: unit("p", math.nan), r"rates_per_s.chat = nan: Input should be"),
        (lambda: unit("p", 1.0, -2.0), r"usd_per_hour = -2.0: Input should be greater than or equal to 0"),
        (lambda: unit("p", 1.0, 1.0, {"x": -1.0}), r"takes.x = -1.0: Input should be greater than or equal to 0"),
        (lambda: unit("p", {}), r"rates_per_s = \{\}: Dictionary should have at least 1 item"),
        (lambda: bought("x", 1.0, block=0), r"block = 0: Input should be greater than or equal to 1"),
        (lambda: bought("x", 1.0, usable_share=0.0), r"usable_share = 0.0: Input should be greater than 0"),
        (lambda: chat(-1.0), r"Input should be greater than or equal to 0"),
        (lambda: problem([ONE], 1.0, 2.0), r"slice 'chat' demand_per_s = 2: needs one value for each of 1 periods"),
        (lambda: problem([ONE], 1.0, max_groups=0), r"max_groups = 0: Input should be greater than or equal to 1"),
        (lambda: problem([ONE], 1.0, budget=1.0), r"budget = 1.0: unknown field"),
    ],
)
def test_bad_records_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("stated", "objective", "options", "message"),
    [
        (
            problem([ONE]),
            MIN_COST,
            {},
            r"slices\[chat\].demand_per_s = None: min_cost needs a demand to serve. Fix: give it",
        ),
        (problem([ONE, ONE], 1.0), MIN_COST, {}, r"unit name = \['a', 'a'\]: two unit names are equal"),
        (
            problem([unit("a", {"talk": 1.0})], 1.0),
            MIN_COST,
            {},
            r"units\[a\].rates_per_s = 'talk': must be the name of a slice",
        ),
        (
            problem([unit("a", 1.0, 1.0, {"gpu": 1.0})], 1.0),
            MIN_COST,
            {},
            r"units\[a\].takes = 'gpu': must be the name of a resource",
        ),
        (
            problem([ONE], 1.0, resources=(Resource(name="x-1"), Resource(name="x 1"))),
            MAX_RATE,
            {},
            r"resource name = \['x-1', 'x 1'\].* Fix: rename one of the 2",
        ),
        (
            problem([ONE], 1.0, resources=(Resource(name="x", at_least=1.0),)),
            MIN_COST,
            {},
            r"resources\[x\].at_least = 1.0: there is no way to buy any",
        ),
        (
            problem([ONE], 1.0, min_rate_per_s=2.0),
            MAX_RATE,
            {},
            r"min_rate_per_s = 2.0: must be <= the mean demand = 1",
        ),
        (problem([ONE], 1.0), MIN_COST, {"time_limit_s": 0.0}, r"time_limit_s = 0.0: must be > 0 s"),
        (problem([ONE], 1.0), MIN_COST, {"time_limit_s": math.nan}, r"time_limit_s = nan: must be > 0 s"),
        (problem([ONE], 1.0), MIN_COST, {"relative_gap": 1.0}, r"relative_gap = 1.0: must lie in \[0, 1\)"),
        (
            problem([ONE, unit("own", 1.0)], 1.0),
            MAX_RATIO,
            {},
            r"units\[own\].usd_per_hour = 0.0: what is served for nothing has no rate per cost",
        ),
        (
            problem([unit("a", 1.0, 1e-12), unit("b", 2.0, 1e3)], 1.0, budget_usd_per_hour=5.0),
            MIN_COST,
            {},
            r"within_budget = .*: scaled coefficient must lie in .* Fix: bring rates, costs",
        ),
        (
            problem(
                [unit("a", 1.0, 1.0, {"x": 1.0})],
                max_groups=1,
                budget_usd_per_hour=9.0,
                resources=(Resource(name="x", group="x"),),
            ).model_copy(update={"units": (unit("a", 1.0, 0.0, {"x": 1.0}),), "max_units": None}),
            MAX_RATIO,
            {},
            r"nothing",
        ),
    ],
)
def test_bad_requests_are_refused(stated, objective, options, message):
    if message == "nothing":
        assert solve(stated, objective, **options).status is SolveStatus.UNBOUNDED
        return
    with pytest.raises(InputError, match=message):
        solve(stated, objective, **options)


def test_labels_that_collide_are_refused_in_files():
    with pytest.raises(
        InputError, match=r"column name = .*: two column names are equal once all but letters and digits"
    ):
        to_pulp(build(problem([unit("a-b", 1.0, 1.0), unit("a b", 1.0, 1.0)], 1.0), MIN_COST))


def test_an_unlimited_budget_may_be_written_as_a_large_one():
    assert solve(problem([unit("a", 1.0, 0.3)], 2.0, budget_usd_per_hour=1e12), MIN_COST).units == {"a": (2,)}
