"""Operator work against published formulas, limits and invariants."""

from __future__ import annotations

import math
import re
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_db import Calibration, Coefficient, Dtype, KernelFit, load_hardware, select_calibration
from planner.core import InputError
from planner.engine.replica import step_shape
from planner.llm import (
    BYTES_PER_VALUE,
    GroupedQueryAttention,
    LlmSpec,
    Part,
    Precision,
    list_llms,
    load_draft,
    load_llm,
)
from planner.llm.sizes import linear_parameters_by_part
from planner.roofline import (
    CalibratedGpu,
    Driver,
    Fusion,
    Load,
    Operator,
    OperatorFamily,
    Parallelism,
    StepShape,
    compute_bound_tokens,
    compute_dtype,
    draft_operators,
    operator_seconds,
    ridge_point_flops_per_byte,
    step_operators,
)
from planner.roofline.gpu import (
    all_reduce_link_bytes,
    fast_domain_gpus,
    half_precision,
    link_bandwidth_bytes_per_s,
)
from planner.roofline.kernel_forms import WEIGHT_FORMATS
from planner.roofline.latent import LatentPrefill
from planner.roofline.operators import (
    GEMM_FALLBACKS,
    Collective,
    Elementwise,
    ExpertExchange,
    MatrixProduct,
    NetworkCollective,
    NormedReduce,
)

HARDWARE = load_hardware()
H100 = HARDWARE.skus["h100-sxm"]
BF16 = Precision()
FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8, kv_cache=Dtype.FP8)
SPECIES = (
    *("llama-3.1-8b", "mixtral-8x7b-v0.1", "deepseek-v3.2", "qwen3-next-80b-a3b-thinking", "gpt-oss-120b"),
    *("kimi-k3", "nvidia-nemotron-3-super-120b-a12b-fp8", "llama-3-3-nemotron-super-49b-v1"),
    *("gemma-4-26b-a4b", "mimo-v2-flash", "step-3.7-flash"),
)
"""One model of each kind: dense, MoE, latent and sparse attention, recurrent, windowed with sinks, experts on a latent
vector with a recurrence of either sort, layers of their own shapes, windowed and
global layers of unlike shapes."""


def operators(model: str, tp: int = 1, precision: Precision = BF16, **split: int) -> tuple[Operator, ...]:
    return step_operators(load_llm(model), H100, precision, Parallelism(tp=tp, **split))


def decodes(number: int, context: int) -> StepShape:
    return step_shape([context] * number, [])


def prompt(new: int, past: int = 0) -> StepShape:
    return step_shape([], [(new, past)])


def total(
    found: tuple[Operator, ...], shape: StepShape, what: str, family: OperatorFamily | None = None, **split: int
) -> float:
    """Sum of one kind of work over the operators (of a family) and their layers, on one GPU."""
    load = Load.of(shape, Parallelism(**split))
    chosen = [one for one in found if family is None or one.family is family]
    return float(sum(one.count * getattr(one.work(load), what) for one in chosen))


def all_reduce(gpus: int) -> Collective:
    family, sent = OperatorFamily.ALL_REDUCE, all_reduce_link_bytes(1.0, gpus)
    return Collective(family, Dtype.BF16, 1.0, Driver.TOKENS, "all_reduce", gpus, 2**20, 2.0, sent, 900e9)


class TestDense:
    """Llama and Mixtral: numbers anyone can redo from their configurations."""

    def test_link_traffic_vanishes_on_one_gpu(self) -> None:
        assert total(operators("llama-3.1-8b"), decodes(4, 100), "link_bytes") == 0.0


class TestExperts:
    """Routed experts: whose weights are read, who sees which tokens."""

    def test_attention_ranks_share_decodes_but_experts_see_every_token(self) -> None:
        shape, split = decodes(256, 2000), {"dp": 8, "ep": 8}
        found = operators("deepseek-v3", 1, FP8, **split)
        alone = operators("deepseek-v3", 1, FP8)
        ranked = total(found, shape, "flops", OperatorFamily.ATTENTION_DECODE, **split)
        assert ranked == pytest.approx(total(alone, shape, "flops", OperatorFamily.ATTENTION_DECODE) / 8)
        assert Load.of(shape, Parallelism(**split)).group_tokens == 256
        experts = total(found, shape, "flops", OperatorFamily.EXPERTS, **split)
        assert 8 * experts == pytest.approx(total(alone, shape, "flops", OperatorFamily.EXPERTS))

    def test_ranks_exchange_tokens_by_all_gather_and_reduce_scatter(self) -> None:
        # nccl-tests, doc/PERFORMANCE.md: (n - 1) / n of the buffer each; 58 expert layers.
        split = {"dp": 8, "ep": 8}
        found = operators("deepseek-v3", 1, FP8, **split)
        sent = total(found, decodes(256, 1), "link_bytes", OperatorFamily.EXPERT_EXCHANGE, **split)
        assert sent == pytest.approx(58 * 2 * 7 / 8 * 256 * 7168 * 2)
        # In a rack of servers of four, eight GPUs exchange by one-sided kernels (TensorRT-LLM pull request 8950).
        gb200 = HARDWARE.skus["gb200-nvl72"]
        rack = step_operators(load_llm("deepseek-v3"), gb200, FP8, Parallelism(**split))
        assert sum(isinstance(one, ExpertExchange) for one in rack) == 2


