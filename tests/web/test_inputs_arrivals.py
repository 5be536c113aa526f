"""Inputs of burstiness, drift and scaling, on a page of their own: what each writes into the scenario, what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlit.testing.v1 import AppTest

from planner.scenario import full_content, read_scenario
from planner.traffic import preset_arrivals, recorded_arrivals
from planner.web.inputs_arrivals import arrivals_note
from planner.workload import ArrivalProcess


def _page() -> None:
    from planner.web.inputs_arrivals import arrival_inputs

    arrival_inputs()


def page(**workload: Any) -> AppTest:
    """The inputs of the packaged chat scenario with some fields of its workload replaced."""
    content = read_scenario("chat-llama-70b")[0].model_dump(mode="json", exclude_defaults=True)
    fields = {name: given for name, given in {**content["workload"], **workload}.items() if given is not None}
    app = AppTest.from_function(_page, default_timeout=30)
    app.session_state["scenario"] = full_content(read_scenario({**content, "workload": fields})[0])
    app.session_state["past"], app.session_state["base"] = [], "chat-llama-70b"
    return app.run()


def workload(app: AppTest) -> Mapping[str, Any]:
    assert not app.exception, app.exception
    return dict(app.session_state["scenario"]["workload"])


def test_a_replayed_recording_says_what_it_carries_and_offers_its_scaling() -> None:
    app = page(rate_per_s=12.0)
    (note,) = [item.value.replace("\\", "") for item in app.caption]
    assert note.startswith("Replays 42,0")
    assert "worst minute 1.5 times the mean" in note
    changed = app.selectbox(key="scaling").set_value("stretch").run()
    assert workload(changed)["scaling"] == "stretch"
    assert "in 27 min" in changed.caption[0].value  # 19,366 requests at 12/s


def test_a_drift_of_two_numbers_replaces_the_recorded_one_and_leaves_again() -> None:
    app = page(rate_per_s=12.0).number_input(key="drift-cv").set_value(0.6).run()
    assert workload(app)["drift"] == {"cv": 0.6, "correlation_time_s": 300.0}
    assert "60% (CV)" in app.caption[0].value.replace("\\", "")
    app = app.number_input(key="drift-time").set_value(900.0).run()
    assert workload(app)["drift"]["correlation_time_s"] == 900.0
    assert workload(app.number_input(key="drift-cv").set_value(0.0).run())["drift"] is None


def test_a_drift_by_windows_can_be_switched_off() -> None:
    app = page(scv=1.5, drift={"window_s": 60, "factors": [1, 3]})
    assert "worst minute 1.5 times the mean" in app.caption[0].value
    app = app.checkbox(key="drift-recorded").uncheck().run()
    assert workload(app)["drift"] == "none"
    assert "Steady rate, gaps with SCV 1.5" in app.caption[0].value


def test_burstiness_of_ones_own_ends_the_replay() -> None:
    app = page(rate_per_s=12.0).number_input(key="scv").set_value(3.0).run()
    assert workload(app)["scv"] == 3.0
    assert app.caption[0].value == "Steady rate, gaps with SCV 3."
    assert not app.selectbox


def test_nothing_is_said_of_the_arrivals_of_a_closed_loop() -> None:
    app = page(concurrency=8, rate_per_s=None, scv=None)
    assert not app.caption
    assert not app.number_input


def test_notes_name_the_window_where_it_is_longer_than_a_minute() -> None:
    slow = recorded_arrivals("mooncake-conversation")
    assert "worst 300 s 1.1 times the mean" in arrivals_note(slow)
    assert "worst minute" in arrivals_note(preset_arrivals("azure-2023-conv", 40.0))
    assert arrivals_note(ArrivalProcess(rate_per_s=1.0)) == "Steady rate, gaps with SCV 1."
