"""Memory of replicas whose windowed and global layers have KV heads and head sizes of their own."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import Dtype
from planner.engine.memory import (
    kv_bytes_per_token_per_gpu,
    kv_transfer_bytes,
    memory_footprint,
    sequence_bytes_per_gpu,
    weights_bytes_per_gpu,
)
from planner.llm import LlmSpec, load_llm, parameters
from tests.builders import HARDWARE, replica
from tests.llm.test_hf_local_global import GEMMA_4_E2B


def test_heads_repeat_by_the_kind_of_layer() -> None:
    """MiMo-V2-Flash over 8 GPUs: one global head (of 4) and one windowed head (of 8) on each."""
    mimo = replica("mimo-v2-flash", HARDWARE.skus["h200-sxm"], 8)
    assert kv_bytes_per_token_per_gpu(mimo.llm, Dtype.BF16, 8) == 9 * 1 * (192 + 128) * 2
    assert sequence_bytes_per_gpu(mimo) == 39 * 1 * (192 + 128) * 128 * 2
    assert kv_bytes_per_token_per_gpu(mimo.llm, Dtype.BF16, 1) == 9 * 4 * (192 + 128) * 2


def test_projections_of_gemma_4_repeat_on_the_gpus_that_share_a_head() -> None:
    """26B-A4B over 4 GPUs: a global layer's 2 KV heads stand on two GPUs each, key projection once per head."""
    hidden = 2816
    alone = replica("gemma-4-26b-a4b", HARDWARE.skus["h200-sxm"], 1)
    four = replica("gemma-4-26b-a4b", HARDWARE.skus["h200-sxm"], 4)
    twice = 5 * hidden * 2 * 512 * (1 / 2 - 1 / 4)
    vision = weights_bytes_per_gpu(alone) - 2 * parameters(alone.llm)
    apart = weights_bytes_per_gpu(four) - 2 * (parameters(four.llm) / 4 + twice)
    assert 0.0 <= apart <= vision  # of the vision encoder, split or whole
    assert memory_footprint(four).fits


def test_transfers_carry_both_kinds_of_cache() -> None:
    gemma = replica("gemma-4-26b-a4b", HARDWARE.skus["h200-sxm"], 2)
    tokens = np.array([500, 1024, 30_000])
    expected = 20_480 * tokens + 25 * 8 * (256 + 256) * 2 * np.minimum(tokens, 1024)
    assert kv_transfer_bytes(gemma, tokens) == pytest.approx(expected)


def test_layers_on_the_cache_of_others_hold_and_send_nothing() -> None:
    e2b = LlmSpec.from_config(GEMMA_4_E2B)
    config = replica().model_copy(update={"llm": e2b})
    assert kv_bytes_per_token_per_gpu(e2b, Dtype.BF16, 1) == 3 * 1024 * 2
    assert sequence_bytes_per_gpu(config) == 12 * 512 * 512 * 2
    assert kv_transfer_bytes(config, np.array([10_000])) == pytest.approx(10_000 * 6144 + 12 * 512 * 512 * 2)


def test_the_table_of_layer_embeddings_is_in_memory() -> None:
    e2b = LlmSpec.from_config(GEMMA_4_E2B)
    config = replica().model_copy(update={"llm": e2b})
    assert weights_bytes_per_gpu(config) == pytest.approx(2 * parameters(load_llm(GEMMA_4_E2B)))


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_windows_and_tokens_are_what_vllm_keeps(tp: int) -> None:
    """Step-3.7-Flash: 12 global and 33 windowed layers of 8 heads, split evenly over as many GPUs."""
    step = replica("step-3.7-flash", HARDWARE.skus["b200-sxm"], tp)
    assert kv_bytes_per_token_per_gpu(step.llm, Dtype.BF16, tp) == 12 * 8 * 256 * 2 / tp
    assert sequence_bytes_per_gpu(step) == 33 * 8 * 256 * 512 * 2 / tp