class TestWindowsAndStates:
    """Attention that forgets: windows and recurrent states."""

    def test_a_windowed_prompt_multiplies_a_band(self) -> None:
        # 8192 queries: the first 4096 see a triangle, each later one 4096 keys.
        pairs = 4096 * 4097 / 2 + 4096 * 4096
        found = operators("mistral-7b-v0.1")
        assert total(found, prompt(8192), "flops", OperatorFamily.ATTENTION_PREFILL) == pytest.approx(
            32 * 4 * 4096 * pairs
        )

    def test_local_and_global_layers_add_up(self) -> None:
        # gpt-oss-120b: 18 layers see 128 tokens, 18 the whole context; 8 KV heads of 64.
        found = operators("gpt-oss-120b")
        far, near = (total(found, decodes(1, c), "hbm_bytes", OperatorFamily.ATTENTION_DECODE) for c in (10_000, 1_000))
        assert far - near == pytest.approx(18 * 9_000 * 2 * 8 * 64 * 2)

    def test_a_recurrent_state_is_the_same_at_any_context(self) -> None:
        # Qwen3-Next: 36 of 48 layers keep 32 x 128 x 128 values in 32 bit, read and written once per token.
        found = operators("qwen3-next-80b-a3b-thinking")
        read = [total(found, decodes(1, c), "hbm_bytes", OperatorFamily.RECURRENCE) for c in (1, 1000, 262_144)]
        assert read[0] == read[1] == read[2]
        assert read[0] == pytest.approx(36 * 2 * 32 * 128 * 128 * 4, rel=0.05)  # and 16-bit activations

    def test_only_full_layers_of_a_hybrid_read_more_with_context(self) -> None:
        # Qwen3-Next: 12 layers of softmax attention with 2 KV heads of 256.
        found = operators("qwen3-next-80b-a3b-thinking")
        far, near = (total(found, decodes(1, c), "hbm_bytes") for c in (10_001, 1))
        assert far - near == pytest.approx(12 * 10_000 * 2 * 2 * 256 * 2)


def more(
    model: str, near: StepShape, far: StepShape, what: str, family: OperatorFamily, precision: Precision, **split: int
) -> float:
    """By how much the work of a family grows from one step to another, on one GPU."""
    found = operators(model, precision=precision, **split)
    return total(found, far, what, family, **split) - total(found, near, what, family, **split)


NOTHING = StepShape(0.0, 0.0)
DECODE, EXPERTS = OperatorFamily.ATTENTION_DECODE, OperatorFamily.EXPERTS


def test_dense_work_is_that_of_closed_forms() -> None:
    """Llama and Qwen3: numbers anyone can redo from their configurations."""
    # Narayanan et al. 2021, appendix: forward pass = 2 * weights * tokens + 4 * layers * hidden * pairs.
    tokens = 2048
    layer_weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    head, attention = 4096 * 128256, 4 * 32 * 4096 * tokens * (tokens + 1) / 2  # logits of the last position only
    expected = 2 * layer_weights * tokens + 2 * head + attention
    assert total(operators("llama-3.1-8b"), prompt(tokens), "flops") == pytest.approx(expected, rel=1e-12)
    # Llama-3.1-70B keeps 327,680 bytes of KV per token in bf16; the 4 KV heads of Qwen3-30B-A3B are not split further.
    long, short = decodes(4, 1001), decodes(4, 1)
    assert more("llama-3.1-70b", short, long, "hbm_bytes", DECODE, BF16) == pytest.approx(4000 * 327_680, rel=1e-12)
    for tp in (4, 8):
        kept = 4000 * 48 * 2 * 128 * 2
        assert more("qwen3-30b-a3b", short, long, "hbm_bytes", DECODE, BF16, tp=tp) == pytest.approx(kept)
    # Mistral-7B v0.1: 32 layers, window 4096, 8 KV heads of 128.
    windows, own = 32 * 2 * 8 * 128 * 2 * 4096, 32 * 2 * (2 * 8 * 128 + 2 * 32 * 128)
    read = more("mistral-7b-v0.1", NOTHING, decodes(1, 32_768), "hbm_bytes", DECODE, BF16)
    assert read == pytest.approx(windows + own)
    # Shoeybi et al. 2019, Megatron-LM, sec. 3: two all-reduces in the forward pass of a layer, one of the embedding.
    sent = more("llama-3.1-8b", NOTHING, decodes(16, 1), "link_bytes", OperatorFamily.ALL_REDUCE, BF16, tp=8)
    assert sent == pytest.approx((2 * 32 + 1) * 1.75 * 16 * 4096 * 2)
    sent = more("llama-3.1-70b", NOTHING, decodes(64, 1), "link_bytes", OperatorFamily.STAGE_TRANSFER, BF16, pp=4)
    assert sent == pytest.approx(3 * 16 * 8192 * 2)
    int4 = operators("llama-3.1-8b", precision=Precision(weights=Dtype.INT4))
    assert {one.dtype for one in int4 if one.family is OperatorFamily.FEED_FORWARD} == {Dtype.BF16}
    weights = total(int4, NOTHING, "hbm_bytes", OperatorFamily.FEED_FORWARD)
    assert weights == pytest.approx(32 * 3 * 4096 * 14336 * (0.5 + 2 / 128))


