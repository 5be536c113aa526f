"""A plan as an Excel workbook: what GPUs cost by formulas that can be changed, and every table of the report.

Needs openpyxl (extra ``excel``). Text that a spreadsheet would run as a formula is marked as text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.core import HOURS_PER_MONTH, InputError, Table, one_line
from planner.fleet import Plan
from planner.report import plan as plan_report
from planner.report.html_page import safe_cell

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

_COST_COLUMNS = ("SKU", "bought", "provider", "GPUs", "USD/GPU-hour", "hours/month", "USD/month")
_MOST_TITLE = 31
"""Characters of a sheet's name that Excel allows."""
NUMBER = re.compile(r"-?\d{1,3}(,\d{3})*(\.\d+)?|-?\d+(\.\d+)?")


def plan_workbook(plan: Plan) -> bytes:
    """The content of an xlsx file: a sheet of the cost with live formulas, and one for each table of the report.

    GPUs are their mean over the horizon: cost over price. Hours stand in one cell, USD a month are formulas of them.

    Raises:
        InputError: openpyxl is not installed.
    """
    try:
        import openpyxl  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("--xlsx", "(given)", "needs openpyxl", "pip install openpyxl, or use --md or --json") from None
    book = openpyxl.Workbook()
    if book.active is not None:
        book.remove(book.active)
    if plan.cost is not None:
        _write_cost(book.create_sheet("Cost by formula"), plan)
    for table in plan_report.tables(plan):
        sheet = book.create_sheet(_sheet_name(table, book.sheetnames))
        for row in (table.columns, *table.rows, *(((), (table.note,)) if table.note else ())):
            sheet.append([_cell(text) for text in row])
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def _write_cost(sheet: Worksheet, plan: Plan) -> None:
    sheet.append(_COST_COLUMNS)
    for bought in plan.bought:
        own = bought.usd_per_gpu_hour
        gpus = bought.usd_per_hour / own if own else max(bought.gpus, default=0.0)
        row = sheet.max_row + 1
        provider = bought.price.provider if bought.price is not None else "own"
        names = [_cell(text) for text in (bought.sku, bought.purchase, provider)]
        sheet.append([*names, gpus, own, HOURS_PER_MONTH, f"=D{row}*E{row}*F{row}"])
    last = sheet.max_row
    of_gpus = sum(bought.usd_per_hour for bought in plan.bought)
    beside = 0.0 if plan.cost is None else plan.cost.usd_per_hour - of_gpus
    if abs(beside) > 1e-9 * max(1.0, of_gpus):  # switching, memory tiers: no price of a GPU
        last += 1
        sheet.append(["other than GPUs", "", "", 1, beside, HOURS_PER_MONTH, f"=D{last}*E{last}*F{last}"])
    sheet.append(["total", "", "", "", "", "", f"=SUM(G2:G{last})"])


def _sheet_name(table: Table, taken: Sequence[str]) -> str:
    """A title that Excel takes, and that no other sheet has."""
    plain = re.sub(r"[\\/*?:\[\]]", " ", one_line(table.title))[:_MOST_TITLE].strip("' ") or "Table"
    names = (plain, *(f"{plain[: _MOST_TITLE - 3]} {number}" for number in range(2, 100)))
    return next(name for name in names if name.lower() not in {other.lower() for other in taken})


def _cell(text: str) -> str | float:
    """A number where the text is one; text that would be run behind an apostrophe."""
    if NUMBER.fullmatch(text):
        return float(text.replace(",", ""))
    return str(safe_cell(text))
