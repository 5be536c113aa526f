"""`evaluate`: the one place where step times meet queues.

Turns a deployment and a workload into the batch servers that `planner.queueing` solves, composes prefill pool, KV
transfer and decode pool into one tandem, and names what each pool runs out of. Approximations made here:

- a decode attends to the mean decode context of the workload (length-biased over outputs);
- a prompt token costs the mean query-key pairs per prompt token, E[I (I + 1) / 2] / E[I];
- a request holds KV for all its input and output tokens from admission to its end (the simulator does the same);
- the KV transfer of a prompt takes bytes / bandwidth, without contention on the link;
- arrivals at the decode pool have the SCV of the arrivals at the prefill pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.deployment import Deployment, Method, Performance, Pool, PoolLimit, PoolPerformance, Role
from planner.errors import InputError
from planner.latency import LatencyDistribution
from planner.llm import kv_bytes_per_token
from planner.queueing import (
    BatchServer,
    QueueLatency,
    decode_pool,
    largest_decode_rate,
    largest_mixed_rate,
    largest_prefill_rate,
    mixed_pool,
    prefill_pool,
)
from planner.replica import MemoryFootprint, require_room, step_timer
from planner.roofline import Bound, StepShape
from planner.workload import Metric, TokenLengths, Workload

FloatArray = NDArray[np.float64]
_LOADS = 64
"""Points on the range of loads where the fluid bound is looked up."""


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


@dataclass(frozen=True)
class PoolModel:
    """A pool as the queueing model sees it, and what is needed to read its answer back."""

    pool: Pool
    footprint: MemoryFootprint
    costs: TokenCosts
    kv_running: float

    @property
    def server(self) -> BatchServer:
        """One replica as a server of steps."""
        timer, costs, config = step_timer(self.pool.config), self.costs, self.pool.config
        limit = min(float(config.max_running_requests), self.kv_running, float(config.max_batched_tokens))
        return BatchServer(
            step_s=lambda running, tokens: timer.times_s(step_shapes(running, tokens, costs)),
            token_budget=config.max_batched_tokens,
            max_running=limit,
        )


@dataclass(frozen=True)
class Stage:
    """A pool, what it was offered, and the queueing model's answer."""

    model: PoolModel
    queue: QueueLatency
    rate_per_s: float
    lengths: TokenLengths

    def performance(self) -> PoolPerformance:
        """The pool's own figures at its operating point."""
        model, queue, pool = self.model, self.queue, self.model.pool
        running = queue.mean_running
        return PoolPerformance(
            role=pool.role,
            utilisation=queue.utilisation,
            limit=self._limit(),
            bound=self._bound(running, self.prompt_tokens_per_step()),
            mean_running=running,
            mean_step_s=queue.mean_step_s,
            kv_occupancy=min(1.0, running * model.costs.held_tokens / model.footprint.kv_capacity_tokens),
        )

    def prompt_tokens_per_step(self) -> float:
        """Mean prompt tokens in a busy step."""
        if self.model.pool.role is Role.DECODE:
            return 0.0
        per_replica = self.rate_per_s / self.model.pool.replicas
        offered = per_replica * self.lengths.mean_input * self.queue.mean_step_s
        return min(offered, float(self.model.pool.config.max_batched_tokens))

    def _limit(self) -> PoolLimit:
        config = self.model.pool.config
        if self.queue.limit == "running":
            kv_first = self.model.kv_running < config.max_running_requests
            return PoolLimit.KV_CAPACITY if kv_first else PoolLimit.RUNNING_REQUESTS
        room = max(1.0, config.max_batched_tokens - self.queue.mean_running)
        return PoolLimit(self._bound(self.queue.mean_running, room).value)

    def _bound(self, running: float, prompt_tokens: float) -> Bound:
        shape = step_shapes(np.array(max(running, 1e-9)), np.array(prompt_tokens), self.model.costs)
        return step_timer(self.model.pool.config).itemised(shape).bound


