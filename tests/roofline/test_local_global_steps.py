"""Steps of models whose windowed and global layers differ in shape, worked out by hand from their sizes."""

from __future__ import annotations

from datetime import date

import pytest

from hardware_db import Calibration, Coefficient, KernelFit, load_hardware
from planner.engine.replica import step_shape
from planner.llm import LlmSpec, Precision, load_llm
from planner.roofline import CalibratedGpu, Load, Parallelism, step_operators
from planner.roofline.grouped import GroupedDecode, GroupedPrefill
from planner.roofline.operators import Elementwise, MatrixProduct, Operator
from planner.roofline.shape import OperatorFamily, StepShape
from tests.llm.test_hf_local_global import GEMMA_4_E2B

H100 = load_hardware().skus["h100-sxm"]

HIDDEN, VOCABULARY, LOCAL, GLOBAL = 2816, 262144, 25, 5
"""Gemma 4 26B-A4B: 25 windowed and 5 global layers, 16 query heads in both."""
LOCAL_QKV, LOCAL_OUT = (16 + 2 * 8) * 256, 16 * 256
GLOBAL_QK, GLOBAL_OUT = (16 + 2) * 512, 16 * 512
"""Outputs of the projections; global layers have none of values."""
DENSE, EXPERT, EXPERTS, VISITS, WINDOW = 2112, 704, 128, 8, 1024


def operators(model: str | LlmSpec, **split: int) -> tuple[Operator, ...]:
    llm = load_llm(model) if isinstance(model, str) else model
    return step_operators(llm, H100, Precision(), Parallelism(**split))


def work(found: tuple[Operator, ...], shape: StepShape, what: str, **split: int) -> float:
    """Sum over all but passes over activations, of one GPU."""
    load = Load.of(shape, Parallelism(**split))
    counted = [one for one in found if not isinstance(one, Elementwise)]
    return float(sum(one.count * getattr(one.work(load), what) for one in counted))


def projections(found: tuple[Operator, ...]) -> list[MatrixProduct]:
    """Those of queries, keys and values, and of gates."""
    return [one for one in found if one.family is OperatorFamily.QKV and isinstance(one, MatrixProduct)]


def matrix_weights() -> int:
    """Weights of the matrices that every token passes, without experts and LM head."""
    local = HIDDEN * LOCAL_QKV + LOCAL_OUT * HIDDEN
    globally = HIDDEN * GLOBAL_QK + GLOBAL_OUT * HIDDEN
    return LOCAL * local + GLOBAL * globally + 30 * (3 * HIDDEN * DENSE + HIDDEN * EXPERTS)


def activations() -> int:
    """Values that the same matrices read and write for one token."""
    local = (HIDDEN + LOCAL_QKV) + (LOCAL_OUT + HIDDEN)
    globally = (HIDDEN + GLOBAL_QK) + (GLOBAL_OUT + HIDDEN)
    dense = (HIDDEN + 2 * DENSE) + (DENSE + HIDDEN)
    return LOCAL * local + GLOBAL * globally + 30 * (dense + HIDDEN + EXPERTS)


def test_a_decode_step_of_gemma_4_26b_by_hand() -> None:
    """32 sequences, each over 4096 tokens: 1024 of them in windowed layers."""
    tokens, context = 32, 4096
    found, shape = operators("gemma-4-26b-a4b"), step_shape([context] * tokens, ())
    expert = 3 * HIDDEN * EXPERT
    attention = LOCAL * 4 * 16 * 256 * WINDOW + GLOBAL * 4 * 16 * 512 * context
    flops = tokens * (2 * (matrix_weights() + 30 * VISITS * expert + VOCABULARY * HIDDEN) + attention)
    assert work(found, shape, "flops") == pytest.approx(flops, rel=1e-12)
    hit = EXPERTS * (1 - (1 - VISITS / EXPERTS) ** tokens)
    weights = matrix_weights() + 30 * hit * expert + VOCABULARY * HIDDEN
    moved = tokens * (activations() + 30 * VISITS * (2 * HIDDEN + 3 * EXPERT) + VOCABULARY + HIDDEN)
    local_cache = LOCAL * (8 * 2 * 256 * (WINDOW + 1) + 2 * 16 * 256)  # keys and values, own token's, queries, outputs
    global_cache = GLOBAL * (2 * 2 * 512 * (context + 1) + 2 * 16 * 512)
    expected = 2 * (weights + moved + tokens * (local_cache + global_cache))
    assert work(found, shape, "hbm_bytes") == pytest.approx(expected, rel=1e-12)


