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
    ("provider", "mode", "rate_per_s", "sells"),
    [
        ("Lambda", "disaggregated", 600.0, False),  # Ethernet of a rate that is not stated
        ("Lambda", "disaggregated", 30.0, True),  # one instance of two GPUs has both pools
        ("Lambda", "mixed", 600.0, True),  # nothing is handed over
        ("Verda", "disaggregated", 600.0, False),  # nothing is known of what lies between its instances
        ("CoreWeave", "disaggregated", 600.0, True),  # InfiniBand NDR 8x400, as in the reference server
    ],
)
def test_pairs_in_several_instances_are_bought_where_their_network_is_stated(
    provider: str, mode: str, rate_per_s: float, sells: bool
) -> None:
    found = planned(None, "b200-sxm", mode, rate_per_s, provider=provider, min_confidence="low")
    assert found.feasible == sells
    if not sells:
        assert provider in found.diagnosis[0] and "prices.rdma_gbps_per_gpu" in found.diagnosis[0]
        known = {"provider": provider, "min_confidence": "low", "rdma_gbps_per_gpu": {provider: 400.0}}
        assert planned(None, "b200-sxm", mode, rate_per_s, **known).feasible


def instance(provider: str, gpus: int, network: NetworkKind, bytes_per_s_per_gpu: float | None) -> Instance:
    return Instance(
        provider=provider,
        instance_type="one",
        sku="h100-sxm",
        gpus=gpus,
        gpus_at_once=gpus,
        network=network,
        network_bytes_per_s=None if bytes_per_s_per_gpu is None else gpus * bytes_per_s_per_gpu,
        network_name="Ethernet" if network is NetworkKind.TCP else "InfiniBand",
        source_url="https://example.org",
        retrieved_on=DAY,
    )


def market(bytes_per_s: float) -> HardwareDb:
    """P sells one H100 at a time with such a network between them; Q asks more for that of the reference server."""
    prices = [make_price(provider="P", usd_per_gpu_hour=2.0), make_price(provider="Q", usd_per_gpu_hour=2.6)]
    prices = [price.model_copy(update={"gpus_together": 1}) for price in prices]
    instances = (instance("P", 1, NetworkKind.TCP, bytes_per_s), instance("Q", 1, NetworkKind.RDMA, 5e10))
    return with_prices(load_hardware(), prices).model_copy(update={"instances": instances})


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


def test_where_links_cannot_carry_the_caches_no_pool_grows_for_them() -> None:
    """At 4 GB/s for 30 requests/s of 131 MB the links fall behind: elsewhere they do not, and that costs less."""
    assert place(planned(market(3e9), "h100-sxm", "disaggregated", rate_per_s=60.0)) == "Q"


def spanning(hardware: HardwareDb, **prices: Any) -> Plan:
    """Llama-3.1-405B in 16-bit weights, which take two servers of eight H100."""
    formats = {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"}
    search = {"skus": ["h100-sxm"], "tp": [8], "pp": [2], "max_running_requests": [64]}
    content = {
        "llm": "llama-3.1-405b",
        "precision": formats,
        "workload": {"rate_per_s": 0.5, "lengths": {"input_tokens": 1000, "output_tokens": 200}},
        "slo": [{"metric": "tpot", "percentile": 0.9, "threshold_s": 0.2}],
        "search": search,
        "prices": {"as_of": "2026-11-21", **prices},
    }
    return plan(load_scenario(content), hardware, simulate=False, alternatives=False)


def servers(network: NetworkKind, bytes_per_s_per_gpu: float | None) -> HardwareDb:
    """P sells servers of eight with such a network between them; Q asks more, and has the reference server's."""
    prices = [
        make_price(provider=name, usd_per_gpu_hour=usd, gpus_per_instance=8) for name, usd in (("P", 2.0), ("Q", 2.6))
    ]
    instances = (instance("P", 8, network, bytes_per_s_per_gpu), instance("Q", 8, NetworkKind.RDMA, 5e10))
    return with_prices(load_hardware(), prices).model_copy(update={"instances": instances})


@pytest.mark.parametrize(
    ("network", "bytes_per_s_per_gpu", "bought_at"),
    [
        (NetworkKind.RDMA, 5e10, "P"),
        (NetworkKind.RDMA, 2.5e10, "Q"),  # step times rest on a network twice as fast
        (NetworkKind.RDMA, None, "Q"),
        (NetworkKind.TCP, 5e10, "Q"),  # exchanges of a few microseconds do not go over TCP
        (NetworkKind.TCP, None, "Q"),
    ],
)
def test_a_replica_spans_servers_only_over_rdma_as_fast_as_it_is_timed_with(
    network: NetworkKind, bytes_per_s_per_gpu: float | None, bought_at: str
) -> None:
    found = spanning(servers(network, bytes_per_s_per_gpu))
    assert place(found) == bought_at
    said = [line for line in found.assumptions if "replicas over several servers were not looked for at P" in line]
    assert bool(said) == (bought_at == "Q")
    alone = spanning(servers(network, bytes_per_s_per_gpu), provider="P")
    assert alone.feasible == (bought_at == "P")
    if not alone.feasible:
        assert any("span servers" in line and "prices.rdma_gbps_per_gpu" in line for line in alone.diagnosis)
    assert place(spanning(servers(network, bytes_per_s_per_gpu), rdma_gbps_per_gpu={"P": 400.0})) == "P"


def test_servers_of_ones_own_have_the_network_of_the_reference_server() -> None:
    found = spanning(servers(NetworkKind.TCP, None), usd_per_gpu_hour={"h100-sxm": 1.0})
    assert found.feasible and found.cost is not None and found.cost.usd_per_hour == pytest.approx(16.0)
