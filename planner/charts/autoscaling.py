"""A day of an autoscaled fleet: demand, replicas beside the schedule, and the share within all targets by time."""

from __future__ import annotations

import altair as alt
import numpy as np

from planner.analysis import AutoscalingDay
from planner.charts.marks import BLUE, GREY, ORANGE, SKY, Row, inline_chart, layered, line_styles, stroke_legend, titled

STYLES = {"autoscaled": (BLUE, [1, 0]), "planned schedule": (ORANGE, [6, 3]), "flat": (GREY, [2, 2])}
MOST_POINTS = 288
"""Points of a line: five minutes of a day. Finer steps are put together. A choice that keeps pages small."""
DEMAND_PX, REPLICAS_PX, ATTAINMENT_PX, WIDTH_PX = 90, 190, 120, 560


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
        paid = np.add.reduceat(fleet.ready + fleet.starting + fleet.draining, groups) / sizes
        ready, backlog = (np.maximum.reduceat(values, groups) for values in (fleet.ready, fleet.backlog))
        rows += [
            {
                "fleet": fleet.name,
                "hour": float(first) * day.step_s / 3600.0,
                "end_hour": float(first + size) * day.step_s / 3600.0,
                "rate_per_s": float(arrived[place] / (size * day.step_s)),
                "ready": int(ready[place]),
                "paid": float(paid[place]),
                "attainment": float(attained[place] / arrived[place]) if arrived[place] > 0.0 else 1.0,
                "backlog": float(backlog[place]),
            }
            for place, (first, size) in enumerate(zip(groups.tolist(), sizes.tolist(), strict=True))
        ]
    return rows


def replicas_panel(day: AutoscalingDay) -> alt.LayerChart:
    """Replicas that are paid for, by time, of each fleet."""
    y = alt.Y("paid:Q", title="Replicas paid for", scale=alt.Scale(zero=True))
    subtitle = "Those that start and drain included."
    return _lines(day, y, titled("Replicas over the day", subtitle), REPLICAS_PX)


def attainment_panel(day: AutoscalingDay) -> alt.LayerChart:
    """The share of requests within all targets, by time, of each fleet."""
    axis = alt.Axis(format="%")
    y = alt.Y("attainment:Q", title="Within all targets", axis=axis, scale=alt.Scale(domain=[0.0, 1.0]))
    title = titled("Requests within all targets", "Share of those that arrive at the time.")
    return _lines(day, y, title, ATTAINMENT_PX)


def demand_panel(day: AutoscalingDay) -> alt.LayerChart:
    """The demand that is played, by time."""
    rows = [row for row in autoscaling_rows(day) if row["fleet"] == day.fleets[0].name]
    area = inline_chart(rows).mark_area(color=SKY, opacity=0.6)
    encoded = area.encode(x=_hours(rows), y=alt.Y("rate_per_s:Q", title="Requests/s"), tooltip=_tooltip())
    return layered([encoded], titled("Demand", "Requests a second."), DEMAND_PX, "Demand over the day")


def autoscaling_chart(day: AutoscalingDay) -> alt.VConcatChart:
    """Demand, replicas and the share within all targets, one above the other."""
    panels = [panel(day).properties(width=WIDTH_PX) for panel in (demand_panel, replicas_panel, attainment_panel)]
    chart: alt.VConcatChart = alt.vconcat(*panels)
    return chart


def _lines(day: AutoscalingDay, y: alt.Y, title: alt.TitleParams, height_px: int) -> alt.LayerChart:
    rows = autoscaling_rows(day)
    styles = {fleet.name: STYLES[fleet.name] for fleet in day.fleets}
    color, dash = line_styles("fleet", styles, stroke_legend(list(styles)))
    lines = inline_chart(rows).mark_line(interpolate="step-after", strokeWidth=2)
    encoded = lines.encode(x=_hours(rows), y=y, color=color, strokeDash=dash, tooltip=_tooltip())
    return layered([encoded], title, height_px, "Fleets over the day")


def _hours(rows: list[Row]) -> alt.X:
    scale = alt.Scale(domain=[0.0, max(row["end_hour"] for row in rows)], nice=False)
    return alt.X("hour:Q", scale=scale, title="Hours from the start")


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("fleet:N", title="Fleet"),
        alt.Tooltip("hour:Q", title="From hour", format=".2f"),
        alt.Tooltip("rate_per_s:Q", title="Demand (requests/s)", format=",.4~r"),
        alt.Tooltip("ready:Q", title="Replicas ready"),
        alt.Tooltip("paid:Q", title="Replicas paid for", format=",.2f"),
        alt.Tooltip("attainment:Q", title="Within all targets", format=".1%"),
        alt.Tooltip("backlog:Q", title="Backlog (requests)", format=",.0f"),
    ]
