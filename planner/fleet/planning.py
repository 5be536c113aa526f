"""`plan(request) -> Plan`: the only orchestrator. From models, their traffic and their targets to a costed fleet.

`planner.fleet.search` finds the fleet and verifies it; here it is costed, compared with alternatives and described, or
the request is found infeasible and the reason given.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from threadpoolctl import threadpool_limits

from hardware_db import HardwareDb, load_hardware, with_own_hardware
from planner.core import made_later, money, percent
from planner.fleet.alternatives import alternatives_of
from planner.fleet.cascades import cascade_services
from planner.fleet.confidence import (
    as_estimated,
    counted_draws,
    deviations_of,
    optimistic_deviations,
    rate_factors,
    slow_rule,
)
from planner.fleet.corrections import Corrections, traffic_kind
from planner.fleet.costs import bought_gpus, bought_tiers, cost_breakdown, schedule_of, usd_per_hour_by_sku, with_costs
from planner.fleet.losses import single_replica_warnings, worst_losses
from planner.fleet.market import Market, joined_notes, market_of, network_notes
from planner.fleet.notes import (
    assumptions_of,
    dark_warnings,
    format_warnings,
    gap_notes,
    known_hit_warnings,
    plan_warnings,
)
from planner.fleet.population import population_notes, with_population_rates
from planner.fleet.program import FleetSearch, search_fleet
from planner.fleet.refinement import COARSE_GAP, refined_allocation
from planner.fleet.search import NoFleet, VerifiedFleet, find_fleet
from planner.fleet.sites import lower_bound
from planner.fleet.types import Plan, PlanConfidence, PlannedDeployment, PlanRequest, Progress, gpu_servers, pool_name
from planner.fleet.verification import agreements, replayed_targets, simulated_long_enough, target_checks
from planner.optimizer import Allocation, FleetProblem, Objective, SolveStatus
from planner.search import Mode, Rejection, ShiftRule
from planner.supply import commitment_notes, region_notes, spot_shortfalls, with_all_owned
from planner.traffic import CascadePoint, Service
from planner.workload import RecordedArrivals

LESS_CONFIDENCE = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Confidences that are looked at where the one asked for leaves no fleet. A choice: as fine as it is sure."""


def plan(
    request: PlanRequest,
    hardware: HardwareDb | None = None,
    progress: Progress | None = None,
    *,
    simulate: bool = True,
    alternatives: bool = True,
    corrections: Corrections | None = None,
    program: Callable[[FleetProblem], None] | None = None,
) -> Plan:
    """The cheapest (or otherwise best, see `PlanRequest.objective`) fleet that meets every target.

    Args:
        request: what is served, the targets, what is allowed and aimed at; a closed population counts at the rate that
            it comes to (`planner.fleet.population`), which is then that of `Plan.request`.
        hardware: SKUs, prices and engines; the packaged database when None.
        progress: called with the name of each stage as it starts.
        simulate: verify the fleet by simulation too; otherwise by theory alone, for many plans in a row.
        alternatives: also find the best fleet of each SKU, mode and other engine. With neither of the two
            `Plan.passed_over` is left open.
        corrections: `Plan.corrections` of a plan that was simulated, for one by theory that is compared with it.
        program: called with the integer program at the site of the plan, all rates as they stood in the end.

    Raises InputError for unknown SKUs or engines. An infeasible request is an answer: `Plan.feasible` is False.
    """
    asked, hardware = request, hardware_for(request, hardware)
    by_theory = partial(plan, hardware=hardware, simulate=False, alternatives=False, corrections=corrections)
    request = with_population_rates(asked, by_theory)
    known = _known(request, corrections)
    with threadpool_limits(limits=1, user_api="blas"):  # many small systems: threads cost more than they give
        found, search = _plan(request, hardware, progress or (lambda _: None), simulate, alternatives, known)
    if request is not asked:
        found = replace(found, assumptions=(*population_notes(asked, found), *found.assumptions))
    if request.areas:
        users = f"users in {', '.join(request.areas)} count as in one place, without their way there"
        found = replace(
            found, warnings=(*found.warnings, f"{users}: planner plan, or plan_regions, says where to stand")
        )
    if program is not None:
        site = 0 if found.allocation is None else found.allocation.program
        program(search.problem(search.columns.all, program=site))
    return found


