"""The Wiener-Hopf solution of the backlog against a plain linear solve of the same chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.queueing import (
    BatchServer,
)
from planner.queueing.backlog import Regime, solve_backlog, token_arrivals


class TestBacklog:
    """The Wiener-Hopf solution against a plain linear solve of the same chain."""

    @staticmethod
    def brute(
        duration_s: np.ndarray[Any, Any], full_s: float, distribution: Any, rate: float, idle: float, size: int
    ) -> Any:
        """Stationary distribution of q' = max(q - m, 0) + A(tau) on 0..size-1, A summed term by term."""

        def arriving(seconds: float) -> Any:
            total, power, chance = np.zeros(size), np.zeros(size), np.exp(-rate * seconds)
            power[0] = 1.0
            for count in range(60):
                total += chance * power
                power = np.convolve(power, distribution)[:size]
                chance *= rate * seconds / (count + 1)
            return total

        below = duration_s.size
        matrix = np.zeros((size, size))
        full = arriving(full_s)
        for q in range(size):
            if q < below:
                row = arriving(duration_s[q])
                if q == 0:
                    jump = np.zeros(size)
                    jump[: distribution.size] = distribution
                    row = (1.0 - idle) * row + idle * jump
                matrix[q] = row
            else:
                matrix[q, q - below :] = full[: size - q + below]
        matrix[:, -1] += 1.0 - matrix.sum(axis=1)
        system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
        return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]

    @pytest.mark.parametrize(("load", "idle"), [(0.02, 1.0), (0.3, 0.4), (0.8, 0.0)])
    def test_distribution(self, load: float, idle: float) -> None:
        sizes, weights = np.array([60.0, 240.0, 600.0]), np.array([0.5, 0.3, 0.2])
        server = BatchServer(lambda n, p: 0.01 + 1e-5 * np.maximum(n + p, 50.0), 250, 1e5)
        rate = load * 240 / float(server.step_s(np.array(10.0), np.array(240.0))) / float(sizes @ weights)
        stream = token_arrivals(rate, sizes, weights, float(sizes**2 @ weights), 1.0)
        solved = solve_backlog(server, Regime(10.0, 10.0, idle, 240.0), stream)
        unit = solved.cell
        distribution = np.zeros(int(600 / unit) + 2)
        for size, weight in zip(sizes, weights, strict=True):  # between two cells: share out, keep the mean
            cell, rest = divmod(size / unit, 1.0)
            distribution[int(cell)] += weight * (1.0 - rest)
            distribution[int(cell) + 1] += weight * rest
        assert solved.below * unit == pytest.approx(240.0)
        exact = self.brute(solved.duration_s, solved.full_s, distribution, rate, idle, 900)
        assert solved.distribution[:120] == pytest.approx(exact[:120], abs=2e-5)  # exp(-9) of the tail is cut

    def test_bursts_keep_the_token_rate_and_have_the_variance_asked_for(self) -> None:
        sizes, weights = np.array([100.0, 500.0]), np.array([0.7, 0.3])
        mean, square = float(sizes @ weights), float(sizes**2 @ weights)
        for dispersion in (0.2, 1.0, 3.0):
            stream = token_arrivals(2.0, sizes, weights, square, dispersion)
            assert stream.tokens_per_s == pytest.approx(2.0 * mean)
            assert stream.variance_per_s == pytest.approx(2.0 * (square + (dispersion - 1.0) * mean**2))


class TestRealCosts:
    """A regular stream is one of shrunk prompts; what a prompt costs beyond its tokens is shrunk with it."""

    def test_a_cost_of_each_prompt_is_paid_once(self) -> None:
        """One prompt a step at most: T = tau(0) + rate T (tau(L) - tau(0)), however regular the stream is."""
        server = BatchServer(lambda n, p: 0.01 + 0.05 * (p > 0) + 1e-5 * p + 0.0 * n, 100_000, 1000.0)
        stream = token_arrivals(0.5, np.array([1000.0]), np.ones(1), 1e6, dispersion=0.3)
        regime = Regime(running=10.0, decoding=10.0, idle=0.0, chunk=99_990.0)
        exact = 0.01 / (1.0 - 0.5 * (0.05 + 0.01))
        assert solve_backlog(server, regime, stream, real_costs=True).mean_step_s == pytest.approx(exact, rel=0.01)
        assert solve_backlog(server, regime, stream).mean_step_s > 1.05 * exact

    def test_poisson_streams_are_as_they_were(self) -> None:
        server = BatchServer(lambda n, p: 0.01 + 0.05 * (p > 0) + 1e-5 * p + 0.0 * n, 4000, 1000.0)
        stream = token_arrivals(4.0, np.array([1000.0]), np.ones(1), 1e6, dispersion=1.0)
        regime = Regime(running=10.0, decoding=10.0, idle=0.0, chunk=3990.0)
        real, plain = (solve_backlog(server, regime, stream, real_costs=real).mean_step_s for real in (True, False))
        assert real == plain


class TestElasticity:
    """By how much steps lengthen where more comes: held against what they do at a rate 1 % higher."""

    @pytest.mark.parametrize("running", [10.0, 0.0], ids=["beside decodes", "prompts first"])
    @pytest.mark.parametrize("first_s", [0.0, 0.02], ids=["every token alike", "the first token costs most"])
    def test_steps_lengthen_as_it_says(self, first_s: float, running: float) -> None:
        server = BatchServer(lambda n, p: 0.005 + first_s * (p > 0) + 1e-5 * p + 0.0 * n, 8000, 1000.0)
        regime = Regime(running, decoding=10.0, idle=0.0, chunk=7990.0)
        streams = [token_arrivals(10.0 * more, np.array([500.0]), np.ones(1), 25e4, 1.0) for more in (1.0, 1.01)]
        now, more = (solve_backlog(server, regime, stream) for stream in streams)
        assert now.elasticities[0] == pytest.approx(100.0 * (more.mean_gap_s / now.mean_gap_s - 1.0), rel=0.02)
        if running:  # where prompts go first what all tokens cost stands for what one more does
            longer = token_arrivals(10.0, np.array([505.0]), np.ones(1), 505.0**2, 1.0)
            stretched = 100.0 * (solve_backlog(server, regime, longer).mean_gap_s / now.mean_gap_s - 1.0)
            assert now.elasticities[1] == pytest.approx(stretched, rel=0.04)
