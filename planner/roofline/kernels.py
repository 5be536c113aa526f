"""How long one kernel takes: compact physical forms whose coefficients a calibration holds. Numbers in, seconds out.

Answers: given a kernel's dimensions, a machine's peaks and fitted coefficients, its duration. Every form is a roofline
with what a roofline leaves out: tiles come whole and fill the processors in waves, small tiles and few thread blocks
reach less than the peak, quantising activations is a pass of its own, a launch has a floor, and compute and memory time
overlap imperfectly, which a p-norm of order `order` says: (x^p + y^p)^(1/p), between sum (1) and maximum (infinity).

Coefficients whose name contains ``efficiency`` are achieved / peak and lie in (0, 1], so that no form is faster than
its roofline. Dimensions may be floats or arrays of one shape; means over a batch are allowed where a form says so.

The forms follow the tile and wave picture of GPU matrix products (NVIDIA, Matrix Multiplication Background User's
Guide, sections "Tile quantization" and "Wave quantization"), FlashAttention-2 for causal prefill (Dao 2023,
arXiv:2307.08691), split-KV decoding (Dao et al. 2023, Flash-Decoding) and, for experts, grouped GEMMs over the routed
load (Gale et al. 2022, MegaBlocks, arXiv:2211.15841).
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.roofline.kernel_forms import (
    WEIGHT_FORMATS,
    Bend,
    CollectiveForm,
    DecodeForm,
    ElementwiseForm,
    ExpertsForm,
    GemmForm,
    LatentDecodeForm,
    LatentPrefillForm,
    Machine,
    PrefillForm,
    WeightFormat,
)

__all__ = [
    "WEIGHT_FORMATS",
    "Bend",
    "CollectiveForm",
    "DecodeForm",
    "ElementwiseForm",
    "ExpertsForm",
    "GemmForm",
    "LatentDecodeForm",
    "LatentPrefillForm",
    "Machine",
    "PrefillForm",
    "WeightFormat",
    "attended_pairs",
    "collective_s",
    "decode_attention_s",
    "elementwise_s",
    "exchanged_bytes",
    "experts_s",
    "gemm_s",
    "latent_decode_s",
    "latent_prefill_s",
    "p_norm",
    "prefill_attention_s",
]

FloatArray = NDArray[np.float64]
Value = TypeVar("Value", float, FloatArray, FloatArray | float)

TILES = ((16, 64), (16, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
"""Output tiles (rows, columns) that matrix libraries choose from."""
SPLITS = (1, 2, 4, 8, 16)
"""Ways to split the inner dimension over thread blocks."""
LARGEST_TILE = 32768.0
"""Values of the largest of them."""
WAYS = np.array([(rows, columns, split) for rows, columns in TILES for split in SPLITS], dtype=np.float64).T
"""Every tile with every split: rows, columns and splits."""
INNER_STEP = 64
"""Inner-dimension step of one tile's main loop [values]."""
LEAST_SPLIT_INNER = 256
"""Shortest inner dimension of one split [values]."""
PARTIAL_SUM_BYTES = 8.0
"""A split writes and reads each 32-bit partial sum once."""
AT_ONCE = 512
"""Products evaluated together: the work arrays of all ways then fit a processor's cache."""
KV_BLOCK = 128
"""Keys one thread block of a split-KV decode kernel walks [tokens]."""
QUERY_BLOCK = 128
"""Query rows of one thread block of a prefill kernel [tokens]."""
EXPERT_TILES = (16, 32, 64, 128)
"""Row tiles of grouped GEMMs."""
PLAIN = (float, int)
"""Types of plain numbers, to which arrays are an alternative."""


def p_norm(order: float, *terms: Value) -> Value:
    """(sum of x^order)^(1/order); the maximum for an infinite order. Terms >= 0, not all 0 at once.

    >>> p_norm(2.0, 3.0, 4.0), p_norm(math.inf, 3.0, 4.0), p_norm(1.0, 3.0, 4.0)
    (5.0, 4.0, 7.0)
    """
    largest = terms[0]
    for term in terms[1:]:
        largest = at_least(largest, term)
    if math.isinf(order):
        return largest
    scale = at_least(largest, 1e-30)
    total = (terms[0] / scale) ** order
    for term in terms[1:]:
        total = total + (term / scale) ** order
    root: Value = total ** (1.0 / order)
    return scale * root


