"""GPUs by bandwidth and peak, listed prices, prediction errors against measured runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import altair as alt
import numpy as np

from calibration import FITTED, HELD_OUT, AccuracyRow, Scoreboard, ServingPoint, serving_class
from hardware_db import Dtype, HardwareDb, Price, select_calibration, sku_words, stale_days
from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SECOND_SUBTITLE_PX,
    SKY,
    VERMILLION,
    Row,
    axis,
    bars_px,
    dots,
    inline_chart,
    layered,
    legend_of,
    present,
    rules,
    series,
    titled,
    tooltip,
    words,
)
from planner.core import GIB, money, percent, significant
from planner.roofline import ridge_point_flops_per_byte

RIDGES_FLOPS_PER_BYTE = (50.0, 100.0, 200.0, 400.0, 800.0)
"""Ridge points that get a line: they span those of the packaged GPUs in 16 and in 8 bit. A choice."""
OWN, PARTLY, BORROWED, DATASHEET = "own kernels measured", "measured in part", "shares of a relative", "datasheet only"
"""How well the kernels of a GPU are known."""
KNOWLEDGE_STYLES = {
    OWN: (BLUE, "circle"),
    PARTLY: (GREEN, "diamond"),
    BORROWED: (ORANGE, "triangle-up"),
    DATASHEET: (VERMILLION, "square"),
}
COMMITMENT_STYLES = {
    "on_demand": (BLUE, "circle"),
    "spot": (ORANGE, "triangle-up"),
    "reserved": (GREEN, "square"),
    "community": (VERMILLION, "diamond"),
    "marketplace": (SKY, "cross"),
}
OTHER_COMMITMENT_STYLE = (GREY, "stroke")
ACCURACY_STYLES = {HELD_OUT: (BLUE, "circle"), FITTED: (ORANGE, "diamond")}
PARITY_COLORS = (BLUE, VERMILLION, GREEN, ORANGE, SKY)
PARITY_BAND = 0.2
"""Half width of the band around the diagonal of a parity plot: 20 %."""
PARITY_PX = 320
"""Side of one panel of it."""
ENGINE_STYLES = {
    "vllm": (BLUE, "circle"),
    "sglang": (ORANGE, "triangle-up"),
    "tensorrt-llm": (GREEN, "square"),
    "atom": (VERMILLION, "diamond"),
}
ERROR_AXES = {"batch": ("Users of a replica", 1), "prompt_tokens": ("Prompt [tokens]", 2)}
"""Column that errors are drawn over -> title of its axis, and a tick: the others are powers of eight from it."""
FARTHEST_PERCENT = 150.0
"""Errors beyond lie at the edge."""
LEAST_OF_BIN = 8
"""Fewest runs near a power of two that have a median and a band of their own. A choice."""
ERROR_PX = (300, 190)
"""Width and height of one panel of errors."""
MARKED_AREA_PX2, UNMARKED_AREA_PX2 = 170, 70
"""Area of a named point of the map, and of another."""


# --- GPUs -------------------------------------------------------------------------------------------------------------


def knowledge(hardware: HardwareDb, sku: str, engine: str) -> tuple[str, str]:
    """How well the kernels of a GPU are known, and from which measurements (GPU and stack), if any.

    >>> from hardware_db import load_hardware
    >>> knowledge(load_hardware(), "h100-sxm", "vllm")
    ('own kernels measured', 'H100 SXM, vllm 0.24.0')
    """
    calibration = select_calibration(hardware, sku, engine)
    if calibration is None:
        return DATASHEET, ""
    own = PARTLY if calibration.lenders else OWN
    return (own if calibration.sku == sku else BORROWED), f"{sku_words(calibration.sku)}, {calibration.stack}"


def sku_map_rows(hardware: HardwareDb, dtype: Dtype, engine: str, marked: Collection[str] = ()) -> list[Row]:
    """GPUs that multiply in a format, by bandwidth and peak, in order of the peak.

    Args:
        hardware: SKUs and calibrations.
        dtype: format of the matrix units; GPUs without a published peak for it are left out.
        engine: whose calibrations are preferred.
        marked: ids of the GPUs that are named on the map.

    Returns rows with sku, name, vendor, year, bandwidth_tb_per_s [1e12 bytes/s], peak_tflops_per_s [1e12 FLOP/s,
    dense], ridge_flops_per_byte, capacity_gib, knowledge (see `knowledge`), measured_on and is_marked.
    """
    rows: list[Row] = []
    for name, sku in hardware.skus.items():
        if dtype not in sku.peak_flops_per_s:
            continue
        known, source = knowledge(hardware, name, engine)
        rows.append(
            {
                "sku": name,
                **{field: getattr(sku, field) for field in ("name", "vendor", "year")},
                "bandwidth_tb_per_s": 1e-12 * sku.hbm_bandwidth_bytes_per_s.value,
                "peak_tflops_per_s": 1e-12 * sku.peak_flops_per_s[dtype].value,
                "ridge_flops_per_byte": ridge_point_flops_per_byte(sku, dtype),
                "capacity_gib": sku.hbm_capacity_bytes.value / GIB,
                "knowledge": known,
                "measured_on": source,
                "is_marked": name in marked,
            }
        )
    return sorted(rows, key=lambda row: (row["peak_tflops_per_s"], row["sku"]))


def sku_map(rows: Sequence[Row], dtype: Dtype) -> alt.LayerChart:
    """GPUs by memory bandwidth and peak arithmetic, both logarithmic, with lines of equal ridge point."""
    known = [[row[name] for row in rows] or [1.0] for name in ("bandwidth_tb_per_s", "peak_tflops_per_s")]
    across, up = ([min(values) / 1.4, max(values) * 1.6] for values in known)  # with some room
    form: dict[str, Any] = {"log": True, "grid": False}
    x = axis(alt.X, "bandwidth_tb_per_s", "HBM bandwidth [TB/s]", across, values=_ticks(*across), format="~g", **form)
    y = axis(alt.Y, "peak_tflops_per_s", f"Dense peak {dtype} [TFLOP/s]", up, values=_ticks(*up), format=",~f", **form)
    shown = tooltip(
        *("peak_tflops_per_s", "bandwidth_tb_per_s", "capacity_gib", "ridge_flops_per_byte", "knowledge"),
        **{"name": "GPU", "year": "Year", "measured_on": "Measured on"},
    )
    styles = present(KNOWLEDGE_STYLES, rows, "knowledge")
    below = legend_of(list(styles), "bottom", title=None, columns=3, labelLimit=220)
    area = alt.condition("datum.is_marked", alt.value(MARKED_AREA_PX2), alt.value(UNMARKED_AREA_PX2))
    points = dots(rows, shown, x=x, y=y, **series("knowledge", styles, below)).encode(size=area)
    ridges, ends = _ridge_lines(across, up)
    lines = inline_chart(ridges).mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1, opacity=0.6)
    layers = [points, lines.encode(x=x, y=y, detail="ridge:N"), words(ends, GREY, "left", dx=12, dy=5).encode(x=x, y=y)]
    marked = [{**row, "label": sku_words(row["sku"])} for row in rows if row["is_marked"]]
    for dy, alternate in ((-14, marked[::2]), (16, marked[1::2])):
        layers.append(words(alternate, GREY, "center", dy=dy).encode(x=x, y=y))
    title = titled(
        f"Dense {dtype} peak and HBM bandwidth of {len(rows)} GPUs",
        [
            "Dashed: ridge points [FLOP/byte]. A kernel with fewer waits for memory.",
            "Large and named: searched, in the plan or chosen.",
        ],
    )
    return layered(layers, title, 480, f"Memory bandwidth against {dtype} peak of GPUs")


def _ridge_lines(x_domain: list[float], y_domain: list[float]) -> tuple[list[Row], list[Row]]:
    """Both ends of every line of equal peak / bandwidth within the domains [TB/s, TFLOP/s], and their labels."""
    lines: list[Row] = []
    ends: list[Row] = []
    for ridge in RIDGES_FLOPS_PER_BYTE:
        low, high = max(x_domain[0], y_domain[0] / ridge), min(x_domain[1], y_domain[1] / ridge)
        if low < high:
            name = significant(ridge)
            for bandwidth in (low, high):
                lines.append({"ridge": name, "bandwidth_tb_per_s": bandwidth, "peak_tflops_per_s": ridge * bandwidth})
            ends.append({**lines[-2], "label": name})
    return lines, ends


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two values."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**decade for decade in decades for step in (1, 2, 5) if low <= step * 10.0**decade <= high]


# --- prices -----------------------------------------------------------------------------------------------------------


def price_rows(prices: Iterable[Price], day: date, used: Collection[Price] = ()) -> list[Row]:
    """Listed prices with their age, the GPU with the lowest price first.

    Args:
        prices: to show.
        day: that their age is counted to.
        used: those that a plan pays.

    Returns rows with the fields of `hardware_db.Price`, way (the commitment without its term: ``reserved`` for
    ``reserved_1yr``), age_days and is_used.
    """
    cheapest: dict[str, float] = {}
    rows: list[Row] = []
    for price in prices:
        cheapest[price.sku] = min(price.usd_per_gpu_hour, cheapest.get(price.sku, math.inf))
        kind = next((name for name in COMMITMENT_STYLES if price.commitment.startswith(name)), price.commitment)
        own = {"way": kind, "age_days": stale_days(price, day), "is_used": price in used}
        rows.append(price.model_dump(mode="json") | own)
    return sorted(rows, key=lambda row: (cheapest[row["sku"]], row["sku"], row["usd_per_gpu_hour"]))


def price_chart(rows: Sequence[Row]) -> alt.LayerChart:
    """Listed prices of each GPU by commitment, one mark each; a ring marks what the plan pays."""
    rows = [row | {"sku": sku_words(row["sku"])} for row in rows]
    cheapest = min(rows, key=lambda row: row["usd_per_gpu_hour"])
    skus = list(dict.fromkeys(row["sku"] for row in rows))
    ends = [0.0, 1.08 * max(row["usd_per_gpu_hour"] for row in rows)]
    x = axis(alt.X, "usd_per_gpu_hour", "Price [USD per GPU-hour]", ends, format="$,~f", tickCount=8)
    y = alt.Y("sku:N", title=None, sort=skus, axis=alt.Axis(labelLimit=260, labelOverlap=False, grid=True, ticks=False))
    others = sorted({row["way"] for row in rows} - set(COMMITMENT_STYLES))
    styles = present(COMMITMENT_STYLES, rows, "way") | dict.fromkeys(others, OTHER_COMMITMENT_STYLE)
    below = legend_of(list(styles), "bottom", title=None, labelExpr="replace(datum.label, '_', ' ')")
    shown = tooltip(
        *("usd_per_gpu_hour", "provider", "region", "commitment", "gpus_per_instance", "age_days", "confidence"),
        **{"sku": "GPU", "retrieved_on": "Read on"},
    )
    ring = inline_chart([row for row in rows if row["is_used"]]).mark_point(size=260, color=GREY, strokeWidth=2)
    points = dots(rows, shown, size=80, x=x, y=y, **series("way", styles, below))
    commitment = cheapest["commitment"].replace("_", " ")
    lowest = f"${money(cheapest['usd_per_gpu_hour'])} ({cheapest['sku']}, {cheapest['provider']}, {commitment})"
    title = titled(
        f"Listed prices of {' and '.join(skus) if len(skus) <= 2 else f'{len(skus)} GPUs'}",
        [f"Lowest: {lowest}.", "One mark for each price that was read; a ring marks what the plan pays."],
    )
    height = SECOND_SUBTITLE_PX + bars_px(len(skus), legend=True)
    return layered([points, ring.encode(x=x, y=y)], title, height, "Listed prices in USD per GPU-hour")


# --- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy_chart_rows(rows: Iterable[AccuracyRow], metric: str) -> list[Row]:
    """Errors of every measured group in a metric: held-out groups first, then by median error.

    Returns rows with group (in words), label (the same, shorter; held-out ones say so), part, class, runs, predicted,
    median_percent, p90_percent, mape_percent, bias_percent (None where nothing was predicted) and measured (days, in
    words).
    """
    groups: list[Row] = []
    for row in rows:
        if row.is_group and row.metric == metric:
            mode = row.mode.removeprefix("mixed").strip()
            label = ", ".join(word for word in (row.model, row.sku, row.engine, mode) if word)
            label = f"{label}: {HELD_OUT}" if row.part == HELD_OUT else label
            named = {"group": row.name, "label": label, "part": row.part, "class": row.kind, "measured": row.days}
            errors = {"median": row.median, "p90": row.p90, "mape": row.mape, "bias": row.bias}
            in_percent = {f"{name}_percent": None if e is None else 100.0 * e for name, e in errors.items()}
            groups.append({**named, "runs": row.runs, "predicted": row.predicted, **in_percent})
    return sorted(groups, key=lambda row: (row["part"] != HELD_OUT, row["median_percent"], row["group"]))


def accuracy_chart(rows: Sequence[Row], metric: str, totals: Mapping[str, float]) -> alt.LayerChart:
    """Median error of every measured group with a line to its 90th percentile; labels name the held-out groups.

    Args:
        rows: of `accuracy_chart_rows`.
        metric: of the rows.
        totals: median error [fraction] over the held-out runs by class, for the subtitle; empty without such runs.
    """
    longest = max((row["p90_percent"] for row in rows), default=1.0)
    x = axis(alt.X, "median_percent", f"Error of mean {metric} [%]", [0.0, 1.05 * longest])
    names = alt.Axis(labelLimit=330, labelOverlap=False, ticks=False)
    y = alt.Y("label:N", title=None, sort=[row["label"] for row in rows], axis=names)
    styles = present(ACCURACY_STYLES, rows, "part")
    look = series("part", styles, legend_of(list(styles), "bottom", title=None))
    shown = tooltip("group", "median_percent", "p90_percent", "mape_percent", "bias_percent", "runs", "measured")
    base = inline_chart(rows).encode(y=y, tooltip=shown, color=look["color"])
    reach = base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=x, x2="p90_percent:Q")
    ticks = base.mark_tick(thickness=2, size=12).encode(x="p90_percent:Q")
    medians = ", ".join(f"{kind.partition(',')[0]} {percent(median)}" for kind, median in totals.items())
    held_out = f"Held out: {medians} (median)." if medians else "Every group was fitted to."
    subtitle = [held_out, "Mark: median of a group. Line: 9 of 10 runs are within it."]
    title = titled(f"Error of predicted {metric}, by group of measured runs", subtitle)
    layers = [reach, ticks, dots(rows, shown, size=90, x=x, y=y, **look)]
    height = SECOND_SUBTITLE_PX + bars_px(len(rows), 22, legend=True)
    return layered(layers, title, height, f"Errors of predicted {metric} against measured runs")


def parity_rows(board: Scoreboard, names: Collection[str] = ()) -> list[Row]:
    """Measured against predicted times of every run: TPOT, TTFT and each further figure, or those of `names`.

    Returns rows with run, figure, class, sku, part, measured_ms and predicted_ms.
    """
    rows: list[Row] = []
    for one, fitted in zip(board.predictions, board.fitted, strict=True):
        point = one.point
        pairs = [("TPOT", point.mean_tpot_s, one.tpot_s), ("TTFT", point.mean_ttft_s, one.ttft_s)]
        found = zip(point.figures, one.figures_s, strict=False)  # of a run without a prediction there are none
        pairs += [(figure.name, figure.value_s, predicted_s) for figure, predicted_s in found]
        named = {"run": point.id, "class": serving_class(point).value, "sku": point.sku}
        for figure, measured_s, predicted_s in pairs:
            if measured_s and predicted_s and (not names or figure in names):
                times = {"measured_ms": 1e3 * measured_s, "predicted_ms": 1e3 * predicted_s}
                rows.append({**named, "figure": figure, "part": FITTED if fitted else HELD_OUT, **times})
    return rows


def parity_chart(rows: Sequence[Row], color: str = "class") -> alt.ConcatChart:
    """Predicted against measured times: a panel for each figure, logarithmic, with a band of 20 %.

    Args:
        rows: of `parity_rows`.
        color: column that colours tell apart; groups that were fitted to are paler.
    """
    kinds = sorted({row[color] for row in rows})
    styles = {kind: (PARITY_COLORS[place % len(PARITY_COLORS)], "circle") for place, kind in enumerate(kinds)}
    pale = alt.Opacity("part:N", legend=None, scale=alt.Scale(domain=[FITTED, HELD_OUT], range=[0.35, 0.9]))
    shown = tooltip("run", "class", "sku", "part", "measured_ms", "predicted_ms")
    panels = []
    for figure in dict.fromkeys(row["figure"] for row in rows):
        own = [row for row in rows if row["figure"] == figure]
        times = [row[column] for row in own for column in ("measured_ms", "predicted_ms")]
        ends = (min(times) / 1.25, max(times) * 1.25)
        x = axis(alt.X, "measured_ms", f"Measured {figure} [ms]", ends, log=True)
        y, low = (axis(alt.Y, name, f"Predicted {figure} [ms]", ends, log=True) for name in ("predicted_ms", "low"))
        edges = [{"measured_ms": at, "low": at * (1 - PARITY_BAND), "high": at * (1 + PARITY_BAND)} for at in ends]
        band = inline_chart(edges).mark_area(clip=True, color=GREY, opacity=0.18)
        diagonal = inline_chart([{"measured_ms": at, "predicted_ms": at} for at in ends]).mark_line(color=GREY)
        points = dots(own, shown, size=25, x=x, y=y, **series(color, styles, legend_of(kinds, "bottom", title=None)))
        layers = [band.encode(x=x, y=low, y2="high:Q"), diagonal.encode(x=x, y=y), points.encode(opacity=pale)]
        title = titled(figure, "Band: 20 %. Pale: fitted to.")
        panels.append(
            layered(layers, title, PARITY_PX, f"{figure}, predicted against measured").properties(width=PARITY_PX)
        )
    return alt.concat(*panels, columns=3)


def accuracy_page(times: Sequence[Row], errors: Sequence[Row]) -> str:
    """Predicted against measured times, and errors by load and by length of the prompts, as an HTML page.

    Args:
        times: of `parity_rows`.
        errors: of `error_rows`.
    """
    by = [error_chart(errors, column) for column in ERROR_AXES] if errors else []
    return str(alt.vconcat(parity_chart(times), *by).to_html())


def error_rows(board: Scoreboard) -> list[Row]:
    """Signed errors of the predicted means of every run, with the load and the prompts that it had.

    Returns rows with run, class, engine, sku, metric (TPOT or TTFT), batch (users of a replica that writes),
    prompt_tokens (nominal) and error_percent.
    """
    rows: list[Row] = []
    for one in board.predictions:
        point = one.point
        for metric, error in (("TPOT", one.tpot_error), ("TTFT", one.ttft_error)):
            if error is not None and one.tpot_s is not None and isinstance(point, ServingPoint):
                named = {"run": point.id, "class": serving_class(point).value, "engine": point.engine}
                load = {"batch": point.concurrency / point.servers[-1].workers, "prompt_tokens": point.input_tokens}
                rows.append({**named, "sku": point.sku, "metric": metric, **load, "error_percent": 100.0 * error})
    return rows


def error_chart(rows: Sequence[Row], by: str) -> alt.ConcatChart:
    """Signed errors of every run over its load or its prompts: a panel for each class and metric, engines by colour.

    A line joins the medians of the runs near each power of two, and the band holds 90 % of them.

    Args:
        rows: of `error_rows`.
        by: ``batch`` or ``prompt_tokens``.
    """
    across, tick = ERROR_AXES[by]
    known = [row[by] for row in rows] or [1.0]
    ends = (min(known) / 1.4, max(known) * 1.4)
    ticks = [at for at in (tick * 8.0**power for power in range(-4, 8)) if ends[0] <= at <= ends[1]]
    styles = present(ENGINE_STYLES, rows, "engine")
    look = series("engine", styles, legend_of(list(styles), "bottom", title=None))
    shown = tooltip("run", "class", "engine", "sku", "error_percent", **{by: across})
    kinds, panels = sorted({row["class"] for row in rows}), []
    for kind in kinds:
        for metric in ("TPOT", "TTFT"):
            own = [row for row in rows if (row["class"], row["metric"]) == (kind, metric)]
            if not own:
                continue
            bins = _bins(own, by)
            x = axis(
                alt.X, by, across if kind == kinds[-1] else "", ends, log=True, values=ticks, grid=False, format="~r"
            )
            limits = (-100.0, FARTHEST_PERCENT)
            title = "Error [%]" if metric == "TPOT" else ""
            y, low, middle = (
                axis(alt.Y, name, title, limits, values=[-100, -50, 0, 50, 100, 150])
                for name in ("error_percent", "low", "median")
            )
            middles = [_bin_row(at, members) for at, members in bins if len(members) >= LEAST_OF_BIN]
            area = inline_chart([{**row, by: row["at"]} for row in middles]).mark_area(color=GREY, opacity=0.25)
            line = inline_chart([{**row, by: row["at"]} for row in middles]).mark_line(
                color="black", point={"color": "black"}
            )
            points = dots(_side_by_side(bins, by), shown, size=26, x=x, y=y, **look).encode(opacity=alt.value(0.45))
            layers = [
                area.encode(x=x, y=low, y2="high:Q"),
                rules([{"error_percent": 0.0}], y=y),
                points,
                line.encode(x=x, y=middle),
            ]
            name = titled(f"{metric}, {kind}", f"{len(own)} runs")
            panel = layered(layers, name, ERROR_PX[1], f"Errors of {metric} by {across}, {kind}")
            panels.append(panel.properties(width=ERROR_PX[0]))
    return alt.concat(*panels, columns=2)


def _bins(rows: Sequence[Row], by: str) -> list[tuple[float, list[Row]]]:
    """Rows by the power of two that is nearest in a column."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(round(math.log2(row[by])), []).append(row)
    return [(2.0**power, found[power]) for power in sorted(found)]


def _bin_row(at: float, rows: Sequence[Row]) -> Row:
    """Median and the middle 90 % of the errors of some rows, within the axis."""
    low, median, high = np.quantile([row["error_percent"] for row in rows], (0.05, 0.5, 0.95)).tolist()
    return {"at": at, "low": low, "median": median, "high": min(high, FARTHEST_PERCENT)}


def _side_by_side(bins: Sequence[tuple[float, list[Row]]], by: str) -> list[Row]:
    """Rows of a bin beside one another over half an octave, those beyond the axis at its edge."""
    rows: list[Row] = []
    for at, members in bins:
        for place, row in enumerate(members):
            moved = at * 2.0 ** (0.5 * (place + 0.5) / len(members) - 0.25)
            rows.append({**row, by: moved, "error_percent": min(row["error_percent"], FARTHEST_PERCENT)})
    return rows
