"""Families beyond plain decoders: layers against papers and checkpoints, tensor-by-tensor recounts, hostile configs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_db import Dtype
from planner.core import InputError, PlannerError, UnsupportedFeatureError
from planner.llm import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    PartPrecision,
    Precision,
    StateSpace,
    active_parameters,
    kv_bytes_per_token,
    kv_window_bytes,
    linear_parameters,
    load_llm,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.attention import SparseIndex
from planner.llm.layers import Attention
from planner.llm.sizes import index_bytes_per_token, linear_parameters_by_part, mtp_parameters
from tests.configs import Config, preset_config

Tensors = Iterator[tuple[str, tuple[int, ...]]]

GLM_5: Config = {
    # huggingface.co/zai-org/GLM-5-FP8 as in github.com/ai-dynamo/aiconfigurator (model_configs)
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "intermediate_size": 12288,
    "vocab_size": 154880,
    "max_position_embeddings": 202752,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
}
NEMOTRON_3_NANO: Config = {
    # huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, config.json
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "mamba_head_dim": 64,
    "mamba_num_heads": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_hidden_layers": 52,
    "tie_word_embeddings": False,
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 131072,
}


def attentions(llm: LlmSpec) -> list[tuple[int, Attention | None]]:
    return [(group.count, group.attention) for group in llm.layers]


# ------------------------------------------------------------------------------------------ one layer of each kind


def test_latent_attention_of_deepseek_v3() -> None:
    # DeepSeek-AI 2024, arXiv:2412.19437, sec. 4.2: 128 heads of 128, query rank 1536, KV rank 512, 64 with position.
    dense, sparse = load_llm("deepseek-v3").layers
    v3 = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    assert dense.attention == sparse.attention == v3
    assert (dense.count, sparse.count) == (3, 58)
    assert sparse.feed_forward == MoeFeedForward(
        experts=256, experts_per_token=8, intermediate=2048, router_bias=True, shared_intermediate=2048
    )
    by_hand = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert v3.weights(7168) == by_hand == 187_105_280
    assert sparse.feed_forward.parts(7168)[Part.SHARED_EXPERTS] == 3 * 7168 * 2048


def test_full_query_projection_of_latent_attention() -> None:
    # DeepSeek-V2-Lite: 16 heads, no compression of queries (arXiv:2405.04434, appendix B).
    lite = LatentAttention(heads=16, query_rank=0, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    by_hand = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert lite.weights(2048) == by_hand
    config = {key: value for key, value in preset_config("deepseek-v3").items() if key != "quantization_config"}
    config |= {"model_type": "deepseek_v2", "q_lora_rank": None, "num_nextn_predict_layers": 0}
    lite_like = LlmSpec.from_config(config)
    assert "q_proj" in lite_like.layers[0].attention.matrices(7168)
    moe = lite_like.layers[1].feed_forward
    assert isinstance(moe, MoeFeedForward)
    assert not moe.router_bias


def test_deepseek_v2_lite_is_counted_as_published() -> None:
    # huggingface.co/deepseek-ai/DeepSeek-V2-Lite, config.json; model card: 15.7 B, 2.4 B active.
    config = {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 102400,
        "max_position_embeddings": 163840,
    }
    llm = LlmSpec.from_config(config)
    assert parameters(llm) == pytest.approx(15.7e9, rel=0.005)
    assert active_parameters(llm) == pytest.approx(2.66e9, rel=0.01)  # 2.4 B and the 0.21 B of the input embeddings


def test_sparse_index_of_deepseek_v3_2() -> None:
    llm, v3 = load_llm("deepseek-v3.2"), load_llm("deepseek-v3")
    attention = llm.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.index == SparseIndex(heads=64, head_dim=128, top_k=2048)
    by_hand = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128  # wq_b, wk, weights_proj, LayerNorm of the keys
    assert parameters(llm) - parameters(v3) == 61 * by_hand
    assert index_bytes_per_token(llm) == 61 * 132
    assert kv_bytes_per_token(llm, Dtype.BF16) == 70_272 + 61 * 132


def test_glm_5_is_counted_as_published() -> None:
    llm = LlmSpec.from_config(GLM_5)
    assert parameters(llm) == pytest.approx(744e9, rel=0.01)  # huggingface.co/zai-org/GLM-5: 744 B, 40 B active
    assert active_parameters(llm) == pytest.approx(40e9, rel=0.05)
    attention = llm.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.index == SparseIndex(heads=32)


def test_gated_delta_net_of_qwen3_next() -> None:
    linear, full = load_llm("qwen3-next-80b-a3b-thinking").layers
    net = LinearAttention(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_kernel=4)
    assert (linear.count, full.count) == (36, 12)
    assert linear.attention == net
    # in_proj_qkvz [12288, 2048], in_proj_ba [64, 2048], out_proj [2048, 4096] of the checkpoint
    assert net.weights(2048) == 12288 * 2048 + 64 * 2048 + 2048 * 4096
    assert isinstance(full.attention, GroupedQueryAttention)
    assert full.attention.output_gate
    matrices = full.attention.matrices(2048)
    assert [matrices[name] for name in ("q_proj", "k_proj", "v_proj")] == [(2048, 8192), (2048, 512), (2048, 512)]
    assert matrices["o_proj"] == (4096, 2048)


def test_dense_hybrid_of_qwen3_5_is_counted_as_named() -> None:
    # config.json of huggingface.co/Qwen/Qwen3.5-27B
    text = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
    }
    llm = LlmSpec.from_config({"model_type": "qwen3_5", "tie_word_embeddings": False, "text_config": text})
    assert parameters(llm) == pytest.approx(27e9, rel=0.01)
    assert [group.count for group in llm.layers] == [48, 16]
    assert mtp_parameters(llm) > 0


@pytest.mark.parametrize(
    ("alias", "preset"),
    [("qwen3_vl_text", "qwen3-8b"), ("qwen3_vl_moe_text", "qwen3-30b-a3b"), ("mimo", "qwen2.5-7b")],
)
def test_families_that_repeat_another(alias: str, preset: str) -> None:
    assert LlmSpec.from_config(preset_config(preset) | {"model_type": alias}).layers == load_llm(preset).layers


def test_state_space_of_nemotron() -> None:
    llm = LlmSpec.from_config(NEMOTRON_3_NANO)
    mamba, experts, attention = llm.layers
    assert (mamba.count, experts.count, attention.count) == (23, 23, 6)  # model card: 23 Mamba-2 and MoE, 6 attention
    assert mamba.attention == StateSpace(heads=64, head_dim=64, state_size=128, groups=8, conv_kernel=4)
    assert (mamba.feed_forward, experts.attention, attention.feed_forward) == (None, None, None)
    assert mamba.attention.matrices(2688) == {"in_proj": (2688, 10304), "out_proj": (4096, 2688)}
    assert parameters(llm) == 31_577_940_288  # general.parameter_count of the converted checkpoint
    assert active_parameters(llm) == pytest.approx(3.6e9, rel=0.01)  # technical report: 3.6 B with embeddings


def test_nemotron_layers_named_in_words_are_the_same() -> None:
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    pattern = NEMOTRON_3_NANO["hybrid_override_pattern"]
    named = {key: value for key, value in NEMOTRON_3_NANO.items() if key != "hybrid_override_pattern"}
    named["layers_block_type"] = [words[letter] for letter in pattern]
    assert LlmSpec.from_config(named) == LlmSpec.from_config(NEMOTRON_3_NANO)


def test_dense_nemotron_is_counted_as_published() -> None:
    # huggingface.co/nvidia/Nemotron-H-8B-Base-8K, config.json; arXiv:2504.03624, table 1: 8 B, 24 of each, 4 attention.
    config = {key: value for key, value in NEMOTRON_3_NANO.items() if "expert" not in key and key != "head_dim"}
    config |= {
        "hidden_size": 4096,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "intermediate_size": 21504,
        "mamba_num_heads": 128,
        "num_key_value_heads": 8,
        "attention_head_dim": 128,
    }
    llm = LlmSpec.from_config(config)
    assert parameters(llm) == pytest.approx(8.1e9, rel=0.005)
    dense = [group.feed_forward for group in llm.layers if group.feed_forward is not None]
    assert dense == [DenseFeedForward(intermediate=21504, gated=False)]
    assert [group.count for group in llm.layers] == [24, 24, 4]


def test_windows_and_sinks_of_gpt_oss() -> None:
    # OpenAI 2025, arXiv:2508.10925, sec. 2.2: 64 heads of 64, 8 KV heads, window 128 in every other layer.
    local, full = load_llm("gpt-oss-120b").layers
    assert (local.count, full.count) == (18, 18)
    gqa = GroupedQueryAttention(heads=64, kv_heads=8, head_dim=64, qkv_bias=True, output_bias=True, sinks=True)
    assert full.attention == gqa
    assert local.attention == gqa.model_copy(update={"window": 128})


def test_windows_of_gemma() -> None:
    # Gemma Team 2024, arXiv:2408.00118, sec. 2; 2025, arXiv:2503.19786, sec. 2: five local layers to one global.
    local, full = load_llm("gemma-2-27b-it").layers
    assert [(g.count, g.attention.window) for g in (local, full) if isinstance(g.attention, GroupedQueryAttention)] == [
        (23, 4096),
        (23, 0),
    ]
    local, full = load_llm("gemma-3-27b-it").layers
    assert [(g.count, g.attention.window) for g in (local, full) if isinstance(g.attention, GroupedQueryAttention)] == [
        (52, 1024),
        (10, 0),
    ]
    assert load_llm("gemma-3-27b-it").max_context_tokens == 131_072  # model card: 128k


def test_chunks_and_interleaved_experts_of_llama_4() -> None:
    # Model card and configuration of Llama 4: chunks of 8192 but in every 4th layer; experts in every 2nd of Maverick.
    maverick, scout = (load_llm(f"llama-4-{name}-instruct") for name in ("maverick-17b-128e", "scout-17b-16e"))
    shapes = {
        (group.attention.chunked, group.attention.window, isinstance(group.feed_forward, MoeFeedForward)): group.count
        for group in maverick.layers
        if isinstance(group.attention, GroupedQueryAttention)
    }
    assert shapes == {(True, 8192, False): 24, (True, 8192, True): 12, (False, 0, True): 12}
    assert [group.count for group in scout.layers] == [36, 12]
    positions = [1, 1, 1, 0] * 12
    assert (
        LlmSpec.from_config(with_text(preset_config("llama-4-scout-17b-16e-instruct"), no_rope_layers=positions))
        == scout
    )


def with_text(config: Config, **changes: Any) -> Config:
    """A multimodal config with changes in its language model."""
    return config | {"text_config": config["text_config"] | changes}


# ------------------------------------------------------------------------------------------ caches and states


@pytest.mark.parametrize(
    ("llm", "kept", "windowed_at_100k"),
    [
        ("deepseek-v3", 61 * 576 * 2, 0),  # 70 272 B: DeepSeek-AI 2024, arXiv:2405.04434, sec. 2.1.4
        ("kimi-k2-instruct", 61 * 576 * 2, 0),
        ("mistral-7b-v0.1", 0, 32 * 2 * 8 * 128 * 2 * 4096),
        ("gpt-oss-120b", 18 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2 * 128),
        ("gemma-3-27b-it", 10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2 * 1024),
        ("llama-4-scout-17b-16e-instruct", 12 * 2 * 8 * 128 * 2, 36 * 2 * 8 * 128 * 2 * 8192),
        ("qwen3-next-80b-a3b-thinking", 12 * 2 * 2 * 256 * 2, 0),
        ("qwen3.5-397b-a17b", 15 * 2 * 2 * 256 * 2, 0),
        ("llama-3.1-8b", 131_072, 0),
    ],
)
def test_cache_bytes(llm: str, kept: int, windowed_at_100k: int) -> None:
    spec = load_llm(llm)
    assert kv_bytes_per_token(spec, Dtype.BF16) == kept
    assert kv_window_bytes(spec, Dtype.BF16, 100_000) == windowed_at_100k
    assert kv_window_bytes(spec, Dtype.FP8, 100_000) == windowed_at_100k / 2


def test_windowed_cache_grows_to_the_window_and_no_further() -> None:
    llm = load_llm("mistral-7b-v0.1")
    per_token = 32 * 2 * 8 * 128 * 2
    for tokens in (0, 1, 4095, 4096, 4097, 10**6):
        assert kv_window_bytes(llm, Dtype.BF16, tokens) == per_token * min(tokens, 4096)
    with pytest.raises(InputError, match=r"context_tokens = -1: must not be negative\. Fix: give the tokens"):
        kv_window_bytes(llm, Dtype.BF16, -1)


def test_states_are_constant_and_only_where_there_is_recurrence() -> None:
    assert state_bytes(load_llm("deepseek-v3")) == 0
    qwen3_5 = 45 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)
    assert state_bytes(load_llm("qwen3.5-397b-a17b")) == qwen3_5
    # shapes (3, 6144) and (64, 64, 128) of vLLM's Mamba-2 cache for these sizes
    assert state_bytes(LlmSpec.from_config(NEMOTRON_3_NANO)) == 23 * (3 * 6144 * 2 + 64 * 64 * 128 * 4)


# ------------------------------------------------------------------------------------------ parts and modules


def test_parts_of_deepseek_v3() -> None:
    llm = load_llm("deepseek-v3")
    assert linear_parameters_by_part(llm) == {
        Part.ATTENTION: 61 * (187_105_280 - 16384 * 7168),
        Part.ATTENTION_OUTPUT: 61 * 16384 * 7168,
        Part.FEED_FORWARD: 3 * 3 * 7168 * 18432,
        Part.EXPERTS: 58 * 256 * 3 * 7168 * 2048,
        Part.SHARED_EXPERTS: 58 * 3 * 7168 * 2048,
    }
    # safetensors.parameters of huggingface.co/api/models/deepseek-ai/DeepSeek-V3: F8_E4M3, the MTP layer included
    module = 187_105_280 + 257 * 3 * 7168 * 2048
    assert linear_parameters(llm) + module == 680_571_043_840


def test_prediction_modules_are_apart() -> None:
    llm = load_llm("deepseek-v3")
    assert llm.mtp == llm.layers[1].model_copy(update={"count": 1})
    assert mtp_parameters(llm) == pytest.approx(11.5e9, rel=0.015)  # README_WEIGHTS.md of github.com/deepseek-ai
    none = LlmSpec.from_config(preset_config("deepseek-v3") | {"num_nextn_predict_layers": 0})
    assert mtp_parameters(none) == 0
    assert parameters(none) == parameters(llm)
    two = LlmSpec.from_config(preset_config("deepseek-v3") | {"num_nextn_predict_layers": 2})
    assert mtp_parameters(two) == 2 * mtp_parameters(llm)
    with pytest.raises(InputError, match="mtp_layers = 2: needs the decoder layer of a module"):
        LlmSpec(**none.model_dump() | {"mtp_layers": 2})


@pytest.mark.parametrize(("llm", "gibibytes"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_checkpoint_size_of_gpt_oss(llm: str, gibibytes: float) -> None:
    spec = load_llm(llm)  # OpenAI 2025, arXiv:2508.10925, table 1
    assert weight_bytes(spec, spec.native_precision) / 2**30 == pytest.approx(gibibytes, abs=0.05)


def test_parts_have_their_own_bytes() -> None:
    llm = load_llm("deepseek-v3")
    attention = linear_parameters_by_part(llm)[Part.ATTENTION] + linear_parameters_by_part(llm)[Part.ATTENTION_OUTPUT]
    fp8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)
    exception = PartPrecision(part=Part.ATTENTION, weights=Dtype.BF16, activations=Dtype.BF16)
    head = PartPrecision(part=Part.LM_HEAD, weights=Dtype.FP8, activations=Dtype.FP8)
    whole = weight_bytes(llm, fp8)
    assert weight_bytes(llm, fp8.model_copy(update={"parts": (exception,)})) == whole + attention
    assert weight_bytes(llm, fp8.model_copy(update={"parts": (head,)})) == whole - 129_280 * 7168
    tied = load_llm("gemma-2-27b-it")
    assert weight_bytes(tied, fp8.model_copy(update={"parts": (head,)})) == weight_bytes(tied, fp8)


def test_formats_of_parts() -> None:
    exception = PartPrecision(part=Part.EXPERTS, weights=Dtype.MXFP4, activations=Dtype.BF16)
    precision = Precision(weights=Dtype.FP8, activations=Dtype.FP8, parts=(exception,))
    assert precision.of(Part.EXPERTS) == (Dtype.MXFP4, Dtype.BF16)
    assert precision.of(Part.ATTENTION) == (Dtype.FP8, Dtype.FP8)
    assert precision.of(Part.LM_HEAD) == (Dtype.BF16, Dtype.BF16)
    assert Precision(weights=Dtype.FP16, activations=Dtype.FP16).of(Part.LM_HEAD) == (Dtype.FP16, Dtype.FP16)
    with pytest.raises(InputError, match=r"parts = 'experts, experts': names a part twice"):
        Precision(parts=(exception, exception))


def test_shapes_refuse_what_contradicts_itself() -> None:
    with pytest.raises(InputError, match="window = 0: chunked attention needs the length of a chunk"):
        GroupedQueryAttention(heads=8, kv_heads=8, head_dim=16, chunked=True)
    with pytest.raises(InputError, match="query_rank = 0: the sparse index reads the compressed query"):
        LatentAttention(
            heads=1, query_rank=0, kv_rank=1, nope_dim=1, rope_dim=1, value_dim=1, index=SparseIndex(heads=1)
        )
    with pytest.raises(InputError, match="key_heads = 3: must divide value_heads = 8"):
        LinearAttention(key_heads=3, value_heads=8, key_dim=1, value_dim=1, conv_kernel=4)
    with pytest.raises(InputError, match="shared_gate = True: there is no shared expert to weigh"):
        MoeFeedForward(experts=4, experts_per_token=1, intermediate=8, shared_gate=True)
    with pytest.raises(InputError, match="a layer needs attention, a feed-forward block or both"):
        LayerGroup(count=1, attention=None, feed_forward=None)


# ------------------------------------------------------------------------------------------ wrappers


def test_encoders_of_a_wrapper_that_are_not_modelled_are_left_out_and_named() -> None:
    llm = LlmSpec.from_config({**preset_config("gemma-3-27b-it"), "vision_config": None})
    assert llm.source.endswith("; the language model only, without the encoders of gemma3")
    text = preset_config("gemma-3-27b-it")["text_config"]
    alone = LlmSpec.from_config(text)
    assert alone.layers == llm.layers
    assert parameters(alone) == parameters(llm)
    assert "encoders" not in alone.source


def test_class_defaults_fill_what_gemma_3_leaves_out() -> None:
    # config.json of huggingface.co/google/gemma-3-4b-it names no heads and no vocabulary; arXiv:2503.19786, table 1:
    # 675 M embedding and 3209 M other parameters.
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    llm = LlmSpec.from_config({"model_type": "gemma3", "text_config": text})
    assert parameters(llm) == pytest.approx(675e6 + 3209e6, rel=0.005)


# ------------------------------------------------------------------------------------------ tensor-by-tensor recount


def matrix(name: str, rows: int, columns: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def tensors(config: Config) -> int:
    """Values of all tensors of a checkpoint, as the checkpoints of these families name them."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in checkpoint(config):
        assert name not in found
        found[name] = shape
    return sum(math.prod(shape) for shape in found.values())