def _known(request: PlanRequest, corrections: Corrections | None) -> Corrections:
    """What corrections of another plan say of this one."""
    if corrections is None:
        return Corrections(traffic=traffic_kind(request.workload), doubt=request.step_doubt)
    return corrections.of(request.workload, request.step_doubt)


def hardware_for(request: PlanRequest, hardware: HardwareDb | None = None) -> HardwareDb:
    """The hardware database of a request: the given one (None: the packaged one) with the request's own hardware."""
    return with_own_hardware(hardware or load_hardware(), request.own_hardware)


def least_usd_per_hour(request: PlanRequest, hardware: HardwareDb, corrections: Corrections | None = None) -> float:
    """What no fleet of a plan by theory costs less than, by rates that nothing exceeds: one program [USD/h].

    0 where nothing is said so soon: of cascades and of other objectives than the least cost.
    """
    if request.cascade is not None or request.objective is not Objective.MIN_COST:
        return 0.0
    known = _known(request, corrections)
    shift_of = slow_rule(optimistic_deviations(request.confidence), request.measured_steps)
    market = market_of(request, hardware_for(request, hardware), {})
    search = search_fleet(request, market, request.all_services, shift_of=shift_of, corrections=known)
    if search.unserved():
        return math.inf
    return lower_bound(search.allocation(search.columns.all, request.objective, gap=COARSE_GAP))


def _plan(
    request: PlanRequest,
    hardware: HardwareDb,
    progress: Progress,
    simulate: bool,
    alternatives: bool,
    known: Corrections,
) -> tuple[Plan, FleetSearch]:
    started = time.perf_counter()
    result = _search_with_spot_reserve(request, hardware, progress, simulate, known, simulate or alternatives)
    if simulate:
        result = _with_confidence(result, request, progress)
    if isinstance(result.outcome, NoFleet):
        corrections = result.search.columns.corrections(known, ()) if simulate else None
        search = _as_slow_as_asked(result.search) if result.search.unserved() else result.search
        found = _infeasible_plan(search, result.outcome, time.perf_counter() - started, corrections)
        why = _what_confidence_forbids(request, hardware, progress, known) if simulate else ()
        return replace(found, diagnosis=(*found.diagnosis[:1], *why, *found.diagnosis[1:])), result.search
    search, fleet, slow = result.search, result.outcome, result.outcome.deployments
    slow_targets = target_checks(slow, search.slos)
    fleet = replace(fleet, deployments=_as_estimated(search, fleet.deployments, simulate))
    progress("adding up")
    corrections = None
    if simulate:
        corrections = search.columns.corrections(known, fleet.allocation.units)
    shift_of = slow_rule(optimistic_deviations(request.confidence), request.measured_steps)
    others = alternatives_of(search, fleet.allocation, shift_of, corrections) if alternatives else ()
    point = result.cascade_point
    found = described_plan(search, fleet, simulate, slow, _factors_for_fewer(result, slow, corrections or known))
    found = replace(
        found,
        alternatives=others,
        elapsed_s=time.perf_counter() - started,
        flat_usd_per_hour=_flat_usd_per_hour(search),
        passed_over=fleet.passed_over,
        enough=fleet.enough,
        escalated=point.escalated if point else None,
        confidence=result.confidence,
        slow_targets=slow_targets,
        slow_deviations=fleet.deviations,
        corrections=corrections,
    )
    return found, search


