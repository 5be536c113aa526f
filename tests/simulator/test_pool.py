"""Routers and the KV link against queueing theory, brute force over what happened, and single requests by hand."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
from scipy import stats

from planner.core import Metric
from planner.engine import ReplicaConfig
from planner.serving import Deployment, Pool, Role, Router
from planner.simulator import simulate
from planner.simulator.events import RunRecord, run_events
from planner.simulator.pool import RequestRouter, random_pairs, turns_apart
from planner.simulator.replica import Ledger
from planner.simulator.traffic import DrawnTraffic, draw
from planner.workload import ArrivalProcess, RequestClass, SharedPrefixes, TokenLengths, Workload
from tests.simulator_oracle import FloatArray, LinearTimer, linear, replica

TOKEN_S = 2.0**-17
LEAST = (Router.LEAST_REQUESTS, Router.LEAST_TOKENS)


def server() -> ReplicaConfig:
    """A replica that is a queue with one server: one prompt a step, whose time is in proportion to its length."""
    config = linear(replica(max_batched_tokens=8192, max_running_requests=1))
    config.__dict__["timer"] = LinearTimer(step=0.0, token=TOKEN_S, context=0.0, pair=0.0)
    return config


def exponential(mean: float = 600.0, cells: int = 2000) -> TokenLengths:
    """Prompts of exponential length, at the middles of `cells` equal slices of probability, and no decode."""
    at = (np.arange(cells) + 0.5) / cells
    tokens = np.maximum(1, np.round(-mean * np.log1p(-at))).astype(int)
    return TokenLengths.from_pairs(tokens, np.ones_like(tokens))


EXPONENTIAL = exponential()
SERVICE_S = TOKEN_S * (EXPONENTIAL.mean_input + 1.0)


def routed(router: Router, replicas: int, config: ReplicaConfig | None = None) -> Deployment:
    pool = Pool(role=Role.MIXED, config=config or server(), replicas=replicas, router=router)
    return Deployment(pools=(pool,))


def mean_response(router: Router, replicas: int, load: float, seeds: int = 1) -> float:
    """Mean time in the system in services, over some seeds."""
    workload = Workload.of(replicas * load / SERVICE_S, EXPONENTIAL)
    runs = [simulate(routed(router, replicas), workload, requests=20_000, seed=seed) for seed in range(seeds)]
    return float(np.mean([run.e2e.mean_s for run in runs])) / SERVICE_S


def central_queue(servers: int, load: float) -> float:
    """Mean time in an M/M/c queue in services (Erlang C)."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1.0 - load)
    return 1.0 + last / (sum(terms) + last) / (servers * (1.0 - load))


def every_nth(servers: int, load: float) -> float:
    """Mean time in an E_c/M/1 queue in services: 1 / (1 - s), where s = (c load / (c load + 1 - s))^c (GI/M/1)."""
    root = 0.5
    for _ in range(2000):
        root = (servers * load / (servers * load + 1.0 - root)) ** servers
    return 1.0 / (1.0 - root)


# ------------------------------------------------------------------------------------- queueing theory


def test_chance_is_separate_queues_turns_are_erlang_arrivals_and_the_least_comes_near_one_queue() -> None:
    replicas, load = 4, 0.7
    found = {router: mean_response(router, replicas, load) for router in Router}
    one_queue = central_queue(replicas, load)
    assert found[Router.RANDOM] == pytest.approx(1.0 / (1.0 - load), rel=0.06)  # M/M/1
    assert found[Router.ROUND_ROBIN] == pytest.approx(every_nth(replicas, load), rel=0.06)
    assert one_queue < found[Router.LEAST_REQUESTS] < 1.5 * one_queue
    assert found[Router.LEAST_REQUESTS] <= found[Router.POWER_OF_TWO] + 1e-9
    assert found[Router.POWER_OF_TWO] < found[Router.ROUND_ROBIN] < found[Router.RANDOM]
    assert one_queue < found[Router.LEAST_TOKENS] < found[Router.LEAST_REQUESTS]


