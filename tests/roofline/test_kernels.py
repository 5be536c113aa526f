"""Kernel forms and routing against closed forms, brute force and simulation; shipped fits against the roofline."""

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
    PrefillForm,
    RecurrentDecodeForm,
    RecurrentHeads,
    RecurrentPrefillForm,
    SizeCorrection,
    SparsePrefillForm,
    WeightFormat,
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
    exchanged_bytes,
    experts_s,
    gemm_s,
    index_scores_s,
    index_selection_s,
    latent_decode_s,
    latent_prefill_s,
    prefill_attention_s,
    recurrent_decode_s,
    recurrent_prefill_s,
    routed_load,
    sparse_prefill_s,
    sparse_token_s,
)
from planner.roofline.arithmetic import p_norm

BF16 = WEIGHT_FORMATS["bf16"]
PEAK, BANDWIDTH = 1e15, 4e12
IDEAL = {"start_s": 0.0, "compute_efficiency": 1.0, "memory_efficiency": 1.0, "order": math.inf}
IDEAL_GEMM = {**IDEAL, "small_tile_loss": 0.0, "fill": 1e9, "split_s": 0.0}
IDEAL_PREFILL = PrefillForm(0.0, 1.0, math.inf, 0.0, 0.0, 1.0)
IDEAL_DECODE = DecodeForm(0.0, 1.0, math.inf, 0.0, 1e9, 1.0)
CALIBRATIONS = load_hardware().calibrations


def gpu_peaks(sms: float = 128, flops: float = PEAK, bandwidth: float = BANDWIDTH) -> GpuPeaks:
    return GpuPeaks(flops, bandwidth, sms)


def test_the_p_norm_lies_between_the_maximum_and_the_sum():
    for order in (0.5, 1.0, 2.0, 7.0):
        assert max(3.0, 4.0) <= p_norm(order, 3.0, 4.0)
        assert (p_norm(order, 3.0, 4.0) <= 7.0) == (order >= 1.0)
    assert [p_norm(2.0, 0.0, 2.0), p_norm(0.5, 0.0, 0.0), p_norm(math.inf, 3.0, 3.0)] == [2.0, 0.0, 3.0]


def test_a_perfectly_tiled_product_takes_its_flops_at_peak():
    took = gemm_s(np.array([2048.0]), 2048, 4096, GemmForm(**IDEAL_GEMM), gpu_peaks(), BF16)  # 128 tiles of 128 x 256
    assert took == pytest.approx([2 * 2048 * 2048 * 4096 / PEAK])


def test_a_product_of_one_token_takes_its_weights_at_bandwidth():
    took = gemm_s(np.array([1.0]), 8192, 8192, GemmForm(**IDEAL_GEMM), gpu_peaks(), BF16)
    assert took == pytest.approx([(2 * 8192 * 8192 + 2 * 8192 + 2 * 8192) / BANDWIDTH])


@pytest.mark.parametrize(("tokens", "rows"), [(64, 64), (65, 80), (80, 80), (81, 96)])
def test_tiles_come_whole(tokens, rows):
    """One processor, no memory time: 65 rows cost five 16-row tiles, as much as 80."""
    took = gemm_s(np.array([float(tokens)]), 128, 64, GemmForm(**IDEAL_GEMM), gpu_peaks(1, bandwidth=1e30), BF16)
    assert took == pytest.approx([2 * rows * 128 * 64 / PEAK])


def test_waves_come_whole():
    """Small tiles ruled out, no inner dimension to split: 129 largest tiles cost two waves of 128 processors."""
    form = GemmForm(**{**IDEAL_GEMM, "small_tile_loss": 1e6})
    tile = 2 * 256 * 128 * 64 / PEAK * 128
    one, two = gemm_s(np.array([128.0 * 256, 129.0 * 256]), 128, 64, form, gpu_peaks(bandwidth=1e30), BF16)
    assert (one, two) == pytest.approx((tile, 2 * tile))


