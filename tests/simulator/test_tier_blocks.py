"""KV tiers in the simulation: against blocks one by one, and what they hold in the long run."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from hardware_db import KvTierKind
from planner.engine import KvTier, ReplicaConfig, Schedule, tier_loads
from planner.simulator.tier_blocks import PrefixDemand, ReplicaTiers, TierBlocks, tiers_of_pool, warm_tiers
from planner.workload import zipf
from tests.builders import replica

HOST = KvTier(kind=KvTierKind.HOST, size_bytes=8e11, read_bytes_per_s=50e9, latency_s=0.0)


def behind(*tiers: KvTier) -> ReplicaConfig:
    return replica(own_schedule=Schedule(prefix_cache=True, kv_tiers=tiers))


def test_blocks_are_those_of_a_cache_of_single_blocks() -> None:
    """Of one prefix the last block goes first, as if it had been used just before those in front of it."""
    tier, singles = TierBlocks(100, 0), OrderedDict[tuple[int, int], None]()
    rng = np.random.default_rng(2)
    for turn in range(3000):
        item, size = (int(rng.integers(30)), 12) if turn % 3 else (-1 - turn, int(rng.integers(1, 9)))
        tier.write(item, size)
        for index in reversed(range(size)):
            singles[item, index] = None
            singles.move_to_end((item, index))
        while len(singles) > 100:
            singles.popitem(last=False)
        kept = {item: sum(1 for name, _ in singles if name == item) for item in range(30)}
        assert {item: tier.found(item) for item in range(30)} == kept
        assert tier.held == len(singles)


def test_what_ends_with_state_is_found_whole_or_not_at_all() -> None:
    tier = TierBlocks(100, 5)
    for prefix in range(4):
        tier.write(prefix, 30)
    assert [tier.found(prefix) for prefix in range(4)] == [0, 0, 30, 30]
    assert tier.held == 70


def test_loads_come_from_the_first_tier_that_has_the_blocks_one_after_another() -> None:
    ssd = HOST.model_copy(update={"kind": KvTierKind.SSD, "read_bytes_per_s": 10e9})
    config = behind(HOST, ssd)
    (tiers,) = (each for each in tiers_of_pool(config, 1, 0) if each is not None)
    tiers.tiers[0].write(7, 100)
    tiers.tiers[1].write(7, 250)
    host, drive = (loads.token_s * 16 for loads in tier_loads(config))
    there_s = tiers.fetch(request=0, prefix=7, on_gpu=40, most=300, tokens=5000, now_s=1.0)
    assert there_s == pytest.approx(1.0 + 60 * host + 150 * drive)
    assert tiers.loaded[0] == 250
    assert tiers.from_tier[0] == [60, 150]
    later_s = tiers.fetch(request=1, prefix=7, on_gpu=40, most=100, tokens=5000, now_s=1.0)
    assert later_s == pytest.approx(there_s + 60 * host)
    assert tiers.fetch(request=2, prefix=8, on_gpu=0, most=100, tokens=5000, now_s=2.0) == 2.0


def test_a_shared_tier_is_one_for_all_replicas_and_others_are_their_own() -> None:
    store = HOST.model_copy(update={"kind": KvTierKind.SHARED})
    first, second = tiers_of_pool(behind(HOST, store), 2, 0)
    assert isinstance(first, ReplicaTiers)
    assert isinstance(second, ReplicaTiers)
    assert first.tiers[0] is not second.tiers[0]
    assert first.tiers[1] is second.tiers[1]
    assert first.tiers[1].blocks == 2 * first.tiers[0].blocks
    assert tiers_of_pool(behind(), 2, 0) == [None, None]


def test_warm_tiers_hold_what_a_long_run_would_leave() -> None:
    """Requests for Zipf prefixes and prompts of others in between, from an empty tier on."""
    weights, size, own, room = zipf(300, 0.8), 10, 3, 1000
    tier = TierBlocks(room, 0)
    rng = np.random.default_rng(5)
    counts = []
    for turn, prefix in enumerate(rng.choice(300, 20_000, p=weights).tolist()):
        tier.write(prefix, size)
        tier.write(-1 - turn, own)
        if turn > 4000 and turn % 100 == 0:
            counts.append(sum(tier.found(k) == size for k in range(300)))
    demand = PrefixDemand(weights, np.full(300, size), float(own), requests=1)
    warm = []
    for seed in range(20):
        tiers = [each for each in tiers_of_pool(behind(HOST), 1, 0) if each is not None]
        tiers[0].tiers[0].blocks = room
        warm_tiers(tiers, demand, affinity=False, seed=seed)
        assert room - size < tiers[0].tiers[0].held <= room
        warm.append(sum(tiers[0].tiers[0].found(k) == size for k in range(300)))
    assert np.mean(warm) == pytest.approx(np.mean(counts), rel=0.05)
