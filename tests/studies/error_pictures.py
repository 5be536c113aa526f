"""The pictures of accuracy and its headline: every run predicted without its own model and SKU.

    python -m tests.studies.error_pictures [FOLDER]

`FOLDER` is what `tests.studies.engine_costs` wrote (``tests/studies/left_out``). Errors by load and by length of the
prompts go to `docs/images/accuracy-*.png`, the figures between the marks of the README. Needs vl-convert-python.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from planner.charts import Row, hardware
from planner.core import percent
from tests.studies.rows import read_rows, write_between

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- accuracy -->", "<!-- /accuracy -->"
METRICS = ("tpot", "ttft")
NAMES = {
    "dense, mixed": "dense",
    "MoE and MLA, mixed": "with experts",
    "disaggregated": "disaggregated",
}
FEWEST_RUNS = 10
"""Of a group that is named as the worst of its class."""
SCALE, COLOURS = 2.0, 96
"""Pixels of a picture for each of its chart, and colours of its palette. The chart is 750 wide, so that a phone of 390
shows its letters of 16 px at 8."""

Line = Mapping[str, str]


def read_runs(folder: Path) -> list[Line]:
    """The runs of all engines."""
    return [line for path in sorted(folder.glob("left_out-*.csv")) for line in read_rows(path)]


def error(run: Line, metric: str) -> float | None:
    """Predicted / measured - 1 of a run; 1 without a prediction, None where nothing was measured."""
    measured, predicted = run[f"measured_{metric}_s"], run[f"{metric}_s"]
    if not measured:
        return None
    return float(predicted) / float(measured) - 1.0 if predicted else 1.0


def error_rows(runs: Iterable[Line]) -> list[Row]:
    """Rows of `planner.charts.hardware.error_chart`, of the runs that have a prediction."""
    rows = []
    for run in runs:
        lengths, *servers = run["set_up"].split()  # 1024/1024 2xTP4 1xDP8 EP8
        replicas = [int(found) for found in re.findall(r"(\d+)x", " ".join(servers))]
        named = {name: run[name] for name in ("class", "engine", "sku")} | {"run": run["source_id"]}
        load = {"batch": int(run["concurrency"]) / replicas[-1], "prompt_tokens": int(lengths.partition("/")[0])}
        for metric in METRICS:
            off = None if run["reason"] else error(run, metric)
            if off is not None:
                rows.append({**named, **load, "metric": metric.upper(), "error_percent": 100.0 * off})
    return rows


def headline(runs: Sequence[Line]) -> str:
    """Median errors by class with the group that is furthest off, the class of the largest error first."""
    parts = []
    for kind in sorted(NAMES, key=lambda name: -_medians(run for run in runs if run["class"] == name)[0]):
        groups: dict[tuple[str, ...], list[Line]] = {}
        for run in runs:
            if run["class"] == kind:
                groups.setdefault(tuple(run[name] for name in ("engine", "model", "sku")), []).append(run)
        large = {group: own for group, own in groups.items() if len(own) >= FEWEST_RUNS}
        (engine, model, sku), worst = max(large.items(), key=lambda item: _medians(item[1])[0])
        named = f"worst: {engine}, {model.rsplit('/', 1)[-1]}, {sku}: {_in_words(worst)}"
        parts.append(f"{_in_words(run for own in groups.values() for run in own)} {NAMES[kind]} ({named})")
    return (
        f"- **Against {len(runs):,} measured serving runs**, each predicted without its own model and GPU, median "
        f"errors in TPOT and TTFT are {'; '.join(parts)} ([accuracy](docs/studies/accuracy.md))."
    )


def _medians(runs: Iterable[Line]) -> list[float]:
    """Median size of the errors in each metric."""
    own = list(runs)
    found = ([error(run, metric) for run in own] for metric in METRICS)
    return [float(np.median([abs(off) for off in errors if off is not None] or [np.nan])) for errors in found]


def _in_words(runs: Iterable[Line]) -> str:
    return " and ".join(percent(median) for median in _medians(runs))


def draw(rows: Sequence[Row], by: str, path: Path) -> None:
    """Errors over a column of `planner.charts.hardware.ERROR_AXES` as PNG."""
    chart = hardware.error_chart(rows, by).configure_axis(labelFontSize=16, titleFontSize=17, labelColor="black")
    chart = chart.configure_title(fontSize=18, subtitleFontSize=16).configure_legend(labelFontSize=18, symbolSize=160)
    drawn = io.BytesIO()
    chart.save(drawn, format="png", scale_factor=SCALE)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    """Draw, and write the README."""
    runs = read_runs(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "left_out")
    rows = error_rows(runs)
    for by in hardware.ERROR_AXES:
        draw(rows, by, ROOT / "docs" / "images" / f"accuracy-{by.partition('_')[0]}.png")
    text = headline(runs)
    write_between(ROOT / "README.md", BEGIN, END, text)
    print(text)


if __name__ == "__main__":
    main()
