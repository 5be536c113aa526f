"""What a run would measure, and the gate before a fit is written. Truth: datasheets, closed forms, planted errors."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from calibration import device as devices
from calibration.bench import fp8_of
from calibration.cases import QUICK, all_cases
from calibration.device import Device, gpu_state
from calibration.expected import expected_case, impossible_fits, least_s, require_possible
from calibration.measure import Effort
from calibration.records import KernelCase, Value
from calibration.run import _show_changes, show_expected
from calibration.session import formats_of
from hardware_db import Calibration, load_hardware, select_calibration
from planner.core import InputError

DB = load_hardware()
H100 = DB.skus["h100-sxm"]
EFFORT = Effort(warmups=2, replays=5, replay_s=3e-4, total_s=0.15, least_s=2e-3)
LARGE = KernelCase("gemm", {"dtype": "bf16", "m": 8192, "n": 8192, "k": 8192})


def latent(operator: str, kv: str, sizes: tuple[int, int, int]) -> KernelCase:
    names = ("batch", "seq_len", "prefix_len")
    return KernelCase(
        operator, {"attn_dtype": kv, "kv_dtype": kv, "num_heads": 128, **dict(zip(names, sizes, strict=True))}
    )


def packaged() -> Calibration:
    found = select_calibration(DB, "h100-sxm", "vllm")
    assert found is not None
    return found


def cases() -> list[KernelCase]:
    listed = all_cases(QUICK, formats_of(H100), 1, True)
    return [case for of_kind in listed.values() for case in of_kind]


def test_a_large_product_takes_its_flops_over_an_achieved_share_of_the_peak() -> None:
    """2 * 8192^3 FLOP at 989 TFLOP/s are 1.11 ms; measured products reach half of a peak or more."""
    one = expected_case(LARGE, packaged(), H100, EFFORT)
    assert least_s(LARGE, H100) == pytest.approx(2.0 * 8192.0**3 / 989.4e12, rel=1e-3)
    assert one.fitted and least_s(LARGE, H100) <= one.call_s < 2.0 * least_s(LARGE, H100)


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        # 32 sequences x 8192 tokens x 576 values of one byte at 3.35 TB/s
        (latent("generation_mla", "fp8", (32, 1, 8191)), 32 * 8191 * 576 / 3.35e12),
        # 2 x 128 heads x (192 + 128) FLOP a pair, 4096 x 4097 / 2 pairs, at 989 TFLOP/s
        (latent("context_mla", "bf16", (1, 4096, 0)), 2 * 128 * 320 * 4096 * 4097 / 2 / 989.4e12),
    ],
)
def test_latent_attention_takes_what_its_cache_or_its_pairs_cost_at_least(case: KernelCase, seconds: float) -> None:
    one = expected_case(case, packaged(), H100, EFFORT)
    assert least_s(case, H100) == pytest.approx(seconds, rel=1e-2)
    assert one.fitted and one.case is case and least_s(case, H100) <= one.call_s < 5.0 * least_s(case, H100)


def test_an_8_bit_cache_halves_what_a_decode_must_read() -> None:
    fields: dict[str, Value] = {"attn_dtype": "bf16", "batch": 32, "seq_len": 1, "prefix_len": 8191, "window": 0}
    fields |= {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    wide, narrow = (KernelCase("generation_attention", fields | {"kv_dtype": kv}) for kv in ("bf16", "fp8"))
    assert least_s(narrow, H100) == pytest.approx(least_s(wide, H100) / 2)
    assert expected_case(narrow, packaged(), H100, EFFORT).fitted


def test_packaged_fits_pass_the_gate() -> None:
    """Every shape of a quick run, every packaged calibration of a SKU that has the record it needs."""
    asked = cases()
    for sku in ("h100-sxm", "b200-sxm", "l40s"):
        found = select_calibration(DB, sku, "vllm")
        assert found is not None and impossible_fits(found, asked, DB.skus[sku]) == []


def test_the_gate_names_kernel_shape_and_what_the_gpu_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that takes a tenth of what the datasheet allows."""
    monkeypatch.setattr("calibration.expected.fitted_s", lambda case, fit, sku: 0.1 * least_s(case, sku))
    with pytest.raises(InputError, match=r"gemm/bf16: .* s for gemm dtype=bf16 k=8192 .* where h100-sxm needs"):
        require_possible(packaged(), [LARGE], H100)


def test_a_dry_run_prints_every_shape_and_the_minutes_without_a_gpu() -> None:
    console = Console(file=io.StringIO(), width=200)
    total_s = show_expected("h100-sxm", quick=True, budget_s=None, console=console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f"{case.key}: " in said for case in cases())
    assert f"{len(cases())} shapes, {total_s / 60.0:.1f} minutes" in said
    assert 30.0 < total_s < 600.0  # three minutes by its name
    with pytest.raises(InputError, match="is not in the hardware database"):
        show_expected("", quick=True, budget_s=None, console=console)


def test_a_report_ends_with_what_changed_against_the_packaged_fit() -> None:
    """Held against itself nothing changed: every ratio is 1. A GPU without a packaged fit says so."""
    console = Console(file=io.StringIO(), width=200)
    _show_changes(packaged(), console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [line for line in said.splitlines() if "gemm/bf16" in line]
    assert len(rows) == 1 and rows[0].count("1.000") == 3
    for key in ("latent_prefill/bf16", "latent_decode/fp8", "attention_decode/fp8", "elementwise/rope"):
        (row,) = [line for line in said.splitlines() if key in line]
        assert row.count("1.000") == 3
    _show_changes(packaged().model_copy(update={"sku": "gtx-480"}), console)
    assert "no packaged fit of gtx-480" in console.file.getvalue()  # type: ignore[attr-defined]


# --- AMD ------------------------------------------------------------------------------------------------------------


def _torch(hip: str | None, name: str) -> Any:
    return SimpleNamespace(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(gcnArchName=name)),
        float8_e4m3fn="ocp",
        float8_e4m3fnuz="fnuz",
    )


@pytest.mark.parametrize(
    ("hip", "name", "found"),
    [("6.4", "gfx942:sramecc+:xnack-", ("fnuz", 240.0)), ("7.0", "gfx950", ("ocp", 448.0)), (None, "", ("ocp", 448.0))],
)
def test_mi300_multiplies_the_fp8_format_of_its_own(hip: str | None, name: str, found: tuple[str, float]) -> None:
    assert fp8_of(_torch(hip, name)) == found


def test_an_amd_gpu_is_recognised_and_its_state_read_by_its_own_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "rocm-smi"
    program.write_text('#!/bin/sh\necho \'{"card0": {"Temperature (Sensor junction) (C)": "41.0"}}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gib = int(191.98 * 2**30)
    amd = Device("cuda", "AMD Instinct MI300X", 304, gib, 4_194_304, 8, "", {"torch": "2.10", "hip": "6.4"})
    assert devices.match_sku(amd.name, amd.sm_count, amd.memory_bytes, DB.skus) == "mi300x"
    assert amd.is_amd and "hip 6.4" in amd.stack
    assert gpu_state(amd) == {"Temperature (Sensor junction) (C)": "41.0"}
