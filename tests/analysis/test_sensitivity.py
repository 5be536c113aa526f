"""Sensitivities against closed forms, and what is kept against the queues themselves."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache

import pytest

from hardware_db import HardwareDb
from planner.analysis import Case, Outcome, Sensitivity, Solver, price_now
from planner.analysis.perturbations import at_price
from planner.analysis.sensitivity import break_even_prices, kept_fleet, non_dominated, pareto, robust, tornado
from planner.analysis.types import ParetoPoint
from planner.core import InputError, Metric, rebuilt
from planner.engine import ReplicaConfig
from planner.fleet import deviations_of, pessimistic_hardware, plan, shifted_deployment
from planner.fleet.calibration_bounds import shifted_calibration
from planner.roofline import StepShape
from planner.serving import Deployment, evaluate, step_spread, sustainable_rate_per_s
from planner.workload import LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import HARDWARE, calibrated, replica, small_request
from tests.made_up_plans import A100, H100, QUICK, REAL, REQUEST, lumpy, made_up, smooth, two_skus, with_budget

REAL_REPLICAS = REAL.deployments[0].deployment.pools[0].replicas


class TestPrices:
    """Two fleets cost the same at a price that division gives."""

    @pytest.mark.parametrize(("h100", "a100"), [(2.0, 1.5), (3.0, 2.5), (1.0, 0.7)])
    def test_the_plan_changes_where_the_two_fleets_cost_the_same(self, h100: float, a100: float) -> None:
        request = small_request(prices={"usd_per_gpu_hour": {H100: h100, A100: a100}})  # 4 H100 < 7 A100
        found = {one.sku: one for one in break_even_prices(made_up(request, {}, 0.0), Solver(two_skus))}
        used, unused = found[H100], found[A100]
        assert used.changes_at == pytest.approx(7.0 * a100 / 4.0, abs=0.011 * h100)
        assert unused.changes_at == pytest.approx(4.0 * h100 / 7.0, abs=0.011 * a100)
        assert used.becomes is not None
        assert unused.becomes is not None
        assert used.becomes.gpus == unused.becomes.gpus == {A100: 7}

    def test_a_price_out_of_reach_changes_nothing(self) -> None:
        request = small_request(prices={"usd_per_gpu_hour": {H100: 1.0, A100: 10.0}})  # 4 against 70 USD/h
        for one in break_even_prices(made_up(request, {}, 4.0), Solver(two_skus)):
            assert one.changes_at is None
            assert one.becomes is None

    def test_every_way_of_buying_gets_dearer_and_no_other_sku(self) -> None:
        case = Case(REQUEST, HARDWARE)
        dearer = at_price(case, H100, 1.5)
        assert price_now(dearer, H100) == pytest.approx(1.5 * (price_now(case, H100) or 0.0))
        assert price_now(dearer, A100) == price_now(case, A100)
        for before, after in zip(HARDWARE.prices, dearer.hardware.prices, strict=True):
            assert after.usd_per_gpu_hour == pytest.approx(before.usd_per_gpu_hour * (1.5 if before.sku == H100 else 1))

    def test_the_price_now_is_the_one_the_plan_pays(self) -> None:
        assert REAL.cost is not None
        (sku, count), *_ = REAL.gpus.items()
        assert price_now(Case(REQUEST, HARDWARE), sku) == pytest.approx(REAL.cost.usd_per_hour / count)


@cache
def real_bars() -> tuple[Sensitivity, ...]:
    """Of a real plan."""
    return tornado(REAL, Solver())


class TestTornado:
    """Bars have the widths of the formula, and a kept fleet is judged by the queues."""

    def test_widths_follow_the_formula(self) -> None:
        bars = {bar.name: bar for bar in tornado(made_up(REQUEST, {(H100, 1): 1}, 60.0), Solver(smooth))}
        assert bars["demand"].swing == pytest.approx(0.4 * 60.0)
        assert bars["input lengths"].swing == 0.0
        assert "shared prefixes" not in bars
        assert "speed of kernels" not in bars  # uncalibrated

    def test_widest_first(self) -> None:
        widths = [bar.swing for bar in real_bars()]
        assert widths == sorted(widths, reverse=True)
        assert len(widths) == 4

    def test_a_kept_fleet_serves_up_to_the_rate_said_and_no_more(self) -> None:
        kept = kept_fleet(REAL)
        (planned,) = REAL.deployments
        slo = REQUEST.slo
        assert kept.holds
        assert kept.rate_per_s >= 30.0
        assert evaluate(planned.deployment, planned.workload.at_rate(kept.rate_per_s)).meets(slo)
        assert not evaluate(planned.deployment, planned.workload.at_rate(1.01 * kept.rate_per_s)).meets(slo)
        over = kept_fleet(REAL, workload=lambda load: load.at_rate(1.05 * kept.rate_per_s))
        assert not over.holds
        assert over.rate_per_s == pytest.approx(kept.rate_per_s, rel=0.005)

    def test_a_class_alone_is_held_to_its_own_targets(self) -> None:
        (planned,) = REAL.deployments
        (kind,) = planned.workload.classes
        strict = REQUEST.slo.model_copy(
            update={"targets": (REQUEST.slo.targets[0].model_copy(update={"threshold_s": 1e-4}),)}
        )
        served = planned.workload.model_copy(update={"classes": (kind.model_copy(update={"slo": strict}),)})
        kept = kept_fleet(REAL, workload=lambda _: served)
        assert not kept.holds
        assert kept.rate_per_s == 0.0

    def test_every_service_is_held_to_its_own_targets(self) -> None:
        """A lax second service beside a strict one: each deployment's headroom is what its own queue says."""
        lax = [{"metric": "ttft", "percentile": 0.9, "threshold_s": 5.0}]
        load = {"rate_per_s": 0.5, "lengths": {"input_tokens": 40_000, "output_tokens": 100}}
        second = {"name": "second", "llm": "llama-3.1-8b", "workload": load, "slo": lax}
        found = plan(small_request(search=QUICK, services=[second]), simulate=False, alternatives=False)
        strict, other = sorted(found.deployments, key=lambda one: one.service == "second")
        assert other.slo.targets[0].threshold_s == 5.0
        kept = kept_fleet(found)
        assert kept.holds  # the second misses p95 TTFT of 0.5 s, which nobody promised it
        assert not other.predicted.meets(found.request.slo)
        own = [sustainable_rate_per_s(one.judged, one.workload, one.slo) for one in (strict, other)]
        growth = min(rate / one.workload.rate_per_s for rate, one in zip(own, (strict, other), strict=True))
        assert kept.rate_per_s == pytest.approx(growth * (30.0 + 0.5))

    def test_replicas_that_may_fail_are_no_headroom(self) -> None:
        (one,) = REAL.deployments
        spare = rebuilt(one.deployment, pools=(rebuilt(one.deployment.pools[0], replicas=2 * REAL_REPLICAS),))
        kept = kept_fleet(replace(REAL, deployments=(replace(one, deployment=spare),)))
        assert kept == kept_fleet(REAL)

    def test_promises_to_several_classes_are_judged_by_their_own_latencies(self) -> None:
        """Two classes in one deployment: long prompts miss the short ones' target, which was not promised to them."""
        (one,) = REAL.deployments
        kinds = {"short": (200, 0.3), "long": (6000, 30.0)}
        classes = tuple(
            RequestClass(
                name=name,
                share=0.5,
                lengths=TokenLengths.constant(tokens, 50),
                slo=Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=limit_s),)),
            )
            for name, (tokens, limit_s) in kinds.items()
        )
        load = Workload(arrivals=one.workload.arrivals.at_rate(4.0), classes=classes)
        kept = kept_fleet(replace(REAL, deployments=(replace(one, workload=load),)))
        seen = {kind.name: kind.ttft.quantile_s(0.9) for kind in evaluate(one.judged, load).classes}
        assert kept.tightest_ratio == pytest.approx(max(seen[name] / limit_s for name, (_, limit_s) in kinds.items()))
        assert kept.holds
        more = evaluate(one.judged, load.at_rate(1.02 * kept.rate_per_s)).classes
        assert any(kind.ttft.quantile_s(0.9) > kinds[kind.name][1] for kind in more)
        just = evaluate(one.judged, load.at_rate(0.99 * kept.rate_per_s)).classes
        assert all(kind.ttft.quantile_s(0.9) <= kinds[kind.name][1] for kind in just)

    def test_prices_move_the_cost_of_a_kept_fleet_and_nothing_else(self) -> None:
        bars = {bar.name: bar for bar in real_bars()}
        (sku,) = REAL.gpus
        low, high = bars[f"price of {sku}"].low.kept, bars[f"price of {sku}"].high.kept
        assert low is not None
        assert high is not None
        assert REAL.cost is not None
        assert low.usd_per_hour == pytest.approx(0.8 * REAL.cost.usd_per_hour)
        assert high.usd_per_hour == pytest.approx(1.2 * REAL.cost.usd_per_hour)
        assert low.rate_per_s == high.rate_per_s


