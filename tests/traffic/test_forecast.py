"""Growth against closed forms and drawn paths: what is put in is read back, and percentiles cover what they say."""

from __future__ import annotations

import io
import math
from datetime import date, timedelta

import numpy as np
import pytest

from planner.core import InputError
from planner.traffic.forecast import DAYS_PER_MONTH, Forecast, Launch, fit_forecast, read_history

START = date(2026, 12, 1)
YEAR = [START + timedelta(days=day) for day in range(364)]


def test_growth_without_noise_reaches_a_size_on_the_day_the_logarithm_says() -> None:
    forecast = Forecast(start=START, growth_per_month=0.08)
    months = math.log(1.6) / math.log(1.08)
    until = forecast.holds_until(1.6)
    assert until == START + timedelta(days=math.floor(months * DAYS_PER_MONTH))
    assert until.strftime("%Y-%m") == "2027-06"  # 6.1 months on
    assert forecast.holds_until(1.6, 0.9) == until  # no uncertainty, no difference


def test_a_launch_ends_it_on_its_day_and_passes_where_it_decays() -> None:
    step = Launch(day=date(2027, 3, 1), factor=1.5)
    assert Forecast(start=START, launches=(step,)).holds_until(1.4) == date(2027, 2, 28)
    assert Forecast(start=START, launches=(step,)).holds_until(1.6) is None
    fading = Forecast(start=START, launches=(step.model_copy(update={"decay_days": 10.0}),))
    assert fading.factor(date(2027, 3, 1)) == 1.5
    assert fading.factor(date(2027, 3, 11)) == pytest.approx(1 + 0.5 / math.e)
    assert fading.factor(date(2027, 2, 28)) == 1.0


def test_a_fleet_that_is_short_on_the_first_day_holds_until_the_day_before() -> None:
    assert Forecast(start=START, growth_per_month=0.01).holds_until(0.9) == START - timedelta(days=1)


def test_higher_percentiles_end_sooner() -> None:
    forecast = Forecast(start=START, growth_per_month=0.05, growth_uncertainty=0.02, volatility=0.05, day_spread=0.02)
    ends = [forecast.holds_until(2.0, percentile) for percentile in (0.1, 0.5, 0.75, 0.9, 0.99)]
    days = [(end or date(2040, 1, 1)).toordinal() for end in ends]
    assert days == sorted(days, reverse=True)
    assert len(set(days)) == 5


def test_percentiles_cover_drawn_futures() -> None:
    """Twenty thousand futures of unknown growth, a random walk and days off the trend: 90 % lie below p90."""
    forecast = Forecast(start=START, growth_per_month=0.04, growth_uncertainty=0.02, volatility=0.06, day_spread=0.05)
    rng = np.random.default_rng(5)
    months = np.arange(1, 19)
    paths = 20_000
    walk = np.cumsum(0.06 * rng.standard_normal((paths, months.size)), axis=1)
    growth = math.log(1.04) + 0.02 * rng.standard_normal((paths, 1))
    drawn = np.exp(growth * months + walk + 0.05 * rng.standard_normal(walk.shape))
    for place in (0, 5, 17):
        day = START + timedelta(days=round(float(months[place]) * DAYS_PER_MONTH))
        for percentile in (0.5, 0.75, 0.9):
            assert (drawn[:, place] <= forecast.factor(day, percentile)).mean() == pytest.approx(percentile, abs=0.02)


def test_exponential_growth_with_a_weekly_pattern_is_read_back_exactly() -> None:
    weekly = np.array([1.2, 1.2, 1.1, 1.1, 1.0, 0.7, 0.7])
    counts = [5000.0 * 1.07 ** (place / DAYS_PER_MONTH) * weekly[day.weekday()] for place, day in enumerate(YEAR)]
    fitted = fit_forecast(YEAR, counts)
    assert fitted.growth_per_month == pytest.approx(0.07, abs=1e-9)
    assert fitted.growth_uncertainty == pytest.approx(0.0, abs=1e-9)
    assert fitted.start == YEAR[-1]


def test_independent_days_give_the_standard_error_of_least_squares_and_no_random_walk() -> None:
    rng = np.random.default_rng(2)
    noise = 0.1 * rng.standard_normal(364)
    found = fit_forecast(YEAR, np.exp(noise).tolist())
    months = np.arange(364) / DAYS_PER_MONTH
    exact = 0.1 / math.sqrt(float(((months - months.mean()) ** 2).sum()))
    assert found.growth_uncertainty == pytest.approx(exact, rel=0.5)
    assert found.day_spread == pytest.approx(0.1, rel=0.15)
    assert found.volatility < 0.02


def test_a_random_walk_is_told_from_days_and_its_future_is_covered() -> None:
    """Two hundred recordings of a year, each forecast six months ahead: about 90 % end up below p90, half below p50."""
    rng = np.random.default_rng(7)
    ahead = 182
    below = {0.5: 0, 0.9: 0}
    volatilities = []
    for _ in range(200):
        daily = math.log(1.03) / DAYS_PER_MONTH + 0.05 / math.sqrt(DAYS_PER_MONTH) * rng.standard_normal(364 + ahead)
        logs = np.cumsum(daily)
        forecast = fit_forecast(YEAR, np.exp(logs[:364]).tolist())
        volatilities.append(forecast.volatility)
        future = math.exp(float(logs[363 + ahead] - logs[363]))
        for percentile in below:
            below[percentile] += future <= forecast.factor(YEAR[-1] + timedelta(days=ahead), percentile)
    assert np.median(volatilities) == pytest.approx(0.05, rel=0.4)
    assert below[0.5] / 200 == pytest.approx(0.5, abs=0.1)
    assert below[0.9] / 200 == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize(
    ("days", "counts", "message"),
    [
        (YEAR[:20], [1.0] * 20, "28 days"),
        (YEAR[:30], [0.0] * 30, "> 0"),
        ([YEAR[0], *YEAR[:30]], [1.0] * 31, "twice"),
        ([day for day in YEAR if day.weekday() < 5], [1.0] * 260, "weekday"),
    ],
)
def test_what_no_trend_can_be_fitted_to_is_refused(days: list[date], counts: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_forecast(days, counts)


def test_a_history_is_read_and_a_bad_line_is_named() -> None:
    days, counts = read_history(io.StringIO("date,requests\n2026-11-22,900\n2026-11-23,1200.5\n"))
    assert days[1] == date(2026, 11, 23)
    assert counts == [900.0, 1200.5]
    for text in ("date,requests\n2026-11-22,900\nyesterday,3\n", "day,requests\n2026-11-22,3\n"):
        with pytest.raises(InputError, match="history, line"):
            read_history(io.StringIO(text))
