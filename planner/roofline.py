"""Operator work and operator time of one transformer step on one GPU of a tensor-parallel group.

Answers: how many FLOPs, HBM bytes and link bytes each operator of a step costs, and how long it must at least take.

The work of every operator is a *linear function of eight statistics of the step* (`Statistic`): a constant for the
weights that are read once whatever the batch, terms per token, per query-key pair, per cached token. So one matrix
product gives the times of any number of steps at once, and each operator's formula stays one visible line.

Operator time (roofline; Williams, Waterman, Patterson 2009, CACM 52(4), eq. 1):

    time = max(flops / (e_c * peak_flops_per_s), hbm_bytes / (e_m * bandwidth), link_bytes / (e_l * link_bandwidth))

with efficiencies e = 1 unless a calibration says otherwise. Step time is the sum over operators.
Transformer FLOP counts follow Narayanan et al. 2021 (arXiv:2104.04473, appendix): 2 FLOPs per weight and token in a
matrix product, 4 * heads * head_dim FLOPs per query-key pair in attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from hardware_db.schema import Dtype, GpuSku, Topology
from planner.errors import InputError, UnsupportedFeatureError
from planner.llm import (
    BYTES_PER_VALUE,
    GroupedQueryAttention,
    LayerGroup,
    LlmSpec,
    MoeFeedForward,
    Precision,
    feed_forward_weights,
    router_weights,
)

FloatArray = NDArray[np.float64]
ACTIVATION_BYTES = 2.0
"""Bytes per activation value between operators: residual stream and collectives stay in 16 bit in all engines."""


class Statistic(StrEnum):
    """What a step's work depends on. Sums run over the sequences in the step."""

    STEP = "step"  # 1: once per step
    TOKENS = "tokens"  # tokens in the step: one per decode plus the prompt chunks
    LOGIT_ROWS = "logit_rows"  # positions whose next token is sampled: decodes and chunks
    DECODE_TOKENS = "decode_tokens"  # sequences decoding
    DECODE_CONTEXT = "decode_context"  # cached tokens the decodes attend to, own token included
    CHUNK_TOKENS = "chunk_tokens"  # new prompt tokens
    CHUNK_PAIRS = "chunk_pairs"  # query-key pairs of the chunks: new * past + new * (new + 1) / 2
    CHUNK_CONTEXT = "chunk_context"  # cached tokens the chunks read: past + new
    EXPERT_SHARE = "expert_share"  # expected share of a layer's experts hit by at least one token


STATISTICS = tuple(Statistic)


class Family(StrEnum):
    """Operator families: the granularity of step-time items and of calibrations."""

    EMBEDDING = "embedding"
    NORM = "norm"
    QKV = "qkv"
    ATTENTION_PREFILL = "attention_prefill"
    ATTENTION_DECODE = "attention_decode"
    ATTENTION_OUTPUT = "attention_output"
    FEED_FORWARD = "feed_forward"
    ROUTER = "router"
    EXPERTS = "experts"
    LM_HEAD = "lm_head"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"


