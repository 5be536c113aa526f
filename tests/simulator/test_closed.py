"""Closed loops, scheduling policies, preemption, speculation and coupled pools, against a plain loop and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import EngineCosts
from planner.core import InputError, Metric
from planner.engine import ReplicaConfig, Schedule
from planner.serving import Deployment, KvTransfer, Performance, PoolLimit, Role
from planner.serving.types import TRANSFER_SHARE
from planner.simulator import simulate
from planner.simulator.events import run_events
from planner.simulator.traffic import draw
from planner.workload import ClosedLoop, RequestClass, TokenLengths, Workload
from tests.simulator_oracle import (
    EARLY,
    LLAMA_8B_KV_BYTES_PER_TOKEN,
    IntArray,
    PlainRun,
    gpu,
    linear,
    replica,
    with_kv_tokens,
    with_speculation,
)

SGLANG = Schedule(mixed_steps=False)
GROWING = Schedule(reserve_outputs=False)


def scheduled(config: ReplicaConfig, **fields: object) -> ReplicaConfig:
    return config.model_copy(update={"own_schedule": Schedule(**fields)})


def uniform(longest_input: int, longest_output: int, count: int, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Lengths of a benchmark client: uniform on the upper fifth."""
    rng = np.random.default_rng(seed)
    pairs = [rng.integers(int(0.8 * most), most + 1, count) for most in (longest_input, longest_output)]
    return pairs[0], pairs[1]


def looped(config: ReplicaConfig | Deployment, users: int, drawn: tuple[IntArray, IntArray]) -> Performance:
    deployment = config if isinstance(config, Deployment) else Deployment.mixed(config)
    workload = Workload.closed(users, TokenLengths.constant(1, 1), requests=drawn[0].size)
    return simulate(deployment, workload, drawn=drawn)


# ------------------------------------------------------------------------------------- the plain loop


def random_replica(rng: np.random.Generator) -> ReplicaConfig:
    running, budget = int(rng.choice([1, 3, 8, 64])), int(rng.choice([16, 50, 256, 2048]))
    room = int(rng.choice([450, 600, 1500, 50_000]))
    config = with_kv_tokens(room, gpu(nic=2.0**35), max_running_requests=running, max_batched_tokens=budget)
    if rng.random() < 0.3:
        config = with_speculation(config, int(rng.integers(1, 4)), float(rng.choice([0.0, 0.5, 1.0])))
    waits = int(rng.choice([0, 0, 3, 20]))
    config = scheduled(
        config,
        mixed_steps=bool(rng.random() < 0.5),
        whole_prompts=bool(rng.random() < 0.4),
        reserve_outputs=bool(rng.random() < 0.5),
        receive_interval_steps=int(rng.choice([1, 1, 4, 30])),
        batch_wait_steps=waits,
        batch_wait_fill=float(rng.choice([0.3, 1.0])) if waits else 0.0,
        batch_wait_requests=int(rng.choice([0, 0, 2, 4])) if waits else 0,
    )
    costs = EngineCosts(
        request_s=float(rng.choice([0.0, 2.0**-6])),
        admission_s=float(rng.choice([0.0, 2.0**-10])),
        lag_steps=int(rng.choice([0, 0, 1, 3])),
    )
    return linear(config.model_copy(update={"engine": config.engine.model_copy(update={"costs": costs})}))


def random_case(seed: int) -> tuple[Deployment, Workload, tuple[IntArray, IntArray]]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    drawn = rng.integers(1, 400, count), rng.choice([1, 2, 5, 17, 40], count)
    if rng.random() < 0.5:  # short prompts and long answers, which outgrow a cache
        drawn = rng.integers(1, 60, count), rng.choice([1, 30, 100, 200], count)
    replicas = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    if rng.random() < 0.6:
        deployment = Deployment.mixed(random_replica(rng), replicas[0])
    else:
        deployment = Deployment.disaggregated(random_replica(rng), random_replica(rng), replicas, transfer=EARLY)
        deployment = deployment.model_copy(
            update={"transfer": KvTransfer(shared=False, first_token_from_decode=False)}
        )  # as the plain loop has it
    loop = ClosedLoop(
        concurrency=int(rng.choice([1, 2, 8, 32])), requests=count, ramp_s=float(rng.choice([0.0, 0.0, 0.5]))
    )
    return deployment, Workload(arrivals=loop, classes=(RequestClass(lengths=TokenLengths.constant(1, 1)),)), drawn


