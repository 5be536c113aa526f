"""Latent attention over the keys that a sparse index chose, and that index, where whole modules of it were measured.

Engines differ in what they run: a kernel that takes as long for few keys as for all (vLLM), dense attention for short
prompts (SGLang), another one for each number of heads. One form for each phase holds attention and index, since that is
how they were measured; a layer that takes the choice of another has the first part only. Without such fits they are
timed kernel by kernel, as `planner.roofline.latent` and `planner.roofline.index` do. Forms, coefficients and their
conventions as in `planner.roofline.kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hardware_db import Dtype
from planner.core import Constants, FloatArray, vectorized
from planner.llm import BYTES_PER_VALUE, HEAD_GROUP, INDEX_SCALE_BYTES
from planner.roofline.arithmetic import Number, p_norm, pairs_of
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.index import IndexHeads, IndexScores
from planner.roofline.kernel_forms import ChosenDecodeForm, ChosenPrefillForm, GpuPeaks
from planner.roofline.latent import LatentDecode, LatentPrefill
from planner.roofline.operators import PromptKernel, cache_keys, where_any
from planner.roofline.shape import Load


@dataclass(frozen=True)
class ChosenHeads:
    """The heads of latent attention over chosen keys on one GPU.

    Attributes:
        heads: query heads on this GPU.
        kv_rank: channels of the latent vector.
        rope_dim: channels of the key that carry the position.
        top_k: keys a query attends to at most.
        kv_bytes: bytes per cached value.
        expanded: channels of a head's key and value together where they are made anew from latent vectors.
    """

    heads: float
    kv_rank: float
    rope_dim: float
    top_k: float
    kv_bytes: float
    expanded: float = 0.0

    @property
    def groups(self) -> float:
        """Groups of query heads that thread blocks work on, filled up."""
        return -(-self.heads // HEAD_GROUP)

    @property
    def group_flops(self) -> float:
        """FLOPs of one key in one group, absorbed."""
        return 2.0 * HEAD_GROUP * (2.0 * self.kv_rank + self.rope_dim)

    @property
    def least_flops(self) -> float:
        """FLOPs of one key, absorbed, with no head filled up."""
        return 2.0 * self.heads * (2.0 * self.kv_rank + self.rope_dim)

    @property
    def row_bytes(self) -> float:
        """Bytes of one latent row."""
        return (self.kv_rank + self.rope_dim) * self.kv_bytes


@vectorized(ChosenHeads, ChosenPrefillForm, GpuPeaks)
def chosen_prefill_s(row: Constants, _table: FloatArray, chunks: float, new: float, past: float) -> float:
    """Time [s] of latent attention of prompt chunks over chosen keys (means over the chunks are allowed).

    ``start + chunks keys 2 * 64 (2 kv_rank + rope_dim) groups^growth / (e_c peak)`` with

        groups = ceil(heads / 64)
        keys   = short_share new top_k + (1 - short_share) pairs, pairs of min(keys seen, top_k)

    but not below the pairs at peak, which a growth over more heads than were measured would beat. Where past + new is
    at most dense_keys, expanded keys and values are attended to without a choice:
    ``start + chunks 2 heads (pairs expanded + past kv_rank (expanded - rope_dim)) / (e_d peak)``.

    Args:
        row: heads and their cache, coefficients, and peaks of the GPU in 16 bit.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form = ChosenPrefillForm(0.0, 0.5, 1.0, 1.0, 0.0, 1.0, 0.0)
    >>> heads = ChosenHeads(16.0, 512.0, 64.0, 2048.0, 1.0)
    >>> f"{chosen_prefill_s(1.0, 4096.0, 0.0, heads, form, GpuPeaks(1e15, 4e12, 132.0)):.6f}"  # as `sparse_prefill_s`
    '0.002336'
    """
    pairs = pairs_of(new, past, row.top_k)
    if past + new <= row.dense_keys:
        made = past * row.kv_rank * (row.expanded - row.rope_dim)
        flops = chunks * 2.0 * row.heads * (pairs * row.expanded + made)
        return row.start_s + flops / (row.dense_efficiency * row.flops_per_s)
    keys = row.short_share * row.top_k * new + (1.0 - row.short_share) * pairs
    key_s = row.group_flops * float(row.groups**row.head_growth) / (row.compute_efficiency * row.flops_per_s)
    return max(row.start_s + chunks * keys * key_s, chunks * pairs * row.least_flops / row.flops_per_s)


@vectorized(IndexHeads, ChosenPrefillForm, GpuPeaks)
def chosen_prefill_index_s(row: Constants, _table: FloatArray, chunks: float, new: float, past: float) -> float:
    """Time [s] of scores and selection for prompt chunks.

    ``index_start + chunks max(pairs (2 heads d / (e_i peak) + select / sms), (past + new) (d + 4) / bandwidth)``: a
    few new tokens wait for the keys. Where past + new is at most dense_keys no pair is scored.

    Args:
        row: heads of the index, coefficients, and peaks of the GPU in 8 bit.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens each has cached.

    Returns:
        Duration, shape of `chunks` [s].
    """
    score_s = 2.0 * row.index_heads * row.index_dim / (row.index_efficiency * row.flops_per_s)
    scored = pairs_of(new, past, 0.0) if past + new > row.dense_keys else 0.0
    pairs_s = scored * (score_s + row.select_s / row.sms)
    return row.index_start_s + chunks * max(
        pairs_s, (past + new) * (row.index_dim + INDEX_SCALE_BYTES) / row.bytes_per_s
    )


@vectorized(ChosenHeads, ChosenDecodeForm, GpuPeaks)
def chosen_decode_s(row: Constants, _table: FloatArray, queries: float, context: float) -> float:
    """Time [s] of latent attention of decodes over chosen keys.

    ``p_norm(start, queries keys (row_bytes / bandwidth + 2 * 64 (2 kv_rank + rope_dim) groups / (e_c peak)))`` with
    ``keys = short_share top_k + (1 - short_share) min(context, top_k)``; every query reads the keys it chose.

    Args:
        row: heads and their cache, coefficients, and peaks of the GPU in 16 bit.
        queries: new tokens of all sequences, any shape.
        context: cached tokens of each, its new one included.

    Returns:
        Duration, shape of `queries` [s].

    >>> form = ChosenDecodeForm(0.0, 0.5, 0.0, 1.0, 0.0, 1.0)
    >>> heads = ChosenHeads(16.0, 512.0, 64.0, 2048.0, 1.0)
    >>> f"{chosen_decode_s(64.0, 9999.0, heads, form, GpuPeaks(1e15, 4e12, 132.0)) * 1e6:.2f}"  # 64 x 2048 rows
    '55.38'
    """
    keys = row.short_share * row.top_k + (1.0 - row.short_share) * min(context, row.top_k)
    key_s = row.group_flops * row.groups / (row.compute_efficiency * row.flops_per_s)
    return p_norm(row.order, row.start_s, queries * keys * (row.row_bytes / row.bytes_per_s + key_s))


@vectorized(IndexHeads, ChosenDecodeForm, GpuPeaks)
def chosen_decode_index_s(row: Constants, _table: FloatArray, sequences: float, context: float) -> float:
    """Time [s] of scores and selection for decodes: ``index_start + sequences context (d + 4) / (e_i bandwidth)``.

    Args:
        row: heads of the index, coefficients, and peaks of the GPU.
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included.

    Returns:
        Duration, shape of `sequences` [s].
    """
    key_s = (row.index_dim + INDEX_SCALE_BYTES) / (row.index_efficiency * row.bytes_per_s)
    return row.index_start_s + sequences * context * key_s


@dataclass(frozen=True)
class ChosenPrefill(LatentPrefill):
    """Latent attention of prompt chunks whose queries attend to chosen keys."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Modules, else kernels of latent attention."""
        return (*cache_keys("chosen_prefill", self.kv_cache), *super().fit_keys)

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`chosen_prefill_s`, else as `LatentPrefill`."""
        form = gpu.form(ChosenPrefillForm, *cache_keys("chosen_prefill", self.kv_cache))
        if form is None:
            return super().prompt_kernel(gpu)
        sizes = self.heads, self.kv_rank, self.rope_dim, self.top_k, BYTES_PER_VALUE[self.kv_cache]
        shape = ChosenHeads(*sizes, self.key_dim + self.value_dim)
        return PromptKernel(chosen_prefill_s, (shape, form, gpu.peaks(self.dtype)))


@dataclass(frozen=True)
class ChosenDecode(LatentDecode):
    """Latent attention of decodes that attend to chosen keys."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Modules, else kernels of latent attention."""
        return (*cache_keys("chosen_decode", self.kv_cache), *super().fit_keys)

    def _module(self, gpu: CalibratedGpu) -> ChosenDecodeForm | None:
        return gpu.form(ChosenDecodeForm, *cache_keys("chosen_decode", self.kv_cache))

    def in_parts(self, gpu: CalibratedGpu) -> bool:
        """As `LatentDecode`."""
        return self._module(gpu) is None

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`chosen_decode_s`, else as `LatentDecode`."""
        form = self._module(gpu)
        if form is None:
            return super().kernel_s(load, gpu)
        shape = ChosenHeads(self.heads, self.kv_rank, self.rope_dim, self.top_k, BYTES_PER_VALUE[self.kv_cache])
        seconds = chosen_decode_s(load.decodes * load.queries, load.context, shape, form, gpu.peaks(self.dtype))
        return where_any(load.decodes, seconds)


@dataclass(frozen=True)
class ChoosingIndex(IndexScores):
    """The index of latent attention over a cache of a format, whose modules it was measured in."""

    kv_cache: Dtype = Dtype.BF16

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Modules, else kernels of the index."""
        return (*cache_keys("chosen_prefill", self.kv_cache), *super().fit_keys)

    def _decode_form(self, gpu: CalibratedGpu) -> ChosenDecodeForm | None:
        return gpu.form(ChosenDecodeForm, *cache_keys("chosen_decode", self.kv_cache))

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`chosen_prefill_index_s`, else as `IndexScores`."""
        form = gpu.form(ChosenPrefillForm, *cache_keys("chosen_prefill", self.kv_cache))
        if form is None or self._decode_form(gpu) is None:
            return super().prompt_kernel(gpu)
        return PromptKernel(chosen_prefill_index_s, (self.heads_of_index, form, gpu.peaks(self.dtype)))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`chosen_prefill_index_s` and `chosen_decode_index_s`, else as `IndexScores`."""
        prompts, form = self.prompt_kernel(gpu), self._decode_form(gpu)
        if prompts is None or form is None or prompts.formula is not chosen_prefill_index_s:
            return super().kernel_s(load, gpu)
        decodes_s = chosen_decode_index_s(load.decodes, load.context, self.heads_of_index, form, gpu.peaks(self.dtype))
        return prompts.seconds(load) + where_any(load.decodes, decodes_s)
