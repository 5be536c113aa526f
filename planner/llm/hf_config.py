"""Read a Hugging Face ``config.json`` safely: the file, its typed fields, its unmodelled features, its context.

Knows JSON and key names; what the shapes mean is in `planner.llm.hf_layers`. Key names and class defaults are those of
the configuration classes of Hugging Face Transformers 4.57 (``configuration_<model_type>.py``). Every error is an
`InputError` in one line; a feature that would change a count is an `UnsupportedFeatureError`, never ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from planner.core import InputError, UnsupportedFeatureError, preset_rows, shorten
from planner.llm.formats import MAX_SIZE

MAX_FILE_BYTES = 10_000_000
"""Largest file that is read. Published config.json files are below 100 kB; weights are far above 10 MB."""

CONFIG_NAME = "config.json"
"""File that holds the architecture in a Hugging Face model folder."""
QUANTISATION_NAME = "hf_quant_config.json"
"""File beside it in which NVIDIA ModelOpt describes the number formats of a checkpoint."""
_GIVE_CONFIG = "give the config.json of a decoder-only language model"


def read_config(path: str | Path, most_bytes: int = MAX_FILE_BYTES) -> dict[str, object]:
    """The JSON object in a ``config.json``, or in the folder that contains it.

    Raises:
        InputError: nothing there, not a regular file, above `most_bytes` (refused before reading), not JSON,
            nested too deeply, or JSON that is not an object.
    """
    try:
        place = Path(path).expanduser()
        place = place / CONFIG_NAME if place.is_dir() else place
        if not place.is_file():
            raise InputError("config", str(path), f"no such file, or no {CONFIG_NAME} in it", _GIVE_CONFIG)
        size_bytes = place.stat().st_size
        if size_bytes > most_bytes:
            raise InputError("config", str(path), f"has {size_bytes} bytes, more than {most_bytes}", _GIVE_CONFIG)
        raw = place.read_bytes()
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError("config", str(path), f"cannot be read ({type(error).__name__})", _GIVE_CONFIG) from None
    return _parsed(raw, str(path))


def read_quantisation(path: str | Path) -> dict[str, object] | None:
    """Content of ``hf_quant_config.json``, in the folder `path` or beside the file `path`; None where there is none.

    Raises:
        InputError: a file of that name that cannot be read, as `read_config`.
    """
    place = Path(path).expanduser()
    place = (place if place.is_dir() else place.parent) / QUANTISATION_NAME
    return read_config(place) if place.is_file() else None


def _parsed(raw: bytes, path: str) -> dict[str, object]:
    """The JSON object in a file's content. Raises InputError for anything else."""
    try:
        value = json.loads(raw)
    except ValueError as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError("config", path, f"is not JSON{where}", _GIVE_CONFIG) from None
    except RecursionError:
        raise InputError("config", path, "is nested too deeply", _GIVE_CONFIG) from None
    if not isinstance(value, dict):
        raise InputError("config", path, f"is a JSON {type(value).__name__}, not an object", _GIVE_CONFIG)
    return value


_Item = TypeVar("_Item")


