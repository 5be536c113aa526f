"""Problems of the tables of block-sparse attention, which were measured as whole modules of MiniMax-M3.

A module is a projection to queries, keys, values and index, norms and rotation, the index with its attention, and the
output projection (the engines' own classes; ``collect_msa_module.py`` of AIConfigurator); see `calibration.modules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from calibration import modules
from calibration.fit import ParameterBound, Problem, bounds_of
from calibration.operators import KV_BYTES, gpu_peaks
from calibration.tables import ColumnTable, FloatArray, Mask
from hardware_db import Dtype, GpuSku
from planner.roofline import (
    BlockDecodeForm,
    BlockHeads,
    BlockPrefillForm,
    SizeCorrection,
    block_decode_s,
    block_prefill_s,
)

HIDDEN, HEAD_DIM, QUERIES_PER_KEY = 6144.0, 128.0, 16.0
"""Sizes of MiniMax-M3 (config.json); index heads are as many as KV heads, of as many channels."""
TOP_K = 2048.0
"""16 blocks of 128 keys (``sparse_topk_blocks``, ``sparse_block_size``)."""
PASSES = 3.0
"""Passes over queries and keys between projection and attention, as a step counts them: two norms and the rotation."""
PASSED_BYTES = 8.0
"""Bytes that they move of each value: read and written by the norms and again by the rotation, in 16 bit."""
FEWEST_PROMPT_TOKENS, MOST_CHUNKS = 64.0, 32.0
"""Prompts that are fitted: from half a tile on, and no more of them than share a step."""
FEWEST_CACHED_KEYS = 255.0
"""Cached keys from which a decode is fitted, as for other attention."""
MOST_SPLIT_SEQUENCES = 256.0
"""Decodes up to which SGLang 0.5.16 splits the index over thread blocks; above, one runs at a time of a launch."""
REFERENCE_BACKEND = "trtllm"
"""Backend whose rows are left out: TensorRT-LLM 1.3.0rc23 gathers keys in plain tensor operations on Hopper, whose time
grows with the square of the batch, and on Blackwell its prompts take 3 to 50 ms whatever they are."""
HOST_BOUND_BACKEND = "sglang"
"""Backend whose prompts were timed without a CUDA graph: no row is below what the host takes."""


def _shape(rows: ColumnTable, kv_bytes: float) -> BlockHeads:
    """The heads of every row; fewer query heads than share a KV head are a share of its group on a GPU."""
    heads, kv_heads = rows["num_heads"], np.maximum(rows["num_heads"] // QUERIES_PER_KEY, 1.0)
    sizes = (cast(float, heads), cast(float, kv_heads))
    return BlockHeads(*sizes, HEAD_DIM, kv_bytes, TOP_K, cast(float, kv_heads), HEAD_DIM)


def module_rows(rows: ColumnTable, sku: GpuSku, fit: modules.Fit) -> ColumnTable:
    """The rows of one backend with what is known of them (`modules.with_known_s`)."""
    if "isl" not in rows.columns:
        rows = rows.with_columns(isl=np.ones(len(rows)))
    shape, formats = _shape(rows, 2.0), rows.text("gemm_type")
    queries = shape.heads * HEAD_DIM
    normed = queries + (shape.kv_heads + shape.index_heads + 1.0) * HEAD_DIM
    products = (
        modules.Product(normed + shape.kv_heads * HEAD_DIM, HIDDEN, formats),
        modules.Product(HIDDEN, queries, formats),
    )
    return modules.with_known_s(rows, products, modules.Passes(PASSES, PASSED_BYTES * normed), sku, fit)


def prefill(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """Prompts over chosen blocks; rows as `module_rows` makes them, of one backend."""
    peaks, kv_bytes = gpu_peaks(sku, Dtype.BF16), KV_BYTES[variant]
    chosen = rows.rows((rows["isl"] >= FEWEST_PROMPT_TOKENS) & (rows["batch_size"] <= MOST_CHUNKS))

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form = BlockPrefillForm.from_values(values, correction)
        shape = _shape(rows, kv_bytes)
        own = block_prefill_s(rows["batch_size"], rows["isl"], rows["step"], shape, form, peaks)
        return np.maximum(rows["_known_s"] + own, values.get("host_s", 0.0))

    bounds = bounds_of("block_prefill")
    if len(chosen) and chosen.text("backend")[0] == HOST_BOUND_BACKEND:
        floor = float(np.quantile(chosen["latency_s"], 0.1))
        bounds["host_s"] = ParameterBound(floor, floor / 3.0, floor * 3.0)
    return Problem(chosen, predict, bounds, ("num_heads",), "isl", {})


def decode(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """Decodes over chosen blocks; rows as `module_rows` makes them, of one backend."""
    kv_bytes = KV_BYTES[variant]

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form, shape = BlockDecodeForm.from_values(values, correction), _shape(rows, kv_bytes)
        read = np.minimum(rows["step"], TOP_K) * shape.key_bytes + rows["step"] * shape.index_bytes
        peaks = gpu_peaks(sku, Dtype.BF16, values["resident_gain"], rows["batch_size"] * read)
        own = block_decode_s(rows["batch_size"], rows["step"], 1.0, shape, form, peaks)
        return rows["_known_s"] + own

    split = (rows.text("backend") != HOST_BOUND_BACKEND) | (rows["batch_size"] <= MOST_SPLIT_SEQUENCES)
    chosen = rows.rows(split & (rows["step"] >= FEWEST_CACHED_KEYS))
    return Problem(chosen, predict, bounds_of("block_decode"), ("num_heads",), "step", {})


def served(rows: ColumnTable) -> Mask:
    """Rows of kernels that engines serve with."""
    mask: Mask = rows.text("backend") != REFERENCE_BACKEND
    return mask
