"""What a benchmark client measures on a closed loop, from theory: the first burst, the waves after it, the stragglers.

`planner.serving.closed_loop_flow` says who is where in ticks; here ticks are timed at their mean content. The chance of
a prompt in a step follows from Poisson arrivals (binomial among few users); of the prompts one meets others' (K - 1) /
K of them (the arrival theorem: Reiser and Lavenberg 1980, J. ACM 27(2)). What waits before a busy prompt queue is the
distance of the curves of sent and served requests (Little's law), plus what chance adds: the approximation of
Sakasegawa 1977 (Ann. Inst. Stat. Math. 29) for c prompts a step, halved for constant service. Users whose answers are
alike stay in the groups in which the first burst was served; how far they still do is followed from the variance of the
lengths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.serving.closed_loop_flow import (
    LAST,
    Flow,
    Station,
    answers,
    burst_s,
    content_of,
    first_tokens,
    flow_of,
    gaps_met,
    pool_figures,
    queued_s,
    station_of,
)
from planner.serving.pool import FloatArray
from planner.serving.types import Deployment, Method, Performance, PoolPerformance
from planner.workload import ClosedLoop, TokenLengths

HALFWAY = 5.0
"""Requests per user after which it is judged whether users move together."""
CHANCE = 0.8
"""Mean of the reflected random walk, sqrt(2 / pi): a balanced queue after a arrivals holds 0.8 sqrt(a)."""


def own_capacity(station: Station) -> FloatArray:
    """Prompts a tick takes, by the number of sequences that decode (0, 1, ...); as many as come without mixed steps."""
    decodes = np.arange(math.ceil(min(station.users, station.max_running)) + 2.0)
    return station.room(decodes) / station.prompt if station.mixed else np.full(decodes.size, math.inf)


def own_cycle(station: Station) -> FloatArray:
    """Ticks from a request to the next of the same user, by length cell."""
    running = min(station.users, station.max_running)
    prompt = math.ceil(station.prompt / float(content_of(station, running))) if station.mixed else 0.0
    return station.ticks + prompt + station.delay * float(_busy(station, _lasting_lock(station)))


@dataclass(frozen=True)
class Timed:
    """A flow with its times, each of shape (slots,) [s].

    Attributes:
        slot_s: duration of the slot. tick_s: of a tick in it, as others see it (their own prompts left out).
        own_s: a prompt's own steps. wait_s: what its request waits before.
    """

    slot_s: FloatArray
    tick_s: FloatArray
    own_s: FloatArray
    wait_s: FloatArray


def timed(station: Station, flow: Flow) -> Timed:
    """Durations of the slots' steps, and the TTFT of the requests sent in them."""
    users, prompt = max(station.users, 1.0), station.prompt
    n = np.maximum(flow.running, min(LAST, users))
    width, room = flow.width, content_of(station, n)
    fresh = np.maximum(flow.served - flow.backlog, 0.0)
    active, lock = _lockstep(station, flow)
    rate = fresh / active
    inside = max(1.0, min(users, station.max_running))
    group = np.minimum(np.maximum(room / prompt, 1.0), inside)
    together, seen = (group, 1.0) if station.mixed else (inside, 0.5)
    others = (1.0 - lock) * rate * (1.0 - 1.0 / users) * station.group + lock * (together - 1.0)
    pieces = math.ceil(prompt / float(content_of(station, min(users, station.max_running))))
    load = rate * prompt / room
    met = _chance(rate * station.group, users) / station.group
    steps = np.maximum(load, np.minimum(met * pieces, 1.0) if station.mixed else met * pieces)
    content = np.minimum(rate * prompt / np.maximum(steps, 1e-12), room)
    packed = np.maximum(flow.backlog * prompt / room, np.minimum(flow.backlog, 1.0))
    packed_tokens = np.minimum(flow.backlog * prompt / np.maximum(packed, 1e-12), room)
    beside = n if station.mixed else np.zeros_like(n)
    mine = np.minimum(prompt * (1.0 + others), room)
    rest = prompt - (pieces - 1.0) * room + prompt * (others + lock * np.minimum(load, users - 1.0))
    rest = np.clip(rest, 1.0, room)
    alone = np.minimum(n, np.maximum(users - 1.0, 0.0)) if station.mixed else np.zeros_like(n)
    tokens = [0.0 * n, content, packed_tokens, np.where(pieces > 1, rest, mine), room]
    decodes = [n, beside, beside, alone, alone]
    plain, some, full, last, whole = station.step_s(np.array(decodes), np.maximum(np.array(tokens), 0.0))
    over = plain if station.mixed else 0.0
    fresh_s, packed_s = active * steps * (some - over), packed * (full - over)
    slot_s = width * plain + fresh_s + packed_s
    apart = (1.0 - lock) * (1.0 - 1.0 / users) + lock * seen * (1.0 - group / inside)
    tick_s = plain + (fresh_s + packed_s) * apart / width
    tick_s[0] = plain[0] + ((fresh_s * apart + packed_s * (1.0 - group / inside)) / width)[0]
    mean_step_s = slot_s / (width + (0.0 if station.mixed else active * steps + packed))
    own_s = _own_s(station, flow, last, whole, room, load * (1.0 - lock), others, pieces)
    pace_s = plain if station.group > 1.0 else mean_step_s  # no prompt comes in while requests are not looked at
    wait_s = _waits_s(station, flow, slot_s, pace_s)
    return Timed(slot_s, tick_s, own_s, wait_s)


