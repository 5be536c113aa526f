"""Softmax attention over grouped heads (MHA, MQA, GQA), over all keys or a window: kernel forms and operators.

Forms, coefficients and their conventions as in `planner.roofline.kernels`; means over a batch are allowed where a form
says so. Causal prefill follows FlashAttention-2 (Dao 2023, arXiv:2307.08691), decoding split-KV kernels (Dao et al.
2023, Flash-Decoding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from hardware_db import Dtype
from planner.core import Constants, FloatArray, compiled, vectorized
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number, at_most, corrected_s, limited, p_norm, pairs_of
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import DecodeForm, GpuPeaks, PrefillForm, at_head_dim, prefill_efficiency
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Operator,
    OperatorWork,
    PromptKernel,
    PromptOperator,
    PromptWork,
    cache_keys,
    where_any,
)
from planner.roofline.shape import Load

KV_BLOCK = 128
"""Keys one thread block of a split-KV decode kernel walks [tokens]."""
QUERY_BLOCK = 128
"""Query rows of one thread block of a prefill kernel [tokens]."""
LEAST_BUSY_SHARE = 1e-9
"""Smallest share of the processors in a denominator, for steps that hold nothing. A guard, not a choice."""


@dataclass(frozen=True)
class AttentionHeads:
    """The heads of softmax attention on one GPU and what their cache holds.

    Attributes:
        heads: query heads on this GPU.
        kv_heads: KV heads on this GPU.
        head_dim: channels of a query or key head.
        kv_bytes: bytes per cached value.
        window: sliding window [tokens], 0 = none.
        value_dim: channels of a value head, 0 = those of a key head.
    """

    heads: float
    kv_heads: float
    head_dim: float
    kv_bytes: float
    window: float = 0.0
    value_dim: float = 0.0

    @property
    def width(self) -> float:
        """Mean channels of a key and a value head: work and traffic are in proportion to it."""
        return (self.head_dim + (self.value_dim or self.head_dim)) / 2.0


@vectorized(AttentionHeads, PrefillForm, GpuPeaks)
def prefill_attention_s(row: Constants, table: FloatArray, chunks: float, new: float, past: float) -> float:
    """Time [s] of causal attention for chunks of prompts (means over the chunks are allowed).

    ``start + p_norm(compute, memory)`` with

        compute = 4 chunks heads d (pairs + row_tokens new) / (e_d peak), at least block_share of one thread block:
                  4 * 128 d (longest row + row_tokens) sms / (e_d peak)
        memory  = chunks (new d (4 heads + 2 kv_heads (2 + 2 kv_bytes)) + past 2 kv_heads d kv_bytes) / (e_m bandwidth)

    with row_tokens times window_row_growth in a windowed layer and d the mean of key and value channels (e_d is that of
    the key channels). Corrected over past + new and the heads of all chunks,
    chunks heads new / (past + new). Exact per chunk; means of `new` and `past` over the chunks are close while chunks
    are alike.

    Args:
        row: heads and their cache, coefficients, and peaks of the GPU in the format of the cache.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.

    Returns:
        Duration, shape of `chunks` [s].
    """
    rate, windowed = prefill_efficiency(row) * row.flops_per_s, row.window > 0.0
    row_tokens = row.row_tokens * (row.window_row_growth if windowed else 1.0)
    pair_flops, pairs = 4.0 * row.heads * row.width, pairs_of(new, past, row.window)
    longest = min(past + new, row.window + QUERY_BLOCK) if windowed else past + new
    block = 4.0 * QUERY_BLOCK * row.width * (longest + row_tokens) * row.sms
    compute = max(chunks * pair_flops * (pairs + row_tokens * new), row.block_share * block) / rate
    values = new * row.width * (4.0 * row.heads + 2.0 * row.kv_heads * (2.0 + 2.0 * row.kv_bytes))
    cached = limited(past, row.window) * 2.0 * row.kv_heads * row.width * row.kv_bytes
    traffic_s = chunks * (values + cached) / row.bytes_per_s
    took = row.start_s + p_norm(row.order, compute, traffic_s / row.memory_efficiency)
    ideal = max(chunks * pair_flops * pairs / row.flops_per_s, traffic_s)
    return corrected_s(table, took, ideal, past + new, chunks * new / (past + new) * row.heads)


@vectorized(AttentionHeads, DecodeForm, GpuPeaks)
def decode_attention_s(row: Constants, table: FloatArray, sequences: float, context: float) -> float:
    """Time [s] of one new token for many sequences over their caches (a mean context is allowed).

    ``start + p_norm(compute, memory, blocks)`` with

        units   = sequences kv_heads ceil(context / 128)       (without the last factor where the kernel does not split)
        memory  = sequences (2 kv_heads context d b + 4 heads d + 2 kv_heads d (2 + b))
                  / (e_m bandwidth min(1, fill min(units, sms) / sms))
        blocks  = sequences kv_heads (heads / kv_heads)^growth block_s / sms     (group_growth, or window_growth)
        compute = 4 sequences heads context d / (e_c peak)

    where d is the mean of key and value channels and e_m, that of the key channels, ungrouped_efficiency times smaller
    when heads = kv_heads. Corrected over context and sequences kv_heads.

    Args:
        row: heads and their cache, coefficients, and peaks of the GPU in the format of the cache.
        table: of the correction.
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included (cut to the window).

    Returns:
        Duration, shape of `sequences` [s].
    """
    kv_width, context = row.kv_heads * row.width, limited(context, row.window)
    ungrouped, windowed = row.heads == row.kv_heads, row.window > 0.0
    splits = min(row.splits_kv, row.splits_plain) if windowed or ungrouped else row.splits_kv
    units = sequences * row.kv_heads * (1.0 + splits * (math.ceil(context / KV_BLOCK) - 1.0))
    own = 4.0 * row.heads * row.width + 2.0 * kv_width * (2.0 + row.kv_bytes)
    traffic_s = sequences * (2.0 * kv_width * context * row.kv_bytes + own) / row.bytes_per_s
    efficiency = at_head_dim(
        row.head_dim,
        row.memory_efficiency_64,
        row.memory_efficiency_128,
        row.memory_efficiency_256,
        row.memory_efficiency_512,
    )
    efficiency *= row.ungrouped_efficiency if ungrouped else 1.0
    memory = traffic_s / (efficiency * busy_share(units, row.fill, row.sms))
    growth = row.window_growth if windowed else row.group_growth
    blocks = sequences * row.kv_heads * (row.heads / row.kv_heads) ** growth * row.block_s / row.sms
    least = 4.0 * sequences * row.heads * row.width * context / row.flops_per_s
    took = row.start_s + p_norm(row.order, p_norm(row.order, least / row.compute_efficiency, memory), blocks)
    return corrected_s(table, took, max(least, traffic_s), context, sequences * row.kv_heads)


@compiled
def busy_share(units: float, fill: float, sms: float) -> float:
    """Share of the bandwidth that so many thread blocks draw.

    Args:
        units: thread blocks.
        fill: how much faster than the share of busy processors the bandwidth grows.
        sms: processors.

    Returns:
        The share, in (0, 1].
    """
    return max(min(fill * min(units, sms) / sms, 1.0), LEAST_BUSY_SHARE)


@dataclass(frozen=True)
class GroupedAttention(Operator):
    """Attention over grouped heads; sizes are those of this GPU. `window` 0 = whole context.

    `own` names heads that engines have kernels of their own for (`own_kernel`). A layer on the cache of another one
    reads from there what others write.
    """

    phase: ClassVar[str]
    """Of its kernels: ``prefill`` or ``decode``."""

    heads: float
    kv_heads: float
    head_dim: float
    kv_cache: Dtype
    window: float
    value_dim: float = 0.0
    own: str = ""

    @property
    def shape(self) -> AttentionHeads:
        """Its heads."""
        cached = BYTES_PER_VALUE[self.kv_cache]
        return AttentionHeads(self.heads, self.kv_heads, self.head_dim, cached, self.window, self.value_dim)

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels for such heads; then for any, over a cache of this format, else of 16 bit."""
        own = _own_keys(f"wide_{self.phase}", self.own, self.kv_cache)
        return (*own, *cache_keys(f"attention_{self.phase}", self.kv_cache))


