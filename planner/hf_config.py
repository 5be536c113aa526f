"""Read a Hugging Face ``config.json`` safely: the file, its typed fields, its unmodelled features, its number formats.

Knows JSON and key names; what the shapes mean is `planner.llm`. Key names and class defaults are those of the
configuration classes of Hugging Face Transformers 4.57 (``configuration_<model_type>.py``). Every complaint is an
`InputError` in one line; a feature that would change a count is an `UnsupportedFeatureError`, never ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hardware_db.schema import Dtype
from planner.errors import InputError, UnsupportedFeatureError, shorten
from planner.llm_layers import MAX_SIZE

MAX_FILE_BYTES = 10_000_000
"""Largest file that is read. Published config.json files are below 100 kB; weights are far above 10 MB."""

CONFIG_NAME = "config.json"
"""File that holds the architecture in a Hugging Face model folder."""
_GIVE_CONFIG = "give the config.json of a decoder-only language model"


def read_config(path: str | Path) -> dict[str, object]:
    """The JSON object in a ``config.json``, or in the folder that contains it.

    Raises:
        InputError: nothing there, not a regular file, above `MAX_FILE_BYTES` (refused before reading), not JSON,
            nested too deeply, or JSON that is not an object.
    """
    try:
        place = Path(path).expanduser()
        place = place / CONFIG_NAME if place.is_dir() else place
        if not place.is_file():
            raise InputError("config", str(path), f"no such file, or no {CONFIG_NAME} in it", _GIVE_CONFIG)
        size_bytes = place.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise InputError("config", str(path), f"has {size_bytes} bytes, more than {MAX_FILE_BYTES}", _GIVE_CONFIG)
        raw = place.read_bytes()
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError("config", str(path), f"cannot be read ({type(error).__name__})", _GIVE_CONFIG) from None
    return _parsed(raw, str(path))


def _parsed(raw: bytes, path: str) -> dict[str, object]:
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


class ConfigFields:
    """Typed, checked access to one JSON object; null counts as absent, as it does in Hugging Face configs."""

    def __init__(self, values: Mapping[str, object], prefix: str = "config") -> None:
        self.values = values
        self.prefix = prefix

    def path(self, name: str) -> str:
        """The field as an error names it, e.g. ``config.rope_scaling.factor``."""
        return f"{self.prefix}.{name}"

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

    def number(self, name: str) -> float:
        """A finite number in 1..`MAX_SIZE`; required. Raises `InputError`."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_SIZE:
            raise InputError(self.path(name), value, f"must be a number from 1 to {MAX_SIZE}", "correct it")
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
        items = self._items(name)
        if not all(isinstance(item, str) for item in items):
            raise InputError(self.path(name), items, "must be a list of strings", "correct or remove it")
        return tuple(str(item) for item in items)

    def layer_indices(self, name: str) -> frozenset[int]:
        """A list of layer numbers from 0; empty when absent. Raises `InputError`."""
        items = self._items(name)
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise InputError(self.path(name), items, "must be a list of layer numbers", "correct or remove it")
        return frozenset(item for item in items if isinstance(item, int))

    def section(self, name: str) -> ConfigFields | None:
        """A nested object, or None when absent. Raises `InputError`."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InputError(self.path(name), value, "must be an object", "correct or remove it")
        return ConfigFields(value, self.path(name))

    def _items(self, name: str) -> Sequence[object]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise InputError(self.path(name), value, "must be a list", "correct or remove it")
        return value


# ------------------------------------------------------------------------------------------------ features

_MARKERS: dict[str, tuple[str, ...]] = {
    "multi-head latent attention (MLA)": ("kv_lora_rank", "q_lora_rank"),
    "a sparse attention index": ("index_topk", "index_n_heads", "sparse_attention_config"),
    "linear attention": ("full_attention_interval", "linear_num_key_heads", "linear_conv_kernel_dim", "lru_width"),
    "state-space layers (Mamba)": ("state_size", "ssm_cfg", "ssm_state_size", "mamba_d_state", "mamba_d_ssm"),
    "chunked attention": ("attention_chunk_size",),
    "hybrid local-global attention": ("sliding_window_pattern", "_sliding_window_pattern", "attn_layer_period"),
    "shared experts": (
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "leading dense layers before the experts": ("first_k_dense_replace", "moe_layer_start_index"),
    "interleaved expert layers": ("interleave_moe_layer_step",),
    "KV cache shared between layers": ("num_kv_shared_layers", "use_cla"),
    "per-layer shapes": ("block_configs", "num_heads_per_layer"),
    "cross-attention": ("cross_attention_layers", "add_cross_attention"),
    "an encoder-decoder": ("is_encoder_decoder",),
    "a vision or audio encoder": ("vision_config", "audio_config", "has_vision_encoder", "patch_size"),
}
"""Keys whose presence (true, not zero, not empty) means a feature that changes parameters, FLOPs or KV bytes."""

_LAYER_TYPES = {
    "sliding_attention": "hybrid local-global attention",
    "linear_attention": "linear attention",
    "chunked_attention": "chunked attention",
    "mamba": "state-space layers (Mamba)",
}
_FULL_ATTENTION = "full_attention"
_FULL_ATTENTION_CODE = 1
"""Entry of MiniMax's ``attn_type_list`` for softmax attention; 0 is lightning (linear) attention."""