def described_plan(
    search: FleetSearch,
    fleet: VerifiedFleet,
    simulate: bool,
    slow: Sequence[PlannedDeployment],
    factors: Sequence[float],
    *,
    given: bool = False,
) -> Plan:
    """A fleet with what it costs, how it stands to every target, and what that takes for granted.

    Args:
        search: that found it.
        fleet: with step times as estimated.
        simulate: whether it was simulated.
        slow: its deployments with step times as slow as it was planned for.
        factors: per deployment, the rate multiplier at which theory reproduces the simulated miss rate.
        given: it was not searched for.
    """
    request, market, hardware = search.request, search.market, search.market.hardware
    supply = market.site_of(fleet.allocation).supply
    allocation = with_all_owned(fleet.allocation, supply)
    chosen = search.chosen(allocation)
    bought = (*bought_gpus(allocation, supply, search.periods), *bought_tiers(allocation, chosen, search.periods))
    deployments = with_costs(fleet.deployments, usd_per_hour_by_sku(bought))
    users = request.users * request.growth if request.users is not None else None
    targets = target_checks(deployments, search.slos)
    with_targets = [planned for planned in deployments if not all(map(request.waits, planned.slices))]
    means = agreements(with_targets) if simulate and with_targets else ()
    return Plan(
        request=request,
        status=allocation.status,
        allocation=allocation,
        deployments=deployments,
        cost=cost_breakdown(allocation, deployments, search.slos, users),
        targets=targets,
        agreement=means,
        alternatives=(),
        rejections=(*search.rejections, *market.unpriced),
        diagnosis=(),
        assumptions=assumptions_of(
            request,
            market,
            deployments,
            bought,
            fleet.passed_over,
            (
                *network_notes(deployments, hardware),
                *(() if given else joined_notes((one.family for one in search.columns.all), market.sites, hardware)),
                *supply.assumptions,
                *region_notes(request.search.skus, request.prices, hardware),
                *commitment_notes(request.search.skus, request.prices, hardware),
                *gap_notes(targets, deployments),
                *search.columns.expectations,
            ),
            given,
        ),
        warnings=(
            *plan_warnings(market, bought, targets, means),
            *dark_warnings(deployments, bought, len(search.periods)),
            *format_warnings(deployments),
            *single_replica_warnings(deployments),
            *known_hit_warnings(deployments),
        ),
        considered=search.considered,
        elapsed_s=0.0,
        bought=bought,
        schedule=schedule_of(allocation, chosen, search.slices, search.periods, bought),
        dominated=tuple(search.columns.dominated.values()),
        simulated=simulate,
        replays=replayed_targets(deployments, search.slos),
        given=given,
        losses=made_later(
            partial(
                worst_losses, deployments, slow, factors, search.slos, search.slices, gpu_servers(bought, hardware.skus)
            )
        ),
    )


@dataclass(frozen=True)
class _SearchResult:
    """How the search for the fleet of a request ended.

    Attributes:
        search: the last one made.
        outcome: what it found.
        cascade_point: the setting that was planned; None without a cascade.
        confidence: with which probability it holds; None where it was not simulated.
        rate_factors: of each deployment, the factor on its rate at which theory misses as much as its simulation did;
            empty where it was not simulated.
    """

    search: FleetSearch
    outcome: VerifiedFleet | NoFleet
    cascade_point: CascadePoint | None
    confidence: PlanConfidence | None = None
    rate_factors: tuple[float, ...] = ()


def _with_confidence(result: _SearchResult, request: PlanRequest, progress: Progress) -> _SearchResult:
    """The same with the probability with which its fleet holds, if there is one."""
    if isinstance(result.outcome, NoFleet):
        return result
    progress("drawing what step times may be off by")
    deployments, slos = result.outcome.deployments, result.search.slos
    factors = rate_factors(deployments, slos)
    return replace(
        result,
        confidence=counted_draws(
            deployments, slos, request, factors, exact=True, surfaces=result.search.surfaces
        ).confidence,
        rate_factors=factors,
    )


def _factors_for_fewer(
    result: _SearchResult, deployments: Sequence[PlannedDeployment], taught: Corrections
) -> tuple[float, ...]:
    """Of each deployment, the factor on its rate at which theory sees what simulation saw of it, and of what missed."""
    of_run = result.rate_factors or (1.0,) * len(deployments)
    return tuple(
        max(
            seen,
            *(
                1.0 / taught.share_of(planned.service, option.role, pool_name(option), pool.replicas)
                for option, pool in zip(planned.option.pools, planned.surviving.pools, strict=True)
            ),
        )
        for planned, seen in zip(deployments, of_run, strict=True)
    )


