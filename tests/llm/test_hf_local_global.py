"""Families whose windowed and global layers differ: counts against model cards, caches by hand, hostile keys."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import Dtype
from planner.core import InputError, UnsupportedFeatureError
from planner.llm import (
    DenseFeedForward,
    GroupedQueryAttention,
    LlmSpec,
    Part,
    active_parameters,
    load_llm,
    parameters,
    weight_bytes,
)
from planner.llm.sizes import layer_embedding_parameters, mtp_parameters
from tests.configs import Config, preset_config

GEMMA_4_E2B: Config = {
    # Sizes of huggingface.co/google/gemma-4-E2B-it (config.json)
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "num_hidden_layers": 35,
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "vocab_size": 262144,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
_PRO_GLOBAL = (0, 7, 15, 23, 31, 39, 47, 55, 62, 69)
MIMO_V2_5_PRO: Config = {
    # Sizes of the model card, huggingface.co/XiaomiMiMo/MiMo-V2.5-Pro: 70 layers, 60 of them windowed, 1 dense
    "model_type": "mimo_v2",
    "vocab_size": 152576,
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 70,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 128,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "add_swa_attention_sink_bias": True,
    "hybrid_layer_pattern": [0 if layer in _PRO_GLOBAL else 1 for layer in range(70)],
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": [0] + [1] * 69,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 3,
    "max_position_embeddings": 1048576,
    "attention_projection_layout": "fused_qkv",
    "vision_config": {"hidden_size": 1280},
    "audio_config": {"hidden_size": 1024},
}
COMMAND_A: Config = {
    # Sizes of huggingface.co/CohereLabs/c4ai-command-a-03-2025 (config.json)
    "model_type": "cohere2",
    "hidden_size": 12288,
    "num_hidden_layers": 64,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 36864,
    "vocab_size": 256000,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
EXAONE_4_32B: Config = {
    # Sizes of huggingface.co/LGAI-EXAONE/EXAONE-4.0-32B (config.json)
    "model_type": "exaone4",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 27392,
    "vocab_size": 102400,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
}
MINISTRAL_3_8B: Config = {
    # Text part of huggingface.co/mistralai/Ministral-3-8B-Instruct-2512 (config.json)
    "model_type": "mistral3",
    "text_config": {
        "model_type": "ministral3",
        "hidden_size": 4096,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "vocab_size": 131072,
        "max_position_embeddings": 262144,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384},
    },
}


def spec(config: Config, **changes: Any) -> LlmSpec:
    return LlmSpec.from_config({**config, **changes}, name="test")


def preset(id: str, **changes: Any) -> LlmSpec:
    """A preset with changed keys of its language model."""
    config = preset_config(id)
    inner = config.get("text_config")
    return LlmSpec.from_config({**config, "text_config": {**inner, **changes}} if inner else {**config, **changes})


def kinds(llm: LlmSpec) -> dict[bool, GroupedQueryAttention]:
    """The attention of windowed (true) and of global layers."""
    of = {bool(group.attention.window): group.attention for group in llm.layers if is_grouped(group.attention)}
    return dict(of)


def is_grouped(attention: object) -> bool:
    return isinstance(attention, GroupedQueryAttention)


# ------------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    ("llm", "active_b", "within", "source"),
    [
        ("gemma-4-26b-a4b", 3.8, 0.01, "https://ai.google.dev/gemma/docs/core/model_card_4"),
        ("mimo-v2-flash", 15, 0.03, "arXiv:2601.02780, abstract; embeddings counted"),
        ("step-3.7-flash", 11, 0.1, "https://build.nvidia.com/stepfun-ai/step-3.5-flash/modelcard: ~11 B"),
    ],
)
def test_active_parameters_are_the_published_ones(llm: str, active_b: float, within: float, source: str) -> None:
    assert source
    assert active_parameters(load_llm(llm)) == pytest.approx(active_b * 1e9, rel=within)


def test_mimo_v2_5_pro_has_the_trillion_of_its_model_card() -> None:
    pro = spec(MIMO_V2_5_PRO)
    assert parameters(pro) == pytest.approx(1.02e12, rel=0.005)
    assert active_parameters(pro) == pytest.approx(42e9, rel=0.005)
    assert "without the encoders" in pro.source


@pytest.mark.parametrize(
    ("config", "total_b"),
    [(COMMAND_A, 111), (EXAONE_4_32B, 32.0), (MINISTRAL_3_8B, 8.4)],
    ids=["command-a", "exaone-4", "ministral-3"],
)
def test_plainer_relatives_have_their_published_totals(config: Config, total_b: float) -> None:
    """Model cards: 111B (Command A), 32.0B (EXAONE 4.0), 8.4B language model (Ministral 3 8B)."""
    assert parameters(spec(config)) == pytest.approx(total_b * 1e9, rel=0.015)


def test_effective_parameters_of_gemma_4_e2b_leave_out_the_embeddings_of_layers() -> None:
    """Model card of Gemma 4: 2.3 B effective, 5.1 B with embeddings and both encoders."""
    e2b = spec(GEMMA_4_E2B)
    assert active_parameters(e2b) == pytest.approx(2.3e9, rel=0.01)
    assert layer_embedding_parameters(e2b) == 262144 * 35 * 256
    assert parameters(e2b) == active_parameters(e2b) + layer_embedding_parameters(e2b)
    assert parameters(e2b) < 5.1e9 < parameters(e2b) + 0.55e9


def test_a_layer_of_gemma_4_26b_by_hand() -> None:
    """Tensors of a global layer as ``modeling_gemma4.py`` makes them, of 2816 channels."""
    hidden = 2816
    gemma = load_llm("gemma-4-26b-a4b")
    attention = 2 * hidden * 16 * 512 + hidden * 2 * 512 + 2 * 512  # q, o, k; norms of queries and keys
    dense, expert = 3 * hidden * 2112, 3 * hidden * 704
    small = 7 * hidden + hidden + 128 + 128 * hidden  # seven norms, scales before the router and of experts, router
    local = 2 * hidden * 16 * 256 + 2 * hidden * 8 * 256 + 2 * 256
    layer = dense + 128 * expert + small
    expected = 262144 * hidden + 25 * (local + layer) + 5 * (attention + layer) + hidden
    assert parameters(gemma) == expected


def test_mtp_modules_of_mimo_are_windowed_layers_with_a_dense_block() -> None:
    """Model card of MiMo-V2.5, which has the layers of V2-Flash: 329M parameters a module, three of them."""
    mimo = load_llm("mimo-v2-flash")
    assert mimo.mtp_layers == 3
    assert mtp_parameters(mimo) / 3 == pytest.approx(329e6, rel=0.005)
    assert mimo.mtp is not None
    assert isinstance(mimo.mtp.feed_forward, DenseFeedForward)
    assert isinstance(mimo.mtp.attention, GroupedQueryAttention)
    assert (mimo.mtp.attention.window, mimo.mtp.attention.sinks) == (128, True)


# ------------------------------------------------------------------------------------------------ caches


# ------------------------------------------------------------------------------------------------ kinds of layers


def test_dense_block_beside_the_experts_is_in_16_bit_where_only_experts_are_quantised() -> None:
    """The list of nvidia/Gemma-4-26B-A4B-NVFP4 leaves attention, dense blocks and routers of every layer alone."""
    layers = [f"model.language_model.layers.{layer}.{part}*" for layer in range(30) for part in ("mlp", "self_attn")]
    quantised = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        "ignore": ["lm_head", *layers],
    }
    gemma = LlmSpec.from_config({**preset_config("gemma-4-26b-a4b"), "quantization_config": quantised})
    precision = gemma.native_precision
    assert precision.of(Part.EXPERTS) == (Dtype.NVFP4, Dtype.NVFP4)
    assert precision.of(Part.SHARED_EXPERTS) == precision.of(Part.ATTENTION) == (Dtype.BF16, Dtype.BF16)
    experts = 30 * 128 * 3 * 2816 * 704
    assert weight_bytes(gemma, precision) == pytest.approx(
        weight_bytes(load_llm("gemma-4-26b-a4b"), load_llm("gemma-4-26b-a4b").native_precision)
        - experts * (2.0 - 0.5625)
    )


def test_experts_of_mimo_v2_5_pro_fp4_are_mxfp4_and_output_projections_16_bit() -> None:
    """``store_dtype`` of XiaomiMiMo/MiMo-V2.5-Pro-FP4-DFlash; the modules' own projection is named, too."""
    quantised = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
        "store_dtype": "mxfp4",
        "mxfp4_block_size": 32,
        "ignored_layers": [
            *(f"model.layers.{layer}.self_attn.o_proj" for layer in range(70)),
            "model.decoder.self_attn.o_proj",
        ],
    }
    precision = spec(MIMO_V2_5_PRO, quantization_config=quantised).native_precision
    assert precision.of(Part.EXPERTS)[0] is Dtype.MXFP4
    assert precision.of(Part.ATTENTION)[0] is Dtype.FP8_BLOCK
    assert precision.of(Part.ATTENTION_OUTPUT)[0] is Dtype.BF16
    with pytest.raises(UnsupportedFeatureError, match="store_dtype"):
        spec(MIMO_V2_5_PRO, quantization_config={**quantised, "store_dtype": "int3"})


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GEMMA_4_E2B, {"num_kv_shared_layers": 35}, "must be below num_hidden_layers = 35"),
        (GEMMA_4_E2B, {"num_kv_shared_layers": 33}, "have none of a kind that shares one"),
        (MIMO_V2_5_PRO, {"hybrid_layer_pattern": [2] * 70}, "entries are 0 or 1"),
        (MIMO_V2_5_PRO, {"moe_layer_freq": None}, "moe_layer_freq"),
        (EXAONE_4_32B, {"sliding_window_pattern": "LGLG"}, "run of local layers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(config: Config, changes: Config, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        spec(config, **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (GEMMA_4_E2B, {"use_bidirectional_attention": "all"}),
        (GEMMA_4_E2B, {"per_layer_config": {"3": {"head_dim": 128}}}),
        (MIMO_V2_5_PRO, {"n_shared_experts": 1}),
        ({"model_type": "gemma3n_text", "hidden_size": 2048}, {}),
    ],
)
def test_what_would_change_a_count_is_refused_by_name(config: Config, changes: Config) -> None:
    with pytest.raises(UnsupportedFeatureError):
        spec(config, **changes)


def test_step_refuses_other_attention_and_lists_that_are_none() -> None:
    with pytest.raises(UnsupportedFeatureError, match="att_impl_type"):
        preset("step-3.7-flash", att_impl_type="MFA")
    with pytest.raises(InputError, match="layer numbers with commas"):
        preset("step-3.7-flash", moe_layers_enum="3,4,x")
