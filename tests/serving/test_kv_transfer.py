"""KV transfers in one piece and chunk by chunk: limits worked by hand, and the simulator as judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hardware_db import Fact, GpuSku
from planner.core import rebuilt
from planner.engine import ReplicaConfig, Schedule, step_time
from planner.roofline import Parallelism
from planner.serving import Deployment, KvTransfer, Router, evaluate, sent_s
from planner.serving.kv_transfer import kv_token_time_s, kv_transfer_times_s, piecewise_transfers, waiting_for_link
from planner.simulator import simulate
from planner.workload import ArrivalProcess, RequestClass, TokenLengths, Workload
from tests.builders import H100, HARDWARE, calibrated, replica

CHUNK = 512
PROMPT = TokenLengths.constant(2000, 20)
MIX = TokenLengths.from_pairs([300, 1500, 6000], [20, 30, 10], [0.3, 0.5, 0.2])
INFINITE, FAST, BETWEEN, SLOW = 1e18, 5e10, 3.5e9, 1e8


def with_nic(nic: float) -> GpuSku:
    speed = Fact(value=nic, source="chosen for the test", retrieved_on=H100.node.nic_bytes_per_s_per_gpu.retrieved_on)
    return H100.model_copy(update={"node": H100.node.model_copy(update={"nic_bytes_per_s_per_gpu": speed})})


def pair(
    nic: float,
    chunkwise: bool = True,
    early: bool = False,
    transfer: KvTransfer = KvTransfer(),  # noqa: B008 - frozen
    replicas: tuple[int, int] = (1, 1),
    **changes: Any,
) -> Deployment:
    """Llama-3.1-8B on H100 with links of so many bytes/s, prompts in chunks of 512 tokens."""
    config = replica(sku=with_nic(nic), **{"max_batched_tokens": CHUNK, **changes})
    how = {"chunkwise_kv_transfer": chunkwise, "early_prefix_transfer": early, "paged_kv_transfer": False}
    engine = config.engine.model_copy(update=how)
    config = config.model_copy(update={"engine": engine})
    return Deployment.disaggregated(config, config, replicas, transfer)


def steps_s(config: ReplicaConfig, tokens: int) -> np.ndarray:
    return np.array(
        [step_time(config, chunks=[(min(CHUNK, tokens - past), past)]).total_s for past in range(0, tokens, CHUNK)]
    )


class TestLink:
    @pytest.mark.parametrize(
        ("llm", "tokens", "sent_bytes", "measured_s", "within"),
        [
            ("qwen3-8b", 8192, 1.13e9, 8.84e-3, 0.3),
            ("qwen3-8b", 32768, 4.5e9, 31.65e-3, 0.2),
            ("qwen3-235b-a22b", 8192, 3.15e9, 20.31e-3, 0.1),
            ("qwen3-235b-a22b", 32768, 12.62e9, 76.78e-3, 0.05),
        ],
    )
    def test_bytes_and_times_are_those_that_mooncake_published(
        self, llm: str, tokens: int, sent_bytes: float, measured_s: float, within: float
    ) -> None:
        """One request between two servers of eight GPUs and 200 GB/s (docs/source/performance of
        github.com/kvcache-ai/Mooncake at 3b5a59413, vllm-v1-pd-performance.md and sglang-benchmark-results-v1.md). On
        eight GPUs each of Qwen3-235B's four KV heads is there twice."""
        config = replica(llm, sku=with_nic(25e9), tp=8)
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"paged_kv_transfer": False})})
        found_s = float(sent_s(Deployment.disaggregated(config, config), tokens))
        assert found_s * 0.85 * 200e9 == pytest.approx(sent_bytes, rel=0.08)
        assert found_s == pytest.approx(measured_s, rel=within) and found_s < measured_s

    def test_first_tokens_of_short_prompts_come_as_mooncake_published(self) -> None:
        """Qwen3-8B on two idle servers of eight H800 (the page above): of what H100 computes, hardly anything here."""
        config = calibrated("qwen3-8b", "h100-sxm", parallelism=Parallelism(tp=8), max_batched_tokens=8192)
        pair = Deployment.disaggregated(config, config)
        for tokens, measured_s in ((128, 0.0461), (256, 0.0480), (512, 0.0599), (1024, 0.0673)):
            found = evaluate(pair, Workload.of(1e-3, TokenLengths.constant(tokens, 64)))
            assert found.ttft.mean_s == pytest.approx(measured_s, rel=0.3)

    def test_a_sequence_leaves_by_the_links_of_its_attention_rank(self) -> None:
        shapes = (Parallelism(tp=1, dp=8), Parallelism(tp=8))
        ranks, whole = (replica(sku=with_nic(FAST), parallelism=shape) for shape in shapes)
        pairs = [Deployment.disaggregated(*ends) for ends in ((ranks, ranks), (whole, whole), (ranks, whole))]
        assert [pair.kv_link_bytes_per_s for pair in pairs] == pytest.approx([0.85 * FAST * n for n in (1, 8, 1)])
        assert [pair.kv_links for pair in pairs] == [(8, 8), (1, 1), (8, 8)]

    def test_pages_are_posted_one_by_one_where_the_engine_does(self) -> None:
        """Llama-3.1-8B: 32 layers, keys and values apart, 16 tokens a page: four descriptors a token."""
        config = replica(sku=with_nic(INFINITE))
        assert config.engine.paged_kv_transfer and config.engine.kv_block_tokens == 16
        assert float(sent_s(Deployment.disaggregated(config, config), 8000)) == pytest.approx(8000 * 4 * 1.5e-6)
        wide = config.model_copy(update={"engine": config.engine.model_copy(update={"kv_block_tokens": 64})})
        assert float(sent_s(Deployment.disaggregated(wide, wide), 8000)) == pytest.approx(8000 * 1.5e-6)


