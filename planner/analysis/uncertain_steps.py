"""Cost of certainty where step times are estimates, and the value of measuring them first.

Step times may be off by what `planner.serving.uncertainty` says; a plan is made with steps so many standard deviations
slower than estimated that it holds with the probability asked for (`PlanRequest.confidence`). Both answers here are
plans made again with other quantiles, by theory: of all SKUs (`confidence_curve`), or of one that counts as measured
while the others stay as slow as asked (`measurement_values`). Slower steps never allow a better fleet, and this saves
plans: between two quantiles with the same fleet there is no other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from hardware_db import select_calibration
from planner.analysis.fleet_capacity import is_calibrated
from planner.analysis.perturbations import price_now
from planner.analysis.replanner import Replanner, baseline, outcome_of
from planner.analysis.types import (
    ConfidencePoint,
    MeasurementValue,
    Measuring,
    PlanMeasure,
    PlanningCase,
    PlanOutcome,
    gain,
)
from planner.core import HOURS_PER_MONTH, Metric, rebuilt
from planner.fleet import Plan, PlannedDeployment, deviations_of, hardware_for
from planner.serving import MeasuredSteps, Pool, Role, replica_spreads

CONFIDENCES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Probabilities that plans are made for, beside the one asked for. A choice."""
PARTS = 7
"""Equal parts of (0, 1) whose midpoints stand for what a measurement may show. A choice: each is a plan."""


# --- confidence -----------------------------------------------------------------------------------------------------


def confidence_curve(plan: Plan, replanner: Replanner) -> tuple[ConfidencePoint, ...]:
    """The plan at several confidences, from exact estimates (0.5) upwards; five solves.

    A fleet that holds with a probability holds with every smaller one too: where a plan for more confidence came out
    better (solvers stop at a gap), it stands for the smaller one as well.
    """
    request = plan.request
    measure = PlanMeasure.of(request)
    points: list[ConfidencePoint] = []
    for confidence in sorted({*CONFIDENCES, request.confidence}, reverse=True):
        found = replanner.plan(rebuilt(request, confidence=confidence))
        outcome, calibrated = outcome_of(found), is_calibrated(found)
        if points and _is_better(points[-1].outcome, outcome, measure):
            outcome, calibrated = points[-1].outcome, points[-1].calibrated
        points.append(ConfidencePoint(confidence, confidence == request.confidence, outcome, calibrated))
    return tuple(reversed(points))


def _is_better(one: PlanOutcome, other: PlanOutcome, measure: PlanMeasure) -> bool:
    if not one.feasible:
        return False
    return not other.feasible or (gain(other, one, measure) or 0.0) > 0.0


# --- measuring ------------------------------------------------------------------------------------------------------


def measurement_values(plan: Plan, replanner: Replanner) -> tuple[MeasurementValue, ...]:
    """Value of knowing the step times of each SKU before deciding, largest first.

    The expected value of perfect information (Raiffa and Schlaifer 1961, Applied Statistical Decision Theory): what is
    gained by planning after the measurement, the mean over what it may show, with the step times of all other SKUs as
    slow as the confidence asks for. Measurements are the midpoints of `PARTS` equal parts of (0, 1), as quantiles; the
    one at the confidence asked for is the plan itself. Up to eight solves for a SKU; one for a SKU that the plan leaves
    out and would leave out were it as fast as it may be. SKUs without a price, and those that count as measured, are
    left out. Where measuring shows that there is no fleet, that is counted apart and not part of the mean.

    With less than even confidence in a fleet its steps may well turn out slower than planned for, so that the gain may
    be negative: the fleet is dearer then, and sure.
    """
    base, _ = baseline(plan, replanner)
    values = [_measurement_value(sku, base, plan, replanner) for sku in _open_skus(plan, replanner)]
    return tuple(sorted(values, key=lambda value: (not value.calibrated, -(value.gain or 0.0), -value.changes)))


def _open_skus(plan: Plan, replanner: Replanner) -> list[str]:
    """SKUs that may be bought and whose step times do not count as measured."""
    request = plan.request
    case = PlanningCase(request, replanner.hardware)
    skus = [sku for sku in dict.fromkeys(request.search.skus) if sku not in request.limits.forbidden]
    return [sku for sku in skus if sku not in request.measured_steps and price_now(case, sku) is not None]


