"""`plan(request) -> Plan`: the only orchestrator. From models, their traffic and their targets to a costed fleet.

Families of configurations meet the integer program here, at first with optimistic rates. What the program chooses gets
its true rate and the program is solved again; the allocation that stands is evaluated at its real pool sizes and
simulated request by request. What misses a target is lowered and the program solved once more, so the plan that is
printed has been seen to hold.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from threadpoolctl import threadpool_limits

from hardware_db import HardwareDb, load_hardware, with_own
from planner.core import with_unit
from planner.fleet.calibration_bounds import deviations_of, pessimistic_hardware
from planner.fleet.columns import Column
from planner.fleet.costs import bought_gpus, cost_breakdown, schedule_of, usd_by_sku
from planner.fleet.search import FleetSearch, Market, Settled, market_of, search_fleet, settle
from planner.fleet.slices import CascadePoint, Service, cascade_services
from planner.fleet.types import (
    AGREEMENT,
    STALE_PRICE_DAYS,
    Agreement,
    Alternative,
    BoughtGpus,
    CostBreakdown,
    FleetLimits,
    Plan,
    PlannedDeployment,
    PlanRequest,
    PricePolicy,
    TargetCheck,
)
from planner.fleet.verification import agreement, target_checks, with_costs
from planner.optimizer import Allocation, SolveStatus, Stage
from planner.search import Mode, Rejection
from planner.supply import HOURS_PER_MONTH, spot_shortfalls

__all__ = [
    "AGREEMENT",
    "HOURS_PER_MONTH",
    "STALE_PRICE_DAYS",
    "Agreement",
    "Alternative",
    "CostBreakdown",
    "FleetLimits",
    "Plan",
    "PlanRequest",
    "PlannedDeployment",
    "PricePolicy",
    "TargetCheck",
    "hardware_for",
    "plan",
]

FAR = 0.25
"""Share by which an alternative must be dearer to be shown by its bound alone."""

Progress = Callable[[str], None]


def plan(
    request: PlanRequest,
    hardware: HardwareDb | None = None,
    progress: Progress | None = None,
    *,
    simulate: bool = True,
    alternatives: bool = True,
) -> Plan:
    """The cheapest (or otherwise best, see `PlanRequest.objective`) fleet that meets every target.

    Args:
        request: what is served, promised, allowed and aimed at.
        hardware: SKUs, prices and engines; the packaged database when None.
        progress: called with the name of each stage as it starts.
        simulate: judge the fleet by simulation too; otherwise by theory alone, for many plans in a row.
        alternatives: also find the best fleet of each SKU and mode.

    Raises InputError for unknown SKUs or engines. An infeasible request is an answer: `Plan.feasible` is False.
    """
    with threadpool_limits(limits=1, user_api="blas"):  # many small systems: threads cost more than they give
        return _plan(request, hardware_for(request, hardware), progress or (lambda _: None), simulate, alternatives)


def hardware_for(request: PlanRequest, hardware: HardwareDb | None = None) -> HardwareDb:
    """What a request is planned on: the database (the packaged one when None) with the request's own hardware in it."""
    return with_own(hardware or load_hardware(), request.own_hardware)


def _plan(request: PlanRequest, hardware: HardwareDb, say: Progress, simulate: bool, alternatives: bool) -> Plan:
    started = time.perf_counter()
    if request.pessimism is not None:
        hardware = pessimistic_hardware(hardware, deviations_of(request.pessimism))
    market, found, settled, point = _looked_for(request, hardware, say, simulate)
    if not settled.deployments:
        return _infeasible(request, market, found, settled.allocation, time.perf_counter() - started)
    assert settled.allocation is not None
    say("adding up")
    bought = bought_gpus(settled.allocation, market.supply, found.periods)
    deployments = with_costs(settled.deployments, usd_by_sku(bought))
    cost = cost_breakdown(settled.allocation, deployments, found.promises)
    targets = target_checks(deployments, found.promises)
    means = agreement(deployments) if simulate else ()
    return Plan(
        request=request,
        status=settled.allocation.status,
        allocation=settled.allocation,
        deployments=deployments,
        cost=cost,
        targets=targets,
        agreement=means,
        alternatives=_alternatives(found, settled.allocation) if alternatives else (),
        rejections=(*found.rejections, *market.unpriced),
        diagnosis=(),
        assumptions=_assumptions(deployments, bought, request, market, settled.passed_over_usd_per_hour),
        warnings=_warnings(bought, market, targets, means),
        considered=found.considered,
        elapsed_s=time.perf_counter() - started,
        bought=bought,
        schedule=schedule_of(
            settled.allocation, found.columns.chosen(settled.allocation), found.slices, found.periods, bought
        ),
        flat_usd_per_hour=_flat_usd_per_hour(found),
        dominated=tuple(found.columns.dominated.values()),
        escalated=point.escalated if point else None,
        simulated=simulate,
    )


