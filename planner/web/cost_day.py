"""Of the tab *Cost*: demand that varies over the day or week, and what a fleet that follows it saves."""

from __future__ import annotations

from functools import partial

import streamlit as st

from planner.analysis import headline, period_capacities_per_s
from planner.charts import demands
from planner.core import percent
from planner.report import plan as report
from planner.traffic import profiles
from planner.web import components, cost_autoscale, results, session
from planner.web.results import Page


def show(page: Page) -> None:
    """What following a recorded day or week would save; once the plan follows one, what it saves."""
    if page.request.profile is None:
        _profile_choice(page)
    else:
        _following_savings(page)


def _profile_choice(page: Page) -> None:
    st.subheader("What if demand moves over the day?")
    st.markdown(
        "The plan is for one constant rate. With a recorded day or week, the fleet follows the demand hour by hour."
    )
    names = list(profiles.list_profiles())
    name = st.selectbox(
        "Recorded demand",
        names,
        index=names.index("azure-2024-conv-day") if "azure-2024-conv-day" in names else 0,
        key="cost-profile",
        width=380,
        help="The shape of a recorded day or week; its mean is your rate.",
    )
    measured, info = profiles.load_measured(name), profiles.profile_info(name)
    rate = page.request.growth * sum(service.workload.rate_per_s for service in page.request.all_services)
    components.chart(
        demands.profile_curve(measured, rate, name), demands.profile_rows(measured, rate), f"{name} by hour", "cost-day"
    )
    saved = profiles.following_savings(measured.profile).max_saving
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


def _following_savings(page: Page) -> None:
    st.subheader("What does following the demand save?")
    plan, profile = page.plan, page.request.profile
    if plan.cost is None or profile is None:
        return
    if plan.flat_usd_per_hour:
        flat, now = plan.flat_usd_per_hour, plan.cost.usd_per_hour
        most = profiles.following_savings(profile).max_saving
        components.metric_cards(
            [
                components.MetricCard(
                    "$ per hour, following",
                    headline.dollars(now),
                    "USD/h: cost of the fleet that changes size, mean over the profile (listed prices, planned).",
                ),
                components.MetricCard(
                    "$ per hour, never changing",
                    headline.dollars(flat),
                    "USD/h: cost of the cheapest fleet that always serves the largest demand (planned by theory).",
                ),
                components.MetricCard(
                    "Saved by following",
                    percent(1.0 - now / flat),
                    "1 - cost of following / cost of never changing. The bound is 1 - mean / peak of demand: fleets "
                    "come in whole GPUs.",
                    f"at most {percent(most)} possible",
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
            for table in (table for table in report.tables(plan) if table.title == "Schedule"):
                components.table(table, "cost-schedule-table")
    _profile_settings(page)
    cost_autoscale.show(page)


def _profile_settings(page: Page) -> None:
    """Further settings of the profile; a change writes it into the scenario as a profile of its own."""
    profile = page.request.profile
    if profile is None:
        return
    given = profile.model_dump(mode="json")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.number_input(
            "Cold start [s]",
            min_value=0.0,
            step=30.0,
            help="From ordering a GPU until its replica serves. Paid for at every start.",
            width=200,
            **session.bind(
                "cost-cold-start",
                profile.cold_start_s,
                lambda new: {"profile": {**given, "cold_start_s": new or 0.0}},
                at_once=True,
            ),
        )
        st.toggle(
            "Pools may change size",
            help="Off: one fleet, sized for the largest demand.",
            **session.bind(
                "cost-autoscale",
                profile.autoscale,
                lambda new: {"profile": {**given, "autoscale": bool(new)}},
                at_once=True,
            ),
        )
        st.button(
            "Plan without it",
            key="cost-no-profile",
            on_click=session.change,
            args=({"profile": None},),
            help="Back to one constant rate.",
        )
    st.caption(components.plain(f"Demand: {profile.source}."))
