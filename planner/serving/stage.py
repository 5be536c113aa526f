"""One pool under a load: its queue behind its router, its stability, and what it takes when nobody else is there.

Turns a pool and a workload into the batch server that `planner.queueing` solves (`planner.serving.pool` says what its
mean steps hold) and names what the pool runs out of. Approximations made here:

- arrivals at the decode pool have the SCV of the arrivals at the prefill pool;
- a speculating engine's sequences take ceil((O - 1) / tokens per step) steps;
- what an engine adds before a request is looked at (`EngineCosts.request_s`, `lag_steps`, a receive interval) is added
  to the wait, the steps of it where sequences decode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.core import InputError, Metric
from planner.engine import Batching, ReplicaConfig, require_room, step_timer
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
from planner.roofline import Bound
from planner.serving.pool import FloatArray, PoolModel, pool_model, step_shapes
from planner.serving.prefix_cache import Cached, has_prefixes, with_cache
from planner.serving.router import routed_queue
from planner.serving.static_batching import largest_static_rate_per_s
from planner.serving.types import Deployment, Pool, PoolLimit, PoolPerformance, Role
from planner.workload import MAX_SCV, ArrivalProcess, LatencyDistribution, TokenLengths, Workload

WINDOWS = 64
"""Windows at which the dispersion of recorded arrivals is looked at."""
LEAST_OWN = 0.2
"""A first token is not brought forward to less than this share of the earliest of all."""
_LOADS = 64
"""Points on the range of loads where the fluid bound is looked up."""


@dataclass(frozen=True)
class Stage:
    """A pool, what it was offered, and the queueing model's answer."""

    model: PoolModel
    queue: QueueLatency
    rate_per_s: float
    lengths: TokenLengths
    workload: Workload
    """As the pool sees it: prompts without what its prefix cache holds."""
    prefix_hits: float = 0.0

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
            prefix_hits=self.prefix_hits,
            kv_waste=model.kv_waste,
            kv_occupancy=min(1.0, running * model.held_tokens / model.footprint.kv_capacity_tokens),
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


def mixed_stage(pool: Pool, workload: Workload) -> Stage:
    """A mixed pool under the whole workload."""
    return _behind_cache(pool, workload)


def prefill_stage(pool: Pool, workload: Workload) -> Stage:
    """A prefill pool under the workload's prompts; its `queue.ttft` is the TTFT of the deployment."""
    return _behind_cache(pool, workload)


def decode_stage(pool: Pool, workload: Workload) -> Stage:
    """A decode pool under the requests that have more than one output token."""
    decoding, share = decoding_only(workload.lengths)
    model, rate = pool_model(pool, decoding), workload.rate_per_s * share
    queue = _queue(model, decoding, workload.open_arrivals.at_rate(rate))
    return Stage(model, _as_served(queue, model), rate, decoding, workload)


def _behind_cache(pool: Pool, workload: Workload) -> Stage:
    """The stage with what the prefix cache saves, which depends on the memory that running requests leave.

    Solved with the hits of an idle pool, then once more with those at the number then running.
    """
    first = _idle_cache(pool, workload)
    found = _prompt_stage(pool, workload, first)
    if first is None:
        return found
    running = found.queue.mean_running if pool.role is Role.MIXED else 1.0
    second = with_cache(pool, workload, float(found.model.footprint.kv_capacity_tokens), running)
    return found if second.hit_share == first.hit_share else _prompt_stage(pool, workload, second)


def _prompt_stage(pool: Pool, workload: Workload, cached: Cached | None) -> Stage:
    """A pool that serves prompts, behind its cache if it has one."""
    model, seen, hits = _model(pool, workload, cached)
    queue = _queue(model, seen.lengths, seen.open_arrivals)
    if cached is None:
        queue = _with_own_attention(queue, model)
    return Stage(model, _as_served(queue, model), seen.rate_per_s, seen.lengths, seen, hits)


