"""Charts of a plan: latency against rate, the roofline of a step, the cost of the alternatives.

Every chart has a companion that returns its data as rows (lists of plain dicts), so that a number in a picture can be
tested and exported. Charts work in a notebook and in the web app, on a light and on a dark page. Colours are from the
palette of Okabe and Ito (Color Universal Design, 2008, https://jfly.uni-koeln.de/color/), told apart by all common
kinds of colour vision; shape, dash or words always say the same thing again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import altair as alt
import numpy as np

from planner.deployment import Deployment, Pool, PoolPerformance, Role
from planner.errors import InputError
from planner.optimizer import Objective
from planner.performance import evaluate
from planner.planning import HOURS_PER_MONTH, Alternative, Plan
from planner.pool_model import step_shapes, token_costs
from planner.replica import ReplicaConfig, step_timer
from planner.roofline import (
    Bound,
    Family,
    Load,
    Operator,
    StepShape,
    operator_seconds,
    ridge_point_flops_per_byte,
    step_operators,
)
from planner.stages import largest_stable_rate_per_s
from planner.workload import LatencyTarget, Metric, Slo, TokenLengths, Workload

Row = dict[str, Any]
"""One mark of a chart. Values are text, float, bool or None, so that rows are JSON."""

BLUE, SKY, GREEN, ORANGE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
GREY = "#8C8C8C"
"""Neutral marks and text; readable on white and on near-black."""

LOWEST_LOAD, HIGHEST_LOAD = 0.10, 0.98
"""Ends of a rate sweep as shares of the largest stable rate: a choice; at 1 the queue has no stationary law."""
MAX_POINTS = 25
"""Most evaluations in one sweep, so that a chart never takes longer than its plan."""
DEFAULT_PERCENTILE = 0.99
"""Upper curve of a metric for which the Slo names no percentile."""
SAME_PLACE = 1.6
"""Points of one step whose intensities differ by less than this factor share one label."""
BAR_HEIGHT_PX, AXIS_HEIGHT_PX = 26, 110

FAMILY_WORDS = {
    Family.EMBEDDING: "embedding",
    Family.NORM: "norms",
    Family.QKV: "QKV",
    Family.ATTENTION_PREFILL: "prefill attention",
    Family.ATTENTION_DECODE: "decode attention",
    Family.ATTENTION_OUTPUT: "attention output",
    Family.INDEX: "sparse index",
    Family.RECURRENCE: "recurrence",
    Family.FEED_FORWARD: "feed-forward",
    Family.ROUTER: "router",
    Family.EXPERTS: "experts",
    Family.SHARED_EXPERTS: "shared experts",
    Family.LM_HEAD: "LM head",
    Family.ALL_REDUCE: "all-reduce",
    Family.ALL_GATHER: "all-gather",
    Family.EXPERT_EXCHANGE: "expert exchange",
    Family.STAGE_TRANSFER: "stage transfer",
}


def inline_chart(rows: Iterable[Mapping[str, object]]) -> alt.Chart:
    """A chart of rows that it carries with it."""
    return alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))


def layered(layers: Sequence[alt.Chart], title: alt.TitleParams, height_px: int, description: str) -> alt.LayerChart:
    """Layers under one title."""
    return alt.LayerChart(layer=list(layers), title=title, height=height_px, description=description)


def titled(text: str, subtitle: str) -> alt.TitleParams:
    """A title at the left, with a grey line under it."""
    return alt.TitleParams(text, subtitle=subtitle, anchor="start", subtitleColor=GREY)


def words(
    rows: Iterable[Mapping[str, object]],
    color: str,
    align: Literal["left", "center", "right"],
    dx: int = 0,
    dy: int = 0,
) -> alt.Chart:
    """The rows' `label` beside their place; positions are left to the caller."""
    marks = inline_chart(rows).mark_text(align=align, dx=dx, dy=dy, color=color, fontSize=12)
    found: alt.Chart = marks.encode(text="label:N")
    return found


