"""Spares and spot against exhaustive failure, the binomial distribution, and a published failure rate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from planner.supply import FleetLimits, SpotTerms, replicas_that_may_fail
from planner.supply.availability import most_up, spot_availability


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


def test_most_up_are_found_as_by_counting_down_and_a_probability_met_exactly_is_met() -> None:
    for bought, available, probability in itertools.product(
        (1, 2, 7, 40, 900), (0.2, 0.9, 0.995, 1.0), (0.5, 0.9, 0.999)
    ):
        count = next(up for up in range(bought, -1, -1) if binom.sf(up - 1, bought, available) >= probability)
        assert most_up(bought, available, probability) == count
    assert most_up(1, 0.5, 0.5) == 1


def test_availability_is_the_share_of_time_of_a_simulated_repair_process() -> None:
    """Exponential times to failure and constant repair: the equation holds for any distributions with these means."""
    up_h = np.random.default_rng(5).exponential(40.0, 200_000)
    found = spot_availability(SpotTerms(interruptions_per_hour=1.0 / 40.0, recovery_s=3.0 * 3600.0))
    assert found == pytest.approx(up_h.sum() / (up_h.sum() + 3.0 * len(up_h)), rel=2e-3)


def test_published_failure_rate_of_h100() -> None:
    """Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions of 16,384 H100 in 54 days.

    One in 50,677 GPU-hours, "approximately one failure every 3 hours" of the cluster. Replicas of 8 GPUs that take a
    day to replace are then up 99.6 % of the time. Of 102, Poisson with mean 0.385: at most 2 down 99.3 % of the time;
    of 101, at most 1 down 94 %.
    """
    gpu_hours = 16_384 * 54 * 24 / 419
    assert gpu_hours / 16_384 == pytest.approx(3.0, rel=0.04)
    up = spot_availability(SpotTerms(interruptions_per_hour=8 / gpu_hours, recovery_s=24 * 3600.0))
    assert up == pytest.approx(0.996, abs=5e-4)
    assert (most_up(102, up, 0.99), most_up(101, up, 0.99)) == (100, 99)
