"""What adapters add to a step and to the memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.engine import AdapterWork, LoraAdapters, adapter_popularity, expected_distinct, memory_footprint
from planner.engine.footprint import lora_bytes_per_gpu
from planner.llm import load_llm
from tests.simulator_oracle import LLAMA_8B_KV_BYTES_PER_TOKEN, replica


def test_adapters_read_their_weights_once_for_all_their_tokens() -> None:
    """41.9 M values of 2 bytes at 3.35 TB/s each; many tokens are bound by 2 FLOPs per value and token."""
    work = AdapterWork.of(replica(lora=LoraAdapters(adapters=8)))
    assert work.step_s(8, 4) == pytest.approx(4 * 2 * 41_943_040 / 3.35e12, rel=1e-12)
    assert work.step_s(8, 4) == work.step_s(4, 4)
    assert work.step_s(100_000, 1) == pytest.approx(1e5 * 2 * 41_943_040 / 989.4e12, rel=1e-12)
    assert work.step_s(0, 0) == 0.0


def test_adapters_of_routed_experts_are_read_where_tokens_go() -> None:
    """One token visits two of eight experts; many visit them all (Mixtral: Jiang et al., arXiv:2401.04088, table 1)."""
    config = replica(llm=load_llm("mixtral-8x7b-v0.1"), lora=LoraAdapters(adapters=8))
    work = AdapterWork.of(config)
    sizes = 4096 + 14336
    routed, others = 32 * 16 * 8 * 3 * sizes, 32 * 16 * (2 * 8192 + 2 * 5120)
    assert work.step_s(1, 1) * 3.35e12 == pytest.approx(2 * (others + routed / 4), rel=1e-12)
    assert work.step_s(64, 1) * 3.35e12 == pytest.approx(2 * (others + routed), rel=1e-6)
    assert work.token_flops == 2 * (others + routed / 4)


def test_many_steps_at_once_are_one_by_one() -> None:
    for config in (replica(), replica(llm=load_llm("mixtral-8x7b-v0.1"))):
        work = AdapterWork.of(config.model_copy(update={"lora": LoraAdapters(adapters=8)}))
        tokens, distinct = (each.ravel() for each in np.meshgrid([0.0, 1.0, 5.0, 1e5], [0.0, 1.0, 3.0, 8.0]))
        assert work.times_s(tokens, distinct) == pytest.approx(
            [work.step_s(*one) for one in zip(tokens, distinct, strict=True)]
        )
        assert [work.step_s(5.0, 0.0), work.step_s(0.0, 3.0)] == [0.0, 0.0]


def test_slots_take_memory_from_the_cache() -> None:
    many, none = replica(lora=LoraAdapters(adapters=100, slots=64)), replica()
    assert lora_bytes_per_gpu(many) == 64 * 2 * 41_943_040
    lost = memory_footprint(none).kv_capacity_tokens - memory_footprint(many).kv_capacity_tokens
    assert lost == pytest.approx(64 * 2 * 41_943_040 / LLAMA_8B_KV_BYTES_PER_TOKEN, abs=16)


def test_expected_distinct_adapters_are_those_of_draws() -> None:
    lora = LoraAdapters(adapters=30, skew=1.2)
    rng = np.random.default_rng(0)
    drawn = rng.choice(30, size=(4000, 12), p=adapter_popularity(lora))
    counted = np.array([np.unique(row).size for row in drawn])
    expected = expected_distinct(12, adapter_popularity(lora))
    assert counted.mean() == pytest.approx(expected, abs=4 * counted.std() / math.sqrt(4000))