class ConfigFields:
    """Typed, checked access to one JSON object; null counts as absent, as it does in Hugging Face configs."""

    def __init__(self, values: Mapping[str, object], prefix: str = "config") -> None:
        self.values = values
        self.prefix = prefix

    def path(self, name: str) -> str:
        """The field as an error names it, e.g. ``config.rope_scaling.factor``."""
        return f"{self.prefix}.{name}"

    def unmodelled(
        self, name: str, value: object, bound: str, fix: str = "use another model"
    ) -> UnsupportedFeatureError:
        """The error of a field that asks for what is not modelled."""
        return UnsupportedFeatureError(self.path(name), value, bound, fix)

    def wrong(self, name: str, value: object, bound: str, fix: str = "correct one of the two") -> InputError:
        """The error of a field whose value cannot be."""
        return InputError(self.path(name), value, bound, fix)

    def optional_size(self, name: str, most: int = MAX_SIZE) -> int | None:
        """A whole number in 1..`most`, or None when absent. Raises `InputError`."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(self.path(name), value, "must be a whole number", f"give an integer from 1 to {most}")
        if not 1 <= value <= most:
            shown = value if abs(value) < 10**18 else f"an integer of {value.bit_length()} bits"
            raise InputError(self.path(name), shown, f"must be from 1 to {most}", "correct the size")
        return value

    def size(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number in 1..`most`; required unless a default is given. Raises `InputError`."""
        value = self.optional_size(name, most)
        if value is not None:
            return value
        if default is not None:
            return default
        raise InputError(self.path(name), "(missing)", "a decoder config needs it", f"add it, or {_GIVE_CONFIG}")

    def count(self, name: str, default: int = 0) -> int:
        """A whole number in 0..`MAX_SIZE`; the default when absent. Raises `InputError`."""
        value = self.values.get(name)
        return 0 if value == 0 and not isinstance(value, bool) else self.size(name, default=default)

    def number(self, name: str, least: float = 1) -> float:
        """A finite number in `least`..`MAX_SIZE`; required. Raises `InputError`."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MAX_SIZE:
            raise InputError(self.path(name), value, f"must be a number from {least:g} to {MAX_SIZE}", "correct it")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises `InputError`."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(self.path(name), value, "must be true or false", "correct the flag")
        return value

    def text(self, name: str) -> str | None:
        """A string that is not empty, or None when absent. Raises `InputError`."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise InputError(self.path(name), value, "must be a string that is not empty", "correct or remove it")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when absent. Raises `InputError`."""
        return tuple(self._items(name, str, "strings"))

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, often of layers from 0; empty when absent. Raises `InputError`."""
        items = self._items(name, int, "layer numbers")
        if any(isinstance(item, bool) for item in items):
            raise self.wrong(name, list(items), "must be a list of layer numbers", "correct or remove it")
        return tuple(items)

    def section(self, name: str) -> ConfigFields | None:
        """A nested object, or None when absent. Raises `InputError`."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InputError(self.path(name), value, "must be an object", "correct or remove it")
        return ConfigFields(value, self.path(name))

    def sections(self, name: str) -> tuple[ConfigFields, ...]:
        """A list of objects; empty when absent. Raises `InputError`."""
        items = self._items(name, Mapping, "objects")  # type: ignore[type-abstract]
        return tuple(ConfigFields(item, f"{self.path(name)}[{number}]") for number, item in enumerate(items))

    def _items(self, name: str, kind: type[_Item], words: str) -> Sequence[_Item]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.wrong(name, value, "must be a list", "correct or remove it")
        if not all(isinstance(item, kind) for item in value):
            raise self.wrong(name, value, f"must be a list of {words}", "correct or remove it")
        return value


# ------------------------------------------------------------------------------------------------ features


class Feature(StrEnum):
    """Features that change parameters, FLOPs or cache bytes and are modelled in some families, or in none."""

    LATENT = "multi-head latent attention (MLA)"
    SPARSE_INDEX = "a sparse attention index"
    SHARED_INDEX = "a sparse attention index shared between layers"
    POOLED_INDEX = "a sparse attention index over pooled keys"
    SPARSE_BLOCKS = "block-sparse attention"
    LINEAR = "linear attention"
    STATE_SPACE = "state-space layers (Mamba)"
    CHUNKED = "chunked attention"
    HYBRID = "hybrid local-global attention"
    SHARED_EXPERTS = "shared experts"
    LEADING_DENSE = "leading dense layers before the experts"
    INTERLEAVED = "interleaved expert layers"
    LATENT_EXPERTS = "experts on a latent vector"
    RESIDUAL_BLOCKS = "attention residuals"
    COMPRESSED = "attention over compressed keys"
    HYPER_CONNECTIONS = "hyper-connections"
    HASHED_EXPERTS = "experts chosen by a hash table"
    SHARED_CACHE = "KV cache shared between layers"
    PER_LAYER_SHAPES = "per-layer shapes"
    CROSS_ATTENTION = "cross-attention"
    ENCODER_DECODER = "an encoder-decoder"
    ENCODER = "a vision or audio encoder"
    WINDOW = "sliding window attention"
    OTHER_LAYERS = "another type of layer"


