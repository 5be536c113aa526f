"""Routers and the KV link against queueing theory, brute force over what happened, and single requests by hand."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
from scipy import stats

from planner.core import Metric
from planner.engine import ReplicaConfig, Schedule
from planner.serving import Deployment, KvTransfer, Pool, Role, Router
from planner.simulator import simulate
from planner.simulator.events import RunRecord, kv_transfer_s, run_events
from planner.simulator.pool import RequestRouter, random_pairs
from planner.simulator.replica import Ledger
from planner.simulator.traffic import DrawnTraffic, draw
from planner.workload import ArrivalProcess, RequestClass, SharedPrefixes, TokenLengths, Workload
from tests.simulator.test_closed import random_case, random_replica
from tests.simulator_oracle import EARLY, FloatArray, LinearTimer, gpu, linear, replica, with_kv_tokens

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


# ------------------------------------------------------------------------------------- the link


def split(
    transfer: KvTransfer,
    replicas: tuple[int, int] = (1, 1),
    prefill: ReplicaConfig | None = None,
    nic: float = 1e9,
    routers: tuple[Router, Router] = (Router.ROUND_ROBIN, Router.ROUND_ROBIN),
) -> Deployment:
    """Prefill and decode with a slow link: a token's 128 KiB take 131 us at 1e9 bytes/s."""
    sku = gpu(nic=nic)
    configs = prefill or linear(replica(sku)), linear(replica(sku))
    roles = (Role.PREFILL, Role.DECODE)
    pools = tuple(
        Pool(role=role, config=config, replicas=count, router=router)
        for role, config, count, router in zip(roles, configs, replicas, routers, strict=True)
    )
    return Deployment(pools=pools, transfer=transfer)


def prompts(count: int, seed: int, rate_per_s: float, lengths: TokenLengths) -> DrawnTraffic:
    return draw(Workload.of(rate_per_s, lengths), count, seed)


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_transfers_wait_for_both_ends_in_order_of_hand_over(seed: int, layerwise: bool) -> None:
    """A plain loop over all earlier transfers of either side, from the ends of prompts that the run had."""
    rng = np.random.default_rng(seed)
    replicas = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    router = (Router.RANDOM, Router.LEAST_REQUESTS)[seed % 2]
    deployment = split(
        KvTransfer(layerwise=layerwise, first_token_from_decode=False), replicas, routers=(Router.ROUND_ROBIN, router)
    )
    lengths = TokenLengths.from_pairs([200, 1500, 4000], [20, 5, 1])
    offered = prompts(200, seed, 8.0 * min(replicas), lengths)
    played = run_events(deployment, offered, seed=seed)
    (before, after), seconds = played.pools, kv_transfer_s(deployment, offered.inputs)
    sender = dict(zip(before.request.tolist(), before.replica.tolist(), strict=True))
    receiver = dict(zip(after.request.tolist(), after.replica.tolist(), strict=True))
    came = dict(zip(after.request.tolist(), after.arrival_s.tolist(), strict=True))
    begun = {float(end): float(start) for start, end in before.runs[:, :2]}
    done: list[tuple[int, int, float]] = []
    waited = 0
    sent = np.flatnonzero(offered.outputs > 1)
    for request in sent[np.argsort(played.first_s[sent], kind="stable")].tolist():
        ended = float(played.first_s[request])
        free = max((end for s, r, end in done if sender[request] == s or receiver[request] == r), default=0.0)
        start = max(begun[ended] if layerwise else ended, free)
        end = start + seconds[request]
        if layerwise:
            end = max(end, ended + seconds[request] / 32)
        waited += free > ended
        done.append((sender[request], receiver[request], end))
        assert came[request] == pytest.approx(end, rel=1e-12)
        assert played.transfer_s[request] == pytest.approx(end - ended, rel=1e-9)
    assert waited > 20
    assert np.isnan(played.transfer_s[offered.outputs == 1]).all()


CHUNK = 512


