"""How long one kernel takes: compact physical forms whose coefficients a calibration holds. Numbers in, seconds out.

Answers: given a kernel's dimensions, a GPU's peaks and fitted coefficients, its duration. Every form is a roofline with
what a roofline leaves out: tiles come whole and fill the processors in waves, small tiles and few thread blocks reach
less than the peak, quantising activations is a pass of its own, a launch has a floor, and compute and memory time
overlap imperfectly, which a p-norm of order `order` says: (x^p + y^p)^(1/p), between sum (1) and maximum (infinity).

Coefficients whose name contains ``efficiency`` are achieved / peak and lie in (0, 1], so that no form is faster than
its roofline. Dimensions may be floats or arrays of one shape. Attention is in `planner.roofline.attention_kernels`.

The forms follow the tile and wave picture of GPU matrix products (NVIDIA, Matrix Multiplication Background User's
Guide, sections "Tile quantization" and "Wave quantization") and, for experts, grouped GEMMs over the routed load (Gale
et al. 2022, MegaBlocks, arXiv:2211.15841).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.roofline.arithmetic import Value, p_norm
from planner.roofline.kernel_forms import (
    CollectiveForm,
    ElementwiseForm,
    ExpertsForm,
    GemmForm,
    GpuPeaks,
    corrected_s,
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
PRODUCTS_AT_ONCE = 512
"""Products evaluated together: the work arrays of all choices then fit a processor's cache. Affects speed only."""
EXPERT_ROW_TILES = (16, 32, 64, 128)
"""Row tiles of grouped GEMMs."""
EXPERT_TILE_COLUMNS = 128.0
"""Columns of every tile of a grouped GEMM; also the rows of the largest."""
FEWEST_ACTIVE = 1e-9
"""Active experts are taken for at least this many, so that no pairs at all take no time. A guard, not a choice."""


def gemm_s(
    m: FloatArray,
    n: float | FloatArray,
    k: float | FloatArray,
    form: GemmForm,
    peaks: GpuPeaks,
    weight_bytes: float,
    activation_bytes: float = 2.0,
    quantised: bool = False,
) -> FloatArray:
    """Time [s] of y[m, n] = x[m, k] W[k, n] for many m: with the tile and split that look best.

    ``start + quantise + p_norm(compute, memory) + split_s [split > 1]`` with

        compute = waves * sms * 2 tile_m tile_n 64 ceil(k / 64 s) / (e_c e_tile peak),  waves = ceil(tiles s / sms)
        e_tile  = 1 / (1 + small_tile_loss * (32768 / (tile_m tile_n) - 1))
        memory  = (n k w + m k a + 2 m n + [s > 1] 8 s m n) / (e_m bandwidth min(1, fill min(tiles s, sms) / sms))
        quantise = m (k + quantise_row) (2 + a) / (e_q bandwidth) when activations are quantised on the fly

    The tile and split are those of the least sqrt(compute^2 + memory^2) + split_s, as a library's heuristic ranks its
    kernels before it knows how they overlap. Corrected over m and n.

    Args:
        m: tokens, shape (steps,).
        n: output width (or an array, shape of `m`).
        k: inner width (likewise).
        form: coefficients.
        peaks: of the GPU, in the format of the arithmetic.
        weight_bytes: bytes per weight, scales included.
        activation_bytes: bytes per activation as the product reads it.
        quantised: whether a pass of its own quantises the activations.

    Returns:
        Durations, shape of `m` [s].
    """
    m, n, k = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    traffic = n * k * weight_bytes + m * k * activation_bytes + 2.0 * m * n
    moving = np.broadcast_to(traffic / peaks.bytes_per_s, m.shape)
    sizes = np.stack([m.ravel(), n.ravel(), k.ravel(), traffic.ravel(), moving.ravel()])
    slices = [sizes[:, i : i + PRODUCTS_AT_ONCE] for i in range(0, m.size, PRODUCTS_AT_ONCE)]
    best = np.concatenate([_best_tiling_s(products, form, peaks) for products in slices]) if slices else np.zeros(0)
    quantise: float | FloatArray = 0.0
    if quantised:
        values = m * (k + form.quantise_row)
        quantise = values * (2.0 + activation_bytes) / (form.quantise_efficiency * peaks.bytes_per_s)
    took = form.start_s + quantise + best.reshape(m.shape)
    ideal = np.maximum(2.0 * m * n * k / peaks.flops_per_s, traffic / peaks.bytes_per_s)
    return corrected_s(took, ideal, form.correction, m, n)


