"""Both ends of a calibration's interval, and the latencies of a plan's targets at them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planner.engine import ReplicaConfig, step_time
from planner.fleet import Plan, plan, shifted_deployment, target_ranges_s
from planner.fleet.calibration_bounds import checked_slos
from planner.fleet.verification import target_checks
from planner.roofline import StepShape
from planner.serving import Deployment, step_spread
from tests.builders import calibrated, replica, small_request

CONFIG = calibrated(sku="h100-sxm", max_batched_tokens=2048)
FITTED = Deployment.mixed(CONFIG, 2)


def test_the_slow_end_stretches_a_step_by_no_more_than_its_widest_spread() -> None:
    """Kernels alone: the slow end takes exp(1.645 s) times as long, s at most the largest spread of any fit."""
    slow, fit = shifted_deployment(FITTED, 1.645), CONFIG.calibration
    assert fit is not None
    widest = max(kernel.spread for kernel in fit.kernels.values())
    fitted_s = step_time(CONFIG, chunks=[(1000, 0)]).total_s
    slow_s = step_time(slow.pools[0].config, chunks=[(1000, 0)]).total_s
    assert 1.0 < slow_s / fitted_s <= math.exp(1.645 * widest) * (1 + 1e-3)


# --- ends of the calibration ----------------------------------------------------------------------------------------


def test_the_fast_end_is_never_above_the_roof() -> None:
    """No kernel may take less than its datasheet roofline, however far its measurements scatter."""
    fast = shifted_deployment(FITTED, -3.0)
    bound_s = step_time(replica(max_batched_tokens=2048), chunks=[(4000, 0)]).total_s
    assert step_time(fast.pools[0].config, chunks=[(4000, 0)]).total_s >= bound_s


# --- targets and their ranges ---------------------------------------------------------------------------------------

TARGETS = [{"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5}]
CLASSES = {
    "rate_per_s": 40.0,
    "lengths": None,
    "classes": [
        {"name": "short", "share": 0.8, "lengths": {"input_tokens": 300, "output_tokens": 100}, "slo": TARGETS},
        {"name": "long", "share": 0.2, "lengths": {"input_tokens": 3000, "output_tokens": 100}},
    ],
}
CODE = {
    "name": "code",
    "llm": "qwen2.5-7b",
    "workload": {"rate_per_s": 10.0, "lengths": {"input_tokens": 2000, "output_tokens": 60}},
    "slo": TARGETS,
}
NIGHT = {"name": "night", "requests_per_hour": 3600.0, "lengths": {"input_tokens": 500, "output_tokens": 50}}
ONE = {"skus": ["h100-sxm"], "tp": [1], "max_batched_tokens": [2048], "modes": ["mixed"]}


def planned(**changes: Any) -> Plan:
    return plan(small_request(search=ONE, **{"confidence": 0.9, **changes}), simulate=False, alternatives=False)


@pytest.mark.parametrize(
    "changes",
    [{}, {"services": [CODE]}, {"workload": CLASSES}, {"workload": CLASSES, "by_class": True}, {"offline": [NIGHT]}],
    ids=["one", "services", "classes", "by class", "offline"],
)
def test_the_slos_of_a_plan_are_those_its_targets_were_checked_by(changes: dict[str, Any]) -> None:
    found = planned(**changes)
    assert found.feasible
    assert target_checks(found.deployments, checked_slos(found)) == found.targets


def test_the_range_of_a_target_is_around_its_prediction() -> None:
    request = small_request(confidence=0.9, search={**ONE, "calibrated": True})
    found = plan(request, alternatives=False)
    for check, slow, ends in zip(found.targets, found.slow_targets, target_ranges_s(found), strict=True):
        assert ends is not None
        assert ends[0] < check.predicted_s < ends[1]
        assert ends[1] == pytest.approx(slow.predicted_s, rel=1e-9)  # one interval: what the fleet was planned for


# --- shifted kernels ------------------------------------------------------------------------------------------------


def step_s(config: ReplicaConfig, shape: StepShape) -> float:
    """Duration of a step [s]."""
    return float(config.timer.step_time(shape).total_s)


class TestShiftedKernels:
    """Kernels at an end of their interval."""

    DECODE = StepShape(64.0, 64.0 * 1000.0)

    def seconds(self, deviations: float) -> float:
        deployment = shifted_deployment(Deployment.mixed(calibrated()), deviations)
        return step_s(deployment.pools[0].config, self.DECODE)

    def test_no_deviation_is_the_calibration_itself(self) -> None:
        assert self.seconds(0.0) == pytest.approx(step_s(calibrated(), self.DECODE), rel=1e-12)

    @pytest.mark.parametrize("deviations", [0.5, 1.645, 3.0])
    def test_all_fits_slow_together_is_no_less_than_the_independent_interval(self, deviations: float) -> None:
        # sum t_f s_f >= sqrt(sum (t_f s_f)^2): never more optimistic than planner.serving.uncertainty
        ratio = self.seconds(deviations) / self.seconds(0.0)
        spreads = [fit.spread for fit in calibrated().calibration.kernels.values()]  # type: ignore[union-attr]
        assert 1.0 + deviations * step_spread(calibrated(), self.DECODE) <= ratio <= math.exp(deviations * max(spreads))

    def test_faster_kernels_stay_above_their_roofline(self) -> None:
        assert self.seconds(-50.0) >= step_s(replica(sku=calibrated().sku), self.DECODE)
