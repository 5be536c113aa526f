"""The HTML page is one well-formed file that loads and runs nothing; the CSV files are the tables, made harmless."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser

import pytest

import planner
from planner.analysis import CostRange, Headroom
from planner.analysis.headline import CostEnd
from planner.core import Table, rebuilt
from planner.fleet import Plan
from planner.report import csv_text, glossary, html, html_table
from planner.report import plan as report
from planner.report.html_page import csv_tables
from tests.builders import HARDWARE, small_request
from tests.made_up_plans import REAL

DAY = date(2026, 11, 22)
NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&</title></style>"
VOID = {"meta", "img", "br", "link", "input"}
IMPOSSIBLE = planner.plan(
    small_request(slo=[{"metric": "ttft", "percentile": 0.99, "threshold_s": 0.0005}], search={"modes": ["mixed"]}),
    HARDWARE,
)


class Page(HTMLParser):
    """What a page holds: tags with attributes, headings, and the cells of its tables. Fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data
        if {"h1", "h2"} & set(self.open):
            self.headings[-1] += data


def _page(plan: Plan) -> Page:
    return Page(html(plan, day=DAY))


def _cells(table: Table) -> list[list[str]]:
    """A table as the page should show it: an address alone in a cell as its host."""
    return [[c.split("/")[2] if c.startswith("https://") else c for c in row] for row in (table.columns, *table.rows)]


def _by_theory(plan: Plan) -> Plan:
    return dataclasses.replace(plan, simulated=False, alternatives=(), agreement=())


def test_page_holds_every_table_cell_for_cell() -> None:
    page = _page(REAL)
    tables = [table for table in report.tables(REAL) if table.rows]
    assert page.tables == [_cells(table) for table in tables]
    assert [title for title in page.headings if title in {table.title for table in tables}] == [t.title for t in tables]


def test_page_says_answer_date_version_assumptions_and_method() -> None:
    page = _page(REAL)
    said = [report.headline(REAL), "2026-11-22", planner.__version__, *report.plan_assumptions(REAL), *report.METHOD]
    assert [one for one in (*said, *REAL.warnings, f"seed {REAL.request.seed}") if one not in page.text] == []


@pytest.mark.parametrize("plan", [REAL, _by_theory(REAL), IMPOSSIBLE], ids=["feasible", "by theory", "infeasible"])
def test_page_loads_and_runs_nothing(plan: Plan) -> None:
    page = _page(plan)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "form", "base", "svg", "video"}
    attributes = {name for _, attrs in page.tags for name in attrs}
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "style")]
    text = html(plan, day=DAY)
    assert "url(" not in text
    assert "@import" not in text
    assert all((attrs["href"] or "").startswith("https://") for tag, attrs in page.tags if tag == "a")
    policy = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy and "default-src 'none'" in str(policy[0])


def test_headings_carry_their_definitions_which_are_written_out_for_paper() -> None:
    """Paper shows no hover: the meaning of every heading that has one stands in the text too."""
    page, names = _page(REAL), [name for table in report.tables(REAL) if table.rows for name in table.columns]
    found = [attrs.get("title") for tag, attrs in page.tags if tag == "th"]
    assert found == [glossary.hint(name) or None for name in names] and any(found)
    terms = [term for name in names if (term := glossary.term(name))]
    assert [term.name for term in terms if f"{term.meaning} ({term.provenance})" not in page.text] == []


def test_infeasible_page_says_why() -> None:
    page = _page(IMPOSSIBLE)
    assert not IMPOSSIBLE.feasible
    assert all(line in page.text for line in report.diagnosis(IMPOSSIBLE))
    told = replace(IMPOSSIBLE, diagnosis=(*IMPOSSIBLE.diagnosis, "no change of it alone helps"))
    assert "Why, and what would help" in _page(told).headings
    assert [rows[0] for rows in page.tables] == [list(t.columns) for t in report.tables(IMPOSSIBLE) if t.rows]
    assert not [attrs for tag, attrs in page.tags if tag == "dl" and attrs.get("class") == "figures"]


def test_plan_by_theory_shows_no_simulated_number() -> None:
    plan = _by_theory(REAL)
    assert "This plan was not simulated." in _page(plan).text
    assert "This plan was not simulated." not in _page(REAL).text
    for text in csv_tables(plan).values():
        for row in csv.DictReader(io.StringIO(text)):
            assert row.get("from") != "simulated"
            assert {value for name, value in row.items() if name.startswith("simulated")} <= {"-"}


