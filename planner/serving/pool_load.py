"""One pool under a load: its queue behind its router and prefix cache, and its stability.

Turns a pool and a workload into the batch server that `planner.queueing` solves (`planner.serving.pool` says what its
mean steps hold) and names what the pool runs out of. Approximations made here:

- arrivals at the decode pool have the SCV of the arrivals at the prefill pool;
- a speculating engine's sequences take ceil((O - 1) / tokens per step) steps;
- what an engine adds before a request is looked at (`EngineCosts.request_s`, a receive interval, `lag_steps` beyond the
  one that the queue of a mixed pool has) is added to the wait, the steps of it where sequences decode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

import numpy as np
from scipy.special import pdtrc

from planner.core import FloatArray, InputError, Keyed, rebuilt, root_between
from planner.engine import StepTimeShift, require_room
from planner.queueing import (
    QueueLatency,
    largest_decode_rate,
    largest_mixed_rate,
    largest_prefill_rate,
    settling_steps,
)
from planner.roofline import Bound
from planner.serving.drift import (
    NODE_LOADS,
    MixedWindows,
    SteadyQueues,
    length_mixes,
    queue_between,
    queue_under_drift,
    scaled_workload,
)
from planner.serving.encoder_pool import behind_encoders, encoder_limit_per_s
from planner.serving.full_memory import FullMemory, full_memory, with_preemptions
from planner.serving.pool import (
    PoolModel,
    lengths_in_steps,
    pool_model,
    step_shapes,
    tokens_per_step,
)
from planner.serving.pool_queue import as_served, prompts_share, replica_queue
from planner.serving.prefix_cache import CachedWorkload, PoolLoads, behind_cache, has_prefixes
from planner.serving.prompt_work import with_own_prompt, work_lengths
from planner.serving.session_cache import busy_factor, reused_share
from planner.serving.types import Deployment, Pool, PoolLimit, PoolPerformance, Role
from planner.workload import (
    RateDrift,
    TokenLengths,
    Workload,
)

MOST_PASSES, HITS_TOLERANCE = 6, 0.05
"""Times that a pool with sessions is solved for its hits at most, and the relative change of misses that ends it. A
choice."""
LIMIT_TOLERANCE = 1e-3
"""Relative tolerance of the largest stable rate of sessions. A choice."""
RESIDUAL_GAPS = 8.0
"""Window [mean gaps] whose index of dispersion stands for the burstiness left beside a drift. A choice: a drift has
what longer windows see, and shorter ones see the ticks of a clock."""
FOLLOWED_S, LIFETIMES_FOLLOWED = 60.0, 2.0
"""Time over which the rate is averaged, at least, where a pool must have followed it for certain: in seconds, and in
mean times of a request in the pool. A choice."""
SHORTER = 0.9
"""Factor on lengths by which it is seen what they cost. A choice: near 1, and beyond what rounding to tokens does."""
STEADY_NODES = np.concatenate([NODE_LOADS[:2], NODE_LOADS[2::2]])
"""Loads between which steady pools are interpolated: those of a drift, and one more where they are far apart."""
SETTLING_TIMES, NEAREST_TO_LIMIT = 20.0, 0.98
"""Settling times in a run whose second half shows whether waits grow: twenty leave e^-10 of the empty start by half of
it. They grow without bound, so that from this utilisation on no longer run is asked for. A choice."""
RATIO_STEP = 0.4
"""Steps of the logarithm of the ratio of shifts between which pools are interpolated. A choice: resolution."""
MOST_POOLS = 512
"""Pools whose steady queues and largest stable rates are kept for other rates. Affects speed and memory only."""


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
        loads: from KV tiers; None without any.
        work: its requests, prompts as the queue has them.
    """

    model: PoolModel
    queue: QueueLatency
    rate_per_s: float
    lengths: TokenLengths
    workload: Workload
    work: Callable[[], TokenLengths]
    prefix_hits: float = 0.0
    loads: PoolLoads | None = None

    @cached_property
    def memory(self) -> FullMemory | None:
        """What full KV memory costs; None where it is never full."""
        return full_memory(self.model, self.work())

    def performance(self) -> PoolPerformance:
        """The pool's own figures at its operating point."""
        model, queue, pool = self.model, self.queue, self.model.pool
        running = queue.mean_running
        figures = PoolPerformance(
            role=pool.role,
            utilisation=queue.utilisation,
            limit=self._limit(),
            bound=self._bound(running, self.prompt_tokens_per_step()),
            mean_running=running,
            mean_step_s=queue.mean_step_s,
            prefix_hits=self.prefix_hits,
            kv_waste=model.kv_waste,
            kv_occupancy=min(1.0, running * model.held_tokens / model.footprint.kv_capacity_tokens),
            tier_hits=() if self.loads is None else tuple(self.loads.tier_hits.tolist()),
            tier_link=0.0 if self.loads is None else self.loads.wait(self.rate_per_s).utilisation,
            encoders_busy=min(1.0, self.rate_per_s / encoder_limit_per_s(pool.config, pool.replicas, self.lengths)),
        )
        return with_preemptions(figures, model, self.memory, self.rate_per_s / pool.replicas)

    @property
    def preempted(self) -> float:
        """Mean preemptions of a request where KV memory is full."""
        return 0.0 if self.memory is None else self.memory.preempted(self.rate_per_s / self.model.pool.replicas)

    @property
    def prompt_load(self) -> float:
        """Load of a stable pool's prompts alone, beside the requests that decode meanwhile; at most the utilisation."""
        if self.model.pool.role is not Role.MIXED:
            return self.queue.utilisation
        share = prompts_share(self.model, self.lengths, self.rate_per_s, self.queue.mean_running)
        return min(share, self.queue.utilisation)

    @property
    def slots_full(self) -> float:
        """Chance that all places for running requests of a stable replica are taken, their number being Poisson."""
        return float(pdtrc(math.floor(self.model.max_running) - 1, self.queue.mean_running))

    def prompt_tokens_per_step(self) -> float:
        """Mean prompt tokens in a busy step."""
        if self.model.pool.role is Role.DECODE:
            return 0.0
        per_replica = self.rate_per_s / self.model.pool.replicas
        offered = per_replica * self.lengths.mean_input * self.queue.mean_step_s
        return min(offered, float(self.model.pool.config.step_tokens))

    def _limit(self) -> PoolLimit:
        config = self.model.pool.config
        sent_per_s = self.model.server.sent_per_s(1.0 + (self.lengths.mean_output - 1.0) / tokens_per_step(config))
        if self.rate_per_s / self.model.pool.replicas > NEAREST_TO_LIMIT * self.queue.utilisation * sent_per_s:
            return PoolLimit.OVERHEAD
        if self.queue.limit == "running":
            if self.model.max_running < self.model.most_places:
                return PoolLimit.BATCHED_TOKENS
            kv_first = self.model.kv_running < config.max_running_requests
            return PoolLimit.KV_CAPACITY if kv_first else PoolLimit.RUNNING_REQUESTS
        room = max(1.0, config.step_tokens - self.queue.mean_running)
        return PoolLimit(self._bound(self.queue.mean_running, room).value)

    def _bound(self, running: float, prompt_tokens: float) -> Bound:
        shape = step_shapes(np.array(max(running, 1e-9)), np.array(prompt_tokens), self.model.costs)
        return self.model.pool.config.timer.bound(shape)


