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
    MoeFeedForward,
    Part,
    active_parameters,
    kv_bytes_per_token,
    load_llm,
    parameters,
    weight_bytes,
)
from planner.llm.sizes import layer_embedding_parameters, mtp_parameters
from tests.configs import Config, kv_window_bytes, preset_config
from tests.places import SHARED

GEMMA_4_E2B: Config = preset_config("gemma-4-e2b")
GEMMA_4_E4B: Config = preset_config("gemma-4-e4b")
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
MINISTRAL_3_8B: Config = preset_config("ministral-3-8b")


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


def test_the_two_tables_of_step_are_what_its_publisher_does_not_call_active() -> None:
    step = load_llm("step-3.7-flash")
    tables = 2 * 128896 * 4096
    assert active_parameters(step) - tables == pytest.approx(11e9, rel=0.01)


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


def test_gemma_4_e4b_is_within_three_per_cent_of_its_rounded_effective_size() -> None:
    """Model card: 4.5 B effective, 8 B with embeddings and both encoders."""
    e4b = spec(GEMMA_4_E4B)
    assert active_parameters(e4b) == pytest.approx(4.5e9, rel=0.035)
    assert parameters(e4b) < 8e9 < parameters(e4b) + 0.6e9


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


def test_mtp_modules_of_step_are_dense() -> None:
    """Model card of Step-3.5-Flash: 0.81 B in three modules; their heads on logits are copies and not counted here."""
    step = load_llm("step-3.7-flash")
    assert step.mtp is not None
    assert step.mtp.feed_forward == DenseFeedForward(intermediate=11264)
    assert mtp_parameters(step) == pytest.approx(0.81e9, rel=0.05)


def test_cache_of_gemma_4_26b_by_hand() -> None:
    """Five global layers of 2 heads with 512 channels, keys and values both kept; 25 windows of 8 heads of 256."""
    gemma = load_llm("gemma-4-26b-a4b")
    assert kv_bytes_per_token(gemma, Dtype.BF16) == 5 * 2 * (512 + 512) * 2
    assert kv_window_bytes(gemma, Dtype.BF16, 100_000) == 25 * 8 * (256 + 256) * 1024 * 2
    assert kv_window_bytes(gemma, Dtype.FP8, 1000) == 25 * 8 * (256 + 256) * 1000


def test_cache_of_mimo_v2_flash_by_hand() -> None:
    """Nine global layers of 4 heads, 39 windows of 128 tokens with 8 heads; keys of 192 and values of 128 channels."""
    mimo = load_llm("mimo-v2-flash")
    assert kv_bytes_per_token(mimo, Dtype.BF16) == 9 * 4 * (192 + 128) * 2
    assert kv_window_bytes(mimo, Dtype.BF16, 262_144) == 39 * 8 * (192 + 128) * 128 * 2


def test_layers_that_share_a_cache_add_none() -> None:
    """Gemma 4 E2B: of the 15 layers with a cache three are global, of one head."""
    e2b = spec(GEMMA_4_E2B)
    assert kv_bytes_per_token(e2b, Dtype.BF16) == 3 * 1 * (512 + 512) * 2
    assert kv_window_bytes(e2b, Dtype.BF16, 10_000) == 12 * 1 * (256 + 256) * 512 * 2
    alone = spec(GEMMA_4_E2B, num_kv_shared_layers=0, use_double_wide_mlp=False)
    assert kv_bytes_per_token(alone, Dtype.BF16) == 7 * (512 + 512) * 2


def test_keys_of_step_may_be_those_of_transformers() -> None:
    names = {
        "num_attention_groups": "num_key_value_heads",
        "moe_num_experts": "num_experts",
        "moe_top_k": "num_experts_per_tok",
    }
    own = preset_config("step-3.7-flash")["text_config"]
    theirs = {names.get(key, key): value for key, value in own.items() if key != "moe_layers_enum"}
    theirs |= {"attention_other_setting": None, "num_sliding_attention_heads": 96, "first_k_dense_replace": 3}
    assert spec(theirs).layers == spec(own).layers


def test_lists_of_transformers_say_the_same_of_mimo() -> None:
    own = preset_config("mimo-v2-flash")
    words = {0: ("full_attention", "dense"), 1: ("sliding_attention", "sparse")}
    theirs = {key: value for key, value in own.items() if key not in ("hybrid_layer_pattern", "moe_layer_freq")}
    theirs["layer_types"] = [words[entry][0] for entry in own["hybrid_layer_pattern"]]
    theirs["mlp_layer_types"] = [words[entry][1] for entry in own["moe_layer_freq"]]
    assert spec(theirs).layers == spec(own).layers


def test_null_in_a_text_part_is_not_the_default_of_its_family() -> None:
    """Mistral Small 3.1: ``sliding_window`` null is no window, not the 4096 of ``MistralConfig``."""
    text = {key: value for key, value in MINISTRAL_3_8B["text_config"].items() if key != "rope_parameters"}
    small = spec(MINISTRAL_3_8B, text_config=text | {"model_type": "mistral"})
    assert kv_bytes_per_token(small, Dtype.BF16) == 34 * 2 * 8 * 128 * 2
    assert spec(GEMMA_4_E2B, hidden_size_per_layer_input=None).layer_embedding is None


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


def test_patterns_of_exaone_as_text_and_as_layers_agree() -> None:
    named = (["sliding_attention"] * 3 + ["full_attention"]) * 16
    assert spec(EXAONE_4_32B, layer_types=named).layers == spec(EXAONE_4_32B).layers
    smaller = spec(EXAONE_4_32B, sliding_window=None, sliding_window_pattern=None)
    assert [group.count for group in smaller.layers] == [64]


def test_ministral_takes_the_scaled_context_of_its_text_part() -> None:
    assert spec(MINISTRAL_3_8B).max_context_tokens == 262_144


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


@pytest.mark.skipif(not SHARED.exists(), reason="the collection of configs lies beside some checkouts only")
@pytest.mark.parametrize(
    ("file", "total_b"),
    [
        ("google--gemma-4-26B-A4B", 25.2),
        ("nvidia--Gemma-4-26B-A4B-NVFP4", 25.2),
        ("XiaomiMiMo--MiMo-V2-Flash", 309),
        ("stepfun-ai--Step-3.7-Flash", 196),
        ("XiaomiMiMo--MiMo-7B-Base", 7.6),
        ("openai--gpt-oss-120b", 116.83),
    ],
)
def test_published_configs_load_with_their_totals(file: str, total_b: float) -> None:
    llm = load_llm(SHARED / "reference" / "models_2026" / f"{file}.json")
    assert parameters(llm) == pytest.approx(total_b * 1e9, rel=0.01)
    assert any(isinstance(group.feed_forward, MoeFeedForward) for group in llm.layers) == (file[-4:] != "Base")