CASES = (*range(50), 64, 66, 86, 100, 109)
"""Of random ones the first fifty, and those of the next sixty in which memory runs out."""


@pytest.mark.parametrize("seed", CASES)
def test_closed_loops_equal_the_plain_loop(seed: int) -> None:
    deployment, workload, drawn = random_case(seed)
    result = simulate(deployment, workload, drawn=drawn)
    sent, first, end = PlainRun(deployment, *drawn, draw(workload, 0, 0, drawn).sent_s.tolist()).run()
    assert result.samples_s[Metric.TTFT] == pytest.approx(first - sent, rel=1e-9)
    assert result.samples_s[Metric.E2E] == pytest.approx(end - sent, rel=1e-9)
    assert result.rate_per_s == pytest.approx(drawn[0].size / end.max(), rel=1e-9)
    assert result.output_tokens_per_s == pytest.approx(drawn[1].sum() / end.max(), rel=1e-9)


def test_the_cases_cover_preemption_in_both_kinds_of_pool() -> None:
    pools = [
        pool for case in map(random_case, CASES) for pool in run_events(case[0], draw(case[1], 0, 0, case[2])).pools
    ]
    assert {pool.pool.role for pool in pools if pool.preempted} == {Role.MIXED, Role.DECODE}
    assert sum(pool.preempted for pool in pools) > 100


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_open_arrivals_under_every_policy_equal_the_plain_loop(seed: int) -> None:
    deployment, _, drawn = random_case(seed)
    rng = np.random.default_rng(seed)
    workload = Workload.of(float(rng.choice([3.0, 30.0, 300.0])), TokenLengths.constant(1, 1))
    result = simulate(deployment, workload, seed=seed, drawn=drawn, requests=drawn[0].size, warmup_fraction=0.0)
    sent = draw(workload, drawn[0].size, seed, drawn).sent_s
    _, first, end = PlainRun(deployment, *drawn, sent.tolist()).run()
    assert result.samples_s[Metric.TTFT] == pytest.approx(first - sent, rel=1e-9)
    assert result.samples_s[Metric.E2E] == pytest.approx(end - sent, rel=1e-9)


@pytest.mark.parametrize("policy", [Schedule(), SGLANG, GROWING])
def test_curved_step_times_change_little(policy: Schedule) -> None:
    """Runs of steps are lines between curved step times: means stay within 1e-3 of the plain loop."""
    config = with_kv_tokens(9000, max_batched_tokens=512).model_copy(update={"own_schedule": policy})
    drawn = uniform(1000, 200, 60)
    result = looped(config, 8, drawn)
    sent, first, end = PlainRun(Deployment.mixed(config), *drawn, [0.0] * 8).run()
    assert result.ttft.mean_s == pytest.approx((first - sent).mean(), rel=1e-3)
    assert result.e2e.mean_s == pytest.approx((end - sent).mean(), rel=1e-3)


# ------------------------------------------------------------------------------------- closed loops


def test_one_user_finds_every_request_alone() -> None:
    config = linear(replica())
    drawn = uniform(1000, 30, 12)
    result = looped(config, 1, drawn)
    for i, o, ttft, e2e in zip(*drawn, result.samples_s[Metric.TTFT], result.samples_s[Metric.E2E], strict=True):
        prompt = config.timer.step_s(0, 0, i, i * (i + 1) / 2, i, 1)
        assert ttft == pytest.approx(prompt, rel=1e-12)
        assert e2e == pytest.approx(prompt + sum(config.timer.decode_s(1, i + j) for j in range(1, o)), rel=1e-12)
    assert result.rate_per_s == pytest.approx(1.0 / result.e2e.mean_s, rel=1e-12)


