"""Serving systems compared: latency distributions, goodput and cost, attainment by rate, stall of a long prompt.

Systems are told apart by colour and by dash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import altair as alt
import numpy as np

from planner.charts.latency_distributions import WHOLE_PROMPT, last_share_beyond
from planner.charts.marks import (
    AXIS_HEIGHT_PX,
    BAR_HEIGHT_PX,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    category_axis,
    inline_chart,
    layered,
    line_styles,
    stroke_legend,
    titled,
    words,
)
from planner.core import InputError, Metric, money, significant
from planner.engine import ReplicaConfig
from planner.serving import prompt_gaps
from planner.systems import Comparison

PURPLE = "#CC79A7"
COLORS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
"""Of Okabe and Ito, without black and yellow, which vanish on a dark or a light page."""
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3])
"""Solid first; neighbours differ in dash as well as in colour, and no pair of both comes twice among 24."""
CURVE_POINTS = 200
"""Points of a distribution's curve. A choice."""
TAIL_TICKS = [1.0, 0.1, 0.01, 0.001]
"""Ticks of an axis of shares that are longer."""
WIDTH_PX = 560
LONG_PROMPT_TOKENS, RUNNING_ANSWERS = 8000, 32
"""The long prompt, and the answers it stalls, that are shown by default. Choices."""


def _system_styles(names: Sequence[str], drawn: Sequence[str] = ()) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each system, the same whatever is `drawn`; the legend names those alone, or all."""
    dashes = [DASHES[(index + index // 12) % len(DASHES)] for index in range(len(names))]
    legend = stroke_legend(
        names,
        labelLimit=300,
        columns=4,
        symbolStrokeWidth=3,
        values=[name for name in names if name in drawn] if drawn else alt.Undefined,
    )
    return line_styles("system", dict(zip(names, zip(cycle(COLORS), dashes, strict=False), strict=True)), legend)


def _names(comparison: Comparison) -> list[str]:
    return [row.system.name for row in comparison.compared]


# --- latency of every system ----------------------------------------------------------------------------------------


def latency_cdf_rows(comparison: Comparison, metric: Metric) -> list[Row]:
    """Share of requests (of gaps for ITL) within a latency, by system: simulated where it was, else from theory.

    Returns rows with system, source, latency_ms [ms], share and beyond (1 - share), in rising order; a system whose
    queue grows without bound in theory has none. Points are closer together in the tail, where they end at p99.5 (ITL:
    p99.95).
    """
    rows: list[Row] = []
    for compared in comparison.compared:
        performance = compared.performance
        if performance is None:
            continue
        source = {"system": compared.system.name, "source": performance.method.value}
        for beyond in np.geomspace(1.0, last_share_beyond(metric), CURVE_POINTS)[1:].tolist():
            latency_s = performance.distribution(metric).quantile_s(1.0 - beyond)
            if math.isfinite(latency_s):
                rows.append({**source, "latency_ms": 1e3 * latency_s, "share": 1.0 - beyond, "beyond": beyond})
    return rows


def latency_cdf_chart(comparison: Comparison, metric: Metric) -> alt.LayerChart:
    """The distribution of one metric for every system, on a logarithmic axis, with the targets on it.

    For ITL it shows the share of gaps that are longer, on a logarithmic axis too: a stall is one gap in hundreds.
    """
    rows = [row for row in latency_cdf_rows(comparison, metric) if row["latency_ms"] > 0.0]
    name, is_gap = metric.value.upper(), metric is Metric.ITL
    color, dash = _system_styles(_names(comparison), [row["system"] for row in rows])
    scale = alt.Scale(type="log", nice=False)
    x = alt.X("latency_ms:Q", title=f"{name} (ms)", scale=scale, axis=alt.Axis(tickCount=8, format=",~r"))
    y = alt.Y("share:Q", title="Share of requests within it", axis=alt.Axis(format="%"))
    if is_gap:
        y = alt.Y(
            "beyond:Q", title="Share of gaps longer than it", scale=scale, axis=alt.Axis(format="~%", values=TAIL_TICKS)
        )
    tooltip = [
        alt.Tooltip("system:N", title="System"),
        alt.Tooltip("latency_ms:Q", title=f"{name} (ms)", format=",.4~r"),
        alt.Tooltip("share:Q", title="Share within it", format=".2%"),
        alt.Tooltip("source:N", title="From"),
    ]
    lines = inline_chart(rows).mark_line(strokeWidth=2.5, interpolate="step-after")
    layers = [lines.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=tooltip, order="share:Q")]
    layers += _target_rules(comparison, metric)
    source = "Simulated, the same requests for all." if comparison.requests else "From theory."
    subtitle = f"{source} Further left is better." + _target_legend(comparison, metric)
    title = titled(f"{name} of every system on {comparison.deployment.summary}", subtitle)
    return layered(layers, title, 320, f"{name} by system as cumulative shares")


def _target_rules(comparison: Comparison, metric: Metric) -> list[alt.Chart]:
    targets = [target for target in comparison.slo.targets if target.metric is metric] if comparison.slo else []
    if not targets:
        return []
    rows = [
        {"latency_ms": 1e3 * target.threshold_s, "share": target.percentile, "label": "target"} for target in targets
    ]
    rule = inline_chart(rows).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=GREY).encode(x="latency_ms:Q")
    text = words(rows, GREY, "right", dx=-6).encode(x="latency_ms:Q", y=alt.value(12))
    return [rule, text]


def _target_legend(comparison: Comparison, metric: Metric) -> str:
    return " Dashed grey line: target." if _target_rules(comparison, metric) else ""


# --- goodput and cost -----------------------------------------------------------------------------------------------


def outcome_rows(comparison: Comparison) -> list[Row]:
    """Goodput, cost and sustainable rate of every system at the offered rate.

    Returns rows with system, goodput_per_s [1/s] (None without targets), usd_per_million_output_tokens [USD] (None
    without a price, or when nothing is answered), sustained_per_s [1/s] (None when not computed) and keeps_up.
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
                "keeps_up": compared.performance is not None and compared.performance.stable,
            }
        )
    return rows


