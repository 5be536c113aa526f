"""Attention of every kind on one GPU: softmax over grouped heads, latent, sparse index, recurrent state.

Prefill and decode are operators of their own, which see the chunks and the decodes of a step. Their times depend on
more than one number (`Driver.SHAPE`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hardware_db import Dtype
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number, at_most
from planner.roofline.attention_kernels import (
    AttentionHeads,
    attended_pairs,
    decode_attention_s,
    latent_decode_s,
    latent_prefill_s,
    prefill_attention_s,
)
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.index_kernels import (
    index_scores_s,
    index_selection_s,
    selecting_rows,
    sparse_prefill_s,
    sparse_token_s,
)
from planner.roofline.kernel_forms import (
    DecodeForm,
    IndexScoresForm,
    IndexSelectionForm,
    LatentDecodeForm,
    LatentPrefillForm,
    PrefillForm,
    RecurrentDecodeForm,
    RecurrentPrefillForm,
    SparsePrefillForm,
)
from planner.roofline.operators import ACTIVATION_BYTES, Operator, OperatorWork
from planner.roofline.recurrent_kernels import RecurrentHeads, recurrent_decode_s, recurrent_prefill_s
from planner.roofline.shape import Load


@dataclass(frozen=True)
class GroupedPrefill(Operator):
    """Causal attention of prompt chunks; sizes are those of this GPU. `window` 0 = whole context.

    `own` names heads that engines have kernels of their own for (`own_kernel`). A layer on the cache of another one
    reads from there what others write.
    """

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
        return (*_own_keys("wide_prefill", self.own, self.kv_cache), *_cache_keys("attention_prefill", self.kv_cache))

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs per pair (d the mean of key and value channels); cached KV read once, new KV written, queries in
        and outputs out.
        """
        pairs = load.chunks * attended_pairs(load.new, load.past, self.window)
        width = self.shape.width
        kv = 2.0 * self.kv_heads * width * BYTES_PER_VALUE[self.kv_cache]
        query = self.heads * width
        seen = load.cached + load.new
        read = at_most(seen, self.window + load.new) if self.window else seen
        traffic = load.chunks * (read * kv + load.new * (kv + 2.0 * query * ACTIVATION_BYTES))
        return OperatorWork(4.0 * query * pairs, traffic)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`prefill_attention_s`."""
        form = gpu.form(PrefillForm, *self.fit_keys)
        if form is None:
            return None
        peaks = gpu.peaks(self.kv_cache.arithmetic)
        seconds = prefill_attention_s(load.chunks, load.new, load.past, self.shape, form, peaks)
        return _masked(load.chunks, seconds)


@dataclass(frozen=True)
class GroupedDecode(Operator):
    """One query (more with speculation) per sequence against its cache; sizes are those of this GPU."""

    heads: float
    kv_heads: float
    head_dim: float
    kv_cache: Dtype
    window: float
    value_dim: float = 0.0
    own: str = ""

    def _heads(self, queries: float) -> AttentionHeads:
        """Its heads, of a sequence with so many queries."""
        heads, cached = self.heads * queries, BYTES_PER_VALUE[self.kv_cache]
        return AttentionHeads(heads, self.kv_heads, self.head_dim, cached, self.window, self.value_dim)

    def _context(self, load: Load) -> Number:
        return at_most(load.context, self.window) if self.window else load.context

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels for such heads; then for any, over a cache of this format, else of 16 bit."""
        return (*_own_keys("wide_decode", self.own, self.kv_cache), *_cache_keys("attention_decode", self.kv_cache))

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs and 2 h_kv d cached values per token of context (d the mean of key and value channels); own KV,
        queries and outputs per sequence.
        """
        width = self._heads(1.0).width
        kv = 2.0 * self.kv_heads * width * BYTES_PER_VALUE[self.kv_cache]
        query, context = self.heads * width, self._context(load)
        own = load.queries * (kv + 2.0 * query * ACTIVATION_BYTES)
        return OperatorWork(4.0 * load.decodes * load.queries * query * context, load.decodes * (context * kv + own))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`decode_attention_s`; several queries of a sequence count as further query heads."""
        form = gpu.form(DecodeForm, *self.fit_keys)
        if form is None:
            return None
        heads = self._heads(load.queries)
        seconds = decode_attention_s(load.decodes, load.context, heads, form, gpu.peaks(self.kv_cache.arithmetic))
        return _masked(load.decodes, seconds)


