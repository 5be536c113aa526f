"""Memory of a replica's GPUs as bars, of one server and on every SKU; and the same steps on every SKU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import altair as alt

from hardware_db import sku_words
from planner.charts.marks import (
    ABOVE,
    BAR_HEIGHT_PX,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    apart,
    axis,
    bar_axes,
    bars,
    colored,
    end_labels,
    inline_chart,
    layered,
    present,
    titled,
    tooltip,
    words,
)
from planner.charts.steps import bound_shares, decode_row, decode_step, prefill_row, prefill_step, step_rows
from planner.core import GIB, number_of
from planner.engine import ReplicaConfig, memory_footprint
from planner.search import PoolOnSku
from planner.serving import Role

PART_COLORS = {
    "weights": BLUE,
    "activations": ORANGE,
    "sampling": VERMILLION,
    "outside PyTorch": "#CC79A7",
    "graphs": SKY,
    "graphs and libraries": SKY,
    "driver": "#8B6F47",
    "KV cache": GREEN,
    "not used": GREY,
    "not the engine's": GREY,
}
"""Parts of the HBM in the order of a bar."""
EXACT = 1e-9
"""Share by which parts that fill the memory may seem to exceed it: rounding."""
BOX_FRAME_PX = (260.0, 130.0)
"""Width and height of the frame of `box_chart` on a phone."""
LEAST_MEMORY_PX = 300
"""Least height of a picture of memory: one bar is seen below a phone's legend of six rows. A choice."""


def server_memory_rows(parts: Mapping[str, float], seen_bytes: float) -> list[Row]:
    """The parts one after another.

    Args:
        parts: of `planner.engine.server_memory.memory_parts` [bytes].
        seen_bytes: memory of the GPU as the driver reports it [bytes].

    Returns:
        Rows with part, gib, start_gib, end_gib [GiB] and share (of the memory).
    """
    rows: list[Row] = []
    start = 0.0
    for part, size in parts.items():
        ends = {"start_gib": start, "end_gib": start + size / GIB}
        rows.append({"part": part, "gib": size / GIB, **ends, "share": size / seen_bytes})
        start = ends["end_gib"]
    return rows


def server_memory_chart(rows: Sequence[Row], title: str) -> alt.LayerChart:
    """Memory of one GPU by what it holds.

    Args:
        rows: of `server_memory_rows`.
        title: what server it is, and whether it starts.
    """
    shown = [{**row, "bar": ""} for row in rows if row["gib"] > 0.0]
    seen_gib = max((row["gib"] / row["share"] for row in shown), default=0.0)
    held_gib = max((row["end_gib"] for row in shown), default=0.0)
    ends = [0.0, max(seen_gib, held_gib)]
    x = axis(alt.X, "start_gib", "Memory of one GPU (GiB)", ends, tickCount=8, format=",~r")
    color = colored("part", present(PART_COLORS, shown, "part"), symbolStrokeWidth=0)
    bar = inline_chart(shown).mark_bar(height={"band": 0.8}, stroke="white", strokeWidth=1)
    hover = tooltip("gib", part="Holds", share="Share of the memory")
    y = alt.Y("bar:N", title=None, axis=None)
    layers, lines = [bar.encode(x=x, x2="end_gib:Q", y=y, color=color, tooltip=hover)], [title]
    if held_gib > seen_gib * (1.0 + EXACT):
        end = inline_chart([{"seen_gib": seen_gib}]).mark_rule(color=VERMILLION, strokeWidth=4)
        hover = tooltip(seen_gib="All the memory (GiB)")
        layers.append(end.encode(x=alt.X("seen_gib:Q", scale=x["scale"]), tooltip=hover))
        lines.append("Thick line: all the memory there is.")
    heading = titled("Memory of one GPU as the server starts", lines)
    return layered(layers, heading, LEAST_MEMORY_PX, "Memory of one GPU by what it holds")


