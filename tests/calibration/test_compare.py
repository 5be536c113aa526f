"""Expected times against tables. Truth: a table made of the expected times themselves, slower by a known factor."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibration.__main__ import app
from calibration.cases import QUICK, all_cases
from calibration.compare import reviews
from calibration.expected import fit_key, fitted_s
from calibration.records import KernelCase, MeasurementOutcome, Record, open_folder
from hardware_db import Calibration, load_hardware, select_calibration
from planner.core import InputError

DB = load_hardware()
B200 = DB.skus["b200-sxm"]
SLOWER = 1.25


def packaged() -> Calibration:
    found = select_calibration(DB, "b200-sxm", "vllm")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every third case of a quick run, as a run would keep it, of kernels that take `SLOWER` times the expected."""
    raw = open_folder(tmp_path_factory.mktemp("raw"), {}, False)
    for listed in all_cases(QUICK, ["bf16", "fp8", "nvfp4"], 1, cuda=True).values():
        for case in listed[::3]:
            fit = packaged().kernels.get(fit_key(case))
            if fit is not None and case.operator != "copy":
                raw.append(Record(case, MeasurementOutcome.MEASURED, SLOWER * fitted_s(case, fit, B200), "planted"))
    raw.write_tables("torch", "2.13")
    return raw.path


def test_every_kernel_of_a_run_is_held_against_its_own_fit(folder: Path) -> None:
    found = {one.key: one for one in reviews(folder, packaged(), B200)}
    needed = {"gemm/bf16", "gemm/fp8", "gemm/nvfp4", "attention_prefill/bf16", "attention_prefill/fp8"}
    needed |= {"attention_decode/bf16", "attention_decode/fp8", "latent_prefill/bf16", "latent_decode/bf16"}
    needed |= {"latent_decode/fp8", "elementwise/rope", "elementwise/norm", "elementwise/activation", "elementwise/add"}
    assert needed <= set(found)
    for one in found.values():
        assert (one.p10, one.median, one.p90) == pytest.approx((1 / SLOWER,) * 3, rel=1e-3)
        assert one.backend == "torch" and one.rows > 0


def test_what_stays_in_the_cache_and_other_engines_rows_do_not_count(tmp_path: Path) -> None:
    raw = open_folder(tmp_path, {}, False)
    fields = {"attn_dtype": "bf16", "kv_dtype": "bf16", "seq_len": 1, "num_heads": 128, "prefix_len": 1023}
    small, large = (KernelCase("generation_mla", {**fields, "batch": batch}) for batch in (1, 256))
    for case in (small, large):
        raw.append(Record(case, MeasurementOutcome.MEASURED, 1e-3, "planted"))
    raw.write_tables("torch", "2.13")
    assert [one.rows for one in reviews(tmp_path, packaged(), B200)] == [1]  # 1.2 MB stay in 126 MB, 302 MB do not
    raw.write_tables("sglang", "0.5")
    with pytest.raises(InputError, match=r"has no rows of kernels that vllm .* is fitted to"):
        reviews(tmp_path, packaged(), B200)


def test_the_command_prints_a_row_a_kernel(folder: Path) -> None:
    said = CliRunner().invoke(app, ["review", str(folder), "--sku", "b200-sxm"], catch_exceptions=False).output
    rows = {line.split()[0]: line.split() for line in said.splitlines()[1:]}
    assert rows["gemm/nvfp4"][-3:] == ["0.80", "0.80", "0.80"]
