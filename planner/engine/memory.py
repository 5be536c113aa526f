"""Memory of one replica: weights, activations and KV capacity of a GPU, and the bytes of a prompt's cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware_db import Dtype, MemoryShare
from planner.core import FloatArray, InputError, UnsupportedFeatureError
from planner.engine.lora import LORA_DTYPE, lora_bytes
from planner.engine.replica import ReplicaConfig
from planner.llm import (
    BYTES_PER_VALUE,
    CompressedAttention,
    DraftSpec,
    GroupedQueryAttention,
    LatentAttention,
    LayerGroup,
    LinearAttention,
    LlmSpec,
    MoeFeedForward,
    Part,
    PipelineStage,
    Precision,
    StateSpace,
    attention_matrices,
    attention_output_weights,
    attention_weights,
    compressor_weights,
    draft_precision,
    embedding_parameters,
    encoder_weight_bytes,
    feed_forward_weights,
    index_bytes_per_token,
    index_weights,
    kept_residuals,
    kv_bytes_per_token,
    kv_window_bytes,
    latent_projection_weights,
    linear_parameters,
    lm_head_weights,
    parameters,
    pipeline_stages,
    require_context,
    shared_expert_weights,
    state_bytes,
    wide_weights,
)
from planner.roofline import (
    ACTIVATION_BYTES,
    Parallelism,
    encoder_tp,
    kv_heads_per_gpu,
    padded_heads,
    state_groups_per_gpu,
)

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
        stages: what the pipeline stages hold; the bytes above are those of the one with the least room.
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
    stages: tuple[StageMemory, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether weights, activations and at least one KV block fit."""
        return self.reason is None


@dataclass(frozen=True)
class StageMemory:
    """What one GPU of a pipeline stage holds, whatever the limits of its steps (without a pipeline there is one stage).

    Attributes:
        weights_bytes: its share of the weights, and the slots of adapters.
        kv_bytes_per_token: KV bytes of one token, in layers that keep the whole context [bytes/token].
        sequence_bytes: what one sequence takes beside its tokens (windows, recurrent state) [bytes].
        samples: it has the head, and so the logits.
    """

    weights_bytes: float
    kv_bytes_per_token: float
    sequence_bytes: float
    samples: bool


def stage_memory(replica: ReplicaConfig) -> tuple[StageMemory, ...]:
    """What one GPU of each pipeline stage holds; stages that hold the same once.

    Args:
        replica: the replica; its limits (`max_running_requests`, `max_batched_tokens`) play no part.

    Returns:
        At least one record [bytes].

    Raises:
        InputError: the model has fewer layers than stages.
    """
    llm, tp = replica.llm, replica.parallelism.tp
    kv, draft = replica.precision.kv_cache, _draft_llm(replica)
    stages = pipeline_stages(llm, replica.parallelism.pp, replica.engine.spare_layers)
    return tuple(
        StageMemory(
            weights_bytes=_stage_weights_bytes(replica, stage) + lora_bytes_per_gpu(replica, stage),
            kv_bytes_per_token=kv_bytes_per_token_per_gpu(llm, kv, tp, stage.layers)
            + (kv_bytes_per_token_per_gpu(draft, kv, tp) if draft and stage.last else 0.0),
            sequence_bytes=sequence_bytes_per_gpu(replica, stage.layers)
            + (_sequence_bytes(draft, draft.layers, replica) if draft and stage.last else 0.0),
            samples=stage.last,
        )
        for stage in dict.fromkeys(stages)
    )