def test_a_prefill_of_gemma_4_26b_by_hand() -> None:
    """One prompt of 8192 tokens; a query of a windowed layer sees 1024 of them at most."""
    tokens = 8192
    found, shape = operators("gemma-4-26b-a4b"), step_shape((), [(tokens, 0)])
    expert = 3 * HIDDEN * EXPERT
    local_pairs = WINDOW * (WINDOW + 1) // 2 + (tokens - WINDOW) * WINDOW
    global_pairs = tokens * (tokens + 1) // 2
    attention = LOCAL * 4 * 16 * 256 * local_pairs + GLOBAL * 4 * 16 * 512 * global_pairs
    flops = 2 * tokens * (matrix_weights() + 30 * VISITS * expert) + 2 * VOCABULARY * HIDDEN + attention
    assert work(found, shape, "flops") == pytest.approx(flops, rel=1e-12)
    weights = matrix_weights() + 30 * EXPERTS * expert + VOCABULARY * HIDDEN  # 65,536 pairs: every expert is hit
    moved = tokens * (activations() + 30 * VISITS * (2 * HIDDEN + 3 * EXPERT)) + VOCABULARY + HIDDEN
    kept = tokens * (LOCAL * 8 * 2 * 256 + GLOBAL * 2 * 2 * 512)  # read once and written once
    queries = tokens * 2 * 16 * (LOCAL * 256 + GLOBAL * 512)
    expected = 2 * (weights + moved + 2 * kept + queries)
    assert work(found, shape, "hbm_bytes") == pytest.approx(expected, rel=1e-9)


def test_a_dense_block_beside_the_experts_is_summed_on_its_own() -> None:
    """vLLM, ``gemma4.py``: attention, dense block and experts each reduce, since a norm follows each of them."""
    reduced = [one for one in operators("gemma-4-26b-a4b", tp=2) if one.family is OperatorFamily.ALL_REDUCE]
    assert sum(one.count for one in reduced) == 3 * 30 + 1
    mixtral = [one for one in operators("mixtral-8x7b-v0.1", tp=2) if one.family is OperatorFamily.ALL_REDUCE]
    assert sum(one.count for one in mixtral) == 2 * 32 + 1


def test_heads_are_split_by_the_kind_of_layer() -> None:
    """MiMo-V2-Flash over 8 GPUs: one of 8 windowed KV heads each, one of 4 global ones on two GPUs each."""
    layers: dict[tuple[float, float, float], float] = {}
    for one in operators("mimo-v2-flash", tp=8):
        if isinstance(one, GroupedDecode):
            kind = one.window, one.heads, one.kv_heads
            layers[kind] = layers.get(kind, 0.0) + one.count
    assert layers == {(0, 8, 1): 9, (128, 8, 1): 39}
    alone = [one for one in operators("mimo-v2-flash") if isinstance(one, GroupedDecode)]
    assert {(one.window, one.kv_heads) for one in alone} == {(0, 4), (128, 8)}


def test_attention_of_mimo_costs_the_mean_of_its_key_and_value_channels() -> None:
    """2 h (192 + 128) FLOPs a pair; 4 (192 + 128) cached values a token and global layer."""
    context = 100_000
    load = Load.of(step_shape([context], ()), Parallelism())
    one = next(one for one in operators("mimo-v2-flash") if isinstance(one, GroupedDecode) and not one.window)
    assert one.work(load).flops == 2 * 64 * (192 + 128) * context
    own = 4 * 320 + 64 * 320  # its keys and values, its queries and outputs
    assert one.work(load).hbm_bytes == 2 * (4 * 320 * context + own)
    prefill = next(one for one in operators("mimo-v2-flash") if isinstance(one, GroupedPrefill) and not one.window)
    prompt = Load.of(step_shape((), [(1000, 0)]), Parallelism())
    assert prefill.work(prompt).flops == 2 * 64 * (192 + 128) * 1000 * 1001 / 2


