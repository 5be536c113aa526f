"""Can a measured time be true? A row that beats the roofline of the work it cannot do without was not measured but
mistaken, belongs to another GPU or is in another unit.

The bounds are lower bounds on purpose: only data that must come over the bus in question count (weights, cached keys
and values), less what the L2 cache may hold. Rows are those of a table, or the one of a case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from calibration.assemble import ELEMENTWISE_OPS, EXPERT_DTYPES, GEMM_DTYPES
from calibration.operators import (
    KV_BYTES,
    LATENT_KEY,
    LATENT_RANK,
    LATENT_ROPE,
    LATENT_VALUE,
    elementwise_rows,
    peak,
    with_loads,
)
from calibration.records import KernelCase
from calibration.tables import ColumnTable, FloatArray, Mask
from hardware_db import GpuSku
from planner.core import Dtype
from planner.roofline import WEIGHT_FORMATS, WeightFormat, attended_pairs

TOLERANCE = 0.03
"""How far above a datasheet peak a measurement may lie: datasheets round, boost clocks differ by part."""
ELEMENTWISE_OPERATORS = sorted({op for ops in ELEMENTWISE_OPS.values() for op in ops})
"""Operators of the table ``mlp`` whose traffic is known; the others are matrix products and the embedding."""
VARIANTS = {table: variant for variant, table in GEMM_DTYPES.items()} | {"fp16": "bf16"}
"""Formats of the tables' names -> of the fits."""
CACHED_BYTES = {**KV_BYTES, "fp16": 2.0}
"""Bytes of a cached value by its format; of others nothing is known."""


@dataclass(frozen=True)
class RowWork:
    """Work that no row can do without, each of shape (rows,).

    Attributes:
        compute_s: FLOPs over their peak [s].
        hbm_bytes: through memory.
        link_bytes: over a link between GPUs.
        host_bytes: over the link to the host.
    """

    compute_s: FloatArray
    hbm_bytes: FloatArray
    link_bytes: FloatArray
    host_bytes: FloatArray


def least_work(name: str, table: ColumnTable, sku: GpuSku) -> RowWork:
    """Work of the rows of a table; nothing for tables without a bound.

    >>> from hardware_db import load_hardware
    >>> row = KernelCase("gemm", {"dtype": "bf16", "m": 2, "n": 4096, "k": 4096}).row
    >>> round(float(least_work("gemm", row, load_hardware().skus["h100-sxm"]).compute_s[0] * 989.4e12))
    67108864
    """
    nothing = np.zeros(len(table))
    work = {"compute_s": nothing, "hbm_bytes": nothing, "link_bytes": nothing, "host_bytes": nothing}
    if name in LEAST_WORK and len(table):
        work |= LEAST_WORK[name](table, sku)
    return RowWork(**work)


def row_of(case: KernelCase) -> ColumnTable:
    """The row of a case, of experts with those in use: a run deals its tokens to them evenly."""
    return with_loads(case.row) if case.operator == "moe" else case.row


def _bandwidths(sku: GpuSku) -> Mapping[str, float]:
    """Bandwidth [bytes/s] for each kind of bytes of `RowWork`."""
    host = sku.node.pcie_bytes_per_s.value
    links = max(sku.scale_up.bandwidth_bytes_per_s.value, host)
    return {"hbm_bytes": sku.hbm_bandwidth_bytes_per_s.value, "link_bytes": links, "host_bytes": host}


def least_time_s(name: str, table: ColumnTable, sku: GpuSku, kept_bytes: float | None = None) -> FloatArray:
    """Time [s] that no row of a table can fall below on a SKU, shape (rows,); 0 for tables without a bound.

    The largest of FLOPs / peak, (bytes - L2 cache) / HBM bandwidth and bytes / link (Williams, Waterman, Patterson
    2009, CACM 52(4)). Where the size of the cache is not known, all data may have stayed in it.

    Args:
        name: of the table, as in ``docs/explanation/calibration.md``.
        table: with the columns of that page.
        sku: whose datasheet peaks bound it.
        kept_bytes: that may have stayed in the cache; None: as many as it holds.
    """
    work, bandwidths = least_work(name, table, sku), _bandwidths(sku)
    kept = kept_bytes
    if kept is None:
        kept = math.inf if sku.l2_bytes is None else sku.l2_bytes.value
    from_memory_s = np.maximum(0.0, work.hbm_bytes - kept) / bandwidths["hbm_bytes"]
    moved_s = [work.link_bytes / bandwidths["link_bytes"], work.host_bytes / bandwidths["host_bytes"]]
    least: FloatArray = np.max([work.compute_s, from_memory_s, *moved_s], axis=0)
    return least


def possible_rows(name: str, table: ColumnTable, sku: GpuSku) -> Mask:
    """True where a row is a duration no shorter than `least_time_s`, less the tolerance."""
    latency = table["latency_s"]
    durations = np.isfinite(latency) & (latency > 0.0)
    return durations & (latency * (1.0 + TOLERANCE) >= least_time_s(name, table, sku))