def pool_under_load(pool: Pool, workload: Workload, *, between_shifts: bool = False) -> PoolUnderLoad:
    """A pool under the requests that reach it.

    A decode pool gets those with more than one output token. What the prefix cache of another saves depends on the
    memory that running requests leave: it is solved with the hits of an idle pool, then once more with those at the
    number then running; with sessions, or hits of a recording, until the two agree. With sessions a pool is stable when
    it also is while as many are under way as in one hour of a hundred (`session_cache.busy_factor`): once contexts are
    dropped their prompts are computed anew, which takes the memory of others, and caches do not recover.

    Args:
        pool: the pool, continuously batching.
        workload: arrivals and lengths at the deployment.
        between_shifts: of a rate that varies, queues are read off those of neighbouring shifts of step times.

    Returns:
        The pool's queue, with latencies in [s].

    Raises:
        InputError: a request does not fit, or none decodes in a decode pool.
    """
    if workload.open_arrivals.drift is not None:
        return _steady_pools(pool, workload).under_drift(workload, between_shifts)
    if pool.role is Role.DECODE:
        return _decode_pool_under_load(pool, workload)
    loaded = _behind_own_cache(pool, workload)
    sessions = pool.config.schedule.prefix_cache and any(kind.sessions is not None for kind in workload.classes)
    if not loaded.queue.stable or not sessions:
        return loaded
    rate_per_s = workload.rate_per_s * busy_factor(workload, loaded.queue.e2e.mean_s)
    busy = _behind_own_cache(pool, workload.at_rate(rate_per_s))
    return loaded if busy.queue.stable else replace(loaded, queue=busy.queue)