def step_s(config: ReplicaConfig, shape: StepShape) -> float:
    """Duration of a step [s]."""
    return float(config.timer.itemised(shape).total_s)


class TestEfficiency:
    """Kernels at an end of their interval."""

    DECODE = StepShape(64.0, 64.0 * 1000.0)

    def seconds(self, deviations: float) -> float:
        deployment = shifted_deployment(Deployment.mixed(calibrated()), deviations)
        return step_s(deployment.pools[0].config, self.DECODE)

    def test_no_deviation_is_the_calibration_itself(self) -> None:
        assert self.seconds(0.0) == pytest.approx(step_s(calibrated(), self.DECODE), rel=1e-12)

    @pytest.mark.parametrize("deviations", [0.5, 1.645, 3.0])
    def test_all_fits_slow_together_is_no_less_than_the_independent_interval(self, deviations: float) -> None:
        # sum t_f s_f >= sqrt(sum (t_f s_f)^2): never more optimistic than planner.serving.uncertainty
        ratio = self.seconds(deviations) / self.seconds(0.0)
        spreads = [fit.spread for fit in calibrated().calibration.kernels.values()]  # type: ignore[union-attr]
        assert 1.0 + deviations * step_spread(calibrated(), self.DECODE) <= ratio <= math.exp(deviations * max(spreads))

    def test_faster_kernels_stay_above_their_roofline(self) -> None:
        assert self.seconds(-50.0) >= step_s(replica(sku=calibrated().sku), self.DECODE)

    def test_every_fit_is_shifted_by_its_own_spread(self) -> None:
        (first, *_) = HARDWARE.calibrations
        shifted = shifted_calibration(first, 2.0)
        for name, fit in first.kernels.items():
            before = fit.correction.log_factor[0][0] if fit.correction else 0.0
            after = shifted.kernels[name].correction
            assert after is not None
            assert after.log_factor[0][0] == pytest.approx(before + 2.0 * fit.spread)

    def test_the_robust_plan_costs_no_less_and_holds_at_the_slow_end(self) -> None:
        request = small_request(search={**QUICK, "calibrated": True, "skus": [H100]}, simulation={"requests": 300})
        solver = Solver()
        found = robust(plan(request), solver, 0.95)
        assert found.calibrated
        assert found.after.usd_per_hour >= found.before.usd_per_hour - 1e-9
        slow = solver.plan(Case(request, _only_pessimistic(solver)))
        assert kept_fleet(slow).holds

    @pytest.mark.parametrize("probability", [0.0, 1.0, 95.0])
    def test_a_percentage_is_refused(self, probability: float) -> None:
        with pytest.raises(InputError, match=r"write 0\.95"):
            robust(REAL, Solver(smooth), probability)

    def test_without_a_calibration_there_is_no_interval(self) -> None:
        found = robust(REAL, Solver())
        assert not found.calibrated
        assert found.before == found.after


