"""The queueing theory against closed forms, limits, brute force and invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.core import InputError
from planner.queueing import (
    BatchServer,
    QueueLatency,
    decode_pool,
    fluid_running,
    largest_decode_rate,
    largest_mixed_rate,
    largest_prefill_rate,
    mixed_pool,
    prefill_pool,
)
from planner.queueing.batch_occupancy import running_distribution
from planner.queueing.offered_load import _first_met
from planner.workload import LatencyDistribution, TokenLengths
from tests.queueing.classic_queues import kingman_wait_s, mdc_wait_s, pollaczek_khinchine_wait_s
from tests.queueing.servers import AZURE, CHAT, LLAMA_8B, LLAMA_70B, flat, linear, poisson
from tests.queueing.step_loop import StepLoop

POOLS = (mixed_pool, prefill_pool, decode_pool)
LARGEST = (largest_mixed_rate, largest_prefill_rate, largest_decode_rate)
Pool = Callable[..., QueueLatency]


def figures(latency: QueueLatency) -> np.ndarray[Any, np.dtype[np.float64]]:
    distributions = (latency.ttft, latency.tpot, latency.e2e)
    return np.array(
        [
            f
            for distribution in distributions
            for f in (distribution.mean_s, distribution.quantile_s(0.5), distribution.quantile_s(0.99))
        ]
    )


class TestLoadToZero:
    """A request that meets nobody takes exactly its own steps."""

    @pytest.mark.parametrize(("budget", "chunks"), [(8192, [1000]), (512, [512, 488]), (256, [256, 256, 256, 232])])
    def test_ttft_is_the_sum_of_its_chunks(self, budget: int, chunks: list[int]) -> None:
        latency = mixed_pool(BatchServer(LLAMA_70B, budget, 256), poisson(1e-6), TokenLengths.constant(1000, 50))
        alone = sum(float(LLAMA_70B(np.array(0.0), np.array(float(c)))) for c in chunks)
        assert latency.ttft.mean_s == pytest.approx(alone, rel=1e-4)
        assert latency.ttft.quantile_s(0.99) == pytest.approx(alone, rel=1e-4)

    def test_kernels_of_decodes_cost_nothing_where_none_runs(self) -> None:
        """However few run on average, a step beside none is one beside none."""
        server = BatchServer(lambda n, p: 0.01 + 1e-5 * (n + p) + 0.002 * (n > 0.0), 256, 256)
        latency = mixed_pool(server, poisson(1e-6), TokenLengths.constant(1000, 50))
        assert latency.ttft.mean_s == pytest.approx(4 * 0.01 + 1e-5 * 1000, rel=1e-4)

    def test_tpot_is_a_step_of_one(self) -> None:
        alone = float(LLAMA_70B(np.array(1.0), np.array(0.0)))
        lengths = TokenLengths.constant(1000, 50)
        mixed = mixed_pool(BatchServer(LLAMA_70B, 2048, 256), poisson(1e-6), lengths)
        decode = decode_pool(BatchServer(LLAMA_70B, 2048, 256), poisson(1e-6), lengths)
        assert mixed.tpot.mean_s == pytest.approx(alone, rel=1e-4)
        assert decode.tpot.quantile_s(0.99) == pytest.approx(alone, rel=1e-4)
        assert decode.ttft.mean_s == pytest.approx(0.0, abs=1e-6)
        assert mixed.e2e.mean_s == pytest.approx(mixed.ttft.mean_s + 49 * alone, rel=1e-4)

    def test_random_prompts_keep_their_own_distribution(self) -> None:
        latency = prefill_pool(linear(1e-4, 100_000), poisson(1e-6), AZURE)
        own = LatencyDistribution.from_samples(1e-4 * AZURE.inputs)
        assert latency.ttft.mean_s == pytest.approx(own.mean_s, rel=1e-3)
        for share in (0.1, 0.5, 0.9, 0.99):
            assert latency.ttft.quantile_s(share) == pytest.approx(own.quantile_s(share), rel=0.03)

    @pytest.mark.parametrize("scv", [0.0, 1.0, 4.0])
    def test_no_burstiness_matters_when_nobody_comes(self, scv: float) -> None:
        server, lengths = BatchServer(LLAMA_70B, 2048, 256), TokenLengths.constant(1000, 50)
        one, other = (mixed_pool(server, poisson(1e-9, s), lengths) for s in (1.0, scv))
        # Gaps of SCV 4 are nearly 0 with probability; a companion arrives with the first request even then.
        assert other.tpot.mean_s == pytest.approx(one.tpot.mean_s, rel=0.01)


class TestStability:
    def test_overload_is_an_answer(self) -> None:
        server = BatchServer(LLAMA_70B, 1024, 256)
        rate = largest_mixed_rate(server, AZURE)
        latency = mixed_pool(server, poisson(1.001 * rate), AZURE)
        assert not latency.stable
        assert latency.utilisation == pytest.approx(1.001)
        assert latency.limit == "prompts"
        assert latency.ttft.quantile_s(0.5) == float("inf")

    def test_waits_grow_without_bound(self) -> None:
        for pool, largest in zip(POOLS, LARGEST, strict=True):
            server = BatchServer(LLAMA_70B, 1024, 32)
            rate = largest(server, AZURE)
            waits = [pool(server, poisson(u * rate), AZURE).ttft.mean_s for u in (0.9, 0.99, 0.999, 0.9999)]
            assert waits == sorted(waits)
            assert waits[-1] / waits[-2] == pytest.approx(10.0, rel=0.2)

    def test_utilisation_is_per_server(self) -> None:
        server = BatchServer(LLAMA_8B, 2048, 256)
        latency = mixed_pool(server, poisson(4 * 0.5 * largest_mixed_rate(server, CHAT)), CHAT, replicas=4)
        assert latency.utilisation == pytest.approx(0.5)

    def test_token_budget_gives_out_first(self) -> None:
        # 400 tokens a step of 10 ms: 300 for the prompt and 100 for its decodes is one request per step.
        server, lengths = flat(0.01, budget=400), TokenLengths.constant(300, 101)
        assert largest_mixed_rate(server, lengths) == pytest.approx(100.0)
        assert mixed_pool(server, poisson(50.0), lengths).limit == "prompts"

    def test_slots_give_out_first(self) -> None:
        # 64 slots, each taken for one prefill step and 100 decode steps of 10 ms.
        server, lengths = flat(0.01, slots=64), TokenLengths.constant(300, 101)
        assert largest_mixed_rate(server, lengths) == pytest.approx(64 / 101 / 0.01)
        assert largest_decode_rate(server, lengths) == pytest.approx(64 / 100 / 0.01)
        assert mixed_pool(server, poisson(50.0), lengths).limit == "running"

    @pytest.mark.parametrize(
        ("server", "lengths"),
        [
            (BatchServer(LLAMA_70B, 1024, 1000), AZURE),
            (BatchServer(LLAMA_70B, 8192, 64), AZURE),
            (BatchServer(LLAMA_8B, 2048, 128), CHAT),
        ],
    )
    def test_an_overloaded_server_delivers_the_largest_rate(self, server: BatchServer, lengths: TokenLengths) -> None:
        rate, count = largest_mixed_rate(server, lengths), 12_000
        inputs, outputs = lengths.sample(count, seed=3)
        arrivals = poisson(3.0 * rate).sample_times_s(count, seed=4)
        first = np.sort(StepLoop(server, arrivals, inputs, outputs - 1).run()[0])
        delivered = 0.5 * count / (first[int(0.8 * count)] - first[int(0.3 * count)])
        assert rate == pytest.approx(delivered, rel=0.03)


class TestClassicalQueues:
    """Degenerate servers are queues with published formulas."""

    @pytest.mark.parametrize("load", [0.2, 0.8, 0.95])
    def test_one_prompt_per_step_is_m_d_1(self, load: float) -> None:
        server, lengths = linear(2e-5, budget=1000), TokenLengths.constant(1000, 1)
        latency = prefill_pool(server, poisson(load * 50.0), lengths)
        assert latency.ttft.mean_s == pytest.approx(0.02 + pollaczek_khinchine_wait_s(load * 50.0, 0.02, 0.0), rel=0.02)

    @pytest.mark.parametrize("load", [0.2, 0.8, 0.95])
    def test_small_chunks_are_m_g_1(self, load: float) -> None:
        # Exponential prompts of mean 1000 in chunks of 20 tokens and no overhead: work is served as it came.
        prompts = np.maximum(1, np.rint(-1000.0 * np.log(1.0 - (np.arange(2000) + 0.5) / 2000))).astype(np.int64)
        lengths = TokenLengths.from_pairs(prompts, np.ones(2000))
        service = 2e-5 * lengths.mean_input
        scv = float(lengths.inputs**2 @ lengths.probabilities) / lengths.mean_input**2 - 1.0
        latency = prefill_pool(linear(2e-5, budget=20), poisson(load / service), lengths)
        expected = service + pollaczek_khinchine_wait_s(load / service, service, scv)
        assert latency.ttft.mean_s == pytest.approx(expected, rel=0.03)

    def test_kingman_bounds_regular_arrivals(self) -> None:
        server, lengths = linear(2e-5, budget=1000), TokenLengths.constant(1000, 1)
        latency = prefill_pool(server, poisson(40.0, 0.25), lengths)
        assert 0.02 < latency.ttft.mean_s <= 1.05 * (0.02 + kingman_wait_s(40.0, 0.02, 0.25, 0.0))

    def test_constant_steps_are_m_g_infinity(self) -> None:
        counts = np.arange(200.0)
        distribution = running_distribution(counts, np.full(200, 0.01), 5000.0, 1.0)
        poisson_distribution = np.exp(counts * np.log(50.0) - 50.0 - np.cumsum(np.log(np.maximum(counts, 1.0))))
        assert distribution.probabilities == pytest.approx(poisson_distribution, abs=1e-12)
        server = BatchServer(lambda n, p: 0.01 + 0.001 * p + 0.0 * n, 1e5, 1e5)  # prompts would cost: there are none
        latency = decode_pool(server, poisson(50.0), TokenLengths.constant(10, 101))
        assert latency.mean_running == pytest.approx(50.0, rel=1e-6)
        assert latency.tpot.quantile_s(0.99) == pytest.approx(0.01)
        assert latency.ttft.mean_s == pytest.approx(0.005, rel=0.01)  # half a step

    @pytest.mark.parametrize(("slots", "load"), [(8, 0.8), (32, 0.95)])
    def test_slots_with_constant_outputs_are_m_d_c(self, slots: int, load: float) -> None:
        lengths = TokenLengths.constant(10, 1001)  # 10 s at 10 ms
        rate = load * slots / 10.0
        latency = decode_pool(flat(0.01, slots=slots), poisson(rate), lengths)
        assert latency.ttft.mean_s == pytest.approx(mdc_wait_s(rate, 10.0, slots) + 0.005, rel=0.12)


class TestOrder:
    """More load, more burstiness or fewer servers never help."""

    SERVERS = (
        (BatchServer(LLAMA_70B, 256, 1e5), AZURE),
        (BatchServer(LLAMA_70B, 8192, 1e5), AZURE),
        (BatchServer(LLAMA_8B, 2048, 1e5), CHAT),
    )

    @pytest.mark.parametrize(("server", "lengths"), SERVERS)
    @pytest.mark.parametrize("scv", [0.25, 4.0])
    def test_in_the_rate(self, server: BatchServer, lengths: TokenLengths, scv: float) -> None:
        largest = largest_mixed_rate(server, lengths)
        loads = (0.01, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
        rows = np.array([figures(mixed_pool(server, poisson(u * largest, scv), lengths)) for u in loads])
        assert np.all(np.diff(rows, axis=0) >= -2e-3 * rows[:-1])

    @pytest.mark.parametrize(("server", "lengths"), SERVERS)
    @pytest.mark.parametrize("load", [0.3, 0.8])
    def test_in_the_scv(self, server: BatchServer, lengths: TokenLengths, load: float) -> None:
        rate = load * largest_mixed_rate(server, lengths)
        rows = np.array([figures(mixed_pool(server, poisson(rate, scv), lengths)) for scv in (0, 0.1, 0.3, 1, 2, 4)])
        rows = np.delete(rows, [1, 4, 7], axis=1)  # medians may fall when the tail grows
        assert np.all(np.diff(rows, axis=0) >= -0.01 * rows[:-1])

    @pytest.mark.parametrize("pool", POOLS)
    def test_in_the_replicas(self, pool: Pool) -> None:
        server = BatchServer(LLAMA_8B, 2048, 256)
        one = pool(server, poisson(20.0), CHAT)
        many = pool(server, poisson(160.0), CHAT, replicas=8)
        for metric in ("ttft", "tpot", "e2e"):
            assert getattr(many, metric).mean_s <= getattr(one, metric).mean_s * 1.001
            assert getattr(many, metric).quantile_s(0.99) <= getattr(one, metric).quantile_s(0.99) * 1.001

    def test_slots_only_matter_when_they_run_out(self) -> None:
        rate = 0.5 * largest_mixed_rate(BatchServer(LLAMA_8B, 2048, 64), CHAT)
        few, many = (figures(mixed_pool(BatchServer(LLAMA_8B, 2048, b), poisson(rate), CHAT)) for b in (64, 4096))
        assert few == pytest.approx(many, rel=0.05)


class TestDistributions:
    @given(scale=st.floats(1e-3, 1e3), load=st.floats(0.05, 0.95), scv=st.sampled_from([0.25, 1.0, 4.0]))
    @settings(max_examples=8)
    def test_time_has_no_unit(self, scale: float, load: float, scv: float) -> None:
        """Steps a times as long at a rate a times lower: every latency is a times as long."""
        slower = BatchServer(lambda n, p: scale * LLAMA_8B(n, p), 2048, 1e5)
        server = BatchServer(LLAMA_8B, 2048, 1e5)
        rate = load * largest_mixed_rate(server, CHAT)
        base = figures(mixed_pool(server, poisson(rate, scv), CHAT))
        assert figures(mixed_pool(slower, poisson(rate / scale, scv), CHAT)) == pytest.approx(scale * base, rel=1e-6)

    @pytest.mark.parametrize("pool", [mixed_pool, decode_pool])
    def test_one_token_outputs_have_no_tpot(self, pool: Pool) -> None:
        lengths = TokenLengths.from_pairs([500, 500], [1, 101], [0.25, 0.75])
        latency = pool(BatchServer(LLAMA_8B, 2048, 256), poisson(5.0), lengths)
        assert latency.tpot.cdf(0.0) == pytest.approx(0.25)

    @pytest.mark.parametrize("pool", POOLS)
    def test_no_output_at_all_to_decode(self, pool: Pool) -> None:
        latency = pool(BatchServer(LLAMA_8B, 2048, 256), poisson(5.0), TokenLengths.constant(500, 1))
        assert latency.stable
        assert latency.tpot.mean_s == 0.0
        assert latency.e2e.mean_s == pytest.approx(latency.ttft.mean_s)
        assert latency.mean_running == pytest.approx(0.0, abs=1e-12)

    @pytest.mark.parametrize("scv", [0.3, 1.0, 4.0])
    @pytest.mark.parametrize("load", [0.3, 0.8])
    @pytest.mark.parametrize(
        "changes", [{}, {"prompts_first": True}, {"prepares": True}, {"max_running": 12.0}], ids=str
    )
    def test_output_tokens_take_the_time_between_them_and_run_as_long(
        self, changes: dict[str, Any], load: float, scv: float
    ) -> None:
        """E2E is TTFT and as many gaps as there are, however long each request's own are; and Little."""
        server = replace(BatchServer(LLAMA_8B, 2048, 256), **changes)
        for lengths in (AZURE, TokenLengths.constant(800, 151)):
            gaps = float((lengths.outputs - 1) @ lengths.probabilities)
            for pool, largest in ((mixed_pool, largest_mixed_rate), (decode_pool, largest_decode_rate)):
                rate = load * largest(server, lengths)
                found = pool(server, poisson(rate, scv), lengths)
                decoding_s = found.e2e.mean_s - found.ttft.mean_s
                exact = 1e-3 if pool is decode_pool else 0.01 + 0.02 * (scv > 1.0)
                assert decoding_s == pytest.approx(gaps * found.itl.mean_s, rel=exact)
                assert found.mean_running == pytest.approx(rate * decoding_s, rel=2e-3)

    def test_few_slots_are_all_taken_where_no_more_can_be_served(self) -> None:
        """A prompt holds one of four for a step, and then a hundred steps."""
        server, lengths = flat(0.01, budget=400, slots=4), TokenLengths.constant(300, 101)
        rate = largest_mixed_rate(server, lengths)
        assert fluid_running(server, 0.9999 * rate, lengths) == pytest.approx(4.0 * 100.0 / 101.0, rel=1e-3)

    def test_correlated_lengths_spread_the_end_to_end_time(self) -> None:
        server = BatchServer(LLAMA_8B, 512, 256)
        alike = TokenLengths.from_pairs([200, 4000], [20, 100])
        opposed = TokenLengths.from_pairs([200, 4000], [100, 20])
        spread = [mixed_pool(server, poisson(1.0), lengths).e2e.std_s for lengths in (alike, opposed)]
        assert spread[0] > 1.3 * spread[1]

    def test_extreme_servers_answer(self) -> None:
        for budget, slots in ((16, 1), (64, 64.7), (1_048_576, 65_536)):
            for lengths in (
                TokenLengths.constant(1, 2),
                TokenLengths.from_pairs([1, 100_000], [1, 5000], [0.99, 0.01]),
            ):
                server = linear(1e-5, budget, slots, base_s=1e-3)
                for pool, largest in zip(
                    POOLS, (largest_mixed_rate, largest_prefill_rate, largest_decode_rate), strict=True
                ):
                    latency = pool(server, poisson(0.7 * largest(server, lengths), 3.0), lengths)
                    assert latency.stable
                    assert np.all(np.isfinite(figures(latency)))


