"""Attention and feed-forward blocks of each decoder layer, read from the fields of a ``config.json``.

One reader for each arrangement of blocks; which family reads which is in `planner.llm.hf_families`. Arrangements and
class defaults are those of ``modeling_<model_type>.py`` and ``configuration_<model_type>.py`` in Hugging Face
Transformers. A reader returns one entry per layer, in order; layers of one kind share one object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from planner.llm.attention import GroupedQueryAttention, LatentAttention, LinearAttention, SparseIndex
from planner.llm.feed_forward import DenseFeedForward, MoeFeedForward
from planner.llm.hf_config import FULL_ATTENTION, ConfigFields, refuse_experts, sliding_window
from planner.llm.layers import MAX_LAYERS, Attention, FeedForward

Attentions = Sequence[Attention | None]
FeedForwards = Sequence[FeedForward | None]
Kind = TypeVar("Kind")


class QkNorm(StrEnum):
    """Values of the norms on queries and keys: none, one head shared by all heads, or every head its own."""

    NONE = "none"
    SHARED = "shared"
    PER_HEAD = "per_head"


class AttentionTraits(NamedTuple):
    """Traits of attention that a family fixes beside the sizes in its config.

    Attributes:
        qkv_bias: of the query, key and value projections; text is the name of the flag in the config.
        output_bias: of the output projection, likewise.
        qk_norm: norms on queries and keys.
        qk_norm_flag: name of the flag in the config that turns them on; None = always on.
        sinks: a learned logit per head joins the softmax.
        output_gate: the query projection is doubled by a gate.
        index_heads: class default of a sparse index; 0 = the family has none.
        required: fields whose class default is a number of another model, so that their absence says nothing.
    """

    qkv_bias: bool | str = False
    output_bias: bool | str = False
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_flag: str | None = None
    sinks: bool = False
    output_gate: bool = False
    index_heads: int = 0
    required: tuple[str, ...] = ()


def layer_count(fields: ConfigFields) -> int:
    """Decoder layers. Raises `InputError`."""
    return fields.size("num_hidden_layers", most=MAX_LAYERS)


# ------------------------------------------------------------------------------------------------ attention


def same_attention(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Grouped-query attention of one kind, windowed everywhere when there is a sliding window (Mistral, Phi-3)."""
    return [grouped_query(fields, traits, window=sliding_window(fields))] * layer_count(fields)


