"""The roofline of a step: operators of a replica under the roof of its SKU, and where the roof of each SKU bends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from hardware_db import Dtype, GpuSku, sku_words
from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILLION,
    Placement,
    Row,
    axis,
    dots,
    inline_chart,
    label_placements,
    layered,
    legend_of,
    series,
    titled,
    tooltip,
    words,
    words_by_width,
)
from planner.core import significant
from planner.engine import ReplicaConfig
from planner.llm import BYTES_PER_VALUE
from planner.roofline import (
    Bound,
    CalibratedGpu,
    Load,
    Operator,
    OperatorFamily,
    StepShape,
    compute_bound_tokens,
    operator_seconds,
    ridge_point_flops_per_byte,
)
from planner.serving import Pool, Role, TokenCosts, step_shapes

SHARED_LABEL_FACTOR = 1.6
"""Operators of a step that differ by less than this factor in intensity and in FLOP/s share one label. A choice."""
NARROWEST_FRAME_PX = (440.0, 270.0)
"""Width and height of a roofline's frame on the narrowest page: labels that do not overlap there overlap nowhere."""
PHONE_FRAME_PX = (270.0, 220.0)
"""The same on a phone of 390 px, where labels that would overlap are left out: a touch says what a mark is."""
PEAK_PLACEMENT, LEFT_OF_RIDGE, RIGHT_OF_RIDGE = (
    Placement("right", -4, -7),
    Placement("right", -6, -10),
    Placement("left", 6, -10),
)
"""Where the names of roofs stand: peaks at their right ends, ridge points at the bottom beside their lines."""
STEP_STYLES = ((BLUE, "circle"), (VERMILLION, "triangle-up"), (GREEN, "square"), (ORANGE, "cross"))
"""Colour and shape of one step after another."""

FAMILY_WORDS = {
    OperatorFamily.EMBEDDING: "embedding",
    OperatorFamily.NORM: "norms",
    OperatorFamily.QKV: "QKV",
    OperatorFamily.ATTENTION_PREFILL: "prefill attention",
    OperatorFamily.ATTENTION_DECODE: "decode attention",
    OperatorFamily.ATTENTION_OUTPUT: "attention output",
    OperatorFamily.INDEX: "sparse index",
    OperatorFamily.RECURRENCE: "recurrence",
    OperatorFamily.FEED_FORWARD: "feed-forward",
    OperatorFamily.ROUTER: "router",
    OperatorFamily.EXPERTS: "experts",
    OperatorFamily.SHARED_EXPERTS: "shared experts",
    OperatorFamily.LM_HEAD: "LM head",
    OperatorFamily.ALL_REDUCE: "all-reduce",
    OperatorFamily.ALL_GATHER: "all-gather",
    OperatorFamily.EXPERT_EXCHANGE: "expert exchange",
    OperatorFamily.STAGE_TRANSFER: "stage transfer",
}


def steps_of(pool: Pool, running: float, costs: TokenCosts) -> dict[str, StepShape]:
    """The steps that describe a pool, by name: a decode step, and a step full of prompt tokens.

    A prefill pool has no decode step, a decode pool no prefill step.

    Args:
        pool: of a deployment.
        running: sequences of one replica's decode step.
        costs: tokens that each of them and each prompt token stand for (`planner.serving.pool.PoolModel.costs`).
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
    functions, rotary and token embedding, collectives) have no place on a roofline and no row; `time_share` is of a
    step that includes them. Operators of a family are summed. Draft steps and the engine's own time count in the
    duration of the step only.

    Args:
        config: the replica.
        shapes: one step each, by name.

    Returns rows with step, operator, dtype, intensity_flops_per_byte, attained_flops_per_s, time_s, time_share (of
    the step), bound, roof_share (time on the roofline / time, in (0, 1]) and timed_by (see `timing_source`).
    """
    return [row for step, shape in shapes.items() for row in _operator_rows(config, step, shape)]


def _operator_rows(config: ReplicaConfig, step: str, shape: StepShape) -> list[Row]:
    timer = config.timer
    load = Load.of(shape, config.parallelism, timer.queries)
    total_s = float(timer.times_s(shape))
    rows: list[Row] = []
    by_family: dict[OperatorFamily, list[Operator]] = {}
    for operator in config.operators:
        if float(operator.work(load).flops) > 0.0:
            by_family.setdefault(operator.family, []).append(operator)
    for family, members in by_family.items():
        works = [operator.work(load) for operator in members]
        seconds = [float(operator_seconds(operator, load, timer.gpu, math.inf)) for operator in members]
        flops = sum(operator.count * float(work.flops) for operator, work in zip(members, works, strict=True))
        hbm_bytes = sum(operator.count * float(work.hbm_bytes) for operator, work in zip(members, works, strict=True))
        dtype = max((operator.dtype for operator in members), key=lambda name: timer.gpu.peaks(name).flops_per_s)
        time_s, ridge = sum(seconds), ridge_point_flops_per_byte(config.sku, dtype)
        datasheet = CalibratedGpu(config.sku)  # times at its peaks: no calibration, links aside
        roof_s = sum(float(operator_seconds(operator, load, datasheet, math.inf)) for operator in members)
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
                "timed_by": timing_source(longest, timer.gpu),
            }
        )
    return rows


