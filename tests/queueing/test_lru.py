"""Least-recently-used caches against caches played through, closed forms and limits."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from planner.core import FloatArray
from planner.queueing import CacheLevel, idle_lifetimes_s, level_hits
from planner.workload import SharedPrefixes, zipf


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


def simulated_hits(
    weights: FloatArray, sizes: FloatArray, capacity: int, passing: int = 0, replicas: int = 1, count: int = 60_000
) -> float:
    """Share of requests that find all blocks of their prefix, block by block, with random routing.

    `passing` blocks of each request are written after its prefix and never asked for again.
    """
    rng = np.random.default_rng(4)
    groups = rng.choice(weights.size, count, p=weights / weights.sum()).tolist()
    where = rng.integers(replicas, size=count).tolist()
    caches: list[OrderedDict[tuple[int, int], None]] = [OrderedDict() for _ in range(replicas)]
    hits = counted = 0
    for i, (group, replica) in enumerate(zip(groups, where, strict=True)):
        cache = caches[replica]
        names = [(group, b) for b in range(int(sizes[group]))]
        found = all(name in cache for name in names)
        # The last block is the oldest of a prefix, so that a prefix is dropped from its end.
        for name in [(-1 - i, b) for b in range(passing)] + names[::-1]:
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > capacity:
            cache.popitem(last=False)
        if i >= count // 5:
            counted, hits = counted + 1, hits + found
    return hits / counted


def hits(prefixes: SharedPrefixes, capacity: float, replicas: int = 1, affinity: bool = False) -> FloatArray:
    """Of each prefix, in a pool of GPUs asked for 10 requests/s, in blocks of 16 tokens."""
    level = [CacheLevel(capacity)]
    blocks = np.full(prefixes.groups, float(prefixes.tokens // 16))
    (by_group,) = level_hits(10.0 * prefixes.popularity, blocks, level, replicas, affinity)
    return np.asarray(by_group)


class TestPrefixes:
    @pytest.mark.parametrize(
        ("skew", "sizes", "capacity", "passing", "replicas"),
        [
            (0.0, np.full(100, 4.0), 200, 0, 1),
            (0.8, np.full(100, 4.0), 40, 0, 1),
            (1.5, np.full(100, 4.0), 200, 0, 1),
            (1.0, np.random.default_rng(7).integers(1, 12, 80).astype(float), 150, 0, 1),
            (1.0, np.full(50, 4.0), 150, 6, 1),  # blocks that nobody shares take room
            (0.8, np.full(60, 4.0), 100, 0, 4),  # random routing splits the rates
        ],
    )
    def test_hits_are_those_of_a_cache_played_through(
        self, skew: float, sizes: FloatArray, capacity: int, passing: int, replicas: int
    ) -> None:
        weights, level = zipf(sizes.size, skew), [CacheLevel(float(capacity))]
        (found,) = level_hits(weights, sizes, level, replicas, passing_blocks_per_s=float(passing))
        truth = simulated_hits(weights, sizes, capacity, passing, replicas)
        assert found @ weights == pytest.approx(truth, abs=0.025)

    def test_alike_prefixes_hit_as_often_as_they_fit(self) -> None:
        # By symmetry a group is in the cache with probability capacity / (groups * blocks), and Che says so exactly.
        assert hits(SharedPrefixes(tokens=160, groups=40), 100) == pytest.approx(100 / 400)
        assert hits(SharedPrefixes(tokens=160, groups=4), 40).tolist() == [1.0] * 4
        assert hits(SharedPrefixes(tokens=160, groups=4), 0).tolist() == [0.0] * 4

    def test_popular_groups_hit_more_and_larger_caches_hit_more(self) -> None:
        prefixes = SharedPrefixes(tokens=160, groups=30, skew=1.0)
        assert (np.diff(hits(prefixes, 90)) < 0.0).all()
        overall = [float(hits(prefixes, room) @ prefixes.popularity) for room in (20, 60, 120, 240, 300)]
        assert overall == sorted(overall)

    def test_affinity_makes_one_cache_of_all(self) -> None:
        prefixes = SharedPrefixes(tokens=160, groups=64, skew=0.5)
        random, near, one = (
            float(hits(prefixes, room, replicas, affinity) @ prefixes.popularity)
            for room, replicas, affinity in ((80, 4, False), (80, 4, True), (320, 1, False))
        )
        assert near == pytest.approx(one, abs=0.01)
        assert random == pytest.approx(float(hits(prefixes, 80) @ prefixes.popularity))
        assert near > 2.0 * random


class TestLevels:
    @pytest.mark.parametrize(("replicas", "shared"), [(1, False), (3, False), (3, True)])
    def test_hits_are_those_of_simulated_levels(self, replicas: int, shared: bool) -> None:
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

    @pytest.mark.parametrize(("replicas", "affinity"), [(1, False), (4, False), (4, True)])
    def test_a_level_without_a_passing_stream_is_a_larger_cache(self, replicas: int, affinity: bool) -> None:
        rates, blocks = zipf(50, 1.0), np.linspace(1.0, 40.0, 50)
        levels = [CacheLevel(100.0, passing=False), CacheLevel(400.0, passing=False)]
        both = level_hits(rates, blocks, levels, replicas, affinity).sum(axis=0)
        assert both == pytest.approx(level_hits(rates, blocks, levels[1:], replicas, affinity)[0])

    def test_a_level_of_any_size_finds_everything_and_one_smaller_than_the_first_nothing(self) -> None:
        levels = [CacheLevel(200.0), CacheLevel(100.0), CacheLevel(1e18)]
        first, second, third = level_hits(zipf(50, 0.5), np.full(50, 10.0), levels, passing_blocks_per_s=1.0)
        assert not second.any()
        assert (first + third).tolist() == pytest.approx([1.0] * 50)


class TestIdleContexts:
    def test_exponential_reuse_has_the_closed_form_of_che(self) -> None:
        """Capacity = rate * mean * (1 - exp(-T / mean)), so hits = capacity / (rate * mean)."""
        capacities = np.array([0.1, 0.5, 0.9]) * 100.0 * 30.0
        found = idle_lifetimes_s(lambda times_s: 1.0 - np.exp(-times_s / 30.0), 100.0, capacities)
        assert found == pytest.approx(-30.0 * np.log([0.9, 0.5, 0.1]), rel=1e-3)

    def test_what_is_never_asked_for_again_passes_through(self) -> None:
        assert idle_lifetimes_s(np.zeros_like, 4.0, [100.0]) == pytest.approx([25.0])

    def test_without_room_nothing_stays_and_with_all_room_everything(self) -> None:
        lifetimes = idle_lifetimes_s(lambda times_s: 1.0 - np.exp(-times_s / 30.0), 100.0, [0.0, 1e12])
        assert lifetimes.tolist() == [0.0, np.inf]

    def test_hits_are_those_of_a_cache_played_through(self) -> None:
        """Items of one token, asked for again once with chance 0.6 after a Gamma time, in an LRU cache of 300."""
        generator = np.random.default_rng(0)
        starts = np.cumsum(generator.exponential(0.1, 20_000))
        again = generator.random(starts.size) < 0.6
        reuse_s = generator.gamma(2.0, 20.0, starts.size)
        events = sorted(
            [(time, 0, item) for item, time in enumerate(starts)]
            + [(starts[item] + reuse_s[item], 1, item) for item in np.flatnonzero(again)]
        )
        cache = Lru(300)
        found = asked = 0
        for time, kind, item in events:
            asked += kind and time > 200.0
            found += kind and time > 200.0 and item in cache.items
            cache.put(int(item), 1)  # asked for a last time it stays as an idle item

        def cdf(times_s: FloatArray) -> FloatArray:
            scaled = times_s / 20.0
            return np.asarray(0.6 / 1.6 * (1.0 - np.exp(-scaled) * (1.0 + scaled)))

        predicted = cdf(idle_lifetimes_s(cdf, 16.0, [300.0]))[0] * 1.6 / 0.6
        assert found / asked == pytest.approx(predicted, abs=0.02)
