"""Prefix caches against a simulated least-recently-used cache, limits and conservation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from planner.core import InputError
from planner.queueing import pool_hits, uncached_lengths
from planner.queueing.prefix import PrefixHits, cached_tokens, lru_hits
from planner.workload import SharedPrefixes, TokenLengths


def simulated_hits(
    weights: np.ndarray, sizes: np.ndarray, capacity: int, passing: int = 0, replicas: int = 1, count: int = 60_000
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


def prefix_hits(
    prefixes: SharedPrefixes, rate_per_s: float, capacity_blocks: float, block_tokens: int, **pool: Any
) -> PrefixHits:
    """Hits of prefixes of one length, at `rate_per_s` together, in a pool of caches."""
    blocks = np.full(prefixes.groups, float(prefixes.tokens // block_tokens))
    return pool_hits(prefixes.popularity * rate_per_s, blocks, capacity_blocks, **pool)


class TestAgainstSimulation:
    @pytest.mark.parametrize("skew", [0.0, 0.8, 1.5])
    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
    def test_within_two_points(self, skew: float, share: float) -> None:
        prefixes = SharedPrefixes(tokens=64, groups=100, skew=skew)
        capacity = int(share * 400)
        found = prefix_hits(prefixes, 10.0, capacity, 16)
        assert found.overall == pytest.approx(simulated_hits(prefixes.popularity, np.full(100, 4), capacity), abs=0.02)

    def test_unequal_sizes(self) -> None:
        sizes = np.random.default_rng(7).integers(1, 12, 80).astype(float)
        weights = np.arange(1.0, 81.0) ** -1.0
        found = lru_hits(weights, sizes, 150.0)
        assert found.overall == pytest.approx(simulated_hits(weights, sizes, 150), abs=0.02)

    def test_blocks_that_nobody_shares_take_room(self) -> None:
        prefixes = SharedPrefixes(tokens=64, groups=50, skew=1.0)
        truth = simulated_hits(prefixes.popularity, np.full(50, 4), 150, passing=6)
        assert prefix_hits(prefixes, 10.0, 150, 16, passing_blocks_per_s=60.0).overall == pytest.approx(
            truth, abs=0.025
        )
        assert truth < prefix_hits(prefixes, 10.0, 150, 16).overall - 0.1

    def test_random_routing_splits_the_rates(self) -> None:
        prefixes = SharedPrefixes(tokens=64, groups=60, skew=0.8)
        truth = simulated_hits(prefixes.popularity, np.full(60, 4), 100, replicas=4)
        assert prefix_hits(prefixes, 10.0, 100, 16, replicas=4).overall == pytest.approx(truth, abs=0.02)


class TestLimits:
    def test_alike_prefixes_hit_as_often_as_they_fit(self) -> None:
        # By symmetry a group is in the cache with probability capacity / (groups * blocks), and Che says so exactly.
        found = prefix_hits(SharedPrefixes(tokens=160, groups=40), 3.0, 100, 16)
        assert found.overall == pytest.approx(100 / 400)

    def test_all_fit_or_none(self) -> None:
        prefixes = SharedPrefixes(tokens=160, groups=4)
        assert prefix_hits(prefixes, 1.0, 40, 16).overall == 1.0
        assert prefix_hits(prefixes, 1.0, 0, 16).overall == 0.0

    def test_the_hit_probability_does_not_depend_on_the_unit_of_time(self) -> None:
        prefixes = SharedPrefixes(tokens=160, groups=30, skew=1.0)
        slow, fast = (prefix_hits(prefixes, rate, 90, 16) for rate in (1e-3, 1e3))
        np.testing.assert_allclose(slow.by_group, fast.by_group, rtol=1e-6)
        assert slow.lifetime_s == pytest.approx(1e6 * fast.lifetime_s)

    def test_popular_groups_hit_more_and_larger_caches_hit_more(self) -> None:
        prefixes = SharedPrefixes(tokens=160, groups=30, skew=1.0)
        hits = prefix_hits(prefixes, 1.0, 90, 16).by_group
        assert (np.diff(hits) < 0.0).all()
        overall = [prefix_hits(prefixes, 1.0, c, 16).overall for c in (20, 60, 120, 240, 300)]
        assert overall == sorted(overall)

    def test_affinity_makes_one_cache_of_all(self) -> None:
        prefixes = SharedPrefixes(tokens=160, groups=64, skew=0.5)
        random, near = (prefix_hits(prefixes, 1.0, 80, 16, replicas=4, affinity=a).overall for a in (False, True))
        assert near == pytest.approx(prefix_hits(prefixes, 1.0, 320, 16).overall, abs=0.01)
        assert random == pytest.approx(prefix_hits(prefixes, 1.0, 80, 16).overall)
        assert near > 2.0 * random

    def test_refusals(self) -> None:
        with pytest.raises(InputError, match="rates_per_s"):
            lru_hits([0.0], 1, 1)
        with pytest.raises(InputError, match="blocks"):
            lru_hits([1.0], -1, 1)
        with pytest.raises(InputError, match="hit_probability"):
            uncached_lengths(TokenLengths.constant(10, 1), 5, 1.5, 1)


class TestUncached:
    LENGTHS = TokenLengths.from_pairs([20, 100, 300], [5, 50, 10], [1, 2, 1])

    def test_at_least_one_token_is_computed(self) -> None:
        left = self.LENGTHS.inputs - cached_tokens(self.LENGTHS.inputs, 10_000, 16)
        assert left.min() >= 1.0
        # A prompt of exactly whole blocks computes its last block again.
        assert cached_tokens([64], 64, 16).tolist() == [48.0]

    def test_no_hit_changes_nothing_and_outputs_stay(self) -> None:
        assert uncached_lengths(self.LENGTHS, 64, 0.0, 16) == self.LENGTHS
        half = uncached_lengths(self.LENGTHS, 64, 0.5, 16)
        assert half.mean_output == pytest.approx(self.LENGTHS.mean_output)
        assert half.max_total == self.LENGTHS.max_total

    def test_tokens_found_and_computed_add_up(self) -> None:
        for hit in (0.0, 0.3, 1.0):
            left = uncached_lengths(self.LENGTHS, 64, hit, 16).mean_input
            cached = cached_tokens(self.LENGTHS.inputs, 64, 16) @ self.LENGTHS.probabilities
            share = hit * float(cached) / self.LENGTHS.mean_input
            assert left + share * self.LENGTHS.mean_input == pytest.approx(self.LENGTHS.mean_input)

    def test_correlation_is_kept(self) -> None:
        hit = uncached_lengths(self.LENGTHS, 64, 1.0, 16)
        assert dict(zip(hit.output_tokens, hit.input_tokens, strict=True)) == {5: 4, 50: 36, 10: 236}
