"""Number formats of a checkpoint, from ``quantization_config`` or ModelOpt's ``hf_quant_config.json``.

A method fixes a format for all matrices of the layers and lists modules it leaves alone. The lists are matched with
the names of the matrices, and the result is told part by part (`planner.llm.Part`): a part is in one format.
Up to `MAX_STRAY_SHARE` of the weights of the layers may be in another format than the rest of their part and are
counted in it; more is refused. The LM head is taken to be in 16 bit, as all these methods leave it by default.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from planner.core import Dtype, InputError, UnsupportedFeatureError, preset_rows, shorten
from planner.llm.attention import OUTPUT_PROJECTIONS
from planner.llm.formats import Part, PartPrecision, Precision
from planner.llm.hf_config import ConfigFields
from planner.llm.layers import Attention, DecoderLayers, FeedForward

MAX_STRAY_SHARE = 0.02
"""Largest share of the weights of the layers whose format may differ from that of the rest of their part."""

Formats = tuple[Dtype, Dtype]
"""Formats of weights and activations."""

_CHECKPOINT_DTYPE = {"float16": Dtype.FP16, "bfloat16": Dtype.BF16, "float32": Dtype.BF16}
"""16-bit format a checkpoint is served in. float32 checkpoints are served in 16 bits by default; BF16 here."""
_BY_VALUES_PER_SCALE: dict[tuple[str | None, int], dict[int, Dtype]] = {
    ("int", 4): {128: Dtype.INT4, 32: Dtype.INT4_G32},
    ("float", 4): {16: Dtype.NVFP4, 32: Dtype.MXFP4},
}
"""Format by type, bits and the number of weights that share one scale: what `BYTES_PER_VALUE` assumes."""
_SCALE_BLOCK = (128, 128)
"""Weights that share one scale in `Dtype.FP8_BLOCK`."""
_TENSOR_DTYPE: dict[tuple[str | None, int], Dtype] = {("float", 8): Dtype.FP8, ("int", 8): Dtype.INT8}
_MODELOPT_FORMATS = {
    row["quant_algo"]: (Dtype(row["weights"]), Dtype(row["activations"]) if row["activations"] else None)
    for row in preset_rows("modelopt_formats.csv")
}
"""Formats of weights and activations by ``QuantAlgo`` of ``tensorrt_llm/quantization/mode.py``; None: 16 bit."""
_CACHE_DTYPE = {"FP8": Dtype.FP8, "INT8": Dtype.INT8, "NVFP4": Dtype.NVFP4}
_QUARK_TYPE = {
    "fp8_e4m3": ("float", 8),
    "fp4": ("float", 4),
    "int8": ("int", 8),
    "int4": ("int", 4),
    "uint4": ("int", 4),
}
"""Type and bits by ``dtype`` of AMD Quark, whose exported specifications vLLM reads in ``quantization/quark``."""
_STRATEGY = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group", "per_block": "block"}
"""``strategy`` of compressed-tensors by ``qscheme`` of Quark."""
_UNQUANTISED_LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude")
_UNQUANTISED_MODULES = re.compile(
    r"lm_head|embed|norm|router|correction_bias|(^|[.*:])gate\$?\*?$|shared_expert_gate|conv1d|A_log|dt_bias|"
    r"latent_proj|routed_expert_(down|up)_proj|res_proj|"
    r"mtp|nextn|model\.decoder\.|eh_proj|shared_head|indexers_proj|visi|visual|audio|projector|patch_merge|rotary"
    r"|compressor|indexer\.weights_proj|hc_|_hc|attn_sink|sinks|tid2eid|(^|\.)head$"
)
"""Modules in 16 bits whatever the method (head, embeddings, norms, router, convolutions) and those of other models."""
_FIX = "remove quantization_config and choose the precision yourself"


class _Module(NamedTuple):
    """One kind of matrix of one layer: its possible names and the weights of all its copies."""

    part: Part
    weights: int
    names: tuple[str, ...]


class _Group(NamedTuple):
    """A format and the modules it is for; without targets, all."""

    formats: Formats
    targets: tuple[_Pattern, ...] = ()


class _Scheme(NamedTuple):
    """A quantisation method as read. `only` is the one part it quantises, None for all; `head` is the LM head's format.

    Lists of modules it leaves alone are in 16 bits, unless it does not `ignores` them.
    """

    groups: tuple[_Group, ...]
    kv_cache: Dtype
    only: Part | None = None
    head: Formats | None = None
    ignores: bool = True


class _Pattern(NamedTuple):
    """An entry of a list of modules; a `whole` one matches no name that does not contain its text."""

    text: str
    matches: Callable[[str], object]
    whole: bool = False


class _Names(NamedTuple):
    """Full names that a module of a layer may have: each of them, and all in one text."""

    each: tuple[str, ...]
    joined: str

    @classmethod
    def of(cls, layer: int, module: _Module) -> _Names:
        each = tuple(f"{prefix}.{layer}.{name}" for prefix in _LAYER_PREFIXES for name in module.names)
        return cls(each, "\n".join(each))


def native_precision(fields: ConfigFields, layers: DecoderLayers, hidden: int) -> Precision:
    """The formats a checkpoint is stored and served in by default.

    Without ``quantization_config`` all are the 16-bit checkpoint type (BF16 when none is named). Known methods:
    ``fp8`` (per tensor, or per block with ``weight_block_size``), ``fbgemm_fp8``, ``compressed-tensors``,
    ``modelopt``, ``quark``, ``mxfp4`` (experts only), and ``awq``, ``gptq`` and ``auto-round`` with 16-bit activations.
    Int8 with a scale per group of 128 is taken for int8, 1.6 % below its bytes. `hidden` [channels].

    Raises:
        InputError: malformed fields. UnsupportedFeatureError: another method or group size, a list that leaves out
            half a part, or one that names modules the model does not have.

    >>> native_precision(ConfigFields({"quantization_config": {"quant_method": "fp8"}}), [], 64).weights.value
    'fp8'
    """
    name = fields.text("dtype") or fields.text("torch_dtype") or "bfloat16"
    base = _CHECKPOINT_DTYPE.get(name.removeprefix("torch."))
    if base is None:
        raise fields.wrong("torch_dtype", name, "unknown type", f"use one of {', '.join(_CHECKPOINT_DTYPE)}")
    quantised = fields.section("quantization_config") or fields.section("compression_config")
    if quantised is None:
        return _with_served_cache(Precision(weights=base, activations=base, kv_cache=base), layers)
    scheme = _read_scheme(quantised, base, fields.text("expert_dtype"))
    tally = _weights_by_format(quantised, layers, hidden, scheme, base)
    return _with_served_cache(_precision_by_part(quantised, scheme, tally, base), layers)


def _with_served_cache(precision: Precision, layers: DecoderLayers) -> Precision:
    """Compressed entries are trained to be kept in 8 bits, and engines keep no others (``fp8_ds_mla`` of vLLM)."""
    compressed = any(attention is not None and attention.small_cache for attention, _ in layers)
    if not compressed or precision.kv_cache not in (Dtype.BF16, Dtype.FP16):
        return precision
    return precision.model_copy(update={"kv_cache": Dtype.FP8})


def _read_scheme(quantised: ConfigFields, base: Dtype, expert_dtype: str | None = None) -> _Scheme:
    """A ``quantization_config`` read by its method. Raises as `native_precision`.

    `expert_dtype` is the config's word for the experts of an ``fp8`` checkpoint, if it has one (DeepSeek-V4).
    """
    method = quantised.text("quant_method") or ("modelopt" if "quant_algo" in quantised.values else None)
    if method is not None and method in _SCHEMES:
        return _SCHEMES[method](quantised, base)
    match method:
        case "fbgemm_fp8":
            formats, only = (Dtype.FP8_TOKEN, Dtype.FP8_TOKEN), None
        case "fp8":
            formats, only = (_block_dtype(quantised, quantised.integers("weight_block_size")), Dtype.FP8), None
            stored = quantised.text("store_dtype")
            if stored not in (None, "fp8"):  # MiMo-V2.5-Pro-FP4; ``fp8.py`` of SGLang
                if stored != "mxfp4" or quantised.size("mxfp4_block_size", default=32) != 32:
                    bound = "only mxfp4 with 32 values to a scale is modelled"
                    raise quantised.unmodelled("store_dtype", stored, bound, _FIX)
                return _mxfp4_experts_scheme(quantised, formats, base, base)
            if "quantized_layers" in quantised.values:
                return _requantised_scheme(quantised, formats, base)
            if expert_dtype not in (None, "fp8"):  # ``fp4_gemm`` of DeepSeek-V4's inference takes 8-bit activations
                if expert_dtype != "fp4":
                    raise UnsupportedFeatureError(
                        "config.expert_dtype", expert_dtype, "only fp4 and fp8 are modelled", _FIX
                    )
                return _mxfp4_experts_scheme(quantised, formats, base, Dtype.FP8)
        case "mxfp4":
            formats, only = (Dtype.MXFP4, base), Part.EXPERTS
        case _:
            known = ", ".join(("fp8", "fbgemm_fp8", "mxfp4", *_SCHEMES))
            raise quantised.unmodelled("quant_method", method, f"is not modelled (known: {known})", _FIX)
    return _Scheme((_Group(formats),), _cache_dtype(quantised, base), only)


def _requantised_scheme(quantised: ConfigFields, rest: Formats, base: Dtype) -> _Scheme:
    """FP8 of which ModelOpt requantised the ``quantized_layers``: what it left alone is in FP8, not in 16 bits.

    Source: huggingface.co/nvidia/DeepSeek-V4-Flash-NVFP4, config.json.
    """
    cache = quantised.text("kv_cache_quant_algo")
    mixed = _mixed_scheme(quantised, base, _CACHE_DTYPE.get(cache or "", base))
    return mixed._replace(groups=(*mixed.groups, _Group(rest)), ignores=False)


def _mxfp4_experts_scheme(quantised: ConfigFields, rest: Formats, base: Dtype, activations: Dtype) -> _Scheme:
    """FP8 with routed experts in MXFP4."""
    experts = _parsed_pattern(quantised, "store_dtype", r"re:.*\.experts\.")
    groups = (_Group((Dtype.MXFP4, activations), (experts,)), _Group(rest))
    return _Scheme(groups, _cache_dtype(quantised, base))


def _block_dtype(quantised: ConfigFields, block: tuple[int, ...]) -> Dtype:
    """FP8 with one scale for a tensor, or for each block of values."""
    if block not in ((), _SCALE_BLOCK):
        bound = f"fp8 is modelled with {_SCALE_BLOCK[0]} x {_SCALE_BLOCK[1]} values to a scale"
        raise quantised.unmodelled("weight_block_size", list(block), bound, _FIX)
    return Dtype.FP8_BLOCK if block else Dtype.FP8


def _weight_only_scheme(quantised: ConfigFields, base: Dtype) -> _Scheme:
    """AWQ, GPTQ and AutoRound, which packs as they do: 4-bit weights, or 8-bit ones (not AWQ); ``group_size`` is 128.

    AutoRound may name other number types, and layers with bits of their own (``extra_config``), which are refused.
    """
    bits = quantised.size("bits")
    if quantised.text("data_type") not in (None, "int"):
        raise quantised.unmodelled("data_type", quantised.text("data_type"), "only int is modelled", _FIX)
    if quantised.values.get("extra_config"):
        raise quantised.unmodelled("extra_config", "(given)", "layers with bits of their own are not modelled", _FIX)
    if bits not in ((4,) if quantised.text("quant_method") == "awq" else (4, 8)):
        raise quantised.unmodelled("bits", bits, f"{bits}-bit weights of this method are not modelled", _FIX)
    if quantised.flag("lm_head", default=False):
        raise quantised.unmodelled("lm_head", True, "a quantised LM head is not modelled", _FIX)
    dtype = Dtype.INT8 if bits == 8 else _grouped_dtype(quantised, ("int", 4), quantised.values.get("group_size", 128))
    return _Scheme((_Group((dtype, base)),), base)


def _modelopt_scheme(inner: ConfigFields, base: Dtype) -> _Scheme:
    """ModelOpt: one algorithm for all matrices or one for each, and one for the KV cache."""
    inner = inner.section("quantization") or inner
    algorithm = inner.text("quant_algo")
    cache = inner.text("kv_cache_quant_algo")
    if cache is not None and cache not in _CACHE_DTYPE:
        raise inner.unmodelled("kv_cache_quant_algo", cache, "is not modelled", _FIX)
    kv_cache = _CACHE_DTYPE[cache] if cache else _cache_dtype(inner, base)
    if algorithm == "MIXED_PRECISION":
        return _mixed_scheme(inner, base, kv_cache)
    return _Scheme((_Group(_modelopt_formats(inner, base)),), kv_cache)


def _modelopt_formats(inner: ConfigFields, base: Dtype) -> Formats:
    """Formats of a ``quant_algo``, whose groups of values must be those modelled."""
    algorithm = inner.text("quant_algo")
    if algorithm not in _MODELOPT_FORMATS:
        known = ", ".join((*_MODELOPT_FORMATS, "MIXED_PRECISION"))
        raise inner.unmodelled("quant_algo", algorithm, f"is not modelled (known: {known})", _FIX)
    weights, activations = _MODELOPT_FORMATS[algorithm]
    if weights is Dtype.INT4:
        weights = _grouped_dtype(inner, ("int", 4), inner.values.get("group_size", 128))
    return weights, activations or base


def _mixed_scheme(inner: ConfigFields, base: Dtype, kv_cache: Dtype) -> _Scheme:
    """An algorithm for each of ``quantized_layers``; experts of a layer must be alike."""
    layers = inner.section("quantized_layers") or ConfigFields({}, inner.path("quantized_layers"))
    targets: dict[Formats, list[_Pattern]] = defaultdict(list)
    head: Formats | None = None
    formats_of: dict[str, set[Formats]] = defaultdict(set)
    for name in layers.values:
        module = layers.section(name) or layers
        formats_of[re.sub(r"experts\.\d+", "experts.0", name)].add(_modelopt_formats(module, base))
    if len(formats_of) > MAX_LISTED_MODULES:
        bound = f"lists more than {MAX_LISTED_MODULES} modules"
        raise UnsupportedFeatureError(layers.prefix, f"{len(formats_of)} modules", bound, _FIX)
    for name, (formats, *others) in formats_of.items():
        if others:
            raise UnsupportedFeatureError(layers.prefix, name, "experts of several formats are not modelled", _FIX)
        if name == "lm_head":
            head = formats
        else:
            targets[formats].append(_whole_name(name))
    if not targets:
        raise UnsupportedFeatureError(layers.prefix, "(none)", "names no matrix of a layer", _FIX)
    groups = (_Group(formats, tuple(patterns)) for formats, patterns in targets.items())
    return _Scheme(tuple(groups), kv_cache, head=head)


def _quark_scheme(quantised: ConfigFields, base: Dtype) -> _Scheme:
    """AMD Quark: formats of all matrices, and others by patterns of their names."""
    by_type = quantised.values.get("layer_type_quant_config")
    if by_type:
        bound = "formats by type of layer are not modelled"
        raise quantised.unmodelled("layer_type_quant_config", "(given)", bound, _FIX)
    named = quantised.section("layer_quant_config")
    groups = [
        _Group(_quark_formats(named, name, base), (_parsed_pattern(named, name, name),))
        for name in (named.values if named is not None else ())
        if named is not None
    ]
    export = quantised.section("export")
    kept = quantised.values.get("kv_cache_quant_config") or (export.texts("kv_cache_group") if export else ())
    rest = _Group(_quark_formats(quantised, "global_quant_config", base))
    return _Scheme((*groups, rest), Dtype.FP8 if kept else base)


def _quark_formats(parent: ConfigFields, name: str, base: Dtype) -> Formats:
    """Formats of weights and inputs of a specification of Quark."""
    spec = parent.section(name) or ConfigFields({}, parent.path(name))
    tensors = (spec.section("weight"), spec.section("input_tensors"))
    weights, activations = (base if tensor is None else _quark_dtype(tensor) for tensor in tensors)
    return weights, activations


def _quark_dtype(tensor: ConfigFields) -> Dtype:
    """Format of ``{"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}``."""
    name = (tensor.text("dtype") or "").removesuffix("fn")
    if name not in _QUARK_TYPE:
        raise tensor.unmodelled("dtype", name, f"is not modelled (known: {', '.join(_QUARK_TYPE)})", _FIX)
    kind, bits = _QUARK_TYPE[name]
    fields = {"type": kind, "num_bits": bits, "group_size": tensor.values.get("group_size")}
    fields |= {
        "strategy": _STRATEGY.get(tensor.text("qscheme") or ""),
        "block_structure": tensor.values.get("block_size"),
    }
    return _tensor_dtype(ConfigFields(fields, tensor.prefix))


def _compressed_scheme(quantised: ConfigFields, base: Dtype) -> _Scheme:
    """Compressed-tensors: groups of modules, each with its formats."""
    sparsity = quantised.section("sparsity_config")
    if sparsity is not None and sparsity.text("format") not in (None, "dense"):
        raise sparsity.unmodelled("format", sparsity.text("format"), "sparse weights are not modelled", _FIX)
    section = quantised.section("config_groups")
    if section is not None and len(section.values) > MAX_FORMAT_GROUPS:
        bound = f"has more than {MAX_FORMAT_GROUPS} groups"
        raise UnsupportedFeatureError(section.prefix, f"{len(section.values)} groups", bound, _FIX)
    groups = [_compressed_group(section, name, base) for name in section.values] if section is not None else []
    if not groups or (len({group.formats for group in groups}) > 1 and not all(group.targets for group in groups[1:])):
        bound = f"needs one number format for all layers or targets for each, has {len(groups)} groups"
        raise quantised.unmodelled("config_groups", "(given)", bound, _FIX)
    return _Scheme(tuple(groups), _cache_dtype(quantised, base))


def _compressed_group(groups: ConfigFields, name: str, base: Dtype) -> _Group:
    """One group of compressed-tensors."""
    group = groups.section(name) or ConfigFields({}, groups.path(name))
    weights = group.section("weights") or ConfigFields({}, group.path("weights"))
    activations = group.section("input_activations")
    targets = [target for target in group.texts("targets") if target != "Linear"]
    if len(targets) > MAX_GROUP_TARGETS:
        bound = f"lists more than {MAX_GROUP_TARGETS} modules"
        raise group.unmodelled("targets", f"{len(targets)} modules", bound, _FIX)
    formats = _tensor_dtype(weights), base if activations is None else _tensor_dtype(activations)
    return _Group(formats, tuple(_parsed_pattern(group, "targets", target) for target in targets))


def _tensor_dtype(tensor: ConfigFields) -> Dtype:
    """Format of ``{"type": "int", "num_bits": 4, "group_size": 128}``, as compressed-tensors writes it."""
    kind, bits, strategy = tensor.text("type"), tensor.size("num_bits"), tensor.text("strategy")
    if (kind, bits) in _BY_VALUES_PER_SCALE:
        return _grouped_dtype(tensor, (kind, bits), tensor.values.get("group_size"))
    dtype = _TENSOR_DTYPE.get((kind, bits))
    if dtype is None:
        bound = f"{bits}-bit {kind and shorten(kind)} quantisation is not modelled"
        raise tensor.unmodelled("num_bits", bits, bound, _FIX)
    if dtype is Dtype.FP8 and strategy == "block":
        return _block_dtype(tensor, tensor.integers("block_structure"))
    if dtype is Dtype.FP8 and strategy in ("channel", "token"):
        return Dtype.FP8_TOKEN
    if dtype is Dtype.FP8 and strategy == "group" and tensor.values.get("group_size") == _MX_VALUES_PER_SCALE:
        return Dtype.MXFP8
    return dtype


def _grouped_dtype(tensor: ConfigFields, type_and_bits: tuple[str | None, int], group: object) -> Dtype:
    """A 4-bit format by the number of values to a scale; refuses a number that is not modelled."""
    known = _BY_VALUES_PER_SCALE[type_and_bits]
    if not isinstance(group, int) or group not in known:
        kind, bits = type_and_bits
        bound = f"{kind}{bits} is modelled with {' or '.join(map(str, known))} values to a scale"
        raise tensor.unmodelled("group_size", group, bound, _FIX)
    return known[group]


_MX_VALUES_PER_SCALE = 32
"""Values that share one scale in `Dtype.MXFP8`; 8-bit activations in groups of 128 belong to `Dtype.FP8_BLOCK`."""


def _cache_dtype(quantised: ConfigFields, base: Dtype) -> Dtype:
    """Number format of the KV cache."""
    named = quantised.values.get("kv_cache_scheme")
    if isinstance(named, str) and named in _CACHE_DTYPE:
        return _CACHE_DTYPE[named]
    scheme = quantised.section("kv_cache_scheme")
    return base if scheme is None else _tensor_dtype(scheme).arithmetic


_SCHEMES: dict[str, Callable[[ConfigFields, Dtype], _Scheme]] = {
    "compressed-tensors": _compressed_scheme,
    "modelopt": _modelopt_scheme,
    "quark": _quark_scheme,
    "awq": _weight_only_scheme,
    **dict.fromkeys(("gptq", "auto-round", "intel/auto-round"), _weight_only_scheme),
}
"""Readers of the methods that many formats have in common, by ``quant_method``."""


# ------------------------------------------------------------------------------------------------ lists of modules

_MAX_REPEATS = 4
"""Unbounded repeats in a regular expression of a list; published ones have three. More could take for ever."""
_UNSAFE_REGEX = re.compile(r"\)[*+{]|\[\^?\[|--|&&|~~|\|\|")
"""Repeated groups, which can take for ever, and set operations, whose meaning is to change."""


MAX_LISTED_MODULES = 5000
"""Most entries of the lists of modules: the longest published ones name some ten modules of each of 94 layers."""
MAX_FORMAT_GROUPS, MAX_GROUP_TARGETS = 20, 500
"""Most groups of formats, and most entries of one of them: published ones have up to three of a few patterns."""
MAX_MATCHING_WORK = 40_000
"""Most work of matching entries with modules, over all layers; one whole name in one layer counts 1. A list
of 224 modules of a vision tower, of a model with 94 layers, makes 21,056."""
_WORK_BY_REPEATS = (1, 3, 9, 27)
"""Work of a pattern with so many repeats; with more of them `_WORK_BEYOND`."""
_WORK_BEYOND = 1000


def _ignored_patterns(quantised: ConfigFields) -> tuple[_Pattern, ...]:
    """Modules that the method leaves alone."""
    inner = quantised.section("quantization")
    sections = (quantised, inner) if inner is not None else (quantised,)
    listed = [(section, key, text) for section in sections for key in _UNQUANTISED_LISTS for text in section.texts(key)]
    dynamic = quantised.section("dynamic")
    if len(listed) + len(dynamic.values if dynamic is not None else ()) > MAX_LISTED_MODULES:
        bound = f"lists more than {MAX_LISTED_MODULES} modules"
        raise UnsupportedFeatureError(quantised.prefix, f"{len(listed)} modules", bound, _FIX)
    patterns = [_parsed_pattern(section, key, text) for section, key, text in listed]
    for text in map(str, dynamic.values) if dynamic is not None else ():
        if not text.startswith("-:"):
            raise quantised.unmodelled("dynamic", text, "formats per module are not modelled", _FIX)
        patterns.append(_parsed_pattern(quantised, "dynamic", "re:" + text.removeprefix("-:")))
    return tuple(dict.fromkeys(patterns))


def _parsed_pattern(quantised: ConfigFields, key: str, text: str) -> _Pattern:
    """A regular expression after ``re:``, a shell pattern if it has a star, else whole components of a dotted name.

    The name of a class of attention (``Llama4TextAttention``) is for all attention. Raises as `native_precision`.
    """
    if text.startswith("re:"):
        return _Pattern(text, _compiled_regex(quantised, key, text.removeprefix("re:")))
    if re.search(r"experts\.\d", text):
        raise quantised.unmodelled(key, text, "single experts are not modelled", _FIX)
    if re.fullmatch(r"[A-Z]\w*Attention", text):
        return _Pattern(text, re.compile(r".*\.self_attn\.").match)
    if "*" in text:
        return _Pattern(text, re.compile(f"{fnmatch.translate(text)}|{fnmatch.translate(text + '.*')}").match)
    return _whole_name(text)


def _whole_name(text: str) -> _Pattern:
    """Whole components of a dotted name."""
    return _Pattern(text, re.compile(rf"(?:^|\.){re.escape(text)}(?:\.|$)").search, whole=True)


def _compiled_regex(quantised: ConfigFields, key: str, text: str) -> Callable[[str], object]:
    """A regular expression that ends in time. Raises as `native_precision`."""
    if len(re.findall(r"[*+}]", text)) > _MAX_REPEATS or _UNSAFE_REGEX.search(text):
        bound = f"only plain regular expressions with up to {_MAX_REPEATS} repeats are read"
        raise quantised.unmodelled(key, text, bound, _FIX)
    try:
        return re.compile(text).match
    except (re.error, OverflowError):
        raise InputError(quantised.path(key), text, "is no regular expression", "correct or remove it") from None


_LAYER_PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
_OTHER_NAMES = {row["matrix"]: tuple(row["other_names"].split()) for row in preset_rows("matrix_names.csv")}
"""Other names of a matrix: packed with its neighbours, or those of an older family."""


def _layer_modules(attention: Attention | None, feed_forward: FeedForward | None, hidden: int) -> Iterator[_Module]:
    """The matrices of one layer with their names after the number of the layer."""
    if attention is not None:
        for name, (inputs, outputs) in attention.matrices(hidden).items():
            part = Part.ATTENTION_OUTPUT if name in OUTPUT_PROJECTIONS else Part.ATTENTION
            yield _Module(part, inputs * outputs, _module_names(attention.checkpoint_blocks, name))
    if feed_forward is not None:
        for part, total in feed_forward.parts(hidden).items():
            blocks = feed_forward.checkpoint_blocks(part)
            for name in feed_forward.matrix_names if total else ():
                yield _Module(part, total // feed_forward.matrices, _module_names(blocks, name))


def _module_names(blocks: Sequence[str], name: str) -> tuple[str, ...]:
    """Names of a matrix after the number of its layer, in any of its blocks."""
    return tuple(f"{block}.{alias}" for block in blocks for alias in (name, *_OTHER_NAMES.get(name, ())))


def _matches(pattern: _Pattern, names: _Names) -> bool:
    """True if a pattern matches one of these names."""
    return not (pattern.whole and pattern.text not in names.joined) and any(map(pattern.matches, names.each))


# ------------------------------------------------------------------------------------------------ formats by part

_FormatWeights = dict[Part, Counter[Formats]]


def _weights_by_format(
    quantised: ConfigFields, layers: DecoderLayers, hidden: int, scheme: _Scheme, base: Dtype
) -> _FormatWeights:
    """Weights of each part in each format."""
    ignored = _ignored_patterns(quantised) if scheme.ignores else ()
    targets = tuple(pattern for group in scheme.groups for pattern in group.targets)
    tally: _FormatWeights = defaultdict(Counter)
    used: set[str] = set()
    anywhere, by_layer = _patterns_by_layer(ignored)
    split = [(group.formats, *_patterns_by_layer(group.targets)) for group in scheme.groups if group.targets]
    rest = next((group.formats for group in scheme.groups if not group.targets), (base, base))
    work = 0
    for layer in _representatives(layers, (*ignored, *targets)):
        own = by_layer.get(str(layer.number), [])
        groups = [(formats, [*free, *bound.get(str(layer.number), [])]) for formats, free, bound in split]
        work += sum(map(_matching_work, (*anywhere, *own, *(target for _, some in groups for target in some))))
        if work > MAX_MATCHING_WORK:
            bound = "names more modules, in more layers, than can be matched in time"
            raise UnsupportedFeatureError(quantised.prefix, f"{len(ignored)} modules", bound, _FIX)
        here = [*anywhere, *own]
        for module in _layer_modules(layer.attention, layer.feed_forward, hidden):
            names = _Names.of(layer.number, module)
            ignored_by = [pattern.text for pattern in here if _matches(pattern, names)]
            used.update(ignored_by)
            plain = bool(ignored_by) or scheme.only not in (None, module.part)
            aimed = (formats for formats, some in groups if any(_matches(target, names) for target in some))
            formats = (base, base) if plain else next(aimed, rest)
            tally[module.part][formats] += layer.copies * module.weights
    _refuse_unknown(quantised, ignored, used, len(layers))
    _refuse_unused_formats(quantised, scheme, tally)
    return tally


class _Representative(NamedTuple):
    """A layer, by number and blocks, and how many layers it stands for."""

    number: int
    attention: Attention | None
    feed_forward: FeedForward | None
    copies: int


def _representatives(layers: DecoderLayers, patterns: Sequence[_Pattern]) -> list[_Representative]:
    """Layers to look at: every one when a pattern has a number, else one of each shape."""
    if any(re.search(r"\d", pattern.text) for pattern in patterns):
        return [_Representative(number, *blocks, 1) for number, blocks in enumerate(layers)]
    return [_Representative(layers.index(blocks), *blocks, count) for blocks, count in Counter(layers).items()]


def _patterns_by_layer(patterns: Iterable[_Pattern]) -> tuple[list[_Pattern], dict[str, list[_Pattern]]]:
    """Patterns that can match in any layer, and those that name one, by its number."""
    anywhere: list[_Pattern] = []
    by_layer: dict[str, list[_Pattern]] = defaultdict(list)
    for pattern in patterns:
        named = re.search(r"layers\.(\d+)(?:\.|$)", pattern.text)
        place = anywhere if named is None or pattern.text.startswith("re:") else by_layer[named[1]]
        place.append(pattern)
    return anywhere, by_layer


def _matching_work(pattern: _Pattern) -> int:
    """About what it takes to match a pattern with the modules of a layer, in units of a whole name."""
    repeats = sum(map(pattern.text.count, "*+}"))
    return _WORK_BY_REPEATS[repeats] if repeats < len(_WORK_BY_REPEATS) else _WORK_BEYOND


def _refuse_unknown(quantised: ConfigFields, ignored: tuple[_Pattern, ...], used: set[str], layers: int) -> None:
    """Refuse a pattern that matched no module, unless it names a layer beyond the last or what is never quantised."""
    for pattern in ignored:
        named = re.search(r"layers\.(\d{1,9})(?!\d)", pattern.text)
        beyond = named is not None and int(named[1]) >= layers
        if layers and pattern.text not in used and not beyond and not _UNQUANTISED_MODULES.search(pattern.text):
            bound = "is left unquantised but is no module of this model"
            raise quantised.unmodelled("ignore", pattern.text, bound, _FIX)


def _refuse_unused_formats(quantised: ConfigFields, scheme: _Scheme, tally: _FormatWeights) -> None:
    """Refuse a group of formats that is for no module."""
    used = {formats for counts in tally.values() for formats in counts}
    for group in scheme.groups:
        if tally and group.formats not in used:
            bound = "applies to no module of this model"
            raise UnsupportedFeatureError(quantised.prefix, group.formats[0].value, bound, _FIX)


def _precision_by_part(quantised: ConfigFields, scheme: _Scheme, tally: _FormatWeights, base: Dtype) -> Precision:
    """The format of each part; the defaults are the scheme's own, 16 bit where it is for one part only."""
    whole = {part: counts.most_common(1)[0][0] for part, counts in tally.items()}
    _refuse_divided(quantised, tally)
    weights, activations = (base, base) if scheme.only else _commonest_formats(scheme, tally, base)
    usual = {Part.ATTENTION_OUTPUT: whole.get(Part.ATTENTION, (weights, activations))}
    usual[Part.LM_HEAD] = base, base
    if scheme.head is not None:
        whole[Part.LM_HEAD] = scheme.head
    exceptions = (
        PartPrecision(part=part, weights=formats[0], activations=formats[1])
        for part, formats in sorted(whole.items())
        if formats != usual.get(part, (weights, activations))
    )
    return Precision(weights=weights, activations=activations, kv_cache=scheme.kv_cache, parts=tuple(exceptions))


def _commonest_formats(scheme: _Scheme, tally: _FormatWeights, base: Dtype) -> Formats:
    """The quantised format of most weights."""
    total: Counter[Formats] = Counter()
    for counts in tally.values():
        total.update(counts)
    del total[base, base]
    return total.most_common(1)[0][0] if total else scheme.groups[0].formats


def _refuse_divided(quantised: ConfigFields, tally: _FormatWeights) -> None:
    """Refuse parts whose weights are in several formats, beyond `MAX_STRAY_SHARE`."""
    all_weights = sum(counts.total() for counts in tally.values())
    stray = {part: counts.total() - max(counts.values()) for part, counts in tally.items()}
    if sum(stray.values()) > MAX_STRAY_SHARE * all_weights:
        part = max(stray, key=lambda part: stray[part])
        share = stray[part] / tally[part].total()
        bound = (
            f"only whole parts of a model can be left unquantised, and {share:.0%} of the weights of part "
            f"{part.value} differ from its rest"
        )
        raise quantised.unmodelled("ignore", "(given)", bound, _FIX)