def _chance(arrivals: FloatArray, users: float) -> FloatArray:
    """Chance that any of `users` sends when `arrivals` are expected."""
    one = np.clip(arrivals / users, 0.0, 1.0)
    return np.asarray(1.0 - (1.0 - one) ** users)


def _busy(station: Station, lock: FloatArray | float) -> FloatArray:
    """Chance that others decode when a request comes: nobody does where all users move together."""
    alike = np.clip(station.users - station.together, 0.0, 1.0)
    return np.asarray((1.0 - lock) * np.clip(station.users - 1.0, 0.0, 1.0) + lock * alike)


def _lasting_lock(station: Station) -> float:
    """How much users still move together halfway through ten requests each."""
    return station.spread / (station.spread + math.sqrt(12.0 * station.variance * HALFWAY))


def _lockstep(station: Station, flow: Flow) -> tuple[FloatArray, FloatArray]:
    """Ticks of each slot in which requests come, and how much those served together in the burst still are.

    The burst is spread over as many ticks as its prompts take; every answer adds the variance of its length, a uniform
    distribution of which is sqrt(12 variance) wide. Users whose answers are all alike stay in the groups of the burst
    for ever.
    """
    apart = station.spread + np.sqrt(12.0 * station.variance * flow.before / station.users)
    return np.clip(apart, min(1.0, flow.width), flow.width), station.spread / apart


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
    """The steps of a prompt itself, with the prompts that share or precede them by chance."""
    capacity = room / station.prompt
    if station.mixed:
        behind = np.minimum(load * (1.0 - 1.0 / max(station.users, 1.0)), 0.98)
        queued = behind ** (np.sqrt(2.0 * (np.maximum(capacity, 1.0) + 1.0)) - 1.0) / (2.0 * (1.0 - behind))
        queued = np.minimum(queued, CHANCE * np.sqrt(np.maximum(flow.sent, 0.0)))
        single = (pieces - 1.0) * full_s + last_s + queued / capacity * full_s
    else:
        together = (1.0 + others) / capacity
        turn = (together + np.maximum(1.0, 1.0 / capacity)) / 2.0
        single = np.where(together > 1.0, turn * full_s, last_s)
    share = np.clip(flow.backlog / np.maximum(flow.served, 1e-12), 0.0, 1.0)
    return np.asarray((1.0 - share) * single + share * 0.5 * np.maximum(1.0, 1.0 / capacity) * full_s)


def _waits_s(station: Station, flow: Flow, slot_s: FloatArray, step_s: FloatArray) -> FloatArray:
    """Mean wait [s] of the requests sent in each slot, for their turn and for being looked at."""
    request_s = station.config.costs.request_s
    late_s = np.maximum(station.delay * step_s - request_s, 0.0)
    busy = _busy(station, _lockstep(station, flow)[1])
    return np.asarray(queued_s(station, flow, slot_s) + request_s + busy * late_s)


def closed_performance(
    deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths, assumptions: tuple[str, ...]
) -> Performance:
    """The whole run of a closed loop on a mixed deployment, and its steady part.

    Raises InputError when the model, its KV cache or the longest request does not fit.
    """
    station = station_of(deployment.pools[0], lengths, loop)
    bare = burst_s(station) if loop.ramp_s == 0.0 else np.zeros(0)
    step = float(station.step_s(np.array([station.users]), np.zeros(1))[0])
    flow = flow_of(station, loop.ramp_s / step, own_cycle(station), own_capacity(station))
    times = timed(station, flow)
    whole = _performance(station, flow, times, bare, flow.weight, assumptions)
    inside = flow.weight * flow.steady(station.users)
    if not float(inside @ flow.sent):
        return whole
    return replace(whole, steady=_performance(station, flow, times, np.zeros(0), inside, assumptions, whole.pools[0]))


def _performance(
    station: Station,
    flow: Flow,
    times: Timed,
    burst: FloatArray,
    weight: FloatArray,
    assumptions: tuple[str, ...],
    like: PoolPerformance | None = None,
) -> Performance:
    """What a client measures on the requests of some slots; `weight` says how often each slot counts."""
    ttft, requests = first_tokens(flow, times.wait_s + times.own_s, burst, weight)
    tpot, e2e = answers(station, flow, ttft, times.tick_s, 0.0, weight)
    lock = _lasting_lock(station)
    idle = (1.0 - float(_busy(station, lock))) * requests / (1.0 + lock * (station.together - 1.0))
    seconds = float(weight @ times.slot_s) + max(idle, float(bool(burst.size))) * station.config.costs.request_s
    rate = station.replicas * requests / seconds
    busy_s = weight * times.slot_s
    running = float(busy_s @ flow.running) / float(busy_s.sum())
    ticks = float(weight.sum()) * flow.width
    prompts = float(weight @ flow.served) * station.prompt / ticks
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=rate,
        stable=True,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        itl=gaps_met(times.tick_s, flow, weight),
        pools=(pool_figures(station, 1.0, running, prompts, float(busy_s.sum()) / ticks, like),),
        kv_transfer_s=0.0,
        requests=0,
        assumptions=assumptions,
        samples_s={},
        output_tokens_per_s=rate * station.lengths.mean_output,
    )
