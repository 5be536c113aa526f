"""Prompts behind a pool's prefix caches, from theory.

Every replica keeps the blocks of shared prefixes in the KV memory that running requests leave free, least recently used
out first. How often a prefix is found there is Che's approximation (`queueing.lru`): over all prefixes of all classes,
at the rate at which one replica is asked for each; with a prefix-affine router each prefix has one replica. A request
that finds its prefix has whole blocks of it less to compute, and attends to them all the same; with recurrent layers as
much of it as an engine has kept state of (`engine.reusable_prefix_tokens`). Windows and state at the end of a prefix
take room beside its tokens. Behind the GPU's cache there may be KV tiers (`engine.kv_tiers`), which prompts are written
to whole; the loads of one attention rank follow one another on its link (`queueing.link`). Sessions find what they left
themselves (`serving.session_cache`), on the GPU alone; so do requests with the hits of a recording
(`workload.PrefixReuse`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hardware_db import KvTierKind
from planner.core import FloatArray
from planner.engine import (
    TierLoads,
    expected_distinct,
    levels_worth_loading,
    memory_footprint,
    prompt_s,
    require_room,
    reusable_prefix_tokens,
    tier_loads,
)
from planner.queueing import CacheLevel, LinkWait, QueueLatency, level_hits, link_wait, with_delay
from planner.serving.session_cache import (
    SeenRequests,
    behind_hits,
    behind_session_cache,
    lifetime_s,
    reused_share,
)
from planner.serving.types import Pool, Router
from planner.workload import LatencyDistribution, RequestClass, Workload

WAIT_POINTS = 32
"""Points that the wait for a link is condensed to. A choice."""


@dataclass(frozen=True, eq=False)
class PoolLoads:
    """Loads of a pool's prompts from its KV tiers.

    Attributes:
        kinds: of the tiers.
        tier_hits: share of the input tokens found in each tier, shape (tiers,).
        prompts: tokens to compute of requests of several kinds, shape (n,).
        chances: probability of each kind that loads so, shape (n, loads); the rest of `masses` loads nothing.
        masses: probability of each kind, shape (n,).
        load_s: time on the link of each load [s], shape (loads,).
        delay_s: what of it comes before the prompt's first step [s], shape (loads,).
        links: of a pool, one for each attention rank of its replicas.
    """

    kinds: tuple[KvTierKind, ...]
    tier_hits: FloatArray
    prompts: FloatArray
    chances: FloatArray
    masses: FloatArray
    load_s: FloatArray
    delay_s: FloatArray
    links: int

    @cached_property
    def loading(self) -> float:
        """Share of the requests that load."""
        return float(self.chances.sum())

    @property
    def limit_per_s(self) -> float:
        """Rate at the pool at which its links are busy all the time [1/s]."""
        mean_s = float(self.chances.sum(axis=0) @ self.load_s)
        return self.links / mean_s if mean_s > 0.0 else np.inf

    def wait(self, rate_per_s: float) -> LinkWait:
        """The wait of a load for its link at a rate of requests at the pool [1/s]."""
        if self.loading <= 0.0:
            return LinkWait(LatencyDistribution.constant(0.0), 0.0)
        load = LatencyDistribution.from_samples(self.load_s, self.chances.sum(axis=0)).condensed(WAIT_POINTS)
        return link_wait(rate_per_s * self.loading / self.links, load)

    def delayed(self, queue: QueueLatency, link: LinkWait) -> QueueLatency:
        """The queue of the pool behind its loads."""
        if self.loading <= 0.0:
            return queue
        wait = link.wait.condensed(WAIT_POINTS)
        delays_s = np.append(0.0, np.add.outer(self.delay_s, wait.support_s).ravel())
        none = np.maximum(self.masses - self.chances.sum(axis=1), 0.0)
        loaded = np.multiply.outer(self.chances, wait.weights).reshape(self.prompts.size, -1)
        return with_delay(queue, self.prompts, np.column_stack([none, loaded]), delays_s, link)


@dataclass(frozen=True, eq=False)
class CachedWorkload:
    """A workload as a pool with a prefix cache sees it.

    Attributes:
        workload: prompts without the tokens found in the cache.
        past: tokens found, for each cell of `workload.lengths`, shape (cells,); 0 of an empty cache.
        hit_share: found tokens over all input tokens.
        shared_tokens: KV tokens of prefixes that running requests hold, each once for all.
        own_past: of `past`, tokens that a request holds alone: its own session's, shape (cells,).
        loads: what comes from KV tiers; None without any.
    """

    workload: Workload
    past: FloatArray | float = 0.0
    hit_share: float = 0.0
    shared_tokens: float = 0.0
    own_past: FloatArray | float = 0.0
    loads: PoolLoads | None = None


def has_prefixes(pool: Pool, workload: Workload) -> bool:
    """True if there is a cache and something to find in it.

    Args:
        pool: the pool.
        workload: its requests.

    Returns:
        True where both hold.
    """
    kinds = workload.classes
    there = any(kind.prefixes or kind.sessions or kind.prefix_hit_rate or kind.prefix_reuse for kind in kinds)
    return pool.config.schedule.prefix_cache and there


def behind_cache(
    pool: Pool, workload: Workload, running: float = 0.0, capacity_tokens: float | None = None
) -> CachedWorkload:
    """The workload behind the caches of a pool; these find most while nothing runs.

    Args:
        pool: the pool.
        workload: its requests; classes without prefixes are as they were.
        running: mean requests holding KV on a replica, each `workload`'s own tokens less the shared ones.
        capacity_tokens: KV tokens of one replica; None: what its footprint leaves.

    Returns:
        The workload without the tokens found, and these [tokens]; an empty cache where nothing can be found.

    Raises:
        InputError: a request does not fit.
    """
    if not has_prefixes(pool, workload):
        return CachedWorkload(workload)
    if capacity_tokens is None:
        capacity_tokens = float(require_room(pool.config, workload.lengths.max_total).kv_capacity_tokens)
    classes = workload.classes
    reusable, tiers = [_reusable_tokens(pool, kind) for kind in classes], tier_loads(pool.config)
    hits = _hit_probabilities(pool, workload, reusable, capacity_tokens, running, tiers)
    kept_s, answer_s = _idle_contexts(pool, workload, capacity_tokens, running)
    seen = []
    for kind, tokens, by_level in zip(classes, reusable, hits, strict=True):
        if kind.sessions is not None:
            seen.append(behind_session_cache(pool, kind, kept_s, answer_s, running * pool.replicas))
        elif kind.prefixes is not None:
            held = tokens * expected_distinct(running * kind.share, kind.prefixes.popularity)
            seen.append(behind_hits(pool, kind.lengths, float(tokens), float(by_level.sum()), shared_tokens=held))
        else:
            share = kind.prefix_hit_rate
            if kind.prefix_reuse is not None:
                share = reused_share(pool, kind, workload, capacity_tokens, running)
            seen.append(behind_hits(pool, kind.lengths, kind.lengths.inputs * share))
    kinds = tuple(
        kind.model_copy(
            update={"lengths": each.lengths, "sessions": None, "prefix_hit_rate": 0.0, "prefix_reuse": None}
        )
        for kind, each in zip(classes, seen, strict=True)
    )
    found = [each.past @ each.lengths.probabilities for each in seen]
    mean_input = workload.lengths.mean_input
    return CachedWorkload(
        workload=Workload(arrivals=workload.open_arrivals, classes=kinds),
        past=np.concatenate([each.past for each in seen]),
        hit_share=float(np.dot([kind.share for kind in classes], found)) / mean_input,
        shared_tokens=math.fsum(each.shared_tokens for each in seen),
        own_past=np.concatenate([each.own_past for each in seen]),
        loads=_pool_loads(pool, kinds, seen, tiers, reusable, hits, mean_input) if tiers else None,
    )


def _idle_contexts(pool: Pool, workload: Workload, capacity_tokens: float, running: float) -> tuple[float, float]:
    """How long idle contexts of sessions stay, and how long a request holds memory [s]; 0 without sessions.

    Sessions share what running requests leave of the memory; an answer takes as long as requests hold it (Little).
    """
    classes, answer_s = workload.classes, running * pool.replicas / workload.rate_per_s
    systems = [(kind.share, kind.sessions.system_prompt_tokens) for kind in classes if kind.sessions is not None]
    if not systems:
        return 0.0, answer_s
    own = math.fsum(kind.share * (kind.lengths.mean_input + kind.lengths.mean_output) for kind in classes)
    own -= math.fsum(share * system for share, system in systems)
    room = capacity_tokens - sum(system for _, system in systems) - running * own
    return lifetime_s(pool, classes, workload.rate_per_s, room, answer_s), answer_s


def _pool_loads(
    pool: Pool,
    classes: Sequence[RequestClass],
    seen: Sequence[SeenRequests],
    tiers: Sequence[TierLoads],
    reusable: Sequence[int],
    hits: Sequence[FloatArray],
    mean_input: float,
) -> PoolLoads:
    """Loads of the requests behind the caches from each tier, one for each class and tier: the whole of a prefix,
    where that tier is the first to have it.
    """
    config = pool.config
    load_s, delay_s, prompts, masses, chances = [], [], [], [], []
    tier_hits = np.zeros(len(tiers))
    for place, (requests, each, tokens, by_level) in enumerate(zip(classes, seen, reusable, hits, strict=True)):
        lengths, total = requests.lengths, float(by_level.sum())
        step_s = prompt_s(config, min(lengths.mean_input, float(config.step_tokens))) if total else 0.0
        load_s += [tier.load_s(tokens) for tier in tiers]
        delay_s += [tier.delay_s(tokens, step_s) for tier in tiers]
        of_level = by_level[1:] / total if total else by_level[1:]
        found = requests.share * lengths.probabilities * (each.past > 0.0)
        tier_hits += of_level * float(found @ each.past)
        row = np.zeros((lengths.inputs.size, len(classes) * len(tiers)))
        row[:, place * len(tiers) : (place + 1) * len(tiers)] = np.outer(found, of_level)
        chances.append(row)
        prompts.append(lengths.inputs)
        masses.append(requests.share * lengths.probabilities)
    return PoolLoads(
        kinds=tuple(tier.tier.kind for tier in tiers),
        tier_hits=tier_hits / mean_input,
        prompts=np.concatenate(prompts),
        chances=np.concatenate(chances),
        masses=np.concatenate(masses),
        load_s=np.array(load_s),
        delay_s=np.array(delay_s),
        links=pool.replicas * config.parallelism.dp,
    )


def _reusable_tokens(pool: Pool, requests: RequestClass) -> int:
    """Tokens of a class's prefix that can be found; 0 without prefixes."""
    if requests.prefixes is None:
        return 0
    return reusable_prefix_tokens(pool.config, requests.prefixes.tokens, requests.lengths.inputs)