# --- latency against rate -------------------------------------------------------------------------------------------


def latency_vs_rate_rows(deployment: Deployment, workload: Workload, slo: Slo, points: int = MAX_POINTS) -> list[Row]:
    """Percentiles of TTFT and TPOT (of E2E and ITL where the Slo has a target on it) over arrival rates.

    Rates run from 10 % to 98 % of the largest stable rate, closer together where queues grow, and include the
    workload's own rate (`is_planned`). Each metric has its median and the percentiles of its targets, p99 without any.
    Rates at which the deployment is unstable have no rows.

    Args:
        deployment: what serves.
        workload: lengths and burstiness; its rate is the planned one.
        slo: whose percentiles are shown.
        points: evaluations, 2 to 25.

    Returns rows with metric, percentile ("p99"), rate_per_s [1/s], load (share of the largest stable rate),
    latency_ms [ms] and is_planned. Raises InputError when `points` is out of range or the deployment does not fit.
    """
    if not 2 <= points <= MAX_POINTS:
        raise InputError("points", points, f"must be from 2 to {MAX_POINTS}", "give a number of evaluations in range")
    planned = workload.arrivals.rate_per_s
    largest = largest_stable_rate_per_s(deployment, workload)
    loads = 1.0 - np.geomspace(1.0 - LOWEST_LOAD, 1.0 - HIGHEST_LOAD, points - 1)
    rows: list[Row] = []
    for rate in sorted({*(loads * largest).tolist(), planned}):
        performance = evaluate(deployment, workload.at_rate(rate))
        if not performance.stable:
            continue
        for metric in shown_metrics(slo):
            for percentile in _percentiles(slo, metric):
                latency_s = performance.distribution(metric).quantile_s(percentile)
                rows.append(
                    {
                        "metric": metric.value.upper(),
                        "percentile": f"p{100 * percentile:g}",
                        "rate_per_s": rate,
                        "load": rate / largest,
                        "latency_ms": 1e3 * latency_s,
                        "is_planned": rate == planned,
                    }
                )
    return rows


def shown_metrics(slo: Slo) -> list[Metric]:
    """TTFT and TPOT, and E2E or ITL where the Slo has a target on it: one panel each."""
    asked = {target.metric for target in slo.targets} | {Metric.TTFT, Metric.TPOT}
    return [metric for metric in Metric if metric in asked]


def _percentiles(slo: Slo, metric: Metric) -> list[float]:
    asked = {target.percentile for target in slo.targets if target.metric is metric}
    return sorted({0.5} | (asked or {DEFAULT_PERCENTILE}))


def latency_vs_rate(deployment: Deployment, workload: Workload, slo: Slo, points: int = MAX_POINTS) -> alt.VConcatChart:
    """TTFT and TPOT percentiles against the arrival rate, one panel each, with targets and the planned rate.

    Arguments and errors as `latency_vs_rate_rows`.
    """
    rows = latency_vs_rate_rows(deployment, workload, slo, points)
    return alt.vconcat(*(latency_panel(rows, slo, metric).properties(width=560) for metric in shown_metrics(slo)))


