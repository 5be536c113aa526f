"""Hits by cache size: against a cache played block by block, and against what a file was drawn from."""

from __future__ import annotations

import io
import json
from collections import OrderedDict

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.launch.requests import requests_of
from planner.queueing import CacheLevel, level_hits
from planner.scenario.snippets import snippet_text, trace_snippet
from planner.traffic import RecognisedTrace, read_any_trace
from planner.traffic.prefix_reuse import hit_curve, stack_distances
from planner.workload import ArrivalProcess, PrefixReuse, RequestClass, SharedPrefixes, TokenLengths, Workload

SIZES = np.arange(1.0, 12.0)
PROMPTS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=6), min_size=1, max_size=30)


def played(prompts: list[list[int]], size: int) -> int:
    """Blocks found by a cache of so many blocks that is played: looked up from the start, then touched from the end."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    for blocks in prompts:
        leading = next((place for place, block in enumerate(blocks) if block not in cache), len(blocks))
        found += leading
        first = dict.fromkeys(blocks)
        for block in reversed(first):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > size:
            cache.popitem(last=False)
    return found


def columns(prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The number of the prompt of each block, and the blocks."""
    numbers = np.repeat(np.arange(len(prompts)), [len(blocks) for blocks in prompts])
    return numbers, np.concatenate([np.asarray(blocks) for blocks in prompts])


@given(PROMPTS, st.integers(1, 4))
def test_split_requests_are_those_of_caches_that_are_played(prompts: list[list[int]], replicas: int) -> None:
    numbers, blocks = columns(prompts)
    curve = hit_curve(numbers, blocks, np.ones(blocks.size), SIZES, replicas)
    drawn = np.random.default_rng([0, replicas]).integers(replicas, size=len(prompts))
    parts = [[blocks for blocks, at in zip(prompts, drawn, strict=True) if at == each] for each in range(replicas)]
    assert curve.tolist() == [sum(played(part, int(size)) for part in parts) for size in SIZES]


def test_a_loop_over_more_than_fits_finds_nothing() -> None:
    """Mattson et al. (1970): in a loop over five every distance is five."""
    numbers = np.arange(50)
    distances = stack_distances(numbers, numbers % 5)
    assert np.isinf(distances[:5]).all()
    assert (distances[5:] == 5.0).all()


def _drawn(kind: RequestClass, rate_per_s: float, count: int) -> RecognisedTrace:
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=rate_per_s), classes=(kind,))
    return read_any_trace(io.StringIO(requests_of(workload, count, seed=1).text))


def test_a_drawn_trace_has_the_hits_of_its_distribution() -> None:
    """40 prefixes of 4 blocks, 1 block that nobody shares: Che's approximation has it for each size."""
    prefixes = SharedPrefixes(tokens=1280, groups=40, skew=0.8)
    kind = RequestClass(lengths=TokenLengths.constant(1600, 100), prefixes=prefixes)
    found = _drawn(kind, 4.0, 4000)
    reuse = found.reuse
    assert reuse is not None
    assert reuse.rate_per_s == pytest.approx(4.0, rel=0.05)
    for size in (20_000.0, 60_000.0):
        rates, level = 4.0 * prefixes.popularity, [CacheLevel(size / 320)]
        expected = level_hits(rates, np.full(40, 4.0), level, passing_blocks_per_s=4.0)[0] @ prefixes.popularity
        assert reuse.share(size, rate_per_s=reuse.rate_per_s) == pytest.approx(0.8 * expected, abs=0.015)
    everything = reuse.share(1e9, rate_per_s=reuse.rate_per_s)
    assert everything == found.prefix_share == pytest.approx(0.8 * (1.0 - 40 / 4000), abs=1e-3)


def test_a_scenario_carries_the_curve() -> None:
    kind = RequestClass(lengths=TokenLengths.constant(1024, 10), prefixes=SharedPrefixes(tokens=512, groups=5))
    found = _drawn(kind, 2.0, 300)
    written = yaml.safe_load(snippet_text(trace_snippet(found)))["workload"]["prefix_reuse"]
    reuse = found.reuse
    assert reuse is not None
    assert PrefixReuse.model_validate(written).shares == reuse.shares
    assert "LRU over blocks of 512 tokens" in written["source"]


def test_a_logged_share_is_carried_as_a_number() -> None:
    rows = [{"arrival_s": i, "input_tokens": 100, "output_tokens": 5, "cached_tokens": 40} for i in range(9)]
    found = read_any_trace(io.StringIO("\n".join(json.dumps(row) for row in rows)))
    workload = trace_snippet(found)["workload"]
    assert workload["prefix_hit_rate"] == pytest.approx(0.4)
    assert "prefix_reuse" not in workload


def test_blocks_never_shared_leave_no_curve() -> None:
    rows = [
        {"timestamp": 9 * i, "input_length": 600, "output_length": 5, "hash_ids": [2 * i, 2 * i + 1]} for i in (0, 1)
    ]
    assert read_any_trace(io.StringIO("\n".join(json.dumps(row) for row in rows))).reuse is None
