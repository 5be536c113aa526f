"""`planner autoscale` and `planner forecast`: what they read, print and refuse."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest

from planner.scenario import load_scenario
from planner.scenario.read import file_references
from tests.builders import SMALL_CHAT
from tests.cli.shell import assert_refused, flat

CHAT = ("chat-llama-70b", *(word for text in SMALL_CHAT for word in ("--set", text)))
DAY = "profile={factors: [0.6, 1.0, 1.4, 1.0], period_hours: 0.5}"


def test_a_day_is_played_and_its_cold_start_named(tmp_path: Path) -> None:
    file = tmp_path / "day.json"
    assert_refused(("autoscale", *CHAT), "profile", "there is no day to play")
    said = flat("autoscale", *CHAT, "--set", DAY, "--variation", "0.1", "--load", "0.8", "--json", file)
    assert "planned schedule" in said
    assert "cold start 215 s, measured for llama-3.1-70b" in said
    day = json.loads(file.read_text())["autoscaling"]
    assert [fleet["name"] for fleet in day["fleets"]] == ["autoscaled", "planned schedule", "flat"]
    assert day["autoscaler"]["target_share"] == 0.8
    assert all(0.0 < fleet["attainment"] <= 1.0 for fleet in day["fleets"])


def test_growth_is_forecast_from_an_option_and_from_the_scenario() -> None:
    words = ("forecast", *CHAT, "--purchases", "0")
    assert_refused(words, "forecast", "says nothing of growth")
    said = flat(*words, "--growth", "0.1")
    assert "The fleet holds until 202" in said and said == flat(*words, "--growth", "10 % a month")
    assert_refused((*words, "--growth", "fast"), "--growth", "10%")
    assert "from 2026-12-01" in flat(*words, "--set", "forecast={start: 2026-12-01, growth_per_month: 0.1}")


def test_own_against_api_is_told_month_by_month_without_planning_again(tmp_path: Path) -> None:
    file = tmp_path / "year.json"
    said = flat("forecast", *CHAT, "--growth", "0.1", "--api", "--api-price", "0.3/0.9", "--json", file)
    assert "12 months cost" in said and "When does it turn?" in said and "own price" in said
    costs = json.loads(file.read_text())["growth"]["costs"]
    assert len(costs["months"]) == 12
    bills = {path["name"]: path["usd"] for path in costs["paths"]}
    assert bills["own price"][-1] / bills["own price"][0] == pytest.approx(1.1**11, rel=0.01)
    assert f"{sum(bills['own price']):,.0f}" in said  # the last line of what is cumulated


def test_a_history_is_fitted_and_is_a_file_of_the_scenario(tmp_path: Path) -> None:
    days = [date(2026, 1, 5) + timedelta(days=day) for day in range(70)]
    lines = ["date,requests", *(f"{day.isoformat()},{1000 * 1.002**place}" for place, day in enumerate(days))]
    (tmp_path / "daily.csv").write_text("\n".join(lines))
    content = tmp_path / "my.yaml"
    content.write_text(
        "llm: llama-3.1-8b\nworkload: {rate_per_s: 5, lengths: {input_tokens: 100, output_tokens: 10}}\n"
        "slo: [{metric: ttft, percentile: 0.9, threshold_s: 1}]\nsearch: {skus: [h100-sxm]}\n"
        "forecast: {history: daily.csv, launches: [{day: 2026-06-01, factor: 1.5}]}\n"
    )
    found = load_scenario(content).forecast
    assert found is not None
    assert found.growth_per_month == pytest.approx(1.002**30.436875 - 1)
    assert found.launches[0].factor == 1.5
    assert found.start == days[-1]
    assert list(file_references({"forecast": {"history": "daily.csv"}})) == ["forecast.history"]
