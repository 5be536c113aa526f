"""How long the chain takes, layer by layer. Run with: pytest tests/benchmarks --benchmark-enable."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.performance import evaluate
from planner.planning import plan
from planner.replica import step_timer
from planner.roofline import StepShape
from planner.scenario import load_scenario
from tests.builders import chat, mixed, replica


def test_ten_thousand_step_times(benchmark: Any) -> None:
    timer = step_timer(replica("mixtral-8x7b-v0.1", tp=2))
    n = 1.0 + np.arange(10_000.0) % 256
    shape = StepShape(n, 900 * n, 3 * n, 40 * n, 5 * n, n / 10)
    assert benchmark(timer.times_s, shape).shape == (10_000,)


def test_one_evaluation(benchmark: Any) -> None:
    assert benchmark(evaluate, mixed(2), chat(60.0)).stable


def test_the_worked_example(benchmark: Any) -> None:
    request = load_scenario("chat-llama-70b")
    assert benchmark.pedantic(plan, (request,), rounds=1).feasible