def test_quantising_the_activations_is_a_pass_of_its_own():
    plain = GemmForm(**IDEAL_GEMM, quantise_efficiency=0.5, quantise_row=100.0)
    m = np.array([1.0, 512.0])
    both = [
        gemm_s(m, 4096, 4096, plain, gpu_peaks(), WeightFormat(Dtype.FP8, 1.0, 1.0, quantised))
        for quantised in (False, True)
    ]
    assert both[1] - both[0] == pytest.approx(m * (4096 + 100) * 3.0 / (0.5 * BANDWIDTH))


def test_arrays_of_widths_give_what_single_widths_give():
    form = GemmForm(2e-6, 0.7, 0.8, 2.5, 0.1, 3.0, 2e-6)
    m, n, k = np.array([1.0, 65, 4096]), np.array([512.0, 7168, 1536]), np.array([7168.0, 512, 8192])
    single = [gemm_s(m[i : i + 1], n[i], k[i], form, gpu_peaks(132), BF16)[0] for i in range(3)]
    assert gemm_s(m, n, k, form, gpu_peaks(132), BF16) == pytest.approx(single)


def test_more_tokens_take_longer_up_to_waves():
    form = GemmForm(2e-6, 0.7, 0.8, 2.5, 0.1, 3.0, 2e-6)
    took = gemm_s(2.0 ** np.arange(16), 4096, 4096, form, gpu_peaks(132), BF16)
    assert (np.diff(took) > -0.02 * took[:-1]).all()


@pytest.mark.parametrize("window", [0, 1, 5, 12, 100])
def test_attended_pairs_by_counting(window):
    for new, past in itertools.product((1, 4, 17), (0, 3, 30)):
        counted = sum(min(past + i, window or math.inf) for i in range(1, new + 1))
        assert attended_pairs(float(new), float(past), window) == counted


def test_chunks_of_a_prompt_do_the_work_of_the_prompt():
    """With no overheads and no memory time, chunked prefill costs what the whole prompt costs."""
    there = gpu_peaks(bandwidth=1e30)
    shape = (AttentionHeads(32, 8, 128, 2.0), IDEAL_PREFILL, there)
    whole = prefill_attention_s(1.0, 4096.0, 0.0, *shape)
    assert whole == pytest.approx(4 * 32 * 128 * (4096 * 4097 / 2) / PEAK)
    assert sum(prefill_attention_s(1.0, 1024.0, 1024.0 * i, *shape) for i in range(4)) == pytest.approx(whole)


def test_prefill_reads_and_writes_its_tensors():
    """Queries and output 2 x 16 bits a head; keys and values read in 16 bits and written in the cache's format."""
    there = gpu_peaks(flops=1e30)
    took = prefill_attention_s(2.0, 100.0, 50.0, AttentionHeads(32, 8, 128, 1.0), IDEAL_PREFILL, there)
    values = 2 * 100 * 128 * (4 * 32 + 2 * 8 * (2 + 2 * 1.0)) + 2 * 50 * 2 * 8 * 128 * 1.0
    assert took == pytest.approx(values / BANDWIDTH)


def test_extra_keys_per_row_and_the_floor_of_one_block():
    form = PrefillForm(1e-6, 1.0, math.inf, 500.0, 1.0, 0.5)
    there = gpu_peaks(bandwidth=1e30)
    full = prefill_attention_s(8.0, 2048.0, 0.0, AttentionHeads(64, 8, 128, 2.0), form, there)
    assert full == pytest.approx(1e-6 + 4 * 8 * 64 * 128 * (2048 * 2049 / 2 + 500 * 2048) / (0.5 * PEAK))
    alone = prefill_attention_s(1.0, 128.0, 0.0, AttentionHeads(1, 1, 128, 2.0), form, there)
    assert alone == pytest.approx(1e-6 + 4 * 128 * 128 * (128 + 500) * 128 / (0.5 * PEAK))


