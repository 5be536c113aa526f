"""What is known about hardware: GPUs by bandwidth and peak, prices by GPU, errors against measured runs."""

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
    titled,
    words,
)
from planner.core import money, percent, significant
from planner.roofline import ridge_point_flops_per_byte
from planner.validation import FITTED, HELD_OUT, AccuracyRow

RIDGES_FLOPS_PER_BYTE = (50.0, 100.0, 200.0, 400.0, 800.0)
"""Ridge points that get a line: they span those of the packaged GPUs in 16 and in 8 bit."""
SKU_HEIGHT_PX = 480
OWN, BORROWED, DATASHEET = "own kernels measured", "shares of a relative", "datasheet only"
"""How well the kernels of a GPU are known."""
_KNOWLEDGE = ((OWN, BLUE, "circle"), (BORROWED, ORANGE, "triangle-up"), (DATASHEET, VERMILLION, "square"))
_COMMITMENTS = (
    ("on_demand", BLUE, "circle"),
    ("spot", ORANGE, "triangle-up"),
    ("reserved", GREEN, "square"),
    ("community", VERMILLION, "diamond"),
    ("marketplace", SKY, "cross"),
)
LINE_PX = 15
"""Height of one more line under a title."""
_MARKED, _UNMARKED = 170, 70
"""Size of a point that is spoken of, and of another [square px]."""
_LABEL_LIMIT_PX = 330


# --- GPUs -------------------------------------------------------------------------------------------------------------


def knowledge(hardware: HardwareDb, sku: str, engine: str) -> tuple[str, str]:
    """How well the kernels of a GPU are known, and from which measurements (GPU and stack), if any.

    >>> from hardware_db import load_hardware
    >>> knowledge(load_hardware(), "h100-sxm", "vllm")
    ('own kernels measured', 'h100-sxm, vllm 0.24.0')
    """
    found = select_calibration(hardware, sku, engine)
    if found is None:
        return DATASHEET, ""
    return (OWN if found.sku == sku else BORROWED), f"{found.sku}, {found.stack}"


