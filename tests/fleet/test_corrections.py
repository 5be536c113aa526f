"""A plan by theory that starts from what simulation taught comes to the fleet that simulation chose."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import planner
from planner.fleet import Corrections, Plan, PlanRequest, pool_name
from planner.fleet.corrections import ExpectedShare, KeptShare, SureShare, traffic_kind
from planner.serving import MeasuredSteps, Role
from tests.builders import HARDWARE

LARGER = {"rate_per_s": 18.0, "replay": "azure-2023-conv"}
"""Simulation takes more GPUs than theory: the recording bunches."""
SMALLER = {"rate_per_s": 20.0, "lengths": {"input_tokens": 500, "output_tokens": 30}, "scv": 4.0, "drift": "none"}
"""Simulation takes fewer: theory overstates TPOT of short answers."""


def request(workload: dict[str, Any], **changes: Any) -> PlanRequest:
    fp8 = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
    return planner.load_scenario(
        {
            "name": "corrections",
            "llm": "llama-3.1-8b",
            "precision": fp8,
            "workload": workload,
            "slo": [
                {"metric": "ttft", "percentile": 0.99, "threshold_s": 0.4},
                {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.025},
            ],
            "prices": {"as_of": "2026-11-21", "usd_per_gpu_hour": {"l40s": 1.0}},
            "search": {
                "skus": ["l40s"],
                "modes": ["mixed"],
                "max_batched_tokens": [1024],
                "max_running_requests": [128],
                "tp": [1],
            },
            "confidence": 0.5,
            **changes,
        }
    )


@cache
def simulated(is_larger: bool) -> Plan:
    return planner.plan(request(LARGER if is_larger else SMALLER), HARDWARE, alternatives=False)


def by_theory(asked: PlanRequest, teacher: Plan | None) -> Plan:
    known = None if teacher is None else teacher.corrections
    return planner.plan(asked, HARDWARE, simulate=False, alternatives=False, corrections=known)


@pytest.mark.parametrize("is_larger", [True, False])
def test_theory_with_corrections_comes_to_the_fleet_of_the_plan(is_larger: bool) -> None:
    """What a what-if calls "before" is what the plan says, whichever way simulation changed it."""
    plan = simulated(is_larger)
    alone, corrected = by_theory(plan.request, None), by_theory(plan.request, plan)
    assert plan.cost is not None and alone.cost is not None and corrected.cost is not None
    assert (plan.cost.usd_per_hour > alone.cost.usd_per_hour) is is_larger
    assert corrected.cost.usd_per_hour == pytest.approx(plan.cost.usd_per_hour)
    assert [one.deployment.summary for one in corrected.deployments] == [
        one.deployment.summary for one in plan.deployments
    ]


def test_a_configuration_that_held_where_the_choice_of_theory_missed_is_offered() -> None:
    """By theory one with smaller chunks is chosen, of which a plan was taught that it keeps half its rate."""
    chunks = {"skus": ["l40s"], "modes": ["mixed"], "tp": [1], "max_running_requests": [128]}
    asked = request(
        {"rate_per_s": 12.0, "lengths": {"input_tokens": 800, "output_tokens": 100}, "drift": "none"},
        search={**chunks, "max_batched_tokens": [512, 1024]},
    )
    (first,) = by_theory(asked, None).deployments
    name = pool_name(first.option.pools[0])
    other = name.replace("c512", "c1024") if "c512" in name else name.replace("c1024", "c512")
    only = asked.model_copy(
        update={"search": asked.search.model_copy(update={"max_batched_tokens": (1024 if "c1024" in other else 512,)})}
    )
    cost = by_theory(only, None).cost
    same = {"service": first.service, "role": Role.MIXED, "family": "mixed l40s TP1 kv fp8"}
    shares = {name: 0.5, other: 1.0}
    kept = tuple(KeptShare(**same, configuration=each, share=share) for each, share in shares.items())
    expected = (ExpectedShare(service=first.service, role=Role.MIXED, share=0.5),)
    taught = Corrections(
        traffic=traffic_kind(asked.workload), doubt=asked.step_doubt, kept=kept, expected=expected, held=()
    )
    again = planner.plan(asked, HARDWARE, simulate=False, alternatives=False, corrections=taught)
    assert [pool_name(one.option.pools[0]) for one in again.deployments] == [other]
    assert again.cost is not None and cost is not None and again.cost.usd_per_hour == pytest.approx(cost.usd_per_hour)


def test_they_hold_for_the_same_traffic_at_other_prices() -> None:
    plan = simulated(True)
    prices = {"as_of": "2026-11-21", "usd_per_gpu_hour": {"l40s": 2.0}}
    dearer = by_theory(request(LARGER, prices=prices), plan)
    assert plan.cost is not None and dearer.cost is not None
    assert dearer.cost.usd_per_hour == pytest.approx(2.0 * plan.cost.usd_per_hour)


def test_what_confidence_taught_is_for_that_confidence_and_those_step_times() -> None:
    """A family that would be too slow in too many worlds is not when it was measured, or when less is asked."""
    asked = request(LARGER)
    sure = (SureShare(service="llama", family="mixed l40s TP1", share=0.8),)
    kind = traffic_kind(asked.workload)
    taught = Corrections(traffic=kind, doubt=asked.step_doubt, sure=sure, together=sure)
    assert taught.of(asked.workload, asked.step_doubt) == taught
    measured = {"l40s": MeasuredSteps.exactly(0.0)}
    for other in ({"confidence": 0.99}, {"measured": measured}):
        left = taught.of(asked.workload, asked.step_doubt.model_copy(update=other))
        assert (left.sure, left.together) == ((), ())


def test_they_say_nothing_of_traffic_that_comes_otherwise() -> None:
    """How a recording bunches says nothing of arrivals that do not."""
    plan = simulated(True)
    steady = request({"rate_per_s": 10.0, "lengths": "azure-2023-conv", "drift": "none"})
    assert plan.corrections is not None
    assert traffic_kind(steady.workload) != plan.corrections.traffic
    assert not plan.corrections.of(steady.workload, steady.step_doubt).kept
    taught, alone = by_theory(steady, plan), by_theory(steady, None)
    assert taught.cost is not None and alone.cost is not None
    assert taught.cost.usd_per_hour == alone.cost.usd_per_hour