_DEFAULT_WINDOW: dict[object, int] = {"mistral": 4096}
"""Sliding window [tokens] of a config without the key: default of Transformers' MistralConfig."""
_WINDOW_IS_OPT_IN = ("qwen2", "qwen3", "qwen3_moe")
"""Families whose ``sliding_window`` counts only with ``use_sliding_window`` (default false)."""


def refuse_unmodelled(fields: ConfigFields, supported: Sequence[str]) -> None:
    """Refuse a config with features that are not modelled, all of them named in one line.

    Looks into ``text_config`` of multimodal wrappers too.

    Raises:
        UnsupportedFeatureError: the config has such a feature, or its model_type is not in `supported`.
        InputError: a field that says so is malformed.
    """
    wrapped = fields.section("text_config")
    flat = ConfigFields({**fields.values, **(wrapped.values if wrapped else {})})
    features = _marked(flat.values) + _layer_types(flat) + _sliding_window(flat)
    model_type = fields.text("model_type")
    fix = f"use a model of one of the families {', '.join(supported)}"
    if features:
        key, named = features[0][0], list(dict.fromkeys(feature for _, feature in features))
        of_type = f" (model_type {shorten(model_type)})" if model_type else ""
        value = flat.values.get(key, _DEFAULT_WINDOW.get(flat.values.get("model_type")))
        raise UnsupportedFeatureError(
            flat.path(key), value, f"{_listed(named)} {'are' if len(named) > 1 else 'is'} not modelled{of_type}", fix
        )
    if wrapped is not None:
        raise UnsupportedFeatureError(
            "config.text_config",
            "(given)",
            f"multimodal wrappers are not modelled (model_type {shorten(model_type)})",
            fix,
        )
    if model_type is None:
        raise InputError("config.model_type", "(missing)", "a decoder config names its family", fix)
    if model_type not in supported:
        raise UnsupportedFeatureError("config.model_type", model_type, "this family is not modelled", fix)


def refuse_experts(fields: ConfigFields) -> None:
    """Refuse experts in a family that is dense. Raises `UnsupportedFeatureError`."""
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if fields.values.get(key):
            value, model_type = fields.values[key], fields.values.get("model_type")
            raise UnsupportedFeatureError(
                fields.path(key), value, f"experts are not modelled in model_type {model_type}", "remove the key"
            )


def _marked(values: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(key, feature) for feature, keys in _MARKERS.items() for key in keys if values.get(key)]


def _layer_types(fields: ConfigFields) -> list[tuple[str, str]]:
    kinds = [kind for kind in dict.fromkeys(fields.texts("layer_types")) if kind != _FULL_ATTENTION]
    found = [("layer_types", _LAYER_TYPES.get(kind, "another type of layer")) for kind in kinds]
    if fields.layer_indices("attn_type_list") - {_FULL_ATTENTION_CODE}:
        found.append(("attn_type_list", "linear attention"))
    return found


def _sliding_window(fields: ConfigFields) -> list[tuple[str, str]]:
    model_type = fields.text("model_type")
    if not fields.flag("use_sliding_window", default=model_type not in _WINDOW_IS_OPT_IN):
        return []
    default = None if "sliding_window" in fields.values else _DEFAULT_WINDOW.get(model_type)
    window = fields.optional_size("sliding_window") or default
    if window is None:
        return []
    bounded = fields.values.get("max_position_embeddings") is not None
    return [] if bounded and window >= context_tokens(fields) else [("sliding_window", "sliding window attention")]


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ------------------------------------------------------------------------------------------------ context

