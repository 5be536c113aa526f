"""Priorities in M/G/1 against closed forms, the conservation law, and a simulation of the queue itself."""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
import pytest

from planner.queueing import priority_second_moments, priority_waits, stretched_wait
from planner.queueing.distributions import rescaled_wait
from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import LatencyDistribution
from tests.queueing.classic_queues import pollaczek_khinchine_wait_s
from tests.queueing.exact_priorities import (
    priority_distributions,
    shortest_first_distributions,
    shortest_first_waits,
)


def lognormal(mean: float, scv: float, points: int = 400) -> LatencyDistribution:
    """A distribution of equally likely points, rescaled to its mean."""
    from scipy.special import ndtri

    sigma = np.sqrt(np.log1p(scv))
    values = np.exp(sigma * ndtri((np.arange(points) + 0.5) / points))
    return LatencyDistribution.from_samples(values / values.mean() * mean)


def moments(works: list[LatencyDistribution]) -> np.ndarray:
    return np.array([[float(w.support_s**k @ w.weights) for w in works] for k in (1, 2, 3)])


@lru_cache(maxsize=8)
def simulated(name: str, preemptive: bool) -> tuple[list[np.ndarray], ...]:
    """Waits, sojourns and delays (sojourn less work) per class of one server, event by event."""
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
    waits, sojourns = np.array(started) - times, np.array(ended) - times
    return tuple([times[kinds == k] for k in range(len(rates))] for times in (waits, sojourns, sojourns - sizes))


CASES = {
    "two": ([0.3, 0.5], [lognormal(1.0, 0.5), lognormal(1.0, 1.5)]),
    "few urgent": ([0.1, 0.7], [lognormal(0.5, 1.0), lognormal(1.0, 1.0)]),
    "three": ([0.2, 0.2, 0.2], [LatencyDistribution.constant(1.0), lognormal(1.5, 1.0), lognormal(2.0, 0.5)]),
}


class TestAgainstSimulation:
    @pytest.mark.parametrize("preemptive", [False, True])
    @pytest.mark.parametrize("name", CASES)
    def test_mean_and_tail_of_every_class(self, name: str, preemptive: bool) -> None:
        rates, works = CASES[name]
        distributions = priority_distributions(rates, works, preemptive)
        waits, sojourns, _ = simulated(name, preemptive)
        for distribution, wait, sojourn in zip(distributions, waits, sojourns, strict=True):
            for found, measured in ((distribution.wait, wait), (distribution.sojourn, sojourn)):
                assert found.mean_s == pytest.approx(measured.mean(), rel=0.05)
                assert found.quantile_s(0.5) == pytest.approx(np.quantile(measured, 0.5), rel=0.08, abs=0.05)
                assert found.quantile_s(0.95) == pytest.approx(np.quantile(measured, 0.95), rel=0.08)
                assert found.quantile_s(0.99) == pytest.approx(np.quantile(measured, 0.99), rel=0.12)
            assert distribution.wait.cdf(0.0) == pytest.approx(np.mean(wait <= 1e-12), abs=0.01)

    @pytest.mark.parametrize("preemptive", [False, True])
    @pytest.mark.parametrize("name", CASES)
    def test_moments_of_every_class(self, name: str, preemptive: bool) -> None:
        rates, works = CASES[name]
        waits, _, delays = simulated(name, preemptive)
        found = priority_waits(rates, *moments(works)[:2], preemptive)
        np.testing.assert_allclose(found, [each.mean() for each in delays], rtol=0.05)
        second = priority_second_moments(rates, moments(works), preemptive)
        np.testing.assert_allclose(second, [(each**2).mean() for each in waits], rtol=0.1)

    def test_a_stretch_by_two_moments_keeps_the_tail_of_the_low_class(self) -> None:
        rates, works = CASES["few urgent"]
        fcfs = mg1_wait_distribution(sum(rates), LatencyDistribution.mixture(list(zip(works, rates, strict=True))))
        first = priority_waits(rates, *moments(works)[:2])[1] / fcfs.mean_s
        second = priority_second_moments(rates, moments(works))[1] / float(fcfs.support_s**2 @ fcfs.weights)
        measured = simulated("few urgent", False)[0][1]
        stretched = stretched_wait(fcfs, first, second)
        assert stretched.quantile_s(0.99) == pytest.approx(np.quantile(measured, 0.99), rel=0.15)
        assert stretched.cdf(0.0) == fcfs.cdf(0.0)


