"""What a pool's prefix caches leave of its prompts, from theory.

Every replica keeps the blocks of shared prefixes in the KV memory that running requests leave free, least recently used
out first. How often a prefix is found there is Che's approximation (`queueing.prefix`): over all prefixes of all
classes, at the rate at which one replica is asked for each; with a prefix-affine router each prefix has one replica.
A request that finds its prefix has whole blocks of it less to compute, and attends to them all the same; with recurrent
layers as much of it as an engine has kept state of (`engine.reusable_prefix_tokens`). Windows and state at the end of a
prefix take room beside its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray
from planner.engine import expected_distinct, memory_footprint, reusable_prefix_tokens, reuse_step_tokens
from planner.queueing import pool_hits, uncached_lengths
from planner.serving.types import Pool, Router
from planner.workload import RequestClass, TokenLengths, Workload


@dataclass(frozen=True, eq=False)
class CachedWorkload:
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
    """Whether there is a cache and something to find in it.

    Args:
        pool: the pool.
        workload: its requests.

    Returns:
        True where both hold.
    """
    return pool.config.schedule.prefix_cache and any(item.prefixes is not None for item in workload.classes)


def behind_cache(pool: Pool, workload: Workload, capacity_tokens: float, running: float) -> CachedWorkload:
    """The workload behind the caches of a pool.

    Args:
        pool: with `schedule.prefix_cache`.
        workload: its requests; classes without prefixes are as they were.
        capacity_tokens: KV tokens of one replica.
        running: mean requests holding KV on a replica, each `workload`'s own tokens less the shared ones.

    Returns:
        The workload without the tokens found, and these [tokens].
    """
    step = reuse_step_tokens(pool.config)
    reusable = [_reusable_tokens(pool, requests) for requests in workload.classes]
    hits = _hit_probabilities(pool, workload, reusable, capacity_tokens, running)
    classes, pasts, found_tokens = [], [], 0.0
    for requests, tokens, hit in zip(workload.classes, reusable, hits, strict=True):
        lengths, past = _misses_then_hits(requests, tokens, hit, step)
        classes.append(requests.model_copy(update={"lengths": lengths}))
        pasts.append(past)
        found_tokens += requests.share * float(past @ lengths.probabilities)
    seen = Workload(arrivals=workload.open_arrivals, classes=tuple(classes))
    held = sum(
        _held_tokens(requests, tokens, running * requests.share)
        for requests, tokens in zip(workload.classes, reusable, strict=True)
    )
    return CachedWorkload(seen, np.concatenate(pasts), found_tokens / workload.lengths.mean_input, held)


def _reusable_tokens(pool: Pool, requests: RequestClass) -> int:
    """Tokens of a class's prefix that can be found; 0 without prefixes."""
    if requests.prefixes is None:
        return 0
    return reusable_prefix_tokens(pool.config, requests.prefixes.tokens, requests.lengths.inputs)


def _hit_probabilities(
    pool: Pool, workload: Workload, reusable: Sequence[int], capacity_tokens: float, running: float
) -> list[float]:
    """Chance that a request of each class finds its prefix."""
    block, count, classes = pool.config.engine.kv_block_tokens, pool.replicas, workload.classes
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
    by_prefix = pool_hits(rates, sizes, free_blocks, count, pool.router is Router.PREFIX_AFFINITY).by_group
    ends = np.cumsum([prefixes.groups for _, prefixes, _ in sharing])
    of_sharing = iter(np.split(by_prefix, ends[:-1]))
    return [0.0 if c.prefixes is None else float(next(of_sharing) @ c.prefixes.popularity) for c in classes]


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
