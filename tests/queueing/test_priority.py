"""Priorities in M/G/1 against closed forms, the conservation law, and a simulation of the queue itself."""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
import pytest
from scipy.special import ndtri

from planner.queueing import priority_second_moments, priority_waits, stretched_wait
from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import LatencyDistribution
from tests.queueing.classic_queues import pollaczek_khinchine_wait_s


def lognormal(mean: float, scv: float, points: int = 400) -> LatencyDistribution:
    """A distribution of equally likely points, rescaled to its mean."""
    values = np.exp(np.sqrt(np.log1p(scv)) * ndtri((np.arange(points) + 0.5) / points))
    return LatencyDistribution.from_samples(values / values.mean() * mean)


def moments(works: list[LatencyDistribution]) -> np.ndarray:
    return np.array([[float(w.support_s**k @ w.weights) for w in works] for k in (1, 2, 3)])


CASES = {
    "few urgent": ([0.1, 0.7], [lognormal(0.5, 1.0), lognormal(1.0, 1.0)]),
    "three": ([0.2, 0.2, 0.2], [LatencyDistribution.constant(1.0), lognormal(1.5, 1.0), lognormal(2.0, 0.5)]),
}


@lru_cache(maxsize=8)
def simulated(name: str, preemptive: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Waits and delays (sojourn less work) per class of one server, event by event."""
    rates, works = CASES[name]
    rng, count = np.random.default_rng(11), 300_000
    times = np.cumsum(rng.exponential(1.0 / sum(rates), count))
    kinds = rng.choice(len(rates), count, p=np.array(rates) / sum(rates))
    sizes = np.empty(count)
    for k, work in enumerate(works):
        here = kinds == k
        sizes[here] = rng.choice(work.support_s, int(here.sum()), p=work.weights)
    arrive, kind, left = times.tolist(), kinds.tolist(), sizes.tolist()
    started, ended = [-1.0] * count, [0.0] * count
    queue: list[tuple[int, int]] = []
    now, busy, nxt = 0.0, -1, 0
    while nxt < count or busy >= 0:
        end = now + left[busy] if busy >= 0 else np.inf
        if nxt < count and arrive[nxt] < end:
            if busy >= 0:
                left[busy] -= arrive[nxt] - now
            now = arrive[nxt]
            heappush(queue, (kind[nxt], nxt))
            if busy >= 0 and preemptive and kind[nxt] < kind[busy]:
                heappush(queue, (kind[busy], busy))
                busy = -1
            nxt += 1
        else:
            now, ended[busy], busy = end, end, -1
        if busy < 0 and queue:
            busy = heappop(queue)[1]
            if started[busy] < 0.0:
                started[busy] = now
    waits, delays = np.array(started) - times, np.array(ended) - times - sizes
    return [waits[kinds == k] for k in range(len(rates))], [delays[kinds == k] for k in range(len(rates))]


class TestAgainstSimulation:
    @pytest.mark.parametrize("preemptive", [False, True])
    @pytest.mark.parametrize("name", CASES)
    def test_moments_of_every_class(self, name: str, preemptive: bool) -> None:
        rates, works = CASES[name]
        waits, delays = simulated(name, preemptive)
        found = priority_waits(rates, *moments(works)[:2], preemptive)
        np.testing.assert_allclose(found, [each.mean() for each in delays], rtol=0.05)
        second = priority_second_moments(rates, moments(works), preemptive)
        np.testing.assert_allclose(second, [(each**2).mean() for each in waits], rtol=0.1)

    def test_a_stretch_by_two_moments_keeps_the_tail_of_the_low_class(self) -> None:
        rates, works = CASES["few urgent"]
        fcfs = mg1_wait_distribution(sum(rates), LatencyDistribution.mixture(list(zip(works, rates, strict=True))))
        first = priority_waits(rates, *moments(works)[:2])[1] / fcfs.mean_s
        second = priority_second_moments(rates, moments(works))[1] / float(fcfs.support_s**2 @ fcfs.weights)
        stretched = stretched_wait(fcfs, first, second)
        measured = np.quantile(simulated("few urgent", False)[0][1], 0.99)
        assert stretched.quantile_s(0.99) == pytest.approx(measured, rel=0.15)
        assert stretched.cdf(0.0) == fcfs.cdf(0.0)


class TestClosedForms:
    def test_preemptive_exponential_is_the_textbook_formula(self) -> None:
        # M/M/1 preemptive resume, mu = 1: T_k = 1 / ((1 - s_{k-1}) (1 - s_k)) (Kleinrock II, eq. 3.39 with mu = 1).
        delays = priority_waits([0.2, 0.3, 0.4], [1.0] * 3, [2.0] * 3, preemptive=True)
        np.testing.assert_allclose(delays + 1.0, [1 / 0.8, 1 / (0.8 * 0.5), 1 / (0.5 * 0.1)])

    def test_one_class_is_pollaczek_khinchine(self) -> None:
        assert priority_waits([0.7], [1.0], [3.0])[0] == pytest.approx(pollaczek_khinchine_wait_s(0.7, 1.0, 2.0))

    def test_classes_by_size_are_phipps(self) -> None:
        # Shortest first: rate E[S^2] / 2 / ((1 - rho(< x)) (1 - rho(<= x))) (Phipps 1956).
        sizes, mass = np.array([0.5, 1.0, 2.0]), np.array([0.5, 0.25, 0.25])
        rest, upto = 0.6 * (0.5 * 0.25 + 0.25 * 1.0 + 0.25 * 4.0) / 2.0, 0.6 * np.cumsum([0.25, 0.25, 0.5])
        expected = rest / ((1 - np.append(0, upto[:-1])) * (1 - upto))
        np.testing.assert_allclose(priority_waits(0.6 * mass, sizes, sizes**2), expected)

    @pytest.mark.parametrize("preemptive", [False, True])
    def test_only_the_low_class_starves(self, preemptive: bool) -> None:
        waits = priority_waits([0.5, 0.8], [1.0, 1.0], [1.0, 1.0], preemptive)
        assert np.isfinite(waits[0]) and waits[1] == np.inf

    def test_a_class_that_is_always_there_is_in_the_way_half_a_service(self) -> None:
        # The server never idles: the high class sees vacations of one low service each; M/D/1 with vacations
        # (Fuhrmann and Cooper 1985): its own wait plus half a service.
        high, _ = priority_waits([0.5, 10.0], [1.0, 1.0], [1.0, 1.0])
        assert high == pytest.approx(0.5 + 0.5)
