"""With which probability a fleet holds where step times are uncertain: closed forms, and every draw by itself."""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from planner.core import Metric, rebuilt
from planner.engine import StepTimeShift, step_time
from planner.fleet import Plan, PlanConfidence, PlannedDeployment, plan
from planner.fleet import confidence as found_by
from planner.fleet.confidence import Judgement, counted_draws, rate_factors
from planner.fleet.verification import ScopedSlo, violated_metrics
from planner.scenario import load_scenario
from planner.search import BoundedCache
from planner.serving import (
    NOT_MEASURED,
    MeasuredSteps,
    Role,
    StandardNormals,
    at_slow_end,
    drawn_shifts,
    replica_spreads,
)
from planner.workload import LatencyTarget, Slo
from tests.builders import calibrated, small_request
from tests.places import DOCS
from tests.studies.confidence import CASES, RESULTS

CALIBRATED: dict[str, Any] = {"skus": ["h100-sxm"], "calibrated": True, "modes": ["mixed"], "tp": [1]}


def planned(confidence: float = 0.5, *, simulate: bool = False, **changes: Any) -> Plan:
    search = {**CALIBRATED, **changes.pop("search", {})}
    request = small_request(**{"precision": "narrower", **changes, "confidence": confidence, "search": search})
    return plan(request, simulate=simulate, alternatives=False)


@cache
def base() -> Plan:
    """The plan that the others change."""
    return planned()


def targets_of(found: Plan, *only: LatencyTarget) -> list[ScopedSlo]:
    one = found.deployments[0]
    return [ScopedSlo(one.service, Slo(targets=only or one.slo.targets), frozenset(one.slices))]


def targets_with_room(room: float) -> list[ScopedSlo]:
    """Those of the plan that the others change, at so many times its latencies."""
    one = base().deployments[0]
    near = (each.model_copy(update={"threshold_s": room * one.predicted.latency_s(each)}) for each in one.slo.targets)
    return targets_of(base(), *near)


def judgement_of(
    deployments: Sequence[PlannedDeployment], slos: list[ScopedSlo], asked: float, seed: int, *, exact: bool = False
) -> Judgement:
    request = base().request.model_copy(update={"confidence": asked, "seed": seed})
    return counted_draws(deployments, slos, request, rate_factors(deployments, slos), exact=exact)


def confidence_of(
    deployments: Sequence[PlannedDeployment], slos: list[ScopedSlo], asked: float, seed: int
) -> PlanConfidence:
    return judgement_of(deployments, slos, asked, seed, exact=True).confidence


def normals(count: int, seed: int) -> StandardNormals:
    """Independent draws of everything."""
    return StandardNormals(*np.random.default_rng(seed).standard_normal((len(StandardNormals._fields), count)))


def factor_that_holds(one: PlannedDeployment, slos: list[ScopedSlo]) -> float:
    """Largest factor on steps of decodes alone with which it holds."""
    low, high = 1.0, 4.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        pools = tuple(
            rebuilt(pool, config=rebuilt(pool.config, shift=StepTimeShift(decode=middle, prompt=middle)))
            for pool in one.surviving.pools
        )
        slower = replace(one, surviving=rebuilt(one.surviving, pools=pools))
        low, high = (middle, high) if not violated_metrics(found_by.by_theory(slower, 1.0), slos) else (low, middle)
    return low


