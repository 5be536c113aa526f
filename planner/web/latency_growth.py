"""Of the tab *Latency*: percentiles against the arrival rate, and the rates up to which targets hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import streamlit as st

from planner.analysis import Headroom, headline, headroom
from planner.charts import Row, latencies
from planner.core import change, percent, significant
from planner.fleet import Plan, PlannedDeployment, Progress, requests_to_simulate, step_time_ends
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s, sustainable_rate_per_s
from planner.web import components, fields, results
from planner.web.components import MetricCard
from planner.web.results import Page
from planner.workload import RecordedArrivals

PANEL_WIDTH_PX = 510
"""Two charts in a row on a wide page, one on a narrow one."""
SIMULATED_LOADS = (0.3, 0.5, 0.8, 0.95)
"""Shares of the largest stable rate that are simulated besides the sustainable rate. Choices."""
MIN_SIMULATED_REQUESTS = 2000
"""Requests of each simulation, more where requests last long: twenty of them are beyond the p99. A choice."""
AUTOMATIC_REQUESTS = 40_000
"""Most requests, over all rates, that are simulated without a click: up to four seconds."""
SIMULATED_REQUESTS_PER_S = 10_000
"""Requests simulated in a second, approximately; the time on the button is estimated from it."""
FACTOR_FROM = 10.0
"""Headroom is written as a factor from this value on."""
MIN_RATE_DISTANCE = 0.02
"""Rates closer than this share of the largest stable rate are simulated once. A choice."""
HEIGHT_PX = 430
"""Of a chart, with its title and axes."""


@dataclass(frozen=True)
class LatencyGrowth:
    """Latencies of a deployment as its traffic grows.

    Attributes:
        rows: of `planner.charts.latencies.banded_rate_rows`.
        crossings: of `planner.charts.latencies.crossing_rows`.
        sustained_per_s: largest rate at which all targets hold by theory alone [1/s], with step times as estimated.
        headroom: of this deployment, as simulation corrected it.
        largest_per_s: largest stable rate [1/s].
        runs: other rates [1/s] to simulate, with requests for each.
    """

    rows: tuple[Row, ...]
    crossings: tuple[Row, ...]
    sustained_per_s: float
    headroom: Headroom
    largest_per_s: float
    runs: tuple[tuple[float, int], ...]


@components.section("What happens when traffic grows?")
def show(page: Page, planned: PlannedDeployment, key: tuple[object, ...]) -> None:
    """Percentiles against the rate, by theory with a band from fast to slow steps, and simulated.

    Args:
        page: what is shown.
        planned: the deployment.
        key: tells it from every other.
    """
    sweep = results.compute_once(
        ("latency sweep", page.plan.simulated, *key),
        partial(rate_sweep, page.plan, planned),
        "Sweeping the arrival rate",
    )
    components.metric_cards(_rate_cards(planned, sweep), "growth")
    st.markdown(components.plain(_first_violations_in_words(planned, sweep)))
    simulated = _simulations(page, planned, sweep, ("latency simulated", *key))
    points = latencies.simulated_rate_rows(simulated, planned.slo)
    with st.container(horizontal=True):
        for metric in latencies.shown_metrics(planned.slo):
            name = metric.value.upper()
            picture = latencies.rate_panel(
                sweep.rows, planned.slo, metric, sweep.crossings, points, planned.surviving.summary
            )
            rows = [{"source": "theory", **row} for row in sweep.rows if row["metric"] == name]
            rows += [{"source": "simulated", **row} for row in points if row["metric"] == name]
            with st.container(width=PANEL_WIDTH_PX):
                components.chart(
                    picture.properties(height=HEIGHT_PX),
                    rows,
                    f"{name} against arrival rate",
                    f"latency-rate-{metric.value}",
                )
    if len(planned.workload.classes) > 1:
        st.caption("All request classes together; the targets are those of the workload, not of a class.")


def rate_sweep(plan: Plan, planned: PlannedDeployment, progress: Progress) -> LatencyGrowth:
    """The curves, the band and the marks of the charts, by theory."""
    deployment, workload, slo = planned.surviving, planned.workload, planned.slo
    ends = step_time_ends(plan, planned)
    crossings = latencies.crossing_rows(deployment, workload, slo, progress)
    marked = [row["rate_per_s"] for row in crossings if row["crosses"]]
    rows = latencies.banded_rate_rows(deployment, workload, slo, ends, latencies.BAND_POINTS, progress, marked)
    sustained = min(row["rate_per_s"] for row in crossings)
    if slo.attainment is not None:
        sustained = sustainable_rate_per_s(deployment, workload, slo, tolerance=latencies.RATE_PRECISION)
    found = headroom(replace(plan, deployments=(planned,)), progress)
    largest = largest_stable_rate_per_s(deployment, workload)
    progress("requests to simulate")
    rates = rates_to_simulate(workload.rate_per_s, sustained, largest)
    runs = tuple((rate, _simulated_requests(deployment, planned, rate)) for rate in rates)
    return LatencyGrowth(tuple(rows), tuple(crossings), sustained, found, largest, runs)


def rates_to_simulate(planned_per_s: float, sustained_per_s: float, largest_per_s: float) -> list[float]:
    """The sustainable rate and some shares of the largest stable one, apart from one another and from the plan's."""
    chosen: list[float] = [planned_per_s]
    for rate in (sustained_per_s, *(share * largest_per_s for share in SIMULATED_LOADS)):
        if 0.0 < rate < largest_per_s and all(
            abs(rate - other) > MIN_RATE_DISTANCE * largest_per_s for other in chosen
        ):
            chosen.append(rate)
    return sorted(chosen[1:])