@pytest.mark.parametrize("step_s", [float("nan"), -0.01])
def test_a_step_time_that_cannot_be_is_named(step_s: float) -> None:
    with pytest.raises(InputError, match=r"server\.step_s = .*: must be finite and > 0 s. Fix: check the step time of"):
        mixed_pool(flat(step_s), poisson(1.0), TokenLengths.constant(100, 10))


@given(
    tokens=st.tuples(st.floats(0.0, 6.0), st.floats(0.0, 4.0)),
    sizes=st.tuples(st.floats(0.0, 6.0), st.floats(0.0, 4.0)),
    costs=st.tuples(st.floats(-4.0, -1.0), st.floats(-8.0, -3.0), st.floats(-8.0, -2.0), st.floats(-6.0, -2.0)),
    load=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.98, 0.999]),
    scv=st.sampled_from([0.02, 0.25, 1.0, 16.0]),
    spread=st.sampled_from([0.0, 0.3, 2.0]),
)
@example(  # slots end at 15 decodes, and full steps keep up with prompts until 15.6
    tokens=(1.25, 1.5625), sizes=(1.359375, 1.203125), costs=(-1.0, -3.0, -2.0, -2.0), load=0.98, scv=0.02, spread=0.0
)
@settings(max_examples=40)
def test_every_pool_that_a_scenario_may_describe_has_an_answer(
    tokens: tuple[float, float],
    sizes: tuple[float, float],
    costs: tuple[float, float, float, float],
    load: float,
    scv: float,
    spread: float,
) -> None:
    """Prompts of 1 to 10^6 tokens, budgets of 1 to 10^6, 1 to 10^4 places, steps that take more than their share."""
    base, per_prompt, per_decode, beside = np.power(10.0, costs)
    middles = np.power(10.0, tokens)[:, None] * np.exp(spread * np.array([-1.0, 0.0, 1.5]))
    lengths = TokenLengths.from_pairs(*np.clip(np.rint(middles), 1.0, 1e6).astype(np.int64))
    budget, slots = (round(10.0**size) for size in sizes)
    server = BatchServer(
        lambda n, p: base + per_prompt * p * (1.0 + 9.0 * p / budget) + per_decode * n + beside * (n > 0.0),
        budget,
        slots,
    )
    for pool, largest in zip(POOLS, LARGEST, strict=True):
        rate = largest(server, lengths)
        if rate < np.inf and lengths.inputs.max() / server.max_batched_tokens < 1e4:
            found = pool(server, poisson(load * rate, scv), lengths)
            for distribution in (found.ttft, found.tpot, found.e2e, found.itl):
                assert np.all(np.isfinite(distribution.support_s)) and np.all(distribution.support_s >= 0.0)


