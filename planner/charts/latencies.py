"""Latency against the arrival rate: percentiles, targets and the planned rate.

Curves are theory, the areas around them the 90 % interval of the calibration, and points are simulated, so that a
reader sees how far a number can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

import altair as alt
import numpy as np

from planner.charts.latency_distributions import unit_per_ms
from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
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
from planner.core import InputError, Metric, significant, unit, with_unit
from planner.fleet import calibration_ends
from planner.serving import (
    MOST_STABLE_SHARE,
    Deployment,
    Performance,
    evaluate,
    largest_stable_rate_per_s,
    sustainable_rate_per_s,
)
from planner.simulator import simulate
from planner.workload import LatencyTarget, Slo, Workload

LOWEST_LOAD, HIGHEST_LOAD = 0.10, 0.98
"""Ends of a rate sweep as shares of the largest stable rate. Choices; at 1 there is no stationary distribution."""
MAX_POINTS = 25
"""Most evaluations in one sweep, so that a chart never takes longer than its plan. Affects speed and detail."""
DEFAULT_PERCENTILE = 0.99
"""Upper curve of a metric for which the Slo names no percentile."""
BAND_POINTS = 14
"""Rates of a banded sweep: each is evaluated three times. A choice."""
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


def _silent(_: str) -> None:
    """Ignores what is being computed."""


# --- rows -----------------------------------------------------------------------------------------------------------


def shown_metrics(slo: Slo) -> list[Metric]:
    """TTFT and TPOT, and E2E or ITL where the Slo has a target on it: one panel each."""
    asked = {target.metric for target in slo.targets} | {Metric.TTFT, Metric.TPOT}
    return [metric for metric in Metric if metric in asked]


def _percentiles(slo: Slo, metric: Metric) -> list[float]:
    asked = {target.percentile for target in slo.targets if target.metric is metric}
    return sorted({0.5} | (asked or {DEFAULT_PERCENTILE}))


def latency_vs_rate_rows(deployment: Deployment, workload: Workload, slo: Slo, points: int = MAX_POINTS) -> list[Row]:
    """Percentiles of TTFT and TPOT (of E2E and ITL where the Slo has a target on it) over arrival rates.

    Rates run from 10 % to 98 % of the largest stable rate, closer together where queues grow, and include the
    workload's own rate (`is_planned`). Each metric has its median and the percentiles of its targets, p99 without any.
    Rates at which the deployment is unstable have no rows.

    Args:
        deployment: what serves.
        workload: lengths and burstiness; its rate is the planned one.
        slo: the percentiles of its targets are shown.
        points: evaluations, 2 to 25.

    Returns rows with metric, percentile ("p99"), rate_per_s [1/s], load (share of the largest stable rate),
    latency_ms [ms], low_ms and high_ms (None: see `banded_rate_rows`) and is_planned. Raises InputError when `points`
    is out of range or the deployment does not fit.
    """
    largest = largest_stable_rate_per_s(deployment, workload)
    rates = {*_sweep_rates(points, points - 1, largest), workload.arrivals.rate_per_s}
    return _rate_rows(deployment, workload, slo, rates, largest)


def banded_rate_rows(
    deployment: Deployment, workload: Workload, slo: Slo, points: int = BAND_POINTS, progress: Progress = _silent
) -> list[Row]:
    """`latency_vs_rate_rows` with the latencies at both ends of the calibration's 90 % interval.

    Args:
        deployment: what serves.
        workload: lengths and burstiness; its rate is the planned one.
        slo: the percentiles of its targets are shown.
        points: rates besides the planned one, 2 to 25.
        progress: called with each rate.

    Returns rows as that function, with low_ms and high_ms [ms] (both None when uncalibrated; high_ms None where slow
    kernels are overloaded). Raises InputError as that function.
    """
    largest = largest_stable_rate_per_s(deployment, workload)
    rates = {*_sweep_rates(points, points, largest), workload.arrivals.rate_per_s}
    ends = calibration_ends(deployment)
    if ends is not None:
        slowest = largest_stable_rate_per_s(ends[1], workload)
        rates |= {share * slowest for share in SLOW_END_LOADS}
    return _rate_rows(deployment, workload, slo, rates, largest, ends, progress)


def _sweep_rates(points: int, rates: int, largest_per_s: float) -> list[float]:
    """That many `rates` [1/s] from light load to the edge of stability, closer together where queues grow."""
    if not 2 <= points <= MAX_POINTS:
        raise InputError("points", points, f"must be from 2 to {MAX_POINTS}", "give a number of rates in range")
    loads: list[float] = (1.0 - np.geomspace(1.0 - LOWEST_LOAD, 1.0 - HIGHEST_LOAD, rates)).tolist()
    return [load * largest_per_s for load in loads]


def _rate_rows(
    deployment: Deployment,
    workload: Workload,
    slo: Slo,
    rates: Iterable[float],
    largest_per_s: float,
    ends: tuple[Deployment, Deployment] | None = None,
    progress: Progress = _silent,
) -> list[Row]:
    """Percentiles at every rate at which the deployment is stable."""
    rows: list[Row] = []
    for rate in sorted(rates):
        progress(f"{significant(rate)} requests/s")
        performance = evaluate(deployment, workload.at_rate(rate))
        if not performance.stable:
            continue
        low, high = (evaluate(end, workload.at_rate(rate)) for end in ends) if ends else (None, None)
        for metric in shown_metrics(slo):
            for percentile in _percentiles(slo, metric):
                rows.append(
                    {
                        **_coordinates(metric, percentile, rate),
                        "load": rate / largest_per_s,
                        "latency_ms": 1e3 * performance.distribution(metric).quantile_s(percentile),
                        "low_ms": _stable_ms(low, metric, percentile),
                        "high_ms": _stable_ms(high, metric, percentile),
                        "is_planned": rate == workload.arrivals.rate_per_s,
                    }
                )
    return rows


def _coordinates(metric: Metric, percentile: float, rate_per_s: float) -> Row:
    return {"metric": metric.value.upper(), "percentile": f"p{100 * percentile:g}", "rate_per_s": rate_per_s}


def _stable_ms(performance: Performance | None, metric: Metric, percentile: float) -> float | None:
    """A percentile [ms]; None where the deployment is unstable, or where there is none."""
    if performance is None or not performance.stable:
        return None
    return 1e3 * performance.distribution(metric).quantile_s(percentile)


def crossing_rows(deployment: Deployment, workload: Workload, slo: Slo, progress: Progress = _silent) -> list[Row]:
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
            {
                **_coordinates(target.metric, target.percentile, rate),
                "target": target.name,
                "latency_ms": 1e3 * target.threshold_s,
                "crosses": 0.0 < rate < top * (1.0 - 1e-9),
            }
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
                interval_s = performance.confidence_s(metric, percentile)
                rows.append(
                    {
                        **_coordinates(metric, percentile, performance.rate_per_s),
                        "latency_ms": 1e3 * performance.distribution(metric).quantile_s(percentile),
                        "low_ms": 1e3 * interval_s[0] if interval_s else None,
                        "high_ms": 1e3 * interval_s[1] if interval_s else None,
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
    progress: Progress = _silent,
) -> list[Performance]:
    """One simulation per (rate [1/s], requests), all with one seed: the same random numbers at every rate."""
    performances = []
    for rate, requests in runs:
        progress(f"{requests:,} requests at {significant(rate)}/s")
        performances.append(simulate(deployment, workload.at_rate(rate), seed=seed, requests=requests))
    return performances


# --- pictures -------------------------------------------------------------------------------------------------------


def latency_vs_rate(deployment: Deployment, workload: Workload, slo: Slo, points: int = MAX_POINTS) -> alt.VConcatChart:
    """TTFT and TPOT percentiles against the arrival rate, one panel each, with targets and the planned rate.

    Arguments and errors as `latency_vs_rate_rows`.
    """
    rows = latency_vs_rate_rows(deployment, workload, slo, points)
    panels = (rate_panel(rows, slo, metric, subject=deployment.summary) for metric in shown_metrics(slo))
    return alt.vconcat(*(panel.properties(width=560) for panel in panels))


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
    name, percentiles = metric.value.upper(), [f"p{100 * percentile:g}" for percentile in _percentiles(slo, metric)]
    curves, marks, points = (
        [_in_unit(row, metric) for row in some if row["metric"] == name] for some in (rows, crossings, simulated)
    )
    banded = bool(curves) and curves[0]["low"] is not None
    targets = [target for target in slo.targets if target.metric is metric]
    top = _top_ms([row for row in rows if row["metric"] == name], targets) * unit_per_ms(metric)
    right = max((row["rate_per_s"] for row in curves), default=1.0)
    x = alt.X(
        "rate_per_s:Q",
        title="Arrival rate (requests/s)",
        scale=alt.Scale(domain=[0.0, right], nice=False),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y("latency:Q", title=f"{name} ({unit(metric)})", scale=alt.Scale(domain=[0.0, top], nice=False))
    color, dash = _percentile_styles(percentiles)
    lines = inline_chart(curves).mark_line(clip=True, strokeWidth=2.5)
    hover = inline_chart(curves).mark_point(clip=True, size=150, opacity=0)
    layers = [
        *_band(curves, x, y, color, top),
        lines.encode(x=x, y=y, color=color, strokeDash=dash),
        hover.encode(x=x, y=y, tooltip=_rate_tooltip(metric, banded=banded)),
        *_planned_rate([row for row in curves if row["is_planned"]][:1], top),
        *_target_rules(targets, metric),
        *_simulated_points(points, x, y, color, metric),
        *_crossing_marks([row for row in marks if row["crosses"] and row["rate_per_s"] <= right], right, metric),
    ]
    subtitle = _legend_in_words(subject, banded=banded, simulated=bool(points), targets=bool(targets))
    title = titled(f"{name} against arrival rate", subtitle, TITLE_OFFSET_PX)
    return layered(layers, title, 320, f"{name} percentiles over arrival rate")


def _legend_in_words(subject: str, *, banded: bool, simulated: bool, targets: bool) -> list[str]:
    """What the marks of a panel mean, in lines short enough for a narrow one."""
    lines = [subject] if subject else []
    lines.append("Lines: theory." + (" Light areas: 90 % interval of the calibration." if banded else ""))
    if simulated:
        lines.append("Circles: simulated, with their 95 % sampling error.")
    if targets:
        lines.append("Dashed: targets. Triangles: up to where they hold.")
    return lines


def _in_unit(row: Row, metric: Metric) -> Row:
    """A row with its latencies in the unit that the metric is shown in: latency, low, high."""
    factor = unit_per_ms(metric)
    names = {"latency_ms": "latency", "low_ms": "low", "high_ms": "high"}
    scaled = {new: None if row[old] is None else factor * row[old] for old, new in names.items() if old in row}
    return {**{key: value for key, value in row.items() if key not in names}, **scaled}


def _percentile_styles(percentiles: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
    styles = PERCENTILE_STYLES[1:] if len(percentiles) == 1 else PERCENTILE_STYLES
    legend = stroke_legend(percentiles, symbolStrokeWidth=3, symbolOpacity=1, offset=6)
    return line_styles("percentile", dict(zip(percentiles, cycle(styles), strict=False)), legend)


def _band(rows: Sequence[Row], x: alt.X, y: alt.Y, color: alt.Color, top: float) -> list[alt.Chart]:
    """Areas between the calibration's ends; open to the top where slow kernels are overloaded."""
    beyond = 4.0 * top
    areas = [
        {**row, "latency": min(row["low"], beyond), "high": beyond if row["high"] is None else min(row["high"], beyond)}
        for row in rows
        if row["low"] is not None
    ]
    if not areas:
        return []
    marks = inline_chart(areas).mark_area(clip=True, opacity=0.22)
    return [marks.encode(x=x, y=y, y2="high:Q", color=color)]


