"""Attention over chosen keys: GLM-5.2, whose layers share choices, and MiniMax-M3, whose index chooses blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hardware_db import Dtype
from planner.core import InputError, UnsupportedFeatureError
from planner.llm import (
    LatentAttention,
    LlmSpec,
    Part,
    active_parameters,
    embedding_parameters,
    kv_bytes_per_token,
    load_llm,
    parameters,
    weight_bytes,
)
from planner.llm.layers import Attention
from planner.llm.sizes import index_bytes_per_token, mtp_parameters
from tests.configs import Config, preset_config
from tests.places import SHARED

MODELS = SHARED / "reference" / "models_2026"
GLM_52, M3 = preset_config("glm-5.2"), preset_config("minimax-m3")


def checkpoint(name: str) -> Path:
    """A configuration of the larger collection; skips where it is not beside this checkout."""
    path = MODELS / f"{name}.json"
    if not path.is_file():
        pytest.skip("the shared reference data are not beside this checkout")
    return path


def attentions(llm: LlmSpec) -> list[Attention]:
    return [group.attention for group in llm.layers for _ in range(group.count) if group.attention is not None]


# ------------------------------------------------------------------------------------------ GLM-5.2


def choosing(llm: LlmSpec) -> int:
    """Layers that choose their keys themselves."""
    kinds = attentions(llm)
    assert all(isinstance(kind, LatentAttention) and kind.index is not None for kind in kinds)
    return sum(not kind.index.shared for kind in kinds if isinstance(kind, LatentAttention) and kind.index is not None)


def test_one_layer_in_four_chooses():
    # sgl-project/sglang#30531: "21 of 78 layers are active indexer layers, 57 are skip-topk"
    assert choosing(load_llm("glm-5.2")) == 21


def test_a_token_takes_the_bytes_that_sglang_measured():
    # the same thread: 55,225 bytes a token with an index key in every layer, 47,702 without, of an 8-bit cache
    assert kv_bytes_per_token(load_llm("glm-5"), Dtype.FP8) == pytest.approx(55_225, abs=2)
    assert kv_bytes_per_token(load_llm("glm-5.2"), Dtype.FP8) == pytest.approx(47_702, abs=2)
    assert kv_bytes_per_token(load_llm("glm-5.2"), Dtype.FP8) == 78 * (512 + 64) + 21 * (128 + 4)


def test_layers_that_share_have_no_weights_of_an_index():
    per_layer = 2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128  # wq_b, wk, weights_proj, norm with bias
    assert parameters(load_llm("glm-5")) - parameters(load_llm("glm-5.2")) == 57 * per_layer


def test_parameters_are_the_publishers():
    # arXiv:2602.15763, table 1: 744B and 40B; vLLM's recipe of GLM-5.2: 743B and 39B; without embedding tables
    for name, total, active in (("glm-5", 744e9, 40e9), ("glm-5.2", 743e9, 39e9)):
        llm = load_llm(name)
        assert parameters(llm) == pytest.approx(total, rel=0.01)
        assert active_parameters(llm) - embedding_parameters(llm) == pytest.approx(active, rel=0.01)


def test_a_prediction_module_chooses_for_itself():
    # the index of layer 78 is in the unquantised modules of GLM-5.2-FP8; 753B on the Hub is 743.4B and the module
    llm = load_llm("glm-5.2")
    assert llm.mtp is not None and isinstance(llm.mtp.attention, LatentAttention)
    assert llm.mtp.attention.index is not None and not llm.mtp.attention.index.shared
    assert parameters(llm) + mtp_parameters(llm) == pytest.approx(753.3e9, rel=0.001)


@pytest.mark.parametrize(
    "said",
    [
        {"indexer_types": None},  # index_topk_freq 4 and index_skip_topk_offset 3
        {"indexer_types": None, "index_topk_pattern": "FFF" + ("SSSF" * 19)[:75]},
        {"indexer_types": None, "index_topk_pattern": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3},
    ],
)
def test_ways_to_say_who_chooses_agree(said: Config):
    assert load_llm(GLM_52 | said).layers == load_llm("glm-5.2").layers


def test_a_schedule_follows_its_offset():
    by_layer = {**GLM_52, "indexer_types": None, "index_topk_freq": 3}
    # layers 0, 1, 2, then every third from layer 2 + 3 on: max(layer - 2, 0) % 3 == 0
    assert choosing(load_llm(by_layer)) == sum(max(layer - 2, 0) % 3 == 0 for layer in range(78))
    assert choosing(load_llm({**by_layer, "index_skip_topk_offset": None})) == sum(
        max(layer - 1, 0) % 3 == 0 for layer in range(78)
    )


@pytest.mark.parametrize(
    ("name", "dtype", "bytes_per_weight"),
    [("zai-org--GLM-5.2-FP8", Dtype.FP8_BLOCK, 1.0), ("nvidia--GLM-5.2-NVFP4", Dtype.NVFP4, 0.5625)],
)
def test_checkpoints_of_glm_5_load(name: str, dtype: Dtype, bytes_per_weight: float):
    llm = load_llm(checkpoint(name))
    assert choosing(llm) == 21
    assert llm.native_precision.of(Part.EXPERTS)[0] is dtype
    experts = 75 * 256 * 3 * 6144 * 2048
    rest = parameters(llm) - experts
    least, most = (experts * bytes_per_weight + rest * each for each in (1.0, 2.0))
    assert least < weight_bytes(llm, llm.native_precision) <= most * 1.001


def test_glm_51_in_nvfp4_chooses_everywhere():
    assert choosing(load_llm(checkpoint("nvidia--GLM-5.1-NVFP4"))) == 78


# ------------------------------------------------------------------------------------------ MiniMax-M3


def test_parameters_of_m3_tensor_by_tensor():
    norms, embeddings = 2 * 6144, 2 * 200_064 * 6144
    attention = 6144 * (64 + 4 + 4) * 128 + 64 * 128 * 6144 + 2 * 128
    index = 6144 * (4 + 1) * 128 + 2 * 128
    experts = 128 * 3 * 6144 * 3072 + 3 * 6144 * 3072 + 128 * 6144 + 128
    dense = 3 * 6144 * 12_288
    total = embeddings + 6144 + 60 * (norms + attention) + 3 * dense + 57 * (index + experts)
    assert parameters(load_llm("minimax-m3")) == total
    # model card: ~428B with the vision encoder (32 layers of 1280 channels, 0.6B); 854 GB of files in 16 bit
    assert total == pytest.approx(428e9, rel=0.01)
    assert 2 * (total + 0.65e9) == pytest.approx(854e9, rel=0.001)


def test_active_parameters_of_m3_are_about_the_publishers():
    # model card: ~23B, a figure of two digits; without embedding tables, as for other models
    llm = load_llm("minimax-m3")
    assert 22.5e9 <= active_parameters(llm) - embedding_parameters(llm) < 23.6e9


def test_m3_keeps_a_16_bit_index_key_a_token_and_layer_whatever_the_cache():
    llm = load_llm("minimax-m3")
    assert index_bytes_per_token(llm) == 57 * 128 * 2
    for kv, each in ((Dtype.BF16, 2), (Dtype.FP8, 1)):
        assert kv_bytes_per_token(llm, kv) == 60 * 2 * 4 * 128 * each + 57 * 256


def test_the_names_of_transformers_5_say_the_same():
    gone = ("sparse_attention_config", "moe_layer_freq", "first_k_dense_replace", "num_mtp_modules")
    config: dict[str, Any] = {key: value for key, value in M3.items() if key not in gone}
    config |= {
        "model_type": "minimax_m3_vl_text",
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
        "index_n_heads": 4,
        "index_head_dim": 128,
        "index_block_size": 128,
        "index_topk_blocks": 16,
        "index_local_blocks": 1,
    }
    assert load_llm(config).layers == load_llm("minimax-m3").layers


def sparse_config(**changes: object) -> Config:
    """M3 with another index."""
    index = M3["sparse_attention_config"]
    assert isinstance(index, dict)
    return M3 | {"sparse_attention_config": index | changes}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (sparse_config(sparse_disable_index_value=[0] * 60), "an index with values of its own is not modelled"),
        (M3 | {"attention_output_gate": True}, "a gate on the output is not modelled"),
        (M3 | {"qk_norm_type": "multi_head"}, "this norm of queries and keys is not modelled"),
        (M3 | {"index_topk_freq": 4}, "a sparse attention index shared between layers"),
    ],
)
def test_variants_of_m3_are_refused(config: Config, complaint: str):
    with pytest.raises(UnsupportedFeatureError, match=complaint):
        load_llm(config)


def test_the_mixed_checkpoint_of_m3_loads():
    llm = load_llm(checkpoint("nvidia--MiniMax-M3-NVFP4"))
    assert llm.layers == load_llm("minimax-m3").layers
    formats = llm.native_precision
    assert [formats.of(part)[0] for part in (Part.EXPERTS, Part.ATTENTION, Part.SHARED_EXPERTS, Part.LM_HEAD)] == [
        Dtype.NVFP4,
        Dtype.MXFP8,
        Dtype.MXFP8,
        Dtype.BF16,
    ]
    experts = 57 * 128 * 3 * 6144 * 3072
    plain = embedding_parameters(llm) + 57 * 128 * 6144
    other = parameters(llm) - experts - plain
    by_hand = experts * 0.5625 + other * 33 / 32 + 2 * plain
    assert weight_bytes(llm.model_copy(update={"encoder": None}), formats) == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("name", ["MiniMaxAI--MiniMax-M2.5", "MiniMaxAI--MiniMax-M2.7"])
def test_m2_has_229_billion_parameters_of_which_10_are_active(name: str):
    # model card: 230B and 10B
    llm = load_llm(checkpoint(name))
    assert parameters(llm) == pytest.approx(230e9, rel=0.01)
    assert active_parameters(llm) - embedding_parameters(llm) == pytest.approx(10e9, rel=0.025)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"indexer_types": ["full"] * 3}, "indexer_types = '3 entries': must have one entry for each"),
        ({"indexer_types": ["shared"] + ["full"] * 77}, "the first layer has no earlier choice"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types = '1 entries': must have one entry for each"),
    ],
)
def test_lists_of_another_length_are_refused(change: Config, complaint: str):
    with pytest.raises(InputError, match=complaint):
        load_llm(GLM_52 | change)


@pytest.mark.parametrize("key", ["indexer_types", "mlp_layer_types"])
def test_unknown_modes_are_refused(key: str):
    with pytest.raises(UnsupportedFeatureError, match=rf"{key} = '?sometimes"):
        load_llm(GLM_52 | {key: ["sometimes"] * 78})
