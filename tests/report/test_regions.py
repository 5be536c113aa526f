"""What a person reads of a plan over regions is what the plan holds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from planner.fleet import RegionsPlan, plan_regions
from planner.report import regions, regions_to_dict
from planner.scenario import load_scenario
from planner.traffic import AreaDemand

FEW = (
    "search.skus=[h100-sxm]",
    "search.tp=[4]",
    "search.max_running_requests=[128]",
    "search.max_batched_tokens=[4096]",
    "workload.rate_per_s=8",
)


@pytest.fixture(scope="module")
def found() -> RegionsPlan:
    return plan_regions(load_scenario("global-chat-llama-70b", FEW), simulate=False)


def test_costs_of_regions_sum_to_that_of_the_plan(found: RegionsPlan) -> None:
    table = next(table for table in regions.tables(found) if table.title == "Regions")
    cost = table.columns.index("USD/h")
    assert sum(float(row[cost].replace(",", "")) for row in table.rows) == pytest.approx(found.usd_per_hour, abs=0.05)


def test_the_parts_of_a_latency_sum(found: RegionsPlan) -> None:
    table = next(table for table in regions.tables(found) if table.title == "At the users")
    assert table.rows
    for row in table.rows:
        whole, parts = row[table.columns.index("at the user")].split(" = ")
        network, _, _, pool, _ = parts.split()
        assert float(whole.split()[0]) == pytest.approx(float(network) + float(pool), abs=1.0)


def test_the_document_is_json_with_a_plan_for_each_region_and_all_hours(found: RegionsPlan) -> None:
    content = json.loads(json.dumps(regions_to_dict(found), allow_nan=False))["regions"]
    assert content["usd_per_hour"] == pytest.approx(sum(fleet["usd_per_hour"] for fleet in content["fleets"]))
    for area in found.request.areas:
        shares = [fleet["shares"][area] for fleet in content["fleets"] if area in fleet["shares"]]
        assert np.sum(shares, axis=0) == pytest.approx(np.ones(24))
    assert all(fleet["plan"]["deployments"] for fleet in content["fleets"])
    ways = ["this plan", "one region", "every area for itself", "any regions", "no distance"]
    assert [one["name"] for one in content["others"]] == ways


def test_what_cannot_be_says_why() -> None:
    request = load_scenario("global-chat-llama-70b", FEW)
    answer = plan_regions(
        request.model_copy(update={"areas": {"japan": AreaDemand(rate_per_s=1.0, residency=("asia",))}}), simulate=False
    )
    report = regions.report(answer)
    assert "japan" in report.headline
    assert "residency" in report.markdown
    assert regions_to_dict(answer)["regions"]["usd_per_hour"] is None
