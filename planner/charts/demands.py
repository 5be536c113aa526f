"""Lengths of requests, demand over a day or a week or around the world, and the fleets that follow it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import altair as alt
import numpy as np

from hardware_db import HardwareDb, sku_words
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
    bars_px,
    colored,
    dots,
    inline_chart,
    layered,
    lines,
    present,
    series,
    stroke_legend,
    titled,
    tooltip,
    words,
)
from planner.core import with_unit
from planner.fleet import Plan, RegionsPlan
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
        held = " + ".join(f"{count:,.0f} × {sku}" for sku, count in period.gpus.items() if count)
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
    rows = [row | {"sku": sku_words(row["sku"])} for row in schedule_gpu_rows(plan)]
    most: dict[str, float] = {}
    for row in rows:
        most[row["sku"]] = max(row["gpus"], most.get(row["sku"], 0.0))
    look = series("sku", dict(zip(most, cycle(SKU_STYLES), strict=False)), stroke_legend(list(most)))
    y = axis(alt.Y, "gpus", "GPUs", tickMinStep=1)
    shown = tooltip("period", "sku", gpus="GPUs held")
    drawn = lines(_with_ends(rows, "sku"), shown, AFTER, x=_hour_axis(rows), y=y, **look)
    held = " and ".join(f"{count:,.0f} × {sku}" for sku, count in most.items())
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


# --- around the world -------------------------------------------------------------------------------------------------

MAP_MARGINS_DEGREES = {"longitude": 50.0, "latitude": 12.0}
"""Around what a map shows, for its labels."""
BAND_PX, AREA_SHARE = 40, 0.8
"""Of the band of an area: distance to the next [px], and its height as a share of that."""


def route_rows(plan: RegionsPlan) -> list[Row]:
    """Who is served from where in every hour of UTC.

    Returns rows with area, region, hour, end_hour [h], share of the area's requests, rate_per_s [1/s], and the band in
    which an area's shares of an hour lie on one another (from_band, to_band). Fleets of one region count together.
    """
    rows: list[Row] = []
    for band, (area, rates) in enumerate(plan.rates_per_s.items()):
        by_region: dict[str, np.ndarray[Any, Any]] = {}
        for fleet in (one for one in plan.fleets if area in one.shares):
            by_region[fleet.site.name] = by_region.get(fleet.site.name, 0.0) + np.array(fleet.shares[area])
        for hour, rate in enumerate(rates):
            top = float(band)
            for region, shares in by_region.items():
                share = float(shares[hour])
                row = {"area": area, "region": region, "hour": hour, "end_hour": hour + 1, "share": share}
                bottom = top + AREA_SHARE * share
                rows.append({**row, "rate_per_s": rate * share, "from_band": top, "to_band": bottom})
                top = bottom
    return [row for row in rows if row["share"] > 0.0]


def route_chart(plan: RegionsPlan) -> alt.LayerChart:
    """A band for every area: by hour of UTC, the colours of the regions that serve it."""
    rows = route_rows(plan)
    areas, names = list(plan.rates_per_s), json.dumps(list(plan.rates_per_s))
    labels: dict[str, Any] = {
        "labelExpr": f"{names}[floor(datum.value)]",
        "values": [place + AREA_SHARE / 2 for place in range(len(areas))],
    }
    scale = alt.Scale(domain=[len(areas) - 1.0 + AREA_SHARE, 0.0], nice=False)
    y = axis(alt.Y, "from_band", "", scale=scale, grid=False, ticks=False, domain=False, **labels)
    drawn = (
        inline_chart(rows)
        .mark_rect()
        .encode(
            x=_hour_axis(rows).title("Hour of UTC"),
            x2="end_hour:Q",
            y=y,
            y2="to_band:Q",
            color=_of_regions(plan),
            tooltip=tooltip("area", "region", "hour", "rate_per_s", share="Share of its requests"),
        )
    )
    title = titled("Who is served from where", "A band for each area of users, filled by the regions that serve it.")
    height_px = bars_px(len(areas), BAND_PX, legend=True)
    return layered([drawn], title, height_px, "Regions that serve each area, by hour of UTC")


def _of_regions(plan: RegionsPlan) -> alt.Color:
    sites = dict.fromkeys(fleet.site.name for fleet in plan.fleets)
    return colored("region", {name: color for name, (color, _) in zip(sites, cycle(SKU_STYLES), strict=False)})


def map_rows(plan: RegionsPlan, hardware: HardwareDb) -> list[Row]:
    """Areas and the regions that serve them.

    Returns a row for each pair with area, region, share (of a day's requests), latency (the longest at the user, in
    words) and the places of both: area_longitude, area_latitude, longitude, latitude (of the region) [degrees].
    """
    areas = {area.name: area for area in hardware.areas}
    places = {f"{place.provider} {place.region}": place for place in hardware.distances}
    served: dict[tuple[str, str], float] = {}
    for row in route_rows(plan):
        served[row["area"], row["region"]] = served.get((row["area"], row["region"]), 0.0) + row["rate_per_s"]
    rows: list[Row] = []
    for (area, region), rate_per_s in served.items():
        seen = [one for one in plan.latencies if (one.area, one.site) == (area, region)]
        longest = max(seen, key=lambda one: one.at_user_s, default=None)
        latency = "" if longest is None else with_unit(longest.at_user_s, longest.target.metric)
        row = {"area": area, "region": region, "share": rate_per_s / sum(plan.rates_per_s[area]), "latency": latency}
        row |= {"area_longitude": areas[area].longitude, "area_latitude": areas[area].latitude}
        rows.append(row | {"longitude": places[region].longitude, "latitude": places[region].latitude})
    return rows


def world_map(plan: RegionsPlan, hardware: HardwareDb) -> alt.LayerChart:
    """Areas (circles) at their longitude and latitude, joined to the regions (squares) that serve them."""
    rows = map_rows(plan, hardware)
    ends = {
        name: (min(found) - margin, max(found) + margin)
        for name, margin in MAP_MARGINS_DEGREES.items()
        if (found := [row[column] for row in rows for column in (name, f"area_{name}")])
    }

    def at(place: str) -> dict[str, Any]:
        """Encodings of areas or of regions."""
        look: dict[str, Any] = {"labels": False, "ticks": False, "domain": False}
        return {
            "x": axis(alt.X, f"{place}longitude", "", ends["longitude"], values=list(range(-180, 181, 30)), **look),
            "y": axis(alt.Y, f"{place}latitude", "", ends["latitude"], values=list(range(-90, 91, 30)), **look),
        }

    shown = tooltip("area", "region", "latency", share="Share of its requests")
    width = alt.StrokeWidth("share:Q", legend=None, scale=alt.Scale(domain=[0.0, 1.0], range=[1.0, 5.0]))
    color, far_end = _of_regions(plan), {"x2": "area_longitude:Q", "y2": "area_latitude:Q"}
    joined = inline_chart(rows).mark_rule(opacity=0.7)
    layers = [
        joined.encode(**at(""), **far_end, color=color, strokeWidth=width, tooltip=shown),
        dots(rows, shown, size=150, shape="square", **at(""), color=color),
        dots(rows, shown, size=90, color=GREY, **at("area_")),
    ]
    for name, place, dy in (("area", "area_", 15), ("region", "", -15)):
        named = {row[name]: {**row, "label": f"{row[name]} {row['latency'] if place else ''}"} for row in rows}
        layers.append(words(named.values(), GREY, "center", dy=dy).encode(**at(place)))
    title = titled(
        "Where users are, and where they are served",
        "Circles: areas, with the longest latency at their users. Squares: regions.",
    )
    return layered(layers, title, HEIGHT_PX, "Areas and the regions that serve them, by longitude and latitude")
