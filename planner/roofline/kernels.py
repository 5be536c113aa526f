"""How long one kernel takes: compact physical forms whose coefficients a calibration holds. Numbers in, seconds out.

Answers: given a kernel's dimensions, a GPU's peaks and fitted coefficients, its duration. Every form is a roofline with
what a roofline leaves out: tiles come whole and fill the processors in waves, small tiles and few thread blocks reach
less than the peak, quantising activations is a pass of its own, a launch has a floor, and compute and memory time
overlap imperfectly, which a p-norm of order `order` says: (x^p + y^p)^(1/p), between sum (1) and maximum (infinity).

Coefficients whose name contains ``efficiency`` are achieved / peak and lie in (0, 1], so that no form is faster than
its roofline. Attention is in the modules of its kinds.

A form is one function, of one step: compiled code calls it with a record of its constants and the table of its
correction, and Python with floats or arrays that broadcast, then the records they come from (`core.vectorized`).

The forms follow the tile and wave picture of GPU matrix products (NVIDIA, Matrix Multiplication Background User's
Guide, sections "Tile quantization" and "Wave quantization") and, for experts, grouped GEMMs over the routed load (Gale
et al. 2022, MegaBlocks, arXiv:2211.15841).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.core import BoolArray, Constants, FloatArray, vectorized
from planner.roofline.arithmetic import Value, corrected_s, p_norm
from planner.roofline.kernel_forms import (
    CollectiveForm,
    ElementwiseForm,
    ExpertsForm,
    GemmForm,
    GpuPeaks,
    NetworkForm,
    WeightFormat,
)

TILES = ((16, 64), (16, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
"""Output tiles (rows, columns) that matrix libraries choose from."""
SPLITS = (1, 2, 4, 8, 16)
"""Numbers of thread blocks that the inner dimension is split over."""
LARGEST_TILE_VALUES = 32768.0
"""Values of the largest tile."""
TILES_AND_SPLITS = np.array([(*tile, split) for tile in TILES for split in SPLITS], dtype=np.float64).T
"""Every tile with every split, shape (3, choices): rows, columns and splits."""
INNER_STEP = 64
"""Inner-dimension step of one tile's main loop [values]."""
SHORTEST_SPLIT = 256
"""Shortest inner dimension of one split [values]."""
PARTIAL_SUM_BYTES = 8.0
"""A split writes and reads each 32-bit partial sum once."""
EXPERT_ROW_TILES = (16, 32, 64, 128)
"""Row tiles of grouped GEMMs."""
EXPERT_TILE_COLUMNS = 128.0
"""Columns of every tile of a grouped GEMM; also the rows of the largest."""
FEWEST_ACTIVE = 1e-9
"""Active experts are taken for at least this many, so that no pairs at all take no time. A guard, not a choice."""


@vectorized(GemmForm, GpuPeaks, WeightFormat)
def gemm_s(row: Constants, table: FloatArray, m: float, n: float, k: float) -> float:
    """Time [s] of y[m, n] = x[m, k] W[k, n]: with the tile and split that look best.

    ``start + quantise + p_norm(compute, memory) + split_s [split > 1]`` with

        compute = waves * sms * 2 tile_m tile_n 64 ceil(k / 64 s) / (e_c e_tile peak),  waves = ceil(tiles s / sms)
        e_tile  = 1 / (1 + small_tile_loss * (32768 / (tile_m tile_n) - 1))
        memory  = (n k w + m k a + 2 m n + [s > 1] 8 s m n) / (e_m bandwidth min(1, fill min(tiles s, sms) / sms))
        quantise = m (k + quantise_row) (2 + a) / (e_q bandwidth) when activations are quantised on the fly

    The tile and split are those of the least sqrt(compute^2 + memory^2) + split_s, as a library's heuristic ranks its
    kernels before it knows how they overlap. Corrected over m and n.

    Args:
        row: coefficients, peaks of the GPU in the format of the arithmetic, and how weights are stored.
        table: of the correction.
        m: tokens, any shape.
        n: output width.
        k: inner width.

    Returns:
        Durations [s].
    """
    traffic = n * k * row.weight_bytes + m * k * row.activation_bytes + 2.0 * m * n
    moving = traffic / row.bytes_per_s
    best, best_compute, best_memory, best_reduction = math.inf, 0.0, 0.0, 0.0
    for choice in range(TILES_AND_SPLITS.shape[1]):
        rows, columns, split = TILES_AND_SPLITS[0, choice], TILES_AND_SPLITS[1, choice], TILES_AND_SPLITS[2, choice]
        if split > 1.0 and k < SHORTEST_SPLIT * split:
            continue
        blocks = math.ceil(m / rows) * math.ceil(n / columns) * split
        loop = INNER_STEP * math.ceil(k / (INNER_STEP * split))
        slower = 1.0 + row.small_tile_loss * (LARGEST_TILE_VALUES / (rows * columns) - 1.0)
        per_wave = row.sms * 2.0 * rows * columns * slower / (row.compute_efficiency * row.flops_per_s)
        compute = math.ceil(blocks / row.sms) * per_wave * loop
        busy = min(row.fill * min(blocks, row.sms) / row.sms, 1.0)
        partial = PARTIAL_SUM_BYTES * split if split > 1.0 else 0.0
        memory = (1.0 + partial * (m * n / traffic)) * moving / (row.memory_efficiency * busy)
        reduction = row.split_s if split > 1.0 else 0.0
        rank = math.sqrt(compute * compute + memory * memory) + reduction
        if rank < best:
            best, best_compute, best_memory, best_reduction = rank, compute, memory, reduction
    took = row.start_s + p_norm(row.order, best_compute, best_memory) + best_reduction
    if row.quantised:
        values = m * (k + row.quantise_row)
        took += values * (2.0 + row.activation_bytes) / (row.quantise_efficiency * row.bytes_per_s)
    return corrected_s(table, took, max(2.0 * m * n * k / row.flops_per_s, moving), m, n)


