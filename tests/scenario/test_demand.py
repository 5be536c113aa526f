"""Demand by area in a scenario: rates by clocks of their own, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planner.core import InputError
from planner.fleet import plan, plan_regions
from planner.scenario import (
    build_request,
    load_scenario,
    read_scenario,
    scenario_of_region,
    scenario_of_text,
    scenario_text,
)

WORLD = "global-chat-llama-70b"


def changed(**demand: Any) -> dict[str, Any]:
    content = read_scenario(WORLD)[0].model_dump(mode="json", exclude_unset=True)
    content["demand"] = demand
    return content


def test_weights_share_out_the_rate_of_the_workload() -> None:
    request = load_scenario(WORLD, ["workload.rate_per_s=90"])
    assert {name: area.rate_per_s for name, area in request.areas.items()} == pytest.approx(
        {"us-east": 40.0, "europe": 30.0, "japan": 20.0}
    )


def test_rates_of_areas_sum_to_the_rate_of_the_request() -> None:
    content = changed(uk={"rate_per_s": 3.0}, india={"rate_per_s": 2.0})
    del content["workload"]["rate_per_s"]
    assert load_scenario(content).workload.arrivals.rate_per_s == pytest.approx(5.0)


def test_the_day_of_the_world_is_flatter_than_that_of_an_area() -> None:
    """Peaks at different hours: the peak of a sum is at most the sum of the peaks, with as many requests."""
    request = load_scenario(WORLD)
    assert request.profile is not None
    hours = request.areas["japan"].hours
    assert hours is not None
    assert math.fsum(request.profile.factors) == pytest.approx(24.0)
    assert max(request.profile.factors) < max(hours.factors) * 24.0 / math.fsum(hours.factors)


def test_a_plan_of_one_place_says_that_it_is_one() -> None:
    few = ["search.tp=[4]", "search.skus=[h100-sxm]", "prices.provider=GCP", "prices.region=us-east4"]
    found = plan(load_scenario(WORLD, few), simulate=False, alternatives=False)
    assert any("in one place" in line for line in found.warnings)


def test_demand_is_written_as_it_is_read() -> None:
    content = read_scenario(WORLD)[0]
    assert scenario_of_text(scenario_text(content.model_dump(mode="json"))).demand == content.demand


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"frence": {"weight": 1}}, "france"),
        ({"uk": {"weight": 1}, "japan": {"rate_per_s": 1}}, r"demand\.japan"),
        ({"uk": {}}, "rate_per_s or weight"),
        ({"uk": {"rate_per_s": 1}}, r"workload\.rate_per_s"),
        ({"uk": {"weight": 1, "hours": "azure-2024-conv-week"}}, "24 factors"),
        ({"uk": {"weight": 1, "hours": "ofice"}}, "hours"),
    ],
)
def test_what_an_area_may_not_say(demand: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_scenario(changed(**demand))


def test_a_profile_of_all_beside_areas_is_refused() -> None:
    with pytest.raises(InputError, match="hours"):
        load_scenario(WORLD, ["profile=azure-2024-conv-day"])


def test_a_fleet_of_a_region_has_a_scenario_that_asks_for_the_same() -> None:
    """Read back, it is the request that the fleet was planned for: rate, day, targets less the way, prices, place."""
    few = ["search.tp=[4]", "search.skus=[h100-sxm]", "workload.rate_per_s=8"]
    content, folder = read_scenario(WORLD, few)
    found = plan_regions(build_request(content, folder), simulate=False)
    for fleet in found.fleets:
        own, _ = read_scenario(scenario_of_region(content.model_dump(mode="json", exclude_unset=True), fleet))
        request = build_request(own, folder)
        asked = fleet.plan.request
        assert request.model_copy(update={"workload": asked.workload}) == asked
        assert request.workload.rate_per_s == pytest.approx(asked.workload.rate_per_s)
        assert request.workload.open_arrivals.scv == pytest.approx(asked.workload.open_arrivals.scv)
