"""One pool as analytic models see it: a server of steps, from the mean content of its steps and its memory.

Approximations made here:

- a decode attends to the mean decode context of the workload (length-biased over outputs);
- a prompt token costs the mean query-key pairs per prompt token, E[I (I + 1) / 2] / E[I];
- a request holds KV for all its input and output tokens from admission to its end (the simulator does the same), and
  half its output on average where the engine does not reserve outputs; room for the longest where memory is contiguous;
- tokens found in a prefix cache are attended to but not computed, and held once for all (`past` tokens).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.core import InputError
from planner.engine import (
    AdapterWork,
    KvAllocation,
    MemoryFootprint,
    ReplicaConfig,
    expected_distinct,
    popularity,
    require_room,
    step_timer,
)
from planner.queueing import BatchServer
from planner.roofline import StepShape
from planner.serving.types import Pool, Role
from planner.workload import TokenLengths

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class TokenCosts:
    """Step-shape sums per running sequence and per prompt token, from the workload's lengths.

    Attributes:
        decode_context: tokens a decode attends to.
        pairs: query-key pairs per prompt token.
        context: cached tokens read per prompt token.
        chunks: prompt chunks per prompt token.
        held_tokens: KV tokens a request holds, weighted by how long it holds them.
    """

    decode_context: float
    pairs: float
    context: float
    chunks: float
    held_tokens: float


def token_costs(
    lengths: TokenLengths, max_batched_tokens: int, role: Role, past: FloatArray | float = 0.0
) -> TokenCosts:
    """Means per token of the sums a step time depends on.

    A prompt of I tokens served in chunks of C reads sum_j min(j C, I) ~ I (I / C + 1) / 2 cached tokens when I > C,
    else I, and the P tokens it found cached once per chunk. Residence grows with the output length O, so a random
    resident request holds E[(I + O) O] / E[O] tokens.

    Args:
        lengths: tokens to compute and output tokens.
        max_batched_tokens: C.
        role: of the pool.
        past: P, tokens of each cell's prompt found in the prefix cache, shape (cells,).
    """
    p, inputs, outputs = lengths.probabilities, lengths.inputs, lengths.outputs
    past = np.broadcast_to(np.asarray(past, dtype=np.float64), inputs.shape)
    decoded = float((outputs - 1.0) @ p)
    behind = float((past * (outputs - 1.0)) @ p) / decoded if decoded > 0.0 else float(past @ p)
    mean_input = lengths.mean_input
    pieces = np.maximum(1.0, inputs / max_batched_tokens)
    residence = np.ones_like(outputs) if role is Role.PREFILL else outputs
    held = inputs + (1.0 if role is Role.PREFILL else outputs)
    return TokenCosts(
        decode_context=lengths.mean_decode_context + behind,
        pairs=float((inputs * past + inputs * (inputs + 1.0) / 2.0) @ p) / mean_input,
        context=float((pieces * past + inputs * np.maximum(1.0, (pieces + 1.0) / 2.0)) @ p) / mean_input,
        chunks=float(pieces @ p) / mean_input,
        held_tokens=float((held * residence) @ p) / float(residence @ p),
    )


def step_shapes(running: FloatArray, prompt_tokens: FloatArray, costs: TokenCosts) -> StepShape:
    """Shapes of steps with `running` mean decodes and `prompt_tokens` mean prompt tokens (broadcast together)."""
    running, prompt_tokens = np.broadcast_arrays(running, prompt_tokens)
    return StepShape(
        decodes=running,
        decode_context=running * costs.decode_context,
        chunk_tokens=prompt_tokens,
        chunk_pairs=prompt_tokens * costs.pairs,
        chunk_context=prompt_tokens * costs.context,
        chunks=prompt_tokens * costs.chunks,
    )


PROMPT_POINTS = 120
"""Numbers of prompt tokens at which their attention is tabulated."""
DISTINCT_POINTS = 32
"""Numbers of requests at which the distinct adapters among them are worked out."""


@dataclass(frozen=True)
class PoolModel:
    """A pool as the queueing model sees it, and what is needed to read its answer back."""

    pool: Pool
    footprint: MemoryFootprint
    costs: TokenCosts
    kv_running: float
    held_tokens: float
    """KV tokens that a running request takes on average, with what its last block leaves empty."""
    kv_waste: float = 0.0

    @cached_property
    def server(self) -> BatchServer:
        """One replica as a server of steps.

        With mean lengths per prompt token, the attention of prompts depends on their tokens alone and is tabulated.
        Where an engine does not mix them, a step of prompts and one of decodes, one after the other, count as one.
        """
        timer, costs, config = step_timer(self.pool.config), self.costs, self.pool.config
        apart = not config.schedule.mixed_steps
        grid = np.unique(np.round(np.geomspace(1.0, config.max_batched_tokens, PROMPT_POINTS)))
        table = timer.prompts_s(step_shapes(np.zeros_like(grid), grid, costs))

        extras_s = self._extras_s()

        def one_s(n: float, p: float) -> float:
            content = (n * costs.decode_context, p, p * costs.pairs, p * costs.context, p * costs.chunks)
            return timer.step_s(n, *content, prompts_s=float(np.interp(p, grid, table)))

        def step_s(running: FloatArray, tokens: FloatArray) -> FloatArray:
            if extras_s is not None:
                return plain_s(running, tokens) + extras_s(running, tokens)
            return plain_s(running, tokens)

        def plain_s(running: FloatArray, tokens: FloatArray) -> FloatArray:
            if np.ndim(running) == np.ndim(tokens) == 0:
                n, p = float(running), float(tokens)
                return np.asarray(one_s(n, 0.0) + one_s(0.0, p) if apart and n and p else one_s(n, p))
            if apart:
                return _one_after_the_other_s(running, tokens)
            shape = step_shapes(running, tokens, costs)
            return timer.times_s(shape, np.asarray(np.interp(shape.chunk_tokens, grid, table)))

        def _one_after_the_other_s(running: FloatArray, tokens: FloatArray) -> FloatArray:
            nothing = np.zeros(np.broadcast_shapes(np.shape(running), np.shape(tokens)))
            running, tokens = running + nothing, tokens + nothing
            decodes, prompts = step_shapes(running, nothing, costs), step_shapes(nothing, tokens, costs)
            decode_s = timer.times_s(decodes, nothing) * (running > 0.0)
            prompt_s = timer.times_s(prompts, np.asarray(np.interp(tokens, grid, table))) * (tokens > 0.0)
            return np.asarray(decode_s + prompt_s)

        return BatchServer(step_s=step_s, max_batched_tokens=config.max_batched_tokens, max_running=self.max_running)

    def _extras_s(self) -> Callable[[FloatArray, FloatArray], FloatArray] | None:
        """Grammar masks and adapters on top of a step [s], from running sequences and prompt tokens; None without."""
        config, prompt = self.pool.config, 1.0 / max(self.costs.chunks, 1e-12)
        if config.lora is None:
            return (lambda running, _: config.mask_s * np.asarray(running)) if config.mask_s else None
        work, (draws, distinct) = AdapterWork.of(config), self._distinct_adapters

        def extras_s(running: FloatArray, tokens: FloatArray) -> FloatArray:
            requests = np.asarray(running + tokens / prompt)
            among = np.minimum(np.interp(requests, draws, distinct), np.maximum(requests, 1.0))
            return np.asarray(work.times_s(np.asarray(running + tokens), among) + config.mask_s * running)

        return extras_s

    @property
    def max_running(self) -> float:
        """Most sequences at once on one replica: batch limit, KV cache, places in a mixed step, adapter slots."""
        config = self.pool.config
        limits = (float(config.max_running_requests), self.kv_running, float(config.max_batched_tokens))
        return min(*limits, self._with_adapters())

    def _with_adapters(self) -> float:
        """Sequences of which the adapter slots are expected to hold all adapters; inf without adapters."""
        lora = self.pool.config.lora
        if lora is None or lora.slots >= lora.adapters:
            return math.inf
        draws, distinct = self._distinct_adapters
        return float(np.interp(lora.slots, distinct, draws))

    @cached_property
    def _distinct_adapters(self) -> tuple[FloatArray, FloatArray]:
        """Numbers of requests, and the expected distinct adapters among them."""
        lora = self.pool.config.lora
        assert lora is not None
        draws = np.geomspace(1.0, 2.0 * self.pool.config.max_running_requests, DISTINCT_POINTS)
        chances = popularity(lora)
        return draws, np.array([expected_distinct(count, chances) for count in draws])


def pool_model(
    pool: Pool, lengths: TokenLengths, past: FloatArray | float = 0.0, shared_tokens: float = 0.0
) -> PoolModel:
    """A pool prepared for the queueing model. Raises InputError when a request does not fit.

    Each sequence takes `held_tokens`, half a block for the one that is not full, and the blocks for what it keeps
    beside its tokens (windows, recurrent state); a contiguous one takes the room set aside. A share `watermark` of the
    cache stays free.

    Args:
        pool: the pool.
        lengths: tokens to compute and output tokens.
        past: tokens of each cell's prompt found in the prefix cache, shape (cells,).
        shared_tokens: KV tokens of prefixes that stay cached and are held once for all.
    """
    if not np.any(past) and shared_tokens == 0.0:
        return _plain_model(_Itself(pool), lengths)
    return _pool_model(pool, lengths, past, shared_tokens)


class _Itself:
    """A pool compared by identity: its records are frozen, but too large to hash at every rate of a sweep."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.pool is other.pool

    def __hash__(self) -> int:
        return id(self.pool)


