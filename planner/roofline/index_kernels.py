"""How long sparse attention takes: kernel forms of the index, its selection, and prompts over the chosen keys.

Forms, coefficients and their conventions as in `planner.roofline.kernels`. The index is that of DeepSeek sparse
attention (DeepSeek-AI 2025, DeepSeek-V3.2-Exp: lightning indexer and token selection).
"""

from __future__ import annotations

from typing import Any

from planner.roofline.arithmetic import Value, at_least, at_most, p_norm, rounded_up
from planner.roofline.kernel_forms import GpuPeaks, IndexScoresForm, IndexSelectionForm, SparsePrefillForm

INDEX_SCALE_BYTES = 4.0
"""Scale of an 8-bit index key (DeepSeek-V3.2-Exp, ``inference/model.py``, class Indexer)."""
SCORE_BYTES = 4.0
"""Of a score, which is in 32 bit (``fp8_mqa_logits`` of DeepGEMM)."""

SPARSE_HEAD_GROUP = 64.0
"""Query heads one thread block works on; fewer are filled up (FlashMLA, ``flash_mla_sparse_fwd``)."""


def index_scores_s(
    pairs: Value, keys: Value, heads: float, head_dim: float, form: IndexScoresForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of the scores of a sparse index.

    ``start + p_norm(compute, memory)`` with

        compute = 2 heads d pairs / (e_c peak)
        memory  = keys (d + 4) / (e_m bandwidth)

    Scores grow with pairs as the FLOPs do; writing them is part of the share of peak.

    Args:
        pairs: query-key pairs, any shape.
        keys: cached keys that are read, shape of `pairs`.
        heads: of the index.
        head_dim: channels of a head and of a key.
        form: coefficients.
        peaks: of the GPU, in 8 bit.

    Returns:
        Duration, shape of `pairs` [s].

    >>> form = IndexScoresForm(start_s=3e-6, compute_efficiency=0.5, memory_efficiency=0.5, order=20.0)
    >>> f"{index_scores_s(1e8, 2e4, 32.0, 128.0, form, GpuPeaks(2e15, 4e12, 132.0)):.6f}"  # 3e-6 + 8.192e11 / 1e15
    '0.000822'
    """
    compute = pairs * (2.0 * heads * head_dim / (form.compute_efficiency * peaks.flops_per_s))
    traffic = keys * (head_dim + INDEX_SCALE_BYTES)
    return form.start_s + p_norm(form.order, compute, traffic / (form.memory_efficiency * peaks.bytes_per_s))


def index_selection_s(rows: Value, context: Value, form: IndexSelectionForm, peaks: GpuPeaks) -> Value:
    """Time [s] of selecting the largest scores of each query; 0 where there is nothing to select.

    ``start + max(1, rows / sms) (row_s + key_s context)``, but not below 4 rows context / bandwidth: what was measured
    in the cache holds no longer where the scores of all rows leave it.

    Args:
        rows: queries that see more keys than they attend to, any shape.
        context: mean keys that these see, shape of `rows`.
        form: coefficients.
        peaks: of the GPU.

    Returns:
        Duration, shape of `rows` [s].

    >>> form = IndexSelectionForm(start_s=2e-6, row_s=8e-6, key_s=4e-10)
    >>> f"{index_selection_s(1.0, 100_000.0, form, GpuPeaks(2e15, 4e12, 132.0)):.7f}"  # 2e-6 + 8e-6 + 4e-5
    '0.0000500'
    """
    there: Any = rows > 0.0
    selected_s = form.start_s + at_least(rows / peaks.sms, 1.0) * (form.row_s + form.key_s * context)
    took: Value = at_least(selected_s, rows * context * (SCORE_BYTES / peaks.bytes_per_s)) * there
    return took


def selecting_rows(new: Value, past: Value, top_k: float) -> tuple[Value, Value]:
    """New tokens that see more than `top_k` keys, and the mean keys that these see.

    Args:
        new: new tokens of a chunk, any shape.
        past: tokens before them, shape of `new`.
        top_k: most keys a query attends to.

    Returns:
        Number of such tokens and their mean number of keys, both of the shape of `new`.

    >>> selecting_rows(4.0, 0.0, 2.0)  # the third and the fourth see 3 and 4 keys
    (2.0, 3.5)
    """
    seen_before = at_least(past, at_most(past * 0.0 + top_k, past + new))
    return past + new - seen_before, (past + new + seen_before + 1.0) / 2.0


def sparse_token_s(
    top_k: float, heads: float, kv_rank: float, rope_dim: float, form: SparsePrefillForm, peaks: GpuPeaks
) -> float:
    """Time [s] that all processors together need for one token of `sparse_prefill_s`.

    ``2 * 64 ceil(heads / 64) (2 kv_rank + rope_dim) top_k / (e_c peak)``

    Args:
        top_k: keys of a token.
        heads: query heads on this GPU.
        kv_rank: channels of the latent vector.
        rope_dim: channels of the key that carry the position.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration [s].
    """
    flops = 2.0 * SPARSE_HEAD_GROUP * rounded_up(heads / SPARSE_HEAD_GROUP) * (2.0 * kv_rank + rope_dim) * top_k
    return flops / (form.compute_efficiency * peaks.flops_per_s)


def sparse_prefill_s(tokens: Value, token_s: float, form: SparsePrefillForm, peaks: GpuPeaks) -> Value:
    """Time [s] of latent attention of prompts over the chosen keys, absorbed as in decoding.

    ``start + max(tokens, sms) token_s``

    Every token takes as long as one that sees all its keys, and every group of 64 heads as long as a full one, so that
    splitting heads over GPUs gains nothing below a group.

    Args:
        tokens: new tokens of all chunks, any shape.
        token_s: `sparse_token_s` [s].
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `tokens` [s].

    >>> form, gpu = SparsePrefillForm(start_s=0.0, compute_efficiency=0.5), GpuPeaks(1e15, 4e12, 132.0)
    >>> token_s = sparse_token_s(2048.0, 16.0, 512.0, 64.0, form, gpu)
    >>> f"{sparse_prefill_s(4096.0, token_s, form, gpu):.6f}"  # 4096 * 2 * 64 * 1088 * 2048 / 5e14
    '0.002336'
    """
    return form.start_s + at_least(tokens, peaks.sms) * token_s
