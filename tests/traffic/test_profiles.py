"""Folded recordings against the rates they were drawn from, curves against sampling, presets against their sources."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.traffic import DemandProfile, Trace, load_profile, profile_from_trace, read_trace
from planner.traffic.profiles import (
    HOURS_PER_WEEK,
    following_savings,
    list_profiles,
    load_measured,
    measured_from_rates,
    measured_from_trace,
    profile_info,
)
from tests.places import ROOT
from tests.studies.demand_profiles import profiles, table_row

README = ROOT / "planner" / "presets" / "profiles" / "README.md"


SHAPE = np.array([0.2, 0.5, 1.5, 1.8])


def trace_of(counts: list[int], hours: float = 1.0, source: str = "given") -> Trace:
    """So many arrivals in each stretch of so many hours, evenly spread, the first at time 0."""
    times = [(place + k / count) * hours * 3600.0 for place, count in enumerate(counts) for k in range(count)]
    return Trace.from_arrays(times, [1] * len(times), [1] * len(times), source)


# --- recordings -----------------------------------------------------------------------------------------------------


def test_a_drawn_day_is_read_back() -> None:
    """Truth: the rates that a Poisson stream was drawn with, by thinning (Lewis and Shedler 1979), over twenty days."""
    generator = np.random.default_rng(3)
    horizon_s, most = 20 * 86_400.0, 0.1 * SHAPE.max()
    times = np.cumsum(generator.exponential(1.0 / most, int(1.1 * most * horizon_s)))
    times = times[times < horizon_s]
    kept = times[generator.random(times.size) * SHAPE.max() < SHAPE[(times // 21_600).astype(int) % 4]]
    ones = np.ones(kept.size)
    trace = Trace.from_arrays(kept, ones, ones)
    found = measured_from_trace(trace, 6.0, recorded_hours=480.0)
    error = 4.0 / np.sqrt(0.1 * SHAPE * 21_600 * 20)  # four standard errors of a Poisson count
    assert np.all(np.abs(np.array(found.profile.factors) / SHAPE - 1.0) < error)
    assert found.mean_per_s == pytest.approx(0.1, rel=0.02)
    assert found.seen == (20,) * 4
    poisson = np.sqrt(0.1 * SHAPE * 21_600) / (0.1 * 21_600)  # standard deviation of a count / mean count
    assert np.array(found.spread, dtype=float) == pytest.approx(poisson, rel=0.6)


def test_counts_are_conserved_exactly() -> None:
    """Sum of factor * mean rate * period over the cycles is the number of requests."""
    counts = [3, 9, 30, 18, 6, 12, 27, 15]
    found = measured_from_trace(trace_of(counts, 6.0), 6.0, recorded_hours=48.0)
    assert math.fsum(found.profile.factors) == pytest.approx(4.0, rel=1e-14)
    assert found.mean_per_s * 48.0 * 3600.0 == pytest.approx(sum(counts), rel=1e-12)
    means = (np.array(counts[:4]) + np.array(counts[4:])) / 2.0
    assert found.profile.factors == pytest.approx(means / means.mean())
    assert found.highest == pytest.approx(np.maximum(counts[:4], counts[4:]) / means.mean())
    between = np.abs(np.array(counts[:4]) - np.array(counts[4:])) / math.sqrt(2.0) / means.mean()
    assert found.spread == pytest.approx(between)
    assert found.between_cycles == pytest.approx(math.sqrt(np.mean(between**2)))
    assert found.busiest.factors == found.highest


def test_a_week_keeps_the_weekend_that_a_day_averages_away() -> None:
    counts = [24] * 5 + [6, 6]
    trace = trace_of(counts * 2, 24.0)
    week = profile_from_trace(trace, 24.0, day=False)
    assert week.factors == pytest.approx(np.array(counts) / np.mean(counts))
    day = profile_from_trace(trace, 24.0)
    assert day.factors == (1.0,)


def test_the_start_of_the_recording_is_put_where_it_was() -> None:
    """Rotating the clock rotates the profile: a recording begun at 18:00."""
    counts = [4, 8, 12, 16] * 2
    base = measured_from_trace(trace_of(counts, 6.0), 6.0, recorded_hours=48.0)
    moved = measured_from_trace(trace_of(counts, 6.0), 6.0, starts_at_hours=18.0, recorded_hours=48.0)
    assert moved.profile.factors == pytest.approx(np.roll(base.profile.factors, 3))


def test_periods_recorded_in_part_are_left_out() -> None:
    """Two days begun at 03:00: the first period of six hours, half recorded, does not pull its mean down."""
    even = trace_of([60] * 48)
    found = measured_from_trace(even, 6.0, starts_at_hours=3.0)
    assert found.profile.factors == pytest.approx((1.0,) * 4)
    assert found.seen == (1, 2, 2, 2)
    assert found.spread[0] is None


def test_a_period_that_ends_a_little_early_is_rated_by_what_was_recorded_of_it() -> None:
    """A request every 36 s for 23.96 h: the last six hours have 596 of 600, in 596/600 of their time."""
    times = np.arange(2396) * 36.0
    trace = Trace.from_arrays(times, np.ones(2396), np.ones(2396))
    assert profile_from_trace(trace, 6.0).factors == pytest.approx((1.0,) * 4, rel=1e-9)


def test_silence_at_the_end_counts() -> None:
    """A recording that goes on after its last request has periods without any."""
    found = measured_from_trace(trace_of([6, 6, 0, 0], 6.0), 6.0, recorded_hours=24.0)
    assert found.profile.factors == pytest.approx((2.0, 2.0, 0.0, 0.0))


def test_a_trace_and_its_rates_fold_alike() -> None:
    """Two readers, one recording: arrivals one by one, and their mean rates over half hours."""
    counts = list(np.random.default_rng(5).integers(1, 40, 96).tolist())
    from_trace = measured_from_trace(trace_of(counts, 0.5), 2.0, starts_at_hours=1.0, recorded_hours=48.0)
    rates = np.array(counts) / 1800.0
    from_rates = measured_from_rates(rates, 0.5, 2.0, starts_at_hours=1.0)
    assert from_rates.profile.factors == pytest.approx(from_trace.profile.factors, rel=1e-12)
    assert from_rates.seen == from_trace.seen
    assert from_rates.highest == pytest.approx(from_trace.highest, rel=1e-12)


def test_an_hour_long_trace_is_no_day(shared: Path) -> None:
    """The public request traces are an hour long, which is refused rather than stretched."""
    trace = read_trace(shared / "traces" / "azure_2023_conv.csv.gz")
    with pytest.raises(InputError, match=r"24 of 24 periods of 1 h were never recorded in whole. Fix: give a longer"):
        profile_from_trace(trace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"period_hours": 5.0}, r"period_hours = 5.0: the day or week of 24 h is no whole number of them. Fix: give a"),
        ({"period_hours": 0.0}, r"period_hours = 0.0: the day or week of 24 h"),
        ({"period_hours": math.nan}, "period_hours = nan"),
        ({"period_hours": 48.0}, r"period_hours = 48.0: the day or week of 24 h"),
        ({"starts_at_hours": 24.0}, r"starts_at_hours = 24.0: must lie in \[0, 24\). Fix: give the time"),
        ({"recorded_hours": 20.0}, r"recorded_hours = 20.0: the last request came after 47.5 h. Fix: give the length"),
        ({"cycle_hours": 168.0}, r"120 of 168 periods of 1 h were never recorded in whole"),
    ],
)
def test_recordings_that_make_no_profile_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measured_from_trace(trace_of([2] * 48), **arguments)


# --- following the demand -------------------------------------------------------------------------------------------


@given(
    factors=st.lists(st.floats(0, 10), min_size=1, max_size=24).filter(lambda f: max(f) > 0.01),
    rate=st.floats(0.01, 20),
)
def test_no_fleet_saves_more_by_following(factors: list[float], rate: float) -> None:
    """Whole replicas of any rate, sized period by period: counted, and held against the closed form."""
    found = following_savings(DemandProfile(factors=tuple(factors)))
    assert found == pytest.approx(1.0 - float(np.mean(factors)) / max(factors), abs=1e-12)
    flat = math.ceil(max(factors) / rate)
    following = np.mean([math.ceil(factor / rate) for factor in factors])
    assert 1.0 - following / flat <= 1.0 - np.mean(factors) / (flat * rate) + 1e-9
    fine = max(factors) / 10_000.0
    saved = 1.0 - np.mean([math.ceil(factor / fine - 1e-9) for factor in factors]) / 10_000.0
    assert saved == pytest.approx(found, abs=2e-4)


# --- presets --------------------------------------------------------------------------------------------------------


def test_presets_are_the_folded_curves(shared: Path) -> None:
    """The packaged files, and the table that describes them, are what the recorded curves make."""
    readme, made = README.read_text(encoding="utf-8"), set()
    for name, content, found in profiles(shared / "traces"):
        made.add(name)
        assert (README.parent / f"{name}.csv").read_text(encoding="utf-8") == content
        info = profile_info(name)
        assert table_row(name, found, info.recorded_peak_to_mean) in readme
        assert load_profile(name).factors == pytest.approx(found.profile.factors, abs=1e-5)
        assert load_measured(name).highest == pytest.approx(found.highest, abs=1e-4)
    assert made == set(list_profiles())


@pytest.mark.parametrize("name", list_profiles())
def test_presets_carry_their_source_and_average_one(name: str) -> None:
    info, profile, measured = profile_info(name), load_profile(name), load_measured(name)
    assert info.source_url.startswith("https://")
    assert info.licence in {"CC-BY-4.0", "Apache-2.0", "BSD-3-Clause"}
    assert math.fsum(profile.factors) == pytest.approx(len(profile.factors), rel=1e-12)
    assert len(profile.factors) * profile.period_hours == info.cycle_hours
    assert info.cycle_hours == (HOURS_PER_WEEK if name.endswith("-week") else 24.0)
    assert max(profile.factors) <= max(measured.highest) + 1e-5
    assert profile.source == f"preset {name}"
    assert max(measured.seen) == info.cycles
    if info.between_cycles is None:
        assert info.cycles == 1
    else:
        assert measured.between_cycles == pytest.approx(info.between_cycles, abs=2e-4)


@pytest.mark.parametrize(
    ("name", "mean_per_s", "peak_to_mean"),
    [
        ("azure-2024-code-week", 16_803_695 / (7 * 86_400), 3.17),
        ("azure-2024-conv-week", 27_303_999 / (7 * 86_400), 1.75),
        ("burstgpt-day", 1_429_737 / (1461 * 3600), 34.07),
    ],
)
def test_presets_match_published_totals(name: str, mean_per_s: float, peak_to_mean: float) -> None:
    """Rows of the traces as their authors print them, over their length."""
    info = profile_info(name)
    assert info.mean_per_s == pytest.approx(mean_per_s, rel=2e-3)
    assert info.recorded_peak_to_mean == pytest.approx(peak_to_mean, rel=2e-3)


@pytest.mark.parametrize(("name", "weekend"), [("azure-2024-code-week", (1, 2)), ("azure-2024-conv-week", (0, 6))])
def test_weekends_fall_where_the_calendar_has_them(name: str, weekend: tuple[int, int]) -> None:
    """10 May 2024 was a Friday, 12 May a Sunday: Saturday and Sunday are the calmest days of both weeks."""
    days = np.array(load_profile(name).factors).reshape(7, 24).mean(axis=1)
    assert set(np.argsort(days)[:2].tolist()) == set(weekend)
