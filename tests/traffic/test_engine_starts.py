"""Packaged engine starts against the recorded table, and which one a model takes."""

from __future__ import annotations

import csv

import pytest

from planner.llm import load_llm
from planner.traffic.engine_starts import cold_start_of, engine_starts
from tests.places import SHARED

MEASURED = SHARED / "reference" / "measured" / "engine_start.csv"


@pytest.mark.skipif(not MEASURED.exists(), reason="measured engine starts lie beside the checkout")
def test_every_start_is_one_of_the_measured_or_their_sum() -> None:
    rows = list(csv.DictReader(MEASURED.read_text(encoding="utf-8").splitlines()))
    for start in engine_starts():
        seconds = [float(row["seconds"]) for row in rows if row["source"] == start.source]
        assert seconds, start.source
        assert start.seconds in (*seconds, sum(seconds))


def test_a_model_that_was_measured_takes_its_own_start() -> None:
    llm = load_llm("gpt-oss-120b")
    found = cold_start_of(llm, llm.native_precision)
    assert found.seconds == 148
    assert "nearest" not in found.note


def test_another_takes_that_of_the_nearest_weights_and_says_so() -> None:
    llm = load_llm("llama-3.1-8b")
    found = cold_start_of(llm, llm.native_precision)
    assert "was not measured" in found.note
    assert "come on top" in found.note
    assert found.seconds in {start.seconds for start in engine_starts()}
