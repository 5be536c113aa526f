"""Which limits of an engine are worth a look, where the search space does not name them.

Both are limits of a whole replica; engines with attention ranks are told a rank's share. A limit that is not given
follows from the traffic, the split and the memory; given ones are taken as they are:

- Chunk budgets: powers of two of tokens a rank, from `LEAST_BUDGET` to the longest prompt, at least to `USUAL_BUDGET`,
  which every engine has as a default or more, and at most to `MOST_BUDGET`.
- Batch limits: powers of two, from `LEAST_RUNNING` sequences of the replica to the first that the KV cache cannot hold
  of mean requests: larger ones are the same pool. At most `MOST_RUNNING` a rank.
"""

from __future__ import annotations

import math

from planner.engine import (
    LEAST_BATCHED_TOKENS,
    MOST_BATCHED_TOKENS,
    MOST_RUNNING_REQUESTS,
    ReplicaConfig,
    memory_footprint,
)
from planner.search.types import Demand, SearchSpace
from planner.serving import Role
from planner.workload import Workload

LEAST_BUDGET, USUAL_BUDGET, MOST_BUDGET = 512, 8192, 65_536
"""Chunk budgets of a rank that are looked at unasked [tokens]: a choice. Sarathi-Serve's smallest (OSDI 2024), vLLM's
default for serving (vllm/engine/arg_utils.py), and the largest that engines are started with (`planner.engine`)."""
LEAST_RUNNING, MOST_RUNNING = 32, 4096
"""Batch limits that are looked at unasked, of a replica and of a rank. A choice: below the first a replica serves few
users, and the second is the largest that engines are started with (`planner.engine`)."""
SHARED_FACTOR = 4
"""Times as many sequences that are looked at where a prefix cache lets them share memory. A choice."""


def may_share_prefixes(workload: Workload) -> bool:
    """True if a prefix cache has something to find.

    Args:
        workload: the requests.

    Returns:
        True where some class has prefixes, sessions or a share that is known to be cached.
    """
    kinds = workload.classes
    return any(bool(kind.prefixes or kind.sessions or kind.prefix_hit_rate or kind.prefix_reuse) for kind in kinds)


def chunk_budgets(search: SearchSpace, demand: Demand, ranks: int) -> tuple[int, ...]:
    """Chunk budgets of a replica.

    Args:
        search: budgets that are given; an empty list follows from the rest.
        demand: its longest prompt decides.
        ranks: attention ranks of a replica.

    Returns:
        Tokens of a step, rising; those out of the range of `ReplicaConfig` left out [tokens].
    """
    if search.max_batched_tokens:
        given = set(search.max_batched_tokens)
        return tuple(sorted(n for n in given if LEAST_BATCHED_TOKENS <= n <= MOST_BATCHED_TOKENS))
    most = largest_budget(demand.workload)
    return tuple(ranks * budget for budget in _doublings(LEAST_BUDGET, most))


def largest_budget(workload: Workload) -> int:
    """The largest chunk budget that is looked at unasked, of a rank.

    Args:
        workload: its longest prompt decides.

    Returns:
        Tokens of a step [tokens].
    """
    longest = int(workload.lengths.inputs.max())
    return min(max(_power_of_two(longest), USUAL_BUDGET), MOST_BUDGET)


def batch_limits(search: SearchSpace, demand: Demand, base: ReplicaConfig, role: Role) -> tuple[int, ...]:
    """Batch limits of a replica.

    Args:
        search: limits that are given; an empty list follows from the rest.
        demand: its mean request decides.
        base: any configuration with the same memory.
        role: of the pool.

    Returns:
        Sequences at once, rising; those out of the range of `ReplicaConfig` left out.
    """
    if search.max_running_requests:
        return tuple(sorted(n for n in set(search.max_running_requests) if n <= MOST_RUNNING_REQUESTS))
    lengths, ranks = demand.workload.lengths, base.parallelism.dp
    held = lengths.mean_input + (0.0 if role is Role.PREFILL else lengths.mean_output / 2.0)
    room = memory_footprint(base).kv_capacity_tokens / max(held, 1.0)
    if base.schedule.prefix_cache and may_share_prefixes(demand.workload):
        room *= SHARED_FACTOR
    most = min(_power_of_two(max(1, math.ceil(room / ranks))), MOST_RUNNING)
    least = max(1, _power_of_two(-(-LEAST_RUNNING // ranks)))
    return tuple(ranks * limit for limit in _doublings(least, max(most, least)))


def _power_of_two(least: int) -> int:
    """The smallest one that is not below a number.

    >>> _power_of_two(2000), _power_of_two(2048)
    (2048, 2048)
    """
    return 1 << (max(least, 1) - 1).bit_length()


def _doublings(least: int, most: int) -> list[int]:
    return [least << power for power in range((most // least).bit_length())]
