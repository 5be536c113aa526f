"""Families of decoders: what a ``model_type`` fixes beside the sizes in its ``config.json``.

One row of `FAMILIES` per ``model_type``, as its ``modeling_<model_type>.py`` in Hugging Face Transformers defines
it. To support another family of plain decoders, add a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from planner.errors import InputError, UnsupportedFeatureError
from planner.hf_config import ConfigFields, refuse_experts
from planner.llm_layers import (
    MAX_LAYERS,
    DenseFeedForward,
    GroupedQueryAttention,
    LayerGroup,
    MoeFeedForward,
    NormKind,
)


class _QkNorm(StrEnum):
    """Values of the norms on queries and keys: none, one head shared by all heads, or every head its own."""

    NONE = "none"
    SHARED = "shared"
    PER_HEAD = "per_head"


_FeedForwards = tuple[tuple[int, "DenseFeedForward | MoeFeedForward"], ...]


def _layers(fields: ConfigFields) -> int:
    return fields.size("num_hidden_layers", most=MAX_LAYERS)


def _gated_layers(fields: ConfigFields) -> _FeedForwards:
    refuse_experts(fields)
    size, bias = fields.size("intermediate_size"), fields.flag("mlp_bias", default=False)
    return ((_layers(fields), DenseFeedForward(intermediate=size, bias=bias)),)


def _opt_layers(fields: ConfigFields) -> _FeedForwards:
    refuse_experts(fields)
    _refuse_unusual_opt(fields)
    return ((_layers(fields), DenseFeedForward(intermediate=fields.size("ffn_dim"), gated=False, bias=True)),)


def _experts(fields: ConfigFields, count_key: str, size_key: str, router_bias: bool = False) -> MoeFeedForward:
    return MoeFeedForward(
        experts=fields.size(count_key),
        experts_per_token=fields.size("num_experts_per_tok"),
        intermediate=fields.size(size_key),
        router_bias=router_bias,
    )


def _mixtral_layers(fields: ConfigFields) -> _FeedForwards:
    return ((_layers(fields), _experts(fields, "num_local_experts", "intermediate_size")),)


def _minimax_layers(fields: ConfigFields) -> _FeedForwards:
    return ((_layers(fields), _experts(fields, "num_local_experts", "intermediate_size", router_bias=True)),)


def _qwen3_moe_layers(fields: ConfigFields) -> _FeedForwards:
    """Layer i has experts when (i + 1) is a multiple of ``decoder_sparse_step`` and i is not in ``mlp_only_layers``."""
    layers, step = _layers(fields), fields.size("decoder_sparse_step", default=1)
    dense_only = fields.layer_indices("mlp_only_layers")
    sparse = sum((i + 1) % step == 0 and i not in dense_only for i in range(layers))
    groups: _FeedForwards = ()
    if sparse < layers:
        groups += ((layers - sparse, DenseFeedForward(intermediate=fields.size("intermediate_size"))),)
    if sparse:
        groups += ((sparse, _experts(fields, "num_experts", "moe_intermediate_size")),)
    return groups


class Family(NamedTuple):
    """What a ``model_type`` fixes beside the sizes in its config.

    A bias given as text is the name of the flag in the config. `tied` is the default of ``tie_word_embeddings``;
    `required` names fields whose class default is a number of another model, so that absence is no information.
    `position_offset` is set for learned positions: rows of their table before position 0.
    """

    feed_forwards: Callable[[ConfigFields], _FeedForwards] = _gated_layers
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    qk_norm: _QkNorm = _QkNorm.NONE
    qk_norm_flag: str | None = None
    tied: bool = False
    norm: NormKind = NormKind.RMS
    norms_per_layer: int = 2
    required: tuple[str, ...] = ()
    position_offset: int | None = None


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias="attention_bias", output_bias="attention_bias"),
    "mistral": Family(qkv_bias="attention_bias", output_bias="attention_bias", required=("num_key_value_heads",)),
    "mixtral": Family(_mixtral_layers, required=("num_key_value_heads",)),
    "qwen2": Family(qkv_bias=True, required=("num_key_value_heads",)),
    "qwen3": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=_QkNorm.SHARED,
        required=("num_key_value_heads", "head_dim"),
    ),
    "qwen3_moe": Family(
        _qwen3_moe_layers,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=_QkNorm.SHARED,
        required=("num_key_value_heads", "head_dim"),
    ),
    "phi3": Family(),
    "cohere": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=_QkNorm.PER_HEAD,
        qk_norm_flag="use_qk_norm",
        tied=True,
        norm=NormKind.LAYER_WITHOUT_BIAS,
        norms_per_layer=1,
    ),
    "opt": Family(_opt_layers, qkv_bias=True, output_bias=True, tied=True, norm=NormKind.LAYER, position_offset=2),
    "minimax_m2": Family(_minimax_layers, qk_norm=_QkNorm.PER_HEAD, required=("num_key_value_heads", "head_dim")),
}
"""Families by ``model_type``. OPT's offset of 2 is ``OPTLearnedPositionalEmbedding`` in ``modeling_opt.py``."""


