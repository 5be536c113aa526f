"""Closed loops from theory: a fixed number of users, each of whom sends a request when the last one is answered.

`closed_station` says what one replica takes and who is where in ticks (decode steps); here ticks are timed, and what a
benchmark client measures on the whole run follows: the first burst, waves after it, stragglers.

On a mixed pool ticks are timed at their mean content. The chance of a prompt in a step follows from Poisson arrivals
(binomial among few users); of the prompts one meets others' (K - 1) / K of them (the arrival theorem: Reiser and
Lavenberg 1980, J. ACM 27(2)). What waits before a busy prompt queue is the distance of the curves of sent and served
requests (Little's law), plus what chance adds: the approximation of Sakasegawa 1977 (Ann. Inst. Stat. Math. 29) for c
prompts a step, halved for constant service. Users whose answers are alike stay in the groups in which the first burst
was served; how far they still do is followed from the variance of the lengths.

On disaggregated pools a station of prompts, a transfer and a station of decodes are a ring: prompts are served at the
rate of the prefill pool in the time a tick of the decode pool takes; own prompt, request overhead and KV transfer are a
delay between two answers, in which a user's request does not decode. How many decode, hence how long a tick takes,
follows from that delay: a fixed point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.core import FloatArray, UnsupportedFeatureError
from planner.serving.closed_station import (
    MOST_LOAD,
    RUNNING_AT_END,
    Flow,
    Station,
    client_latencies,
    flow_of,
    queue_wait_s,
    station_of,
)
from planner.serving.kv_transfer import piecewise_transfers
from planner.serving.pool import last_piece_s
from planner.serving.types import Deployment, Method, Performance, PoolPerformance
from planner.workload import ClosedLoop, TokenLengths

REQUESTS_TO_HALFWAY = 5.0
"""Requests per user after which it is asked how far users still move together: half of ten each. A choice."""
REFLECTED_WALK_MEAN = 0.8
"""Mean of the reflected random walk, sqrt(2 / pi): a balanced queue after a arrivals holds 0.8 sqrt(a)."""
FIXED_POINT_ROUNDS = 12
"""Rounds of the fixed point of delay and decode time: it contracts as (delay / cycle) of a flat step time. A choice."""


def closed_loop_performance(
    deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths, assumptions: tuple[str, ...]
) -> Performance:
    """The whole run of a closed loop, and its steady part.

    Args:
        deployment: the pools.
        loop: users and requests.
        lengths: of the requests.
        assumptions: what the result is to say of itself.

    Returns:
        Latencies [s] of all requests; `steady` has those of the steady part, if there is one.

    Raises:
        InputError: the model, its KV cache or the longest request does not fit.
        UnsupportedFeatureError: a pool of encoders, which only the simulator plays with users.
    """
    if deployment.pools[0].encoders:
        bound = "the theory of closed loops has no pools of encoders"
        raise UnsupportedFeatureError("deployment.pools.encoders", deployment.pools[0].encoders, bound, "simulate it")
    stations = [station_of(pool, lengths, loop) for pool in deployment.pools]
    first, last = stations[0], stations[-1]
    burst_ttft_s = first.burst_ttft_s() if loop.ramp_s == 0.0 else np.zeros(0)
    if deployment.is_disaggregated:
        ring = _ring(deployment, first, last, lengths)
        typical_s = float(ring.tick_s[min(int(last.users), ring.tick_s.size - 1)])
        capacity = ring.tick_s / ring.saturated_s * ring.prefill_per_decode
        flow = flow_of(last, loop.ramp_s / typical_s, last.ticks + ring.delay_s / typical_s, capacity)
        measured = partial(_tandem_performance, ring, flow, assumptions)
    else:
        step_s = float(last.step_s(np.array([last.users]), np.zeros(1))[0])
        flow = flow_of(last, loop.ramp_s / step_s, _cycle_ticks(last), _prompts_per_tick(last))
        measured = partial(_mixed_performance, last, flow, assumptions, _timed(last, flow))
    whole = measured(burst_ttft_s, flow.weight)
    steady = flow.weight * flow.steady(last.users)
    return replace(whole, steady=measured(np.zeros(0), steady, whole.pools)) if float(steady @ flow.sent) else whole


# --- a mixed pool ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedFlow:
    """Durations of a flow, each of shape (slots,) [s].

    Attributes:
        slot_s: duration of the slot.
        tick_s: of a tick in it, as others see it (their own prompts left out).
        own_s: a prompt's own steps.
        wait_s: what its request waits before.
    """

    slot_s: FloatArray
    tick_s: FloatArray
    own_s: FloatArray
    wait_s: FloatArray


def _prompts_per_tick(station: Station) -> FloatArray:
    """Prompts a tick takes, by the number of sequences that decode (0, 1, ...); as many as come without mixed steps."""
    decodes = np.arange(math.ceil(min(station.users, station.max_running)) + 2.0)
    if not station.is_mixed:
        return np.full(decodes.size, math.inf)
    return station.room(decodes) / station.mean_prompt


def _cycle_ticks(station: Station) -> FloatArray:
    """Ticks from a request to the next of the same user, shape (cells,).

    Where there are more users than places, requests are looked at while they wait for one: only what is left of the
    delay by then holds up the place.
    """
    running = min(station.users, station.max_running)
    prompt = 0.0
    if station.is_mixed:
        prompt = math.ceil(station.mean_prompt / float(station.room(running)))
    inside = station.ticks + prompt
    late = station.delay_ticks * float(_others_decode(station, _lasting_lockstep(station)))
    mean = float(inside @ station.probabilities)
    return inside + max(0.0, (mean + late) * running / max(station.users, 1e-12) - mean)


def _timed(station: Station, flow: Flow) -> TimedFlow:
    """Durations of the slots' steps, and what the first tokens of the requests sent in them take."""
    users, prompt = max(station.users, 1.0), station.mean_prompt
    n = np.maximum(flow.running, min(RUNNING_AT_END, users))
    width, room = flow.width, station.room(n)
    fresh = np.maximum(flow.served - flow.backlog, 0.0)
    active, lock = _lockstep(station, flow)
    rate = fresh / active
    inside = max(1.0, min(users, station.max_running))
    group = np.minimum(np.maximum(room / prompt, 1.0), inside)
    together, seen = (group, 1.0) if station.is_mixed else (inside, 0.5)
    others = (1.0 - lock) * rate * (1.0 - 1.0 / users) * station.look_ticks + lock * (together - 1.0)
    pieces = math.ceil(prompt / float(station.room(min(users, station.max_running))))
    load = rate * prompt / room
    some_send = 1.0 - (1.0 - np.clip(rate * station.look_ticks / users, 0.0, 1.0)) ** users
    met = some_send / station.look_ticks
    steps = np.maximum(load, np.minimum(met * pieces, 1.0) if station.is_mixed else met * pieces)
    steps = np.maximum(steps, rate / users)  # no step holds more prompts than there are users
    content = np.minimum(rate * prompt / np.maximum(steps, 1e-12), room)
    packed = np.maximum(flow.backlog * prompt / room, np.minimum(flow.backlog, min(width, 1.0)))
    packed_tokens = np.minimum(flow.backlog * prompt / np.maximum(packed, 1e-12), room)
    beside = n if station.is_mixed else np.zeros_like(n)
    mine = np.minimum(prompt * (1.0 + others), room)
    rest = prompt - (pieces - 1.0) * room + prompt * (others + lock * np.minimum(load, users - 1.0))
    rest = np.clip(rest, 1.0, room)
    alone = np.minimum(n, np.maximum(users - 1.0, 0.0)) if station.is_mixed else np.zeros_like(n)
    tokens = [0.0 * n, content, packed_tokens, np.where(pieces > 1, rest, mine), room]
    decodes = [n, beside, beside, alone, alone]
    plain, some, full, last, whole = station.step_s(np.array(decodes), np.maximum(np.array(tokens), 0.0))
    if station.config.parallelism.pp > 1:
        occupied = min(1.0, float(flow.served @ (prompt / room)) / (width * flow.served.size))
        behind_s = (1.0 - occupied) * last_piece_s(station.model, np.full_like(n, prompt), 0.0)
        some, last = some + behind_s, last + behind_s
    over = plain if station.is_mixed else 0.0
    fresh_s, packed_s = active * steps * (some - over), packed * (full - over)
    slot_s = width * plain + fresh_s + packed_s
    apart = (1.0 - lock) * (1.0 - 1.0 / users) + lock * seen * (1.0 - group / inside)
    tick_s = plain + (fresh_s + packed_s) * apart / width
    tick_s[0] = plain[0] + ((fresh_s * apart + packed_s * (1.0 - group / inside)) / width)[0]
    mean_step_s = slot_s / (width + (0.0 if station.is_mixed else active * steps + packed))
    own_s = _own_s(station, flow, last, whole, room, load * (1.0 - lock), others, pieces)
    pace_s = plain if station.look_ticks > 1.0 else mean_step_s  # no prompt comes in while requests are not looked at
    wait_s = _wait_s(station, flow, slot_s, pace_s)
    return TimedFlow(slot_s, tick_s, own_s, wait_s)


