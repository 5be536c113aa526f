"""Closed loops on disaggregated deployments: a station of prompts, a transfer and a station of decodes in a ring.

The flow is that of `planner.serving.closed_loop`, in ticks of the decode pool: prompts are served at the rate of the
prefill pool in the time a tick takes; own prompt, request overhead and KV transfer are a delay between two answers, in
which a user's request does not decode. How many decode, hence how long a tick takes, follows from that delay: a fixed
point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.engine import kv_transfer_bytes
from planner.serving.closed_loop_flow import (
    LAST,
    Flow,
    Station,
    answers,
    burst_s,
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

ROUNDS = 12
"""Rounds of the fixed point of delay and decode time: it contracts as (delay / cycle) of a flat step time."""


@dataclass(frozen=True)
class Ring:
    """The two stations and what lies between answers.

    Attributes:
        first, second: one replica of the prefill and of the decode pool.
        prompt_s: one prompt alone. saturated_s: seconds per prompt of a busy prefill replica.
        transfer_s: mean KV transfer. share: of its cycle in the decode station a request really decodes.
        tick_s: decode step by the number in the station (0, 1, ...) [s].
    """

    first: Station
    second: Station
    prompt_s: float
    saturated_s: float
    transfer_s: float
    share: float
    tick_s: FloatArray

    @property
    def delay_s(self) -> float:
        """Between the end of an answer and the first decode of the next, where nothing queues."""
        return self.first.config.costs.request_s + self.prompt_s + self.transfer_s

    @property
    def per_decode_replica(self) -> float:
        """Prefill replicas for each decode replica."""
        return self.first.replicas / self.second.replicas


def ring_of(deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths) -> Ring:
    """The ring with its fixed point: n = users * D / (D + delay / tick(n)) sequences decode, D ticks an answer."""
    first, second = (station_of(pool, lengths, loop) for pool in deployment.pools)
    room = float(first.config.max_batched_tokens)
    prompt, zero = first.prompt, np.zeros(2)
    whole = np.floor(prompt / room)
    full_s, rest_s = first.step_s(zero, np.array([room, max(prompt - whole * room, 1.0)]))
    alone_s = float(whole * full_s + (rest_s if prompt > whole * room else 0.0))
    sent_bytes = kv_transfer_bytes(deployment.pools[0].config, lengths.inputs)
    transfer_s = float(sent_bytes @ lengths.probabilities) / deployment.kv_link_bytes_per_s
    most = min(second.users, second.max_running)
    grid = np.arange(np.ceil(most) + 2.0)
    ticks = max(1.0, float(second.ticks @ second.chances))
    steps_s = second.step_s(np.maximum(grid, LAST), np.zeros(grid.size))
    ring = Ring(first, second, alone_s, float(full_s) * prompt / room, transfer_s, 1.0, steps_s)
    running = most
    for _ in range(ROUNDS):
        tick_s = float(np.interp(running, grid, steps_s))
        running = min(most, second.users * ticks / (ticks + ring.delay_s / tick_s))
    share = min(1.0, ticks / (ticks + ring.delay_s / tick_s))
    decoding_s = second.step_s(np.maximum(grid * share, LAST), np.zeros(grid.size))
    return replace(ring, share=share, tick_s=decoding_s)


def tandem_performance(
    deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths, assumptions: tuple[str, ...]
) -> Performance:
    """The whole run of a closed loop on a prefill and a decode pool, and its steady part.

    Raises InputError when the model, its KV cache or the longest request does not fit.
    """
    ring = ring_of(deployment, loop, lengths)
    second = ring.second
    typical_s = float(ring.tick_s[min(int(second.users), ring.tick_s.size - 1)])
    capacity = ring.tick_s / ring.saturated_s * ring.per_decode_replica
    flow = flow_of(second, loop.ramp_s / typical_s, second.ticks + ring.delay_s / typical_s, capacity)
    bare = burst_s(ring.first) if loop.ramp_s == 0.0 else np.zeros(0)
    whole = _performance(ring, flow, bare, flow.weight, assumptions)
    inside = flow.weight * flow.steady(second.users)
    if not float(inside @ flow.sent):
        return whole
    return replace(whole, steady=_performance(ring, flow, np.zeros(0), inside, assumptions, whole.pools))


def _performance(
    ring: Ring,
    flow: Flow,
    burst: FloatArray,
    weight: FloatArray,
    assumptions: tuple[str, ...],
    like: tuple[PoolPerformance, ...] = (),
) -> Performance:
    """What a client measures on the requests of some slots; `weight` says how often each slot counts."""
    second = ring.second
    tick_s = np.interp(flow.running, np.arange(ring.tick_s.size), ring.tick_s)
    slot_s = tick_s * flow.width
    prompts = _prompts_first(flow, ring.tick_s, ring)
    queue_s = queued_s(second, prompts, slot_s)
    values = _ttft_s(ring, flow, slot_s, queue_s)
    held_s = _held_s(ring, flow, slot_s, queue_s, weight)
    if burst.size:
        values[0] = float(burst.mean())
    ttft, requests = first_tokens(flow, values, np.zeros(0), weight)
    tpot, e2e = answers(second, flow, ttft, tick_s, ring.transfer_s + held_s, weight)
    seconds = float(weight @ slot_s)
    rate = second.replicas * requests / seconds
    return Performance(
        method=Method.ANALYTIC,
        rate_per_s=rate,
        stable=True,
        ttft=ttft,
        tpot=tpot,
        e2e=e2e,
        itl=gaps_met(tick_s, flow, weight),
        pools=_pools(ring, float((weight * slot_s) @ flow.running) / seconds, rate, like),
        kv_transfer_s=ring.transfer_s,
        requests=0,
        assumptions=assumptions,
        samples_s={},
        output_tokens_per_s=rate * second.lengths.mean_output,
    )


def _prompts_first(flow: Flow, tick_s: FloatArray, ring: Ring) -> Flow:
    """The flow with prompts served as the prefill pool can, whether or not there is a place to decode."""
    running = np.minimum(flow.running.astype(np.int64), tick_s.size - 1)
    room = (tick_s[running] * flow.width / ring.saturated_s * ring.per_decode_replica).tolist()
    waiting, served = 0.0, []
    for sent, most in zip(flow.sent.tolist(), room, strict=True):
        waiting += sent
        served.append(min(waiting, most))
        waiting -= served[-1]
    return replace(flow, served=np.array(served))


def _held_s(ring: Ring, flow: Flow, slot_s: FloatArray, queue_s: FloatArray, weight: FloatArray) -> float:
    """Mean wait [s] between prompt and decode, where the decode pool has no place: what is not for the prompt."""
    wait_s = np.maximum(queued_s(ring.second, flow, slot_s) - queue_s, 0.0)
    sent = flow.sent * weight
    wait_s[0] *= max(0.0, 1.0 - ring.second.max_running / ring.second.users)
    return float(sent @ wait_s) / max(float(sent.sum()), 1e-12)


def _ttft_s(ring: Ring, flow: Flow, slot_s: FloatArray, queue_s: FloatArray) -> FloatArray:
    """TTFT [s] of the requests sent in each slot: overhead, queue, own prompt; what chance adds as in a G/D/c queue."""
    users = ring.second.users
    rate = flow.sent / slot_s * max(0.0, 1.0 - 1.0 / users)
    load = np.minimum(rate * ring.saturated_s / ring.per_decode_replica, 0.98)
    replicas = float(ring.first.replicas)
    chance = load ** (np.sqrt(2.0 * (replicas + 1.0)) - 1.0) / (2.0 * replicas * (1.0 - load))
    chance = np.minimum(chance, np.sqrt(np.maximum(flow.sent, 0.0)))
    shared_s = load * ring.prompt_s / 2.0
    return np.asarray(
        ring.first.config.costs.request_s + queue_s + ring.prompt_s + chance * ring.saturated_s + shared_s
    )


def _pools(
    ring: Ring, inside: float, rate: float, like: tuple[PoolPerformance, ...]
) -> tuple[PoolPerformance, PoolPerformance]:
    """Both pools at a number of requests in the decode station and a rate [1/s] of the deployment."""
    running = inside * ring.share
    busy = min(1.0, rate / ring.first.replicas * ring.saturated_s)
    prompt = ring.first.prompt
    tokens = min(prompt, float(ring.first.config.max_batched_tokens))
    tick_s = float(ring.second.step_s(np.array([max(running, LAST)]), np.zeros(1))[0])
    return (
        pool_figures(ring.first, busy, 0.0, tokens, ring.prompt_s * tokens / prompt, like[0] if like else None),
        pool_figures(ring.second, 1.0, running, 0.0, tick_s, like[1] if like else None),
    )