def _model(pool: Pool, workload: Workload, cached: Cached | None) -> tuple[PoolModel, Workload, float]:
    """The pool, its requests, and the share of tokens found, with or without a cache."""
    if cached is None:
        return pool_model(pool, workload.lengths), workload, 0.0
    seen = cached.workload
    return pool_model(pool, seen.lengths, cached.past, cached.shared_tokens), seen, cached.hit_share


def _queue(model: PoolModel, lengths: TokenLengths, arrivals: ArrivalProcess) -> QueueLatency:
    """The queue of one replica behind the pool's router."""
    pool = model.pool
    steps = lengths if pool.role is Role.PREFILL else _in_steps(pool.config, lengths)
    queue_of = {Role.MIXED: mixed_pool, Role.PREFILL: prefill_pool, Role.DECODE: decode_pool}[pool.role]

    def solve(offered: ArrivalProcess, replicas: int) -> QueueLatency:
        return queue_of(model.server, offered, steps, replicas)

    return _under(arrivals, model, lengths, lambda offered: routed_queue(solve, offered, steps, pool))


def _with_own_attention(queue: QueueLatency, model: PoolModel) -> QueueLatency:
    """The queue with what each prompt's own attention takes beyond that of its tokens at the mean cost.

    `PoolModel.server` charges every prompt token the mean pairs of query and key; a prompt of L tokens in chunks of c
    has sum over chunks of p (j c) + p (p + 1) / 2 of them: short prompts less, long ones more. Others' prompts stay at
    the mean, which is right on average.
    """
    joint = queue.joint
    if not queue.stable or joint is None:
        return queue
    chunk = max(model.server.max_batched_tokens - queue.mean_running, 1.0)
    beyond_s = np.array(_own_attention_s(_Model(model), tuple(joint.prompts.tolist()), chunk))
    first_s = joint.first_s + beyond_s[:, None]
    joint = replace(joint, first_s=np.maximum(first_s, LEAST_OWN * joint.first_s.min()))
    e2e = queue.e2e if np.any(joint.gaps > 0.0) else joint.ttft
    return replace(queue, joint=joint, ttft=joint.ttft, e2e=e2e)


class _Model:
    """A model compared by its configuration and costs, which its step times follow from."""

    def __init__(self, model: PoolModel) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Model):
            return False
        mine, its = self.model, other.model
        return mine.pool.config is its.pool.config and mine.costs == its.costs

    def __hash__(self) -> int:
        return hash((id(self.model.pool.config), self.model.costs))


@lru_cache(maxsize=1024)
def _own_attention_s(of: _Model, prompts: tuple[float, ...], chunk: float) -> tuple[float, ...]:
    """Time [s] of each prompt's own attention beyond that of its tokens at the mean cost, in chunks of `chunk`."""
    model = of.model
    sizes = np.array(prompts)
    past = np.arange(np.ceil(sizes.max() / chunk)) * chunk
    tokens = np.clip(sizes[:, None] - past, 0.0, chunk)
    prompt, step = np.nonzero(tokens)
    each, before = tokens[prompt, step], past[step]
    mean = step_shapes(np.zeros_like(each), each, model.costs)
    pairs = each * before + each * (each + 1.0) / 2.0
    own = replace(mean, chunk_pairs=pairs, chunk_context=before + each, chunks=np.ones_like(each))
    timer = step_timer(model.pool.config)
    beyond_s = (timer.prompts_s(own) - timer.prompts_s(mean)) * model.pool.config.costs.prompt_stretch
    return tuple(np.bincount(prompt, beyond_s, sizes.size).tolist())