def chunkwise(sent: bool = True, nic: float = 1e9, **changes: object) -> ReplicaConfig:
    """A prefill replica of an engine that sends the cache of a chunk when its step ends, or all of it at the end."""
    config = linear(replica(gpu(nic=nic), max_batched_tokens=CHUNK, **changes))
    return config.model_copy(
        update={"engine": config.engine.model_copy(update={"chunkwise_kv_transfer": sent})},
    )


def own_steps_s(tokens: int) -> FloatArray:
    """Steps of a prompt alone, in chunks."""
    past = np.arange(0, tokens, CHUNK)
    new = np.minimum(tokens - past, CHUNK)
    pairs = new * past + new * (new + 1) / 2
    return np.array([LinearTimer().step_s(0, 0, n, p, b + n, 1) for n, p, b in zip(new, pairs, past, strict=True)])


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("nic", [1e15, 3e10, 1.2e10, 8e9, 1e8])
def test_chunk_by_chunk_a_lone_prompt_waits_for_what_the_link_has_not_carried(nic: float, layerwise: bool) -> None:
    """By a clock: a piece begins when its step has ended (or begun) and the pieces before it are over."""
    transfer = KvTransfer(layerwise=layerwise, first_token_from_decode=False)
    deployment = split(transfer, prefill=chunkwise(nic=nic), nic=nic)
    total = float(kv_transfer_s(deployment, np.array([2000]))[0])
    steps, pieces = own_steps_s(2000), total * np.array([512, 512, 512, 464]) / 2000
    now = free = 0.0
    for piece, step in zip(pieces, steps, strict=True):
        began, now = now, now + step
        free = max(free, began if layerwise else now) + piece
        if layerwise:
            free = max(free, now + piece / 32)
    run = simulate(deployment, Workload.of(1.0, TokenLengths.constant(2000, 4)), requests=1)
    assert run.ttft.mean_s == pytest.approx(steps.sum(), rel=1e-12)
    assert run.kv_transfer_s == pytest.approx(free - now, rel=1e-6)
    assert run.e2e.mean_s == pytest.approx(free + decode_s(2001, 3), rel=1e-9)
    if not layerwise and nic == 1e8:  # slower than prefill: all bytes from the end of the first step on
        assert run.kv_transfer_s == pytest.approx(total - steps[1:].sum(), rel=1e-9)
    if not layerwise and nic == 3e10:  # faster: the last piece
        assert run.kv_transfer_s == pytest.approx(pieces[-1], rel=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_a_prompt_of_one_chunk_is_sent_as_ever(shared: bool) -> None:
    transfer = KvTransfer(shared=shared, first_token_from_decode=False)
    offered = prompts(100, 2, 20.0, TokenLengths.constant(CHUNK, 20))
    deployments = [split(transfer, prefill=chunkwise(sent)) for sent in (False, True)]
    whole, pieces = (run_events(deployment, offered) for deployment in deployments)
    lone = float(kv_transfer_s(deployments[0], np.array([CHUNK]))[0])
    assert whole.transfer_s.min() == pytest.approx(lone) and pieces.transfer_s.min() == pytest.approx(lone)
    alone = draw(Workload.of(0.5, TokenLengths.constant(CHUNK, 20), scv=0.0), 20, 0)
    one, other = (run_events(deployment, alone) for deployment in deployments)
    assert np.array_equal(one.end_s, other.end_s)


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("nic", [4e8, 4e9, 4e10])
def test_chunk_by_chunk_no_cache_is_later_than_in_one_piece(nic: float, layerwise: bool) -> None:
    """On links of their own, with prompts that share steps."""
    transfer = KvTransfer(shared=False, layerwise=layerwise, first_token_from_decode=False)
    offered = prompts(200, 3, 12.0, TokenLengths.from_pairs([100, 900, 3000], [20, 5, 9]))
    whole, pieces = (
        run_events(split(transfer, prefill=chunkwise(sent, nic), nic=nic), offered) for sent in (False, True)
    )
    assert np.array_equal(whole.pools[0].runs, pieces.pools[0].runs)
    assert (pieces.transfer_s <= whole.transfer_s + 1e-9).all()
    assert pieces.transfer_s.sum() < 0.98 * whole.transfer_s.sum()
    assert pieces.sends[:, 1].sum() == pytest.approx(whole.sends[:, 1].sum(), rel=1e-9)


def test_pieces_follow_one_another_on_a_shared_link() -> None:
    """One pair of replicas: no two pieces at once, all bytes once, and sooner on average than in one piece."""
    offered = prompts(300, 5, 5.0, TokenLengths.from_pairs([300, 1500, 4000], [20, 5, 9]))
    whole, pieces = (run_events(split(EARLY, prefill=chunkwise(sent)), offered) for sent in (False, True))
    start_s, seconds = pieces.sends.T
    assert pieces.sends.shape[0] > 2 * whole.sends.shape[0]
    assert np.all(start_s[1:] >= (start_s + seconds)[:-1] - 1e-12)
    assert seconds.sum() == pytest.approx(kv_transfer_s(split(EARLY), offered.inputs).sum(), rel=1e-9)
    assert pieces.transfer_s.mean() < whole.transfer_s.mean()


@pytest.mark.parametrize("early", [False, True])
def test_what_a_prefix_cache_held_goes_with_the_first_chunk_or_before_it(early: bool) -> None:
    """Prompts of 2,000 tokens of which 1,000 or so are cached are computed in two steps: two pieces, or three."""
    transfer = KvTransfer(first_token_from_decode=False)
    prefill = chunkwise(own_schedule=Schedule(prefix_cache=True))
    engine = prefill.engine.model_copy(update={"early_prefix_transfer": early})
    prefill = prefill.model_copy(update={"engine": engine})
    kind = RequestClass(lengths=TokenLengths.constant(2000, 4), prefix_hit_rate=0.5)
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=0.1, scv=0.0), classes=(kind,))
    deployment = split(transfer, prefill=prefill)
    played = run_events(deployment, draw(workload, 3, 0))
    total = float(kv_transfer_s(deployment, np.array([2000]))[0])
    cached = 1000 // 16 * 16
    assert played.pools[0].hits.tolist() == [cached] * 3
    tokens = [cached, 512, 1488 - cached] if early else [cached + 512, 1488 - cached]
    assert played.sends[: len(tokens), 1] == pytest.approx(total * np.array(tokens) / 2000)
    began, ended = played.pools[0].runs[0, :2]
    assert played.sends[0, 0] == (began if early else ended)
    assert played.sends[1, 0] >= ended


