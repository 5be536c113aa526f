"""Routers against closed forms, limits, and a simulation of c servers first come, first served."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtri

from planner.queueing import (
    random_wait_distribution,
    rescaled_wait,
    round_robin_wait_distribution,
    shortest_queue_wait_distribution,
    two_choices_wait_distribution,
)
from planner.queueing.load_balancing import (
    all_busy_chance,
    two_choices_ahead,
)
from planner.workload import LatencyDistribution
from tests.queueing.classic_queues import erlang_c, mmc_wait_s, pooled_wait_distribution

ROUTERS = {
    "random": random_wait_distribution,
    "round robin": round_robin_wait_distribution,
    "two choices": two_choices_wait_distribution,
    "shortest": shortest_queue_wait_distribution,
    "pooled": pooled_wait_distribution,
}


@lru_cache(maxsize=8)
def work(scv: float) -> LatencyDistribution:
    """Constant, exponential or log-normal work of mean 1 s."""
    u = (np.arange(50_000) + 0.5) / 50_000
    values = np.ones(1) if scv == 0 else -np.log1p(-u) if scv == 1 else np.exp(np.sqrt(np.log1p(scv)) * ndtri(u))
    return LatencyDistribution.from_samples(values / values.mean())


@lru_cache(maxsize=64)
def simulated(router: str, servers: int, load: float, scv: float, count: int = 60_000) -> np.ndarray:
    """Waits of requests at `servers` servers, each with its own queue, request by request."""
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(1.0 / (load * servers), count)).tolist()
    sizes = rng.choice(work(scv).support_s, count).tolist()
    free, ends, waits = [0.0] * servers, [[] for _ in range(servers)], np.empty(count)
    picks = rng.random((count, 2)).tolist()

    def queued(k: int, now: float) -> int:
        done = bisect_right(ends[k], now)
        if done:
            del ends[k][:done]
        return len(ends[k])

    for i, (now, size) in enumerate(zip(times, sizes, strict=True)):
        if router == "random":
            k = int(picks[i][0] * servers)
        elif router == "round robin":
            k = i % servers
        elif router == "two choices":
            a, b = int(picks[i][0] * servers), int(picks[i][1] * (servers - 1))
            b += b >= a
            k = a if queued(a, now) <= queued(b, now) else b
        elif router == "shortest":
            first = int(picks[i][0] * servers)
            k = min(range(servers), key=lambda j: (queued(j, now), (j + first) % servers))
        else:
            k = free.index(min(free))
        start = max(free[k], now)
        waits[i], free[k] = start - now, start + size
        if router in ("two choices", "shortest"):
            ends[k].append(free[k])
    return waits[count // 20 :]


class TestAgainstSimulation:
    @pytest.mark.parametrize("scv", [0.0, 1.0])
    @pytest.mark.parametrize(("servers", "load"), [(2, 0.5), (4, 0.8), (8, 0.85)])
    @pytest.mark.parametrize("router", ["two choices", "shortest"])
    def test_means_and_tails(self, router: str, servers: int, load: float, scv: float) -> None:
        distribution, waits = ROUTERS[router](work(scv), load, servers), simulated(router, servers, load, scv)
        assert distribution.mean_s == pytest.approx(waits.mean(), rel=0.12)
        assert distribution.quantile_s(0.99) == pytest.approx(np.quantile(waits, 0.99), rel=0.2)
        assert distribution.cdf(0.0) == pytest.approx(np.mean(waits <= 0.0), abs=0.02)

    @pytest.mark.parametrize("router", ["two choices", "shortest"])
    def test_very_variable_work(self, router: str) -> None:
        distribution, waits = ROUTERS[router](work(4.0), 0.8, 8), simulated(router, 8, 0.8, 4.0)
        assert distribution.mean_s == pytest.approx(waits.mean(), rel=0.2)
        assert distribution.quantile_s(0.99) == pytest.approx(np.quantile(waits, 0.99), rel=0.4)

    @pytest.mark.parametrize("router", ["random", "round robin", "pooled"])
    def test_the_others(self, router: str) -> None:
        distribution, waits = ROUTERS[router](work(1.0), 0.8, 4), simulated(router, 4, 0.8, 1.0)
        assert distribution.mean_s == pytest.approx(waits.mean(), rel=0.12)
        assert distribution.quantile_s(0.99) == pytest.approx(np.quantile(waits, 0.99), rel=0.15)


class TestClosedForms:
    def test_two_choices_of_very_many_is_mitzenmachers_fixed_point(self) -> None:
        # s_i = rho^(2^i - 1) and a(i) = s_i^2; the mean time in system at rho = 0.9 is sum_i rho^(2^i - 2) = 2.614 and
        # with it the wait 1.614 (Mitzenmacher 2001, theorem 5 for d = 2).
        assert two_choices_ahead(0.9, 10**6).sum() == pytest.approx(1.614, rel=0.01)

    def test_two_choices_of_two_is_the_shortest_queue(self) -> None:
        for load in (0.3, 0.9):
            two, shortest = (ROUTERS[r](work(1.0), load, 2) for r in ("two choices", "shortest"))
            assert two.mean_s == pytest.approx(shortest.mean_s, rel=1e-3)

    def test_one_server_has_no_choice(self) -> None:
        means = [ROUTERS[r](work(1.0), 0.7, 1).mean_s for r in ROUTERS]
        np.testing.assert_allclose(means, mmc_wait_s(0.7, 1.0, 1), rtol=2e-3)

    def test_shortest_of_two_is_the_exact_mean_wait(self) -> None:
        # Two exponential servers, shortest queue: W solved from the two-dimensional Markov chain.
        for load in (0.5, 0.8):
            assert shortest_queue_wait_distribution(work(1.0), load, 2).mean_s == pytest.approx(
                _shortest_of_two(load), rel=0.03
            )

    @pytest.mark.parametrize("servers", [4, 8])
    @pytest.mark.parametrize("load", [0.5, 0.8])
    def test_in_turn_is_the_queue_of_erlang_arrivals(self, load: float, servers: int) -> None:
        # E_c/M/1 waits s / (1 - s), s = (c rho / (c rho + 1 - s))^c (Kleinrock 1975, ch. 6).
        s = brentq(lambda s: s - (servers * load / (servers * load + 1.0 - s)) ** servers, 0.0, 1.0 - 1e-9)
        assert round_robin_wait_distribution(work(1.0), load, servers).mean_s == pytest.approx(s / (1.0 - s), rel=0.08)

    @pytest.mark.parametrize("router", ROUTERS)
    def test_nobody_waits_where_nobody_comes(self, router: str) -> None:
        assert ROUTERS[router](work(1.0), 0.0, 4).mean_s == 0.0

    def test_many_servers_scatter_a_burst(self) -> None:
        alone, bursts = (two_choices_wait_distribution(work(1.0), 0.8, 1000, scv).mean_s for scv in (1.0, 4.0))
        assert bursts == pytest.approx(alone, rel=0.01)

    def test_the_pool_is_m_m_c(self) -> None:
        distribution = pooled_wait_distribution(work(1.0), 0.8, 4)
        assert distribution.mean_s == pytest.approx(mmc_wait_s(3.2, 1.0, 4), rel=1e-3)
        assert distribution.cdf(0.0) == pytest.approx(1.0 - erlang_c(4, 0.8))

    @pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
    @pytest.mark.parametrize("servers", [2, 4, 16])
    def test_routers_rank(self, servers: int, load: float) -> None:
        means = {name: distribution(work(1.0), load, servers).mean_s for name, distribution in ROUTERS.items()}
        assert means["pooled"] <= means["shortest"] <= means["two choices"] * 1.001 < means["random"]
        assert means["round robin"] < means["random"]
        assert all_busy_chance(load, servers) <= erlang_c(servers, load)

    def test_larger_pools_wait_less(self) -> None:
        for router in ("two choices", "shortest", "pooled"):
            means = [ROUTERS[router](work(1.0), 0.8, c).mean_s for c in (1, 2, 4, 8, 16, 64)]
            assert means == sorted(means, reverse=True)

    def test_heavy_traffic_forgets_the_router(self) -> None:
        # Joining the shortest queue is as good as one queue when the load tends to 1 (Foschini and Salz 1978).
        assert shortest_queue_wait_distribution(work(1.0), 0.99, 4).mean_s == pytest.approx(
            mmc_wait_s(3.96, 1.0, 4), rel=0.03
        )

    def test_many_servers_are_taken_in_stride(self) -> None:
        assert shortest_queue_wait_distribution(work(1.0), 0.5, 100_000).mean_s == pytest.approx(0.0, abs=1e-9)


class TestRoutedWait:
    def test_a_real_wait_moves_as_the_reference(self) -> None:
        random, routed = (
            random_wait_distribution(work(1.0), 0.8, 4),
            shortest_queue_wait_distribution(work(1.0), 0.8, 4),
        )
        slower = LatencyDistribution.from_samples(3.0 * random.support_s, random.weights)
        moved = rescaled_wait(slower, random, routed)
        assert moved.mean_s == pytest.approx(3.0 * routed.mean_s)
        assert moved.quantile_s(0.99) == pytest.approx(3.0 * routed.quantile_s(0.99), rel=0.02)


def _shortest_of_two(load: float, most: int = 60) -> float:
    """Mean wait of two exponential servers behind a shortest-queue router, from the chain of the two queue lengths."""
    side = most + 1
    rates = np.zeros((side * side, side * side))
    for m in range(side):
        for n in range(side):
            here = m * side + n
            to_first = 1.0 if m < n else 0.5 if m == n else 0.0
            if m < most and n < most:
                rates[here, (m + 1) * side + n] += 2.0 * load * to_first
                rates[here, m * side + n + 1] += 2.0 * load * (1.0 - to_first)
            if m:
                rates[here, (m - 1) * side + n] += 1.0
            if n:
                rates[here, m * side + n - 1] += 1.0
    from scipy.sparse import csc_matrix, diags
    from scipy.sparse.linalg import spsolve

    balance = (csc_matrix(rates.T) - diags(rates.sum(axis=1))).tolil()
    balance[0, :] = 1.0
    right = np.zeros(side * side)
    right[0] = 1.0
    distribution = spsolve(balance.tocsc(), right).reshape(side, side)
    m, n = np.indices((side, side))
    return float((distribution * np.minimum(m, n)).sum())