def checkpoint(config: Config) -> Tensors:
    hidden, vocab, kind = config["hidden_size"], config["vocab_size"], config["model_type"]
    yield "embed_tokens.weight", (vocab, hidden)
    yield "norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", kind.startswith("gemma")):
        yield "lm_head.weight", (vocab, hidden)
    norms = ["input", "post_attention"] + (["pre_feedforward", "post_feedforward"] if "gemma" in kind else [])
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        for norm in norms:
            yield f"{at}.{norm}_layernorm.weight", (hidden,)
        yield from attention_tensors(config, layer)
        yield from feed_forward_tensors(config, layer)


def attention_tensors(config: Config, layer: int) -> Tensors:
    kind, hidden, heads, at = (
        config["model_type"],
        config["hidden_size"],
        config["num_attention_heads"],
        f"{layer}.attn",
    )
    if "kv_lora_rank" in config:
        yield from latent_tensors(config, at)
    elif config.get("full_attention_interval") and (layer + 1) % config["full_attention_interval"]:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        value_heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
        values = value_heads * value_dim
        yield from matrix(f"{at}.in_proj_qkvz", 2 * keys + 2 * values, hidden)
        yield from matrix(f"{at}.in_proj_ba", 2 * value_heads, hidden)
        yield f"{at}.conv1d.weight", (2 * keys + values, 1, config["linear_conv_kernel_dim"])
        yield f"{at}.dt_bias", (value_heads,)
        yield f"{at}.A_log", (value_heads,)
        yield f"{at}.norm.weight", (value_dim,)
        yield from matrix(f"{at}.out_proj", hidden, values)
    else:
        head, kv = config["head_dim"], config["num_key_value_heads"]
        bias = config.get("attention_bias", kind == "gpt_oss") or kind == "qwen2_moe"
        queries = heads * head * (2 if "full_attention_interval" in config else 1)
        yield from matrix(f"{at}.q_proj", queries, hidden, bias)
        yield from matrix(f"{at}.k_proj", kv * head, hidden, bias)
        yield from matrix(f"{at}.v_proj", kv * head, hidden, bias)
        yield from matrix(f"{at}.o_proj", hidden, heads * head, bias and kind not in ("glm4_moe", "qwen2_moe"))
        if kind in ("gemma3_text", "qwen3_next") or config.get("use_qk_norm"):
            yield f"{at}.q_norm.weight", (head,)
            yield f"{at}.k_norm.weight", (head,)
        if kind == "gpt_oss":
            yield f"{at}.sinks", (heads,)


