"""Pools that advance together: one clock, events in order of time.

Four things happen: a step (or run of steps) of a replica ends, a KV transfer ends and its blocks are free, a request
reaches a pool, a replica at a boundary begins its next step. At one instant they happen in this order, so that every
step sees what arrived at its very start. A run under way is only a plan: an arrival that it has to heed cuts it short.
So no replica runs past an arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from planner.engine import kv_transfer_bytes
from planner.serving import Deployment, Pool, PoolLimit, Role, Router
from planner.simulator.clock import Clock
from planner.simulator.replica import Ledger, Replica
from planner.simulator.rules import ClassRules, rules_of
from planner.simulator.traffic import FloatArray, IntArray, Offered
from planner.workload import RequestClass

_END, _SENT, _ARRIVAL = 0, 1, 2
_Event = tuple[float, int, int, int, int]
"""(time [s], END, pool, replica, version of its plan), (time [s], SENT, pool, replica, request) or
(time [s], ARRIVAL, pool, request, its replica or -1)."""
Progress = Callable[[float], None]
REPORTS = 100
"""Most calls of a progress function in one run."""
AFFINITY_LIMIT = 2.0
"""A replica with this many times the mean number of requests, and one more, gets no more for the sake of a prefix."""
STALE_ENTRIES = 8
"""Entries per replica in the order of loads before those out of date are thrown away."""


@dataclass(eq=False)
class Served:
    """What a pool did: of the requests that came to it in order of arrival, and of the steps of all its replicas.

    Attributes:
        pool: the pool.
        kv_blocks: of each replica.
        sequence_blocks: of these, what every sequence holds beside its tokens.
        request: number of each request, shape (n,). arrival_s, admit_s: at this pool [s], each shape (n,).
        replica: where each request went, shape (n,). hits: its prompt tokens found in the prefix cache, shape (n,).
        runs: as in `Replica`, shape (runs, 11).
        gaps: (end [s], gap between two tokens [s], how many), shape (gaps, 3).
        blocked_s: as in `Replica`, summed.
        preempted: sequences that lost their KV cache.
    """

    pool: Pool
    kv_blocks: int
    sequence_blocks: int
    request: IntArray
    arrival_s: FloatArray
    admit_s: FloatArray
    replica: IntArray
    hits: IntArray
    runs: FloatArray
    gaps: FloatArray
    blocked_s: dict[PoolLimit, float]
    preempted: int


@dataclass(frozen=True, eq=False)
class Played:
    """A whole run; each array but the last of shape (n,) in order of sending [s].

    Attributes:
        sent_s, first_s, end_s: sent by the client, first and last token at the client.
        transfer_s: end of the prompt to the arrival of its KV cache, waits for the link included; NaN: not sent.
        pools: what each did.
        sends: (start [s], seconds on the link) of every transfer, shape (transfers, 2).
    """

    sent_s: FloatArray
    first_s: FloatArray
    end_s: FloatArray
    transfer_s: FloatArray
    pools: tuple[Served, ...]
    sends: FloatArray


def play(
    deployment: Deployment,
    offered: Offered,
    *,
    seed: int = 0,
    classes: tuple[RequestClass, ...] = (),
    progress: Progress | None = None,
) -> Played:
    """Every request through the deployment; in a closed loop each end sends the next, until all offered are sent.

    `seed` is that of routers that choose at random, `classes` are those of the workload (none: all requests alike).
    """
    return _Play(deployment, offered, seed, classes, progress).run()


def kv_transfer_s(deployment: Deployment, inputs: IntArray) -> FloatArray:
    """Time [s] to send each prompt's KV cache, windows and recurrent state between the pools; 0 when mixed.

    `inputs` has shape (n,) [tokens], as has the result.
    """
    sent_bytes = kv_transfer_bytes(deployment.pools[0].config, inputs)
    return np.asarray(sent_bytes / deployment.kv_link_bytes_per_s, dtype=np.float64)


# ------------------------------------------------------------------------------------------------ routers


class _Router:
    """Chooses the replica of each request of a pool, as `planner.serving.types.Router` says.

    Attributes:
        load: of each replica, the requests (or their tokens) sent there that have not ended, those on the way included.
        used: of each replica, the turn at which it was last chosen; 0: never.
        order: heap of (load, used, replica), with entries that are out of date.
        chosen: replica of each request, -1: none yet.
        sent: of each prefix, the replicas it was sent to and the turn at which it last was.
    """

    def __init__(self, pool: Pool, ledger: Ledger, replicas: list[Replica], seed: int) -> None:
        self.kind = pool.router if len(replicas) > 1 else Router.ROUND_ROBIN
        self.ledger, self.replicas = ledger, replicas
        self.turn, self.total = 0, 0
        self.load, self.used = [0] * len(replicas), [0] * len(replicas)
        self.order = [(0, 0, number) for number in range(len(replicas))]
        self.chosen = [-1] * len(ledger.inputs)
        self.sent: dict[int, dict[int, int]] = {}
        self.picks: list[list[int]] = []
        if self.kind in (Router.RANDOM, Router.POWER_OF_TWO):
            self.picks = _random_pairs(len(replicas), len(ledger.inputs), seed)
        self.choose: Callable[[int], int] = {
            Router.ROUND_ROBIN: self._next,
            Router.RANDOM: self._any,
            Router.POWER_OF_TWO: self._lesser_of_two,
            Router.LEAST_REQUESTS: self._least,
            Router.LEAST_TOKENS: self._least,
            Router.PREFIX_AFFINITY: self._near_its_prefix,
        }[self.kind]

    def route(self, request: int) -> int:
        """Number of the replica that gets the request."""
        number = self.choose(request)
        self.turn += 1
        self.used[number] = self.turn
        self.chosen[request] = number
        self._add(number, self._size(request))
        return number

    def ended(self, request: int, number: int) -> None:
        """The request has left its replica."""
        self._add(number, -self._size(request))

    def _size(self, request: int) -> int:
        if self.kind is Router.LEAST_TOKENS:
            return self.ledger.inputs[request] + self.ledger.outputs[request]
        return 1

    def _add(self, number: int, amount: int) -> None:
        if self.kind in (Router.ROUND_ROBIN, Router.RANDOM):
            return
        self.load[number] += amount
        self.total += amount
        heappush(self.order, (self.load[number], self.used[number], number))
        if len(self.order) > STALE_ENTRIES * len(self.load):
            self.order = list(zip(self.load, self.used, range(len(self.load)), strict=True))
            heapify(self.order)

    def _next(self, request: int) -> int:
        return self.turn % len(self.replicas)

    def _any(self, request: int) -> int:
        return self.picks[request][0]

    def _lesser_of_two(self, request: int) -> int:
        first, second = self.picks[request]
        return second if self.load[second] < self.load[first] else first

    def _least(self, request: int) -> int:
        """Ties go to the one not chosen for longest, then to the lowest number."""
        while True:
            load, used, number = self.order[0]
            if load == self.load[number] and used == self.used[number]:
                return number
            heappop(self.order)

    def _near_its_prefix(self, request: int) -> int:
        """Most tokens of the prefix in its cache, then fewest requests; in no cache: where it was sent to last."""
        prefix = self.ledger.prefix[request]
        if prefix < 0:
            return self._least(request)
        sent = self.sent.setdefault(prefix, {})
        number = max(sent, key=lambda one: self._nearness(one, prefix, sent[one]), default=-1)
        if number < 0 or self.load[number] >= AFFINITY_LIMIT * self.total / len(self.load) + 1.0:
            number = self._least(request)
        sent[number] = self.turn
        return number

    def _nearness(self, number: int, prefix: int, turn: int) -> tuple[int, int, int]:
        cached = self.replicas[number].prefix_tokens(prefix)
        return cached, -self.load[number] if cached else 0, turn


def _random_pairs(replicas: int, count: int, seed: int) -> list[list[int]]:
    """Two different replicas for each request, any pair as likely as any other."""
    generator = np.random.default_rng(seed)
    first = generator.integers(replicas, size=count)
    second = (first + generator.integers(1, replicas, size=count)) % replicas
    pairs: list[list[int]] = np.stack([first, second], axis=1).tolist()
    return pairs


# ------------------------------------------------------------------------------------------------ the link


class _Link:
    """KV transfers from prefill to decode replicas.

    A transfer of t seconds whose prompt ended at e may start at e, or layer by layer when the step that ended the
    prompt began. With `KvTransfer.shared` it starts once all earlier transfers (in order of e) of its sender and of its
    receiver have ended. It ends t later; layer by layer not before e + t / layers, as the last layer is sent last.
    """

    def __init__(self, deployment: Deployment, inputs: IntArray) -> None:
        self.policy = deployment.transfer
        self.seconds: list[float] = kv_transfer_s(deployment, inputs).tolist()
        self.layers = deployment.pools[0].config.llm.num_layers
        self.free_s: dict[tuple[Role, int], float] = {}
        self.sends: list[tuple[float, float]] = []

    def end_s(self, request: int, began_s: float, ended_s: float, ends: tuple[int, int]) -> float:
        """When the transfer [s] of a prompt is over whose last step began and ended then, between two replicas."""
        seconds, layerwise = self.seconds[request], self.policy.layerwise
        start_s = began_s if layerwise else ended_s
        sides = tuple(zip((Role.PREFILL, Role.DECODE), ends, strict=True))
        if self.policy.shared:
            start_s = max(start_s, *(self.free_s.get(side, 0.0) for side in sides))
        end_s = start_s + seconds
        if layerwise:
            end_s = max(end_s, ended_s + seconds / self.layers)
        self.free_s.update(dict.fromkeys(sides, end_s))
        self.sends.append((start_s, seconds))
        return end_s


# ------------------------------------------------------------------------------------------------ pools


class _Pool:
    """Replicas behind a router."""

    def __init__(self, pool: Pool, ledger: Ledger, classes: tuple[RequestClass, ...], seed: int) -> None:
        self.pool, self.ledger = pool, ledger
        kinds = tuple(ClassRules(one.priority, one.weight) for one in classes) or (ClassRules(),)
        self.rules = rules_of(pool, kinds)
        chance = pool.router in (Router.RANDOM, Router.POWER_OF_TWO)
        count = pool.replicas if chance else min(pool.replicas, len(ledger.inputs))
        self.replicas = [
            Replica(self.rules, Clock(pool.config.timer, self.rules.tokens_per_step), ledger) for _ in range(count)
        ]
        self.router = _Router(pool, ledger, self.replicas, seed)

    def served(self) -> Served:
        arrival_s = np.array(self.ledger.arrival_s)
        came = np.flatnonzero(~np.isnan(arrival_s))
        order = came[np.argsort(arrival_s[came], kind="stable")]
        runs: list[tuple[float, ...]] = []
        gaps: list[tuple[float, float, float]] = []
        for replica in self.replicas:
            runs += replica.runs
            gaps += replica.gaps
        return Served(
            pool=self.pool,
            kv_blocks=self.rules.memory.blocks,
            sequence_blocks=self.rules.memory.sequence_blocks,
            request=order,
            arrival_s=arrival_s[order],
            admit_s=np.array(self.ledger.admit_s)[order],
            replica=np.array(self.router.chosen)[order],
            hits=np.array(self.ledger.hits)[order],
            runs=np.array(runs, dtype=np.float64).reshape(-1, 11),
            gaps=np.array(gaps, dtype=np.float64).reshape(-1, 3),
            blocked_s={cap: sum(r.blocked_s[cap] for r in self.replicas) for cap in self.replicas[0].blocked_s},
            preempted=sum(replica.preempted for replica in self.replicas),
        )


def _ledger(role: Role, offered: Offered, first_token_from_decode: bool) -> Ledger:
    """What requests bring to a pool of that role.

    A prefill pool makes one token. Where the decode pool makes the client's first, it has the last prompt token to
    process once more: a prompt shorter by one, and one decode step more.
    """
    inputs, outputs, again = offered.inputs, offered.outputs, 0
    if role is Role.PREFILL:
        outputs = np.ones_like(outputs)
    elif role is Role.DECODE and first_token_from_decode:
        again = 1
    return Ledger(
        (inputs - again).tolist(),
        (outputs + again).tolist(),
        kind=offered.kind.tolist(),
        prefix=offered.prefix.tolist(),
        prefix_tokens=np.minimum(offered.prefix_tokens, inputs - again).tolist(),
        adapter=offered.adapter.tolist(),
    )


class _Play:
    """The events of one run."""

    def __init__(
        self,
        deployment: Deployment,
        offered: Offered,
        seed: int,
        classes: tuple[RequestClass, ...],
        progress: Progress | None,
    ) -> None:
        self.late_first = deployment.is_disaggregated and deployment.transfer.first_token_from_decode
        seeds = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(len(deployment.pools), np.uint64)
        self.pools = [
            _Pool(pool, _ledger(pool.role, offered, self.late_first), classes, int(word))
            for pool, word in zip(deployment.pools, seeds, strict=True)
        ]
        costs = deployment.pools[0].config.costs
        self.request_s, self.admission_s = costs.request_s, costs.admission_s
        self.free_s = [0.0] * len(self.pools[0].replicas)
        self.handover_s = costs.handover_s if deployment.is_disaggregated else 0.0
        self.link = _Link(deployment, offered.inputs) if deployment.is_disaggregated else None
        self.arrived_s = np.full(offered.inputs.size, np.nan)
        self.count, self.ended = offered.inputs.size, 0
        self.progress = progress
        self.sent_s: list[float] = offered.sent_s.tolist()
        self.events: list[_Event] = [
            (sent_s + self.request_s, _ARRIVAL, 0, request, -1) for request, sent_s in enumerate(self.sent_s)
        ]
        heapify(self.events)

    def run(self) -> Played:
        """Until nothing is left to happen."""
        events = self.events
        while events:
            now_s = events[0][0]
            woken: dict[tuple[int, int], Replica] = {}
            while events and events[0][0] == now_s:
                _, kind, pool, number, version = heappop(events)
                if kind == _ARRIVAL:
                    number = self._arrive(pool, number, version, now_s)
                elif kind == _SENT:
                    self.pools[pool].replicas[number].release(version)
                elif self.pools[pool].replicas[number].version == version:
                    self._finish(pool, number, now_s)
                woken[pool, number] = self.pools[pool].replicas[number]
            for (pool, number), replica in woken.items():
                if replica.plan is None:
                    end_s = replica.begin(now_s)
                    if end_s is not None:
                        heappush(events, (end_s, _END, pool, number, replica.version))
        return self._played()

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
        if replica.arrive(request, now_s) and replica.plan is not None:
            heappush(self.events, (replica.plan.end_s, _END, pool, number, replica.version))
        return number

    def _finish(self, pool: int, number: int, now_s: float) -> None:
        """A step ends; whoever ends with it goes on to the next pool or makes room for the next request."""
        one = self.pools[pool]
        replica = one.replicas[number]
        assert replica.plan is not None
        began_s = replica.plan.start_s
        for request in replica.finish():
            one.router.ended(request, number)
            if pool == 0 and self.link is not None:
                if self.pools[1].ledger.outputs[request] > 1:
                    self._hand_over(self.link, request, number, began_s, now_s)
                    continue
                replica.release(request)
            self._end(now_s)

    def _hand_over(self, link: _Link, request: int, number: int, began_s: float, now_s: float) -> None:
        """Send the KV cache of a prompt. With a shared link its receiver is known, and its blocks held, from now on."""
        decode, shared = self.pools[1], link.policy.shared
        receiver = decode.router.route(request) if shared else -1
        sent_s = link.end_s(request, began_s, now_s, (number, receiver))
        self.arrived_s[request] = sent_s
        if shared:
            heappush(self.events, (sent_s, _SENT, 0, number, request))
        else:
            self.pools[0].replicas[number].release(request)
        if not self.late_first:
            decode.ledger.token_s[request] = now_s + self.handover_s
        heappush(self.events, (sent_s + self.handover_s, _ARRIVAL, 1, request, receiver))

    def _end(self, now_s: float) -> None:
        """A request has its last token. In a closed loop its user sends the next."""
        self.ended += 1
        if self.progress is not None and self.ended * REPORTS // self.count > (self.ended - 1) * REPORTS // self.count:
            self.progress(self.ended / self.count)
        if len(self.sent_s) < self.count:
            heappush(self.events, (now_s + self.request_s, _ARRIVAL, 0, len(self.sent_s), -1))
            self.sent_s.append(now_s)

    def _played(self) -> Played:
        ends = [np.array(pool.ledger.end_s) for pool in self.pools]
        end_s = ends[0] if len(ends) == 1 else np.where(np.isnan(ends[1]), ends[0] + self.handover_s, ends[1])
        prompt_s = np.array(self.pools[0].ledger.first_s)
        first_s = np.array(self.pools[1].ledger.first_s) if self.late_first else prompt_s + self.handover_s
        return Played(
            sent_s=np.array(self.sent_s),
            first_s=first_s,
            end_s=end_s,
            transfer_s=self.arrived_s - prompt_s,
            pools=tuple(pool.served() for pool in self.pools),
            sends=np.array(self.link.sends if self.link else [], dtype=np.float64).reshape(-1, 2),
        )