def _looked_for(
    request: PlanRequest, hardware: HardwareDb, say: Progress, simulate: bool
) -> tuple[Market, FleetSearch, Settled, CascadePoint | None]:
    """The fleet, found again with more headroom as long as too little spot capacity was bought for what must be up."""
    shares: dict[str, float] = {}
    while True:
        say("searching configurations")
        market = market_of(request, hardware, shares)
        point, services = _cheapest_cascade(request, market)
        found = search_fleet(request, market, services, say)
        settled = settle(found, simulate)
        if settled.allocation is None or not settled.deployments:
            return market, found, settled, point
        short = spot_shortfalls(settled.allocation.bought, market.supply, request.prices)
        if not short:
            return market, found, settled, point
        shares |= short


def _cheapest_cascade(request: PlanRequest, market: Market) -> tuple[CascadePoint | None, tuple[Service, ...]]:
    """The services to plan for; of a cascade, those at the setting whose fleet costs least (before simulation)."""
    if request.cascade is None:
        return None, request.all_services
    settings = cascade_services(request.main, request.cascade)
    costs = []
    for _, services in settings:
        found = search_fleet(request, market, (*services, *request.services))
        allocation = found.refined(request.objective) if not found.unserved() else None
        costs.append(allocation.cost_usd_per_hour if allocation and allocation.status.has_allocation else math.inf)
    point, services = settings[costs.index(min(costs))]
    return point, (*services, *request.services)


def _flat_usd_per_hour(found: FleetSearch) -> float | None:
    """Cost of the best fleet that serves the largest demand all the time; None without a profile."""
    if found.request.profile is None:
        return None
    flat = found.refined(found.request.objective, flat=True)
    return flat.cost_usd_per_hour if flat.status.has_allocation else None


# --- what else the plan says ------------------------------------------------------------------------------------------


def _alternatives(found: FleetSearch, chosen: Allocation) -> tuple[Alternative, ...]:
    """The best fleet of each single SKU and of each mode, from theory.

    One that costs `FAR` more than the chosen one even at optimistic rates is not looked at any closer.
    """
    search = found.request.search
    by_sku = [
        (sku, "sku", [column for column in found.columns.all if column.family.sku == sku])
        for sku in dict.fromkeys(search.skus)
    ]
    by_mode = [
        (mode.value, "mode", [column for column in found.columns.all if column.is_mixed is (mode is Mode.MIXED)])
        for mode in dict.fromkeys(search.modes)
    ]
    alternatives = []
    for name, kind, kept in by_sku + by_mode:
        said = partial(_said_instead, found.say, f"comparing alternatives: {name}")
        said("")
        alternatives.append(_alternative(replace(found, say=said), kept, chosen, name, kind))
    return tuple(alternatives)


def _said_instead(say: Progress, what: str, _: str) -> None:
    """`what` in place of whatever else is said."""
    say(what)


def _alternative(found: FleetSearch, kept: Sequence[Column], chosen: Allocation, name: str, kind: str) -> Alternative:
    allocation = found.solved(kept, found.request.objective) if kept else None
    if allocation is not None and allocation.cost_usd_per_hour <= (1.0 + FAR) * chosen.cost_usd_per_hour:
        names = {(column.service, column.family.name) for column in kept}
        allocation = found.refined_in(lambda column: (column.service, column.family.name) in names)
        kept = [column for column in found.columns.all if (column.service, column.family.name) in names]
    if allocation is None or not allocation.status.has_allocation:
        return Alternative(name, kind, "none meets the targets within the limits", None, 0.0, False)
    used = sorted((one for one in kept if one.name in allocation.units), key=lambda one: list(Stage).index(one.stage))
    return Alternative(
        restriction=name,
        kind=kind,
        summary=_in_words(used, allocation, found.peak),
        usd_per_hour=allocation.cost_usd_per_hour,
        rate_per_s=allocation.rate_per_s,
        is_chosen=math.isclose(allocation.cost_usd_per_hour, chosen.cost_usd_per_hour, rel_tol=1e-9),
        is_bound=not all(column.is_exact for column in used),
    )


def _in_words(used: Sequence[Column], allocation: Allocation, period: int) -> str:
    """E.g. ``4 x h100-sxm TP2 mixed``; pools that differ in their engine's settings only are counted together."""
    counts: dict[str, int] = {}
    for column in used:
        what = f"{column.family.members[0].config.label} {column.family.role}"
        counts[what] = counts.get(what, 0) + allocation.units[column.name][period] * column.replicas
    return " + ".join(f"{count} x {what}" for what, count in counts.items())


