"""What confidence costs and what measuring is worth, against closed forms and brute force on made-up planners."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import NormalDist, mean

import pytest

from hardware_db import HardwareDb, sku_words
from planner.analysis import (
    Explanation,
    MeasurementValue,
    Measuring,
    PlanOutcome,
    PlanQuestion,
    Replanner,
    explain,
)
from planner.analysis.replanner import Solve, outcome_of
from planner.analysis.uncertain_steps import CONFIDENCES, PARTS, confidence_curve, measurement_values
from planner.core import HOURS_PER_MONTH, Metric, rebuilt
from planner.fleet import Plan, PlanRequest, plan
from planner.report.explanation import sentences, tables
from planner.serving import MeasuredSteps, uncertainty
from planner.serving.uncertainty import GroupSpread
from tests.builders import calibrated, small_request
from tests.made_up_plans import A100, H100, QUICK, REQUEST, made_up

KNOWN = small_request(confidence=0.9, search={**QUICK, "calibrated": True})
QUANTILES = [(part + 0.5) / PARTS for part in range(PARTS)]


def slowdown(request: PlanRequest, sku: str, spread: float) -> float:
    """exp(z s): how much longer the steps of a SKU are taken to be."""
    known = request.measured_steps.get(sku)
    return math.exp(spread * (NormalDist().inv_cdf(request.confidence) if known is None else known.steps))


def came_out(sku: str, quantile: float) -> dict[str, MeasuredSteps]:
    """The step times of a SKU, measured to be at a quantile of what they may be."""
    return {sku: MeasuredSteps.exactly(NormalDist().inv_cdf(quantile))}


def continuous(request: PlanRequest, hardware: HardwareDb) -> Plan:
    """30 USD/h with exact estimates, as much more as steps are slower."""
    return made_up(request, {(H100, 1): 1}, 30.0 * slowdown(request, H100, 0.2))


def whole(needs: Mapping[str, float], spreads: Mapping[str, float], most: int = 99) -> Solve:
    """The cheaper of whole numbers of H100 at 3 USD/h and of A100 at 2: what each needs, rounded up."""

    def solve(request: PlanRequest, hardware: HardwareDb) -> Plan:
        counts = {sku: math.ceil(needs[sku] * slowdown(request, sku, spreads[sku]) - 1e-9) for sku in needs}
        costs = {sku: (3.0 if sku == H100 else 2.0) * count for sku, count in counts.items() if count <= most}
        if not costs:
            return made_up(request, {}, math.inf)
        best = min(costs, key=lambda sku: (costs[sku], sku))
        return made_up(request, {(best, 1): counts[best]}, costs[best])

    return solve


class TestConfidence:
    """Cost against confidence."""

    def test_points_follow_the_formula(self) -> None:
        replanner = Replanner(continuous)
        points = confidence_curve(replanner.plan(KNOWN), replanner)
        assert [point.confidence for point in points] == list(CONFIDENCES)
        for point in points:
            z = NormalDist().inv_cdf(point.confidence)
            assert point.outcome.usd_per_hour == pytest.approx(30.0 * math.exp(0.2 * z))
        assert [point.confidence for point in points if point.asked] == [KNOWN.confidence]
        assert replanner.solves == len(CONFIDENCES)
        between = confidence_curve(replanner.plan(rebuilt(KNOWN, confidence=0.97)), replanner)
        assert [point.confidence for point in between if point.asked] == [0.97] and len(between) == 6

    @pytest.mark.parametrize("seed", range(3))
    def test_more_confidence_is_never_cheaper_even_where_the_planner_is_not_exact(self, seed: int) -> None:
        draw = random.Random(seed)

        def rough(request: PlanRequest, hardware: HardwareDb) -> Plan:
            return made_up(request, {(H100, 1): 1}, 30.0 * slowdown(request, H100, 0.02) * draw.uniform(0.95, 1.05))

        replanner = Replanner(rough)
        costs = [point.outcome.usd_per_hour for point in confidence_curve(replanner.plan(KNOWN), replanner)]
        assert costs == sorted(costs)

    def test_of_a_real_planner_too_and_the_first_point_is_the_plan_on_exact_estimates(self) -> None:
        points = real_answers().confidence
        costs = [point.outcome.usd_per_hour for point in points]
        assert costs == sorted(costs)
        assert all(point.calibrated for point in points)
        assert {table.title for table in tables(real_answers())} == {
            "Cost against confidence",
            "What measuring is worth",
        }
        exact = plan(rebuilt(REAL_REQUEST, confidence=0.5), simulate=False, alternatives=False)
        assert points[0].outcome == outcome_of(exact)


class TestMeasuring:
    """The expected value of perfect information."""

    def test_the_value_is_the_mean_of_what_is_gained(self) -> None:
        found = {value.sku: value for value in values_of(continuous)}
        now = 30.0 * math.exp(0.2 * NormalDist().inv_cdf(0.9))
        after = [30.0 * math.exp(0.2 * NormalDist().inv_cdf(quantile)) for quantile in QUANTILES]
        assert found[H100].gain == pytest.approx(now - mean(after))
        assert found[H100].usd_per_month == pytest.approx(HOURS_PER_MONTH * (now - mean(after)))
        assert found[H100].changes == 1.0
        assert found[A100].gain == found[A100].changes == 0.0

    @pytest.mark.parametrize("seed", range(6))
    def test_fewer_plans_find_what_all_plans_would(self, seed: int) -> None:
        draw = random.Random(seed)
        needs = {H100: draw.uniform(3.0, 20.0), A100: draw.uniform(4.5, 30.0)}
        spreads = {H100: draw.uniform(0.0, 0.3), A100: draw.uniform(0.0, 0.3)}
        request = rebuilt(KNOWN, confidence=draw.choice([0.5, 0.8, 0.9, 0.95]))
        replanner = Replanner(whole(needs, spreads))
        found = measurement_values(replanner.plan(request), replanner)
        outcome = Replanner(whole(needs, spreads)).outcome
        now = outcome(request)
        for value in found:
            after = [outcome(rebuilt(request, measured_steps=came_out(value.sku, q))) for q in QUANTILES]
            assert value.gain == pytest.approx(mean(now.usd_per_hour - one.usd_per_hour for one in after), abs=1e-9)
            assert value.changes == pytest.approx(sum(one.gpus != now.gpus for one in after) / PARTS)
        assert replanner.solves <= 1 + PARTS * len(found)
        gains = [value.gain or 0.0 for value in found]
        assert gains == sorted(gains, reverse=True)

    def test_what_can_never_win_takes_one_plan(self) -> None:
        replanner = Replanner(whole({H100: 1.0, A100: 50.0}, {H100: 0.0, A100: 0.2}))
        found = measurement_values(replanner.plan(KNOWN), replanner)
        assert [value.changes for value in found] == [0.0, 0.0]
        assert replanner.solves == 1 + 1 + 2  # now, A100 at its fastest, H100 at both ends

    def test_with_even_odds_knowing_may_cost(self) -> None:
        """exp is convex: the mean over slower and faster steps is above the cost of the median."""
        (value, *_) = values_of(continuous, rebuilt(KNOWN, confidence=0.5))[::-1]
        assert value.sku == H100 and value.gain is not None and value.gain < 0.0

    def test_no_fleet_after_a_measurement_is_counted_apart(self) -> None:
        request = rebuilt(KNOWN, confidence=0.8)  # 4 exp(0.2 * 0.842) = 4.7; at 0.929: 5.4
        (value,) = [one for one in values_of(whole({H100: 4.0}, {H100: 0.2}, most=5), request) if one.sku == H100]
        assert value.impossible == pytest.approx(1 / 7)
        counts = [math.ceil(4.0 * math.exp(0.2 * NormalDist().inv_cdf(q)) - 1e-9) for q in QUANTILES[:-1]]
        assert value.gain == pytest.approx(3.0 * (5 - mean(counts)))

    def test_of_an_infeasible_request_the_odds_of_a_fleet_are_told(self) -> None:
        planner = whole({H100: 4.0}, {H100: 0.2}, most=4)  # a fleet up to the median
        (value, *_) = values_of(planner)
        assert (value.sku, value.gain) == (H100, None)
        assert value.changes == pytest.approx(4 / 7)
        assert any("0.57 that there is a fleet" in line for line in said(planner, PlanQuestion.MEASURE))

    def test_the_sentences_of_confidence_add_up(self) -> None:
        """42 USD/h with exact estimates, 66 at 90 %, 78 at 99 %."""
        usd = {0.5: 42.0, 0.8: 66.0, 0.9: 66.0, 0.95: 78.0, 0.99: 78.0}

        def stepped(request: PlanRequest, hardware: HardwareDb) -> Plan:
            return known(made_up(request, {(H100, 1): 7}, usd[request.confidence]))

        (line,) = [one for one in said(stepped, PlanQuestion.CONFIDENCE) if "xact" in one]
        assert all(part in line for part in ("(42.00 USD/h)", "90 % confidence costs 24.00", "99 % another 12.00"))

    def test_what_is_not_calibrated_is_named_and_takes_no_plan(self) -> None:
        replanner = Replanner(continuous)
        found = explain(replanner.plan(REQUEST), replanner, [PlanQuestion.MEASURE])
        assert replanner.solves == 1
        assert not any(value.calibrated for value in found.measurements)
        (line,) = [one for one in sentences(found) if "calibrated" in one]
        assert sku_words(H100) in line and sku_words(A100) in line

    def test_what_counts_as_measured_is_not_measured_again(self) -> None:
        assert [one.sku for one in values_of(continuous, rebuilt(KNOWN, measured_steps=came_out(H100, 0.3)))] == [A100]

    def test_the_sentence_quotes_value_probability_and_commands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where kernels scatter by more than models of a GPU differ, the kernels are measured."""
        monkeypatch.setattr(uncertainty, "group_spread", lambda config, is_mixed: GroupSpread(0.001, 0.001, 0.0))

        def planner(request: PlanRequest, hardware: HardwareDb) -> Plan:
            return known(continuous(request, hardware))

        lines = " ".join(said(planner, PlanQuestion.MEASURE))
        (value, *_) = values_of(planner)
        assert value.usd_per_month is not None and value.settled_by is Measuring.KERNELS
        assert f"Measuring H100 SXM is worth {value.usd_per_month:,.0f} USD/month to this decision" in lines
        assert "with probability 1.00" in lines
        now = 30.0 * math.exp(0.2 * NormalDist().inv_cdf(0.9))
        below = [30.0 * math.exp(0.2 * NormalDist().inv_cdf(quantile)) for quantile in QUANTILES[:-1]]  # 0.93 is dearer
        assert value.cheaper == pytest.approx(6 / 7)
        assert value.saving == pytest.approx(1.0 - mean(below) / now)
        assert f"makes it {100 * value.saving:.0f} % cheaper with probability 0.86" in lines
        assert "python -m calibration run --out my-gpu.json" in lines
        assert f"Measuring would change nothing: {sku_words(A100)}." in lines

    def test_a_model_that_is_less_certain_than_its_kernels_is_benchmarked(self) -> None:
        """Where the time to a first token decides: models differ by more in it than kernels of a measured GPU."""

        def planner(request: PlanRequest, hardware: HardwareDb) -> Plan:
            found = known(continuous(request, hardware))
            checks = tuple(check for check in found.slow_targets if check.target.metric is Metric.TTFT)
            return replace(found, slow_targets=checks)

        (value, *_) = values_of(planner)
        assert value.llm_spread is not None and value.kernel_spread is not None
        assert value.llm_spread > value.kernel_spread and value.settled_by is Measuring.LLM
        assert any("planner export plan.json --to benchmarks" in one for one in said(planner, PlanQuestion.MEASURE))

    def test_rates_are_worth_rates(self) -> None:
        request = rebuilt(KNOWN, objective="max_rate")

        def planner(request: PlanRequest, hardware: HardwareDb) -> Plan:
            served = made_up(request, {(H100, 1): 1}, 10.0)
            workload = request.workload.at_rate(20.0 / slowdown(request, H100, 0.2))
            return replace(served, deployments=(replace(served.deployments[0], workload=workload),))

        found = {value.sku: value for value in values_of(planner, request)}
        after = [20.0 / math.exp(0.2 * NormalDist().inv_cdf(quantile)) for quantile in QUANTILES]
        now = 20.0 / math.exp(0.2 * NormalDist().inv_cdf(0.9))
        assert found[H100].gain == pytest.approx(mean(after) - now)
        assert found[H100].usd_per_month is None

    def test_a_real_planner_agrees_with_all_of_its_plans(self) -> None:
        (value,) = real_answers().measurements
        now = outcome_of(plan(REAL_REQUEST, simulate=False, alternatives=False))
        after = [real_outcome(quantile) for quantile in QUANTILES]
        assert value.gain == pytest.approx(mean(now.usd_per_hour - one.usd_per_hour for one in after))
        costs = [one.usd_per_hour for one in after]
        assert costs == sorted(costs)


