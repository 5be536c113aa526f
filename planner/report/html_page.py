"""A plan as files to send on: one HTML page that stands alone, and each of its tables as CSV.

The page loads nothing and runs nothing: no script, no font, no picture from elsewhere. It follows the reader's light or
dark setting, and prints. The CSV files are safe to open in a spreadsheet. Both show what `planner.report.plan` says.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from html import escape

from planner.analysis import CostRange, Headroom, headline, is_calibrated
from planner.core import Table, change, number_of, significant
from planner.fleet import CostBreakdown, Plan
from planner.report import glossary
from planner.report import plan as report

_ADDRESS = re.compile(r"(https?://[^\s\"'<>]*[^\s\"'<>.,;:)])")
SHORT_CELL = 24
"""Most characters of a cell that stays on one line. A choice."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?( ?[%x])?|-", re.IGNORECASE)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that make a spreadsheet read a formula, full-width forms included (OWASP, CSV injection)."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy of the page: a browser loads and runs nothing, should an escape ever fail."""
_NOT_SIMULATED = (
    "This plan was not simulated. Every latency is from queueing theory, and the fleet may grow once it is checked "
    "request by request."
)
_STYLE = """
:root {color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --page: #ffffff; --box: #f6f8fa;
  --link: #0969da; --warn: #9a6700}
@media (prefers-color-scheme: dark) {:root {--text: #e6edf3; --soft: #9da7b3; --line: #3d444d; --page: #0d1117;
  --box: #161b22; --link: #58a6ff; --warn: #d29922}}
* {box-sizing: border-box}
body {margin: 0 auto; max-width: 1100px; padding: 2rem 1.5rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere}
h1 {font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem}
h2 {font-size: 1.1rem; margin: 2.2rem 0 .5rem}
a {color: var(--link)}
.soft, .note, footer {color: var(--soft); font-size: .85rem}
.answer {font-size: 1.15rem; margin: 1rem 0}
.notice {border-left: 4px solid var(--warn); background: var(--box); padding: .6rem 1rem; margin: 1rem 0}
.figures {display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: .8rem;
  margin: 1rem 0; padding: 0}
.figures > div {border: 1px solid var(--line); border-radius: 8px; background: var(--box); padding: .7rem 1rem}
.figures dt {color: var(--soft); font-size: .85rem}
.figures dd {margin: 0}
.figures .value {font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums}
.figures .interval {color: var(--soft); font-size: .85rem}
.planner-table {overflow-x: auto; max-width: 100%}
.planner-table table {border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal}
.planner-table th, .planner-table td {padding: .3rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line)}
.planner-table th {vertical-align: bottom}
.planner-table .number {text-align: right}
.planner-table td.number, .planner-table td.short {white-space: nowrap}
[title] {cursor: help}
th[title], dt[title] {text-decoration: underline dotted var(--soft); text-underline-offset: 3px}
.terms {columns: 2 20rem; column-gap: 2rem; margin: 0}
.terms > div {break-inside: avoid; padding-top: .4rem}
.terms dt {font-weight: 600; font-size: .85rem}
.terms dd {margin: 0; color: var(--soft); font-size: .85rem}
footer {margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem}
@page {margin: 14mm}
@media print {
  :root {color-scheme: light; --text: #000; --soft: #333; --line: #999; --page: #fff; --box: #fff; --link: #000;
    --warn: #000}
  body {max-width: none; padding: 0; font-size: 10pt}
  h2 {break-after: avoid}
  thead {display: table-header-group}
  tr, .figures > div, li {break-inside: avoid}
  .planner-table {overflow: visible}
  .planner-table table {font-size: 7.5pt; width: 100%; overflow-wrap: anywhere}
  .planner-table th, .planner-table td {padding: .15rem .35rem}
  th[title], dt[title] {text-decoration: none}
}
"""


# --- the page ---------------------------------------------------------------------------------------------------------


