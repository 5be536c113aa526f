"""Decoders whose windowed and global layers have shapes of their own: Gemma 4, MiMo-V2, Step-3.5 and 3.7.

Readers as in `planner.llm.hf_layers`, of the keys in which these families tell one kind of layer from the other.
Sources: ``configuration_gemma4.py`` and ``modeling_gemma4.py`` of Hugging Face Transformers;
``configuration_mimo_v2.py`` of huggingface.co/XiaomiMiMo/MiMo-V2.5 and ``mimo_v2_flash.py`` of vLLM;
``modular_step3p7.py`` of Transformers and ``step3p5.py`` of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.llm.attention import GroupedQueryAttention
from planner.llm.feed_forward import DenseFeedForward, MoeFeedForward
from planner.llm.hf_config import FULL_ATTENTION, ConfigFields
from planner.llm.hf_layers import (
    Attentions,
    AttentionTraits,
    FeedForwards,
    dense_and_sparse,
    grouped_query,
    layer_count,
    layers_by_type,
    one_each,
    routed_experts,
)
from planner.llm.layers import Attention, FeedForward, LayerEmbedding

SLIDING_ATTENTION = "sliding_attention"
"""Entry of ``layer_types`` for a windowed layer."""


def _renamed(
    fields: ConfigFields, names: Mapping[str, str], values: Mapping[str, object] | None = None
) -> ConfigFields:
    """The fields with the value of each key on the right, where there is one, under the key on the left."""
    given = {ours: fields.values[theirs] for ours, theirs in names.items() if fields.values.get(theirs) is not None}
    return ConfigFields({**fields.values, **given, **(values or {})}, fields.prefix)


def _pattern(fields: ConfigFields, name: str, words: str, word: str) -> Sequence[bool]:
    """A list with 0 or 1 for each layer; where it is absent, whether an entry of `words` is this `word`.

    Raises:
        InputError: neither list, or one that does not have an entry for each layer.
    """
    named = fields.values.get(name) is None and bool(fields.texts(words))
    entries = [int(entry == word) for entry in fields.texts(words)] if named else list(fields.integers(name))
    one_each(fields, name, entries, layer_count(fields))
    if set(entries) - {0, 1}:
        raise fields.wrong(name, max(entries), "entries are 0 or 1", "correct the list")
    return [bool(entry) for entry in entries]


# ------------------------------------------------------------------------------------------------ Gemma 4

_GEMMA4_PERIOD = 6
"""Without ``layer_types`` every sixth layer is global (``Gemma4TextConfig``)."""


def gemma4_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Windowed layers of ``head_dim``; global ones of ``global_head_dim`` (512) and, where their keys are their values,
    of ``num_global_key_value_heads``. The last ``num_kv_shared_layers`` attend to the cache of the last own layer of
    their kind. The last layer is global whatever ``layer_types`` says.
    """
    fields = _with_global_sizes(fields)
    keys_are_values = fields.flag("attention_k_eq_v", default=False)
    heads = {"num_key_value_heads": "num_global_key_value_heads"} if keys_are_values else {}
    wide = _renamed(fields, heads, {"head_dim": fields.size("global_head_dim", default=512)})
    kinds = {
        FULL_ATTENTION: grouped_query(wide, traits).model_copy(update={"keys_are_values": keys_are_values}),
        SLIDING_ATTENTION: grouped_query(fields, traits, window=fields.size("sliding_window", default=512)),
    }
    period, last = _GEMMA4_PERIOD, layer_count(fields) - 1

    def kind(layer: int) -> str:
        return SLIDING_ATTENTION if (layer + 1) % period and layer != last else FULL_ATTENTION

    attentions = [*layers_by_type(fields, kind, kinds)[:-1], kinds[FULL_ATTENTION]]
    own = _own_layers(fields)
    missing = set(attentions[own:]) - set(attentions[:own])
    if missing:
        bound = f"the {own} layers with a cache have none of a kind that shares one"
        raise fields.wrong("num_kv_shared_layers", len(attentions) - own, bound, "correct the number")
    sharing = {  # without the norm of keys
        kind: kind.model_copy(update={"shares_cache": True, "qk_norm_values": kind.head_dim}) for kind in kinds.values()
    }
    return [*attentions[:own], *map(sharing.__getitem__, attentions[own:])]


def _own_layers(fields: ConfigFields) -> int:
    """Layers with keys and values of their own. Raises `InputError`."""
    shared, layers = fields.count("num_kv_shared_layers"), layer_count(fields)
    if shared >= layers:
        bound = f"must be below num_hidden_layers = {layers}"
        raise fields.wrong("num_kv_shared_layers", shared, bound, "correct the number")
    return layers - shared


