"""How sure a prediction says it is: what adds up, and what must make it wider."""

import math

import pytest

from planner.core import Metric
from planner.engine.replica import step_shape
from planner.roofline import OperatorFamily, Parallelism
from planner.serving import Deployment, ServingKind, latency_intervals
from planner.serving.uncertainty import (
    GROUP_SPREADS,
    KernelSpreads,
    latency_spreads,
    serving_kind,
    step_spread,
)
from tests.serving.test_closed_loop import EIGHT_BIT, calibrated, large

MEANS_S = {Metric.TTFT: 0.5, Metric.TPOT: 0.02, Metric.E2E: 10.5, Metric.ITL: 0.02}


def test_variances_of_kernels_and_groups_add_up() -> None:
    deployment = Deployment.mixed(large())
    group = GROUP_SPREADS[serving_kind(deployment)]
    ttft, tpot = latency_spreads(deployment, KernelSpreads(0.04, 0.03, 0.0))
    assert tpot**2 == pytest.approx(0.04**2 + group.tpot**2)
    assert ttft**2 == pytest.approx(0.03**2 + group.ttft**2)


def test_waiting_and_unknown_flags_make_the_first_token_less_sure() -> None:
    """A wait changes faster than the step time behind it; a run whose limits nobody published may have others."""
    deployment = Deployment.mixed(calibrated("deepseek-v3", parallelism=Parallelism(tp=8), precision=EIGHT_BIT))
    calm, _ = latency_spreads(deployment, KernelSpreads(0.04, 0.03, 0.1))
    busy, _ = latency_spreads(deployment, KernelSpreads(0.04, 0.03, 0.9))
    unknown, _ = latency_spreads(deployment, KernelSpreads(0.04, 0.03, 0.9), documented=False)
    assert calm < busy < unknown


def test_a_borrowed_calibration_is_less_sure_than_a_measured_one() -> None:
    config = large()
    assert config.calibration is not None
    lent = config.model_copy(update={"calibration": config.calibration.model_copy(update={"sku": "gb300-nvl72"})})
    own, borrowed = (latency_spreads(Deployment.mixed(c), KernelSpreads(0.04, 0.03, 0.0)) for c in (config, lent))
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
    wanted = "recurrent_prefill/mamba2 is not measured, recurrent_prefill/gated_delta stands in"
    assert any(wanted in note for note in config.assumptions)
    assert not any("mamba2" in note for note in measured.assumptions)


def test_intervals_hold_the_mean_and_are_log_symmetric() -> None:
    deployment = Deployment.mixed(large())
    intervals = latency_intervals(deployment, 2000.0, 500.0, [16.0], MEANS_S)
    for metric, (low, high) in intervals.items():
        assert low < MEANS_S[metric] < high
        assert low * high == pytest.approx(MEANS_S[metric] ** 2)


@pytest.mark.parametrize("kind", ServingKind)
def test_spreads_are_those_of_servers(kind: ServingKind) -> None:
    """Repeats of a run differ by 2 % in TTFT: no prediction is surer, nor is one a factor of 3 off."""
    group = GROUP_SPREADS[kind]
    assert 0.0 <= group.tpot < math.log(3.0)
    assert 0.02 < group.ttft < math.log(3.0)
    assert 0.0 <= group.shared <= 1.0
    assert -1.0 <= group.correlation <= 1.0


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
