"""Covering knapsacks by labels against branch and bound, and what is proved by them against the whole program."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, milp

from planner.core import FloatArray, IntArray
from planner.optimizer import (
    FleetProblem,
    Objective,
    Period,
    Purchase,
    Resource,
    Slice,
    SolveStatus,
    Unit,
    UnitStage,
    labels,
    solve,
)
from planner.optimizer.constraints import build_rows
from planner.optimizer.covering import cheapest_cover
from planner.optimizer.layout import FIRST, STAGES, WHOLE, Layout, build_layout
from tests.optimizer.problems import by_milp

KINDS = 4


def cover_problem(
    demand: float, cost: FloatArray, rate: FloatArray, stage: IntArray, channel: IntArray, kind: IntArray
) -> Layout:
    """Units of one slice by arrays; a channel or kind of -1 is none."""
    units = tuple(
        Unit(
            name=f"u{j}",
            stage=STAGES[stage[j]],
            channel="" if stage[j] == WHOLE else str(channel[j]),
            kind="" if kind[j] < 0 else str(kind[j]),
            rates_per_s={"s": rate[j]},
            usd_per_hour=cost[j],
        )
        for j in range(len(cost))
    )
    return build_layout(FleetProblem(slices=(Slice(name="s", demand_per_s=(demand,)),), units=units))


def keeps_limits(layout: Layout, values: FloatArray) -> bool:
    """Whether no row of the whole program is missed."""
    return not any(len(rows.missed(values)) for rows in build_rows(Objective.MIN_COST, layout))


@pytest.mark.parametrize("seed", range(40))
def test_labels_find_what_branch_and_bound_finds(seed: int) -> None:
    """Mixed, prefill and decode units in two channels, costs near proportional to rates: the hard case of knapsacks."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 30))
    stage = rng.integers(0, 3, n)
    channel = np.where(stage == WHOLE, -1, rng.integers(0, 2, n))
    kind = np.where(stage == WHOLE, -1, rng.integers(-1, KINDS, n) if seed % 2 else -1)
    rate = rng.uniform(0.5, 30.0, n)
    cost = np.round(0.3 * rng.uniform(1.0, 30.0, n) + rate * rng.uniform(0.8, 1.2, n), 2)
    demand = float(rng.uniform(5.0, 120.0))
    layout = cover_problem(demand, cost, rate, stage, channel, kind)
    cover = cheapest_cover(layout)
    assert cover is not None
    found = math.inf if cover.values is None else float(layout.mean_cost @ cover.values)
    assert found == pytest.approx(by_milp(layout), rel=1e-6)


def problem(seed: int, periods: int, commitments: bool, slices: int = 1) -> FleetProblem:
    rng = np.random.default_rng(seed)
    names = [f"s{index}" for index in range(slices)]
    units = []
    for index in range(8):
        sku, size = f"g{index % 2}", int(rng.integers(1, 5))
        rates = {name: float(np.round(size * rng.uniform(2.0, 6.0), 2)) for name in names}
        units.append(Unit(name=f"u{index}", rates_per_s=rates, takes={sku: float(size)}))
    ways: tuple[Purchase, ...] = (Purchase(name="hired", usd_per_hour=3.0),)
    if commitments:
        ways += (Purchase(name="kept", usd_per_hour=2.0, committed=True),)
    resources = tuple(Resource(name=f"g{index}", purchases=ways) for index in range(2))
    return FleetProblem(
        slices=tuple(
            Slice(name=name, demand_per_s=tuple(float(x) for x in rng.uniform(5.0, 40.0, periods))) for name in names
        ),
        units=tuple(units),
        resources=resources,
        periods=tuple(Period(name=f"p{index}", hours=float(rng.integers(1, 6))) for index in range(periods)),
    )


