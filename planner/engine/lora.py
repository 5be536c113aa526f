"""Time that low-rank adapters (LoRA) add to a step, and the time to load one.

Every projection W of attention and feed-forward has a pair of factors A (inputs x r) and B (r x outputs), and gives
x W + (x A) B (Hu et al., arXiv:2106.09685, eq. 3). The adapters of a step are served together by two gathered kernels
per projection, one for A and one for B: SGMV of Punica (Chen et al., MLSys 2024, sec. 4), MBGMM and MBGMV of S-LoRA
(Sheng et al., MLSys 2024, sec. 5.3). They are memory-bound or compute-bound as a whole and pass no data over links
that the base model would not (S-LoRA splits adapters over tensor-parallel GPUs as their base matrices, sec. 6)::

    time = max(flops / peak, bytes / bandwidth) + 2 * projections * gap
    flops = 2 r * sum over projections (inputs + outputs) * tokens
    bytes = 2 r * sum over projections (inputs + outputs) * distinct adapters   (16-bit factors)

Assumptions: peak and bandwidth of the datasheet; `gap` is the engine's between two kernels of a replayed step, 0 where
that is unknown or negative; tokens and adapters spread evenly over attention ranks and pipeline stages; of routed
experts only those are read that the tokens of an adapter are expected to visit, all experts alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from hardware_db import Dtype
from planner.core import FloatArray, InputError
from planner.engine.replica import ReplicaConfig
from planner.engine.scheduler import LoraAdapters
from planner.llm import BYTES_PER_VALUE, LayerGroup, LlmSpec, attentions, feed_forwards
from planner.roofline import CalibratedGpu
from planner.workload import zipf

LORA_DTYPE = Dtype.BF16
"""Adapters are kept in 16 bit, quantised base or not (S-LoRA, Sheng et al., MLSys 2024; PEFT checkpoints)."""
LAUNCHES_PER_PROJECTION = 2.0
"""One kernel shrinks to rank r, one expands (Chen et al., Punica, MLSys 2024, sec. 4)."""


@dataclass(frozen=True)
class AdapterWork:
    """Work of the adapters of one replica in a step.

    Attributes:
        token_flops: of one token on one GPU.
        adapter_bytes: of one adapter on one GPU, routed experts left out.
        routed_bytes: of all routed experts of one adapter on one GPU.
        expert_share: of the routed experts of a layer that one token visits.
        flops_per_s: peak of one GPU.
        bytes_per_s: HBM bandwidth of one GPU.
        launches_s: of all extra kernels of a step.
        load_s: one adapter from host memory.
    """

    token_flops: float
    adapter_bytes: float
    routed_bytes: float
    expert_share: float
    flops_per_s: float
    bytes_per_s: float
    launches_s: float
    load_s: float

    @classmethod
    def of(cls, replica: ReplicaConfig) -> Self:
        """Of a replica with adapters. Raises InputError when it has none."""
        if replica.lora is None:
            raise InputError("replica.lora", None, "the replica serves no adapters", "give lora")
        llm, split, rank = replica.llm, replica.parallelism, replica.lora.rank
        shards, ranks = split.tp * split.pp, split.shards
        shares = [group.experts.visited_share if group.experts is not None else 0.0 for group in llm.layers]
        channels = [_adapted_channels(group, llm.hidden_size) for group in llm.layers]
        routed, others = rank * sum(routed for routed, _ in channels), rank * sum(others for _, others in channels)
        visited = rank * sum(routed * share for (routed, _), share in zip(channels, shares, strict=True))
        kernels = sum(count * len(kind.matrices(llm.hidden_size)) for count, kind in attentions(llm.layers))
        kernels += sum(count * block.products for count, block in feed_forwards(llm.layers))
        width = BYTES_PER_VALUE[LORA_DTYPE]
        return cls(
            token_flops=2.0 * (others + visited) / shards / ranks,
            adapter_bytes=width * others / shards / ranks,
            routed_bytes=width * routed / shards / ranks,
            expert_share=max(shares),
            flops_per_s=CalibratedGpu(replica.sku).peaks(LORA_DTYPE).flops_per_s,
            bytes_per_s=replica.sku.hbm_bandwidth_bytes_per_s.value,
            launches_s=LAUNCHES_PER_PROJECTION * kernels * max(0.0, replica.costs.gap_s),
            load_s=lora_bytes(llm, rank, LORA_DTYPE) / shards / replica.sku.node.pcie_bytes_per_s.value,
        )

    def step_s(self, tokens: float, distinct: float) -> float:
        """Time that adapters add to a step [s]: `tokens` of requests with an adapter, `distinct` adapters among them.

        >>> work = AdapterWork(8e7, 8e7, 0.0, 0.0, 1e15, 2e12, 1e-4, 1e-3)
        >>> round(work.step_s(10, 5), 6)  # 5 adapters of 80 MB at 2 TB/s, and 100 us of launches
        0.0003
        """
        if tokens <= 0.0 or distinct <= 0.0:
            return 0.0
        visited = 1.0 - float((1.0 - self.expert_share) ** max(tokens / distinct, 1.0))  # by at least one token
        read = self.adapter_bytes + self.routed_bytes * visited
        return max(self.token_flops * tokens / self.flops_per_s, read * distinct / self.bytes_per_s) + self.launches_s

    def times_s(self, tokens: FloatArray, distinct: FloatArray) -> FloatArray:
        """`step_s` of many steps, shape of both arguments."""
        each = np.maximum(tokens / np.maximum(distinct, 1e-12), 1.0)
        read = self.adapter_bytes + self.routed_bytes * (1.0 - (1.0 - self.expert_share) ** each)
        work_s = np.maximum(self.token_flops * tokens / self.flops_per_s, read * distinct / self.bytes_per_s)
        return np.asarray((work_s + self.launches_s) * ((tokens > 0.0) & (distinct > 0.0)))


def adapter_popularity(lora: LoraAdapters) -> FloatArray:
    """Probability that a request uses each adapter: in proportion to k^-skew, k from 1.

    Args:
        lora: their number and skew.

    Returns:
        Probabilities that add up to 1, shape (adapters,).

    >>> adapter_popularity(LoraAdapters(adapters=2, skew=1.0)).round(3).tolist()
    [0.667, 0.333]
    """
    return zipf(lora.adapters, lora.skew)


def expected_distinct(draws: float, probabilities: FloatArray) -> float:
    """Expected number of distinct adapters among independent requests: sum over k of 1 - (1 - p_k)^draws.

    Source: linearity of expectation over indicators (the coupon collector of unequal coupons, Flajolet, Gardy and
    Thimonier, Discrete Applied Mathematics 39, 1992, sec. 3).

    Args:
        draws: requests.
        probabilities: p_k that a request uses adapter k, shape (adapters,).

    Returns:
        Distinct adapters.

    >>> expected_distinct(2, np.array([0.5, 0.5]))  # the same with probability 1/2
    1.5
    """
    return float((1.0 - (1.0 - probabilities) ** draws).sum())


def lora_bytes(llm: LlmSpec, rank: int, dtype: Dtype) -> float:
    """Bytes of one low-rank adapter of all projections of attention and feed-forward, every expert included.

    ``rank * (inputs + outputs)`` values per matrix: two factors, inputs x rank and rank x outputs. Embeddings, LM head
    and router have none. Source: Hu et al. 2021, LoRA, arXiv:2106.09685, sec. 4.1.

    Args:
        llm: base model.
        rank: r, of the two factors.
        dtype: number format they are kept in.

    Returns:
        Of one adapter over all GPUs [bytes].

    >>> from planner.llm import load_llm
    >>> lora_bytes(load_llm("llama-3.1-8b"), 16, Dtype.BF16) / 2  # PEFT: "trainable params: 41,943,040"
    41943040.0
    """
    channels = sum(sum(_adapted_channels(group, llm.hidden_size)) for group in llm.layers)
    return BYTES_PER_VALUE[dtype] * rank * channels


def _adapted_channels(group: LayerGroup, hidden: int) -> tuple[int, int]:
    """Inputs plus outputs [channels] of the projections of a group: of routed experts, and of all others."""
    kind, block = group.attention, group.feed_forward
    routed, others = (0, 0) if block is None else block.adapted_channels(hidden)
    others += 0 if kind is None else sum(map(sum, kind.matrices(hidden).values()))
    return group.count * routed, group.count * others
