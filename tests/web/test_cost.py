"""The tab *Cost* on a page of its own: what it says is what the engine says, and its buttons change the scenario."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import planner
from planner.analysis import api_break_even, api_prices_of, cost_year, headroom
from planner.analysis.headline import CostEnd, dollars
from planner.fleet import hardware_for
from planner.llm import listed_api_prices
from planner.traffic import Forecast
from planner.web.results import store
from tests.builders import SMALL_CHAT
from tests.web import pages
from tests.web.pages import figures, fine, html, press, said, scenario, small, values

SMALL = ("search.tp=[4]", "prices.as_of=2026-11-21")


def opened(*more: str) -> AppTest:
    return pages.shown("cost_tab", small(*SMALL, *more))


def theory(*more: str) -> planner.Plan:
    request = planner.load_scenario("chat-llama-70b", (*SMALL_CHAT, *SMALL, *more))
    return planner.plan(request, simulate=False, alternatives=False)


def test_the_figures_are_those_of_the_plan_and_name_the_price() -> None:
    page, plan = opened(), theory()
    assert plan.cost is not None
    cards = figures(page)
    assert len(cards) == 6 and all(card.help for card in cards.values())
    assert cards["$ per month"].value == dollars(plan.cost.usd_per_month)
    assert cards["$ per million output tokens"].value == dollars(plan.cost.usd_per_million_output_tokens)
    (bought,) = plan.bought
    assert bought.price is not None
    for part in (bought.price.provider, bought.price.retrieved_on.isoformat(), bought.price.source_url):
        assert part in cards["$ per hour"].help
    prices = [price for price in listed_api_prices() if price.llm == "llama-3.3-70b"]
    best = min(api_break_even(plan, prices), key=lambda one: one.api_usd_per_thousand_requests)
    assert f"{best.price.provider} is cheaper at 40 requests/s" in said(page)
    assert f"pay from {best.fleet_break_even_per_s:.3g} requests/s" in said(page)


def test_intervals_are_shown_once_they_are_known() -> None:
    page = opened("workload.rate_per_s=41")
    assert not any(card.delta for label, card in figures(page).items() if label.startswith("$"))
    cost = theory("workload.rate_per_s=41").cost
    assert cost is not None
    key = json.dumps(scenario(page), sort_keys=True)
    store().put(("cost at", key, 0.5), CostEnd(cost, ""))
    one_end = figures(page.run())  # is no interval
    assert not any(card.delta for label, card in one_end.items() if label.startswith("$"))
    store().put(("cost at", key, 0.95), CostEnd(replace(cost, usd_per_month=99_999.0), ""))
    card = figures(fine(page.run()))["$ per month"]
    assert card.delta == f"{dollars(cost.usd_per_month)} if exact, $99,999 at 95 %"


def test_an_own_price_is_compared_where_none_is_listed_and_no_other_visitor_sees_it() -> None:
    page, other = opened("llm=qwen2.5-7b"), opened("llm=qwen2.5-7b")
    assert "No API price is listed for qwen2.5-7b" in said(page) and "own price" not in said(page)
    page.number_input(key="cost-own-input").set_value(5.0)
    page.number_input(key="cost-own-output").set_value(5.0)
    assert "Self-hosting is cheaper" in said(fine(page.run())) and "given by hand" in said(page)
    assert "given by hand" not in said(fine(other.run()))


def test_a_year_of_own_and_api_grows_as_the_visitor_assumes() -> None:
    page = opened()
    assert "12 months cost" in said(page) and "Month by month" in said(page) + " ".join(
        one.label for one in page.expander
    )
    before = said(page)
    fine(page.number_input(key="cost-growth").set_value(10.0).run())
    plan = theory()
    year = cost_year(
        plan,
        Forecast(start=date(2026, 11, 21), growth_per_month=0.1),
        api_prices_of(plan.request.llm.id, plan.request.prices.day),
        hardware_for(plan.request),
        headroom(plan).share,
    )
    assert f"{year.fleet.cumulated_usd[-1]:,.0f} USD" in said(page) != before


def test_a_fleet_of_several_models_lasts_and_grows_without_apis() -> None:
    one = {"name": "code", "llm": "llama-3.1-8b", "workload": {"rate_per_s": 1, "lengths": "1000/100"}, "slo": "chat"}
    page = opened(f"services=[{json.dumps(one)}]")
    fine(page.number_input(key="cost-growth").set_value(10.0).run())
    assert "The fleet holds until 202" in said(page) and "as it grows to " in said(page)


def test_another_way_of_buying_is_planned_on_request_and_can_be_used() -> None:
    page = opened()
    fine(page.multiselect[0].set_value(["on demand", "reserved"]).run())
    assert not [one for one in page.button if one.label.startswith("Use ")]
    press(page, "Compare them")
    again = theory("prices.commitments=[reserved]").cost
    assert again is not None and f"{again.usd_per_month:,.2f}" in said(page)
    assert scenario(press(page, "Use reserved"))["prices"]["commitments"] == ["reserved"]
    assert values(page)["$ per month"] == dollars(again.usd_per_month)


def test_spot_is_planned_with_the_terms_that_the_visitor_assumes() -> None:
    page = opened()
    assert "assumptions" in said(fine(page.multiselect[0].set_value(["spot"]).run()))
    page.number_input(key="cost-spot-often").set_value(2.4)
    press(page.run(), "Compare them")
    terms = scenario(press(page, "Use spot"))["prices"]["spot"]
    assert terms == {"interruptions_per_hour": pytest.approx(0.1), "recovery_s": 600.0, "probability": 0.99}


def test_a_recorded_day_can_be_planned_with() -> None:
    page = opened()
    assert "Conversation service at Azure" in said(page)
    assert scenario(press(page, "Plan with this day"))["profile"] == "azure-2024-conv-day"
    plan = store().get(("theory", json.dumps(scenario(page), sort_keys=True)))
    assert isinstance(plan, planner.Plan) and plan.cost is not None and plan.flat_usd_per_hour is not None
    saved = 1.0 - plan.cost.usd_per_hour / plan.flat_usd_per_hour
    assert values(page)["Saved by following"] == f"{100 * saved:.0f} %"


def test_a_day_is_played_with_an_autoscaler_changed_and_left_again() -> None:
    page = opened("profile={factors: [0.5, 1.5], period_hours: 2}")
    assert "at most 33 % possible" in [one.delta for one in page.metric]  # 1 - mean / peak = 1 - 1 / 1.5
    assert "Load aimed at" not in [one.label for one in page.number_input]
    press(page, "Play it with an autoscaler")
    assert "Load aimed at" in [one.label for one in page.number_input]
    assert all(fleet in html(page) for fleet in ("autoscaled", "planned schedule", "flat"))
    fine(page.number_input(key="cost-cold_start_s").set_value(600.0).run())
    assert scenario(page)["profile"]["cold_start_s"] == 600.0
    fine(page.toggle[0].set_value(False).run())
    assert scenario(page)["profile"]["autoscale"] is False
    assert values(page)["Saved by following"] == "0 %"
    assert scenario(press(page, "Plan without it"))["profile"] is None


def test_without_a_fleet_it_says_what_it_would_show() -> None:
    page = opened("limits.budget_usd_per_hour=1")
    assert not page.metric and "what it costs" in page.info[0].value


def test_on_a_phone_every_part_is_a_line_that_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = {"User-Agent": "Mozilla/5.0 (Linux; Android 15) Mobile Safari/537.36"}
    monkeypatch.setattr(type(st.context), "headers", property(lambda _: agent))
    page = opened()
    questions = [one.label.strip("*") for one in page.expander]
    assert "What does it cost, and per what?" in questions and "What does a year of growth take?" in questions
    assert not page.subheader and values(page)["$ per month"]