def _under(
    arrivals: ArrivalProcess,
    model: PoolModel,
    lengths: TokenLengths,
    solve: Callable[[ArrivalProcess], QueueLatency],
) -> QueueLatency:
    """The queue under arrivals of any kind, as that of the renewal process that waits as long.

    Robust queueing (Whitt and You, Operations Research 66(1), 2018): with I(x) the index of dispersion over x arrivals
    and c^2 the SCV of the work, the wait is the supremum over x of sqrt(2 rho x (I(x) + c^2)) - (1 - rho) x, in
    services. Where I is the same for all x that is rho (I + c^2) / (2 (1 - rho)), which gives the renewal process its
    SCV. In a mixed pool rho(x) grows from the load of the prompts alone to that of the pool as x outlasts the time that
    decodes take to follow (ours).
    """
    if not arrivals.dispersion:
        return solve(arrivals if arrivals.is_renewal else arrivals.as_renewal(1.0))
    plain = solve(ArrivalProcess(rate_per_s=arrivals.rate_per_s))
    if not plain.stable:
        return plain
    tokens, chances = lengths.outputs if model.pool.role is Role.DECODE else lengths.inputs, lengths.probabilities
    mean, load = float(tokens @ chances), plain.utilisation
    scv = float((tokens / mean - 1.0) ** 2 @ chances)
    x = np.geomspace(1.0, arrivals.dispersion[-1][0], WINDOWS)
    busy = np.full(x.size, load)
    if model.pool.role is Role.MIXED:
        quick = min(_prompt_load(model, lengths, arrivals.rate_per_s, plain.mean_running), load)
        busy += (quick - load) * np.exp(-x / (arrivals.rate_per_s * plain.e2e.mean_s))
    spread = np.array([arrivals.index_of_dispersion(window) for window in x]) + scv
    wait = float((np.sqrt(2.0 * busy * x * spread) - (1.0 - busy) * x).max())
    alike = min(max(2.0 * (1.0 - load) * wait / load - scv, arrivals.index_of_dispersion(1.0)), MAX_SCV)
    return solve(ArrivalProcess(rate_per_s=arrivals.rate_per_s, scv=alike, source=arrivals.source))


def _prompt_load(model: PoolModel, lengths: TokenLengths, rate_per_s: float, running: float) -> float:
    """Share of the time that full steps beside so many decodes need for the prompts that arrive."""
    chunk = max(model.server.max_batched_tokens - running, 1.0)
    step_s = float(model.server.step_s(np.array(running), np.array(chunk)))
    return rate_per_s / model.pool.replicas * lengths.mean_input * step_s / chunk


def _tokens_per_step(config: ReplicaConfig) -> float:
    return config.speculation.tokens_per_step if config.speculation else 1.0


def _in_steps(config: ReplicaConfig, lengths: TokenLengths) -> TokenLengths:
    """Lengths with decode steps in place of output tokens: 1 + ceil((O - 1) / tokens per step)."""
    if config.speculation is None:
        return lengths
    steps = 1.0 + np.ceil((lengths.outputs - 1.0) / _tokens_per_step(config) - 1e-9)
    return TokenLengths.from_pairs(lengths.inputs, steps, lengths.probabilities, lengths.source)


def _as_served(queue: QueueLatency, model: PoolModel) -> QueueLatency:
    """With what the engine adds before it looks at a request, and TPOT per token instead of per step.

    Steps are waited for only where sequences decode, with chance min(1, mean running). A prefill pool has a step
    prepared only while requests wait, and those wait for it anyway.
    """
    if not queue.stable:
        return queue
    pool = model.pool
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
    if pool.role is Role.MIXED and not config.schedule.mixed_steps:
        late_s -= _decodes_passed_s(model, queue.mean_running)

    alone_s = 0.0 if pool.role is Role.DECODE else float(model.server.step_s(np.zeros(()), np.ones(())))

    def later(times_s: FloatArray) -> FloatArray:
        return np.maximum(times_s + late_s, alone_s)

    joint = queue.joint
    if joint is not None:
        first_s, token_s, gaps = later(joint.first_s), joint.token_s / gain, joint.gaps * gain
        joint = replace(joint, first_s=first_s, token_s=token_s, gaps=gaps)
    if late_s == 0.0:
        return replace(queue, tpot=tpot, joint=joint)
    ttft, e2e = (LatencyDistribution.from_samples(later(one.support_s), one.weights) for one in (queue.ttft, queue.e2e))
    return replace(queue, ttft=ttft, tpot=tpot, e2e=e2e, joint=joint)


