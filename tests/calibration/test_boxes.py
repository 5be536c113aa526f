"""Rows of collectives that describe a box, not a SKU, against made-up boxes whose share of the link is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from calibration.boxes import GroupRows, group_rows, reached_share
from hardware_db import load_hardware

SKUS = load_hardware().skus
FOLDERS = {"staged": "l40s", "peer": "rtx-pro-6000-blackwell-server", "switched": "h100-sxm"}


def write_box(folder: Path, shares: dict[str, float], link_bytes_per_s: float, gpus: int = 4) -> None:
    """A table of all-reduces by library that reach this share of the link, round a ring, at every size."""
    folder.mkdir(parents=True)
    lines = ["backend,backend_version,kernel,mode,op,num_gpus,dtype,bytes,latency_s"]
    for library, share in shares.items():
        for size in (2**20, 2**24, 2**28):
            took = 2.0 * (gpus - 1) / gpus * size / (share * link_bytes_per_s)
            lines.append(f"{library},1.0,ring,graph,all_reduce,{gpus},bf16,{size},{took:.9g}")
    (folder / "collectives.csv").write_text("\n".join(lines) + "\n")


def rows_of(root: Path, folder: str, gpus: int = 4) -> GroupRows:
    found = group_rows(root / folder, SKUS, FOLDERS[folder], gpus, FOLDERS)
    assert found is not None
    return found


def test_the_reached_share_is_that_of_a_ring(tmp_path: Path) -> None:
    write_box(tmp_path / "peer", {"vllm": 0.47}, 64e9)
    assert reached_share(rows_of(tmp_path, "peer")) == pytest.approx(0.47)


def test_a_box_that_sends_the_long_way_borrows_from_one_of_its_topology(tmp_path: Path) -> None:
    write_box(tmp_path / "staged", {"vllm": 0.1}, 32e9)
    write_box(tmp_path / "peer", {"vllm": 0.4}, 64e9)
    write_box(tmp_path / "switched", {"vllm": 0.9}, 450e9)  # another topology: neither judge nor lender
    found = rows_of(tmp_path, "staged")
    assert found.link_bytes_per_s == 64e9
    assert "10 % of the link, that of rtx-pro-6000-blackwell-server 40 %" in found.note
    assert found.spread == pytest.approx(math.log(4.0) / math.sqrt(2.0))  # sample deviation of two logarithms
    assert rows_of(tmp_path, "peer").note == ""


def test_a_slower_box_within_reason_keeps_its_rows(tmp_path: Path) -> None:
    write_box(tmp_path / "staged", {"vllm": 0.3}, 32e9)
    write_box(tmp_path / "peer", {"vllm": 0.5}, 64e9)
    found = rows_of(tmp_path, "staged")
    assert (found.link_bytes_per_s, found.note, found.spread) == (32e9, "", 0.0)


def test_without_another_box_there_is_nothing_to_judge_by(tmp_path: Path) -> None:
    write_box(tmp_path / "staged", {"vllm": 0.05}, 32e9)
    assert rows_of(tmp_path, "staged").note == ""
    assert group_rows(tmp_path / "staged", SKUS, "l40s", 8, FOLDERS) is None


def test_a_library_far_below_another_in_the_same_box_is_refused(tmp_path: Path) -> None:
    write_box(tmp_path / "switched", {"vllm": 0.2, "sglang": 0.6, "trtllm": 0.62}, 450e9)
    found = rows_of(tmp_path, "switched")
    assert set(found.rows.text("backend")) == {"sglang", "trtllm"}
    assert "vllm (20 % of the link)" in found.note


def test_the_shipped_pcie_fits_are_not_those_of_a_staged_box() -> None:
    calibrations = [one for one in load_hardware().calibrations if one.sku == "l40s"]
    assert calibrations
    for one in calibrations:
        for gpus in (4, 8):
            fit = one.kernels[f"all_reduce/{gpus}"]
            # boxes with peer access reach 0.38 to 0.74 of a PCIe link round a ring; the payload is 1 / (2 (n - 1) / n)
            assert fit.parameters["link_efficiency"].value * 2.0 * (gpus - 1) / gpus > 0.35
            assert "rtx-pro-6000-blackwell-server" in fit.note
            assert fit.spread > 0.5
            assert fit.measured_on == "rtx-pro-6000-blackwell-server"
