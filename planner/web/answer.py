"""The answer: a sentence, four figures and the fleet; or why there is no fleet, and what would help."""

from __future__ import annotations

import streamlit as st

from planner import report
from planner.web import parts
from planner.web.work import Page


def show(page: Page) -> None:
    """The answer to the scenario."""
    st.markdown(f"**{parts.plain(report.headline(page.plan))}**")
