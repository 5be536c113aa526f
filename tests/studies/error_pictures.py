"""The pictures of accuracy and its headline: every run predicted without its own model and SKU.

    python -m tests.studies.error_pictures [FOLDER]

`FOLDER` is what `tests.studies.engine_costs` wrote (``tests/studies/left_out``). Errors by load and by length of the
prompts go to `docs/images/accuracy-*.png`, the figures between the marks of the README. Needs vl-convert-python.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from planner.charts import Row, hardware
from planner.core import percent
from tests.studies.leave_one_out import LeftOut, coverage, median_error, runs_of
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


def error_rows(folder: Path) -> list[Row]:
    """Rows of `planner.charts.hardware.error_chart`, of the runs that have a prediction."""
    rows = []
    for run in (run for path in sorted(folder.glob("left_out-*.csv")) for run in read_rows(path)):
        lengths, *servers = run["set_up"].split()  # 1024/1024 2xTP4 1xDP8 EP8
        replicas = [int(found) for found in re.findall(r"(\d+)x", " ".join(servers))]
        named = {name: run[name] for name in ("class", "engine", "sku")} | {"run": run["source_id"]}
        load = {"batch": int(run["concurrency"]) / replicas[-1], "prompt_tokens": int(lengths.partition("/")[0])}
        for metric in METRICS:
            measured, predicted = run[f"measured_{metric}_s"], run[f"{metric}_s"]
            if measured and predicted:
                off = 100.0 * (float(predicted) / float(measured) - 1.0)
                rows.append({**named, **load, "metric": metric.upper(), "error_percent": off})
    return rows


def headline(runs: Sequence[LeftOut]) -> str:
    """Median errors by class with the group that is furthest off, the class of the largest error first; coverage."""
    parts, held = [], []
    for kind in sorted(NAMES, key=lambda name: -median_error([run for run in runs if run.kind == name], "tpot")):
        own = [run for run in runs if run.kind == kind]
        groups: dict[tuple[str, ...], list[LeftOut]] = {}
        for run in own:
            groups.setdefault((run.key.engine, run.group[1], run.key.sku), []).append(run)
        large = {group: members for group, members in groups.items() if len(members) >= FEWEST_RUNS}
        worst = max(large, key=lambda group: median_error(large[group], "tpot"))
        parts.append(f"{_in_words(own)} {NAMES[kind]} (worst: {', '.join(worst)}: {_in_words(large[worst])})")
        judged = [run for run in own if run.documented and run.predicted]
        held += [coverage(runs, judged, metric, lambda run: (run.group[1], run.key.sku))[0] for metric in METRICS]
    return (
        f"- **Against {len(runs):,} measured serving runs**, each predicted without its own model and GPU, median "
        f"errors in TPOT and TTFT are {'; '.join(parts)}; {100.0 * min(held):.0f} to {percent(max(held))} "
        "of documented means lie in their 90 % intervals ([accuracy](docs/studies/accuracy.md))."
    )


def _in_words(runs: Sequence[LeftOut]) -> str:
    return " and ".join(percent(median_error(runs, metric)) for metric in METRICS)


def draw(rows: Sequence[Row], by: str, path: Path) -> None:
    """Errors over a column of `planner.charts.hardware.ERROR_AXES` as PNG."""
    chart = hardware.error_chart(rows, by).configure_axis(labelFontSize=16, titleFontSize=17, labelColor="black")
    chart = chart.configure_title(fontSize=18, subtitleFontSize=16).configure_legend(labelFontSize=18, symbolSize=160)
    drawn = io.BytesIO()
    chart.save(drawn, format="png", scale_factor=SCALE)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    """Draw, and write the README."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "left_out"
    rows = error_rows(folder)
    for by in hardware.ERROR_AXES:
        draw(rows, by, ROOT / "docs" / "images" / f"accuracy-{by.partition('_')[0]}.png")
    text = headline(runs_of(folder))
    write_between(ROOT / "README.md", BEGIN, END, text)
    print(text)


if __name__ == "__main__":
    main()
