"""One replica: its configuration, what fits into its memory, and how long any step takes.

A replica is a group of GPUs of one SKU serving one model with one engine loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hardware_db import Calibration, Dtype, EngineCosts, EngineProfile, GpuSku
from planner.core import Frozen, InputError
from planner.engine.scheduler import Batching, KvAllocation, LoraAdapters, Order, Preemption, Schedule, Speculation
from planner.engine.step_times import StepTime, StepTimer, build_timer
from planner.llm import (
    BYTES_PER_VALUE,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    Precision,
    StateSpace,
    attention_matrices,
    attention_weights,
    embedding_parameters,
    feed_forward_weights,
    kv_bytes_per_token,
    kv_window_bytes,
    linear_parameters,
    lm_head_weights,
    parameters,
    shared_expert_weights,
    state_bytes,
)
from planner.roofline import ACTIVATION_BYTES, Parallelism, StepShape, compute_dtype, kv_heads_per_gpu

__all__ = [
    "Batching",
    "KvAllocation",
    "LoraAdapters",
    "MemoryFootprint",
    "Order",
    "Parallelism",
    "Preemption",
    "ReplicaConfig",
    "Schedule",
    "Speculation",
    "StepTime",
    "StepTimer",
    "activation_bytes_per_gpu",
    "kv_bytes_per_token_per_gpu",
    "kv_transfer_bytes",
    "lora_bytes",
    "lora_bytes_per_gpu",
    "lora_sizes",
    "memory_footprint",
    "require_room",
    "sequence_bytes_per_gpu",
    "step_shape",
    "step_time",
    "step_timer",
    "weights_bytes_per_gpu",
]

LOGIT_BYTES = 4.0
"""Bytes per logit while sampling: engines cast logits to 32 bit before softmax."""


LORA_DTYPE = Dtype.BF16
"""Adapters are kept in 16 bit, quantised base or not (S-LoRA, Sheng et al., MLSys 2024; PEFT checkpoints)."""
SERVED_SKEW = 0.8
"""Exponent of the popularity of experts in serving: of 0, 0.5, 0.8 and 1.01 the one that meets TPOT of DeepSeek-R1 on
H200 and Qwen3-235B-A22B on H100 best (docs/accuracy.md)."""


class ReplicaConfig(Frozen):
    """Everything that decides how fast one replica is and how much it holds.

    `max_running_requests` is vLLM's max_num_seqs, `max_batched_tokens` its max_num_batched_tokens (chunk budget), both
    of the whole replica (all attention ranks together). `own_schedule` None is the engine's. `expert_skew` is the
    exponent of a power law of the experts' popularity, 0 for all alike; None is `SERVED_SKEW` with a calibration and 0
    without, whose times are bounds. `lora` are adapters on top of the model; `mask_s` is the time a step waits for the
    grammar mask of each constrained sequence (constrained decoding).
    """

    llm: LlmSpec
    sku: GpuSku
    engine: EngineProfile
    precision: Precision = Precision()
    parallelism: Parallelism = Parallelism()
    max_running_requests: int = Field(default=256, ge=1, le=65_536)
    max_batched_tokens: int = Field(default=8192, ge=16, le=1_048_576)
    calibration: Calibration | None = None
    speculation: Speculation | None = None
    own_schedule: Schedule | None = Field(default=None, description="instead of the engine's")
    memory_fraction: float | None = Field(default=None, gt=0, le=1, description="instead of the engine's")
    expert_skew: float | None = Field(default=None, ge=0.0, le=4.0)
    lora: LoraAdapters | None = None
    mask_s: float = Field(default=0.0, ge=0.0, le=1.0, description="host time per decoding sequence and step [s]")

    @property
    def label(self) -> str:
        """E.g. ``h100-sxm TP2``."""
        return f"{self.sku.id} {self.parallelism.label}"

    @cached_property
    def schedule(self) -> Schedule:
        """How steps are filled: as given, else the engine's way."""
        engine = self.engine
        return self.own_schedule or Schedule(
            mixed_steps=engine.mixed_steps,
            whole_prompts=engine.whole_prompts,
            reserve_outputs=engine.reserves_outputs,
        )

    @property
    def costs(self) -> EngineCosts:
        """What the engine adds to its kernels; nothing to uncalibrated ones, whose times are bounds."""
        return self.engine.costs_on(self.sku) if self.calibration is not None else EngineCosts()

    @property
    def skew(self) -> float:
        """Exponent of the experts' popularity."""
        if self.expert_skew is not None:
            return self.expert_skew
        return SERVED_SKEW if self.calibration is not None else 0.0

    @cached_property
    def timer(self) -> StepTimer:
        """Step times of this replica."""
        return build_timer(
            self.llm,
            self.sku,
            self.precision,
            self.parallelism,
            self.calibration,
            self.costs,
            self.speculation.draft_tokens if self.speculation else 0,
            self.skew,
            self.speculation.draft_cost if self.speculation else None,
        )

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What this configuration takes for granted, in plain words."""
        notes = []
        if self.calibration is None:
            notes.append(f"{self.sku.id}: uncalibrated: operators at 100 % of their roofline, no launch or host time")
        elif self.calibration.sku != self.sku.id:
            notes.append(f"{self.sku.id}: not measured: shares of peak as fitted on {self.calibration.sku}")
        dtype = compute_dtype(self.precision.activations, self.sku)
        if dtype is not self.precision.activations.arithmetic:
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
        weights_bytes: this GPU's share of the weights, and the slots of adapters.
        activation_bytes: reserve for the widest live activations of a full step and for logits.
        kv_capacity_bytes: what is left for KV cache; 0 when nothing is.
        kv_bytes_per_token: KV bytes one token takes on this GPU, in layers that keep the whole context.
        kv_capacity_tokens: whole blocks times block size, over all attention ranks.
        kv_blocks: whole blocks, over all attention ranks.
        sequence_blocks: blocks' worth of bytes each sequence takes beside its tokens (windows, recurrent state).
        reason: why it does not fit, or None.
    """

    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    kv_capacity_bytes: float
    kv_bytes_per_token: float
    kv_capacity_tokens: int
    kv_blocks: int
    sequence_blocks: int
    reason: str | None

    @property
    def fits(self) -> bool:
        """Whether weights, activations and at least one KV block fit."""
        return self.reason is None


