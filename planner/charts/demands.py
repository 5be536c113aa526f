"""What is asked: lengths of requests, demand over a day or a week, and the fleet that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import altair as alt
import numpy as np

from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    inline_chart,
    layered,
    legend_of,
    line_styles,
    stroke_legend,
    titled,
)
from planner.fleet import Plan
from planner.traffic import HOURS_PER_DAY, MeasuredProfile
from planner.workload import TokenLengths

MEAN, HIGHEST = "mean", "highest ever recorded"
DEMAND, CAPACITY = "demand", "capacity"
SKU_STYLES = ((BLUE, [1, 0]), (ORANGE, [8, 3]), (GREEN, [2, 2]), (VERMILLION, [10, 3, 2, 3]), (SKY, [4, 6]))
"""Colour and dash of one SKU after another."""
HEIGHT_PX, HISTOGRAM_HEIGHT_PX = 320, 70
HISTOGRAM_BINS_PER_DOUBLING = 2
"""Bars of a histogram for each doubling of the length. A choice."""


# --- lengths ----------------------------------------------------------------------------------------------------------


def length_rows(lengths: TokenLengths) -> list[Row]:
    """Shares of requests by input and by output length, in bins of equal width on a logarithmic axis.

    Returns rows with side ("input" or "output"), from_tokens, to_tokens (of the bar) and share (of all requests); the
    shares of a side sum to 1. Bars without requests are left out.
    """
    rows: list[Row] = []
    for side, tokens in (("input", lengths.inputs), ("output", lengths.outputs)):
        bins = np.floor(HISTOGRAM_BINS_PER_DOUBLING * np.log2(tokens) + 1e-9).astype(np.int64)
        shares = np.bincount(bins, lengths.probabilities)
        for index in np.flatnonzero(shares):
            low, high = (2.0 ** (edge / HISTOGRAM_BINS_PER_DOUBLING) for edge in (index, index + 1))
            rows.append({"side": side, "from_tokens": low, "to_tokens": high, "share": float(shares[index])})
    return rows


def length_histogram(lengths: TokenLengths, side: str) -> alt.LayerChart:
    """One side of `length_rows` ("input" or "output") as a small histogram with its mean marked."""
    rows = [{**row, "none": 0.0} for row in length_rows(lengths) if row["side"] == side]
    mean = lengths.mean_input if side == "input" else lengths.mean_output
    axis = alt.Axis(title=f"{side.capitalize()} tokens", format="~s", tickCount=5, grid=False)
    x = alt.X("from_tokens:Q", scale=alt.Scale(type="log", nice=False), axis=axis)
    bars = (
        inline_chart(rows)
        .mark_bar(color=BLUE if side == "input" else ORANGE, binSpacing=0)
        .encode(
            x=x,
            x2="to_tokens:Q",
            y=alt.Y("share:Q", axis=None),
            y2="none:Q",
            tooltip=[
                alt.Tooltip("from_tokens:Q", title="From (tokens)", format=",.0f"),
                alt.Tooltip("to_tokens:Q", title="To (tokens)", format=",.0f"),
                alt.Tooltip("share:Q", title="Share of requests", format=".1%"),
            ],
        )
    )
    line = inline_chart([{"from_tokens": mean}]).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=x)
    return alt.LayerChart(layer=[bars, line], height=HISTOGRAM_HEIGHT_PX, description=f"{side} tokens per request")


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
    """A recorded day or week at a mean rate, as steps; dashed the highest rate recorded for each hour."""
    rows = profile_rows(measured, rate_per_s)
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    styles = {MEAN: (BLUE, [1, 0]), HIGHEST: (ORANGE, [4, 3])}
    legend = stroke_legend(list(styles)) if len(curves) > 1 else None
    color, dash = line_styles("curve", {curve: styles[curve] for curve in curves}, legend)
    tooltip = [
        alt.Tooltip("hour:Q", title="From hour"),
        alt.Tooltip("curve:N", title="Curve"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("factor:Q", title="Times the mean", format=".2f"),
    ]
    steps = inline_chart(_with_ends(rows)).mark_line(interpolate="step-after", strokeWidth=2.5)
    y = alt.Y("rate_per_s:Q", title="Requests/s", scale=alt.Scale(zero=True))
    total = len(measured.profile.factors) * measured.profile.period_hours
    peak = f"Peak {max(measured.profile.factors):.2f} times the mean. Hours count from the start of the recording."
    title = titled(f"Demand at a mean of {rate_per_s:,.4g} requests/s", [f"Recorded: {name}.", peak])
    layers = [steps.encode(x=_hour_axis(total), y=y, color=color, strokeDash=dash, tooltip=tooltip)]
    return layered(layers, title, HEIGHT_PX, f"Demand by hour of {name}")


def _with_ends(rows: Sequence[Row]) -> list[Row]:
    """The rows, with the last one of each curve repeated at its end, so that its last step is drawn."""
    last = {row.get("curve", row.get("sku")): row for row in rows}
    return [*rows, *({**row, "hour": row["end_hour"]} for row in last.values())]


def _hour_axis(total: float) -> alt.X:
    """Hours from 0 to `total` [h], with ticks every three hours of a day and every day of a week."""
    is_day = total <= HOURS_PER_DAY
    values = [tick * (3.0 if is_day else HOURS_PER_DAY) for tick in range(int(total / (3 if is_day else 24)) + 1)]
    title = "Hour of the day" if is_day else "Hour of the week"
    scale = alt.Scale(domain=[0.0, total], nice=False)
    return alt.X("hour:Q", title=title, scale=scale, axis=alt.Axis(values=values, grid=not is_day))


# --- the fleet over it ------------------------------------------------------------------------------------------------


def schedule_rows(plan: Plan, capacities_per_s: Sequence[float | None]) -> list[Row]:
    """Demand, capacity and GPUs of a plan by period of its profile; none without one.

    Args:
        plan: with a schedule.
        capacities_per_s: by period, as `planner.analysis.period_capacities_per_s` [1/s].

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
    """What is asked and what the fleet could serve, by hour: demand as an area, capacity as a line above it.

    Hours whose capacity is None (`planner.analysis.period_capacities_per_s` says why) are gaps in
    the line.
    """
    rows = schedule_rows(plan, capacities_per_s)
    curves = [
        {**row, "curve": curve, "rate_per_s": row[field]}
        for curve, field in ((DEMAND, "demand_per_s"), (CAPACITY, "capacity_per_s"))
        for row in rows
    ]
    total = rows[-1]["end_hour"] if rows else HOURS_PER_DAY
    x = _hour_axis(total)
    y = alt.Y("rate_per_s:Q", title="Requests/s", scale=alt.Scale(zero=True))
    color = alt.Color(
        "curve:N",
        title=None,
        scale=alt.Scale(domain=[DEMAND, CAPACITY], range=[SKY, BLUE]),
        legend=legend_of([DEMAND, CAPACITY]),
    )
    tooltip = [
        alt.Tooltip("period:N", title="Period"),
        alt.Tooltip("demand_per_s:Q", title="Demand (requests/s)", format=",.4~r"),
        alt.Tooltip("capacity_per_s:Q", title="Capacity (requests/s)", format=",.4~r"),
        alt.Tooltip("by_sku:N", title="GPUs"),
        alt.Tooltip("usd_per_hour:Q", title="USD/hour", format=",.2f"),
    ]
    ends = _with_ends(curves)
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
    color, dash = line_styles("sku", dict(zip(skus, cycle(SKU_STYLES), strict=False)), stroke_legend(skus))
    tooltip = [
        alt.Tooltip("period:N", title="Period"),
        alt.Tooltip("sku:N", title="SKU"),
        alt.Tooltip("gpus:Q", title="GPUs held", format=",.0f"),
    ]
    total = rows[-1]["end_hour"] if rows else HOURS_PER_DAY
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(zero=True), axis=alt.Axis(tickMinStep=1))
    steps = inline_chart(_with_ends(rows)).mark_line(interpolate="step-after", strokeWidth=2.5)
    layers = [steps.encode(x=_hour_axis(total), y=y, color=color, strokeDash=dash, tooltip=tooltip)]
    most = {sku: max(row["gpus"] for row in rows if row["sku"] == sku) for sku in skus}
    title = titled(
        "GPUs held by hour", "At most " + " and ".join(f"{count:,.0f} x {sku}" for sku, count in most.items())
    )
    return layered(layers, title, HEIGHT_PX, "GPUs by hour")
