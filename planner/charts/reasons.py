"""Why a plan is what it is: what steps wait for, how full pools are, how tight targets are, what would change it.

Charts of a plan show its own figures; those of an explanation (`planner.analysis.why`) show plans made again, by
theory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from planner.analysis import ConfidencePoint, Pareto, PlanMeasure, PlanOutcome, Sensitivity, SensitivityEnd
from planner.charts.marks import (
    BLUE,
    GREY,
    LABEL_LETTER_PX,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    axis,
    bar_axes,
    bars,
    bars_px,
    colored,
    dots,
    end_labels,
    inline_chart,
    layered,
    rules,
    titled,
    tooltip,
    words,
)
from planner.charts.steps import BOUND_COLORS
from planner.core import money, percent, significant, with_unit
from planner.fleet import Plan, PlannedDeployment
from planner.report import target_name
from planner.roofline import Bound
from planner.serving import Pool, PoolPerformance, Role, step_shapes, token_costs
from planner.workload import Workload

INK = "#1A1A1A"
"""Text on coloured bars."""
BOUND_MEANINGS = {
    Bound.COMPUTE: "matrix units at work; faster with more or faster compute, or fewer bits per number",
    Bound.MEMORY: "weights and KV cache read from HBM; faster with more memory bandwidth, or fewer bits per number",
    Bound.LINK: "GPUs of a replica exchanging results; faster with a faster link, or a smaller TP degree",
    Bound.OVERHEAD: "kernel launches and the engine's own work; not helped by a faster GPU",
}
"""Activity of a step while it waits for each resource, and what would make it shorter."""
TORNADO_ROW_PX, WIDE_BAR_PX = 44, 34
"""Height of an input of the tornado, which has two bars, and of a bar where there are few."""


class PlannedPool(NamedTuple):
    """A pool of a plan.

    Attributes:
        name: ``decode pool, 8 × H100 SXM TP2``, after the name of the deployment where there are several.
        planned: its deployment.
        pool: without the replicas that may fail.
        performance: predicted at the planned load.
    """

    name: str
    planned: PlannedDeployment
    pool: Pool
    performance: PoolPerformance

    @property
    def running(self) -> float:
        """Mean sequences that decode on one replica, at least 1."""
        mean = self.performance.mean_running
        return max(1.0, mean) if math.isfinite(mean) else 1.0


def pools_of(plan: Plan) -> list[PlannedPool]:
    """Every pool with its name, its deployment and its predicted performance; none of an infeasible plan."""
    return [
        PlannedPool(
            f"{name} {pool.role} pool, {pool.gpus:,} × {pool.config.words}".strip(),
            planned,
            pool,
            performance,
        )
        for name, planned in zip(plan.deployment_names, plan.deployments, strict=True)
        for pool, performance in zip(planned.surviving.pools, planned.predicted.pools, strict=True)
    ]


# --- what a step waits for --------------------------------------------------------------------------------------------


def waiting_shares(pool: Pool, performance: PoolPerformance, workload: Workload) -> dict[Bound, float]:
    """Shares of the mean step of a pool that wait for compute, HBM, links and none of them.

    The mean step holds the mean number of running requests, and the prompt tokens that arrive during it, less those
    found in the prefix cache: a = (rate / replicas) x mean input x (1 - hits) x mean step, at most the chunk budget. It
    is the step that `PoolPerformance.bound` is taken from. Where kernels overlap its overhead is negative:
    shares are of the waits, so that they come to 1.

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
    waits_s = {bound: max(0.0, float(seconds)) for bound, seconds in step.bound_s.items()}
    return {bound: seconds / sum(waits_s.values()) for bound, seconds in waits_s.items()}


def waiting_rows(plan: Plan) -> list[Row]:
    """Resources that the mean step of each pool waits for: pool, resource, share, start, end, step_ms [ms], meaning."""
    rows: list[Row] = []
    for name, planned, pool, performance in pools_of(plan):
        start = 0.0
        for bound, share in waiting_shares(pool, performance, planned.workload).items():
            row: Row = {"pool": name, "resource": bound.value, "share": share, "start": start, "end": start + share}
            rows.append(row | {"step_ms": 1e3 * performance.mean_step_s, "meaning": BOUND_MEANINGS[bound]})
            start += share
    return rows


