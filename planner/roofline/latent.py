"""Latent attention (MLA): kernel forms of prompts, expanded or absorbed, and of decodes, and their operators."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hardware_db import Dtype
from planner.core import Constants, FloatArray, compiled, vectorized
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number, at_most, corrected_s, limited, p_norm, pairs_of
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.grouped import KV_BLOCK, QUERY_BLOCK, busy_share
from planner.roofline.index import sparse_token_s
from planner.roofline.kernel_forms import GpuPeaks, LatentDecodeForm, LatentPrefillForm, SparsePrefillForm
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

LATENT_HEAD_GROUP = 64.0
"""Query heads one thread block of a latent decode kernel works on."""


@dataclass(frozen=True)
class LatentHeads:
    """Heads of latent attention on one GPU, in one of its two forms.

    Attributes:
        heads: query heads on this GPU.
        key_dim: channels of a key.
        value_dim: channels of a value.
    """

    heads: float
    key_dim: float
    value_dim: float

    @property
    def channels(self) -> float:
        """Of a key and its value."""
        return self.key_dim + self.value_dim


@dataclass(frozen=True)
class LatentRow:
    """The latent row that all heads of one GPU read of a cached token.

    Attributes:
        heads: query heads on this GPU.
        kv_rank: channels of the latent vector.
        rope_dim: channels of the key that carry the position.
        kv_bytes: bytes per cached value.
    """

    heads: float
    kv_rank: float
    rope_dim: float
    kv_bytes: float


@dataclass(frozen=True)
class LatentChoice:
    """The forms that latent attention of prompts chooses from.

    Attributes:
        heads: query heads on this GPU.
        expanded: key and value channels per head of the expanded form.
        absorbed: those of the absorbed form.
        expansion_flops: that make keys and values of one cached token.
        top_k: most keys of a query, 0 = all.
        sparse_start_s: launch floor of the kernel over chosen keys [s].
        sparse_token_s: of a token in it (`sparse_token_s`) [s]; 0 = there is none.
    """

    heads: float
    expanded: float
    absorbed: float
    expansion_flops: float
    top_k: float
    sparse_start_s: float = 0.0
    sparse_token_s: float = 0.0


@compiled
def _form_s(row: Constants, table: FloatArray, channels: float, chunks: float, new: float, past: float) -> float:
    """`latent_prefill_s` with so many channels of a key and its value."""
    rate, pair_flops, pairs = row.compute_efficiency * row.flops_per_s, 2.0 * channels, pairs_of(new, past, 0.0)
    block = QUERY_BLOCK * pair_flops * (past + new + row.row_tokens) * row.sms
    compute = max(chunks * row.heads * pair_flops * (pairs + row.row_tokens * new), row.block_share * block) / rate
    traffic_s = chunks * row.heads * channels * 2.0 * (2.0 * new + past) / row.bytes_per_s
    took = row.start_s + p_norm(row.order, compute, traffic_s / row.memory_efficiency)
    ideal = max(chunks * row.heads * pair_flops * pairs / row.flops_per_s, traffic_s)
    return corrected_s(table, took, ideal, past + new, chunks * new / (past + new) * row.heads)


@vectorized(LatentHeads, LatentPrefillForm, GpuPeaks)
def latent_prefill_s(row: Constants, table: FloatArray, chunks: float, new: float, past: float) -> float:
    """Time [s] of latent attention's prefill kernel, keys and values expanded per head.

    As `prefill_attention_s` with 2 heads (key_dim + value_dim) FLOPs per pair and 16-bit keys and values of all tokens.

    Args:
        row: heads, coefficients, and peaks of the GPU in the format of the cache.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.

    Returns:
        Duration, shape of `chunks` [s].

    >>> heads, gpu = LatentHeads(16.0, 192.0, 128.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> shares = (1.0, 1.0), (0.5, 1.0), (1.0, 0.5)  # of peak FLOP/s and bandwidth
    >>> forms = (LatentPrefillForm(0.0, *both, order=1.0, row_tokens=0.0, block_share=1.0) for both in shares)
    >>> ideal, slow, narrow = (float(latent_prefill_s(1.0, 100.0, 1000.0, heads, form, gpu)) for form in forms)
    >>> f"{1e6 * (slow - ideal):.3f}, {1e6 * (narrow - ideal):.3f}"  # a block on every SM; 16 x 320 x 2 x 1,200 / 4e12
    '11.895, 3.072'
    """
    return _form_s(row, table, row.channels, chunks, new, past)


@vectorized(LatentChoice, LatentPrefillForm, GpuPeaks)
def latent_prompts_s(row: Constants, table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """Time [s] of `latent_prefill_s` in the quicker form, the expansion at the kernel's share of peak.

    Chunks that end beyond `top_k` keys run the kernel over chosen keys (`sparse_prefill_s`), if there is one.

    Args:
        row: the forms to choose from, coefficients, and peaks of the GPU in the format of the cache.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.
        cached: the same, as many as are expanded.

    Returns:
        Duration, shape of `chunks` [s].
    """
    if row.sparse_token_s > 0.0 and past + new > row.top_k:
        return row.sparse_start_s + max(chunks * new, row.sms) * row.sparse_token_s
    seen = limited(past, row.top_k)
    expansion_s = row.expansion_flops * chunks * cached / (row.compute_efficiency * row.flops_per_s)
    expanded_s = _form_s(row, table, row.expanded, chunks, new, seen) + expansion_s
    return min(expanded_s, _form_s(row, table, row.absorbed, chunks, new, seen))


@vectorized(LatentRow, LatentDecodeForm, GpuPeaks)
def latent_decode_s(row: Constants, table: FloatArray, sequences: float, context: float) -> float:
    """Time [s] of absorbed latent decode: all heads read one shared row per cached token.

    As `decode_attention_s` with 2 heads (2 kv_rank + rope_dim) FLOPs per cached token, ``units = sequences
    ceil(heads / 64) ceil(context / 128)``, and a block floor that counts sequences ceil(heads / 64). Corrected over
    context and sequences heads.

    Args:
        row: heads and what they read, coefficients, and peaks of the GPU in the format of the cache.
        table: of the correction.
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included.

    Returns:
        Duration, shape of `sequences` [s].
    """
    width, groups = row.kv_rank + row.rope_dim, math.ceil(row.heads / LATENT_HEAD_GROUP)
    units = sequences * groups
    if row.splits_kv:
        units *= math.ceil(context / KV_BLOCK)
    traffic = sequences * (context * width * row.kv_bytes + row.heads * 2.0 * (width + row.kv_rank))
    traffic_s = traffic / row.bytes_per_s
    memory = traffic_s / (row.memory_efficiency * busy_share(units, row.fill, row.sms))
    blocks = sequences * (groups * row.block_s / row.sms)
    least = 2.0 * sequences * row.heads * context * (width + row.kv_rank) / row.flops_per_s
    took = row.start_s + p_norm(row.order, p_norm(row.order, least / row.compute_efficiency, memory), blocks)
    return corrected_s(table, took, max(least, traffic_s), context, sequences * row.heads)


@dataclass(frozen=True)
class LatentPrefill(PromptOperator):
    """Latent attention over prompt chunks in the cheaper of its two forms. `top_k` limits the keys of a query.

    Expanded: keys and values are made per head, those of cached tokens anew, and attention runs on them. Absorbed: as
    in decoding, every head works on latent rows, with longer dot products and nothing to make. Expanded is cheaper
    unless a short chunk follows a long past (DeepSeek-AI 2024, arXiv:2405.04434, sec. 2.1). Chunks that end beyond
    `top_k` keys run a kernel of their own over the chosen ones, where it was measured.
    """

    heads: float
    key_dim: float
    value_dim: float
    kv_rank: float
    rope_dim: float
    kv_cache: Dtype
    top_k: float

    @property
    def _choice(self) -> LatentChoice:
        """Its two forms; keys and values of a cached token take 2 rank h (nope + value) FLOPs."""
        expansion = 2.0 * self.kv_rank * self.heads * (self.key_dim - self.rope_dim + self.value_dim)
        absorbed = 2.0 * self.kv_rank + self.rope_dim
        return LatentChoice(self.heads, self.key_dim + self.value_dim, absorbed, expansion, self.top_k)

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit."""
        return cache_keys("latent_prefill", self.kv_cache)

    sparse_key = "sparse_prefill/bf16"
    """Fit of the kernel over chosen keys, which computes in 16 bit whatever the cache."""

    @property
    def prompt_work(self) -> PromptWork:
        """2 h (key + value) FLOPs per pair, and the expansion; latent rows read and written, queries and outputs."""
        choice, row = self._choice, (self.kv_rank + self.rope_dim) * BYTES_PER_VALUE[self.kv_cache]
        return PromptWork(
            pair_flops=2.0 * self.heads * choice.expanded,
            keys=self.top_k,
            cached_flops=choice.expansion_flops,
            absorbed_flops=2.0 * self.heads * choice.absorbed,
            cached_bytes=row,
            token_bytes=row + self.heads * choice.expanded * ACTIVATION_BYTES,
        )

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`latent_prompts_s`."""
        form, choice = gpu.form(LatentPrefillForm, *cache_keys("latent_prefill", self.kv_cache)), self._choice
        sparse = gpu.form(SparsePrefillForm, self.sparse_key) if self.top_k else None
        if form is None:
            return None
        if sparse is not None:
            sizes = self.top_k, self.heads, self.kv_rank, self.rope_dim
            token_s = sparse_token_s(*sizes, sparse, gpu.peaks(self.dtype))
            choice = replace(choice, sparse_start_s=sparse.start_s, sparse_token_s=token_s)
        return PromptKernel(latent_prompts_s, (choice, form, gpu.peaks(self.kv_cache.arithmetic)))


@dataclass(frozen=True)
class LatentDecode(Operator):
    """Absorbed latent attention: all heads of this GPU read one latent row per cached token.

    With several `shards` of a context these are the heads of all of them, and one token in so many.
    """

    heads: float
    kv_rank: float
    rope_dim: float
    kv_cache: Dtype
    top_k: float
    shards: float = 1.0

    def _context(self, load: Load) -> Number:
        return at_most(load.context, self.top_k) if self.top_k else load.context / self.shards

    def in_parts(self, gpu: CalibratedGpu) -> bool:
        """True where its layer is timed kernel by kernel, False where as a whole module."""
        return True

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit."""
        return cache_keys("latent_decode", self.kv_cache)

    def work(self, load: Load) -> OperatorWork:
        """2 h (2 kv_rank + rope_dim) FLOPs and one row per token of context."""
        row, context = self.kv_rank + self.rope_dim, self._context(load)
        flops = 2.0 * load.decodes * load.queries * self.heads * (row + self.kv_rank) * context
        traffic = load.decodes * (context + load.queries) * row * BYTES_PER_VALUE[self.kv_cache]
        return OperatorWork(flops, traffic)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`latent_decode_s`; several queries of a sequence count as further heads."""
        form = gpu.form(LatentDecodeForm, *self.fit_keys)
        if form is None:
            return None
        peaks, cached = gpu.peaks(self.kv_cache.arithmetic), BYTES_PER_VALUE[self.kv_cache]
        row = LatentRow(self.heads * load.queries, self.kv_rank, self.rope_dim, cached)
        seconds = latent_decode_s(load.decodes, self._context(load), row, form, peaks)
        return where_any(load.decodes, seconds)