_ROPE_AS_GIVEN = ("default", "llama3", "longrope", "su", "mrope")
_ROPE_SCALED = ("linear", "dynamic", "yarn")


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
    if rope is None:
        return context
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind in _ROPE_AS_GIVEN:
        return context
    if kind not in _ROPE_SCALED:
        fix = f"use one of {', '.join(_ROPE_AS_GIVEN + _ROPE_SCALED)}"
        raise UnsupportedFeatureError(rope.path("rope_type"), kind, "this position scaling is not modelled", fix)
    if kind == "yarn":
        context = rope.optional_size("original_max_position_embeddings") or context
    return math.floor(context * rope.number("factor"))


# ------------------------------------------------------------------------------------------------ number formats

_CHECKPOINT_DTYPE = {"float16": Dtype.FP16, "bfloat16": Dtype.BF16, "float32": Dtype.BF16}
"""16-bit format a checkpoint is served in. float32 checkpoints are served in 16 bits by default; BF16 here."""
_GROUP_VALUES = {Dtype.INT4: 128, Dtype.FP4: 16}
"""Weights that share one scale: what `planner.llm.BYTES_PER_VALUE` assumes."""
_TENSOR_DTYPE: dict[tuple[str | None, int], Dtype] = {
    ("float", 8): Dtype.FP8,
    ("int", 8): Dtype.INT8,
    ("int", 4): Dtype.INT4,
    ("float", 4): Dtype.FP4,
}
_MODELOPT_DTYPE = {"FP8": Dtype.FP8, "NVFP4": Dtype.FP4}
_UNQUANTISED_LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_KEPT_IN_16_BIT = re.compile(r"lm_head|embed|norm|router|correction_bias|(^|[.*:])gate\$?\*?$")
"""Modules that `planner.llm.weight_bytes` counts in 16 bits anyway: head, embeddings, norms and the MoE router."""
_QUANTISATION_FIX = "remove quantization_config and choose the precision yourself"


class NumberFormats(NamedTuple):
    """Formats of weights, activations and KV cache."""

    weights: Dtype
    activations: Dtype
    kv_cache: Dtype


def number_formats(fields: ConfigFields) -> NumberFormats:
    """The formats a checkpoint is stored and served in by default.

    Without ``quantization_config`` all three are the 16-bit checkpoint type (BF16 when none is named). Quantised:
    ``fp8``, ``compressed-tensors``, ``modelopt``, and 4-bit ``awq`` and ``gptq`` (16-bit activations).

    Raises:
        InputError: malformed fields. UnsupportedFeatureError: another method, group size, or a partial quantisation.

    >>> number_formats(ConfigFields({"quantization_config": {"quant_method": "fp8"}})).weights.value
    'fp8'
    """
    name = fields.text("dtype") or fields.text("torch_dtype") or "bfloat16"
    base = _CHECKPOINT_DTYPE.get(name.removeprefix("torch."))
    if base is None:
        raise InputError(fields.path("torch_dtype"), name, "unknown type", f"use one of {', '.join(_CHECKPOINT_DTYPE)}")
    quantised = fields.section("quantization_config") or fields.section("compression_config")
    if quantised is None:
        return NumberFormats(base, base, base)
    method = quantised.text("quant_method")
    _refuse_partial(quantised)
    if method == "fp8":
        return NumberFormats(Dtype.FP8, Dtype.FP8, base)
    if method in ("awq", "gptq"):
        return _four_bit_formats(quantised, base)
    if method == "modelopt":
        return _modelopt_formats(quantised, base)
    if method == "compressed-tensors":
        return _compressed_formats(quantised, base)
    known = "fp8, compressed-tensors, modelopt, awq, gptq"
    raise UnsupportedFeatureError(
        quantised.path("quant_method"), method, f"is not modelled (known: {known})", _QUANTISATION_FIX
    )


def _refuse_partial(quantised: ConfigFields) -> None:
    for key in _UNQUANTISED_LISTS:
        for module in quantised.texts(key):
            if not _KEPT_IN_16_BIT.search(module):
                raise UnsupportedFeatureError(
                    quantised.path(key), module, "layers left unquantised are not modelled", _QUANTISATION_FIX
                )


