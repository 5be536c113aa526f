"""Until when a fleet holds: against the logarithm, and the fleets that follow against what they were planned for."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, timedelta

import pytest

from planner.analysis import Replanner, fleet_growth, headroom, next_purchases
from planner.core import InputError
from planner.traffic import DAYS_PER_MONTH, Forecast, Launch
from tests.made_up_plans import REAL

START = date(2026, 12, 1)


def test_the_fleet_holds_until_growth_has_used_up_its_headroom() -> None:
    share = headroom(REAL).share
    assert share > 0.0
    found = fleet_growth(REAL, Forecast(start=START, growth_per_month=0.03))
    days = math.floor(math.log1p(share) / math.log(1.03) * DAYS_PER_MONTH)
    assert {horizon.until for horizon in found.horizons} == {START + timedelta(days=days)}
    assert found.headroom == share


def test_demand_that_is_less_certain_ends_it_sooner_at_high_percentiles() -> None:
    forecast = Forecast(start=START, growth_per_month=0.03, growth_uncertainty=0.02, volatility=0.03)
    ends = [horizon.until for horizon in fleet_growth(REAL, forecast, headroom_share=0.5).horizons]
    assert all(end is not None for end in ends)
    assert ends == sorted(ends, key=lambda end: end or date.max, reverse=True)
    assert len(set(ends)) == 3


def test_words_name_the_month() -> None:
    found = fleet_growth(REAL, Forecast(start=START, growth_per_month=0.08), headroom_share=0.6)
    assert found.words == "holds p50 until 2027-06, p75 until 2027-06, p90 until 2027-06"
    still = fleet_growth(REAL, Forecast(start=START), (0.5,), headroom_share=0.6)
    assert still.words == "holds p50 for ten years and more"
    launched = Forecast(start=START, launches=(Launch(day=START, factor=2.0),))
    assert fleet_growth(REAL, launched, (0.5,), 0.6).words == "holds p50 not even at 2026-12-01"


def test_the_next_fleet_is_there_the_day_after_and_holds_for_the_months_asked() -> None:
    forecast = Forecast(start=START, growth_per_month=0.1)
    growth = fleet_growth(REAL, forecast)
    found = next_purchases(REAL, growth, Replanner(), count=2, months=6).purchases
    first, second = found
    assert growth.horizons[0].until is not None
    assert first.needed_from == growth.horizons[0].until + timedelta(days=1)
    assert first.growth == pytest.approx(forecast.factor(first.needed_from + timedelta(days=183)), rel=1e-9)
    for one in found:
        assert one.until is not None
        assert (one.until - one.needed_from).days >= 6 * DAYS_PER_MONTH - 2
    assert second.needed_from == (first.until or START) + timedelta(days=1)
    assert sum(first.gpus.values()) - sum(REAL.gpus.values()) == sum(first.more_gpus.values())
    assert second.usd_per_hour >= first.usd_per_hour


def test_a_fleet_that_is_not_there_has_no_horizon() -> None:
    with pytest.raises(InputError, match="no fleet to hold"):
        fleet_growth(replace(REAL, deployments=()), Forecast(start=START))