def _others_decode(station: Station, lock: FloatArray | float) -> FloatArray:
    """Chance that others decode when a request comes: nobody does where all users move together."""
    alike = np.clip(station.users - station.users_per_step, 0.0, 1.0)
    return np.asarray((1.0 - lock) * np.clip(station.users - 1.0, 0.0, 1.0) + lock * alike)


def _lasting_lockstep(station: Station) -> float:
    """How much users still move together halfway through ten requests each, in [0, 1]."""
    spread = station.burst_ticks
    return spread / (spread + math.sqrt(12.0 * station.ticks_variance * REQUESTS_TO_HALFWAY))


def _lockstep(station: Station, flow: Flow) -> tuple[FloatArray, FloatArray]:
    """Ticks of each slot in which requests come, and how much those served together in the burst still are.

    The burst is spread over as many ticks as its prompts take; every answer adds the variance of its length, a uniform
    distribution of which is sqrt(12 variance) wide. Users whose answers are all alike stay in the groups of the burst
    for ever.
    """
    spread = station.burst_ticks
    apart = spread + np.sqrt(12.0 * station.ticks_variance * flow.before / station.users)
    return np.clip(apart, min(1.0, flow.width), flow.width), spread / apart


def _own_s(
    station: Station,
    flow: Flow,
    last_s: FloatArray,
    full_s: FloatArray,
    room: FloatArray,
    load: FloatArray,
    others: FloatArray,
    pieces: int,
) -> FloatArray:
    """The steps of a prompt itself [s], with the prompts that share or precede them by chance, shape (slots,).

    `last_s` and `full_s` are the durations of the step that ends a prompt and of a full one, `room` the prompt tokens
    of a full step, `load` and `others` the share of `room` and the prompts that come by chance, `pieces` the steps of a
    prompt.
    """
    capacity = room / station.mean_prompt
    if station.is_mixed:
        behind = np.minimum(load * (1.0 - 1.0 / max(station.users, 1.0)), MOST_LOAD)
        queued = behind ** (np.sqrt(2.0 * (np.maximum(capacity, 1.0) + 1.0)) - 1.0) / (2.0 * (1.0 - behind))
        queued = np.minimum(queued, REFLECTED_WALK_MEAN * np.sqrt(np.maximum(flow.sent, 0.0)))
        single = (pieces - 1.0) * full_s + last_s + queued / capacity * full_s
    else:
        together = (1.0 + others) / capacity
        turn = (together + np.maximum(1.0, 1.0 / capacity)) / 2.0
        single = np.where(together > 1.0, turn * full_s, last_s)
    share = np.clip(flow.backlog / np.maximum(flow.served, 1e-12), 0.0, 1.0)
    return np.asarray((1.0 - share) * single + share * 0.5 * np.maximum(1.0, 1.0 / capacity) * full_s)


