"""What a pool's prefix caches leave of its prompts, from theory.

Every replica keeps the blocks of shared prefixes in the KV memory that running requests leave free, least recently used
out first. How often a prefix is found there is Che's approximation (`queueing.prefix`): over all prefixes of all
classes, at the rate at which one replica is asked for each; with a prefix-affine router each prefix has one replica.
A request that finds its prefix has whole blocks of it less to compute, and attends to them all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.engine import expected_distinct
from planner.queueing import pool_hits, uncached
from planner.serving.types import Pool, Router
from planner.workload import RequestClass, TokenLengths, Workload

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cached:
    """A workload as a pool with a prefix cache sees it.

    Attributes:
        workload: prompts without the tokens found in the cache.
        past: tokens found, for each cell of `workload.lengths`, shape (cells,).
        hit_share: found tokens over all input tokens.
        shared_tokens: KV tokens of prefixes that running requests hold, each once for all.
    """

    workload: Workload
    past: FloatArray
    hit_share: float
    shared_tokens: float


def has_prefixes(pool: Pool, workload: Workload) -> bool:
    """Whether there is a cache and something to find in it."""
    return pool.config.schedule.prefix_cache and any(one.prefixes is not None for one in workload.classes)


def with_cache(pool: Pool, workload: Workload, capacity_tokens: float, running: float) -> Cached:
    """The workload behind the caches of a pool.

    Args:
        pool: with `schedule.prefix_cache`.
        workload: its requests; classes without prefixes are as they were.
        capacity_tokens: KV tokens of one replica.
        running: mean requests holding KV on a replica, each `workload`'s own tokens less the shared ones.
    """
    block = pool.config.engine.kv_block_tokens
    hits = _hits(pool, workload, capacity_tokens, running)
    classes, pasts, found = [], [], 0.0
    for one, chance in zip(workload.classes, hits, strict=True):
        lengths, past = _split(one.lengths, one, chance, block)
        classes.append(one.model_copy(update={"lengths": lengths}))
        pasts.append(past)
        found += one.share * float(past @ lengths.probabilities)
    seen = Workload(arrivals=workload.open_arrivals, classes=tuple(classes))
    held = sum(_held(one, running * one.share) for one in workload.classes)
    return Cached(seen, np.concatenate(pasts), found / workload.lengths.mean_input, held)


def _hits(pool: Pool, workload: Workload, capacity_tokens: float, running: float) -> list[float]:
    """Chance that a request of each class finds its prefix."""
    block, count = pool.config.engine.kv_block_tokens, pool.replicas
    own = sum(one.share * (one.lengths.mean_input + one.lengths.mean_output - _shared(one)) for one in workload.classes)
    free = max(capacity_tokens - running * own, 0.0) / block
    sharing = [(one.share, one.prefixes) for one in workload.classes if one.prefixes is not None]
    rates = np.concatenate([workload.rate_per_s * share * prefixes.popularity for share, prefixes in sharing])
    sizes = np.concatenate([np.full(prefixes.groups, prefixes.tokens // block) for _, prefixes in sharing])
    found = pool_hits(rates, sizes, free, count, pool.router is Router.PREFIX_AFFINITY).by_group
    ends = np.cumsum([prefixes.groups for _, prefixes in sharing])
    parts = iter(np.split(found, ends[:-1]))
    return [0.0 if one.prefixes is None else float(next(parts) @ one.prefixes.popularity) for one in workload.classes]


def _shared(one: RequestClass) -> float:
    return 0.0 if one.prefixes is None else float(min(one.prefixes.tokens, one.lengths.mean_input))


def _held(one: RequestClass, running: float) -> float:
    """Tokens of the distinct prefixes of `running` requests of a class."""
    if one.prefixes is None:
        return 0.0
    return one.prefixes.tokens * expected_distinct(running, one.prefixes.popularity)


def _split(lengths: TokenLengths, one: RequestClass, chance: float, block: int) -> tuple[TokenLengths, FloatArray]:
    """Cells of misses, then of hits, and the tokens each finds in the cache."""
    if one.prefixes is None or chance <= 0.0:
        return lengths, np.zeros(lengths.inputs.size)
    left = uncached(lengths, one.prefixes.tokens, min(chance, 1.0), block)
    return left, np.resize(lengths.inputs, left.inputs.size) - left.inputs