def timing_source(operator: Operator, gpu: CalibratedGpu) -> str:
    """Source of an operator's time in words: a fit of this GPU or of a related one, or the datasheet.

    Args:
        operator: one of `step_operators`.
        gpu: the SKU and its calibration.
    """
    key, calibration = gpu.first_key(*operator.fit_keys), gpu.calibration
    if key is None or calibration is None:
        return "not measured: roofline of the datasheet"
    fit = calibration.kernels[key]
    stands_in = f" in place of {operator.fit_keys[0]}" if key != operator.fit_keys[0] else ""
    lender = fit.measured_on or calibration.sku
    own = lender == gpu.sku.id
    where = "fitted" if own else f"not measured on {gpu.sku.short_name}: shares of peak of {sku_words(lender)}, fitted"
    error = f"{100.0 * fit.median_error:.0f} % median error on {fit.held_out:,} held out"
    return f"{where} {calibration.fitted_on}, {calibration.stack}, {key}{stands_in}: {error}"


def roof_rows(config: ReplicaConfig, lowest: float, highest: float) -> list[Row]:
    """Roofs of a SKU between two intensities [FLOP/byte]: min(bandwidth * intensity, peak).

    Three points (both ends and the ridge) for each number format the replica computes in. Rows hold dtype,
    intensity_flops_per_byte, attained_flops_per_s and is_ridge.
    Source: Williams, Waterman, Patterson 2009, CACM 52(4), eq. 1.
    """
    probe = Load.of(StepShape(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), config.parallelism)
    bandwidth = config.sku.hbm_bandwidth_bytes_per_s.value
    rows: list[Row] = []
    operators = [operator for operator in config.operators if float(operator.work(probe).flops) > 0.0]
    for dtype in sorted({operator.dtype for operator in operators}):
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
        shapes: one step each, by name; `steps_of` gives those of a pool.
    """
    points = roofline_rows(config, shapes)
    frame = _frame([config], points)
    roofs = _in_tflops(roof_rows(config, *frame.intensities))
    x, y = frame.axes("Arithmetic intensity (FLOP per HBM byte)", "Attained per GPU (TFLOP/s)")
    operators, steps = _in_tflops(points), list(shapes)
    layers = [
        *_roof_layers(roofs, frame.bottom, x, y),
        _operator_marks(operators, steps, x, y, (60, 700)),
        *_operator_labels(operators, _roof_labels(roofs, frame.bottom), frame, x, y),
    ]
    subtitle = [
        "Operators of one step on one GPU. Larger mark: larger share of its time.",
        "Grey: the datasheet's roofs.",
    ]
    title = titled(f"Roofline of {config.words}", subtitle)
    return layered(layers, title, 460, f"Roofline of {config.words}")


def rooflines_side_by_side(
    replicas: Mapping[str, ReplicaConfig], points: Mapping[str, Sequence[Row]], subtitles: Mapping[str, Sequence[str]]
) -> dict[str, alt.LayerChart]:
    """The same steps under the roof of each SKU, to one scale, by the SKU's name.

    Args:
        replicas: the replica on each SKU, by the SKU's name as it is to be shown.
        points: their `roofline_rows`, by the same names.
        subtitles: lines under each title.
    """
    frame = _frame(list(replicas.values()), [row for rows in points.values() for row in rows])
    panels = {}
    for name, config in replicas.items():
        x, y = frame.axes("FLOP per byte", "TFLOP/s per GPU")
        steps = list(dict.fromkeys(row["step"] for row in points[name]))
        roofs = _in_tflops(roof_rows(config, *frame.intensities))
        lines = inline_chart(roofs).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y, detail="dtype:N")
        layers = [lines, _operator_marks(_in_tflops(points[name]), steps, x, y, (25, 400), brief=True)]
        panels[name] = layered(layers, titled(name, list(subtitles[name])), 320, f"Roofline of {config.words}")
    return panels


@dataclass(frozen=True)
class _Frame:
    """The ends of both axes of a roofline.

    Attributes:
        decades: powers of ten of the intensity [FLOP/byte].
        bottom: lowest attained [TFLOP/s] on the axis.
        low, high: lowest and highest attained [TFLOP/s] that is shown.
    """

    decades: tuple[float, ...]
    bottom: float
    low: float
    high: float

    @property
    def intensities(self) -> tuple[float, float]:
        """Ends of the horizontal axis [FLOP/byte]."""
        return self.decades[0], self.decades[-1]

    def position(self, row: Row) -> tuple[float, float]:
        """Where an operator lies, as shares of the frame from the left and from the top."""
        left, right, top = *self.intensities, 3 * self.high
        across = math.log(row["intensity_flops_per_byte"] / left) / math.log(right / left)
        return across, math.log(top / row["attained_tflops_per_s"]) / math.log(top / self.bottom)

    def axes(self, across: str, up: str) -> tuple[alt.X, alt.Y]:
        """Both axes under their titles."""
        decades, levels = list(self.decades), _decades(self.low, self.high)
        x = axis(alt.X, "intensity_flops_per_byte", across, self.intensities, log=True, format="~s", values=decades)
        ends = (self.bottom, 3 * self.high)
        y = axis(alt.Y, "attained_tflops_per_s", up, ends, log=True, format=",~f", values=levels)
        return x, y


def _frame(configs: Sequence[ReplicaConfig], points: Sequence[Row]) -> _Frame:
    """Axes that hold all these operators and roofs."""
    intensities = [row["intensity_flops_per_byte"] for row in points] or [1.0, 100.0]
    decades = _decades(min(intensities), 10 * max(intensities))
    roofs = [row for config in configs for row in roof_rows(config, decades[0], decades[-1])]
    attained = [row["attained_flops_per_s"] / 1e12 for row in (*points, *roofs)]
    return _Frame(tuple(decades), min(attained) / 2, min(attained), max(attained))


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten from the last one at or below `low` to the first one at or above `high`."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _in_tflops(rows: Sequence[Row]) -> list[Row]:
    """The rows with TFLOP/s and milliseconds added."""
    scaled = [{**row, "attained_tflops_per_s": row["attained_flops_per_s"] / 1e12} for row in rows]
    return [{**row, "time_ms": 1e3 * row["time_s"]} if "time_s" in row else row for row in scaled]


def _roof_layers(roofs: Sequence[Row], bottom: float, x: alt.X, y: alt.Y) -> Iterator[alt.Chart]:
    """Roof lines and their names, and ridge points as dotted lines."""
    yield inline_chart(roofs).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y, detail="dtype:N")
    for ridge in (row for row in roofs if row["is_ridge"]):
        feet = [ridge, {**ridge, "attained_tflops_per_s": bottom}]
        yield inline_chart(feet).mark_line(color=GREY, strokeDash=[2, 3]).encode(x=x, y=y)
    for row, place in _roof_labels(roofs, bottom):
        yield words([row], GREY, place.align, dx=place.dx, dy=place.dy).encode(x=x, y=y)


def _roof_labels(roofs: Sequence[Row], bottom: float) -> list[tuple[Row, Placement]]:
    """Names of the peaks, and of the ridge points: the first left of its line, others right of theirs."""
    ridges = sorted((row for row in roofs if row["is_ridge"]), key=lambda row: row["intensity_flops_per_byte"])
    labels = []
    for dtype, end in {row["dtype"]: row for row in roofs if not row["is_ridge"]}.items():  # the last: its right end
        peak = f"{dtype}: {significant(end['attained_tflops_per_s'], 4)}"
        labels.append(({**end, "label": peak}, PEAK_PLACEMENT))
    for place, ridge in enumerate(ridges):
        name = f"{ridge['dtype']} ridge: {ridge['intensity_flops_per_byte']:,.0f}"
        foot = {**ridge, "attained_tflops_per_s": bottom, "label": name}
        labels.append((foot, RIGHT_OF_RIDGE if place else LEFT_OF_RIDGE))
    return labels


def _operator_marks(
    points: Sequence[Row], steps: Sequence[str], x: alt.X, y: alt.Y, sizes: tuple[int, int], brief: bool = False
) -> alt.Chart:
    """One mark for each operator; a `brief` legend leaves out what is in the steps.

    The area of a mark grows with its share of the step, from `sizes[0]` at none to `sizes[1]` at all [px^2].
    """
    above = legend_of(steps, title=None, labelLimit=300)
    if brief:
        short = "split(datum.label, ',')[0]"
        above = legend_of([step.split(",")[0] for step in steps], title=None, labelExpr=short, offset=4, padding=0)
    look = series("step", dict(zip(steps, STEP_STYLES, strict=False)), above)
    size = alt.Size("time_share:Q", scale=alt.Scale(domain=[0, 1], range=list(sizes)), legend=None)
    shown = tooltip(
        *("step", "operator", "dtype", "intensity_flops_per_byte", "attained_tflops_per_s", "roof_share"),
        **{"time_ms": "Time in the step (ms)", "time_share": "Share of step time"},
        **{"bound": "Waits for", "timed_by": "Time is"},
    )
    return dots(points, shown, x=x, y=y, **look).encode(size=size)


def _operator_labels(
    points: Sequence[Row], roofs: Sequence[tuple[Row, Placement]], frame: _Frame, x: alt.X, y: alt.Y
) -> Iterator[alt.Chart]:
    """Names beside the points, those that take longest first; on a phone those that have a place of their own."""
    named = sorted(label_rows(points), key=lambda row: -row["time_s"])
    positions = [frame.position(row) for row in points]
    labels = [(*frame.position(row), row["label"]) for row in named]
    fixed = [(*frame.position(row), placement, row["label"]) for row, placement in roofs]
    wide = label_placements(positions, labels, *NARROWEST_FRAME_PX, fixed)
    phone = label_placements(positions, labels, *PHONE_FRAME_PX, fixed, only_free=True)
    for row, *placements in zip(named, wide, phone, strict=True):
        yield words_by_width(row, GREY, *placements).encode(x=x, y=y)


def label_rows(points: Sequence[Row]) -> list[Row]:
    """One label for points of a step that lie close together: the operator that takes longest, and how many more."""
    groups: list[list[Row]] = []
    for row in sorted(points, key=lambda row: (row["step"], row["intensity_flops_per_byte"])):
        if groups and groups[-1][-1]["step"] == row["step"] and _shares_label(groups[-1][-1], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    labels = []
    for group in groups:
        longest = max(group, key=lambda row: row["time_s"])
        more = f" + {len(group) - 1}" if len(group) > 1 else ""
        labels.append({**longest, "label": f"{longest['operator']}{more}"})
    return labels


def _shares_label(point: Row, other: Row) -> bool:
    """True if two points differ by less than `SHARED_LABEL_FACTOR`, in intensity and in attained FLOP/s."""
    names = ("intensity_flops_per_byte", "attained_flops_per_s")
    return all(abs(math.log(point[name] / other[name])) < math.log(SHARED_LABEL_FACTOR) for name in names)


# --- where the roof bends -------------------------------------------------------------------------------------------


def ridge_rows(skus: Iterable[GpuSku], stored: Mapping[Dtype, Dtype] | None = None) -> list[Row]:
    """Ridge point of each SKU in each number format it multiplies, with the sources of peak and bandwidth.

    fp16 is left out where there is bf16: its peak is the same.

    Args:
        skus: in the order of the rows.
        stored: format that weights are stored in, by the format of the arithmetic; others as they are multiplied, 4-bit
            ones with the scales of a format whose blocks the SKU takes.

    Returns rows with sku, dtype, weights (format stored), peak_flops_per_s, bandwidth_bytes_per_s,
    ridge_flops_per_byte, compute_bound_tokens and, for both facts, *_source, *_kind and *_retrieved_on.
    """
    rows: list[Row] = []
    for sku in skus:
        four_bit = Dtype.NVFP4 if sku.multiplies(Dtype.NVFP4) else Dtype.MXFP4
        for dtype in _formats(sku):
            weights = (stored or {}).get(dtype) or (four_bit if dtype is Dtype.FP4 else dtype)
            rows.append(_ridge_row(sku, dtype, weights))
    return rows


def _formats(sku: GpuSku) -> list[Dtype]:
    both_halves = {Dtype.BF16, Dtype.FP16} <= set(sku.peak_flops_per_s)
    return [dtype for dtype in Dtype if dtype in sku.peak_flops_per_s and not (both_halves and dtype is Dtype.FP16)]


def _ridge_row(sku: GpuSku, dtype: Dtype, weights: Dtype) -> Row:
    facts = {"peak": sku.peak_flops_per_s[dtype], "bandwidth": sku.hbm_bandwidth_bytes_per_s}
    row: Row = {
        "sku": sku.id,
        "dtype": dtype.value,
        "weights": weights.value,
        "peak_flops_per_s": facts["peak"].value,
        "bandwidth_bytes_per_s": facts["bandwidth"].value,
        "ridge_flops_per_byte": ridge_point_flops_per_byte(sku, dtype),
        "compute_bound_tokens": compute_bound_tokens(sku, dtype, BYTES_PER_VALUE[weights]),
    }
    for name, fact in facts.items():
        row |= {f"{name}_source": fact.source, f"{name}_kind": fact.kind.value}
        row[f"{name}_retrieved_on"] = fact.retrieved_on.isoformat()
    return row
