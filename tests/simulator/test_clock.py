"""Runs of decode steps against single steps."""

from __future__ import annotations

import numpy as np
import pytest

from planner.llm import DenseFeedForward, GroupedQueryAttention, LayerGroup, LlmSpec, MoeFeedForward
from planner.roofline import Parallelism, StepShape
from planner.simulator.clock import StepClock, run_end_s, steps_until
from tests.simulator_oracle import H100_BANDWIDTH_BYTES_PER_S, gpu, replica


def mixtral_like() -> LlmSpec:
    """A dense and an MoE group, so that several operators share a family."""
    attention = GroupedQueryAttention(heads=32, kv_heads=8, head_dim=128)
    dense = LayerGroup(count=2, attention=attention, feed_forward=DenseFeedForward(intermediate=14336))
    moe = MoeFeedForward(experts=8, experts_per_token=2, intermediate=14336)
    return LlmSpec(
        id="moe",
        name="MoE",
        source="chosen for the test",
        hidden_size=4096,
        vocab_size=32000,
        max_context_tokens=32768,
        tied_embeddings=False,
        layers=(dense, LayerGroup(count=30, attention=attention, feed_forward=moe)),
    )


CLOCKED = {
    "dense": replica(),
    "dense tp2": replica(parallelism=Parallelism(tp=2)),
    "moe tp4": replica(llm=mixtral_like(), parallelism=Parallelism(tp=4)),
    "few flops": replica(gpu(flops=3.2 * H100_BANDWIDTH_BYTES_PER_S)),
}


@pytest.mark.parametrize("name", CLOCKED)
@pytest.mark.parametrize("tokens_per_step", [1.0, 2.5])
def test_runs_end_where_single_steps_end(name: str, tokens_per_step: float) -> None:
    """Every step timed on its own; where decode attention changes its side of the roofline a run is 2 % off at most."""
    timer = CLOCKED[name].timer
    clock = StepClock(timer, tokens_per_step)
    for decodes, mean in ((1, 1), (1, 3000), (7, 100), (150, 20), (150, 2000)):
        context = float(decodes * mean)
        for _ in range(3):
            steps = clock.steps_in_line(decodes, context)
            contexts = context + decodes * tokens_per_step * np.arange(steps)
            each = timer.times_s(StepShape(np.full(steps, float(decodes)), np.asarray(contexts, dtype=np.float64)))
            run = clock.run(decodes, context, steps)
            ends = np.array([run_end_s(5.0, *run, k) for k in range(1, steps + 1)])
            assert ends - 5.0 == pytest.approx(np.cumsum(each), rel=1e-4)
            context += steps * decodes * tokens_per_step


def test_a_run_knows_its_first_step_from_a_time_on() -> None:
    run = 2.0, 0.5, 0.01
    ends = [run_end_s(*run, k) for k in range(1, 41)]
    for time_s in (2.0, 2.5, 2.6, ends[9], ends[9] + 1e-9, ends[-1]):
        assert steps_until(*run, time_s, 40) == next(k for k, end in enumerate(ends, start=1) if end >= time_s)
    assert steps_until(*run, 1e9, 40) == 40
