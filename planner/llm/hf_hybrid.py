"""Layers of families that mix kinds of blocks freely: Nemotron-H, Kimi Linear, Nemotron-NAS.

Readers as those of `planner.llm.hf_layers`. A layer of Nemotron-H has one block, a state space, attention or a
feed-forward one; of Kimi Linear, delta attention or latent attention by two lists; of Nemotron-NAS, whatever a search
left of it, nothing included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from planner.llm.attention import LinearAttention, LinearMap, StateSpace
from planner.llm.feed_forward import DenseFeedForward
from planner.llm.hf_config import ConfigFields
from planner.llm.hf_layers import (
    Attentions,
    AttentionTraits,
    FeedForwards,
    dense_and_sparse,
    grouped_query,
    late_layers,
    latent_attention,
    layer_count,
    one_each,
    routed_experts,
)
from planner.llm.layers import MAX_LAYERS, Attention, FeedForward

# ------------------------------------------------------------------------------------------------ Nemotron-H

_BLOCK_LETTERS = {
    **{"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"},
    **{"linear_attention": "M", "full_attention": "*"},
}
"""Letters of ``hybrid_override_pattern`` for the words of ``layers_block_type``, as older and newer Transformers write
them."""


def _block_letters(fields: ConfigFields, pattern_key: str, words_key: str) -> str:
    """One letter per layer of Nemotron-H: M state space, * attention, - dense feed-forward, E experts."""
    words = fields.texts(words_key)
    pattern = fields.text(pattern_key) or "".join(_BLOCK_LETTERS.get(word, "?") for word in words)
    if set(pattern) - set(_BLOCK_LETTERS.values()):
        raise fields.unmodelled(pattern_key, pattern, "has layers other than M, *, - and E")
    return pattern


def _pattern(fields: ConfigFields) -> str:
    """Letters of all layers; Nemotron 3 Ultra leaves ``num_hidden_layers`` out."""
    pattern = _block_letters(fields, "hybrid_override_pattern", "layers_block_type")
    layers = fields.optional_size("num_hidden_layers", most=MAX_LAYERS) if pattern else layer_count(fields)
    if not pattern or layers not in (None, len(pattern)) or len(pattern) > MAX_LAYERS:
        bound = f"must have one letter for each of num_hidden_layers = {layers or f'1 to {MAX_LAYERS}'}"
        raise fields.wrong("hybrid_override_pattern", pattern, bound)
    return pattern


def nemotron_attentions(fields: ConfigFields, traits: AttentionTraits, pattern: str = "") -> Attentions:
    """State space, attention or neither in each layer of Nemotron-H, or of a `pattern` of letters."""
    pattern = pattern or _pattern(fields)
    kinds: dict[str, Attention] = {}
    if "M" in pattern:
        _refuse_unusual_state_space(fields)
        kinds["M"] = StateSpace(
            heads=fields.size("mamba_num_heads"),
            head_dim=fields.size("mamba_head_dim"),
            state_size=fields.size("ssm_state_size"),
            groups=fields.size("n_groups"),
            conv_kernel=fields.size("conv_kernel"),
        )
    if "*" in pattern:
        head_dim = fields.values.get("head_dim") or fields.values.get("attention_head_dim")
        sized = ConfigFields({**fields.values, "head_dim": head_dim}, fields.prefix)
        kinds["*"] = grouped_query(sized, traits)
    return [kinds.get(letter) for letter in pattern]


def nemotron_feed_forwards(fields: ConfigFields, pattern: str = "") -> FeedForwards:
    """Dense feed-forward, experts or neither in each layer, likewise; never gated (squared ReLU)."""
    pattern = pattern or _pattern(fields)
    kinds: dict[str, FeedForward] = {}
    if "-" in pattern:
        bias = fields.flag("mlp_bias", default=False)
        kinds["-"] = DenseFeedForward(intermediate=fields.size("intermediate_size"), gated=False, bias=bias)
    if "E" in pattern:
        shared = fields.count("n_shared_experts") * fields.count("moe_shared_expert_intermediate_size")
        traits = {"gated": False, "router_bias": True, "latent": fields.count("moe_latent_size")}
        kinds["E"] = routed_experts(fields, "n_routed_experts", "moe_intermediate_size", shared, **traits)
    return [kinds.get(letter) for letter in pattern]


def nemotron_prediction(
    fields: ConfigFields, traits: AttentionTraits
) -> tuple[Attention | None, FeedForward | None] | None:
    """Blocks of a multi-token-prediction module (``mtp_hybrid_override_pattern``), None where none are named.

    They are written as layers of one block each; attention and then a feed-forward block, or one of them, is modelled.
    """
    pattern = _block_letters(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if not pattern:
        return None
    attention = [kind for kind in nemotron_attentions(fields, traits, pattern) if kind is not None]
    feed_forward = [kind for kind in nemotron_feed_forwards(fields, pattern) if kind is not None]
    if len(attention) > 1 or len(feed_forward) > 1 or (len(pattern) == 2 and pattern[0] in "-E"):
        bound = "a module other than attention and a feed-forward block is not modelled"
        raise fields.unmodelled("mtp_hybrid_override_pattern", pattern, bound, "set num_nextn_predict_layers to 0")
    return attention[0] if attention else None, feed_forward[0] if feed_forward else None


def _refuse_unusual_state_space(fields: ConfigFields) -> None:
    """Refuse state-space layers with other biases than Nemotron-H has, or another format of the state."""
    state = fields.text("mamba_ssm_cache_dtype")
    if state not in (None, "float32"):
        bound = "only a state in float32 is modelled (model_type nemotron_h)"
        raise fields.unmodelled("mamba_ssm_cache_dtype", state, bound, "use float32")
    for name, usual in (("use_bias", False), ("mamba_proj_bias", False), ("use_conv_bias", True)):
        if fields.flag(name, default=usual) is not usual:
            raise fields.unmodelled(name, not usual, f"only {json.dumps(usual)} is modelled (model_type nemotron_h)")


# ------------------------------------------------------------------------------------------------ Kimi Linear


def kimi_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Kimi Delta Attention or latent attention in each layer; ``kda_layers`` and ``full_attn_layers`` count from 1.

    The decay of every key channel is projected through one head's channels, as is the gate of the output without
    ``use_full_rank_gate`` (``kda.py`` of vLLM; ``modeling_kimi_linear.py`` of moonshotai/Kimi-K3).
    """
    linear = fields.section("linear_attn_config")
    layers = layer_count(fields)
    if linear is None:
        bound = "names the heads and layers of linear attention"
        raise fields.wrong("linear_attn_config", "(missing)", bound, "add it from the model's config")
    delta_layers, full_layers = linear.integers("kda_layers"), linear.integers("full_attn_layers")
    if sorted((*delta_layers, *full_layers)) != list(range(1, layers + 1)):
        bound = f"must, with full_attn_layers, hold every layer from 1 to num_hidden_layers = {layers} once"
        raise linear.wrong("kda_layers", f"{len(delta_layers)} layers", bound, "correct the lists")
    heads, head_dim = linear.size("num_heads"), linear.size("head_dim")
    delta = LinearAttention(
        key_heads=heads,
        value_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        conv_kernel=linear.size("short_conv_kernel_size"),
        decay_rank=head_dim,
        gate_rank=0 if linear.flag("use_full_rank_gate", default=False) else head_dim,
    )
    gate = fields.flag("mla_use_output_gate", default=False)
    full, chosen = latent_attention(fields, traits).model_copy(update={"output_gate": gate}), frozenset(full_layers)
    return [full if layer in chosen else delta for layer in range(1, layers + 1)]