def _tensor_dtype(tensor: ConfigFields) -> Dtype:
    """Format of ``{"type": "int", "num_bits": 4, "group_size": 128}``, as compressed-tensors writes it."""
    kind, bits = tensor.text("type"), tensor.size("num_bits")
    dtype = _TENSOR_DTYPE.get((kind, bits))
    if dtype is None:
        bound = f"{bits}-bit {kind and shorten(kind)} quantisation is not modelled"
        raise UnsupportedFeatureError(tensor.path("num_bits"), bits, bound, _QUANTISATION_FIX)
    _refuse_other_groups(tensor, dtype, tensor.values.get("group_size"))
    return dtype


def _refuse_other_groups(tensor: ConfigFields, dtype: Dtype, group: object) -> None:
    if dtype in _GROUP_VALUES and group != _GROUP_VALUES[dtype]:
        bound = f"{dtype.value} is modelled with {_GROUP_VALUES[dtype]} values to a scale"
        raise UnsupportedFeatureError(tensor.path("group_size"), group, bound, _QUANTISATION_FIX)


def _four_bit_formats(quantised: ConfigFields, base: Dtype) -> NumberFormats:
    """AWQ and GPTQ: 4-bit weights; ``group_size`` is 128 by default in both."""
    bits = quantised.size("bits")
    if bits != 4:
        bound = f"{bits}-bit weights of this method are not modelled"
        raise UnsupportedFeatureError(quantised.path("bits"), bits, bound, _QUANTISATION_FIX)
    if quantised.flag("lm_head", default=False):
        bound = "a quantised LM head is not modelled"
        raise UnsupportedFeatureError(quantised.path("lm_head"), True, bound, _QUANTISATION_FIX)
    _refuse_other_groups(quantised, Dtype.INT4, quantised.values.get("group_size", _GROUP_VALUES[Dtype.INT4]))
    return NumberFormats(Dtype.INT4, base, base)


def _modelopt_formats(quantised: ConfigFields, base: Dtype) -> NumberFormats:
    inner = quantised.section("quantization") or quantised
    _refuse_partial(inner)
    algorithm = inner.text("quant_algo")
    dtype = _MODELOPT_DTYPE.get(algorithm or "")
    if dtype is None:
        bound = f"is not modelled (known: {', '.join(_MODELOPT_DTYPE)})"
        raise UnsupportedFeatureError(inner.path("quant_algo"), algorithm, bound, _QUANTISATION_FIX)
    cache = inner.text("kv_cache_quant_algo")
    if cache is not None and cache not in _MODELOPT_DTYPE:
        raise UnsupportedFeatureError(inner.path("kv_cache_quant_algo"), cache, "is not modelled", _QUANTISATION_FIX)
    return NumberFormats(dtype, dtype, _MODELOPT_DTYPE[cache] if cache else _scheme_dtype(inner, base))


def _compressed_formats(quantised: ConfigFields, base: Dtype) -> NumberFormats:
    sparsity = quantised.section("sparsity_config")
    if sparsity is not None and sparsity.text("format") not in (None, "dense"):
        raise UnsupportedFeatureError(
            sparsity.path("format"), sparsity.text("format"), "sparse weights are not modelled", _QUANTISATION_FIX
        )
    groups = quantised.section("config_groups")
    found = {_group_formats(groups, name, base) for name in groups.values} if groups is not None else set()
    if groups is None or len(found) != 1:
        bound = f"needs one number format for all layers, has {len(found)}"
        raise UnsupportedFeatureError(quantised.path("config_groups"), "(given)", bound, _QUANTISATION_FIX)
    weights, activations = found.pop()
    return NumberFormats(weights, activations, _scheme_dtype(quantised, base))


def _group_formats(groups: ConfigFields, name: str, base: Dtype) -> tuple[Dtype, Dtype]:
    group = groups.section(name) or ConfigFields({}, groups.path(name))
    weights = group.section("weights") or ConfigFields({}, group.path("weights"))
    activations = group.section("input_activations")
    return _tensor_dtype(weights), base if activations is None else _tensor_dtype(activations)


def _scheme_dtype(quantised: ConfigFields, base: Dtype) -> Dtype:
    scheme = quantised.section("kv_cache_scheme")
    return base if scheme is None else _tensor_dtype(scheme)
