"""Counts of renewal processes against sampled gaps and closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing.renewal import (
    count_moments,
    empty_window_probability,
    excess_arrivals,
    index_of_dispersion,
    round_robin_share,
)
from tests.queueing.servers import poisson


class TestRenewal:
    @pytest.mark.parametrize(("scv", "window"), [(0.25, 0.3), (0.25, 20.0), (4.0, 0.3), (4.0, 20.0)])
    def test_counts_of_sampled_gaps(self, scv: float, window: float) -> None:
        times = poisson(1.0, scv).sample_times_s(400_000, seed=1)
        starts = np.random.default_rng(2).uniform(100.0, times[-1] - 100.0, 200_000)
        counts = np.searchsorted(times, starts + window) - np.searchsorted(times, starts)
        assert index_of_dispersion(window, scv) == pytest.approx(counts.var() / counts.mean(), rel=0.05)
        before = np.arange(200_000, 400_000) - np.searchsorted(times, times[200_000:] - window)
        assert window + float(excess_arrivals(np.array([window]), scv)[0]) == pytest.approx(
            before.mean(), rel=0.05, abs=0.005
        )

    @pytest.mark.parametrize("scv", [0.25, 4.0])
    def test_counts_before_an_arrival_are_those_of_sampled_gaps(self, scv: float) -> None:
        times = np.cumsum(np.random.default_rng(3).gamma(1.0 / scv, scv, 400_000))
        for window in (1.5, 6.0):
            before = np.arange(1000, times.size) - np.searchsorted(times, times[1000:] - window)
            mean, variance = count_moments(np.array([window]), scv)
            assert float(mean[0]) == pytest.approx(before.mean(), rel=0.02)
            assert float(variance[0]) == pytest.approx(before.var(), rel=0.03)

    @pytest.mark.parametrize("scv", [0.25, 4.0])
    def test_chance_of_nobody(self, scv: float) -> None:
        gaps = np.diff(poisson(1.0, scv).sample_times_s(200_000, seed=1))
        for window in (0.1, 1.0, 3.0):
            chance = float(empty_window_probability(np.array([window]), scv)[0])
            assert chance == pytest.approx((gaps > window).mean(), abs=0.005)

    def test_long_windows_tend_to_the_scv(self) -> None:
        assert index_of_dispersion(1e4, 3.0) == pytest.approx(3.0, rel=0.01)
        assert 1e4 + float(excess_arrivals(np.array([1e4]), 3.0)[0]) == pytest.approx(1e4 + 1.0)

    def test_every_third_arrival(self) -> None:
        gaps = np.diff(poisson(6.0, 2.0).sample_times_s(300_000, seed=5)[::3])
        one = round_robin_share(poisson(6.0, 2.0), 3)
        assert one.rate_per_s == pytest.approx(1.0 / gaps.mean(), rel=0.01)
        assert one.scv == pytest.approx(gaps.var() / gaps.mean() ** 2, rel=0.02)
