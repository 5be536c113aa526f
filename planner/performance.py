"""`evaluate`: the one place where step times meet queues.

Turns a deployment and a workload into the batch servers that `planner.queueing` solves, composes prefill pool, KV
transfer and decode pool into one tandem, and names what each pool runs out of. `planner.pool_model` says what a pool's
mean steps hold; closed loops are the matter of `planner.closed_loop`. Approximations made here:

- the KV transfer of a prompt takes bytes / bandwidth, without contention on the link;
- arrivals at the decode pool have the SCV of the arrivals at the prefill pool;
- a speculating engine's sequences take ceil((O - 1) / tokens per step) steps;
- what an engine adds before a request is looked at (`EngineCosts.request_s`, `lag_steps`, a receive interval) is added
  to the wait, the steps of it where sequences decode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.closed_loop import closed_performance
from planner.closed_tandem import tandem_performance
from planner.deployment import Deployment, Method, Performance, Pool, PoolLimit, PoolPerformance, Role
from planner.errors import InputError
from planner.latency import LatencyDistribution
from planner.pool_model import FloatArray, PoolModel, pool_model, step_shapes, token_costs
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
from planner.replica import ReplicaConfig, kv_transfer_bytes, step_timer
from planner.roofline import Bound
from planner.uncertainty import latency_intervals
from planner.workload import ClosedLoop, Metric, TokenLengths, Workload

__all__ = [
    "Stage",
    "decode_stage",
    "decoding_only",
    "evaluate",
    "fluid_rate_per_s",
    "idle_latencies",
    "kv_transfer_times_s",
    "largest_stable_rate_per_s",
    "mixed_stage",
    "prefill_stage",
    "prompt_time_share",
    "step_shapes",
    "tandem_tpot",
    "token_costs",
    "transfer_time",
]

TINY_S = 1e-30
"""Guards a division by a latency of 0 [s]."""
_LOADS = 64
"""Points on the range of loads where the fluid bound is looked up."""


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


def evaluate(deployment: Deployment, workload: Workload) -> Performance:
    """Latency distributions of a deployment under a workload, from theory; of a closed loop over the whole run.

    Raises InputError when the model, its KV cache or the longest request does not fit. An overloaded deployment is
    not an error: `stable` is False and every latency is unbounded.
    """
    if isinstance(workload.arrivals, ClosedLoop):
        play = tandem_performance if deployment.is_disaggregated else closed_performance
        notes = _assumptions(deployment) + _closed_assumptions(deployment)
        found = play(deployment, workload.arrivals, workload.lengths, notes)
        return _with_interval(deployment, workload.lengths, found)
    found = (_evaluate_disaggregated if deployment.is_disaggregated else _evaluate_mixed)(deployment, workload)
    return _with_interval(deployment, workload.lengths, found)


def _with_interval(deployment: Deployment, lengths: TokenLengths, found: Performance) -> Performance:
    """The same with the intervals of its means; its steady part has the same spread."""
    means = {metric: found.distribution(metric).mean_s for metric in Metric}
    running = [pool.mean_running for pool in found.pools]
    intervals = latency_intervals(deployment, lengths.mean_input, lengths.mean_output, running, means)
    steady = found.steady
    if steady is not None and intervals:
        scale = {metric: steady.distribution(metric).mean_s / max(means[metric], TINY_S) for metric in Metric}
        bounds = {metric: (low * scale[metric], high * scale[metric]) for metric, (low, high) in intervals.items()}
        steady = replace(steady, interval=bounds)
    return replace(found, interval=intervals, steady=steady)


def _evaluate_mixed(deployment: Deployment, workload: Workload) -> Performance:
    stage = mixed_stage(deployment.pools[0], workload)
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=workload.rate_per_s,
        stable=stage.queue.stable,
        ttft=stage.queue.ttft,
        tpot=stage.queue.tpot,
        e2e=stage.queue.e2e,
        pools=(stage.performance(),),
        kv_transfer_s=0.0,
        requests=0,
        assumptions=_assumptions(deployment) + _queueing_assumptions(deployment),
        samples_s={},
    )


def mixed_stage(pool: Pool, workload: Workload) -> Stage:
    """A mixed pool under the whole workload."""
    lengths = workload.lengths
    model = pool_model(pool, lengths)
    queue = mixed_pool(model.server, workload.open_arrivals, _in_steps(pool.config, lengths), pool.replicas)
    return Stage(model, _as_served(queue, pool), workload.rate_per_s, lengths)


def prefill_stage(pool: Pool, workload: Workload) -> Stage:
    """A prefill pool under the workload's prompts; its `queue.ttft` is the TTFT of the deployment."""
    lengths = workload.lengths
    model = pool_model(pool, lengths)
    queue = prefill_pool(model.server, workload.open_arrivals, lengths, pool.replicas)
    return Stage(model, _as_served(queue, pool), workload.rate_per_s, lengths)


def decode_stage(pool: Pool, workload: Workload) -> Stage:
    """A decode pool under the requests that have more than one output token."""
    decoding, share = decoding_only(workload.lengths)
    rate = workload.rate_per_s * share
    model = pool_model(pool, decoding)
    arrivals = workload.open_arrivals.at_rate(rate)
    queue = decode_pool(model.server, arrivals, _in_steps(pool.config, decoding), pool.replicas)
    return Stage(model, _as_served(queue, pool), rate, decoding)


