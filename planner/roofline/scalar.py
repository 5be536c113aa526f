"""One step at a time: what the vectorised formulas say, in plain floats and with all constants worked out beforehand.

The simulator asks for one step after another, where a formula over arrays costs a hundred times its arithmetic. Here
are the two things that a step with prompts needs: interpolation in a table (`interpolated`) and the attention of its
prompts (`prompt_attention`). The equations are those of `planner.roofline.attention_kernels` and of
`planner.roofline.attention_operators`, in the same letters; tests hold the two against each other. Grouped and latent
attention and recurrences are compiled, over rows of constants, so that compiled code may ask for them too.

Prompts come as four numbers, those of `Load`: chunks, and the mean new, past and cached tokens of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.core import FloatArray, compiled
from planner.llm import BYTES_PER_VALUE
from planner.roofline.attention_kernels import QUERY_BLOCK
from planner.roofline.attention_operators import (
    GroupedDecode,
    GroupedPrefill,
    IndexScores,
    LatentDecode,
    LatentPrefill,
    Recurrence,
)
from planner.roofline.block_sparse_operators import BlockDecode, BlockPrefill
from planner.roofline.chosen_operators import ChoosingIndex, ChosenPrefill, PromptSeconds
from planner.roofline.compressed_kernels import BYTES_OF_HEAD, BYTES_OF_PADDED_HEAD, HEAD_GROUP, padded_heads
from planner.roofline.compressed_operators import CompressedDecode, CompressedPrefill
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.index_kernels import INDEX_SCALE_BYTES, SCORE_BYTES
from planner.roofline.kernel_forms import (
    GpuPeaks,
    IndexScoresForm,
    IndexSelectionForm,
    LatentPrefillForm,
    PrefillForm,
    RecurrentPrefillForm,
    SizeCorrection,
)
from planner.roofline.operators import ACTIVATION_BYTES, Operator

PromptSecondsOfOne = Callable[[float, float, float, float], float]
"""Seconds of an operator over all its layers from (chunks, new, past, cached), chunks > 0."""
GROUPED, LATENT, RECURRENT = 0, 1, 2
"""Kinds of attention that are written out for compiled code."""
(
    KIND,
    COUNT,
    MOST_KEYS,
    PAIR_S,
    KEY_S,
    TOKEN_S,
    EXPANDED,
    ABSORBED,
    EXPANSION_S,
    IS_FITTED,
    START_S,
    HEAD_PAIR_S,
    IDEAL_PAIR_S,
    HEADS,
    ROW_TOKENS,
    LEAST_ROWS,
    ORDER,
    MEMORY_EFFICIENCY,
    NEW_S,
    PAST_S,
    FITTED_EXPANSION_S,
    SPARSE_START_S,
    SPARSE_TOKEN_S,
    SPARSE_SMS,
    FIRST_KNOTS,
    SECOND_KNOTS,
    STATE_S,
    CHAIN_S,
    FITTED_STATE_S,
    COLUMNS,
) = range(30)
"""Columns of the constants of an operator. On its roofline: kind, layers, most keys of a query (0: all), and seconds of
a query-key pair (of latent attention: a channel of one), of a token read and of what one new token moves; of latent
attention the channels per head of the expanded and of the absorbed form, and the expansion of a cached token [s].
By a fitted form, where there is one: start [s], a pair of one head at the kernel's share of peak [s] and of all heads
at peak [s], heads, extra keys each query row costs, rows of all processors' thread blocks that are not hidden, order of
the p-norm, share of the bandwidth, reads of a new and of a past token [s], expansion of a cached token [s], start [s],
time of a token [s] and processors (0: none) of the kernel over chosen keys, and knots of the correction (0: none). Of a
recurrence `PAIR_S` and `TOKEN_S` are FLOPs and traffic of a token, and so is `NEW_S` at the kernel's shares of peak;
beside them what moves the state of a sequence [s], a token in the chain of its sequence [s] and the state at the
kernel's share of the bandwidth [s]."""


