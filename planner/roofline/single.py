"""One step at a time: what the vectorised formulas say, in plain floats and with all constants worked out beforehand.

The simulator asks for one step after another, where a formula over arrays costs a hundred times its arithmetic. Here
are the two things that a step with prompts needs: interpolation in a table (`Plane`) and the attention of its prompts
(`prompts_of`). The equations are those of `planner.roofline.kernels` and of `planner.roofline.operators`, in the same
letters; tests hold the two against each other.

Prompts come as four numbers, those of `Load`: chunks, and the mean new, past and cached tokens of one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.llm import BYTES_PER_VALUE
from planner.roofline.kernel_forms import Bend, LatentPrefillForm, Machine, PrefillForm
from planner.roofline.kernels import QUERY_BLOCK, attended_pairs
from planner.roofline.machine import Silicon
from planner.roofline.operators import (
    ACTIVATION_BYTES,
    RECURRENCE_CHUNK,
    STATE_BYTES,
    GroupedDecode,
    GroupedPrefill,
    IndexScores,
    LatentDecode,
    LatentPrefill,
    Operator,
    Recurrence,
)

FloatArray = NDArray[np.float64]
Prompts = Callable[[float, float, float, float], float]
"""Seconds of an operator over all its layers from (chunks, new, past, cached), chunks > 0."""


class Plane:
    """A table over two grids of at least two knots each: linear between them, constant beyond.

    >>> plane = Plane(np.array([0.0, 2.0]), np.array([0.0, 1.0]), np.array([[0.0, 1.0], [4.0, 5.0]]))
    >>> plane.at(1.0, 0.5), plane.at(-1.0, 9.0)
    (2.5, 1.0)
    """

    __slots__ = ("_first", "_second", "_values")

    def __init__(self, first: FloatArray, second: FloatArray, values: FloatArray) -> None:
        self._first: list[float] = first.tolist()
        self._second: list[float] = second.tolist()
        self._values: list[list[float]] = values.tolist()

    def at(self, first: float, second: float) -> float:
        """The value at one point."""
        i, u = _cell(self._first, first)
        j, v = _cell(self._second, second)
        near, far, w = self._values[i], self._values[i + 1], 1.0 - v
        return (near[j] * w + near[j + 1] * v) * (1.0 - u) + (far[j] * w + far[j + 1] * v) * u


def _cell(grid: list[float], x: float) -> tuple[int, float]:
    """Cell of a grid and the position in it, in [0, 1]."""
    if x <= grid[0]:
        return 0, 0.0
    if x >= grid[-1]:
        return len(grid) - 2, 1.0
    i = bisect_right(grid, x) - 1
    low = grid[i]
    return i, (x - low) / (grid[i + 1] - low)


def prompts_of(operators: Sequence[Operator], silicon: Silicon) -> Prompts:
    """`operator_seconds` of a step's prompts, summed over operators that depend on its shape; decodes take no part."""
    parts: list[Prompts] = []
    for one in operators:
        if isinstance(one, GroupedPrefill):
            parts.append(_grouped(one, silicon))
        elif isinstance(one, LatentPrefill):
            parts.append(_latent(one, silicon))
        elif isinstance(one, IndexScores):
            parts.append(_index(one, silicon))
        elif isinstance(one, Recurrence):
            parts.append(_recurrence(one, silicon))
        elif not isinstance(one, GroupedDecode | LatentDecode):
            raise AssertionError(f"no plain form of {type(one).__name__}")

    def seconds(chunks: float, new: float, past: float, cached: float) -> float:
        total = 0.0
        for part in parts:
            total += part(chunks, new, past, cached)
        return total

    return parts[0] if len(parts) == 1 else seconds


