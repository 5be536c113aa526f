"""Screening: bounds on what every configuration can sustain, many configurations at once, optimistic by construction.

Configurations that differ only in chunk budget and batch limit share one step-time function (same SKU, split, formats,
engine). `screen` evaluates it once over running sequences x prompt tokens and reads all of them off that.

With n sequences running and d(n) the step without prompts, a prompt adds at least X(n) [s]: its own chunks, alone in
their steps, on a convex function below the step time. Convexity makes any other packing of prompts into steps take
longer (majorisation). A request that decodes for K steps then lasts, by Little's law,

    S(n) = E[K] d(n) + M X(n),    rate(n) = n / S(n),    M = n - (1 - i) / 2

M is the number of prompts that come meanwhile, i the dispersion of the arrivals at one replica (behind regular arrivals
the next one is late). The targets limit n:

- TPOT: K steps meet M K / E[K] prompts; the share of requests whose d + (sum of so many X) / K is above the threshold
  is that of gamma distributions with these means and variances;
- TTFT: the rest of the step in progress and the prompt's own steps beside n others, without any wait;
- E2E: the prompt's own steps and K steps as for TPOT. Targets on single gaps (ITL) or classes limit nothing here.

A first token from the decode pool is later by the hand-over that its engine adds; transfer, wait and step there are
left out. TPOT of a decode pool is d alone: what is waited for comes before the first token.

What is left out (waits, full steps, the swings of n) only takes longer. Behind a router that deals requests out in turn
i = SCV / replicas, so that the bound of a pool size holds for all smaller pools. Distributions and symbols as in
`planner.queueing`; tests hold the bound against full evaluations of whole grids.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc

from planner.core import BoolArray, FloatArray, IntArray, Metric
from planner.engine import ReplicaConfig, memory_footprint
from planner.roofline import StepShape
from planner.search.cache_keys import hash_once
from planner.search.prompt_times import (
    SHORTEST_S,
    PromptSteps,
    PromptTimes,
    no_prompt_times,
    prompt_steps,
    prompt_times,
    transferred_bytes,
)
from planner.search.types import Demand
from planner.serving import (
    TRANSFER_SHARE,
    CachedWorkload,
    Pool,
    Role,
    Router,
    behind_cache,
    between_servers_bytes_per_s,
    decoding_only,
    lengths_in_steps,
    tokens_per_step,
)
from planner.workload import ArrivalProcess, LatencyTarget, Slo, TokenLengths, Workload

RUNNING_POINTS, DECODE_RUNNING_POINTS = 34, 256
"""Numbers running at which step times are looked up, with prompts and without. A choice."""
ROW_TILES = np.array([64.0, 128.0, 192.0, 256.0, 384.0, 512.0])
"""Rows on one GPU from which on a matrix product takes a tile more; looked up on both sides. A choice."""
FEWEST_RUNNING = 0.05
"""Mean number running that stands for hardly any. A choice."""
POOL_SIZES = (1, 2, 3, 4, 6, 8, 16, 32)
"""Pool sizes that bounds are worked out for; others take that of the next larger one, larger ones that of any size."""
RARE_PER_S = 1e-6
"""A rate at which idle contexts fill no cache [1/s]. A choice: any that is small enough."""
LEAST_SPREAD = 1e-6
"""Relative variance that keeps the gamma distribution of a constant finite."""
COUNTED_SHARE = 0.8
"""Share of the mean wait of GI/G/1, and of the chance of a step in progress, that is counted on. A choice: it keeps
bounds optimistic."""
PIPELINE_MARGIN = 1.08
"""Bounds of pipelines are raised by this factor: a step of one prompt takes as long as one of a prompt for each stage,
so that its time bends the other way than bounds take it to. Above the 5 % by which rates were found beyond them: a
choice, it keeps bounds optimistic."""
INTERPOLATION_MARGIN = 1.03
"""Factor on rates read between the tabulated numbers running, step contents and lengths. A choice: it keeps bounds
optimistic, half a per cent above the 2.5 % by which a rate was found beyond them."""
SHARE_TOLERANCE = 1.002
"""A share this close to the one allowed is that: percentiles of a few lengths fall on an edge. A choice."""
LEAST_LOG_SHARE = -30.0
"""Logarithm of a share that stands for nothing."""
SLICE_MIDDLES: FloatArray = (np.arange(4.0) + 0.5) / 4.0
"""Middles of four equally likely slices."""


def pool_class(replicas: int) -> int:
    """Place of the bounds that a pool size has: pools of one class have the same per replica.

    Args:
        replicas: of the pool.

    Returns:
        Index into `POOL_SIZES` [-], one more for larger pools.

    >>> pool_class(5) == pool_class(6), pool_class(1000)
    (True, 8)
    """
    return bisect_left(POOL_SIZES, replicas)


@dataclass(frozen=True, eq=False)
class Screen:
    """Bounds of one step-time group in one role, for several chunk budgets at once.

    Attributes:
        role: of the pool.
        steps: of its prompts.
        prompts: what they take.
        running: numbers running, rising, shape (N,); where nothing decodes, shares of the largest rate.
        decode_s: d, step without prompts at each of them [s], shape (N,).
        idle_gap_s: time per output token of a request alone [s].
        tokens_per_step: output tokens a sequence gains per step (speculation).
        link_per_s: most KV caches one replica can send or receive [1/s].
        transfer_s: what an engine adds to the first token of a request that it hands over [s].
        decoding: share of the requests that decode.
        scv: of the arrivals at the pool.
        allowed_misses: share of requests that may miss, by target.
        counted_wait: share of the wait for other prompts that is counted on: none behind routers that look at the
            replicas.
        most_running: most sequences at once that were asked for.
    """

    role: Role
    steps: PromptSteps
    prompts: PromptTimes
    running: FloatArray
    decode_s: FloatArray
    idle_gap_s: float
    tokens_per_step: float
    link_per_s: float
    transfer_s: float
    decoding: float
    scv: float
    allowed_misses: tuple[tuple[LatencyTarget, float], ...]
    counted_wait: float
    most_running: float

    def bound_per_s(self, replicas: int, max_batched_tokens: int, slots: float) -> float:
        """No pool of so many replicas (or fewer) sustains more [requests/s].

        Args:
            replicas: of the pool.
            max_batched_tokens: chunk budget, one of `steps.max_batched_tokens`.
            slots: most sequences at once on one replica.
        """
        return float(self.bounds_per_s(replicas, np.array([max_batched_tokens]), np.array([slots]))[0])

    def bounds_per_s(self, replicas: int, max_batched_tokens: FloatArray | IntArray, slots: FloatArray) -> FloatArray:
        """`bound_per_s` of several configurations of the group, all of shape (members,)."""
        b, r = np.searchsorted(self.steps.max_batched_tokens, max_batched_tokens), pool_class(replicas)
        per_replica = self._limits_per_s[r, b]
        if not self._only_prompts:
            most = self._decoding_slots(b, slots)
            rates = [np.interp(n, self.running, self._rates_per_s[r, i]) for n, i in zip(most, b, strict=True)]
            per_replica = np.minimum(per_replica, np.array(rates))
        is_pipeline = self.steps.step_tokens[0] > self.steps.max_batched_tokens[0]
        margin = INTERPOLATION_MARGIN * (PIPELINE_MARGIN if is_pipeline else 1.0)
        return np.asarray(replicas * np.minimum(margin * per_replica, self.link_per_s))

    def _decoding_slots(self, b: IntArray, slots: FloatArray) -> FloatArray:
        """Most sequences that decode, when prompts hold slots for as many steps as they have chunks."""
        if self.role is Role.DECODE:
            return slots
        gaps = self.steps.distribution.mean_gaps
        return np.minimum(slots * gaps / (gaps + self._chunks[b]), self.steps.step_tokens[b])

    @cached_property
    def _chunks(self) -> FloatArray:
        """Steps a prompt needs on average, shape (B,)."""
        distribution = self.steps.distribution
        return np.array(
            [
                np.maximum(distribution.prompts / room, 1.0) @ distribution.prompt_weights
                for room in self.steps.step_tokens
            ]
        )

    @cached_property
    def _only_prompts(self) -> bool:
        return self.role is Role.PREFILL or self.steps.distribution.mean_gaps == 0.0

    @cached_property
    def _dispersion(self) -> FloatArray:
        """i, of the arrivals at one replica, for each of `POOL_SIZES` and for pools of any size, shape (R,)."""
        return np.append(np.minimum(self.scv / np.array(POOL_SIZES), 1.0), 0.0)

    @cached_property
    def _rates_per_s(self) -> FloatArray:
        """Rate at each number running [1/s], rising, shape (R, B, N)."""
        distribution = self.steps.distribution
        if self._only_prompts:
            return np.tile(self.prompts.prefill_per_s[:, None] * self.running, (len(POOL_SIZES) + 1, 1, 1))
        met = np.maximum(self.running - self._late[:, None, None] * distribution.decoding, 0.0)
        lasts_s = distribution.mean_gaps * self.decode_s + met * self.prompts.mean_s
        return np.maximum.accumulate(self.running / lasts_s / self.decoding, axis=-1)

    @property
    def _late(self) -> FloatArray:
        """Prompts that a request meets less than a random time of its length, shape (R,)."""
        return (1.0 - self._dispersion) / 2.0

    @cached_property
    def _limits_per_s(self) -> FloatArray:
        """Largest rate at which no target is missed by more than it allows [1/s], shape (R, B).

        By bisection over the numbers running, then linear in their logarithm between the last two.
        """
        rates = self._rates_per_s
        low, high = np.zeros(rates.shape[:2], dtype=np.int64), np.full(rates.shape[:2], self.running.size - 1)
        at_low, at_high = self._log_excess(low), self._log_excess(high)
        at_most = at_high
        for _ in range(math.ceil(math.log2(self.running.size))):
            middle = (low + high) // 2
            at = self._log_excess(middle)
            low, at_low = np.where(at > 0.0, low, middle), np.where(at > 0.0, at_low, at)
            high, at_high = np.where(at > 0.0, middle, high), np.where(at > 0.0, at, at_high)
        share = np.clip(-at_low / np.maximum(at_high - at_low, 1e-12), 0.0, 1.0)
        first, last = (np.take_along_axis(rates, i[..., None], axis=-1)[..., 0] for i in (low, high))
        crossing = first * (last / first) ** share
        limits = np.where(at_most <= 0.0, rates[..., -1], np.where(at_low > 0.0, first, crossing))
        return np.asarray(np.where(self._idle_misses, 0.0, limits))

    @cached_property
    def _idle_misses(self) -> BoolArray:
        """True where requests that meet nobody miss a target, for each chunk budget, shape (B,)."""
        missed = [reached_s > target.threshold_s for target, reached_s in self.idle_s.items()]
        return np.any(missed, axis=0) if missed else np.zeros(self.steps.max_batched_tokens.size, dtype=np.bool_)

    def _log_excess(self, places: IntArray) -> FloatArray:
        """Log of the share that misses over the share that may, of the worst target, at numbers running, (R, B)."""
        worst = np.full(places.shape, LEAST_LOG_SHARE)
        for target, allowed in self.allowed_misses:
            share = np.maximum(self._missing_share(target, places), math.exp(LEAST_LOG_SHARE))
            worst = np.maximum(worst, np.log(share) - math.log(SHARE_TOLERANCE * allowed))
        return worst

    def _missing_share(self, target: LatencyTarget, places: IntArray) -> FloatArray:
        """Share of requests that miss a target at least, shape (R, B)."""
        decode_s = self.decode_s[places]
        if self.role is Role.DECODE:
            return np.where(decode_s > target.threshold_s * self.tokens_per_step, self.decoding, 0.0)
        own_s = self.transfer_s + self.prompts.own_s[np.arange(places.shape[1]), places]
        if target.metric is Metric.TTFT or self._only_prompts:
            return self._late_first_tokens(places, target.threshold_s - own_s)
        room_s = self.steps.gaps * (target.threshold_s * self.tokens_per_step - decode_s[..., None])
        if target.metric is Metric.E2E:
            first_s = own_s.min(axis=-1, keepdims=True)
            room_s = target.threshold_s - first_s - self.steps.gaps * decode_s[..., None]
        return self._slow_decodes(places, room_s)

    def _late_first_tokens(self, places: IntArray, room_s: FloatArray) -> FloatArray:
        """Share of requests whose step in progress and wait for other prompts exceed `room_s` [s], shape (R, B).

        The wait is that of GI/G/1 with the load and the variability of X: positive with the chance rho, then
        exponential, with the mean of Kraemer and Langenbach-Belz (8th International Teletraffic Congress, 1976). A step
        is in progress unless nothing runs, whose chance is that of a Poisson number. `room_s` has shape (R, B, G).
        """
        at, r = (np.arange(places.shape[1]), places), np.arange(places.shape[0])[:, None]
        mean_s, scv, dispersion = self.prompts.mean_s[at], self._prompt_scv[at], self._dispersion[:, None]
        load = self._rates_per_s[r, at[0], places] * self.decoding * mean_s
        busy = np.clip(load, 1e-9, 1.0 - 1e-9)
        regular = -2.0 / 3.0 * (1.0 - busy) / busy * (1.0 - dispersion) ** 2 / np.maximum(dispersion + scv, 1e-9)
        tail_s = mean_s / (1.0 - busy) * (dispersion + scv) / 2.0 * np.exp(regular) * self.counted_wait
        left_s = room_s[..., None] - self.decode_s[places][..., None, None] * np.append(0.0, SLICE_MIDDLES)
        late = busy[..., None, None] * np.exp(
            -np.maximum(left_s, 0.0) / np.maximum(tail_s, SHORTEST_S)[..., None, None]
        )
        late = np.where(left_s < 0.0, 1.0, late)
        in_step = 0.0 if self._only_prompts else -COUNTED_SHARE * np.expm1(-self.running[places])[..., None]
        late = (
            (1.0 - in_step) * late[..., 0] + in_step * late[..., 1:].mean(axis=-1)
        ) @ self.steps.distribution.group_weights
        return np.asarray(np.where(load >= 1.0, 1.0, late))

    @cached_property
    def _prompt_scv(self) -> FloatArray:
        """Squared coefficient of variation of what a prompt adds, shape (B, N)."""
        weights = self.steps.distribution.group_weights
        group_s = self.prompts.group_s
        square = group_s**2 @ weights - (group_s @ weights) ** 2
        return np.asarray(np.maximum(square, 0.0) / self.prompts.mean_s**2)

    def _slow_decodes(self, places: IntArray, room_s: FloatArray) -> FloatArray:
        """Share of requests whose decodes are held up by prompts for longer than `room_s` [s], shape (R, B).

        The prompts met are at least a whole number next to their mean, or as dispersed as the arrivals. Each brings
        others, which come while it is served: 1 / (1 - rho) in all, by whose square the variance of a long time grows
        (delay cycle: Conway, Maxwell, Miller, Theory of Scheduling, 1967, section 8.4); a short one sees part of it.
        No step holds more than a chunk, so that K steps meet at most K chunks of any prompt.
        `room_s` has shape (R, B, K).
        """
        steps, at = self.steps, (np.arange(places.shape[1]), places)
        running, weights = self.running[places][..., None], steps.distribution.group_weights
        most_s = steps.gaps * self.prompts.full_s[at][..., None]
        of_group_s = np.minimum(self.prompts.group_s[at][..., None, :], most_s[..., None])
        mean_s = np.maximum(of_group_s @ weights, SHORTEST_S)
        scv = np.maximum(of_group_s**2 @ weights / mean_s**2 - 1.0, 0.0)
        met = np.maximum(steps.gaps * running / steps.distribution.mean_gaps - self._late[:, None, None], 0.0)
        fraction = met - np.floor(met)
        spread = np.maximum(met * self._dispersion[:, None, None], fraction * (1.0 - fraction)) + met * scv
        cluster = 1.0 + running * self.prompts.mean_s[at][..., None] / (
            steps.distribution.mean_gaps * self.decode_s[places][..., None]
        )
        spread = spread * (1.0 + (cluster**2 - 1.0) * met / (met + cluster))
        spread = np.maximum(spread, np.maximum(LEAST_SPREAD * met**2, SHORTEST_S))
        slow = gammaincc(np.maximum(met**2 / spread, SHORTEST_S), np.maximum(room_s, 0.0) / mean_s * met / spread)
        slow = np.where(met > 0.0, np.minimum(slow, met), 0.0)
        slow = np.where(room_s < 0.0, 1.0, np.where(most_s <= room_s, 0.0, slow))
        return np.asarray(slow @ steps.gap_weights * steps.distribution.decoding)

    @cached_property
    def idle_s(self) -> dict[LatencyTarget, FloatArray]:
        """Latency [s] of requests that meet nobody at each target, for each chunk budget, shape (B,)."""
        return {target: self._idle_latency_s(target, allowed) for target, allowed in self.allowed_misses}

    def _idle_latency_s(self, target: LatencyTarget, allowed: float) -> FloatArray:
        """Latency [s] that a share `allowed` of requests that meet nobody exceeds, for each chunk budget, (B,)."""
        distribution, prompt_s = self.steps.distribution, self.transfer_s + self.prompts.idle_own_s
        size = self.steps.max_batched_tokens.size
        if target.metric is Metric.TTFT or self._only_prompts:
            return np.array([_quantile(row, distribution.group_weights, 1.0 - allowed) for row in prompt_s])
        gaps = distribution.gaps * self.tokens_per_step
        ends = np.tile(np.append(np.full(gaps.size, self.idle_gap_s), 0.0), (size, 1))
        if target.metric is Metric.E2E:
            ends = prompt_s.min(axis=1)[:, None] + np.append(gaps * self.idle_gap_s, 0.0)
        share = self.decoding if self.role is Role.DECODE else distribution.decoding
        mass = np.append(distribution.gap_weights * share, 1.0 - share)
        return np.array([_quantile(row, mass, 1.0 - allowed) for row in ends])


def _quantile(values: FloatArray, weights: FloatArray, probability: float) -> float:
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), probability * weights.sum() - 1e-12))
    return float(values[order][min(place, values.size - 1)])


def screen(
    base: ReplicaConfig,
    role: Role,
    demand: Demand,
    max_batched_tokens: Sequence[int],
    most_running: float,
    router: Router = Router.ROUND_ROBIN,
) -> Screen:
    """Bounds of one step-time group in one role.

    Args:
        base: any configuration of the group; its own chunk budget and batch limit do not matter.
        role: of the pool.
        demand: lengths, shape of the arrivals and targets; its rate does not matter.
        max_batched_tokens: chunk budgets, rising.
        most_running: largest number of sequences at once that is asked for.
        router: of the pool.

    Returns:
        Bounds [requests/s] for every budget, pool size and number of slots.

    Raises:
        InputError: nothing decodes in a decode pool.
    """
    timer, gain = base.timer, tokens_per_step(base)
    share: float = 1.0
    past: FloatArray | float = 0.0
    if role is Role.DECODE:
        lengths, share = decoding_only(demand.workload.lengths)
    else:
        cached = _behind_best_cache(base, role, demand.workload)
        lengths, past = cached.workload.lengths, cached.past
    in_steps = lengths_in_steps(lengths, gain)
    steps = prompt_steps(in_steps, tuple(max_batched_tokens), past, base.parallelism.pp)
    some_decode = steps.distribution.mean_gaps > 0.0
    points = DECODE_RUNNING_POINTS if role is Role.DECODE else RUNNING_POINTS
    running = _numbers_running(base, most_running, points)
    decode_s: FloatArray | None = None
    if role is Role.DECODE or (role is Role.MIXED and some_decode):
        decode_s = timer.times_s(StepShape(running, running * steps.decode_context))
    else:
        running = np.append(1.0 - np.geomspace(0.99, 0.002, RUNNING_POINTS - 1), 1.0)
    no_prompts = role is Role.DECODE
    return Screen(
        role=role,
        steps=steps,
        prompts=no_prompt_times(steps, running) if no_prompts else prompt_times(base, steps, running, decode_s),
        running=running,
        decode_s=np.zeros(running.size) if decode_s is None else decode_s,
        idle_gap_s=float(timer.decode_s(1.0, steps.decode_context)) / gain,
        tokens_per_step=gain,
        link_per_s=_link_per_s(base, role, demand.workload.lengths),
        transfer_s=base.costs.transfer_request_s if role is Role.PREFILL else 0.0,
        decoding=share,
        scv=_least_scv(demand.workload.open_arrivals),
        allowed_misses=_allowed_misses(demand.slo, role, some_decode),
        counted_wait=_counted_wait(router),
        most_running=most_running,
    )


def rescreened(known: Screen, demand: Demand, router: Router) -> Screen:
    """The same step times before requests of the same lengths that come otherwise or have other targets.

    Args:
        known: bounds of the group.
        demand: with the lengths of `known`.
        router: of the pool.

    Returns:
        Its bounds [requests/s], for the budgets of `known`.
    """
    some_decode = known.steps.distribution.mean_gaps > 0.0
    return replace(
        known,
        scv=_least_scv(demand.workload.open_arrivals),
        allowed_misses=_allowed_misses(demand.slo, known.role, some_decode),
        counted_wait=_counted_wait(router),
    )


class BoundsKey(NamedTuple):
    """Names what bounds on the configurations of a group depend on, beside these.

    Attributes:
        lengths: what step times depend on: lengths, and what requests share.
        demand: these, the least variability of the arrivals, and targets.
    """

    lengths: Hashable
    demand: Hashable


def bounds_key(demand: Demand) -> BoundsKey:
    """Names what bounds depend on; the rate of the demand, and how it varies, do not matter.

    Args:
        demand: the demand.

    Returns:
        Equal parts for demands that are alike in them.
    """
    kinds = (kind if kind.slo is None else kind.model_copy(update={"slo": None}) for kind in demand.workload.classes)
    lengths = hash_once(tuple(kinds))
    return BoundsKey(lengths, hash_once((lengths, _least_scv(demand.workload.open_arrivals), demand.slo)))


def _counted_wait(router: Router) -> float:
    return COUNTED_SHARE if router in (Router.ROUND_ROBIN, Router.RANDOM) else 0.0


def _numbers_running(base: ReplicaConfig, most: float, count: int) -> FloatArray:
    """From hardly any to the most, evenly in their logarithm, and both sides of every row tile, rising."""
    edges = ROW_TILES * base.parallelism.dp * base.parallelism.pp
    most = max(most, 2.0)
    sides = np.concatenate([edges, edges + base.parallelism.dp * base.parallelism.pp])
    return np.unique(np.concatenate([np.geomspace(FEWEST_RUNNING, most, count), sides[sides < most]]))


def _behind_best_cache(base: ReplicaConfig, role: Role, workload: Workload) -> CachedWorkload:
    """Requests behind a prefix cache at its best: each prefix once in a pool whose memory is free for it, and sessions
    (or the users of a recording) so rare that nothing is dropped.
    """
    pool = Pool(role=role, config=base, replicas=POOL_SIZES[-1], router=Router.PREFIX_AFFINITY)
    if any(kind.sessions is not None or kind.prefix_reuse is not None for kind in workload.classes):
        workload = workload.at_rate(RARE_PER_S)
    return behind_cache(pool, workload, capacity_tokens=float(memory_footprint(base).kv_capacity_tokens))


def _link_per_s(base: ReplicaConfig, role: Role, lengths: TokenLengths) -> float:
    """Most requests of which one replica can send or receive the KV caches [1/s], with the fastest of its links."""
    if role is Role.MIXED:
        return math.inf
    gpus = base.parallelism.gpus
    smallest_group = between_servers_bytes_per_s(base.sku, gpus + 1)
    per_gpu = max(base.sku.node.nic_bytes_per_s_per_gpu.value, smallest_group)
    share = float(lengths.probabilities[lengths.outputs > 1].sum())
    sent = float(transferred_bytes(base, lengths, SLICE_MIDDLES, role is Role.DECODE).mean())
    busy_s = share * sent / (TRANSFER_SHARE * per_gpu * gpus)
    return 1.0 / busy_s if busy_s > 0.0 else math.inf


def _least_scv(arrivals: ArrivalProcess) -> float:
    """SCV of the gaps, or the least dispersion that was measured."""
    if arrivals.dispersion:
        return min(index for _, index in arrivals.dispersion)
    return arrivals.scv if arrivals.batch_mean == 1.0 else max(arrivals.scv, 1.0)


def _allowed_misses(slo: Slo, role: Role, some_decode: bool) -> tuple[tuple[LatencyTarget, float], ...]:
    """Share of requests that may miss each target that says something about the role."""
    metrics = {
        Role.MIXED: (Metric.TTFT, Metric.TPOT, Metric.E2E) if some_decode else (Metric.TTFT, Metric.E2E),
        Role.PREFILL: (Metric.TTFT,),
        Role.DECODE: (Metric.TPOT,),
    }[role]
    return tuple(
        (target, 1.0 - (slo.attainment or target.percentile)) for target in slo.targets if target.metric in metrics
    )