def test_sums_with_their_norm_take_as_long_as_was_published() -> None:
    """FlashInfer's kernel over two B300 with 8,192 channels: 97 us for 32 MiB, 197 for 64, where vLLM's sum and norm
    take 329 and 693 (https://github.com/vllm-project/vllm/pull/37756). Every norm behind a sum goes with it.
    """
    b300, split, mib = HARDWARE.skus["b300-sxm"], Parallelism(tp=2), 2.0**20
    gpu = CalibratedGpu(b300, select_calibration(HARDWARE, "b300-sxm", "vllm"))
    apart, fused = (
        step_operators(load_llm("llama-3.1-70b"), b300, BF16, split, fusion=Fusion(most)) for most in (0.0, 64.0 * mib)
    )
    one = next(one for one in fused if isinstance(one, NormedReduce))
    mixed = step_operators(load_llm("deepseek-v4-flash"), b300, BF16, split, fusion=Fusion(64.0 * mib))
    assert not any(isinstance(each, NormedReduce) for each in mixed), "norms stand between mixes of streams"
    for tokens, published_s in ((2048, 97e-6), (4096, 197e-6)):
        took = one.kernel_s(Load.of(decodes(tokens, 1), split), gpu)
        assert took is not None and float(took) == pytest.approx(published_s, rel=0.15)
    launches = [sum(each.launches for each in found if each.family is OperatorFamily.NORM) for found in (apart, fused)]
    assert launches[0] - launches[1] == 2 * 80
    larger, kinds = Load.of(decodes(4097, 1), split), (OperatorFamily.NORM, OperatorFamily.ALL_REDUCE)
    whole_s = [
        sum(each.count * float(each.kernel_s(larger, gpu) or 0.0) for each in found if each.family in kinds)
        for found in (apart, fused)
    ]
    assert whole_s[0] == pytest.approx(whole_s[1], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "tp", "launches"),
    [
        # two norms, QKV, rotation, prompts, decodes, output, gate with up, activation, down; the embedding and the head
        ("llama-3.1-8b", 1, 32 * 10 + 2),
        # one norm more on either side, three kernels and the two norms of its rows; five for all rows together
        ("gemma-4-e4b", 1, 42 * (10 + 2 + 5) + 2 + 4),
        # matrices of 8 bits quantise their input; five passes over latents; two sums; router and 6 kernels of experts
        ("deepseek-v3", 8, 3 * (2 + 11 + 2 + 2 + 5 + 2) + 58 * (2 + 11 + 2 + 2 + 5 + 2 + 1 + 8) + 4),
        # of linear attention two projections, three passes and two kernels, of the other a gate; shared experts
        ("qwen3.5-397b-a17b", 8, 45 * (2 + 2 + 5 + 1 + 1 + 3 + 6 + 2) + 15 * (3 + 2 + 2 + 1 + 1 + 3 + 6 + 2) + 4),
        # two mixes of residuals of two kernels a layer and one at the end; experts of a narrower state, with its norm
        ("kimi-k3", 8, (6 + 3 + 4 + 1 + 3 + 2) + 68 * (7 + 3 + 4 + 1 + 12 + 3) + 24 * (8 + 9 + 2 + 1 + 12 + 3) + 6),
    ],
)
def test_kernels_are_as_many_as_counted_by_hand(model: str, tp: int, launches: int) -> None:
    """Those of prompts and those of decodes, and outside the layers the embedding and the head, each with its sum."""
    found = step_operators(
        load_llm(model), HARDWARE.skus["h200-sxm"], load_llm(model).native_precision, Parallelism(tp=tp)
    )
    assert sum(each.launches for each in found) == launches


@pytest.mark.parametrize(
    ("model", "layers", "into", "out"),
    [
        # one projection: 64 heads of 64 twice, 8 groups of 128 twice, and a step width per head
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", 23, 2 * 4096 + 2 * 8 * 128 + 64, 4096),
        # 16 key heads of 128 twice, 32 value heads of 128 and their gates
        ("qwen3-next-80b-a3b-thinking", 36, 2 * 2048 + 2 * 4096, 4096),
        # decays of 32 heads of 128
        ("kimi-linear-48b-a3b-instruct", 20, 4096, 4096),
    ],
)
def test_passes_around_a_recurrence_are_counted_by_hand(model: str, layers: int, into: int, out: int) -> None:
    """What is projected is written apart and read again; of what goes out two are read and one is written."""
    found = [
        one for one in operators(model) if isinstance(one, Elementwise) and one.family is OperatorFamily.RECURRENCE
    ]
    assert sum(one.count for one in found) == layers
    assert {one.values for one in found} == {2.0 * into + 3.0 * out}


CHANNELS = re.compile(
    r"(head|index|key|value|nope|rope)_dim|hidden_size|(\w+_)?intermediate|\w+_rank|latent|(state_)?size|qk_norm_values"
)


GATED = ("nvidia-nemotron-3-", "step-3.7-")
"""Models whose heads have a value of their own, whatever their channels."""


