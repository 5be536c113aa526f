"""The number running, and the wait for a slot, against Markov chains, closed forms and simulation."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest

from planner.queueing.batch_occupancy import (
    PromptEffect,
    SlotWork,
    idle_share_at_arrivals,
    mean_wait_when_blocked_s,
    running_distribution,
)
from tests.queueing.classic_queues import erlang_c, mdc_wait_s, pollaczek_khinchine_wait_s
from tests.queueing.servers import poisson


class TestNumberRunning:
    @pytest.mark.parametrize(("servers", "load"), [(1, 0.3), (8, 0.9), (50, 0.9)])
    def test_all_slots_taken_is_erlang_c(self, servers: int, load: float) -> None:
        counts = np.arange(servers + 1.0)
        distribution = running_distribution(counts, np.ones(servers + 1), load * servers, 1.0, float(servers))
        assert distribution.blocked == pytest.approx(erlang_c(servers, load), rel=1e-9)

    def test_step_times_that_grow_with_the_number_running(self) -> None:
        # The generator of n -> n + 1 at rate 3, n -> n - 1 at rate n / T(n), solved as it stands.
        counts = np.arange(81.0)
        times = 1.0 + 0.05 * counts
        generator = np.diag(np.full(80, 3.0), 1) + np.diag(counts[1:] / times[1:], -1)
        generator -= np.diag(generator.sum(axis=1))
        system = np.vstack([generator.T, np.ones(81)])
        exact = np.linalg.lstsq(system, np.append(np.zeros(81), 1.0), rcond=None)[0]
        assert running_distribution(counts, times, 3.0, 1.0).probabilities == pytest.approx(exact, abs=1e-9)

    @pytest.mark.parametrize("z", [0.3, 4.0])
    def test_dispersion_keeps_littles_law(self, z: float) -> None:
        distribution = running_distribution(np.arange(400.0), np.full(400, 0.01), 5000.0, z)
        assert distribution.mean == pytest.approx(50.0, rel=1e-6)
        assert distribution.std**2 == pytest.approx(50.0 * z, rel=0.03)

    def test_dispersion_is_that_of_geometric_batches(self) -> None:
        """Batches of mean z at rate 3 / z, each request with an exponential number of steps, solved as it stands."""
        counts, z, most = np.arange(161.0), 2.5, 160
        times = 1.0 + 0.03 * counts
        sizes = (1.0 - 1.0 / z) ** np.arange(most) / z
        generator = np.diag(counts[1:] / times[1:], -1)
        for n in range(most):
            generator[n, n + 1 :] += 3.0 / z * sizes[: most - n]
        generator -= np.diag(generator.sum(axis=1))
        exact = np.linalg.lstsq(np.vstack([generator.T, np.ones(161)]), np.append(np.zeros(161), 1.0), rcond=None)[0]
        assert running_distribution(counts, times, 3.0, z).probabilities == pytest.approx(exact, abs=1e-6)

    def test_prompts_change_nothing_where_requests_come_alone(self) -> None:
        """All who come while slots are free find one, however much of the time their prompts take."""
        counts = np.arange(17.0)
        at = counts, 1.0 + 0.02 * counts, 10.0, 1.0, 16.0 / 1.32
        assert running_distribution(*at, PromptEffect(1.0, 0.7)).blocked == pytest.approx(
            running_distribution(*at).blocked, rel=1e-9
        )

    @pytest.mark.parametrize("z", [0.3, 4.0])
    def test_tokens_are_made_as_fast_as_they_are_asked_for(self, z: float) -> None:
        counts = np.arange(600.0)
        times = 0.01 + 1e-4 * counts**0.9
        distribution = running_distribution(counts, times, 3000.0, z)
        assert distribution.probabilities[1:] @ (counts[1:] / times[1:]) == pytest.approx(3000.0, rel=1e-6)

    def test_a_request_of_a_poisson_stream_finds_what_there_is_and_itself_on_top(self) -> None:
        """PASTA (Wolff 1982): seen by tokens, n + 1 has the probability of n at a random instant."""
        counts = np.arange(200.0)
        times = 0.01 + 1e-3 * counts
        distribution = running_distribution(counts, times, 500.0, 1.0)
        seen = distribution.seen_by_tokens(times)
        assert seen == pytest.approx(distribution.probabilities[:-1] / distribution.probabilities[:-1].sum(), abs=1e-9)

    def test_regular_streams_meet_fewer_and_bursts_more(self) -> None:
        counts, times = np.arange(400.0), np.full(400, 0.01)
        met = [
            running_distribution(counts, times, 2000.0, z).seen_by_tokens(times) @ counts[1:] for z in (0.4, 1.0, 3.0)
        ]
        assert met == pytest.approx([20.4, 21.0, 23.0], rel=1e-3)  # E[n^2] / E[n] = mean + z


class TestSlots:
    """The wait for one of m slots against exact queues and a simulation of m servers."""

    @staticmethod
    def simulated(slots: int, load: float, arrival_scv: float, holding_s: Any, seed: int = 1) -> Any:
        """Waits in G/G/m with holding times of mean 1, first come first served."""
        gaps = np.diff(poisson(load * slots, arrival_scv).sample_times_s(holding_s.size + 1, seed))
        free, waits, now = [0.0] * slots, np.empty(holding_s.size), 0.0
        for i, (gap, held) in enumerate(zip(gaps.tolist(), holding_s.tolist(), strict=True)):
            now += gap
            start = max(now, free[0])
            waits[i] = start - now
            heapq.heapreplace(free, start + held)
        return waits[holding_s.size // 10 :]

    def test_erlang_2_arrivals_and_one_server(self) -> None:
        # E2/M/1 at half load: s (2 - s)^2 = 1, so s = (3 - sqrt 5) / 2 (Kleinrock 1975, section 6.4).
        assert 1.0 - idle_share_at_arrivals(0.5, 0.5) == pytest.approx((3.0 - np.sqrt(5.0)) / 2.0, abs=1e-12)

    @pytest.mark.parametrize("holding_scv", [0.0, 1.0, 4.0])
    def test_one_server_is_m_g_1(self, holding_scv: float) -> None:
        wait_s = 0.98 * mean_wait_when_blocked_s(0.98, 1.0, 1.0, SlotWork(1, holding_scv))
        assert wait_s == pytest.approx(pollaczek_khinchine_wait_s(0.98, 1.0, holding_scv), rel=0.03)

    @pytest.mark.parametrize(("slots", "load"), [(4, 0.9), (16, 0.7), (64, 0.9)])
    def test_constant_holding_times_are_m_d_c(self, slots: int, load: float) -> None:
        wait_s = erlang_c(slots, load) * mean_wait_when_blocked_s(load * slots, slots, 1.0, SlotWork(slots, 0.0))
        assert wait_s == pytest.approx(mdc_wait_s(load * slots, 1.0, slots), rel=0.12)

    @pytest.mark.parametrize(("slots", "load", "scv"), [(16, 0.7, 9.0), (64, 0.7, 4.0), (16, 0.7, 0.25)])
    def test_bursts_at_exponential_holding_times(self, slots: int, load: float, scv: float) -> None:
        waits = self.simulated(slots, load, scv, np.random.default_rng(2).exponential(size=120_000))
        dispersion = 1.0 + (scv - 1.0) / 2.0  # of two exponential times the smaller is half as long
        distribution = running_distribution(
            np.arange(slots + 1.0), np.ones(slots + 1), load * slots, dispersion, float(slots)
        )
        blocked_s = mean_wait_when_blocked_s(load * slots, slots, scv, SlotWork(slots, 1.0))
        assert distribution.blocked == pytest.approx((waits > 1e-9).mean(), rel=0.12)
        assert distribution.blocked * blocked_s == pytest.approx(waits.mean(), rel=0.12)

    def test_spread_holding_times_tell_less_where_slots_are_many(self) -> None:
        """Log-normal holding times of SCV 4 at a load of 0.7: (1 + SCV) / 2 makes the wait 70 % too long."""
        spread = np.log(5.0)
        held = np.exp(np.random.default_rng(3).normal(-spread / 2.0, np.sqrt(spread), 120_000))
        waits = self.simulated(16, 0.7, 1.0, held / held.mean())
        blocked_s = mean_wait_when_blocked_s(0.7 * 16, 16.0, 1.0, SlotWork(16, 4.0))
        assert blocked_s == pytest.approx(waits[waits > 1e-9].mean(), rel=0.15)
        assert 1.7 * blocked_s < (1.0 + 4.0) / 2.0 / (16.0 - 0.7 * 16)  # of those who wait, in heavy traffic
