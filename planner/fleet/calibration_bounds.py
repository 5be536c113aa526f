"""Kernels shifted by so many deviations of their fits, and the latencies of a plan with fast and with slow steps.

Step times themselves are shifted, so that queues feel it too: `shifted_hardware` is for sensitivities to the speed of
kernels, `target_ranges_s` are the latencies of a plan's targets at both ends of its one interval.
"""

from __future__ import annotations

from dataclasses import replace

from hardware_db import Calibration, Correction, HardwareDb, KernelFit
from planner.core import rebuilt
from planner.engine import ReplicaConfig
from planner.fleet.confidence import deviations_of, slower_deployment
from planner.fleet.types import Plan, PlannedDeployment, PlanRequest, Progress, TargetCheck
from planner.fleet.verification import ScopedSlo, target_checks
from planner.serving import Deployment, evaluate
from planner.workload import LatencyTarget, Slo

EXACT = 0.5
"""Confidence of a plan on step times as estimated. A definition."""


# --- slower and faster kernels --------------------------------------------------------------------------------------


def shifted_calibration(calibration: Calibration, deviations: float) -> Calibration:
    """A calibration whose every kernel takes exp(deviations * spread) times as long.

    The spread of a fit is the standard deviation of log(measured / fitted) over held-out measurements
    (`hardware_db` KernelFit), so that 1.645 deviations are the slow end of the middle 90 %. All fits are shifted
    together: for a step of seconds t_f by fit f, of log-normal factors with any correlation, the quantile of the whole
    is to first order at most that of the sum of quantiles,

        sqrt(sum_fg t_f t_g r_fg s_f s_g) <= sum_f t_f s_f        (|r_fg| <= 1),

    so a step is no slower than this with at least the probability of that many deviations. The factor goes on top of
    the form's correction, which never takes a kernel below its roofline.

    Args:
        calibration: as fitted.
        deviations: standard deviations; positive is slower.
    """
    kernels = {name: _shifted_fit(fit, deviations) for name, fit in calibration.kernels.items()}
    return calibration.model_copy(update={"kernels": kernels})


def _shifted_fit(fit: KernelFit, deviations: float) -> KernelFit:
    shift = deviations * fit.spread
    table = fit.correction or Correction(first_log2=(0.0,), second_log2=(0.0,), log_factor=((0.0,),))
    factors = tuple(tuple(value + shift for value in row) for row in table.log_factor)
    return fit.model_copy(update={"correction": table.model_copy(update={"log_factor": factors})})


def shifted_hardware(hardware: HardwareDb, deviations: float) -> HardwareDb:
    """The database with every calibration shifted (see `shifted_calibration`); negative deviations are faster."""
    calibrations = tuple(shifted_calibration(calibration, deviations) for calibration in hardware.calibrations)
    return hardware.model_copy(update={"calibrations": calibrations})


def shifted_deployment(deployment: Deployment, deviations: float) -> Deployment:
    """A deployment whose calibrated replicas are slower (or faster) by so many deviations of every kernel."""

    def shifted_config(config: ReplicaConfig) -> ReplicaConfig:
        if config.calibration is None:
            return config
        return rebuilt(config, calibration=shifted_calibration(config.calibration, deviations))

    pools = tuple(rebuilt(pool, config=shifted_config(pool.config)) for pool in deployment.pools)
    return rebuilt(deployment, pools=pools)


# --- latencies with fast and slow steps -------------------------------------------------------------------------------


def interval_confidence(plan: Plan) -> float:
    """Probability on either side of the intervals of a plan: its confidence, of one on exact estimates the usual."""
    asked = plan.request.confidence
    return asked if asked > EXACT else float(PlanRequest.model_fields["confidence"].default)


def step_time_ends(plan: Plan, planned: PlannedDeployment) -> tuple[Deployment, Deployment] | None:
    """A deployment with all step times as fast, and as slow, as the plan reckons with; None where nothing is known.

    The slow end is the one that the fleet was planned for (`Plan.slow_targets`), so that a plan has one interval.
    """
    if all(pool.config.calibration is None for pool in planned.surviving.pools):
        return None
    request = plan.request
    deviations = plan.slow_deviations or deviations_of(interval_confidence(plan))
    return (
        slower_deployment(planned, -deviations, request.measured_steps),
        slower_deployment(planned, deviations, request.measured_steps),
    )


def target_ranges_s(plan: Plan, progress: Progress = lambda _: None) -> list[tuple[float, float] | None]:
    """Of every `plan.targets`, in order: its predicted latency [s] with fast, and with slow steps.

    The whole fleet is evaluated again at the rates routed to it (`step_time_ends`). A latency is infinite where the
    fleet is overloaded then. None where no pool of the plan is calibrated.
    """
    ends = [step_time_ends(plan, planned) for planned in plan.deployments]
    if all(end is None for end in ends):
        return [None for _ in plan.targets]
    slos = checked_slos(plan)
    checks: list[tuple[TargetCheck, ...]] = []
    for side, word in enumerate(("fast", "slow")):
        shifted: list[PlannedDeployment] = []
        for planned, end in zip(plan.deployments, ends, strict=True):
            progress(f"{word} steps")
            performance = planned.predicted if end is None else evaluate(end[side], planned.workload)
            shifted.append(replace(planned, predicted=performance, simulated=performance))
        checks.append(target_checks(shifted, slos))
    return [(low.predicted_s, high.predicted_s) for low, high in zip(*checks, strict=True)]


def checked_slos(plan: Plan) -> tuple[ScopedSlo, ...]:
    """The targets that `plan.targets` are about, in their order, with the slices they apply to."""
    targets: dict[str, list[LatencyTarget]] = {}
    for check in plan.targets:
        targets.setdefault(check.of, []).append(check.target)
    service_of = {
        name: planned.service for planned in plan.deployments for name in planned.slices if not plan.request.waits(name)
    }
    return tuple(
        ScopedSlo(
            name,
            Slo(targets=tuple(own)),
            frozenset(slice_name for slice_name, service in service_of.items() if not name or service == name)
            or frozenset(name.split(" + ")),
        )
        for name, own in targets.items()
    )
