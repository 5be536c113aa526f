"""Shared KV links against M/G/1, limits, and a simulation of senders and receivers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.queueing import (
    LinkWait,
    QueueLatency,
    exposed_in_pieces_s,
    link_wait,
    mixed_pool,
    with_delay,
)
from planner.queueing.mg1 import mg1_wait_distribution
from planner.workload import ArrivalProcess, LatencyDistribution, TokenLengths
from tests.queueing.classic_queues import pollaczek_khinchine_wait_s
from tests.queueing.servers import linear


def transfers(scv: float) -> LatencyDistribution:
    """Gamma durations of mean 1 s as equally likely points."""
    if scv == 0.0:
        return LatencyDistribution.constant(1.0)
    values = np.sort(np.random.default_rng(1).gamma(1.0 / scv, scv, 20_000))
    return LatencyDistribution.from_samples(values / values.mean())


def simulated(
    rate: float, distribution: LatencyDistribution, senders: int, receivers: int, count: int = 120_000
) -> np.ndarray:
    """Waits where the links of sender and receiver each carry what came to them, in the order in which it is ready."""
    rng = np.random.default_rng(8)
    ready = np.cumsum(rng.exponential(1.0 / rate, count)).tolist()
    lasts = rng.choice(distribution.support_s, count).tolist()
    x, y = rng.integers(senders, size=count).tolist(), rng.integers(receivers, size=count).tolist()
    free_x, free_y, waits = [0.0] * senders, [0.0] * receivers, np.empty(count)
    for i in range(count):
        waits[i] = max(0.0, free_x[x[i]] - ready[i], free_y[y[i]] - ready[i])
        free_x[x[i]], free_y[y[i]] = (max(ready[i], free) + lasts[i] for free in (free_x[x[i]], free_y[y[i]]))
    return waits[count // 20 :]


class TestAgainstSimulation:
    @pytest.mark.parametrize("scv", [0.0, 1.0])
    @pytest.mark.parametrize(
        ("senders", "receivers", "busier"),
        [(1, 1, 0.8), (1, 4, 0.7), (2, 2, 0.7), (4, 4, 0.6), (8, 2, 0.8), (3, 10, 0.9)],
    )
    def test_means_and_tails(self, senders: int, receivers: int, busier: float, scv: float) -> None:
        rate, distribution = busier * min(senders, receivers), transfers(scv)
        found, truth = (
            link_wait(rate, distribution, senders, receivers).wait,
            simulated(rate, distribution, senders, receivers),
        )
        assert found.mean_s == pytest.approx(truth.mean(), rel=0.15)
        assert found.quantile_s(0.99) == pytest.approx(np.quantile(truth, 0.99), rel=0.15)


class TestLimits:
    def test_one_pair_is_one_queue_not_two(self) -> None:
        assert link_wait(0.8, transfers(0.0)).wait.mean_s == pytest.approx(
            pollaczek_khinchine_wait_s(0.8, 1.0, 0.0), rel=1e-3
        )

    def test_one_sender_never_meets_another_at_a_receiver(self) -> None:
        found = link_wait(0.5, transfers(1.0), senders=1, receivers=8)
        assert found.wait.mean_s == pytest.approx(mg1_wait_distribution(0.5, transfers(1.0)).mean_s, rel=1e-3)

    def test_many_senders_leave_the_receivers_queue(self) -> None:
        found = link_wait(0.6, transfers(0.0), senders=10_000, receivers=1)
        assert found.wait.mean_s == pytest.approx(pollaczek_khinchine_wait_s(0.6, 1.0, 0.0), rel=0.01)

    def test_nothing_to_send_waits_for_nothing(self) -> None:
        assert link_wait(0.0, transfers(0.0), 2, 2).wait.mean_s == 0.0

    def test_overload_is_an_answer(self) -> None:
        for x, y in ((1, 4), (4, 1), (2, 2)):
            found = link_wait(2.5, transfers(0.0), x, y)
            assert not found.stable and found.wait.mean_s == np.inf and found.utilisation > 1.0

    def test_bursts_wait_longer(self) -> None:
        calm, bursty = (link_wait(0.5, transfers(0.0), dispersion=i).wait.mean_s for i in (1.0, 4.0))
        assert bursty > 2.0 * calm


class TestPieces:
    """A prompt of k chunks, the cache of each sent when its step ends."""

    STEPS = np.array([0.3, 0.4, 0.5, 0.2])

    def test_an_infinitely_fast_link_delays_nothing(self) -> None:
        assert exposed_in_pieces_s(np.zeros(4), self.STEPS) == 0.0

    def test_a_link_faster_than_every_step_leaves_the_last_piece(self) -> None:
        assert exposed_in_pieces_s([0.1, 0.1, 0.1, 0.05], self.STEPS) == pytest.approx(0.05)

    def test_a_link_slower_than_every_step_never_rests(self) -> None:
        """It begins when the first step ends, and takes all bytes / bandwidth."""
        pieces = np.array([2.0, 2.0, 2.0, 1.0])
        assert exposed_in_pieces_s(pieces, self.STEPS) == pytest.approx(7.0 - self.STEPS[1:].sum())

    def test_in_between_it_is_what_a_clock_says(self) -> None:
        rng = np.random.default_rng(3)
        for _ in range(50):
            pieces, steps = rng.exponential(1.0, 6), rng.exponential(1.0, 6)
            now = free = 0.0
            for piece, step in zip(pieces, steps, strict=True):
                now += step
                free = max(free, now) + piece
            assert exposed_in_pieces_s(pieces, steps) == pytest.approx(free - now, rel=1e-12)

    def test_one_piece_waits_for_all_of_it(self) -> None:
        assert exposed_in_pieces_s([0.8], [5.0]) == 0.8

    def test_layer_by_layer_the_step_hides_all_but_a_layer(self) -> None:
        """max(transfer / layers, transfer - last step): Patel et al. (2024), section 4.3."""
        assert exposed_in_pieces_s([0.5], [10.0], layers=50) == pytest.approx(0.01)
        assert exposed_in_pieces_s([0.5], [10.0], layers=1) == 0.5
        assert exposed_in_pieces_s([0.8], [0.5], layers=32) == pytest.approx(0.3)

    @pytest.mark.parametrize("layers", [None, 1, 32])
    def test_pieces_are_never_later_than_one(self, layers: int | None) -> None:
        rng = np.random.default_rng(4)
        pieces, steps = rng.exponential(1.0, (8, 200)), rng.exponential(1.0, (8, 200))
        whole = np.concatenate([np.zeros((7, 200)), pieces.sum(axis=0)[None]])
        found = exposed_in_pieces_s(pieces, steps, layers)
        assert (found <= exposed_in_pieces_s(whole, steps, layers) + 1e-12).all()
        assert (found >= pieces[-1] / (layers or 1)).all()

    def test_steps_that_are_none_change_nothing(self) -> None:
        pieces, steps = np.array([0.5, 0.4, 0.0]), np.array([0.2, 0.3, 0.0])
        assert exposed_in_pieces_s(pieces, steps) == exposed_in_pieces_s(pieces[:2], steps[:2])


# --- queues behind a delay ----------------------------------------------------------------------------------------

LENGTHS = TokenLengths.from_pairs([100, 900], [20, 20], [0.5, 0.5])
NO_WAIT = LinkWait(LatencyDistribution.constant(0.0), 0.1)


def queue() -> QueueLatency:
    return mixed_pool(linear(1e-5, 2048, base_s=0.01), ArrivalProcess(rate_per_s=2.0), LENGTHS, 1)


def test_no_delay_changes_nothing() -> None:
    before = queue()
    after = with_delay(before, np.array([100.0, 900.0]), np.array([[0.5], [0.5]]), np.zeros(1), NO_WAIT)
    assert after.ttft.mean_s == pytest.approx(before.ttft.mean_s, rel=1e-9)
    assert after.tpot is before.tpot


def test_the_mean_grows_by_the_mean_delay_and_only_for_those_that_have_it() -> None:
    before = queue()
    chances = np.array([[0.25, 0.25], [0.5, 0.0]])
    after = with_delay(before, np.array([100.0, 900.0]), chances, np.array([0.0, 3.0]), NO_WAIT)
    assert after.ttft.mean_s - before.ttft.mean_s == pytest.approx(0.75, rel=1e-6)
    assert before.joint is not None
    assert after.joint is not None
    apart = with_delay(replace(before, joint=None), np.array([100.0, 900.0]), chances, np.array([0.0, 3.0]), NO_WAIT)
    assert apart.e2e.mean_s - before.e2e.mean_s == pytest.approx(0.75, rel=1e-6)
    later = (after.joint.first_s - before.joint.first_s) @ before.joint.first_mass
    assert later[before.joint.prompts.argmin()] == pytest.approx(1.5, rel=1e-6)
    assert later[before.joint.prompts.argmax()] == pytest.approx(0.0, abs=1e-9)


def test_a_link_that_cannot_keep_up_is_an_unstable_queue() -> None:
    link = LinkWait(LatencyDistribution.unbounded(), 1.2)
    after = with_delay(queue(), np.array([100.0, 900.0]), np.array([[0.5], [0.5]]), np.zeros(1), link)
    assert not after.stable
    assert math.isinf(after.ttft.mean_s)
    assert after.utilisation == 1.2
