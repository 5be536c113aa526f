"""KV tiers behind the GPUs of a pool, request by request: what they hold, and the loads of each replica.

A tier is an inclusive level under least recently used: every prompt is written to it once it has been processed, its
prefix under the prefix's name, what is its own under the request's; what is used again becomes the most recent. Where
there is no room the prefix used longest ago loses its last blocks. Recurrent state and windows are kept of the end of a
prefix alone: such a prefix is found whole or not at all.

Loads are decided on when a request reaches its replica (`planner.engine.kv_tiers` says what is worth loading): from
each tier the blocks that neither the GPU nor a faster tier has, one after the other, and all loads of one attention
rank one after another. The request joins the queue when its load lets its first step begin.

An open run begins with tiers as they are in the long run (`warm_tiers`), a closed loop with empty ones.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.core import FloatArray, IntArray
from planner.engine import ReplicaConfig, TierLoads, levels_worth_loading, prompt_s, tier_loads


class TierBlocks:
    """One tier of one replica, or of all where it is shared.

    Attributes:
        kept: blocks of each prefix (numbers from 0) or request (-1 - number), the next to make room first.
        held: blocks of all, ends of prefixes included.
    """

    def __init__(self, blocks: float, end_blocks: int) -> None:
        self.blocks, self.end_blocks = blocks, end_blocks
        self.kept: OrderedDict[int, int] = OrderedDict()
        self.held = 0

    def found(self, prefix: int) -> int:
        """First blocks of a prefix that are there."""
        return self.kept.get(prefix, 0)

    def touch(self, prefix: int) -> None:
        """A prefix is used: it is the last to make room."""
        if prefix in self.kept:
            self.kept.move_to_end(prefix)

    def write(self, key: int, blocks: int) -> None:
        """Keep the first blocks of a prefix, or those of a request."""
        before = self.kept.get(key)
        if before is None:
            self.held += self.end_blocks
        self.kept[key] = max(blocks, before or 0)
        self.held += self.kept[key] - (before or 0)
        self.kept.move_to_end(key)
        while self.held > self.blocks and self.kept:
            self._make_room()

    def _make_room(self) -> None:
        """The one used longest ago loses the blocks that are too many, or goes."""
        key, blocks = next(iter(self.kept.items()))
        left = blocks - int(self.held - self.blocks)
        if left > 0 and not self.end_blocks:
            self.held -= blocks - left
            self.kept[key] = left
            return
        self.held -= blocks + self.end_blocks
        del self.kept[key]


class ReplicaTiers:
    """The tiers of one replica and the loads from them.

    Attributes:
        tiers: from the first that is asked on.
        free_s: of each attention rank, when its link is free [s].
        loaded: of each request that has come, first blocks of its prefix that were there or have been loaded.
        from_tier: of each request that loads, the blocks from each tier.
        sends: (start [s], seconds on the link) of every load.
    """

    def __init__(self, config: ReplicaConfig, loads: tuple[TierLoads, ...], tiers: list[TierBlocks]) -> None:
        self.config, self.loads, self.tiers = config, loads, tiers
        self.free_s = [0.0] * config.parallelism.dp
        self.loaded: dict[int, int] = {}
        self.from_tier: dict[int, list[int]] = {}
        self.sends: list[tuple[float, float]] = []
        self.turn = 0
        self._worth: dict[tuple[int, ...], int] = {}

    @cached_property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.config.kv_block_tokens

    def fetch(self, request: int, prefix: int, on_gpu: int, most: int, tokens: float, now_s: float) -> float:
        """Begin to load what tiers have of a prefix; when the prompt of a request may be processed [s].

        Args:
            request: its number.
            prefix: it begins with.
            on_gpu: first blocks of that which are there.
            most: blocks of it that the request can use.
            tokens: of its prompt.
            now_s: when it reached the replica [s].
        """
        parts, have = [], on_gpu
        for tier in self.tiers:
            found = min(tier.found(prefix), most)
            if tier.end_blocks and found < most:
                found = 0
            parts.append(max(found - have, 0))
            have = max(have, found)
        parts = parts[: self._count(tuple(parts))]
        self.loaded[request] = on_gpu + sum(parts)
        if not any(parts):
            return now_s
        self.from_tier[request] = parts + [0] * (len(self.tiers) - len(parts))
        load_s, delay_s = self._times_s(parts, tokens - self.loaded[request] * self.block_tokens)
        self.turn = (self.turn + 1) % len(self.free_s)
        start_s = max(now_s, self.free_s[self.turn])
        self.free_s[self.turn] = start_s + load_s
        self.sends.append((start_s, load_s))
        return start_s + delay_s

    def use(self, prefix: int) -> None:
        """A prefix is used."""
        for tier in self.tiers:
            tier.touch(prefix)

    def write(self, request: int, prefix: int, prefix_blocks: int, tokens: float) -> None:
        """Write a prompt that has been processed to every tier."""
        own = -(-int(tokens - prefix_blocks * self.block_tokens) // self.block_tokens)
        for tier in self.tiers:
            if prefix_blocks:
                tier.write(prefix, prefix_blocks)
            if own > 0:
                tier.write(-1 - request, own)

    def _count(self, parts: tuple[int, ...]) -> int:
        """Tiers worth loading from, worked out once for each list of blocks."""
        if parts not in self._worth:
            tokens = [blocks * self.block_tokens for blocks in parts]
            self._worth[parts] = levels_worth_loading(self.config, self.loads, tokens)
        return self._worth[parts]

    def _times_s(self, parts: list[int], left: float) -> tuple[float, float]:
        """Time on the link, and before the prompt's first step [s]; what is left of it is to be computed."""
        tokens = [blocks * self.block_tokens for blocks in parts]
        used = list(zip(self.loads, tokens, strict=False))
        load_s = sum(loads.load_s(count) for loads, count in used)
        if all(loads.layers == 1 for loads in self.loads):
            return load_s, load_s
        step_s = prompt_s(self.config, min(max(left, 1.0), float(self.config.step_tokens)))
        return load_s, sum(loads.delay_s(count, step_s) for loads, count in used)