def memory_footprint(replica: ReplicaConfig, stages: Sequence[StageMemory] = ()) -> MemoryFootprint:
    """Weights, activation reserve and KV capacity of one GPU: of the pipeline stage with the least room.

    A pipeline holds as many tokens as the stage with room for the fewest; what a sequence takes beside its tokens is
    that of the stage it takes the largest share of.

    Args:
        replica: the replica.
        stages: `stage_memory` of it, where known.

    Returns:
        Bytes of one GPU and KV tokens of the replica; `reason` says what does not fit.

    Raises:
        InputError: the model has fewer layers than stages.
    """
    stages = tuple(stages) or stage_memory(replica)
    split, block_tokens = replica.parallelism, replica.engine.kv_block_tokens
    rooms = [_kv_room_bytes(replica, stage) for stage in stages]
    blocks = [
        left / (stage.kv_bytes_per_token * block_tokens) if stage.kv_bytes_per_token else math.copysign(math.inf, left)
        for stage, left in zip(stages, rooms, strict=True)
    ]
    least = min(range(len(stages)), key=lambda place: (blocks[place], rooms[place]))
    fewest, fullest, left = blocks[least], stages[least], rooms[least]
    if not math.isfinite(fewest):
        bound = "has no layers that keep keys and values of the whole context"
        raise UnsupportedFeatureError("llm", replica.llm.id, bound, "use a model with attention")
    beside = max(
        stage.sequence_bytes / (fullest.kv_bytes_per_token * block_tokens)
        if stage is fullest
        else stage.sequence_bytes * fewest / room
        for stage, room in zip(stages, rooms, strict=True)
        if room > 0.0 or stage is fullest
    )
    activations = _stage_activation_bytes(replica, fullest.samples)
    usable = usable_bytes_per_gpu(replica, fullest.weights_bytes, activations)
    whole = max(0, int(fewest))
    return MemoryFootprint(
        usable_bytes=usable,
        weights_bytes=fullest.weights_bytes,
        activation_bytes=activations,
        kv_capacity_bytes=max(0.0, left),
        kv_bytes_per_token=fullest.kv_bytes_per_token,
        kv_capacity_tokens=whole * block_tokens * split.dp,
        kv_blocks=whole * split.dp,
        sequence_blocks=math.ceil(beside),
        reason=None if whole else _shortfall(replica, fullest.weights_bytes, activations, usable),
        stages=stages,
    )