def _with_global_sizes(fields: ConfigFields) -> ConfigFields:
    """Sizes of global layers by name, where ``per_layer_config`` (Transformers 5.24) gives each the same.

    Raises `UnsupportedFeatureError` for other sizes of single layers, and for attention to later tokens.
    """
    if fields.text("use_bidirectional_attention") == "all":
        raise fields.unmodelled("use_bidirectional_attention", "all", "attention to later tokens is not modelled")
    given = fields.values.get("per_layer_config")
    if not given:
        return fields
    named_layers = given if isinstance(given, dict) else {}
    sizes = list(named_layers.values())
    layers = {str(layer).lstrip("0") or "0" for layer in named_layers}
    wide = {str(layer) for layer, kind in enumerate(fields.texts("layer_types")) if kind == FULL_ATTENTION}
    named = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    alike = sizes and all(isinstance(one, dict) and one == sizes[0] for one in sizes)
    if not alike or layers != wide or set(sizes[0]) - set(named):
        bound = "shapes of single layers are not modelled (model_type gemma4_text)"
        raise fields.unmodelled("per_layer_config", "(given)", bound, "give global_head_dim instead")
    return ConfigFields({**fields.values, **{named[key]: size for key, size in sizes[0].items()}}, fields.prefix)


def gemma4_feed_forwards(fields: ConfigFields) -> FeedForwards:
    """A dense block, with ``enable_moe_block`` experts beside it; twice as wide where a layer shares its cache and
    ``use_double_wide_mlp`` is set.
    """
    layers, own = layer_count(fields), _own_layers(fields)
    double = fields.flag("use_double_wide_mlp", default=False) and own < layers
    width = fields.size("intermediate_size")
    blocks: dict[int, FeedForward] = {}
    for size in {width, 2 * width if double else width}:
        blocks[size] = DenseFeedForward(intermediate=size)
        if fields.flag("enable_moe_block", default=False):
            blocks[size] = MoeFeedForward(
                experts=fields.size("num_experts"),
                experts_per_token=fields.size("top_k_experts"),
                intermediate=fields.size("moe_intermediate_size"),
                shared_intermediate=size,
                dense_beside=True,
            )
    return [blocks[2 * width if double and layer >= own else width] for layer in range(layers)]


def gemma4_layer_embedding(fields: ConfigFields) -> LayerEmbedding | None:
    """Embeddings of single layers, of the E models. Their class default is that of one model: the size is required."""
    if "hidden_size_per_layer_input" not in fields.values:
        bound = "this family needs it (0 without embeddings of layers)"
        raise fields.wrong("hidden_size_per_layer_input", "(missing)", bound, "add it")
    size = fields.count("hidden_size_per_layer_input")
    if not size:
        return None
    return LayerEmbedding(vocab_size=fields.size("vocab_size_per_layer_input", default=262_144), size=size)


# ------------------------------------------------------------------------------------------------ MiMo-V2


def mimo_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Global where ``hybrid_layer_pattern`` is 0, windowed with the ``swa_`` shapes where it is 1.

    ``attention_chunk_size`` is read by no engine: the family has no attention within chunks.
    """
    full = _mimo_kind(fields, traits, "v_head_dim", "add_full_attention_sink_bias")
    windowed = _mimo_windows(fields)
    if not any(windowed):
        return [full] * len(windowed)
    local = _mimo_local(fields, traits)
    return [local if is_local else full for is_local in windowed]


def _mimo_windows(fields: ConfigFields) -> Sequence[bool]:
    """True for windowed layers: by the family's list, a period, or the list of Transformers."""
    block, layers = fields.optional_size("hybrid_block_size"), layer_count(fields)
    if fields.values.get("hybrid_layer_pattern") is None and block is not None:
        return [(layer + 1) % block != 0 for layer in range(layers)]
    return _pattern(fields, "hybrid_layer_pattern", "layer_types", SLIDING_ATTENTION)


