"""What a calibration leaves open: latencies of a deployment and of a plan's targets at both ends of its interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.fleet.calibration_bounds import deviations_of, shifted_deployment
from planner.fleet.types import Plan, TargetCheck
from planner.fleet.verification import Promise, target_checks
from planner.serving import Deployment, evaluate
from planner.workload import LatencyTarget, Slo

BAND = 0.95
"""One-sided probability of the ends of the calibration's interval: the middle 90 % lie between them."""

Say = Callable[[str], None]
"""Called with what is being done."""


def _silent(_: str) -> None:
    """Says nothing."""


def calibration_ends(deployment: Deployment, probability: float = BAND) -> tuple[Deployment, Deployment] | None:
    """The deployment with all kernels at the fast, and at the slow end of the calibration's interval; None without one.

    Pools that are not calibrated stay as they are. Kernels move together, so that the interval holds its probability
    or more (`planner.fleet.calibration_bounds.shifted_calibration` says why); none gets faster than its roofline.

    Args:
        deployment: as fitted.
        probability: one-sided; 0.95 leaves the middle 90 % between the ends.
    """
    if all(pool.config.calibration is None for pool in deployment.pools):
        return None
    deviations = deviations_of(probability)
    return shifted_deployment(deployment, -deviations), shifted_deployment(deployment, deviations)


def target_ranges_s(plan: Plan, say: Say = _silent) -> list[tuple[float, float] | None]:
    """Of every `plan.targets`, in order: its predicted latency [s] at both ends of the calibration's interval.

    The whole fleet is evaluated again at the rates routed to it, once with fast and once with slow kernels. A latency
    is infinite where the fleet is overloaded then. None where no pool of the plan is calibrated.
    """
    ends = [calibration_ends(planned.judged) for planned in plan.deployments]
    if all(end is None for end in ends):
        return [None for _ in plan.targets]
    checks: list[tuple[TargetCheck, ...]] = []
    for side, word in enumerate(("fast", "slow")):
        shifted = []
        for planned, end in zip(plan.deployments, ends, strict=True):
            say(f"kernels at the {word} end of the calibration")
            distribution = planned.predicted if end is None else evaluate(end[side], planned.workload)
            shifted.append(replace(planned, predicted=distribution, simulated=distribution))
        checks.append(target_checks(shifted, promises(plan)))
    return [(low.predicted_s, high.predicted_s) for low, high in zip(*checks, strict=True)]


def promises(plan: Plan) -> tuple[Promise, ...]:
    """The promises that `plan.targets` speak of, in their order, with the parts of the traffic they were given to."""
    by_name: dict[str, list[LatencyTarget]] = {}
    for check in plan.targets:
        by_name.setdefault(check.of, []).append(check.target)
    waits = {f"{service.name}: {work.name}" for service in plan.request.all_services for work in plan.request.offline}
    of_service = {name: planned.service for planned in plan.deployments for name in planned.slices if name not in waits}
    return tuple(
        Promise(
            name,
            Slo(targets=tuple(targets)),
            frozenset(part for part, service in of_service.items() if not name or service == name)
            or frozenset(name.split(" + ")),
        )
        for name, targets in by_name.items()
    )
