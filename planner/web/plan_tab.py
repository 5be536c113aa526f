"""The tab *Plan*: what to run, whether the targets hold, the alternatives, and the plan as files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import streamlit as st

from planner import charts, launch
from planner.charts import fleets
from planner.core import PlannerError, Table, json_text
from planner.fleet import Plan
from planner.report import csv_text, html_page, plan_to_dict
from planner.report import plan as report
from planner.scenario import scenario_text
from planner.web import components, fields, summary
from planner.web.results import Page

FOLDED_TABLES: Mapping[str, Sequence[str]] = {
    "Engine settings and routing": ("Engine settings", "Routing", "Schedule"),
    "How sure it is, and what losses do": ("Confidence", "Losses"),
    "Latency and load of each pool": ("Latency", "Theory against simulation", "Load of each pool"),
    "What limits the plan": ("Constraints",),
    "Cost and prices": ("Cost", "Prices"),
    "What was asked": ("Request",),
}
"""Tables behind a click, by heading."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if plan.cost is None:
        st.info("No feasible fleet yet. Pools, targets and alternatives appear here once one is found.")
        return
    summary.show_fleet(page, plan.cost)
    tables = {table.title: table for table in html_page.shown_tables(plan)}
    _show(tables, ("Fleet", "Traffic of each model", "Targets"))
    _alternatives(plan, tables)
    with st.container(key="plan-files"):
        _downloads(page)
    for heading, titles in FOLDED_TABLES.items():
        if any(title in tables for title in titles):
            with st.expander(heading):
                _show(tables, titles)
    if plan.rejections:
        with st.expander(f"What was rejected ({len(plan.rejections)})"):
            _show(tables, ("Rejected",))
    if plan.dominated:
        with st.expander(f"What another configuration betters ({len(plan.dominated)})"):
            _show(tables, ("Bettered",))
    with st.expander("What is assumed, and how it was computed"):
        st.markdown("**Assumed**")
        components.bullets(report.plan_assumptions(plan))
        st.markdown("**Method**")
        components.bullets(report.method(plan))


def _show(tables: Mapping[str, Table], titles: Sequence[str]) -> None:
    """Those of the tables that there are, by title."""
    for title in titles:
        if title in tables:
            components.table(tables[title], f"plan-{title}")


def _alternatives(plan: Plan, tables: Mapping[str, Table]) -> None:
    """Cost of the best fleet of each SKU, mode and other engine."""
    if not plan.alternatives:
        st.markdown("**What else was possible**")
        st.caption(
            "The best fleet of each SKU, mode and engine is computed after the simulation; it follows by itself."
        )
        return
    rows = charts.cost_comparison_rows(plan)
    components.chart(charts.cost_comparison(plan), rows, "Alternatives", "plan-alternatives")
    with st.expander("Alternatives in numbers"):
        _show(tables, ("Best alternative per format, SKU, mode and engine",))


# --- files ------------------------------------------------------------------------------------------------------------


def _downloads(page: Page) -> None:
    """The plan as files, each made when it is downloaded."""
    name = components.slug(page.request.name) or "plan"
    plan = replace(page.plan, scenario=page.content)
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.markdown("**Download**", width="content")
        _file_button("html", f"{name}.html", lambda: html_report(page))
        _file_button("markdown", f"{name}.md", lambda: report.page(plan).markdown)
        _file_button("json", f"{name}.json", lambda: json_text(plan_to_dict(plan)))
        _file_button("csv", f"{name}-tables.zip", lambda: zip_bytes(csv_files(plan)))
        _file_button("scenario", f"{name}.yaml", lambda: scenario_text(page.content))
        components.print_button()
    _deployment_files(plan, name)


def _deployment_files(plan: Plan, name: str) -> None:
    """The files that start the fleet, for a chosen target."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.markdown("**Deploy**", width="content")
        target = st.selectbox(
            **fields.widget("plan-target"),
            options=list(launch.TARGETS),
            format_func=lambda name: f"{name}: {launch.TARGETS[name].title}",
        )
        refusal = export_refusal(plan, target)
        _file_button("deployment", f"{name}-{target}.zip", lambda: export_zip(plan, target), refusal)


def _file_button(kind: str, name: str, make: Callable[[], str | bytes], refusal: str = "") -> None:
    """A button for one file; with a refusal it is disabled and says why."""
    look = fields.widget(f"plan-file-{kind}", data=make, file_name=name, on_click="ignore", type="tertiary")
    if refusal:
        look |= {"disabled": True, "help": f"Not for this plan: {components.plain(refusal)}"}
    st.download_button(**look)


def html_report(page: Page) -> str:
    """The plan as one HTML page, with the intervals that are known by now."""
    return html_page.html(
        page.plan,
        costs=summary.cached_cost_range(page),
        headroom=summary.cached_headroom(page),
    )


def export_refusal(plan: Plan, target: str) -> str:
    """Why there are no files that start the fleet on a target (of `launch.TARGETS`); empty where there are."""
    try:
        launch.export_files(plan, target)
    except PlannerError as error:
        return str(error)
    return ""


def export_zip(plan: Plan, target: str) -> bytes:
    """The files that start the fleet on a target, as a zip."""
    return zip_bytes(launch.export_files(plan, target))


def csv_files(plan: Plan) -> dict[str, str]:
    """Every table of a plan as CSV, and the fleet GPU by GPU, by file name."""
    files = html_page.csv_tables(plan)
    rows = fleets.fleet_rows(plan)
    if rows:
        files["gpus.csv"] = csv_text(list(rows[0]), [list(row.values()) for row in rows])
    return files


def zip_bytes(files: Mapping[str, str]) -> bytes:
    """Files as a zip in memory; the same files make the same bytes."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
    return memory.getvalue()