def latency_panel(rows: Sequence[Row], slo: Slo, metric: Metric) -> alt.LayerChart:
    """One metric of `latency_vs_rate_rows` as a chart. The vertical axis ends somewhat above targets and plan."""
    name = metric.value.upper()
    mine = [row for row in rows if row["metric"] == name]
    targets = [target for target in slo.targets if target.metric is metric]
    top = _top_ms(mine, targets)
    shown = [f"p{100 * percentile:g}" for percentile in _percentiles(slo, metric)]
    x = alt.X(
        "rate_per_s:Q",
        title="Arrival rate (requests/s)",
        scale=alt.Scale(zero=True, nice=False),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y("latency_ms:Q", title=f"{name} (ms)", scale=alt.Scale(domain=[0.0, top], nice=False))
    color = alt.Color(
        "percentile:N",
        title=None,
        scale=alt.Scale(domain=shown, range=[SKY, BLUE, GREEN, ORANGE][: len(shown)]),
        legend=alt.Legend(orient="top"),
    )
    tooltip = [
        alt.Tooltip("percentile:N", title="Percentile"),
        alt.Tooltip("rate_per_s:Q", title="Requests/s", format=",.4~r"),
        alt.Tooltip("load:Q", title="Share of the largest stable rate", format=".0%"),
        alt.Tooltip("latency_ms:Q", title=f"{name} (ms)", format=",.4~r"),
    ]
    lines = inline_chart(mine).mark_line(clip=True, strokeWidth=2.5).encode(x=x, y=y, color=color, tooltip=tooltip)
    planned = [row for row in mine if row["is_planned"]]
    dots = inline_chart(planned).mark_point(filled=True, size=80, opacity=1, clip=True)
    layers = [
        lines,
        *_planned_rate(planned[:1], top),
        *_threshold_lines(targets, mine),
        dots.encode(x=x, y=y, color=color, tooltip=tooltip),
    ]
    subtitle = "Percentiles over requests. Dashed line: target. Dots: the planned rate."
    title = titled(f"{name} against arrival rate", subtitle)
    return layered(layers, title, 360, f"{name} percentiles over arrival rate")


def _top_ms(rows: Sequence[Row], targets: Sequence[LatencyTarget]) -> float:
    """End of the vertical axis [ms]: 1.6 times what must be seen, so that saturation does not flatten the rest."""
    marks = [1e3 * target.threshold_s for target in targets]
    marks += [row["latency_ms"] for row in rows if row["is_planned"]]
    if not marks:
        marks = [row["latency_ms"] for row in rows]
    return 1.6 * max(marks, default=1.0) or 1.0


def _threshold_lines(targets: Sequence[LatencyTarget], rows: Sequence[Row]) -> list[alt.Chart]:
    left = min((row["rate_per_s"] for row in rows), default=0.0)
    values = [
        {
            "latency_ms": 1e3 * target.threshold_s,
            "rate_per_s": left,
            "label": f"target: {target.name.split()[0]} ≤ {1e3 * target.threshold_s:,.4g} ms",
        }
        for target in targets
    ]
    if not values:
        return []
    rule = inline_chart(values).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=VERMILLION).encode(y="latency_ms:Q")
    return [rule, words(values, VERMILLION, "left", dy=-8).encode(x="rate_per_s:Q", y="latency_ms:Q")]


def _planned_rate(planned: Sequence[Row], top_ms: float) -> list[alt.Chart]:
    if not planned:
        return []
    rate = planned[0]["rate_per_s"]
    rows = [{"rate_per_s": rate, "latency_ms": top_ms, "label": f"planned {rate:,.4g}/s"}]
    rule = inline_chart(rows).mark_rule(color=GREY, strokeWidth=1.5).encode(x="rate_per_s:Q")
    is_right = planned[0]["load"] > 0.5  # the label goes where there is room
    text = words(rows, GREY, "right" if is_right else "left", dx=-6 if is_right else 6, dy=10)
    return [rule, text.encode(x="rate_per_s:Q", y="latency_ms:Q")]


# --- roofline -------------------------------------------------------------------------------------------------------


def pool_shapes(pool: Pool, performance: PoolPerformance, lengths: TokenLengths) -> dict[str, StepShape]:
    """The steps that describe a pool, by name: its mean decode step, and a step full of prompt tokens.

    A prefill pool has no decode step, a decode pool no prefill step.

    Args:
        pool: of a deployment.
        performance: its own, for the mean number of running requests.
        lengths: of the workload.
    """
    costs = token_costs(lengths, pool.config.max_batched_tokens, pool.role)
    shapes = {}
    if pool.role is not Role.PREFILL:
        running = max(1.0, performance.mean_running)
        name = f"decode step, {running:,.0f} running"
        shapes[name] = step_shapes(np.array(running), np.array(0.0), costs)
    if pool.role is not Role.DECODE:
        tokens = pool.config.max_batched_tokens
        name = f"prefill step, {tokens:,} tokens"
        shapes[name] = step_shapes(np.array(0.0), np.array(float(tokens)), costs)
    return shapes


