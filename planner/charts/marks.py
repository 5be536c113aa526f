"""What all charts share: colours, titles, axes, marks that carry their own data, and room for their labels.

Colours are from the palette of Okabe and Ito (Color Universal Design, 2008, https://jfly.uni-koeln.de/color/), told
apart by all common kinds of colour vision; shape, dash or words always say the same thing again.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import altair as alt

from planner.core import change

Row = dict[str, Any]
"""One mark of a chart. Values are text, float, bool or None, so that rows are JSON."""

BLUE, SKY, GREEN, ORANGE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
GREY = "#7C7C7C"
"""Neutral marks and text; as readable on white as on near-black (contrast of 4 to 1 or more on both)."""
BAR_HEIGHT_PX, AXIS_HEIGHT_PX, LEGEND_HEIGHT_PX = 26, 148, 54
"""Height of a bar of a bar chart, of its title with subtitle and its axis together, and of a legend above it."""
LABEL_LETTER_PX = 6.6
"""Width of a letter of a label: a little more than the average, so that labels never overlap. A choice."""
NARROW_PX = 420
"""Width of the page's column below which titles take more lines and legends more rows: that of a phone. A choice."""
ON_A_PHONE = f"width >= 0 && containerSize()[0] < {NARROW_PX}"
"""Vega expression: whether a chart is that narrow; not in a picture, which has no page around it.

It names the signal `width`, or Vega would not ask again when the page is resized.
"""
TITLE_LETTERS, LINE_LETTERS = 38, 58
"""Characters of a title and of a line below it that a phone of 390 px shows whole."""
PHONE_LEGEND_PX, SYMBOL_PX = 300, 36
"""Room for a legend on a phone; of an entry, for its symbol and the gap to the next."""
TITLE_OFFSET_PX = 12
"""Gap between the subtitle and the chart, where a legend stands between them."""


# --- charts, titles and axes ----------------------------------------------------------------------------------------


