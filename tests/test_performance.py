"""Where step times meet queues: limits worked by hand, invariants, and the simulator as judge."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.deployment import Deployment, Pool, PoolLimit, Role
from planner.errors import InputError
from planner.performance import (
    decoding_only,
    evaluate,
    fluid_rate_per_s,
    kv_transfer_times_s,
    prompt_time_share,
    token_costs,
)
from planner.replica import step_time
from planner.simulator import simulate
from planner.workload import TokenLengths, Workload
from tests.builders import CHAT, FP8, chat, disaggregated, mixed, replica

LONE = Workload.of(1e-3, TokenLengths.constant(1000, 101))


class TestLoadToZero:
    """A request that meets nobody takes exactly its own steps."""

    def test_mixed_ttft_is_one_prompt_step(self) -> None:
        alone = step_time(replica(), chunks=[(1000, 0)]).total_s
        assert evaluate(mixed(), LONE).ttft.mean_s == pytest.approx(alone, rel=0.02)

    def test_mixed_ttft_in_chunks_is_the_sum_of_the_chunks(self) -> None:
        config = replica(max_batched_tokens=256)
        chunks = [(256, 0), (256, 256), (256, 512), (232, 768)]
        expected = sum(step_time(config, chunks=[chunk]).total_s for chunk in chunks)
        assert evaluate(Deployment.mixed(config), LONE).ttft.mean_s == pytest.approx(expected, rel=0.03)

    def test_tpot_is_a_decode_step_at_the_mean_context(self) -> None:
        alone = step_time(replica(), decode_contexts=[1051]).total_s  # contexts 1001..1100 have mean 1050.5
        performance = evaluate(mixed(), LONE)
        assert performance.tpot.mean_s == pytest.approx(alone, rel=0.01)
        assert performance.tpot.quantile_s(0.99) == pytest.approx(alone, rel=0.02)

    def test_disaggregated_pays_the_transfer_once(self) -> None:
        # 1000 tokens * 131,072 B over one 50 GB/s NIC = 2.62 ms, spread over 100 gaps in TPOT, whole in E2E.
        transfer = 1000 * 131_072 / 50e9
        together, apart = evaluate(mixed(), LONE), evaluate(disaggregated(), LONE)
        assert apart.kv_transfer_s == pytest.approx(transfer)
        assert apart.ttft.mean_s == pytest.approx(together.ttft.mean_s, rel=0.02)
        assert apart.tpot.mean_s - together.tpot.mean_s == pytest.approx(transfer / 100, rel=0.1)
        assert apart.e2e.mean_s - together.e2e.mean_s == pytest.approx(transfer, rel=0.2)


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


@pytest.mark.parametrize(
    ("deployment", "workload"),
    [
        (mixed(), chat(15.0)),
        (mixed(2, max_batched_tokens=1024), chat(60.0)),
        (mixed(3), chat(90.0, scv=2.0)),
        (disaggregated((2, 1)), chat(40.0)),
    ],
)
def test_theory_agrees_with_simulation_on_the_means(deployment: Deployment, workload: Workload) -> None:
    theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=8000)
    assert theory.ttft.mean_s == pytest.approx(judge.ttft.mean_s, rel=0.15)
    assert theory.tpot.mean_s == pytest.approx(judge.tpot.mean_s, rel=0.15)
    assert theory.e2e.mean_s == pytest.approx(judge.e2e.mean_s, rel=0.15)


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
    assert times / CHAT.inputs == pytest.approx(np.full(4, 131_072 / 50e9))


def test_costs_are_attributed_to_prompts_by_added_time() -> None:
    share = prompt_time_share(mixed().pools[0], chat(30.0))
    assert 0.01 < share < 0.9
    assert prompt_time_share(disaggregated().pools[0], chat(1.0)) == 1.0
    assert prompt_time_share(disaggregated().pools[1], chat(1.0)) == 0.0


def test_what_does_not_fit_is_an_instructive_error() -> None:
    with pytest.raises(InputError, match="leave no KV cache"):
        evaluate(Deployment.mixed(replica("llama-3.1-70b")), chat(1.0))
    with pytest.raises(InputError, match="longer than the 131072 tokens of context"):
        evaluate(mixed(), Workload.of(1.0, TokenLengths.constant(131_000, 200)))
