"""Decoders of any ``model_type`` whose shapes stand in the usual fields: the names of these, and the layers.

The same size has many names (``n_embd``, ``d_model`` ...): `with_usual_names` gives each the one that readers know.
What no field says (gates, biases, norms) stands for known families in ``presets/decoder_families.csv``, read from
``configuration_<model_type>.py`` and ``modeling_<model_type>.py`` of Hugging Face Transformers 5.24, or of the model's
own repository where it is not part of Transformers. A family without a row is read as Llama is, if its fields say all
of its shapes: a size that is not understood, or an activation that does not say if there is a gate, is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from planner.llm.attention import StateSpace
from planner.llm.feed_forward import DenseFeedForward
from planner.llm.hf_config import FIELDS, FULL_ATTENTION, ConfigFields, sliding_window
from planner.llm.hf_layers import (
    Attentions,
    AttentionTraits,
    FeedForwards,
    by_word,
    grouped_query,
    late_windows,
    latent_attention,
    layer_count,
    one_each,
    periodic_windows,
    routed_experts,
    same_attention,
)
from planner.llm.layers import Attention

USUAL_NAMES = {field: tuple(row["other_names"].split()) for field, row in FIELDS.items() if row["other_names"]}
"""Other names of a field, ``attribute_map`` of the configuration classes among them; the first that is given counts."""
_SECTIONS = ("attn_config", "ffn_config")
"""Sections that hold sizes of their own (DBRX, MPT)."""
_GATED_ACTIVATIONS = ("silu", "swish", "swiglu")
"""Activations of gated feed-forward blocks; all others are found in gated ones and in plain ones."""
_SHAPE_WORDS = re.compile(
    r"(^|_)(rank|dims?|heads?|kernel|conv|state|ssm|mamba|lru|rwkv|recurrent|linear|experts?|ffn?|mlp|layers?|loops?|cycles"
    r"|compress|index|delta|lora|hidden|latent|adapter|memory|chunk|streams?|altup|embed|proj|rotary|window|pattern|types?)(_|$)"
)
"""Words in the name of a field that says something of shapes."""
_NO_SHAPES = re.compile(
    r"(dropout|pdrop|token|_eps|epsilon|std|init|init_range|scal|multiplier|factor|coef|alpha|beta|theta|aux|jitter|logits?"
    r"|norm_topk|n_group|topk_group|router|routed|routing|rope|rotary|_act|activation|impl|backend|kernels?$|in_fp32|cache"
    r"|max_window_layers|(model|torch|data|problem|norm|position_embedding|d)_?type|chunk_size_feed_forward|cross_attention_"
    r"|architectures|auto_map|quantization|pruned|bos|eos|decoder_start|tie_|task|vocab|id2|2id|return_|output_|tp_plan"
    r"|moe_group|expert_selection|strategy|pretraining|softcap|mup|ep_size|max_position|seq_|mscale)"
)
"""Words in the name of a field that changes no shape, whatever else is in it."""
_READ = frozenset(
    {*USUAL_NAMES, *(name for names in USUAL_NAMES.values() for name in names), *_SECTIONS}
    | {field for field, row in FIELDS.items() if row["read"]}
)
"""Fields that say something of shapes and are read, or only of positions."""


def with_usual_names(fields: ConfigFields) -> ConfigFields:
    """The fields with every size under its usual name; lists that say the same for every layer become what they say.

    ``expansion_ratio`` times the hidden channels is the width of a feed-forward block that has none (GPT-2, MPT), and
    ``multi_query`` means one KV head, unless the new decoder of Falcon says how many. Raises `InputError`.

    >>> with_usual_names(ConfigFields({"n_embd": 64, "multi_query": True})).values["num_key_value_heads"]
    1
    """
    values: dict[str, object] = {}
    for section in filter(None, map(fields.section, _SECTIONS)):
        values |= {key: value for key, value in section.values.items() if key not in ("hidden_size", "model_type")}
    values |= {key: value for key, value in fields.values.items() if value is not None or key not in values}
    for name, others in USUAL_NAMES.items():
        value = next((values[key] for key in (name, *others) if values.get(key) is not None), None)
        if isinstance(value, list) and value and isinstance(value[0], int) and len(set(map(str, value))) == 1:
            value = value[0]
        if value is not None:
            values[name] = value
    named = ConfigFields(values, fields.prefix)
    if values.get("intermediate_size") is None and values.get("expansion_ratio") is not None:
        values["intermediate_size"] = named.size("expansion_ratio") * named.size("hidden_size")
    if named.flag("multi_query", default=False) and not named.flag("new_decoder_architecture", default=False):
        values["num_key_value_heads"] = 1
    return named


def with_all_names(fields: ConfigFields) -> ConfigFields:
    """The fields of a family that has names of its own, each size under its other names, too.

    Transformers 5 writes ``num_local_experts`` for the ``num_experts`` of Qwen's own files.

    >>> with_all_names(ConfigFields({"num_local_experts": 8})).values["num_experts"]
    8
    """
    values = dict(fields.values)
    for names in ((name, *others) for name, others in USUAL_NAMES.items()):
        value = next((values[name] for name in names if type(values.get(name)) is int), None)
        values |= {} if value is None else {name: value for name in names if values.get(name) is None}
    return ConfigFields(values, fields.prefix)


def refuse_unsaid(fields: ConfigFields) -> None:
    """Refuse a family without a row whose fields do not say its shapes, or say more than is understood.

    Raises:
        UnsupportedFeatureError: the field that is missing or that is not understood, by name.
    """
    model_type = fields.text("model_type")
    fix = "use a model of a known family, or describe it by the usual fields"
    activation = next((fields.values[key] for key in _ACTIVATIONS if fields.values.get(key)), "(missing)")
    if activation not in _GATED_ACTIVATIONS:
        bound = f"does not say if the feed-forward block is gated, and the family {model_type} is not known"
        raise fields.unmodelled("hidden_act", activation, bound, fix)
    for key, value in fields.values.items():
        said = value not in (None, False, 0, 1, "", [], {}) and not isinstance(value, float)
        if said and key not in _READ and _SHAPE_WORDS.search(key) and not _NO_SHAPES.search(key):
            bound = f"says more of its shapes than is modelled (model_type {model_type}, a family that is not known)"
            raise fields.unmodelled(key, value, bound, fix)


_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")

# ------------------------------------------------------------------------------------------------ attention


def usual_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Latent attention where a config has its rank; else ``layer_types``, a pattern of windows, or one kind."""
    if fields.values.get("kv_lora_rank"):
        return [latent_attention(fields, traits)] * layer_count(fields)
    if fields.texts("layer_types"):
        full = grouped_query(fields, traits)
        window = sliding_window(fields)
        kinds: dict[str, Attention] = {FULL_ATTENTION: full, "attention": full}
        kinds["sliding_attention"] = grouped_query(fields, traits, window=window)
        if {"mamba", "linear_attention"} & set(fields.texts("layer_types")):
            kinds["mamba"] = kinds["linear_attention"] = state_space(fields)  # Granite 4, of either Transformers
        return by_word(fields, "layer_types", kinds)
    if fields.values.get("sliding_window_pattern") and sliding_window(fields):
        return periodic_windows(fields, traits)
    if fields.values.get("max_window_layers") is not None:
        return late_windows(fields, traits)
    return same_attention(fields, traits)


