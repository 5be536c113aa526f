"""What a pool's prefix caches leave of its prompts, from theory.

Every replica keeps the blocks of shared prefixes in the KV memory that running requests leave free, least recently used
out first. How often a prefix is found there is Che's approximation (`queueing.prefix`): over all prefixes of all
classes, at the rate at which one replica is asked for each; with a prefix-affine router each prefix has one replica.
A request that finds its prefix has whole blocks of it less to compute, and attends to them all the same; with recurrent
layers as much of it as an engine has kept state of (`engine.reusable_prefix_tokens`). Windows and state at the end of a
prefix take room beside its tokens. Behind the GPU's cache there may be KV tiers (`queueing.cache_levels`,
`engine.kv_tiers`), which prompts are written to whole. Sessions find what they left themselves
(`serving.session_cache`), on the GPU alone; so do requests with the hits of a recording (`workload.PrefixReuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray
from planner.engine import (
    TierLoads,
    expected_distinct,
    levels_worth_loading,
    memory_footprint,
    prompt_s,
    require_room,
    reusable_prefix_tokens,
    reuse_step_tokens,
    tier_loads,
)
from planner.queueing import CacheLevel, level_hits, uncached_lengths
from planner.serving.session_cache import (
    SeenRequests,
    behind_known_hits,
    behind_session_cache,
    lifetime_s,
    reused_share,
)
from planner.serving.tier_loads import PoolLoads
from planner.serving.types import Pool, Router
from planner.workload import RequestClass, TokenLengths, Workload


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
    step = reuse_step_tokens(pool.config)
    reusable = [_reusable_tokens(pool, requests) for requests in workload.classes]
    tiers = tier_loads(pool.config)
    hits = _hit_probabilities(pool, workload, reusable, capacity_tokens, running, tiers)
    own_classes = _own_prefixes(pool, workload, capacity_tokens, running)
    classes, pasts, owns, found_tokens = [], [], [], 0.0
    for requests, tokens, by_level in zip(workload.classes, reusable, hits, strict=True):
        seen_class = own_classes.get(requests.name)
        if seen_class is None:
            lengths, past = _misses_then_hits(requests, tokens, float(by_level.sum()), step)
            own_past = np.zeros_like(past)
        else:
            lengths, past, own_past = seen_class.lengths, seen_class.past, seen_class.own_past
        own = {"lengths": lengths, "sessions": None, "prefix_hit_rate": 0.0, "prefix_reuse": None}
        classes.append(requests.model_copy(update=own))
        pasts.append(past)
        owns.append(own_past)
        found_tokens += requests.share * float(past @ lengths.probabilities)
    seen = Workload(arrivals=workload.open_arrivals, classes=tuple(classes))
    held = sum(
        _held_tokens(requests, tokens, running * requests.share)
        for requests, tokens in zip(workload.classes, reusable, strict=True)
    )
    held += sum(each.shared_tokens for each in own_classes.values())
    mean_input = workload.lengths.mean_input
    loads = _pool_loads(pool, classes, pasts, tiers, reusable, hits, mean_input) if tiers else None
    return CachedWorkload(seen, np.concatenate(pasts), found_tokens / mean_input, held, np.concatenate(owns), loads)


def _own_prefixes(pool: Pool, workload: Workload, capacity_tokens: float, running: float) -> dict[str, SeenRequests]:
    """What is left of classes whose prompts have a prefix of their own: sessions, and those with known hits.

    Sessions share what running requests leave of the memory; an answer takes as long as requests hold it (Little).
    """
    classes, rate_per_s = workload.classes, workload.rate_per_s
    seen = {kind.name: behind_known_hits(pool, kind, kind.prefix_hit_rate) for kind in classes if kind.prefix_hit_rate}
    for kind in classes:
        if kind.prefix_reuse is not None:
            share = reused_share(pool, kind, workload, capacity_tokens, running)
            seen[kind.name] = behind_known_hits(pool, kind, share)
    talking = [kind for kind in classes if kind.sessions is not None]
    if talking:
        there = running * pool.replicas
        answer_s = there / rate_per_s
        system = sum(kind.sessions.system_prompt_tokens for kind in talking if kind.sessions is not None)
        own = sum(kind.share * (kind.lengths.mean_input + kind.lengths.mean_output) for kind in classes)
        of_system = sum(kind.share * kind.sessions.system_prompt_tokens for kind in talking if kind.sessions)
        room = capacity_tokens - system - running * (own - of_system)
        kept_s = lifetime_s(pool, classes, rate_per_s, room, answer_s)
        seen |= {kind.name: behind_session_cache(pool, kind, kept_s, answer_s, there) for kind in talking}
    return seen


def _pool_loads(
    pool: Pool,
    classes: Sequence[RequestClass],
    pasts: Sequence[FloatArray],
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
    for place, (requests, past, tokens, by_level) in enumerate(zip(classes, pasts, reusable, hits, strict=True)):
        lengths, total = requests.lengths, float(by_level.sum())
        step_s = prompt_s(config, min(lengths.mean_input, float(config.step_tokens))) if total else 0.0
        load_s += [tier.load_s(tokens) for tier in tiers]
        delay_s += [tier.delay_s(tokens, step_s) for tier in tiers]
        of_level = by_level[1:] / total if total else by_level[1:]
        found = requests.share * lengths.probabilities * (past > 0.0)
        tier_hits += of_level * float(found @ past)
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
    block, count, classes = pool.config.engine.kv_block_tokens, pool.replicas, workload.classes
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
        c.share * _own_prompt_blocks(c, tokens, block) for c, tokens in zip(classes, reusable, strict=True)
    )
    affinity = pool.router is Router.PREFIX_AFFINITY
    by_prefix = level_hits(rates, sizes, levels, count, affinity, passing)
    ends = np.cumsum([prefixes.groups for _, prefixes, _ in sharing])
    of_sharing = iter(np.split(by_prefix, ends[:-1], axis=1))
    nothing = np.zeros(len(levels))
    found = [nothing if c.prefixes is None else next(of_sharing) @ c.prefixes.popularity for c in classes]
    worth = [_worth_loading(pool, tiers, tokens) for tokens in reusable]
    return [each * mask for each, mask in zip(found, worth, strict=True)]


def _own_prompt_blocks(requests: RequestClass, reusable: int, block: int) -> float:
    """Mean blocks of a prompt that no other request asks for."""
    own = np.maximum(requests.lengths.inputs - reusable, 0.0)
    return float(np.ceil(own / block) @ requests.lengths.probabilities)


def _worth_loading(pool: Pool, tiers: Sequence[TierLoads], tokens: int) -> FloatArray:
    """1 for the GPU and every tier from which so many tokens take less time than to compute, else 0."""
    worth = [levels_worth_loading(pool.config, [tier], [tokens]) for tier in tiers]
    return np.array([1.0, *worth])


def _held_tokens(requests: RequestClass, reusable: int, running: float) -> float:
    """Tokens of the distinct prefixes of `running` requests of a class."""
    if requests.prefixes is None:
        return 0.0
    return reusable * expected_distinct(running, requests.prefixes.popularity)


def _misses_then_hits(requests: RequestClass, reusable: int, hit: float, step: int) -> tuple[TokenLengths, FloatArray]:
    """Cells of misses, then of hits, and the tokens each finds in the cache."""
    lengths = requests.lengths
    if not reusable or hit <= 0.0:
        return lengths, np.zeros(lengths.inputs.size)
    left = uncached_lengths(lengths, reusable, min(hit, 1.0), step)
    return left, np.resize(lengths.inputs, left.inputs.size) - left.inputs
