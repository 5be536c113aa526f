"""A year of costs: dollars by hand, and fleets planned anew for what the demand will be."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from planner.analysis import CostYear, cost_year, headroom, own_price, turn
from planner.analysis.cost_year import fleet_gpus
from planner.core import HOURS_PER_MONTH, InputError, rebuilt
from planner.fleet import Plan, plan
from planner.traffic import Forecast
from tests.builders import HARDWARE, small_request
from tests.made_up_plans import QUICK, REAL

PRICE = own_price("llama-3.1-8b", "1/2", date(2026, 11, 21))
USD_PER_REQUEST = (800 * 1.0 + 150 * 2.0) / 1e6
ONE_SKU = {**QUICK, "skus": ["h100-sxm"]}
START = date(2026, 12, 1)


def year(found: Plan, growth: float = 0.0, share: float = 0.0) -> CostYear:
    return cost_year(found, Forecast(start=START, growth_per_month=growth), [PRICE], HARDWARE, share)


def planned(**changes: object) -> Plan:
    return plan(small_request(search=ONE_SKU, **changes), simulate=False, alternatives=False)


def test_without_growth_every_month_costs_what_the_plan_and_the_bill_say() -> None:
    found, cost = year(REAL), REAL.cost
    assert cost is not None and len(found.months) == 12
    assert found.fleet.usd == pytest.approx([cost.usd_per_month] * 12)
    assert found.fleet.cumulated_usd[-1] == pytest.approx(12 * cost.usd_per_month)
    bill = 30.0 * 3600 * HOURS_PER_MONTH * USD_PER_REQUEST
    assert found.paths[-1].usd == pytest.approx([bill] * 12)
    assert all(month.gpus == REAL.gpus for month in found.months)


def test_an_api_is_paid_for_the_mean_of_the_month_and_a_fleet_for_its_largest_day() -> None:
    found = year(REAL, growth=0.1)
    days = [1.1 ** (day / (365.2425 / 12)) for day in range(30)]
    assert found.months[0].demand == pytest.approx(sum(days) / 30)
    assert found.paths[-1].usd[0] == pytest.approx(sum(days) / 30 * 30.0 * 3600 * HOURS_PER_MONTH * USD_PER_REQUEST)
    assert found.months[0].gpus == fleet_gpus(REAL, days[-1])


@pytest.mark.parametrize("growth", [0.05, 0.2])
def test_fleets_planned_anew_cost_about_what_scaling_says(growth: float) -> None:
    """The oracle: a plan for the demand of the last day, at most a replica cheaper for each ten, never much dearer."""
    found = planned()
    last = START + timedelta(days=364)
    factor = Forecast(start=START, growth_per_month=growth).factor(last)
    again = plan(rebuilt(found.request, growth=factor), simulate=False, alternatives=False)
    scaled = year(found, growth, headroom(found).share).fleet.usd[-1]
    assert again.cost is not None
    replica = again.cost.usd_per_month / sum(pool.replicas for pool in again.pools)
    assert 0.9 * scaled - replica <= again.cost.usd_per_month <= scaled + replica


def test_what_shrinks_keeps_its_reservation() -> None:
    found = year(planned(workload={"rate_per_s": 200.0}), growth=-0.2)
    own, reserved, _ = found.paths
    assert own.usd[-1] < own.usd[0]
    assert reserved.usd[-1] == reserved.usd[0] > 0.0
    assert reserved.usd[0] / sum(found.months[0].gpus.values()) / HOURS_PER_MONTH == pytest.approx(2.72)  # Hyperstack


def test_growth_beyond_the_gpus_one_owns_is_rented_at_the_listed_price() -> None:
    owned = {"h100-sxm": {"count": 4, "capex_usd_per_gpu": 0, "watts": 1000, "pue": 1.0, "usd_per_kwh": 0.5}}
    found = planned(prices={"owned": owned})
    ahead = cost_year(found, Forecast(start=START, growth_per_month=0.3), [], HARDWARE, headroom(found).share)
    used = [month.gpus["h100-sxm"] for month in ahead.months]
    assert used[0] <= 4 < used[-1]
    listed = 3.2  # USD/h on demand, Hyperstack, the cheapest of the day
    truth = [HOURS_PER_MONTH * (4 * 0.5 + listed * max(0, gpus - 4)) for gpus in used]
    assert ahead.fleet.usd == pytest.approx(truth)


def test_the_turn_is_the_month_from_which_on_the_winner_stays() -> None:
    ups, flat = [1.0, 5.0, 2.0, 6.0, 7.0], [3.0] * 5
    brute = next(m for m in range(5) if all((flat[k] < ups[k]) for k in range(m, 5)))
    assert turn(flat, ups) == (True, brute + 1) == (True, 4)
    assert turn(ups, flat) == (False, 4)
    assert turn(flat, flat) == (False, 1)


def test_no_single_api_compares_with_several_models() -> None:
    second = {
        "name": "second",
        "llm": "llama-3.1-8b",
        "workload": {"rate_per_s": 2.0, "lengths": {"input_tokens": 800, "output_tokens": 150}},
    }
    second["slo"] = [{"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5}]
    with pytest.raises(InputError, match="several models"):
        year(planned(services=[second]))
