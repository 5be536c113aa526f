"""Routers against closed forms, limits, and a simulation of c servers first come, first served."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

import numpy as np
import pytest
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
from tests.queueing.classic_queues import erlang_c, mmc_wait_s

ROUTERS = {
    "random": random_wait_distribution,
    "round robin": round_robin_wait_distribution,
    "two choices": two_choices_wait_distribution,
    "shortest": shortest_queue_wait_distribution,
}


@lru_cache(maxsize=8)
def work(scv: float) -> LatencyDistribution:
    """Constant, exponential or log-normal work of mean 1 s."""
    u = (np.arange(50_000) + 0.5) / 50_000
    values = np.ones(1) if scv == 0 else -np.log1p(-u) if scv == 1 else np.exp(np.sqrt(np.log1p(scv)) * ndtri(u))
    return LatencyDistribution.from_samples(values / values.mean())


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
        else:
            first = int(picks[i][0] * servers)
            k = min(range(servers), key=lambda j: (queued(j, now), (j + first) % servers))
        start = max(free[k], now)
        waits[i], free[k] = start - now, start + size
        if router in ("two choices", "shortest"):
            ends[k].append(free[k])
    return waits[count // 20 :]


class TestAgainstSimulation:
    @pytest.mark.parametrize(
        ("routers", "servers", "load", "scv", "within"),
        [
            (("two choices", "shortest"), 2, 0.5, 0.0, (0.12, 0.2, 0.02)),
            (("two choices", "shortest"), 8, 0.85, 1.0, (0.12, 0.2, 0.02)),
            (("two choices", "shortest"), 8, 0.8, 4.0, (0.2, 0.4, 0.06)),
            (("random", "round robin"), 4, 0.8, 1.0, (0.12, 0.15, 0.1)),
        ],
    )
    @pytest.mark.parametrize("place", [0, 1])
    def test_means_and_tails(
        self, routers: tuple[str, str], place: int, servers: int, load: float, scv: float, within: tuple[float, ...]
    ) -> None:
        router = routers[place]
        distribution, waits = ROUTERS[router](work(scv), load, servers), simulated(router, servers, load, scv)
        assert distribution.mean_s == pytest.approx(waits.mean(), rel=within[0])
        assert distribution.quantile_s(0.99) == pytest.approx(np.quantile(waits, 0.99), rel=within[1])
        assert distribution.cdf(0.0) == pytest.approx(np.mean(waits <= 0.0), abs=within[2])


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

    @pytest.mark.parametrize("load", [0.3, 0.9])
    @pytest.mark.parametrize("servers", [2, 16])
    def test_routers_rank(self, servers: int, load: float) -> None:
        means = {name: distribution(work(1.0), load, servers).mean_s for name, distribution in ROUTERS.items()}
        assert mmc_wait_s(load * servers, 1.0, servers) <= 1.001 * means["shortest"]
        assert means["shortest"] <= means["two choices"] * 1.001 < means["random"]
        assert means["round robin"] < means["random"]
        assert all_busy_chance(load, servers) <= erlang_c(servers, load)

    def test_heavy_traffic_forgets_the_router(self) -> None:
        # Joining the shortest queue is as good as one queue when the load tends to 1 (Foschini and Salz 1978).
        assert shortest_queue_wait_distribution(work(1.0), 0.99, 4).mean_s == pytest.approx(
            mmc_wait_s(3.96, 1.0, 4), rel=0.03
        )


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
