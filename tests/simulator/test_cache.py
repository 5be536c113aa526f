"""Idle runs of blocks against a cache that keeps every block by itself."""

from __future__ import annotations

import random

import pytest

from planner.serving import Deployment
from planner.simulator.cache import PrefixBlocks, Sequence
from planner.simulator.events import run_events
from tests.simulator_oracle import plain, scheduled, with_kv_tokens


class BlockByBlock:
    """Least recently used blocks of prefixes in a list, the next to be dropped first."""

    def __init__(self) -> None:
        self.there: dict[int, int] = {}
        self.using: list[tuple[int, int]] = []
        self.idle: list[tuple[int, int]] = []

    def _used(self, prefix: int) -> int:
        return max((length for other, length in self.using if other == prefix), default=0)

    def use(self, prefix: int, length: int) -> None:
        self.using.append((prefix, length))
        self.there[prefix] = max(self.there.get(prefix, 0), length)
        self.idle = [block for block in self.idle if block[0] != prefix or block[1] >= length]

    def leave(self, prefix: int, length: int) -> None:
        before = self._used(prefix)
        self.using.remove((prefix, length))
        self.idle += [(prefix, index) for index in reversed(range(self._used(prefix), before))]

    def trim(self, room: int) -> None:
        while len(self.idle) > room:
            prefix, self.there[prefix] = self.idle.pop(0)


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_idle_blocks_are_dropped_as_single_blocks_would_be(seed: int) -> None:
    chance = random.Random(seed)
    blocks, single = PrefixBlocks(16), BlockByBlock()
    running: list[Sequence] = []
    for number in range(300):
        if chance.random() < 0.5:
            prefix, whole = chance.randrange(5), chance.randrange(1, 40)
            sequence = Sequence(number, 16 * whole + 5, 10, prefix=prefix, whole_blocks=whole)
            assert blocks.hits(sequence) == min(single.there.get(prefix, 0), whole)
            blocks.take(sequence)
            blocks.publish_prefix(sequence)
            single.use(prefix, whole)
            running.append(sequence)
        elif running:
            sequence = running.pop(chance.randrange(len(running)))
            blocks.free(sequence)
            single.leave(sequence.prefix, sequence.whole_blocks)
        room = chance.randrange(200)
        blocks.trim(room)
        single.trim(room)
        assert blocks.idle_blocks == len(single.idle)
        assert {k: v for k, v in blocks.cached.items() if v} == {k: v for k, v in single.there.items() if v}


def test_the_least_recently_used_prefix_goes_first() -> None:
    """Room for 20 blocks: after two prefixes of 8 a request of 10 private ones leaves the later prefix alone."""
    config = scheduled(with_kv_tokens(320), prefix_cache=True)
    offered = plain(
        [0.0, 1.0, 2.0, 3.0, 4.0],
        [129, 129, 150, 129, 129],
        [2, 2, 2, 2, 2],
        prefix=[0, 1, -1, 1, 0],
        prefix_tokens=[128, 128, 0, 128, 128],
    )
    hits = run_events(Deployment.mixed(config), offered).pools[0].hits.tolist()
    assert hits == [0, 0, 0, 128, 32]  # 20 - 10 = 10 blocks stay: 8 of the later prefix, the first 2 of the other
