"""The memory of one server as it starts, for people: by names, and with the limits that its engine starts with.

`memory` answers for the Python API, the command and the app; `memory_tables` and `formats_table` show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardware_db import Dtype, GpuSku, HardwareDb, load_hardware
from planner.core import GIB, InputError, PlannerError, Table, UnknownNameError, rebuilt
from planner.engine.replica import ReplicaConfig
from planner.engine.start_up import StartUp, default_limits, start_up, start_up_probability
from planner.llm import LlmSpec, Precision, checkpoints_of, load_llm, main_format
from planner.roofline import Parallelism

ENGINE_WORDS: Mapping[str, tuple[str, str]] = {
    "vllm": ("GPU KV cache size", "Maximum concurrency for {tokens:,} tokens per request"),
    "sglang": ("max_total_num_tokens", "requests of {tokens:,} tokens at once"),
    "tensorrt-llm": ("max tokens in paged KV cache", "requests of {tokens:,} tokens at once"),
}
"""Words of engines' logs for the tokens of the cache, and for the requests of the longest length that fit at once."""


def memory(
    llm: str | LlmSpec,
    sku: str | GpuSku,
    *,
    engine: str = "vllm",
    engine_version: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    dcp: int = 1,
    precision: str | Precision | None = None,
    kv_cache: str | None = None,
    memory_fraction: float | None = None,
    max_request_tokens: int | None = None,
    max_running_requests: int | None = None,
    max_batched_tokens: int | None = None,
    eager: bool = False,
    propose: bool = True,
    hardware: HardwareDb | None = None,
) -> StartUp:
    """The memory of one GPU of a server as it starts, and the tokens of its KV cache; or why it does not start.

    Args:
        llm: a model, the name of a packaged one, or the path of a config.json.
        sku: a GPU, or its id.
        engine: id of an engine profile.
        engine_version: its release; None: the newest that is known.
        tp: GPUs that layers are split over.
        pp: pipeline stages.
        dp: attention ranks.
        ep: groups of experts.
        dcp: GPUs of tp that share out the tokens of the cache.
        precision: number formats, or the one of the weights; None: those of the model's own checkpoint.
        kv_cache: number format of the cache; None: that of the checkpoint.
        memory_fraction: as the engine reads it; None: its default.
        max_request_tokens: longest request [tokens]; None: the model's whole context, as engines take it.
        max_running_requests: batch limit of the server; None: the engine's default on this GPU.
        max_batched_tokens: chunk budget [tokens]; None: likewise.
        eager: no captured graphs.
        propose: look for changes that make it start.
        hardware: records to look names up in; None: the packaged ones.

    Returns:
        `weights_bytes`, `activation_bytes`, `sampling_bytes`, `outside_bytes`, `graph_bytes` and `kv_bytes` of one GPU
        [bytes], `kv_tokens`, `starts`, `reason` and `fixes`.

    Raises:
        UnknownNameError: no such model, GPU or engine.
        InputError: a value out of range, a release that is not modelled.
        UnsupportedFeatureError: what is not modelled, by name.

    >>> found = memory("llama-3.3-70b-instruct", "h100-sxm", tp=2, precision="fp8", max_request_tokens=16_000)
    >>> found.starts, round(found.weights_bytes / 2**30, 1)
    (True, 33.9)
    """
    records = hardware or load_hardware()
    if engine not in records.engines:
        raise UnknownNameError("engine", engine, records.engines)
    if isinstance(sku, str) and sku not in records.skus:
        raise UnknownNameError("sku", sku, records.skus)
    model = load_llm(llm) if isinstance(llm, str) else llm
    base = ReplicaConfig(
        llm=model,
        sku=records.skus[sku] if isinstance(sku, str) else sku,
        engine=records.engines[engine],
        engine_version=engine_version,
        precision=_precision(model, precision, kv_cache),
        parallelism=Parallelism(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp),
        memory_fraction=memory_fraction,
        max_request_tokens=max_request_tokens,
    )
    if max_request_tokens is not None and max_request_tokens > model.max_context_tokens:
        bound = f"longer than the {model.max_context_tokens:,} tokens of context of {model.id}"
        raise InputError("max_request_tokens", max_request_tokens, bound, "write less, or leave it out")
    if eager:
        base = rebuilt(base, own_schedule=base.schedule.model_copy(update={"captured_decodes": 0}))
    running, batched = default_limits(base, max_running_requests, max_batched_tokens, base.longest_tokens)
    return start_up(rebuilt(base, max_running_requests=running, max_batched_tokens=batched), propose)


