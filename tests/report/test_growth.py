"""What the reports of growth and of an autoscaled day say is what the results hold."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from functools import cache

from hardware_db import load_hardware
from planner.analysis import FleetGrowth, Replanner, cost_year, fleet_growth, fleet_words, headroom, next_purchases
from planner.analysis.headline import headroom_words
from planner.core import Report, change, json_text
from planner.report import growth, records
from planner.traffic import Forecast
from tests.made_up_plans import REAL


@cache
def found() -> FleetGrowth:
    """What has to be bought next."""
    return next_purchases(
        REAL,
        fleet_growth(REAL, Forecast(start=date(2026, 12, 1), growth_per_month=0.1, growth_uncertainty=0.02)),
        Replanner(),
        count=1,
    )


def test_the_report_names_every_horizon_and_the_next_fleet() -> None:
    shown = growth.report(found())
    assert found().words in shown.headline
    until, following = shown.tables
    assert [row[1] for row in until.rows] == [str(horizon.until) for horizon in found().horizons]
    sure = fleet_growth(REAL, Forecast(start=date(2026, 12, 1), growth_per_month=0.1), headroom_share=0.2)
    assert growth.tables(sure)[0].rows == (("any", str(sure.horizons[0].until)),)  # one date, not three times one
    assert following.rows[0][0] == found().purchases[0].needed_from.isoformat()
    assert found().purchases[0].fleet in growth.report(found(), "made up").markdown


def test_gpus_go_by_the_words_of_the_answer() -> None:
    """As the sentence over the plan calls them, and not by the ids that scenarios write: in words and tables alike."""
    ((sku, count),) = REAL.gpus.items()
    name = REAL.pools[0].config.sku.name.removeprefix("NVIDIA ")
    assert name != sku and fleet_words(REAL) == f"{count} × {name}"
    year = cost_year(REAL, Forecast(start=date(2026, 12, 1), growth_per_month=0.1), [], load_hardware())
    assert year.months[-1].fleet == f"{year.months[-1].gpus[sku]} × {name}"
    assert year.months[-1].fleet in growth.cost_headline(year)
    assert found().purchases[0].more_gpus == {sku: -1, "h100-sxm": 1}
    assert found().purchases[0].more == f"+1 × H100 SXM, -1 × {name}"
    assert sku not in growth.report(replace(found(), costs=year)).markdown


def test_the_document_is_json_with_dates_as_text() -> None:
    document = json.loads(json_text(records.document("growth", found())))["growth"]
    assert document["purchases"][0]["gpus"] == found().purchases[0].gpus
    assert document["horizons"][0]["until"] == str(found().horizons[0].until)
    assert document["forecast"]["growth_per_month"] == 0.1


def test_a_plan_is_reported_with_the_headroom_that_the_app_shows() -> None:
    room = headroom(REAL)
    (line,) = growth.with_headroom(Report("made up"), REAL).lists["Growth"]
    assert line.startswith(f"Headroom {change(room.share)} ({headroom_words(room)})")