def _behind_own_cache(pool: Pool, workload: Workload) -> PoolUnderLoad:
    """A pool whose prefix cache has what running requests leave, whose number depends on what is found there."""
    talking = _hits_fall_with_rate(workload)
    cached = behind_cache(pool, workload)
    loaded = _prompt_pool_under_load(pool, workload, cached)
    for _ in range(MOST_PASSES if talking else 1):
        running = loaded.queue.mean_running if pool.role is Role.MIXED else 1.0
        now = behind_cache(pool, workload, running)
        near = HITS_TOLERANCE * (1.0 - now.hit_share) if talking else 0.0
        if abs(now.hit_share - cached.hit_share) <= near and now.loads is None:
            break
        cached, loaded = now, _prompt_pool_under_load(pool, workload, now)
        if not loaded.queue.stable:
            break
    return loaded


def _hits_fall_with_rate(workload: Workload) -> bool:
    """True if what is found depends on how much is cached between two uses."""
    return any(kind.sessions is not None or kind.prefix_reuse is not None for kind in workload.classes)


@dataclass(eq=False)
class _SteadyPools:
    """A pool at steady rates, evaluated as they are asked for.

    Attributes:
        pool: the pool.
        workload: its requests; the rate does not matter.
        known: by rate [1/s].
    """

    pool: Pool
    workload: Workload
    known: dict[float, PoolUnderLoad] = field(default_factory=dict)

    @cached_property
    def limit_per_s(self) -> float:
        """Largest stable rate [1/s]."""
        return pool_limit_per_s(self.pool, self.workload)

    @cached_property
    def growth(self) -> tuple[float, float]:
        """Relative growth of the work of a request over that of its input and of its output: what a largest rate loses.

        With a step that takes a + b per prompt token + c per decode the largest stable rate is that at which b times
        the prompt tokens per second and c times the output tokens per second add up to 1, whatever a is.
        """
        by_inputs, by_outputs = (
            (1.0 - self.limit_per_s / pool_limit_per_s(self.pool, scaled_workload(self.workload, *factors)))
            / (1.0 - SHORTER)
            for factors in ((SHORTER, 1.0), (1.0, SHORTER))
        )
        return max(by_inputs, 0.0), max(by_outputs, 0.0)

    def at(self, rate_per_s: float) -> PoolUnderLoad:
        """The pool at a rate [1/s]."""
        if rate_per_s not in self.known:
            self.known[rate_per_s] = pool_under_load(self.pool, self.workload.at_rate(rate_per_s))
        return self.known[rate_per_s]

    @cached_property
    def queues(self) -> SteadyQueues:
        """The queue of the pool by load, and curves through those solved."""
        return SteadyQueues(lambda load: self.at(load * self.limit_per_s).queue, self.limit_per_s)

    @cached_property
    def neighbours(self) -> dict[_SteadyPools, float]:
        """Pools with decodes as estimated and prompts shifted by whole `RATIO_STEP`s, with their parts; or none.

        Where all that a step consists of is shifted, prompts by p and decodes by d, it takes d times as long as one
        with prompts shifted by p / d alone, and so does all at the same load but what a request waits for before the
        scheduler sees it. Of the ratio latencies are smooth: a parabola of logarithms through the three nearest.
        """
        pool, shift = self.pool, self.pool.config.shift
        if shift is None or has_prefixes(pool, self.workload):
            return {}
        estimated = _steady_pools(rebuilt(pool, config=rebuilt(pool.config, shift=None)), self.workload)
        if pool_model(estimated.pool, self.workload.lengths).extras is not None:
            return {}
        place = 0.0 if pool.role is Role.DECODE else math.log(shift.prompt / shift.decode) / RATIO_STEP
        nearest = round(place)
        past = place - nearest
        weights = {
            nearest - 1: past * (past - 1.0) / 2.0,
            nearest: 1.0 - past**2,
            nearest + 1: past * (past + 1.0) / 2.0,
        }
        return {_shifted(estimated, step): weight for step, weight in weights.items() if weight}

    @cached_property
    def between_shifts(self) -> SteadyQueues:
        """The queue of the pool by load, between those of its neighbours."""
        pools, weights = list(self.neighbours), list(self.neighbours.values())
        config, shift = self.pool.config, self.pool.config.shift
        if not pools or shift is None:
            return self.queues
        later_s = 0.0 if self.pool.role is Role.DECODE else config.costs.request_s
        log_limit = sum(weight * math.log(own.limit_per_s) for weight, own in zip(weights, pools, strict=True))

        def solve(load: float) -> QueueLatency:
            queues = [own.at(load * own.limit_per_s).queue for own in pools]
            return queue_between(queues, weights, shift.decode, later_s)

        return SteadyQueues(solve, math.exp(log_limit) / shift.decode)

    @cached_property
    def growth_between_shifts(self) -> tuple[float, float]:
        """`growth`, between those of its neighbours."""
        parts = self.neighbours or {self: 1.0}
        by_inputs, by_outputs = np.array([own.growth for own in parts]).T @ list(parts.values())
        return float(by_inputs), float(by_outputs)

    def mixes(self, workload: Workload, growth: tuple[float, float], between_shifts: bool) -> tuple[MixedWindows, ...]:
        """The pool before the requests of windows in which they are alike; none where they are in all."""
        by_inputs, by_outputs = growth
        parts = []
        for mix, steady in length_mixes(workload, self.pool.role):
            pools = _steady_pools(self.pool, steady)
            work = 1.0 + by_inputs * (mix.inputs - 1.0) + by_outputs * (mix.outputs - 1.0)
            parts.append(MixedWindows(pools.between_shifts if between_shifts else pools.queues, mix.windows, work))
        return tuple(parts)

    def under_drift(self, workload: Workload, between_shifts: bool) -> PoolUnderLoad:
        """The pool under a workload whose rate varies; hits of its caches are those of the node nearest to the mean."""
        arrivals = workload.open_arrivals
        rate_per_s, drift = arrivals.rate_per_s, arrivals.drift
        assert drift is not None
        growth, mixes = (0.0, 1.0), tuple[MixedWindows, ...]()
        if drift.input_factors:
            growth = self.growth_between_shifts if between_shifts else self.growth
            mixes = self.mixes(workload, growth, between_shifts)
        queues = self.between_shifts if between_shifts else self.queues
        queue = queue_under_drift(queues, rate_per_s, drift, growth, mixes)
        nearest = rate_per_s
        if queue is not None:
            nodes = STEADY_NODES * queues.limit_per_s
            nearest = float(nodes[np.argmin(np.abs(nodes - rate_per_s))])
        if queue is None or has_prefixes(self.pool, self.workload):
            node = self.at(nearest)
        elif self.pool.role is Role.DECODE:  # all but its queue
            node = _decode_pool_under_load(self.pool, self.workload.at_rate(nearest), queue)
        else:
            steady = self.workload.at_rate(nearest)
            node = _prompt_pool_under_load(self.pool, steady, CachedWorkload(steady), queue)
        return replace(
            node,
            queue=node.queue if queue is None else queue,
            rate_per_s=node.rate_per_s * (rate_per_s / nearest),
            workload=Workload(arrivals=arrivals, classes=node.workload.classes),
        )