def _simulated_requests(deployment: Deployment, planned: PlannedDeployment, rate_per_s: float) -> int:
    """Requests of a run; of a recording all, for its first minutes say little about the rest."""
    workload = planned.workload.at_rate(rate_per_s)
    if isinstance(workload.arrivals, RecordedArrivals):
        return len(workload.arrivals.times_s)
    return requests_to_simulate(MIN_SIMULATED_REQUESTS, evaluate(deployment, workload))


def _rate_cards(planned: PlannedDeployment, sweep: LatencyGrowth) -> list[MetricCard]:
    rate, found = planned.workload.rate_per_s, sweep.headroom
    fullest = max(planned.predicted.pools, key=lambda pool: pool.utilisation)
    exact = found.estimated_share
    return [
        MetricCard.named(
            "card-latency-growth-planned-rate",
            f"{significant(rate)}/s",
            f"{percent(rate / sweep.largest_per_s)} of the largest stable rate",
        ),
        MetricCard.named(
            "card-latency-growth-sustainable-rate",
            f"{significant(rate * (1.0 + found.share))}/s",
            "" if exact is None else f"{significant(rate * (1.0 + exact))}/s if exact",
        ),
        MetricCard.named(
            "card-latency-growth-headroom-of-this-deployment",
            change(found.share) if found.share < FACTOR_FROM else f"{significant(1.0 + found.share)} x",
            headline.headroom_words(found),
        ),
        MetricCard.named(
            "card-latency-growth-largest-stable-rate",
            f"{significant(sweep.largest_per_s)}/s",
            f"{fullest.role} pool: {fullest.limit.replace('_', ' ')}",
        ),
    ]


def _first_violations_in_words(planned: PlannedDeployment, sweep: LatencyGrowth) -> str:
    """Which targets are missed as traffic grows, in order."""
    order = sorted(sweep.crossings, key=lambda row: row["rate_per_s"])
    if planned.slo.attainment is not None:
        return (
            f"{percent(planned.slo.attainment)} of the requests are within all thresholds at once up to "
            f"{significant(sweep.sustained_per_s)} requests/s; triangles show up to which rate single percentiles hold."
        )
    clauses = [
        f"{row['target']} {'at' if index else 'is missed first, above'} {significant(row['rate_per_s'])} requests/s"
        if row["crosses"]
        else f"{row['target']} holds up to the limit of stability"
        if row["rate_per_s"] > 0.0
        else f"{row['target']} is missed even without load"
        for index, row in enumerate(order)
    ]
    return f"As traffic grows, by theory alone, {', then '.join(clauses)}."


def _simulations(
    page: Page, planned: PlannedDeployment, sweep: LatencyGrowth, key: tuple[object, ...]
) -> list[Performance]:
    """The plan's own simulation and others at several rates: at once where they take a moment, else by a button."""
    if not page.plan.simulated:
        st.caption("Simulated points appear once the plan has been checked by simulation.")
        return []
    total = sum(requests for _, requests in sweep.runs)
    if total > AUTOMATIC_REQUESTS and results.store().get(key) is None:
        is_pressed = st.button(
            **fields.widget("latency-simulate"),
            help=f"About {results.duration_text(total / SIMULATED_REQUESTS_PER_S)}: simulates {total:,} requests one "
            f"by one at {len(sweep.runs)} rates and shows their percentiles beside the curves.",
        )
        if not is_pressed:
            return [planned.simulated]

    compute = partial(latencies.simulated_at_rates, planned.surviving, planned.workload, sweep.runs, page.request.seed)
    return [planned.simulated, *results.compute_once(key, compute, "Simulating at several rates")]
