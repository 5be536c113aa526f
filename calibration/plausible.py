"""Can a measured time be true? A call that beats the SKU's peak FLOP/s or bandwidth was not measured but mistaken.

The bounds are lower bounds on purpose: only data that must come over the bus in question count (weights, cached keys
and values), less what the L2 cache may hold from one round over the copies to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibration.assemble import GEMM_DTYPES
from calibration.operators import KV_BYTES, LATENT_KEY, LATENT_RANK, LATENT_ROPE, LATENT_VALUE, balanced_load, peak
from calibration.records import KernelCase
from hardware_db import Dtype, GpuSku
from planner.roofline import WEIGHT_FORMATS, WeightFormat, attended_pairs

TOLERANCE = 0.03
"""How far above a datasheet peak a measurement may lie: datasheets round, boost clocks differ by part."""
HALF_BYTES = 2.0
"""Bytes per 16-bit value."""


@dataclass(frozen=True)
class LeastWork:
    """Work that a case cannot do without: FLOPs in a format, bytes through memory, bytes over a link."""

    flops: float = 0.0
    arithmetic: Dtype = Dtype.BF16
    hbm_bytes: float = 0.0
    link_bytes: float = 0.0
    host_bytes: float = 0.0


def weight_format(dtype: str) -> WeightFormat:
    """How a table's format name is multiplied."""
    names = {table: variant for variant, table in GEMM_DTYPES.items()} | {"fp16": "bf16"}
    return WEIGHT_FORMATS[names[dtype]]


def least_work(case: KernelCase) -> LeastWork:
    """See `LeastWork`; nothing for launches.

    >>> least_work(KernelCase("gemm", {"dtype": "bf16", "m": 2, "n": 4096, "k": 4096})).flops
    67108864.0
    """
    makers = {
        "gemm": _gemm,
        "context_attention": _attention,
        "generation_attention": _attention,
        "context_mla": _latent,
        "generation_mla": _latent,
        "moe": _experts,
        "elementwise": _passes,
        "copy": _passes,
        "collectives": _exchange,
        "host_device": _transfer,
    }
    return makers[case.operator](case) if case.operator in makers else LeastWork()


def _passes(case: KernelCase) -> LeastWork:
    return LeastWork(hbm_bytes=float(case.number("bytes")))


def _exchange(case: KernelCase) -> LeastWork:
    gpus = case.number("num_gpus")
    return LeastWork(link_bytes=case.number("bytes") * (gpus - 1) / gpus)


def _transfer(case: KernelCase) -> LeastWork:
    size = float(case.number("bytes"))
    return LeastWork(link_bytes=size) if case.fields["direction"] == "peer" else LeastWork(host_bytes=size)


def _gemm(case: KernelCase) -> LeastWork:
    m, n, k = (float(case.number(name)) for name in ("m", "n", "k"))
    kind = weight_format(str(case.fields["dtype"]))
    return LeastWork(2.0 * m * n * k, kind.arithmetic, n * k * kind.weight_bytes)


def _attention(case: KernelCase) -> LeastWork:
    batch, new, past = (float(case.number(name)) for name in ("batch", "seq_len", "prefix_len"))
    heads, kv_heads, dim = (float(case.number(name)) for name in ("num_heads", "num_kv_heads", "head_dim"))
    cached = batch * past * 2.0 * kv_heads * dim * _cached_bytes(case)
    return LeastWork(4.0 * batch * heads * dim * float(attended_pairs(new, past, 0.0)), _attention_format(case), cached)


def _latent(case: KernelCase) -> LeastWork:
    """As `calibration.possible` bounds it: the absorbed form has more FLOPs than the expanded one, never fewer."""
    batch, new, past, heads = (float(case.number(name)) for name in ("batch", "seq_len", "prefix_len", "num_heads"))
    flops = 2.0 * batch * heads * (LATENT_KEY + LATENT_VALUE) * float(attended_pairs(new, past, 0.0))
    cached = batch * past * (LATENT_RANK + LATENT_ROPE) * _cached_bytes(case)
    return LeastWork(flops, _attention_format(case), cached)


def _cached_bytes(case: KernelCase) -> float:
    return KV_BYTES.get(str(case.fields["kv_dtype"]), HALF_BYTES)


def _attention_format(case: KernelCase) -> Dtype:
    """With a cache of 8 bits the format of the cache, which kernels may multiply in."""
    return Dtype.FP8 if case.fields["kv_dtype"] == "fp8" else Dtype.BF16


def _experts(case: KernelCase) -> LeastWork:
    tokens, count, visits = (case.number(name) for name in ("num_tokens", "num_experts", "topk"))
    values = (2.0 + case.number("gated")) * case.number("hidden") * case.number("inter") / case.number("tp")
    active = expert_load(tokens, count, visits)[1]
    return LeastWork(2.0 * tokens * visits * values, Dtype.BF16, active * values * HALF_BYTES)


def expert_load(tokens: int, experts: int, experts_per_token: int) -> tuple[float, float]:
    """(token, expert) pairs and experts in use under the balanced routing of the tables.

    >>> expert_load(1, 128, 8)
    (8.0, 8.0)
    """
    pairs, active = balanced_load(np.array([float(tokens)]), experts, experts_per_token, 1)
    return float(pairs[0]), float(active[0])


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
    work = least_work(case)
    missed = max(0.0, 1.0 - l2_bytes / rotated_bytes) if rotated_bytes > 0.0 else 0.0
    links = sku.scale_up.bandwidth_bytes_per_s.value
    shares = {
        f"{work.arithmetic} FLOP/s": (work.flops, peak(sku, work.arithmetic)),
        "memory bandwidth": (work.hbm_bytes * missed, sku.hbm_bandwidth_bytes_per_s.value),
        "link bandwidth": (work.link_bytes, max(links, sku.node.pcie_bytes_per_s.value)),
        "host bandwidth": (work.host_bytes, sku.node.pcie_bytes_per_s.value),
    }
    for name, (amount, limit) in shares.items():
        share = amount / latency_s / limit
        if share > 1.0 + TOLERANCE:
            return f"{case.key}: {latency_s:.4g} s is {100 * share:.0f} % of the {name} of {sku.id}"
    return ""
