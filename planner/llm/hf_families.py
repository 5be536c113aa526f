"""Families of decoders: what a ``model_type`` fixes beside the sizes in its ``config.json``.

Plain decoders are rows of ``presets/decoder_families.csv``, and one that has no row is read by its fields alone
(`planner.llm.hf_usual`). The others are rows of `FAMILIES`, each as ``modeling_<model_type>.py`` in Hugging Face
Transformers defines it; the arrangements of blocks a row names are read in `planner.llm.hf_layers`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from planner.core import preset_rows
from planner.llm.hf_config import ConfigFields, Feature, refuse_unmodelled
from planner.llm.hf_hybrid import (
    kimi_attentions,
    kimi_experts,
    nemotron_attentions,
    nemotron_feed_forwards,
    nemotron_prediction,
    searched_attentions,
    searched_feed_forwards,
)
from planner.llm.hf_layers import (
    Attentions,
    AttentionTraits,
    FeedForwards,
    QkNorm,
    alternating_windows,
    biased_experts,
    chunked_attention,
    corrected_experts,
    deepseek_experts,
    ernie_experts,
    gated_layers,
    interleaved_experts,
    late_windows,
    linear_and_full,
    local_experts,
    opt_layers,
    periodic_windows,
    qwen_experts,
    same_attention,
    same_latent,
)
from planner.llm.hf_local_global import (
    gemma4_attentions,
    gemma4_feed_forwards,
    gemma4_layer_embedding,
    mimo_attentions,
    mimo_feed_forwards,
    mimo_prediction,
    step_attentions,
    step_feed_forwards,
    step_prediction,
)
from planner.llm.hf_sparse import (
    block_sparse_attention,
    block_sparse_experts,
    choosing_prediction,
    compressed_attentions,
    compressed_prediction,
    hash_experts,
    shared_choices,
    typed_experts,
)
from planner.llm.hf_usual import (
    alternating_spans,
    indexed_state_spaces,
    parallel_attentions,
    parallel_feed_forwards,
    refuse_unsaid,
    usual_attentions,
    usual_feed_forwards,
    with_usual_names,
)
from planner.llm.layers import Attention, DecoderLayers, FeedForward, LayerEmbedding, LayerGroup, NormKind

Blocks = tuple[Attention | None, FeedForward | None]
"""Attention and feed-forward of one layer."""


class ModelFamily(NamedTuple):
    """Traits that a ``model_type`` fixes beside the sizes in its config.

    Attributes:
        feed_forwards: reader of the feed-forward blocks.
        attentions: reader of the attention blocks.
        attention: what is fixed about attention.
        models: features that a config of this family may ask for.
        tied: default of ``tie_word_embeddings``.
        norm: kind of norm.
        norms_per_layer: norms over the hidden channels in a layer of attention and feed-forward; of one of them, half.
        defaults: class defaults of fields that published configs leave out.
        position_offset: rows of the table of learned positions before position 0; None without such a table.
        prediction: reader of the blocks of a multi-token-prediction module that does not repeat the last layer.
        has_modules: checkpoints hold the multi-token-prediction modules that their configs name.
        layer_embedding: reader of the embedding of single layers, of a family that may have one.
        usual: its sizes have any of their usual names (`planner.llm.hf_usual`).
    """

    feed_forwards: Callable[[ConfigFields], FeedForwards] = gated_layers
    attentions: Callable[[ConfigFields, AttentionTraits], Attentions] = same_attention
    attention: AttentionTraits = AttentionTraits()
    models: frozenset[Feature] = frozenset()
    tied: bool = False
    norm: NormKind = NormKind.RMS
    norms_per_layer: int = 2
    defaults: Mapping[str, object] = {}
    position_offset: int | None = None
    prediction: Callable[[ConfigFields, AttentionTraits], Blocks | None] | None = None
    has_modules: bool = True
    layer_embedding: Callable[[ConfigFields], LayerEmbedding | None] | None = None
    usual: bool = False


_KV = ("num_key_value_heads",)
_KV_AND_HEAD = ("num_key_value_heads", "head_dim")
_FLAGGED_BIAS = AttentionTraits(qkv_bias="attention_bias", output_bias="attention_bias")
_WINDOW = frozenset({Feature.WINDOW})
_LOCAL_AND_GLOBAL = frozenset({Feature.WINDOW, Feature.HYBRID})
_DEEPSEEK = frozenset({Feature.LATENT, Feature.SHARED_EXPERTS, Feature.LEADING_DENSE})
_COMPRESSED = frozenset(
    {
        Feature.COMPRESSED,
        Feature.LATENT,
        Feature.SPARSE_INDEX,
        Feature.WINDOW,
        Feature.HYBRID,
        Feature.SHARED_EXPERTS,
        Feature.HASHED_EXPERTS,
        Feature.HYPER_CONNECTIONS,
    }
)
_DELTA_NET = frozenset({Feature.LINEAR, Feature.SHARED_EXPERTS})

_QWEN3 = _FLAGGED_BIAS._replace(qk_norm=QkNorm.SHARED, required=_KV_AND_HEAD)
_GATED_QWEN = _QWEN3._replace(output_gate=True)
_GEMMA_DEFAULTS = {"vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window": 4096}
_GEMMA_DEFAULTS |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_MISTRAL_WINDOW = {"sliding_window": 4096}

_QWEN3_DENSE = ModelFamily(attentions=late_windows, attention=_QWEN3, models=_LOCAL_AND_GLOBAL)
_QWEN3_MOE = ModelFamily(qwen_experts, late_windows, _QWEN3, _LOCAL_AND_GLOBAL)
_QWEN3_HYBRID = ModelFamily(qwen_experts, linear_and_full, _GATED_QWEN, _DELTA_NET)
_GEMMA4 = ModelFamily(
    gemma4_feed_forwards,
    gemma4_attentions,
    _FLAGGED_BIAS._replace(qk_norm=QkNorm.SHARED, required=_KV_AND_HEAD),
    _LOCAL_AND_GLOBAL | {Feature.SHARED_CACHE},
    tied=True,
    norms_per_layer=4,
    layer_embedding=gemma4_layer_embedding,
)
_MIMO_V2 = ModelFamily(
    mimo_feed_forwards,
    mimo_attentions,
    AttentionTraits(qkv_bias="attention_bias", required=_KV_AND_HEAD),
    _LOCAL_AND_GLOBAL | {Feature.CHUNKED},
    prediction=mimo_prediction,
)
_STEP = ModelFamily(
    step_feed_forwards,
    step_attentions,
    AttentionTraits(qkv_bias="attention_bias", qk_norm=QkNorm.SHARED, required=_KV_AND_HEAD),
    _LOCAL_AND_GLOBAL | {Feature.SHARED_EXPERTS, Feature.LEADING_DENSE},
    prediction=step_prediction,
)
_BLOCK_SPARSE = ModelFamily(
    block_sparse_experts,
    block_sparse_attention,
    AttentionTraits(required=_KV_AND_HEAD),
    frozenset({Feature.SPARSE_BLOCKS, Feature.SPARSE_INDEX, Feature.SHARED_EXPERTS, Feature.LEADING_DENSE}),
    has_modules=False,
)
_DEEPSEEK_MOE = ModelFamily(typed_experts, same_latent, models=_DEEPSEEK)

_DEEPSEEK_V4 = ModelFamily(hash_experts, compressed_attentions, models=_COMPRESSED, prediction=compressed_prediction)

_USUAL = frozenset({Feature.LATENT, Feature.WINDOW, Feature.HYBRID, Feature.SHARED_EXPERTS, Feature.LEADING_DENSE})
_USUAL |= {Feature.INTERLEAVED}


def _usual_family(row: Mapping[str, str]) -> ModelFamily:
    """A family as its row of ``decoder_families.csv`` says; an empty cell: as its fields say, or as Llama has it."""
    named_norm = row.get("qk_norm")
    return ModelFamily(
        partial(
            usual_feed_forwards,
            gated=row.get("gated") != "no",
            bias=row["mlp_bias"] == "yes" if row.get("mlp_bias") else None,
        ),
        usual_attentions,
        AttentionTraits(
            qkv_bias=row["qkv_bias"] == "yes" if row.get("qkv_bias") else "qkv_bias",
            output_bias=row["output_bias"] == "yes" if row.get("output_bias") else "output_bias",
            qk_norm=QkNorm(named_norm or QkNorm.SHARED),
            qk_norm_flag=None if named_norm else "use_qk_norm",
            sinks=row.get("sinks") == "yes",
            output_gate=row.get("output_gate") == "yes",
        ),
        _USUAL,
        tied=row.get("tied") == "yes",
        norm=NormKind(row.get("norm") or NormKind.RMS),
        norms_per_layer=int(row.get("norms_per_layer") or 2),
        defaults=json.loads(row.get("defaults") or "{}"),
        position_offset=int(row["position_offset"]) if row.get("position_offset") else None,
        usual=True,
    )


_UNKNOWN = _usual_family({})
_TABLE = {row["model_type"]: row for row in preset_rows("decoder_families.csv")}
_ROWS = {model_type: _usual_family(row) for model_type, row in _TABLE.items() if not row["refused"]}
_MAMBA = _USUAL | {Feature.STATE_SPACE, Feature.LINEAR}

FAMILIES: dict[str, ModelFamily] = _ROWS | {
    "bamba": _ROWS["bamba"]._replace(attentions=indexed_state_spaces, models=_MAMBA),
    "falcon_h1": _ROWS["falcon_h1"]._replace(
        feed_forwards=parallel_feed_forwards, attentions=parallel_attentions, models=_MAMBA
    ),
    "gpt_neo": _ROWS["gpt_neo"]._replace(attentions=alternating_spans),
    "granitemoehybrid": _ROWS["granitemoehybrid"]._replace(models=_MAMBA),
    "olmo_hybrid": _ROWS["olmo_hybrid"]._replace(attentions=linear_and_full, models=_USUAL | {Feature.LINEAR}),
    "llama": ModelFamily(attention=_FLAGGED_BIAS),
    "mistral": ModelFamily(attention=_FLAGGED_BIAS._replace(required=_KV), models=_WINDOW, defaults=_MISTRAL_WINDOW),
    "mixtral": ModelFamily(local_experts, attention=AttentionTraits(required=_KV), models=_WINDOW),
    "qwen2": ModelFamily(
        attentions=late_windows, attention=AttentionTraits(qkv_bias=True, required=_KV), models=_LOCAL_AND_GLOBAL
    ),
    "qwen2_moe": ModelFamily(
        qwen_experts,
        late_windows,
        AttentionTraits(qkv_bias=True, required=_KV),
        _LOCAL_AND_GLOBAL | {Feature.SHARED_EXPERTS},
    ),
    "qwen3": _QWEN3_DENSE,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_text": _QWEN3_DENSE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_next": _QWEN3_HYBRID,
    "qwen3_5_text": ModelFamily(attentions=linear_and_full, attention=_GATED_QWEN, models=_DELTA_NET),
    "qwen3_5_moe_text": _QWEN3_HYBRID,
    "phi3": ModelFamily(models=_WINDOW),
    "cohere": ModelFamily(
        attention=_FLAGGED_BIAS._replace(qk_norm=QkNorm.PER_HEAD, qk_norm_flag="use_qk_norm"),
        tied=True,
        norm=NormKind.LAYER_WITHOUT_BIAS,
        norms_per_layer=1,
    ),
    "opt": ModelFamily(
        opt_layers,
        attention=AttentionTraits(qkv_bias=True, output_bias=True),
        tied=True,
        norm=NormKind.LAYER,
        position_offset=2,
    ),
    "minimax_m2": ModelFamily(
        corrected_experts, attention=AttentionTraits(qk_norm=QkNorm.PER_HEAD, required=_KV_AND_HEAD)
    ),
    "minimax_m3": _BLOCK_SPARSE,
    "minimax_m3_vl_text": _BLOCK_SPARSE,
    "deepseek_v2": _DEEPSEEK_MOE,
    "deepseek_v3": _DEEPSEEK_MOE,
    "kimi_k2": _DEEPSEEK_MOE,
    "deepseek_v32": _DEEPSEEK_MOE._replace(
        attention=AttentionTraits(index_heads=64), models=_DEEPSEEK | {Feature.SPARSE_INDEX}
    ),
    "deepseek_v4": _DEEPSEEK_V4._replace(defaults={"expert_dtype": "fp4"}),
    "deepseek_ref": _DEEPSEEK_V4,
    "glm_moe_dsa": ModelFamily(
        typed_experts,
        shared_choices,
        AttentionTraits(index_heads=32),
        _DEEPSEEK | {Feature.SPARSE_INDEX, Feature.SHARED_INDEX},
        prediction=choosing_prediction,
    ),
    "glm4_moe": ModelFamily(
        deepseek_experts,
        attention=AttentionTraits(
            qkv_bias="attention_bias", qk_norm=QkNorm.SHARED, qk_norm_flag="use_qk_norm", required=_KV_AND_HEAD
        ),
        models=frozenset({Feature.SHARED_EXPERTS, Feature.LEADING_DENSE}),
    ),
    "glm4_moe_lite": _DEEPSEEK_MOE,
    "ernie4_5_moe": ModelFamily(
        ernie_experts,
        attention=AttentionTraits(required=_KV),
        models=frozenset({Feature.SHARED_EXPERTS, Feature.LEADING_DENSE}),
        tied=True,
    ),
    "gemma2": ModelFamily(
        attentions=alternating_windows,
        attention=_FLAGGED_BIAS._replace(required=_KV_AND_HEAD),
        models=_LOCAL_AND_GLOBAL,
        tied=True,
        norms_per_layer=4,
        defaults={"sliding_window": 4096},
    ),
    "gemma3_text": ModelFamily(
        attentions=periodic_windows,
        attention=_FLAGGED_BIAS._replace(qk_norm=QkNorm.SHARED),
        models=_LOCAL_AND_GLOBAL,
        tied=True,
        norms_per_layer=4,
        defaults=_GEMMA_DEFAULTS,
    ),
    "gpt_oss": ModelFamily(
        biased_experts,
        alternating_windows,
        _FLAGGED_BIAS._replace(sinks=True, required=_KV_AND_HEAD),
        _LOCAL_AND_GLOBAL,
        defaults={"sliding_window": 128, "attention_bias": True},
    ),
    "llama4_text": ModelFamily(
        interleaved_experts,
        chunked_attention,
        _FLAGGED_BIAS._replace(required=_KV_AND_HEAD),
        frozenset({Feature.CHUNKED, Feature.INTERLEAVED, Feature.HYBRID}),
    ),
    "nemotron_h": ModelFamily(
        nemotron_feed_forwards,
        nemotron_attentions,
        _FLAGGED_BIAS._replace(required=_KV),
        frozenset({Feature.STATE_SPACE, Feature.SHARED_EXPERTS, Feature.LATENT_EXPERTS}),
        prediction=nemotron_prediction,
    ),
    "nemotron-nas": ModelFamily(
        searched_feed_forwards, searched_attentions, _FLAGGED_BIAS, frozenset({Feature.PER_LAYER_SHAPES})
    ),
    "kimi_linear": ModelFamily(
        kimi_experts,
        kimi_attentions,
        models=_DEEPSEEK | {Feature.LINEAR, Feature.LATENT_EXPERTS, Feature.RESIDUAL_BLOCKS},
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "mimo_v2_flash": _MIMO_V2._replace(defaults={"num_nextn_predict_layers": 3}),
    "mimo_v2": _MIMO_V2,
    "step3p5": _STEP,
    "step3p7": _STEP,
    "cohere2": ModelFamily(
        attentions=periodic_windows,
        attention=_FLAGGED_BIAS._replace(required=_KV),
        models=_LOCAL_AND_GLOBAL,
        tied=True,
        norm=NormKind.LAYER_WITHOUT_BIAS,
        norms_per_layer=1,
        defaults={"sliding_window_pattern": 4, "sliding_window": 4096},
    ),
    "exaone4": ModelFamily(
        attentions=periodic_windows,
        attention=AttentionTraits(qk_norm=QkNorm.SHARED, required=_KV),
        models=_LOCAL_AND_GLOBAL,
    ),
    "ministral3": ModelFamily(attention=AttentionTraits(required=_KV_AND_HEAD), models=_WINDOW),
    "mimo": ModelFamily(attentions=late_windows, attention=AttentionTraits(qkv_bias=True), models=_LOCAL_AND_GLOBAL),
}
"""Families by ``model_type``. OPT's offset of 2 is ``OPTLearnedPositionalEmbedding`` in ``modeling_opt.py``; the index
heads of DeepSeek-V3.2 and GLM-5 are ``index_n_heads`` of ``DeepseekV32Config`` and ``GlmMoeDsaConfig``. The three
modules of MiMo-V2-Flash are those of its report (arXiv:2601.02780, abstract); its config does not name them. MiniMax
names modules that no checkpoint of M2 and M3 holds (github.com/MiniMax-AI/MiniMax-M2.7/issues/16;
ggml-org/llama.cpp#24908)."""


def family_of(fields: ConfigFields) -> ModelFamily:
    """The family that a config names; of one that is not known, what its fields say. Raises `InputError`."""
    return FAMILIES.get(fields.text("model_type") or "", _UNKNOWN)


def is_known(fields: ConfigFields) -> bool:
    """True if a family of its own is known of a config. Raises `InputError`."""
    return fields.text("model_type") in FAMILIES


def decoder_fields(fields: ConfigFields) -> ConfigFields:
    """The fields of a decoder as readers know them: class defaults of its family, usual names, nothing unmodelled.

    Raises:
        InputError: a malformed field. UnsupportedFeatureError: a feature that is not modelled, by name.
    """
    model_type = fields.text("model_type") or ""
    if model_type in _TABLE and _TABLE[model_type]["refused"]:
        raise fields.unmodelled(
            "model_type", model_type, f"is of {_TABLE[model_type]['refused']}, which is not modelled"
        )
    family = family_of(fields)
    given = ConfigFields({**family.defaults, **fields.values}, fields.prefix)
    read = with_usual_names(given) if family.usual else given
    refuse_unmodelled(read, family.models)
    if not is_known(fields):
        refuse_unsaid(given)
    return read


def learned_positions(fields: ConfigFields, family: ModelFamily) -> int:
    """Rows of the learned position table, 0 for rotary positions. Raises `InputError`."""
    if family.position_offset is None:
        return 0
    return fields.size("max_position_embeddings") + family.position_offset


def decoder_layers(fields: ConfigFields, family: ModelFamily) -> DecoderLayers:
    """The blocks of every decoder layer of a config, in order.

    Raises:
        InputError: a missing, malformed or inconsistent size. UnsupportedFeatureError: a variant that is not modelled.
    """
    if Feature.SHARED_INDEX not in family.models and fields.size("index_topk_freq", default=1) != 1:
        bound = f"{Feature.SHARED_INDEX.value} is not modelled"
        raise fields.unmodelled("index_topk_freq", fields.values["index_topk_freq"], bound)
    attentions = family.attentions(fields, family.attention)
    return list(zip(attentions, family.feed_forwards(fields), strict=True))


def layer_groups(layers: DecoderLayers) -> tuple[LayerGroup, ...]:
    """DecoderLayers of one shape together, in the order in which shapes first appear; empty ones are left out."""
    return tuple(
        LayerGroup(count=count, attention=attention, feed_forward=feed_forward)
        for (attention, feed_forward), count in Counter(layers).items()
        if attention is not None or feed_forward is not None
    )


def layer_order(layers: DecoderLayers) -> tuple[int, ...]:
    """Index in `layer_groups` of each layer, in order. Raises nothing."""
    kept = [(attention, block) for attention, block in layers if attention is not None or block is not None]
    place = {layer: index for index, layer in enumerate(dict.fromkeys(kept))}
    return tuple(place[layer] for layer in kept)


def prediction_layers(fields: ConfigFields, layers: DecoderLayers) -> tuple[LayerGroup | None, int]:
    """Layer and number of the multi-token-prediction modules: ``num_nextn_predict_layers``, ``mtp_num_hidden_layers``.

    A module repeats the last decoder layer (DeepSeek-AI 2024, arXiv:2412.19437, sec. 2.2) unless its family says what
    it is of; none for a model whose last layer has only one of the two blocks, or whose checkpoints lack what its
    config names. Raises `InputError` for a malformed count.
    """
    count = fields.count("num_nextn_predict_layers") or fields.count("mtp_num_hidden_layers")
    family = family_of(fields)
    if not family.has_modules:
        return None, 0
    named = family.prediction(fields, family.attention) if family.prediction is not None and count else None
    attention, feed_forward = named or layers[-1]
    nothing = attention is None and feed_forward is None
    if not count or nothing or (named is None and (attention is None or feed_forward is None)):
        return None, 0
    return LayerGroup(count=1, attention=attention, feed_forward=feed_forward), count
