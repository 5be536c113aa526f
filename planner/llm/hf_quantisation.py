"""Number formats of a checkpoint, from ``quantization_config`` or ModelOpt's ``hf_quant_config.json``.

A method fixes a format for all matrices of the layers and lists modules it leaves alone. The lists are matched with
the names of the matrices, and the result is told part by part (`planner.llm.layers.Part`): a part is in one format.
Up to `MOST_STRAY` of the weights of the layers may be in another format than the rest of their part and are counted
in it; more is refused. The LM head is taken to be in 16 bit, as all these methods leave it by default.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hardware_db import Dtype
from planner.core import InputError, UnsupportedFeatureError, shorten
from planner.llm.hf_config import ConfigFields
from planner.llm.layers import (
    Attention,
    FeedForward,
    LinearAttention,
    MoeFeedForward,
    Part,
    PartPrecision,
    Precision,
    StateSpace,
    attention_matrices,
    feed_forward_weights,
    shared_expert_weights,
)

MOST_STRAY = 0.02
"""Largest share of the weights of the layers whose format may differ from that of the rest of their part."""

Formats = tuple[Dtype, Dtype]
"""Formats of weights and activations."""
Layers = Sequence[tuple[Attention | None, FeedForward | None]]

_CHECKPOINT_DTYPE = {"float16": Dtype.FP16, "bfloat16": Dtype.BF16, "float32": Dtype.BF16}
"""16-bit format a checkpoint is served in. float32 checkpoints are served in 16 bits by default; BF16 here."""
_GROUP_VALUES = {Dtype.INT4: 128, Dtype.FP4: 16}
"""Weights that share one scale: what `planner.llm.layers.BYTES_PER_VALUE` assumes."""
_MX_VALUES = 32
"""Weights that share one scale in `Dtype.MXFP4`."""
_BLOCK = (128, 128)
"""Weights that share one scale in `Dtype.FP8_BLOCK`."""
_TENSOR_DTYPE: dict[tuple[str | None, int], Dtype] = {
    ("float", 8): Dtype.FP8,
    ("int", 8): Dtype.INT8,
    ("int", 4): Dtype.INT4,
    ("float", 4): Dtype.FP4,
}
_MODELOPT_DTYPE = {"FP8": Dtype.FP8, "NVFP4": Dtype.FP4}
_UNQUANTISED_LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_NO_MATRIX_OF_A_LAYER = re.compile(
    r"lm_head|embed|norm|router|correction_bias|(^|[.*:])gate\$?\*?$|shared_expert_gate|conv1d|A_log|dt_bias|"
    r"mtp|nextn|eh_proj|shared_head|visi|visual|audio|projector|rotary"
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
    """What a quantisation method says. `only` is the one part it quantises, None for all."""

    groups: tuple[_Group, ...]
    kv_cache: Dtype
    only: Part | None = None


class _Pattern(NamedTuple):
    """An entry of a list of modules; a `whole` one matches no name that does not contain its text."""

    text: str
    matches: Callable[[str], object]
    whole: bool = False


class _Names(NamedTuple):
    """What a module of a layer may be called in full, each and all in one text."""

    each: tuple[str, ...]
    joined: str

    @classmethod
    def of(cls, layer: int, module: _Module) -> _Names:
        each = tuple(f"{prefix}.{layer}.{name}" for prefix in _PREFIXES for name in module.names)
        return cls(each, "\n".join(each))


def native_precision(fields: ConfigFields, layers: Layers, hidden: int) -> Precision:
    """The formats a checkpoint is stored and served in by default.

    Without ``quantization_config`` all are the 16-bit checkpoint type (BF16 when none is named). Known methods:
    ``fp8`` (per tensor, or per block with ``weight_block_size``), ``fbgemm_fp8``, ``compressed-tensors``,
    ``modelopt``, ``mxfp4`` (experts only), and ``awq`` and ``gptq`` with 16-bit activations. Int8 with a scale per
    group of 128 is taken for int8, 1.6 % below its bytes. `hidden` [channels].

    Raises:
        InputError: malformed fields. UnsupportedFeatureError: another method or group size, a list that leaves out
            half a part, or one that names modules the model does not have.

    >>> native_precision(ConfigFields({"quantization_config": {"quant_method": "fp8"}}), [], 64).weights.value
    'fp8'
    """
    name = fields.text("dtype") or fields.text("torch_dtype") or "bfloat16"
    base = _CHECKPOINT_DTYPE.get(name.removeprefix("torch."))
    if base is None:
        raise InputError(fields.path("torch_dtype"), name, "unknown type", f"use one of {', '.join(_CHECKPOINT_DTYPE)}")
    quantised = fields.section("quantization_config") or fields.section("compression_config")
    if quantised is None:
        return Precision(weights=base, activations=base, kv_cache=base)
    scheme = _scheme(quantised, base)
    tally = _tally(quantised, layers, hidden, scheme, base)
    return _by_part(quantised, scheme, tally, base)


def _scheme(quantised: ConfigFields, base: Dtype) -> _Scheme:
    method = quantised.text("quant_method")
    match method:
        case "fp8" | "fbgemm_fp8":
            block = quantised.integers("weight_block_size")
            return _Scheme((_Group((_block_dtype(quantised, block), Dtype.FP8)),), _cache_dtype(quantised, base))
        case "mxfp4":
            return _Scheme((_Group((Dtype.MXFP4, base)),), _cache_dtype(quantised, base), Part.EXPERTS)
        case "awq" | "gptq":
            return _weight_only(quantised, base)
        case "modelopt":
            return _modelopt(quantised.section("quantization") or quantised, base)
        case "compressed-tensors":
            return _compressed(quantised, base)
    known = "fp8, fbgemm_fp8, mxfp4, compressed-tensors, modelopt, awq, gptq"
    raise UnsupportedFeatureError(quantised.path("quant_method"), method, f"is not modelled (known: {known})", _FIX)


def _block_dtype(quantised: ConfigFields, block: tuple[int, ...]) -> Dtype:
    if block not in ((), _BLOCK):
        bound = f"fp8 is modelled with {_BLOCK[0]} x {_BLOCK[1]} values to a scale"
        raise UnsupportedFeatureError(quantised.path("weight_block_size"), list(block), bound, _FIX)
    return Dtype.FP8_BLOCK if block else Dtype.FP8


def _weight_only(quantised: ConfigFields, base: Dtype) -> _Scheme:
    """AWQ and GPTQ: 4-bit weights, or 8-bit ones (GPTQ only); ``group_size`` is 128 by default in both."""
    bits = quantised.size("bits")
    dtype = {("awq", 4): Dtype.INT4, ("gptq", 4): Dtype.INT4, ("gptq", 8): Dtype.INT8}.get(
        (quantised.text("quant_method") or "", bits)
    )
    if dtype is None:
        bound = f"{bits}-bit weights of this method are not modelled"
        raise UnsupportedFeatureError(quantised.path("bits"), bits, bound, _FIX)
    if quantised.flag("lm_head", default=False):
        raise UnsupportedFeatureError(quantised.path("lm_head"), True, "a quantised LM head is not modelled", _FIX)
    _refuse_other_groups(quantised, dtype, quantised.values.get("group_size", 128))
    return _Scheme((_Group((dtype, base)),), base)


def _modelopt(inner: ConfigFields, base: Dtype) -> _Scheme:
    algorithm = inner.text("quant_algo")
    dtype = _MODELOPT_DTYPE.get(algorithm or "")
    if dtype is None:
        bound = f"is not modelled (known: {', '.join(_MODELOPT_DTYPE)})"
        raise UnsupportedFeatureError(inner.path("quant_algo"), algorithm, bound, _FIX)
    cache = inner.text("kv_cache_quant_algo")
    if cache is not None and cache not in _MODELOPT_DTYPE:
        raise UnsupportedFeatureError(inner.path("kv_cache_quant_algo"), cache, "is not modelled", _FIX)
    return _Scheme((_Group((dtype, dtype)),), _MODELOPT_DTYPE[cache] if cache else _cache_dtype(inner, base))


def _compressed(quantised: ConfigFields, base: Dtype) -> _Scheme:
    sparsity = quantised.section("sparsity_config")
    if sparsity is not None and sparsity.text("format") not in (None, "dense"):
        raise UnsupportedFeatureError(
            sparsity.path("format"), sparsity.text("format"), "sparse weights are not modelled", _FIX
        )
    section = quantised.section("config_groups")
    if section is not None and len(section.values) > MOST_GROUPS:
        bound = f"has more than {MOST_GROUPS} groups"
        raise UnsupportedFeatureError(section.prefix, f"{len(section.values)} groups", bound, _FIX)
    groups = [_compressed_group(section, name, base) for name in section.values] if section is not None else []
    if not groups or (len({group.formats for group in groups}) > 1 and not all(group.targets for group in groups[1:])):
        bound = f"needs one number format for all layers or targets for each, has {len(groups)} groups"
        raise UnsupportedFeatureError(quantised.path("config_groups"), "(given)", bound, _FIX)
    return _Scheme(tuple(groups), _cache_dtype(quantised, base))


def _compressed_group(groups: ConfigFields, name: str, base: Dtype) -> _Group:
    group = groups.section(name) or ConfigFields({}, groups.path(name))
    weights = group.section("weights") or ConfigFields({}, group.path("weights"))
    activations = group.section("input_activations")
    targets = [target for target in group.texts("targets") if target != "Linear"]
    if len(targets) > MOST_TARGETS:
        bound = f"lists more than {MOST_TARGETS} modules"
        raise UnsupportedFeatureError(group.path("targets"), f"{len(targets)} modules", bound, _FIX)
    formats = _tensor_dtype(weights), base if activations is None else _tensor_dtype(activations)
    return _Group(formats, tuple(_pattern(group, "targets", target) for target in targets))


def _tensor_dtype(tensor: ConfigFields) -> Dtype:
    """Format of ``{"type": "int", "num_bits": 4, "group_size": 128}``, as compressed-tensors writes it."""
    kind, bits = tensor.text("type"), tensor.size("num_bits")
    dtype = _TENSOR_DTYPE.get((kind, bits))
    if dtype is None:
        bound = f"{bits}-bit {kind and shorten(kind)} quantisation is not modelled"
        raise UnsupportedFeatureError(tensor.path("num_bits"), bits, bound, _FIX)
    if dtype is Dtype.FP8 and tensor.text("strategy") == "block":
        return _block_dtype(tensor, tensor.integers("block_structure"))
    if dtype is Dtype.FP4 and tensor.values.get("group_size") == _MX_VALUES:
        return Dtype.MXFP4
    _refuse_other_groups(tensor, dtype, tensor.values.get("group_size"))
    return dtype


def _refuse_other_groups(tensor: ConfigFields, dtype: Dtype, group: object) -> None:
    if dtype in _GROUP_VALUES and group != _GROUP_VALUES[dtype]:
        bound = f"{dtype.value} is modelled with {_GROUP_VALUES[dtype]} values to a scale"
        raise UnsupportedFeatureError(tensor.path("group_size"), group, bound, _FIX)


def _cache_dtype(quantised: ConfigFields, base: Dtype) -> Dtype:
    scheme = quantised.section("kv_cache_scheme")
    return base if scheme is None else _tensor_dtype(scheme)


# ------------------------------------------------------------------------------------------------ lists of modules

_MOST_REPEATS = 4
"""Unbounded repeats in a regular expression of a list; published ones have three. More could take for ever."""
_ODD = re.compile(r"\)[*+{]|\[\^?\[|--|&&|~~|\|\|")
"""Repeated groups, which can take for ever, and set operations, whose meaning is to change."""


MOST_ENTRIES = 5000
"""Most entries of the lists of modules: the longest published ones name some ten modules of each of 94 layers."""
MOST_GROUPS, MOST_TARGETS = 20, 500
"""Most groups of formats, and most entries of one of them: published ones have up to three of a few patterns."""
MOST_EFFORT = 40_000
"""Most work of matching entries with modules, over all layers; one whole name in one layer counts 1. A list
of 224 modules of a vision tower, of a model with 94 layers, makes 21,056."""
_EFFORT = (1, 3, 9, 27)
"""Work of a pattern with so many repeats; with more of them `_MUCH`."""
_MUCH = 1000


def _ignored(quantised: ConfigFields) -> tuple[_Pattern, ...]:
    inner = quantised.section("quantization")
    sections = (quantised, inner) if inner is not None else (quantised,)
    listed = [(part, key, text) for part in sections for key in _UNQUANTISED_LISTS for text in part.texts(key)]
    dynamic = quantised.section("dynamic")
    if len(listed) + len(dynamic.values if dynamic is not None else ()) > MOST_ENTRIES:
        bound = f"lists more than {MOST_ENTRIES} modules"
        raise UnsupportedFeatureError(quantised.prefix, f"{len(listed)} modules", bound, _FIX)
    found = [_pattern(*one) for one in listed]
    for text in map(str, dynamic.values) if dynamic is not None else ():
        if not text.startswith("-:"):
            bound = "formats per module are not modelled"
            raise UnsupportedFeatureError(quantised.path("dynamic"), text, bound, _FIX)
        found.append(_pattern(quantised, "dynamic", "re:" + text.removeprefix("-:")))
    return tuple(dict.fromkeys(found))


def _pattern(quantised: ConfigFields, key: str, text: str) -> _Pattern:
    """A regular expression after ``re:``, a shell pattern if it has a star, else whole components of a dotted name.

    The name of a class of attention (``Llama4TextAttention``) is for all attention. Raises as `native_precision`.
    """
    if text.startswith("re:"):
        return _Pattern(text, _regular(quantised, key, text.removeprefix("re:")))
    if re.search(r"experts\.\d", text):
        raise UnsupportedFeatureError(quantised.path(key), text, "single experts are not modelled", _FIX)
    if re.fullmatch(r"[A-Z]\w*Attention", text):
        return _Pattern(text, re.compile(r".*\.self_attn\.").match)
    if "*" in text:
        return _Pattern(text, re.compile(f"{fnmatch.translate(text)}|{fnmatch.translate(text + '.*')}").match)
    return _Pattern(text, re.compile(rf"(?:^|\.){re.escape(text)}(?:\.|$)").search, whole=True)


def _regular(quantised: ConfigFields, key: str, text: str) -> Callable[[str], object]:
    if len(re.findall(r"[*+}]", text)) > _MOST_REPEATS or _ODD.search(text):
        bound = f"only plain regular expressions with up to {_MOST_REPEATS} repeats are read"
        raise UnsupportedFeatureError(quantised.path(key), text, bound, _FIX)
    try:
        return re.compile(text).match
    except (re.error, OverflowError):
        raise InputError(quantised.path(key), text, "is no regular expression", "correct or remove it") from None


_PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
_MORE_NAMES = {
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
    "o_proj": ("out_proj",),
    "in_proj_qkv": ("in_proj_qkvz",),
    "in_proj_z": ("in_proj_qkvz",),
    "in_proj_b": ("in_proj_ba",),
    "in_proj_a": ("in_proj_ba",),
    "gate_proj": ("gate_up_proj", "w1"),
    "up_proj": ("gate_up_proj", "w3", "fc1"),
    "down_proj": ("w2", "fc2"),
}
"""Other names of a matrix: packed with its neighbours, or those of an older family."""
_BLOCKS = {
    Part.FEED_FORWARD: ("mlp", "feed_forward", "mixer"),
    Part.EXPERTS: ("mlp.experts.0", "block_sparse_moe.experts.0", "feed_forward.experts", "mixer.experts.0"),
    Part.SHARED_EXPERTS: (
        "mlp.shared_experts",
        "mlp.shared_expert",
        "feed_forward.shared_expert",
        "mixer.shared_experts",
    ),
}
"""Names of the block a matrix is in."""


def _modules(attention: Attention | None, feed_forward: FeedForward | None, hidden: int) -> Iterator[_Module]:
    """The matrices of one layer with their names after the number of the layer."""
    block: tuple[str, ...] = ("self_attn", "mixer")
    if isinstance(attention, LinearAttention | StateSpace):
        block = ("linear_attn",) if isinstance(attention, LinearAttention) else ("mixer",)
    for name, (inputs, outputs) in attention_matrices(attention, hidden).items():
        yield _Module(Part.ATTENTION, inputs * outputs, _names(block, name))
    if feed_forward is None:
        return
    names = ("gate_proj", "up_proj", "down_proj") if feed_forward.gated else ("up_proj", "down_proj")
    weights = {Part.FEED_FORWARD: feed_forward_weights(feed_forward, hidden)}
    if isinstance(feed_forward, MoeFeedForward):
        weights = {Part.EXPERTS: feed_forward.experts * feed_forward_weights(feed_forward, hidden)}
        weights[Part.SHARED_EXPERTS] = shared_expert_weights(feed_forward, hidden)
    for part, total in weights.items():
        for name in names if total else ():
            yield _Module(part, total // len(names), _names(_BLOCKS[part], name))


def _names(blocks: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(f"{block}.{alias}" for block in blocks for alias in (name, *_MORE_NAMES.get(name, ())))


def _matches(pattern: _Pattern, names: _Names) -> bool:
    return not (pattern.whole and pattern.text not in names.joined) and any(map(pattern.matches, names.each))


# ------------------------------------------------------------------------------------------------ formats by part

_Tally = dict[Part, Counter[Formats]]


def _tally(
    quantised: ConfigFields,
    layers: Layers,
    hidden: int,
    scheme: _Scheme,
    base: Dtype,
) -> _Tally:
    """Weights of each part in each format."""
    ignored = _ignored(quantised)
    targets = tuple(pattern for group in scheme.groups for pattern in group.targets)
    tally: _Tally = defaultdict(Counter)
    used: set[str] = set()
    anywhere, by_layer = _by_layer(ignored)
    effort, always = 0, sum(map(_effort, (*anywhere, *targets)))
    for layer, (attention, feed_forward), copies in _representatives(layers, (*ignored, *targets)):
        own = by_layer.get(str(layer), [])
        effort += always + sum(map(_effort, own))
        if effort > MOST_EFFORT:
            bound = "names more modules, in more layers, than can be matched in time"
            raise UnsupportedFeatureError(quantised.prefix, f"{len(ignored)} modules", bound, _FIX)
        here = [*anywhere, *own]
        for module in _modules(attention, feed_forward, hidden):
            names = _Names.of(layer, module)
            found = [pattern.text for pattern in here if _matches(pattern, names)]
            used.update(found)
            formats = (base, base) if found else _format(scheme, module.part, names, base)
            tally[module.part][formats] += copies * module.weights
    _refuse_unknown(quantised, ignored, used, len(layers))
    _refuse_idle(quantised, scheme, tally)
    return tally


def _representatives(
    layers: Layers, patterns: Sequence[_Pattern]
) -> list[tuple[int, tuple[Attention | None, FeedForward | None], int]]:
    """Layers to look at and how many each stands for: every one when a pattern has a number, else one of each shape."""
    if any(re.search(r"\d", pattern.text) for pattern in patterns):
        return [(layer, shape, 1) for layer, shape in enumerate(layers)]
    return [(layers.index(shape), shape, count) for shape, count in Counter(layers).items()]


def _by_layer(patterns: Iterable[_Pattern]) -> tuple[list[_Pattern], dict[str, list[_Pattern]]]:
    """Patterns that can match in any layer, and those that name one, by its number."""
    anywhere: list[_Pattern] = []
    by_layer: dict[str, list[_Pattern]] = defaultdict(list)
    for pattern in patterns:
        named = re.search(r"layers\.(\d+)(?:\.|$)", pattern.text)
        place = anywhere if named is None or pattern.text.startswith("re:") else by_layer[named[1]]
        place.append(pattern)
    return anywhere, by_layer


def _effort(pattern: _Pattern) -> int:
    """About what it takes to match a pattern with the modules of a layer, in units of a whole name."""
    repeats = sum(map(pattern.text.count, "*+}"))
    return _EFFORT[repeats] if repeats < len(_EFFORT) else _MUCH


def _format(scheme: _Scheme, part: Part, names: _Names, base: Dtype) -> Formats:
    if scheme.only not in (None, part):
        return base, base
    for group in scheme.groups:
        if any(_matches(target, names) for target in group.targets):
            return group.formats
    return next((group.formats for group in scheme.groups if not group.targets), (base, base))


def _refuse_unknown(quantised: ConfigFields, ignored: tuple[_Pattern, ...], used: set[str], layers: int) -> None:
    for pattern in ignored:
        named = re.search(r"layers\.(\d{1,9})(?!\d)", pattern.text)
        beyond = named is not None and int(named[1]) >= layers
        if layers and pattern.text not in used and not beyond and not _NO_MATRIX_OF_A_LAYER.search(pattern.text):
            bound = "is left unquantised but is no module of this model"
            raise UnsupportedFeatureError(quantised.path("ignore"), pattern.text, bound, _FIX)


def _refuse_idle(quantised: ConfigFields, scheme: _Scheme, tally: _Tally) -> None:
    used = {formats for counts in tally.values() for formats in counts}
    for group in scheme.groups:
        if tally and group.formats not in used:
            bound = "applies to no module of this model"
            raise UnsupportedFeatureError(quantised.prefix, group.formats[0].value, bound, _FIX)


def _by_part(quantised: ConfigFields, scheme: _Scheme, tally: _Tally, base: Dtype) -> Precision:
    """The format of each part; the defaults are the scheme's own, 16 bit where it is for one part only."""
    whole = {part: counts.most_common(1)[0][0] for part, counts in tally.items()}
    _refuse_divided(quantised, tally)
    weights, activations = (base, base) if scheme.only else _default(scheme, tally, base)
    exceptions = (
        PartPrecision(part=part, weights=formats[0], activations=formats[1])
        for part, formats in sorted(whole.items())
        if formats != (weights, activations)
    )
    return Precision(weights=weights, activations=activations, kv_cache=scheme.kv_cache, parts=tuple(exceptions))


def _default(scheme: _Scheme, tally: _Tally, base: Dtype) -> Formats:
    """The quantised format of most weights."""
    total: Counter[Formats] = Counter()
    for counts in tally.values():
        total.update(counts)
    del total[base, base]
    return total.most_common(1)[0][0] if total else scheme.groups[0].formats


def _refuse_divided(quantised: ConfigFields, tally: _Tally) -> None:
    all_weights = sum(counts.total() for counts in tally.values())
    stray = {part: counts.total() - max(counts.values()) for part, counts in tally.items()}
    if sum(stray.values()) > MOST_STRAY * all_weights:
        part = max(stray, key=lambda part: stray[part])
        share = stray[part] / tally[part].total()
        bound = (
            f"only whole parts of a model can be left unquantised, and {share:.0%} of the weights of part "
            f"{part.value} differ from its rest"
        )
        raise UnsupportedFeatureError(quantised.path("ignore"), "(given)", bound, _FIX)
