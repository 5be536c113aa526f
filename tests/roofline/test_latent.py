"""Kernel forms of latent attention against closed forms."""

from __future__ import annotations

import math

import pytest

from planner.roofline import (
    GpuPeaks,
    LatentDecodeForm,
    LatentHeads,
    LatentPrefillForm,
    LatentRow,
    latent_decode_s,
    latent_prefill_s,
)
from planner.roofline.kernel_forms import SizeCorrection

PEAK, BANDWIDTH = 1e15, 4e12


def gpu_peaks(sms: float = 128, flops: float = 2.0 * PEAK, bandwidth: float = 2.0 * BANDWIDTH) -> GpuPeaks:
    """Of which kernels reach half here: no roofline, which none may beat, hides what they take."""
    return GpuPeaks(flops, bandwidth, sms)


def test_latent_decode_reads_one_row_for_all_heads():
    form = LatentDecodeForm(0.0, 0.5, 0.5, math.inf, 0.0, 1e9)
    took = latent_decode_s(32.0, 4096.0, LatentRow(16, 512, 64, 1.0), form, gpu_peaks(flops=1e30))
    assert took == pytest.approx((32 * 4096 * 576 + 32 * 16 * 2 * (576 + 512)) / BANDWIDTH)
    busy = latent_decode_s(32.0, 4096.0, LatentRow(128, 512, 64, 1.0), form, gpu_peaks(bandwidth=1e30))
    assert busy == pytest.approx(2 * 32 * 128 * 4096 * (576 + 512) / PEAK)


def test_latent_prefill_does_keys_and_values_of_different_width():
    form = LatentPrefillForm(0.0, 0.5, 0.5, math.inf, 0.0, 0.0)
    took = latent_prefill_s(2.0, 1000.0, 0.0, LatentHeads(128, 192, 128), form, gpu_peaks(bandwidth=1e30))
    assert took == pytest.approx(2 * 128 * 2 * (192 + 128) * (1000 * 1001 / 2) / PEAK)


def test_latent_prefill_is_corrected_by_its_context_and_the_heads_of_new_tokens_over_it() -> None:
    """Four chunks of 256 tokens behind 768: 1,024 keys, and 16 heads of 4 x 256 / 1,024 whole contexts."""
    correction = SizeCorrection((0.0, 20.0), (0.0, 20.0), ((0.0, 3.0), (2.0, 5.0)))
    plain, corrected = (LatentPrefillForm(0.0, 0.5, 0.5, 1.0, 0.0, 0.0, correction=one) for one in (None, correction))
    took_s, as_measured_s = (
        latent_prefill_s(4.0, 256.0, 768.0, LatentHeads(16, 192, 128), form, gpu_peaks()) for form in (plain, corrected)
    )
    assert as_measured_s / took_s == pytest.approx(math.exp(2.0 * 10.0 / 20.0 + 3.0 * 4.0 / 20.0), rel=1e-12)
