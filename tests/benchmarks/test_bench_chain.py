"""How long the chain takes, layer by layer. Run with: pytest tests/benchmarks --benchmark-enable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.fleet import plan
from planner.roofline import Parallelism, StepShape
from planner.scenario import load_scenario
from planner.serving import evaluate
from tests.builders import SMALL_CHAT, calibrated, chat, mixed


@pytest.mark.parametrize("model", ["mixtral-8x7b-v0.1", "deepseek-v3"])
@pytest.mark.parametrize("prompts", [False, True], ids=["decodes", "with prompts"])
def test_ten_thousand_step_times(benchmark: Any, model: str, prompts: bool) -> None:
    """Calibrated; the target is 50 ms."""
    timer = calibrated(model, parallelism=Parallelism(tp=8, ep=8)).timer
    n = 1.0 + np.arange(10_000.0) % 256
    full = StepShape(n, 900 * n, 3 * n, 40 * n, 5 * n, n / 10)
    times_s = benchmark(timer.times_s, full if prompts else StepShape(n, 900 * n))
    assert times_s.shape == (10_000,)


@pytest.mark.parametrize("prompts", [False, True], ids=["decodes", "with prompts"])
@pytest.mark.parametrize("model", ["llama-3.1-70b", "gpt-oss-120b", "deepseek-v3"])
def test_one_step_time(benchmark: Any, model: str, prompts: bool) -> None:
    """In plain floats, as the simulator asks; the targets are 4 us for decodes and 10 us with prompts."""
    timer = calibrated(model, parallelism=Parallelism(tp=8, ep=1 if model == "llama-3.1-70b" else 8)).timer
    chunks = (2048.0, 2048.0 * 3000, 5048.0, 1.0)
    seconds = benchmark(timer.step_s, 100, 2e5, *chunks) if prompts else benchmark(timer.decode_s, 100, 2e5)
    assert seconds > 0.0


@pytest.mark.benchmark(group="theory")
def test_one_evaluation(benchmark: Any) -> None:
    assert benchmark(evaluate, mixed(2), chat(60.0)).stable


def test_the_worked_example(benchmark: Any) -> None:
    """Where nothing is timed few choices will do: the README's example is planned in full by its own test."""
    request = load_scenario("chat-llama-70b", SMALL_CHAT if benchmark.disabled else [])
    assert benchmark.pedantic(plan, (request,), rounds=1).feasible
