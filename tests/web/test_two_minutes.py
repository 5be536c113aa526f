"""The tour says what the app and the command line answer: its link and its commands are one scenario, planned again."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from typer.testing import CliRunner

import planner
from planner.analysis import headline
from planner.cli.base import app
from planner.core import json_text
from planner.fleet import PlanRequest, planning
from planner.report import plan as report
from planner.report import plan_to_dict
from planner.scenario import Content
from planner.web import links, results, summary
from tests.places import ROOT

PAGE = ROOT / "docs" / "tutorial" / "two-minutes.md"
TEXT = PAGE.read_text(encoding="utf-8")
AS_OF = "2026-11-21"


@cache
def opened() -> Content:
    """The scenario of the link."""
    (address,) = re.findall(r"\[this link\]\(([^)\s]+)\)", TEXT)
    found = links.from_link(dict(parse_qsl(urlsplit(address).query, keep_blank_values=True)), "chat-llama-70b")
    assert not found.dropped
    return found.content


@cache
def plan() -> planner.Plan:
    return planner.plan(planner.load_scenario(opened()))


@cache
def busier() -> Content:
    """The same at 19 requests/s, where simulation changes the fleet: eight GPUs in place of the seven of theory."""
    return {**opened(), "workload": {**opened()["workload"], "rate_per_s": 19.0}}


@cache
def corrected() -> planner.Plan:
    return planner.plan(planner.load_scenario(busier()))


def asked(request: PlanRequest) -> PlanRequest:
    """Without what is no part of the question."""
    return request.model_copy(update={"name": ""})


def test_the_page_answers_as_quoted() -> None:
    words = " ".join(TEXT.replace("\n>", "\n").split())
    assert headline.short_headline(plan()) in words
    assert summary.targets_line(plan()) in words


def test_the_commands_ask_the_same_and_answer_as_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"^    planner ([^\n]+)$", TEXT, re.MULTILINE)
    done = CliRunner().invoke(app, [*shlex.split(first), "--yes"])
    assert done.exit_code == 0, done.output
    assert second == "plan tour.yaml --set precision=narrower"
    request = planner.load_scenario("tour.yaml", [f"prices.as_of={AS_OF}", "precision=narrower"])
    assert asked(request) == asked(planner.load_scenario(opened()))
    (quoted,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert " ".join(quoted.split()) in " ".join(report.headline(plan()).split())


def fleet_of(made: planner.Plan) -> tuple[dict[str, int], float]:
    assert made.cost is not None
    return dict(made.gpus), made.cost.usd_per_hour


def test_what_if_and_why_start_from_the_fleet_shown() -> None:
    request = planner.load_scenario(busier())
    hardware = planning.hardware_for(request)
    page = results.Page(busier(), "shown", request, hardware, corrected())
    assert fleet_of(results.compared_plan(page, request, page.key)) == fleet_of(corrected())
    again = results.replanner(corrected(), hardware, lambda _: None).plan(request)
    assert fleet_of(again) == fleet_of(corrected())


def test_the_commands_what_if_and_explain_start_from_the_fleet_printed(tmp_path: Path) -> None:
    document = tmp_path / "plan.json"
    document.write_text(json_text({**plan_to_dict(corrected()), "scenario": busier()}), encoding="utf-8")
    gpus, usd = fleet_of(corrected())
    dearer = ["--set", "prices.usd_per_gpu_hour.h100-sxm=6.4"]
    done = CliRunner().invoke(app, ["what-if", str(document), *dearer, "--json", "-"])
    assert done.exit_code == 0, done.output
    before = json.loads(done.stdout)["what_if"]["before"]["outcome"]
    assert (before["gpus"], before["usd_per_hour"]) == (gpus, pytest.approx(usd))
    done = CliRunner().invoke(app, ["explain", str(document), "--only", "api", "--json", "-"])
    assert done.exit_code == 0, done.output
    outcome = json.loads(done.stdout)["explanation"]["outcome"]
    assert (outcome["gpus"], outcome["usd_per_hour"]) == (gpus, pytest.approx(usd))
