"""The memory of a server as predicted, beside what its start-up log says."""

from __future__ import annotations

from typing import Any

from calibration.serving.startup_logs import StartupLog, StartupOutcome
from hardware_db import Dtype, EngineCosts, GpuSku, MemoryShare, load_hardware
from planner.core import GIB, InputError, Table, UnknownNameError, rebuilt
from planner.engine import ReplicaConfig, StartUp, memory, memory_share, start_up
from planner.llm import LlmSpec

_KV_FORMATS = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn"), "fp8"),
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "half", "fp16"), "fp16"),
}
"""Formats of a KV cache by what engines call them in their logs; ``auto`` is that of the checkpoint."""
ALIKE_MEMORY = 0.05
"""Relative difference of memory up to which a log's GPU is taken for the planned one: above what drivers of one SKU
differ by, below the step from 80 to 96 GB. A choice."""
MEMORY_SOURCE = "; memory as in a start-up log of "
"""Stands in the source of engine costs before the server whose log was read."""


def memory_of_log(log: StartupLog, llm: str | LlmSpec, sku: str, **settings: Any) -> StartUp:  # noqa: ANN401
    """The server that a log is of, as predicted: what the log states and is not given is taken from it.

    Args:
        log: of a start.
        llm: as `memory` takes it.
        sku: likewise; its memory is what the log says, if it does.
        settings: of `memory`; they count before what the log says.

    Returns:
        As `memory` does.

    Raises:
        As `memory` does.
    """
    records = settings.pop("hardware", None) or load_hardware()
    if sku not in records.skus:
        raise UnknownNameError("sku", sku, records.skus)
    gpu = _with_seen_bytes(records.skus[sku], log.gpu_total_bytes)
    ranks = settings.get("dp") or log.dp or 1  # limits of a log are those of one of them
    said: dict[str, Any] = {
        "engine": log.engine,
        "engine_version": log.version,
        "tp": log.tp,
        "pp": log.pp,
        "dp": log.dp,
        "memory_fraction": log.memory_fraction,
        "max_request_tokens": log.max_model_len,
        "max_running_requests": log.max_num_seqs and ranks * log.max_num_seqs,
        "max_batched_tokens": log.max_num_batched_tokens and ranks * log.max_num_batched_tokens,
        "eager": log.eager,
        "kv_cache": _KV_FORMATS.get((log.kv_cache_dtype or "").lower()),
    }
    known = {name: value for name, value in said.items() if value is not None}
    return memory(llm, gpu, hardware=records, **{**known, **{k: v for k, v in settings.items() if v is not None}})


def _with_seen_bytes(gpu: GpuSku, seen_bytes: float | None) -> GpuSku:
    """The GPU with the memory that a log says a process sees, if it does."""
    if seen_bytes is None:
        return gpu
    seen = gpu.hbm_capacity_bytes.model_copy(update={"value": seen_bytes, "note": "as the log says"})
    return gpu.model_copy(update={"memory_seen_bytes": seen})


def planned_start(replica: ReplicaConfig, log: StartupLog) -> StartUp:
    """A planned replica as it starts on the GPU of a log: what the plan leaves open is as the log says.

    Args:
        replica: of a plan.
        log: of its start.

    Returns:
        As `start_up` does.

    Raises:
        As `start_up` does; InputError for a release that is not modelled.
    """
    changes: dict[str, Any] = {"sku": _with_seen_bytes(replica.sku, log.gpu_total_bytes)}
    if replica.engine_version is None and replica.engine.id == log.engine:
        changes["engine_version"] = log.version
    if replica.max_request_tokens is None and log.max_model_len is not None:
        changes["max_request_tokens"] = min(log.max_model_len, replica.llm.max_context_tokens)
    return start_up(rebuilt(replica, **changes), propose=False)


