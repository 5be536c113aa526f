"""KV tiers: host memory, drives and shared stores as levels of the prefix cache behind the GPU.

Every block of a prompt is written to all tiers once it has been computed, and each tier keeps the blocks that were used
last (inclusive levels under least recently used; vLLM's OffloadingConnector "by offloading completed KV blocks ... as
they are produced", SGLang's HiCache under its default ``write_through``; TensorRT-LLM moves a block to its host cache
when the GPU drops it, so that its levels hold more together than is counted here). A prompt whose blocks are not on
the GPU loads them from the fastest tier that has them:

    load = latency + (tokens x KV bytes per token and GPU + state bytes) / bandwidth of one GPU,

all GPUs of its attention rank at the same time, of a pipeline the stage with most bytes. Loads of one rank follow one
another on its link and take nothing of the GPU's compute; writes go the other direction. A load ends before the
prompt's first step; where an engine loads layer by layer (`EngineProfile.layerwise_kv_tiers`) only max(load / layers,
load - step) of it comes before that (Patel et al., "Splitwise", ISCA 2024, section 4.3, the other direction). What
takes longer to load than to compute on an idle replica is computed again: engines leave that choice to who sets them
up.

Sources: vLLM, docs/features/kv_offloading_usage.md; SGLang, docs/advanced_features/hicache_design.md; facts of links
in ``hardware_db/kv_tiers.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hardware_db import KvTierKind, kv_tier_facts
from planner.core import HOURS_PER_MONTH
from planner.engine.cache_layout import draft_llm, kv_bytes_per_token_per_gpu, sequence_bytes_per_gpu
from planner.engine.footprint import memory_footprint, stage_memory
from planner.engine.replica import ReplicaConfig
from planner.engine.scheduler import KvTier

BYTES_PER_GB = 1e9
"""Decimal, as storage is sold."""


@dataclass(frozen=True)
class TierLoads:
    """One tier of a replica: the blocks it holds and the time of loads from it.

    Attributes:
        tier: as given.
        blocks: KV blocks that the replica's part of it holds.
        token_s: of each token loaded [s/token].
        fixed_s: of each load: latency, and what a sequence keeps beside its tokens [s].
        layers: of the model where they are loaded one by one, else 1.
    """

    tier: KvTier
    blocks: float
    token_s: float
    fixed_s: float
    layers: int = 1

    @property
    def is_shared(self) -> bool:
        """True if all replicas of a pool find what one of them wrote."""
        return self.tier.kind is KvTierKind.SHARED

    def load_s(self, tokens: float) -> float:
        """Time [s] on the link for so many tokens; 0 for none."""
        return self.fixed_s + tokens * self.token_s if tokens > 0.0 else 0.0

    def delay_s(self, tokens: float, step_s: float) -> float:
        """Part of a load that comes before the prompt's first step, which takes `step_s` [s]."""
        load_s = self.load_s(tokens)
        return load_s if self.layers == 1 else max(load_s / self.layers, load_s - step_s)


def tier_loads(replica: ReplicaConfig) -> tuple[TierLoads, ...]:
    """The tiers of a replica, from fast to slow; those of size 0 left out.

    Args:
        replica: the replica.

    Returns:
        What each holds [blocks] and how long its loads take [s].
    """
    return tuple(_loads(replica, tier) for tier in replica.schedule.kv_tiers if tier.size_bytes)


def _loads(replica: ReplicaConfig, tier: KvTier) -> TierLoads:
    stages, bandwidth = stage_memory(replica), read_bytes_per_s(replica, tier)
    holders = replica.parallelism.tp * replica.parallelism.pcp
    kept = holders * _bytes_per_token(replica) * replica.kv_block_tokens
    of_replica = tier.size_bytes * replica.parallelism.gpus / replica.sku.node.gpus
    latency_s = kv_tier_facts()[tier.kind].latency_s.value if tier.latency_s is None else tier.latency_s
    return TierLoads(
        tier=tier,
        blocks=float(math.floor(of_replica / kept)),
        token_s=max(stage.kv_bytes_per_token for stage in stages) / bandwidth,
        fixed_s=latency_s + max(stage.sequence_bytes for stage in stages) / bandwidth,
        layers=replica.llm.num_layers if tier.kind in replica.engine.layerwise_kv_tiers else 1,
    )


def _bytes_per_token(replica: ReplicaConfig) -> float:
    """KV bytes of one token on one GPU of every pipeline stage together, what drafts included."""
    kv, split = replica.precision.kv_cache, replica.parallelism
    held = filter(None, (replica.llm, draft_llm(replica)))
    return sum(kv_bytes_per_token_per_gpu(llm, kv, split.tp, dcp=split.dcp) for llm in held)


