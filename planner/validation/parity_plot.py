"""A parity plot as plain SVG: predicted against measured, logarithmic, on any background, without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart by the colour-blind: Okabe and Ito 2008, "Color Universal Design" (jfly.uni-koeln.de/color)."""
INK = "#808080"
"""Text and lines: a grey that shows on white and on black."""
BAND = 0.2
"""Half width of the band around the diagonal: 20 %."""
SIDE, LEFT, TOP, BOTTOM, BETWEEN = 360.0, 64.0, 34.0, 84.0, 84.0
"""Sides of a square of axes, and what is around it [px]."""
LEGEND = 34.0
"""Of what is below, the part that only the last row has [px]."""
PER_ROW = 3
"""Squares side by side; more stand below. A choice."""
FONT = "font-family='system-ui,sans-serif'"


@dataclass(frozen=True)
class Dot:
    """One measured and predicted value > 0 of a class; `pale` ones are drawn lightly."""

    measured: float
    predicted: float
    kind: str
    pale: bool = False


@dataclass(frozen=True)
class _Axes:
    """A square with the same logarithmic scale on both axes, from `low` to `high`."""

    left: float
    top: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return self.left + SIDE * self._share(value)

    def y(self, value: float) -> float:
        return self.top + SIDE * (1.0 - self._share(value))

    def _share(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)


def parity_svg(panels: Mapping[str, Sequence[Dot]], unit: str, kinds: Sequence[str]) -> str:
    """Panels, `PER_ROW` in a row, each named, in one unit; a colour for each kind that occurs, and the band of 20 %.

    Values that are not finite and positive are left out.
    """
    columns, rows = min(len(panels), PER_ROW), -(-len(panels) // PER_ROW)
    width = LEFT + columns * SIDE + (columns - 1) * BETWEEN + 24.0
    height = rows * (TOP + SIDE) + (rows - 1) * (BOTTOM - LEGEND) + BOTTOM
    elements = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"height='{height:.0f}' role='img' aria-label='predicted against measured {_escaped(', '.join(panels))}'>"
    ]
    present = [kind for kind in kinds if any(dot.kind == kind for dots in panels.values() for dot in dots)]
    colours = {kind: COLOURS[index % len(COLOURS)] for index, kind in enumerate(kinds)}
    for index, (name, dots) in enumerate(panels.items()):
        shown = [dot for dot in dots if _drawable(dot.measured) and _drawable(dot.predicted)]
        row, column = divmod(index, PER_ROW)
        axes = _axes(LEFT + column * (SIDE + BETWEEN), TOP + row * (TOP + SIDE + BOTTOM - LEGEND), shown)
        elements += _frame(axes, name, unit, clip=f"panel{index}")
        elements.append(f"<g clip-path='url(#panel{index})'>")
        elements += [_dots(axes, shown, kind, colours[kind], pale) for kind in present for pale in (True, False)]
        elements.append("</g>")
    elements += _legend(present, colours, height)
    return "\n".join([*(element for element in elements if element), "</svg>", ""])


def _drawable(value: float) -> bool:
    return math.isfinite(value) and value > 0.0


def _axes(left: float, top: float, dots: Sequence[Dot]) -> _Axes:
    values = [value for dot in dots for value in (dot.measured, dot.predicted)] or [1.0, 10.0]
    return _Axes(left, top, min(values) / 1.25, max(values) * 1.25)


def _ticks(low: float, high: float) -> list[float]:
    """Round values between two: 1, 2 and 5 times powers of ten, or powers of ten where these are many.

    >>> _ticks(0.8, 11.0)
    [1.0, 2.0, 5.0, 10.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 300.0 else (1,)
    return [tick for tick in (factor * 10.0**power for power in powers for factor in factors) if low <= tick <= high]


def _frame(axes: _Axes, name: str, unit: str, clip: str) -> list[str]:
    x0, x1, y0, y1 = axes.left, axes.left + SIDE, axes.top + SIDE, axes.top
    elements = [
        f"<clipPath id='{clip}'><rect x='{x0:.1f}' y='{y1:.1f}' width='{SIDE:.1f}' height='{SIDE:.1f}'/></clipPath>",
        _band(axes, clip),
        f"<rect x='{x0:.1f}' y='{y1:.1f}' width='{SIDE:.1f}' height='{SIDE:.1f}' fill='none' stroke='{INK}'/>",
        f"<path d='M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}' stroke='{INK}'/>",
        _text((x0 + x1) / 2.0, y1 - 12.0, name, size=15, weight="bold"),
        _text((x0 + x1) / 2.0, y0 + 36.0, f"measured {name} [{unit}]"),
        _text(x0 - 46.0, (y0 + y1) / 2.0, f"predicted {name} [{unit}]", turned=True),
    ]
    for tick in _ticks(axes.low, axes.high):
        x, y = axes.x(tick), axes.y(tick)
        elements.append(f"<path d='M{x:.1f} {y0:.1f}v5M{x0:.1f} {y:.1f}h-5' stroke='{INK}'/>")
        elements.append(_text(x, y0 + 18.0, f"{tick:,g}", size=11))
        elements.append(_text(x0 - 8.0, y + 4.0, f"{tick:,g}", size=11, anchor="end"))
    return elements


def _band(axes: _Axes, clip: str) -> str:
    """The area between 80 % and 120 % of measured."""
    corners = [
        (axes.low, axes.low * (1.0 - BAND)),
        (axes.high, axes.high * (1.0 - BAND)),
        (axes.high, axes.high * (1.0 + BAND)),
        (axes.low, axes.low * (1.0 + BAND)),
    ]
    path = "L".join(f"{axes.x(x):.1f} {axes.y(y):.1f}" for x, y in corners)
    return f"<path d='M{path}z' fill='{INK}' fill-opacity='0.18' clip-path='url(#{clip})'/>"


def _dots(axes: _Axes, dots: Sequence[Dot], kind: str, colour: str, pale: bool) -> str:
    """All dots of one look as one path of points with round ends."""
    marks = "".join(
        f"M{axes.x(dot.measured):.1f} {axes.y(dot.predicted):.1f}h0"
        for dot in dots
        if dot.kind == kind and dot.pale is pale
    )
    if not marks:
        return ""
    look = f"stroke='{colour}' stroke-width='5' stroke-linecap='round' stroke-opacity='{0.3 if pale else 0.85}'"
    return f"<path d='{marks}' fill='none' {look}/>"


def _legend(kinds: Sequence[str], colours: Mapping[str, str], height: float) -> list[str]:
    elements, x, y = [], LEFT, height - 14.0
    for kind in kinds:
        elements.append(f"<circle cx='{x:.1f}' cy='{y - 4.0:.1f}' r='4' fill='{colours[kind]}'/>")
        elements.append(_text(x + 9.0, y, kind, anchor="start"))
        x += 34.0 + 6.6 * len(kind)
    elements.append(_text(x, y, "pale: groups that were fitted to; band: ±20 %", anchor="start"))
    return elements


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    anchor: str = "middle",
    weight: str = "normal",
    turned: bool = False,
) -> str:
    turn = f" transform='rotate(-90 {x:.1f} {y:.1f})'" if turned else ""
    look = f"{FONT} font-size='{size}' font-weight='{weight}' text-anchor='{anchor}' fill='{INK}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {look}{turn}>{_escaped(text)}</text>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")