@pytest.mark.parametrize("scv", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("lengths", "budget"), [(CHAT, 2048), (AZURE, 1024), (TokenLengths.constant(4000, 60), 512)])
def test_slots_that_nobody_waits_for_change_nothing(lengths: TokenLengths, budget: int, scv: float) -> None:
    """From where all slots are taken less often than once in a million times on, to a slot for every token."""
    everyone = BatchServer(LLAMA_8B, budget, float(budget))
    arrivals = poisson(0.6 * largest_mixed_rate(everyone, lengths), scv)
    free = mixed_pool(everyone, arrivals, lengths)
    enough = round(free.mean_running + 6.0 * np.sqrt(scv * 3.0 * free.mean_running) + 10.0)
    for slots in np.unique(np.round(np.geomspace(enough, max(4.0 * enough, budget / 2), 6))).tolist():
        found = mixed_pool(BatchServer(LLAMA_8B, budget, slots), arrivals, lengths)
        for metric in ("ttft", "tpot"):
            for level in (0.5, 0.99):
                with_all = getattr(free, metric).quantile_s(level)
                assert getattr(found, metric).quantile_s(level) == pytest.approx(with_all, rel=1e-3), (slots, metric)


@pytest.mark.parametrize(("base_s", "met_s"), [(0.1, 1.0), (0.75, 1.5), (1.5, 3.0), (5.0, 4.0)])
def test_a_step_as_long_as_it_needs_is_found_between_the_times_tried(base_s: float, met_s: float) -> None:
    """Of T = base + T / 2; at least the shortest of the times, at most the longest."""
    times_s = np.array([1.0, 2.0, 4.0])
    assert _first_met(times_s, base_s + times_s / 2.0) == pytest.approx(met_s)
