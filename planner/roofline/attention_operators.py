"""Attention of every kind on one GPU: softmax over grouped heads, latent, sparse index, recurrent state.

Prefill and decode are operators of their own, which see the chunks and the decodes of a step. Their times depend on
more than one number (`Driver.SHAPE`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from planner.roofline.kernel_forms import DecodeForm, LatentDecodeForm, LatentPrefillForm, PrefillForm
from planner.roofline.operators import ACTIVATION_BYTES, Operator, OperatorWork
from planner.roofline.shape import Load

STATE_BYTES = 4.0
"""Bytes per value of a recurrent state, kept in 32 bit."""
RECURRENCE_CHUNK = 64.0
"""Tokens a chunked linear-attention kernel treats at once (Yang et al. 2024, arXiv:2406.06484, sec. 4)."""


@dataclass(frozen=True)
class GroupedPrefill(Operator):
    """Causal attention of prompt chunks; sizes are those of this GPU. `window` 0 = whole context."""

    heads: float
    kv_heads: float
    head_dim: float
    kv_cache: Dtype
    window: float

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit."""
        return _cache_keys("attention_prefill", self.kv_cache)

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs per pair; cached KV read once, new KV written, queries in and outputs out."""
        pairs = load.chunks * attended_pairs(load.new, load.past, self.window)
        kv = 2.0 * self.kv_heads * self.head_dim * BYTES_PER_VALUE[self.kv_cache]
        query = self.heads * self.head_dim
        seen = load.cached + load.new
        read = at_most(seen, self.window + load.new) if self.window else seen
        traffic = load.chunks * (read * kv + load.new * (kv + 2.0 * query * ACTIVATION_BYTES))
        return OperatorWork(4.0 * query * pairs, traffic)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`prefill_attention_s`."""
        form = gpu.form(PrefillForm, *self.fit_keys)
        if form is None:
            return None
        heads = AttentionHeads(self.heads, self.kv_heads, self.head_dim, BYTES_PER_VALUE[self.kv_cache], self.window)
        peaks = gpu.peaks(self.kv_cache.arithmetic)
        seconds = prefill_attention_s(load.chunks, load.new, load.past, heads, form, peaks)
        return _masked(load.chunks, seconds)


@dataclass(frozen=True)
class GroupedDecode(Operator):
    """One query (more with speculation) per sequence against its cache; sizes are those of this GPU."""

    heads: float
    kv_heads: float
    head_dim: float
    kv_cache: Dtype
    window: float

    def _context(self, load: Load) -> Number:
        return at_most(load.context, self.window) if self.window else load.context

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels over a cache of this format, else of 16 bit."""
        return _cache_keys("attention_decode", self.kv_cache)

    def work(self, load: Load) -> OperatorWork:
        """4 h d FLOPs and 2 h_kv d cached values per token of context; own KV, queries and outputs per sequence."""
        kv = 2.0 * self.kv_heads * self.head_dim * BYTES_PER_VALUE[self.kv_cache]
        query, context = self.heads * self.head_dim, self._context(load)
        own = load.queries * (kv + 2.0 * query * ACTIVATION_BYTES)
        return OperatorWork(4.0 * load.decodes * load.queries * query * context, load.decodes * (context * kv + own))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`decode_attention_s`; several queries of a sequence count as further query heads."""
        form = gpu.form(DecodeForm, *self.fit_keys)
        if form is None:
            return None
        queries, kv_bytes = self.heads * load.queries, BYTES_PER_VALUE[self.kv_cache]
        heads = AttentionHeads(queries, self.kv_heads, self.head_dim, kv_bytes, self.window)
        seconds = decode_attention_s(load.decodes, load.context, heads, form, gpu.peaks(self.kv_cache.arithmetic))
        return _masked(load.decodes, seconds)


@dataclass(frozen=True)
class LatentPrefill(Operator):
    """Latent attention over prompt chunks in the cheaper of its two forms. `top_k` limits the keys of a query.

    Expanded: keys and values are made per head, those of cached tokens anew, and attention runs on them. Absorbed: as
    in decoding, every head works on latent rows, with longer dot products and nothing to make. Expanded is cheaper
    unless a short chunk follows a long past (DeepSeek-AI 2024, arXiv:2405.04434, sec. 2.1).
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
        return _masked(load.chunks, at_most(expanded + expansion, absorbed))


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
    """The sparse indexer scores every cached token with small heads in 8 bit (DeepSeek-V3.2), one key per token."""

    heads: float
    head_dim: float

    def work(self, load: Load) -> OperatorWork:
        """2 heads d FLOPs per query and cached token; one key of d bytes read per cached token."""
        pairs = load.chunks * attended_pairs(load.new, load.past, 0.0) + load.decodes * load.queries * load.context
        read = load.chunks * (load.cached + load.new) + load.decodes * load.context
        return OperatorWork(2.0 * self.heads * self.head_dim * pairs, read * self.head_dim)


@dataclass(frozen=True)
class Recurrence(Operator):
    """Linear attention or state space: a state of heads x key x value channels instead of a cache.

    Decoding reads and writes the state once per sequence and token: 8 FLOPs per state value (decay, delta, update,
    read-out). Prompts go through in chunks of c = 64 tokens: 4 FLOPs per state value and token between chunks and
    4 c (key + value) within one, with a state read and written per chunk (Yang et al. 2024, arXiv:2406.06484).
    """

    heads: float
    key_dim: float
    value_dim: float

    def work(self, load: Load) -> OperatorWork:
        """FLOPs and state traffic of decodes and of the chunks of prompts, as the class says."""
        state = self.heads * self.key_dim * self.value_dim
        within = 4.0 * RECURRENCE_CHUNK * self.heads * (self.key_dim + self.value_dim)
        prompt = load.chunks * load.new
        pieces = load.chunks + prompt / RECURRENCE_CHUNK
        decoded = load.decodes * load.queries
        width = self.heads * (2.0 * self.key_dim + 2.0 * self.value_dim) * ACTIVATION_BYTES
        return OperatorWork(
            decoded * 8.0 * state + prompt * (4.0 * state + within),
            2.0 * STATE_BYTES * state * (decoded + pieces) + (decoded + prompt) * width,
        )


def _masked(count: Number, seconds: Number) -> Number:
    """The seconds where there is anything to do, else 0."""
    there: Any = count > 0.0
    masked: Number = seconds * there
    return masked


def _cache_keys(kernel: str, kv_cache: Dtype) -> tuple[str, str]:
    """Fits of an attention kernel over a cache of this format, else over one of 16 bit."""
    cache = "fp8" if BYTES_PER_VALUE[kv_cache] < 2.0 else "bf16"
    return f"{kernel}/{cache}", f"{kernel}/bf16"
