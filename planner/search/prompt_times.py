"""Time prompts add to steps of a step-time group, for several chunk budgets and many numbers running at once.

Every prompt is alone with its chunks: what it meets of others is left to `planner.search.bounds`. Axes of arrays: B
chunk budgets, N numbers running, P prompt tokens of a step, G prompt groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.core import FloatArray
from planner.engine import ReplicaConfig, StepTimer, kv_transfer_bytes
from planner.roofline import StepShape
from planner.serving import Role, encode_s_per_token, own_encoder_s, piece_shapes, prompt_pieces, token_costs
from planner.workload import CondensedLengths, TokenLengths, condensed_lengths, nearest_groups, probability_slices

TOKEN_POINTS = 31
"""Numbers of prompt tokens of a step, up to each chunk budget, at which its time is looked up. A choice."""
SHORTEST_S = 1e-12
"""Guards a division by a time of 0 [s]."""
LEAST_TOKENS = 1e-12
"""Guards a division by 0 tokens."""
OUTPUT_EDGES = np.linspace(0.0, 1.0, 15) ** 2
"""Slices of the output lengths, finer towards the short ones, whose TPOT varies most. A choice."""


@dataclass(frozen=True, eq=False)
class PromptSteps:
    """How the prompts of a workload fall into the steps of several chunk budgets, each prompt alone.

    Attributes:
        distribution: of the lengths, outputs in decode steps.
        max_batched_tokens: chunk budgets, shape (B,) [tokens].
        step_tokens: of a step, a chunk budget for each pipeline stage, shape (B,) [tokens].
        tokens: prompt tokens of a step at which times are looked up, from 0 to the most, shape (B, P).
        decode_context: tokens a decode attends to.
        pairs, context, chunks: per prompt token (see `planner.serving.TokenCosts`), shape (B, 1).
        groups: sums over a prompt's chunks of what is tabulated over `tokens`, for each prompt group, shape (B, G, P).
        mean: the same of all prompts on average, shape (B, P).
        gaps, gap_weights: decode steps of those that decode, in `OUTPUT_EDGES`, and their probabilities, shape (K,).
        lengths: from which all this was made, with the images.
        past: cached tokens before those of a prompt of each group, by pairs of one with the other, shape (G,).
    """

    distribution: CondensedLengths
    max_batched_tokens: FloatArray
    step_tokens: FloatArray
    tokens: FloatArray
    decode_context: float
    pairs: FloatArray
    context: FloatArray
    chunks: FloatArray
    groups: FloatArray
    mean: FloatArray
    gaps: FloatArray
    gap_weights: FloatArray
    lengths: TokenLengths
    past: FloatArray

    def shape(self, running: FloatArray, tokens: FloatArray) -> StepShape:
        """Steps of `running` decodes and `tokens` prompt tokens, broadcast over a first axis of chunk budgets."""
        extra = (1,) * (max(np.ndim(tokens), np.ndim(running)) - 2)
        pairs, context, chunks = (
            per_token.reshape(-1, 1, *extra) for per_token in (self.pairs, self.context, self.chunks)
        )
        return StepShape(
            running, running * self.decode_context, tokens, tokens * pairs, tokens * context, tokens * chunks
        )


def prompt_steps(
    lengths: TokenLengths, max_batched_tokens: tuple[int, ...], past: FloatArray | float = 0.0, stages: int = 1
) -> PromptSteps:
    """How prompts fall into steps.

    Args:
        lengths: input tokens to compute, and outputs in decode steps.
        max_batched_tokens: chunk budgets.
        past: tokens of each cell's prompt that are cached, shape (cells,).
        stages: of the pipeline; so many micro-batches, each with a chunk budget, make a step.

    Returns:
        `PromptSteps` for all budgets [tokens].
    """
    cached = tuple(past.tolist()) if isinstance(past, np.ndarray) and past.any() else ()
    return _prompt_steps(lengths, max_batched_tokens, cached, stages)


@lru_cache(maxsize=64)
def _prompt_steps(
    lengths: TokenLengths, max_batched_tokens: tuple[int, ...], cached: tuple[float, ...], stages: int
) -> PromptSteps:
    past = np.array(cached) if cached else np.zeros(lengths.inputs.size)
    distribution = condensed_lengths(lengths)
    costs = [token_costs(lengths, budget, Role.MIXED, past) for budget in max_batched_tokens]
    rooms = [budget * stages for budget in max_batched_tokens]
    grids = [np.append(0.0, np.geomspace(1.0, float(room), TOKEN_POINTS)) for room in rooms]
    grid_of_room = list(zip(grids, rooms, strict=True))
    gap_slices = probability_slices(distribution.gaps, distribution.gap_weights, OUTPUT_EDGES)
    return PromptSteps(
        distribution=distribution,
        max_batched_tokens=np.array(max_batched_tokens, dtype=np.float64),
        step_tokens=np.array(rooms, dtype=np.float64),
        tokens=np.array(grids),
        decode_context=costs[0].decode_context,
        pairs=np.array([[cost.pairs] for cost in costs]),
        context=np.array([[cost.context] for cost in costs]),
        chunks=np.array([[cost.chunks] for cost in costs]),
        groups=np.array([_chunk_weights(grid, distribution.groups, room) for grid, room in grid_of_room]),
        mean=np.array(
            [
                distribution.prompt_weights @ _chunk_weights(grid, distribution.prompts, room)
                for grid, room in grid_of_room
            ]
        ),
        gaps=gap_slices.means,
        gap_weights=gap_slices.weights,
        lengths=lengths,
        past=_past_of_groups(lengths, past, distribution.groups),
    )


def _past_of_groups(lengths: TokenLengths, past: FloatArray, groups: FloatArray) -> FloatArray:
    """Cached tokens before a prompt of each group: pairs of cached and new tokens over new tokens, shape (G,)."""
    group, tokens = nearest_groups(groups, lengths.inputs), lengths.probabilities * lengths.inputs
    pairs, computed = (np.bincount(group, each, groups.size) for each in (tokens * past, tokens))
    return np.asarray(pairs / np.maximum(computed, LEAST_TOKENS))


def _chunk_weights(grid: FloatArray, prompts: FloatArray, room: int) -> FloatArray:
    """Weights that sum a function on the grid, linear between its points, over each prompt's steps, (prompts, P)."""
    whole = np.floor(prompts / room)
    rest = prompts - whole * room
    right = np.clip(np.searchsorted(grid, rest, side="left"), 1, grid.size - 1)
    share = (rest - grid[right - 1]) / (grid[right] - grid[right - 1])
    rows, weights = np.arange(prompts.size), np.zeros((prompts.size, grid.size))
    weights[rows, right] = share
    weights[rows, right - 1] += 1.0 - share
    weights[:, -1] += whole
    return weights


