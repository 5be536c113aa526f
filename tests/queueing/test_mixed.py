"""Decodes interrupted by prompts: delay busy periods against their definition, and the whole pool against its steps."""

from __future__ import annotations

from collections import deque
from functools import cache

import numpy as np
import pytest

from planner.core import FloatArray
from planner.queueing import BatchServer, largest_mixed_rate, mixed_pool
from planner.queueing.mixed import PromptStream, interrupted_gap_times
from planner.workload import TokenLengths
from tests.queueing.servers import AZURE, poisson
from tests.queueing.step_loop import predicted_summary, summary

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


def step_s(running: FloatArray, tokens: FloatArray) -> FloatArray:
    """A step of decodes and one of prompts, one after the other; either alone where there is nothing of the other."""
    return np.asarray((running > 0) * (8e-3 + 4e-5 * running) + (tokens > 0) * (4e-3 + 3e-5 * tokens))


def simulated(
    server: BatchServer, arrival_s: FloatArray, inputs: FloatArray, gaps: FloatArray
) -> tuple[FloatArray, ...]:
    """TTFT and TPOT [s] where a step holds prompts as long as there are any, else one token of each running request."""
    now_s, head, budget = 0.0, 0, server.max_batched_tokens
    first_s, end_s, left = np.zeros(inputs.size), np.zeros(inputs.size), inputs.astype(float)
    waiting: deque[int] = deque()
    running, steps = 0, 0
    leaving: dict[int, list[int]] = {}

    @cache
    def decodes_s(requests: int) -> float:
        return float(server.step_s(np.array(float(requests)), np.array(0.0)))

    while head < inputs.size or waiting or running:
        while head < inputs.size and arrival_s[head] <= now_s:
            waiting.append(head)
            head += 1
        if waiting:
            room, ended = float(budget), []
            while waiting and room > 0.0:
                served = min(left[waiting[0]], room)
                left[waiting[0]] -= served
                room -= served
                if left[waiting[0]] == 0.0:
                    ended.append(waiting.popleft())
            now_s += float(server.step_s(np.array(0.0), np.array(budget - room)))
            first_s[ended] = end_s[ended] = now_s
            for request in ended:
                if gaps[request]:
                    running += 1
                    leaving.setdefault(steps + int(gaps[request]), []).append(request)
        elif running:
            now_s += decodes_s(running)
            steps += 1
            done = leaving.pop(steps, [])
            end_s[done] = now_s
            running -= len(done)
        else:
            now_s = float(arrival_s[head])
    kept = np.arange(inputs.size) >= inputs.size // 10
    return (first_s - arrival_s)[kept], ((end_s - first_s) / np.maximum(gaps, 1))[kept & (gaps > 0)]


@pytest.mark.parametrize(("load", "scv"), [(0.3, 1.0), (0.6, 1.0), (0.6, 0.3)])
def test_a_pool_that_serves_prompts_first(load: float, scv: float) -> None:
    server = BatchServer(step_s, 2048, 1000.0, prompts_first=True)
    arrivals = poisson(load * largest_mixed_rate(server, AZURE), scv)
    requests = 8000
    inputs, outputs = AZURE.sample(requests, seed=4)
    ttft, tpot = simulated(server, arrivals.sample_times_s(requests, 3), inputs, outputs - 1.0)
    found = mixed_pool(server, arrivals, AZURE)
    assert found.ttft.mean_s == pytest.approx(ttft.mean(), rel=0.06)
    assert found.ttft.quantile_s(0.99) == pytest.approx(np.quantile(ttft, 0.99), rel=0.16)
    error = predicted_summary(found, "tpot") / summary(tpot) - 1.0
    assert np.all(np.abs(error) < (0.03, 0.03, 0.06, 0.1)), error


def test_sharing_steps_delays_first_tokens() -> None:
    lengths = TokenLengths.constant(1000, 100)
    apart, shared = (BatchServer(step_s, 2048, 1000.0, prompts_first=first) for first in (True, False))
    rate = 0.7 * largest_mixed_rate(apart, lengths)
    assert (
        mixed_pool(apart, poisson(rate), lengths).ttft.mean_s < mixed_pool(shared, poisson(rate), lengths).ttft.mean_s
    )
