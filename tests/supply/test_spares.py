"""Spares and availability against exhaustive failure, the binomial distribution, a simulation, published data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from planner.core import InputError
from planner.supply import FleetLimits, replicas_that_may_fail
from planner.supply.spares import replicas_on_server
from planner.supply.spot import availability, most_replicas_up, probability_up, replicas_needed


def surviving(replicas: int, gpus_per_replica: int, node_gpus: int, limits: FleetLimits) -> int:
    """Replicas left after the worst failure that a pool must withstand."""
    return replicas - replicas_that_may_fail(replicas, gpus_per_replica, node_gpus, limits)


def servers_filled(replicas: int, gpus_per_replica: int, node_gpus: int) -> list[set[int]]:
    """Replicas by server, placed GPU by GPU: the next one goes where it fits whole, a larger one opens new servers."""
    servers: list[set[int]] = []
    free = 0
    for replica in range(replicas):
        if gpus_per_replica > free:
            opened = -(-gpus_per_replica // node_gpus)
            servers += [set() for _ in range(opened)]
            free = opened * node_gpus
            for server in servers[-opened:]:
                server.add(replica)
            free = free - gpus_per_replica if opened == 1 else 0
        else:
            servers[-1].add(replica)
            free -= gpus_per_replica
    return servers


def test_no_failure_that_is_allowed_leaves_fewer_than_surviving() -> None:
    """Every server and every set of spares is made to fail; the worst case is reached, and never exceeded."""
    assert surviving(5, 2, 8, FleetLimits()) == 5
    for replicas, gpus, node, spares in itertools.product(range(1, 7), (1, 2, 3, 4, 8, 12), (4, 8), (0, 1, 2)):
        limits = FleetLimits(spare_replicas=spares, survives_node_loss=True)
        left = [
            replicas - len(server | set(others))
            for server in servers_filled(replicas, gpus, node)
            for others in itertools.combinations(range(replicas), min(spares, replicas))
        ]
        assert min(left) == surviving(replicas, gpus, node, limits)


def test_over_several_servers_no_failure_that_is_allowed_leaves_fewer_than_surviving() -> None:
    """Replicas dealt to servers in turn: the fullest of them is the worst that can be lost."""
    for replicas, servers, spares in itertools.product(range(1, 13), range(1, 6), (0, 1, 2)):
        if replicas > 4 * servers:  # of two GPUs, four to a server
            continue
        limits = FleetLimits(spare_replicas=spares, survives_node_loss=True)
        dealt = [len(range(first, replicas, servers)) for first in range(servers)]
        expected = replicas - min(replicas, spares + max(dealt))
        assert replicas - replicas_that_may_fail(replicas, 2, 8, limits, servers) == expected


def test_tail_is_the_binomial_of_scipy() -> None:
    for replicas in (1, 2, 7, 40, 900, 20_000):
        for needed in sorted({0, 1, replicas // 2, replicas - 3, replicas - 1, replicas, replicas + 1}):
            for available in (0.2, 0.9, 0.995, 1.0):
                expected = binom.sf(needed - 1, replicas, available)
                assert probability_up(replicas, max(needed, 0), available) == pytest.approx(
                    expected, rel=1e-8, abs=1e-12
                )


def test_fewest_replicas_are_found_as_by_counting_up() -> None:
    for needed, available, probability in itertools.product((1, 2, 3, 9, 30), (0.3, 0.9, 0.99), (0.5, 0.9, 0.999)):
        count = needed
        while binom.sf(needed - 1, count, available) < probability:
            count += 1
        assert replicas_needed(needed, available, probability) == count


def test_limits_of_availability() -> None:
    assert availability(100.0, 0.0) == 1.0
    exactly = probability_up(1, 1, 0.5)
    assert most_replicas_up(1, 0.5, exactly) == replicas_needed(1, 0.5, exactly) == 1, "met exactly is met"
    assert replicas_needed(5, 1.0, 0.999999) == 5
    assert replicas_needed(0, 0.5, 0.9) == 0
    assert probability_up(0, 0, 0.5) == 1.0
    assert probability_up(10**6, 1, 1e-9) == pytest.approx(-np.expm1(10**6 * np.log1p(-1e-9)), rel=1e-6)


def test_published_failure_rate_of_h100() -> None:
    """Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions of 16,384 H100 in 54 days.

    One in 50,677 GPU-hours, "approximately one failure every 3 hours" of the cluster. Replicas of 8 GPUs that take a
    day to replace are then up 99.6 % of the time. Of 102, Poisson with mean 0.385: at most 2 down 99.3 % of the time;
    of 101, at most 1 down 94 %.
    """
    gpu_hours = 16_384 * 54 * 24 / 419
    assert gpu_hours / 16_384 == pytest.approx(3.0, rel=0.04)
    up = availability(gpu_hours / 8, 24.0)
    assert up == pytest.approx(0.996, abs=5e-4)
    assert replicas_needed(100, up, 0.99) == 102


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: replicas_on_server(1, 0, 8), "gpus_per_replica = 0: must be >= 1 GPU"),
        (lambda: replicas_on_server(1, 1, 0), "node_gpus = 0: must be >= 1 GPU"),
        (lambda: replicas_on_server(1, 1, 8, 0), "servers = 0: must be >= 1"),
        (lambda: surviving(-1, 1, 8, FleetLimits()), "replicas = -1: must be >= 0"),
        (lambda: availability(0.0, 1.0), "up_h = 0.0: must be finite and > 0 h"),
        (lambda: availability(1.0, -1.0), "down_h = -1.0: must be finite and >= 0 h"),
        (lambda: probability_up(3, 2, 1.5), r"available = 1.5: must lie in \(0, 1\]"),
        (lambda: replicas_needed(3, 0.9, 1.0), r"probability = 1.0: must lie in \(0, 1\)"),
    ],
)
def test_errors_instruct(call: object, text: str) -> None:
    with pytest.raises(InputError, match="^" + text + r".*\. Fix: "):
        call()  # type: ignore[operator]
