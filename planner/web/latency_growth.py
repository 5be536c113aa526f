"""Of the tab *Latency*: percentiles against the arrival rate, and up to where the targets hold."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from planner.charts import Row, latencies
from planner.core import change, percent, significant
from planner.fleet import PlannedDeployment, calibration_ends, requests_for
from planner.serving import Deployment, Performance, evaluate, largest_stable_rate_per_s, sustainable_rate_per_s
from planner.web import components, results
from planner.web.components import Figure
from planner.web.latency_targets import INTERVAL
from planner.web.results import Page, Say

PANEL_WIDTH_PX = 510
"""Two charts in a row on a wide page, one on a narrow one."""
SIMULATED_LOADS = (0.3, 0.5, 0.8, 0.95)
"""Shares of the largest stable rate that are simulated beside the sustainable one."""
POINTS = latencies.BAND_POINTS
"""Rates of the sweep."""
LEAST_SIMULATED = 2000
"""Requests of each of these simulations, or more where they last long: twenty beyond a p99."""
AUTOMATIC = 40_000
"""Requests in all that are simulated unasked: up to four seconds."""
SIMULATED_PER_S = 10_000
"""Requests simulated in a second, about: what a button says of its time."""
MANY = 10.0
"""Headroom from which it is written as a factor."""
APART = 0.02
"""Relative difference from which two rates are simulated apart."""
HEIGHT_PX = 430
"""Of a chart, with its title and axes."""


@dataclass(frozen=True)
class Growth:
    """Latencies of a deployment as its traffic grows.

    Attributes:
        rows: of `planner.charts.latencies.banded_rate_rows`.
        crossings: of `crossing_rows`.
        sustained_per_s: rate at which all targets hold [1/s]: as fitted.
        ends_per_s: with slow and with fast kernels; None when uncalibrated.
        largest_per_s: largest stable rate [1/s].
        runs: other rates [1/s] to simulate, with requests for each.
    """

    rows: tuple[Row, ...]
    crossings: tuple[Row, ...]
    sustained_per_s: float
    ends_per_s: tuple[float, float] | None
    largest_per_s: float
    runs: tuple[tuple[float, int], ...]


def show(page: Page, planned: PlannedDeployment, key: tuple[object, ...]) -> None:
    """Percentiles against the rate, by theory with the calibration's band, and simulated.

    Args:
        page: what is shown.
        planned: the deployment it is about.
        key: tells it from every other.
    """
    st.subheader("What happens when traffic grows?")
    found = results.kept(("latency growth", *key), lambda say: growth(planned, say), "Sweeping the arrival rate")
    components.figures(_growth_figures(planned, found))
    st.markdown(components.plain(_what_gives(planned, found)))
    simulated = _simulations(page, planned, found, ("latency simulated", *key))
    points = latencies.simulated_rate_rows(simulated, planned.slo)
    with st.container(horizontal=True):
        for metric in latencies.shown_metrics(planned.slo):
            name = metric.value.upper()
            picture = latencies.rate_panel(
                found.rows, planned.slo, metric, found.crossings, points, planned.judged.summary
            )
            rows = [{"source": "theory", **row} for row in found.rows if row["metric"] == name]
            rows += [{"source": "simulated", **row} for row in points if row["metric"] == name]
            with st.container(width=PANEL_WIDTH_PX):
                components.chart(
                    picture.properties(height=HEIGHT_PX),
                    rows,
                    f"{name} against arrival rate",
                    f"latency-rate-{metric.value}",
                )
    if len(planned.workload.classes) > 1:
        st.caption("All classes of requests together; targets are those of the first promise.")


def growth(planned: PlannedDeployment, say: Say) -> Growth:
    """Theory's part of the picture: what the curves, the band and the marks are drawn from."""
    deployment, workload, slo = planned.judged, planned.workload, planned.slo
    rows = latencies.banded_rate_rows(deployment, workload, slo, POINTS, say)
    crossings = latencies.crossing_rows(deployment, workload, slo, say)
    sustained = min(row["rate_per_s"] for row in crossings)
    if slo.attainment is not None:
        sustained = sustainable_rate_per_s(deployment, workload, slo, tolerance=latencies.RATE_PRECISION)
    ends = calibration_ends(deployment)
    both = None
    if ends is not None:
        say("the rate that slow and fast kernels sustain")
        fast, slow = (sustainable_rate_per_s(end, workload, slo, tolerance=latencies.RATE_PRECISION) for end in ends)
        both = (slow, fast)
    largest = largest_stable_rate_per_s(deployment, workload)
    say("requests to simulate")
    wanted = rates_to_simulate(workload.rate_per_s, sustained, largest)
    runs = tuple((rate, _requests(deployment, planned, rate)) for rate in wanted)
    return Growth(tuple(rows), tuple(crossings), sustained, both, largest, runs)