def _kv_room_bytes(replica: ReplicaConfig, stage: StageMemory) -> float:
    """What weights and activations leave of one GPU of a stage; negative where they do not fit [bytes]."""
    activations = _stage_activation_bytes(replica, stage.samples)
    usable = usable_bytes_per_gpu(replica, stage.weights_bytes, activations)
    return usable - stage.weights_bytes - activations


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
        InputError: the model's context, `max_request_tokens` or the replica's memory is too small; the message names
            which.
    """
    require_context(replica.llm, longest_request_tokens, replica.max_request_tokens)
    footprint = memory_footprint(replica)
    if footprint.reason is not None:
        raise InputError("replica.memory", replica.label, footprint.reason)
    room = one_request_room_tokens(replica, footprint)
    if longest_request_tokens > room:
        bound = f"the longest request does not fit in the {room} tokens of KV of {replica.label}"
        raise InputError("workload.lengths", longest_request_tokens, bound, "use more GPUs per replica or an fp8 cache")
    if (needed := must_hold_tokens(replica, longest_request_tokens)) > room:
        bound = (
            f"{replica.engine.name} does not start where such a request does not fit, and {replica.label} has room for "
            f"{room} tokens of KV"
        )
        raise InputError("max_request_tokens", needed, bound, f"write {longest_request_tokens} to {room}")
    return footprint


def one_request_room_tokens(replica: ReplicaConfig, footprint: MemoryFootprint) -> int:
    """KV tokens that one request finds on an empty replica: those of one attention rank.

    Args:
        replica: the replica.
        footprint: its memory.

    Returns:
        Tokens of layers that keep the whole context, windows and recurrent state of one sequence paid for [tokens].
    """
    kept = footprint.sequence_blocks * replica.engine.kv_block_tokens
    return max(0, footprint.kv_capacity_tokens // replica.parallelism.dp - kept)


def must_hold_tokens(replica: ReplicaConfig, longest_request_tokens: int) -> int:
    """KV tokens that one request must find: those of the longest, and what the engine insists on to start.

    Args:
        replica: the replica; `EngineProfile.requires_longest_fits` says whether its engine insists on anything.
        longest_request_tokens: input and output of the longest request [tokens].

    Returns:
        The larger of the two [tokens].
    """
    insists = replica.max_request_tokens if replica.engine.requires_longest_fits else None
    return max(longest_request_tokens, insists or 0)


REQUEST_HEADROOM = 1.1
"""Factor between the longest request planned for and what the engine is told to take, where nothing is given: chat
templates and retries add tokens. A choice: it costs nothing as long as one such request fits."""
REQUEST_STEP_TOKENS = 1024
"""The same is rounded up to a multiple of this [tokens]: a choice, of figures that people write."""


@dataclass(frozen=True)
class RequestLimit:
    """The longest request that an engine is told to take (vLLM's max_model_len).

    Attributes:
        tokens: input and output [tokens].
        reason: why so many, in words.
    """

    tokens: int
    reason: str


def request_limit(replica: ReplicaConfig, longest_request_tokens: int) -> RequestLimit:
    """What an engine is told to take: as given, else what the traffic needs with headroom that costs nothing.

    Without a word engines take the whole context of the model: vLLM then refuses to start where one such request does
    not fit in its KV cache, SGLang and TensorRT-LLM lower the limit to what fits
    (`EngineProfile.requires_longest_fits`).

    Args:
        replica: that has room for the longest request (`require_room`).
        longest_request_tokens: input and output of the longest request planned for [tokens].

    Returns:
        `max_request_tokens` where given; else the longest request times `REQUEST_HEADROOM`, rounded up to
        `REQUEST_STEP_TOKENS`, but no more than the model's context and what one request finds in the KV cache.
    """
    room = one_request_room_tokens(replica, memory_footprint(replica))
    if (given := replica.max_request_tokens) is not None:
        lowered = f"; {replica.engine.name} lowers it to the {room:,} that {replica.label} has room for"
        return RequestLimit(given, "as given by max_request_tokens" + (lowered if given > room else ""))
    wanted = math.ceil(REQUEST_HEADROOM * longest_request_tokens / REQUEST_STEP_TOKENS) * REQUEST_STEP_TOKENS
    limits = {
        wanted: f"the longest request planned for, {longest_request_tokens:,}, and {REQUEST_HEADROOM - 1:.0%} headroom",
        replica.llm.max_context_tokens: f"the context of {replica.llm.id}",
        room: f"what the KV cache of {replica.label} holds",
    }
    tokens = max(longest_request_tokens, min(limits))
    return RequestLimit(tokens, limits.get(tokens, "the longest request planned for"))


def weights_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Bytes of weights on one GPU, of the fullest pipeline stage.

    Matrices split over tp, KV projections repeated where tp > kv_heads, projections to latent vectors on every GPU,
    routed experts over all GPUs of a stage; embeddings, head and what is small split over tp. A stage has its own
    layers; the first the embeddings and the vision encoder, the last the head (a copy of tied embeddings) and, with
    speculation, what drafts. A drafter of which only the cost is known takes that share (`Speculation.draft_cost`).

    Args:
        replica: the replica.

    Returns:
        Bytes on one GPU, adapters left out [bytes].

    Raises:
        InputError: the model has fewer layers than stages.
    """
    stages = pipeline_stages(replica.llm, replica.parallelism.pp, replica.engine.spare_layers)
    return max(_stage_weights_bytes(replica, stage) for stage in dict.fromkeys(stages))


def _stage_weights_bytes(replica: ReplicaConfig, stage: PipelineStage) -> float:
    """Bytes of weights on one GPU of a stage, adapters left out."""
    drafting, split = replica.drafting, replica.parallelism
    total = _held_bytes(replica.llm, replica.precision, split, stage)
    if drafting is not None and drafting.draft is not None and stage.last:
        total += _draft_bytes(drafting.draft, replica.precision, split)
    elif drafting is not None:
        total *= 1.0 + (drafting.cost or 0.0)
    return total + (encoder_bytes_per_gpu(replica.llm, split.tp) if stage.first else 0.0)


def _draft_bytes(draft: DraftSpec, precision: Precision, split: Parallelism) -> float:
    """Bytes on one GPU of what guesses; the matrix that fuses hidden states is whole on each (``llama_eagle3.py``)."""
    llm, formats = draft.llm, draft_precision(draft, precision)
    has_tables = not draft.shares_head
    total = _held_bytes(llm, formats, split, PipelineStage(llm.layers, first=has_tables, last=has_tables))
    total += ACTIVATION_BYTES * draft.fused_inputs * llm.hidden_size
    total += BYTES_PER_VALUE[formats.of(Part.ATTENTION)[0]] * wide_weights(draft) / split.tp
    return draft.modules * total + ACTIVATION_BYTES * draft.embedding_rows * llm.hidden_size / split.tp


def _held_bytes(llm: LlmSpec, precision: Precision, split: Parallelism, stage: PipelineStage) -> float:
    """Bytes of the weights of a model that a stage holds, on one GPU, a vision encoder left out."""
    held = llm.with_layers(stage.layers)
    total = 0.0
    for group in stage.layers:
        total += group.count * _layer_bytes_per_gpu(group, llm.hidden_size, precision, split)
    head, table = float(lm_head_weights(llm)), ACTIVATION_BYTES * embedding_parameters(llm)
    table -= 0.0 if llm.tied_embeddings else ACTIVATION_BYTES * head
    tables = table if stage.first else 0.0
    if stage.last and not llm.tied_embeddings:
        tables += BYTES_PER_VALUE[precision.of(Part.LM_HEAD)[0]] * head
    elif stage.last and not stage.first:
        tables += ACTIVATION_BYTES * head
    small = parameters(held) - linear_parameters(held) - embedding_parameters(held)
    small -= sum(group.count * latent_projection_weights(group.feed_forward, llm.hidden_size) for group in held.layers)
    pooled = sum(group.count * _compressor_weights(group, llm.hidden_size) for group in held.layers)
    small, total = small - pooled, total + ACTIVATION_BYTES * pooled
    return total + (tables + ACTIVATION_BYTES * small) / split.tp


def encoder_bytes_per_gpu(llm: LlmSpec, tp: int) -> float:
    """Bytes of the vision encoder on one GPU of the first stage: split as the language model where it divides.

    Source: vLLM, ``mm_encoder_tp_mode`` (weights by default); see `planner.roofline.encoder_tp`.

    Args:
        llm: model.
        tp: GPUs that its layers are split over.

    Returns:
        0 for a model without one [bytes].
    """
    return 0.0 if llm.encoder is None else encoder_weight_bytes(llm) / encoder_tp(llm.encoder, tp)


def _compressor_weights(group: LayerGroup, hidden: int) -> int:
    """Weights that make compressed keys in one layer, which every GPU has (``disable_tp`` of vLLM's compressor)."""
    kind = group.attention
    return compressor_weights(kind, hidden) if isinstance(kind, CompressedAttention) else 0


def _draft_llm(replica: ReplicaConfig) -> LlmSpec | None:
    """What of a draft keeps a cache; None without."""
    draft = replica.drafting.draft if replica.drafting is not None else None
    return draft.llm if draft is not None else None


def lora_bytes_per_gpu(replica: ReplicaConfig, stage: PipelineStage | None = None) -> float:
    """Bytes of all adapter slots on one GPU: factors are split as their base matrices (S-LoRA, MLSys 2024, sec. 6).

    Args:
        replica: the replica.
        stage: of its pipeline; None: all layers.

    Returns:
        0 without adapters [bytes].
    """
    lora, llm = replica.lora, replica.llm
    if lora is None:
        return 0.0
    held = llm if stage is None else llm.with_layers(stage.layers)
    return lora.slots * lora_bytes(held, lora.rank, LORA_DTYPE) / replica.parallelism.tp


def _layer_bytes_per_gpu(group: LayerGroup, hidden: int, precision: Precision, split: Parallelism) -> float:
    """Bytes of the matrices of one layer on one GPU."""

    def stored(part: Part, weights: float) -> float:
        return weights * BYTES_PER_VALUE[precision.of(part)[0]]

    output = attention_output_weights(group.attention, hidden) / split.tp
    attention = stored(Part.ATTENTION, _attention_weights_per_gpu(group, hidden, split.tp) - output)
    attention += stored(Part.ATTENTION_OUTPUT, output)
    block = group.feed_forward
    if isinstance(block, MoeFeedForward):
        held = block.experts + split.redundant_experts
        routed = held * feed_forward_weights(block, hidden) / split.stage_gpus
        shared = shared_expert_weights(block, hidden) / split.tp
        latent = latent_projection_weights(block, hidden) * ACTIVATION_BYTES
        return attention + latent + stored(Part.EXPERTS, routed) + stored(Part.SHARED_EXPERTS, shared)
    return attention + stored(Part.FEED_FORWARD, feed_forward_weights(block, hidden) / split.tp)


def _attention_weights_per_gpu(group: LayerGroup, hidden: int, tp: int) -> float:
    """Weights of the attention matrices of one layer on one GPU; KV projections repeat where tp > kv_heads.

    Index heads that choose blocks are split as KV heads are, with one key for all on every GPU
    (``MinimaxM3QKVParallelLinearWithIndexer`` of vLLM 0.24); an index of latent attention is whole on every GPU
    (``ReplicatedLinear`` of its ``Indexer``).
    """
    kind = group.attention
    whole = float(attention_weights(kind, hidden))
    if isinstance(kind, GroupedQueryAttention):
        key = float(kind.index.head_dim * hidden) if kind.index is not None else 0.0
        by_kv_head = kind.projected_kv_values * hidden + index_weights(kind, hidden) - key
        return (whole - by_kv_head - key) / tp + by_kv_head * kv_heads_per_gpu(kind, tp) / kind.kv_heads + key
    matrices = attention_matrices(kind, hidden)
    repeated = float(sum(n * k for name, (n, k) in matrices.items() if name in REPEATED_MATRICES))
    if isinstance(kind, StateSpace):
        repeated += 2.0 * hidden * kind.state_size * (state_groups_per_gpu(kind, tp) - kind.groups / tp)
    return repeated + (whole - repeated) / tp


REPEATED_MATRICES = frozenset(
    {
        *("q_a_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "indexer.wk", "indexer.weights_proj"),
        *("wq_a", "wkv", "f_a_proj", "g_a_proj"),
    }
)
"""Names among `attention_matrices` of what every GPU of a tensor-parallel group has whole: projections to a vector that
all heads share. Source: ``ReplicatedLinear`` in ``deepseek_v2.py`` (attention and Indexer) and ``kda.py`` of vLLM."""


def activation_bytes_per_gpu(replica: ReplicaConfig) -> float:
    """Reserve for activations of a full step: the residual stream twice, the widest layer's tensors, and logits.

    tokens * (2 hidden + max(attention, feed-forward) widths) * 2 bytes + sampled rows * vocab / tp * 4 bytes, with the
    tokens and rows of one attention rank. Attention residuals keep a residual more for each of their blocks,
    hyper-connections as many as they have streams.

    Args:
        replica: the replica.

    Returns:
        Reserve on one GPU [bytes].
    """
    return _stage_activation_bytes(replica, samples=True)


def _stage_activation_bytes(replica: ReplicaConfig, samples: bool) -> float:
    """Reserve on one GPU of a stage, with the logits if it samples."""
    split = replica.parallelism
    tokens = replica.max_batched_tokens / split.dp
    widths = [_widest_values(group, split) for group in replica.llm.layers]
    residuals = 2 * replica.llm.residual_streams + kept_residuals(replica.llm)[1]
    draft = replica.drafting.draft if replica.drafting is not None else None
    read = draft.fused_inputs if draft is not None and draft.fused_once else 0
    live = tokens * (residuals * replica.llm.hidden_size + max(widths) + read) * ACTIVATION_BYTES
    rows = min(replica.max_running_requests, replica.max_batched_tokens) / split.dp if samples else 0.0
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
        projected = kind.projected_kv_values // kind.kv_heads * kv_heads_per_gpu(kind, split.tp)
        width = max(width, kind.heads // split.tp * kind.head_dim + projected)
    elif isinstance(kind, LatentAttention):
        width = max(width, kind.heads / split.tp * (2 * kind.nope_dim + kind.rope_dim + kind.value_dim))
    elif isinstance(kind, LinearAttention | StateSpace):
        width = max(width, 2.0 * kind.conv_channels / split.tp)
    elif isinstance(kind, CompressedAttention):
        width = max(width, 2.0 * padded_heads(kind.heads / split.tp) * kind.head_dim)
    return width


def kv_bytes_per_token_per_gpu(
    llm: LlmSpec, kv_dtype: Dtype, tp: int, layers: Sequence[LayerGroup] | None = None
) -> float:
    """KV bytes of one token on one GPU, in layers that keep the whole context.

    Grouped heads are split over tp (repeated where tp > kv_heads); a latent row and the key of an index are on every
    GPU. A model whose layers all have windows is counted as if they kept the whole context.

    Args:
        llm: model.
        kv_dtype: number format of the cache.
        tp: GPUs its heads are split over.
        layers: of a pipeline stage; None: all.

    Returns:
        Of these layers [bytes/token].
    """
    windows = _keeps_windows(llm)
    total = 0.0
    for group in llm.layers if layers is None else layers:
        if windows and not _keeps_context(group):
            continue
        alone = llm.with_layers((group,))
        index, share = index_bytes_per_token(alone), _kv_share(group, tp)
        kept = kv_bytes_per_token(alone, kv_dtype) or kv_window_bytes(alone, kv_dtype, 1)
        total += share * (kept - index) + index
    return total


def _has_cache(group: LayerGroup) -> bool:
    """Whether the layers keep keys and values."""
    return isinstance(group.attention, GroupedQueryAttention | LatentAttention | CompressedAttention)


def _keeps_context(group: LayerGroup) -> bool:
    """Whether the layers keep something of every token: all but those with a window and nothing beside it."""
    kind = group.attention
    return kind.ratio > 0 if isinstance(kind, CompressedAttention) else _has_cache(group) and not _window(group)


def _kv_share(group: LayerGroup, tp: int) -> float:
    """Share of the cache of these layers that one GPU holds."""
    kind = group.attention
    return kv_heads_per_gpu(kind, tp) / kind.kv_heads if isinstance(kind, GroupedQueryAttention) else 1.0


def _window(group: LayerGroup) -> int:
    """Tokens that the layers keep at most; 0: all."""
    return getattr(group.attention, "window", 0)


def _keeps_windows(llm: LlmSpec) -> bool:
    """Whether windows are kept beside the tokens: unless all layers with a cache have one."""
    return any(map(_keeps_context, llm.layers))


def sequence_bytes_per_gpu(replica: ReplicaConfig, layers: Sequence[LayerGroup] | None = None) -> float:
    """Bytes one sequence takes on one GPU beside its tokens: full windows of windowed layers, recurrent state.

    Args:
        replica: the replica.
        layers: of a pipeline stage; None: all.

    Returns:
        Per sequence and GPU, of these layers [bytes].
    """
    return _sequence_bytes(replica.llm, replica.llm.layers if layers is None else layers, replica)


def _sequence_bytes(llm: LlmSpec, layers: Sequence[LayerGroup], replica: ReplicaConfig) -> float:
    """As `sequence_bytes_per_gpu`, of layers of a model that the replica runs."""
    tp, windows = replica.parallelism.tp, _keeps_windows(llm)
    total = 0.0
    for group in layers:
        alone = llm.with_layers((group,))
        total += state_bytes(alone) / (1 if isinstance(group.attention, CompressedAttention) else tp)
        if isinstance(group.attention, StateSpace):
            total += group.count * _repeated_state_bytes(group.attention, tp)
        if windows and _window(group):
            kept = kv_window_bytes(alone, replica.precision.kv_cache, replica.longest_tokens)
            total += _kv_share(group, tp) * kept
    return total


def _repeated_state_bytes(kind: StateSpace, tp: int) -> float:
    """Bytes of the convolution's state of groups that every GPU of the tensor-parallel group has, in one layer."""
    more = state_groups_per_gpu(kind, tp) - kind.groups / tp
    return 2.0 * more * kind.state_size * (kind.conv_kernel - 1) * ACTIVATION_BYTES


def kv_transfer_bytes(replica: ReplicaConfig, input_tokens: NDArray[Any], tp: int | None = None) -> FloatArray:
    """Bytes of each prompt's cache that travel between pools: KV of all tokens, of the windows, and recurrent state.

    What every GPU of a tensor-parallel group keeps whole (a latent row, KV heads beyond their number) each of them
    receives. Source: the NIXL connector of vLLM (every decode worker reads from a prefill worker; for latent attention
    all read the same).

    Args:
        replica: that receives them.
        input_tokens: prompts, shape (n,) [tokens].
        tp: its GPUs that share a sequence; None: as it is split.

    Returns:
        Shape (n,) [bytes].
    """
    tp, draft = tp or replica.parallelism.tp, _draft_llm(replica)
    sent = _transferred_bytes(replica.llm, replica, input_tokens, tp)
    return sent if draft is None else sent + _transferred_bytes(draft, replica, input_tokens, tp)


def kv_transfer_bytes_per_token(replica: ReplicaConfig) -> float:
    """Of `kv_transfer_bytes`, those that can be sent with the chunk they belong to: KV of layers that keep all tokens.

    Windows and recurrent state are those at the end of the prompt and go with its last chunk. Source: send_kv_chunk of
    SGLang, python/sglang/srt/disaggregation/prefill.py (`state_indices` only where `last_chunk`).

    Args:
        replica: that receives them.

    Returns:
        Per prompt token [bytes].
    """
    tp, draft = replica.parallelism.tp, _draft_llm(replica)
    per_token = _transferred_bytes_per_token(replica.llm, replica, tp)
    return per_token if draft is None else per_token + _transferred_bytes_per_token(draft, replica, tp)


def _transferred_bytes_per_token(llm: LlmSpec, replica: ReplicaConfig, tp: int) -> float:
    """As `kv_transfer_bytes_per_token`, of one model that the replica runs."""
    kv, cached = replica.precision.kv_cache, [group for group in llm.layers if _has_cache(group)]
    return sum(tp * _kv_share(group, tp) * kv_bytes_per_token(llm.with_layers((group,)), kv) for group in cached)


def _transferred_bytes(llm: LlmSpec, replica: ReplicaConfig, input_tokens: NDArray[Any], tp: int) -> FloatArray:
    """As `kv_transfer_bytes`, of one model that the replica runs."""
    kv = replica.precision.kv_cache
    copied = [(tp * _kv_share(group, tp), llm.with_layers((group,))) for group in llm.layers]
    per_token = _transferred_bytes_per_token(llm, replica, tp)
    transferred = np.asarray(input_tokens * per_token + state_bytes(llm), dtype=np.float64)
    for copies, alone in copied:
        window = _window(alone.layers[0])
        if window:
            transferred += copies * kv_window_bytes(alone, kv, 1.0) * np.minimum(input_tokens, window)
    return transferred