def _wait_s(station: Station, flow: Flow, slot_s: FloatArray, step_s: FloatArray) -> FloatArray:
    """Mean wait [s] of the requests sent in each slot, for their turn and for being looked at, shape (slots,)."""
    request_s = station.config.costs.request_s
    late_s = np.maximum(station.delay_ticks * step_s - request_s, 0.0)
    busy = _others_decode(station, _lockstep(station, flow)[1])
    return np.asarray(queue_wait_s(station, flow, slot_s) + request_s + busy * late_s)


def _mixed_performance(
    station: Station,
    flow: Flow,
    assumptions: tuple[str, ...],
    times: TimedFlow,
    burst_ttft_s: FloatArray,
    weight: FloatArray,
    whole_run: tuple[PoolPerformance, ...] = (),
) -> Performance:
    """Performance on the requests of some slots; `weight` says how often each slot counts."""
    ttft_s = times.wait_s + times.own_s
    seen, requests = client_latencies(
        flow, weight, station, ttft_s=ttft_s, burst_ttft_s=burst_ttft_s, tick_s=times.tick_s
    )
    lock = _lasting_lockstep(station)
    idle = (1.0 - float(_others_decode(station, lock))) * requests / (1.0 + lock * (station.users_per_step - 1.0))
    request_s = station.config.costs.request_s
    seconds = float(weight @ times.slot_s) + max(idle, float(bool(burst_ttft_s.size))) * request_s
    rate = station.replicas * requests / seconds
    busy_s = weight * times.slot_s
    running = float(busy_s @ flow.running) / float(busy_s.sum())
    ticks = float(weight.sum()) * flow.width
    prompt_tokens = float(weight @ flow.served) * station.mean_prompt / ticks
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=rate,
        stable=True,
        **seen._asdict(),
        pools=(station.pool_performance(1.0, running, prompt_tokens, float(busy_s.sum()) / ticks, *whole_run),),
        assumptions=assumptions,
        output_tokens_per_s=rate * station.lengths.mean_output,
    )


