"""Marks of all charts: bars, lines and points with colours, axes, tooltips, titles and room for their labels.

Colours are from the palette of Okabe and Ito (Color Universal Design, 2008, https://jfly.uni-koeln.de/color/), told
apart by all common kinds of colour vision; shape, dash or words always say the same thing again.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import altair as alt

from planner.core import change, preset_rows

Style = TypeVar("Style")
Row = dict[str, Any]
"""One mark of a chart. Values are text, float, bool or None, so that rows are JSON."""

BLUE, SKY, GREEN, ORANGE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
GREY = "#7C7C7C"
"""Neutral marks and text; as readable on white as on near-black (contrast of 4 to 1 or more on both)."""
BAR_HEIGHT_PX, AXIS_HEIGHT_PX, LEGEND_HEIGHT_PX = 26, 148, 54
"""Height of a bar of a bar chart, of its title with subtitle and its axis together, and of a legend above it."""
FRAME_PX = 250
"""Height of the frame of lines whose legend takes several rows on a phone. A choice."""
HALO: dict[str, Any] = {"color": alt.ExprRef("background"), "stroke": alt.ExprRef("background"), "strokeWidth": 4}
"""Look of a second text under a label: the page's own colour (a signal of Vega), so that no line crosses letters."""
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
SECOND_SUBTITLE_PX = 16
"""Height of the second line under a title."""
WHOLE, CENTS, THREE, FOUR, PERCENT, TENTHS = ",.0f", ",.2f", ",.3~r", ",.4~r", ".0%", ".1%"
"""Number formats of d3: whole numbers, cents, three and four digits, shares in percent."""
COLUMNS = {row["column"]: (row["title"], row["format"]) for row in preset_rows("chart_columns.csv")}
"""Columns of the rows: title and number format of d3, empty of text; others are called by their name."""


# --- charts, titles and axes ----------------------------------------------------------------------------------------


def inline_chart(rows: Iterable[Mapping[str, object]]) -> alt.Chart:
    """A chart that carries its rows with it."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def layered(
    layers: Sequence[alt.Chart], title: alt.TitleParams, height_px: int, description: str, *, grows: bool = False
) -> alt.LayerChart:
    """Layers under one title, so high in all; where it `grows`, the frame is, however many lines a legend takes."""
    chart = alt.LayerChart(layer=list(layers), title=title, height=height_px, description=description)
    return chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding")) if grows else chart


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


# --- axes and tooltips ------------------------------------------------------------------------------------------------


def axis(
    channel: type[alt.X] | type[alt.Y],
    column: str,
    title: str,
    ends: Sequence[float] | None = None,
    *,
    log: bool = False,
    scale: alt.Scale | None = None,
    **ticks: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """The encoding of a quantity on one axis.

    Args:
        channel: `alt.X` or `alt.Y`.
        column: of the rows.
        title: with the unit.
        ends: of the axis; None: around the data, zero included.
        log: logarithmic.
        scale: in place of both.
        ticks: further options of `alt.Axis`.
    """
    kind: dict[str, Any] = {"type": "log"} if log else {}
    if scale is None:
        scale = alt.Scale(domain=list(ends), nice=False, **kind) if ends else alt.Scale(nice=not log, **kind)
    return channel(f"{column}:Q", title=title, scale=scale, axis=alt.Axis(**ticks))


def tooltip(*columns: str, **titles: str) -> list[alt.Tooltip]:
    """Columns of the rows as `COLUMNS` calls them, then some under titles of this chart."""
    found = []
    for column, given in (dict.fromkeys(columns, "") | titles).items():
        title, form = COLUMNS.get(column, (column.replace("_", " ").capitalize(), ""))
        shown = alt.Tooltip(f"{column}:{'Q' if form else 'N'}", title=given or title)
        found.append(shown.format(form) if form else shown)
    return found


# --- bars -------------------------------------------------------------------------------------------------------------


def bar_scale(longest: float, labels: Iterable[str]) -> alt.Scale:
    """A scale of bars from 0 to `longest` that leaves room for the labels at their ends on a page of any width.

    The room is in pixels, as the labels are; bars keep at least 30 % of the width.
    """
    room = 12 + LABEL_LETTER_PX * max((len(label) for label in labels), default=0)
    end = alt.ExprRef(f"max(0.3 * width, width - {room:.0f})")
    return alt.Scale(domain=[0.0, longest], range=[0.0, end], nice=False)


class BarAxes(NamedTuple):
    """Axes of a bar chart.

    Attributes:
        x: from 0, with room for the labels at the ends of bars.
        y: names of the bars in the order of the rows, none left out.
    """

    x: alt.X
    y: alt.Y

    def at(self, column: str) -> alt.X:
        """Another column on the same horizontal scale."""
        same: alt.X = self.x.copy()
        same.shorthand = f"{column}:Q"
        return same


def bar_axes(
    rows: Sequence[Row],
    name: str,
    end: str,
    title: str,
    *,
    most: float = 0.0,
    scale: alt.Scale | None = None,
    width_px: int = 260,
    **ticks: Any,  # noqa: ANN401
) -> BarAxes:
    """Axes of bars with labels at their ends.

    Args:
        rows: one for each bar, with the `label` at its end.
        name: column that names the bars.
        end: column with the ends of the bars.
        title: of the horizontal axis, with the unit.
        most: value that the horizontal axis holds at least.
        scale: horizontal, in place of one from 0 with room for the labels.
        width_px: names are cut beyond it.
        ticks: further options of `alt.Axis`.
    """
    if scale is None:
        scale = bar_scale(max([most, *(row[end] for row in rows)]) or 1.0, [row["label"] for row in rows])
    x = axis(alt.X, end, title, scale=scale, **{"tickCount": 5, **ticks})
    names = alt.Axis(labelLimit=width_px, labelOverlap=False, domain=False)
    return BarAxes(x, alt.Y(f"{name}:N", title=None, sort=None, axis=names))


def bars(
    rows: Sequence[Row],
    axes: BarAxes,
    color: Any,  # noqa: ANN401
    shown: Sequence[alt.Tooltip],
    start: str = "",
    **mark: Any,  # noqa: ANN401
) -> alt.Chart:
    """Bars from 0, or from the column `start`, to the end that the axes have; further options of the mark."""
    across = {"x": axes.x} if not start else {"x": axes.at(start), "x2": axes.x.shorthand}
    drawn: alt.Chart = (
        inline_chart(rows)
        .mark_bar(**{"height": {"band": 0.7}, **mark})
        .encode(**across, y=axes.y, color=color, tooltip=list(shown))
    )
    return drawn


def end_labels(rows: Sequence[Row], axes: BarAxes, end: str = "", *, gap_px: int = 6) -> Any:  # noqa: ANN401
    """The rows' `label`, a gap behind the ends of their bars or behind another column."""
    return words(rows, GREY, "left", dx=gap_px).encode(x=axes.at(end) if end else axes.x, y=axes.y)


