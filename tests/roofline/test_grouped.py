"""Kernel forms of grouped attention against closed forms."""

from __future__ import annotations

import math

import pytest

from planner.roofline import (
    AttentionHeads,
    DecodeForm,
    GpuPeaks,
    PrefillForm,
    decode_attention_s,
    prefill_attention_s,
)

PEAK, BANDWIDTH = 1e15, 4e12


def gpu_peaks(sms: float = 128, flops: float = 2.0 * PEAK, bandwidth: float = 2.0 * BANDWIDTH) -> GpuPeaks:
    """Of which kernels reach half here: no roofline, which none may beat, hides what they take."""
    return GpuPeaks(flops, bandwidth, sms)


IDEAL_PREFILL = PrefillForm(0.0, 0.5, math.inf, 0.0, 0.0, 0.5)
IDEAL_DECODE = DecodeForm(0.0, 0.5, math.inf, 0.0, 1e9, 0.5)


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
    form = PrefillForm(1e-6, 0.5, math.inf, 500.0, 1.0, 0.25)
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
    lone = DecodeForm(0.0, 0.5, math.inf, 0.0, 2.0, 0.5)
    one = decode_attention_s(1.0, 128.0, AttentionHeads(8, 8, 128, 2.0), lone, gpu_peaks(flops=1e30))
    own = 4 * 8 * 128 + 2 * 8 * 128 * 4
    assert one == pytest.approx((2 * 8 * 128 * 128 * 2 + own) / (BANDWIDTH * 2 * 8 / 128))
    floor = DecodeForm(0.0, 0.5, math.inf, 3e-6, 1e9, 0.5)
    many = decode_attention_s(1024.0, 1.0, AttentionHeads(8, 8, 128, 2.0), floor, gpu_peaks(flops=1e30, bandwidth=1e30))
    assert many == pytest.approx(1024 * 8 * 3e-6 / 128)


def test_a_kernel_that_does_not_split_needs_more_sequences():
    both = [DecodeForm(0.0, 0.5, math.inf, 0.0, 1.0, 0.5, splits_kv=split) for split in (1.0, 0.0)]
    heads, peaks = AttentionHeads(32, 8, 128, 2.0), gpu_peaks(flops=1e30)
    split, unsplit = (decode_attention_s(1.0, 12800.0, heads, form, peaks) for form in both)
    assert unsplit / split == pytest.approx(100 * 8 / 8 if 100 * 8 < 128 else 128 / 8)