def alternating_spans(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """GPT-Neo: ``attention_types``, runs of ``global`` and ``local`` (windowed) layers with how often each repeats."""
    kinds = {"global": FULL_ATTENTION, "local": "sliding_attention"}
    runs = fields.values.get("attention_types") or [[["global", "local"], layer_count(fields) // 2]]
    try:
        words = [kinds[word] for run, times in runs for _ in range(times) for word in run]  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError):
        raise fields.wrong("attention_types", runs, "lists runs of global and local layers", "correct it") from None
    return usual_attentions(ConfigFields({**fields.values, "layer_types": words}, fields.prefix), traits)


def indexed_state_spaces(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Bamba: attention in the layers of ``attn_layer_indices``, a state space of Mamba-2 in all others."""
    attends = fields.integers("attn_layer_indices")
    full, mamba = grouped_query(fields, traits), state_space(fields)
    return [full if layer in attends else mamba for layer in range(layer_count(fields))]


def parallel_attentions(fields: ConfigFields, traits: AttentionTraits) -> Attentions:
    """Falcon-H1: a state space of Mamba-2 and attention side by side in every layer, which engines run in turn.

    Each layer counts as two, the second with the feed-forward block (`parallel_feed_forwards`).
    """
    return [state_space(fields), grouped_query(fields, traits)] * layer_count(fields)


def state_space(fields: ConfigFields) -> StateSpace:
    """Mamba-2 of the sizes in a config. Raises `UnsupportedFeatureError` for Mamba-1, which has no heads."""
    heads = fields.optional_size("mamba_n_heads")
    if heads is None:
        bound = "a state space without heads (Mamba-1) is not modelled"
        raise fields.unmodelled("mamba_n_heads", "(missing)", bound)
    inner = fields.optional_size("mamba_d_ssm") or fields.size("mamba_expand") * fields.size("hidden_size")
    if inner % heads:
        raise fields.wrong("mamba_n_heads", heads, f"must divide the {inner} channels of the state space")
    return StateSpace(
        heads=heads,
        head_dim=inner // heads,
        state_size=fields.size("mamba_d_state"),
        groups=fields.size("mamba_n_groups"),
        conv_kernel=fields.size("mamba_d_conv"),
    )


# ------------------------------------------------------------------------------------------------ feed-forward


def usual_feed_forwards(fields: ConfigFields, gated: bool = True, bias: bool | None = None) -> FeedForwards:
    """Experts where the config has any, in the layers that its fields name, dense blocks in the others.

    Args:
        fields: of a config, with usual names.
        gated: the blocks are gated.
        bias: their matrices have biases; None: as ``mlp_bias`` says.
    """
    biased = fields.flag("mlp_bias", default=False) if bias is None else bias
    layers, experts, shared = layer_count(fields), fields.count("num_experts"), _shared_channels(fields)
    sparse = [experts > 1 and all(rule(layer) for rule in _sparse_rules(fields)) for layer in range(layers)]
    dense = moe = None
    if not all(sparse):
        width = shared if shared and not experts else fields.size("intermediate_size")  # Granite 4 without experts
        dense = DenseFeedForward(intermediate=width, gated=gated, bias=biased)
    if any(sparse):
        key = "moe_intermediate_size" if fields.values.get("moe_intermediate_size") else "intermediate_size"
        corrected = ("moe_router_enable_expert_bias", "use_expert_bias")
        moe = routed_experts(
            fields,
            "num_experts",
            key,
            shared,
            gated=gated,
            bias=biased,
            router_bias=any(fields.flag(flag, default=False) for flag in corrected),
            latent=fields.count("moe_hidden_size"),
        )
    return [moe if is_sparse else dense for is_sparse in sparse]


def parallel_feed_forwards(fields: ConfigFields) -> FeedForwards:
    """Falcon-H1: none beside the state space, one after the attention."""
    return [block for dense in usual_feed_forwards(fields) for block in (None, dense)]


def _shared_channels(fields: ConfigFields) -> int:
    """Channels of all shared experts together; Arctic has a dense block as wide as the model beside its experts."""
    if fields.flag("parallel_attn_mlp_res", default=False):
        return fields.size("hidden_size")
    stated = fields.count("shared_expert_intermediate_size")
    number = fields.count("num_shared_experts", default=int(stated > 0))
    return (
        number * (stated or fields.count("moe_intermediate_size") or fields.size("intermediate_size")) if number else 0
    )


def _sparse_rules(fields: ConfigFields) -> list[Callable[[int], bool]]:
    """What a layer must fulfil to have experts, one rule for each field that says so."""
    layers = layer_count(fields)
    words = fields.texts("mlp_layer_types")
    if words:
        return [by_word(fields, "mlp_layer_types", {"dense": False, "sparse": True}, "block").__getitem__]
    if isinstance(fields.values.get("moe_layer_freq"), list):
        flags = one_each(fields, "moe_layer_freq", fields.integers("moe_layer_freq"), layers)
        return [lambda layer: bool(flags[layer])]
    first, every = fields.count("first_k_dense_replace"), fields.size("moe_layer_freq", default=1)
    dense_only, named = fields.integers("mlp_only_layers"), fields.integers("moe_layers")
    rules: list[Callable[[int], bool]] = [lambda layer: layer >= first and layer % every == 0]
    rules.append(lambda layer: layer not in dense_only and (not named or layer in named))
    keys = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_frequency")
    steps = [fields.size(key, default=1) for key in keys]
    rules.append(lambda layer: all((layer + 1) % step == 0 for step in steps))
    return rules
