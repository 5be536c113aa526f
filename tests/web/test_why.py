"""The tab *Why*, what if, and the page without a fleet: what they show is what the engine says, and buttons do it."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import load_hardware
from planner.analysis import CostRange
from planner.analysis.headline import CostEnd
from planner.core import percent, rebuilt
from planner.scenario import Content, request_fixes
from planner.web import infeasible, what_if, why_tab
from planner.web.session import with_changes
from tests.web import pages
from tests.web.pages import fine, press, said, scenario, small, titles, values


def content_with(**changes: Any) -> Content:
    """The small scenario on four GPUs a replica; two underscores stand for a dot."""
    return with_changes(small("search.tp=[4]"), {name.replace("__", "."): value for name, value in changes.items()})


def theory(content: Content) -> planner.Plan:
    return planner.plan(planner.load_scenario(content), simulate=False, alternatives=False)


# --- what limits, and what would change it ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def why() -> AppTest:
    return pages.shown("why_tab", content_with())


def test_the_tab_says_what_limits_the_fleet_and_answers_the_first_question(why: AppTest) -> None:
    assert "Tightest target: p99 TPOT" in said(why)
    assert "waits mostly for memory" in said(why)
    assert "the demand of 40 requests/s" in said(why)


@pytest.mark.parametrize(
    ("label", "name", "words"),
    [
        ("Requirements", "requirements", "p99 TPOT"),
        ("Confidence", "confidence", "Exact estimates would do with"),
        ("Measure first?", "measure", "Measuring H100 SXM"),
    ],
)
def test_a_question_is_asked_answered_and_kept(why: AppTest, label: str, name: str, words: str) -> None:
    why.segmented_control(key="why-question").set_value(label).run()
    for _ in [button for button in why.button if button.key == f"ask-{name}"]:
        press(why, f"ask-{name}")
    assert words in said(fine(why)) and not [button for button in why.button if button.key == f"ask-{name}"]
    assert ("Cost against confidence" in titles(why)) == (label == "Confidence")


def test_without_a_fleet_the_tab_says_so() -> None:
    assert len(pages.shown("why_tab", content_with(limits__budget_usd_per_hour=5.0)).info) == 1


# --- what if ----------------------------------------------------------------------------------------------------------


def test_before_and_after_are_plans_of_the_engine_and_use_this_writes_them_down() -> None:
    content = content_with()
    app = pages.shown("what_if", content)
    assert "Move a slider" in said(app) and not app.metric
    for button, rate in (("whatif-reset", 40.0), ("whatif-use", 80.0)):
        (demand,) = [slider for slider in app.select_slider if slider.label.startswith("Demand")]
        fine(demand.set_value(2.0).run())
        more = theory(with_changes(content, {"workload.rate_per_s": 80.0}))
        assert more.cost is not None and values(app)["Cost per hour"] == f"${more.cost.usd_per_hour:,.2f}"
        assert scenario(press(app, button))["workload"]["rate_per_s"] == rate
        assert "Move a slider" in said(app)  # the sliders stand in the middle again


@pytest.mark.parametrize(
    "form",
    [
        "azure-2023-conv",
        {"preset": "azure-2023-conv", "mean_input_tokens": 500.0, "mean_output_tokens": 100.0},
        {"input_tokens": 1000, "output_tokens": 100},
        {"cells": [[1000, 100, 1.0], [3000, 300, 1.0]], "source": "given"},
    ],
)
def test_scaled_lengths_have_scaled_means(form: Any) -> None:
    content = content_with(workload__lengths=form)
    before = planner.load_scenario(content).workload.lengths
    after = planner.load_scenario(with_changes(content, what_if.length_changes(content, 1.5, 0.5))).workload.lengths
    assert after.mean_input == pytest.approx(1.5 * before.mean_input, rel=0.01)
    assert after.mean_output == pytest.approx(0.5 * before.mean_output, rel=0.01)


def test_lengths_of_a_file_are_left_alone() -> None:
    content = content_with()
    content["workload"]["lengths"] = {"trace": "requests.csv"}
    assert what_if.length_changes(content, 2.0, 1.0) == {}


# --- no fleet ---------------------------------------------------------------------------------------------------------


def test_without_a_fleet_the_reason_stands_with_a_button_that_mends_it() -> None:
    app = pages.shown("infeasible", content_with(limits__budget_usd_per_hour=5.0))
    assert "the budget of 5.00 USD/h" in said(app)
    cost = theory(content_with()).cost
    assert cost is not None
    fix = app.button(key="fix-0")
    assert fix.label.startswith("Raise the budget to ")
    fix.click()
    raised = scenario(app.run())["limits"]["budget_usd_per_hour"]
    assert 0.999 * cost.usd_per_hour < raised < 1.02 * cost.usd_per_hour
    assert len(app.session_state.past) == 1


def test_the_smallest_change_of_each_requirement_is_found_on_request() -> None:
    app = press(pages.shown("infeasible", content_with(limits__forbidden=["h100-sxm"])), "ask-relaxations")
    labels = [button.label for button in app.button if button.key and button.key.startswith("relaxation-")]
    assert labels == ["Without forbidden SKUs"]


def test_a_fix_needs_what_it_allows_where_theory_alone_would_do_with_less() -> None:
    """By theory three B200 are enough, in simulation they miss: with one more allowed there are four, not three."""
    content = content_with(
        workload__rate_per_s=8.5,
        workload__drift={"cv": 0.5, "correlation_time_s": 60},
        search__skus=["b200-sxm"],
        search__tp=[1],
        confidence=0.5,
        limits__gpus={"b200-sxm": 3},
    )
    none = planner.plan(planner.load_scenario(content), alternatives=False)
    (fix,) = (fix for fix in request_fixes.fixes(none) if "limits.gpus" in fix.changes)
    (completed,) = infeasible._followed(content, none.corrections, fix, load_hardware(), lambda _: None)
    assert completed is not None and fix.text == "Allow 4 x b200-sxm (now 3)"
    assert completed.plan.gpus == {"b200-sxm": 4}


def test_what_binds_is_confidence_where_step_times_are_taken_for_slower() -> None:
    """The tightest target by estimates is far from its threshold; the fleet is what slow step times ask for."""
    request = planner.load_scenario(content_with(confidence=0.9, workload__rate_per_s=30.0))
    found = planner.plan(request, simulate=False, alternatives=False)
    ratios = [check.predicted_s / check.target.threshold_s for check in found.slow_targets]
    exact = planner.plan(rebuilt(request, confidence=0.5), simulate=False, alternatives=False)
    assert found.cost is not None and exact.cost is not None and exact.cost.usd_per_hour < found.cost.usd_per_hour
    costs = CostRange(CostEnd(exact.cost, "fewer"), CostEnd(None, ""))
    (line,) = (line for line in why_tab.limits_in_words(found, costs) if "confidence" in line)
    assert "for 90 % confidence: with step times as slow as that reckons with, the tightest target is" in line
    assert f"at {percent(max(ratios))} of its threshold" in line
    assert "fewer for $" in line and "the rest buys confidence" in line
    assert not any("confidence" in line for line in why_tab.limits_in_words(exact, costs))
