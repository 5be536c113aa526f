"""Periods by themselves against the whole program, and a day against enumeration of its parts."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Period, Purchase, Resource, Slice, SolveStatus, Unit, UnitStage, solve
from planner.optimizer.evaluate_allocation import PartAnswer
from planner.optimizer.highs import ProgramSolver
from planner.optimizer.layout import Layout, build_layout
from planner.optimizer.periods import Day, PartSolver, fleet_by_period
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax
from tests.optimizer.problems import MIN_COST, check_allocation


def day(seed: int, slices: int = 1, *, stages: bool = False) -> FleetProblem:
    """A few units in blocks over four periods."""
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(slices)]
    units = []
    for index in range(7):
        stage = (UnitStage.WHOLE, UnitStage.FIRST, UnitStage.SECOND)[index % 3] if stages else UnitStage.WHOLE
        rates = {name: float(rng.uniform(1.0, 6.0)) * (1.0 if stage is UnitStage.WHOLE else 2.5) for name in names}
        kind = "" if stage is UnitStage.WHOLE else f"k{rng.integers(2)}"
        takes = {f"g{index % 2}": float(rng.integers(1, 5))}
        units.append(Unit(name=f"u{index}", stage=stage, kind=kind, rates_per_s=rates, takes=takes))
    return FleetProblem(
        slices=tuple(
            Slice(name=name, demand_per_s=tuple(float(x) for x in rng.uniform(2.0, 25.0, 4))) for name in names
        ),
        units=tuple(units),
        resources=tuple(
            Resource(name=f"g{i}", purchases=(Purchase(name="p", usd_per_hour=1.0 + 0.3 * i, block=4),))
            for i in range(2)
        ),
        periods=tuple(Period(name=f"p{t}", hours=float(rng.integers(1, 7))) for t in range(4)),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("stages", [False, True])
def test_periods_by_themselves_are_as_good_as_the_whole_program(
    seed: int, slices: int, stages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = day(seed, slices, stages=stages)
    answer = solve(stated, MIN_COST)
    with monkeypatch.context() as patched:
        patched.setattr(Layout, "are_periods_linked", True)
        patched.setattr("planner.optimizer.solving.cheapest_cover", lambda *_: None)
        whole = solve(stated, MIN_COST)
    assert answer.status is whole.status is SolveStatus.OPTIMAL
    assert answer.objective == pytest.approx(whole.objective, rel=2e-6)
    check_allocation(answer, stated, MIN_COST)


def by_period(layout: Layout, solve_one: PartSolver) -> PartAnswer:
    """A fleet and a bound from periods that nothing links."""
    return Day(layout, layout.demand_per_s).fleet(solve_one, 1e-6)


def usd_per_hour(stated: FleetProblem, found: PartAnswer) -> float:
    """What the fleet of an answer costs."""
    return float(build_layout(stated).mean_cost @ found.values)


def test_what_links_periods_is_seen() -> None:
    free = day(0)
    assert not build_layout(free).are_periods_linked
    unit = free.units[0]
    for changed in (
        {"units": (unit.model_copy(update={"steady": True}), *free.units[1:])},
        {"units": (unit.model_copy(update={"usd_per_start": 1.0}), *free.units[1:])},
        {"slices": (free.slices[0].model_copy(update={"deferrable": True}),)},
        {"resources": (Resource(name="g1"), Resource(name="g0", purchases=(_reserved(),)))},
    ):
        assert build_layout(free.model_copy(update=changed)).are_periods_linked, changed


def _reserved() -> Purchase:
    return Purchase(name="reserved", usd_per_hour=1.0, committed=True)


def test_periods_between_two_of_the_same_cost_are_not_solved() -> None:
    """One unit carries all of four demands: the least and the largest are asked, the two between follow."""
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(1.0, 2.0, 3.0, 4.0)),),
        units=(Unit(name="u", rates_per_s={"s": 5.0}, usd_per_hour=2.0),),
        periods=tuple(Period(name=f"p{t}") for t in range(4)),
    )
    asked = []

    def solve_one(layout, left):
        asked.append(float(layout.demand_per_s[0, 0]))
        values = np.zeros(layout.columns)
        values[layout.column.units[0, 0]], values[layout.column.rates[0, 0]] = 1.0, asked[-1]
        return PartAnswer(values, 2.0)

    found = by_period(build_layout(stated), solve_one)
    assert asked == [1.0, 4.0]
    assert (usd_per_hour(stated, found), found.bound_usd_per_hour) == (2.0, 2.0)
    assert found.values is not None
    assert found.values[build_layout(stated).column.rates[0]].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("usd", [2e-3, 2.0, 2e3])
def test_periods_of_the_same_demand_are_solved_once(usd: float) -> None:
    """Of four periods two are alike: three are asked, each with its share of the work, and all four are served."""
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(1.0, 4.0, 1.0, 2.0)),),
        units=(Unit(name="u", rates_per_s={"s": 2.0}, usd_per_hour=usd),),
        periods=tuple(Period(name=f"p{t}", hours=h) for t, h in enumerate((1.0, 2.0, 3.0, 4.0))),
    )
    asked = []

    def solve_one(layout, left):
        demand = float(layout.demand_per_s[0, 0])
        asked.append((demand, left))
        values, units = np.zeros(layout.columns), np.ceil(demand / 2.0)
        values[layout.column.units[0, 0]], values[layout.column.rates[0, 0]] = units, demand
        return PartAnswer(values, usd * units)

    found = by_period(build_layout(stated), solve_one)
    assert asked == [(1.0, 3), (4.0, 2), (2.0, 1)]
    assert found.values is not None and found.values[:4].tolist() == [1.0, 2.0, 1.0, 1.0]
    assert usd_per_hour(stated, found) == pytest.approx(usd * (1 + 2 * 2 + 3 + 4) / 10)
    assert found.bound_usd_per_hour == pytest.approx(usd_per_hour(stated, found))


def test_kinds_of_the_largest_demand_serve_all_periods() -> None:
    """Two kinds are each cheapest in one period; only that of the larger demand may be on, beside those of none."""
    stages = {"f": UnitStage.FIRST, "s": UnitStage.SECOND}
    units = [Unit(name="s", stage=stages["s"], rates_per_s={"s": 100.0}, usd_per_hour=1.0)]
    for kind, rate, usd in (("small", 2.0, 1.0), ("large", 20.0, 4.0)):
        units.append(Unit(name=kind, stage=stages["f"], kind=kind, rates_per_s={"s": rate}, usd_per_hour=usd))
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(2.0, 20.0)),),
        units=tuple(units),
        periods=(Period(name="night", hours=1.0), Period(name="day", hours=1.0)),
    )
    answer = solve(stated, MIN_COST)
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.units == {"s": (1, 1), "large": (1, 1)}
    layout = build_layout(stated)
    fleet = by_period(layout, _exact)
    assert fleet.values is not None and usd_per_hour(stated, fleet) == 5.0
    assert fleet.values[layout.column.kinds].tolist() == [float(name == "large") for _, _, name in layout.kind_names()]


def _exact(layout, left):
    """The optimum of one period by the whole program."""
    answer = ProgramSolver(0.0, 1e7).run(build_program(layout, MIN_COST))
    return PartAnswer(answer.values, answer.bound)


@pytest.mark.parametrize("size", [1.0, 0.25])
def test_work_that_may_wait_fills_what_is_left(size: float) -> None:
    """In units of one GPU's rate: 1 and 3 by the clock and a mean of 2 that may wait, on four GPUs: 3 and 1.

    Who asks for nothing gets it.
    """
    able = dict.fromkeys(("clock", "waits", "none"), size)
    stated = FleetProblem(
        slices=(
            Slice(name="clock", demand_per_s=(size, 3.0 * size)),
            Slice(name="waits", demand_per_s=(0.0, 4.0 * size), deferrable=True),
            Slice(name="none", demand_per_s=(0.0, 0.0), deferrable=True),
        ),
        units=(Unit(name="u", rates_per_s=able, takes={"g": 1.0}),),
        resources=(Resource(name="g", purchases=(Purchase(name="p", usd_per_hour=1.0),), at_most=4.0),),
        periods=(Period(name="night"), Period(name="day")),
    )
    layout = build_layout(stated)
    values = held_by_relaxation(layout, _exact)
    assert values is not None and layout.mean_cost @ values == pytest.approx(4.0)
    assert values[layout.column.units[0]].tolist() == [4.0, 4.0]
    assert values[layout.column.rates[1]].tolist() == pytest.approx([3.0 * size, size])


def held_by_relaxation(layout, solve_one):
    """The columns of a fleet whose periods hold what the relaxation of the whole does."""
    relaxed = relax(build_program(layout, MIN_COST))
    assert relaxed is not None
    return fleet_by_period(layout, layout, relaxed, solve_one, 1e-6)


def test_what_the_relaxation_commits_to_is_held_and_paid_once() -> None:
    """Commitments at a tenth of the price for 4 and 3: four are held, nothing is hired, each period is asked once."""
    ways = (Purchase(name="od", usd_per_hour=10.0), _reserved())
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(4.0, 3.0)),),
        units=(Unit(name="u", rates_per_s={"s": 1.0}, takes={"g": 1.0}),),
        resources=(Resource(name="g", purchases=ways),),
        periods=(Period(name="night"), Period(name="day")),
    )
    asked = []
    layout = build_layout(stated)
    values = held_by_relaxation(layout, lambda own, left: asked.append(left) or _exact(own, left))
    assert values is not None and layout.mean_cost @ values == pytest.approx(4.0)
    assert values[layout.column.blocks].tolist() == [[0.0, 0.0], [4.0, 4.0]]
    assert asked == [2, 1]


def test_where_fewer_blocks_do_not_do_more_are_held() -> None:
    """2.4 blocks of four for the night and the day, nothing by the hour: two do not carry it, three do."""
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(9.6, 9.6)),),
        units=(Unit(name="u", rates_per_s={"s": 1.2}, takes={"g": 1.2}),),
        resources=(Resource(name="g", purchases=(_reserved().model_copy(update={"block": 4}),)),),
        periods=(Period(name="night"), Period(name="day")),
    )
    layout = build_layout(stated)
    values = held_by_relaxation(layout, lambda own, left: _exact_or_none(own))
    assert values is not None and values[layout.column.blocks].tolist() == [[3.0, 3.0]]


def _exact_or_none(layout):
    answer = ProgramSolver(0.0, 1e7).run(build_program(layout, MIN_COST))
    return PartAnswer(answer.values if answer.is_found else None, 0.0)


def test_demand_of_nothing_beside_one_that_rises_stays_nothing() -> None:
    """One unit carries all of four demands, and none of the slice that has none."""
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(1.0, 2.0, 3.0, 4.0)), Slice(name="none", demand_per_s=(0.0,) * 4)),
        units=(Unit(name="u", rates_per_s={"s": 5.0, "none": 5.0}, usd_per_hour=2.0),),
        periods=tuple(Period(name=f"p{t}") for t in range(4)),
    )
    layout = build_layout(stated)
    found = by_period(layout, _exact)
    assert found.values is not None
    assert found.values[layout.column.rates].tolist() == [pytest.approx([1.0, 2.0, 3.0, 4.0]), [0.0] * 4]
