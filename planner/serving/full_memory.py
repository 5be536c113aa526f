"""KV memory that fills: preemptions of a pool whose requests grow, and the work that they add.

`planner.queueing.memory_limit` says how often memory is full and what is processed again then. Here that becomes time
of the steps: a request adds the same work to each of its steps, so that the queue is solved with longer steps. Nothing
changes where outputs are reserved, or where memory is full less often than `SELDOM`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.core import FloatArray, Keyed
from planner.engine import KvAllocation, Preemption
from planner.queueing import (
    BatchServer,
    full_probability,
    held_moments,
    largest_decode_rate,
    largest_mixed_rate,
    recomputed_tokens,
)
from planner.serving.pool import PoolModel, lengths_in_steps, tokens_per_step
from planner.serving.types import PoolPerformance, Role
from planner.workload import TokenLengths

SELDOM = 1e-4
"""Memory full with a smaller probability is taken as never full. A choice: below it nothing changes."""
LOAD_POINTS = 64
"""Numbers running at which the rate that keeps them running is worked out. A choice of resolution."""
FULL_MEMORY_SHARE = 0.98
"""Share of the largest rate beside full memory that is taken as sustainable. A choice: simulated rates lie up to 1.5 %
below the closed form where few requests fill the memory, and a backlog that drains so slowly is as good as none."""
MOST_ELASTIC = 0.95
"""Elasticity of the step time, in the number running, up to which it widens the number running. Guards a division."""
HIGH_DEVIATIONS = 2.3263
"""Standard deviations above the mean of the 99th percentile of a normal variable (definition)."""


@dataclass(frozen=True, eq=False)
class LongerSteps:
    """Steps with what running requests add to each [s].

    Attributes:
        step_s: duration without.
        added_s: per running request and step [s].
    """

    step_s: Callable[[FloatArray, FloatArray], FloatArray]
    added_s: float

    def __call__(self, running: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        """Durations [s]; arguments of one shape, or broadcastable."""
        return np.asarray(self.step_s(running, prompt_tokens) + self.added_s * np.asarray(running))


@dataclass(frozen=True, eq=False)
class FullMemory:
    """Cost of full memory in one replica of a pool.

    Attributes:
        preemptions: of a request where memory is always full.
        added_s: what they add to each step per running request there [s].
        rates_per_s: rates of one replica, rising [1/s], shape (N,).
        full: probability that memory is full at each, shape (N,).
        deviations: standard deviation of the memory held at each, in requests of mean size, shape (N,).
        limit_per_s: largest stable rate of one replica [1/s].
    """

    preemptions: float
    added_s: float
    rates_per_s: FloatArray
    full: FloatArray
    deviations: FloatArray
    limit_per_s: float

    def preempted(self, rate_per_s: float) -> float:
        """Mean preemptions of a request at a rate of one replica [1/s]."""
        return self.preemptions * self.probability(rate_per_s)

    def probability(self, rate_per_s: float) -> float:
        """That memory is full at a rate per replica [1/s]; 0 where it is less than `SELDOM`."""
        full = float(np.interp(rate_per_s, self.rates_per_s, self.full))
        return full if full >= SELDOM else 0.0

    def server(self, server: BatchServer, rate_per_s: float) -> BatchServer:
        """The server with the work that preemptions add at a rate per replica [1/s]."""
        full = self.probability(rate_per_s)
        return replace(server, step_s=LongerSteps(server.step_s, full * self.added_s)) if full else server


def full_memory(model: PoolModel, lengths: TokenLengths) -> FullMemory | None:
    """Cost of full memory in one replica.

    Args:
        model: the pool.
        lengths: of its requests, prompts as the queue has them [tokens].

    Returns:
        None where memory is never full: outputs are reserved, nothing decodes, or there is room for all.
    """
    schedule = model.pool.config.schedule
    grows = not schedule.reserve_outputs and schedule.kv is KvAllocation.PAGED and model.pool.role is not Role.PREFILL
    return _worked_out(Keyed(model, id(model.server)), lengths) if grows and lengths.mean_output > 1.0 else None


@lru_cache(maxsize=128)
def _worked_out(keyed: Keyed[PoolModel], lengths: TokenLengths) -> FullMemory | None:
    """Rates at numbers running up to the largest: each keeps that many running, preemptions included."""
    model = keyed.value
    held, square = held_moments(model.lengths)
    in_memory = model.kv_running
    waits = model.kv_running <= model.most_places
    most = min(model.max_running, in_memory)
    running = np.linspace(0.0, 1.0, LOAD_POINTS + 1)[1:] * most
    server = model.server
    gaps = lengths_in_steps(lengths, tokens_per_step(model.pool.config)).mean_output - 1.0
    prompts = np.zeros_like(running) if model.pool.role is Role.DECODE else running / gaps * lengths.mean_input
    steps_s = server.step_s(running, np.minimum(prompts, np.maximum(server.max_batched_tokens - running, 1.0)))
    deviations = _deviations(running, steps_s, square / held**2 - 1.0, waits)
    free = (in_memory - running) / deviations
    full = full_probability(free, waits)
    if full[-1] < SELDOM:
        return None
    again, added_s = _work_again(model, lengths, most)
    rates = np.maximum.accumulate(running / (gaps * (steps_s + running * full * added_s)))
    limit = _limit_per_s(model, lengths, replace(server, step_s=LongerSteps(server.step_s, full[-1] * added_s)))
    # Steps longer by this make the limit FULL_MEMORY_SHARE of what it is: rate * gaps = running / mean step.
    added_s += (1.0 / FULL_MEMORY_SHARE - 1.0) / (limit * gaps)
    longest = replace(server, step_s=LongerSteps(server.step_s, full[-1] * added_s))
    limit = _limit_per_s(model, lengths, longest)
    rates *= limit / rates[-1]
    young = lengths.mean_input + (lengths.mean_output - 1.0) / np.sqrt(max(most, 1.0))
    return FullMemory(again / young, added_s, rates, full, deviations, limit)


def _deviations(running: FloatArray, steps_s: FloatArray, held_scv: float, waits: bool) -> FloatArray:
    """Standard deviation of the memory held, in requests of mean size, at mean numbers running.

    Requests come at a rate and each goes at a rate 1 / (K T(n)), so that the number running n has the variance
    n / (1 - d log T / d log n) (a birth-death process near its mean); sizes add n SCV. A limit on requests that is
    reached before memory is full keeps their number, and only sizes vary.
    """
    variance = running * held_scv
    if waits:
        elasticity = np.gradient(np.log(steps_s), np.log(running))
        variance = variance + running / np.maximum(1.0 - elasticity, 1.0 - MOST_ELASTIC)
    return np.sqrt(np.maximum(variance, np.finfo(float).tiny))


def _work_again(model: PoolModel, lengths: TokenLengths, running: float) -> tuple[float, float]:
    """Tokens of a request processed again beside full memory, and the time per step and running request that takes.

    Processed again with the prompts: prompts longer by so much lower the largest rate x of a full server, and with n
    running of K gaps each x K = n / T. In a decode pool a prompt is a piece beside those that decode; what is swapped
    is copied out and back over the host link.
    """
    config, server = model.pool.config, model.server
    gaps = lengths_in_steps(lengths, tokens_per_step(config)).mean_output - 1.0
    chunk = max(server.max_batched_tokens - running, 1.0)
    prompt_load = 0.0 if model.pool.role is Role.DECODE else running / gaps / chunk
    kept_free = config.schedule.watermark * model.footprint.kv_capacity_tokens
    again = recomputed_tokens(lengths, kept_free, prompt_load)
    if config.schedule.on_preemption is Preemption.RECOMPUTE and model.pool.role is not Role.DECODE:
        longer = np.rint(lengths.inputs + again)
        lengthened = TokenLengths.from_pairs(longer, lengths.outputs, lengths.probabilities, lengths.source)
        before, after = _limit_per_s(model, lengths, server), _limit_per_s(model, lengthened, server)
        return again, max(1.0 / after - 1.0 / before, 0.0) / gaps
    if config.schedule.on_preemption is Preemption.SWAP:
        token_s = 2.0 * model.footprint.kv_bytes_per_token / config.sku.node.pcie_bytes_per_s.value
    else:
        piece = min(lengths.mean_input, chunk)
        with_prompt, without = server.step_s(np.full(2, running), np.array([piece, 0.0]))
        token_s = max(float(with_prompt - without), 0.0) / piece  # what steps are off by may differ with prompts
    return again, again * token_s / gaps


def _limit_per_s(model: PoolModel, lengths: TokenLengths, server: BatchServer) -> float:
    largest = largest_decode_rate if model.pool.role is Role.DECODE else largest_mixed_rate
    return largest(server, lengths_in_steps(lengths, tokens_per_step(model.pool.config)))


def with_preemptions(
    performance: PoolPerformance, model: PoolModel, memory: FullMemory | None, rate_per_s: float
) -> PoolPerformance:
    """The figures of a pool with its preemptions, and the memory held at the 99th percentile.

    Args:
        performance: of the pool.
        model: the pool.
        memory: what full memory costs; None where it is never full.
        rate_per_s: of one replica.

    Returns:
        The figures, with preemptions per request [-] and a share of the memory.
    """
    if memory is None:
        return performance
    deviation = float(np.interp(rate_per_s, memory.rates_per_s, memory.deviations))
    running = performance.mean_running + HIGH_DEVIATIONS * deviation
    return replace(
        performance,
        preempted=memory.preempted(rate_per_s),
        kv_occupancy_p99=min(1.0, running * model.held_tokens / model.footprint.kv_capacity_tokens),
    )
