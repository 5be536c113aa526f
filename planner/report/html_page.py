"""A plan as files to send on: one HTML page that stands alone, and each of its tables as CSV.

The page (`templates/plan.html.j2`) loads nothing and runs nothing: no script, no font, no picture from elsewhere, which
its content security policy also says. It follows the reader's light or dark setting, and prints. The CSV files are safe
to open in a spreadsheet. Both show what `planner.report.plan` says.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from planner.analysis import CostRange, Headroom, headline, is_calibrated
from planner.core import Table, change, number_of, one_line, template_environment
from planner.fleet import CostBreakdown, Plan
from planner.report import glossary
from planner.report import plan as report

if TYPE_CHECKING:
    from jinja2 import Environment

_ADDRESS = re.compile(r"(https?://[^\s\"'<>]*[^\s\"'<>.,;:)])")
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?[%x])?|-", re.IGNORECASE)
_FORMULA_STARTS = ("=", "+", "-", "@")
"""First characters that make a spreadsheet read a formula (OWASP, CSV injection), in whatever form of them (NFKC)."""
_NOT_SIMULATED = (
    "This plan was not simulated. Every latency is from queueing theory, and the fleet may grow once it is checked "
    "request by request."
)


# --- the page ---------------------------------------------------------------------------------------------------------


@cache
def _templates() -> Environment:
    """Templates in which every text is escaped."""
    found = template_environment("planner.report", escaped=True)
    found.filters |= {"link": _cell, "linked": _linked}
    found.globals["hint"] = glossary.hint
    return found


def html(
    plan: Plan, *, day: date | None = None, costs: CostRange | None = None, headroom: Headroom | None = None
) -> str:
    """The plan as one HTML page that needs nothing else: answer, figures, tables, assumptions, method, terms.

    Args:
        plan: feasible or not; one by theory alone says so, and shows no simulated number.
        day: the date on the page; today if not given.
        costs: interval of the cost, if it was found (see `planner.analysis.headline.cost_at`).
        headroom: of the fleet, if it was found (see `planner.analysis.fleet_capacity.headroom`).
    """
    shown = report.page(plan)
    notes = dict(shown.notes)
    (footer,) = notes.pop(report.PLANNED_BY)
    sources = (*headline.calibration_sources(plan), *headline.price_sources(plan))
    tables = shown_tables(plan)
    status = headline.status_words(plan) if plan.simulated else "By theory, not simulated"
    return (
        _templates()
        .get_template("plan.html.j2")
        .render(
            report=replace(shown, tables=tables, notes={"Where the numbers come from": sources, **notes}),
            day=(day or date.today()).isoformat(),
            version=f"{report.DISTRIBUTION_NAME} {report.planner_version()}",
            status=status if plan.feasible else "No fleet",
            notice=_NOT_SIMULATED if plan.feasible and not plan.simulated else "",
            boxes=figures(plan, plan.cost, costs, headroom) if plan.cost else (),
            terms=_terms(tables),
            footer=f"Planned by {footer.removesuffix('.')}",
        )
    )


def html_table(table: Table, hints: Mapping[str, str] | None = None) -> str:
    """A table as HTML; a cell's hover is the definition of its row, else of its column.

    Args:
        table: what to show; every text in it is escaped.
        hints: definitions by heading or by name of a row, before those of the glossary.
    """
    own = hints or {}
    macros: Any = _templates().get_template("table.html.j2").module
    return str(macros.table_of(table, lambda name: own.get(name) or glossary.hint(name)))


def _cell(text: str) -> Markup:
    """A cell's text; an address alone becomes a link that shows its host."""
    return _link(text, text.split("/")[2]) if _ADDRESS.fullmatch(text) else escape(text)


def _linked(text: str) -> Markup:
    """Text with every address in it a link; the address itself is shown, so that it is there on paper too."""
    pieces = enumerate(_ADDRESS.split(text))
    return Markup("").join(_link(piece, piece) if number % 2 else escape(piece) for number, piece in pieces)


def _link(address: str, words: str) -> Markup:
    return Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>').format(address, words)


def shown_tables(plan: Plan) -> tuple[Table, ...]:
    """The tables of a plan that have rows; of one that was not simulated, without what they call simulated."""
    tables = report.tables(plan) if plan.simulated else map(_without_simulation, report.tables(plan))
    return tuple(table for table in tables if table.rows)


