"""Drift of a rate: time change, drawn paths, what is read from counts; against Cox processes and M_t/G/infinity."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from planner.core import InputError
from planner.workload import ArrivalProcess, RateDrift, measured_drift
from planner.workload.drift import MIX_STEP

FACTORS = st.lists(st.floats(0.0, 50.0), min_size=2, max_size=30).filter(lambda rates: sum(rates) > 0.1)


def drawn(rate_per_s: float, drift: RateDrift | None, scv: float = 1.0, rounds: float = 1.0) -> np.ndarray:
    """Arrivals [s] over so many rounds of the drift (or 20,000 s), from the start of the clock."""
    duration_s = rounds * drift.duration_s if drift else 20_000.0
    arrivals = ArrivalProcess(rate_per_s=rate_per_s, scv=scv, drift=drift)
    times_s = arrivals.sample_times_s(int(1.5 * rate_per_s * duration_s), seed=3)
    return times_s[times_s < duration_s]


# --- time change ----------------------------------------------------------------------------------------------------


@given(FACTORS, st.floats(0.01, 1e4), st.lists(st.floats(0.0, 1e5), min_size=1, max_size=20))
def test_operational_time_and_back_is_the_same_time(rates: list[float], window_s: float, times: list[float]) -> None:
    """Operational time passed at the clock of an operational time is that time, where the rate is zero too."""
    drift, operational_s = RateDrift.of(rates, window_s), np.array(times)
    passed = drift.operational_s(drift.clock_s(operational_s))
    assert passed == pytest.approx(operational_s, rel=1e-6, abs=1e-6 * window_s)


@given(FACTORS, st.integers(1, 7))
def test_operational_time_is_the_clock_after_whole_rounds(rates: list[float], rounds: int) -> None:
    drift = RateDrift.of(rates, 3.0)
    whole = np.array([rounds * drift.duration_s])
    assert drift.operational_s(whole) == pytest.approx(whole)


def test_time_runs_at_the_factor_of_its_window() -> None:
    drift = RateDrift.of([1.0, 3.0], window_s=10.0)
    passed = drift.operational_s(np.array([0.0, 4.0, 10.0, 12.0, 20.0, 24.0]))
    assert passed.tolist() == [0.0, 2.0, 5.0, 8.0, 20.0, 22.0]


@given(FACTORS)
def test_factors_have_mean_one_in_any_unit(rates: list[float]) -> None:
    once, thousandfold = RateDrift.of(rates, 60.0), RateDrift.of([1000.0 * rate for rate in rates], 60.0)
    assert once.array.mean() == pytest.approx(1.0)
    assert once.factors == pytest.approx(thousandfold.factors)
    assert once.peak == pytest.approx(max(rates) / np.mean(rates))
    assert once.share_of_requests().sum() == pytest.approx(1.0)


def test_drawn_arrivals_come_at_the_rate_of_their_window() -> None:
    """Counts of a Poisson stream with drift are Poisson with the mean of each window (Cox and Isham, section 3.3)."""
    drift = RateDrift.of([0.0, 1.0, 2.0, 5.0], window_s=50.0)
    times_s = ArrivalProcess(rate_per_s=20.0, drift=drift).sample_times_s(200_000, seed=9)
    start_s = float(np.random.default_rng(9).random()) * drift.duration_s
    place = ((times_s + start_s) // 50.0).astype(int) % 4
    assert np.bincount(place, minlength=4) / times_s.size == pytest.approx(drift.share_of_requests(), abs=0.005)
    assert not (place == 0).any()


# --- two numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cv", [0.05, 1.0])
def test_a_drawn_path_has_the_coefficient_of_variation_asked_for(cv: float) -> None:
    drift = RateDrift.random(cv, 300.0)
    assert drift.cv == pytest.approx(cv, rel=1e-3)
    assert drift.array.mean() == pytest.approx(1.0, abs=1e-9)
    assert min(drift.factors) >= 0.0


def test_the_correlation_of_a_drawn_path_falls_by_e_in_its_time() -> None:
    """Over many paths, of the ranks' normal scores: a path is 64 correlation times long."""
    lags = (1, 2, 4, 8)
    found = []
    for seed in range(60):
        path = RateDrift.random(0.3, 400.0, seed)
        deviations = path.array - 1.0
        found.append([np.mean(deviations[lag:] * deviations[:-lag]) / path.cv**2 for lag in lags])
    assert path.window_s == 100.0
    expected = [math.exp(-lag / 4.0) for lag in lags]
    assert np.mean(found, axis=0) == pytest.approx(expected, abs=0.06)


def test_paths_repeat_for_a_seed_and_differ_between_seeds() -> None:
    assert RateDrift.random(0.4, 60.0, seed=2) == RateDrift.random(0.4, 60.0, seed=2)
    assert RateDrift.random(0.4, 60.0, seed=2) != RateDrift.random(0.4, 60.0, seed=3)


