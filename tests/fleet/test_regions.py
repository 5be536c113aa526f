"""Plans over regions: the program against brute force, plans against plans of one place, answers to what cannot be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import yaml

from hardware_db import HardwareDb, load_hardware
from planner.core import InputError, Metric
from planner.fleet import (
    PlanRequest,
    RegionsPlan,
    plan,
    plan_regions,
    region_program,
)
from planner.fleet.columns import SliceRate
from planner.optimizer import Purchase, Resource
from planner.scenario import load_scenario
from planner.supply import Site, SiteSupply, Supply
from planner.traffic import AreaDemand, DemandProfile, load_profile, network_time
from planner.workload import LatencyDistribution, Sessions, TokenLengths, Workload
from tests.builders import YAML_LOADER
from tests.places import DOCS

SMALL = (
    "search.skus=[h100-sxm]",
    "search.modes=[mixed]",
    "search.tp=[4]",
    "search.max_running_requests=[128]",
    "search.max_batched_tokens=[4096]",
    "confidence=0.5",
    "workload.scv=1",
)
AREAS = ("us-east", "europe", "japan")
NIGHT_AND_DAY = DemandProfile(factors=(0.5,) * 12 + (1.5,) * 12)


def small(areas: Mapping[str, AreaDemand], *more: str) -> PlanRequest:
    request = load_scenario("chat-llama-70b", [*SMALL, *more])
    return request.model_copy(update={"areas": dict(areas)})


def demand(**changes: object) -> dict[str, AreaDemand]:
    return {name: AreaDemand.model_validate({"rate_per_s": 4.0, "hours": NIGHT_AND_DAY, **changes}) for name in AREAS}


# --- the program ------------------------------------------------------------------------------------------------------


class MadeUp:
    """Three sites, two classes and four kinds of hours drawn by chance; pools of one and two replicas."""

    def __init__(self, seed: int, committed: bool) -> None:
        draw = np.random.default_rng(seed)
        self.classes = {
            site: {area: (int(draw.integers(1, 3)),) for area in AREAS if draw.random() < 0.8} for site in range(3)
        }
        self.classes[0] = dict.fromkeys(AREAS, (2,))  # so that there is an answer
        self.usd = [float(usd) for usd in draw.integers(4, 9, 3)]
        self.rates = {(1,): (1.0, 2.3), (2,): (0.8, 1.9)}  # of one and two replicas: two carry more than twice as much
        self.demand = np.repeat(draw.uniform(0.2, 1.6, (3, 4)), 6, axis=1)
        self.committed = committed

    def world(self) -> region_program.World:
        request, hardware = small(demand()), load_hardware()
        world = region_program.World(request, hardware, lambda _: None)
        like = world.pools((2,))[0]
        for own, rates in self.rates.items():
            world._pools[own] = [
                replace(like, surviving=size, rates={"": SliceRate(rate, is_exact=True)})
                for size, rate in zip((1, 2), rates, strict=True)
            ]
        self.gpus = like.family.gpus
        world.__dict__["rates_per_s"] = dict(zip(AREAS, self.demand, strict=True))
        world.__dict__["places"] = [self.place(site) for site in range(3)]
        return world

    def place(self, site: int) -> region_program.Place:
        bought = Purchase(name="any", usd_per_hour=self.usd[site] / self.gpus, committed=self.committed)
        resource = Resource(name="h100-sxm", purchases=(bought,))
        supply = Supply((resource,), {}, {"h100-sxm": bought.usd_per_hour}, frozenset(), {})
        where = Site(provider="made up", region=str(site))
        return region_program.Place(
            where, SiteSupply(where.name, supply, {"h100-sxm": "x"}, {}, {}), self.classes[site]
        )

    def carried(self, own: tuple[int, ...], replicas: int) -> float:
        one, two = self.rates[own]
        return (replicas // 2) * two + (replicas % 2) * one

    def least_usd_per_hour(self, shared: bool = False) -> float:
        """By trying every number of replicas of each class at each site, in each hour.

        What is committed is held for each class, or shared by those of a site.

        Shares are continuous, so an hour is served if no set of areas asks for more than the pools that serve any of
        them carry (Hall's condition for transport).
        """
        pools = [(site, own) for site in range(3) for own in dict.fromkeys(self.classes[site].values())]
        areas_of = [{area for area, needed in self.classes[site].items() if needed[0] <= own[0]} for site, own in pools]
        most = 5
        held = np.array(list(itertools.product(range(most), repeat=len(pools))))
        carries = np.array([[self.carried(own, count) for count in range(most)] for _, own in pools])
        rates = np.stack([carries[place][held[:, place]] for place in range(len(pools))], axis=1)
        of_site = [[site == number for site, _ in pools] for number in range(3)]
        at_site = np.stack([held[:, own].sum(axis=1) for own in of_site], axis=1)
        by_hour, served_in = [], []
        for hour in range(0, 24, 6):
            served = np.ones(len(held), dtype=bool)
            for count in (1, 2, 3):
                for group in itertools.combinations(range(3), count):
                    names = {AREAS[index] for index in group}
                    useful = [place for place, areas in enumerate(areas_of) if areas & names]
                    served &= rates[:, useful].sum(axis=1) >= self.demand[list(group), hour].sum() - 1e-9
            by_hour.append(at_site[served])
            served_in.append(served)
        usd = np.array(self.usd)
        if not self.committed:
            return float(np.mean([(sites @ usd).min() for sites in by_hour]))
        if not shared:
            return float((at_site[np.logical_and.reduce(served_in)] @ usd).min())
        triples = itertools.product(range(2 * most), repeat=3)
        enough = (triple for triple in triples if all((sites <= triple).all(axis=1).any() for sites in by_hour))
        return min(float(np.dot(triple, usd)) for triple in enough)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_program_costs_what_brute_force_finds(seed: int, committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_program, "COARSE_GAP", 1e-6)
    made_up = MadeUp(seed, committed)
    world = made_up.world()
    found = world.routes(world.places, AREAS)
    assert found is not None
    assert found.usd_per_hour == pytest.approx(made_up.least_usd_per_hour(), rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_a_site_more_is_never_dearer_and_all_is_served(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_program, "COARSE_GAP", 1e-6)
    world = MadeUp(seed, committed=False).world()
    costs = []
    for count in (1, 2, 3):
        found = world.routes(world.places[:count], AREAS)
        assert found is not None
        costs.append(found.usd_per_hour)
        for area, rates in world.rates_per_s.items():
            served = sum(by_area[area] for by_area in found.rates_per_s.values() if area in by_area)
            assert np.asarray(served) == pytest.approx(rates)
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_residency_is_never_cheaper(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_program, "COARSE_GAP", 1e-6)
    world = MadeUp(seed, committed=False).world()
    free = world.routes(world.places, AREAS)
    at_home = [
        replace(place, classes={area: own for area, own in place.classes.items() if number == 0 or area != "japan"})
        for number, place in enumerate(world.places)
    ]
    bound = world.routes(at_home, AREAS)
    assert free is not None
    assert bound is not None
    assert bound.usd_per_hour >= free.usd_per_hour * (1.0 - 1e-6)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> RegionsPlan:
    areas = demand()
    areas["europe"] = areas["europe"].model_copy(update={"residency": ("eu",)})
    return plan_regions(small(areas, "slo.0.threshold_s=0.8"), simulate=False)


def test_every_request_is_served_once(found: RegionsPlan) -> None:
    for area in AREAS:
        shares = [fleet.shares[area] for fleet in found.fleets if area in fleet.shares]
        assert np.sum(shares, axis=0) == pytest.approx(np.ones(24))
        assert sum(one.share for one in found.latencies if one.area == area) == pytest.approx(1.0)


def test_targets_hold_at_the_users_by_draws(found: RegionsPlan) -> None:
    """A request's time on the way, drawn, added to a drawn time in the pool: within 2 % of what the plan says."""
    draw, hardware = np.random.default_rng(1), load_hardware()
    trips = {(one.provider, one.region): one.round_trips_s for one in hardware.distances}
    served = [(fleet, area) for fleet in found.fleets for area in fleet.shares]
    for one, (fleet, area) in zip(found.latencies, served, strict=True):
        assert (one.site, one.area) == (fleet.site.name, area)
        pool = fleet.plan.latency(Metric.TTFT)
        pool_s = draw.choice(pool.support_s, 200_000, p=pool.weights)
        delay_s = trips[fleet.site.provider, fleet.site.region][one.area] + draw.exponential(0.020, pool_s.size)
        way = network_time(trips[fleet.site.provider, fleet.site.region][one.area], 0.020)
        both = LatencyDistribution.independent_sum(pool, way)
        for percentile in (0.5, 0.9, 0.99):
            assert both.quantile_s(percentile) == pytest.approx(np.quantile(pool_s + delay_s, percentile), rel=0.02)
        assert one.at_user_s == pytest.approx(both.quantile_s(one.target.percentile))
        assert one.met
        assert one.pool_s <= one.target.threshold_s - trips[fleet.site.provider, fleet.site.region][one.area]


def test_residency_keeps_requests_where_they_must_stay(found: RegionsPlan) -> None:
    places = {(place.provider, place.region): place.country for place in load_hardware().regions}
    at = {places[fleet.site.provider, fleet.site.region] for fleet in found.fleets if "europe" in fleet.shares}
    assert at <= {"FI", "FR", "DE", "NL", "IE", "SE", "BE", "PL"}


def test_other_ways_cost_no_less(found: RegionsPlan) -> None:
    """The ties by which regions are given up are `search.simplicity`; all are solved to the same gap."""
    *ways, nowhere_far = found.others
    slack = (1.0 + found.request.search.simplicity) * (1.0 + region_program.COARSE_GAP)
    assert all(ways[0].usd_per_hour <= slack * one.usd_per_hour for one in ways)
    assert all(nowhere_far.usd_per_hour <= (1.0 + region_program.COARSE_GAP) * one.usd_per_hour for one in ways)


def test_transfer_out_is_what_a_region_sends_at_its_price(found: RegionsPlan) -> None:
    """326 bytes a token, prices of the list: Hyperstack's and Nebius' are 0, of sellers without one the dearest."""
    prices = {(one.provider, one.region): one.out_usd_per_gb for one in load_hardware().regions}
    dearest = max(price for price in prices.values() if price is not None)
    tokens = found.request.workload.lengths.mean_output
    for fleet in found.fleets:
        rate = sum(np.mean(np.array(fleet.shares[area]) * found.rates_per_s[area]) for area in fleet.shares)
        price = prices[fleet.site.provider, fleet.site.region]
        sent_gb = 3600.0 * rate * tokens * 326 / 1e9
        assert fleet.out_usd_per_hour == pytest.approx(sent_gb * (dearest if price is None else price))
        assert fleet.plan.cost is not None
        assert fleet.usd_per_hour == pytest.approx(fleet.plan.cost.usd_per_hour + fleet.out_usd_per_hour)


def test_a_lost_region_is_carried_by_none_where_it_is_the_only_one(found: RegionsPlan) -> None:
    for loss in found.losses:
        assert loss.more_usd_per_hour >= 0.0
        assert all(0.0 <= share <= 1.0 + 1e-9 for share in loss.kept.values())
        if len(found.losses) == 1:
            assert not loss.survives


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("long prompts", ()),
        (
            "voice",
            (
                "workload.rate_per_s=45",
                "workload.lengths={input_tokens: 500, output_tokens: 100}",
                "slo.0.threshold_s=0.35",
            ),
        ),
    ],
)
def test_the_guide_says_what_following_the_sun_saves(row: str, changes: tuple[str, ...]) -> None:
    """Reserved GPUs serve one another's peaks where TTFT has room for the way; figures as in the guide."""
    text = (DOCS / "how-to" / "serve-the-world.md").read_text(encoding="utf-8")
    content = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "follow-the-sun" in block)
    answer = plan_regions(load_scenario(yaml.load(content, YAML_LOADER), changes), simulate=False)
    own, _, each, _, nowhere_far = (one.usd_per_hour for one in answer.others)
    cells = next(line for line in text.splitlines() if line.startswith(f"| {row} |")).split(" | ")
    assert f"{own:.2f}" == cells[1].split(",")[0]
    assert (f"{each:.2f}", f"{nowhere_far:.2f}") == (cells[2], cells[4].removesuffix(" |"))
    assert f"{100 * (1 - own / each):.0f} %" == cells[3]
    assert answer.usd_per_hour <= each * (1.0 + region_program.COARSE_GAP)
    assert len(answer.fleets) == (1 if row == "long prompts" else 3)


