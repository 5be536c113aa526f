"""What a pool can do at best, in closed form from its step times: limits that predictions are held against."""

from __future__ import annotations

import math

import numpy as np

from planner.core import Metric
from planner.queueing import BatchServer
from planner.serving import Pool, Role, decoding_only, lengths_in_steps, pool_model, tokens_per_step
from planner.workload import LatencyDistribution, TokenLengths, Workload

LOADS = 64
"""Points on the range of loads where the fluid bound is looked up."""


def fluid_rate_per_s(pool: Pool, workload: Workload, max_step_s: float = math.inf) -> float:
    """Upper bound on what one replica can carry [requests/s] with a mean step of at most `max_step_s` [s].

    In steady state n sequences run and each step carries n I / (O - 1) prompt tokens, so the rate is
    n / ((O - 1) tau(n, n I / (O - 1))), as far as the chunk budget and the running limit allow (I, O means). Real steps
    alternate between few and many prompt tokens; tau is convex in them, so their mean is longer (Jensen): the bound is
    optimistic; `largest_stable_rate_per_s` is the limit of stability. 0 when even one sequence is too slow. Without
    prefix caches.
    """
    lengths, share = decoding_only(workload.lengths) if pool.role is Role.DECODE else (workload.lengths, 1.0)
    server = pool_model(pool, lengths).server
    running, prompts, per_step = _steady_states(
        pool.role, server, lengths_in_steps(lengths, tokens_per_step(pool.config))
    )
    steps_s = server.step_s(running, prompts)
    rates = np.where(steps_s <= max_step_s, per_step / steps_s, 0.0)
    return float(rates.max()) / share


def _steady_states(role: Role, server: BatchServer, lengths: TokenLengths) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Running sequences, prompt tokens and finished requests per step over the range of loads, each shape (64,)."""
    gaps = lengths.mean_output - 1.0
    ratio = 0.0 if role is Role.DECODE else lengths.mean_input / gaps if gaps > 0.0 else math.inf
    if role is Role.PREFILL or not math.isfinite(ratio):
        prompts = np.geomspace(1.0, server.max_batched_tokens, LOADS)
        return np.zeros(LOADS), prompts, prompts / lengths.mean_input
    most = min(server.max_running, server.max_batched_tokens / (1.0 + ratio))
    running = np.geomspace(most / 1e3, most, LOADS)
    return running, running * ratio, running / gaps


def idle_latencies(pool: Pool, workload: Workload) -> dict[Metric, LatencyDistribution]:
    """Latencies of requests that meet nobody: what no fleet of this configuration can beat.

    TTFT is the request's own chunks (nothing for a DECODE pool), TPOT one decode step at the mean context (nothing for
    a PREFILL pool).
    """
    lengths = workload.lengths
    model = pool_model(pool, lengths)
    max_batched_tokens, step_s = model.server.max_batched_tokens, model.server.step_s
    whole = np.floor(lengths.inputs / max_batched_tokens)
    rest = lengths.inputs - whole * max_batched_tokens
    chunk_s = step_s(np.zeros(1), np.array([float(max_batched_tokens)]))[0]
    prompt_s = whole * chunk_s + np.where(rest > 0, step_s(np.zeros_like(rest), np.maximum(rest, 1.0)), 0.0)
    prompt_s = prompt_s + pool.config.costs.request_s
    gap_s = step_s(np.ones(1), np.zeros(1))[0] / tokens_per_step(pool.config)
    zero = np.zeros_like(prompt_s)
    ttft_s = zero if pool.role is Role.DECODE else prompt_s
    tpot_s = zero if pool.role is Role.PREFILL else np.where(lengths.outputs > 1, gap_s, 0.0)
    e2e_s = ttft_s + (lengths.outputs - 1.0) * tpot_s
    by_metric = {Metric.TTFT: ttft_s, Metric.TPOT: tpot_s, Metric.E2E: e2e_s}
    return {
        metric: LatencyDistribution.from_samples(seconds, lengths.probabilities)
        for metric, seconds in by_metric.items()
    }