def html(
    plan: Plan, *, day: date | None = None, costs: CostRange | None = None, headroom: Headroom | None = None
) -> str:
    """The plan as one HTML page that needs nothing else: answer, figures, tables, assumptions, method, terms.

    Args:
        plan: feasible or not; one by theory alone says so, and shows no simulated number.
        day: the date on the page; today if not given.
        costs: interval of the cost, if it was found (see `planner.analysis.headline.cost_range`).
        headroom: of the fleet, if it was found (see `planner.analysis.fleet_capacity.headroom`).
    """
    tables = _shown_tables(plan)
    name = escape(plan.request.name)
    today = (day or date.today()).isoformat()
    version = f"{report.DISTRIBUTION_NAME} {report.planner_version()}"
    body = [
        f'<header><h1>Capacity plan: {name}</h1><p class="soft">{escape(today)} · {escape(version)} · '
        f"{escape(_status_words(plan))}</p></header>",
        f'<p class="answer"><strong>{_linked(report.headline(plan))}</strong></p>',
        *([f'<p class="notice">{escape(_NOT_SIMULATED)}</p>'] if plan.feasible and not plan.simulated else []),
        _metric_boxes(plan, costs, headroom),
        _list("Why it is infeasible, and what would help", report.more_reasons(plan)),
        _list("Warnings", plan.warnings),
        *(_section(table) for table in tables),
        _list("Where the numbers come from", (*headline.calibration_sources(plan), *headline.price_sources(plan))),
        _list("What is assumed", report.plan_assumptions(plan)),
        _list("Method", report.method(plan)),
        _terms(tables),
        f"<footer>Planned by {escape(version)} in {significant(plan.elapsed_s)} s, seed {plan.request.seed}; written "
        f"on {escape(today)}.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Capacity plan: {name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in body if section)
        + "\n</body>\n</html>\n"
    )


def _status_words(plan: Plan) -> str:
    if not plan.feasible:
        return "No fleet"
    return headline.status_words(plan) if plan.simulated else "By theory, not simulated"


def _shown_tables(plan: Plan) -> tuple[Table, ...]:
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


# --- metrics ----------------------------------------------------------------------------------------------------------


def _metric_boxes(plan: Plan, costs: CostRange | None, headroom: Headroom | None) -> str:
    """The main numbers, each with its interval; nothing without a fleet."""
    if plan.cost is None:
        return ""
    cost = plan.cost
    metrics = [
        ("Fleet", number_of(sum(plan.gpus.values()), "GPU"), headline.fleet_words(plan)),
        ("Per month", headline.dollars(cost.usd_per_month), _range_words(plan, cost, costs, "usd_per_month")),
        (
            "Per million output tokens",
            headline.dollars(cost.usd_per_million_output_tokens),
            "; ".join(
                filter(
                    None,
                    (
                        _range_words(plan, cost, costs, "usd_per_million_output_tokens"),
                        headline.output_share_words(plan),
                    ),
                )
            ),
        ),
    ]
    if headroom is not None:
        metrics.append(("Headroom", change(headroom.share), headline.headroom_words(headroom)))
    boxes = (
        f"<div><dt{_title(glossary.hint(label))}>{escape(label)}</dt>"
        f'<dd><div class="value">{escape(value)}</div><div class="interval">{escape(interval)}</div></dd></div>'
        for label, value, interval in metrics
    )
    return f'<dl class="figures">{"".join(boxes)}</dl>'


def _range_words(plan: Plan, cost: CostBreakdown, costs: CostRange | None, field: str) -> str:
    """The interval of a figure of the cost in words, or why there is none."""
    if costs is None:
        return "interval not computed" if is_calibrated(plan) else "no interval: not calibrated"
    low, high = (None if end is None else float(getattr(end, field)) for end in (costs.low, costs.high))
    return headline.range_words(low, float(getattr(cost, field)), high, costs.confidence)


# --- tables and lists -------------------------------------------------------------------------------------------------


