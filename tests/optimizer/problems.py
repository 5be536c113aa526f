"""Problems that the tests of the integer program share, and what an allocation of them must fulfil."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

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
    solve,
)
from planner.optimizer.layout import Layout
from planner.optimizer.program import build_program
from planner.optimizer.types import Sense
from tests.fleet_oracle import Fleets, small_problem

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
    return FleetProblem(**{"slices": (chat(*demand),), "units": tuple(units), **change})


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


def check_allocation(answer: Allocation, stated: FleetProblem, objective):
    """Everything reported follows from the units, by plain loops that share nothing with the package."""
    hours = [period.hours for period in stated.periods]
    horizon, by_name = sum(hours), {one.name: one for one in stated.units}
    cost = starts = served = 0.0
    for name, counts in answer.units.items():
        one = by_name[name]
        cost += one.usd_per_hour * sum(h * n for h, n in zip(hours, counts, strict=True)) / horizon
        starts += one.usd_per_start * sum(max(0, n - counts[t - 1]) for t, n in enumerate(counts)) / horizon
        assert not one.steady or len(set(counts)) == 1
        routed = answer.routed_per_s.get(name, {})
        assert any(sum(rates) > 0.0 for rates in routed.values()), "units that carry nothing"
        for t, n in enumerate(counts):
            assert sum(rates[t] / one.rates_per_s[s] for s, rates in routed.items()) <= n * (1 + 1e-6) + 1e-9
    for resource in stated.resources:
        held = answer.bought.get(resource.name, {})
        ways = {way.name: way for way in resource.purchases}
        for t, h in enumerate(hours):
            taken = sum(by_name[name].takes.get(resource.name, 0.0) * n[t] for name, n in answer.units.items())
            usable = sum(ways[way].usable_share * amounts[t] for way, amounts in held.items())
            assert not ways or usable >= taken * (1 - 1e-6) - 1e-6
            assert taken <= (resource.at_most or math.inf) * (1 + 1e-6)
            assert not ways or sum(amounts[t] for amounts in held.values()) >= resource.at_least
            for way, amounts in ((ways[name], amounts) for name, amounts in held.items()):
                assert amounts[t] % way.block == 0 and amounts[t] <= (way.at_most or math.inf)
                assert not way.committed or amounts[t] == amounts[0]
            cost += sum(ways[way].usd_per_hour * amounts[t] for way, amounts in held.items()) * h / horizon
    for one in stated.slices:
        rates = {name: routed.get(one.name, (0.0,) * len(hours)) for name, routed in answer.routed_per_s.items()}
        total = np.zeros(len(hours))
        for name, row in rates.items():
            total += np.array(row) * (by_name[name].stage is not UnitStage.SECOND)
        served += total @ hours / horizon
        if objective is MIN_COST:
            over = np.array(hours) if one.deferrable else np.eye(len(hours))
            assert total @ over == pytest.approx(np.array(one.demand_per_s) @ over, rel=1e-6, abs=1e-9)
        for channel in {other.channel for other in stated.units if other.stage is not UnitStage.WHOLE}:
            sides = [
                sum(
                    (
                        np.array(row)
                        for name, row in rates.items()
                        if (by_name[name].stage, by_name[name].channel) == (side, channel)
                    ),
                    np.zeros(len(hours)),
                )
                for side in (UnitStage.FIRST, UnitStage.SECOND)
            ]
            assert sides[0] == pytest.approx(sides[1], rel=1e-6, abs=1e-9)
    staged = [one for one in map(by_name.get, answer.units) if one.kind and one.stage is not UnitStage.WHOLE]
    places = {(one.stage, one.channel, one.kind) for one in staged}
    assert len(places) == len({place[:2] for place in places}), "several kinds in one place"
    assert answer.cost_usd_per_hour == pytest.approx(cost + starts, rel=1e-12)
    assert answer.starts_usd_per_hour == pytest.approx(starts)
    assert answer.rate_per_s == pytest.approx(served, rel=1e-6)
    assert all(row.slack >= -1e-6 * max(1.0, abs(row.limit)) for row in answer.constraints)
    assert len({row.name for row in answer.constraints}) == len(answer.constraints), "one row for each limit"


def by_milp(layout: Layout) -> float:
    """Least cost by scipy's solver on the rows as they are stated; infinite where there is none."""
    program, upper = build_program(layout, MIN_COST), np.full(layout.columns, np.inf)
    upper[[*layout.column.kinds, *layout.column.groups]] = 1.0
    constraints = []
    for rows in program.rows:
        matrix = csr_array((rows.value, (rows.row, rows.column)), shape=(len(rows), layout.columns))
        low, high = (-np.inf, rows.limit) if rows.sense is Sense.AT_MOST else (rows.limit, np.inf)
        constraints.append(LinearConstraint(matrix, low, high))
    found = milp(
        program.goal,
        constraints=constraints,
        bounds=Bounds(0.0, upper),
        integrality=program.integer(),
        options={"mip_rel_gap": 1e-7, "time_limit": 20.0},
    )
    assert found.status in (0, 2), found.message
    return math.inf if found.x is None else float(found.fun)


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


def medium_problem(seed, count=14, slices=2, periods=2):
    rng = np.random.default_rng(seed)
    skus = {"a": (3.0, 2.5), "b": (0.7, 0.8), "c": (7.0, 5.0)}
    names = [f"s{i}" for i in range(slices)]
    demand = rng.uniform(8, 30, (slices, periods))
    units = []
    for index in range(count):
        sku = str(rng.choice(list(skus)))
        size = int(2 ** rng.integers(0, 4))
        stage = (UnitStage.WHOLE, UnitStage.FIRST, UnitStage.SECOND)[index % 3]
        base = skus[sku][0] * size**0.9 * (1 if stage is UnitStage.WHOLE else 2)
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


def value(stated, objective):
    """The objective; what no allocation reaches is worth nothing, or costs without end."""
    answer = solve(stated, objective)
    assert answer.status in (*FOUND, SolveStatus.INFEASIBLE)
    if answer.objective is None:
        return math.inf if objective is MIN_COST else 0.0
    return answer.objective


def golden_problem():
    return FleetProblem(
        slices=(
            chat(6.0, 20.0),
            Slice(name="night work", demand_per_s=(1.0, 3.0), deferrable=True),
        ),
        units=(
            unit("mixed", {"chat": 4.0, "night work": 8.0}, 0.5, {"gpu-a": 2.0}, usd_per_start=0.4),
            unit("prefill", 5.0, 0.0, {"gpu-a": 1.0, "kw": 0.7}, stage=UnitStage.FIRST, channel="fp8"),
            unit("decode tp8", 3.5, 0.0, {"gpu b": 2.0}, stage=UnitStage.SECOND, channel="fp8", kind="tp8"),
            unit(
                "decode",
                2.5,
                0.0,
                {"gpu b": 1.0, "kw": 0.3},
                stage=UnitStage.SECOND,
                channel="fp8",
                kind="tp4",
                steady=True,
            ),
        ),
        resources=(
            Resource(
                name="gpu-a",
                group="a",
                at_most=12.0,
                purchases=(
                    Purchase(name="on demand", usd_per_hour=2.0, block=2, at_most=10.0),
                    Purchase(name="reserved", usd_per_hour=1.25, committed=True),
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
        max_groups=2,
    )
