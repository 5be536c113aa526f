"""Hits of least-recently-used caches from how long it takes until what was cached is asked for again.

Tokens become idle (an answer has ended, and nobody uses its context) at a rate, and F(t) is the share of them that are
asked for again within t; F may end below 1, as what is never asked for again is cached too. By Che's approximation
idle tokens are dropped after one characteristic time T, at which the cache is just full:

    capacity = rate * integral from 0 to T of (1 - F(t)) dt,        hits = F(T).

The integral is the mean time for which a token stays, min(reuse time, T). A cache that never fills keeps all:
T is infinite. Levels of a cache that each hold what they would hold by themselves (inclusive) have one T each, and what
F grows by from one to the next is found there first.

Sources: Che, Tung and Wang, IEEE J. Selected Areas in Communications 20 (2002) 1305-1314, eqs. 3-4; for reuse times of
any distribution (renewal traffic): Garetto, Leonardi and Martina, "A unified approach to the performance analysis of
caching systems", ACM ToMPECS 1(3) (2016), section 3.1; why T is nearly constant: Fricker, Robert and Roberts, ITC 24
(2012).

Units: tokens, seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.core import FloatArray, InputError

ReuseCdf = Callable[[FloatArray], FloatArray]
"""Share of idle tokens asked for again within times [s]; rises, from 0 or more to at most 1."""
SHORTEST_S, LONGEST_S = 1e-4, 1e9
"""Reuse times told apart [s]: from less than a step to thirty years. A choice."""
TIMES = 4096
"""Times in between at which F is looked at, evenly on a logarithmic scale: 0.7 % apart. A choice."""


def lifetimes_s(reuse_cdf: ReuseCdf, tokens_per_s: float, capacities_tokens: Sequence[float]) -> FloatArray:
    """Characteristic time of caches of several sizes: how long idle tokens stay.

    Args:
        reuse_cdf: F, share of idle tokens asked for again within times [s].
        tokens_per_s: that become idle [tokens/s].
        capacities_tokens: of each cache, for idle tokens [tokens].

    Returns:
        T of each [s]: 0 without room, infinite where all that will be asked for fits for good.

    Raises:
        InputError: when the rate is negative.

    Source: Che, Tung and Wang (2002), eq. 3; Garetto et al. (2016), eq. 3.

    >>> never = lambda times_s: 0.0 * times_s  # passes through: a queue of 100 / 2 seconds
    >>> lifetimes_s(never, 2.0, [0.0, 100.0]).round(6).tolist()
    [0.0, 50.0]
    """
    if not tokens_per_s >= 0.0:
        raise InputError("tokens_per_s", tokens_per_s, "must be >= 0", "give a rate in tokens per second")
    room = np.maximum(np.asarray(capacities_tokens, dtype=np.float64), 0.0)
    times_s = np.concatenate([[0.0], np.geomspace(SHORTEST_S, LONGEST_S, TIMES)])
    left = 1.0 - np.clip(reuse_cdf(times_s), 0.0, 1.0)
    held = tokens_per_s * np.concatenate([[0.0], np.cumsum(np.diff(times_s) * (left[1:] + left[:-1]) / 2.0)])
    found = np.interp(room, held, times_s)
    return np.where(room > held[-1], np.inf, np.where(room > 0.0, found, 0.0))


def hit_shares(reuse_cdf: ReuseCdf, tokens_per_s: float, capacities_tokens: Sequence[float]) -> FloatArray:
    """Share of idle tokens that are asked for again and found, in each level of a cache and in none before it.

    Args:
        reuse_cdf: F, share of idle tokens asked for again within times [s].
        tokens_per_s: that become idle, and are written to every level [tokens/s].
        capacities_tokens: of each level, in the order in which they are asked [tokens].

    Returns:
        Shape (levels,); what is left to 1 is asked for too late, or never.

    Raises:
        InputError: when the rate is negative.

    Source: Che, Tung and Wang (2002), eqs. 3-4; inclusive levels: Mattson et al., IBM Systems Journal 9 (1970).

    >>> within = lambda times_s: 1.0 - np.exp(-times_s / 60.0)  # capacity = 1000 * 60 s * hits
    >>> hit_shares(within, 1000.0, [15_000.0, 45_000.0]).round(3).tolist()
    [0.25, 0.5]
    """
    kept_s = np.maximum.accumulate(lifetimes_s(reuse_cdf, tokens_per_s, capacities_tokens))
    reached = np.clip(reuse_cdf(np.minimum(kept_s, LONGEST_S)), 0.0, 1.0)
    return np.diff(np.concatenate([[0.0], np.where(kept_s > 0.0, reached, 0.0)]))
