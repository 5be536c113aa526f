"""Traces against their statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.core import InputError
from planner.traffic import Trace
from planner.workload import ArrivalProcess


def _arrivals_only(times_s: np.ndarray) -> Trace:
    ones = np.ones(times_s.size)
    return Trace.from_arrays(times_s, ones, ones)


def test_poisson_arrivals_have_scv_and_dispersion_one() -> None:
    trace = _arrivals_only(ArrivalProcess(rate_per_s=10.0).sample_times_s(200_000, seed=2))
    assert trace.rate_per_s == pytest.approx(10.0, rel=0.015)
    assert trace.arrival_scv() == pytest.approx(1.0, abs=0.03)
    assert trace.dispersion(1.0) == pytest.approx(1.0, abs=5 * math.sqrt(2.0 / 20_000))
    assert trace.dispersion(10.0) == pytest.approx(1.0, abs=5 * math.sqrt(2.0 / 2000))


def test_dispersion_of_a_renewal_process_tends_to_the_scv_of_its_gaps() -> None:
    """Renewal theorem for the variance (Cox, Renewal Theory, 1962, sec. 4.5); 4000 windows of about 100 arrivals."""
    trace = _arrivals_only(ArrivalProcess(rate_per_s=1.0, scv=4.0).sample_times_s(400_000, seed=9))
    assert trace.dispersion(100.0) == pytest.approx(4.0, abs=5 * 4.0 * math.sqrt(2.0 / 4000))


def test_dispersion_sees_drift_that_the_scv_does_not() -> None:
    """Poisson at 5/s and then 15/s: SCV near 1.3 at most, counts in 10 s windows vary as 1 + 10 Var[rate] / E[rate]."""
    slow = ArrivalProcess(rate_per_s=5.0).sample_times_s(10_000, seed=1)
    fast = slow[-1] + ArrivalProcess(rate_per_s=15.0).sample_times_s(30_000, seed=2)
    trace = _arrivals_only(np.concatenate([slow, fast]))
    assert trace.arrival_scv() < 1.7
    assert trace.dispersion(10.0) == pytest.approx(1.0 + 10.0 * 25.0 / 10.0, rel=0.1)


def test_dispersion_by_counting_windows() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(500)) * 60.0
    trace = _arrivals_only(times)
    counts = [int(((times - times[0]) // 7.0 == k).sum()) for k in range(int((times[-1] - times[0]) // 7.0))]
    assert trace.dispersion(7.0) == pytest.approx(np.var(counts) / np.mean(counts))


def test_spread_undoes_a_coarse_clock() -> None:
    """Poisson arrivals stamped by a clock of 3 s look far burstier; spreading brings SCV 1 back, counts stay."""
    times = ArrivalProcess(rate_per_s=3.4).sample_times_s(20_000, seed=4)
    ticked = _arrivals_only(np.floor(times / 3.0) * 3.0)
    assert ticked.arrival_scv() > 8.0
    spread = ticked.spread(3.0, seed=0)
    assert spread.arrival_scv() == pytest.approx(1.0, abs=0.05)
    assert spread.rate_per_s == pytest.approx(ticked.rate_per_s, rel=1e-3)
    assert "spread over 3 s" in spread.source
    assert (np.diff(spread.arrival_s) >= 0).all()


def test_trace_hands_over_its_arrivals() -> None:
    trace = Trace.from_arrays([0.0, 1.0, 3.0], [1, 1, 1], [1, 1, 1])
    assert trace.arrivals().rate_per_s == pytest.approx(2 / 3)
    assert trace.arrivals(5.0).rate_per_s == 5.0
    assert trace.arrivals().scv == pytest.approx(1 / 9)
    silent = _arrivals_only(np.append(np.linspace(0, 1, 5000), 1e6))
    assert silent.arrival_scv() > 1000.0
    found = silent.arrivals()
    assert found.drift is not None
    assert found.drift.peak > 1000.0
    assert found.scv <= 1000.0


def test_statistics_refuse_what_has_no_meaning() -> None:
    single = Trace.from_arrays([4.0], [1], [1])
    with pytest.raises(InputError, match=r"arrival_s = 0\.0: first to last arrival must take 1e-09 s or more"):
        _ = single.rate_per_s
    with pytest.raises(InputError, match=r"first to last arrival"):
        single.arrival_scv()
    trace = Trace.from_arrays([0.0, 1.0, 10.0], [1] * 3, [1] * 3)
    for window in (6.0, 0.0, -1.0, math.nan, math.inf, 1e-12):
        with pytest.raises(InputError, match=r"window_s = .*must lie between 1e-08 and 5 s for a trace of 10 s"):
            trace.dispersion(window)
    with pytest.raises(InputError, match=r"step_s = 0\.0: must be > 0"):
        trace.spread(0.0, seed=0)
    with pytest.raises(InputError, match=r"seed = -1: must be >= 0"):
        trace.spread(1.0, seed=-1)


def test_arrays_are_checked_like_rows() -> None:
    with pytest.raises(InputError, match=r"row 2 output_tokens = 0: must be a whole number"):
        Trace.from_arrays([0, 1], [1, 1], [1, 0])
    with pytest.raises(InputError, match=r"trace = \[1, 2\]: needs one or more requests and as many of each column"):
        Trace.from_arrays([0, 1], [1], [1, 1])
    with pytest.raises(InputError, match=r"trace = \['a'\]: must be numbers"):
        Trace.from_arrays(["a"], [1], [1])
