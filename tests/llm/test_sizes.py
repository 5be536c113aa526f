"""Counts and bytes of models against published checkpoints and papers, and tensor-by-tensor recounts."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hardware_db import Dtype
from planner.llm import (
    LlmSpec,
    MoeFeedForward,
    Part,
    PartPrecision,
    Precision,
    active_parameters,
    embedding_parameters,
    encoder_parameters,
    kv_bytes_per_token,
    linear_parameters,
    linear_parameters_by_part,
    list_llms,
    lm_head_weights,
    load_llm,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.sizes import mtp_parameters
from tests.configs import Config, kv_window_bytes, preset_config
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


MORE_THAN_COLLECTED = {
    "step-3.7-flash",
    *(f"nvidia-nemotron-3-super-120b-a12b-{kind}" for kind in ("fp8", "nvfp4")),
}
"""Presets with more keys than the collections hold, or with formats that stand in a file beside the configuration."""

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
    assert len(counted) > 30 and counted <= {load_llm(preset).name for preset in list_llms()}


def test_presets_agree_with_the_checkpoints_collected(shared: Path) -> None:
    """Those of the first collection say nothing of prediction modules and encoders."""
    compared, unknown = 0, {"mtp": None, "mtp_layers": 0, "encoder": None}
    for preset in sorted(set(list_llms()) - MORE_THAN_COLLECTED):
        llm = load_llm(preset)
        name = f"{llm.name.replace('/', '--')}.json"
        first, later = (shared / "reference" / folder / name for folder in ("models", "models_2026"))
        path, same = (first, unknown) if first.is_file() else (later, {})
        if path.is_file():
            same = {"source": "", "id": "", "name": "", **same}
            assert llm.model_copy(update=same) == LlmSpec.from_config(path).model_copy(update=same), preset
            compared += 1
    assert compared > 60


# ------------------------------------------------------------------------------------------ bytes


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
        ("mixtral-8x7b-v0.1", 131_072, 0),  # experts have no KV cache
        ("opt-13b", 819_200, 0),  # 800 KB: Kwon et al. 2023, arXiv:2309.06180, sec. 3
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


def test_states_are_constant_and_only_where_there_is_recurrence() -> None:
    assert state_bytes(load_llm("deepseek-v3")) == 0
    qwen3_5 = 45 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)
    assert state_bytes(load_llm("qwen3.5-397b-a17b")) == qwen3_5
    # shapes (3, 6144) and (64, 64, 128) of vLLM's Mamba-2 cache for these sizes
    assert state_bytes(load_llm("nvidia-nemotron-3-nano-30b-a3b-bf16")) == 23 * (3 * 6144 * 2 + 64 * 64 * 128 * 4)


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


# ------------------------------------------------------------------------------------------ tensor-by-tensor recount


def linear(name: str, rows: int, columns: int, bias: bool = False) -> dict[str, int]:
    return {f"{name}.weight": rows * columns} | ({f"{name}.bias": rows} if bias else {})


def gated(at: str, hidden: int, size: int, bias: bool = False) -> dict[str, int]:
    into = linear(f"{at}.gate_proj", size, hidden, bias) | linear(f"{at}.up_proj", size, hidden, bias)
    return into | linear(f"{at}.down_proj", hidden, size, bias)


def tensors(config: Config) -> dict[str, int]:
    """Values of every tensor of a checkpoint by name, for families and flags that no published count above has."""
    kind, hidden, vocab = config["model_type"], config["hidden_size"], config["vocab_size"]
    sizes = {"embed_tokens.weight": vocab * hidden, "norm.weight": hidden}
    if kind == "opt":
        sizes |= {"embed_positions.weight": (config["max_position_embeddings"] + 2) * hidden, "norm.bias": hidden}
    if not config.get("tie_word_embeddings", kind in ("cohere", "opt")):
        sizes["lm_head.weight"] = vocab * hidden
    for layer in range(config["num_hidden_layers"]):
        sizes |= attention_tensors(config, f"layers.{layer}") | feed_forward_tensors(config, layer, f"layers.{layer}")
    return sizes


def attention_tensors(config: Config, at: str) -> dict[str, int]:
    """With the norms before both blocks."""
    kind, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    kv, head = config["num_key_value_heads"], config.get("head_dim", hidden // heads)
    biased, sizes = kind == "opt" or config.get("attention_bias", False), dict[str, int]()
    for name in ("input",) if kind == "cohere" else ("input", "post_attention"):
        sizes |= {f"{at}.{name}_layernorm": hidden * (2 if kind == "opt" else 1)}
    for name, rows in (("q", heads * head), ("k", kv * head), ("v", kv * head)):
        sizes |= linear(f"{at}.{name}_proj", rows, hidden, biased or kind in ("qwen2", "qwen2_moe"))
    sizes |= linear(f"{at}.o_proj", hidden, heads * head, biased)
    if kind in ("qwen3", "qwen3_moe") or config.get("use_qk_norm"):
        sizes[f"{at}.qk_norms"] = (heads + kv if kind == "cohere" else 2) * head
    return sizes


def feed_forward_tensors(config: Config, layer: int, at: str) -> dict[str, int]:
    hidden, wide, experts = config["hidden_size"], config.get("ffn_dim"), config.get("num_experts")
    if wide:
        return linear(f"{at}.up_proj", wide, hidden, bias=True) | linear(f"{at}.down_proj", hidden, wide, bias=True)
    if not experts or layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"]:
        return gated(f"{at}.mlp", hidden, config["intermediate_size"], config.get("mlp_bias", False))
    sizes = linear(f"{at}.gate", experts, hidden)
    for expert in range(experts):
        sizes |= gated(f"{at}.experts.{expert}", hidden, config["moe_intermediate_size"])
    if shared := config.get("shared_expert_intermediate_size", 0):
        sizes |= gated(f"{at}.shared_expert", hidden, shared) | {f"{at}.shared_expert_gate": hidden}
    return sizes


FLAGS = {
    "llama": ("attention_bias", "mlp_bias"),
    "qwen2": (),
    "qwen3": ("attention_bias",),
    "cohere": ("attention_bias", "use_qk_norm"),
    "opt": (),
    "qwen3_moe": (),
    "qwen2_moe": (),
}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Small valid configs of the families that are counted above."""
    kind = draw(st.sampled_from(sorted(FLAGS)))
    small, kv, experts = st.integers(1, 6), draw(st.integers(1, 3)), draw(st.integers(2, 5))
    heads, head = kv * draw(st.integers(1, 3)), draw(small)
    config: Config = {
        "model_type": kind,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kind == "opt" else kv,
        "hidden_size": heads * head,
        "num_hidden_layers": draw(small),
        "vocab_size": draw(st.integers(1, 50)),
        "max_position_embeddings": draw(st.integers(1, 64)),
        "intermediate_size": draw(small),
        **{name: draw(st.booleans()) for name in FLAGS[kind]},
    }
    if kind.startswith("qwen3"):
        config["head_dim"] = draw(small)
    if kind == "opt":
        config["ffn_dim"] = draw(small)
    elif draw(st.booleans()):
        config["tie_word_embeddings"] = draw(st.booleans())
    if kind.endswith("_moe"):
        config |= {"num_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts))}
        config |= {"moe_intermediate_size": draw(small), "decoder_sparse_step": draw(st.integers(1, 3))}
        config["mlp_only_layers"] = draw(st.lists(small, max_size=3))
    if kind == "qwen2_moe":
        config["shared_expert_intermediate_size"] = draw(small)
    return config


@given(configs())
def test_counts_are_the_sum_over_all_tensors(config: Config) -> None:
    llm, sizes = LlmSpec.from_config(config), tensors(config)
    assert parameters(llm) == sum(sizes.values())
    assert linear_parameters(llm) == sum(size for name, size in sizes.items() if name.endswith("_proj.weight"))
    embeddings = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")
    assert embedding_parameters(llm) == sum(sizes.get(name, 0) for name in embeddings)
    assert lm_head_weights(llm) == sizes["embed_tokens.weight"]
    moe = [group.experts for group in llm.layers if group.experts is not None]
    whole = all(block.experts_per_token == block.experts for block in moe)
    assert (active_parameters(llm) == parameters(llm)) == whole


@given(configs())
def test_parameters_and_kv_bytes_grow_by_the_same_amount_with_every_layer(config: Config) -> None:
    assume(not config["model_type"].endswith("_moe"))  # their layers differ
    layers = config["num_hidden_layers"]
    one, two, three = (LlmSpec.from_config(config | {"num_hidden_layers": layers + more}) for more in range(3))
    assert parameters(three) - parameters(two) == parameters(two) - parameters(one) > 0
    assert kv_bytes_per_token(one, Dtype.BF16) * (layers + 1) == kv_bytes_per_token(two, Dtype.BF16) * layers
