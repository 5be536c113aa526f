"""Explanations against closed forms: a made-up planner whose cost is a formula, so that every answer is known.

A few real plans check that the same holds together on the real thing.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from functools import cache

import pytest

from hardware_db import HardwareDb
from planner.analysis import (
    Explanation,
    PlanMeasure,
    PlanningCase,
    PlanOutcome,
    PlanQuestion,
    Replanner,
    api_prices_of,
    explain,
)
from planner.analysis.perturbations import at_price, numeric_requirements
from planner.analysis.replanner import OutOfSolvesError, nearest_change, what_if
from planner.analysis.sensitivity import tornado
from planner.analysis.why import (
    marginal_values,
    requirement_costs,
    runners_up,
    smallest_relaxations,
    smallest_steps,
)
from planner.core import InputError
from planner.fleet import Plan, PlanRequest, plan
from planner.report.explanation import headline, report, sentences, tables
from planner.report.records import document as document_of
from tests.builders import HARDWARE, small_request
from tests.made_up_plans import A100, H100, QUICK, REAL, REQUEST, budget, lumpy, made_up, smooth, two_skus, with_budget


class TestMarginalValues:
    """Steps of a smooth cost have their exact worth; those of a lumpy one are found where they are."""

    def test_the_worth_of_a_step_is_the_difference_of_the_formula(self) -> None:
        # cost = 30 / 0.5 = 60 USD/h
        found = marginal_values(made_up(REQUEST, {}, 60.0), Replanner(smooth))
        worth = {(one.name, round(one.after, 9)): one.gain for one in found}
        for threshold_s in (0.51, 0.49, 0.55, 0.45):
            assert worth["p95 TTFT", threshold_s] == pytest.approx(60.0 - 30.0 / threshold_s)
        assert worth["demand", 33.0] == pytest.approx(-6.0)
        assert worth["demand", 27.0] == pytest.approx(6.0)
        assert worth["p95 TPOT", 0.031] == 0.0

    def test_what_is_aimed_at_decides_what_a_step_wins(self) -> None:
        # the most that a budget buys, at 2 USD/h for 3 requests/s
        def most(request: PlanRequest, hardware: HardwareDb) -> Plan:
            rate = min(1.5 * budget(request), request.workload.rate_per_s)
            served = made_up(request, {(H100, 1): 1}, rate / 1.5)
            (planned,) = served.deployments
            return replace(served, deployments=(replace(planned, workload=request.workload.at_rate(rate)),))

        limits = {"budget_usd_per_hour": 10.0}
        request = small_request(objective="max_rate", limits=limits)
        found = {
            (one.name, one.after): one.gain for one in marginal_values(made_up(request, {}, 10.0), Replanner(most))
        }
        assert found["budget", 11.0] == pytest.approx(1.5)
        assert found["budget", 9.0] == pytest.approx(-1.5)
        assert found["demand", 33.0] == 0.0
        best = PlanOutcome("optimal", "", usd_per_hour=7.2, rate_per_s=4.0)
        assert best.value(PlanMeasure.RATE_PER_COST) == pytest.approx(2000.0)

    def test_a_step_that_leaves_no_fleet_has_no_worth_and_says_so(self) -> None:
        request = with_budget(60.0)
        found = {(one.name, one.after): one for one in marginal_values(made_up(request, {}, 60.0), Replanner(smooth))}
        tighter = found["budget", 54.0]
        assert tighter.gain is None
        assert not tighter.outcome.feasible

    def test_the_smallest_step_is_where_the_lump_ends(self) -> None:
        # 30 requests/s need 5 lumps of 7; the plan changes above 35 and at 28 and below
        found = {(one.name, one.easier): one for one in smallest_steps(made_up(REQUEST, {}, 15.0), Replanner(lumpy))}
        more, less = found["demand", False], found["demand", True]
        assert 35.0 < more.after <= 35.0 + 0.005 * 30.0
        assert 28.0 - 0.005 * 30.0 <= less.after <= 28.0
        assert (more.gain, less.gain) == (-3.0, 3.0)
        assert found["p95 TTFT", True].gain == 0.0

    def test_pieces_are_found_exactly(self) -> None:
        # 4 H100 are cheaper than 7 A100; the limit bites when fewer than 4 may be had
        request = small_request(limits={"gpus": {H100: 9}}, prices={"usd_per_gpu_hour": {H100: 1.0, A100: 1.0}})
        found = {(one.name, one.easier): one for one in smallest_steps(made_up(request, {}, 4.0), Replanner(two_skus))}
        assert found[f"most {H100}", False].after == 3.0
        assert found[f"most {H100}", False].gain == pytest.approx(-3.0)
        assert found[f"most {H100}", True].gain == 0.0

    @pytest.mark.parametrize("place", [1.01, 1.7, 2.0, 3.999])
    def test_the_place_of_a_change_is_bracketed(self, place: float) -> None:
        found = nearest_change(lambda x: x >= place, 1.0, (1.5, 2.0, 4.0), 0.001)
        assert found is not None
        assert place <= found <= place + 0.001
        assert nearest_change(lambda x: x >= 5.0, 1.0, (1.5, 2.0, 4.0), 0.001) is None

    @pytest.mark.parametrize("place", [1.01, 1.7, 2.0, 3.999])
    @pytest.mark.parametrize("off", [-0.3, -1e-5, 0.0, 1e-5, 0.3])
    def test_where_a_change_is_likely_says_how_soon_it_is_found_and_not_where(self, place: float, off: float) -> None:
        asked: list[float] = []

        def changes(value: float) -> bool:
            asked.append(value)
            return value >= place

        outward = (1.5, 2.0, 4.0)
        assert nearest_change(changes, 1.0, outward, 0.001, lambda _: place + off) == nearest_change(
            lambda value: value >= place, 1.0, outward, 0.001
        )
        if not off and place not in outward:
            assert len(asked) <= len(outward) + 2


class TestRequirementCosts:
    """With less without."""

    def test_a_requirement_costs_what_dropping_it_saves(self) -> None:
        request = with_budget(1000.0)
        found = {one.name: one for one in requirement_costs(made_up(request, {}, 60.0), Replanner(smooth))}
        assert found["p95 TTFT"].cost == pytest.approx(60.0 - 30.0 / 86_400.0)
        assert found["p95 TPOT"].cost == 0.0
        assert found["budget"].cost == 0.0
        assert "demand" not in found

    def test_a_limit_costs_the_difference_to_the_fleet_it_forbids(self) -> None:
        request = small_request(limits={"gpus": {H100: 3}}, prices={"usd_per_gpu_hour": {H100: 1.0, A100: 1.0}})
        (limit,) = [
            one
            for one in requirement_costs(made_up(request, {}, 7.0), Replanner(two_skus))
            if one.key == f"limits.gpus.{H100}"
        ]
        assert limit.cost == pytest.approx(7.0 - 4.0)
        assert limit.without.gpus == {H100: 4}


class TestRelaxations:
    """The formula says which change is smallest."""

    def test_each_relaxation_is_the_one_of_the_formula(self) -> None:
        request = with_budget(40.0)  # cost would be 60
        found = {one.name: one for one in smallest_relaxations(made_up(request, {}, math.inf), Replanner(smooth))}
        for name, low, high in (("budget", 60.0, 60.4), ("p95 TTFT", 0.75, 0.755), ("demand", 19.7, 20.0)):
            assert low <= (found[name].needed or 0.0) <= high, name
        assert (found["p95 TPOT"].needed, found["p95 TPOT"].outcome) == (None, None)

    def test_pieces_are_relaxed_one_by_one(self) -> None:
        request = small_request(search={"skus": [H100]}, limits={"gpus": {H100: 1}})
        found = {one.name: one for one in smallest_relaxations(made_up(request, {}, math.inf), Replanner(two_skus))}
        assert found[f"most {H100}"].needed == 4.0

    def test_a_feasible_plan_needs_none(self) -> None:
        assert smallest_relaxations(REAL, Replanner(smooth)) == ()

    def test_a_real_request_becomes_feasible_at_the_value_found(self) -> None:
        tight = [
            {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
            {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.002},
        ]
        request = small_request(
            slo=tight, search={**QUICK, "skus": [H100]}, workload={"rate_per_s": 1.0}, simulation={"requests": 100}
        )
        replanner = Replanner()
        found = {one.name: one for one in smallest_relaxations(plan(request), replanner)}
        needed = found["p95 TPOT"].needed
        assert needed is not None
        (tpot,) = [one for one in numeric_requirements(request) if one.name == "p95 TPOT"]
        assert replanner.outcome(tpot.with_value(needed)).feasible
        assert not replanner.outcome(tpot.with_value(0.97 * needed)).feasible
        assert found["p95 TTFT"].outcome is None


def table_of(seed: int) -> dict[tuple[str, int], float]:
    """A cost for each of some SKUs at each degree, all different."""
    draw = random.Random(seed)
    skus = [H100, A100, "l40s", "h200-sxm"][: draw.randint(2, 4)]
    degrees = [1, 2, 4][: draw.randint(1, 3)]
    pairs = list(itertools.product(skus, degrees))
    return {pair: float(cost) for pair, cost in zip(pairs, draw.sample(range(10, 1000), len(pairs)), strict=True)}


def cheapest_of(costs: Mapping[tuple[str, int], float]) -> Callable[[PlanRequest, HardwareDb], Plan]:
    def solve(request: PlanRequest, hardware: HardwareDb) -> Plan:
        allowed = {
            (sku, tp): usd for (sku, tp), usd in costs.items() if sku in request.search.skus and tp in request.search.tp
        }
        best = min(allowed, key=lambda pair: allowed[pair])
        return made_up(request, {best: 1}, allowed[best])

    return solve


class TestRunnersUp:
    """Brute force over small tables: what comes second, third and fourth."""

    @pytest.mark.parametrize("seed", range(10))
    def test_they_are_the_next_best_in_order(self, seed: int) -> None:
        costs = table_of(seed)
        skus, degrees = (list(dict.fromkeys(part)) for part in zip(*costs, strict=True))
        request = small_request(search={"skus": skus, "tp": degrees, "modes": ["mixed"]})
        ordered = sorted(costs.values())
        found = runners_up(made_up(request, {}, ordered[0]), Replanner(cheapest_of(costs)), count=4)
        assert [one.outcome.usd_per_hour for one in found] == ordered[1:5]
        assert [one.loss for one in found] == [usd - ordered[0] for usd in ordered[1:5]]
        only = small_request(search={"skus": skus[:1], "tp": degrees[:1], "modes": ["mixed"]})
        assert runners_up(made_up(only, {}, 5.0), Replanner(cheapest_of(costs))) == ()


class TestSolver:
    """Solves are counted, remembered and bounded."""

    def test_the_same_question_is_solved_once(self) -> None:
        replanner = Replanner(smooth)
        for _ in range(3):
            replanner.outcome(REQUEST)
            replanner.outcome(small_request(confidence=0.9, search=QUICK, simulation={"requests": 300}))
        assert replanner.solves == 1
        replanner.outcome(PlanningCase(REQUEST, at_price(PlanningCase(REQUEST, HARDWARE), H100, 2.0).hardware))
        assert replanner.solves == 2

    def test_the_bound_is_kept_and_what_is_left_is_named(self) -> None:
        replanner = Replanner(smooth, at_most=12)
        found = explain(REAL, replanner, [PlanQuestion.MARGINAL, PlanQuestion.TORNADO])
        assert replanner.solves == 12
        assert found.answered == (PlanQuestion.MARGINAL,)
        assert "solves" in found.unanswered["tornado"]
        with pytest.raises(OutOfSolvesError, match="allow more"):
            tornado(REAL, replanner)

    def test_a_request_that_is_refused_is_an_outcome(self) -> None:
        def refuse(request: PlanRequest, hardware: HardwareDb) -> Plan:
            raise InputError("search.engine", "x", "not known", "choose another")

        found = Replanner(refuse).outcome(REQUEST)
        assert not found.feasible
        assert "choose another" in found.fleet


@cache
def found_for_real() -> Explanation:
    """All that is asked of a real plan."""
    return explain(
        REAL,
        Replanner(),
        [PlanQuestion.MARGINAL, PlanQuestion.REQUIREMENTS, PlanQuestion.API, PlanQuestion.RUNNERS_UP],
        api_prices_of("llama-3.1-8b", date(2026, 11, 22))[1:],
    )


class TestExplanation:
    """All questions on one real plan, and how they are told."""

    def test_what_was_asked_is_answered_and_every_answer_has_its_table(self) -> None:
        found = found_for_real()
        assert (len(found.answered), found.unanswered) == (4, {})
        assert found.measure is PlanMeasure.COST and found.outcome.gpus == REAL.gpus
        assert all(one.cost is not None and one.cost >= -1e-3 for one in found.requirements), "none is a gift"
        assert f"{REAL.cost.usd_per_hour:.2f} USD/h" in headline(found)  # type: ignore[union-attr]
        shown = tables(found)
        assert {table.title for table in shown} >= {"What one step is worth", "Against hosted APIs"}
        assert all(len(row) == len(table.columns) for table in shown for row in table.rows)
        assert all(table.title in report(found).markdown for table in shown)
        told = document_of("explanation", found)["explanation"]
        assert told["outcome"]["usd_per_hour"] == found.outcome.usd_per_hour
        assert len(told["marginals"]) == len(found.marginals)
        assert REAL.allocation is not None
        assert all(row.name in sentences(found)[0] for row in REAL.allocation.binding)

    def test_of_an_infeasible_request_the_relaxations_are_told(self) -> None:
        found = explain(made_up(with_budget(40.0), {}, math.inf), Replanner(smooth))
        assert found.answered == (PlanQuestion.RELAXATIONS,)


class TestWhatIf:
    """Before and after."""

    def test_gains_of_single_changes_add_up(self) -> None:
        first = REQUEST.model_copy(update={"workload": REQUEST.workload.at_rate(60.0)})
        (ttft,) = [one for one in numeric_requirements(first) if one.name == "p95 TTFT"]
        found = what_if(REQUEST, [("rate", first), ("ttft", ttft.with_value(1.0))], Replanner(smooth))
        assert [one.gain for one in found.changes] == [pytest.approx(-60.0), pytest.approx(60.0)]
        assert found.gain == pytest.approx(sum(one.gain or 0.0 for one in found.changes))
        assert found.solves == 3
