"""Levels of a cache against simulated least-recently-used ones, and limits."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from planner.queueing import CacheLevel, level_hits, pool_hits
from planner.workload import zipf


class Lru:
    """Whole items, least recently used out first."""

    def __init__(self, room: int) -> None:
        self.room, self.items, self.held = room, OrderedDict[int, int](), 0

    def put(self, item: int, size: int) -> None:
        if item not in self.items:
            self.held += size
        self.items[item] = size
        self.items.move_to_end(item)
        while self.held > self.room:
            self.held -= self.items.popitem(last=False)[1]


@pytest.mark.parametrize(("replicas", "shared"), [(1, False), (3, False), (3, True)])
def test_hits_are_those_of_simulated_levels(replicas: int, shared: bool) -> None:
    weights, size, passing = zipf(200, 0.8), 10, 3
    rooms, count = (300, 800, 500), 60_000
    rng = np.random.default_rng(1)
    own = [[Lru(room) for room in rooms[: 2 if shared else 3]] for _ in range(replicas)]
    store = Lru(rooms[2] * replicas)
    first = np.zeros(3)
    items, places = rng.choice(200, count, p=weights).tolist(), rng.integers(replicas, size=count).tolist()
    for turn, (item, place) in enumerate(zip(items, places, strict=True)):
        levels = [*own[place], store] if shared else own[place]
        found = next((i for i, level in enumerate(levels) if item in level.items), None)
        if found is not None and turn > count // 4:
            first[found] += 1
        for number, level in enumerate(levels):
            level.put(item, size)
            if number:
                level.put(-1 - turn, passing)
    simulated = first / (count - count // 4)
    levels = [CacheLevel(300.0, passing=False), CacheLevel(800.0), CacheLevel(500.0, shared=shared)]
    theory = level_hits(weights, np.full(200, float(size)), levels, replicas, passing_blocks_per_s=float(passing))
    assert (theory @ weights).tolist() == pytest.approx(simulated.tolist(), abs=0.012)


def test_a_level_without_a_passing_stream_is_a_larger_cache() -> None:
    rates, blocks = zipf(50, 1.0), np.linspace(1.0, 40.0, 50)
    levels = [CacheLevel(100.0, passing=False), CacheLevel(400.0, passing=False)]
    for replicas, affinity in ((1, False), (4, False), (4, True)):
        both = level_hits(rates, blocks, levels, replicas, affinity).sum(axis=0)
        assert both == pytest.approx(pool_hits(rates, blocks, 400.0, replicas, affinity).by_group)


@pytest.mark.parametrize("affinity", [False, True])
def test_the_first_level_alone_is_the_cache_without_tiers_bit_for_bit(affinity: bool) -> None:
    rates, blocks = zipf(50, 1.0), np.linspace(1.0, 40.0, 50)
    for room in (0.0, 300.0, 1e6):
        (alone,) = level_hits(rates, blocks, [CacheLevel(room, passing=False)], 3, affinity, 5.0)
        assert alone.tolist() == pool_hits(rates, blocks, room, 3, affinity).by_group.tolist()


def test_a_level_of_any_size_finds_everything_and_one_smaller_than_the_first_nothing() -> None:
    rates, blocks = zipf(50, 0.5), np.full(50, 10.0)
    first, second, third = level_hits(
        rates, blocks, [CacheLevel(200.0), CacheLevel(100.0), CacheLevel(1e18)], passing_blocks_per_s=1.0
    )
    assert not second.any()
    assert (first + third).tolist() == pytest.approx([1.0] * 50)
