"""Which fleets are simulated, and what a miss is held against: a cheaper one that holds is not passed over."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.core import Metric
from planner.fleet import Plan, plan
from planner.fleet import search as module
from planner.fleet.pairing import UsedPool
from planner.fleet.types import PlannedDeployment
from planner.scenario import load_scenario
from planner.serving import PoolLimit, Role
from tests.builders import SMALL_CHAT

SMALL_SEARCH = ("search.skus=[b200-sxm]", "search.tp=[1]", "confidence=0.5")
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
        {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.055},
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


@cache
def pair() -> Plan:
    """A pair of pools, simulated."""
    changes = [*SMALL_CHAT, *SMALL_SEARCH, "search.modes=[disaggregated]"]
    return plan(load_scenario("chat-llama-70b", changes), alternatives=False)


def test_pairs_are_found_where_mixed_fleets_that_cost_as_much_miss() -> None:
    """Many a mixed fleet on four servers carries 8/s by theory and just misses in simulation; four prefill and
    four decode replicas of half a server have room, and one of each is on every server: no fifth server is needed."""
    found = plan(load_scenario(QWEN), alternatives=False)
    assert sum(found.gpus.values()) == 32
    assert {pool.role for one in found.deployments for pool in one.deployment.pools} == {Role.PREFILL, Role.DECODE}
    assert all(one.simulated.meets(one.slo) for one in found.deployments)


def limited_by(planned: PlannedDeployment, limit: PoolLimit) -> PlannedDeployment:
    """The same, simulated, with this limit of its decode pool."""
    pools = tuple(replace(pool, limit=limit) if pool.role is Role.DECODE else pool for pool in planned.simulated.pools)
    return replace(planned, simulated=replace(planned.simulated, pools=pools))


@pytest.mark.parametrize(
    ("missed", "limit", "blamed"),
    [
        ({Metric.TTFT}, PoolLimit.MEMORY, {Role.PREFILL}),
        ({Metric.TTFT}, PoolLimit.RUNNING_REQUESTS, {Role.DECODE}),
        ({Metric.TTFT}, PoolLimit.KV_CAPACITY, {Role.DECODE}),
        ({Metric.TTFT, Metric.TPOT}, PoolLimit.MEMORY, {Role.PREFILL, Role.DECODE}),
    ],
)
def test_late_first_tokens_are_held_against_the_pool_that_requests_waited_for(
    missed: set[Metric], limit: PoolLimit, blamed: set[Role]
) -> None:
    """Both pools would lower a prefill pool for good that does well beside another decode pool."""
    (planned,) = pair().deployments
    pools = [
        UsedPool("chat", option, pool.replicas, pool.replicas, {"all": 1.0}, 0.9, ())
        for option, pool in zip(planned.option.pools, planned.deployment.pools, strict=True)
    ]
    to_blame = module._to_blame(pools, limited_by(planned, limit), frozenset(missed))
    assert {pool.option.role for pool in to_blame} == blamed