@lru_cache(maxsize=MOST_POOLS)
def _shifted(pools: _SteadyPools, steps: int) -> _SteadyPools:
    """A pool with prompts shifted by so many `RATIO_STEP`s, and nothing that a request waits for before."""
    pool, config = pools.pool, pools.pool.config
    own = StepTimeShift(prompt=math.exp(steps * RATIO_STEP), request_s=-config.costs.request_s)
    return _steady_pools(rebuilt(pool, config=rebuilt(config, shift=own)), pools.workload)


def with_known_hits(deployment: Deployment, workload: Workload) -> Workload:
    """The requests with the hits that theory expects of a recording's curve as `prefix_hit_rate`: what is simulated.

    Args:
        deployment: whose first pool serves prompts.
        workload: some of whose classes may have `prefix_reuse`.

    Returns:
        The same where none has.

    Raises:
        InputError: a request does not fit.
    """
    if all(kind.prefix_reuse is None for kind in workload.classes):
        return workload
    pool, hit_rates = deployment.pools[0], [0.0] * len(workload.classes)
    if pool.config.schedule.prefix_cache:
        steady = Workload(arrivals=workload.open_arrivals.steady, classes=workload.classes)
        capacity = float(require_room(pool.config, workload.lengths.max_total).kv_capacity_tokens)
        queue = pool_under_load(pool, steady).queue
        running = queue.mean_running if pool.role is Role.MIXED else 1.0
        hit_rates = [
            0.0 if kind.prefix_reuse is None else reused_share(pool, kind, steady, capacity, running)
            for kind in workload.classes
        ]
    classes = tuple(
        kind if kind.prefix_reuse is None else kind.model_copy(update={"prefix_reuse": None, "prefix_hit_rate": rate})
        for kind, rate in zip(workload.classes, hit_rates, strict=True)
    )
    return Workload(arrivals=workload.arrivals, classes=classes)


