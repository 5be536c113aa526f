"""Static batching from theory: a pool whose replicas run batches to the end of their longest answer.

A free replica takes what waits, at most B requests, pads every prompt to the longest of them and decodes until the
longest answer has ended; who comes meanwhile waits for the next batch. `queueing.bulk` solves that queue from the time
of the prompts and of a decode step; here they come from the step times of the replica.

Approximation: prompts of a batch that are longer together than the chunk budget take full steps, all alike.
"""

from __future__ import annotations

import numpy as np

from planner.core import FloatArray, InputError
from planner.engine import KvAllocation, ReplicaConfig, mean_encoder_s, memory_footprint, require_room
from planner.queueing import QueueLatency, StaticServer, largest_static_rate, longest_lengths, static_pool
from planner.roofline import StepShape
from planner.serving.types import Pool, PoolLimit, PoolPerformance, Role
from planner.workload import ClosedLoop, TokenLengths, Workload

STATIC_ASSUMPTIONS = (
    "theory: static batches as a bulk-service queue, each replica with a random share of the arrivals",
    "theory: the longest prompt and the longest answer of a batch are those of independent requests",
)


def static_queue(pool: Pool, workload: Workload) -> tuple[QueueLatency, PoolPerformance]:
    """A mixed pool with static batches.

    Args:
        pool: the pool.
        workload: arrivals and lengths.

    Returns:
        Latencies [s], and the pool's own figures. An overloaded pool is not an error: its queue is not `stable` and
        every latency is unbounded.

    Raises:
        InputError: a closed loop, or a pool of another role.
    """
    if isinstance(workload.arrivals, ClosedLoop):
        bound = "theory has no static batches in a closed loop"
        raise InputError("workload.arrivals", "closed loop", bound, "simulate it")
    if pool.role is not Role.MIXED:
        raise InputError("schedule.batching", "static", "batches need a mixed pool", "use one pool")
    queue = static_pool(static_server(pool, workload.lengths), workload.open_arrivals, workload.lengths, pool.replicas)
    return queue, _pool_performance(pool, workload, queue)


def largest_static_rate_per_s(pool: Pool, lengths: TokenLengths) -> float:
    """Most requests a pool carries [1/s]: full batches on every replica.

    Args:
        pool: with static batches.
        lengths: of its requests.
    """
    return pool.replicas * largest_static_rate(static_server(pool, lengths), lengths)


def static_server(pool: Pool, lengths: TokenLengths) -> StaticServer:
    """One replica as a server of batches.

    Args:
        pool: with static batches.
        lengths: of its requests.

    Returns:
        Times of prompts and decode steps [s], and the largest batch.

    Raises:
        InputError: the longest request does not fit.
    """
    config, timer = pool.config, pool.config.timer
    batch = min(config.max_running_requests, _room(pool, lengths))
    encode_s = mean_encoder_s(config, lengths)
    ranks = float(config.parallelism.dp)

    def prefill_s(sequences: FloatArray, inputs: FloatArray) -> FloatArray:
        steps = np.ceil(sequences * inputs / config.step_tokens)
        tokens, none = sequences * inputs / steps, np.zeros_like(inputs)
        chunks = np.maximum(sequences / steps, np.maximum(tokens / config.max_batched_tokens, 1.0))
        shape = StepShape(none, none, tokens, tokens * (inputs + 1.0) / 2.0, np.maximum(tokens, inputs), chunks)
        return steps * timer.times_s(shape) + encode_s * sequences / np.clip(sequences, 1.0, ranks)

    def step_s(sequences: FloatArray, context: FloatArray) -> FloatArray:
        return timer.times_s(StepShape(sequences, sequences * context)) + config.mask_s * sequences

    return StaticServer(prefill_s, step_s, batch, config.schedule.static_wait_s)


def _room(pool: Pool, lengths: TokenLengths) -> int:
    """Sequences for which one replica has KV memory: each its room in one piece, or its padded prompt and answer."""
    footprint = require_room(pool.config, lengths.max_total)
    return max(1, int(footprint.kv_capacity_tokens // _sequence_tokens(pool.config, lengths)))


def _sequence_tokens(config: ReplicaConfig, lengths: TokenLengths) -> int:
    """KV tokens set aside for each sequence."""
    if config.schedule.kv is KvAllocation.CONTIGUOUS:
        return config.schedule.longest_tokens or config.longest_tokens
    return lengths.max_total


def _pool_performance(pool: Pool, workload: Workload, queue: QueueLatency) -> PoolPerformance:
    """At the mean batch; what runs is rate * E[O - 1] * TPOT by Little's law, without those that have ended.

    An answer fills its memory as it grows and leaves the rest until the batch has ended: a sequence holds
    I + O - O^2 / (2 max O) on average.
    """
    running = queue.mean_running
    if queue.stable:
        running = workload.rate_per_s / pool.replicas * (workload.lengths.mean_output - 1.0) * queue.tpot.mean_s
    config, lengths = pool.config, workload.lengths
    size = max(queue.mean_running, 1.0)
    longest = longest_lengths(lengths, max(1, round(size))).mean_output
    step = config.timer.step_time(StepShape(size, size * (lengths.mean_input + longest / 2.0)))
    o, p = lengths.outputs, lengths.probabilities
    held = lengths.mean_input + float((o - o**2 / (2.0 * max(longest, 1.0))) @ p)
    room = _sequence_tokens(config, lengths)
    return PoolPerformance(
        role=pool.role,
        utilisation=queue.utilisation,
        limit=PoolLimit.RUNNING_REQUESTS,
        bound=step.bound,
        mean_running=min(running, queue.mean_running),
        mean_step_s=queue.mean_step_s,
        kv_occupancy=min(1.0, size * room / memory_footprint(config).kv_capacity_tokens),
        kv_waste=max(0.0, 1.0 - held / room),
    )