# --- reading a drift ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate_per_s", "cv"), [(5.0, 0.3), (40.0, 0.6)])
def test_a_drawn_path_is_read_back(rate_per_s: float, cv: float) -> None:
    """CV of the drift, its window no longer than that of the path, and the rates themselves, window by window."""
    path = RateDrift.random(cv, 240.0, seed=5)
    times_s = drawn(rate_per_s, path)
    found = measured_drift(times_s)
    assert found is not None
    assert found.cv == pytest.approx(cv, rel=0.07)
    assert found.window_s <= path.window_s
    start_s = float(np.random.default_rng(3).random()) * path.duration_s
    middles_s = (np.arange(len(found.factors)) + 0.5) * found.window_s + start_s
    true = path.array[(middles_s // path.window_s).astype(int) % len(path.factors)]
    assert np.corrcoef(found.array, true)[0, 1] > 0.8


@pytest.mark.parametrize("seed", range(3))
def test_poisson_arrivals_have_no_drift(seed: int) -> None:
    for rate_per_s in (0.5, 5.0, 50.0):
        times_s = ArrivalProcess(rate_per_s=rate_per_s).sample_times_s(20_000, seed)
        assert measured_drift(times_s) is None


def test_a_metronome_has_no_drift() -> None:
    assert measured_drift(np.arange(30_000) * 0.37) is None


def test_what_is_left_in_operational_time_is_the_renewal_process() -> None:
    """Bursty gaps (SCV 3) times a drift: without the drift the gaps have their SCV again, with it more."""
    times_s = drawn(20.0, RateDrift.random(0.8, 600.0, seed=1), scv=3.0)
    drift = measured_drift(times_s)
    assert drift is not None
    raw = np.diff(times_s)
    left = np.diff(drift.operational_s(times_s))
    assert raw.var() / raw.mean() ** 2 > 5.0
    assert left.var() / left.mean() ** 2 == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("scv", [0.25, 1.0, 4.0])
def test_dispersion_of_drawn_counts_grows_linearly_with_the_window(scv: float) -> None:
    """Var N / E N = SCV + rate CV^2 w, as long as the window w is much shorter than the drift moves."""
    rate_per_s, drift = 20.0, RateDrift.random(0.4, 2000.0, seed=4)
    times_s = drawn(rate_per_s, drift, scv)
    for window_s in (10.0, 20.0, 50.0):
        counts = np.bincount((times_s // window_s).astype(int))[:-1]
        assert counts.var() / counts.mean() == pytest.approx(scv + rate_per_s * drift.cv**2 * window_s, rel=0.12)


# --- several streams ------------------------------------------------------------------------------------------------


def test_streams_together_drift_as_the_sum_of_their_rates() -> None:
    """Two drifts of other windows and rates: at any time their rates add up; a steady stream calms them."""
    slow, fast = RateDrift.of([1.0, 3.0], 600.0), RateDrift.of([2.0, 1.0, 3.0], 100.0)
    both = RateDrift.together([(5.0, slow), (15.0, fast)])
    assert both is not None
    middles_s = np.arange(12) * 100.0 + 50.0
    expected = [
        (5.0 * slow.factors[int(t // 600) % 2] + 15.0 * fast.factors[int(t // 100) % 3]) / 20.0 for t in middles_s
    ]
    assert both.factors == pytest.approx(expected)
    assert RateDrift.together([(1.0, slow), (2.0, slow)]).factors == pytest.approx(slow.factors)
    assert RateDrift.together([(1.0, slow), (1.0, None)]).cv == pytest.approx(slow.cv / 2.0)
    assert RateDrift.together([(1.0, None)]) is None


# --- what a memory leaves of it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_s", [3.0, 500.0])
def test_smoothed_factors_are_the_busy_servers_of_exponential_services(memory_s: float) -> None:
    """m' = (f(t) - m) / memory, integrated numerically until it repeats; means over the windows of the last round."""
    drift = RateDrift.of([1.0, 4.0, 0.0, 2.0, 0.5], window_s=40.0)
    state, means = 1.0, []
    for _ in range(20):
        means = []
        for factor in drift.factors:
            path = solve_ivp(
                lambda _, m, f=factor: [(f - m[0]) / memory_s, m[0] / 40.0], (0.0, 40.0), [state, 0.0], rtol=1e-9
            )
            state = float(path.y[0, -1])
            means.append(float(path.y[1, -1]))
    assert drift.smoothed(memory_s) == pytest.approx(means, rel=1e-4)
    assert drift.smoothed(0.0) == pytest.approx(drift.factors)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: RateDrift(window_s=1.0, factors=(0.5, 1.0)), "drift.factors = 0.75: their mean must be 1"),
        (lambda: RateDrift(window_s=1.0, factors=(-1.0, 3.0)), "drift.factors = -1.0: must be >= 0"),
        (lambda: RateDrift(window_s=0.0, factors=(1.0, 1.0)), "window_s = 0.0: Input should be greater than 0"),
        (lambda: RateDrift.of([0.0, 0.0], 5.0), "needs two or more finite rates"),
        (lambda: RateDrift.of([1.0, math.nan], 5.0), "needs two or more finite rates"),
        (lambda: RateDrift.random(4.0, 60.0), "drift.cv = 4.0: must be > 0 and <= 3"),
    ],
)
def test_what_is_no_drift_is_refused(make: object, line: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=re.escape(line)):
        make()


def test_longer_requests_in_the_busy_windows_are_read_from_a_recording() -> None:
    drift = RateDrift.of([10.0, 30.0], window_s=300.0)
    times_s = ArrivalProcess(rate_per_s=20.0, drift=drift).sample_times_s(60_000, seed=0)
    start = float(times_s[0])
    mean = np.where(np.floor((times_s - start) / 300.0) % 2 == 0.0, 1000.0, 2000.0)
    inputs = np.random.default_rng(1).exponential(mean).astype(np.int64) + 1
    outputs = np.random.default_rng(2).exponential(200.0, times_s.size).astype(np.int64) + 1
    found = measured_drift(times_s - start, tokens=(inputs, outputs))
    assert found is not None
    spreads = [
        np.sqrt(np.average((np.array(factors) - 1.0) ** 2, weights=found.factors))
        for factors in (found.input_factors, found.output_factors)
    ]
    assert spreads[0] == pytest.approx(1.0 / 3.0, rel=0.1)  # 1000 and 2000 about their mean
    assert spreads[1] < 0.05
    assert np.average(found.input_factors, weights=found.factors) == pytest.approx(1.0)


@given(st.lists(st.floats(0.1, 10.0), min_size=4, max_size=40), st.integers(2, 40))
def test_a_stretch_is_a_run_of_windows_and_no_other_is_more_like_all(rates: list[float], count: int) -> None:
    drift = RateDrift.of(rates, 60.0)
    stretch, mean = drift.stretch_like_all(60.0 * count)
    factors, size = np.array(drift.factors), min(count, len(rates))
    assert len(stretch.factors) == size
    places = [(first + np.arange(size)) % factors.size for first in range(factors.size)]
    got = mean * np.array(stretch.factors)
    assert any(got == pytest.approx(factors[place], rel=1e-9) for place in places)

    def distance(values: np.ndarray) -> float:
        levels = np.quantile(factors, (np.arange(32) + 0.5) / 32)
        apart = [abs((values <= level * (1 + 1e-12)).mean() - (factors <= level).mean()) for level in levels]
        return float(np.array(apart) @ np.diff(levels, append=factors.max()))

    assert distance(got) <= min(distance(factors[place]) for place in places) + 0.05 * factors.std()


def test_a_stretch_of_a_long_path_swings_as_the_path_does() -> None:
    drift = RateDrift.random(0.4, 300.0, seed=3)
    stretch, mean = drift.stretch_like_all(0.2 * drift.duration_s)
    assert stretch.cv * mean == pytest.approx(drift.cv, rel=0.15) and mean == pytest.approx(1.0, abs=0.1)


def test_a_stretch_keeps_the_lengths_of_its_windows() -> None:
    rates = np.array([1.0, 3.0, 1.0, 3.0])
    busy = RateDrift.of(rates, 60.0).model_copy(update={"input_factors": (0.7, 1.1, 0.7, 1.1)})
    stretch, _ = busy.stretch_like_all(120.0)
    assert dict(zip(stretch.factors, stretch.input_factors, strict=True)) == {
        0.5: pytest.approx(0.7),
        1.5: pytest.approx(1.1),
    }


def test_a_stretch_in_which_nobody_comes_is_none() -> None:
    stretch, mean = RateDrift.of([0.0] * 50 + [1.0] * 2, 60.0).stretch_like_all(180.0)
    assert mean > 0.0 and max(stretch.factors) > 0.0


@given(FACTORS, st.integers(0, 10_000))
def test_mixes_are_all_windows_once_and_bring_what_all_of_them_bring(rates: list[float], seed: int) -> None:
    drift = RateDrift.of(rates, 60.0)
    inputs = np.random.default_rng(seed).uniform(0.5, 1.5, len(rates))
    inputs /= np.average(inputs, weights=drift.array)
    drift = drift.model_copy(update={"input_factors": tuple(inputs.tolist())})
    mixes = drift.mixes(1.0, 0.0)
    assert sorted(np.concatenate([mix.windows for mix in mixes]).tolist()) == list(range(len(rates)))
    assert sum(mix.share for mix in mixes) == pytest.approx(1.0)
    assert sum(mix.share * mix.inputs for mix in mixes) == pytest.approx(1.0, abs=0.5 * MIX_STEP + 1e-9)
    work = drift.work(1.0, 0.0)
    assert len(mixes) < 2 or work[mixes[-1].windows].min() >= work[mixes[0].windows].max()


def test_requests_that_are_alike_all_the_time_have_one_mix() -> None:
    drift = RateDrift(window_s=60.0, factors=(0.5, 1.5), input_factors=(1.015, 0.995), output_factors=(1.0, 1.0))
    assert [(mix.windows.tolist(), mix.rate, mix.inputs) for mix in drift.mixes(1.0, 1.0)] == [([0, 1], 1.0, 1.0)]
