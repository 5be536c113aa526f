"""Kernel forms of products, experts, collectives and passes against closed forms and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hardware_db import Dtype
from planner.roofline import (
    WEIGHT_FORMATS,
    CollectiveForm,
    ElementwiseForm,
    ExpertsForm,
    ExpertShape,
    GemmForm,
    GpuPeaks,
    SizeCorrection,
    WeightFormat,
    collective_s,
    elementwise_s,
    exchanged_bytes,
    experts_s,
    gemm_s,
)
from planner.roofline.kernels import SHORTEST_SPLIT

BF16 = WEIGHT_FORMATS["bf16"]
PEAK, BANDWIDTH = 1e15, 4e12
IDEAL = {"start_s": 0.0, "compute_efficiency": 0.5, "memory_efficiency": 0.5, "order": math.inf}
IDEAL_GEMM = {**IDEAL, "small_tile_loss": 0.0, "fill": 1e9, "split_s": 0.0}


def gpu_peaks(sms: float = 128, flops: float = 2.0 * PEAK, bandwidth: float = 2.0 * BANDWIDTH) -> GpuPeaks:
    """Of which kernels reach half here: no roofline, which none may beat, hides what they take."""
    return GpuPeaks(flops, bandwidth, sms)


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


@pytest.mark.parametrize("split", [2.0, 4.0, 8.0, 16.0])
def test_no_inner_width_is_split_into_pieces_too_short(split):
    """One row by 128 columns, splits for nothing: half as long from where twice as many processors may share it."""
    form, peaks = GemmForm(**IDEAL_GEMM), gpu_peaks(bandwidth=1e30)
    shortest = SHORTEST_SPLIT * split
    short, long = (gemm_s(np.ones(1), 128, k, form, peaks, BF16)[0] for k in (shortest - 1.0, shortest))
    assert long == pytest.approx(short / 2.0)


def test_quantising_the_activations_is_a_pass_of_its_own():
    plain = GemmForm(**IDEAL_GEMM, quantise_efficiency=0.25, quantise_row=100.0)
    m = np.array([1.0, 512.0])
    both = [
        gemm_s(m, 4096, 4096, plain, gpu_peaks(), WeightFormat(Dtype.FP8, 1.0, 1.0, quantised))
        for quantised in (False, True)
    ]
    assert both[1] - both[0] == pytest.approx(m * (4096 + 100) * 3.0 / (0.5 * BANDWIDTH))


def test_more_tokens_take_longer_up_to_waves():
    form = GemmForm(2e-6, 0.7, 0.8, 2.5, 0.1, 3.0, 2e-6)
    took = gemm_s(2.0 ** np.arange(16), 4096, 4096, form, gpu_peaks(132), BF16)
    assert (np.diff(took) > -0.02 * took[:-1]).all()


def test_experts_are_two_products_and_only_active_ones_are_read():
    form = ExpertsForm(0.0, 0.0, 0.5, 0.5, math.inf, 0.0, 1e9)
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
    assert elementwise_s(1e9, ElementwiseForm(2e-6, 0.25), gpu_peaks()) == pytest.approx(2e-6 + 1e9 / (0.5 * BANDWIDTH))


def test_exchanged_bytes_by_drawing_experts():
    """Distinct GPUs among k experts drawn independently of each other, less the one the token is on."""
    random = np.random.default_rng(1)
    gpus = random.integers(0, 8, size=(200_000, 6))
    distinct = np.mean([len(set(row)) for row in gpus[:20_000].tolist()]) * 7 / 8
    assert exchanged_bytes(10.0, 100, 6, 8, 2.0, per_expert=False) == pytest.approx(10 * 100 * 2 * distinct, rel=0.01)


def test_a_size_correction_never_beats_the_roofline():
    quick = SizeCorrection((0.0,), (0.0,), ((-50.0,),))
    form = GemmForm(**IDEAL_GEMM, correction=quick)
    took = gemm_s(np.array([2048.0, 1.0]), 2048, 4096, form, gpu_peaks(), BF16)
    assert took[0] == pytest.approx(2048 * 2048 * 4096 / PEAK)
    assert took[1] == pytest.approx((2048 * 4096 + 4096 + 2048) / BANDWIDTH)
    assert collective_s(1e9, 1e11, CollectiveForm(1e-6, 0.5, 1.0, correction=quick)) == pytest.approx(0.01)
