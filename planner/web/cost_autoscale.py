"""Of the tab *Cost*: the profile's day played with an autoscaler, beside the schedule and a flat fleet."""

from __future__ import annotations

from functools import partial

import streamlit as st

from planner.analysis import Autoscaler, simulate_autoscaler
from planner.charts import demands as charts
from planner.report import autoscaling as report
from planner.traffic import cold_start_of, curve_of_profile
from planner.web import components, results
from planner.web.results import Page
from planner.workload import RateDrift

USUAL_VARIATION, VARIATION_TIME_S = 0.1, 600.0
"""Standard deviation of the rate within an hour, of its mean, and its correlation time [s]. Choices, to be replaced."""
WINDOW_S = 60.0
"""Windows of the demand that is played [s]."""
NAME = "autoscaler"


def show(page: Page) -> None:
    """A button, and once it was pressed the three fleets."""
    if not results.is_requested(NAME, page):
        results.request_button(
            "Play it with an autoscaler", NAME, page, "Requests/s per replica, by the rule of Kubernetes: some seconds."
        )
        return
    st.markdown("**What would an autoscaler do?**")
    with st.container(horizontal=True):
        variation = st.number_input(
            "Variation within an hour",
            0.0,
            1.0,
            USUAL_VARIATION,
            0.05,
            key="cost-variation",
            width=200,
            help="Standard deviation of the rate within an hour, as a share of its mean. An assumption.",
        )
        load = st.number_input(
            "Load aimed at",
            0.1,
            1.0,
            0.7,
            0.05,
            key="cost-load",
            width=200,
            help="Of the rate a replica sustains: what the autoscaler holds.",
        )
    _fleets(page, variation, load)


def _fleets(page: Page, variation: float, load: float) -> None:
    request, profile = page.request, page.request.profile
    if profile is None:
        return
    drift = RateDrift.random(variation, VARIATION_TIME_S) if variation else None
    rate_per_s = request.growth * sum(service.workload.rate_per_s for service in request.all_services)
    curve = curve_of_profile(profile, rate_per_s, WINDOW_S, drift)
    measured = cold_start_of(request.llm, request.precision)
    cold_start_s = profile.cold_start_s or measured.seconds
    day = results.compute_once(
        (NAME, page.key, page.plan.simulated, variation, load),
        partial(
            simulate_autoscaler,
            page.plan,
            curve.rates_per_s,
            curve.window_s,
            Autoscaler(target_share=load),
            cold_start_s,
        ),
        "Autoscaler",
    )
    components.table(report.tables(day)[0], "cost-autoscaler")
    rows = charts.autoscaling_rows(day)
    components.chart(charts.autoscaling_chart(day), rows, "Autoscaled fleet by time", "cost-autoscaler-replicas")
    notes = (f"demand: {curve.source}", *(() if profile.cold_start_s else (measured.note,)), *day.assumptions)
    with st.expander("Taken for granted"):
        components.bullets([components.plain(note) for note in notes])
