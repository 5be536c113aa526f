"""Times of steps from the tables of a timer, compiled: of single steps, of many, and of steps of mean content."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from planner.core import FloatArray, cell_of, compiled, interpolated_at, knot_below, value_in
from planner.roofline import attention_s, prompt_record

OF_TOKENS, OF_ROWS, OF_GROUP_TOKENS, OF_BOTH = range(4)
"""Curves: over tokens, rows and group tokens, and the first two as one where all tokens are rows."""
KERNELS = 0
"""Kind of seconds; roofs are the last kind, where they are there."""


_NOTHING = np.zeros((0, 1, 1))


class StepTables(NamedTuple):
    """A step timer as compiled code reads it; by default that of nothing.

    Attributes:
        dp, shares, queries: attention ranks, parts that decodes are split into, tokens per decode and step.
        pcp: GPUs that share out the tokens of a prompt.
        stretch, prompt_stretch: factors on kernels of steps of decodes, and of steps with prompts.
        between_s: between the kernels of a step [s].
        eager_s, pieces_s: host time of launching a step kernel by kernel, and graph by graph between attention [s].
        captured_decodes, captured_tokens: most in a step of decodes that is one graph, and in one of pieces.
        host_s, sequence_s: of a step that the host adds, and of each sequence in it [s].
        kinds: of seconds that are there, 1 (kernels) or 2 (roofs too).
        has_group: True if anything depends on group tokens.
        tokens: knots of the curves, shape (knots,).
        curves: seconds by driver and kind, shape (4, 2, knots) [s].
        surfaces: of decodes' attention by kind, with their knots, shape (2, 1 + decodes, 1 + contexts) [s].
        attention, corrections: of prompts (`planner.roofline.attention_s`).
        overlaps: True if two halves of a step run alternately, one's experts exchanged while the other computes.
        exchange: of experts' tokens: how long it takes, and keeps processors from computing, shape (2, knots) [s].
    """

    dp: float = 1.0
    shares: float = 1.0
    queries: float = 1.0
    pcp: float = 1.0
    stretch: float = 1.0
    prompt_stretch: float = 1.0
    between_s: float = 0.0
    eager_s: float = 0.0
    pieces_s: float = 0.0
    captured_decodes: float = 0.0
    captured_tokens: float = 0.0
    host_s: float = 0.0
    sequence_s: float = 0.0
    kinds: int = 0
    has_group: bool = False
    tokens: FloatArray = np.zeros(0)
    curves: FloatArray = _NOTHING
    surfaces: FloatArray = _NOTHING
    attention: np.recarray[Any, Any] = np.zeros(0, dtype=prompt_record()).view(np.recarray)
    corrections: FloatArray = _NOTHING
    overlaps: bool = False
    exchange: FloatArray = np.zeros((2, 0))


NO_TABLES = StepTables()
"""In the place of tables where there are none."""


@compiled
def curve_at(knots: FloatArray, values: FloatArray, x: float) -> float:
    """`Curve.at` for one number: a line between two knots, in proportion beyond the last.

    Args:
        knots: rising, shape (n,).
        values: at these, shape (n,).
        x: where.

    Returns:
        The value there, in the unit of `values`.
    """
    if x >= knots[-1]:
        return float(values[-1] * x / knots[-1])
    return interpolated_at(knots, values, x)


@compiled
def _curves_at(tables: StepTables, curves: FloatArray, x: float) -> tuple[float, float]:
    """`Curve.at` for one number, of both kinds; where there are no roofs the kernels twice."""
    knots, values, roofs = tables.tokens, curves[KERNELS], curves[tables.kinds - 1]
    if x >= knots[-1]:
        return values[-1] * x / knots[-1], roofs[-1] * x / knots[-1]
    if x <= knots[0]:
        return values[0], roofs[0]
    i = knot_below(knots, x)
    return (
        values[i] + (values[i + 1] - values[i]) / (knots[i + 1] - knots[i]) * (x - knots[i]),
        roofs[i] + (roofs[i + 1] - roofs[i]) / (knots[i + 1] - knots[i]) * (x - knots[i]),
    )


@compiled
def _surfaces_at(tables: StepTables, decodes: float, context: float) -> tuple[float, float]:
    """`Surface.at` for one step, of both kinds likewise."""
    if decodes <= 0.0:
        return 0.0, 0.0
    table, other = tables.surfaces[KERNELS], tables.surfaces[tables.kinds - 1]
    rows, columns = table.shape[0] - 1, table.shape[1] - 1
    i, u, j, v = cell_of(table, decodes, context)
    seconds, roof_s = value_in(table, i, u, j, v), value_in(other, i, u, j, v)
    if decodes > table[rows, 0]:
        seconds, roof_s = seconds * (decodes / table[rows, 0]), roof_s * (decodes / table[rows, 0])
    if context > table[0, columns]:
        seconds, roof_s = seconds * (context / table[0, columns]), roof_s * (context / table[0, columns])
    return seconds, roof_s


@compiled
def _tabulated_decode_s(tables: StepTables, tokens: float, decodes: float, context: float) -> tuple[float, float]:
    """Seconds of decodes alone, `tokens` on each rank: of kernels, and of roofs."""
    own, roof = _curves_at(tables, tables.curves[OF_BOTH], tokens)
    attention, attention_roof = _surfaces_at(tables, decodes, context)
    seconds, roof_s = own + attention, roof + attention_roof
    if tables.has_group:
        group, group_roof = _curves_at(tables, tables.curves[OF_GROUP_TOKENS], tokens * tables.dp)
        seconds, roof_s = seconds + group, roof_s + group_roof
    return seconds, roof_s


@compiled
def _tabulated_step_s(
    tables: StepTables, tokens: float, group: float, rows: float, decodes: float, context: float
) -> tuple[float, float]:
    """Seconds of any step without its prompts' attention, of kernels and of roofs; arguments as in `Load`."""
    own, roof = _curves_at(tables, tables.curves[OF_TOKENS], tokens)
    of_rows, rows_roof = _curves_at(tables, tables.curves[OF_ROWS], rows)
    attention, attention_roof = _surfaces_at(tables, decodes, context)
    seconds, roof_s = own + of_rows + attention, roof + rows_roof + attention_roof
    if tables.has_group:
        of_group, group_roof = _curves_at(tables, tables.curves[OF_GROUP_TOKENS], group)
        seconds, roof_s = seconds + of_group, roof_s + group_roof
    return seconds, roof_s


