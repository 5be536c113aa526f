"""How a plan moves with what it takes for given: prices, demand, lengths, hit rates and the speed of kernels.

Each change is answered twice: the plan made again for it, and this same fleet kept (does it still meet its targets,
and how much could it serve).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from planner.analysis.fleet_capacity import is_calibrated, kept_fleet
from planner.analysis.perturbations import (
    DEMAND_KEY,
    NumericRequirement,
    at_price,
    numeric_requirements,
    price_now,
    with_lengths,
    with_prefixes,
)
from planner.analysis.replanner import CHANGE_TOLERANCE, Replanner, baseline, nearest_change
from planner.analysis.types import (
    BreakEvenPrice,
    Pareto,
    ParetoPoint,
    PlanningCase,
    PlanOutcome,
    Sensitivity,
    SensitivityEnd,
)
from planner.core import Metric
from planner.fleet import Plan, PlanRequest, shifted_deployment, shifted_hardware
from planner.serving import NORMAL_95, Deployment
from planner.workload import Workload

SWING = 0.2
"""How far each input of the tornado is moved, as a share of it. A choice; kernels move by their 90 % interval."""
LARGEST_PRICE_FACTOR = 4.0
"""Break-even prices are searched for up to so many times the present price. A choice."""
SMALLEST_PRICE_FACTOR = 0.125
"""The same downwards."""
FRONT_SPAN = 4.0
"""A front reaches from the value asked for divided by this to it times this. A choice."""


# --- tornado --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Move:
    """One input of the tornado moved to one side.

    Attributes:
        label: e.g. ``-20 %``.
        case: to solve.
        workload: what becomes of the workload of a deployment.
        deployment: what becomes of the deployment itself.
    """

    label: str
    case: PlanningCase
    workload: Callable[[Workload], Workload] = lambda workload: workload
    deployment: Callable[[Deployment], Deployment] = lambda deployment: deployment


def tornado(plan: Plan, replanner: Replanner) -> tuple[Sensitivity, ...]:
    """Sensitivity of cost and goodput to one input at a time, widest swing of cost first.

    Inputs: the price of each SKU in use, the demand, input and output lengths, shared prefixes (where there are any),
    all by `SWING` each way, and the speed of kernels from the fast to the slow end of the middle 90 % of their
    measurements (where calibrated; see `planner.fleet.calibration_bounds.shifted_calibration`). One-way diagrams:
    Eschenbach 1992, Interfaces 22(6), 40-46. Two solves for each input.
    """
    base = replanner.plan(plan.request)
    case = PlanningCase(plan.request, replanner.hardware)
    bars = [_bar(name, moves, base, replanner) for name, moves in _moves(case, base)]
    return tuple(sorted(bars, key=lambda bar: bar.swing, reverse=True))


def _bar(name: str, moves: tuple[_Move, _Move], base: Plan, replanner: Replanner) -> Sensitivity:
    low, high = (_end(move, base, replanner) for move in moves)
    costs = (low.remade.usd_per_hour, high.remade.usd_per_hour)
    swing = abs(costs[1] - costs[0]) if all(map(math.isfinite, costs)) else math.inf
    return Sensitivity(name, low, high, swing)


def _moves(case: PlanningCase, base: Plan) -> Iterator[tuple[str, tuple[_Move, _Move]]]:
    """Every input of the tornado by name, moved down and up."""

    def down_and_up(move: Callable[[float], _Move]) -> tuple[_Move, _Move]:
        return move(-SWING), move(SWING)

    workload = case.request.workload
    for sku in base.gpus:
        yield f"price of {sku}", down_and_up(partial(_price_move, case, sku))
    yield "demand", down_and_up(partial(_demand_move, case))
    yield "input lengths", down_and_up(partial(_traffic_move, case, with_lengths))
    yield (
        "output lengths",
        down_and_up(partial(_traffic_move, case, lambda request, factor: with_lengths(request, outputs=factor))),
    )
    if any(kind.prefixes is not None for kind in workload.classes):
        yield "shared prefixes", down_and_up(partial(_traffic_move, case, with_prefixes))
    if is_calibrated(base):
        yield "speed of kernels", (_kernel_move(case, -NORMAL_95), _kernel_move(case, NORMAL_95))


def _price_move(case: PlanningCase, sku: str, swing: float) -> _Move:
    return _Move(_swing_label(swing), at_price(case, sku, 1.0 + swing))


def _swing_label(swing: float) -> str:
    return f"{100.0 * swing:+.0f} %"


def _demand_move(case: PlanningCase, swing: float) -> _Move:
    def scaled(workload: Workload) -> Workload:
        return workload.at_rate((1.0 + swing) * workload.rate_per_s)

    request = case.request.model_copy(update={"workload": scaled(case.request.workload)})
    return _Move(_swing_label(swing), PlanningCase(request, case.hardware), scaled)


def _traffic_move(case: PlanningCase, change: Callable[[PlanRequest, float], PlanRequest], swing: float) -> _Move:
    """A change of the request's classes of traffic, applied to the workload of each deployment too."""

    def changed(workload: Workload) -> Workload:
        return change(case.request.model_copy(update={"workload": workload}), 1.0 + swing).workload

    return _Move(_swing_label(swing), PlanningCase(change(case.request, 1.0 + swing), case.hardware), changed)


def _kernel_move(case: PlanningCase, deviations: float) -> _Move:
    label = "slow end" if deviations > 0.0 else "fast end"
    shifted = PlanningCase(case.request, shifted_hardware(case.hardware, deviations))
    return _Move(label, shifted, deployment=partial(shifted_deployment, deviations=deviations))


