"""Steps of mean content: so many decodes of one mean context, and so many prompt tokens of one mean kind.

Theory asks for nothing else. Each term of `StepTimer.times_s` is then a function of one number, read from a table of
its own, which takes a third of the time; tests hold the two together within 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.core import FloatArray
from planner.engine.lookup import DECODES, TOKENS, LookupTable
from planner.engine.step_times import StepTimer
from planner.roofline import Driver

FAR = 1e12
"""Where lines that go on in proportion beyond the end of a table are given one more point. Definition."""


@dataclass(frozen=True, eq=False)
class _Tables:
    """Seconds of one step over rank tokens, rows, group tokens (None where there are none of their own) and decodes."""

    tokens_s: FloatArray
    rows_s: FloatArray
    group_s: FloatArray | None
    decodes_s: FloatArray

    @classmethod
    def of(cls, timer: StepTimer, decode_context: float, seconds_of: Callable[[LookupTable], FloatArray]) -> _Tables:
        """Of decodes with one mean context [tokens]."""
        by_driver = {driver: seconds_of(curve) for driver, curve in timer.curves.items()}
        drivers = (Driver.TOKENS, Driver.ROWS, Driver.GROUP_TOKENS)
        tokens, rows, group = (by_driver.get(driver, np.zeros_like(TOKENS)) for driver in drivers)
        if timer.parallelism.dp == 1:
            tokens, group = tokens + group, np.zeros_like(group)
        context = np.full(DECODES.shape, max(decode_context, 1.0))
        decodes = timer.decode_table.at(DECODES, context, seconds_of(timer.decode_table))
        return cls(
            _beyond(TOKENS, tokens),
            _beyond(TOKENS, rows),
            _beyond(TOKENS, group) if group.any() else None,
            _beyond(DECODES, decodes),
        )

    def at(self, tokens: FloatArray, rows: FloatArray, group_tokens: FloatArray, decodes: FloatArray) -> FloatArray:
        """Seconds of many steps, their prompts' attention left out."""
        seconds = np.interp(tokens, _TOKENS, self.tokens_s)
        seconds += np.interp(rows, _TOKENS, self.rows_s)
        seconds += np.interp(decodes, _DECODES, self.decodes_s) * (decodes > 0.0)
        if self.group_s is not None:
            seconds += np.interp(group_tokens, _TOKENS, self.group_s)
        return np.asarray(seconds)


def _beyond(knots: FloatArray, seconds: FloatArray) -> FloatArray:
    """With the point at `FAR`."""
    return np.append(seconds, seconds[-1] * (FAR / knots[-1]))


_TOKENS, _DECODES = np.append(TOKENS, FAR), np.append(DECODES, FAR)


@dataclass(frozen=True, eq=False)
class MeanSteps:
    """Step times of a replica from decodes and prompt tokens of mean content.

    Attributes:
        timer: of the replica.
        decode_context: tokens a decode attends to.
        chunks: prompt chunks per prompt token.
    """

    timer: StepTimer
    decode_context: float
    chunks: float

    @property
    def is_whole(self) -> bool:
        """Whether it has all that a step takes: drafts and unequal pipeline stages are left to `StepTimer`."""
        return self.timer.draft is None and not self.timer.others

    @cached_property
    def _kernels(self) -> _Tables:
        return _Tables.of(self.timer, self.decode_context, lambda table: table.total_s)

    @cached_property
    def _roofs(self) -> _Tables | None:
        """What kernels that overlap cannot beat."""
        if self.timer.costs.gap_s >= 0.0:
            return None
        return _Tables.of(self.timer, self.decode_context, lambda table: table.roof_s)

    def times_s(self, decodes: FloatArray, prompt_tokens: FloatArray, prompts_s: FloatArray) -> FloatArray:
        """Duration [s] of each step, `StepTimer.times_s` of its mean content.

        Args:
            decodes: sequences, shape (n,).
            prompt_tokens: new prompt tokens, shape (n,).
            prompts_s: what the attention of the prompts takes [s], shape (n,).

        Returns:
            Shape (n,).

        Raises:
            Nothing.
        """
        timer, costs = self.timer, self.timer.costs
        dp, shares = timer.parallelism.dp, timer.parallelism.dp * timer.parallelism.pp
        chunks, prompt, own, ranks = prompt_tokens * self.chunks, prompt_tokens, decodes, None
        if shares > 1:
            busy = np.minimum(np.maximum(chunks, 1.0), shares)
            chunks, prompt, own, ranks = chunks / busy, prompt_tokens / busy, decodes / shares, np.minimum(busy, dp)
        advanced = own * timer.queries
        tokens = advanced + prompt
        group_tokens = tokens if ranks is None else advanced * dp + prompt * ranks
        load = (tokens, advanced + chunks, group_tokens, own)
        has_prompts = prompt_tokens > 0.0
        kernels_s = self._kernels.at(*load) + prompts_s * has_prompts
        served = costs.stretch * kernels_s
        served += costs.gap_s * timer.launches + costs.latent_s * (timer.latent_layers - timer.whole_layers)
        if self._roofs is not None:
            np.maximum(served, self._roofs.at(*load), out=served)
        launched = np.maximum(costs.prompt_stretch * kernels_s, timer.launching_s)
        served = np.where(has_prompts & (tokens > costs.captured_tokens), launched, served)
        if timer.captured < math.inf:
            too_many = ~has_prompts & (own > timer.captured)
            served = np.maximum(served, too_many * (costs.launch_s * timer.launches))
        return np.asarray(served + (costs.step_s + costs.sequence_s * own))
