"""Operator work against published formulas, limits and invariants."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_db import Calibration, Coefficient, Dtype, KernelFit, load_hardware
from planner.core import InputError
from planner.engine.replica import step_shape
from planner.llm import BYTES_PER_VALUE, GroupedQueryAttention, Part, Precision, load_draft, load_llm
from planner.llm.sizes import linear_parameters_by_part
from planner.roofline import (
    CalibratedGpu,
    Driver,
    Load,
    Operator,
    OperatorFamily,
    Parallelism,
    StepShape,
    compute_bound_tokens,
    compute_dtype,
    draft_operators,
    step_operators,
)
from planner.roofline.gpu import all_reduce_link_bytes, half_precision, link_bandwidth_bytes_per_s
from planner.roofline.kernel_forms import WEIGHT_FORMATS
from planner.roofline.latent import LatentPrefill
from planner.roofline.operators import GEMM_FALLBACKS, Collective, MatrixProduct

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

    def test_prefill_flops_are_two_per_weight_and_token_plus_attention(self) -> None:
        # Narayanan et al. 2021, appendix: forward pass = 2 * weights * tokens + 4 * layers * hidden * pairs.
        tokens = 2048
        layer_weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
        head = 4096 * 128256  # logits of the last position only
        attention = 4 * 32 * 4096 * tokens * (tokens + 1) / 2
        expected = 2 * layer_weights * tokens + 2 * head + attention
        assert total(operators("llama-3.1-8b"), prompt(tokens), "flops") == pytest.approx(expected, rel=1e-12)

    def test_decode_attention_reads_the_published_kv_bytes_per_token(self) -> None:
        # Llama-3.1-70B keeps 327,680 bytes of KV per token in bf16 (80 layers * 2 * 8 heads * 128 * 2).
        found = operators("llama-3.1-70b", tp=1)
        far, near = (total(found, decodes(4, c), "hbm_bytes", OperatorFamily.ATTENTION_DECODE) for c in (1001, 1))
        assert far - near == pytest.approx(4 * 1000 * 327_680, rel=1e-12)

    @pytest.mark.parametrize("tp", [2, 4, 8])
    def test_tensor_parallel_conserves_flops(self, tp: int) -> None:
        shape = step_shape([1000] * 16, [(512, 0)])
        alone = total(operators("llama-3.1-70b"), shape, "flops")
        assert tp * total(operators("llama-3.1-70b", tp), shape, "flops") == pytest.approx(alone, rel=1e-12)

    def test_tensor_parallel_beyond_the_kv_heads_stops_saving_kv_traffic(self) -> None:
        def kv_traffic(tp: int) -> float:  # Qwen3-30B-A3B has 4 KV heads
            found = operators("qwen3-30b-a3b", tp)
            far, near = (total(found, decodes(8, c), "hbm_bytes", OperatorFamily.ATTENTION_DECODE) for c in (1001, 1))
            return far - near

        assert kv_traffic(4) == pytest.approx(kv_traffic(1) / 4)
        assert kv_traffic(8) == kv_traffic(4)

    def test_two_all_reduces_a_layer_and_one_of_the_embedding(self) -> None:
        # Shoeybi et al. 2019, Megatron-LM, sec. 3: two in the forward pass of a layer.
        sent = total(operators("llama-3.1-8b", 8), decodes(16, 100), "link_bytes", OperatorFamily.ALL_REDUCE)
        assert sent == pytest.approx((2 * 32 + 1) * 1.75 * 16 * 4096 * 2)

    def test_int4_weights_cut_weight_traffic_and_keep_16_bit_arithmetic(self) -> None:
        found = operators("llama-3.1-8b", precision=Precision(weights=Dtype.INT4))
        dense = [one for one in found if one.family is OperatorFamily.FEED_FORWARD]
        assert {one.dtype for one in dense} == {Dtype.BF16}
        empty = StepShape(0.0, 0.0)
        weights = total(found, empty, "hbm_bytes", OperatorFamily.FEED_FORWARD)
        assert weights == pytest.approx(32 * 3 * 4096 * 14336 * (0.5 + 2 / 128))


class TestExperts:
    """Routed experts: whose weights are read, who sees which tokens."""

    def test_mixtral_one_token_reads_two_experts_and_a_large_batch_all_of_them(self) -> None:
        found = operators("mixtral-8x7b-v0.1")
        one_expert = 32 * 3 * 4096 * 14336 * 2  # layers * matrices * hidden * intermediate * bytes
        few = total(found, decodes(1, 1), "hbm_bytes", OperatorFamily.EXPERTS)
        many = total(found, decodes(128, 1), "hbm_bytes", OperatorFamily.EXPERTS)
        assert few == pytest.approx(2 * one_expert, rel=1e-3)
        assert many == pytest.approx(8 * one_expert, rel=0.05)

    def test_expert_parallel_moves_whole_experts_and_conserves_work(self) -> None:
        shape = decodes(4096, 1)
        tensor = total(operators("deepseek-v3", 8), shape, "flops", OperatorFamily.EXPERTS, tp=8)
        spread = total(operators("deepseek-v3", 8, ep=8), shape, "flops", OperatorFamily.EXPERTS, tp=8, ep=8)
        # 58 layers, 8 visits, 3 matrices of 7168 x 2048
        assert tensor == pytest.approx(2 * 58 * 4096 * 8 * 3 * 7168 * 2048 / 8)
        assert spread == pytest.approx(tensor)

    def test_attention_ranks_share_decodes_but_experts_see_every_token(self) -> None:
        shape, split = decodes(256, 2000), {"dp": 8, "ep": 8}
        found = operators("deepseek-v3", 1, FP8, **split)
        alone = operators("deepseek-v3", 1, FP8)
        ranked = total(found, shape, "flops", OperatorFamily.ATTENTION_DECODE, **split)
        assert ranked == pytest.approx(total(alone, shape, "flops", OperatorFamily.ATTENTION_DECODE) / 8)
        assert Load.of(shape, Parallelism(**split)).group_tokens == 256
        experts = total(found, shape, "flops", OperatorFamily.EXPERTS, **split)
        assert 8 * experts == pytest.approx(total(alone, shape, "flops", OperatorFamily.EXPERTS))

    def test_many_ranks_exchange_tokens_by_all_to_all(self) -> None:
        # DeepSeek-V3, sec. 3.2.2: 8 copies out in fp8 and back in bf16.
        split = {"dp": 32, "ep": 32}
        found = operators("deepseek-v3", 1, FP8, **split)
        sent = total(found, decodes(3200, 1), "link_bytes", OperatorFamily.EXPERT_EXCHANGE, **split)
        assert sent == pytest.approx(58 * 31 / 32 * 100 * 8 * 7168 * (1 + 2))

    def test_experts_that_do_not_divide_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"parallelism.ep = 3: must divide tp \* dp = 8"):
            Parallelism(tp=8, ep=3)


class TestLatent:
    """DeepSeek-V3 (arXiv:2412.19437, sec. 4.2): 61 layers, 128 heads, latent row 512 + 64."""

    @pytest.mark.parametrize("tp", [1, 8])
    def test_absorbed_decode_multiplies_every_head_with_one_row(self, tp: int) -> None:
        found = operators("deepseek-v3", tp)
        far, near = (total(found, decodes(1, c), "flops", OperatorFamily.ATTENTION_DECODE, tp=tp) for c in (1001, 1))
        assert far - near == pytest.approx(1000 * 61 * 2 * 128 / tp * (2 * 512 + 64))

    @pytest.mark.parametrize("tp", [1, 8])
    def test_the_cached_row_is_read_whole_on_every_gpu(self, tp: int) -> None:
        found = operators("deepseek-v3", tp, FP8)
        far, near = (
            total(found, decodes(1, c), "hbm_bytes", OperatorFamily.ATTENTION_DECODE, tp=tp) for c in (1001, 1)
        )
        assert far - near == pytest.approx(1000 * 61 * 576)

    def test_tensor_parallel_repeats_only_compressions_and_router(self) -> None:
        shape = decodes(16, 1000)
        alone, split = (total(operators("deepseek-v3", tp), shape, "flops", tp=tp) for tp in (1, 8))
        repeated = 2 * 16 * (61 * 7168 * (1536 + 576) + 58 * 7168 * 256)
        assert 8 * split - alone == pytest.approx(7 * repeated, rel=1e-9)

    def test_a_prompt_multiplies_every_weight_a_token_uses_twice(self) -> None:
        # 37 G active parameters without the embedding table; attention over 1 key and the draft head are apart.
        llm = load_llm("deepseek-v3")
        parts = linear_parameters_by_part(llm)
        used = sum(parts.values()) - parts[Part.EXPERTS] * (1 - 8 / 256) + 129280 * 7168 + 58 * 256 * 7168
        attended = total(operators("deepseek-v3"), prompt(1), "flops", OperatorFamily.ATTENTION_PREFILL)
        found = total(operators("deepseek-v3"), prompt(1), "flops") - attended
        assert found == pytest.approx(2 * used, rel=1e-9)
        assert used == pytest.approx(37e9, rel=0.03)

    def test_sparse_attention_reads_2048_rows_and_its_index_all_keys(self) -> None:
        found = operators("deepseek-v3.2", 8, FP8)

        def read(context: int, family: OperatorFamily) -> float:
            return total(found, decodes(1, context), "hbm_bytes", family, tp=8)

        attention = [read(context, OperatorFamily.ATTENTION_DECODE) for context in (1024, 2048, 4096, 131_072)]
        assert attention[0] < attention[1] == attention[2] == attention[3]
        assert attention[1] == pytest.approx(61 * (2048 + 1) * 576)
        assert read(10_001, OperatorFamily.INDEX) - read(1, OperatorFamily.INDEX) == pytest.approx(10_000 * 61 * 128)

    def test_an_eagle3_head_fuses_three_layers_once_and_reads_two_vectors(self) -> None:
        """Shapes of llama_eagle3.py in vLLM: fc 3 h to h, q, k and v of 2 h, a head of 32,000 words."""
        head = load_draft("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
        drafting = draft_operators(head, H100, BF16, Parallelism())
        shapes = [
            [(one.n, one.k) for one in some if isinstance(one, MatrixProduct)]
            for some in (drafting.first, drafting.layers, drafting.head)
        ]
        layer = [(6144.0, 8192.0), (4096.0, 4096.0), (28672.0, 4096.0), (4096.0, 14336.0)]
        assert shapes == [[(4096.0, 12288.0), *layer], layer, [(32000.0, 4096.0)]]


class TestWindowsAndStates:
    """Attention that forgets: windows and recurrent states."""

    def test_windowed_layers_read_at_most_the_window(self) -> None:
        # Mistral-7B v0.1: 32 layers, window 4096, 8 KV heads of 128.
        found = operators("mistral-7b-v0.1")
        read = [total(found, decodes(1, c), "hbm_bytes", OperatorFamily.ATTENTION_DECODE) for c in (4096, 8192, 32_768)]
        own = 32 * 2 * (2 * 8 * 128 + 2 * 32 * 128)
        assert read == [pytest.approx(32 * 2 * 8 * 128 * 2 * 4096 + own)] * 3


class TestPipeline:
    """Stages hold layers; micro-batches pass through them."""

    def test_a_gpu_sees_a_micro_batch(self) -> None:
        load = Load.of(decodes(64, 1000), Parallelism(pp=4))
        assert (load.decodes, load.tokens, load.context) == (16, 16, 1000)

    def test_stages_transfer_the_hidden_state(self) -> None:
        sent = total(
            operators("llama-3.1-70b", pp=4), decodes(64, 1), "link_bytes", OperatorFamily.STAGE_TRANSFER, pp=4
        )
        assert sent == pytest.approx(3 * 16 * 8192 * 2)


class TestGpu:
    """Peaks, formats and links of a SKU."""

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
            ("b200-sxm", "mxfp4", "mxfp8", "mxfp4_fp8"),
            ("h100-sxm", "mxfp4", "mxfp8", "mxfp4_wo"),
            ("h100-sxm", "mxfp4", "fp8", "mxfp4_wo"),  # vLLM issue 42284: dequantised to 16 bit
            ("b200-sxm", "mxfp4", "fp8", "mxfp4_fp8"),
            ("h100-sxm", "int4", "fp8", "int4_fp8"),
            ("a100-sxm-80gb", "fp8_block", "fp8", "fp8_block_wo"),
            ("h100-sxm", "fp8_token", "fp8_token", "fp8_token"),
            ("h100-sxm", "int4_g32", "bf16", "int4_g32_wo"),
            ("h100-sxm", "int8", "int8", "int8"),
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

    def test_tensor_parallelism_over_nodes_sums_inside_and_then_across(self) -> None:
        """By hand: ring all-reduce of 8 over NVLink, then each GPU's eighth between 2 nodes over its own NIC."""
        split = Parallelism(tp=16, across_domains=True)
        found = step_operators(load_llm("llama-3.1-405b"), H100, BF16, split)
        sums = [one for one in found if isinstance(one, Collective) and one.family is OperatorFamily.ALL_REDUCE]
        inside, across = sums[0], sums[1]
        assert (inside.gpus, across.gpus) == (8, 2)
        assert (inside.values, across.values) == (16_384.0, 16_384.0 / 8)
        assert (inside.ideal_share, across.ideal_share) == (1.75, 1.0)
        assert (inside.link_bytes_per_s, across.link_bytes_per_s) == (450e9, 50e9)
        one_node = operators("llama-3.1-405b", tp=8)
        assert len(found) == len(one_node) + sum(isinstance(one, Collective) for one in one_node)

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
