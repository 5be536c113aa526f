"""Sensitivities against closed forms, and what is kept against the queues themselves."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest

from planner.analysis import PlanningCase, PlanOutcome, Replanner, Sensitivity, price_now
from planner.analysis.perturbations import at_price
from planner.analysis.sensitivity import break_even_prices, non_dominated, pareto, tornado
from planner.analysis.types import ParetoPoint
from tests.builders import HARDWARE, small_request
from tests.made_up_plans import A100, H100, REAL, REQUEST, lumpy, made_up, smooth, two_skus, with_budget


class TestPrices:
    """Two fleets cost the same at a price that division gives."""

    @pytest.mark.parametrize(("h100", "a100"), [(2.0, 1.5), (3.0, 2.5), (1.0, 0.7)])
    def test_the_plan_changes_where_the_two_fleets_cost_the_same(self, h100: float, a100: float) -> None:
        request = small_request(prices={"usd_per_gpu_hour": {H100: h100, A100: a100}})  # 4 H100 < 7 A100
        found = {one.sku: one for one in break_even_prices(made_up(request, {}, 0.0), Replanner(two_skus))}
        used, unused = found[H100], found[A100]
        assert used.changes_at == pytest.approx(7.0 * a100 / 4.0, abs=0.011 * h100)
        assert unused.changes_at == pytest.approx(4.0 * h100 / 7.0, abs=0.011 * a100)
        assert used.becomes is not None
        assert unused.becomes is not None
        assert used.becomes.gpus == unused.becomes.gpus == {A100: 7}

    def test_a_price_out_of_reach_changes_nothing(self) -> None:
        request = small_request(prices={"usd_per_gpu_hour": {H100: 1.0, A100: 10.0}})  # 4 against 70 USD/h
        for one in break_even_prices(made_up(request, {}, 4.0), Replanner(two_skus)):
            assert one.changes_at is None
            assert one.becomes is None

    def test_every_way_of_buying_gets_dearer_and_no_other_sku(self) -> None:
        case = PlanningCase(REQUEST, HARDWARE)
        dearer = at_price(case, H100, 1.5)
        assert price_now(dearer, H100) == pytest.approx(1.5 * (price_now(case, H100) or 0.0))
        assert price_now(dearer, A100) == price_now(case, A100)
        for before, after in zip(HARDWARE.prices, dearer.hardware.prices, strict=True):
            assert after.usd_per_gpu_hour == pytest.approx(before.usd_per_gpu_hour * (1.5 if before.sku == H100 else 1))

    def test_the_price_now_is_the_one_the_plan_pays(self) -> None:
        assert REAL.cost is not None
        (sku, count), *_ = REAL.gpus.items()
        assert price_now(PlanningCase(REQUEST, HARDWARE), sku) == pytest.approx(REAL.cost.usd_per_hour / count)


@cache
def real_bars() -> tuple[Sensitivity, ...]:
    """Of a real plan."""
    return tornado(REAL, Replanner())


class TestTornado:
    """Bars have the widths of the formula."""

    def test_widths_follow_the_formula(self) -> None:
        bars = {bar.name: bar for bar in tornado(made_up(REQUEST, {(H100, 1): 1}, 60.0), Replanner(smooth))}
        assert bars["demand"].swing == pytest.approx(0.4 * 60.0)
        assert bars["input lengths"].swing == 0.0
        assert "shared prefixes" not in bars
        assert "speed of kernels" not in bars  # uncalibrated

    def test_widest_first(self) -> None:
        widths = [bar.swing for bar in real_bars()]
        assert widths == sorted(widths, reverse=True)
        assert len(widths) == 4

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


class TestPareto:
    """Fronts of formulas, and dominance by its definition."""

    def test_a_falling_cost_keeps_every_point(self) -> None:
        fronts = {front.name: front for front in pareto(REQUEST, Replanner(smooth), points=5)}
        assert [point.asked for point in fronts["p95 TTFT"].points] == pytest.approx([0.125, 0.25, 0.5, 1.0, 2.0])
        for point in fronts["p95 TTFT"].points:
            assert point.outcome.usd_per_hour == pytest.approx(30.0 / point.asked)
        # the TPOT threshold does not matter: only the tightest is worth having
        assert [point.asked for point in fronts["p95 TPOT"].points] == [pytest.approx(0.03 / 4)]

    def test_a_lumpy_cost_keeps_the_largest_rate_of_each_lump(self) -> None:
        front = pareto(small_request(workload={"rate_per_s": 7.0}), Replanner(lumpy), points=9)[0]
        lumps = [math.ceil(point.asked / 7.0 - 1e-9) for point in front.points]
        assert lumps == sorted(set(lumps))
        assert front.points[0].asked == pytest.approx(7.0)

    @pytest.mark.parametrize("more", [True, False])
    @pytest.mark.parametrize("seed", range(10))
    def test_non_dominated_is_what_the_definition_says(self, seed: int, more: bool) -> None:
        draw = random.Random(seed)
        pairs = [(float(draw.randint(1, 6)), float(draw.randint(1, 6))) for _ in range(12)]
        points = [ParetoPoint(asked, PlanOutcome("optimal", "", usd_per_hour=usd)) for asked, usd in pairs]
        sign = -1.0 if more else 1.0
        kept = {(point.asked, point.outcome.usd_per_hour) for point in non_dominated(points, more)}
        truth = {
            (asked, usd)
            for asked, usd in pairs
            if not any(u <= usd and sign * a <= sign * asked and (u < usd or sign * a < sign * asked) for a, u in pairs)
        }
        assert kept == truth

    def test_points_without_a_fleet_are_left_out(self) -> None:
        fronts = {front.name: front for front in pareto(with_budget(70.0), Replanner(smooth), points=5)}
        assert [point.asked for point in fronts["demand"].points] == pytest.approx([7.5, 15.0, 30.0])
        assert fronts["demand"].tried == 5
