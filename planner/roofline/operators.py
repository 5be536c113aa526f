"""The operators of a transformer layer on one GPU: the work of each, and the time its kernel takes.

The work is ideal: FLOPs, HBM bytes and link bytes nobody can save. Operator time without a calibration is the roofline
(Williams, Waterman, Patterson 2009, CACM 52(4), eq. 1):

    time = max(flops / peak, hbm_bytes / bandwidth, link_bytes / link bandwidth)

and with one the fitted kernel form of `planner.roofline.kernels`, never below the roofline of its FLOPs and HBM bytes.
Transformer FLOP counts follow Narayanan et al. 2021 (arXiv:2104.04473, appendix): 2 FLOPs per weight and token in a
matrix product, 4 * heads * head_dim FLOPs per query-key pair in attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from hardware_db import Dtype
from planner.llm import BYTES_PER_VALUE
from planner.roofline.expert_load import routed_load
from planner.roofline.kernel_forms import WEIGHT_FORMATS
from planner.roofline.kernels import (
    CollectiveForm,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    GemmForm,
    LatentDecodeForm,
    LatentPrefillForm,
    PrefillForm,
    at_least,
    at_most,
    attended_pairs,
    collective_s,
    decode_attention_s,
    elementwise_s,
    experts_s,
    gemm_s,
    latent_decode_s,
    latent_prefill_s,
    prefill_attention_s,
)
from planner.roofline.machine import Silicon
from planner.roofline.shape import Family, Load, Number

ACTIVATION_BYTES = 2.0
"""Bytes per activation value between operators: residual stream and collectives stay in 16 bit in all engines."""
STATE_BYTES = 4.0
"""Bytes per value of a recurrent state, kept in 32 bit."""
COLLECTIVE_SIZES = (2, 4, 8)
"""Numbers of GPUs for which collectives are measured."""
RECURRENCE_CHUNK = 64.0
"""Tokens a chunked linear-attention kernel treats at once (Yang et al. 2024, arXiv:2406.06484, sec. 4)."""

GEMM_FALLBACKS: dict[str, tuple[str, ...]] = {
    "fp8_block": ("fp8_block", "fp8", "bf16"),
    "fp8": ("fp8", "fp8_block", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "int8_wo": ("int8_wo", "int4", "bf16"),
    "int4": ("int4", "int8_wo", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "mxfp4": ("mxfp4", "int4", "bf16"),
    "mxfp4_fp8": ("mxfp4_fp8", "fp4", "fp8", "bf16"),
    "bf16": ("bf16",),
}
"""Fits to use for a weight format, best first: the nearest measured relative stands in for what was not measured."""


class Driver(Enum):
    """What the time of an operator depends on."""

    TOKENS = "tokens"
    GROUP_TOKENS = "group_tokens"
    ROWS = "rows"
    SHAPE = "shape"


def driven(load: Load, driver: Driver) -> Number:
    """The tokens or rows of a load that an operator runs over."""
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
class Operator:
    """An operator that `count` layers have alike.

    Attributes:
        family: operator family. dtype: number format of its arithmetic. count: layers.
        driver: what its time depends on.
    """

    family: Family
    dtype: Dtype
    count: float
    driver: Driver

    def work(self, load: Load) -> OperatorWork:
        """Least work in one layer."""
        raise AssertionError

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
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


def weight_key(weights: Dtype, activations: Dtype) -> str:
    """Name of the kernels that multiply these formats: ``bf16``, ``fp8``, ``int8_wo`` (weight only), ..."""
    if weights in (Dtype.BF16, Dtype.FP16):
        return "bf16"
    if weights is Dtype.INT8 and activations is not Dtype.INT8:
        return "int8_wo"
    if weights is Dtype.MXFP4 and activations in (Dtype.FP8, Dtype.FP8_BLOCK):
        return "mxfp4_fp8"
    return weights.value


@dataclass(frozen=True)
class MatrixProduct(Operator):
    """x[m, k] W[k, n] for all tokens of the step (or its sampled rows): weights read once, activations in and out.

    Attributes:
        n: output width on this GPU. k: inner width on this GPU.
        weights: number format of W. activations: number format of x.
    """

    n: float
    k: float
    weights: Dtype
    activations: Dtype

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Matrix products of the weights' format or its relatives."""
        return tuple(f"gemm/{name}" for name in GEMM_FALLBACKS[weight_key(self.weights, self.activations)])

    def work(self, load: Load) -> OperatorWork:
        """2 m n k FLOPs; n k weights and m (n + k) activations."""
        m = driven(load, self.driver)
        traffic = self.n * self.k * BYTES_PER_VALUE[self.weights] + m * (self.n + self.k) * ACTIVATION_BYTES
        return OperatorWork(2.0 * m * self.n * self.k, traffic)

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`gemm_s`, with a quantisation pass where activations are quantised on the fly."""
        key = weight_key(self.weights, self.activations)
        form = silicon.form(GemmForm, *self.fit_keys)
        if form is None:
            return None
        stored = WEIGHT_FORMATS[key]
        native = stored.arithmetic is self.dtype or key == "bf16"
        return gemm_s(
            np.asarray(driven(load, self.driver), dtype=np.float64),
            self.n,
            self.k,
            form,
            silicon.machine(self.dtype),
            stored.weight_bytes,
            stored.activation_bytes if native else ACTIVATION_BYTES,
            stored.quantised and native,
        )


@dataclass(frozen=True)
class Experts(Operator):
    """Routed experts on this GPU: every token visits `visits` of `total` experts, which live in `ep` groups.

    Attributes:
        hidden: model width. intermediate: width of an expert on this GPU. gated: three matrices instead of two.
        weights, activations: number formats. skew: exponent of the experts' popularity, 0 = all alike.
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

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Experts of the weights' format or its relatives."""
        return tuple(f"experts/{name}" for name in GEMM_FALLBACKS[weight_key(self.weights, self.activations)])

    @property
    def launches(self) -> float:
        """Routing, permutation, two grouped products, activation and sum in each layer."""
        return 6.0 * self.count

    def _load(self, load: Load) -> tuple[Number, Number]:
        held = math.ceil(self.total / self.ep) * self.ep
        return routed_load(np.asarray(load.group_tokens), held, self.visits, self.ep, self.skew)

    def work(self, load: Load) -> OperatorWork:
        """FLOPs of the (token, expert) pairs that fall here; weights of the experts hit."""
        pairs, active = self._load(load)
        matrices = 3.0 if self.gated else 2.0
        one = matrices * self.hidden * self.intermediate
        width = 2.0 * self.hidden + matrices * self.intermediate
        return OperatorWork(
            2.0 * pairs * one, active * one * BYTES_PER_VALUE[self.weights] + pairs * width * ACTIVATION_BYTES
        )

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`experts_s` over the routed load."""
        key = weight_key(self.weights, self.activations)
        form = silicon.form(ExpertsForm, *self.fit_keys)
        if form is None:
            return None
        pairs, active = self._load(load)
        stored = WEIGHT_FORMATS[key]
        return experts_s(
            np.asarray(load.group_tokens),
            np.asarray(pairs),
            np.asarray(active),
            self.hidden,
            self.intermediate,
            self.gated,
            form,
            silicon.machine(self.dtype),
            stored.weight_bytes,
            stored.activation_bytes if stored.arithmetic is self.dtype else ACTIVATION_BYTES,
        )


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

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`prefill_attention_s`."""
        form = silicon.form(PrefillForm, *self.fit_keys)
        if form is None:
            return None
        seconds = prefill_attention_s(
            load.chunks,
            load.new,
            load.past,
            self.heads,
            self.kv_heads,
            self.head_dim,
            form,
            silicon.machine(self.kv_cache.arithmetic),
            BYTES_PER_VALUE[self.kv_cache],
            self.window,
        )
        return _where(load.chunks, seconds)


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

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`decode_attention_s`; several queries of a sequence count as further query heads."""
        form = silicon.form(DecodeForm, *self.fit_keys)
        if form is None:
            return None
        seconds = decode_attention_s(
            load.decodes,
            load.context,
            self.heads * load.queries,
            self.kv_heads,
            self.head_dim,
            form,
            silicon.machine(self.kv_cache.arithmetic),
            BYTES_PER_VALUE[self.kv_cache],
            self.window,
        )
        return _where(load.decodes, seconds)


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
        made = self.heads * (self.key_dim - self.rope_dim + self.value_dim)
        return 2.0 * self.kv_rank * made * load.chunks * load.cached

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

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`latent_prefill_s` of the quicker form, the expansion at the kernel's share of peak."""
        form = silicon.form(LatentPrefillForm, *self.fit_keys)
        if form is None:
            return None
        machine = silicon.machine(self.kv_cache.arithmetic)
        past = at_most(load.past, self.top_k) if self.top_k else load.past
        expanded, absorbed = (
            latent_prefill_s(load.chunks, load.new, past, self.heads, key, value, form, machine)
            for key, value in self.forms
        )
        making = self.expansion_flops(load) / (form.compute_efficiency * machine.flops_per_s)
        return _where(load.chunks, at_most(expanded + making, absorbed))


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

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`latent_decode_s`; several queries of a sequence count as further heads."""
        form = silicon.form(LatentDecodeForm, *self.fit_keys)
        if form is None:
            return None
        seconds = latent_decode_s(
            load.decodes,
            self._context(load),
            self.heads * load.queries,
            self.kv_rank,
            self.rope_dim,
            form,
            silicon.machine(self.kv_cache.arithmetic),
            BYTES_PER_VALUE[self.kv_cache],
        )
        return _where(load.decodes, seconds)


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
        """See the class."""
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

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`elementwise_s`, its floor paid once per kernel."""
        form = silicon.form(ElementwiseForm, *self.fit_keys)
        if form is None:
            return None
        traffic = load.tokens * self.values * ACTIVATION_BYTES
        return elementwise_s(traffic, form, silicon.machine(self.dtype)) + (self.kernels - 1.0) * form.start_s


