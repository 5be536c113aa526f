"""Decoders of any family by their usual fields: published counts met, what the fields cannot say refused by name.

``tests/reference/decoder_configs.jsonl`` has the architectural fields of public ``config.json`` files under the names
they have there. Counts are the totals of their safetensors (huggingface.co/api/models/<repository>, safetensors.total),
or, with few digits, those of their model cards.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.core import InputError, UnsupportedFeatureError, preset
from planner.llm import DenseFeedForward, GroupedQueryAttention, LatentAttention, LlmSpec, load_llm, parameters
from planner.llm.load import INDEX_NAME
from tests.configs import Config, llama
from tests.places import REFERENCE

PUBLISHED = [json.loads(line) for line in (REFERENCE / "decoder_configs.jsonl").read_text().splitlines()]
HOUSE = llama(model_type="housellm", hidden_act="silu", rms_norm_eps=1e-6, tie_word_embeddings=False)


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["repository"] for row in PUBLISHED])
def test_public_decoders_count_what_is_published(row: Config) -> None:
    assert parameters(LlmSpec.from_config(row["config"])) == pytest.approx(row["parameters"], rel=0.01)


def test_a_family_nobody_knows_is_what_its_fields_say() -> None:
    assert LlmSpec.from_config(HOUSE).layers == LlmSpec.from_config(llama()).layers
    wide = LlmSpec.from_config(HOUSE | {"num_local_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1})
    (group,) = wide.layers
    assert group.experts is not None
    assert (group.experts.experts, group.experts.shared_intermediate) == (8, 96)
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    assert isinstance(LlmSpec.from_config(HOUSE | latent).layers[0].attention, LatentAttention)


def test_windows_of_an_unknown_family_follow_its_pattern() -> None:
    llm = LlmSpec.from_config(HOUSE | {"sliding_window": 64, "sliding_window_pattern": 3})
    windows = [group.attention.window for group in llm.layers if isinstance(group.attention, GroupedQueryAttention)]
    assert ([group.count for group in llm.layers], windows) == ([2, 1], [64, 0])


def test_newer_transformers_write_other_names_for_the_same_layers() -> None:
    """``to_json_string`` of Transformers 5.24: its parameters on the meta device are those of the older files."""

    def rewritten(llm: str, changes: dict[str, object], *dropped: str) -> LlmSpec:
        config = json.loads(preset("llms", f"{llm}.json").read_text(encoding="utf-8"))
        return LlmSpec.from_config({k: v for k, v in config.items() if k not in dropped} | changes)

    qwen = rewritten("qwen3-30b-a3b", {"num_local_experts": 128}, "num_experts")
    assert qwen.layers == load_llm("qwen3-30b-a3b").layers
    deepseek = rewritten("deepseek-v3.2", {"layer_types": ["indexed_attention"] * 61})
    assert deepseek.layers == load_llm("deepseek-v3.2").layers


def test_global_layers_of_gemma_4_layer_by_layer() -> None:
    config = json.loads(preset("llms", "gemma-4-31b.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    wide = [layer for layer, kind in enumerate(text["layer_types"]) if kind == "full_attention"]
    sizes = {"head_dim": text["global_head_dim"], "num_key_value_heads": text["num_global_key_value_heads"]}
    newer = {k: v for k, v in text.items() if "global" not in k}
    newer["per_layer_config"] = {f"{layer:02}": sizes for layer in wide}
    assert LlmSpec.from_config(newer).layers == LlmSpec.from_config(text).layers
    for wrong in ({f"{layer:02}": sizes for layer in wide[1:]}, {"00": {"head_dim": 8}}):
        with pytest.raises(UnsupportedFeatureError, match="shapes of single layers"):
            LlmSpec.from_config(newer | {"per_layer_config": wrong})


def test_experts_of_another_width_than_the_model_are_refused_or_counted() -> None:
    """Muse's experts work on ``moe_hidden_size`` channels: of 820 billion parameters twice as many were counted."""
    with pytest.raises(UnsupportedFeatureError, match=r"moe_hidden_size.*experts on a latent vector"):
        LlmSpec.from_config(HOUSE | {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_hidden_size": 32})
    muse = HOUSE | {"model_type": "muse_spark_text", "num_local_experts": 8, "num_experts_per_tok": 2}
    full, half = (LlmSpec.from_config(muse | {"moe_hidden_size": size}) for size in (64, 32))
    expert = full.layers[0].experts
    assert expert is not None
    fewer = 8 * 3 * expert.intermediate * 32 + 2 * HOUSE["hidden_size"] * 32  # of every layer
    assert parameters(full) - parameters(half) == full.num_layers * fewer


def test_differential_attention_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match="differential attention"):
        LlmSpec.from_config(HOUSE | {"model_type": "diffllama"})


@pytest.mark.parametrize("key", ["n_embd", "d_model", "n_embed"])
def test_sizes_are_found_under_their_other_names(key: str) -> None:
    renamed = {key: HOUSE["hidden_size"]} | {name: value for name, value in HOUSE.items() if name != "hidden_size"}
    assert LlmSpec.from_config(renamed) == LlmSpec.from_config(HOUSE)


def test_blocks_without_a_gate_and_falcons_two_kinds_of_kv_heads() -> None:
    # BLOOM and Falcon: ``modeling_bloom.py`` (4 x hidden, biases), ``modeling_falcon.py`` (multi_query).
    bloom, falcon = (
        next(row["config"] for row in PUBLISHED if row["repository"] == name)
        for name in ("bigscience/bloom-7b1", "tiiuae/falcon-7b")
    )
    assert LlmSpec.from_config(bloom).layers[0].feed_forward == DenseFeedForward(
        intermediate=16384, gated=False, bias=True
    )
    heads = [
        LlmSpec.from_config(falcon | {"new_decoder_architecture": new}).layers[0].attention for new in (False, True)
    ]
    assert [kind.kv_heads for kind in heads if isinstance(kind, GroupedQueryAttention)] == [1, 71]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_act": "gelu"}, r"config\.hidden_act = 'gelu': does not say if the feed-forward block is gated"),
        ({"hidden_act": None}, r"config\.hidden_act = '\(missing\)'"),
        ({"time_mix_extra_dim": 32}, r"config\.time_mix_extra_dim = 32: says more of its shapes"),
        ({"num_memory_heads": 4}, r"config\.num_memory_heads = 4: says more of its shapes"),
        ({"mamba_d_state": 16}, "state-space layers"),
        ({"linear_num_key_heads": 4}, "linear attention"),
        ({"layer_types": ["retention"] * 3}, "another type of layer"),
        ({"model_type": "rwkv"}, "time mixing of RWKV, which is not modelled"),
        ({"model_type": "jamba"}, "the state space of Mamba-1"),
        ({"model_type": "jetmoe"}, "a mixture of attention heads"),
    ],
)
def test_what_fields_cannot_say_is_refused_by_name(changes: Config, complaint: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=complaint) as caught:
        LlmSpec.from_config({key: value for key, value in (HOUSE | changes).items() if value is not None})
    assert ". Fix: " in str(caught.value)


