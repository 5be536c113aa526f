"""Models to choose from: the packaged ones, sorted and filtered, with the checkpoints there are and what they fit on.

`find_llms` answers for the Python API, the command and the app alike; `llm_table` and `llm_list` show what it found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from hardware_db import Dtype, EngineProfile, GpuSku, HardwareDb, load_hardware
from planner.core import InputError, PlannerError, Table, UnknownNameError, preset_rows, significant, typed_gpus
from planner.engine import ReplicaConfig, memory_footprint, one_request_room_tokens
from planner.llm import (
    SIXTEEN_BIT,
    Checkpoint,
    LlmSpec,
    Precision,
    active_parameters,
    checkpoint_bytes,
    checkpoints_of,
    format_words,
    kv_bytes_per_token,
    list_llms,
    load_llm,
    main_format,
    packaged_llm,
    parameters,
    state_bytes,
)
from planner.roofline import Parallelism
from planner.supply import typed_sku

MOST_GPUS = 1024
"""Most GPUs of one replica that may be asked about. A choice, it keeps typing errors out."""


class LlmOrder(StrEnum):
    """Order of models: their names, or the largest or latest first."""

    NAME = "name"
    PARAMETERS = "parameters"
    ACTIVE = "active"
    KV = "kv"
    CONTEXT = "context"
    RELEASED = "released"


@dataclass(frozen=True)
class FittingCheckpoint:
    """A checkpoint in the memory of one replica.

    Attributes:
        checkpoint: what is loaded.
        parallelism: of the replica.
        kv_tokens: that its KV cache holds.
        request_tokens: that one request finds on an empty replica.
    """

    checkpoint: Checkpoint
    parallelism: Parallelism
    kv_tokens: int
    request_tokens: int


@dataclass(frozen=True)
class FoundLlm:
    """A packaged model.

    Attributes:
        llm: the model.
        released: month or day its checkpoint came out, as published; empty where no source is known.
        released_source: where that stands.
        checkpoints: every way to have it, its own first; of those asked for.
        fitting: those that fit on the GPUs asked about; empty where none were asked about.
    """

    llm: LlmSpec
    released: str
    released_source: str
    checkpoints: tuple[Checkpoint, ...]
    fitting: tuple[FittingCheckpoint, ...] = ()


def find_llms(
    llm: str | None = None,
    family: str | None = None,
    fits: str | None = None,
    format: str | None = None,
    sort: LlmOrder = LlmOrder.NAME,
    engine: str = "vllm",
    hardware: HardwareDb | None = None,
) -> list[FoundLlm]:
    """The packaged models, filtered and sorted.

    Args:
        llm: only this one: a preset, a ``config.json``, or its name on the Hugging Face Hub.
        family: ``model_type``, the maker, or the family in the name such as ``Qwen3`` or ``gpt-oss``.
        fits: ``SKU`` or ``SKU:N``: only models of which some checkpoint leaves room for KV cache on N GPUs.
        format: number format of most weights, such as ``fp8`` (all kinds of it), ``nvfp4`` or ``int4_g32``.
        sort: by what; but for names the largest or latest first.
        engine: whose memory fraction `fits` takes, at its defaults of 256 requests and 8,192 tokens a step.
        hardware: SKUs and engines; default: the packaged ones.

    Returns:
        Models with their checkpoints, those of the format asked for.

    Raises:
        UnknownNameError: no such family, format, SKU or engine. InputError: a number of GPUs that is none.

    >>> [found.llm.id for found in find_llms(family="gpt-oss", fits="h100-sxm")]
    ['gpt-oss-120b', 'gpt-oss-20b']
    """
    place = None if fits is None else _place(fits, engine, hardware or load_hardware())
    releases, unknown = _releases(), ("", "")
    specs = _of_family(llm, family)
    found = [FoundLlm(spec, *releases.get(spec.id, unknown), checkpoints_of(spec)) for spec in specs]
    if format is not None:
        found = list(_in_format(found, format))
    if place is not None:
        found = [item for item in (_fitting(item, place) for item in found) if item.fitting]
    return sorted(found, key=_KEYS[sort], reverse=sort is not LlmOrder.NAME)


_KEYS = {
    LlmOrder.NAME: lambda found: found.llm.id,
    LlmOrder.PARAMETERS: lambda found: parameters(found.llm),
    LlmOrder.ACTIVE: lambda found: active_parameters(found.llm),
    LlmOrder.KV: lambda found: kv_bytes_per_token(found.llm, found.llm.native_precision.kv_cache),
    LlmOrder.CONTEXT: lambda found: found.llm.max_context_tokens,
    LlmOrder.RELEASED: lambda found: found.released,
}


# --- filters ----------------------------------------------------------------------------------------------------------


def _of_family(only: str | None, family: str | None) -> list[LlmSpec]:
    llms = [load_llm(name) for name in (list_llms() if only is None else (only,))]
    if family is None:
        return llms
    names = {llm.id: {_plain(name) for name in (llm.family, maker(llm), family_in_name(llm))} for llm in llms}
    wanted = _plain(family)
    exact = [llm for llm in llms if wanted in names[llm.id]]
    if exact or not wanted:
        return exact
    alike = [llm for llm in llms if any(name.startswith(wanted) for name in names[llm.id])]
    if not alike:
        raise UnknownNameError("--family", family, {family_in_name(llm) for llm in llms} | {llm.family for llm in llms})
    return alike


def maker(llm: LlmSpec) -> str:
    """Organisation that published the checkpoint; empty for a model of one's own."""
    return llm.name.partition("/")[0] if "/" in llm.name else ""


