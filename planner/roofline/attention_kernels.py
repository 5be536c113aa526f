"""How long attention takes: kernel forms of prefill and decode over grouped heads and over latent rows.

Forms, coefficients and their conventions as in `planner.roofline.kernels`; means over a batch are allowed where a form
says so. Causal prefill follows FlashAttention-2 (Dao 2023, arXiv:2307.08691), decoding split-KV kernels (Dao et al.
2023, Flash-Decoding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.roofline.arithmetic import Value, at_least, at_most, p_norm, rounded_up
from planner.roofline.kernel_forms import (
    DecodeForm,
    GpuPeaks,
    LatentDecodeForm,
    LatentPrefillForm,
    PrefillForm,
    corrected_s,
)

KV_BLOCK = 128
"""Keys one thread block of a split-KV decode kernel walks [tokens]."""
QUERY_BLOCK = 128
"""Query rows of one thread block of a prefill kernel [tokens]."""
LATENT_HEAD_GROUP = 64.0
"""Query heads one thread block of a latent decode kernel works on."""
LEAST_BUSY_SHARE = 1e-9
"""Smallest share of the processors in a denominator, for steps that hold nothing. A guard, not a choice."""


@dataclass(frozen=True)
class AttentionHeads:
    """The heads of softmax attention on one GPU and what their cache holds.

    Attributes:
        heads: query heads on this GPU.
        kv_heads: KV heads on this GPU.
        head_dim: channels of a query or key head.
        kv_bytes: bytes per cached value.
        window: sliding window [tokens], 0 = none.
        value_dim: channels of a value head, 0 = those of a key head.
    """

    heads: float
    kv_heads: float
    head_dim: float
    kv_bytes: float
    window: float = 0.0
    value_dim: float = 0.0

    @property
    def width(self) -> float:
        """Mean channels of a key and a value head: work and traffic are in proportion to it."""
        return (self.head_dim + (self.value_dim or self.head_dim)) / 2.0


def attended_pairs(new: Value, past: Value, window: float) -> Value:
    """Query-key pairs of causal attention: sum over i = 1..new of min(past + i, window).

    Args:
        new: new tokens, any shape.
        past: tokens before them, shape of `new`.
        window: most tokens a query sees; 0 = no window.

    Returns:
        Pairs, shape of `new`.

    >>> attended_pairs(4.0, 0.0, 0), attended_pairs(4.0, 10.0, 0), attended_pairs(4.0, 0.0, 2)
    (10.0, 50.0, 7.0)
    """
    everything = new * past + new * (new + 1.0) / 2.0
    if not window:
        return everything
    growing = at_least(at_most(new, window - past), 0.0)
    return growing * past + growing * (growing + 1.0) / 2.0 + (new - growing) * window


def prefill_attention_s(
    chunks: Value, new: Value, past: Value, shape: AttentionHeads, form: PrefillForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of causal attention for chunks of prompts (means over the chunks are allowed).

    ``start + p_norm(compute, memory)`` with

        compute = 4 chunks heads d (pairs + row_tokens new) / (e_d peak), at least block_share of one thread block:
                  4 * 128 d (longest row + row_tokens) sms / (e_d peak)
        memory  = chunks (new d (4 heads + 2 kv_heads (2 + 2 kv_bytes)) + past 2 kv_heads d kv_bytes) / (e_m bandwidth)

    with row_tokens times window_row_growth in a windowed layer and d the mean of key and value channels (e_d is that of
    the key channels). Corrected over past + new and the heads of all chunks,
    chunks heads new / (past + new). Exact per chunk; means of `new` and `past` over the chunks are close while chunks
    are alike.

    Args:
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings, shape of `chunks`.
        past: tokens each has cached, shape of `chunks`.
        shape: heads and their cache.
        form: coefficients.
        peaks: of the GPU, in the format of the cache.

    Returns:
        Duration, shape of `chunks` [s].
    """
    heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.width
    kv_bytes, window = shape.kv_bytes, shape.window
    rate = form.compute_efficiency(shape.head_dim) * peaks.flops_per_s
    row_tokens = form.row_tokens * (form.window_row_growth if window else 1.0)
    compute = 4.0 * chunks * heads * head_dim * (attended_pairs(new, past, window) + row_tokens * new) / rate
    longest = at_most(past + new, window + QUERY_BLOCK) if window else past + new
    block = 4.0 * QUERY_BLOCK * head_dim * (longest + row_tokens) * peaks.sms / rate
    compute = at_least(compute, form.block_share * block)
    read = at_most(past, window) if window else past
    values = new * head_dim * (4.0 * heads + 2.0 * kv_heads * (2.0 + 2.0 * kv_bytes))
    traffic = chunks * (values + read * 2.0 * kv_heads * head_dim * kv_bytes)
    took = form.start_s + p_norm(form.order, compute, traffic / (form.memory_efficiency * peaks.bytes_per_s))
    least = 4.0 * chunks * heads * head_dim * attended_pairs(new, past, window) / peaks.flops_per_s
    ideal = at_least(least, traffic / peaks.bytes_per_s)
    return corrected_s(took, ideal, form.correction, past + new, chunks * new / (past + new) * heads)


