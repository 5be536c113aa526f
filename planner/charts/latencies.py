"""Latency against the arrival rate, latency distributions, and the stall that a long prompt causes.

Curves are theory, the areas around them from fast to slow steps, and points are simulated, so that a
reader sees how far a number can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import altair as alt
import numpy as np

from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    TITLE_OFFSET_PX,
    VERMILLION,
    Row,
    axis,
    dots,
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
from planner.core import Metric, significant, unit, with_unit
from planner.engine import ReplicaConfig
from planner.serving import (
    MOST_STABLE_SHARE,
    Deployment,
    Performance,
    chunk_count,
    evaluate,
    largest_stable_rate_per_s,
    prompt_gaps,
    sustainable_rate_per_s,
)
from planner.simulator import simulate
from planner.workload import LatencyDistribution, Slo, Workload

LOWEST_LOAD, HIGHEST_LOAD = 0.10, 0.98
"""Ends of a rate sweep as shares of the largest stable rate. Choices; at 1 there is no stationary distribution."""
BAND_POINTS = 14
"""Rates of a sweep: each is evaluated up to three times. A choice."""
DEFAULT_PERCENTILE = 0.99
"""Upper curve of a metric for which the Slo names no percentile."""
SLOW_END_LOADS = (0.9, 0.97)
"""Shares of the slow end's largest stable rate that are evaluated too, so that its curve is seen to rise. Choices."""
RATE_PRECISION = 0.005
"""Relative precision of the rate up to which a target holds."""
LABEL_LEFT_FROM = 0.78
"""Share of the horizontal axis from which a mark has no room for a label at its right."""
PERCENTILE_STYLES = ((SKY, [2, 2]), (BLUE, [1, 0]), (GREEN, [8, 3]), (ORANGE, [8, 3, 2, 3]))
"""Colour and dash of one percentile after another, from the lowest one; a single percentile has the second."""

Progress = Callable[[str], None]
"""Called with what is being computed."""


# --- against the rate -------------------------------------------------------------------------------------------------


def shown_metrics(slo: Slo) -> list[Metric]:
    """TTFT and TPOT, and E2E or ITL where the Slo has a target on it: one panel each."""
    asked = {target.metric for target in slo.targets} | {Metric.TTFT, Metric.TPOT}
    return [metric for metric in Metric if metric in asked]


def _percentiles(slo: Slo, metric: Metric) -> list[float]:
    asked = {target.percentile for target in slo.targets if target.metric is metric}
    return sorted({0.5} | (asked or {DEFAULT_PERCENTILE}))


def _coordinates(metric: Metric, percentile: float, rate_per_s: float) -> Row:
    return {"metric": metric.value.upper(), "percentile": f"p{100 * percentile:g}", "rate_per_s": rate_per_s}