def steady_pools_around(pool: Pool, workload: Workload) -> tuple[PoolUnderLoad, PoolUnderLoad] | None:
    """The pool at the two loads next to a steady rate at which its queue is evaluated for any drift.

    What a search asks of neighbouring rates, of other targets and of a drift is then one evaluation.

    Args:
        pool: the pool.
        workload: at a steady rate.

    Returns:
        At the node below (or at) the rate and at the one above it; None for a rate beyond the last node.

    Raises:
        InputError: a request does not fit.
    """
    pools = _steady_pools(pool, workload)
    nodes = STEADY_NODES * pools.limit_per_s
    above = max(int(np.searchsorted(nodes, workload.rate_per_s)), 1)
    if above == nodes.size:
        return None
    return pools.at(float(nodes[above - 1])), pools.at(float(nodes[above]))


def busy_windows(pool: Pool, workload: Workload, share: float) -> tuple[PoolUnderLoad, float]:
    """A steady load that windows with so large a share of the requests reach: latencies are no shorter there.

    One steady evaluation, of those that `pool_under_load` makes of the same pool; it refutes most rates that are too
    high. The rate is averaged over what the pool has certainly followed, and with the lesser of what inputs and outputs
    bring.

    Args:
        pool: the pool.
        workload: whose rate varies.
        share: of the requests, in (0, 1).

    Returns:
        The pool at that load, and the share of the requests that meet it or more.

    Raises:
        InputError: a request does not fit.
    """
    pools = _steady_pools(pool, workload)
    arrivals = workload.open_arrivals
    drift = arrivals.drift
    assert drift is not None
    work = np.minimum(drift.work(0.0, 1.0), drift.work(1.0, 0.0))
    path = RateDrift.of(work, drift.window_s)
    requests = drift.share_of_requests()

    def loads(memory_s: float) -> FloatArray:
        return path.smoothed(memory_s) * float(work.mean()) * arrivals.rate_per_s / pools.limit_per_s

    followed = loads(FOLLOWED_S)
    order = np.argsort(followed)[::-1]
    reached = float(followed[order][min(int(np.searchsorted(np.cumsum(requests[order]), share)), order.size - 1)])
    nodes = NODE_LOADS[::2]
    node = float(nodes[max(int(np.searchsorted(nodes, reached, side="right")) - 1, 0)])
    loaded = pools.at(node * pools.limit_per_s)
    memory_s = max(FOLLOWED_S, LIFETIMES_FOLLOWED * loaded.queue.e2e.mean_s) if loaded.queue.stable else FOLLOWED_S
    return loaded, float(requests[loads(memory_s) >= node].sum())


