"""The roofline of a step: operators of a replica under the roof of its SKU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import altair as alt
import numpy as np

from planner.charts.marks import BLUE, GREEN, GREY, ORANGE, VERMILLION, Row, inline_chart, layered, titled, words
from planner.deployment import Pool, PoolPerformance, Role
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
from planner.workload import TokenLengths

SAME_PLACE = 1.6
"""Points of one step whose intensities differ by less than this factor share one label."""

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
