"""Problems of the tables of linear attention: a short convolution and a chunked scan or an update of the state.

A row of the tables ``gdn`` (gated delta net) and ``kda`` (Kimi Delta Attention) is one kernel; the kernels of one
layer and call are added up, since a layer runs them one after the other. Of Mamba-2 only the convolution was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from calibration.fit import Problem, bounds_of
from calibration.operators import gpu_peaks
from calibration.tables import ColumnTable, FloatArray
from hardware_db import Dtype, GpuSku
from planner.roofline import (
    RecurrentDecodeForm,
    RecurrentHeads,
    RecurrentPrefillForm,
    SizeCorrection,
    recurrent_decode_s,
    recurrent_prefill_s,
)

GATED_DELTA_DIM = 128.0
"""Key and value channels of a head of every measured layer: gated delta nets (Qwen3.5 config.json,
``linear_key_head_dim``) and Kimi Delta Attention (Kimi-K3 config.json, ``linear_attn_config.head_dim``)."""
FEWEST_PROMPT_TOKENS, MOST_PROMPT_TOKENS = 64.0, 16_384.0
"""Tokens of a call that are fitted: from one chunk of the scan to the largest token budget engines have by default."""
DELTA_CALL = ("num_k_heads", "num_v_heads", "batch_size", "seq_len")
"""Columns that name one call of a layer of Kimi Delta Attention, whoever measured it."""
FUSED_DECODES = ("fused_kda_decode", "kda_fused_decode")
"""Kernels that update the state and convolve in one: as long as update and convolution apart, where both are there."""
CALL = ("backend", "backend_version", "phase", "model_name", "num_k_heads", "num_v_heads", "batch_size", "seq_len")
"""Columns that name one call of a layer."""


def layer_rows(rows: ColumnTable, phase: str) -> ColumnTable:
    """The calls of one phase whose convolution and scan (or update) were both measured, with the time of both.

    Args:
        rows: of the table ``gdn``.
        phase: ``context`` or ``generation``.

    Returns:
        Rows of the scan or update, whose kernel they keep.
    """
    rows = rows.rows(rows.text("phase") == phase)
    call, kernels = rows.keys(*CALL), rows.text("kernel")
    convolves = np.char.startswith(kernels, "causal_conv1d")
    convolution_s = np.full(call.max(initial=-1) + 1, np.nan)
    convolution_s[call[convolves]] = rows["latency_s"][convolves]
    total_s = rows["latency_s"] + convolution_s[call]
    return rows.with_columns(latency_s=total_s).rows(~convolves & ~np.isnan(total_s))


def delta_attention_rows(rows: ColumnTable, phase: str) -> ColumnTable:
    """The calls of Kimi Delta Attention in one phase, with the time of all their kernels.

    Every convolution counts as the quickest measured of its shape: vLLM's of prompts waits for its host (0.76 ms for
    one token, and longer the more tokens there are, on a GPU that SGLang keeps busy for 7 us), which serving prepares
    beforehand. Of two kernels that do the same for one call the quicker counts, as an engine chooses by its heads.

    Args:
        rows: of the table ``kda``.
        phase: ``context`` or ``generation``.

    Returns:
        One row a backend and call, whose kernel names all those of its backend.
    """
    rows = rows.rows(rows.text("phase") == phase)
    kernels, call = rows.text("kernel"), rows.keys(*DELTA_CALL)
    convolves = np.char.startswith(kernels, "causal_conv1d")
    convolution_s = np.full(call.max(initial=-1) + 1, np.inf)
    np.minimum.at(convolution_s, call[convolves], rows["latency_s"][convolves])
    total_s = rows["latency_s"] + np.where(np.isin(kernels, FUSED_DECODES), 0.0, convolution_s[call])
    rows = rows.with_columns(latency_s=total_s).rows(~convolves & np.isfinite(total_s))
    quickest = np.argsort(rows["latency_s"], kind="stable")
    _, first = np.unique(rows.keys("backend", *DELTA_CALL)[quickest], return_index=True)
    rows = rows.rows(np.sort(quickest[first]))
    backends, kernels = rows.text("backend"), rows.text("kernel")
    used = {backend: ", ".join(np.unique(kernels[backends == backend])) for backend in np.unique(backends).tolist()}
    return rows.with_columns(kernel=np.array([used[backend] for backend in backends.tolist()]))


def _shape(rows: ColumnTable) -> RecurrentHeads:
    """The heads of every row."""
    heads = rows["num_v_heads"]
    channels = (2.0 * rows["num_k_heads"] + heads) * GATED_DELTA_DIM
    return RecurrentHeads(cast(float, heads), GATED_DELTA_DIM, GATED_DELTA_DIM, cast(float, channels))


def recurrent_prefill(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Whole prompts through a delta rule; rows as `layer_rows` or `delta_attention_rows` makes them."""
    peaks = gpu_peaks(sku, Dtype.BF16)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form = RecurrentPrefillForm.from_values(values, correction)
        return recurrent_prefill_s(rows["batch_size"], rows["seq_len"], _shape(rows), form, peaks)

    bounds = bounds_of("recurrent_prefill")
    tokens = rows["num_tokens"]
    chosen = rows.rows((tokens >= FEWEST_PROMPT_TOKENS) & (tokens <= MOST_PROMPT_TOKENS))
    return Problem(chosen, predict, bounds, ("num_k_heads", "num_v_heads"), "seq_len", {}, _prefill_sizes)


def _prefill_sizes(rows: ColumnTable) -> tuple[FloatArray, FloatArray]:
    return rows["seq_len"], rows["batch_size"] * rows["num_v_heads"]


def recurrent_decode(rows: ColumnTable, sku: GpuSku) -> Problem:
    """One token of each sequence through a delta rule; rows as `layer_rows` or `delta_attention_rows` makes them."""

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        shape, form = _shape(rows), RecurrentDecodeForm.from_values(values, correction)
        states = rows["batch_size"] * shape.state_bytes / 2.0
        peaks = gpu_peaks(sku, Dtype.BF16, values["resident_gain"], states)
        return recurrent_decode_s(rows["batch_size"], 1.0, shape, form, peaks)

    bounds = bounds_of("recurrent_decode")
    return Problem(rows, predict, bounds, ("num_k_heads", "num_v_heads"), "batch_size", {})