def wider(part: Any) -> Any:
    """With twice the channels everywhere, in as many heads, experts and layers."""
    if isinstance(part, dict):
        is_width = {name: bool(CHANNELS.fullmatch(name)) and isinstance(each, int) for name, each in part.items()}
        return {name: 2 * each if is_width[name] else wider(each) for name, each in part.items()}
    return [wider(each) for each in part] if isinstance(part, (list, tuple)) else part


@pytest.mark.parametrize("model", list_llms())
def test_twice_the_channels_are_twice_the_values_of_passes_and_sums_and_the_inner_width_of_matrices(model: str) -> None:
    llm = load_llm(model)
    found, doubled = (
        step_operators(each, HARDWARE.skus["h200-sxm"], BF16, Parallelism())
        for each in (llm, LlmSpec.model_validate(wider(llm.model_dump())))
    )
    for one, two in zip(found, doubled, strict=True):
        if isinstance(one, Elementwise):
            assert two.values / one.values == pytest.approx(2.0, rel=3e-3 if model.startswith(GATED) else 1e-12), one
        elif isinstance(one, MatrixProduct):
            assert two.k == 2.0 * one.k and one.n <= two.n <= 2.0 * one.n, one


def test_rows_of_every_layer_are_read_projected_and_gated() -> None:
    """Gemma 4 E4B: 42 layers of 256 channels beside 2,560; moved in 16 bits."""
    hidden, size, layers, tokens = 2560, 256, 42, 16
    moved = more("gemma-4-e4b", NOTHING, decodes(tokens, 1), "hbm_bytes", OperatorFamily.EMBEDDING, BF16)
    passes = 2 * hidden + (hidden + layers * size) + 7 * layers * size + layers * (2 * (hidden + size) + 3 * size)
    assert moved == 2 * tokens * passes


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallel_conserves_flops(tp: int) -> None:
    shape = step_shape([1000] * 16, [(512, 0)])
    alone = total(operators("llama-3.1-70b"), shape, "flops")
    assert tp * total(operators("llama-3.1-70b", tp), shape, "flops") == pytest.approx(alone, rel=1e-12)


def test_work_of_experts_is_that_of_closed_forms() -> None:
    """Routed experts: whose weights are read, who sees which tokens."""
    mixtral, one_expert = operators("mixtral-8x7b-v0.1"), 32 * 3 * 4096 * 14336 * 2
    few, many = (total(mixtral, decodes(n, 1), "hbm_bytes", EXPERTS) for n in (1, 128))
    assert few == pytest.approx(2 * one_expert, rel=1e-3)
    assert many == pytest.approx(8 * one_expert, rel=0.05)
    for split in ({"tp": 8}, {"tp": 8, "ep": 8}, {"dp": 8, "ep": 8}):
        flops = more("deepseek-v3", NOTHING, decodes(4096, 1), "flops", EXPERTS, FP8, **split)
        assert flops == pytest.approx(2 * 58 * 4096 * 8 * 3 * 7168 * 2048 / 8)  # layers, tokens, visits, matrices
    # DeepSeek-V3, sec. 3.2.2: out in fp8 (a scale for every 128 values) and back in bf16, at least one copy to each of
    # 3 other servers that holds any of the 8 experts.
    split, family = {"dp": 32, "ep": 32}, OperatorFamily.EXPERT_EXCHANGE
    sent = more("deepseek-v3", NOTHING, decodes(3200, 1), "link_bytes", family, FP8, **split)
    assert sent == pytest.approx(58 * 100 * 7168 * 3 * (1 - 0.75**8) * (1 + 4 / 128 + 2))
    with pytest.raises(InputError, match=r"parallelism.ep = 3: must divide tp \* dp = 8"):
        Parallelism(tp=8, ep=3)


def test_latent_work_is_that_of_closed_forms() -> None:
    """DeepSeek-V3 (arXiv:2412.19437, sec. 4.2): 61 layers, 128 heads, latent row 512 + 64, whole on every GPU."""
    long, short = decodes(1, 1001), decodes(1, 1)
    for tp in (1, 8):
        flops = more("deepseek-v3", short, long, "flops", DECODE, BF16, tp=tp)
        assert flops == pytest.approx(1000 * 61 * 2 * 128 / tp * (2 * 512 + 64))
        assert more("deepseek-v3", short, long, "hbm_bytes", DECODE, FP8, tp=tp) == pytest.approx(1000 * 61 * 576)
    alone, split = (total(operators("deepseek-v3", tp), decodes(16, 1000), "flops", tp=tp) for tp in (1, 8))
    repeated = 2 * 16 * (61 * 7168 * (1536 + 576) + 58 * 7168 * 256)  # compressions and router
    assert 8 * split - alone == pytest.approx(7 * repeated, rel=1e-9)
    # With an index of 128 channels a key, 2048 rows are read and the new one is written.
    for context in (2048, 131_072):
        read = more("deepseek-v3.2", NOTHING, decodes(1, context), "hbm_bytes", DECODE, FP8, tp=8)
        assert read == pytest.approx(61 * (2048 + 1) * 576)
    keys = more("deepseek-v3.2", short, long, "hbm_bytes", OperatorFamily.INDEX, FP8, tp=8)
    assert keys == pytest.approx(1000 * 61 * 128)


