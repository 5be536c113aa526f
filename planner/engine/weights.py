"""Weights of one replica on one of its GPUs, laid out as the engine stores them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware_db import Dtype, ExpertPadding
from planner.engine.lora import LORA_DTYPE, lora_bytes
from planner.engine.replica import ReplicaConfig
from planner.llm import (
    BYTES_PER_VALUE,
    DraftSpec,
    LayerGroup,
    LlmSpec,
    MoeFeedForward,
    Part,
    PipelineStage,
    Precision,
    attentions,
    draft_precision,
    embedding_parameters,
    encoder_weight_bytes,
    linear_parameters,
    lm_head_weights,
    parameters,
    wide_weights,
)
from planner.roofline import ACTIVATION_BYTES, Parallelism, encoder_tp


def stage_weights_bytes(replica: ReplicaConfig, stage: PipelineStage) -> float:
    """Bytes of weights on one GPU of a stage, adapters left out.

    Matrices split over tp, KV projections repeated where tp > kv_heads, projections to latent vectors on every GPU,
    routed experts over all GPUs of a stage; embeddings, head and what is small split over tp. A stage has its own
    layers; the first the embeddings and the vision encoder, the last the head (a copy of tied embeddings) and, with
    speculation, what drafts. A drafter of which only the cost is known takes that share (`Speculation.draft_cost`).

    Args:
        replica: the replica.
        stage: of its pipeline.

    Returns:
        On one GPU [bytes].
    """
    drafting, held = replica.drafting, _Held(replica.precision, replica.parallelism, replica.expert_padding)
    total = held.bytes_of(replica.llm, stage) + rotary_bytes(replica)
    if drafting is not None and drafting.draft is not None and stage.last:
        total += _draft_bytes(drafting.draft, held)
    elif drafting is not None:
        total *= 1.0 + (drafting.cost or 0.0)
    return total + (encoder_bytes_per_gpu(replica.llm, replica.parallelism.tp) if stage.first else 0.0)


def rotary_bytes(replica: ReplicaConfig) -> float:
    """Bytes of the table of rotary positions, whole on every GPU: cosines and sines of all positions in 16 bits.

    ``context * head_dim * 2`` for each size of heads. Source: vLLM, ``rotary_embedding/base.py`` (`cos_sin_cache`).

    Args:
        replica: the replica.

    Returns:
        On one GPU [bytes].

    >>> from hardware_db import load_hardware
    >>> from planner.llm import load_llm
    >>> db = load_hardware()
    >>> one = ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=db.skus["h100-sxm"], engine=db.engines["vllm"])
    >>> rotary_bytes(one) / 2**20  # 131,072 positions of 128 channels
    32.0
    """
    kinds = {kind.rotary_channels for _, kind in attentions(replica.llm.layers)}
    has_table = not replica.llm.learned_positions
    return replica.llm.max_context_tokens * ACTIVATION_BYTES * sum(kinds) if has_table else 0.0


def _draft_bytes(draft: DraftSpec, held: _Held) -> float:
    """Bytes on one GPU of what guesses; the matrix that fuses hidden states is whole on each (``llama_eagle3.py``)."""
    llm, tp = draft.llm, held.split.tp
    own = replace(held, precision=draft_precision(draft, held.precision))
    has_tables = not draft.shares_head
    total = own.bytes_of(llm, PipelineStage(llm.layers, first=has_tables, last=has_tables))
    total += ACTIVATION_BYTES * draft.fused_inputs * llm.hidden_size
    total += BYTES_PER_VALUE[own.precision.of(Part.ATTENTION)[0]] * wide_weights(draft) / tp
    return draft.modules * total + ACTIVATION_BYTES * draft.embedding_rows * llm.hidden_size / tp


@dataclass(frozen=True)
class _Held:
    """Formats and split of the weights of a model.

    Attributes:
        precision: their formats.
        split: over GPUs.
        padding: by format, what kernels pad the matrices of routed experts to.
    """

    precision: Precision
    split: Parallelism
    padding: Mapping[Dtype, ExpertPadding]

    def bytes_of(self, llm: LlmSpec, stage: PipelineStage) -> float:
        """Bytes of the weights of a model that a stage holds, on one GPU, a vision encoder left out."""
        held = llm.with_layers(stage.layers)
        total = sum(group.count * self._layer_bytes(group, llm.hidden_size) for group in stage.layers)
        head, table = float(lm_head_weights(llm)), ACTIVATION_BYTES * embedding_parameters(llm)
        table -= 0.0 if llm.tied_embeddings else ACTIVATION_BYTES * head
        tables = table if stage.first else 0.0
        if stage.last and not llm.tied_embeddings:
            tables += BYTES_PER_VALUE[self.precision.of(Part.LM_HEAD)[0]] * head
        elif stage.last and not stage.first:
            tables += ACTIVATION_BYTES * head
        small = parameters(held) - linear_parameters(held) - embedding_parameters(held)
        hidden, experts = llm.hidden_size, [(group.count, group.experts) for group in held.layers]
        whole = sum(count * kind.compressor_weights(hidden) for count, kind in attentions(held.layers))
        whole += sum(count * block.latent_weights(hidden) for count, block in experts if block is not None)
        return total + ACTIVATION_BYTES * whole + (tables + ACTIVATION_BYTES * (small - whole)) / self.split.tp

    def _layer_bytes(self, group: LayerGroup, hidden: int) -> float:
        """Bytes of the matrices of one layer on one GPU."""
        tp, kind, block = self.split.tp, group.attention, group.feed_forward
        weights: dict[Part, float] = {}
        if kind is not None:
            output = kind.output_weights(hidden) / tp
            weights[Part.ATTENTION] = kind.weights_per_gpu(hidden, tp) - output
            weights[Part.ATTENTION_OUTPUT] = output
        if block is not None:
            weights |= {part: total / tp for part, total in block.parts(hidden).items()}
        if group.experts is not None:
            weights[Part.EXPERTS] = self._routed_weights(group.experts, hidden)
        return sum(count * BYTES_PER_VALUE[self.precision.of(part)[0]] for part, count in weights.items())

    def _routed_weights(self, block: MoeFeedForward, hidden: int) -> float:
        """Weights of the routed experts on one GPU, as kernels pad them."""
        held = (block.experts + self.split.redundant_experts) / self.split.ep
        padding = self.padding.get(self.precision.of(Part.EXPERTS)[0])
        if padding is None:
            return held * block.weights(hidden) / self.split.expert_tp
        read = block.width(hidden)
        inner, up = block.intermediate / self.split.expert_tp, 2 if block.gated else 1
        wide = _up_to(padding.intermediate, inner)
        rows = _up_to(padding.rows, up * wide)
        return held * (rows * _up_to(padding.hidden, read) + _up_to(padding.rows, read) * wide)


def _up_to(multiple: int, size: float) -> float:
    return math.ceil(size / multiple) * multiple


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
    return lora.held * lora_bytes(held, lora.rank, LORA_DTYPE) / replica.parallelism.tp