def banded_rate_rows(
    deployment: Deployment,
    workload: Workload,
    slo: Slo,
    ends: tuple[Deployment, Deployment] | None = None,
    points: int = BAND_POINTS,
    progress: Progress = lambda _: None,
    marked: Iterable[float] = (),
) -> list[Row]:
    """Percentiles of TTFT and TPOT (of E2E and ITL where the Slo has a target on it) over arrival rates.

    Rates run from 10 % to 98 % of the largest stable rate, closer together where queues grow, and include the
    workload's own rate (`is_planned`). Each metric has its median and the percentiles of its targets, p99 without any.
    Rates at which the deployment is unstable have no rows.

    Args:
        deployment: the pools that serve.
        workload: lengths and burstiness; its rate is the planned one.
        slo: the percentiles of its targets are shown.
        ends: the deployment with fast and with slow steps (`planner.fleet.step_time_ends`); None: no band.
        points: rates besides the planned one.
        progress: called with each rate.
        marked: further rates [1/s], as of `crossing_rows`, so that the curves go through their marks.

    Returns rows with metric, percentile ("p99"), rate_per_s [1/s], load (share of the largest stable rate),
    latency_ms, low_ms and high_ms [ms] (at both ends: None without them; high_ms None where slow steps are
    overloaded) and is_planned. Raises InputError when the deployment
    does not fit.
    """
    largest = largest_stable_rate_per_s(deployment, workload)
    loads: list[float] = (1.0 - np.geomspace(1.0 - LOWEST_LOAD, 1.0 - HIGHEST_LOAD, points)).tolist()
    rates = {*(load * largest for load in loads), workload.arrivals.rate_per_s, *marked}
    if ends is not None:
        slowest = largest_stable_rate_per_s(ends[1], workload)
        rates |= {share * slowest for share in SLOW_END_LOADS}
    rows: list[Row] = []
    for rate in sorted(rates):
        progress(f"{significant(rate)} requests/s")
        performance = evaluate(deployment, workload.at_rate(rate))
        if not performance.stable:
            continue
        low, high = (evaluate(end, workload.at_rate(rate)) for end in ends) if ends else (None, None)
        for metric in shown_metrics(slo):
            for percentile in _percentiles(slo, metric):
                found = {"latency_ms": performance, "low_ms": low, "high_ms": high}
                rows.append(
                    _coordinates(metric, percentile, rate)
                    | {"load": rate / largest, "is_planned": rate == workload.arrivals.rate_per_s}
                    | {name: _stable_ms(one, metric, percentile) for name, one in found.items()}
                )
    return rows


def _stable_ms(performance: Performance | None, metric: Metric, percentile: float) -> float | None:
    """A percentile [ms]; None where the deployment is unstable, or where there is none."""
    if performance is None or not performance.stable:
        return None
    return 1e3 * performance.distribution(metric).quantile_s(percentile)


def crossing_rows(
    deployment: Deployment, workload: Workload, slo: Slo, progress: Progress = lambda _: None
) -> list[Row]:
    """For every target alone, the largest rate at which it holds: where its percentile's curve crosses its threshold.

    Returns rows with metric, percentile, target ("p99 TTFT"), rate_per_s [1/s] (0 when violated even idle), latency_ms
    (the threshold, [ms]) and crosses (False where it holds up to the limit of stability, or nowhere). Raises InputError
    as `planner.serving.rates.sustainable_rate_per_s`.
    """
    top = MOST_STABLE_SHARE * largest_stable_rate_per_s(deployment, workload)
    rows = []
    for target in slo.targets:
        progress(f"the rate up to which {target.name} holds")
        rate = sustainable_rate_per_s(deployment, workload, Slo(targets=(target,)), tolerance=RATE_PRECISION)
        rows.append(
            _coordinates(target.metric, target.percentile, rate)
            | {"target": target.name, "latency_ms": 1e3 * target.threshold_s}
            | {"crosses": 0.0 < rate < top * (1.0 - 1e-9)}
        )
    return rows


def simulated_rate_rows(performances: Sequence[Performance], slo: Slo) -> list[Row]:
    """Simulated percentiles at the rates of some simulations, with their 95 % sampling error.

    Returns rows with metric, percentile, rate_per_s [1/s], latency_ms, low_ms and high_ms [ms] (None where the run is
    too short to tell), requests measured and steady (False: waits still grew when the run ended).
    """
    rows: list[Row] = []
    for performance in performances:
        for metric in shown_metrics(slo):
            for percentile in _percentiles(slo, metric):
                low_s, high_s = performance.confidence_s(metric, percentile) or (None, None)
                rows.append(
                    _coordinates(metric, percentile, performance.rate_per_s)
                    | {
                        "latency_ms": 1e3 * performance.distribution(metric).quantile_s(percentile),
                        "low_ms": None if low_s is None else 1e3 * low_s,
                        "high_ms": None if high_s is None else 1e3 * high_s,
                        "requests": performance.requests,
                        "steady": performance.stable,
                    }
                )
    return rows