@compiled
def _overlapped_s(tables: StepTables, kernels_s: float, half_s: float, tokens: float) -> float:
    """Seconds of a step's kernels as one batch, or as two alternating halves where that is faster.

    Two halves take as long as their exchange or as all else together with what of the exchange occupies processors.
    """
    exchange_s = 2.0 * curve_at(tables.tokens, tables.exchange[0], tokens / 2.0)
    occupied_s = 2.0 * curve_at(tables.tokens, tables.exchange[1], tokens / 2.0)
    return min(kernels_s, max(2.0 * half_s - exchange_s + occupied_s, exchange_s))


@compiled
def decode_seconds(tables: StepTables, decodes: float, decode_context: float, drafts_s: float) -> float:
    """Duration of a step of decodes alone.

    Args:
        tables: of the timer.
        decodes: sequences.
        decode_context: tokens they attend to, summed.
        drafts_s: what drafts add [s].

    Returns:
        Its duration [s].
    """
    own = decodes / tables.shares
    tokens, context = own * tables.queries, max(decode_context / decodes, 1.0) if decodes > 0.0 else 1.0
    kernels_s, roof_s = _tabulated_decode_s(tables, tokens, own, context)
    if tables.overlaps:
        half_s, _ = _tabulated_decode_s(tables, tokens / 2.0, own / 2.0, context)
        kernels_s = _overlapped_s(tables, kernels_s, half_s, tokens)
    seconds = tables.stretch * kernels_s + tables.between_s
    if tables.kinds > 1:
        seconds = max(seconds, roof_s)
    if own > tables.captured_decodes:
        seconds = max(seconds, tables.eager_s)
    return seconds + drafts_s + tables.host_s + tables.sequence_s * own