def _precision(llm: LlmSpec, given: str | Precision | None, kv_cache: str | None) -> Precision:
    """Number formats of a server by those of its weights and cache."""
    found = _of_weights(llm, given)
    return found if kv_cache is None else rebuilt(found, kv_cache=_format("kv_cache", kv_cache))


def _format(field: str, name: str) -> Dtype:
    """A number format by its name."""
    formats = {dtype.value: dtype for dtype in Dtype}
    if name not in formats:
        raise UnknownNameError(field, name, formats)
    return formats[name]


def _of_weights(llm: LlmSpec, given: str | Precision | None) -> Precision:
    """Those of a checkpoint in this format of weights where there is one, else of weights and activations."""
    if given is None:
        return llm.native_precision
    if isinstance(given, Precision):
        return given
    weights = _format("precision", given)
    for checkpoint in checkpoints_of(llm):
        if main_format(llm, checkpoint.precision)[0] is weights:
            return checkpoint.precision
    return Precision.named(weights, llm.native_precision.kv_cache)


# --- shown ------------------------------------------------------------------------------------------------------------


def memory_headline(found: StartUp) -> str:
    """The answer in a sentence.

    Args:
        found: of `memory`.

    Returns:
        Whether it starts and what its cache holds, or why it does not start.
    """
    config = found.replica
    weights, cache = main_format(config.llm, config.precision)[0].value, config.precision.kv_cache.value
    what = f"{config.llm.id} in {weights}, KV cache in {cache}, on {config.words} in {config.engine.name}"
    if not found.starts:
        return f"{what} does not start: {found.reason}."
    words, _ = ENGINE_WORDS.get(config.engine.id, ENGINE_WORDS["vllm"])
    sure = start_up_probability(found)
    return (
        f"{what} starts ({sure:.1%} sure) with {found.kv_bytes / GIB:.2f} GiB of KV cache per GPU: "
        f"{words}: {found.kv_tokens:,} tokens, {found.concurrency:.2f} requests of {config.longest_tokens:,} at once."
    )


def memory_parts(found: StartUp) -> dict[str, float]:
    """Parts of the memory of one GPU, in the order of a bar.

    Args:
        found: of `memory`.

    Returns:
        Bytes by part; what nobody uses last [bytes].
    """
    parts = {
        "weights": found.weights_bytes,
        "activations": found.activation_bytes,
        "sampling": found.sampling_bytes,
        "outside PyTorch": found.outside_bytes,
        "graphs": found.graph_bytes,
        "driver": found.footprint.context_bytes,
        "KV cache": found.kv_bytes,
    }
    return {**parts, "not used": max(0.0, found.seen_bytes - sum(parts.values()))}


_MEANINGS = {
    "weights": "as the engine stores them, padding and tables of positions included",
    "activations": "at the peak of a step of {batched:,} tokens",
    "sampling": "of {running:,} rows of logits, above that peak",
    "outside PyTorch": "communication buffers, work spaces of libraries",
    "graphs": "captured for decode steps",
    "driver": "context of the process",
    "KV cache": "what the share of {share:g} leaves",
    "not used": "beyond the share",
}
BAR_CHARACTERS = 40
"""Characters of the bar of a whole GPU."""


