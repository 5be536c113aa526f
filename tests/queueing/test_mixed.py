"""Decodes interrupted by prompts: delay busy periods against their definition."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import FloatArray
from planner.queueing.mixed import PromptStream, interrupted_gap_times

RATE_PER_S, PROMPT_S, DEAZURE_S = 5.0, 0.1, 0.02
"""Exponential prompts that need half of the time, and a step of decodes."""


def busy_periods(gaps: int, left: int, runs: int) -> FloatArray:
    """Time [s] from a first token to the end of so many decode steps, one prompt and one step after the other."""
    generator = np.random.default_rng(3)
    times = np.zeros(runs)
    for run in range(runs):
        waiting, now_s, steps = left, 0.0, 0
        while waiting or steps < gaps:
            step_s = generator.exponential(PROMPT_S) if waiting else DEAZURE_S
            steps += 0 if waiting else 1
            waiting += int(generator.poisson(RATE_PER_S * step_s)) - int(waiting > 0)
            now_s += step_s
            if steps == gaps:
                break
        times[run] = now_s
    return times


def prompts(left: int) -> PromptStream:
    growth = RATE_PER_S * 2.0 * PROMPT_S**2
    return PromptStream(RATE_PER_S, PROMPT_S, growth, float(left), 0.0, float(left == 0))


class TestInterruptedGapTimes:
    @pytest.mark.parametrize("left", [0, 2])
    def test_mean_spread_and_tail_are_those_of_delay_busy_periods(self, left: int) -> None:
        gaps = 20
        simulated = busy_periods(gaps, left, runs=4000) / gaps
        times, weights = interrupted_gap_times(np.array([float(gaps)]), np.full((1, 1), DEAZURE_S), prompts(left))
        mean = float(times[0] @ weights[0])
        order = np.argsort(times[0])
        p99 = float(np.interp(0.99, np.cumsum(weights[0][order]), times[0][order]))
        exact = DEAZURE_S + PROMPT_S * (left + RATE_PER_S * (gaps - 1) * DEAZURE_S) / gaps / (
            1.0 - RATE_PER_S * PROMPT_S
        )
        assert mean == pytest.approx(exact, rel=1e-6)
        assert mean == pytest.approx(simulated.mean(), rel=0.06)
        assert p99 == pytest.approx(np.quantile(simulated, 0.99), rel=0.15)

    def test_without_prompts_a_gap_is_a_step(self) -> None:
        nobody = PromptStream(1e-9, PROMPT_S, 1e-11, 0.0, 0.0, 1.0)
        times, weights = interrupted_gap_times(np.array([1.0, 50.0]), np.full((2, 1), DEAZURE_S), nobody)
        assert (times * weights).sum(axis=1) == pytest.approx(DEAZURE_S)
