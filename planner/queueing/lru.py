"""Hits of least-recently-used caches, from how long it takes until what was cached is asked for again.

Che's approximation: what is not asked for during a time T is dropped, with one T for everything, such that the cache is
just full. Prefixes that all users share are asked for at Poisson rates,

    capacity = sum_k blocks_k (1 - exp(-rate_k T)) + passing T,       hit_k = 1 - exp(-rate_k T),

with `passing` the blocks per second that are written and never asked for again. Contexts that become idle at a rate,
of which a share F(t) is asked for again within t (F may end below 1), stay for min(reuse time, T) on average:

    capacity = rate * integral from 0 to T of (1 - F(t)) dt,       hits = F(T).

A cache may have levels behind it (`level_hits`). They are inclusive: each holds what it would hold by itself, with a
time T_i of its own, at the rates of one replica or, where its replicas share the level, of the pool. So the levels
1 ... i have a prefix that was asked for at the replica itself within U = max T over all of them, or elsewhere in the
pool within V = max T over the shared ones: with probability

    1 - exp(-own_k U - (rate_k - own_k) V),        own_k: rate at the replica.

What that grows by from one level to the next is found in that level first.

Sources: Che, Tung and Wang, "Hierarchical web caching systems: modeling, design and experimental results", IEEE J.
Selected Areas in Communications 20 (2002) 1305-1314, eq. 3-4; Fricker, Robert and Roberts, "A versatile and accurate
approximation for LRU cache performance", ITC 24 (2012) (why T is nearly constant, and items of unequal size); for reuse
times of any distribution: Garetto, Leonardi and Martina, ACM ToMPECS 1(3) (2016), section 3.1; inclusive levels:
Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal 9 (1970), section 3 (stack algorithms).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.core import FloatArray, root_between

REUSE_TIMES_S = np.concatenate([[0.0], np.geomspace(1e-4, 1e9, 4096)])
"""Reuse times told apart [s]: from less than a step to thirty years, 0.7 % apart. A choice."""


def prefix_lifetime_s(
    rates_per_s: ArrayLike, blocks: ArrayLike, capacity_blocks: float, passing_blocks_per_s: float = 0.0
) -> float:
    """How long a prefix stays in one least-recently-used cache after it was last asked for.

    Args:
        rates_per_s: requests of each prefix [1/s], Poisson, shape (groups,).
        blocks: of each prefix, shape (groups,) or one number for all.
        capacity_blocks: of the cache.
        passing_blocks_per_s: blocks written to the same cache that are never asked for again [1/s].

    Returns:
        T [s]: 0 without room, infinite where everything fits.

    Source: Che, Tung and Wang (2002), eqs. 3-4.

    >>> round(prefix_lifetime_s([1.0, 1.0], 10, 10), 4)  # by symmetry 1 - exp(-T) = 1/2
    0.6931
    """
    rates = np.asarray(rates_per_s, dtype=np.float64).ravel()
    sizes = np.broadcast_to(np.asarray(blocks, dtype=np.float64), rates.shape)
    if capacity_blocks <= 0.0:
        return 0.0
    if passing_blocks_per_s == 0.0 and float(sizes[rates > 0.0].sum()) <= capacity_blocks:
        return float("inf")

    def excess(log_time: float) -> float:
        time_s = np.exp(log_time)
        return float(sizes @ -np.expm1(-rates * time_s) + passing_blocks_per_s * time_s - capacity_blocks)

    low = high = float(np.log(capacity_blocks / (float(sizes @ rates) + passing_blocks_per_s)))
    while excess(high) < 0.0:
        high += 2.0
    return float(np.exp(root_between(excess, low - 1e-9, high, xtol=1e-12) if high > low else low))


def idle_lifetimes_s(
    reuse_cdf: Callable[[FloatArray], FloatArray], tokens_per_s: float, capacities_tokens: Sequence[float]
) -> FloatArray:
    """How long idle tokens stay in least-recently-used caches of several sizes.

    Args:
        reuse_cdf: F, share of idle tokens asked for again within times [s]; rises, from 0 or more to at most 1.
        tokens_per_s: that become idle [tokens/s].
        capacities_tokens: of each cache, for idle tokens [tokens].

    Returns:
        T of each [s]: 0 without room, infinite where all that will be asked for fits for good.

    Source: Che, Tung and Wang (2002), eq. 3; Garetto et al. (2016), eq. 3.

    >>> never = lambda times_s: 0.0 * times_s  # passes through: a queue of 100 / 2 seconds
    >>> idle_lifetimes_s(never, 2.0, [0.0, 100.0]).round(6).tolist()
    [0.0, 50.0]
    """
    room = np.maximum(np.asarray(capacities_tokens, dtype=np.float64), 0.0)
    left = 1.0 - np.clip(reuse_cdf(REUSE_TIMES_S), 0.0, 1.0)
    held = tokens_per_s * np.append(0.0, np.cumsum(np.diff(REUSE_TIMES_S) * (left[1:] + left[:-1]) / 2.0))
    found = np.interp(room, held, REUSE_TIMES_S)
    return np.where(room > held[-1], np.inf, np.where(room > 0.0, found, 0.0))


@dataclass(frozen=True)
class CacheLevel:
    """One level of the caches of a pool.

    Attributes:
        blocks: that it holds for one replica.
        shared: what one replica wrote all find: one cache of as many blocks for each replica together.
        passing: blocks that are never asked for again are written to it.
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

    Without affinity every replica sees every group, at 1 / replicas of its rate, and keeps copies of the same prefixes.
    With it a group goes to one replica (group k to replica k mod c), so that the pool's cache is as large as all
    together.

    Args:
        rates_per_s: requests of each group at the pool [1/s], Poisson, shape (groups,).
        blocks: of each group's prefix, shape (groups,).
        levels: the GPU's own cache and those behind it, in the order in which they are asked.
        replicas: of the pool.
        affinity: each prefix has its replica.
        passing_blocks_per_s: at the pool, blocks written that are never asked for again [1/s].

    Returns:
        Shape (levels, groups); what is left to 1 is the chance of no hit.

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
            shared_s = max(shared_s, prefix_lifetime_s(rates_per_s, blocks, level.blocks * replicas, passing))
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
        return np.full(own.size, prefix_lifetime_s(own, blocks, room, passing_blocks_per_s / replicas))
    lifetimes_s = np.zeros(own.size)
    for replica in range(min(replicas, own.size)):
        mine = slice(replica, None, replicas)
        passing = passing_blocks_per_s * float(own[mine].sum() / own.sum())
        lifetimes_s[mine] = prefix_lifetime_s(own[mine], blocks[mine], room, passing)
    return lifetimes_s


def _times(rates_per_s: FloatArray, lifetimes_s: FloatArray) -> FloatArray:
    """Requests within a lifetime [-]; none at a rate of 0, however long."""
    asked = rates_per_s > 0.0
    return np.where(asked, rates_per_s * np.where(asked, lifetimes_s, 0.0), 0.0)
