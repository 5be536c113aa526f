"""Time of a step of a pool: by operator, and against the number of sequences in it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import numpy as np

from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SECOND_SUBTITLE_PX,
    SKY,
    VERMILLION,
    Row,
    axis,
    bar_axes,
    bars,
    bars_px,
    colored,
    end_labels,
    inline_chart,
    layered,
    present,
    rules,
    titled,
    tooltip,
    words,
)
from planner.charts.rooflines import FAMILY_WORDS
from planner.core import FloatArray, Metric, percent, significant
from planner.engine import BOUNDS, ReplicaConfig, operator_time
from planner.roofline import Bound, Load, OperatorFamily, StepShape
from planner.serving import NORMAL_95, PoolModel, Role, step_shapes, step_spread
from planner.workload import Slo

BOUND_COLORS = {
    Bound.COMPUTE.value: SKY,
    Bound.MEMORY.value: ORANGE,
    Bound.LINK.value: GREEN,
    Bound.OVERHEAD.value: "#B8B8B8",
}
"""By the resource that a step, or a part of it, waits for; light enough for dark text on them."""
ENGINE, OVERLAP, EXTRAS = "engine", "overlap", "adapters and masks"
"""Parts of a step besides its operators: what the engine adds or saves, and adapters and grammar masks."""
TOP_MARGIN, TOP_MARGIN_PER_MARK = 1.1, 0.11
"""End of a vertical axis over the curve's maximum, with room for the label of each mark above it. Choices."""
SWEEP_POINTS = 80
"""Points of a batch sweep. A choice."""
BAND_LEGEND, DASHED_LEGEND = "Band: 90 % interval of the kernels' fits.", "Dashed curve: no room in the KV cache."
SWEEP_MARGIN = 1.5
"""A batch sweep ends at this multiple of the largest batch it has to show. A choice."""


def decode_step(model: PoolModel, running: float) -> StepShape:
    """A step of `running` decodes at the workload's mean context."""
    return step_shapes(np.array(float(running)), np.array(0.0), model.costs)


def prefill_step(model: PoolModel, tokens: float) -> StepShape:
    """A step of `tokens` prompt tokens of the workload's prompts, without decodes."""
    return step_shapes(np.array(0.0), np.array(float(tokens)), model.costs)


# --- parts of a step ------------------------------------------------------------------------------------------------


def step_rows(model: PoolModel, shape: StepShape) -> list[Row]:
    """One step by operator family, longest first, then what the engine adds.

    Families hold their kernels alone, as `StepTime.family_s`. What the engine adds (gaps between launches, kernels that
    run longer beside others, host time) is one part. Where kernels overlap, so that the step is shorter than their sum,
    that part is negative: `overlap`.

    Args:
        model: the pool.
        shape: the step, of floats; `decode_step` or `prefill_step`.

    Returns rows with part, waits_for (the resource most of the part waits for), time_ms [ms], share (of the step),
    start_ms and end_ms [ms] (parts one after another). The last part ends at the step's duration.
    """
    timer = model.pool.config.timer
    step = timer.step_time(shape)
    bounds = _bounds_by_family(model.pool.config, shape)
    families = {family: seconds for family, seconds in step.family_s.items() if seconds > 0.0}
    parts = [
        (FAMILY_WORDS[family], bounds.get(family, Bound.MEMORY), seconds)
        for family, seconds in sorted(families.items(), key=lambda item: -item[1])
    ]
    added_s = step.total_s - math.fsum(families.values())
    if added_s:
        parts.append((ENGINE if added_s > 0.0 else OVERLAP, Bound.OVERHEAD, added_s))
    extra_s = _extra_s(model, shape)
    if extra_s:
        parts.append((EXTRAS, Bound.OVERHEAD, extra_s))
    rows: list[Row] = []
    start_s, total_s = 0.0, step.total_s + extra_s
    for part, bound, seconds in parts:
        row = {"part": part, "waits_for": bound.value, "time_ms": 1e3 * seconds, "share": seconds / total_s}
        rows.append({**row, "start_ms": 1e3 * start_s, "end_ms": 1e3 * (start_s + seconds)})
        start_s += seconds
    return rows


def step_s(model: PoolModel, shape: StepShape) -> float:
    """Duration of a step [s], adapters and grammar masks included: where the last of `step_rows` ends."""
    return float(model.pool.config.timer.step_time(shape).total_s) + _extra_s(model, shape)


