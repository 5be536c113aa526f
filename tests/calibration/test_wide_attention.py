"""Attention over wide heads: engines run kernels of their own, which the fits of usual heads do not know."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from calibration import operators
from calibration.assemble import _wide_heads
from calibration.fit import fit
from calibration.tables import ColumnTable, read_table
from hardware_db import Dtype, load_hardware
from planner.core import FloatArray
from planner.roofline import AttentionHeads, PrefillForm, prefill_attention_s
from tests.places import SHARED

HARDWARE = load_hardware()
H200 = HARDWARE.skus["h200-sxm"]
TABLES = SHARED / "kernels" / "h200_sxm"
ABSENT = pytest.mark.skipif(not TABLES.is_dir(), reason="the measured tables are not beside the checkout")


table = functools.cache(read_table)


def rows_of(backend: str, name: str, heads: str) -> ColumnTable:
    """Rows of a backend over a 16-bit cache, of one kind of heads."""
    every = table(TABLES, name)
    assert every is not None
    own = every.rows((every.text("backend") == backend) & (every.text("kv_dtype") == "bf16"))
    kinds = dict(_wide_heads(own))
    return own.rows(kinds[heads])


def usual_times(rows: ColumnTable, engine: str) -> FloatArray:
    """What the fit of usual heads says of rows of one kind [s]."""
    calibration = next(one for one in HARDWARE.calibrations if one.sku == "h200-sxm" and one.engine == engine)
    form = PrefillForm.of(calibration.kernels["attention_prefill/bf16"])
    peaks = operators.gpu_peaks(H200, Dtype.BF16)
    kinds = np.stack([rows[name] for name in ("num_heads", "num_kv_heads", "head_dim", "window")], axis=1)
    times = np.empty(len(kinds))
    for kind in np.unique(kinds, axis=0):
        alike = (kinds == kind).all(axis=1)
        heads, kv_heads, dim, window = map(float, kind)
        shape = AttentionHeads(heads, kv_heads, dim, 2.0, window)
        times[alike] = prefill_attention_s(rows["batch"][alike], rows["seq_len"][alike], 0.0, shape, form, peaks)
    return times


@ABSENT
def test_triton_is_several_times_slower_than_the_kernel_of_usual_heads() -> None:
    """SGLang runs both kinds of layers of Gemma 4 on Triton, which its fit of FlashAttention-3 cannot tell."""
    for heads, least in (("512", 3.0), ("256_window", 5.0)):
        rows = rows_of("sglang", "context_attention", heads)
        rows = rows.rows(rows["batch"] * rows["seq_len"] >= 4096)
        assert float(np.median(rows["latency_s"] / usual_times(rows, "sglang"))) > least, heads


@ABSENT
@pytest.mark.parametrize(
    ("backend", "heads", "median", "p90"),
    [
        ("sglang", "512", 0.06, 0.17),
        ("sglang", "256_window", 0.06, 0.25),
        ("vllm", "192", 0.08, 0.25),
        ("vllm", "512", 0.08, 0.3),
    ],
)
def test_prefill_on_head_counts_left_out(backend: str, heads: str, median: float, p90: float) -> None:
    result = fit(operators.wide_prefill(rows_of(backend, "context_attention", heads), H200, "bf16"))
    assert result.median_error < median
    assert result.p90_error < p90


@ABSENT
@pytest.mark.parametrize(
    ("backend", "heads"), [("vllm", "192"), ("vllm", "256_window"), ("sglang", "192_window"), ("sglang", "256_window")]
)
def test_decode_on_head_counts_left_out(backend: str, heads: str) -> None:
    result = fit(operators.wide_decode(rows_of(backend, "generation_attention", heads), H200, "bf16"))
    assert result.median_error < 0.05
    assert result.p90_error < 0.16


@ABSENT
def test_rows_of_192_channels_have_values_as_wide_as_keys() -> None:
    """Times of FlashAttention-3 agree with 4 h 192 FLOPs a pair as `usual_times` counts them, within a twentieth."""
    rows = rows_of("vllm", "context_attention", "192")
    rows = rows.rows(rows["batch"] * rows["seq_len"] >= 8192)
    assert float(np.median(rows["latency_s"] / usual_times(rows, "vllm"))) == pytest.approx(1.0, abs=0.06)
