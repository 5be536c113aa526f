"""Where step times meet queues: limits worked by hand, invariants, and the simulator as judge."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_db import EngineCosts
from planner.core import InputError, Metric
from planner.engine import Order, ReplicaConfig, Schedule, Speculation, memory_footprint, step_time
from planner.llm import kv_bytes_per_token, state_bytes
from planner.roofline import Parallelism, StepShape
from planner.serving import (
    Deployment,
    Pool,
    PoolLimit,
    Role,
    Router,
    decoding_only,
    evaluate,
    input_capacity_share,
    largest_stable_rate_per_s,
    pool_limit_per_s,
    pool_model,
    step_spread,
    token_costs,
)
from planner.serving.kv_transfer import kv_transfer_times_s
from planner.simulator import simulate
from planner.workload import ArrivalProcess, RequestClass, TokenLengths, Workload
from tests.builders import CHAT, FP8, calibrated, chat, disaggregated, mixed, replica
from tests.pool_oracle import fluid_rate_per_s
from tests.queueing.servers import AZURE, CODE, CONSTANT, REASONING

LONE = Workload.of(1e-3, TokenLengths.constant(1000, 101))


class TestLoadToZero:
    """A request that meets nobody takes exactly its own steps."""

    def test_mixed_ttft_is_one_prompt_step(self) -> None:
        alone = step_time(replica(), chunks=[(1000, 0)]).total_s
        assert evaluate(mixed(), LONE).ttft.mean_s == pytest.approx(alone, rel=0.02)

    @pytest.mark.parametrize("rate_per_s", [1e-4, 1e-7])
    def test_mixed_tpot_is_a_decode_step_however_seldom_requests_come(self, rate_per_s: float) -> None:
        config = calibrated(sku="l4")
        found = evaluate(Deployment.mixed(config), Workload.of(rate_per_s, TokenLengths.constant(200, 1000)))
        assert found.tpot.mean_s == pytest.approx(step_time(config, [700]).total_s, rel=0.001)

    def test_mixed_ttft_in_chunks_is_the_sum_of_the_chunks(self) -> None:
        config = replica(max_batched_tokens=256)
        chunks = [(256, 0), (256, 256), (256, 512), (232, 768)]
        expected = sum(step_time(config, chunks=[chunk]).total_s for chunk in chunks)
        assert evaluate(Deployment.mixed(config), LONE).ttft.mean_s == pytest.approx(expected, rel=0.03)

    def test_a_long_prompt_takes_its_own_attention_and_a_short_one_no_more_than_its_own(self) -> None:
        """Attention of a prompt grows with the square of its length: the mean cost per token fits neither."""
        config = replica(max_batched_tokens=4096)
        lengths = TokenLengths.from_pairs([1000, 32_000], [101, 101], [0.9, 0.1])
        found = evaluate(Deployment.mixed(config), Workload.of(1e-4, lengths))
        short = step_time(config, chunks=[(1000, 0)]).total_s
        chunks = [(min(4096, 32_000 - past), past) for past in range(0, 32_000, 4096)]
        long = sum(step_time(config, chunks=[chunk]).total_s for chunk in chunks)
        assert found.ttft.quantile_s(0.5) == pytest.approx(short, rel=0.02)
        assert found.ttft.quantile_s(0.95) == pytest.approx(long, rel=0.02)

    def test_tpot_is_a_decode_step_at_the_mean_context(self) -> None:
        alone = step_time(replica(), decode_contexts=[1051]).total_s  # contexts 1001..1100 have mean 1050.5
        performance = evaluate(mixed(), LONE)
        assert performance.tpot.mean_s == pytest.approx(alone, rel=0.01)
        assert performance.tpot.quantile_s(0.99) == pytest.approx(alone, rel=0.02)

    def test_disaggregated_pays_the_transfer_once(self) -> None:
        # 1000 tokens * 131,072 B at 85 % of one 50 GB/s NIC = 3.08 ms and four pages of 1.5 us for 16 tokens and layer
        # each = 6 ms, before the first token and in no gap.
        transfer = 1000 * (131_072 / (0.85 * 50e9) + 4 * 1.5e-6)
        together, apart = evaluate(mixed(), LONE), evaluate(disaggregated(), LONE)
        step = together.tpot.mean_s
        assert apart.kv_transfer_s == pytest.approx(transfer)
        assert apart.ttft.mean_s - together.ttft.mean_s == pytest.approx(transfer + step, rel=0.02)
        assert apart.tpot.mean_s == pytest.approx(together.tpot.mean_s, rel=0.01)
        assert apart.e2e.mean_s - together.e2e.mean_s == pytest.approx(transfer + step, rel=0.2)


class TestLoadToOne:
    """Latency grows without bound towards the largest stable rate, and above it the answer is: unstable."""

    @pytest.mark.parametrize("build", [mixed, disaggregated])
    def test_overload_is_named_not_raised(self, build: object) -> None:
        deployment = build()  # type: ignore[operator]
        performance = evaluate(deployment, chat(1e4))
        assert not performance.stable
        assert performance.ttft.quantile_s(0.5) == math.inf or performance.e2e.quantile_s(0.5) == math.inf
        assert max(pool.utilisation for pool in performance.pools) >= 1.0

    def test_ttft_grows_without_bound(self) -> None:
        pool = Pool(role=Role.MIXED, config=replica(), replicas=1)
        limit = fluid_rate_per_s(pool, chat(1.0))
        p99 = [evaluate(mixed(), chat(share * limit)).ttft.quantile_s(0.99) for share in (0.5, 0.9, 0.98)]
        assert p99[0] < p99[1] < p99[2]
        assert p99[2] > 3 * p99[0]
        assert not evaluate(mixed(), chat(1.02 * limit)).stable


@settings(max_examples=15)
@given(low=st.floats(0.05, 0.9), step=st.floats(1.02, 1.1))
def test_latency_never_falls_with_the_rate(low: float, step: float) -> None:
    limit = fluid_rate_per_s(Pool(role=Role.MIXED, config=replica(), replicas=1), chat(1.0))
    slow, fast = evaluate(mixed(), chat(low * limit)), evaluate(mixed(), chat(low * step * limit))
    assert fast.ttft.mean_s >= 0.99 * slow.ttft.mean_s
    assert fast.tpot.mean_s >= 0.99 * slow.tpot.mean_s


def test_burstier_arrivals_wait_longer() -> None:
    calm, bursty = evaluate(mixed(2), chat(60.0)), evaluate(mixed(2), chat(60.0, scv=6.0))
    assert bursty.ttft.quantile_s(0.99) > calm.ttft.quantile_s(0.99)


def small(**changes: Any) -> ReplicaConfig:
    """Llama-3.1-8B on an H100 that keeps room for whole answers."""
    return calibrated(sku="h100-sxm", **{"own_schedule": Schedule(reserve_outputs=True), **changes})


def large(**changes: Any) -> ReplicaConfig:
    """Llama-3.1-70B in 8 bit over eight of them."""
    return small(**{"model": "llama-3.1-70b", "precision": FP8, "parallelism": Parallelism(tp=8), **changes})


def routed(router: Router) -> Deployment:
    """Four replicas behind a router."""
    config = large(max_batched_tokens=2048)
    return Deployment(pools=(Pool(role=Role.MIXED, config=config, replicas=4, router=router),))


APART = Schedule(reserve_outputs=True, mixed_steps=False)
CASES: dict[str, tuple[Deployment, TokenLengths, float, float]] = {
    "small steps, heavy tails": (Deployment.mixed(large(max_batched_tokens=256)), AZURE, 0.8, 1.0),
    "nearly idle": (Deployment.mixed(large()), AZURE, 0.05, 1.0),
    "large steps": (Deployment.mixed(large()), AZURE, 0.85, 1.0),
    "long answers": (Deployment.mixed(large(max_batched_tokens=2048)), REASONING, 0.6, 1.0),
    "constant lengths": (Deployment.mixed(small()), CONSTANT, 0.8, 1.0),
    "prompts of many chunks": (Deployment.mixed(small(max_batched_tokens=128)), CODE, 0.6, 1.0),
    "short answers behind a router of eight": (Deployment.mixed(small(max_batched_tokens=2048), 8), CODE, 0.5, 1.0),
    "bursts": (Deployment.mixed(large()), AZURE, 0.5, 4.0),
    "a metronome": (Deployment.mixed(large(max_batched_tokens=256)), AZURE, 0.6, 0.0),
    "few places": (Deployment.mixed(large(max_batched_tokens=512, max_running_requests=24)), AZURE, 0.8, 1.0),
    "prompts first": (Deployment.mixed(large(max_batched_tokens=2048, own_schedule=APART)), AZURE, 0.6, 1.0),
    "two pools": (Deployment.disaggregated(large(), large()), AZURE, 0.8, 1.0),
    "two pools, long answers": (Deployment.disaggregated(small(), small(), (1, 2)), REASONING, 0.6, 1.0),
    "few places to decode": (
        Deployment.disaggregated(small(), small(max_running_requests=32), (1, 2)),
        AZURE,
        0.8,
        1.0,
    ),
    "three uncalibrated replicas": (mixed(3), CHAT, 0.7, 2.0),
    **{router.value: (routed(router), AZURE, 0.75, 1.0) for router in Router},
}


@pytest.mark.parametrize("case", CASES)
def test_theory_agrees_with_simulation(case: str) -> None:
    """Means, medians and tails at a share of the largest stable rate."""
    deployment, lengths, load, scv = CASES[case]
    workload = Workload.of(load * largest_stable_rate_per_s(deployment, Workload.of(1.0, lengths)), lengths, scv)
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=15_000, seed=1)
    for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E):
        found, truth = theory.distribution(metric), judge.distribution(metric)
        assert found.mean_s == pytest.approx(truth.mean_s, rel=0.13), metric
        for percentile, within in ((0.5, 0.15), (0.95, 0.18), (0.99, 0.3)):
            expected = pytest.approx(truth.quantile_s(percentile), rel=within)
            assert found.quantile_s(percentile) == expected, (metric, percentile)
    last = theory.pools[-1], judge.pools[-1]
    assert last[0].mean_running == pytest.approx(last[1].mean_running, rel=0.12)
    assert last[0].mean_step_s == pytest.approx(last[1].mean_step_s, rel=0.12)


@pytest.mark.parametrize("order", [Order.SHORTEST_FIRST, Order.PRIORITY])
def test_each_class_waits_in_the_order_of_admission_as_it_does_in_simulation(order: Order) -> None:
    kinds = (("urgent", CODE), ("patient", AZURE))
    classes = tuple(
        RequestClass(name=name, lengths=lengths, share=0.5, priority=place)
        for place, (name, lengths) in enumerate(kinds)
    )
    deployment = Deployment.mixed(small(max_batched_tokens=2048, own_schedule=Schedule(order=order)))
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=classes)
    workload = workload.at_rate(0.85 * largest_stable_rate_per_s(deployment, workload))
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=15_000, seed=1)
    for seen, truth in zip(theory.classes, judge.classes, strict=True):
        for found, expected in ((seen.ttft, truth.ttft), (seen.tpot, truth.tpot), (seen.e2e, truth.e2e)):
            assert found.mean_s == pytest.approx(expected.mean_s, rel=0.15)
            assert found.quantile_s(0.9) == pytest.approx(expected.quantile_s(0.9), rel=0.15)


@pytest.mark.parametrize("mixed_steps", [True, False])
def test_who_had_a_long_prompt_decodes_among_more_prompts(mixed_steps: bool) -> None:
    """Others come while it is served, and their prompts lengthen the first steps of its answer."""
    kinds = (("question", 200, 100, 0.7), ("document", 6000, 120, 0.3))
    classes = tuple(
        RequestClass(name=name, lengths=TokenLengths.constant(prompt, answer), share=share)
        for name, prompt, answer, share in kinds
    )
    deployment = mixed(max_batched_tokens=512, own_schedule=Schedule(mixed_steps=mixed_steps))
    workload = Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=classes)
    workload = workload.at_rate(0.6 * largest_stable_rate_per_s(deployment, workload))
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=10_000, seed=1)
    for seen, truth in zip(theory.classes, judge.classes, strict=True):
        assert seen.tpot.mean_s == pytest.approx(truth.tpot.mean_s, rel=0.1)
    longer = [1.0 - each.classes[0].tpot.mean_s / each.classes[1].tpot.mean_s for each in (theory, judge)]
    assert longer[0] > longer[1] / 3.0 > 0.02


@pytest.mark.parametrize("outputs", [[400], [100, 400, 1600]])
def test_the_cache_holds_in_theory_what_it_holds_in_simulation(outputs: list[int]) -> None:
    """Paged blocks are taken as outputs grow: a running request holds half of its output on average, not all of it."""
    workload = Workload.of(6.0, TokenLengths.from_pairs([300.0] * len(outputs), [float(one) for one in outputs]))
    theory, judge = evaluate(mixed(), workload), simulate(mixed(), workload, requests=4_000, seed=1)
    assert theory.pools[0].kv_occupancy == pytest.approx(judge.pools[0].kv_occupancy, rel=0.1)


def test_equal_cells_whose_weights_miss_one_by_rounding_are_planned_with() -> None:
    """Twenty times 1/20 is 1 + 2e-16 in floating point: no share may come out below zero."""
    lengths = TokenLengths.from_pairs([1000.0] * 20, [float(100 * count) for count in range(1, 21)])
    assert evaluate(mixed(), Workload.of(0.5, lengths)).stable


def test_a_tight_cache_is_the_limit_that_is_named() -> None:
    config = replica("llama-3.3-70b-instruct", precision=FP8, max_batched_tokens=512, max_running_requests=64)
    workload = Workload.of(0.5, TokenLengths.constant(4000, 1000))
    assert evaluate(Deployment.mixed(config), workload).pools[0].limit is PoolLimit.KV_CAPACITY


def test_pairs_per_prompt_token_are_the_causal_mean() -> None:
    costs = token_costs(CHAT, 8192, Role.MIXED)
    pairs = sum(w * i * (i + 1) / 2 for i, w in zip(CHAT.input_tokens, CHAT.weights, strict=True))
    tokens = sum(w * i for i, w in zip(CHAT.input_tokens, CHAT.weights, strict=True))
    assert costs.pairs == pytest.approx(pairs / tokens)
    assert costs.context == pytest.approx(1.0)  # every prompt fits in one chunk: it reads itself once


def test_chunked_prompts_read_their_past_again() -> None:
    # 1024 tokens in chunks of 256 read 256 + 512 + 768 + 1024 = 2560 tokens of KV.
    assert token_costs(TokenLengths.constant(1024, 10), 256, Role.MIXED).context * 1024 == pytest.approx(2560)


def test_decode_pool_sees_only_requests_that_decode() -> None:
    lengths = TokenLengths.from_pairs([10, 20], [1, 5], [0.25, 0.75])
    rest, share = decoding_only(lengths)
    assert share == 0.75
    assert rest.output_tokens == (5,)
    with pytest.raises(InputError, match=r"every request has one output token\. Fix: use a mixed deployment"):
        evaluate(disaggregated(), Workload.of(1.0, TokenLengths.constant(10, 1)))


def test_transfer_times_scale_with_the_prompt() -> None:
    times = kv_transfer_times_s(disaggregated(), CHAT)
    assert times / CHAT.inputs == pytest.approx(np.full(4, 131_072 / (0.85 * 50e9) + 4 * 1.5e-6))


def test_costs_are_split_by_capacity_as_pools_of_their_own_would_split_them() -> None:
    """A pool of each stage takes 1 / (its largest rate) replicas per request. How busy a pool is plays no part."""
    share = input_capacity_share(mixed().pools[0], chat(30.0))
    prefill, decode = (1.0 / pool_limit_per_s(pool, chat(1.0)) for pool in disaggregated().pools)
    assert share == pytest.approx(prefill / (prefill + decode), abs=0.12)
    assert input_capacity_share(mixed(3).pools[0], chat(1.0)) == pytest.approx(share)
    answers_of_one_token = Workload.of(1.0, TokenLengths.from_pairs([200, 800], [1, 1], [0.5, 0.5]))
    assert input_capacity_share(mixed().pools[0], answers_of_one_token) == 1.0
    assert input_capacity_share(disaggregated().pools[0], chat(1.0)) == 1.0
    assert input_capacity_share(disaggregated().pools[1], chat(1.0)) == 0.0


def test_what_does_not_fit_is_an_instructive_error() -> None:
    with pytest.raises(InputError, match="leave no KV cache"):
        evaluate(Deployment.mixed(replica("llama-3.1-70b")), chat(1.0))
    with pytest.raises(InputError, match="longer than the 131072 tokens of context"):
        evaluate(mixed(), Workload.of(1.0, TokenLengths.constant(131_000, 200)))


# ------------------------------------------------------------------------------------- what engines add, and do


def engine(config: ReplicaConfig, **costs: object) -> ReplicaConfig:
    """Calibrated, with engine costs as given."""
    return config.model_copy(update={"engine": config.engine.with_costs(EngineCosts.model_validate(costs))})


def test_overhead_of_a_request_is_added_to_every_ttft() -> None:
    plain, slow = (evaluate(Deployment.mixed(engine(calibrated(), request_s=s)), LONE) for s in (0.0, 0.25))
    assert slow.ttft.mean_s - plain.ttft.mean_s == pytest.approx(0.25)
    assert slow.e2e.mean_s - plain.e2e.mean_s == pytest.approx(0.25)
    assert slow.tpot.mean_s == pytest.approx(plain.tpot.mean_s)


def test_steps_prepared_ahead_are_waited_for_on_a_busy_replica_only() -> None:
    ready, ahead = (Deployment.mixed(engine(calibrated(), lag_steps=steps)) for steps in (0, 2))
    for deployment in (ready, ahead):
        assert evaluate(deployment, LONE).ttft.mean_s == pytest.approx(evaluate(ready, LONE).ttft.mean_s, rel=0.02)
    busy = chat(15.0)
    gained = evaluate(ahead, busy).ttft.mean_s - evaluate(ready, busy).ttft.mean_s
    assert gained == pytest.approx(2.0 * evaluate(ready, busy).pools[0].mean_step_s, rel=0.01)


def test_a_speculating_engine_divides_its_gaps() -> None:
    """Guesses that are always right: four tokens in a step that verifies four."""
    config = calibrated("deepseek-v3", parallelism=Parallelism(tp=8, ep=8), precision=FP8, memory_fraction=0.95)
    config = config.model_copy(update={"speculation": Speculation(draft_tokens=3, acceptance=1.0)})
    alone = evaluate(Deployment.mixed(config), LONE)
    step = config.timer.decode_s(1.0, 1050.5)
    assert alone.tpot.mean_s == pytest.approx(step / 4.0, rel=0.02)
    assert any("mean number of tokens" in note for note in alone.assumptions)


def test_windows_and_state_take_room_from_every_sequence() -> None:
    """A hybrid with constant state: KV capacity over (tokens held + half a block + its own blocks) sequences."""
    config = replica("qwen3-next-80b-a3b-thinking", tp=4, own_schedule=Schedule())
    pool, lengths = Pool(role=Role.MIXED, config=config, replicas=1), TokenLengths.constant(1000, 100)
    model, block = pool_model(pool, lengths), config.engine.kv_block_tokens
    room = memory_footprint(config)
    assert room.sequence_blocks > 0
    expected = room.kv_capacity_tokens / (1100.0 + block / 2.0 + room.sequence_blocks * block)
    assert model.kv_running == pytest.approx(expected)


def test_transferred_bytes_are_those_the_simulation_sends() -> None:
    config = replica("qwen3-next-80b-a3b-thinking", tp=4)
    deployment, lengths = Deployment.disaggregated(config, config), TokenLengths.constant(1000, 20)
    theory = evaluate(deployment, Workload.of(0.5, lengths)).kv_transfer_s
    assert theory == pytest.approx(simulate(deployment, Workload.of(0.5, lengths), requests=10).kv_transfer_s)
    llm = config.llm
    sent = 1000 * 2 * kv_bytes_per_token(llm, config.precision.kv_cache) + state_bytes(llm)  # 2 KV heads on 4 GPUs
    pages = 1000 * 12 * 2 / config.engine.kv_block_tokens  # of the layers that keep keys and values
    assert theory == pytest.approx(sent / deployment.kv_link_bytes_per_s + pages * 1.5e-6)


# ------------------------------------------------------------------------------------- intervals


def test_intervals_enclose_the_mean_and_agree_between_theory_and_simulation() -> None:
    deployment = Deployment.mixed(calibrated())
    theory, judge = evaluate(deployment, chat(15.0)), simulate(deployment, chat(15.0), requests=1000)
    for metric in (Metric.TTFT, Metric.TPOT, Metric.E2E):
        for found in (theory, judge):
            low, high = found.interval[metric]
            mean = found.distribution(metric).mean_s
            assert low < mean < high
            assert low * high == pytest.approx(mean**2)  # symmetric in the logarithm
        ratios = [found.interval[metric][1] / found.interval[metric][0] for found in (theory, judge)]
        assert ratios[0] == pytest.approx(ratios[1], rel=0.05)


def test_one_common_error_is_carried_in_full_and_independent_ones_by_squares() -> None:
    """All fits with spread s: a step of k equal parts has between s / sqrt(k) and s."""
    config = calibrated()
    assert config.calibration is not None
    kernels = {key: fit.model_copy(update={"spread": 0.1}) for key, fit in config.calibration.kernels.items()}
    fits = config.calibration.model_copy(update={"kernels": kernels})
    alike = engine(config.model_copy(update={"calibration": fits}))
    spread = step_spread(alike, StepShape(64.0, 64 * 4000.0))
    assert 0.1 / math.sqrt(len(kernels)) < spread <= 0.1
    nothing = {key: fit.model_copy(update={"spread": 0.0}) for key, fit in kernels.items()}
    exact = alike.model_copy(update={"calibration": fits.model_copy(update={"kernels": nothing})})
    assert step_spread(exact, StepShape(64.0, 64 * 4000.0)) == 0.0


def test_a_long_prompt_that_eight_gpus_share_out_has_its_first_token_sooner() -> None:
    """DeepSeek-V3.2 alone: its index scores every pair on every GPU of a tensor-parallel group, and on one of eight
    that share prompts out; theory and simulation agree, and decodes take as long as beside a pool without.
    """
    lone = Workload.of(1e-5, TokenLengths.constant(100_000, 50))
    by_heads, shared = (
        Deployment.disaggregated(
            *(
                calibrated("deepseek-v3.2", engine="sglang", precision=FP8, parallelism=split)
                for split in (prefill, Parallelism(tp=8, ep=8))
            )
        )
        for prefill in (Parallelism(tp=8, ep=8), Parallelism(pcp=8, ep=8))
    )
    found = [evaluate(one, lone) for one in (by_heads, shared)]
    assert found[0].ttft.mean_s / found[1].ttft.mean_s > 3.0
    assert found[0].tpot.mean_s == pytest.approx(found[1].tpot.mean_s)
    simulated = simulate(shared, lone, requests=20, seed=1)
    assert simulated.ttft.mean_s == pytest.approx(found[1].ttft.mean_s, rel=1e-3)
    config = shared.pools[0].config
    steps_s = [step_time(config, [], [(min(8192, 100_000 - at), at)]).total_s for at in range(0, 100_000, 8192)]
    assert sum(steps_s) < found[1].ttft.mean_s < 1.2 * sum(steps_s)  # and the way of its cache, from one GPU
