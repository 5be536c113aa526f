"""The tab *Cost* on a page of its own: what it says is what the engine says, and its buttons change the scenario."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.analysis import api_break_even
from planner.analysis.api_prices import listed_api_prices
from planner.analysis.headline import CostEnd, dollars
from planner.web.results import store

SMALL = {
    "workload.drift": "none",
    "search.skus": "[h100-sxm]",
    "search.modes": "[mixed]",
    "search.tp": "[4]",
    "search.max_running_requests": "[256]",
    "search.max_batched_tokens": "[2048]",
    "simulation.requests": "500",
    "prices.as_of": "2026-11-21",
}


def tab() -> None:
    """The page of one visitor with nothing but this tab."""
    from planner.web import cost_tab, results, session

    session.start()
    cost_tab.show(results.page_of(session.content(), session.key()))


def opened(**more: str) -> AppTest:
    """The tab for the small scenario; a dot in a name is written as two underscores."""
    page = AppTest.from_function(tab, default_timeout=60)
    for name, text in {**SMALL, **{name.replace("__", "."): text for name, text in more.items()}}.items():
        page.query_params[name] = text
    return checked(page.run())


def checked(page: AppTest) -> AppTest:
    assert not page.exception, page.exception[0].message
    return page


def theory(*more: str) -> planner.Plan:
    settings = [*(f"{name}={text}" for name, text in SMALL.items()), *more]
    return planner.plan(planner.load_scenario("chat-llama-70b", settings), simulate=False, alternatives=False)


def button(page: AppTest, start: str) -> AppTest:
    """The page after a click on the button whose label starts so."""
    (found,) = [one for one in page.button if one.label.startswith(start)]
    return checked(found.click().run())


def text(page: AppTest) -> str:
    return "\n".join(
        str(one.value) for kind in ("markdown", "caption", "info", "success", "html") for one in page.get(kind)
    )


@pytest.fixture(scope="module")
def page() -> AppTest:
    return opened()


def test_the_figures_are_those_of_the_plan_and_name_the_price(page: AppTest) -> None:
    cost = theory().cost
    assert cost is not None
    shown = {one.label: one for one in page.metric}
    assert shown["\\$ per month"].value == dollars(cost.usd_per_month)
    assert shown["\\$ per million output tokens"].value == dollars(cost.usd_per_million_output_tokens)
    assert len(shown) == 6
    (bought,) = theory().bought
    assert bought.price is not None
    for part in (bought.price.provider, bought.price.retrieved_on.isoformat(), bought.price.source_url):
        assert part in shown["\\$ per hour"].help
    assert all(one.help for one in page.metric)


def test_intervals_are_shown_once_they_are_known() -> None:
    page = opened(workload__rate_per_s="41")
    assert not any(one.delta for one in page.metric)
    cost = theory("workload.rate_per_s=41").cost
    assert cost is not None
    key = json.dumps(page.session_state.scenario, sort_keys=True)
    store().put(("cost at", key, 0.5), CostEnd(cost, ""))
    assert not any(one.delta for one in page.run().metric)  # one end is no interval
    store().put(("cost at", key, 0.95), CostEnd(replace(cost, usd_per_month=99_999.0), ""))
    (month,) = [one for one in checked(page.run()).metric if one.label == "\\$ per month"]
    assert month.delta == f"{dollars(cost.usd_per_month)} if exact, $99,999 at 95 %"


def test_the_cheapest_listed_api_is_named_with_its_break_even_demand(page: AppTest) -> None:
    prices = [price for price in listed_api_prices() if price.llm == "llama-3.3-70b"]
    best = min(api_break_even(theory(), prices), key=lambda one: one.api_usd_per_thousand_requests)
    said = text(page)
    assert f"{best.price.provider} is cheaper at 40 requests/s" in said
    assert f"pay from {best.fleet_break_even_per_s:.3g} requests/s" in said


def test_an_own_price_is_compared_where_none_is_listed() -> None:
    page = opened(llm="qwen2.5-7b")
    assert "No API price is listed for qwen2.5-7b" in text(page).replace("\\", "")
    assert "own price" not in text(page)
    page.number_input(key="cost-own-input").set_value(5.0)
    page.number_input(key="cost-own-output").set_value(5.0)
    said = text(checked(page.run()))
    assert "Self-hosting is cheaper" in said and "given by hand" in said


def test_the_smallest_demand_is_looked_for_on_request_only() -> None:
    page = opened()
    assert not page.success
    page.number_input(key="cost-own-input").set_value(1.0)
    page.number_input(key="cost-own-output").set_value(1.0)
    page.run()
    chosen = page.selectbox[0]
    page = checked(chosen.set_value(chosen.options.index("own price (llama-3.3-70b-instruct)")).run())
    found = button(page, "Find it").success[0].value
    # a fleet of one replica of 4 H100 is the least there is: below its break-even no fleet is cheaper
    rate = float(found.split("planned for ")[1].split(" ")[0])
    least = api_break_even(theory("workload.rate_per_s=0.5"), [_own()])[0].fleet_break_even_per_s
    assert rate == pytest.approx(least, rel=0.03)


def _own() -> planner.analysis.api_prices.ApiPrice:
    from datetime import date

    from planner.analysis import own_price

    return own_price("llama-3.3-70b-instruct", "1.0/1.0", date(2026, 11, 21))


def test_another_way_of_buying_is_planned_on_request_and_can_be_used() -> None:
    page = opened()
    page.multiselect[0].set_value(["on demand", "reserved"])
    page = checked(page.run())
    assert not [one for one in page.button if one.label.startswith("Use ")]
    page = button(page, "Compare them")
    again = theory("prices.commitments=[reserved]").cost
    assert again is not None and f"{again.usd_per_month:,.2f}" in text(page)
    page = button(page, "Use reserved")
    assert page.session_state.scenario["prices"]["commitments"] == ["reserved"]
    month = [one.value for one in page.metric if one.label == "\\$ per month"]
    assert month == [dollars(again.usd_per_month)]


def test_spot_is_planned_with_the_terms_that_the_visitor_assumes() -> None:
    page = opened()
    page.multiselect[0].set_value(["spot"])
    page = checked(page.run())
    assert "assumptions" in text(page)
    page.number_input(key="cost-spot-often").set_value(2.4)
    page = button(checked(page.run()), "Compare them")
    page = button(page, "Use spot")
    assert page.session_state.scenario["prices"]["spot"] == {
        "interruptions_per_hour": pytest.approx(0.1),
        "recovery_s": 600.0,
        "probability": 0.99,
    }


def test_a_recorded_day_can_be_planned_with() -> None:
    page = opened()
    assert "Conversation service at Azure" in text(page)
    page = button(page, "Plan with this day")
    assert page.session_state.scenario["profile"] == "azure-2024-conv-day"
    plan = store().get(("theory", json.dumps(page.session_state.scenario, sort_keys=True)))
    assert isinstance(plan, planner.Plan) and plan.cost is not None and plan.flat_usd_per_hour is not None
    shown = {one.label: one.value for one in page.metric}
    saved = 1.0 - plan.cost.usd_per_hour / plan.flat_usd_per_hour
    assert shown["Saved by following"] == f"{100 * saved:.0f} %"


def test_a_day_can_be_changed_and_left_again() -> None:
    page = opened(profile="{factors: [0.5, 1.5], period_hours: 12}")
    assert "at most 33 % possible" in [one.delta for one in page.metric]  # 1 - mean / peak = 1 - 1 / 1.5
    page = checked(page.number_input(key="cost-cold_start_s").set_value(600.0).run())
    assert page.session_state.scenario["profile"]["cold_start_s"] == 600.0
    page = checked(page.toggle[0].set_value(False).run())
    assert page.session_state.scenario["profile"]["autoscale"] is False
    shown = {one.label: one.value for one in page.metric}
    assert shown["Saved by following"] == "0 %"
    page = button(page, "Plan without it")
    assert page.session_state.scenario["profile"] is None


def test_a_day_is_played_with_an_autoscaler_once_it_is_asked_for() -> None:
    page = opened(profile="{factors: [0.5, 1.5], period_hours: 2}")
    assert "Load aimed at" not in [one.label for one in page.number_input]
    page = button(page, "Play it with an autoscaler")
    assert "Load aimed at" in [one.label for one in page.number_input]
    shown = " ".join(one.proto.body for one in page.get("html"))
    for fleet in ("autoscaled", "planned schedule", "flat"):
        assert fleet in shown


def test_without_a_fleet_it_says_what_it_would_show() -> None:
    page = opened(limits__budget_usd_per_hour="1")
    assert not page.metric
    assert "what it costs" in page.info[0].value


def test_two_visitors_do_not_see_each_others_prices() -> None:
    first, second = opened(), opened()
    first.number_input(key="cost-own-input").set_value(3.0)
    first.number_input(key="cost-own-output").set_value(3.0)
    assert "given by hand" in text(checked(first.run()))
    assert "given by hand" not in text(checked(second.run()))