def decode_attention_s(
    sequences: Value, context: Value, shape: AttentionHeads, form: DecodeForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of one new token for many sequences over their caches (a mean context is allowed).

    ``start + p_norm(compute, memory, blocks)`` with

        units   = sequences kv_heads ceil(context / 128)       (without the last factor where the kernel does not split)
        memory  = sequences (2 kv_heads context d b + 4 heads d + 2 kv_heads d (2 + b))
                  / (e_m bandwidth min(1, fill min(units, sms) / sms))
        blocks  = sequences kv_heads (heads / kv_heads)^growth block_s / sms     (group_growth, or window_growth)
        compute = 4 sequences heads context d / (e_c peak)

    where d is the mean of key and value channels and e_m, that of the key channels, ungrouped_efficiency times smaller
    when heads = kv_heads. Corrected over context and sequences
    kv_heads.

    Args:
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included (cut to the window), shape of `sequences`.
        shape: heads and their cache.
        form: coefficients.
        peaks: of the GPU, in the format of the cache.

    Returns:
        Duration, shape of `sequences` [s].
    """
    heads, kv_heads, head_dim = shape.heads, shape.kv_heads, shape.width
    kv_bytes, window = shape.kv_bytes, shape.window
    context = at_most(context, window) if window else context
    ungrouped = np.equal(heads, kv_heads)
    plain = bool(window) | ungrouped
    split: Any = np.where(plain, min(form.splits_kv, form.splits_plain), form.splits_kv)
    units = sequences * kv_heads * (1.0 + split * (rounded_up(context / KV_BLOCK) - 1.0))
    busy = at_most(form.fill * at_most(units, peaks.sms) / peaks.sms, 1.0)
    own = 4.0 * heads * head_dim + 2.0 * kv_heads * head_dim * (2.0 + kv_bytes)
    traffic = sequences * (2.0 * kv_heads * context * head_dim * kv_bytes + own)
    efficiency: Any = form.memory_efficiency(shape.head_dim) * np.where(ungrouped, form.ungrouped_efficiency, 1.0)
    memory = traffic / (efficiency * peaks.bytes_per_s * at_least(busy, LEAST_BUSY_SHARE))
    growth = form.window_growth if window else form.group_growth
    group: Any = (heads / kv_heads) ** growth
    blocks = sequences * (kv_heads * group * form.block_s / peaks.sms)
    least = sequences * (4.0 * heads * head_dim) * context / peaks.flops_per_s
    took: Value = form.start_s + p_norm(form.order, least / form.compute_efficiency, memory, blocks)
    ideal = at_least(least, traffic / peaks.bytes_per_s)
    return corrected_s(took, ideal, form.correction, context, sequences * kv_heads)


def latent_prefill_s(
    chunks: Value,
    new: Value,
    past: Value,
    heads: float,
    key_dim: float,
    value_dim: float,
    form: LatentPrefillForm,
    peaks: GpuPeaks,
) -> Value:
    """Time [s] of latent attention's prefill kernel, keys and values expanded per head.

    As `prefill_attention_s` with 2 heads (key_dim + value_dim) FLOPs per pair and 16-bit keys and values of all tokens.

    Args:
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings, shape of `chunks`.
        past: tokens each has cached, shape of `chunks`.
        heads: query heads on this GPU.
        key_dim: channels of a key.
        value_dim: channels of a value.
        form: coefficients.
        peaks: of the GPU, in the format of the cache.

    Returns:
        Duration, shape of `chunks` [s].
    """
    rate = form.compute_efficiency * peaks.flops_per_s
    per_pair = 2.0 * (key_dim + value_dim)
    compute = chunks * heads * per_pair * (attended_pairs(new, past, 0.0) + form.row_tokens * new) / rate
    block = QUERY_BLOCK * per_pair * (past + new + form.row_tokens) * peaks.sms / rate
    compute = at_least(compute, form.block_share * block)
    traffic = chunks * heads * (key_dim + value_dim) * 2.0 * (2.0 * new + past)
    took = form.start_s + p_norm(form.order, compute, traffic / (form.memory_efficiency * peaks.bytes_per_s))
    least = chunks * heads * per_pair * attended_pairs(new, past, 0.0) / peaks.flops_per_s
    ideal = at_least(least, traffic / peaks.bytes_per_s)
    return corrected_s(took, ideal, form.correction, past + new, chunks * new / (past + new) * heads)


def latent_decode_s(
    sequences: Value,
    context: Value,
    heads: float,
    kv_rank: float,
    rope_dim: float,
    form: LatentDecodeForm,
    peaks: GpuPeaks,
    kv_bytes: float,
) -> Value:
    """Time [s] of absorbed latent decode: all heads read one shared row per cached token.

    As `decode_attention_s` with 2 heads (2 kv_rank + rope_dim) FLOPs per cached token, ``units = sequences
    ceil(heads / 64) ceil(context / 128)``, and a block floor that counts sequences ceil(heads / 64). Corrected over
    context and sequences heads.

    Args:
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included, shape of `sequences`.
        heads: query heads on this GPU.
        kv_rank: channels of the latent vector.
        rope_dim: channels of the key that carry the position.
        form: coefficients.
        peaks: of the GPU, in the format of the cache.
        kv_bytes: bytes per cached value.

    Returns:
        Duration, shape of `sequences` [s].
    """
    row = kv_rank + rope_dim
    groups = rounded_up(heads / LATENT_HEAD_GROUP)
    units = sequences * groups
    if form.splits_kv:
        units = units * rounded_up(context / KV_BLOCK)
    busy = at_most(form.fill * at_most(units, peaks.sms) / peaks.sms, 1.0)
    traffic = sequences * (context * row * kv_bytes + heads * 2.0 * (row + kv_rank))
    memory = traffic / (form.memory_efficiency * peaks.bytes_per_s * at_least(busy, LEAST_BUSY_SHARE))
    blocks = sequences * (groups * form.block_s / peaks.sms)
    least = 2.0 * sequences * heads * context * (row + kv_rank) / peaks.flops_per_s
    took = form.start_s + p_norm(form.order, least / form.compute_efficiency, memory, blocks)
    ideal = at_least(least, traffic / peaks.bytes_per_s)
    return corrected_s(took, ideal, form.correction, context, sequences * heads)
