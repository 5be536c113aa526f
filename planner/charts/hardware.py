"""What is known about hardware: GPUs by bandwidth and peak, listed prices, prediction errors against measured runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

import altair as alt

from hardware_db import Dtype, HardwareDb, Price, select_calibration, stale_days
from planner.charts.marks import (
    AXIS_HEIGHT_PX,
    BAR_HEIGHT_PX,
    BLUE,
    GREEN,
    GREY,
    LEGEND_HEIGHT_PX,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    inline_chart,
    layered,
    legend_of,
    point_styles,
    titled,
    words,
)
from planner.core import money, percent, significant
from planner.roofline import ridge_point_flops_per_byte
from planner.validation import FITTED, HELD_OUT, AccuracyRow

RIDGES_FLOPS_PER_BYTE = (50.0, 100.0, 200.0, 400.0, 800.0)
"""Ridge points that get a line: they span those of the packaged GPUs in 16 and in 8 bit. A choice."""
SKU_MAP_HEIGHT_PX = 480
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
SECOND_SUBTITLE_PX = 15
"""Height of the second line under a title."""
MARKED_AREA_PX2, UNMARKED_AREA_PX2 = 170, 70
"""Area of a named point of the map, and of another."""
GROUP_LABEL_LIMIT_PX = 330


# --- GPUs -------------------------------------------------------------------------------------------------------------


def knowledge(hardware: HardwareDb, sku: str, engine: str) -> tuple[str, str]:
    """How well the kernels of a GPU are known, and from which measurements (GPU and stack), if any.

    >>> from hardware_db import load_hardware
    >>> knowledge(load_hardware(), "h100-sxm", "vllm")
    ('own kernels measured', 'h100-sxm, vllm 0.24.0')
    """
    calibration = select_calibration(hardware, sku, engine)
    if calibration is None:
        return DATASHEET, ""
    own = PARTLY if calibration.lenders else OWN
    return (own if calibration.sku == sku else BORROWED), f"{calibration.sku}, {calibration.stack}"


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
                "name": sku.name,
                "vendor": sku.vendor,
                "year": sku.year,
                "bandwidth_tb_per_s": 1e-12 * sku.hbm_bandwidth_bytes_per_s.value,
                "peak_tflops_per_s": 1e-12 * sku.peak_flops_per_s[dtype].value,
                "ridge_flops_per_byte": ridge_point_flops_per_byte(sku, dtype),
                "capacity_gib": sku.hbm_capacity_bytes.value / 2**30,
                "knowledge": known,
                "measured_on": source,
                "is_marked": name in marked,
            }
        )
    return sorted(rows, key=lambda row: (row["peak_tflops_per_s"], row["sku"]))


def sku_map(rows: Sequence[Row], dtype: Dtype) -> alt.LayerChart:
    """GPUs by memory bandwidth and peak arithmetic, both logarithmic, with lines of equal ridge point."""
    marked = [row for row in rows if row["is_marked"]]
    x_domain = _log_domain([row["bandwidth_tb_per_s"] for row in rows])
    y_domain = _log_domain([row["peak_tflops_per_s"] for row in rows])
    x = alt.X(
        "bandwidth_tb_per_s:Q",
        title="HBM bandwidth [TB/s]",
        scale=alt.Scale(type="log", domain=x_domain, nice=False),
        axis=alt.Axis(values=_ticks(*x_domain), format="~g", grid=False),
    )
    y = alt.Y(
        "peak_tflops_per_s:Q",
        title=f"Dense peak {dtype} [TFLOP/s]",
        scale=alt.Scale(type="log", domain=y_domain, nice=False),
        axis=alt.Axis(values=_ticks(*y_domain), format=",~f", grid=False),
    )
    lines, ends = _ridge_lines(x_domain, y_domain)
    ridges = inline_chart(lines).mark_line(color=GREY, strokeDash=[4, 4], strokeWidth=1, opacity=0.6)
    layers = [
        ridges.encode(x=x, y=y, detail="ridge:N"),
        words(ends, GREY, "left", dx=12, dy=5).encode(x=x, y=y),
        _sku_points(rows, x, y),
    ]
    for dy, alternate in ((-14, marked[::2]), (16, marked[1::2])):
        labels = [{**row, "label": row["sku"]} for row in alternate]
        layers.append(words(labels, GREY, "center", dy=dy).encode(x=x, y=y))
    title = titled(
        f"Dense {dtype} peak and HBM bandwidth of {len(rows)} GPUs",
        [
            "Dashed: ridge points [FLOP/byte]. A kernel with fewer waits for memory.",
            "Large and named: searched, in the plan or chosen.",
        ],
    )
    return layered(layers, title, SKU_MAP_HEIGHT_PX, f"Memory bandwidth against {dtype} peak of GPUs")


def _sku_points(rows: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    styles = _present(KNOWLEDGE_STYLES, rows, "knowledge")
    below = legend_of(list(styles), "bottom", title=None, columns=3, labelLimit=220)
    color, shape = point_styles("knowledge", styles, below)
    marks = inline_chart(rows).mark_point(filled=True, opacity=0.9)
    points: alt.Chart = marks.encode(
        x=x,
        y=y,
        color=color,
        shape=shape,
        size=alt.condition("datum.is_marked", alt.value(MARKED_AREA_PX2), alt.value(UNMARKED_AREA_PX2)),
        tooltip=[
            alt.Tooltip("name:N", title="GPU"),
            alt.Tooltip("year:Q", title="Year", format="d"),
            alt.Tooltip("peak_tflops_per_s:Q", title="Dense peak [TFLOP/s]", format=",.4~r"),
            alt.Tooltip("bandwidth_tb_per_s:Q", title="HBM bandwidth [TB/s]", format=",.3~r"),
            alt.Tooltip("capacity_gib:Q", title="HBM [GiB]", format=",.4~r"),
            alt.Tooltip("ridge_flops_per_byte:Q", title="Ridge point [FLOP/byte]", format=",.0f"),
            alt.Tooltip("knowledge:N", title="Kernels"),
            alt.Tooltip("measured_on:N", title="Measured on"),
        ],
    )
    return points


def _present(styles: Mapping[str, tuple[str, str]], rows: Sequence[Row], field: str) -> dict[str, tuple[str, str]]:
    """The styles of those names that occur in a field of the rows."""
    names = {row[field] for row in rows}
    return {name: style for name, style in styles.items() if name in names}


def _ridge_lines(x_domain: list[float], y_domain: list[float]) -> tuple[list[Row], list[Row]]:
    """Both ends of every line of equal peak / bandwidth within the domains [TB/s, TFLOP/s], and their labels."""
    lines: list[Row] = []
    ends: list[Row] = []
    for ridge in RIDGES_FLOPS_PER_BYTE:
        low = max(x_domain[0], y_domain[0] / ridge)
        high = min(x_domain[1], y_domain[1] / ridge)
        if low >= high:
            continue
        ridge_name = significant(ridge)
        for bandwidth in (low, high):
            lines.append({"ridge": ridge_name, "bandwidth_tb_per_s": bandwidth, "peak_tflops_per_s": ridge * bandwidth})
        ends.append({**lines[-2], "label": ridge_name})
    return lines, ends


def _log_domain(values: Sequence[float]) -> list[float]:
    """A logarithmic axis around values, with some room."""
    return [min(values, default=1.0) / 1.4, max(values, default=1.0) * 1.6]


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

    Returns rows with sku, provider, region, commitment, way (the commitment without its term), usd_per_gpu_hour,
    age_days, read_on, confidence, gpus_per_instance, instance_type, is_used, read_how, source and note.
    """
    rows: list[Row] = [
        {
            "sku": price.sku,
            "provider": price.provider,
            "region": price.region,
            "commitment": price.commitment,
            "way": _commitment_kind(price.commitment),
            "usd_per_gpu_hour": price.usd_per_gpu_hour,
            "age_days": stale_days(price, day),
            "read_on": price.retrieved_on.isoformat(),
            "confidence": price.confidence.value,
            "gpus_per_instance": price.gpus_per_instance,
            "instance_type": price.instance_type,
            "is_used": price in used,
            "read_how": price.source_kind,
            "source": price.source_url,
            "note": price.note,
        }
        for price in prices
    ]
    cheapest: dict[str, float] = {}
    for row in rows:
        cheapest[row["sku"]] = min(row["usd_per_gpu_hour"], cheapest.get(row["sku"], math.inf))
    return sorted(rows, key=lambda row: (cheapest[row["sku"]], row["sku"], row["usd_per_gpu_hour"]))