class TestClosedForms:
    @pytest.mark.parametrize("preemptive", [False, True])
    @pytest.mark.parametrize("name", CASES)
    def test_distributions_have_cobhams_means_and_the_second_moments(self, name: str, preemptive: bool) -> None:
        rates, works = CASES[name]
        distributions = priority_distributions(rates, works, preemptive)
        delays = [
            distribution.sojourn.mean_s - work.mean_s for distribution, work in zip(distributions, works, strict=True)
        ]
        np.testing.assert_allclose(delays, priority_waits(rates, *moments(works)[:2], preemptive), rtol=0.01)
        second = [float(distribution.wait.support_s**2 @ distribution.wait.weights) for distribution in distributions]
        np.testing.assert_allclose(second, priority_second_moments(rates, moments(works), preemptive), rtol=0.02)

    def test_the_highest_preemptive_class_has_the_server_to_itself(self) -> None:
        rates, works = CASES["three"]
        alone = mg1_wait_distribution(rates[0], works[0])
        first = priority_distributions(rates, works, preemptive=True)[0]
        assert first.wait.quantile_s(0.99) == pytest.approx(alone.quantile_s(0.99), rel=1e-6)

    def test_preemptive_exponential_is_the_textbook_formula(self) -> None:
        # M/M/1 preemptive resume, mu = 1: T_k = 1 / ((1 - s_{k-1}) (1 - s_k)) (Kleinrock II, eq. 3.39 with mu = 1).
        delays = priority_waits([0.2, 0.3, 0.4], [1.0] * 3, [2.0] * 3, preemptive=True)
        np.testing.assert_allclose(delays + 1.0, [1 / 0.8, 1 / (0.8 * 0.5), 1 / (0.5 * 0.1)])

    def test_one_class_is_pollaczek_khinchine(self) -> None:
        assert priority_waits([0.7], [1.0], [3.0])[0] == pytest.approx(pollaczek_khinchine_wait_s(0.7, 1.0, 2.0))

    def test_kleinrocks_conservation_law(self) -> None:
        # sum rho_k W_k = rho / (1 - rho) * rate E[S^2] / 2, whatever the order (Kleinrock II, eq. 3.16).
        for name, (rates, works) in CASES.items():
            first, second, _ = moments(works)
            load, rest = float(rates @ first), float(rates @ second) / 2.0
            for order in (list(range(len(rates))), list(range(len(rates)))[::-1]):
                r = np.array(rates)[order]
                waits = priority_waits(r, first[order], second[order])
                assert float(r * first[order] @ waits) == pytest.approx(load / (1.0 - load) * rest), name


class TestShortestFirst:
    def test_classes_by_size_are_phipps(self) -> None:
        waits = shortest_first_waits(0.6, [0.5, 1.0, 2.0], [0.5, 0.25, 0.25])
        rest = 0.6 * (0.5 * 0.25 + 0.25 * 1.0 + 0.25 * 4.0) / 2.0
        upto = 0.6 * np.cumsum([0.25, 0.25, 0.5])
        np.testing.assert_allclose(waits, rest / ((1 - np.append(0, upto[:-1])) * (1 - upto)))

    def test_it_beats_first_come_in_the_mean_and_loses_in_the_tail(self) -> None:
        work = lognormal(1.0, 2.0)
        groups = shortest_first_distributions(0.8, work)
        all_of_them = LatencyDistribution.mixture([(g.distribution.wait, g.share) for g in groups])
        fcfs = mg1_wait_distribution(0.8, work)
        assert all_of_them.mean_s < 0.6 * fcfs.mean_s
        assert all_of_them.quantile_s(0.999) > fcfs.quantile_s(0.999)
        exact = shortest_first_waits(0.8, work.support_s, work.weights) @ work.weights
        assert all_of_them.mean_s == pytest.approx(float(exact), rel=0.05)


class TestOverload:
    @pytest.mark.parametrize("preemptive", [False, True])
    def test_only_the_low_class_starves(self, preemptive: bool) -> None:
        waits = priority_waits([0.5, 0.8], [1.0, 1.0], [1.0, 1.0], preemptive)
        assert np.isfinite(waits[0]) and waits[1] == np.inf
        distributions = priority_distributions([0.5, 0.8], [LatencyDistribution.constant(1.0)] * 2, preemptive=True)
        assert np.isfinite(distributions[0].wait.mean_s) and distributions[1].wait.mean_s == np.inf

    def test_a_class_that_is_always_there_is_in_the_way_half_a_service(self) -> None:
        # The server never idles: the high class sees vacations of one low service each; M/D/1 with vacations
        # (Fuhrmann and Cooper 1985): its own wait plus half a service.
        high, _ = priority_waits([0.5, 10.0], [1.0, 1.0], [1.0, 1.0])
        assert high == pytest.approx(0.5 + 0.5)


class TestTransport:
    def test_a_reference_becomes_its_successor(self) -> None:
        rates, works = CASES["two"]
        fcfs = mg1_wait_distribution(sum(rates), LatencyDistribution.mixture(list(zip(works, rates, strict=True))))
        low = priority_distributions(rates, works)[1].wait
        moved = rescaled_wait(fcfs, fcfs, low)
        for p in (0.5, 0.9, 0.99, 0.999):
            assert moved.quantile_s(p) == pytest.approx(low.quantile_s(p), rel=0.02)

    def test_it_is_homogeneous_and_changes_nothing_where_nothing_changes(self) -> None:
        distribution, other = lognormal(3.0, 1.0, 4000), lognormal(1.0, 0.5, 4000)
        assert rescaled_wait(distribution, other, other).quantile_s(0.99) == pytest.approx(
            distribution.quantile_s(0.99), rel=0.01
        )
        double = LatencyDistribution.from_samples(2.0 * other.support_s)
        assert rescaled_wait(distribution, other, double).mean_s == pytest.approx(2.0 * distribution.mean_s)
