"""The events of a run: pools that advance together on one clock, in order of time.

Four things happen: a step (or run of steps) of a replica ends, a KV transfer ends and its blocks are free, a request
reaches a pool, a replica at a boundary begins its next step. At one instant they happen in this order, so that every
step sees what arrived at its very start. A run under way is only a plan: an arrival that it has to heed cuts it short.
So no replica runs past an arrival.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from planner.core import FloatArray, InputError, IntArray, compiled
from planner.serving import Deployment, Pool, Role, Router, encoded_parts, kv_token_time_s, sent_s
from planner.simulator.pool import PoolRecord, SimulatedPool
from planner.simulator.replica import RUN_FIELDS, Replica
from planner.simulator.step_loop import admitted_s, follow_alone, follows_alone
from planner.simulator.traffic import DrawnTraffic
from planner.workload import RequestClass

_END, _SENT, _ARRIVAL = 0, 1, 2
_NEW, _ENCODED = -1, -2
"""In place of the replica of a request that has none yet: as it is sent, and once its images are encoded."""
_Event = tuple[float, int, int, int, int]
"""(time [s], END, pool, replica, version of its plan), (time [s], SENT, pool, replica, request) or
(time [s], ARRIVAL, pool, request, its replica or a negative number)."""
Progress = Callable[[float], None]
MOST_EVENTS = 10_000_000
"""Most events of one run, of which a request has three to five, and servers that preempt all the time any number. A
choice: twice those of a million requests, a quarter of an hour where Python follows them."""
REPORTS = 100
"""Most calls of a progress function in one run."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A whole run; each array but the last of shape (n,) in order of sending [s].

    Attributes:
        sent_s, first_s, end_s: sent by the client, first and last token at the client.
        transfer_s: end of the prompt to the arrival of its KV cache, waits for the link included; NaN: not sent.
        pools: what each did.
        sends: (start [s], seconds on the link) of every transfer, shape (transfers, 2).
        encoded: (start [s], seconds) of every part of images in a pool of encoders, shape (parts, 2).
    """

    sent_s: FloatArray
    first_s: FloatArray
    end_s: FloatArray
    transfer_s: FloatArray
    pools: tuple[PoolRecord, ...]
    sends: FloatArray
    encoded: FloatArray


def run_events(
    deployment: Deployment,
    traffic: DrawnTraffic,
    *,
    seed: int = 0,
    classes: tuple[RequestClass, ...] = (),
    progress: Progress | None = None,
    apart: bool = True,
    ready_s: float = 0.0,
) -> RunRecord:
    """Every request through the deployment; in a closed loop each end sends the next, until all are sent.

    `seed` is that of routers that choose at random, `classes` are those of the workload (none: all requests alike).
    `apart`: replicas that nothing else concerns are followed one by one, which is quicker and comes to the same.
    `ready_s`: no request is taken up before [s].
    """
    if apart:
        loop = _EventLoop(deployment, traffic, seed, classes, progress, ready_s)
        record = loop.run_apart() if loop.replicas_are_independent() else None
        if record is not None:
            return record
    return _EventLoop(deployment, traffic, seed, classes, progress, ready_s).run()


def in_order_of_sending(traffic: DrawnTraffic, record: RunRecord) -> tuple[DrawnTraffic, RunRecord]:
    """A run with sessions or users who think, its requests numbered as they were sent; without those never sent."""
    order = np.argsort(record.sent_s, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    order = order[: np.count_nonzero(record.sent_s <= traffic.follow_up.until_s)] if traffic.follow_up else order
    columns = ("inputs", "outputs", "class_index", "prefix", "prefix_tokens", "adapter", "images")
    sent = replace(traffic, follow_up=None, think_s=None, sent_s=record.sent_s[order])
    sent = replace(sent, **{name: getattr(traffic, name)[order] for name in columns})
    times = {name: getattr(record, name)[order] for name in ("sent_s", "first_s", "end_s", "transfer_s")}
    pools = tuple(replace(pool, request=rank[pool.request]) for pool in record.pools)
    return sent, replace(record, pools=pools, **times)


class _Encoders:
    """Encoders of a pool, each of which takes the parts of requests one after another as they come.

    Attributes:
        served: (start [s], seconds) of every part.
    """

    def __init__(self, pool: Pool, traffic: DrawnTraffic, seed: int) -> None:
        self.parts = [encoded_parts(pool.config, images, pool.encoders) for images in traffic.kinds]
        self.images: list[int] = traffic.images.tolist()
        self.free_s = [0.0] * pool.encoders
        self.drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
        self.served: list[tuple[float, float]] = []

    def ready_s(self, request: int, now_s: float) -> float:
        """Time at which the embeddings of a request that comes now are where its prompt is read [s]."""
        if self.images[request] < 0:
            return now_s
        parts, last_s = self.parts[self.images[request]], now_s
        for seconds, encoder in zip(parts.seconds, self.drawn.permutation(len(self.free_s)).tolist(), strict=False):
            start_s = max(now_s, self.free_s[encoder])
            self.free_s[encoder] = start_s + seconds
            self.served.append((start_s, seconds))
            last_s = max(last_s, start_s + seconds)
        return last_s + parts.transfer_s


class _Link:
    """KV transfers from prefill to decode replicas.

    A piece of t seconds whose step ended at e may start at e, or layer by layer when that step began, and once the
    pieces of the same prompt before it have ended. With `KvTransfer.shared` its link of the sender and that of the
    receiver (`Deployment.kv_links`) each carry what came to them, in order of e, without a pause: none waits at one end
    for another that is held up at its other end, since engines have many transfers under way at once. It ends once both
    have carried it; layer by layer not before e + t / layers, as the last layer is sent last. A transfer has one piece,
    or one for each step of its prompt (`kv_token_time_s`), and with `EngineProfile.early_prefix_transfer` one of what a
    prefix cache held, from the beginning of the first.

    Attributes:
        partly_sent: of prompts in progress that have sent pieces, seconds of these and when the last of them ends [s].
        receivers: of these prompts.
    """

    def __init__(self, deployment: Deployment, inputs: IntArray) -> None:
        self.policy = deployment.transfer
        self.seconds: list[float] = sent_s(deployment, inputs).tolist()
        self.links = deployment.kv_links
        self.token_s = kv_token_time_s(deployment)
        self.early_s = self.token_s if deployment.pools[0].config.engine.early_prefix_transfer else 0.0
        self.layers = deployment.pools[0].config.llm.num_layers
        self.partly_sent: dict[int, tuple[float, float]] = {}
        self.receivers: dict[int, int] = {}
        self.free_s: dict[tuple[Role, int, int], float] = {}
        self.sends: list[tuple[float, float]] = []

    def send_prefix(self, request: int, cached: int, began_s: float, ends: tuple[int, int]) -> None:
        """Send what of a prompt was cached before its first step, if that has just ended; `cached` in tokens."""
        if self.early_s and cached and request not in self.partly_sent:
            seconds = cached * self.early_s
            self.partly_sent[request] = seconds, self._send(request, seconds, 0.0, began_s, began_s, ends)

    def send_chunk(self, request: int, tokens: float, began_s: float, ended_s: float, ends: tuple[int, int]) -> None:
        """Send what a step has added to a prompt that goes on, of which so many tokens are done."""
        done_before_s, free_s = self.partly_sent.get(request, (0.0, 0.0))
        done_s = tokens * self.token_s
        if done_s > done_before_s:
            self.partly_sent[request] = (
                done_s,
                self._send(request, done_s - done_before_s, free_s, began_s, ended_s, ends),
            )

    def send_rest(self, request: int, began_s: float, ended_s: float, ends: tuple[int, int]) -> float:
        """End [s] of the transfer between two replicas of a prompt whose last step began and ended then."""
        before_s, free_s = self.partly_sent.pop(request, (0.0, 0.0))
        return self._send(request, self.seconds[request] - before_s, free_s, began_s, ended_s, ends)

    def send_whole(
        self, requests: IntArray, began_s: FloatArray, ended_s: FloatArray, senders: IntArray, receivers: IntArray
    ) -> FloatArray:
        """Ends [s] of transfers of prompts in one piece, in order of their turns, all shape (n,)."""
        seconds, policy, layers = np.array(self.seconds)[requests], self.policy, float(self.layers)
        sender, receiver = (
            ends * links + requests % links for ends, links in zip((senders, receivers), self.links, strict=True)
        )
        free_s = np.zeros((2, max(sender.max(initial=0), receiver.max(initial=0)) + 1))
        start_s, end_s = _sent_in_turn(
            seconds, began_s, ended_s, sender, receiver, free_s, layers, policy.layerwise, policy.shared
        )
        self.sends += zip(start_s.tolist(), seconds.tolist(), strict=True)
        return end_s

    def _send(
        self, request: int, seconds: float, free_s: float, began_s: float, ended_s: float, ends: tuple[int, int]
    ) -> float:
        """End [s] of a piece of so many seconds; each of its two links is free once it has carried it."""
        layerwise = self.policy.layerwise
        ready_s = max(began_s if layerwise else ended_s, free_s)
        end_s = ready_s + seconds
        if self.policy.shared:
            turns = tuple(request % links for links in self.links)
            for side in zip((Role.PREFILL, Role.DECODE), ends, turns, strict=True):
                self.free_s[side] = max(ready_s, self.free_s.get(side, 0.0)) + seconds
                end_s = max(end_s, self.free_s[side])
        start_s = end_s - seconds
        if layerwise:
            end_s = max(end_s, ended_s + seconds / self.layers)
        self.sends.append((start_s, seconds))
        return end_s


@compiled(makes_arrays=True)
def _sent_in_turn(
    seconds: FloatArray,
    began_s: FloatArray,
    ended_s: FloatArray,
    senders: IntArray,
    receivers: IntArray,
    free_s: FloatArray,
    layers: float,
    layerwise: bool,
    shared: bool,
) -> tuple[FloatArray, FloatArray]:
    """Starts and ends [s] of pieces of so many seconds, each on a link of its sender and one of its receiver: `_Link`.

    `free_s` says since when each link is free, of senders and of receivers, where they are shared. The same as
    `_Link._send` one by one, to the last bit.
    """
    start_s, end_s = np.empty(seconds.size), np.empty(seconds.size)
    for place in range(seconds.size):
        ready_s = max(began_s[place] if layerwise else ended_s[place], 0.0)
        end_s[place] = ready_s + seconds[place]
        if shared:
            for side, link in ((0, senders[place]), (1, receivers[place])):
                free_s[side, link] = max(ready_s, free_s[side, link]) + seconds[place]
                end_s[place] = max(end_s[place], free_s[side, link])
        start_s[place] = end_s[place] - seconds[place]
        if layerwise:
            end_s[place] = max(end_s[place], ended_s[place] + seconds[place] / layers)
    return start_s, end_s


class _Total:
    """Blocks of what has happened until some time, from times [s] and blocks of shape (n,)."""

    def __init__(self, at_s: FloatArray, blocks: IntArray) -> None:
        order = np.argsort(at_s)
        self.at_s, self.blocks = at_s[order], np.concatenate([[0], blocks[order].cumsum()])

    def until(self, times_s: FloatArray, side: Literal["left", "right"] = "right") -> IntArray:
        """Blocks until each of some times [s]; left: before it."""
        return np.asarray(self.blocks[np.searchsorted(self.at_s, times_s, side=side)])


class _EventLoop:
    """The events of one run."""

    def __init__(
        self,
        deployment: Deployment,
        traffic: DrawnTraffic,
        seed: int,
        classes: tuple[RequestClass, ...],
        progress: Progress | None,
        ready_s: float,
    ) -> None:
        self.ready_s = ready_s
        self.late_first = deployment.is_disaggregated and deployment.transfer.first_token_from_decode
        seeds = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(len(deployment.pools), np.uint64)
        self.pools = [
            SimulatedPool(pool, traffic, self.late_first, classes, int(word))
            for pool, word in zip(deployment.pools, seeds, strict=True)
        ]
        costs = deployment.pools[0].config.costs
        self.request_s, self.admission_s = costs.request_s, costs.admission_s
        self.free_s = [0.0] * len(self.pools[0].replicas)
        self.transfer_request_s = costs.transfer_request_s if deployment.is_disaggregated else 0.0
        self.link = _Link(deployment, traffic.inputs) if deployment.is_disaggregated else None
        first = deployment.pools[0]
        self.encoders = _Encoders(first, traffic, seed) if first.encoders and traffic.kinds else None
        self.arrived_s = np.full(traffic.inputs.size, np.nan)
        self.count, self.ended, self.happened = traffic.inputs.size, 0, 0
        self.progress = progress
        self.sent_s = array("d", traffic.sent_s.tobytes())
        self.next_request: list[int] = [] if traffic.follow_up is None else traffic.follow_up.next_request.tolist()
        think_s = traffic.think_s if traffic.follow_up is None else traffic.follow_up.think_s
        self.think_s: list[float] = [] if think_s is None else think_s.tolist()
        self.until_s = math.inf if traffic.follow_up is None else traffic.follow_up.until_s
        self.events: list[_Event] = []

    def run(self) -> RunRecord:
        """Until nothing is left to happen."""
        events = self.events
        events += [
            (max(sent_s + self.request_s, self.ready_s), _ARRIVAL, 0, request, _NEW)
            for request, sent_s in enumerate(self.sent_s)
            if sent_s <= self.until_s
        ]
        heapify(events)
        while events:
            self._count_events(1)
            now_s = events[0][0]
            woken: dict[tuple[int, int], Replica] = {}
            while events and events[0][0] == now_s:
                _, event, pool, number, version = heappop(events)
                if event == _ARRIVAL:
                    if pool == 0 and version == _NEW and self.encoders is not None:
                        ready_s = self.encoders.ready_s(number, now_s)
                        heappush(events, (ready_s, _ARRIVAL, 0, number, _ENCODED))
                        continue
                    number = self._arrive(pool, number, version, now_s)
                elif event == _SENT:
                    self.pools[pool].replicas[number].release(version)
                elif self.pools[pool].replicas[number].version == version:
                    self._finish(pool, number, now_s)
                woken[pool, number] = self.pools[pool].replicas[number]
            for (pool, number), replica in woken.items():
                if replica.plan is None:
                    end_s = replica.begin(now_s)
                    if end_s is not None:
                        heappush(events, (end_s, _END, pool, number, replica.version))
        return self._record()

    def replicas_are_independent(self) -> bool:
        """True if every replica can be followed by itself, once it is known what reaches it."""
        is_open = not self.next_request and len(self.sent_s) == self.count
        take_turns = all(pool.router.policy is Router.ROUND_ROBIN for pool in self.pools)
        in_one_piece = self.link is None or not self.link.token_s
        return is_open and take_turns and in_one_piece and all(follows_alone(pool.replicas[0]) for pool in self.pools)

    def run_apart(self) -> RunRecord | None:
        """Each replica by itself; None where KV caches that wait to be sent would take up room that is wanted."""
        now_s = np.maximum(np.array(self.sent_s) + self.request_s, self.ready_s)
        order = np.argsort(now_s, kind="stable")
        if self.encoders is not None:
            now_s[order] = [
                self.encoders.ready_s(*sent) for sent in zip(order.tolist(), now_s[order].tolist(), strict=True)
            ]
            order = np.argsort(now_s, kind="stable")
        self.pools[0].router.take_turns(order)
        if self.link is None:
            self._follow(0, order, now_s, self._count_ended)
            return self._record()
        self._follow(0, order, now_s, lambda ended: None)
        arrival_s = self._send_all(self.link)
        if self.link.policy.shared and not self._room_for_staged():
            return None
        sent = np.flatnonzero(~np.isnan(arrival_s))
        self._count_ended(self.count - sent.size)
        order = sent[np.argsort(arrival_s[sent], kind="stable")]
        if not self.link.policy.shared:
            self.pools[1].router.take_turns(order)
        self._follow(1, order, arrival_s, self._count_ended)
        return self._record()

    def _follow(self, pool: int, order: IntArray, now_s: FloatArray, ended: Callable[[int], None]) -> None:
        """Take every replica of a pool through its requests; `order` is that in which they reach the pool."""
        chosen = np.array(self.pools[pool].router.chosen)[order]
        for number, replica in enumerate(self.pools[pool].replicas):
            requests = order[chosen == number]
            times_s = now_s[requests]
            if pool == 0 and self.admission_s:
                times_s = admitted_s(times_s, self.admission_s)
            follow_alone(replica, requests, times_s, ended, self._count_events, -(-self.count // REPORTS))

    def _send_all(self, link: _Link) -> FloatArray:
        """Send every KV cache when its prompt has ended; time of arrival at the decode pool [s], NaN: none."""
        prefill, decode = self.pools
        ended_s, chosen = prefill.ledger.column("first_s"), np.array(prefill.router.chosen)
        order = np.lexsort((chosen, ended_s))
        order = order[decode.ledger.column("outputs")[order] > 1]
        if link.policy.shared:
            decode.router.take_turns(order)
        began_s, receivers = prefill.ledger.column("began_s"), np.array(decode.router.chosen)
        times_s = began_s[order], ended_s[order]
        self.arrived_s[order] = link.send_whole(order, *times_s, chosen[order], receivers[order])
        if not self.late_first:
            decode.ledger.column("token_s")[order] = ended_s[order] + self.transfer_request_s
        return self.arrived_s + self.transfer_request_s

    def _room_for_staged(self) -> bool:
        """True if KV caches that wait to be sent, or are being sent, never take room that a prompt waits for.

        If so they are added to what replicas held. What they, running prompts and the largest that may wait hold at
        most is compared, as if all came at once.
        """
        pool = self.pools[0]
        memory, blocks = pool.rules.memory, pool.ledger.column("blocks")
        chosen, ended_s = np.array(pool.router.chosen), pool.ledger.column("first_s")
        for number, replica in enumerate(pool.replicas):
            mine = np.flatnonzero((chosen == number) & ~np.isnan(self.arrived_s))
            runs = np.frombuffer(replica.runs).reshape(-1, RUN_FIELDS)
            ended = _Total(ended_s[mine], blocks[mine])
            sent = _Total(self.arrived_s[mine], blocks[mine])
            staged = ended.until(ended_s[mine]) - sent.until(ended_s[mine], "left")
            if runs[:, 3].max() + staged.max(initial=0) + blocks.max() > memory.blocks - memory.free_blocks:
                return False
            start_s, stop_s = runs[:, 0], runs[:, 1]
            runs[:, 3] += ended.until(start_s)
            runs[:, 3] -= sent.until(stop_s, "left") if memory.reserves else sent.until(start_s)
        return True

    def _arrive(self, pool: int, request: int, number: int, now_s: float) -> int:
        """A request reaches a pool; the replica that gets it, or will once it has taken in those before."""
        if number < 0:
            number = self.pools[pool].router.route(request)
            if pool == 0 and self.admission_s:
                free_s, self.free_s[number] = self.free_s[number], max(now_s, self.free_s[number]) + self.admission_s
                if free_s > now_s:
                    heappush(self.events, (free_s, _ARRIVAL, pool, request, number))
                    return number
        replica = self.pools[pool].replicas[number]
        if replica.tiers is not None and (there_s := replica.fetch(request, now_s)) > now_s:
            heappush(self.events, (there_s, _ARRIVAL, pool, request, number))
            return number
        if replica.arrive(request, now_s) and replica.plan is not None:
            heappush(self.events, (replica.plan.end_s, _END, pool, number, replica.version))
        return number

    def _finish(self, pool: int, number: int, now_s: float) -> None:
        """End a step: its requests go on to the next pool or make room for the next request."""
        router, replica = self.pools[pool].router, self.pools[pool].replicas[number]
        plan = replica.plan
        if plan is None:
            return
        began_s = plan.start_s
        for request in replica.finish(plan):
            router.release(request, number)
            if pool == 0 and self.link is not None:
                if self.pools[1].ledger.outputs[request] > 1:
                    self._send_kv(self.link, request, number, began_s, now_s)
                    continue
                replica.release(request)
            self._end(request, replica.told_s)
        prompt = replica.prompt
        if pool == 0 and self.link is not None and self.link.token_s and prompt is not None:
            request, done = prompt.request, prompt.tokens - replica.prompt_left
            if self.pools[1].ledger.outputs[request] > 1:
                ends = number, self._receiver(self.link, request)
                self.link.send_prefix(request, self.pools[0].ledger.hits[request], began_s, ends)
                self.link.send_chunk(request, done, began_s, now_s, ends)

    def _receiver(self, link: _Link, request: int) -> int:
        """The decode replica that gets a prompt, chosen when the first of it is sent; -1: when it has been sent."""
        if not link.policy.shared:
            return -1
        if request not in link.receivers:
            link.receivers[request] = self.pools[1].router.route(request)
        return link.receivers[request]

    def _send_kv(self, link: _Link, request: int, number: int, began_s: float, now_s: float) -> None:
        """Send what is left of the KV cache of a prompt. With a shared link its blocks are held until it has ended."""
        decode, shared = self.pools[1], link.policy.shared
        receiver = self._receiver(link, request)
        link.receivers.pop(request, None)
        link.send_prefix(request, self.pools[0].ledger.hits[request], began_s, (number, receiver))
        sent_s = link.send_rest(request, began_s, now_s, (number, receiver))
        self.arrived_s[request] = sent_s
        if shared:
            heappush(self.events, (sent_s, _SENT, 0, number, request))
        else:
            self.pools[0].replicas[number].release(request)
        if not self.late_first:
            decode.ledger.token_s[request] = now_s + self.transfer_request_s
        heappush(self.events, (sent_s + self.transfer_request_s, _ARRIVAL, 1, request, receiver))

    def _end(self, request: int, now_s: float) -> None:
        """A request has its last token. In a closed loop or session its user sends the next after a think time."""
        self._count_ended(1)
        if len(self.sent_s) < self.count:
            sent_s = now_s + (self.think_s[request] if self.think_s else 0.0)
            heappush(self.events, (sent_s + self.request_s, _ARRIVAL, 0, len(self.sent_s), _NEW))
            self.sent_s.append(sent_s)
        elif self.next_request and (follow_up := self.next_request[request]) >= 0:
            sent_s = now_s + self.think_s[request]
            if sent_s <= self.until_s:
                self.sent_s[follow_up] = sent_s
                heappush(self.events, (sent_s + self.request_s, _ARRIVAL, 0, follow_up, _NEW))

    def _count_events(self, events: int) -> None:
        """Raise InputError where more has happened than a run may take: what it reached says how far from its end."""
        self.happened += events
        if self.happened > MOST_EVENTS:
            reached = f"{self.ended:,} of {self.count:,} requests have ended after {MOST_EVENTS:,} events"
            fix = "simulate fewer requests, or give the servers room: they may preempt one another for ever"
            raise InputError("simulation", "(given up)", reached, fix)

    def _count_ended(self, requests: int) -> None:
        """Report progress when another hundredth of all has ended."""
        self.ended += requests
        before = self.ended - requests
        if self.progress is not None and self.ended * REPORTS // self.count > before * REPORTS // self.count:
            self.progress(self.ended / self.count)

    def _record(self) -> RunRecord:
        ends = [np.array(pool.ledger.end_s) for pool in self.pools]
        end_s = ends[0] if len(ends) == 1 else np.where(np.isnan(ends[1]), ends[0] + self.transfer_request_s, ends[1])
        prompt_s = np.array(self.pools[0].ledger.first_s)
        first_s = np.array(self.pools[1].ledger.first_s) if self.late_first else prompt_s + self.transfer_request_s
        return RunRecord(
            sent_s=np.array(self.sent_s),
            first_s=first_s,
            end_s=end_s,
            transfer_s=self.arrived_s - prompt_s,
            pools=tuple(pool.record() for pool in self.pools),
            sends=np.array(self.link.sends if self.link else [], dtype=np.float64).reshape(-1, 2),
            encoded=np.array(self.encoders.served if self.encoders else [], dtype=np.float64).reshape(-1, 2),
        )