class TestShifts:
    """What a deviation makes of step times."""

    def test_steps_take_their_factors_and_a_request_its_seconds(self) -> None:
        """By definition of the shift; without a roofline in the way, on the kernels of one GPU."""
        config = calibrated(max_batched_tokens=4096)
        spreads = replica_spreads(config, Role.MIXED, 1000.0, 200.0)
        assert spreads is not None
        slow = rebuilt(config, shift=spreads.shift(math.log(1.3), math.log(1.2), 0.05))
        decodes = [1500] * 16
        ratio = step_time(slow, decode_contexts=decodes).total_s / step_time(config, decode_contexts=decodes).total_s
        assert ratio == pytest.approx(1.3, rel=1e-6)
        assert slow.costs.request_s == pytest.approx(config.costs.request_s + 0.05)
        ratio = step_time(slow, chunks=[(1000, 0)]).total_s / step_time(config, chunks=[(1000, 0)]).total_s
        assert ratio == pytest.approx(1.2, rel=0.03)  # host time of a step goes with the decodes

    def test_draws_have_the_variance_that_deviations_count(self) -> None:
        """One deviation of `at_slow_end` is one standard deviation of what is drawn: steps, prompts, a lone prompt."""
        spreads = replica_spreads(calibrated("llama-3.1-8b", "h200-sxm"), Role.PREFILL, 1000.0, 200.0)
        assert spreads is not None
        logs = drawn_shifts(spreads, normals(4000, 3))
        shift = at_slow_end(spreads, 1.0)
        assert np.exp(logs.std(axis=0))[:2] == pytest.approx([shift.decode, shift.prompt], rel=0.02)
        alone_s = spreads.prompt_s * logs[:, 1] + logs[:, 2]
        assert alone_s.std() == pytest.approx(spreads.prompt_s * math.log(shift.prompt) + shift.request_s, rel=0.03)
        assert logs[:, 2].std() == pytest.approx(spreads.late_s, rel=0.03)

    def test_draws_after_measuring_are_those_of_the_conditional_distribution(self) -> None:
        """Exact for normals: what was seen has its posterior, what goes with it moves by covariance over variance."""
        spreads = replica_spreads(calibrated("llama-3.1-8b", "h200-sxm"), Role.PREFILL, 1000.0, 200.0)
        assert spreads is not None
        draws = normals(20_000, 4)
        before = drawn_shifts(spreads, draws)
        known = MeasuredSteps(steps=1.5, steps_error=0.3)
        after = drawn_shifts(spreads, draws, known)
        assert after[:, 0].mean() == pytest.approx(1.5 * spreads.steps, rel=0.01)
        assert after[:, 0].std() == pytest.approx(0.3 * spreads.steps, rel=0.02)
        covariances = np.cov(before.T)[0]
        assert after.mean(axis=0) == pytest.approx(1.5 * spreads.steps * covariances / covariances[0], abs=0.02)
        assert drawn_shifts(spreads, draws, NOT_MEASURED) == pytest.approx(before)

    def test_the_slow_end_after_measuring_is_that_of_the_draws(self) -> None:
        """Both were measured: mean and deviation of each that is drawn are those that the shift is made of."""
        spreads = replica_spreads(calibrated("llama-3.1-8b", "h200-sxm"), Role.PREFILL, 1000.0, 200.0)
        assert spreads is not None
        known = MeasuredSteps(steps=0.8, steps_error=0.4, first_token=-0.5, first_token_error=0.2)
        after = drawn_shifts(spreads, normals(20_000, 5), known)
        alone_s = spreads.prompt_s * after[:, 1] + after[:, 2]
        assert alone_s.mean() == pytest.approx(-0.5 * spreads.alone_s, rel=0.03)
        assert alone_s.std() == pytest.approx(0.2 * spreads.alone_s, rel=0.03)
        expected, slow = at_slow_end(spreads, 0.0, known), at_slow_end(spreads, 1.0, known)
        assert math.log(expected.decode) == pytest.approx(after[:, 0].mean(), rel=0.03)
        assert math.log(slow.decode / expected.decode) == pytest.approx(after[:, 0].std(), rel=0.03)
        assert math.log(slow.prompt / expected.prompt) == pytest.approx(after[:, 1].std(), rel=0.03)
        assert slow.first_token_left == 0.2 and slow.steps_left == 0.4


