"""Where no fleet serves what was asked: why, and the changes that help, each a button that makes it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import streamlit as st

import planner
from planner.analysis import Explanation, Question, Solver, explain
from planner.core import Table, money
from planner.fleet import Plan
from planner.report import explanation
from planner.report import plan as report
from planner.scenario import Fix, WorkedOut, request_fixes
from planner.web import components, results, session
from planner.web.error_view import mend_button
from planner.web.results import Page, Say

PATIENCE_S = 8.0
"""Time after which further ways out are looked for on request only [s]."""
HINTS = {
    "SKU": "GPU that was looked at; see the tab Hardware.",
    "mode": "Mixed: one pool does prefill and decode. Disaggregated: a pool for each.",
    "why nothing is offered": "What the configuration that comes nearest fails at, with the GPU otherwise idle.",
    "relax by": "Latency of the nearest configuration over its target, idle: the least factor that could help.",
    "requirement": "A target, limit or rule of the scenario.",
    "asked": "As the scenario has it now.",
    "feasible from": "The value nearest to what is asked from which there is a fleet, all else kept (by theory).",
    "fleet": "The fleet there is then, by theory.",
    "cost [USD/h]": "Price of that fleet for an hour: listed prices times GPUs.",
}


def show(page: Page) -> None:
    """Why there is no fleet, the changes that help, and what was rejected."""
    st.warning(components.plain(request_fixes.reason(page.plan)), icon=":material/block:")
    _ways_out(page)
    _each_requirement(page)
    _what_was_rejected(page.plan)


# --- ways out ---------------------------------------------------------------------------------------------------------


def _ways_out(page: Page) -> None:
    """Every proposal that leads to a fleet, as a button with what it costs; shown as soon as it is known."""
    st.markdown("**What would help** (each alone is enough; by theory)")
    proposals = request_fixes.fixes(page.plan, page.hardware)
    shown: list[WorkedOut] = []
    until = time.monotonic() + PATIENCE_S
    for place, proposal in enumerate(proposals):
        if time.monotonic() > until and not _asked("more", page):
            left = len(proposals) - place
            _ask(f"Look for more ways out ({left} to try)", "more", page)
            break
        found = _worked_out(page, proposal)
        if found is not None and not any(_is_beaten(found, other) for other in shown):
            shown.append(found)
            _button(found.fix, found.plan, f"fix-{place}")
    if proposals and not shown:
        st.info("None of the changes that were tried is enough. Loosen a target or a limit by more.")


def _worked_out(page: Page, proposal: Fix) -> WorkedOut | None:
    """A proposal followed until there is a fleet; None where it leads to none."""

    def make(say: Say) -> tuple[WorkedOut | None]:
        say(proposal.text)
        return (request_fixes.worked_out(proposal, partial(_planned, page, say), page.hardware),)

    key = ("fix", page.key, json.dumps(dict(proposal.changes), sort_keys=True))
    return results.kept(key, make, "Looking for a way out")[0]


def _planned(page: Page, say: Say, changes: Mapping[str, Any]) -> Plan:
    """The plan of the scenario with changes, by theory."""
    key = json.dumps(session.changed(page.content, changes), sort_keys=True)
    known = results.store().get(("theory", key))
    if isinstance(known, Plan):
        return known
    found = planner.plan(results.request_of(key), None, say, simulate=False, alternatives=False)
    results.store().put(("theory", key), found)
    return found


def _is_beaten(found: WorkedOut, other: WorkedOut) -> bool:
    """Whether another way out changes no more and costs no more."""
    mine, theirs = found.fix.changes, other.fix.changes
    same = all(mine.get(path) == value for path, value in theirs.items())
    assert found.plan.cost is not None and other.plan.cost is not None
    return same and other.plan.cost.usd_per_hour <= found.plan.cost.usd_per_hour * (1.0 + 1e-9)


def _button(fix: Fix, plan: Plan, key: str) -> None:
    assert plan.cost is not None
    fleet = " + ".join(f"{count:,} x {sku}" for sku, count in plan.gpus.items())
    with st.container(horizontal=True, vertical_alignment="center"):
        mend_button(fix, key)
        st.markdown(components.plain(f"${money(plan.cost.usd_per_hour)} per hour: {fleet}"), width="content")


# --- each requirement -------------------------------------------------------------------------------------------------


def _each_requirement(page: Page) -> None:
    """On request, the smallest change of every requirement by itself."""
    key = ("relaxations", page.key)
    if results.store().get(key) is None and not _asked("relaxations", page):
        _ask(
            "Find the smallest change of each requirement",
            "relaxations",
            page,
            "Solves up to 20 plans for every target, limit and rule: usually half a minute, sometimes minutes.",
        )
        return

    def make(say: Say) -> Explanation:
        return explain(page.plan, Solver(hardware=page.hardware, say=say), [Question.RELAXATIONS])

    found = results.kept(key, make, "Solving")
    for table in explanation.tables(found):
        components.table(table, "relaxations", HINTS)
    for place, one in enumerate(found.relaxations):
        fix = request_fixes.of_relaxation(one)
        if fix is not None:
            mend_button(fix, f"relaxation-{place}")


# --- what was rejected ------------------------------------------------------------------------------------------------


def _what_was_rejected(plan: Plan) -> None:
    """Every SKU and mode without an offer, and what the program says of its limits."""
    rejected: list[Table] = [table for table in report.tables(plan) if table.title == "Rejected"]
    for table in rejected:
        components.table(table, "rejected", HINTS)
    lines = report.diagnosis(plan)
    if lines and plan.allocation is not None:
        with st.expander("In the words of the solver"):
            components.bullets(lines)


# --- questions that wait for a click ----------------------------------------------------------------------------------


def _asked(name: str, page: Page) -> bool:
    return bool(st.session_state.get(f"asked-{name}") == page.key)


def _ask(label: str, name: str, page: Page, hint: str | None = None) -> None:
    remember: Callable[[], None] = partial(st.session_state.__setitem__, f"asked-{name}", page.key)
    st.button(label, key=f"ask-{name}", on_click=remember, help=hint, icon=":material/search:")
