"""Fewer replicas that hold, against trying every size; idle GPUs that are paid for serve, within the limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hardware_db import load_hardware
from planner.core import Metric
from planner.fleet import Plan, PlannedDeployment, plan
from planner.fleet.pairing import UsedPool
from planner.fleet.pool_sizes import exchanges, fewest_that_hold, may_hold, resized
from planner.fleet.verification import ScopedSlo, scoped_slos, verify_deployment
from planner.llm import Precision, load_llm
from planner.report import headline
from planner.scenario import load_scenario
from planner.search import DeploymentOption, Mode, PoolOption
from planner.serving import Role
from planner.supply import Supply, with_prices
from planner.traffic import DemandSlice, Service
from planner.workload import LatencyTarget, Slo
from tests.builders import chat, replica
from tests.fleet.test_sites import SCENARIO
from tests.markets import make_price

MEMBER = PoolOption(Role.MIXED, replica())
OPTION = DeploymentOption(Mode.MIXED, (MEMBER,))


def pool(replicas: int, rate_per_s: float = 10.0, capacity_share: float = 0.1, service: str = "chat") -> UsedPool:
    """A pool that theory says is far from full."""
    return UsedPool(service, MEMBER, replicas, replicas, {service: rate_per_s}, capacity_share, ("column",))


def fleet(*pools: UsedPool) -> list[tuple[DeploymentOption, tuple[UsedPool, ...]]]:
    """Mixed pools, each a deployment."""
    return [(OPTION, (each,)) for each in pools]


def asked_of(least: int, more: int, verdict: Callable[[int], bool | None]) -> list[int]:
    """The numbers that were asked about, in order."""
    asked: list[int] = []

    def holds(number: int) -> bool | None:
        asked.append(number)
        return verdict(number)

    fewest_that_hold(least, more, holds)
    return asked


def test_the_fewest_replicas_that_hold_are_those_of_trying_all() -> None:
    for replicas in range(1, 14):
        for needed in range(1, replicas + 1):
            asked = asked_of(0, replicas, lambda number, needed=needed: number >= needed)  # type: ignore[misc]
            assert min(number for number in asked if number >= needed) == needed
            assert len(asked) == len(set(asked)) <= 1 + math.ceil(math.log2(replicas + 1))


def test_what_is_not_to_be_had_is_passed_over_and_nothing_is_asked_below_a_miss() -> None:
    assert asked_of(0, 9, lambda number: None if number > 6 else False) == [9, 8, 7, 6]


def test_deployments_of_one_slice_share_its_traffic_and_lose_none() -> None:
    """Two and four replicas at 5 and 10 per second; five hold 15, in proportion to what is left: 3 and 12."""
    ((less,), (rest,)) = resized(fleet(pool(2, 5.0), pool(4, 10.0)), {0: -1})
    assert (less.surviving, rest.surviving) == (1, 4)
    assert (less.rate_per_s, rest.rate_per_s) == pytest.approx((3.0, 12.0))


def test_a_deployment_without_replicas_leaves_its_traffic_to_the_others() -> None:
    (none, (rest,)) = resized(fleet(pool(1, 5.0), pool(3, 10.0)), {0: -1})
    assert none == () and rest.rate_per_s == pytest.approx(15.0)


def test_other_services_keep_what_they_have() -> None:
    ((chat_pool,), (code,)) = resized(fleet(pool(2, 5.0, service="chat"), pool(2, 5.0, service="code")), {0: -1})
    assert (chat_pool.surviving, chat_pool.rate_per_s, code.surviving, code.rate_per_s) == (1, 5.0, 2, 5.0)


def test_pools_of_a_pair_grow_for_money_or_for_a_replica_of_the_other() -> None:
    """At 2 USD a GPU of one each, for 5 USD more: two of either, or three for one of the other, which keeps one."""
    pair = (DeploymentOption(Mode.DISAGGREGATED, (MEMBER, MEMBER)), (pool(3), pool(1)))
    supply = cast(Supply, SimpleNamespace(cheapest={MEMBER.config.sku.id: 2.0}))
    assert list(exchanges([pair], 5.0, supply)) == [(0, {}, 2), (1, {}, 2), (1, {0: -1}, 3)]


SLO = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.5),))


def real_fleet(
    rate_per_s: float, replicas: int, capacity_share: float
) -> tuple[UsedPool, PlannedDeployment, ScopedSlo]:
    """A pool with its deployment by theory, and its targets."""
    workload = chat(rate_per_s)
    service = Service(name="chat", llm=load_llm("llama-3.1-8b"), precision=Precision(), workload=workload, slo=SLO)
    cut = DemandSlice("chat", service, workload, SLO, (rate_per_s,))
    used = pool(replicas, rate_per_s, capacity_share)
    return used, verify_deployment(OPTION, [used], {"chat": cut}, 1, None), scoped_slos([cut])[0]


@pytest.mark.parametrize(("capacity_share", "asked"), [(0.4, True), (0.7, False)])
def test_simulation_is_not_asked_where_theory_is_far_from_it(capacity_share: float, asked: bool) -> None:
    """One of two replicas: twice the load of each, at most 1.25 of what it could carry by theory."""
    used, known, scoped = real_fleet(4.0, 2, capacity_share)
    ((fewer,),) = resized(fleet(used), {0: -1})
    assert may_hold([fewer], [used], known, [scoped]) is asked


def test_what_falls_behind_by_theory_is_not_asked() -> None:
    """Two replicas at more than half of what they carry: one would be overloaded, however careful theory is."""
    used, known, scoped = real_fleet(4.0, 2, 0.1)
    busy = replace(known.predicted.pools[0], utilisation=0.6)
    known = replace(known, predicted=replace(known.predicted, pools=(busy,)))
    ((fewer,),) = resized(fleet(used), {0: -1})
    assert not may_hold([fewer], [used], known, [scoped])


BY_EIGHT = with_prices(load_hardware(), [make_price(provider="P", usd_per_gpu_hour=2.5, gpus_per_instance=8)])


def by_theory(*changes: str, granularity: str = "instance", **more: Any) -> Plan:
    prices = {"as_of": "2026-11-21", "granularity": granularity}
    request = load_scenario({**SCENARIO, "prices": prices, **more}, ["search.skus=[h100-sxm]", *changes])
    return plan(request, BY_EIGHT, simulate=False, alternatives=False)


def sizes(found: Plan) -> list[int]:
    return [pool.replicas for planned in found.deployments for pool in planned.deployment.pools]


def latency(found: Plan, metric: Metric) -> float:
    return max(check.predicted_s for check in found.targets if check.target.metric is metric)


def test_a_server_of_eight_runs_eight_replicas_that_cost_what_one_does() -> None:
    whole, alone = by_theory("search.modes=[mixed]"), by_theory("search.modes=[mixed]", granularity="gpu")
    assert (sizes(alone), sizes(whole)) == ([1], [8])
    assert whole.cost is not None and whole.cost.usd_per_hour == pytest.approx(8 * 2.5)
    assert latency(whole, Metric.TPOT) < latency(alone, Metric.TPOT)


def test_idle_gpus_go_to_the_busiest_pool_one_by_one() -> None:
    """Six of sixteen H100 idle beside six prefill and four decode replicas: neither pool gets them all."""
    known = {"precision": "narrower", "prices": {"as_of": "2026-11-21", "rdma_gbps_per_gpu": {"P": 400.0}}}
    whole, alone = (
        load_scenario({**SCENARIO, **known}, ["search.skus=[h100-sxm]", "search.modes=[disaggregated]", *changes])
        for changes in (["workload.rate_per_s=260"], ["workload.rate_per_s=260", "prices.granularity=gpu"])
    )
    more, fewer = (sizes(plan(one, BY_EIGHT, simulate=False, alternatives=False)) for one in (whole, alone))
    assert sum(more) == 16
    growth = [many / few for many, few in zip(more, fewer, strict=True)]
    assert min(growth) >= 1.5


def test_limits_hold_of_replicas_that_cost_nothing() -> None:
    """An H100 takes 700 W and more: 3 kW are enough for four at most, and the rest of the server idles."""
    (count,) = sizes(by_theory("search.modes=[mixed]", "limits.power_kw=3"))
    assert 1 < count <= 4
    text = headline(by_theory("search.modes=[mixed]", "limits.power_kw=3"))
    assert f"1 of 1 H100 SXM server partly used ({8 - count} of 8 GPUs idle)" in text


def test_what_idles_at_night_is_off() -> None:
    """A plan of several periods says what runs when: nothing is added to it."""
    day = "{factors: [1.0, 0.1], period_hours: 12}"
    found = by_theory("search.modes=[mixed]", f"profile={day}")
    assert [max(period.replicas.values()) for period in found.schedule] == [1, 1]
