"""Latency against the arrival rate: percentiles, targets and the planned rate."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from planner.charts.marks import BLUE, GREEN, GREY, ORANGE, SKY, VERMILLION, Row, inline_chart, layered, titled, words
from planner.deployment import Deployment
from planner.errors import InputError
from planner.performance import evaluate
from planner.stages import largest_stable_rate_per_s
from planner.workload import LatencyTarget, Metric, Slo, Workload

LOWEST_LOAD, HIGHEST_LOAD = 0.10, 0.98
"""Ends of a rate sweep as shares of the largest stable rate: a choice; at 1 the queue has no stationary law."""
MAX_POINTS = 25
"""Most evaluations in one sweep, so that a chart never takes longer than its plan."""
DEFAULT_PERCENTILE = 0.99
"""Upper curve of a metric for which the Slo names no percentile."""


def latency_vs_rate_rows(deployment: Deployment, workload: Workload, slo: Slo, points: int = MAX_POINTS) -> list[Row]:
    """Percentiles of TTFT and TPOT (of E2E and ITL where the Slo has a target on it) over arrival rates.

    Rates run from 10 % to 98 % of the largest stable rate, closer together where queues grow, and include the
    workload's own rate (`is_planned`). Each metric has its median and the percentiles of its targets, p99 without any.
    Rates at which the deployment is unstable have no rows.

    Args:
        deployment: what serves.
        workload: lengths and burstiness; its rate is the planned one.
        slo: whose percentiles are shown.
        points: evaluations, 2 to 25.

    Returns rows with metric, percentile ("p99"), rate_per_s [1/s], load (share of the largest stable rate),
    latency_ms [ms] and is_planned. Raises InputError when `points` is out of range or the deployment does not fit.
    """
    if not 2 <= points <= MAX_POINTS:
        raise InputError("points", points, f"must be from 2 to {MAX_POINTS}", "give a number of evaluations in range")
    planned = workload.arrivals.rate_per_s
    largest = largest_stable_rate_per_s(deployment, workload)
    loads = 1.0 - np.geomspace(1.0 - LOWEST_LOAD, 1.0 - HIGHEST_LOAD, points - 1)
    rows: list[Row] = []
    for rate in sorted({*(loads * largest).tolist(), planned}):
        performance = evaluate(deployment, workload.at_rate(rate))
        if not performance.stable:
            continue
        for metric in shown_metrics(slo):
            for percentile in _percentiles(slo, metric):
                latency_s = performance.distribution(metric).quantile_s(percentile)
                rows.append(
                    {
                        "metric": metric.value.upper(),
                        "percentile": f"p{100 * percentile:g}",
                        "rate_per_s": rate,
                        "load": rate / largest,
                        "latency_ms": 1e3 * latency_s,
                        "is_planned": rate == planned,
                    }
                )
    return rows


def shown_metrics(slo: Slo) -> list[Metric]:
    """TTFT and TPOT, and E2E or ITL where the Slo has a target on it: one panel each."""
    asked = {target.metric for target in slo.targets} | {Metric.TTFT, Metric.TPOT}
    return [metric for metric in Metric if metric in asked]


def _percentiles(slo: Slo, metric: Metric) -> list[float]:
    asked = {target.percentile for target in slo.targets if target.metric is metric}
    return sorted({0.5} | (asked or {DEFAULT_PERCENTILE}))


def latency_vs_rate(deployment: Deployment, workload: Workload, slo: Slo, points: int = MAX_POINTS) -> alt.VConcatChart:
    """TTFT and TPOT percentiles against the arrival rate, one panel each, with targets and the planned rate.

    Arguments and errors as `latency_vs_rate_rows`.
    """
    rows = latency_vs_rate_rows(deployment, workload, slo, points)
    return alt.vconcat(*(latency_panel(rows, slo, metric).properties(width=560) for metric in shown_metrics(slo)))


def latency_panel(rows: Sequence[Row], slo: Slo, metric: Metric) -> alt.LayerChart:
    """One metric of `latency_vs_rate_rows` as a chart. The vertical axis ends somewhat above targets and plan."""
    name = metric.value.upper()
    mine = [row for row in rows if row["metric"] == name]
    targets = [target for target in slo.targets if target.metric is metric]
    top = _top_ms(mine, targets)
    shown = [f"p{100 * percentile:g}" for percentile in _percentiles(slo, metric)]
    x = alt.X(
        "rate_per_s:Q",
        title="Arrival rate (requests/s)",
        scale=alt.Scale(zero=True, nice=False),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y("latency_ms:Q", title=f"{name} (ms)", scale=alt.Scale(domain=[0.0, top], nice=False))
    color = alt.Color(
        "percentile:N",
        title=None,
        scale=alt.Scale(domain=shown, range=[SKY, BLUE, GREEN, ORANGE][: len(shown)]),
        legend=alt.Legend(orient="top"),
    )
    tooltip = [
        alt.Tooltip("percentile:N", title="Percentile"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("load:Q", title="Share of the largest stable rate", format=".0%"),
        alt.Tooltip("latency_ms:Q", title=f"{name} (ms)", format=",.4~r"),
    ]
    lines = inline_chart(mine).mark_line(clip=True, strokeWidth=2.5).encode(x=x, y=y, color=color, tooltip=tooltip)
    planned = [row for row in mine if row["is_planned"]]
    dots = inline_chart(planned).mark_point(filled=True, size=80, opacity=1, clip=True)
    layers = [
        lines,
        *_planned_rate(planned[:1], top),
        *_threshold_lines(targets, mine),
        dots.encode(x=x, y=y, color=color, tooltip=tooltip),
    ]
    subtitle = "Percentiles over requests. Dashed line: target. Dots: the planned rate."
    title = titled(f"{name} against arrival rate", subtitle)
    return layered(layers, title, 360, f"{name} percentiles over arrival rate")


def _top_ms(rows: Sequence[Row], targets: Sequence[LatencyTarget]) -> float:
    """End of the vertical axis [ms]: 1.6 times what must be seen, so that saturation does not flatten the rest."""
    marks = [1e3 * target.threshold_s for target in targets]
    marks += [row["latency_ms"] for row in rows if row["is_planned"]]
    if not marks:
        marks = [row["latency_ms"] for row in rows]
    return 1.6 * max(marks, default=1.0) or 1.0


def _threshold_lines(targets: Sequence[LatencyTarget], rows: Sequence[Row]) -> list[alt.Chart]:
    left = min((row["rate_per_s"] for row in rows), default=0.0)
    values = [
        {
            "latency_ms": 1e3 * target.threshold_s,
            "rate_per_s": left,
            "label": f"target: {target.name.split()[0]} ≤ {1e3 * target.threshold_s:,.4g} ms",
        }
        for target in targets
    ]
    if not values:
        return []
    rule = inline_chart(values).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=VERMILLION).encode(y="latency_ms:Q")
    return [rule, words(values, VERMILLION, "left", dy=-8).encode(x="rate_per_s:Q", y="latency_ms:Q")]


def _planned_rate(planned: Sequence[Row], top_ms: float) -> list[alt.Chart]:
    if not planned:
        return []
    rate = planned[0]["rate_per_s"]
    rows = [{"rate_per_s": rate, "latency_ms": top_ms, "label": f"planned {rate:,.4g}/s"}]
    rule = inline_chart(rows).mark_rule(color=GREY, strokeWidth=1.5).encode(x="rate_per_s:Q")
    is_right = planned[0]["load"] > 0.5  # the label goes where there is room
    text = words(rows, GREY, "right" if is_right else "left", dx=-6 if is_right else 6, dy=10)
    return [rule, text.encode(x="rate_per_s:Q", y="latency_ms:Q")]