def without_covering(asked: FleetProblem, monkeypatch: pytest.MonkeyPatch) -> float:
    """The optimum by branch and bound alone."""
    with monkeypatch.context() as patched:
        patched.setattr("planner.optimizer.solving.cheapest_cover", lambda *_: None)
        answer = solve(asked, Objective.MIN_COST, relative_gap=1e-5)
    assert answer.objective is not None
    return answer.objective


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steady", [False, True])
def test_the_cover_is_the_optimum_where_nothing_else_is_asked(
    seed: int, steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One period, or units that stand still: bound, fleet and the optimum of branch and bound agree."""
    asked = problem(seed, 3 if steady else 1, commitments=steady)
    units = tuple(unit.model_copy(update={"steady": steady}) for unit in asked.units)
    asked = asked.model_copy(update={"units": units})
    layout = build_layout(asked)
    cover = cheapest_cover(layout)
    assert cover is not None and keeps_limits(layout, cover.values)
    optimum = without_covering(asked, monkeypatch)
    assert cover.bound_usd_per_hour == pytest.approx(optimum, rel=1e-5)
    assert layout.mean_cost @ cover.values == pytest.approx(optimum, rel=1e-5)
    assert solve(asked, Objective.MIN_COST).status is SolveStatus.OPTIMAL


@pytest.mark.parametrize("seed", range(8))
def test_commitments_over_periods_are_solved_to_the_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem(seed, 3, commitments=True)
    assert cheapest_cover(build_layout(asked)) is None
    answer = solve(asked, Objective.MIN_COST, relative_gap=1e-5)
    assert answer.objective == pytest.approx(without_covering(asked, monkeypatch), rel=1e-4)


def test_too_many_labels_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MAX_LABELS", 1)
    rng = np.random.default_rng(1)
    rate = rng.uniform(1.0, 3.0, 40)
    zeros = np.zeros(40, dtype=int)
    cost = rate * rng.uniform(0.99, 1.01, 40)
    assert cheapest_cover(cover_problem(300.0, cost, rate, zeros, zeros - 1, zeros - 1)) is None


@pytest.mark.parametrize("seed", range(3))
def test_of_very_many_units_a_fleet_within_the_gap_needs_no_labels(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million requests per second by units of one to five hundred, against what scipy finds and proves."""
    monkeypatch.setattr(labels, "MAX_LABELS", 0)
    rng = np.random.default_rng(seed)
    rate = np.concatenate([2.0 ** np.arange(9), rng.uniform(1.0, 500.0, 20)])
    cost = rate * rng.uniform(1.0, 1.2, len(rate)) + 0.1
    units = [
        Unit(name=f"u{j}", rates_per_s={"s": r}, usd_per_hour=c)
        for j, (r, c) in enumerate(zip(rate, cost, strict=True))
    ]
    layout = build_layout(FleetProblem(slices=(Slice(name="s", demand_per_s=(1e6,)),), units=tuple(units)))
    cover = cheapest_cover(layout, 1e-3)
    assert cover is not None and cover.values is not None and keeps_limits(layout, cover.values)
    best = milp(cost, constraints=LinearConstraint(rate, 1e6), integrality=np.ones(len(rate)))
    usd = float(layout.mean_cost @ cover.values)
    assert cover.bound_usd_per_hour <= best.fun * (1.0 + 1e-9) and best.mip_dual_bound <= usd * (1.0 + 1e-9)
    assert usd * (1.0 - 1e-3) <= cover.bound_usd_per_hour * (1.0 + 1e-9)


def test_what_would_take_gigabytes_is_given_up() -> None:
    """Units that carry next to nothing: a million million of one would be tried beside every label of the others."""
    rate = np.array([1.0, 1e-12])
    cost = np.array([1.0, 1.0001e-12])
    layout = cover_problem(1.5, cost, rate, np.zeros(2, dtype=int), np.full(2, -1), np.full(2, -1))
    tracemalloc.start()
    found = cheapest_cover(layout)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is None
    assert most_bytes < 1e8


def test_what_a_solver_leaves_of_a_rate_breaks_no_limit():
    """A billionth of the traffic handed over to nobody in one slice is rounding, a thousandth is not."""
    names = ("big", "small")
    units = (
        Unit(name="first", rates_per_s=dict.fromkeys(names, 5.0), usd_per_hour=1.0, stage=UnitStage.FIRST),
        Unit(name="second", rates_per_s=dict.fromkeys(names, 5.0), usd_per_hour=1.0, stage=UnitStage.SECOND),
    )
    slices = tuple(Slice(name=name, demand_per_s=(rate,)) for name, rate in zip(names, (4.0, 0.0), strict=True))
    layout = build_layout(FleetProblem(slices=slices, units=units))
    for left, kept in ((4e-9, True), (4e-3, False)):
        values = np.zeros(layout.columns)
        values[layout.column.units] = 1.0
        values[layout.column.rates[layout.pair_slice == 0]] = 4.0
        values[layout.column.rates[(layout.pair_slice == 1) & (layout.stage[layout.pair_unit] == FIRST)]] = left
        assert keeps_limits(layout, values) is kept


def test_the_kinds_groups_and_cheapest_blocks_of_a_cover_are_filled_in() -> None:
    """Eight and one for nine units, not twice eight, and the marks of what is used, the first of all included."""
    units = [
        Unit(name="f", stage=UnitStage.FIRST, kind="a", rates_per_s={"s": 1.0}, takes={"g": 1.0}),
        Unit(name="dear", stage=UnitStage.FIRST, kind="b", rates_per_s={"s": 1.0}, takes={"g": 1.0}, usd_per_hour=9.0),
        Unit(name="w", stage=UnitStage.SECOND, rates_per_s={"s": 9.0}, takes={"h": 1.0}),
    ]
    ways = (Purchase(name="one", usd_per_hour=3.0), Purchase(name="eight", usd_per_hour=2.0, block=8))
    resources = (Resource(name="g", group="g", purchases=ways), Resource(name="h", group="h"))
    stated = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(9.0,)),), units=tuple(units), resources=resources, max_groups=2
    )
    layout = build_layout(stated)
    cover = cheapest_cover(layout)
    assert cover is not None and keeps_limits(layout, cover.values)
    assert cover.bound_usd_per_hour == pytest.approx(8 * 2.0 + 3.0)
    assert cover.values[layout.column.units[:, 0]].tolist() == [9.0, 0.0, 1.0]
    assert cover.values[layout.column.blocks[:, 0]].tolist() == [1.0, 1.0]
    assert cover.values[layout.column.kinds].tolist() == [1.0, 0.0]
    assert cover.values[layout.column.groups].tolist() == [1.0, 1.0]