def memory_tables(found: StartUp, at_tokens: int | None = None) -> tuple[Table, ...]:
    """Memory of one GPU in parts, and what the cache holds.

    Args:
        found: of `memory`.
        at_tokens: a length at which the largest batch is asked for [tokens]; None: a quarter of the longest.

    Returns:
        Two tables.
    """
    config = found.replica
    facts = {"batched": config.max_batched_tokens, "running": config.max_running_requests, "share": found.share}
    seen = found.seen_bytes
    rows = tuple(
        (
            name,
            f"{size / GIB:.2f}",
            f"{size / seen:.1%}",
            "#" * round(BAR_CHARACTERS * size / seen),
            _MEANINGS[name].format(**facts),
        )
        for name, size in memory_parts(found).items()
    )
    of_gpu = Table(
        f"Memory of one GPU, {seen / GIB:.2f} GiB as the driver reports it",
        ("part", "GiB", "share", "", "of what"),
        rows,
    )
    words, many = ENGINE_WORDS.get(config.engine.id, ENGINE_WORDS["vllm"])
    length = at_tokens or max(1, config.longest_tokens // 4)
    cache = (
        (words, f"{found.kv_tokens:,} tokens"),
        (many.format(tokens=config.longest_tokens), f"{found.concurrency:.2f}x"),
        ("longest request that fits", f"{found.longest_tokens:,} tokens"),
        (f"largest batch of requests of {length:,} tokens", f"{found.batch_of(length):,}"),
        ("KV cache of one token on one GPU", f"{found.footprint.kv_bytes_per_token / 1024:.1f} KiB"),
        ("probability that it starts", f"{start_up_probability(found):.1%}"),
    )
    return of_gpu, Table("KV cache of the server", ("what", "value"), cache)


def memory_fixes(found: StartUp) -> tuple[str, ...]:
    """Changes of one setting that make a server start.

    Args:
        found: of `memory`.

    Returns:
        In words, the smallest first; none where it starts.
    """
    return tuple(fix.words for fix in found.fixes)


_SIZES = ("weights_bytes", "activation_bytes", "sampling_bytes", "outside_bytes", "graph_bytes")
"""Sizes of a footprint that a record has, in its order."""


def memory_record(found: StartUp) -> dict[str, Any]:
    """The same as data.

    Args:
        found: of `memory`.

    Returns:
        Sizes in bytes, tokens, and every limit it starts with.
    """
    config = found.replica
    return {
        "llm": config.llm.id,
        "sku": config.sku.id,
        "engine": config.engine.id,
        "engine_version": config.engine_version,
        "parallelism": config.parallelism.model_dump(),
        "precision": config.precision.model_dump(mode="json"),
        "memory_fraction": found.share,
        "max_request_tokens": config.longest_tokens,
        "max_running_requests": config.max_running_requests,
        "max_batched_tokens": config.max_batched_tokens,
        **{name: getattr(found, name) for name in ("seen_bytes", *_SIZES, "kv_bytes", "kv_tokens", "concurrency")},
        "longest_request_tokens": found.longest_tokens,
        "starts": found.starts,
        "start_probability": start_up_probability(found),
        "reason": found.reason,
        "fixes": [{"field": fix.field, "value": fix.value, "words": fix.words} for fix in found.fixes],
    }


def formats_of(llm: str | LlmSpec, sku: str, **settings: Any) -> tuple[tuple[str, StartUp | PlannerError], ...]:  # noqa: ANN401
    """The same server with every checkpoint there is of its model, or why there is none of it.

    Args:
        llm: as `memory` takes it.
        sku: likewise.
        settings: of `memory`, but for the precision.

    Returns:
        A pair for each checkpoint.
    """
    model = load_llm(llm) if isinstance(llm, str) else llm
    found: list[tuple[str, StartUp | PlannerError]] = []
    for checkpoint in checkpoints_of(model):
        weights = main_format(model, checkpoint.precision)[0].value
        name = f"{checkpoint.repository} ({weights}{', made on loading' if checkpoint.made_on_load else ''})"
        try:
            found.append((name, memory(model, sku, precision=checkpoint.precision, **settings)))
        except PlannerError as error:
            found.append((name, error))
    return tuple(found)


def formats_table(found: Sequence[tuple[str, StartUp | PlannerError]]) -> Table:
    """Checkpoints side by side.

    Args:
        found: of `formats_of`.

    Returns:
        A row for each.
    """
    rows: list[tuple[str, ...]] = []
    for name, one in found:
        if isinstance(one, PlannerError):
            rows.append((name, "", "", "", "", "", str(one)))
            continue
        sizes = (f"{one.weights_bytes / GIB:.2f}", f"{one.kv_bytes / GIB:.2f}", f"{one.kv_tokens:,}")
        rows.append((name, *sizes, f"{one.concurrency:.2f}", "yes" if one.starts else "no", one.reason))
    columns = (
        "checkpoint",
        "weights GiB",
        "KV cache GiB",
        "KV tokens",
        "longest requests at once",
        "starts",
        "why not",
    )
    return Table("Every format there is", columns, tuple(rows), "GiB: per GPU.")


def formats_record(found: Sequence[tuple[str, StartUp | PlannerError]]) -> list[dict[str, Any]]:
    """Checkpoints as data.

    Args:
        found: of `formats_of`.

    Returns:
        A record for each; `refused` says why there is nothing of it.
    """
    return [
        {"checkpoint": name, **({"refused": str(one)} if isinstance(one, PlannerError) else memory_record(one))}
        for name, one in found
    ]
