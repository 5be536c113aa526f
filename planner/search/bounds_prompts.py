"""What prompts take of the steps of a machine, for several chunk budgets and many numbers running at once.

Every prompt is alone with its chunks: what it meets of others is the matter of `planner.search.bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.engine import ReplicaConfig, StepTimer, kv_transfer_bytes
from planner.queueing import LengthDistribution, grouped, length_distribution
from planner.roofline import StepShape
from planner.serving import Role, token_costs
from planner.workload import TokenLengths

FloatArray = NDArray[np.float64]

TOKEN_POINTS = 31
"""Numbers of prompt tokens of a step, up to each budget, at which its time is looked up."""
SHORTEST_S = 1e-12
"""Guards a division by a time of 0 [s]."""
OUTPUT_EDGES = np.linspace(0.0, 1.0, 15) ** 2
"""Slices of the output lengths, finer towards the short ones, whose TPOT varies most."""


@dataclass(frozen=True, eq=False)
class PromptSteps:
    """How the prompts of a workload fall into the steps of several chunk budgets, each prompt alone.

    Attributes:
        distribution: of the lengths, outputs in decode steps.
        budgets: shape (B,) [tokens].
        tokens: prompt tokens of a step at which times are looked up, from 0 to the budget, shape (B, P).
        decode_context: tokens a decode attends to.
        pairs, context, chunks: per prompt token (see `pool_model.TokenCosts`), shape (B, 1).
        groups: sums over a prompt's chunks of what is tabulated over `tokens`, for each prompt group, shape (B, G, P).
        mean: the same of all prompts on average, shape (B, P).
        gaps, gap_weights: decode steps of those that decode, in `OUTPUT_EDGES`, and their probabilities, shape (K,).
        cached: whether prompts are without tokens that a cache holds; their own attention is then not told apart.
    """

    distribution: LengthDistribution
    budgets: FloatArray
    tokens: FloatArray
    decode_context: float
    pairs: FloatArray
    context: FloatArray
    chunks: FloatArray
    groups: FloatArray
    mean: FloatArray
    gaps: FloatArray
    gap_weights: FloatArray
    cached: bool

    def shape(self, running: FloatArray, tokens: FloatArray) -> StepShape:
        """Steps of `running` decodes and `tokens` prompt tokens, broadcast over a first axis of budgets."""
        extra = (1,) * (max(np.ndim(tokens), np.ndim(running)) - 2)
        pairs, context, chunks = (one.reshape(-1, 1, *extra) for one in (self.pairs, self.context, self.chunks))
        return StepShape(
            running, running * self.decode_context, tokens, tokens * pairs, tokens * context, tokens * chunks
        )


def prompt_steps(lengths: TokenLengths, budgets: tuple[int, ...], past: FloatArray | None = None) -> PromptSteps:
    """`PromptSteps` of lengths whose outputs are counted in decode steps; `past` tokens of each cell are cached."""
    return _plain_prompt_steps(lengths, budgets) if past is None else _prompt_steps(lengths, budgets, past)


@lru_cache(maxsize=64)
def _plain_prompt_steps(lengths: TokenLengths, budgets: tuple[int, ...]) -> PromptSteps:
    return _prompt_steps(lengths, budgets, 0.0)


def _prompt_steps(lengths: TokenLengths, budgets: tuple[int, ...], past: FloatArray | float) -> PromptSteps:
    distribution = length_distribution(lengths)
    costs = [token_costs(lengths, budget, Role.MIXED, past) for budget in budgets]
    grids = [np.append(0.0, np.geomspace(1.0, float(budget), TOKEN_POINTS)) for budget in budgets]
    pairs = list(zip(grids, budgets, strict=True))
    gaps, gap_weights, _ = grouped(distribution.gaps, distribution.gap_weights, OUTPUT_EDGES)
    return PromptSteps(
        distribution=distribution,
        budgets=np.array(budgets, dtype=np.float64),
        tokens=np.array(grids),
        decode_context=costs[0].decode_context,
        pairs=np.array([[one.pairs] for one in costs]),
        context=np.array([[one.context] for one in costs]),
        chunks=np.array([[one.chunks] for one in costs]),
        groups=np.array([_lookup(grid, distribution.groups, budget) for grid, budget in pairs]),
        mean=np.array(
            [distribution.prompt_weights @ _lookup(grid, distribution.prompts, budget) for grid, budget in pairs]
        ),
        gaps=gaps,
        gap_weights=gap_weights,
        cached=bool(np.any(past)),
    )


def _lookup(grid: FloatArray, prompts: FloatArray, budget: int) -> FloatArray:
    """Weights that sum a function on the grid, linear between its points, over each prompt's chunks, (prompts, P)."""
    whole = np.floor(prompts / budget)
    rest = prompts - whole * budget
    right = np.clip(np.searchsorted(grid, rest, side="left"), 1, grid.size - 1)
    share = (rest - grid[right - 1]) / (grid[right] - grid[right - 1])
    rows, weights = np.arange(prompts.size), np.zeros((prompts.size, grid.size))
    weights[rows, right] = share
    weights[rows, right - 1] += 1.0 - share
    weights[:, -1] += whole
    return weights