def test_no_way_that_is_known_is_cheaper_however_far_the_program_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no work for the program of all areas, what each area costs for itself is not given away."""
    monkeypatch.setattr(region_program, "WORK", 1.0)
    areas = demand(hours=load_profile("office"))
    answer = plan_regions(small(areas, "slo.0.threshold_s=0.8", "prices.commitments=[reserved]"), simulate=False)
    own, one_region, each, any_regions, _ = (one.usd_per_hour for one in answer.others)
    assert any_regions <= min(one_region, each) * (1.0 + 1e-9)
    assert own <= any_regions * (1.0 + answer.request.search.simplicity) * (1.0 + 1e-9)


def at_no_distance(hardware: HardwareDb) -> HardwareDb:
    near = (
        one.model_copy(update={"round_trips_s": dict.fromkeys(one.round_trips_s, 0.0)}) for one in hardware.distances
    )
    return hardware.model_copy(update={"distances": tuple(near)})


def test_at_no_distance_and_one_price_it_is_the_plan_of_one_place() -> None:
    """The world is one place: one region, at the cost of a plan of the summed demand."""
    hardware = at_no_distance(load_hardware())
    request = small(demand(access_ms=0.0), "prices.usd_per_gpu_hour.h100-sxm=2.0")
    world = plan_regions(request, hardware, simulate=False)
    (fleet,) = world.fleets
    together = np.mean([[np.roll(NIGHT_AND_DAY.factors, shift)] for shift in (5, -1, -9)], axis=0)[0]
    profile = DemandProfile(factors=tuple(together.tolist()))
    workload = request.workload.at_rate(12.0)
    one = request.model_copy(update={"areas": {}, "profile": profile, "workload": workload})
    in_one_place = plan(one, hardware, simulate=False, alternatives=False)
    assert in_one_place.cost is not None
    assert fleet.out_usd_per_hour == 0.0  # at one price of GPUs it stands where nothing is asked for what goes out
    assert fleet.usd_per_hour == pytest.approx(in_one_place.cost.usd_per_hour)
    assert world.losses[0].more_usd_per_hour == pytest.approx(0.0)
    assert not world.losses[0].survives


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_an_unknown_area_names_the_nearest() -> None:
    with pytest.raises(InputError, match="japan"):
        plan_regions(small({"japann": AreaDemand(rate_per_s=1.0)}))


def test_an_unknown_residency_names_the_nearest() -> None:
    with pytest.raises(InputError, match="europe"):
        plan_regions(small(demand(residency=["eurpe"])))


def test_a_target_of_an_area_needs_one_to_take_the_place_of() -> None:
    with pytest.raises(InputError, match="ttft_s"):
        plan_regions(small(demand(ttft_s=0.5), "slo.0.metric=e2e"))


def test_limits_of_a_whole_fleet_are_refused() -> None:
    with pytest.raises(InputError, match=r"limits\.budget_usd_per_hour"):
        plan_regions(small(demand(), "limits.budget_usd_per_hour=100"))


def test_residency_that_no_seller_satisfies_names_the_cheapest_relaxation() -> None:
    answer = plan_regions(small({"japan": AreaDemand(rate_per_s=2.0, residency=("asia",))}), simulate=False)
    assert not answer.feasible
    (reason,) = answer.diagnosis
    assert "demand.japan.residency" in reason
    assert "USD/h" in reason


def test_a_target_shorter_than_the_way_names_the_area_and_the_least_ttft() -> None:
    areas = {"australia": AreaDemand(rate_per_s=2.0)}
    answer = plan_regions(small(areas, "slo.0.threshold_s=0.25"), simulate=False)
    (reason,) = answer.diagnosis
    assert "demand.australia" in reason
    least_ms = float(reason.rsplit(" ms", 1)[0].rsplit(" ", 1)[1])
    assert least_ms > 250.0
    # At that TTFT and a little more, there is a plan: the class of a distance is rounded up by as much as a step.
    enough_s = (least_ms / 1000.0 + region_program.DISTANCE_STEP_S) * 1.02
    assert plan_regions(small(areas, f"slo.0.threshold_s={enough_s}"), simulate=False).feasible


def test_a_target_of_every_area_is_the_target_of_all() -> None:
    """The same threshold said of each area leaves the same in every region, to the rounding of classes."""
    world = region_program.World(small(demand(), "slo.0.threshold_s=0.8"), load_hardware(), lambda _: None)
    each = region_program.World(small(demand(ttft_s=0.8), "slo.0.threshold_s=5"), load_hardware(), lambda _: None)
    for one, other in zip(world.places, each.places, strict=True):
        assert one.classes.keys() == other.classes.keys()
        for area, (steps,) in one.classes.items():
            left_s, same_s = (
                0.8 - steps * region_program.DISTANCE_STEP_S,
                5.0 - other.classes[area][0] * region_program.DISTANCE_STEP_S,
            )
            assert left_s == pytest.approx(same_s, abs=region_program.DISTANCE_STEP_S)


def test_power_and_co2_are_those_of_the_gpus_in_the_grid_of_the_region(found: RegionsPlan) -> None:
    """kW = GPUs x TDP x PUE / 1000, times kg a kWh of the tables of the region; unknown where these say nothing."""
    places = {(place.provider, place.region): place for place in load_hardware().regions}
    for fleet in found.fleets:
        place = places[fleet.site.provider, fleet.site.region]
        gpus = np.mean([period.gpus.get("h100-sxm", 0.0) for period in fleet.plan.schedule])
        assert fleet.power_kw == pytest.approx(gpus * 0.7 * (place.pue or 1.0))  # 700 W, NVIDIA's data sheet
        grid = place.kg_co2_per_kwh
        assert fleet.co2_kg_per_hour == (None if grid is None else pytest.approx((fleet.power_kw or 0.0) * grid))


def test_what_is_left_of_a_lost_region_is_what_the_others_carry() -> None:
    """GPUs enough for all, for none, and pools of two replicas at the only site left: their rate over the demand."""
    made_up = MadeUp(0, committed=False)
    world = made_up.world()
    place = world.places[0]  # every area is of class 2 there
    largest = float(made_up.demand.sum(axis=0).max())
    everything = world.kept([place], {place.site: {"h100-sxm": 1000.0}}).shares
    nothing = world.kept([place], {place.site: {"h100-sxm": 0.0}}).shares
    assert min(everything.values()) == pytest.approx(1.0)
    assert max(nothing.values()) == 0.0
    some = world.kept([place], {place.site: {"h100-sxm": 2.0 * made_up.gpus}}).shares
    carried = sum(share * rates.max() for share, rates in zip(some.values(), made_up.demand, strict=True))
    assert carried <= max(1.9, largest) + 1e-6
    assert min(some.values()) < 1.0 if largest > 1.9 else min(some.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_held_besides_is_the_least_that_carries_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is held it is a fleet that stands all day, as brute force finds it; beside enough it is nothing."""
    monkeypatch.setattr(region_program, "COARSE_GAP", 1e-6)
    made_up = MadeUp(seed, committed=True)
    world = made_up.world()
    least = made_up.least_usd_per_hour(shared=True)
    assert world.spare_usd_per_hour(world.places, {}) == pytest.approx(least, rel=1e-5)
    enough = {place.site: {"h100-sxm": 1000.0} for place in world.places}
    assert world.spare_usd_per_hour(world.places, enough) == pytest.approx(0.0)


