"""One replica: its configuration, what fits into its memory, and how long any step takes.

A replica is `tp` GPUs of one SKU serving one model with one engine loop: continuous batching with chunked prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hardware_db.schema import Calibration, Dtype, Efficiency, EngineProfile, Frozen, GpuSku
from planner.errors import InputError
from planner.llm import BYTES_PER_VALUE, LlmSpec, Precision, qkv_weights, weight_bytes
from planner.roofline import (
    ACTIVATION_BYTES,
    Bound,
    Family,
    StepShape,
    coefficients,
    compute_dtype,
    kv_heads_per_gpu,
    link_bandwidth_bytes_per_s,
    routing,
    statistics,
    step_work,
)

FloatArray = NDArray[np.float64]
LOGIT_BYTES = 4.0
"""Bytes per logit while sampling: engines cast logits to 32 bit before softmax."""


class Parallelism(Frozen):
    """How one replica is split over GPUs. Tensor parallel only so far."""

    tp: int = Field(default=1, ge=1, le=72)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp


class ReplicaConfig(Frozen):
    """Everything that decides how fast one replica is and how much it holds.

    `max_running_requests` is vLLM's max_num_seqs, `max_batched_tokens` its max_num_batched_tokens (chunk budget).
    """

    llm: LlmSpec
    sku: GpuSku
    engine: EngineProfile
    precision: Precision = Precision()
    parallelism: Parallelism = Parallelism()
    max_running_requests: int = Field(default=256, ge=1, le=65_536)
    max_batched_tokens: int = Field(default=8192, ge=16, le=1_048_576)
    calibration: Calibration | None = None

    @property
    def label(self) -> str:
        """E.g. ``h100-sxm TP2``."""
        return f"{self.sku.id} TP{self.parallelism.tp}"

    @cached_property
    def timer(self) -> StepTimer:
        """Step times of this replica."""
        return _build_timer(self)

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What this configuration takes for granted, in plain words."""
        notes = []
        if self.calibration is None:
            notes.append(f"{self.sku.id}: uncalibrated: operators at 100 % of their roofline, no launch or host time")
        dtype = compute_dtype(self.precision, self.sku)
        if dtype is not self.precision.activations:
            notes.append(
                f"{self.sku.id}: no {self.precision.activations} matrix units, {self.precision.weights} weights are "
                f"dequantised and multiplied in {dtype}"
            )
        return tuple(notes)


@dataclass(frozen=True)
class MemoryFootprint:
    """What one GPU of the replica holds [bytes], and the KV cache of the replica [tokens].

    Attributes:
        usable_bytes: HBM the engine may use (capacity * memory fraction).
        weights_bytes: this GPU's share of the weights.
        activation_bytes: reserve for the widest live activations of a full step and for logits.
        kv_capacity_bytes: what is left for KV cache; 0 when nothing is.
        kv_bytes_per_token: KV bytes one token takes on this GPU.
        kv_capacity_tokens: whole blocks times block size.
        kv_blocks: whole blocks.
        reason: why it does not fit, or None.
    """

    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    kv_capacity_bytes: float
    kv_bytes_per_token: float
    kv_capacity_tokens: int
    kv_blocks: int
    reason: str | None

    @property
    def fits(self) -> bool:
        """Whether weights, activations and at least one KV block fit."""
        return self.reason is None


@dataclass(frozen=True)
class StepTime:
    """Duration of one step, itemised.

    Attributes:
        total_s: wall time of the step [s].
        family_s: seconds per operator family.
        bound_s: seconds spent waiting for each resource.
    """

    total_s: float
    family_s: dict[Family, float]
    bound_s: dict[Bound, float]

    @property
    def bound(self) -> Bound:
        """The resource that takes most of the step."""
        return max(self.bound_s, key=lambda bound: self.bound_s[bound])