def test_tying_that_is_not_stated_is_said() -> None:
    unsaid = {key: value for key, value in HOUSE.items() if key != "tie_word_embeddings"}
    assert "tie_word_embeddings is absent" in LlmSpec.from_config(unsaid).source
    assert "tie_word_embeddings" not in LlmSpec.from_config(HOUSE).source


@pytest.mark.parametrize(
    ("metadata", "right"),
    [
        ({"total_parameters": 1.0}, True),
        ({"total_size": 2.0}, True),  # bytes of 16-bit weights
        ({}, True),
        ({"total_parameters": 1.02}, False),
        ({"total_size": 1.9}, False),
    ],
)
def test_counts_are_held_against_the_safetensors_index(tmp_path: Path, metadata: Config, right: bool) -> None:
    config = next(row["config"] for row in PUBLISHED if row["repository"] == "google/gemma-2b")
    (tmp_path / "config.json").write_text(json.dumps(config))
    totals = {key: value * 2506172416 for key, value in metadata.items()}  # safetensors.total of google/gemma-2b
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": totals, "weight_map": {}}))
    if right:
        assert parameters(load_llm(str(tmp_path))) == 2506172416
        return
    with pytest.raises(
        InputError, match=r"its fields come to 2,506,172,416 parameters, model\.safetensors\.index\.json"
    ):
        load_llm(str(tmp_path))
