"""KV caches travel over what the provider has between its instances, not over the cards of the reference server."""

from __future__ import annotations

from typing import Any

import pytest

from planner.fleet import plan
from planner.scenario import load_scenario

SCENARIO: dict[str, Any] = {
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 1000, "output_tokens": 200}},
    "slo": [{"metric": "tpot", "percentile": 0.95, "threshold_s": 0.05}],
    "confidence": 0.5,
}


@pytest.mark.parametrize(
    ("sku", "provider", "mode", "says"),
    [
        ("b200-sxm", "Lambda", "disaggregated", "Ethernet (TCP)"),  # InfiniBand in 1-Click clusters only
        ("b200-sxm", "Lambda", "mixed", None),  # nothing is handed over
        ("b200-sxm", "CoreWeave", "disaggregated", None),  # InfiniBand NDR 8x400, as in the reference server
        ("h100-sxm", "GCP", "disaggregated", "GPUDirect-TCPX"),  # 1.6 or 2.4 of 3.2 Tb/s
    ],
)
def test_a_slower_network_is_named(sku: str, provider: str, mode: str, says: str | None) -> None:
    search = {"skus": [sku], "modes": [mode], "tp": [1], "max_batched_tokens": [2048], "max_running_requests": [128]}
    content = {**SCENARIO, "search": search, "prices": {"as_of": "2026-11-21", "provider": provider}}
    found = plan(load_scenario(content), simulate=False, alternatives=False)
    assert found.feasible
    said = [line for line in found.warnings if "the network between instances" in line]
    assert all(provider in line and "search.modes=[mixed]" in line for line in said)
    assert bool(said) == (says is not None)
    assert says is None or any(says in line for line in said)
