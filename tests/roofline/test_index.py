"""Kernel forms of sparse attention: rows and keys by counting, limits, and growth."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_db import Dtype, select_calibration
from planner.roofline import (
    CalibratedGpu,
    Driver,
    GpuPeaks,
    IndexHeads,
    IndexScoresForm,
    IndexSelectionForm,
    Load,
    OperatorFamily,
    SparsePrefillForm,
    index_scores_s,
    index_selection_s,
    selecting_rows,
    sparse_prefill_s,
    sparse_token_s,
)
from planner.roofline.index import IndexScores, PromptIndex, index_prompts_s
from tests.builders import H100, HARDWARE

PEAKS = GpuPeaks(2e15, 4e12, 132.0)


@pytest.mark.parametrize(("new", "past", "top_k"), [(4, 0, 2), (7, 3, 5), (5, 90, 20), (3, 0, 20), (1, 20, 20)])
def test_selecting_rows_by_counting(new, past, top_k):
    seen = [past + i for i in range(1, new + 1) if past + i > top_k]
    rows = selecting_rows(float(new), float(past), float(top_k))
    assert rows == len(seen)
    if seen:
        assert new + past - (rows - 1) / 2 == pytest.approx(np.mean(seen))


def test_scores_take_their_flops_or_their_keys():
    form = IndexScoresForm(start_s=0.0, compute_efficiency=0.5, memory_efficiency=0.25, order=float("inf"))
    # 64 heads of 128 channels: 2 * 64 * 128 FLOPs a pair; a key of 128 bytes and its scale
    assert index_scores_s(1e9, 1e3, IndexHeads(64.0, 128.0), form, PEAKS) == pytest.approx(1e9 * 16384 / 1e15)
    assert index_scores_s(1.0, 1e6, IndexHeads(64.0, 128.0), form, PEAKS) == pytest.approx(1e6 * 132 / 1e12)


def test_nothing_is_selected_from_few_keys():
    form = IndexSelectionForm(start_s=3e-6, row_s=4e-6, key_s=3e-10)
    assert index_selection_s(0.0, 1000.0, form, PEAKS) == 0.0
    assert index_selection_s(np.array([0.0, 1.0]), np.array([9.0, 1e5]), form, PEAKS) == pytest.approx([0.0, 3.7e-5])


def test_selection_fills_the_processors_before_it_takes_longer():
    form = IndexSelectionForm(start_s=0.0, row_s=4e-6, key_s=3e-10)
    one = index_selection_s(1.0, 8192.0, form, PEAKS)
    assert index_selection_s(132.0, 8192.0, form, PEAKS) == one
    assert index_selection_s(264.0, 8192.0, form, PEAKS) == pytest.approx(2.0 * one)


def test_splitting_heads_below_a_group_gains_nothing():
    form = SparsePrefillForm(start_s=0.0, compute_efficiency=0.6)
    few, group, two = (sparse_token_s(2048.0, heads, 512.0, 64.0, form, PEAKS) for heads in (16.0, 64.0, 128.0))
    assert few == group
    assert two == 2.0 * group


def test_sparse_prompts_take_their_flops_and_grow():
    form = SparsePrefillForm(start_s=0.0, compute_efficiency=0.5)
    token_s = sparse_token_s(2048.0, 64.0, 512.0, 64.0, form, PEAKS)
    flops = 2 * 64 * (576 + 512) * 2048  # absorbed: a dot product of 576 and a sum of 512 per head and key
    assert sparse_prefill_s(4096.0, token_s, form, PEAKS) == pytest.approx(4096 * flops / 1e15)
    assert (np.diff(sparse_prefill_s(2.0 ** np.arange(15), token_s, form, PEAKS)) >= 0).all()


@pytest.mark.parametrize("ratio", [1.0, 4.0])
@pytest.mark.parametrize(("new", "past"), [(700.0, 0.0), (64.0, 3000.0), (3.0, 10.0), (256.0, 900.0)])
def test_the_index_of_a_prompt_is_that_of_its_tokens_one_by_one(new: float, past: float, ratio: float) -> None:
    """On one processor rows are selected one after another, each from the keys it sees; scores are of all pairs."""
    heads, peaks, seen = IndexHeads(64.0, 128.0), GpuPeaks(2e15, 4e12, 1.0), 1024.0
    scores, select = (2e-6, 0.5, 0.25, 2.0), (3e-6, 4e-6, 3e-10)
    got = index_prompts_s(5.0, new, past, past, heads, PromptIndex(ratio, seen, *select, *scores), peaks)
    sees = past + 1.0 + np.arange(new)
    form = IndexScoresForm(start_s=2e-6, compute_efficiency=0.5, memory_efficiency=0.25, order=2.0)
    expected = index_scores_s(5.0 * sees.sum() / ratio, 5.0 * (past + new) / ratio, heads, form, peaks)
    rows = sees[sees > seen]
    if rows.size:
        expected += select[0] + 5.0 * float((select[1] + select[2] * rows / ratio).sum())
    assert got == pytest.approx(expected, rel=2e-3 / new)


@pytest.mark.parametrize(("context", "selecting"), [(516.0, 0.0), (2000.0, 0.0), (2048.0, 0.0), (2052.0, 12.0)])
def test_decodes_select_once_they_see_more_than_they_attend_to(context: float, selecting: float) -> None:
    """Four sequences of three queries over keys of four tokens: 512 keys are taken as they are, and each query of a
    longer context scores all keys of its sequence, which are read once, and selects."""
    gpu = CalibratedGpu(H100, select_calibration(HARDWARE, "h100-sxm", "sglang"))
    index = IndexScores(OperatorFamily.INDEX, Dtype.FP8, 1.0, Driver.SHAPE, 64.0, 128.0, 512.0, 4.0)
    load = Load(12.0, 12.0, 12.0, 4.0, context, 0.0, 0.0, 0.0, 0.0, 3.0)
    scores = gpu.form(IndexScoresForm, index.scores_keys[1])
    selection = gpu.form(IndexSelectionForm, *index.selection_keys("decode"))
    assert scores is not None and selection is not None
    peaks, keys = gpu.peaks(Dtype.FP8), 4.0 * context / 4.0
    scored_s = index_scores_s(3.0 * keys, keys, IndexHeads(64.0, 128.0), scores, peaks)
    selected_s = index_selection_s(selecting, context / 4.0, selection, peaks)
    assert index.kernel_s(load, gpu) == pytest.approx(scored_s + selected_s, rel=1e-12)
