"""Latency distributions of a batching server at an arrival rate: numbers in, distributions out. Knows no GPUs.

A server works in *steps*. A step advances every running sequence by one token and spends what is left of its chunk
budget on waiting prompts, first come first served (continuous batching with chunked prefill). How long a step takes
is given as a function, so the same theory serves any hardware.

Inputs: arrival rate [1/s] and SCV of the gaps, joint token lengths, the step-time function [s], chunk budget and limit
of running sequences. Outputs: `QueueLatency` with distributions of TTFT, TPOT and E2E [s], or the statement that the
queue is unstable. Equations and sources are in docs/explanation/queueing.md and in the docstrings.

- Pools that work in steps: `mixed`, `decode`; built from `server` (steps, largest rates), `backlog` (prompt tokens
  waiting), `batch_occupancy` and `fixed_point` (sequences running), `first_token` and `token_gap` (times), `latencies`.
- Closed forms beside them: `mg1`, `priority`, `load_balancing`, `link`, `overload`, `lru`, `memory_limit`.
"""

from __future__ import annotations

from planner.queueing.decode import decode_pool
from planner.queueing.distributions import rescaled_wait, sorted_slice_means, sum_of_independent
from planner.queueing.first_token import own_steps_s
from planner.queueing.latencies import QueueLatency, condensed_sample, e2e_distribution
from planner.queueing.link import LinkWait, exposed_in_pieces_s, link_wait, with_delay
from planner.queueing.load_balancing import (
    random_wait_distribution,
    round_robin_wait_distribution,
    shortest_queue_wait_distribution,
    two_choices_wait_distribution,
)
from planner.queueing.lru import CacheLevel, idle_lifetimes_s, level_hits
from planner.queueing.memory_limit import full_probability, held_moments, recomputed_tokens, settling_steps
from planner.queueing.mixed import mixed_pool, prefill_pool
from planner.queueing.offered_load import fluid_running
from planner.queueing.overload import transient_wait_distribution, work_variance_per_s
from planner.queueing.priority import priority_second_moments, priority_waits, stretched_wait
from planner.queueing.server import (
    BatchServer,
    ContextSpread,
    largest_decode_rate,
    largest_mixed_rate,
    largest_prefill_rate,
    step_duration_s,
)
