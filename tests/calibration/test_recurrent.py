"""Fits of recurrences: rows of a layer, coefficients that made the rows, and the measured tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from calibration.fit import fit
from calibration.operators import gpu_peaks
from calibration.recurrent import delta_attention_rows, layer_rows, recurrent_decode, recurrent_prefill
from calibration.tables import ColumnTable, read_csv, read_table
from hardware_db import Dtype, load_hardware
from planner.roofline import (
    RecurrentDecodeForm,
    RecurrentHeads,
    RecurrentPrefillForm,
    SizeCorrection,
    recurrent_decode_s,
    recurrent_prefill_s,
)
from tests.places import REFERENCE, SHARED

HARDWARE = load_hardware()
H100 = HARDWARE.skus["h100-sxm"]
VLLM = next(one for one in HARDWARE.calibrations if (one.sku, one.engine) == ("h100-sxm", "vllm"))
TABLES = SHARED / "kernels" / "h100_sxm"


def made_rows(phase: str) -> ColumnTable:
    """Calls over many shapes, of two kernels of 1 and 2 microseconds each."""
    lengths = 2.0 ** np.arange(14) if phase == "context" else [1.0]
    shapes = list(itertools.product((1.0, 8.0, 64.0, 512.0), lengths, ((1.0, 2.0), (2.0, 8.0), (16.0, 64.0))))
    rows = [
        ("vllm", "1", phase, "qwen", keys, values, batch, length, batch * length, kernel, seconds)
        for batch, length, (keys, values) in shapes
        for kernel, seconds in (("causal_conv1d_fn", 1e-6), ("chunk_gated_delta_rule", 2e-6))
    ]
    names = "backend backend_version phase model_name num_k_heads num_v_heads batch_size seq_len num_tokens kernel"
    columns = zip((*names.split(), "latency_s"), zip(*rows, strict=True), strict=True)
    return ColumnTable({name: np.array(values) for name, values in columns})


def test_the_kernels_of_a_call_are_added_up():
    rows = made_rows("context")
    added = layer_rows(rows, "context")
    assert len(added) == len(rows) / 2
    assert added["latency_s"] == pytest.approx(3e-6)
    assert set(added.text("kernel")) == {"chunk_gated_delta_rule"}
    assert len(layer_rows(rows, "generation")) == 0


@pytest.mark.parametrize(
    ("phase", "make", "truth"),
    [
        (
            "context",
            recurrent_prefill,
            {"start_s": 2e-5, "compute_efficiency": 0.1, "memory_efficiency": 0.4, "order": 2.0, "token_s": 4e-8},
        ),
        (
            "generation",
            recurrent_decode,
            {"start_s": 6e-6, "memory_efficiency": 0.8, "order": 1.2, "resident_gain": 1.5},
        ),
    ],
)
def test_a_fit_predicts_what_made_its_rows(phase, make, truth):
    rows = layer_rows(made_rows(phase), phase)
    exact = rows.with_columns(latency_s=make(rows, H100).predict(truth, rows))
    found = fit(make(exact, H100))
    assert found.median_error < 0.01


@pytest.mark.skipif(not TABLES.is_dir(), reason="the shared reference data are not beside this checkout")
def published(name: str) -> ColumnTable:
    """Single published measurements of Mamba-2."""
    path = SHARED / "kernels" / "misc_2026_11" / f"{name}.csv"
    if not path.is_file():
        pytest.skip("the published measurements are not beside the checkout")
    return read_csv(path)


def test_updates_of_mamba_2_take_as_long_as_those_of_the_gated_delta_net() -> None:
    """States of 64 x 128 in 16 bit on H100 (vllm-project/vllm#43083), from where they no longer stay in its cache."""
    rows = published("mamba2_state_update")
    states = rows["effective_batch_batch_x_heads"]
    rows = rows.rows((np.char.find(rows.text("device"), "H100") >= 0) & (states >= 2048))
    assert len(rows) == 4
    half = RecurrentHeads(1.0, 64.0, 64.0, 64.0)  # as many bytes in 32 bit
    form = RecurrentDecodeForm.of(VLLM.kernels["recurrent_decode/common"])
    for states, seconds in zip(rows["effective_batch_batch_x_heads"], 1e-6 * rows["us"], strict=True):
        predicted = recurrent_decode_s(float(states), 1.0, half, form, gpu_peaks(H100, Dtype.BF16))
        assert predicted == pytest.approx(float(seconds), rel=0.08)


def test_a_scan_of_mamba_2_takes_longer_than_one_of_its_kernels() -> None:
    """Of five the one with two thirds of the FLOPs, on H800 (tile-ai/tilelang at be9c08f6)."""
    rows = published("mamba2_chunk_scan")
    heads = RecurrentHeads(80.0, 128.0, 64.0, 80 * 64 + 2 * 128.0)
    form = RecurrentPrefillForm.of(VLLM.kernels["recurrent_prefill/common"])
    for length, seconds in zip(rows["seq_len"], 1e-3 * rows["latency_ms"], strict=True):
        predicted = recurrent_prefill_s(8.0, float(length), heads, form, gpu_peaks(H100, Dtype.BF16))
        assert 1.2 < predicted / seconds < 1.6


@pytest.mark.parametrize(("phase", "make"), [("context", recurrent_prefill), ("generation", recurrent_decode)])
def test_measured_layers_keep_to_the_roofline_and_fits_to_the_measured(phase, make):
    table = read_table(TABLES, "gdn")
    assert table is not None
    rows = layer_rows(table, phase)
    rows = make(rows.rows(rows.text("backend") == "vllm"), H100).rows
    heads, tokens = rows["num_v_heads"], rows["num_tokens"]
    shape = RecurrentHeads(heads, 128.0, 128.0, (2.0 * rows["num_k_heads"] + heads) * 128.0)
    state_s = rows["batch_size"] * shape.state_bytes / H100.hbm_bandwidth_bytes_per_s.value
    cold = rows["batch_size"] * shape.state_bytes / 2.0 > 2.0 * H100.l2_bytes.value  # smaller states stay in the cache
    assert (rows["latency_s"][cold] > state_s[cold]).all()
    if phase == "context":
        assert (rows["latency_s"] > tokens * shape.scan_flops / H100.peak_flops_per_s[Dtype.BF16].value).all()
    assert fit(make(rows, H100)).median_error < 0.05


# ------------------------------------------------------------------------------------------ Kimi Delta Attention

H200 = HARDWARE.skus["h200-sxm"]
DELTA = read_csv(REFERENCE / "kda_kernels.csv")
"""Kernels of Kimi-K3's linear attention on H200, an excerpt of github.com/ai-dynamo/aiconfigurator (kda_perf of release
0.12.0, Apache-2.0)."""


def one_call(rows: ColumnTable, backend: str, heads: int, batch: int, length: int) -> float:
    chosen = (rows.text("backend") == backend) & (rows["num_v_heads"] == heads)
    (seconds,) = rows["latency_s"][chosen & (rows["batch_size"] == batch) & (rows["seq_len"] == length)]
    return float(seconds)


def test_a_convolution_that_waits_for_its_host_counts_as_the_quickest_of_its_shape():
    rows = delta_attention_rows(DELTA, "context")
    assert one_call(rows, "vllm", 96, 1, 1024) == pytest.approx(136.6e-6 + 71.8e-6, rel=0.01)  # not + 808e-6
    assert one_call(rows, "sglang", 96, 1, 1024) == pytest.approx(442e-6 + 71.8e-6, rel=0.01)


def test_the_quicker_of_two_kernels_for_one_call_counts_once():
    rows = delta_attention_rows(DELTA, "generation")
    fused = one_call(DELTA.rows(DELTA.text("kernel") == "fused_kda_decode"), "vllm", 96, 64, 1)
    apart = one_call(DELTA.rows(DELTA.text("kernel") == "fused_recurrent_kda_packed_decode"), "vllm", 96, 64, 1)
    convolution = 14.7e-6  # SGLang's
    assert one_call(rows, "vllm", 96, 64, 1) == pytest.approx(min(fused, apart + convolution), rel=0.01)
    assert len(rows.rows(rows.text("backend") == "vllm")) == 3 * 5  # head counts and batches


@pytest.mark.parametrize(("phase", "make"), [("context", recurrent_prefill), ("generation", recurrent_decode)])
@pytest.mark.parametrize("left_out", [12.0, 96.0])
def test_the_forms_of_the_delta_rule_know_head_counts_they_have_not_seen(phase, make, left_out):
    rows = delta_attention_rows(DELTA, phase)
    rows = rows.rows(rows.text("backend") == "vllm")
    seen, unseen = rows.rows(rows["num_v_heads"] != left_out), rows.rows(rows["num_v_heads"] == left_out)
    problem = make(seen, H200)
    values = {name: coefficient.value for name, coefficient in fit(problem).parameters.items()}
    errors = np.abs(problem.predict(values, unseen) / unseen["latency_s"] - 1.0)
    assert np.median(errors) < 0.2


def test_guesses_take_as_long_as_one_read_and_all_writes_of_the_state():
    rows = delta_attention_rows(DELTA, "generation")
    found = fit(recurrent_decode(rows.rows(rows.text("backend") == "vllm"), H200))
    form = RecurrentDecodeForm.of(found)
    shape = RecurrentHeads(96.0, 128.0, 128.0, 3 * 96 * 128.0)
    checked = DELTA.rows((DELTA.text("phase") == "verify") & (DELTA.text("kernel") == "fused_recurrent_kda"))
    for batch, queries, seconds in zip(checked["batch_size"], checked["seq_len"], checked["latency_s"], strict=True):
        predicted = recurrent_decode_s(float(batch), float(queries), shape, form, gpu_peaks(H200, Dtype.BF16))
        assert predicted == pytest.approx(float(seconds), rel=0.12)
    assert len(checked) == 3


@pytest.mark.skipif(not TABLES.is_dir(), reason="the shared reference data are not beside this checkout")
@pytest.mark.parametrize(("phase", "make"), [("context", recurrent_prefill), ("generation", recurrent_decode)])
def test_measured_delta_attention_is_predicted_for_batches_left_out(phase, make):
    table = read_table(SHARED / "kernels" / "h200_sxm", "kda")
    assert table is not None
    rows = delta_attention_rows(table, phase)
    rows = make(rows.rows(rows.text("backend") == "vllm"), H200).rows
    errors = []
    for batch in np.unique(rows["batch_size"]):
        problem = make(rows.rows(rows["batch_size"] != batch), H200)
        found, unseen = fit(problem), rows.rows(rows["batch_size"] == batch)
        values = {name: coefficient.value for name, coefficient in found.parameters.items()}
        predicted = problem.predict(values, unseen, SizeCorrection.of(found.correction))
        errors.extend(np.abs(predicted / unseen["latency_s"] - 1.0))
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < 0.12
