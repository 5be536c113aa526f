"""How a plan moves with what it takes for given: prices, demand, lengths, hit rates and the speed of kernels.

Each change is answered twice: the plan made again for it, and this same fleet kept (does it still meet its targets,
and how much could it serve).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.analysis.perturbations import (
    Requirement,
    at_price,
    price_now,
    requirements,
    with_lengths,
    with_prefixes,
)
from planner.analysis.resolve import Solver, baseline, first_change
from planner.analysis.types import (
    BreakEvenPrice,
    Case,
    KeptFleet,
    Outcome,
    Pareto,
    ParetoPoint,
    Robust,
    Sensitivity,
    SensitivityEnd,
)
from planner.core import Metric
from planner.fleet import Plan, PlannedDeployment, PlanRequest, deviations_of, pessimistic_hardware, shifted_deployment
from planner.serving import NORMAL_95, Deployment, Performance, evaluate, sustainable_rate_per_s
from planner.workload import LatencyDistribution, RecordedArrivals, Slo, Workload

SWING = 0.2
"""How far each input of the tornado is moved, as a share of it; a choice. Efficiency moves by its 90 % interval."""
DEAREST = 4.0
"""Largest factor on a price that is looked at."""
CHEAPEST = 0.125
"""Smallest factor on a price that is looked at."""
PRICE_TOLERANCE = 0.01
"""To which the factor at a break-even price is found."""
SPAN = 4.0
"""A front reaches from the value asked for divided by this to it times this."""


# --- tornado --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Move:
    """One input moved to one side.

    Attributes:
        label: e.g. ``-20 %``.
        case: to solve.
        workload: what becomes of the workload of a deployment.
        deployment: what becomes of the deployment itself.
    """

    label: str
    case: Case
    workload: Callable[[Workload], Workload] = lambda workload: workload
    deployment: Callable[[Deployment], Deployment] = lambda deployment: deployment


def tornado(plan: Plan, solver: Solver) -> tuple[Sensitivity, ...]:
    """Sensitivity of cost and goodput to one input at a time, widest swing of cost first.

    Inputs: the price of each SKU in use, the demand, input and output lengths, shared prefixes (where there are any),
    all by `SWING` each way, and the speed of kernels from the fast to the slow end of the middle 90 % of their
    measurements (where calibrated; see `planner.fleet.calibration_bounds.shifted_calibration`). One-way diagrams:
    Eschenbach 1992, Interfaces 22(6), 40-46. Two solves for each input.
    """
    base = solver.plan(plan.request)
    case = Case(plan.request, solver.hardware)
    bars = [_bar(name, moves, base, solver) for name, moves in _moves(case, base)]
    return tuple(sorted(bars, key=lambda bar: bar.swing, reverse=True))


def _bar(name: str, moves: tuple[_Move, _Move], base: Plan, solver: Solver) -> Sensitivity:
    low, high = (_end(move, base, solver) for move in moves)
    costs = (low.remade.usd_per_hour, high.remade.usd_per_hour)
    swing = abs(costs[1] - costs[0]) if all(map(math.isfinite, costs)) else math.inf
    return Sensitivity(name, low, high, swing)


def _moves(case: Case, base: Plan) -> Iterator[tuple[str, tuple[_Move, _Move]]]:
    request = case.request

    def by_share(move: Callable[[float], _Move]) -> tuple[_Move, _Move]:
        return move(-SWING), move(SWING)

    def lengths(name: str) -> tuple[_Move, _Move]:
        return by_share(lambda side: _on_request(case, side, lambda asked, by: with_lengths(asked, **{name: by})))

    for sku in base.gpus:
        yield f"price of {sku}", by_share(partial(_priced, case, sku))
    yield "demand", by_share(partial(_scaled_demand, case))
    if not isinstance(request.workload.arrivals, RecordedArrivals):
        yield "input lengths", lengths("inputs")
        yield "output lengths", lengths("outputs")
    if any(kind.prefixes is not None for kind in request.workload.classes):
        yield "shared prefixes", by_share(lambda side: _on_request(case, side, with_prefixes))
    if _calibrated(base):
        yield "speed of kernels", (_shifted(case, -NORMAL_95), _shifted(case, NORMAL_95))


def _priced(case: Case, sku: str, side: float) -> _Move:
    return _Move(_share(side), at_price(case, sku, 1.0 + side))


def _share(side: float) -> str:
    return f"{100.0 * side:+.0f} %"


def _scaled_demand(case: Case, side: float) -> _Move:
    def faster(workload: Workload) -> Workload:
        return workload.at_rate((1.0 + side) * workload.rate_per_s)

    request = case.request.model_copy(update={"workload": faster(case.request.workload)})
    return _Move(_share(side), Case(request, case.hardware), faster)


def _on_request(case: Case, side: float, change: Callable[[PlanRequest, float], PlanRequest]) -> _Move:
    """A change of the request's classes of traffic, carried over to the workload of each deployment."""

    def changed(workload: Workload) -> Workload:
        return change(case.request.model_copy(update={"workload": workload}), 1.0 + side).workload

    return _Move(_share(side), Case(change(case.request, 1.0 + side), case.hardware), changed)


