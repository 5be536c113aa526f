"""The page without a browser: the app or one part of it, run in this process and read as a visitor reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamlit.testing.v1 import AppTest

from planner.scenario import Content, full_content, read_scenario
from tests.builders import SMALL_CHAT
from tests.charts.titles import title_of

TIMEOUT_S = 300
"""A first plan on a fresh machine compiles for a minute, on a busy one for several."""
KINDS = ("markdown", "caption", "info", "success", "warning", "error")


def content_of(*overrides: str, name: str = "chat-llama-70b") -> Content:
    """A packaged scenario with other values."""
    return full_content(read_scenario(name, overrides)[0])


def small(*more: str) -> Content:
    """The worked example with few choices, and other values."""
    return content_of(*SMALL_CHAT, *more)


THEORY, CHECKED, COMPLETE = "theory", "checked", "complete"
"""How far a page has come: by theory, simulated, with alternatives and intervals."""


def run_parts(parts: str, content: dict[str, object], until: str) -> None:
    """Parts of the page by themselves (runs inside the app)."""
    import importlib

    import streamlit as st

    from planner.fleet import hardware_for
    from planner.web import results, session, summary

    if "scenario" not in st.session_state:
        session.start()
        st.session_state.update(scenario=content, planned=content)
    key = session.key()
    request = results.request_of(key)
    hardware = hardware_for(request)
    page = results.Page(session.content(), key, request, hardware, results.theory_plan(request, hardware, key))
    if until != "theory" and page.plan.feasible:
        results.check_by_simulation(page)
        page = results.page_of(session.content(), key)
        if until == "complete":
            summary.complete(page)
            page = results.page_of(session.content(), key)
    for part in parts.split():
        importlib.import_module(f"planner.web.{part}").show(page)


def shown(
    parts: str, content: Mapping[str, Any], until: str = THEORY, *, state: Mapping[str, object] | None = None
) -> AppTest:
    """Modules of `planner.web` for a scenario, with some state of the visit."""
    app = AppTest.from_function(run_parts, default_timeout=TIMEOUT_S, args=(parts, content, until))
    for name, value in (state or {}).items():
        app.session_state[name] = value
    return fine(app.run())


def fine(app: AppTest) -> AppTest:
    """A page on which nothing broke."""
    assert not app.exception, app.exception
    return app


def said(app: AppTest) -> str:
    """All text of a page, tables included, without the backslashes that keep Markdown from reading it."""
    texts = [str(one.value) for kind in KINDS for one in app.get(kind)]
    return "\n".join([*texts, html(app)]).replace("\\", "")


def html(app: AppTest) -> str:
    """Tables of a page."""
    return "".join(str(one.proto.body) for one in app.get("html"))


def figures(app: AppTest) -> dict[str, Any]:
    """Metrics by label."""
    return {one.label.replace("\\", ""): one for one in app.metric}


def values(app: AppTest) -> dict[str, str]:
    """The number of each metric, by label."""
    return {label: one.value for label, one in figures(app).items()}


def charts(app: AppTest) -> list[dict[str, Any]]:
    """Vega-Lite specifications of the charts."""
    return [json.loads(one.proto.spec) for one in app.get("vega_lite_chart")]


def titles(app: AppTest) -> list[str]:
    """Titles of the charts."""
    return [title_of(spec) for spec in charts(app)]


def scenario(app: AppTest) -> dict[str, Any]:
    """The scenario of the visit."""
    return dict(fine(app).session_state["scenario"])


def press(app: AppTest, name: str) -> AppTest:
    """The page after a click on the button of that key, else the one whose key or label starts so."""
    exact = [one for one in app.button if one.key == name]
    (found,) = exact or [one for one in app.button if str(one.key).startswith(name) or one.label.startswith(name)]
    return fine(found.click().run())