@compiled
def interpolated(table: FloatArray, rows: int, columns: int, first: float, second: float) -> float:
    """A table over two grids of at least two knots each: linear between them, constant beyond.

    Args:
        table: knots of the first grid in column 0 and of the second in row 0, from 1 on, values between them; any
            shape that holds them.
        rows: knots of the first grid.
        columns: knots of the second.
        first: where, on the first.
        second: where, on the second.

    Returns:
        The value at one point.
    """
    return value_in(table, *cell_of(table, rows, columns, first, second))


@compiled
def cell_of(table: FloatArray, rows: int, columns: int, first: float, second: float) -> tuple[int, float, int, float]:
    """Where a point lies in a table; arguments as of `interpolated`.

    Args:
        table: with its knots.
        rows: knots of the first grid.
        columns: knots of the second.
        first: where, on the first.
        second: where, on the second.

    Returns:
        Row and column of the knots below, each followed by the share of the way to the next.
    """
    if first <= table[1, 0]:
        i, u = 1, 0.0
    elif first >= table[rows, 0]:
        i, u = rows - 1, 1.0
    else:
        i, beyond = 1, rows
        while beyond - i > 1:
            middle = (i + beyond) // 2
            if first < table[middle, 0]:
                beyond = middle
            else:
                i = middle
        u = (first - table[i, 0]) / (table[i + 1, 0] - table[i, 0])
    if second <= table[0, 1]:
        j, v = 1, 0.0
    elif second >= table[0, columns]:
        j, v = columns - 1, 1.0
    else:
        j, beyond = 1, columns
        while beyond - j > 1:
            middle = (j + beyond) // 2
            if second < table[0, middle]:
                beyond = middle
            else:
                j = middle
        v = (second - table[0, j]) / (table[0, j + 1] - table[0, j])
    return i, u, j, v


@compiled
def value_in(table: FloatArray, i: int, u: float, j: int, v: float) -> float:
    """The value of a table at a place that `cell_of` found.

    Args:
        table: values, with the knots of the one that was looked in.
        i: row of the knot below.
        u: share of the way to the next.
        j: column of the knot below.
        v: share of the way to the next.

    Returns:
        The value there.
    """
    w = 1.0 - v
    near = table[i, j] * w + table[i, j + 1] * v
    return float(near * (1.0 - u) + (table[i + 1, j] * w + table[i + 1, j + 1] * v) * u)


def with_knots(first: FloatArray, second: FloatArray, values: FloatArray) -> FloatArray:
    """A table for `interpolated`.

    Args:
        first: knots of the first grid, shape (m,).
        second: knots of the second grid, shape (n,).
        values: between them, shape (m, n).

    Returns:
        Knots and values in one, shape (1 + m, 1 + n).

    >>> table = with_knots(np.array([0.0, 2.0]), np.array([0.0, 1.0]), np.array([[0.0, 1.0], [4.0, 5.0]]))
    >>> interpolated.source(table, 2, 2, 1.0, 0.5), interpolated.source(table, 2, 2, -1.0, 9.0)
    (2.5, 1.0)
    """
    table = np.zeros((len(first) + 1, len(second) + 1))
    table[1:, 0], table[0, 1:], table[1:, 1:] = first, second, values
    return table


@compiled
def _pairs_of(new: float, past: float, window: float) -> float:
    """`planner.roofline.attention_kernels.attended_pairs` of one chunk."""
    if window == 0.0:
        return new * past + new * (new + 1.0) / 2.0
    growing = max(min(new, window - past), 0.0)
    return growing * past + growing * (growing + 1.0) / 2.0 + (new - growing) * window


@compiled
def _roofline_s(row: FloatArray, chunks: float, new: float, cached: float, pairs: float) -> float:
    """One layer of `GroupedPrefill` or `LatentPrefill` (its cheaper form) on its roofline, for pairs that are known."""
    if row[KIND] == LATENT:
        expanded_s = row[EXPANDED] * pairs * row[PAIR_S] + cached * row[EXPANSION_S]
        flops_s, read = min(expanded_s, row[ABSORBED] * pairs * row[PAIR_S]), cached
    else:
        window = row[MOST_KEYS]
        flops_s, read = pairs * row[PAIR_S], window + new if window > 0.0 and cached > window else cached + new
    return float(chunks * max(flops_s, read * row[KEY_S] + new * row[TOKEN_S]))


