"""What all charts share: colours, titles, marks that carry their own data.

Colours are from the palette of Okabe and Ito (Color Universal Design, 2008, https://jfly.uni-koeln.de/color/), told
apart by all common kinds of colour vision; shape, dash or words always say the same thing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt

Row = dict[str, Any]
"""One mark of a chart. Values are text, float, bool or None, so that rows are JSON."""

BLUE, SKY, GREEN, ORANGE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
GREY = "#8C8C8C"
"""Neutral marks and text; readable on white and on near-black."""
BAR_HEIGHT_PX, AXIS_HEIGHT_PX = 26, 110
"""Height of a bar of a bar chart, and of its axis and title."""


def inline_chart(rows: Iterable[Mapping[str, object]]) -> alt.Chart:
    """A chart of rows that it carries with it."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def layered(layers: Sequence[alt.Chart], title: alt.TitleParams, height_px: int, description: str) -> alt.LayerChart:
    """Layers under one title."""
    return alt.LayerChart(layer=list(layers), title=title, height=height_px, description=description)


def titled(text: str, subtitle: str) -> alt.TitleParams:
    """A title at the left, with a grey line under it."""
    return alt.TitleParams(text, subtitle=subtitle, anchor="start", subtitleColor=GREY)


def words(
    rows: Iterable[Mapping[str, object]],
    color: str,
    align: Literal["left", "center", "right"],
    dx: int = 0,
    dy: int = 0,
) -> alt.Chart:
    """The rows' `label` beside their place; positions are left to the caller."""
    marks = inline_chart(rows).mark_text(align=align, dx=dx, dy=dy, color=color, fontSize=12)
    found: alt.Chart = marks.encode(text="label:N")
    return found
