"""Weights of one GPU: published sizes, cases worked by hand, sums over stages."""

from __future__ import annotations

import pytest

from planner.engine import Speculation
from planner.engine.weights import rotary_bytes, stage_weights_bytes
from planner.llm import LlmSpec, Precision, load_llm, parameters, pipeline_stages, weight_bytes
from planner.llm.sizes import mtp_parameters
from planner.roofline import Parallelism
from tests.builders import FP8, HARDWARE, replica, weights_bytes_per_gpu
from tests.llm.test_hf_local_global import GEMMA_4_E2B

MXFP4_BYTES = 4.25 / 8
"""Of a value: 4 bits and a scale of 8 bits to 32 values (OCP Microscaling Formats 1.0)."""


def test_fp8_checkpoint_of_llama_70b_is_72_7_gb() -> None:
    # 68.45 G linear weights at 1 B + 2 * 1.05 G embedding and head weights and norms at 2 B = 72.66 GB
    assert weight_bytes(load_llm("llama-3.3-70b-instruct"), FP8) == pytest.approx(72.66e9, rel=1e-3)


def test_replicated_kv_projections_are_counted() -> None:
    config = replica("qwen3-30b-a3b", tp=8)  # 4 KV heads of 128: at TP 8 each GPU holds one, twice the even share
    even = weight_bytes(config.llm, Precision()) / 8
    extra = 48 * 2 * (1 - 4 / 8) * 128 * 2048 * 2
    assert weights_bytes_per_gpu(config) - rotary_bytes(config) == pytest.approx(even + extra, rel=1e-12)


class TestRotaryTable:
    """Cosines and sines of every position, in 16 bits: `cos_sin_cache` of vLLM."""

    @pytest.mark.parametrize(
        ("model", "values"),
        [
            ("llama-3.1-8b", 131_072 * 128),
            ("gpt-oss-120b", 131_072 * 64),  # one head size in both kinds of layer: one table
            ("deepseek-v3", 163_840 * 64),  # only the rotated channels of a latent row
            ("gemma-4-26b-a4b", 262_144 * (256 + 512)),  # heads of windowed and of global layers
        ],
    )
    def test_it_is_context_times_channels(self, model: str, values: int) -> None:
        assert rotary_bytes(replica(model, HARDWARE.skus["b300-sxm"])) == 2 * values

    def test_learned_positions_need_none(self) -> None:
        config = replica()
        learned = config.llm.model_copy(update={"learned_positions": 2048})
        assert rotary_bytes(config.model_copy(update={"llm": learned})) == 0.0


class TestExpertPadding:
    """gpt-oss-120b: 36 layers of 128 experts, three matrices of 2880 x 2880 each, in MXFP4."""

    EXPERTS = 36 * 128 * 3

    def rest_bytes(self, sku: str) -> float:
        """What is not in routed experts, in 16 bits, and the table of positions."""
        config = replica("gpt-oss-120b", HARDWARE.skus[sku])
        return 2.0 * (parameters(config.llm) - self.EXPERTS * 2880**2) + 2 * 131_072 * 64

    def weights_bytes(self, sku: str, version: str | None) -> float:
        config = replica("gpt-oss-120b", HARDWARE.skus[sku], engine_version=version)
        return weights_bytes_per_gpu(config.model_copy(update={"precision": config.llm.native_precision}))

    @pytest.mark.parametrize("version", ["0.14", "0.22.0", None])
    def test_since_0_14_matrices_on_hopper_are_3072_by_2944(self, version: str | None) -> None:
        padded = self.EXPERTS * 3072 * 2944 * MXFP4_BYTES
        found = self.weights_bytes("h200-sxm", version)
        assert found == pytest.approx(self.rest_bytes("h200-sxm") + padded, rel=1e-9)
        assert found / 2**30 == pytest.approx(65.9, abs=0.05)
        assert found / 2**30 == pytest.approx(66.14, rel=0.01)  # log of vLLM 0.22.0 on H200 (s036)

    def test_before_only_the_rows_of_the_down_projection_are_padded_so_far(self) -> None:
        # gate and up: 5888 rows that read 2944 channels; down: 3072 rows that read 2944
        padded = 36 * 128 * 2944 * (5888 + 3072) * MXFP4_BYTES
        assert self.weights_bytes("h200-sxm", "0.11.0") == pytest.approx(self.rest_bytes("h200-sxm") + padded, rel=1e-9)

    def test_blackwell_pads_both_sides_to_3072(self) -> None:
        padded = self.EXPERTS * 3072**2 * MXFP4_BYTES
        assert self.weights_bytes("b200-sxm", None) == pytest.approx(self.rest_bytes("b200-sxm") + padded, rel=1e-9)

    def test_other_formats_are_not_padded(self) -> None:
        config = replica("gpt-oss-120b", HARDWARE.skus["b300-sxm"])  # in 16 bits
        whole = 2.0 * parameters(config.llm) + rotary_bytes(config)
        assert weights_bytes_per_gpu(config) == pytest.approx(whole, rel=1e-9)