def latent_tensors(config: Config, at: str) -> Tensors:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
    query = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    if rank:
        yield from matrix(f"{at}.q_a_proj", rank, hidden)
        yield f"{at}.q_a_layernorm.weight", (rank,)
        yield from matrix(f"{at}.q_b_proj", heads * query, rank)
    else:
        yield from matrix(f"{at}.q_proj", heads * query, hidden)
    yield from matrix(f"{at}.kv_a_proj_with_mqa", config["kv_lora_rank"] + config["qk_rope_head_dim"], hidden)
    yield f"{at}.kv_a_layernorm.weight", (config["kv_lora_rank"],)
    spread = heads * (config["qk_nope_head_dim"] + config["v_head_dim"])
    yield from matrix(f"{at}.kv_b_proj", spread, config["kv_lora_rank"])
    yield from matrix(f"{at}.o_proj", hidden, heads * config["v_head_dim"])


def feed_forward_tensors(config: Config, layer: int) -> Tensors:
    kind, hidden, at = config["model_type"], config["hidden_size"], f"{layer}.mlp"
    if kind in ("gemma2", "gemma3_text") or layer < config.get("first_k_dense_replace", 0):
        yield from gated(at, hidden, config["intermediate_size"])
        return
    if kind == "llama4_text":
        if (layer + 1) % config["interleave_moe_layer_step"]:
            yield from gated(at, hidden, config["intermediate_size_mlp"])
            return
        experts, size, shared = config["num_local_experts"], config["intermediate_size"], config["intermediate_size"]
    elif kind == "gpt_oss":
        experts, size, shared = config["num_local_experts"], config["intermediate_size"], 0
        yield f"{at}.router.bias", (experts,)
        yield f"{at}.experts.gate_up_proj_bias", (experts, 2 * size)
        yield f"{at}.experts.down_proj_bias", (experts, hidden)
    elif "n_routed_experts" in config:
        experts, size = config["n_routed_experts"], config["moe_intermediate_size"]
        shared = config["n_shared_experts"] * size
        if kind != "deepseek_v2":
            yield f"{at}.gate.e_score_correction_bias", (experts,)
    else:
        experts, size = config["num_experts"], config["moe_intermediate_size"]
        shared = config["shared_expert_intermediate_size"]
        yield f"{at}.shared_expert_gate.weight", (1, hidden)
    yield from matrix(f"{at}.gate", experts, hidden)
    for expert in range(experts):
        yield from gated(f"{at}.experts.{expert}", hidden, size)
    if shared:
        yield from gated(f"{at}.shared_expert", hidden, shared)


