"""One step at a time: what the vectorised formulas say, in plain floats and with all constants worked out beforehand.

The simulator asks for one step after another, where a formula over arrays costs a hundred times its arithmetic. Here
are the two things that a step with prompts needs: interpolation in a table (`BilinearTable`) and the attention of its
prompts (`prompt_attention`). The equations are those of `planner.roofline.attention_kernels` and of
`planner.roofline.attention_operators`, in the same letters; tests hold the two against each other.

Prompts come as four numbers, those of `Load`: chunks, and the mean new, past and cached tokens of one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from planner.core import FloatArray
from planner.llm import BYTES_PER_VALUE
from planner.roofline.attention_kernels import QUERY_BLOCK, attended_pairs
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

PromptAttention = Callable[[float, float, float, float], float]
"""Seconds of an operator over all its layers from (chunks, new, past, cached), chunks > 0."""


class BilinearTable:
    """A table over two grids of at least two knots each: linear between them, constant beyond.

    >>> table = BilinearTable(np.array([0.0, 2.0]), np.array([0.0, 1.0]), np.array([[0.0, 1.0], [4.0, 5.0]]))
    >>> table.at(1.0, 0.5), table.at(-1.0, 9.0)
    (2.5, 1.0)
    """

    __slots__ = ("_first", "_second", "_values")

    def __init__(self, first: FloatArray, second: FloatArray, values: FloatArray) -> None:
        self._first: list[float] = first.tolist()
        self._second: list[float] = second.tolist()
        self._values: list[list[float]] = values.tolist()

    def at(self, first: float, second: float) -> float:
        """The value at one point."""
        i, u = _cell(self._first, first)
        j, v = _cell(self._second, second)
        near, far, w = self._values[i], self._values[i + 1], 1.0 - v
        return (near[j] * w + near[j + 1] * v) * (1.0 - u) + (far[j] * w + far[j + 1] * v) * u


def _cell(grid: list[float], x: float) -> tuple[int, float]:
    """Cell of a grid and the position in it, in [0, 1]."""
    if x <= grid[0]:
        return 0, 0.0
    if x >= grid[-1]:
        return len(grid) - 2, 1.0
    i = bisect_right(grid, x) - 1
    low = grid[i]
    return i, (x - low) / (grid[i + 1] - low)


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
    timers: list[PromptAttention] = []
    for operator in operators:
        if isinstance(operator, GroupedPrefill):
            timers.append(_grouped_timer(operator, gpu))
        elif isinstance(operator, LatentPrefill):
            timers.append(_latent_timer(operator, gpu))
        elif isinstance(operator, IndexScores):
            timers.append(_index_timer(operator, gpu))
        elif isinstance(operator, Recurrence):
            timers.append(_recurrence_timer(operator, gpu))
        elif isinstance(operator, CompressedPrefill):
            timers.append(_compressed_timer(operator, gpu))
        elif isinstance(operator, BlockPrefill):
            timers.append(operator.timer(gpu))
        elif not isinstance(operator, GroupedDecode | CompressedDecode | LatentDecode | BlockDecode):
            raise AssertionError(f"no plain form of {type(operator).__name__}")
    return timers[0] if len(timers) == 1 else _Sum(tuple(timers))


@dataclass(frozen=True, slots=True)
class _Sum:
    """The seconds of several operators."""

    timers: tuple[PromptAttention, ...]

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        total = 0.0
        for timer in self.timers:
            total += timer(chunks, new, past, cached)
        return total


@dataclass(frozen=True, slots=True)
class _PrefillKernel:
    """What the two forms of prefill attention share: p_norm(compute, memory), and its correction.

    Attributes:
        pair_s: of one query-key pair of one head at the kernel's share of peak [s].
        ideal_pair_s: of one query-key pair of all heads at peak [s].
        heads: query heads on this GPU.
        row_tokens: extra keys each query row costs.
        block: rows of all processors' thread blocks that are not hidden.
        order: of the p-norm.
        memory_efficiency: of the bandwidth.
        correction: factor at two sizes, if the form has one.
    """

    pair_s: float
    ideal_pair_s: float
    heads: float
    row_tokens: float
    block: float
    order: float
    memory_efficiency: float
    correction: Callable[[float, float], float] | None

    @classmethod
    def of(
        cls,
        form: PrefillForm | LatentPrefillForm,
        peaks: GpuPeaks,
        efficiency: float,
        row_tokens: float,
        heads: float,
        pair_flops: float,
    ) -> Self:
        """Constants of a form; `pair_flops` are those of one pair of one head."""
        return cls(
            pair_s=pair_flops / (efficiency * peaks.flops_per_s),
            ideal_pair_s=heads * pair_flops / peaks.flops_per_s,
            heads=heads,
            row_tokens=row_tokens,
            block=form.block_share * QUERY_BLOCK * peaks.sms,
            order=form.order,
            memory_efficiency=form.memory_efficiency,
            correction=None if form.correction is None else _correction(form.correction),
        )

    def __call__(
        self, chunks: float, new: float, past: float, pairs: float, longest: float, traffic_s: float
    ) -> tuple[float, float, float]:
        """Joined time [s], factor on it, and the ideal [s], from the longest row and the traffic at full bandwidth."""
        row_tokens, heads = self.row_tokens, self.heads
        work, least = chunks * heads * (pairs + row_tokens * new), self.block * (longest + row_tokens)
        compute, memory = (work if work > least else least) * self.pair_s, traffic_s / self.memory_efficiency
        more, less = (compute, memory) if compute > memory else (memory, compute)
        order = self.order
        took = more * (1.0 + (less / more) ** order) ** (1.0 / order)
        if self.correction is None:
            return took, 1.0, 0.0
        tokens, flops_s = past + new, chunks * pairs * self.ideal_pair_s
        factor = self.correction(tokens, chunks * new / tokens * heads)
        return took, factor, flops_s if flops_s > traffic_s else traffic_s


def _correction(correction: SizeCorrection) -> Callable[[float, float], float]:
    """`SizeCorrection.factor` of two sizes > 0."""
    first, second, table = (
        np.array(values) for values in (correction.first_log2, correction.second_log2, correction.log_factor)
    )
    if len(first) == 1:  # a table needs two knots
        first, table = np.append(first, first + 1.0), np.vstack([table, table])
    if len(second) == 1:
        second, table = np.append(second, second + 1.0), np.hstack([table, table])
    at, log2, exp = BilinearTable(first, second, table).at, math.log2, math.exp
    return lambda first_size, second_size: exp(at(log2(first_size), log2(second_size)))


@dataclass(frozen=True, slots=True)
class _GroupedRoofline:
    """`GroupedPrefill` on its roofline: seconds per pair, per token read and per new token."""

    count: float
    window: float
    pair_s: float
    kv_s: float
    token_s: float

    def layer_s(self, chunks: float, new: float, cached: float, pairs: float) -> float:
        """Of one layer, for pairs that are known."""
        window = self.window
        read = window + new if window and cached > window else cached + new
        flops_s, traffic_s = pairs * self.pair_s, read * self.kv_s + new * self.token_s
        return chunks * (flops_s if flops_s > traffic_s else traffic_s)

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        return self.count * self.layer_s(chunks, new, cached, attended_pairs(new, past, self.window))


@dataclass(frozen=True, slots=True)
class _GroupedKernel:
    """`GroupedPrefill` by `prefill_attention_s`, never below its roofline."""

    roofline: _GroupedRoofline
    kernel: _PrefillKernel
    start_s: float
    new_s: float
    past_s: float

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        roofline = self.roofline
        window = roofline.window
        pairs, read, longest = attended_pairs(new, past, window), past, past + new
        if window:
            read, longest = min(past, window), min(longest, window + QUERY_BLOCK)
        traffic_s = chunks * (new * self.new_s + read * self.past_s)
        took, factor, ideal = self.kernel(chunks, new, past, pairs, longest, traffic_s)
        return roofline.count * max((self.start_s + took) * factor, ideal, roofline.layer_s(chunks, new, cached, pairs))


def _grouped_timer(operator: GroupedPrefill, gpu: CalibratedGpu) -> PromptAttention:
    heads, d = operator.heads, operator.shape.width
    flops_per_s, bytes_per_s = _peaks(operator, gpu)
    value_bytes = BYTES_PER_VALUE[operator.kv_cache]
    kv_bytes = 2.0 * operator.kv_heads * d * value_bytes
    roofline = _GroupedRoofline(
        count=operator.count,
        window=operator.window,
        pair_s=4.0 * heads * d / flops_per_s,
        kv_s=kv_bytes / bytes_per_s,
        token_s=(kv_bytes + 2.0 * heads * d * ACTIVATION_BYTES) / bytes_per_s,
    )
    form = gpu.form(PrefillForm, *operator.fit_keys)
    if form is None:
        return roofline
    peaks = gpu.peaks(operator.kv_cache.arithmetic)
    row_tokens = form.row_tokens * (form.window_row_growth if operator.window else 1.0)
    return _GroupedKernel(
        roofline=roofline,
        kernel=_PrefillKernel.of(form, peaks, form.compute_efficiency(operator.head_dim), row_tokens, heads, 4.0 * d),
        start_s=form.start_s,
        new_s=d * (4.0 * heads + 2.0 * operator.kv_heads * (2.0 + 2.0 * value_bytes)) / peaks.bytes_per_s,
        past_s=kv_bytes / peaks.bytes_per_s,
    )


@dataclass(frozen=True, slots=True)
class _LatentRoofline:
    """`LatentPrefill` on its roofline, in the cheaper of its two forms.

    Attributes:
        count: layers.
        top_k: most keys of a query, 0 = all.
        expanded: channels per head of keys and values in the expanded form.
        absorbed: the same in the absorbed form.
        channel_s: of one pair and channel [s].
        expansion_s: that makes keys and values of one cached token [s].
        row_s: that reads one latent row [s].
        token_s: that moves what one new token reads and writes [s].
    """

    count: float
    top_k: float
    expanded: float
    absorbed: float
    channel_s: float
    expansion_s: float
    row_s: float
    token_s: float

    def layer_s(self, chunks: float, new: float, cached: float, pairs: float) -> float:
        """Of one layer, for pairs that are known."""
        channel_s = self.channel_s
        flops_s = min(self.expanded * pairs * channel_s + cached * self.expansion_s, self.absorbed * pairs * channel_s)
        traffic_s = cached * self.row_s + new * self.token_s
        return chunks * (flops_s if flops_s > traffic_s else traffic_s)

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        return self.count * self.layer_s(chunks, new, cached, attended_pairs(new, past, self.top_k))


@dataclass(frozen=True, slots=True)
class _LatentKernel:
    """`LatentPrefill` by `latent_prefill_s`, the quicker of its two forms, never below the roofline.

    The forms differ in their channels alone, to which all of `latent_prefill_s` beyond its start is in proportion.
    """

    roofline: _LatentRoofline
    kernel: _PrefillKernel
    start_s: float
    read_s: float
    expansion_s: float
    sparse: tuple[float, float, float] | None
    """Start [s], time of a token [s] and processors of the kernel over chosen keys."""

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        roofline, start_s = self.roofline, self.start_s
        top_k, expanded, absorbed = roofline.top_k, roofline.expanded, roofline.absorbed
        if self.sparse is not None and past + new > top_k:
            pairs, (start_s, token_s, sms) = attended_pairs(new, past, top_k), self.sparse
            sparse_s = start_s + max(chunks * new, sms) * token_s
            return roofline.count * max(sparse_s, roofline.layer_s(chunks, new, cached, pairs))
        seen = min(past, top_k) if top_k else past
        pairs = attended_pairs(new, seen, 0.0)
        traffic_s = chunks * (2.0 * new + seen) * self.read_s
        took, factor, ideal = self.kernel(chunks, new, seen, pairs, seen + new, traffic_s)
        expanded_s = max((start_s + expanded * took) * factor, expanded * ideal) + self.expansion_s * chunks * cached
        absorbed_s = max((start_s + absorbed * took) * factor, absorbed * ideal)
        if top_k and past + new > top_k:
            pairs = attended_pairs(new, past, top_k)
        return roofline.count * max(min(expanded_s, absorbed_s), roofline.layer_s(chunks, new, cached, pairs))


def _latent_timer(operator: LatentPrefill, gpu: CalibratedGpu) -> PromptAttention:
    heads = operator.heads
    flops_per_s, bytes_per_s = _peaks(operator, gpu)
    expanded, absorbed = (key + value for key, value in operator.forms)
    expansion_flops = 2.0 * operator.kv_rank * heads * (operator.key_dim - operator.rope_dim + operator.value_dim)
    row_s = (operator.kv_rank + operator.rope_dim) * BYTES_PER_VALUE[operator.kv_cache] / bytes_per_s
    roofline = _LatentRoofline(
        count=operator.count,
        top_k=operator.top_k,
        expanded=expanded,
        absorbed=absorbed,
        channel_s=2.0 * heads / flops_per_s,
        expansion_s=expansion_flops / flops_per_s,
        row_s=row_s,
        token_s=row_s + heads * expanded * ACTIVATION_BYTES / bytes_per_s,
    )
    if isinstance(operator, ChosenPrefill) and (seconds := operator.prompt_seconds(gpu)) is not None:
        return _ModuleKernel(roofline, seconds, operator.top_k)
    form = gpu.form(LatentPrefillForm, *operator.fit_keys)
    if form is None:
        return roofline
    peaks, chosen = gpu.peaks(operator.kv_cache.arithmetic), operator.sparse_form(gpu)
    return _LatentKernel(
        roofline=roofline,
        kernel=_PrefillKernel.of(form, peaks, form.compute_efficiency, form.row_tokens, heads, 2.0),
        start_s=form.start_s,
        read_s=heads * 2.0 / peaks.bytes_per_s,
        expansion_s=expansion_flops / (form.compute_efficiency * peaks.flops_per_s),
        sparse=None if chosen is None else (chosen.start_s, operator.sparse_token_s(chosen, gpu), peaks.sms),
    )


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
        return self.count * self.layer_s(chunks, new, cached, attended_pairs(new, past, 0.0))


@dataclass(frozen=True, slots=True)
class _ModuleKernel:
    """Latent attention over chosen keys, or the index that chooses them, by the form of a module.

    Attributes:
        roofline: of the operator.
        seconds: of one layer.
        top_k: keys a query of the operator works on at most, 0 = all.
    """

    roofline: _LatentRoofline | _IndexRoofline
    seconds: PromptSeconds
    top_k: float

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        least = self.roofline.layer_s(chunks, new, cached, attended_pairs(new, past, self.top_k))
        took: float = self.seconds(chunks, new, past)
        return self.roofline.count * (took if took > least else least)


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
        pairs, form = attended_pairs(new, past, 0.0), self.scores
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


def _index_timer(operator: IndexScores, gpu: CalibratedGpu) -> PromptAttention:
    flops_per_s, bytes_per_s = _peaks(operator, gpu)
    ratio = operator.ratio
    pair_s = 2.0 * operator.heads * operator.head_dim / ratio / flops_per_s
    roofline = _IndexRoofline(operator.count, pair_s, operator.head_dim / ratio / bytes_per_s)
    if isinstance(operator, ChoosingIndex) and (seconds := operator.prompt_seconds(gpu)) is not None:
        return _ModuleKernel(roofline, seconds, 0.0)
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
class _RecurrenceRoofline:
    """`Recurrence` on its roofline: seconds of a token's FLOPs and traffic, and of a sequence's state."""

    count: float
    flops_s: float
    token_s: float
    state_s: float

    def layer_s(self, chunks: float, new: float) -> float:
        """Of one layer."""
        flops_s, traffic_s = new * self.flops_s, self.state_s + new * self.token_s
        return chunks * (flops_s if flops_s > traffic_s else traffic_s)

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        return self.count * self.layer_s(chunks, new)


@dataclass(frozen=True, slots=True)
class _RecurrenceKernel:
    """`Recurrence` by `recurrent_prefill_s`, never below its roofline.

    Attributes:
        roofline: of the operator.
        start_s: of the form [s].
        token_s: of a token's FLOPs and traffic at the kernels' shares of the peaks [s].
        state_s: of a sequence's state at the kernels' share of the bandwidth [s].
        chain_s: of a token in the chain of its sequence [s].
        order: of the p-norm.
        heads: on this GPU.
        correction: factor at two sizes, if the form has one.
    """

    roofline: _RecurrenceRoofline
    start_s: float
    token_s: float
    state_s: float
    chain_s: float
    order: float
    heads: float
    correction: Callable[[float, float], float] | None

    def __call__(self, chunks: float, new: float, past: float, cached: float) -> float:
        work, chain = chunks * (self.state_s + new * self.token_s), new * self.chain_s
        more, less = (work, chain) if work > chain else (chain, work)
        took: float = self.start_s + more * (1.0 + (less / more) ** self.order) ** (1.0 / self.order)
        if self.correction is not None:
            took *= self.correction(new, chunks * self.heads)
        ideal = self.roofline.layer_s(chunks, new)
        return self.roofline.count * (took if took > ideal else ideal)


def _recurrence_timer(operator: Recurrence, gpu: CalibratedGpu) -> PromptAttention:
    shape, (flops_per_s, bytes_per_s) = operator.shape, _peaks(operator, gpu)
    roofline = _RecurrenceRoofline(
        count=operator.count,
        flops_s=shape.scan_flops / flops_per_s,
        token_s=shape.token_bytes / bytes_per_s,
        state_s=shape.state_bytes / bytes_per_s,
    )
    form = gpu.form(RecurrentPrefillForm, *operator.fit_keys)
    if form is None or gpu.first_key(*operator.decode_keys) is None:
        return roofline
    moved = form.memory_efficiency * bytes_per_s
    return _RecurrenceKernel(
        roofline=roofline,
        start_s=form.start_s,
        token_s=roofline.flops_s / form.compute_efficiency + shape.passed_bytes / moved,
        state_s=shape.state_bytes / moved,
        chain_s=form.token_s,
        order=form.order,
        heads=shape.heads,
        correction=None if form.correction is None else _correction(form.correction),
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
        pairs = attended_pairs(new, past, self.window)
        return pairs + attended_pairs(new, past, self.seen) / self.ratio if self.ratio else pairs

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


def _compressed_timer(operator: CompressedPrefill, gpu: CalibratedGpu) -> PromptAttention:
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