FIELDS = {row["field"]: row for row in preset_rows("config_fields.csv")}
"""Fields of a config: other names of sizes, the feature that a field means, and if it is read though it is no size."""
_MARKERS = {
    feature: tuple(field for field, row in FIELDS.items() if row["feature"] == feature.name.lower())
    for feature in Feature
}
"""Keys whose presence (true, not zero, not empty) means a feature that changes parameters, FLOPs or KV bytes."""

_LAYER_TYPES = {
    "sliding_attention": Feature.HYBRID,
    "linear_attention": Feature.LINEAR,
    "chunked_attention": Feature.CHUNKED,
    "mamba": Feature.STATE_SPACE,
    "deepseek_sparse_attention": Feature.SPARSE_INDEX,
    "indexed_attention": Feature.SPARSE_INDEX,
    "minimax_m3_sparse": Feature.SPARSE_BLOCKS,
    "compressed_sparse_attention": Feature.COMPRESSED,
    "heavily_compressed_attention": Feature.COMPRESSED,
}
FULL_ATTENTION = "full_attention"
"""Entry of ``layer_types`` for a layer of softmax attention over the whole context."""
_FULL_ATTENTION_CODE = 1
"""Entry of MiniMax's ``attn_type_list`` for softmax attention; 0 is lightning (linear) attention."""

_OPT_IN_WINDOW_FAMILIES = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next")
"""Families whose ``sliding_window`` counts only with ``use_sliding_window`` (default false)."""


_TEXT_FAMILIES = {"minimax_m3_vl": "minimax_m3"}
"""Wrappers that fix the family of their ``text_config``, whatever that says (``configuration_minimax_m3_vl.py``)."""


_ENCODERS_BESIDE = ("mimo_v2", "qwen2_vl", "qwen2_5_vl", "phi4_multimodal")
"""Families whose config has the sizes of the decoder and, in sections beside them, those of its encoders."""


def language_fields(fields: ConfigFields) -> ConfigFields:
    """The fields of the language model: ``text_config`` of a multimodal wrapper over the wrapper's own, else all.

    The encoders of a wrapper, or of a family that has them beside its decoder, are left out. Raises `InputError` for a
    malformed field, `UnsupportedFeatureError` for a wrapper whose ``text_config`` names no model_type.
    """
    wrapped = next(filter(None, map(fields.section, ("text_config", "llm_config", "language_config"))), None)
    if wrapped is None and fields.text("model_type") in _ENCODERS_BESIDE:
        kept = {key: value for key, value in fields.values.items() if key not in _MARKERS[Feature.ENCODER]}
        return ConfigFields(kept, fields.prefix)
    if wrapped is None:
        return fields
    family = _TEXT_FAMILIES.get(fields.text("model_type") or "")
    if family is not None:
        wrapped = ConfigFields({**wrapped.values, "model_type": family}, wrapped.prefix)
    if wrapped.text("model_type") is None:
        bound = "multimodal wrappers are modelled only when their text_config names a model_type"
        raise UnsupportedFeatureError(wrapped.path("model_type"), "(missing)", bound, _GIVE_CONFIG)
    outer = {key: value for key, value in fields.values.items() if key not in _MARKERS[Feature.ENCODER]}
    inner = {key: value for key, value in wrapped.values.items() if value is not None or key not in outer}
    return ConfigFields({**outer, **inner, "text_config": None}, wrapped.prefix)


def refuse_unmodelled(fields: ConfigFields, modelled: Collection[Feature]) -> None:
    """Refuse a config with features other than those modelled in its family, all of them named in one line.

    Raises:
        UnsupportedFeatureError: the config has another feature.
        InputError: a field that says so is malformed, or no model_type names the family.
    """
    model_type = fields.text("model_type")
    features = [(key, feature) for feature, keys in _MARKERS.items() for key in keys if fields.values.get(key)]
    features += _layer_type_features(fields)
    if sliding_window(fields):
        features.append(("sliding_window", Feature.WINDOW))
    unmodelled = [(key, feature) for key, feature in features if feature not in modelled]
    if unmodelled:
        key, names = unmodelled[0][0], list(dict.fromkeys(feature.value for _, feature in unmodelled))
        of_type = f" (model_type {shorten(model_type)})" if model_type else ""
        named = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        bound = f"{named} {'are' if len(names) > 1 else 'is'} not modelled{of_type}"
        raise fields.unmodelled(key, fields.values.get(key), bound)
    if model_type is None:
        raise fields.wrong("model_type", "(missing)", "a decoder config names its family", _GIVE_CONFIG)