def test_sessions_that_move_are_those_between_two_requests() -> None:
    """Drawn: sessions of four requests that start at random, and what those who wait at the turn of an hour send next.

    Of turn j the prompt is 100 j new tokens and 50 (j - 1) answered; a request has 100 new ones.
    """
    request = small(demand(), "search.prefix_cache=[true]", "slo.0.threshold_s=2", "slo.1.threshold_s=0.05")
    sessions = Sessions(turns=4, turn_count="fixed", per_turn=TokenLengths.constant(100, 50), think_time_s=60)
    workload = Workload.of_sessions(1.0, sessions)
    world = region_program.World(request.model_copy(update={"workload": workload}), load_hardware(), lambda _: None)
    gap_s = 60.0 + 2.0 + 0.05 * 50.0  # a think time, and an answer as long as the targets allow
    starts_s = 3600.0 * np.random.default_rng(0).random(400_000)
    at_turn = np.floor((3600.0 - starts_s) / gap_s) + 2.0  # which request comes next
    prompts = np.where(at_turn <= 4.0, 100.0 * at_turn + 50.0 * (at_turn - 1.0), 0.0)
    requests_per_s = 4.0 * starts_s.size / 3600.0
    assert world.work_of_move == pytest.approx(prompts.sum() / 100.0 / requests_per_s, rel=0.02)
    half = world.rates_per_s["japan"] * np.repeat([0.0, 0.5], 12)
    moved_per_s = world.moved_per_s({"japan": half})
    assert np.flatnonzero(moved_per_s).tolist() == [12]
    assert moved_per_s[12] == pytest.approx(world.work_of_move / 3600.0 * half[12])


