"""What `docs/decisions.md` says of twenty-one questions is what was planned, and what is planned still."""

from __future__ import annotations

import re

import pytest

from tests.studies import decisions

TEXT = decisions.DOCUMENT.read_text(encoding="utf-8")


def test_every_question_has_its_plan_reason_and_objection() -> None:
    """Twenty-one of them, in the order of the study's file."""
    assert len(decisions.QUESTIONS) == 21
    assert decisions.known().keys() == decisions.QUESTIONS.keys()
    sections = re.split(r"^### .+$", TEXT, flags=re.MULTILINE)[1:]
    assert len(sections) == 21
    for name, section in zip(decisions.QUESTIONS, sections, strict=True):
        parts = (decisions.marker(name), decisions.sentence_of(decisions.known()[name]), "**Why.**", "**Objection.** *")
        assert [part for part in parts if part not in section] == [], name


def test_a_quick_question_is_still_answered_so() -> None:
    assert decisions.figures_of(decisions.planned("reasoning")) == decisions.known()["reasoning"]


def test_a_published_fleet_is_planned_within_three_tenths() -> None:
    """278 servers of eight H800 at the peak, 226.75 on average (github.com/deepseek-ai/open-infra-index, day 6); ours
    carries a rate that drifts by a quarter all day, with 90 % confidence."""
    gpus = decisions.known()["DeepSeek's fleet"]["fleet"].split(" × ")[0]
    assert int(gpus.replace(",", "")) / 8.0 == pytest.approx(278.0, rel=0.3)