def test_a_link_that_all_share_is_a_queue_with_constant_service() -> None:
    """64 prefill replicas into one decode replica, all prompts alike: arrivals at its link are Poisson (the output of
    M/D/infinity), so that waits are those of M/D/1: load * t / (2 (1 - load)) (Pollaczek-Khinchine)."""
    deployment = split(EARLY, (64, 1))
    seconds = float(kv_transfer_s(deployment, np.array([500]))[0])
    workload = Workload.of(0.5 / seconds, TokenLengths.constant(500, 2))
    runs = [simulate(deployment, workload, requests=10_000, seed=seed) for seed in range(4)]
    wait_s = np.array([run.kv_transfer_s for run in runs]) - seconds
    assert wait_s.mean() == pytest.approx(0.5 * seconds / (2 * 0.5), rel=0.06)
    assert np.mean([run.link_utilisation for run in runs]) == pytest.approx(0.5, rel=0.02)
    assert all(run.stable for run in runs)
    waits, gaps = [0.0], np.diff(draw(workload, 10_000, 0).sent_s)
    for gap in gaps:
        waits.append(max(0.0, waits[-1] + seconds - gap))  # Lindley's recursion, from the same arrivals
    assert wait_s[0] == pytest.approx(np.mean(waits[1000:]), rel=1e-3)