REAL_REQUEST = small_request(search={**QUICK, "skus": [H100], "calibrated": True}, workload={"rate_per_s": 40.0})


@cache
def real_answers() -> Explanation:
    replanner = Replanner()
    asked = [PlanQuestion.CONFIDENCE, PlanQuestion.MEASURE]
    return explain(replanner.plan(REAL_REQUEST), replanner, asked)


def real_outcome(quantile: float) -> PlanOutcome:
    request = rebuilt(REAL_REQUEST, measured_steps=came_out(H100, quantile))
    return outcome_of(plan(request, simulate=False, alternatives=False))


def known(found: Plan) -> Plan:
    """A made-up plan whose replicas are calibrated."""
    config = calibrated(sku=H100)
    deployments = tuple(
        replace(
            planned,
            deployment=rebuilt(
                planned.deployment,
                pools=tuple(rebuilt(pool, config=config) for pool in planned.deployment.pools),
            ),
        )
        for planned in found.deployments
    )
    return replace(found, deployments=deployments)


def values_of(planner: Solve, request: PlanRequest = KNOWN) -> tuple[MeasurementValue, ...]:
    replanner = Replanner(planner)
    return measurement_values(replanner.plan(request), replanner)


def said(planner: Solve, question: PlanQuestion, request: PlanRequest = KNOWN) -> tuple[str, ...]:
    replanner = Replanner(planner)
    return sentences(explain(replanner.plan(request), replanner, [question]))