def implausibility(case: KernelCase, latency_s: float, sku: GpuSku, rotated_bytes: float, l2_bytes: float) -> str:
    """Why this time cannot be true; empty where it can.

    Args:
        case: what was measured.
        latency_s: of one call.
        sku: whose peaks bound it.
        rotated_bytes: all copies of the data the calls went through in turn.
        l2_bytes: size of the cache, which can hold at most this much of them.
    """
    if not math.isfinite(latency_s) or latency_s <= 0.0:
        return f"{case.key}: {latency_s} s is no duration"
    work, bandwidths = least_work(case.operator, row_of(case), sku), _bandwidths(sku)
    missed = max(0.0, 1.0 - l2_bytes / rotated_bytes) if rotated_bytes > 0.0 else 0.0
    least_s = {
        "peak FLOP/s": work.compute_s[0],
        "memory bandwidth": work.hbm_bytes[0] * missed / bandwidths["hbm_bytes"],
        "link bandwidth": work.link_bytes[0] / bandwidths["link_bytes"],
        "host bandwidth": work.host_bytes[0] / bandwidths["host_bytes"],
    }
    for name, seconds in least_s.items():
        if seconds / latency_s > 1.0 + TOLERANCE:
            share = 100.0 * seconds / latency_s
            return f"{case.key}: {latency_s:.4g} s is {share:.0f} % of the {name} of {sku.id}"
    return ""


Work = dict[str, FloatArray]
"""The fields of `RowWork` that are not zero."""


def _formats(table: ColumnTable, names: Mapping[str, str]) -> list[tuple[Mask, WeightFormat]]:
    """The rows of each number format with how it is multiplied; fp16 as bf16."""
    dtype = np.where(table.text("dtype") == "fp16", "bf16", table.text("dtype"))
    return [(dtype == name, WEIGHT_FORMATS[variant]) for variant, name in names.items() if (dtype == name).any()]


def _weights(table: ColumnTable, names: Mapping[str, str], sku: GpuSku, flops: FloatArray, values: FloatArray) -> Work:
    """Products of these FLOPs that read so many values of weights, by the rows' formats."""
    compute_s, read = np.zeros(len(table)), np.zeros(len(table))
    for at, kind in _formats(table, names):
        compute_s[at] = flops[at] / peak(sku, kind.arithmetic)
        read[at] = values[at] * kind.weight_bytes
    return {"compute_s": compute_s, "hbm_bytes": read}


def _gemm(table: ColumnTable, sku: GpuSku) -> Work:
    area = table["n"] * table["k"]
    return _weights(table, GEMM_DTYPES, sku, 2.0 * table["m"] * area, area)


def _experts(table: ColumnTable, sku: GpuSku) -> Work:
    """The measured rank has its even share of the pairs or more, and at least one token's experts of its share."""
    values = (2.0 + table["gated"]) * table["hidden"] * table["inter"] / table["tp"]
    pairs = np.floor(table["num_tokens"] * table["topk"] / table["ep"])
    active = table.columns.get("_active", np.minimum(pairs, np.floor(table["topk"] / table["ep"])))
    return _weights(table, EXPERT_DTYPES, sku, 2.0 * pairs * values, active * values)


def _attention_work(table: ColumnTable, sku: GpuSku, flops: FloatArray, cached_values: FloatArray) -> Work:
    """At the 8-bit peak where queries or the cache are 8-bit, which kernels may use."""
    kv = table.text("kv_dtype")
    narrow = (kv == "fp8") | (table.text("attn_dtype") == "fp8")
    value_bytes = np.select([kv == name for name in CACHED_BYTES], list(CACHED_BYTES.values()), 0.0)
    peaks = np.where(narrow, peak(sku, Dtype.FP8), peak(sku, Dtype.BF16))
    return {"compute_s": flops / peaks, "hbm_bytes": cached_values * value_bytes}


def _attention(table: ColumnTable, sku: GpuSku) -> Work:
    batch, new, past, window = (table[name] for name in ("batch", "seq_len", "prefix_len", "window"))
    flops = 4.0 * batch * table["num_heads"] * table["head_dim"] * attended_pairs(new, past, window)
    seen = np.where(window > 0, np.minimum(past, window), past)
    return _attention_work(table, sku, flops, 2.0 * batch * seen * table["num_kv_heads"] * table["head_dim"])


def _latent(table: ColumnTable, sku: GpuSku) -> Work:
    """The form with expanded keys and values for prompts: the absorbed one has more FLOPs, never fewer."""
    pairs = attended_pairs(table["seq_len"], table["prefix_len"], 0.0)
    flops = 2.0 * table["batch"] * table["num_heads"] * (LATENT_KEY + LATENT_VALUE) * pairs
    return _attention_work(table, sku, flops, table["batch"] * table["prefix_len"] * (LATENT_RANK + LATENT_ROPE))


def _exchange(table: ColumnTable, sku: GpuSku) -> Work:
    gpus = table["num_gpus"]
    return {"link_bytes": table["bytes"] * (gpus - 1.0) / gpus}


def _transfer(table: ColumnTable, sku: GpuSku) -> Work:
    peer = table.text("direction") == "peer"
    return {"link_bytes": np.where(peer, table["bytes"], 0.0), "host_bytes": np.where(peer, 0.0, table["bytes"])}


def _passes(table: ColumnTable, sku: GpuSku) -> Work:
    if "bytes" in table.columns:
        return {"hbm_bytes": table["bytes"]}
    traffic = np.zeros(len(table))
    traffic[np.isin(table.text("op"), ELEMENTWISE_OPERATORS)] = elementwise_rows(table)["bytes"]
    return {"hbm_bytes": traffic}


LEAST_WORK: Mapping[str, Callable[[ColumnTable, GpuSku], Work]] = {
    "gemm": _gemm,
    "context_attention": _attention,
    "generation_attention": _attention,
    "context_mla": _latent,
    "generation_mla": _latent,
    "moe": _experts,
    "collectives": _exchange,
    "host_device": _transfer,
    **dict.fromkeys(("mlp", "elementwise", "copy"), _passes),
}
"""Table -> its least work. ``ep_all_to_all`` has none: which pairs leave the GPU its tables do not say."""
