"""The tab *Check*: what it shows of uploaded metrics is what the command line says, and its button plans with it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from streamlit.testing.v1 import AppTest

import planner
from planner.analysis import ServedTraffic, compare_running_fleet
from planner.core import rebuilt
from planner.engine import StepTimeShift
from planner.launch import fleet_of, served_models
from planner.report import running_fleet as report
from planner.scenario import full_content, read_scenario, scenario_of_text
from planner.traffic import read_metrics
from tests.analysis.test_running_fleet import REQUESTS, page
from tests.cli.test_running import labelled
from tests.places import DOCS
from tests.recorded_pages import LOADED, LOADED_CLIENT, LOADED_S, recorded_page, recorded_rows

LOOP = DOCS / "tutorial" / "loop"
"""A scenario, and two scrapes of its fleet ten minutes apart."""
APART_S = 600
TIMEOUT_S = 60


def tab(content: dict[str, object]) -> None:
    """The tab by itself (runs inside the app)."""
    import streamlit as st

    from planner.fleet import hardware_for
    from planner.web import check_tab, results, session

    if "scenario" not in st.session_state:
        st.session_state.update(scenario=content, past=[], future=[], complaint=None, base=session.DEFAULT, written={})
    key = session.key()
    request = results.request_of(key)
    hardware = hardware_for(request)
    check_tab.show(results.Page(session.content(), key, request, hardware, results.theory_plan(request, hardware, key)))


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return full_content(read_scenario(str(LOOP / "support.yaml"))[0])


@pytest.fixture
def app(content: dict[str, Any]) -> AppTest:
    """The tab before anything is given."""
    page = AppTest.from_function(tab, default_timeout=TIMEOUT_S, args=(content,)).run()
    assert not page.exception, page.exception
    return page


def give(app: AppTest, *files: Path) -> AppTest:
    pages = [(file.name, file.read_bytes(), "text/plain") for file in files]
    return app.file_uploader(key="check-files").set_value(pages).run()


def text(app: AppTest) -> str:
    kinds = (app.markdown, app.caption, app.warning, app.info, app.error)
    return "\n".join(str(item.value) for kind in kinds for item in kind)


def test_it_says_what_to_give_before_anything_is_given(app: AppTest) -> None:
    assert "planner check plan.json" in text(app)
    assert "query_range" in app.code[0].value
    assert not app.button


def test_it_shows_what_the_command_line_shows(app: AppTest, content: dict[str, Any]) -> None:
    pages = (LOOP / "before.txt", LOOP / "after.txt")
    app.number_input(key="check-interval").set_value(APART_S)
    give(app, *pages)
    assert not app.exception and not app.error, text(app)
    plan = planner.plan(planner.load_scenario(content), simulate=False, alternatives=False)
    served = [ServedTraffic(one.deployment, one.workload) for one in plan.deployments]
    running = compare_running_fleet(served, plan.deployments[0].slo, read_metrics(*pages, interval_s=APART_S))
    assert report.headline(running) in text(app).replace("\\", "")
    shown = html.unescape("".join(item.body for item in app.get("html")))
    for table in report.tables(running):
        for row in table.rows:
            assert all(cell in shown for cell in row), row
    assert "the other way round" in text(app)  # the uploader puts files in the order of their names


def test_the_button_plans_with_what_was_measured_and_the_scenario_takes_it(app: AppTest) -> None:
    app.number_input(key="check-interval").set_value(APART_S)
    give(app, LOOP / "before.txt", LOOP / "after.txt")
    (ask,) = [button for button in app.button if str(button.key).startswith("ask-recalibrate")]
    assert "traffic as measured and step times as measured" in ask.label
    ask.click().run()
    assert not app.exception and not app.error, text(app)
    assert "Before and after" in text(app) and "saves" in text(app)
    app.button(key="check-use").click().run()
    kept = app.session_state["scenario"]
    assert kept["measured_steps"]["l40s"]["steps_error"] < 0.3
    assert kept["workload"]["rate_per_s"] == pytest.approx(20.0, rel=0.05)
    assert app.session_state["past"], "undo takes it back"


def test_pages_of_a_real_server_under_load_are_read_and_planned_with(app: AppTest, tmp_path: Path) -> None:
    """A vLLM that served another model on a processor: all differs, and what was measured is planned for."""
    pages = [tmp_path / name for name in ("after.txt", "before.txt")]
    for file in pages:
        file.write_text(recorded_page(LOADED, file.stem), encoding="utf-8")
    app.number_input(key="check-interval").set_value(round(LOADED_S))
    give(app, *pages)
    assert not app.exception and not app.error, text(app)
    (ask,) = [button for button in app.button if str(button.key).startswith("ask-recalibrate")]
    ask.click().run()
    assert not app.exception and not app.error, text(app)
    app.button(key="check-use").click().run()
    requests = len(recorded_rows(LOADED_CLIENT))
    assert app.session_state["scenario"]["workload"]["rate_per_s"] == pytest.approx(requests / LOADED_S, rel=0.01)


def test_files_that_say_nothing_are_refused_in_a_line(app: AppTest, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("node_load1 0.5\n", encoding="utf-8")
    give(app, empty)
    (line,) = app.error
    assert "none is of a known server" in line.value and not app.exception
    give(app, LOOP / "after.txt")
    assert "over what time it counted" in app.error[0].value.replace("\\", "")
    give(app, LOOP / "before.txt", LOOP / "after.txt")
    said = app.error[0].value.replace("\\", "")
    assert said.startswith(f"{app.number_input(key='check-interval').label} = ") and "\n" not in said


SEVERAL: dict[str, Any] = {
    "name": "two models",
    "services": [{"name": "small", "llm": "qwen2.5-7b"}],
}
"""Beside the model of the loop; with its traffic and targets."""


@pytest.fixture(scope="module")
def two_models(content: dict[str, Any]) -> dict[str, Any]:
    shared = {name: content[name] for name in ("workload", "slo")}
    (small,) = SEVERAL["services"]
    return full_content(scenario_of_text(json.dumps({**content, **SEVERAL, "services": [{**small, **shared}]})))


@pytest.fixture(scope="module")
def metrics_of_two(two_models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One scrape of both models, 15 and 5 % slower than estimated, each under the name that the exports give it."""
    plan = planner.plan(planner.load_scenario(two_models), simulate=False, alternatives=False)
    names, text = served_models(fleet_of(plan)), ""
    for one in plan.deployments:
        factor = 1.05 if one.service == "small" else 1.15
        shift = StepTimeShift(decode=factor, prompt=factor)
        pools = tuple(rebuilt(pool, config=rebuilt(pool.config, shift=shift)) for pool in one.deployment.pools)
        text += labelled(page(rebuilt(one.deployment, pools=pools), one.workload), names[one.service])
    file = tmp_path_factory.mktemp("two") / "metrics.txt"
    file.write_text(text, encoding="utf-8")
    return file