class TestDeepSeekV3:
    """671 G parameters, 61 layers with a latent row of 576 values (arXiv:2412.19437, sec. 4.2)."""

    SPLIT = Parallelism(tp=8, ep=8)
    DATA = Parallelism(dp=8, ep=8)

    def test_fp8_weights_are_an_eighth_of_671_gb_and_what_every_gpu_repeats(self) -> None:
        found = weights_bytes_per_gpu(replica("deepseek-v3", precision=FP8, parallelism=self.SPLIT))
        # compressions repeated on 8 GPUs; embeddings and head of 129280 x 7168 in 16 bit, a byte more than counted
        repeated = 7 / 8 * 61 * 7168 * (1536 + 576)
        assert found == pytest.approx((671e9 + 2 * 129280 * 7168) / 8 + repeated, rel=0.005)

    def test_attention_ranks_repeat_attention_and_share_experts(self) -> None:
        config = replica("deepseek-v3", precision=FP8, parallelism=self.DATA)
        experts = 58 * 256 * 3 * 7168 * 2048
        whole = weight_bytes(load_llm("deepseek-v3"), FP8)
        expected = experts / 8 + whole - experts
        assert weights_bytes_per_gpu(config) - rotary_bytes(config) == pytest.approx(expected, rel=1e-9)

    def test_drafting_loads_the_prediction_module(self) -> None:
        plain, drafting = (
            replica("deepseek-v3", precision=FP8, speculation=speculation)
            for speculation in (None, Speculation(draft_tokens=1, acceptance=0.8))
        )
        more = weights_bytes_per_gpu(drafting) - weights_bytes_per_gpu(plain)
        matrices = 187_105_280 + 257 * 3 * 7168 * 2048
        in_16_bit = mtp_parameters(load_llm("deepseek-v3")) - matrices
        assert more == pytest.approx(matrices + 2 * in_16_bit, rel=0.001)

    def test_a_rank_of_r1_on_four_gpus_holds_183_gb(self) -> None:
        """671 GB of weights, attention and embeddings four times."""
        llm = load_llm("deepseek-r1")
        config = replica("deepseek-r1", HARDWARE.skus["gb200-nvl72"], parallelism=Parallelism(dp=4, ep=4))
        config = config.model_copy(update={"precision": llm.native_precision})
        assert weights_bytes_per_gpu(config) == pytest.approx(183e9, rel=0.01)


