"""Routers against closed forms and limits; tests/serving holds them against the simulator."""

from __future__ import annotations

import numpy as np
import pytest

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


WORK = LatencyDistribution.from_samples(-np.log1p(-(np.arange(50_000) + 0.5) / 50_000))
"""Exponential, of mean 1 s."""


class TestClosedForms:
    def test_two_choices_of_very_many_is_mitzenmachers_fixed_point(self) -> None:
        # s_i = rho^(2^i - 1) and a(i) = s_i^2; the mean time in system at rho = 0.9 is sum_i rho^(2^i - 2) = 2.614 and
        # with it the wait 1.614 (Mitzenmacher 2001, theorem 5 for d = 2).
        assert two_choices_ahead(0.9, 10**6).sum() == pytest.approx(1.614, rel=0.01)

    def test_two_choices_of_two_is_the_shortest_queue(self) -> None:
        for load in (0.3, 0.9):
            two, shortest = (ROUTERS[r](WORK, load, 2) for r in ("two choices", "shortest"))
            assert two.mean_s == pytest.approx(shortest.mean_s, rel=1e-3)

    def test_one_server_has_no_choice(self) -> None:
        means = [ROUTERS[r](WORK, 0.7, 1).mean_s for r in ROUTERS]
        np.testing.assert_allclose(means, mmc_wait_s(0.7, 1.0, 1), rtol=2e-3)

    @pytest.mark.parametrize("load", [0.3, 0.9])
    @pytest.mark.parametrize("servers", [2, 16])
    def test_routers_rank(self, servers: int, load: float) -> None:
        means = {name: distribution(WORK, load, servers).mean_s for name, distribution in ROUTERS.items()}
        assert mmc_wait_s(load * servers, 1.0, servers) <= 1.001 * means["shortest"]
        assert means["shortest"] <= means["two choices"] * 1.001 < means["random"]
        assert means["round robin"] < means["random"]
        assert all_busy_chance(load, servers) <= erlang_c(servers, load)

    def test_heavy_traffic_forgets_the_router(self) -> None:
        # Joining the shortest queue is as good as one queue when the load tends to 1 (Foschini and Salz 1978).
        assert shortest_queue_wait_distribution(WORK, 0.99, 4).mean_s == pytest.approx(
            mmc_wait_s(3.96, 1.0, 4), rel=0.03
        )


class TestRoutedWait:
    def test_a_real_wait_moves_as_the_reference(self) -> None:
        random, routed = (
            random_wait_distribution(WORK, 0.8, 4),
            shortest_queue_wait_distribution(WORK, 0.8, 4),
        )
        slower = LatencyDistribution.from_samples(3.0 * random.support_s, random.weights)
        moved = rescaled_wait(slower, random, routed)
        assert moved.mean_s == pytest.approx(3.0 * routed.mean_s)
        assert moved.quantile_s(0.99) == pytest.approx(3.0 * routed.quantile_s(0.99), rel=0.02)
