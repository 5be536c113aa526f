"""Latency distributions of a batching server at an arrival rate: numbers in, distributions out. Knows no GPUs.

A server works in *steps*. A step advances every running sequence by one token and spends what is left of its token
budget on waiting prompts, first come first served (continuous batching with chunked prefill). How long a step takes
is given as a function, so the same theory serves any hardware.

Inputs: arrival rate [1/s] and SCV of the gaps, joint token lengths, the step-time function [s], token budget and
running-sequence limit. Outputs: `QueueLatency` with distributions of TTFT, TPOT and E2E [s], or the statement that
the queue is unstable. Equations and sources are in docs/science.md and in the cards below.
"""

from __future__ import annotations

from planner.queueing import bulk_service
from planner.queueing.bulk_service import StaticServer, largest_static_rate, longest_distribution, static_pool
from planner.queueing.capacity import largest_decode_rate, largest_mixed_rate, largest_prefill_rate
from planner.queueing.classic import mg1_wait_distribution
from planner.queueing.decode import decode_pool
from planner.queueing.distributions import summed, transported, wait_between
from planner.queueing.lengths import LengthDistribution, grouped, length_distribution
from planner.queueing.link import LinkWait, exposed_distribution, exposed_s, link_wait
from planner.queueing.load_balancing import (
    pooled_wait_distribution,
    random_share,
    random_wait_distribution,
    round_robin_wait_distribution,
    routed_wait,
    shortest_queue_wait_distribution,
    two_choices_wait_distribution,
)
from planner.queueing.mixed import mixed_pool, prefill_pool
from planner.queueing.overload import (
    FluidPath,
    drain_s,
    fluid_path,
    overloaded_ttft,
    profile_wait_distribution,
    transient_wait_distribution,
    work_variance_per_s,
)
from planner.queueing.prefix import PrefixHits, lru_hits, pool_hits, prefix_hits, token_hit_share, uncached
from planner.queueing.priority import (
    PriorityDistribution,
    SizeDistribution,
    priority_distributions,
    priority_second_moments,
    priority_waits,
    shortest_first_distributions,
    shortest_first_waits,
    stretched_wait,
)
from planner.queueing.types import BatchServer, QueueLatency

__all__ = [
    "BatchServer",
    "FluidPath",
    "LengthDistribution",
    "LinkWait",
    "PrefixHits",
    "PriorityDistribution",
    "QueueLatency",
    "SizeDistribution",
    "StaticServer",
    "bulk_service",
    "decode_pool",
    "drain_s",
    "exposed_distribution",
    "exposed_s",
    "fluid_path",
    "grouped",
    "largest_decode_rate",
    "largest_mixed_rate",
    "largest_prefill_rate",
    "largest_static_rate",
    "length_distribution",
    "link_wait",
    "longest_distribution",
    "lru_hits",
    "mg1_wait_distribution",
    "mixed_pool",
    "overloaded_ttft",
    "pool_hits",
    "pooled_wait_distribution",
    "prefill_pool",
    "prefix_hits",
    "priority_distributions",
    "priority_second_moments",
    "priority_waits",
    "profile_wait_distribution",
    "random_share",
    "random_wait_distribution",
    "round_robin_wait_distribution",
    "routed_wait",
    "shortest_first_distributions",
    "shortest_first_waits",
    "shortest_queue_wait_distribution",
    "static_pool",
    "stretched_wait",
    "summed",
    "token_hit_share",
    "transient_wait_distribution",
    "transported",
    "two_choices_wait_distribution",
    "uncached",
    "wait_between",
    "work_variance_per_s",
]