def _as_estimated(
    search: FleetSearch, deployments: Sequence[PlannedDeployment], simulate: bool
) -> tuple[PlannedDeployment, ...]:
    """The deployments with the step times estimated, simulated again where these are others."""
    estimated = []
    for planned in deployments:
        own = as_estimated(planned, search.request.measured_steps)
        if own.surviving == planned.surviving:
            estimated.append(planned)
            continue
        if simulate:
            requests, seed = search.request.simulated_requests, search.request.seed
            is_replay = isinstance(own.workload.arrivals, RecordedArrivals)  # whole: it holds, as slower steps did
            slos = () if is_replay else search.slos
            own = simulated_long_enough(own, slos, seed, requests, search.progress)
        estimated.append(own)
    return tuple(estimated)


def _search_with_spot_reserve(
    request: PlanRequest,
    hardware: HardwareDb,
    progress: Progress,
    simulate: bool,
    known: Corrections,
    says_what_else: bool = False,
) -> _SearchResult:
    """The fleet, searched again with more spot headroom as long as too little was bought for what must be up."""
    spot_shares: dict[str, float] = {}
    shift_of = slow_rule(optimistic_deviations(request.confidence), request.measured_steps)
    while True:
        progress("searching configurations")
        market = market_of(request, hardware, spot_shares)
        point, services = _cheapest_cascade(request, market, shift_of)
        search = search_fleet(request, market, services, progress, shift_of, known)
        outcome = find_fleet(search, simulate, says_what_else)
        if isinstance(outcome, VerifiedFleet):
            supply = market.site_of(outcome.allocation).supply
            shortfalls = spot_shortfalls(outcome.allocation.bought, supply, request.prices)
            if shortfalls:
                spot_shares |= shortfalls
                continue
        return _SearchResult(search, outcome, point)


def _cheapest_cascade(
    request: PlanRequest, market: Market, shift_of: ShiftRule | None
) -> tuple[CascadePoint | None, tuple[Service, ...]]:
    """The services to plan for; of a cascade, those at the setting whose fleet costs least (before simulation)."""
    if request.cascade is None:
        return None, request.all_services
    settings = cascade_services(request.main, request.cascade)
    costs = []
    for _, services in settings:
        search = search_fleet(request, market, (*services, *request.services), shift_of=shift_of)
        allocation = refined_allocation(search, request.objective) if not search.unserved() else None
        costs.append(allocation.cost_usd_per_hour if allocation and allocation.status.has_allocation else math.inf)
    point, services = settings[costs.index(min(costs))]
    return point, (*services, *request.services)


def _flat_usd_per_hour(search: FleetSearch) -> float | None:
    """Cost of the best fleet that serves the largest demand all the time [USD/h]; None without a profile."""
    if search.request.profile is None:
        return None
    flat = refined_allocation(search, search.request.objective, flat=True)
    return flat.cost_usd_per_hour if flat.status.has_allocation else None


# --- no fleet -------------------------------------------------------------------------------------------------------


def _as_slow_as_asked(search: FleetSearch) -> FleetSearch:
    """A search with steps so slow that what meets no target says by how much that has to be relaxed.

    The same one where that only shows with true rates, which it knows already.
    """
    services = {slice_.service.name: slice_.service for slice_ in search.slices.values()}
    shift_of = slow_rule(deviations_of(search.request.confidence), search.request.measured_steps)
    slow = search_fleet(search.request, search.market, tuple(services.values()), search.progress, shift_of)
    return slow if slow.unserved() == search.unserved() else search


