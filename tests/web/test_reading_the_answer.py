"""The page "reading the answer" says what the first screen shows: its example is planned again from its own link."""

from __future__ import annotations

import re
from functools import cache
from urllib.parse import parse_qsl, urlsplit

import planner
from hardware_db import load_hardware
from planner.analysis import headline, headroom
from planner.fleet import Plan
from planner.report import html_page
from planner.web import links, summary
from tests.places import ROOT

TEXT = (ROOT / "docs" / "tutorial" / "reading-the-answer.md").read_text(encoding="utf-8")
HEADINGS = {"Fleet", "Per month", "Per million output tokens", "Headroom"}


@cache
def plan() -> Plan:
    (address,) = re.findall(r"\[open it\]\(([^)\s]+)\)", TEXT)
    opened = links.from_link(dict(parse_qsl(urlsplit(address).query)), "chat-llama-70b")
    assert not opened.dropped
    return planner.plan(planner.load_scenario(opened.content), alternatives=False)


def test_every_figure_has_a_row() -> None:
    assert {row.split("|")[1].strip() for row in TEXT.splitlines() if row.startswith("| ")} >= HEADINGS


def test_the_sentence_the_badges_and_the_targets_are_those_of_the_example() -> None:
    sentence = headline.short_headline(plan())
    quoted = re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", TEXT)
    pieces = [piece for piece in dict.fromkeys(quoted) if piece in sentence]
    assert " ".join(pieces).startswith("Serve llama-3.3-70b-instruct at 6.60")
    assert len("".join(pieces)) > 0.9 * len(sentence)  # all of it is explained, but for what joins the parts
    assert headline.status_words(plan()) in quoted and headline.calibration_words(plan()) in quoted
    assert any(piece.rstrip(".") in summary.targets_line(plan()) for piece in quoted if piece.startswith("Simulated"))


def test_the_figures_are_those_of_the_example() -> None:
    found, cost, confidences = headroom(plan()), plan().cost, headline.range_confidences(plan())
    costs = headline.CostRange(*(headline.cost_at(plan(), load_hardware(), one) for one in confidences), confidences[1])
    assert cost is not None
    for _, value, below in html_page.figures(plan(), cost, costs, found)[1:]:
        assert f"*{value}; {below}*" in TEXT
    unsure = summary.unsure_words(plan())
    assert unsure and unsure.rstrip(".") in TEXT
