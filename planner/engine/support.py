"""Support of engines for models: refused by name where it is missing, noted where nobody knows.

The rows are data with their sources (``hardware_db/engines/support.csv``): engine, feature, the families or kinds of
layers they hold for. A row that says no refuses; without a row that says yes the feature is assumed and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hardware_db import EngineFeature, EngineProfile, EngineSupport, GpuSku
from planner.core import InputError
from planner.llm import LlmSpec
from planner.roofline import Parallelism


def layer_kinds(llm: LlmSpec) -> frozenset[str]:
    """The kinds of attention and feed-forward of a model, as rows of support name them.

    Args:
        llm: model.

    Returns:
        Names of their records, e.g. ``linear_attention``.

    >>> from planner.llm import load_llm
    >>> sorted(layer_kinds(load_llm("qwen3-next-80b-a3b-thinking")))
    ['grouped_query_attention', 'linear_attention', 'moe_feed_forward']
    """
    blocks = [block for group in llm.layers for block in (group.attention, group.feed_forward) if block is not None]
    return frozenset(re.sub(r"(?<!^)(?=[A-Z])", "_", type(block).__name__).lower() for block in blocks)


def split_features(llm: LlmSpec, split: Parallelism) -> tuple[EngineFeature, ...]:
    """Features an engine needs to serve a model on such a split.

    Args:
        llm: model.
        split: how a replica is split.

    Returns:
        Features, `EngineFeature.SERVING` first.
    """
    has_experts = llm.routed_experts > 0
    asked = {
        EngineFeature.SERVING: True,
        EngineFeature.PIPELINE: split.pp > 1,
        EngineFeature.RANKS: split.dp > 1,
        EngineFeature.DECODE_CONTEXT: split.dcp > 1,
        EngineFeature.PROMPT_CONTEXT: split.pcp > 1,
        EngineFeature.EXPERT_GROUPS: has_experts and split.ep > 1,
        EngineFeature.SOME_EXPERT_GROUPS: has_experts and 1 < split.ep < split.stage_gpus,
    }
    return tuple(feature for feature, is_asked in asked.items() if is_asked)


def require_supported(engine: EngineProfile, llm: LlmSpec, sku: GpuSku, features: Iterable[EngineFeature]) -> None:
    """Refuse what an engine is known not to do for a model.

    Args:
        engine: its profile.
        llm: model.
        sku: GPU.
        features: used together.

    Raises:
        InputError: a row of its support says no; the message has its reason.
    """
    used = frozenset(features)
    kinds = layer_kinds(llm)
    for row in engine.support:
        if not row.supported and _holds(row, llm, kinds, sku, used):
            fix = (
                "choose another engine or GPU" if row.feature is EngineFeature.SERVING else f"do without {row.feature}"
            )
            raise InputError("replica.engine", engine.id, f"{row.feature} of {llm.id}: {row.reason}", fix)


def support_notes(
    engine: EngineProfile, llm: LlmSpec, sku: GpuSku, features: Iterable[EngineFeature]
) -> tuple[str, ...]:
    """Assumptions about an engine: features that no row says it has for this family.

    Args:
        engine: its profile; without any rows nothing is said.
        llm: model; one of no family (made by hand) has no notes.
        sku: GPU.
        features: used together.

    Returns:
        One line for each.
    """
    used, kinds = frozenset(features), layer_kinds(llm)
    if not engine.support or not llm.family:
        return ()
    known = {row.feature for row in engine.support if row.supported and _holds(row, llm, kinds, sku, used)}
    return tuple(
        f"{engine.name}: no source here says whether it does {feature} for {llm.family} models: assumed"
        for feature in features
        if feature not in known
    )


def _holds(
    row: EngineSupport, llm: LlmSpec, kinds: frozenset[str], sku: GpuSku, used: frozenset[EngineFeature]
) -> bool:
    """True if a row is about this model, GPU and use."""
    return (
        row.feature in used
        and used.issuperset(row.beside)
        and (not row.families or llm.family in row.families)
        and (not row.kinds or not kinds.isdisjoint(row.kinds))
        and (not row.architectures or sku.architecture.startswith(row.architectures))
    )
