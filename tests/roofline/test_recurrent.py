"""Kernel forms of recurrences: bytes and FLOPs counted by hand, limits, and what a GPU cannot beat."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.roofline import (
    GpuPeaks,
    RecurrentDecodeForm,
    RecurrentHeads,
    RecurrentPrefillForm,
    recurrent_decode_s,
    recurrent_prefill_s,
)

PEAKS = GpuPeaks(1e15, 4e12, 132.0)
QWEN_TP8 = RecurrentHeads(heads=8.0, key_dim=128.0, value_dim=128.0, channels=1536.0)
"""Qwen3.5-397B-A17B over eight GPUs: 64 value and 16 key heads (config.json), queries, keys and values convolved."""
IDEAL = RecurrentPrefillForm(start_s=0.0, compute_efficiency=1.0, memory_efficiency=1.0, order=20.0, token_s=0.0)
SERVED = RecurrentPrefillForm(start_s=3e-5, compute_efficiency=0.08, memory_efficiency=0.45, order=1.2, token_s=2.4e-8)


def test_a_state_is_read_and_written_in_32_bit():
    assert QWEN_TP8.state_bytes == 2 * 4 * 8 * 128 * 128


def test_a_token_brings_its_channels_and_takes_its_values():
    assert QWEN_TP8.token_bytes == 2 * (1536 + 8 * 128)
    # the convolution reads 1536 channels and writes them, the scan reads them and writes 1024 values
    assert QWEN_TP8.passed_bytes == 2 * (1536 + 1536 + 1536 + 8 * 128)


def test_an_update_at_full_bandwidth_takes_its_traffic():
    form = RecurrentDecodeForm(start_s=0.0, memory_efficiency=1.0, order=1.0)
    traffic = 100 * (1_048_576 + 11_264)
    assert recurrent_decode_s(100.0, 1.0, QWEN_TP8, form, PEAKS) == pytest.approx(traffic / 4e12)


def test_few_sequences_wait_for_the_floor_of_an_update():
    form = RecurrentDecodeForm(start_s=6e-6, memory_efficiency=0.8, order=1.2)
    assert recurrent_decode_s(0.001, 1.0, QWEN_TP8, form, PEAKS) == pytest.approx(6e-6, rel=1e-3)


def test_one_prompt_waits_for_its_chain_and_many_for_the_processors():
    form = RecurrentPrefillForm(0.0, compute_efficiency=1.0, memory_efficiency=0.5, order=20.0, token_s=5e-8)
    one = recurrent_prefill_s(1.0, 8192.0, QWEN_TP8, form, PEAKS)
    assert one == pytest.approx(8192 * 5e-8, rel=1e-3)
    assert recurrent_prefill_s(4.0, 8192.0, QWEN_TP8, form, PEAKS) == pytest.approx(one, rel=0.01)
    many = recurrent_prefill_s(512.0, 8192.0, QWEN_TP8, form, PEAKS)
    assert many == pytest.approx(2.0 * recurrent_prefill_s(256.0, 8192.0, QWEN_TP8, form, PEAKS), rel=0.01)


@pytest.mark.parametrize("form", [IDEAL, SERVED], ids=["ideal", "served"])
def test_prompts_grow_with_what_is_in_them_and_never_beat_the_roofline(form):
    sizes = 2.0 ** np.arange(0, 15)
    chunks, new = np.meshgrid(sizes[:9], sizes, indexing="ij")
    took = recurrent_prefill_s(chunks, new, QWEN_TP8, form, PEAKS)
    assert (np.diff(took, axis=0) >= 0).all()
    assert (np.diff(took, axis=1) >= 0).all()
    flops_s = chunks * new * QWEN_TP8.scan_flops / 1e15
    traffic_s = chunks * (QWEN_TP8.state_bytes + new * QWEN_TP8.token_bytes) / 4e12
    assert (took >= np.maximum(flops_s, traffic_s) * (1 - 1e-12)).all()


def test_splitting_heads_splits_the_work():
    whole = RecurrentHeads(64.0, 128.0, 128.0, 12288.0)
    for name, share in itertools.product(("state_bytes", "token_bytes", "scan_flops", "update_flops"), (8.0,)):
        assert getattr(whole, name) == share * getattr(QWEN_TP8, name)
