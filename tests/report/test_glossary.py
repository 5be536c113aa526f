"""Every word on the page has a definition, and the definitions say what docs/conventions.md says."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.analysis import SYSTEMS, MeasurementValue, PlanQuestion, Replanner, compare, explain, requirements
from planner.analysis.replanner import what_if
from planner.core import Table
from planner.fleet import Plan, hardware_for, plan
from planner.optimizer.constraints import STRUCTURAL
from planner.report import comparison, explanation, glossary
from planner.report import plan as report
from planner.report import what_if as what_if_report
from planner.report.performance import performance_tables
from tests.builders import SMALL_CHAT
from tests.places import DOCS

SMALL = [
    *SMALL_CHAT,
    "search.skus=[h100-sxm, l40s]",
    "search.tp=[4]",
    "limits={budget_usd_per_hour: 500, gpus: {h100-sxm: 60}, spare_replicas: 1, pinned: {h100-sxm: 4}, power_kw: 100}",
]
QUICK = [PlanQuestion.CONFIDENCE]
MEASURED = MeasurementValue("h100-sxm", ("vllm",), 1, True, 1.0, 730.0, 0.5)
IDENTIFIED = ("SKU", "only", "setting", "system", "period", "part of the traffic", "class", "fleet", "API")
"""First columns whose rows are named by identifiers or by what the user wrote."""


@pytest.fixture(scope="module")
def chat() -> Plan:
    request = planner.load_scenario("chat-llama-70b", SMALL)
    return plan(request, hardware_for(request))


def unexplained(labels: Iterable[str]) -> list[str]:
    """Labels that have no term."""
    return [label for label in labels if glossary.term(label) is None]


def of_reports(chat: Plan) -> Iterator[Table]:
    """Tables of every report that is made of a plan."""
    hardware = hardware_for(chat.request)
    yield from report.tables(chat)
    planned = chat.deployments[0]
    yield from performance_tables(planned.deployment, planned.simulated, planned.slo)
    explained = explain(chat, Replanner(hardware=hardware), QUICK)
    yield from explanation.tables(replace(explained, measurements=(MEASURED,)))
    more = planner.load_scenario("chat-llama-70b", [*SMALL, "workload.rate_per_s=60"])
    yield from what_if_report.tables(
        what_if(chat.request, [("workload.rate_per_s=60", more)], Replanner(hardware=hardware))
    )
    yield from comparison.tables(compare(chat.request, requests=300, systems=("vllm", "sarathi")))
    yield comparison.system_table()


def test_every_heading_and_row_of_every_report_has_a_definition(chat: Plan) -> None:
    missing: dict[str, list[str]] = {}
    for table in of_reports(chat):
        labels = list(table.columns)
        if table.columns[0] not in IDENTIFIED:
            labels += [row[0] for row in table.rows]
        if without_term := unexplained(labels):
            missing[table.title] = without_term
    assert missing == {}


REPORTS = Path(report.__file__).parent


def headings_in(source: str) -> list[str]:
    """Headings of tables as they are declared: keys of columns, second arguments of `Table`."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AnnAssign) and "columns" in ast.unparse(node).partition("{")[0].lower():
            found += [key for one in ast.walk(node) if isinstance(one, ast.Dict) for key in one.keys]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Table" and isinstance(node.args[1], ast.Tuple):
            found += node.args[1].elts
    return [str(one.value) for one in found if isinstance(one, ast.Constant)]


@pytest.mark.parametrize("name", ["plan", "performance", "explanation", "what_if", "comparison", "robustness"])
def test_headings_written_in_the_reports_have_definitions(name: str) -> None:
    """Also of the tables that the plan above has none of: schedules, routes, hosted APIs, relaxations."""
    headings = headings_in((REPORTS / f"{name}.py").read_text(encoding="utf-8"))
    assert headings and unexplained(headings) == []


def test_every_requirement_of_a_request_has_a_definition(chat: Plan) -> None:
    names = [requirement.name for requirement in requirements(chat.request)]
    assert {"demand", "budget", "power", "spare replicas", "most h100-sxm", "fewest h100-sxm"} <= set(names)
    assert unexplained(names) == []


def test_every_constraint_that_is_reported_has_a_definition() -> None:
    """Those of docs/explanation/optimizer.md, without what only says what a fleet is."""
    document = (DOCS / "explanation" / "optimizer.md").read_text(encoding="utf-8")
    table = document.partition("## Constraints")[2].partition("## Objectives")[0]
    names = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert "serve_demand" in names
    assert unexplained(sorted(names - STRUCTURAL)) == []


def test_every_term_has_one_definition_with_a_meaning_and_a_provenance() -> None:
    names = Counter(term.name.lower() for term in glossary.TERMS)
    assert [name for name, count in names.items() if count > 1] == []
    for term in glossary.TERMS:
        assert term.meaning.endswith(".") and term.provenance and term.name in term.hint, term.name


@pytest.mark.parametrize("label", ["p99 TTFT [ms]", "p99.9", "batch: p95 E2E", "price of mi300x", "10/s"])
def test_labels_with_a_number_or_a_name_are_told_by_their_form(label: str) -> None:
    assert label in glossary.hint(label)


@pytest.mark.parametrize("label", ["mi300x", "p99 of something else", "", *SYSTEMS])
def test_what_is_no_term_has_no_hint(label: str) -> None:
    assert glossary.hint(label) == ""
    assert unexplained([label]) == [label]


def test_units_are_those_that_headings_write(chat: Plan) -> None:
    """A heading with a unit in brackets and its term name the same one, or the term leaves it to the row."""
    for table in report.tables(chat):
        for heading in (*table.columns, *(row[0] for row in table.rows)):
            written = re.search(r"\[(.+)\]", heading)
            term = glossary.term(heading)
            if written and term and term.unit and term.unit != "as the row":
                assert written[1] in (term.unit, "requests/s"), heading


def test_conventions_and_glossary_agree_on_what_tpot_is() -> None:
    """TPOT = (E2E - TTFT) / (output tokens - 1), docs/conventions.md."""
    conventions = (DOCS / "conventions.md").read_text(encoding="utf-8")
    (line,) = [line for line in conventions.splitlines() if line.startswith("| TPOT |")]
    stated = line.replace("−", "-").replace("÷", "/")
    equation = "(E2E - TTFT) / (output tokens - 1)"
    assert equation in stated
    assert equation in glossary.hint("TPOT")
