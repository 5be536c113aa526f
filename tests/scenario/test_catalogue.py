"""The lists show what the database and the presets hold."""

from __future__ import annotations

import json
from datetime import date

from hardware_db import load_hardware
from planner.core import Table
from planner.llm import list_llms
from planner.scenario import list_scenarios, load_scenario
from planner.scenario.catalogue import scenario_list, scenario_table, sku_list, sku_table
from planner.scenario.llm_catalogue import llm_list, llm_table


def _row(table: Table, name: str) -> dict[str, str]:
    (found,) = (row for row in table.rows if row[0] == name)
    return dict(zip(table.columns, found, strict=True))


def test_every_sku_is_listed_once_with_datasheet_figures() -> None:
    """H100 SXM datasheet: 80 GiB at 3.35 TB/s, 989 TFLOP/s dense BF16, NVLink 900 GB/s both ways over 8 GPUs."""
    table = sku_table()
    assert [row[0] for row in table.rows] == list(load_hardware().skus)
    h100 = _row(table, "h100-sxm")
    assert (h100["HBM GiB"], h100["HBM TB/s"], h100["bf16"], h100["link GB/s x GPUs"]) == (
        "80",
        "3.35",
        "989",
        "450 x 8",
    )
    assert date.fromisoformat(h100["read on"]) <= date.today()


def test_a_sku_without_a_price_says_so() -> None:
    unpriced = [name for name in load_hardware().skus if not any(p.sku == name for p in load_hardware().prices)]
    assert unpriced
    assert all(_row(sku_table(), name)["USD per hour"] == "-" for name in unpriced)


def test_every_model_is_listed_with_published_figures() -> None:
    """Llama 3.1 8B: 8.03 B parameters, 32 layers, 2 x 8 heads x 128 x 2 bytes x 32 layers = 128 KiB of KV per token."""
    table = llm_table()
    assert [row[0] for row in table.rows] == list(list_llms())
    llama = _row(table, "llama-3.1-8b")
    assert (llama["B"], llama["KV KiB + state MiB"], llama["weights GB"]) == ("8.03", "128", "bf16 16.1")
    mixtral = _row(table, "mixtral-8x7b-v0.1")  # 46.7 B of which 12.9 B active, Jiang et al. 2024
    assert (mixtral["B"], mixtral["act. B"]) == ("46.7", "12.9")


def test_every_scenario_is_listed_and_can_be_loaded_from_its_listing() -> None:
    table = scenario_table()
    assert [row[0] for row in table.rows] == list(list_scenarios())
    assert _row(table, "agents-qwen3-coder-30b")["demand"] == "400 sessions"
    assert _row(table, "chat-sessions-llama-70b")["GPUs"] == "H100 H200"
    for listed in scenario_list():
        request = load_scenario(listed)
        assert request.name == listed["name"]
        assert request.workload.arrivals.rate_per_s == load_scenario(listed["name"]).workload.arrivals.rate_per_s


def test_lists_are_json_and_keep_their_sources() -> None:
    for listed in (sku_list(), llm_list(), scenario_list()):
        assert json.loads(json.dumps(listed, allow_nan=False)) == listed
    assert all(sku["hbm_capacity_bytes"]["source"] for sku in sku_list())
    assert all(llm["source"] for llm in llm_list())
