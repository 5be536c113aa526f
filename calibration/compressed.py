"""Problems of the tables of compressed attention, which were measured as whole modules of DeepSeek-V4.

A module is everything between the norm before attention and the sum over shards: projections, norms and rotation,
pooling of keys, index and choice of entries, sparse attention, rotation back and both output projections
(``collect_dsv4_attn.py`` of AIConfigurator: vLLM's, SGLang's and TensorRT-LLM's own classes, heads and groups as one of
`tp_size` GPUs has them). Projections and scores of the index are known from other fits (`calibration.modules`).

Modules ran on weights that make all scores of the index alike, over which the selection takes up to thirty times as
long as over scores that differ (``dsv4_csa_topk_calib``: 82 us against 3). So attention is fitted where there are no
more entries than are chosen, and the selection to the table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from calibration.fit import Problem, bounds_of
from calibration.modules import Fit, Product, with_known_s
from calibration.operators import gpu_peaks
from calibration.sparse_index import mean_of_modes, selection_of
from calibration.tables import ColumnTable, FloatArray, Mask
from hardware_db import Dtype, GpuSku
from planner.roofline import (
    CompressedForm,
    CompressedHeads,
    ElementwiseForm,
    IndexHeads,
    IndexScoresForm,
    SizeCorrection,
    attended_pairs,
    compressed_attention_s,
    compressed_pairs,
    elementwise_s,
    index_scores_s,
)

HEAD_DIM, WINDOW, ENTRY_BYTES = 512.0, 128.0, 584.0
"""Channels of a head, tokens of the window and bytes of a key in an 8-bit cache, of both models (config.json;
``fp8_ds_mla`` of vLLM)."""
INDEXED_RATIO = 4.0
"""Tokens to a key where an index chooses among them (``compress_ratio``)."""
INDEX_HEADS, INDEX_DIM = 64.0, 128.0
"""Heads of the index and their channels (``index_n_heads``, ``index_head_dim``), whole on every GPU."""
GROUP_CHANNELS, OUTPUT_RANK = 4096.0, 1024.0
"""Channels of the heads that are projected together, 8 of 512, and what they are projected to (``o_lora_rank``)."""
STREAMS = 4.0
"""Residual streams (``hc_mult``)."""
BLOCKS_OF_ROW = 2.0
"""Blocks whose mixes one row of the table ``mhc_module`` holds: attention and experts (``num_sites``)."""
FEWEST_PROMPT_TOKENS = 16.0
"""New tokens of a sequence from which a row is a prompt."""
SERVED_FORMAT = "fp8_block"
"""Format of the projections of the rows that are fitted: that of every published checkpoint."""


@dataclass(frozen=True)
class MeasuredModel:
    """Sizes of a model whose modules were measured (config.json)."""

    hidden: float
    query_rank: float
    top_k: float


MODELS = {
    "Flash": MeasuredModel(hidden=4096.0, query_rank=1024.0, top_k=512.0),
    "Pro": MeasuredModel(hidden=7168.0, query_rank=1536.0, top_k=1024.0),
}
"""By a part of the column ``model``."""


def module_rows(rows: ColumnTable, sku: GpuSku, phase: str, fit: Fit) -> ColumnTable:
    """The rows of one backend that are fitted, with what the other fits say of the rest as ``_known_s`` [s].

    Args:
        rows: of a table ``dsv4_csa_*_module`` (compress_ratio 4) or ``dsv4_hca_*_module`` (128).
        sku: they were measured on.
        phase: ``prefill`` or ``decode``.
        fit: the other fits of the engine.

    Returns:
        Rows with sizes of their model, in columns that begin with an underscore; none where another fit is missing.
    """
    rows = rows.rows(rows.text("gemm_type") == SERVED_FORMAT)
    if "isl" not in rows.columns:
        rows = rows.with_columns(isl=np.ones(len(rows)))
    named = rows.text("model")
    which = [np.char.find(named, name) >= 0 for name in MODELS]
    sizes = MODELS.values()
    rows = rows.with_columns(
        _hidden=np.select(which, [size.hidden for size in sizes]),
        _query_rank=np.select(which, [size.query_rank for size in sizes]),
        _top_k=np.select(which, [size.top_k for size in sizes]),
    )
    rows = rows.rows(_chosen(rows, phase))
    rows = with_known_s(rows, _products(rows), None, sku, fit)
    if not _indexed(rows):
        return rows
    known = rows["_known_s"] + _scores_s(rows, sku, phase, fit)
    return rows.with_columns(_known_s=known).rows(~np.isnan(known))


def _chosen(rows: ColumnTable, phase: str) -> Mask:
    """Prompts or decodes that see no more entries than are chosen."""
    seen = (rows["isl"] + rows["step"]) / INDEXED_RATIO
    chosen = (rows["compress_ratio"] != INDEXED_RATIO) | (seen <= rows["_top_k"])
    if phase == "prefill":
        chosen &= rows["isl"] >= FEWEST_PROMPT_TOKENS
    return np.asarray(chosen & (rows["_hidden"] > 0.0))


def _products(rows: ColumnTable) -> list[Product]:
    """The projections of every row, as a step counts them."""
    hidden, rank, channels = rows["_hidden"], rows["_query_rank"], rows["num_heads"] * HEAD_DIM
    outputs = channels / GROUP_CHANNELS * OUTPUT_RANK
    products = [
        Product(rank + HEAD_DIM, hidden, SERVED_FORMAT),
        Product(channels, rank, SERVED_FORMAT),
        Product(outputs, GROUP_CHANNELS, SERVED_FORMAT),
        Product(hidden, outputs, SERVED_FORMAT),
    ]
    if not _indexed(rows):
        return [*products, Product(2.0 * HEAD_DIM, hidden, "bf16")]
    return [
        *products,
        Product(4.0 * HEAD_DIM, hidden, "bf16"),  # keys and gates, of two windows
        Product(INDEX_HEADS * INDEX_DIM, rank, SERVED_FORMAT),
        Product(INDEX_HEADS, hidden, "bf16"),
        Product(4.0 * INDEX_DIM, hidden, "bf16"),
    ]


def _indexed(rows: ColumnTable) -> bool:
    """True if an index chooses entries, in a table of one kind."""
    return bool(len(rows)) and float(rows["compress_ratio"][0]) == INDEXED_RATIO


def _scores_s(rows: ColumnTable, sku: GpuSku, phase: str, fit: Fit) -> FloatArray:
    """Scores of the index [s]; NaN without a fit."""
    scores = fit(f"index_scores/{phase}")
    if scores is None:
        return np.full(len(rows), np.nan)
    new, past, batch = rows["isl"], rows["step"], rows["batch_size"]
    pairs, keys = batch * attended_pairs(new, past, 0.0) / INDEXED_RATIO, batch * (new + past) / INDEXED_RATIO
    peaks = gpu_peaks(sku, Dtype.FP8)
    return index_scores_s(pairs, keys, IndexHeads(INDEX_HEADS, INDEX_DIM), IndexScoresForm.of(scores), peaks)


def _shape(rows: ColumnTable) -> CompressedHeads:
    """Entries that the heads of every row see; all entries, since those that are fitted see no more than are chosen."""
    heads, ratio = cast(float, rows["num_heads"]), float(rows["compress_ratio"][0])
    return CompressedHeads(heads, HEAD_DIM, ENTRY_BYTES, WINDOW, ratio, top_k=0.0)


def _attention(rows: ColumnTable, sku: GpuSku, pairs: FloatArray, read_bytes: FloatArray, axis: str) -> Problem:
    """Everything but what is known; `pairs` and `read_bytes` of every row."""
    rows = rows.with_columns(_pairs=pairs, _read_bytes=read_bytes)
    peaks = gpu_peaks(sku, Dtype.BF16)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        tokens, form = rows["batch_size"] * rows["isl"], CompressedForm.from_values(values)
        own = compressed_attention_s(tokens, rows["_pairs"], rows["_read_bytes"], _shape(rows), form, peaks)
        return rows["_known_s"] + own

    bounds = bounds_of("compressed_attention")
    return Problem(rows, predict, bounds, ("_hidden", "num_heads"), axis, {})


def prefill(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Prompts over window and compressed keys; rows as `module_rows` makes them, of one backend and kind."""
    if not len(rows):
        return _attention(rows, sku, np.zeros(0), np.zeros(0), "isl")
    shape, batch = _shape(rows), rows["batch_size"]
    read = np.minimum(rows["step"], WINDOW) + rows["step"] / shape.ratio
    pairs = batch * compressed_pairs(rows["isl"], rows["step"], shape)
    return _attention(rows, sku, pairs, batch * read * ENTRY_BYTES, "isl")