def other_settings(replica: ReplicaConfig, log: StartupLog) -> tuple[str, ...]:
    """In what a log's server is another than a planned one, of what the log states: a line each."""
    split, seen = replica.parallelism, replica.sku.seen_bytes
    of_gpu = (f"{seen / GIB:.1f} GiB", f"{(log.gpu_total_bytes or seen) / GIB:.1f} GiB")
    is_alike = abs((log.gpu_total_bytes or seen) / seen - 1.0) <= ALIKE_MEMORY
    dtype = log.kv_cache_dtype
    cache = None if dtype in (None, "auto") else "16 bit" if "16" in str(dtype) else "fewer bits"
    is_split_alike = log.tp in (split.tp, split.stage_gpus)  # SGLang counts attention ranks in
    stated: tuple[tuple[str, Any, Any], ...] = (
        ("engine", replica.engine.id, log.engine),
        ("memory of a GPU", of_gpu[0], of_gpu[0] if is_alike else of_gpu[1]),
        ("TP", split.tp, split.tp if is_split_alike else log.tp),
        ("PP", split.pp, log.pp),
        ("running requests of a rank", replica.max_running_requests // split.dp, log.max_num_seqs),
        ("tokens of a step of a rank", replica.max_batched_tokens // split.dp, log.max_num_batched_tokens),
        ("memory share", memory_share(replica), log.memory_fraction),
        ("weights", _width(replica.precision.weights), "16 bit" if log.quantization == "none" else None),
        ("KV cache", _width(replica.precision.kv_cache), cache),
    )
    return tuple(
        f"{name}: {planned} here, {said} in the log"
        for name, planned, said in stated
        if said is not None and said != planned
    )


def _width(dtype: Dtype) -> str:
    """True if a format has 16 bits, which every log can be held against."""
    return "16 bit" if dtype in (Dtype.BF16, Dtype.FP16) else "fewer bits"


def _pairs(found: StartUp, log: StartupLog) -> list[tuple[str, float, float]]:
    """Predicted and logged size of every part that a log states [bytes]."""
    peak = found.activation_bytes + found.sampling_bytes
    pairs: list[tuple[str, float, float | None]] = [
        ("weights", found.weights_bytes, log.weights_bytes),
        ("activations and sampling", peak, log.activation_bytes),
        ("outside PyTorch", found.outside_bytes, log.outside_bytes),
        ("weights and outside PyTorch", found.weights_bytes + found.outside_bytes, log.consumed_bytes),
        ("graphs", found.graph_bytes, log.graph_bytes),
        ("graphs, as estimated before", found.graph_bytes, log.graph_estimate_bytes),
        ("KV cache", found.kv_bytes, log.kv_bytes),
    ]
    return [(name, predicted, float(said)) for name, predicted, said in pairs if said is not None]


def log_record(found: StartUp, log: StartupLog) -> dict[str, Any]:
    """Predicted and measured as data: sizes in bytes, tokens, and how the start ended."""
    parts = {name: {"predicted_bytes": predicted, "log_bytes": said} for name, predicted, said in _pairs(found, log)}
    return {"parts": parts, "kv_tokens": log.kv_tokens, "outcome": log.outcome.value, "reason": log.reason}


def log_headline(found: StartUp, log: StartupLog) -> str:
    """How large the cache is, and by how much larger or smaller than predicted; or that the log does not say."""
    what = f"{found.replica.llm.id} on {found.replica.label}"
    if log.kv_bytes is None:
        return f"The log does not say how much memory the KV cache of {what} got{f': {log.reason}' * bool(log.reason)}."
    less = found.kv_bytes - log.kv_bytes
    apart = f"{abs(less) / GIB:.2f} GiB {'less' if less > 0.0 else 'more'} than predicted"
    share = f" ({abs(less) / found.kv_bytes:.1%})" if found.kv_bytes > 0.0 else ""
    return f"The KV cache of {what} got {log.kv_bytes / GIB:.2f} GiB per GPU, {apart}{share}."


def log_table(found: StartUp, log: StartupLog) -> Table:
    """Predicted beside measured, part by part; parts that the log does not state are left out."""
    rows = [
        (name, f"{predicted / GIB:.2f}", f"{said / GIB:.2f}", _difference(predicted, said))
        for name, predicted, said in _pairs(found, log)
    ]
    if log.kv_tokens is not None:
        rows.append(
            ("KV tokens", f"{found.kv_tokens:,}", f"{log.kv_tokens:,}", _difference(found.kv_tokens, log.kv_tokens))
        )
    if log.outcome is not StartupOutcome.UNKNOWN:
        rows.append(
            ("starts", "yes" if found.starts else "no", "yes" if log.outcome is StartupOutcome.STARTS else "no", "")
        )
    return Table("Predicted and measured, GiB of one GPU", ("part", "predicted", "log", "difference"), tuple(rows))


def _difference(predicted: float, said: float) -> str:
    return f"{predicted / said - 1.0:+.1%}" if said else ""


def measured_more_bytes(found: StartUp, log: StartupLog) -> float:
    """Memory of one GPU beyond what is predicted, with which the cache is as large as measured [bytes].

    Args:
        found: the server as predicted.
        log: of its start.

    Returns:
        What plans shall reckon with (`EngineCosts.memory_more_bytes`): what they do already, and predicted less
        measured KV cache, over the share of memory that is the cache's where the engine divides what it finds free
        [bytes].

    Raises:
        InputError: the log does not say how large the cache is.

    >>> from calibration import memory_of_log, read_startup_log
    >>> log = read_startup_log("INFO 08-01 10:00:40 [gpu_worker.py:2] Available KV cache memory: 40.00 GiB")
    >>> found = memory_of_log(log, "llama-3.1-8b", "h100-sxm")
    >>> round(found.kv_bytes - measured_more_bytes(found, log)) == 40 * 2**30
    True
    """
    if log.kv_bytes is None:
        bound = "does not say how much memory the KV cache got"
        raise InputError("log", log.engine, bound, "give the log of a whole start, with the line of the KV cache")
    replica = found.replica
    divides = replica.memory_rule.memory_fraction_of is not MemoryShare.ALL
    known = replica.engine.costs_on(replica.sku).memory_more_bytes
    return known + (_room_bytes(found) - log.kv_bytes) / (found.share if divides else 1.0)


def with_measured_memory(costs: EngineCosts, found: StartUp, log: StartupLog) -> EngineCosts:
    """Engine costs with which that server's cache is predicted as large as its log says.

    Args:
        costs: of its engine.
        found: the server as predicted.
        log: of its start.

    Returns:
        The costs with other `memory_more_bytes`, and where they come from.

    Raises:
        InputError: the log does not say how large the cache is.
    """
    server = f"{found.replica.llm.id} @ {found.replica.sku.id}"
    source = f"{costs.source.partition(MEMORY_SOURCE)[0]}{MEMORY_SOURCE}{server}"
    return costs.model_copy(update={"memory_more_bytes": measured_more_bytes(found, log), "source": source})


def _room_bytes(found: StartUp) -> float:
    """Room for the cache, below 0 too, where the prediction says no more than that there is none [bytes]."""
    if found.kv_bytes > 0.0:
        return found.kv_bytes
    more = found.seen_bytes
    larger = rebuilt(found.replica, sku=_with_seen_bytes(found.replica.sku, found.seen_bytes + more))
    return start_up(larger, propose=False).kv_bytes - found.share * more