@lru_cache(maxsize=128)
def _plain_model(pool: _Itself, lengths: TokenLengths) -> PoolModel:
    """Without a prefix cache; the same object for the same pool, so that what does not depend on the rate is kept."""
    return _pool_model(pool.pool, lengths, 0.0, 0.0)


def _pool_model(pool: Pool, lengths: TokenLengths, past: FloatArray | float, shared_tokens: float) -> PoolModel:
    config, schedule = pool.config, pool.config.schedule
    longest = float((lengths.inputs + past + lengths.outputs).max())
    footprint = require_room(config, int(longest))
    costs = token_costs(lengths, config.max_batched_tokens, pool.role, past)
    stored = costs.held_tokens - (0.0 if pool.role is Role.PREFILL else _half_an_output(lengths))
    block = config.engine.kv_block_tokens
    reserved = schedule.reserve_outputs or pool.role is Role.PREFILL
    held = (costs.held_tokens if reserved else stored) + block / 2.0 + footprint.sequence_blocks * block
    if schedule.kv is KvAllocation.CONTIGUOUS:
        held = float(_contiguous_tokens(config, longest)) + footprint.sequence_blocks * block
    room = footprint.kv_capacity_tokens * (1.0 - schedule.watermark) - shared_tokens
    return PoolModel(pool, footprint, costs, max(room / held, 1.0), held, kv_waste=1.0 - stored / held)


def _half_an_output(lengths: TokenLengths) -> float:
    """Mean output tokens still to come of a resident request: E[O^2] / (2 E[O])."""
    residence = lengths.outputs * lengths.probabilities
    return float(lengths.outputs @ residence) / 2.0 / float(residence.sum())


def _contiguous_tokens(config: ReplicaConfig, longest: float) -> int:
    """Tokens in one piece for every sequence. Raises InputError when the longest request is longer."""
    room = config.schedule.longest_tokens or config.llm.max_context_tokens
    if longest > room:
        fix = f"set it to {int(longest)} or more"
        raise InputError("schedule.longest_tokens", room, f"the longest request has {int(longest)} tokens", fix)
    return room
