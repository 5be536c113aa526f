"""Inputs of traffic, on pages of their own: what each writes into the scenario, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from planner.scenario import full_content, read_scenario
from planner.traffic import preset_arrivals, recorded_arrivals
from planner.web import inputs_traffic
from planner.web.inputs_traffic import arrivals_note
from planner.workload import ArrivalProcess, ClosedLoop

DAY_S = 24 * 3600.0
MONTH_S = 730 * 3600.0


# --- sessions ---------------------------------------------------------------------------------------------------------


def _page() -> None:
    from planner.web.inputs_traffic import show

    show()


def page(name: str) -> AppTest:
    app = AppTest.from_function(_page, default_timeout=30)
    app.session_state["scenario"] = full_content(read_scenario(name)[0])
    app.session_state["past"], app.session_state["base"] = [], name
    app.run()
    assert not app.exception, app.exception
    return app


@pytest.mark.parametrize(
    ("name", "field", "title"),
    [
        ("chat-sessions-llama-70b", "users", "Users"),
        ("agents-qwen3-coder-30b", "concurrent_sessions", "Sessions under way"),
    ],
)
def test_sessions_say_what_they_are_and_are_edited_as_they_were_stated(name: str, field: str, title: str) -> None:
    app = page(name)
    assert any(caption.value.startswith("Sessions: each request carries") for caption in app.caption)
    assert app.number_input(key=f"workload.{field}").label == title
    app.number_input(key=f"workload.{field}").set_value(500.0).run()
    app.number_input(key="workload.sessions.think_time_s").set_value(7.0).run()
    workload = app.session_state["scenario"]["workload"]
    assert (workload[field], workload["sessions"]["think_time_s"]) == (500.0, 7.0)


# --- arrivals ---------------------------------------------------------------------------------------------------------


def _arrivals() -> None:
    from planner.web.inputs_traffic import arrival_inputs

    arrival_inputs()


def arrivals_page(**workload: Any) -> AppTest:
    """The inputs of the packaged chat scenario with some fields of its workload replaced."""
    content = read_scenario("chat-llama-70b")[0].model_dump(mode="json", exclude_defaults=True)
    fields = {name: given for name, given in {**content["workload"], **workload}.items() if given is not None}
    app = AppTest.from_function(_arrivals, default_timeout=30)
    app.session_state["scenario"] = full_content(read_scenario({**content, "workload": fields})[0])
    app.session_state["past"], app.session_state["base"] = [], "chat-llama-70b"
    return app.run()


def workload(app: AppTest) -> Mapping[str, Any]:
    assert not app.exception, app.exception
    return dict(app.session_state["scenario"]["workload"])


def test_a_replayed_recording_says_what_it_carries_and_offers_its_scaling() -> None:
    app = arrivals_page(rate_per_s=12.0)
    (note,) = [item.value.replace("\\", "") for item in app.caption]
    assert note.startswith("Replays 42,0")
    assert "worst minute 1.5 times the mean" in note
    changed = app.selectbox(key="workload.scaling").set_value("stretch").run()
    assert workload(changed)["scaling"] == "stretch"
    assert "in 27 min" in changed.caption[0].value  # 19,366 requests at 12/s


def test_a_drift_of_two_numbers_replaces_the_recorded_one_and_leaves_again() -> None:
    app = arrivals_page(rate_per_s=12.0).number_input(key="workload.drift").set_value(0.6).run()
    assert workload(app)["drift"] == {"cv": 0.6, "correlation_time_s": 300.0}
    assert "60% (CV)" in app.caption[0].value.replace("\\", "")
    app = app.number_input(key="workload.drift.correlation_time_s").set_value(900.0).run()
    assert workload(app)["drift"]["correlation_time_s"] == 900.0
    assert workload(app.number_input(key="workload.drift").set_value(0.0).run())["drift"] is None


def test_a_drift_by_windows_can_be_switched_off() -> None:
    app = arrivals_page(scv=1.5, drift={"window_s": 60, "factors": [1, 3]})
    assert "worst minute 1.5 times the mean" in app.caption[0].value
    app = app.checkbox(key="drift-recorded").uncheck().run()
    assert workload(app)["drift"] == "none"
    assert "Steady rate, gaps with SCV 1.5" in app.caption[0].value


def test_burstiness_of_ones_own_ends_the_replay() -> None:
    app = arrivals_page(rate_per_s=12.0).number_input(key="workload.scv").set_value(3.0).run()
    assert workload(app)["scv"] == 3.0
    assert app.caption[0].value == "Steady rate, gaps with SCV 3."
    assert not app.selectbox


def test_nothing_is_said_of_the_arrivals_of_a_closed_loop() -> None:
    app = arrivals_page(concurrency=8, rate_per_s=None, scv=None)
    assert not app.caption
    assert not app.number_input


def test_notes_name_the_window_where_it_is_longer_than_a_minute() -> None:
    slow = recorded_arrivals("mooncake-conversation")
    assert "worst 300 s 1.1 times the mean" in arrivals_note(slow)
    assert "worst minute" in arrivals_note(preset_arrivals("azure-2023-conv", 40.0))
    assert arrivals_note(ArrivalProcess(rate_per_s=1.0)) == "Steady rate, gaps with SCV 1."


# --- rate -------------------------------------------------------------------------------------------------------------


def _rate() -> None:
    from planner.web.inputs_traffic import rate_inputs

    rate_inputs()


def rate_page(*overrides: str) -> AppTest:
    app = AppTest.from_function(_rate, default_timeout=30)
    app.session_state["scenario"] = full_content(read_scenario("chat-llama-70b", overrides)[0])
    app.session_state["past"], app.session_state["base"] = [], "chat-llama-70b"
    return app.run()


def given_in(app: AppTest, unit: str) -> AppTest:
    return app.selectbox(key="rate-unit").set_value(unit).run()


def test_a_rate_is_shown_as_it_is() -> None:
    """5.53 is not 6."""
    app = rate_page("workload.rate_per_s=5.53")
    assert app.number_input(key="rate").value == 5.53 and app.select_slider(key="rate-slider").value == 5.53
    assert workload(app)["rate_per_s"] == 5.53


@pytest.mark.parametrize(
    ("unit", "given", "rate_per_s"),
    [
        ("Requests per minute", 600.0, 10.0),
        ("Requests per day", 864_000.0, 10.0),
        ("Requests per month", MONTH_S, 1.0),
        ("Tokens per day", 1200.0 * DAY_S, 2.0),
    ],
)
def test_traffic_in_another_unit_is_the_rate_that_it_means(unit: str, given: float, rate_per_s: float) -> None:
    """By the definitions of the units; a request has 500 + 100 tokens."""
    app = given_in(rate_page("workload.lengths={input_tokens: 500, output_tokens: 100}", "workload.scv=1"), unit)
    assert workload(app)["rate_per_s"] == 40.0  # another unit is no other traffic
    app.number_input(key="rate-in-unit").set_value(given).run()
    assert workload(app)["rate_per_s"] == pytest.approx(rate_per_s, rel=1e-9)
    assert app.number_input(key="rate-in-unit").value == pytest.approx(given, rel=1e-9)


def test_users_at_the_same_time_are_a_closed_loop_and_back() -> None:
    app = rate_page()
    before = workload(app)
    given_in(app, inputs_traffic.USERS)
    app.number_input(key="workload.concurrency").set_value(64).run()
    request = planner.load_scenario(app.session_state["scenario"])
    assert request.workload.arrivals == ClosedLoop(concurrency=64)
    given_in(app, inputs_traffic.PER_SECOND)
    assert workload(app) == before


@pytest.mark.parametrize("rate_per_s", ["0.00001", "123456789"])
def test_a_rate_beyond_the_usual_is_still_shown(rate_per_s: str) -> None:
    assert rate_page(f"workload.rate_per_s={rate_per_s}").number_input(key="rate").value == float(rate_per_s)
