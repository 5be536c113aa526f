"""Why a plan is what it is: what steps wait for, how full pools are, how tight targets are, what would change it.

Charts of a plan show its own figures; those of an explanation (`planner.analysis.why`) show plans made again, by
theory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import altair as alt
import numpy as np

from planner.analysis import ConfidencePoint, Pareto, PlanMeasure, PlanOutcome, Sensitivity, SensitivityEnd
from planner.charts.marks import (
    AXIS_HEIGHT_PX,
    BAR_HEIGHT_PX,
    BLUE,
    GREEN,
    GREY,
    LABEL_LETTER_PX,
    LEGEND_HEIGHT_PX,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    bar_scale,
    category_axis,
    inline_chart,
    layered,
    legend_of,
    titled,
    words,
)
from planner.core import Metric, money, percent, significant, with_unit
from planner.fleet import Plan, PlannedDeployment
from planner.roofline import Bound
from planner.serving import Pool, PoolPerformance, Role, step_shapes, token_costs
from planner.workload import Workload

INK = "#1A1A1A"
"""Text on coloured bars."""
BOUND_COLORS = {Bound.COMPUTE: SKY, Bound.MEMORY: ORANGE, Bound.LINK: GREEN, Bound.OVERHEAD: "#B8B8B8"}
"""Light enough for dark text on them."""
BOUND_MEANINGS = {
    Bound.COMPUTE: "matrix units at work; faster with more or faster compute, or fewer bits per number",
    Bound.MEMORY: "weights and KV cache read from HBM; faster with more memory bandwidth, or fewer bits per number",
    Bound.LINK: "GPUs of a replica exchanging results; faster with a faster link, or a smaller TP degree",
    Bound.OVERHEAD: "kernel launches and the engine's own work; not helped by a faster GPU",
}
"""What a step does while it waits for each resource, and what would make it shorter."""
TORNADO_ROW_PX = 44
"""Height of an input of the tornado: two bars."""
WIDE_BAR_PX = 34
"""Height of a bar where there are few."""


class PlannedPool(NamedTuple):
    """A pool of a plan.

    Attributes:
        name: ``decode pool, 4 x h100-sxm TP2``, with the number of the deployment where there are several.
        planned: its deployment.
        pool: without the replicas that may fail.
        performance: predicted at the planned load.
    """

    name: str
    planned: PlannedDeployment
    pool: Pool
    performance: PoolPerformance


def pools_of(plan: Plan) -> list[PlannedPool]:
    """Every pool with its name, its deployment and its predicted performance; none of an infeasible plan."""
    several = len(plan.deployments) > 1
    return [
        PlannedPool(
            f"{f'{number} ' if several else ''}{pool.role} pool, {pool.replicas:,} x {pool.config.label}",
            planned,
            pool,
            performance,
        )
        for number, planned in enumerate(plan.deployments, start=1)
        for pool, performance in zip(planned.surviving.pools, planned.predicted.pools, strict=True)
    ]


# --- what a step waits for --------------------------------------------------------------------------------------------


def waiting_shares(pool: Pool, performance: PoolPerformance, workload: Workload) -> dict[Bound, float]:
    """Shares of the mean step of a pool that wait for compute, HBM, links and none of them.

    The mean step holds the mean number of running requests, and the prompt tokens that arrive during it, less those
    found in the prefix cache: a = (rate / replicas) x mean input x (1 - hits) x mean step, at most the chunk budget. It
    is the step that `PoolPerformance.bound` is taken from.

    Args:
        pool: with its replicas.
        performance: of the pool under the workload.
        workload: routed to it.
    """
    config = pool.config
    costs = token_costs(workload.lengths, config.max_batched_tokens, pool.role)
    tokens = 0.0
    if pool.role is not Role.DECODE:
        fresh = workload.lengths.mean_input * (1.0 - performance.prefix_hits)
        arriving = workload.rate_per_s / pool.replicas * fresh * performance.mean_step_s
        tokens = min(arriving, float(config.max_batched_tokens))
    shape = step_shapes(np.array(max(performance.mean_running, 1e-9)), np.array(tokens), costs)
    step = config.timer.step_time(shape)
    return {bound: seconds / step.total_s for bound, seconds in step.bound_s.items()}


def waiting_rows(plan: Plan) -> list[Row]:
    """What the mean step of each pool waits for: pool, resource, share, start, step_ms [ms] and meaning."""
    rows: list[Row] = []
    for name, planned, pool, performance in pools_of(plan):
        start = 0.0
        for bound, share in waiting_shares(pool, performance, planned.workload).items():
            rows.append(
                {
                    "pool": name,
                    "resource": bound.value,
                    "share": share,
                    "start": start,
                    "step_ms": 1e3 * performance.mean_step_s,
                    "meaning": BOUND_MEANINGS[bound],
                }
            )
            start += share
    return rows


def waiting_chart(plan: Plan) -> alt.LayerChart:
    """What the mean step of each pool waits for, as bars of shares."""
    rows = [{**row, "end": row["start"] + row["share"]} for row in waiting_rows(plan) if row["share"] > 1e-4]
    y = category_axis("pool", 260)
    share = alt.Scale(domain=[0.0, 1.0], nice=False)
    x = alt.X("start:Q", title="Share of the mean step", scale=share, axis=alt.Axis(format="%", tickCount=5))
    color = alt.Color(
        "resource:N",
        title=None,
        scale=alt.Scale(domain=[bound.value for bound in BOUND_COLORS], range=list(BOUND_COLORS.values())),
        legend=legend_of([bound.value for bound in BOUND_COLORS], room_px=190.0, symbolType="square"),
    )
    tooltip = [
        alt.Tooltip("pool:N", title="Pool"),
        alt.Tooltip("resource:N", title="Waits for"),
        alt.Tooltip("share:Q", title="Share of the step", format=".1%"),
        alt.Tooltip("step_ms:Q", title="Mean step (ms)", format=",.3~r"),
        alt.Tooltip("meaning:N", title="That is"),
    ]
    base = inline_chart(rows).encode(y=y)
    bars = base.mark_bar(height={"band": 0.7}).encode(x=x, x2="end:Q", color=color, tooltip=tooltip)
    named = [
        {**row, "middle": (row["start"] + row["end"]) / 2.0, "label": f"{row['resource']} {percent(row['share'])}"}
        for row in rows
    ]
    fits = f"datum.share * width >= {LABEL_LETTER_PX} * length(datum.label)"
    text = words(named, INK, "center").encode(x=alt.X("middle:Q", scale=share), y=y).transform_filter(fits)
    title = titled(_waiting_headline(rows), "Mean step of the engine at the planned load, by theory.")
    pools = len({row["pool"] for row in rows})
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + WIDE_BAR_PX * pools
    return layered([bars, text], title, height, "What steps wait for, by pool")


def _waiting_headline(rows: Sequence[Row]) -> str:
    """E.g. ``Steps wait mostly for memory (62 %)``, or which pool waits for what; short, for a title."""
    largest: dict[str, Row] = {}
    for row in rows:
        if row["pool"] not in largest or row["share"] > largest[row["pool"]]["share"]:
            largest[row["pool"]] = row
    resources = {pool.partition(" pool")[0]: str(row["resource"]) for pool, row in largest.items()}
    if len(resources) == 1:
        (row,) = largest.values()
        return f"Steps wait mostly for {row['resource']} ({percent(row['share'])})"
    if len(set(resources.values())) == 1:
        return f"Steps wait mostly for {next(iter(resources.values()))} in all pools"
    if len(resources) == 2:
        return "Steps wait for " + ", ".join(f"{resource} in {pool}" for pool, resource in resources.items())
    counts = Counter(resources.values()).most_common(2)
    every = len(resources)
    return "Steps wait for " + ", ".join(f"{resource} in {count} of {every} pools" for resource, count in counts)


# --- how tight and how full -------------------------------------------------------------------------------------------


def target_rows(plan: Plan) -> list[Row]:
    """Latency over threshold of every target.

    Returns rows with target, threshold_ms, predicted_ms, simulated_ms (None: not simulated) [ms], predicted and
    simulated (as shares of the threshold), met and label.
    """
    rows: list[Row] = []
    for check in plan.targets:
        threshold_s = check.target.threshold_s
        rows.append(
            {
                "target": f"{f'{check.of}: ' if check.of else ''}{check.target.name}",
                "threshold_ms": 1e3 * threshold_s,
                "predicted_ms": 1e3 * check.predicted_s,
                "simulated_ms": 1e3 * check.simulated_s if plan.simulated else None,
                "predicted": check.predicted_s / threshold_s,
                "simulated": check.simulated_s / threshold_s if plan.simulated else None,
                "met": check.met,
                "label": _threshold_label(check.predicted_s, threshold_s, check.target.metric),
            }
        )
    return rows


def _threshold_label(latency_s: float, threshold_s: float, metric: Metric) -> str:
    return f"{with_unit(latency_s, metric)} of {with_unit(threshold_s, metric)}"


def target_chart(plan: Plan) -> alt.LayerChart:
    """Latency over threshold of every target: predicted as bars, simulated as diamonds, the threshold as a line."""
    rows = target_rows(plan)
    longest = max([1.0, *(value for row in rows for value in (row["predicted"], row["simulated"] or 0.0))])
    y = category_axis("target", 260)
    scale = bar_scale(longest, (row["label"] for row in rows))
    axis = alt.Axis(format="%", tickCount=5)
    x = alt.X("predicted:Q", title="Latency as a share of its target", scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("target:N", title="Target"),
        alt.Tooltip("threshold_ms:Q", title="At most (ms)", format=",.4~r"),
        alt.Tooltip("predicted_ms:Q", title="Predicted (ms)", format=",.4~r"),
        alt.Tooltip("simulated_ms:Q", title="Simulated (ms)", format=",.4~r"),
    ]
    bars = inline_chart(rows).mark_bar(height={"band": 0.55}, color=BLUE).encode(x=x, y=y, tooltip=tooltip)
    layers = [bars]
    simulated = [row for row in rows if row["simulated"] is not None]
    if simulated:
        marks = inline_chart(simulated).mark_point(shape="diamond", filled=True, size=110, color=ORANGE, opacity=1.0)
        layers.append(marks.encode(x=alt.X("simulated:Q", scale=scale), y=y, tooltip=tooltip))
    rule = inline_chart([{"at": 1.0}]).mark_rule(color=GREY, strokeDash=[6, 4], strokeWidth=2)
    layers.append(rule.encode(x=alt.X("at:Q", scale=scale)))
    ends = [{**row, "end": max(1.0, row["predicted"], row["simulated"] or 0.0)} for row in rows]
    layers.append(words(ends, GREY, "left", dx=8).encode(x=alt.X("end:Q", scale=scale), y=y))
    worst = max(rows, key=lambda row: row["predicted"])
    legend = "Bar: predicted. " + ("Diamond: simulated. " if simulated else "") + "Dashed line: the target."
    title = titled(f"Tightest target: {worst['target']}, {percent(worst['predicted'])} used", legend)
    return layered(layers, title, AXIS_HEIGHT_PX + WIDE_BAR_PX * len(rows), "Latency over threshold, by target")


def utilisation_rows(plan: Plan) -> list[Row]:
    """How full each pool is.

    Returns rows with pool, what ("load", "KV cache" or "running requests"), share in use and label.
    """
    rows: list[Row] = []
    for name, _, pool, performance in pools_of(plan):
        most = pool.config.max_running_requests
        shares = [("load", performance.utilisation, "of the stable rate")]
        if pool.role is not Role.PREFILL:
            shares.append(("KV cache", performance.kv_occupancy, "held on average"))
            running = f"({significant(performance.mean_running)} of {most:,})"
            shares.append(("running requests", performance.mean_running / most, running))
        for what, share, of in shares:
            rows.append({"pool": name, "what": what, "share": share, "label": f"{percent(share)} {of}"})
    return rows


def utilisation_chart(plan: Plan) -> alt.LayerChart:
    """How full each pool is, as bars with the figures beside them."""
    rows = [{**row, "name": f"{row['pool'].partition(' pool')[0]}: {row['what']}"} for row in utilisation_rows(plan)]
    y = category_axis("name", 260)
    scale = bar_scale(max([1.0, *(row["share"] for row in rows)]), (row["label"] for row in rows))
    axis = alt.Axis(format="%", values=[0.0, 0.25, 0.5, 0.75, 1.0])
    x = alt.X("share:Q", title="Share in use", scale=scale, axis=axis)
    tooltip = [
        alt.Tooltip("pool:N", title="Pool"),
        alt.Tooltip("what:N", title="What"),
        alt.Tooltip("share:Q", title="In use", format=".1%"),
    ]
    whole = inline_chart([{**row, "full": 1.0} for row in rows]).mark_bar(
        height={"band": 0.6}, color=GREY, opacity=0.25
    )
    bars = inline_chart(rows).mark_bar(height={"band": 0.6}, color=BLUE).encode(x=x, y=y, tooltip=tooltip)
    ends = [{**row, "end": max(1.0, row["share"])} for row in rows]
    text = words(ends, GREY, "left", dx=8).encode(x=alt.X("end:Q", scale=scale), y=y)
    fullest = max(rows, key=lambda row: row["share"])
    short = fullest["pool"].partition(" pool")[0]
    title = titled(
        f"Fullest: {fullest['what']} of {f'pool {short}' if short[0].isdigit() else f'the {short} pool'}, "
        f"{percent(fullest['share'])}",
        "Mean use at the planned load, by theory. What is left is room for peaks.",
    )
    height = AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows)
    return layered([whole.encode(x=alt.X("full:Q", scale=scale), y=y), bars, text], title, height, "How full pools are")


# --- tornado ----------------------------------------------------------------------------------------------------------

TORNADO_AXES = {
    PlanMeasure.COST: "Cost of the plan made anew (USD/h)",
    PlanMeasure.RATE: "Rate served by the plan made anew (requests/s)",
    PlanMeasure.RATE_PER_COST: "Requests per dollar of the plan made anew (requests/USD)",
}

TORNADO_LEGEND = "datum.label == 'low' ? 'low end (upper bar)' : 'high end (lower bar)'"
"""What the two colours of a tornado are called, as an expression of Vega."""


def tornado_rows(bars: Sequence[Sensitivity], base: PlanOutcome, measure: PlanMeasure) -> list[Row]:
    """Both ends of every input, the widest bar first (an end without a fleet counts as widest).

    Returns rows with input, moved (e.g. ``-20 %``), side ("low" or "high"), value [unit of the measure] (None: no
    fleet), base, fleet, kept_holds (whether the fleet as it is meets its targets there; None: there is none) and
    kept_serves_per_s [requests/s].
    """
    rows: list[Row] = []
    for bar in sorted(bars, key=lambda bar: -max(_distance(end, base, measure) for end in (bar.low, bar.high))):
        for side, end in (("low", bar.low), ("high", bar.high)):
            kept = end.kept
            rows.append(
                {
                    "input": bar.name,
                    "moved": end.label,
                    "side": side,
                    "value": end.remade.value(measure) if end.remade.feasible else None,
                    "base": base.value(measure),
                    "fleet": end.remade.fleet,
                    "kept_holds": None if kept is None else kept.holds,
                    "kept_serves_per_s": None
                    if kept is None or not math.isfinite(kept.rate_per_s)
                    else kept.rate_per_s,
                }
            )
    return rows


def _distance(end: SensitivityEnd, base: PlanOutcome, measure: PlanMeasure) -> float:
    return abs(end.remade.value(measure) - base.value(measure)) if end.remade.feasible else math.inf


def tornado_chart(bars: Sequence[Sensitivity], base: PlanOutcome, measure: PlanMeasure) -> alt.LayerChart:
    """What the plan costs or serves with one input moved at a time, widest first; an end without a fleet says so."""
    rows = [_with_end_label(row, measure) for row in tornado_rows(bars, base, measure)]
    values = [row["end"] for row in rows] + [base.value(measure)]
    scale = _two_sided_scale(min(values), max(values), [row["label"] for row in rows])
    y = category_axis("input", 240)
    offset = alt.YOffset("side:N", sort=["low", "high"])
    axis = alt.Axis(format=",~r", tickCount=5)
    x = alt.X("base:Q", title=TORNADO_AXES[measure], scale=scale, axis=axis)
    color = alt.Color(
        "side:N",
        title=None,
        scale=alt.Scale(domain=["low", "high"], range=[SKY, VERMILLION]),
        legend=alt.Legend(orient="top", labelExpr=TORNADO_LEGEND),
    )
    tooltip = [
        alt.Tooltip("input:N", title="Input"),
        alt.Tooltip("moved:N", title="Moved to"),
        alt.Tooltip("value:Q", title=measure.value, format=",.4~r"),
        alt.Tooltip("fleet:N", title="Fleet made anew"),
        alt.Tooltip("kept_holds:N", title="Fleet as it is holds its targets"),
        alt.Tooltip("kept_serves_per_s:Q", title="It would serve (requests/s)", format=",.3~r"),
    ]
    marks = (
        inline_chart(rows)
        .mark_bar(height={"band": 0.8})
        .encode(x=x, x2="end:Q", y=y, yOffset=offset, color=color, tooltip=tooltip)
    )
    layers = [marks]
    for is_left in (False, True):
        side = [row for row in rows if (row["end"] < row["base"]) == is_left]
        if side:
            text = words(side, GREY, "right", dx=-5) if is_left else words(side, GREY, "left", dx=5)
            layers.append(text.encode(x=alt.X("end:Q", scale=scale), y=y, yOffset=offset))
    rule = inline_chart([{"base": base.value(measure)}]).mark_rule(color=GREY, strokeWidth=2)
    layers.append(rule.encode(x=alt.X("base:Q", scale=scale)))
    widest = rows[0]["input"]
    legend = (
        f"Grey line: the plan as it is, {_value_text(base.value(measure), measure)}. One input at a time, by theory."
    )
    height = AXIS_HEIGHT_PX + LEGEND_HEIGHT_PX + TORNADO_ROW_PX * (len(rows) // 2)
    return layered(layers, titled(f"The plan depends most on {widest}", legend), height, "Tornado: one input at a time")


def _two_sided_scale(low: float, high: float, labels: Sequence[str]) -> alt.Scale:
    """A scale that leaves room for labels at both ends, and at least 40 % of the width for bars."""
    margin = 0.0 if high > low else abs(high) or 1.0
    room = 12 + LABEL_LETTER_PX * max(len(label) for label in labels)
    ends = [alt.ExprRef(f"min(0.3 * width, {room:.0f})"), alt.ExprRef(f"max(0.7 * width, width - {room:.0f})")]
    return alt.Scale(domain=[low - margin, high + margin], range=ends, nice=False, zero=False)


def _with_end_label(row: Row, measure: PlanMeasure) -> Row:
    if row["value"] is None:
        return {**row, "end": row["base"], "label": f"{row['moved']}: no fleet"}
    return {**row, "end": row["value"], "label": f"{row['moved']}: {_value_text(row['value'], measure)}"}


def _value_text(value: float, measure: PlanMeasure) -> str:
    return f"${money(value)}/h" if measure is PlanMeasure.COST else f"{significant(value)} {measure.value}"


# --- fronts -----------------------------------------------------------------------------------------------------------


def front_rows(front: Pareto, asked: float) -> list[Row]:
    """Points of a front by rising quantity.

    Returns rows with asked (in the unit of the front, seconds as milliseconds), usd_per_hour [USD/h], fleet and is_now
    (the point of what is asked).
    """
    scale = 1e3 if front.unit == "s" else 1.0
    nearest = min((abs(math.log(point.asked / asked)) for point in front.points), default=0.0)
    return [
        {
            "asked": scale * point.asked,
            "usd_per_hour": point.outcome.usd_per_hour,
            "fleet": point.outcome.fleet,
            "is_now": abs(math.log(point.asked / asked)) <= nearest + 1e-9 and nearest < 1e-6,
        }
        for point in front.points
    ]


def front_chart(front: Pareto, asked: float) -> alt.LayerChart:
    """The least cost against one quantity; a diamond marks the plan's own value.

    Args:
        front: the points.
        asked: value of the request, in the unit of the front.
    """
    rows = front_rows(front, asked)
    unit = "ms" if front.unit == "s" else front.unit
    name = front.name[:1].upper() + front.name[1:]
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("asked:Q", title=f"{name} ({unit})", scale=scale, axis=alt.Axis(format=",~r", tickCount=6))
    y = alt.Y("usd_per_hour:Q", title="Least cost (USD/h)", scale=alt.Scale(zero=True), axis=alt.Axis(format=",~r"))
    tooltip = [
        alt.Tooltip("asked:Q", title=f"{name} ({unit})", format=",.4~r"),
        alt.Tooltip("usd_per_hour:Q", title="Least cost (USD/h)", format=",.2f"),
        alt.Tooltip("fleet:N", title="Fleet"),
    ]
    line = inline_chart(rows).mark_line(color=BLUE, strokeWidth=2, strokeDash=[4, 3]).encode(x=x, y=y)
    points = inline_chart(rows).mark_point(color=BLUE, filled=True, size=60, opacity=1.0)
    layers = [line, points.encode(x=x, y=y, tooltip=tooltip)]
    now = [{**row, "label": "as asked"} for row in rows if row["is_now"]]
    if now:
        mark = inline_chart(now).mark_point(color=VERMILLION, shape="diamond", filled=True, size=180, opacity=1.0)
        layers += [mark.encode(x=x, y=y, tooltip=tooltip), words(now, GREY, "left", dx=10, dy=-10).encode(x=x, y=y)]
    better = "Serving more" if front.more_is_better else "A tighter target"
    title = titled(
        f"Least cost against {front.name}", f"{better} costs more. Each point is a plan made anew, by theory."
    )
    return layered(layers, title, 300, f"Least cost against {front.name}")


# --- confidence -------------------------------------------------------------------------------------------------------


def confidence_rows(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> list[Row]:
    """Plans by rising confidence, those without a fleet left out.

    Returns rows with confidence [-], value [unit of the measure], fleet and is_now (the confidence asked for).
    """
    return [
        {
            "confidence": point.confidence,
            "value": point.outcome.value(measure),
            "fleet": point.outcome.fleet,
            "is_now": point.asked,
        }
        for point in points
        if point.outcome.feasible
    ]


def confidence_chart(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> alt.LayerChart:
    """What the plan costs or serves by the probability with which it holds; a diamond marks the one asked for.

    Args:
        points: at least one with a fleet.
        measure: what plans are compared by.
    """
    rows = confidence_rows(points, measure)
    percents = alt.Axis(format=".0%", values=[row["confidence"] for row in rows], labelOverlap=True)
    x = alt.X("confidence:Q", title="Confidence", scale=alt.Scale(domain=[0.48, 1.0], nice=False), axis=percents)
    axis = alt.Axis(format=",~r")
    y = alt.Y("value:Q", title=TORNADO_AXES[measure], scale=alt.Scale(zero=True), axis=axis)
    tooltip = [
        alt.Tooltip("confidence:Q", title="Confidence", format=".1%"),
        alt.Tooltip("value:Q", title=measure.value, format=",.4~r"),
        alt.Tooltip("fleet:N", title="Fleet"),
    ]
    line = inline_chart(rows).mark_line(color=BLUE, strokeWidth=2, strokeDash=[4, 3]).encode(x=x, y=y)
    marks = inline_chart(rows).mark_point(color=BLUE, filled=True, size=60, opacity=1.0)
    layers = [line, marks.encode(x=x, y=y, tooltip=tooltip)]
    now = [{**row, "label": "as asked"} for row in rows if row["is_now"]]
    if now:
        mark = inline_chart(now).mark_point(color=VERMILLION, shape="diamond", filled=True, size=180, opacity=1.0)
        layers += [mark.encode(x=x, y=y, tooltip=tooltip), words(now, GREY, "right", dx=-12, dy=14).encode(x=x, y=y)]
    what = "Cost" if measure is PlanMeasure.COST else "What is served"
    legend = "50 %: the fleet if the estimates were exact. Each point is a plan made anew, by theory."
    return layered(layers, titled(f"{what} against confidence", legend), 260, f"{what} against confidence")
