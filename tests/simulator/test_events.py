"""The common clock: closed loops, pools that are coupled, and the KV link between them, by hand and by theory."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import EngineCosts
from planner.core import InputError, Metric
from planner.engine import ReplicaConfig, Schedule
from planner.serving import Deployment, KvTransfer, Pool, Role, Router, sent_s
from planner.serving.types import TRANSFER_SHARE
from planner.simulator import events, simulate
from planner.simulator.events import run_events
from planner.simulator.traffic import DrawnTraffic, draw
from planner.workload import ArrivalProcess, ClosedLoop, RequestClass, TokenLengths, Workload
from tests.simulator.test_replica import CLASSES, CONTINUOUS, requests, server
from tests.simulator_oracle import (
    EARLY,
    LLAMA_8B_KV_BYTES_PER_TOKEN,
    FloatArray,
    LinearTimer,
    gpu,
    linear,
    looped,
    prompts_s,
    replica,
    uniform,
    with_kv_tokens,
)

# ------------------------------------------------------------------------------------- budget


@pytest.mark.parametrize("router", [Router.ROUND_ROBIN, Router.LEAST_REQUESTS])
def test_a_run_of_too_many_events_says_how_far_it_came(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """In compiled code and event by event: servers that preempt all the time need not end."""
    deployment = Deployment.mixed(replica(), 2)
    deployment = deployment.model_copy(
        update={"pools": tuple(pool.model_copy(update={"router": router}) for pool in deployment.pools)}
    )
    workload = Workload.of(5.0, TokenLengths.constant(500, 2000))
    whole = simulate(deployment, workload, requests=300)
    monkeypatch.setattr(events, "MOST_EVENTS", 300)
    with pytest.raises(InputError, match=r"of 330 requests have ended after 300 events"):
        simulate(deployment, workload, requests=300)
    monkeypatch.setattr(events, "MOST_EVENTS", 100_000)
    assert simulate(deployment, workload, requests=300).e2e.mean_s == whole.e2e.mean_s


# ------------------------------------------------------------------------------------- closed loops


def test_one_user_finds_every_request_alone() -> None:
    config = linear(replica())
    drawn = uniform(1000, 30, 12)
    result = looped(config, 1, drawn)
    for i, o, ttft, e2e in zip(*drawn, result.samples_s[Metric.TTFT], result.samples_s[Metric.E2E], strict=True):
        prompt = prompts_s(int(i))
        assert ttft == pytest.approx(prompt, rel=1e-12)
        assert e2e == pytest.approx(prompt + sum(config.timer.decode_s(1, i + j) for j in range(1, o)), rel=1e-12)
    assert result.rate_per_s == pytest.approx(1.0 / result.e2e.mean_s, rel=1e-12)


def test_the_first_burst_queues_for_prompt_steps() -> None:
    """Eight prompts at once, each of them a whole step: the k-th has its first token after k steps."""
    config = linear(replica(max_batched_tokens=512))
    result = looped(config, 8, (np.full(8, 512), np.full(8, 1)))
    step = prompts_s(512)
    assert result.samples_s[Metric.TTFT] == pytest.approx(step * np.arange(1, 9), rel=1e-12)
    assert result.steady is None


@pytest.mark.parametrize("replicas", [1, 3])
def test_users_are_conserved(replicas: int) -> None:
    """Each end sends one request, so the n-th end is the (users + n)-th start, and the times in the system of all
    requests of a user add up to the time of its last end."""
    drawn = uniform(800, 100, 120)
    deployment = Deployment.disaggregated(replica(), replica(max_running_requests=3), (1, replicas), transfer=EARLY)
    workload = Workload.closed(12, TokenLengths.constant(1, 1), requests=120)
    played = run_events(deployment, draw(workload, 0, 0, drawn))
    ends = np.sort(played.end_s)
    assert np.array_equal(ends[:-12], played.sent_s[12:])
    assert (played.end_s - played.sent_s).sum() == pytest.approx(ends[-12:].sum(), rel=1e-12)


@pytest.mark.parametrize("users", [1, 40])
def test_steady_rate_obeys_littles_distribution(users: int) -> None:
    drawn = uniform(1000, 100, 40 * users)
    for deployment in (
        Deployment.mixed(replica(), 2),
        Deployment.disaggregated(replica(), replica(max_running_requests=8), (1, 2), transfer=EARLY),
    ):
        steady = looped(deployment, users, drawn).steady
        assert steady is not None
        assert steady.rate_per_s == pytest.approx(users / steady.e2e.mean_s, rel=0.02)
        assert steady.output_tokens_per_s == pytest.approx(steady.rate_per_s * drawn[1].mean(), rel=0.03)


def test_burst_and_stragglers_are_in_the_whole_but_not_in_the_steady_part() -> None:
    result = looped(replica(max_batched_tokens=2048), 64, uniform(1000, 100, 640))
    assert result.steady is not None
    assert result.requests == 640
    assert result.steady.requests == 640 - 3 * 64
    assert result.steady.ttft.mean_s < 0.8 * result.ttft.mean_s
    assert result.steady.rate_per_s > result.rate_per_s
    assert result.stable


def test_users_may_start_one_by_one() -> None:
    """Starts so far apart that nobody meets: every request is alone, also the last of the first user."""
    drawn = np.full(4, 100), np.full(4, 5)
    loop = ClosedLoop(concurrency=4, requests=4, ramp_s=40.0)
    workload = Workload(arrivals=loop, classes=(RequestClass(lengths=TokenLengths.constant(1, 1)),))
    result = simulate(Deployment.mixed(linear(replica())), workload, drawn=drawn)
    assert np.ptp(result.samples_s[Metric.E2E]) < 1e-12
    assert result.rate_per_s == pytest.approx(4 / (30.0 + result.e2e.mean_s), rel=1e-12)


def test_a_slow_ramp_leaves_the_steady_part_to_all_users() -> None:
    """The first users answer many times before the last one starts; only then is the loop full."""
    loop = ClosedLoop(concurrency=8, requests=800, ramp_s=4.0)
    workload = Workload(arrivals=loop, classes=(RequestClass(lengths=TokenLengths.constant(300, 40)),))
    steady = simulate(Deployment.mixed(linear(replica())), workload).steady
    assert steady is not None
    assert steady.requests < 800 - 3 * 8
    assert steady.rate_per_s == pytest.approx(8 / steady.e2e.mean_s, rel=0.02)
    assert steady.pools[0].mean_running > 7


def test_users_over_replicas_are_as_many_on_each() -> None:
    """Equal requests keep round-robin replicas in step: each works as if it had its share of the users alone."""
    one = looped(linear(replica()), 5, (np.full(50, 300), np.full(50, 40)))
    three = looped(Deployment.mixed(linear(replica()), 3), 15, (np.full(150, 300), np.full(150, 40)))
    for metric in one.samples_s:
        assert np.sort(three.samples_s[metric]) == pytest.approx(np.sort(np.repeat(one.samples_s[metric], 3)), rel=1e-9)


def test_time_outside_the_engine_is_part_of_ttft() -> None:
    base = replica()
    slow = base.engine.model_copy(update={"costs": EngineCosts(request_s=0.25)})
    drawn = uniform(500, 20, 5)
    fast, late = (looped(linear(c), 1, drawn) for c in (base, base.model_copy(update={"engine": slow})))
    assert late.samples_s[Metric.TTFT] == pytest.approx(fast.samples_s[Metric.TTFT] + 0.25, rel=1e-12)
    assert late.samples_s[Metric.TPOT] == pytest.approx(fast.samples_s[Metric.TPOT], rel=1e-9)


def test_the_first_wave_waits_until_the_server_is_ready_and_nothing_else_changes() -> None:
    """All that happens does so later by as much: only requests that were sent before the server was ready notice."""
    drawn, loop = uniform(500, 60, 40), Workload.closed(4, TokenLengths.constant(1, 1), requests=40)
    deployment = Deployment.mixed(linear(replica()))
    warm, fresh = (simulate(deployment, loop, drawn=drawn, ready_s=s) for s in (0.0, 2.0))
    later = np.where(np.arange(40) < 4, 2.0, 0.0)
    for metric in (Metric.TTFT, Metric.E2E):
        assert fresh.samples_s[metric] - warm.samples_s[metric] == pytest.approx(later, abs=1e-9)
    assert fresh.samples_s[Metric.TPOT] == pytest.approx(warm.samples_s[Metric.TPOT], rel=1e-9)


# ------------------------------------------------------------------------------------- coupled pools


def test_one_user_of_two_pools_meets_nobody() -> None:
    """Prompt, transfer and decode steps add up, and the next request leaves at the end of all three."""
    config = linear(replica())
    drawn = uniform(1000, 30, 10)
    result = looped(Deployment.disaggregated(config, config, transfer=EARLY), 1, drawn)
    together = looped(config, 1, drawn)
    transfer = drawn[0] * LLAMA_8B_KV_BYTES_PER_TOKEN / (TRANSFER_SHARE * 50e9)
    assert result.samples_s[Metric.TTFT] == pytest.approx(together.samples_s[Metric.TTFT], rel=1e-9)
    assert result.samples_s[Metric.E2E] == pytest.approx(together.samples_s[Metric.E2E] + transfer, rel=1e-9)
    assert result.rate_per_s == pytest.approx(10 / result.samples_s[Metric.E2E].sum(), rel=1e-9)


def test_a_full_decode_pool_throttles_the_users_and_so_the_prefill_pool() -> None:
    """With room for one decode, the loop turns over as fast as that one ends, and prompts wait for users."""
    config = linear(replica())
    narrow = linear(replica(max_running_requests=1))
    drawn = np.full(60, 200), np.full(60, 50)
    result = looped(Deployment.disaggregated(config, narrow, transfer=EARLY), 6, drawn)
    decode = sum(config.timer.decode_s(1, 200 + j) for j in range(1, 50))
    assert result.steady is not None
    assert result.steady.rate_per_s == pytest.approx(1 / decode, rel=0.01)
    assert result.steady.pools[1].utilisation > 0.99
    prompt = prompts_s(200)
    assert result.steady.ttft.mean_s == pytest.approx(prompt, rel=0.01)


def test_a_wait_for_a_place_to_decode_counts_towards_the_first_token() -> None:
    """Six users on three places: by Little's law each request takes two decodes, the first of them waiting.

    Measured so on DeepSeek-R1, 11 users on 9 places: a TTFT of 2.4 s at 10.3 ms of TPOT (docs/studies/accuracy.md).
    """
    config = linear(replica())
    narrow = linear(replica(max_running_requests=1))
    deployment = Deployment.disaggregated(config, narrow, (1, 3))
    result = simulate(deployment, Workload.closed(6, TokenLengths.constant(200, 50), requests=300))
    steady = result.steady or result
    decode = sum(config.timer.decode_s(1, 200 + j) for j in range(1, 50))
    assert steady.e2e.mean_s == pytest.approx(2 * decode, rel=0.1)
    assert steady.tpot.mean_s == pytest.approx(decode / 49, rel=0.1)
    assert steady.ttft.mean_s == pytest.approx(decode, rel=0.15)


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
@pytest.mark.parametrize("seed", range(2))
def test_transfers_wait_for_the_larger_backlog_of_both_ends(seed: int, layerwise: bool) -> None:
    """What a link that never rests has carried by when: the latest start of a run of transfers, and all of them."""
    rng = np.random.default_rng(seed)
    replicas = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    router = (Router.RANDOM, Router.LEAST_REQUESTS)[seed % 2]
    deployment = split(
        KvTransfer(layerwise=layerwise, first_token_from_decode=False), replicas, routers=(Router.ROUND_ROBIN, router)
    )
    lengths = TokenLengths.from_pairs([200, 1500, 4000], [20, 5, 1])
    offered = prompts(200, seed, 8.0 * min(replicas), lengths)
    played = run_events(deployment, offered, seed=seed)
    (before, after), seconds = played.pools, sent_s(deployment, offered.inputs)
    sender = dict(zip(before.request.tolist(), before.replica.tolist(), strict=True))
    receiver = dict(zip(after.request.tolist(), after.replica.tolist(), strict=True))
    came = dict(zip(after.request.tolist(), after.arrival_s.tolist(), strict=True))
    begun = {float(end): float(start) for start, end in before.runs[:, :2]}
    links: dict[tuple[str, int], list[tuple[float, float]]] = {}
    waited = 0
    sent = np.flatnonzero(offered.outputs > 1)
    for request in sent[np.argsort(played.first_s[sent], kind="stable")].tolist():
        ended, own = float(played.first_s[request]), float(seconds[request])
        ready, carried = begun[ended] if layerwise else ended, []
        for side in (("sender", sender[request]), ("receiver", receiver[request])):
            on_it = links.setdefault(side, [])
            on_it.append((ready, own))
            carried.append(max(on_it[i][0] + sum(time for _, time in on_it[i:]) for i in range(len(on_it))))
        end = max(*carried, ended + own / 32 if layerwise else 0.0)
        waited += max(carried) > ready + own * (1.0 + 1e-9)
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
    return np.array([prompts_s((min(tokens - past, CHUNK), past)) for past in range(0, tokens, CHUNK)])


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("nic", [3e10, 1.2e10, 1e8])
def test_chunk_by_chunk_a_lone_prompt_waits_for_what_the_link_has_not_carried(nic: float, layerwise: bool) -> None:
    """By a clock: a piece begins when its step has ended (or begun) and the pieces before it are over."""
    transfer = KvTransfer(layerwise=layerwise, first_token_from_decode=False)
    deployment = split(transfer, prefill=chunkwise(nic=nic), nic=nic)
    total = float(sent_s(deployment, np.array([2000]))[0])
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
    lone = float(sent_s(deployments[0], np.array([CHUNK]))[0])
    assert whole.transfer_s.min() == pytest.approx(lone) and pieces.transfer_s.min() == pytest.approx(lone)
    alone = draw(Workload.of(0.5, TokenLengths.constant(CHUNK, 20), scv=0.0), 20, 0)
    one, other = (run_events(deployment, alone) for deployment in deployments)
    assert np.array_equal(one.end_s, other.end_s)


@pytest.mark.parametrize(("nic", "layerwise"), [(4e8, True), (4e9, False)])
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
    assert seconds.sum() == pytest.approx(sent_s(split(EARLY), offered.inputs).sum(), rel=1e-9)
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
    total = float(sent_s(deployment, np.array([2000]))[0])
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
    seconds = float(sent_s(deployment, np.array([500]))[0])
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
    assert played.transfer_s == pytest.approx(sent_s(deployment, offered.inputs), rel=1e-9)


def test_an_overloaded_link_is_unstable_though_no_replica_is_busy() -> None:
    deployment = split(EARLY)
    seconds = float(sent_s(deployment, np.array([500]))[0])
    found = {
        load: simulate(deployment, Workload.of(load / seconds, TokenLengths.constant(500, 3)), requests=2000)
        for load in (0.8, 1.3)
    }
    assert found[0.8].stable
    assert not found[1.3].stable
    assert found[0.8].link_utilisation == pytest.approx(0.8, abs=0.03)
    assert found[1.3].link_utilisation == pytest.approx(1.0, abs=0.01)
    assert all(pool.utilisation < 0.9 for pool in found[1.3].pools)


def test_an_overloaded_link_that_fills_the_prefill_replica_is_unstable_too() -> None:
    """With room for five prompts no more wait for the link; the others wait for admission."""
    deployment = split(EARLY, prefill=linear(with_kv_tokens(2700, gpu(nic=1e9))))
    seconds = float(sent_s(deployment, np.array([500]))[0])
    run = simulate(deployment, Workload.of(1.3 / seconds, TokenLengths.constant(500, 3)), requests=2000)
    assert run.kv_transfer_s < 6 * seconds
    assert all(pool.utilisation < 0.9 for pool in run.pools)
    assert not run.stable


@pytest.mark.parametrize(("nic", "bound"), [(1e9, "step"), (1e11, "layer")])
def test_layer_by_layer_a_lone_prompt_waits_for_what_its_step_does_not_cover(nic: float, bound: str) -> None:
    deployment = split(KvTransfer(layerwise=True, first_token_from_decode=False), nic=nic)
    seconds = float(sent_s(deployment, np.array([1000]))[0])
    step = prompts_s(1000)
    exposed = {"step": seconds - step, "layer": seconds / 32}
    assert exposed[bound] == max(exposed.values())
    run = simulate(deployment, Workload.of(1.0, TokenLengths.constant(1000, 4)), requests=1)
    assert run.kv_transfer_s == pytest.approx(exposed[bound], rel=1e-9)
    assert run.ttft.mean_s == pytest.approx(step, rel=1e-12)
    assert run.e2e.mean_s == pytest.approx(step + exposed[bound] + decode_s(1001, 3), rel=1e-9)


def decode_s(context: int, steps: int) -> float:
    """Decode steps of one sequence, the first of which attends to `context` tokens."""
    return sum(LinearTimer().decode_s(1, context + k) for k in range(steps))


@pytest.mark.parametrize("outputs", [1, 30])
def test_a_first_token_from_decode_takes_the_last_prompt_token_once_more(outputs: int) -> None:
    """TTFT: the prompt, its transfer and a step at its context; then a step per token."""
    deployment = split(KvTransfer(first_token_from_decode=True))
    seconds = float(sent_s(deployment, np.array([1000]))[0])
    step = prompts_s(1000)
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
    step = prompts_s(1000)
    shared = run_events(split(EARLY, prefill=prefill), offered)
    seconds = float(sent_s(split(EARLY), np.array([1000]))[0])
    assert shared.first_s == pytest.approx([step, step + seconds + step], rel=1e-9)
    alone = run_events(split(KvTransfer(shared=False, first_token_from_decode=False), prefill=prefill), offered)
    assert alone.first_s == pytest.approx([step, 2 * step], rel=1e-9)


@pytest.mark.parametrize("seed", range(16))
def test_no_request_is_lost_between_pools_whatever_the_policies(seed: int) -> None:
    """Tight memory, slow links, any engine policy and router: all end, no link carries two transfers at once, and the
    decode pool makes every token it owes."""
    rng = np.random.default_rng(seed)
    slow = gpu(nic=float(rng.choice([2.0**28, 2.0**32]))).node
    configs = []
    for _ in range(2):
        config = server(rng, str(rng.choice(CONTINUOUS)))
        sku = config.sku.model_copy(update={"node": slow})
        configs.append(linear(config.model_copy(update={"sku": sku, "speculation": None})))
    engine = configs[0].engine.model_copy(update={"chunkwise_kv_transfer": seed % 2 == 1})
    configs[0] = configs[0].model_copy(update={"engine": engine})
    late = bool(rng.random() < 0.5)
    pools = tuple(
        Pool(role=role, config=config, replicas=int(rng.integers(1, 4)), router=Router(rng.choice(list(Router))))
        for role, config in zip((Role.PREFILL, Role.DECODE), configs, strict=True)
    )
    transfer = KvTransfer(layerwise=bool(rng.random() < 0.5), first_token_from_decode=late)
    offered = requests(rng)
    played = run_events(Deployment(pools=pools, transfer=transfer), offered, seed=seed, classes=CLASSES)
    assert np.isfinite(played.end_s).all()
    assert np.all(played.first_s <= played.end_s)
    assert np.all(played.sent_s < played.first_s)
    assert np.array_equal(np.sort(played.pools[0].request), np.arange(offered.inputs.size))
    sent = np.arange(offered.inputs.size) if late else np.flatnonzero(offered.outputs > 1)
    assert np.array_equal(np.sort(played.pools[1].request), sent)
    _, _, steps, _, _, decodes, *_ = played.pools[1].runs.T
    if not played.pools[1].preempted:
        assert steps @ decodes == (offered.outputs[sent] - (0 if late else 1)).sum()
    start_s, seconds = played.sends[np.argsort(played.sends[:, 0])].T
    if min(pool.replicas for pool in pools) == 1:
        assert np.all(start_s[1:] >= (start_s + seconds)[:-1] - 1e-12)