@dataclass(frozen=True, eq=False)
class StepTimer:
    """Step times of one replica as matrix products; build with `step_timer`.

    Attributes:
        resource_s: seconds per unit of each statistic, shape (3 resources, operators, statistics), in the order
            compute, memory, link.
        families: family of each operator.
        experts: (experts, experts per token) or None.
        overhead_s: host and launch time per step [s].
    """

    resource_s: FloatArray
    families: tuple[Family, ...]
    experts: tuple[int, int] | None
    overhead_s: float

    def operator_times_s(self, shape: StepShape) -> FloatArray:
        """Time [s] each resource needs for each operator, shape (3, operators, ...steps)."""
        return np.tensordot(self.resource_s, statistics(shape, self.experts), axes=1)

    def times_s(self, shape: StepShape) -> FloatArray:
        """Duration [s] of each step, shape (...steps)."""
        return np.asarray(self.operator_times_s(shape).max(axis=0).sum(axis=0) + self.overhead_s)

    def itemised(self, shape: StepShape) -> StepTime:
        """One step, itemised by family and by bound."""
        by_resource = self.operator_times_s(shape)
        seconds, resource = by_resource.max(axis=0), by_resource.argmax(axis=0)
        family_s = {
            family: float(sum(s for s, f in zip(seconds, self.families, strict=True) if f is family))
            for family in dict.fromkeys(self.families)
        }
        bounds = (Bound.COMPUTE, Bound.MEMORY, Bound.LINK)
        bound_s = {bound: float(seconds[resource == index].sum()) for index, bound in enumerate(bounds)}
        bound_s[Bound.OVERHEAD] = self.overhead_s
        return StepTime(float(seconds.sum()) + self.overhead_s, family_s, bound_s)


def step_timer(replica: ReplicaConfig) -> StepTimer:
    """The step-time function of a replica, built once per configuration."""
    return replica.timer


def _build_timer(replica: ReplicaConfig) -> StepTimer:
    sku, tp, calibration = replica.sku, replica.parallelism.tp, replica.calibration
    link = link_bandwidth_bytes_per_s(sku, tp)
    bandwidth = sku.hbm_bandwidth_bytes_per_s.value
    fits = calibration.efficiency if calibration else {}
    works = step_work(replica.llm, sku, replica.precision, tp)
    rows = []
    for work in works:
        efficiency = fits.get(work.family, Efficiency())
        rows.append(
            (
                coefficients(work.flops) / (efficiency.compute * sku.peak_flops_per_s[work.dtype].value),
                coefficients(work.hbm_bytes) / (efficiency.memory * bandwidth),
                coefficients(work.link_bytes) / (efficiency.link * link),
            )
        )
    return StepTimer(
        resource_s=np.array(rows).transpose(1, 0, 2),
        families=tuple(work.family for work in works),
        experts=routing(replica.llm),
        overhead_s=calibration.step_overhead_s if calibration else 0.0,
    )


def step_time(
    replica: ReplicaConfig,
    decode_contexts: Sequence[int] = (),
    chunks: Sequence[tuple[int, int]] = (),
) -> StepTime:
    """Duration of one step that advances decodes and prompt chunks together, itemised [s].

    Args:
        replica: the replica.
        decode_contexts: per decoding sequence, the tokens it attends to, its own new token included (>= 1).
        chunks: per prompt chunk (new_tokens >= 1, past_tokens >= 0).

    Raises InputError for an empty step or counts out of range.
    """
    shape = step_shape(decode_contexts, chunks)
    return step_timer(replica).itemised(shape)