def rates_to_simulate(planned_per_s: float, sustained_per_s: float, largest_per_s: float) -> list[float]:
    """The sustainable rate and some shares of the largest stable one, apart from one another and from the plan's."""
    chosen: list[float] = [planned_per_s]
    for rate in (sustained_per_s, *(share * largest_per_s for share in SIMULATED_LOADS)):
        if 0.0 < rate < largest_per_s and all(abs(rate - other) > APART * largest_per_s for other in chosen):
            chosen.append(rate)
    return sorted(chosen[1:])


def _requests(deployment: Deployment, planned: PlannedDeployment, rate_per_s: float) -> int:
    return requests_for(LEAST_SIMULATED, evaluate(deployment, planned.workload.at_rate(rate_per_s)))


def _growth_figures(planned: PlannedDeployment, found: Growth) -> list[Figure]:
    rate = planned.workload.rate_per_s
    ends = ""
    if found.ends_per_s is not None:
        slow, fast = found.ends_per_s
        ends = f"{significant(slow)} to {significant(fast)}/s ({INTERVAL})"
    headroom = found.sustained_per_s / rate - 1.0
    fullest = max(planned.predicted.pools, key=lambda pool: pool.utilisation)
    lowest = "" if found.ends_per_s is None else f"{change(found.ends_per_s[0] / rate - 1.0)} if slow"
    return [
        Figure(
            "Planned rate",
            f"{significant(rate)}/s",
            "Requests per second routed to this deployment in the period of the largest demand. (given)",
            f"{percent(rate / found.largest_per_s)} of the largest stable rate",
        ),
        Figure(
            "Sustainable rate",
            f"{significant(found.sustained_per_s)}/s",
            "Largest arrival rate at which every target holds, without the replicas that may fail. (predicted) "
            "Interval: with kernels at the slow and at the fast end of the calibration.",
            ends,
        ),
        Figure(
            "Headroom",
            change(headroom) if headroom < MANY else f"{significant(1.0 + headroom)} x",
            "Sustainable over planned rate, less one. (predicted) Below: with kernels at the slow end of the "
            "calibration's interval.",
            lowest,
        ),
        Figure(
            "Largest stable rate",
            f"{significant(found.largest_per_s)}/s",
            "Above it queues grow without bound. (predicted from step times) Below: what runs out first.",
            f"{fullest.role} pool: {fullest.limit.replace('_', ' ')}",
        ),
    ]


def _what_gives(planned: PlannedDeployment, found: Growth) -> str:
    """Which target gives first, and how the other ends stand."""
    order = sorted(found.crossings, key=lambda row: row["rate_per_s"])
    if planned.slo.attainment is not None:
        return (
            f"{percent(planned.slo.attainment)} of the requests are within all thresholds at once up to "
            f"{significant(found.sustained_per_s)} requests/s; triangles show where single percentiles give."
        )
    said = [
        f"{row['target']} {'at' if place else 'gives first, at'} {significant(row['rate_per_s'])} requests/s"
        if row["crosses"]
        else f"{row['target']} holds up to the limit of stability"
        if row["rate_per_s"] > 0.0
        else f"{row['target']} is missed even without load"
        for place, row in enumerate(order)
    ]
    return f"As traffic grows, {', then '.join(said)}."


def _simulations(page: Page, planned: PlannedDeployment, found: Growth, key: tuple[object, ...]) -> list[Performance]:
    """The plan's own simulation and others at several rates: at once where they take a moment, else by a button."""
    if not page.plan.simulated:
        st.caption("Simulated points appear once the plan has been checked by simulation.")
        return []
    total = sum(requests for _, requests in found.runs)
    if total > AUTOMATIC and results.store().get(key) is None:
        asked = st.button(
            f"Simulate at {len(found.runs)} more rates, about {total / SIMULATED_PER_S:,.0f} s",
            key="latency-simulate",
            icon=":material/play_arrow:",
            help=f"Plays {total:,} requests one by one and puts their percentiles beside the curves.",
        )
        if not asked:
            return [planned.simulated]

    def make(say: Say) -> list[Performance]:
        seed = page.request.seed
        return latencies.simulated_at_rates(planned.judged, planned.workload, found.runs, seed, say)

    return [planned.simulated, *results.kept(key, make, "Simulating at several rates")]
