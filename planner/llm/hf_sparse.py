"""Blocks of decoders whose queries attend to few keys: those an index chooses, or compressed ones.

Readers as in `planner.llm.hf_layers`, by which `planner.llm.hf_families` names them. Class defaults are those of
``configuration_glm_moe_dsa.py`` and ``configuration_minimax_m3_vl.py`` in Hugging Face Transformers 5.15. DeepSeek-V4
is read as ``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V4-Flash reads its config, or, where a
checkpoint was written by Hugging Face Transformers, as ``configuration_deepseek_v4.py`` does (``layer_types`` and
``compress_rates`` for ``compress_ratios``, ``mlp_layer_types`` for ``num_hash_layers``).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.llm.attention import BlockIndex
from planner.llm.compressed_attention import OVERLAPPING_RATIO, CompressedAttention
from planner.llm.feed_forward import DenseFeedForward
from planner.llm.hf_config import FULL_ATTENTION, ConfigFields, sliding_window
from planner.llm.hf_layers import (
    Attentions,
    AttentionTraits,
    FeedForwards,
    QkNorm,
    by_word,
    deepseek_experts,
    dense_and_sparse,
    grouped_query,
    latent_attention,
    layer_count,
    one_each,
    routed_experts,
)
from planner.llm.layers import Attention, FeedForward

_CHOOSES = {"full": True, "F": True, "shared": False, "S": False}
"""True for a layer that chooses for itself, by its word in ``indexer_types`` or letter in ``index_topk_pattern``."""
_SKIPPED_LAYERS = 2
"""Class default of ``index_skip_topk_offset``: layers before the first that may take the choice of an earlier one."""
_HEAD_NORMS = {"per_head": QkNorm.SHARED, "per_layer": QkNorm.PER_HEAD}
"""``qk_norm_type``: one head's norm for all of them, or a norm over all heads."""
_SPARSE_LAYER = "minimax_m3_sparse"
"""Entry of ``layer_types`` for a layer whose index chooses blocks."""