def kimi_experts(fields: ConfigFields) -> FeedForwards:
    """Experts from layer ``first_k_dense_replace`` on, in multiples of ``moe_layer_freq``, on a latent vector in K3.

    ``routed_expert_hidden_size`` are the latent channels, with a norm after the experts by ``latent_moe_use_norm``.
    """
    shared = fields.count("num_shared_experts") * fields.size("moe_intermediate_size")
    visits = fields.values.get("num_experts_per_token", fields.values.get("num_experts_per_tok"))
    named = ConfigFields({**fields.values, "num_experts_per_tok": visits}, fields.prefix)
    latent = fields.count("routed_expert_hidden_size")
    norm = latent > 0 and fields.flag("latent_moe_use_norm", default=False)
    traits = {"router_bias": True, "latent": latent, "latent_norm": norm}
    experts = routed_experts(named, "num_experts", "moe_intermediate_size", shared, **traits)
    return dense_and_sparse(fields, late_layers(fields), experts)


# ------------------------------------------------------------------------------------------------ Nemotron-NAS

_FEED_FORWARD_MULTIPLE = 256
"""``ffn_mult`` times 2/3 of the hidden channels is rounded up to a multiple of this (``nemotron_nas.py`` of vLLM)."""


def _searched_blocks(fields: ConfigFields, name: str) -> Sequence[ConfigFields]:
    """The ``attention`` or ``ffn`` part of every entry of ``block_configs``."""
    blocks = one_each(fields, "block_configs", fields.sections("block_configs"), layer_count(fields))
    parts = [block.section(name) or ConfigFields({}, block.path(name)) for block in blocks]
    for part in parts:
        for key in ("sparsify", "window_length", "num_sink_tokens"):
            if part.values.get(key):
                raise part.unmodelled(key, part.values[key], "is not modelled (model_type nemotron-nas)")
    return parts


def searched_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Nemotron-NAS: attention of ``n_heads_in_group`` query heads to a KV head, one matrix in its place, or nothing."""
    return [_searched_attention(fields, traits, part) for part in _searched_blocks(fields, "attention")]


def _searched_attention(fields: ConfigFields, traits: AttentionTraits, part: ConfigFields) -> Attention | None:
    """Attention of one layer."""
    if part.flag("no_op", default=False):
        return None
    if part.flag("replace_with_linear", default=False):
        return LinearMap()
    heads, group = fields.size("num_attention_heads"), part.size("n_heads_in_group")
    if heads % group:
        raise part.wrong("n_heads_in_group", group, f"must divide num_attention_heads = {heads}")
    return grouped_query(ConfigFields({**fields.values, "num_key_value_heads": heads // group}, fields.prefix), traits)


def searched_feed_forwards(fields: ConfigFields) -> FeedForwards:
    """Nemotron-NAS: a gated block as wide as ``ffn_mult`` says, one matrix in its place, or nothing."""
    return [_searched_feed_forward(fields, part) for part in _searched_blocks(fields, "ffn")]


def _searched_feed_forward(fields: ConfigFields, part: ConfigFields) -> FeedForward | None:
    """Feed-forward of one layer."""
    hidden = fields.size("hidden_size")
    if part.flag("no_op", default=False):
        return None
    if part.flag("replace_with_linear", default=False):
        return DenseFeedForward(intermediate=hidden, gated=False, single=True)
    width = math.floor(2.0 * part.number("ffn_mult", least=0.001) * hidden / 3.0)
    rounded = math.ceil(width / _FEED_FORWARD_MULTIPLE) * _FEED_FORWARD_MULTIPLE
    return DenseFeedForward(intermediate=rounded, bias=fields.flag("mlp_bias", default=False))
