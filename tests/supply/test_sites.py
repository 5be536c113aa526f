"""Where GPUs are bought, against every provider and region taken by itself."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from hardware_db import HardwareDb, Price
from planner.core import InputError
from planner.supply import FleetLimits, Granularity, OwnedGpus, PricePolicy, SiteSupply, build_supply, site_supplies
from tests.markets import DB, db_with, limits, make_price, policy
from tests.supply.test_resources import cheapest_cover

SKUS = ("h100-sxm", "l4")


def sites_of(*prices: Price, rule: PricePolicy | None = None, **bounds: object) -> tuple[SiteSupply, ...]:
    return site_supplies(SKUS, rule or policy(granularity="instance"), limits(**bounds), db_with(*prices))


def cost_at(site: SiteSupply, wanted: dict[str, int]) -> float:
    """Least cost of so many GPUs of each SKU at a site."""
    by_name = {resource.name: resource for resource in site.supply.resources}
    if not wanted.keys() <= by_name.keys():
        return math.inf
    return math.fsum(cheapest_cover(by_name[sku], gpus) for sku, gpus in wanted.items())


def cheapest(sites: tuple[SiteSupply, ...], wanted: dict[str, int]) -> float:
    return min(cost_at(site, wanted) for site in sites)


def at_one_place(prices: list[Price], wanted: dict[str, int]) -> float:
    """The same from the price list: all GPUs of a provider, in one of its regions, one price for each SKU and block."""
    best = math.inf
    for provider, region in {(price.provider, price.region) for price in prices}:
        here = [p for p in prices if p.provider == provider and p.region in (region, "all")]
        total = 0.0
        for sku, gpus in wanted.items():
            sold = [(p.gpus_per_instance, p.usd_per_gpu_hour) for p in here if p.sku == sku]
            counts = [range(math.ceil(gpus / block) + 1) for block, _ in sold]
            total += min(
                (
                    sum(n * block * usd for n, (block, usd) in zip(numbers, sold, strict=True))
                    for numbers in itertools.product(*counts)
                    if sum(n * block for n, (block, _) in zip(numbers, sold, strict=True)) >= gpus
                ),
                default=math.inf,
            )
        best = min(best, total)
    return best


@pytest.mark.parametrize("sku", SKUS)
def test_a_fleet_spread_over_servers_has_as_many_gpus_of_its_sku_at_least(sku: str) -> None:
    site = sites_of(*(make_price(sku=each, gpus_per_instance=1) for each in SKUS))[0]
    at_least = {each.name: each.at_least for each in site.spread(DB.skus[sku], 3).supply.resources}
    assert at_least == {each: 3.0 * DB.skus[sku].node.gpus * (each == sku) for each in SKUS}


def random_prices(draw: random.Random, count: int = 7) -> list[Price]:
    places = [("P", "us"), ("P", "eu"), ("P", "all"), ("Q", "all"), ("R", "us")]
    offers = draw.sample(list(itertools.product(SKUS, places)), count)
    return [
        make_price(
            sku=sku,
            provider=provider,
            region=region,
            usd_per_gpu_hour=draw.choice([1.0, 1.5, 2.0, 3.0]),
            gpus_per_instance=draw.choice([1, 2, 4]),
        )
        for sku, (provider, region) in offers
    ]


def test_the_sites_that_are_kept_are_worth_all_of_them() -> None:
    """250 random markets: the cheapest place for some GPUs of two SKUs is the same by brute force."""
    draw = random.Random(5)
    found = 0
    for _ in range(250):
        prices = random_prices(draw)
        wanted = {sku: draw.randint(1, 5) for sku in SKUS}
        truth = at_one_place(prices, wanted)
        assert cheapest(sites_of(*prices), wanted) == pytest.approx(truth), prices
        found += math.isfinite(truth)
    assert found > 100


def test_a_restriction_never_makes_gpus_cheaper_nor_a_further_offer_dearer() -> None:
    draw = random.Random(6)
    for _ in range(100):
        prices = random_prices(draw)
        wanted = {sku: draw.randint(1, 5) for sku in SKUS}
        free = cheapest(sites_of(*prices), wanted)
        assert cheapest(sites_of(*prices[1:]), wanted) >= free - 1e-9
        for provider in {price.provider for price in prices}:
            rule = policy(granularity="instance", provider=provider)
            assert cheapest(sites_of(*prices, rule=rule), wanted) >= free - 1e-9
        several = policy(granularity="instance", providers_at_most=2)
        assert cheapest(sites_of(*prices, rule=several), wanted) <= free + 1e-9


def test_an_old_price_does_not_come_back_where_younger_providers_are_ruled_out() -> None:
    old = make_price(provider="Old", usd_per_gpu_hour=1.0, retrieved_on="2026-01-01")
    new = make_price(provider="New", usd_per_gpu_hour=2.0)
    assert [site.name for site in sites_of(old, new)] == ["New"]
    (nothing,) = sites_of(old, new, rule=policy(provider="Old"))
    assert not nothing.supply.cheapest
    assert [site.name for site in sites_of(old)] == ["Old"]


def test_small_instances_hold_small_replicas_only() -> None:
    """Of a provider that sells 1 and 8 GPUs, a replica of 4 needs the 8; a single GPU is bought singly."""
    small = make_price(instance_type="one", gpus_per_instance=1, gpus_together=1)
    large = make_price(instance_type="eight", gpus_per_instance=8, gpus_together=8, usd_per_gpu_hour=2.6)
    h100 = DB.skus["h100-sxm"]
    one, eight = sites_of(small, large)
    assert [one.holds(h100, gpus) for gpus in (1, 2, 8, 16)] == [True, False, False, False]
    assert [eight.holds(h100, gpus) for gpus in (1, 2, 8, 16)] == [True, True, True, False]  # no RDMA is stated
    assert (cost_at(one, {"h100-sxm": 3}), cost_at(eight, {"h100-sxm": 3})) == (3 * 2.5, 8 * 2.6)
    (pods,) = sites_of(make_price())  # sold per GPU, up to a server of them together
    assert pods.holds(h100, 8)
    (any_size,) = site_supplies(SKUS, policy(granularity=Granularity.GPU, provider="P"), FleetLimits(), db_with(small))
    assert any_size.holds(h100, 8)


def test_a_commitment_is_not_replaced_by_another() -> None:
    """GPUs on demand for less than Q's reserved ones still leave Q, who alone sells reserved ones."""
    rule = policy(granularity="instance", commitments=("on_demand", "reserved"))
    cheap = make_price(usd_per_gpu_hour=1.0)
    reserved = make_price(provider="Q", usd_per_gpu_hour=1.5, commitment="reserved")
    assert [site.name for site in sites_of(cheap, reserved, rule=rule)] == ["P", "Q"]