class TestProbability:
    """The share of draws in which every target holds."""

    def test_one_target_that_goes_with_the_steps_alone_holds_by_the_normal_distribution(self) -> None:
        """TPOT has one uncertain factor, of kernels and model: P = Phi(log(factor that still holds) / sd)."""
        one = base().deployments[0]
        tpot = [target for target in one.slo.targets if target.metric.value == "tpot"]
        near = {"threshold_s": 1.6 * one.predicted.latency_s(tpot[0])}
        slos = targets_of(base(), tpot[0].model_copy(update=near))
        lengths = one.workload.lengths
        config = one.surviving.pools[0].config
        spreads = replica_spreads(config, Role.MIXED, lengths.mean_input, lengths.mean_output)
        assert spreads is not None
        within = math.log(factor_that_holds(one, slos))
        low, high = sorted(spread for spread in (spreads.steps, spreads.prompts))
        found = confidence_of(base().deployments, slos, 0.5, seed=1)
        expected = [NormalDist().cdf(within / spread) for spread in (high, low)]
        assert expected[0] - 3 * found.error <= found.holds <= expected[1] + 3 * found.error
        assert 0.6 < found.holds < 0.99  # neither end: the case says something

    def test_what_follows_from_other_draws_is_what_each_draw_says_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(found_by, "DRAWS", 60)
        judge = found_by._Judge(base().deployments[0], targets_with_room(1.2), 4, {}, 1.0, {})
        by_itself = [not judge._verified_at(logs).missed for logs in judge.logs]
        asked, verdict = [], judge._verified_at
        monkeypatch.setattr(judge, "_verified_at", lambda logs, factor=1.0: asked.append(logs) or verdict(logs, factor))
        assert judge.holds(None).tolist() == by_itself
        assert 0 < sum(by_itself) < 60 and len(asked) < 40

    @pytest.mark.parametrize("room", [1.1, 1.2, 1.3, 1.4, 1.6])
    def test_counting_may_stop_once_the_verdict_is_known(self, room: float) -> None:
        one, slos = base().deployments[0], targets_with_room(room)
        for asked in (0.6, 0.9):
            stopped, whole = (judgement_of([one], slos, asked, 3, exact=exact) for exact in (False, True))
            assert (whole.confidence.holds >= asked) is not bool(stopped.shortfalls)

    @pytest.mark.parametrize("room", [1.02, 1.1, 1.2])
    def test_what_is_found_to_hold_holds_when_all_is_counted_again(self, room: float) -> None:
        """At the very share that it holds with, which an early end may overstate: no plan shows less than was asked."""
        slos, one = targets_with_room(room), base().deployments[0]
        for seed in range(4):
            asked = confidence_of([one], slos, 0.5, seed).holds
            request = base().request.model_copy(update={"confidence": asked, "seed": seed})
            known: dict[Hashable, found_by._Surface] = {}
            found, again = (counted_draws([one], slos, request, exact=exact, surfaces=known) for exact in (False, True))
            assert found.shortfalls or found.confidence == again.confidence

    def test_at_the_rate_that_it_keeps_a_fleet_that_fell_short_holds_as_often_as_was_asked(self) -> None:
        """Not more often either: what is lowered too far is dearer than need be."""
        one, slos = base().deployments[0], targets_with_room(1.25)
        lower = one
        while shortfalls := judgement_of([lower], slos, 0.9, 3).shortfalls:
            (short,) = shortfalls
            assert short.kept < 1.0
            lower = replace(lower, workload=lower.workload.at_rate(short.kept * lower.workload.rate_per_s))
        found = confidence_of([lower], slos, 0.9, 3)
        assert lower is not one and 0.9 <= found.holds < 0.93

    @pytest.mark.parametrize(("tight", "by"), [(Metric.TTFT, Role.PREFILL), (Metric.TPOT, Role.DECODE)])
    def test_of_a_pair_the_pool_that_makes_a_latency_late_is_lowered_and_the_other_is_not(
        self, tight: Metric, by: Role
    ) -> None:
        """In theory TPOT does not go by prefill steps at all, TTFT hardly by decode steps while places are free."""
        pair = planned(search={"modes": ["disaggregated"]})
        (one,) = pair.deployments
        near = (
            each.model_copy(
                update={"threshold_s": (1.05 if each.metric is tight else 4.0) * one.predicted.latency_s(each)}
            )
            for each in one.slo.targets
        )
        request = pair.request.model_copy(update={"confidence": 0.9})
        (short,) = counted_draws([one], targets_of(pair, *near), request).shortfalls
        assert set(short.kept_by) == {by} and short.metrics == {tight}
        assert short.kept < 1.0

    def test_deployments_on_one_gpu_and_engine_are_off_together(self) -> None:
        """Two deployments alike hold and miss in the same draws: the probability of both is that of one."""
        slos = targets_of(base())
        one = confidence_of(base().deployments, slos, 0.5, seed=2)
        two = confidence_of([*base().deployments, *base().deployments], slos, 0.5, seed=2)
        assert two.holds == one.holds < 1.0

    def test_what_is_not_calibrated_has_no_known_probability(self) -> None:
        found = plan(small_request(), alternatives=False)
        assert found.confidence is not None and set(found.confidence.uncalibrated) == set(found.gpus)


