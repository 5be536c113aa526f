"""Two calibrations side by side: what each predicts over a grid of shapes, and how the second relates to the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from calibration.operators import KV_BYTES, LATENT_KEY, LATENT_RANK, LATENT_ROPE, LATENT_VALUE, gpu_peaks
from calibration.tables import FloatArray
from hardware_db import Calibration, Dtype, GpuSku, KernelFit
from planner.core import InputError
from planner.roofline import (
    WEIGHT_FORMATS,
    AttentionHeads,
    CollectiveForm,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    ExpertShape,
    GemmForm,
    LatentDecodeForm,
    LatentHeads,
    LatentPrefillForm,
    LatentRow,
    PrefillForm,
    collective_s,
    decode_attention_s,
    elementwise_s,
    experts_s,
    gemm_s,
    latent_decode_s,
    latent_prefill_s,
    prefill_attention_s,
)

TOKENS = np.array([1.0, 8.0, 32.0, 64.0, 128.0, 256.0, 512.0, 2048.0, 8192.0])
MATRICES = (
    (4096, 4096),
    (6144, 4096),
    (28672, 4096),
    (4096, 14336),
    (8192, 8192),
    (10240, 8192),
    (8192, 3584),
    (2560, 5120),
)
HEADS = ((32, 8, 128), (8, 1, 128), (64, 8, 128), (16, 4, 128))
LATENT_HEADS = (128.0, 16.0)
CONTEXTS = np.array([512.0, 2048.0, 8192.0, 32768.0])
BATCHES = (1.0, 8.0, 32.0, 128.0)
CHUNKS = np.array([128.0, 512.0, 2048.0, 8192.0])
EXPERTS = ((2048.0, 768.0, 128.0, 8.0), (4096.0, 14336.0, 8.0, 2.0), (4096.0, 1536.0, 128.0, 8.0))
SIZES = np.geomspace(2.0**16, 2.0**30, 15)
"""Shapes that two calibrations are compared at. A choice: what models in use have."""


@dataclass(frozen=True)
class FitComparison:
    """Time by the second calibration over time by the first, over a grid of shapes of one operator."""

    key: str
    shapes: int
    median: float
    p10: float
    p90: float


def compare(first: Calibration, second: Calibration, skus: Mapping[str, GpuSku]) -> list[FitComparison]:
    """Every operator that both have and that has a grid here, sorted by key.

    Raises:
        InputError: a SKU is not among `skus`, or no operator is in both.
    """
    for calibration in (first, second):
        if calibration.sku not in skus:
            raise InputError("sku", calibration.sku, "is not in the hardware database", "add its SKU file")
    comparisons = []
    for key in sorted(first.kernels.keys() & second.kernels.keys()):
        first_s = _times_s(key, first.kernels[key], skus[first.sku])
        second_s = _times_s(key, second.kernels[key], skus[second.sku])
        if first_s is not None and second_s is not None:
            ratio = second_s / first_s
            p10, median, p90 = (float(x) for x in np.quantile(ratio, [0.1, 0.5, 0.9]))
            comparisons.append(FitComparison(key, len(ratio), median, p10, p90))
    if not comparisons:
        both = f"{sorted(first.kernels)} against {sorted(second.kernels)}"
        raise InputError("kernels", both, "have no operator in common", "compare calibrations of the same operators")
    return comparisons


def _times_s(key: str, fit: KernelFit, sku: GpuSku) -> FloatArray | None:
    """Times over the operator's grid, flat; None for an operator without a grid."""
    operator, variant = key.split("/", 1)
    grids: dict[str, Callable[[str, KernelFit, GpuSku], FloatArray]] = {
        "gemm": _gemm,
        "attention_prefill": _prefill,
        "attention_decode": _decode,
        "latent_prefill": _latent_prefill,
        "latent_decode": _latent_decode,
        "experts": _experts,
        "elementwise": _elementwise,
        "all_reduce": _collective,
        "all_gather": _collective,
        "reduce_scatter": _collective,
        "all_to_all": _collective,
    }
    return grids[operator](variant, fit, sku) if operator in grids else None


def _gemm(variant: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    kind, form = WEIGHT_FORMATS[variant], GemmForm.of(fit)
    peaks = gpu_peaks(sku, kind.arithmetic)
    return np.concatenate([gemm_s(TOKENS, n, k, form, peaks, kind) for n, k in MATRICES])


def _prefill(variant: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    form, peaks = PrefillForm.of(fit), gpu_peaks(sku, Dtype(variant))
    past, chunks = np.zeros_like(CHUNKS), np.ones_like(CHUNKS)
    shapes = [AttentionHeads(*heads, kv_bytes=KV_BYTES[variant]) for heads in HEADS]
    return np.concatenate([prefill_attention_s(chunks, CHUNKS, past, shape, form, peaks) for shape in shapes])


def _decode(variant: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    form, peaks = DecodeForm.of(fit), gpu_peaks(sku, Dtype(variant))
    batches = [np.full_like(CONTEXTS, batch) for batch in BATCHES]
    shapes = [AttentionHeads(*heads, kv_bytes=KV_BYTES[variant]) for heads in HEADS]
    return np.concatenate(
        [decode_attention_s(batch, CONTEXTS, shape, form, peaks) for shape in shapes for batch in batches]
    )


def _latent_prefill(variant: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    form, peaks = LatentPrefillForm.of(fit), gpu_peaks(sku, Dtype(variant))
    past, chunks = np.zeros_like(CHUNKS), np.ones_like(CHUNKS)
    shapes = [LatentHeads(heads, LATENT_KEY, LATENT_VALUE) for heads in LATENT_HEADS]
    return np.concatenate([latent_prefill_s(chunks, CHUNKS, past, shape, form, peaks) for shape in shapes])


def _latent_decode(variant: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    form, peaks = LatentDecodeForm.of(fit), gpu_peaks(sku, Dtype(variant))
    batches = [np.full_like(CONTEXTS, batch) for batch in BATCHES]
    return np.concatenate(
        [
            latent_decode_s(batch, CONTEXTS, LatentRow(heads, LATENT_RANK, LATENT_ROPE, KV_BYTES[variant]), form, peaks)
            for heads in LATENT_HEADS
            for batch in batches
        ]
    )


def _experts(variant: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    kind, form = WEIGHT_FORMATS[variant], ExpertsForm.of(fit)
    peaks = gpu_peaks(sku, kind.arithmetic)
    times = []
    for hidden, width, count, visits in EXPERTS:
        pairs = TOKENS * visits
        expert = ExpertShape(hidden, width, True, kind.weight_bytes, kind.activation_bytes)
        times.append(experts_s(TOKENS, pairs, np.minimum(count, pairs), expert, form, peaks))
    return np.concatenate(times)


def _elementwise(_: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    return elementwise_s(SIZES, ElementwiseForm.of(fit), gpu_peaks(sku, Dtype.BF16))


def _collective(_: str, fit: KernelFit, sku: GpuSku) -> FloatArray:
    return collective_s(SIZES, sku.scale_up.bandwidth_bytes_per_s.value, CollectiveForm.of(fit))