def _end(move: _Move, base: Plan, replanner: Replanner) -> SensitivityEnd:
    kept = None
    if base.feasible:
        fleets = [move.deployment(planned.surviving) for planned in base.deployments]
        kept = kept_fleet(base, fleets, move.workload, _cost_factor(base, replanner, move.case))
    return SensitivityEnd(move.label, replanner.outcome(move.case), kept)


def _cost_factor(base: Plan, replanner: Replanner, case: PlanningCase) -> float:
    """Cost of the base plan's GPUs under the prices of a case, over what it is now, each at its least price."""
    now = {sku: price_now(PlanningCase(base.request, replanner.hardware), sku) or 0.0 for sku in base.gpus}
    then = {sku: price_now(case, sku) or 0.0 for sku in base.gpus}
    cost = sum(gpus * now[sku] for sku, gpus in base.gpus.items())
    return sum(gpus * then[sku] for sku, gpus in base.gpus.items()) / cost if cost > 0.0 else 1.0


# --- prices ---------------------------------------------------------------------------------------------------------


def break_even_prices(plan: Plan, replanner: Replanner) -> tuple[BreakEvenPrice, ...]:
    """The price of each SKU at which the plan changes: upwards of one in use, downwards of one that is not.

    Of all fleets that serve the demand the cheapest takes no more of a SKU the dearer it is (write down that each of
    two fleets is the cheapest at its own price, and add), so that there is one place of change. It is looked for where
    the present fleet costs as much as the other (Eisner and Severance 1976, J. ACM 23(4), 619-635), else by halving: 3
    to 10 solves a SKU. Prices are searched up to `LARGEST_PRICE_FACTOR` and down to `SMALLEST_PRICE_FACTOR` times the
    present one. A SKU without a price is left out.
    """
    base, _ = baseline(plan, replanner)
    case = PlanningCase(plan.request, replanner.hardware)
    forbidden = plan.request.limits.forbidden
    skus = [sku for sku in dict.fromkeys(plan.request.search.skus) if sku not in forbidden]
    paid = plan.paid_usd_per_gpu_hour
    prices = [(sku, paid.get(sku) or price_now(case, sku)) for sku in skus]
    return tuple(_break_even(sku, usd, base, case, replanner) for sku, usd in prices if usd is not None)


def _break_even(sku: str, usd: float, base: PlanOutcome, case: PlanningCase, replanner: Replanner) -> BreakEvenPrice:
    now = base.gpus.get(sku, 0)
    furthest = LARGEST_PRICE_FACTOR if now else SMALLEST_PRICE_FACTOR

    def at(factor: float) -> PlanOutcome:
        return replanner.outcome(at_price(case, sku, factor))

    def changes(factor: float) -> bool:
        then = at(factor).gpus.get(sku, 0)
        return then < now if now else then > 0

    def alike(factor: float) -> float:
        """Factor at which the present fleet costs what that of another factor does."""
        other = at(factor)
        per_factor, dearer = usd * (now - other.gpus.get(sku, 0)), other.usd_per_hour - base.usd_per_hour
        return 1.0 + (dearer - usd * other.gpus.get(sku, 0) * (factor - 1.0)) / per_factor

    factor = nearest_change(changes, 1.0, (furthest,), 2.0 * CHANGE_TOLERANCE, alike)
    return BreakEvenPrice(
        sku=sku,
        gpus=now,
        usd_per_gpu_hour=usd,
        changes_at=None if factor is None else factor * usd,
        up_to=furthest * usd,
        becomes=None if factor is None else at(factor),
    )


# --- fronts ---------------------------------------------------------------------------------------------------------


def pareto(request: PlanRequest, replanner: Replanner, points: int = 9) -> tuple[Pareto, ...]:
    """Fronts of cost against the rate served, and against the threshold of each TTFT and TPOT target.

    Each quantity is fixed at `points` values from a quarter to four times the one asked for (evenly on a logarithmic
    scale) and the cheapest plan for it found: the epsilon-constraint method (Haimes, Lasdon and Wismer 1971, IEEE
    Trans. Syst. Man Cybern. 1(3), 296-297). Dominated and infeasible points are left out.
    """
    factors = [FRONT_SPAN ** (2.0 * step / max(points - 1, 1) - 1.0) for step in range(points)]
    watched = {target.name for target in request.slo.targets if target.metric in (Metric.TTFT, Metric.TPOT)}
    fronts = []
    for requirement in numeric_requirements(request):
        if requirement.key == DEMAND_KEY or requirement.name in watched:
            fronts.append(_front(requirement, factors, replanner))
    return tuple(fronts)


def _front(requirement: NumericRequirement, factors: Sequence[float], replanner: Replanner) -> Pareto:
    values = [requirement.value * factor for factor in factors]
    points = [ParetoPoint(value, replanner.outcome(requirement.with_value(value))) for value in values]
    more = not requirement.looser_upwards
    return Pareto(requirement.name, requirement.unit, more, non_dominated(points, more), len(points))


def non_dominated(points: Sequence[ParetoPoint], more_is_better: bool) -> tuple[ParetoPoint, ...]:
    """The feasible points to which no other is at least as good in cost and quantity and better in one of them."""
    feasible = [point for point in points if point.outcome.feasible]

    def beats(point: ParetoPoint, other: ParetoPoint) -> bool:
        sign = -1.0 if more_is_better else 1.0
        mine = (point.outcome.usd_per_hour, sign * point.asked)
        theirs = (other.outcome.usd_per_hour, sign * other.asked)
        return mine != theirs and mine[0] <= theirs[0] * (1.0 + 1e-9) and mine[1] <= theirs[1]

    kept = [point for point in feasible if not any(beats(other, point) for other in feasible)]
    return tuple(sorted(kept, key=lambda point: point.asked))