def test_two_choices_of_many_is_the_supermarket_model() -> None:
    """Mean time sum of load^(2^i - 2) over i = 1, 2, ... as replicas grow many (Mitzenmacher 2001, sec. 3)."""
    load = 0.7
    limit = sum(load ** (2.0**i - 2.0) for i in range(1, 12))
    assert mean_response(Router.POWER_OF_TWO, 200, load, seeds=1) == pytest.approx(limit, rel=0.04)


def test_routers_side_by_side_come_between_turns_and_chance() -> None:
    """One takes turns; each of several does by itself; of as many as there are requests none meets a second one."""
    lone, few, many = (np.array(turns_apart(8, 8000, routers, seed=3))[:, 0] for routers in (1, 4, 100_000))
    assert ((np.diff(lone) - 1) % 8 == 0).all()
    assert np.bincount(few, minlength=8) == pytest.approx(1000, abs=4)
    assert 0.001 < stats.chisquare(np.bincount(many, minlength=8)).pvalue < 0.999
    windows = ([np.bincount(turns[at : at + 64], minlength=8) for at in range(0, 8000, 64)] for turns in (few, many))
    few_variance, variance = (float(np.var(counts)) for counts in windows)
    assert 0.0 < few_variance < variance == pytest.approx(64 / 8 * 7 / 8, rel=0.1)  # binomial


def test_chance_splits_binomially() -> None:
    offered = draw(Workload.of(400.0, TokenLengths.constant(100, 1)), 8000, seed=3)
    counts = np.bincount(run_events(routed(Router.RANDOM, 8), offered, seed=3).pools[0].replica, minlength=8)
    assert counts.sum() == 8000
    assert 0.001 < stats.chisquare(counts).pvalue < 0.999  # every nth would fit too well


def test_every_pair_of_different_replicas_is_as_likely_as_any_other() -> None:
    first, second = np.array(random_pairs(4, 12_000, seed=1)).T
    counts = np.bincount(4 * first + second, minlength=16).reshape(4, 4)
    assert not np.diag(counts).any()
    assert stats.chisquare(counts[~np.eye(4, dtype=bool)]).pvalue > 0.001


# ------------------------------------------------------------------------------------- brute force


def mixed_case(seed: int) -> DrawnTraffic:
    lengths = TokenLengths.from_pairs([50, 900, 2500], [30, 2, 100])
    groups = SharedPrefixes(tokens=40, groups=12, skew=1.0)
    classes = (RequestClass(lengths=lengths, prefixes=groups),)
    return draw(Workload(arrivals=ArrivalProcess(rate_per_s=60.0, scv=2.0), classes=classes), 400, seed)


def loads_found(played: RunRecord, sizes: FloatArray, replicas: int) -> tuple[FloatArray, FloatArray]:
    """(load of the replica chosen, load of every replica) as each request came: sums over all not ended before."""
    pool = played.pools[0]
    chosen, every = np.zeros(pool.request.size), np.zeros((pool.request.size, replicas))
    for place, (request, at_s) in enumerate(zip(pool.request, pool.arrival_s, strict=True)):
        earlier = pool.request[:place]
        there = played.end_s[earlier] > at_s
        every[place] = np.bincount(pool.replica[:place][there], sizes[earlier][there], minlength=replicas)
        chosen[place] = every[place, pool.replica[place]]
        assert request not in earlier
    return chosen, every


@pytest.mark.parametrize("router", LEAST)
def test_the_least_loaded_replica_gets_the_request(router: Router) -> None:
    offered = mixed_case(1)
    played = run_events(routed(router, 5, linear(replica(max_running_requests=4))), offered)
    sizes = np.ones(400) if router is Router.LEAST_REQUESTS else (offered.inputs + offered.outputs).astype(float)
    chosen, every = loads_found(played, sizes, 5)
    assert every.max() > 0
    assert np.array_equal(chosen, every.min(axis=1))


