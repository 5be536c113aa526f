"""Overload over a finite time against closed forms, steady states, and a simulated M/G/1 queue."""

from __future__ import annotations

import numpy as np
import pytest

from planner.queueing import transient_wait_distribution, work_variance_per_s
from planner.queueing.overload import transient_wait_cdf
from tests.queueing.classic_queues import pollaczek_khinchine_wait_s


def waits_of(horizon_s: float, rate_per_s: float, scv: float, runs: int, seed: int = 2) -> np.ndarray:
    """Waits in M/G/1 (gamma work of mean 1 s) that starts empty, all runs together."""
    rng, every = np.random.default_rng(seed), []
    for _ in range(runs):
        arrive = np.sort(rng.random(rng.poisson(rate_per_s * horizon_s))) * horizon_s
        work = rng.gamma(1.0 / scv, scv, arrive.size) if scv > 0.0 else np.ones(arrive.size)
        # Lindley: the wait is the walk of work less gaps, above its running minimum.
        walk = np.concatenate([[0.0], np.cumsum(work[:-1] - np.diff(arrive))])
        every.append(walk - np.minimum.accumulate(walk))
    return np.concatenate(every)


class TestAgainstSimulation:
    @pytest.mark.parametrize(
        ("load", "horizon_s", "scv"),
        [(1.2, 200.0, 0.0), (1.5, 200.0, 3.0), (2.0, 100.0, 1.0), (1.05, 1000.0, 1.0), (0.9, 500.0, 0.0)],
    )
    def test_waits_over_a_horizon(self, load: float, horizon_s: float, scv: float) -> None:
        truth = waits_of(horizon_s, load, scv, runs=600)
        distribution = transient_wait_distribution(load, work_variance_per_s(load, 1.0, scv), horizon_s)
        assert distribution.mean_s == pytest.approx(truth.mean(), rel=0.08)
        for p in (0.5, 0.9, 0.99):
            assert distribution.quantile_s(p) == pytest.approx(np.quantile(truth, p), rel=0.1, abs=0.5), p


class TestClosedForms:
    def test_a_stable_load_tends_to_its_steady_state(self) -> None:
        # Reflected Brownian motion: exponential of mean v / (2 |m|); for M/D/1 at rho = 0.9 that is P-K's 4.5 s.
        v = work_variance_per_s(0.9, 1.0, 0.0)
        distribution = transient_wait_distribution(0.9, v, 100.0, start_s=1e6)
        assert distribution.mean_s == pytest.approx(v / 0.2, rel=0.02)
        assert distribution.mean_s == pytest.approx(pollaczek_khinchine_wait_s(0.9, 1.0, 0.0), rel=0.02)
        assert distribution.quantile_s(0.99) == pytest.approx(v / 0.2 * np.log(100.0), rel=0.03)

    def test_a_critical_load_grows_with_the_root_of_time(self) -> None:
        # |N(0, v t)|: median 0.6745 sqrt(v t).
        assert transient_wait_cdf([0.6745 * 3.0], 9.0, 0.0, 1.0)[0] == pytest.approx(0.5, abs=1e-4)
        means = [transient_wait_distribution(1.0, 1.0, h).mean_s for h in (100.0, 400.0)]
        assert means[1] / means[0] == pytest.approx(2.0, rel=0.02)

    def test_the_distribution_is_a_distribution(self) -> None:
        x = np.linspace(0.0, 500.0, 400)
        for load in (0.5, 1.0, 3.0):
            distribution = transient_wait_cdf(x, 50.0, load - 1.0, 2.0)
            assert (
                (np.diff(distribution) >= -1e-12).all()
                and distribution[0] == pytest.approx(0.0, abs=1e-9)
                and distribution[-1] > 0.999
            )

    def test_longer_and_heavier_is_worse(self) -> None:
        assert transient_wait_distribution(1.2, 1.0, 100.0).mean_s < transient_wait_distribution(1.2, 1.0, 200.0).mean_s
        assert transient_wait_distribution(1.2, 1.0, 100.0).mean_s < transient_wait_distribution(1.3, 1.0, 100.0).mean_s


def test_without_fluctuation_waits_are_those_of_the_fluid() -> None:
    """Alike requests at equal distances: the one after t seconds waits (rho - 1) t, and nobody below capacity."""
    found = transient_wait_distribution(1.5, 0.0, 100.0)
    nearly = transient_wait_distribution(1.5, 1e-6, 100.0)
    assert found.mean_s == pytest.approx(25.0)
    for probability in (0.1, 0.5, 0.99):
        assert found.quantile_s(probability) == pytest.approx(nearly.quantile_s(probability), rel=0.03)
    assert transient_wait_distribution(0.8, 0.0, 100.0).mean_s == 0.0
