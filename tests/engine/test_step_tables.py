"""Steps of mean content, held to `StepTimer.times_s` of the same shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.core import Dtype
from planner.engine import MeanSteps, Speculation, StepTimer, operator_time
from planner.engine.lookup import CONTEXTS, TOKENS
from planner.roofline import CalibratedGpu, Load, OperatorFamily, Parallelism, StepShape
from planner.roofline.operators import Collective, Driver, MatrixProduct
from tests.builders import HARDWARE, calibrated, replica

DRAFTS = Speculation(draft_tokens=2, acceptance=0.7)
CONTEXT, CHUNKS, PAIRS, CACHED = 1234.5, 1.0 / 700.0, 410.0, 1.3


TIMERS = ["calibrated", "overlapping", "on the roofline"]


def timer_of(kind: str, model: str, **changes: Any) -> StepTimer:
    """A step timer; overlapping kernels hide in one another, down to their rooflines."""
    config = (replica if kind == "on the roofline" else calibrated)(model, **changes)
    if kind != "overlapping":
        return config.timer
    return config.timer.with_costs(config.costs.model_copy(update={"gap_s": -1.0}))


def mean_steps(timer: StepTimer, tokens: np.ndarray, attention_s: np.ndarray) -> MeanSteps:
    assert timer.tables is not None
    return MeanSteps(timer.tables, CONTEXT, CHUNKS, tokens, attention_s)


def shapes(decodes: np.ndarray, tokens: np.ndarray) -> StepShape:
    return StepShape(decodes, decodes * CONTEXT, tokens, tokens * PAIRS, tokens * CACHED, tokens * CHUNKS)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama-3.1-8b", {}),
        ("llama-3.3-70b-instruct", {"parallelism": Parallelism(tp=4)}),
        ("qwen3-30b-a3b", {"parallelism": Parallelism(tp=2, ep=2)}),
        ("deepseek-v3", {"parallelism": Parallelism(tp=1, dp=8, ep=8)}),
        ("deepseek-v3", {"parallelism": Parallelism(tp=8, ep=8)}),
        ("gpt-oss-120b", {}),
        ("deepseek-v3", {"parallelism": Parallelism(tp=8, ep=8), "speculation": DRAFTS}),
    ],
)
@pytest.mark.parametrize("kind", TIMERS)
def test_they_take_what_the_step_timer_says(model: str, changes: dict[str, Any], kind: str) -> None:
    timer = timer_of(kind, model, **changes)
    numbers = np.array([0.0, 0.3, 1.0, 2.5, 40.0, 333.3, 20_000.0])
    decodes, tokens = (each.ravel() for each in np.meshgrid(numbers, np.append(numbers, 1.5e6)))
    decodes, tokens = decodes[decodes + tokens > 0.0], tokens[decodes + tokens > 0.0]
    asked = np.append(numbers[1:], 1.5e6)
    attention_s = timer.prompts_s(shapes(0.0 * asked, asked))
    prompts_s = np.interp(tokens, asked, attention_s)
    steps, expected = mean_steps(timer, asked, attention_s), timer.times_s(shapes(decodes, tokens), prompts_s)
    assert np.allclose(steps.times_s(decodes, tokens), expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("kind", TIMERS)
def test_attention_to_contexts_beyond_the_tables_is_in_proportion_to_them(kind: str) -> None:
    """From the last that is tabulated on, through nothing at none."""
    timer, last = timer_of(kind, "llama-3.1-8b"), float(CONTEXTS[-1])
    seconds = np.array([timer.decode_s(7.0, 7.0 * context) for context in (1.0, last, 2.0 * last, 4.0 * last)])
    assert np.diff(seconds) / (seconds[2] - seconds[1]) == pytest.approx([1.0, 1.0, 2.0], rel=0.02)


@pytest.mark.parametrize("captured", [0.0, 8.0])
def test_batches_beyond_the_captured_sizes_are_launched_one_by_one(captured: float) -> None:
    timer = replace(calibrated("llama-3.1-8b").timer, captured=captured)
    decodes, none = np.array([1.0, 8.0, 9.0, 300.0]), np.zeros(4)
    seconds = mean_steps(timer, np.ones(1), none[:1]).times_s(decodes, none)
    assert np.allclose(seconds, timer.times_s(shapes(decodes, none)), rtol=1e-12, atol=0.0)
    assert seconds[2] >= timer.costs.launch_s * timer.launches


@pytest.mark.parametrize("gap_s", [0.0, -1.0], ids=["kernels", "rooflines"])
def test_between_sizes_that_were_tabulated_a_step_takes_a_time_between_theirs(gap_s: float) -> None:
    config, none = calibrated("llama-3.1-8b"), np.zeros(TOKENS.size - 1)
    timer = config.timer.with_costs(config.costs.model_copy(update={"gap_s": gap_s}))
    low, middle, high = (
        timer.times_s(replace(shapes(none, tokens), chunks=none + 1.0), none)
        for tokens in (TOKENS[:-1], (TOKENS[:-1] + TOKENS[1:]) / 2.0, TOKENS[1:])
    )
    assert (
        gap_s == 0.0 or np.mean(np.isclose(middle, (low + high) / 2.0, rtol=1e-9)) > 0.95
    )  # or a graph is left between
    assert np.all(middle == pytest.approx(np.clip(middle, np.minimum(low, high), np.maximum(low, high)), rel=1e-9))


def test_what_steps_of_several_stages_take_is_left_to_the_step_timer() -> None:
    assert replace(replica().timer, others=(replica().timer,)).tables is None


def test_a_roof_is_that_of_all_layers_on_the_chip_alone() -> None:
    """An H100 by its datasheet, 989.4 TFLOP/s dense and 3.35 TB/s: 32 products of 8192 tokens by their FLOPs, and 64
    sums over two GPUs by their reads and writes of HBM, whatever their link takes."""
    gpu, load = CalibratedGpu(HARDWARE.skus["h100-sxm"]), Load.of(StepShape(0, 0, 8192, 8192 * 4096, 0), Parallelism())
    half, driver = Dtype.BF16, Driver.TOKENS
    product = MatrixProduct(OperatorFamily.FEED_FORWARD, half, 32.0, driver, 4096.0, 14336.0, half, half)
    assert operator_time(product, load, gpu).roof_s == pytest.approx(32 * 2 * 8192 * 4096 * 14336 / 989.4e12, rel=1e-3)
    summed = Collective(OperatorFamily.ALL_REDUCE, half, 64.0, driver, "all_reduce", 2, 4096.0, 2.0, 1.0, 1e9)
    assert operator_time(summed, load, gpu).roof_s == pytest.approx(64 * 2 * 8192 * 4096 * 2 / 3.35e12, rel=1e-3)
