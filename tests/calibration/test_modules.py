"""Attention that was measured as whole modules: what is known of a row, coefficients that made rows, measured rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from calibration import block_sparse, chosen_keys, modules
from calibration.fit import Problem, fit
from calibration.tables import ColumnTable, read_csv
from hardware_db import Coefficient, KernelFit, load_hardware
from planner.roofline import WEIGHT_FORMATS, ElementwiseForm, GemmForm, GpuPeaks, elementwise_s, gemm_s
from tests.places import REFERENCE

HARDWARE = load_hardware()
H200 = HARDWARE.skus["h200-sxm"]
MEASURED = read_csv(REFERENCE / "attention_modules.csv")
"""Rows of vLLM 0.24 on H200, of the published tables that `calibration.aiconfigurator` names."""
FITS = next(one for one in HARDWARE.calibrations if one.sku == "h200-sxm" and one.engine == "vllm").kernels
KINDS: dict[str, tuple[str, Callable[..., ColumnTable], Callable[..., Problem]]] = {
    "block_prefill": ("msa_context_module", block_sparse.module_rows, block_sparse.prefill),
    "block_decode": ("msa_generation_module", block_sparse.module_rows, block_sparse.decode),
    "chosen_prefill": ("dsa_context_module", chosen_keys.module_rows, chosen_keys.prefill),
    "chosen_decode": ("dsa_generation_module", chosen_keys.module_rows, chosen_keys.decode),
}
TRUTHS = {
    "block_prefill": {
        "start_s": 1e-5,
        "compute_efficiency": 0.15,
        "memory_efficiency": 0.6,
        "index_efficiency": 0.3,
        "row_tokens": 80.0,
        "key_s": 1e-8,
        "order": 2.0,
    },
    "block_decode": {
        "start_s": 8e-6,
        "memory_efficiency": 0.9,
        "index_efficiency": 0.8,
        "block_s": 2e-6,
        "order": 0.8,
        "resident_gain": 1.2,
    },
    "chosen_prefill": {
        "start_s": 5e-5,
        "compute_efficiency": 0.4,
        "short_share": 0.4,
        "head_growth": 0.9,
        "index_start_s": 5e-5,
        "index_efficiency": 0.3,
        "select_s": 1e-9,
        "host_share": 1.0,
    },
    "chosen_decode": {
        "start_s": 3e-5,
        "compute_efficiency": 0.5,
        "short_share": 0.6,
        "order": 0.7,
        "index_start_s": 2e-5,
        "index_efficiency": 0.5,
    },
}


def rows_of(kind: str) -> ColumnTable:
    table, known, _ = KINDS[kind]
    return known(MEASURED.rows(MEASURED.text("table") == table), H200, FITS.get)


def made_fit(**values: float) -> KernelFit:
    parameters = {name: Coefficient(value=value, low=value, high=value) for name, value in values.items()}
    return KernelFit(parameters=parameters, samples=9, held_out=3, median_error=0.0, p90_error=0.0, spread=0.0)


GEMM = made_fit(
    start_s=4e-6,
    compute_efficiency=0.7,
    memory_efficiency=0.8,
    order=3.0,
    small_tile_loss=0.1,
    fill=3.0,
    split_s=1e-6,
    resident_gain=1.0,
)
PASSES = made_fit(start_s=2e-6, memory_efficiency=0.8)


def test_what_is_known_is_the_sum_of_products_and_passes():
    rows = ColumnTable({"batch_size": np.array([4.0]), "isl": np.array([512.0])})
    products = [modules.Product(2560.0, 6144.0, "bf16"), modules.Product(6144.0, 2048.0, np.array(["bf16"]))]
    fits = {"gemm/bf16": GEMM, "elementwise/bf16": PASSES}
    known = modules.with_known_s(rows, products, modules.Passes(3.0, 100.0), H200, fits.get)["_known_s"]
    peaks, form = GpuPeaks(989.4e12, 4.8e12, 132.0), GemmForm.of(GEMM)
    kind = WEIGHT_FORMATS["bf16"]
    by_hand = sum(gemm_s(2048.0, n, k, form, peaks, kind) for n, k in ((2560.0, 6144.0), (6144.0, 2048.0)))
    by_hand += 2 * 2e-6 + elementwise_s(2048.0 * 100.0, ElementwiseForm.of(PASSES), peaks)
    assert known == pytest.approx(by_hand, rel=1e-12)


def test_a_module_without_an_index_of_its_own_has_less_that_is_known():
    rows = MEASURED.rows(MEASURED.text("table") == "dsa_generation_module")
    sharing = rows.with_columns(kernel=np.full(len(rows), "sglang_dsa_skip_indexer_fa3"))
    own, shared = (chosen_keys.module_rows(some, H200, FITS.get) for some in (rows, sharing))
    assert (own["_known_s"] > shared["_known_s"]).all()
    assert set(own["_index_heads"]) == {64.0}
    assert set(shared["_index_heads"]) == {0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_predicts_what_made_its_rows(kind: str):
    make = KINDS[kind][2]
    problem = make(rows_of(kind), H200, "bf16")
    exact = problem.rows.with_columns(latency_s=problem.predict(TRUTHS[kind], problem.rows))
    assert fit(make(exact, H200, "bf16")).median_error < 0.03


@pytest.mark.parametrize(
    ("kind", "most"),
    [("block_prefill", 0.12), ("block_decode", 0.08), ("chosen_prefill", 0.25), ("chosen_decode", 0.10)],
)
def test_numbers_of_heads_left_out_are_met(kind: str, most: float):
    # three numbers of heads, each left out once: errors of whole modules, on far fewer rows than a calibration has
    found = fit(KINDS[kind][2](rows_of(kind), H200, "bf16"))
    assert found.median_error < most


@pytest.mark.parametrize("kind", ["block_decode", "chosen_decode"])
def test_measured_decodes_keep_to_the_roofline(kind: str):
    rows = rows_of(kind)
    keys = np.minimum(rows["step"], 2048.0)
    if kind == "block_decode":
        read = keys * 512.0 * np.maximum(rows["num_heads"] // 16.0, 1.0) + rows["step"] * 256.0
    else:
        read = keys * 1152.0 + rows["step"] * 132.0
    read = rows["batch_size"] * read
    cold = read > 2.0 * H200.l2_bytes.value  # what fits in the cache is read from there
    assert cold.any()
    assert (rows["latency_s"][cold] > read[cold] / H200.hbm_bandwidth_bytes_per_s.value).all()
