"""Costs and ways of buying, held against sums, price lists and closed forms."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from datetime import date
from typing import Any

import pytest

import planner
from hardware_db import load_hardware
from planner.analysis import (
    PurchaseAlternative,
    PurchaseOffer,
    api_break_even,
    cost_year,
    headroom,
    mean_served_per_s,
    own_price,
)
from planner.analysis.api_prices import break_even_rate_per_s, mean_tokens
from planner.charts import costs
from planner.core import HOURS_PER_MONTH
from planner.fleet import Plan
from planner.report import glossary, purchase_tables
from planner.traffic import Forecast
from tests.builders import SMALL_CHAT, small_request


def theory(*more: str) -> Plan:
    request = planner.load_scenario("chat-llama-70b", [*SMALL_CHAT, *more])
    return planner.plan(request, simulate=False, alternatives=False)


@pytest.fixture(scope="module")
def flat() -> Plan:
    return theory()


@pytest.fixture(scope="module")
def daily() -> Plan:
    return theory("profile=azure-2024-conv-day")


@pytest.fixture(scope="module")
def split() -> Plan:
    return theory("search.modes=[disaggregated]", "limits.spare_replicas=1")


def is_json(chart: Any) -> bool:
    return bool(json.dumps(chart.to_dict(), allow_nan=False))


# --- where the money goes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flat", "daily", "split"])
def test_parts_of_all_pools_add_up_to_the_cost_of_the_plan(name: str, request: pytest.FixtureRequest) -> None:
    """What is used is the utilisation; a replica that may fail is spare."""
    plan = request.getfixturevalue(name)
    rows = costs.pool_cost_rows(plan)
    assert math.fsum(row["usd_per_month"] for row in rows) == pytest.approx(plan.cost.usd_per_month)
    shares: dict[str, float] = defaultdict(float)
    for row in rows:
        shares[row["pool"]] += row["share"]
    assert all(total == pytest.approx(1.0) for total in shares.values())
    assert is_json(costs.pool_cost_chart(plan))
    if name == "flat":
        (used,) = [row["share"] for row in rows if row["part"] == costs.USED]
        assert used == pytest.approx(plan.deployments[0].predicted.pools[0].utilisation)
    if name == "split":
        spare = [1.0 / pool.replicas for pool in plan.deployments[0].deployment.pools]
        assert [row["share"] for row in rows if row["part"] == costs.SPARE] == pytest.approx(spare)


def test_a_plan_without_a_fleet_has_no_rows() -> None:
    none = theory("limits.gpus={h100-sxm: 1}")
    assert costs.pool_cost_rows(none) == costs.api_cost_rows(none, (), 0.0) == []
    assert mean_served_per_s(none) == 0.0


# --- other ways of buying --------------------------------------------------------------------------------------------


def test_bars_are_sorted_and_what_cannot_be_had_comes_last_with_its_reason(flat: Plan) -> None:
    assert flat.cost is not None
    month = flat.cost.usd_per_month
    reserved = PurchaseAlternative(("reserved_1yr",), ("h100-sxm",), ("l40s",))
    offers = [
        PurchaseOffer(PurchaseAlternative(("on_demand",), ("h100-sxm",), ()), month, 40.0, "24 x h100-sxm"),
        PurchaseOffer(PurchaseAlternative(("spot",), (), ("h100-sxm",)), None, 0.0, "", "no terms"),
        PurchaseOffer(reserved, month / 2.0, 40.0, "12 x h100-sxm"),
    ]
    rows = costs.purchase_option_rows(offers, flat)
    assert [row["way"] for row in rows] == ["reserved 1 yr", "on demand", "spot"]
    assert [row["difference"] for row in rows] == [pytest.approx(-0.5), pytest.approx(0.0), None]
    assert [row["is_current"] for row in rows] == [False, True, False]
    assert rows[0]["usd_per_thousand_requests"] == pytest.approx(flat.cost.usd_per_thousand_requests / 2.0)
    assert rows[2]["reason"] == "no terms"
    assert is_json(costs.purchase_option_chart(offers, flat))
    table = purchase_tables.offers_table(flat, offers)
    assert [row[0] for row in table.rows] == [row["way"] for row in rows] and table.rows[0][2] == "−50 %"


# --- hosted APIs ------------------------------------------------------------------------------------------------------


def prices(plan: Plan, *texts: str) -> Any:
    return api_break_even(plan, [own_price(plan.request.llm.id, text, date(2026, 11, 21)) for text in texts])


def test_lines_cross_where_the_engine_says_and_at_the_rate_of_a_closed_form(flat: Plan) -> None:
    """An API that is too cheap for the fleet has a line and no break-even."""
    (found,) = prices(flat, "0.8/1.0")
    assert flat.cost is not None
    room = headroom(flat).share
    rows = costs.api_cost_rows(flat, [found], room)
    (even,) = [row for row in rows if row["point"] == "break-even"]
    tokens = mean_tokens(flat)
    usd = (0.8 * tokens.fresh + 0.8 * tokens.cached + 1.0 * tokens.written) / 1e6
    assert even["rate_per_s"] == pytest.approx(break_even_rate_per_s(flat.cost.usd_per_hour, usd))
    assert even["usd_per_month"] == pytest.approx(flat.cost.usd_per_month)
    (asked,) = [row for row in rows if row["option"] == "own price" and row["point"] == "planned"]
    assert asked["usd_per_month"] == pytest.approx(found.api_usd_per_hour * HOURS_PER_MONTH)
    fleet = [row for row in rows if row["option"] == costs.SELF_HOSTED]
    assert {row["usd_per_month"] for row in fleet} == {flat.cost.usd_per_month}
    assert max(row["rate_per_s"] for row in fleet) == pytest.approx(40.0 * (1.0 + room))
    assert is_json(costs.api_cost_chart(flat, [found], room))
    cheap = costs.api_cost_rows(flat, prices(flat, "0.01/0.01"), room)
    assert "own price" in {row["option"] for row in cheap} and "break-even" not in {row["point"] for row in cheap}


def test_over_a_day_both_sides_are_of_the_mean_demand(daily: Plan) -> None:
    assert mean_served_per_s(daily) == pytest.approx(40.0)
    (found,) = prices(daily, "0.59/0.79")
    rows = costs.api_cost_rows(daily, [found], 0.0)
    (asked,) = [row for row in rows if (row["option"], row["point"]) == ("own price", "planned")]
    per_hour = 40.0 * 3600.0 * mean_tokens(daily).usd(found.price)
    assert asked["usd_per_month"] == pytest.approx(730.0 * per_hour)
    assert purchase_tables.api_prices_table(daily, [found]).rows[0][3] == f"{730.0 * per_hour:,.0f}"


def test_the_table_has_a_day_a_page_and_a_definition_for_every_heading(flat: Plan) -> None:
    table = purchase_tables.api_prices_table(flat, prices(flat, "0.59/0.79", "0.59/0.1/0.79"))
    assert all(map(glossary.hint, table.columns))
    assert table.rows[0][-2:] == ("2026-11-21", "given by hand")
    assert "cached tokens" not in purchase_tables.api_prices_table(flat, prices(flat, "0.59/0.79")).columns
    assert costs.api_cost_rows(flat, prices(flat, "1/1", "2/2"), 0.0)[3]["option"] == "own price llama-3.3-70b-instruct"


def test_lines_of_a_year_end_at_what_is_paid_in_all(flat: Plan) -> None:
    prices = [own_price("x", "0.59/0.79", date(2026, 11, 21))]
    year = cost_year(flat, Forecast(start=date(2026, 12, 1), growth_per_month=0.05), prices, load_hardware())
    rows = costs.cost_year_rows(year)
    ends = {row["option"]: row["cumulated_usd"] for row in rows if row["month"] == 12}
    assert ends == {path.name: pytest.approx(sum(path.usd)) for path in year.paths}
    assert {row["cumulated_usd"] for row in rows if row["month"] == 0} == {0.0}
    assert is_json(costs.cost_year_chart(year))


def test_no_two_of_twenty_apis_have_one_line() -> None:
    styles = costs.line_styles("own", map(str, range(20)))
    assert len({(colour, *dash) for colour, dash in styles.values()}) == 21


# --- the plan and its alternatives ------------------------------------------------------------------------------------


def compared(**changes: Any) -> Plan:
    """A plan with a choice of three SKUs, the last of which is too small, and its alternatives."""
    search = {"skus": ["h100-sxm", "l40s", "t4"], "tp": [1], "pp": [1], "calibrated": True}
    request = small_request(precision={"weights": "bf16"}, search=search, simulation={"requests": 400}, **changes)
    return planner.plan(request)


def test_bars_are_the_plan_and_its_alternatives_from_cheap_to_dear() -> None:
    """What cannot be done comes last with its reason: 16 GB of bf16 weights do not fit in the 16 GB of a T4."""
    plan = compared()
    rows = costs.cost_comparison_rows(plan)
    assert plan.cost is not None
    assert [rows[0]["name"], rows[0]["usd_per_month"]] == ["the plan", pytest.approx(plan.cost.usd_per_month)]
    named = {row["name"]: row for row in rows[1:]}
    alone = {"h100-sxm", "l40s", "t4", "mixed", "disaggregated", "sglang", "tensorrt-llm"}
    assert set(named) == {"narrower formats", *alone}
    for alternative in plan.alternatives:
        usd = alternative.usd_per_hour
        month = None if usd is None else pytest.approx(usd * HOURS_PER_MONTH)
        assert named[alternative.restriction]["usd_per_month"] == month
    for kind in ("sku", "mode", "engine"):
        found = [row["cost"] or math.inf for row in rows if row["kind"] == kind]
        assert found == sorted(found)
    assert not named["t4"]["is_feasible"] and named["t4"]["cost"] is None
    assert "weights 16.1 GB" in named["t4"]["reason"] and "no KV cache" in named["t4"]["reason"]


def test_other_objectives_compare_by_the_request() -> None:
    plan = compared(objective="max_rate", limits={"budget_usd_per_hour": 10.0})
    rows = [row for row in costs.cost_comparison_rows(plan) if row["is_feasible"]]
    assert plan.cost is not None
    assert rows[0]["cost"] == pytest.approx(plan.cost.usd_per_thousand_requests)
    assert all(row["cost"] == row["usd_per_thousand_requests"] for row in rows)


def test_an_infeasible_plan_has_reasons_for_bars() -> None:
    plan = compared(slo=[{"metric": "ttft", "percentile": 0.99, "threshold_s": 1e-6}])
    rows = costs.cost_comparison_rows(plan)
    assert [row["name"] for row in rows] == ["h100-sxm", "l40s", "t4", "mixed", "disaggregated"]
    assert not any(row["is_feasible"] for row in rows) and all(row["reason"] for row in rows)
    assert is_json(costs.cost_comparison(plan))
