"""The tab *Compare*: what another way of serving, another GPU or another scenario would give."""

from __future__ import annotations

import streamlit as st

from planner.web import compare_gpus, compare_scenarios, compare_systems
from planner.web.results import Page

SECTIONS = {
    "Serving systems": compare_systems.show,
    "GPUs": compare_gpus.show,
    "Scenarios": compare_scenarios.show,
}


def show(page: Page) -> None:
    """The tab."""
    chosen = st.segmented_control(
        "Compare",
        list(SECTIONS),
        default=next(iter(SECTIONS)),
        required=True,
        key="compare-section",
        persist_state="session",
        help="Serving systems: the same GPUs and requests, used in other ways. GPUs: the same request on each GPU "
        "alone. Scenarios: what you saved, side by side.",
    )
    SECTIONS[chosen](page)