def in_steps(lengths: TokenLengths, gain: float) -> TokenLengths:
    """Lengths with decode steps in place of output tokens, as `planner.serving.stage` counts them."""
    if gain == 1.0:
        return lengths
    outputs = 1.0 + np.ceil((lengths.outputs - 1.0) / gain - 1e-9)
    return TokenLengths.from_pairs(lengths.inputs, outputs, lengths.probabilities, lengths.source)


@lru_cache(maxsize=512)
def alone_s(timer: StepTimer, steps: PromptSteps, mixed_steps: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What prompt tokens take where nothing decodes [s], shape (B, 1, P), and `own_chunks_s`."""
    return added_s(timer, mixed_steps, steps, np.zeros(1), np.zeros(1)), *own_chunks_s(timer, steps)


def added_s(
    timer: StepTimer, mixed_steps: bool, steps: PromptSteps, running: FloatArray, decode_s: FloatArray
) -> FloatArray:
    """What prompt tokens add to steps beside so many decodes [s], shape (B, N, P); 0 without any.

    Tokens that find no room beside the decodes go to a further step that is as full.
    """
    room = np.maximum(steps.budgets[:, None] - running, 1.0)[:, :, None]
    tokens = np.minimum(steps.tokens[:, None, :], room)
    attention_s = timer.prompts_s(steps.shape(np.zeros(1), steps.tokens))
    alone_s = np.array(
        [np.interp(one, grid, row) for one, grid, row in zip(tokens, steps.tokens, attention_s, strict=True)]
    )
    if mixed_steps:
        added = timer.times_s(steps.shape(running[None, :, None], tokens), alone_s) - decode_s[None, :, None]
    else:
        added = timer.times_s(steps.shape(np.zeros((1, 1, 1)), tokens), alone_s)
    added = np.maximum(added, 0.0) * np.maximum(steps.tokens[:, None, :] / room, 1.0)
    added[..., 0] = 0.0
    return added


def convex_below(added: FloatArray, tokens: FloatArray) -> FloatArray:
    """The largest convex function from 0 that lies nowhere above `added`, shape (B, N, P).

    From each corner the line of least slope to any point further on leads to the next one (gift wrapping), for all
    rows at once.
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


def prompt_means_s(added: FloatArray, steps: PromptSteps) -> tuple[FloatArray, FloatArray]:
    """What a prompt adds on average [s], shape (B, N), and what one of each group does, shape (B, N, G)."""
    mean_s = np.matmul(added, steps.mean[:, :, None])[..., 0]
    return np.maximum(mean_s, SHORTEST_S), np.matmul(added, steps.groups.transpose(0, 2, 1))


def own_steps_s(added: FloatArray, steps: PromptSteps, running: FloatArray, decode_s: FloatArray) -> FloatArray:
    """Steps of a prompt of each group beside so many decodes [s], shape (B, N, G)."""
    room = np.maximum(steps.budgets[:, None] - running, 1.0)
    count = np.ceil(steps.distribution.groups / room[..., None] - 1e-9)
    return np.asarray(np.matmul(added, steps.groups.transpose(0, 2, 1)) + count * decode_s[:, None])


def own_chunks_s(timer: StepTimer, steps: PromptSteps) -> tuple[FloatArray, FloatArray]:
    """Of a prompt's own chunks, alone, for each group [s], both of shape (B, G).

    Their steps as if all tokens were mean ones, and what their own attention takes beyond that of mean tokens.
    """
    prompts, size = steps.distribution.groups, steps.distribution.groups.size
    each, before, places = [], [], []
    for b, budget in enumerate(steps.budgets.tolist()):
        past = np.arange(math.ceil(float(prompts.max()) / budget)) * budget
        tokens = np.clip(prompts[:, None] - past, 0.0, budget)
        prompt, step = np.nonzero(tokens)
        each.append(tokens[prompt, step])
        before.append(past[step])
        places.append(prompt + b * size)
    new, old, place = np.concatenate(each), np.concatenate(before), np.concatenate(places)
    pairs, context, chunks = (np.repeat(one[:, 0], size)[place] for one in (steps.pairs, steps.context, steps.chunks))
    nothing, one = np.zeros_like(new), np.ones_like(new)
    own = StepShape(nothing, nothing, new, new * old + new * (new + 1.0) / 2.0, old + new, one)
    mean = StepShape(nothing, nothing, new, new * pairs, new * context, new * chunks)
    more_s = timer.prompts_s(own) - timer.prompts_s(mean)
    count = size * steps.budgets.size
    whole_s, beyond_s = (np.bincount(place, one, count) for one in (timer.times_s(mean), more_s))
    return np.asarray(whole_s.reshape(-1, size)), np.asarray(beyond_s.reshape(-1, size))


def handed_bytes(base: ReplicaConfig, lengths: TokenLengths, points: FloatArray) -> FloatArray:
    """Bytes of the KV caches handed over: of the smallest share of requests, and so on, at the shares `points`."""
    mask = lengths.outputs > 1
    if not mask.any():
        return np.zeros(points.size)
    sent = kv_transfer_bytes(base, lengths.inputs[mask])
    values, weights, _ = grouped(sent, lengths.probabilities[mask], np.linspace(0.0, 1.0, points.size + 1))
    return np.asarray(np.interp(points, np.cumsum(weights) - weights / 2.0, values))