@pytest.fixture(scope="module", name="sure")
def surely_planned() -> Plan:
    return planned(0.9, simulate=True, workload={"rate_per_s": 45.0})  # not at the edge of what one GPU carries


class TestPlans:
    """Planned for a probability."""

    def test_it_holds_with_the_probability_asked_for_in_fresh_draws(self, sure: Plan) -> None:
        found = confidence_of(sure.deployments, targets_of(sure), 0.9, seed=77)
        assert sure.confidence is not None and sure.confidence.holds >= 0.9
        assert found.holds >= 0.9 - 3.0 * found.error

    def test_being_surer_never_costs_less(self) -> None:
        near = {"rate_per_s": 35.0}  # what one GPU carries in about eight worlds of ten
        plans = [planned(each, workload=near) for each in (0.5, 0.8, 0.9, 0.99)]
        costs = [one.cost.usd_per_hour for one in plans if one.cost is not None]
        assert len(costs) == 4 and costs == sorted(costs) and costs[-1] > costs[0]


def test_plans_for_90_percent_hold_in_nine_worlds_of_ten() -> None:
    """The committed study (`tests.studies.confidence`): fleets of estimates, judged by step times drawn afresh.

    A share of 0.9 is known to 0.021 from 200 worlds and to 0.047 from 40 (one standard error): two of them are allowed.
    """
    with RESULTS.open(encoding="utf-8") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert rows.keys() == CASES.keys()
    quoted = " ".join((DOCS / "explanation" / "confidence.md").read_text(encoding="utf-8").split())
    for row in rows.values():
        assert float(row["holds"]) >= 0.9 - 2.0 * 0.021
        assert float(row["holds_simulated"]) >= 0.9 - 2.0 * 0.047
        shares = " | ".join(f"{100.0 * float(row[name]):.0f} %" for name in ("says", "holds", "holds_simulated"))
        costs = " | ".join(f"{float(row[name]):.2f}" for name in ("usd_per_hour", "clairvoyant_usd"))
        assert f"{shares} | {costs} |" in quoted


def test_a_spline_is_believed_as_far_as_it_foretold() -> None:
    """Two smooth latencies, the worse of which counts; one that is unbounded is no point of the spline."""
    rng = np.random.default_rng(1)
    places = np.column_stack([rng.normal(0.0, 1.0, (60, 3)), np.full(60, 3.0)])
    logs = places[:, :3] / 10.0
    truth = np.column_stack([logs @ [2.5, 0.9, 0.1] + 3.0 * logs[:, 0] ** 2 - 0.1, logs @ [0.5, 1.7, 0.0] - 0.05])
    surface = found_by._Surface()
    for place in range(40):
        read_off = surface.worst(places)
        assert (read_off is None) is (len(surface.found) <= 4)
        if place > 20 and read_off is not None:
            sure = np.abs(read_off) > surface.doubt(3.0)
            assert sure.sum() > 45 and ((read_off <= 0.0) == (truth.max(axis=1) <= 0.0))[sure].all()
        surface.add(places[place], truth[place])
    before = surface.worst(places)
    surface.add(places[50], np.array([math.inf, math.inf]))
    assert surface.doubt(3.0) > found_by.IN_DOUBT * 0.5 and surface.worst(places) == pytest.approx(before)
    assert math.isinf(surface.doubt(4.0))  # nothing was foretold at another rate


