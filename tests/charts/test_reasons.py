"""Charts of reasons: shares held against the step-time model, bars against the plans they stand for."""

from __future__ import annotations

import json
import math

import pytest

import planner
from planner.analysis import ConfidencePoint, KeptFleet, Pareto, PlanMeasure, PlanOutcome, Sensitivity, SensitivityEnd
from planner.analysis.types import ParetoPoint
from planner.charts import reasons
from planner.engine import step_time
from planner.fleet import Plan
from planner.roofline import Bound

SMALL = (
    "workload.drift=none",
    "search.skus=[h100-sxm]",
    "search.tp=[4]",
    "search.max_running_requests=[256]",
    "search.max_batched_tokens=[2048]",
    "simulation.requests=500",
)


@pytest.fixture(scope="module", params=["mixed", "disaggregated"])
def plan(request: pytest.FixtureRequest) -> Plan:
    asked = planner.load_scenario("chat-llama-70b", [*SMALL, f"search.modes=[{request.param}]"])
    return planner.plan(asked, simulate=False, alternatives=False)


def outcome(usd_per_hour: float, rate_per_s: float = 40.0) -> PlanOutcome:
    return PlanOutcome("optimal", "1 x made up", usd_per_hour=usd_per_hour, rate_per_s=rate_per_s)


NONE = PlanOutcome("infeasible", "none: too slow")


def bar(name: str, low: PlanOutcome, high: PlanOutcome) -> Sensitivity:
    kept = KeptFleet(True, "p99 TTFT", 0.5, 10.0, 42.0)
    ends = (SensitivityEnd("-20 %", low, kept), SensitivityEnd("+20 %", high, None))
    return Sensitivity(name, *ends, swing=math.nan)


def test_shares_of_a_step_add_up_and_the_largest_is_the_bound_of_the_pool(plan: Plan) -> None:
    for _, planned, pool, figures in reasons.pools_of(plan):
        shares = reasons.waiting_shares(pool, figures, planned.workload)
        assert sum(shares.values()) == pytest.approx(1.0)
        assert max(shares, key=lambda bound: shares[bound]) is figures.bound


def test_a_pool_that_only_decodes_waits_as_its_mean_decode_step_does(plan: Plan) -> None:
    for _, planned, pool, figures in reasons.pools_of(plan):
        if pool.role.value == "decode":
            contexts = [round(planned.workload.lengths.mean_decode_context)] * round(figures.mean_running)
            step = step_time(pool.config, contexts)
            shares = reasons.waiting_shares(pool, figures, planned.workload)
            for bound in Bound:
                assert shares[bound] == pytest.approx(step.bound_s[bound] / step.total_s, abs=0.02)


def test_rows_of_a_plan_are_its_own_figures(plan: Plan) -> None:
    rows = reasons.target_rows(plan)
    for row, check in zip(rows, plan.targets, strict=True):
        assert row["predicted"] * row["threshold_ms"] == pytest.approx(1e3 * check.predicted_s)
        assert row["simulated"] is None
    loads = [row["share"] for row in reasons.utilisation_rows(plan) if row["what"] == "load"]
    assert loads == [figures.utilisation for _, _, _, figures in reasons.pools_of(plan)]
    for name in {row["pool"] for row in reasons.waiting_rows(plan)}:
        mine = [row for row in reasons.waiting_rows(plan) if row["pool"] == name]
        assert mine[-1]["start"] + mine[-1]["share"] == pytest.approx(1.0)
    for picture in (reasons.waiting_chart(plan), reasons.target_chart(plan), reasons.utilisation_chart(plan)):
        assert "NaN" not in json.dumps(picture.to_dict())  # validates against the schema of Vega-Lite


def test_the_tornado_is_sorted_by_what_moves_most_and_an_end_without_a_fleet_comes_first_in_words() -> None:
    bars = [
        bar("little", outcome(9.0), outcome(11.0)),
        bar("impossible", outcome(10.0), NONE),
        bar("much", outcome(10.0), outcome(30.0)),
    ]
    rows = reasons.tornado_rows(bars, outcome(10.0), PlanMeasure.COST)
    assert [row["input"] for row in rows[::2]] == ["impossible", "much", "little"]
    assert rows[1]["value"] is None and {row["base"] for row in rows} == {10.0}
    text = json.dumps(reasons.tornado_chart(bars, outcome(10.0), PlanMeasure.COST).to_dict())
    assert "+20 %: no fleet" in text and "-20 %: $9.00/h" in text


@pytest.mark.parametrize("measure", list(PlanMeasure))
def test_the_tornado_shows_what_plans_are_judged_by(measure: PlanMeasure) -> None:
    base, low, high = outcome(10.0, 40.0), outcome(9.0, 38.0), outcome(12.0, 44.0)
    rows = reasons.tornado_rows([bar("demand", low, high)], base, measure)
    assert [row["value"] for row in rows] == [low.value(measure), high.value(measure)]
    picture = reasons.tornado_chart([bar("demand", low, high)], base, measure)
    assert measure.value in json.dumps(picture.to_dict(), ensure_ascii=False)


@pytest.mark.parametrize("measure", list(PlanMeasure))
def test_confidence_is_shown_with_the_one_asked_for_and_without_what_has_no_fleet(measure: PlanMeasure) -> None:
    costs = {0.5: 42.0, 0.9: 66.0, 0.95: 78.0}
    points = [ConfidencePoint(share, share == 0.9, outcome(usd), True) for share, usd in costs.items()]
    points.append(ConfidencePoint(0.99, False, NONE, True))
    rows = reasons.confidence_rows(points, measure)
    assert [row["confidence"] for row in rows] == list(costs)
    assert [row["value"] for row in rows] == [outcome(usd).value(measure) for usd in costs.values()]
    assert [row["is_now"] for row in rows] == [False, True, False]
    assert "as asked" in json.dumps(reasons.confidence_chart(points, measure).to_dict())


def test_a_front_is_shown_in_milliseconds_with_the_request_on_it() -> None:
    points = tuple(ParetoPoint(s, outcome(10.0 / s)) for s in (0.25, 0.5, 1.0, 2.0))
    found = Pareto("p99 TTFT", "s", False, points, 9)
    rows = reasons.front_rows(found, 0.5)
    assert [row["asked"] for row in rows] == [250.0, 500.0, 1000.0, 2000.0]
    assert [row["is_now"] for row in rows] == [False, True, False, False]
    assert "as asked" in json.dumps(reasons.front_chart(found, 0.5).to_dict())
    assert not any(row["is_now"] for row in reasons.front_rows(found, 0.4))