def test_decode_reads_the_cache_at_bandwidth():
    took = decode_attention_s(64.0, 4096.0, AttentionHeads(32, 8, 128, 2.0), IDEAL_DECODE, gpu_peaks(flops=1e30))
    cache = 64 * 2 * 8 * 4096 * 128 * 2
    own = 64 * (4 * 32 * 128 + 2 * 8 * 128 * 4)
    assert took == pytest.approx((cache + own) / BANDWIDTH)


def test_a_window_cuts_the_context():
    short = decode_attention_s(8.0, 128.0, AttentionHeads(32, 8, 128, 2.0), IDEAL_DECODE, gpu_peaks())
    windowed = AttentionHeads(32, 8, 128, 2.0, window=128)
    assert decode_attention_s(8.0, 1000.0, windowed, IDEAL_DECODE, gpu_peaks()) == pytest.approx(short)


def test_few_blocks_get_a_share_of_the_bandwidth_and_blocks_have_a_floor():
    lone = DecodeForm(0.0, 1.0, math.inf, 0.0, 2.0, 1.0)
    one = decode_attention_s(1.0, 128.0, AttentionHeads(8, 8, 128, 2.0), lone, gpu_peaks(flops=1e30))
    own = 4 * 8 * 128 + 2 * 8 * 128 * 4
    assert one == pytest.approx((2 * 8 * 128 * 128 * 2 + own) / (BANDWIDTH * 2 * 8 / 128))
    floor = DecodeForm(0.0, 1.0, math.inf, 3e-6, 1e9, 1.0)
    many = decode_attention_s(1024.0, 1.0, AttentionHeads(8, 8, 128, 2.0), floor, gpu_peaks(flops=1e30, bandwidth=1e30))
    assert many == pytest.approx(1024 * 8 * 3e-6 / 128)


def test_a_kernel_that_does_not_split_needs_more_sequences():
    both = [DecodeForm(0.0, 1.0, math.inf, 0.0, 1.0, 1.0, splits_kv=split) for split in (1.0, 0.0)]
    heads, peaks = AttentionHeads(32, 8, 128, 2.0), gpu_peaks(flops=1e30)
    split, unsplit = (decode_attention_s(1.0, 12800.0, heads, form, peaks) for form in both)
    assert unsplit / split == pytest.approx(100 * 8 / 8 if 100 * 8 < 128 else 128 / 8)


def test_latent_decode_reads_one_row_for_all_heads():
    form = LatentDecodeForm(0.0, 1.0, 1.0, math.inf, 0.0, 1e9)
    took = latent_decode_s(32.0, 4096.0, LatentRow(16, 512, 64, 1.0), form, gpu_peaks(flops=1e30))
    assert took == pytest.approx((32 * 4096 * 576 + 32 * 16 * 2 * (576 + 512)) / BANDWIDTH)
    busy = latent_decode_s(32.0, 4096.0, LatentRow(128, 512, 64, 1.0), form, gpu_peaks(bandwidth=1e30))
    assert busy == pytest.approx(2 * 32 * 128 * 4096 * (576 + 512) / PEAK)


def test_latent_prefill_does_keys_and_values_of_different_width():
    form = LatentPrefillForm(0.0, 1.0, 1.0, math.inf, 0.0, 0.0)
    took = latent_prefill_s(2.0, 1000.0, 0.0, LatentHeads(128, 192, 128), form, gpu_peaks(bandwidth=1e30))
    assert took == pytest.approx(2 * 128 * 2 * (192 + 128) * (1000 * 1001 / 2) / PEAK)


def test_experts_are_two_products_and_only_active_ones_are_read():
    form = ExpertsForm(0.0, 0.0, 1.0, 1.0, math.inf, 0.0, 1e9)
    tokens, expert = np.array([1024.0]), ExpertShape(2048, 1024, True, 2.0)
    took = experts_s(tokens, tokens * 8, np.array([64.0]), expert, form, gpu_peaks(1, bandwidth=1e30))
    assert took == pytest.approx(2 * 1024 * 8 * 3 * 2048 * 1024 / PEAK)  # r = 128 rows: no padding
    for active in (8.0, 64.0):
        read = experts_s(np.ones(1), np.full(1, 8.0), np.array([active]), expert, form, gpu_peaks(1, 1e30))
        activations = 8 * (2048 * 2 + 2 * 2 * 1024 + 1024 * 2 + 2 * 2048)
        assert read == pytest.approx((active * 3 * 2048 * 1024 * 2 + activations) / BANDWIDTH)


