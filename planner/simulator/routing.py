"""Which replica of a pool gets a request, as `planner.serving.Router` says."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

import numpy as np

from planner.core import IntArray
from planner.serving import AFFINITY_LIMIT, Pool, Router
from planner.simulator.replica import Replica
from planner.simulator.replica_state import Ledger

STALE_ENTRIES = 8
"""Entries per replica in the order of loads before those out of date are thrown away. Affects speed only."""


class RequestRouter:
    """Chooses the replica of each request of a pool.

    Attributes:
        load: of each replica, the requests (or their tokens) sent there that have not ended, those on the way included.
        used: of each replica, the turn at which it was last chosen; 0: never.
        order: heap of (load, used, replica), with entries that are out of date.
        chosen: replica of each request, -1: none yet.
        picks: of each request, the replicas drawn for it where routing is random.
        sent: of each prefix, the replicas it was sent to and the turn at which it last was.
    """

    def __init__(self, pool: Pool, ledger: Ledger, replicas: list[Replica], seed: int) -> None:
        self.policy = pool.router if len(replicas) > 1 else Router.ROUND_ROBIN
        self.ledger, self.replicas = ledger, replicas
        self.turn, self.total = 0, 0
        self.load, self.used = [0] * len(replicas), [0] * len(replicas)
        self.order = [(0, 0, number) for number in range(len(replicas))]
        self.chosen = [-1] * len(ledger.inputs)
        self.sent: dict[int, dict[int, int]] = {}
        self.picks: list[list[int]] = []
        if self.policy in (Router.RANDOM, Router.POWER_OF_TWO):
            self.picks = random_pairs(len(replicas), len(ledger.inputs), seed)
        # Not bound: an object that holds itself is freed late, and with it the ledger.
        self.choose: Callable[[RequestRouter, int], int] = {
            Router.ROUND_ROBIN: RequestRouter._next_in_turn,
            Router.RANDOM: RequestRouter._any,
            Router.POWER_OF_TWO: RequestRouter._lesser_of_two,
            Router.LEAST_REQUESTS: RequestRouter._least,
            Router.LEAST_TOKENS: RequestRouter._least,
            Router.PREFIX_AFFINITY: RequestRouter._nearest_to_prefix,
        }[self.policy]

    def route(self, request: int) -> int:
        """Number of the replica that gets the request."""
        number = self.choose(self, request)
        self.turn += 1
        self.used[number] = self.turn
        self.chosen[request] = number
        self._add(number, self._size(request))
        return number

    def take_turns(self, requests: IntArray) -> None:
        """`route` all requests, in this order, where replicas take turns and nothing but that counts."""
        chosen = np.array(self.chosen)
        chosen[requests] = np.arange(requests.size) % len(self.replicas)
        self.chosen = chosen.tolist()

    def release(self, request: int, number: int) -> None:
        """The request has left its replica."""
        self._add(number, -self._size(request))

    def _size(self, request: int) -> int:
        if self.policy is Router.LEAST_TOKENS:
            return self.ledger.inputs[request] + self.ledger.outputs[request]
        return 1

    def _add(self, number: int, amount: int) -> None:
        if self.policy in (Router.ROUND_ROBIN, Router.RANDOM):
            return
        self.load[number] += amount
        self.total += amount
        heappush(self.order, (self.load[number], self.used[number], number))
        if len(self.order) > STALE_ENTRIES * len(self.load):
            self.order = list(zip(self.load, self.used, range(len(self.load)), strict=True))
            heapify(self.order)

    def _next_in_turn(self, request: int) -> int:
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

    def _nearest_to_prefix(self, request: int) -> int:
        """Most tokens of the prefix in its cache, then fewest requests; in no cache: where it was sent to last."""
        prefix = self.ledger.prefix[request]
        if prefix < 0:
            return self._least(request)
        sent = self.sent.setdefault(prefix, {})
        number = max(sent, key=lambda candidate: self._nearness(candidate, prefix, sent[candidate]), default=-1)
        if number < 0 or self.load[number] >= AFFINITY_LIMIT * self.total / len(self.load) + 1.0:
            number = self._least(request)
        sent[number] = self.turn
        return number

    def _nearness(self, number: int, prefix: int, turn: int) -> tuple[int, int, int]:
        cached = self.replicas[number].prefix_tokens(prefix)
        return cached, -self.load[number] if cached else 0, turn


def random_pairs(replicas: int, count: int, seed: int) -> list[list[int]]:
    """Two different replicas for each request, any pair as likely as any other."""
    generator = np.random.default_rng(seed)
    first = generator.integers(replicas, size=count)
    second = (first + generator.integers(1, replicas, size=count)) % replicas
    pairs: list[list[int]] = np.stack([first, second], axis=1).tolist()
    return pairs