def family_in_name(llm: LlmSpec) -> str:
    """The part before the size in the name of a checkpoint.

    >>> [family_in_name(load_llm(name)) for name in ("qwen3-vl-8b-instruct", "deepseek-v3", "gpt-oss-20b")]
    ['Qwen3-VL', 'DeepSeek-V3', 'gpt-oss']
    """
    name = llm.name.rpartition("/")[2]
    return re.split(r"-(?:small-)?\d+(?:\.\d+)?(?:x\d+)?[bBeE]", name)[0]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _in_format(found: Sequence[FoundLlm], wanted: str) -> Iterator[FoundLlm]:
    known = {dtype.value for dtype in Dtype if dtype is not Dtype.FP4}
    dtypes = {name for name in known if name == wanted.lower() or name.startswith(f"{wanted.lower()}_")}
    if not dtypes:
        raise UnknownNameError("--format", wanted, known)
    for item in found:
        kept = tuple(one for one in item.checkpoints if main_format(item.llm, one.precision)[0].value in dtypes)
        if kept:
            yield replace(item, checkpoints=kept)


Place = tuple[GpuSku, int, EngineProfile]
"""GPUs of one replica, their number, and the engine on them."""


def _place(fits: str, engine: str, hardware: HardwareDb) -> Place:
    count, name = typed_gpus(fits)
    sku = typed_sku(name, hardware.skus)
    if sku not in hardware.skus:
        raise UnknownNameError("--fits", name, hardware.skus)
    if engine not in hardware.engines:
        raise UnknownNameError("engine", engine, hardware.engines)
    if count is not None and not 1 <= count <= MOST_GPUS:
        raise InputError("--fits", fits, f"must name 1 to {MOST_GPUS} GPUs", f"write e.g. {name}:8")
    return hardware.skus[sku], int(count or 1), hardware.engines[engine]


def _fitting(found: FoundLlm, place: Place) -> FoundLlm:
    """With the checkpoints that leave room for KV cache; those made on loading where none is published alike."""
    fitting: list[FittingCheckpoint] = []
    for checkpoint in found.checkpoints:
        formats = main_format(found.llm, checkpoint.precision)[0]
        published = (main_format(found.llm, other.checkpoint.precision)[0] for other in fitting)
        if checkpoint.made_on_load and formats.arithmetic in {dtype.arithmetic for dtype in published}:
            continue
        if (held := _held(found.llm, checkpoint, *place)) is not None:
            fitting.append(held)
    return replace(found, fitting=tuple(fitting))


