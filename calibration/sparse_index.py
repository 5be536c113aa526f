"""Problems of the tables of sparse attention: index, selection, and prompts over the chosen keys.

All but the scores of decodes were measured with the shapes of GLM-5 (tables ``glm5_mqa_logits_module``,
``glm5_topk_module``, ``glm5_dsa_attn_module``). Those were measured over a paged cache with the shapes of DeepSeek-V4,
whose index keeps one key for four tokens (``dsv4_paged_mqa_logits_module``); per key and head it does the same work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from calibration.fit import Problem, bounds_of
from calibration.operators import LATENT_RANK, LATENT_ROPE, gpu_peaks
from calibration.tables import ColumnTable, FloatArray
from hardware_db import Dtype, GpuSku
from planner.roofline import (
    IndexHeads,
    IndexScoresForm,
    IndexSelectionForm,
    SizeCorrection,
    SparsePrefillForm,
    attended_pairs,
    index_scores_s,
    index_selection_s,
    selecting_rows,
    sparse_prefill_s,
    sparse_token_s,
)

GLM5_INDEX_HEADS, DEEPSEEK_INDEX_HEADS = 32.0, 64.0
"""Heads of the measured indexes (config.json of GLM-5 and of DeepSeek-V4-Flash, ``index_n_heads``)."""
GLM5_HEADS = 64.0
"""Query heads of the measured sparse attention (``num_heads``; one group of `planner.roofline.index`)."""
INDEX_DIM = 128.0
"""Channels of a head of both (``index_head_dim``)."""
TOP_K = 2048.0
"""Keys a query of GLM-5 attends to (``index_topk``)."""
FEWEST_PROMPT_TOKENS = 64.0
"""New tokens of a sequence from which a row is a prompt."""
FEWEST_CACHED_KEYS = 255.0
"""Cached keys from which a row is fitted, as for other attention."""
MOST_DECODED_TOKENS = 8.0
"""New tokens of a sequence up to which a row is a decode, drafts included."""


def sparse_prefill(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Attention of prompts over the chosen keys; columns as in `prompt_scores`."""
    peaks = gpu_peaks(sku, Dtype.BF16)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form = SparsePrefillForm.from_values(values)
        token_s = sparse_token_s(TOP_K, GLM5_HEADS, LATENT_RANK, LATENT_ROPE, form, peaks)
        return sparse_prefill_s(rows["batch_size"] * rows["isl"], token_s, form, peaks)

    chosen = rows.rows(rows["isl"] >= FEWEST_PROMPT_TOKENS)
    return Problem(chosen, predict, bounds_of("sparse_prefill"), ("isl",), "step", {})


def prompt_scores(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Scores of prompts over unpaged keys; columns batch_size, isl new and step earlier tokens."""
    peaks = gpu_peaks(sku, Dtype.FP8)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        new, past, batch = rows["isl"], rows["step"], rows["batch_size"]
        pairs, keys = batch * attended_pairs(new, past, 0.0), batch * (new + past)
        form = IndexScoresForm.from_values(values)
        return index_scores_s(pairs, keys, IndexHeads(GLM5_INDEX_HEADS, INDEX_DIM), form, peaks)

    chosen = rows.rows(rows["isl"] >= FEWEST_PROMPT_TOKENS)
    return Problem(chosen, predict, bounds_of("index_scores"), ("isl",), "step", {})


def decode_scores(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Scores of decodes over paged keys, one for `compress_ratio` tokens; columns as in `prompt_scores`."""
    peaks = gpu_peaks(sku, Dtype.FP8)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        keys = rows["batch_size"] * (rows["step"] + rows["isl"]) / rows["compress_ratio"]
        form = IndexScoresForm.from_values(values)
        return index_scores_s(keys * rows["isl"], keys, IndexHeads(DEEPSEEK_INDEX_HEADS, INDEX_DIM), form, peaks)

    cached = rows["step"] / rows["compress_ratio"]
    chosen = rows.rows((rows["isl"] <= MOST_DECODED_TOKENS) & (cached >= FEWEST_CACHED_KEYS))
    return Problem(chosen, predict, bounds_of("index_scores"), ("batch_size",), "step", {})


def mean_of_modes(rows: ColumnTable, *shape: str) -> ColumnTable:
    """Every shape once, with the mean time of its score patterns.

    The selection takes several times as long where all scores are alike (``flat``) as where the last are the largest
    (``top_last``); served scores are neither, so that the middle is assumed.
    """
    key = rows.keys("backend", *shape, "batch_size", "isl", "step")
    mean_s = np.bincount(key, rows["latency_s"]) / np.bincount(key)
    first = np.unique(key, return_index=True)[1]
    return rows.rows(first).with_columns(latency_s=mean_s)


def selection(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Selection of the largest scores of each query; rows as `mean_of_modes` makes them."""
    return selection_of(rows.with_columns(_top_k=np.full(len(rows), TOP_K)), sku, 1.0, "index_selection", ("isl",))


def selection_of(rows: ColumnTable, sku: GpuSku, ratio: float, kernel: str, group: tuple[str, ...]) -> Problem:
    """Selection of `_top_k` of the keys of each query, of which there is one for `ratio` tokens."""
    peaks = gpu_peaks(sku, Dtype.FP8)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        selecting = selecting_rows(rows["isl"], rows["step"], rows["_top_k"] * ratio)
        seen = rows["isl"] + rows["step"] - (selecting - 1.0) / 2.0
        form = IndexSelectionForm.from_values(values)
        return index_selection_s(rows["batch_size"] * selecting, seen / ratio, form, peaks)

    beyond = rows["isl"] + rows["step"] > rows["_top_k"] * ratio
    return Problem(rows.rows(beyond), predict, bounds_of(kernel), group, "step", {})
