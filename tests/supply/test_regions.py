"""Areas of the world against the countries in them, and what is said of sellers whose regions nobody listed."""

from __future__ import annotations

import pytest

from hardware_db import ANYWHERE, HardwareDb, area_called, area_names, listed_prices, regions_in
from planner.core import UnknownNameError
from planner.supply import region_notes, region_warnings
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


def test_an_area_has_the_regions_that_lie_in_it_and_the_union_leaves_out_london() -> None:
    assert sold_in("us") == {("GCP", "us-east4"), ("Vast", "all"), ("Hyperstack", "all")}
    europe = {("GCP", "europe-west4"), ("GCP", "europe-west2"), ("Nebius", "all"), ("Hyperstack", "all")}
    assert sold_in("europe") == sold_in("Europe") == europe
    assert sold_in("EU") == europe - {("GCP", "europe-west2")}
    assert sold_in("uk") == {("GCP", "europe-west2"), ("Hyperstack", "all")}
    assert sold_in("europe-west4") == {("GCP", "europe-west4")}, "a region of a provider means that provider"


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


def test_sellers_without_regions_are_named_whether_they_count_or_not() -> None:
    (counted, left_out) = region_notes(["h100-sxm"], policy(region="europe"), MARKET)
    assert "of Hyperstack one price is listed for all regions; it counts" in counted
    assert left_out.endswith("not known where they lie: Azure moonbase")
    (note,) = region_notes(["h100-sxm"], policy(region="europe-west4"), MARKET)
    assert "left out are Hyperstack" in note and note.endswith("prices.region=europe counts them")
    assert region_notes(["h100-sxm"], policy(), MARKET) == ()
    assert region_notes(["h100-sxm"], policy(region="europe-west4", provider="GCP"), MARKET) == ()


def test_only_a_purchase_from_such_a_seller_is_warned_of() -> None:
    bought = [price for price in HERE if price.provider in ("Hyperstack", "Nebius", "GCP")]
    assert region_warnings(bought, policy(region="eu"), MARKET) == (
        "Hyperstack lists one price for all its regions: check that it has h100-sxm in eu",
    )
    assert region_warnings(bought, policy(), MARKET) == ()
