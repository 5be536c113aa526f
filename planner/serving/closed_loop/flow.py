"""The flow of requests through a closed loop in ticks, and what benchmark clients make of it.

Answers end, hence the next requests come, at ticks (`planner.serving.closed_loop.station`). So the flow is worked out
in ticks, as a fluid, before any step is timed:

    ended(t) = sum_l p(l) * served(t - l),   sent = ended until all are sent,
    served = min(waiting + sent, room for prompts in the steps, free places)

with p the distribution of ticks from one request of a user to the next (renewal equation, Cox 1962, Renewal Theory, ch.
4, with a queue in the loop). Narrow distributions keep users in waves; those widen with every answer, which the sum
follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.serving.closed_loop.station import Station
from planner.workload import LatencyDistribution, TokenLengths

SLOTS_PER_REQUEST = 32
"""Slots of time per mean request: keeps waves of 6 % of a request (lengths uniform on the upper fifth). A choice."""
REQUESTS_FOLLOWED_PER_USER = 12.0
"""Requests per user followed one by one; of a longer run the later ones repeat what came before the last. A choice."""
REQUESTS_REPEATED_PER_USER = 4.0
"""Requests per user, before the last, that stand for those not followed. A choice."""
RUNNING_AT_END = 0.5
"""The run ends when so many requests are expected to run still: the median end of the last. A definition."""
MOST_SLOTS_FOLLOWED = 600.0
"""Slots at most for the requests that are followed, where waiting for prompts or places makes a run long. A choice."""
MOST_SLOTS = 4000
"""Slots at most: a guard, reached only by distributions whose longest answer is a hundred times the mean."""
LEAST_RISE = 1e-9
"""Added to a curve at every slot so that it has an inverse [requests]."""
LEAST_WAIT_SLOTS = 1e-3
"""Waits below this share of a slot are rounding."""
ANSWER_POINTS, LATENCY_POINTS = 16, 64
"""Points that distributions of TPOT, and of output lengths and TTFT, are condensed to before they are multiplied."""


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

    def steady_weight(self, users: float) -> FloatArray:
        """`weight` of the steady slots, 0 for the others, shape (slots,)."""
        return self.weight * self.steady(users)


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


@dataclass(frozen=True)
class ClientLatencies:
    """What a client measures on the requests of some slots.

    Attributes:
        ttft, tpot, e2e, itl: distributions [s].
        requests: how many there are, of one replica.
    """

    ttft: LatencyDistribution
    tpot: LatencyDistribution
    e2e: LatencyDistribution
    itl: LatencyDistribution
    requests: float


def client_latencies(
    flow: Flow,
    weight: FloatArray,
    station: Station,
    *,
    ttft_s: FloatArray,
    burst_ttft_s: FloatArray,
    tick_s: FloatArray,
    second_token_delay_s: float = 0.0,
) -> ClientLatencies:
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
        Distributions [s] and the number of requests.
    """
    sent = flow.sent * weight
    sent[0] = max(0.0, sent[0] - burst_ttft_s.size)
    counts = np.concatenate([np.ones(burst_ttft_s.size), sent])
    ttft = LatencyDistribution.from_samples(np.concatenate([burst_ttft_s, ttft_s]), counts)
    tpot, e2e = _answer_latencies(flow, weight, station, ttft, tick_s, second_token_delay_s)
    met = weight * flow.running
    itl = LatencyDistribution.from_samples(tick_s, met) if met.sum() > 0.0 else LatencyDistribution.constant(0.0)
    return ClientLatencies(ttft, tpot, e2e, itl, float(counts.sum()))


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
