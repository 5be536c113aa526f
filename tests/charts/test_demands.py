"""Demand over the day and the fleet that follows it, held against published profiles, sums and the engine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import planner
from planner.analysis import period_capacities_per_s
from planner.charts import demands
from planner.fleet import Plan
from planner.serving import evaluate, log_excess
from planner.traffic import profiles
from tests.builders import SMALL_CHAT
from tests.charts.test_costs import is_json


@pytest.fixture(scope="module")
def daily() -> Plan:
    request = planner.load_scenario("chat-llama-70b", [*SMALL_CHAT, "profile=azure-2024-conv-day"])
    return planner.plan(request, simulate=False, alternatives=False)


def test_a_previewed_profile_keeps_the_mean_rate_and_the_published_peak() -> None:
    measured = profiles.load_measured("azure-2024-conv-day")
    rows = demands.profile_rows(measured, 40.0)
    mean = [row["rate_per_s"] for row in rows if row["curve"] == demands.MEAN]
    assert math.fsum(mean) / len(mean) == pytest.approx(40.0)
    assert max(mean) / 40.0 == pytest.approx(1.32, abs=0.005)  # the table in presets/profiles/README.md
    highest = [row["rate_per_s"] for row in rows if row["curve"] == demands.HIGHEST]
    assert max(highest) / 40.0 == pytest.approx(1.66, abs=0.005)
    assert all(low <= high + 1e-9 for low, high in zip(mean, highest, strict=True))
    assert is_json(demands.profile_curve(measured, 40.0, "a day"))


def test_a_profile_seen_once_has_one_curve() -> None:
    rows = demands.profile_rows(profiles.load_measured("servegen-deepseek-r1-day"), 1.0)
    assert {row["curve"] for row in rows} == {demands.MEAN}


def test_capacity_meets_the_targets_and_covers_the_demand_of_every_hour(daily: Plan) -> None:
    capacities = period_capacities_per_s(daily)
    rows = demands.schedule_rows(daily, capacities)
    assert len(rows) == 24 and rows[-1]["end_hour"] == 24.0
    for row in rows:
        assert row["capacity_per_s"] >= row["demand_per_s"] * 0.995  # tolerance of a sustainable rate
    (planned,) = daily.deployments
    busiest = max(rows, key=lambda row: float(row["demand_per_s"]))
    at_capacity = evaluate(planned.surviving, planned.workload.at_rate(busiest["capacity_per_s"]))
    assert log_excess(at_capacity, planned.slo) <= 0.0
    above = evaluate(planned.surviving, planned.workload.at_rate(1.02 * busiest["capacity_per_s"]))
    assert log_excess(above, planned.slo) > 0.0
    assert is_json(demands.schedule_demand(daily, capacities))


def test_gpus_by_hour_cost_what_the_plan_costs(daily: Plan) -> None:
    rows = demands.schedule_gpu_rows(daily)
    assert daily.cost is not None and daily.flat_usd_per_hour is not None
    price = daily.bought[0].usd_per_gpu_hour
    mean = math.fsum(row["gpus"] for row in rows) / 24.0
    assert mean * price == pytest.approx(daily.cost.usd_per_hour)
    assert max(row["gpus"] for row in rows) * price >= daily.flat_usd_per_hour * (1.0 - 1e-9)
    assert is_json(demands.schedule_gpus(daily))


def test_a_pool_that_the_peak_does_not_have_leaves_its_hours_open(daily: Plan) -> None:
    odd = replace(daily.schedule[0], replicas={"mixed something else": 3})
    capacities = period_capacities_per_s(replace(daily, schedule=(odd, *daily.schedule[1:3])))
    assert capacities[0] is None and capacities[1] is not None


def test_without_a_profile_there_is_no_schedule(daily: Plan) -> None:
    flat = replace(daily, schedule=())
    assert period_capacities_per_s(flat) == ()
    assert demands.schedule_rows(flat, ()) == []
    assert demands.schedule_gpu_rows(flat) == []
