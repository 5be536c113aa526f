"""Demand over a day or a week, and the fleet that follows it."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from planner.charts.marks import BLUE, GREEN, ORANGE, SKY, VERMILLION, Row, inline_chart, layered, titled
from planner.fleet import Plan
from planner.traffic import HOURS_PER_DAY, MeasuredProfile

MEAN, HIGHEST = "mean", "highest ever recorded"
DEMAND, CAPACITY = "demand", "capacity"
SKU_STYLES = ((BLUE, [1, 0]), (ORANGE, [8, 3]), (GREEN, [2, 2]), (VERMILLION, [10, 3, 2, 3]), (SKY, [4, 6]))
"""Colour and dash of one SKU after another."""
HEIGHT_PX = 320


# --- a profile --------------------------------------------------------------------------------------------------------


def profile_rows(measured: MeasuredProfile, rate_per_s: float) -> list[Row]:
    """The rate of every period of a recorded profile, when factor 1 stands for `rate_per_s` [1/s].

    Returns rows with curve (`MEAN` of the recorded days or weeks, `HIGHEST` of them), period (from 0), hour (its start
    [h]), end_hour [h], factor and rate_per_s [1/s] = factor x rate. Where one cycle was recorded there
    is no second curve.
    """
    hours = measured.profile.period_hours
    curves = [(MEAN, measured.profile.factors)]
    if max(measured.seen) > 1:
        curves.append((HIGHEST, measured.highest))
    return [
        {
            "curve": curve,
            "period": period,
            "hour": period * hours,
            "end_hour": (period + 1) * hours,
            "factor": factor,
            "rate_per_s": factor * rate_per_s,
        }
        for curve, factors in curves
        for period, factor in enumerate(factors)
    ]


def profile_curve(measured: MeasuredProfile, rate_per_s: float, name: str) -> alt.LayerChart:
    """A recorded day or week at a mean rate, as steps; dashed the highest that each hour ever was."""
    rows = profile_rows(measured, rate_per_s)
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    styles = {MEAN: (BLUE, [1, 0]), HIGHEST: (ORANGE, [4, 3])}
    color = alt.Color(
        "curve:N",
        title=None,
        scale=alt.Scale(domain=curves, range=[styles[curve][0] for curve in curves]),
        legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=400) if len(curves) > 1 else None,
    )
    dash = alt.StrokeDash(
        "curve:N",
        title=None,
        scale=alt.Scale(domain=curves, range=[styles[curve][1] for curve in curves]),
        legend=alt.Legend(orient="top", symbolType="stroke", symbolSize=400) if len(curves) > 1 else None,
    )
    tooltip = [
        alt.Tooltip("hour:Q", title="From hour"),
        alt.Tooltip("curve:N", title="Curve"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("factor:Q", title="Times the mean", format=".2f"),
    ]
    steps = inline_chart(_closed(rows)).mark_line(interpolate="step-after", strokeWidth=2.5)
    y = alt.Y("rate_per_s:Q", title="Requests/s", scale=alt.Scale(zero=True))
    total = len(measured.profile.factors) * measured.profile.period_hours
    peak = f"Peak {max(measured.profile.factors):.2f} times the mean. Hours count from the start of the recording."
    title = titled(f"Demand at a mean of {rate_per_s:,.4g} requests/s", [f"Recorded: {name}.", peak])
    layers = [steps.encode(x=_hours(total), y=y, color=color, strokeDash=dash, tooltip=tooltip)]
    return layered(layers, title, HEIGHT_PX, f"Demand by hour of {name}")


def _closed(rows: Sequence[Row]) -> list[Row]:
    """The rows, and of each curve its last one again where it ends, so that its last step is seen."""
    last = {row.get("curve", row.get("sku")): row for row in rows}
    return [*rows, *({**row, "hour": row["end_hour"]} for row in last.values())]


def _hours(total: float) -> alt.X:
    is_day = total <= HOURS_PER_DAY
    values = [place * (3.0 if is_day else HOURS_PER_DAY) for place in range(int(total / (3 if is_day else 24)) + 1)]
    title = "Hour of the day" if is_day else "Hour of the week"
    scale = alt.Scale(domain=[0.0, total], nice=False)
    return alt.X("hour:Q", title=title, scale=scale, axis=alt.Axis(values=values, grid=not is_day))


# --- the fleet over it ------------------------------------------------------------------------------------------------


def schedule_rows(plan: Plan, capacities_per_s: Sequence[float | None]) -> list[Row]:
    """Demand, capacity and GPUs of a plan by period of its profile; none without one.

    Args:
        plan: with a schedule.
        capacities_per_s: by period, as `planner.analysis.purchase_alternatives.period_capacities_per_s` [1/s].

    Returns rows with period (name), hour (start [h]), end_hour [h], demand_per_s, served_per_s (with work that may
    wait), capacity_per_s (None: unknown) [1/s], gpus (all together), by_sku (in words) and usd_per_hour [USD/h].
    """
    rows: list[Row] = []
    start = 0.0
    for period, capacity in zip(plan.schedule, capacities_per_s, strict=True):
        rows.append(
            {
                "period": period.name,
                "hour": start,
                "end_hour": start + period.hours,
                "demand_per_s": period.demand_per_s,
                "served_per_s": period.served_per_s,
                "capacity_per_s": capacity,
                "gpus": sum(period.gpus.values()),
                "by_sku": " + ".join(f"{count:,.0f} x {sku}" for sku, count in period.gpus.items() if count),
                "usd_per_hour": period.usd_per_hour,
            }
        )
        start += period.hours
    return rows


def schedule_demand(plan: Plan, capacities_per_s: Sequence[float | None]) -> alt.LayerChart:
    """What is asked and what the fleet could carry, by hour: demand as an area, capacity as a line above it.

    Hours whose capacity is None (`planner.analysis.purchase_alternatives.period_capacities_per_s` says why) are gaps in
    the line.
    """
    rows = schedule_rows(plan, capacities_per_s)
    both = [
        {**row, "curve": curve, "rate_per_s": row[field]}
        for curve, field in ((DEMAND, "demand_per_s"), (CAPACITY, "capacity_per_s"))
        for row in rows
    ]
    total = rows[-1]["end_hour"] if rows else HOURS_PER_DAY
    x = _hours(total)
    y = alt.Y("rate_per_s:Q", title="Requests/s", scale=alt.Scale(zero=True))
    color = alt.Color(
        "curve:N",
        title=None,
        scale=alt.Scale(domain=[DEMAND, CAPACITY], range=[SKY, BLUE]),
        legend=alt.Legend(orient="top"),
    )
    tooltip = [
        alt.Tooltip("period:N", title="Period"),
        alt.Tooltip("demand_per_s:Q", title="Demand (requests/s)", format=",.4~r"),
        alt.Tooltip("capacity_per_s:Q", title="Capacity (requests/s)", format=",.4~r"),
        alt.Tooltip("by_sku:N", title="GPUs"),
        alt.Tooltip("usd_per_hour:Q", title="USD/hour", format=",.2f"),
    ]
    ends = _closed(both)
    area = inline_chart([row for row in ends if row["curve"] == DEMAND]).mark_area(
        interpolate="step-after", opacity=0.6
    )
    line = inline_chart([row for row in ends if row["curve"] == CAPACITY]).mark_line(
        interpolate="step-after", strokeWidth=2.5, invalid="break-paths-show-path-domains"
    )
    gaps = any(row["capacity_per_s"] is None for row in rows)
    subtitle = "Capacity: what the replicas that are on sustain, by theory."
    subtitle += " Gaps: not known." if gaps else ""
    title = titled("Demand and capacity by hour", subtitle)
    layers = [
        area.encode(x=x, y=y, color=color, tooltip=tooltip),
        line.encode(x=x, y=y, color=color, tooltip=tooltip),
    ]
    return layered(layers, title, HEIGHT_PX, "Demand and capacity by hour")


def schedule_gpu_rows(plan: Plan) -> list[Row]:
    """GPUs held by SKU and period: sku, period, hour, end_hour [h], gpus. SKUs that are never held have no rows."""
    skus = list(dict.fromkeys(sku for period in plan.schedule for sku in period.gpus))
    rows: list[Row] = []
    start = 0.0
    for period in plan.schedule:
        rows += [
            {
                "sku": sku,
                "period": period.name,
                "hour": start,
                "end_hour": start + period.hours,
                "gpus": period.gpus.get(sku, 0.0),
            }
            for sku in skus
        ]
        start += period.hours
    held = {row["sku"] for row in rows if row["gpus"] > 0.0}
    return [row for row in rows if row["sku"] in held]


def schedule_gpus(plan: Plan) -> alt.LayerChart:
    """GPUs held by hour, a line for each SKU."""
    rows = schedule_gpu_rows(plan)
    skus = list(dict.fromkeys(row["sku"] for row in rows))
    styles = [SKU_STYLES[place % len(SKU_STYLES)] for place in range(len(skus))]
    legend = alt.Legend(orient="top", symbolType="stroke", symbolSize=400)
    color = alt.Color(
        "sku:N", title=None, scale=alt.Scale(domain=skus, range=[style[0] for style in styles]), legend=legend
    )
    dash = alt.StrokeDash(
        "sku:N", title=None, scale=alt.Scale(domain=skus, range=[style[1] for style in styles]), legend=legend
    )
    tooltip = [
        alt.Tooltip("period:N", title="Period"),
        alt.Tooltip("sku:N", title="SKU"),
        alt.Tooltip("gpus:Q", title="GPUs held", format=",.0f"),
    ]
    total = rows[-1]["end_hour"] if rows else HOURS_PER_DAY
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(zero=True), axis=alt.Axis(tickMinStep=1))
    steps = inline_chart(_closed(rows)).mark_line(interpolate="step-after", strokeWidth=2.5)
    layers = [steps.encode(x=_hours(total), y=y, color=color, strokeDash=dash, tooltip=tooltip)]
    most = {sku: max(row["gpus"] for row in rows if row["sku"] == sku) for sku in skus}
    title = titled(
        "GPUs held by hour", "At most " + " and ".join(f"{count:,.0f} x {sku}" for sku, count in most.items())
    )
    return layered(layers, title, HEIGHT_PX, "GPUs by hour")