@compiled
def _p_norm(one: float, other: float, order: float) -> float:
    """`planner.roofline.arithmetic.p_norm` of two numbers."""
    more, less = max(one, other), min(one, other)
    return float(more * (1.0 + (less / more) ** order) ** (1.0 / order))


@compiled
def _factor(row: FloatArray, table: FloatArray, first: float, second: float) -> float:
    """`SizeCorrection.factor` of two sizes > 0."""
    knots = int(row[FIRST_KNOTS]), int(row[SECOND_KNOTS])
    return math.exp(interpolated(table, knots[0], knots[1], math.log2(first), math.log2(second)))


@compiled
def _kernel_s(
    row: FloatArray,
    table: FloatArray,
    chunks: float,
    new: float,
    past: float,
    pairs: float,
    read: float,
    longest: float,
) -> tuple[float, float, float]:
    """p_norm(compute, memory) [s], factor on it, and the ideal [s], from past tokens read and the longest row."""
    traffic_s = chunks * (new * row[NEW_S] + read * row[PAST_S])
    work, least = chunks * row[HEADS] * (pairs + row[ROW_TOKENS] * new), row[LEAST_ROWS] * (longest + row[ROW_TOKENS])
    compute, memory = max(work, least) * row[HEAD_PAIR_S], traffic_s / row[MEMORY_EFFICIENCY]
    took = _p_norm(compute, memory, row[ORDER])
    if row[FIRST_KNOTS] == 0.0:
        return took, 1.0, 0.0
    tokens = past + new
    factor = _factor(row, table, tokens, chunks * new / tokens * row[HEADS])
    return took, factor, max(chunks * pairs * row[IDEAL_PAIR_S], traffic_s)


