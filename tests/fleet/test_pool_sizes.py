"""Fewer replicas that hold, against trying every size; idle GPUs that are paid for serve, within the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hardware_db import load_hardware
from planner.core import Metric
from planner.fleet import Plan, PlannedDeployment, plan, pool_sizes
from planner.fleet.pairing import UsedPool
from planner.fleet.pool_sizes import BUDGET_RUNS, PILOT_SHARE, Questions, smaller_pools_that_hold
from planner.fleet.verification import ScopedSlo, scoped_slos, verify_deployment, violated_metrics
from planner.llm import Precision, load_llm
from planner.report import headline
from planner.scenario import load_scenario
from planner.search import DeploymentOption, Mode, PoolOption
from planner.serving import Role
from planner.supply import with_prices
from planner.traffic import DemandSlice, Service
from planner.workload import LatencyTarget, Slo
from tests.builders import chat, replica
from tests.fleet.test_sites import SCENARIO
from tests.markets import make_price

REQUESTS = 1000
MEMBER = PoolOption(Role.MIXED, replica())
OPTION = DeploymentOption(Mode.MIXED, (MEMBER,))


def pool(replicas: int, rate_per_s: float = 10.0, capacity_share: float = 0.1, service: str = "chat") -> UsedPool:
    """A pool that theory says is far from full."""
    return UsedPool(service, MEMBER, replicas, replicas, {service: rate_per_s}, capacity_share, ("column",))


class Judge:
    """Stands for the simulator: a deployment holds when it has enough replicas for its rate.

    Attributes:
        per_replica_per_s: rate that a replica holds.
        is_open: whether runs of so many requests leave a target open.
        runs: (replicas, rate, requests) of every run.
    """

    def __init__(self, per_replica_per_s: float, open_below: int = 0) -> None:
        self.per_replica_per_s, self.open_below = per_replica_per_s, open_below
        self.runs: list[tuple[int, float, int]] = []

    def __call__(self, option: DeploymentOption, pools: tuple[UsedPool, ...], requests: int) -> PlannedDeployment:
        assert option is OPTION
        rate, replicas = pools[0].rate_per_s, min(each.surviving for each in pools)
        self.runs.append((replicas, rate, requests))
        holds = rate <= self.per_replica_per_s * replicas * (1.0 + 1e-9)
        ran = SimpleNamespace(requests=requests)
        return cast(
            PlannedDeployment, SimpleNamespace(simulated=ran, holds=holds, is_open=requests < self.open_below, run=None)
        )


def sure(deployments: Sequence[PlannedDeployment]) -> bool:
    """In whatever world of step times."""
    return bool(deployments)


@pytest.fixture
def by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are the judge's, and theory is never in the way."""
    monkeypatch.setattr(pool_sizes, "violated_metrics", lambda planned, slos, by_theory: not planned.holds)
    monkeypatch.setattr(pool_sizes, "open_targets", lambda planned, slos: planned.is_open)
    monkeypatch.setattr(pool_sizes, "_may_hold", lambda fleet, place, pools: True)


def found(groups: Sequence[tuple[UsedPool, ...]], judge: Judge, budget: int = REQUESTS) -> list[UsedPool]:
    """The smaller fleet, with so many requests that each run would take."""
    known = [cast(PlannedDeployment, SimpleNamespace(run=None)) for _ in groups]
    return smaller_pools_that_hold([(OPTION, pools) for pools in groups], known, (), judge, Questions(budget), sure)


@pytest.mark.usefixtures("by_rule")
def test_the_fewest_replicas_that_hold_are_those_of_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_sizes, "BUDGET_RUNS", math.inf)
    for replicas in range(1, 14):
        for needed in range(1, replicas + 1):
            smaller = found([(pool(replicas),)], Judge(10.0 / needed))
            assert [each.surviving for each in smaller] == ([] if needed == replicas else [needed])
            assert all(each.rate_per_s == 10.0 for each in smaller)


@pytest.mark.usefixtures("by_rule")
def test_deployments_of_one_slice_share_its_traffic_and_lose_none() -> None:
    """Two and four replicas at 5 and 10 per second; five hold 15, in proportion to what is left: 3 and 12."""
    groups = [(pool(2, 5.0),), (pool(4, 10.0),)]
    smaller = found(groups, Judge(3.0))
    by_size = {each.surviving: each.rate_per_s for each in smaller}
    assert by_size == pytest.approx({1: 3.0, 4: 12.0})


@pytest.mark.usefixtures("by_rule")
def test_a_deployment_without_replicas_leaves_its_traffic_to_the_others() -> None:
    smaller = found([(pool(1, 5.0),), (pool(3, 10.0),)], Judge(5.0))
    assert {each.surviving: each.rate_per_s for each in smaller} == pytest.approx({3: 15.0})


