"""Other purchase options and the range of listed prices, held against price lists and the engine."""

from __future__ import annotations

import pytest

import planner
from hardware_db import load_hardware
from planner.analysis import PurchaseAlternative, alternative_purchases, planned_offer, price_range, with_commitments
from planner.fleet import Plan, PlanRequest
from planner.supply import SpotTerms
from tests.builders import SMALL_CHAT

HARDWARE = load_hardware()


def request(*more: str) -> PlanRequest:
    return planner.load_scenario("chat-llama-70b", [*SMALL_CHAT, *more])


def theory(asked: PlanRequest) -> Plan:
    return planner.plan(asked, simulate=False, alternatives=False)


@pytest.fixture(scope="module")
def flat() -> Plan:
    return theory(request())


# --- prices -----------------------------------------------------------------------------------------------------------


def test_the_range_of_prices_scales_the_fleet_by_the_dearest_over_the_cheapest_listed_price(flat: Plan) -> None:
    found = price_range(flat, HARDWARE)
    assert found is not None and flat.cost is not None
    policy = flat.request.prices
    listed = [
        price.usd_per_gpu_hour
        for price in HARDWARE.prices
        if (price.sku, price.commitment) == ("h100-sxm", "on_demand")
        and price.confidence in ("medium", "high")
        and (policy.day - price.retrieved_on).days <= 180
    ]
    gpus = flat.gpus["h100-sxm"]
    assert found.lowest_usd_per_hour == pytest.approx(gpus * min(listed))
    assert found.highest_usd_per_hour == pytest.approx(gpus * max(listed))
    assert found.lowest_usd_per_hour == pytest.approx(flat.cost.usd_per_hour)  # the plan takes the cheapest
    assert found.usd_per_month[0] == pytest.approx(730.0 * gpus * min(listed))


def test_an_own_price_has_no_range() -> None:
    assert price_range(theory(request("prices.usd_per_gpu_hour={h100-sxm: 2.0}")), HARDWARE) is None


# --- other ways of buying ---------------------------------------------------------------------------------------------


def test_ways_are_the_commitments_listed_for_the_skus_and_name_what_has_no_price() -> None:
    asked = planner.load_scenario("chat-llama-70b")
    ways = {way.commitments: way for way in alternative_purchases(asked, HARDWARE)}
    listed = {price.commitment for price in HARDWARE.prices if price.sku in asked.search.skus}
    assert {name for (name,) in ways} <= listed
    assert next(iter(ways)) == ("on_demand",)
    assert "l40s" in ways["reserved",].unpriced  # only on demand, spot and community are listed for it
    assert not any((price.sku, price.commitment) == ("l40s", "reserved") for price in HARDWARE.prices), (
        "the price list has grown: choose another SKU here"
    )
    for way in ways.values():
        assert set(way.priced) | set(way.unpriced) == set(asked.search.skus)


def test_only_with_a_profile_reservations_are_offered_beside_on_demand() -> None:
    alone = alternative_purchases(request(), HARDWARE)
    assert all(len(way.commitments) == 1 for way in alone)
    both = alternative_purchases(request("profile=azure-2024-conv-day"), HARDWARE)
    assert ("on_demand", "reserved") in {way.commitments for way in both}


def test_the_present_way_is_always_there() -> None:
    asked = request("prices.commitments=[on_demand, community]")
    assert ("on_demand", "community") in {way.commitments for way in alternative_purchases(asked, HARDWARE)}


def test_an_offer_costs_what_a_plan_with_those_commitments_costs_and_gpus_times_price(flat: Plan) -> None:
    way = PurchaseAlternative(("reserved",), ("h100-sxm",), ())
    offer = planned_offer(request(), HARDWARE, way)
    again = theory(request("prices.commitments=[reserved]"))
    assert again.cost is not None and offer.usd_per_month == pytest.approx(again.cost.usd_per_month)
    (listed,) = [
        price.usd_per_gpu_hour for price in HARDWARE.prices if (price.sku, price.commitment) == ("h100-sxm", "reserved")
    ]
    assert offer.usd_per_month == pytest.approx(flat.gpus["h100-sxm"] * listed * 730.0)
    assert offer.fleet == f"{flat.gpus['h100-sxm']} × H100 SXM"


def test_spot_without_terms_says_what_is_missing_and_headroom_grows_with_interruptions() -> None:
    way = PurchaseAlternative(("spot",), ("h100-sxm",), ())
    missing = planned_offer(request(), HARDWARE, way)
    assert missing.usd_per_month is None and "interruptions_per_hour" in missing.reason
    rare, often = (
        planned_offer(request(), HARDWARE, way, SpotTerms(interruptions_per_hour=each, recovery_s=600.0))
        for each in (1e-6, 1.0)
    )
    assert rare.usd_per_month is not None and often.usd_per_month is not None
    assert rare.usd_per_month < often.usd_per_month
    given = request("prices.spot={interruptions_per_hour: 0.5, recovery_s: 60}")
    assert with_commitments(given, ("spot",), SpotTerms(interruptions_per_hour=9.0, recovery_s=9.0)).prices.spot == (
        given.prices.spot
    )