def gated(at: str, hidden: int, size: int) -> Tensors:
    for name in ("gate_proj", "up_proj"):
        yield from matrix(f"{at}.{name}", size, hidden)
    yield from matrix(f"{at}.down_proj", hidden, size)


KINDS = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "gemma2", "gemma3_text", "gpt_oss", "llama4_text")


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Small valid configs of the families with latent, windowed, chunked or linear attention."""
    kind = draw(st.sampled_from((*KINDS, "qwen2_moe", "qwen3_next")))
    small, kv, experts = st.integers(1, 6), draw(st.integers(1, 3)), draw(st.integers(2, 5))
    config: Config = {
        "model_type": kind,
        "num_attention_heads": kv * draw(st.integers(1, 3)),
        "num_key_value_heads": kv,
        "head_dim": draw(small),
        "hidden_size": draw(small),
        "num_hidden_layers": draw(small),
        "vocab_size": draw(small),
        "max_position_embeddings": draw(st.integers(1, 64)),
        "intermediate_size": draw(small),
        "num_experts_per_tok": draw(st.integers(1, experts)),
    }
    if draw(st.booleans()):
        config["tie_word_embeddings"] = draw(st.booleans())
    if kind in ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe"):
        config |= {"n_routed_experts": experts, "moe_intermediate_size": draw(small), "n_shared_experts": draw(small)}
        config["first_k_dense_replace"] = draw(st.integers(0, 3))
    if kind in ("deepseek_v2", "deepseek_v3", "kimi_k2"):
        latent = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        config |= {key: draw(small) for key in latent}
        config["q_lora_rank"] = draw(st.none() | small)
    if kind == "glm4_moe":
        config |= {"attention_bias": draw(st.booleans()), "use_qk_norm": draw(st.booleans())}
    if kind in ("gpt_oss", "llama4_text"):
        config["num_local_experts"] = experts
    if kind == "llama4_text":
        config |= {"interleave_moe_layer_step": draw(st.integers(1, 3)), "intermediate_size_mlp": draw(small)}
        config["attention_chunk_size"] = draw(small)
    if kind in ("qwen2_moe", "qwen3_next"):
        config |= {"num_experts": experts, "moe_intermediate_size": draw(small)}
        config["shared_expert_intermediate_size"] = draw(small)
    if kind == "qwen3_next":
        names = ("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "linear_num_key_heads")
        config |= {key: draw(small) for key in names}
        config["linear_num_value_heads"] = config["linear_num_key_heads"] * draw(st.integers(1, 3))
        config["full_attention_interval"] = draw(st.integers(1, 4))
    return config


@given(configs())
def test_parameters_are_the_sum_over_all_tensors(config: Config) -> None:
    llm = LlmSpec.from_config(config)
    assert parameters(llm) == tensors(config)
    assert llm.num_layers == config["num_hidden_layers"]
    assert weight_bytes(llm, Precision()) == 2 * parameters(llm)
    assert active_parameters(llm) <= parameters(llm)


@given(configs(), st.integers(0, 200))
def test_caches_never_exceed_those_of_full_attention(config: Config, tokens: int) -> None:
    llm = LlmSpec.from_config(config)
    whole = 2 * config["num_key_value_heads"] * config["head_dim"] * 2 * config["num_hidden_layers"]
    cache = tokens * kv_bytes_per_token(llm, Dtype.BF16) + kv_window_bytes(llm, Dtype.BF16, tokens)
    if "kv_lora_rank" in config:
        whole = (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * 2 * config["num_hidden_layers"]
        assert cache == tokens * whole
    assert 0 <= cache <= tokens * whole
    assert (state_bytes(llm) > 0) == any(isinstance(kind, LinearAttention) for _, kind in attentions(llm))


SIZES = st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=3) | st.lists(st.integers(-1, 3), max_size=4)


@given(st.data())
def test_damaged_configs_give_a_spec_or_a_refusal(data: st.DataObject) -> None:
    config = data.draw(configs() | st.sampled_from([GLM_5, NEMOTRON_3_NANO, preset_config("gpt-oss-20b")]))
    keys = (*config, "layer_types", "no_rope_layers", "moe_layers", "attn_output_gate", "num_nextn_predict_layers")
    damage = data.draw(st.dictionaries(st.sampled_from(keys), SIZES, max_size=3))
    try:
        llm = load_llm(config | damage)
    except PlannerError as error:
        assert "\n" not in str(error)
        return
    assert 0 < active_parameters(llm) <= parameters(llm)
    assert 0 <= mtp_parameters(llm) < math.inf
    assert 0 <= kv_bytes_per_token(llm, Dtype.FP8) + state_bytes(llm) < math.inf


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            preset_config("deepseek-v3.2") | {"index_topk_freq": 4},
            "index_topk_freq = 4: a sparse attention index shared between layers",
        ),
        (GLM_5 | {"index_kpool": 4}, "a sparse attention index over pooled keys"),
        (GLM_5 | {"attention_bias": True}, "attention_bias = True: biases of latent attention are not modelled"),
        (NEMOTRON_3_NANO | {"use_bias": True}, "use_bias = True: only false is modelled"),
        (NEMOTRON_3_NANO | {"hybrid_override_pattern": "M" * 51 + "X"}, r"has layers other than M, \*, - and E"),
        (preset_config("gpt-oss-20b") | {"layer_types": ["chunked_attention"] * 24}, "chunked attention"),
    ],
)
def test_variants_of_other_shapes_are_refused(config: Config, complaint: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=complaint):
        LlmSpec.from_config(config)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            NEMOTRON_3_NANO | {"hybrid_override_pattern": "M*"},
            "must have one letter for each of num_hidden",
        ),
        (
            preset_config("gpt-oss-20b") | {"layer_types": ["full_attention"]},
            "must have one entry for each of",
        ),
        (
            with_text(preset_config("llama-4-scout-17b-16e-instruct"), no_rope_layers=[1]),
            r"config\.text_config\.no_rope_layers = '1 entries': must have one entry for each",
        ),
        (
            preset_config("qwen3-next-80b-a3b-thinking") | {"linear_num_key_heads": 5},
            "linear_num_key_heads = 5: must divide linear_num_value_heads = 32",
        ),
        ({**GLM_5, "kv_lora_rank": None}, r"config\.kv_lora_rank = '\(missing\)'"),
        (
            preset_config("deepseek-v3") | {"num_nextn_predict_layers": -1},
            "num_nextn_predict_layers = -1: must be",
        ),
    ],
)
def test_malformed_configs(config: Config, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        LlmSpec.from_config(config)
    assert not isinstance(caught.value, UnsupportedFeatureError)


def test_reading_a_config_of_a_folder_reads_the_wrapper_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(preset_config("gemma-3-27b-it")), encoding="utf-8")
    assert load_llm(tmp_path).layers == load_llm("gemma-3-27b-it").layers
