"""Arrival processes and closed loops against renewal theory; every refusal says what to write instead."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core import InputError
from planner.workload import (
    ArrivalProcess,
    ClosedLoop,
    TokenLengths,
    Workload,
)

# --- arrivals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scv", [0.04, 1.0, 20.0])
def test_gap_mean_and_scv_match_renewal_theory(scv: float) -> None:
    """Gamma gaps of shape a = 1/SCV: mean 1/rate, variance SCV/rate^2, fourth central moment 3a(a + 2)/(a rate)^4.

    Tolerances are five standard errors of the sample mean and (leading order) of the sample variance.
    """
    count, rate = 400_000, 5.0
    gaps = np.diff(ArrivalProcess(rate_per_s=rate, scv=scv).sample_times_s(count, seed=11), prepend=0.0)
    assert abs(gaps.mean() * rate - 1.0) < 5 * math.sqrt(scv / count)
    kurtosis = 3.0 + 6.0 * scv
    assert abs(gaps.var() * rate**2 / scv - 1.0) < 5 * math.sqrt((kurtosis - 1.0) / count)


def test_poisson_counts_have_variance_equal_to_their_mean() -> None:
    times = ArrivalProcess(rate_per_s=8.0).sample_times_s(200_000, seed=3)
    counts = np.bincount(times.astype(np.int64))[:20_000]
    assert counts.mean() == pytest.approx(8.0, abs=5 * math.sqrt(8.0 / 20_000))
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=5 * math.sqrt(2.0 / 20_000))


@pytest.mark.parametrize("scv", [0.0, 1e-13])
def test_no_variance_is_a_metronome(scv: float) -> None:
    times = ArrivalProcess(rate_per_s=2.0, scv=scv).sample_times_s(4, seed=1)
    assert times.tolist() == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("scv", [1e-11, 1000.0])
def test_extreme_bursts_keep_order_and_rate(scv: float) -> None:
    count = 500_000
    times = ArrivalProcess(rate_per_s=3.0, scv=scv).sample_times_s(count, seed=5)
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0.0).all()
    assert times[-1] * 3.0 / count == pytest.approx(1.0, abs=5 * math.sqrt(scv / count) + 1e-9)


def test_rate_only_rescales_time() -> None:
    slow = ArrivalProcess(rate_per_s=1.0, scv=2.0)
    assert slow.at_rate(4.0).scv == 2.0
    assert slow.at_rate(4.0).sample_times_s(100, seed=1) * 4.0 == pytest.approx(slow.sample_times_s(100, seed=1))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"rate_per_s": -1.0}, "rate_per_s = -1.0: Input should be greater than 0. Fix: give a value greater than 0"),
        ({"rate_per_s": math.nan}, "rate_per_s = nan: Input should be a finite number. Fix: give a finite number"),
        ({"rate_per_s": 1.0, "scv": 2e6}, "scv = 2000000.0: Input should be less than or equal to 1000"),
        ({}, "rate_per_s = '(missing)': required field is missing. Fix: add rate_per_s"),
        ({"rate_per_s": 1.0, "cv": 2.0}, "cv = 2.0: unknown field. Fix: remove it or correct its spelling"),
    ],
)
def test_arrivals_refuse(fields: dict[str, float], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        ArrivalProcess(**fields)


def test_draws_refuse_negative_counts_and_seeds() -> None:
    with pytest.raises(InputError, match=r"count = -1: must be >= 0\. Fix: give a count of 0 or more"):
        ArrivalProcess(rate_per_s=1.0).sample_times_s(-1, seed=0)
    with pytest.raises(InputError, match=r"seed = -2: must be >= 0\. Fix: give a seed of 0 or more"):
        TokenLengths.constant(1, 1).sample(1, seed=-2)


# --- closed loops ---------------------------------------------------------------------------------------------------


def test_a_closed_loop_has_ten_requests_per_user_unless_given() -> None:
    """InferenceX: the number of prompts is 10 times the concurrency."""
    lengths = TokenLengths.constant(1024, 1024)
    assert Workload.closed(64, lengths).arrivals == ClosedLoop(concurrency=64, requests=0)
    assert ClosedLoop(concurrency=64).total_requests == 640
    assert ClosedLoop(concurrency=64, requests=100).total_requests == 100
    assert Workload.closed(64, lengths).is_closed
    assert not Workload.of(64.0, lengths).is_closed


@given(st.integers(1, 50), st.integers(0, 100), st.floats(0.0, 100.0))
def test_users_start_evenly_over_the_ramp(users: int, requests: int, ramp_s: float) -> None:
    starts = ClosedLoop(concurrency=users, requests=requests, ramp_s=ramp_s).start_times_s()
    assert starts.size == min(users, requests or 10 * users)
    assert starts[0] == 0.0
    assert np.diff(starts) == pytest.approx(np.full(starts.size - 1, ramp_s / users), abs=1e-9)


def test_the_rate_of_a_closed_loop_is_an_outcome() -> None:
    workload = Workload.closed(8, TokenLengths.constant(10, 5))
    for asked in (
        lambda: workload.rate_per_s,
        lambda: workload.at_rate(3.0),
        lambda: workload.arrivals.split(0.5),
        lambda: workload.open_arrivals,
        lambda: workload.arrivals.scv,
    ):
        with pytest.raises(InputError, match=r"workload\.concurrency = 8: a closed loop has no .* Fix: in its place"):
            asked()