def _rate_tooltip(metric: Metric, banded: bool) -> list[alt.Tooltip]:
    name = f"{metric.value.upper()} ({unit(metric)})"
    tooltip = [
        alt.Tooltip("percentile:N", title="Percentile"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("load:Q", title="Share of the largest stable rate", format=".0%"),
        alt.Tooltip("latency:Q", title=f"{name}, theory", format=",.4~r"),
    ]
    if banded:
        tooltip += [
            alt.Tooltip("low:Q", title="with fast kernels", format=",.4~r"),
            alt.Tooltip("high:Q", title="with slow kernels (none: overloaded)", format=",.4~r"),
        ]
    return tooltip


def _target_rules(targets: Sequence[LatencyTarget], metric: Metric) -> list[alt.Chart]:
    values = [
        {
            "latency": 1e3 * target.threshold_s * unit_per_ms(metric),
            "rate_per_s": 0.0,
            "label": f"target: {target.name.split()[0]} ≤ {with_unit(target.threshold_s, metric)}",
        }
        for target in targets
    ]
    if not values:
        return []
    rule = inline_chart(values).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=VERMILLION).encode(y="latency:Q")
    return [rule, words(values, VERMILLION, "left", dx=6, dy=-9).encode(x="rate_per_s:Q", y="latency:Q")]


