"""Draw docs/images/packages.svg: the packages in the bands of the chain, and what flows from one into another.

`python -m docs.packages` writes the picture anew from the imports as they are. An arrow goes from a package to one that
imports it; arrows that follow from others (a -> b -> c makes a -> c needless) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.repository.layers import edges

PICTURE = Path(__file__).parent / "images" / "packages.svg"
BANDS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("given", "models, GPUs, prices, traffic"): {
        "core": 0.08,
        "hardware_db": 0.3,
        "workload": 0.5,
        "llm": 0.7,
        "traffic": 0.92,
    },
    ("kernels", "operators, queues, programs"): {"roofline": 0.2, "queueing": 0.5, "optimizer": 0.8},
    ("step time and supply", "seconds a step, GPUs on offer"): {"engine": 0.3, "supply": 0.8},
    ("latency", "TTFT, TPOT, E2E, rates"): {"simulator": 0.15, "serving": 0.42, "search": 0.66},
    ("plan", "fleet, cost, verified targets"): {"calibration": 0.15, "fleet": 0.66},
    ("questions", "what limits, what if"): {"analysis": 0.66},
    ("in and out", "scenarios, reports, files"): {
        "report": 0.1,
        "scenario": 0.37,
        "launch": 0.63,
        "charts": 0.9,
    },
    ("faces", "command line, web app"): {"cli": 0.3, "web": 0.7},
}
"""Title of each band, what it gives to the next, and its packages with their place from left (0) to right (1)."""
WIDTH, BAND_HEIGHT, LABEL_WIDTH = 1060, 84, 200
BOX_WIDTH, BOX_HEIGHT = 112, 34
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2937 }
  .band { font-weight: 600 }
  .given { fill: #6b7280; font-size: 12px }
  rect { fill: #eef2ff; stroke: #6366f1 }
  path { fill: none; stroke: #9ca3af; marker-end: url(#tip) }
  .row { stroke: none; fill: #9ca3af; fill-opacity: 0.08 }
  #tip path { fill: #9ca3af; stroke: none; marker-end: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb } .given { fill: #9ca3af } rect { fill: #312e81; stroke: #818cf8 }
  }
"""


def short(package: str) -> str:
    """A package without `planner.`."""
    return package.removeprefix("planner.")


def flows() -> list[tuple[str, str]]:
    """Pairs (from, to) of packages, without those that follow from others."""
    imports = {short(package): {short(name) for name in names} for package, names in edges().items()}

    @cache
    def reached(package: str) -> set[str]:
        return imports[package].union(*(reached(name) for name in imports[package]))

    return sorted(
        (source, package)
        for package, sources in imports.items()
        for source in sources
        if not any(source in reached(other) for other in sources - {source})
    )


def places() -> dict[str, tuple[float, float]]:
    """Middle of the box of every package [px]."""
    middles = {}
    for row, packages in enumerate(BANDS.values()):
        for package, share in packages.items():
            middles[package] = (LABEL_WIDTH + (WIDTH - LABEL_WIDTH) * share, BAND_HEIGHT * (row + 0.5))
    return middles


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A curve from the lower edge of one box to the upper edge of another, or from side to side within a band."""
    (x1, y1), (x2, y2) = start, end
    half = BOX_HEIGHT / 2
    if y1 == y2:
        side = BOX_WIDTH / 2 if x2 > x1 else -BOX_WIDTH / 2
        if abs(x2 - x1) < 2.2 * BOX_WIDTH:
            return f'<path d="M{x1 + side:.0f} {y1:.0f} L{x2 - side:.0f} {y2:.0f}"/>'
        bow = y1 - half - 18
        return f'<path d="M{x1:.0f} {y1 - half:.0f} C{x1:.0f} {bow:.0f} {x2:.0f} {bow:.0f} {x2:.0f} {y2 - half:.0f}"/>'
    y1, y2 = (y1 + half, y2 - half) if y2 > y1 else (y1 - half, y2 + half)
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'


def svg() -> str:
    """The picture as text, the same for the same imports."""
    middles = places()
    height = BAND_HEIGHT * len(BANDS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Packages of the planner, and what flows from one into another</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
    ]
    for row, (band, given) in enumerate(BANDS):
        top = BAND_HEIGHT * row
        if row % 2:
            lines.append(f'<rect class="row" x="0" y="{top}" width="{WIDTH}" height="{BAND_HEIGHT}"/>')
        lines.append(f'<text class="band" x="12" y="{top + BAND_HEIGHT / 2 - 4:.0f}">{band}</text>')
        lines.append(f'<text class="given" x="12" y="{top + BAND_HEIGHT / 2 + 14:.0f}">{given}</text>')
    lines += [arrow(middles[source], middles[target]) for source, target in flows()]
    for package, (x, y) in middles.items():
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        lines.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{package}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
