"""Rows and headline of the pictures of accuracy, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.error_pictures import FEWEST_RUNS, error_rows, headline
from tests.studies.leave_one_out import runs_of
from tests.studies.rows import write_rows

PAIR = {
    "source_id": "one",
    "engine": "sglang",
    "model": "deepseek-ai/DeepSeek-R1",
    "sku": "gb200-nvl72",
    "class": "disaggregated",
    "documented": "1",
    "client_known": "1",
    "drafts": "0",
    "set_up": "8192/1024 1xTP8 4xTP1 DP8 EP8",
    "concurrency": "256",
    "measured_tpot_s": "0.02",
    "tpot_s": "0.03",
    "measured_ttft_s": "0.4",
    "ttft_s": "0.5",
    "tpot_kernel_sd": "0.1",
    "ttft_kernel_sd": "0.1",
    "prompt_share": "1",
    "stall_share": "0",
    "prompt_load": "0.5",
    "kv_load": "0.1",
    "weights": "fp8_block",
    "fitted_tpot_s": "0.03",
    "fitted_ttft_s": "0.5",
    "reason": "",
}


def test_a_run_is_drawn_at_the_users_of_a_server_that_writes(tmp_path: Path) -> None:
    write_rows(tmp_path / "left_out-sglang.csv", [PAIR, {**PAIR, "tpot_s": "", "ttft_s": "", "reason": "no room"}])
    tpot, ttft = error_rows(tmp_path)
    assert [row["metric"] for row in (tpot, ttft)] == ["TPOT", "TTFT"]
    assert all((row["batch"], row["prompt_tokens"]) == (64.0, 8192) for row in (tpot, ttft))
    assert (tpot["error_percent"], ttft["error_percent"]) == pytest.approx((50.0, 25.0))


def test_the_headline_begins_with_the_class_that_is_furthest_off_and_names_its_worst_group(tmp_path: Path) -> None:
    good = {**PAIR, "tpot_s": "0.0202", "sku": "h200-sxm"}
    dense = {**PAIR, "class": "dense, mixed", "model": "meta-llama/Llama-3.1-8B-Instruct", "sku": "h100-sxm"}
    sparse = {**dense, "class": "MoE and MLA, mixed", "model": "Qwen/Qwen3-235B-A22B", "tpot_s": "0.022"}
    rows = [*[PAIR] * FEWEST_RUNS, *[good] * 3 * FEWEST_RUNS, *[dense] * FEWEST_RUNS, *[sparse] * FEWEST_RUNS]
    write_rows(tmp_path / "left_out-sglang.csv", rows)
    text = headline(runs_of(tmp_path))
    assert "**Against 60 measured serving runs**" in text
    order = [text.index(name) for name in ("dense (", "with experts (", "disaggregated (")]
    assert order == sorted(order)
    assert "50 % and 25 % dense" in text
    assert "worst: sglang, DeepSeek-R1, gb200-nvl72: 50 %" in text