def grouped_gemm_s(
    rows: FloatArray, groups: FloatArray, n: float, k: float, form: GemmForm, peaks: GpuPeaks, stored: WeightFormat
) -> FloatArray:
    """Time [s] of y[m, n] = x[m, k] W[k, n] for groups of rows with a matrix each, by the library of the dense product.

    That is `gemm_s` of the outputs of all groups: as many tiles over the same inner width, each group's own rows read.
    DeepGEMM's grouped kernels are its dense ones with another matrix for every tile of rows (README of
    github.com/deepseek-ai/DeepGEMM, "Grouped GEMMs").

    Args:
        rows: m, rows of a group, any shape.
        groups: that have any rows, shape of `rows`.
        n: output width.
        k: inner width.
        form: coefficients of the dense product.
        peaks: of the GPU in the format of the arithmetic.
        stored: how weights are stored; inputs come quantised.

    Returns:
        Durations, shape of `rows` [s].
    """
    others = np.maximum(1.0 - 1.0 / groups, 0.0) * rows * stored.activation_bytes / n
    read: dict[str, Any] = {"weight_bytes": stored.weight_bytes + others, "quantised": False}
    return np.asarray(gemm_s(rows, groups * n, k, form, peaks, replace(stored, **read)))


@dataclass(frozen=True)
class ExpertShape:
    """The matrices of one routed expert on one GPU, as its kernels see them.

    Attributes:
        hidden: H, model width.
        intermediate: I, width of the expert on this GPU.
        gated: two matrices into it instead of one.
        weight_bytes: bytes per weight, scales included.
        activation_bytes: bytes per activation read.
        routing: experts a token visits, all experts, groups they live in; with them a shape can be looked up among
            the measured ones.
    """

    hidden: float | FloatArray
    intermediate: float | FloatArray
    gated: bool | BoolArray
    weight_bytes: float
    activation_bytes: float = 2.0
    routing: tuple[float, float, float] | None = None


def experts_s(
    tokens: FloatArray, pairs: FloatArray, active: FloatArray, expert: ExpertShape, form: ExpertsForm, peaks: GpuPeaks
) -> FloatArray:
    """Time [s] of the routed experts of one GPU.

    Two grouped GEMMs over r = pairs / active rows per expert, the best of four row tiles b:

        rows = ceil(r / b) active,  t1 = rows ceil(g I / 128),  t2 = rows ceil(H / 128),  g = 2 gated, 1 otherwise
        GEMM1 = p_norm(max(t1, sms) 2 b 128 H / (e_c e_b peak),
                       (active g I H w + pairs (H a + 2 g I)) / (e_m bandwidth min(1, fill t1 / sms)))
        GEMM2 likewise with I in place of H
        time  = start + token_s tokens + GEMM1 + GEMM2

    Corrected over r and I, then over tokens by the curve of the shape H, I, experts a token visits, experts, groups of
    experts, g + 1.

    Args:
        tokens: tokens this GPU routes, shape (steps,).
        pairs: (token, expert) pairs that fall on its experts (`routed_load`), shape of `tokens`.
        active: its experts that get at least one pair, shape of `tokens`.
        expert: matrices of one expert.
        form: coefficients.
        peaks: of the GPU, in the format of the arithmetic.

    Returns:
        Durations, shape of `tokens` [s].
    """
    factor: float | FloatArray = 1.0
    if form.measured is not None and expert.routing is not None:
        shape = (float(expert.hidden), float(expert.intermediate), *expert.routing, 3.0 if expert.gated else 2.0)
        factor = form.measured.at(shape).factor(tokens, 1.0)
    return _experts_s(tokens, pairs, active, factor, expert, form, peaks)