def _tokens_per_step(config: ReplicaConfig) -> float:
    return config.speculation.tokens_per_step if config.speculation else 1.0


def _in_steps(config: ReplicaConfig, lengths: TokenLengths) -> TokenLengths:
    """Lengths with decode steps in place of output tokens: 1 + ceil((O - 1) / tokens per step)."""
    if config.speculation is None:
        return lengths
    steps = 1.0 + np.ceil((lengths.outputs - 1.0) / _tokens_per_step(config) - 1e-9)
    return TokenLengths.from_pairs(lengths.inputs, steps, lengths.probabilities, lengths.source)


def _as_served(queue: QueueLatency, pool: Pool) -> QueueLatency:
    """With what the engine adds before it looks at a request, and TPOT per token instead of per step.

    Steps are waited for only where sequences decode, with chance min(1, mean running). A prefill pool has a step
    prepared only while requests wait, and those wait for it anyway.
    """
    if not queue.stable:
        return queue
    config = pool.config
    gain = _tokens_per_step(config)
    tpot = (
        LatencyDistribution.from_samples(queue.tpot.support_s / gain, queue.tpot.weights) if gain > 1.0 else queue.tpot
    )
    busy = 0.0 if pool.role is Role.PREFILL else min(1.0, queue.mean_running)
    interval = config.schedule.receive_interval_steps - 1
    late_s = (config.costs.lag_steps + interval / 2.0) * busy * queue.mean_step_s
    if pool.role is not Role.DECODE:
        late_s += config.costs.request_s
    if late_s <= 0.0:
        return replace(queue, tpot=tpot)
    ttft, e2e = (
        LatencyDistribution.from_samples(one.support_s + late_s, one.weights) for one in (queue.ttft, queue.e2e)
    )
    return replace(queue, ttft=ttft, tpot=tpot, e2e=e2e)


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
    server, lengths = pool_model(pool, lengths).server, _in_steps(pool.config, lengths)
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
        server = pool_model(pool, lengths).server
        return largest_decode_rate(server, _in_steps(pool.config, lengths)) / share
    limit = largest_prefill_rate if pool.role is Role.PREFILL else largest_mixed_rate
    return limit(pool_model(pool, workload.lengths).server, _in_steps(pool.config, workload.lengths))


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
    """KV transfer time [s] of each length cell, shape (cells,): bytes of the prompt's cache / link bandwidth."""
    sent_bytes = kv_transfer_bytes(deployment.pools[0].config, lengths.inputs)
    return np.asarray(sent_bytes / deployment.kv_link_bytes_per_s)


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
        rate_per_s=workload.rate_per_s,
        stable=stable,
        ttft=first.queue.ttft,
        tpot=tpot,
        e2e=e2e,
        pools=(first.performance(), second.performance()),
        kv_transfer_s=transfer.mean_s,
        requests=0,
        assumptions=_assumptions(deployment) + _queueing_assumptions(deployment),
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
    offered = workload.rate_per_s * float(
        kv_transfer_times_s(deployment, workload.lengths) @ workload.lengths.probabilities
    )
    return offered < min(pool.replicas for pool in deployment.pools)


def _assumptions(deployment: Deployment) -> tuple[str, ...]:
    notes = [note for pool in deployment.pools for note in pool.config.assumptions]
    if deployment.is_disaggregated:
        notes.append("KV transfer at full NIC bandwidth without contention")
    return tuple(dict.fromkeys(notes))


def _closed_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """What the theory of closed loops leaves out."""
    notes = ["theory: percentiles are those of means over the run, without the chance of single steps"]
    if not all(pool.config.schedule.reserve_outputs for pool in deployment.pools):
        notes.append("theory: KV cache holds inputs and half the outputs, and nothing is preempted")
    if any(pool.config.schedule.whole_prompts for pool in deployment.pools):
        notes.append("theory: whole prompts all have the mean length where they are fitted into steps")
    return tuple(notes)


def _queueing_assumptions(deployment: Deployment) -> tuple[str, ...]:
    """Policies of the engines that the queueing theory of open arrivals does not know; the simulation does."""
    notes = []
    for pool in deployment.pools:
        schedule, config = pool.config.schedule, pool.config
        if pool.role is Role.MIXED and not schedule.mixed_steps:
            notes.append("theory: prompts share steps with decodes, though the engine stops decodes for them")
        if schedule.whole_prompts:
            notes.append("theory: prompts are split over steps, though the engine keeps them whole")
        if schedule.batch_wait_steps and schedule.batch_wait_fill:
            notes.append("theory: prompts are taken in at once, though the engine holds them back to batch them")
        if schedule.receive_interval_steps > 1:
            notes.append("theory: half the receive interval is added to the wait")
        if not schedule.reserve_outputs:
            notes.append("theory: KV cache holds inputs and half the outputs, and nothing is preempted")
        if config.speculation is not None:
            notes.append("theory: every step of a sequence gains the mean number of tokens")
        if config.costs.admission_s:
            notes.append("theory: requests that arrive together are taken in together")
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
    prompt_s = prompt_s + pool.config.costs.request_s
    gap_s = step_s(np.ones(1), np.zeros(1))[0] / _tokens_per_step(pool.config)
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