@compiled
def _chunk_means(
    chunk_tokens: float, chunk_pairs: float, chunk_context: float, chunks: float
) -> tuple[float, float, float]:
    """New, past and cached tokens of one of the chunks of a step, as in `Load.of`."""
    new = max(chunk_tokens / chunks, 1.0)
    return new, max(chunk_pairs / chunks / new - (new + 1.0) / 2.0, 0.0), max(chunk_context / chunks - new, 0.0)


@compiled
def prompts_seconds(
    tables: StepTables, chunk_tokens: float, chunk_pairs: float, chunk_context: float, chunks: float
) -> float:
    """Time of the prompts' attention in a step; arguments as of `step_seconds`.

    Args:
        tables: of the timer.
        chunk_tokens: tokens.
        chunk_pairs: query-key pairs.
        chunk_context: tokens.
        chunks: of prompts.

    Returns:
        Their time [s].
    """
    if chunks <= 0.0:
        return 0.0
    new, past, cached = _chunk_means(chunk_tokens / tables.pcp, chunk_pairs / tables.pcp, chunk_context, chunks)
    own_chunks = chunks / max(min(chunks, tables.shares), 1.0)
    return attention_s(tables.attention, tables.corrections, own_chunks, new, past, cached)


@compiled
def step_seconds(
    tables: StepTables,
    decodes: float,
    decode_context: float,
    chunk_tokens: float,
    chunk_pairs: float,
    chunk_context: float,
    chunks: float,
    prompts_s: float,
    drafts_s: float,
) -> float:
    """Duration of a step with prompts, whose load is as in `Load.of`.

    Args:
        tables: of the timer.
        decodes: as in `StepShape`, like the five that follow.
        decode_context: tokens.
        chunk_tokens: tokens.
        chunk_pairs: query-key pairs.
        chunk_context: tokens.
        chunks: of prompts.
        prompts_s: what the prompts' attention takes [s]; NaN: as the tables say.
        drafts_s: what drafts add [s].

    Returns:
        Its duration [s].
    """
    if math.isnan(prompts_s):
        prompts_s = prompts_seconds(tables, chunk_tokens, chunk_pairs, chunk_context, chunks)
    return seconds_beside_attention(tables, decodes, decode_context, chunk_tokens, chunks, prompts_s) + drafts_s


@compiled
def seconds_beside_attention(
    tables: StepTables, decodes: float, decode_context: float, chunk_tokens: float, chunks: float, prompts_s: float
) -> float:
    """`step_seconds` without drafts, where the prompts' attention is known.

    Args:
        tables: of the timer.
        decodes: as in `StepShape`, like the three that follow.
        decode_context: tokens.
        chunk_tokens: tokens.
        chunks: of prompts.
        prompts_s: what the prompts' attention takes [s].

    Returns:
        Its duration [s].
    """
    busy = max(min(chunks, tables.shares), 1.0)
    own, prompt, own_chunks = decodes / tables.shares, chunk_tokens / busy, chunks / busy
    tokens, rows = own * tables.queries + prompt / tables.pcp, own * tables.queries + own_chunks
    group = own * tables.dp * tables.queries + prompt * min(busy, tables.dp)
    context = max(decode_context / decodes, 1.0) if decodes > 0.0 else 1.0
    kernels_s, roof_s = _tabulated_step_s(tables, tokens, group, rows, own, context)
    if chunks > 0.0:
        kernels_s += prompts_s
    if tables.overlaps:
        half_s, _ = _tabulated_step_s(tables, tokens / 2.0, group / 2.0, rows / 2.0, own / 2.0, context)
        kernels_s = _overlapped_s(tables, kernels_s, half_s + (prompts_s / 2.0 if chunks > 0.0 else 0.0), tokens)
    seconds = (tables.prompt_stretch if chunks > 0.0 else tables.stretch) * kernels_s + tables.between_s
    if tables.kinds > 1:
        seconds = max(seconds, roof_s)
    if chunks > 0.0:
        seconds = max(seconds, tables.pieces_s if tokens <= tables.captured_tokens else tables.eager_s)
    elif own > tables.captured_decodes:
        seconds = max(seconds, tables.eager_s)
    return seconds + tables.host_s + tables.sequence_s * own


