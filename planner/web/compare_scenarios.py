"""Scenarios that the visitor keeps for this visit, side by side with the one on the page."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from planner.charts import comparison
from planner.core import PlannerError, Table
from planner.fleet import Plan, hardware_for, plan
from planner.scenario import MAX_SCENARIO_BYTES, Content
from planner.studies import Side, differing, only_differing, scenario_in, scenario_table, settings_table
from planner.web import components, session
from planner.web.results import Page, Say, kept, request_of, theory

MOST = 8
"""Scenarios kept at a time."""
LONGEST_NAME = 40
NAME_PX = 240
HERE = "on the page"
SAVED = "saved_scenarios"
"""Where a visit keeps them: a list of {id, name, content}; nothing is written anywhere else."""
TABLE_KEY = "compare-scenarios"

HINTS = {
    "what": "What is asked, then the answer",
    "model": "Model that is served (given)",
    "traffic": "Requests per second, growth included, and the squared coefficient of variation of the gaps between "
    "them: 1 is Poisson (given)",
    "mean tokens": "Mean input and output tokens of a request (from the length data of the scenario)",
    "targets": "Latency targets: percentile of the requests, metric, threshold (given)",
    "fleet": "Pools of the cheapest fleet that meets every target: replicas x GPU, TP degree, role (predicted)",
    "GPUs": "GPUs of the fleet, all pools (counted)",
    "serves [requests/s]": "Requests per second that the fleet serves, all models (planned)",
    "$ per month": "Cost of the fleet for a month [USD]; in brackets against the first column (prices times GPUs)",
    "$ per million input tokens": "USD per million input tokens: their share of the fleet's cost by step time "
    "(predicted)",
    "$ per million output tokens": "USD per million output tokens: what input tokens leave of the cost (predicted)",
    "mean TTFT": "Mean time to the first token; in brackets the 90 % interval of the kernel fits (predicted)",
    "mean TPOT": "Mean time per output token; in brackets the 90 % interval of the kernel fits (predicted)",
    "tightest target": "The latency target with the least left",
    "headroom": "What is left of the tightest target's threshold; negative: missed (see 'judged by')",
    "step times from": "Measurements that kernel times are fitted to. Carried over: the shares of peak measured on "
    "another GPU. Datasheet peaks: no measurements, times are the shortest that there can be (fitted or assumed)",
    "judged by": "Whether the latencies against targets are simulated or predicted by theory",
    "setting": "Field of the scenario, as files and links name it",
}


def show(page: Page) -> None:
    """Saving, the list of what is saved, and all of it side by side."""
    saved = _saved()
    _save_row(saved)
    _upload_row(saved)
    if not saved:
        st.info(
            "Nothing saved yet. Save this scenario, change something at the left, and both stand here side by side. "
            "What you save is kept until you close or reload the page."
        )
        return
    for one in saved:
        _saved_row(one)
    checked = st.toggle(
        "Check all by simulation",
        key="compare-checked",
        persist_state="session",
        help="Plans every scenario again with simulation: several seconds each, once. Off: all by theory.",
    )
    contents = {HERE: page.content} | {one["name"]: one["content"] for one in saved}
    sides = [_side(name, content, checked=checked) for name, content in contents.items()]
    _bars(sides, checked=checked)
    is_short = st.toggle("Only what differs", key="compare-short", persist_state="session")
    whole = scenario_table(sides)
    _table(only_differing(whole) if is_short else whole, TABLE_KEY)
    settings = settings_table(contents)
    if settings.rows:
        _table(settings, f"{TABLE_KEY}-settings")
    else:
        st.caption("All scenarios have the same settings as the one on the page.")


# --- saving -----------------------------------------------------------------------------------------------------------


def _saved() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = st.session_state.setdefault(SAVED, [])
    return found


def _save_row(saved: list[dict[str, Any]]) -> None:
    is_full = len(saved) >= MOST
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.text_input(
            "Save this scenario as",
            placeholder=_free_name("scenario"),
            max_chars=LONGEST_NAME,
            key="compare-name",
            disabled=is_full,
            width=NAME_PX,
        )
        hint = (
            f"At most {MOST}: remove one first" if is_full else "Kept for this visit only; nothing is written to disk"
        )
        st.button(
            "Save", on_click=_save, key="compare-save", disabled=is_full, icon=":material/bookmark_add:", help=hint
        )


def _save() -> None:
    add(st.session_state.get("compare-name") or "scenario", session.content())
    st.session_state["compare-name"] = ""


def add(name: str, content: Content) -> None:
    """Keep a scenario under a name, with a number after it where that is taken; nothing happens when all is full."""
    saved = _saved()
    if len(saved) < MOST:
        number = 1 + max((one["id"] for one in saved), default=0)
        st.session_state[SAVED] = [*saved, {"id": number, "name": _free_name(name), "content": content}]


def _free_name(name: str, own: int | None = None) -> str:
    """The name, or with a number after it where another scenario has it."""
    taken = {one["name"] for one in _saved() if one["id"] != own} | {HERE, "what", "setting"}
    wanted = " ".join(name.split())[:LONGEST_NAME] or "scenario"
    found, number = wanted, 2
    while found in taken:
        found, number = f"{wanted} {number}", number + 1
    return found


def _saved_row(one: dict[str, Any]) -> None:
    """A saved scenario: its name, to be changed, and what can be done with it."""
    number = one["id"]
    with st.container(horizontal=True, vertical_alignment="center"):
        key = f"compare-name-{number}"
        st.session_state[key] = one["name"]
        st.text_input(
            "Name",
            max_chars=LONGEST_NAME,
            label_visibility="collapsed",
            key=key,
            on_change=_rename,
            args=(number,),
            width=NAME_PX,
        )
        st.button(
            "Open",
            on_click=_open,
            args=(number,),
            key=f"compare-open-{number}",
            icon=":material/open_in_new:",
            help="Put it on the page in place of what is there; Undo brings that back",
        )
        st.button("Remove", on_click=_remove, args=(number,), key=f"compare-remove-{number}", icon=":material/delete:")


def _rename(number: int) -> None:
    name = _free_name(st.session_state[f"compare-name-{number}"], number)
    st.session_state[SAVED] = [{**one, "name": name} if one["id"] == number else one for one in _saved()]


def _open(number: int) -> None:
    session.put(next(one["content"] for one in _saved() if one["id"] == number))


def _remove(number: int) -> None:
    st.session_state[SAVED] = [one for one in _saved() if one["id"] != number]


# --- files ------------------------------------------------------------------------------------------------------------


def _upload_row(saved: list[dict[str, Any]]) -> None:
    with st.expander("Add one from a file", icon=":material/upload_file:"):
        st.file_uploader(
            "Scenario (YAML) or plan (JSON of planner plan --json)",
            type=["yaml", "yml", "json"],
            max_upload_size=max(1, MAX_SCENARIO_BYTES // 1_000_000),
            key="compare-file",
            on_change=_upload,
            disabled=len(saved) >= MOST,
            help="Read as plain data and kept for this visit only. It must not name other files.",
        )
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


def _side(name: str, content: Content, *, checked: bool) -> Side:
    """The plan of a scenario, kept under the key that the page keeps it under when it is open."""
    key = json.dumps(content, sort_keys=True)
    request = None
    try:
        request = request_of(key)
        hardware = hardware_for(request)
        found = theory(request, hardware, key)
        if checked and found.feasible:

            def make(say: Say) -> Plan:
                return plan(request, hardware, say)

            found = kept(("checked", key), make, f"Simulating {name}")
    except PlannerError as error:
        return Side(name, request, None, str(error))
    return Side(name, request, found)


def _bars(sides: list[Side], *, checked: bool) -> None:
    measure = st.segmented_control(
        "Show",
        list(comparison.MEASURES),
        default=next(iter(comparison.MEASURES)),
        required=True,
        key="compare-scenarios-measure",
        persist_state="session",
        wrap=True,
    )
    rows = comparison.side_rows(sides, sides[0] if sides[0].feasible else None)
    subtitle = "Each as it is set up; " + ("simulated." if checked else "by theory: the checked plan above may differ.")
    components.chart(comparison.side_bars(rows, measure, "each scenario", subtitle), rows, "scenarios", "compare-bars")


def _table(shown: Table, key: str) -> None:
    """A table in which what differs from the first scenario is bold."""
    cells = ", ".join(
        f".st-key-{key} tr:nth-child({row + 1}) td:nth-child({column + 1})" for row, column in differing(shown)
    )
    if cells:
        st.html(f"<style>{cells} {{font-weight: 700}}</style>")
    note = f"{shown.note} Bold: differs from the scenario on the page.".strip()
    with st.container(key=key):
        components.table(Table(shown.title, shown.columns, shown.rows, note), f"{key}-table", HINTS)
