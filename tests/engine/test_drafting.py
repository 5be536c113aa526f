"""Drafts of a replica: memory, time against rooflines by hand, acceptance into theory and simulation."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.core import InputError
from planner.engine import ReplicaConfig, Speculation, kv_transfer_bytes, memory_footprint
from planner.llm import DraftMethod, Precision, kv_bytes_per_token, load_llm, parameters
from planner.roofline import Parallelism
from planner.scenario import load_scenario
from planner.serving import Deployment, evaluate
from planner.simulator import simulate
from tests.builders import H100, chat, replica

BANDWIDTH = H100.hbm_bandwidth_bytes_per_s.value
HEAD = Speculation(method=DraftMethod.EAGLE3, draft_tokens=3, dataset="mt-bench")
HEAD_PARAMETERS = 424_689_664
"""Of the EAGLE-3 head of Llama-3.1-8B: tests/llm/test_drafts.py counts them by hand."""


def llama(speculation: Speculation | None, tp: int = 1) -> ReplicaConfig:
    return replica("llama-3.1-8b", speculation=speculation, precision=Precision(), parallelism=Parallelism(tp=tp))


class TestMemory:
    def test_a_head_brings_its_weights_and_a_layer_of_cache(self) -> None:
        plain, drafting = (memory_footprint(llama(one)) for one in (None, HEAD))
        assert drafting.weights_bytes - plain.weights_bytes == pytest.approx(2 * HEAD_PARAMETERS)
        assert drafting.kv_bytes_per_token - plain.kv_bytes_per_token == 2 * 8 * 128 * 2  # 1/32 of the model's
        assert drafting.kv_capacity_tokens < plain.kv_capacity_tokens

    def test_the_matrix_that_fuses_is_whole_on_every_gpu(self) -> None:
        plain, drafting = (memory_footprint(llama(one, tp=4)) for one in (None, HEAD))
        fused = 2 * 3 * 4096 * 4096
        assert drafting.weights_bytes - plain.weights_bytes == pytest.approx((2 * HEAD_PARAMETERS - fused) / 4 + fused)

    def test_a_small_model_brings_all_its_weights_and_caches(self) -> None:
        small = load_llm("qwen3-0.6b")
        asked = Speculation(draft="qwen3-0.6b", draft_tokens=3, acceptance=0.7)
        plain, drafting = (memory_footprint(replica("qwen3-8b", speculation=one)) for one in (None, asked))
        assert drafting.weights_bytes - plain.weights_bytes == pytest.approx(2 * parameters(small), rel=1e-3)
        assert drafting.kv_bytes_per_token - plain.kv_bytes_per_token == kv_bytes_per_token(small, Dtype.BF16)

    def test_the_cache_of_a_module_is_one_more_layer_and_travels_too(self) -> None:
        asked = Speculation(draft_tokens=1, acceptance=0.8)
        plain, drafting = (
            replica("deepseek-v3", parallelism=Parallelism(tp=8), speculation=one) for one in (None, asked)
        )
        ratio = memory_footprint(drafting).kv_bytes_per_token / memory_footprint(plain).kv_bytes_per_token
        assert ratio == pytest.approx(62 / 61)
        prompts = load_scenario("chat-llama-70b").workload.classes[0].lengths.inputs[:3]
        assert kv_transfer_bytes(drafting, prompts) == pytest.approx(kv_transfer_bytes(plain, prompts) * 62 / 61)


class TestTime:
    def test_each_guess_reads_the_head_once(self) -> None:
        """One sequence: bound by memory. The fusing matrix is read once, layer and LM head for each guess."""
        plain, drafting = (llama(one).timer.decode_s(1, 100) for one in (None, HEAD))
        fused = 3 * 4096 * 4096
        read = 2 * (fused + 3 * (HEAD_PARAMETERS - fused)) / BANDWIDTH
        assert drafting - plain == pytest.approx(read, rel=0.02)

    def test_each_guess_reads_a_small_model_once(self) -> None:
        asked = Speculation(draft="qwen3-0.6b", draft_tokens=4, acceptance=0.7)
        plain, drafting = (replica("qwen3-8b", speculation=one).timer.decode_s(1, 100) for one in (None, asked))
        assert drafting - plain == pytest.approx(4 * 2 * parameters(load_llm("qwen3-0.6b")) / BANDWIDTH, rel=0.05)

    def test_more_guesses_never_take_less_time(self) -> None:
        for running in (1, 16, 256):
            times = [
                llama(HEAD.model_copy(update={"draft_tokens": k})).timer.decode_s(running, 1000 * running)
                for k in (1, 2, 3, 5)
            ]
            assert times == sorted(times)


class TestAcceptance:
    def test_tokens_per_step_are_those_measured(self) -> None:
        drafting = llama(HEAD).drafting
        assert drafting is not None and drafting.tokens_per_step == pytest.approx(2.6, abs=0.01)  # as published
        assert any("2.60 tokens a step, as measured on mt-bench" in note for note in llama(HEAD).assumptions)

    def test_positions_may_be_given(self) -> None:
        asked = Speculation(method=DraftMethod.EAGLE3, draft_tokens=3, acceptance=(0.8, 0.5, 0.2))
        drafting = llama(asked).drafting
        assert drafting is not None and drafting.tokens_per_step == 2.5

    @pytest.mark.parametrize(
        "fields",
        [
            {"acceptance": (0.8, 0.5)},
            {"acceptance": (0.2, 0.5, 0.8)},
            {"draft_cost": 0.1},
            {"method": "share", "acceptance": 0.5},
            {"method": "eagle3", "draft_cost": 0.1, "acceptance": 0.5},
            {"draft": {"model_type": "llama"}},
            {"method": "mtp", "draft": "qwen3-0.6b", "acceptance": 0.5},
        ],
    )
    def test_what_does_not_go_together_is_refused(self, fields: dict[str, object]) -> None:
        with pytest.raises(InputError):
            Speculation(draft_tokens=3, **fields)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("fields", "bound"),
        [
            ({"draft": "qwen3-0.6b", "acceptance": 0.7}, "151936 tokens"),
            ({"draft": "AQ-MedAI/Kimi-K25-eagle3"}, "reads 21504 channels"),
            ({"method": "eagle3", "draft": "llama-3.2-1b"}, "is no EAGLE-3 head"),
            ({"method": "eagle3", "dataset": "my-logs"}, "is none of"),
            ({}, "has no multi-token-prediction layer"),
        ],
    )
    def test_what_cannot_guess_for_a_model_is_refused(self, fields: dict[str, object], bound: str) -> None:
        with pytest.raises(InputError, match=bound):
            _ = llama(Speculation(draft_tokens=3, **fields)).timer  # type: ignore[arg-type]

    def test_theory_and_simulation_gain_alike(self) -> None:
        deployment = Deployment.mixed(llama(HEAD))
        theory = evaluate(deployment, chat(2.0))
        watched = simulate(deployment, chat(2.0), seed=0, requests=2000)
        assert theory.tpot.mean_s == pytest.approx(watched.tpot.mean_s, rel=0.05)
        plain = evaluate(Deployment.mixed(llama(None)), chat(2.0))
        assert 1.8 < plain.tpot.mean_s / theory.tpot.mean_s < 2.6
