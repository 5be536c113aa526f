"""Latency distributions, predicted and simulated, and the stall that a long prompt causes in running answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    TITLE_OFFSET_PX,
    VERMILLION,
    Row,
    inline_chart,
    layered,
    line_styles,
    stroke_legend,
    titled,
    words,
)
from planner.core import Metric, unit, with_unit
from planner.engine import ReplicaConfig
from planner.serving import chunk_count, prompt_gaps
from planner.workload import LatencyDistribution, Slo

CURVE_POINTS = 120
"""Points of a distribution's curve. A choice."""
FIRST_SHARE = 5e-3
"""Share of requests within the first point of a curve. A choice."""
LAST_REQUESTS_BEYOND, LAST_GAPS_BEYOND = 5e-3, 5e-4
"""Share of requests, and of gaps between tokens, beyond the last point of a curve: a request has hundreds of gaps, so
their tail can be shown further. Choices."""
PREDICTED, SIMULATED = "predicted", "simulated"
WHOLE_PROMPT = "whole prompt"
SOURCE_STYLES = {PREDICTED: (BLUE, [1, 0]), SIMULATED: (ORANGE, [6, 3])}
OTHER_SOURCE_STYLE = (GREEN, [2, 2])
TOKENS_BEFORE, TOKENS_AFTER = 10, 10
"""Tokens of a trace before the long prompt arrives and after it is processed. Choices."""


def unit_per_ms(metric: Metric) -> float:
    """One millisecond in the unit that the metric is shown in."""
    return 1.0 if unit(metric) == "ms" else 1e-3


# --- distributions --------------------------------------------------------------------------------------------------


def distribution_rows(
    distributions: Mapping[str, LatencyDistribution], metric: Metric, slo: Slo | None = None
) -> list[Row]:
    """Share of requests (of gaps for ITL) within a latency, by source of the distribution.

    Points begin at p0.5, so that a single short latency does not stretch the axis. They are closer together in the
    tail, where they end at p99.5 (ITL: p99.95), or beyond the last target. Every target's own percentile has a point:
    joined by steps that rise at each point, a curve is at or above a target exactly where the target holds.

    Args:
        distributions: by source, e.g. predicted and simulated; one without a finite mean has no rows.
        metric: what they are of.
        slo: its targets must be on the chart.

    Returns rows with source, metric, latency_ms [ms], share and beyond (1 - share), in rising order.
    """
    targets = [1.0 - target.percentile for target in slo.targets if target.metric is metric] if slo else []
    last = min([last_share_beyond(metric), *(0.5 * share for share in targets)])
    beyond = np.unique([*np.geomspace(1.0 - FIRST_SHARE, last, CURVE_POINTS), *targets])[::-1]
    rows: list[Row] = []
    for source, distribution in distributions.items():
        if not math.isfinite(distribution.mean_s):
            continue
        indices = np.searchsorted(np.cumsum(distribution.weights), 1.0 - beyond - 1e-12)
        latencies_s = distribution.support_s[np.minimum(indices, distribution.support_s.size - 1)]
        rows += [
            {
                "source": source,
                "metric": metric.value.upper(),
                "latency_ms": 1e3 * latency_s,
                "share": 1.0 - left,
                "beyond": left,
            }
            for latency_s, left in zip(latencies_s.tolist(), beyond.tolist(), strict=True)
        ]
    return rows


def last_share_beyond(metric: Metric) -> float:
    """Share of requests (of gaps for ITL) beyond the last point of a curve."""
    return LAST_GAPS_BEYOND if metric is Metric.ITL else LAST_REQUESTS_BEYOND


def target_points(slo: Slo, metric: Metric) -> list[Row]:
    """The targets on a metric as points of its distribution.

    Returns rows with latency_ms [ms], share, beyond (1 - share) and label (``p99 ≤ 1,000 ms``).
    """
    return [
        {
            "latency_ms": 1e3 * target.threshold_s,
            "share": target.percentile,
            "beyond": 1.0 - target.percentile,
            "label": f"{target.name.split()[0]} ≤ {with_unit(target.threshold_s, metric)}",
        }
        for target in slo.targets
        if target.metric is metric
    ]