def test_a_prompt_multiplies_every_weight_a_token_uses_twice() -> None:
    # 37 G active parameters without the embedding table; attention over 1 key and the draft head are apart.
    parts = linear_parameters_by_part(load_llm("deepseek-v3"))
    used = sum(parts.values()) - parts[Part.EXPERTS] * (1 - 8 / 256) + 129280 * 7168 + 58 * 256 * 7168
    attended = total(operators("deepseek-v3"), prompt(1), "flops", OperatorFamily.ATTENTION_PREFILL)
    found = total(operators("deepseek-v3"), prompt(1), "flops") - attended
    assert found == pytest.approx(2 * used, rel=1e-9)
    assert used == pytest.approx(37e9, rel=0.03)


def test_an_eagle3_head_fuses_three_layers_once_and_reads_two_vectors() -> None:
    """Shapes of llama_eagle3.py in vLLM: fc 3 h to h, q, k and v of 2 h, a head of 32,000 words."""
    drafting = draft_operators(load_draft("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), H100, BF16, Parallelism())
    parts = (drafting.first, drafting.layers, drafting.head)
    shapes = [[(one.n, one.k) for one in some if isinstance(one, MatrixProduct)] for some in parts]
    layer = [(6144.0, 8192.0), (4096.0, 4096.0), (28672.0, 4096.0), (4096.0, 14336.0)]
    assert shapes == [[(4096.0, 12288.0), *layer], layer, [(32000.0, 4096.0)]]


class TestGpu:
    """Peaks, formats and links of a SKU."""

    def test_ridge_point_of_h100_is_the_quotient_of_its_datasheet_peaks(self) -> None:
        # 989.4 TFLOP/s / 3.35 TB/s = 295 FLOP/B: the number every H100 roofline plot shows.
        assert ridge_point_flops_per_byte(H100, Dtype.BF16) == pytest.approx(295.3, abs=0.1)

    @pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
    def test_kv_heads_are_split_and_then_replicated(self, tp: int, kv_heads: int) -> None:
        assert GroupedQueryAttention(heads=64, kv_heads=8, head_dim=128).kv_heads_per_gpu(tp) == kv_heads

    def test_fp8_runs_on_fp8_units_where_there_are_some_else_in_16_bit(self) -> None:
        assert compute_dtype(Dtype.FP8, H100) is Dtype.FP8
        assert compute_dtype(Dtype.FP8_BLOCK, H100) is Dtype.FP8
        assert compute_dtype(Dtype.FP8, HARDWARE.skus["a100-sxm-80gb"]) is Dtype.BF16
        assert half_precision(HARDWARE.skus["t4"]) is Dtype.FP16

    @pytest.mark.parametrize(
        ("sku", "multiplied"),
        [
            ("h100-sxm", {"bf16", "fp8", "int8"}),  # no 4-bit units and none for blocks of 32
            ("b200-sxm", {"bf16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"}),  # NVIDIA Blackwell Tuning Guide
            ("mi355x", {"bf16", "fp8", "int8", "mxfp8", "mxfp4"}),  # CDNA 4 ISA: scales are powers of two per 32 values
            ("mi300x", {"bf16", "fp8", "int8"}),
            ("a100-sxm-80gb", {"bf16", "int8"}),
        ],
    )
    def test_formats_that_matrix_units_multiply(self, sku: str, multiplied: set[str]) -> None:
        asked = ("bf16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4")
        assert {name for name in asked if HARDWARE.skus[sku].multiplies(Dtype(name))} == multiplied

    @pytest.mark.parametrize(
        ("sku", "weights", "activations", "kernel"),
        [
            ("b200-sxm", "nvfp4", "nvfp4", "nvfp4"),
            ("h100-sxm", "nvfp4", "nvfp4", "nvfp4_wo"),  # Hopper unpacks them: Marlin
            ("mi355x", "nvfp4", "nvfp4", "nvfp4_wo"),
            ("mi355x", "mxfp4", "mxfp4", "mxfp4"),
            ("h100-sxm", "mxfp4", "mxfp8", "mxfp4_wo"),
            ("b200-sxm", "mxfp4", "mxfp8", "mxfp4_fp8"),
            ("h100-sxm", "mxfp4", "fp8", "mxfp4_wo"),  # vLLM issue 42284: dequantised to 16 bit
            ("h100-sxm", "int4", "fp8", "int4_fp8"),
            ("a100-sxm-80gb", "fp8_block", "fp8", "fp8_block_wo"),
            ("h100-sxm", "fp8_token", "fp8_token", "fp8_token"),
            ("h100-sxm", "int4_g32", "bf16", "int4_g32_wo"),
        ],
    )
    def test_kernels_by_formats(self, sku: str, weights: str, activations: str, kernel: str) -> None:
        precision = Precision(weights=Dtype(weights), activations=Dtype(activations))
        found = step_operators(load_llm("llama-3.1-8b"), HARDWARE.skus[sku], precision, Parallelism())
        products = [one for one in found if isinstance(one, MatrixProduct) and one.family is OperatorFamily.QKV]
        assert {product.fit_keys[0] for product in products} == {f"gemm/{kernel}"}
        assert {product.dtype for product in products} == {WEIGHT_FORMATS[kernel].arithmetic}

    def test_every_format_has_kernels_to_fall_back_on(self) -> None:
        assert set(WEIGHT_FORMATS) == set(GEMM_FALLBACKS)
        for name, relatives in GEMM_FALLBACKS.items():
            assert (relatives[0], relatives[-1]) == (name, "bf16")
            assert set(relatives) <= set(WEIGHT_FORMATS)

    def test_tensor_parallelism_over_nodes_sums_inside_and_across(self) -> None:
        """By hand: a ring of 8 over NVLink beside each GPU's eighth between 2 servers over its own NIC."""
        split = Parallelism(tp=16, across_domains=True)
        found = step_operators(load_llm("llama-3.1-405b"), H100, BF16, split)
        sums = [one for one in found if isinstance(one, NetworkCollective) and one.family is OperatorFamily.ALL_REDUCE]
        assert len(found) == len(operators("llama-3.1-405b", tp=8))
        assert (sums[0].domain_gpus, sums[0].domains) == (8, 2)
        inside, across = 2 * 7 / 8 / 450e9, 2 * 1 / 2 / 8 / 50e9
        load = Load.of(decodes(100, 1), split)
        ideal_s = operator_seconds(sums[0], load, CalibratedGpu(H100), sums[0].link_bytes_per_s) / sums[0].count
        assert ideal_s == pytest.approx(100 * 16_384 * 2 * max(inside, across))

    def test_tensor_parallelism_over_nodes_is_refused_unless_it_is_meant(self) -> None:
        with pytest.raises(InputError, match="h100-sxm has at most 8 GPUs in one fast domain"):
            operators("llama-3.1-405b", tp=16)
        with pytest.raises(InputError, match="must fill domains of 8 GPUs"):
            step_operators(load_llm("llama-3.1-405b"), H100, BF16, Parallelism(tp=12, across_domains=True))
        rack = step_operators(load_llm("llama-3.1-405b"), HARDWARE.skus["gb200-nvl72"], BF16, Parallelism(tp=16))
        assert {one.gpus for one in rack if isinstance(one, Collective)} == {16}

    def test_links_switch_mesh_host_and_network(self) -> None:
        assert link_bandwidth_bytes_per_s(H100, 8) == 450e9
        assert link_bandwidth_bytes_per_s(H100, 16) == H100.node.nic_bytes_per_s_per_gpu.value
        mi300x = HARDWARE.skus["mi300x"]  # 7 links of 64 GB/s: a pair has one of them
        assert link_bandwidth_bytes_per_s(mi300x, 2) == pytest.approx(64e9)
        assert link_bandwidth_bytes_per_s(mi300x, 8) == pytest.approx(448e9)
        l40s = HARDWARE.skus["l40s"]  # no NVLink: PCIe 4.0 x16
        assert link_bandwidth_bytes_per_s(l40s, 4) == 32e9
        nvl72 = HARDWARE.skus["gb200-nvl72"]  # one domain of 72
        assert link_bandwidth_bytes_per_s(nvl72, 72) == link_bandwidth_bytes_per_s(nvl72, 2)

    def test_an_uncalibrated_operator_takes_its_roofline(self) -> None:
        load = Load.of(decodes(1, 1), Parallelism())
        for one in operators("llama-3.1-8b"):
            work = one.work(load)
            roof = max(work.flops / 989.4e12, work.hbm_bytes / 3.35e12)
            assert operator_seconds(one, load, CalibratedGpu(H100), math.inf) == pytest.approx(
                one.count * roof, rel=1e-3
            )

    def test_a_collective_group_uses_the_fit_nearest_to_its_size(self) -> None:
        nearest = {4: "all_reduce/4", 3: "all_reduce/4", 72: "all_reduce/8"}
        assert {gpus: all_reduce(gpus).fit_keys[0] for gpus in nearest} == nearest

    def test_an_all_reduce_over_more_gpus_than_measured_sends_as_a_longer_ring_does(self) -> None:
        fit = KernelFit(
            parameters={
                "start_s": Coefficient(value=1e-9, low=1e-9, high=1e-9),
                "link_efficiency": Coefficient(value=0.5, low=0.5, high=0.5),
                "order": Coefficient(value=1.0, low=1.0, high=1.0),
            },
            samples=9, held_out=0, median_error=0.0, p90_error=0.0, spread=0.0,
        )  # fmt: skip
        own = {"sku": "gb200-nvl72", "stack": "made up", "fitted_on": date(2026, 11, 22), "source": "made up for this"}
        gpu = CalibratedGpu(HARDWARE.skus["gb200-nvl72"], Calibration(kernels={"all_reduce/4": fit}, **own))

        def seconds(gpus: int) -> float:
            return float(all_reduce(gpus).kernel_s(Load.of(decodes(64, 1), Parallelism()), gpu))

        # Patarasuk and Yuan 2009: 2 (n - 1) / n of the buffer
        assert seconds(8) / seconds(4) == pytest.approx((7 / 8) / (3 / 4), rel=1e-3)
        assert seconds(3) == seconds(4)


@settings(max_examples=50, deadline=None)
@given(
    chunks=st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 8192)), min_size=1, max_size=8),
    ranks=st.integers(1, 4),
)
def test_mean_chunks_keep_every_pair_and_token(chunks: list[tuple[int, int]], ranks: int) -> None:
    """The causal pairs of all chunks, counted one by one, are what the busiest ranks multiply together."""
    pairs = sum(sum(past + i for i in (1, new)) * new / 2 for new, past in chunks)
    load = Load.of(step_shape([], chunks), Parallelism(dp=ranks))
    busy = min(len(chunks), ranks)
    assert busy * load.chunks * (load.new * load.past + load.new * (load.new + 1) / 2) == pytest.approx(pairs)
    assert busy * load.chunks * load.new == pytest.approx(sum(new for new, _ in chunks))
    assert load.group_tokens == pytest.approx(sum(new for new, _ in chunks))
    assert busy * load.chunks * (load.cached + load.new) == pytest.approx(sum(new + past for new, past in chunks))