def box_chart(points: Sequence[Row], title: str) -> alt.LayerChart:
    """Throughput of one server against interactivity.

    Args:
        points: of `planner.serving.box_record`.
        title: what server it is.
    """
    shown = [{**point, "label": f"{point['users']:,}"} for point in points]
    x = axis(alt.X, "tokens_per_s_per_user", "Output tokens/s per user")
    y = axis(alt.Y, "output_tokens_per_s_per_gpu", "Output tokens/s per GPU")
    hover = tooltip("users", "tokens_per_s_per_user", "output_tokens_per_s_per_gpu", "ttft_s", "tpot_s")
    line = inline_chart(shown).mark_line(color=BLUE).encode(x=x, y=y, order="users:Q")
    dots = inline_chart(shown).mark_circle(color=BLUE, size=60, opacity=1).encode(x=x, y=y, tooltip=hover)
    names = words(_named_apart(shown), GREY, "left", *ABOVE[1:]).encode(x=x, y=y)
    heading = titled("How does throughput trade for speed?", [title, "Numbers at the points: users."])
    return layered([line, dots, names], heading, LEAST_MEMORY_PX, "Throughput of one server by users")


def _named_apart(points: Sequence[Row]) -> list[Row]:
    """Points whose labels overlap none of those named before them on a phone: the ends of the curve, then the rest."""
    ordered = [*points[:1], *points[:0:-1]]
    across, up = (
        [(point[column] - min(ends)) / (max(ends) - min(ends) or 1.0) for point in ordered]
        for column in ("tokens_per_s_per_user", "output_tokens_per_s_per_gpu")
        for ends in [[point[column] for point in ordered]]
    )
    labels = [(x, 1.0 - y, point["label"]) for x, y, point in zip(across, up, ordered, strict=True)]
    return [ordered[place] for place in apart(labels, *BOX_FRAME_PX)]


# --- on every SKU ---------------------------------------------------------------------------------------------------


def memory_rows(fitted: Sequence[PoolOnSku]) -> list[Row]:
    """Parts of the memory of one GPU, on each SKU.

    Where weights and what goes with them need more than there is, a bar has no cache and may end beyond the memory.
    SKUs on which no replica can be built have no row.

    Returns rows with sku, part, gib [GiB], start_gib and end_gib (parts one after another), capacity_gib, share (of the
    capacity), tokens (of the replica's KV cache), requests (that fit in it at once; 0 where the longest does not fit)
    and reason (why it does not fit, or empty).
    """
    rows: list[Row] = []
    for replica in fitted:
        if replica.config is None:
            continue
        footprint, capacity = memory_footprint(replica.config), replica.config.sku.seen_bytes
        parts: dict[str, float] = {
            "weights": footprint.weights_bytes,
            "activations": footprint.activation_bytes,
            "sampling": footprint.sampling_bytes,
            "graphs and libraries": footprint.outside_bytes + footprint.graph_bytes + footprint.context_bytes,
            "KV cache": footprint.kv_capacity_bytes,
        }
        if footprint.fits:
            parts["not the engine's"] = max(0.0, capacity - sum(parts.values()))
        of_sku: Row = {
            "sku": replica.sku,
            "capacity_gib": capacity / GIB,
            "tokens": float(footprint.kv_capacity_tokens),
            "requests": math.floor(replica.model.kv_running) if replica.model is not None else 0,
            "reason": replica.reason,
        }
        rows += [{**of_sku, **row} for row in server_memory_rows(parts, capacity)]
    return rows


