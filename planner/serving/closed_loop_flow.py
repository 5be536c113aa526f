"""The flow of requests through a closed loop in ticks, and what benchmark clients make of it.

A *tick* is a step in which sequences decode. How many ticks an answer takes is a matter of its length alone, and
answers end, hence the next requests come, at ticks. So the flow is worked out in ticks, as a fluid, before any step is
timed:

    ended(t) = sum_l p(l) * served(t - l),   sent = ended until all are sent,
    served = min(waiting + sent, room for prompts in the steps, free places)

with p the distribution of ticks from one request of a user to the next (renewal equation, Cox 1962, Renewal Theory, ch.
4, with a queue in the loop). Narrow distributions keep users in waves; those widen with every answer, which the sum
follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.engine import ReplicaConfig
from planner.roofline import Bound
from planner.serving.pool import FloatArray, PoolModel, pool_model, step_shapes
from planner.serving.types import Pool, PoolLimit, PoolPerformance, Role
from planner.workload import ClosedLoop, LatencyDistribution, TokenLengths

SLOTS = 32
"""Slots of time per mean request: keeps waves of 6 % of a request (lengths uniform on the upper fifth)."""
FOLLOWED = 12.0
"""Requests per user followed one by one; of a longer run the later ones repeat what came before the last."""
REPEATED = 4.0
"""Requests per user, before the last, that stand for those not followed."""
LAST = 0.5
"""The run ends when so many requests are expected to run still: the median end of the last."""
FINEST = 600.0
"""Slots at most for the requests that are followed, where waiting for prompts or places makes a run long."""
LONGEST = 4000
"""Slots at most: a guard, reached only by distributions whose longest answer is a hundred times the mean."""
RISING = 1e-9
"""Added to a curve at every slot so that it has an inverse [requests]."""
SAME_SLOT = 1e-3
"""Waits below this share of a slot are rounding."""


@dataclass(frozen=True)
class Station:
    """One replica that serves prompts and decodes, in ticks.

    Attributes:
        model: of the pool. lengths: of the requests. replicas: how many there are like it.
        users, total: users and requests of one replica.
        ticks: decode ticks of each length cell, shape (cells,).
        per_decode: tokens of the budget a decoding sequence takes.
        delay: ticks between an end and the next request's being looked at, while others decode.
        group: ticks between two looks at what has come, or for which prompts are held back.
    """

    model: PoolModel
    lengths: TokenLengths
    replicas: int
    users: float
    total: float
    ticks: FloatArray
    per_decode: float
    delay: float
    group: float

    @property
    def config(self) -> ReplicaConfig:
        """Of a replica."""
        return self.model.pool.config

    @property
    def chances(self) -> FloatArray:
        """Of each length cell, shape (cells,)."""
        return self.lengths.probabilities

    @property
    def prompt(self) -> float:
        """Mean input tokens."""
        return self.lengths.mean_input

    @property
    def variance(self) -> float:
        """Of the ticks of a request."""
        return float((self.ticks - self.ticks @ self.chances) ** 2 @ self.chances)

    @property
    def spread(self) -> float:
        """Ticks in which the first burst comes to decode: those its prompts take, 1 where prompts stop decodes."""
        if not self.mixed:
            return 1.0
        return max(1.0, min(self.users, self.max_running) * self.prompt / float(self.room(0.0)))

    @property
    def together(self) -> float:
        """Users whose first prompts end in one step, or before one tick where prompts stop the decodes."""
        inside = min(self.users, self.max_running)
        return min(inside, max(1.0, float(self.room(0.0)) / self.prompt)) if self.mixed else inside

    @property
    def mixed(self) -> bool:
        """Whether prompts and decodes share steps."""
        return self.config.schedule.mixed_steps

    @property
    def max_running(self) -> float:
        """Most requests at once."""
        limit, config = self.model.max_running, self.config
        if self.mixed:
            places = config.max_batched_tokens
            if config.schedule.whole_prompts and self.prompt <= places:
                places -= math.floor(self.prompt) - 1
            limit = min(limit, places // self.per_decode)
        return max(1.0, limit)

    def room(self, running: FloatArray | float) -> FloatArray:
        """Prompt tokens a step takes beside so many decodes; 0 where a whole prompt does not fit beside them."""
        budget = float(self.config.max_batched_tokens)
        decodes = np.asarray(running, dtype=np.float64) * (self.per_decode if self.mixed else 0.0)
        left = np.maximum(budget - decodes, 1.0)
        if not self.config.schedule.whole_prompts:
            return np.asarray(left)
        fitting = np.floor(left / self.prompt) * self.prompt
        return np.full_like(left, self.prompt) if self.prompt > budget else np.asarray(fitting)

    def step_s(self, running: FloatArray, tokens: FloatArray) -> FloatArray:
        """Duration [s] of steps of `running` decodes and `tokens` prompt tokens."""
        return self.config.timer.times_s(step_shapes(running, tokens, self.model.costs))


@dataclass(frozen=True)
class Flow:
    """The run in slots of `width` ticks; every array has shape (slots,).

    Attributes:
        sent, served: requests sent and begun to decode in a slot. backlog: of those served, how many had waited.
        running: decoding sequences, mean over the slot. before: requests sent before the slot.
        weight: how often the slot counts (above 1 where it stands for slots not followed).
    """

    width: float
    sent: FloatArray
    served: FloatArray
    backlog: FloatArray
    running: FloatArray
    before: FloatArray
    weight: FloatArray

    def steady(self, users: float) -> NDArray[np.bool_]:
        """Which slots are steady: after two requests of each user, before the last of each; shape (slots,)."""
        middle = self.before + self.sent / 2.0
        return np.asarray((middle >= 2.0 * users + LAST) & (middle < float(self.sent.sum()) - users + LAST))


def station_of(pool: Pool, lengths: TokenLengths, loop: ClosedLoop) -> Station:
    """One replica of a pool with its share of the users."""
    config, count = pool.config, min(pool.replicas, loop.concurrency, loop.total_requests)
    users = min(loop.concurrency, loop.total_requests) / count
    speculation, schedule = config.speculation, config.schedule
    per_decode = 1.0 + (speculation.draft_tokens if speculation else 0.0)
    gain = speculation.tokens_per_step if speculation else 1.0
    model = pool_model(pool, lengths)
    ticks = np.ceil((lengths.outputs - 1.0) / gain - 1e-9)
    bare = Station(model, lengths, count, users, loop.total_requests / count, ticks, per_decode, 0.0, 1.0)
    busy = min(users, bare.max_running)
    step = float(bare.step_s(np.array([busy]), np.zeros(1))[0])
    late = config.costs.request_s / step
    interval = float(schedule.receive_interval_steps)
    delay = math.ceil(late - 1e-9) if interval <= 1.0 else late + (interval - 1.0) / 2.0
    per_tick = busy / max(float(ticks @ lengths.probabilities), 1.0)
    fill = schedule.batch_wait_fill * config.max_batched_tokens / max(lengths.mean_input * per_tick, 1e-12)
    hold = min(float(schedule.batch_wait_steps), fill)
    delay += config.costs.lag_steps + hold / 2.0
    return replace(bare, delay=delay, group=max(interval, hold, 1.0))


def content_of(station: Station, running: FloatArray | float) -> FloatArray:
    """Prompt tokens of a full step [tokens], when it has any."""
    room = station.room(running)
    return np.where(room > 0.0, room, station.prompt) if station.config.schedule.whole_prompts else room


def flow_of(station: Station, ramp_ticks: float, cycle: FloatArray, capacity: FloatArray) -> Flow:
    """Requests sent, begun and ended per slot of ticks.

    Args:
        station: one replica.
        ramp_ticks: over which its users start; 0 = together.
        cycle: ticks from a request to the next of the same user, shape (cells,).
        capacity: prompts served in a tick, by the number of sequences running.
    """
    users, total = station.users, min(station.total, FOLLOWED * station.users)
    cycle = np.maximum(cycle, 1.0)
    mean = float(cycle @ station.chances)
    most = min(users, station.max_running)
    slowest = max(1.0 / max(float(capacity.min()), 1e-9), mean / most)
    width = max(mean / SLOTS, total * slowest / FINEST)
    inside = min(1.0, mean / width)
    distribution = _binned(cycle / width, station.chances)
    ahead = np.zeros(LONGEST + distribution.size + 1)
    sent, served, backlog, running, before = [], [], [], [], []
    waiting, now, gone = 0.0, 0.0, 0.0
    burst = 0.0 if ramp_ticks > 0.0 else users
    waiting = gone = burst
    places = station.max_running
    room = (capacity * width).tolist()
    started = burst
    for slot in range(LONGEST):
        ended = min(float(ahead[slot]), now)
        new = min(users - started, users * width / ramp_ticks) if ramp_ticks > 0.0 else 0.0
        started += new
        fresh = min(ended + new, total - gone)
        free = places - now + ended
        begun = max(0.0, min(waiting + fresh, room[int(now * inside)], free))
        sent.append(fresh + (burst if slot == 0 else 0.0))
        before.append(gone - (burst if slot == 0 else 0.0))
        served.append(begun)
        backlog.append(min(begun, waiting))
        gone += fresh
        waiting += fresh - begun
        running.append((now + (begun - ended) / 2.0) * inside)
        now += begun - ended
        if begun > 0.0:
            ahead[slot + 1 : slot + 1 + distribution.size] += begun * distribution
        if gone >= total - 1e-9 and waiting < 1e-6 and now < min(LAST, total / 2.0):
            break
    start = np.array(before)
    return Flow(
        width,
        np.array(sent),
        np.array(served),
        np.array(backlog),
        np.array(running),
        start,
        _weights(station, start, total),
    )


def _binned(position: FloatArray, chances: FloatArray) -> FloatArray:
    """A distribution on whole slots with the same mean: each point is shared by its two neighbours; slot 1 is the first."""
    position = np.maximum(position, 1.0) - 1.0
    low = np.floor(position + 1e-9)
    high = np.clip(position - low, 0.0, 1.0)
    distribution = np.zeros(int(low.max()) + 2)
    np.add.at(distribution, low.astype(np.int64), chances * (1.0 - high))
    np.add.at(distribution, low.astype(np.int64) + 1, chances * high)
    return distribution


def _weights(station: Station, before: FloatArray, followed: float) -> FloatArray:
    """How often each slot counts: those of the last full waves stand for what was not followed."""
    missing = station.total - followed
    weight = np.ones_like(before)
    if missing > 1e-9:
        users = station.users
        inside = (before >= followed - (REPEATED + 1.0) * users) & (before < followed - users)
        weight[inside] += missing / (REPEATED * users)
    return weight


def burst_s(station: Station) -> FloatArray:
    """TTFT [s] of the requests that begin together, shape (requests,): the k-th ends with the step that holds it.

    Every step is full; those whose prompts are done decode beside the rest where steps are mixed.
    """
    count = max(1, round(min(station.users, station.max_running)))
    steps = max(1, math.ceil(count * station.prompt / float(station.room(0.0)) - 1e-9))
    costs = station.config.costs
    index = np.arange(steps, dtype=np.float64)
    done = np.zeros(steps)
    if station.mixed and station.model.pool.role is Role.MIXED:
        done = np.minimum(index * float(station.room(0.0)) / station.prompt, count - 1.0)
    room = content_of(station, done)
    left = np.maximum(count * station.prompt - np.concatenate([[0.0], np.cumsum(room)[:-1]]), 0.0)
    tokens = np.minimum(room, left)
    ends_s = np.cumsum(np.where(tokens > 0.0, station.step_s(done, np.maximum(tokens, 1.0)), 0.0))
    which = np.searchsorted(np.cumsum(tokens), np.arange(1, count + 1) * station.prompt - 1e-6)
    served_s = ends_s[np.minimum(which, steps - 1)]
    admitted_s = np.arange(count) * costs.admission_s
    return np.asarray(costs.request_s + np.maximum(served_s, admitted_s + ends_s[0]))


def queued_s(station: Station, flow: Flow, slot_s: FloatArray) -> FloatArray:
    """Mean time [s] from the slot in which requests are sent to the one in which as many are served, shape (slots,).

    The distance of two curves, as in Little's law. Of the burst, those that get a place at once are left out.
    """
    edges = np.concatenate([[0.0], np.cumsum(slot_s)])
    sent, served = (np.concatenate([[0.0], np.cumsum(values)]) for values in (flow.sent, flow.served))
    middle, sent_s = (sent[:-1] + sent[1:]) / 2.0, (edges[:-1] + edges[1:]) / 2.0
    if flow.backlog[0] > 0.0:
        sent_s[0], middle[0] = 0.0, (min(station.users, station.max_running) + sent[1]) / 2.0
    rising = served + np.arange(served.size) * RISING
    wait_s = np.interp(middle, rising, edges) - sent_s
    return np.where(wait_s > SAME_SLOT * slot_s, wait_s, 0.0)


def first_tokens(
    flow: Flow, ttft_s: FloatArray, burst: FloatArray, weight: FloatArray
) -> tuple[LatencyDistribution, float]:
    """Distribution of TTFT over the requests sent in weighted slots, and their number; `burst` [s] stands for the first."""
    sent = flow.sent * weight
    sent[0] = max(0.0, sent[0] - burst.size)
    chances = np.concatenate([np.ones(burst.size), sent])
    return LatencyDistribution.from_samples(np.concatenate([burst, ttft_s]), chances), float(chances.sum())


def answers(
    station: Station, flow: Flow, ttft: LatencyDistribution, tick_s: FloatArray, handed_s: float, weight: FloatArray
) -> tuple[LatencyDistribution, LatencyDistribution]:
    """Distributions of TPOT and E2E, from the ticks [s] that follow each slot and a delay before the second token [s]."""
    gaps, chances = station.lengths.outputs - 1.0, station.lengths.probabilities
    more = gaps > 0.0
    decoding, none = float(chances[more].sum()), LatencyDistribution.constant(0.0)
    if decoding <= 0.0:
        return none, ttft
    span = float(station.ticks @ chances) / decoding
    per_gap = float((station.ticks[more] / gaps[more]) @ chances[more]) / decoding
    late_s = handed_s * float((1.0 / gaps[more]) @ chances[more]) / decoding
    distribution = LatencyDistribution.from_samples(
        _mean_tick_s(flow, tick_s, span) * per_gap + late_s, flow.served * weight
    )
    few, long = distribution.condensed(16), LatencyDistribution.from_samples(gaps, chances).condensed(64)
    decode = LatencyDistribution.from_samples(
        np.multiply.outer(few.support_s, long.support_s).ravel(), np.multiply.outer(few.weights, long.weights).ravel()
    )
    e2e = LatencyDistribution.independent_sum(ttft.condensed(64), decode.condensed(64))
    return LatencyDistribution.mixture([(distribution, decoding), (none, 1.0 - decoding)]), e2e


def gaps_met(tick_s: FloatArray, flow: Flow, weight: FloatArray) -> LatencyDistribution:
    """Distribution of a single gap between tokens [s]: the ticks of all slots, each met by those that decode in it."""
    met = weight * flow.running
    return LatencyDistribution.from_samples(tick_s, met) if met.sum() > 0.0 else LatencyDistribution.constant(0.0)


def _mean_tick_s(flow: Flow, tick_s: FloatArray, span: float) -> FloatArray:
    """Mean duration [s] of the `span` ticks that follow the middle of each slot, shape (slots,)."""
    edges = np.concatenate([[0.0], np.cumsum(tick_s * flow.width)])
    starts = np.arange(flow.sent.size) + 0.5
    ends = starts + span / flow.width
    beyond = np.maximum(ends - flow.sent.size, 0.0)
    index = np.arange(edges.size)
    seconds = np.interp(ends, index, edges) - np.interp(starts, index, edges)
    return np.asarray((seconds + beyond * tick_s[-1] * flow.width) / span)


def pool_figures(
    station: Station,
    busy: float,
    running: float,
    prompt_tokens: float,
    mean_step_s: float,
    like: PoolPerformance | None = None,
) -> PoolPerformance:
    """How a pool works: share of time it is busy, sequences decoding, prompt tokens a step, step [s].

    `like` has the bound already: the steady part waits for what the whole run waits for.
    """
    model, pool = station.model, station.model.pool
    shape = step_shapes(np.array(max(running, 1e-9)), np.array(prompt_tokens), model.costs)
    bound = list(Bound)[int(pool.config.timer.bounds_s(shape).argmax())] if like is None else like.bound
    held = running if pool.role is not Role.PREFILL else busy
    limit = PoolLimit(bound.value)
    if station.users > station.max_running and pool.role is not Role.PREFILL:
        kv_first = model.kv_running < pool.config.max_running_requests
        limit = PoolLimit.KV_CAPACITY if kv_first else PoolLimit.RUNNING_REQUESTS
    occupancy = min(1.0, held * model.held_tokens / model.footprint.kv_capacity_tokens)
    return PoolPerformance(pool.role, busy, limit, bound, running, mean_step_s, occupancy)