def read_bytes_per_s(replica: ReplicaConfig, tier: KvTier) -> float:
    """Bandwidth at which one GPU loads from a tier: as given, else from what is known of its link.

    Args:
        replica: on whose SKU.
        tier: the tier.

    Returns:
        Per GPU [bytes/s].
    """
    if tier.read_bytes_per_s is not None:
        return tier.read_bytes_per_s
    facts, node = kv_tier_facts()[tier.kind], replica.sku.node
    if facts.read_bytes_per_s is not None:
        return facts.read_bytes_per_s.value
    link = node.pcie_bytes_per_s if tier.kind is KvTierKind.HOST else node.nic_bytes_per_s_per_gpu
    return (facts.link_share.value if facts.link_share is not None else 1.0) * link.value


def prompt_s(replica: ReplicaConfig, tokens: float) -> float:
    """Time an idle replica takes for the steps of a prompt that nothing is known of.

    Args:
        replica: the replica.
        tokens: of the prompt, at least 1.

    Returns:
        Its steps, each of at most the chunk budget [s].
    """
    room = float(replica.step_tokens)
    seconds = 0.0
    for before in (place * room for place in range(math.ceil(tokens / room))):
        new = min(room, tokens - before)
        pieces = max(1.0, new / replica.max_batched_tokens)
        pairs, cached = new * before + new * (new + 1.0) / 2.0, pieces * before + (pieces + 1.0) * new / 2.0
        seconds += replica.timer.step_s(0.0, 0.0, new, pairs, cached, pieces)
    return seconds


def recompute_s(replica: ReplicaConfig, tokens: float) -> float:
    """Time that computing tokens takes an idle replica, beside a step that the rest of the prompt takes anyway.

    Args:
        replica: the replica.
        tokens: at the start of a prompt.

    Returns:
        The steps of a prompt of so many tokens and one, less that of one token [s].
    """
    return prompt_s(replica, tokens + 1.0) - prompt_s(replica, 1.0) if tokens > 0.0 else 0.0


def levels_worth_loading(replica: ReplicaConfig, loads: Sequence[TierLoads], tokens: Sequence[float]) -> int:
    """Tiers, from the fastest on, that a prompt loads from: those that take less time to load than to compute.

    Args:
        replica: the replica.
        loads: its tiers.
        tokens: of a prompt that each has and no faster one, as many entries.

    Returns:
        Tiers, those further on being left alone [-].
    """
    for count in range(len(tokens), 0, -1):
        load_s = math.fsum(loads[i].load_s(tokens[i]) for i in range(count))
        if load_s < recompute_s(replica, math.fsum(tokens[:count])):
            return count
    return 0


def kv_tiers_usd_per_gpu_hour(replica: ReplicaConfig) -> float:
    """Cost of the tiers of a server, for each of its GPUs.

    Args:
        replica: the replica.

    Returns:
        sum of GB x USD per GB and month / 730 h / GPUs of a server [USD/h].
    """
    usd_per_month = math.fsum(
        tier.size_bytes / BYTES_PER_GB * tier.usd_per_gb_month for tier in replica.schedule.kv_tiers
    )
    return usd_per_month / HOURS_PER_MONTH / replica.sku.node.gpus


def kv_tier_notes(replica: ReplicaConfig) -> tuple[str, ...]:
    """Assumptions about the tiers of a replica.

    Args:
        replica: the replica.

    Returns:
        A line for each tier; none without.
    """
    if not replica.schedule.kv_tiers:
        return ()
    footprint, block, notes = memory_footprint(replica), replica.kv_block_tokens, []
    for loads in tier_loads(replica):
        tier = loads.tier
        origin = "as given"
        if tier.read_bytes_per_s is None:
            facts = kv_tier_facts()[tier.kind]
            fact = facts.link_share or facts.read_bytes_per_s
            origin = f"{fact.kind.value}, {fact.source}" if fact is not None else "assumed"
        cost = (
            f"{tier.usd_per_gb_month:g} USD per GB and month"
            if tier.usd_per_gb_month
            else "no cost of its own: part of the server"
        )
        too_small = loads.blocks <= footprint.kv_blocks and not loads.is_shared
        notes.append(
            f"{replica.sku.id}: KV tier {tier.kind}: {tier.size_bytes / BYTES_PER_GB:,.0f} GB of each server, "
            f"{loads.blocks * block:,.0f} tokens for a replica, loaded at {read_bytes_per_s(replica, tier) / 1e9:.3g} "
            f"GB/s per GPU ({origin}); {cost}"
            + ("; holds no more than the GPUs, whose blocks it repeats" if too_small else "")
        )
    if sequence_bytes_per_gpu(replica):
        notes.append(f"{replica.llm.id}: KV tiers keep windows and recurrent state at the end of a prefix with it")
    return tuple(notes)