def step_shape(decode_contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> StepShape:
    """The sums a step time depends on, from the sequences in it. Raises InputError when out of range."""
    if not decode_contexts and not chunks:
        raise InputError("step", "empty", "needs at least one decode or one chunk", "give decode_contexts or chunks")
    if any(context < 1 for context in decode_contexts):
        raise InputError("decode_contexts", min(decode_contexts), "must be >= 1 token")
    if any(new < 1 or past < 0 for new, past in chunks):
        raise InputError("chunks", list(chunks)[:4], "need new_tokens >= 1 and past_tokens >= 0")
    return StepShape(
        decodes=float(len(decode_contexts)),
        decode_context=float(sum(decode_contexts)),
        chunk_tokens=float(sum(new for new, _ in chunks)),
        chunk_pairs=float(sum(new * past + new * (new + 1) / 2 for new, past in chunks)),
        chunk_context=float(sum(new + past for new, past in chunks)),
        chunks=float(len(chunks)),
    )


def memory_footprint(replica: ReplicaConfig) -> MemoryFootprint:
    """Weights, activation reserve and KV capacity of one GPU; `reason` says what does not fit."""
    usable = replica.sku.hbm_capacity_bytes.value * replica.engine.memory_fraction
    weights = weights_bytes_per_gpu(replica)
    activations = activation_bytes_per_gpu(replica)
    per_token = kv_bytes_per_token_per_gpu(replica.llm, replica.precision.kv_cache, replica.parallelism.tp)
    left = usable - weights - activations
    blocks = max(0, int(left // (per_token * replica.engine.kv_block_tokens)))
    return MemoryFootprint(
        usable_bytes=usable,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_capacity_bytes=max(0.0, left),
        kv_bytes_per_token=per_token,
        kv_capacity_tokens=blocks * replica.engine.kv_block_tokens,
        kv_blocks=blocks,
        reason=None if blocks else _shortfall(replica, weights, activations, usable),
    )


def _shortfall(replica: ReplicaConfig, weights: float, activations: float, usable: float) -> str:
    return (
        f"{replica.label}: weights {weights / 1e9:.1f} GB + activations {activations / 1e9:.1f} GB per GPU leave no "
        f"KV cache in {usable / 1e9:.1f} GB usable; use more GPUs per replica or fewer bits per weight"
    )


def require_room(replica: ReplicaConfig, longest_request_tokens: int) -> MemoryFootprint:
    """The footprint of a replica that can hold its longest request; raises InputError naming what is too small."""
    context = replica.llm.max_context_tokens
    if longest_request_tokens > context:
        bound = f"longer than the {context} tokens of context of {replica.llm.id}"
        raise InputError("workload.lengths", longest_request_tokens, bound, "cut the lengths or choose another model")
    footprint = memory_footprint(replica)
    if footprint.reason is not None:
        raise InputError("replica.memory", replica.label, footprint.reason)
    if longest_request_tokens > footprint.kv_capacity_tokens:
        bound = (
            f"the longest request does not fit in the {footprint.kv_capacity_tokens} tokens of KV of {replica.label}"
        )
        raise InputError("workload.lengths", longest_request_tokens, bound, "use more GPUs per replica or an fp8 cache")
    return footprint


def weights_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes of weights on one GPU: an even share, plus KV projections replicated when tp > kv_heads.

    Norms (0.01 % of a model) are counted as if split.
    """
    tp, hidden = replica.parallelism.tp, replica.llm.hidden_size
    replicated = 0.0
    for group in replica.llm.layers:
        attention = group.attention
        local = (attention.heads // tp + 2 * kv_heads_per_gpu(attention, tp)) * attention.head_dim * hidden
        replicated += group.count * (local - qkv_weights(group, hidden) / tp)
    return weight_bytes(replica.llm, replica.precision) / tp + replicated * BYTES_PER_VALUE[replica.precision.weights]


def activation_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Reserve for activations of a full step: the residual stream twice, the widest layer's tensors, and logits.

    tokens * (2 hidden + max(qkv, feed-forward) widths) * 2 bytes + sampled rows * vocab / tp * 4 bytes.
    """
    tp, tokens = replica.parallelism.tp, replica.max_batched_tokens
    widths = []
    for group in replica.llm.layers:
        block, attention = group.feed_forward, group.attention
        visits = getattr(block, "experts_per_token", 1)
        widths.append(visits * (3 if block.gated else 2) * block.intermediate / tp)
        widths.append((attention.heads // tp + 2 * kv_heads_per_gpu(attention, tp)) * attention.head_dim)
    live = tokens * (2 * replica.llm.hidden_size + max(widths)) * ACTIVATION_BYTES
    rows = min(replica.max_running_requests, tokens)
    return live + rows * replica.llm.vocab_size / tp * LOGIT_BYTES


def kv_bytes_per_token_per_gpu(llm: LlmSpec, kv_dtype: Dtype, tp: int) -> float:
    """KV bytes of one token on one GPU: sum over layers of 2 * kv_heads_per_gpu * head_dim * bytes."""
    return (
        sum(
            2.0 * group.count * kv_heads_per_gpu(group.attention, tp) * group.attention.head_dim for group in llm.layers
        )
        * BYTES_PER_VALUE[kv_dtype]
    )