def sku_map_rows(hardware: HardwareDb, dtype: Dtype, engine: str, marked: Collection[str] = ()) -> list[Row]:
    """GPUs that multiply in a format, by bandwidth and peak, in order of the peak.

    Args:
        hardware: SKUs and calibrations.
        dtype: format of the matrix units; GPUs without a published peak for it are left out.
        engine: whose calibrations are preferred.
        marked: ids of those spoken of.

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
    x_domain = _span([row["bandwidth_tb_per_s"] for row in rows])
    y_domain = _span([row["peak_tflops_per_s"] for row in rows])
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
    for dy, part in ((-14, marked[::2]), (16, marked[1::2])):
        labels = [{**row, "label": row["sku"]} for row in part]
        layers.append(words(labels, GREY, "center", dy=dy).encode(x=x, y=y))
    title = titled(
        f"Dense {dtype} peak and HBM bandwidth of {len(rows)} GPUs",
        [
            "Dashed: ridge points [FLOP/byte]. A kernel with fewer waits for memory.",
            "Large and named: searched, in the plan or chosen.",
        ],
    )
    return layered(layers, title, SKU_HEIGHT_PX, f"Memory bandwidth against {dtype} peak of GPUs")


def _sku_points(rows: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    present = [entry for entry in _KNOWLEDGE if any(row["knowledge"] == entry[0] for row in rows)]
    names, colors, shapes = ([entry[place] for entry in present] for place in range(3))
    legend = alt.Legend(title=None, orient="bottom", columns=3, labelLimit=220)
    marks = inline_chart(rows).mark_point(filled=True, opacity=0.9)
    points: alt.Chart = marks.encode(
        x=x,
        y=y,
        color=alt.Color("knowledge:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        shape=alt.Shape("knowledge:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
        size=alt.condition("datum.is_marked", alt.value(_MARKED), alt.value(_UNMARKED)),
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


def _ridge_lines(x_domain: list[float], y_domain: list[float]) -> tuple[list[Row], list[Row]]:
    """Both ends of every line of equal peak / bandwidth within the domains [TB/s, TFLOP/s]; its words at the lower."""
    lines: list[Row] = []
    ends: list[Row] = []
    for ridge in RIDGES_FLOPS_PER_BYTE:
        low = max(x_domain[0], y_domain[0] / ridge)
        high = min(x_domain[1], y_domain[1] / ridge)
        if low >= high:
            continue
        ridge_name = significant(ridge)
        for bandwidth in (low, high):
            place = {"bandwidth_tb_per_s": bandwidth, "peak_tflops_per_s": ridge * bandwidth}
            lines.append({"ridge": ridge_name, **place})
        ends.append({**lines[-2], "label": ridge_name})
    return lines, ends


def _span(values: Iterable[float]) -> list[float]:
    """A logarithmic axis around values, with some room."""
    found = list(values) or [1.0]
    return [min(found) / 1.4, max(found) * 1.6]


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times the powers of ten between two values."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**decade for decade in decades for step in (1, 2, 5) if low <= step * 10.0**decade <= high]


# --- prices -----------------------------------------------------------------------------------------------------------


def price_rows(prices: Iterable[Price], day: date, used: Collection[Price] = ()) -> list[Row]:
    """Listed prices, GPU by GPU in order of its cheapest, with their age.

    Args:
        prices: to show.
        day: on which their age is taken.
        used: those that a plan pays.

    Returns rows with sku, provider, region, commitment, way (the kind of commitment), usd_per_gpu_hour, age_days,
    read_on, confidence, gpus_per_instance, instance_type, is_used, read_how, source and note.
    """
    rows: list[Row] = [
        {
            "sku": price.sku,
            "provider": price.provider,
            "region": price.region,
            "commitment": price.commitment,
            "way": _way(price.commitment),
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


def _way(commitment: str) -> str:
    """The kind of a commitment: its name up to the term."""
    return next((name for name, _, _ in _COMMITMENTS if commitment.startswith(name)), commitment)


def price_chart(rows: Sequence[Row]) -> alt.LayerChart:
    """What an hour of each GPU costs where and how, one mark a listed price; what the plan pays is ringed."""
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
        f"Listed prices of {_counted(skus)}",
        [
            f"Lowest: ${money(cheapest['usd_per_gpu_hour'])} ({cheapest['sku']}, {cheapest['provider']}, "
            f"{cheapest['commitment'].replace('_', ' ')}).",
            "One mark for each price that was read; a ring marks what the plan pays.",
        ],
    )
    layers = [_price_points(rows, x, y), ring.encode(x=x, y=y)]
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + LINE_PX + BAR_HEIGHT_PX * len(skus)
    return layered(layers, title, height, "Listed prices in USD per GPU-hour")


def _price_points(rows: Sequence[Row], x: alt.X, y: alt.Y) -> alt.Chart:
    known = [name for name, _, _ in _COMMITMENTS]
    others = sorted({row["way"] for row in rows} - set(known))
    entries = [*_COMMITMENTS, *((name, GREY, "stroke") for name in others)]
    present = [entry for entry in entries if any(row["way"] == entry[0] for row in rows)]
    names, colors, shapes = ([entry[place] for entry in present] for place in range(3))
    legend = alt.Legend(title=None, orient="bottom", labelExpr="replace(datum.label, '_', ' ')")
    points: alt.Chart = (
        inline_chart(rows)
        .mark_point(filled=True, size=80, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=alt.Color("way:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
            shape=alt.Shape("way:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
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


def _counted(skus: Sequence[str]) -> str:
    return " and ".join(skus) if len(skus) <= 2 else f"{len(skus)} GPUs"


# --- accuracy ---------------------------------------------------------------------------------------------------------


def accuracy_chart_rows(rows: Iterable[AccuracyRow], metric: str) -> list[Row]:
    """Errors of every measured group in a metric: held-out groups first, each in order of the median error.

    Returns rows with group (in words), label (the same, shorter; held-out ones say so), part, class, runs, predicted,
    median_percent, p90_percent, mape_percent, bias_percent (None where nothing was predicted) and measured (days, in
    words).
    """
    found: list[Row] = [
        {
            "group": row.name,
            "label": _short(row),
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
    return sorted(found, key=lambda row: (row["part"] != HELD_OUT, row["median_percent"], row["group"]))


def _short(row: AccuracyRow) -> str:
    mode = row.mode.removeprefix("mixed").strip()
    name = ", ".join(part for part in (row.model, row.sku, row.engine, mode) if part)
    return f"{name}: {HELD_OUT}" if row.part == HELD_OUT else name


def accuracy_chart(rows: Sequence[Row], metric: str, totals: Mapping[str, float]) -> alt.LayerChart:
    """Median error of every measured group with a line to what nine of ten runs stay below; held-out ones named so.

    Args:
        rows: of `accuracy_chart_rows`.
        metric: they are about.
        totals: median error [fraction] over the held-out runs by class, for the subtitle.
    """
    longest = max((row["p90_percent"] for row in rows), default=1.0)
    x = alt.X(
        "median_percent:Q",
        title=f"Error of mean {metric} [%]",
        scale=alt.Scale(domain=[0.0, 1.05 * longest], nice=False),
    )
    axis = alt.Axis(labelLimit=_LABEL_LIMIT_PX, labelOverlap=False, ticks=False)
    y = alt.Y("label:N", title=None, sort=[row["label"] for row in rows], axis=axis)
    parts = [part for part in (HELD_OUT, FITTED) if any(row["part"] == part for row in rows)]
    look = {HELD_OUT: (BLUE, "circle"), FITTED: (ORANGE, "diamond")}
    legend = alt.Legend(title=None, orient="bottom")
    color = alt.Color("part:N", scale=alt.Scale(domain=parts, range=[look[part][0] for part in parts]), legend=legend)
    shape = alt.Shape("part:N", scale=alt.Scale(domain=parts, range=[look[part][1] for part in parts]), legend=legend)
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
    said = ", ".join(f"{kind.partition(',')[0]} {percent(median)}" for kind, median in totals.items())
    subtitle = [f"Held out: {said} (median).", "Mark: median of a group. Line: 9 of 10 runs are within it."]
    text = f"Error of predicted {metric}, by group of measured runs"
    title = titled(text, subtitle)
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + LINE_PX + 22 * len(rows)
    return layered([reach, ticks, dots], title, height, f"Errors of predicted {metric} against measured runs")
