"""`LlmSpec`: a decoder-only language model as its shapes, and how it is read from a Hugging Face ``config.json``.

What is not modelled raises `UnsupportedFeatureError` naming the feature; a wrong number is never returned silently. The
counts of parameters and bytes of a spec are in `planner.llm.sizes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from planner.core import Frozen, InputError
from planner.llm.hf_config import (
    CONFIG_NAME,
    ConfigFields,
    context_tokens,
    language_fields,
    read_config,
    read_quantisation,
    refuse_unmodelled,
)
from planner.llm.hf_families import (
    FAMILIES,
    MODELLED,
    decoder_layers,
    layer_groups,
    learned_positions,
    prediction_layers,
    with_defaults,
)
from planner.llm.hf_quantisation import native_precision
from planner.llm.layers import Count, LayerGroup, NormKind, Precision, Size


class LlmSpec(Frozen):
    """A decoder-only transformer as its shapes. Sizes are in channels, heads, tokens; no bytes and no GPUs."""

    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    hidden_size: Size
    vocab_size: Size
    max_context_tokens: Size
    tied_embeddings: bool
    learned_positions: Count = Field(default=0, description="rows of a learned position table (OPT)")
    norm: NormKind = NormKind.RMS
    norms_per_layer: Size = 2
    native_precision: Precision = Precision()
    layers: tuple[LayerGroup, ...] = Field(min_length=1)
    mtp: LayerGroup | None = Field(default=None, description="decoder layer of one multi-token-prediction module")
    mtp_layers: Count = Field(default=0, description="multi-token-prediction modules; not counted in `parameters`")

    @model_validator(mode="after")
    def _modules_have_a_layer(self) -> Self:
        if (self.mtp is None) != (self.mtp_layers == 0):
            bound = "needs the decoder layer of a module in mtp, and mtp needs modules"
            raise InputError("mtp_layers", self.mtp_layers, bound, "give both or neither")
        return self

    @property
    def num_layers(self) -> int:
        """Decoder layers of all groups."""
        return sum(group.count for group in self.layers)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object] | str | Path,
        *,
        id: str | None = None,
        name: str | None = None,
        source: str | None = None,
    ) -> LlmSpec:
        """From a Hugging Face ``config.json``: its content, its path, or the folder that contains it.

        Of a multimodal wrapper the language model in its ``text_config`` is taken; its vision or audio encoder is not
        counted, which `source` then says. Name and source default to the keys ``_name`` and ``_source``, then to folder
        and path; the id to the name, in lower case and without the organisation. The native precision is that of the
        checkpoint (``quantization_config``, or ``hf_quant_config.json`` beside the file), in 16 bits where it is
        float32 or unnamed. Multi-token-prediction modules (``num_nextn_predict_layers``, ``mtp_num_hidden_layers``) are
        kept apart, in `mtp`.

        Raises:
            InputError: unreadable file, or a missing, malformed or inconsistent field.
            UnsupportedFeatureError: a family or feature that is not modelled, named in the message.

        >>> LlmSpec.from_config({"model_type": "llama"})
        Traceback (most recent call last):
        planner.core.errors.InputError: config.hidden_size = '(missing)': a decoder config needs it. Fix: add it, or ...
        """
        if isinstance(config, Mapping):
            fields, place, read_from = ConfigFields(config), None, "given"
        elif isinstance(config, str | Path):
            fields, place, read_from = _fields_of(config), _name_of(Path(config)), str(config)
        else:
            raise InputError("config", config, "is neither a mapping nor a path", "give a dict or a config.json")
        try:
            language = with_defaults(language_fields(fields))
            refuse_unmodelled(language, MODELLED)
            name = name or fields.text("_name") or place or str(language.text("model_type"))
            source = source or fields.text("_source") or read_from
            if language.prefix != fields.prefix:
                source = f"{source}; the language model only, without the encoders of {fields.text('model_type')}"
            return _spec(language, id or id_of(name), name, source)
        except RecursionError:
            raise InputError("config", "(nested)", "is nested too deeply", "give a plain config.json") from None


def _fields_of(path: str | Path) -> ConfigFields:
    config = read_config(path)
    beside = None if config.get("quantization_config") else read_quantisation(path)
    if beside is None:
        return ConfigFields(config)
    return ConfigFields({**config, "quantization_config": {"quant_method": "modelopt", **beside}})


def _spec(fields: ConfigFields, id: str, name: str, source: str) -> LlmSpec:
    family = FAMILIES[str(fields.text("model_type"))]
    hidden, layers = fields.size("hidden_size"), decoder_layers(fields, family)
    mtp, mtp_layers = prediction_layers(fields, layers)
    return LlmSpec(
        id=id,
        name=name,
        source=source,
        hidden_size=hidden,
        vocab_size=fields.size("vocab_size"),
        max_context_tokens=context_tokens(fields),
        tied_embeddings=fields.flag("tie_word_embeddings", family.tied),
        learned_positions=learned_positions(fields, family),
        norm=family.norm,
        norms_per_layer=family.norms_per_layer,
        native_precision=native_precision(fields, layers, hidden),
        layers=layer_groups(layers),
        mtp=mtp,
        mtp_layers=mtp_layers,
    )


def _name_of(path: Path) -> str:
    """Name of a model read from disk: its folder for a ``config.json``, else the file's own."""
    place = path.expanduser().resolve()
    if place.is_dir():
        return place.name
    return place.parent.name if place.name == CONFIG_NAME else place.stem


def id_of(name: str) -> str:
    """Lower-case name after the organisation, without the suffix of converted checkpoints. Raises nothing.

    >>> id_of("meta-llama/Llama-2-70b-hf")
    'llama-2-70b'
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix("-hf")
    return re.sub(r"[^a-z0-9.]+", "-", last).strip("-.") or "llm"