def shared_choices(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """GLM-5: latent attention with a sparse index, in some layers (GLM-5.2) with the choice of an earlier one.

    Which layers choose: ``indexer_types``, else ``index_topk_pattern``, else one in ``index_topk_freq`` from
    ``index_skip_topk_offset`` on. Layers that do not have neither weights nor keys of an index.
    """
    own = latent_attention(fields, traits)
    if own.index is None:
        return [own] * layer_count(fields)
    taken = own.model_copy(update={"index": own.index.model_copy(update={"shared": True})})
    return [own if chooses else taken for chooses in _choosing_layers(fields)]


def _choosing_layers(fields: ConfigFields) -> list[bool]:
    """True for layers that choose their keys themselves."""
    layers, key = layer_count(fields), "indexer_types"
    words: Sequence[str] = fields.texts(key)
    if not words:
        key, pattern = "index_topk_pattern", fields.values.get("index_topk_pattern")
        words = pattern if isinstance(pattern, str) else fields.texts(key)
    if not words:
        period = fields.size("index_topk_freq", default=1)
        offset = max(fields.count("index_skip_topk_offset", default=_SKIPPED_LAYERS), 1)  # the first must choose
        return [max(layer - offset + 1, 0) % period == 0 for layer in range(layers)]
    one_each(fields, key, words, layers)
    for word in set(words) - set(_CHOOSES):
        raise fields.unmodelled(key, word, "is no mode of a sparse index", "use full or shared")
    chooses = [_CHOOSES[word] for word in words]
    if not chooses[0]:
        raise fields.wrong(key, words[0], "the first layer has no earlier choice to take", "let it choose for itself")
    return chooses


def choosing_prediction(
    fields: ConfigFields, traits: AttentionTraits
) -> tuple[Attention | None, FeedForward | None] | None:
    """GLM-5: a multi-token-prediction module is the last layer, but chooses for itself.

    Source: the index of layer 78 among the modules left unquantised in huggingface.co/zai-org/GLM-5.2-FP8.
    """
    return latent_attention(fields, traits), typed_experts(fields)[-1]


def typed_experts(fields: ConfigFields) -> FeedForwards:
    """GLM-5: experts as DeepSeek's, in the layers that ``mlp_layer_types`` names sparse where it is given."""
    experts = fields.optional_size("num_experts")
    if experts is not None:  # another name of n_routed_experts, which it overrides
        fields = ConfigFields({**fields.values, "n_routed_experts": experts}, fields.prefix)
    named = fields.texts("mlp_layer_types")
    if not named:
        return deepseek_experts(fields)
    every = ConfigFields({**fields.values, "first_k_dense_replace": None, "moe_layer_freq": None}, fields.prefix)
    return _by_mlp_type(fields, deepseek_experts(every)[0], "intermediate_size")


def _by_mlp_type(fields: ConfigFields, experts: FeedForward | None, dense_key: str) -> FeedForwards:
    """The block each layer names in ``mlp_layer_types``."""
    has_dense = "dense" in fields.texts("mlp_layer_types")
    kinds = {"dense": DenseFeedForward(intermediate=fields.size(dense_key)) if has_dense else None, "sparse": experts}
    return by_word(fields, "mlp_layer_types", kinds, "feed-forward block")


# ------------------------------------------------------------------------------------------------ blocks of keys


def block_sparse_attention(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """MiniMax-M3: grouped-query attention, over blocks of keys that an index chooses in all but the first layers.

    The index stands in ``sparse_attention_config``, or (Transformers 5) in ``index_*`` beside ``layer_types``.
    """
    if fields.flag("attention_output_gate", default=False):
        bound = "a gate on the output is not modelled in block-sparse attention"
        raise fields.unmodelled("attention_output_gate", True, bound)
    kind = fields.text("qk_norm_type") or "per_head"
    if kind not in _HEAD_NORMS:
        bound = "this norm of queries and keys is not modelled"
        raise fields.unmodelled("qk_norm_type", kind, bound, f"use {' or '.join(_HEAD_NORMS)}")
    norm = _HEAD_NORMS[kind] if fields.flag("use_qk_norm", default=True) else QkNorm.NONE
    full = grouped_query(fields, traits._replace(qk_norm=norm), window=sliding_window(fields))
    layers = _indexed_layers(fields)
    sparse = full.model_copy(update={"index": _block_index(fields)}) if any(layers) else full
    return [sparse if indexed else full for indexed in layers]


def _indexed_layers(fields: ConfigFields) -> list[bool]:
    """True for layers whose attention an index narrows."""
    layers = layer_count(fields)
    if fields.texts("layer_types"):
        return by_word(fields, "layer_types", {FULL_ATTENTION: False, _SPARSE_LAYER: True})
    index = fields.section("sparse_attention_config")
    if index is None or not index.flag("use_sparse_attention", default=True):
        return [False] * layers
    indexed = one_each(index, "sparse_attention_freq", index.integers("sparse_attention_freq"), layers)
    unvalued = index.integers("sparse_disable_index_value") or indexed
    one_each(index, "sparse_disable_index_value", unvalued, layers)
    if any(sparse and not bare for sparse, bare in zip(indexed, unvalued, strict=True)):
        bound = "an index with values of its own is not modelled"
        raise index.unmodelled("sparse_disable_index_value", "(given)", bound)
    return [bool(sparse) for sparse in indexed]


def _block_index(fields: ConfigFields) -> BlockIndex:
    """The index of the sparse layers."""
    usual, index = BlockIndex(), fields.section("sparse_attention_config")
    if index is None:
        return BlockIndex(
            heads=fields.size("index_n_heads", default=usual.heads),
            head_dim=fields.size("index_head_dim", default=usual.head_dim),
            block_tokens=fields.size("index_block_size", default=usual.block_tokens),
            blocks=fields.size("index_topk_blocks", default=usual.blocks),
        )
    return BlockIndex(
        heads=index.size("sparse_num_index_heads"),
        head_dim=index.size("sparse_index_dim"),
        block_tokens=index.size("sparse_block_size"),
        blocks=index.size("sparse_topk_blocks"),
    )


def block_sparse_experts(fields: ConfigFields) -> FeedForwards:
    """MiniMax-M3: experts and shared ones; dense layers are those ``mlp_layer_types`` or ``moe_layer_freq`` names."""
    layers, shared = layer_count(fields), fields.count("n_shared_experts", default=1)
    shared *= fields.size("shared_intermediate_size", default=fields.size("intermediate_size"))
    corrected = fields.flag("use_routing_bias", default=True)
    experts = routed_experts(fields, "num_local_experts", "intermediate_size", shared, router_bias=corrected)
    if fields.texts("mlp_layer_types"):
        return _by_mlp_type(fields, experts, "dense_intermediate_size")
    sparse = one_each(fields, "moe_layer_freq", fields.integers("moe_layer_freq") or [1] * layers, layers)
    return dense_and_sparse(fields, list(map(bool, sparse)), experts, "dense_intermediate_size")


# ------------------------------------------------------------------------------------------------ DeepSeek-V4

_RATIOS = (0, OVERLAPPING_RATIO, 128)
"""Tokens to an entry that engines run; 0 is the window alone (vLLM, ``deepseek_v4_attention.py``)."""
_RATE_OF_TYPE = {"compressed_sparse_attention": OVERLAPPING_RATIO, "heavily_compressed_attention": 128}
"""Class defaults of ``compress_rates``."""
_HASHED = "hash_moe"
"""Entry of ``mlp_layer_types`` for experts that a table by token id names."""


def compressed_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Window and compressed entries of every layer; one object a ratio."""
    if fields.flag("attention_bias", default=False):
        raise fields.unmodelled("attention_bias", True, "biases of compressed attention are not modelled")
    if fields.size("num_key_value_heads", default=1) != 1:
        bound = "compressed attention has one key for all heads"
        raise fields.unmodelled("num_key_value_heads", fields.values["num_key_value_heads"], bound)
    ratios = _ratios(fields)[: layer_count(fields)]
    kinds = {ratio: _compressed(fields, ratio) for ratio in dict.fromkeys(ratios)}
    return [kinds[ratio] for ratio in ratios]


def hash_experts(fields: ConfigFields) -> FeedForwards:
    """Experts everywhere, those of the first layers named by a table; the others' choice is corrected by a bias."""
    layers = layer_count(fields)
    shared = fields.count("n_shared_experts") * fields.size("moe_intermediate_size")
    chosen = routed_experts(fields, "n_routed_experts", "moe_intermediate_size", shared, router_bias=True)
    hashed = chosen.model_copy(update={"router_bias": False, "hashed": True})
    named = fields.texts("mlp_layer_types")
    if named:
        return [hashed if kind == _HASHED else chosen for kind in one_each(fields, "mlp_layer_types", named, layers)]
    return [hashed if layer < fields.count("num_hash_layers") else chosen for layer in range(layers)]


def compressed_prediction(
    fields: ConfigFields, traits: AttentionTraits
) -> tuple[Attention | None, FeedForward | None] | None:
    """Blocks of a multi-token-prediction module: the ratio after those of the layers (0), the last layer's experts.

    None of them where the checkpoint drafts blocks of tokens with modules of another kind (DSpark, of the revision of
    July 2026: ``dspark_block_size``); the model itself is the same.
    """
    if fields.count("dspark_block_size"):
        return None, None
    beyond = _ratios(fields)[layer_count(fields) :]
    return _compressed(fields, beyond[0] if beyond else 0), hash_experts(fields)[-1]


def _ratios(fields: ConfigFields) -> tuple[int, ...]:
    """Tokens to an entry of every layer, and of prediction modules where the config names them."""
    named, types = fields.integers("compress_ratios"), fields.texts("layer_types")
    if not named and types:
        rates = fields.section("compress_rates") or ConfigFields({})
        kinds = one_each(fields, "layer_types", types, layer_count(fields))
        named = tuple(rates.size(kind, _RATE_OF_TYPE[kind]) if kind in _RATE_OF_TYPE else 0 for kind in kinds)
    if len(named) < layer_count(fields):
        one_each(fields, "compress_ratios", named, layer_count(fields))
    for ratio in named:
        if ratio not in _RATIOS:
            bound = f"only {', '.join(map(str, _RATIOS))} tokens to a compressed key are modelled"
            raise fields.unmodelled("compress_ratios", ratio, bound)
    return named


def _compressed(fields: ConfigFields, ratio: int) -> CompressedAttention:
    chooses = ratio == OVERLAPPING_RATIO
    return CompressedAttention(
        heads=fields.size("num_attention_heads"),
        head_dim=fields.size("head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        query_rank=fields.size("q_lora_rank"),
        output_groups=fields.size("o_groups"),
        output_rank=fields.size("o_lora_rank"),
        window=fields.size("sliding_window"),
        ratio=ratio,
        index_heads=fields.size("index_n_heads") if chooses else 0,
        index_dim=fields.size("index_head_dim") if chooses else 0,
        top_k=fields.size("index_topk") if chooses else 0,
    )