def _without_simulation(table: Table) -> Table:
    """A table without simulated rows, and with a dash for every simulated cell."""
    source = table.columns.index("from") if "from" in table.columns else None
    hidden = [name.startswith("simulated") for name in table.columns]
    rows = tuple(
        tuple("-" if hide else cell for cell, hide in zip(row, hidden, strict=True))
        for row in table.rows
        if source is None or row[source] != "simulated"
    )
    return replace(table, rows=rows)


def figures(
    plan: Plan,
    cost: CostBreakdown,
    costs: CostRange | None,
    headroom: Headroom | None,
    unknown: str = "interval not computed",
) -> list[tuple[str, str, str]]:
    """The main numbers: label, value, and the interval below it, or `unknown` while it could still be computed."""

    def with_interval(field: str) -> tuple[str, str]:
        return headline.dollars(getattr(cost, field)), interval_words(plan, cost, costs, field, unknown)

    tokens, below = with_interval("usd_per_million_output_tokens")
    below = "; ".join(filter(None, (below, headline.output_share_words(plan))))
    found = [
        ("Fleet", number_of(sum(plan.gpus.values()), "GPU"), headline.fleet_words(plan)),
        ("Per month", *with_interval("usd_per_month")),
        ("Per million output tokens", tokens, below),
    ]
    if headroom is not None:
        found.append(("Headroom", change(headroom.share), headline.headroom_words(headroom)))
    return found


def interval_words(plan: Plan, cost: CostBreakdown, costs: CostRange | None, field: str, unknown: str) -> str:
    """The interval of a figure of the cost in words, or why there is none.

    Other fleets share their cost between input and output as they spend their time: ends of the price of a token are
    this plan's price times what a request costs there over what it costs here.
    """
    if costs is None:
        return unknown if is_calibrated(plan) else "no interval: not calibrated"
    of, value = "usd_per_thousand_requests" if "tokens" in field else field, float(getattr(cost, field))
    ends = (costs.exact.cost, costs.sure.cost)
    low, high = (None if end is None else value and value * getattr(end, of) / getattr(cost, of) for end in ends)
    return headline.range_words(low, value, high, costs.confidence)


def _terms(tables: Sequence[Table]) -> list[glossary.Term]:
    """Meaning of headings and rows, for paper, where nothing hovers."""
    labels = [name for table in tables for name in (*table.columns, *(row[0] for row in table.rows))]
    terms = {term.name: term for label in labels if (term := glossary.term(label)) is not None}
    return [terms[name] for name in sorted(terms, key=str.lower)]


# --- CSV --------------------------------------------------------------------------------------------------------------


def csv_tables(plan: Plan) -> dict[str, str]:
    """Each table of a plan as CSV, by file name, numbered in the order of the report: ``01-request.csv``."""
    files = {}
    for number, table in enumerate(shown_tables(plan), start=1):
        name = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
        files[f"{number:02d}-{name}.csv"] = csv_text(table.columns, table.rows)
    return files


def csv_text(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as CSV (RFC 4180); a text that a spreadsheet would run as a formula has an apostrophe before it.

    >>> csv_text(("name", "difference"), (("=1+1", "-5 %"),))
    "name,difference\n'=1+1,-5 %\n"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in columns])
    writer.writerows([[safe_cell(cell) for cell in row] for row in rows])
    return out.getvalue()


def safe_cell(cell: object) -> object:
    """A cell as it is, unless it is text that starts like a formula and is no number, or goes on like one where some
    country's spreadsheet begins another cell: behind a semicolon, a tab or the end of a line.

    A bare carriage return, which some readers take for the end of a row and `csv` may leave unquoted, becomes a line
    feed, which is always quoted; every other control or format character a blank, which no workbook may hold and a
    terminal might obey.
    """
    if not isinstance(cell, str):
        return cell
    text = re.sub("[^\t\n]+", lambda part: one_line(part[0]), re.sub("\r\n?", "\n", cell))
    parts = []
    for part in re.split(r"(?<=[;\t\n])", text):
        is_formula = one_line(unicodedata.normalize("NFKC", part)).strip().startswith(_FORMULA_STARTS)
        parts.append(f"'{part}" if is_formula and not _NUMBER.fullmatch(part.strip("; \t\n")) else part)
    return "'" * text.startswith(("\t", "\n")) + "".join(parts)
