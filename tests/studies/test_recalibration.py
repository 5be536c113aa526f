"""The page of the study says what its rows say, and the study can be run: its smallest part is."""

from __future__ import annotations

import csv

import pytest

from tests.places import DOCS, TESTS

PAGE = (DOCS / "studies" / "recalibration.md").read_text(encoding="utf-8")
with (TESTS / "studies" / "recalibration.csv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def test_the_table_of_the_page_is_that_of_the_rows() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith(("| 0", "| 1"))]
    shown = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    kept = [row for row in ROWS if row["watched"] not in ("1 h", "6 h")]
    assert [cells[:2] for cells in shown] == [[row["true_factor"], row["watched"]] for row in kept]
    for cells, row in zip(shown, kept, strict=True):
        interval = f"{row['tpot_low_ms']} to {row['tpot_high_ms']}"
        holds = "yes" if row["holds"] == "True" else "no"
        found = [row["found_factor"] or "-", row["steps_error"] or "-", interval, row["tpot_true_ms"]]
        assert cells[2:] == [*found, row["replicas"], row["usd_per_hour"], holds]


def test_constants_are_recovered_and_the_next_plan_holds() -> None:
    """From five minutes on: within 2 % of the truth, which lies in the interval, and every target held."""
    watched = [row for row in ROWS if row["found_factor"]]
    assert len(watched) == 12
    for row in watched:
        assert float(row["found_factor"]) == pytest.approx(float(row["true_factor"]), rel=0.02)
        assert float(row["tpot_low_ms"]) < float(row["tpot_true_ms"]) < float(row["tpot_high_ms"])
        assert float(row["steps_error"]) < 0.35 and row["holds"] == "True"


def test_knowing_exactly_is_never_dearer_than_the_plan_that_watched() -> None:
    for factor in {row["true_factor"] for row in ROWS}:
        usd = {row["watched"]: float(row["usd_per_hour"]) for row in ROWS if row["true_factor"] == factor}
        assert usd["everything"] <= usd["24 h"]
