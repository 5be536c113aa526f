"""GPUs that are paid for serve, as far as the limits allow; what they serve costs the same and waits less."""

from __future__ import annotations

from typing import Any

import pytest

from hardware_db import load_hardware
from planner.core import Metric
from planner.fleet import Plan, plan
from planner.report import headline
from planner.scenario import load_scenario
from planner.supply import with_prices
from tests.fleet.test_sites import SCENARIO
from tests.markets import make_price

BY_EIGHT = with_prices(load_hardware(), [make_price(provider="P", usd_per_gpu_hour=2.5, gpus_per_instance=8)])


def planned(*changes: str, granularity: str = "instance", **more: Any) -> Plan:
    prices = {"as_of": "2026-11-21", "granularity": granularity}
    request = load_scenario({**SCENARIO, "prices": prices, **more}, ["search.skus=[h100-sxm]", *changes])
    return plan(request, BY_EIGHT, simulate=False, alternatives=False)


def replicas(found: Plan) -> list[int]:
    return [pool.replicas for planned in found.deployments for pool in planned.deployment.pools]


def latency(found: Plan, metric: Metric) -> float:
    return max(check.predicted_s for check in found.targets if check.target.metric is metric)


def test_a_server_of_eight_runs_eight_replicas_that_cost_what_one_does() -> None:
    whole, alone = planned("search.modes=[mixed]"), planned("search.modes=[mixed]", granularity="gpu")
    assert (replicas(alone), replicas(whole)) == ([1], [8])
    assert whole.cost is not None and whole.cost.usd_per_hour == pytest.approx(8 * 2.5)
    assert latency(whole, Metric.TPOT) < latency(alone, Metric.TPOT)


def test_pairs_of_pools_fill_a_server_too() -> None:
    whole, alone = planned("search.modes=[disaggregated]"), planned("search.modes=[disaggregated]", granularity="gpu")
    assert sum(replicas(whole)) == 8 > sum(replicas(alone))
    assert all(more >= fewer for more, fewer in zip(replicas(whole), replicas(alone), strict=True))
    assert latency(whole, Metric.TTFT) < latency(alone, Metric.TTFT)


def test_idle_gpus_go_to_the_busiest_pool_one_by_one() -> None:
    """Six of sixteen H100 idle beside five prefill and four decode replicas: neither pool gets them all."""
    known = {"prices": {"as_of": "2026-11-21", "rdma_gbps_per_gpu": {"P": 400.0}}}
    whole, alone = (
        load_scenario({**SCENARIO, **known}, ["search.skus=[h100-sxm]", "search.modes=[disaggregated]", *changes])
        for changes in (["workload.rate_per_s=200"], ["workload.rate_per_s=200", "prices.granularity=gpu"])
    )
    more, fewer = (replicas(plan(one, BY_EIGHT, simulate=False, alternatives=False)) for one in (whole, alone))
    assert sum(more) == 16
    growth = [many / few for many, few in zip(more, fewer, strict=True)]
    assert min(growth) > 1.5


def test_limits_hold_of_replicas_that_cost_nothing() -> None:
    """An H100 takes 700 W and more: 3 kW are enough for four at most, and the rest of the server idles."""
    (count,) = replicas(planned("search.modes=[mixed]", "limits.power_kw=3"))
    assert 1 < count <= 4
    text = headline(planned("search.modes=[mixed]", "limits.power_kw=3"))
    assert f"1 of 1 h100-sxm server partly used ({8 - count} of 8 GPUs idle)" in text


def test_what_idles_at_night_is_off() -> None:
    """A plan of several periods says what runs when: nothing is added to it."""
    day = "{factors: [1.0, 0.1], period_hours: 12}"
    found = planned("search.modes=[mixed]", f"profile={day}")
    assert [max(period.replicas.values()) for period in found.schedule] == [1, 1]
