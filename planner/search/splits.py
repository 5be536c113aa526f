"""Which ways to split a replica are worth a look, where the search space does not name them.

A degree that is not given follows from the model, the GPU and the number format; given ones are taken as they are:

- Tensor parallelism: powers of two up to a server of eight GPUs and no further than heads can be split.
- Pipeline parallelism: only where the weights do not fit in one such group; then as many stages as they need, and
  twice that, up to `MOST_STAGES`.
- Attention data parallelism: for mixtures of experts alone, since on a dense model its ranks are replicas under
  another name. One stage; `tp * dp` powers of two up to `WIDEST_SERVERS` servers, or up to the scale-up domain where
  that is wider, with whole experts for every GPU.
- Expert parallelism: none or over all GPUs of the stage, which is what every engine can be started with; powers of two
  between where the engine is known to take them.

What no start of an engine is verified for (`NOT_STARTED`) is looked at only where it is asked for.

Source: deployments that the engines document: vLLM, "Expert Parallel Deployment" (docs.vllm.ai, serving); SGLang,
"Expert Parallelism" and "DP attention" (docs.sglang.io, advanced_features); DeepSeek-AI 2024, arXiv:2412.19437,
sec. 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hardware_db import EngineFeature, EngineProfile, GpuSku
from planner.llm import LlmSpec, Precision, weight_bytes
from planner.roofline import fast_domain_gpus
from planner.search.types import SearchSpace

WIDEST_TP = 8
"""Largest tensor-parallel degree that is looked at unasked: a server of eight GPUs. A choice."""
MOST_STAGES = 8
"""Pipeline stages that are looked at unasked: eight servers for one replica. A choice."""
WIDEST_SERVERS = 4
"""Servers of eight GPUs that the ranks of one stage are spread over unasked. A choice."""
NOT_STARTED = {"tensorrt-llm": frozenset({EngineFeature.RANKS})}
"""Features of engines that nothing here starts: no flag for them is verified (`presets/engine_flags.csv`, held to it by
a test)."""
WEIGHTS_SHARE = 0.8
"""Share of HBM that weights may take before another pipeline stage is looked at; the rest is KV cache. A choice."""


class Split(NamedTuple):
    """Degrees of one replica, not yet checked against heads and domains."""

    tp: int
    pp: int
    dp: int
    ep: int


def splits(
    search: SearchSpace, llm: LlmSpec, precision: Precision, sku: GpuSku, engine: EngineProfile
) -> Iterator[Split]:
    """Every split to look at, those that make no replica among them.

    Args:
        search: degrees that are given; an empty list follows from the rest.
        llm: the model.
        precision: its number formats.
        sku: the GPU.
        engine: it is started with.

    Yields:
        Splits, small degrees first.
    """
    tps = sorted(set(search.tp)) or _powers_of_two(min(WIDEST_TP, fast_domain_gpus(sku)))
    pps = sorted(set(search.pp)) or _stages(llm, precision, sku, max(tps))
    experts = llm.routed_experts
    has_ranks = EngineFeature.RANKS not in NOT_STARTED.get(engine.id, ())
    between = any(row.supported and row.feature is EngineFeature.SOME_EXPERT_GROUPS for row in engine.support)
    for tp in tps:
        for pp in pps:
            for dp in sorted(set(search.dp)) or (_ranks(experts, sku, tp, pp) if has_ranks else [1]):
                for ep in sorted(set(search.ep)) or _expert_groups(experts, tp * dp, between):
                    yield Split(tp, pp, dp, ep)


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def _stages(llm: LlmSpec, precision: Precision, sku: GpuSku, tp: int) -> list[int]:
    """Pipeline stages that the weights need on the widest tensor-parallel group."""
    room = WEIGHTS_SHARE * sku.hbm_capacity_bytes.value * tp
    needed = 1
    while needed < llm.num_layers and weight_bytes(llm, precision) > needed * room:
        needed *= 2
    stages = [1] if needed == 1 else [1, needed, 2 * needed]
    return [count for count in stages if count <= MOST_STAGES]


def _ranks(experts: int, sku: GpuSku, tp: int, pp: int) -> list[int]:
    """Attention ranks of a stage."""
    if not experts or pp > 1:
        return [1]
    widest = max(WIDEST_SERVERS * WIDEST_TP, fast_domain_gpus(sku))
    return [1, *(dp for dp in _powers_of_two(widest // tp) if dp > 1 and experts % (tp * dp) == 0)]


def _expert_groups(experts: int, gpus: int, between: bool) -> list[int]:
    """Expert-parallel degrees of a stage of so many GPUs."""
    if not experts or experts % gpus:
        return [1]
    return [ep for ep in _powers_of_two(gpus) if gpus % ep == 0] if between else sorted({1, gpus})
