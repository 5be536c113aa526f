"""Chosen units become deployments: nothing is lost on the way, and prefill pools find decode pools."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.fleet.pairing import UsedPool, apportionment, deployments_of, match_pools
from planner.search import Mode, PoolOption
from planner.serving import Role
from tests.builders import FP8, replica


def used(role: Role, rate: float, replicas: int = 4, budget: int = 2048, **changes: object) -> UsedPool:
    option = PoolOption(role, replica(max_batched_tokens=budget, **changes))
    kv = option.config.precision.kv_cache.value
    return UsedPool("chat", option, replicas, replicas, {"all": rate}, 0.9, ("column",), kv)


@given(st.integers(1, 500), st.lists(st.floats(0.01, 10.0), min_size=1, max_size=5))
def test_a_whole_is_cut_into_parts_that_are_near_their_share(whole: int, weights: list[float]) -> None:
    parts = apportionment(whole, weights)
    assert min(parts) >= 1
    assert sum(parts) == max(whole, len(weights))
    if whole >= 50 * len(weights) * max(weights) / min(weights):
        assert sum(parts) == whole
        assert all(abs(p - whole * w / math.fsum(weights)) < 1.0 + 1e-9 for p, w in zip(parts, weights, strict=True))


@example([10.0, 13.0, 13.0, 12.5], [11.0, 13.0, 13.5, 13.75])  # small parts raised to 1 once made 51 of 50
@given(st.lists(st.floats(0.5, 20.0), min_size=1, max_size=4), st.lists(st.floats(0.5, 20.0), min_size=1, max_size=4))
def test_all_traffic_finds_a_partner(first: list[float], second: list[float]) -> None:
    """Both sides carry the same sum (as the program makes sure); every part of a pair carries the same rate."""
    scale = math.fsum(first) / math.fsum(second)
    prefill = [used(Role.PREFILL, rate, replicas=50, budget=1024 + n) for n, rate in enumerate(first)]
    decode = [used(Role.DECODE, scale * rate, replicas=50, budget=1024 + n) for n, rate in enumerate(second)]
    pairs = match_pools(prefill, decode)
    assert math.fsum(a.rate_per_s for a, _ in pairs) == pytest.approx(math.fsum(first), rel=1e-6)
    assert len(pairs) <= len(first) + len(second) - 1
    for a, b in pairs:
        assert a.rate_per_s == pytest.approx(b.rate_per_s, rel=1e-6)
    for pool in prefill:
        parts = [a for a, _ in pairs if a.option == pool.option]
        assert sum(part.replicas for part in parts) == 50


def test_mixed_pools_stand_alone_and_formats_do_not_mix() -> None:
    pools = [
        used(Role.MIXED, 5.0),
        used(Role.PREFILL, 3.0),
        used(Role.DECODE, 3.0),
        used(Role.PREFILL, 2.0, precision=FP8),
        used(Role.DECODE, 2.0, precision=FP8),
    ]
    found = deployments_of(pools)
    assert [option.mode for option, _ in found] == [Mode.MIXED, Mode.DISAGGREGATED, Mode.DISAGGREGATED]
    for _, (first, *rest) in found:
        assert {pool.option.config.precision for pool in rest} <= {first.option.config.precision}
