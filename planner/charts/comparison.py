"""Bars of several plans side by side: what each costs, what a token costs, how many GPUs, how much is left of a target.

Each chart has a companion that returns its data as rows. A plan on GPUs that were not measured is outlined, the one
that all are held against is darker, and words say both again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from planner.charts.marks import (
    AXIS_HEIGHT_PX,
    BAR_HEIGHT_PX,
    BLUE,
    GREY,
    SKY,
    Row,
    bar_scale,
    change_words,
    inline_chart,
    layered,
    words,
)
from planner.core import UnknownNameError, money, percent, significant
from planner.studies import Side, share_of_threshold

SUBTITLE_PX = 16
"""Height of the second line under the title."""


@dataclass(frozen=True)
class Measure:
    """A figure that plans are compared by.

    Attributes:
        field: of a row.
        title: what it is, at the start of a chart's title.
        axis: the same with its unit.
        kind: "usd", "count" or "share": how it is written.
    """

    field: str
    title: str
    axis: str
    kind: str

    def text(self, value: float) -> str:
        """A value as words."""
        if self.kind == "usd":
            return f"${significant(value) if value >= 1000.0 else money(value)}"
        return percent(value) if self.kind == "share" else f"{value:,.0f}"


MEASURES = {
    "Cost per month": Measure("usd_per_month", "Cost per month", "USD per month", "usd"),
    "Cost per million output tokens": Measure(
        "usd_per_million_output_tokens", "Cost per million output tokens", "USD per million output tokens", "usd"
    ),
    "Cost per million input tokens": Measure(
        "usd_per_million_input_tokens", "Cost per million input tokens", "USD per million input tokens", "usd"
    ),
    "GPUs": Measure("gpus", "GPUs", "GPUs", "count"),
    "Tightest target": Measure("tightest_share", "Tightest target", "Latency over its threshold (%)", "share"),
}
"""By what a person chooses them."""


def side_rows(sides: Sequence[Side], reference: Side | None = None) -> list[Row]:
    """The figures of every side, in the order given.

    Returns rows with name, is_reference, is_feasible (it has a fleet), fleet, reason, gpus, is_bound (its cost is at
    least so much), usd_per_month, usd_per_million_input_tokens and usd_per_million_output_tokens [USD], tightest (name
    of the target with the least left), tightest_share (its latency over its threshold), is_fitted and step_times.
    Figures are None without a fleet.
    """
    return [_side_row(one, one is reference) for one in sides]


def _side_row(one: Side, is_reference: bool) -> Row:
    cost = one.plan.cost if one.plan else None
    check = one.tightest if cost else None
    return {
        "name": one.name,
        "is_reference": is_reference,
        "is_feasible": cost is not None,
        "fleet": one.fleet,
        "reason": one.reason,
        "gpus": one.gpus if cost else None,
        "is_bound": cost is None and one.usd_per_month is not None,
        "usd_per_month": one.usd_per_month,
        "usd_per_million_input_tokens": cost.usd_per_million_input_tokens if cost else None,
        "usd_per_million_output_tokens": cost.usd_per_million_output_tokens if cost else None,
        "tightest": check.target.name if check else None,
        "tightest_share": share_of_threshold(check) if check else None,
        "is_fitted": one.is_fitted if cost else None,
        "step_times": one.step_times,
    }


def side_bars(rows: Sequence[Row], measure: str, of: str, subtitle: str) -> alt.LayerChart:
    """One figure of every side as bars; what has no fleet is named.

    Args:
        rows: of `side_rows`.
        measure: a name of `MEASURES`.
        of: what is compared, for the title: ``"each GPU alone"``.
        subtitle: what the figures hold for.

    Raises UnknownNameError for another measure.
    """
    if measure not in MEASURES:
        raise UnknownNameError("measure", measure, MEASURES)
    shown = MEASURES[measure]
    own = next((row[shown.field] for row in rows if row["is_reference"]), None)
    marks = [_labelled(row, shown, own) for row in rows]
    is_share = shown.kind == "share"
    longest = max((mark["end"] for mark in marks), default=0.0) or 1.0
    scale = bar_scale(max(longest, 1.0 if is_share else 0.0), (mark["label"] for mark in marks))
    x = alt.X(
        "end:Q",
        title=shown.axis,
        scale=scale,
        axis=alt.Axis(format="%" if is_share else ",~f", tickCount=5, labelFlush=True),
    )
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=190, labelOverlap=False, domain=False))
    color = alt.condition("datum.is_reference", alt.value(BLUE), alt.value(SKY))
    bars = (
        inline_chart(marks)
        .mark_bar(height={"band": 0.7}, strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            color=color,
            stroke=color,
            fillOpacity=alt.condition("datum.is_fitted === false", alt.value(0.25), alt.value(1.0)),
            tooltip=_tooltip(),
        )
    )
    layers = [bars, words(marks, GREY, "left", dx=6).encode(x=alt.X("label_at:Q", title=shown.axis, scale=scale), y=y)]
    if is_share:
        limit = inline_chart([{"end": 1.0}]).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=GREY)
        layers.append(limit.encode(x=alt.X("end:Q", title=shown.axis, scale=scale)))
    lines = [subtitle, _legend(rows, is_share=is_share)]
    title = alt.TitleParams(f"{shown.title} of {of}", subtitle=lines, anchor="start", subtitleColor=GREY)
    return layered(layers, title, SUBTITLE_PX + AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows), f"{shown.axis} of {of}")


def _labelled(row: Row, measure: Measure, own: float | None) -> Row:
    """A row with the end of its bar and the words behind it."""
    value = row[measure.field]
    if value is None:
        return {**row, "end": 0.0, "label_at": 0.0, "label": "not planned closer" if row["is_bound"] else "no fleet"}
    label = measure.text(value)
    if measure.kind == "share":
        label += f", {row['tightest']}"
    elif own and not row["is_reference"]:
        label += f" ({change_words(value / own - 1.0)})"
    label = f"at least {label}" if row["is_bound"] else label
    label = f"{label}, not measured" if row["is_fitted"] is False else label
    return {**row, "end": value, "label_at": max(value, 1.0) if measure.kind == "share" else value, "label": label}


def _legend(rows: Sequence[Row], *, is_share: bool) -> str:
    """What the looks of the bars mean, as far as they occur."""
    said = ["At most 100 % holds the target." if is_share else "Shorter is better."]
    if any(row["is_reference"] for row in rows):
        said.append("Dark: the reference.")
    if any(row["is_fitted"] is False for row in rows):
        said.append("Outlined: not all GPUs measured.")
    return " ".join(said)


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("name:N", title="Which"),
        alt.Tooltip("fleet:N", title="Fleet"),
        alt.Tooltip("reason:N", title="Why none"),
        alt.Tooltip("gpus:Q", title="GPUs", format=",d"),
        alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
        alt.Tooltip("usd_per_million_input_tokens:Q", title="USD per million input tokens", format=",.3f"),
        alt.Tooltip("usd_per_million_output_tokens:Q", title="USD per million output tokens", format=",.3f"),
        alt.Tooltip("tightest:N", title="Tightest target"),
        alt.Tooltip("tightest_share:Q", title="Of its threshold", format=".0%"),
        alt.Tooltip("step_times:N", title="Step times from"),
    ]
