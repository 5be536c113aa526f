"""DeepSeek-V4 against published counts, its tensors counted one by one, and caches worked out by hand."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.core import InputError, UnsupportedFeatureError
from planner.llm import (
    LlmSpec,
    Part,
    active_parameters,
    kv_bytes_per_token,
    lm_head_weights,
    load_llm,
    parameters,
    state_bytes,
    weight_bytes,
)
from planner.llm.compressed_attention import CompressedAttention
from planner.llm.sizes import mtp_parameters
from tests.configs import Config, kv_window_bytes, preset_config
from tests.places import SHARED

FLASH, PRO = (preset_config(f"deepseek-v4-{name}") for name in ("flash", "pro"))
CONFIGS = SHARED / "reference" / "models_2026"


def spec(config: Config, **changes: object) -> LlmSpec:
    return LlmSpec.from_config({key: value for key, value in {**config, **changes}.items() if value is not None})


def counted(config: Config) -> int:
    """Values of the tensors that ``inference/model.py`` of the checkpoint makes, multi-token prediction apart."""
    hidden, heads, d = config["hidden_size"], config["num_attention_heads"], 512
    rank, groups, experts = config["q_lora_rank"], config["o_groups"], config["n_routed_experts"]
    expert = 3 * hidden * config["moe_intermediate_size"]
    total = 2 * config["vocab_size"] * hidden + hidden  # embed, head, norm
    total += 4 * (4 * hidden) + 4 + 1  # hc_head_fn, hc_head_base, hc_head_scale
    for layer, ratio in enumerate(config["compress_ratios"][: config["num_hidden_layers"]]):
        total += (
            heads + hidden * rank + rank + rank * heads * d + hidden * d + d
        )  # attn_sink, wq_a, q_norm, wq_b, wkv, ...
        total += (heads * d // groups) * groups * 1024 + groups * 1024 * hidden  # wo_a, wo_b
        if ratio:
            parts = 2 if ratio == 4 else 1
            total += ratio * parts * d + 2 * hidden * parts * d + d  # ape, wkv and wgate, norm
        if ratio == 4:
            total += rank * 64 * 128 + hidden * 64  # indexer.wq_b, weights_proj
            total += 4 * 2 * 128 + 2 * hidden * 2 * 128 + 128  # its compressor
        total += experts * hidden + (experts if layer >= config["num_hash_layers"] else 0)  # gate.weight, gate.bias
        total += (experts + 1) * expert
        total += 2 * hidden + 2 * (24 * 4 * hidden + 24 + 3)  # norms, hc_attn_* and hc_ffn_*
    return int(total)


@pytest.mark.parametrize("config", [FLASH, PRO], ids=["flash", "pro"])
def test_parameters_are_the_tensors_counted_one_by_one(config: Config) -> None:
    assert parameters(spec(config)) == counted(config)


@pytest.mark.parametrize(("name", "total", "active"), [("flash", "284B", "13B"), ("pro", "1.6T", "49B")])
def test_totals_are_the_published_ones(name: str, total: str, active: str) -> None:
    """Model cards: huggingface.co/deepseek-ai/DeepSeek-V4-Flash and -Pro; active ones without the embedding table."""
    llm = load_llm(f"deepseek-v4-{name}")
    used = active_parameters(llm) - lm_head_weights(llm)
    found = parameters(llm)
    assert (f"{found / 1e9:.0f}B" if found < 1e12 else f"{found / 1e12:.1f}T") == total
    assert f"{used / 1e9:.0f}B" == active


def test_values_that_the_hub_counts() -> None:
    """huggingface.co/deepseek-ai/DeepSeek-V4-Flash-Base: 292B, in FP8; -Pro: about 862B, two 4-bit weights in a byte.

    Both hold the module with its copies of embeddings and LM head, and the scales.
    """
    flash, pro = load_llm("deepseek-v4-flash"), load_llm("deepseek-v4-pro")
    base = parameters(flash) + mtp_parameters(flash) + 2 * lm_head_weights(flash)
    assert base == pytest.approx(292e9, rel=0.003)
    expert_weights = 62 * 384 * 3 * 7168 * 3072
    stored = parameters(pro) + mtp_parameters(pro) + 2 * lm_head_weights(pro) - expert_weights
    stored += expert_weights / 2 + expert_weights / 32
    assert stored == pytest.approx(862e9, rel=0.003)


def test_cache_of_flash_by_hand() -> None:
    """8 bits: 448 channels, 64 of 2 bytes with the position, 7 scales and a byte: 584 an entry; 132 an index key."""
    llm = load_llm("deepseek-v4-flash")
    sparse, heavy = 21, 20
    assert llm.native_precision.kv_cache is Dtype.FP8
    by_hand = sparse * (584 / 4 + 132 / 4) + heavy * 584 / 128
    assert kv_bytes_per_token(llm, Dtype.FP8) == pytest.approx(by_hand)
    assert kv_window_bytes(llm, Dtype.FP8, 1e6) == 43 * 128 * 584
    assert kv_window_bytes(llm, Dtype.FP8, 100) == 43 * 100 * 584
    # keys and gates in 32 bits: of 8 tokens with two parts of 512 and of 128 channels, and of 128 tokens with one
    assert state_bytes(llm) == sparse * 2 * 8 * 2 * (512 + 128) * 4 + heavy * 2 * 128 * 512 * 4


def test_cache_of_pro_at_a_million_tokens_is_the_published_one() -> None:
    """9.62 GiB a sequence of 2^20 tokens in 16 bits, index keys too (vLLM, blog of 24 April 2026, "DeepSeek V4")."""
    llm, tokens = load_llm("deepseek-v4-pro"), 2**20
    index_16_bit = 30 * (2 * 128 - 132) / 4
    total = (kv_bytes_per_token(llm, Dtype.BF16) + index_16_bit) * tokens
    assert total / 2**30 == pytest.approx(9.62, abs=0.005)


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the reference configurations are not beside the checkout")
@pytest.mark.parametrize(
    ("name", "experts", "gigabytes"),
    [
        # 43 x 256 experts of 25.2 million weights at 4.25, 4.5 and 8 bits, and 7.2 billion others in 8 or 16 bits
        ("deepseek-ai--DeepSeek-V4-Flash", (Dtype.MXFP4, Dtype.FP8), 155.9),
        ("nvidia--DeepSeek-V4-Flash-NVFP4", (Dtype.NVFP4, Dtype.NVFP4), 164.6),
        ("sgl-project--DeepSeek-V4-Flash-FP8", (Dtype.FP8_BLOCK, Dtype.FP8), 285.9),
        ("deepseek-ai--DeepSeek-V4-Pro", (Dtype.MXFP4, Dtype.FP8), 850.6),
        ("sgl-project--DeepSeek-V4-Pro-FP8", (Dtype.FP8_BLOCK, Dtype.FP8), 1576.3),
    ],
)
def test_formats_of_every_checkpoint(name: str, experts: tuple[Dtype, Dtype], gigabytes: float) -> None:
    llm = LlmSpec.from_config(CONFIGS / f"{name}.json")
    precision = llm.native_precision
    assert precision.of(Part.EXPERTS) == experts
    assert precision.of(Part.ATTENTION) == precision.of(Part.SHARED_EXPERTS) == (Dtype.FP8_BLOCK, Dtype.FP8)
    assert precision.of(Part.LM_HEAD) == (Dtype.BF16, Dtype.BF16)
    assert weight_bytes(llm, precision) / 1e9 == pytest.approx(gigabytes, abs=0.06)
    assert llm.max_context_tokens == 2**20


def test_the_prediction_module_sees_the_window_alone() -> None:
    """One layer of ratio 0 beside the 43: its experts, e_proj and h_proj make 6.6 billion."""
    llm = load_llm("deepseek-v4-flash")
    assert llm.mtp is not None
    assert isinstance(llm.mtp.attention, CompressedAttention)
    assert llm.mtp.attention.ratio == 0
    layer = 257 * 3 * 4096 * 2048 + 4096 * (1024 + 512) + 1024 * 32_768 + 2 * 8192 * 4096
    assert mtp_parameters(llm) == pytest.approx(layer + 2 * 4096**2, rel=0.001)


def test_a_config_of_transformers_says_the_same() -> None:
    """``layer_types``, ``compress_rates`` and ``mlp_layer_types`` of ``DeepseekV4Config``."""
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    ratios = FLASH["compress_ratios"][:43]
    llm = spec(
        FLASH,
        compress_ratios=None,
        num_hash_layers=None,
        layer_types=[names[ratio] for ratio in ratios],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        mlp_layer_types=["hash_moe"] * 3 + ["moe"] * 40,
    )
    assert llm.layers == load_llm("deepseek-v4-flash").layers
    assert llm.layer_order == load_llm("deepseek-v4-flash").layer_order


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compress_ratios": [8] * 43}, "tokens to a compressed key"),
        ({"num_key_value_heads": 2}, "one key for all heads"),
        ({"attention_bias": True}, "biases of compressed attention"),
        ({"expert_dtype": "int4"}, "only fp4 and fp8"),
        ({"engram_layer_ids": None, "kv_lora_rank": None, "index_kpool": 4}, "pooled"),
    ],
)
def test_what_would_change_a_count_is_refused_by_name(changes: Config, named: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=named):
        spec(FLASH, **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compress_ratios": [4, 128]}, "one entry for each of num_hidden_layers"),
        ({"o_groups": 7}, "must divide heads"),
        ({"o_lora_rank": None}, "o_lora_rank"),
        ({"index_topk": None}, "index_topk"),
    ],
)
def test_missing_and_inconsistent_sizes_are_named(changes: Config, named: str) -> None:
    with pytest.raises(InputError, match=named):
        spec(FLASH, **changes)
