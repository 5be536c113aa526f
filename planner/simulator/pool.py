"""Replicas of a pool behind a router, and what they did."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from planner.core import FloatArray, IntArray
from planner.engine import images_s, keeps_recurrent_state, reusable_prefix_tokens, reuse_step_tokens
from planner.serving import AFFINITY_LIMIT, Pool, PoolLimit, Role, Router
from planner.simulator.clock import StepClock
from planner.simulator.replica import GAP_FIELDS, RUN_FIELDS, Ledger, Replica
from planner.simulator.rules import rules_of
from planner.simulator.tier_blocks import PrefixDemand, tiers_of_pool, warm_tiers
from planner.simulator.traffic import DrawnTraffic
from planner.workload import RequestClass

STALE_ENTRIES = 8
"""Entries per replica in the order of loads before those out of date are thrown away. Affects speed only."""


@dataclass(eq=False)
class PoolRecord:
    """Record of one pool: its requests in order of arrival, and the steps of all its replicas.

    Attributes:
        pool: the pool.
        kv_blocks: of each replica.
        sequence_blocks: of these, what every sequence holds beside its tokens.
        request: number of each request, shape (n,).
        arrival_s, admit_s: at this pool [s], each shape (n,).
        replica: where each request went, shape (n,).
        hits: its prompt tokens found in the prefix cache, shape (n,).
        tier_hits: of these, loaded from each KV tier, shape (n, tiers).
        tier_loads: (start [s], seconds on the link) of each load from a tier, shape (loads, 2).
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
    tier_hits: IntArray
    tier_loads: FloatArray
    runs: FloatArray
    gaps: FloatArray
    blocked_s: dict[PoolLimit, float]
    preempted: int


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
        self.policy = Router.ROUND_ROBIN if len(replicas) == 1 else Router.RANDOM if pool.routers > 1 else pool.router
        self.ledger, self.replicas = ledger, replicas
        self.turn, self.total = 0, 0
        self.load, self.used = [0] * len(replicas), [0] * len(replicas)
        self.order = [(0, 0, number) for number in range(len(replicas))]
        self.chosen = array("q", [-1]) * len(ledger.inputs)
        self.sent: dict[int, dict[int, int]] = {}
        self.picks: list[list[int]] = []
        if pool.routers > 1:
            self.picks = turns_apart(len(replicas), len(ledger.inputs), pool.routers, seed)
        elif self.policy in (Router.RANDOM, Router.POWER_OF_TWO):
            self.picks = random_pairs(len(replicas), len(ledger.inputs), seed)

    def route(self, request: int) -> int:
        """Number of the replica that gets the request."""
        number = self._choice(request)
        self.turn += 1
        self.used[number] = self.turn
        self.chosen[request] = number
        self._add(number, self._size(request))
        return number

    def take_turns(self, requests: IntArray) -> None:
        """`route` all requests, in this order, where replicas take turns and nothing but that counts."""
        np.frombuffer(self.chosen, np.int64)[requests] = np.arange(requests.size) % len(self.replicas)

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

    def _choice(self, request: int) -> int:
        match self.policy:
            case Router.ROUND_ROBIN:
                return self.turn % len(self.replicas)
            case Router.RANDOM:
                return self.picks[request][0]
            case Router.POWER_OF_TWO:
                first, second = self.picks[request]
                return second if self.load[second] < self.load[first] else first
            case Router.PREFIX_AFFINITY if self.ledger.prefix[request] >= 0:
                return self._nearest_to_prefix(self.ledger.prefix[request])
        return self._least()

    def _least(self) -> int:
        """The least loaded; ties go to the one not chosen for longest, then to the lowest number."""
        while True:
            load, used, number = self.order[0]
            if load == self.load[number] and used == self.used[number]:
                return number
            heappop(self.order)

    def _nearest_to_prefix(self, prefix: int) -> int:
        """Most tokens of the prefix in its cache, then fewest requests; in no cache: where it was sent to last."""

        def nearness(number: int) -> tuple[int, int, int]:
            cached = self.replicas[number].cached_blocks(prefix)
            return cached, -self.load[number] if cached else 0, sent[number]

        sent = self.sent.setdefault(prefix, {})
        number = max(sent, key=nearness, default=-1)
        if number < 0 or self.load[number] >= AFFINITY_LIMIT * self.total / len(self.load) + 1.0:
            number = self._least()
        sent[number] = self.turn
        return number


