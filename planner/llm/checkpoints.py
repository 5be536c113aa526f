"""The formats in which a model can be had: the checkpoints there are of it, and those that engines make on loading.

Answers: in which number formats is a model published, by whom and where, how many bytes are its weights in each, and
which of them do the matrix units of a GPU multiply. The table is `presets/checkpoints.csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from planner.core import Dtype, preset_rows
from planner.llm.formats import BYTES_PER_VALUE, Part, PartPrecision, Precision
from planner.llm.sizes import linear_parameters_by_part, weight_bytes
from planner.llm.spec import LlmSpec

SIXTEEN_BIT = frozenset({Dtype.BF16, Dtype.FP16})


@dataclass(frozen=True)
class Checkpoint:
    """A model in one set of number formats.

    Attributes:
        repository: on the Hugging Face Hub; where `made_on_load`, of the weights that are converted.
        precision: its number formats; the KV cache is that of the model where the checkpoint does not say.
        source_url: where it says so.
        note: what else to know.
        made_on_load: engines make it of a 16-bit checkpoint when they load it; nobody publishes it.
        own: the checkpoint that the model was read from.
    """

    repository: str
    precision: Precision
    source_url: str
    note: str = ""
    made_on_load: bool = False
    own: bool = False


def checkpoints_of(llm: LlmSpec) -> tuple[Checkpoint, ...]:
    """Every way to have a model: its own checkpoint, those published beside it, and those made on loading.

    Args:
        llm: any model; others than its own are found by its id, so an uploaded configuration has only its own.

    Returns:
        The model's own first, then the table's in its order, then what engines make of 16-bit weights.

    >>> from planner.llm import load_llm
    >>> [checkpoint.repository for checkpoint in checkpoints_of(load_llm("qwen3-32b"))][:2]
    ['Qwen/Qwen3-32B', 'Qwen/Qwen3-32B-FP8']
    """
    own = Checkpoint(llm.name, llm.native_precision, llm.source, own=True)
    published = [_with_cache(checkpoint, llm) for checkpoint in _published().get(llm.id, ())]
    return (own, *published, *_made_on_load(llm))


def runs_well(llm: LlmSpec, precision: Precision, multiplies: Callable[[Dtype], bool]) -> bool:
    """True if the matrix units of a GPU, which multiply some formats (`GpuSku.multiplies`), take every part as stored.

    Weight-only formats (INT4, or NVFP4 beside 16-bit activations) save memory and are unpacked on the way: they do not.

    >>> from hardware_db import load_hardware
    >>> from planner.llm import load_llm
    >>> skus, llm = load_hardware().skus, load_llm("llama-3.3-70b-instruct")
    >>> nvfp4 = checkpoint_named("nvidia/Llama-3.3-70B-Instruct-NVFP4").precision
    >>> [runs_well(llm, nvfp4, skus[sku].multiplies) for sku in ("h100-sxm", "b200-sxm")]
    [False, True]
    """
    activations = (precision.of(part)[1] for part in linear_parameters_by_part(llm))
    return _multiplied_as_stored(llm, precision) and all(map(multiplies, activations))


def _multiplied_as_stored(llm: LlmSpec, precision: Precision) -> bool:
    """True if no part is unpacked to be multiplied in 16 bits."""
    pairs = (precision.of(part) for part in linear_parameters_by_part(llm))
    return all(weights in SIXTEEN_BIT or activations not in SIXTEEN_BIT for weights, activations in pairs)


def narrower_precisions(llm: LlmSpec) -> tuple[Precision, ...]:
    """Formats of no more bits in which a model can be had besides its own, each once; weight-only ones are left out.

    Those of the published checkpoints, and the model's own with an FP8 KV cache.
    """
    found = (item.precision for item in checkpoints_of(llm) if not (item.own or item.made_on_load))
    own = llm.native_precision
    return tuple(
        precision
        for precision in dict.fromkeys((*found, *_with_small_cache(own)))
        if precision != own and _bits(llm, precision) <= _bits(llm, own) and _multiplied_as_stored(llm, precision)
    )


def _bits(llm: LlmSpec, precision: Precision) -> int:
    """Bits of a value of the part that holds most weights, scales left out."""
    return int(8.0 * BYTES_PER_VALUE[main_format(llm, precision)[0]])


def _with_small_cache(precision: Precision) -> tuple[Precision, ...]:
    """The same weights and activations with an FP8 KV cache, which engines make of 16 bits as they write it."""
    if precision.kv_cache not in SIXTEEN_BIT:
        return ()
    return (precision.model_copy(update={"kv_cache": Dtype.FP8}),)


def offered_on(
    llm: LlmSpec, precisions: Iterable[Precision], multiplies: Callable[[Dtype], bool]
) -> tuple[Precision, ...]:
    """Of some formats, those that a GPU runs well: the first of each kind of arithmetic, INT8 only where no FP8 is.

    Each with a KV cache of 16 bits also comes with one of FP8 where the GPU multiplies that; of a model whose own
    weights have 16 bits this is offered only where no smaller weights are: who keeps the weights keeps the cache.

    >>> from hardware_db import load_hardware
    >>> from planner.llm import load_llm
    >>> skus, llm = load_hardware().skus, load_llm("llama-3.3-70b-instruct")
    >>> for sku in ("a100-sxm-80gb", "h100-sxm", "b200-sxm"):
    ...     offered = offered_on(llm, narrower_precisions(llm), skus[sku].multiplies)
    ...     print(sku, [item.weights.value for item in offered])
    a100-sxm-80gb ['int8']
    h100-sxm ['fp8']
    b200-sxm ['fp8', 'nvfp4']
    """
    kinds: dict[Dtype, Precision] = {}
    own_with_small_cache: Precision | None = None
    for precision in precisions:
        if runs_well(llm, precision, multiplies):
            if _weights_of(llm, precision) == _weights_of(llm, llm.native_precision):
                own_with_small_cache = precision
            else:
                kinds.setdefault(main_format(llm, precision)[0].arithmetic, precision)
    if Dtype.FP8 in kinds:
        kinds.pop(Dtype.INT8, None)
    formats = list(kinds.values())
    if multiplies(Dtype.FP8):
        formats += [small for precision in kinds.values() for small in _with_small_cache(precision)]
        if own_with_small_cache and not (kinds and main_format(llm, llm.native_precision)[0] in SIXTEEN_BIT):
            formats.append(own_with_small_cache)
    return tuple(formats)


def checkpoint_named(repository: str) -> Checkpoint | None:
    """The checkpoint of a repository, where the table has it; case does not matter."""
    found = (item for items in _published().values() for item in items)
    return next((item for item in found if item.repository.lower() == repository.lower()), None)


def published_as(llm: LlmSpec, precision: Precision) -> Checkpoint | None:
    """The checkpoint that holds the weights of a precision, whatever the KV cache; None where nobody publishes it.

    >>> from planner.llm import load_llm
    >>> found = published_as(load_llm("qwen3-32b"), Precision(weights=Dtype.FP8_BLOCK, activations=Dtype.FP8))
    >>> found.repository
    'Qwen/Qwen3-32B-FP8'
    """
    return _stored_as(llm, precision, made_on_load=False)


def converted_from(llm: LlmSpec, precision: Precision) -> Checkpoint | None:
    """The 16-bit checkpoint of which engines make the weights of a precision on loading; None where none does."""
    return _stored_as(llm, precision, made_on_load=True)


def _stored_as(llm: LlmSpec, precision: Precision, *, made_on_load: bool) -> Checkpoint | None:
    asked = _weights_of(llm, precision)
    found = (item for item in checkpoints_of(llm) if item.made_on_load == made_on_load)
    return next((item for item in found if _weights_of(llm, item.precision) == asked), None)


def checkpoint_bytes(llm: LlmSpec, checkpoint: Checkpoint) -> float:
    """Bytes of the weights of a checkpoint, multi-token-prediction modules left out [bytes].

    >>> from planner.llm import load_llm
    >>> llm = load_llm("gpt-oss-120b")
    >>> round(checkpoint_bytes(llm, checkpoints_of(llm)[0]) / 1e9, 1)  # 60.8 GiB: arXiv 2508.10925, table 1
    65.2
    """
    return weight_bytes(llm, checkpoint.precision)


def main_format(llm: LlmSpec, precision: Precision) -> tuple[Dtype, Dtype]:
    """Formats of weights and activations of the part that holds most weights: what people call a checkpoint by.

    >>> from planner.llm import load_llm
    >>> llm = load_llm("gpt-oss-120b")
    >>> main_format(llm, llm.native_precision)[0].value
    'mxfp4'
    """
    by_part = linear_parameters_by_part(llm)
    if not by_part:
        return precision.weights, precision.activations
    return precision.of(max(by_part, key=by_part.__getitem__))


def format_words(llm: LlmSpec, precision: Precision) -> str:
    """Name of a format for people, with that of the rest of the model: `block-scaled FP8`, `MXFP4 weights only (...)`.

    >>> from planner.llm import load_llm
    >>> llm = load_llm("gpt-oss-20b")
    >>> format_words(llm, llm.native_precision)
    'MXFP4 weights only (attention in BF16)'
    """
    weights, activations = main_format(llm, precision)
    words = _WORDS.get(weights, weights.value.upper())
    if weights not in SIXTEEN_BIT and activations in SIXTEEN_BIT:
        words += " weights only"
    others = {
        part: precision.of(part)[0] for part in linear_parameters_by_part(llm) if precision.of(part)[0] is not weights
    }
    others.pop(Part.ATTENTION_OUTPUT, None)
    rest = ", ".join(
        f"{part.value.replace('_', ' ')} in {_WORDS.get(dtype, dtype.value.upper())}" for part, dtype in others.items()
    )
    return f"{words} ({rest})" if rest else words


_WORDS = {
    Dtype.FP8: "FP8 per tensor",
    Dtype.FP8_TOKEN: "FP8 per token and channel",
    Dtype.FP8_BLOCK: "block-scaled FP8",
    Dtype.INT4: "INT4 in groups of 128",
    Dtype.INT4_G32: "INT4 in groups of 32",
}
ON_LOAD = (
    (Dtype.FP8, "https://docs.vllm.ai/en/latest/features/quantization/online/"),
    (Dtype.FP8_BLOCK, "https://docs.vllm.ai/en/latest/features/quantization/online/"),
)
"""Formats that engines make of a 16-bit checkpoint when they load it; which engine by which flag stands in
`presets/engine_flags.csv`, knob ``quantise``."""


def _made_on_load(llm: LlmSpec) -> list[Checkpoint]:
    """Formats that engines make of 16-bit weights; empty for other weights."""
    native = llm.native_precision
    if any(native.of(part)[0] not in SIXTEEN_BIT for part in linear_parameters_by_part(llm)):
        return []
    return [
        Checkpoint(
            llm.name,
            Precision(weights=weights, activations=Dtype.FP8, kv_cache=native.kv_cache),
            source,
            note="made by the engine when it loads the 16-bit weights",
            made_on_load=True,
        )
        for weights, source in ON_LOAD
    ]


def _weights_of(llm: LlmSpec, precision: Precision) -> tuple[tuple[Dtype, Dtype], ...]:
    """Formats of every part of a model, the KV cache left out."""
    return tuple(precision.of(part) for part in (*linear_parameters_by_part(llm), Part.LM_HEAD))


def _with_cache(checkpoint: Checkpoint, llm: LlmSpec) -> Checkpoint:
    """With the KV cache of the model where the checkpoint names none (BF16 in the table)."""
    precision = checkpoint.precision
    if precision.kv_cache is not Dtype.BF16:
        return checkpoint
    cache_format = llm.native_precision.kv_cache
    kept = precision.model_copy(update={"kv_cache": cache_format})
    return Checkpoint(checkpoint.repository, kept, checkpoint.source_url, checkpoint.note)


@cache
def _published() -> dict[str, tuple[Checkpoint, ...]]:
    """The table, by the id of the model whose weights they are."""
    by_llm: dict[str, list[Checkpoint]] = {}
    for row in preset_rows("checkpoints.csv"):
        by_llm.setdefault(row["llm"], []).append(
            Checkpoint(row["checkpoint"], _precision(row), row["source_url"], row["note"])
        )
    return {llm: tuple(found) for llm, found in by_llm.items()}


def _precision(row: dict[str, str]) -> Precision:
    """Of a row: ``parts`` reads ``attention=bf16; shared_experts=fp8_block/fp8``, activations after the slash."""
    parts = []
    for item in filter(None, row["parts"].split("; ")):
        part, _, formats = item.partition("=")
        weights, _, activations = formats.partition("/")
        parts.append(PartPrecision(part=Part(part), weights=Dtype(weights), activations=Dtype(activations or weights)))
    return Precision(
        weights=Dtype(row["weights"]),
        activations=Dtype(row["activations"]),
        kv_cache=Dtype(row["kv_cache"] or "bf16"),
        parts=tuple(parts),
    )