def goodput_chart(comparison: Comparison) -> alt.LayerChart:
    """Requests per second within all targets, by system. Raises InputError without targets."""
    if comparison.slo is None:
        raise InputError("slo", "none", "goodput is judged by targets", "compare with an Slo")
    rows = [{**row, "end": row["goodput_per_s"]} for row in outcome_rows(comparison)]
    for row in rows:
        row["label"] = f"{significant(row['end'])}/s" + ("" if row["keeps_up"] else ", does not keep up")
    subtitle = "Useful answers within every target at once, at the offered rate. Longer is better."
    return _bars(rows, f"Goodput of every system on {comparison.deployment.summary}", subtitle, "Goodput (requests/s)")


def cost_chart(comparison: Comparison) -> alt.LayerChart:
    """USD per million output tokens at the offered rate, by system."""
    rows = [{**row, "end": row["usd_per_million_output_tokens"] or 0.0} for row in outcome_rows(comparison)]
    for row in rows:
        row["label"] = f"${money(row['end'])}" if row["end"] else "does not keep up"
    subtitle = "All GPUs over what is answered at the offered rate, prompts included. Shorter is better."
    title = f"Cost of every system on {comparison.deployment.summary}"
    return _bars(rows, title, subtitle, "USD per million output tokens")


def sustainable_rate_chart(comparison: Comparison) -> alt.LayerChart:
    """Largest rate that holds every target, by system. Raises InputError when it was not looked for."""
    rows = [{**row, "end": row["sustained_per_s"]} for row in outcome_rows(comparison)]
    if any(row["end"] is None for row in rows):
        raise InputError("sustain", False, "no sustainable rates were looked for", "compare with sustain=True")
    for row in rows:
        row["label"] = f"{significant(row['end'])}/s"
    subtitle = "Largest arrival rate at which every target holds. Longer is better."
    title = f"Sustainable rate of every system on {comparison.deployment.summary}"
    return _bars(rows, title, subtitle, "Sustainable rate (requests/s)")


def _bars(rows: Sequence[Row], title: str, subtitle: str, axis: str) -> alt.LayerChart:
    longest = max((row["end"] for row in rows), default=0.0) or 1.0
    y = category_axis("system", 260)
    x = alt.X("end:Q", title=axis, scale=alt.Scale(domain=[0.0, 1.2 * longest], nice=False), axis=alt.Axis(tickCount=6))
    base = inline_chart(rows).encode(x=x, y=y)
    bars = base.mark_bar(height={"band": 0.7}, color=BLUE).encode(
        tooltip=[alt.Tooltip("system:N", title="System"), alt.Tooltip("end:Q", title=axis, format=",.4~r")]
    )
    text = words(rows, GREY, "left", dx=6).encode(x=x, y=y)
    return layered([bars, text], titled(title, subtitle), AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows), title)


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
    color, dash = _system_styles(_names(comparison))
    x = alt.X(
        "rate_per_s:Q",
        title="Arrival rate (requests/s)",
        scale=alt.Scale(zero=True, nice=False),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y("attainment:Q", title="Within all targets", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    tooltip = [
        alt.Tooltip("system:N", title="System"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("attainment:Q", title="Within all targets", format=".1%"),
    ]
    lines = inline_chart(rows).mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=45, filled=True))
    layers = [lines.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=tooltip)]
    source = "Simulated, the same requests for all." if comparison.requests else "From theory."
    subtitle = f"{source} Higher is better."
    title = titled(f"Attainment against arrival rate on {comparison.deployment.summary}", subtitle)
    return layered(layers, title, 320, "Share of requests within all targets by arrival rate")


