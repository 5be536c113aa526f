"""Queues behind a delay: sums, limits and overload."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.queueing import LinkWait, QueueLatency, mixed_pool, with_delay
from planner.workload import ArrivalProcess, LatencyDistribution, TokenLengths
from tests.queueing.servers import linear

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
    later = (after.joint.first_s - before.joint.first_s) @ before.joint.first_mass
    assert later[before.joint.prompts.argmin()] == pytest.approx(1.5, rel=1e-6)
    assert later[before.joint.prompts.argmax()] == pytest.approx(0.0, abs=1e-9)


def test_a_link_that_cannot_keep_up_is_an_unstable_queue() -> None:
    link = LinkWait(LatencyDistribution.unbounded(), 1.2)
    after = with_delay(queue(), np.array([100.0, 900.0]), np.array([[0.5], [0.5]]), np.zeros(1), link)
    assert not after.stable
    assert math.isinf(after.ttft.mean_s)
    assert after.utilisation == 1.2