def _best_tiling_s(sizes: FloatArray, form: GemmForm, peaks: GpuPeaks) -> FloatArray:
    """Compute and memory time joined, with the reduction after a split [s], for products of given sizes.

    `sizes` has five rows: m, n, k, traffic [bytes], and its time at full bandwidth [s].
    """
    m, n, k, traffic, moving = sizes
    rows, columns, split = TILES_AND_SPLITS[:, :, None]
    blocks = np.ceil(m / rows) * np.ceil(n / columns) * split
    loop = INNER_STEP * np.ceil(k / (INNER_STEP * split))
    slower = 1.0 + form.small_tile_loss * (LARGEST_TILE_VALUES / (rows * columns) - 1.0)
    per_wave = peaks.sms * 2.0 * rows * columns * slower / (form.compute_efficiency * peaks.flops_per_s)
    compute = np.ceil(blocks / peaks.sms) * per_wave * loop
    busy = np.minimum(form.fill * np.minimum(blocks, peaks.sms) / peaks.sms, 1.0)
    partial = np.where(split > 1.0, PARTIAL_SUM_BYTES * split, 0.0)
    memory = (1.0 + partial * (m * n / traffic)) * moving / (form.memory_efficiency * busy)
    reduction = np.where(split > 1.0, form.split_s, 0.0)
    rank = np.sqrt(compute * compute + memory * memory) + reduction
    best = np.where((split > 1.0) & (k < SHORTEST_SPLIT * split), np.inf, rank).argmin(axis=0)
    compute, memory = (np.take_along_axis(times, best[None], axis=0)[0] for times in (compute, memory))
    return np.asarray(p_norm(form.order, compute, memory) + reduction[best, 0], dtype=np.float64)


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
    tokens: FloatArray,
    pairs: FloatArray,
    active: FloatArray,
    expert: ExpertShape,
    form: ExpertsForm,
    peaks: GpuPeaks,
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
    hidden, intermediate = expert.hidden, expert.intermediate
    matrices = np.where(expert.gated, 2.0, 1.0)
    active = np.maximum(active, FEWEST_ACTIVE)
    width = matrices * intermediate
    best = np.full(np.shape(tokens), np.inf)
    for rows in EXPERT_ROW_TILES:
        slower = 1.0 + form.small_tile_loss * (EXPERT_TILE_COLUMNS / rows - 1.0)
        rate = form.compute_efficiency / slower * peaks.flops_per_s
        tiles = np.ceil(pairs / active / rows) * active
        took = np.zeros(np.shape(tokens))
        for inner, outer in ((hidden, width), (intermediate, hidden)):
            count = tiles * np.ceil(outer / EXPERT_TILE_COLUMNS)
            compute = np.maximum(count, peaks.sms) * 2.0 * rows * EXPERT_TILE_COLUMNS * inner / rate
            traffic = active * outer * inner * expert.weight_bytes
            traffic = traffic + pairs * (inner * expert.activation_bytes + 2.0 * outer)
            busy = np.clip(form.fill * count / peaks.sms, 1e-9, 1.0)
            took = took + p_norm(form.order, compute, traffic / (form.memory_efficiency * peaks.bytes_per_s * busy))
        best = np.minimum(best, took)
    took = form.start_s + form.token_s * np.asarray(tokens) + best
    weights = active * (width + intermediate) * hidden * expert.weight_bytes
    least = 2.0 * pairs * (width + intermediate) * hidden / peaks.flops_per_s
    ideal = np.maximum(least, weights / peaks.bytes_per_s)
    took = corrected_s(took, ideal, form.correction, pairs / active, intermediate)
    if form.measured is None or expert.routing is None:
        return took
    shape = (float(hidden), float(intermediate), *expert.routing, 3.0 if expert.gated else 2.0)
    return corrected_s(took, ideal, form.measured.at(shape), tokens, 1.0)


def collective_s(payload_bytes: Value, form: CollectiveForm, link_bytes_per_s: float) -> Value:
    """Time [s] of a collective: p_norm(start, payload / (e link)), corrected over the payload.

    Conventions of nccl-tests, doc/PERFORMANCE.md, section "Bus bandwidth".

    Args:
        payload_bytes: what crosses each GPU's link in one direction [bytes]: the whole buffer for an all-reduce, which
            a switch that reduces needs to send only once (NVLink SHARP), and (n - 1) / n of it for all-gather
            (gathered total), reduce-scatter (input total) and all-to-all (what one rank sends).
        form: coefficients.
        link_bytes_per_s: bandwidth of that link per direction [bytes/s].

    Returns:
        Duration, shape of `payload_bytes` [s].
    """
    ideal = payload_bytes / link_bytes_per_s
    took = p_norm(form.order, payload_bytes * 0.0 + form.start_s, ideal / form.link_efficiency)
    return corrected_s(took, ideal, form.correction, payload_bytes, 1.0)


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