class Bound(StrEnum):
    """The resource an operator, a step or a pool waits for."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"
    OVERHEAD = "overhead"


@dataclass(frozen=True)
class StepShape:
    """What is in a step (or in many: arrays of one shape).

    Attributes:
        decodes: sequences advanced by one token.
        decode_context: sum over decodes of the tokens they attend to, own token included.
        chunk_tokens: new prompt tokens over all chunks.
        chunk_pairs: sum over chunks of new * past + new * (new + 1) / 2 query-key pairs (causal attention integrated
            over the positions of the chunk).
        chunk_context: sum over chunks of past + new tokens.
        chunks: number of prompt chunks.
    """

    decodes: FloatArray | float
    decode_context: FloatArray | float
    chunk_tokens: FloatArray | float = 0.0
    chunk_pairs: FloatArray | float = 0.0
    chunk_context: FloatArray | float = 0.0
    chunks: FloatArray | float = 0.0


Linear = Mapping[Statistic, float]


@dataclass(frozen=True)
class OperatorWork:
    """Work of one operator on one GPU, summed over the layers that have it: linear in the step's statistics.

    Attributes:
        family: operator family.
        dtype: number format of its arithmetic.
        flops: FLOPs per unit of each statistic.
        hbm_bytes: HBM bytes per unit of each statistic.
        link_bytes: bytes each GPU sends over the scale-up link per unit of each statistic.
    """

    family: Family
    dtype: Dtype
    flops: Linear
    hbm_bytes: Linear
    link_bytes: Linear


def expected_expert_share(experts: int, experts_per_token: int, tokens: FloatArray | float) -> FloatArray | float:
    """Expected share of a layer's experts that at least one of `tokens` [tokens] visits, uniform routing.

    1 - (1 - k/E)^T: each token visits k of E distinct experts, so misses a given one with probability 1 - k/E.

    >>> expected_expert_share(8, 2, 1.0)  # one token of Mixtral reads 2 of 8 experts
    0.25
    """
    return 1.0 - (1.0 - experts_per_token / experts) ** tokens


def all_reduce_link_bytes(payload_bytes: float, gpus: int) -> float:
    """Bytes each GPU sends in a ring all-reduce of `payload_bytes` over `gpus` GPUs: 2 (n - 1) / n * payload.

    Bandwidth-optimal ring (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2), theorem 1).

    >>> all_reduce_link_bytes(100.0, 4)
    150.0
    """
    return 2.0 * (gpus - 1) / gpus * payload_bytes


def link_bandwidth_bytes_per_s(sku: GpuSku, gpus: int) -> float:
    """Bandwidth per GPU and direction [bytes/s] among `gpus` GPUs of one node.

    Inside the scale-up domain a switch gives every GPU its whole bandwidth; a mesh gives it one link per peer, so
    (n - 1) / (domain - 1) of it; a torus at least one ring, so at most its whole and at least a pair of links is
    taken as whole (optimistic for non-contiguous groups). Beyond the domain traffic goes over PCIe.
    Raises InputError when the group does not fit in a node or domain.
    """
    up = sku.scale_up
    largest = max(sku.node.gpus, up.domain_gpus)
    if gpus > largest:
        raise InputError("parallelism.tp", gpus, f"{sku.id} has at most {largest} GPUs in one fast domain", "lower tp")
    if gpus > up.domain_gpus or up.topology is Topology.HOST:
        return sku.node.pcie_bytes_per_s.value
    whole = up.bandwidth_bytes_per_s.value
    if up.topology is Topology.MESH:
        return whole * max(gpus - 1, 1) / (up.domain_gpus - 1)
    return whole


def half_precision(sku: GpuSku) -> Dtype:
    """The 16-bit format of the SKU's matrix units: bf16 where it has it, else fp16."""
    return Dtype.BF16 if Dtype.BF16 in sku.peak_flops_per_s else Dtype.FP16


def compute_dtype(precision: Precision, sku: GpuSku) -> Dtype:
    """Number format in which the SKU multiplies weights of this precision.

    The activations' format where the SKU has a peak for it; otherwise weights are dequantised and multiplied in 16
    bit (weight-only kernels), which saves memory traffic but no FLOPs.
    """
    return precision.activations if precision.activations in sku.peak_flops_per_s else half_precision(sku)


def ridge_point_flops_per_byte(sku: GpuSku, dtype: Dtype) -> float:
    """Arithmetic intensity [FLOP/byte] above which a kernel is compute-bound: peak FLOPs / bandwidth."""
    return sku.peak_flops_per_s[dtype].value / sku.hbm_bandwidth_bytes_per_s.value


