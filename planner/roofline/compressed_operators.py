"""Attention over compressed keys on one GPU, prompts and decodes as operators, and the residual streams around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.roofline.arithmetic import Number, at_most
from planner.roofline.compressed_kernels import CompressedHeads, compressed_attention_s, compressed_pairs
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import CompressedForm, LatentDecodeForm, LatentPrefillForm
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Elementwise,
    MatrixProduct,
    Operator,
    OperatorWork,
    driving_tokens,
)
from planner.roofline.shape import Load

_LAUNCHES = 3.0
"""Kernels of prompts and of decodes each, beside the projections: queries and their keys, pooling, attention."""


@dataclass(frozen=True)
class CompressedAttentionOperator(Operator):
    """What prompts and decodes have in common.

    Where compressed attention was not measured, the start and the shares of peak of latent attention stand in: there
    too all heads share one key of 512 channels or so.

    Attributes:
        shape: heads on this GPU and what they see.
    """

    shape: CompressedHeads

    @property
    def launches(self) -> float:
        """Kernels launched for it over all layers."""
        return _LAUNCHES * self.count

    def _keys(self, phase: str) -> tuple[str, ...]:
        own = "indexed" if self.shape.top_k else "pooled"
        other = "pooled" if self.shape.top_k else "indexed"
        return tuple(f"compressed_{phase}/{kind}" for kind in (own, other))

    def least_work(self, tokens: Number, pairs: Number, read_bytes: Number) -> OperatorWork:
        """4 h d FLOPs per pair; keys read once, own keys written, queries in and outputs out."""
        shape = self.shape
        written = shape.entry_bytes * (1.0 + (1.0 / shape.ratio if shape.ratio else 0.0))
        own = written + 2.0 * shape.heads * shape.head_dim * ACTIVATION_BYTES
        return OperatorWork(4.0 * shape.heads * shape.head_dim * pairs, read_bytes + tokens * own)

    def seen_entries(self, context: Number) -> Number:
        """Keys of one query that sees so many tokens, compressed ones and those of the window."""
        shape = self.shape
        seen = at_most(context, shape.window)
        if not shape.ratio:
            return seen
        entries = context / shape.ratio
        return seen + (at_most(entries, shape.top_k) if shape.top_k else entries)


@dataclass(frozen=True)
class CompressedPrefill(CompressedAttentionOperator):
    """Prompt chunks over their window and compressed keys."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels with an index or without, as the layer has one; then those of latent attention."""
        return (*self._keys("prefill"), "latent_prefill/fp8", "latent_prefill/bf16")

    def _read_bytes(self, load: Load) -> Number:
        """Cached keys that are read at least once: those of the window, and all or as many as can be chosen."""
        shape = self.shape
        read = at_most(load.cached, shape.window)
        if shape.ratio:
            entries = load.cached / shape.ratio
            read = read + (at_most(entries, shape.top_k * load.new) if shape.top_k else entries)
        return load.chunks * read * shape.entry_bytes

    def work(self, load: Load) -> OperatorWork:
        """As `CompressedAttentionOperator`."""
        pairs = load.chunks * compressed_pairs(load.new, load.past, self.shape)
        return self.least_work(load.chunks * load.new, pairs, self._read_bytes(load))

    def form(self, gpu: CalibratedGpu) -> CompressedForm | None:
        """Coefficients of its kernels, or those that stand in."""
        own, latent = self.fit_keys[:2], self.fit_keys[2:]
        return gpu.form(CompressedForm, *own) or _stand_in(gpu.form(LatentPrefillForm, *latent))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`compressed_attention_s` of all chunks."""
        form = self.form(gpu)
        if form is None:
            return None
        pairs = load.chunks * compressed_pairs(load.new, load.past, self.shape)
        read = self._read_bytes(load)
        seconds = compressed_attention_s(load.chunks * load.new, pairs, read, self.shape, form, gpu.peaks(self.dtype))
        return _masked(load.chunks, seconds)


@dataclass(frozen=True)
class CompressedDecode(CompressedAttentionOperator):
    """One query (more with speculation) per sequence over its window and compressed keys."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """As `CompressedPrefill`."""
        return (*self._keys("decode"), "latent_decode/fp8", "latent_decode/bf16")

    def work(self, load: Load) -> OperatorWork:
        """As `CompressedAttentionOperator`; queries of one sequence read the same keys."""
        entries = load.decodes * self.seen_entries(load.context)
        return self.least_work(load.decodes * load.queries, entries * load.queries, entries * self.shape.entry_bytes)

    def form(self, gpu: CalibratedGpu) -> CompressedForm | None:
        """Coefficients of its kernels, or those that stand in."""
        own, latent = self.fit_keys[:2], self.fit_keys[2:]
        return gpu.form(CompressedForm, *own) or _stand_in(gpu.form(LatentDecodeForm, *latent))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`compressed_attention_s`; every query reads its keys anew."""
        form = self.form(gpu)
        if form is None:
            return None
        tokens = load.decodes * load.queries
        pairs = tokens * self.seen_entries(load.context)
        read = pairs * self.shape.entry_bytes
        seconds = compressed_attention_s(tokens, pairs, read, self.shape, form, gpu.peaks(self.dtype))
        return _masked(load.decodes, seconds)


def _stand_in(latent: LatentDecodeForm | LatentPrefillForm | None) -> CompressedForm | None:
    """Start and shares of peak of latent attention."""
    if latent is None:
        return None
    return CompressedForm(latent.start_s, latent.compute_efficiency, latent.memory_efficiency, row_keys=0.0)


def _masked(count: Number, seconds: Number) -> Number:
    """The seconds where there is anything to do, else 0."""
    there: Any = count > 0.0
    masked: Number = seconds * there
    return masked


@dataclass(frozen=True)
class StreamMix(Elementwise):
    """Residual streams around blocks: mixed to what a block reads, or what it wrote added to their mix.

    Attributes:
        flops: of the projection of all streams to the values that mix them, per token.
        kernel: ``mhc_pre`` or ``mhc_post``, whose fit times it.
    """

    flops: float
    kernel: str

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Its own kernel, else any pass over memory."""
        return (f"elementwise/{self.kernel}", *super().fit_keys)

    def work(self, load: Load) -> OperatorWork:
        """Traffic, and the projection."""
        tokens = driving_tokens(load, self.driver)
        return OperatorWork(tokens * self.flops, tokens * self.values * ACTIVATION_BYTES)


@dataclass(frozen=True)
class GroupedProduct(MatrixProduct):
    """A matrix product of its own for each of several groups of channels, in one launch; `n` and `k` are of one group.

    Attributes:
        groups: on this GPU.
    """

    groups: float

    def work(self, load: Load) -> OperatorWork:
        """That of one group, times the groups."""
        one = super().work(load)
        return OperatorWork(self.groups * one.flops, self.groups * one.hbm_bytes)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """As one product with the outputs of all groups: as many tiles over the same inner width."""
        whole = MatrixProduct(
            *(self.family, self.dtype, self.count, self.driver),
            n=self.groups * self.n,
            k=self.k,
            weights=self.weights,
            activations=self.activations,
        )
        return whole.kernel_s(load, gpu)