@dataclass(frozen=True)
class LatentPrefill(Operator):
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
    def forms(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Key and value channels per head of the expanded and of the absorbed form."""
        return (self.key_dim, self.value_dim), (self.kv_rank + self.rope_dim, self.kv_rank)

    def expansion_flops(self, load: Load) -> Number:
        """FLOPs that make keys and values of the cached tokens: 2 rank h (nope + value) each."""
        width = self.heads * (self.key_dim - self.rope_dim + self.value_dim)
        return 2.0 * self.kv_rank * width * load.chunks * load.cached

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit."""
        return _cache_keys("latent_prefill", self.kv_cache)

    sparse_key = "sparse_prefill/bf16"
    """Fit of the kernel over chosen keys, which computes in 16 bit whatever the cache."""

    def sparse_form(self, gpu: CalibratedGpu) -> SparsePrefillForm | None:
        """Coefficients of that kernel; None without an index, or where it was not measured."""
        return gpu.form(SparsePrefillForm, self.sparse_key) if self.top_k else None

    def sparse_token_s(self, form: SparsePrefillForm, gpu: CalibratedGpu) -> float:
        """`sparse_token_s` of these heads [s]."""
        return sparse_token_s(self.top_k, self.heads, self.kv_rank, self.rope_dim, form, gpu.peaks(self.dtype))

    def work(self, load: Load) -> OperatorWork:
        """2 h (key + value) FLOPs per pair, and the expansion; latent rows read and written, queries and outputs."""
        pairs = load.chunks * attended_pairs(load.new, load.past, self.top_k)
        expanded, absorbed = (2.0 * self.heads * (key + value) * pairs for key, value in self.forms)
        per_token = self.heads * (self.key_dim + self.value_dim) * ACTIVATION_BYTES
        row = (self.kv_rank + self.rope_dim) * BYTES_PER_VALUE[self.kv_cache]
        traffic = load.chunks * (load.cached * row + load.new * (row + per_token))
        return OperatorWork(at_most(expanded + self.expansion_flops(load), absorbed), traffic)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`latent_prefill_s` of the quicker form, the expansion at the kernel's share of peak."""
        form = gpu.form(LatentPrefillForm, *self.fit_keys)
        if form is None:
            return None
        peaks = gpu.peaks(self.kv_cache.arithmetic)
        past = at_most(load.past, self.top_k) if self.top_k else load.past
        expanded, absorbed = (
            latent_prefill_s(load.chunks, load.new, past, self.heads, key, value, form, peaks)
            for key, value in self.forms
        )
        expansion = self.expansion_flops(load) / (form.compute_efficiency * peaks.flops_per_s)
        seconds = at_most(expanded + expansion, absorbed)
        chosen = self.sparse_form(gpu)
        if chosen is not None:
            token_s = self.sparse_token_s(chosen, gpu)
            sparse = sparse_prefill_s(load.chunks * load.new, token_s, chosen, gpu.peaks(self.dtype))
            seconds = np.where(np.asarray(load.past + load.new) > self.top_k, sparse, seconds)
        return _masked(load.chunks, seconds)


@dataclass(frozen=True)
class LatentDecode(Operator):
    """Absorbed latent attention: all heads of this GPU read one latent row per cached token."""

    heads: float
    kv_rank: float
    rope_dim: float
    kv_cache: Dtype
    top_k: float

    def _context(self, load: Load) -> Number:
        return at_most(load.context, self.top_k) if self.top_k else load.context

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit."""
        return _cache_keys("latent_decode", self.kv_cache)

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
        seconds = latent_decode_s(
            load.decodes,
            self._context(load),
            self.heads * load.queries,
            self.kv_rank,
            self.rope_dim,
            form,
            gpu.peaks(self.kv_cache.arithmetic),
            BYTES_PER_VALUE[self.kv_cache],
        )
        return _masked(load.decodes, seconds)


@dataclass(frozen=True)
class IndexScores(Operator):
    """The sparse indexer scores every cached key with small heads in 8 bit: one per token (DeepSeek-V3.2) or `ratio`.

    Queries that see more than `top_k` keys select the largest scores.
    """

    heads: float
    head_dim: float
    top_k: float
    ratio: float = 1.0

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Scores of prompts, scores of decodes over a paged cache."""
        return self.scores_keys

    scores_keys = ("index_scores/prefill", "index_scores/decode")
    """Fits of the two."""

    def selection_keys(self, phase: str) -> tuple[str, ...]:
        """Selection of prompts or of decodes (`phase`): kernels of their own where keys are compressed."""
        own = (f"index_selection/compressed_{phase}",) if self.ratio > 1.0 else ()
        return (*own, "index_selection/top_k")

    @property
    def launches(self) -> float:
        """Scores and selection."""
        return 2.0 * self.count

    def work(self, load: Load) -> OperatorWork:
        """2 heads d FLOPs per query and cached key; every key, of d bytes, read once."""
        pairs = load.chunks * attended_pairs(load.new, load.past, 0.0) + load.decodes * load.queries * load.context
        read = load.chunks * (load.cached + load.new) + load.decodes * load.context
        flops = 2.0 * self.heads * self.head_dim / self.ratio * pairs
        return OperatorWork(flops, read * (self.head_dim / self.ratio))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`index_scores_s` of chunks and of decodes, and `index_selection_s` of each."""
        prefill, decode = (gpu.form(IndexScoresForm, key) for key in self.scores_keys)
        of_prompts, of_decodes = (
            gpu.form(IndexSelectionForm, *self.selection_keys(phase)) for phase in ("prefill", "decode")
        )
        if prefill is None or decode is None or of_prompts is None or of_decodes is None:
            return None
        peaks, sizes, ratio = gpu.peaks(self.dtype), (self.heads, self.head_dim), self.ratio
        pairs = load.chunks * attended_pairs(load.new, load.past, 0.0) / ratio
        keys = load.chunks * (load.cached + load.new) / ratio
        rows, seen = selecting_rows(load.new, load.past, self.top_k * ratio)
        prompts_s = index_scores_s(pairs, keys, *sizes, prefill, peaks)
        prompts_s = prompts_s + index_selection_s(load.chunks * rows, seen / ratio, of_prompts, peaks)
        beyond: Any = load.context > self.top_k * ratio
        read: Number = load.decodes * load.context / ratio
        rows = load.decodes * load.queries * beyond
        decodes_s = index_scores_s(read * load.queries, read, *sizes, decode, peaks)
        decodes_s = decodes_s + index_selection_s(rows, load.context / ratio, of_decodes, peaks)
        return _masked(load.chunks, prompts_s) + _masked(load.decodes, decodes_s)


@dataclass(frozen=True)
class Recurrence(Operator):
    """Short convolution and linear attention or state space: a state of heads x key x value channels, no cache.

    Decoding reads the state once per sequence and writes it after every token: 8 FLOPs per state value (decay, delta,
    update, read-out). Prompts go through in chunks of c = 64 tokens: 4 FLOPs per state value and token between chunks
    and 4 c (key + value) within one (Yang et al. 2024, arXiv:2406.06484); their state is read and written once, since
    it can stay on the chip between chunks.

    Attributes:
        shape: heads and their states on this GPU.
        kernel: whose kernels time it: gated_delta, kda, mamba2.
    """

    shape: RecurrentHeads
    kernel: str = "gated_delta"

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels of prompts; those of the gated delta net stand in for others, whose state moves alike."""
        return tuple(dict.fromkeys((f"recurrent_prefill/{self.kernel}", "recurrent_prefill/gated_delta")))

    @property
    def decode_keys(self) -> tuple[str, ...]:
        """Kernels of decodes, likewise."""
        return tuple(dict.fromkeys((f"recurrent_decode/{self.kernel}", "recurrent_decode/gated_delta")))

    @property
    def launches(self) -> float:
        """Convolution and scan or update."""
        return 2.0 * self.count

    def work(self, load: Load) -> OperatorWork:
        """FLOPs and state traffic of decodes and of prompts, as the class says."""
        shape = self.shape
        prompt, decoded = load.chunks * load.new, load.decodes * load.queries
        written = (load.decodes + decoded) / 2.0
        return OperatorWork(
            decoded * shape.update_flops + prompt * shape.scan_flops,
            (written + load.chunks) * shape.state_bytes + (decoded + prompt) * shape.token_bytes,
        )

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`recurrent_prefill_s` of the chunks and `recurrent_decode_s` of the decodes, kernels of their own."""
        prefill = gpu.form(RecurrentPrefillForm, *self.fit_keys)
        decode = gpu.form(RecurrentDecodeForm, *self.decode_keys)
        if prefill is None or decode is None:
            return None
        peaks = gpu.peaks(self.dtype)
        prompts_s = recurrent_prefill_s(load.chunks, load.new, self.shape, prefill, peaks)
        decodes_s = recurrent_decode_s(load.decodes, load.queries, self.shape, decode, peaks)
        return _masked(load.chunks, prompts_s) + _masked(load.decodes, decodes_s)


def _masked(count: Number, seconds: Number) -> Number:
    """The seconds where there is anything to do, else 0."""
    there: Any = count > 0.0
    masked: Number = seconds * there
    return masked


WIDEST_USUAL_HEAD = 256
"""Channels of a key head up to which the kernels that most models run go: those of FlashAttention-3."""


def own_kernel(head_dim: int, windowed: bool, widest: int) -> str:
    """Name of heads that engines run kernels of their own for; empty for all others.

    Heads of 192 channels (MiMo-V2), and heads beyond 256 (Gemma 4), with which a model's windowed layers go along: an
    engine runs one library for a model, and FlashAttention-3 ends at 256. The kernels are those of the measured tables:
    Triton in SGLang and, for 192 channels on Blackwell, in vLLM; FlashAttention-4 in vLLM on Hopper.

    Args:
        head_dim: channels of a key head.
        windowed: whether the layer has a window.
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
    keys = (*_cache_keys(kernel, kv_cache, f"{own}_"), f"{kernel}/{own}_fp8")
    return tuple(dict.fromkeys(keys)) if own else ()


def _cache_keys(kernel: str, kv_cache: Dtype, heads: str = "") -> tuple[str, str]:
    """Fits of an attention kernel over a cache of this format, else over one of 16 bit."""
    cache = "fp8" if BYTES_PER_VALUE[kv_cache] < 2.0 else "bf16"
    return f"{kernel}/{heads}{cache}", f"{kernel}/{heads}bf16"
