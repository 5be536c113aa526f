"""Inputs of traffic, on pages of their own: what each writes into the scenario, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.scenario import full_content, read_scenario
from planner.web import inputs_traffic
from planner.workload import ClosedLoop
from tests.web.pages import content_of, fine, scenario

DAY_S = 24 * 3600.0
MONTH_S = 730 * 3600.0


def _inputs(part: str) -> None:
    from planner.web import inputs_traffic

    getattr(inputs_traffic, part)()


def page(part: str, content: Mapping[str, Any]) -> AppTest:
    """Some inputs of traffic by themselves."""
    app = AppTest.from_function(_inputs, default_timeout=30, args=(part,))
    app.session_state["scenario"], app.session_state["past"] = content, []
    return fine(app.run())


def workload(app: AppTest) -> Mapping[str, Any]:
    return dict(scenario(app)["workload"])


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field", "title"),
    [
        ("chat-sessions-llama-70b", "users", "Users"),
        ("agents-qwen3-coder-30b", "concurrent_sessions", "Sessions under way"),
    ],
)
def test_sessions_say_what_they_are_and_are_edited_as_they_were_stated(name: str, field: str, title: str) -> None:
    app = page("show", content_of(name=name))
    assert any(caption.value.startswith("Sessions: each request carries") for caption in app.caption)
    assert app.number_input(key=f"workload.{field}").label == title
    app.number_input(key=f"workload.{field}").set_value(500.0).run()
    app.number_input(key="workload.sessions.think_time_s").set_value(7.0).run()
    assert (workload(app)[field], workload(app)["sessions"]["think_time_s"]) == (500.0, 7.0)


# --- arrivals ---------------------------------------------------------------------------------------------------------


def arrivals_page(**workload: Any) -> AppTest:
    """The inputs of the packaged chat scenario with some fields of its workload replaced."""
    content = read_scenario("chat-llama-70b")[0].model_dump(mode="json", exclude_defaults=True)
    fields = {name: given for name, given in {**content["workload"], **workload}.items() if given is not None}
    return page("arrival_inputs", full_content(read_scenario({**content, "workload": fields})[0]))


def test_a_replayed_recording_says_what_it_carries_and_offers_its_scaling() -> None:
    app = arrivals_page(rate_per_s=12.0)
    (note,) = [item.value.replace("\\", "") for item in app.caption]
    assert note.startswith("Replays 42,0")
    assert "worst minute 1.5 times the mean" in note
    changed = app.selectbox(key="workload.scaling").set_value("stretch").run()
    assert workload(changed)["scaling"] == "stretch"
    assert "in 27 min" in changed.caption[0].value  # 19,366 requests at 12/s


def test_a_drift_of_two_numbers_replaces_the_recorded_one_and_leaves_again() -> None:
    app = arrivals_page(rate_per_s=12.0)
    assert "workload.drift" not in [one.key for one in app.number_input]  # one or the other
    app = app.checkbox(key="drift-recorded").uncheck().run()
    app = app.number_input(key="workload.drift").set_value(0.6).run()
    assert workload(app)["drift"] == {"cv": 0.6, "correlation_time_s": 300.0}
    assert "60% (CV)" in app.caption[0].value.replace("\\", "")
    app = app.number_input(key="workload.drift.correlation_time_s").set_value(900.0).run()
    assert workload(app)["drift"]["correlation_time_s"] == 900.0
    app = app.number_input(key="workload.drift").set_value(0.0).run()
    assert workload(app)["drift"] == "none" and "Steady rate" in app.caption[0].value
    assert workload(app.checkbox(key="drift-recorded").check().run())["drift"] is None


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
    closed = arrivals_page(concurrency=8, rate_per_s=None, scv=None)
    assert not closed.caption and not closed.number_input  # of which there is nothing to say


# --- rate -------------------------------------------------------------------------------------------------------------


def rate_page(*overrides: str) -> AppTest:
    return page("rate_inputs", content_of(*overrides))


def given_in(app: AppTest, unit: str) -> AppTest:
    return app.selectbox(key="rate-unit").set_value(unit).run()


@pytest.mark.parametrize("rate_per_s", [5.53, 0.00001, 123456789.0])
def test_a_rate_is_shown_as_it_is(rate_per_s: float) -> None:
    """5.53 is not 6; one beyond the usual is still shown."""
    app = rate_page(f"workload.rate_per_s={rate_per_s:.9f}")
    assert app.number_input(key="rate").value == app.select_slider(key="rate-slider").value == rate_per_s
    assert workload(app)["rate_per_s"] == rate_per_s


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
    assert workload(app)["rate_per_s"] == 40.0  # another unit is no other mean
    assert (scenario(app)["profile"] is None) == (unit == "Requests per minute")  # by the day: planned hour by hour
    app.number_input(key="rate-in-unit").set_value(given).run()
    assert workload(app)["rate_per_s"] == pytest.approx(rate_per_s, rel=1e-9)
    assert app.number_input(key="rate-in-unit").value == pytest.approx(given, rel=1e-9)


def test_users_at_the_same_time_are_a_closed_loop_and_back() -> None:
    app = rate_page()
    before = workload(app)
    given_in(app, inputs_traffic.USERS)
    app.number_input(key="workload.concurrency").set_value(64).run()
    app.number_input(key="workload.think_time_s").set_value(30.0).run()
    request = planner.load_scenario(app.session_state["scenario"])
    assert request.workload.arrivals == ClosedLoop(concurrency=64, think_time_s=30.0)
    given_in(app, inputs_traffic.PER_SECOND)
    assert workload(app) == before
