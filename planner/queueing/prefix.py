"""What a cache of shared prefixes saves: hits of a least-recently-used cache, and the tokens left to compute.

Che's approximation: an item that is not asked for during a time T is dropped, with one T for all of them, such that the
cache is just full:

    capacity = sum_k blocks_k (1 - exp(-rate_k T)) + passing T,       hit_k = 1 - exp(-rate_k T)

`passing` are blocks per second that are written and never asked for again (tokens of a request that nobody shares),
where an engine keeps those too.

Sources: Che, Tung and Wang, "Hierarchical web caching systems: modeling, design and experimental results", IEEE J.
Selected Areas in Communications 20 (2002) 1305-1314, eq. 3-4; Fricker, Robert and Roberts, "A versatile and accurate
approximation for LRU cache performance", ITC 24 (2012) (why it is accurate, and items of unequal size).

Units: blocks, tokens, requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from planner.core import FloatArray, InputError
from planner.workload import TokenLengths


@dataclass(frozen=True, eq=False)
class PrefixHits:
    """How often prefixes are found in the cache.

    Attributes:
        by_group: probability that a request of a group finds its prefix, shape (groups,).
        overall: probability that a random request does.
        lifetime_s: T, how long a prefix stays after it was last asked for [s]; infinite where all fit.
    """

    by_group: FloatArray
    overall: float
    lifetime_s: float


def lru_hits(
    rates_per_s: ArrayLike, blocks: ArrayLike, capacity_blocks: float, passing_blocks_per_s: float = 0.0
) -> PrefixHits:
    """Hits of one least-recently-used cache by Che's approximation.

    Where everything fits the only misses are first requests, which a stationary distribution does not see: all hit.

    Args:
        rates_per_s: requests of each group [1/s], Poisson, shape (groups,).
        blocks: of each group's prefix, shape (groups,) or one number for all.
        capacity_blocks: of the cache; 0 or less hits nothing.
        passing_blocks_per_s: blocks written to the same cache that are never asked for again [1/s].

    Returns:
        Hit probability of each group, of a random request, and the lifetime T [s].

    Raises:
        InputError: when a rate or a size is negative.

    Source: Che, Tung and Wang (2002), eqs. 3-4.

    >>> lru_hits([1.0, 1.0], 10, 10).by_group.round(4).tolist()  # 1 - exp(-T) = 1/2 by symmetry
    [0.5, 0.5]
    """
    rates = np.asarray(rates_per_s, dtype=np.float64).ravel()
    sizes = np.broadcast_to(np.asarray(blocks, dtype=np.float64), rates.shape)
    if rates.size == 0 or not (np.isfinite(rates).all() and (rates >= 0.0).all() and rates.sum() > 0.0):
        raise InputError("rates_per_s", rates.tolist(), "must be >= 0 and not all 0", "give one rate per group")
    if not (sizes >= 0.0).all() or not passing_blocks_per_s >= 0.0:
        raise InputError("blocks", float(sizes.min()), "must be >= 0", "give sizes in whole KV blocks")
    asked = rates > 0.0
    if capacity_blocks <= 0.0:
        return PrefixHits(np.zeros(rates.size), 0.0, 0.0)
    if passing_blocks_per_s == 0.0 and float(sizes[asked].sum()) <= capacity_blocks:
        return PrefixHits(asked.astype(np.float64), 1.0, float("inf"))

    def excess(log_time: float) -> float:
        time_s = np.exp(log_time)
        return float(sizes @ -np.expm1(-rates * time_s) + passing_blocks_per_s * time_s - capacity_blocks)

    fill = float(sizes @ rates) + passing_blocks_per_s
    low = np.log(capacity_blocks / fill)
    high = low
    while excess(high) < 0.0:
        high += 2.0
    lifetime_s = float(np.exp(brentq(excess, low - 1e-9, high, xtol=1e-12))) if high > low else float(np.exp(low))
    hits = np.asarray(-np.expm1(-rates * lifetime_s))
    return PrefixHits(hits, float(hits @ rates / rates.sum()), lifetime_s)


def pool_hits(
    rates_per_s: FloatArray,
    blocks: FloatArray,
    capacity_blocks: float,
    replicas: int = 1,
    affinity: bool = False,
    passing_blocks_per_s: float = 0.0,
) -> PrefixHits:
    """Hits of prefixes of any rates and sizes in the caches of a pool.

    Without affinity every replica sees every group, at 1 / replicas of its rate, and keeps copies of the same prefixes.
    With it a group goes to one replica (group k to replica k mod c), so that the pool's cache is as large as all
    together.

    Args:
        rates_per_s: requests of each group at the pool [1/s], Poisson, shape (groups,).
        blocks: of each group's prefix, shape (groups,).
        capacity_blocks: of the cache of one replica that is free for prefixes.
        replicas: of the pool.
        affinity: each prefix has its replica.
        passing_blocks_per_s: at the pool, blocks written that are never asked for again [1/s].

    Returns:
        Hit probability of each group, of a random request, and the shortest lifetime T [s].

    >>> rates, blocks = np.full(4, 0.25), np.full(4, 100.0)
    >>> [round(pool_hits(rates, blocks, 100, replicas=4, affinity=a).overall, 2) for a in (False, True)]
    [0.25, 1.0]
    """
    if not affinity or replicas == 1:
        return lru_hits(rates_per_s / replicas, blocks, capacity_blocks, passing_blocks_per_s / replicas)
    by_group, lifetimes_s, total = np.zeros(rates_per_s.size), [], float(rates_per_s.sum())
    for replica in range(min(replicas, rates_per_s.size)):
        mine = slice(replica, None, replicas)
        passing = passing_blocks_per_s * float(rates_per_s[mine].sum()) / total
        hits = lru_hits(rates_per_s[mine], blocks[mine], capacity_blocks, passing)
        by_group[mine] = hits.by_group
        lifetimes_s.append(hits.lifetime_s)
    return PrefixHits(by_group, float(by_group @ rates_per_s) / total, float(min(lifetimes_s)))


def cached_tokens(input_tokens: ArrayLike, prefix_tokens: int, block_tokens: int) -> FloatArray:
    """Tokens of a prompt found in the cache on a hit: whole blocks of the prefix, and never the whole prompt.

    min(floor(min(input, prefix) / block), floor((input - 1) / block)) * block: the last token is always computed, as
    its output is what comes next.

    Args:
        input_tokens: of each prompt, any shape [tokens].
        prefix_tokens: of the shared prefix [tokens].
        block_tokens: of a KV block [tokens].

    Returns:
        Shape of `input_tokens` [tokens].

    Source: vLLM, docs/design/prefix_caching (only full blocks are cached; the last token is recomputed when all of a
    prompt hits).

    >>> cached_tokens([100, 32, 40], 32, 16).tolist()
    [32.0, 16.0, 32.0]
    """
    tokens = np.asarray(input_tokens, dtype=np.float64)
    shared = np.floor(np.minimum(tokens, prefix_tokens) / block_tokens)
    return np.asarray(np.minimum(shared, np.floor((tokens - 1.0) / block_tokens)) * block_tokens)


def uncached_lengths(
    lengths: TokenLengths, prefix_tokens: int, hit_probability: float, block_tokens: int
) -> TokenLengths:
    """Lengths with the prompt tokens that are left to compute: each cell splits into hits and misses.

    Outputs and their correlation with inputs are kept, and so is the number of output tokens. What attention reads is
    the whole prompt still; this is the prefill work.

    Args:
        lengths: joint input and output tokens.
        prefix_tokens: shared at the start of each prompt [tokens].
        hit_probability: that a request finds them, in [0, 1].
        block_tokens: of a KV block [tokens].

    Returns:
        Joint distribution of the tokens to compute and the output tokens.

    Raises:
        InputError: when `hit_probability` is not in [0, 1].

    >>> half = uncached_lengths(TokenLengths.constant(100, 10), 32, 0.5, 16)
    >>> half.input_tokens, half.mean_input, half.mean_output
    ((100, 68), 84.0, 10.0)
    """
    if not 0.0 <= hit_probability <= 1.0:
        raise InputError("hit_probability", hit_probability, "must lie in [0, 1]", "give a share of the requests")
    if hit_probability == 0.0:
        return lengths
    left = lengths.inputs - cached_tokens(lengths.inputs, prefix_tokens, block_tokens)
    mass = lengths.probabilities
    if hit_probability == 1.0:
        return TokenLengths.from_pairs(left, lengths.outputs, mass, lengths.source, lengths.images)
    return TokenLengths.from_pairs(
        np.concatenate([lengths.inputs, left]),
        np.concatenate([lengths.outputs, lengths.outputs]),
        np.concatenate([mass * (1.0 - hit_probability), mass * hit_probability]),
        source=lengths.source,
        images=lengths.images * 2,
    )