def _grouped(one: GroupedPrefill, silicon: Silicon) -> Prompts:
    """`GroupedPrefill`: `prefill_attention_s` where measured, never below the roofline."""
    window, count, heads, d = one.window, one.count, one.heads, one.head_dim
    peak, bandwidth = _peaks(one, silicon)
    value_bytes = BYTES_PER_VALUE[one.kv_cache]
    kv_bytes = 2.0 * one.kv_heads * d * value_bytes
    pair_s, kv_s = 4.0 * heads * d / peak, kv_bytes / bandwidth
    token_s = (kv_bytes + 2.0 * heads * d * ACTIVATION_BYTES) / bandwidth

    def roof_s(chunks: float, new: float, cached: float, pairs: float) -> float:
        read = window + new if window and cached > window else cached + new
        flops_s, traffic_s = pairs * pair_s, read * kv_s + new * token_s
        return chunks * (flops_s if flops_s > traffic_s else traffic_s)

    form = silicon.form(PrefillForm, *one.fit_keys)
    if form is None:
        return lambda chunks, new, past, cached: count * roof_s(chunks, new, cached, attended_pairs(new, past, window))
    machine = silicon.machine(one.kv_cache.arithmetic)
    row_tokens = form.row_tokens * (form.window_row_growth if window else 1.0)
    kernel = _kernel(form, machine, form.compute_efficiency(d), row_tokens, heads, 4.0 * d)
    new_s = d * (4.0 * heads + 2.0 * one.kv_heads * (2.0 + 2.0 * value_bytes)) / machine.bytes_per_s
    past_s, start_s = kv_bytes / machine.bytes_per_s, form.start_s

    def seconds(chunks: float, new: float, past: float, cached: float) -> float:
        pairs, read, longest = attended_pairs(new, past, window), past, past + new
        if window:
            read, longest = min(past, window), min(longest, window + QUERY_BLOCK)
        took, factor, ideal = kernel(chunks, new, past, pairs, longest, chunks * (new * new_s + read * past_s))
        return count * max((start_s + took) * factor, ideal, roof_s(chunks, new, cached, pairs))

    return seconds


def _latent(one: LatentPrefill, silicon: Silicon) -> Prompts:
    """`LatentPrefill`: the quicker of its two forms, never below the roofline.

    The forms differ in their channels alone, to which all of `latent_prefill_s` beyond its start is in proportion.
    """
    top_k, count, heads = one.top_k, one.count, one.heads
    peak, bandwidth = _peaks(one, silicon)
    expanded, absorbed = (key + value for key, value in one.forms)
    making_flops = 2.0 * one.kv_rank * heads * (one.key_dim - one.rope_dim + one.value_dim)
    row_s = (one.kv_rank + one.rope_dim) * BYTES_PER_VALUE[one.kv_cache] / bandwidth
    token_s = row_s + heads * expanded * ACTIVATION_BYTES / bandwidth
    channel_s, making_s = 2.0 * heads / peak, making_flops / peak

    def roof_s(chunks: float, new: float, cached: float, pairs: float) -> float:
        flops_s = min(expanded * pairs * channel_s + cached * making_s, absorbed * pairs * channel_s)
        traffic_s = cached * row_s + new * token_s
        return chunks * (flops_s if flops_s > traffic_s else traffic_s)

    form = silicon.form(LatentPrefillForm, *one.fit_keys)
    if form is None:
        return lambda chunks, new, past, cached: count * roof_s(chunks, new, cached, attended_pairs(new, past, top_k))
    machine = silicon.machine(one.kv_cache.arithmetic)
    kernel = _kernel(form, machine, form.compute_efficiency, form.row_tokens, heads, 2.0)
    read_s, start_s = heads * 2.0 / machine.bytes_per_s, form.start_s
    made_s = making_flops / (form.compute_efficiency * machine.flops_per_s)

    def seconds(chunks: float, new: float, past: float, cached: float) -> float:
        seen = min(past, top_k) if top_k else past
        pairs = attended_pairs(new, seen, 0.0)
        took, factor, ideal = kernel(chunks, new, seen, pairs, seen + new, chunks * (2.0 * new + seen) * read_s)
        first = max((start_s + expanded * took) * factor, expanded * ideal) + made_s * chunks * cached
        second = max((start_s + absorbed * took) * factor, absorbed * ideal)
        if top_k and past + new > top_k:
            pairs = attended_pairs(new, past, top_k)
        return count * max(min(first, second), roof_s(chunks, new, cached, pairs))

    return seconds


