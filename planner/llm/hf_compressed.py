"""Blocks of DeepSeek-V4, read from the fields of a ``config.json``: compressed attention, and experts by a hash table.

As ``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V4-Flash reads its config, or, where a checkpoint was
written by Hugging Face Transformers, as ``configuration_deepseek_v4.py`` does (``layer_types`` and ``compress_rates``
for ``compress_ratios``, ``mlp_layer_types`` for ``num_hash_layers``).
"""

from __future__ import annotations

from planner.llm.compressed_attention import OVERLAPPING_RATIO, CompressedAttention
from planner.llm.hf_config import ConfigFields
from planner.llm.hf_layers import Attentions, AttentionTraits, FeedForwards, layer_count, one_each, routed_experts
from planner.llm.layers import Attention, FeedForward

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
    kinds = {ratio: _attention(fields, ratio) for ratio in dict.fromkeys(ratios)}
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
    return _attention(fields, beyond[0] if beyond else 0), hash_experts(fields)[-1]


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


def _attention(fields: ConfigFields, ratio: int) -> CompressedAttention:
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
