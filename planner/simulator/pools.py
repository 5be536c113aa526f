"""Pools that advance together: one clock, events in order of time.

Three things happen: a step (or run of steps) of a replica ends, a request reaches a pool, a replica at a boundary
begins its next step. At one instant they happen in this order, so that every step sees what arrived at its very start.
A run under way is only a plan: an arrival that it has to heed cuts it short. So no replica runs past an arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from planner.deployment import Deployment, Pool, PoolLimit, Role
from planner.replica import kv_transfer_bytes
from planner.simulator.clock import Clock
from planner.simulator.replica import Ledger, Replica, rules_of
from planner.simulator.traffic import FloatArray, IntArray, Offered

_END, _ARRIVAL = 0, 1
_Event = tuple[float, int, int, int, int]
"""(time [s], END, pool, replica, version of its plan) or (time [s], ARRIVAL, pool, request, its replica or -1)."""


@dataclass(eq=False)
class Served:
    """What a pool did: of the requests that came to it in order of arrival, and of the steps of all its replicas.

    Attributes:
        pool: the pool.
        kv_blocks: of each replica.
        request: number of each request, shape (n,). arrival_s, admit_s: at this pool [s], each shape (n,).
        runs: as in `Replica`, shape (runs, 11).
        blocked_s: as in `Replica`, summed.
        preempted: sequences that lost their KV cache.
    """

    pool: Pool
    kv_blocks: int
    request: IntArray
    arrival_s: FloatArray
    admit_s: FloatArray
    runs: FloatArray
    blocked_s: dict[PoolLimit, float]
    preempted: int


@dataclass(frozen=True, eq=False)
class Played:
    """A whole run; each array of shape (n,) in order of sending [s]."""

    sent_s: FloatArray
    first_s: FloatArray
    end_s: FloatArray
    transfer_s: FloatArray
    pools: tuple[Served, ...]


def play(deployment: Deployment, offered: Offered) -> Played:
    """Every request through the deployment; in a closed loop each end sends the next, until all offered are sent."""
    return _Play(deployment, offered).run()


def kv_transfer_s(deployment: Deployment, inputs: IntArray) -> FloatArray:
    """Time [s] to send each prompt's KV cache, windows and recurrent state between the pools; 0 when mixed.

    `inputs` has shape (n,) [tokens], as has the result.
    """
    sent_bytes = kv_transfer_bytes(deployment.pools[0].config, inputs)
    return np.asarray(sent_bytes / deployment.kv_link_bytes_per_s, dtype=np.float64)


class _Pool:
    """Replicas behind a round-robin router."""

    def __init__(self, pool: Pool, offered: Offered) -> None:
        self.pool, self.rules, self.turn = pool, rules_of(pool), 0
        outputs = np.ones_like(offered.outputs) if pool.role is Role.PREFILL else offered.outputs
        self.ledger = Ledger(offered.inputs.tolist(), outputs.tolist())
        timer = pool.config.timer
        self.replicas = [
            Replica(self.rules, Clock(timer, self.rules.tokens_per_step), self.ledger)
            for _ in range(min(pool.replicas, offered.inputs.size))
        ]

    def route(self) -> int:
        """Number of the replica whose turn it is."""
        number = self.turn % len(self.replicas)
        self.turn += 1
        return number

    def served(self) -> Served:
        arrival_s = np.array(self.ledger.arrival_s)
        came = np.flatnonzero(~np.isnan(arrival_s))
        order = came[np.argsort(arrival_s[came], kind="stable")]
        runs: list[tuple[float, ...]] = []
        for replica in self.replicas:
            runs += replica.runs
        return Served(
            pool=self.pool,
            kv_blocks=self.rules.memory.blocks,
            request=order,
            arrival_s=arrival_s[order],
            admit_s=np.array(self.ledger.admit_s)[order],
            runs=np.array(runs, dtype=np.float64).reshape(-1, 11),
            blocked_s={cap: sum(r.blocked_s[cap] for r in self.replicas) for cap in self.replicas[0].blocked_s},
            preempted=sum(replica.preempted for replica in self.replicas),
        )


class _Play:
    """The events of one run."""

    def __init__(self, deployment: Deployment, offered: Offered) -> None:
        self.pools = [_Pool(pool, offered) for pool in deployment.pools]
        costs = deployment.pools[0].config.costs
        self.request_s, self.admission_s = costs.request_s, costs.admission_s
        self.free_s = [0.0] * len(self.pools[0].replicas)
        self.transfer_s = kv_transfer_s(deployment, offered.inputs)
        self.handover_s = costs.handover_s if deployment.is_disaggregated else 0.0
        self.transfers: list[float] = (self.transfer_s + self.handover_s).tolist()
        self.count = offered.inputs.size
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
            number = self.pools[pool].route()
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
        for request in self.pools[pool].replicas[number].finish():
            if pool + 1 < len(self.pools) and self.pools[pool + 1].ledger.outputs[request] > 1:
                heappush(self.events, (now_s + self.transfers[request], _ARRIVAL, pool + 1, request, -1))
            elif len(self.sent_s) < self.count:
                heappush(self.events, (now_s + self.request_s, _ARRIVAL, 0, len(self.sent_s), -1))
                self.sent_s.append(now_s)

    def _played(self) -> Played:
        ends = [np.array(pool.ledger.end_s) for pool in self.pools]
        end_s = ends[0] if len(ends) == 1 else np.where(np.isnan(ends[1]), ends[0] + self.handover_s, ends[1])
        return Played(
            sent_s=np.array(self.sent_s),
            first_s=np.array(self.pools[0].ledger.first_s) + self.handover_s,
            end_s=end_s,
            transfer_s=self.transfer_s,
            pools=tuple(pool.served() for pool in self.pools),
        )