@compiled
def _grouped_s(row: FloatArray, table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """One layer of `GroupedPrefill`: `prefill_attention_s`, never below its roofline."""
    window = row[MOST_KEYS]
    pairs = _pairs_of(new, past, window)
    least = _roofline_s(row, chunks, new, cached, pairs)
    if row[IS_FITTED] == 0.0:
        return least
    read, longest = past, past + new
    if window > 0.0:
        read, longest = min(past, window), min(longest, window + QUERY_BLOCK)
    took, factor, ideal = _kernel_s(row, table, chunks, new, past, pairs, read, longest)
    return float(max((row[START_S] + took) * factor, ideal, least))


@compiled
def _latent_s(row: FloatArray, table: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """One layer of `LatentPrefill`: `latent_prefill_s`, the quicker of its two forms, never below its roofline.

    The forms differ in their channels alone, to which all of `latent_prefill_s` beyond its start is in proportion.
    """
    top_k = row[MOST_KEYS]
    least = _roofline_s(row, chunks, new, cached, _pairs_of(new, past, top_k))
    if row[IS_FITTED] == 0.0:
        return least
    if row[SPARSE_SMS] > 0.0 and past + new > top_k:
        return float(max(row[SPARSE_START_S] + max(chunks * new, row[SPARSE_SMS]) * row[SPARSE_TOKEN_S], least))
    seen = min(past, top_k) if top_k > 0.0 else past
    took, factor, ideal = _kernel_s(row, table, chunks, new, seen, _pairs_of(new, seen, 0.0), seen, seen + new)
    expanded_s = max((row[START_S] + row[EXPANDED] * took) * factor, row[EXPANDED] * ideal)
    absorbed_s = max((row[START_S] + row[ABSORBED] * took) * factor, row[ABSORBED] * ideal)
    return float(max(min(expanded_s + row[FITTED_EXPANSION_S] * chunks * cached, absorbed_s), least))


@compiled
def _recurrent_s(row: FloatArray, table: FloatArray, chunks: float, new: float) -> float:
    """One layer of `Recurrence`: `recurrent_prefill_s`, never below its roofline."""
    least = chunks * max(new * row[PAIR_S], row[STATE_S] + new * row[TOKEN_S])
    if row[IS_FITTED] == 0.0:
        return float(least)
    work, chain = chunks * (row[FITTED_STATE_S] + new * row[NEW_S]), new * row[CHAIN_S]
    took = row[START_S] + _p_norm(work, chain, row[ORDER])
    if row[FIRST_KNOTS] > 0.0:
        took *= _factor(row, table, new, chunks * row[HEADS])
    return float(max(took, least))


@compiled
def attention_s(rows: FloatArray, tables: FloatArray, chunks: float, new: float, past: float, cached: float) -> float:
    """Seconds of grouped and latent attention and of recurrences of a step's prompts over all their layers.

    Args:
        rows: constants of each operator, shape (operators, COLUMNS).
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
        if row[KIND] == LATENT:
            total += row[COUNT] * _latent_s(row, table, chunks, new, past, cached)
        elif row[KIND] == RECURRENT:
            total += row[COUNT] * _recurrent_s(row, table, chunks, new)
        else:
            total += row[COUNT] * _grouped_s(row, table, chunks, new, past, cached)
    return total


class PromptAttention:
    """Seconds of a step's prompts from (chunks, new, past, cached), chunks > 0.

    Attributes:
        rows, tables: of grouped and latent attention and recurrences, as `attention_s` wants them.
        others: the other operators.
    """

    def __init__(
        self, rows: Sequence[FloatArray], tables: Sequence[FloatArray], others: Sequence[PromptSecondsOfOne]
    ) -> None:
        self.others = tuple(others)
        self.rows = np.array(rows).reshape(-1, COLUMNS)
        largest = np.max([(2, 2), *(table.shape for table in tables)], axis=0)
        self.tables = np.zeros((len(rows), *largest))
        for place, table in zip(self.tables, tables, strict=True):
            place[: table.shape[0], : table.shape[1]] = table

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        """Of all operators [s]."""
        total = attention_s(self.rows, self.tables, chunks, new, past, cached) if len(self.rows) else 0.0
        for other in self.others:
            total += other(chunks, new, past, cached)
        return total


def prompt_attention(operators: Sequence[Operator], gpu: CalibratedGpu) -> PromptAttention:
    """`operator_seconds` of a step's prompts, summed over operators that depend on its shape; decodes take no part.

    Args:
        operators: those of a step with `Driver.SHAPE`.
        gpu: that runs them.

    Returns:
        Seconds as a function of (chunks, new, past, cached).

    Raises:
        AssertionError: an operator that has no plain form here.
    """
    rows: list[FloatArray] = []
    tables: list[FloatArray] = []
    others: list[PromptSecondsOfOne] = []
    for operator in operators:
        if isinstance(operator, GroupedPrefill | LatentPrefill | Recurrence):
            if isinstance(operator, ChosenPrefill) and (seconds := operator.prompt_seconds(gpu)) is not None:
                least_s = partial(_roofline_s, _row(_latent_roofline(operator, gpu)))
                others.append(_ModuleKernel(operator.count, least_s, seconds, operator.top_k))
                continue
            row, correction = _constants(operator, gpu)
            tables.append(_correction_table(correction))
            first, second = tables[-1].shape
            rows.append(_row({**row, FIRST_KNOTS: first - 1, SECOND_KNOTS: second - 1}))
        elif isinstance(operator, IndexScores):
            others.append(_index_timer(operator, gpu))
        elif isinstance(operator, CompressedPrefill):
            others.append(_compressed_timer(operator, gpu))
        elif isinstance(operator, BlockPrefill):
            others.append(operator.timer(gpu))
        elif not isinstance(operator, GroupedDecode | CompressedDecode | LatentDecode | BlockDecode):
            raise AssertionError(f"no plain form of {type(operator).__name__}")
    return PromptAttention(rows, tables, others)


def _correction_table(correction: SizeCorrection | None) -> FloatArray:
    """`SizeCorrection.factor` of two sizes > 0, as its logarithm over theirs; of no knots where there is none."""
    if correction is None:
        return np.zeros((1, 1))
    first, second, table = (
        np.array(values) for values in (correction.first_log2, correction.second_log2, correction.log_factor)
    )
    if len(first) == 1:  # a table needs two knots
        first, table = np.append(first, first + 1.0), np.vstack([table, table])
    if len(second) == 1:
        second, table = np.append(second, second + 1.0), np.hstack([table, table])
    return with_knots(first, second, table)


def _correction(correction: SizeCorrection) -> Callable[[float, float], float]:
    """`SizeCorrection.factor` of two sizes > 0."""
    table = _correction_table(correction)
    knots, log2, exp = np.array(table.shape) - 1, math.log2, math.exp
    rows, columns = knots.tolist()
    return lambda first, second: exp(interpolated(table, rows, columns, log2(first), log2(second)))


def _row(constants: Mapping[int, float]) -> FloatArray:
    """Constants of an operator by column, 0 where there is none; shape (COLUMNS,)."""
    row = np.zeros(COLUMNS)
    for column, value in constants.items():
        row[column] = value
    return row


def _fitted(
    form: PrefillForm | LatentPrefillForm,
    peaks: GpuPeaks,
    efficiency: float,
    row_tokens: float,
    heads: float,
    pair_flops: float,
) -> dict[int, float]:
    """What the two forms of prefill attention share; `pair_flops` are those of one pair of one head."""
    return {
        IS_FITTED: 1.0,
        START_S: form.start_s,
        HEAD_PAIR_S: pair_flops / (efficiency * peaks.flops_per_s),
        IDEAL_PAIR_S: heads * pair_flops / peaks.flops_per_s,
        HEADS: heads,
        ROW_TOKENS: row_tokens,
        LEAST_ROWS: form.block_share * QUERY_BLOCK * peaks.sms,
        ORDER: form.order,
        MEMORY_EFFICIENCY: form.memory_efficiency,
    }


def _constants(
    operator: GroupedPrefill | LatentPrefill | Recurrence, gpu: CalibratedGpu
) -> tuple[dict[int, float], SizeCorrection | None]:
    """Constants of an operator by column, and its correction."""
    if isinstance(operator, Recurrence):
        return _recurrent_constants(operator, gpu)
    return (
        _latent_constants(operator, gpu) if isinstance(operator, LatentPrefill) else _grouped_constants(operator, gpu)
    )


def _grouped_constants(operator: GroupedPrefill, gpu: CalibratedGpu) -> tuple[dict[int, float], SizeCorrection | None]:
    """Constants of grouped attention, and its correction."""
    heads, d = operator.heads, operator.shape.width
    flops_per_s, bytes_per_s = _peaks(operator, gpu)
    value_bytes = BYTES_PER_VALUE[operator.kv_cache]
    kv_bytes = 2.0 * operator.kv_heads * d * value_bytes
    roofline = {
        KIND: GROUPED,
        COUNT: operator.count,
        MOST_KEYS: operator.window,
        PAIR_S: 4.0 * heads * d / flops_per_s,
        KEY_S: kv_bytes / bytes_per_s,
        TOKEN_S: (kv_bytes + 2.0 * heads * d * ACTIVATION_BYTES) / bytes_per_s,
    }
    form = gpu.form(PrefillForm, *operator.fit_keys)
    if form is None:
        return roofline, None
    peaks = gpu.peaks(operator.kv_cache.arithmetic)
    row_tokens = form.row_tokens * (form.window_row_growth if operator.window else 1.0)
    fitted = _fitted(form, peaks, form.compute_efficiency(operator.head_dim), row_tokens, heads, 4.0 * d)
    reads = {
        NEW_S: d * (4.0 * heads + 2.0 * operator.kv_heads * (2.0 + 2.0 * value_bytes)) / peaks.bytes_per_s,
        PAST_S: kv_bytes / peaks.bytes_per_s,
    }
    return {**roofline, **fitted, **reads}, form.correction


def _latent_roofline(operator: LatentPrefill, gpu: CalibratedGpu) -> dict[int, float]:
    """Constants of latent attention on its roofline."""
    heads = operator.heads
    flops_per_s, bytes_per_s = _peaks(operator, gpu)
    expanded, absorbed = (key + value for key, value in operator.forms)
    key_s = (operator.kv_rank + operator.rope_dim) * BYTES_PER_VALUE[operator.kv_cache] / bytes_per_s
    return {
        KIND: LATENT,
        COUNT: operator.count,
        MOST_KEYS: operator.top_k,
        PAIR_S: 2.0 * heads / flops_per_s,
        KEY_S: key_s,
        TOKEN_S: key_s + heads * expanded * ACTIVATION_BYTES / bytes_per_s,
        EXPANDED: expanded,
        ABSORBED: absorbed,
        EXPANSION_S: _expansion_flops(operator) / flops_per_s,
    }


def _expansion_flops(operator: LatentPrefill) -> float:
    """That make keys and values of one cached token."""
    channels = operator.key_dim - operator.rope_dim + operator.value_dim
    return 2.0 * operator.kv_rank * operator.heads * channels


def _latent_constants(operator: LatentPrefill, gpu: CalibratedGpu) -> tuple[dict[int, float], SizeCorrection | None]:
    """Constants of latent attention, and its correction."""
    roofline, heads = _latent_roofline(operator, gpu), operator.heads
    form = gpu.form(LatentPrefillForm, *operator.fit_keys)
    if form is None:
        return roofline, None
    peaks, chosen = gpu.peaks(operator.kv_cache.arithmetic), operator.sparse_form(gpu)
    fitted = _fitted(form, peaks, form.compute_efficiency, form.row_tokens, heads, 2.0)
    reads = {
        NEW_S: 2.0 * heads * 2.0 / peaks.bytes_per_s,
        PAST_S: heads * 2.0 / peaks.bytes_per_s,
        FITTED_EXPANSION_S: _expansion_flops(operator) / (form.compute_efficiency * peaks.flops_per_s),
    }
    if chosen is not None:
        sparse_token_s = operator.sparse_token_s(chosen, gpu)
        reads |= {SPARSE_START_S: chosen.start_s, SPARSE_TOKEN_S: sparse_token_s, SPARSE_SMS: peaks.sms}
    return {**roofline, **fitted, **reads}, form.correction


def _recurrent_constants(operator: Recurrence, gpu: CalibratedGpu) -> tuple[dict[int, float], SizeCorrection | None]:
    """Constants of a recurrence, and its correction."""
    shape, (flops_per_s, bytes_per_s) = operator.shape, _peaks(operator, gpu)
    roofline = {
        KIND: RECURRENT,
        COUNT: operator.count,
        PAIR_S: shape.scan_flops / flops_per_s,
        TOKEN_S: shape.token_bytes / bytes_per_s,
        STATE_S: shape.state_bytes / bytes_per_s,
    }
    form = gpu.form(RecurrentPrefillForm, *operator.fit_keys)
    if form is None or gpu.first_key(*operator.decode_keys) is None:
        return roofline, None
    moved = form.memory_efficiency * bytes_per_s
    fitted = {
        IS_FITTED: 1.0,
        START_S: form.start_s,
        NEW_S: roofline[PAIR_S] / form.compute_efficiency + shape.passed_bytes / moved,
        FITTED_STATE_S: shape.state_bytes / moved,
        CHAIN_S: form.token_s,
        ORDER: form.order,
        HEADS: shape.heads,
    }
    return {**roofline, **fitted}, form.correction


@dataclass(frozen=True, slots=True)
class _IndexRoofline:
    """`IndexScores` on its roofline: seconds per pair and per token read."""

    count: float
    pair_s: float
    token_s: float

    def layer_s(self, chunks: float, new: float, cached: float, pairs: float) -> float:
        """Of one layer, for pairs that are known."""
        return chunks * max(pairs * self.pair_s, (cached + new) * self.token_s)

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        return self.count * self.layer_s(chunks, new, cached, _pairs_of(new, past, 0.0))


@dataclass(frozen=True, slots=True)
class _ModuleKernel:
    """Latent attention over chosen keys, or the index that chooses them, by the form of a module.

    Attributes:
        count: layers.
        roofline_s: of one layer, from (chunks, new, cached, pairs).
        seconds: of one layer.
        top_k: keys a query of the operator works on at most, 0 = all.
    """

    count: float
    roofline_s: PromptSecondsOfOne
    seconds: PromptSeconds
    top_k: float

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        least = self.roofline_s(chunks, new, cached, _pairs_of(new, past, self.top_k))
        took: float = self.seconds(chunks, new, past)
        return self.count * (took if took > least else least)


@dataclass(frozen=True, slots=True)
class _IndexKernel:
    """`IndexScores` by `index_scores_s` and `index_selection_s`, never below its roofline.

    Attributes:
        roofline: of the operator.
        scores: form of the scores.
        pair_s: FLOPs of a pair at the kernel's share of peak [s].
        key_s: of a key read at the kernel's share of the bandwidth [s].
        selection: form of the selection.
        score_s: of a score read at the full bandwidth [s].
        top_k: most keys a query attends to.
        sms: processors.
    """

    roofline: _IndexRoofline
    scores: IndexScoresForm
    pair_s: float
    key_s: float
    selection: IndexSelectionForm
    score_s: float
    top_k: float
    sms: float

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        pairs, form = _pairs_of(new, past, 0.0), self.scores
        compute = chunks * pairs * self.pair_s
        memory = chunks * (cached + new) * self.key_s
        more, less = (compute, memory) if compute > memory else (memory, compute)
        took: float = form.start_s + more * (1.0 + (less / more) ** form.order) ** (1.0 / form.order)
        seen = past + new
        if seen > self.top_k:
            selection, before = self.selection, max(past, self.top_k)
            rows, context = chunks * (seen - before), (seen + before + 1.0) / 2.0
            selected_s = selection.start_s + max(rows / self.sms, 1.0) * (selection.row_s + selection.key_s * context)
            took += max(selected_s, rows * context * self.score_s)
        return self.roofline.count * max(took, self.roofline.layer_s(chunks, new, cached, pairs))


def _index_timer(operator: IndexScores, gpu: CalibratedGpu) -> PromptSecondsOfOne:
    flops_per_s, bytes_per_s = _peaks(operator, gpu)
    ratio = operator.ratio
    pair_s = 2.0 * operator.heads * operator.head_dim / ratio / flops_per_s
    roofline = _IndexRoofline(operator.count, pair_s, operator.head_dim / ratio / bytes_per_s)
    if isinstance(operator, ChoosingIndex) and (seconds := operator.prompt_seconds(gpu)) is not None:
        return _ModuleKernel(operator.count, roofline.layer_s, seconds, 0.0)
    prefill, decode = operator.scores_keys
    scores = gpu.form(IndexScoresForm, prefill)
    selection = gpu.form(IndexSelectionForm, *operator.selection_keys("prefill"))
    if scores is None or selection is None or gpu.first_key(decode) is None:
        return roofline
    return _IndexKernel(
        roofline=roofline,
        scores=scores,
        pair_s=pair_s / scores.compute_efficiency,
        key_s=(operator.head_dim + INDEX_SCALE_BYTES) / ratio / (scores.memory_efficiency * bytes_per_s),
        selection=replace(selection, key_s=selection.key_s / ratio),
        score_s=SCORE_BYTES / ratio / bytes_per_s,
        top_k=operator.top_k * ratio,
        sms=gpu.peaks(operator.dtype).sms,
    )


@dataclass(frozen=True, slots=True)
class _CompressedRoofline:
    """`CompressedPrefill` on its roofline.

    Attributes:
        count: layers.
        window: tokens a query sees uncompressed.
        ratio: tokens to an entry, 0 = none.
        seen: tokens whose entries a query sees, 0 = all.
        top_k: most entries of a query, 0 = all.
        pair_s: FLOPs of a pair [s].
        entry_s: that reads one key [s].
        token_s: that moves what one new token reads and writes [s].
    """

    count: float
    window: float
    ratio: float
    seen: float
    top_k: float
    pair_s: float
    entry_s: float
    token_s: float

    def pairs(self, new: float, past: float) -> float:
        """`compressed_pairs` of a chunk."""
        pairs = _pairs_of(new, past, self.window)
        return pairs + _pairs_of(new, past, self.seen) / self.ratio if self.ratio else pairs

    def read(self, new: float, cached: float) -> float:
        """Keys of a chunk that are read at least once."""
        read = cached if cached < self.window else self.window
        if not self.ratio:
            return read
        entries, most = cached / self.ratio, self.top_k * new
        return read + (most if self.top_k and most < entries else entries)

    def layer_s(self, chunks: float, new: float, pairs: float, read: float) -> float:
        """Of one layer, for pairs and keys that are known."""
        flops_s, traffic_s = pairs * self.pair_s, read * self.entry_s + new * self.token_s
        return chunks * (flops_s if flops_s > traffic_s else traffic_s)

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        return self.count * self.layer_s(chunks, new, self.pairs(new, past), self.read(new, cached))


@dataclass(frozen=True, slots=True)
class _CompressedKernel:
    """`CompressedPrefill` by `compressed_attention_s`, never below its roofline.

    Attributes:
        roofline: of the operator.
        start_s: of the form [s].
        pair_s: FLOPs of a pair at the kernel's share of peak, heads filled up [s].
        entry_s: of a key read at its share of the bandwidth [s].
        token_s: of a token's passes at that share, and of the keys it costs beside those it sees [s].
        groups: of heads, filled up.
        correction: factor at two sizes, if the form has one.
    """

    roofline: _CompressedRoofline
    start_s: float
    pair_s: float
    entry_s: float
    token_s: float
    groups: float
    correction: Callable[[float, float], float] | None

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        roofline = self.roofline
        pairs, read = roofline.pairs(new, past), roofline.read(new, cached)
        took = self.start_s + chunks * (pairs * self.pair_s + read * self.entry_s + new * self.token_s)
        if self.correction is not None:
            took *= self.correction(pairs / new, chunks * new * self.groups)
        ideal = roofline.layer_s(chunks, new, pairs, read)
        return roofline.count * (took if took > ideal else ideal)


def _compressed_timer(operator: CompressedPrefill, gpu: CalibratedGpu) -> PromptSecondsOfOne:
    shape, (flops_per_s, bytes_per_s) = operator.shape, _peaks(operator, gpu)
    one = operator.least_work(1.0, 1.0, 0.0)
    roofline = _CompressedRoofline(
        count=operator.count,
        window=shape.window,
        ratio=shape.ratio,
        seen=shape.top_k * shape.ratio,
        top_k=shape.top_k,
        pair_s=float(one.flops) / flops_per_s,
        entry_s=shape.entry_bytes / bytes_per_s,
        token_s=float(one.hbm_bytes) / bytes_per_s,
    )
    form = operator.form(gpu)
    if form is None:
        return roofline
    padded, moved = padded_heads(shape.heads), form.memory_efficiency * bytes_per_s
    pair_s = 4.0 * padded * shape.head_dim / (form.compute_efficiency * flops_per_s)
    passes = shape.head_dim * (BYTES_OF_HEAD * shape.heads + BYTES_OF_PADDED_HEAD * padded)
    return _CompressedKernel(
        roofline=roofline,
        start_s=form.start_s,
        pair_s=pair_s,
        entry_s=shape.entry_bytes / moved,
        token_s=passes / moved + form.row_keys * pair_s,
        groups=padded / HEAD_GROUP,
        correction=None if form.correction is None else _correction(form.correction),
    )


def _peaks(operator: Operator, gpu: CalibratedGpu) -> tuple[float, float]:
    """FLOP/s and bytes/s of an operator's roofline."""
    return gpu.peaks(operator.dtype).flops_per_s, gpu.sku.hbm_bandwidth_bytes_per_s.value
