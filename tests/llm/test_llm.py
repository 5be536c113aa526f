"""Model architectures against published checkpoints, tensor-by-tensor recounts, published papers and hostile input."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hardware_db import Dtype
from planner.core import InputError, PlannerError, UnknownNameError, UnsupportedFeatureError
from planner.llm import (
    BYTES_PER_VALUE,
    DenseFeedForward,
    GroupedQueryAttention,
    LayerGroup,
    LlmSpec,
    MoeFeedForward,
    Precision,
    active_parameters,
    embedding_parameters,
    encoder_parameters,
    hf_config,
    kv_bytes_per_token,
    kv_window_bytes,
    linear_parameters,
    list_llms,
    lm_head_weights,
    load_llm,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.sizes import mtp_parameters
from planner.llm.spec import id_of
from tests.configs import Config, llama, preset_config
from tests.places import REFERENCE


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


FP8 = Precision(weights=Dtype.FP8, activations=Dtype.FP8)
PUBLISHED = rows(REFERENCE / "llm_parameters.csv")
COUNTED_DIFFERENTLY = {
    "google/gemma-3-27b-it": "total_params_b has a vision encoder",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "total_params_b has a vision encoder and is rounded up",
    "moonshotai/Kimi-K2-Instruct": "published as 1T",
}
"""Models of the reference collection whose published total is of something else: compared with the recount."""
RECOUNT_LEAVES_OUT = {
    "Qwen/Qwen3-Next-80B-A3B-Thinking": "output gates, shared experts and parts of the linear attention",
    "deepseek-ai/DeepSeek-V3.2": "the sparse index",
}
"""Models whose recounted active parameters leave out what the names say."""
OF_2026 = {
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "gemma-4-26b-a4b",
    "glm-5",
    "glm-5.2",
    "kimi-k2.5",
    "kimi-k3",
    "llama-3-3-nemotron-super-49b-v1",
    "mimo-v2-flash",
    "minimax-m2.7",
    "minimax-m3",
    "nvidia-nemotron-3-nano-30b-a3b-bf16",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-coder-480b-a35b-instruct",
    "qwen3-vl-235b-a22b-instruct",
    "qwen3-vl-2b-instruct",
    "qwen3-vl-30b-a3b-instruct",
    "qwen3-vl-4b-instruct",
    "qwen3-vl-8b-instruct",
    "qwen3.5-122b-a10b",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
}
"""Presets of the second collection (reference/models_2026)."""
NEMOTRON_3_SUPER = {f"nvidia-nemotron-3-super-120b-a12b-{kind}" for kind in ("fp8", "nvfp4")}
"""Of the second collection too, where ``hf_quant_config.json`` has another name."""
KIMI_AND_ULTRA = {"kimi-linear-48b-a3b-instruct", "llama-3-1-nemotron-ultra-253b-v1"}
"""Of no collection."""
FROM_MODEL_CODE = {"gemma-4-31b", "step-3.7-flash"}
"""Of no collection, or with fewer keys there than their publishers wrote."""
OF_SIBLINGS = {"deepseek-v3.1", "kimi-k2.6", "qwen3-coder-30b-a3b-instruct", "qwen3.6-27b"}
"""With the layers of another checkpoint, as their sources say."""
PUBLIC_COPIES = {"llama-3.2-1b", "llama-3.2-3b", "qwen3-14b", "qwen3-4b"}
"""Of public copies of their config.json."""
OUTSIDE_COLLECTION = {
    "yi-34b",
    "glm-4.7",
    *OF_SIBLINGS,
    *PUBLIC_COPIES,
    *FROM_MODEL_CODE,
    *OF_2026,
    *NEMOTRON_3_SUPER,
    *KIMI_AND_ULTRA,
}
"""Presets that the first collection does not hold; checked against their published count."""


# ------------------------------------------------------------------------------------------ published counts


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["llm"])
def test_total_parameters_are_the_published_ones(row: dict[str, str]) -> None:
    total = parameters(load_llm(row["llm"]))
    assert total == pytest.approx(float(row["published_total_b"]) * 1e9, rel=0.01)
    if row["checkpoint_values"]:
        assert total == int(row["checkpoint_values"]) - int(row["not_parameters"])


def test_every_preset_has_a_published_count_with_a_source() -> None:
    assert {row["llm"] for row in PUBLISHED} == set(list_llms())
    assert all(row["published_source_url"].startswith("https://") for row in PUBLISHED)
    assert all(bool(row["checkpoint_values"]) == bool(row["checkpoint_source_url"]) for row in PUBLISHED)


def test_values_of_a_checkpoint_that_are_no_parameters_are_explained() -> None:
    extra = {row["llm"]: int(row["not_parameters"] or 0) for row in PUBLISHED}
    rotary_frequencies = 128 // 2
    assert extra["llama-2-7b"] == 32 * rotary_frequencies
    assert extra["llama-2-13b"] == 40 * rotary_frequencies
    assert extra["llama-2-70b"] == 80 * rotary_frequencies
    blocks = linear_parameters(load_llm("minimax-m2.5")) // (128 * 128)
    assert extra["minimax-m2.5"] == blocks
    next_80b = preset_config("qwen3-next-80b-a3b-thinking") | {"num_nextn_predict_layers": 1}
    assert extra["qwen3-next-80b-a3b-thinking"] == mtp_parameters(load_llm(next_80b))
    assert extra["qwen3.5-397b-a17b"] == mtp_parameters(load_llm("qwen3.5-397b-a17b")) + 456_010_480  # vision encoder
    glm = load_llm("glm-4.5-air")
    assert extra["glm-4.5-air"] == mtp_parameters(glm) + embedding_parameters(glm)
    v3 = load_llm("deepseek-v3")
    assert extra["deepseek-v3"] == mtp_parameters(v3) + embedding_parameters(v3) + fp8_blocks(v3)
    assert extra["deepseek-r1"] == extra["deepseek-v3"]
    for tied in ("qwen3-0.6b", "qwen3-1.7b"):
        assert extra[tied] == lm_head_weights(load_llm(tied))
    assert sum(bool(count) for count in extra.values()) == 14


def fp8_blocks(llm: LlmSpec) -> int:
    """Scales of 128 x 128 blocks, those of the multi-token-prediction module included."""

    def blocks(inputs: int, outputs: int) -> int:
        return math.ceil(inputs / 128) * math.ceil(outputs / 128)

    count, hidden = 0, llm.hidden_size
    for group in (*llm.layers, *([llm.mtp] if llm.mtp else [])):
        moe, wide = group.feed_forward, blocks(hidden, 2048)
        copies = moe.experts + 1 if isinstance(moe, MoeFeedForward) else 18432 // 2048
        matrices = sum(blocks(*shape) for shape in group.attention.matrices(hidden).values())
        count += group.count * (matrices + 3 * copies * wide)
    return count


@pytest.mark.parametrize(
    ("llm", "published_b"),
    [
        ("mixtral-8x7b-v0.1", 12.9),  # Jiang et al. 2024, arXiv:2401.04088
        ("mixtral-8x22b-v0.1", 39.1),  # https://mistral.ai/news/mixtral-8x22b
        ("qwen3-235b-a22b", 22.0),  # Qwen3 Technical Report 2025, arXiv:2505.09388, table 2
        ("llama-3.1-8b", 8.03),
        ("kimi-k2-instruct", 32.86),  # README of the reference collection; the model card rounds to 32
    ],
)
def test_active_parameters_are_the_published_ones(llm: str, published_b: float) -> None:
    assert active_parameters(load_llm(llm)) == pytest.approx(published_b * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("llm", "published_b"),
    [
        ("gpt-oss-120b", 5.13),  # OpenAI 2025, arXiv:2508.10925, table 1
        ("gpt-oss-20b", 3.61),
        ("deepseek-v3", 36.7),  # README_WEIGHTS.md of github.com/deepseek-ai/DeepSeek-V3
    ],
)
def test_active_parameters_published_without_the_input_embeddings(llm: str, published_b: float) -> None:
    spec = load_llm(llm)
    assert active_parameters(spec) - lm_head_weights(spec) == pytest.approx(published_b * 1e9, rel=0.003)


def test_reference_collection_is_counted_within_one_percent(shared: Path) -> None:
    models = shared / "reference" / "models"
    counted = set()
    for row in rows(models / "index.csv"):
        llm = LlmSpec.from_config(models / row["file"])
        total, recount = float(row["total_params_b"]) * 1e9, float(row["recount_total_b"] or "nan") * 1e9
        expected = recount if row["model"] in COUNTED_DIFFERENTLY else total
        assert parameters(llm) == pytest.approx(expected, rel=0.01), row["model"]
        if row["recount_total_b"]:
            assert parameters(llm) == pytest.approx(recount, rel=0.01), row["model"]
        if row["recount_active_b"] and row["model"] not in RECOUNT_LEAVES_OUT:
            assert active_parameters(llm) == pytest.approx(float(row["recount_active_b"]) * 1e9, rel=0.01)
        table = lm_head_weights(llm)  # published active counts may leave out embeddings and LM head
        active = float(row["active_params_b"]) * 1e9
        assert active_parameters(llm) - 2 * table <= max(1.05 * active, active + 0.5e9)  # rounded to whole billions
        assert active <= 1.05 * active_parameters(llm), row["model"]
        assert llm.num_layers == int(row["layers"])
        counted.add(llm.name)
    assert counted == {load_llm(preset).name for preset in set(list_llms()) - OUTSIDE_COLLECTION}


def test_presets_agree_with_the_reference_collection(shared: Path) -> None:
    models = shared / "reference" / "models"
    for preset in sorted(set(list_llms()) - OUTSIDE_COLLECTION):
        llm = load_llm(preset)
        reference = LlmSpec.from_config(models / f"{llm.name.replace('/', '--')}.json")
        outside = {"source": "", "mtp": None, "mtp_layers": 0, "encoder": None}  # what the collection leaves out
        assert llm.model_copy(update=outside) == reference.model_copy(update=outside)


def test_presets_of_2026_agree_with_their_checkpoints(shared: Path) -> None:
    models = shared / "reference" / "models_2026"
    if not models.is_dir():
        pytest.skip("no checkpoints of 2026 beside the checkout (reference/models_2026)")
    for preset in sorted(OF_2026):
        llm = load_llm(preset)
        published = LlmSpec.from_config(models / f"{llm.name.replace('/', '--')}.json")
        same = {"source": "", "id": "", "name": ""}
        assert llm.model_copy(update=same) == published.model_copy(update=same)


# ------------------------------------------------------------------------------------------ bytes


@pytest.mark.parametrize(
    ("llm", "bf16_bytes"),
    [
        ("llama-3.1-70b", 327_680),  # 2 x 80 layers x 8 heads x 128 x 2 B
        ("llama-3.1-8b", 131_072),  # 2 x 32 x 8 x 128 x 2 B
        ("mixtral-8x7b-v0.1", 131_072),  # 2 x 32 x 8 x 128 x 2 B; experts have no KV cache
        ("opt-13b", 819_200),  # 800 KB: Kwon et al. 2023, arXiv:2309.06180, sec. 3
        ("opt-30b", 1_376_256),  # 2 x 48 x 56 x 128 x 2 B
    ],
)
def test_kv_bytes_per_token(llm: str, bf16_bytes: int) -> None:
    spec = load_llm(llm)
    assert kv_bytes_per_token(spec, Dtype.BF16) == bf16_bytes
    assert kv_bytes_per_token(spec, Dtype.FP16) == bf16_bytes
    assert kv_bytes_per_token(spec, Dtype.FP8) == bf16_bytes / 2
    for dtype, per_value in BYTES_PER_VALUE.items():
        assert kv_bytes_per_token(spec, dtype) == bf16_bytes / 2 * per_value


@pytest.mark.parametrize(
    ("dtype", "value_bits", "scale_bits", "values"),
    [
        (Dtype.MXFP4, 4, 8, 32),  # OCP Microscaling Formats 1.0, table 1
        (Dtype.MXFP8, 8, 8, 32),
        (Dtype.NVFP4, 4, 8, 16),  # NVIDIA 2025, arXiv:2509.25149, sec. 2
        (Dtype.INT4, 4, 16, 128),  # Lin et al. 2023, arXiv:2306.00978, sec. 5.1
        (Dtype.INT4_G32, 4, 16, 32),  # config.json of huggingface.co/moonshotai/Kimi-K2-Thinking
        (Dtype.FP8_BLOCK, 8, 32, 128 * 128),  # DeepSeek-AI 2024, arXiv:2412.19437, sec. 3.3.2
    ],
)
def test_bytes_per_value_are_the_value_and_its_share_of_the_scale(
    dtype: Dtype, value_bits: int, scale_bits: int, values: int
) -> None:
    assert BYTES_PER_VALUE[dtype] == (value_bits + scale_bits / values) / 8


def test_a_format_of_matrix_units_is_no_way_to_store_values() -> None:
    with pytest.raises(InputError, match=r"weights = 'fp4': says how values are multiplied.* Fix: use nvfp4 or mxfp4"):
        Precision(weights=Dtype.FP4)
    with pytest.raises(
        InputError, match=r"no engine multiplies int8 weights with them\. Fix: use one of int8, bf16, fp16"
    ):
        Precision(weights=Dtype.INT8, activations=Dtype.FP8)


def test_fp8_weight_bytes_of_llama_3_3_70b() -> None:
    llm = load_llm("llama-3.3-70b-instruct")
    layer = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672  # query, output; key, value; gate, up, down
    quantised = 80 * layer
    in_16_bit = 2 * 128256 * 8192 + (2 * 80 + 1) * 8192  # embeddings, LM head; norms
    assert (quantised, in_16_bit) == (68_451_041_280, 2_102_665_216)
    assert weight_bytes(llm, FP8) == quantised + 2 * in_16_bit == 72_656_371_712


def test_fp8_weight_bytes_are_those_of_the_published_checkpoint_without_its_scales() -> None:
    # Values by type of the FP8-dynamic checkpoints of Llama 3.x 70B (huggingface.co/RedHatAI): F8_E4M3 and BF16.
    fp8_values, bf16_values = 68_451_041_280, 2_109_382_656
    channels = 8192 + 2 * 1024 + 8192 + 2 * 28672 + 8192  # one BF16 scale per output channel of each matrix
    scale_bytes = 2 * 80 * channels
    llm = load_llm("llama-3.3-70b-instruct")
    assert linear_parameters(llm) == fp8_values
    assert weight_bytes(llm, FP8) == fp8_values + 2 * bf16_values - scale_bytes


@pytest.mark.parametrize("preset", list_llms())
def test_sixteen_bit_weights_take_two_bytes_a_parameter(preset: str) -> None:
    llm = load_llm(preset)
    count = parameters(llm) + encoder_parameters(llm)
    assert weight_bytes(llm, Precision()) == 2 * count
    assert weight_bytes(llm, Precision(weights=Dtype.FP16)) == 2 * count


def test_weight_bytes_shrink_with_the_format_but_not_below_the_16_bit_rest() -> None:
    llm = load_llm("qwen3-30b-a3b")
    sizes = [weight_bytes(llm, Precision(weights=dtype)) for dtype in (Dtype.BF16, Dtype.INT8, Dtype.NVFP4, Dtype.INT4)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 2 * (parameters(llm) - linear_parameters(llm))


def test_weights_of_one_layer_of_llama_3_1_405b() -> None:
    # Shapes of table 3 of Llama Team 2024, arXiv:2407.21783: width 16384, feed-forward 53248, 128 and 8 heads.
    group = load_llm("llama-3.1-405b").layers[0]
    matrices = group.attention.matrices(16384)
    weights = {name: inputs * outputs for name, (inputs, outputs) in matrices.items()}
    assert weights["q_proj"] + weights["k_proj"] + weights["v_proj"] == 16384 * 16384 + 2 * 16384 * 1024
    assert weights["o_proj"] == 16384 * 16384
    assert group.feed_forward.weights(16384) == 3 * 16384 * 53248
    assert group.feed_forward.small_parameters(16384) == 0


# ------------------------------------------------------------------------------------------ tensor-by-tensor recount

Tensors = Iterator[tuple[str, tuple[int, ...]]]


def linear(name: str, rows: int, columns: int, bias: bool = False) -> Tensors:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def decoder_tensors(config: Config) -> Tensors:
    """Name and shape of every tensor in a checkpoint of the rotary families, as the checkpoints name them."""
    kind, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    kv, vocab = config["num_key_value_heads"], config["vocab_size"]
    head = config.get("head_dim", hidden // heads)
    biased = config.get("attention_bias", False)
    yield "embed_tokens.weight", (vocab, hidden)
    yield "norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", kind == "cohere"):
        yield "lm_head.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        if kind != "cohere":
            yield f"{at}.post_attention_layernorm.weight", (hidden,)
        if kind == "phi3":
            yield from linear(f"{at}.qkv_proj", heads * head + 2 * kv * head, hidden)
            yield from linear(f"{at}.gate_up_proj", 2 * config["intermediate_size"], hidden)
            yield from linear(f"{at}.down_proj", hidden, config["intermediate_size"])
        else:
            yield from linear(f"{at}.q_proj", heads * head, hidden, biased or kind == "qwen2")
            yield from linear(f"{at}.k_proj", kv * head, hidden, biased or kind == "qwen2")
            yield from linear(f"{at}.v_proj", kv * head, hidden, biased or kind == "qwen2")
            yield from feed_forward_tensors(config, layer)
        yield from linear(f"{at}.o_proj", hidden, heads * head, biased)
        if kind in ("qwen3", "qwen3_moe"):
            yield f"{at}.q_norm.weight", (head,)
            yield f"{at}.k_norm.weight", (head,)
        if kind == "minimax_m2" or config.get("use_qk_norm"):
            yield f"{at}.q_norm.weight", (heads, head)
            yield f"{at}.k_norm.weight", (kv, head)


def feed_forward_tensors(config: Config, layer: int) -> Tensors:
    kind, hidden, at = config["model_type"], config["hidden_size"], f"layers.{layer}"
    if kind in ("mixtral", "minimax_m2"):
        experts, size = config["num_local_experts"], config["intermediate_size"]
    elif kind == "qwen3_moe":
        dense = layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"]
        experts = 0 if dense else config["num_experts"]
        size = config["intermediate_size"] if dense else config["moe_intermediate_size"]
    else:
        experts, size = 0, config["intermediate_size"]
    bias = config.get("mlp_bias", False)
    for expert in range(experts or 1):
        yield from linear(f"{at}.{expert}.gate_proj", size, hidden, bias)
        yield from linear(f"{at}.{expert}.up_proj", size, hidden, bias)
        yield from linear(f"{at}.{expert}.down_proj", hidden, size, bias)
    if experts:
        yield from linear(f"{at}.router", experts, hidden)
    if kind == "minimax_m2":
        yield f"{at}.e_score_correction_bias", (experts,)


def opt_tensors(config: Config) -> Tensors:
    hidden, feed_forward = config["hidden_size"], config["ffn_dim"]
    yield "embed_tokens.weight", (config["vocab_size"], hidden)
    yield "embed_positions.weight", (config["max_position_embeddings"] + 2, hidden)
    yield "final_layer_norm.weight", (hidden,)
    yield "final_layer_norm.bias", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from linear(f"{at}.{name}", hidden, hidden, bias=True)
        yield from linear(f"{at}.up_proj", feed_forward, hidden, bias=True)
        yield from linear(f"{at}.down_proj", hidden, feed_forward, bias=True)
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            yield f"{at}.{norm}.weight", (hidden,)
            yield f"{at}.{norm}.bias", (hidden,)


def tensors(config: Config) -> dict[str, int]:
    """Values of every tensor by name."""
    shapes = opt_tensors(config) if config["model_type"] == "opt" else decoder_tensors(config)
    sizes: dict[str, int] = {}
    for name, shape in shapes:
        assert name not in sizes
        sizes[name] = math.prod(shape)
    return sizes


@st.composite
def plain_configs(draw: st.DrawFn) -> Config:
    """Small valid configs of every supported family."""
    kv = draw(st.integers(1, 4))
    heads = kv * draw(st.integers(1, 4))
    head = draw(st.integers(1, 8))
    layers = draw(st.integers(1, 5))
    kind = draw(
        st.sampled_from(
            ["llama", "mistral", "qwen2", "qwen3", "phi3", "cohere", "opt", "mixtral", "qwen3_moe", "minimax_m2"]
        )
    )
    config: Config = {
        "model_type": kind,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_size": heads * head,
        "num_hidden_layers": layers,
        "vocab_size": draw(st.integers(1, 50)),
        "max_position_embeddings": draw(st.integers(1, 64)),
        "intermediate_size": draw(st.integers(1, 20)),
    }
    if kind == "mistral":
        config["sliding_window"] = None
    if kind in ("qwen3", "qwen3_moe", "minimax_m2") or draw(st.booleans()):
        config["head_dim"] = draw(st.integers(1, 16))
    if kind in ("llama", "qwen3", "cohere"):
        config["attention_bias"] = draw(st.booleans())
    if kind == "llama":
        config["mlp_bias"] = draw(st.booleans())
    if kind == "cohere":
        config["use_qk_norm"] = draw(st.booleans())
    if kind == "opt":
        config.pop("head_dim", None)
        config |= {"ffn_dim": draw(st.integers(1, 20)), "num_key_value_heads": heads}
    elif draw(st.booleans()):
        config["tie_word_embeddings"] = draw(st.booleans())
    experts = draw(st.integers(2, 6))
    if kind in ("mixtral", "minimax_m2"):
        config |= {"num_local_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts))}
    if kind == "qwen3_moe":
        config |= {
            "num_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, experts)),
            "moe_intermediate_size": draw(st.integers(1, 9)),
            "decoder_sparse_step": draw(st.integers(1, 3)),
            "mlp_only_layers": draw(st.lists(st.integers(0, 6), max_size=3)),
        }
    return config


@given(plain_configs())
def test_counts_are_the_sum_over_all_tensors(config: Config) -> None:
    llm = LlmSpec.from_config(config)
    sizes = tensors(config)
    assert parameters(llm) == sum(sizes.values())
    assert linear_parameters(llm) == sum(size for name, size in sizes.items() if name.endswith("proj.weight"))
    embeddings = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")
    assert embedding_parameters(llm) == sum(sizes.get(name, 0) for name in embeddings)
    assert lm_head_weights(llm) == sizes["embed_tokens.weight"]
    assert llm.num_layers == config["num_hidden_layers"]


@pytest.mark.parametrize("preset", ["llama-3.1-8b", "opt-13b", "mixtral-8x7b-v0.1", "qwen3-30b-a3b", "minimax-m2"])
def test_counts_of_presets_are_the_sum_over_all_tensors(preset: str) -> None:
    config = preset_config(preset)
    assert parameters(load_llm(preset)) == sum(tensors(config).values())


# ------------------------------------------------------------------------------------------ invariants


@given(plain_configs())
def test_active_parameters_are_part_of_the_total(config: Config) -> None:
    llm = LlmSpec.from_config(config)
    moe = [group.feed_forward for group in llm.layers if isinstance(group.feed_forward, MoeFeedForward)]
    if any(feed_forward.experts_per_token < feed_forward.experts for feed_forward in moe):
        assert 0 < active_parameters(llm) < parameters(llm)
    else:
        assert active_parameters(llm) == parameters(llm)


@given(plain_configs())
def test_parameters_and_kv_bytes_grow_by_the_same_amount_with_every_layer(config: Config) -> None:
    assume(config["model_type"] != "qwen3_moe")  # its layers differ
    layers = config["num_hidden_layers"]
    one, two, three = (LlmSpec.from_config(config | {"num_hidden_layers": layers + more}) for more in range(3))
    assert parameters(three) - parameters(two) == parameters(two) - parameters(one) > 0
    assert kv_bytes_per_token(one, Dtype.BF16) * (layers + 1) == kv_bytes_per_token(two, Dtype.BF16) * layers


def test_parameters_grow_with_layers_in_a_mixture_of_dense_and_sparse_layers() -> None:
    config = preset_config("qwen3-30b-a3b") | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}
    counts = [parameters(LlmSpec.from_config(config | {"num_hidden_layers": layers})) for layers in range(1, 12)]
    assert counts == sorted(set(counts))


def test_layers_are_grouped_by_shape() -> None:
    config = preset_config("qwen3-30b-a3b") | {"decoder_sparse_step": 2, "mlp_only_layers": [1, 0, 99]}
    dense, sparse = LlmSpec.from_config(config).layers  # of 48: experts in 1, 3, 5, ..., 47, but not in 1
    assert (dense.count, sparse.count) == (25, 23)
    assert isinstance(dense.feed_forward, DenseFeedForward)
    assert isinstance(sparse.feed_forward, MoeFeedForward)


def test_fewer_kv_heads_mean_fewer_parameters_and_bytes() -> None:
    specs = [LlmSpec.from_config(llama(num_key_value_heads=kv)) for kv in (8, 4, 2, 1)]
    for more, fewer in itertools.pairwise(specs):
        assert parameters(fewer) < parameters(more)
        assert kv_bytes_per_token(fewer, Dtype.BF16) == kv_bytes_per_token(more, Dtype.BF16) / 2


def test_missing_kv_heads_mean_multi_head_attention() -> None:
    multi_head = LlmSpec.from_config(llama(num_key_value_heads=8))
    assert LlmSpec.from_config(llama(num_key_value_heads=None)) == multi_head
    assert LlmSpec.from_config(llama() | {"num_key_value_heads": None}) == multi_head


# ------------------------------------------------------------------------------------------ names and sources


def test_presets_have_ids_names_and_sources() -> None:
    assert len(list_llms()) == len(set(list_llms()))
    for preset in list_llms():
        llm = load_llm(preset)
        assert llm.id == preset == id_of(llm.name)
        assert llm.source.startswith("https://")
        assert preset_config(preset)["_name"] == llm.name


def test_preset_names_ignore_case() -> None:
    assert load_llm("Llama-3.3-70B-Instruct") is load_llm("llama-3.3-70b-instruct")


def test_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"llm = 'llama-3\.3-70b': unknown name.*llama-3\.3-70b-instruct"):
        load_llm("llama-3.3-70b")


def test_hub_name_suggests_the_preset() -> None:
    with pytest.raises(
        InputError, match=r"no such file or folder.*the preset llama-3\.1-8b, or hf:meta-llama/Llama-3\.1-8B where"
    ):
        load_llm("meta-llama/Llama-3.1-8B")


def test_names_and_sources_come_from_argument_config_or_place(tmp_path: Path) -> None:
    given = LlmSpec.from_config(llama(_name="org/Mine-HF", _source="somewhere"))
    assert (given.id, given.name, given.source) == ("mine", "org/Mine-HF", "somewhere")
    argued = LlmSpec.from_config(llama(_name="org/Mine", _source="somewhere"), id="a", name="B", source="there")
    assert (argued.id, argued.name, argued.source) == ("a", "B", "there")
    bare = LlmSpec.from_config(llama())
    assert (bare.id, bare.name, bare.source) == ("llama", "llama", "given")
    folder = tmp_path / "My Llama-3.1-8B"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(llama()), encoding="utf-8")
    for path in (folder, file, str(folder), str(file)):
        llm = load_llm(path)
        assert (llm.id, llm.name, llm.source) == ("my-llama-3.1-8b", "My Llama-3.1-8B", str(path))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(llama()), encoding="utf-8")
    assert load_llm(other).id == "other"


def test_load_llm_takes_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_llm(llama()) == LlmSpec.from_config(llama())
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine", "config.json").write_text(json.dumps(llama()), encoding="utf-8")
    assert load_llm("mine").id == "mine"


# ------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
    "path",
    [
        "nowhere/config.json",
        "nowhere.json",
        "~nobody-of-that-name/x",
        "~nobody-of-that-name/llama-3.1-8b",
        "a\0b.json",
        ".",
    ],
)
def test_path_that_is_not_there(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (load_llm, LlmSpec.from_config):
        with pytest.raises(InputError, match=r"(no such file|cannot be read).*Fix: give") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_path_with_a_name_that_is_too_long() -> None:
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        load_llm("x" * 5000 + ".json")


def test_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file, or no config\.json in it"):
        load_llm(tmp_path)


def test_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as handle:
        handle.truncate(hf_config.MAX_FILE_BYTES + 1)

    def refuse(_: Path) -> bytes:
        raise AssertionError("the file was read")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match="has 10000001 bytes, more than 10000000"):
        load_llm(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="no such file"):
        load_llm(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON at line 1"),
        (b"{\n'model_type': 1}", "is not JSON at line 2"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"[1, 2]", "is a JSON list, not an object"),
        (b"null", "is a JSON NoneType, not an object"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a":' * 100_000, "is nested too deeply"),
    ],
)
def test_files_that_are_no_config(content: bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        load_llm(file)


def test_byte_order_marks_are_accepted(tmp_path: Path) -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "config.json").write_text(json.dumps(llama()), encoding=encoding)
        assert load_llm(tmp_path).hidden_size == 64


# ------------------------------------------------------------------------------------------ malformed configs


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": None}, r"config\.hidden_size = '\(missing\)'.*needs it"),
        ({"vocab_size": None}, r"config\.vocab_size = '\(missing\)'"),
        ({"num_hidden_layers": None}, r"config\.num_hidden_layers = '\(missing\)'"),
        ({"num_attention_heads": None}, r"config\.num_attention_heads = '\(missing\)'"),
        ({"intermediate_size": None}, r"config\.intermediate_size = '\(missing\)'"),
        ({"max_position_embeddings": None}, r"config\.max_position_embeddings = '\(missing\)'"),
        ({"model_type": None}, r"config\.model_type = '\(missing\)'.*families llama"),
        ({"model_type": 3}, r"config\.model_type = 3: must be a string"),
        ({"model_type": ["llama"]}, r"config\.model_type = \['llama'\]: must be a string"),
        ({"hidden_size": 0}, r"config\.hidden_size = 0: must be from 1 to"),
        ({"hidden_size": -64}, r"config\.hidden_size = -64: must be from 1"),
        ({"hidden_size": 2**31}, r"config\.hidden_size = 2147483648: must be from 1 to 2147483647"),
        ({"hidden_size": 10**5000}, r"an integer of 16610 bits"),
        ({"hidden_size": True}, r"config\.hidden_size = True: must be a whole number"),
        ({"hidden_size": "64"}, r"config\.hidden_size = '64': must be a whole number"),
        ({"hidden_size": 64.0}, r"config\.hidden_size = 64\.0: must be a whole number"),
        ({"hidden_size": math.nan}, r"config\.hidden_size = nan: must be a whole number"),
        ({"hidden_size": math.inf}, r"config\.hidden_size = inf: must be a whole number"),
        ({"hidden_size": [64]}, r"config\.hidden_size = \[64\]: must be a whole number"),
        ({"hidden_size": 65}, r"config\.hidden_size = 65: must be a multiple of num_attention_heads = 8 when head_dim"),
        ({"num_key_value_heads": 3}, r"config\.num_key_value_heads = 3: must divide num_attention_heads = 8"),
        ({"num_key_value_heads": 16}, r"config\.num_key_value_heads = 16: must divide num_attention_heads = 8"),
        ({"num_hidden_layers": 10_001}, r"config\.num_hidden_layers = 10001: must be from 1 to 10000"),
        ({"tie_word_embeddings": "yes"}, r"config\.tie_word_embeddings = 'yes': must be true or false"),
        ({"attention_bias": 1}, r"config\.attention_bias = 1: must be true or false"),
        ({"torch_dtype": "int3"}, r"config\.torch_dtype = 'int3': unknown type.*float16, bfloat16, float32"),
        ({"layer_types": "full_attention"}, r"config\.layer_types = 'full_attention': must be a list"),
        ({"layer_types": [{}]}, r"config\.layer_types = \[\{\}\]: must be a list of strings"),
        ({"sliding_window": -1}, r"config\.sliding_window = -1: must be from 1"),
        ({"rope_scaling": "yarn"}, r"config\.rope_scaling = 'yarn': must be an object"),
        ({"rope_scaling": {"type": "linear"}}, r"config\.rope_scaling\.factor = None: must be a number from 1"),
        ({"rope_scaling": {"type": "linear", "factor": math.nan}}, r"config\.rope_scaling\.factor = nan"),
        ({"rope_scaling": {"type": "linear", "factor": 2e9}}, r"max_context_tokens = 1024000000000"),
        ({"quantization_config": 8}, r"config\.quantization_config = 8: must be an object"),
        ({"_name": ""}, r"config\._name = '': must be a string that is not empty"),
    ],
)
def test_malformed_config(changes: Config, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        LlmSpec.from_config(llama(**changes))
    assert not isinstance(caught.value, UnsupportedFeatureError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "changes", "complaint"),
    [
        ("mixtral-8x7b-v0.1", {"num_experts_per_tok": 9}, "experts_per_token = 9: must not be above experts = 8"),
        ("mixtral-8x7b-v0.1", {"num_local_experts": 1}, "experts = 1"),
        ("mixtral-8x7b-v0.1", {"num_local_experts": None}, r"config\.num_local_experts = '\(missing\)'"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["0"]}, r"config\.mlp_only_layers = \['0'\]: must be a list of layer"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 0}, r"config\.decoder_sparse_step = 0: must be from 1"),
        ("minimax-m2", {"attn_type_list": 1}, r"config\.attn_type_list = 1: must be a list"),
        ("opt-13b", {"ffn_dim": None}, r"config\.ffn_dim = '\(missing\)'"),
    ],
)
def test_malformed_config_of_a_family(preset: str, changes: Config, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        LlmSpec.from_config(preset_config(preset) | changes)


@pytest.mark.parametrize(
    ("preset", "field"),
    [("qwen3-8b", "head_dim"), ("qwen2.5-7b", "num_key_value_heads"), ("mixtral-8x7b-v0.1", "num_key_value_heads")],
)
def test_field_whose_class_default_belongs_to_another_model_is_required(preset: str, field: str) -> None:
    config = preset_config(preset)
    del config[field]
    with pytest.raises(InputError, match=rf"config\.{field} = '\(missing\)': this family needs it"):
        LlmSpec.from_config(config)


@pytest.mark.parametrize("value", [None, 7, 3.5, b"x", ["a"]])
def test_what_is_neither_a_mapping_nor_a_path(value: Any) -> None:
    with pytest.raises(InputError, match="is neither a mapping nor a path"):
        load_llm(value)


def test_deep_nesting_in_a_given_mapping() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    try:
        with pytest.raises(InputError, match="nested too deeply"):
            LlmSpec.from_config(llama(hidden_size=deep))
    finally:
        while deep:  # a deep list must not be freed recursively
            deep = deep[0]


def test_shapes_refuse_what_contradicts_itself() -> None:
    with pytest.raises(InputError, match=r"kv_heads = 3: must divide heads = 8"):
        GroupedQueryAttention(heads=8, kv_heads=3, head_dim=16)
    with pytest.raises(InputError, match=r"experts_per_token = 5: must not be above experts = 4"):
        MoeFeedForward(experts=4, experts_per_token=5, intermediate=8)
    with pytest.raises(InputError, match=r"count = 0"):
        LayerGroup(
            count=0,
            attention=GroupedQueryAttention(heads=1, kv_heads=1, head_dim=1),
            feed_forward=DenseFeedForward(intermediate=1),
        )


# ------------------------------------------------------------------------------------------ unmodelled features


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"index_topk": 2048}, "a sparse attention index"),
        ({"full_attention_interval": 4}, "linear attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear attention"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "hybrid local-global attention"),
        ({"layer_types": ["surprise"]}, "another type of layer"),
        ({"sliding_window": 128}, "sliding window attention"),
        ({"sliding_window_pattern": 6}, "hybrid local-global attention"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"n_shared_experts": 1}, "shared experts"),
        ({"shared_expert_intermediate_size": 512}, "shared experts"),
        ({"first_k_dense_replace": 3}, "leading dense layers"),
        ({"state_size": 16}, "state-space layers"),
        ({"is_encoder_decoder": True}, "an encoder-decoder"),
        ({"vision_config": {"depth": 3}}, "a vision or audio encoder"),
        ({"text_config": {"hidden_size": 64}}, "multimodal wrappers"),
        ({"text_config": {"model_type": "mllama_text_model"}}, "this family is not modelled"),
        ({"text_config": {"model_type": "llama", "cross_attention_layers": [3]}}, "cross-attention"),
        ({"moe_latent_size": 64}, "experts on a latent vector"),
        ({"indexer_types": ["full", "shared"]}, "a sparse attention index shared between layers"),
        ({"num_local_experts": 8}, "experts are not modelled in model_type llama"),
        ({"model_type": "gpt_neox"}, "this family is not modelled.*llama, mistral, mixtral"),
        ({"model_type": "bert\nbert", "is_encoder_decoder": True}, "an encoder-decoder"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "this position scaling is not modelled"),
    ],
)
def test_unmodelled_features_are_named(changes: Config, feature: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=feature) as caught:
        LlmSpec.from_config(llama(**changes))
    assert "\n" not in str(caught.value)
    assert ". Fix: " in str(caught.value)


def test_all_unmodelled_features_are_named_in_one_line() -> None:
    config = llama(kv_lora_rank=512, n_shared_experts=1, first_k_dense_replace=3)
    expected = (
        r"config\.kv_lora_rank = 512: multi-head latent attention \(MLA\), shared experts and leading dense layers "
        r"before the experts are not modelled \(model_type 'llama'\)\. Fix: use a model of one of the families"
    )
    with pytest.raises(UnsupportedFeatureError, match=expected):
        LlmSpec.from_config(config)


@pytest.mark.parametrize(
    "off", [{"kv_lora_rank": None}, {"n_shared_experts": 0}, {"is_encoder_decoder": False}, {"layer_types": []}]
)
def test_features_that_are_switched_off_are_no_obstacle(off: Config) -> None:
    assert parameters(LlmSpec.from_config(llama() | off)) == parameters(LlmSpec.from_config(llama()))


@pytest.mark.parametrize(
    ("model_type", "window", "tokens"),
    [
        ("mistral", {"sliding_window": None}, 0),
        ("mistral", {"sliding_window": 512}, 0),  # the context is 512 tokens
        ("mistral", {"sliding_window": 511}, 511),
        ("mistral", {"max_position_embeddings": 32768}, 4096),  # the class default is 4096
        ("mistral", {}, 0),
        ("qwen2", {"sliding_window": 128}, 0),  # use_sliding_window is false by default
        ("qwen2", {"sliding_window": 128, "use_sliding_window": False}, 0),
        ("qwen2", {"sliding_window": 128, "use_sliding_window": True}, 0),  # from layer 28 on, of 3
        ("qwen2", {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 0}, 128),
        ("phi3", {"sliding_window": 511}, 511),
        ("phi3", {"sliding_window": 262144}, 0),
    ],
)
def test_sliding_windows_shorter_than_the_context_are_read(model_type: str, window: Config, tokens: int) -> None:
    (group,) = LlmSpec.from_config(llama(model_type=model_type) | window).layers
    assert isinstance(group.attention, GroupedQueryAttention)
    assert group.attention.window == tokens


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


def test_lightning_attention_of_minimax_is_refused() -> None:
    config = preset_config("minimax-m2")
    assert LlmSpec.from_config(config | {"attn_type_list": [1] * 62}).num_layers == 62
    with pytest.raises(UnsupportedFeatureError, match="linear attention"):
        LlmSpec.from_config(config | {"attn_type_list": [0, 1] * 31})


# ------------------------------------------------------------------------------------------ context


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 512),
        ({"model_max_length": 131072}, 131072),  # Command R+: 8192 positions, 128k context in its model card
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 512),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, 2048),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.5}}, 1280),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 512),
        # Qwen3-8B model card: YaRN with factor 4 on 32768 positions serves 131072 tokens.
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
    ],
)
def test_context_length(changes: Config, tokens: int) -> None:
    assert LlmSpec.from_config(llama(**changes)).max_context_tokens == tokens


# ------------------------------------------------------------------------------------------ hostile input

KEYS = sorted(
    {key for preset in ("llama-3.1-8b", "opt-13b", "qwen3-30b-a3b", "minimax-m2") for key in preset_config(preset)}
    | {"no_rope_layers", "hybrid_override_pattern", "num_nextn_predict_layers", "max_window_layers", "moe_layers"}
    | {key for keys in hf_config._MARKERS.values() for key in keys}
    | {"layer_types", "attn_type_list", "text_config", "dtype", "mlp_bias", "attention_bias", "_name", "use_qk_norm"}
    | {"rope_scaling", "rope_parameters", "model_max_length", "quantization_config", "compression_config"}
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["llama", "opt", "mixtral", "qwen3_moe", "fp8", "awq", "modelopt", "compressed-tensors", "yarn"]),
    st.sampled_from(["gpt_oss", "deepseek_v3", "gemma3_text", "mxfp4", "lm_head", "re:.*mlp.*", "model.layers.*"]),
)
SECTION_KEYS = (
    "quant_method bits group_size quant_algo config_groups ignore weights num_bits type rope_type factor "
    "original_max_position_embeddings kv_cache_scheme input_activations sparsity_config hidden_size model_type "
    "targets weight_block_size modules_to_not_convert exclude_modules dynamic strategy block_structure"
)
section_keys = st.sampled_from(SECTION_KEYS.split())
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(section_keys, inner, max_size=4), max_leaves=8
)


def spec_or_refusal(config: Any) -> None:
    """Nothing but a spec with finite, positive counts, or one instructive line."""
    try:
        llm = load_llm(config)
    except PlannerError as error:
        assert "\n" not in str(error)
        assert str(error)
        return
    assert 0 < active_parameters(llm) <= parameters(llm)
    for dtype in BYTES_PER_VALUE:
        assert 0 < weight_bytes(llm, Precision(weights=dtype)) < math.inf
        cache = kv_bytes_per_token(llm, dtype) + kv_window_bytes(llm, dtype, 100) + state_bytes(llm)
        assert 0 <= cache < math.inf
    assert 0 < weight_bytes(llm, llm.native_precision) <= weight_bytes(llm, Precision())
    assert mtp_parameters(llm) >= 0


@given(plain_configs(), st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_damaged_configs_give_a_spec_or_a_refusal(config: Config, damage: Config) -> None:
    spec_or_refusal(config | damage)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), values, max_size=8))
def test_arbitrary_objects_give_a_spec_or_a_refusal(config: Config) -> None:
    spec_or_refusal(config)


@given(st.text(max_size=20) | st.sampled_from(["..", "/", "~", "\0", "\ud800", "config.json", "a\nb"]))
def test_arbitrary_names_give_a_spec_or_a_refusal(name: str) -> None:
    spec_or_refusal(name)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "config.json"


@given(content=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_files_give_a_spec_or_a_refusal(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    spec_or_refusal(scratch)