def pool_model(pool: Pool, lengths: TokenLengths) -> PoolModel:
    """A pool prepared for the queueing model. Raises InputError when a request does not fit."""
    footprint = require_room(pool.config, lengths.max_total)
    costs = token_costs(lengths, pool.config.max_batched_tokens, pool.role)
    held = costs.held_tokens + pool.config.engine.kv_block_tokens / 2.0
    return PoolModel(pool, footprint, costs, kv_running=footprint.kv_capacity_tokens / held)


def evaluate(deployment: Deployment, workload: Workload) -> Performance:
    """Latency distributions of a deployment under a workload, from theory.

    Raises InputError when the model, its KV cache or the longest request does not fit. An overloaded deployment is
    not an error: `stable` is False and every latency is unbounded.
    """
    if deployment.is_disaggregated:
        return _evaluate_disaggregated(deployment, workload)
    stage = mixed_stage(deployment.pools[0], workload)
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.arrivals.rate_per_s,
        stable=stage.queue.stable,
        ttft=stage.queue.ttft,
        tpot=stage.queue.tpot,
        e2e=stage.queue.e2e,
        pools=(stage.performance(),),
        kv_transfer_s=0.0,
        requests=0,
        assumptions=_assumptions(deployment),
        samples_s={},
    )


def mixed_stage(pool: Pool, workload: Workload) -> Stage:
    """A mixed pool under the whole workload."""
    model = pool_model(pool, workload.lengths)
    queue = mixed_pool(model.server, workload.arrivals, workload.lengths, pool.replicas)
    return Stage(model, queue, workload.arrivals.rate_per_s, workload.lengths)


def prefill_stage(pool: Pool, workload: Workload) -> Stage:
    """A prefill pool under the workload's prompts; its `queue.ttft` is the TTFT of the deployment."""
    lengths = workload.lengths
    model = pool_model(pool, lengths)
    queue = prefill_pool(model.server, workload.arrivals, lengths, pool.replicas)
    return Stage(model, queue, workload.arrivals.rate_per_s, lengths)


def decode_stage(pool: Pool, workload: Workload) -> Stage:
    """A decode pool under the requests that have more than one output token."""
    decoding, share = decoding_only(workload.lengths)
    rate = workload.arrivals.rate_per_s * share
    model = pool_model(pool, decoding)
    queue = decode_pool(model.server, workload.arrivals.at_rate(rate), decoding, pool.replicas)
    return Stage(model, queue, rate, decoding)


def fluid_rate_per_s(pool: Pool, workload: Workload, max_step_s: float = math.inf) -> float:
    """Upper bound on what one replica can carry [requests/s] with a mean step of at most `max_step_s` [s].

    In steady state n sequences run and each step carries n I / (O - 1) prompt tokens, so the rate is
    n / ((O - 1) tau(n, n I / (O - 1))), as far as the token budget and the running limit allow (I, O means). Real steps
    alternate between few and many prompt tokens; tau is convex in them, so their mean is longer (Jensen): the bound is
    optimistic; `largest_stable_rate_per_s` is the limit of stability. Returns 0 when even one sequence is too slow.
    """
    lengths, share = workload.lengths, 1.0
    if pool.role is Role.DECODE:
        lengths, share = decoding_only(lengths)
    server = pool_model(pool, lengths).server
    running, prompts, per_step = _steady_states(pool.role, server, lengths)
    steps = server.step_s(running, prompts)
    rates = np.where(steps <= max_step_s, per_step / steps, 0.0)
    return float(rates.max()) / share


def largest_stable_rate_per_s(deployment: Deployment, workload: Workload) -> float:
    """Rate [requests/s] above which the backlog of some pool grows without bound."""
    return min(pool.replicas * _replica_limit_per_s(pool, workload) for pool in deployment.pools)


