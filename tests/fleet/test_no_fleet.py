"""What cannot be met is infeasible, soon, and says why: no fleet of a million GPUs, no plan that misses its targets."""

from __future__ import annotations

import re

import pytest

from planner.fleet import Plan, plan
from planner.fleet import search as module
from planner.scenario import load_scenario
from tests.builders import SMALL_CHAT, small_request

CHAT = (*SMALL_CHAT, "search.skus=[b200-sxm]", "search.tp=[1]", "confidence=0.5")


def planned(*changes: str) -> Plan:
    return plan(load_scenario("chat-llama-70b", [*CHAT, *changes]), alternatives=False)


@pytest.mark.parametrize("mode", ["mixed", "disaggregated"])
def test_an_answer_sooner_than_its_tokens_take_is_infeasible_in_either_mode(mode: str) -> None:
    """p90 of the outputs is above 400 tokens, of 14 ms and more each on an idle replica: 6 s at least."""
    none = planned(f"search.modes=[{mode}]", "slo=[{metric: e2e, percentile: 0.9, threshold_s: 5.0}]")
    assert not none.feasible
    assert "p90 E2E" in none.diagnosis[0] and "even when idle" in none.diagnosis[0]


def test_a_gap_between_tokens_shorter_than_a_step_has_a_diagnosis() -> None:
    none = planned("search.modes=[mixed]", "slo=[{metric: itl, percentile: 0.99, threshold_s: 0.002}]")
    assert not none.feasible
    assert "p99 ITL" in none.diagnosis[0]
    factor = float(none.diagnosis[0].split("relax that target by a factor of ")[1].split(" ")[0])
    assert factor == pytest.approx(7.5, rel=0.2)  # of 2 ms: 70 GB of weights at 60 to 80 % of 8 TB/s, and gaps


def test_a_fleet_that_misses_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no second try: the first fleet misses, which is then said."""
    assert planned().feasible
    monkeypatch.setattr(module, "MAX_ROUNDS", 1)
    monkeypatch.setattr(module, "violated_metrics", lambda *_, **__: frozenset({module.Metric.TTFT}))
    answer = planned()
    assert not answer.feasible
    assert (
        answer.diagnosis[0].startswith("no fleet was found that holds with 50 %")
        and "as estimated" in answer.diagnosis[0]
    )


def test_the_budget_that_is_said_to_be_enough_is() -> None:
    """By theory three B200 are enough, and in simulation they miss: four are named, and bought with that budget."""
    traffic = ("workload.rate_per_s=8.5", "workload.drift={cv: 0.5, correlation_time_s: 60}", "search.modes=[mixed]")
    none = planned(*traffic, "limits.budget_usd_per_hour=5")
    assert none.allocation is not None and none.allocation.diagnosis is not None
    (enough,) = (each.needed for each in none.allocation.diagnosis.relaxations if each.field == "budget_usd_per_hour")
    assert enough is not None
    by_theory = plan(load_scenario("chat-llama-70b", [*CHAT, *traffic]), alternatives=False, simulate=False)
    assert by_theory.cost is not None and by_theory.cost.usd_per_hour < enough
    bought = planned(*traffic, f"limits.budget_usd_per_hour={enough}")
    assert bought.cost is not None and bought.cost.usd_per_hour == pytest.approx(enough)


def test_where_less_confidence_leaves_a_fleet_it_is_said_and_planned_so() -> None:
    """As many GPUs carry the traffic as step times are estimated, and not on those of nine runs in ten."""
    space = {"skus": ["h100-sxm"], "modes": ["mixed"], "tp": [1], "calibrated": True}
    asked = {"workload": {"rate_per_s": 120.0}, "search": space}
    estimated = plan(small_request(**asked, confidence=0.5), simulate=False, alternatives=False)
    request = small_request(**asked, confidence=0.9, limits={"gpus": dict(estimated.gpus)})
    none = plan(request, alternatives=False)
    assert not none.feasible
    (line,) = (line for line in none.diagnosis if "the confidence asked for" in line)
    found = re.search(r"by theory ([\d.]+) USD/hour buy a fleet at confidence=([\d.]+)$", line)
    assert found is not None and 0.5 <= float(found[2]) < 0.9
    less, more = (
        plan(request.model_copy(update={"confidence": confidence}), simulate=False, alternatives=False)
        for confidence in (float(found[2]), float(found[2]) + 0.1)
    )
    assert less.cost is not None and less.cost.usd_per_hour == pytest.approx(float(found[1]), abs=0.005)
    assert not more.feasible
