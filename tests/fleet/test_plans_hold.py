"""The committed study of random plans: its counts are the promised ones, documented, and a row is reproduced."""

from __future__ import annotations

import csv

import pytest

from planner.fleet import plan
from planner.scenario import load_scenario
from tests.places import DOCS
from tests.studies.plans_hold import ALLOWANCE, RESULTS, scenario

with RESULTS.open(encoding="utf-8") as _file:
    ROWS = list(csv.DictReader(_file))
PLANNED = [row for row in ROWS if row["margin"]]
DOCUMENT = (DOCS / "studies" / "plans-hold.md").read_text(encoding="utf-8")


def test_plans_hold_when_simulated_afresh() -> None:
    """Promised: at least 95 of 100 within one point of every target."""
    held = [row for row in PLANNED if float(row["margin"]) >= -ALLOWANCE]
    assert len(PLANNED) >= 30
    assert len(held) >= 0.95 * len(PLANNED)
    assert f"| {len(ROWS)}, {len(PLANNED)} |" in DOCUMENT
    assert f"| **{len(held)}** |" in DOCUMENT


def test_plans_are_not_padded() -> None:
    """Promised: at least 85 of 100 with a smaller neighbour fail with one replica fewer."""
    neighbours = [row for row in PLANNED if row["fewer"]]
    failed = [row for row in neighbours if float(row["fewer"]) < 0.0]
    assert len(failed) >= 0.85 * len(neighbours)
    assert f"**{len(failed)}** of {len(neighbours)}" in DOCUMENT


def test_misses_are_published() -> None:
    for row in PLANNED:
        if float(row["margin"]) < -ALLOWANCE or (row["fewer"] and float(row["fewer"]) >= 0.0):
            assert f"| {row['seed']} |" in DOCUMENT


@pytest.mark.parametrize("seed", [6, 18])
def test_a_row_is_what_planning_finds_today(seed: int) -> None:
    """Costs, not set-ups: rerun the study when this moves. Of seed 18 one run of 10,000 met what theory missed."""
    (row,) = [one for one in ROWS if one["seed"] == str(seed)]
    found = plan(load_scenario(scenario(seed)), alternatives=False)
    assert found.cost is not None
    assert found.cost.usd_per_hour == pytest.approx(float(row["usd_per_hour"]), rel=0.02)
