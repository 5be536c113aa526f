"""How long latent attention over chosen keys takes, and the index that chooses them: forms of whole modules.

Forms, coefficients and their conventions as in `planner.roofline.kernels`. Engines differ in what they run: a kernel
that takes as long for few keys as for all (vLLM), dense attention for short prompts (SGLang), another one for each
number of heads. One form for each phase holds attention and index, since that is how they were measured; a layer that
takes the choice of another has the first part only.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.roofline.arithmetic import Value, at_least, at_most, p_norm, rounded_up
from planner.roofline.attention_kernels import attended_pairs
from planner.roofline.index_kernels import INDEX_SCALE_BYTES, SPARSE_HEAD_GROUP
from planner.roofline.kernel_forms import ChosenDecodeForm, ChosenPrefillForm, GpuPeaks


@dataclass(frozen=True)
class ChosenHeads:
    """The heads of latent attention over chosen keys on one GPU.

    Attributes:
        heads: query heads on this GPU.
        kv_rank: channels of the latent vector.
        rope_dim: channels of the key that carry the position.
        top_k: keys a query attends to at most.
        kv_bytes: bytes per cached value.
    """

    heads: float
    kv_rank: float
    rope_dim: float
    top_k: float
    kv_bytes: float

    @property
    def groups(self) -> float:
        """Groups of query heads that thread blocks work on, filled up."""
        return rounded_up(self.heads / SPARSE_HEAD_GROUP)

    @property
    def group_flops(self) -> float:
        """FLOPs of one key in one group, absorbed."""
        return 2.0 * SPARSE_HEAD_GROUP * (2.0 * self.kv_rank + self.rope_dim)

    @property
    def least_flops(self) -> float:
        """FLOPs of one key, absorbed, with no head filled up."""
        return 2.0 * self.heads * (2.0 * self.kv_rank + self.rope_dim)

    @property
    def row_bytes(self) -> float:
        """Bytes of one latent row."""
        return (self.kv_rank + self.rope_dim) * self.kv_bytes


def chosen_prefill_s(
    chunks: Value, new: Value, past: Value, shape: ChosenHeads, form: ChosenPrefillForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of latent attention of prompt chunks over chosen keys (means over the chunks are allowed).

    ``start + chunks keys 2 * 64 (2 kv_rank + rope_dim) groups^growth / (e_c peak)`` with

        groups = ceil(heads / 64)
        keys   = short_share new top_k + (1 - short_share) pairs, pairs of min(keys seen, top_k)

    but not below the pairs at peak, which a growth over more heads than were measured would beat.

    Args:
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings, shape of `chunks`.
        past: tokens each has cached, shape of `chunks`.
        shape: heads and their cache.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form = ChosenPrefillForm(0.0, 0.5, 1.0, 1.0, 0.0, 1.0, 0.0)
    >>> heads = ChosenHeads(16.0, 512.0, 64.0, 2048.0, 1.0)
    >>> f"{chosen_prefill_s(1.0, 4096.0, 0.0, heads, form, GpuPeaks(1e15, 4e12, 132.0)):.6f}"  # as `sparse_prefill_s`
    '0.002336'
    """
    pairs = attended_pairs(new, past, shape.top_k)
    keys = form.short_share * shape.top_k * new + (1.0 - form.short_share) * pairs
    growth: float = shape.groups**form.head_growth
    key_s = shape.group_flops * growth / (form.compute_efficiency * peaks.flops_per_s)
    least = chunks * pairs * (shape.least_flops / peaks.flops_per_s)
    return at_least(form.start_s + chunks * keys * key_s, least)


def chosen_prefill_index_s(
    chunks: Value, new: Value, past: Value, heads: float, head_dim: float, form: ChosenPrefillForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of scores and selection for prompt chunks.

    ``index_start + chunks max(pairs (2 heads d / (e_i peak) + select / sms), (past + new) (d + 4) / bandwidth)``: a
    few new tokens wait for the keys.

    Args:
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings, shape of `chunks`.
        past: tokens each has cached, shape of `chunks`.
        heads: of the index.
        head_dim: channels of an index head.
        form: coefficients.
        peaks: of the GPU, in 8 bit.

    Returns:
        Duration, shape of `chunks` [s].
    """
    pair_s = 2.0 * heads * head_dim / (form.index_efficiency * peaks.flops_per_s) + form.select_s / peaks.sms
    keys_s = (past + new) * ((head_dim + INDEX_SCALE_BYTES) / peaks.bytes_per_s)
    return form.index_start_s + chunks * at_least(attended_pairs(new, past, 0.0) * pair_s, keys_s)


def chosen_decode_s(
    queries: Value, context: Value, shape: ChosenHeads, form: ChosenDecodeForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of latent attention of decodes over chosen keys.

    ``p_norm(start, queries keys (row_bytes / bandwidth + 2 * 64 (2 kv_rank + rope_dim) groups / (e_c peak)))`` with
    ``keys = short_share top_k + (1 - short_share) min(context, top_k)``; every query reads the keys it chose.

    Args:
        queries: new tokens of all sequences, any shape.
        context: cached tokens of each, its new one included, shape of `queries`.
        shape: heads and their cache.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `queries` [s].

    >>> form = ChosenDecodeForm(0.0, 0.5, 0.0, 1.0, 0.0, 1.0)
    >>> heads = ChosenHeads(16.0, 512.0, 64.0, 2048.0, 1.0)
    >>> f"{chosen_decode_s(64.0, 9999.0, heads, form, GpuPeaks(1e15, 4e12, 132.0)) * 1e6:.2f}"  # 64 x 2048 rows
    '55.38'
    """
    keys = form.short_share * shape.top_k + (1.0 - form.short_share) * at_most(context, shape.top_k)
    key_s = shape.group_flops * shape.groups / (form.compute_efficiency * peaks.flops_per_s)
    work = queries * keys * (shape.row_bytes / peaks.bytes_per_s + key_s)
    return p_norm(form.order, queries * 0.0 + form.start_s, work)


def chosen_decode_index_s(
    sequences: Value, context: Value, head_dim: float, form: ChosenDecodeForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of scores and selection for decodes: ``index_start + sequences context (d + 4) / (e_i bandwidth)``.

    Args:
        sequences: sequences that decode, any shape.
        context: cached tokens of each, its new one included, shape of `sequences`.
        head_dim: channels of an index key.
        form: coefficients.
        peaks: of the GPU.

    Returns:
        Duration, shape of `sequences` [s].
    """
    key_s = (head_dim + INDEX_SCALE_BYTES) / (form.index_efficiency * peaks.bytes_per_s)
    return form.index_start_s + sequences * context * key_s
