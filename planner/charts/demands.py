"""Lengths of requests, demand over a day or a week, and the fleets that follow it: planned and autoscaled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import altair as alt
import numpy as np

from planner.analysis import AutoscalingDay
from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    axis,
    colored,
    inline_chart,
    layered,
    lines,
    present,
    series,
    stroke_legend,
    titled,
    tooltip,
)
from planner.fleet import Plan
from planner.traffic import HOURS_PER_DAY, MeasuredProfile
from planner.workload import TokenLengths

MEAN, HIGHEST = "mean", "highest ever recorded"
PROFILE_STYLES = {MEAN: (BLUE, [1, 0]), HIGHEST: (ORANGE, [4, 3])}
DEMAND, CAPACITY = "demand", "capacity"
SKU_STYLES = ((BLUE, [1, 0]), (ORANGE, [8, 3]), (GREEN, [2, 2]), (VERMILLION, [10, 3, 2, 3]), (SKY, [4, 6]))
"""Colour and dash of one SKU after another."""
FLEET_STYLES = {"autoscaled": (BLUE, [1, 0]), "planned schedule": (ORANGE, [6, 3]), "flat": (GREY, [2, 2])}
HEIGHT_PX, HISTOGRAM_HEIGHT_PX = 320, 70
HISTOGRAM_BINS_PER_DOUBLING = 2
"""Bars of a histogram for each doubling of the length. A choice."""
MOST_POINTS = 288
"""Points of a line: five minutes of a day. Finer steps are put together. A choice that keeps pages small."""
AFTER: Final = "step-after"
"""Lines that keep a value until the next row."""


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
    title = f"{side.capitalize()} tokens"
    x = axis(alt.X, "from_tokens", title, log=True, format="~s", tickCount=5, grid=False)
    bars = inline_chart(rows).mark_bar(color=BLUE if side == "input" else ORANGE, binSpacing=0)
    shown = tooltip("from_tokens", "to_tokens", share="Share of requests")
    drawn = bars.encode(x=x, x2="to_tokens:Q", y=alt.Y("share:Q", axis=None), y2="none:Q", tooltip=shown)
    line = inline_chart([{"from_tokens": mean}]).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=x)
    return alt.LayerChart(layer=[drawn, line], height=HISTOGRAM_HEIGHT_PX, description=f"{side} tokens per request")


# --- a profile --------------------------------------------------------------------------------------------------------


def profile_rows(measured: MeasuredProfile, rate_per_s: float) -> list[Row]:
    """The rate of every period of a recorded profile, when factor 1 stands for `rate_per_s` [1/s].

    Returns rows with curve (`MEAN` of the recorded days or weeks, `HIGHEST` of them), period (from 0), hour (its start
    [h]), end_hour [h], factor and rate_per_s [1/s] = factor x rate. Where one cycle was recorded there
    is no second curve.
    """
    hours = measured.profile.period_hours
    curves = {MEAN: measured.profile.factors} | ({HIGHEST: measured.highest} if max(measured.seen) > 1 else {})
    return [
        {"curve": curve, "period": period, "hour": period * hours, "end_hour": (period + 1) * hours}
        | {"factor": factor, "rate_per_s": factor * rate_per_s}
        for curve, factors in curves.items()
        for period, factor in enumerate(factors)
    ]


def profile_curve(measured: MeasuredProfile, rate_per_s: float, name: str) -> alt.LayerChart:
    """A recorded day or week at a mean rate, as steps; dashed the highest rate recorded for each hour."""
    rows = profile_rows(measured, rate_per_s)
    styles = present(PROFILE_STYLES, rows, "curve")
    peak = f"Peak {max(measured.profile.factors):.2f} times the mean. Hours count from the start of the recording."
    title = titled(f"Demand at a mean of {rate_per_s:,.4g} requests/s", [f"Recorded: {name}.", peak])
    shown = tooltip("hour", "curve", "rate_per_s", "factor")
    look = series("curve", styles, stroke_legend(list(styles)) if len(styles) > 1 else None)
    y = axis(alt.Y, "rate_per_s", "Requests/s")
    drawn = lines(_with_ends(rows, "curve"), shown, AFTER, x=_hour_axis(rows), y=y, **look)
    return layered([drawn], title, HEIGHT_PX, f"Demand by hour of {name}")


def _with_ends(rows: Sequence[Row], column: str) -> list[Row]:
    """The rows, with the last one of each line repeated at its end, so that its last step is drawn."""
    return [*rows, *({**row, "hour": row["end_hour"]} for row in {row[column]: row for row in rows}.values())]


def _hour_axis(rows: Sequence[Row]) -> alt.X:
    """Hours from 0 to the end of the last row, with ticks every three hours of a day and every day of a week."""
    total = max((row["end_hour"] for row in rows), default=HOURS_PER_DAY)
    is_day = total <= HOURS_PER_DAY
    step = 3.0 if is_day else HOURS_PER_DAY
    title = "Hour of the day" if is_day else "Hour of the week"
    values = [tick * step for tick in range(int(total / step) + 1)]
    hours: alt.X = axis(alt.X, "hour", title, [0.0, total], values=values, grid=not is_day)
    return hours


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
        held = " + ".join(f"{count:,.0f} x {sku}" for sku, count in period.gpus.items() if count)
        names = ("demand_per_s", "served_per_s", "usd_per_hour")
        row = {"period": period.name, "hour": start, "end_hour": start + period.hours, "capacity_per_s": capacity}
        rows.append(row | {name: getattr(period, name) for name in names})
        rows[-1] |= {"gpus": sum(period.gpus.values()), "by_sku": held}
        start += period.hours
    return rows


def schedule_demand(plan: Plan, capacities_per_s: Sequence[float | None]) -> alt.LayerChart:
    """Demand and capacity of the fleet by hour: demand as an area, capacity as a line above it.

    Hours whose capacity is None (`planner.analysis.period_capacities_per_s` says why) are gaps in the line.
    """
    rows = schedule_rows(plan, capacities_per_s)
    ends = [*rows, *({**row, "hour": row["end_hour"]} for row in rows[-1:])]  # so that the last step is drawn
    demand = [{**row, "curve": DEMAND, "rate_per_s": row["demand_per_s"]} for row in ends]
    capacity = [{**row, "curve": CAPACITY, "rate_per_s": row["capacity_per_s"]} for row in ends]
    shown = tooltip("period", "demand_per_s", "capacity_per_s", "by_sku", "usd_per_hour")
    color = colored("curve", {DEMAND: SKY, CAPACITY: BLUE})
    place: dict[str, Any] = {"x": _hour_axis(rows), "y": axis(alt.Y, "rate_per_s", "Requests/s"), "color": color}
    area = inline_chart(demand).mark_area(interpolate=AFTER, opacity=0.6).encode(**place, tooltip=shown)
    gaps: Final = "break-paths-show-path-domains"
    line = inline_chart(capacity).mark_line(interpolate=AFTER, strokeWidth=2.5, invalid=gaps)
    subtitle = "Capacity: what the replicas that are on sustain, by theory."
    subtitle += " Gaps: not known." if None in capacities_per_s else ""
    title = titled("Demand and capacity by hour", subtitle)
    return layered([area, line.encode(**place, tooltip=shown)], title, HEIGHT_PX, "Demand and capacity by hour")


def schedule_gpu_rows(plan: Plan) -> list[Row]:
    """GPUs held by SKU and period: sku, period, hour, end_hour [h], gpus. SKUs that are never held have no rows."""
    held = dict.fromkeys(sku for period in plan.schedule for sku, count in period.gpus.items() if count > 0.0)
    rows: list[Row] = []
    start = 0.0
    for period in plan.schedule:
        row: Row = {"period": period.name, "hour": start, "end_hour": start + period.hours}
        rows += [{"sku": sku, **row, "gpus": period.gpus.get(sku, 0.0)} for sku in held]
        start += period.hours
    return rows


def schedule_gpus(plan: Plan) -> alt.LayerChart:
    """GPUs held by hour, a line for each SKU."""
    rows = schedule_gpu_rows(plan)
    most: dict[str, float] = {}
    for row in rows:
        most[row["sku"]] = max(row["gpus"], most.get(row["sku"], 0.0))
    look = series("sku", dict(zip(most, cycle(SKU_STYLES), strict=False)), stroke_legend(list(most)))
    y = axis(alt.Y, "gpus", "GPUs", tickMinStep=1)
    shown = tooltip("period", "sku", gpus="GPUs held")
    drawn = lines(_with_ends(rows, "sku"), shown, AFTER, x=_hour_axis(rows), y=y, **look)
    held = " and ".join(f"{count:,.0f} x {sku}" for sku, count in most.items())
    return layered([drawn], titled("GPUs held by hour", f"At most {held}"), HEIGHT_PX, "GPUs by hour")


# --- an autoscaler ----------------------------------------------------------------------------------------------------


def autoscaling_rows(day: AutoscalingDay) -> list[Row]:
    """Each fleet by time, several steps put together where there are many.

    Returns rows with fleet, hour (start [h]), end_hour [h], rate_per_s (demand, mean [1/s]), ready (most), paid
    (replicas paid for, mean), attainment (share of what arrived) and backlog (most).
    """
    together = -(-day.rates_per_s.size // MOST_POINTS)
    groups = np.arange(0, day.rates_per_s.size, together)
    sizes = np.diff([*groups, day.rates_per_s.size])
    rows: list[Row] = []
    for fleet in day.fleets:
        arrived, attained = (np.add.reduceat(values, groups) for values in (fleet.arrived, fleet.attained))
        columns = {
            "hour": groups * day.step_s / 3600.0,
            "end_hour": (groups + sizes) * day.step_s / 3600.0,
            "rate_per_s": arrived / (sizes * day.step_s),
            "ready": np.maximum.reduceat(fleet.ready, groups),
            "paid": np.add.reduceat(fleet.ready + fleet.starting + fleet.draining, groups) / sizes,
            "attainment": np.where(arrived > 0.0, attained / np.maximum(arrived, 1e-300), 1.0),
            "backlog": np.maximum.reduceat(fleet.backlog, groups),
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        rows += [{"fleet": fleet.name, **dict(zip(columns, cells, strict=True))} for cells in values]
    return rows


def autoscaling_chart(day: AutoscalingDay) -> alt.LayerChart:
    """Replicas that are paid for, by time, of each fleet."""
    rows = autoscaling_rows(day)
    styles = present(FLEET_STYLES, rows, "fleet")
    x = axis(alt.X, "hour", "Hours from the start", [0.0, max(row["end_hour"] for row in rows)])
    y = axis(alt.Y, "paid", "Replicas paid for")
    shown = tooltip("fleet", "hour", "ready", "paid", "attainment", "backlog", rate_per_s="Demand (requests/s)")
    drawn = lines(rows, shown, AFTER, x=x, y=y, **series("fleet", styles, stroke_legend(list(styles))))
    title = titled("Replicas over the day", "Those that start and drain included.")
    return layered([drawn], title, 190, "Fleets over the day")