def simulated_at_rates(
    deployment: Deployment,
    workload: Workload,
    runs: Sequence[tuple[float, int]],
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> list[Performance]:
    """One simulation per (rate [1/s], requests), all with one seed: the same random numbers at every rate."""
    performances = []
    for rate, requests in runs:
        progress(f"{requests:,} requests at {significant(rate)}/s")
        performances.append(simulate(deployment, workload.at_rate(rate), seed=seed, requests=requests))
    return performances


def rate_panel(
    rows: Sequence[Row],
    slo: Slo,
    metric: Metric,
    crossings: Sequence[Row] = (),
    simulated: Sequence[Row] = (),
    subject: str = "",
) -> alt.LayerChart:
    """One metric against the arrival rate: theory with its interval, targets, where they stop holding, simulations.

    Args:
        rows: of `banded_rate_rows`.
        slo: its targets are drawn.
        metric: that is shown.
        crossings: of `crossing_rows`.
        simulated: of `simulated_rate_rows`.
        subject: the deployment, under the title.
    """
    name = metric.value.upper()
    curves, marks, points = (
        [_in_unit(row, metric) for row in some if row["metric"] == name] for some in (rows, crossings, simulated)
    )
    banded = bool(curves) and curves[0]["low"] is not None
    targets = [_in_unit(row, metric) for row in target_points(slo, metric)]
    seen = [row["latency"] for row in (*targets, *(row for row in curves if row["is_planned"]))]
    top = 1.6 * max(seen or [row["latency"] for row in curves], default=1.0) or 1.0  # saturation is not to flatten it
    right = max((row["rate_per_s"] for row in curves), default=1.0)
    x = axis(alt.X, "rate_per_s", "Arrival rate (requests/s)", [0.0, right], tickCount=8)
    y = axis(alt.Y, "latency", f"{name} ({unit(metric)})", [0.0, top])
    percentiles = [f"p{100 * percentile:g}" for percentile in _percentiles(slo, metric)]
    styles = dict(zip(percentiles, cycle(PERCENTILE_STYLES[len(percentiles) == 1 :]), strict=False))
    look = series("percentile", styles, stroke_legend(percentiles, symbolStrokeWidth=3, symbolOpacity=1, offset=6))
    color = look["color"]
    in_band = {"low": "with fast steps", "high": "with slow steps (none: overloaded)"} if banded else {}
    shown = tooltip("percentile", "rate_per_s", "load", latency=f"{name} ({unit(metric)}), theory", **in_band)
    hover = inline_chart(curves).mark_point(clip=True, size=150, opacity=0)
    layers = [
        lines(curves, clip=True, x=x, y=y, **look),
        *_band(curves, top, x=x, y=y, color=color),
        hover.encode(x=x, y=y, tooltip=shown),
        *_planned_rate([row for row in curves if row["is_planned"]][:1], top),
        *_simulated_points(points, metric, x=x, y=y, color=color),
        *_crossing_marks([row for row in marks if row["crosses"] and row["rate_per_s"] <= right], right, metric),
    ]
    if targets:
        labels = [{**row, "rate_per_s": 0.0, "label": f"target: {row['label']}"} for row in targets]
        layers.append(rules(labels, VERMILLION, dashed=True, y="latency:Q"))
        layers.append(words(labels, VERMILLION, "left", dx=6, dy=-9).encode(x="rate_per_s:Q", y="latency:Q"))
    legend = [subject] * bool(subject)
    legend.append("Lines: theory." + (" Light areas: from fast to slow steps." if banded else ""))
    legend += ["Circles: simulated, with their 95 % sampling error."] * bool(points)
    legend += ["Dashed: targets. Triangles: up to where they hold."] * bool(targets)
    title = titled(f"{name} against arrival rate", legend, TITLE_OFFSET_PX)
    return layered(layers, title, 320, f"{name} percentiles over arrival rate")


def _in_unit(row: Row, metric: Metric) -> Row:
    """A row with its latencies in the unit that the metric is shown in: latency, low, high."""
    factor = 1.0 if unit(metric) == "ms" else 1e-3
    names = {"latency_ms": "latency", "low_ms": "low", "high_ms": "high"}
    scaled = {new: None if row[old] is None else factor * row[old] for old, new in names.items() if old in row}
    return {**{key: value for key, value in row.items() if key not in names}, **scaled}


def _band(rows: Sequence[Row], top: float, **place: Any) -> list[alt.Chart]:  # noqa: ANN401
    """Areas from fast to slow steps; open to the top where slow ones are overloaded."""
    beyond = 4.0 * top
    areas = [
        {**row, "latency": min(row["low"], beyond), "high": beyond if row["high"] is None else min(row["high"], beyond)}
        for row in rows
        if row["low"] is not None
    ]
    return [inline_chart(areas).mark_area(clip=True, opacity=0.22).encode(**place, y2="high:Q")] if areas else []


def _simulated_points(rows: Sequence[Row], metric: Metric, **place: Any) -> list[alt.Chart]:  # noqa: ANN401
    if not rows:
        return []
    points = [{**row, "state": "steady" if row["steady"] else "still growing when it ended"} for row in rows]
    intervals = [{**row, "latency": row["low"]} for row in points if row["low"] is not None]
    name = f"{metric.value.upper()} ({unit(metric)})"
    ends = {"low": "from (95 %)", "high": "to (95 %)"}
    shown = tooltip("percentile", "rate_per_s", latency=f"{name}, simulated", **ends)
    shown += tooltip(requests="Requests measured", state="Queue")
    bars = inline_chart(intervals).mark_rule(clip=True, strokeWidth=1.5).encode(**place, y2="high:Q")
    rings = inline_chart(points).mark_point(clip=True, size=55, strokeWidth=2, fill="transparent", opacity=1)
    return [bars, rings.encode(**place, tooltip=shown)]


def _crossing_marks(rows: Sequence[Row], right: float, metric: Metric) -> list[alt.Chart]:
    if not rows:
        return []
    place: dict[str, Any] = {"x": "rate_per_s:Q", "y": "latency:Q"}
    shown = tooltip("target", rate_per_s="Holds up to (requests/s)", latency=f"Threshold ({unit(metric)})")
    layers = [dots(rows, shown, size=130, clip=True, color=VERMILLION, shape="triangle-down", **place)]
    for is_right in (False, True):  # beside the mark, where the curve is not
        side = [
            {**row, "label": f"holds to {significant(row['rate_per_s'])}/s"}
            for row in rows
            if (row["rate_per_s"] > LABEL_LEFT_FROM * right) is is_right
        ]
        if side:
            text = words(side, VERMILLION, "right", -9, -9) if is_right else words(side, VERMILLION, "left", 9, 14)
            layers.append(text.encode(**place))
    return layers


def _planned_rate(planned: Sequence[Row], top: float) -> list[alt.Chart]:
    if not planned:
        return []
    rate = planned[0]["rate_per_s"]
    rows = [{"rate_per_s": rate, "latency": top, "label": f"planned {significant(rate)}/s"}]
    is_right = planned[0]["load"] > 0.5  # the label goes where there is room
    text = words(rows, GREY, "right" if is_right else "left", dx=-6 if is_right else 6, dy=10)
    return [rules(rows, x="rate_per_s:Q"), text.encode(x="rate_per_s:Q", y="latency:Q")]


# --- distributions ----------------------------------------------------------------------------------------------------

CURVE_POINTS = 120
"""Points of a distribution's curve. A choice."""
FIRST_SHARE = 5e-3
"""Share of requests within the first point of a curve. A choice."""
LAST_REQUESTS_BEYOND, LAST_GAPS_BEYOND = 5e-3, 5e-4
"""Share of requests, and of gaps between tokens, beyond the last point of a curve: a request has hundreds of gaps, so
their tail can be shown further. Choices."""
TAIL_TICKS = [1.0, 0.1, 0.01, 0.001, 0.0001]
"""Ticks of an axis of shares that are slower."""
PREDICTED, SIMULATED = "predicted", "simulated"
SOURCE_STYLES = {PREDICTED: (BLUE, [1, 0]), SIMULATED: (ORANGE, [6, 3])}
OTHER_SOURCE_STYLE = (GREEN, [2, 2])


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
    end = LAST_GAPS_BEYOND if metric is Metric.ITL else LAST_REQUESTS_BEYOND
    last = min([end, *(0.5 * share for share in targets)])
    beyond = np.unique([*np.geomspace(1.0 - FIRST_SHARE, last, CURVE_POINTS), *targets])[::-1]
    rows: list[Row] = []
    for source, distribution in distributions.items():
        if math.isfinite(distribution.mean_s):
            indices = np.searchsorted(np.cumsum(distribution.weights), 1.0 - beyond - 1e-12)
            latencies_s = distribution.support_s[np.minimum(indices, distribution.support_s.size - 1)]
            rows += [
                {"source": source, "metric": metric.value.upper(), "latency_ms": 1e3 * latency_s}
                | {"share": 1.0 - left, "beyond": left}
                for latency_s, left in zip(latencies_s.tolist(), beyond.tolist(), strict=True)
            ]
    return rows


def target_points(slo: Slo, metric: Metric) -> list[Row]:
    """The targets on a metric as points of its distribution.

    Returns rows with latency_ms [ms], share, beyond (1 - share) and label (``p99 ≤ 1,000 ms``).
    """
    return [
        {"latency_ms": 1e3 * target.threshold_s, "share": target.percentile, "beyond": 1.0 - target.percentile}
        | {"label": f"{target.name.split()[0]} ≤ {with_unit(target.threshold_s, metric)}"}
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
    points = [_in_unit(row, metric) for row in rows if row["latency_ms"] > 0.0 or not logarithmic]
    marks = [_in_unit(row, metric) for row in targets]
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Scale(zero=False, nice=True)
    x = axis(alt.X, "latency", f"{name} ({unit(metric)})", scale=scale, tickCount=6, format=",.3~r")
    y = share_axis(what, tail=tail)
    shown = tooltip("share", "beyond", source="Distribution", latency=f"{name} ({unit(metric)})")
    sources = dict.fromkeys(row["source"] for row in points)
    styles = {source: SOURCE_STYLES.get(source, OTHER_SOURCE_STYLE) for source in sources}
    look = series("source", styles, stroke_legend(list(styles), symbolStrokeWidth=3, offset=6))
    layers = [lines(points, shown, "step-after", x=x, y=y, order="share:Q", **look)]
    if marks:
        place: dict[str, Any] = {"x": "latency:Q", "y": "beyond:Q" if tail else "share:Q"}
        hover = tooltip(label="Target")
        layers.append(dots(marks, hover, size=130, color=VERMILLION, shape="diamond", **place))
        text = words(marks, VERMILLION, "right", dx=8 if tail else -10, dy=-16 if tail else 12)
        layers.append(text.encode(**place))
    how = f"Holds where the lines pass {'below' if tail else 'above'} the diamond." if marks else "No target on it."
    title = f"{name}: share of {what} {'slower than' if tail else 'within'} a latency"
    heading = titled(title, [*[subject] * bool(subject), how], TITLE_OFFSET_PX)
    return layered(layers, heading, 260, f"{name} as cumulative shares, {' and '.join(sources)}")


def share_axis(what: str, *, tail: bool) -> alt.Y:
    """Share of requests or gaps within a latency, or, logarithmic, of those slower than it."""
    if tail:
        found = axis(alt.Y, "beyond", f"Share of {what} slower", log=True, format="~%", values=TAIL_TICKS)
    else:
        found = axis(alt.Y, "share", f"Share of {what} within", [0.0, 1.0], format="%")
    slower_or_within: alt.Y = found
    return slower_or_within


# --- a long prompt --------------------------------------------------------------------------------------------------

WHOLE_PROMPT = "whole prompt"
TOKENS_BEFORE, TOKENS_AFTER = 10, 10
"""Tokens of a trace before the long prompt arrives and after it is processed. Choices."""


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
    last_ms = math.inf
    for system, max_batched_tokens in ((WHOLE_PROMPT, None), (f"chunks of {chunk_tokens:,} tokens", chunk_tokens)):
        arrives = TOKENS_BEFORE + 1
        gaps = prompt_gaps(config, prompt_tokens, max_batched_tokens, running, context_tokens, tokens, arrives)
        for gap in gaps:
            times = {"start_ms": 1e3 * gap.start_s, "end_ms": 1e3 * gap.end_s, "has_prompt": gap.prompt_tokens > 0}
            rows.append({"system": system, "token": gap.token, "gap_ms": 1e3 * gap.gap_s, **times})
        last_ms = min(last_ms, rows[-1]["end_ms"])
    return [row for row in rows if row["start_ms"] <= last_ms or row["has_prompt"]]


def long_prompt_outcomes(rows: Sequence[Row]) -> list[Row]:
    """Effect of the whole prompt, and of the prompt in chunks, on the running answers, and its own time.

    Returns rows with system, longest_gap_ms [ms], stretched (gaps with a piece of the prompt in them) and
    prompt_ttft_ms, the long prompt's own time to its first token [ms]; nobody queues.
    """
    outcomes = []
    for system in dict.fromkeys(row["system"] for row in rows):
        stretched = [row for row in rows if row["system"] == system and row["has_prompt"]]
        longest = max(row["gap_ms"] for row in stretched)
        counts = {"stretched": len(stretched), "prompt_ttft_ms": stretched[-1]["end_ms"]}
        outcomes.append({"system": system, "longest_gap_ms": longest, **counts})
    return outcomes


def long_prompt_chart(rows: Sequence[Row], slo: Slo | None, subject: str) -> alt.LayerChart:
    """The gaps between the tokens of a running answer over time, one step per token, on a logarithmic axis.

    Args:
        rows: of `long_prompt_rows`.
        slo: a target on ITL, else one on TPOT, is drawn for comparison.
        subject: the prompt, the answers and the replica, under the title.
    """
    limits = _gap_limits(slo)
    heights = [row["gap_ms"] for row in (*rows, *limits)]
    x = axis(alt.X, "end_ms", "Time since the prompt arrived (ms)", scale=alt.Scale(nice=False), tickCount=8)
    ends = [min(heights) / 1.4, max(heights) * 1.5]
    y = axis(alt.Y, "gap_ms", "Gap to the token before (ms)", ends, log=True, format=",.3~r", tickCount=5)
    names = list(dict.fromkeys(row["system"] for row in rows))
    styles = dict(zip(names, ((VERMILLION, [6, 3]), (BLUE, [1, 0])), strict=False))
    look = series("system", styles, stroke_legend(names, symbolStrokeWidth=3, labelLimit=300))
    shown = tooltip("gap_ms", "has_prompt", system="Prompt as", end_ms="Token comes at (ms)")
    layers = [
        lines(rows, (), "step-before", x=x, y=y, order="end_ms:Q", **look),
        dots(rows, shown, size=35, x=x, y=y, color=look["color"]),
    ]
    if limits:
        rule = inline_chart(limits).mark_rule(strokeDash=[2, 2], strokeWidth=2, color=GREY)
        text = words([{**row, "end_ms": 0.0} for row in limits], GREY, "left", dx=6, dy=-8)
        layers += [rule.encode(y="gap_ms:Q"), text.encode(x="end_ms:Q", y="gap_ms:Q")]
    subtitle = [subject, "One mark for each token: its height is the wait since the token before."]
    title = titled("Gaps in running answers when a long prompt arrives", subtitle, TITLE_OFFSET_PX)
    return layered(layers, title, 320, "Gaps between tokens while a long prompt is processed")


def _gap_limits(slo: Slo | None) -> list[Row]:
    """Targets to compare gaps with: those on ITL, else those on TPOT, the mean over the gaps of an answer."""
    for metric, note in ((Metric.ITL, ""), (Metric.TPOT, " (mean of an answer)")):
        targets = [target for target in slo.targets if target.metric is metric] if slo else []
        if targets:
            return [
                {
                    "gap_ms": 1e3 * target.threshold_s,
                    "label": f"{target.name} ≤ {with_unit(target.threshold_s, metric)}{note}",
                }
                for target in targets
            ]
    return []
