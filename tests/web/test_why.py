"""The tab *Why*, what if, and the page without a fleet: what they show is what the engine says, and buttons do it."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from hardware_db import load_hardware
from planner.analysis import CostRange
from planner.core import percent, rebuilt
from planner.scenario import full_content, read_scenario, request_fixes
from planner.traffic import load_lengths
from planner.web import infeasible, what_if, why_tab
from planner.web.session import with_changes
from tests.charts.titles import title_of

SMALL = {
    "workload.drift": "none",
    "search.skus": ["h100-sxm"],
    "search.modes": ["mixed"],
    "search.tp": [4],
    "search.max_running_requests": [256],
    "search.max_batched_tokens": [2048],
    "simulation.requests": 500,
}
TIMEOUT_S = 60


def content_with(changes: dict[str, Any]) -> dict[str, Any]:
    return with_changes(full_content(read_scenario("chat-llama-70b")[0]), {**SMALL, **changes})


def tab(part: str, content: dict[str, object], factors: dict[str, float]) -> None:
    """One part of the page by itself (runs inside the app)."""
    import importlib

    import streamlit as st

    from planner.fleet import hardware_for
    from planner.web import results, session, what_if

    if "scenario" not in st.session_state:
        st.session_state.update(scenario=content, past=[], future=[], complaint=None, base=session.DEFAULT, written={})
    key = session.key()
    request = results.request_of(key)
    hardware = hardware_for(request)
    page = results.Page(session.content(), key, request, hardware, results.theory_plan(request, hardware, key))
    if "moved" not in st.session_state:
        st.session_state.moved = True
        keys = what_if.slider_keys(page, what_if.knobs(page))
        for name, factor in factors.items():
            st.session_state[keys[name]] = factor
    importlib.import_module(f"planner.web.{part}").show(page)


def shown(part: str, content: dict[str, Any], factors: dict[str, float] | None = None) -> AppTest:
    app = AppTest.from_function(tab, default_timeout=TIMEOUT_S, args=(part, content, factors or {}))
    app.run()
    assert not app.exception, app.exception
    return app


def text(app: AppTest) -> str:
    return "\n".join(
        str(item.value) for kind in (app.markdown, app.caption, app.warning, app.info, app.error) for item in kind
    )


# --- what limits, and what would change it ----------------------------------------------------------------------------


def test_the_tab_says_what_limits_the_fleet_and_answers_the_first_question() -> None:
    app = shown("why_tab", content_with({}))
    said = text(app)
    assert "Tightest target: p99 TPOT" in said
    assert "waits mostly for memory" in said
    assert "the demand of 40 requests/s" in said


def test_a_question_is_answered_and_kept() -> None:
    app = shown("why_tab", content_with({}))
    app.segmented_control(key="why-question").set_value("Requirements").run()
    ask = [button for button in app.button if button.key == "ask-requirements"]
    if ask:
        ask[0].click().run()
    assert not app.exception
    assert "p99 TPOT" in text(app)
    assert not [button for button in app.button if button.key == "ask-requirements"]


@pytest.mark.parametrize(
    ("label", "name", "words"),
    [
        ("Confidence", "confidence", "Exact estimates would do with"),
        ("Measure first?", "measure", "Measuring h100-sxm"),
    ],
)
def test_confidence_and_measuring_are_asked_like_the_others(label: str, name: str, words: str) -> None:
    app = shown("why_tab", content_with({}))
    app.segmented_control(key="why-question").set_value(label).run()
    for button in [button for button in app.button if button.key == f"ask-{name}"]:
        button.click().run()
    assert not app.exception
    assert words in text(app)
    titles = [title_of(json.loads(one.proto.spec)) for one in app.get("vega_lite_chart")]
    assert ("Cost against confidence" in titles) == (label == "Confidence")


def test_without_a_fleet_the_tab_says_so() -> None:
    app = shown("why_tab", content_with({"limits.budget_usd_per_hour": 5.0}))
    assert len(app.info) == 1


# --- what if ----------------------------------------------------------------------------------------------------------


def test_nothing_moved_nothing_compared() -> None:
    app = shown("what_if", content_with({}))
    assert "Move a slider" in text(app)
    assert not app.metric


def test_before_and_after_are_plans_of_the_engine_and_use_this_writes_them_down() -> None:
    content = content_with({})
    app = shown("what_if", content, {"demand": 2.0})
    more = planner.plan(
        planner.load_scenario(with_changes(content, {"workload.rate_per_s": 80.0})), simulate=False, alternatives=False
    )
    assert more.cost is not None
    assert app.metric[0].value == f"${more.cost.usd_per_hour:,.2f}"
    app.button(key="whatif-use").click().run()
    assert not app.exception
    assert app.session_state.scenario["workload"]["rate_per_s"] == 80.0
    assert "Move a slider" in text(app)  # the sliders stand in the middle again


def test_reset_puts_the_sliders_back() -> None:
    app = shown("what_if", content_with({}), {"demand": 2.0})
    app.button(key="whatif-reset").click().run()
    assert "Move a slider" in text(app)
    assert app.session_state.scenario["workload"]["rate_per_s"] == 40.0


def test_a_dearer_gpu_makes_the_fleet_dearer_in_proportion() -> None:
    plain = shown("what_if", content_with({}), {"demand": 2.0, "price": 1.0})
    dear = shown("what_if", content_with({}), {"demand": 2.0, "price": 2.0})
    first, second = (float(app.metric[0].value.strip("$").replace(",", "")) for app in (plain, dear))
    assert second == pytest.approx(2.0 * first, rel=1e-3)  # the same GPUs at twice the price


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
    content = content_with({"workload.lengths": form})
    before = planner.load_scenario(content).workload.lengths
    after = planner.load_scenario(with_changes(content, what_if.length_changes(content, 1.5, 0.5))).workload.lengths
    assert after.mean_input == pytest.approx(1.5 * before.mean_input, rel=0.01)
    assert after.mean_output == pytest.approx(0.5 * before.mean_output, rel=0.01)


def test_lengths_of_a_file_are_left_alone() -> None:
    content = content_with({})
    content["workload"]["lengths"] = {"trace": "requests.csv"}
    assert what_if.length_changes(content, 2.0, 1.0) == {}
    assert load_lengths("azure-2023-conv").mean_input > 0.0


# --- no fleet ---------------------------------------------------------------------------------------------------------


def test_without_a_fleet_the_reason_stands_with_a_button_that_mends_it() -> None:
    app = shown("infeasible", content_with({"limits.budget_usd_per_hour": 5.0}))
    assert "the budget of 5.00 USD/h" in text(app)
    cost = planner.plan(planner.load_scenario(content_with({})), simulate=False, alternatives=False).cost
    assert cost is not None
    fix = app.button(key="fix-0")
    assert fix.label.startswith("Raise the budget to ")
    fix.click()
    app.run()
    raised = app.session_state.scenario["limits"]["budget_usd_per_hour"]
    assert 0.999 * cost.usd_per_hour < raised < 1.02 * cost.usd_per_hour
    assert len(app.session_state.past) == 1


def test_the_smallest_change_of_each_requirement_is_found_on_request() -> None:
    app = shown("infeasible", content_with({"limits.forbidden": ["h100-sxm"]}))
    app.button(key="ask-relaxations").click().run()
    assert not app.exception
    labels = [button.label for button in app.button if button.key and button.key.startswith("relaxation-")]
    assert labels == ["Without forbidden SKUs"]


def test_a_fix_needs_what_it_allows_where_theory_alone_would_do_with_less() -> None:
    """By theory three B200 are enough, in simulation they miss: with one more allowed there are four, not three."""
    content = content_with(
        {
            "workload.rate_per_s": 8.0,
            "workload.drift": {"cv": 0.5, "correlation_time_s": 60},
            "search.skus": ["b200-sxm"],
            "search.tp": [1],
            "confidence": 0.5,
            "limits.gpus": {"b200-sxm": 3},
        }
    )
    request = planner.load_scenario(content)
    none = planner.plan(request, alternatives=False)
    (fix,) = (fix for fix in request_fixes.fixes(none) if "limits.gpus" in fix.changes)
    (completed,) = infeasible._followed(content, none.corrections, fix, load_hardware(), lambda _: None)
    assert completed is not None and fix.text == "Allow 4 x b200-sxm (now 3)"
    assert completed.plan.gpus == {"b200-sxm": 4}


def test_what_binds_is_confidence_where_step_times_are_taken_for_slower() -> None:
    """The tightest target by estimates is far from its threshold; the fleet is what slow step times ask for."""
    request = planner.load_scenario("chat-llama-70b", [f"{name}={json.dumps(value)}" for name, value in SMALL.items()])
    found = planner.plan(request, simulate=False, alternatives=False)
    ratios = [check.predicted_s / check.target.threshold_s for check in found.slow_targets]
    exact = planner.plan(rebuilt(request, confidence=0.5), simulate=False, alternatives=False)
    assert found.cost is not None and exact.cost is not None and exact.cost.usd_per_hour < found.cost.usd_per_hour
    costs = CostRange(exact.cost, None, "fewer", "")
    (line,) = (line for line in why_tab.limits_in_words(found, costs) if "confidence" in line)
    assert "for 90 % confidence: with step times as slow as that reckons with, the tightest target is" in line
    assert f"at {percent(max(ratios))} of its threshold" in line
    assert "fewer for $" in line and "the rest buys confidence" in line
    assert not any("no cheaper" in line for line in why_tab.limits_in_words(found, costs))
    assert not any("confidence" in line for line in why_tab.limits_in_words(exact, costs))