def html_table(table: Table, hints: Mapping[str, str] | None = None) -> str:
    """A table as HTML; a cell's hover is the definition of its row, else of its column.

    Args:
        table: what to show; every text in it is escaped.
        hints: definitions by heading or by name of a row, before those of the glossary.
    """
    own = hints or {}
    columns = [own.get(name) or glossary.hint(name) for name in table.columns]
    head = "".join(
        f'<th scope="col"{_class("number" if numeric else "")}{_title(hint)}>{escape(name)}</th>'
        for name, numeric, hint in zip(table.columns, table.numeric, columns, strict=True)
    )
    body = ""
    for row in table.rows:
        row_hint = (own.get(row[0]) or glossary.hint(row[0])) if row else ""
        cells = zip(row, table.numeric, columns, strict=True)
        body += "<tr>" + "".join(_td(cell, numeric, row_hint or hint) for cell, numeric, hint in cells) + "</tr>"
    return f'<div class="planner-table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _td(cell: str, numeric: bool, hint: str) -> str:
    """One cell; a short one (a date, a name, a number) stays on one line, however long its neighbours are."""
    style = "number" if numeric else "short" if len(cell) <= SHORT_CELL else ""
    return f"<td{_class(style)}{_title(hint)}>{_cell_text(cell)}</td>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _title(hint: str) -> str:
    return f' title="{escape(hint)}"' if hint else ""


def _cell_text(text: str) -> str:
    """A cell's text; an address becomes a link that shows its host."""
    return _link(text, text.split("/")[2]) if _ADDRESS.fullmatch(text) else escape(text)


def _link(address: str, words: str) -> str:
    return f'<a href="{escape(address)}" target="_blank" rel="noopener noreferrer">{escape(words)}</a>'


def _linked(text: str) -> str:
    """Text with every address in it a link; the address itself is shown, so that it is there on paper too."""
    return "".join(
        _link(piece, piece) if number % 2 else escape(piece) for number, piece in enumerate(_ADDRESS.split(text))
    )


def _section(table: Table) -> str:
    note = f'<p class="note">{_linked(table.note)}</p>' if table.note else ""
    return f"<section><h2>{escape(table.title)}</h2>{html_table(table)}{note}</section>"


def _list(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{_linked(line)}</li>" for line in lines)
    return f"<section><h2>{escape(title)}</h2><ul>{items}</ul></section>" if items else ""


def _terms(tables: Sequence[Table]) -> str:
    """What headings and rows mean, for paper, where nothing hovers."""
    labels = [name for table in tables for name in (*table.columns, *(row[0] for row in table.rows))]
    terms = {term.name: term for label in labels if (term := glossary.term(label)) is not None}
    if not terms:
        return ""
    items = "".join(
        f"<div><dt>{escape(name)}{escape(f' [{term.unit}]') if term.unit else ''}</dt>"
        f"<dd>{escape(term.meaning)} ({escape(term.origin)})</dd></div>"
        for name, term in sorted(terms.items(), key=lambda item: item[0].lower())
    )
    return f'<section><h2>What the words mean</h2><dl class="terms">{items}</dl></section>'


# --- CSV --------------------------------------------------------------------------------------------------------------


def csv_tables(plan: Plan) -> dict[str, str]:
    """Each table of a plan as CSV, by file name, numbered in the order of the report: ``01-request.csv``."""
    return {
        f"{number:02d}-{_slug(table.title)}.csv": csv_text(table.columns, table.rows)
        for number, table in enumerate(_shown_tables(plan), start=1)
    }


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def csv_text(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as CSV (RFC 4180); a text that a spreadsheet would run as a formula has an apostrophe before it.

    >>> csv_text(("name", "difference"), (("=1+1", "-5 %"),))
    "name,difference\n'=1+1,-5 %\n"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_safe_cell(name) for name in columns])
    writer.writerows([[_safe_cell(cell) for cell in row] for row in rows])
    return out.getvalue()


def _safe_cell(cell: object) -> object:
    """A cell as it is, unless it is text that starts like a formula and is no number.

    A bare carriage return, which some readers take for the end of a row and `csv` may leave unquoted, becomes a line
    feed, which is always quoted.
    """
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    risky = cell.startswith(_FORMULA_STARTS) or cell.lstrip().startswith(_FORMULA_STARTS)
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if risky else text