def inline_chart(rows: Iterable[Mapping[str, object]]) -> alt.Chart:
    """A chart that carries its rows with it."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def layered(layers: Sequence[alt.Chart], title: alt.TitleParams, height_px: int, description: str) -> alt.LayerChart:
    """Layers under one title."""
    return alt.LayerChart(layer=list(layers), title=title, height=height_px, description=description)


def titled(text: str, subtitle: str | list[str], offset_px: int | None = None) -> alt.TitleParams:
    """A title at the left with a grey subtitle of one line or several, `offset_px` above the chart (None: Vega's own).

    Vega cuts what is wider than the chart: titles of up to 50 characters are whole on a page of 900 px, and broken on a
    phone; lines of the subtitle are broken everywhere, since Vega-Lite takes no expression for them.
    """
    offset = alt.Undefined if offset_px is None else offset_px
    lines = subtitle if isinstance(subtitle, list) else [subtitle]
    below = [part for line in lines for part in textwrap.wrap(line, LINE_LETTERS)]
    title: str | alt.ExprRef = text
    if len(text) > TITLE_LETTERS:
        title = alt.ExprRef(f"{ON_A_PHONE} ? {json.dumps(textwrap.wrap(text, TITLE_LETTERS))} : {json.dumps(text)}")
    return alt.TitleParams(
        title,
        subtitle=below if len(below) > 1 else below[0],
        anchor="start",
        subtitleColor=GREY,
        offset=offset,
        limit=alt.ExprRef("width >= 0 ? containerSize()[0] || 0 : 0"),  # 0 is none, of a picture without a page
    )


def legend_of(
    labels: Sequence[str],
    orient: Literal["top", "bottom"] = "top",
    room_px: float = PHONE_LEGEND_PX,
    **options: Any,  # noqa: ANN401
) -> alt.Legend:
    """A legend above or below the chart, in one row (`columns` for several); on a phone in as many as it takes.

    It begins where the axis does: beside long names there is less `room_px` on a phone.
    """
    widest = max((len(label) for label in labels), default=0)
    fit = max(1, int(room_px // (LABEL_LETTER_PX * widest + SYMBOL_PX)))
    columns = alt.ExprRef(f"{ON_A_PHONE} ? {fit} : {options.pop('columns', 0)}")
    return alt.Legend(orient=orient, columns=columns, **options)


def category_axis(field: str, label_limit_px: int) -> alt.Y:
    """The vertical axis of a bar chart: names in the order of the rows, none left out, cut beyond a width [px]."""
    axis = alt.Axis(labelLimit=label_limit_px, labelOverlap=False, domain=False)
    return alt.Y(f"{field}:N", title=None, sort=None, axis=axis)


def bar_scale(longest: float, labels: Iterable[str]) -> alt.Scale:
    """A scale of bars from 0 to `longest` that leaves room for the labels at their ends on a page of any width.

    The room is in pixels, as the labels are; bars keep at least 30 % of the width.
    """
    room = 12 + LABEL_LETTER_PX * max((len(label) for label in labels), default=0)
    end = alt.ExprRef(f"max(0.3 * width, width - {room:.0f})")
    return alt.Scale(domain=[0.0, longest], range=[0.0, end], nice=False)


# --- series: colour, and dash or shape ------------------------------------------------------------------------------


def stroke_legend(labels: Sequence[str], **options: Any) -> alt.Legend:  # noqa: ANN401
    """A legend of lines above the chart; further options as `alt.Legend`."""
    return legend_of(labels, title=None, symbolType="stroke", symbolSize=400, **options)


def line_styles(
    field: str, styles: Mapping[str, tuple[str, Sequence[int]]], legend: alt.Legend | None
) -> tuple[alt.Color, alt.StrokeDash]:
    """Encodings that tell the series of a field apart by colour and by dash.

    Args:
        field: whose values are the series.
        styles: colour and dash of each series, in the order of the legend.
        legend: of both; None hides it.
    """
    names = list(styles)
    colors = alt.Scale(domain=names, range=[color for color, _ in styles.values()])
    dashes = alt.Scale(domain=names, range=[list(dash) for _, dash in styles.values()])
    encoding = f"{field}:N"
    return alt.Color(encoding, scale=colors, legend=legend), alt.StrokeDash(encoding, scale=dashes, legend=legend)


def point_styles(
    field: str, styles: Mapping[str, tuple[str, str]], legend: alt.Legend | None
) -> tuple[alt.Color, alt.Shape]:
    """Encodings that tell the groups of a field apart by colour and by shape; arguments as `line_styles`."""
    names = list(styles)
    colors = alt.Scale(domain=names, range=[color for color, _ in styles.values()])
    shapes = alt.Scale(domain=names, range=[shape for _, shape in styles.values()])
    encoding = f"{field}:N"
    return alt.Color(encoding, scale=colors, legend=legend), alt.Shape(encoding, scale=shapes, legend=legend)


# --- labels ---------------------------------------------------------------------------------------------------------


def change_words(share: float) -> str:
    """A change, given as a share, in words: ``+29 %``, ``−0.4 %`` or ``the same``.

    >>> change_words(0.29), change_words(-0.0036), change_words(-1e-6)
    ('+29 %', '−0.4 %', 'the same')
    """
    rounded = round(share, 3)
    return change(rounded) if rounded else "the same"


def words(
    rows: Iterable[Mapping[str, object]],
    color: str,
    align: Literal["left", "center", "right"],
    dx: int = 0,
    dy: int = 0,
) -> alt.Chart:
    """The rows' `label` beside their points; the caller encodes the positions."""
    marks = inline_chart(rows).mark_text(align=align, dx=dx, dy=dy, color=color, fontSize=12)
    text: alt.Chart = marks.encode(text="label:N")
    return text


LINE_HEIGHT_PX = 14
"""Height of a line of a label."""
POINT_PX = 7
"""Half the side of the square that a point takes."""


class Placement(NamedTuple):
    """Where a label stands, in the terms of a text mark.

    Attributes:
        align: which end of the text is at the point.
        dx, dy: offset from the point [px], dy downwards.
    """

    align: Literal["left", "right"]
    dx: int
    dy: int


PLACEMENTS = tuple(
    placement
    for dx, dy in ((10, 13), (12, 0), (10, -13), (10, 27), (10, -27))
    for placement in (Placement("left", dx, dy), Placement("right", -dx, dy))
)
"""Tried in this order, the first free one is taken: below, beside and above the point, right before left. A choice."""


class Box(NamedTuple):
    """A rectangle [px], y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def label_placements(
    points: Sequence[tuple[float, float]], labels: Sequence[tuple[float, float, str]], width_px: float, height_px: float
) -> list[Placement]:
    """A placement for every label, in order; where none is free, the one that covers least and stays inside.

    Args:
        points: all points of the chart, as shares of its width from the left and of its height from the top.
        labels: the labelled points, in the same shares, and their texts; the first ones choose first.
        width_px: of the chart at its narrowest [px].
        height_px: of the chart [px].
    """
    taken = [_point_box(x * width_px, y * height_px) for x, y in points]
    placements = []
    for x, y, text in labels:
        own = _point_box(x * width_px, y * height_px)
        boxes = [_text_box(x * width_px, y * height_px, placement, text) for placement in PLACEMENTS]
        costs = [
            sum(box.overlaps(other) for other in taken if other != own)
            + len(taken) * (box.left < 0 or box.right > width_px or box.top < 0 or box.bottom > height_px)
            for box in boxes
        ]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        placements.append(PLACEMENTS[best])
    return placements


def _point_box(x: float, y: float) -> Box:
    return Box(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX)


def _text_box(x: float, y: float, placement: Placement, text: str) -> Box:
    length = LABEL_LETTER_PX * len(text)
    left = x + placement.dx - (length if placement.align == "right" else 0.0)
    middle = y + placement.dy
    return Box(left, middle - LINE_HEIGHT_PX / 2, left + length, middle + LINE_HEIGHT_PX / 2)