def test_the_network_of_an_instance_is_shared_by_its_gpus() -> None:
    """AWS's g6.12xlarge has 40 Gbit/s for its four L4."""
    price = make_price(provider="AWS", sku="l4", instance_type="g6.12xlarge", gpus_per_instance=4, gpus_together=4)
    market = HardwareDb(skus=DB.skus, prices=(price,), engines={}, instances=DB.instances)
    (site,) = site_supplies(["l4"], policy(granularity="instance"), limits(), market)
    assert site.networks["l4"].bytes_per_s_per_gpu == 40e9 / 8 / 4


def test_twelve_gpus_are_two_servers_of_eight() -> None:
    (site,) = sites_of(make_price(gpus_per_instance=8))
    assert cost_at(site, {"h100-sxm": 12}) == 16 * 2.5


def test_gpus_of_ones_own_go_with_every_site_and_stand_apart() -> None:
    rule = policy(owned={"l4": OwnedGpus(capex_usd_per_gpu=1e3, count=4)}, granularity="instance")
    sites = sites_of(make_price(provider="P"), make_price(provider="Q", sku="l4"), rule=rule)
    assert {site.name: dict(site.places) for site in sites} == {
        "P": {"h100-sxm": "P", "l4": "own"},
        "Q": {"l4": "Q"},
    }
    (home,) = sites_of(make_price(sku="a10"), rule=rule)
    assert (home.name, dict(home.places)) == ("", {"l4": "own"})


def test_pins_that_no_site_sells_together_are_refused() -> None:
    apart = (make_price(provider="P"), make_price(provider="Q", sku="l4"))
    with pytest.raises(InputError, match=r"^limits\.pinned = .*no one provider and region sells all of these"):
        sites_of(*apart, pinned={"h100-sxm": 1, "l4": 1})
    several = policy(granularity="instance", providers_at_most=2)
    (both, *_) = sites_of(*apart, rule=several, pinned={"h100-sxm": 1, "l4": 1})
    assert dict(both.places) == {"h100-sxm": "P", "l4": "Q"}


def test_the_sites_of_the_packaged_prices_are_few_and_lose_nothing() -> None:
    rule = PricePolicy(as_of="2026-11-21")
    skus = [sku for sku in DB.skus if sku in build_supply(DB.skus, rule, FleetLimits(), DB).cheapest]
    sites = site_supplies(skus, rule, FleetLimits(), DB)
    assert len(sites) < 30
    everywhere = build_supply(skus, rule, FleetLimits(), DB).cheapest
    for sku in skus:
        assert min(site.supply.cheapest.get(sku, math.inf) for site in sites) == everywhere[sku]