def _commitment_kind(commitment: str) -> str:
    """A commitment without its term: ``reserved`` for ``reserved_1yr``."""
    return next((name for name in COMMITMENT_STYLES if commitment.startswith(name)), commitment)


def price_chart(rows: Sequence[Row]) -> alt.LayerChart:
    """Listed prices of each GPU by commitment, one mark each; a ring marks what the plan pays."""
    cheapest = min(rows, key=lambda row: row["usd_per_gpu_hour"])
    dearest = max(row["usd_per_gpu_hour"] for row in rows)
    skus = list(dict.fromkeys(row["sku"] for row in rows))
    x = alt.X(
        "usd_per_gpu_hour:Q",
        title="Price [USD per GPU-hour]",
        scale=alt.Scale(domain=[0.0, 1.08 * dearest], nice=False),
        axis=alt.Axis(format="$,~f", tickCount=8),
    )
    y = alt.Y("sku:N", title=None, sort=skus, axis=alt.Axis(labelLimit=260, labelOverlap=False, grid=True, ticks=False))
    ring = inline_chart([row for row in rows if row["is_used"]]).mark_point(size=260, color=GREY, strokeWidth=2)
    title = titled(
        f"Listed prices of {_names_or_count(skus)}",
        [
            f"Lowest: ${money(cheapest['usd_per_gpu_hour'])} ({cheapest['sku']}, {cheapest['provider']}, "
            f"{cheapest['commitment'].replace('_', ' ')}).",
            "One mark for each price that was read; a ring marks what the plan pays.",
        ],
    )
    layers = [_price_points(rows, x, y), ring.encode(x=x, y=y)]
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + SECOND_SUBTITLE_PX + BAR_HEIGHT_PX * len(skus)
    return layered(layers, title, height, "Listed prices in USD per GPU-hour")