def _steady_pools(pool: Pool, workload: Workload) -> _SteadyPools:
    """Steady rates of a pool that were evaluated so far."""
    arrivals = workload.open_arrivals.steady
    if arrivals.dispersion:
        arrivals = arrivals.as_renewal(RESIDUAL_GAPS)
    shape = (arrivals.scv, arrivals.batch_mean, arrivals.dispersion)
    key = (pool.config.settings, pool.role, pool.replicas, pool.router, workload.classes, shape)
    return _kept_pools(Keyed((pool, Workload(arrivals=arrivals, classes=workload.classes)), key))


@lru_cache(maxsize=MOST_POOLS)
def _kept_pools(pool: Keyed[tuple[Pool, Workload]]) -> _SteadyPools:
    return _SteadyPools(*pool.value)


def _decode_pool_under_load(pool: Pool, workload: Workload, queue: QueueLatency | None = None) -> PoolUnderLoad:
    decoding, share = decoding_only(workload.lengths)
    model, rate = pool_model(pool, decoding), workload.rate_per_s * share
    queue = queue or as_served(replica_queue(model, decoding, workload.open_arrivals.at_rate(rate)), model)
    return PoolUnderLoad(model, queue, rate, decoding, workload, lambda: decoding)


def _prompt_pool_under_load(
    pool: Pool, workload: Workload, cached: CachedWorkload, queue: QueueLatency | None = None
) -> PoolUnderLoad:
    """A pool that serves prompts, behind its cache."""
    seen, loads = cached.workload, cached.loads
    model = _prompt_model(pool, cached)
    of_requests = partial(work_lengths, model, seen.lengths, cached.past, seen.rate_per_s / pool.replicas)
    if queue is None:
        work = of_requests()
        in_common = any(kind.prefixes is not None or kind.sessions is not None for kind in workload.classes)
        queue = replica_queue(model, work, seen.open_arrivals, in_common)
        busy = queue.utilisation
        if pool.role is Role.MIXED and queue.stable:
            busy = min(prompts_share(model, seen.lengths, seen.rate_per_s, queue.mean_running), 1.0)
        queue = as_served(with_own_prompt(queue, model, seen.lengths, work, busy, cached.past), model)
        if loads is not None:
            queue = loads.delayed(queue, loads.wait(seen.rate_per_s))
        queue = behind_encoders(queue, pool, seen)
    return PoolUnderLoad(model, queue, seen.rate_per_s, seen.lengths, seen, of_requests, cached.hit_share, loads)


def _prompt_model(pool: Pool, cached: CachedWorkload) -> PoolModel:
    """The pool behind its cache."""
    return pool_model(pool, cached.workload.lengths, cached.past, cached.shared_tokens, cached.own_past)


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
    limit = min(
        pool.replicas * _replica_limit_per_s(pool, workload),
        encoder_limit_per_s(pool.config, pool.replicas, workload.lengths),
    )
    if not _hits_fall_with_rate(workload) or not has_prefixes(pool, workload):
        return limit
    return _limit_where_hits_fall_per_s(pool, workload, limit)