def _replica_limit_per_s(pool: Pool, workload: Workload) -> float:
    if pool.role is Role.DECODE:
        lengths, share = decoding_only(workload.lengths)
        return largest_decode_rate(pool_model(pool, lengths).server, lengths) / share
    limit = largest_prefill_rate if pool.role is Role.PREFILL else largest_mixed_rate
    return limit(pool_model(pool, workload.lengths).server, workload.lengths)


def _steady_states(role: Role, server: BatchServer, lengths: TokenLengths) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Running sequences, prompt tokens and finished requests per step over the range of loads, each shape (64,)."""
    gaps = lengths.mean_output - 1.0
    ratio = 0.0 if role is Role.DECODE else lengths.mean_input / gaps if gaps > 0.0 else math.inf
    if role is Role.PREFILL or not math.isfinite(ratio):
        prompts = np.geomspace(1.0, server.token_budget, _LOADS)
        return np.zeros(_LOADS), prompts, prompts / lengths.mean_input
    most = min(server.max_running, server.token_budget / (1.0 + ratio))
    running = np.geomspace(most / 1e3, most, _LOADS)
    return running, running * ratio, running / gaps


def decoding_only(lengths: TokenLengths) -> tuple[TokenLengths, float]:
    """The requests with more than one output token, and their share: what reaches a decode pool.

    Raises InputError when there are none.
    """
    if lengths.outputs.min() > 1:
        return lengths, 1.0
    mask = (lengths.outputs > 1) & (lengths.probabilities > 0)
    share = float(lengths.probabilities[mask].sum())
    if share <= 0.0:
        raise InputError("workload.lengths", 1, "every request has one output token", "use a mixed deployment")
    rest = TokenLengths.from_pairs(
        lengths.inputs[mask], lengths.outputs[mask], lengths.probabilities[mask], lengths.source
    )
    return rest, share


def kv_transfer_times_s(deployment: Deployment, lengths: TokenLengths) -> FloatArray:
    """KV transfer time [s] of each length cell, shape (cells,): input tokens * KV bytes per token / link bandwidth."""
    config = deployment.pools[0].config
    per_token = kv_bytes_per_token(config.llm, config.precision.kv_cache)
    return lengths.inputs * per_token / deployment.kv_link_bytes_per_s


def transfer_time(deployment: Deployment, lengths: TokenLengths) -> LatencyDistribution:
    """Law of the KV transfer time between the pools [s]."""
    return LatencyDistribution.from_samples(kv_transfer_times_s(deployment, lengths), lengths.probabilities)


def _evaluate_disaggregated(deployment: Deployment, workload: Workload) -> Performance:
    first = prefill_stage(deployment.pools[0], workload)
    second = decode_stage(deployment.pools[1], workload)
    transfer = transfer_time(deployment, second.lengths)
    share = second.rate_per_s / first.rate_per_s
    stable = first.queue.stable and second.queue.stable and _link_keeps_up(deployment, workload)
    tpot = e2e = LatencyDistribution.unbounded()
    if stable:
        e2e = LatencyDistribution.independent_sum(first.queue.ttft, transfer, second.queue.e2e)
        tpot = tandem_tpot(second, transfer)
        tpot = LatencyDistribution.mixture([(tpot, share), (LatencyDistribution.constant(0.0), 1.0 - share)])
        e2e = LatencyDistribution.mixture([(e2e, share), (first.queue.ttft, 1.0 - share)])
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.arrivals.rate_per_s,
        stable=stable,
        ttft=first.queue.ttft,
        tpot=tpot,
        e2e=e2e,
        pools=(first.performance(), second.performance()),
        kv_transfer_s=transfer.mean_s,
        requests=0,
        assumptions=_assumptions(deployment),
        samples_s={},
    )


def tandem_tpot(decode: Stage, transfer: LatencyDistribution) -> LatencyDistribution:
    """TPOT after a hand-over: gap + (transfer + wait) / (O - 1), the terms taken as independent.

    The second token comes only after transfer and admission, so their delay is spread over the O - 1 gaps.
    """
    lengths = decode.lengths
    delay = LatencyDistribution.independent_sum(transfer, decode.queue.ttft).condensed(64)
    gaps = LatencyDistribution.from_samples(lengths.outputs - 1.0, lengths.probabilities).condensed(64)
    spread = LatencyDistribution.from_samples(
        np.divide.outer(delay.support_s, gaps.support_s).ravel(), np.multiply.outer(delay.weights, gaps.weights).ravel()
    )
    return LatencyDistribution.independent_sum(decode.queue.tpot, spread)


def _link_keeps_up(deployment: Deployment, workload: Workload) -> bool:
    """Whether the NICs of the prefill pool carry the offered KV traffic."""
    offered = workload.arrivals.rate_per_s * float(
        kv_transfer_times_s(deployment, workload.lengths) @ workload.lengths.probabilities
    )
    return offered < min(pool.replicas for pool in deployment.pools)


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    if deployment.is_disaggregated:
        notes.append("KV transfer at full NIC bandwidth without contention")
    return tuple(dict.fromkeys(notes))


def idle_latencies(pool: Pool, workload: Workload) -> dict[Metric, LatencyDistribution]:
    """Latencies of requests that meet nobody: what no fleet of this configuration can beat.

    TTFT is the request's own chunks (nothing for a DECODE pool), TPOT one decode step at the mean context (nothing for
    a PREFILL pool).
    """
    lengths = workload.lengths
    model = pool_model(pool, lengths)
    budget, step_s = model.server.token_budget, model.server.step_s
    whole = np.floor(lengths.inputs / budget)
    rest = lengths.inputs - whole * budget
    chunk = step_s(np.zeros(1), np.array([float(budget)]))[0]
    prompt_s = whole * chunk + np.where(rest > 0, step_s(np.zeros_like(rest), np.maximum(rest, 1.0)), 0.0)
    gap_s = step_s(np.ones(1), np.zeros(1))[0]
    zero = np.zeros_like(prompt_s)
    ttft_s = zero if pool.role is Role.DECODE else prompt_s
    tpot_s = zero if pool.role is Role.PREFILL else np.where(lengths.outputs > 1, gap_s, 0.0)
    e2e_s = ttft_s + (lengths.outputs - 1.0) * tpot_s
    by_metric = {Metric.TTFT: ttft_s, Metric.TPOT: tpot_s, Metric.E2E: e2e_s}
    return {
        metric: LatencyDistribution.from_samples(seconds, lengths.probabilities)
        for metric, seconds in by_metric.items()
    }


def prompt_time_share(pool: Pool, workload: Workload) -> float:
    """Share of a pool's step time that prompts add; splits its cost between input and output tokens.

    A step with p prompt tokens takes tau(n, p), of which tau(n, 0) would pass without them. Prompts come in bunches, so
    a token's share is taken where prompts are: (tau(n, p') - tau(n, 0)) / p' with p' = min(E[I^2] / E[I], C), the size
    of the prompt a random prompt token belongs to. Times the mean prompt tokens per step, over the whole step.
    1 for a prefill pool, 0 for a decode pool.
    """
    if pool.role is not Role.MIXED:
        return float(pool.role is Role.PREFILL)
    stage, lengths = mixed_stage(pool, workload), workload.lengths
    size_biased = float(lengths.inputs**2 @ lengths.probabilities) / lengths.mean_input
    bunch = min(size_biased, max(1.0, pool.config.max_batched_tokens - stage.queue.mean_running))
    running = np.full(2, max(stage.queue.mean_running, 1e-9))
    with_prompt, without = stage.model.server.step_s(running, np.array([bunch, 0.0]))
    added = (with_prompt - without) / bunch * stage.prompt_tokens_per_step()
    return float(added / (added + without))
