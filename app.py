"""The web app, a table of contents: scenario -> plan -> answer and tabs. Run it with ``streamlit run app.py``.

The parts are in `planner.web`; every number comes from `planner.plan` and what explains it, every picture from
`planner.charts`. The plan follows the widgets by itself.
"""

from __future__ import annotations

import streamlit as st

from planner.errors import PlannerError
from planner.web import (
    answer,
    compare_tab,
    cost_tab,
    hardware_tab,
    inputs,
    latency_tab,
    parts,
    plan_tab,
    roofline_tab,
    session,
    trouble,
    why_tab,
    work,
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
    st.html(parts.STYLE)
    session.start()
    with st.sidebar:
        inputs.show()
    session.write_address()
    trouble.complain()
    try:
        page = work.page(session.content(), session.key())
        answer.show(page)
        tabs = st.tabs(list(TABS), key=session.TAB, on_change="rerun", bind="query-params")
        for tab, show in zip(tabs, TABS.values(), strict=True):
            if tab.open:
                with tab:
                    show(page)
        if work.check(page) or answer.complete(page):
            st.rerun()
    except PlannerError as error:
        trouble.explain(error)


main()
