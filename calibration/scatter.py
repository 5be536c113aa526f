"""Measured against fitted, as a page that any browser shows: one log-log scatter per operator, plain SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from calibration.fit_measured import MeasuredFit
from calibration.tables import FloatArray
from planner.core import write_whole

SIDE, MARGIN = 320, 46
"""Side of a plot, and room for its labels [px]."""
MAX_POINTS = 800
"""Points drawn per operator; a page of tens of thousands would be slow."""
STYLE = "body{font:14px system-ui;margin:2em} figure{display:inline-block;margin:8px} figcaption{font-weight:600}"


def write_page(path: Path, fitted: Iterable[MeasuredFit], title: str) -> None:
    """Write the page."""
    figures = "\n".join(_figure(measured_fit) for measured_fit in fitted)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    intro = "Fitted against measured time of a call. Line: equal; dashes: 20 % off. Seconds, both axes logarithmic."
    body = f"<h1>{html.escape(title)}</h1><p>{intro}</p>\n{figures}"
    write_whole(path, f"{head}<style>{STYLE}</style>{body}</html>\n")


def _figure(measured_fit: MeasuredFit) -> str:
    """A scatter plot as HTML with its caption."""
    low = 10.0 ** math.floor(math.log10(min(measured_fit.measured_s.min(), measured_fit.fitted_s.min())))
    high = 10.0 ** math.ceil(math.log10(max(measured_fit.measured_s.max(), measured_fit.fitted_s.max())))
    high = max(high, 10.0 * low)

    def place(seconds: float) -> float:
        return (math.log10(seconds) - math.log10(low)) / (math.log10(high) - math.log10(low)) * SIDE

    elements = [_line(place(low), place(low), place(high), place(high), "#888", "")]
    for off in (1.2, 1.0 / 1.2):
        elements.append(_line(place(low), place(low * off), place(high), place(high * off), "#bbb", "4 3"))
    for x, y in _drawn_points(measured_fit.measured_s, measured_fit.fitted_s):
        elements.append(f'<circle cx="{MARGIN + place(x):.1f}" cy="{SIDE - place(y) + 8:.1f}" r="2" fill="#1f6feb66"/>')
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    for decade in decades:
        at = place(10.0**decade)
        elements.append(f'<text x="{MARGIN + at:.0f}" y="{SIDE + 26}" text-anchor="middle">1e{decade}</text>')
        elements.append(f'<text x="{MARGIN - 4}" y="{SIDE - at + 12:.0f}" text-anchor="end">1e{decade}</text>')
    elements.append(f'<text x="{MARGIN + SIDE / 2:.0f}" y="{SIDE + 42}" text-anchor="middle">measured, s</text>')
    frame = f'<rect x="{MARGIN}" y="8" width="{SIDE}" height="{SIDE}" fill="none" stroke="#444"/>'
    size = f'width="{SIDE + MARGIN + 20}" height="{SIDE + 50}" font-size="11" font-family="system-ui"'
    error, count = 100 * measured_fit.fit.median_error, len(measured_fit.measured_s)
    label = f"{measured_fit.key}: {error:.1f} % held-out median, {count} measurements"
    drawn = "".join(elements)
    return f'<figure><figcaption>{html.escape(label)}</figcaption><svg {size} role="img">{frame}{drawn}</svg></figure>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str) -> str:
    ends = f'x1="{MARGIN + x1:.1f}" y1="{SIDE - y1 + 8:.1f}" x2="{MARGIN + x2:.1f}" y2="{SIDE - y2 + 8:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-dasharray="{dashes}"/>'


def _drawn_points(x: FloatArray, y: FloatArray) -> list[tuple[float, float]]:
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).astype(int))
    return list(zip(x[chosen].tolist(), y[chosen].tolist(), strict=True))
