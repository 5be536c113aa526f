"""Kernels of a calibration: the time of a table's rows, and for each operator the `Problem` that fits it to them.

Rows whose working set stays in the L2 cache run faster than serving will, where every layer has weights and cache of
its own. They are fitted with a gain in bandwidth, ``resident_gain``, that fades where the working set exceeds the
cache; the coefficient describes the measurement, predictions leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from calibration.fit import ParameterBound, Problem, bounds_of
from calibration.tables import ColumnTable, FloatArray, Mask
from hardware_db import Dtype, GpuSku, KernelFit
from planner.core import InputError
from planner.roofline import (
    WEIGHT_FORMATS,
    AttentionHeads,
    CollectiveForm,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    ExpertShape,
    Form,
    GemmForm,
    GpuPeaks,
    LatentDecodeForm,
    LatentHeads,
    LatentPrefillForm,
    LatentRow,
    PrefillForm,
    SizeCorrection,
    WeightFormat,
    collective_s,
    decode_attention_s,
    elementwise_s,
    exchanged_bytes,
    experts_s,
    gemm_s,
    latent_decode_s,
    latent_prefill_s,
    prefill_attention_s,
    routed_load,
)

WEIGHT_COPIES = 6.0
"""Copies of a weight that the measured loop rotates through, so that small ones too are read from memory."""
KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
"""Bytes per cached value by variant of a calibration."""
LATENT_RANK, LATENT_ROPE, LATENT_KEY, LATENT_VALUE = 512.0, 64.0, 192.0, 128.0
"""Dimensions of the measured latent attention (DeepSeek-AI 2024, arXiv:2412.19437, sec. 4.2)."""
MAX_QUERY_GROUP = 32.0
"""Query heads per KV head beyond which one engine's decode kernel leaves its fast path; such rows are left out."""


def peak(sku: GpuSku, arithmetic: Dtype) -> float:
    """Peak [FLOP/s] of a format; of 16 bits where the GPU has no units for it."""
    facts = sku.peak_flops_per_s
    fact = facts.get(arithmetic) or facts.get(Dtype.BF16) or facts[Dtype.FP16]
    return fact.value


def gpu_peaks(
    sku: GpuSku, arithmetic: Dtype, resident_gain: float = 1.0, working_set: FloatArray | None = None
) -> GpuPeaks:
    """The peaks of a SKU; with a working set [bytes] per row, the bandwidth of each row as the L2 cache raises it.

    Raises:
        InputError: the SKU's record lacks its L2 size.
    """
    bandwidth = sku.hbm_bandwidth_bytes_per_s.value
    if working_set is None:
        return GpuPeaks(peak(sku, arithmetic), bandwidth, sku.sm_count)
    if sku.l2_bytes is None:
        raise InputError(f"{sku.id}.l2_bytes", None, "fitting needs the size of the L2 cache", "add it to the SKU file")
    hot = 1.0 / (1.0 + (working_set / sku.l2_bytes.value) ** 6)
    raised = bandwidth / (1.0 - (1.0 - 1.0 / resident_gain) * hot)
    return GpuPeaks(peak(sku, arithmetic), cast(float, raised), sku.sm_count)


# --- one time for fitting and for predicting --------------------------------------------------------------------------


def _gemm_s(rows: ColumnTable, form: GemmForm, peaks: GpuPeaks, kind: WeightFormat) -> FloatArray:
    return gemm_s(rows["m"], rows["n"], rows["k"], form, peaks, kind)


def _experts_s(rows: ColumnTable, form: ExpertsForm, peaks: GpuPeaks, kind: WeightFormat) -> FloatArray:
    load, width = (rows["num_tokens"], rows["_pairs"], rows["_active"]), rows["inter"] / rows["tp"]
    expert = ExpertShape(rows["hidden"], width, rows["gated"] > 0, kind.weight_bytes, kind.activation_bytes)
    return experts_s(*load, expert, form, peaks)


