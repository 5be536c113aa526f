"""An autoscaler over a day against hand-worked steps, conservation, constant demand and the request-level simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.analysis.autoscaling import Autoscaler, AutoscalingDay, desired_replicas, simulate_autoscaler
from planner.analysis.load_response import LoadResponses, Signal
from planner.core import FloatArray, InputError
from planner.fleet import Plan, plan
from planner.serving import evaluate, sustainable_rate_per_s
from planner.simulator import simulate
from planner.workload import RateDrift
from tests.builders import small_request
from tests.made_up_plans import QUICK

RATE_PER_S = 120.0
INSTANT = Autoscaler(delay_s=0, window_s=0, tolerance=0, stabilisation_s=0, limits_growth=False)
"""Knows the demand of the moment, and acts on it at once."""


@cache
def day_plan() -> Plan:
    """A fleet of one SKU over six periods, whose schedule is of one configuration."""
    profile = {"factors": [0.6, 0.3, 0.5, 1.0, 1.4, 1.1], "period_hours": 0.5}
    workload = {"rate_per_s": RATE_PER_S, "lengths": LENGTHS}
    search = {**QUICK, "skus": ["h100-sxm"]}
    request = small_request(precision="narrower", search=search, workload=workload, profile=profile)
    return plan(request, simulate=False, alternatives=False)


@cache
def responses() -> LoadResponses:
    return LoadResponses(day_plan().deployments[0])


LENGTHS = {"input_tokens": 800, "output_tokens": 150}


def sustained_per_replica() -> float:
    (planned,) = day_plan().deployments
    size = planned.deployment.pools[0].replicas
    return sustainable_rate_per_s(planned.deployment, planned.workload, planned.slo) / size


def hourly(window_s: float = 15.0) -> FloatArray:
    """The demand that the schedule was made for: constant in each period [1/s]."""
    rates = [period.demand_per_s for period in day_plan().schedule]
    return np.repeat(rates, round(1800 / window_s))


def played(rates: FloatArray, rule: Autoscaler, cold_start_s: float = 0.0, window_s: float = 15.0) -> AutoscalingDay:
    return simulate_autoscaler(day_plan(), rates, window_s, rule, cold_start_s, responses=(responses(),))


class TestRule:
    """The formula of the Kubernetes page."""

    @pytest.mark.parametrize(
        ("ready", "value", "desired"),
        [(1, 200.0, 2), (4, 50.0, 2), (10, 109.0, 10), (10, 91.0, 10), (10, 111.0, 12), (3, 150.0, 5), (5, 0.0, 0)],
    )
    def test_replicas_follow_the_ratio_beyond_a_tolerance(self, ready: int, value: float, desired: int) -> None:
        """The page: 200m of 100m doubles, 50m halves, within 10 % nothing changes; else ceil(current x ratio)."""
        assert desired_replicas(ready, 0, ready * value, 100.0) == desired
        assert desired_replicas(4, 2, 8.0, 1.0) == 8, "replicas that start count as idle before more are ordered"

    def test_removing_waits_for_the_stabilisation_window_to_pass(self) -> None:
        """Demand falls to a third: the size of before is kept for 300 s, then goes in one step."""
        per_replica = 0.7 * sustained_per_replica()
        rates = np.repeat([5.9 * per_replica, 1.9 * per_replica], [120, 120])
        rule = INSTANT.model_copy(update={"target": per_replica, "stabilisation_s": 300.0})
        scaled = played(rates, rule).fleets[0].ready
        assert set(scaled[1:140].tolist()) == {6}  # 120 steps, and the last recommendation of 6 is 20 syncs old at 139
        assert set(scaled[140:].tolist()) == {2}

    def test_growth_is_at_most_twice_or_four_more_in_a_sync(self) -> None:
        per_replica = sustained_per_replica()
        rates = np.repeat([0.9 * per_replica, 18.5 * per_replica], [120, 20])
        rule = INSTANT.model_copy(update={"target": per_replica, "limits_growth": True, "max_replicas": 40})
        assert played(rates, rule).fleets[0].ready[119:124].tolist() == [1, 5, 10, 19, 19]


class TestDay:
    """What the fleets come to."""

    def test_a_constant_rate_ends_at_the_replicas_and_the_attainment_of_evaluate(self) -> None:
        (planned,) = day_plan().deployments
        per_replica = 0.8 * sustained_per_replica()
        rate = 3.5 * per_replica
        scaled = played(np.full(240, rate), Autoscaler(target=per_replica, tolerance=0.0), 60.0).fleets[0]
        assert scaled.ready[-1] == 4
        exact = evaluate(planned.option.deployment((4,)), planned.workload.at_rate(rate)).attainment(planned.slo)
        assert scaled.attained[-1] / scaled.arrived[-1] == pytest.approx(exact, abs=2e-4)

    def test_requests_are_conserved(self) -> None:
        rates = hourly() * np.asarray(RateDrift.random(0.5, 300.0, seed=3).factors * 10)[: hourly().size]
        for fleet in played(rates, Autoscaler(), 200.0).fleets:
            assert fleet.served.sum() + fleet.backlog[-1] == pytest.approx(fleet.arrived.sum())
            assert fleet.arrived.sum() == pytest.approx(rates.sum() * 15.0)
            assert (fleet.attained <= fleet.arrived * (1 + 1e-12)).all()
            assert fleet.served.min() >= 0.0

    def test_a_step_of_demand_is_recovered_from_when_the_fluid_says(self) -> None:
        """Two replicas meet 1.5 times their capacity; four are ready 120 s later: backlog 60 s x 2 of capacity."""
        two, four = (responses().of((size,)).capacity_per_s for size in (2, 4))
        rates = np.repeat([0.3 * two, 1.5 * two], [80, 80])
        rule = INSTANT.model_copy(update={"target": 1.5 * two / 4, "min_replicas": 2, "max_replicas": 4})
        scaled = played(rates, rule, cold_start_s=120.0).fleets[0]
        assert scaled.ready[87] == 2
        assert scaled.ready[88] == 4
        most = 0.5 * two * 120.0
        assert scaled.backlog.max() == pytest.approx(most)
        last = 88 + most / (four - 1.5 * two) / 15.0
        assert scaled.backlog[int(last) - 1] > 0.0
        assert scaled.backlog[int(np.ceil(last))] == 0.0
        # who comes 80 s after the step has 40 s of work ahead, which two have done just when four are ready
        assert scaled.longest_delay_s == pytest.approx(40.0, rel=0.03)

    def test_knowing_the_demand_at_once_is_never_worse_than_the_schedule(self) -> None:
        per_replica = sustained_per_replica()
        (planned,) = day_plan().deployments
        one = sustainable_rate_per_s(planned.option.deployment((1,)), planned.workload, planned.slo)
        scaled, scheduled, flat = played(hourly(), INSTANT.model_copy(update={"target": min(one, per_replica)})).fleets
        assert (scaled.ready >= scheduled.ready).all()
        assert scaled.attainment >= scheduled.attainment - 1e-9
        assert flat.attainment >= scheduled.attainment - 1e-9

    def test_the_schedule_costs_what_the_plan_says_and_the_flat_fleet_its_peak(self) -> None:
        found = day_plan()
        assert found.cost is not None
        _, scheduled, flat = played(hourly(), Autoscaler()).fleets
        drained = scheduled.draining.sum() / (scheduled.ready.sum() + scheduled.draining.sum())
        assert scheduled.usd_per_hour * (1 - drained) == pytest.approx(found.cost.usd_per_hour, rel=1e-6)
        assert flat.usd_per_hour == pytest.approx(max(period.usd_per_hour for period in found.schedule))

    def test_replicas_ordered_ahead_are_paid_for_before_they_serve(self) -> None:
        warm, cold = (played(hourly(), Autoscaler(), seconds).fleets[1] for seconds in (0.0, 300.0))
        started = int(np.maximum(0, np.diff(warm.ready)).sum())
        assert cold.starting.sum() == started * 300 / 15
        assert cold.attainment == warm.attainment
        assert cold.starts == started

    def test_committed_gpus_are_paid_for_whether_held_or_not(self) -> None:
        found = day_plan()
        (bought,) = found.bought
        owned = replace(found, bought=(replace(bought, committed=True, gpus=(50.0,) * 6),))
        day = simulate_autoscaler(owned, hourly(), 15.0, Autoscaler(), responses=(responses(),))
        assert {round(fleet.usd_per_hour, 6) for fleet in day.fleets} == {round(50 * bought.usd_per_gpu_hour, 6)}

    @pytest.mark.parametrize("signal", [Signal.CONCURRENCY, Signal.KV_CACHE, Signal.TTFT])
    def test_a_signal_that_moves_with_the_load_scales_with_the_demand(self, signal: Signal) -> None:
        scaled = played(hourly(), Autoscaler(signal=signal)).fleets[0]
        assert scaled.ready[130:230].mean() < scaled.ready[500:600].mean()  # the second period, and the fifth
        assert scaled.attainment > 0.8

    def test_a_queue_that_is_empty_below_capacity_is_the_worse_signal(self) -> None:
        """It says nothing until it is too late: fewer targets are met than with the rate."""
        queue, rate = (played(hourly(), Autoscaler(signal=one), 120.0).fleets[0] for one in (Signal.QUEUE, Signal.RATE))
        assert queue.attainment < rate.attainment

    def test_what_cannot_be_played_is_refused(self) -> None:
        with pytest.raises(InputError, match="rates_per_s"):
            simulate_autoscaler(day_plan(), [0.0, 0.0], 15.0)
        with pytest.raises(InputError, match="no fleet to scale"):
            simulate_autoscaler(replace(day_plan(), deployments=()), [1.0], 15.0)


def test_an_overload_is_seen_alike_request_by_request() -> None:
    """A flat fleet meets 40 s of 1.5 times its capacity: the simulator's attainment is that of the fluid."""
    found = day_plan()
    (planned,) = found.deployments
    two = replace(planned, deployment=planned.option.deployment((2,)), surviving=planned.option.deployment((2,)))
    capacity = responses().of((2,)).capacity_per_s
    factors = np.repeat([0.6, 1.5, 0.6, 0.6, 0.6], 2)
    rates = capacity * np.tile(factors, 4)
    mean = float(rates.mean())
    flat = simulate_autoscaler(
        replace(found, deployments=(two,), schedule=()), rates, 20.0, responses=(responses(),)
    ).fleets[-1]
    load = planned.workload.at_rate(mean)
    drift = RateDrift.of(np.tile(factors, 4), 20.0)
    load = load.model_copy(update={"arrivals": load.arrivals.model_copy(update={"drift": drift})})
    seen = simulate(two.deployment, load, requests=int(mean * 800.0), warmup_fraction=0.0, seed=1)
    assert flat.attainment == pytest.approx(seen.attainment(planned.slo), abs=0.05)
    assert flat.attainment < 0.8