def decode(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Decodes over window and compressed keys; rows as `module_rows` makes them, of one backend and kind."""
    if not len(rows):
        return _attention(rows, sku, np.zeros(0), np.zeros(0), "step")
    seen = rows["step"] + rows["isl"]
    pairs = rows["batch_size"] * (np.minimum(seen, WINDOW) + seen / _shape(rows).ratio)
    return _attention(rows, sku, pairs, pairs * ENTRY_BYTES, "step")


def selection_rows(rows: ColumnTable, phase: str) -> ColumnTable:
    """The rows of the kernel that a phase runs: prompts the older one, decodes the newer, which splits long rows.

    Of prompts the mean time of both patterns of scores, as for an index over tokens: alike, and the last the largest.
    Of decodes the latter alone: over scores alike the newer kernel falls back to a slow path, which scores that differ
    do not take.
    """
    mode = rows.text("score_mode")
    named = np.char.find(rows.text("model"), "Pro") >= 0
    rows = rows.with_columns(_top_k=np.where(named, MODELS["Pro"].top_k, MODELS["Flash"].top_k))
    if phase == "decode":
        return rows.rows(mode == "v2_top_last")
    return mean_of_modes(rows.rows(np.char.startswith(mode, "v1_")), "_top_k")


def selection(rows: ColumnTable, sku: GpuSku) -> Problem:
    """Choice of entries; rows as `selection_rows` makes them."""
    return selection_of(rows, sku, INDEXED_RATIO, "compressed_selection", ("_top_k", "batch_size"))


def stream_mix_rows(rows: ColumnTable, operation: str) -> ColumnTable:
    """The mix of residual streams before (``pre``) or after (``post``) one block, the quickest kernel of a backend.

    Traffic in a column ``bytes``: streams in and a hidden state out, or streams and a hidden state in and streams out.
    """
    rows = rows.rows(rows.text("op_name") == operation)
    shape = rows.keys("backend", "num_tokens", "hidden_size")
    order = np.lexsort((rows["latency_s"], shape))
    rows = rows.rows(order[np.flatnonzero(np.diff(shape[order], prepend=-1))])
    values = STREAMS + 1.0 if operation == "pre" else 2.0 * STREAMS + 1.0
    traffic = 2.0 * rows["num_tokens"] * values * rows["hidden_size"]
    name = np.full(len(rows), f"mhc_{operation}")  # one of several by the number of tokens
    return rows.with_columns(bytes=traffic, latency_s=rows["latency_s"] / BLOCKS_OF_ROW, kernel=name)


def stream_mix(rows: ColumnTable, sku: GpuSku) -> Problem:
    """A pass over residual streams; rows as `stream_mix_rows` makes them."""

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        peaks = gpu_peaks(sku, Dtype.BF16, values["resident_gain"], rows["bytes"])
        return elementwise_s(rows["bytes"], ElementwiseForm.from_values(values), peaks)

    return Problem(rows, predict, bounds_of("stream_mix"), ("hidden_size",), "num_tokens", {})
