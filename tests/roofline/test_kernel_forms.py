"""Corrections and coefficients of kernel forms; shipped fits against the roofline."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from hardware_db import Calibration, Coefficient, Correction, Dtype, GpuSku, KernelFit, load_hardware
from planner.core import InputError
from planner.roofline import (
    WEIGHT_FORMATS,
    AttentionHeads,
    BlockDecodeForm,
    BlockHeads,
    BlockPrefillForm,
    ChosenDecodeForm,
    ChosenHeads,
    ChosenPrefillForm,
    CollectiveForm,
    CompressedForm,
    CompressedHeads,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    ExpertShape,
    GemmForm,
    GpuPeaks,
    IndexHeads,
    IndexScoresForm,
    IndexSelectionForm,
    LatentDecodeForm,
    LatentHeads,
    LatentPrefillForm,
    LatentRow,
    NetworkForm,
    PrefillForm,
    RecurrentDecodeForm,
    RecurrentHeads,
    RecurrentPrefillForm,
    SizeCorrection,
    SparsePrefillForm,
    attended_pairs,
    block_decode_s,
    block_prefill_s,
    chosen_decode_index_s,
    chosen_decode_s,
    chosen_prefill_index_s,
    chosen_prefill_s,
    collective_s,
    compressed_attention_s,
    compressed_pairs,
    decode_attention_s,
    elementwise_s,
    experts_s,
    gemm_s,
    index_scores_s,
    index_selection_s,
    latent_decode_s,
    latent_prefill_s,
    network_s,
    prefill_attention_s,
    recurrent_decode_s,
    recurrent_prefill_s,
    routed_load,
    sparse_prefill_s,
    sparse_token_s,
)

CALIBRATIONS = load_hardware().calibrations


def test_a_size_correction_interpolates_like_scipy_and_stays_flat_beyond():
    table = np.random.default_rng(3).normal(size=(4, 3))
    rows, columns = (0.0, 2.0, 5.0, 9.0), (1.0, 2.0, 4.0)
    correction = SizeCorrection(rows, columns, tuple(map(tuple, table.tolist())))
    judge = RegularGridInterpolator((rows, columns), table)
    at = np.random.default_rng(4).uniform((0, 1), (9, 4), size=(50, 2))
    assert correction.factor(2.0 ** at[:, 0], 2.0 ** at[:, 1]) == pytest.approx(np.exp(judge(at)))
    assert correction.factor(2.0**30, 2.0**30) == pytest.approx(math.exp(table[-1, -1]))
    assert correction.factor(2.0**-30, 1e-30) == pytest.approx(math.exp(table[0, 0]))


def test_a_form_is_read_from_a_record_without_what_describes_the_measurement():
    one = Coefficient(value=0.5, low=0.4, high=0.6)
    names = ("start_s", "link_efficiency", "order", "resident_gain")
    table = Correction(first_log2=(1.0,), second_log2=(0.0,), log_factor=((0.1,),))
    errors = {"samples": 9, "held_out": 1, "median_error": 0.1, "p90_error": 0.2, "spread": 0.1}
    form = CollectiveForm.of(KernelFit(parameters=dict.fromkeys(names, one), correction=table, **errors))
    assert form == CollectiveForm(0.5, 0.5, 0.5, correction=SizeCorrection((1.0,), (0.0,), ((0.1,),)))
    assert hash(form) == hash(form)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"first_log2": (2.0, 1.0)}, "knots must rise"),
        ({"log_factor": ((0.0,),)}, "needs 2 rows of 1 values"),
    ],
)
def test_a_malformed_correction_is_refused(fields: dict[str, Any], text: str):
    good = {"first_log2": (1.0, 2.0), "second_log2": (0.0,), "log_factor": ((0.0,), (0.0,))}
    with pytest.raises(InputError, match=text):
        Correction(**{**good, **fields})


def fitted_peaks(calibration: Calibration, arithmetic: Dtype) -> GpuPeaks:
    sku: GpuSku = load_hardware().skus[calibration.sku]
    peaks = sku.peak_flops_per_s
    peak = (peaks.get(arithmetic) or peaks[Dtype.BF16]).value
    return GpuPeaks(peak, sku.hbm_bandwidth_bytes_per_s.value, float(sku.sm_count))


SIZES = 2.0 ** np.arange(0, 18, 1.5)


Times = list[tuple[np.ndarray, np.ndarray]]


def sweep_gemm(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    kind, form = WEIGHT_FORMATS[variant], GemmForm.of(fit)
    there, found = fitted_peaks(calibration, kind.arithmetic), []
    for n, k in itertools.product((64, 512, 5120, 28672), repeat=2):
        took = gemm_s(SIZES, n, k, form, there, kind)
        traffic = n * k * kind.weight_bytes + SIZES * k * kind.activation_bytes + 2 * SIZES * n
        found.append((took, np.maximum(2 * SIZES * n * k / there.flops_per_s, traffic / there.bytes_per_s)))
    return found


def sweep_experts(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    kind, form = WEIGHT_FORMATS[variant], ExpertsForm.of(fit)
    there, found = fitted_peaks(calibration, kind.arithmetic), []
    for inter, skew in itertools.product((192, 2048, 14336), (0.0, 1.2)):
        pairs, active = routed_load(SIZES, 64, 4, 4, skew)
        expert = ExpertShape(4096, inter, True, kind.weight_bytes, kind.activation_bytes)
        took = experts_s(SIZES, pairs, active, expert, form, there)
        weights = 3 * 4096 * inter
        memory = active * weights * kind.weight_bytes / there.bytes_per_s
        found.append((took, np.maximum(2 * pairs * weights / there.flops_per_s, memory)))
    return found


CACHE_BYTES = {"bf16": 2.0, "fp8": 1.0}


PASTS = (0.0, 3000.0, 200_000.0)


def head_kinds(variant: str) -> tuple[str, list[tuple[float, float, float]]]:
    """Format of the cache a fit is for, and (key channels, value channels, window) of the heads that run on it."""
    *own, cache = variant.split("_")
    if not own:
        return cache, [(dim, dim, window) for dim in (64.0, 128.0, 256.0) for window in (0.0, 128.0)]
    dim, windows = float(own[0]), (128.0, 1024.0) if len(own) > 1 else (0.0,)
    return cache, [(dim, values, window) for values in (dim, 128.0) for window in windows]


def sweep_prefill(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    (cache, kinds), form, found = head_kinds(variant), PrefillForm.of(fit), []
    there, kv_bytes = fitted_peaks(calibration, Dtype(cache)), CACHE_BYTES[cache]
    for (dim, value_dim, window), heads, batch, past in itertools.product(kinds, (1, 8, 64), (1.0, 33.0, 512.0), PASTS):
        shape = AttentionHeads(heads, 1, dim, kv_bytes, window, value_dim)
        took = prefill_attention_s(batch, SIZES, past, shape, form, there)
        flops = 2 * batch * heads * (dim + value_dim) * attended_pairs(SIZES, past, window)
        traffic = batch * SIZES * (dim + value_dim) * (2 * heads + kv_bytes)
        found.append((took, np.maximum(flops / there.flops_per_s, traffic / there.bytes_per_s)))
    return found


def sweep_encoder(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    """All patches with one another: 4 FLOPs a channel and pair; queries, keys, values and outputs in 16 bit."""
    form, found, there, dim = PrefillForm.of(fit), [], fitted_peaks(calibration, Dtype.BF16), float(variant)
    for heads, batch in itertools.product((1, 16, 32), (1.0, 33.0)):
        took = prefill_attention_s(
            batch, SIZES, (SIZES - 1.0) / 2.0, AttentionHeads(heads, heads, dim, 0.0), form, there
        )
        flops, traffic = 4 * batch * heads * dim * SIZES**2, 8 * batch * heads * dim * SIZES
        found.append((took, np.maximum(flops / there.flops_per_s, traffic / there.bytes_per_s)))
    return found


def sweep_decode(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    (cache, kinds), form, found = head_kinds(variant), DecodeForm.of(fit), []
    there, kv_bytes = fitted_peaks(calibration, Dtype(cache)), CACHE_BYTES[cache]
    for (dim, value_dim, window), heads, batch in itertools.product(kinds, (1, 8, 64), (1.0, 33.0, 512.0)):
        shape = AttentionHeads(heads, 1, dim, kv_bytes, window, value_dim)
        took = decode_attention_s(batch, SIZES, shape, form, there)
        values = batch * np.minimum(SIZES, window or np.inf) * (dim + value_dim)
        found.append((took, np.maximum(values * kv_bytes / there.bytes_per_s, 2 * heads * values / there.flops_per_s)))
    return found


def sweep_latent_prefill(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, found = fitted_peaks(calibration, Dtype(variant)), []
    for heads, batch in itertools.product((1, 16, 128), (1.0, 33.0)):
        took = latent_prefill_s(batch, SIZES, 0.0, LatentHeads(heads, 192, 128), LatentPrefillForm.of(fit), there)
        found.append((took, batch * heads * 640 * SIZES * (SIZES + 1) / 2 / there.flops_per_s))
    return found


def sweep_latent_decode(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, kv_bytes, found = fitted_peaks(calibration, Dtype(variant)), {"bf16": 2.0, "fp8": 1.0}[variant], []
    for heads, batch in itertools.product((1, 16, 128), (1.0, 33.0, 512.0)):
        took = latent_decode_s(batch, SIZES, LatentRow(heads, 512, 64, kv_bytes), LatentDecodeForm.of(fit), there)
        memory = batch * SIZES * 576 * kv_bytes / there.bytes_per_s
        found.append((took, np.maximum(memory, 2 * batch * heads * 1088 * SIZES / there.flops_per_s)))
    return found


def sweep_elementwise(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there = fitted_peaks(calibration, Dtype.BF16)
    return [(elementwise_s(SIZES * 1e4, ElementwiseForm.of(fit), there), SIZES * 1e4 / there.bytes_per_s)]


def sweep_collective(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    link = load_hardware().skus[calibration.sku].scale_up.bandwidth_bytes_per_s.value
    return [(collective_s(SIZES * 1e4, link, CollectiveForm.of(fit)), SIZES * 1e4 / link)]


def sweep_network(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    return [(network_s(SIZES * 1e-6, 2.0, 8.0, 2.0, NetworkForm.of(fit)), SIZES * 1e-6)]


def sweep_recurrent_prefill(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form, found = fitted_peaks(calibration, Dtype.BF16), RecurrentPrefillForm.of(fit), []
    for heads, batch in itertools.product((2.0, 16.0, 64.0), (1.0, 33.0)):
        shape = RecurrentHeads(heads, 128.0, 128.0, 1.5 * heads * 128.0)
        took = recurrent_prefill_s(batch, SIZES, shape, form, there)
        traffic = batch * (shape.state_bytes + SIZES * shape.token_bytes)
        flops_s = batch * SIZES * shape.scan_flops / there.flops_per_s
        found.append((took, np.maximum(traffic / there.bytes_per_s, flops_s)))
    return found


def sweep_recurrent_decode(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, shape = fitted_peaks(calibration, Dtype.BF16), RecurrentHeads(16.0, 128.0, 128.0, 3072.0)
    took = recurrent_decode_s(SIZES, 1.0, shape, RecurrentDecodeForm.of(fit), there)
    return [(took, SIZES * shape.state_bytes / there.bytes_per_s)]


def sweep_index_scores(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form = fitted_peaks(calibration, Dtype.FP8), IndexScoresForm.of(fit)
    took = index_scores_s(SIZES * 1e3, SIZES, IndexHeads(64.0, 128.0), form, there)
    return [(took, np.maximum(SIZES * 1e3 * 16384 / there.flops_per_s, SIZES * 132 / there.bytes_per_s))]


def sweep_index_selection(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form, found = fitted_peaks(calibration, Dtype.FP8), IndexSelectionForm.of(fit), []
    for context in (600.0, 8192.0, 65_536.0, 1_000_000.0):
        took = index_selection_s(SIZES, context, form, there)
        found.append((took, SIZES * context * 4 / there.bytes_per_s))
    return found


def sweep_sparse_prefill(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form = fitted_peaks(calibration, Dtype.BF16), SparsePrefillForm.of(fit)
    token_s = sparse_token_s(2048.0, 64.0, 512.0, 64.0, form, there)
    return [(sparse_prefill_s(SIZES, token_s, form, there), SIZES * 2 * 64 * 1088 * 2048 / there.flops_per_s)]


def sweep_block_prefill(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form, found = fitted_peaks(calibration, Dtype.BF16), BlockPrefillForm.of(fit), []
    for (heads, kv_heads), batch, past in itertools.product(((8, 1), (16, 1), (64, 4)), (1.0, 33.0), PASTS):
        shape = BlockHeads(heads, kv_heads, 128.0, CACHE_BYTES[variant], 2048.0, kv_heads, 128.0)
        took = block_prefill_s(batch, SIZES, past, shape, form, there)
        chosen, every = attended_pairs(SIZES, past, 2048.0), attended_pairs(SIZES, past, 0.0)
        flops = 4 * heads * 128 * chosen + 2 * kv_heads * 128 * every
        cached = min(past, 2048.0) * 256 * kv_heads * CACHE_BYTES[variant]
        traffic = SIZES * 128 * 4 * heads + (past + SIZES) * 256 + cached
        found.append((took, batch * np.maximum(flops / there.flops_per_s, traffic / there.bytes_per_s)))
    return found


def sweep_block_decode(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form, found = fitted_peaks(calibration, Dtype.BF16), BlockDecodeForm.of(fit), []
    for (heads, kv_heads), batch in itertools.product(((8, 1), (16, 1), (64, 4)), (1.0, 33.0, 512.0)):
        shape = BlockHeads(heads, kv_heads, 128.0, CACHE_BYTES[variant], 2048.0, kv_heads, 128.0)
        took = block_decode_s(batch, SIZES, 1.0, shape, form, there)
        chosen = np.minimum(SIZES, 2048.0)
        flops = 4 * heads * 128 * chosen + 2 * kv_heads * 128 * SIZES
        traffic = chosen * 256 * kv_heads * CACHE_BYTES[variant] + SIZES * 256
        found.append((took, batch * np.maximum(flops / there.flops_per_s, traffic / there.bytes_per_s)))
    return found


def sweep_chosen_prefill(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    """Attention, every head with 1088 channels of key and value a pair, and the index, of 64 heads in 8 bit.

    Short prompts under an engine that does not choose among their keys: 320 channels a pair and nothing scored; keys
    and values of a cached token are made of 512 channels.
    """
    form, found = ChosenPrefillForm.of(fit), []
    there, there_8_bit = (fitted_peaks(calibration, dtype) for dtype in (Dtype.BF16, Dtype.FP8))
    for heads, batch, past in itertools.product((1, 16, 64, 128, 256), (1.0, 33.0), PASTS):
        shape = ChosenHeads(heads, 512.0, 64.0, 2048.0, CACHE_BYTES[variant], 320.0)
        took = chosen_prefill_s(batch, SIZES, past, shape, form, there)
        dense, pairs = past + SIZES <= form.dense_keys, attended_pairs(SIZES, past, 2048.0)
        flops = batch * 2 * heads * np.where(dense, 320 * pairs + past * 512 * 256, 1088 * pairs)
        read = batch * min(past, 2048.0) * 576 * CACHE_BYTES[variant]
        found.append((took, np.maximum(flops / there.flops_per_s, read / there.bytes_per_s)))
        took = chosen_prefill_index_s(batch, SIZES, past, IndexHeads(64.0, 128.0), form, there_8_bit)
        flops_s = ~dense * 16_384 * attended_pairs(SIZES, past, 0.0) / there_8_bit.flops_per_s
        found.append((took, batch * np.maximum(flops_s, (past + SIZES) * 128 / there.bytes_per_s)))
    return found


def sweep_chosen_decode(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    there, form, found = fitted_peaks(calibration, Dtype.BF16), ChosenDecodeForm.of(fit), []
    for heads, batch in itertools.product((1, 16, 64, 128, 256), (1.0, 33.0, 512.0)):
        shape, keys = ChosenHeads(heads, 512.0, 64.0, 2048.0, CACHE_BYTES[variant]), np.minimum(SIZES, 2048.0)
        took = chosen_decode_s(batch, SIZES, shape, form, there)
        memory = batch * keys * 576 * CACHE_BYTES[variant] / there.bytes_per_s
        found.append((took, np.maximum(memory, 2 * batch * heads * 1088 * keys / there.flops_per_s)))
    took = chosen_decode_index_s(SIZES, 9999.0, IndexHeads(64.0, 128.0), form, there)
    return [*found, (took, SIZES * 9999 * 128 / there.bytes_per_s)]


COMPRESSED = {"indexed": (4.0, 512.0), "pooled": (128.0, 0.0)}
"""Tokens to a compressed key and keys a query chooses, as of DeepSeek-V4-Flash."""


def sweep_compressed(calibration: Calibration, variant: str, fit: KernelFit) -> Times:
    """Prompts after a past; with one new token each, decodes."""
    there, form, found = fitted_peaks(calibration, Dtype.BF16), CompressedForm.of(fit), []
    ratio, top_k = COMPRESSED[variant]
    for heads, batch, past in itertools.product((1, 8, 64, 128), (1.0, 33.0, 512.0), PASTS):
        shape = CompressedHeads(heads, 512.0, 584.0, 128.0, ratio, top_k)
        pairs = batch * compressed_pairs(SIZES, past, shape)
        read = batch * 584 * (min(past, 128.0) + min(past / ratio, top_k or math.inf))
        took = compressed_attention_s(batch * SIZES, pairs, read, shape, form, there)
        traffic = read + batch * SIZES * (4 * heads * 512 + 584)
        found.append((took, np.maximum(4 * heads * 512 * pairs / there.flops_per_s, traffic / there.bytes_per_s)))
    return found


SWEEPS = {
    "recurrent_prefill": sweep_recurrent_prefill,
    "recurrent_decode": sweep_recurrent_decode,
    "index_scores": sweep_index_scores,
    "index_selection": sweep_index_selection,
    "sparse_prefill": sweep_sparse_prefill,
    "gemm": sweep_gemm,
    "experts": sweep_experts,
    "attention_prefill": sweep_prefill,
    "attention_decode": sweep_decode,
    "latent_prefill": sweep_latent_prefill,
    "latent_decode": sweep_latent_decode,
    "wide_prefill": sweep_prefill,
    "encoder_attention": sweep_encoder,
    "wide_decode": sweep_decode,
    "block_prefill": sweep_block_prefill,
    "block_decode": sweep_block_decode,
    "chosen_prefill": sweep_chosen_prefill,
    "chosen_decode": sweep_chosen_decode,
    "compressed_prefill": sweep_compressed,
    "compressed_decode": sweep_compressed,
    "elementwise": sweep_elementwise,
    "all_reduce": sweep_collective,
    "normed_reduce": sweep_collective,
    "all_gather": sweep_collective,
    "reduce_scatter": sweep_collective,
    "all_to_all": sweep_collective,
    "expert_dispatch": sweep_collective,
    "expert_combine": sweep_collective,
    "network": sweep_network,
}


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=lambda one: f"{one.sku}-{one.stack}")
def test_no_shipped_fit_beats_the_roofline(calibration):
    for key, fit in calibration.kernels.items():
        operator, variant = key.split("/")
        for took, ideal in SWEEPS[operator](calibration, variant, fit):
            assert np.isfinite(took).all(), key
            assert (took >= ideal * (1.0 - 1e-9)).all(), key
            assert (took > 0).all(), key
