"""A prompt's own attention in its work: quadratic in its length, where a mean step knows a mean per token.

`PoolModel.server` charges every prompt token the mean pairs of query and key over all prompt tokens. A prompt of L
tokens to compute behind P cached ones, in chunks of c, has sum over chunks of p (P + j c) + p (p + 1) / 2 of them:
short ones less, long ones and those behind a long cached part more. For those who wait behind a prompt what counts is
its time; so the queue is solved with prompts of as many mean tokens as take their time (`work_lengths`), and each
request then gets its own prompt exactly (`with_own_prompt`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.core import FloatArray, Keyed
from planner.queueing import QueueLatency, e2e_distribution, fluid_running, largest_mixed_rate, own_steps_s
from planner.serving.pool import (
    PoolModel,
    last_piece_s,
    own_encoder_s,
    piece_shapes,
    prompt_pieces,
    step_shapes,
)
from planner.serving.types import Role
from planner.workload import TokenLengths

LENGTHS_TABULATED, PASTS_TABULATED = 48, 5
"""Prompt lengths, and cached tokens before them, at which the work of a prompt is worked out; linear in between. A
choice: accuracy against time."""
LEAST_WORK_SHARE = 0.1
"""A prompt is not taken as fewer mean tokens than this share of its own. A choice."""
SATURATION_ROUNDS = 4
"""Rounds from no decodes to those of a saturated server: each is wrong by a few per cent of the one before."""


def work_lengths(
    model: PoolModel, lengths: TokenLengths, past: FloatArray | float = 0.0, rate_per_s: float = math.inf
) -> TokenLengths:
    """The requests with prompts of as many tokens at the mean cost as take their time in full steps.

    With tau the duration of a full step of c tokens and d the time of a prompt's own attention beyond the mean, L
    tokens are L + d c / tau.

    Args:
        model: the pool.
        lengths: tokens to compute and output tokens, these in decode steps.
        past: cached tokens before those of each cell, shape (cells,).
        rate_per_s: requests of one replica [1/s], which say how many decode beside a full step; the largest stable
            rate, if that is less.

    Returns:
        The same cells with other inputs [mean tokens], of a mean not below their own so that bounds on rates hold; as
        they were in a decode pool and where all prompts are alike.
    """
    occurs, before = lengths.probabilities > 0.0, np.broadcast_to(past, lengths.inputs.shape)
    alike = float(np.ptp(lengths.inputs[occurs])) == float(np.ptp(before[occurs])) == 0.0
    if model.pool.role is Role.DECODE or alike:
        return lengths
    return _work_lengths(model.key, lengths, tuple(np.ravel(past).tolist()), rate_per_s)


@lru_cache(maxsize=128)
def _work_lengths(
    step_times: Keyed[PoolModel], lengths: TokenLengths, past: tuple[float, ...], rate_per_s: float
) -> TokenLengths:
    model = step_times.value
    shortest, longest = float(lengths.inputs.min()), float(lengths.inputs.max())
    table = np.geomspace(shortest, longest, LENGTHS_TABULATED if longest > shortest else 1).clip(shortest, longest)
    least, most = min(past), max(past)
    pasts = np.unique(np.linspace(least, most, PASTS_TABULATED)) if most > least else np.array([least])
    running, chunk = _beside_full_step(model, lengths, rate_per_s)
    full_s = float(model.server.step_s(np.array([running]), np.array([chunk]))[0])
    inputs = np.zeros(lengths.inputs.size)
    for before, hat in zip(pasts.tolist(), np.eye(pasts.size), strict=True):
        own_s = np.array(own_attention_s(step_times, tuple(table.tolist()), (before,) * table.size, chunk))
        tokens = np.maximum.accumulate(np.maximum(table + own_s * chunk / full_s, LEAST_WORK_SHARE * table))
        inputs += np.interp(past, pasts, hat) * np.interp(lengths.inputs, table, tokens)
    inputs *= max(lengths.mean_input / float(inputs @ lengths.probabilities), 1.0)
    inputs = np.maximum(np.rint(inputs), 1.0)
    return TokenLengths.from_pairs(inputs, lengths.outputs, lengths.probabilities, lengths.source, lengths.images)


def _beside_full_step(model: PoolModel, lengths: TokenLengths, rate_per_s: float) -> tuple[float, float]:
    """Sequences that decode beside a full step on average, and the tokens of that step; arguments as above."""
    server, gaps = model.server, lengths.mean_output - 1.0
    budget = float(server.max_batched_tokens)
    if model.pool.role is Role.PREFILL or gaps <= 0.0:
        return 0.0, budget
    largest = largest_mixed_rate(server, lengths)
    if rate_per_s < largest:
        running = fluid_running(server, rate_per_s, lengths)
        return running, budget - running
    running = 0.0
    for _ in range(SATURATION_ROUNDS):
        step_s = float(server.step_s(np.array([running]), np.array([budget - running]))[0])
        running = min(largest * gaps * step_s, model.max_running, budget - 1.0)
    return running, budget - running


def with_own_prompt(
    queue: QueueLatency,
    model: PoolModel,
    lengths: TokenLengths,
    work: TokenLengths,
    busy: float,
    past: FloatArray | float = 0.0,
) -> QueueLatency:
    """The queue with each prompt's own steps as they are, and by its own tokens.

    The queue has a prompt of W mean tokens that takes the time of its L tokens on average over where a step begins. A
    request that meets nobody begins with a step: its own steps take those of L tokens and their attention instead of
    those of W. Others' prompts stay as the queue has them.

    Args:
        queue: solved with the inputs of `work`.
        model: the pool.
        lengths: tokens to compute and output tokens.
        work: `work_lengths` of these.
        busy: share of the time in which other prompts are served, in [0, 1].
        past: cached tokens before those of each cell, shape (cells,).

    Returns:
        The queue with TTFT and E2E [s] changed, its joint distribution by tokens of the prompts.
    """
    joint = queue.joint
    if not queue.stable or joint is None:
        return queue
    config, running = model.pool.config, queue.mean_running
    chunk = max(model.server.max_batched_tokens - running, 1.0)
    order = np.argsort(work.inputs, kind="stable")
    prompts, behind = (
        np.interp(joint.prompts, work.inputs[order], each[order])
        for each in (lengths.inputs, lengths.inputs * past)  # pairs of tokens to compute and cached ones
    )
    before = behind / prompts
    own_s = np.array(own_attention_s(model.key, tuple(prompts.tolist()), tuple(before.tolist()), chunk))
    own_s += own_steps_s(model.server, running, chunk, prompts)
    own_s -= own_steps_s(model.server, running, chunk, joint.prompts)
    beyond_s = own_s if work is lengths else own_s * (1.0 - busy)
    if config.parallelism.pp > 1:
        beyond_s += last_piece_s(model, prompts, running) * (1.0 - busy)
    beyond_s += own_encoder_s(config, model.lengths, prompts)
    first_s = np.maximum(joint.first_s + beyond_s[:, None], 0.0)
    joint = replace(joint, first_s=first_s, prompts=prompts)
    ttft = joint.ttft
    e2e = e2e_distribution(joint) if np.any(joint.gaps > 0.0) else ttft
    return replace(queue, joint=joint, ttft=ttft, e2e=e2e)


@lru_cache(maxsize=1024)
def own_attention_s(
    step_times: Keyed[PoolModel], prompts: tuple[float, ...], cached: tuple[float, ...], chunk: float
) -> tuple[float, ...]:
    """Time [s] of each prompt's own attention beyond that of its tokens at the mean cost, in chunks of `chunk`.

    Args:
        step_times: of the pool.
        prompts: tokens to compute, shape (Q,).
        cached: tokens before them, shape (Q,).
        chunk: tokens of a full step.

    Returns:
        Negative for prompts that attend to less than the mean [s], (Q,).
    """
    model, sizes = step_times.value, np.array(prompts)
    config = model.pool.config
    prompt, new, old = prompt_pieces(sizes, chunk, np.array(cached))
    own, mean = piece_shapes(new, old, config.max_batched_tokens), step_shapes(np.zeros_like(new), new, model.costs)
    beyond_s = (config.timer.prompts_s(own) - config.timer.prompts_s(mean)) * config.costs.prompt_stretch
    return tuple(np.bincount(prompt, beyond_s, sizes.size).tolist())