@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(0, 500),
    context=st.integers(1, 8000),
    chunk=st.integers(0, 8192),
    tp=st.sampled_from([1, 2, 8]),
    model=st.sampled_from(SPECIES),
)
def test_work_is_never_negative_and_grows_with_the_batch(
    number: int, context: int, chunk: int, tp: int, model: str
) -> None:
    found = operators(model, tp)

    def shape(n: float, p: float) -> StepShape:
        return StepShape(n, n * context, p, p * (p + 1) / 2, p, float(p > 0))

    for what in ("flops", "hbm_bytes", "link_bytes"):
        base: Any = total(found, shape(number, chunk), what, tp=tp)
        assert 0.0 <= base <= total(found, shape(number + 1, chunk), what, tp=tp) * (1 + 1e-12)
        assert base <= total(found, shape(number, chunk + 1), what, tp=tp) * (1 + 1e-12)


def test_latent_prefill_takes_the_cheaper_of_its_two_forms() -> None:
    # DeepSeek-V3: 640 FLOPs per head and pair expanded, 2176 absorbed; making keys and values of a cached token costs
    # 2 x 512 x 256 = 262,144 per head. They meet at 262,144 / 1,536 = 170.7 new tokens a chunk after a long past.
    llm = load_llm("deepseek-v3")
    operators = step_operators(llm, HARDWARE.skus["h200-sxm"], llm.native_precision, Parallelism())
    operator = next(one for one in operators if isinstance(one, LatentPrefill))

    def per_pair(new: float, past: float) -> float:
        pairs = new * past + new * (new + 1) / 2
        load = Load.of(StepShape(0.0, 0.0, new, pairs, past + new, 1.0), Parallelism())
        return float(operator.work(load).flops) / (128 * pairs)

    assert per_pair(4096.0, 0.0) == pytest.approx(640)
    assert per_pair(64.0, 1e6) == pytest.approx(2176)
    assert per_pair(512.0, 1e6) == pytest.approx(640 + 262_144 / 512, rel=1e-3)
    assert per_pair(165.0, 1e6) == pytest.approx(2176)
    assert per_pair(176.0, 1e6) < 2176