def _price_points(rows: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    others = sorted({row["way"] for row in rows} - set(COMMITMENT_STYLES))
    styles = _present(COMMITMENT_STYLES, rows, "way") | dict.fromkeys(others, OTHER_COMMITMENT_STYLE)
    below = legend_of(list(styles), "bottom", title=None, labelExpr="replace(datum.label, '_', ' ')")
    color, shape = point_styles("way", styles, below)
    points: alt.Chart = (
        inline_chart(rows)
        .mark_point(filled=True, size=80, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=color,
            shape=shape,
            tooltip=[
                alt.Tooltip("sku:N", title="GPU"),
                alt.Tooltip("usd_per_gpu_hour:Q", title="USD per GPU-hour", format=",.3f"),
                alt.Tooltip("provider:N", title="Provider"),
                alt.Tooltip("region:N", title="Region"),
                alt.Tooltip("commitment:N", title="Commitment"),
                alt.Tooltip("gpus_per_instance:Q", title="GPUs per instance"),
                alt.Tooltip("read_on:N", title="Read on"),
                alt.Tooltip("age_days:Q", title="Age [days]"),
                alt.Tooltip("confidence:N", title="Confidence"),
            ],
        )
    )
    return points


def _names_or_count(skus: Sequence[str]) -> str:
    return " and ".join(skus) if len(skus) <= 2 else f"{len(skus)} GPUs"


# --- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy_chart_rows(rows: Iterable[AccuracyRow], metric: str) -> list[Row]:
    """Errors of every measured group in a metric: held-out groups first, then by median error.

    Returns rows with group (in words), label (the same, shorter; held-out ones say so), part, class, runs, predicted,
    median_percent, p90_percent, mape_percent, bias_percent (None where nothing was predicted) and measured (days, in
    words).
    """
    groups: list[Row] = [
        {
            "group": row.name,
            "label": _group_label(row),
            "part": row.part,
            "class": row.kind,
            "runs": row.runs,
            "predicted": row.predicted,
            "median_percent": 100.0 * row.median,
            "p90_percent": 100.0 * row.p90,
            "mape_percent": 100.0 * row.mape,
            "bias_percent": None if row.bias is None else 100.0 * row.bias,
            "measured": row.days,
        }
        for row in rows
        if row.is_group and row.metric == metric
    ]
    return sorted(groups, key=lambda row: (row["part"] != HELD_OUT, row["median_percent"], row["group"]))


def _group_label(row: AccuracyRow) -> str:
    mode = row.mode.removeprefix("mixed").strip()
    name = ", ".join(word for word in (row.model, row.sku, row.engine, mode) if word)
    return f"{name}: {HELD_OUT}" if row.part == HELD_OUT else name


def accuracy_chart(rows: Sequence[Row], metric: str, totals: Mapping[str, float]) -> alt.LayerChart:
    """Median error of every measured group with a line to its 90th percentile; labels name the held-out groups.

    Args:
        rows: of `accuracy_chart_rows`.
        metric: of the rows.
        totals: median error [fraction] over the held-out runs by class, for the subtitle; empty without such runs.
    """
    longest = max((row["p90_percent"] for row in rows), default=1.0)
    x = alt.X(
        "median_percent:Q",
        title=f"Error of mean {metric} [%]",
        scale=alt.Scale(domain=[0.0, 1.05 * longest], nice=False),
    )
    axis = alt.Axis(labelLimit=GROUP_LABEL_LIMIT_PX, labelOverlap=False, ticks=False)
    y = alt.Y("label:N", title=None, sort=[row["label"] for row in rows], axis=axis)
    styles = _present(ACCURACY_STYLES, rows, "part")
    color, shape = point_styles("part", styles, legend_of(list(styles), "bottom", title=None))
    tooltip = [
        alt.Tooltip("group:N", title="Runs of"),
        alt.Tooltip("median_percent:Q", title="Median error [%]", format=",.3~r"),
        alt.Tooltip("p90_percent:Q", title="9 of 10 runs below [%]", format=",.3~r"),
        alt.Tooltip("mape_percent:Q", title="Mean error [%]", format=",.3~r"),
        alt.Tooltip("bias_percent:Q", title="Bias [%]", format="+,.3~r"),
        alt.Tooltip("runs:Q", title="Runs"),
        alt.Tooltip("measured:N", title="Measured"),
    ]
    base = inline_chart(rows).encode(y=y, tooltip=tooltip)
    reach = base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=x, x2="p90_percent:Q", color=color)
    ticks = base.mark_tick(thickness=2, size=12).encode(x="p90_percent:Q", color=color)
    dots = base.mark_point(filled=True, size=90, opacity=1.0).encode(x=x, color=color, shape=shape)
    medians = ", ".join(f"{kind.partition(',')[0]} {percent(median)}" for kind, median in totals.items())
    shown = f"Held out: {medians} (median)." if medians else "Every group was fitted to."
    subtitle = [shown, "Mark: median of a group. Line: 9 of 10 runs are within it."]
    title = titled(f"Error of predicted {metric}, by group of measured runs", subtitle)
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + SECOND_SUBTITLE_PX + 22 * len(rows)
    return layered([reach, ticks, dots], title, height, f"Errors of predicted {metric} against measured runs")
