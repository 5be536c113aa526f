"""What a step of a pool takes: by operator, and against the number of sequences in it."""

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
    SKY,
    VERMILLION,
    Row,
    inline_chart,
    layered,
    titled,
    words,
)
from planner.charts.rooflines import FAMILY_WORDS
from planner.core import Metric, percent, significant
from planner.engine import BOUNDS, ReplicaConfig, operator_items
from planner.roofline import Bound, Family, Load, StepShape, step_operators
from planner.serving import NORMAL_95, FloatArray, PoolModel, Role, step_shapes, step_spread
from planner.workload import LatencyTarget, Slo

BOUND_COLORS = {Bound.COMPUTE: VERMILLION, Bound.MEMORY: BLUE, Bound.LINK: GREEN, Bound.OVERHEAD: ORANGE}
"""What a part of a step waits for; overhead is the engine."""
ENGINE, OVERLAP, EXTRAS = "engine", "overlap", "adapters and masks"
"""Parts of a step that no operator is: what the engine adds or saves, adapters and grammar masks."""
FRAME_PX, LINE_PX = 205, 24
"""Height of title, legend and axis of a chart of bars, and of one bar."""
ROOM, ROOM_PER_MARK = 1.1, 0.11
"""End of a vertical axis over the curve's top: one line of words for each mark above it."""
SMALL_SHARE = 0.001
"""Below it a part of a step is a matter of rounding."""
MOST_BATCHES = 80
"""Points of a batch sweep."""
BAND, DASHED = "Band: 90 % interval of the kernels' fits.", "Dashed curve: no room in the KV cache."
BEYOND = 1.5
"""A batch sweep ends at so many times the largest batch it has to show."""


def decode_step(model: PoolModel, running: float) -> StepShape:
    """A step of `running` decodes at the workload's mean context."""
    return step_shapes(np.array(float(running)), np.array(0.0), model.costs)


def prefill_step(model: PoolModel, tokens: float) -> StepShape:
    """A step of so many prompt tokens of prompts of the workload, without decodes."""
    return step_shapes(np.array(0.0), np.array(float(tokens)), model.costs)


# --- parts of a step ------------------------------------------------------------------------------------------------


