"""Of the tab *Cost*: demand that varies over the day or week, and what a fleet that follows it saves."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from planner.analysis import Autoscaler, headline, period_capacities_per_s, simulate_autoscaler
from planner.charts import demands
from planner.core import percent
from planner.report import autoscaling
from planner.report import plan as report
from planner.traffic import cold_start_of, curve_of_profile, profiles
from planner.web import components, fields, results, session
from planner.web.results import Page
from planner.workload import RateDrift

USUAL_VARIATION, VARIATION_TIME_S = 0.1, 600.0
"""Standard deviation of the rate within an hour, of its mean, and its correlation time [s]. Choices, to be replaced."""
WINDOW_S = 60.0
"""Windows of the demand that is played [s]."""
NAME = "autoscaler"


def show(page: Page) -> None:
    """Savings of following a recorded day or week; once the plan follows one, its own."""
    if page.request.profile is None:
        _profile_choice(page)
    else:
        _following_savings(page)


@components.section("What if demand moves over the day?")
def _profile_choice(page: Page) -> None:
    st.markdown(
        "The plan is for one constant rate. With a recorded day or week, the fleet follows the demand hour by hour."
    )
    names = list(profiles.list_profiles())
    name = st.selectbox(
        **fields.widget("cost-profile"),
        options=names,
        index=names.index("azure-2024-conv-day") if "azure-2024-conv-day" in names else 0,
    )
    measured, info = profiles.load_measured(name), profiles.profile_info(name)
    rate = page.request.growth * sum(service.workload.rate_per_s for service in page.request.all_services)
    components.chart(
        demands.profile_curve(measured, rate, name), demands.profile_rows(measured, rate), f"{name} by hour", "cost-day"
    )
    saved = profiles.following_savings(measured.profile)
    components.bullets(
        [
            f"{info.description}",
            f"Following this demand saves at most {percent(saved)} against a fleet for its peak (1 - mean / peak).",
            f"Source: {info.citation}, {info.source_url} , {info.licence}; {info.origin}.",
        ]
    )
    is_day = info.cycle_hours <= profiles.HOURS_PER_DAY
    st.button(
        f"Plan with this {'day' if is_day else 'week'}",
        key="cost-use-profile",
        on_click=session.change,
        args=({"profile": name},),
        help="Plans all hours together: about 20 s for a day, several times that for a week.",
    )
    st.caption("Takes about 20 s for a day, and several times that for a week.")


@components.section("What does following the demand save?")
def _following_savings(page: Page) -> None:
    plan, profile = page.plan, page.request.profile
    if plan.cost is None or profile is None:
        return
    if plan.flat_usd_per_hour:
        flat, now = plan.flat_usd_per_hour, plan.cost.usd_per_hour
        most = profiles.following_savings(profile)
        components.metric_cards(
            [
                components.MetricCard.named("card-cost-day-per-hour-following", headline.dollars(now)),
                components.MetricCard.named("card-cost-day-per-hour-never-changing", headline.dollars(flat)),
                components.MetricCard.named(
                    "card-cost-day-saved-by-following", percent(1.0 - now / flat), f"at most {percent(most)} possible"
                ),
            ],
            "following",
        )
    if plan.schedule:
        capacities = results.compute_once(
            ("capacity by hour", page.key, plan.simulated),
            partial(period_capacities_per_s, plan),
            "Capacity by hour",
        )
        rows = demands.schedule_rows(plan, capacities)
        components.chart(
            demands.schedule_demand(plan, capacities), rows, "Demand and capacity by hour", "cost-schedule"
        )
        components.chart(demands.schedule_gpus(plan), demands.schedule_gpu_rows(plan), "GPUs by hour", "cost-gpus")
        with st.expander("The schedule as a table"):
            schedule = (table for table in report.tables(plan) if table.title == "Schedule")
            components.tables(schedule, "cost-schedule-table")
    _profile_settings(page)
    if results.requested(
        "Play it with an autoscaler", NAME, page, "Requests/s per replica, by the rule of Kubernetes: some seconds."
    ):
        _autoscaled(page)


def _profile_settings(page: Page) -> None:
    """Further settings of the profile; a change writes it into the scenario as a profile of its own."""
    profile = page.request.profile
    if profile is None:
        return
    given = profile.model_dump(mode="json")

    def bound(field: str) -> dict[str, Any]:
        shown = getattr(profile, field)
        return session.bind(
            f"cost-{field}", shown, lambda new: {"profile": {**given, field: new or type(shown)()}}, at_once=True
        )

    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.number_input(**fields.widget("cost-day-cold-start-s", **bound("cold_start_s")))
        st.toggle("Pools may change size", help="Off: one fleet, sized for the largest demand.", **bound("autoscale"))
        st.button(**fields.widget("cost-no-profile"), on_click=session.change, args=({"profile": None},))
    st.caption(components.plain(f"Demand: {profile.source}."))


# --- an autoscaler ----------------------------------------------------------------------------------------------------


def _autoscaled(page: Page) -> None:
    """The profile's day played with an autoscaler, beside the schedule and a flat fleet."""
    st.markdown("**What would an autoscaler do?**")
    with st.container(horizontal=True):
        variation = st.number_input(**fields.widget("cost-variation"), value=USUAL_VARIATION)
        load = st.number_input(**fields.widget("cost-load"))
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
    components.table(autoscaling.tables(day)[0], "cost-autoscaler")
    rows = demands.autoscaling_rows(day)
    components.chart(demands.autoscaling_chart(day), rows, "Autoscaled fleet by time", "cost-autoscaler-replicas")
    notes = (f"demand: {curve.source}", *(() if profile.cold_start_s else (measured.note,)), *day.assumptions)
    with st.expander("Taken for granted"):
        components.bullets([components.plain(note) for note in notes])
