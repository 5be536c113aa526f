"""Kimi Linear and K3, Nemotron-H with latent experts, Nemotron-NAS: published counts, and shapes worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hardware_db import Dtype
from planner.core import InputError, UnsupportedFeatureError, preset
from planner.llm import (
    DenseFeedForward,
    GroupedQueryAttention,
    LinearMap,
    LlmSpec,
    Part,
    active_parameters,
    kv_bytes_per_token,
    linear_parameters_by_part,
    load_llm,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.sizes import mtp_parameters

KIMI_K3 = "kimi-k3"
KIMI_LINEAR = "kimi-linear-48b-a3b-instruct"
SUPER = "nvidia-nemotron-3-super-120b-a12b-fp8"
NAS_49B = "llama-3-3-nemotron-super-49b-v1"
NAS_253B = "llama-3-1-nemotron-ultra-253b-v1"
NEMOTRON_3_ULTRA: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 8192,
    "num_hidden_layers": None,  # as published: the list of blocks tells
    "layers_block_type": [*["mamba", "moe"] * 48, *["attention"] * 12],
    "mtp_layers_block_type": ["attention", "moe"],
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 131_072,
    "max_position_embeddings": 262_144,
    "mamba_num_heads": 256,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_routed_experts": 512,
    "num_experts_per_tok": 22,
    "n_shared_experts": 1,
    "moe_intermediate_size": 5120,
    "moe_shared_expert_intermediate_size": 10_240,
    "moe_latent_size": 2048,
}
"""Sizes of https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16 (config.json); blocks by kind."""
NEMOTRON_H_56B = NEMOTRON_3_ULTRA | {
    "num_hidden_layers": 118,
    "layers_block_type": [*["mamba", "mlp"] * 54, *["attention"] * 10],
    "mtp_layers_block_type": None,
    "num_nextn_predict_layers": None,
    "num_key_value_heads": 8,
    "intermediate_size": 32_768,
    "ssm_state_size": 256,
}
"""Sizes of https://huggingface.co/nvidia/Nemotron-H-56B-Base-8K (config.json)."""


# ------------------------------------------------------------------------------------------ published counts


