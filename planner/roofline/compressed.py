"""Attention over a window and compressed keys: a kernel form of everything between its projections, and its operators.

The kernels are those of DeepSeek-V4 (``inference/model.py`` of huggingface.co/deepseek-ai/DeepSeek-V4-Flash;
``deepseek_v4_attention.py`` of vLLM 0.24): norms and rotation of queries, pooling of keys, sparse attention over window
and entries, rotation back and quantisation of the output. The scores of an index and the choice of entries are in
`planner.roofline.index`. Beside them are the residual streams around blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.core import Constants, FloatArray, vectorized
from planner.llm import HEAD_GROUP
from planner.roofline.arithmetic import Number, at_most, corrected_s, limited, pairs_of
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import CompressedForm, GpuPeaks, LatentDecodeForm, LatentPrefillForm
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    Elementwise,
    MatrixProduct,
    Operator,
    OperatorWork,
    PromptKernel,
    PromptOperator,
    PromptWork,
    driving_tokens,
    where_any,
)
from planner.roofline.shape import Load

BYTES_OF_HEAD, BYTES_OF_PADDED_HEAD = 7.0, 4.0
"""Bytes moved for each channel of a query head around the attention kernel, norm and rotation of queries in place
(2 + 2), outputs rotated back and quantised (2 + 1); and of each filled-up head by that kernel, queries in and outputs
out (2 + 2)."""


_LAUNCHES = 3.0
"""Kernels of prompts and of decodes each, beside the projections: queries and their keys, pooling, attention."""


@dataclass(frozen=True)
class CompressedHeads:
    """The heads of compressed attention on one GPU and what they see.

    Attributes:
        heads: query heads on this GPU.
        head_dim: channels of a head and of a key.
        entry_bytes: bytes of a cached key.
        window: tokens a query sees uncompressed.
        ratio: tokens to a compressed key, 0 = none.
        top_k: most compressed keys a query attends to, 0 = all.
    """

    heads: float
    head_dim: float
    entry_bytes: float
    window: float
    ratio: float
    top_k: float

    @property
    def padded_heads(self) -> float:
        """Query heads, filled up."""
        return padded_heads(self.heads)


def padded_heads(heads: float) -> float:
    """Query heads that the sparse kernel works on: whole groups of 64.

    Args:
        heads: on this GPU.

    Returns:
        The next multiple of `HEAD_GROUP`.

    >>> padded_heads(8.0), padded_heads(128.0)
    (64.0, 128.0)
    """
    return -(-heads // HEAD_GROUP) * HEAD_GROUP


@vectorized(CompressedHeads)
def compressed_pairs(row: Constants, _table: FloatArray, new: float, past: float) -> float:
    """Query-key pairs of new tokens: sum over i = 1..new of min(past + i, window) + min((past + i) / ratio, top_k).

    Parts of compressed keys count, of which a query sees half a one too many on average.

    Args:
        row: what a query sees.
        new: new tokens, any shape.
        past: tokens before them.

    Returns:
        Pairs, shape of `new`.

    >>> heavily, sparse = CompressedHeads(64, 512, 584, 128, 128, 0), CompressedHeads(64, 512, 584, 128, 4, 512)
    >>> [float(compressed_pairs(1.0, 12_799.0, one)) for one in (heavily, sparse)]  # 128 + 100, 128 + 512
    [228.0, 640.0]
    """
    pairs = pairs_of(new, past, row.window)
    return pairs + pairs_of(new, past, row.top_k * row.ratio) / row.ratio if row.ratio > 0.0 else pairs


@vectorized(CompressedHeads, CompressedForm, GpuPeaks)
def compressed_attention_s(row: Constants, table: FloatArray, tokens: float, pairs: float, read_bytes: float) -> float:
    """Time [s] of everything between the projections but the index.

    ``start + memory + compute`` with H the heads filled up to whole groups of 64 and

        memory  = (tokens d (7 heads + 4 H) + read_bytes) / (e_m bandwidth)
        compute = 4 H d (pairs + row_keys tokens) / (e_c peak)

    Kernels follow one another, so that times add up. Corrected over the keys of a token, pairs / tokens, and the groups
    of heads of all tokens, tokens H / 64.

    Args:
        row: heads and what they see, coefficients, and peaks of the GPU in 16 bit: 8-bit keys are unpacked.
        table: of the correction.
        tokens: new tokens of all sequences, any shape.
        pairs: `compressed_pairs` of all sequences.
        read_bytes: keys that are read from memory [bytes].

    Returns:
        Duration, shape of `tokens` [s].

    >>> form = CompressedForm(1e-5, compute_efficiency=0.5, memory_efficiency=0.5, row_keys=72.0)
    >>> gpu = GpuPeaks(1e15, 4e12, 132.0)
    >>> shape = CompressedHeads(64.0, 512.0, 584.0, 128.0, 128.0, 0.0)
    >>> took = compressed_attention_s(1000.0, 128_000.0, 0.0, shape, form, gpu)
    >>> f"{took:.7f}"  # 1e-5 + 3.604e8 / 2e12 + 2.621e10 / 5e14
    '0.0002427'
    """
    padded, d = row.padded_heads, row.head_dim
    traffic = tokens * (d * (BYTES_OF_HEAD * row.heads + BYTES_OF_PADDED_HEAD * padded)) + read_bytes
    compute = (pairs + row.row_keys * tokens) * (4.0 * padded * d / (row.compute_efficiency * row.flops_per_s))
    took = row.start_s + traffic / (row.memory_efficiency * row.bytes_per_s) + compute
    ideal = max(pairs * 4.0 * row.heads * d / row.flops_per_s, read_bytes / row.bytes_per_s)
    return corrected_s(table, took, ideal, pairs / max(tokens, 1e-9), tokens * (padded / HEAD_GROUP))


@vectorized(CompressedHeads, CompressedForm, GpuPeaks)
def compressed_prompts_s(
    row: Constants, table: FloatArray, chunks: float, new: float, past: float, cached: float
) -> float:
    """Time [s] of `compressed_attention_s` in chunks of prompts.

    Cached keys are read at least once: those of the window, and all or as many as can be chosen.

    Args:
        row: heads and what they see, coefficients, and peaks of the GPU in 16 bit.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens before them.
        cached: the same, as many as are read.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form, gpu = CompressedForm(0.0, 0.5, 0.5, row_keys=0.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> shape = CompressedHeads(64.0, 512.0, 584.0, 128.0, 4.0, 2048.0)
    >>> bare, read = (compressed_prompts_s(1.0, 1.0, 8192.0, cached, shape, form, gpu) for cached in (0.0, 4096.0))
    >>> f"{(read - bare) * 1e6:.4f}"  # (128 + 4096 / 4) x 584 / 2e12
    '0.3364'
    """
    read = min(cached, row.window)
    if row.ratio > 0.0:
        read += limited(cached / row.ratio, row.top_k * new)
    pairs = chunks * compressed_pairs(row, table, new, past)
    return compressed_attention_s(row, table, chunks * new, pairs, chunks * read * row.entry_bytes)


@dataclass(frozen=True)
class CompressedKeys(Operator):
    """Attention over a window and compressed keys.

    Where compressed attention was not measured, the start and the shares of peak of latent attention stand in: there
    too all heads share one key of 512 channels or so.

    Attributes:
        shape: heads on this GPU and what they see.
    """

    phase: ClassVar[str]
    """Of its kernels: ``prefill`` or ``decode``."""

    shape: CompressedHeads

    @property
    def launches(self) -> float:
        """Kernels launched for it over all layers."""
        return _LAUNCHES * self.count

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels with an index or without, as the layer has one; then those of latent attention."""
        kinds = ("indexed", "pooled") if self.shape.top_k else ("pooled", "indexed")
        own = (f"compressed_{self.phase}/{kind}" for kind in kinds)
        return (*own, f"latent_{self.phase}/fp8", f"latent_{self.phase}/bf16")


@dataclass(frozen=True)
class CompressedPrefill(CompressedKeys, PromptOperator):
    """Prompt chunks over their window and compressed keys."""

    phase: ClassVar[str] = "prefill"

    @property
    def prompt_work(self) -> PromptWork:
        """4 h d FLOPs per pair; keys read once, own keys written, queries in and outputs out."""
        shape, keys_of_token = self.shape, _keys_of_token(self.shape)
        pair_flops = 4.0 * shape.heads * shape.head_dim
        return PromptWork(
            pair_flops=pair_flops,
            keys=shape.window,
            more_pair_flops=pair_flops * keys_of_token,
            more_keys=shape.top_k * shape.ratio,
            window_bytes=shape.entry_bytes,
            cached_bytes=shape.entry_bytes * keys_of_token,
            cached_keys=shape.top_k * shape.ratio,
            token_bytes=_own_bytes(shape),
        )

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`compressed_prompts_s`."""
        form = _form(gpu, self.fit_keys, LatentPrefillForm)
        records = self.shape, form, gpu.peaks(self.dtype)
        return None if form is None else PromptKernel(compressed_prompts_s, records)


@dataclass(frozen=True)
class CompressedDecode(CompressedKeys):
    """One query (more with speculation) per sequence over its window and compressed keys."""

    phase: ClassVar[str] = "decode"

    def _entries(self, load: Load) -> Number:
        """Keys that one query of every sequence sees, compressed ones and those of the window."""
        shape = self.shape
        seen = at_most(load.context, shape.window)
        if shape.ratio:
            entries = load.context / shape.ratio
            seen = seen + (at_most(entries, shape.top_k) if shape.top_k else entries)
        return load.decodes * seen

    def work(self, load: Load) -> OperatorWork:
        """As `CompressedPrefill`; queries of one sequence read the same keys."""
        shape, entries = self.shape, self._entries(load)
        flops = 4.0 * shape.heads * shape.head_dim * entries * load.queries
        return OperatorWork(flops, entries * shape.entry_bytes + load.decodes * load.queries * _own_bytes(shape))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`compressed_attention_s`; every query reads its keys anew."""
        form = _form(gpu, self.fit_keys, LatentDecodeForm)
        if form is None:
            return None
        tokens, pairs = load.decodes * load.queries, load.queries * self._entries(load)
        read = pairs * self.shape.entry_bytes
        return where_any(
            load.decodes, compressed_attention_s(tokens, pairs, read, self.shape, form, gpu.peaks(self.dtype))
        )


def _keys_of_token(shape: CompressedHeads) -> float:
    """Compressed keys to a token."""
    return 1.0 / shape.ratio if shape.ratio else 0.0


def _own_bytes(shape: CompressedHeads) -> float:
    """Of a new token: its keys, query and output [bytes]."""
    return shape.entry_bytes * (1.0 + _keys_of_token(shape)) + 2.0 * shape.heads * shape.head_dim * ACTIVATION_BYTES


def _form(
    gpu: CalibratedGpu, keys: tuple[str, ...], latent: type[LatentPrefillForm] | type[LatentDecodeForm]
) -> CompressedForm | None:
    """Coefficients of its kernels; else start and shares of peak of latent attention."""
    own, relative = gpu.form(CompressedForm, *keys[:2]), gpu.form(latent, *keys[2:])
    if own is not None or relative is None:
        return own
    return CompressedForm(relative.start_s, relative.compute_efficiency, relative.memory_efficiency, row_keys=0.0)


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
