"""Rows and headline of the pictures of accuracy, by hand."""

from __future__ import annotations

import pytest

from tests.studies.error_pictures import FEWEST_RUNS, error_rows, headline

PAIR = {
    "source_id": "one",
    "engine": "sglang",
    "model": "deepseek-ai/DeepSeek-R1",
    "sku": "gb200-nvl72",
    "class": "disaggregated",
    "set_up": "8192/1024 1xTP8 4xTP1 DP8 EP8",
    "concurrency": "256",
    "measured_tpot_s": "0.02",
    "tpot_s": "0.03",
    "measured_ttft_s": "",
    "ttft_s": "0.5",
    "reason": "",
}


def test_a_run_is_drawn_at_the_users_of_a_server_that_writes() -> None:
    (row,) = error_rows([PAIR, {**PAIR, "tpot_s": "", "reason": "does not fit"}])
    assert (row["batch"], row["prompt_tokens"], row["metric"]) == (64.0, 8192, "TPOT")
    assert row["error_percent"] == pytest.approx(50.0)


def test_the_headline_begins_with_the_class_that_is_furthest_off_and_names_its_worst_group() -> None:
    dense = {**PAIR, "class": "dense, mixed", "measured_ttft_s": "0.4"}
    sparse = {**dense, "class": "MoE and MLA, mixed", "tpot_s": "0.022"}
    good = {**PAIR, "tpot_s": "0.02", "sku": "h200-sxm"}
    text = headline([*[PAIR] * FEWEST_RUNS, *[good] * 3 * FEWEST_RUNS, *[dense] * FEWEST_RUNS, *[sparse] * FEWEST_RUNS])
    assert "**Against 60 measured serving runs**" in text
    order = [text.index(name) for name in ("dense", "with experts", "disaggregated")]
    assert order == sorted(order)
    assert "50 % and 25 % dense" in text
    assert "worst: sglang, DeepSeek-R1, gb200-nvl72: 50 %" in text
