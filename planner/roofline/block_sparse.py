"""Block-sparse attention (MiniMax-M3): an index scores every key, queries attend to the blocks it chose.

The attention is that of MiniMax 2026, MiniMax Sparse Attention, arXiv:2606.13392; its blocks come whole, and what is
chosen is not known, so that `top_k` keys stand for the chosen blocks. Index and attention are one operator a phase, as
they were measured. Where neither was, the kernels of attention with a window of as many keys stand in, and the scores
run at the same shares of the peaks. Forms and their conventions as in `planner.roofline.kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hardware_db import Dtype
from planner.core import Constants, FloatArray, vectorized
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number, at_least, at_most, p_norm, pairs_of
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.grouped import AttentionHeads, decode_attention_s, prefill_attention_s
from planner.roofline.kernel_forms import (
    BlockDecodeForm,
    BlockPrefillForm,
    DecodeForm,
    GpuPeaks,
    PrefillForm,
    at_head_dim,
    prefill_efficiency,
)
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

INDEX_KEY_BYTES = 2.0
"""Bytes per channel of an index key: 16 bit whatever the cache (vLLM 0.24, ``MiniMaxM3IndexerCache``; SGLang 0.5.16,
``index_dtype``)."""
QUERY_GROUP = 16.0
"""Query heads of a KV head that a tile is filled up to: the least rows of a matrix instruction (mma m16n8k16)."""


@dataclass(frozen=True)
class BlockHeads:
    """The heads of block-sparse attention on one GPU.

    Attributes:
        heads: query heads on this GPU.
        kv_heads: KV heads on this GPU.
        head_dim: channels of a head.
        kv_bytes: bytes per cached value.
        top_k: keys a query attends to at most.
        index_heads: of the index, on this GPU.
        index_dim: channels of an index head, and of the key that all share.
    """

    heads: float
    kv_heads: float
    head_dim: float
    kv_bytes: float
    top_k: float
    index_heads: float
    index_dim: float

    @property
    def key_bytes(self) -> float:
        """Bytes of one key and value of all KV heads."""
        return 2.0 * self.kv_heads * self.head_dim * self.kv_bytes

    @property
    def index_bytes(self) -> float:
        """Bytes of one index key."""
        return self.index_dim * INDEX_KEY_BYTES

    @property
    def filled_heads(self) -> float:
        """Query heads with tiles filled up."""
        return at_least(self.heads, self.kv_heads * QUERY_GROUP)


@dataclass(frozen=True)
class IndexPair:
    """Cost of a score at peak.

    Attributes:
        score_s: of a query-key pair [s].
    """

    score_s: float


@vectorized(BlockHeads, BlockPrefillForm, GpuPeaks)
def block_prefill_s(row: Constants, _table: FloatArray, chunks: float, new: float, past: float) -> float:
    """Time [s] of block-sparse attention of prompt chunks, its index included (means over the chunks are allowed).

    ``start + attention + memory + p_norm(scores, chain)`` with

        attention = 4 chunks filled_heads d (pairs + row_tokens new) / (e_c peak), pairs of min(keys seen, top_k)
        memory    = chunks new d (4 heads + 2 kv_heads (2 + 2 kv_bytes)) / (e_m bandwidth)
                    + chunks ((past + new) index_bytes + min(past, top_k) key_bytes) / bandwidth
        scores    = 2 chunks index_heads d_i (all pairs) / (e_i peak)
        chain     = (past + new) key_s, one thread block after another over the keys of a row

    Args:
        row: heads, cache and index, coefficients, and peaks of the GPU in 16 bit.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form = BlockPrefillForm(0.0, 0.25, 0.5, 0.5, 0.0, 0.0, order=1.0)
    >>> heads, gpu = BlockHeads(16.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{block_prefill_s(1.0, 1.0, 4095.0, heads, form, gpu) * 1e6:.3f}"  # 8.2 kFLOP x 2048 / 2.5e14, memory, scores
    '0.598'
    >>> dearer = BlockPrefillForm(0.0, 0.25, 0.5, 0.5, 2048.0, 0.0, order=1.0)  # each query 2048 keys more
    >>> bare, dear = (block_prefill_s(1.0, 2.0, 4094.0, heads, each, gpu) for each in (form, dearer))
    >>> f"{(dear - bare) * 1e6:.3f}"  # 8.2 kFLOP x 2048 x 2 / 2.5e14
    '0.134'
    """
    chosen = pairs_of(new, past, row.top_k) + row.row_tokens * new
    pair_s = 4.0 * row.filled_heads * row.head_dim / (row.compute_efficiency * row.flops_per_s)
    own = row.head_dim * (4.0 * row.heads + 2.0 * row.kv_heads * (2.0 + 2.0 * row.kv_bytes))
    read = (past + new) * row.index_bytes + min(past, row.top_k) * row.key_bytes
    memory = chunks * (new * own / row.memory_efficiency + read) / row.bytes_per_s
    score_s = 2.0 * row.index_heads * row.index_dim / (row.index_efficiency * row.flops_per_s)
    scores = chunks * pairs_of(new, past, 0.0) * score_s
    return row.start_s + chunks * chosen * pair_s + memory + p_norm(row.order, scores, (past + new) * row.key_s)


@vectorized(IndexPair, AttentionHeads, PrefillForm, GpuPeaks)
def windowed_block_prefill_s(row: Constants, table: FloatArray, chunks: float, new: float, past: float) -> float:
    """Time [s] that stands in for `block_prefill_s`: `prefill_attention_s` over a window, and scores at its efficiency.

    Args:
        row: cost of a score, heads and their window, coefficients, and peaks of the GPU in the format of the cache.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.

    Returns:
        Duration, shape of `chunks` [s].
    """
    scores_s = chunks * pairs_of(new, past, 0.0) * row.score_s / prefill_efficiency(row)
    return prefill_attention_s(row, table, chunks, new, past) + scores_s


@vectorized(BlockHeads, BlockDecodeForm, GpuPeaks)
def block_decode_s(row: Constants, _table: FloatArray, sequences: float, context: float, queries: float) -> float:
    """Time [s] of block-sparse attention of one token (`queries`, with drafts) of many sequences, its index included.

    ``p_norm(start, attention + blocks + index)`` with

        attention = sequences queries (min(context, top_k) key_bytes + 4 heads d) / (e_m bandwidth)
        blocks    = sequences queries kv_heads block_s / sms
        index     = sequences context index_bytes / (e_i bandwidth)

    Every query reads the blocks it chose; the index keys of a sequence are read once.

    Args:
        row: heads, cache and index, coefficients, and peaks of the GPU in 16 bit.
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included.
        queries: new tokens of each.

    Returns:
        Duration, shape of `sequences` [s].

    >>> form = BlockDecodeForm(start_s=0.0, memory_efficiency=0.5, index_efficiency=1.0, block_s=0.0, order=1.0)
    >>> heads, gpu = BlockHeads(16.0, 1.0, 128.0, 2.0, 2048.0, 1.0, 128.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{block_decode_s(64.0, 8192.0, 1.0, heads, form, gpu) * 1e6:.2f}"  # 64 (2048 x 512 + 8192) / 2e12 + index
    '67.37'
    """
    rows, moved_s = sequences * queries, 1.0 / row.bytes_per_s
    read = min(context, row.top_k) * row.key_bytes + 4.0 * row.heads * row.head_dim
    attention = rows * read * moved_s / row.memory_efficiency
    blocks = rows * row.kv_heads * row.block_s / row.sms
    index = sequences * context * row.index_bytes * moved_s / row.index_efficiency
    return p_norm(row.order, row.start_s, attention + blocks + index)


@dataclass(frozen=True)
class BlockSparse(Operator):
    """Shared by both phases; sizes are those of this GPU.

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
        """Attention over as many keys, the last ones: the stand-in."""
        cached = BYTES_PER_VALUE[self.kv_cache]
        return AttentionHeads(self.heads, self.kv_heads, self.head_dim, cached, self.top_k)

    @property
    def launches(self) -> float:
        """Scores, selection and attention."""
        return 3.0 * self.count

    def own_keys(self, phase: str) -> tuple[str, ...]:
        """Kernels of such attention, over a cache of this format, else of 16 bit."""
        return cache_keys(f"block_{phase}", self.kv_cache)

    def relative_keys(self, phase: str) -> tuple[str, ...]:
        """Kernels of attention over a window, likewise."""
        return cache_keys(f"attention_{phase}", self.kv_cache)


@dataclass(frozen=True)
class BlockPrefill(BlockSparse, PromptOperator):
    """Prompt chunks: new tokens are scored against all keys before them."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Own kernels, then those that stand in."""
        return (*self.own_keys("prefill"), *self.relative_keys("prefill"))

    @property
    def prompt_work(self) -> PromptWork:
        """4 h d FLOPs per chosen pair, 2 h_i d_i per pair; index keys of all tokens and the fewest keys that may be
        chosen read once, new keys and values written and read, queries in and outputs out.
        """
        shape = self.shape
        own = 2.0 * (shape.key_bytes + shape.index_bytes) + 2.0 * self.heads * self.head_dim * ACTIVATION_BYTES
        return PromptWork(
            pair_flops=4.0 * self.heads * self.head_dim,
            keys=self.top_k,
            more_pair_flops=2.0 * self.index_heads * self.index_dim,
            window_bytes=shape.key_bytes,
            cached_bytes=shape.index_bytes,
            token_bytes=own,
        )

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`block_prefill_s`, or what stands in."""
        peaks, form = gpu.peaks(self.dtype), gpu.form(BlockPrefillForm, *self.own_keys("prefill"))
        if form is not None:
            return PromptKernel(block_prefill_s, (self.shape, form, peaks))
        relative, score = gpu.form(PrefillForm, *self.relative_keys("prefill")), 2.0 * self.index_heads * self.index_dim
        records = IndexPair(score / peaks.flops_per_s), self.windowed, relative, gpu.peaks(self.kv_cache.arithmetic)
        return None if relative is None else PromptKernel(windowed_block_prefill_s, records)


@dataclass(frozen=True)
class BlockDecode(BlockSparse):
    """One query (more with speculation) per sequence against the index keys of its context, then its chosen blocks."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Own kernels, then those that stand in."""
        return (*self.own_keys("decode"), *self.relative_keys("decode"))

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
        form = gpu.form(BlockDecodeForm, *self.own_keys("decode"))
        if form is not None:
            steps, peaks = (load.decodes, load.context, load.queries), gpu.peaks(self.dtype)
            return where_any(load.decodes, block_decode_s(*steps, self.shape, form, peaks))
        relative = gpu.form(DecodeForm, *self.relative_keys("decode"))
        if relative is None:
            return None
        peaks, rows = gpu.peaks(self.kv_cache.arithmetic), load.decodes * load.queries
        efficiency = at_head_dim(
            self.head_dim,
            relative.memory_efficiency_64,
            relative.memory_efficiency_128,
            relative.memory_efficiency_256,
            relative.memory_efficiency_512,
        )
        attention_s = decode_attention_s(rows, load.context, self.windowed, relative, peaks)
        index_s = load.decodes * load.context * (self.shape.index_bytes / (efficiency * peaks.bytes_per_s))
        return where_any(load.decodes, attention_s + index_s)