def test_the_first_burst_queues_for_prompt_steps() -> None:
    """Eight prompts at once, each of them a whole step: the k-th has its first token after k steps."""
    config = linear(replica(max_batched_tokens=512))
    result = looped(config, 8, (np.full(8, 512), np.full(8, 1)))
    step = config.timer.step_s(0, 0, 512, 512 * 513 / 2, 512, 1)
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


@pytest.mark.parametrize("users", [1, 4, 40])
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


def test_lengths_are_drawn_from_the_workload_where_none_are_given() -> None:
    lengths = TokenLengths.from_pairs([100, 900], [5, 50])
    workload = Workload.closed(4, lengths)
    one, again, other = (simulate(Deployment.mixed(replica()), workload, seed=seed) for seed in (0, 0, 1))
    assert one.requests == 40
    assert np.array_equal(one.samples_s[Metric.E2E], again.samples_s[Metric.E2E])
    assert not np.array_equal(one.samples_s[Metric.E2E], other.samples_s[Metric.E2E])


# ------------------------------------------------------------------------------------- policies


def pair(config: ReplicaConfig, drawn: tuple[IntArray, IntArray], gap_s: float) -> Performance:
    """Requests `gap_s` apart."""
    workload = Workload.of(1.0 / gap_s, TokenLengths.constant(1, 1), scv=0.0)
    return simulate(
        Deployment.mixed(linear(config)), workload, drawn=drawn, requests=drawn[0].size, warmup_fraction=0.0
    )


def test_prompts_first_stall_decodes_and_come_sooner() -> None:
    """A prompt of four budgets meets one decoding sequence: prompts first takes four steps of their own; mixed steps
    lose one token of each budget and take five."""
    drawn = np.array([16, 1024]), np.array([400, 1])
    timer = linear(replica()).timer
    stalls = sum(timer.step_s(0, 0, 256, 256 * past + 256 * 257 / 2, past + 256, 1) for past in range(0, 1024, 256))
    lone = timer.step_s(0, 0, 16, 136, 16, 1) + sum(timer.decode_s(1, 16 + j) for j in range(1, 400))
    separate = pair(scheduled(replica(max_batched_tokens=256), mixed_steps=False), drawn, 0.5)
    mixed = pair(replica(max_batched_tokens=256), drawn, 0.5)
    assert separate.samples_s[Metric.E2E][0] == pytest.approx(lone + stalls, rel=1e-9)
    assert stalls < separate.samples_s[Metric.TTFT][1] < stalls + timer.decode_s(1, 416)
    assert separate.samples_s[Metric.TTFT][1] < mixed.samples_s[Metric.TTFT][1]


def longest_gap_s(config: ReplicaConfig, drawn: tuple[IntArray, IntArray], users: int) -> float:
    """Longest time between two tokens of a decoding sequence."""
    workload = Workload.closed(users, TokenLengths.constant(1, 1), requests=drawn[0].size)
    start_s, end_s, steps, _, running, decodes, *_ = (
        run_events(Deployment.mixed(config), draw(workload, 0, 0, drawn)).pools[0].runs.T
    )
    gap, longest = 0.0, 0.0
    for seconds, paused in zip((end_s - start_s) / steps, (running > 0) & (decodes == 0), strict=True):
        gap = gap + seconds if paused else seconds
        longest = max(longest, gap)
    return longest


def test_prompts_first_has_lower_ttft_and_higher_spikes_in_a_closed_loop() -> None:
    config, drawn = replica(max_batched_tokens=1024), uniform(2000, 100, 160)
    separate = scheduled(config, mixed_steps=False)
    assert looped(separate, 16, drawn).ttft.mean_s < looped(config, 16, drawn).ttft.mean_s
    assert longest_gap_s(separate, drawn, 16) > 1.5 * longest_gap_s(config, drawn, 16)