def test_a_link_of_ones_own_never_waits() -> None:
    deployment = split(KvTransfer(shared=False, first_token_from_decode=False), (4, 1))
    offered = prompts(300, 1, 30.0, TokenLengths.from_pairs([200, 1500], [20, 5]))
    played = run_events(deployment, offered)
    assert played.transfer_s == pytest.approx(kv_transfer_s(deployment, offered.inputs), rel=1e-9)


def test_an_overloaded_link_is_unstable_though_no_replica_is_busy() -> None:
    deployment = split(EARLY)
    seconds = float(kv_transfer_s(deployment, np.array([500]))[0])
    found = {
        load: simulate(deployment, Workload.of(load / seconds, TokenLengths.constant(500, 3)), requests=2000)
        for load in (0.8, 1.3)
    }
    assert found[0.8].stable
    assert not found[1.3].stable
    assert found[1.3].link_utilisation == pytest.approx(1.0, abs=0.01)
    assert all(pool.utilisation < 0.9 for pool in found[1.3].pools)


def test_an_overloaded_link_that_fills_the_prefill_replica_is_unstable_too() -> None:
    """With room for five prompts no more wait for the link; the others wait for admission."""
    deployment = split(EARLY, prefill=linear(with_kv_tokens(2700, gpu(nic=1e9))))
    seconds = float(kv_transfer_s(deployment, np.array([500]))[0])
    run = simulate(deployment, Workload.of(1.3 / seconds, TokenLengths.constant(500, 3)), requests=2000)
    assert run.kv_transfer_s < 6 * seconds
    assert all(pool.utilisation < 0.9 for pool in run.pools)
    assert not run.stable


@pytest.mark.parametrize(("nic", "bound"), [(1e9, "step"), (1e11, "layer")])
def test_layer_by_layer_a_lone_prompt_waits_for_what_its_step_does_not_cover(nic: float, bound: str) -> None:
    deployment = split(KvTransfer(layerwise=True, first_token_from_decode=False), nic=nic)
    seconds = float(kv_transfer_s(deployment, np.array([1000]))[0])
    step = LinearTimer().step_s(0, 0, 1000, 1000 * 1001 / 2, 1000, 1)
    exposed = {"step": seconds - step, "layer": seconds / 32}
    assert exposed[bound] == max(exposed.values())
    run = simulate(deployment, Workload.of(1.0, TokenLengths.constant(1000, 4)), requests=1)
    assert run.kv_transfer_s == pytest.approx(exposed[bound], rel=1e-9)
    assert run.ttft.mean_s == pytest.approx(step, rel=1e-12)
    assert run.e2e.mean_s == pytest.approx(step + exposed[bound] + decode_s(1001, 3), rel=1e-9)


def decode_s(context: int, steps: int) -> float:
    """Decode steps of one sequence, the first of which attends to `context` tokens."""
    return sum(LinearTimer().decode_s(1, context + k) for k in range(steps))


@pytest.mark.parametrize("outputs", [1, 2, 30])
def test_a_first_token_from_decode_takes_the_last_prompt_token_once_more(outputs: int) -> None:
    """TTFT: the prompt, its transfer and a step at its context; then a step per token."""
    deployment = split(KvTransfer(first_token_from_decode=True))
    seconds = float(kv_transfer_s(deployment, np.array([1000]))[0])
    step = LinearTimer().step_s(0, 0, 1000, 1000 * 1001 / 2, 1000, 1)
    run = simulate(deployment, Workload.of(1.0, TokenLengths.constant(1000, outputs)), requests=1)
    first = step + seconds + decode_s(1000, 1)
    rest = decode_s(1001, outputs - 1)
    assert run.ttft.mean_s == pytest.approx(first, rel=1e-9)
    assert run.e2e.mean_s == pytest.approx(first + rest, rel=1e-9)
    assert run.tpot.mean_s == pytest.approx(rest / max(1, outputs - 1), rel=1e-9)


