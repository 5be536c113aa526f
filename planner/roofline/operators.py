"""The operators of a transformer layer on one GPU: the work of each, and the time its kernel takes.

Here are matrix products, experts, passes over activations and collectives; the modules of its kinds have attention.

The work is ideal: FLOPs, HBM bytes and link bytes nobody can save. Operator time without a calibration is the roofline
(Williams, Waterman, Patterson 2009, CACM 52(4), eq. 1):

    time = max(flops / peak, hbm_bytes / bandwidth, link_bytes / link bandwidth)

and with one the fitted kernel form of `planner.roofline.kernels`, never below the roofline of its FLOPs and HBM bytes.
Transformer FLOP counts follow Narayanan et al. 2021 (arXiv:2104.04473, appendix): 2 FLOPs per weight and token in a
matrix product, 4 * heads * head_dim FLOPs per query-key pair in attention.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from hardware_db import Dtype
from planner.core import Constants, FloatArray, Vectorized, vectorized
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number, at_least, at_most, limited, pairs_of
from planner.roofline.expert_load import routed_load
from planner.roofline.gpu import CalibratedGpu, all_reduce_link_bytes, link_bandwidth_bytes_per_s
from planner.roofline.kernel_forms import (
    NO_CORRECTION,
    WEIGHT_FORMATS,
    CollectiveForm,
    ElementwiseForm,
    ExpertsForm,
    Form,
    GemmForm,
    NetworkForm,
    weight_key,
)
from planner.roofline.kernels import (
    ExpertShape,
    collective_s,
    elementwise_s,
    exchanged_bytes,
    experts_s,
    gemm_s,
    grouped_gemm_s,
    network_s,
)
from planner.roofline.shape import TINY_COUNT, Load, OperatorFamily

ACTIVATION_BYTES = 2.0
"""Bytes per activation value between operators: residual stream and collectives stay in 16 bit in all engines."""
COLLECTIVE_SIZES = (2, 4, 8)
"""Numbers of GPUs for which collectives are measured."""
DISPATCH_BYTES = 1.0 + 4.0 / 128.0
"""Bytes per value of tokens sent to their experts: 8 bit and a 32-bit scale for every 128 (DeepSeek-AI 2024,
arXiv:2412.19437, 3.2; deepseek-ai/DeepEP, ``low_latency_dispatch``)."""
EXPERT_LAUNCHES = 6.0
"""Kernels of routed experts in a layer: routing, permutation, two grouped products, activation and sum."""
EXCHANGE_SMS = 20.0
"""Processors that the high-throughput kernels of the exchange keep; DeepEP's default (deepseek-ai/DeepEP,
Buffer.num_sms)."""
GROUPED_GEMM = "gemm/fp8_block"
"""Fit of the library whose grouped kernels run block-scaled 8-bit experts behind an all-to-all: DeepGEMM."""
LOW_LATENCY_TOKENS = 1024.0
"""Most tokens of a rank that low-latency all-to-all kernels carry; they lay rows out by expert themselves
(``num_max_dispatch_tokens_per_rank`` <= 1024 in token_dispatcher/deepep.py of SGLang)."""

_FLOAT_8 = ("fp8", "fp8_token", "fp8_block")
_PACKED = ("int4_wo", "mxfp4_wo", "int8_wo", "bf16")
GEMM_FALLBACKS: dict[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": (*_FLOAT_8, "bf16"),
    "fp8_token": ("fp8_token", "fp8", "fp8_block", "bf16"),
    "fp8_block": ("fp8_block", "fp8", "fp8_token", "bf16"),
    "mxfp8": ("mxfp8", "fp8_block", "fp8", "fp8_token", "bf16"),
    **{f"{name}_wo": (f"{name}_wo", "fp8_wo", "int8_wo", "bf16") for name in (*_FLOAT_8, "mxfp8")},
    "int8": ("int8", "fp8", "bf16"),
    "int8_wo": ("int8_wo", "int4_wo", "bf16"),
    "int4_wo": _PACKED,
    "int4_g32_wo": ("int4_g32_wo", *_PACKED),
    "mxfp4_wo": ("mxfp4_wo", *_PACKED),
    "nvfp4_wo": ("nvfp4_wo", *_PACKED),
    "nvfp4": ("nvfp4", "mxfp4", *_FLOAT_8, "bf16"),
    "mxfp4": ("mxfp4", "nvfp4", *_FLOAT_8, "bf16"),
    **{
        f"{name}_fp8": (f"{name}_fp8", "mxfp4_fp8", "nvfp4", "mxfp4", *_FLOAT_8, "bf16")
        for name in ("int4", "int4_g32", "nvfp4", "mxfp4")
    },
    **{f"{name}_int8": (f"{name}_int8", "int8", "bf16") for name in ("int4", "int4_g32")},
}
"""Fits to use for a weight format, best first: the nearest measured relative stands in for what was not measured."""


class Driver(Enum):
    """Quantity that drives the time of an operator: one number of a `Load`, or more than one."""

    TOKENS = "tokens"
    GROUP_TOKENS = "group_tokens"
    ROWS = "rows"
    SHAPE = "shape"
    """Sequences, their contexts and chunks: attention of all kinds."""


def driving_tokens(load: Load, driver: Driver) -> Number:
    """The tokens or rows of a load that an operator runs over.

    Args:
        load: part of a step that one GPU sees.
        driver: what the operator's time depends on; not `Driver.SHAPE`, which is no one number.

    Returns:
        Tokens or rows, shape of the load's fields.
    """
    if driver is Driver.GROUP_TOKENS:
        return load.group_tokens
    return load.rows if driver is Driver.ROWS else load.tokens


@dataclass(frozen=True)
class OperatorWork:
    """Least work of an operator in one layer: FLOPs, HBM bytes, bytes each GPU sends. Floats or arrays."""

    flops: Number = 0.0
    hbm_bytes: Number = 0.0
    link_bytes: Number = 0.0


@dataclass(frozen=True)
class Operator(ABC):
    """An operator that `count` layers have alike.

    Attributes:
        family: operator family.
        dtype: number format of its arithmetic.
        count: layers.
        driver: what its time depends on.
    """

    family: OperatorFamily
    dtype: Dtype
    count: float
    driver: Driver

    @abstractmethod
    def work(self, load: Load) -> OperatorWork:
        """Least work in one layer."""

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """Time of the kernel in one layer [s], or None when nothing like it was measured."""
        return None

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Fits of a calibration that may time it, best first; none for an operator nobody has measured."""
        return ()

    @property
    def launches(self) -> float:
        """Kernels launched for it over all layers."""
        return self.count


