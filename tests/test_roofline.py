"""Operator work against published formulas, limits and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_db import Dtype, load_hardware
from planner.errors import InputError
from planner.llm import GroupedQueryAttention, LlmSpec, Precision, load_llm
from planner.roofline import (
    Family,
    OperatorWork,
    Statistic,
    StepShape,
    all_reduce_link_bytes,
    coefficients,
    compute_dtype,
    expected_expert_share,
    half_precision,
    kv_heads_per_gpu,
    link_bandwidth_bytes_per_s,
    ridge_point_flops_per_byte,
    routing,
    statistics,
    step_work,
)

HARDWARE = load_hardware()
H100 = HARDWARE.skus["h100-sxm"]
BF16 = Precision()
FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8, kv_cache=Dtype.FP8)


def total(works: tuple[OperatorWork, ...], shape: StepShape, llm: LlmSpec, what: str) -> float:
    """Sum of one kind of work over all operators of a step."""
    stats = statistics(shape, routing(llm))
    return float(sum(coefficients(getattr(work, what)) @ stats for work in works))


def test_ridge_point_of_h100_is_the_quotient_of_its_datasheet_peaks() -> None:
    # 989.4 TFLOP/s / 3.35 TB/s = 295 FLOP/B: the number every H100 roofline plot shows.
    assert ridge_point_flops_per_byte(H100, Dtype.BF16) == pytest.approx(295.3, abs=0.1)


def test_prefill_flops_are_two_per_weight_and_token_plus_attention() -> None:
    # Narayanan et al. 2021, appendix: forward pass = 2 * weights * tokens + 4 * layers * hidden * pairs.
    llm, tokens = load_llm("llama-3.1-8b"), 2048
    shape = StepShape(0.0, 0.0, tokens, tokens * (tokens + 1) / 2, tokens, 1.0)
    layer_weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    head = 4096 * 128256  # logits of the last position only
    attention = 4 * 32 * 4096 * tokens * (tokens + 1) / 2
    expected = 2 * layer_weights * tokens + 2 * head + attention
    assert total(step_work(llm, H100, BF16, 1), shape, llm, "flops") == pytest.approx(expected, rel=1e-12)


def test_decode_reads_weights_once_whatever_the_batch() -> None:
    llm = load_llm("llama-3.1-8b")
    works = step_work(llm, H100, BF16, 1)
    one = total(works, StepShape(1.0, 1.0), llm, "hbm_bytes")
    many = total(works, StepShape(32.0, 32.0), llm, "hbm_bytes")
    streamed = 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)  # all but the embedding table and the norms
    assert one > streamed
    assert many - one < 0.02 * one


def test_decode_attention_reads_the_published_kv_bytes_per_token() -> None:
    # Llama-3.1-70B keeps 327,680 bytes of KV per token in bf16 (80 layers * 2 * 8 heads * 128 * 2).
    llm = load_llm("llama-3.1-70b")
    works = step_work(llm, H100, BF16, 1)
    per_token = next(w for w in works if w.family is Family.ATTENTION_DECODE).hbm_bytes[Statistic.DECODE_CONTEXT]
    assert per_token == 327_680


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_split_and_then_replicated(tp: int, kv_heads: int) -> None:
    assert kv_heads_per_gpu(GroupedQueryAttention(heads=64, kv_heads=8, head_dim=128), tp) == kv_heads


def test_tensor_parallel_beyond_the_kv_heads_stops_saving_kv_traffic() -> None:
    llm = load_llm("qwen3-30b-a3b")  # 4 KV heads
    shape = StepShape(8.0, 8000.0)

    def kv_traffic(tp: int) -> float:
        works = tuple(w for w in step_work(llm, H100, BF16, tp) if w.family is Family.ATTENTION_DECODE)
        return sum(w.hbm_bytes[Statistic.DECODE_CONTEXT] for w in works) * float(shape.decode_context)

    assert kv_traffic(4) == kv_traffic(1) / 4
    assert kv_traffic(8) == kv_traffic(4)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_conserves_matrix_flops(tp: int) -> None:
    llm = load_llm("llama-3.1-70b")
    shape = StepShape(16.0, 16000.0, 512.0, 512 * 513 / 2, 512.0, 1.0)
    alone = total(step_work(llm, H100, BF16, 1), shape, llm, "flops")
    assert tp * total(step_work(llm, H100, BF16, tp), shape, llm, "flops") == pytest.approx(alone, rel=1e-12)


def test_link_traffic_vanishes_on_one_gpu() -> None:
    llm = load_llm("llama-3.1-8b")
    assert total(step_work(llm, H100, BF16, 1), StepShape(4.0, 400.0), llm, "link_bytes") == 0.0


def test_heads_that_do_not_split_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"parallelism.tp = 4: 10 KV heads do not split evenly"):
        step_work(load_llm("phi-4"), H100, BF16, 4)


def test_expected_experts_hit_matches_drawing_them() -> None:
    generator = np.random.default_rng(0)
    experts, k, tokens = 16, 2, 10
    share = np.mean(
        [
            len({int(e) for _ in range(tokens) for e in generator.choice(experts, k, replace=False)}) / experts
            for _ in range(3000)
        ]
    )
    assert expected_expert_share(experts, k, float(tokens)) == pytest.approx(share, abs=0.005)


def test_mixtral_one_token_reads_two_experts_and_a_large_batch_all_of_them() -> None:
    llm = load_llm("mixtral-8x7b-v0.1")
    works = tuple(w for w in step_work(llm, H100, BF16, 1) if w.family is Family.EXPERTS)
    one_expert = 32 * 3 * 4096 * 14336 * 2  # layers * matrices * hidden * intermediate * bytes
    few = total(works, StepShape(1.0, 1.0), llm, "hbm_bytes")
    many = total(works, StepShape(128.0, 128.0), llm, "hbm_bytes")
    assert few == pytest.approx(2 * one_expert, rel=1e-3)
    assert many == pytest.approx(8 * one_expert, rel=0.05)


def test_int4_weights_cut_weight_traffic_and_keep_16_bit_arithmetic() -> None:
    llm = load_llm("llama-3.1-8b")
    int4 = Precision(weights=Dtype.INT4)
    dense = next(w for w in step_work(llm, H100, int4, 1) if w.family is Family.FEED_FORWARD)
    assert dense.dtype is Dtype.BF16
    assert dense.hbm_bytes[Statistic.STEP] == pytest.approx(32 * 3 * 4096 * 14336 * (0.5 + 2 / 128))


def test_fp8_runs_on_fp8_units_where_there_are_some_else_in_16_bit() -> None:
    assert compute_dtype(FP8, H100) is Dtype.FP8
    assert compute_dtype(FP8, HARDWARE.skus["a100-sxm-80gb"]) is Dtype.BF16
    assert half_precision(HARDWARE.skus["t4"]) is Dtype.FP16


def test_ring_all_reduce_sends_nearly_twice_the_payload() -> None:
    # Patarasuk and Yuan 2009: 2 (n - 1) / n of the payload per rank.
    assert all_reduce_link_bytes(1.0, 1) == 0.0
    assert all_reduce_link_bytes(1.0, 2) == 1.0
    assert all_reduce_link_bytes(1.0, 8) == 1.75


def test_links_switch_mesh_and_host() -> None:
    assert link_bandwidth_bytes_per_s(H100, 8) == 450e9
    mi300x = HARDWARE.skus["mi300x"]  # 7 links of 64 GB/s: a pair has one of them
    assert link_bandwidth_bytes_per_s(mi300x, 2) == pytest.approx(64e9)
    assert link_bandwidth_bytes_per_s(mi300x, 8) == pytest.approx(448e9)
    l40s = HARDWARE.skus["l40s"]  # no NVLink: PCIe 4.0 x16
    assert link_bandwidth_bytes_per_s(l40s, 4) == 32e9
    with pytest.raises(InputError, match=r"parallelism.tp = 16: h100-sxm has at most 8 GPUs"):
        link_bandwidth_bytes_per_s(H100, 16)


def test_chunks_of_a_prompt_add_up_to_its_causal_pairs() -> None:
    # Quadratic attention integrated over position: any way of chunking counts the same query-key pairs.
    whole = 1000 * 1001 / 2
    for cut in (1, 100, 999):
        parts = cut * (cut + 1) / 2 + (1000 - cut) * cut + (1000 - cut) * (1000 - cut + 1) / 2
        assert parts == whole


@settings(max_examples=50, deadline=None)
@given(
    decodes=st.integers(0, 500),
    context=st.integers(1, 8000),
    chunk=st.integers(0, 8192),
    tp=st.sampled_from([1, 2, 4, 8]),
    model=st.sampled_from(["llama-3.1-8b", "mixtral-8x7b-v0.1", "opt-66b"]),
)
def test_work_is_never_negative_and_grows_with_the_batch(
    decodes: int, context: int, chunk: int, tp: int, model: str
) -> None:
    llm = load_llm(model)
    works = step_work(llm, H100, BF16, tp)

    def shape(n: float, p: float) -> StepShape:
        return StepShape(n, n * context, p, p * (p + 1) / 2, p, float(p > 0))

    for what in ("flops", "hbm_bytes", "link_bytes"):
        base = total(works, shape(decodes, chunk), llm, what)
        assert 0.0 <= base <= total(works, shape(decodes + 1, chunk), llm, what) * (1 + 1e-12)
        assert base <= total(works, shape(decodes, chunk + 1), llm, what) * (1 + 1e-12)