def late_windows(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """``layer_types``, else a window from layer ``max_window_layers`` on (Qwen2, Qwen3; 28 is the class default)."""
    window = sliding_window(fields)
    if not window:
        return [grouped_query(fields, traits)] * layer_count(fields)
    first = fields.count("max_window_layers", default=28)
    return _local_and_global(fields, traits, lambda layer: layer >= first)


def alternating_windows(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """``layer_types``, else every other layer windowed, the first one too (Gemma 2, gpt-oss)."""
    return _local_and_global(fields, traits, lambda layer: layer % 2 == 0)


def periodic_windows(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """``layer_types``, else every ``sliding_window_pattern``-th layer over the whole context (Gemma 3, Command A).

    EXAONE 4 writes the pattern as text, ``LLLG``, whose last layer is global; null there is no window at all.
    """
    period = _window_period(fields)
    if not sliding_window(fields):
        return [grouped_query(fields, traits)] * layer_count(fields)
    return _local_and_global(fields, traits, lambda layer: (layer + 1) % period != 0)


def _window_period(fields: ConfigFields) -> int:
    """Layers from one over the whole context to the next."""
    pattern = fields.values.get("sliding_window_pattern")
    if isinstance(pattern, str):
        if pattern.count("G") != 1 or set(pattern.rstrip("G")) - {"L"}:
            bound = "is no run of local layers (L) that ends with a global one (G)"
            raise fields.unmodelled("sliding_window_pattern", pattern, bound, "give layer_types")
        return len(pattern)
    return fields.optional_size("sliding_window_pattern") or fields.size("_sliding_window_pattern", default=6)


def _local_and_global(fields: ConfigFields, traits: AttentionTraits, local: Callable[[int], bool]) -> Attentions:
    """``layer_types``, else windowed attention in the layers whose number is `local`."""
    return layers_by_type(
        fields,
        lambda layer: "sliding_attention" if local(layer) else FULL_ATTENTION,
        {
            FULL_ATTENTION: grouped_query(fields, traits),
            "sliding_attention": grouped_query(fields, traits, window=sliding_window(fields)),
        },
    )


def chunked_attention(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Llama 4: attention within chunks, but over the whole context where ``no_rope_layers`` is 0 (every 4th layer)."""
    period = fields.size("no_rope_layer_interval", default=4)
    with_positions = fields.integers("no_rope_layers")
    layers, chunk = layer_count(fields), fields.optional_size("attention_chunk_size")
    if with_positions:
        one_each(fields, "no_rope_layers", with_positions, layers)

    def kind(layer: int) -> str:
        local = with_positions[layer] if with_positions else (layer + 1) % period
        return "chunked_attention" if local else FULL_ATTENTION

    full = grouped_query(fields, traits)
    chunked = full if chunk is None else full.model_copy(update={"window": chunk, "chunked": True})
    return layers_by_type(fields, kind, {FULL_ATTENTION: full, "chunked_attention": chunked})


def linear_and_full(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Qwen3-Next and Qwen3.5: gated delta nets, every ``full_attention_interval``-th layer (4) softmax attention."""
    period = fields.size("full_attention_interval", default=4)
    heads = {key: fields.size(f"linear_num_{key}_heads") for key in ("key", "value")}
    if heads["value"] % heads["key"]:
        bound = f"must divide linear_num_value_heads = {heads['value']}"
        raise fields.wrong("linear_num_key_heads", heads["key"], bound)
    delta_net = LinearAttention(
        key_heads=heads["key"],
        value_heads=heads["value"],
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        conv_kernel=fields.size("linear_conv_kernel_dim"),
    )
    gate = fields.flag("attn_output_gate", default=traits.output_gate)
    kinds: dict[str, Attention] = {"linear_attention": delta_net}
    kinds[FULL_ATTENTION] = grouped_query(fields, traits._replace(output_gate=gate))
    return layers_by_type(fields, lambda layer: "linear_attention" if (layer + 1) % period else FULL_ATTENTION, kinds)


def same_latent(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Multi-head latent attention in every layer (DeepSeek-V2 and later, Kimi K2)."""
    return [latent_attention(fields, traits)] * layer_count(fields)


def latent_attention(fields: ConfigFields, traits: AttentionTraits) -> LatentAttention:
    """Multi-head latent attention of the sizes in a config, with its index if any."""
    if fields.flag("attention_bias", default=False):
        raise fields.unmodelled("attention_bias", True, "biases of latent attention are not modelled")
    index = None
    if traits.index_heads:
        index = SparseIndex(
            heads=fields.size("index_n_heads", default=traits.index_heads),
            head_dim=fields.size("index_head_dim", default=SparseIndex().head_dim),
            top_k=fields.size("index_topk", default=SparseIndex().top_k),
        )
    return LatentAttention(
        heads=fields.size("num_attention_heads"),
        query_rank=fields.optional_size("q_lora_rank") or 0,
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        index=index,
    )


def one_each(fields: ConfigFields, key: str, entries: Sequence[Kind], layers: int) -> Sequence[Kind]:
    """The entries of a list that has one for each layer. Raises `InputError` for any other."""
    if len(entries) != layers:
        bound = f"must have one entry for each of num_hidden_layers = {layers}"
        raise fields.wrong(key, f"{len(entries)} entries", bound)
    return entries


def by_word(fields: ConfigFields, key: str, kinds: Mapping[str, Kind], what: str = "layer") -> list[Kind]:
    """The kind that a list of words names for each layer. Raises `InputError`, `UnsupportedFeatureError`."""
    named = one_each(fields, key, fields.texts(key), layer_count(fields))
    for word in set(named) - set(kinds):
        bound = f"is no {what} of model_type {fields.text('model_type')}"
        raise fields.unmodelled(key, word, bound, f"use {' or '.join(kinds)}")
    return [kinds[word] for word in named]


def layers_by_type(fields: ConfigFields, default: Callable[[int], str], kinds: Mapping[str, Kind]) -> list[Kind]:
    """The attention each layer names in ``layer_types``, or of the default kind of its number."""
    if fields.texts("layer_types"):
        return by_word(fields, "layer_types", kinds)
    return [kinds[default(layer)] for layer in range(layer_count(fields))]


def grouped_query(fields: ConfigFields, traits: AttentionTraits, window: int = 0) -> GroupedQueryAttention:
    """Grouped-query attention of the sizes in a config."""
    for name in traits.required:
        if name not in fields.values:
            raise fields.wrong(name, "(missing)", "this family needs it", "add it from the model's config")
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", default=heads)
    head_dim = fields.optional_size("head_dim")
    if head_dim is None and hidden % heads:
        bound = f"must be a multiple of num_attention_heads = {heads} when head_dim is absent"
        raise fields.wrong("hidden_size", hidden, bound, "correct one of the two, or give head_dim")
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", kv_heads, f"must divide num_attention_heads = {heads}")
    head_dim = head_dim or hidden // heads
    has_norm = traits.qk_norm_flag is None or fields.flag(traits.qk_norm_flag, default=False)
    norm_values = {QkNorm.NONE: 0, QkNorm.SHARED: 2 * head_dim, QkNorm.PER_HEAD: (heads + kv_heads) * head_dim}
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=_bias(fields, traits.qkv_bias),
        output_bias=_bias(fields, traits.output_bias),
        qk_norm_values=norm_values[traits.qk_norm] if has_norm else 0,
        window=window,
        sinks=traits.sinks,
        output_gate=traits.output_gate,
    )


def _bias(fields: ConfigFields, bias: bool | str) -> bool:
    """True if there is a bias, looked up where it is named by a flag."""
    return fields.flag(bias, default=False) if isinstance(bias, str) else bias


# ------------------------------------------------------------------------------------------------ feed-forward


def gated_layers(fields: ConfigFields) -> FeedForwards:
    """Gated dense layers; experts are refused."""
    refuse_experts(fields)
    dense = DenseFeedForward(intermediate=fields.size("intermediate_size"), bias=fields.flag("mlp_bias", default=False))
    return [dense] * layer_count(fields)


def opt_layers(fields: ConfigFields) -> FeedForwards:
    """OPT: two matrices with biases."""
    refuse_experts(fields)
    _refuse_unusual_opt(fields)
    return [DenseFeedForward(intermediate=fields.size("ffn_dim"), gated=False, bias=True)] * layer_count(fields)


def local_experts(fields: ConfigFields) -> FeedForwards:
    """Mixtral: experts everywhere."""
    return [routed_experts(fields, "num_local_experts", "intermediate_size")] * layer_count(fields)


def corrected_experts(fields: ConfigFields) -> FeedForwards:
    """MiniMax-M2: experts everywhere, with a correction of the router's choice."""
    return [routed_experts(fields, "num_local_experts", "intermediate_size", router_bias=True)] * layer_count(fields)


def biased_experts(fields: ConfigFields) -> FeedForwards:
    """gpt-oss: experts everywhere, biases in router and experts."""
    experts = routed_experts(fields, "num_local_experts", "intermediate_size", router_bias=True, bias=True)
    return [experts] * layer_count(fields)


def qwen_experts(fields: ConfigFields) -> FeedForwards:
    """Experts where (layer + 1) is a multiple of ``decoder_sparse_step`` and the layer not in ``mlp_only_layers``."""
    layers, step = layer_count(fields), fields.size("decoder_sparse_step", default=1)
    dense_only = fields.integers("mlp_only_layers")
    shared = fields.count("shared_expert_intermediate_size")
    sparse = [(layer + 1) % step == 0 and layer not in dense_only for layer in range(layers)]
    if not any(sparse):
        return dense_and_sparse(fields, sparse, None)
    experts = routed_experts(fields, "num_experts", "moe_intermediate_size", shared, shared_gate=shared > 0)
    return dense_and_sparse(fields, sparse, experts)


def deepseek_experts(fields: ConfigFields) -> FeedForwards:
    """Experts from layer ``first_k_dense_replace`` on, in multiples of ``moe_layer_freq``; shared experts beside them.

    Only DeepSeek-V2 has no correction of the router's choice.
    """
    shared = fields.count("n_shared_experts") * fields.size("moe_intermediate_size")
    corrected = fields.text("model_type") != "deepseek_v2"
    experts = routed_experts(fields, "n_routed_experts", "moe_intermediate_size", shared, router_bias=corrected)
    return dense_and_sparse(fields, late_layers(fields), experts)


def late_layers(fields: ConfigFields) -> list[bool]:
    """True for layers from ``first_k_dense_replace`` on, in multiples of ``moe_layer_freq``."""
    first, step = fields.count("first_k_dense_replace"), fields.size("moe_layer_freq", default=1)
    return [layer >= first and layer % step == 0 for layer in range(layer_count(fields))]


def ernie_experts(fields: ConfigFields) -> FeedForwards:
    """ERNIE 4.5: experts in every ``moe_layer_interval``-th layer from ``moe_layer_start_index`` to its end, corrected.

    An end of -1 is the last layer (``Ernie4_5_MoeConfig``). Biases are refused.
    """
    if fields.flag("use_bias", default=False):
        raise fields.unmodelled("use_bias", True, "biases are not modelled in model_type ernie4_5_moe")
    layers, step = layer_count(fields), fields.size("moe_layer_interval", default=1)
    end = fields.values.get("moe_layer_end_index")
    last = layers - 1 if end in (None, -1) else fields.count("moe_layer_end_index")
    first, width = fields.count("moe_layer_start_index"), fields.size("moe_intermediate_size")
    named = ConfigFields({**fields.values, "num_experts_per_tok": fields.size("moe_k")}, fields.prefix)
    shared = fields.count("moe_num_shared_experts") * width
    experts = routed_experts(named, "moe_num_experts", "moe_intermediate_size", shared, router_bias=True)
    return dense_and_sparse(fields, [first <= i <= last and (i + 1) % step == 0 for i in range(layers)], experts)


def interleaved_experts(fields: ConfigFields) -> FeedForwards:
    """Llama 4: experts and one shared expert in every ``interleave_moe_layer_step``-th layer, or in ``moe_layers``."""
    layers, step = layer_count(fields), fields.size("interleave_moe_layer_step", default=1)
    named, size = fields.integers("moe_layers"), fields.size("intermediate_size")
    experts = routed_experts(fields, "num_local_experts", "intermediate_size", size)
    sparse = [layer in named if named else (layer + 1) % step == 0 for layer in range(layers)]
    return dense_and_sparse(fields, sparse, experts, dense_key="intermediate_size_mlp")


def dense_and_sparse(
    fields: ConfigFields,
    sparse: Sequence[bool],
    experts: MoeFeedForward | None,
    dense_key: str = "intermediate_size",
) -> FeedForwards:
    """The experts in sparse layers, a dense block in the others."""
    dense = None if all(sparse) else DenseFeedForward(intermediate=fields.size(dense_key))
    return [experts if is_sparse else dense for is_sparse in sparse]


def routed_experts(
    fields: ConfigFields, count_key: str, size_key: str, shared: int = 0, **traits: bool | int
) -> MoeFeedForward:
    """Experts; `shared` is the width of all shared experts together, `traits` are fields that the family fixes."""
    return MoeFeedForward(
        experts=fields.size(count_key),
        experts_per_token=fields.size("num_experts_per_tok"),
        intermediate=fields.size(size_key),
        shared_intermediate=shared,
        **traits,
    )


def _refuse_unusual_opt(fields: ConfigFields) -> None:
    """Refuse OPT variants of other shapes (350m: post-norm and projected embeddings; Galactica: no biases)."""
    usual = {"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True}
    usual |= {"_remove_final_layer_norm": False}
    for name, value in usual.items():
        if fields.flag(name, default=value) is not value:
            raise fields.unmodelled(name, not value, f"only {json.dumps(value)} is modelled (model_type opt)")
    hidden = fields.size("hidden_size")
    projected = fields.size("word_embed_proj_dim", default=hidden)
    if projected != hidden:
        bound = f"projected embeddings are not modelled: must equal hidden_size = {hidden}"
        raise fields.unmodelled("word_embed_proj_dim", projected, bound)
