"""What all charts share: colours, titles, marks that carry their own data.

Colours are from the palette of Okabe and Ito (Color Universal Design, 2008, https://jfly.uni-koeln.de/color/), told
apart by all common kinds of colour vision; shape, dash or words always say the same thing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt

from planner.core import change

Row = dict[str, Any]
"""One mark of a chart. Values are text, float, bool or None, so that rows are JSON."""

BLUE, SKY, GREEN, ORANGE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
GREY = "#7C7C7C"
"""Neutral marks and text; as readable on white as on near-black (contrast of 4 to 1 or more on both)."""
BAR_HEIGHT_PX, AXIS_HEIGHT_PX, LEGEND_HEIGHT_PX = 26, 134, 54
"""Height of a bar of a bar chart, of its title with subtitle and its axis together, and of a legend above it."""
LABEL_LETTER_PX = 6.6
"""Width of a letter of the words beside a bar, somewhat more than it is."""


def inline_chart(rows: Iterable[Mapping[str, object]]) -> alt.Chart:
    """A chart of rows that it carries with it."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def layered(layers: Sequence[alt.Chart], title: alt.TitleParams, height_px: int, description: str) -> alt.LayerChart:
    """Layers under one title."""
    return alt.LayerChart(layer=list(layers), title=title, height=height_px, description=description)


def titled(text: str, subtitle: str | list[str]) -> alt.TitleParams:
    """A title at the left, with a grey line under it, or several.

    Vega cuts lines that are wider than the chart: titles of up to 50 and lines of up to 78 characters are whole on the
    narrowest page (900 px).
    """
    return alt.TitleParams(text, subtitle=subtitle, anchor="start", subtitleColor=GREY)


def bar_scale(longest: float, labels: Iterable[str]) -> alt.Scale:
    """A scale of bars from 0 to `longest` that leaves the labels at their ends their room, however wide the page is.

    The room is in pixels, as the labels are; bars keep at least 30 % of the width.
    """
    room = 12 + LABEL_LETTER_PX * max((len(label) for label in labels), default=0)
    end = alt.ExprRef(f"max(0.3 * width, width - {room:.0f})")
    return alt.Scale(domain=[0.0, longest], range=[0.0, end], nice=False)


def change_words(share: float) -> str:
    """A change, given as a share, in words: ``+29 %``, ``−0.4 %`` or ``the same``.

    >>> change_words(0.29), change_words(-0.0036), change_words(-1e-6)
    ('+29 %', '−0.4 %', 'the same')
    """
    shown = round(share, 3)
    return change(shown) if shown else "the same"


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