def roofline_rows(config: ReplicaConfig, shapes: Mapping[str, StepShape]) -> list[Row]:
    """Operators of steps as points on the roofline of one GPU.

    Intensity is FLOPs / HBM bytes; attained is FLOPs / operator time, where the time is that of the step-time model: a
    measured kernel where the calibration has one, else the roofline. Operators without FLOPs (norms, activation
    functions, rotary and token embedding, collectives) have no place on a roofline and no row; their time counts in
    `time_share`. The rest of a family is summed. Draft steps and the engine's own time are in the step's time only.

    Args:
        config: the replica.
        shapes: one step each, by name.

    Returns rows with step, operator, dtype, intensity_flops_per_byte, attained_flops_per_s, time_s, time_share (of
    the step) and bound.
    """
    rows: list[Row] = []
    for step, shape in shapes.items():
        rows += _operator_rows(config, step, shape)
    return rows


def _operator_rows(config: ReplicaConfig, step: str, shape: StepShape) -> list[Row]:
    timer = step_timer(config)
    load = Load.of(shape, config.parallelism, timer.queries)
    total_s = float(timer.times_s(shape))
    rows: list[Row] = []
    by_family: dict[Family, list[Operator]] = {}
    for operator in _operators(config):
        if float(operator.work(load).flops) > 0.0:
            by_family.setdefault(operator.family, []).append(operator)
    for family, members in by_family.items():
        works = [operator.work(load) for operator in members]
        seconds = [float(operator_seconds(operator, load, timer.silicon, math.inf)) for operator in members]
        flops = sum(operator.count * float(work.flops) for operator, work in zip(members, works, strict=True))
        hbm_bytes = sum(operator.count * float(work.hbm_bytes) for operator, work in zip(members, works, strict=True))
        dtype = max((operator.dtype for operator in members), key=lambda one: timer.silicon.machine(one).flops_per_s)
        time_s, ridge = sum(seconds), ridge_point_flops_per_byte(config.sku, dtype)
        rows.append(
            {
                "step": step,
                "operator": FAMILY_WORDS[family],
                "dtype": dtype.value,
                "intensity_flops_per_byte": flops / hbm_bytes,
                "attained_flops_per_s": flops / time_s,
                "time_s": time_s,
                "time_share": time_s / total_s,
                "bound": (Bound.COMPUTE if flops / hbm_bytes > ridge else Bound.MEMORY).value,
            }
        )
    return rows


def _operators(config: ReplicaConfig) -> tuple[Operator, ...]:
    return step_operators(config.llm, config.sku, config.precision, config.parallelism, config.skew)


def roof_rows(config: ReplicaConfig, lowest: float, highest: float) -> list[Row]:
    """Roofs of a SKU between two intensities [FLOP/byte]: min(bandwidth * intensity, peak).

    Three points (both ends and the ridge) for each number format the replica computes in. Rows hold dtype,
    intensity_flops_per_byte, attained_flops_per_s and is_ridge.
    Source: Williams, Waterman, Patterson 2009, CACM 52(4), eq. 1.
    """
    probe = Load.of(StepShape(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), config.parallelism)
    bandwidth = config.sku.hbm_bandwidth_bytes_per_s.value
    rows: list[Row] = []
    for dtype in sorted({one.dtype for one in _operators(config) if float(one.work(probe).flops) > 0.0}):
        ridge = ridge_point_flops_per_byte(config.sku, dtype)
        peak = config.sku.peak_flops_per_s[dtype].value
        rows += [
            {
                "dtype": dtype.value,
                "intensity_flops_per_byte": intensity,
                "attained_flops_per_s": min(bandwidth * intensity, peak),
                "is_ridge": intensity == ridge,
            }
            for intensity in (min(lowest, ridge), ridge, max(highest, ridge))
        ]
    return rows