def test_collective_and_elementwise_closed_forms():
    form = CollectiveForm(5e-6, 0.5, 1.0)
    assert collective_s(1e6, 4e11, form) == pytest.approx(5e-6 + 1e6 / 2e11)
    assert collective_s(0.0, 4e11, CollectiveForm(5e-6, 0.5, 0.6)) == pytest.approx(5e-6)
    assert elementwise_s(1e9, ElementwiseForm(2e-6, 0.5), gpu_peaks()) == pytest.approx(2e-6 + 1e9 / (0.5 * BANDWIDTH))


def test_exchanged_bytes_by_drawing_experts():
    """Distinct GPUs among k experts drawn independently of each other, less the one the token is on."""
    random = np.random.default_rng(1)
    gpus = random.integers(0, 8, size=(200_000, 6))
    distinct = np.mean([len(set(row)) for row in gpus[:20_000].tolist()]) * 7 / 8
    assert exchanged_bytes(10.0, 100, 6, 8, 2.0, per_expert=False) == pytest.approx(10 * 100 * 2 * distinct, rel=0.01)


def test_a_size_correction_interpolates_like_scipy_and_stays_flat_beyond():
    table = np.random.default_rng(3).normal(size=(4, 3))
    rows, columns = (0.0, 2.0, 5.0, 9.0), (1.0, 2.0, 4.0)
    correction = SizeCorrection(rows, columns, tuple(map(tuple, table.tolist())))
    judge = RegularGridInterpolator((rows, columns), table)
    at = np.random.default_rng(4).uniform((0, 1), (9, 4), size=(50, 2))
    assert correction.factor(2.0 ** at[:, 0], 2.0 ** at[:, 1]) == pytest.approx(np.exp(judge(at)))
    assert correction.factor(2.0**30, 2.0**30) == pytest.approx(math.exp(table[-1, -1]))
    assert correction.factor(2.0**-30, 1e-30) == pytest.approx(math.exp(table[0, 0]))


def test_a_size_correction_never_beats_the_roofline():
    quick = SizeCorrection((0.0,), (0.0,), ((-50.0,),))
    form = GemmForm(**IDEAL_GEMM, correction=quick)
    took = gemm_s(np.array([2048.0, 1.0]), 2048, 4096, form, gpu_peaks(), BF16)
    assert took[0] == pytest.approx(2 * 2048 * 2048 * 4096 / PEAK)
    assert took[1] == pytest.approx((2 * 2048 * 4096 + 2 * 4096 + 2 * 2048) / BANDWIDTH)
    assert collective_s(1e9, 1e11, CollectiveForm(1e-6, 0.5, 1.0, correction=quick)) == pytest.approx(0.01)


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


def test_uniform_routing_is_what_drawing_experts_gives():
    random = np.random.default_rng(7)
    drawn = []
    for _ in range(300):
        chosen = np.concatenate([random.permutation(64)[:4] for _ in range(20)])
        here = chosen[chosen < 16]
        drawn.append((len(here), len(set(here.tolist()))))
    pairs, active = routed_load(np.array([20.0]), 64, 4, 4)
    assert [pairs[0], active[0]] == pytest.approx(np.mean(drawn, axis=0), rel=0.03)