def test_figures_show_their_intervals() -> None:
    assert REAL.cost is not None
    usd, per_token = REAL.cost.usd_per_month, REAL.cost.usd_per_million_output_tokens
    twice = {name: 2.0 * getattr(REAL.cost, name) for name in ("usd_per_month", "usd_per_thousand_requests")}
    dear = dataclasses.replace(REAL.cost, **twice, usd_per_million_output_tokens=0.9 * per_token)  # of another split
    costs, headroom = CostRange(CostEnd(REAL.cost, ""), CostEnd(dear, "")), Headroom(0.05, "p95 TTFT", 0.8, 0.9, 0.5)
    text = Page(html(REAL, day=DAY, costs=costs, headroom=headroom)).text
    assert f"${usd:,.0f} if exact, ${2.0 * usd:,.0f} at 95 %" in text
    assert f"${per_token:.3g} if exact, ${2.0 * per_token:.3g} at 95 %" in text
    assert "+5.0 %" in text and "at 90 %; +50 % if exact" in text
    assert "no interval: not calibrated" in _page(REAL).text


def test_names_and_words_are_escaped() -> None:
    plan = dataclasses.replace(
        REAL,
        request=rebuilt(REAL.request, name=NASTY),
        warnings=(NASTY,),
        assumptions=(NASTY, f"https://x.org/{NASTY}"),
    )
    page = _page(plan)
    assert page.headings[0] == f"Capacity plan: {NASTY}"
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in _page(REAL).tags} | {"a"}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.text.count(NASTY) >= 4


def test_cells_and_headings_are_escaped_and_an_address_alone_becomes_a_link() -> None:
    rows = ((NASTY, "javascript:alert(1)"), ("b", 'https://x.org/"><script>'), ("c", "https://e.org/a?b=1&c=2"))
    table = Table("t", (NASTY, "link"), rows)
    page = Page(html_table(table, {NASTY: NASTY}))
    assert page.tables == [[list(table.columns), *map(list, table.rows[:2]), ["c", "e.org"]]]
    assert {tag for tag, _ in page.tags} == {"div", "table", "thead", "tbody", "tr", "th", "td", "a"}
    assert page.tags[4][1]["title"] == NASTY
    (link,) = (attrs for tag, attrs in page.tags if tag == "a")
    assert link["href"] == "https://e.org/a?b=1&c=2"


def test_csv_files_are_the_tables() -> None:
    tables = [table for table in report.tables(REAL) if table.rows]
    files = csv_tables(REAL)
    assert len(files) == len(tables)
    assert next(iter(files)) == "01-request.csv"
    for table, text in zip(tables, files.values(), strict=True):
        read = [[cell.removeprefix("'") for cell in row] for row in csv.reader(io.StringIO(text))]
        assert read == [list(table.columns), *map(list, table.rows)]


@pytest.mark.parametrize(
    "cell",
    [
        *("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\n=1", " =1", "-", "--1", "\r\n=1"),
        *("a;=1+1", "a\t@A1", "a;b\n ;\u200b+1", "1;-2+3;", "-1;=2"),
        *("\uff1d1+1", "\uff0bA1", "\uff0d2", "\uff20A1", "\ufe661+1", "\u200b=1", "\ufeff=1", "\u202e=1", "\x1b=1"),
    ],
)
def test_csv_runs_no_formula(cell: str) -> None:
    """Prefixes that OWASP lists under CSV injection, in a cell and in a heading; a lone dash is a missing number.

    A carriage return ends a row for spreadsheets, so none is left outside quotes. Where numbers have commas, cells end
    at semicolons, and quotes in the middle of a line are none (OWASP, too).
    """
    text = csv_text((cell,), ((cell,),))
    head, row = csv.reader(io.StringIO(text, newline=""))
    assert "\r" not in text
    shown = "".join(
        letter if letter.isprintable() or letter in "\t\n" else " " for letter in cell.replace("\r\n", "\n")
    )
    assert head == row and row[0].replace("'", "") == shown.replace("'", "")
    assert all(re.match(r"'|[a-z]| ?(-|[-+]?\d+)?$", part) for part in re.split("[;\t\n]", row[0]))


@pytest.mark.parametrize("cell", ["-5 %", "a; -5 %", "+25 %", "-1,234.5", "1.5 x", "-1e-05", "text", "", "a=b"])
def test_csv_leaves_numbers_and_words_alone(cell: str) -> None:
    assert list(csv.reader(io.StringIO(csv_text(("x", "y"), ((cell, -1.5),)))))[1] == [cell, "-1.5"]
