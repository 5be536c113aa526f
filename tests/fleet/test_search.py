"""Which fleets are simulated, and what a miss is held against: a cheaper one that holds is not passed over."""

from __future__ import annotations

from planner.fleet import plan
from planner.scenario import load_scenario
from planner.serving import Role
from tests.builders import SMALL_CHAT

QWEN = {
    "name": "pairs that survive a server",
    "llm": "qwen3-235b-a22b",
    "precision": {"weights": "fp8_block", "activations": "fp8", "kv_cache": "fp8"},
    "workload": {
        "rate_per_s": 8,
        "lengths": {"preset": "azure-2023-conv", "mean_input_tokens": 3000, "mean_output_tokens": 600},
        "scv": 1,
    },
    "slo": [
        {"metric": "ttft", "percentile": 0.99, "threshold_s": 2.2},
        {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.045},
    ],
    "search": {
        "skus": ["h100-sxm"],
        "modes": ["mixed", "disaggregated"],
        "tp": [4],
        "max_running_requests": [64, 128, 256],
        "max_batched_tokens": [2048, 4096, 8192],
    },
    "limits": {"survives_node_loss": True},
    "prices": {"as_of": "2026-11-26", "usd_per_gpu_hour": {"h100-sxm": 3.2}},
}


def test_pairs_are_found_where_mixed_fleets_that_cost_as_much_miss() -> None:
    """Many a mixed fleet on four servers carries 8/s by theory and just misses in simulation; five prefill and
    three decode replicas of half a server have room: no fifth server is needed."""
    found = plan(load_scenario(QWEN), alternatives=False)
    assert sum(found.gpus.values()) == 32
    assert {pool.role for one in found.deployments for pool in one.deployment.pools} == {Role.PREFILL, Role.DECODE}
    assert all(one.simulated.meets(one.slo) for one in found.deployments)


def test_of_fleets_of_one_price_the_one_that_holds_with_the_greatest_probability_is_the_plan() -> None:
    """Against each split alone: three replicas of four GPUs hold more often than six of two."""
    setting = (*SMALL_CHAT, "confidence=0.9", "workload.rate_per_s=18", "simulation.requests=6000")
    alone = [
        plan(load_scenario("chat-llama-70b", [*setting, f"search.tp=[{tp}]"]), alternatives=False) for tp in (2, 4)
    ]
    found = plan(load_scenario("chat-llama-70b", [*setting, "search.tp=[2,4]"]), alternatives=False)
    costs = [one.cost.usd_per_hour for one in (found, *alone) if one.cost is not None]
    odds = [one.confidence.holds for one in (found, *alone) if one.confidence is not None]
    assert costs[1] == costs[2] == costs[0]
    assert abs(odds[1] - odds[2]) > 0.02 and odds[0] == max(odds[1:])
