"""The sidebar: model, traffic, targets, hardware and goal, each bound to the scenario."""

from __future__ import annotations

import streamlit as st

from planner.llm import list_llms
from planner.web import session


def show() -> None:
    """All inputs."""
    st.selectbox("Model", list(list_llms()), **session.field("llm", "llm"))
    st.number_input("Requests per second", 0.01, 1e6, step=5.0, **session.field("rate", "workload.rate_per_s"))
