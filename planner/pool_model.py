"""One pool as analytic models see it: a server of steps, from the mean content of its steps and its memory.

Approximations made here:

- a decode attends to the mean decode context of the workload (length-biased over outputs);
- a prompt token costs the mean query-key pairs per prompt token, E[I (I + 1) / 2] / E[I];
- a request holds KV for all its input and output tokens from admission to its end (the simulator does the same), and
  half its output on average where the engine does not reserve outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.deployment import Pool, Role
from planner.queueing import BatchServer
from planner.replica import MemoryFootprint, require_room, step_timer
from planner.roofline import StepShape
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


def token_costs(lengths: TokenLengths, token_budget: int, role: Role) -> TokenCosts:
    """Means per token of the sums a step time depends on.

    A prompt of I tokens served in chunks of C reads sum_j min(j C, I) ~ I (I / C + 1) / 2 cached tokens when I > C,
    else I. Residence grows with the output length O, so a random resident request holds E[(I + O) O] / E[O] tokens.
    """
    p, inputs, outputs = lengths.probabilities, lengths.inputs, lengths.outputs
    mean_input = lengths.mean_input
    pieces = np.maximum(1.0, inputs / token_budget)
    residence = np.ones_like(outputs) if role is Role.PREFILL else outputs
    held = inputs + (1.0 if role is Role.PREFILL else outputs)
    return TokenCosts(
        decode_context=lengths.mean_decode_context,
        pairs=float((inputs * (inputs + 1.0) / 2.0) @ p) / mean_input,
        context=float((inputs * np.maximum(1.0, (pieces + 1.0) / 2.0)) @ p) / mean_input,
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


@dataclass(frozen=True)
class PoolModel:
    """A pool as the queueing model sees it, and what is needed to read its answer back."""

    pool: Pool
    footprint: MemoryFootprint
    costs: TokenCosts
    kv_running: float

    @cached_property
    def server(self) -> BatchServer:
        """One replica as a server of steps.

        With mean lengths per prompt token, the attention of prompts depends on their tokens alone and is tabulated.
        """
        timer, costs, config = step_timer(self.pool.config), self.costs, self.pool.config
        grid = np.unique(np.round(np.geomspace(1.0, config.max_batched_tokens, PROMPT_POINTS)))
        table = timer.prompts_s(step_shapes(np.zeros_like(grid), grid, costs))

        def step_s(running: FloatArray, tokens: FloatArray) -> FloatArray:
            shape = step_shapes(running, tokens, costs)
            return timer.times_s(shape, np.asarray(np.interp(shape.chunk_tokens, grid, table)))

        return BatchServer(step_s=step_s, token_budget=config.max_batched_tokens, max_running=self.max_running)

    @property
    def max_running(self) -> float:
        """Most sequences at once on one replica: batch limit, KV cache, and places in a mixed step."""
        config = self.pool.config
        return min(float(config.max_running_requests), self.kv_running, float(config.max_batched_tokens))


def pool_model(pool: Pool, lengths: TokenLengths) -> PoolModel:
    """A pool prepared for the queueing model. Raises InputError when a request does not fit.

    Each sequence takes `held_tokens`, half a block for the one that is not full, and the blocks for what it keeps
    beside its tokens (windows, recurrent state).
    """
    config = pool.config
    footprint = require_room(config, lengths.max_total)
    costs = token_costs(lengths, config.max_batched_tokens, pool.role)
    held = costs.held_tokens
    if pool.role is not Role.PREFILL and not config.schedule.reserve_outputs:
        residence = lengths.outputs * lengths.probabilities
        held -= float(lengths.outputs @ residence) / 2.0 / float(residence.sum())
    block = config.engine.kv_block_tokens
    held += block / 2.0 + footprint.sequence_blocks * block
    return PoolModel(pool, footprint, costs, kv_running=footprint.kv_capacity_tokens / held)
