"""How long the steps of one replica take, one by one or in runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.steps import StepTimer

RUN_GROWTH = 0.02
"""A run ends when the mean context has grown by this share, plus `RUN_TOKENS`: durations are a line so far to 1e-4."""
RUN_TOKENS = 8


@dataclass(frozen=True)
class Run:
    """Steps without prompts and with the same sequences; step k (from 0) takes `first_s + k * slope_s` seconds."""

    start_s: float
    first_s: float
    slope_s: float

    def end_s(self, steps: int) -> float:
        """End [s] of the first `steps` steps."""
        return self.start_s + steps * (self.first_s + self.slope_s * (steps - 1) / 2.0)

    def steps_until(self, time_s: float, most: int) -> int:
        """The fewest steps (at least 1, at most `most`) that end at `time_s` or later.

        >>> Run(start_s=0.0, first_s=1.0, slope_s=1.0).steps_until(3.5, most=9)  # steps end at 1, 3, 6, 10, ...
        3
        """
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.end_s(middle) >= time_s else (middle + 1, high)
        return low


class Clock:
    """`StepTimer` with runs of decode steps.

    In a run durations are taken as a line in the context, through its first step and the step after its last.
    """

    def __init__(self, timer: StepTimer, tokens_per_step: float) -> None:
        self.timer = timer
        self.tokens_per_step = tokens_per_step
        self.next: tuple[int, float, float] = (0, 0.0, 0.0)

    def step_s(self, decodes: int, context: float, chunk: int, pairs: float, cached: int, chunks: int) -> float:
        """Duration [s] of a step; arguments as in `StepShape`."""
        return self.timer.step_s(decodes, context, chunk, pairs, cached, chunks)

    def steps_in_line(self, decodes: int, context: float) -> int:
        """Steps a run may have from a total context [tokens] on, >= 1.

        >>> Clock(None, 1.0).steps_in_line(10, 10 * 5000.0)
        108
        """
        tokens = RUN_GROWTH * context / decodes + RUN_TOKENS
        return max(1, int(tokens / self.tokens_per_step))

    def run(self, now_s: float, decodes: int, context: float, steps: int) -> Run:
        """At least 1 and at most `steps_in_line` steps of `decodes` sequences from a total context [tokens] on."""
        first_s = self._decode_s(decodes, context)
        if steps == 1:
            return Run(now_s, first_s, 0.0)
        context += steps * decodes * self.tokens_per_step
        last_s = self.timer.decode_s(decodes, context)
        self.next = (decodes, context, last_s)
        return Run(now_s, first_s, (last_s - first_s) / steps)

    def _decode_s(self, decodes: int, context: float) -> float:
        """Duration [s]; that of the step after the latest run is known."""
        known, at, seconds = self.next
        return seconds if known == decodes and math.isclose(at, context) else self.timer.decode_s(decodes, context)