def refuse_experts(fields: ConfigFields) -> None:
    """Refuse experts in a family that is dense. Raises `UnsupportedFeatureError`."""
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if fields.values.get(key):
            value, model_type = fields.values[key], fields.values.get("model_type")
            raise UnsupportedFeatureError(
                fields.path(key), value, f"experts are not modelled in model_type {model_type}", "remove the key"
            )


def _layer_type_features(fields: ConfigFields) -> list[tuple[str, Feature]]:
    """Features that the types of layers mean, each with its key."""
    kinds = [kind for kind in dict.fromkeys(fields.texts("layer_types")) if kind not in (FULL_ATTENTION, "attention")]
    features = [("layer_types", _LAYER_TYPES.get(kind, Feature.OTHER_LAYERS)) for kind in kinds]
    if set(fields.integers("attn_type_list")) - {_FULL_ATTENTION_CODE}:
        features.append(("attn_type_list", Feature.LINEAR))
    return features


def sliding_window(fields: ConfigFields) -> int:
    """Tokens of the sliding window, 0 where there is none or it is as long as the context.

    Raises:
        InputError: malformed fields. UnsupportedFeatureError: position scaling that is not modelled.
    """
    if not fields.flag("use_sliding_window", default=fields.text("model_type") not in _OPT_IN_WINDOW_FAMILIES):
        return 0
    window = fields.optional_size("sliding_window")
    if window is None:
        return 0
    bounded = fields.values.get("max_position_embeddings") is not None
    return 0 if bounded and window >= context_tokens(fields) else window


# ------------------------------------------------------------------------------------------------ context

_ROPE_CONTEXT_AS_STATED = ("default", "llama3", "longrope", "su", "mrope")
"""Position scaling whose ``max_position_embeddings`` is the context already."""
_ROPE_CONTEXT_TIMES_FACTOR = ("linear", "dynamic", "yarn")
"""Position scaling that multiplies it by ``factor``."""
_SCALED_CONTEXT_FAMILIES = ("gemma3_text",)
"""Families whose ``max_position_embeddings`` is the scaled length already (vLLM, ``get_and_verify_max_len``)."""


def context_tokens(fields: ConfigFields) -> int:
    """Longest sequence [tokens] an engine accepts for the model.

    ``model_max_length`` if given (Cohere), else ``max_position_embeddings``; linear, dynamic and YaRN position scaling
    multiply by ``factor``, YaRN from ``original_max_position_embeddings``; llama3 and longrope state the scaled length.
    The rules of vLLM 0.11 (``vllm/config/model.py``, derivation of max_model_len).

    Raises:
        InputError: missing or malformed field. UnsupportedFeatureError: another kind of position scaling.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> context_tokens(ConfigFields({"max_position_embeddings": 40960, "rope_scaling": yarn}))  # Qwen3 model card
    131072
    """
    context = fields.optional_size("model_max_length") or fields.size("max_position_embeddings")
    rope = fields.section("rope_scaling") or fields.section("rope_parameters")
    if rope is None or fields.text("model_type") in _SCALED_CONTEXT_FAMILIES:
        return context
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind in _ROPE_CONTEXT_AS_STATED:
        return context
    if kind not in _ROPE_CONTEXT_TIMES_FACTOR:
        fix = f"use one of {', '.join(_ROPE_CONTEXT_AS_STATED + _ROPE_CONTEXT_TIMES_FACTOR)}"
        raise UnsupportedFeatureError(rope.path("rope_type"), kind, "this position scaling is not modelled", fix)
    if kind == "yarn":
        context = rope.optional_size("original_max_position_embeddings") or context
    return math.floor(context * rope.number("factor"))