def _prefill_s(rows: ColumnTable, form: PrefillForm, peaks: GpuPeaks, kv_bytes: float) -> FloatArray:
    sizes = (rows["batch"], rows["seq_len"], rows["prefix_len"])
    return prefill_attention_s(*sizes, _heads(rows, kv_bytes), form, peaks)


def _decode_s(rows: ColumnTable, form: DecodeForm, peaks: GpuPeaks, kv_bytes: float) -> FloatArray:
    return decode_attention_s(rows["batch"], rows["prefix_len"] + 1.0, _heads(rows, kv_bytes), form, peaks)


def _latent_prefill_s(rows: ColumnTable, form: LatentPrefillForm, peaks: GpuPeaks, _kv_bytes: float) -> FloatArray:
    heads = LatentHeads(cast(float, rows["num_heads"]), LATENT_KEY, LATENT_VALUE)
    return latent_prefill_s(rows["batch"], rows["seq_len"], rows["prefix_len"], heads, form, peaks)


def _latent_decode_s(rows: ColumnTable, form: LatentDecodeForm, peaks: GpuPeaks, kv_bytes: float) -> FloatArray:
    row = LatentRow(cast(float, rows["num_heads"]), LATENT_RANK, LATENT_ROPE, kv_bytes)
    return latent_decode_s(rows["batch"], rows["prefix_len"] + 1.0, row, form, peaks)


PRODUCTS: Mapping[str, tuple[type[Form], Callable[..., FloatArray]]] = {
    "gemm": (GemmForm, _gemm_s),
    "experts": (ExpertsForm, _experts_s),
}
ATTENTIONS: Mapping[str, tuple[type[Form], Callable[..., FloatArray]]] = {
    "attention_prefill": (PrefillForm, _prefill_s),
    "attention_decode": (DecodeForm, _decode_s),
    "latent_prefill": (LatentPrefillForm, _latent_prefill_s),
    "latent_decode": (LatentDecodeForm, _latent_decode_s),
}
"""Operators of a calibration by the format they have: of weights, or of the cache. Form, and time of a table's rows."""


def kernel_s(key: str, fit: KernelFit, rows: ColumnTable, sku: GpuSku) -> FloatArray:
    """Time of rows by a packaged fit, shape (rows,) [s]: data come from memory, experts are used evenly.

    Args:
        key: of the fit in a calibration: operator and variant.
        fit: its coefficients.
        rows: in the columns of the operator's table.
        sku: whose peaks it has shares of.
    """
    operator, variant = key.split("/", 1)
    if operator in PRODUCTS:
        (form, time_s), kind = PRODUCTS[operator], WEIGHT_FORMATS[variant]
        rows = with_loads(rows) if operator == "experts" else rows
        return time_s(rows, form.of(fit), gpu_peaks(sku, kind.arithmetic), kind)
    if operator in ATTENTIONS:
        form, time_s = ATTENTIONS[operator]
        return time_s(rows, form.of(fit), gpu_peaks(sku, Dtype(variant)), KV_BYTES[variant])
    if operator == "elementwise":
        return elementwise_s(rows["bytes"], ElementwiseForm.of(fit), gpu_peaks(sku, Dtype.BF16))
    return collective_s(rows["bytes"], sku.scale_up.bandwidth_bytes_per_s.value, CollectiveForm.of(fit))


# --- what is fitted ---------------------------------------------------------------------------------------------------


def gemm(rows: ColumnTable, sku: GpuSku, variant: str, cold: bool = False, prequantised: bool = False) -> Problem:
    """Matrix products with n, k >= 512; columns m, n, k. `prequantised`: timed without the pass that quantises."""
    kind = WEIGHT_FORMATS[variant]
    quantised = kind.quantised and not prequantised

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        working_set = WEIGHT_COPIES * rows["n"] * rows["k"] * kind.weight_bytes
        peaks = gpu_peaks(sku, kind.arithmetic, 1.0 if cold else values["resident_gain"], working_set)
        return _gemm_s(rows, GemmForm.from_values(values, correction), peaks, replace(kind, quantised=quantised))

    bounds = bounds_of("gemm", *(() if quantised else ("quantise_efficiency", "quantise_row")))
    core = (rows["n"] >= 512) & (rows["k"] >= 512)
    sizes, shapes = lambda rows: (rows["m"], rows["n"]), lambda rows: np.stack([rows["n"], rows["k"]], axis=1)
    return Problem(rows.rows(core), predict, bounds, ("n", "k"), "m", {}, sizes, shapes=shapes)