def at_least(x: Value, bound: Value | float) -> Value:
    """The larger of the two, for floats as for arrays."""
    if isinstance(x, PLAIN) and isinstance(bound, PLAIN):
        return x if x > bound else bound
    return np.maximum(x, bound)


def at_most(x: Value, bound: Value | float) -> Value:
    """The smaller of the two, for floats as for arrays."""
    if isinstance(x, PLAIN) and isinstance(bound, PLAIN):
        return x if x < bound else bound
    return np.minimum(x, bound)


def whole(x: Value) -> Value:
    """Rounded up to a whole number (tiles, waves and blocks come whole)."""
    return -((-x) // 1.0)


def bent(time: Value, ideal: Value, bend: Bend | None, first: Value | float, second: Value | float) -> Value:
    """Time [s] with a form's correction at two sizes, but never below the ideal roofline time [s]."""
    if bend is None:
        return time
    factor = bend.factor(first, second)
    if isinstance(time, PLAIN):
        return max(time * float(factor), ideal)
    return np.maximum(time * factor, ideal)


def gemm_s(
    m: FloatArray,
    n: float | FloatArray,
    k: float | FloatArray,
    form: GemmForm,
    machine: Machine,
    weight_bytes: float,
    activation_bytes: float = 2.0,
    quantised: bool = False,
) -> FloatArray:
    """Time [s] of y[m, n] = x[m, k] W[k, n] for many m, shape of `m`: with the tile and split that look best.

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
        machine: peaks.
        weight_bytes: bytes per weight, scales included.
        activation_bytes: bytes per activation as the product reads it.
        quantised: whether a pass of its own quantises the activations.
    """
    m, n, k = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    traffic = n * k * weight_bytes + m * k * activation_bytes + 2.0 * m * n
    moving = np.broadcast_to(traffic / machine.bytes_per_s, m.shape)
    sizes = np.stack([m.ravel(), n.ravel(), k.ravel(), traffic.ravel(), moving.ravel()])
    parts = [_best_way(sizes[:, i : i + AT_ONCE], form, machine) for i in range(0, m.size, AT_ONCE)]
    best = np.concatenate(parts) if parts else np.zeros(0)
    quantise: float | FloatArray = 0.0
    if quantised:
        values = m * (k + form.quantise_row)
        quantise = values * (2.0 + activation_bytes) / (form.quantise_efficiency * machine.bytes_per_s)
    took = form.start_s + quantise + best.reshape(m.shape)
    ideal = np.maximum(2.0 * m * n * k / machine.flops_per_s, traffic / machine.bytes_per_s)
    return bent(took, ideal, form.bend, m, n)


def _best_way(sizes: FloatArray, form: GemmForm, machine: Machine) -> FloatArray:
    """Compute and memory time joined, with the reduction after a split [s], for products of given sizes.

    `sizes` has five rows: m, n, k, traffic [bytes], and its time at full bandwidth [s].
    """
    m, n, k, traffic, moving = sizes
    rows, columns, split = WAYS[:, :, None]
    blocks = np.ceil(m / rows) * np.ceil(n / columns) * split
    loop = INNER_STEP * np.ceil(k / (INNER_STEP * split))
    slower = 1.0 + form.small_tile_loss * (LARGEST_TILE / (rows * columns) - 1.0)
    per_wave = machine.sms * 2.0 * rows * columns * slower / (form.compute_efficiency * machine.flops_per_s)
    compute = np.ceil(blocks / machine.sms) * per_wave * loop
    busy = np.minimum(form.fill * np.minimum(blocks, machine.sms) / machine.sms, 1.0)
    partial = np.where(split > 1.0, PARTIAL_SUM_BYTES * split, 0.0)
    memory = (1.0 + partial * (m * n / traffic)) * moving / (form.memory_efficiency * busy)
    reduction = np.where(split > 1.0, form.split_s, 0.0)
    rank = np.sqrt(compute * compute + memory * memory) + reduction
    best = np.where((split > 1.0) & (k < LEAST_SPLIT_INNER * split), np.inf, rank).argmin(axis=0)
    compute, memory = (np.take_along_axis(one, best[None], axis=0)[0] for one in (compute, memory))
    return np.asarray(p_norm(form.order, compute, memory) + reduction[best, 0], dtype=np.float64)


def attended_pairs(new: Value, past: Value, window: float) -> Value:
    """Query-key pairs of `new` tokens after `past` ones: sum over i = 1..new of min(past + i, window); 0 = no window.

    >>> attended_pairs(4.0, 0.0, 0), attended_pairs(4.0, 10.0, 0), attended_pairs(4.0, 0.0, 2)
    (10.0, 50.0, 7.0)
    """
    everything = new * past + new * (new + 1.0) / 2.0
    if not window:
        return everything
    growing = at_least(at_most(new, window - past), 0.0)
    return growing * past + growing * (growing + 1.0) / 2.0 + (new - growing) * window


def prefill_attention_s(
    chunks: Value,
    new: Value,
    past: Value,
    heads: float,
    kv_heads: float,
    head_dim: float,
    form: PrefillForm,
    machine: Machine,
    kv_bytes: float,
    window: float = 0.0,
) -> Value:
    """Time [s] of causal attention for `chunks` chunks of `new` tokens after `past` cached ones (means allowed).

    ``start + p_norm(compute, memory)`` with

        compute = 4 chunks heads d (pairs + row_tokens new) / (e_d peak), at least block_share of one thread block:
                  4 * 128 d (longest row + row_tokens) sms / (e_d peak)
        memory  = chunks (new d (4 heads + 2 kv_heads (2 + 2 kv_bytes)) + past 2 kv_heads d kv_bytes) / (e_m bandwidth)

    with row_tokens times window_row_growth in a windowed layer. Corrected over past + new and the heads of all chunks,
    chunks heads new / (past + new). Exact per chunk; means of `new` and `past` over the
    chunks are close while chunks are alike.

    Args:
        chunks: sequences that bring new tokens.
        new: tokens each brings.
        past: tokens each has cached.
        heads: query heads on this GPU.
        kv_heads: KV heads on this GPU.
        head_dim: channels of a head.
        form: coefficients.
        machine: peaks.
        kv_bytes: bytes per cached value.
        window: sliding window [tokens], 0 = none.
    """
    rate = form.compute_efficiency(head_dim) * machine.flops_per_s
    row_tokens = form.row_tokens * (form.window_row_growth if window else 1.0)
    compute = 4.0 * chunks * heads * head_dim * (attended_pairs(new, past, window) + row_tokens * new) / rate
    longest = at_most(past + new, window + QUERY_BLOCK) if window else past + new
    block = 4.0 * QUERY_BLOCK * head_dim * (longest + row_tokens) * machine.sms / rate
    compute = at_least(compute, form.block_share * block)
    read = at_most(past, window) if window else past
    values = new * head_dim * (4.0 * heads + 2.0 * kv_heads * (2.0 + 2.0 * kv_bytes))
    traffic = chunks * (values + read * 2.0 * kv_heads * head_dim * kv_bytes)
    took = form.start_s + p_norm(form.order, compute, traffic / (form.memory_efficiency * machine.bytes_per_s))
    least = 4.0 * chunks * heads * head_dim * attended_pairs(new, past, window) / machine.flops_per_s
    ideal = at_least(least, traffic / machine.bytes_per_s)
    return bent(took, ideal, form.bend, past + new, chunks * new / (past + new) * heads)


def decode_attention_s(
    sequences: Value,
    context: Value,
    heads: float,
    kv_heads: float,
    head_dim: float,
    form: DecodeForm,
    machine: Machine,
    kv_bytes: float,
    window: float = 0.0,
) -> Value:
    """Time [s] of one new token for `sequences` sequences over `context` tokens each (a mean is allowed).

    ``start + p_norm(compute, memory, blocks)`` with

        units   = sequences kv_heads ceil(context / 128)       (without the last factor where the kernel does not split)
        memory  = sequences (2 kv_heads context d b + 4 heads d + 2 kv_heads d (2 + b))
                  / (e_m bandwidth min(1, fill min(units, sms) / sms))
        blocks  = sequences kv_heads (heads / kv_heads)^growth block_s / sms     (group_growth, or window_growth)
        compute = 4 sequences heads context d / (e_c peak)

    where e_m is ungrouped_efficiency times smaller when heads = kv_heads. Corrected over context and sequences
    kv_heads.

    Args:
        sequences: sequences that decode.
        context: cached tokens of each, its new one included (cut to the window).
        heads: query heads on this GPU.
        kv_heads: KV heads on this GPU.
        head_dim: channels of a head.
        form: coefficients.
        machine: peaks.
        kv_bytes: bytes per cached value.
        window: sliding window [tokens], 0 = none.
    """
    context = at_most(context, window) if window else context
    ungrouped = np.equal(heads, kv_heads)
    plain = bool(window) | ungrouped
    split: Any = np.where(plain, min(form.splits_kv, form.splits_plain), form.splits_kv)
    units = sequences * kv_heads * (1.0 + split * (whole(context / KV_BLOCK) - 1.0))
    busy = at_most(form.fill * at_most(units, machine.sms) / machine.sms, 1.0)
    own = 4.0 * heads * head_dim + 2.0 * kv_heads * head_dim * (2.0 + kv_bytes)
    traffic = sequences * (2.0 * kv_heads * context * head_dim * kv_bytes + own)
    efficiency: Any = form.memory_efficiency(head_dim) * np.where(ungrouped, form.ungrouped_efficiency, 1.0)
    memory = traffic / (efficiency * machine.bytes_per_s * at_least(busy, 1e-9))
    growth = form.window_growth if window else form.group_growth
    group: Any = (heads / kv_heads) ** growth
    blocks = sequences * (kv_heads * group * form.block_s / machine.sms)
    least = sequences * (4.0 * heads * head_dim) * context / machine.flops_per_s
    took: Value = form.start_s + p_norm(form.order, least / form.compute_efficiency, memory, blocks)
    ideal = at_least(least, traffic / machine.bytes_per_s)
    return bent(took, ideal, form.bend, context, sequences * kv_heads)


def latent_prefill_s(
    chunks: Value,
    new: Value,
    past: Value,
    heads: float,
    key_dim: float,
    value_dim: float,
    form: LatentPrefillForm,
    machine: Machine,
) -> Value:
    """Time [s] of latent attention's prefill kernel: keys of `key_dim`, values of `value_dim`, expanded per head.

    As `prefill_attention_s` with 2 heads (key_dim + value_dim) FLOPs per pair and 16-bit keys and values of all tokens.
    """
    rate = form.compute_efficiency * machine.flops_per_s
    per_pair = 2.0 * (key_dim + value_dim)
    compute = chunks * heads * per_pair * (attended_pairs(new, past, 0.0) + form.row_tokens * new) / rate
    block = QUERY_BLOCK * per_pair * (past + new + form.row_tokens) * machine.sms / rate
    compute = at_least(compute, form.block_share * block)
    traffic = chunks * heads * (key_dim + value_dim) * 2.0 * (2.0 * new + past)
    took = form.start_s + p_norm(form.order, compute, traffic / (form.memory_efficiency * machine.bytes_per_s))
    least = chunks * heads * per_pair * attended_pairs(new, past, 0.0) / machine.flops_per_s
    ideal = at_least(least, traffic / machine.bytes_per_s)
    return bent(took, ideal, form.bend, past + new, chunks * new / (past + new) * heads)


def latent_decode_s(
    sequences: Value,
    context: Value,
    heads: float,
    kv_rank: float,
    rope_dim: float,
    form: LatentDecodeForm,
    machine: Machine,
    kv_bytes: float,
) -> Value:
    """Time [s] of absorbed latent decode: 2 heads (2 kv_rank + rope_dim) FLOPs per cached token, one shared row read.

    ``units = sequences ceil(heads / 64) ceil(context / 128)``; the block floor counts sequences ceil(heads / 64).
    Corrected over context and sequences heads.
    """
    row = kv_rank + rope_dim
    groups = whole(heads / 64.0)
    units = sequences * groups
    if form.splits_kv:
        units = units * whole(context / KV_BLOCK)
    busy = at_most(form.fill * at_most(units, machine.sms) / machine.sms, 1.0)
    traffic = sequences * (context * row * kv_bytes + heads * 2.0 * (row + kv_rank))
    memory = traffic / (form.memory_efficiency * machine.bytes_per_s * at_least(busy, 1e-9))
    blocks = sequences * (groups * form.block_s / machine.sms)
    least = 2.0 * sequences * heads * context * (row + kv_rank) / machine.flops_per_s
    took = form.start_s + p_norm(form.order, least / form.compute_efficiency, memory, blocks)
    ideal = at_least(least, traffic / machine.bytes_per_s)
    return bent(took, ideal, form.bend, context, sequences * heads)


def experts_s(
    tokens: FloatArray,
    pairs: FloatArray,
    active: FloatArray,
    hidden: float,
    intermediate: float,
    gated: bool,
    form: ExpertsForm,
    machine: Machine,
    weight_bytes: float,
    activation_bytes: float = 2.0,
) -> FloatArray:
    """Time [s] of the routed experts of one GPU, shape of `tokens`.

    Two grouped GEMMs over r = pairs / active rows per expert, the best of four row tiles b:

        rows = ceil(r / b) active,  t1 = rows ceil(g I / 128),  t2 = rows ceil(H / 128),  g = 2 gated, 1 otherwise
        GEMM1 = p_norm(max(t1, sms) 2 b 128 H / (e_c e_b peak),
                       (active g I H w + pairs (H a + 2 g I)) / (e_m bandwidth min(1, fill t1 / sms)))
        GEMM2 likewise with I in place of H
        time  = start + token_s tokens + GEMM1 + GEMM2

    Corrected over r and I.

    Args:
        tokens: tokens this GPU routes.
        pairs: (token, expert) pairs that fall on its experts (`planner.roofline.expert_load.routed_load`).
        active: its experts that get at least one pair.
        hidden: H.
        intermediate: I, width of an expert on this GPU.
        gated: two matrices into it instead of one.
        form: coefficients.
        machine: peaks.
        weight_bytes: bytes per weight, scales included.
        activation_bytes: bytes per activation read.
    """
    matrices = np.where(gated, 2.0, 1.0)
    active = np.maximum(active, 1e-9)
    width = matrices * intermediate
    best = np.full(np.shape(tokens), np.inf)
    for rows in EXPERT_TILES:
        rate = form.compute_efficiency / (1.0 + form.small_tile_loss * (128.0 / rows - 1.0)) * machine.flops_per_s
        tiles = np.ceil(pairs / active / rows) * active
        took = np.zeros(np.shape(tokens))
        for inner, outer in ((hidden, width), (intermediate, hidden)):
            count = tiles * np.ceil(outer / 128.0)
            compute = np.maximum(count, machine.sms) * 2.0 * rows * 128.0 * inner / rate
            traffic = active * outer * inner * weight_bytes + pairs * (inner * activation_bytes + 2.0 * outer)
            busy = np.clip(form.fill * count / machine.sms, 1e-9, 1.0)
            took = took + p_norm(form.order, compute, traffic / (form.memory_efficiency * machine.bytes_per_s * busy))
        best = np.minimum(best, took)
    took = form.start_s + form.token_s * np.asarray(tokens) + best
    weights = active * (width + intermediate) * hidden * weight_bytes
    least = 2.0 * pairs * (width + intermediate) * hidden / machine.flops_per_s
    return bent(took, np.maximum(least, weights / machine.bytes_per_s), form.bend, pairs / active, intermediate)


def collective_s(payload_bytes: Value, form: CollectiveForm, link_bytes_per_s: float) -> Value:
    """Time [s] of a collective: p_norm(start, payload / (e link)).

    `payload_bytes` is the whole buffer for an all-reduce, which a switch that reduces needs to send only once (NVLink
    SHARP), and (n - 1) / n of it for all-gather (gathered total), reduce-scatter (input total) and all-to-all (what
    one rank sends): what crosses each GPU's link in one direction. `link_bytes_per_s` is that link's rate per
    direction. Conventions of nccl-tests, doc/PERFORMANCE.md, section "Bus bandwidth". Corrected over the payload.
    """
    ideal = payload_bytes / link_bytes_per_s
    took = p_norm(form.order, payload_bytes * 0.0 + form.start_s, ideal / form.link_efficiency)
    return bent(took, ideal, form.bend, payload_bytes, 1.0)


def exchanged_bytes(
    tokens: Value, hidden: float, experts_per_token: float, ranks: float, bytes_per_value: float, per_expert: bool
) -> Value:
    """Bytes one GPU sends to the others when `tokens` of its tokens go to experts spread over `ranks` GPUs.

    A token goes once to every expert it uses (`per_expert`) or once to every GPU that holds one of them, which for
    evenly spread experts are ``ranks (1 - (1 - 1 / ranks)^experts_per_token)``; of either, (ranks - 1) / ranks leave.

    >>> exchanged_bytes(2.0, 10, 1, 2, 1.0, per_expert=False), exchanged_bytes(2.0, 10, 4, 2, 1.0, per_expert=True)
    (10.0, 40.0)
    """
    copies = experts_per_token if per_expert else ranks * (1.0 - (1.0 - 1.0 / ranks) ** experts_per_token)
    return tokens * (hidden * bytes_per_value * copies * (ranks - 1.0) / ranks)


def elementwise_s(traffic_bytes: Value, form: ElementwiseForm, machine: Machine) -> Value:
    """Time [s] of a pass over memory: start + traffic / (e_m bandwidth)."""
    return form.start_s + traffic_bytes / (form.memory_efficiency * machine.bytes_per_s)