@dataclass(frozen=True, eq=False)
class PromptTimes:
    """Times of prompts.

    Attributes:
        mean_s: X, mean time a prompt adds [s], shape (B, N).
        group_s: the same of each prompt group, shape (B, N, G).
        full_s: what the prompts of a full step add to it [s], shape (B, N).
        own_s: a prompt's way to its first token beside others, without the step in progress [s], shape (B, N, G).
        idle_own_s: the same where nobody else is, shape (B, G).
        prefill_per_s: most prompts a replica can serve where nothing decodes [1/s], shape (B,).
    """

    mean_s: FloatArray
    group_s: FloatArray
    full_s: FloatArray
    own_s: FloatArray
    idle_own_s: FloatArray
    prefill_per_s: FloatArray


def no_prompt_times(steps: PromptSteps, running: FloatArray) -> PromptTimes:
    """Times of prompts in a decode pool: 0.

    Args:
        steps: for its chunk budgets.
        running: numbers running, shape (N,).

    Returns:
        Times of 0 [s].
    """
    zero = np.zeros((steps.max_batched_tokens.size, running.size))
    endless = np.full(steps.max_batched_tokens.size, math.inf)
    each = zero[:, :, None]
    return PromptTimes(zero, each, zero, each, zero[:, :1], endless)