class TestLonePrompt:
    def test_an_infinitely_fast_link_delays_nothing(self) -> None:
        assert piecewise_transfers(pair(INFINITE), MIX).exposed_s() == pytest.approx(0.0, abs=1e-9)

    def test_a_link_faster_than_prefill_leaves_the_last_chunk(self) -> None:
        deployment = pair(FAST)
        found = piecewise_transfers(deployment, PROMPT)
        assert found.exposed_s() == pytest.approx(464 / 2000 * kv_transfer_times_s(deployment, PROMPT), rel=1e-9)

    def test_a_link_slower_than_prefill_carries_all_bytes_from_the_first_chunk_on(self) -> None:
        deployment = pair(SLOW)
        found, steps = piecewise_transfers(deployment, PROMPT), steps_s(deployment.pools[0].config, 2000)
        assert found.exposed_s() == pytest.approx(kv_transfer_times_s(deployment, PROMPT) - steps[1:].sum(), rel=1e-6)

    @pytest.mark.parametrize(("nic", "layerwise"), [(INFINITE, False), (FAST, True), (BETWEEN, False), (SLOW, True)])
    def test_chunk_by_chunk_is_never_later_and_all_bytes_are_sent(self, nic: float, layerwise: bool) -> None:
        transfer = KvTransfer(layerwise=layerwise)
        whole, pieces = (piecewise_transfers(pair(nic, sent, transfer=transfer), MIX) for sent in (False, True))
        assert (pieces.exposed_s() <= whole.exposed_s() * (1.0 + 1e-12)).all()
        assert np.array_equal(pieces.total_s, whole.total_s)
        assert pieces.pieces.tolist() == [1.0, 3.0, 12.0] and whole.pieces.tolist() == [1.0, 1.0, 1.0]
        assert pieces.exposed_s()[0] == whole.exposed_s()[0]  # one chunk

    @pytest.mark.parametrize(("nic", "layerwise"), [(FAST, True), (BETWEEN, True), (BETWEEN, False), (SLOW, False)])
    def test_theory_is_the_simulation(self, nic: float, layerwise: bool) -> None:
        deployment, lone = pair(nic, transfer=KvTransfer(layerwise=layerwise)), Workload.of(1e-3, PROMPT)
        theory, judge = evaluate(deployment, lone), simulate(deployment, lone, requests=1)
        assert theory.kv_transfer_s == pytest.approx(judge.kv_transfer_s, rel=1e-6)
        assert theory.ttft.mean_s == pytest.approx(judge.ttft.mean_s, rel=0.03)

    def test_a_long_prompt_has_a_long_transfer(self) -> None:
        """Taken as independent, the longest of five prompts would have met the longest transfer once in 25."""
        deployment, lone = pair(SLOW, chunkwise=False), Workload.of(1e-3, MIX)
        theory, judge = evaluate(deployment, lone), simulate(deployment, lone, requests=300)
        for share in (0.1, 0.5, 0.95):
            assert theory.ttft.quantile_s(share) == pytest.approx(judge.ttft.quantile_s(share), rel=0.02)

    @pytest.mark.parametrize(("nic", "early"), [(FAST, True), (BETWEEN, False), (SLOW, True)])
    def test_a_prefix_cache_leaves_fewer_steps_to_hide_behind(self, nic: float, early: bool) -> None:
        """Half of 3,200 tokens are cached; sent early, they have the first step as well."""
        deployment = pair(nic, early=early, own_schedule=Schedule(prefix_cache=True))
        kind = RequestClass(lengths=TokenLengths.constant(3200, 20), prefix_hit_rate=0.5)
        lone = Workload(arrivals=ArrivalProcess(rate_per_s=1e-3), classes=(kind,))
        theory, judge = evaluate(deployment, lone), simulate(deployment, lone, requests=1)
        assert theory.kv_transfer_s == pytest.approx(judge.kv_transfer_s, rel=1e-3)

    def test_a_cached_prefix_sent_early_is_never_later(self) -> None:
        lengths = TokenLengths.from_pairs([600, 3200], [20, 20])
        for nic in (FAST, BETWEEN, SLOW):
            late, early = (
                piecewise_transfers(pair(nic, early=first), lengths, cached_share=0.75) for first in (False, True)
            )
            assert (early.exposed_s() <= late.exposed_s()).all()
            assert early.exposed_s()[0] < late.exposed_s()[0]  # one chunk of 150 tokens behind 450
            assert early.pieces_s.sum(axis=0) == pytest.approx(late.total_s)