def attention_prefill(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """Causal self-attention of whole prompts; batch * seq_len >= 64, few windowed rows."""
    kv_bytes = KV_BYTES[variant]
    peaks = gpu_peaks(sku, Dtype(variant))

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        return _prefill_s(rows, PrefillForm.from_values(values, correction), peaks, kv_bytes)

    core = (rows["batch"] * rows["seq_len"] >= 64) & (rows["head_dim"] != 192) & _mostly_without_window(rows)
    chosen = rows.rows(core)
    group = ("num_heads", "num_kv_heads", "head_dim", "window")
    bounds = _of_dims(bounds_of("attention_prefill"), chosen)
    return Problem(chosen, predict, bounds, group, "seq_len", {}, _prefill_sizes)


def wide_prefill(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """As `attention_prefill`, of heads of one kind that an engine has a kernel of its own for."""
    whole = attention_prefill(rows, sku, variant)
    bounds = _of_one_kind(whole.bounds, ("window_row_growth",))
    core = rows["batch"] * rows["seq_len"] >= 64
    return replace(whole, rows=rows.rows(core), bounds=bounds, fixed={"window_row_growth": 1.0})


def encoder_attention(rows: ColumnTable, sku: GpuSku) -> Problem:
    """All patches of an image with one another, heads of one size; columns batch, tokens, heads, head_dim."""
    peaks = gpu_peaks(sku, Dtype.BF16)

    def sequences(rows: ColumnTable) -> tuple[FloatArray, FloatArray, FloatArray]:
        return rows["batch"], rows["tokens"], (rows["tokens"] - 1.0) / 2.0

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        count, dim = cast(float, rows["heads"]), cast(float, rows["head_dim"])
        heads = AttentionHeads(count, count, dim, 0.0)
        return prefill_attention_s(*sequences(rows), heads, PrefillForm.from_values(values, correction), peaks)

    def sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
        chunks, new, past = sequences(rows)
        return past + new, chunks * new / (past + new) * rows["heads"]

    bounds = _of_one_kind(bounds_of("attention_prefill"), ("window_row_growth",))
    core, fixed = rows["batch"] * rows["tokens"] >= 64, {"window_row_growth": 1.0}
    return Problem(rows.rows(core), predict, bounds, ("heads",), "tokens", fixed, sizes)


def wide_decode(rows: ColumnTable, sku: GpuSku, variant: str, splits: tuple[bool, bool] = (True, True)) -> Problem:
    """As `attention_decode`, of heads of one kind that an engine has a kernel of its own for.

    Rows with a KV head for every query head, which no model with such heads has, are left out.
    """
    whole = attention_decode(rows, sku, variant, splits)
    other = "group_growth" if rows["window"].any() else "window_growth"
    bounds = _of_one_kind(whole.bounds, (other, "ungrouped_efficiency"))
    grouped = (rows["num_heads"] > rows["num_kv_heads"]) & (rows["num_heads"] <= MAX_QUERY_GROUP * rows["num_kv_heads"])
    core = (rows["prefix_len"] >= 255) & grouped
    fixed = {**whole.fixed, other: 0.0, "ungrouped_efficiency": 1.0}
    return replace(whole, rows=rows.rows(core), bounds=bounds, fixed=fixed)


def _of_one_kind(bounds: Mapping[str, ParameterBound], without: tuple[str, ...]) -> dict[str, ParameterBound]:
    """Bounds with one efficiency for all head dimensions, and `without` what rows of one kind cannot tell."""
    kept = (name for name in bounds if not name.endswith(("_64", "_256", "_512")) and name not in without)
    return {name: bounds[name] for name in kept}


def _prefill_sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
    return rows["seq_len"], rows["batch"] * rows["num_heads"]


def _heads(rows: ColumnTable, kv_bytes: float) -> AttentionHeads:
    """The heads of every row."""
    names = ("num_heads", "num_kv_heads", "head_dim", "window")
    heads, kv_heads, dim, window = (cast(float, rows[name]) for name in names)
    return AttentionHeads(heads, kv_heads, dim, kv_bytes, window)


def _mostly_without_window(rows: ColumnTable) -> Mask:
    """All rows without a window and every fourth with one: most layers in use have none."""
    return np.asarray((rows["window"] == 0) | (np.arange(len(rows)) % 4 == 0))


def _of_dims(bounds: Mapping[str, ParameterBound], rows: ColumnTable) -> dict[str, ParameterBound]:
    """Bounds with an efficiency for every head dimension of the rows, and for 128."""
    present = {f"{dim:g}" for dim in np.unique(rows["head_dim"])} | {"128"}
    dims = ((name, name.rpartition("_")[2]) for name in bounds)
    return {name: bounds[name] for name, dim in dims if not dim.isdigit() or dim in present}


def attention_decode(rows: ColumnTable, sku: GpuSku, variant: str, splits: tuple[bool, bool] = (True, True)) -> Problem:
    """One new token per sequence over prefix_len cached ones; prefix_len >= 255.

    `splits`: whether the kernel splits a sequence's cache, and whether it does so in windowed or ungrouped layers.
    """
    kv_bytes = KV_BYTES[variant]

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form = DecodeForm.from_values(values, correction)
        held, sequences_heads = _decode_sizes(rows)
        cached = 2.0 * sequences_heads * held * rows["head_dim"] * kv_bytes
        peaks = gpu_peaks(sku, Dtype(variant), values["resident_gain"], cached)
        return _decode_s(rows, form, peaks, kv_bytes)

    fast = rows["num_heads"] / rows["num_kv_heads"] <= MAX_QUERY_GROUP
    core = (rows["prefix_len"] >= 255) & (rows["head_dim"] != 192) & fast & _mostly_without_window(rows)
    chosen = rows.rows(core)
    bounds = _of_dims(bounds_of("attention_decode"), chosen)
    if not all(splits):
        bounds["fill"] = replace(bounds["fill"], low=0.05)
    group = ("num_heads", "num_kv_heads", "head_dim", "window")
    fixed = {"splits_kv": float(splits[0]), "splits_plain": float(splits[1])}
    return Problem(chosen, predict, bounds, group, "prefix_len", fixed, _decode_sizes)


def _decode_sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
    context = rows["prefix_len"] + 1.0
    held = np.where(rows["window"] > 0, np.minimum(context, rows["window"]), context)
    return held, rows["batch"] * rows["num_kv_heads"]


def latent_prefill(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """Latent attention of whole prompts with expanded keys and values; batch * seq_len >= 64."""
    peaks = gpu_peaks(sku, Dtype(variant))

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        return _latent_prefill_s(rows, LatentPrefillForm.from_values(values, correction), peaks, KV_BYTES[variant])

    core = rows["batch"] * rows["seq_len"] >= 64
    bounds = bounds_of("latent_prefill")
    return Problem(rows.rows(core), predict, bounds, ("num_heads",), "seq_len", {}, _prefill_sizes)


def latent_decode(rows: ColumnTable, sku: GpuSku, variant: str, splits_kv: bool = True) -> Problem:
    """Absorbed latent decode over prefix_len cached tokens; prefix_len >= 255."""
    kv_bytes = KV_BYTES[variant]

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        cached = rows["batch"] * (rows["prefix_len"] + 1.0) * (LATENT_RANK + LATENT_ROPE) * kv_bytes
        peaks = gpu_peaks(sku, Dtype(variant), values["resident_gain"], cached)
        return _latent_decode_s(rows, LatentDecodeForm.from_values(values, correction), peaks, kv_bytes)

    bounds = bounds_of("latent_decode")
    if not splits_kv:
        bounds["fill"] = replace(bounds["fill"], low=0.05)

    def sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
        return rows["prefix_len"] + 1.0, rows["batch"] * rows["num_heads"]

    core = rows["prefix_len"] >= 255
    fixed = {"splits_kv": float(splits_kv)}
    return Problem(rows.rows(core), predict, bounds, ("num_heads",), "prefix_len", fixed, sizes)


ATTENTION_TABLES = {
    "attention_prefill": "context_attention",
    "attention_decode": "generation_attention",
    "latent_prefill": "context_mla",
    "latent_decode": "generation_mla",
}
"""Operator of attention -> its table."""
SPLITS = ((True, True), (True, False), (False, False))
"""Decode kernels split the cache: always; not in windowed or ungrouped layers; never. The best fit decides."""
ATTENTION_PROBLEMS: Mapping[str, tuple[Callable[..., Problem], ...]] = {
    "attention_prefill": (attention_prefill,),
    "attention_decode": tuple(partial(attention_decode, splits=splits) for splits in SPLITS),
    "wide_prefill": (wide_prefill,),
    "wide_decode": tuple(partial(wide_decode, splits=splits) for splits in SPLITS),
    "latent_prefill": (latent_prefill,),
    "latent_decode": tuple(partial(latent_decode, splits_kv=splits) for splits in (True, False)),
}
"""Operator of attention -> its problems, one for each way that its kernel may split the cache."""


def experts(rows: ColumnTable, sku: GpuSku, variant: str, more: ColumnTable | None = None) -> Problem:
    """Routed experts of the busiest GPU; columns num_tokens, hidden, inter, topk, num_experts, tp, ep, gated.

    `more`: rows of other kernels the same engine runs at further shapes.
    """
    kind = WEIGHT_FORMATS[variant]

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        width, gated = rows["inter"] / rows["tp"], rows["gated"] > 0
        weights = rows["_active"] * rows["hidden"] * width * (2.0 + gated) * kind.weight_bytes
        peaks = gpu_peaks(sku, kind.arithmetic, values["resident_gain"], weights)
        return _experts_s(rows, ExpertsForm.from_values(values, correction), peaks, kind)

    bounds = bounds_of("experts")
    group: tuple[str, ...] = ("hidden", "inter", "topk", "num_experts")
    note = ""
    if not rows.keys(*group).max():
        group, note = ("tp", "ep"), "one model measured: judged on its other TP and EP degrees"
    further = None if more is None or not len(more) else with_loads(more)
    rows = with_loads(rows)
    return Problem(rows, predict, bounds, group, "num_tokens", {}, _experts_sizes, note, _experts_shapes, further)


def _experts_sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
    return rows["_pairs"] / rows["_active"], rows["inter"] / rows["tp"]


def _experts_shapes(rows: ColumnTable) -> FloatArray:
    """As `planner.roofline.experts_s` looks a shape up."""
    routing = [rows[name] for name in ("topk", "num_experts", "ep")]
    return np.stack([rows["hidden"], rows["inter"] / rows["tp"], *routing, 2.0 + (rows["gated"] > 0)], axis=1)


def with_loads(rows: ColumnTable) -> ColumnTable:
    """With the pairs and active experts of the measured rank under each row's routing."""
    pairs, active = np.empty(len(rows)), np.empty(len(rows))
    routing = rows.text("distribution")
    kind = rows.keys("distribution", "num_experts", "topk", "ep")
    for number in range(kind.max() + 1):
        at = np.flatnonzero(kind == number)
        first = at[0]
        tokens, ranks = rows["num_tokens"][at], int(rows["ep"][first])
        count, k = int(rows["num_experts"][first]), int(rows["topk"][first])
        if routing[first] == "balanced":
            loads = balanced_load(tokens, count, k, ranks)
        else:
            skew = 0.0 if routing[first] == "uniform" else float(routing[first].rsplit("_", 1)[1])
            loads = routed_load(tokens, count, k, ranks, skew)
        pairs[at], active[at] = loads
    return rows.with_columns(_pairs=pairs, _active=active)


def balanced_load(
    tokens: FloatArray, experts: int, experts_per_token: int, ranks: int
) -> tuple[FloatArray, FloatArray]:
    """Pairs and active experts of the first rank when tokens are dealt to experts in strides, as benchmarks do.

    Token t takes experts t + i stride (i = 0 .. k - 1, stride = ceil(experts / k)), modulo the number of experts; with
    fewer tokens than the stride they are spread evenly over it.

    >>> pairs, active = balanced_load(np.array([1.0, 256.0]), 256, 8, 8)  # one token: one pair on each of 8 ranks
    >>> pairs.tolist(), active.tolist()
    ([1.0, 256.0], [1.0, 32.0])
    """
    stride, own = -(-experts // experts_per_token), experts // ranks
    pairs, active = np.empty(len(tokens)), np.empty(len(tokens))
    for i, count in enumerate(tokens.astype(int).tolist()):
        first = np.arange(min(count, experts))
        if count < stride:
            first = np.floor(first * stride / count)
        chosen = (first[:, None] + stride * np.arange(experts_per_token)).astype(int) % experts
        here = chosen[chosen < own]
        pairs[i], active[i] = len(here) * max(1.0, count / experts), len(np.unique(here))
    return np.maximum(pairs, 1e-9), np.maximum(active, 1e-9)


def collective(rows: ColumnTable, link_bytes_per_s: float, share: float) -> Problem:
    """A collective of fixed size; columns bytes and latency_s. `share` of the buffer crosses each link."""

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        return collective_s(rows["bytes"] * share, link_bytes_per_s, CollectiveForm.from_values(values, correction))

    def sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
        return rows["bytes"] * share, np.ones(len(rows))

    return Problem(rows, predict, bounds_of("collective"), ("bytes",), "bytes", {}, sizes)


def expert_exchange(
    rows: ColumnTable, link_bytes_per_s: float, ranks: float, bytes_per_value: float, per_expert: bool
) -> Problem:
    """Dispatch to or combine from experts on other GPUs; columns num_tokens, hidden, topk."""

    def sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
        shape = cast(tuple[float, float], (rows["hidden"], rows["topk"]))
        payload = exchanged_bytes(rows["num_tokens"], *shape, ranks, bytes_per_value, per_expert)
        return payload, np.ones(len(rows))

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        return collective_s(sizes(rows)[0], link_bytes_per_s, CollectiveForm.from_values(values, correction))

    bounds = bounds_of("expert_exchange")
    return Problem(rows, predict, bounds, ("hidden", "topk", "num_experts"), "num_tokens", {}, sizes)


def elementwise(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Norms, rotary embedding, activation and residual addition; columns bytes (traffic) and latency_s."""
    peaks = gpu_peaks(sku, Dtype.BF16)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        return elementwise_s(rows["bytes"], ElementwiseForm.from_values(values, correction), peaks)

    bounds = bounds_of("elementwise")
    return Problem(rows, predict, bounds, ("op", "hidden", "ffn", "tp"), "num_tokens", {}, None)


def elementwise_rows(rows: ColumnTable) -> ColumnTable:
    """The element-wise rows of a per-layer table, with their 16-bit traffic in a column ``bytes``.

    Norms read and write the hidden state, the addition reads two and writes one, the gated activation reads gate and
    up projection and writes their product, the rotary embedding reads and writes queries and keys.
    """
    heads = rows["num_heads"] + rows["num_kv_heads"]
    values = {
        "input_layernorm": 2.0 * rows["hidden"],
        "post_attention_layernorm": 2.0 * rows["hidden"],
        "add": 3.0 * rows["hidden"],
        "mlp_act": 3.0 * rows["ffn"] / rows["tp"],
        "attn_rope": 2.0 * rows["hidden"] / rows["num_heads"] * heads / rows["tp"],
    }
    op = rows.text("op")
    per_token = np.select([op == name for name in values], list(values.values()), 0.0)
    return rows.with_columns(bytes=2.0 * rows["num_tokens"] * per_token).rows(per_token > 0.0)
