"""Screening: bounds on what every configuration can sustain, many configurations at once, optimistic by construction.

Configurations that differ only in chunk budget and batch limit share a *machine* (SKU, split, formats, engine): one
step-time function. `screen` evaluates it once over running sequences x prompt tokens and reads all of them off that.

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

What is left out (waits, full steps, the swings of n) only takes longer. Behind a router that deals requests out in turn
i = SCV / replicas, so that the bound of a pool size holds for all smaller pools. Distributions and symbols as in
`planner.queueing`; tests hold the bound against full evaluations of whole grids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

from planner.core import Metric
from planner.engine import ReplicaConfig, StepTimer, memory_footprint, step_timer
from planner.queueing import grouped
from planner.roofline import StepShape
from planner.search.bounds_prompts import (
    SHORTEST_S,
    PromptSteps,
    added_s,
    alone_s,
    convex_below,
    handed_bytes,
    in_steps,
    own_steps_s,
    prompt_means_s,
    prompt_steps,
)
from planner.search.types import Demand
from planner.serving import Pool, Role, Router, decoding_only, has_prefixes, with_cache
from planner.workload import ArrivalProcess, LatencyTarget, Slo, TokenLengths, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LOADS, DECODE_LOADS = 34, 256
"""Numbers running at which a machine is looked at, with prompts and without."""
ROW_TILES = np.array([64.0, 128.0, 192.0, 256.0, 384.0, 512.0])
"""Rows on one GPU from which on a matrix product takes a tile more; looked at on both sides."""
FEWEST_RUNNING = 0.05
POOL_SIZES = (1, 2, 3, 4, 6, 8, 16, 32)
"""Pool sizes that bounds are worked out for; others take that of the next larger one, larger ones that of any size."""
SMALLEST_SPREAD = 1e-6
"""Relative variance that keeps the gamma distribution of a constant finite."""
FELT = 0.8
"""Share of the mean wait of GI/G/1, and of the chance of a step in progress, that is counted on."""
READ = 1.02
"""Rates read between the tabulated numbers running, step contents and lengths are taken to be larger by this."""
EXACTLY = 1.002
"""A share this close to the one allowed is that: percentiles of a few lengths fall on an edge."""
NEVER = -30.0
"""Logarithm of a share that stands for nothing."""
HANDED_SLICES = 32
"""Half as many as `planner.serving.kv_transfer` tells apart."""
POINTS: FloatArray = (np.arange(4.0) + 0.5) / 4.0
"""Middles of equally likely slices."""


def pool_class(replicas: int) -> int:
    """Place of the bounds that a pool size has: pools of one class have the same per replica.

    >>> pool_class(5) == pool_class(6), pool_class(1000)
    (True, 8)
    """
    return int(np.searchsorted(POOL_SIZES, replicas))


@dataclass(frozen=True, eq=False)
class Screen:
    """Bounds of one machine in one role, for several chunk budgets at once.

    Attributes:
        role: of the pool.
        steps: of its prompts.
        running: numbers running, rising, shape (N,); where nothing decodes, shares of the largest rate.
        decode_s: d, step without prompts at each of them [s], shape (N,).
        prompt_s: X, mean time a prompt adds [s], shape (B, N).
        group_s: the same of each prompt group, shape (B, N, G).
        full_s: what the prompts of a full step add to it [s], shape (B, N).
        own_s: a prompt's way to its first token beside others, without the step in progress [s], shape (B, N, G).
        idle_own_s: the same where nobody else is, shape (B, G).
        idle_gap_s: time per output token of a request alone [s].
        tokens_per_step: output tokens a sequence gains per step (speculation).
        prefill_per_s: most prompts a replica can serve where nothing decodes [1/s], shape (B,).
        link_per_s: most KV caches one replica can send or receive [1/s].
        handed_s: time on the link of prompts, in equally likely slices [s], shape (4,).
        decoding: share of the requests that decode.
        scv: of the arrivals at the pool.
        misses: share of requests that may miss, by target.
        felt: share of the wait for other prompts that is counted on: none behind routers that look at the replicas.
        most_running: most sequences at once that were asked for.
    """

    role: Role
    steps: PromptSteps
    running: FloatArray
    decode_s: FloatArray
    prompt_s: FloatArray
    group_s: FloatArray
    full_s: FloatArray
    own_s: FloatArray
    idle_own_s: FloatArray
    idle_gap_s: float
    tokens_per_step: float
    prefill_per_s: FloatArray
    link_per_s: float
    handed_s: FloatArray
    decoding: float
    scv: float
    misses: tuple[tuple[LatencyTarget, float], ...]
    felt: float
    most_running: float

    def bound_per_s(self, replicas: int, budget: int, slots: float) -> float:
        """No pool of so many replicas (or fewer) sustains more [requests/s].

        Args:
            replicas: of the pool.
            budget: chunk budget, one of `steps.budgets`.
            slots: most sequences at once on one replica.
        """
        return float(self.bounds_per_s(replicas, np.array([budget]), np.array([slots]))[0])

    def bounds_per_s(self, replicas: int, budgets: FloatArray | IntArray, slots: FloatArray) -> FloatArray:
        """`bound_per_s` of several configurations of the machine, all of shape (members,)."""
        b, r = np.searchsorted(self.steps.budgets, budgets), pool_class(replicas)
        found = self._limits_per_s[r, b]
        if not self._only_prompts:
            most = self._decoding_slots(b, slots)
            rates = [np.interp(n, self.running, self._rates_per_s[r, i]) for n, i in zip(most, b, strict=True)]
            found = np.minimum(found, np.array(rates))
        return np.asarray(replicas * np.minimum(READ * found, self.link_per_s))

    def _decoding_slots(self, b: IntArray, slots: FloatArray) -> FloatArray:
        """Most sequences that decode, when prompts hold slots for as many steps as they have chunks."""
        if self.role is Role.DECODE:
            return slots
        gaps = self.steps.distribution.mean_gaps
        return np.minimum(slots * gaps / (gaps + self._chunks[b]), self.steps.budgets[b])

    @cached_property
    def _chunks(self) -> FloatArray:
        """Steps a prompt needs on average, shape (B,)."""
        distribution = self.steps.distribution
        return np.array(
            [np.maximum(distribution.prompts / one, 1.0) @ distribution.prompt_weights for one in self.steps.budgets]
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
            return np.tile(self.prefill_per_s[:, None] * self.running, (len(POOL_SIZES) + 1, 1, 1))
        met = np.maximum(self.running - self._late[:, None, None] * distribution.decoding, 0.0)
        lasts_s = distribution.mean_gaps * self.decode_s + met * self.prompt_s
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
        at_low, at_high = self._over(low), self._over(high)
        over = at_high
        for _ in range(math.ceil(math.log2(self.running.size))):
            middle = (low + high) // 2
            at = self._over(middle)
            low, at_low = np.where(at > 0.0, low, middle), np.where(at > 0.0, at_low, at)
            high, at_high = np.where(at > 0.0, middle, high), np.where(at > 0.0, at, at_high)
        share = np.clip(-at_low / np.maximum(at_high - at_low, 1e-12), 0.0, 1.0)
        first, last = (np.take_along_axis(rates, i[..., None], axis=-1)[..., 0] for i in (low, high))
        found = first * (last / first) ** share
        found = np.where(over <= 0.0, rates[..., -1], np.where(at_low > 0.0, first, found))
        return np.asarray(np.where(self._idle_misses, 0.0, found))

    @cached_property
    def _idle_misses(self) -> NDArray[np.bool_]:
        """Whether requests that meet nobody miss a target, for each budget, shape (B,)."""
        missed = [reached_s > target.threshold_s for target, reached_s in self.idle_s.items()]
        return np.any(missed, axis=0) if missed else np.zeros(self.steps.budgets.size, dtype=np.bool_)

    def _over(self, places: IntArray) -> FloatArray:
        """Log of the share that misses over the share that may, of the worst target, at numbers running, (R, B)."""
        worst = np.full(places.shape, NEVER)
        for target, allowed in self.misses:
            share = np.maximum(self._missing(target, places), math.exp(NEVER))
            worst = np.maximum(worst, np.log(share) - math.log(EXACTLY * allowed))
        return worst

    def _missing(self, target: LatencyTarget, places: IntArray) -> FloatArray:
        """Share of requests that miss a target at least, shape (R, B)."""
        decode_s = self.decode_s[places]
        if self.role is Role.DECODE:
            return self._slow_after_transfer(target, decode_s)
        own_s = self.own_s[np.arange(places.shape[1]), places]
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
        mean_s, scv, dispersion = self.prompt_s[at], self._prompt_scv[at], self._dispersion[:, None]
        load = self._rates_per_s[r, at[0], places] * self.decoding * mean_s
        busy = np.clip(load, 1e-9, 1.0 - 1e-9)
        regular = -2.0 / 3.0 * (1.0 - busy) / busy * (1.0 - dispersion) ** 2 / np.maximum(dispersion + scv, 1e-9)
        tail_s = mean_s / (1.0 - busy) * (dispersion + scv) / 2.0 * np.exp(regular) * self.felt
        left_s = room_s[..., None] - self.decode_s[places][..., None, None] * np.append(0.0, POINTS)
        late = busy[..., None, None] * np.exp(
            -np.maximum(left_s, 0.0) / np.maximum(tail_s, SHORTEST_S)[..., None, None]
        )
        late = np.where(left_s < 0.0, 1.0, late)
        some = 0.0 if self._only_prompts else -FELT * np.expm1(-self.running[places])[..., None]
        late = (
            (1.0 - some) * late[..., 0] + some * late[..., 1:].mean(axis=-1)
        ) @ self.steps.distribution.group_weights
        return np.asarray(np.where(load >= 1.0, 1.0, late))

    @cached_property
    def _prompt_scv(self) -> FloatArray:
        """Squared coefficient of variation of what a prompt adds, shape (B, N)."""
        weights = self.steps.distribution.group_weights
        square = self.group_s**2 @ weights - (self.group_s @ weights) ** 2
        return np.asarray(np.maximum(square, 0.0) / self.prompt_s**2)

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
        most_s = steps.gaps * self.full_s[at][..., None]
        of_group_s = np.minimum(self.group_s[at][..., None, :], most_s[..., None])
        mean_s = np.maximum(of_group_s @ weights, SHORTEST_S)
        scv = np.maximum(of_group_s**2 @ weights / mean_s**2 - 1.0, 0.0)
        met = np.maximum(steps.gaps * running / steps.distribution.mean_gaps - self._late[:, None, None], 0.0)
        part = met - np.floor(met)
        spread = np.maximum(met * self._dispersion[:, None, None], part * (1.0 - part)) + met * scv
        cluster = 1.0 + running * self.prompt_s[at][..., None] / (
            steps.distribution.mean_gaps * self.decode_s[places][..., None]
        )
        spread = spread * (1.0 + (cluster**2 - 1.0) * met / (met + cluster))
        spread = np.maximum(spread, np.maximum(SMALLEST_SPREAD * met**2, SHORTEST_S))
        slow = gammaincc(np.maximum(met**2 / spread, SHORTEST_S), np.maximum(room_s, 0.0) / mean_s * met / spread)
        slow = np.where(met > 0.0, np.minimum(slow, met), 0.0)
        slow = np.where(room_s < 0.0, 1.0, np.where(most_s <= room_s, 0.0, slow))
        return np.asarray(slow @ steps.gap_weights * steps.distribution.decoding)

    def _slow_after_transfer(self, target: LatencyTarget, decode_s: FloatArray) -> FloatArray:
        """Share of requests whose gaps, with the transfer and the step in progress, are too long, shape (R, B)."""
        gaps, weights = self._even_gaps
        room_s = gaps * (target.threshold_s * self.tokens_per_step - decode_s[..., None])
        wait_s = np.add.outer(decode_s, np.zeros(gaps.size))
        late = [np.clip((wait_s + handed - room_s) / wait_s, 0.0, 1.0) for handed in self.handed_s.tolist()]
        return np.asarray(np.mean(late, axis=0) @ weights * self.decoding)

    @cached_property
    def _even_gaps(self) -> tuple[FloatArray, FloatArray]:
        """Decode steps in equally likely slices, no finer than those of a hand-over, and their probabilities."""
        distribution = self.steps.distribution
        gaps, weights, _ = grouped(
            distribution.gaps, distribution.gap_weights, np.linspace(0.0, 1.0, HANDED_SLICES + 1)
        )
        return gaps, weights

    @cached_property
    def idle_s(self) -> dict[LatencyTarget, FloatArray]:
        """Latency [s] of requests that meet nobody at each target, for each budget, shape (B,)."""
        return {target: self._idle_s(target, allowed) for target, allowed in self.misses}

    def _idle_s(self, target: LatencyTarget, allowed: float) -> FloatArray:
        """Latency [s] that a share `allowed` of requests that meet nobody exceeds, for each budget, shape (B,)."""
        distribution, prompts = self.steps.distribution, self.idle_own_s
        size = self.steps.budgets.size
        if target.metric is Metric.TTFT or self._only_prompts:
            return np.array([_quantile(row, distribution.group_weights, 1.0 - allowed) for row in prompts])
        gaps = distribution.gaps * self.tokens_per_step
        ends = np.tile(np.append(np.full(gaps.size, self.idle_gap_s), 0.0), (size, 1))
        if target.metric is Metric.E2E:
            ends = prompts.min(axis=1)[:, None] + np.append(gaps * self.idle_gap_s, 0.0)
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
    budgets: Sequence[int],
    most_running: float,
    router: Router = Router.ROUND_ROBIN,
) -> Screen:
    """Bounds of one machine in one role.

    Args:
        base: any configuration of the machine; its own budget and batch limit do not matter.
        role: of the pool.
        demand: lengths, shape of the arrivals and targets; its rate does not matter.
        budgets: chunk budgets, rising.
        most_running: largest number of sequences at once that is asked for.
        router: of the pool.

    Raises InputError where nothing decodes in a decode pool.
    """
    timer, gain = step_timer(base), base.speculation.tokens_per_step if base.speculation else 1.0
    share: float = 1.0
    past: FloatArray | None = None
    if role is Role.DECODE:
        lengths, share = decoding_only(demand.workload.lengths)
    else:
        lengths, past = _uncached(base, role, demand.workload)
    steps = prompt_steps(in_steps(lengths, gain), tuple(budgets), past)
    running = _numbers_running(base, most_running, DECODE_LOADS if role is Role.DECODE else LOADS)
    decode_s: FloatArray | None = None
    if role is Role.DECODE or (role is Role.MIXED and steps.distribution.mean_gaps > 0.0):
        decode_s = timer.times_s(StepShape(running, running * steps.decode_context))
    else:
        running = np.append(1.0 - np.geomspace(0.99, 0.002, LOADS - 1), 1.0)
    seen = _no_prompts(steps, running.size) if role is Role.DECODE else _prompts(timer, base, steps, running, decode_s)
    link = base.sku.node.nic_bytes_per_s_per_gpu.value * base.parallelism.gpus
    handed_s = handed_bytes(base, demand.workload.lengths, POINTS) / link
    return Screen(
        role=role,
        steps=steps,
        running=running,
        decode_s=np.zeros(running.size) if decode_s is None else decode_s,
        prompt_s=seen.prompt_s,
        group_s=seen.group_s,
        full_s=seen.full_s,
        own_s=seen.own_s,
        idle_own_s=seen.idle_own_s,
        idle_gap_s=float(timer.decode_s(1.0, steps.decode_context)) / gain,
        tokens_per_step=gain,
        prefill_per_s=seen.prefill_per_s,
        link_per_s=_link_per_s(role, demand.workload.lengths, handed_s),
        handed_s=handed_s,
        decoding=share,
        scv=_regular_scv(demand.workload.open_arrivals),
        misses=_allowed_misses(demand.slo, role, steps.distribution.mean_gaps > 0.0),
        felt=FELT if router in (Router.ROUND_ROBIN, Router.RANDOM) else 0.0,
        most_running=most_running,
    )


def _numbers_running(base: ReplicaConfig, most: float, count: int) -> FloatArray:
    """From hardly any to the most, evenly in their logarithm, and both sides of every row tile, rising."""
    edges = ROW_TILES * base.parallelism.dp * base.parallelism.pp
    most = max(most, 2.0)
    sides = np.concatenate([edges, edges + base.parallelism.dp * base.parallelism.pp])
    return np.unique(np.concatenate([np.geomspace(FEWEST_RUNNING, most, count), sides[sides < most]]))


@dataclass(frozen=True, eq=False)
class _Prompts:
    """What prompts take, as `Screen` says; nothing in a decode pool."""

    prompt_s: FloatArray
    group_s: FloatArray
    full_s: FloatArray
    own_s: FloatArray
    idle_own_s: FloatArray
    prefill_per_s: FloatArray


def _no_prompts(steps: PromptSteps, loads: int) -> _Prompts:
    nothing = np.zeros((steps.budgets.size, loads))
    endless = np.full(steps.budgets.size, math.inf)
    each = nothing[:, :, None]
    return _Prompts(nothing, each, nothing, each, nothing[:, :1], endless)


def _prompts(
    timer: StepTimer, base: ReplicaConfig, steps: PromptSteps, running: FloatArray, decode_s: FloatArray | None
) -> _Prompts:
    """Of prompts beside so many decodes; `decode_s` None: nothing decodes."""
    mixed_steps, groups = base.schedule.mixed_steps, steps.groups.transpose(0, 2, 1)
    added, whole_s, beyond_s = alone_s(timer, steps, mixed_steps)
    own_share = 0.0 if steps.cached else base.costs.prompt_stretch
    late_s = base.costs.request_s + own_share * beyond_s[:, None, :]
    prefill_per_s = (steps.tokens[:, 1:] / added[:, 0, 1:]).max(axis=1) / steps.distribution.mean_prompt
    first_s = np.matmul(added, groups) + late_s
    idle_own_s = whole_s + late_s[:, 0]
    if decode_s is not None:
        idle_own_s = np.maximum(idle_own_s + min(float(_as_served_s(base, running, decode_s)[0]), 0.0), SHORTEST_S)
        added = added_s(timer, mixed_steps, steps, running, decode_s)
        first_s = own_steps_s(added, steps, running, decode_s) + late_s + _as_served_s(base, running, decode_s)[:, None]
    shape = (steps.budgets.size, running.size)
    least = convex_below(added, steps.tokens)
    mean_s, group_s = prompt_means_s(least, steps)
    room = 1.0 if decode_s is None else np.maximum(1.0 - running / steps.budgets[:, None], 0.0)
    return _Prompts(
        prompt_s=np.broadcast_to(mean_s, shape),
        group_s=np.broadcast_to(group_s, (*shape, group_s.shape[-1])),
        full_s=np.broadcast_to(added[..., -1] * room, shape),
        own_s=np.broadcast_to(first_s, (*shape, first_s.shape[-1])),
        idle_own_s=idle_own_s,
        prefill_per_s=prefill_per_s,
    )


def _uncached(base: ReplicaConfig, role: Role, workload: Workload) -> tuple[TokenLengths, FloatArray | None]:
    """Lengths without what a prefix cache holds at best, and that, for each cell; at best: each prefix once in a pool
    whose memory is free for it.
    """
    pool = Pool(role=role, config=base, replicas=POOL_SIZES[-1], router=Router.PREFIX_AFFINITY)
    if not has_prefixes(pool, workload):
        return workload.lengths, None
    capacity = float(memory_footprint(base).kv_capacity_tokens)
    cached = with_cache(pool, workload, capacity, 0.0)
    return cached.workload.lengths, cached.past


def _as_served_s(base: ReplicaConfig, running: FloatArray, decode_s: FloatArray) -> FloatArray:
    """What the engine adds before a first token, or takes off it where prompts go before decodes [s], shape (N,)."""
    steps = base.costs.lag_steps + (base.schedule.receive_interval_steps - 1) / 2.0
    late_s = steps * np.minimum(running, 1.0) * decode_s
    return late_s if base.schedule.mixed_steps else late_s - decode_s


def _link_per_s(role: Role, lengths: TokenLengths, handed_s: FloatArray) -> float:
    """Most requests of which one replica can send or receive the KV caches [1/s]."""
    if role is Role.MIXED:
        return math.inf
    share = float(lengths.probabilities[lengths.outputs > 1].sum())
    busy_s = share * float(handed_s.mean())
    return 1.0 / busy_s if busy_s > 0.0 else math.inf


def _regular_scv(arrivals: ArrivalProcess) -> float:
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