@pytest.mark.parametrize(("tokens", "skew"), [(64, 1.2), (1024, 1.01), (8, 1.2)])
def test_skewed_routing_is_what_drawing_popularities_gives(tokens, skew):
    """Independent simulation: popularities drawn, scaled to all pairs and rounded, the busiest of 8 GPUs looked at."""
    random = np.random.default_rng(11)
    busiest = []
    for _ in range(400):
        low, high = (1.0, 0.8 * tokens) if tokens * 8 > 256 else (0.01, 2.0)
        u = random.random(256)
        x = (low ** (1 - skew) + u * (high ** (1 - skew) - low ** (1 - skew))) ** (1 / (1 - skew))
        counts = np.rint(x / x.sum() * tokens * 8)
        for extra in range(int(tokens * 8 - counts.sum())):
            counts[np.argsort(-x)[extra % 256]] += 1
        counts = np.minimum(counts, tokens)
        busiest.append(counts.reshape(8, 32).sum(axis=1).max())
    pairs, active = routed_load(np.array([float(tokens)]), 256, 8, 8, skew)
    assert pairs[0] == pytest.approx(np.mean(busiest), rel=0.1)
    assert pairs[0] > tokens
    assert 1 <= active[0] <= 32


def test_routing_keeps_every_pair_and_grows_with_tokens():
    tokens = 2.0 ** np.arange(0, 15, 0.7)
    for skew in (0.0, 1.01, 1.2):
        pairs, active = routed_load(tokens, 128, 8, 1, skew)
        assert pairs == pytest.approx(tokens * 8)
        busiest, hit = routed_load(tokens, 128, 8, 16, skew)
        assert (busiest >= tokens * 8 / 16 - 1e-9).all()
        assert (np.diff(busiest) > 0).all()
        assert (active <= 128).all()
        assert (hit <= 8).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((8, 9), "must lie in"), ((8, 2, 3), "must divide experts"), ((8, 2, 1, -1.0), "must not be negative")],
)
def test_routing_refuses_what_is_impossible(arguments, text):
    with pytest.raises(InputError, match=text):
        routed_load(np.ones(1), *arguments)


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
    """Attention, every head with 1088 channels of key and value a pair, and the index, of 64 heads in 8 bit."""
    form, found = ChosenPrefillForm.of(fit), []
    there, there_8_bit = (fitted_peaks(calibration, dtype) for dtype in (Dtype.BF16, Dtype.FP8))
    for heads, batch, past in itertools.product((1, 16, 64, 128, 256), (1.0, 33.0), PASTS):
        shape = ChosenHeads(heads, 512.0, 64.0, 2048.0, CACHE_BYTES[variant])
        took = chosen_prefill_s(batch, SIZES, past, shape, form, there)
        flops = batch * 2 * heads * 1088 * attended_pairs(SIZES, past, 2048.0)
        read = batch * min(past, 2048.0) * 576 * CACHE_BYTES[variant]
        found.append((took, np.maximum(flops / there.flops_per_s, read / there.bytes_per_s)))
        took = chosen_prefill_index_s(batch, SIZES, past, IndexHeads(64.0, 128.0), form, there_8_bit)
        flops_s = 16_384 * attended_pairs(SIZES, past, 0.0) / there_8_bit.flops_per_s
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
    "wide_decode": sweep_decode,
    "block_prefill": sweep_block_prefill,
    "block_decode": sweep_block_decode,
    "chosen_prefill": sweep_chosen_prefill,
    "chosen_decode": sweep_chosen_decode,
    "compressed_prefill": sweep_compressed,
    "compressed_decode": sweep_compressed,
    "elementwise": sweep_elementwise,
    "all_reduce": sweep_collective,
    "all_gather": sweep_collective,
    "reduce_scatter": sweep_collective,
    "all_to_all": sweep_collective,
    "expert_dispatch": sweep_collective,
    "expert_combine": sweep_collective,
}


@pytest.mark.parametrize("calibration", CALIBRATIONS, ids=lambda one: f"{one.sku}-{one.stack}")
def test_no_shipped_fit_beats_the_roofline(calibration):
    for key, fit in calibration.kernels.items():
        operator, variant = key.split("/")
        for took, ideal in SWEEPS[operator](calibration, variant, fit):
            assert np.isfinite(took).all(), key
            assert (took >= ideal * (1.0 - 1e-9)).all(), key
            assert (took > 0).all(), key