def prompt_times(
    base: ReplicaConfig, steps: PromptSteps, running: FloatArray, decode_s: FloatArray | None
) -> PromptTimes:
    """Times of prompts beside so many decodes.

    Args:
        base: any configuration of the step-time group.
        steps: how prompts fall into steps.
        running: numbers running, rising, shape (N,).
        decode_s: step without prompts at each of them [s], shape (N,); None: nothing decodes.

    Returns:
        Times [s].
    """
    timer, mixed_steps, groups = base.timer, base.schedule.mixed_steps, steps.groups.transpose(0, 2, 1)
    encode_s = encode_s_per_token(base, steps.lengths)
    added, whole_s, beyond_s = alone_s(timer, steps, mixed_steps, encode_s)
    late_s = base.costs.request_s + base.costs.prompt_stretch * beyond_s[:, None, :]
    late_s = late_s + own_encoder_s(base, steps.lengths, steps.distribution.groups)
    prefill_per_s = (steps.tokens[:, 1:] / added[:, 0, 1:]).max(axis=1) / steps.distribution.mean_prompt
    first_s = np.matmul(added, groups) + late_s
    idle_own_s = whole_s + late_s[:, 0]
    if decode_s is not None:
        overhead_s = _overhead_s(base, running, decode_s)
        idle_own_s = np.maximum(idle_own_s + min(float(overhead_s[0]), 0.0), SHORTEST_S)
        added = added_s(timer, mixed_steps, steps, running, decode_s, encode_s)
        first_s = own_steps_s(added, steps, running, decode_s) + late_s + overhead_s[:, None]
    shape = (steps.max_batched_tokens.size, running.size)
    least = convex_below(added, steps.tokens)
    mean_s = np.maximum(np.matmul(least, steps.mean[:, :, None])[..., 0], SHORTEST_S)
    group_s = np.matmul(least, groups)
    room = 1.0 if decode_s is None else np.maximum(1.0 - running / steps.step_tokens[:, None], 0.0)
    return PromptTimes(
        mean_s=np.broadcast_to(mean_s, shape),
        group_s=np.broadcast_to(group_s, (*shape, group_s.shape[-1])),
        full_s=np.broadcast_to(added[..., -1] * room, shape),
        own_s=np.broadcast_to(first_s, (*shape, first_s.shape[-1])),
        idle_own_s=idle_own_s,
        prefill_per_s=prefill_per_s,
    )


def _overhead_s(base: ReplicaConfig, running: FloatArray, decode_s: FloatArray) -> FloatArray:
    """Time the engine adds before a first token, negative where prompts go before decodes [s], shape (N,)."""
    steps = base.costs.lag_steps + (base.schedule.receive_interval_steps - 1) / 2.0
    late_s = -steps * np.expm1(-running) * decode_s
    return late_s if base.schedule.mixed_steps else late_s - decode_s


