"""What one GPU of a server holds as it starts: one bar, to the end of its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

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
    titled,
)
from planner.core import GIB

PART_COLORS = {
    "weights": BLUE,
    "activations": ORANGE,
    "sampling": VERMILLION,
    "outside PyTorch": "#CC79A7",
    "graphs": SKY,
    "driver": "#8B6F47",
    "KV cache": GREEN,
    "not used": GREY,
}
"""Parts in the order of the bar."""
EXACT = 1e-9
"""Share by which parts that fill the memory may seem to exceed it: rounding."""
HEIGHT_PX = 290
"""Of the whole picture, so that the bar is seen below a legend of several rows on a phone too. A choice."""


def server_memory_rows(parts: Mapping[str, float], seen_bytes: float) -> list[Row]:
    """The parts one after another.

    Args:
        parts: of `planner.engine.server_memory.memory_parts` [bytes].
        seen_bytes: memory of the GPU as the driver reports it [bytes].

    Returns:
        Rows with part, gib, start_gib, end_gib [GiB] and share (of the memory).
    """
    rows: list[Row] = []
    start = 0.0
    for part, size in parts.items():
        end = start + size / GIB
        rows.append({"part": part, "gib": size / GIB, "start_gib": start, "end_gib": end, "share": size / seen_bytes})
        start = end
    return rows


def server_memory_chart(rows: Sequence[Row], title: str) -> alt.LayerChart:
    """Memory of one GPU by what it holds.

    Args:
        rows: of `server_memory_rows`.
        title: what server it is, and whether it starts.
    """
    order = {part: place for place, part in enumerate(PART_COLORS)}
    shown = [{**row, "order": order[row["part"]], "bar": ""} for row in rows if row["gib"] > 0.0]
    domain = [part for part in PART_COLORS if any(row["part"] == part for row in shown)]
    colors = alt.Scale(domain=domain, range=[PART_COLORS[part] for part in domain])
    seen_gib = max((row["gib"] / row["share"] for row in shown), default=0.0)
    held_gib = max((row["end_gib"] for row in shown), default=0.0)
    scale = alt.Scale(domain=[0.0, max(seen_gib, held_gib)], nice=False)
    axis = alt.Axis(tickCount=8, format=",~r")
    y = alt.Y("bar:N", title=None, axis=None)
    bar = (
        inline_chart(shown)
        .mark_bar(height={"band": 0.8}, stroke="white", strokeWidth=1)
        .encode(
            x=alt.X("start_gib:Q", title="Memory of one GPU (GiB)", scale=scale, axis=axis),
            x2="end_gib:Q",
            y=y,
            color=alt.Color("part:N", title=None, scale=colors, legend=legend_of(domain, symbolStrokeWidth=0)),
            order="order:Q",
            tooltip=[
                alt.Tooltip("part:N", title="Holds"),
                alt.Tooltip("gib:Q", title="GiB", format=",.3~r"),
                alt.Tooltip("share:Q", title="Share of the memory", format=".1%"),
            ],
        )
    )
    layers, lines = [bar], [title]
    if held_gib > seen_gib * (1.0 + EXACT):
        end = inline_chart([{"seen_gib": seen_gib}]).mark_rule(color=VERMILLION, strokeWidth=4)
        tooltip = [alt.Tooltip("seen_gib:Q", title="All the memory (GiB)", format=",.4~r")]
        layers.append(end.encode(x=alt.X("seen_gib:Q", scale=scale), tooltip=tooltip))
        lines.append("Thick line: all the memory there is.")
    heading = titled("Memory of one GPU as the server starts", lines)
    return layered(layers, heading, HEIGHT_PX, "Memory of one GPU by what it holds")
