"""The tour says what the app and the command line answer: its link and its commands are one scenario, planned again."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

pytest.importorskip("streamlit", reason="the web app needs the extra `app`")
from typer.testing import CliRunner

import planner
from planner.analysis import headline
from planner.cli.base import app
from planner.fleet import PlanRequest
from planner.report import plan as report
from planner.scenario import Content
from planner.web import links, summary
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
    assert second == "plan tour.yaml"
    request = planner.load_scenario("tour.yaml", [f"prices.as_of={AS_OF}"])
    assert asked(request) == asked(planner.load_scenario(opened()))
    (quoted,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert " ".join(quoted.split()) in " ".join(report.headline(plan()).split())


@pytest.mark.parametrize("width", [1440, 900, 390])
def test_there_is_a_picture_of_every_width(width: int) -> None:
    from PIL import Image

    assert f"../images/tour-{width}.png" in TEXT
    with Image.open(ROOT / "docs" / "images" / f"tour-{width}.png") as image:
        assert image.width == width
