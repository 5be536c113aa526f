"""One pool under a load: its queue behind its router and prefix cache, and its stability.

Turns a pool and a workload into the batch server that `planner.queueing` solves (`planner.serving.pool` says what its
mean steps hold) and names what the pool runs out of. Approximations made here:

- arrivals at the decode pool have the SCV of the arrivals at the prefill pool;
- a speculating engine's sequences take ceil((O - 1) / tokens per step) steps;
- what an engine adds before a request is looked at (`EngineCosts.request_s`, `lag_steps`, a receive interval) is added
  to the wait, the steps of it where sequences decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.core import FloatArray, InputError
from planner.engine import Batching, require_room
from planner.queueing import (
    QueueLatency,
    decode_pool,
    largest_decode_rate,
    largest_mixed_rate,
    largest_prefill_rate,
    mixed_pool,
    prefill_pool,
)
from planner.roofline import Bound
from planner.serving.pool import (
    PoolModel,
    last_piece_s,
    lengths_in_steps,
    own_encoder_s,
    pool_model,
    step_shapes,
    tokens_per_step,
)
from planner.serving.prefix_cache import CachedWorkload, behind_cache, has_prefixes
from planner.serving.router import routed_queue
from planner.serving.static_batching import largest_static_rate_per_s
from planner.serving.types import Deployment, Pool, PoolLimit, PoolPerformance, Role
from planner.workload import MAX_SCV, ArrivalProcess, LatencyDistribution, TokenLengths, Workload

DISPERSION_WINDOWS = 64
"""Windows at which the dispersion of recorded arrivals is looked at. A choice."""
LEAST_TTFT_SHARE = 0.2
"""A first token is not brought forward to less than this share of the earliest of all. A choice."""


@dataclass(frozen=True)
class PoolUnderLoad:
    """A pool, what it was offered, and the queueing model's answer.

    Attributes:
        model: the pool.
        queue: its latencies; in a prefill pool `queue.ttft` is the TTFT of the deployment.
        rate_per_s: requests that reach it [1/s].
        lengths: of these.
        workload: as the pool sees it: prompts without what its prefix cache holds.
        prefix_hits: share of the input tokens found in the prefix cache.
    """

    model: PoolModel
    queue: QueueLatency
    rate_per_s: float
    lengths: TokenLengths
    workload: Workload
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
        return min(offered, float(self.model.pool.config.step_tokens))

    def _limit(self) -> PoolLimit:
        config = self.model.pool.config
        if self.queue.limit == "running":
            if self.model.max_running < self.model.most_places:
                return PoolLimit.BATCHED_TOKENS
            kv_first = self.model.kv_running < config.max_running_requests
            return PoolLimit.KV_CAPACITY if kv_first else PoolLimit.RUNNING_REQUESTS
        room = max(1.0, config.step_tokens - self.queue.mean_running)
        return PoolLimit(self._bound(self.queue.mean_running, room).value)

    def _bound(self, running: float, prompt_tokens: float) -> Bound:
        shape = step_shapes(np.array(max(running, 1e-9)), np.array(prompt_tokens), self.model.costs)
        return self.model.pool.config.timer.step_time(shape).bound


def pool_under_load(pool: Pool, workload: Workload) -> PoolUnderLoad:
    """A pool under the requests that reach it.

    A decode pool gets those with more than one output token. What the prefix cache of another saves depends on the
    memory that running requests leave: it is solved with the hits of an idle pool, then once more with those at the
    number then running.

    Args:
        pool: the pool, continuously batching.
        workload: arrivals and lengths at the deployment.

    Returns:
        The pool's queue, with latencies in [s].

    Raises:
        InputError: a request does not fit, or none decodes in a decode pool.
    """
    if pool.role is Role.DECODE:
        return _decode_pool_under_load(pool, workload)
    idle = _idle_cache(pool, workload)
    loaded = _prompt_pool_under_load(pool, workload, idle)
    if idle is None:
        return loaded
    running = loaded.queue.mean_running if pool.role is Role.MIXED else 1.0
    cached = behind_cache(pool, workload, float(loaded.model.footprint.kv_capacity_tokens), running)
    return loaded if cached.hit_share == idle.hit_share else _prompt_pool_under_load(pool, workload, cached)


def _decode_pool_under_load(pool: Pool, workload: Workload) -> PoolUnderLoad:
    decoding, share = decoding_only(workload.lengths)
    model, rate = pool_model(pool, decoding), workload.rate_per_s * share
    queue = _queue(model, decoding, workload.open_arrivals.at_rate(rate))
    return PoolUnderLoad(model, _as_served(queue, model), rate, decoding, workload)


def _prompt_pool_under_load(pool: Pool, workload: Workload, cached: CachedWorkload | None) -> PoolUnderLoad:
    """A pool that serves prompts, behind its cache if it has one."""
    model, seen = _model_behind_cache(pool, workload, cached)
    queue = _queue(model, seen.lengths, seen.open_arrivals)
    if cached is None:
        queue = _with_own_attention(queue, model)
    hits = 0.0 if cached is None else cached.hit_share
    return PoolUnderLoad(model, _as_served(queue, model), seen.rate_per_s, seen.lengths, seen, hits)


def _model_behind_cache(pool: Pool, workload: Workload, cached: CachedWorkload | None) -> tuple[PoolModel, Workload]:
    """The pool and its requests, with or without a cache."""
    if cached is None:
        return pool_model(pool, workload.lengths), workload
    return pool_model(pool, cached.workload.lengths, cached.past, cached.shared_tokens), cached.workload


def _queue(model: PoolModel, lengths: TokenLengths, arrivals: ArrivalProcess) -> QueueLatency:
    """The queue of one replica behind the pool's router."""
    pool = model.pool
    steps = lengths if pool.role is Role.PREFILL else lengths_in_steps(lengths, tokens_per_step(pool.config))
    queue_of = {Role.MIXED: mixed_pool, Role.PREFILL: prefill_pool, Role.DECODE: decode_pool}[pool.role]

    def solve(offered: ArrivalProcess, replicas: int) -> QueueLatency:
        return queue_of(model.server, offered, steps, replicas)

    return _solved_for_any_arrivals(arrivals, model, lengths, lambda offered: routed_queue(solve, offered, steps, pool))


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
    beyond_s = np.array(_own_attention_s(_ByStepTimes(model), tuple(joint.prompts.tolist()), chunk))
    if model.pool.config.parallelism.pp > 1:
        beyond_s += last_piece_s(model, joint.prompts, queue.mean_running) * (1.0 - queue.utilisation)
    beyond_s += own_encoder_s(model.pool.config, model.lengths, joint.prompts)
    first_s = joint.first_s + beyond_s[:, None]
    joint = replace(joint, first_s=np.maximum(first_s, LEAST_TTFT_SHARE * joint.first_s.min()))
    e2e = queue.e2e if np.any(joint.gaps > 0.0) else joint.ttft
    return replace(queue, joint=joint, ttft=joint.ttft, e2e=e2e)