def _limit_where_hits_fall_per_s(pool: Pool, workload: Workload, limit: float) -> float:
    """The rate at which it is the limit itself: with it idle contexts grow and hits fall, so the limit does too."""

    def log_excess(log_rate: float) -> float:
        rate = math.exp(log_rate)
        return math.log(pool.replicas * _replica_limit_per_s(pool, workload.at_rate(rate)) / rate)

    low = high = math.log(limit)
    while log_excess(low) < 0.0:
        low -= 1.0
    while log_excess(high) > 0.0:
        high += 1.0
    return math.exp(root_between(log_excess, low, high, xtol=LIMIT_TOLERANCE)) if high > low else limit


def _replica_limit_per_s(pool: Pool, workload: Workload) -> float:
    """The same for pools of any size, unless a cache has what all of them found; remembered then."""
    if has_prefixes(pool, workload):
        return _found_replica_limit_per_s(pool, workload)
    return _kept_limit_per_s(Keyed((pool, workload), (pool.config.settings, pool.role, workload.classes)))


@lru_cache(maxsize=MOST_POOLS)
def _kept_limit_per_s(pool: Keyed[tuple[Pool, Workload]]) -> float:
    return _found_replica_limit_per_s(*pool.value)


def _found_replica_limit_per_s(pool: Pool, workload: Workload) -> float:
    gain = tokens_per_step(pool.config)
    if pool.role is Role.DECODE:
        lengths, share = decoding_only(workload.lengths)
        model = pool_model(pool, lengths)
        memory = full_memory(model, lengths)
        if memory is not None:
            return memory.limit_per_s / share
        return largest_decode_rate(model.server, lengths_in_steps(lengths, gain)) / share
    largest_rate = largest_prefill_rate if pool.role is Role.PREFILL else largest_mixed_rate
    cached = behind_cache(pool, workload)
    model = _prompt_model(pool, cached)
    work = work_lengths(model, cached.workload.lengths, cached.past)
    memory = full_memory(model, work)
    rate = largest_rate(model.server, lengths_in_steps(work, gain)) if memory is None else memory.limit_per_s
    return rate if cached.loads is None else min(rate, cached.loads.limit_per_s / pool.replicas)


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


def input_capacity_share(pool: Pool, workload: Workload) -> float:
    """Share of a pool's capacity that inputs take; splits its cost between input and output tokens.

    What the largest stable rate loses to inputs, and to outputs, as they grow (`_SteadyPools.growth`), over the sum of
    both. It says what tokens cost where replicas are full, so that a fleet with room to spare, or with targets that
    keep it from being full, costs more of both alike.

    Args:
        pool: the pool.
        workload: mix of requests at the deployment; its own rate does not matter.

    Returns:
        Share in [0, 1]: 1 for a prefill pool, 0 for a decode pool.
    """
    if pool.role is not Role.MIXED:
        return float(pool.role is Role.PREFILL)
    by_inputs, by_outputs = _SteadyPools(pool, workload).growth
    return by_inputs / (by_inputs + by_outputs) if by_inputs + by_outputs > 0.0 else 1.0


def requests_to_settle(deployment: Deployment, workload: Workload) -> int:
    """Requests in which the memory of every pool forgets that it was empty, `SETTLING_TIMES` over.

    Args:
        deployment: the pools, continuously batching.
        workload: open arrivals and lengths at the deployment.

    Returns:
        Requests of the whole deployment [-]; 0 where memory is hardly ever full.

    Raises:
        InputError: a request does not fit.
    """
    most = 0.0
    for pool in deployment.pools:
        loaded = pool_under_load(pool, workload)
        if loaded.memory is None or not loaded.memory.probability(loaded.rate_per_s / pool.replicas):
            continue
        load = min(loaded.queue.utilisation, NEAREST_TO_LIMIT)
        settling_s = settling_steps(loaded.lengths, load) * loaded.queue.mean_step_s
        most = max(most, SETTLING_TIMES * settling_s * workload.rate_per_s)
    return math.ceil(most)