def _only_pessimistic(solver: Solver) -> HardwareDb:
    return pessimistic_hardware(solver.hardware, deviations_of(0.95))


class TestPareto:
    """Fronts of formulas, and dominance by its definition."""

    def test_a_falling_cost_keeps_every_point(self) -> None:
        fronts = {front.name: front for front in pareto(REQUEST, Solver(smooth), points=5)}
        assert [point.asked for point in fronts["p95 TTFT"].points] == pytest.approx([0.125, 0.25, 0.5, 1.0, 2.0])
        for point in fronts["p95 TTFT"].points:
            assert point.outcome.usd_per_hour == pytest.approx(30.0 / point.asked)
        # the TPOT threshold does not matter: only the tightest is worth having
        assert [point.asked for point in fronts["p95 TPOT"].points] == [pytest.approx(0.03 / 4)]

    def test_a_lumpy_cost_keeps_the_largest_rate_of_each_lump(self) -> None:
        front = pareto(small_request(workload={"rate_per_s": 7.0}), Solver(lumpy), points=9)[0]
        lumps = [math.ceil(point.asked / 7.0 - 1e-9) for point in front.points]
        assert lumps == sorted(set(lumps))
        assert front.points[0].asked == pytest.approx(7.0)

    @pytest.mark.parametrize("more", [True, False])
    @pytest.mark.parametrize("seed", range(10))
    def test_non_dominated_is_what_the_definition_says(self, seed: int, more: bool) -> None:
        draw = random.Random(seed)
        pairs = [(float(draw.randint(1, 6)), float(draw.randint(1, 6))) for _ in range(12)]
        points = [ParetoPoint(asked, Outcome("optimal", "", usd_per_hour=usd)) for asked, usd in pairs]
        sign = -1.0 if more else 1.0
        kept = {(point.asked, point.outcome.usd_per_hour) for point in non_dominated(points, more)}
        truth = {
            (asked, usd)
            for asked, usd in pairs
            if not any(u <= usd and sign * a <= sign * asked and (u < usd or sign * a < sign * asked) for a, u in pairs)
        }
        assert kept == truth

    def test_points_without_a_fleet_are_left_out(self) -> None:
        fronts = {front.name: front for front in pareto(with_budget(70.0), Solver(smooth), points=5)}
        assert [point.asked for point in fronts["demand"].points] == pytest.approx([7.5, 15.0, 30.0])
        assert fronts["demand"].tried == 5