Kernel = Callable[[float, float, float, float, float, float], tuple[float, float, float]]


def _kernel(
    form: PrefillForm | LatentPrefillForm,
    machine: Machine,
    efficiency: float,
    row_tokens: float,
    heads: float,
    pair_flops: float,
) -> Kernel:
    """What the two forms of prefill attention share: p_norm(compute, memory) [s], its correction, and the ideal [s].

    Of (chunks, new, past, pairs, longest row, traffic at full bandwidth [s]); `pair_flops` are those of one head.
    """
    flops_per_s, order, memory_efficiency = machine.flops_per_s, form.order, form.memory_efficiency
    pair_s, ideal_s = pair_flops / (efficiency * flops_per_s), heads * pair_flops / flops_per_s
    block = form.block_share * QUERY_BLOCK * machine.sms
    factor = None if form.bend is None else _factor(form.bend)

    def kernel(
        chunks: float, new: float, past: float, pairs: float, longest: float, traffic_s: float
    ) -> tuple[float, float, float]:
        work, least = chunks * heads * (pairs + row_tokens * new), block * (longest + row_tokens)
        compute, memory = (work if work > least else least) * pair_s, traffic_s / memory_efficiency
        more, less = (compute, memory) if compute > memory else (memory, compute)
        took = more * (1.0 + (less / more) ** order) ** (1.0 / order)
        if factor is None:
            return took, 1.0, 0.0
        tokens, flops_s = past + new, chunks * pairs * ideal_s
        return took, factor(tokens, chunks * new / tokens * heads), flops_s if flops_s > traffic_s else traffic_s

    return kernel


def _factor(bend: Bend) -> Callable[[float, float], float]:
    """`Bend.factor` of two sizes > 0."""
    first, second, table = (np.array(values) for values in (bend.first_log2, bend.second_log2, bend.log_factor))
    if len(first) == 1:  # a plane needs two knots
        first, table = np.append(first, first + 1.0), np.vstack([table, table])
    if len(second) == 1:
        second, table = np.append(second, second + 1.0), np.hstack([table, table])
    at, log2, exp = Plane(first, second, table).at, math.log2, math.exp
    return lambda one, other: exp(at(log2(one), log2(other)))


def _index(one: IndexScores, silicon: Silicon) -> Prompts:
    """`IndexScores`, of which no kernel was measured."""
    peak, bandwidth = _peaks(one, silicon)
    pair_s, token_s, count = 2.0 * one.heads * one.head_dim / peak, one.head_dim / bandwidth, one.count

    def seconds(chunks: float, new: float, past: float, cached: float) -> float:
        return count * chunks * max(attended_pairs(new, past, 0.0) * pair_s, (cached + new) * token_s)

    return seconds


def _recurrence(one: Recurrence, silicon: Silicon) -> Prompts:
    """`Recurrence`, of which no kernel was measured."""
    peak, bandwidth = _peaks(one, silicon)
    state, channels = one.heads * one.key_dim * one.value_dim, one.heads * (one.key_dim + one.value_dim)
    token_flops_s = 4.0 * (state + RECURRENCE_CHUNK * channels) / peak
    state_s, token_s = 2.0 * STATE_BYTES * state / bandwidth, 2.0 * channels * ACTIVATION_BYTES / bandwidth
    token_s, count = token_s + state_s / RECURRENCE_CHUNK, one.count

    def seconds(chunks: float, new: float, past: float, cached: float) -> float:
        return count * chunks * max(new * token_flops_s, state_s + new * token_s)

    return seconds


def _peaks(one: Operator, silicon: Silicon) -> tuple[float, float]:
    """FLOP/s and bytes/s of an operator's roofline."""
    return silicon.machine(one.dtype).flops_per_s, silicon.sku.hbm_bandwidth_bytes_per_s.value