def learned_positions(fields: ConfigFields, family: Family) -> int:
    """Rows of the learned position table, 0 for rotary positions. Raises `InputError`."""
    if family.position_offset is None:
        return 0
    return fields.size("max_position_embeddings") + family.position_offset


def layer_groups(fields: ConfigFields, family: Family) -> tuple[LayerGroup, ...]:
    """The decoder layers of a config, grouped by shape.

    Raises:
        InputError: a missing, malformed or inconsistent size. UnsupportedFeatureError: a variant that is not modelled.
    """
    attention = _attention(fields, family)
    return tuple(
        LayerGroup(count=count, attention=attention, feed_forward=feed_forward)
        for count, feed_forward in family.feed_forwards(fields)
    )


def _attention(fields: ConfigFields, family: Family) -> GroupedQueryAttention:
    for name in family.required:
        if name not in fields.values:
            raise InputError(fields.path(name), "(missing)", "this family needs it", "add it from the model's config")
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", default=heads)
    head_dim = fields.optional_size("head_dim")
    if head_dim is None and hidden % heads:
        bound = f"must be a multiple of num_attention_heads = {heads} when head_dim is absent"
        raise InputError(fields.path("hidden_size"), hidden, bound, "correct one of the two, or give head_dim")
    if heads % kv_heads:
        bound = f"must divide num_attention_heads = {heads}"
        raise InputError(fields.path("num_key_value_heads"), kv_heads, bound, "correct one of the two")
    head_dim = head_dim or hidden // heads
    has_norm = family.qk_norm_flag is None or fields.flag(family.qk_norm_flag, default=False)
    norm_values = {_QkNorm.NONE: 0, _QkNorm.SHARED: 2 * head_dim, _QkNorm.PER_HEAD: (heads + kv_heads) * head_dim}
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=_bias(fields, family.qkv_bias),
        output_bias=_bias(fields, family.output_bias),
        qk_norm_values=norm_values[family.qk_norm] if has_norm else 0,
    )


def _bias(fields: ConfigFields, bias: bool | str) -> bool:
    return fields.flag(bias, default=False) if isinstance(bias, str) else bias


def _refuse_unusual_opt(fields: ConfigFields) -> None:
    """Refuse OPT variants of other shapes (350m: post-norm and projected embeddings; Galactica: no biases)."""
    usual = {"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True}
    usual |= {"_remove_final_layer_norm": False}
    for name, value in usual.items():
        if fields.flag(name, default=value) is not value:
            bound = f"only {json.dumps(value)} is modelled (model_type opt)"
            raise UnsupportedFeatureError(fields.path(name), not value, bound, "use another model")
    hidden = fields.size("hidden_size")
    projected = fields.size("word_embed_proj_dim", default=hidden)
    if projected != hidden:
        bound = f"projected embeddings are not modelled: must equal hidden_size = {hidden}"
        raise UnsupportedFeatureError(fields.path("word_embed_proj_dim"), projected, bound, "use another model")