def step_rows(model: PoolModel, shape: StepShape) -> list[Row]:
    """One step by operator family, longest first, then what the engine adds.

    Families hold their kernels alone, as `StepTime.family_s`. What the engine adds (gaps between launches, kernels that
    run longer beside others, host time) is one part. Where it starts kernels before the last one has ended, so that the
    whole is shorter than its kernels, that part is negative: `overlap`.

    Args:
        model: the pool.
        shape: the step, of floats; `decode_step` or `prefill_step`.

    Returns rows with part, waits_for (the resource most of the part waits for), time_ms [ms], share (of the step),
    start_ms and end_ms [ms] (parts one after another). The last part ends at the step's duration.
    """
    timer = model.pool.config.timer
    step = timer.itemised(shape)
    waits = _waits(model.pool.config, shape)
    families = {family: seconds for family, seconds in step.family_s.items() if seconds > 0.0}
    parts = [
        (FAMILY_WORDS[family], waits.get(family, Bound.MEMORY), seconds)
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
    """Duration of a step [s], adapters and grammar masks included; the end of the last of `step_rows`."""
    return float(model.pool.config.timer.itemised(shape).total_s) + _extra_s(model, shape)


def _extra_s(model: PoolModel, shape: StepShape) -> float:
    """What adapters and masks add to a step [s]: the pool's step less that of its kernels and engine."""
    config = model.pool.config
    if config.lora is None and not config.mask_s:
        return 0.0
    whole_s = float(model.server.step_s(np.asarray(shape.decodes), np.asarray(shape.chunk_tokens)))
    return max(0.0, whole_s - float(config.timer.times_s(shape)))


def _waits(config: ReplicaConfig, shape: StepShape) -> dict[Family, Bound]:
    """The resource each family waits for longest."""
    timer = config.timer
    load = Load.of(shape, config.parallelism, timer.queries)
    seconds: dict[Family, FloatArray] = {}
    for operator in step_operators(config.llm, config.sku, config.precision, config.parallelism, config.skew):
        split = operator_items(operator, load, timer.silicon)[1]
        seconds[operator.family] = seconds.get(operator.family, np.zeros(len(BOUNDS))) + split.reshape(len(BOUNDS))
    return {family: BOUNDS[int(np.argmax(split))] for family, split in seconds.items()}


def bound_shares(rows: Sequence[Row]) -> dict[Bound, float]:
    """Share of a step that each resource is waited for, by `step_rows`, largest first; overlap counts for none."""
    shares: dict[Bound, float] = {}
    for row in rows:
        bound = Bound(row["waits_for"])
        shares[bound] = shares.get(bound, 0.0) + max(0.0, row["share"])
    whole = math.fsum(shares.values())
    return dict(sorted(((bound, share / whole) for bound, share in shares.items()), key=lambda item: -item[1]))


def step_parts(rows: Sequence[Row], step: str, label: str) -> alt.LayerChart:
    """The parts of a step laid end to end, each on a line of its own, coloured by what it waits for.

    Args:
        rows: of `step_rows`.
        step: its name, e.g. ``decode step, 40 running``.
        label: of the replica.
    """
    total_ms = rows[-1]["end_ms"]
    longest_ms = max(row["end_ms"] for row in rows)
    shown = [{**row, "label": _took(row)} for row in rows]
    y = alt.Y("part:N", title=None, sort=None, axis=alt.Axis(labelLimit=180, labelOverlap=False, domain=False))
    scale = alt.Scale(domain=[0.0, 1.25 * longest_ms], nice=False)
    x = alt.X("start_ms:Q", title="Time in the step (ms)", scale=scale, axis=alt.Axis(tickCount=6))
    asked = [bound.value for bound in BOUND_COLORS if any(row["waits_for"] == bound.value for row in rows)]
    color = alt.Color(
        "waits_for:N",
        title="Waits for",
        scale=alt.Scale(domain=asked, range=[BOUND_COLORS[Bound(name)] for name in asked]),
        legend=alt.Legend(orient="top"),
    )
    tooltip = [
        alt.Tooltip("part:N", title="Part"),
        alt.Tooltip("time_ms:Q", title="Time (ms)", format=",.3~r"),
        alt.Tooltip("share:Q", title="Share of the step", format=".1%"),
        alt.Tooltip("waits_for:N", title="Waits for"),
    ]
    bars = inline_chart(shown).mark_bar(height={"band": 0.75}).encode(x=x, x2="end_ms:Q", y=y, color=color)
    ends = [{**row, "edge_ms": max(row["start_ms"], row["end_ms"])} for row in shown]
    text = words(ends, GREY, "left", dx=5).encode(x=alt.X("edge_ms:Q", scale=scale), y=y)
    title = titled(
        f"A {in_words(step)} on {label} takes {significant(total_ms)} ms",
        ["Its parts one after another: kernels alone,", "then the engine's gaps and host time as a part of their own."],
    )
    height = FRAME_PX + LINE_PX * len(rows)
    return layered([bars.encode(tooltip=tooltip), text], title, height, f"Parts of a {in_words(step)} on {label}")


def _took(row: Row) -> str:
    """Time and share of a part, not more exact than it matters.

    >>> _took({"time_ms": 116.21, "share": 0.578}), _took({"time_ms": 0.00887, "share": 4.4e-5})
    ('116 ms (58 %)', '0.009 ms (< 0.1 %)')
    """
    if abs(row["share"]) < SMALL_SHARE:
        return f"{significant(row['time_ms'], 1)} ms (< {percent(SMALL_SHARE)})"
    return f"{significant(row['time_ms'])} ms ({percent(row['share'])})"


def in_words(step: str) -> str:
    """The name of a step inside a sentence.

    >>> in_words("decode step, 40 running"), in_words("prefill step, 2,048 tokens")
    ('decode step (40 running)', 'prefill step (2,048 tokens)')
    """
    kind, content = step.split(", ", 1)
    return f"{kind} ({content})"


# --- batch ----------------------------------------------------------------------------------------------------------


def batch_rows(model: PoolModel, shown: float = 0.0) -> list[Row]:
    """Decode steps over the number of sequences in them, at the workload's mean context.

    A sequence gains one token per step, more with speculation (`Speculation.tokens_per_step`): the time per output
    token is the step's over those. That is a floor of TPOT: prompts that share the steps come on top.
    A prefill pool has no decodes: its rows are steps over the number of prompt tokens in them.

    Args:
        model: the pool.
        shown: a batch that must lie in the range, e.g. the planned one.

    Returns rows with batch (sequences; of a prefill pool prompt tokens), step_ms, low_ms and high_ms [ms] (90 %
    interval from the spread of the kernels' measurements; the step's own when uncalibrated), tpot_ms, tpot_low_ms and
    tpot_high_ms [ms] (the same per token of a sequence), tokens_per_s_per_gpu [1/s] and fits (in the KV cache).
    """
    if model.pool.role is Role.PREFILL:
        last = float(model.pool.config.max_batched_tokens)
        return [prefill_row(model, batch) for batch in _spaced(min(16.0, last), last * BEYOND)]
    config = model.pool.config
    last = BEYOND * max(float(config.max_running_requests), model.kv_running, shown)
    edges = {math.floor(model.kv_running), config.max_running_requests, max(1, round(shown))}
    batches = sorted({*_spaced(1.0, last), *edges})
    return [decode_row(model, batch) for batch in batches]


def _spaced(first: float, last: float) -> list[int]:
    return sorted({round(batch) for batch in np.geomspace(first, last, MOST_BATCHES).tolist()})


def decode_row(model: PoolModel, batch: float) -> Row:
    """One decode step of so many sequences as a row of `batch_rows`."""
    speculation = model.pool.config.speculation
    gained = speculation.tokens_per_step if speculation else 1.0
    return _batch_row(model, batch, decode_step(model, batch), gained)


def prefill_row(model: PoolModel, tokens: float) -> Row:
    """One prefill step of so many prompt tokens as a row of `batch_rows`."""
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
    """Batches worth naming: what runs in the mean of the plan, the one looked at, the pool's limit, the KV cache's.

    Args:
        model: the pool. Of a prefill pool the only one is its chunk budget.
        running: mean of the plan; 0: it is none of this pool.
        chosen: the one looked at; 0, or the mean rounded: not named.

    Rows hold batch, label and is_room (whether it is what the KV cache has room for).
    """
    config = model.pool.config
    if model.pool.role is Role.PREFILL:
        tokens = config.max_batched_tokens
        return [{"batch": float(tokens), "label": f"chunk budget {tokens:,}", "is_room": False}]
    limit = float(config.max_running_requests)
    named = {f"batch limit {limit:,.0f}": limit, f"KV cache full {math.floor(model.kv_running):,}": model.kv_running}
    if running >= 1.0:
        named[f"planned mean {significant(running, 2)}"] = float(running)
    if chosen and round(chosen) != round(running):
        named[f"chosen {chosen:,.0f}"] = float(chosen)
    rows = [{"batch": batch, "label": label, "is_room": label.startswith("KV")} for label, batch in named.items()]
    return sorted(rows, key=lambda row: float(row["batch"]))


def batch_time(
    rows: Sequence[Row], marks: Sequence[Row], label: str, role: Role, slo: Slo | None = None
) -> alt.LayerChart:
    """Time per output token (of a prefill pool: a step) against the batch, with its interval and targets on TPOT.

    Args:
        rows: of `batch_rows`.
        marks: of `batch_marks`.
        label: of the replica.
        role: of the pool.
        slo: whose TPOT targets are drawn.
    """
    is_prefill = role is Role.PREFILL
    name = "step" if is_prefill else "tpot"
    shown = [
        {**row, "ms": row[f"{name}_ms"], "low": row["low_ms" if is_prefill else "tpot_low_ms"]}
        | {"high": row["high_ms" if is_prefill else "tpot_high_ms"]}
        for row in rows
    ]
    targets = [one for one in slo.targets if one.metric is Metric.TPOT] if slo is not None and not is_prefill else []
    last = max(mark["batch"] for mark in marks if not mark["is_room"])
    inside = [row["high"] for row in shown if row["batch"] <= last]
    top = 1.4 * max([*inside, *(1e3 * target.threshold_s for target in targets)])
    title = "Prefill step (ms)" if is_prefill else "Time per output token (ms)"
    y = alt.Y("ms:Q", title=title, scale=alt.Scale(domain=[0.0, top], nice=False), axis=alt.Axis(tickCount=6))
    x = _batch_axis(shown, role)
    band = inline_chart(shown).mark_area(color=SKY, opacity=0.35, clip=True).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    layers = [band, *_sweep(shown, x, y, "ms", title), *_targets(targets, shown[0]["batch"], x, y)]
    layers += _batch_marks(marks, shown, top, "ms", x, y)
    what = f"Time per output token on {label} against the batch"
    subtitle = BAND if any(row["high"] > row["low"] for row in shown) else "Datasheet rooflines, a bound."
    if is_prefill:
        what = f"Time of a prefill step on {label} against its prompt tokens"
    elif not shown[-1]["fits"]:
        subtitle += f" {DASHED}"
    return layered(layers, titled(what, subtitle), 340, what)


def batch_throughput(rows: Sequence[Row], marks: Sequence[Row], label: str, role: Role) -> alt.LayerChart:
    """Tokens per second and GPU against the batch; arguments as `batch_time`."""
    is_prefill = role is Role.PREFILL
    kind = "Prompt" if is_prefill else "Output"
    top = (ROOM + ROOM_PER_MARK * len(marks)) * max(row["tokens_per_s_per_gpu"] for row in rows)
    title = f"{kind} tokens/s per GPU"
    scale = alt.Scale(domain=[0.0, top], nice=False)
    y = alt.Y("tokens_per_s_per_gpu:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6, format=",~r"))
    x = _batch_axis(rows, role)
    layers = [
        *_sweep(rows, x, y, "tokens_per_s_per_gpu", title),
        *_batch_marks(marks, rows, top, "tokens_per_s_per_gpu", x, y),
    ]
    what = f"{kind} tokens per second and GPU on {label}"
    subtitle = "Prefill steps alone." if is_prefill else "Decode steps alone."
    subtitle += f" {DASHED}" if not rows[-1]["fits"] else ""
    return layered(layers, titled(what, subtitle), 340, what)


def _batch_axis(rows: Sequence[Row], role: Role) -> alt.X:
    title = "Prompt tokens in a step (log scale)" if role is Role.PREFILL else "Sequences in a step (log scale)"
    first, last = rows[0]["batch"], rows[-1]["batch"]
    powers = [2.0**power for power in range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1)]
    shown = powers[:: max(1, math.ceil(len(powers) / 10))]
    scale = alt.Scale(type="log", domain=[first, last], nice=False)
    return alt.X("batch:Q", title=title, scale=scale, axis=alt.Axis(values=shown, format=",~r"))


def _sweep(rows: Sequence[Row], x: alt.X, y: alt.Y, field: str, title: str) -> list[alt.Chart]:
    """The curve: solid where it fits, dashed beyond, with something to hover at every point."""
    within = [row for row in rows if row["fits"]]
    beyond = [*within[-1:], *(row for row in rows if not row["fits"])]
    tooltip = [
        alt.Tooltip("batch:Q", title="Batch", format=","),
        alt.Tooltip(f"{field}:Q", title=title, format=",.3~r"),
        alt.Tooltip("step_ms:Q", title="Step (ms)", format=",.3~r"),
        alt.Tooltip("low_ms:Q", title="Step, 90 % from (ms)", format=",.3~r"),
        alt.Tooltip("high_ms:Q", title="Step, 90 % to (ms)", format=",.3~r"),
        alt.Tooltip("tokens_per_s_per_gpu:Q", title="Tokens/s per GPU", format=",.3~r"),
        alt.Tooltip("fits:N", title="Fits in the KV cache"),
    ]
    return [
        inline_chart(within).mark_line(color=BLUE, strokeWidth=2.5, clip=True).encode(x=x, y=y),
        inline_chart(beyond).mark_line(color=BLUE, strokeWidth=2, strokeDash=[4, 4], clip=True).encode(x=x, y=y),
        inline_chart(rows).mark_point(opacity=0, size=120, clip=True).encode(x=x, y=y, tooltip=tooltip),
    ]


def _targets(targets: Sequence[LatencyTarget], first: float, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    rows = [
        {
            "ms": 1e3 * target.threshold_s,
            "batch": first,
            "label": f"target: {target.name.split()[0]} ≤ {1e3 * target.threshold_s:,.4g} ms",
        }
        for target in targets
    ]
    if not rows:
        return []
    rule = inline_chart(rows).mark_rule(strokeDash=[6, 4], strokeWidth=2, color=VERMILLION).encode(y=y)
    return [rule, words(rows, VERMILLION, "left", dx=4, dy=-8).encode(x=x, y=y)]


def _batch_marks(
    marks: Sequence[Row], rows: Sequence[Row], top: float, field: str, x: alt.X, y: alt.Y
) -> list[alt.Chart]:
    """Vertical lines with their names one below the other at the top."""
    middle = math.sqrt(rows[0]["batch"] * rows[-1]["batch"])
    layers = []
    for place, mark in enumerate(marks):
        row = [{**mark, field: top}]
        is_right = mark["batch"] > middle
        layers.append(inline_chart(row).mark_rule(color=GREY, strokeWidth=1.5).encode(x=x))
        text = words(row, GREY, "right" if is_right else "left", dx=-5 if is_right else 5, dy=10 + 16 * place)
        layers.append(text.encode(x=x, y=y))
    return layers
