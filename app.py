"""The web app: scenario -> plan -> answer and tabs. Run it with ``streamlit run app.py``.

The parts are in `planner.web`; every number comes from `planner.plan` and `planner.analysis`, every picture from
`planner.charts`. Every change of a widget plans again.
"""

from __future__ import annotations

import streamlit as st

from planner.core import PlannerError
from planner.web import (
    compare_tab,
    components,
    cost_tab,
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
    components.show_complaint()
    try:
        page = results.page_of(session.content(), session.key())
        summary.show(page)
        tabs = st.tabs(list(TABS), key=session.TAB, on_change="rerun", bind="query-params")
        for tab, show in zip(tabs, TABS.values(), strict=True):
            if tab.open:
                with tab:
                    show(page)
        if results.check_by_simulation(page) or summary.find_interval(page):
            st.rerun()
    except PlannerError as error:
        components.show_error(error)


main()
