"""How sure a prediction says it is: what adds up, and what must make it wider."""

import math
from dataclasses import replace

import pytest

from hardware_db import load_hardware, with_calibration
from planner.core import Metric, rebuilt
from planner.engine.replica import step_shape
from planner.llm import Precision
from planner.roofline import OperatorFamily, Parallelism
from planner.serving import Deployment, group_spread, latency_intervals
from planner.serving.uncertainty import (
    STALL_SPREAD,
    GroupSpread,
    KernelSpreads,
    SpreadKey,
    _measured_spreads,
    kernel_spreads,
    latency_spreads,
    spread_key,
    step_spread,
)
from tests.serving.test_closed_loop import EIGHT_BIT, calibrated, large

MEANS_S = {Metric.TTFT: 0.5, Metric.TPOT: 0.02, Metric.E2E: 10.5, Metric.ITL: 0.02}
CALM = KernelSpreads(tpot=0.04, ttft=0.03, prompt_share=1.0, stall_share=0.0, prompt_load=0.0, ttft_s=0.5)


def test_variances_of_kernels_groups_and_seconds_add_up() -> None:
    config = large()
    group = group_spread(config, True)
    ttft, tpot = latency_spreads(Deployment.mixed(config), CALM)
    assert tpot**2 == pytest.approx(0.04**2 + group.steps**2)
    assert ttft**2 == pytest.approx(0.03**2 + group.prompts**2 + (group.late_s / 0.5) ** 2)


def test_a_long_prompt_is_off_by_what_its_steps_are_and_a_short_one_by_the_host() -> None:
    """Seconds outside the steps are the same for both: of a prompt of a minute they are nothing."""
    config = large()
    group = group_spread(config, True)
    minute, _ = latency_spreads(Deployment.mixed(config), replace(CALM, ttft_s=60.0))
    short, _ = latency_spreads(Deployment.mixed(config), replace(CALM, prompt_share=0.01, ttft_s=0.02))
    assert minute == pytest.approx(math.hypot(0.03, group.prompts), rel=0.01)
    assert short == pytest.approx(group.late_s / 0.02, rel=0.01)


def test_a_wait_moves_with_the_steps_as_in_a_queue() -> None:
    """d log W / d log S of W = lambda S^2 / (1 - lambda S) by differences, and users who wait for one another."""
    deployment = Deployment.mixed(large())
    means_s = {Metric.TTFT: 3.0, Metric.E2E: 13.0}
    alone = kernel_spreads(deployment, 2000.0, 500.0, [1e-9], means_s)
    step_s = deployment.pools[0].config.timer.step_time(step_shape([], [(2000, 0)])).total_s
    outside_s = deployment.pools[0].config.costs.request_s
    waited_s = 3.0 - step_s - outside_s
    assert alone.prompt_share * 3.0 == pytest.approx(step_s + 2.0 * waited_s, rel=1e-3)  # nobody else: 1 + 1 / (1 - 0)
    running = 0.6 * 10.0 / step_s  # of a rate that keeps it busy with prompts for 60 % of the time
    rate_per_s = 0.6 / step_s

    def wait_s(longer: float) -> float:
        return rate_per_s * (longer * step_s) ** 2 / (1.0 - rate_per_s * longer * step_s)

    moves = (math.log(wait_s(1.0001)) - math.log(wait_s(0.9999))) / math.log(1.0001 / 0.9999)
    assert moves == pytest.approx(1.0 + 1.0 / (1.0 - 0.6), rel=1e-3)
    busy = kernel_spreads(deployment, 2000.0, 500.0, [running], means_s)
    assert busy.prompt_share > alone.prompt_share
    assert busy.prompt_share * 3.0 <= 3.0 + 13.0


def test_unknown_flags_and_a_cold_server_make_the_first_token_less_sure() -> None:
    deployment = Deployment.mixed(calibrated("deepseek-v3", parallelism=Parallelism(tp=8), precision=EIGHT_BIT))
    calm, known_tpot = latency_spreads(deployment, CALM)
    cold, _ = latency_spreads(deployment, replace(CALM, stall_share=0.5))
    unknown, tpot = latency_spreads(deployment, CALM, documented=False)
    assert cold**2 == pytest.approx(calm**2 + (0.5 * STALL_SPREAD) ** 2)
    assert unknown > calm and tpot > known_tpot


def test_a_borrowed_calibration_is_less_sure_than_a_measured_one() -> None:
    config = large()
    assert config.calibration is not None
    lent = config.model_copy(update={"calibration": config.calibration.model_copy(update={"sku": "gb300-nvl72"})})
    own, borrowed = (latency_spreads(Deployment.mixed(c), CALM) for c in (config, lent))
    assert all(more > less for more, less in zip(borrowed, own, strict=True))


