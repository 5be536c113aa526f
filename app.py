"""The web app: scenario -> plan -> answer and tabs. Run it with ``streamlit run app.py``.

The parts are in `planner.web`; every number comes from `planner.plan` and `planner.analysis`, every picture from
`planner.charts`. Changes of widgets are gathered until they are planned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

try:
    import streamlit as st
    from streamlit.delta_generator import DeltaGenerator
except ImportError:
    fix = "pip install 'llm-capacity-planner[app]'"
    print(f"error: streamlit = '(not installed)': the web app needs it. Fix: {fix}", file=sys.stderr)
    sys.exit(2)

from planner.core import PlannerError
from planner.web import (
    check_tab,
    compare_tab,
    components,
    cost_tab,
    hardware_tab,
    inputs,
    latency_tab,
    plan_tab,
    quick_page,
    results,
    roofline_tab,
    session,
    summary,
    why_tab,
    world,
)

TABS = {
    "Plan": plan_tab.show,
    "Why": why_tab.show,
    "Latency": latency_tab.show,
    "Roofline": roofline_tab.show,
    "Cost": cost_tab.show,
    "Compare": compare_tab.show,
    "Check": check_tab.show,
    "Hardware": hardware_tab.show,
}


def main() -> None:
    """The page from top to bottom."""
    st.set_page_config(page_title="LLM capacity planner", layout="wide")
    components.use_style()
    if st.query_params.to_dict() == quick_page.ADDRESS:
        quick_page.show()
        return
    session.start()
    with st.sidebar:
        inputs.show()
    session.write_address()
    with st.container():
        components.show_complaint()
    try:
        answer()
    except results.Stopped:
        pass  # a line and a button say so where it was
    except PlannerError as error:
        components.show_error(error)


def answer() -> None:
    """The plan with its tabs, and above it what is still under way. An old answer goes before a new one is begun.

    While changes are gathered the old answer stays, marked as old, and nothing more is computed for it.
    """
    changed_place = st.empty()  # emptied, unlike a container, as soon as a plan is under way
    if session.is_pending():
        has_answer = results.is_planned(session.key())
        with changed_place:
            inputs.mark_pending(has_answer=has_answer)
        if not has_answer:
            return
    if session.planned_content().get("demand"):
        with st.container(key="answer"):
            world.show(session.planned_content(), session.key())
        return
    progress_place = st.container(key="under-way")
    if not results.is_planned(session.key()):
        first_answer(progress_place)
        st.rerun()
    page = results.page_of(session.planned_content(), session.key())
    with st.container(key="answer"):
        summary.show(page)
        tabs = st.tabs(list(TABS), key=session.TAB, on_change="rerun", bind="query-params")
        for tab, show in zip(tabs, TABS.values(), strict=True):
            if tab.open:
                with tab:
                    show_tab(show, page)
    if session.is_pending():
        return
    with progress_place:
        is_new = results.check_by_simulation(page) or summary.complete(page)
    if is_new:
        st.rerun()


def first_answer(progress_place: DeltaGenerator) -> None:
    """Plan by theory; until that is there, the last fleet in other sizes stands in its place."""
    summary.show_outdated(st.empty())
    figures = st.empty()
    figures.html(summary.SKELETON)
    content, key, resized = session.planned_content(), session.key(), None
    try:
        with progress_place:
            with suppress(PlannerError):  # which the search through all configurations says, if it is so there too
                resized = results.resized_page(content, key)
            if resized is not None:
                with figures.container():
                    summary.show_figures(resized, "Set up as before: ")
            results.page_of(content, key)
    except (results.Stopped, PlannerError):
        if resized is None:
            figures.empty()  # none are to come
        raise


def show_tab(show: Callable[[results.Page], None], page: results.Page) -> None:
    """A tab; of one whose computation was stopped, what stands before that."""
    with suppress(results.Stopped):
        show(page)


main()