def coupled_problem(seed: int) -> FleetProblem:
    """Slices with mixed, prefill and decode units of their own that share resources with blocks, limits and pins."""
    rng = np.random.default_rng([71, seed])
    resources = []
    for k in range(int(rng.integers(2, 5))):
        rented = Purchase(name="rented", usd_per_hour=float(rng.uniform(1.0, 5.0)), block=int(rng.choice([1, 4, 8])))
        purchases: tuple[Purchase, ...] = (rented,)
        if rng.random() < 0.4:
            owned = Purchase(name="own", usd_per_hour=0.6 * rented.usd_per_hour, at_most=float(rng.integers(2, 9)))
            purchases = (owned, rented)
        limit = float(rng.integers(4, 25)) if rng.random() < 0.5 else None
        pin = float(rng.integers(1, 4)) if rng.random() < 0.2 else 0.0
        resources.append(Resource(name=f"r{k}", purchases=purchases, at_most=limit, at_least=pin))
    slices = [Slice(name=f"s{index}", demand_per_s=(float(rng.uniform(5.0, 25.0)),)) for index in range(seed % 3 + 1)]
    units = []
    for slice_ in slices:
        for j in range(int(rng.integers(4, 9))):
            stage = rng.choice(list(UnitStage))
            is_whole, size = stage is UnitStage.WHOLE, int(rng.integers(1, 7))
            units.append(
                Unit(
                    name=f"{slice_.name} u{j}",
                    stage=stage,
                    channel="" if is_whole else slice_.name,
                    kind="" if is_whole else str(rng.choice(["a", "b"])),
                    rates_per_s={slice_.name: float(size * rng.uniform(0.8, 1.4) * (1.0 if is_whole else 2.0))},
                    takes={f"r{rng.integers(len(resources))}": float(size)},
                    usd_per_hour=float(rng.choice([0.0, 0.1 * size])),
                )
            )
    return FleetProblem(slices=tuple(slices), units=tuple(units), resources=tuple(resources))