class _ByStepTimes:
    """A model compared by its configuration and costs, which its step times follow from."""

    def __init__(self, model: PoolModel) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByStepTimes):
            return False
        return self.model.pool.config is other.model.pool.config and self.model.costs == other.model.costs

    def __hash__(self) -> int:
        return hash((id(self.model.pool.config), self.model.costs))


@lru_cache(maxsize=1024)
def _own_attention_s(step_times: _ByStepTimes, prompts: tuple[float, ...], chunk: float) -> tuple[float, ...]:
    """Time [s] of each prompt's own attention beyond that of its tokens at the mean cost, in chunks of `chunk`."""
    model = step_times.model
    sizes = np.array(prompts)
    past = np.arange(np.ceil(sizes.max() / chunk)) * chunk
    tokens = np.clip(sizes[:, None] - past, 0.0, chunk)
    prompt, step = np.nonzero(tokens)
    each, before = tokens[prompt, step], past[step]
    mean = step_shapes(np.zeros_like(each), each, model.costs)
    pairs = each * before + each * (each + 1.0) / 2.0
    pieces = np.maximum(each / model.pool.config.max_batched_tokens, 1.0)
    cached = pieces * before + (pieces + 1.0) * each / 2.0
    own = replace(mean, chunk_pairs=pairs, chunk_context=cached, chunks=pieces)
    timer = model.pool.config.timer
    beyond_s = (timer.prompts_s(own) - timer.prompts_s(mean)) * model.pool.config.costs.prompt_stretch
    return tuple(np.bincount(prompt, beyond_s, sizes.size).tolist())