def _shifted(case: Case, deviations: float) -> _Move:
    label = "slow end" if deviations > 0.0 else "fast end"
    hardware = pessimistic_hardware(case.hardware, deviations)
    return _Move(label, Case(case.request, hardware), deployment=lambda one: shifted_deployment(one, deviations))


def _end(move: _Move, base: Plan, solver: Solver) -> SensitivityEnd:
    kept = kept_fleet(base, move.workload, move.deployment, _dearer(base, solver, move.case)) if base.feasible else None
    return SensitivityEnd(move.label, solver.outcome(move.case), kept)


def _dearer(base: Plan, solver: Solver, case: Case) -> float:
    """Cost of the base plan's GPUs under the prices of a case, over what it is now, each at its least price."""
    now = {sku: price_now(Case(base.request, solver.hardware), sku) or 0.0 for sku in base.gpus}
    then = {sku: price_now(case, sku) or 0.0 for sku in base.gpus}
    cost = sum(gpus * now[sku] for sku, gpus in base.gpus.items())
    return sum(gpus * then[sku] for sku, gpus in base.gpus.items()) / cost if cost > 0.0 else 1.0


def kept_fleet(
    plan: Plan,
    workload: Callable[[Workload], Workload] = lambda workload: workload,
    deployment: Callable[[Deployment], Deployment] = lambda deployment: deployment,
    dearer: float = 1.0,
) -> KeptFleet:
    """The fleet of a plan under other conditions, by theory.

    Args:
        plan: feasible.
        workload: what becomes of the workload routed to each deployment.
        deployment: what becomes of each deployment.
        dearer: factor on the cost.
    """
    judged = [_judged(planned, workload, deployment) for planned in plan.deployments]
    ratio, tightest, _ = max(judged)
    planned_per_s = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    return KeptFleet(
        holds=ratio <= 1.0,
        tightest=tightest,
        tightest_ratio=ratio,
        usd_per_hour=dearer * plan.cost.usd_per_hour if plan.cost else math.inf,
        rate_per_s=planned_per_s * min(growth for _, _, growth in judged),
    )


def _judged(
    planned: PlannedDeployment,
    workload: Callable[[Workload], Workload],
    deployment: Callable[[Deployment], Deployment],
) -> tuple[float, str, float]:
    """Worst latency over threshold, its target, and the largest factor on the planned rate that meets the targets.

    Judged as the plan was: by what was promised to this deployment's own requests, without the replicas that may fail.
    """
    load, fleet = workload(planned.workload), deployment(planned.judged)
    performance = evaluate(fleet, load)
    ratios: list[tuple[float, str]] = []
    most = math.inf
    for slo, names in _promised(planned, load):
        ratios += _ratios(_of_classes(performance, names), slo)
        most = min(most, sustainable_rate_per_s(fleet, load, slo, partial(_evaluated_for, names)))
    ratio, tightest = max(ratios)
    return ratio, tightest, most / planned.workload.arrivals.rate_per_s


def _promised(planned: PlannedDeployment, load: Workload) -> list[tuple[Slo, frozenset[str]]]:
    """Each Slo of a deployment's requests with the classes it was promised to.

    Where no class has targets of its own, all have those of the deployment; beside classes that have, one without was
    promised nothing.
    """
    groups: dict[Slo, set[str]] = {}
    for kind in load.classes:
        if kind.slo is not None:
            groups.setdefault(kind.slo, set()).add(kind.name)
    if not groups:
        groups[planned.slo] = {kind.name for kind in load.classes}
    return [(slo, frozenset(names)) for slo, names in groups.items()]


def _evaluated_for(names: frozenset[str], deployment: Deployment, load: Workload) -> Performance:
    return _of_classes(evaluate(deployment, load), names)


def _of_classes(performance: Performance, names: frozenset[str]) -> Performance:
    """A predicted performance as the requests of some classes see it; gaps between tokens stay those of all."""
    kinds = [one for one in performance.classes if one.name in names]
    if not kinds or len(kinds) == len(performance.classes):
        return performance
    ttft, tpot, e2e = (
        LatencyDistribution.mixture(
            [(distribution, kind.rate_per_s) for distribution, kind in zip(distributions, kinds, strict=True)]
        )
        for distributions in zip(*((kind.ttft, kind.tpot, kind.e2e) for kind in kinds), strict=True)
    )
    return replace(performance, ttft=ttft, tpot=tpot, e2e=e2e, joint=None)


def _ratios(performance: Performance, slo: Slo) -> list[tuple[float, str]]:
    """Latency over threshold of each target with its name; of a joint promise, what misses over what may."""
    if slo.attainment is not None:
        within = performance.attainment(slo)
        return [((1.0 - within) / (1.0 - slo.attainment), f"{100 * slo.attainment:g} % within all thresholds")]
    return [(performance.latency_s(target) / target.threshold_s, target.name) for target in slo.targets]


def _calibrated(plan: Plan) -> bool:
    pools = [pool for planned in plan.deployments for pool in planned.deployment.pools]
    return any(pool.config.calibration is not None for pool in pools)