@pytest.mark.parametrize("seed", range(36))
def test_what_shares_resources_is_covered_as_cheaply_as_by_the_whole_program(seed: int) -> None:
    """Against scipy's solver on the rows as stated. A coarser gap, and too few labels, leave the bound below it."""
    layout = build_layout(coupled_problem(seed))
    optimum = by_milp(layout)
    cover = cheapest_cover(layout)
    assert cover is not None and cover.bound_usd_per_hour == pytest.approx(optimum, rel=1e-6)
    if cover.values is not None and optimum < math.inf:
        assert keeps_limits(layout, cover.values)
        assert layout.mean_cost @ cover.values == pytest.approx(optimum, rel=1e-6)
    coarse = cheapest_cover(layout, 0.05)
    assert coarse is not None and coarse.bound_usd_per_hour <= optimum * (1.0 + 1e-9)
    if optimum < math.inf:
        assert coarse.values is not None and layout.mean_cost @ coarse.values <= coarse.bound_usd_per_hour / 0.95 + 1e-9


@pytest.mark.parametrize("seed", [54, 65, 70, 76, 85, 86, 102, 118])
def test_what_is_there_already_and_limited_is_covered_as_cheaply_as_by_the_whole_program(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power that costs nothing and does not do for what is cheapest, beside GPUs singly or by four."""
    rng = np.random.default_rng([5, seed])
    units = tuple(
        Unit(
            name=f"{name}{j}",
            rates_per_s={name: float(size * rng.uniform(0.8, 1.4))},
            takes={"kw": float(size * rng.uniform(0.5, 2.0)), "gpu": float(size)},
        )
        for name in ("s", "t")
        for j, size in enumerate(rng.integers(1, 5, 5).tolist())
    )
    power = Resource(name="kw", at_most=float(rng.uniform(10.0, 20.0)))
    hired = Purchase(name="p", usd_per_hour=1.0, block=int(rng.choice([1, 4])))
    asked = FleetProblem(
        slices=tuple(Slice(name=name, demand_per_s=(float(rng.uniform(5.0, 12.0)),)) for name in ("s", "t")),
        units=units,
        resources=(power, Resource(name="gpu", purchases=(hired,))),
    )
    cover = cheapest_cover(build_layout(asked))
    assert cover is not None
    assert cover.bound_usd_per_hour == pytest.approx(without_covering(asked, monkeypatch), rel=1e-5)


def test_cheap_blocks_are_filled_too() -> None:
    """Nine requests per second by GPUs at 10 cents in blocks of eight, or beside them at 15 cents: 0.95, not 1.60."""
    units = (
        Unit(name="in block", rates_per_s={"s": 1.0}, takes={"g": 1.0}),
        Unit(name="beside", rates_per_s={"s": 1.0}, usd_per_hour=0.15),
    )
    blocks = Resource(name="g", purchases=(Purchase(name="p", usd_per_hour=0.1, block=8),))
    layout = build_layout(
        FleetProblem(slices=(Slice(name="s", demand_per_s=(9.0,)),), units=units, resources=(blocks,))
    )
    cover = cheapest_cover(layout)
    assert cover is not None and cover.bound_usd_per_hour == pytest.approx(0.95)
    assert layout.mean_cost @ cover.values == pytest.approx(0.95)


def test_a_bound_rests_on_the_cover_of_each_slice_and_on_nothing_where_units_serve_several() -> None:
    """By the cheaper unit of each slice; where one serves two slices there is no bound of slices by themselves."""
    slices = tuple(Slice(name=name, demand_per_s=(3.0,)) for name in ("s", "t"))
    each = [Unit(name=f"{n}{usd:g}", rates_per_s={n: 1.0}, usd_per_hour=usd) for n in ("s", "t") for usd in (1.0, 2.0)]
    answer = solve(FleetProblem(slices=slices, units=tuple(each)), Objective.MIN_COST)
    assert dict(answer.bound_rests_on) == {"s1": ("s",), "t1": ("t",)}
    both = Unit(name="both", rates_per_s={"s": 1.0, "t": 1.0}, usd_per_hour=1.5)
    for more in (both, both.model_copy(update={"usd_per_hour": 0.0})):
        answer = solve(FleetProblem(slices=slices, units=(*each, more)), Objective.MIN_COST)
        assert dict(answer.bound_rests_on) == {}
