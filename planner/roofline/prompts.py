"""The attention of a step's prompts for compiled code: every operator as a record of the constants of its formulas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from planner.core import FloatArray, compiled
from planner.roofline.block_sparse import block_prefill_s, windowed_block_prefill_s
from planner.roofline.chosen import chosen_prefill_index_s, chosen_prefill_s
from planner.roofline.compressed import compressed_prompts_s
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.grouped import prefill_attention_s
from planner.roofline.index import index_prompts_s
from planner.roofline.kernel_forms import NO_CORRECTION
from planner.roofline.latent import latent_prompts_s
from planner.roofline.operators import Operator, PromptOperator, prompt_bytes, prompt_flops
from planner.roofline.recurrent import recurrent_prefill_s
from planner.roofline.shared_context import gathered_cache_s

ROOFLINE, GROUPED, LATENT, RECURRENT, INDEX, GATHERED, COMPRESSED, BLOCKS, WINDOWED_BLOCKS, CHOSEN, CHOOSING = range(11)
"""How an operator is timed: on its roofline where nothing was measured, else by one of `FORMULAS`."""
FORMULAS = {
    GROUPED: prefill_attention_s,
    LATENT: latent_prompts_s,
    RECURRENT: recurrent_prefill_s,
    INDEX: index_prompts_s,
    GATHERED: gathered_cache_s,
    COMPRESSED: compressed_prompts_s,
    BLOCKS: block_prefill_s,
    WINDOWED_BLOCKS: windowed_block_prefill_s,
    CHOSEN: chosen_prefill_s,
    CHOOSING: chosen_prefill_index_s,
}
Records = np.recarray[Any, Any]
Record = Any


@cache
def prompt_record() -> np.dtype[Any]:
    """An operator: its formula and the constants of that, its layers, its least work and the peaks for that.

    Returns:
        Names and types of the record.
    """
    names = [("formula", np.int64), ("count", np.float64), ("flops_per_s", np.float64), ("bytes_per_s", np.float64)]
    parts = [(formula.source.__name__, formula.record) for formula in (prompt_flops, *FORMULAS.values())]
    return np.dtype((np.record, [*names, *parts]))


@compiled
def _few_keys_s(row: Record, table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """`_kernel_s` of attention to keys that are compressed or chosen [s]."""
    seconds = 0.0
    if row.formula == COMPRESSED:
        seconds = compressed_prompts_s(row.compressed_prompts_s, table, chunks, new, past, cached)
    elif row.formula == BLOCKS:
        seconds = block_prefill_s(row.block_prefill_s, table, chunks, new, past)
    elif row.formula == WINDOWED_BLOCKS:
        seconds = windowed_block_prefill_s(row.windowed_block_prefill_s, table, chunks, new, past)
    elif row.formula == CHOSEN:
        seconds = chosen_prefill_s(row.chosen_prefill_s, table, chunks, new, past)
    elif row.formula == CHOOSING:
        seconds = chosen_prefill_index_s(row.chosen_prefill_index_s, table, chunks, new, past)
    return seconds


@compiled
def _kernel_s(row: Record, table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """One layer of an operator by its formula [s]."""
    seconds = 0.0
    if row.formula == GROUPED:
        seconds = prefill_attention_s(row.prefill_attention_s, table, chunks, new, past)
    elif row.formula == LATENT:
        seconds = latent_prompts_s(row.latent_prompts_s, table, chunks, new, past, cached)
    elif row.formula == RECURRENT:
        seconds = recurrent_prefill_s(row.recurrent_prefill_s, table, chunks, new)
    elif row.formula == INDEX:
        seconds = index_prompts_s(row.index_prompts_s, table, chunks, new, past, cached)
    elif row.formula == GATHERED:
        seconds = gathered_cache_s(row.gathered_cache_s, table, chunks, new, past, cached)
    elif row.formula >= COMPRESSED:
        seconds = _few_keys_s(row, table, chunks, new, past, cached)
    return seconds


@compiled
def attention_s(rows: Records, tables: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """Seconds of the attention of a step's prompts over all its operators and their layers.

    Args:
        rows: operators, records of `prompt_record`, shape (operators,).
        tables: their corrections as in `interpolated`, shape (operators, rows, columns).
        chunks: of prompts on the busiest rank, > 0.
        new: tokens of one, the mean.
        past: tokens before it, the mean.
        cached: the same, of which a key is read once.

    Returns:
        Their sum [s].
    """
    total = 0.0
    for i in range(rows.shape[0]):
        row, table = rows[i], tables[i]
        flops = prompt_flops(row.prompt_flops, table, chunks, new, past, cached)
        traffic = prompt_bytes(row.prompt_flops, table, chunks, new, past, cached)
        least = max(flops / row.flops_per_s, traffic / row.bytes_per_s)
        total += row.count * max(_kernel_s(row, table, chunks, new, past, cached), least)
    return total


def prompt_attention(operators: Sequence[Operator], gpu: CalibratedGpu) -> tuple[Records, FloatArray]:
    """The operators that prompts depend on, as `attention_s` wants them.

    Args:
        operators: of a step; those of decodes alone are left out.
        gpu: that runs them.

    Returns:
        Records and tables of corrections.
    """
    chosen = [operator for operator in operators if isinstance(operator, PromptOperator)]
    rows = np.zeros(len(chosen), dtype=prompt_record()).view(np.recarray)
    tables = [NO_CORRECTION for _ in chosen]
    for place, operator in enumerate(chosen):
        row, kernel = rows[place], operator.prompt_kernel(gpu)
        row.count, row.flops_per_s = operator.count, gpu.peaks(operator.dtype).flops_per_s
        row.bytes_per_s = gpu.sku.hbm_bandwidth_bytes_per_s.value
        row.prompt_flops = prompt_flops.constants(operator.prompt_work)[0]
        if kernel is not None:
            row.formula = next(number for number, formula in FORMULAS.items() if formula is kernel.formula)
            row[kernel.formula.source.__name__] = kernel.formula.constants(*kernel.records)[0]
            tables[place] = kernel.table
    most = np.max([(3, 3), *(table.shape for table in tables)], axis=0)
    return rows, np.array([_extended(table, *most) for table in tables]).reshape(len(chosen), *most)


def _extended(table: FloatArray, rows: int, columns: int) -> FloatArray:
    """The same table with knots beyond the last, where nothing changes."""
    more = rows - table.shape[0], columns - table.shape[1]
    longer = np.pad(table, ((0, more[0]), (0, more[1])), mode="edge")
    longer[table.shape[0] :, 0] += np.arange(1.0, more[0] + 1.0)
    longer[0, table.shape[1] :] += np.arange(1.0, more[1] + 1.0)
    return longer