def random_pairs(replicas: int, count: int, seed: int) -> list[list[int]]:
    """Two different replicas for each request, any pair as likely as any other."""
    generator = np.random.default_rng(seed)
    first = generator.integers(replicas, size=count)
    second = (first + generator.integers(1, replicas, size=count)) % replicas
    pairs: list[list[int]] = np.stack([first, second], axis=1).tolist()
    return pairs


def turns_apart(replicas: int, count: int, routers: int, seed: int) -> list[list[int]]:
    """The replica of each request, shape (count, 1): routers, met at random, take turns, each from one of its own."""
    generator = np.random.default_rng(seed)
    met, turns = generator.integers(routers, size=count), generator.integers(replicas, size=count)
    for router in range(routers):
        mine = np.flatnonzero(met == router)
        turns[mine] = (turns[mine[:1]] + np.arange(mine.size)) % replicas
    found: list[list[int]] = turns[:, None].tolist()
    return found


class SimulatedPool:
    """Replicas behind a router."""

    def __init__(
        self, pool: Pool, traffic: DrawnTraffic, late_first: bool, classes: tuple[RequestClass, ...], seed: int
    ) -> None:
        self.pool, self.ledger = pool, _ledger(pool, traffic, late_first)
        self.rules = rules_of(pool, classes)
        at_random = pool.routers > 1 or pool.router in (Router.RANDOM, Router.POWER_OF_TWO)
        count = pool.replicas if at_random else min(pool.replicas, traffic.inputs.size)
        clock = StepClock(pool.config.timer, self.rules.tokens_per_step)
        self.replicas = [
            Replica(self.rules, clock, self.ledger, tiers)
            for tiers in tiers_of_pool(pool.config, count, self.rules.memory.sequence_blocks)
        ]
        self.router = RequestRouter(pool, self.ledger, self.replicas, seed)
        tiers = [replica.tiers for replica in self.replicas if replica.tiers is not None]
        demand = _prefix_demand(pool, classes, traffic) if tiers else None
        if demand is not None:
            affinity = pool.router is Router.PREFIX_AFFINITY
            warm_tiers(tiers, demand, affinity, seed)
            if affinity:
                self.router.sent = {k: {k % count: 0} for k in range(demand.blocks.size)}

    def record(self) -> PoolRecord:
        """Record of the run, once it is over."""
        arrival_s = self.ledger.column("arrival_s")
        came = np.flatnonzero(~np.isnan(arrival_s))
        order = came[np.argsort(arrival_s[came], kind="stable")]
        return PoolRecord(
            pool=self.pool,
            kv_blocks=self.rules.memory.blocks,
            sequence_blocks=self.rules.memory.sequence_blocks,
            request=order,
            arrival_s=arrival_s[order],
            admit_s=self.ledger.column("admit_s")[order],
            replica=np.array(self.router.chosen)[order],
            hits=self.ledger.column("hits")[order],
            tier_hits=self._tier_hits()[order],
            tier_loads=np.array(
                [load for replica in self.replicas if replica.tiers for load in replica.tiers.sends], dtype=np.float64
            ).reshape(-1, 2),
            runs=_moved([replica.runs for replica in self.replicas]).reshape(-1, RUN_FIELDS),
            gaps=_moved([replica.gaps for replica in self.replicas]).reshape(-1, GAP_FIELDS),
            blocked_s={cap: sum(r.blocked_s[cap] for r in self.replicas) for cap in self.replicas[0].blocked_s},
            preempted=sum(replica.preempted for replica in self.replicas),
        )

    def _tier_hits(self) -> IntArray:
        """Tokens that each request had loaded from each tier, shape (n, tiers)."""
        tiers = [replica.tiers for replica in self.replicas if replica.tiers is not None]
        hits = np.zeros((len(self.ledger.inputs), len(tiers[0].loads) if tiers else 0), dtype=np.int64)
        for each in tiers:
            for request, blocks in each.from_tier.items():
                hits[request] = blocks
        return hits * self.rules.memory.block_tokens