@vectorized(ExpertShape, ExpertsForm, GpuPeaks)
def _experts_s(row: Constants, table: FloatArray, tokens: float, pairs: float, active: float, factor: float) -> float:
    """`experts_s` with the factor of the shape's curve known."""
    active, width = max(active, FEWEST_ACTIVE), (2.0 if row.gated else 1.0) * row.intermediate
    best = math.inf
    for rows in EXPERT_ROW_TILES:
        slower = 1.0 + row.small_tile_loss * (EXPERT_TILE_COLUMNS / rows - 1.0)
        rate = row.compute_efficiency / slower * row.flops_per_s
        tiles = math.ceil(pairs / active / rows) * active
        took = 0.0
        for inner, outer in ((row.hidden, width), (row.intermediate, row.hidden)):
            count = tiles * math.ceil(outer / EXPERT_TILE_COLUMNS)
            compute = max(count, row.sms) * 2.0 * rows * EXPERT_TILE_COLUMNS * inner / rate
            traffic = active * outer * inner * row.weight_bytes + pairs * (inner * row.activation_bytes + 2.0 * outer)
            busy = min(max(row.fill * count / row.sms, 1e-9), 1.0)
            took += p_norm(row.order, compute, traffic / (row.memory_efficiency * row.bytes_per_s * busy))
        best = min(best, took)
    work = (width + row.intermediate) * row.hidden
    ideal = max(2.0 * pairs * work / row.flops_per_s, active * work * row.weight_bytes / row.bytes_per_s)
    took = row.start_s + row.token_s * tokens + best
    return max(corrected_s(table, took, ideal, pairs / active, row.intermediate) * factor, ideal)


@vectorized(CollectiveForm)
def collective_s(row: Constants, table: FloatArray, payload_bytes: float, link_bytes_per_s: float) -> float:
    """Time [s] of a collective: p_norm(start, payload / (e link)), corrected over the payload.

    Conventions of nccl-tests, doc/PERFORMANCE.md, section "Bus bandwidth".

    Args:
        row: coefficients.
        table: of the correction.
        payload_bytes: what crosses each GPU's link in one direction [bytes]: the whole buffer for an all-reduce, which
            a switch that reduces needs to send only once (NVLink SHARP), and (n - 1) / n of it for all-gather
            (gathered total) and reduce-scatter (input total).
        link_bytes_per_s: bandwidth of that link per direction [bytes/s].

    Returns:
        Duration, shape of `payload_bytes` [s].
    """
    ideal = payload_bytes / link_bytes_per_s
    took = p_norm(row.order, row.start_s, ideal / row.link_efficiency)
    return corrected_s(table, took, ideal, payload_bytes, 1.0)


@vectorized(NetworkForm)
def network_s(
    row: Constants, table: FloatArray, ideal_s: float, trips: float, domain_gpus: float, domains: float
) -> float:
    """Time [s] of communication among the GPUs of several domains: p_norm(start, ideal / e).

        start = launch + trips ((domain_gpus - 1) hop + log2(domains) crossing)

    Latency of a tree over domains whose GPUs form a chain, as NCCL reckons it (NVIDIA/nccl, ``src/graph/tuning.cc``).

    Args:
        row: coefficients.
        table: of the correction.
        ideal_s: bytes over the bandwidth of the link that takes longest [s].
        trips: times the data cross the tree: 2 for an all-reduce (up and down), 1 for anything else.
        domain_gpus: GPUs of a domain that take part.
        domains: that take part.

    Returns:
        Duration, shape of `ideal_s` [s].
    """
    start = row.launch_s + trips * ((domain_gpus - 1.0) * row.hop_s + math.log2(domains) * row.crossing_s)
    return corrected_s(table, p_norm(row.order, start, ideal_s / row.link_efficiency), ideal_s, 1.0, 1.0)


def exchanged_bytes(
    tokens: Value, hidden: float, experts_per_token: float, ranks: float, bytes_per_value: float, per_expert: bool
) -> Value:
    """Bytes one GPU sends to the others when its tokens go to experts spread over a group of GPUs.

    A token goes once to every expert it uses (`per_expert`) or once to every GPU that holds one of them, which for
    evenly spread experts are ``ranks (1 - (1 - 1 / ranks)^experts_per_token)``; of either, (ranks - 1) / ranks leave.

    Args:
        tokens: tokens of this GPU, any shape.
        hidden: values per token.
        experts_per_token: experts each token uses.
        ranks: GPUs the experts are spread over.
        bytes_per_value: of what travels.
        per_expert: one copy for every expert instead of one for every GPU.

    Returns:
        Sent by this GPU, shape of `tokens` [bytes].

    >>> exchanged_bytes(2.0, 10, 1, 2, 1.0, per_expert=False), exchanged_bytes(2.0, 10, 4, 2, 1.0, per_expert=True)
    (10.0, 40.0)
    """
    copies = experts_per_token if per_expert else ranks * (1.0 - (1.0 - 1.0 / ranks) ** experts_per_token)
    return tokens * (hidden * bytes_per_value * copies * (ranks - 1.0) / ranks)


def elementwise_s(traffic_bytes: Value, form: ElementwiseForm, peaks: GpuPeaks) -> Value:
    """Time [s] of a pass over memory: start + traffic / (e_m bandwidth).

    Args:
        traffic_bytes: read and written, any shape [bytes].
        form: coefficients.
        peaks: of the GPU.

    Returns:
        Duration, shape of `traffic_bytes` [s].
    """
    return form.start_s + traffic_bytes / (form.memory_efficiency * peaks.bytes_per_s)
