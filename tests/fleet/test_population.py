"""Closed populations as demand, against the interactive response time law and the closed loop played user by user."""

from __future__ import annotations

import pytest

import planner
from planner.core import InputError, Metric
from planner.fleet import Plan, PlanRequest
from planner.fleet.population import TOLERANCE, with_population_rates
from tests.builders import SMALL_CHAT

LENGTHS = "lengths: {input_tokens: 1000, output_tokens: 200}"


def request(workload: str, *more: str) -> PlanRequest:
    return planner.load_scenario("chat-llama-70b", (*SMALL_CHAT[1:], f"workload={{{workload}, {LENGTHS}}}", *more))


def by_theory(asked: PlanRequest) -> Plan:
    return planner.plan(asked, simulate=False, alternatives=False)


@pytest.mark.parametrize(("users", "think_time_s"), [(60, 0.0), (400, 20.0)])
def test_the_fleet_planned_for_a_population_answers_it_at_the_planned_rate(users: int, think_time_s: float) -> None:
    """The law ties rate, users and latency of the plan; the simulation knows users only, and comes to the same rate."""
    asked = request(f"concurrency: {users}, think_time_s: {think_time_s}")
    found = by_theory(asked)
    rate = found.request.workload.rate_per_s
    assert rate * (think_time_s + found.latency(Metric.E2E).mean_s) == pytest.approx(users, rel=TOLERANCE)
    assert f"{users:,} users" in found.assumptions[0]
    steady = planner.simulate(found.deployments[0].deployment, asked.workload, seed=1).steady
    assert steady is not None and steady.rate_per_s == pytest.approx(rate, rel=0.03)
    assert steady.rate_per_s * (think_time_s + steady.e2e.mean_s) == pytest.approx(users, rel=0.04)


def test_long_thinking_is_an_open_rate_and_growth_is_of_the_users() -> None:
    """As the think time grows, users / think time are sent however fast the fleet is."""
    lazy = by_theory(request("concurrency: 40000, think_time_s: 4000"))
    assert lazy.request.workload.rate_per_s == pytest.approx(10.0, rel=0.003)
    grown = by_theory(request("concurrency: 20000, think_time_s: 4000", "growth=2"))
    assert grown.gpus == lazy.gpus


def test_open_traffic_is_left_as_it_is_and_what_has_no_end_is_refused() -> None:
    open_one = request("rate_per_s: 3")
    assert with_population_rates(open_one, by_theory) is open_one
    with pytest.raises(InputError, match=r"no arrival rate of its own.*`planner plan` takes one with targets"):
        by_theory(request("concurrency: 8", "slo=[]"))
    with pytest.raises(InputError, match=r"think_time_s.*Fix: simulate it"):
        planner.evaluate(
            by_theory(open_one).deployments[0].deployment, request("concurrency: 8, think_time_s: 1").workload
        )