# --- prices ---------------------------------------------------------------------------------------------------------


def break_even_prices(plan: Plan, solver: Solver) -> tuple[BreakEvenPrice, ...]:
    """The price of each SKU at which the plan changes: upwards of one in use, downwards of one that is not.

    Of all fleets that serve the demand the cheapest takes no more of a SKU the dearer it is (write down that each of
    two fleets is the cheapest at its own price, and add), so that there is one place of change, found by halving: at
    most 10 solves a SKU. Looked at are prices up to `DEAREST` and down to `CHEAPEST` times the present one. A SKU
    without a price is left out.
    """
    base, _ = baseline(plan, solver)
    case = Case(plan.request, solver.hardware)
    forbidden = plan.request.limits.forbidden
    skus = [sku for sku in dict.fromkeys(plan.request.search.skus) if sku not in forbidden]
    prices = [(sku, price_now(case, sku)) for sku in skus]
    return tuple(_break_even(sku, usd, base, case, solver) for sku, usd in prices if usd is not None)


def _break_even(sku: str, usd: float, base: Outcome, case: Case, solver: Solver) -> BreakEvenPrice:
    now = base.gpus.get(sku, 0)
    furthest = DEAREST if now else CHEAPEST

    def changes(factor: float) -> bool:
        then = solver.outcome(at_price(case, sku, factor)).gpus.get(sku, 0)
        return then < now if now else then > 0

    factor = first_change(changes, 1.0, (furthest,), PRICE_TOLERANCE)
    return BreakEvenPrice(
        sku=sku,
        gpus=now,
        usd_per_gpu_hour=usd,
        changes_at=None if factor is None else factor * usd,
        up_to=furthest * usd,
        becomes=None if factor is None else solver.outcome(at_price(case, sku, factor)),
    )


# --- fronts ---------------------------------------------------------------------------------------------------------


def pareto(request: PlanRequest, solver: Solver, points: int = 9) -> tuple[Pareto, ...]:
    """Fronts of cost against the rate served, and against the threshold of each TTFT and TPOT target.

    Each quantity is fixed at `points` values from a quarter to four times the one asked for (evenly on a logarithmic
    scale) and the cheapest plan for it found: the epsilon-constraint method (Haimes, Lasdon and Wismer 1971, IEEE
    Trans. Syst. Man Cybern. 1(3), 296-297). Dominated and infeasible points are left out.
    """
    factors = [SPAN ** (2.0 * step / max(points - 1, 1) - 1.0) for step in range(points)]
    watched = {target.name for target in request.slo.targets if target.metric in (Metric.TTFT, Metric.TPOT)}
    fronts = []
    for requirement in requirements(request):
        if requirement.key == "workload.rate_per_s" or requirement.name in watched:
            fronts.append(_front(requirement, factors, solver))
    return tuple(fronts)


def _front(requirement: Requirement, factors: Sequence[float], solver: Solver) -> Pareto:
    assert requirement.value is not None
    values = [requirement.value * factor for factor in factors]
    points = [ParetoPoint(value, solver.outcome(requirement.with_value(value))) for value in values]
    more = not requirement.looser_upwards
    return Pareto(requirement.name, requirement.unit, more, non_dominated(points, more), len(points))


def non_dominated(points: Sequence[ParetoPoint], more_is_better: bool) -> tuple[ParetoPoint, ...]:
    """The feasible points to which no other is at least as good in cost and quantity and better in one of them."""
    feasible = [point for point in points if point.outcome.feasible]

    def beats(one: ParetoPoint, other: ParetoPoint) -> bool:
        sign = -1.0 if more_is_better else 1.0
        mine = (one.outcome.usd_per_hour, sign * one.asked)
        theirs = (other.outcome.usd_per_hour, sign * other.asked)
        return mine != theirs and mine[0] <= theirs[0] * (1.0 + 1e-9) and mine[1] <= theirs[1]

    kept = [point for point in feasible if not any(beats(other, point) for other in feasible)]
    return tuple(sorted(kept, key=lambda point: point.asked))


# --- robust ---------------------------------------------------------------------------------------------------------


def robust(plan: Plan, solver: Solver, probability: float = 0.95) -> Robust:
    """The plan that meets the targets where every kernel is as slow as with that probability it is at most.

    A step of it is no slower than assumed with at least `probability` (see
    `planner.fleet.calibration_bounds.shifted_calibration`). Two solves. Uncalibrated SKUs have no interval and stay as
    they are.
    """
    deviations = deviations_of(probability)
    base = solver.plan(plan.request)
    hardware = pessimistic_hardware(solver.hardware, deviations)
    after = solver.plan(Case(plan.request, hardware))
    kept = kept_fleet(base, deployment=lambda one: shifted_deployment(one, deviations)) if base.feasible else None
    return Robust(
        probability=probability,
        calibrated=_calibrated(base) or _calibrated(after),
        before=solver.outcome(plan.request),
        after=solver.outcome(Case(plan.request, hardware)),
        kept=kept,
    )
