"""Where a plan serves weights in a format that another one of the same model is predicted to be faster than.

Answers: is a narrower format slower than a wider one that would fit too, and is the checkpoint's own format left aside?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hardware_db import Dtype
from planner.core import rebuilt
from planner.engine import ReplicaConfig, memory_footprint, step_time
from planner.fleet.types import PlannedDeployment
from planner.llm import Precision, converted_from, format_words, main_format, published_as, weight_bytes
from planner.serving import Role
from planner.workload import Workload

NOTICEABLE = 0.02
"""Share of a step's time below which a difference is not worth a word: a choice, about a third of what held-out kernels
differ from their fits by."""
WIDER = (Precision(weights=Dtype.FP8, activations=Dtype.FP8), Precision())
"""Formats that any checkpoint can be had in, besides its own."""


def format_warnings(deployments: Sequence[PlannedDeployment]) -> tuple[str, ...]:
    """Notes on the number formats of a plan's pools, one line each.

    Args:
        deployments: of the plan.

    Returns:
        A line for every pool whose weights take fewer bytes than another format that would be faster there, and for
        every pool that serves a checkpoint in more bytes than it is stored in and is slower for it.
    """
    lines = [
        line
        for planned in deployments
        for pool, performance in zip(planned.surviving.pools, planned.predicted.pools, strict=True)
        for line in _pool_warnings(pool.config, pool.role, planned.workload, performance.mean_running)
    ]
    return tuple(dict.fromkeys(lines))


def format_notes(deployments: Sequence[PlannedDeployment]) -> tuple[str, ...]:
    """Which checkpoint each pool serves, where it is not the model's own, one line each.

    Args:
        deployments: of the plan.

    Returns:
        A line for every model and format: the repository that is published in it, or that the engine makes it of the
        16-bit checkpoint on loading, or that no checkpoint of it is known.
    """
    configs = [pool.config for planned in deployments for pool in planned.surviving.pools]
    return tuple(dict.fromkeys(note for config in configs if (note := _format_note(config))))


def weights_word(config: ReplicaConfig) -> str:
    """The number format of most weights of a replica in a word, e.g. ``FP8 BLOCK``."""
    return main_format(config.llm, config.precision)[0].value.upper().replace("_", " ")


def _format_note(config: ReplicaConfig) -> str:
    llm, precision = config.llm, config.precision
    published = published_as(llm, precision)
    if published is not None and published.own:
        return ""
    words = format_words(llm, precision)
    if published is not None:
        return f"{llm.id} in {words} is {published.repository}; what that costs in accuracy is not judged"
    if (made_of := converted_from(llm, precision)) is not None:
        return f"{llm.id} in {words} is made of {made_of.repository} by the engine when it loads it"
    return f"{llm.id} in {words}: no checkpoint of it is known, it has to be made"


def _pool_warnings(config: ReplicaConfig, role: Role, workload: Workload, running: float) -> Iterator[str]:
    chosen, native = config.precision, config.llm.native_precision
    others = dict.fromkeys(_with_cache_of(chosen, other) for other in (native, *WIDER))
    sizes = {precision: weight_bytes(config.llm, precision) for precision in (chosen, *others)}
    took_s = _step_s(config, role, workload, running)
    for other in others:
        if other == chosen or not memory_footprint(changed := rebuilt(config, precision=other)).fits:
            continue
        narrower = sizes[other] < sizes[chosen]
        other_s = _step_s(changed, role, workload, running)
        if other_s >= (1.0 - NOTICEABLE) * took_s or (narrower and other != _with_cache_of(chosen, native)):
            continue
        step = "prefill" if role is Role.PREFILL else "decode"
        times = f"a {step} step is predicted to take {took_s * 1e3:.3g} ms, not {other_s * 1e3:.3g} ms"
        if narrower:
            yield f"{config.label}: {_said(chosen)} are wider than {_said(other)} of the checkpoint and slower: {times}"
        else:
            yield f"{config.label}: {_said(chosen)} are narrower than {_said(other)} and slower: {times}"


def _with_cache_of(chosen: Precision, other: Precision) -> Precision:
    """Other weights and activations, the same KV cache."""
    return other.model_copy(update={"kv_cache": chosen.kv_cache})


def _step_s(config: ReplicaConfig, role: Role, workload: Workload, running: float) -> float:
    """A step of the requests that run there on average, or of one chunk where there are only prompts [s]."""
    lengths = workload.lengths
    if role is Role.PREFILL:
        tokens = min(round(lengths.mean_input), config.max_batched_tokens)
        return step_time(config, (), [(max(1, tokens), 0)]).total_s
    return step_time(config, [max(1, round(lengths.mean_decode_context))] * max(1, round(running))).total_s


def _said(precision: Precision) -> str:
    """E.g. ``bf16 weights (experts mxfp4)``."""
    parts = ", ".join(f"{part.part.value} {part.weights.value}" for part in precision.parts)
    return f"{precision.weights.value} weights" + (f" ({parts})" if parts else "")
