"""The web app, a table of contents: scenario -> plan -> answer and tabs. Run it with ``streamlit run app.py``.

The parts are in `planner.web`; every number comes from `planner.plan` and what explains it, every picture from
`planner.charts`. The plan follows the widgets by itself.
"""

from __future__ import annotations

import streamlit as st

from planner.core import PlannerError
from planner.web import (
    compare_tab,
    components,
    cost_tab,
    error_view,
    hardware_tab,
    inputs,
    latency_tab,
    plan_tab,
    results,
    roofline_tab,
    session,
    summary,
    why_tab,
)

TABS = {
    "Plan": plan_tab.show,
    "Why": why_tab.show,
    "Latency": latency_tab.show,
    "Roofline": roofline_tab.show,
    "Cost": cost_tab.show,
    "Compare": compare_tab.show,
    "Hardware": hardware_tab.show,
}


def main() -> None:
    """The page from top to bottom."""
    st.set_page_config(page_title="LLM capacity planner", layout="wide")
    st.html(components.STYLE)
    session.start()
    with st.sidebar:
        inputs.show()
    session.write_address()
    error_view.complain()
    try:
        page = results.page(session.content(), session.key())
        summary.show(page)
        tabs = st.tabs(list(TABS), key=session.TAB, on_change="rerun", bind="query-params")
        for tab, show in zip(tabs, TABS.values(), strict=True):
            if tab.open:
                with tab:
                    show(page)
        if results.check(page) or summary.complete(page):
            st.rerun()
    except PlannerError as error:
        error_view.explain(error)


main()