def _decodes_passed_s(model: PoolModel, running: float) -> float:
    """Decode step [s] that prompts pass where they go before decodes instead of sharing their steps.

    `PoolModel.server` counts a step of prompts and the decode step after it as one; a first token comes between them.
    """
    return float(model.server.step_s(np.array(running), np.zeros(()))) if running > 0.0 else 0.0


def fluid_rate_per_s(pool: Pool, workload: Workload, max_step_s: float = math.inf) -> float:
    """Upper bound on what one replica can carry [requests/s] with a mean step of at most `max_step_s` [s].

    In steady state n sequences run and each step carries n I / (O - 1) prompt tokens, so the rate is
    n / ((O - 1) tau(n, n I / (O - 1))), as far as the token budget and the running limit allow (I, O means). Real steps
    alternate between few and many prompt tokens; tau is convex in them, so their mean is longer (Jensen): the bound is
    optimistic; `largest_stable_rate_per_s` is the limit of stability. Returns 0 when even one sequence is too slow.
    """
    share = 1.0
    if pool.role is Role.DECODE:
        lengths, share = decoding_only(workload.lengths)
        model = pool_model(pool, lengths)
    else:
        model, seen, _ = _model(pool, workload, _idle_cache(pool, workload))
        lengths = seen.lengths
    server, lengths = model.server, _in_steps(pool.config, lengths)
    running, prompts, per_step = _steady_states(pool.role, server, lengths)
    steps = server.step_s(running, prompts)
    rates = np.where(steps <= max_step_s, per_step / steps, 0.0)
    return float(rates.max()) / share


def largest_stable_rate_per_s(deployment: Deployment, workload: Workload) -> float:
    """Rate [requests/s] above which the backlog of some pool grows without bound."""
    return min(pool_limit_per_s(pool, workload) for pool in deployment.pools)


def pool_limit_per_s(pool: Pool, workload: Workload) -> float:
    """Rate [requests/s] above which the backlog of one pool grows without bound."""
    if pool.config.schedule.batching is Batching.STATIC:
        return largest_static_rate_per_s(pool, workload.lengths)
    return pool.replicas * _replica_limit_per_s(pool, workload)


def _replica_limit_per_s(pool: Pool, workload: Workload) -> float:
    if pool.role is Role.DECODE:
        lengths, share = decoding_only(workload.lengths)
        server = pool_model(pool, lengths).server
        return largest_decode_rate(server, _in_steps(pool.config, lengths)) / share
    limit = largest_prefill_rate if pool.role is Role.PREFILL else largest_mixed_rate
    model, seen, _ = _model(pool, workload, _idle_cache(pool, workload))
    return limit(model.server, _in_steps(pool.config, seen.lengths))


def _idle_cache(pool: Pool, workload: Workload) -> Cached | None:
    """What the pool's prefix cache saves where no running request takes memory from it: most that it can."""
    if not has_prefixes(pool, workload):
        return None
    capacity = float(require_room(pool.config, workload.lengths.max_total).kv_capacity_tokens)
    return with_cache(pool, workload, capacity, 0.0)


def _steady_states(role: Role, server: BatchServer, lengths: TokenLengths) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Running sequences, prompt tokens and finished requests per step over the range of loads, each shape (64,)."""
    gaps = lengths.mean_output - 1.0
    ratio = 0.0 if role is Role.DECODE else lengths.mean_input / gaps if gaps > 0.0 else math.inf
    if role is Role.PREFILL or not math.isfinite(ratio):
        prompts = np.geomspace(1.0, server.max_batched_tokens, _LOADS)
        return np.zeros(_LOADS), prompts, prompts / lengths.mean_input
    most = min(server.max_running, server.max_batched_tokens / (1.0 + ratio))
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


def idle_latencies(pool: Pool, workload: Workload) -> dict[Metric, LatencyDistribution]:
    """Latencies of requests that meet nobody: what no fleet of this configuration can beat.

    TTFT is the request's own chunks (nothing for a DECODE pool), TPOT one decode step at the mean context (nothing for
    a PREFILL pool).
    """
    lengths = workload.lengths
    model = pool_model(pool, lengths)
    budget, step_s = model.server.max_batched_tokens, model.server.step_s
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
