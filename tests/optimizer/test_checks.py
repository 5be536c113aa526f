"""Bad problems and bad requests are refused."""

from __future__ import annotations

import tracemalloc

import pytest

from planner.core import InputError
from planner.optimizer import FleetProblem, Period, Purchase, Resource, Slice, SolveStatus, solve
from planner.optimizer.checks import least_cost_usd_per_hour
from planner.optimizer.layout import build_layout
from tests.optimizer.problems import MAX_RATE, MAX_RATIO, MIN_COST, bought, problem, unit

ONE, CHEAP, DEAR = unit("a", 1.0, 1.0), unit("a", 1.0, 1e-12), unit("b", 2.0, 1e3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unit("p", 0.0), r"rates_per_s.chat = 0.0: Input should be greater than 0"),
        (lambda: problem([ONE], 1.0, 2.0), r"slice 'chat' demand_per_s = 2: needs one value for each of 1 periods"),
        (lambda: problem([ONE], 1.0, budget=1.0), r"budget = 1.0: unknown field"),
    ],
)
def test_bad_records_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("units", "more", "objective", "message"),
    [
        ([ONE, ONE], {}, MIN_COST, r"unit name = \['a', 'a'\]: two unit names are equal"),
        ([unit("a", {"talk": 1.0})], {}, MIN_COST, r"units\[a\].rates_per_s = 'talk': must be the name of a slice"),
        ([unit("a", 1.0, 1.0, {"g": 1.0})], {}, MIN_COST, r"units\[a\].takes = 'g': must be the name of a resource"),
        ([ONE], {"resources": ("x-1", "x 1")}, MAX_RATE, r"resource name = \['x-1', 'x 1'\].* Fix: rename one of"),
        ([ONE], {"min_rate_per_s": 2.0}, MAX_RATE, r"min_rate_per_s = 2.0: must be <= the mean demand = 1"),
        ([ONE, unit("own", 1.0)], {}, MAX_RATIO, r"units\[own\].usd_per_hour = 0.0: what is served for nothing has no"),
        ([CHEAP, DEAR], {"budget_usd_per_hour": 5.0}, MIN_COST, r"within_budget = .*: scaled coefficient .* Fix: b"),
    ],
)
def test_bad_requests_are_refused(units, more, objective, message):
    resources = tuple(Resource(name=name) for name in more.get("resources", ()))
    with pytest.raises(InputError, match=message):
        solve(problem(units, 1.0, **{**more, "resources": resources}), objective)


def test_a_gap_of_everything_and_what_cannot_be_bought_are_refused():
    with pytest.raises(InputError, match=r"relative_gap = 1.0: must lie in \[0, 1\)"):
        solve(problem([ONE], 1.0), MIN_COST, relative_gap=1.0)
    with pytest.raises(InputError, match=r"resources\[x\].at_least = 1.0: there is no way to buy any"):
        solve(problem([ONE], 1.0, resources=(Resource(name="x", at_least=1.0),)), MIN_COST)


def pools(demand: float, block: int, slices: int) -> FleetProblem:
    """Eight families in pools of 1 to 16 on three resources."""
    names = [f"s{index}" for index in range(slices)]
    units = tuple(
        unit(
            f"f{family}x{size}",
            dict.fromkeys(names, (3.0 + 0.37 * family) * size**1.03),
            takes={f"g{family % 3}": float(size * (1 + family % 2))},
        )
        for family in range(8)
        for size in range(1, 17)
    )
    return FleetProblem(
        slices=tuple(Slice(name=name, demand_per_s=(demand,)) for name in names),
        units=units,
        resources=tuple(
            Resource(name=f"g{index}", purchases=(Purchase(name="p", usd_per_hour=2.0 + index, block=block),))
            for index in range(3)
        ),
    )


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("demand", [1e7])
def test_large_demands_are_planned_in_little_memory(demand: float, slices: int, block: int) -> None:
    """A million requests per second, singly and in instances: 100 MB would do."""
    tracemalloc.start()
    answer = solve(pools(demand, block, slices), MIN_COST, relative_gap=1e-3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.gap is not None and answer.gap <= 1e-3 + 1e-6
    assert peak < 4e8


@pytest.mark.parametrize("demand", [1e9, 1e12])
def test_a_demand_beyond_reach_is_refused_by_name(demand: float) -> None:
    with pytest.raises(InputError, match=r"slices\[s0\]\.demand_per_s.*at most 500,000 can be planned"):
        solve(pools(demand, 8, 2), MIN_COST)


@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
def test_a_cap_beyond_reach_is_refused_by_name(objective) -> None:
    stated = problem([unit("a", 1.0, 1.0)], 1e9, budget_usd_per_hour=40.0)
    with pytest.raises(InputError, match=r"slices\[chat\]\.demand_per_s = 1000000000\.0: takes 1e\+09"):
        solve(stated, objective)


@pytest.mark.parametrize("objective", [MAX_RATE, MAX_RATIO])
def test_a_cap_of_a_million_units_is_planned(objective) -> None:
    """Twice as many as least cost takes: the budget buys forty."""
    answer = solve(problem([unit("a", 1.0, 1.0)], 1e6, budget_usd_per_hour=40.0), objective)
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.objective == (40.0 if objective is MAX_RATE else 1.0)


def test_a_pool_too_small_for_its_demand_is_refused_in_words_of_the_request() -> None:
    """A billion requests per second by pools of ten million, with a pool of a tenth of a request beside them."""
    stated = problem([unit("large", 1e7, 1.0), unit("tiny", 0.1, 1e-9)], 1e9)
    with pytest.raises(InputError, match=r"slices\[chat\]\.demand_per_s = 1000000000\.0: takes 1e\+10 of unit 'tiny'"):
        solve(stated, MIN_COST)


@pytest.mark.parametrize(("committed", "least"), [(True, 8.5), (False, 2.875)])
def test_the_least_cost_of_anything_is_a_unit_in_the_shortest_period(committed: bool, least: float) -> None:
    """Two GPUs at 3 USD/h, of which 80 % are usable: 7.5 all day where committed, a quarter of it for the night."""
    gpu = bought("gpu", 3.0, committed=committed, usable_share=0.8)
    night = (Period(name="night", hours=6.0), Period(name="day", hours=18.0))
    stated = problem([unit("a", 1.0, 4.0, {"gpu": 2.0})], 1.0, 1.0, periods=night, resources=(gpu,))
    assert least_cost_usd_per_hour(build_layout(stated)) == pytest.approx(least)