def tiers_of_pool(config: ReplicaConfig, replicas: int, end_blocks: int) -> list[ReplicaTiers | None]:
    """The tiers of every replica of a pool; shared ones are the same for all. None without any."""
    loads = tier_loads(config)
    if not loads:
        return [None] * replicas
    shared = {each.tier.kind: TierBlocks(each.blocks * replicas, end_blocks) for each in loads if each.is_shared}
    return [
        ReplicaTiers(
            config, loads, [shared.get(each.tier.kind) or TierBlocks(each.blocks, end_blocks) for each in loads]
        )
        for _ in range(replicas)
    ]


@dataclass(frozen=True, eq=False)
class PrefixDemand:
    """Demand for the tiers of a pool before a run.

    Attributes:
        rates_per_s: requests of each prefix at the pool [1/s], shape (prefixes,).
        blocks: whole ones of each that can be found, shape (prefixes,).
        own_blocks_per_s: blocks of prompts that nobody else asks for, written at the pool [1/s].
        requests: numbers of requests of the run are below this.
    """

    rates_per_s: FloatArray
    blocks: IntArray
    own_blocks_per_s: float
    requests: int


def warm_tiers(tiers: list[ReplicaTiers], demand: PrefixDemand, affinity: bool, seed: int) -> None:
    """Fill the tiers with what they hold in the long run: they take hours to fill that a run does not last.

    The ages of the last requests of prefixes under independent Poisson requests are exponential with their rates, and
    a tier holds what was written last: prefixes by their ages, and between them the prompts of others at a steady rate.
    With affinity prefix k is asked for at replica k mod c alone.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
    count = demand.rates_per_s.size
    with np.errstate(divide="ignore"):
        mean_s = 1.0 / demand.rates_per_s * (1.0 if affinity else len(tiers))
    ages_s = generator.exponential(1.0, (len(tiers), count)) * mean_s
    if affinity:
        ages_s[np.arange(len(tiers))[:, None] != np.arange(count) % len(tiers)] = np.inf
    for number, replica in enumerate(tiers):
        for tier, loads in zip(replica.tiers, replica.loads, strict=True):
            if not loads.is_shared:
                _fill(tier, ages_s[number], demand, demand.own_blocks_per_s / len(tiers))
    for tier, loads in zip(tiers[0].tiers, tiers[0].loads, strict=True):
        if loads.is_shared:
            _fill(tier, ages_s.min(axis=0), demand, demand.own_blocks_per_s)


def _fill(tier: TierBlocks, ages_s: FloatArray, demand: PrefixDemand, own_blocks_per_s: float) -> None:
    """Write prefixes and prompts of others to one tier from the oldest on, as many as there is room for."""
    order = np.argsort(ages_s)
    order = order[np.isfinite(ages_s[order]) & (demand.blocks[order] > 0)]
    younger = np.floor(own_blocks_per_s * ages_s[order]).astype(np.int64)
    taken = np.cumsum(demand.blocks[order] + tier.end_blocks) + younger
    fit = int(np.searchsorted(taken, tier.blocks, side="right"))
    between = np.diff(younger, prepend=0)[:fit]
    left = int(tier.blocks) - (int(taken[fit - 1]) if fit else 0)
    first_free = -1 - demand.requests
    if own_blocks_per_s > 0.0 and left > 0:
        tier.write(first_free, left)
    for place in range(fit - 1, -1, -1):
        tier.write(int(order[place]), int(demand.blocks[order[place]]))
        if between[place]:
            tier.write(first_free - 1 - place, int(between[place]))
