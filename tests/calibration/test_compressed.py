"""Fits of compressed attention: what is fitted of a module, coefficients that made rows, and measured excerpts."""

from __future__ import annotations

import numpy as np
import pytest

from calibration import compressed
from calibration.fit import fit, predicted_s
from calibration.tables import ColumnTable, read_csv, read_table
from hardware_db import load_hardware
from tests.places import REFERENCE, SHARED

H200 = load_hardware().skus["h200-sxm"]
VLLM = next(c for c in load_hardware().calibrations if c.sku == "h200-sxm" and c.engine == "vllm")
MODULES = read_csv(REFERENCE / "deepseek_v4_modules.csv")
"""216 rows of vLLM 0.24 on H200 of the tables ``dsv4_{csa,hca}_{context,generation}_module`` of AIConfigurator
(github.com/ai-dynamo/aiconfigurator, release 0.12.0 of aiconfigurator-core, Apache-2.0)."""
TABLES = SHARED / "kernels" / "h200_sxm"
PHASES = {"prefill": ("context", compressed.prefill), "decode": ("generation", compressed.decode)}


def excerpt(phase: str, ratio: float) -> ColumnTable:
    rows = MODULES.rows((MODULES.text("phase") == PHASES[phase][0]) & (MODULES["compress_ratio"] == ratio))
    return compressed.module_rows(rows, H200, phase, VLLM.kernels.get)


def test_attention_is_fitted_where_nothing_is_chosen() -> None:
    """Flash chooses 512 entries of 4 tokens, Pro 1,024."""
    for phase in PHASES:
        rows = excerpt(phase, 4.0)
        seen = rows["isl"] + rows["step"]
        flash = rows["_hidden"] == 4096.0
        assert seen[flash].max() <= 2048.0
        assert seen[~flash].max() <= 4096.0
    assert excerpt("decode", 128.0)["step"].max() == 8192.0


def test_what_is_known_is_less_than_the_module_takes() -> None:
    """All but small ones on one GPU, where streams of their own run products side by side."""
    for phase in PHASES:
        for ratio in (4.0, 128.0):
            rows = excerpt(phase, ratio)
            share = rows["_known_s"] / rows["latency_s"]
            assert 0.3 < np.median(share) < 0.95
            assert share.max() < 1.2


@pytest.mark.parametrize("ratio", [4.0, 128.0], ids=["indexed", "pooled"])
@pytest.mark.parametrize("phase", PHASES)
def test_fits_of_an_excerpt_meet_shapes_they_have_not_seen(phase: str, ratio: float) -> None:
    """Models and splits left out in turn: whole modules within 8 % at the median, 20 % at the 90th percentile."""
    rows = excerpt(phase, ratio)
    result = fit(PHASES[phase][1](rows, H200))
    assert result.median_error < 0.08
    assert result.p90_error < 0.2


@pytest.mark.parametrize("phase", PHASES)
def test_coefficients_that_made_rows_are_found(phase: str) -> None:
    rows = excerpt(phase, 128.0)
    true = {"start_s": 1e-5, "compute_efficiency": 0.5, "memory_efficiency": 0.6, "row_keys": 150.0}
    made = rows.with_columns(latency_s=PHASES[phase][1](rows, H200).predict(true, PHASES[phase][1](rows, H200).rows))
    found = fit(PHASES[phase][1](made, H200))
    assert predicted_s(PHASES[phase][1](made, H200), found) == pytest.approx(made["latency_s"], rel=0.01)


def test_the_quickest_kernel_mixes_residual_streams() -> None:
    columns = {
        "backend": ["vllm"] * 3,
        "op_name": ["pre", "pre", "post"],
        "kernel": ["a", "b", "c"],
        "num_tokens": [64.0] * 3,
        "hidden_size": [4096.0] * 3,
        "latency_s": [4e-5, 2e-5, 1e-5],
    }
    rows = compressed.stream_mix_rows(ColumnTable({name: np.array(column) for name, column in columns.items()}), "pre")
    assert rows["latency_s"].tolist() == [1e-5]  # of one of the two blocks of a row
    assert rows["bytes"].tolist() == [64 * 5 * 4096 * 2]


@pytest.mark.skipif(not TABLES.is_dir(), reason="the measured tables are not beside the checkout")
def test_scores_alike_are_no_measure_of_the_selection_of_decodes() -> None:
    """82 us and 3 us of the newer kernel over the same 16,384 tokens: modules ran on the former."""
    table = read_table(TABLES, "dsv4_csa_topk_calib")
    assert table is not None
    at = (table["step"] == 16_384.0) & (table["isl"] == 1.0) & (table["batch_size"] == 1.0)
    times = dict(zip(table.text("score_mode")[at].tolist(), table["latency_s"][at].tolist(), strict=True))
    assert times["v2_flat"] > 20.0 * times["v2_top_last"]
    chosen = compressed.selection_rows(table, "decode")
    assert set(chosen.text("score_mode").tolist()) == {"v2_top_last"}


@pytest.mark.skipif(not TABLES.is_dir(), reason="the measured tables are not beside the checkout")
@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_times_of_whole_modules_on_shapes_left_out(backend: str) -> None:
    """Of four kinds, on models and splits that were left out: 3 to 6 % at the median, at most 15 % at the 90th."""
    engine = next(c for c in load_hardware().calibrations if c.sku == "h200-sxm" and c.engine == backend)
    for phase, (name, make) in PHASES.items():
        for kind in ("csa", "hca"):
            table = read_table(TABLES, f"dsv4_{kind}_{name}_module")
            assert table is not None
            own = table.rows(table.text("backend") == backend)
            result = fit(make(compressed.module_rows(own, H200, phase, engine.kernels.get), H200))
            assert result.median_error < 0.06, (phase, kind)
            assert result.p90_error < 0.15, (phase, kind)