def test_gates_of_heads_are_products_of_their_own() -> None:
    """Step-3.7-Flash over 4 GPUs: 24 and 16 gates beside projections of 24 and 16 heads of 128 channels."""
    shapes = {(one.n, one.k) for one in projections(operators("step-3.7-flash", tp=4))}
    assert shapes == {(24, 4096), (16, 4096), ((24 + 4) * 128, 4096), ((16 + 4) * 128, 4096)}


def test_layers_that_share_a_cache_attend_without_projecting_keys() -> None:
    """Gemma 4 E2B: 20 of 35 layers project 8 query heads only, and read as much cache as their like."""
    e2b = LlmSpec.from_config(GEMMA_4_E2B)
    found = operators(e2b)
    widths: dict[float, float] = {}
    for one in projections(found):
        widths[one.n] = widths.get(one.n, 0) + one.count
    assert widths == {10 * 256: 12, 10 * 512: 3, 8 * 256: 16, 8 * 512: 4}
    assert sum(one.count for one in found if isinstance(one, GroupedDecode) and not one.window) == 7


def test_rows_of_single_layers_are_looked_up_and_not_multiplied() -> None:
    """Gemma 4 E2B: of its 2.35 B values in the table of layer embeddings a step reads a row a token."""
    e2b = LlmSpec.from_config(GEMMA_4_E2B)
    plain = LlmSpec.from_config({**GEMMA_4_E2B, "hidden_size_per_layer_input": 0})
    shape = step_shape([1], ())
    more = work(operators(e2b), shape, "hbm_bytes") - work(operators(plain), shape, "hbm_bytes")
    matrices = 35 * 2 * 1536 * 256 + 1536 * 35 * 256
    assert more == pytest.approx(2 * matrices, rel=0.01)


# ------------------------------------------------------------------------------------------------ kernels

SLOW = "wide_prefill/512_bf16"


def prefill_fit(efficiency: float) -> KernelFit:
    values = {"start_s": 1e-5, "memory_efficiency": 0.5, "order": 4.0, "row_tokens": 1.0, "block_share": 0.5}
    values["compute_efficiency_128"] = efficiency
    parameters = {name: Coefficient(value=value, low=value, high=value) for name, value in values.items()}
    return KernelFit(parameters=parameters, samples=9, held_out=3, median_error=0.05, p90_error=0.1, spread=0.1)


def calibrated_gpu(*keys: str) -> CalibratedGpu:
    """An H100 whose usual prefill attention reaches half its peak, and under other keys a twentieth."""
    kernels = {"attention_prefill/bf16": prefill_fit(0.5), **dict.fromkeys(keys, prefill_fit(0.05))}
    own = {"sku": "h100-sxm", "stack": "made up", "fitted_on": date(2026, 11, 22), "source": "made up for this"}
    return CalibratedGpu(H100, Calibration(kernels=kernels, **own))


def prefills(model: str) -> dict[float, GroupedPrefill]:
    """By the channels of a key head."""
    return {one.head_dim: one for one in operators(model) if isinstance(one, GroupedPrefill)}


def test_heads_of_512_channels_run_on_their_own_kernel_where_it_was_measured() -> None:
    load, operator = Load.of(step_shape((), [(8192, 0)]), Parallelism()), prefills("gemma-4-26b-a4b")[512.0]
    usual, slow = (operator.kernel_s(load, calibrated_gpu(*keys)) for keys in ((), (SLOW,)))
    assert usual is not None
    assert slow == pytest.approx(10 * usual, rel=0.02)
    assert operator.fit_keys[:2] == (SLOW, "wide_prefill/512_fp8")
    assert "attention_prefill/bf16" in operator.fit_keys


def test_windowed_layers_go_along_with_wider_heads_of_their_model() -> None:
    assert prefills("gemma-4-26b-a4b")[256.0].fit_keys[0] == "wide_prefill/256_window_bf16"
    assert {one.fit_keys[0] for one in operators("mimo-v2-flash") if isinstance(one, GroupedPrefill)} == {
        "wide_prefill/192_bf16",
        "wide_prefill/192_window_bf16",
    }
    for usual in ("gpt-oss-120b", "gemma-3-27b-it", "qwen3-next-80b-a3b-thinking", "step-3.7-flash"):
        keys = {one.fit_keys[0] for one in operators(usual) if isinstance(one, GroupedPrefill)}
        assert keys == {"attention_prefill/bf16"}, usual
