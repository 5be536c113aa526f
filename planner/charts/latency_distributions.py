"""Latencies as distributions, predicted beside simulated, and the stall that a long prompt causes in running answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from planner.charts.marks import BLUE, GREEN, GREY, ORANGE, VERMILLION, Row, inline_chart, layered, words
from planner.core import Metric, unit, with_unit
from planner.engine import ReplicaConfig
from planner.serving import chunks_of, prompt_gaps
from planner.workload import LatencyDistribution, Slo

LAW_POINTS = 120
"""Points of a distribution."""
FIRST_SHARE = 5e-3
"""Share within the first point of a distribution."""
LAST_BEYOND = {False: 5e-3, True: 5e-4}
"""Share beyond the last point of a distribution: of requests, and of gaps between tokens, of which there are hundreds each."""
PREDICTED, SIMULATED = "predicted", "simulated"
WHOLE = "whole prompt"
TITLE_OFFSET_PX = 12
"""Between the words under a title and the chart."""
BEFORE, AFTER = 10, 10
"""Tokens of a trace before the long prompt comes and after it is done."""


def per_ms(metric: Metric) -> float:
    """What a millisecond is in the unit the metric is shown in."""
    return 1.0 if unit(metric) == "ms" else 1e-3


# --- distributions -----------------------------------------------------------------------------------------------------------


def distribution_rows(
    distributions: Mapping[str, LatencyDistribution], metric: Metric, slo: Slo | None = None
) -> list[Row]:
    """Share of requests (of gaps for ITL) within a latency, by where the distribution comes from.

    Points begin at p0.5, so that a single short latency stretches no axis. They are closer together in the tail, where
    they end at p99.5 (ITL: p99.95), or beyond the last target. Every target's own share has a point: joined by steps
    that rise at each point, a curve is at or above a target exactly where it holds.

    Args:
        distributions: by source, e.g. predicted and simulated; one without a finite mean has no rows.
        metric: what they are of.
        slo: whose targets must be on the chart.

    Returns rows with source, metric, latency_ms [ms], share and beyond (1 - share), in rising order.
    """
    wanted = [1.0 - target.percentile for target in slo.targets if target.metric is metric] if slo else []
    last = min([LAST_BEYOND[metric is Metric.ITL], *(0.5 * share for share in wanted)])
    beyond = np.unique([*np.geomspace(1.0 - FIRST_SHARE, last, LAW_POINTS), *wanted])[::-1]
    rows: list[Row] = []
    for source, distribution in distributions.items():
        if not math.isfinite(distribution.mean_s):
            continue
        places = np.searchsorted(np.cumsum(distribution.weights), 1.0 - beyond - 1e-12)
        latencies_s = distribution.support_s[np.minimum(places, distribution.support_s.size - 1)]
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


def target_points(slo: Slo, metric: Metric) -> list[Row]:
    """The targets on a metric as points of its distribution: latency_ms [ms], share, beyond and label (``p99 ≤ 1,000 ms``)."""
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
        subject: what serves how much, under the title.
        logarithmic: the latency axis.
        tail: show the share that is slower, on a logarithmic axis, in place of the share within.
    """
    name, what = metric.value.upper(), "gaps" if metric is Metric.ITL else "requests"
    factor, field = per_ms(metric), "beyond" if tail else "share"
    mine = [{**row, "latency": factor * row["latency_ms"]} for row in rows]
    if logarithmic:
        mine = [row for row in mine if row["latency"] > 0.0]
    marks = [{**row, "latency": factor * row["latency_ms"]} for row in targets]
    sources = list(dict.fromkeys(row["source"] for row in mine))
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
    color, dash = _source_scales(sources)
    lines = inline_chart(mine).mark_line(strokeWidth=2.5, interpolate="step-after")
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
    params = alt.TitleParams(title, subtitle=subtitle, anchor="start", subtitleColor=GREY, offset=TITLE_OFFSET_PX)
    return layered(layers, params, 260, f"{name} as cumulative shares, {' and '.join(sources)}")