# --- a prefill and a decode pool --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ring:
    """The two stations and what lies between answers.

    Attributes:
        prefill, decode: one replica of the prefill and of the decode pool.
        prompt_s: one prompt alone [s].
        saturated_s: seconds per prompt of a busy prefill replica.
        transfer_s: mean KV transfer [s].
        late_first: the first token comes from the decode replica.
        decoding_share: of its cycle in the decode station a request really decodes.
        tick_s: decode step by the number in the station (0, 1, ...) [s].
    """

    prefill: Station
    decode: Station
    prompt_s: float
    saturated_s: float
    transfer_s: float
    late_first: bool
    decoding_share: float
    tick_s: FloatArray

    @property
    def delay_s(self) -> float:
        """Between the end of an answer and the first decode of the next, where nothing queues."""
        costs = self.prefill.config.costs
        return costs.request_s + self.prompt_s + costs.transfer_request_s + self.transfer_s

    @property
    def prefill_per_decode(self) -> float:
        """Prefill replicas for each decode replica."""
        return self.prefill.replicas / self.decode.replicas


def _ring(deployment: Deployment, prefill: Station, decode: Station, lengths: TokenLengths) -> Ring:
    """The ring with its fixed point: n = users * D / (D + delay / tick(n)) sequences decode, D ticks an answer."""
    room = float(prefill.config.max_batched_tokens)
    prompt, zero = prefill.mean_prompt, np.zeros(2)
    whole = np.floor(prompt / room)
    full_s, rest_s = prefill.step_s(zero, np.array([room, max(prompt - whole * room, 1.0)]))
    alone_s = float(whole * full_s + (rest_s if prompt > whole * room else 0.0))
    transfer_s = float(piecewise_transfers(deployment, lengths).exposed_s() @ lengths.probabilities)
    most = min(decode.users, decode.max_running)
    grid = np.arange(np.ceil(most) + 2.0)
    ticks = max(1.0, float(decode.ticks @ decode.probabilities))
    steps_s = decode.step_s(np.maximum(grid, RUNNING_AT_END), np.zeros(grid.size))
    late_first = deployment.transfer.first_token_from_decode
    ring = Ring(prefill, decode, alone_s, float(full_s) * prompt / room, transfer_s, late_first, 1.0, steps_s)
    running = most
    for _ in range(FIXED_POINT_ROUNDS):
        tick_s = float(np.interp(running, grid, steps_s))
        running = min(most, decode.users * ticks / (ticks + ring.delay_s / tick_s))
    share = min(1.0, ticks / (ticks + ring.delay_s / tick_s))
    decoding_s = decode.step_s(np.maximum(grid * share, RUNNING_AT_END), np.zeros(grid.size))
    return replace(ring, decoding_share=share, tick_s=decoding_s)