def _hit_probabilities(
    pool: Pool,
    workload: Workload,
    reusable: Sequence[int],
    capacity_tokens: float,
    running: float,
    tiers: Sequence[TierLoads],
) -> list[FloatArray]:
    """Chance that a request of each class finds its prefix first on the GPU, then in each tier, shape (1 + tiers,)."""
    block, count, classes = pool.config.kv_block_tokens, pool.replicas, workload.classes
    if all(kind.prefixes is None for kind in classes):
        return [np.zeros(1 + len(tiers)) for _ in classes]
    own = sum(
        c.share * (c.lengths.mean_input + c.lengths.mean_output - min(tokens, c.lengths.mean_input))
        for c, tokens in zip(classes, reusable, strict=True)
    )
    free_blocks = max(capacity_tokens - running * own, 0.0) / block
    beside = memory_footprint(pool.config).sequence_blocks
    sharing = [
        (c.share, c.prefixes, tokens // block + beside)
        for c, tokens in zip(classes, reusable, strict=True)
        if c.prefixes is not None
    ]
    rates = np.concatenate([workload.rate_per_s * share * prefixes.popularity for share, prefixes, _ in sharing])
    sizes = np.concatenate([np.full(prefixes.groups, blocks) for _, prefixes, blocks in sharing])
    levels = [CacheLevel(free_blocks, passing=False), *(CacheLevel(tier.blocks, tier.is_shared) for tier in tiers)]
    passing = workload.rate_per_s * sum(
        c.share * float(np.ceil(np.maximum(c.lengths.inputs - tokens, 0.0) / block) @ c.lengths.probabilities)
        for c, tokens in zip(classes, reusable, strict=True)
    )
    affinity = pool.router is Router.PREFIX_AFFINITY
    by_prefix = level_hits(rates, sizes, levels, count, affinity, passing)
    ends = np.cumsum([prefixes.groups for _, prefixes, _ in sharing])
    of_sharing = iter(np.split(by_prefix, ends[:-1], axis=1))
    nothing = np.zeros(len(levels))
    found = [nothing if c.prefixes is None else next(of_sharing) @ c.prefixes.popularity for c in classes]
    quicker = [[levels_worth_loading(pool.config, [tier], [tokens]) for tier in tiers] for tokens in reusable]
    return [each * np.array([1.0, *those]) for each, those in zip(found, quicker, strict=True)]