def memory_chart(rows: Sequence[Row], planned: str, label: str) -> alt.LayerChart:
    """HBM of one GPU by what it holds, a bar for each SKU, with the requests that fit at once.

    Args:
        rows: of `memory_rows`.
        planned: the SKU of the plan, marked as such.
        label: of the parallelism, e.g. ``TP4``.
    """
    parts = [
        {**row, "sku": sku_words(row["sku"]), "name": sku_words(row["sku"]) + " (planned)" * (row["sku"] == planned)}
        for row in rows
    ]
    ends: dict[str, Row] = {}
    for row in parts:
        text = number_of(row["requests"], "request") if row["requests"] >= 1 else "does not fit"
        before = ends.get(row["sku"], row)["end_gib"]
        ends[row["sku"]] = {**row, "label": text, "end_gib": max(row["end_gib"], before)}
    of_bars = list(ends.values())
    axes = bar_axes(of_bars, "name", "end_gib", "HBM of one GPU (GiB)", width_px=220, tickCount=8, format=",~r")
    shown = tooltip("gib", "capacity_gib", "tokens", sku="SKU", part="Holds", share="Share of the HBM")
    shown += tooltip(requests="Requests at once")
    color = colored("part", present(PART_COLORS, parts, "part"), symbolStrokeWidth=0)
    tick = inline_chart(of_bars).mark_tick(color=VERMILLION, thickness=3, size=22)
    layers = [
        bars(parts, axes, color, shown, "start_gib"),
        tick.encode(x=axes.at("capacity_gib"), y=axes.y, tooltip=tooltip("capacity_gib")),
        end_labels(of_bars, axes),
    ]
    title = titled(
        f"Memory of one GPU of a replica of {label}",
        ["At the end: requests of mean length that fit at once.", "Thick tick: all the HBM there is."],
    )
    return layered(layers, title, BAR_HEIGHT_PX * (len(ends) + 1), "HBM by what it holds on each SKU", grows=True)


def sku_rows(fitted: Sequence[PoolOnSku], running: float) -> list[Row]:
    """The same replica on each SKU: a decode step of `running` sequences and a prefill step of the whole chunk budget.

    A prefill pool has no decode step, a decode pool no prefill step: None.

    Returns rows with sku, decode_ms and prefill_ms [ms]; of the decode step (of a prefill pool: the prefill step)
    low_ms and high_ms [ms] (90 % interval), waits_for, waits_share and tokens_per_s_per_gpu [1/s]; requests (that fit
    in the KV cache at once), timed_by, and reason (why there is nothing).
    """
    return [_sku_row(replica, running) for replica in fitted]


def _sku_row(replica: PoolOnSku, running: float) -> Row:
    names = ("decode_ms", "prefill_ms", "low_ms", "high_ms", "waits_for", "waits_share", "tokens_per_s_per_gpu")
    row: Row = {"sku": replica.sku} | dict.fromkeys((*names, "requests", "timed_by"))
    row["reason"] = replica.reason
    model = replica.model
    if model is None:
        return row
    role, max_batched_tokens = model.pool.role, model.pool.config.max_batched_tokens
    decode = None if role is Role.PREFILL else decode_row(model, running)
    prefill = None if role is Role.DECODE else prefill_row(model, max_batched_tokens)
    main = decode or prefill or {}
    shape = decode_step(model, running) if decode else prefill_step(model, max_batched_tokens)
    bound, share = next(iter(bound_shares(step_rows(model, shape)).items()))
    row |= {"decode_ms": decode["step_ms"] if decode else None, "prefill_ms": prefill["step_ms"] if prefill else None}
    row |= {name: main[name] for name in ("low_ms", "high_ms", "tokens_per_s_per_gpu")}
    row |= {"waits_for": bound.value, "waits_share": share, "requests": math.floor(model.kv_running)}
    return row | {"timed_by": timed_by(model.pool.config)}


def timed_by(config: ReplicaConfig) -> str:
    """Source of the kernel times of a replica, in a few words."""
    calibration = config.calibration
    if calibration is None:
        return "datasheet rooflines, a bound"
    if calibration.sku != config.sku.id:
        return f"shares of peak of {sku_words(calibration.sku)}, fitted {calibration.fitted_on}"
    return f"fitted {calibration.fitted_on} ({calibration.stack})"
