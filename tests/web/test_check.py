"""The tab *Check*: what it shows of uploaded metrics is what the command line says, and its button plans with it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.analysis import ServedTraffic, compare_running_fleet
from planner.core import rebuilt
from planner.engine import StepTimeShift
from planner.launch import served_models
from planner.report import running_fleet as report
from planner.scenario import Content, full_content, scenario_of_text
from planner.traffic import read_metrics
from tests.analysis.test_running_fleet import REQUESTS, page
from tests.cli.test_running import labelled
from tests.places import DOCS
from tests.recorded_pages import LOADED, LOADED_CLIENT, LOADED_S, recorded_page, recorded_rows
from tests.web import pages
from tests.web.pages import content_of, press, said, scenario

LOOP = DOCS / "tutorial" / "loop"
"""A scenario, and two scrapes of its fleet ten minutes apart."""
SCRAPES = (LOOP / "before.txt", LOOP / "after.txt")
APART_S = 600
ASK = "Plan again with traffic as measured and step times as measured"


@pytest.fixture(scope="module")
def content() -> Content:
    return content_of(name=str(LOOP / "support.yaml"))


def opened(content: Content, interval_s: float | None = None, *files: Path) -> AppTest:
    """The tab, given files that lie so far apart."""
    app = pages.shown("check_tab", content)
    app.number_input(key="check-interval").set_value(interval_s)
    return give(app, *files) if files else app


def give(app: AppTest, *files: Path) -> AppTest:
    given = [(file.name, file.read_bytes(), "text/plain") for file in files]
    return pages.fine(app.file_uploader(key="check-files").set_value(given).run())


def test_it_says_what_to_give_and_shows_what_the_command_line_shows(content: Content) -> None:
    app = opened(content, APART_S)
    assert "planner check plan.json" in said(app) and "query_range" in app.code[0].value and not app.button
    give(app, *SCRAPES)
    assert not app.error, said(app)
    plan = planner.plan(planner.load_scenario(content), simulate=False, alternatives=False)
    served = [ServedTraffic(one.deployment, one.workload) for one in plan.deployments]
    running = compare_running_fleet(served, plan.deployments[0].slo, read_metrics(*SCRAPES, interval_s=APART_S))
    assert report.headline(running) in said(app)
    shown = html.unescape(pages.html(app))
    for table in report.tables(running):
        for row in table.rows:
            assert all(cell in shown for cell in row), row
    assert "the other way round" in said(app)  # the uploader puts files in the order of their names


def test_the_button_plans_with_what_was_measured_and_the_scenario_takes_it(content: Content) -> None:
    app = press(opened(content, APART_S, *SCRAPES), ASK)
    assert not app.error and "Before and after" in said(app) and "saves" in said(app)
    kept = scenario(press(app, "check-use"))
    assert kept["measured_steps"]["l40s"]["steps_error"] < 0.35
    assert kept["workload"]["rate_per_s"] == pytest.approx(content["workload"]["rate_per_s"], rel=0.05)
    assert app.session_state["past"], "undo takes it back"


def test_pages_of_a_real_server_under_load_are_read_and_planned_with(content: Content, tmp_path: Path) -> None:
    """A vLLM that served another model on a processor: all differs, and what was measured is planned for."""
    files = [tmp_path / name for name in ("after.txt", "before.txt")]
    for file in files:
        file.write_text(recorded_page(LOADED, file.stem), encoding="utf-8")
    app = press(press(opened(content, round(LOADED_S), *files), "ask-recalibrate"), "check-use")
    requests = len(recorded_rows(LOADED_CLIENT))
    assert scenario(app)["workload"]["rate_per_s"] == pytest.approx(requests / LOADED_S, rel=0.01)


def test_without_a_fleet_there_is_nothing_to_hold_measurements_against() -> None:
    app = pages.shown("check_tab", pages.small("limits.budget_usd_per_hour=1"))
    assert "No feasible fleet yet" in app.info[0].value and not app.file_uploader


def test_files_that_say_nothing_are_refused_in_a_line(content: Content, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("node_load1 0.5\n", encoding="utf-8")
    app = opened(content, None, empty)
    (line,) = app.error
    assert "none is of a known server" in line.value
    give(app, SCRAPES[1])
    assert "over what time it counted" in app.error[0].value.replace("\\", "")
    give(app, *SCRAPES)
    refusal = app.error[0].value.replace("\\", "")
    assert refusal.startswith(f"{app.number_input(key='check-interval').label} = ") and "\n" not in refusal


@pytest.fixture(scope="module")
def two_models(content: Content) -> Content:
    """A second model with the traffic and targets of the first."""
    asked = {name: content[name] for name in ("workload", "slo", "precision")}
    small = {"name": "small", "llm": "qwen2.5-7b", **asked}
    return full_content(scenario_of_text(json.dumps({**content, "name": "two models", "services": [small]})))


@pytest.fixture(scope="module")
def metrics_of_two(two_models: Content, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One scrape of both models, 15 and 5 % slower than estimated, each under the name that the exports give it."""
    plan = planner.plan(planner.load_scenario(two_models), simulate=False, alternatives=False)
    names, text = served_models(plan), ""
    for one in plan.deployments:
        factor = 1.05 if one.service == "small" else 1.15
        shift = StepTimeShift(decode=factor, prompt=factor)
        pools = tuple(rebuilt(pool, config=rebuilt(pool.config, shift=shift)) for pool in one.deployment.pools)
        text += labelled(page(rebuilt(one.deployment, pools=pools), one.workload), names[one.service])
    file = tmp_path_factory.mktemp("two") / "metrics.txt"
    file.write_text(text, encoding="utf-8")
    return file


def test_several_models_are_recognised_seen_and_planned_again_together(
    two_models: Content, metrics_of_two: Path
) -> None:
    app = opened(two_models, round(REQUESTS / 20.0), metrics_of_two)
    assert not app.error, said(app)
    assert [box.label for box in app.selectbox] == ["llama-3.1-8b", "small"]
    assert "Llama-3.1-8B" in str(app.selectbox[0].value) and "Qwen2.5-7B" in str(app.selectbox[1].value)
    assert "- llama-3.1-8b: " in said(app) and "- small: " in said(app)
    before = pages.html(app)
    app.segmented_control(key="check-shown").set_value("small").run()
    assert pages.html(app) != before
    kept = scenario(press(press(app, ASK), "check-use"))
    steps = kept["measured_steps"]
    assert steps["l40s/llama-3.1-8b"]["steps"] > steps["l40s/qwen2.5-7b"]["steps"] > 0.0
    assert kept["services"][0]["workload"]["rate_per_s"] == pytest.approx(20.0, rel=1e-3)


def test_a_model_that_servers_call_otherwise_is_said_and_another_left_out(
    two_models: Content, metrics_of_two: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "renamed.txt"
    renamed.write_text(
        re.sub(r'model_name="[^"]*Qwen[^"]*"', 'model_name="ours"', metrics_of_two.read_text("utf-8")), "utf-8"
    )
    app = opened(two_models, round(REQUESTS / 20.0), renamed)
    assert "Llama-3.1-8B" in str(app.selectbox[0].value) and app.selectbox[1].value == "not watched"
    assert "- small: " not in said(app)
    pages.fine(app.selectbox[1].set_value("ours").run())
    assert "- small: " in said(app)
    app.selectbox[0].set_value("not watched").run()
    app.selectbox[1].set_value("not watched").run()
    assert "Say above which is which" in said(app) and not app.button