def _tandem_performance(
    ring: Ring,
    flow: Flow,
    assumptions: tuple[str, ...],
    burst_ttft_s: FloatArray,
    weight: FloatArray,
    whole_run: tuple[PoolPerformance, ...] = (),
) -> Performance:
    """Performance on the requests of some slots; `weight` says how often each slot counts."""
    decode = ring.decode
    tick_s = np.interp(flow.running, np.arange(ring.tick_s.size), ring.tick_s)
    slot_s = tick_s * flow.width
    queue_s = queue_wait_s(decode, _served_by_prefill(ring, flow), slot_s)
    ttft_s = _ttft_s(ring, flow, slot_s, queue_s)
    if burst_ttft_s.size:
        ttft_s[0] = float(burst_ttft_s.mean()) + ring.prefill.config.costs.transfer_request_s
    decode_wait_s = ring.transfer_s + _decode_wait_s(ring, flow, slot_s, queue_s, weight)
    if ring.late_first:
        ttft_s = ttft_s + decode_wait_s + tick_s
    seen, requests = client_latencies(
        flow,
        weight,
        decode,
        ttft_s=ttft_s,
        burst_ttft_s=np.zeros(0),
        tick_s=tick_s,
        second_token_delay_s=0.0 if ring.late_first else decode_wait_s,
    )
    seconds = float(weight @ slot_s)
    rate = decode.replicas * requests / seconds
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=rate,
        stable=True,
        **seen._asdict(),
        pools=_pool_performances(ring, float((weight * slot_s) @ flow.running) / seconds, rate, whole_run),
        kv_transfer_s=ring.transfer_s,
        assumptions=assumptions,
        output_tokens_per_s=rate * decode.lengths.mean_output,
    )


def _served_by_prefill(ring: Ring, flow: Flow) -> Flow:
    """The flow with prompts served as the prefill pool can, whether or not there is a place to decode."""
    running = np.minimum(flow.running.astype(np.int64), ring.tick_s.size - 1)
    room = (ring.tick_s[running] * flow.width / ring.saturated_s * ring.prefill_per_decode).tolist()
    waiting, served = 0.0, []
    for sent, most in zip(flow.sent.tolist(), room, strict=True):
        waiting += sent
        served.append(min(waiting, most))
        waiting -= served[-1]
    return replace(flow, served=np.array(served))


def _decode_wait_s(ring: Ring, flow: Flow, slot_s: FloatArray, queue_s: FloatArray, weight: FloatArray) -> float:
    """Mean wait [s] between prompt and decode, where the decode pool has no place: what is not for the prompt."""
    wait_s = np.maximum(queue_wait_s(ring.decode, flow, slot_s) - queue_s, 0.0)
    sent = flow.sent * weight
    wait_s[0] *= max(0.0, 1.0 - ring.decode.max_running / ring.decode.users)
    return float(sent @ wait_s) / max(float(sent.sum()), 1e-12)


def _ttft_s(ring: Ring, flow: Flow, slot_s: FloatArray, queue_s: FloatArray) -> FloatArray:
    """TTFT [s] of the requests sent in each slot: overhead, queue, own prompt; what chance adds as in a G/D/c queue."""
    users = ring.decode.users
    rate = flow.sent / slot_s * max(0.0, 1.0 - 1.0 / users)
    load = np.minimum(rate * ring.saturated_s / ring.prefill_per_decode, MOST_LOAD)
    replicas = float(ring.prefill.replicas)
    chance = load ** (np.sqrt(2.0 * (replicas + 1.0)) - 1.0) / (2.0 * replicas * (1.0 - load))
    chance = np.minimum(chance, np.sqrt(np.maximum(flow.sent, 0.0)))
    shared_s = load * ring.prompt_s / 2.0
    costs = ring.prefill.config.costs
    own_s = costs.request_s + ring.prompt_s + costs.transfer_request_s
    return np.asarray(own_s + queue_s + chance * ring.saturated_s + shared_s)


def _pool_performances(
    ring: Ring, inside: float, rate: float, whole_run: tuple[PoolPerformance, ...]
) -> tuple[PoolPerformance, PoolPerformance]:
    """Both pools at a number of requests in the decode station and a rate [1/s] of the deployment."""
    prefill, decode = ring.prefill, ring.decode
    running = inside * ring.decoding_share
    busy = min(1.0, rate / prefill.replicas * ring.saturated_s)
    prompt = prefill.mean_prompt
    tokens = min(prompt, float(prefill.config.max_batched_tokens))
    tick_s = float(decode.step_s(np.array([max(running, RUNNING_AT_END)]), np.zeros(1))[0])
    first, second = whole_run if whole_run else (None, None)
    return (
        prefill.pool_performance(busy, 0.0, tokens, ring.prompt_s * tokens / prompt, first),
        decode.pool_performance(1.0, running, 0.0, tick_s, second),
    )