def distribution_chart(
    rows: Sequence[Row],
    targets: Sequence[Row],
    metric: Metric,
    subject: str = "",
    *,
    logarithmic: bool = False,
    tail: bool = False,
) -> alt.LayerChart:
    """One metric as a distribution: predicted as a solid line, simulated dashed, targets as points.

    Args:
        rows: of `distribution_rows`.
        targets: of `target_points`.
        metric: what they are of.
        subject: the deployment and its load, under the title.
        logarithmic: the latency axis.
        tail: show the share that is slower, on a logarithmic axis, in place of the share within.
    """
    name, what = metric.value.upper(), "gaps" if metric is Metric.ITL else "requests"
    factor, field = unit_per_ms(metric), "beyond" if tail else "share"
    points = [{**row, "latency": factor * row["latency_ms"]} for row in rows]
    if logarithmic:
        points = [row for row in points if row["latency"] > 0.0]
    marks = [{**row, "latency": factor * row["latency_ms"]} for row in targets]
    sources = list(dict.fromkeys(row["source"] for row in points))
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=False, nice=True)
    x = alt.X("latency:Q", title=f"{name} ({unit(metric)})", scale=scale, axis=alt.Axis(tickCount=6, format=",.3~r"))
    if tail:
        axis = alt.Axis(format="~%", values=[1.0, 0.1, 0.01, 0.001, 0.0001])
        y = alt.Y("beyond:Q", title=f"Share of {what} slower", scale=alt.Scale(type="log", nice=False), axis=axis)
    else:
        y = alt.Y("share:Q", title=f"Share of {what} within", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    tooltip = [
        alt.Tooltip("source:N", title="Distribution"),
        alt.Tooltip("latency:Q", title=f"{name} ({unit(metric)})", format=",.4~r"),
        alt.Tooltip("share:Q", title="Share within", format=".2%"),
        alt.Tooltip("beyond:Q", title="Share slower", format=".2%"),
    ]
    styles = {source: SOURCE_STYLES.get(source, OTHER_SOURCE_STYLE) for source in sources}
    color, dash = line_styles("source", styles, stroke_legend(list(styles), symbolStrokeWidth=3, offset=6))
    lines = inline_chart(points).mark_line(strokeWidth=2.5, interpolate="step-after")
    layers = [lines.encode(x=x, y=y, color=color, strokeDash=dash, tooltip=tooltip, order="share:Q")]
    if marks:
        dots = inline_chart(marks).mark_point(shape="diamond", filled=True, size=130, color=VERMILLION, opacity=1)
        hover = [alt.Tooltip("label:N", title="Target")]
        layers += [dots.encode(x="latency:Q", y=f"{field}:Q", tooltip=hover)]
        text = words(marks, VERMILLION, "right", dx=8 if tail else -10, dy=-16 if tail else 12)
        layers += [text.encode(x="latency:Q", y=f"{field}:Q")]
    how = f"Holds where the lines pass {'below' if tail else 'above'} the diamond." if marks else "No target on it."
    subtitle = [*([subject] if subject else []), how]
    title = f"{name}: share of {what} {'slower than' if tail else 'within'} a latency"
    description = f"{name} as cumulative shares, {' and '.join(sources)}"
    return layered(layers, titled(title, subtitle, TITLE_OFFSET_PX), 260, description)


# --- a long prompt --------------------------------------------------------------------------------------------------


def long_prompt_rows(
    config: ReplicaConfig, prompt_tokens: int, chunk_tokens: int, running: int, context_tokens: int
) -> list[Row]:
    """Gaps between the tokens of a running answer when a long prompt arrives, over time, whole and in chunks.

    Played step by step by `planner.serving.long_prompt.prompt_gaps`: the prompt arrives with the end of a step.

    Args:
        config: the replica.
        prompt_tokens: of the prompt.
        chunk_tokens: chunk budget of a step, running answers included.
        running: answers that decode.
        context_tokens: that each of them attends to.

    Returns rows with system ("whole prompt", "chunks of 512 tokens"), token, start_ms and end_ms since the prompt came
    [ms], gap_ms [ms] and has_prompt (a piece of it was in the step). Raises InputError as that function.
    """
    tokens = TOKENS_BEFORE + chunk_count(prompt_tokens, chunk_tokens, running) + TOKENS_AFTER
    rows: list[Row] = []
    for system, max_batched_tokens in ((WHOLE_PROMPT, None), (f"chunks of {chunk_tokens:,} tokens", chunk_tokens)):
        arrives = TOKENS_BEFORE + 1
        for gap in prompt_gaps(config, prompt_tokens, max_batched_tokens, running, context_tokens, tokens, arrives):
            times = {"start_ms": 1e3 * gap.start_s, "end_ms": 1e3 * gap.end_s, "has_prompt": gap.prompt_tokens > 0}
            rows.append({"system": system, "token": gap.token, "gap_ms": 1e3 * gap.gap_s, **times})
    ends_ms: dict[str, float] = {}
    for row in rows:
        ends_ms[row["system"]] = row["end_ms"]
    last_ms = min(ends_ms.values())
    return [row for row in rows if row["start_ms"] <= last_ms or row["has_prompt"]]


def long_prompt_outcomes(rows: Sequence[Row]) -> list[Row]:
    """What the whole prompt, and the prompt in chunks, does to the running answers and takes itself.

    Returns rows with system, longest_gap_ms [ms], stretched (gaps with a piece of the prompt in them) and
    prompt_ttft_ms, the long prompt's own time to its first token [ms]; nobody queues.
    """
    outcomes = []
    for system in dict.fromkeys(row["system"] for row in rows):
        stretched = [row for row in rows if row["system"] == system and row["has_prompt"]]
        outcomes.append(
            {
                "system": system,
                "longest_gap_ms": max(row["gap_ms"] for row in stretched),
                "stretched": len(stretched),
                "prompt_ttft_ms": stretched[-1]["end_ms"],
            }
        )
    return outcomes


def long_prompt_chart(rows: Sequence[Row], slo: Slo | None, subject: str) -> alt.LayerChart:
    """The gaps between the tokens of a running answer over time, one step per token, on a logarithmic axis.

    Args:
        rows: of `long_prompt_rows`.
        slo: a target on ITL, else one on TPOT, is drawn for comparison.
        subject: the prompt, the answers and the replica, under the title.
    """
    names = dict.fromkeys(row["system"] for row in rows)
    styles = dict(zip(names, ((VERMILLION, [6, 3]), (BLUE, [1, 0])), strict=False))
    color, dash = line_styles("system", styles, stroke_legend(list(names), symbolStrokeWidth=3, labelLimit=300))
    limits = _gap_limits(slo)
    heights = [row["gap_ms"] for row in rows] + [row["gap_ms"] for row in limits]
    scale = alt.Scale(type="log", domain=[min(heights) / 1.4, max(heights) * 1.5], nice=False)
    x = alt.X(
        "end_ms:Q", title="Time since the prompt arrived (ms)", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=8)
    )
    y = alt.Y("gap_ms:Q", title="Gap to the token before (ms)", scale=scale, axis=alt.Axis(format=",.3~r", tickCount=5))
    tooltip = [
        alt.Tooltip("system:N", title="Prompt as"),
        alt.Tooltip("gap_ms:Q", title="Gap (ms)", format=",.4~r"),
        alt.Tooltip("end_ms:Q", title="Token comes at (ms)", format=",.4~r"),
        alt.Tooltip("has_prompt:N", title="Prompt in the step"),
    ]
    layers = [
        inline_chart(rows)
        .mark_line(strokeWidth=2.5, interpolate="step-before")
        .encode(x=x, y=y, color=color, strokeDash=dash, order="end_ms:Q"),
        inline_chart(rows).mark_point(filled=True, size=35, opacity=1).encode(x=x, y=y, color=color, tooltip=tooltip),
    ]
    subtitle = [subject]
    if limits:
        layers.append(inline_chart(limits).mark_rule(strokeDash=[2, 2], strokeWidth=2, color=GREY).encode(y="gap_ms:Q"))
        first = [{**row, "end_ms": 0.0} for row in limits]
        layers.append(words(first, GREY, "left", dx=6, dy=-8).encode(x="end_ms:Q", y="gap_ms:Q"))
    subtitle.append("One mark for each token: its height is the wait since the token before.")
    title = titled("Gaps in running answers when a long prompt arrives", subtitle, TITLE_OFFSET_PX)
    return layered(layers, title, 320, "Gaps between tokens while a long prompt is processed")


def _gap_limits(slo: Slo | None) -> list[Row]:
    """Targets to compare gaps with: those on ITL, else those on TPOT, the mean over the gaps of an answer."""
    for metric in (Metric.ITL, Metric.TPOT):
        targets = [target for target in slo.targets if target.metric is metric] if slo else []
        note = "" if metric is Metric.ITL else " (mean of an answer)"
        if targets:
            return [
                {
                    "gap_ms": 1e3 * target.threshold_s,
                    "label": f"{target.name} ≤ {with_unit(target.threshold_s, metric)}{note}",
                }
                for target in targets
            ]
    return []