def roofline(config: ReplicaConfig, shapes: Mapping[str, StepShape]) -> alt.LayerChart:
    """Operators of steps under the roof of the SKU, per GPU, both axes logarithmic.

    Args:
        config: the replica.
        shapes: one step each, by name; `pool_shapes` gives those of a pool.
    """
    points = _in_tflops(roofline_rows(config, shapes))
    right = 10 * max((row["intensity_flops_per_byte"] for row in points), default=100.0)
    x_decades = _decades(min((row["intensity_flops_per_byte"] for row in points), default=1.0), right)
    roofs = _in_tflops(roof_rows(config, x_decades[0], x_decades[-1]))
    attained = [row["attained_tflops_per_s"] for row in [*points, *roofs]]
    x = alt.X(
        "intensity_flops_per_byte:Q",
        title="Arithmetic intensity (FLOP per byte of HBM traffic)",
        scale=alt.Scale(type="log", domain=[x_decades[0], x_decades[-1]], nice=False),
        axis=alt.Axis(format="~s", values=x_decades),
    )
    y = alt.Y(
        "attained_tflops_per_s:Q",
        title="Attained per GPU (TFLOP/s)",
        scale=alt.Scale(type="log", domain=[min(attained) / 2, 3 * max(attained)], nice=False),
        axis=alt.Axis(format=",~f", values=_decades(min(attained), max(attained))),
    )
    layers = [*_roof_layers(roofs, min(attained) / 2, x, y), *_operator_layers(points, list(shapes), x, y)]
    title = titled(f"Roofline of {config.label}", "Operators of one step. Larger mark: larger share of its time.")
    return layered(layers, title, 460, f"Roofline of {config.label}")


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten from the last one at or below `low` to the first one at or above `high`."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _in_tflops(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "attained_tflops_per_s": row["attained_flops_per_s"] / 1e12} for row in rows]