def _infeasible_plan(search: FleetSearch, outcome: NoFleet, elapsed_s: float, corrections: Corrections | None) -> Plan:
    allocation = outcome.allocation
    rejections = (*search.rejections, *search.market.unpriced)
    if allocation is None and not outcome.missed:
        known = {(rejection.sku, rejection.mode) for rejection in rejections}
        misses = [miss for name in search.unserved() for miss in search.columns.idle_misses(name)]
        rejections += tuple(miss for miss in misses if (miss.sku, miss.mode) not in known)
    lines = _diagnosis(search, allocation, rejections)
    only_pairs = allocation is not None and Mode.MIXED not in search.request.search.modes
    reasons = (*outcome.left_out, *lines) if only_pairs else (*lines, *outcome.left_out)
    return Plan(
        request=search.request,
        status=allocation.status if allocation else SolveStatus.INFEASIBLE,
        allocation=allocation,
        deployments=(),
        cost=None,
        targets=(),
        agreement=(),
        alternatives=(),
        rejections=rejections,
        diagnosis=outcome.missed or reasons,
        assumptions=(),
        warnings=(),
        considered=search.considered,
        elapsed_s=elapsed_s,
        simulated=corrections is not None,
        corrections=corrections,
    )


def _what_confidence_forbids(
    request: PlanRequest, hardware: HardwareDb, progress: Progress, known: Corrections
) -> tuple[str, ...]:
    """A line with the most confidence for which there is a fleet by theory, where less than asked leaves one."""

    def cost_at(confidence: float) -> float:
        asked = request.model_copy(update={"confidence": confidence})
        outcome = _search_with_spot_reserve(asked, hardware, progress, False, known).outcome
        return math.inf if isinstance(outcome, NoFleet) else outcome.allocation.cost_usd_per_hour

    lower = [confidence for confidence in LESS_CONFIDENCE if confidence < request.confidence]
    costs = {confidence: cost_at(confidence) for confidence in lower[:1]}
    if not lower or math.isinf(costs[lower[0]]):
        return ()
    first, beyond = 0, len(lower)
    while beyond - first > 1:
        middle = (first + beyond) // 2
        costs[lower[middle]] = cost_at(lower[middle])
        first, beyond = (first, middle) if math.isinf(costs[lower[middle]]) else (middle, beyond)
    asked, most = (percent(each) for each in (request.confidence, lower[first]))
    fleet = f"by theory {money(costs[lower[first]])} USD/hour buy a fleet at confidence={lower[first]:g}"
    return (f"the confidence asked for is what leaves none, {asked} where {most} would do: {fleet}",)


SCENARIO_FIELDS = (
    (re.compile(r"(?<![.\w])budget_usd_per_hour\b"), "limits.budget_usd_per_hour"),
    (re.compile(r"\bresources\[([^\]]+)\]\.at_most"), r"limits.gpus.\1"),
    (re.compile(r"\bresources\[([^\]]+)\]\.at_least"), r"limits.pinned.\1"),
    (re.compile(r"\bmax_groups\b"), "limits.skus_at_most"),
    (re.compile(r"\bslices\[([^\]]+)\]\.demand_per_s"), r"requests/s of \1"),
)
"""Fields of the program and their names in a scenario."""


def _with_scenario_fields(line: str) -> str:
    for field, name in SCENARIO_FIELDS:
        line = field.sub(name, line)
    return line


def _diagnosis(search: FleetSearch, allocation: Allocation | None, rejections: Sequence[Rejection]) -> tuple[str, ...]:
    """The limits that bind with the smallest changes that help, and those of which no change does, one line each."""
    if allocation is not None and allocation.diagnosis is not None:
        diagnosis = allocation.diagnosis
        useless = [str(change) for change in diagnosis.relaxations if change.needed is None]
        return tuple(_with_scenario_fields(line) for line in (diagnosis.summary, *useless))
    if allocation is not None:
        return (f"the solver ended with {allocation.status}: no fleet found",)
    lines = [f"no configuration meets the targets; {rejection.reason}" for rejection in rejections]
    reachable = [rejection for rejection in rejections if math.isfinite(rejection.ratio)]
    if reachable:
        nearest = min(reachable, key=lambda rejection: rejection.ratio)
        lines.insert(0, f"nearest: {nearest.reason}; relax that target by a factor of {nearest.ratio:.3g} or more")
    unserved = search.unserved()
    if len(search.slices) > 1 and unserved:
        lines.insert(0, f"nothing serves {', '.join(unserved)}")
    return tuple(dict.fromkeys(lines))