@dataclass(frozen=True)
class GroupedPrefill(GroupedAttention, PromptOperator):
    """Causal attention of prompt chunks."""

    phase: ClassVar[str] = "prefill"

    @property
    def prompt_work(self) -> PromptWork:
        """4 h d FLOPs per pair (d the mean of key and value channels); cached KV read once, new KV written and read,
        queries in and outputs out.
        """
        width = self.shape.width
        kv, query = 2.0 * self.kv_heads * width * BYTES_PER_VALUE[self.kv_cache], self.heads * width
        return PromptWork(
            pair_flops=4.0 * query,
            keys=self.window,
            window_bytes=kv,
            token_bytes=2.0 * kv + 2.0 * query * ACTIVATION_BYTES,
        )

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`prefill_attention_s`."""
        form = gpu.form(PrefillForm, *self.fit_keys)
        peaks = gpu.peaks(self.kv_cache.arithmetic)
        return None if form is None else PromptKernel(prefill_attention_s, (self.shape, form, peaks))


@dataclass(frozen=True)
class GroupedDecode(GroupedAttention):
    """One query (more with speculation) per sequence against its cache.

    With several `shards` of a context its heads are those of all of them, and it holds one token in so many.
    """

    phase: ClassVar[str] = "decode"
    shards: float = 1.0

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs and 2 h_kv d cached values per token of context (d the mean of key and value channels); own KV,
        queries and outputs per sequence.
        """
        width = self.shape.width
        kv = 2.0 * self.kv_heads * width * BYTES_PER_VALUE[self.kv_cache]
        held = load.context / self.shards
        query, context = self.heads * width, at_most(held, self.window) if self.window else held
        own = load.queries * (kv + 2.0 * query * ACTIVATION_BYTES)
        return OperatorWork(4.0 * load.decodes * load.queries * query * context, load.decodes * (context * kv + own))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`decode_attention_s`; several queries of a sequence count as further query heads."""
        form = gpu.form(DecodeForm, *self.fit_keys)
        if form is None:
            return None
        heads = replace(self.shape, heads=self.heads * load.queries)
        held, peaks = load.context / self.shards, gpu.peaks(self.kv_cache.arithmetic)
        seconds = decode_attention_s(load.decodes, held, heads, form, peaks)
        return where_any(load.decodes, seconds)


WIDEST_USUAL_HEAD = 256
"""Channels of a key head up to which the kernels that most models run go: those of FlashAttention-3."""


def own_kernel(head_dim: int, windowed: bool, widest: int) -> str:
    """Name of heads that engines run kernels of their own for; empty for all others.

    Heads of 192 channels (MiMo-V2), and heads beyond 256 (Gemma 4), with which a model's windowed layers go along: an
    engine runs one library for a model, and FlashAttention-3 ends at 256. The kernels are those of the measured tables:
    Triton in SGLang and, for 192 channels on Blackwell, in vLLM; FlashAttention-4 in vLLM on Hopper.

    Args:
        head_dim: channels of a key head.
        windowed: true if the layer has a window.
        widest: largest `head_dim` of the model.

    Returns:
        ``192``, ``192_window``, ``512``, ``256_window`` or empty.

    >>> own_kernel(512, False, 512), own_kernel(256, True, 512), own_kernel(256, False, 256)
    ('512', '256_window', '')
    """
    if head_dim != _OWN_DIM and widest <= WIDEST_USUAL_HEAD:
        return ""
    return f"{head_dim}_window" if windowed else str(head_dim)


_OWN_DIM = 192
"""Channels between those of usual heads, 128 and 256: kernels differ in whether they have an instance for them."""


def _own_keys(kernel: str, own: str, kv_cache: Dtype) -> tuple[str, ...]:
    """Fits of a kernel for heads of one kind, over a cache of this format, else over one of another; none without."""
    keys = (*cache_keys(kernel, kv_cache, f"{own}_"), f"{kernel}/{own}_fp8")
    return tuple(dict.fromkeys(keys)) if own else ()