def test_kernels_of_another_kind_of_layer_are_named_and_less_sure() -> None:
    """Nobody measured a Mamba-2 scan; as if its own had been, the same step is surer and nothing stands in."""
    config = calibrated("nvidia-nemotron-3-nano-30b-a3b-bf16")
    assert config.calibration is not None
    kernels = dict(config.calibration.kernels)
    own = {f"{phase}/mamba2": kernels[f"{phase}/gated_delta"] for phase in ("recurrent_prefill", "recurrent_decode")}
    measured = config.model_copy(
        update={"calibration": config.calibration.model_copy(update={"kernels": kernels | own})}
    )
    assert step_spread(config, step_shape([1000] * 64, [])) > step_spread(measured, step_shape([1000] * 64, []))
    wanted = "recurrent_prefill/mamba2 is not measured, recurrent_prefill/common stands in"
    assert any(wanted in note for note in config.assumptions)
    assert not any("mamba2" in note for note in measured.assumptions)


def test_intervals_hold_the_mean_and_are_log_symmetric() -> None:
    deployment = Deployment.mixed(large())
    intervals = latency_intervals(deployment, 2000.0, 500.0, [16.0], MEANS_S)
    for metric, (low, high) in intervals.items():
        assert low < MEANS_S[metric] < high
        assert low * high == pytest.approx(MEANS_S[metric] ** 2)


def test_spreads_are_those_of_the_closest_runs() -> None:
    """The model on the SKU, by its layers; else mode, architecture, engine: something is always known."""
    own = calibrated("llama-3.3-70b-instruct", "h200-sxm", parallelism=Parallelism(tp=8), precision=EIGHT_BIT)
    assert spread_key(own, True).llm == "llama-3.1-70b"
    assert group_spread(own, True).source == "llama-3.1-70b in fp8 on h200-sxm under vllm, mixed TP8 (15 runs)"
    assert not spread_key(rebuilt(own, precision=Precision()), True).llm  # no run of its original
    other = calibrated("llama-3.1-8b", "h200-sxm")
    assert group_spread(other, True).source == "dense models under vllm on Hopper, mixed (2 measured groups)"
    pair = group_spread(other, False)
    assert pair.source == "dense models under vllm on Hopper (2 measured groups)"
    assert pair.steps == _measured_spreads()[SpreadKey("dense", "vllm", "Hopper")].steps
    assert pair.late_s == _measured_spreads()[SpreadKey(mode="disaggregated")].late_s  # of vLLM no pair was measured


def test_steps_of_a_model_that_was_measured_take_what_its_runs_took() -> None:
    """Kernels and constants of all models, times what is left of the model's own runs; other fits go without."""
    own = calibrated("llama-3.3-70b-instruct", "b200-sxm", precision=EIGHT_BIT)
    plain = rebuilt(own, engine=own.engine.with_costs(own.engine.costs_on(own.sku)))
    assert own.measured is not None and plain.measured is None
    decodes, prompt = step_shape([2000] * 32, []), step_shape([], [(4096, 0)])
    for shape, factor in ((decodes, own.measured.decode), (prompt, own.measured.prompt)):
        took, constant_s = (one.timer.step_time(shape).total_s for one in (own, plain))
        assert took == pytest.approx(factor * constant_s, rel=1e-3)
    changed = with_calibration(load_hardware(), load_hardware().calibrations[0])
    assert all(
        row.sku != changed.calibrations[-1].sku for engine in changed.engines.values() for row in engine.measured
    )


@pytest.mark.parametrize(("key", "spread"), _measured_spreads().items())
def test_spreads_are_those_of_servers(key: SpreadKey, spread: GroupSpread) -> None:
    """No mean is a factor of three off, and no request comes out seconds late where nobody waits."""
    assert 0.0 <= spread.steps < math.log(3.0)
    assert 0.0 <= spread.prompts < math.log(3.0)
    assert 0.0 <= spread.late_s < 1.0
    assert len(key.wider()) >= 1 and key.wider()[-1] == SpreadKey(key.llms)


def test_shapes_that_one_fit_times_are_off_each_by_themselves() -> None:
    """A step of decodes is mostly matrix products of four shapes: known better than any one of them.

    By hand: all of a small step's time is in products that one fit times; their shares are those of their weights.
    """
    config = calibrated("llama-3.1-8b")
    assert config.calibration is not None
    only = {key: fit.model_copy(update={"spread": 0.0}) for key, fit in config.calibration.kernels.items()}
    (product,) = {key for key in config.calibration.kernels if key == "gemm/bf16"}
    kernels = only | {product: config.calibration.kernels[product].model_copy(update={"spread": 0.2})}
    alone = config.model_copy(update={"calibration": config.calibration.model_copy(update={"kernels": kernels})})
    shape = step_shape([1000] * 8, [])
    seconds = alone.timer.step_time(shape)
    families = ("qkv", "attention_output", "feed_forward", "lm_head")
    times = {name: seconds.family_s[OperatorFamily(name)] * alone.costs.stretch for name in families}
    up, down = 2.0 / 3.0, 1.0 / 3.0  # gate and up are one product of twice the width of down
    parts = [times["qkv"], times["attention_output"], up * times["feed_forward"], down * times["feed_forward"]]
    expected = 0.2 * math.hypot(*parts, times["lm_head"]) / max(seconds.total_s, sum(times.values()))
    assert step_spread(alone, shape) == pytest.approx(expected, rel=0.02)