def test_whole_prompts_share_a_step_only_where_they_fit() -> None:
    """Budget 256: prompts of 150 and 150 take a step each, 100 and 150 share one, 600 goes alone in one."""
    config = linear(scheduled(replica(max_batched_tokens=256), whole_prompts=True))

    def step(*prompts: int) -> float:
        pairs = sum(p * (p + 1) / 2 for p in prompts)
        return config.timer.step_s(0, 0, sum(prompts), pairs, sum(prompts), len(prompts))

    def ttft(*prompts: int) -> list[float]:
        drawn = np.array(prompts), np.ones(len(prompts), dtype=np.int64)
        return list(looped(config, len(prompts), drawn).samples_s[Metric.TTFT])

    assert ttft(150, 150) == pytest.approx([step(150), 2 * step(150)], rel=1e-12)
    assert ttft(100, 150) == pytest.approx([step(100, 150)] * 2, rel=1e-12)
    assert ttft(100, 600, 50) == pytest.approx([step(100), step(100) + step(600), step(100) + step(600) + step(50)])


def test_a_batch_wait_holds_a_prompt_for_its_steps_beside_decodes() -> None:
    drawn = np.array([16, 64]), np.array([400, 1])
    plain, waiting, filled = (
        pair(scheduled(replica(), **fields), drawn, 0.5).samples_s[Metric.TTFT]
        for fields in (
            {},
            {"batch_wait_steps": 20, "batch_wait_fill": 0.9},
            {"batch_wait_steps": 20, "batch_wait_fill": 64 / 8192},
        )
    )
    step = linear(replica()).timer.decode_s(1, 150)
    assert waiting[0] == plain[0] == filled[0]  # nothing decodes beside the first
    assert waiting[1] - plain[1] == pytest.approx(20 * step, rel=0.01)
    assert filled[1] == plain[1]


def test_a_prompt_waits_for_others_only_beside_as_many_decodes() -> None:
    """As with attention ranks that are to get a prompt each: all decode, or none of them is waited for."""
    drawn = np.array([16, 16, 64]), np.array([400, 400, 1])
    waits = {"batch_wait_steps": 20}
    plain, two, three = (
        pair(scheduled(replica(), **fields), drawn, 0.5).samples_s[Metric.TTFT]
        for fields in ({}, {**waits, "batch_wait_requests": 2}, {**waits, "batch_wait_requests": 3})
    )
    step = linear(replica()).timer.decode_s(2, 150)
    assert two[2] - plain[2] == pytest.approx(20 * step, rel=0.02), "two decode, and one of two prompts waits"
    assert three[2] == plain[2], "of three ranks one is idle"
    assert two[1] == plain[1], "of two ranks one was idle"


def test_a_receive_interval_delays_by_half_an_interval_on_average() -> None:
    """Poisson arrivals see a uniform phase of the interval: the wait for a look grows from 1/2 to n/2 steps."""
    count, interval = 600, 30
    drawn = np.full(count, 1), np.ones(count, dtype=np.int64)
    drawn[1][0] = 8000  # decodes beside all others
    step = linear(replica()).timer.decode_s(1, 4000)
    workload = Workload.of(0.1 / step, TokenLengths.constant(1, 1))
    means, spreads = [], []
    for every in (1, interval):
        config = linear(scheduled(replica(), receive_interval_steps=every))
        result = simulate(Deployment.mixed(config), workload, drawn=drawn, requests=count, warmup_fraction=0.0)
        means.append(result.samples_s[Metric.TTFT][1:].mean())
        spreads.append(result.samples_s[Metric.TTFT][1:].std())
    error = spreads[1] / np.sqrt(count / 3)  # arrivals of one interval share its look
    assert means[1] - means[0] == pytest.approx((interval - 1) / 2 * step, abs=4 * error)
    assert 4 * error < 0.25 * (interval - 1) / 2 * step


# ------------------------------------------------------------------------------------- memory


def test_growing_caches_run_more_requests_and_recompute_the_youngest() -> None:
    """Every output token comes from a decode step or from the end of a prompt, first or recomputed."""
    drawn = uniform(200, 400, 120)
    workload = Workload.closed(24, TokenLengths.constant(1, 1), requests=120)
    (whole,), (grown,) = (
        run_events(
            Deployment.mixed(scheduled(with_kv_tokens(4000), reserve_outputs=kept)), draw(workload, 0, 0, drawn)
        ).pools
        for kept in (True, False)
    )
    for pool in (whole, grown):
        _, _, steps, held, _, decodes, _, chunk, *_ = pool.runs.T
        assert held.max() <= pool.kv_blocks
        assert steps @ decodes + pool.preempted == (drawn[1] - 1).sum()
        assert (steps @ chunk > drawn[0].sum()) == (pool.preempted > 0)
    assert whole.preempted == 0
    assert grown.preempted > 0
    running = [((pool.runs[:, 1] - pool.runs[:, 0]) @ pool.runs[:, 4]) / pool.runs[-1, 1] for pool in (whole, grown)]
    assert running[1] > 1.1 * running[0]