def _solved_for_any_arrivals(
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
    poisson = solve(ArrivalProcess(rate_per_s=arrivals.rate_per_s))
    if not poisson.stable:
        return poisson
    tokens, probabilities = lengths.outputs if model.pool.role is Role.DECODE else lengths.inputs, lengths.probabilities
    mean, load = float(tokens @ probabilities), poisson.utilisation
    scv = float((tokens / mean - 1.0) ** 2 @ probabilities)
    x = np.geomspace(1.0, arrivals.dispersion[-1][0], DISPERSION_WINDOWS)
    busy = np.full(x.size, load)
    if model.pool.role is Role.MIXED:
        quick = min(_prompt_load(model, lengths, arrivals.rate_per_s, poisson.mean_running), load)
        busy += (quick - load) * np.exp(-x / (arrivals.rate_per_s * poisson.e2e.mean_s))
    spread = np.array([arrivals.index_of_dispersion(window) for window in x]) + scv
    wait = float((np.sqrt(2.0 * busy * x * spread) - (1.0 - busy) * x).max())
    alike = min(max(2.0 * (1.0 - load) * wait / load - scv, arrivals.index_of_dispersion(1.0)), MAX_SCV)
    return solve(ArrivalProcess(rate_per_s=arrivals.rate_per_s, scv=alike, source=arrivals.source))


def _prompt_load(model: PoolModel, lengths: TokenLengths, rate_per_s: float, running: float) -> float:
    """Share of the time that full steps beside so many decodes need for the prompts that arrive."""
    chunk = max(model.server.max_batched_tokens - running, 1.0)
    step_s = float(model.server.step_s(np.array(running), np.array(chunk)))
    return rate_per_s / model.pool.replicas * lengths.mean_input * step_s / chunk


def _as_served(queue: QueueLatency, model: PoolModel) -> QueueLatency:
    """With what the engine adds before it looks at a request, and TPOT per token instead of per step.

    Steps are waited for only where sequences decode, with chance min(1, mean running). A prefill pool has a step
    prepared only while requests wait, and those wait for it anyway.
    """
    if not queue.stable:
        return queue
    pool = model.pool
    config = pool.config
    gain = tokens_per_step(config)
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
    ttft = LatencyDistribution.from_samples(later(queue.ttft.support_s), queue.ttft.weights)
    e2e = LatencyDistribution.from_samples(later(queue.e2e.support_s), queue.e2e.weights)
    return replace(queue, ttft=ttft, tpot=tpot, e2e=e2e, joint=joint)


def _decodes_passed_s(model: PoolModel, running: float) -> float:
    """Decode step [s] that prompts pass where they go before decodes instead of sharing their steps.

    `PoolModel.server` counts a step of prompts and the decode step after it as one; a first token comes between them.
    """
    return float(model.server.step_s(np.array(running), np.zeros(()))) if running > 0.0 else 0.0


def largest_stable_rate_per_s(deployment: Deployment, workload: Workload) -> float:
    """Rate [requests/s] above which the backlog of some pool grows without bound.

    Args:
        deployment: the pools.
        workload: mix of requests; its own rate does not matter.
    """
    return min(pool_limit_per_s(pool, workload) for pool in deployment.pools)


def pool_limit_per_s(pool: Pool, workload: Workload) -> float:
    """Rate [requests/s] above which the backlog of one pool grows without bound.

    Args:
        pool: the pool.
        workload: mix of requests at the deployment; its own rate does not matter.
    """
    if pool.config.schedule.batching is Batching.STATIC:
        return largest_static_rate_per_s(pool, workload.lengths)
    return pool.replicas * _replica_limit_per_s(pool, workload)


def _replica_limit_per_s(pool: Pool, workload: Workload) -> float:
    gain = tokens_per_step(pool.config)
    if pool.role is Role.DECODE:
        lengths, share = decoding_only(workload.lengths)
        server = pool_model(pool, lengths).server
        return largest_decode_rate(server, lengths_in_steps(lengths, gain)) / share
    largest_rate = largest_prefill_rate if pool.role is Role.PREFILL else largest_mixed_rate
    model, seen = _model_behind_cache(pool, workload, _idle_cache(pool, workload))
    return largest_rate(model.server, lengths_in_steps(seen.lengths, gain))


def _idle_cache(pool: Pool, workload: Workload) -> CachedWorkload | None:
    """What the pool's prefix cache saves where no running request takes memory from it: most that it can."""
    if not has_prefixes(pool, workload):
        return None
    capacity = float(require_room(pool.config, workload.lengths.max_total).kv_capacity_tokens)
    return behind_cache(pool, workload, capacity, 0.0)


def decoding_only(lengths: TokenLengths) -> tuple[TokenLengths, float]:
    """The requests with more than one output token: what reaches a decode pool.

    Args:
        lengths: of all requests.

    Returns:
        Their lengths [tokens] and their share of all requests.

    Raises:
        InputError: there are none.
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


def prompt_time_share(pool: Pool, workload: Workload) -> float:
    """Share of a pool's step time that prompts add; splits its cost between input and output tokens.

    A step with p prompt tokens takes tau(n, p), of which tau(n, 0) would pass without them. Prompts come in bunches, so
    a token's share is taken where prompts are: (tau(n, p') - tau(n, 0)) / p' with p' = min(E[I^2] / E[I], C), the size
    of the prompt a random prompt token belongs to. Times the mean prompt tokens per step, over the whole step.

    Args:
        pool: the pool.
        workload: arrivals and lengths at the deployment.

    Returns:
        Share in [0, 1]: 1 for a prefill pool, 0 for a decode pool.
    """
    if pool.role is not Role.MIXED:
        return float(pool.role is Role.PREFILL)
    loaded, lengths = pool_under_load(pool, workload), workload.lengths
    size_biased = float(lengths.inputs**2 @ lengths.probabilities) / lengths.mean_input
    bunch = min(size_biased, max(1.0, pool.config.step_tokens - loaded.queue.mean_running))
    running = np.full(2, max(loaded.queue.mean_running, 1e-9))
    with_prompt, without = loaded.model.server.step_s(running, np.array([bunch, 0.0]))
    added = (with_prompt - without) / bunch * loaded.prompt_tokens_per_step()
    return float(added / (added + without))