def test_several_models_are_recognised_seen_and_planned_again_together(
    two_models: dict[str, Any], metrics_of_two: Path
) -> None:
    app = AppTest.from_function(tab, default_timeout=TIMEOUT_S, args=(two_models,)).run()
    app.number_input(key="check-interval").set_value(round(REQUESTS / 20.0))
    give(app, metrics_of_two)
    assert not app.exception and not app.error, text(app)
    assert [box.label for box in app.selectbox] == ["llama-3.1-8b", "small"]
    assert "Llama-3.1-8B" in str(app.selectbox[0].value) and "Qwen2.5-7B" in str(app.selectbox[1].value)
    headlines = text(app).replace("\\", "")
    assert "- llama-3.1-8b: " in headlines and "- small: " in headlines
    shown = app.get("html")[0].proto.body
    app.segmented_control(key="check-shown").set_value("small").run()
    assert app.get("html")[0].proto.body != shown
    (ask,) = [button for button in app.button if str(button.key).startswith("ask-recalibrate")]
    assert "traffic as measured and step times as measured" in ask.label
    ask.click().run()
    assert not app.exception and not app.error, text(app)
    app.button(key="check-use").click().run()
    steps = app.session_state["scenario"]["measured_steps"]
    assert steps["l40s/llama-3.1-8b"]["steps"] > steps["l40s/qwen2.5-7b"]["steps"] > 0.0
    measured = app.session_state["scenario"]["services"][0]["workload"]["rate_per_s"]
    assert measured == pytest.approx(20.0, rel=1e-3)


def test_a_model_that_servers_call_otherwise_is_said_and_another_left_out(
    two_models: dict[str, Any], metrics_of_two: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "renamed.txt"
    renamed.write_text(
        re.sub(r'model_name="[^"]*Qwen[^"]*"', 'model_name="ours"', metrics_of_two.read_text("utf-8")), "utf-8"
    )
    app = AppTest.from_function(tab, default_timeout=TIMEOUT_S, args=(two_models,)).run()
    app.number_input(key="check-interval").set_value(round(REQUESTS / 20.0))
    give(app, renamed)
    assert "Llama-3.1-8B" in str(app.selectbox[0].value) and app.selectbox[1].value == "not watched"
    assert "- small: " not in text(app).replace("\\", "")
    app.selectbox[1].set_value("ours").run()
    assert not app.exception and not app.error, text(app)
    assert "- small: " in text(app).replace("\\", "")
    app.selectbox[0].set_value("not watched").run()
    app.selectbox[1].set_value("not watched").run()
    assert "Say above which is which" in text(app) and not app.button
