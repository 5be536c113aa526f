"""One screen of a plan says what the whole report says, less of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.cli.terminal import show
from planner.core import Table
from planner.fleet import Alternative, Plan
from planner.report import plan as plan_report
from planner.report.plan_summary import ALTERNATIVES, MOST_WARNINGS, summary
from tests.made_up_plans import REAL

SCREEN = 40


def _alternative(name: str, usd_per_hour: float | None, **changes: bool) -> Alternative:
    return Alternative(name, "sku", f"3 x {name} TP1 mixed", usd_per_hour, 1.0, **{"is_chosen": False, **changes})


@pytest.fixture
def crowded() -> Plan:
    """With more of everything than one screen has room for."""
    costs = {"l40s": 9.0, "a100": 7.0, "h200": 8.0, "b200": 30.0, "mi300x": None}
    others = [_alternative(name, usd) for name, usd in costs.items()]
    chosen = _alternative("h100", 6.0, is_chosen=True)
    same = replace(others[1], restriction="mixed", kind="mode")
    lines = tuple(f"warning {number}, of some length that a warning has to have" for number in range(9))
    return replace(REAL, alternatives=(chosen, *others, same), warnings=lines)


def _printed(plan: Plan, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(summary(plan))
    return capsys.readouterr().out.splitlines()


def test_it_fits_on_a_screen_whatever_there_is(crowded: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _printed(crowded, capsys)
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= 100


def _numbers(tables: tuple[Table, ...]) -> set[str]:
    return {word for table in tables for row in table.rows for cell in row for word in re.findall(r"\d[\d,.]*", cell)}


def test_every_number_is_one_of_the_whole_report(crowded: Plan) -> None:
    whole, short = plan_report.report(crowded), summary(crowded)
    assert short.headline == whole.headline
    assert _numbers(short.tables) <= _numbers(whole.tables)
    assert any(row[1] in short.tables[0].note for row in whole.tables[0].rows if row[0] == "lengths")


def _rows(plan: Plan, title: str) -> list[tuple[str, ...]]:
    return [row for table in summary(plan).tables if table.title == title for row in table.rows]


def test_alternatives_are_the_cheapest_other_fleets_each_once(crowded: Plan) -> None:
    rows = _rows(crowded, "Alternatives")
    assert [row[0] for row in rows] == ["a100", "h200", "L40S"]
    assert len(rows) == ALTERNATIVES
    assert not _rows(replace(crowded, alternatives=crowded.alternatives[:1]), "Alternatives")


def test_warnings_that_are_left_out_are_counted(crowded: Plan) -> None:
    warnings = summary(crowded).lists["Warnings"]
    assert warnings[:MOST_WARNINGS] == crowded.warnings[:MOST_WARNINGS]
    assert warnings[MOST_WARNINGS].startswith(f"{9 - MOST_WARNINGS} more")
    assert not summary(replace(crowded, warnings=())).lists["Warnings"]


def test_a_target_missed_with_slow_steps_says_so(crowded: Plan) -> None:
    """The slow end of the interval stands beside the estimate."""
    slow = tuple(replace(check, simulated_s=2.0 * check.target.threshold_s, met=False) for check in crowded.targets)
    rows = _rows(replace(crowded, slow_targets=slow), "Targets")
    assert len(rows) == len(crowded.targets)
    assert {row[-1] for row in rows} == {"NO"}
    assert {row[-2] for row in rows} == {"yes"}


def test_an_infeasible_plan_says_why(crowded: Plan) -> None:
    none = replace(crowded, cost=None, deployments=(), diagnosis=("nearest: a100 TP1", *map(str, range(30))))
    short = summary(none)
    assert short.headline.startswith("No fleet serves") and "nearest: a100 TP1" in short.headline
    assert short.lists["Why, and what would help"][:2] == ("0", "1")
    assert not short.tables
