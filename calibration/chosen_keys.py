"""Problems of the tables of latent attention with a sparse index, measured as whole modules.

The modules are those of DeepSeek-V3.2 and of GLM-5 to 5.2 (tables ``dsa_context_module``, ``dsa_generation_module``;
``collect_mla_module.py`` and ``collect_dsa.py`` of AIConfigurator): projections, index, attention over what it chose,
and output projection; see `calibration.modules`. GLM-5.2 was measured with and without an index of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from calibration import modules
from calibration.fit import Problem, bounds_of
from calibration.operators import KV_BYTES, gpu_peaks
from calibration.tables import ColumnTable, FloatArray, Mask
from hardware_db import Dtype, GpuSku
from planner.roofline import (
    ChosenDecodeForm,
    ChosenHeads,
    ChosenPrefillForm,
    IndexHeads,
    SizeCorrection,
    chosen_decode_index_s,
    chosen_decode_s,
    chosen_prefill_index_s,
    chosen_prefill_s,
)


class LatentShape(NamedTuple):
    """Sizes of a measured model that all its layers have, and the heads of its index."""

    hidden: float
    query_rank: float
    nope_dim: float
    value_dim: float
    index_heads: float


DEEPSEEK, GLM = LatentShape(7168.0, 1536.0, 128.0, 128.0, 64.0), LatentShape(6144.0, 2048.0, 192.0, 256.0, 32.0)
"""config.json of DeepSeek-V3.2 and of GLM-5 to 5.2."""
RANK, ROPE, INDEX_DIM, TOP_K = 512.0, 64.0, 128.0, 2048.0
"""Sizes that both have alike (``kv_lora_rank``, ``qk_rope_head_dim``, ``index_head_dim``, ``index_topk``)."""
PASSES = 5.0
"""Passes over compressed rows and rotated channels between projections and attention, as a step counts them."""
FEWEST_PROMPT_TOKENS, MOST_CHUNKS = 64.0, 32.0
"""Prompts that are fitted: from one block of tokens on, and no more of them than share a step."""
FEWEST_CACHED_KEYS = 255.0
"""Cached keys from which a decode is fitted, as for other attention."""
MOST_SEQUENCES = 256.0
"""Decodes up to which SGLang's rows are fitted: above, its kernel of 8-bit rows takes five times as long."""
SHARING = "skip_indexer"
"""In the names of kernels of modules that take the choice of another layer."""


def served(rows: ColumnTable) -> Mask:
    """Rows of the kernels that run with as many sequences as engines run at a time."""
    few: Mask = rows["batch_size"] <= np.where(rows.text("backend") == "sglang", MOST_SEQUENCES, np.inf)
    return few


def module_rows(rows: ColumnTable, sku: GpuSku, fit: modules.Fit) -> ColumnTable:
    """The rows of one backend with what is known of them, their index heads (0 without one) and one name of kernel."""
    if "isl" not in rows.columns:
        rows = rows.with_columns(isl=np.ones(len(rows)))
    glm = np.char.find(rows.text("model"), "GLM") >= 0
    hidden, rank, nope, value, index_heads = (
        np.where(glm, ours, theirs) for ours, theirs in zip(GLM, DEEPSEEK, strict=True)
    )
    heads, formats = rows["num_heads"], rows.text("gemm_type")
    chooses = np.char.find(rows.text("kernel"), SHARING) < 0
    row = RANK + ROPE
    products = [
        modules.Product(rank + row, hidden, formats),
        modules.Product(heads * (nope + ROPE), rank, formats),
        modules.Product(heads * (nope + value), RANK, formats),
        modules.Product(hidden, heads * value, formats),
    ]
    passes = modules.Passes(PASSES, 2.0 * (2.0 * (rank + row) + 2.0 * heads * ROPE))
    plain = np.full(len(rows), "bf16")
    index = [modules.Product(index_heads * INDEX_DIM, rank, formats)]
    index.append(modules.Product(INDEX_DIM + index_heads, hidden, plain))
    bare = modules.with_known_s(rows, products, passes, sku, fit)
    with_index = modules.with_known_s(rows, [*products, *index], passes, sku, fit)
    if len(bare) != len(rows) or len(with_index) != len(rows):
        return rows.rows(np.zeros(len(rows), dtype=np.bool_))
    known = np.where(chooses, with_index["_known_s"], bare["_known_s"])
    named = rows.with_columns(_known_s=known, _index_heads=np.where(chooses, index_heads, 0.0))
    named = named.with_columns(_expanded=nope + ROPE + value)
    return named.with_columns(kernel=np.full(len(rows), "module"))


def _shape(rows: ColumnTable, kv_bytes: float) -> ChosenHeads:
    """The heads of every row."""
    return ChosenHeads(cast(float, rows["num_heads"]), RANK, ROPE, TOP_K, kv_bytes, cast(float, rows["_expanded"]))


def prefill(rows: ColumnTable, sku: GpuSku, variant: str, dense: bool = False) -> Problem:
    """Prompts over chosen keys; rows as `module_rows` makes them, of one backend. `dense`: without choice where every
    query may see all keys.

    The host's time is that of a kind of module, in proportion to the tenth quickest of a hundred of its rows: prompts
    were timed without a CUDA graph. Their floors are bounded by those of decodes, which were timed in one.
    """
    peaks, peaks_8_bit = gpu_peaks(sku, Dtype.BF16), gpu_peaks(sku, Dtype.FP8)
    chosen = rows.rows((rows["isl"] >= FEWEST_PROMPT_TOKENS) & (rows["batch_size"] <= MOST_CHUNKS))
    kind = chosen.keys("model", "gemm_type", "_index_heads")
    floors = [float(np.quantile(chosen["latency_s"][kind == one], 0.1)) for one in range(kind.max(initial=-1) + 1)]
    chosen = chosen.with_columns(_host_s=np.array(floors)[kind])

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form, index_heads = ChosenPrefillForm.from_values(values, correction), rows["_index_heads"]
        prompts = rows["batch_size"], rows["isl"], rows["step"]
        attention = chosen_prefill_s(*prompts, _shape(rows, KV_BYTES[variant]), form, peaks)
        heads = IndexHeads(cast(float, index_heads), INDEX_DIM)
        index = chosen_prefill_index_s(*prompts, heads, form, peaks_8_bit)
        device_s = rows["_known_s"] + attention + index * (index_heads > 0.0)
        return np.maximum(device_s, values["host_share"] * rows["_host_s"])

    bounds = bounds_of("chosen_prefill", *(() if dense else ("dense_efficiency",)))
    return Problem(chosen, predict, bounds, ("num_heads",), "isl", {"dense_keys": TOP_K if dense else 0.0})


def decode(rows: ColumnTable, sku: GpuSku, variant: str) -> Problem:
    """Decodes over chosen keys; rows as `module_rows` makes them, of one backend."""
    peaks = gpu_peaks(sku, Dtype.BF16)

    def predict(values: Mapping[str, float], rows: ColumnTable, correction: SizeCorrection | None = None) -> FloatArray:
        form, context = ChosenDecodeForm.from_values(values, correction), rows["step"] + 1.0
        attention = chosen_decode_s(rows["batch_size"], context, _shape(rows, KV_BYTES[variant]), form, peaks)
        index = chosen_decode_index_s(rows["batch_size"], context, IndexHeads(1.0, INDEX_DIM), form, peaks)
        return rows["_known_s"] + attention + index * (rows["_index_heads"] > 0.0)

    bounds = bounds_of("chosen_decode")
    return Problem(rows.rows(rows["step"] >= FEWEST_CACHED_KEYS), predict, bounds, ("num_heads",), "step", {})
