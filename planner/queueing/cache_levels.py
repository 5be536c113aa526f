"""Hits of a cache with levels behind it: which level a prefix is found in first.

Levels are inclusive: each holds what it would hold by itself under least recently used, whatever the others hold. By
Che's approximation (`planner.queueing.prefix`) level i drops a prefix that was not asked for during T_i,

    C_i = sum_k blocks_k (1 - exp(-rate_k T_i)) + passing T_i,

with the rates of one replica, or of the pool where its replicas share the level. So the levels 1 ... i have a prefix
that was asked for at the replica itself within U = max T over all of them, or elsewhere in the pool within V = max T
over the shared ones: with probability

    1 - exp(-own_k U - (rate_k - own_k) V),        own_k: rate at the replica.

What that grows by from one level to the next is found in that level first. `passing` are blocks per second that are
written and never asked for again; they take room behind the GPU, where prompts are written whole.

Sources: as `planner.queueing.prefix`; that of two levels under LRU one includes the other: Mattson, Gecsei, Slutz and
Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9 (1970), section 3 (stack algorithms).

Units: blocks, requests per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray
from planner.queueing.prefix import lru_hits


@dataclass(frozen=True)
class CacheLevel:
    """One level of the caches of a pool.

    Attributes:
        blocks: that it holds for one replica.
        shared: what one replica wrote all find: one cache of as many blocks for each replica together.
        passing: whether blocks that are never asked for again are written to it.
    """

    blocks: float
    shared: bool = False
    passing: bool = True


def level_hits(
    rates_per_s: FloatArray,
    blocks: FloatArray,
    levels: Sequence[CacheLevel],
    replicas: int = 1,
    affinity: bool = False,
    passing_blocks_per_s: float = 0.0,
) -> FloatArray:
    """Probability that a request of each group finds its prefix in each level and in none before it.

    Args:
        rates_per_s: requests of each group at the pool [1/s], Poisson, shape (groups,).
        blocks: of each group's prefix, shape (groups,).
        levels: the GPU's own cache and those behind it, in the order in which they are asked.
        replicas: of the pool.
        affinity: each prefix has its replica, as in `pool_hits`.
        passing_blocks_per_s: at the pool, blocks written that are never asked for again [1/s].

    Returns:
        Shape (levels, groups); what is left to 1 is the chance of no hit.

    Raises:
        InputError: when a rate or a size is negative.

    >>> rates, blocks = np.full(4, 0.25), np.full(4, 100.0)
    >>> level_hits(rates, blocks, [CacheLevel(100.0), CacheLevel(300.0), CacheLevel(400.0)]).round(2)[:, 0].tolist()
    [0.25, 0.5, 0.25]
    """
    own = rates_per_s if affinity else rates_per_s / replicas
    lifetime_s, shared_s = np.zeros(rates_per_s.size), 0.0
    reached = [np.zeros(rates_per_s.size)]
    for level in levels:
        passing = passing_blocks_per_s if level.passing else 0.0
        if level.shared:
            shared_s = max(shared_s, lru_hits(rates_per_s, blocks, level.blocks * replicas, passing).lifetime_s)
            lifetime_s = np.maximum(lifetime_s, shared_s)
        else:
            of_replica = _lifetimes_s(own, blocks, level.blocks, replicas, affinity, passing)
            lifetime_s = np.maximum(lifetime_s, of_replica)
        exponent = _times(own, lifetime_s) + _times(rates_per_s - own, np.full(own.size, shared_s))
        reached.append(np.maximum(-np.expm1(-exponent), reached[-1]))
    return np.diff(np.array(reached), axis=0)


def _lifetimes_s(
    own: FloatArray, blocks: FloatArray, room: float, replicas: int, affinity: bool, passing_blocks_per_s: float
) -> FloatArray:
    """How long each prefix stays in a level of its replica after it was asked for there [s], shape (groups,)."""
    if not affinity or replicas == 1:
        return np.full(own.size, lru_hits(own, blocks, room, passing_blocks_per_s / replicas).lifetime_s)
    lifetimes_s = np.zeros(own.size)
    for replica in range(min(replicas, own.size)):
        mine = slice(replica, None, replicas)
        passing = passing_blocks_per_s * float(own[mine].sum() / own.sum())
        lifetimes_s[mine] = lru_hits(own[mine], blocks[mine], room, passing).lifetime_s
    return lifetimes_s


def _times(rates_per_s: FloatArray, lifetimes_s: FloatArray) -> FloatArray:
    """Requests within a lifetime [-]; none at a rate of 0, however long."""
    asked = rates_per_s > 0.0
    return np.where(asked, rates_per_s * np.where(asked, lifetimes_s, 0.0), 0.0)
