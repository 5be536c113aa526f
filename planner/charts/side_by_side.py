"""Several plans side by side as bars: cost, cost of a token, number of GPUs, tightest target.

A plan on GPUs without measurements is outlined, the reference is darker, and the labels say both again.
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
    category_axis,
    change_words,
    inline_chart,
    layered,
    titled,
    words,
)
from planner.core import UnknownNameError, money, percent, significant
from planner.studies import PlanSide, share_of_threshold

SECOND_SUBTITLE_PX = 16
"""Height of the second line under the title."""


@dataclass(frozen=True)
class ComparedQuantity:
    """A quantity that plans are compared by.

    Attributes:
        field: of a row of `side_rows`.
        title: what it is, at the start of a chart's title.
        axis: the same with its unit.
        kind: "usd", "count" or "share", which decides how it is written.
    """

    field: str
    title: str
    axis: str
    kind: str

    def text(self, value: float) -> str:
        """A value as text."""
        if self.kind == "usd":
            return f"${significant(value) if value >= 1000.0 else money(value)}"
        return percent(value) if self.kind == "share" else f"{value:,.0f}"


COMPARED_QUANTITIES = {
    "Cost per month": ComparedQuantity("usd_per_month", "Cost per month", "USD per month", "usd"),
    "Cost per million tokens": ComparedQuantity(
        "usd_per_million_tokens", "Cost per million tokens", "USD per million input and output tokens", "usd"
    ),
    "Cost per million output tokens": ComparedQuantity(
        "usd_per_million_output_tokens", "Cost per million output tokens", "USD per million output tokens", "usd"
    ),
    "Cost per million input tokens": ComparedQuantity(
        "usd_per_million_input_tokens", "Cost per million input tokens", "USD per million input tokens", "usd"
    ),
    "GPUs": ComparedQuantity("gpus", "GPUs", "GPUs", "count"),
    "Tightest target": ComparedQuantity("tightest_share", "Tightest target", "Latency over its threshold (%)", "share"),
}
"""By the name that a person chooses them by."""


def side_rows(sides: Sequence[PlanSide], reference: PlanSide | None = None) -> list[Row]:
    """The quantities of every side, in the order given.

    Returns rows with name, is_reference, is_feasible (it has a fleet), fleet, reason, gpus, is_bound (usd_per_month is
    a lower bound), usd_per_month, usd_per_million_tokens, usd_per_million_input_tokens and
    usd_per_million_output_tokens [USD], tightest (name of the target with the least left), tightest_share (its latency
    over its threshold), is_fitted and step_times. Quantities are None without a fleet.
    """
    return [_side_row(side, side is reference) for side in sides]


def _side_row(side: PlanSide, is_reference: bool) -> Row:
    cost = side.plan.cost if side.plan else None
    check = side.tightest if cost else None
    return {
        "name": side.name,
        "is_reference": is_reference,
        "is_feasible": cost is not None,
        "fleet": side.fleet,
        "reason": side.reason,
        "gpus": side.gpus if cost else None,
        "is_bound": cost is None and side.usd_per_month is not None,
        "usd_per_month": side.usd_per_month,
        "usd_per_million_tokens": cost.usd_per_million_tokens if cost else None,
        "usd_per_million_input_tokens": cost.usd_per_million_input_tokens if cost else None,
        "usd_per_million_output_tokens": cost.usd_per_million_output_tokens if cost else None,
        "tightest": check.target.name if check else None,
        "tightest_share": share_of_threshold(check) if check else None,
        "is_fitted": side.is_fitted if cost else None,
        "step_times": side.step_times,
    }


def side_chart(rows: Sequence[Row], measure: str, of: str, subtitle: str) -> alt.LayerChart:
    """One quantity of every side as bars; a side without a fleet says so.

    Args:
        rows: of `side_rows`.
        measure: a name of `COMPARED_QUANTITIES`.
        of: what is compared, for the title: ``"each GPU alone"``.
        subtitle: what the bars hold for.

    Raises UnknownNameError for another name.
    """
    if measure not in COMPARED_QUANTITIES:
        raise UnknownNameError("measure", measure, COMPARED_QUANTITIES)
    quantity = COMPARED_QUANTITIES[measure]
    reference = next((row[quantity.field] for row in rows if row["is_reference"]), None)
    marks = [_with_label(row, quantity, reference) for row in rows]
    is_share = quantity.kind == "share"
    longest = max((mark["end"] for mark in marks), default=0.0) or 1.0
    scale = bar_scale(max(longest, 1.0 if is_share else 0.0), (mark["label"] for mark in marks))
    x = alt.X(
        "end:Q",
        title=quantity.axis,
        scale=scale,
        axis=alt.Axis(format="%" if is_share else ",~f", tickCount=5, labelFlush=True),
    )
    y = category_axis("name", 190)
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
    layers = [
        bars,
        words(marks, GREY, "left", dx=6).encode(x=alt.X("label_at:Q", title=quantity.axis, scale=scale), y=y),
    ]
    if is_share:
        limit = inline_chart([{"end": 1.0}]).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=GREY)
        layers.append(limit.encode(x=alt.X("end:Q", title=quantity.axis, scale=scale)))
    title = titled(f"{quantity.title} of {of}", [subtitle, _legend_in_words(rows, is_share=is_share)])
    height = SECOND_SUBTITLE_PX + AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows)
    return layered(layers, title, height, f"{quantity.axis} of {of}")


def _with_label(row: Row, quantity: ComparedQuantity, reference: float | None) -> Row:
    """A row with the end of its bar and the label behind it."""
    value = row[quantity.field]
    if value is None:
        return {**row, "end": 0.0, "label_at": 0.0, "label": "not planned closer" if row["is_bound"] else "no fleet"}
    label = quantity.text(value)
    if quantity.kind == "share":
        label += f", {row['tightest']}"
    elif reference and not row["is_reference"]:
        label += f" ({change_words(value / reference - 1.0)})"
    label = f"at least {label}" if row["is_bound"] else label
    label = f"{label}, not measured" if row["is_fitted"] is False else label
    return {**row, "end": value, "label_at": max(value, 1.0) if quantity.kind == "share" else value, "label": label}


def _legend_in_words(rows: Sequence[Row], *, is_share: bool) -> str:
    """What the looks of the bars mean, as far as they occur."""
    lines = ["At most 100 % holds the target." if is_share else "Shorter is better."]
    if any(row["is_reference"] for row in rows):
        lines.append("Dark: the reference.")
    if any(row["is_fitted"] is False for row in rows):
        lines.append("Outlined: not all GPUs measured.")
    return " ".join(lines)


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