def _assumptions(
    deployments: Sequence[PlannedDeployment],
    bought: Sequence[BoughtGpus],
    request: PlanRequest,
    market: Market,
    passed_over_usd_per_hour: float | None,
) -> tuple[str, ...]:
    notes = [note for planned in deployments for note in planned.predicted.assumptions]
    if any(planned.judged != planned.deployment for planned in deployments):
        notes.append("latencies are those of the replicas that are left when those that may fail have failed")
    if passed_over_usd_per_hour is not None:
        notes.append(
            f"a fleet of {passed_over_usd_per_hour:.2f} USD/hour (by theory) was passed over for one of fewer kinds of "
            "pools (search.simplicity)"
        )
    if request.pessimism is not None:
        notes.append(f"step times at the slow end of the calibration: {request.pessimism:.0%} are shorter")
    for one in bought:
        if one.price is None:
            notes.append(f"{one.sku}: {one.usd_per_gpu_hour:.2f} USD/GPU-h, {one.purchase}, as given in the request")
            continue
        price = one.price
        notes.append(
            f"{price.sku}: {price.usd_per_gpu_hour:.2f} USD/GPU-h, {price.provider}, {price.commitment}, "
            f"read {price.retrieved_on.isoformat()}, {price.source_url}"
        )
    notes += [str(note) for note in market.supply.notes]
    notes += market.supply.assumptions
    return tuple(dict.fromkeys(notes))


def _warnings(
    bought: Sequence[BoughtGpus], market: Market, targets: Sequence[TargetCheck], means: Sequence[Agreement]
) -> tuple[str, ...]:
    """Targets that are missed, theory and simulation apart, and doubtful prices of what is bought."""
    warnings = []
    for check in targets:
        if not check.met:
            seen = with_unit(check.simulated_s, check.target.metric)
            warnings.append(f"{check.target.name}: simulated {seen} misses the target")
    for pair in means:
        if not pair.holds:
            warnings.append(
                f"mean {pair.metric.value.upper()}: theory and simulation differ by {pair.relative_difference:+.0%}"
            )
    used = {(one.sku, one.price.provider) for one in bought if one.price is not None}
    warnings += [str(note) for note in market.supply.notes if note.is_used and (note.sku, note.provider) in used]
    return tuple(dict.fromkeys(warnings))


def _infeasible(
    request: PlanRequest, market: Market, found: FleetSearch, allocation: Allocation | None, elapsed_s: float
) -> Plan:
    rejections = (*found.rejections, *market.unpriced)
    return Plan(
        request=request,
        status=allocation.status if allocation else SolveStatus.INFEASIBLE,
        allocation=allocation,
        deployments=(),
        cost=None,
        targets=(),
        agreement=(),
        alternatives=(),
        rejections=rejections,
        diagnosis=_diagnosis(found, allocation, rejections),
        assumptions=(),
        warnings=(),
        considered=found.considered,
        elapsed_s=elapsed_s,
    )


SCENARIO_FIELDS = (
    (re.compile(r"\bbudget_usd_per_h\b"), "limits.budget_usd_per_hour"),
    (re.compile(r"\bresources\[([^\]]+)\]\.at_most"), r"limits.gpus.\1"),
    (re.compile(r"\bresources\[([^\]]+)\]\.at_least"), r"limits.pinned.\1"),
    (re.compile(r"\bmax_groups\b"), "limits.skus_at_most"),
    (re.compile(r"\bslices\[([^\]]+)\]\.demand_per_s"), r"requests/s of \1"),
)
"""What the fields of the program are called where a person writes them."""


def _in_terms_of_a_scenario(line: str) -> str:
    for field, name in SCENARIO_FIELDS:
        line = field.sub(name, line)
    return line


def _diagnosis(found: FleetSearch, allocation: Allocation | None, rejections: Sequence[Rejection]) -> tuple[str, ...]:
    """The binding limit and the smallest change that makes the request feasible, one line each."""
    if allocation is not None and allocation.diagnosis is not None:
        diagnosis = allocation.diagnosis
        changes = [f"smallest change: {relaxation}" for relaxation in diagnosis.relaxations]
        return tuple(_in_terms_of_a_scenario(line) for line in (diagnosis.summary, *changes))
    if allocation is not None:
        return (f"the solver ended with {allocation.status}: no fleet found",)
    lines = [f"no configuration meets the targets; {rejection.reason}" for rejection in rejections]
    reachable = [rejection for rejection in rejections if math.isfinite(rejection.ratio)]
    if reachable:
        nearest = min(reachable, key=lambda rejection: rejection.ratio)
        lines.insert(0, f"nearest: {nearest.reason}; relax that target by a factor of {nearest.ratio:.3g} or more")
    unserved = found.unserved()
    if len(found.slices) > 1 and unserved:
        lines.insert(0, f"nothing serves {', '.join(unserved)}")
    return tuple(dict.fromkeys(lines))
