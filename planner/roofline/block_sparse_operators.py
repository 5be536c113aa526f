"""Block-sparse attention on one GPU (MiniMax-M3): an index scores every key, queries attend to the blocks it chose.

Index and attention are one operator a phase, as they were measured. Where neither was, the kernels of attention with a
window of as many keys stand in, and the scores run at the same shares of the peaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hardware_db import Dtype
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number, at_most
from planner.roofline.attention_kernels import (
    AttentionHeads,
    attended_pairs,
    decode_attention_s,
    prefill_attention_s,
)
from planner.roofline.block_sparse_kernels import BlockHeads, block_decode_s, block_prefill_s
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import BlockDecodeForm, BlockPrefillForm, DecodeForm, PrefillForm
from planner.roofline.operators import ACTIVATION_BYTES, Operator, OperatorWork
from planner.roofline.shape import Load

PromptSeconds = Callable[[Any, Any, Any], Any]
"""Seconds of the kernels of one layer from (chunks, new, past), floats or arrays."""


@dataclass(frozen=True)
class BlockSparse(Operator):
    """What both phases share; sizes are those of this GPU.

    Attributes:
        heads: query heads.
        kv_heads: KV heads.
        head_dim: channels of a head.
        kv_cache: format of keys and values; index keys are in 16 bit.
        top_k: keys a query attends to at most.
        index_heads: of the index.
        index_dim: channels of an index head.
    """

    heads: float
    kv_heads: float
    head_dim: float
    kv_cache: Dtype
    top_k: float
    index_heads: float
    index_dim: float

    @property
    def shape(self) -> BlockHeads:
        """Its heads."""
        cached = BYTES_PER_VALUE[self.kv_cache]
        index = self.index_heads, self.index_dim
        return BlockHeads(self.heads, self.kv_heads, self.head_dim, cached, self.top_k, *index)

    @property
    def windowed(self) -> AttentionHeads:
        """Attention over as many keys, the last ones: what stands in."""
        cached = BYTES_PER_VALUE[self.kv_cache]
        return AttentionHeads(self.heads, self.kv_heads, self.head_dim, cached, self.top_k)

    @property
    def launches(self) -> float:
        """Scores, selection and attention."""
        return 3.0 * self.count

    def keys(self, own: str, relative: str) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit; then those of a relative."""
        caches = ("fp8", "bf16") if BYTES_PER_VALUE[self.kv_cache] < ACTIVATION_BYTES else ("bf16",)
        return tuple(f"{kernel}/{cache}" for kernel in (own, relative) for cache in caches)