def _simulated_points(rows: Sequence[Row], x: alt.X, y: alt.Y, color: alt.Color, metric: Metric) -> list[alt.Chart]:
    if not rows:
        return []
    points = [{**row, "state": "steady" if row["steady"] else "still growing when it ended"} for row in rows]
    intervals = [{**row, "latency": row["low"]} for row in points if row["low"] is not None]
    name = f"{metric.value.upper()} ({unit(metric)})"
    tooltip = [
        alt.Tooltip("percentile:N", title="Percentile"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("latency:Q", title=f"{name}, simulated", format=",.4~r"),
        alt.Tooltip("low:Q", title="from (95 %)", format=",.4~r"),
        alt.Tooltip("high:Q", title="to (95 %)", format=",.4~r"),
        alt.Tooltip("requests:Q", title="Requests measured", format=","),
        alt.Tooltip("state:N", title="Queue"),
    ]
    bars = inline_chart(intervals).mark_rule(clip=True, strokeWidth=1.5).encode(x=x, y=y, y2="high:Q", color=color)
    dots = inline_chart(points).mark_point(
        clip=True, size=55, strokeWidth=2, shape="circle", fill="transparent", opacity=1
    )
    return [bars, dots.encode(x=x, y=y, color=color, tooltip=tooltip)]


def _crossing_marks(rows: Sequence[Row], right: float, metric: Metric) -> list[alt.Chart]:
    if not rows:
        return []
    tooltip = [
        alt.Tooltip("target:N", title="Target"),
        alt.Tooltip("rate_per_s:Q", title="Holds up to (requests/s)", format=",.4~r"),
        alt.Tooltip("latency:Q", title=f"Threshold ({unit(metric)})", format=",.4~r"),
    ]
    marks = inline_chart(rows).mark_point(
        shape="triangle-down", filled=True, size=130, color=VERMILLION, opacity=1, clip=True
    )
    layers = [marks.encode(x="rate_per_s:Q", y="latency:Q", tooltip=tooltip)]
    for is_right in (False, True):  # beside the mark, where the curve is not
        side = [
            {**row, "label": f"holds to {significant(row['rate_per_s'])}/s"}
            for row in rows
            if (row["rate_per_s"] > LABEL_LEFT_FROM * right) is is_right
        ]
        if side:
            text = words(side, VERMILLION, "right", -9, -9) if is_right else words(side, VERMILLION, "left", 9, 14)
            layers.append(text.encode(x="rate_per_s:Q", y="latency:Q"))
    return layers


def _top_ms(rows: Sequence[Row], targets: Sequence[LatencyTarget]) -> float:
    """End of the vertical axis [ms]: 1.6 times what must be seen, so that saturation does not flatten the rest."""
    marks = [1e3 * target.threshold_s for target in targets]
    marks += [row["latency_ms"] for row in rows if row["is_planned"]]
    if not marks:
        marks = [row["latency_ms"] for row in rows]
    return 1.6 * max(marks, default=1.0) or 1.0


def _planned_rate(planned: Sequence[Row], top: float) -> list[alt.Chart]:
    if not planned:
        return []
    rate = planned[0]["rate_per_s"]
    rows = [{"rate_per_s": rate, "latency": top, "label": f"planned {significant(rate)}/s"}]
    rule = inline_chart(rows).mark_rule(color=GREY, strokeWidth=1.5).encode(x="rate_per_s:Q")
    is_right = planned[0]["load"] > 0.5  # the label goes where there is room
    text = words(rows, GREY, "right" if is_right else "left", dx=-6 if is_right else 6, dy=10)
    return [rule, text.encode(x="rate_per_s:Q", y="latency:Q")]