def _measurement_value(sku: str, base: PlanOutcome, plan: Plan, replanner: Replanner) -> MeasurementValue:
    request = plan.request
    measure = PlanMeasure.of(request)
    engines = tuple(dict.fromkeys((request.search.engine, *request.search.more_engines)))
    hardware = hardware_for(request, replanner.hardware)
    known = request.search.calibrated and any(select_calibration(hardware, sku, engine) for engine in engines)
    start = MeasurementValue(sku, engines, base.gpus.get(sku, 0), known)
    if not known:
        return start
    now = replanner.plan(request)
    plans = _plans_after(sku, now, replanner)
    outcomes = [outcome_of(found) for found in plans]
    others = [found for found in plans if not _same_fleet(found, now, measure)]
    measured = _pool_on(sku, (now, *others)) if others else None
    spreads = None if measured is None else _parts(*measured)
    gains = [worth for outcome in outcomes if (worth := gain(base, outcome, measure)) is not None]
    mean_gain = math.fsum(gains) / len(gains) if gains else None
    better = [worth for worth in gains if worth > 0.0]
    replica_gpus = 0 if measured is None else measured[1].config.parallelism.gpus
    price = price_now(PlanningCase(request, hardware), sku)
    in_dollars = mean_gain is not None and measure is PlanMeasure.COST
    return MeasurementValue(
        sku=sku,
        engines=engines,
        gpus=start.gpus,
        calibrated=True,
        gain=mean_gain,
        usd_per_month=HOURS_PER_MONTH * mean_gain if in_dollars and mean_gain is not None else None,
        changes=len(others) / PARTS,
        impossible=sum(not outcome.feasible for outcome in outcomes) / PARTS,
        cheaper=len(better) / PARTS,
        saving=math.fsum(better) / len(better) / base.usd_per_hour if better and measure is PlanMeasure.COST else 0.0,
        replica_gpus=replica_gpus,
        hour_usd=None if price is None else replica_gpus * price,
        at_best=outcomes[0],
        settled_by=None if spreads is None else (Measuring.KERNELS if spreads[0] >= spreads[1] else Measuring.LLM),
        kernel_spread=None if spreads is None else spreads[0],
        llm_spread=None if spreads is None else spreads[1],
    )


def _plans_after(sku: str, now: Plan, replanner: Replanner) -> list[Plan]:
    """The plan after each measurement, fastest first."""
    request = now.request
    measure = PlanMeasure.of(request)
    quantiles = [(part + 0.5) / PARTS for part in range(PARTS)]
    grid = sorted({*quantiles, request.confidence})
    plans = {request.confidence: now}

    def plan_at(quantile: float) -> Plan:
        if quantile not in plans:
            found = replanner.plan(
                rebuilt(
                    request,
                    measured_steps={**request.measured_steps, sku: MeasuredSteps.exactly(deviations_of(quantile))},
                )
            )
            faster = quantile < request.confidence
            is_worse = faster and _is_better(outcome_of(now), outcome_of(found), measure)
            plans[quantile] = now if is_worse else found  # the present fleet holds with faster steps too
        return plans[quantile]

    def fill(fast: int, slow: int) -> None:
        first, last = plan_at(grid[fast]), plan_at(grid[slow])
        if slow - fast < 2:
            return
        if _same_fleet(first, last, measure):
            plans.update(dict.fromkeys(grid[fast + 1 : slow], first))
            return
        middle = (fast + slow) // 2
        fill(fast, middle)
        fill(middle, slow)

    place = grid.index(request.confidence)
    if sku not in now.gpus:
        plans.update(dict.fromkeys(grid[place:], now))  # what is left out now is left out were it slower
    fill(0, place)
    fill(place, len(grid) - 1)
    return [plans[quantile] for quantile in quantiles]


def _same_fleet(one: Plan, other: Plan, measure: PlanMeasure) -> bool:
    """True if two plans buy the same GPUs for the same pools; limits of batches and routed rates do not count."""
    first, second = outcome_of(one), outcome_of(other)
    return not first.differs(second, measure) and first.gpus == second.gpus and _pools(one) == _pools(other)


def _pools(plan: Plan) -> Mapping[tuple[str, str, str, Role], int]:
    """Replicas by service, engine, SKU with its degrees, and role."""
    counts: Counter[tuple[str, str, str, Role]] = Counter()
    for planned in plan.deployments:
        for pool in planned.deployment.pools:
            counts[planned.service, pool.config.engine.id, pool.config.label, pool.role] += pool.replicas
    return counts


def _pool_on(sku: str, plans: Sequence[Plan]) -> tuple[PlannedDeployment, Pool, bool] | None:
    """The first pool on a SKU, and whether the time to a first token is its plan's tightest target with slow steps."""
    for plan in plans:
        checks = sorted(
            plan.slow_targets or plan.targets, key=lambda check: check.predicted_s / check.target.threshold_s
        )
        of_first_token = bool(checks) and checks[-1].target.metric is Metric.TTFT
        for planned in plan.deployments:
            for pool in planned.deployment.pools:
                if pool.config.sku.id == sku:
                    return planned, pool, of_first_token
    return None


def _parts(planned: PlannedDeployment, pool: Pool, of_first_token: bool) -> tuple[float, float] | None:
    """Deviation that the times of a pool may have: by its kernels, and by the model.

    Of the time to a first token where that is what is tightest, else of a step.
    """
    lengths = planned.workload.lengths
    spreads = replica_spreads(pool.config, pool.role, lengths.mean_input, lengths.mean_output)
    if spreads is None:
        return None
    group = spreads.group
    if not of_first_token and pool.role is not Role.PREFILL:
        return math.hypot(spreads.decode_kernels, spreads.borrowed), group.steps
    alone_s = spreads.prompt_s + spreads.outside_s
    share, late = (spreads.prompt_s / alone_s, spreads.late_s / alone_s) if of_first_token else (1.0, 0.0)
    kernels = math.hypot(spreads.prompt_kernels, spreads.borrowed)
    return share * kernels, math.hypot(share * group.prompts, late)