def test_sessions_of_users_who_are_all_asleep_do_not_move() -> None:
    """Of an area that asks for nothing at night and is served from two places by halves, none moves at dawn."""
    request = small(demand(hours=load_profile("office")), "search.prefix_cache=[true]", "slo.0.threshold_s=2")
    sessions = Sessions(turns=4, turn_count="fixed", per_turn=TokenLengths.constant(100, 50), think_time_s=60)
    workload = Workload.of_sessions(1.0, sessions)
    world = region_program.World(request.model_copy(update={"workload": workload}), load_hardware(), lambda _: None)
    assert world.moved_per_s({"japan": 0.5 * world.rates_per_s["japan"]}).tolist() == [0.0] * 24
    by_day = world.rates_per_s["japan"] * (np.arange(24) < 6)  # 9:00 to 15:00 there
    assert np.flatnonzero(world.moved_per_s({"japan": by_day})).tolist() == [0]


def test_what_is_said_to_carry_everybody_does_so_in_simulation() -> None:
    """The fewest GPUs of two regions that are said to carry all areas in every hour; twice the demand fails on them."""
    world = region_program.World(small(demand(rate_per_s=4.4)), load_hardware(), lambda _: None)
    sites = {Site(provider="GCP", region=name) for name in ("us-central1", "europe-west4")}
    places = [place for place in world.places if place.site in sites]
    gpus, kept = 0.0, region_program.Kept(dict.fromkeys(AREAS, 0.0))
    while not kept.is_all:
        gpus += 4.0
        kept = world.kept(places, {site: {"h100-sxm": gpus} for site in sites})
    assert sum(sum(rates.values()) for _, _, rates in kept.pools) == pytest.approx(world.peak_per_s, rel=1e-3)
    assert world.holds(kept)
    busier = [(own, pool, {area: 2.0 * rate for area, rate in rates.items()}) for own, pool, rates in kept.pools]
    assert not world.holds(replace(kept, pools=tuple(busier)))


def test_what_survives_survives_with_longer_waits_too(found: RegionsPlan) -> None:
    assert all(loss.survives_degraded for loss in found.losses if loss.survives)