def waiting_chart(plan: Plan) -> alt.LayerChart:
    """Resources that the mean step of each pool waits for, as bars of shares."""
    rows = [row for row in waiting_rows(plan) if row["share"] > 1e-4]
    for row in rows:
        row["middle"], row["label"] = (row["start"] + row["end"]) / 2.0, f"{row['resource']} {percent(row['share'])}"
    whole = alt.Scale(domain=[0.0, 1.0], nice=False)
    axes = bar_axes(rows, "pool", "end", "Share of the mean step", scale=whole, format="%")
    shown = tooltip("pool", "meaning", resource="Waits for", share="Share of the step", step_ms="Mean step (ms)")
    drawn = bars(rows, axes, colored("resource", BOUND_COLORS, room_px=190.0, symbolType="square"), shown, "start")
    fits = f"datum.share * width >= {LABEL_LETTER_PX} * length(datum.label)"
    inside = inline_chart(rows).mark_text(color=INK, fontSize=12).encode(x=axes.at("middle"), y=axes.y, text="label:N")
    title = titled(_waiting_headline(rows), "Mean step of the engine at the planned load, by theory.")
    height = bars_px(len({row["pool"] for row in rows}), WIDE_BAR_PX, legend=True)
    return layered([drawn, inside.transform_filter(fits)], title, height, "What steps wait for, by pool")


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
    simulated (as shares of the threshold), end (the largest of both and 1), met and label.
    """
    rows: list[Row] = []
    for check in plan.targets:
        threshold_s, metric = check.target.threshold_s, check.target.metric
        predicted, simulated = check.predicted_s / threshold_s, check.simulated_s / threshold_s
        rows.append(
            {
                "target": target_name(check.target, check.of),
                "threshold_ms": 1e3 * threshold_s,
                "predicted_ms": 1e3 * check.predicted_s,
                "simulated_ms": 1e3 * check.simulated_s if plan.simulated else None,
                "predicted": predicted,
                "simulated": simulated if plan.simulated else None,
                "end": max(1.0, predicted, simulated if plan.simulated else 0.0),
                "met": check.met,
                "label": f"{with_unit(check.predicted_s, metric)} of {with_unit(threshold_s, metric)}",
            }
        )
    return rows


def target_chart(plan: Plan) -> alt.LayerChart:
    """Latency over threshold of every target: predicted as bars, simulated as diamonds, the threshold as a line."""
    rows = target_rows(plan)
    most = max((row["end"] for row in rows), default=1.0)
    axes = bar_axes(rows, "target", "predicted", "Latency as a share of its target", most=most, format="%")
    shown = tooltip("target", threshold_ms="At most (ms)", predicted_ms="Predicted (ms)", simulated_ms="Simulated (ms)")
    layers = [bars(rows, axes, alt.value(BLUE), shown, height={"band": 0.55})]
    simulated = [row for row in rows if row["simulated"] is not None]
    if simulated:
        look: dict[str, Any] = {"size": 110, "color": ORANGE, "shape": "diamond"}
        layers.append(dots(simulated, shown, **look, x=axes.at("simulated"), y=axes.y))
    layers += [rules([{"at": 1.0}], dashed=True, x=axes.at("at")), end_labels(rows, axes, "end")]
    worst = max(rows, key=lambda row: row["predicted"])
    legend = "Bar: predicted. " + ("Diamond: simulated. " if simulated else "") + "Dashed line: the target."
    title = titled(f"Tightest target: {worst['target']}, {percent(worst['predicted'])} used", legend)
    return layered(layers, title, bars_px(len(rows), WIDE_BAR_PX), "Latency over threshold, by target")


def utilisation_rows(plan: Plan) -> list[Row]:
    """How full each pool is.

    Returns rows with pool, what ("load", "KV cache" or "running requests"), name of the bar, share in use and label.
    """
    rows: list[Row] = []
    for name, _, pool, performance in pools_of(plan):
        most = pool.config.max_running_requests
        shares = [("load", performance.utilisation, "of the stable rate")]
        if pool.role is not Role.PREFILL:
            running = f"({significant(performance.mean_running)} of {most:,})"
            shares.append(("KV cache", performance.kv_occupancy, "held on average"))
            shares.append(("running requests", performance.mean_running / most, running))
        for what, share, of in shares:
            short = f"{name.partition(' pool')[0]}: {what}"
            rows.append({"pool": name, "what": what, "name": short, "share": share, "label": f"{percent(share)} {of}"})
    return rows


def utilisation_chart(plan: Plan) -> alt.LayerChart:
    """How full each pool is, as bars with the figures beside them."""
    rows = [{**row, "full": 1.0, "end": max(1.0, row["share"])} for row in utilisation_rows(plan)]
    values = [0.0, 0.25, 0.5, 0.75, 1.0]
    axes = bar_axes(rows, "name", "share", "Share in use", most=1.0, format="%", values=values)
    whole = axes._replace(x=axes.at("full"))
    layers = [
        bars(rows, whole, alt.value(GREY), (), height={"band": 0.6}, opacity=0.25),
        bars(rows, axes, alt.value(BLUE), tooltip("pool", what="What", share="In use"), height={"band": 0.6}),
        end_labels(rows, axes, "end"),
    ]
    fullest = max(rows, key=lambda row: row["share"])
    short = fullest["pool"].partition(" pool")[0]
    of = f"pool {short}" if short[0].isdigit() else f"the {short} pool"
    title = titled(
        f"Fullest: {fullest['what']} of {of}, {percent(fullest['share'])}",
        "Mean use at the planned load, by theory. What is left is room for peaks.",
    )
    return layered(layers, title, bars_px(len(rows)), "How full pools are")


# --- tornado ----------------------------------------------------------------------------------------------------------

TORNADO_AXES = {
    PlanMeasure.COST: "Cost of the plan made anew (USD/h)",
    PlanMeasure.RATE: "Rate served by the plan made anew (requests/s)",
    PlanMeasure.RATE_PER_COST: "Requests per dollar of the plan made anew (requests/USD)",
}
TORNADO_LEGEND = "datum.label == 'low' ? 'low end (upper bar)' : 'high end (lower bar)'"
"""Names of the two colours of a tornado, as an expression of Vega."""


def tornado_rows(bars: Sequence[Sensitivity], base: PlanOutcome, measure: PlanMeasure) -> list[Row]:
    """Both ends of every input, the widest bar first (an end without a fleet counts as widest).

    Returns rows with input, moved (e.g. ``-20 %``), side ("low" or "high"), value [unit of the measure] (None: no
    fleet), base, end (of the bar), label, fleet, kept_holds (whether the fleet as it is meets its targets there; None:
    there is none) and kept_serves_per_s [requests/s].
    """
    now = base.value(measure)

    def distance(end: SensitivityEnd) -> float:
        return abs(end.remade.value(measure) - now) if end.remade.feasible else math.inf

    rows: list[Row] = []
    for bar in sorted(bars, key=lambda bar: -max(distance(bar.low), distance(bar.high))):
        for side, end in (("low", bar.low), ("high", bar.high)):
            kept, value = end.kept, end.remade.value(measure) if end.remade.feasible else None
            serves = kept.rate_per_s if kept is not None and math.isfinite(kept.rate_per_s) else None
            rows.append(
                {
                    "input": bar.name,
                    "moved": end.label,
                    "side": side,
                    "value": value,
                    "base": now,
                    "end": now if value is None else value,
                    "label": f"{end.label}: {'no fleet' if value is None else _value_text(value, measure)}",
                    "fleet": end.remade.fleet,
                    "kept_holds": None if kept is None else kept.holds,
                    "kept_serves_per_s": serves,
                }
            )
    return rows


def tornado_chart(bars: Sequence[Sensitivity], base: PlanOutcome, measure: PlanMeasure) -> alt.LayerChart:
    """Cost or rate of the plan with one input moved at a time, widest first; an end without a fleet says so."""
    rows, now = tornado_rows(bars, base, measure), base.value(measure)
    values = [now, *(row["end"] for row in rows)]
    scale = _two_sided_scale(min(values), max(values), [row["label"] for row in rows])
    axes = bar_axes(rows, "input", "end", TORNADO_AXES[measure], scale=scale, width_px=240, format=",~r")
    offset = alt.YOffset("side:N", sort=["low", "high"])
    sides = alt.Scale(domain=["low", "high"], range=[SKY, VERMILLION])
    color = alt.Color("side:N", title=None, scale=sides, legend=alt.Legend(orient="top", labelExpr=TORNADO_LEGEND))
    shown = tooltip("input", "moved", value=measure.value, fleet="Fleet made anew")
    shown += tooltip(kept_holds="Fleet as it is holds its targets", kept_serves_per_s="It would serve (requests/s)")
    drawn = inline_chart(rows).mark_bar(height={"band": 0.8})
    across: dict[str, Any] = {"x": axes.at("base"), "x2": "end:Q", "y": axes.y, "yOffset": offset}
    layers = [drawn.encode(**across, color=color, tooltip=shown)]
    for is_left in (False, True):
        side = [row for row in rows if (row["end"] < row["base"]) == is_left]
        if side:
            text = words(side, GREY, "right", dx=-5) if is_left else words(side, GREY, "left", dx=5)
            layers.append(text.encode(x=axes.x, y=axes.y, yOffset=offset))
    layers.append(rules([{"base": now}], x=axes.at("base")))
    legend = f"Grey line: the plan as it is, {_value_text(now, measure)}. One input at a time, by theory."
    title = titled(f"The plan depends most on {rows[0]['input']}", legend)
    return layered(layers, title, bars_px(len(rows) // 2, TORNADO_ROW_PX, legend=True), "Tornado: one input at a time")


def _two_sided_scale(low: float, high: float, labels: Sequence[str]) -> alt.Scale:
    """A scale that leaves room for labels at both ends, and at least 40 % of the width for bars."""
    margin = 0.0 if high > low else abs(high) or 1.0
    room = 12 + LABEL_LETTER_PX * max(len(label) for label in labels)
    ends = [alt.ExprRef(f"min(0.3 * width, {room:.0f})"), alt.ExprRef(f"max(0.7 * width, width - {room:.0f})")]
    return alt.Scale(domain=[low - margin, high + margin], range=ends, nice=False, zero=False)


def _value_text(value: float, measure: PlanMeasure) -> str:
    return f"${money(value)}/h" if measure is PlanMeasure.COST else f"{significant(value)} {measure.value}"


# --- fronts and confidence --------------------------------------------------------------------------------------------


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
    name = f"{front.name[:1].upper()}{front.name[1:]} ({'ms' if front.unit == 's' else front.unit})"
    scale = alt.Scale(type="log", nice=False, padding=12)
    x = axis(alt.X, "asked", name, scale=scale, format=",~r", tickCount=6)
    y = axis(alt.Y, "usd_per_hour", "Least cost (USD/h)", format=",~r")
    shown = tooltip("fleet", asked=name, usd_per_hour="Least cost (USD/h)")
    better = "Serving more" if front.more_is_better else "A tighter target"
    subtitle = f"{better} costs more. Each point is a plan made anew, by theory."
    title = titled(f"Least cost against {front.name}", subtitle)
    layers = _points_with_now(front_rows(front, asked), x, y, shown, "left")
    return layered(layers, title, 300, f"Least cost against {front.name}")


def confidence_rows(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> list[Row]:
    """Plans by rising confidence, those without a fleet left out.

    Returns rows with confidence [-], value [unit of the measure], fleet and is_now (the confidence asked for).
    """
    return [
        {"confidence": point.confidence, "value": point.outcome.value(measure)}
        | {"fleet": point.outcome.fleet, "is_now": point.asked}
        for point in points
        if point.outcome.feasible
    ]


def confidence_chart(points: Sequence[ConfidencePoint], measure: PlanMeasure) -> alt.LayerChart:
    """Cost or rate of the plan by the probability with which it holds; a diamond marks the one asked for.

    Args:
        points: at least one with a fleet.
        measure: what plans are compared by.
    """
    rows = confidence_rows(points, measure)
    values = [row["confidence"] for row in rows]
    x = axis(alt.X, "confidence", "Confidence", [0.48, 1.0], format=".0%", values=values, labelOverlap=True)
    y = axis(alt.Y, "value", TORNADO_AXES[measure], format=",~r")
    layers = _points_with_now(rows, x, y, tooltip("confidence", "fleet", value=measure.value), "right")
    what = "Cost" if measure is PlanMeasure.COST else "What is served"
    legend = "50 %: the fleet if the estimates were exact. Each point is a plan made anew, by theory."
    return layered(layers, titled(f"{what} against confidence", legend), 260, f"{what} against confidence")


def _points_with_now(
    rows: Sequence[Row], x: alt.X, y: alt.Y, shown: Sequence[alt.Tooltip], side: str
) -> list[alt.Chart]:
    """Points joined by a dashed line, and a diamond on the one that is asked for, its label to the left or right."""
    place: dict[str, Any] = {"x": x, "y": y}
    line = inline_chart(rows).mark_line(color=BLUE, strokeWidth=2, strokeDash=[4, 3]).encode(**place)
    layers = [line, dots(rows, shown, color=BLUE, **place)]
    now = [{**row, "label": "as asked"} for row in rows if row["is_now"]]
    if now:
        text = words(now, GREY, "left", dx=10, dy=-10) if side == "left" else words(now, GREY, "right", dx=-12, dy=14)
        layers.append(dots(now, shown, size=180, color=VERMILLION, shape="diamond", **place))
        layers.append(text.encode(**place))
    return layers
