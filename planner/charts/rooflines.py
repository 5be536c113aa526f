"""The roofline of a step: operators of a replica under the roof of its SKU, and where the roof of each SKU bends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import altair as alt
import numpy as np

from hardware_db import Dtype, GpuSku
from planner.charts.marks import BLUE, GREEN, GREY, ORANGE, VERMILLION, Row, inline_chart, layered, titled, words
from planner.deployment import Pool, PoolPerformance, Role
from planner.llm import BYTES_PER_VALUE
from planner.pool_model import TokenCosts, step_shapes, token_costs
from planner.replica import ReplicaConfig, step_timer
from planner.roofline import (
    Bound,
    Family,
    Load,
    Operator,
    Silicon,
    StepShape,
    operator_seconds,
    ridge_point_flops_per_byte,
    step_operators,
)
from planner.workload import TokenLengths

SAME_PLACE = 1.6
"""Points of one step whose intensities differ by less than this factor share one label."""
LABEL_WIDTH = 6.0
"""Factor of intensity that a label spans."""

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
    return steps_of(pool, max(1.0, performance.mean_running), costs)


def steps_of(pool: Pool, running: float, costs: TokenCosts) -> dict[str, StepShape]:
    """`pool_shapes` with a decode step of `running` sequences, whatever the pool's own mean is.

    Args:
        pool: of a deployment.
        running: sequences of one replica's decode step.
        costs: tokens that each of them and each prompt token stand for (`planner.pool_model.PoolModel.costs`).
    """
    shapes = {}
    if pool.role is not Role.PREFILL:
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
    the step), bound, roof_share (time on the roofline / time, in (0, 1]: how near the roof it is) and timed_by (where
    the time comes from, see `timing_source`).
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
        roof_s = sum(_roof_s(operator, load, timer.silicon) for operator in members)
        longest = members[seconds.index(max(seconds))]
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
                "roof_share": roof_s / time_s,
                "timed_by": timing_source(longest, timer.silicon),
            }
        )
    return rows


def _roof_s(operator: Operator, load: Load, silicon: Silicon) -> float:
    """Time of an operator at the peaks of the datasheet [s]: no calibration, links aside."""
    return float(operator_seconds(operator, load, Silicon(silicon.sku), math.inf))


def timing_source(operator: Operator, silicon: Silicon) -> str:
    """Where the time of an operator comes from, in words: a fit, a relative's, or the datasheet.

    Args:
        operator: one of `step_operators`.
        silicon: the SKU and its calibration.
    """
    key, calibration = silicon.first(*operator.fit_keys), silicon.calibration
    if key is None or calibration is None:
        return "not measured: roofline of the datasheet"
    fit = calibration.kernels[key]
    stands_in = f" in place of {operator.fit_keys[0]}" if key != operator.fit_keys[0] else ""
    own = calibration.sku == silicon.sku.id
    where = "fitted" if own else f"not measured on {silicon.sku.id}: shares of peak of {calibration.sku}, fitted"
    error = f"{100.0 * fit.median_error:.0f} % median error on {fit.held_out:,} held out"
    return f"{where} {calibration.fitted_on}, {calibration.stack}, {key}{stands_in}: {error}"


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
    subtitle = "Operators of one step on one GPU. Larger mark: larger share of its time."
    title = titled(f"Roofline of {config.label}", subtitle)
    return layered(layers, title, 460, f"Roofline of {config.label}")


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten from the last one at or below `low` to the first one at or above `high`."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _in_tflops(rows: Sequence[Row]) -> list[Row]:
    shown = [{**row, "attained_tflops_per_s": row["attained_flops_per_s"] / 1e12} for row in rows]
    return [{**row, "time_ms": 1e3 * row["time_s"]} if "time_s" in row else row for row in shown]


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
                alt.Tooltip("roof_share:Q", title="Share of its roof reached", format=".0%"),
                alt.Tooltip("time_ms:Q", title="Time in the step (ms)", format=",.3~r"),
                alt.Tooltip("time_share:Q", title="Share of step time", format=".1%"),
                alt.Tooltip("bound:N", title="Waits for"),
                alt.Tooltip("timed_by:N", title="Time is"),
            ],
        ),
        *_operator_labels(points, steps, colors, x, y),
    ]


def _operator_labels(
    points: Sequence[Row], steps: list[str], colors: list[str], x: alt.X, y: alt.Y
) -> Iterator[alt.Chart]:
    """Names beside the points: below the roof, but above it for later steps on the highest roof, where steps meet."""
    highest = max((row["attained_flops_per_s"] for row in points), default=0.0)
    below: list[Row] = []
    for place, (step, color) in enumerate(zip(steps, colors, strict=True)):
        rows = [{**row, "color": color} for row in label_rows([row for row in points if row["step"] == step])]
        above = [row for row in rows if place and row["attained_flops_per_s"] > highest / SAME_PLACE]
        yield words(above, color, "center", dy=-16).encode(x=x, y=y)
        below += [row for row in rows if row not in above]
    for line, row in _lines(below):
        yield words([row], row["color"], "left", dx=10, dy=13 + 14 * line).encode(x=x, y=y)


def _lines(labels: Sequence[Row]) -> Iterator[tuple[int, Row]]:
    """Labels with the line each goes to, 0 next to its point: those side by side would cover each other."""
    placed: list[tuple[int, Row]] = []
    for row in sorted(labels, key=lambda row: row["intensity_flops_per_byte"]):
        taken = {line for line, other in placed if _near(other, row, LABEL_WIDTH)}
        line = next(line for line in range(len(placed) + 1) if line not in taken)
        placed.append((line, row))
        yield line, row


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


def _near(one: Row, other: Row, across: float = SAME_PLACE) -> bool:
    """Whether two points differ by less than a factor: `across` in intensity, `SAME_PLACE` in what is attained."""
    factors = {"intensity_flops_per_byte": across, "attained_flops_per_s": SAME_PLACE}
    return all(abs(math.log(one[name] / other[name])) < math.log(factor) for name, factor in factors.items())


# --- where the roof bends -------------------------------------------------------------------------------------------


def compute_bound_tokens(sku: GpuSku, dtype: Dtype, weight_bytes: float) -> float:
    """Tokens in a step [-] from which on a matrix product over weights read once waits for compute: ridge * bytes / 2.

    A product of m tokens with k x n weights takes 2 m k n FLOPs and reads b k n bytes of weights; activations, small
    beside weights while m is small beside k and n, are left out. Its intensity is thus 2 m / b, which meets the ridge
    point at m = ridge * b / 2. Splitting the weights over GPUs changes nothing. A decode step without speculation has
    one token per sequence.
    Source: Williams, Waterman, Patterson 2009, CACM 52(4), for the ridge; Pope et al. 2022, arXiv:2211.05102, sec. 2,
    for weights against tokens.

    Args:
        sku: its datasheet peaks.
        dtype: number format of the arithmetic; the SKU must have a peak for it.
        weight_bytes: of one stored weight [bytes], scales included.

    >>> from hardware_db import load_hardware
    >>> h100 = load_hardware().skus["h100-sxm"]
    >>> round(compute_bound_tokens(h100, Dtype.BF16, 2.0))  # 989.4e12 / 3.35e12
    295
    """
    return ridge_point_flops_per_byte(sku, dtype) * weight_bytes / 2.0


def ridge_rows(skus: Iterable[GpuSku], stored: Mapping[Dtype, Dtype] | None = None) -> list[Row]:
    """Ridge point of each SKU in each number format it multiplies, with the sources of peak and bandwidth.

    fp16 is left out where there is bf16: its peak is the same.

    Args:
        skus: in the order of the rows.
        stored: format that weights are stored in, by the format of the arithmetic; others as they are multiplied.

    Returns rows with sku, dtype, weights (format stored), peak_flops_per_s, bandwidth_bytes_per_s,
    ridge_flops_per_byte, compute_bound_tokens and, for both facts, *_source, *_kind and *_retrieved_on.
    """
    return [_ridge_row(sku, dtype, (stored or {}).get(dtype, dtype)) for sku in skus for dtype in _formats(sku)]


def _formats(sku: GpuSku) -> list[Dtype]:
    both_halves = {Dtype.BF16, Dtype.FP16} <= set(sku.peak_flops_per_s)
    return [dtype for dtype in Dtype if dtype in sku.peak_flops_per_s and not (both_halves and dtype is Dtype.FP16)]


def _ridge_row(sku: GpuSku, dtype: Dtype, weights: Dtype) -> Row:
    peak, bandwidth = sku.peak_flops_per_s[dtype], sku.hbm_bandwidth_bytes_per_s
    return {
        "sku": sku.id,
        "dtype": dtype.value,
        "weights": weights.value,
        "peak_flops_per_s": peak.value,
        "bandwidth_bytes_per_s": bandwidth.value,
        "ridge_flops_per_byte": ridge_point_flops_per_byte(sku, dtype),
        "compute_bound_tokens": compute_bound_tokens(sku, dtype, BYTES_PER_VALUE[weights]),
        "peak_source": peak.source,
        "peak_kind": peak.kind.value,
        "peak_retrieved_on": peak.retrieved_on.isoformat(),
        "bandwidth_source": bandwidth.source,
        "bandwidth_kind": bandwidth.kind.value,
        "bandwidth_retrieved_on": bandwidth.retrieved_on.isoformat(),
    }