@lru_cache(maxsize=512)
def alone_s(
    timer: StepTimer, steps: PromptSteps, mixed_steps: bool, encode_s: float = 0.0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times of prompts where nothing decodes, kept for the process.

    Args:
        timer: of the step-time group.
        steps: how prompts fall into steps.
        mixed_steps: whether prompts and decodes share steps.
        encode_s: of the images of a prompt, per prompt token [s].

    Returns:
        `added_s`, shape (B, 1, P), and the two of `own_chunks_s`, all in [s].
    """
    whole_s, beyond_s = own_chunks_s(timer, steps)
    whole_s = whole_s + encode_s * steps.distribution.groups
    return added_s(timer, mixed_steps, steps, np.zeros(1), np.zeros(1), encode_s), whole_s, beyond_s


def added_s(
    timer: StepTimer,
    mixed_steps: bool,
    steps: PromptSteps,
    running: FloatArray,
    decode_s: FloatArray,
    encode_s: float = 0.0,
) -> FloatArray:
    """Time prompt tokens add to steps beside so many decodes; 0 without any.

    Tokens that find no room beside the decodes go to a further step that is as full.

    Args:
        timer: of the step-time group.
        mixed_steps: whether prompts and decodes share steps.
        steps: how prompts fall into steps.
        running: numbers running, shape (N,).
        decode_s: step without prompts at each of them [s], shape (N,).
        encode_s: of the images of a prompt, per prompt token [s].

    Returns:
        Time [s] for each of `steps.tokens`, shape (B, N, P).
    """
    room = np.maximum(steps.step_tokens[:, None] - running, 1.0)[:, :, None]
    tokens = np.minimum(steps.tokens[:, None, :], room)
    on_grid_s = timer.prompts_s(steps.shape(np.zeros(1), steps.tokens))
    attention_s = np.array(
        [np.interp(rows, grid, row) for rows, grid, row in zip(tokens, steps.tokens, on_grid_s, strict=True)]
    )
    if mixed_steps:
        added = timer.times_s(steps.shape(running[None, :, None], tokens), attention_s) - decode_s[None, :, None]
    else:
        added = timer.times_s(steps.shape(np.zeros((1, 1, 1)), tokens), attention_s)
    if encode_s:
        chunks = np.maximum(tokens * steps.chunks.reshape(-1, 1, 1), 1.0)
        added = added + encode_s * tokens / np.minimum(chunks, float(timer.parallelism.dp))
    added = np.maximum(added, 0.0) * np.maximum(steps.tokens[:, None, :] / room, 1.0)
    added[..., 0] = 0.0
    return added


def convex_below(added: FloatArray, tokens: FloatArray) -> FloatArray:
    """The largest convex function from 0 that lies nowhere above `added`.

    From each corner the line of least slope to any point further on leads to the next one (gift wrapping), for all
    rows at once.

    Args:
        added: heights [s], 0 at the first point, shape (B, N, P).
        tokens: where they are, rising from 0, shape (B, P).

    Returns:
        Heights [s], shape (B, N, P).
    """
    size = tokens.shape[-1]
    rows = added.reshape(-1, size)
    at = np.repeat(tokens, added.shape[1], axis=0)
    corner, order = np.zeros(rows.shape[0], dtype=np.int64), np.arange(rows.shape[0])
    slopes = np.zeros((rows.shape[0], size - 1))
    places = np.arange(size)
    while np.any(corner < size - 1):
        ahead = places[None, :] > corner[:, None]
        run = np.where(ahead, at - at[order, corner][:, None], 1.0)
        rise = np.where(ahead, (rows - rows[order, corner][:, None]) / run, np.inf)
        following = np.where(corner < size - 1, size - 1 - np.argmin(rise[:, ::-1], axis=1), corner)
        least = np.where(corner < size - 1, rise[order, following], 0.0)
        between = (places[None, :-1] >= corner[:, None]) & (places[None, :-1] < following[:, None])
        slopes = np.where(between, least[:, None], slopes)
        corner = following
    heights = np.cumsum(slopes * np.diff(at, axis=1), axis=1)
    from_zero = np.concatenate([np.zeros((rows.shape[0], 1)), heights], axis=1)
    return np.asarray(np.maximum(from_zero, 0.0).reshape(added.shape))


def own_steps_s(added: FloatArray, steps: PromptSteps, running: FloatArray, decode_s: FloatArray) -> FloatArray:
    """Steps of a prompt of each group beside so many decodes.

    Args:
        added: what prompt tokens add [s], shape (B, N, P).
        steps: how prompts fall into steps.
        running: numbers running, shape (N,).
        decode_s: step without prompts at each of them [s], shape (N,).

    Returns:
        Time [s], shape (B, N, G).
    """
    room = np.maximum(steps.step_tokens[:, None] - running, 1.0)
    count = np.ceil(steps.distribution.groups / room[..., None] - 1e-9)
    return np.asarray(np.matmul(added, steps.groups.transpose(0, 2, 1)) + count * decode_s[:, None])


def own_chunks_s(timer: StepTimer, steps: PromptSteps) -> tuple[FloatArray, FloatArray]:
    """Of a prompt's own chunks, alone, for each group.

    Args:
        timer: of the step-time group.
        steps: how prompts fall into steps.

    Returns:
        Their steps as if all tokens were mean ones [s], and what their own attention takes beyond that of mean tokens
        [s], both of shape (B, G).
    """
    size, budgets = steps.distribution.groups.size, steps.max_batched_tokens.size
    rooms = [prompt_pieces(steps.distribution.groups, float(room), steps.past) for room in steps.step_tokens]
    of_budget = np.repeat(np.arange(budgets), [new.size for _, new, _ in rooms])
    prompt, new, old = (np.concatenate(parts) for parts in zip(*rooms, strict=True))
    own, none = piece_shapes(new, old, steps.max_batched_tokens[of_budget]), np.zeros_like(new)
    per_token = (each[of_budget, 0] for each in (steps.pairs, steps.context, steps.chunks))
    mean = StepShape(none, none, new, *(new * each for each in per_token))
    more_s = timer.prompts_s(own) - timer.prompts_s(mean)
    whole_s, beyond_s = (
        np.bincount(prompt + of_budget * size, seconds, size * budgets) for seconds in (timer.times_s(mean), more_s)
    )
    return np.asarray(whole_s.reshape(-1, size)), np.asarray(beyond_s.reshape(-1, size))


def transferred_bytes(base: ReplicaConfig, lengths: TokenLengths, points: FloatArray, receives: bool) -> FloatArray:
    """Bytes of the KV caches that are sent to a decode pool.

    Args:
        base: any configuration of the step-time group.
        receives: it is the decode pool; else that is not known, and the fewest copies are counted.
        lengths: of all requests.
        points: shares of the requests, the smallest caches first, shape (n,).

    Returns:
        Bytes at each share [bytes], shape (n,).
    """
    mask = lengths.outputs > 1
    if not mask.any():
        return np.zeros(points.size)
    sent = kv_transfer_bytes(base, lengths.inputs[mask], None if receives else 1)
    slices = probability_slices(sent, lengths.probabilities[mask], np.linspace(0.0, 1.0, points.size + 1))
    return np.asarray(np.interp(points, np.cumsum(slices.weights) - slices.weights / 2.0, slices.means))