def test_a_prefix_stays_where_it_was_unless_that_replica_has_twice_the_mean() -> None:
    offered = mixed_case(2)
    played = run_events(routed(Router.PREFIX_AFFINITY, 5, linear(replica(max_running_requests=4))), offered)
    pool = played.pools[0]
    chosen, every = loads_found(played, np.ones(400), 5)
    last: dict[int, int] = {}
    stayed = 0
    for place, request in enumerate(pool.request):
        prefix, number = int(offered.prefix[request]), int(pool.replica[place])
        home = last.get(prefix)
        if home is not None and every[place, home] < 2.0 * every[place].mean() + 1.0:
            assert number == home
            stayed += 1
        else:
            assert chosen[place] == every[place].min()
        last[prefix] = number
    assert 100 < stayed < 400


class Holder:
    """A replica of which only its cache matters."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def cached_blocks(self, prefix: int) -> int:
        return self.blocks if prefix == 0 else 0


@pytest.mark.parametrize(
    ("blocks", "loads", "expected"),
    [
        ((0, 4, 8), (0, 0, 0), 2),  # most blocks
        ((4, 4, 0), (1, 0, 0), 1),  # as many: fewer requests
        ((0, 0, 0), (1, 1, 0), 0),  # none any more: where it was sent to last
    ],
)
def test_affinity_looks_into_the_caches(blocks: tuple[int, ...], loads: tuple[int, ...], expected: int) -> None:
    pool = routed(Router.PREFIX_AFFINITY, 3).pools[0]
    ledger = Ledger(*(array("q", [number]) for number in (100, 1, 0, 0, 0, -1)))
    router = RequestRouter(pool, ledger, [Holder(one) for one in blocks], 0)  # type: ignore[misc]
    router.sent, router.load, router.total = {0: {0: 3, 1: 2, 2: 1}}, list(loads), sum(loads)
    assert router.route(0) == expected


def test_without_prefixes_affinity_is_least_requests() -> None:
    workload = Workload.of(6.0 / SERVICE_S, EXPONENTIAL)
    runs = [simulate(routed(router, 8), workload, requests=1000) for router in (Router.PREFIX_AFFINITY, LEAST[0])]
    assert np.array_equal(runs[0].samples_s[Metric.E2E], runs[1].samples_s[Metric.E2E])


@pytest.mark.parametrize("router", Router)
def test_every_request_is_served_once_and_a_seed_repeats(router: Router) -> None:
    offered, config = mixed_case(4), linear(replica(max_running_requests=4))
    first, again, other = (run_events(routed(router, 3, config), offered, seed=seed) for seed in (7, 7, 8))
    for played in (first, other):
        assert np.array_equal(np.sort(played.pools[0].request), np.arange(400))
        assert np.isfinite(played.end_s).all()
        _, _, steps, _, _, decodes, *_ = played.pools[0].runs.T
        assert steps @ decodes == (offered.outputs - 1).sum()
    assert np.array_equal(first.end_s, again.end_s)
    drawn = router in (Router.RANDOM, Router.POWER_OF_TWO)
    assert np.array_equal(first.end_s, other.end_s) != drawn


@pytest.mark.parametrize("router", Router)
def test_one_replica_leaves_nothing_to_choose(router: Router) -> None:
    offered, config = mixed_case(5), linear(replica())
    assert np.array_equal(
        run_events(routed(router, 1, config), offered).end_s, run_events(Deployment.mixed(config), offered).end_s
    )


def test_ties_go_to_the_replica_unused_for_longest() -> None:
    """Requests far apart find all replicas empty: they take turns."""
    offered = draw(Workload.of(0.1, TokenLengths.constant(100, 5), scv=0.0), 9, seed=0)
    for router in LEAST:
        assert run_events(routed(router, 3, linear(replica())), offered).pools[0].replica.tolist() == [0, 1, 2] * 3