def test_first_tokens_from_decode_cost_ttft_and_spare_tpot_the_transfer() -> None:
    """The same requests: E2E differs by one decode step or so, but the transfer moves from TPOT to TTFT."""
    workload = Workload.of(3.0, TokenLengths.from_pairs([300, 1500], [20, 60]))
    early, late = (
        simulate(split(KvTransfer(first_token_from_decode=late)), workload, requests=1000) for late in (False, True)
    )
    assert np.all(late.samples_s[Metric.TTFT] > early.samples_s[Metric.TTFT])
    assert late.tpot.mean_s < early.tpot.mean_s
    assert late.e2e.mean_s == pytest.approx(early.e2e.mean_s, rel=0.05)


def test_a_prefill_replica_keeps_a_prompt_until_it_is_sent() -> None:
    """KV memory for one prompt: the second cannot begin before the first is gone; with a link of its own it can."""
    prefill = linear(with_kv_tokens(1100, gpu(nic=1e9)))
    offered = DrawnTraffic.plain(np.zeros(2), np.array([1000, 1000]), np.array([3, 3]))
    step = LinearTimer().step_s(0, 0, 1000, 1000 * 1001 / 2, 1000, 1)
    shared = run_events(split(EARLY, prefill=prefill), offered)
    seconds = float(kv_transfer_s(split(EARLY), np.array([1000]))[0])
    assert shared.first_s == pytest.approx([step, step + seconds + step], rel=1e-9)
    alone = run_events(split(KvTransfer(shared=False, first_token_from_decode=False), prefill=prefill), offered)
    assert alone.first_s == pytest.approx([step, 2 * step], rel=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_no_request_is_lost_between_pools_whatever_the_policies(seed: int) -> None:
    """Tight memory, slow links, any engine policy and router: all end, no link carries two transfers at once, and the
    decode pool makes every token it owes."""
    rng = np.random.default_rng(seed)
    _, workload, drawn = random_case(seed)
    configs = [random_replica(rng) for _ in range(2)]
    slow = gpu(nic=float(rng.choice([2.0**28, 2.0**32]))).node
    configs = [
        linear(one.model_copy(update={"sku": one.sku.model_copy(update={"node": slow}), "speculation": None}))
        for one in configs
    ]
    engine = configs[0].engine.model_copy(update={"chunkwise_kv_transfer": seed % 2 == 1})
    configs[0] = configs[0].model_copy(update={"engine": engine})
    late = bool(rng.random() < 0.5)
    pools = tuple(
        Pool(role=role, config=config, replicas=int(rng.integers(1, 4)), router=Router(rng.choice(list(Router))))
        for role, config in zip((Role.PREFILL, Role.DECODE), configs, strict=True)
    )
    transfer = KvTransfer(layerwise=bool(rng.random() < 0.5), first_token_from_decode=late)
    offered = draw(workload, 0, 0, drawn)
    played = run_events(Deployment(pools=pools, transfer=transfer), offered, seed=seed)
    assert np.isfinite(played.end_s).all()
    assert np.all(played.first_s <= played.end_s)
    assert np.all(played.sent_s < played.first_s)
    assert np.array_equal(np.sort(played.pools[0].request), np.arange(drawn[0].size))
    sent = np.arange(drawn[0].size) if late else np.flatnonzero(drawn[1] > 1)
    assert np.array_equal(np.sort(played.pools[1].request), sent)
    _, _, steps, _, _, decodes, *_ = played.pools[1].runs.T
    if not played.pools[1].preempted:
        assert steps @ decodes == (drawn[1][sent] - (0 if late else 1)).sum()
    start_s, seconds = played.sends[np.argsort(played.sends[:, 0])].T
    if min(pool.replicas for pool in pools) == 1:
        assert np.all(start_s[1:] >= (start_s + seconds)[:-1] - 1e-12)
