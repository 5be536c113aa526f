"""Families of decoders: what a ``model_type`` fixes beside the sizes in its ``config.json``.

A family is a row of ``presets/decoder_families.csv``, as ``modeling_<model_type>.py`` in Hugging Face Transformers
defines it, and names the readers of its layers (`planner.llm.hf_layers` and the modules beside it). One without a row
is read by its fields alone (`planner.llm.hf_usual`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from planner.core import preset_rows
from planner.llm import hf_hybrid, hf_layers, hf_local_global, hf_sparse, hf_usual
from planner.llm.hf_config import ConfigFields, Feature, refuse_unmodelled
from planner.llm.hf_layers import Attentions, AttentionTraits, FeedForwards, QkNorm
from planner.llm.hf_usual import refuse_unsaid, usual_attentions, usual_feed_forwards, with_all_names, with_usual_names
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

    feed_forwards: Callable[[ConfigFields], FeedForwards]
    attentions: Callable[[ConfigFields, AttentionTraits], Attentions]
    attention: AttentionTraits
    models: frozenset[Feature]
    tied: bool
    norm: NormKind
    norms_per_layer: int
    defaults: Mapping[str, object]
    position_offset: int | None
    prediction: Callable[[ConfigFields, AttentionTraits], Blocks | None] | None
    has_modules: bool
    layer_embedding: Callable[[ConfigFields], LayerEmbedding | None] | None
    usual: bool


_USUAL = "latent hybrid window shared_experts leading_dense interleaved"
_READERS = {**vars(hf_hybrid), **vars(hf_layers), **vars(hf_local_global), **vars(hf_sparse), **vars(hf_usual)}
"""Readers of blocks, by the names that rows have for them in `_READER_COLUMNS`."""
_READER_COLUMNS = ("feed_forwards", "attentions", "prediction", "layer_embedding")


def _family(row: Mapping[str, str]) -> ModelFamily:
    """A family as its row says; an empty cell: as its fields say under their usual names, or as Llama has it."""

    def either(column: str) -> bool | None:
        return {"yes": True, "no": False}.get(row.get(column, ""))

    def bias(column: str) -> bool | str:
        said = either(column)
        return (row.get(column) or column) if said is None else said

    reader = {column: _READERS[row[column]] for column in _READER_COLUMNS if row.get(column)}
    norm = row.get("qk_norm")
    attention = AttentionTraits(
        qkv_bias=bias("qkv_bias"),
        output_bias=bias("output_bias"),
        qk_norm=QkNorm(norm or QkNorm.SHARED),
        qk_norm_flag=row.get("qk_norm_flag") or (None if norm else "use_qk_norm"),
        sinks=bool(either("sinks")),
        output_gate=bool(either("output_gate")),
        index_heads=int(row.get("index_heads") or 0),
        required=tuple(row.get("required", "").split()),
    )
    usual_blocks = partial(usual_feed_forwards, gated=either("gated") is not False, bias=either("mlp_bias"))
    features = (row.get("features") or _USUAL).upper().split()
    return ModelFamily(
        reader.get("feed_forwards") or usual_blocks,
        reader.get("attentions") or usual_attentions,
        attention,
        frozenset(Feature[name] for name in features if name != "NONE"),
        tied=bool(either("tied")),
        norm=NormKind(row.get("norm") or NormKind.RMS),
        norms_per_layer=int(row.get("norms_per_layer") or 2),
        defaults=json.loads(row.get("defaults") or "{}"),
        position_offset=int(row["position_offset"]) if row.get("position_offset") else None,
        prediction=reader.get("prediction"),
        has_modules=either("modules") is not False,
        layer_embedding=reader.get("layer_embedding"),
        usual=not either("own_names"),
    )


_UNKNOWN = _family({})
_TABLE = {row["model_type"]: row for row in preset_rows("decoder_families.csv")}
FAMILIES = {model_type: _family(row) for model_type, row in _TABLE.items() if not row["refused"]}
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
    read = with_usual_names(given) if family.usual else with_all_names(given)
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
