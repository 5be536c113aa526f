"""Areas of the world against the countries in them, and what is said of sellers whose regions nobody listed."""

from __future__ import annotations

import pytest

from hardware_db import (
    ANYWHERE,
    HardwareDb,
    OwnHardware,
    area_called,
    area_names,
    listed_prices,
    regions_in,
    with_own_hardware,
)
from planner.core import UnknownNameError
from planner.supply import region_notes
from tests.markets import DB, make_price, policy

HERE = (
    make_price(provider="GCP", region="europe-west4", usd_per_gpu_hour=9.0),
    make_price(provider="GCP", region="europe-west2", usd_per_gpu_hour=8.0),
    make_price(provider="GCP", region="us-east4", usd_per_gpu_hour=1.0),
    make_price(provider="Azure", region="moonbase", usd_per_gpu_hour=1.0),
    make_price(provider="Nebius", region="eu-north1", sku="l4", usd_per_gpu_hour=1.0),
    make_price(provider="Nebius", region="all", usd_per_gpu_hour=3.0),
    make_price(provider="Vast", region="us-alabama", sku="l4", usd_per_gpu_hour=1.0),
    make_price(provider="Vast", region="all", usd_per_gpu_hour=0.5),
    make_price(provider="Hyperstack", region="all", usd_per_gpu_hour=2.0),
    make_price(provider="Lambda", region="all", usd_per_gpu_hour=0.5),
)
MARKET = HardwareDb(skus=DB.skus, prices=HERE, engines={}, regions=DB.regions)


def sold_in(region: str) -> set[tuple[str, str]]:
    return {(price.provider, price.region) for price in listed_prices(MARKET, "h100-sxm", region=region)}


def test_every_region_of_the_price_list_lies_somewhere_or_says_nothing() -> None:
    listed = {(price.provider, price.region) for price in DB.prices if price.region not in ANYWHERE}
    assert listed - {(place.provider, place.region) for place in DB.regions} == {("AWS", "unclear")}
    named = {place.region.split("-")[0] for place in DB.regions if place.continent == "europe"}
    assert named >= {"europe", "eu"}
    assert not {place.region for place in DB.regions if place.continent != "europe"} & {"europe", "eu"}


def test_an_area_has_the_sellers_known_to_be_there_and_the_union_leaves_out_london() -> None:
    """Nebius and Hyperstack list prices for all their regions, and these SKUs by region; nobody says so of Lambda."""
    assert sold_in("us") == {("GCP", "us-east4"), ("Hyperstack", "all")}
    europe = {("GCP", "europe-west4"), ("GCP", "europe-west2"), ("Nebius", "all")}
    assert sold_in("europe") == sold_in("Europe") == europe
    assert sold_in("EU") == europe - {("GCP", "europe-west2")}
    assert sold_in("uk") == {("GCP", "europe-west2")}
    assert sold_in("europe-west4") == {("GCP", "europe-west4")}, "a region of a provider means that provider"
    assert sold_in("CANADA-1") == {("Hyperstack", "all")}, "no price names it, the list of its GPUs does"


def test_every_sku_that_is_known_somewhere_is_a_sku() -> None:
    assert {sku for place in DB.regions for sku in place.skus} <= set(DB.skus)


def test_an_area_is_found_however_it_is_written() -> None:
    for name, area in (("North America", "north america"), ("north_america", "north america"), ("USA", "us")):
        assert area_called(DB, name) == area
        assert regions_in(DB, name) >= regions_in(DB, area) > set()
    assert set(area_names(DB)) == {"asia", "eu", "europe", "north america", "uk", "us"}


def test_an_unknown_region_is_told_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match=r"prices\.region = 'europ': unknown name\. Fix: .*europe"):
        listed_prices(DB, "h100-sxm", region="europ")
    with pytest.raises(UnknownNameError, match="europe-west4"):
        listed_prices(DB, "h100-sxm", region="europe-west-4")


def test_sellers_that_are_not_known_to_be_there_are_named_and_left_out() -> None:
    (note,) = region_notes(["h100-sxm"], policy(region="eu"), MARKET)
    assert note == (
        "prices.region=eu: h100-sxm is known to be there at GCP, Nebius; left out: Azure, Hyperstack, Lambda, Vast"
    )
    (none,) = region_notes(["l4"], policy(region="asia"), MARKET)
    assert none == "prices.region=asia: nobody is known to have l4 there; left out: Nebius, Vast"
    assert region_notes(["h100-sxm"], policy(), MARKET) == ()
    assert region_notes(["h100-sxm"], policy(region="europe-west4", provider="GCP"), MARKET) == ()


def test_a_price_list_of_ones_own_holds_wherever_one_asks() -> None:
    own = make_price(provider="our contract", region="all", usd_per_gpu_hour=1.5)
    market = with_own_hardware(MARKET, OwnHardware(prices=(own,)))
    assert own in listed_prices(market, "h100-sxm", region="eu")
