"""What a fleet costs with KV tiers behind its GPUs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planner.fleet import KV_TIERS, Plan, plan
from planner.scenario import load_scenario
from tests.builders import HARDWARE

DOCUMENTS: dict[str, Any] = {
    "name": "documents",
    "llm": "llama-3.1-8b",
    "workload": {
        "rate_per_s": 40.0,
        "lengths": {"input_tokens": 4300, "output_tokens": 20},
        "prefixes": {"tokens": 4000, "groups": 2000, "skew": 0.8},
    },
    "slo": [{"metric": "ttft", "percentile": 0.95, "threshold_s": 1.0}],
    "search": {
        "skus": ["h100-sxm"],
        "modes": ["mixed"],
        "tp": [1],
        "max_running_requests": [128],
        "max_batched_tokens": [8192],
        "prefix_cache": [True],
    },
}


def planned(*tier_sets: list[dict[str, Any]] | None) -> Plan:
    content = {**DOCUMENTS, "search": {**DOCUMENTS["search"], "kv_tiers": list(tier_sets)}}
    return plan(load_scenario(content), HARDWARE, simulate=False, alternatives=False)


def host(usd_per_gb_month: float) -> list[dict[str, Any]]:
    return [{"kind": "host", "size_bytes": 2e12, "usd_per_gb_month": usd_per_gb_month}]


def cost(fleet: Plan) -> float:
    return fleet.cost.usd_per_hour if fleet.cost else math.inf


def test_tiers_that_come_with_the_server_save_gpus() -> None:
    without, free = planned(None), planned(None, host(0.0))
    assert cost(free) < cost(without)
    assert all(one.purchase != KV_TIERS for one in free.bought)


def test_a_price_of_tiers_is_in_the_cost_and_a_line_of_what_is_bought() -> None:
    priced = planned(host(0.2))
    (line,) = (one for one in priced.bought if one.purchase == KV_TIERS)
    gpus = sum(pool.gpus for one in priced.deployments for pool in one.deployment.pools)
    assert line.usd_per_hour == pytest.approx(gpus * 2000 * 0.2 / 730 / 8)
    assert cost(priced) == pytest.approx(sum(one.usd_per_hour for one in priced.bought))
    assert cost(priced) == pytest.approx(sum(one.usd_per_hour for one in priced.deployments))


def test_tiers_that_cost_more_than_the_gpus_they_save_are_not_chosen() -> None:
    dear = planned(None, host(100.0))
    assert cost(dear) == pytest.approx(cost(planned(None)))
    assert not dear.deployments[0].deployment.pools[0].config.schedule.kv_tiers


def test_users_share_the_cost_of_a_month() -> None:
    """30,000 users of 50 requests a day: dollars a month over them."""
    lengths = {"input_tokens": 500, "output_tokens": 100}
    content = {
        "name": "users",
        "llm": "llama-3.1-8b",
        "workload": {"users": 30_000, "requests_per_user_per_day": 50, "drift": "none", "lengths": lengths},
        "slo": [{"metric": "ttft", "percentile": 0.9, "threshold_s": 1.0}],
        "search": {"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [1]},
        "prices": {"usd_per_gpu_hour": {"h100-sxm": 2.5}},
    }
    found, grown = (
        plan(load_scenario({**content, "growth": growth}), HARDWARE, simulate=False, alternatives=False)
        for growth in (1.0, 1.01)
    )
    assert found.cost is not None and grown.cost is not None
    assert found.cost.usd_per_user_month == pytest.approx(found.cost.usd_per_month / 30_000)
    assert grown.cost.usd_per_user_month == pytest.approx(grown.cost.usd_per_month / 30_300)
