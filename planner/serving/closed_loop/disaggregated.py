"""Closed loops on disaggregated deployments: a station of prompts, a transfer and a station of decodes in a ring.

The flow is that of `station`, in ticks of the decode pool: prompts are served at the rate of
the prefill pool in the time a tick takes; own prompt, request overhead and KV transfer are a delay between two answers,
in which a user's request does not decode. How many decode, hence how long a tick takes, follows from that delay: a
fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.core import FloatArray
from planner.serving.closed_loop.station import (
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
from planner.serving.types import Deployment, Method, Performance, PoolPerformance
from planner.workload import ClosedLoop, TokenLengths

FIXED_POINT_ROUNDS = 12
"""Rounds of the fixed point of delay and decode time: it contracts as (delay / cycle) of a flat step time. A choice."""


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


def closed_disaggregated_performance(
    deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths, assumptions: tuple[str, ...]
) -> Performance:
    """The whole run of a closed loop on a prefill and a decode pool, and its steady part.

    Args:
        deployment: a prefill and a decode pool.
        loop: users and requests.
        lengths: of the requests.
        assumptions: what the result is to say of itself.

    Returns:
        Latencies [s] of all requests; `steady` has those of the steady part, if there is one.

    Raises:
        InputError: the model, its KV cache or the longest request does not fit.
    """
    ring = _ring(deployment, loop, lengths)
    decode = ring.decode
    typical_s = float(ring.tick_s[min(int(decode.users), ring.tick_s.size - 1)])
    capacity = ring.tick_s / ring.saturated_s * ring.prefill_per_decode
    flow = flow_of(decode, loop.ramp_s / typical_s, decode.ticks + ring.delay_s / typical_s, capacity)
    burst_ttft_s = ring.prefill.burst_ttft_s() if loop.ramp_s == 0.0 else np.zeros(0)
    whole = _performance(ring, flow, burst_ttft_s, flow.weight, assumptions)
    steady = flow.steady_weight(decode.users)
    if not float(steady @ flow.sent):
        return whole
    return replace(whole, steady=_performance(ring, flow, np.zeros(0), steady, assumptions, whole.pools))


def _ring(deployment: Deployment, loop: ClosedLoop, lengths: TokenLengths) -> Ring:
    """The ring with its fixed point: n = users * D / (D + delay / tick(n)) sequences decode, D ticks an answer."""
    prefill, decode = (station_of(pool, lengths, loop) for pool in deployment.pools)
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


def _performance(
    ring: Ring,
    flow: Flow,
    burst_ttft_s: FloatArray,
    weight: FloatArray,
    assumptions: tuple[str, ...],
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