def _extra_s(model: PoolModel, shape: StepShape) -> float:
    """Time that adapters and grammar masks add to a step [s]: the pool's step less that of its kernels and engine."""
    config = model.pool.config
    if config.lora is None and not config.mask_s:
        return 0.0
    whole_s = float(model.server.step_s(np.asarray(shape.decodes), np.asarray(shape.chunk_tokens)))
    return max(0.0, whole_s - float(config.timer.times_s(shape)))


def _bounds_by_family(config: ReplicaConfig, shape: StepShape) -> dict[OperatorFamily, Bound]:
    """The resource each family waits for longest."""
    timer = config.timer
    load = Load.of(shape, config.parallelism, timer.queries)
    seconds: dict[OperatorFamily, FloatArray] = {}
    for operator in config.operators:
        split = operator_time(operator, load, timer.gpu).bound_s
        seconds[operator.family] = seconds.get(operator.family, np.zeros(len(BOUNDS))) + split.reshape(len(BOUNDS))
    return {family: BOUNDS[int(np.argmax(split))] for family, split in seconds.items()}


def bound_shares(rows: Sequence[Row]) -> dict[Bound, float]:
    """Shares of a step by the resource it waits for, from `step_rows`, largest first; overlap counts as zero."""
    shares: dict[Bound, float] = {}
    for row in rows:
        bound = Bound(row["waits_for"])
        shares[bound] = shares.get(bound, 0.0) + max(0.0, row["share"])
    whole = math.fsum(shares.values())
    return dict(sorted(((bound, share / whole) for bound, share in shares.items()), key=lambda item: -item[1]))


def step_chart(rows: Sequence[Row], step: str, label: str) -> alt.LayerChart:
    """The parts of a step laid end to end, each on a line of its own, coloured by what it waits for.

    Args:
        rows: of `step_rows`.
        step: its name, e.g. ``decode step, 40 running``.
        label: of the replica.
    """
    labelled = [
        {**row, "label": f"{significant(row['time_ms'])} ms ({percent(row['share'])})"}
        | {"edge_ms": max(row["start_ms"], row["end_ms"])}
        for row in rows
    ]
    axes = bar_axes(labelled, "part", "end_ms", "Time in the step (ms)", width_px=180, tickCount=6)
    color = colored("waits_for", present(BOUND_COLORS, rows, "waits_for"), "Waits for")
    shown = tooltip("part", "time_ms", "waits_for", share="Share of the step")
    drawn = bars(labelled, axes, color, shown, "start_ms", height={"band": 0.75})
    title = titled(
        f"A {step_phrase(step)} on {label} takes {significant(rows[-1]['end_ms'])} ms",
        ["Its parts one after another: kernels alone,", "then the engine's gaps and host time as one."],
    )
    layers, height = (
        [drawn, end_labels(labelled, axes, "edge_ms")],
        SECOND_SUBTITLE_PX + bars_px(len(rows), legend=True),
    )
    return layered(layers, title, height, f"Parts of a {step_phrase(step)} on {label}")


def step_phrase(step: str) -> str:
    """The name of a step inside a sentence.

    >>> step_phrase("decode step, 40 running"), step_phrase("prefill step, 2,048 tokens")
    ('decode step (40 running)', 'prefill step (2,048 tokens)')
    """
    kind, content = step.split(", ", 1)
    return f"{kind} ({content})"


# --- batch ----------------------------------------------------------------------------------------------------------


def batch_rows(model: PoolModel, batch: float = 0.0) -> list[Row]:
    """Decode steps over the number of sequences in them, at the workload's mean context.

    A sequence gains one token per step, more with speculation (`Drafting.tokens_per_step`): the time per output
    token is the step's over those tokens. That is a lower bound of TPOT: prompts that share the steps come on top.
    A prefill pool has no decodes: its rows are steps over the number of prompt tokens in them.

    Args:
        model: the pool.
        batch: that must lie in the range, e.g. the planned one.

    Returns rows with batch (sequences; of a prefill pool prompt tokens), step_ms, low_ms and high_ms [ms] (90 %
    interval from the spread of the kernels' measurements; the step's own when uncalibrated), tpot_ms, tpot_low_ms and
    tpot_high_ms [ms] (the same per token of a sequence), tokens_per_s_per_gpu [1/s] and fits (in the KV cache).
    """
    if model.pool.role is Role.PREFILL:
        last = float(model.pool.config.max_batched_tokens)
        return [prefill_row(model, tokens) for tokens in _spaced_batches(min(16.0, last), last * SWEEP_MARGIN)]
    config = model.pool.config
    last = SWEEP_MARGIN * max(float(config.max_running_requests), model.kv_running, batch)
    edges = {math.floor(model.kv_running), config.max_running_requests, max(1, round(batch))}
    return [decode_row(model, size) for size in sorted({*_spaced_batches(1.0, last), *edges})]