def _moved(notes: list[array[float]]) -> FloatArray:
    """All notes one after another, which are emptied one by one: together they are most of the memory of a long run."""
    joined = np.empty(sum(len(each) for each in notes))
    place = 0
    for each in notes:
        joined[place : place + len(each)] = each
        place += len(each)
        del each[:]
    return joined


def _reusable_tokens(pool: Pool, traffic: DrawnTraffic) -> IntArray:
    """Tokens of its prefix that each request can find in a cache, shape (n,)."""
    if not pool.config.schedule.prefix_cache:
        return traffic.prefix_tokens
    if traffic.follow_up is not None:
        return np.zeros_like(traffic.prefix_tokens) if keeps_recurrent_state(pool.config) else traffic.prefix_tokens
    step = reuse_step_tokens(pool.config)
    found = np.where(traffic.prefix < 0, traffic.prefix_tokens // step * step, 0)
    for tokens in np.unique(traffic.prefix_tokens[traffic.prefix >= 0]):
        alike = traffic.prefix_tokens == tokens
        found[alike] = reusable_prefix_tokens(pool.config, int(tokens), traffic.inputs[alike])
    return found


def _prefix_demand(pool: Pool, classes: tuple[RequestClass, ...], traffic: DrawnTraffic) -> PrefixDemand | None:
    """Demand for each prefix (numbered as `planner.simulator.traffic` does) in an open run; else None."""
    sent_s = traffic.sent_s
    if traffic.follow_up is not None or sent_s.size < traffic.inputs.size or sent_s[-1] <= sent_s[0]:
        return None
    rate_per_s = float((sent_s.size - 1) / (sent_s[-1] - sent_s[0]))
    block = pool.config.kv_block_tokens
    rates, blocks, own = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], 0.0
    for kind in classes:
        inputs, found, prefixes = kind.lengths.inputs, 0, kind.prefixes
        if prefixes is not None:
            found = reusable_prefix_tokens(pool.config, prefixes.tokens, inputs)
            rates.append(rate_per_s * kind.share * prefixes.popularity)
            blocks.append(np.full(prefixes.groups, found // block))
        unshared = np.ceil(np.maximum(inputs - found, 0.0) / block)
        own += rate_per_s * kind.share * float(unshared @ kind.lengths.probabilities)
    demand = PrefixDemand(np.concatenate(rates), np.concatenate(blocks), own, traffic.inputs.size)
    return demand if demand.blocks.size else None


def _ledger(pool: Pool, traffic: DrawnTraffic, first_token_from_decode: bool) -> Ledger:
    """Requests as one pool sees them.

    A prefill pool makes one token. Where the decode pool makes the client's first, it has the last prompt token to
    process once more: a prompt shorter by one, and one decode step more. It encodes images only where it processes the
    prompt of a preempted sequence again.
    """
    inputs, outputs, again, role = traffic.inputs, traffic.outputs, 0, pool.role
    each_s = [] if pool.encoders else [images_s(pool.config, images) for images in traffic.kinds]
    if role is Role.PREFILL:
        outputs = np.ones_like(outputs)
    elif role is Role.DECODE and first_token_from_decode:
        again = 1
    return Ledger(
        _compact(inputs - again),
        _compact(outputs + again),
        class_index=_compact(traffic.class_index),
        prefix=_compact(traffic.prefix),
        prefix_tokens=_compact(np.minimum(_reusable_tokens(pool, traffic), inputs - again)),
        adapter=_compact(traffic.adapter),
        encode_s=np.array([*each_s, 0.0])[traffic.images].tolist() if each_s else [],
        system_tokens=[] if traffic.follow_up is None else traffic.follow_up.system_tokens.tolist(),
    )


def _compact(numbers: IntArray) -> array[int]:
    """As an array that is quicker than numpy's to read one by one, and smaller than a list."""
    return array("q", numbers.astype(np.int64).tobytes())
