"""Closed populations as demand, against the interactive response time law and the closed loop played user by user."""

from __future__ import annotations

import pytest

import planner
from planner.core import InputError, Metric
from planner.fleet import Plan, PlanRequest, slower_deployment
from planner.fleet.population import TOLERANCE, with_population_rates
from tests.builders import SMALL_CHAT

LENGTHS = "lengths: {input_tokens: 1000, output_tokens: 200}"


def request(workload: str, *more: str) -> PlanRequest:
    return planner.load_scenario("chat-llama-70b", (*SMALL_CHAT[1:], f"workload={{{workload}, {LENGTHS}}}", *more))


def by_theory(asked: PlanRequest) -> Plan:
    return planner.plan(asked, simulate=False, alternatives=False)


@pytest.mark.parametrize(("users", "think_time_s"), [(70, 0.0), (400, 20.0)])
def test_the_fleet_planned_for_a_population_answers_it_at_the_planned_rate(users: int, think_time_s: float) -> None:
    """The law ties rate, users and latency of the plan; the simulation knows users only, and comes to the same rate."""
    asked = request(f"concurrency: {users}, think_time_s: {think_time_s}", "confidence=0.5")
    found = by_theory(asked)
    rate = found.request.workload.rate_per_s
    assert rate * (think_time_s + found.latency(Metric.E2E).mean_s) == pytest.approx(users, rel=TOLERANCE)
    assert f"{users:,} users" in found.assumptions[0]
    steady = planner.simulate(found.deployments[0].deployment, asked.workload, seed=1).steady
    assert steady is not None and steady.rate_per_s == pytest.approx(rate, rel=0.05)
    assert steady.rate_per_s * (think_time_s + steady.e2e.mean_s) == pytest.approx(users, rel=0.04)


def test_answers_of_one_token_that_no_target_bounds_have_a_rate_too() -> None:
    """Nothing says how long they may take: neither a target for first tokens nor a gap between tokens."""
    targets = "slo=[{metric: tpot, percentile: 0.9, threshold_s: 0.05}]"
    lengths = "workload={concurrency: 3, lengths: {input_tokens: 100, output_tokens: 1}}"
    found = by_theory(planner.load_scenario("chat-llama-70b", (*SMALL_CHAT[1:], lengths, targets, "confidence=0.5")))
    assert found.request.workload.rate_per_s * found.latency(Metric.E2E).mean_s == pytest.approx(3, rel=2 * TOLERANCE)


def test_slow_steps_let_fewer_requests_come() -> None:
    """The fleet holds for the rate that its slow steps let come: planned for what quick ones would let, it is larger.

    Played user by user on those slow steps, the population sends what was planned for and waits no longer than it may.
    """
    asked = request("concurrency: 200, think_time_s: 0", "confidence=0.9")
    found = by_theory(asked)
    (planned,) = found.deployments
    slow = slower_deployment(planned, found.slow_deviations)
    seen = planner.simulate(slow, asked.workload, seed=1).steady
    assert found.slow_deviations > 0.0 and seen is not None
    assert seen.rate_per_s == pytest.approx(found.request.workload.rate_per_s, rel=0.04)
    allowed_s = {target.metric: target.threshold_s for target in asked.slo.targets}
    assert seen.tpot.mean_s < allowed_s[Metric.TPOT]
    quick = planner.simulate(planned.deployment, asked.workload, seed=1).steady
    assert quick is not None and quick.rate_per_s > 1.05 * found.request.workload.rate_per_s
    open_one = by_theory(request(f"rate_per_s: {quick.rate_per_s}", "confidence=0.9"))
    assert sum(open_one.gpus.values()) >= sum(found.gpus.values())


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
