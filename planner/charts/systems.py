"""Serving systems compared: latency distributions, goodput and cost, attainment by rate, stall of a long prompt.

Systems are told apart by colour and by dash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import altair as alt

from planner.analysis import Comparison
from planner.charts.latencies import distribution_rows, long_prompt_chart, long_prompt_rows, share_axis
from planner.charts.marks import (
    BLUE,
    FRAME_PX,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    axis,
    bar_axes,
    bar_scale,
    bars,
    bars_px,
    dots,
    end_labels,
    inline_chart,
    layered,
    lines,
    rules,
    series,
    stroke_legend,
    titled,
    tooltip,
    words,
)
from planner.core import InputError, Metric, money, significant
from planner.engine import ReplicaConfig

PURPLE = "#CC79A7"
COLORS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
"""Of Okabe and Ito, without black and yellow, which vanish on a dark or a light page."""
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3])
"""Solid first; neighbours differ in dash as well as in colour, and no pair of both comes twice among 24."""
WIDTH_PX = 560
LONG_PROMPT_TOKENS, CHUNK_TOKENS, RUNNING_ANSWERS, CONTEXT_TOKENS = 8000, 512, 32, 1000
"""The long prompt that is shown, its chunks, the answers it stalls and their contexts. Choices."""


def _system_styles(names: Sequence[str], drawn: Sequence[str] = ()) -> dict[str, Any]:
    """Colour and dash of each system, the same whatever is `drawn`; the legend names those alone, or all."""
    dashes = [DASHES[(index + index // 12) % len(DASHES)] for index in range(len(names))]
    values = [name for name in names if name in drawn] if drawn else alt.Undefined
    legend = stroke_legend(names, labelLimit=300, columns=4, symbolStrokeWidth=3, values=values)
    return series("system", dict(zip(names, zip(cycle(COLORS), dashes, strict=False), strict=True)), legend)


# --- latency of every system ----------------------------------------------------------------------------------------


def latency_cdf_rows(comparison: Comparison, metric: Metric) -> list[Row]:
    """Share of requests (of gaps for ITL) within a latency, by system: simulated where it was, else from theory.

    Returns rows of `planner.charts.latencies.distribution_rows` with system; a system whose queue grows without bound
    in theory has none.
    """
    rows: list[Row] = []
    for compared in comparison.compared:
        performance = compared.performance
        if performance is not None:
            found = distribution_rows({performance.method.value: performance.distribution(metric)}, metric)
            rows += [{"system": compared.system.name, **row} for row in found]
    return rows


def latency_cdf_chart(comparison: Comparison, metric: Metric) -> alt.LayerChart:
    """The distribution of one metric for every system, on a logarithmic axis, with the targets on it.

    For ITL it shows the share of gaps that are longer, on a logarithmic axis too: a stall is one gap in hundreds.
    """
    rows = [row for row in latency_cdf_rows(comparison, metric) if row["latency_ms"] > 0.0]
    name, is_gap = metric.value.upper(), metric is Metric.ITL
    x = axis(alt.X, "latency_ms", f"{name} (ms)", log=True, tickCount=8, format=",~r")
    look = _system_styles([row.system.name for row in comparison.compared], [row["system"] for row in rows])
    shown = tooltip("system", "share", latency_ms=f"{name} (ms)", source="From")
    y = share_axis("gaps" if is_gap else "requests", tail=is_gap)
    layers = [lines(rows, shown, "step-after", x=x, y=y, order="share:Q", **look)]
    limits = [
        {"latency_ms": 1e3 * target.threshold_s, "label": "target"}
        for target in (comparison.slo.targets if comparison.slo else ())
        if target.metric is metric
    ]
    if limits:
        layers.append(rules(limits, dashed=True, x="latency_ms:Q"))
        layers.append(words(limits, GREY, "left", dx=6).encode(x="latency_ms:Q", y=alt.value(12)))
    source = "Simulated, the same requests for all." if comparison.requests else "From theory."
    subtitle = f"{source} Further left is better." + (" Dashed grey line: target." if limits else "")
    title = titled(f"{name} of every system on {comparison.deployment.summary}", subtitle)
    return layered(layers, title, FRAME_PX, f"{name} by system as cumulative shares", grows=True)


LEAST_SHOWN = 0.95
"""Where the axis of rates begins, of the smallest: differences are seen, which bars from 0 hide. A choice."""


# --- goodput and cost -----------------------------------------------------------------------------------------------


def outcome_rows(comparison: Comparison) -> list[Row]:
    """Goodput, cost and sustainable rate of every system at the offered rate.

    Returns rows with system, goodput_per_s [1/s] (None without targets), usd_per_million_output_tokens [USD] (None
    without a price, or when nothing is answered), sustained_per_s [1/s] (None when not computed), requests_per_usd at
    that rate (None without one or without a price) and keeps_up.
    """
    slo = comparison.slo
    rows: list[Row] = []
    for compared in comparison.compared:
        usd = compared.usd_per_million_output_tokens()
        rows.append(
            {
                "system": compared.system.name,
                "goodput_per_s": None if slo is None else compared.goodput_per_s(slo),
                "usd_per_million_output_tokens": usd if math.isfinite(usd) else None,
                "sustained_per_s": compared.sustained_per_s,
                "requests_per_usd": compared.requests_per_usd(),
                "keeps_up": compared.performance is not None and compared.performance.stable,
            }
        )
    return rows


def goodput_chart(comparison: Comparison) -> alt.LayerChart:
    """Requests per second within all targets, by system. Raises InputError without targets."""
    if comparison.slo is None:
        raise InputError("slo", "none", "goodput is judged by targets", "compare with an Slo")
    subtitle = "Useful answers within every target at once, at the offered rate. Longer is better."
    rows = outcome_rows(comparison)
    for row in rows:
        row["label"] = f"{significant(row['goodput_per_s'])}/s" + ("" if row["keeps_up"] else ", does not keep up")
    return _outcome_bars(comparison, rows, "goodput_per_s", "Goodput", subtitle)


def cost_chart(comparison: Comparison) -> alt.LayerChart:
    """USD per million output tokens at the offered rate, by system."""
    subtitle = "All GPUs over what is answered at the offered rate, prompts included. Shorter is better."
    rows, name = outcome_rows(comparison), "usd_per_million_output_tokens"
    for row in rows:
        row["label"] = f"${money(row[name])}" if row[name] else "does not keep up"
    return _outcome_bars(comparison, rows, name, "Cost", subtitle)


def sustainable_rate_chart(comparison: Comparison) -> alt.LayerChart:
    """Largest rate that holds every target, by system. Raises InputError when it was not looked for."""
    rows = outcome_rows(comparison)
    if any(row["sustained_per_s"] is None for row in rows):
        raise InputError("sustain", False, "no sustainable rates were looked for", "compare with sustain=True")
    for row in rows:
        per_usd = f", {row['requests_per_usd']:,.0f} a dollar" if row["requests_per_usd"] else ""
        row["label"] = (
            f"{significant(row['sustained_per_s'])}/s{per_usd}" if row["sustained_per_s"] else "holds at none"
        )
    held = [row["sustained_per_s"] for row in rows if row["sustained_per_s"]] or [1.0]
    least = LEAST_SHOWN * min(held)
    shown = [{**row, "end": max(row["sustained_per_s"], least)} for row in rows]
    room = bar_scale(max(held), [row["label"] for row in shown])
    room.domain = [least, max(held)]
    axes = bar_axes(shown, "system", "end", "Largest rate within all targets (requests/s)", scale=room)
    hover = tooltip("system", sustained_per_s="Largest rate (requests/s)", requests_per_usd="Requests per USD")
    holding = [row for row in shown if row["sustained_per_s"]]
    layers = [dots(holding, hover, color=BLUE, size=90, x=axes.x, y=axes.y), end_labels(shown, axes, gap_px=12)]
    title = f"Sustainable rate of every system on {comparison.deployment.summary}"
    subtitle = (
        "Largest arrival rate at which every target holds, and requests per dollar there. The axis starts above 0."
    )
    return layered(layers, titled(title, subtitle), bars_px(len(rows)), title)


def _outcome_bars(comparison: Comparison, rows: list[Row], column: str, what: str, subtitle: str) -> alt.LayerChart:
    unit = "USD per million output tokens" if column.startswith("usd") else f"{what} (requests/s)"
    rows = [{**row, "end": row[column] or 0.0} for row in rows]
    axes = bar_axes(rows, "system", "end", unit)
    layers = [bars(rows, axes, alt.value(BLUE), tooltip("system", end=unit)), end_labels(rows, axes)]
    title = f"{what} of every system on {comparison.deployment.summary}"
    return layered(layers, titled(title, subtitle), bars_px(len(rows)), title)


# --- attainment by rate -----------------------------------------------------------------------------------------------


def attainment_rows(comparison: Comparison) -> list[Row]:
    """Share of requests within all targets at each rate asked for: system, rate_per_s [1/s], attainment."""
    return [
        {"system": compared.system.name, "rate_per_s": point.rate_per_s, "attainment": point.attainment}
        for compared in comparison.compared
        for point in compared.attainments
    ]


def attainment_chart(comparison: Comparison) -> alt.LayerChart:
    """Share of requests within all targets against the arrival rate. Raises InputError when no rates were asked for."""
    rows = attainment_rows(comparison)
    if not rows:
        raise InputError("rates", "none", "attainment needs rates", "compare with rates=(...)")
    x = axis(alt.X, "rate_per_s", "Arrival rate (requests/s)", scale=alt.Scale(zero=True, nice=False), tickCount=8)
    y = axis(alt.Y, "attainment", "Within all targets", [0.0, 1.0], format="%")
    shown = tooltip("system", "rate_per_s", "attainment")
    look = _system_styles([row.system.name for row in comparison.compared])
    drawn = inline_chart(rows).mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45, filled=True))
    source = "Simulated, the same requests for all." if comparison.requests else "From theory."
    title = titled(f"Attainment against arrival rate on {comparison.deployment.summary}", f"{source} Higher is better.")
    layers = [drawn.encode(x=x, y=y, tooltip=shown, **look)]
    return layered(layers, title, FRAME_PX, "Share of requests within all targets by arrival rate", grows=True)


# --- the stall of a long prompt -------------------------------------------------------------------------------------


def stall_rows(config: ReplicaConfig) -> list[Row]:
    """Gaps between the tokens of running answers while a long prompt is processed, whole and in chunks.

    Rows of `planner.charts.latencies.long_prompt_rows`. Raises InputError as that function.
    """
    return long_prompt_rows(config, LONG_PROMPT_TOKENS, CHUNK_TOKENS, RUNNING_ANSWERS, CONTEXT_TOKENS)


def stall_chart(config: ReplicaConfig) -> alt.LayerChart:
    """The stall of a whole prompt, and the gaps with chunks."""
    joins = f"A prompt of {LONG_PROMPT_TOKENS:,} tokens joins {RUNNING_ANSWERS:,} running answers on {config.words}."
    return long_prompt_chart(stall_rows(config), None, joins)


# --- all of them ----------------------------------------------------------------------------------------------------


def charts(comparison: Comparison) -> dict[str, alt.LayerChart]:
    """Every chart that the comparison has the data for, by name."""
    pictures = {f"{metric.value}_cdf": latency_cdf_chart(comparison, metric) for metric in Metric}
    if comparison.slo is not None:
        pictures["goodput"] = goodput_chart(comparison)
    if any(row["usd_per_million_output_tokens"] is not None for row in outcome_rows(comparison)):
        pictures["cost"] = cost_chart(comparison)
    if any(row.sustained_per_s is not None for row in comparison.compared):
        pictures["sustained"] = sustainable_rate_chart(comparison)
    if any(row.attainments for row in comparison.compared):
        pictures["attainment"] = attainment_chart(comparison)
    pictures["token_gaps"] = stall_chart(comparison.deployment.pools[0].config)
    return pictures


def comparison_page(comparison: Comparison) -> str:
    """Every chart under one another on one HTML page (it loads Vega from its public server)."""
    apart: Any = "independent"
    fixed = [chart.properties(width=WIDTH_PX) for chart in charts(comparison).values()]
    for chart in fixed:
        chart.autosize = alt.Undefined  # a page of several has none
    stacked = alt.vconcat(*fixed, spacing=40)
    return str(stacked.resolve_scale(color=apart, strokeDash=apart, x=apart, y=apart).to_html())
