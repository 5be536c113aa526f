"""One replica of a closed loop in ticks, the flow of requests through it, and what benchmark clients make of that.

A *tick* is a step in which sequences decode. How many ticks an answer takes is a matter of its length alone. Answers
end, hence the next requests come, at ticks. So the flow is worked out in ticks, as a fluid, before any step is timed:

    ended(t) = sum_l p(l) * served(t - l),   sent = ended until all are sent,
    served = min(waiting + sent, room for prompts in the steps, free places)

with p the distribution of ticks from one request of a user to the next (renewal equation, Cox 1962, Renewal Theory, ch.
4, with a queue in the loop). Narrow distributions keep users in waves; those widen with every answer, which the sum
follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.engine import ReplicaConfig
from planner.roofline import Bound
from planner.serving.pool import (
    PoolModel,
    decode_steps,
    in_random_order,
    most_running_with,
    pool_model,
    step_shapes,
    tokens_per_step,
)
from planner.serving.types import Latencies, Pool, PoolLimit, PoolPerformance, Role
from planner.workload import ClosedLoop, LatencyDistribution, TokenLengths

SLOTS_PER_REQUEST, MOST_SLOTS_FOLLOWED = 32, 600.0
"""Slots of time per mean request: keeps waves of 6 % of a request (lengths uniform on the upper fifth); and at most
for the requests that are followed, where waiting for prompts or places makes a run long. A choice."""
REQUESTS_FOLLOWED_PER_USER, REQUESTS_REPEATED_PER_USER = 12.0, 4.0
"""Requests per user followed one by one, and those before the last that stand for the later ones of a longer run, which
repeat them. A choice."""
MOST_LOAD = 0.98
"""Load of the prompts from which on what chance adds to their wait is worked out at this load. A choice."""
RUNNING_AT_END = 0.5
"""The run ends when so many requests are expected to run still: the median end of the last. A definition."""
MOST_SLOTS = 4000
"""Slots at most: a guard, reached only by distributions whose longest answer is a hundred times the mean."""
LEAST_RISE = 1e-9
"""Added to a curve at every slot so that it has an inverse [requests]."""
LEAST_WAIT_SLOTS = 1e-3
"""Waits below this share of a slot are rounding."""
ANSWER_POINTS, LATENCY_POINTS = 16, 64
"""Points that distributions of TPOT, and of output lengths and TTFT, are condensed to before they are multiplied."""


@dataclass(frozen=True)
class Station:
    """One replica that serves prompts and decodes, in ticks.

    Attributes:
        model: of the pool.
        lengths: of the requests.
        replicas: how many there are like it.
        users, total: users and requests of one replica.
        ticks: decode ticks of each length cell, shape (cells,).
        tokens_per_decode: tokens of the chunk budget that a decoding sequence takes.
        delay_ticks: between the end of an answer and the step at which the next request is looked at, while others
            decode.
        look_ticks: between two steps at which arrivals are looked at, or for which prompts are held back.
    """

    model: PoolModel
    lengths: TokenLengths
    replicas: int
    users: float
    total: float
    ticks: FloatArray
    tokens_per_decode: float
    delay_ticks: float
    look_ticks: float

    @property
    def config(self) -> ReplicaConfig:
        """Of a replica."""
        return self.model.pool.config

    @property
    def probabilities(self) -> FloatArray:
        """Of each length cell, shape (cells,)."""
        return self.lengths.probabilities

    @property
    def mean_prompt(self) -> float:
        """Mean input tokens."""
        return self.lengths.mean_input

    @property
    def ticks_variance(self) -> float:
        """Variance of the ticks of a request."""
        return float((self.ticks - self.ticks @ self.probabilities) ** 2 @ self.probabilities)

    @property
    def burst_ticks(self) -> float:
        """Ticks in which the first burst comes to decode: those its prompts take, 1 where prompts stop decodes."""
        if not self.is_mixed:
            return 1.0
        return max(1.0, min(self.users, self.max_running) * self.mean_prompt / float(self.room(0.0)))

    @property
    def users_per_step(self) -> float:
        """Users whose first prompts end in one step, or before one tick where prompts stop the decodes."""
        inside = min(self.users, self.max_running)
        return min(inside, max(1.0, float(self.room(0.0)) / self.mean_prompt)) if self.is_mixed else inside

    @property
    def is_mixed(self) -> bool:
        """True if prompts and decodes share steps."""
        return self.config.schedule.mixed_steps

    @property
    def max_running(self) -> float:
        """Most requests at once."""
        limit = self.model.most_places
        if self.is_mixed:
            limit = min(limit, self.config.step_tokens // self.tokens_per_decode, float(self._most_running_with.max()))
        return max(1.0, limit)

    @cached_property
    def _most_running_with(self) -> FloatArray:
        return most_running_with(self.model.pool, self.lengths)

    def most_running_in_turn(self, count: int) -> FloatArray | None:
        """Most requests at once when each of `count` prompts is the last to have come; None where that is no limit.

        A prompt that does not fit holds back all that came after it.
        """
        limits = self._most_running_with
        if float(limits[self.probabilities > 0.0].min()) >= min(self.users, self.max_running):
            return None
        return np.asarray(limits[in_random_order(self.probabilities, count)])

    @cached_property
    def burst_size(self) -> int:
        """Of the requests that begin together, those whose prompts are served one after the other from the start."""
        count = max(1, round(min(self.users, self.max_running)))
        limits = self.most_running_in_turn(count)
        if limits is None:
            return count
        held_back = np.flatnonzero(limits < np.arange(1, count + 1))
        return max(1, int(held_back[0])) if held_back.size else count

    def room(self, running: FloatArray | float) -> FloatArray:
        """Prompt tokens of a full step beside so many decodes [tokens]; of whole prompts at least a mean one."""
        budget, stages = float(self.config.max_batched_tokens), self.config.parallelism.pp
        decodes = np.asarray(running, dtype=np.float64) * (self.tokens_per_decode if self.is_mixed else 0.0)
        left = np.maximum(budget - decodes / stages, 1.0)
        if self.config.schedule.whole_prompts:
            left = np.maximum(np.floor(left / self.mean_prompt), 1.0) * self.mean_prompt
        return np.asarray(left * stages)

    def step_s(self, running: FloatArray, tokens: FloatArray) -> FloatArray:
        """Duration [s] of steps of `running` decodes and `tokens` prompt tokens."""
        seconds = self.config.timer.times_s(step_shapes(running, tokens, self.model.costs))
        seconds = np.maximum(seconds, self.config.stream_s * running)
        extras = self.model.extras
        return seconds if extras is None else seconds + extras.images_s(tokens)

    def burst_ttft_s(self) -> FloatArray:
        """TTFT [s] of the requests that begin together, shape (requests,): the k-th ends with the step that holds it.

        Every step is full; those whose prompts are done decode beside the rest where steps are mixed.
        """
        count = self.burst_size
        steps = max(1, math.ceil(count * self.mean_prompt / float(self.room(0.0)) - 1e-9))
        costs = self.config.costs
        index = np.arange(steps, dtype=np.float64)
        done = np.zeros(steps)
        if self.is_mixed and self.model.pool.role is Role.MIXED:
            done = np.minimum(index * float(self.room(0.0)) / self.mean_prompt, count - 1.0)
        room = self.room(done)
        left = np.maximum(count * self.mean_prompt - np.concatenate([[0.0], np.cumsum(room)[:-1]]), 0.0)
        tokens = np.minimum(room, left)
        ends_s = np.cumsum(np.where(tokens > 0.0, self.step_s(done, np.maximum(tokens, 1.0)), 0.0))
        last_step = np.searchsorted(np.cumsum(tokens), np.arange(1, count + 1) * self.mean_prompt - 1e-6)
        served_s = ends_s[np.minimum(last_step, steps - 1)]
        admitted_s = np.arange(count) * costs.admission_s
        return np.asarray(costs.request_s + np.maximum(served_s, admitted_s + ends_s[0]))

    def pool_performance(
        self,
        busy: float,
        running: float,
        prompt_tokens: float,
        mean_step_s: float,
        whole_run: PoolPerformance | None = None,
    ) -> PoolPerformance:
        """How the pool works at a mean content of its steps.

        Args:
            busy: share of the time in which it works.
            running: sequences that decode.
            prompt_tokens: of a step.
            mean_step_s: mean duration of a step [s].
            whole_run: of the steady part: the whole run, which has the same bound.
        """
        model, pool = self.model, self.model.pool
        shape = step_shapes(np.array(max(running, 1e-9)), np.array(prompt_tokens), model.costs)
        bound = list(Bound)[int(pool.config.timer.bounds_s(shape).argmax())] if whole_run is None else whole_run.bound
        held = running if pool.role is not Role.PREFILL else busy
        limit = PoolLimit(bound.value)
        if float(self._most_running_with.min()) < min(self.users, model.most_places):
            limit = PoolLimit.BATCHED_TOKENS
        elif self.users > self.max_running and pool.role is not Role.PREFILL:
            kv_first = model.kv_running < pool.config.max_running_requests
            limit = PoolLimit.KV_CAPACITY if kv_first else PoolLimit.RUNNING_REQUESTS
        occupancy = min(1.0, held * model.held_tokens / model.footprint.kv_capacity_tokens)
        return PoolPerformance(pool.role, busy, limit, bound, running, mean_step_s, occupancy)


def station_of(pool: Pool, lengths: TokenLengths, loop: ClosedLoop) -> Station:
    """One replica of a pool with its share of the users.

    Args:
        pool: the pool.
        lengths: of the requests.
        loop: users and requests of the whole deployment.

    Returns:
        The replica; its delays and looks in ticks of the step that all its users make [-].
    """
    config, count = pool.config, min(pool.replicas, loop.concurrency, loop.total_requests)
    users = min(loop.concurrency, loop.total_requests) / count
    speculation, schedule = config.speculation, config.schedule
    tokens_per_decode = 1.0 + (speculation.draft_tokens if speculation else 0.0)
    model = pool_model(pool, lengths)
    ticks = decode_steps(lengths.outputs, tokens_per_step(config))
    total = loop.total_requests / count
    prompt_only = Station(model, lengths, count, users, total, ticks, tokens_per_decode, 0.0, 1.0)
    busy = min(users, prompt_only.max_running)
    step_s = float(prompt_only.step_s(np.array([busy]), np.zeros(1))[0])
    late_ticks = config.costs.request_s / step_s
    interval = float(schedule.receive_interval_steps)
    delay_ticks = math.ceil(late_ticks - 1e-9) if interval <= 1.0 else late_ticks + (interval - 1.0) / 2.0
    per_tick = busy / max(float(ticks @ lengths.probabilities), 1.0)
    fill = schedule.batch_wait_fill * config.max_batched_tokens / lengths.mean_input
    enough_ticks = (schedule.batch_wait_requests or fill) / max(per_tick, 1e-12)
    hold = min(float(schedule.batch_wait_steps), enough_ticks)
    delay_ticks += config.costs.lag_steps + hold / 2.0
    return replace(prompt_only, delay_ticks=delay_ticks, look_ticks=max(interval, hold, 1.0))


@dataclass(frozen=True)
class Flow:
    """The run in slots of `width` ticks; every array has shape (slots,).

    Attributes:
        width: ticks of a slot.
        sent, served: requests sent and begun to decode in a slot.
        backlog: of those served, how many had waited.
        running: decoding sequences, mean over the slot.
        before: requests sent before the slot.
        weight: how often the slot counts (above 1 where it stands for slots not followed).
    """

    width: float
    sent: FloatArray
    served: FloatArray
    backlog: FloatArray
    running: FloatArray
    before: FloatArray
    weight: FloatArray

    def steady(self, users: float) -> BoolArray:
        """Which slots are steady: after two requests of each user, before the last of each; shape (slots,)."""
        middle = self.before + self.sent / 2.0
        begun, ending = 2.0 * users + RUNNING_AT_END, float(self.sent.sum()) - users + RUNNING_AT_END
        return np.asarray((middle >= begun) & (middle < ending))


def flow_of(station: Station, ramp_ticks: float, cycle: FloatArray, capacity: FloatArray) -> Flow:
    """Requests sent, begun and ended per slot of ticks.

    Args:
        station: one replica.
        ramp_ticks: over which its users start; 0 = together.
        cycle: ticks from a request to the next of the same user, shape (cells,).
        capacity: prompts served in a tick, by the number of sequences running.

    Returns:
        The flow [requests per slot], until half a request is expected to run still.
    """
    users, total = station.users, min(station.total, REQUESTS_FOLLOWED_PER_USER * station.users)
    cycle = np.maximum(cycle, 1.0)
    mean = float(cycle @ station.probabilities)
    most = min(users, station.max_running)
    slowest = max(1.0 / max(float(capacity.min()), 1e-9), mean / most)
    width = max(mean / SLOTS_PER_REQUEST, total * slowest / MOST_SLOTS_FOLLOWED)
    inside = min(1.0, mean / width)
    slots_to_next = _on_whole_slots(cycle / width, station.probabilities)
    ending = np.zeros(MOST_SLOTS + slots_to_next.size + 1)
    sent, served, backlog, running, before = [], [], [], [], []
    burst = 0.0 if ramp_ticks > 0.0 else users
    now = 0.0
    waiting = all_sent = started = burst
    places, all_served = station.max_running / inside, 0.0
    limits = station.most_running_in_turn(math.ceil(total) + 1)
    in_turn = [] if limits is None else (limits / inside).tolist()
    room = (capacity * width).tolist()
    for slot in range(MOST_SLOTS):
        ended = min(float(ending[slot]), now)
        new = min(users - started, users * width / ramp_ticks) if ramp_ticks > 0.0 else 0.0
        started += new
        fresh = min(ended + new, total - all_sent)
        free = places - now + ended
        begun = max(0.0, min(waiting + fresh, room[int(now * inside)], free))
        if in_turn:
            begun = _let_in(begun, now - ended, all_served, in_turn)
        sent.append(fresh + (burst if slot == 0 else 0.0))
        before.append(all_sent - (burst if slot == 0 else 0.0))
        served.append(begun)
        backlog.append(min(begun, waiting))
        all_sent += fresh
        all_served += begun
        waiting += fresh - begun
        running.append((now + (begun - ended) / 2.0) * inside)
        now += begun - ended
        if begun > 0.0:
            ending[slot + 1 : slot + 1 + slots_to_next.size] += begun * slots_to_next
        if all_sent >= total - 1e-9 and waiting < 1e-6 and now < min(RUNNING_AT_END, total / 2.0):
            break
    sent_before = np.array(before)
    return Flow(
        width=width,
        sent=np.array(sent),
        served=np.array(served),
        backlog=np.array(backlog),
        running=np.array(running),
        before=sent_before,
        weight=_weights(station, sent_before, total),
    )


def _let_in(most: float, inside: float, before: float, limits: list[float]) -> float:
    """How many of `most` prompts come in beside `inside` requests, in turn, each up to its limit of requests at once.

    `before` have come in already. The first that does not fit holds back the others.
    """
    begun = 0.0
    while most - begun > LEAST_RISE:
        turn = int(before + begun + LEAST_RISE)
        part = min(turn + 1.0 - before - begun, most - begun)
        fits = limits[min(turn, len(limits) - 1)] - inside - begun
        if fits < part:
            return begun + max(fits, 0.0)
        begun += part
    return begun


def _on_whole_slots(slots: FloatArray, probabilities: FloatArray) -> FloatArray:
    """A distribution on whole slots with the same mean, from slot 1 on: each point is shared by its two neighbours."""
    slots = np.maximum(slots, 1.0) - 1.0
    low = np.floor(slots + 1e-9)
    share_above = np.clip(slots - low, 0.0, 1.0)
    distribution = np.zeros(int(low.max()) + 2)
    np.add.at(distribution, low.astype(np.int64), probabilities * (1.0 - share_above))
    np.add.at(distribution, low.astype(np.int64) + 1, probabilities * share_above)
    return distribution


def _weights(station: Station, before: FloatArray, followed: float) -> FloatArray:
    """How often each slot counts: those of the last full waves stand for what was not followed."""
    missing = station.total - followed
    weight = np.ones_like(before)
    if missing > 1e-9:
        users = station.users
        inside = (before >= followed - (REQUESTS_REPEATED_PER_USER + 1.0) * users) & (before < followed - users)
        weight[inside] += missing / (REQUESTS_REPEATED_PER_USER * users)
    return weight


def queue_wait_s(station: Station, flow: Flow, slot_s: FloatArray) -> FloatArray:
    """Mean time from the slot in which requests are sent to the one in which as many are served.

    The distance of two curves, as in Little's law. Of the burst, those that get a place at once are left out.

    Args:
        station: one replica.
        flow: requests sent and served per slot.
        slot_s: duration of each slot [s], shape (slots,).

    Returns:
        The wait of the requests sent in each slot [s], shape (slots,).
    """
    edges = np.concatenate([[0.0], np.cumsum(slot_s)])
    sent, served = (np.concatenate([[0.0], np.cumsum(values)]) for values in (flow.sent, flow.served))
    middle, sent_s = (sent[:-1] + sent[1:]) / 2.0, (edges[:-1] + edges[1:]) / 2.0
    if flow.backlog[0] > 0.0:
        sent_s[0], middle[0] = 0.0, (station.burst_size + sent[1]) / 2.0
    rising = served + np.arange(served.size) * LEAST_RISE
    wait_s = np.interp(middle, rising, edges) - sent_s
    return np.where(wait_s > LEAST_WAIT_SLOTS * slot_s, wait_s, 0.0)


def client_latencies(
    flow: Flow,
    weight: FloatArray,
    station: Station,
    *,
    ttft_s: FloatArray,
    burst_ttft_s: FloatArray,
    tick_s: FloatArray,
    second_token_delay_s: float = 0.0,
) -> tuple[Latencies, float]:
    """Latencies that a client measures on the requests of some slots.

    Args:
        flow: the run.
        weight: how often each slot counts, shape (slots,).
        station: the replica that decodes.
        ttft_s: of the requests sent in each slot [s], shape (slots,).
        burst_ttft_s: of the first requests, one by one [s]; they stand in for as many of the first slot.
        tick_s: duration of a tick in each slot [s], shape (slots,).
        second_token_delay_s: between first token and first decode [s].

    Returns:
        Distributions [s] and the number of requests of one replica.
    """
    sent = flow.sent * weight
    sent[0] = max(0.0, sent[0] - burst_ttft_s.size)
    counts = np.concatenate([np.ones(burst_ttft_s.size), sent])
    ttft = LatencyDistribution.from_samples(np.concatenate([burst_ttft_s, ttft_s]), counts)
    tpot, e2e = _answer_latencies(flow, weight, station, ttft, tick_s, second_token_delay_s)
    met = weight * flow.running
    itl = LatencyDistribution.from_samples(tick_s, met) if met.sum() > 0.0 else LatencyDistribution.constant(0.0)
    return Latencies(ttft, tpot, e2e, itl), float(counts.sum())


def _answer_latencies(
    flow: Flow,
    weight: FloatArray,
    station: Station,
    ttft: LatencyDistribution,
    tick_s: FloatArray,
    second_token_delay_s: float,
) -> tuple[LatencyDistribution, LatencyDistribution]:
    """Distributions of TPOT and E2E [s], from the ticks that follow each slot and the delay of the second token."""
    lengths: TokenLengths = station.lengths
    gaps, probabilities = lengths.outputs - 1.0, lengths.probabilities
    more = gaps > 0.0
    decoding, none = float(probabilities[more].sum()), LatencyDistribution.constant(0.0)
    if decoding <= 0.0:
        return none, ttft
    span = float(station.ticks @ probabilities) / decoding
    per_gap = float((station.ticks[more] / gaps[more]) @ probabilities[more]) / decoding
    late_s = second_token_delay_s * float((1.0 / gaps[more]) @ probabilities[more]) / decoding
    tpot = LatencyDistribution.from_samples(_mean_tick_s(flow, tick_s, span) * per_gap + late_s, flow.served * weight)
    few = tpot.condensed(ANSWER_POINTS)
    long = LatencyDistribution.from_samples(gaps, probabilities).condensed(LATENCY_POINTS)
    decode = LatencyDistribution.from_samples(
        np.multiply.outer(few.support_s, long.support_s).ravel(), np.multiply.outer(few.weights, long.weights).ravel()
    )
    e2e = LatencyDistribution.independent_sum(ttft.condensed(LATENCY_POINTS), decode.condensed(LATENCY_POINTS))
    return LatencyDistribution.mixture([(tpot, decoding), (none, 1.0 - decoding)]), e2e


def _mean_tick_s(flow: Flow, tick_s: FloatArray, span: float) -> FloatArray:
    """Mean duration [s] of the `span` ticks that follow the middle of each slot, shape (slots,)."""
    edges = np.concatenate([[0.0], np.cumsum(tick_s * flow.width)])
    starts = np.arange(flow.sent.size) + 0.5
    ends = starts + span / flow.width
    beyond = np.maximum(ends - flow.sent.size, 0.0)
    index = np.arange(edges.size)
    seconds = np.interp(ends, index, edges) - np.interp(starts, index, edges)
    return np.asarray((seconds + beyond * tick_s[-1] * flow.width) / span)
