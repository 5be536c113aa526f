"""Families of decoders, read from their configs: layers as published, and what is refused."""

from __future__ import annotations

import pytest

from planner.core import InputError, UnsupportedFeatureError
from planner.llm import (
    DenseFeedForward,
    GroupedQueryAttention,
    LlmSpec,
    MoeFeedForward,
    active_parameters,
    load_llm,
    parameters,
)
from tests.configs import Config, preset_config, with_text

NEMOTRON_3_NANO = preset_config("nvidia-nemotron-3-nano-30b-a3b-bf16")
GLM_5 = preset_config("glm-5")


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


def test_dense_hybrid_of_qwen3_5_is_counted_as_named() -> None:
    llm = load_llm("qwen3.5-27b")
    assert parameters(llm) == pytest.approx(27e9, rel=0.01)
    assert [group.count for group in llm.layers] == [48, 16]


@pytest.mark.parametrize(
    ("alias", "preset"),
    [("qwen3_vl_text", "qwen3-8b"), ("qwen3_vl_moe_text", "qwen3-30b-a3b"), ("mimo", "qwen2.5-7b")],
)
def test_families_that_repeat_another(alias: str, preset: str) -> None:
    assert LlmSpec.from_config(preset_config(preset) | {"model_type": alias}).layers == load_llm(preset).layers


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
            preset_config("deepseek-v3") | {"num_nextn_predict_layers": -1},
            "num_nextn_predict_layers = -1: must be",
        ),
    ],
)
def test_malformed_configs(config: Config, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        LlmSpec.from_config(config)
    assert not isinstance(caught.value, UnsupportedFeatureError)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"word_embed_proj_dim": 512}, "projected embeddings are not modelled"),  # OPT-350m
        ({"do_layer_norm_before": False}, "do_layer_norm_before = False: only true is modelled"),  # OPT-350m
        ({"enable_bias": False}, "enable_bias = False: only true is modelled"),  # Galactica
        ({"_remove_final_layer_norm": True}, "_remove_final_layer_norm = True: only false is modelled"),
    ],
)
def test_opt_variants_of_other_shapes_are_refused(changes: Config, complaint: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=complaint):
        LlmSpec.from_config(preset_config("opt-13b") | changes)
