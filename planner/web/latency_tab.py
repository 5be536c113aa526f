"""The tab *Latency*: do the targets hold, how close is it, and what happens when traffic grows."""

from __future__ import annotations

import streamlit as st

from planner.charts import latency_distributions
from planner.core import Metric, percent, significant, unit
from planner.fleet import AGREEMENT, Plan, PlannedDeployment
from planner.report import class_table, confidence_table, tables
from planner.web import components, latency_growth, latency_prompt, latency_targets
from planner.web.results import Page

LAW_HEIGHT_PX = 340
"""Of a distribution's chart, with its title and axes."""

HINTS = {
    "metric": "What the row is about.",
    "from": "predicted: queueing theory on calibrated step times; simulated: the same fleet, request by request.",
    "mean": "Mean over all requests (ITL: over all gaps between tokens), in the unit of the row.",
    "predicted": "From queueing theory on calibrated step times, in the unit of the row.",
    "simulated": "From a request-by-request simulation with the same step times, in the unit of the row.",
    "difference": "(predicted - simulated) / simulated.",
    f"within {percent(AGREEMENT)}": f"Whether theory and simulation differ by at most {percent(AGREEMENT)}.",
    **{
        name: f"{name} of the row's metric: so many percent of the requests (ITL: of the gaps) are at or below it."
        for name in ("p50", "p90", "p95", "p99", "p99.9")
    },
    "class": "Kind of requests, with lengths and targets of its own.",
    "requests/s": "Arrivals of it. (given)",
    "own targets met": "Share of its requests that meet every threshold of its own targets at once.",
    **{
        f"{metric.value.upper()} {name} [{unit(metric)}]": f"{name} of the {metric.value.upper()} of its requests."
        for metric in Metric
        for name in ("p50", "p99")
    },
}
"""What the headings of this tab's tables mean."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if not plan.feasible:
        st.info("No fleet meets these targets, so there are no latencies to show. The way out stands above.")
        return
    latency_targets.show(page, tuple(_key(page, index) for index in range(len(plan.deployments))))
    index = _chosen(plan)
    planned = plan.deployments[index]
    key = _key(page, index)
    latency_growth.show(page, planned, key)
    _distributions(plan, index, planned)
    _agreement(plan, planned)
    latency_prompt.show(planned, key)


def _chosen(plan: Plan) -> int:
    """Which deployment the rest of the tab is about; asked only where there are several."""
    count = len(plan.deployments)
    if count == 1:
        return 0
    key = "latency-deployment"
    if st.session_state.get(key, 0) not in range(count):
        del st.session_state[key]
    names = [
        f"{number}: {one.judged.summary}, {significant(one.workload.rate_per_s)} requests/s"
        for number, one in enumerate(plan.deployments, start=1)
    ]
    chosen: int = st.selectbox(
        "The fleet has several deployments; show", range(count), format_func=lambda place: names[place], key=key
    )
    return chosen


def _key(page: Page, index: int) -> tuple[object, ...]:
    """What tells one deployment of a scenario from every other."""
    planned = page.plan.deployments[index]
    return (page.key, planned.option.name, planned.judged.summary, planned.workload.rate_per_s, tuple(planned.slices))


# --- distributions -----------------------------------------------------------------------------------------------------------


@st.fragment
def _distributions(plan: Plan, index: int, planned: PlannedDeployment) -> None:
    """The whole distribution of every metric at the planned rate, predicted and simulated."""
    st.subheader("How are the latencies spread?")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        view = st.segmented_control(
            "Share of requests",
            ("within", "slower"),
            default="within",
            required=True,
            key="latency-view",
            help="within: how many of all requests are at or below a latency. slower: the tail, on a logarithmic axis "
            "of its own, where a p99 is at 1 %.",
        )
        logarithmic = st.toggle("Logarithmic latency axis", key="latency-log")
    subject = f"{planned.judged.summary} at {significant(planned.workload.rate_per_s)} requests/s"
    with st.container(horizontal=True):
        for metric in Metric:
            distributions = {latency_distributions.PREDICTED: planned.predicted.distribution(metric)}
            if plan.simulated:
                distributions[latency_distributions.SIMULATED] = planned.simulated.distribution(metric)
            rows = latency_distributions.distribution_rows(distributions, metric, planned.slo)
            points = latency_distributions.target_points(planned.slo, metric)
            picture = latency_distributions.distribution_chart(
                rows, points, metric, subject, logarithmic=logarithmic, tail=view == "slower"
            )
            with st.container(width=latency_growth.PANEL_WIDTH_PX):
                components.chart(
                    picture.properties(height=LAW_HEIGHT_PX),
                    rows,
                    f"{metric.value.upper()} distribution {index + 1}",
                    f"latency-distribution-{metric.value}",
                )
    if not plan.simulated:
        st.caption("Only theory so far: the dashed lines come with the simulation.")
    for table in class_table(planned.simulated):
        components.table(table, "latency-classes", HINTS)


# --- theory against simulation --------------------------------------------------------------------------------------


def _agreement(plan: Plan, planned: PlannedDeployment) -> None:
    """Theory against simulation on means, and both on percentiles."""
    st.subheader("Do theory and simulation agree?")
    if not plan.simulated:
        st.caption("The simulation is under way; the comparison appears here by itself.")
        return
    st.markdown(
        components.plain(
            "Both use the same step times, so that their agreement checks the queueing theory, not the hardware. "
            + how_to_read(plan)
        )
    )
    by_title = {table.title: table for table in tables(plan)}
    for title in ("Theory against simulation", "Latency"):
        if title in by_title:
            components.table(by_title[title], f"latency-{title}", HINTS)
    for table in confidence_table(planned.simulated):
        components.table(table, "latency-confidence", HINTS)


def how_to_read(plan: Plan) -> str:
    """What the differences of the means say about the curves."""
    if not plan.agreement:
        return ""
    most = percent(max(abs(pair.relative_difference) for pair in plan.agreement))
    if all(pair.holds for pair in plan.agreement):
        return f"Means differ by at most {most}: the curves above stand for what a simulation would say."
    return f"Means differ by up to {most}: trust the simulated points, and read the curves as a trend."
