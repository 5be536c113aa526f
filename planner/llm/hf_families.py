"""Families of decoders: what a ``model_type`` fixes beside the sizes in its ``config.json``.

One row of `FAMILIES` per ``model_type``, as its ``modeling_<model_type>.py`` in Hugging Face Transformers defines
it; the arrangements of blocks a row names are read in `planner.llm.hf_layers`. To support another family, add a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from planner.core import UnsupportedFeatureError
from planner.llm.hf_config import ConfigFields, Feature
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
    gated_layers,
    interleaved_experts,
    late_windows,
    latent_attention,
    linear_and_full,
    local_experts,
    nemotron_attentions,
    nemotron_feed_forwards,
    opt_layers,
    periodic_windows,
    qwen_experts,
    same_attention,
)
from planner.llm.layers import DecoderLayers, LayerGroup, NormKind


class ModelFamily(NamedTuple):
    """What a ``model_type`` fixes beside the sizes in its config.

    Attributes:
        feed_forwards: reader of the feed-forward blocks.
        attentions: reader of the attention blocks.
        attention: what is fixed about attention.
        models: features that a config of this family may ask for.
        tied: default of ``tie_word_embeddings``.
        norm: kind of norm.
        norms_per_layer: norms over the hidden channels in a layer.
        defaults: class defaults of fields that published configs leave out.
        position_offset: rows of the table of learned positions before position 0; None without such a table.
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


_KV = ("num_key_value_heads",)
_KV_AND_HEAD = ("num_key_value_heads", "head_dim")
_FLAGGED_BIAS = AttentionTraits(qkv_bias="attention_bias", output_bias="attention_bias")
_WINDOW = frozenset({Feature.WINDOW})
_LOCAL_AND_GLOBAL = frozenset({Feature.WINDOW, Feature.HYBRID})
_DEEPSEEK = frozenset({Feature.LATENT, Feature.SHARED_EXPERTS, Feature.LEADING_DENSE})
_DELTA_NET = frozenset({Feature.LINEAR, Feature.SHARED_EXPERTS})

_QWEN3 = _FLAGGED_BIAS._replace(qk_norm=QkNorm.SHARED, required=_KV_AND_HEAD)
_GATED_QWEN = _QWEN3._replace(output_gate=True)
_GEMMA_DEFAULTS = {"vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window": 4096}
_GEMMA_DEFAULTS |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_MISTRAL_WINDOW = {"sliding_window": 4096}

_QWEN3_DENSE = ModelFamily(attentions=late_windows, attention=_QWEN3, models=_LOCAL_AND_GLOBAL)
_QWEN3_MOE = ModelFamily(qwen_experts, late_windows, _QWEN3, _LOCAL_AND_GLOBAL)
_QWEN3_HYBRID = ModelFamily(qwen_experts, linear_and_full, _GATED_QWEN, _DELTA_NET)
_DEEPSEEK_MOE = ModelFamily(deepseek_experts, latent_attention, models=_DEEPSEEK)

FAMILIES: dict[str, ModelFamily] = {
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
    "deepseek_v2": _DEEPSEEK_MOE,
    "deepseek_v3": _DEEPSEEK_MOE,
    "kimi_k2": _DEEPSEEK_MOE,
    "deepseek_v32": _DEEPSEEK_MOE._replace(
        attention=AttentionTraits(index_heads=64), models=_DEEPSEEK | {Feature.SPARSE_INDEX}
    ),
    "glm_moe_dsa": _DEEPSEEK_MOE._replace(
        attention=AttentionTraits(index_heads=32), models=_DEEPSEEK | {Feature.SPARSE_INDEX}
    ),
    "glm4_moe": ModelFamily(
        deepseek_experts,
        attention=AttentionTraits(
            qkv_bias="attention_bias", qk_norm=QkNorm.SHARED, qk_norm_flag="use_qk_norm", required=_KV_AND_HEAD
        ),
        models=frozenset({Feature.SHARED_EXPERTS, Feature.LEADING_DENSE}),
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
        frozenset({Feature.STATE_SPACE, Feature.SHARED_EXPERTS}),
        norms_per_layer=1,
    ),
    "mimo": ModelFamily(attentions=late_windows, attention=AttentionTraits(qkv_bias=True), models=_LOCAL_AND_GLOBAL),
}
"""Families by ``model_type``. OPT's offset of 2 is ``OPTLearnedPositionalEmbedding`` in ``modeling_opt.py``; the index
heads of DeepSeek-V3.2 and GLM-5 are ``index_n_heads`` of ``DeepseekV32Config`` and ``GlmMoeDsaConfig``."""

MODELLED: dict[str, frozenset[Feature]] = {model_type: family.models for model_type, family in FAMILIES.items()}
"""Features modelled in every family."""


def with_defaults(fields: ConfigFields) -> ConfigFields:
    """The fields with the class defaults of their family where a key is absent. Raises `InputError`."""
    family = FAMILIES.get(fields.text("model_type") or "")
    return ConfigFields({**family.defaults, **fields.values}, fields.prefix) if family else fields


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
    if fields.size("index_topk_freq", default=1) != 1:
        bound = f"{Feature.SHARED_INDEX.value} is not modelled"
        raise UnsupportedFeatureError(
            fields.path("index_topk_freq"), fields.values["index_topk_freq"], bound, "use another model"
        )
    attentions = family.attentions(fields, family.attention)
    return list(zip(attentions, family.feed_forwards(fields), strict=True))


def layer_groups(layers: DecoderLayers) -> tuple[LayerGroup, ...]:
    """DecoderLayers of one shape together, in the order in which shapes first appear. Raises nothing."""
    return tuple(
        LayerGroup(count=count, attention=attention, feed_forward=feed_forward)
        for (attention, feed_forward), count in Counter(layers).items()
    )


def prediction_layers(fields: ConfigFields, layers: DecoderLayers) -> tuple[LayerGroup | None, int]:
    """Layer and number of the multi-token-prediction modules: ``num_nextn_predict_layers``, ``mtp_num_hidden_layers``.

    A module repeats the last decoder layer (DeepSeek-AI 2024, arXiv:2412.19437, sec. 2.2); none for a model whose last
    layer has only one of the two blocks. Raises `InputError` for a malformed count.
    """
    count = fields.count("num_nextn_predict_layers") or fields.count("mtp_num_hidden_layers")
    attention, feed_forward = layers[-1]
    if not count or attention is None or feed_forward is None:
        return None, 0
    return LayerGroup(count=1, attention=attention, feed_forward=feed_forward), count