def _source_scales(sources: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
    styles = {PREDICTED: (BLUE, [1, 0]), SIMULATED: (ORANGE, [6, 3])}
    legend = alt.Legend(orient="top", title=None, symbolType="stroke", symbolSize=400, symbolStrokeWidth=3, offset=6)
    known = [styles.get(source, (GREEN, [2, 2])) for source in sources]
    return (
        alt.Color(
            "source:N", scale=alt.Scale(domain=list(sources), range=[color for color, _ in known]), legend=legend
        ),
        alt.StrokeDash(
            "source:N", scale=alt.Scale(domain=list(sources), range=[dash for _, dash in known]), legend=legend
        ),
    )


# --- a long prompt --------------------------------------------------------------------------------------------------


def long_prompt_rows(
    config: ReplicaConfig, prompt_tokens: int, chunk_tokens: int, running: int, context_tokens: int
) -> list[Row]:
    """Gaps between the tokens of a running answer when a long prompt arrives, over time, whole and in chunks.

    Played step by step by `planner.serving.long_prompt.prompt_gaps`: the prompt arrives with the end of a step.

    Args:
        config: the replica.
        prompt_tokens: of the prompt.
        chunk_tokens: token budget of a step with chunks, running answers included.
        running: answers that decode.
        context_tokens: that each of them attends to.

    Returns rows with system ("whole prompt", "chunks of 512 tokens"), token, start_ms and end_ms since the prompt came
    [ms], gap_ms [ms] and has_prompt (a piece of it was in the step). Raises InputError as that function.
    """
    tokens = BEFORE + chunks_of(prompt_tokens, chunk_tokens, running) + AFTER
    rows: list[Row] = []
    for system, budget in ((WHOLE, None), (f"chunks of {chunk_tokens:,} tokens", chunk_tokens)):
        for gap in prompt_gaps(config, prompt_tokens, budget, running, context_tokens, tokens, BEFORE + 1):
            times = {"start_ms": 1e3 * gap.start_s, "end_ms": 1e3 * gap.end_s, "has_prompt": gap.prompt_tokens > 0}
            rows.append({"system": system, "token": gap.token, "gap_ms": 1e3 * gap.gap_s, **times})
    ends_ms: dict[str, float] = {}
    for row in rows:
        ends_ms[row["system"]] = row["end_ms"]
    last_ms = min(ends_ms.values())
    return [row for row in rows if row["start_ms"] <= last_ms or row["has_prompt"]]


def long_prompt_outcomes(rows: Sequence[Row]) -> list[Row]:
    """What each way of processing the prompt does to the running answers, and to the prompt itself.

    Returns rows with system, longest_gap_ms [ms], stretched (gaps with a piece of the prompt in them) and
    prompt_ttft_ms, the long prompt's own time to its first token [ms]; nobody queues.
    """
    found = []
    for system in dict.fromkeys(row["system"] for row in rows):
        joined = [row for row in rows if row["system"] == system and row["has_prompt"]]
        found.append(
            {
                "system": system,
                "longest_gap_ms": max(row["gap_ms"] for row in joined),
                "stretched": len(joined),
                "prompt_ttft_ms": joined[-1]["end_ms"],
            }
        )
    return found


def long_prompt_chart(rows: Sequence[Row], slo: Slo | None, subject: str) -> alt.LayerChart:
    """The gaps of `long_prompt_rows` over time, one step per token, on a logarithmic axis.

    Args:
        rows: the data.
        slo: a target on ITL, else one on TPOT, is drawn for comparison.
        subject: the prompt, the answers and the replica, under the title.
    """
    names = list(dict.fromkeys(row["system"] for row in rows))
    legend = alt.Legend(
        orient="top", title=None, symbolType="stroke", symbolSize=400, symbolStrokeWidth=3, labelLimit=300
    )
    color = alt.Color("system:N", scale=alt.Scale(domain=names, range=[VERMILLION, BLUE][: len(names)]), legend=legend)
    dashes = [[6, 3], [1, 0]][: len(names)]
    dash = alt.StrokeDash("system:N", scale=alt.Scale(domain=names, range=dashes), legend=legend)
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
    text = "Gaps in running answers when a long prompt arrives"
    title = alt.TitleParams(text, subtitle=subtitle, anchor="start", subtitleColor=GREY, offset=TITLE_OFFSET_PX)
    return layered(layers, title, 320, "Gaps between tokens while a long prompt is processed")


def _gap_limits(slo: Slo | None) -> list[Row]:
    """Targets to hold gaps against: on ITL, else on TPOT, which is a mean over the gaps of an answer."""
    for metric in (Metric.ITL, Metric.TPOT):
        found = [target for target in slo.targets if target.metric is metric] if slo else []
        if found:
            note = "" if metric is Metric.ITL else " (mean of an answer)"
            return [
                {"gap_ms": 1e3 * one.threshold_s, "label": f"{one.name} ≤ {with_unit(one.threshold_s, metric)}{note}"}
                for one in found
            ]
    return []
