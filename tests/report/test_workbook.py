"""An Excel workbook of a plan: formulas that come to its cost, and no text that runs."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest

import planner
from planner.core import HOURS_PER_MONTH
from planner.fleet import Plan
from planner.report import csv_text, plan_workbook
from planner.report import workbook as module
from tests.report.test_plan import SCENARIO

openpyxl = pytest.importorskip("openpyxl", reason="the extra excel is not installed")


@pytest.fixture(scope="module")
def small() -> Plan:
    return planner.plan(planner.load_scenario(SCENARIO))


def _book(plan: Plan) -> Any:
    return openpyxl.load_workbook(io.BytesIO(plan_workbook(plan)))


def test_formulas_of_gpus_price_and_hours_come_to_the_cost_of_the_plan(small: Plan) -> None:
    sheet = _book(small)["Cost by formula"]
    heading, *rows, total = sheet.iter_rows(values_only=True)
    assert heading == ("SKU", "bought", "provider", "GPUs", "USD/GPU-hour", "hours/month", "USD/month")
    assert [row[-1] for row in rows] == [f"=D{n}*E{n}*F{n}" for n in range(2, 2 + len(rows))]
    assert total[-1] == f"=SUM(G2:G{1 + len(rows)})"
    assert all(cell.data_type == "f" for cell in sheet["G"][1:]), "live, not values"
    assert small.cost is not None
    assert sum(row[3] * row[4] * row[5] for row in rows) == pytest.approx(small.cost.usd_per_hour * HOURS_PER_MONTH)
    assert sum(row[3] for row in rows) == pytest.approx(sum(small.gpus.values()))


def test_every_table_of_the_report_has_a_sheet_with_its_numbers_as_numbers(small: Plan) -> None:
    book = _book(small)
    tables = module.plan_report.tables(small)
    assert len(book.sheetnames) == 1 + len(tables)
    assert all(len(name) <= 31 for name in book.sheetnames)
    prices = book["Prices"]
    assert isinstance(prices["D2"].value, float)


@pytest.mark.parametrize("text", ["=1+1", "+CMD", "-2+3", "@SUM(A1)", '=HYPERLINK("http://x")', "\ta"])
def test_text_that_would_run_is_text(small: Plan, text: str) -> None:
    fleet = dataclasses.replace(small.bought[0], purchase=text)
    (row,) = _book(dataclasses.replace(small, bought=(fleet,)))["Cost by formula"].iter_rows(min_row=2, max_row=2)
    assert (row[1].value, row[1].data_type) == (f"'{text}", "s")


@pytest.mark.parametrize("text", ["a\x1b[31mb", "\x00=1", "\x9b2J", "a\u202eb", "\ud800"])
def test_what_no_workbook_may_hold_or_a_terminal_might_obey_is_a_blank(small: Plan, text: str) -> None:
    """The source of lengths is text as anybody writes it: a control character in it was a fault of the planner."""
    fleet = dataclasses.replace(small.bought[0], purchase=text)
    (row,) = _book(dataclasses.replace(small, bought=(fleet,)))["Cost by formula"].iter_rows(min_row=2, max_row=2)
    assert str(row[1].value).isprintable() and not str(row[1].value).startswith("=")
    assert csv_text(["name"], [[text]]).removesuffix("\n").replace("\n", "").isprintable()


def test_numbers_below_zero_and_dashes_stay_what_they_are() -> None:
    assert [module._cell(text) for text in ("-3.5", "1,234.5", "-", "5 %")] == [-3.5, 1234.5, "-", "5 %"]