# --- ridge points ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [Dtype.BF16, Dtype.FP8, Dtype.INT4])
def test_the_closed_form_is_where_a_wide_product_takes_as_long_to_read_as_to_multiply(weights: Dtype) -> None:
    """With 1e6 x 1e6 weights, beside which activations are nothing, both times of the operator are equal there."""
    product = MatrixProduct(OperatorFamily.QKV, Dtype.BF16, 1.0, Driver.TOKENS, 1e6, 1e6, weights, Dtype.BF16)
    tokens = compute_bound_tokens(H100, Dtype.BF16, BYTES_PER_VALUE[weights])
    work = product.work(Load(tokens, tokens, tokens, tokens, 1.0, 0.0, 1.0, 0.0, 0.0))
    compute_s = work.flops / H100.peak_flops_per_s[Dtype.BF16].value
    assert compute_s == pytest.approx(work.hbm_bytes / H100.hbm_bandwidth_bytes_per_s.value, rel=0.005)


def test_half_the_bytes_of_a_weight_halve_the_tokens_and_the_arithmetic_doubles_them() -> None:
    """The closed form is linear in both: H100 fp8 arithmetic is twice bf16 (datasheet), fp8 weights are half."""
    bf16 = compute_bound_tokens(H100, Dtype.BF16, 2.0)
    assert compute_bound_tokens(H100, Dtype.BF16, 1.0) == pytest.approx(bf16 / 2)
    assert compute_bound_tokens(H100, Dtype.FP8, 1.0) == pytest.approx(bf16, rel=1e-3)