# --- the stall of a long prompt -------------------------------------------------------------------------------------


def token_gap_rows(
    config: ReplicaConfig,
    chunk_tokens: int = 512,
    prompt_tokens: int = LONG_PROMPT_TOKENS,
    running: int = RUNNING_ANSWERS,
    context: int = 1000,
    tokens: int = 60,
    arrives: int = 15,
) -> list[Row]:
    """Gaps between the tokens of one answer while a long prompt is processed, whole and in chunks.

    One replica is played step by step (`planner.serving.long_prompt.prompt_gaps`). Raises InputError as that function.

    Args:
        config: the replica.
        chunk_tokens: chunk budget of a step, running answers included.
        prompt_tokens: of the long prompt.
        running: answers that decode.
        context: tokens that each of them attends to.
        tokens: of the answer that are shown.
        arrives: token before which the prompt arrives.

    Returns rows with system ("whole prompt", "chunks of 512 tokens"), token and gap_ms [ms].
    """
    rows: list[Row] = []
    for name, max_batched_tokens in ((WHOLE_PROMPT, None), (f"chunks of {chunk_tokens:,} tokens", chunk_tokens)):
        gaps = prompt_gaps(config, prompt_tokens, max_batched_tokens, running, context, tokens, arrives)
        rows += [{"system": name, "token": gap.token, "gap_ms": 1e3 * gap.gap_s} for gap in gaps]
    return rows


def token_gap_chart(config: ReplicaConfig) -> alt.LayerChart:
    """The gaps of `token_gap_rows` as two lines: the stall of a whole prompt, and the gaps with chunks."""
    rows = token_gap_rows(config)
    names = dict.fromkeys(row["system"] for row in rows)
    styles = dict(zip(names, ((VERMILLION, [6, 3]), (BLUE, [1, 0])), strict=True))
    color, dash = line_styles("system", styles, stroke_legend(list(names), symbolStrokeWidth=3))
    x = alt.X("token:Q", title="Token of the answer", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=8))
    ends = [min(row["gap_ms"] for row in rows) / 1.5, max(row["gap_ms"] for row in rows) * 1.5]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    y = alt.Y("gap_ms:Q", title="Gap to the token before (ms)", scale=scale, axis=alt.Axis(format=",~r", tickCount=6))
    tooltip = [
        alt.Tooltip("system:N", title="Prompt as"),
        alt.Tooltip("token:Q", title="Token"),
        alt.Tooltip("gap_ms:Q", title="Gap (ms)", format=",.4~r"),
    ]
    lines = inline_chart(rows).mark_line(strokeWidth=2.5, interpolate="step")
    joins = f"A prompt of {LONG_PROMPT_TOKENS:,} tokens joins {RUNNING_ANSWERS:,} running answers on {config.label}."
    title = titled("Gaps between the tokens of one answer", joins)
    layers = [lines.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=tooltip)]
    return layered(layers, title, 320, "Gaps between tokens while a long prompt is processed")


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
    pictures["token_gaps"] = token_gap_chart(comparison.deployment.pools[0].config)
    return pictures


def all_charts(comparison: Comparison) -> alt.VConcatChart:
    """Every chart under one another, colours and axes apart."""
    panels = [chart.properties(width=WIDTH_PX) for chart in charts(comparison).values()]
    scales: Any = "independent"
    stacked = alt.vconcat(*panels, spacing=40)
    apart: alt.VConcatChart = stacked.resolve_scale(color=scales, strokeDash=scales, x=scales, y=scales)
    return apart


def comparison_page(comparison: Comparison) -> str:
    """Every chart on one HTML page (it loads Vega from its public server)."""
    return str(all_charts(comparison).to_html())
