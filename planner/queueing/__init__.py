"""Latency distributions of a batching server at an arrival rate: numbers in, distributions out. Knows no GPUs.

A server works in *steps*. A step advances every running sequence by one token and spends what is left of its token
budget on waiting prompts, first come first served (continuous batching with chunked prefill). How long a step takes
is given as a function, so the same theory serves any hardware.

Inputs: arrival rate [1/s] and SCV of the gaps, joint token lengths, the step-time function [s], token budget and
running-sequence limit. Outputs: `QueueLatency` with distributions of TTFT, TPOT and E2E [s], or the statement that
the queue is unstable. Equations and sources are in docs/science.md and in the cards below.
"""

from __future__ import annotations

from planner.queueing.capacity import largest_decode_rate, largest_mixed_rate, largest_prefill_rate
from planner.queueing.decode import decode_pool
from planner.queueing.mixed import mixed_pool, prefill_pool
from planner.queueing.types import BatchServer, QueueLatency

__all__ = [
    "BatchServer",
    "QueueLatency",
    "decode_pool",
    "largest_decode_rate",
    "largest_mixed_rate",
    "largest_prefill_rate",
    "mixed_pool",
    "prefill_pool",
]
