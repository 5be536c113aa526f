"""The grid that is searched where the search space does not name it: splits of a replica, and limits of its engine.

What is given is taken as it is. A degree that is not given follows from the model, the GPU and the number format:

- Tensor parallelism: powers of two up to a server of eight GPUs and no further than heads can be split.
- Pipeline parallelism: only where the weights do not fit in one such group; then as many stages as they need, and
  twice that, up to `MOST_STAGES`.
- Attention data parallelism: for mixtures of experts alone, since on a dense model its ranks are replicas under
  another name. One stage; `tp * dp` powers of two up to the scale-up domain, or up to the number of experts where that
  is more.
- Context parallelism, of decodes and of prompts: none; of prompts in prefill pools alone.
- Expert parallelism: none or over all GPUs of the stage, which is what every engine can be started with; powers of two
  between where the engine is known to take them. Where their tokens leave the server the engine balances them, with at
  least `BALANCING_COPIES` copies, as many as make every GPU hold as many experts.

What no start of an engine is verified for (`NOT_STARTED`) is looked at only where it is asked for. Limits are those of
a whole replica; engines with attention ranks are told a rank's share. They follow from the traffic, the split and the
memory:

- Chunk budgets: powers of two of tokens a rank, from `LEAST_BUDGET` to the longest prompt, at least to `USUAL_BUDGET`,
  which every engine has as a default or more, and at most to `MOST_BUDGET`.
- Batch limits: powers of two, from `LEAST_RUNNING` sequences of the replica to the first that the KV cache cannot hold
  of mean requests: larger ones are the same pool. At most `MOST_RUNNING` a rank.

Source: deployments that the engines document: vLLM, "Expert Parallel Deployment" (docs.vllm.ai, serving); SGLang,
"Expert Parallelism" and "DP attention" (docs.sglang.io, advanced_features); DeepSeek-AI 2024, arXiv:2412.19437,
sec. 3.4.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from hardware_db import EngineFeature, EngineProfile, GpuSku
from planner.engine import (
    LEAST_BATCHED_TOKENS,
    MOST_BATCHED_TOKENS,
    MOST_RUNNING_REQUESTS,
    ReplicaConfig,
    memory_footprint,
)
from planner.llm import LlmSpec, Precision, weight_bytes
from planner.roofline import fast_domain_gpus
from planner.search.types import Demand, SearchSpace
from planner.serving import Role
from planner.workload import Workload

WIDEST_TP = 8
"""Largest tensor-parallel degree that is looked at unasked: a server of eight GPUs. A choice."""
MOST_STAGES = 8
"""Pipeline stages that are looked at unasked: eight servers for one replica. A choice."""
BALANCING_COPIES = 32
"""Fewest copies of experts to balance with: those of DeepSeek's prefill and decode units (github.com/deepseek-ai/
open-infra-index, day 6) and of published deployments of SGLang and TensorRT-LLM."""
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
    redundant_experts: int = 0
    dcp: int = 1
    pcp: int = 1


def splits(
    search: SearchSpace, llm: LlmSpec, precision: Precision, sku: GpuSku, engine: EngineProfile, role: Role = Role.MIXED
) -> Iterator[Split]:
    """Every split to look at, those that make no replica among them.

    Args:
        search: degrees that are given; an empty list follows from the rest.
        llm: the model.
        precision: its number formats.
        sku: the GPU.
        engine: it is started with.
        role: of the pool.

    Yields:
        Splits, small degrees first.
    """
    tps = sorted(set(search.tp)) or _powers_of_two(min(WIDEST_TP, fast_domain_gpus(sku)))
    pps = sorted(set(search.pp)) or _stages(llm, precision, sku, max(tps))
    experts = llm.routed_experts
    has_ranks = EngineFeature.RANKS not in NOT_STARTED.get(engine.id, ())
    pcps = sorted(set(search.pcp)) if search.pcp and role is Role.PREFILL else [1]
    between = any(row.supported and row.feature is EngineFeature.SOME_EXPERT_GROUPS for row in engine.support)
    for tp in tps:
        for pp in pps:
            for dp in sorted(set(search.dp)) or (_ranks(experts, sku, tp, pp) if has_ranks else [1]):
                for dcp, pcp in itertools.product(sorted(set(search.dcp)) or [1], pcps):
                    for ep in sorted(set(search.ep)) or _expert_groups(experts, sku, tp, dp * pcp, between):
                        yield Split(tp, pp, dp, ep, _copies(experts, sku, dp, ep), dcp, pcp)


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
    widest = max(experts, fast_domain_gpus(sku))
    return [1, *(dp for dp in _powers_of_two(widest // tp) if dp > 1 and _divides(experts, sku, tp * dp))]


def _divides(experts: int, sku: GpuSku, gpus: int) -> bool:
    """True if so many GPUs hold as many experts each, with copies where the engine balances."""
    return experts % gpus == 0 or sku.node.gpus < gpus <= experts


def _copies(experts: int, sku: GpuSku, dp: int, ep: int) -> int:
    """Copies of experts that balance a stage whose tokens leave the server."""
    if dp == 1 or ep <= sku.node.gpus:
        return 0
    return BALANCING_COPIES + -(experts + BALANCING_COPIES) % ep


def _expert_groups(experts: int, sku: GpuSku, tp: int, dp: int, between: bool) -> list[int]:
    """Expert-parallel degrees of a stage of so many GPUs; all-to-alls are over all of them (``ep_size`` of SGLang's
    server_args.py with ``moe_a2a_backend``).
    """
    gpus = tp * dp
    if not experts or not _divides(experts, sku, gpus):
        return [1]
    some = between and (dp == 1 or gpus <= sku.node.gpus)
    return [ep for ep in _powers_of_two(gpus) if gpus % ep == 0] if some else sorted({1, gpus})


# --- limits of an engine ----------------------------------------------------------------------------------------------

LEAST_BUDGET, USUAL_BUDGET, MOST_BUDGET = 512, 8192, 65_536
"""Chunk budgets of a rank that are looked at unasked [tokens]: a choice. Sarathi-Serve's smallest (OSDI 2024), vLLM's
default for serving (vllm/engine/arg_utils.py), and the largest that engines are started with (`planner.engine`)."""
LEAST_RUNNING, MOST_RUNNING = 32, 4096
"""Batch limits that are looked at unasked, of a replica and of a rank. A choice: below the first a replica serves few
users, and the second is the largest that engines are started with (`planner.engine`)."""
SHARED_FACTOR = 4
"""Times as many sequences that are looked at where a prefix cache lets them share memory. A choice."""


def may_share_prefixes(workload: Workload) -> bool:
    """True if a prefix cache has something to find.

    Args:
        workload: the requests.

    Returns:
        True where some class has prefixes, sessions or a share that is known to be cached.
    """
    kinds = workload.classes
    return any(bool(kind.prefixes or kind.sessions or kind.prefix_hit_rate or kind.prefix_reuse) for kind in kinds)


def chunk_budgets(search: SearchSpace, demand: Demand, ranks: int) -> tuple[int, ...]:
    """Chunk budgets of a replica.

    Args:
        search: budgets that are given; an empty list follows from the rest.
        demand: its longest prompt decides.
        ranks: attention ranks of a replica.

    Returns:
        Tokens of a step, rising; those out of the range of `ReplicaConfig` left out [tokens].
    """
    if search.max_batched_tokens:
        given = set(search.max_batched_tokens)
        return tuple(sorted(n for n in given if LEAST_BATCHED_TOKENS <= n <= MOST_BATCHED_TOKENS))
    most = largest_budget(demand.workload)
    return tuple(ranks * budget for budget in _doublings(LEAST_BUDGET, most))


def largest_budget(workload: Workload) -> int:
    """The largest chunk budget that is looked at unasked, of a rank.

    Args:
        workload: its longest prompt decides.

    Returns:
        Tokens of a step [tokens].
    """
    longest = int(workload.lengths.inputs.max())
    return min(max(_power_of_two(longest), USUAL_BUDGET), MOST_BUDGET)


def batch_limits(search: SearchSpace, demand: Demand, base: ReplicaConfig, role: Role) -> tuple[int, ...]:
    """Batch limits of a replica.

    Args:
        search: limits that are given; an empty list follows from the rest.
        demand: its mean request decides.
        base: any configuration with the same memory.
        role: of the pool.

    Returns:
        Sequences at once, rising; those out of the range of `ReplicaConfig` left out.
    """
    if search.max_running_requests:
        return tuple(sorted(n for n in set(search.max_running_requests) if n <= MOST_RUNNING_REQUESTS))
    lengths, ranks = demand.workload.lengths, base.parallelism.dp
    held = lengths.mean_input + (0.0 if role is Role.PREFILL else lengths.mean_output / 2.0)
    room = memory_footprint(base).kv_capacity_tokens / max(held, 1.0)
    if base.schedule.prefix_cache and may_share_prefixes(demand.workload):
        room *= SHARED_FACTOR
    most = min(_power_of_two(max(1, math.ceil(room / ranks))), MOST_RUNNING)
    least = max(1, _power_of_two(-(-LEAST_RUNNING // ranks)))
    return tuple(ranks * limit for limit in _doublings(least, max(most, least)))


def _power_of_two(least: int) -> int:
    """The smallest one that is not below a number.

    >>> _power_of_two(2000), _power_of_two(2048)
    (2048, 2048)
    """
    return 1 << (max(least, 1) - 1).bit_length()


def _doublings(least: int, most: int) -> list[int]:
    return [least << power for power in range((most // least).bit_length())]
