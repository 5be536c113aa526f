"""`planner autoscale` and `planner forecast`: what they read, print and refuse."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli.commands import app
from planner.scenario import load_scenario
from planner.scenario.read import file_references
from tests.builders import SMALL_CHAT

DAY = "profile={factors: [0.6, 1.0, 1.4, 1.0], period_hours: 0.5}"


def run(*words: str) -> tuple[int, str]:
    settings = [word for text in SMALL_CHAT for word in ("--set", text)]
    result = CliRunner().invoke(app, [*words, *settings])
    return result.exit_code, result.output


def test_a_day_is_played_and_its_cold_start_named(tmp_path: Path) -> None:
    file = tmp_path / "day.json"
    words = ("autoscale", "chat-llama-70b", "--set", DAY, "--variation", "0.1", "--load", "0.8", "--json", str(file))
    code, output = run(*words)
    assert code == 0, output
    assert "planned schedule" in output
    assert "cold start 215 s, measured for llama-3.1-70b" in " ".join(output.split())
    day = json.loads(file.read_text())["autoscaling"]
    assert [fleet["name"] for fleet in day["fleets"]] == ["autoscaled", "planned schedule", "flat"]
    assert day["autoscaler"]["target_share"] == 0.8
    assert all(0.0 < fleet["attainment"] <= 1.0 for fleet in day["fleets"])


def test_without_a_day_there_is_nothing_to_play() -> None:
    code, output = run("autoscale", "chat-llama-70b")
    assert code == 2
    assert "there is no day to play" in output


def test_growth_is_forecast_from_an_option_and_from_the_scenario() -> None:
    code, output = run("forecast", "chat-llama-70b", "--growth", "0.1", "--purchases", "0")
    assert code == 0, output
    assert "The fleet holds p50 until 202" in output
    given = "forecast={start: 2026-12-01, growth_per_month: 0.1}"
    code, output = run("forecast", "chat-llama-70b", "--set", given, "--purchases", "0")
    assert code == 0, output
    assert "from 2026-12-01" in output


def test_a_scenario_without_growth_is_refused() -> None:
    code, output = run("forecast", "chat-llama-70b")
    assert code == 2
    assert "says nothing of growth" in output


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