class TestTiers:
    """Communication beyond a server against times that were published."""

    @pytest.mark.parametrize(
        ("sku", "domain", "kib_us", "mib_us"),
        [
            ("h200-sxm", 8, 45.06, 76.86),  # RoCE, Dell's notes on OpenShift
            ("b200-sxm", 8, 45.33, 115.58),  # InfiniBand, dstackai/dstack @511c318c8, Lambda
            ("h100-sxm", 8, 31.36, 87.08),  # InfiniBand, the same, Nebius
            ("mi355x", 8, 47.2, 81.37),  # Pollara, hisohara/ai-scripts @7b8b1ec2
            ("gb200-nvl72", 64, 196.95, 291.13),  # two racks, oracle-quickstart/oci-hpc-oke
        ],
    )
    def test_an_all_reduce_over_two_domains_takes_what_nccl_takes(
        self, sku: str, domain: int, kib_us: float, mib_us: float
    ) -> None:
        gpu, family = calibrated(sku), OperatorFamily.ALL_REDUCE
        link, network = gpu.sku.scale_up.bandwidth_bytes_per_s.value, gpu.sku.node.nic_bytes_per_s_per_gpu.value
        operation = "all_reduce", domain, 2, 1.0, link, network
        one = NetworkCollective(family, Dtype.BF16, 1.0, Driver.TOKENS, *operation)
        for size, measured_us in ((2**10, kib_us), (2**20, mib_us)):
            took_us = 1e6 * operator_seconds(one, Load.of(decodes(size, 1), Parallelism()), gpu, link)
            assert took_us == pytest.approx(measured_us, rel=0.6 if measured_us == 31.36 else 0.36)

    def test_a_hop_between_servers_takes_what_two_gpus_on_a_network_take(self) -> None:
        # kubernetes-sigs/dranet @f258477, all-gather over two B200 with a port of 400 Gb/s each: each sends its half.
        gpu, split = calibrated("b200-sxm"), Parallelism(tp=8, pp=4)
        found = step_operators(load_llm("llama-3.1-405b"), gpu.sku, BF16, split)
        hop = next(one for one in found if one.family is OperatorFamily.STAGE_TRANSFER)
        assert isinstance(hop, NetworkCollective)
        assert (hop.count, hop.payload_bytes) == (3.0, 2 * 16_384 * 2)
        for size, measured_us in ((2**16, 22.3), (2**20, 46.45), (2**23, 150.1)):
            load = Load.of(decodes(4 * size // (2 * 16_384 * 2), 1), split)
            took_us = 1e6 * operator_seconds(hop, load, gpu, math.inf) / hop.count
            assert took_us == pytest.approx(measured_us, rel=0.25)
        # Stages of two GPUs: seven hops, one of which leaves the server of eight.
        found = step_operators(load_llm("llama-3.1-70b"), gpu.sku, BF16, Parallelism(tp=2, pp=8))
        assert [one.count for one in found if one.family is OperatorFamily.STAGE_TRANSFER] == [6.0, 1.0]

    @pytest.mark.parametrize(
        ("sku", "gpus", "tokens", "dispatch_us", "combine_us", "within"),
        [
            # deepseek-ai/DeepEP docs/legacy.md @dd758ca, H800 and 400 Gb/s of InfiniBand each
            ("h100-sxm", 16, 128, 118, 195, 0.1),
            ("h100-sxm", 32, 128, 155, 273, 0.1),
            ("h100-sxm", 64, 128, 173, 314, 0.1),
            ("h100-sxm", 256, 128, 194, 360, 0.1),
            ("h100-sxm", 8, 128, 36.9, 67.4, 0.1),  # pull request 425, in a server
            # NVIDIA/TensorRT-LLM @22de8b34, tech blog 18: dispatch with 8-bit values, so half of what it takes in 16
            ("gb200-nvl72", 32, 1024, 0.5 * (197.5 + 18.9), 197.5, 0.15),
        ],
    )
    def test_experts_tokens_are_exchanged_in_the_time_published(
        self, sku: str, gpus: int, tokens: int, dispatch_us: float, combine_us: float, within: float
    ) -> None:
        gpu = calibrated(sku)
        places = gpus, fast_domain_gpus(gpu.sku), gpu.sku.node.gpus, link_bandwidth_bytes_per_s(gpu.sku, gpus)
        for combine, measured_us in ((False, dispatch_us), (True, combine_us)):
            family = OperatorFamily.EXPERT_EXCHANGE
            one = ExpertExchange(family, Dtype.BF16, 1.0, Driver.TOKENS, combine, 7168.0, 8.0, *places)
            load = Load.of(decodes(tokens, 1), Parallelism())
            assert 1e6 * operator_seconds(one, load, gpu, math.inf) == pytest.approx(measured_us, rel=within)

    def test_prompts_send_a_token_once_to_each_server(self) -> None:
        # deepseek-ai/DeepEP pull request 521: 4,096 tokens over 64 H100, 53.5 GB/s of copies for 8 servers in 8 bit.
        places = 64, 8, 8, 50e9
        one = ExpertExchange(
            OperatorFamily.EXPERT_EXCHANGE, Dtype.BF16, 1.0, Driver.TOKENS, False, 7168.0, 8.0, *places
        )
        copies = 4096 * 7168 * (1 + 4 / 128) * 8 * (1 - (7 / 8) ** 8)
        load = Load.of(decodes(4096, 1), Parallelism())
        assert operator_seconds(one, load, calibrated("h100-sxm"), 50e9) == pytest.approx(copies / 53.5e9, rel=0.05)


def calibrated(sku: str) -> CalibratedGpu:
    return CalibratedGpu(HARDWARE.skus[sku], select_calibration(HARDWARE, sku, "sglang"))
