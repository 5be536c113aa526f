"""A model on every GPU: which degree it fits at, in which format, and how many requests its KV cache holds at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hardware_db import HardwareDb, load_hardware, sku_words
from planner.core import InputError, PlannerError, Table, UnknownNameError, significant
from planner.engine.server_memory import memory
from planner.engine.start_up import StartUp
from planner.llm import (
    Checkpoint,
    LlmSpec,
    checkpoint_bytes,
    checkpoints_of,
    kv_bytes_per_token,
    load_llm,
    main_format,
    parameters,
)

DEGREES = (1, 2, 4, 8)
"""GPUs that layers are split over, where none are given. A choice: those of a usual server."""
USUAL_CONTEXT_TOKENS = 8192
"""Longest request where none is given [tokens]. A choice: a conversation of some turns."""


@dataclass(frozen=True)
class Fit:
    """One server: a GPU, a checkpoint and a degree.

    Attributes:
        sku: the GPU.
        format: of most weights, without its scales: fp8, int4 ...
        repository: of the checkpoint.
        weight_bytes: of the checkpoint [bytes].
        tp: GPUs that layers are split over.
        found: the server as it starts; None where there is no such server.
        reason: why it does not start; empty where it does.
    """

    sku: str
    format: str
    repository: str
    weight_bytes: float
    tp: int
    found: StartUp | None
    reason: str

    @property
    def requests(self) -> int:
        """Requests of the length asked for that its KV cache holds at once; 0 where it does not start."""
        return 0 if self.reason or self.found is None else int(self.found.concurrency)


def fit_gpus(
    llm: str | LlmSpec,
    context_tokens: int | None = None,
    gpus: Iterable[str] = (),
    *,
    engine: str = "vllm",
    degrees: Sequence[int] = DEGREES,
    hardware: HardwareDb | None = None,
) -> tuple[Fit, ...]:
    """A model on every GPU, in each format it can be had in and at each degree: what `memory` says of each server.

    Args:
        llm: a model, the name of a packaged one, or the path of a config.json.
        context_tokens: longest request, input and output [tokens]; None: 8,192, or the model's context if shorter.
        gpus: ids of GPUs; none: all.
        engine: id of an engine profile.
        degrees: GPUs that layers are split over; more than a server has are left out.
        hardware: records to look names up in; None: the packaged ones.

    Returns:
        By GPU, format and degree.

    Raises:
        UnknownNameError: no such model, GPU or engine.
        InputError: more tokens than the model's context.

    >>> [one.requests for one in fit_gpus("llama-3.1-8b", 131_072, ["h100-sxm"]) if one.format == "bf16"]
    [3, 7, 16, 32]
    """
    records = hardware or load_hardware(calibrations="")
    model = load_llm(llm) if isinstance(llm, str) else llm
    tokens = context_tokens or min(USUAL_CONTEXT_TOKENS, model.max_context_tokens)
    if tokens > model.max_context_tokens:
        bound = f"longer than the {model.max_context_tokens:,} tokens of context of {model.id}"
        raise InputError("context_tokens", tokens, bound, "give less")
    if engine not in records.engines:
        raise UnknownNameError("engine", engine, records.engines)
    checkpoints: dict[str, Checkpoint] = {}
    for checkpoint in checkpoints_of(model):
        checkpoints.setdefault(main_format(model, checkpoint.precision)[0].value.partition("_")[0], checkpoint)
    fits = []
    for sku in gpus or records.skus:
        if sku not in records.skus:
            raise UnknownNameError("gpu", sku, records.skus)
        for name, checkpoint in checkpoints.items():
            size = checkpoint_bytes(model, checkpoint)
            for tp in (tp for tp in degrees if tp <= records.skus[sku].node.gpus):
                found, reason = None, ""
                try:
                    found = memory(
                        model,
                        sku,
                        engine=engine,
                        tp=tp,
                        precision=checkpoint.precision,
                        max_request_tokens=tokens,
                        propose=False,
                        hardware=records,
                    )
                    reason = found.reason
                except PlannerError as error:
                    reason = str(error)
                fits.append(Fit(sku, name, checkpoint.repository, size, tp, found, reason))
    return tuple(fits)


# --- shown ------------------------------------------------------------------------------------------------------------


def fit_headline(llm: LlmSpec, fits: Sequence[Fit]) -> str:
    """Sizes of a model, and on how many GPUs it fits.

    Args:
        llm: the model.
        fits: of `fit_gpus`.

    Returns:
        A sentence.
    """
    cache = llm.native_precision.kv_cache
    per_token = kv_bytes_per_token(llm, cache)
    names, fitting = {one.sku for one in fits}, [one for one in fits if one.requests]
    least = {sku: min(one.tp for one in fitting if one.sku == sku) for sku in {one.sku for one in fitting}}
    where = f"one GPU of {list(least.values()).count(1)} of {len(names)} kinds, on one server of {len(least)}"
    if len(names) == 1:
        where = f"{least.get(fits[0].sku, 'no number of')} × {sku_words(fits[0].sku)}"
    return (
        f"{llm.id}: {significant(1e-9 * parameters(llm))} billion parameters, {per_token:,.0f} bytes "
        f"({significant(per_token / 1024)} KiB) of KV cache per token in {cache.value}; in the smallest "
        f"format it fits on {where}."
    )


def fit_table(fits: Sequence[Fit]) -> Table:
    """Requests at once: of one GPU by format and degree, of several by format at the smallest degree that fits.

    Args:
        fits: of `fit_gpus`.

    Returns:
        A row for each format of one GPU, or for each GPU.
    """
    formats = list(dict.fromkeys(one.format for one in fits))
    by_place = {(one.sku, one.format, one.tp): one for one in fits}
    degrees = sorted({one.tp for one in fits})
    skus = list(dict.fromkeys(one.sku for one in fits))
    tokens = next((one.found.replica.longest_tokens for one in fits if one.found), 0)
    note = f"Requests of {tokens:,} tokens, input and output, that the KV cache holds at once; -: it does not start."
    if len(skus) == 1:
        rows = tuple(
            (
                name,
                significant(1e-9 * by_place[skus[0], name, degrees[0]].weight_bytes),
                *(f"{by_place[skus[0], name, tp].requests or '-':}" for tp in degrees),
                by_place[skus[0], name, degrees[0]].repository,
            )
            for name in formats
        )
        columns = ("format", "weights GB", *(f"TP{tp}" for tp in degrees), "checkpoint")
        return Table(f"Where it fits on {sku_words(skus[0])}", columns, rows, note)

    def smallest(sku: str, name: str) -> str:
        fitting = [one for tp in degrees if (one := by_place.get((sku, name, tp))) and one.requests]
        return f"TP{fitting[0].tp}: {fitting[0].requests:,}" if fitting else "-"

    rows = tuple((sku_words(sku), *(smallest(sku, name) for name in formats)) for sku in skus)
    return Table(
        "Fewest GPUs that hold it, and requests at once",
        ("GPU", *formats),
        rows,
        f"{note} TP4: split over four GPUs of one server.",
    )


def fit_record(llm: LlmSpec, fits: Sequence[Fit]) -> dict[str, Any]:
    """The same as data.

    Args:
        llm: the model.
        fits: of `fit_gpus`.

    Returns:
        Bytes and tokens of every server.
    """
    return {
        "llm": llm.id,
        "kv_bytes_per_token": kv_bytes_per_token(llm, llm.native_precision.kv_cache),
        "servers": [
            {
                **{name: getattr(one, name) for name in ("sku", "format", "repository", "weight_bytes", "tp")},
                "kv_tokens": one.found.kv_tokens if one.found and not one.reason else 0,
                "requests": one.requests,
                "reason": one.reason,
            }
            for one in fits
        ],
    }
