"""Where there is no feasible fleet: why, and the changes that help, each as a button that makes it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

import planner
from hardware_db import HardwareDb
from planner.analysis import Explanation, PlanQuestion, explain, headline
from planner.core import money
from planner.fleet import Corrections, Plan, Progress
from planner.report import explanation
from planner.report import plan as report
from planner.scenario import CompletedFix, Content, Fix, request_fixes
from planner.web import components, results, session
from planner.web.results import Page

AUTOMATIC_S = 8.0
"""Time after which further fixes are looked for on request only [s]."""


def show(page: Page) -> None:
    """Why there is no fleet, the changes that help, and what was rejected."""
    st.warning(components.plain(request_fixes.infeasibility_reason(page.plan)), icon=":material/block:")
    _fixes(page)
    _relaxations(page)
    _rejections(page.plan)


# --- fixes ------------------------------------------------------------------------------------------------------------


def _fixes(page: Page) -> None:
    """Every fix that leads to a fleet, as a button with the cost of that fleet; each is shown once it is known."""
    st.markdown("**What would help** (each alone is enough; by theory)")
    proposals = request_fixes.fixes(page.plan, page.hardware)
    shown: list[CompletedFix] = []
    until = time.monotonic() + AUTOMATIC_S
    for number, proposal in enumerate(proposals):
        label = f"Look for more fixes ({len(proposals) - number} to try)"
        if not results.requested(label, "more", page, known=time.monotonic() <= until):
            break
        fix = _completed_fix(page, proposal)
        if fix is not None and not any(_is_dominated(fix, other) for other in shown):
            shown.append(fix)
            _fix_with_cost(fix, f"fix-{number}")
    if proposals and not shown:
        st.info("None of the changes that were tried is enough. Loosen a target or a limit further.")


def _completed_fix(page: Page, proposal: Fix) -> CompletedFix | None:
    """A proposal followed until there is a fleet; None where it leads to none."""
    key = ("fix", page.key, json.dumps(dict(proposal.changes), sort_keys=True))
    compute = partial(_followed, page.content, page.plan.corrections, proposal, page.hardware)
    (fix,) = results.compute_once(key, compute, "Looking for what would help")
    if fix is not None:  # what its button leads to is known
        results.store().put(("theory", _key_with_changes(page.content, fix.fix.changes)), fix.plan)
    return fix


def _followed(
    content: Content, known: Corrections | None, proposal: Fix, hardware: HardwareDb, progress: Progress
) -> tuple[CompletedFix | None]:
    """A proposal for a scenario, and what else it needs."""
    progress(proposal.text)

    def planned(changes: Mapping[str, Any]) -> Plan:
        """By theory as far as simulation corrected it."""
        request = results.request_of(_key_with_changes(content, changes))
        return planner.plan(request, None, progress, simulate=False, alternatives=False, corrections=known)

    return (request_fixes.complete_fix(proposal, planned, hardware),)


def _key_with_changes(content: Content, changes: Mapping[str, Any]) -> str:
    return json.dumps(session.with_changes(content, changes), sort_keys=True)


def _is_dominated(fix: CompletedFix, other: CompletedFix) -> bool:
    """True if another fix changes no more and costs no more."""
    changes, other_changes = fix.fix.changes, other.fix.changes
    changes_no_more = all(changes.get(path) == value for path, value in other_changes.items())
    return changes_no_more and _usd_per_hour(other) <= _usd_per_hour(fix) * (1.0 + 1e-9)


def _usd_per_hour(fix: CompletedFix) -> float:
    return fix.plan.cost.usd_per_hour if fix.plan.cost is not None else math.inf


def _fix_with_cost(fix: CompletedFix, key: str) -> None:
    fleet = headline.fleet_words(fix.plan)
    with st.container(horizontal=True, vertical_alignment="center"):
        components.fix_button(fix.fix, key)
        st.markdown(components.plain(f"${money(_usd_per_hour(fix))} per hour: {fleet}"), width="content")


# --- relaxations -----------------------------------------------------------------------------------------------------


def _relaxations(page: Page) -> None:
    """On request, the smallest change of every requirement by itself."""
    key = ("relaxations", page.key, page.plan.simulated)
    if not results.requested(
        "Find the smallest change of each requirement",
        "relaxations",
        page,
        "Solves up to 20 plans for every target, limit and rule: usually half a minute, sometimes minutes.",
        known=results.store().get(key) is not None,
    ):
        return
    explained = results.compute_once(key, partial(_explained, page.plan, page.hardware), "Solving")
    components.tables(explanation.tables(explained), "relaxations")
    for number, relaxation in enumerate(explained.relaxations):
        fix = request_fixes.fix_from_relaxation(relaxation)
        if fix is not None:
            components.fix_button(fix, f"relaxation-{number}")


def _explained(plan: Plan, hardware: HardwareDb, progress: Progress) -> Explanation:
    return explain(plan, results.replanner(plan, hardware, progress), [PlanQuestion.RELAXATIONS])


# --- what was rejected ------------------------------------------------------------------------------------------------


def _rejections(plan: Plan) -> None:
    """Every SKU and mode without a candidate, and what the solver says of its limits."""
    components.tables((table for table in report.tables(plan) if table.title == "Rejected"), "rejected")
    lines = report.diagnosis(plan)
    if lines and plan.allocation is not None:
        with st.expander("In the words of the solver"):
            components.bullets(lines)
