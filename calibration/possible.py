"""Which rows of a measured table can be true: the rule of `calibration.plausible`, for whole tables of other people.

A row that beats the roofline of the work it cannot do without was mistaken, belongs to another GPU or is in another
unit. As there, the bounds are lower bounds on purpose: what may have stayed in the L2 cache does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from calibration.assemble import ELEMENTWISE_OPS, EXPERT_DTYPES, GEMM_DTYPES
from calibration.operators import KV_BYTES, LATENT_KEY, LATENT_RANK, LATENT_ROPE, LATENT_VALUE, elementwise_rows, peak
from calibration.plausible import TOLERANCE
from calibration.tables import ColumnTable, FloatArray, Mask
from hardware_db import Dtype, GpuSku
from planner.roofline import WEIGHT_FORMATS, WeightFormat, attended_pairs

ELEMENTWISE_OPERATORS = sorted({op for ops in ELEMENTWISE_OPS.values() for op in ops})
"""Operators of the table ``mlp`` whose traffic is known; the others are matrix products and the embedding."""


@dataclass(frozen=True)
class RowWork:
    """Work that no row can do without, shape (rows,): FLOPs over their peak [s], bytes through memory, over a link."""

    compute_s: FloatArray
    hbm_bytes: FloatArray
    link_bytes: FloatArray


def least_time_s(name: str, table: ColumnTable, sku: GpuSku) -> FloatArray:
    """Time [s] that no row of a table can fall below on a SKU, shape (rows,); 0 for tables without a bound.

    The largest of FLOPs / peak, (bytes - L2 cache) / HBM bandwidth and bytes / link (Williams, Waterman, Patterson
    2009, CACM 52(4)). Where the size of the cache is not known, all data may have stayed in it.

    Args:
        name: of the table, as in ``docs/explanation/calibration.md``.
        table: with the columns of that page.
        sku: whose datasheet peaks bound it.
    """
    if name not in LEAST_WORK or not len(table):
        return np.zeros(len(table))
    work = LEAST_WORK[name](table, sku)
    kept = math.inf if sku.l2_bytes is None else sku.l2_bytes.value
    from_memory_s = np.maximum(0.0, work.hbm_bytes - kept) / sku.hbm_bandwidth_bytes_per_s.value
    link = max(sku.scale_up.bandwidth_bytes_per_s.value, sku.node.pcie_bytes_per_s.value)
    return np.maximum(np.maximum(work.compute_s, from_memory_s), work.link_bytes / link)


def possible_rows(name: str, table: ColumnTable, sku: GpuSku) -> Mask:
    """True where a row is a duration no shorter than `least_time_s`, less the tolerance of `calibration.plausible`."""
    latency = table["latency_s"]
    durations = np.isfinite(latency) & (latency > 0.0)
    return durations & (latency * (1.0 + TOLERANCE) >= least_time_s(name, table, sku))


def _formats(table: ColumnTable, names: Mapping[str, str]) -> list[tuple[Mask, WeightFormat]]:
    """The rows of each number format with how it is multiplied."""
    dtype = table.text("dtype")
    return [(dtype == name, WEIGHT_FORMATS[variant]) for variant, name in names.items() if (dtype == name).any()]


def _gemm(table: ColumnTable, sku: GpuSku) -> RowWork:
    compute_s, weights = np.zeros(len(table)), np.zeros(len(table))
    area = table["n"] * table["k"]
    for at, kind in _formats(table, GEMM_DTYPES):
        compute_s[at] = 2.0 * (table["m"] * area)[at] / peak(sku, kind.arithmetic)
        weights[at] = area[at] * kind.weight_bytes
    return RowWork(compute_s, weights, np.zeros(len(table)))


def _attention_peak(table: ColumnTable, sku: GpuSku) -> FloatArray:
    """Peak [FLOP/s] of each row: the 8-bit one where queries or the cache are 8-bit, which kernels may use."""
    narrow = (table.text("kv_dtype") == "fp8") | (table.text("attn_dtype") == "fp8")
    return np.where(narrow, peak(sku, Dtype.FP8), peak(sku, Dtype.BF16))


def _kv_bytes(table: ColumnTable) -> FloatArray:
    kv = table.text("kv_dtype")
    return np.select([kv == name for name in KV_BYTES], list(KV_BYTES.values()), 0.0)


def _attention(table: ColumnTable, sku: GpuSku) -> RowWork:
    batch, new, past, window = (table[name] for name in ("batch", "seq_len", "prefix_len", "window"))
    flops = 4.0 * batch * table["num_heads"] * table["head_dim"] * attended_pairs(new, past, window)
    seen = np.where(window > 0, np.minimum(past, window), past)
    cached = 2.0 * batch * seen * table["num_kv_heads"] * table["head_dim"] * _kv_bytes(table)
    return RowWork(flops / _attention_peak(table, sku), cached, np.zeros(len(table)))


def _latent(table: ColumnTable, sku: GpuSku) -> RowWork:
    """The form with expanded keys and values for prompts: the absorbed one has more FLOPs, never fewer."""
    pairs = attended_pairs(table["seq_len"], table["prefix_len"], 0.0)
    flops = 2.0 * table["batch"] * table["num_heads"] * (LATENT_KEY + LATENT_VALUE) * pairs
    cached = table["batch"] * table["prefix_len"] * (LATENT_RANK + LATENT_ROPE) * _kv_bytes(table)
    return RowWork(flops / _attention_peak(table, sku), cached, np.zeros(len(table)))


def _experts(table: ColumnTable, sku: GpuSku) -> RowWork:
    """The measured rank has its even share of the pairs or more, and at least one token's experts of its share."""
    compute_s, weights = np.zeros(len(table)), np.zeros(len(table))
    values = (2.0 + table["gated"]) * table["hidden"] * table["inter"] / table["tp"]
    pairs = np.floor(table["num_tokens"] * table["topk"] / table["ep"])
    active = np.minimum(pairs, np.floor(table["topk"] / table["ep"]))
    for at, kind in _formats(table, EXPERT_DTYPES):
        compute_s[at] = 2.0 * (pairs * values)[at] / peak(sku, kind.arithmetic)
        weights[at] = (active * values)[at] * kind.weight_bytes
    return RowWork(compute_s, weights, np.zeros(len(table)))


def _exchange(table: ColumnTable, sku: GpuSku) -> RowWork:
    gpus, nothing = table["num_gpus"], np.zeros(len(table))
    return RowWork(nothing, nothing, table["bytes"] * (gpus - 1.0) / gpus)


def _passes(table: ColumnTable, sku: GpuSku) -> RowWork:
    traffic, nothing = np.zeros(len(table)), np.zeros(len(table))
    traffic[np.isin(table.text("op"), ELEMENTWISE_OPERATORS)] = elementwise_rows(table)["bytes"]
    return RowWork(nothing, traffic, nothing)


LEAST_WORK: Mapping[str, Callable[[ColumnTable, GpuSku], RowWork]] = {
    "gemm": _gemm,
    "context_attention": _attention,
    "generation_attention": _attention,
    "context_mla": _latent,
    "generation_mla": _latent,
    "moe": _experts,
    "collectives": _exchange,
    "mlp": _passes,
}
"""Table -> its least work. ``ep_all_to_all`` has none: which pairs leave the GPU its tables do not say."""