class TestStages:
    """What the stages of a pipeline hold, against sums over layers."""

    @pytest.mark.parametrize("pp", [2, 4])
    def test_stages_hold_a_share_of_the_layers_and_the_outer_ones_a_table(self, pp: int) -> None:
        one, staged = (replica("llama-3.1-70b", precision=FP8, parallelism=Parallelism(pp=n)) for n in (1, pp))
        table, positions = 128_256 * 8192 * 2, rotary_bytes(one)
        layers = weights_bytes_per_gpu(one) - positions - 2 * table
        assert weights_bytes_per_gpu(staged) == pytest.approx(layers / pp + table + positions, rel=1e-6)

    @pytest.mark.parametrize(
        "model", ["llama-3.1-8b", "deepseek-r1", "qwen3-235b-a22b", "gpt-oss-120b", "qwen3-next-80b-a3b-thinking"]
    )
    @pytest.mark.parametrize("pp", [1, 2, 3, 8])
    def test_stages_together_hold_the_model(self, model: str, pp: int) -> None:
        """In formats that no kernel pads."""
        llm = load_llm(model)
        formats = Precision() if model == "gpt-oss-120b" else llm.native_precision
        config = replica(model, precision=formats, parallelism=Parallelism(pp=pp))
        stages = pipeline_stages(llm, pp, config.engine.spare_layers)
        held = sum(stage_weights_bytes(config, stage) - rotary_bytes(config) for stage in stages)
        norms = (pp - 1) * 2 * llm.hidden_size  # `parameters` counts the final norm, which only the last stage has
        assert held == pytest.approx(weight_bytes(llm, formats) + norms, rel=1e-9)

    def test_tied_embeddings_are_in_the_last_stage_too(self) -> None:
        # vLLM, gemma3.py and llama.py: embed_tokens on the first rank, and on the last where it is the head.
        llm = load_llm("gemma-3-27b-it")
        config = replica("gemma-3-27b-it", parallelism=Parallelism(pp=2))
        held = sum(stage_weights_bytes(config, stage) - rotary_bytes(config) for stage in pipeline_stages(llm, 2))
        table = 2 * llm.vocab_size * llm.hidden_size
        assert held == pytest.approx(weight_bytes(llm, Precision()) + table, rel=1e-6)


def test_projections_to_vectors_that_all_heads_or_experts_share_are_on_every_gpu() -> None:
    # Kimi-K3 over 8 GPUs: 69 delta layers, 24 latent ones, the first of 93 dense, experts in MXFP4 (2 x 384 rows that
    # read 3584 channels and 3584 that read 384: multiples of what kernels want).
    h, wide = 7168, 96 * 128
    split = 69 * (5 * wide * h + 96 * h + 128 * wide) + 24 * (1536 * 96 * 192 + 512 * 96 * 256 + 2 * h * wide)
    split += 3 * 33_792 * h + 92 * 3 * 2 * 3072 * h + 2 * 163_840 * h
    whole = 69 * 128 * h + 24 * (1536 + 576) * h + 92 * 2 * 3584 * h
    experts = 92 * 896 * 17_547_264
    llm = load_llm("kimi-k3").model_copy(update={"encoder": None})
    config = replica("kimi-k3", tp=8).model_copy(update={"llm": llm, "precision": llm.native_precision})
    small = 92 * 896 * h / 8 * 2  # routers, counted with what is small; norms and convolutions are below 0.1 %
    expected = 2 * (split / 8 + whole) + experts / 8 + small + rotary_bytes(config)
    assert weights_bytes_per_gpu(config) == pytest.approx(expected, rel=1e-3)


class TestLocalAndGlobalLayers:
    """Windowed and global layers with KV heads and head sizes of their own."""

    def test_projections_of_gemma_4_repeat_on_the_gpus_that_share_a_head(self) -> None:
        """26B-A4B over 4 GPUs: a global layer's 2 KV heads stand on two GPUs each, key projection once per head."""
        hidden = 2816
        alone, four = (replica("gemma-4-26b-a4b", HARDWARE.skus["h200-sxm"], tp) for tp in (1, 4))
        positions = rotary_bytes(alone)
        twice = 5 * hidden * 2 * 512 * (1 / 2 - 1 / 4)
        vision = weights_bytes_per_gpu(alone) - positions - 2 * parameters(alone.llm)
        apart = weights_bytes_per_gpu(four) - positions - 2 * (parameters(four.llm) / 4 + twice)
        assert 0.0 <= apart <= vision  # of the vision encoder, split or whole

    def test_the_table_of_layer_embeddings_is_in_memory(self) -> None:
        e2b = LlmSpec.from_config(GEMMA_4_E2B)
        config = replica().model_copy(update={"llm": e2b})
        expected = 2 * parameters(e2b) + rotary_bytes(config)
        assert weights_bytes_per_gpu(config) == pytest.approx(expected)


def test_a_format_of_half_the_bits_halves_the_layers_alone() -> None:
    sixteen, eight = (replica("llama-3.1-8b", precision=formats) for formats in (Precision(), FP8))
    layers = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14_336 * 4096)
    assert weights_bytes_per_gpu(sixteen) - weights_bytes_per_gpu(eight) == pytest.approx(layers, rel=1e-9)
