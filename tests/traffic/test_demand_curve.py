"""Curves through profiles and recordings: what comes in a period is kept, however it is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import InputError
from planner.traffic import DemandProfile, Trace, load_profile
from planner.traffic.demand_curve import curve_of_profile, curve_of_trace
from planner.workload import RateDrift


@pytest.mark.parametrize("drift", [None, RateDrift.random(0.4, 500.0, seed=2)])
@pytest.mark.parametrize("name", ["azure-2024-conv-day", "azure-2024-code-week", "burstgpt-day"])
def test_every_period_keeps_its_requests(name: str, drift: RateDrift | None) -> None:
    profile = load_profile(name)
    curve = curve_of_profile(profile, 7.0, 120.0, drift)
    by_period = curve.rates_per_s.reshape(len(profile.factors), -1).mean(axis=1)
    assert by_period == pytest.approx(7.0 * np.asarray(profile.factors), rel=1e-9)
    assert curve.rates_per_s.min() >= 0.0


def test_the_end_of_the_cycle_meets_its_beginning_and_no_step_is_left() -> None:
    rates = curve_of_profile(load_profile("azure-2024-conv-day"), 1.0, 60.0).rates_per_s
    jumps = np.abs(np.diff(np.append(rates, rates[0])))
    hours = np.abs(np.diff(np.asarray(load_profile("azure-2024-conv-day").factors)))
    assert jumps.max() < hours.max() / 5


def test_a_constant_profile_is_a_constant_curve() -> None:
    assert curve_of_profile(DemandProfile(factors=(1.0,) * 5), 3.0, 600.0).rates_per_s == pytest.approx(
        np.full(30, 3.0)
    )


def test_a_drift_varies_the_rate_as_much_as_it_says() -> None:
    flat = DemandProfile(factors=(1.0,) * 24)
    rates = curve_of_profile(flat, 1.0, 60.0, RateDrift.random(0.2, 120.0, seed=1)).rates_per_s
    assert rates.std() == pytest.approx(0.2, rel=0.2)  # hours keep their requests, which takes a little of it


def test_a_recording_is_counted_and_its_unfinished_window_left_out() -> None:
    trace = Trace.from_arrays([0.0, 1.0, 2.0, 10.5, 11.0, 20.2], [1] * 6, [1] * 6)
    curve = curve_of_trace(trace, 10.0)
    assert curve.rates_per_s.tolist() == [0.3, 0.2]
    assert curve.requests == 5


def test_windows_that_do_not_fit_are_refused() -> None:
    profile = DemandProfile(factors=(1.0, 2.0))
    for window_s in (7.0, 7200.0, 0.001, -1.0):
        with pytest.raises(InputError, match="window_s"):
            curve_of_profile(profile, 1.0, window_s)
    with pytest.raises(InputError, match="rate_per_s"):
        curve_of_profile(profile, 0.0)
    with pytest.raises(InputError, match="window_s"):
        curve_of_trace(Trace.from_arrays([0.0, 1.0], [1, 1], [1, 1]), 60.0)