def test_where_latencies_go_linearly_they_are_read_off_exactly() -> None:
    """The spline through points of a plane is the plane (its bending is 0), and of one rate it says nothing of others.

    At a second rate a point less is enough.
    """
    rng = np.random.default_rng(2)
    places = np.column_stack([rng.normal(0.0, 1.0, (30, 3)), np.repeat([2.0, 2.5], 15)])
    truth, surface = places @ [0.2, 0.3, 0.2, 0.7] - 1.9, found_by._Surface()
    for place in (*range(8), 15):
        surface.add(places[place], truth[[place]])
    assert surface.worst(places) == pytest.approx(truth, abs=1e-9)


def test_with_steps_as_slow_as_the_last_draw_a_fleet_is_as_bad_as_in_it() -> None:
    """Both evaluated: what everything has to be slower by is read off a spline near the targets."""
    judge = found_by._Judge(base().deployments[0], targets_with_room(1.2), 4, {}, 1.0, {})
    judge.holds(None)
    draw = int(np.flatnonzero(judge.ranks() == judge.held.sum() - 1)[0])  # the worst that holds
    deviations = judge.deviations_in(draw, 3.0)
    slow, drawn = (
        judge._verified_at(logs).log_excesses.max() for logs in (judge._slow_logs(deviations), judge.logs[draw])
    )
    assert 0.0 < deviations < 3.0 and slow == pytest.approx(drawn, abs=0.02)


def test_fleets_of_several_skus_are_given_up_where_one_of_them_holds_in_no_world() -> None:
    """L4s are too slow for the target in the worlds that have to be borne: the plan is that of the other SKU alone."""
    fp8 = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
    content = {
        "llm": "llama-3.1-8b",
        "precision": fp8,
        "workload": {"rate_per_s": 6.15, "lengths": {"input_tokens": 4000, "output_tokens": 300}, "drift": "none"},
        "slo": [
            {"metric": "ttft", "percentile": 0.95, "threshold_s": 4.0},
            {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.03},
        ],
        "search": {"tp": [1, 2], "max_running_requests": [256], "max_batched_tokens": [2048]},
        "prices": {"usd_per_gpu_hour": {"h200-sxm": 3.4518, "l4": 0.39}},
    }
    both, alone = (
        plan(load_scenario(content, [f"search.skus=[{skus}]"]), simulate=False, alternatives=False).cost
        for skus in ("l4, h200-sxm", "h200-sxm")
    )
    assert both is not None and alone is not None and both.usd_per_hour <= alone.usd_per_hour


def test_a_world_is_judged_once_and_anew_for_other_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside another deployment, or again: no evaluation; with another target its own verdicts, as without memory."""
    found, slos = base(), targets_of(base())
    target = slos[0].slo.targets[0]
    strict = targets_of(found, target.model_copy(update={"threshold_s": 0.8 * target.threshold_s}))
    first = judgement_of(found.deployments, slos, 0.9, 1, exact=True)
    monkeypatch.setattr(found_by, "by_theory", None)
    assert judgement_of(found.deployments, slos, 0.9, 1, exact=True) == first
    monkeypatch.undo()
    other = judgement_of(found.deployments, strict, 0.9, 1, exact=True)
    monkeypatch.setattr(found_by, "_VERDICTS", BoundedCache(1))
    assert judgement_of(found.deployments, strict, 0.9, 1, exact=True) == other != first