@dataclass(frozen=True)
class PromptWork:
    """Least work of one layer's attention in a chunk of a prompt.

    With new, past and cached tokens as in `Load`, and pairs as `attended_pairs` counts them,

        FLOPs = min(pair_flops pairs(keys) + cached_flops cached, absorbed_flops pairs(keys))
                + more_pair_flops pairs(more_keys) + token_flops new
        bytes = window_bytes min(cached, keys) + cached_bytes min(cached, cached_keys new)
                + token_bytes new + chunk_bytes

    Of `keys`, `more_keys` and `cached_keys` 0 is no limit. `absorbed_flops` are those of another way to the same,
    infinite where there is none.
    """

    pair_flops: float = 0.0
    keys: float = 0.0
    cached_flops: float = 0.0
    absorbed_flops: float = math.inf
    more_pair_flops: float = 0.0
    more_keys: float = 0.0
    token_flops: float = 0.0
    window_bytes: float = 0.0
    cached_bytes: float = 0.0
    cached_keys: float = 0.0
    token_bytes: float = 0.0
    chunk_bytes: float = 0.0


@vectorized(PromptWork)
def prompt_flops(row: Constants, _table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """FLOPs of `PromptWork` in chunks that are alike.

    Args:
        row: coefficients of the work.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens before them.
        cached: the same, as many as are read.

    Returns:
        FLOPs, shape of `chunks`.
    """
    pairs = pairs_of(new, past, row.keys)
    flops = min(row.pair_flops * pairs + row.cached_flops * cached, row.absorbed_flops * pairs)
    return chunks * (flops + row.more_pair_flops * pairs_of(new, past, row.more_keys) + row.token_flops * new)


@vectorized(PromptWork)
def prompt_bytes(row: Constants, _table: FloatArray, chunks: float, new: float, _past: float, cached: float) -> float:
    """Bytes of `PromptWork` in chunks that are alike.

    Args:
        row: coefficients of the work.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        cached: the same, as many as are read.

    Returns:
        Bytes, shape of `chunks`.
    """
    traffic = row.window_bytes * limited(cached, row.keys) + row.cached_bytes * limited(cached, row.cached_keys * new)
    return chunks * (traffic + row.token_bytes * new + row.chunk_bytes)


@dataclass(frozen=True)
class PromptKernel:
    """The kernel form that times prompts in one layer.

    Attributes:
        formula: of (chunks, new, past, cached), or of the first few of these.
        records: with its constants.
    """

    formula: Vectorized
    records: tuple[Any, ...]

    @property
    def table(self) -> FloatArray:
        """Of its correction."""
        return next((record.table for record in self.records if isinstance(record, Form)), NO_CORRECTION)

    def seconds(self, load: Load) -> Number:
        """Of one layer, 0 where there are no prompts [s]."""
        numbers = (load.chunks, load.new, load.past, load.cached)[: self.formula.numbers]
        return where_any(load.chunks, self.formula(*numbers, *self.records))


class PromptOperator(Operator):
    """Attention of prompts, of one kind or another."""

    @property
    @abstractmethod
    def prompt_work(self) -> PromptWork:
        """Least work of prompts."""

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """Kernel that times prompts; None where nothing like it was measured."""
        return None

    def work(self, load: Load) -> OperatorWork:
        """As `PromptWork`."""
        chunks = load.chunks, load.new, load.past, load.cached
        return OperatorWork(prompt_flops(*chunks, self.prompt_work), prompt_bytes(*chunks, self.prompt_work))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """By `prompt_kernel`."""
        kernel = self.prompt_kernel(gpu)
        return None if kernel is None else kernel.seconds(load)


def where_any(count: Number, seconds: Number) -> Number:
    """The seconds where there is anything to do, else 0.

    Args:
        count: chunks or decodes, any shape.
        seconds: shape of `count` [s].

    Returns:
        Shape of `count` [s].
    """
    there: Any = count > 0.0
    masked: Number = seconds * there
    return masked


def cache_keys(kernel: str, kv_cache: Dtype, heads: str = "") -> tuple[str, ...]:
    """Fits of an attention kernel over a cache of this format, else over one of 16 bit.

    Args:
        kernel: first part of their keys.
        kv_cache: format of the cache.
        heads: of which kind the heads are, if that matters.

    Returns:
        Keys of a calibration, best first.
    """
    caches = ("fp8", "bf16") if BYTES_PER_VALUE[kv_cache] < ACTIVATION_BYTES else ("bf16",)
    return tuple(f"{kernel}/{heads}{cache}" for cache in caches)


def _quantised(weights: Dtype, activations: Dtype) -> bool:
    """Whether a kernel of its own quantises activations before a product: those of blocks, whose scales are found as
    they come (``per_token_group_quant_8bit`` of SGLang); static scales are applied by the norm or gate before.
    """
    return weight_key(weights, activations) == "fp8_block"


@dataclass(frozen=True)
class MatrixProduct(Operator):
    """x[m, k] W[k, n] for all tokens of the step (or its sampled rows): weights read once, activations in and out.

    Attributes:
        n: output width on this GPU.
        k: inner width on this GPU.
        weights: number format of W.
        activations: number format of x.
        comes_quantised: the kernel before writes x in 8 bits where one scale is enough for it.
    """

    n: float
    k: float
    weights: Dtype
    activations: Dtype
    comes_quantised: bool = field(default=False, kw_only=True)

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Matrix products of the weights' format or its relatives."""
        return tuple(f"gemm/{name}" for name in GEMM_FALLBACKS[weight_key(self.weights, self.activations)])

    @property
    def launches(self) -> float:
        """The product, and the pass that quantises its activations if there is one, over all layers."""
        return (1.0 + _quantised(self.weights, self.activations)) * self.count

    def work(self, load: Load) -> OperatorWork:
        """2 m n k FLOPs; n k weights and m (n + k) activations."""
        m = driving_tokens(load, self.driver)
        traffic = self.n * self.k * BYTES_PER_VALUE[self.weights] + m * (self.n + self.k) * ACTIVATION_BYTES
        return OperatorWork(2.0 * m * self.n * self.k, traffic)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`gemm_s`, with a quantisation pass where activations are quantised on the fly, times the factor that the form
        misses at products of these widths, as a curve over tokens.
        """
        form = gpu.form(GemmForm, *self.fit_keys)
        if form is None:
            return None
        key, m = weight_key(self.weights, self.activations), driving_tokens(load, self.driver)
        stored = WEIGHT_FORMATS[key]
        if self.comes_quantised and key == "fp8":
            stored = replace(stored, quantised=False)
        peaks, work = gpu.peaks(self.dtype), self.work(load)
        took = gemm_s(m, self.n, self.k, form, peaks, stored)
        if form.measured is None:
            return took
        took = took * form.measured.at((self.n, self.k)).factor(m, 1.0)
        return at_least(at_least(took, work.flops / peaks.flops_per_s), work.hbm_bytes / peaks.bytes_per_s)


@dataclass(frozen=True)
class Experts(Operator):
    """Routed experts on this GPU.

    Attributes:
        hidden: model width.
        intermediate: width of an expert on this GPU.
        gated: three matrices instead of two.
        total: routed experts of a layer.
        visits: of which every token visits this many.
        ep: groups the experts live in.
        weights: number format of the weights.
        activations: number format of the activations.
        skew: exponent of the experts' popularity, 0 = all alike.
        copies: of experts, with which the engine balances.
        sent: tokens come by an all-to-all, those for this GPU's experts alone; else every GPU sees all of its group.
    """

    hidden: float
    intermediate: float
    gated: bool
    total: int
    visits: int
    ep: int
    weights: Dtype
    activations: Dtype
    skew: float
    copies: int = 0
    sent: bool = False

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Experts of the weights' format or its relatives; of block-scaled 8 bits that were sent, matrix products."""
        grouped = (GROUPED_GEMM,) if self.sent and self.weights is Dtype.FP8_BLOCK else ()
        return (*grouped, *(f"experts/{name}" for name in GEMM_FALLBACKS[weight_key(self.weights, self.activations)]))

    @property
    def launches(self) -> float:
        """Its kernels, and those that quantise the activations of both products if there are any, over all layers."""
        return (EXPERT_LAUNCHES + 2.0 * _quantised(self.weights, self.activations)) * self.count

    def _routed(self, load: Load) -> tuple[FloatArray, FloatArray]:
        """(token, expert) pairs and active experts of this GPU."""
        missing = -(self.total + self.copies) % self.ep
        tokens = np.asarray(load.group_tokens)
        return routed_load(tokens, self.total, self.visits, self.ep, self.skew, self.copies + missing)

    def work(self, load: Load) -> OperatorWork:
        """FLOPs of the (token, expert) pairs that fall here; weights of the experts hit."""
        pairs, active = self._routed(load)
        matrices = 3.0 if self.gated else 2.0
        weights = matrices * self.hidden * self.intermediate
        width = 2.0 * self.hidden + matrices * self.intermediate
        traffic = active * weights * BYTES_PER_VALUE[self.weights] + pairs * width * ACTIVATION_BYTES
        return OperatorWork(2.0 * pairs * weights, traffic)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`experts_s` over the routed load, or `_grouped_s`. Those that were sent are fewer than the measured ones."""
        key = gpu.first_key(*self.fit_keys)
        if key == GROUPED_GEMM:
            return self._grouped_s(load, gpu)
        form = None if key is None else gpu.form(ExpertsForm, key)
        if form is None:
            return None
        pairs, active = self._routed(load)
        stored = WEIGHT_FORMATS[weight_key(self.weights, self.activations)]
        routing = (float(self.visits), float(self.total), float(self.ep))
        weight_bytes, activation_bytes = stored.weight_bytes, stored.activation_bytes
        expert = ExpertShape(self.hidden, self.intermediate, self.gated, weight_bytes, activation_bytes, routing)
        tokens = np.asarray(load.group_tokens)
        if self.sent:
            expert, tokens = replace(expert, routing=None), pairs * self._share_of_pairs
        return experts_s(tokens, pairs, active, expert, form, gpu.peaks(self.dtype))

    @property
    def _share_of_pairs(self) -> float:
        """Tokens that reach a GPU per pair that does, for evenly spread experts."""
        return (1.0 - (1.0 - 1.0 / self.ep) ** self.visits) * self.ep / self.visits

    def _grouped_s(self, load: Load, gpu: CalibratedGpu) -> Number:
        """Two grouped products of the library that multiplies dense ones, and the passes around them [s].

        Source: ``moe_runner/deep_gemm.py`` of SGLang, ``deep_gemm_moe.py`` of vLLM. Passes: activation with
        quantisation; for prompts rows are also laid out by expert before (8 bits) and summed by token after.
        """
        form, passes = gpu.form(GemmForm, GROUPED_GEMM), gpu.form(ElementwiseForm, "elementwise/bf16")
        assert form is not None
        pairs, active = (np.maximum(values, TINY_COUNT) for values in self._routed(load))
        peaks, width = gpu.peaks(self.dtype), (2.0 if self.gated else 1.0) * self.intermediate
        stored, rows = WEIGHT_FORMATS["fp8_block"], pairs / active
        took = grouped_gemm_s(rows, active, width, self.hidden, form, peaks, stored)
        took = took + grouped_gemm_s(rows, active, self.hidden, self.intermediate, form, peaks, stored)
        in_order = np.asarray(load.group_tokens) / self.ep > LOW_LATENCY_TOKENS
        moved = pairs * (width * ACTIVATION_BYTES + self.intermediate)
        moved += in_order * pairs * self.hidden * (2.0 + ACTIVATION_BYTES * (1.0 + self._share_of_pairs))
        if passes is not None:
            return took + elementwise_s(moved, passes, peaks) + 2.0 * in_order * passes.start_s
        return took + moved / peaks.bytes_per_s


@dataclass(frozen=True)
class Elementwise(Operator):
    """Passes over activations (norms, rotary embedding, gate): `values` moved per token in `kernels` launches."""

    values: float
    kernels: float

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Element-wise kernels, whatever they compute."""
        return ("elementwise/bf16",)

    @property
    def launches(self) -> float:
        """Its kernels over all layers."""
        return self.count * self.kernels

    def work(self, load: Load) -> OperatorWork:
        """Traffic only."""
        return OperatorWork(0.0, load.tokens * self.values * ACTIVATION_BYTES)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`elementwise_s`, its floor paid once per kernel."""
        form = gpu.form(ElementwiseForm, *self.fit_keys)
        if form is None:
            return None
        traffic = load.tokens * self.values * ACTIVATION_BYTES
        return elementwise_s(traffic, form, gpu.peaks(self.dtype)) + (self.kernels - 1.0) * form.start_s


@dataclass(frozen=True)
class Collective(Operator):
    """A collective: `values` of each token (or row) take part.

    Attributes:
        operation: all_reduce, all_gather, reduce_scatter.
        gpus: GPUs that take part.
        values: of the whole buffer per token or row.
        bytes_per_value: of what travels.
        ideal_share: bytes each GPU sends per byte of the buffer.
        link_bytes_per_s: bandwidth among the GPUs, per GPU and direction.
    """

    operation: str
    gpus: int
    values: float
    bytes_per_value: float
    ideal_share: float
    link_bytes_per_s: float

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """The collective over that number of GPUs, else the nearest larger, else the largest measured."""
        sizes = sorted(COLLECTIVE_SIZES, key=lambda size: (size < self.gpus, abs(size - self.gpus)))
        return tuple(f"{self.operation}/{size}" for size in sizes)

    def _payload(self, load: Load) -> Number:
        return driving_tokens(load, self.driver) * self.values * self.bytes_per_value

    def work(self, load: Load) -> OperatorWork:
        """Link bytes, and the buffer read and written in HBM."""
        payload = self._payload(load)
        return OperatorWork(0.0, 2.0 * payload * min(1.0, self.ideal_share), payload * self.ideal_share)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`collective_s`: the whole buffer for an all-reduce, the part that travels otherwise.

        Where an all-reduce was measured over fewer GPUs only, the buffer counts as much more as a ring over more sends.
        """
        return self._moved_s(load, gpu, self.fit_keys)

    def _moved_s(self, load: Load, gpu: CalibratedGpu, keys: Sequence[str]) -> Number | None:
        key = gpu.first_key(*keys)
        form = None if key is None else gpu.form(CollectiveForm, key)
        if key is None or form is None:
            return None
        share = self.ideal_share
        if self.operation == "all_reduce":
            share = max(1.0, self.ideal_share / all_reduce_link_bytes(1.0, int(key.rpartition("/")[2])))
        return collective_s(self._payload(load) * share, self.link_bytes_per_s, form)


@dataclass(frozen=True)
class NormedReduce(Collective):
    """An all-reduce whose kernel adds the residual and takes the norm that follows; larger buffers do so apart.

    Source: ``allReduceFusionKernels.cu`` of TensorRT-LLM, which FlashInfer carries to vLLM and SGLang.

    Attributes:
        moved: values that a norm of its own reads and writes per token.
        most_bytes: largest buffer [bytes].
    """

    moved: float
    most_bytes: float

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """That kernel's, else the all-reduce's."""
        apart = super().fit_keys
        return (*(key.replace("all_reduce", "normed_reduce") for key in apart), *apart)

    @property
    def launches(self) -> float:
        """Two: steps that are launched kernel by kernel have long prompts, whose buffers are larger."""
        return 2.0 * self.count

    def work(self, load: Load) -> OperatorWork:
        """Of the sum, and the passes of the norm."""
        summed = super().work(load)
        return OperatorWork(0.0, summed.hbm_bytes + self._residual_bytes(load), summed.link_bytes)

    def _residual_bytes(self, load: Load) -> Number:
        """Of the residual, read and written: the norm's other passes are those of the sum."""
        return load.tokens * (self.moved - 2.0 * self.values) * ACTIVATION_BYTES

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`collective_s` and the passes over the residual; of larger buffers also a kernel for the norm."""
        fused_s, apart_s = (self._moved_s(load, gpu, keys) for keys in (self.fit_keys, super().fit_keys))
        passes, peaks = gpu.form(ElementwiseForm, "elementwise/bf16"), gpu.peaks(self.dtype)
        if fused_s is None or apart_s is None or passes is None:
            return None
        fused_s = fused_s + self._residual_bytes(load) / peaks.bytes_per_s / passes.memory_efficiency
        apart_s = apart_s + elementwise_s(load.tokens * self.moved * ACTIVATION_BYTES, passes, peaks)
        return np.where(self._payload(load) <= self.most_bytes, fused_s, apart_s)


@dataclass(frozen=True)
class NetworkCollective(Operator):
    """A collective over several domains: inside each of them and between them at once, as NCCL's trees carry it.

    Attributes:
        operation: all_reduce, all_gather.
        domain_gpus: GPUs of a domain that take part.
        domains: that take part.
        payload_bytes: of the whole buffer per token or row.
        link_bytes_per_s: inside a domain, per GPU and direction.
        network_bytes_per_s: between domains, per GPU and direction.
    """

    operation: str
    domain_gpus: int
    domains: int
    payload_bytes: float
    link_bytes_per_s: float
    network_bytes_per_s: float

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """One fit for all operations and sizes."""
        return ("network/nccl",)

    @property
    def trips(self) -> float:
        """Times the buffer travels: an all-reduce sums and then spreads the sum."""
        return 2.0 if self.operation == "all_reduce" else 1.0

    def work(self, load: Load) -> OperatorWork:
        """Bytes on the link that takes longest, in those of the fast one: a ring inside, each GPU's part between."""
        payload = driving_tokens(load, self.driver) * self.payload_bytes
        inside = (self.domain_gpus - 1.0) / self.domain_gpus
        across = (self.domains - 1.0) / self.domains / self.domain_gpus
        share = self.trips * max(inside, across * self.link_bytes_per_s / self.network_bytes_per_s)
        return OperatorWork(0.0, 2.0 * payload, payload * share)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`network_s`."""
        form = gpu.form(NetworkForm, *self.fit_keys)
        if form is None:
            return None
        ideal_s = self.work(load).link_bytes / self.link_bytes_per_s
        seconds: Number = network_s(ideal_s, self.trips, self.domain_gpus, self.domains, form)
        return seconds


@dataclass(frozen=True)
class ExpertExchange(Operator):
    """Tokens on their way to experts spread over many GPUs (dispatch), or back (combine).

    Engines have two kernels for it: one sends a copy to every expert a token visits (low latency), one a copy to every
    server that holds any of them, which hands it on over its own links (high throughput). They take the first for
    decodes and the second for prompts, which is the faster one at their numbers of tokens and is taken as such. Inside
    a rack-scale domain one kernel writes every copy over NVLink. Bytes that cross the network hide those on the links
    of a server: over 16 to 256 GPUs DeepEP takes what the network's bytes do and one start (deepseek-ai/DeepEP,
    docs/legacy.md).

    Attributes:
        combine: back from the experts, in 16 bit; else to them, in `DISPATCH_BYTES`.
        values: of a token that this GPU sends: its width over the tensor-parallel shards.
        visits: experts a token visits.
        gpus: that the experts are spread over.
        domain_gpus: joined by the fast link.
        node_gpus: of a server.
        link_bytes_per_s: per GPU and direction, of the network where `gpus` are more than a domain.
        total, skew, copies: of the experts, as in `Experts`; the links of the busiest GPU carry as many more tokens.
    """

    combine: bool
    values: float
    visits: float
    gpus: int
    domain_gpus: int
    node_gpus: int
    link_bytes_per_s: float
    total: int = 0
    skew: float = 0.0
    copies: int = 0

    @property
    def kernels(self) -> tuple[tuple[str, bool], ...]:
        """Fits of the kernels that there are, and whether each sends a copy to every expert."""
        phase = "combine" if self.combine else "dispatch"
        if self.gpus <= self.node_gpus:
            return (f"expert_{phase}/low_latency", True), (f"expert_{phase}/normal", False)
        if self.gpus <= self.domain_gpus:
            return ((f"network/{phase}_rack", True),)
        return (f"network/{phase}_low_latency", True), (f"network/{phase}_normal", False)

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """That of the kernel of decodes first."""
        return tuple(key for key, _ in self.kernels)

    def _sent_bytes(self, load: Load, per_expert: bool) -> Number:
        places = self.gpus / (self.domain_gpus if self.gpus > self.domain_gpus else 1.0)
        value_bytes = ACTIVATION_BYTES if self.combine else DISPATCH_BYTES
        return exchanged_bytes(load.tokens, self.values, self.visits, places, value_bytes, per_expert)

    def work(self, load: Load) -> OperatorWork:
        """A copy to every GPU, beyond a domain to every domain, that holds experts of a token; tokens read in HBM."""
        value_bytes = ACTIVATION_BYTES if self.combine else DISPATCH_BYTES
        return OperatorWork(0.0, load.tokens * self.values * value_bytes, self._sent_bytes(load, per_expert=False))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """The faster of its kernels: `collective_s` in a server, `network_s` beyond."""
        times = [
            self._seconds(key, self._crowding(load) * self._sent_bytes(load, per_expert), gpu)
            for key, per_expert in self.kernels
            if gpu.first_key(key) is not None
        ]
        return at_most(times[0], times[-1]) if times else None

    def occupied_s(self, load: Load, gpu: CalibratedGpu) -> Number:
        """Time for which its kernels keep the processors from computing, in one layer [s].

        Low-latency ones issue their copies and sum what came: what the same copies take inside a server. While these
        cross the network all processors are free (DeepSeek-AI 2025, github.com/deepseek-ai/profile-data, "Decoding").
        High-throughput ones keep `EXCHANGE_SMS` processors throughout, others all.
        """
        taken = self.kernel_s(load, gpu)
        if taken is None or self.gpus <= self.domain_gpus:
            return math.inf
        (low_latency, _), (normal, _) = self.kernels
        form = gpu.form(CollectiveForm, low_latency.replace("network/", "expert_").replace("_low", "/low"))
        inside: Number = math.inf
        if form is not None:
            local = replace(self, gpus=self.node_gpus, domain_gpus=self.node_gpus)
            link = link_bandwidth_bytes_per_s(gpu.sku, self.node_gpus)
            inside = collective_s(local._sent_bytes(load, per_expert=True), link, form)
        share = min(EXCHANGE_SMS / gpu.peaks(self.dtype).sms, 1.0)
        sent = self._crowding(load) * self._sent_bytes(load, per_expert=False)
        slower = self._seconds(normal, sent, gpu) > np.asarray(taken)
        occupied: Number = np.where(slower, inside, share * np.asarray(taken))
        return occupied

    def _crowding(self, load: Load) -> Number:
        """Tokens that reach the busiest GPU over those of the mean one; 1 with copies, where only chance is left.

        Chance is in what was measured: kernels were timed with random experts.
        """
        if not self.skew or self.copies or self.total % self.gpus:
            return 1.0
        tokens = np.maximum(np.asarray(load.tokens) * self.gpus, 1.0)
        pairs, _ = routed_load(tokens, self.total, int(self.visits), self.gpus, self.skew)
        crowding: FloatArray = np.maximum(pairs * self.gpus / (tokens * self.visits), 1.0)
        return crowding

    def _seconds(self, key: str, sent_bytes: Number, gpu: CalibratedGpu) -> Number:
        if self.gpus <= self.node_gpus:
            return collective_s(sent_bytes, self.link_bytes_per_s, gpu.form(CollectiveForm, key))
        domains = max(self.gpus / self.domain_gpus, 1.0)
        seconds: Number = network_s(sent_bytes / self.link_bytes_per_s, 1.0, 1.0, domains, gpu.form(NetworkForm, key))
        return seconds


def operator_seconds(operator: Operator, load: Load, gpu: CalibratedGpu, link_bytes_per_s: float) -> Number:
    """Time of an operator over all its layers [s]: its kernel where measured, else its roofline; never below that.

    Args:
        operator: with its sizes on one GPU.
        load: part of the step that the GPU sees.
        gpu: that runs it.
        link_bytes_per_s: bandwidth of its links, used where no kernel was measured [bytes/s].

    Returns:
        Seconds, shape of the load's fields.
    """
    work = operator.work(load)
    roof = at_least(
        work.flops / gpu.peaks(operator.dtype).flops_per_s,
        work.hbm_bytes / gpu.sku.hbm_bandwidth_bytes_per_s.value,
    )
    kernel = operator.kernel_s(load, gpu)
    if kernel is None:
        return operator.count * at_least(roof, work.link_bytes / link_bytes_per_s)
    return operator.count * at_least(kernel, roof)