def step_timer(replica: ReplicaConfig) -> StepTimer:
    """The step-time function of a replica, built once per configuration."""
    return replica.timer


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
    split = replica.parallelism
    usable = replica.sku.hbm_capacity_bytes.value * (replica.memory_fraction or replica.engine.memory_fraction)
    weights = weights_bytes_per_gpu(replica)
    weights += lora_bytes_per_gpu(replica)
    activations = activation_bytes_per_gpu(replica)
    per_token = kv_bytes_per_token_per_gpu(replica.llm, replica.precision.kv_cache, split.tp) / split.pp
    fixed = sequence_bytes_per_gpu(replica)
    block = per_token * replica.engine.kv_block_tokens
    left = usable - weights - activations
    blocks = max(0, int(left // block))
    return MemoryFootprint(
        usable_bytes=usable,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_capacity_bytes=max(0.0, left),
        kv_bytes_per_token=per_token,
        kv_capacity_tokens=blocks * replica.engine.kv_block_tokens * split.dp,
        kv_blocks=blocks * split.dp,
        sequence_blocks=math.ceil(fixed / block),
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
    room = footprint.kv_capacity_tokens // replica.parallelism.dp
    room -= footprint.sequence_blocks * replica.engine.kv_block_tokens
    if longest_request_tokens > room:
        bound = f"the longest request does not fit in the {room} tokens of KV of {replica.label}"
        raise InputError("workload.lengths", longest_request_tokens, bound, "use more GPUs per replica or an fp8 cache")
    return footprint


def weights_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes of weights on one GPU.

    Matrices split over tp, KV projections repeated where tp > kv_heads, compressed latent projections on every GPU,
    routed experts over all GPUs of a stage; embeddings, head and what is small split over tp; all over pp. With
    speculation the multi-token-prediction modules too, or a drafter's share of all that (`Speculation.draft_cost`).
    """
    llm, precision, split = replica.llm, replica.precision, replica.parallelism
    total = 0.0
    for group in llm.layers:
        total += group.count * _layer_bytes_per_gpu(group, llm.hidden_size, precision, split)
    own_draft = replica.speculation is not None and replica.speculation.draft_cost is None
    if own_draft and llm.mtp is not None:
        joined = 2.0 * llm.hidden_size**2 * ACTIVATION_BYTES / split.tp
        total += llm.mtp_layers * (_layer_bytes_per_gpu(llm.mtp, llm.hidden_size, precision, split) + joined)
    head = BYTES_PER_VALUE[precision.of(Part.LM_HEAD)[0]] * lm_head_weights(llm)
    tables = embedding_parameters(llm) - (0 if llm.tied_embeddings else lm_head_weights(llm))
    tables_bytes = ACTIVATION_BYTES * tables + (0.0 if llm.tied_embeddings else head)
    small = parameters(llm) - linear_parameters(llm) - embedding_parameters(llm)
    drafter = (replica.speculation.draft_cost or 0.0) if replica.speculation is not None else 0.0
    return (1.0 + drafter) * (total / split.pp + (tables_bytes + ACTIVATION_BYTES * small) / split.tp / split.pp)


def lora_bytes(llm: LlmSpec, rank: int, dtype: Dtype) -> float:
    """Bytes of one low-rank adapter of all projections of attention and feed-forward, every expert included.

    ``rank * (inputs + outputs)`` values per matrix: two factors, inputs x rank and rank x outputs. Embeddings, LM head
    and router have none. Source: Hu et al. 2021, LoRA, arXiv:2106.09685, sec. 4.1. Raises nothing.

    >>> from planner.llm.sizes import load_llm
    >>> lora_bytes(load_llm("llama-3.1-8b"), 16, Dtype.BF16) / 2  # PEFT: "trainable params: 41,943,040"
    41943040.0
    """
    sizes = sum(group.count * sum(lora_sizes(group, llm.hidden_size)) for group in llm.layers)
    return BYTES_PER_VALUE[dtype] * rank * sizes


def lora_sizes(group: LayerGroup, hidden: int) -> tuple[int, int]:
    """Inputs plus outputs [channels] of the projections of one layer, summed: of routed experts, and of all others.

    >>> from planner.llm.sizes import load_llm
    >>> lora_sizes(load_llm("llama-3.1-8b").layers[0], 4096)  # 2 x 8192 + 2 x 5120, and 3 x 18432
    (0, 81920)
    """
    others = sum(inputs + outputs for inputs, outputs in attention_matrices(group.attention, hidden).values())
    block = group.feed_forward
    if block is None:
        return 0, others
    matrices, one = (3 if block.gated else 2), hidden + block.intermediate
    if not isinstance(block, MoeFeedForward):
        return 0, others + matrices * one
    shared = matrices * (hidden + block.shared_intermediate) if block.shared_intermediate else 0
    return block.experts * matrices * one, others + shared


def lora_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes of all adapter slots on one GPU: factors are split as their base matrices (S-LoRA, MLSys 2024, sec. 6)."""
    lora, split = replica.lora, replica.parallelism
    if lora is None:
        return 0.0
    return lora.slots * lora_bytes(replica.llm, lora.rank, LORA_DTYPE) / (split.tp * split.pp)


def _layer_bytes_per_gpu(group: LayerGroup, hidden: int, precision: Precision, split: Parallelism) -> float:
    def stored(part: Part, weights: float) -> float:
        return weights * BYTES_PER_VALUE[precision.of(part)[0]]

    total = stored(Part.ATTENTION, _attention_weights_per_gpu(group, hidden, split.tp))
    block = group.feed_forward
    if isinstance(block, MoeFeedForward):
        routed = block.experts * feed_forward_weights(block, hidden) / split.stage_gpus
        return (
            total
            + stored(Part.EXPERTS, routed)
            + stored(Part.SHARED_EXPERTS, shared_expert_weights(block, hidden) / split.tp)
        )
    return total + stored(Part.FEED_FORWARD, feed_forward_weights(block, hidden) / split.tp)


def _attention_weights_per_gpu(group: LayerGroup, hidden: int, tp: int) -> float:
    kind = group.attention
    whole = float(attention_weights(kind, hidden))
    if isinstance(kind, GroupedQueryAttention):
        repeated = 2 * (kv_heads_per_gpu(kind, tp) - kind.kv_heads / tp) * kind.head_dim * hidden
        return whole / tp + repeated
    if isinstance(kind, LatentAttention):
        shared = float(hidden * (kind.query_rank + kind.kv_rank + kind.rope_dim))
        return shared + (whole - shared) / tp
    return whole / tp


def activation_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Reserve for activations of a full step: the residual stream twice, the widest layer's tensors, and logits.

    tokens * (2 hidden + max(attention, feed-forward) widths) * 2 bytes + sampled rows * vocab / tp * 4 bytes, with the
    tokens and rows of one attention rank.
    """
    split = replica.parallelism
    tokens = replica.max_batched_tokens / split.dp
    widths = [_widest(group, split) for group in replica.llm.layers]
    live = tokens * (2 * replica.llm.hidden_size + max(widths)) * ACTIVATION_BYTES
    rows = min(replica.max_running_requests, replica.max_batched_tokens) / split.dp
    return live + rows * replica.llm.vocab_size / split.tp * LOGIT_BYTES


def _widest(group: LayerGroup, split: Parallelism) -> float:
    """Values per token of the widest tensors of a layer on one GPU."""
    block, kind = group.feed_forward, group.attention
    width = 0.0
    if block is not None:
        visits = block.experts_per_token if isinstance(block, MoeFeedForward) else 1
        parts = split.stage_gpus if isinstance(block, MoeFeedForward) else split.tp
        width = visits * (3 if block.gated else 2) * block.intermediate / parts
    if isinstance(kind, GroupedQueryAttention):
        width = max(width, (kind.heads // split.tp + 2 * kv_heads_per_gpu(kind, split.tp)) * kind.head_dim)
    elif isinstance(kind, LatentAttention):
        width = max(width, kind.heads / split.tp * (2 * kind.nope_dim + kind.rope_dim + kind.value_dim))
    elif isinstance(kind, LinearAttention | StateSpace):
        width = max(width, 2.0 * kind.conv_channels / split.tp)
    return width


def kv_bytes_per_token_per_gpu(llm: LlmSpec, kv_dtype: Dtype, tp: int) -> float:
    """KV bytes of one token on one GPU, in layers that keep the whole context.

    Grouped heads are split over tp (repeated where tp > kv_heads); a latent row is on every GPU. A model whose layers
    all have windows is counted as if they kept the whole context.
    """
    whole = [group for group in llm.layers if not getattr(group.attention, "window", 0)]
    groups = whole if any(_caches(group) for group in whole) else list(llm.layers)
    total = 0.0
    for group in groups:
        one = llm.model_copy(update={"layers": (group,)})
        total += _kv_share(group, tp) * (kv_bytes_per_token(one, kv_dtype) or kv_window_bytes(one, kv_dtype, 1))
    return total


def _caches(group: LayerGroup) -> bool:
    return isinstance(group.attention, GroupedQueryAttention | LatentAttention)


def _kv_share(group: LayerGroup, tp: int) -> float:
    kind = group.attention
    return kv_heads_per_gpu(kind, tp) / kind.kv_heads if isinstance(kind, GroupedQueryAttention) else 1.0


def sequence_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes one sequence takes on one GPU beside its tokens: full windows of windowed layers, recurrent state."""
    llm, split = replica.llm, replica.parallelism
    windowed = [group for group in llm.layers if getattr(group.attention, "window", 0)]
    if not any(_caches(group) for group in llm.layers if group not in windowed):
        windowed = []
    total = state_bytes(llm) / split.tp
    for group in windowed:
        one = llm.model_copy(update={"layers": (group,)})
        total += _kv_share(group, split.tp) * kv_window_bytes(one, replica.precision.kv_cache, llm.max_context_tokens)
    return total / split.pp


def kv_transfer_bytes(replica: ReplicaConfig, input_tokens: NDArray[Any]) -> NDArray[np.float64]:
    """Bytes of each prompt's cache that travel between pools: KV of all tokens, of the windows, and recurrent state.

    `input_tokens` has shape (n,) [tokens], as has the result [bytes].
    """
    llm, kv = replica.llm, replica.precision.kv_cache
    sent = np.asarray(input_tokens * kv_bytes_per_token(llm, kv) + state_bytes(llm), dtype=np.float64)
    if kv_window_bytes(llm, kv, llm.max_context_tokens) == 0.0:
        return sent
    distinct, which = np.unique(np.asarray(input_tokens), return_inverse=True)
    windows = np.array([kv_window_bytes(llm, kv, tokens) for tokens in distinct.tolist()])
    return np.asarray(sent + windows[which])