@pytest.mark.parametrize(
    ("llm", "total_b", "active_b"),
    [
        (KIMI_K3, 2780, None),  # arXiv:2607.24653: 2.78T parameters; active: below
        (KIMI_LINEAR, 49.12, None),  # arXiv:2510.26692; its 20 shards hold 49 122 681 728 values
        (SUPER, 120.6, 12.7),  # Nemotron 3 Super technical report: 120.6B total, 12.7B active
        (NEMOTRON_3_ULTRA, 550, None),  # https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16
        (NEMOTRON_H_56B, 56, 56),  # arXiv:2504.03624
        (NAS_49B, 49.87, 49.87),  # https://huggingface.co/nvidia/Llama-3_3-Nemotron-Super-49B-v1
        (NAS_253B, 253, 253),  # https://huggingface.co/nvidia/Llama-3_1-Nemotron-Ultra-253B-v1
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_parameters_are_within_one_percent_of_the_published(
    llm: str | dict[str, Any], total_b: float, active_b: float | None
) -> None:
    spec = load_llm(llm)
    assert parameters(spec) == pytest.approx(total_b * 1e9, rel=0.01)
    if active_b is not None:
        assert active_parameters(spec) == pytest.approx(active_b * 1e9, rel=0.01)


def test_kimi_and_nemotron_ultra_publish_active_parameters_without_the_embedding_table():
    assert active_parameters(load_llm(NEMOTRON_3_ULTRA)) - 131_072 * 8192 == pytest.approx(55e9, rel=0.001)
    k3 = load_llm(KIMI_K3)
    table = 163_840 * 7168
    assert active_parameters(k3) - table == pytest.approx(104.2e9, rel=0.001)  # arXiv:2607.24653, table 1
    linear, tables = load_llm(KIMI_LINEAR), 2 * 163_840 * 2304
    assert round((parameters(linear) - tables) / 1e9) == 48  # the 48B and the 3B of its name
    assert round((active_parameters(linear) - tables) / 1e9) == 3


def test_parameters_of_kimi_k3_tensor_by_tensor():
    """The tensors of https://huggingface.co/moonshotai/Kimi-K3 (model.safetensors.index.json), A_log by its heads."""
    h, wide, latent = 7168, 96 * 128, 3584
    residuals = 2 * 2 * h  # before attention and before the feed-forward block: norm and projection to one score
    delta = 3 * wide * h + 3 * wide * 4 + 128 * h + wide * 128 + 96 + wide + 96 * h + wide * h + 128 + h * wide
    mla = 1536 * h + 1536 + 96 * 192 * 1536 + 576 * h + 512 + 96 * 256 * 512 + wide * h + h * wide
    dense = 3 * 33_792 * h
    experts = 896 * h + 896 + 896 * 3 * latent * 3072 + 2 * latent * h + latent + 3 * 2 * 3072 * h
    layers = 69 * delta + 24 * mla + dense + 92 * experts + 93 * (2 * h + residuals)
    assert parameters(load_llm(KIMI_K3)) == layers + 2 * 163_840 * h + h + 2 * h


def test_parameters_of_a_layer_of_kimi_linear_with_gates_of_low_rank():
    h, wide = 2304, 32 * 128
    delta = 3 * wide * h + 3 * wide * 4 + 2 * (128 * h + wide * 128) + 32 + wide + 32 * h + 128 + h * wide
    mla = 32 * 192 * h + 576 * h + 512 + 32 * 256 * 512 + h * wide
    moe = 256 * h + 256 + 257 * 3 * h * 1024
    expected = 20 * delta + 7 * mla + 3 * h * 9216 + 26 * moe + 27 * 2 * h + 2 * 163_840 * h + h
    assert parameters(load_llm(KIMI_LINEAR)) == expected == 49_122_681_728


def test_prediction_module_of_nemotron_is_attention_and_experts_by_its_pattern():
    llm, h = load_llm(SUPER), 4096
    attention = 2 * h * 32 * 128 + 2 * h * 2 * 128
    experts = 512 * h + 512 + 512 * 2 * 1024 * 2688 + 2 * h * 1024 + 2 * h * 5376
    joined = 2 * h * h + 3 * h  # eh_proj, enorm, hnorm, final_layernorm
    assert mtp_parameters(llm) == attention + experts + 2 * h + joined
    assert llm.mtp_layers == 1
    assert load_llm(NEMOTRON_3_ULTRA).mtp == llm.mtp.model_copy(
        update={
            "attention": GroupedQueryAttention(heads=64, kv_heads=2, head_dim=128),
            "feed_forward": llm.mtp.feed_forward.model_copy(
                update={"intermediate": 5120, "shared_intermediate": 10_240, "latent": 2048}
            ),
        }
    )


# ------------------------------------------------------------------------------------------ state, cache, weights


@pytest.mark.parametrize(
    ("llm", "state", "kv"),
    [
        (KIMI_K3, 69 * (96 * 128 * 128 * 4 + 3 * 12_288 * 3 * 2), 24 * (512 + 64) * 2),
        (KIMI_LINEAR, 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2), 7 * (512 + 64) * 2),
        (SUPER, 40 * (128 * 64 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2), 8 * 2 * 2 * 128 * 2),
        (NAS_49B, 0, 49 * 2 * 8 * 128 * 2),
        (NAS_253B, 0, 64 * 2 * 8 * 128 * 2),
    ],
)
def test_state_and_cache_of_a_sequence(llm: str, state: int, kv: int) -> None:
    assert state_bytes(load_llm(llm)) == state
    assert kv_bytes_per_token(load_llm(llm), Dtype.BF16) == kv


def test_kimi_k3_stores_its_experts_in_mxfp4_and_nothing_else():
    llm = load_llm(KIMI_K3)
    formats = {part: llm.native_precision.of(part)[0] for part in linear_parameters_by_part(llm)}
    assert formats.pop(Part.EXPERTS) is Dtype.MXFP4
    assert set(formats.values()) == {Dtype.BF16}
    one_expert = 3 * 3584 * 3072
    in_experts = 92 * 896 * 17_547_264  # bytes of one expert in the published shards: 33 030 144 values at 4.25 bits
    text = llm.model_copy(update={"encoder": None})
    rest = 2 * (parameters(llm) - 92 * 896 * one_expert)
    assert weight_bytes(text, llm.native_precision) == in_experts + rest


@pytest.mark.parametrize(("llm", "bits"), [(SUPER, 8), ("nvidia-nemotron-3-super-120b-a12b-nvfp4", 4.5)])
def test_latent_projections_and_router_of_nemotron_stay_in_16_bit(llm: str, bits: float) -> None:
    spec = load_llm(llm)
    quantised = sum(linear_parameters_by_part(spec).values())
    assert parameters(spec) - quantised > 2 * 40 * 4096 * 1024  # not among the quantised ones
    expected = quantised * bits / 8 + 2 * (parameters(spec) - quantised)
    assert weight_bytes(spec, spec.native_precision) == pytest.approx(expected, rel=1e-12)
    assert spec.native_precision.kv_cache is Dtype.FP8


@pytest.mark.parametrize("kind", ["FP8", "NVFP4"])
def test_presets_of_nemotron_3_super_are_its_checkpoints(shared: Path, kind: str) -> None:
    published = shared / "reference" / "models_2026" / f"nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-{kind}.json"
    if not published.is_file():
        pytest.skip("no checkpoints of 2026 beside the checkout (reference/models_2026)")
    beside = json.loads(published.with_suffix(".hf_quant_config.json").read_text(encoding="utf-8"))
    config = json.loads(published.read_text(encoding="utf-8"))
    llm = LlmSpec.from_config(config | {"quantization_config": {"quant_method": "modelopt", **beside}})
    same = {"source": "", "id": "", "name": ""}
    preset_of = load_llm(f"nvidia-nemotron-3-super-120b-a12b-{kind.lower()}")
    assert llm.model_copy(update=same) == preset_of.model_copy(update=same)


def test_layers_of_kimi_count_from_one():
    groups = load_llm(KIMI_K3)
    order = [groups.layers[index].attention for index in groups.layer_order]
    full = {4 * number - 1 for number in range(1, 24)} | {92}  # layers 4, 8, ..., 92 and 93
    assert {layer for layer, kind in enumerate(order) if not hasattr(kind, "decay_rank")} == full
    first = groups.layers[groups.layer_order[0]]
    assert isinstance(first.feed_forward, DenseFeedForward)
    assert first.feed_forward.intermediate == 33_792


# ------------------------------------------------------------------------------------------ layers


def nas(*blocks: dict[str, object]) -> dict[str, Any]:
    """A small Nemotron-NAS of these layers."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 4096}
    return {"model_type": "nemotron-nas", **sizes, "num_hidden_layers": len(blocks), "block_configs": list(blocks)}


ATTENTION: dict[str, object] = {"n_heads_in_group": 4, "no_op": False, "replace_with_linear": False}
NOTHING: dict[str, object] = {"no_op": True}
LINEAR: dict[str, object] = {"replace_with_linear": True}


def test_every_layer_of_a_searched_model_has_its_own_shapes():
    llm = LlmSpec.from_config(
        nas(
            {"attention": ATTENTION, "ffn": {"ffn_mult": 1.3}},
            {"attention": NOTHING, "ffn": {"ffn_mult": 0.5}},
            {"attention": NOTHING, "ffn": NOTHING},
            {"attention": LINEAR, "ffn": LINEAR},
            {"attention": ATTENTION | {"n_heads_in_group": 8}, "ffn": NOTHING},
        )
    )
    assert llm.num_layers == 4  # the empty one does nothing
    first, second, third, fourth = llm.layers
    assert first.attention == GroupedQueryAttention(heads=8, kv_heads=2, head_dim=128)
    assert first.feed_forward == DenseFeedForward(intermediate=1024)  # 2 / 3 x 1.3 x 1024 = 887, in multiples of 256
    assert (second.attention, second.feed_forward) == (None, DenseFeedForward(intermediate=512))
    assert third.attention == LinearMap()
    assert fourth.attention == GroupedQueryAttention(heads=8, kv_heads=1, head_dim=128)
    h = 1024
    matrices = (2 * h * h + 2 * h * 256 + 3 * h * 1024) + 3 * h * 512 + 2 * h * h + (2 * h * h + 2 * h * 128)
    norms = 2 * h + h + 2 * h + h  # one for each block there is
    assert parameters(llm) == matrices + norms + 2 * 1000 * h + h
    assert kv_bytes_per_token(llm, Dtype.BF16) == (2 + 1) * 2 * 128 * 2


@pytest.mark.parametrize("key", ["window_length", "num_sink_tokens", "sparsify"])
def test_what_would_change_attention_of_a_searched_model_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=key):
        LlmSpec.from_config(nas({"attention": ATTENTION | {key: 128}, "ffn": {"ffn_mult": 1.0}}))


def config_of(id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(preset("llms", f"{id}.json").read_text(encoding="utf-8"))
    return found


def changed(id: str, **fields: object) -> dict[str, Any]:
    """A preset's config with other fields, in its text_config if it has one."""
    config = config_of(id)
    if "text_config" in config:
        return config | {"text_config": config["text_config"] | fields}
    return config | fields


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"linear_attn_config": None}, InputError, "linear_attn_config"),
        ({"num_hidden_layers": 26}, InputError, "every layer from 1 to num_hidden_layers = 26 once"),
    ],
)
def test_lists_of_layers_that_do_not_fit_are_refused(
    fields: dict[str, object], error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=message):
        LlmSpec.from_config(changed(KIMI_LINEAR, **fields))


@pytest.mark.parametrize("pattern", ["E*", "**", "M*E"])
def test_prediction_modules_of_other_blocks_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="module other than attention"):
        LlmSpec.from_config(changed(SUPER, mtp_hybrid_override_pattern=pattern))


def test_a_state_in_another_format_is_refused():
    with pytest.raises(UnsupportedFeatureError, match="only a state in float32"):
        LlmSpec.from_config(changed(SUPER, mamba_ssm_cache_dtype="float16"))