@pytest.mark.usefixtures("by_rule")
def test_other_services_keep_what_they_have() -> None:
    smaller = found([(pool(2, 5.0, service="chat"),), (pool(2, 5.0, service="code"),)], Judge(5.0))
    assert [(each.service, each.surviving, each.rate_per_s) for each in smaller] == [("chat", 1, 5.0)]


@pytest.mark.usefixtures("by_rule")
def test_a_short_run_decides_only_what_clearly_misses() -> None:
    missing, holding, unsure = Judge(1.0), Judge(10.0), Judge(1.0, open_below=REQUESTS)
    for judge in (missing, holding, unsure):
        found([(pool(2),)], judge)
    pilot = round(PILOT_SHARE * REQUESTS)
    assert [requests for *_, requests in missing.runs] == [pilot]
    assert [requests for *_, requests in holding.runs] == [pilot, REQUESTS]
    assert [requests for *_, requests in unsure.runs] == [pilot, REQUESTS]


@pytest.mark.usefixtures("by_rule")
def test_no_more_is_simulated_than_may_be() -> None:
    """The last run may begin just below the limit; then nothing more is asked, and what held so far is the answer."""
    judge = Judge(1e-9 + 10.0 / 3.0)
    smaller = found([(pool(60),)], judge)
    spent = sum(requests for *_, requests in judge.runs)
    assert spent <= (BUDGET_RUNS + 1.0) * REQUESTS
    assert 3 <= smaller[0].surviving < 60


@pytest.mark.usefixtures("by_rule")
def test_a_long_recording_is_replayed_as_often_as_a_short_one() -> None:
    """However many requests it has: 44 of 46 replicas, though a replay is as long as 18 runs of a plan."""
    sizes = []
    for recorded in (REQUESTS // 4, 18 * REQUESTS):
        judge = Judge(10.0 / 44.0)

        def replay(
            option: DeploymentOption,
            pools: tuple[UsedPool, ...],
            requests: int,
            judge: Judge = judge,
            recorded: int = recorded,
        ) -> PlannedDeployment:
            return judge(option, pools, recorded)

        known = SimpleNamespace(run=SimpleNamespace(recording="an hour"), simulated=SimpleNamespace(requests=recorded))
        groups = [(OPTION, (pool(46),))]
        smaller = smaller_pools_that_hold(
            groups, [cast(PlannedDeployment, known)], (), replay, Questions(REQUESTS), sure
        )
        assert [each.surviving for each in smaller] == [44]
        sizes.append([replicas for replicas, *_ in judge.runs])
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) <= BUDGET_RUNS


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
    seen: list[int] = []

    def simulate(option: DeploymentOption, pools: tuple[UsedPool, ...], requests: int) -> PlannedDeployment:
        seen.append(pools[0].surviving)
        return known

    smaller_pools_that_hold([(OPTION, (used,))], [known], [scoped], simulate, Questions(REQUESTS), sure)
    assert bool(seen) is asked


def test_what_falls_behind_by_theory_is_not_asked() -> None:
    """Two replicas at more than half of what they carry: one would be overloaded, however careful theory is."""
    used, known, scoped = real_fleet(4.0, 2, 0.1)
    busy = replace(known.predicted.pools[0], utilisation=0.6)
    known = replace(known, predicted=replace(known.predicted, pools=(busy,)))

    def never(option: DeploymentOption, pools: tuple[UsedPool, ...], requests: int) -> PlannedDeployment:
        raise AssertionError("simulated")

    assert smaller_pools_that_hold([(OPTION, (used,))], [known], [scoped], never, Questions(REQUESTS), sure) == []


def test_a_fleet_found_holds_when_it_is_simulated_again() -> None:
    used, known, scoped = real_fleet(6.0, 3, 0.2)
    workload = chat(6.0)
    service = Service(name="chat", llm=load_llm("llama-3.1-8b"), precision=Precision(), workload=workload, slo=SLO)
    slices = {"chat": DemandSlice("chat", service, workload, SLO, (6.0,))}

    def simulate(option: DeploymentOption, pools: tuple[UsedPool, ...], requests: int) -> PlannedDeployment:
        return verify_deployment(option, pools, slices, 1, requests)

    (smaller,) = smaller_pools_that_hold([(OPTION, (used,))], [known], [scoped], simulate, Questions(300), sure)
    assert smaller.surviving < 3
    again = verify_deployment(OPTION, [smaller], slices, 2, 600)
    assert not violated_metrics(again, [scoped], by_theory=False)


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
    assert f"1 of 1 h100-sxm server partly used ({8 - count} of 8 GPUs idle)" in text


def test_what_idles_at_night_is_off() -> None:
    """A plan of several periods says what runs when: nothing is added to it."""
    day = "{factors: [1.0, 0.1], period_hours: 12}"
    found = by_theory("search.modes=[mixed]", f"profile={day}")
    assert [max(period.replicas.values()) for period in found.schedule] == [1, 1]