def _held(
    llm: LlmSpec, checkpoint: Checkpoint, sku: GpuSku, gpus: int, engine: EngineProfile
) -> FittingCheckpoint | None:
    """The widest tensor parallelism that the model and its engine take, pipeline stages for the rest."""
    for split in (Parallelism(tp=tp, pp=gpus // tp) for tp in range(gpus, 0, -1) if gpus % tp == 0):
        try:
            replica = ReplicaConfig(llm=llm, sku=sku, engine=engine, precision=checkpoint.precision, parallelism=split)
            footprint = memory_footprint(replica)
        except PlannerError:
            continue
        room = one_request_room_tokens(replica, footprint)
        return FittingCheckpoint(checkpoint, split, footprint.kv_capacity_tokens, room) if room > 0 else None
    return None


@cache
def _releases() -> dict[str, tuple[str, str]]:
    return {row["llm"]: (row["released"], row["source_url"]) for row in preset_rows("llm_releases.csv")}


# --- shown ------------------------------------------------------------------------------------------------------------

_COLUMNS = ("model", "family", "B", "act. B", "KV KiB + state MiB", "context Ki", "weights GB")
_NOTE = (
    "B: parameters, 10^9, and those one token uses. KV: of one token in layers that keep the whole context; state: "
    "recurrent, of one request. Context: in units of 1,024 tokens. "
    "Any Hugging Face config.json of a supported family works too."
)
_ONE = ("checkpoint", "format", "GB")
_FITTING = ("model: checkpoint", "format", "GB", "split", "KV tokens", "of one request")


def llm_table(found: Sequence[FoundLlm] | None = None, sort: LlmOrder = LlmOrder.NAME) -> Table:
    """Sizes, context and format of models; a row for every checkpoint of one alone, or of those that fit.

    Args:
        found: of `find_llms`; default: every packaged model.
        sort: by what; the date takes the place of the family where it is that.
    """
    found = find_llms(sort=sort) if found is None else found
    if any(item.fitting for item in found):
        rows = tuple(_fitting_cells(item.llm, held) for item in found for held in item.fitting)
        return Table("Models that fit", _FITTING, rows, "GB: of weights. KV tokens: at the engine's defaults.")
    if len(found) == 1:
        title, checkpoints = f"Checkpoints of {found[0].llm.id}", found[0].checkpoints
        rows = tuple(_checkpoint_cells(found[0].llm, item) for item in checkpoints)
        return Table(title, _ONE, rows, "GB: of weights.")
    by_date = sort is LlmOrder.RELEASED
    columns = tuple("released" if by_date and name == "family" else name for name in _COLUMNS)
    rows = tuple(_cells(item, by_date=by_date) for item in found)
    return Table("Models", columns, rows, f"Weights: format and bytes of the model's own checkpoint. {_NOTE}")


def _cells(found: FoundLlm, *, by_date: bool) -> tuple[str, ...]:
    llm, state, own = found.llm, state_bytes(found.llm), found.checkpoints[0]
    weights = f"{main_format(llm, own.precision)[0].value} {significant(1e-9 * checkpoint_bytes(llm, own))}"
    kv = significant(kv_bytes_per_token(llm, llm.native_precision.kv_cache) / 2**10)
    return (
        llm.id,
        (found.released or "-") if by_date else llm.family.removesuffix("_text"),
        significant(1e-9 * parameters(llm)),
        significant(1e-9 * active_parameters(llm)),
        f"{kv} + {significant(state / 2**20)}" if state else kv,
        f"{llm.max_context_tokens / 2**10:,.4g}",
        weights,
    )


def _checkpoint_cells(llm: LlmSpec, checkpoint: Checkpoint) -> tuple[str, ...]:
    return (
        checkpoint_words(checkpoint),
        format_words(llm, checkpoint.precision),
        significant(1e-9 * checkpoint_bytes(llm, checkpoint)),
    )


def checkpoint_words(checkpoint: Checkpoint) -> str:
    """Its repository, and that engines convert it where they do."""
    return f"{checkpoint.repository}, converted on loading" if checkpoint.made_on_load else checkpoint.repository


def _fitting_cells(llm: LlmSpec, held: FittingCheckpoint) -> tuple[str, ...]:
    checkpoint = held.checkpoint
    return (
        f"{llm.id}: {checkpoint_words(checkpoint)}",
        main_format(llm, checkpoint.precision)[0].value,
        significant(1e-9 * checkpoint_bytes(llm, checkpoint)),
        held.parallelism.label,
        f"{held.kv_tokens:,}",
        f"{min(held.request_tokens, llm.max_context_tokens):,}",
    )


def llm_list(found: Sequence[FoundLlm] | None = None) -> list[dict[str, Any]]:
    """Models as plain data: every field of the spec, sizes, checkpoints, and what fits where GPUs were asked about.

    Args:
        found: of `find_llms`; default: every packaged model.
    """
    return [_plain_data(item) for item in (find_llms() if found is None else found)]


def _plain_data(found: FoundLlm) -> dict[str, Any]:
    llm = found.llm
    return {
        **llm.model_dump(mode="json"),
        "parameters": parameters(llm),
        "active_parameters": active_parameters(llm),
        "kv_bytes_per_token": kv_bytes_per_token(llm, llm.native_precision.kv_cache),
        "state_bytes": state_bytes(llm),
        "released": found.released or None,
        "released_source": found.released_source or None,
        "checkpoints": [_checkpoint_data(llm, checkpoint) for checkpoint in found.checkpoints],
        "fits": [
            {
                **_checkpoint_data(llm, held.checkpoint),
                "parallelism": held.parallelism.model_dump(mode="json"),
                "kv_tokens": held.kv_tokens,
                "request_tokens": held.request_tokens,
            }
            for held in found.fitting
        ],
    }


def _checkpoint_data(llm: LlmSpec, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "repository": checkpoint.repository,
        "format": main_format(llm, checkpoint.precision)[0].value,
        "precision": checkpoint.precision.model_dump(mode="json"),
        "weight_bytes": checkpoint_bytes(llm, checkpoint),
        "made_on_load": checkpoint.made_on_load,
        "source_url": checkpoint.source_url,
        "note": checkpoint.note,
    }


def formats_with(
    llm: str | Mapping[str, Any],
    precision: Mapping[str, Any] | None = None,
    read: Callable[[Any], LlmSpec] = packaged_llm,
) -> dict[str, None]:
    """Other changes in a scenario that takes another model: formats in which that model cannot be had are left out.

    The number formats of the scenario were chosen for the model before. They stay where the new one is published in
    weights of the same kind, or where engines make them of its 16-bit checkpoint when they load it; a checkpoint that
    is quantised already, such as gpt-oss in MXFP4, is served as stored.

    Args:
        llm: as a scenario names it.
        precision: that the scenario has; None: FP8, which engines make of any 16-bit checkpoint.
        read: the model of a name; `load_llm` where that may be a file or on the Hub.

    Returns:
        ``{"precision": None}``, or nothing; nothing too for a model that cannot be read.

    >>> formats_with("gpt-oss-120b"), formats_with("llama-3.1-8b")
    ({'precision': None}, {})
    """
    try:
        model = read(llm)
        asked = Precision.model_validate(precision or {"weights": "fp8", "activations": "fp8"})
    except (PlannerError, ValueError):
        return {}
    as_stored, *others = checkpoints_of(model)
    stored, wanted = main_format(model, as_stored.precision)[0], _kind(main_format(model, asked)[0])
    kinds = {_kind(main_format(model, checkpoint.precision)[0]) for checkpoint in others}
    as_asked = asked == as_stored.precision
    to_be_had = stored in SIXTEEN_BIT and (wanted in SIXTEEN_BIT or wanted in kinds)
    return {} if as_asked or to_be_had else {"precision": None}


def _kind(dtype: Dtype) -> Dtype:
    """Format in which it is multiplied; formats of 4 bits, whose scales differ, are kinds of their own."""
    return dtype if dtype.arithmetic is Dtype.FP4 else dtype.arithmetic
