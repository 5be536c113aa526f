"""Plans and latencies at the bounds of a calibration: every kernel as slow, or as fast, as its measurements scatter.

`planner.serving.uncertainty` says how far a mean latency may be off. Here the kernels themselves are shifted, so that
queues feel it too: `shifted_hardware` is what a robust plan is made on, `target_ranges_s` are the latencies of a plan's
targets at both bounds.
"""

from __future__ import annotations

from dataclasses import replace

from hardware_db import Calibration, Correction, HardwareDb, KernelFit
from planner.core import rebuilt
from planner.engine import ReplicaConfig
from planner.fleet.confidence import deviations_of
from planner.fleet.types import Plan, PlannedDeployment, Progress, TargetCheck
from planner.fleet.verification import ScopedSlo, target_checks
from planner.serving import Deployment, evaluate
from planner.workload import LatencyTarget, Slo

BOUND_PROBABILITY = 0.95
"""One-sided probability of each bound: the middle 90 % of the measurements lie between the two. A choice."""


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


# --- latencies at both bounds ---------------------------------------------------------------------------------------


def calibration_ends(
    deployment: Deployment, probability: float = BOUND_PROBABILITY
) -> tuple[Deployment, Deployment] | None:
    """The deployment with all kernels at the fast, and at the slow end of the calibration's interval; None without one.

    Pools that are not calibrated stay as they are. Kernels move together, so that the interval holds its probability
    or more (`shifted_calibration` says why); none gets faster than its roofline.

    Args:
        deployment: as fitted.
        probability: one-sided; 0.95 leaves the middle 90 % between the ends.
    """
    if all(pool.config.calibration is None for pool in deployment.pools):
        return None
    deviations = deviations_of(probability)
    return shifted_deployment(deployment, -deviations), shifted_deployment(deployment, deviations)


def target_ranges_s(plan: Plan, progress: Progress = lambda _: None) -> list[tuple[float, float] | None]:
    """Of every `plan.targets`, in order: its predicted latency [s] with fast, and with slow kernels.

    The whole fleet is evaluated again at the rates routed to it, at both ends of the calibration's interval. A latency
    is infinite where the fleet is overloaded then. None where no pool of the plan is calibrated.
    """
    ends = [calibration_ends(planned.surviving) for planned in plan.deployments]
    if all(end is None for end in ends):
        return [None for _ in plan.targets]
    slos = checked_slos(plan)
    checks: list[tuple[TargetCheck, ...]] = []
    for side, word in enumerate(("fast", "slow")):
        shifted: list[PlannedDeployment] = []
        for planned, end in zip(plan.deployments, ends, strict=True):
            progress(f"kernels at the {word} end of the calibration")
            performance = planned.predicted if end is None else evaluate(end[side], planned.workload)
            shifted.append(replace(planned, predicted=performance, simulated=performance))
        checks.append(target_checks(shifted, slos))
    return [(low.predicted_s, high.predicted_s) for low, high in zip(*checks, strict=True)]


def checked_slos(plan: Plan) -> tuple[ScopedSlo, ...]:
    """The targets that `plan.targets` are about, in their order, with the slices they apply to."""
    targets: dict[str, list[LatencyTarget]] = {}
    for check in plan.targets:
        targets.setdefault(check.of, []).append(check.target)
    offline = {f"{service.name}: {work.name}" for service in plan.request.all_services for work in plan.request.offline}
    service_of = {
        name: planned.service for planned in plan.deployments for name in planned.slices if name not in offline
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
