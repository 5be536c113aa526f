"""The tab *Plan*."""

from __future__ import annotations

import streamlit as st

from planner.web.work import Page


def show(page: Page) -> None:
    """The tab."""
    st.caption("Not yet built.")