def kv_heads_per_gpu(attention: GroupedQueryAttention, tp: int) -> int:
    """Key/value heads one GPU holds: kv_heads / tp, at least 1 (replicated when tp > kv_heads).

    Raises InputError when heads cannot be split evenly, as engines do.
    """
    if attention.heads % tp:
        raise InputError("parallelism.tp", tp, f"{attention.heads} query heads do not split evenly", "use a divisor")
    smaller, larger = sorted((attention.kv_heads, tp))
    if larger % smaller:
        raise InputError("parallelism.tp", tp, f"{attention.kv_heads} KV heads do not split evenly", "use a divisor")
    return max(1, attention.kv_heads // tp)


def _linear_work(family: Family, dtype: Dtype, weights: float, weight_bytes: float, width: float) -> OperatorWork:
    """A matrix product over all tokens of the step: weights read once, `width` values in and out per token."""
    return OperatorWork(
        family,
        dtype,
        flops={Statistic.TOKENS: 2.0 * weights},
        hbm_bytes={Statistic.STEP: weight_bytes, Statistic.TOKENS: width * ACTIVATION_BYTES},
        link_bytes={},
    )


def qkv_work(llm: LlmSpec, group: LayerGroup, precision: Precision, dtype: Dtype, tp: int) -> OperatorWork:
    """Query, key and value projections: hidden x (heads / tp + 2 kv_heads_per_gpu) * head_dim weights per layer."""
    attention = group.attention
    out = (attention.heads // tp + 2 * kv_heads_per_gpu(attention, tp)) * attention.head_dim
    weights = float(group.count * llm.hidden_size * out)
    width = group.count * (llm.hidden_size + out)
    return _linear_work(Family.QKV, dtype, weights, weights * BYTES_PER_VALUE[precision.weights], width)


def attention_output_work(llm: LlmSpec, group: LayerGroup, precision: Precision, dtype: Dtype, tp: int) -> OperatorWork:
    """Output projection: heads * head_dim / tp x hidden weights per layer."""
    into = group.attention.heads // tp * group.attention.head_dim
    weights = float(group.count * into * llm.hidden_size)
    width = group.count * (into + llm.hidden_size)
    return _linear_work(Family.ATTENTION_OUTPUT, dtype, weights, weights * BYTES_PER_VALUE[precision.weights], width)


def attention_decode_work(group: LayerGroup, precision: Precision, dtype: Dtype, tp: int) -> OperatorWork:
    """One query per sequence against its cache: 4 h d FLOPs and 2 h_kv d values of KV read per cached token.

    Queries in, outputs out and the new token's KV add per sequence. h = heads / tp, h_kv = KV heads on this GPU.
    """
    pairs = reads = Statistic.DECODE_CONTEXT
    return _attention_work(
        Family.ATTENTION_DECODE, group, precision, dtype, tp, (pairs, reads, Statistic.DECODE_TOKENS)
    )


def attention_prefill_work(group: LayerGroup, precision: Precision, dtype: Dtype, tp: int) -> OperatorWork:
    """Chunk queries against all earlier positions: 4 h d FLOPs per pair.

    KV of the past and of the chunk is read once, the new tokens' KV is written.
    """
    per = (Statistic.CHUNK_PAIRS, Statistic.CHUNK_CONTEXT, Statistic.CHUNK_TOKENS)
    return _attention_work(Family.ATTENTION_PREFILL, group, precision, dtype, tp, per)


def _attention_work(
    family: Family,
    group: LayerGroup,
    precision: Precision,
    dtype: Dtype,
    tp: int,
    per: tuple[Statistic, Statistic, Statistic],
) -> OperatorWork:
    """Softmax attention with FLOPs per query-key pair, KV reads per cached token, traffic per query token (`per`)."""
    attention = group.attention
    pairs, reads, queries = per
    query = attention.heads // tp * attention.head_dim
    kv = 2.0 * kv_heads_per_gpu(attention, tp) * attention.head_dim * BYTES_PER_VALUE[precision.kv_cache]
    return OperatorWork(
        family,
        dtype,
        flops={pairs: group.count * 4.0 * query},
        hbm_bytes={reads: group.count * kv, queries: group.count * (kv + 2.0 * query * ACTIVATION_BYTES)},
        link_bytes={},
    )


def feed_forward_work(llm: LlmSpec, group: LayerGroup, precision: Precision, dtype: Dtype, tp: int) -> OperatorWork:
    """Dense feed-forward: gate, up, down (or up, down), the intermediate size split over tp."""
    block = group.feed_forward
    weights = group.count * feed_forward_weights(block, llm.hidden_size) / tp
    matrices_in = 2 if block.gated else 1
    width = group.count * (2 * llm.hidden_size + (matrices_in + 1) * block.intermediate / tp)
    return _linear_work(Family.FEED_FORWARD, dtype, weights, weights * BYTES_PER_VALUE[precision.weights], width)


def experts_work(
    llm: LlmSpec, group: LayerGroup, moe: MoeFeedForward, precision: Precision, dtype: Dtype, tp: int
) -> OperatorWork:
    """Routed experts, each split over tp: FLOPs for k experts per token, bytes for the distinct experts hit."""
    one = feed_forward_weights(moe, llm.hidden_size) / tp
    matrices_in = 2 if moe.gated else 1
    width = moe.experts_per_token * (2 * llm.hidden_size + (matrices_in + 1) * moe.intermediate / tp)
    return OperatorWork(
        Family.EXPERTS,
        dtype,
        flops={Statistic.TOKENS: group.count * 2.0 * moe.experts_per_token * one},
        hbm_bytes={
            Statistic.EXPERT_SHARE: group.count * moe.experts * one * BYTES_PER_VALUE[precision.weights],
            Statistic.TOKENS: group.count * width * ACTIVATION_BYTES,
        },
        link_bytes={},
    )


def router_work(llm: LlmSpec, group: LayerGroup, moe: MoeFeedForward, half: Dtype) -> OperatorWork:
    """Expert scores: hidden x experts weights in 16 bit, computed on every GPU."""
    weights = float(group.count * router_weights(moe, llm.hidden_size))
    width = group.count * (llm.hidden_size + moe.experts)
    return _linear_work(Family.ROUTER, half, weights, weights * BYTES_PER_VALUE[half], width)


def norm_work(llm: LlmSpec, half: Dtype) -> OperatorWork:
    """Norms fused with the residual addition: two reads and two writes of the hidden state each; traffic only."""
    layers = sum(group.count for group in llm.layers)
    values = (llm.norms_per_layer * layers + 1) * 4.0 * llm.hidden_size
    return OperatorWork(Family.NORM, half, {}, {Statistic.TOKENS: values * ACTIVATION_BYTES}, {})


def embedding_work(llm: LlmSpec, half: Dtype) -> OperatorWork:
    """One row of the embedding table read and one hidden state written per token."""
    return OperatorWork(Family.EMBEDDING, half, {}, {Statistic.TOKENS: 2.0 * llm.hidden_size * ACTIVATION_BYTES}, {})


def lm_head_work(llm: LlmSpec, half: Dtype, tp: int) -> OperatorWork:
    """Logits of the sampled positions: hidden x vocab / tp weights in 16 bit, read once."""
    weights = llm.hidden_size * llm.vocab_size / tp
    width = llm.hidden_size + llm.vocab_size / tp
    return OperatorWork(
        Family.LM_HEAD,
        half,
        flops={Statistic.LOGIT_ROWS: 2.0 * weights},
        hbm_bytes={
            Statistic.STEP: weights * BYTES_PER_VALUE[half],
            Statistic.LOGIT_ROWS: width * ACTIVATION_BYTES,
        },
        link_bytes={},
    )


def all_reduce_work(llm: LlmSpec, half: Dtype, tp: int) -> OperatorWork:
    """Two all-reduces per layer (after attention and after feed-forward) and one after the embedding."""
    layers = sum(group.count for group in llm.layers)
    payload = (2 * layers + 1) * llm.hidden_size * ACTIVATION_BYTES
    return OperatorWork(
        Family.ALL_REDUCE,
        half,
        flops={},
        hbm_bytes={Statistic.TOKENS: 2.0 * payload},
        link_bytes={Statistic.TOKENS: all_reduce_link_bytes(payload, tp)},
    )


def all_gather_work(llm: LlmSpec, half: Dtype, tp: int) -> OperatorWork:
    """Logits gathered from the tp vocabulary shards: (tp - 1) / tp of a row per sampled position."""
    row = llm.vocab_size * ACTIVATION_BYTES
    return OperatorWork(
        Family.ALL_GATHER, half, {}, {Statistic.LOGIT_ROWS: row}, {Statistic.LOGIT_ROWS: row * (tp - 1) / tp}
    )


def step_work(llm: LlmSpec, sku: GpuSku, precision: Precision, tp: int) -> tuple[OperatorWork, ...]:
    """All operators of one step on one GPU of a tp-way group, same families of several layer groups kept apart."""
    half, linear = half_precision(sku), compute_dtype(precision, sku)
    works = [embedding_work(llm, half), norm_work(llm, half)]
    for group in llm.layers:
        works += [
            qkv_work(llm, group, precision, linear, tp),
            attention_prefill_work(group, precision, half, tp),
            attention_decode_work(group, precision, half, tp),
            attention_output_work(llm, group, precision, linear, tp),
        ]
        block = group.feed_forward
        if isinstance(block, MoeFeedForward):
            works += [router_work(llm, group, block, half), experts_work(llm, group, block, precision, linear, tp)]
        else:
            works.append(feed_forward_work(llm, group, precision, linear, tp))
    works.append(lm_head_work(llm, half, tp))
    if tp > 1:
        works += [all_reduce_work(llm, half, tp), all_gather_work(llm, half, tp)]
    return tuple(works)


def routing(llm: LlmSpec) -> tuple[int, int] | None:
    """(experts, experts per token) of the model's MoE layers, or None for a dense model."""
    kinds = {
        (group.feed_forward.experts, group.feed_forward.experts_per_token)
        for group in llm.layers
        if isinstance(group.feed_forward, MoeFeedForward)
    }
    if len(kinds) > 1:
        raise UnsupportedFeatureError("layers", sorted(kinds), "MoE layers with different routing in one model")
    return kinds.pop() if kinds else None


def statistics(shape: StepShape, experts: tuple[int, int] | None) -> FloatArray:
    """The statistics of steps, shape (len(STATISTICS), ...steps), in the order of `STATISTICS`."""
    tokens = np.asarray(shape.decodes, dtype=np.float64) + shape.chunk_tokens
    values = {
        Statistic.STEP: 1.0,
        Statistic.TOKENS: tokens,
        Statistic.LOGIT_ROWS: np.asarray(shape.decodes) + shape.chunks,
        Statistic.DECODE_TOKENS: shape.decodes,
        Statistic.DECODE_CONTEXT: shape.decode_context,
        Statistic.CHUNK_TOKENS: shape.chunk_tokens,
        Statistic.CHUNK_PAIRS: shape.chunk_pairs,
        Statistic.CHUNK_CONTEXT: shape.chunk_context,
        Statistic.EXPERT_SHARE: expected_expert_share(*experts, tokens) if experts else 0.0,
    }
    rows = np.empty((len(STATISTICS), *tokens.shape))
    for index, statistic in enumerate(STATISTICS):
        rows[index] = values[statistic]
    return rows


def coefficients(linear: Linear) -> FloatArray:
    """A linear form as a vector over `STATISTICS`, shape (len(STATISTICS),)."""
    return np.array([linear.get(statistic, 0.0) for statistic in STATISTICS])
