"""Inputs of traffic that is stated in users and sessions, on a page of their own."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from planner.scenario import full_content, read_scenario


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
    assert app.number_input(key="stated-rate").label == title
    app.number_input(key="stated-rate").set_value(500.0).run()
    app.number_input(key="think-time").set_value(7.0).run()
    workload = app.session_state["scenario"]["workload"]
    assert (workload[field], workload["sessions"]["think_time_s"]) == (500.0, 7.0)