@compiled(makes_arrays=True)
def times_of_steps(tables: StepTables, steps: FloatArray) -> FloatArray:
    """Durations of many steps, and of their prompts' attention.

    Args:
        tables: of the timer.
        steps: the fields of `StepShape`, time of the prompts' attention (NaN: as the tables say), and what drafts add;
            shape (8, steps).

    Returns:
        Of steps and of prompts' attention, shape (2, steps) [s].
    """
    seconds = np.empty((2, steps.shape[1]))
    for step in range(steps.shape[1]):
        decodes, context, tokens, chunks = steps[0, step], steps[1, step], steps[2, step], steps[5, step]
        prompts_s, drafts_s = steps[6, step], steps[7, step]
        if math.isnan(prompts_s):
            prompts_s = prompts_seconds(tables, tokens, steps[3, step], steps[4, step], chunks)
        if chunks == 0.0 and tokens == 0.0:
            seconds[0, step] = decode_seconds(tables, decodes, context, drafts_s)
        else:
            beside_s = seconds_beside_attention(tables, decodes, context, tokens, chunks, prompts_s)
            seconds[0, step] = beside_s + drafts_s
        seconds[1, step] = prompts_s
    return seconds


@dataclass(frozen=True, eq=False)
class MeanSteps:
    """Step times of a replica from decodes and prompt tokens of mean content: so many of one mean kind.

    Theory asks for nothing else, for many steps at once.

    Attributes:
        tables: of the replica, with those of a draft (`StepTimer.tables`).
        decode_context: tokens a decode attends to.
        chunks: prompt chunks per prompt token.
        attention_tokens: prompt tokens at which their attention is tabulated, rising, shape (P,).
        attention_s: that attention [s], shape (P,).
    """

    tables: tuple[StepTables, StepTables, float]
    decode_context: float
    chunks: float
    attention_tokens: FloatArray
    attention_s: FloatArray

    def times_s(self, decodes: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        """Duration [s] of each step, `StepTimer.times_s` of its mean content.

        Args:
            decodes: sequences, any shape.
            prompt_tokens: new prompt tokens, same shape.

        Returns:
            The same shape.

        Raises:
            Nothing.
        """
        if decodes.ndim != 1:
            return self.times_s(decodes.ravel(), prompt_tokens.ravel()).reshape(decodes.shape)
        return self._times_s(decodes, decodes * self.decode_context, prompt_tokens)

    def decodes_s(self, decodes: FloatArray, decode_context: FloatArray) -> FloatArray:
        """Duration [s] of steps of decodes alone, of any mean context.

        Args:
            decodes: sequences, shape (n,).
            decode_context: tokens that all of them attend to, shape (n,).

        Returns:
            Shape (n,).

        Raises:
            Nothing.
        """
        return self._times_s(decodes, decode_context, np.zeros(decodes.size))

    def _times_s(self, decodes: FloatArray, decode_context: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        return _mean_times_s(*self._read, decodes, decode_context, prompt_tokens)

    @cached_property
    def _read(self) -> tuple[tuple[Any, ...], tuple[Any, ...], float, float, FloatArray, FloatArray]:
        """What a step takes of it, without names or records of prompts, whose types take longer to find than a step."""
        own, drafts = (tuple({**each._asdict(), "attention": _NOTHING}.values()) for each in self.tables[:2])
        return own, drafts, self.tables[2], self.chunks, self.attention_tokens, self.attention_s


@compiled(makes_arrays=True)
def _mean_times_s(
    own: tuple[Any, ...],
    drafting: tuple[Any, ...],
    draft_steps: float,
    chunks: float,
    attention_tokens: FloatArray,
    attention_s: FloatArray,
    decodes: FloatArray,
    decode_context: FloatArray,
    prompt_tokens: FloatArray,
) -> FloatArray:
    tables, drafts, seconds = StepTables(*own), StepTables(*drafting), np.empty(decodes.size)
    for step in range(decodes.size):
        tokens = prompt_tokens[step]
        prompts_s = curve_at(attention_tokens, attention_s, tokens)
        content = decodes[step], decode_context[step], tokens, tokens * chunks, prompts_s
        seconds[step] = seconds_beside_attention(tables, *content)
        if draft_steps > 0.0 and decodes[step] > 0.0:
            seconds[step] += draft_steps * decode_seconds(drafts, decodes[step], decode_context[step], 0.0)
    return seconds