def _spaced_batches(first: float, last: float) -> list[int]:
    return sorted({round(batch) for batch in np.geomspace(first, last, SWEEP_POINTS).tolist()})


def decode_row(model: PoolModel, batch: float) -> Row:
    """A decode step of `batch` sequences as a row of `batch_rows`."""
    drafting = model.pool.config.drafting
    gained = drafting.tokens_per_step if drafting else 1.0
    return _batch_row(model, batch, decode_step(model, batch), gained)


def prefill_row(model: PoolModel, tokens: float) -> Row:
    """A prefill step of `tokens` prompt tokens as a row of `batch_rows`."""
    return _batch_row(model, tokens, prefill_step(model, tokens), 1.0)


def _batch_row(model: PoolModel, batch: float, shape: StepShape, gained: float) -> Row:
    """One step of a sweep; `gained` tokens per sequence (or per prompt token)."""
    config = model.pool.config
    seconds = step_s(model, shape)
    factor = math.exp(NORMAL_95 * step_spread(config, shape))
    row: Row = {"batch": batch, "step_ms": 1e3 * seconds}
    row |= {"low_ms": 1e3 * seconds / factor, "high_ms": 1e3 * seconds * factor}
    row |= {f"tpot{name}_ms": row[f"{name.lstrip('_') or 'step'}_ms"] / gained for name in ("", "_low", "_high")}
    row["tokens_per_s_per_gpu"] = batch * gained / seconds / config.parallelism.gpus
    row["fits"] = model.pool.role is Role.PREFILL or batch <= model.kv_running
    return row


def batch_marks(model: PoolModel, running: float = 0.0, chosen: float = 0.0) -> list[Row]:
    """Batches worth a label: the planned mean, the chosen one, the pool's limit, and what fits in the KV cache.

    Args:
        model: the pool; of a prefill pool the only mark is the chunk budget.
        running: mean running requests in the plan; 0: no such mark.
        chosen: the batch looked at; 0, or equal to the rounded mean: no such mark.

    Returns rows with batch, label and is_room (whether it is what fits in the KV cache).
    """
    config = model.pool.config
    if model.pool.role is Role.PREFILL:
        tokens = config.max_batched_tokens
        return [{"batch": float(tokens), "label": f"chunk budget {tokens:,}", "is_room": False}]
    limit = float(config.max_running_requests)
    batches = {f"batch limit {limit:,.0f}": limit, f"KV cache full {math.floor(model.kv_running):,}": model.kv_running}
    if running >= 1.0:
        batches[f"planned mean {significant(running, 2)}"] = float(running)
    if chosen and round(chosen) != round(running):
        batches[f"chosen {chosen:,.0f}"] = float(chosen)
    rows = [{"batch": batch, "label": label, "is_room": label.startswith("KV")} for label, batch in batches.items()]
    return sorted(rows, key=lambda row: float(row["batch"]))


def batch_time_chart(
    rows: Sequence[Row], marks: Sequence[Row], label: str, role: Role, slo: Slo | None = None
) -> alt.LayerChart:
    """Time per output token (of a prefill pool: a step) against the batch, with its interval and targets on TPOT.

    Args:
        rows: of `batch_rows`.
        marks: of `batch_marks`.
        label: of the replica.
        role: of the pool.
        slo: its TPOT targets are drawn.
    """
    is_prefill = role is Role.PREFILL
    names = ("step_ms", "low_ms", "high_ms") if is_prefill else ("tpot_ms", "tpot_low_ms", "tpot_high_ms")
    times = [{**row, **{new: row[old] for new, old in zip(("ms", "low", "high"), names, strict=True)}} for row in rows]
    limits = [
        {
            "ms": 1e3 * target.threshold_s,
            "batch": times[0]["batch"],
            "label": f"target: {target.name.split()[0]} ≤ {1e3 * target.threshold_s:,.4g} ms",
        }
        for target in (slo.targets if slo is not None and not is_prefill else ())
        if target.metric is Metric.TPOT
    ]
    last = max(mark["batch"] for mark in marks if not mark["is_room"])
    inside = [row["high"] for row in times if row["batch"] <= last]
    top = 1.4 * max([*inside, *(limit["ms"] for limit in limits)])
    title = "Prefill step (ms)" if is_prefill else "Time per output token (ms)"
    y = axis(alt.Y, "ms", title, [0.0, top], tickCount=6)
    x = _batch_axis(times, role)
    band = inline_chart(times).mark_area(color=SKY, opacity=0.35, clip=True).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    layers = [band, *_sweep_curve(times, x, y, "ms", title)]
    if limits:
        layers.append(rules(limits, VERMILLION, dashed=True, y=y))
        layers.append(words(limits, VERMILLION, "left", dx=4, dy=-8).encode(x=x, y=y))
    layers += _mark_rules(marks, times, top, "ms", x, y)
    what = f"Time per output token on {label} against the batch"
    subtitle = BAND_LEGEND if any(row["high"] > row["low"] for row in times) else "Datasheet rooflines, a bound."
    if is_prefill:
        what = f"Time of a prefill step on {label} against its prompt tokens"
    elif not times[-1]["fits"]:
        subtitle += f" {DASHED_LEGEND}"
    return layered(layers, titled(what, subtitle), 340, what)