def test_without_memory_pressure_reservations_do_not_matter() -> None:
    drawn = uniform(1000, 200, 40)
    kept, grown = (looped(scheduled(linear(replica()), reserve_outputs=flag), 4, drawn) for flag in (True, False))
    assert np.array_equal(kept.samples_s[Metric.E2E], grown.samples_s[Metric.E2E])
    assert grown.pools[0].kv_occupancy < kept.pools[0].kv_occupancy


def test_the_oldest_request_is_never_preempted() -> None:
    """Two requests that fit alone but not together: the first takes as long as alone, the second waits for its end."""
    config = linear(scheduled(with_kv_tokens(640), reserve_outputs=False))
    drawn = np.array([300, 300]), np.array([300, 300])
    alone = looped(config, 1, (drawn[0][:1], drawn[1][:1])).e2e.mean_s
    first, second = looped(config, 2, drawn).samples_s[Metric.E2E]
    assert first == pytest.approx(alone, rel=0.05)
    assert alone < second < 2 * first


# ------------------------------------------------------------------------------------- speculation


def test_drafts_that_are_never_right_change_nothing_but_their_price() -> None:
    drawn = uniform(1000, 50, 40)
    plain = linear(replica())
    wrong = linear(with_speculation(replica(), 3, 0.0))
    assert np.array_equal(looped(plain, 4, drawn).samples_s[Metric.E2E], looped(wrong, 4, drawn).samples_s[Metric.E2E])


@pytest.mark.parametrize(("acceptance", "steps"), [(1.0, 25), (0.5, 53)])  # 99 gaps at 4 and at 1.875 tokens a step
def test_a_sequence_gains_its_expected_tokens_in_every_step(acceptance: float, steps: int) -> None:
    config = linear(with_speculation(replica(), 3, acceptance))
    result = looped(config, 1, (np.array([500]), np.array([100])))
    gain = 4.0 if acceptance == 1.0 else 1.875
    expected = sum(config.timer.decode_s(1, 501 + gain * k) for k in range(steps))
    assert result.e2e.mean_s - result.ttft.mean_s == pytest.approx(expected, rel=1e-12)


def test_drafts_take_their_part_of_the_token_budget() -> None:
    """Four tokens per sequence of a budget of 64: 16 at once."""
    config = linear(with_speculation(replica(max_batched_tokens=64, max_running_requests=64), 3, 0.5))
    result = looped(config, 40, (np.full(200, 8), np.full(200, 60)))
    assert result.pools[0].mean_running == pytest.approx(16, abs=1.5)
    assert result.pools[0].limit is PoolLimit.RUNNING_REQUESTS


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
    prompt = config.timer.step_s(0, 0, 200, 200 * 201 / 2, 200, 1)
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


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        (([5, 5], [1, 1]), r"drawn.inputs = 2: holds 2 lengths for 3 requests. Fix: give one length per request"),
        (([5, 5, 5], [1, 1]), r"drawn.outputs = 2: holds 2 lengths for 3 requests"),
        (([5, 0, 5], [1, 1, 1]), r"drawn.inputs = 0: must be >= 1 token. Fix: correct that request"),
        (([5, 9000, 5], [1, 1, 1]), r"workload.lengths = 9001: longer than the 8192 tokens of context"),
    ],
)
def test_lengths_that_do_not_fit_the_run_are_refused(drawn: tuple[list[int], list[int]], text: str) -> None:
    workload = Workload.closed(2, TokenLengths.constant(1, 1), requests=3)
    with pytest.raises(InputError, match=text):
        simulate(Deployment.mixed(replica()), workload, drawn=(np.array(drawn[0]), np.array(drawn[1])))