def highlighted(expression: str) -> Any:  # noqa: ANN401
    """The colour of bars: darker where an expression of Vega holds."""
    return alt.condition(expression, alt.value(BLUE), alt.value(SKY))


def bars_px(count: int, bar_px: int = BAR_HEIGHT_PX, *, legend: bool = False) -> int:
    """Height of a chart of so many bars [px]."""
    return AXIS_HEIGHT_PX + (LEGEND_HEIGHT_PX if legend else 0) + bar_px * count


# --- series: colour, and dash or shape ------------------------------------------------------------------------------


def present(styles: Mapping[str, Style], rows: Iterable[Row], column: str) -> dict[str, Style]:
    """The styles of those names that occur in a column, in their order."""
    names = {row[column] for row in rows}
    return {name: style for name, style in styles.items() if name in names}


def colored(column: str, colors: Mapping[str, str], title: str | None = None, **legend: Any) -> alt.Color:  # noqa: ANN401
    """Each name of a column in its colour, with a legend; further options as `legend_of`."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color(f"{column}:N", title=title, scale=scale, legend=legend_of(list(colors), **legend))


def stroke_legend(labels: Sequence[str], **options: Any) -> alt.Legend:  # noqa: ANN401
    """A legend of lines above the chart; further options as `alt.Legend`."""
    return legend_of(labels, title=None, symbolType="stroke", symbolSize=400, **options)


def series(column: str, styles: Mapping[str, tuple[str, Any]], legend: alt.Legend | None) -> dict[str, Any]:
    """Encodings that tell the series of a column apart: by colour, and lines by dash, points by shape.

    Args:
        column: whose values are the series.
        styles: colour, and dash or name of a shape, of each series in the order of the legend.
        legend: of both; None hides it.
    """
    names, marks = list(styles), [mark for _, mark in styles.values()]
    colors = alt.Scale(domain=names, range=[color for color, _ in styles.values()])
    second = alt.Scale(domain=names, range=marks)
    other = alt.Shape if marks and isinstance(marks[0], str) else alt.StrokeDash
    return {
        "color": alt.Color(f"{column}:N", scale=colors, legend=legend),
        "shape" if other is alt.Shape else "strokeDash": other(f"{column}:N", scale=second, legend=legend),
    }


def lines(
    rows: Sequence[Row],
    shown: Sequence[alt.Tooltip] = (),
    steps: str = "",
    *,
    clip: bool = False,
    **encoded: Any,  # noqa: ANN401
) -> alt.Chart:
    """Lines through the rows in their order; `steps` as the interpolation of Vega, `clip` at the ends of the axes."""
    look: dict[str, Any] = {"interpolate": steps} if steps else {}
    drawn: alt.Chart = inline_chart(rows).mark_line(strokeWidth=2.5, clip=clip, **look).encode(**encoded)
    return drawn.encode(tooltip=list(shown)) if shown else drawn


def dots(
    rows: Sequence[Row],
    shown: Sequence[alt.Tooltip] = (),
    *,
    size: int = 60,
    clip: bool = False,
    **given: Any,  # noqa: ANN401
) -> alt.Chart:
    """Filled points; `color` and `shape` may be constants, x, y and other encodings go to the chart."""
    fixed = {name: given.pop(name) for name in ("color", "shape") if isinstance(given.get(name), str)}
    look: dict[str, Any] = {"filled": True, "opacity": 1.0, "size": size, "clip": clip, **fixed}
    drawn: alt.Chart = inline_chart(rows).mark_point(**look).encode(**given)
    return drawn.encode(tooltip=list(shown)) if shown else drawn


def rules(rows: Sequence[Row], color: str = GREY, *, dashed: bool = False, **encoded: Any) -> alt.Chart:  # noqa: ANN401
    """Straight lines across the chart: at x, at y, or from one to the other."""
    line = inline_chart(rows).mark_rule(
        color=color, strokeWidth=2 if dashed else 1.5, strokeDash=[6, 4] if dashed else [1, 0]
    )
    across: alt.Chart = line.encode(**encoded)
    return across


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
) -> Any:  # noqa: ANN401 - two layers, encoded as one
    """The rows' `label` beside their points, legible where lines pass below; the caller encodes the positions."""
    labels = inline_chart(rows).encode(text="label:N")
    look: dict[str, Any] = {"align": align, "dx": dx, "dy": dy, "fontSize": 12}
    return alt.layer(labels.mark_text(**look, **HALO), labels.mark_text(**look, color=color))


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
        """True if the two share more than an edge."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def label_placements(
    points: Sequence[tuple[float, float]],
    labels: Sequence[tuple[float, float, str]],
    width_px: float,
    height_px: float,
    fixed: Sequence[tuple[float, float, Placement, str]] = (),
    *,
    only_free: bool = False,
) -> list[Placement | None]:
    """A placement for every label, in order; where none is free, the one that covers least and stays inside.

    Args:
        points: all points of the chart, as shares of its width from the left and of its height from the top.
        labels: the labelled points, in the same shares, and their texts; the first ones choose first.
        width_px: of the chart at its narrowest [px].
        height_px: of the chart [px].
        fixed: labels that stand already, in the same shares.
        only_free: None for labels without a free placement, but for the first.
    """
    taken = [_point_box(x * width_px, y * height_px) for x, y in points]
    taken += [_text_box(x * width_px, y * height_px, placement, text) for x, y, placement, text in fixed]
    placements: list[Placement | None] = []
    for x, y, text in labels:
        own = _point_box(x * width_px, y * height_px)
        boxes = [_text_box(x * width_px, y * height_px, placement, text) for placement in PLACEMENTS]
        costs = [
            sum(box.overlaps(other) for other in taken if other != own)
            + len(taken) * (box.left < 0 or box.right > width_px or box.top < 0 or box.bottom > height_px)
            for box in boxes
        ]
        best = costs.index(min(costs))
        is_left_out = only_free and costs[best] > 0 and bool(placements)
        placements.append(None if is_left_out else PLACEMENTS[best])
        taken += [] if is_left_out else [boxes[best]]
    return placements


ABOVE = Placement("left", 8, -6)
"""Right of a point and a little above it."""


def apart(labels: Sequence[tuple[float, float, str]], width_px: float, height_px: float) -> list[int]:
    """Which of some labels that stand `ABOVE` their points overlap none of those kept before; as `label_placements`.

    >>> apart([(0.0, 0.5, "a"), (0.01, 0.5, "b"), (0.5, 0.5, "c")], 300.0, 100.0)
    [0, 2]
    """
    kept: dict[int, Box] = {}
    for place, (x, y, text) in enumerate(labels):
        box = _text_box(x * width_px, y * height_px, ABOVE, text)
        if not any(box.overlaps(other) for other in kept.values()):
            kept[place] = box
    return list(kept)


def words_by_width(row: Row, color: str, wide: Placement | None, phone: Placement | None) -> Any:  # noqa: ANN401
    """A label as `words`, placed otherwise on a phone; without a placement it is not there."""

    def chosen(narrow: object, other: object) -> alt.ExprRef:
        return alt.ExprRef(f"{ON_A_PHONE} ? {json.dumps(narrow)} : {json.dumps(other)}")

    there = (wide is not None, phone is not None)
    wide, phone = wide or PLACEMENTS[0], phone or PLACEMENTS[0]
    places = {name: chosen(getattr(phone, name), getattr(wide, name)) for name in Placement._fields}
    look: dict[str, Any] = {**places, "opacity": chosen(int(there[1]), int(there[0])), "fontSize": 12}
    label = inline_chart([row]).encode(text="label:N")
    return alt.layer(label.mark_text(**look, **HALO), label.mark_text(**look, color=color))


def _point_box(x: float, y: float) -> Box:
    return Box(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX)


def _text_box(x: float, y: float, placement: Placement, text: str) -> Box:
    length = LABEL_LETTER_PX * len(text)
    left = x + placement.dx - (length if placement.align == "right" else 0.0)
    middle = y + placement.dy
    return Box(left, middle - LINE_HEIGHT_PX / 2, left + length, middle + LINE_HEIGHT_PX / 2)