class TestShared:
    def test_a_link_is_as_busy_in_pieces_and_waits_are_shorter(self) -> None:
        for nic in (FAST, BETWEEN):
            whole, pieces = (waiting_for_link(pair(nic, sent), MIX, 1.0) for sent in (False, True))
            assert pieces.utilisation == pytest.approx(whole.utilisation, rel=1e-9)
            assert pieces.wait.mean_s < whole.wait.mean_s
            for share in (0.5, 0.9, 0.99):
                assert pieces.wait.quantile_s(share) <= whole.wait.quantile_s(share)

    @pytest.mark.parametrize(("nic", "tolerance"), [(FAST, 0.1), (BETWEEN, 0.15)])
    def test_against_simulation(self, nic: float, tolerance: float) -> None:
        """Eight prefill replicas into one decode replica, whose link is where transfers meet."""
        deployment = pair(nic, replicas=(8, 1))
        mean_s = float(kv_transfer_times_s(deployment, MIX) @ MIX.probabilities)
        workload = Workload.of(min(0.5 / mean_s, 40.0), MIX)
        theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=3000)
        assert theory.link_utilisation == pytest.approx(judge.link_utilisation, rel=0.15)
        sent = theory.kv_transfer_s + waiting_for_link(deployment, MIX, workload.rate_per_s).wait.mean_s
        assert sent == pytest.approx(judge.kv_transfer_s, rel=tolerance)
        assert theory.ttft.quantile_s(0.9) == pytest.approx(judge.ttft.quantile_s(0.9), rel=tolerance)

    def test_links_carry_on_until_they_are_full(self) -> None:
        """Eight prefill replicas into three: none waits at one end for a transfer that is held up at its other end."""
        by_turns = pair(BETWEEN, chunkwise=False, replicas=(8, 3), transfer=KvTransfer(first_token_from_decode=False))
        prefill, decode = by_turns.pools
        deployment = rebuilt(by_turns, pools=(prefill, rebuilt(decode, router=Router.RANDOM)))
        mean_s = float(kv_transfer_times_s(deployment, MIX) @ MIX.probabilities)
        workload = Workload.of(0.85 * 3 / mean_s, MIX)
        theory, judge = evaluate(deployment, workload), simulate(deployment, workload, requests=20_000)
        assert judge.stable and theory.link_utilisation == pytest.approx(0.85)
        assert judge.link_utilisation == pytest.approx(0.85, rel=0.03)
        turns = simulate(by_turns, workload, requests=20_000)
        waited_s = waiting_for_link(deployment, MIX, workload.rate_per_s).wait.mean_s
        least_s, most_s = (run.kv_transfer_s - mean_s for run in (turns, judge))
        assert 0.7 * waited_s < least_s < waited_s < most_s < 1.4 * waited_s  # Poisson lies between turns and chance


class TestEngines:
    def test_sglang_sends_chunks_and_the_others_one_piece(self) -> None:
        sent = {name: engine.chunkwise_kv_transfer for name, engine in HARDWARE.engines.items()}
        assert sent == {"vllm": False, "sglang": True, "tensorrt-llm": False}
        assert {name for name, engine in HARDWARE.engines.items() if engine.early_prefix_transfer} == {"sglang"}

    def test_prompts_that_are_not_split_have_one_piece(self) -> None:
        assert kv_token_time_s(pair(FAST)) > 0.0
        assert kv_token_time_s(pair(FAST, own_schedule=Schedule(whole_prompts=True))) == 0.0
        assert kv_token_time_s(pair(FAST, chunkwise=False)) == 0.0
