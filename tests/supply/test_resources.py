"""What can be bought against exhaustive buying from the price list, hand-computed fleets and the integer program."""

from __future__ import annotations

import itertools
import math
import random
import re
from typing import Any

import pytest
from scipy.stats import binom

from hardware_db import Price, is_cited
from planner.core import InputError
from planner.optimizer import Allocation, FleetProblem, Objective, Period, Resource, Slice, SolveStatus, Unit, solve
from planner.supply import (
    FleetLimits,
    Granularity,
    OwnedGpus,
    PricePolicy,
    Quota,
    SpotTerms,
    Supply,
    build_supply,
    resource_use,
    spot_shortfalls,
    supply_cost,
    switching_resource,
)
from planner.supply.availability import spot_availability
from tests.markets import DB, db_with, limits, make_price, only, policy

H100 = DB.skus["h100-sxm"]
SPOT = SpotTerms(interruptions_per_hour=1.0, recovery_s=400.0, probability=0.95)  # up 90 % of the time


def cheapest_cover(resource: Resource, gpus: int) -> float:
    """Least cost per hour to have GPUs in use, over every combination of blocks."""
    if resource.at_most is not None and gpus > resource.at_most:
        return math.inf
    counts = []
    for way in resource.purchases:
        enough = math.ceil(gpus / way.usable_share / way.block)
        counts.append(range((enough if way.at_most is None else min(enough, int(way.at_most // way.block))) + 1))
    best = math.inf
    for blocks in itertools.product(*counts):
        ways = list(zip(blocks, resource.purchases, strict=True))
        if sum(n * way.block * way.usable_share for n, way in ways) >= gpus - 1e-9:
            best = min(best, sum(n * way.block * way.usd_per_hour for n, way in ways))
    return best


def cheapest_from_list(prices: list[Price], quotas: list[Quota], gpus: int, blocks: list[int]) -> float:
    """The same from the price list itself: any number of instances at any price within every quota."""
    best = math.inf
    counts = [range(math.ceil(gpus / block) + 1) for block in blocks]
    for numbers in itertools.product(*counts):
        held = [n * block for n, block in zip(numbers, blocks, strict=True)]
        fits = all(
            sum(
                count
                for count, price in zip(held, prices, strict=True)
                if quota.provider in (None, price.provider) and quota.commitment in (None, price.commitment)
            )
            <= quota.gpus
            for quota in quotas
        )
        if fits and sum(held) >= gpus:
            best = min(best, sum(c * price.usd_per_gpu_hour for c, price in zip(held, prices, strict=True)))
    return best


def random_market(draw: random.Random) -> tuple[list[Price], list[Quota]]:
    prices = [
        make_price(
            provider=provider,
            commitment=commitment,
            usd_per_gpu_hour=draw.choice([1.0, 1.5, 2.0, 2.25, 3.0]),
            gpus_per_instance=draw.choice([1, 2, 4]),
        )
        for provider, commitment in draw.sample(list(itertools.product("PQR", ("on_demand", "reserved"))), 4)
    ]
    quotas = [
        Quota(
            sku="h100-sxm",
            gpus=draw.randint(0, 7),
            provider=draw.choice([None, *sorted({p.provider for p in prices})]),
            commitment=draw.choice([None, *sorted({p.commitment for p in prices})]),
        )
        for _ in range(draw.randint(0, 2))
    ]
    return prices, quotas


@pytest.mark.parametrize("granularity", [Granularity.GPU, Granularity.INSTANCE])
def test_purchases_are_worth_the_whole_price_list(granularity: Granularity) -> None:
    """Exhaustive buying from 4 random prices under random quotas against exhaustive buying from the resource.

    Never cheaper (no quota is broken), and equal wherever every quota could be held word for word: the dropped prices
    and the names apart lose nothing.
    """
    draw = random.Random(11)
    equal = shared = infeasible = 0
    for _ in range(120):
        prices, quotas = random_market(draw)
        ways = tuple(sorted({price.commitment for price in prices}))
        rule = policy(commitments=ways, granularity=granularity)
        supply = build_supply(["h100-sxm"], rule, limits(quotas=quotas), db_with(*prices))
        gpus = draw.randint(1, 7)
        singly = granularity is Granularity.GPU
        blocks = [1 if singly else price.gpus_per_instance for price in prices]
        truth = cheapest_from_list(prices, quotas, gpus, blocks)
        found = cheapest_cover(only(supply), gpus) if not supply.unavailable else math.inf
        if any("counts GPUs in use" in line for line in supply.assumptions):
            continue
        if any("cheapest of" in line for line in supply.assumptions):
            assert found >= truth - 1e-9
            shared += 1
        elif math.isinf(truth):
            assert math.isinf(found)
            infeasible += 1
        else:
            assert found == pytest.approx(truth, abs=1e-9), (prices, quotas, gpus)
            equal += 1
    assert equal > 40
    assert shared > 0
    assert infeasible > 0 or not singly


def test_quotas_by_hand() -> None:
    """Least cost of 10 GPUs from P at 1 USD, reserved at P at 0.75, Q at 2, under quotas of one way each and of all."""
    market = db_with(
        make_price(provider="P", usd_per_gpu_hour=1.0),
        make_price(provider="Q", usd_per_gpu_hour=2.0),
        make_price(provider="P", commitment="reserved", usd_per_gpu_hour=0.75),
    )
    rule = policy(commitments=("on_demand", "reserved"))
    for quotas, usd in (
        ((), 7.5),
        ((Quota(sku="h100-sxm", gpus=4, commitment="reserved"),), 4 * 0.75 + 6 * 1.0),
        ((Quota(sku="h100-sxm", gpus=4, provider="P"),), 4 * 0.75 + 6 * 2.0),
        ((Quota(sku="h100-sxm", gpus=9),), math.inf),
        ((Quota(sku="l4", gpus=0),), 7.5),
    ):
        supply = build_supply(["h100-sxm"], rule, limits(quotas=quotas), market)
        assert cheapest_cover(only(supply), 10) == usd
    everything = build_supply(["h100-sxm"], rule, limits(quotas=(Quota(sku="h100-sxm", gpus=0),)), market)
    assert everything.unavailable == {"h100-sxm": "limits allow 0 GPUs of it"}


def test_a_quota_of_all_that_may_be_bought_is_held_to_the_letter() -> None:
    """No way of buying goes before another: nothing is said of the cheapest."""
    rows = [make_price(provider="P", usd_per_gpu_hour=1.0), make_price(provider="P", commitment="reserved")]
    of_p = limits(quotas=(Quota(sku="h100-sxm", gpus=9, provider="P"),))
    supply = build_supply(["h100-sxm"], policy(commitments=("on_demand", "reserved")), of_p, db_with(*rows))
    assert only(supply).at_most == 9 and not any("cheapest" in text for text in supply.assumptions)


def test_a_limit_says_where_it_cannot_be_held_to_the_letter() -> None:
    """Sold by eight at P and singly at Q and R: nine in use are eight and one, or nine single ones; twenty are 16."""
    eight = make_price(gpus_per_instance=8, usd_per_gpu_hour=1.0)
    single = [make_price(provider=name, usd_per_gpu_hour=usd) for name, usd in (("Q", 2.0), ("R", 3.0))]
    rule = policy(granularity=Granularity.INSTANCE)

    def offered(*prices: Price, **bounds: Any) -> tuple[int | None, bool, bool]:
        """GPUs in use at most; whether blocks come on top of the limit, and whether a quota goes to the cheapest."""
        supply = build_supply(["h100-sxm"], rule, limits(**bounds), db_with(*prices))
        said = " ".join(supply.assumptions)
        return only(supply).at_most, "counts GPUs in use" in said, "ways of buying first" in said

    assert offered(eight, *single[:1], gpus={"h100-sxm": 9}) == (9, True, False)
    assert offered(single[0], gpus={"h100-sxm": 9}) == (9, False, False)
    assert offered(eight, gpus={"h100-sxm": 20}) == (16, False, False)
    of_q = Quota(sku="h100-sxm", gpus=3, provider="Q")
    assert offered(eight, *single, quotas=(of_q,)) == (None, False, False)
    reserved = make_price(provider="Q", usd_per_gpu_hour=2.5, commitment="reserved")
    rule = policy(granularity=Granularity.INSTANCE, commitments=("on_demand", "reserved"))
    assert offered(eight, single[0], reserved, quotas=(of_q,)) == (None, False, True)


def test_a_quota_of_another_sku_brings_no_dearer_price_in() -> None:
    """Q is worth having beside P only where P's GPUs of this SKU are counted apart."""
    market = db_with(make_price(usd_per_gpu_hour=1.0), make_price(provider="Q", usd_per_gpu_hour=2.0))
    for counted, ways in (("h100-sxm", 2), ("a100-sxm-80gb", 1), ("l4", 1)):
        bound = limits(quotas=(Quota(sku=counted, gpus=4, provider="P"),))
        assert len(only(build_supply(["h100-sxm"], policy(), bound, market)).purchases) == ways, counted


def test_blocks_follow_the_granularity() -> None:
    """AWS lists H100 singly and by 8 at the same price, so that singly does for both; a server has 8."""
    rows = {"commitments": ("on_demand",), "provider": "AWS"}
    by_rule = {
        granularity: [
            way.block
            for way in only(build_supply(["h100-sxm"], policy(granularity=granularity, **rows), limits(), DB)).purchases
        ]
        for granularity in Granularity
    }
    assert by_rule == {Granularity.GPU: [1], Granularity.INSTANCE: [1], Granularity.NODE: [8]}
    eight = db_with(
        make_price(gpus_per_instance=8, usd_per_gpu_hour=1.0), make_price(provider="Q", usd_per_gpu_hour=2.0)
    )
    supply = build_supply(["h100-sxm"], policy(granularity=Granularity.INSTANCE), limits(), eight)
    assert {way.name: (way.block, way.usd_per_hour) for way in only(supply).purchases} == {
        "on_demand P any": (8, 1.0),
        "on_demand Q any": (1, 2.0),
    }
    assert [cheapest_cover(only(supply), gpus) for gpus in (3, 5, 10)] == [6.0, 8.0, 12.0]


def test_owned_gpus_stand_beside_rented_ones() -> None:
    owned = OwnedGpus(capex_usd_per_gpu=0.0, watts=1000.0, pue=1.2, usd_per_kwh=0.1, count=4)
    supply = build_supply(["h100-sxm"], policy(owned={"h100-sxm": owned}, granularity=Granularity.NODE), limits(), DB)
    ways = {way.name: way for way in only(supply).purchases}
    assert ways["owned"].usd_per_hour == pytest.approx(0.12)
    assert (ways["owned"].at_most, ways["owned"].committed) == (4, True)
    assert (ways["owned"].block, ways["on_demand"].block) == (1, 8)
    assert supply.cheapest["h100-sxm"] == pytest.approx(0.12)  # written off: what running it costs, never 0
    assert supply.prices["h100-sxm", "owned"] == owned
    bought = OwnedGpus(capex_usd_per_gpu=3e4)
    alone = build_supply(["h20"], policy(owned={"h20": bought}, granularity=Granularity.NODE), limits(), DB)
    assert [(way.name, way.block, way.at_most) for way in only(alone, "h20").purchases] == [("owned", 8, None)]
    assert alone.notes == ()


def test_what_cannot_be_had_says_why() -> None:
    rule = policy()
    bound = limits(forbidden=("h100-sxm",), gpus={"l4": 0}, power_kw=10.0)
    supply = build_supply(["h100-sxm", "l4", "mi250x", "tpu-v5e", "a10"], rule, bound, DB)
    assert supply.unavailable == {
        "h100-sxm": "forbidden by limits.forbidden",
        "l4": "limits allow 0 GPUs of it",
        "mi250x": "no on_demand price that may be used is listed; give one in prices.usd_per_gpu_hour.mi250x",
        "tpu-v5e": "its power is not published, so that it cannot be counted against a limit of power or CO2",
    }
    assert [resource.name for resource in supply.resources] == ["a10", "power_kw"]
    servers = build_supply(["l4"], policy(granularity=Granularity.NODE), limits(gpus={"l4": 7}), DB)
    assert servers.unavailable == {"l4": "limits allow 0 GPUs of it"}  # a server has 8
    cut = limits(quotas=(Quota(sku="l4", gpus=7, commitment="on_demand"),))
    both = policy(granularity=Granularity.NODE, owned={"l4": OwnedGpus(capex_usd_per_gpu=1.0, count=0)})
    assert "or quotas leave less than is sold at once" in build_supply(["l4"], both, cut, DB).unavailable["l4"]


def test_limited_are_the_skus_that_something_counts() -> None:
    skus = ["h100-sxm", "h200-sxm", "l4"]
    for bound, expected in (
        (limits(), set()),
        (limits(budget_usd_per_hour=5.0), set()),
        (limits(gpus={"l4": 3}), {"l4"}),
        (limits(pinned={"h100-sxm": 3}), {"h100-sxm"}),
        (limits(pinned={"h100-sxm": 1}), {"h100-sxm"}),
        (limits(quotas=(Quota(sku="h200-sxm", gpus=3, provider="AWS"),)), {"h200-sxm"}),
        (limits(power_kw=50.0), set(skus)),
        (limits(co2_kg_per_hour=50.0, co2_kg_per_kwh=0.4), set(skus)),
        (limits(skus_at_most=1), set(skus)),
        (limits(existing={"l4": 1}, switching_usd_per_gpu=10.0), set(skus)),
    ):
        rule = policy(provider="AWS") if bound.quotas else policy()
        assert build_supply(skus, rule, bound, DB).limited == expected
    assert build_supply(skus, policy(granularity=Granularity.NODE), limits(), DB).limited == set(skus)


def test_pins_become_least_amounts_or_are_refused() -> None:
    assert only(build_supply(["h100-sxm"], policy(), limits(pinned={"h100-sxm": 3}), DB)).at_least == 3
    for changes, text in (
        (
            {"pinned": {"h100-sxm": 3}, "forbidden": ("h100-sxm",)},
            "limits.pinned.h100-sxm = 3: is in limits.forbidden too",
        ),
        ({"pinned": {"mi250x": 3}}, "limits.pinned.mi250x = 3: cannot be had: no on_demand price"),
        ({"pinned": {"l4": 1}}, "limits.pinned.l4 = 1: cannot be had: it is not among search.skus"),
    ):
        with pytest.raises(InputError, match="^" + re.escape(text) + r".*Fix: "):
            build_supply(["h100-sxm", "mi250x"], policy(), limits(**changes), DB)


@pytest.mark.parametrize(
    ("changes", "rules", "text"),
    [
        ({"gpus": {"h999": 1}}, {}, "limits.gpus = 'h999': unknown name"),
        ({"quotas": (Quota(sku="h999", gpus=1),)}, {}, "limits.quotas.sku = 'h999': unknown name"),
        ({"quotas": (Quota(sku="l4", gpus=1, provider="AWSS"),)}, {}, "limits.quotas.provider = 'AWSS': unknown name"),
        ({}, {"commitments": ("reserved_9yr",)}, "prices.commitments = 'reserved_9yr': unknown name"),
        ({}, {"owned": {"h999": OwnedGpus(capex_usd_per_gpu=1.0)}}, "prices.owned = 'h999': unknown name"),
        ({"co2_kg_per_hour": 1.0}, {}, "limits.co2_kg_per_kwh = None: needed to count limits.co2_kg_per_hour"),
        (
            {},
            {"owned": {"h100-sxm": OwnedGpus(capex_usd_per_gpu=0.0, usd_per_kwh=0.0)}},
            "prices.owned.h100-sxm = 0.0: a GPU-hour that costs nothing",
        ),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, Any], rules: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(text) + r".*Fix: "):
        build_supply(["h100-sxm"], policy(**rules), limits(**changes), DB)


@pytest.mark.parametrize(
    ("granularity", "rate", "recovery_s", "probability"),
    [(Granularity.GPU, 1.0, 400.0, 0.95), (Granularity.NODE, 0.5, 60.0, 0.9), (Granularity.NODE, 6.0, 3600.0, 0.99)],
)
def test_planning_again_with_the_shares_named_ends_with_enough_spot_capacity(
    granularity: Granularity, rate: float, recovery_s: float, probability: float
) -> None:
    """Bought as the program would, again while it is short. In the end scipy's distribution gives the GPUs in use."""
    terms = SpotTerms(interruptions_per_hour=rate, recovery_s=recovery_s, probability=probability)
    rule = policy(commitments=("spot",), spot=terms, granularity=granularity)
    instance = 8 if granularity is Granularity.NODE else 1
    rounds = []
    for needed in (1, 3, 8, 16, 18, 100, 333):
        shares: dict[str, float] = {}
        attempt = 0
        while True:
            supply = build_supply(["h100-sxm"], rule, limits(), DB, spot_shares=shares)
            (way,) = only(supply).purchases
            gpus = way.block * math.ceil(needed / way.usable_share / way.block - 1e-9)
            short = spot_shortfalls({"h100-sxm": {way.name: (float(gpus), 0.0)}}, supply, rule)
            if not short:
                break
            assert short["h100-sxm"] < way.usable_share
            shares, attempt = short, attempt + 1
            assert attempt < 30
        rounds.append(attempt)
        up = math.ceil(needed / instance)
        assert binom.sf(up - 1, gpus // instance, spot_availability(terms)) >= probability
    assert probability < 0.95 or max(rounds) > 0


def test_units_take_gpus_power_and_emissions() -> None:
    """By hand: (8 x 700 W + 4 x 500 W of one's own) x PUE 1.25 = 9.5 kW; 0.2 kg/kWh makes 1.9 kg/h."""
    rule = policy(owned={"l4": OwnedGpus(capex_usd_per_gpu=1.0, watts=500.0)})
    bound = limits(power_kw=100.0, pue=1.25, co2_kg_per_hour=10.0, co2_kg_per_kwh=0.2)
    unit = resource_use({"h100-sxm": 8, "l4": 4, "a10": 0}, DB.skus, bound, rule)
    assert unit == {"h100-sxm": 8.0, "l4": 4.0, "power_kw": pytest.approx(9.5), "co2_kg_per_h": pytest.approx(1.9)}
    assert resource_use({"trainium2": 2}, DB.skus, limits(), rule) == {"trainium2": 2.0}
    resources = {r.name for r in build_supply(["h100-sxm", "l4"], rule, bound, DB).resources}
    assert set(unit) == resources


def test_switching_costs_only_what_goes_beyond_today() -> None:
    """4 H100 run today; 8766 USD for each further one over a year are 1 USD/h: fleets of 3, 4, 6 cost 0, 0, 2 more."""
    bound = limits(existing={"h100-sxm": 4}, switching_usd_per_gpu=8766.0)
    supply = build_supply(["h100-sxm", "l4"], policy(), bound, DB)
    assert resource_use({"h100-sxm": 6}, DB.skus, bound, policy()) == {"h100-sxm": 6.0, "h100-sxm switching": 6.0}
    switching = only(supply, switching_resource("h100-sxm"))
    assert [cheapest_cover(switching, gpus) for gpus in (3, 4, 6)] == [0.0, 0.0, 2.0]
    assert cheapest_cover(only(supply, switching_resource("l4")), 2) == 2.0  # none of them runs today
    assert switching.group == ""  # it is no SKU of its own
    assert all(way.committed for way in switching.purchases)  # paid once, for the largest fleet


def test_costs_add_up_over_periods() -> None:
    """By hand: 8 reserved all day at 4.25; 2 more on demand at 6 for 6 of 24 h: 34 + 2 x 6 / 4 = 37 USD/h."""
    rule = policy(commitments=("on_demand", "reserved_1yr"))
    supply = build_supply(["b200-sxm"], rule, limits(), DB)
    periods = (Period(name="day", hours=6.0), Period(name="night", hours=18.0))
    bought = {"b200-sxm": {"reserved_1yr": (8.0, 8.0), "on_demand": (2.0, 0.0)}}
    cost = supply_cost(bought, supply, periods)
    assert sum(line.usd_per_hour for line in cost) == pytest.approx(37.0, rel=1e-12)
    assert {line.resource for line in cost} == {"b200-sxm"}
    day = {line.purchase: line for line in cost}["on_demand"]
    assert day.usd_per_hour == pytest.approx(3.0)
    assert isinstance(day.origin, Price)
    assert day.origin.source_url.startswith("https://")
    (alone,) = supply_cost({"b200-sxm": {"reserved_1yr": (8.0,)}}, supply, (Period(name="always"),))
    assert alone.usd_per_hour * 8760 == pytest.approx(297_840.0)  # Qubrid's price per 8-GPU server and year


def test_every_price_of_a_supply_is_cited_and_every_purchase_has_one() -> None:
    """Over the whole database and every way of buying: nothing is bought at a price without source and date."""
    ways = tuple(sorted({price.commitment for price in DB.prices}))
    owned = {"h20": OwnedGpus(capex_usd_per_gpu=2e4)}
    for granularity in Granularity:
        rule = policy(commitments=ways, spot=SPOT, owned=owned, granularity=granularity)
        supply = build_supply(DB.skus, rule, limits(), DB)
        purchases = {(r.name, p.name): p for r in supply.resources for p in r.purchases}
        assert set(purchases) == set(supply.prices)
        for key, origin in supply.prices.items():
            assert isinstance(origin, OwnedGpus) or (
                is_cited(origin) and purchases[key].usd_per_hour == origin.usd_per_gpu_hour
            )
        assert {r.name for r in supply.resources} == set(supply.cheapest) == set(DB.skus) - set(supply.unavailable)
        assert min(supply.cheapest.values()) > 0.0


DAY_AND_NIGHT = (Period(name="day", hours=6.0), Period(name="night", hours=18.0))


def planned(rule: PricePolicy, bound: FleetLimits, shares: dict[str, float] | None = None) -> tuple[Allocation, Supply]:
    """Least cost of 20 requests/s by day and 7 by night on pools of 2 H100 (5/s) or 4 L4 (1.2/s)."""
    supply = build_supply(["h100-sxm", "l4"], rule, bound, DB, spot_shares=shares)
    problem = FleetProblem(
        slices=(Slice(name="chat", demand_per_s=(20.0, 7.0)),),
        periods=DAY_AND_NIGHT,
        units=tuple(
            Unit(name=sku, rates_per_s={"chat": rate}, takes=resource_use({sku: gpus}, DB.skus, bound, rule))
            for sku, gpus, rate in (("h100-sxm", 2, 5.0), ("l4", 4, 1.2))
            if sku not in supply.unavailable
        ),
        resources=supply.resources,
        max_groups=bound.skus_at_most,
    )
    return solve(problem, Objective.MIN_COST), supply


@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        ({}, {}),
        (
            {"commitments": ("on_demand", "reserved")},
            {"quotas": (Quota(sku="h100-sxm", gpus=6, commitment="reserved"),)},
        ),
        ({"granularity": Granularity.NODE}, {"pinned": {"l4": 9}, "power_kw": 9.0, "pue": 1.3}),
        ({"commitments": ("on_demand", "spot"), "spot": SPOT}, {"gpus": {"h100-sxm": 6}}),
        ({"owned": {"h100-sxm": OwnedGpus(capex_usd_per_gpu=3e4, count=5)}}, {"skus_at_most": 1}),
        (
            {},
            {"existing": {"h100-sxm": 6}, "switching_usd_per_gpu": 5000.0, "co2_kg_per_hour": 9, "co2_kg_per_kwh": 0.4},
        ),
    ],
)
def test_costs_by_purchase_are_the_objective_to_the_cent(rules: dict[str, Any], bounds: dict[str, Any]) -> None:
    answer, supply = planned(policy(**rules), limits(**bounds))
    assert answer.status is SolveStatus.OPTIMAL
    usd_per_hour = sum(line.usd_per_hour for line in supply_cost(answer.bought, supply, DAY_AND_NIGHT))
    assert usd_per_hour == pytest.approx(answer.cost_usd_per_hour - answer.starts_usd_per_hour, abs=1e-9)
    assert usd_per_hour == pytest.approx(answer.objective, abs=1e-9)


def test_a_tighter_limit_never_lowers_the_optimum() -> None:
    """Limits of every kind, tightened step by step: the least cost of the program never falls, and rises at last."""
    reserved = policy(commitments=("on_demand", "reserved"))
    for steps in (
        [limits(gpus={"h100-sxm": gpus}) for gpus in (8, 6, 3, 0)],
        [limits(quotas=(Quota(sku="h100-sxm", gpus=gpus, commitment="reserved"),)) for gpus in (8, 4, 2, 0)],
        [limits(power_kw=kilowatts) for kilowatts in (10.0, 5.5, 5.0)],
        [limits(pinned={"l4": gpus}) for gpus in (0, 8, 30)],
        [limits(existing={"h100-sxm": gpus}, switching_usd_per_gpu=9000.0) for gpus in (8, 4, 0)],
    ):
        costs = [planned(reserved, bound)[0].cost_usd_per_hour for bound in steps]
        assert all(after >= before - 1e-9 for before, after in itertools.pairwise(costs))
        assert costs[-1] > costs[0] + 1e-9


def test_switching_is_paid_for_the_largest_fleet_only() -> None:
    """4 pools of 2 H100 by day against 6 GPUs today: 2 new ones at 8766 USD over a year, 1 USD/h each."""
    bound = limits(existing={"h100-sxm": 6}, switching_usd_per_gpu=8766.0, forbidden=("l4",))
    answer, supply = planned(policy(), bound)
    purchases = supply_cost(answer.bought, supply, DAY_AND_NIGHT)
    switching = sum(line.usd_per_hour for line in purchases if line.resource == "h100-sxm switching")
    assert switching == pytest.approx(2.0)
    without, _ = planned(policy(), limits(forbidden=("l4",)))
    assert answer.cost_usd_per_hour - without.cost_usd_per_hour == pytest.approx(2.0)
