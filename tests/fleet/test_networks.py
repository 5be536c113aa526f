"""KV caches travel over what the provider has between its instances, not over the cards of the reference server."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import HardwareDb, Instance, NetworkKind, load_hardware
from planner.fleet import Plan, plan
from planner.scenario import load_scenario
from planner.supply import with_prices
from tests.markets import DAY, make_price

SCENARIO: dict[str, Any] = {
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 30.0, "lengths": {"input_tokens": 1000, "output_tokens": 200}},
    "slo": [
        {"metric": "ttft", "percentile": 0.95, "threshold_s": 1.0},
        {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.05},
    ],
    "confidence": 0.5,
}


def planned(hardware: HardwareDb | None, sku: str, mode: str, rate_per_s: float = 30.0, **prices: Any) -> Plan:
    search = {"skus": [sku], "modes": [mode], "tp": [1], "max_batched_tokens": [2048], "max_running_requests": [128]}
    workload = {**SCENARIO["workload"], "rate_per_s": rate_per_s}
    content = {**SCENARIO, "workload": workload, "search": search, "prices": {"as_of": "2026-11-21", **prices}}
    return plan(load_scenario(content), hardware, simulate=False, alternatives=False)


@pytest.mark.parametrize(
    ("provider", "mode", "rate_per_s", "warns"),
    [
        ("Lambda", "disaggregated", 600.0, True),  # Ethernet of a rate that is not stated
        ("Lambda", "disaggregated", 30.0, False),  # one instance of two GPUs has both pools
        ("Lambda", "mixed", 600.0, False),  # nothing is handed over
        ("CoreWeave", "disaggregated", 600.0, False),  # InfiniBand NDR 8x400, as in the reference server
    ],
)
def test_plain_tcp_of_unknown_rate_is_named(provider: str, mode: str, rate_per_s: float, warns: bool) -> None:
    found = planned(None, "b200-sxm", mode, rate_per_s, provider=provider)
    assert found.feasible
    said = [line for line in found.warnings if "the network between instances" in line]
    assert bool(said) == warns
    assert all(provider in line and "search.modes=[mixed]" in line for line in said)
    assert not any("KV caches move at" in line for line in found.assumptions)


def market(bytes_per_s: float) -> HardwareDb:
    """P sells one H100 at a time with such a network between them; Q asks more and says nothing of its network."""
    prices = [make_price(provider="P", usd_per_gpu_hour=2.0), make_price(provider="Q", usd_per_gpu_hour=2.6)]
    slow = Instance(
        provider="P",
        instance_type="one",
        sku="h100-sxm",
        gpus=1,
        gpus_at_once=1,
        network=NetworkKind.TCP,
        network_bytes_per_s=bytes_per_s,
        network_name="Ethernet",
        source_url="https://example.org",
        retrieved_on=DAY,
    )
    return with_prices(load_hardware(), prices).model_copy(update={"instances": (slow,)})


def place(found: Plan) -> str:
    (name,) = {bought.price.provider for bought in found.bought if bought.price is not None}
    return name


def test_a_pair_is_not_bought_where_the_network_makes_it_miss() -> None:
    """1,000 tokens of Llama-3.1-8B are 131 MB: 1.3 s at 0.1 GB/s, of a TTFT of 1 s; 13 ms at 10 GB/s."""
    fast, slow = (planned(market(rate), "h100-sxm", "disaggregated") for rate in (1e10, 1e8))
    assert (place(fast), place(slow)) == ("P", "Q")
    assert place(planned(market(1e8), "h100-sxm", "mixed")) == "P"
    assert any("KV caches move at 10 GB/s" in line and "Ethernet" in line for line in fast.assumptions)
    moved = fast.deployments[0].deployment.kv_link_bytes_per_s / slow.deployments[0].deployment.kv_link_bytes_per_s
    assert moved == pytest.approx(1e10 / load_hardware().skus["h100-sxm"].node.nic_bytes_per_s_per_gpu.value)


def test_where_only_the_slow_network_is_on_offer_pairs_are_infeasible() -> None:
    none = planned(market(1e8), "h100-sxm", "disaggregated", provider="P")
    assert not none.feasible
    assert none.diagnosis[0].startswith("pairs of h100-sxm at P miss a target over the network between instances there")
