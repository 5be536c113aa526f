"""Of the tab *Compare*: scenarios saved for this visit, side by side with the one on the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from planner.charts import costs
from planner.core import PlannerError, Table
from planner.fleet import hardware_for, plan
from planner.report import glossary
from planner.scenario import (
    MAX_SCENARIO_BYTES,
    Content,
    PlanSide,
    differing_cells,
    differing_rows,
    scenario_in,
    scenario_table,
    settings_table,
)
from planner.web import components, fields, session
from planner.web.results import Page, compute_once, request_of, theory_plan

MAX_SAVED = 8
"""Scenarios saved at a time."""
MAX_NAME_LENGTH = 40
NAME_WIDTH_PX = 240
HERE = "on the page"
"""Name of the scenario on the page."""
SAVED = "saved_scenarios"
"""Key of the saved ones in the state of the visit: a list of {id, name, content}; nothing is written to disk."""
TABLE_KEY = "compare-scenarios"

HINTS = glossary.hints_of("compare scenarios")


def show(page: Page) -> None:
    """Saving, the list of what is saved, and all of it side by side."""
    saved = _saved_scenarios()
    _save_inputs(saved)
    _upload_input(saved)
    if not saved:
        st.info(
            "Nothing saved yet. Save this scenario and change something in the sidebar: both appear here side by side. "
            "Saved scenarios are kept until you close or reload the page."
        )
        return
    for scenario in saved:
        _saved_row(scenario)
    checked = components.switch(
        "Check all by simulation",
        "compare-checked",
        "Plans every saved scenario again with simulation: several seconds each, once. Off: by theory.",
    )
    contents = {HERE: page.content} | {scenario["name"]: scenario["content"] for scenario in saved}
    here = PlanSide(HERE, page.request, page.plan)
    sides = [here, *(_side(one["name"], one["content"], checked=checked) for one in saved)]
    reference = sides[0] if sides[0].feasible else None
    how = "simulated." if checked else "the plan above as it stands, saved ones by theory."
    quantity_chart(sides, reference, "compare-scenarios", "scenarios", "each scenario", f"Each as it is set up; {how}")
    is_short = components.switch("Only what differs", "compare-short")
    whole = scenario_table(sides)
    _table_with_differences(differing_rows(whole) if is_short else whole, TABLE_KEY)
    settings = settings_table(contents)
    if settings.rows:
        _table_with_differences(settings, f"{TABLE_KEY}-settings")
    else:
        st.caption("All scenarios have the same settings as the one on the page.")


# --- saving -----------------------------------------------------------------------------------------------------------


def _saved_scenarios() -> list[dict[str, Any]]:
    saved: list[dict[str, Any]] = st.session_state.setdefault(SAVED, [])
    return saved


def _save_inputs(saved: list[dict[str, Any]]) -> None:
    is_full = len(saved) >= MAX_SAVED
    with st.container(horizontal=True, vertical_alignment="bottom"):
        look = fields.widget("compare-name", placeholder=_free_name("scenario"), disabled=is_full)
        st.text_input(**look, max_chars=MAX_NAME_LENGTH, width=NAME_WIDTH_PX)
        kept = "Kept for this visit only; nothing is written to disk"
        hint = f"At most {MAX_SAVED}: remove one first" if is_full else kept
        icon = ":material/bookmark_add:"
        st.button("Save", on_click=_save, key="compare-save", disabled=is_full, icon=icon, help=hint)


def _save() -> None:
    add(st.session_state.get("compare-name") or "scenario", session.planned_content())
    st.session_state["compare-name"] = ""


def add(name: str, content: Content) -> None:
    """Save a scenario under a name, with a number after it where that is taken; nothing happens when all is full."""
    saved = _saved_scenarios()
    if len(saved) < MAX_SAVED:
        number = 1 + max((scenario["id"] for scenario in saved), default=0)
        st.session_state[SAVED] = [*saved, {"id": number, "name": _free_name(name), "content": content}]


def _free_name(name: str, own: int | None = None) -> str:
    """The name, with a number after it where a scenario other than `own` has it."""
    taken = {scenario["name"] for scenario in _saved_scenarios() if scenario["id"] != own} | {HERE, "what", "setting"}
    wanted = " ".join(name.split())[:MAX_NAME_LENGTH] or "scenario"
    free, number = wanted, 2
    while free in taken:
        free, number = f"{wanted} {number}", number + 1
    return free


def _saved_row(scenario: dict[str, Any]) -> None:
    """A saved scenario: its name, which can be edited, and buttons that open and remove it."""
    number = scenario["id"]
    with st.container(horizontal=True, vertical_alignment="center"):
        key = f"compare-name-{number}"
        st.session_state[key] = scenario["name"]
        st.text_input(
            **fields.widget("compare-scenarios-name", key=key),
            max_chars=MAX_NAME_LENGTH,
            on_change=_rename,
            args=(number,),
            width=NAME_WIDTH_PX,
        )
        st.button(
            **fields.widget("compare-scenarios-open", key=f"compare-open-{number}"),
            on_click=session.replace_scenario,
            args=(scenario["content"],),
        )
        st.button("Remove", on_click=_remove, args=(number,), key=f"compare-remove-{number}", icon=":material/delete:")


def _rename(number: int) -> None:
    name = _free_name(st.session_state[f"compare-name-{number}"], number)
    st.session_state[SAVED] = [
        {**scenario, "name": name} if scenario["id"] == number else scenario for scenario in _saved_scenarios()
    ]


def _remove(number: int) -> None:
    st.session_state[SAVED] = [scenario for scenario in _saved_scenarios() if scenario["id"] != number]


# --- files ------------------------------------------------------------------------------------------------------------


def _upload_input(saved: list[dict[str, Any]]) -> None:
    with st.expander("Add one from a file", icon=":material/upload_file:"):
        is_full = len(saved) >= MAX_SAVED
        components.uploader("compare-file", MAX_SCENARIO_BYTES, on_change=_upload, disabled=is_full)
        error = st.session_state.get("compare-refused")
        if error:
            st.error(components.plain(error))


def _upload() -> None:
    file = st.session_state["compare-file"]
    st.session_state["compare-refused"] = ""
    if file is None:
        return
    try:
        content = scenario_in(file.name, file.getvalue())
        request_of(json.dumps(content))
    except PlannerError as error:
        st.session_state["compare-refused"] = str(error)
        return
    add(file.name.rsplit(".", 1)[0], content)


# --- side by side -----------------------------------------------------------------------------------------------------


def _side(name: str, content: Content, *, checked: bool) -> PlanSide:
    """The plan of a scenario, cached under the key that the page uses when it is open."""
    key = json.dumps(content, sort_keys=True)
    request = None
    try:
        request = request_of(key)
        hardware = hardware_for(request)
        side_plan = theory_plan(request, hardware, key)
        if checked and side_plan.feasible:
            compute = partial(plan, request, hardware, alternatives=False)
            side_plan = compute_once(("checked", key), compute, f"Simulating {name}")
    except PlannerError as error:
        return PlanSide(name, request, None, str(error))
    return PlanSide(name, request, side_plan)


def quantity_chart(
    sides: Sequence[PlanSide], reference: PlanSide | None, key: str, name: str, of: str, subtitle: str
) -> None:
    """One quantity of every side as bars, chosen above them.

    Args:
        sides: what is compared.
        reference: that the others are compared with.
        key: of the chart; unique on the page.
        name: of the data, for the file.
        of: what is compared, in the title of the chart.
        subtitle: of the chart.
    """
    quantity = components.choose_one("Show", list(costs.COMPARED_QUANTITIES), f"{key}-measure")
    rows = costs.side_rows(sides, reference)
    components.chart(costs.side_chart(rows, quantity, of, subtitle), rows, name, key)


def _table_with_differences(table: Table, key: str) -> None:
    """A table in which what differs from the first scenario is bold."""
    cells = ", ".join(
        f".st-key-{key} tr:nth-child({row + 1}) td:nth-child({column + 1})" for row, column in differing_cells(table)
    )
    if cells:
        st.html(f"<style>{cells} {{font-weight: 700}}</style>")
    note = f"{table.note} Bold: differs from the scenario on the page.".strip()
    with st.container(key=key):
        components.table(Table(table.title, table.columns, table.rows, note), f"{key}-table", HINTS)