def batch_throughput_chart(rows: Sequence[Row], marks: Sequence[Row], label: str, role: Role) -> alt.LayerChart:
    """Tokens per second and GPU against the batch; arguments as `batch_time_chart`."""
    is_prefill = role is Role.PREFILL
    kind = "Prompt" if is_prefill else "Output"
    top = (TOP_MARGIN + TOP_MARGIN_PER_MARK * len(marks)) * max(row["tokens_per_s_per_gpu"] for row in rows)
    title = f"{kind} tokens/s per GPU"
    y = axis(alt.Y, "tokens_per_s_per_gpu", title, [0.0, top], tickCount=6, format=",~r")
    x = _batch_axis(rows, role)
    layers = [
        *_sweep_curve(rows, x, y, "tokens_per_s_per_gpu", title),
        *_mark_rules(marks, rows, top, "tokens_per_s_per_gpu", x, y),
    ]
    what = f"{kind} tokens per second and GPU on {label}"
    subtitle = "Prefill steps alone." if is_prefill else "Decode steps alone."
    subtitle += f" {DASHED_LEGEND}" if not rows[-1]["fits"] else ""
    return layered(layers, titled(what, subtitle), 340, what)


def _batch_axis(rows: Sequence[Row], role: Role) -> alt.X:
    title = "Prompt tokens in a step (log scale)" if role is Role.PREFILL else "Sequences in a step (log scale)"
    first, last = rows[0]["batch"], rows[-1]["batch"]
    powers = [2.0**power for power in range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1)]
    ticks = powers[:: max(1, math.ceil(len(powers) / 10))]
    batches: alt.X = axis(alt.X, "batch", title, [first, last], log=True, values=ticks, format=",~r")
    return batches


def _sweep_curve(rows: Sequence[Row], x: alt.X, y: alt.Y, field: str, title: str) -> list[alt.Chart]:
    """The curve: solid where it fits, dashed beyond, with something to hover at every point."""
    within = [row for row in rows if row["fits"]]
    beyond = [*within[-1:], *(row for row in rows if not row["fits"])]
    columns = {"batch": "Batch", "step_ms": "Step (ms)", "low_ms": "Step, 90 % from (ms)"}
    columns |= {"high_ms": "Step, 90 % to (ms)", field: title, "tokens_per_s_per_gpu": "Tokens/s per GPU"}
    shown = tooltip("fits", **columns)
    return [
        inline_chart(within).mark_line(color=BLUE, strokeWidth=2.5, clip=True).encode(x=x, y=y),
        inline_chart(beyond).mark_line(color=BLUE, strokeWidth=2, strokeDash=[4, 4], clip=True).encode(x=x, y=y),
        inline_chart(rows).mark_point(opacity=0, size=120, clip=True).encode(x=x, y=y, tooltip=shown),
    ]


def _mark_rules(
    marks: Sequence[Row], rows: Sequence[Row], top: float, field: str, x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """Vertical lines with their labels one below the other at the top."""
    middle = math.sqrt(rows[0]["batch"] * rows[-1]["batch"])
    layers = [rules(marks, x=x)]
    for index, mark in enumerate(marks):
        row = [{**mark, field: top}]
        is_right = mark["batch"] > middle
        text = words(row, GREY, "right" if is_right else "left", dx=-5 if is_right else 5, dy=10 + 16 * index)
        layers.append(text.encode(x=x, y=y))
    return layers
