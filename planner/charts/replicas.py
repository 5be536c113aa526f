"""The same replica on every SKU: whether it fits, what fills its memory, how long its steps take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from hardware_db import GpuSku
from planner.charts.marks import (
    BLUE,
    GREEN,
    GREY,
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
from planner.charts.server_memory import server_memory_rows
from planner.charts.steps import (
    BAR_PX,
    BARS_FRAME_PX,
    bound_shares,
    decode_row,
    decode_step,
    prefill_row,
    prefill_step,
    step_rows,
)
from planner.core import GIB, number_of
from planner.engine import MemoryFootprint, ReplicaConfig, memory_footprint
from planner.search import PoolOnSku
from planner.serving import Role

MEMORY_COLORS = {
    "weights": BLUE,
    "activations": ORANGE,
    "sampling": VERMILLION,
    "graphs and libraries": SKY,
    "KV cache": GREEN,
    "not the engine's": GREY,
}
"""What HBM holds, in the order of a bar."""
LEAST_MEMORY_PX = 300
"""Least height of the picture of memory: the bar of one SKU is seen below a phone's legend of six rows. A choice."""


# --- memory -----------------------------------------------------------------------------------------------------------


def memory_rows(fitted: Sequence[PoolOnSku]) -> list[Row]:
    """What the memory of one GPU holds, on each SKU: in the parts of `MEMORY_COLORS`.

    Where weights and what goes with them need more than there is, a bar has no cache and may end beyond the memory.
    SKUs on which no replica can be built have no row.

    Returns rows with sku, part, gib [GiB], start_gib and end_gib (parts one after another), capacity_gib, share (of the
    capacity), tokens (of the replica's KV cache), requests (that fit in it at once; 0 where the longest does not fit)
    and reason (why it does not fit, or empty).
    """
    rows: list[Row] = []
    for replica in fitted:
        if replica.config is not None:
            rows += _memory_bar(replica, replica.config.sku, memory_footprint(replica.config))
    return rows


def _memory_bar(replica: PoolOnSku, sku: GpuSku, footprint: MemoryFootprint) -> list[Row]:
    capacity = sku.seen_bytes
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
    return [{**of_sku, **row} for row in server_memory_rows(parts, capacity)]


def memory_chart(rows: Sequence[Row], planned: str, label: str) -> alt.LayerChart:
    """HBM of one GPU by what it holds, a bar for each SKU, with the requests that fit at once.

    Args:
        rows: of `memory_rows`.
        planned: the SKU of the plan, marked as such.
        label: of the parallelism, e.g. ``TP4``.
    """
    parts = [{**row, "name": f"{row['sku']} (planned)" if row["sku"] == planned else row["sku"]} for row in rows]
    ends = [
        {**row, "label": _requests_label(row), "edge_gib": _bar_end_gib(row, parts)}
        for row in parts
        if row["part"] == "weights"
    ]
    ticks = [{**row, "label": ""} for row in ends]
    longest = max(row["end_gib"] for row in parts)
    y = category_axis("name", 220)
    scale = bar_scale(longest, [row["label"] for row in ends])
    x = alt.X("start_gib:Q", title="HBM of one GPU (GiB)", scale=scale, axis=alt.Axis(tickCount=8, format=",~r"))
    colors = alt.Scale(domain=list(MEMORY_COLORS), range=list(MEMORY_COLORS.values()))
    tooltip = [
        alt.Tooltip("sku:N", title="SKU"),
        alt.Tooltip("part:N", title="Holds"),
        alt.Tooltip("gib:Q", title="GiB per GPU", format=",.3~r"),
        alt.Tooltip("share:Q", title="Share of the HBM", format=".1%"),
        alt.Tooltip("capacity_gib:Q", title="HBM (GiB)", format=",.4~r"),
        alt.Tooltip("tokens:Q", title="KV tokens of the replica", format=","),
        alt.Tooltip("requests:Q", title="Requests at once", format=","),
    ]
    color = alt.Color("part:N", title=None, scale=colors, legend=legend_of(list(MEMORY_COLORS), symbolStrokeWidth=0))
    bars = inline_chart(parts).mark_bar(height={"band": 0.7})
    layers = [
        bars.encode(x=x, x2="end_gib:Q", y=y, color=color, tooltip=tooltip),
        inline_chart(ticks)
        .mark_tick(color=VERMILLION, thickness=3, size=22)
        .encode(x=alt.X("capacity_gib:Q", scale=scale), y=y, tooltip=tooltip[4:5]),
        words(ends, GREY, "left", dx=8).encode(x=alt.X("edge_gib:Q", scale=scale), y=y),
    ]
    title = titled(
        f"Memory of one GPU of a replica of {label}",
        ["At the end: requests of mean length that fit at once.", "Thick tick: all the HBM there is."],
    )
    height = max(LEAST_MEMORY_PX, BARS_FRAME_PX + BAR_PX * len(ends))
    return layered(layers, title, height, "HBM by what it holds on each SKU")


def _requests_label(row: Row) -> str:
    if row["requests"] < 1:
        return "does not fit"
    return number_of(row["requests"], "request")


def _bar_end_gib(row: Row, rows: Sequence[Row]) -> float:
    """Where a SKU's bar ends [GiB]."""
    return float(max(other["end_gib"] for other in rows if other["sku"] == row["sku"]))


# --- every SKU ------------------------------------------------------------------------------------------------------


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
        return f"shares of peak of {calibration.sku}, fitted {calibration.fitted_on}"
    return f"fitted {calibration.fitted_on} ({calibration.stack})"
