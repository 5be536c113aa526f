"""Durations of the steps of one replica, one by one and in runs.

The compiled functions are those of both loops. Where a call costs more than the arithmetic, Python takes their source.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, compiled
from planner.engine import CONTEXTS, StepTimer

BENT_RUN_GROWTH = 0.02
"""Growth of the mean context that ends a run where durations are no line, beside `LEAST_RUN_TOKENS`. A choice: accuracy
against speed."""
LEAST_RUN_TOKENS = 8
"""A run may also pass the end of a line by so many tokens of mean context: durations are a line so far to 1e-4."""
CONTEXT_KNOTS: list[float] = [*CONTEXTS.tolist(), 2.0 * CONTEXTS[-1], math.inf]
"""Mean contexts between which step times of decodes are lines (`planner.engine.lookup.Surface`)."""
LINE_TOLERANCE = 1e-12
"""Relative deviation of the middle of a line from the mean of its ends that is rounding."""


@compiled
def run_end_s(start_s: float, first_s: float, slope_s: float, steps: int) -> float:
    """End [s] of the first `steps` steps of a run whose step k (from 0) takes `first_s + k * slope_s` seconds."""
    return float(start_s + steps * (first_s + slope_s * (steps - 1) / 2.0))


@compiled
def steps_until(start_s: float, first_s: float, slope_s: float, time_s: float, most: int) -> int:
    """The fewest steps of a run (at least 1, at most `most`) that end at `time_s` or later.

    >>> steps_until(0.0, 1.0, 1.0, time_s=3.5, most=9)  # steps end at 1, 3, 6, 10, ...
    3
    """
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if run_end_s(start_s, first_s, slope_s, middle) >= time_s:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def steps_in_line(mean: float, knot: float, straight: bool, tokens_per_step: float) -> int:
    """Steps a run may have from a mean context [tokens] on, >= 1; up to `knot` if durations are a line (`straight`)."""
    tokens = BENT_RUN_GROWTH * mean + LEAST_RUN_TOKENS
    if straight:
        tokens = knot - mean
        if tokens < LEAST_RUN_TOKENS:
            tokens = float(LEAST_RUN_TOKENS)
        elif tokens > mean:
            tokens = mean
    return max(int(tokens / tokens_per_step), 1)


class StepClock:
    """`StepTimer` with runs of decode steps.

    Tabulated step times of decodes are a line in the context between two knots, and a run goes on to the next knot;
    lines are kept. Where a step time has an edge between two knots (as the larger of two lines), runs are short
    and taken as a line through their first step and the step after their last.
    """

    def __init__(self, timer: StepTimer, tokens_per_step: float) -> None:
        self.timer = timer
        self.tokens_per_step = tokens_per_step
        self.lines: dict[tuple[int, int], tuple[float, float] | None] = {}
        self._tables = np.zeros((1, 0, 2)), np.zeros((1, 0), dtype=np.int8)

    def tables(self, most: int) -> tuple[FloatArray, NDArray[np.int8]]:
        """Tables for lines of up to so many decodes and what is known of them, for who fills them as it goes."""
        if len(self._tables[0]) <= most:
            cells = most + 1, len(CONTEXT_KNOTS)
            self._tables = np.zeros((*cells, 2)), np.zeros(cells, dtype=np.int8)
        return self._tables

    def steps_in_line(self, decodes: int, context: float) -> int:
        """Steps a run may have from a total context [tokens] on, >= 1."""
        cell = bisect_right(CONTEXT_KNOTS, context / decodes)
        straight = self.line(decodes, cell) is not None
        knot = CONTEXT_KNOTS[cell] if straight else 0.0
        return steps_in_line.source(context / decodes, knot, straight, self.tokens_per_step)

    def run(self, decodes: int, context: float, steps: int) -> tuple[float, float]:
        """First duration and growth [s] of at least 1 and at most `steps_in_line` steps from a total context on."""
        cell = bisect_right(CONTEXT_KNOTS, context / decodes)
        line = self.line(decodes, cell)
        if line is not None:
            at_knot_s, per_token_s = line
            first_s = at_knot_s + per_token_s * (context - decodes * CONTEXT_KNOTS[cell - 1])
            return first_s, per_token_s * decodes * self.tokens_per_step
        first_s = self.timer.decode_s(decodes, context)
        last_s = self.timer.decode_s(decodes, context + steps * decodes * self.tokens_per_step)
        return first_s, (last_s - first_s) / steps

    def line(self, decodes: int, cell: int) -> tuple[float, float] | None:
        """Duration [s] at the knot before a cell and its growth [s per token of total context], None where it bends."""
        key = decodes, cell
        if key not in self.lines:
            low, high = CONTEXT_KNOTS[cell - 1 : cell + 1]
            straight = False
            if high < math.inf:
                means = low, (low + high) / 2.0, high
                low_s, middle_s, high_s = (self.timer.decode_s(decodes, decodes * mean) for mean in means)
                straight = abs(low_s + high_s - 2.0 * middle_s) <= LINE_TOLERANCE * middle_s
            self.lines[key] = (low_s, (high_s - low_s) / (decodes * (high - low))) if straight else None
        return self.lines[key]