@dataclass(frozen=True)
class Collective(Operator):
    """A collective among `gpus` GPUs: `values` of each token (or row) take part.

    Attributes:
        operation: all_reduce, all_gather, reduce_scatter, all_to_all.
        values: of the whole buffer per token or row. bytes_per_value: of what travels.
        ideal_share: bytes each GPU sends per byte of the buffer.
        link_bytes_per_s: bandwidth among the GPUs.
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
        return collective_keys(self.operation, self.gpus)

    def _payload(self, load: Load) -> Number:
        return driven(load, self.driver) * self.values * self.bytes_per_value

    def work(self, load: Load) -> OperatorWork:
        """Link bytes, and the buffer read and written in HBM."""
        payload = self._payload(load)
        return OperatorWork(0.0, 2.0 * payload * min(1.0, self.ideal_share), payload * self.ideal_share)

    def kernel_s(self, load: Load, silicon: Silicon) -> Number | None:
        """`collective_s`: the whole buffer for an all-reduce, the part that travels otherwise."""
        form = silicon.form(CollectiveForm, *self.fit_keys)
        if form is None:
            return None
        share = 1.0 if self.operation == "all_reduce" else self.ideal_share
        return collective_s(self._payload(load) * share, form, self.link_bytes_per_s)


def operator_seconds(operator: Operator, load: Load, silicon: Silicon, link_bytes_per_s: float) -> Number:
    """Time of an operator over all its layers [s]: its kernel where measured, else its roofline; never below that."""
    work = operator.work(load)
    roof = at_least(
        work.flops / silicon.machine(operator.dtype).flops_per_s,
        work.hbm_bytes / silicon.sku.hbm_bandwidth_bytes_per_s.value,
    )
    kernel = operator.kernel_s(load, silicon)
    if kernel is None:
        return operator.count * at_least(roof, work.link_bytes / link_bytes_per_s)
    return operator.count * at_least(kernel, roof)


def _where(some: Number, seconds: Number) -> Number:
    """The seconds where there is anything to do, else 0."""
    there: Any = some > 0.0
    kept: Number = seconds * there
    return kept


def collective_keys(operation: str, gpus: int) -> tuple[str, ...]:
    """Fits of a collective over `gpus` GPUs: that number, else the nearest larger, else the largest measured."""
    sizes = sorted(COLLECTIVE_SIZES, key=lambda size: (size < gpus, abs(size - gpus)))
    return tuple(f"{operation}/{size}" for size in sizes)


def _cache_keys(kernel: str, kv_cache: Dtype) -> tuple[str, str]:
    cache = "fp8" if BYTES_PER_VALUE[kv_cache] < 2.0 else "bf16"
    return f"{kernel}/{cache}", f"{kernel}/bf16"
