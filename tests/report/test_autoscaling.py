"""What the report and the chart of an autoscaled day say is what the day holds."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from planner.analysis import AutoscalingDay, simulate_autoscaler
from planner.charts import demands as charts
from planner.core import json_text, percent
from planner.report import autoscaling
from tests.made_up_plans import REAL


@cache
def autoscaled() -> AutoscalingDay:
    """Two hours of demand that an autoscaler follows."""
    day = simulate_autoscaler(REAL, [20.0, 25.0, 30.0, 28.0] * 30, 60.0, cold_start_s=60.0)
    return replace(day, assumptions=("demand: made up", *day.assumptions))


def test_each_fleet_has_a_row_with_its_attainment() -> None:
    shown = autoscaling.report(autoscaled())
    rows = shown.tables[0].rows
    assert [row[0] for row in rows] == ["autoscaled", "flat"]  # planned for one rate: no schedule
    assert [row[1] for row in rows] == [percent(fleet.attainment) for fleet in autoscaled().fleets]
    assert percent(autoscaled().fleets[0].attainment) in shown.headline
    assert "demand: made up" in autoscaling.report(autoscaled(), "made up").markdown


def test_the_document_holds_every_step() -> None:
    document = json.loads(json_text(autoscaling.autoscaling_document(autoscaled())))["autoscaling"]
    assert len(document["fleets"][0]["ready"]) == len(document["rates_per_s"]) == autoscaled().rates_per_s.size
    assert document["autoscaler"]["signal"] == "rate"


def test_rows_of_the_chart_keep_the_requests() -> None:
    rows = [row for row in charts.autoscaling_rows(autoscaled()) if row["fleet"] == "flat"]
    arrived = sum(row["rate_per_s"] * (row["end_hour"] - row["hour"]) * 3600.0 for row in rows)
    assert arrived == pytest.approx(autoscaled().fleets[0].arrived.sum())
    within = sum(row["attainment"] * row["rate_per_s"] * (row["end_hour"] - row["hour"]) * 3600.0 for row in rows)
    assert within / arrived == pytest.approx(autoscaled().fleets[1].attainment)
    assert len(rows) <= charts.MOST_POINTS


def test_the_chart_is_drawn_for_any_number_of_fleets() -> None:
    for day in (autoscaled(), replace(autoscaled(), fleets=autoscaled().fleets[:1])):
        (panel,) = charts.autoscaling_chart(day).to_dict()["layer"]
        assert panel["encoding"]["color"]["scale"]["domain"] == [fleet.name for fleet in day.fleets]