def _roof_layers(roofs: Sequence[Row], bottom: float, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Roof lines, and ridge points as dotted lines named at the bottom, where no operator can be."""
    ridges = sorted((row for row in roofs if row["is_ridge"]), key=lambda row: row["intensity_flops_per_byte"])
    layers = [inline_chart(roofs).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y, detail="dtype:N")]
    for place, ridge in enumerate(ridges):
        name = f"{ridge['dtype']} ridge: {ridge['intensity_flops_per_byte']:,.0f}"
        ends = [ridge, {**ridge, "attained_tflops_per_s": bottom, "label": name}]
        layers.append(inline_chart(ends).mark_line(color=GREY, strokeDash=[2, 3]).encode(x=x, y=y))
        text = words(ends[1:], GREY, "left" if place else "right", dx=6 if place else -6, dy=-10)
        layers.append(text.encode(x=x, y=y))
    return layers


def _operator_layers(points: Sequence[Row], steps: list[str], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    colors = [BLUE, VERMILLION, GREEN, ORANGE][: len(steps)]
    shapes = ["circle", "triangle-up", "square", "cross"][: len(steps)]
    legend = alt.Legend(orient="top", title=None, labelLimit=300)
    marks = inline_chart(points).mark_point(filled=True, opacity=0.85)
    return [
        marks.encode(
            x=x,
            y=y,
            color=alt.Color("step:N", scale=alt.Scale(domain=steps, range=colors), legend=legend),
            shape=alt.Shape("step:N", scale=alt.Scale(domain=steps, range=shapes), legend=legend),
            size=alt.Size("time_share:Q", scale=alt.Scale(domain=[0, 1], range=[60, 700]), legend=None),
            tooltip=[
                alt.Tooltip("step:N", title="Step"),
                alt.Tooltip("operator:N", title="Operator"),
                alt.Tooltip("dtype:N", title="Arithmetic"),
                alt.Tooltip("intensity_flops_per_byte:Q", title="FLOP/byte", format=",.4~r"),
                alt.Tooltip("attained_tflops_per_s:Q", title="TFLOP/s", format=",.4~r"),
                alt.Tooltip("time_share:Q", title="Share of step time", format=".1%"),
                alt.Tooltip("bound:N", title="Waits for"),
            ],
        ),
        *_operator_labels(points, steps, colors, x, y),
    ]


def _operator_labels(
    points: Sequence[Row], steps: list[str], colors: list[str], x: alt.X, y: alt.Y
) -> Iterator[alt.Chart]:
    """Names beside the points: below the roof, but above it for later steps on the highest roof, where steps meet."""
    highest = max((row["attained_flops_per_s"] for row in points), default=0.0)
    for place, (step, color) in enumerate(zip(steps, colors, strict=True)):
        rows = label_rows([row for row in points if row["step"] == step])
        above = [row for row in rows if place and row["attained_flops_per_s"] > highest / SAME_PLACE]
        yield words(above, color, "center", dy=-16).encode(x=x, y=y)
        yield words([row for row in rows if row not in above], color, "left", dx=10, dy=13).encode(x=x, y=y)


def label_rows(points: Sequence[Row]) -> list[Row]:
    """One label for points of a step that lie in one place: the operator that takes longest, and how many more."""
    groups: list[list[Row]] = []
    for row in sorted(points, key=lambda row: (row["step"], row["intensity_flops_per_byte"])):
        if groups and groups[-1][-1]["step"] == row["step"] and _near(groups[-1][-1], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    labels = []
    for group in groups:
        longest = max(group, key=lambda row: row["time_s"])
        more = f" + {len(group) - 1}" if len(group) > 1 else ""
        labels.append({**longest, "label": f"{longest['operator']}{more}"})
    return labels


def _near(one: Row, other: Row) -> bool:
    return all(
        abs(math.log(one[name] / other[name])) < math.log(SAME_PLACE)
        for name in ("intensity_flops_per_byte", "attained_flops_per_s")
    )


# --- cost comparison ------------------------------------------------------------------------------------------------


def cost_comparison_rows(plan: Plan) -> list[Row]:
    """The plan, then the best fleet of each SKU, then of each mode; cheapest first, those without a fleet last.

    Returns rows with name, kind ("plan", "sku" or "mode"), fleet (in words), is_feasible, is_chosen (costs and serves
    what the plan does), usd_per_month [USD], usd_per_thousand_requests [USD], cost (the one of the two that the bar
    shows: by the month when every fleet serves the same demand, else by the request), ratio (to the plan's cost) and
    reason (why there is none). An infeasible plan has only rows without a fleet.
    """
    if plan.cost is None or not plan.alternatives:
        rows = [_fleetless_row(plan, "sku", sku) for sku in dict.fromkeys(plan.request.search.skus)]
        return rows + [_fleetless_row(plan, "mode", mode.value) for mode in dict.fromkeys(plan.request.search.modes)]
    fleet = " + ".join(f"{count} x {sku}" for sku, count in plan.gpus.items())
    rate = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    chosen = Alternative("the plan", "plan", fleet, plan.cost.usd_per_hour, rate, True)
    rows = [_cost_row(plan, alternative) for alternative in (chosen, *plan.alternatives)]
    own_cost = rows[0]["cost"]
    for row in rows:
        row["ratio"] = row["cost"] / own_cost if row["is_feasible"] else None
    kinds = ("plan", "sku", "mode")
    return sorted(rows, key=lambda row: (kinds.index(row["kind"]), not row["is_feasible"], row["cost"] or 0.0))


def _cost_row(plan: Plan, alternative: Alternative) -> Row:
    if alternative.usd_per_hour is None or alternative.rate_per_s <= 0.0:
        return _fleetless_row(plan, alternative.kind, alternative.restriction)
    per_month = alternative.usd_per_hour * HOURS_PER_MONTH
    per_thousand = 1e3 * alternative.usd_per_hour / (3600.0 * alternative.rate_per_s)
    return {
        "name": alternative.restriction,
        "kind": alternative.kind,
        "fleet": alternative.summary,
        "is_feasible": True,
        "is_chosen": alternative.is_chosen,
        "is_bound": alternative.is_bound,
        "usd_per_month": per_month,
        "usd_per_thousand_requests": per_thousand,
        "cost": per_month if _is_by_month(plan) else per_thousand,
        "reason": "",
    }


def _is_by_month(plan: Plan) -> bool:
    return plan.request.objective is Objective.MIN_COST


def _fleetless_row(plan: Plan, kind: str, name: str) -> Row:
    found = [item for item in plan.rejections if name in (item.sku, item.mode.value)]
    nearest = min(found, key=lambda item: item.ratio, default=None)
    return {
        "name": name,
        "kind": kind,
        "fleet": "",
        "is_feasible": False,
        "is_chosen": False,
        "is_bound": False,
        "usd_per_month": None,
        "usd_per_thousand_requests": None,
        "cost": None,
        "ratio": None,
        "reason": nearest.reason if nearest else "none meets the targets within the limits",
    }


def cost_comparison(plan: Plan) -> alt.LayerChart:
    """What the plan and the best fleet of each SKU and of each mode cost, as bars; what cannot be done is named."""
    rows = [_labelled(row, _is_by_month(plan)) for row in cost_comparison_rows(plan)]
    unit = "USD per month" if _is_by_month(plan) else "USD per 1,000 requests"
    longest = max((row["end"] for row in rows), default=0.0) or 1.0
    y = alt.Y("title:N", title=None, sort=None, axis=alt.Axis(labelLimit=260, labelOverlap=False, domain=False))
    domain = alt.Scale(domain=[0.0, 1.45 * longest], nice=False)
    x = alt.X("end:Q", title=unit, scale=domain, axis=alt.Axis(format=",~f", tickCount=5))
    base = inline_chart(rows).encode(x=x, y=y)
    bars = base.mark_bar(height={"band": 0.7}).encode(
        color=alt.condition("datum.kind === 'plan'", alt.value(BLUE), alt.value(SKY)),
        tooltip=[
            alt.Tooltip("title:N", title="Restricted to"),
            alt.Tooltip("fleet:N", title="Fleet"),
            alt.Tooltip("usd_per_month:Q", title="USD per month", format=",.0f"),
            alt.Tooltip("usd_per_thousand_requests:Q", title="USD per 1,000 requests", format=",.4f"),
        ],
    )
    text = words(rows, GREY, "left", dx=6).encode(x=x, y=y)
    title = titled(
        "Cost of the plan and of the best fleet of each SKU and mode",
        "The plan is simulated, the others are from theory alone.",
    )
    height = AXIS_HEIGHT_PX + BAR_HEIGHT_PX * len(rows)
    return layered([bars, text], title, height, f"Cost of the alternatives in {unit}")


def _labelled(row: Row, is_by_month: bool) -> Row:
    titles = {"plan": "{}", "sku": "only {}", "mode": "only {}, any SKU"}
    end = row["cost"] if row["is_feasible"] else 0.0
    label = f"${end:,.0f}" if is_by_month else f"${end:,.4f}"
    if not row["is_feasible"]:
        label = "no fleet"
    elif row["kind"] != "plan":
        change = round(row["ratio"] - 1.0, 2) + 0.0  # no minus zero
        label += " (as planned)" if row["is_chosen"] else f" ({change:+.0%})"
        label = f"at least {label}" if row["is_bound"] else label
    return {**row, "title": titles[row["kind"]].format(row["name"]), "label": label, "end": end}