@dataclass(frozen=True)
class BlockPrefill(BlockSparse):
    """Prompt chunks: new tokens are scored against all keys before them."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """As `BlockSparse.keys`."""
        return self.keys("block_prefill", "attention_prefill")

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs per chosen pair, 2 h_i d_i per pair; index keys of all tokens and the fewest keys that may be
        chosen read once, new keys and values written, queries in and outputs out.
        """
        shape, chosen = self.shape, attended_pairs(load.new, load.past, self.top_k)
        flops = 4.0 * self.heads * self.head_dim * chosen
        flops = flops + 2.0 * self.index_heads * self.index_dim * attended_pairs(load.new, load.past, 0.0)
        token = 2.0 * shape.key_bytes + 2.0 * self.heads * self.head_dim * ACTIVATION_BYTES + 2.0 * shape.index_bytes
        read = at_most(load.cached, self.top_k) * shape.key_bytes + load.cached * shape.index_bytes
        return OperatorWork(load.chunks * flops, load.chunks * (read + load.new * token))

    def seconds(self, gpu: CalibratedGpu) -> PromptSeconds | None:
        """Time of one layer's kernels for chunks > 0; None where nothing like them was measured."""
        peaks, own = gpu.peaks(self.dtype), self.fit_keys[: len(self.fit_keys) // 2]
        form, shape = gpu.form(BlockPrefillForm, *own), self.shape
        if form is not None:
            return lambda chunks, new, past: block_prefill_s(chunks, new, past, shape, form, peaks)
        relative, heads = gpu.form(PrefillForm, *self.fit_keys[len(own) :]), self.windowed
        if relative is None:
            return None
        rate = relative.compute_efficiency(self.head_dim) * peaks.flops_per_s
        pair_s, cache_peaks = 2.0 * self.index_heads * self.index_dim / rate, gpu.peaks(self.kv_cache.arithmetic)
        return lambda chunks, new, past: (
            prefill_attention_s(chunks, new, past, heads, relative, cache_peaks)
            + chunks * attended_pairs(new, past, 0.0) * pair_s
        )

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`block_prefill_s`, or what stands in."""
        seconds, there = self.seconds(gpu), load.chunks > 0.0
        if seconds is None:
            return None
        took: Number = seconds(load.chunks, load.new, load.past) * there
        return took

    def timer(self, gpu: CalibratedGpu) -> Callable[[float, float, float, float], float]:
        """Seconds of all layers from (chunks, new, past, cached) in plain floats, never below the roofline."""
        seconds, count, shape = self.seconds(gpu), self.count, self.shape
        flops_per_s, bytes_per_s = gpu.peaks(self.dtype).flops_per_s, gpu.sku.hbm_bandwidth_bytes_per_s.value
        chosen_s = 4.0 * self.heads * self.head_dim / flops_per_s
        pair_s = 2.0 * self.index_heads * self.index_dim / flops_per_s
        key_s, index_s = shape.key_bytes / bytes_per_s, shape.index_bytes / bytes_per_s
        token_s = 2.0 * (key_s + index_s) + 2.0 * self.heads * self.head_dim * ACTIVATION_BYTES / bytes_per_s
        top_k = self.top_k

        def at(chunks: float, new: float, past: float, cached: float) -> float:
            flops_s = attended_pairs(new, past, top_k) * chosen_s + attended_pairs(new, past, 0.0) * pair_s
            traffic_s = min(cached, top_k) * key_s + cached * index_s + new * token_s
            least = chunks * max(flops_s, traffic_s)
            return count * (least if seconds is None else max(float(seconds(chunks, new, past)), least))

        return at


@dataclass(frozen=True)
class BlockDecode(BlockSparse):
    """One query (more with speculation) per sequence against the index keys of its context, then its chosen blocks."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """As `BlockSparse.keys`."""
        return self.keys("block_decode", "attention_decode")

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs per chosen key, 2 h_i d_i per key; index keys and the fewest keys that may be chosen read once,
        own keys and values written, queries in and outputs out.
        """
        shape, chosen = self.shape, at_most(load.context, self.top_k)
        flops = 4.0 * self.heads * self.head_dim * chosen + 2.0 * self.index_heads * self.index_dim * load.context
        own = load.queries * (shape.key_bytes + shape.index_bytes + 2.0 * self.heads * self.head_dim * ACTIVATION_BYTES)
        read = chosen * shape.key_bytes + load.context * shape.index_bytes
        return OperatorWork(load.decodes * load.queries * flops, load.decodes * (read + own))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`block_decode_s`, or what stands in."""
        own = self.fit_keys[: len(self.fit_keys) // 2]
        form = gpu.form(BlockDecodeForm, *own)
        there: Any = load.decodes > 0.0
        took: Number
        if form is not None:
            shape, peaks = self.shape, gpu.peaks(self.dtype)
            took = block_decode_s(load.decodes, load.context, load.queries, shape, form, peaks) * there
            return took
        relative = gpu.form(DecodeForm, *self.fit_keys[len(own) :])
        if relative is None:
            return None
        peaks, bandwidth = gpu.peaks(self.kv_cache.arithmetic), gpu.sku.hbm_bandwidth_bytes_per_s.value
        rows = load.decodes * load.queries
        attention = decode_attention_s(rows, load.context, self.windowed, relative, peaks)
        rate = relative.memory_efficiency(self.head_dim) * bandwidth
        took = (attention + load.decodes * load.context * (self.shape.index_bytes / rate)) * there
        return took
