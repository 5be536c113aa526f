"""Memory of one replica: weights, activations and KV capacity of a GPU, and the bytes of a prompt's cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_db import Dtype, MemoryShare
from planner.core import FloatArray, InputError
from planner.engine.lora import LORA_DTYPE, lora_bytes
from planner.engine.replica import ReplicaConfig
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
    attention_output_weights,
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
from planner.roofline import ACTIVATION_BYTES, Parallelism, kv_heads_per_gpu

LOGIT_BYTES = 4.0
"""Bytes per logit while sampling: engines cast logits to 32 bit before softmax."""


@dataclass(frozen=True)
class MemoryFootprint:
    """What one GPU of the replica holds [bytes], and the KV cache of the replica [tokens].

    Attributes:
        usable_bytes: HBM that weights, activations and KV cache may take together.
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


def memory_footprint(replica: ReplicaConfig) -> MemoryFootprint:
    """Weights, activation reserve and KV capacity of one GPU.

    Args:
        replica: the replica.

    Returns:
        Bytes of one GPU and KV tokens of the replica; `reason` says what does not fit.
    """
    split = replica.parallelism
    weights = weights_bytes_per_gpu(replica) + lora_bytes_per_gpu(replica)
    activations = activation_bytes_per_gpu(replica)
    per_token = kv_bytes_per_token_per_gpu(replica.llm, replica.precision.kv_cache, split.tp) / split.pp
    block_bytes = per_token * replica.engine.kv_block_tokens
    usable = usable_bytes_per_gpu(replica, weights, activations)
    left = usable - weights - activations
    blocks = max(0, int(left // block_bytes))
    return MemoryFootprint(
        usable_bytes=usable,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_capacity_bytes=max(0.0, left),
        kv_bytes_per_token=per_token,
        kv_capacity_tokens=blocks * replica.engine.kv_block_tokens * split.dp,
        kv_blocks=blocks * split.dp,
        sequence_blocks=math.ceil(sequence_bytes_per_gpu(replica) / block_bytes),
        reason=None if blocks else _shortfall(replica, weights, activations, usable),
    )


def usable_bytes_per_gpu(replica: ReplicaConfig, weights: float, activations: float) -> float:
    """HBM that weights, activations and KV cache may take together, as the engine reads its memory fraction.

    Args:
        replica: the replica.
        weights: on one GPU, slots of adapters included [bytes].
        activations: on one GPU [bytes].

    Returns:
        Share f of the capacity C for all three (`MemoryShare.ALL`); f C and the activations (STATIC); weights,
        activations and f of what they leave of C (FREE); never more than C [bytes].
    """
    capacity = replica.sku.hbm_capacity_bytes.value
    fraction, of = replica.memory_fraction or replica.engine.memory_fraction, replica.engine.memory_fraction_of
    if of is MemoryShare.ALL:
        return fraction * capacity
    taken = weights + activations
    share = fraction * capacity + activations if of is MemoryShare.STATIC else taken + fraction * (capacity - taken)
    return min(capacity, share)


def _shortfall(replica: ReplicaConfig, weights: float, activations: float, usable: float) -> str:
    """Why nothing is left for KV cache; arguments in bytes."""
    return (
        f"{replica.label}: weights {weights / 1e9:.1f} GB + activations {activations / 1e9:.1f} GB per GPU leave no "
        f"KV cache in {usable / 1e9:.1f} GB usable; use more GPUs per replica or fewer bits per weight"
    )


def require_room(replica: ReplicaConfig, longest_request_tokens: int) -> MemoryFootprint:
    """The footprint of a replica that can hold its longest request.

    Args:
        replica: the replica.
        longest_request_tokens: input and output of the longest request [tokens].

    Returns:
        Its footprint.

    Raises:
        InputError: the model's context or the replica's memory is too small; the message names which.
    """
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

    Args:
        replica: the replica.

    Returns:
        Bytes on one GPU, adapters left out [bytes].
    """
    llm, precision, split = replica.llm, replica.precision, replica.parallelism
    layers = 0.0
    for group in llm.layers:
        layers += group.count * _layer_bytes_per_gpu(group, llm.hidden_size, precision, split)
    own_draft = replica.speculation is not None and replica.speculation.draft_cost is None
    if own_draft and llm.mtp is not None:
        joined = 2.0 * llm.hidden_size**2 * ACTIVATION_BYTES / split.tp
        layers += llm.mtp_layers * (_layer_bytes_per_gpu(llm.mtp, llm.hidden_size, precision, split) + joined)
    head = BYTES_PER_VALUE[precision.of(Part.LM_HEAD)[0]] * lm_head_weights(llm)
    tables = embedding_parameters(llm) - (0 if llm.tied_embeddings else lm_head_weights(llm))
    tables_bytes = ACTIVATION_BYTES * tables + (0.0 if llm.tied_embeddings else head)
    small = parameters(llm) - linear_parameters(llm) - embedding_parameters(llm)
    drafter = (replica.speculation.draft_cost or 0.0) if replica.speculation is not None else 0.0
    return (1.0 + drafter) * (layers / split.pp + (tables_bytes + ACTIVATION_BYTES * small) / split.tp / split.pp)


def lora_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes of all adapter slots on one GPU: factors are split as their base matrices (S-LoRA, MLSys 2024, sec. 6).

    Args:
        replica: the replica.

    Returns:
        0 without adapters [bytes].
    """
    lora, split = replica.lora, replica.parallelism
    if lora is None:
        return 0.0
    return lora.slots * lora_bytes(replica.llm, lora.rank, LORA_DTYPE) / (split.tp * split.pp)


def _layer_bytes_per_gpu(group: LayerGroup, hidden: int, precision: Precision, split: Parallelism) -> float:
    """Bytes of the matrices of one layer on one GPU."""

    def stored(part: Part, weights: float) -> float:
        return weights * BYTES_PER_VALUE[precision.of(part)[0]]

    output = attention_output_weights(group.attention, hidden) / split.tp
    attention = stored(Part.ATTENTION, _attention_weights_per_gpu(group, hidden, split.tp) - output)
    attention += stored(Part.ATTENTION_OUTPUT, output)
    block = group.feed_forward
    if isinstance(block, MoeFeedForward):
        routed = block.experts * feed_forward_weights(block, hidden) / split.stage_gpus
        shared = shared_expert_weights(block, hidden) / split.tp
        return attention + stored(Part.EXPERTS, routed) + stored(Part.SHARED_EXPERTS, shared)
    return attention + stored(Part.FEED_FORWARD, feed_forward_weights(block, hidden) / split.tp)


def _attention_weights_per_gpu(group: LayerGroup, hidden: int, tp: int) -> float:
    """Weights of the attention matrices of one layer on one GPU; KV projections repeat where tp > kv_heads."""
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

    Args:
        replica: the replica.

    Returns:
        Reserve on one GPU [bytes].
    """
    split = replica.parallelism
    tokens = replica.max_batched_tokens / split.dp
    widths = [_widest_values(group, split) for group in replica.llm.layers]
    live = tokens * (2 * replica.llm.hidden_size + max(widths)) * ACTIVATION_BYTES
    rows = min(replica.max_running_requests, replica.max_batched_tokens) / split.dp
    return live + rows * replica.llm.vocab_size / split.tp * LOGIT_BYTES


def _widest_values(group: LayerGroup, split: Parallelism) -> float:
    """Values per token of the widest tensors of a layer on one GPU."""
    block, kind = group.feed_forward, group.attention
    width = 0.0
    if block is not None:
        visits = block.experts_per_token if isinstance(block, MoeFeedForward) else 1
        gpus = split.stage_gpus if isinstance(block, MoeFeedForward) else split.tp
        width = visits * (3 if block.gated else 2) * block.intermediate / gpus
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

    Args:
        llm: model.
        kv_dtype: number format of the cache.
        tp: GPUs its heads are split over.

    Returns:
        Of all layers, pipeline stages not yet divided [bytes/token].
    """
    whole = [group for group in llm.layers if not getattr(group.attention, "window", 0)]
    groups = whole if any(_has_cache(group) for group in whole) else list(llm.layers)
    total = 0.0
    for group in groups:
        alone = _with_layers(llm, group)
        total += _kv_share(group, tp) * (kv_bytes_per_token(alone, kv_dtype) or kv_window_bytes(alone, kv_dtype, 1))
    return total


def _with_layers(llm: LlmSpec, group: LayerGroup) -> LlmSpec:
    """The model with one of its groups of layers only."""
    return llm.model_copy(update={"layers": (group,)})


def _has_cache(group: LayerGroup) -> bool:
    """Whether the layers keep keys and values."""
    return isinstance(group.attention, GroupedQueryAttention | LatentAttention)


def _kv_share(group: LayerGroup, tp: int) -> float:
    """Share of the cache of these layers that one GPU holds."""
    kind = group.attention
    return kv_heads_per_gpu(kind, tp) / kind.kv_heads if isinstance(kind, GroupedQueryAttention) else 1.0


def sequence_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes one sequence takes on one GPU beside its tokens: full windows of windowed layers, recurrent state.

    Args:
        replica: the replica.

    Returns:
        Per sequence and GPU [bytes].
    """
    llm, split = replica.llm, replica.parallelism
    windowed = [group for group in llm.layers if getattr(group.attention, "window", 0)]
    if not any(_has_cache(group) for group in llm.layers if group not in windowed):
        windowed = []
    total = state_bytes(llm) / split.tp
    for group in windowed:
        window = kv_window_bytes(_with_layers(llm, group), replica.precision.kv_cache, llm.max_context_tokens)
        total += _kv_share(group, split.tp) * window
    return total / split.pp


def kv_transfer_bytes(replica: ReplicaConfig, input_tokens: NDArray[Any]) -> FloatArray:
    """Bytes of each prompt's cache that travel between pools: KV of all tokens, of the windows, and recurrent state.

    Args:
        replica: that sends them.
        input_tokens: prompts, shape (n,) [tokens].

    Returns:
        Shape (n,) [bytes].
    """
    llm, kv = replica.llm, replica.precision.kv_cache
    transferred = np.asarray(input_tokens * kv_bytes_per_token(llm, kv) + state_bytes(llm), dtype=np.float64)
    if kv_window_bytes(llm, kv, llm.max_context_tokens) == 0.0:
        return transferred
    distinct, index = np.unique(np.asarray(input_tokens), return_inverse=True)
    windows = np.array([kv_window_bytes(llm, kv, tokens) for tokens in distinct.tolist()])
    return np.asarray(transferred + windows[index])
