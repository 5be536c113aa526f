"""The index of sparse attention: kernel forms of its scores, its selection and of prompts over the keys it chose.

The index is that of DeepSeek sparse attention (DeepSeek-AI 2025, DeepSeek-V3.2-Exp: lightning indexer and token
selection). Forms, coefficients and their conventions as in `planner.roofline.kernels`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from planner.core import Constants, FloatArray, compiled, vectorized
from planner.llm import HEAD_GROUP, INDEX_SCALE_BYTES
from planner.roofline.arithmetic import Number, p_norm, pairs_of
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import GpuPeaks, IndexScoresForm, IndexSelectionForm, SparsePrefillForm
from planner.roofline.operators import OperatorWork, PromptKernel, PromptOperator, PromptWork, where_any
from planner.roofline.shape import Load

SCORE_BYTES = 4.0
"""Of a score, which is in 32 bit (``fp8_mqa_logits`` of DeepGEMM)."""


@dataclass(frozen=True)
class IndexHeads:
    """The heads of an index, which share its keys.

    Attributes:
        index_heads: of the index.
        index_dim: channels of a head and of a key.
    """

    index_heads: float
    index_dim: float


@dataclass(frozen=True)
class PromptIndex:
    """Scores and selection of an index in prompts.

    Attributes:
        ratio: tokens to a key.
        seen: tokens whose keys a query may attend to at most.
        start_s: launch floor of the selection [s].
        row_s: as in `IndexSelectionForm`.
        key_s: as in `IndexSelectionForm`.
        scores_start_s: launch floor of the scores [s].
        compute_efficiency: as in `IndexScoresForm`.
        memory_efficiency: as in `IndexScoresForm`.
        order: as in `IndexScoresForm`.
    """

    ratio: float
    seen: float
    start_s: float
    row_s: float
    key_s: float
    scores_start_s: float
    compute_efficiency: float
    memory_efficiency: float
    order: float


@vectorized(IndexHeads, IndexScoresForm, GpuPeaks)
def index_scores_s(row: Constants, _table: FloatArray, pairs: float, keys: float) -> float:
    """Time [s] of the scores of a sparse index.

    ``start + p_norm(compute, memory)`` with

        compute = 2 heads d pairs / (e_c peak)
        memory  = keys (d + 4) / (e_m bandwidth)

    Scores grow with pairs as the FLOPs do; writing them is part of the share of peak.

    Args:
        row: heads of the index, coefficients, and peaks of the GPU in 8 bit.
        pairs: query-key pairs, any shape.
        keys: cached keys that are read.

    Returns:
        Duration, shape of `pairs` [s].

    >>> form = IndexScoresForm(start_s=3e-6, compute_efficiency=0.5, memory_efficiency=0.5, order=20.0)
    >>> took = index_scores_s(1e8, 2e4, IndexHeads(32.0, 128.0), form, GpuPeaks(2e15, 4e12, 132.0))
    >>> f"{took:.6f}"  # 3e-6 + 8.192e11 / 1e15
    '0.000822'
    """
    return row.start_s + _scores_s(row, pairs, keys)


@compiled
def _scores_s(row: Constants, pairs: float, keys: float) -> float:
    compute = pairs * 2.0 * row.index_heads * row.index_dim / (row.compute_efficiency * row.flops_per_s)
    memory = keys * (row.index_dim + INDEX_SCALE_BYTES) / (row.memory_efficiency * row.bytes_per_s)
    return p_norm(row.order, compute, memory)


@vectorized(IndexSelectionForm, GpuPeaks)
def index_selection_s(row: Constants, _table: FloatArray, rows: float, context: float) -> float:
    """Time [s] of selecting the largest scores of each query; 0 where there is nothing to select.

    ``start + max(1, rows / sms) (row_s + key_s context)``, but not below 4 rows context / bandwidth: what was measured
    in the cache holds no longer where the scores of all rows leave it.

    Args:
        row: coefficients and peaks of the GPU.
        rows: queries that see more keys than they attend to, any shape.
        context: mean keys that these see.

    Returns:
        Duration, shape of `rows` [s].

    >>> form = IndexSelectionForm(start_s=2e-6, row_s=8e-6, key_s=4e-10)
    >>> f"{index_selection_s(1.0, 100_000.0, form, GpuPeaks(2e15, 4e12, 132.0)):.7f}"  # 2e-6 + 8e-6 + 4e-5
    '0.0000500'
    """
    if rows <= 0.0:
        return 0.0
    selected_s = row.start_s + max(rows / row.sms, 1.0) * (row.row_s + row.key_s * context)
    return max(selected_s, rows * context * SCORE_BYTES / row.bytes_per_s)


@vectorized()
def selecting_rows(_constants: None, _table: FloatArray, new: float, past: float, top_k: float) -> float:
    """New tokens that see more than `top_k` keys; these see ``past + new - (selecting - 1) / 2`` on average.

    Args:
        new: new tokens of a chunk, any shape.
        past: tokens before them.
        top_k: most keys a query attends to.

    Returns:
        Number of such tokens, shape of `new`.

    >>> float(selecting_rows(4.0, 0.0, 2.0))  # the third and the fourth, which see 3 and 4 keys
    2.0
    """
    return past + new - max(past, min(top_k, past + new))


@vectorized(IndexHeads, PromptIndex, GpuPeaks)
def index_prompts_s(row: Constants, table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """Time [s] of `index_scores_s` and `index_selection_s` in chunks of prompts.

    Args:
        row: heads of the index, what it does, and peaks of the GPU in 8 bit.
        table: of no effect.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.
        past: tokens before them.
        cached: the same, as many as are read.

    Returns:
        Duration, shape of `chunks` [s].
    """
    pairs, keys = chunks * pairs_of(new, past, 0.0) / row.ratio, chunks * (cached + new) / row.ratio
    rows = selecting_rows(row, table, new, past, row.seen)
    selection_s = index_selection_s(row, table, chunks * rows, (past + new - (rows - 1.0) / 2.0) / row.ratio)
    return row.scores_start_s + _scores_s(row, pairs, keys) + selection_s


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
    flops = 2.0 * HEAD_GROUP * math.ceil(heads / HEAD_GROUP) * (2.0 * kv_rank + rope_dim) * top_k
    return flops / (form.compute_efficiency * peaks.flops_per_s)


@vectorized(SparsePrefillForm, GpuPeaks)
def sparse_prefill_s(row: Constants, _table: FloatArray, tokens: float, token_s: float) -> float:
    """Time [s] of latent attention of prompts over the chosen keys, absorbed as in decoding.

    ``start + max(tokens, sms) token_s``

    Every token takes as long as one that sees all its keys, and every group of 64 heads as long as a full one, so that
    splitting heads over GPUs gains nothing below a group.

    Args:
        row: coefficients and peaks of the GPU in 16 bit.
        tokens: new tokens of all chunks, any shape.
        token_s: `sparse_token_s` [s].

    Returns:
        Duration, shape of `tokens` [s].

    >>> form, gpu = SparsePrefillForm(start_s=0.0, compute_efficiency=0.5), GpuPeaks(1e15, 4e12, 132.0)
    >>> token_s = sparse_token_s(2048.0, 16.0, 512.0, 64.0, form, gpu)
    >>> f"{sparse_prefill_s(4096.0, token_s, form, gpu):.6f}"  # 4096 * 2 * 64 * 1088 * 2048 / 5e14
    '0.002336'
    """
    return row.start_s + max(tokens, row.sms) * token_s


@dataclass(frozen=True)
class IndexScores(PromptOperator):
    """The sparse indexer scores every cached key with small heads in 8 bit: one per token (DeepSeek-V3.2) or `ratio`.

    Queries that see more than `top_k` keys select the largest scores.
    """

    heads: float
    head_dim: float
    top_k: float
    ratio: float = 1.0

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Scores of prompts, scores of decodes over a paged cache."""
        return self.scores_keys

    scores_keys = ("index_scores/prefill", "index_scores/decode")
    """Fits of the two."""

    def selection_keys(self, phase: str) -> tuple[str, ...]:
        """Selection of prompts or of decodes (`phase`): kernels of their own where keys are compressed."""
        own = (f"index_selection/compressed_{phase}",) if self.ratio > 1.0 else ()
        return (*own, "index_selection/top_k")

    @property
    def launches(self) -> float:
        """Scores and selection."""
        return 2.0 * self.count

    @property
    def heads_of_index(self) -> IndexHeads:
        """Its heads."""
        return IndexHeads(self.heads, self.head_dim)

    @property
    def prompt_work(self) -> PromptWork:
        """2 heads d FLOPs per query and cached key; every key, of d bytes, read once."""
        key = self.head_dim / self.ratio
        return PromptWork(pair_flops=2.0 * self.heads * key, cached_bytes=key, token_bytes=key)

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`index_prompts_s`."""
        scores, decodes = (gpu.form(IndexScoresForm, key) for key in self.scores_keys)
        form = gpu.form(IndexSelectionForm, *self.selection_keys("prefill"))
        if scores is None or decodes is None or form is None:
            return None
        index = PromptIndex(
            *(self.ratio, self.top_k * self.ratio, form.start_s, form.row_s, form.key_s),
            *(scores.start_s, scores.compute_efficiency, scores.memory_efficiency, scores.order),
        )
        return PromptKernel(index_prompts_s, (self.heads_of_index, index, gpu.peaks(self.dtype)))

    def work(self, load: Load) -> OperatorWork:
        """Of prompts, and likewise of decodes, whose keys are read once."""
        prompts, read = super().work(load), load.decodes * load.context * (self.head_dim / self.ratio)
        flops = 2.0 * self.heads * load.queries * read
        return OperatorWork(prompts.flops + flops, prompts.hbm_bytes + read)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`index_scores_s` and `index_selection_s` of chunks and of decodes."""
        prompts_s, form = super().kernel_s(load, gpu), gpu.form(IndexScoresForm, self.scores_keys[1])
        selection = gpu.form(IndexSelectionForm, *self.selection_keys("decode"))
        if prompts_s is None or form is None or selection is None:
            return None
        peaks, read = gpu.peaks(self.dtype), load.decodes * load.context / self.ratio
        beyond: Any = load.context > self.top_k * self.ratio
        rows = load.decodes * load.queries * beyond
        decodes_s = index_scores_s(read * load.queries, read, self.heads_of_index, form, peaks)
        decodes_s = decodes_s + index_selection_s(rows, load.context / self.ratio, selection, peaks)
        return prompts_s + where_any(load.decodes, decodes_s)