def _mimo_local(fields: ConfigFields, traits: AttentionTraits) -> GroupedQueryAttention:
    """The kind of the windowed layers."""
    fields.size("swa_num_key_value_heads")
    names = {name: f"swa_{name}" for name in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")}
    window = fields.optional_size("sliding_window") or fields.size("sliding_window_size")
    return _mimo_kind(_renamed(fields, names), traits, "v_head_dim", "add_swa_attention_sink_bias", window)


def _mimo_kind(
    fields: ConfigFields, traits: AttentionTraits, values: str, sinks: str, window: int = 0
) -> GroupedQueryAttention:
    """One kind of layer; `values` and `sinks` are the keys of the channels of a value head and of the sinks' flag."""
    kind = grouped_query(fields, traits._replace(sinks=fields.flag(sinks, default=False)), window=window)
    channels = fields.size(values, default=kind.head_dim)
    return kind.model_copy(update={"value_dim": 0 if channels == kind.head_dim else channels})


def mimo_feed_forwards(fields: ConfigFields) -> FeedForwards:
    """Experts where ``moe_layer_freq`` is 1 (``mlp_layer_types`` sparse), a dense block elsewhere; none are shared."""
    sparse = _pattern(fields, "moe_layer_freq", "mlp_layer_types", "sparse")
    if not any(sparse):
        return dense_and_sparse(fields, sparse, None)
    corrected = fields.text("topk_method") == "noaux_tc"
    experts = routed_experts(fields, "n_routed_experts", "moe_intermediate_size", router_bias=corrected)
    return dense_and_sparse(fields, sparse, experts)


def mimo_prediction(fields: ConfigFields, traits: AttentionTraits) -> tuple[Attention, FeedForward]:
    """A multi-token-prediction module: a windowed layer with a dense block (vLLM, ``mimo_v2_mtp.py``)."""
    return _mimo_local(fields, traits), DenseFeedForward(intermediate=fields.size("intermediate_size"))


# ------------------------------------------------------------------------------------------------ Step-3.5

_STEP_NAMES = {
    "num_key_value_heads": "num_attention_groups",
    "num_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_top_k",
    "share_expert_dim": "share_expert_dims",
}
"""The keys of Step's own configs on the right; on the left those of Transformers."""


def step_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """``layer_types``, of which those named in ``attention_other_setting`` have heads of their own.

    The list goes on for the multi-token-prediction modules. Every head has a gate on its output unless
    ``use_head_wise_attn_gate`` is false.
    """
    form = fields.text("att_impl_type") or "GQA"
    if form != "GQA":
        raise fields.unmodelled("att_impl_type", form, "is not modelled")
    named = fields.texts("layer_types")[: layer_count(fields)]
    own = _renamed(fields, {}, {"layer_types": named})
    return layers_by_type(own, lambda layer: FULL_ATTENTION, _step_kinds(fields, traits))


def _step_kinds(fields: ConfigFields, traits: AttentionTraits) -> dict[str, Attention]:
    """The attention of each kind of layer."""
    fields = _renamed(fields, _STEP_NAMES)
    other = fields.section("attention_other_setting") or ConfigFields({})
    other_kind = other.text("attention_type") or SLIDING_ATTENTION
    heads = fields.values.get("num_sliding_attention_heads") or other.values.get("num_attention_heads")
    further = {
        "num_attention_heads": heads,
        "num_key_value_heads": other.values.get("num_attention_groups"),
        "head_dim": other.values.get("head_dim"),
    }
    settings = {name: value for name, value in further.items() if value is not None}
    gated = {"head_gate": fields.flag("use_head_wise_attn_gate", default=True)}
    windows = {FULL_ATTENTION: 0, SLIDING_ATTENTION: fields.optional_size("sliding_window") or 0}
    kinds: dict[str, Attention] = {}
    for kind, window in windows.items():
        sized = _renamed(fields, {}, settings) if kind == other_kind else fields
        kinds[kind] = grouped_query(sized, traits, window=window).model_copy(update=gated)
    return kinds


def step_feed_forwards(fields: ConfigFields) -> FeedForwards:
    """Experts, one of them shared, in the layers of ``moe_layers_enum`` (``mlp_layer_types``, or from
    ``first_k_dense_replace`` on).
    """
    fields, layers = _renamed(fields, _STEP_NAMES), layer_count(fields)
    shared, corrected = fields.size("share_expert_dim"), fields.flag("use_moe_router_bias", default=False)
    experts = routed_experts(fields, "num_experts", "moe_intermediate_size", shared, router_bias=corrected)
    named, listed = fields.texts("mlp_layer_types")[:layers], fields.values.get("moe_layers_enum")
    if isinstance(listed, str):
        sparse = _numbers(fields, "moe_layers_enum", listed)
    elif listed is not None:
        sparse = frozenset(fields.integers("moe_layers_enum"))
    elif named:
        sparse = frozenset(layer for layer, kind in enumerate(named) if kind == "sparse")
    else:
        sparse = frozenset(range(fields.size("first_k_dense_replace"), layers))
    return dense_and_sparse(fields, [layer in sparse for layer in range(layers)], experts)


def _numbers(fields: ConfigFields, name: str, listed: str) -> frozenset[int]:
    """Layers in a text such as ``3,4,5``. Raises `InputError`."""
    parts = [part.strip() for part in listed.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise fields.wrong(name, listed, "must be layer numbers with commas between", "correct the list")
    return frozenset(map(int, parts))


def step_prediction(fields: ConfigFields, traits: AttentionTraits) -> tuple[Attention, FeedForward]:
    """A multi-token-prediction module: the layer ``layer_types`` goes on with (windowed) with a dense block."""
    after = fields.texts("layer_types")[layer_count(fields) :]
    kinds = _step_kinds(fields, traits)
    attention = kinds.get(after[0] if after else SLIDING_ATTENTION, kinds[SLIDING_ATTENTION])
    return attention, DenseFeedForward(intermediate=fields.size("intermediate_size"))
