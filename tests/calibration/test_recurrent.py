"""Fits of recurrences: rows of a layer, coefficients that made the rows, and the measured tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from calibration.fit import fit
from calibration.recurrent import layer_rows, recurrent_decode, recurrent_prefill
from calibration.tables import ColumnTable, read_table
from hardware_db import Dtype, load_hardware
from planner.roofline import RecurrentHeads
from tests.places import SHARED

H100 = load_hardware().skus["h100-sxm"]
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


def test_a_call_without_its_convolution_is_left_out():
    rows = made_rows("context")
    assert len(layer_rows(rows.rows(np.arange(len(rows)) > 0), "context")) == len(rows) / 2 - 1


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
