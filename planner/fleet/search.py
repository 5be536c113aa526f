"""Search for the cheapest fleet that meets every target.

1. Solve the integer program with an optimistic rate for every unit (`planner.search.bounds`).
2. Replace the rates of the chosen units by their true sustainable rates; repeat from 1 until none is optimistic.
3. Build the deployments, evaluate and simulate them; lower the rates of every configuration that misses a target, by as
   much as its misses say, and what is expected of those not simulated yet; repeat from 1.
4. Of a fleet that holds, simulate those with a replica fewer (`planner.fleet.smaller_fleets`); what holds against
   theory becomes a unit of its own; repeat from 1.

The rates of steps 1 and 2 only ever fall, so their answer is optimal over the rates of theory of all units; with steps
3 and 4 it is optimal over these as simulation corrected them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hardware_db import Calibration, HardwareDb, select_calibration
from planner.core import Metric, UnknownNameError, significant, with_unit
from planner.fleet.columns import CandidateColumns, Column, unit_of
from planner.fleet.corrections import Corrections
from planner.fleet.networks import on_networks
from planner.fleet.pairing import UsedPool, deployments_of, used_pools
from planner.fleet.preferences import (
    PLAINNESS,
    SHARE_OF_A_GPU,
    Best,
    is_plain,
    most_preferred,
    plainest,
    with_fewest_kinds,
)
from planner.fleet.simulation import run_of
from planner.fleet.sites import (
    best_of,
    bound_at,
    gpu_seconds_per_request,
    in_single_units,
    is_better,
    lower_bound,
    usd_s_per_request,
)
from planner.fleet.slices import periods_of, program_slices, slices_of
from planner.fleet.smaller_fleets import Groups, Questions, smaller_pools_that_hold
from planner.fleet.types import PlannedDeployment, PlanRequest, Progress
from planner.fleet.verification import (
    ScopedSlo,
    missing_over_allowed,
    scoped_slos,
    target_checks,
    verify_deployment,
    violated_metrics,
    with_run,
)
from planner.optimizer import (
    FEASIBILITY_TOLERANCE,
    WORK,
    Allocation,
    FleetProblem,
    Objective,
    Period,
    Resource,
    SolveStatus,
    Unit,
    UnitStage,
    solve,
)
from planner.search import (
    ConfigurationFamily,
    Demand,
    DeploymentOption,
    Mode,
    Offer,
    Rejection,
    ShiftRule,
    capacity_of,
    find_families,
)
from planner.serving import Role
from planner.supply import FleetLimits, SiteSupply, Supply, build_supply, resource_use, site_supplies
from planner.traffic import DemandSlice, Service
from planner.workload import LatencyTarget, Slo, Workload

RELATIVE_GAP = 1e-3
"""Gap to which the fleet is proved best, a dollar in a thousand. A choice that may show in the result."""
COARSE_GAP = 1e-2
"""The same as long as rates are still being refined. Affects speed only."""
COARSE_WORK = WORK / 10.0
"""Most work of a solve as long as rates are still being refined. Affects speed only."""
SAME_COST = 1e-9
"""Relative difference up to which two fleets cost the same; rounding of the solver."""
LEAST_REQUESTS_TO_OVERRULE = 5000
"""Simulated requests below which a simulation says too little to overrule theory: fifty beyond a p99. A choice."""
SHARE_KEPT_AFTER_MISS = 0.97
"""Most of the rate it missed a target at that a configuration keeps. A choice: larger wastes less and takes longer."""
MISS_GROWTH = 10.0
"""Power of the rate with which requests that miss a target grow, for the rate at which no more would than may. A
choice: 8 to 12 in replays of recordings on pools of 8 to 11 replicas, more where the rate is steady."""
LEAST_MISSED = 0.1
"""Misses over those allowed below which it is not concluded how much more a pool would carry. A choice."""
MAX_ROUNDS = 30
"""Fleets verified before the last one is shown as it stands, with what it misses. A choice that rarely matters."""
WITHIN_A_DAY = Slo(targets=(LatencyTarget(metric=Metric.E2E, percentile=0.5, threshold_s=86_400.0),))
"""Stands for the targets of work that has none."""


@dataclass(frozen=True)
class Market:
    """What can be bought.

    Attributes:
        hardware: the database.
        supply: what all sites sell together.
        sites: what each of them sells: one program each, counted by `Allocation.program`.
        offers: SKUs with a price.
        unpriced: SKUs without one.
    """

    hardware: HardwareDb
    supply: Supply
    sites: tuple[SiteSupply, ...]
    offers: tuple[Offer, ...]
    unpriced: tuple[Rejection, ...]

    @property
    def sells_blocks(self) -> bool:
        """Whether GPUs of some SKU are sold in blocks somewhere."""
        return any(
            each.block > 1 for site in self.sites for resource in site.supply.resources for each in resource.purchases
        )

    def site_of(self, allocation: Allocation) -> SiteSupply:
        """Where the fleet of an allocation is bought."""
        return self.sites[allocation.program]


def market_of(request: PlanRequest, hardware: HardwareDb, spot_shares: Mapping[str, float] | None = None) -> Market:
    """SKUs of the search space with their prices and calibrations; those without a price are rejected by name.

    Args:
        request: whose search space, prices and limits count.
        hardware: the database.
        spot_shares: share of spot capacity that may be counted on, by SKU; None: that of a large fleet.
    """
    space, limits = request.search, request.limits
    for name in space.engines:
        if name not in hardware.engines:
            raise UnknownNameError("search.engine", name, hardware.engines)
    supply = build_supply(space.skus, request.prices, limits, hardware, spot_shares=spot_shares)
    sites = site_supplies(space.skus, request.prices, limits, hardware, spot_shares=spot_shares)
    offers = tuple(
        Offer(
            sku=hardware.skus[sku],
            calibrations={engine: _calibration(request, hardware, sku, engine) for engine in space.engines},
        )
        for sku in dict.fromkeys(space.skus)
        if sku in supply.cheapest
    )
    unpriced = tuple(
        Rejection(sku, mode, f"{sku}: {reason}", math.inf)
        for sku, reason in supply.unavailable.items()
        for mode in space.modes
    )
    return Market(hardware, supply, sites, offers, unpriced)


def _calibration(request: PlanRequest, hardware: HardwareDb, sku: str, engine: str) -> Calibration | None:
    """What step times come from."""
    return select_calibration(hardware, sku, engine) if request.search.calibrated else None


@dataclass(frozen=True)
class FleetSearch:
    """The search for one fleet: what stays the same from solve to solve, and the columns, whose rates fall.

    Attributes:
        request: what is asked.
        market: what can be bought.
        slices: by name.
        periods: of the demand profile.
        slos: targets of the slices.
        columns: units of the program.
        rejections: SKUs and modes without a family, and why.
        considered: configurations examined.
        progress: hears of every solve and simulation.
    """

    request: PlanRequest
    market: Market
    slices: Mapping[str, DemandSlice]
    periods: tuple[Period, ...]
    slos: tuple[ScopedSlo, ...]
    columns: CandidateColumns
    rejections: tuple[Rejection, ...]
    considered: int
    progress: Progress = lambda _: None
    _units: dict[tuple[int, str], tuple[Column, Unit]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _without_pairs: set[tuple[int, str]] = field(init=False, default_factory=set, repr=False, compare=False)
    """Sites, counted, and SKUs whose network between instances is too slow for pairs of pools there."""

    @property
    def peak(self) -> int:
        """The period of the largest demand that cannot wait."""
        online = [slice_ for slice_ in self.slices.values() if not slice_.deferrable] or list(self.slices.values())
        return max(range(len(self.periods)), key=lambda t: math.fsum(slice_.demand_per_s[t] for slice_ in online))

    def unserved(self) -> tuple[str, ...]:
        """Slices that no mixed pool, and no prefill pool together with a decode pool, can serve."""
        by_stage: dict[UnitStage, set[str]] = {stage: set() for stage in UnitStage}
        for column in self.columns.all:
            by_stage[column.stage] |= column.rates.keys()
        served = by_stage[UnitStage.WHOLE] | (by_stage[UnitStage.FIRST] & by_stage[UnitStage.SECOND])
        return tuple(name for name in self.slices if name not in served)

    def problem(self, columns: Sequence[Column], flat: bool = False, program: int = 0) -> FleetProblem:
        """The program over some columns at one site; flat: one period of the largest demand of each slice."""
        limits, site = self.request.limits, self.market.sites[program]
        skus = self.market.hardware.skus
        slices, periods = program_slices(tuple(self.slices.values())), self.periods
        if flat:
            slices = tuple(
                slice_.model_copy(update={"demand_per_s": (max(slice_.demand_per_s or (0.0,)),)}) for slice_ in slices
            )
            periods = (Period(name="always", hours=math.fsum(period.hours for period in periods)),)
        return FleetProblem(
            slices=slices,
            units=tuple(
                self._unit(column, program)
                for column in columns
                if site.holds(skus[column.family.sku], column.family.gpus)
                and (column.is_mixed or (program, column.family.sku) not in self._without_pairs)
            ),
            resources=site.supply.resources,
            periods=periods,
            budget_usd_per_hour=limits.budget_usd_per_hour,
            max_groups=limits.skus_at_most,
        )

    def _unit(self, column: Column, program: int) -> Unit:
        """A column as the program of a site sees it; made anew only where the column is another one."""
        known = self._units.get((program, column.name))
        if known is not None and known[0] is column:
            return known[1]
        limits, profile, site = self.request.limits, self.request.profile, self.market.sites[program]
        cheapest = site.supply.cheapest
        start_h = profile.cold_start_s / 3600.0 if profile else 0.0
        unit = unit_of(
            _placed(column, site),
            resource_use(column.gpus, self.market.hardware.skus, limits, self.request.prices),
            start_h * math.fsum(count * cheapest[sku] for sku, count in column.gpus.items()),
            steady=profile is not None and not profile.autoscale,
        )
        self._units[program, column.name] = (column, unit)
        return unit

    def allocation(
        self,
        columns: Sequence[Column],
        objective: Objective,
        flat: bool = False,
        gap: float = RELATIVE_GAP,
        *,
        singly: bool = False,
        known: dict[int, float] | None = None,
    ) -> Allocation:
        """The program's answer over some columns as their rates stand, at the best site.

        A site whose bound is not better than the best fleet found, by more than the gap, is not solved. With `singly`
        blocks are bought in parts: a fleet that costs no more, found sooner. `known` are bounds on the cost at sites
        that hold as long as rates only fall; they are added to.
        """
        known = {} if known is None else known
        work = WORK if gap <= RELATIVE_GAP else COARSE_WORK
        answers: list[Allocation] = []
        left: list[float] = []
        best: float | None = None
        for program, bound in self._bounds(columns, objective, flat):
            if best is not None and not is_better(bound, best, objective, gap):
                left.append(bound)
                break
            if best is not None and program in known and not is_better(known[program], best, objective, gap):
                left.append(known[program])
                continue
            problem = self.problem(columns, flat, program)
            if singly:
                problem = in_single_units(problem)
            elif best is not None and objective is Objective.MIN_COST:
                parts = solve(in_single_units(problem), objective, relative_gap=gap, work=work, duals=False)
                tighter = known[program] = max(bound, lower_bound(parts))
                if not is_better(tighter, best, objective, gap):
                    left.append(tighter)
                    continue
            answer = solve(problem, objective, relative_gap=gap, work=work, duals=not singly)
            answers.append(answer.model_copy(update={"program": program}))
            if objective is Objective.MIN_COST:
                known[program] = max(known.get(program, 0.0), lower_bound(answer))
            if answer.objective is not None and (best is None or is_better(answer.objective, best, objective)):
                best = answer.objective
        return best_of(answers, left, objective, FEASIBILITY_TOLERANCE)

    def _bounds(self, columns: Sequence[Column], objective: Objective, flat: bool) -> list[tuple[int, float]]:
        """Sites at which a fleet may be found, with what none there is better than; best first, at least one."""
        market = self.market
        if len(market.sites) == 1:
            return [(0, 0.0)]
        spent = gpu_seconds_per_request(columns)
        demand_per_s = {
            name: max(slice_.demand_per_s) if flat else self._mean_per_s(slice_) for name, slice_ in self.slices.items()
        }
        budget = self.request.limits.budget_usd_per_hour
        bounds = [
            (program, bound_at(usd_s_per_request(spent, site, market.hardware), demand_per_s, objective, budget))
            for program, site in enumerate(market.sites)
        ]
        none = math.inf if objective is Objective.MIN_COST else 0.0
        sign = 1.0 if objective is Objective.MIN_COST else -1.0
        reachable = sorted((each for each in bounds if each[1] != none), key=lambda each: sign * each[1])
        return reachable or bounds[:1]

    def _mean_per_s(self, slice_: DemandSlice) -> float:
        hours = math.fsum(period.hours for period in self.periods)
        served = zip(slice_.demand_per_s, self.periods, strict=True)
        return math.fsum(rate * period.hours for rate, period in served) / hours

    def without_pairs(self, allocation: Allocation, skus: Iterable[str]) -> None:
        """Offer no prefill and decode pools of some SKUs any more where an allocation is bought."""
        self._without_pairs.update((allocation.program, sku) for sku in skus)

    @property
    def pairs_left_out(self) -> tuple[str, ...]:
        """Where no prefill and decode pools are offered any more, a line for each site and SKU."""
        return tuple(
            f"pairs of {sku} at {site.name} miss a target over the network between instances there "
            f"({site.networks[sku].name}, {significant(site.networks[sku].bytes_per_s_per_gpu / 1e9)} GB/s of a GPU); "
            "plan with search.modes=[mixed] or another prices.provider"
            for site, sku in ((self.market.sites[program], sku) for program, sku in sorted(self._without_pairs))
        )

    def chosen(self, allocation: Allocation) -> list[Column]:
        """The columns an allocation uses; pools that may hand KV caches to one another have a channel in common."""
        site = self.market.site_of(allocation)
        return [_placed(column, site) for column in self.columns.chosen(allocation)]

    def refined_allocation(
        self,
        objective: Objective,
        columns: Callable[[], list[Column]] | None = None,
        *,
        flat: bool = False,
        finest_gap: float = RELATIVE_GAP,
        enough_usd_per_hour: float = math.inf,
    ) -> Allocation:
        """Solve and replace optimistic rates by true ones until every chosen column has its true rates.

        The result is optimal over the true rates of all columns although only those of chosen ones were computed.

        Args:
            objective: of the program.
            columns: asked before every solve for the columns that may be chosen; None: all.
            flat: one period of the largest demand of each slice.
            finest_gap: to which the last answer is proved.
            enough_usd_per_hour: cost from which on it does not matter how much more it is: the answer then has
                optimistic rates or parts of blocks, with which no fleet costs less.
        """
        gap, singly = COARSE_GAP, objective is Objective.MIN_COST and self.market.sells_blocks
        known: dict[int, float] = {}
        while True:
            self.progress("solving")
            asked = self.columns.all if columns is None else columns()
            allocation = self.allocation(asked, objective, flat, gap, singly=singly, known=known)
            if columns is not None:
                known.clear()  # more columns may be asked for next time
            if singly and not (allocation.status.has_allocation and allocation.cost_usd_per_hour > enough_usd_per_hour):
                if not allocation.status.has_allocation or not self.columns.refine(allocation):
                    gap, singly = finest_gap, False
            elif not allocation.status.has_allocation:
                if allocation.diagnosis is not None or gap <= finest_gap:
                    return allocation
                gap = finest_gap
            elif allocation.cost_usd_per_hour > enough_usd_per_hour:
                return allocation
            elif self.columns.refine(allocation) or (
                allocation.status.is_cut_short and gap <= finest_gap and self.columns.refine_bound(allocation)
            ):
                gap = finest_gap if self.market.sells_blocks else COARSE_GAP
            elif gap <= finest_gap or (allocation.gap is not None and allocation.gap <= finest_gap):
                return allocation
            else:
                gap = finest_gap


def request_slices(request: PlanRequest, services: Sequence[Service]) -> tuple[DemandSlice, ...]:
    """The slices of a request; its offline work is for the first of the services."""
    return slices_of(
        services,
        split=request.split,
        profile=request.profile,
        offline=[(services[0], work) for work in request.offline],
        growth=request.growth,
        by_class=request.by_class,
    )


def search_fleet(
    request: PlanRequest,
    market: Market,
    services: Sequence[Service],
    progress: Progress = lambda _: None,
    shift_of: ShiftRule | None = None,
    corrections: Corrections | None = None,
) -> FleetSearch:
    """A search with nothing solved yet: slices, and for each the families of configurations that can serve it.

    Args:
        request: what is asked.
        market: what can be bought.
        services: the models served.
        progress: hears of every solve and simulation.
        shift_of: how far step times are taken to be off their estimates; None: not at all.
        corrections: what simulation taught in another plan; None: nothing.
    """
    slices = request_slices(request, services)
    families, capacities = {}, {}
    rejections: dict[tuple[str, Mode], Rejection] = {}
    considered = 0
    for slice_ in slices:
        service = slice_.service
        demand = Demand(
            service.llm,
            service.precision,
            Workload(arrivals=slice_.workload.open_arrivals, classes=slice_.workload.classes),
            slice_.slo or WITHIN_A_DAY,
            service.max_request_tokens,
            service.published,
            shift_of,
        )
        family_set = find_families(demand, request.search, market.offers, market.hardware.engines)
        served, borrowed = _measured(family_set.families) if request.search.measured_only else (family_set.families, ())
        families[slice_.name], capacities[slice_.name] = served, capacity_of(demand)
        considered += family_set.considered
        for rejection in (*family_set.rejections, *borrowed):
            reason = rejection.reason if len(slices) == 1 else f"{slice_.name}: {rejection.reason}"
            rejections.setdefault((rejection.sku, rejection.mode), replace(rejection, reason=reason))
    return FleetSearch(
        request=request,
        market=market,
        slices={slice_.name: slice_ for slice_ in slices},
        periods=periods_of(request.profile),
        slos=scoped_slos(slices),
        columns=CandidateColumns(slices, families, capacities, request.limits, _groups(request, market), corrections),
        rejections=tuple(rejections.values()),
        considered=considered,
        progress=progress,
    )


def _measured(
    families: Sequence[ConfigurationFamily],
) -> tuple[tuple[ConfigurationFamily, ...], tuple[Rejection, ...]]:
    """The families whose step times were measured, and why the others are left out."""
    measured = tuple(family for family in families if family.is_measured)
    borrowed = {(family.sku, family.mode) for family in families} - {(family.sku, family.mode) for family in measured}
    return measured, tuple(
        Rejection(sku, mode, f"{sku}: its step times are not all its own measurements (search.measured_only)", math.inf)
        for sku, mode in sorted(borrowed)
    )


def _groups(request: PlanRequest, market: Market) -> dict[str, str]:
    """By SKU, what it may share KV caches with wherever it is bought: kernels of different vendors lay them out apart.

    With `SearchSpace.pair_skus` off every SKU stands by itself. `_placed` adds the place.
    """
    return {offer.sku.id: offer.sku.vendor if request.search.pair_skus else offer.sku.id for offer in market.offers}


def _placed(column: Column, site: SiteSupply) -> Column:
    """A column whose channel says where it is bought: KV caches do not travel between places."""
    if column.is_mixed:
        return column
    return replace(column, channel=f"{column.channel} at {site.places[column.family.sku]}")


# --- solving ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerifiedFleet:
    """The cheapest fleet.

    Attributes:
        allocation: the program's last answer.
        deployments: what it became, evaluated and simulated; after `MAX_ROUNDS` some may still miss a target.
        passed_over_usd_per_hour: cost of the cheapest fleet where a simpler one was taken, else None.
    """

    allocation: Allocation
    deployments: tuple[PlannedDeployment, ...]
    passed_over_usd_per_hour: float | None


@dataclass(frozen=True)
class NoFleet:
    """Nothing meets the targets within the limits.

    Attributes:
        allocation: the program's last answer, with its diagnosis; None where some slice has no configuration at all.
        missed: where fleets were found but none that holds, what the last of them misses, in words.
        left_out: what was not offered any more, and why; said before the diagnosis.
    """

    allocation: Allocation | None
    missed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def find_fleet(search: FleetSearch, simulate: bool) -> VerifiedFleet | NoFleet:
    """Solve, deploy and verify; lower the rates of what misses a target and repeat, until everything holds.

    What misses by theory at the pool sizes and rates it was given is not simulated. A fleet that holds stands until a
    cheaper one holds too, or none is cheaper by the rates known.
    """
    if search.unserved():
        return NoFleet(None)
    held: VerifiedFleet | None = None
    outcome: VerifiedFleet | NoFleet = NoFleet(None)
    left = Questions(search.request.simulated_requests)
    for _ in range(MAX_ROUNDS):
        trial = _trial(search, simulate, held)
        if isinstance(trial, NoFleet):
            if held is None and trial.allocation is None and isinstance(outcome, VerifiedFleet):
                return _missed(search, outcome)
            return held or trial
        if trial is None:
            break
        outcome = trial.fleet
        if any(trial.violations):
            trial.lower_rates(search)
            continue
        held = _cheaper(held, trial.fleet)
        if not simulate or not (_witness_smaller(search, trial, left) or trial.raise_expectations(search)):
            break
    if held is None and isinstance(outcome, VerifiedFleet):
        return _missed(search, outcome)
    return held or outcome


def _missed(search: FleetSearch, last: VerifiedFleet) -> NoFleet:
    """None of the fleets tried holds: what the last one misses, by theory or in its simulation."""
    lines = ["no fleet was found that holds; the last one tried misses:"]
    for check in target_checks([_simulated_whole(search, planned) for planned in last.deployments], search.slos):
        reached_s = max(check.predicted_s, check.simulated_s)
        if reached_s > check.target.threshold_s:
            reached, asked = (
                with_unit(time_s, check.target.metric) for time_s in (reached_s, check.target.threshold_s)
            )
            factor = reached_s / check.target.threshold_s
            lines.append(f"{check.target.name} {reached} > {asked}; relax that target by a factor of {factor:.3g}")
    return NoFleet(last.allocation.model_copy(update={"status": SolveStatus.INFEASIBLE}), tuple(lines))


def _simulated_whole(search: FleetSearch, planned: PlannedDeployment) -> PlannedDeployment:
    """A deployment that missed a target in the busiest part of a recording, with all of that replayed."""
    run = planned.run
    if run is None or run.part_of is None:
        return planned
    whole = run_of(planned.surviving, planned.workload, search.request.simulated_requests, planned.predicted)
    return with_run(planned, whole, search.request.seed, search.progress)


@dataclass(frozen=True)
class _Trial:
    """The best fleet by the rates known, verified.

    Attributes:
        fleet: as it is.
        groups: the pools that serve together.
        violations: of each of these, the metrics whose targets it misses.
    """

    fleet: VerifiedFleet
    groups: Groups
    violations: Sequence[frozenset[Metric]]

    def lower_rates(self, search: FleetSearch) -> None:
        """Lower the rates of what missed a target, by what that says of the rate at which it may hold.

        First tokens wait for prompts more than for a place to decode: of a pair that misses TTFT alone the decode pool
        is lowered only when that happens again. Where links between the pools cannot carry the KV caches, only the pool
        with fewer links is lowered.
        """
        for (_, pools), deployment, metrics in zip(self.groups, self.fleet.deployments, self.violations, strict=True):
            missed = missing_over_allowed(deployment, search.slos)
            for pool in (pool for pool in _short_of_links(pools, deployment) or pools if pool.may_cause(metrics)):
                caused = [missed[metric] for metric in metrics & missed.keys() if pool.may_cause({metric})]
                kept = min(_share_that_holds(max([*caused, 1.0])), SHARE_KEPT_AFTER_MISS)
                is_doubtful = pool.option.role is Role.DECODE and metrics == {Metric.TTFT}
                search.columns.lower(pool.option, pool.service, pool.capacity_share, kept, is_doubtful=is_doubtful)

    def raise_expectations(self, search: FleetSearch) -> bool:
        """Expect more of what was not simulated where what was held with room; whether that changed anything."""
        if search.request.objective is not Objective.MIN_COST:
            return False
        raised = []
        for (_, pools), deployment in zip(self.groups, self.fleet.deployments, strict=True):
            missed = missing_over_allowed(deployment, search.slos)
            for pool in pools:
                caused = [ratio for metric, ratio in missed.items() if pool.may_cause({metric})]
                share = pool.capacity_share * _share_that_holds(max(caused, default=1.0))
                raised.append(search.columns.held(pool.option, pool.service, share))
        return any(raised)


def _short_of_links(pools: Sequence[UsedPool], planned: PlannedDeployment) -> list[UsedPool]:
    """Of a pair whose links fall behind by theory while its pools do not, the pool with fewer; none otherwise.

    A pool's own rate knows its own links, not how slow those of the other pool are.
    """
    predicted = planned.predicted
    keep_up = all(pool.utilisation < 1.0 for pool in predicted.pools)
    if predicted.stable or len(pools) < 2 or predicted.link_utilisation < 1.0 or not keep_up:
        return []
    fewest = min(pool.surviving for pool in pools)
    return [pool for pool in pools if pool.surviving == fewest]


def _share_that_holds(missed_over_allowed: float) -> float:
    """Of the rate at which so many miss a target for each that may, the share at which no more would than may."""
    return math.exp(-math.log(max(missed_over_allowed, LEAST_MISSED)) / MISS_GROWTH)


def _trial(search: FleetSearch, simulate: bool, held: VerifiedFleet | None) -> _Trial | NoFleet | None:
    """Solve, deploy and verify once; None where the best fleet is not cheaper than one that holds."""
    while True:
        cheapest = search.refined_allocation(search.request.objective)
        allocation = simplest_allocation(search, cheapest)
        if not allocation.status.has_allocation:
            diagnosed = None if search.unserved() else diagnosed_allocation(search)
            return NoFleet(diagnosed, left_out=search.pairs_left_out)
        if held is not None and not _costs_less(allocation, held.allocation):
            return None
        networks = search.market.site_of(allocation).networks
        wanted = deployments_of(used_pools(search.chosen(allocation), allocation, search.peak))
        groups = [(on_networks(option, pools, networks), pools) for option, pools in wanted]
        deployments, violations = _verify(search, groups, None)
        too_slow = _too_slow_networks(search, wanted, groups, violations)
        if not too_slow:
            break
        search.without_pairs(allocation, too_slow)
    if simulate and not any(violations):
        deployments, violations = _verify(search, groups, search.request.simulated_requests)
    if not deployments:
        return NoFleet(allocation)
    is_dearer = allocation.cost_usd_per_hour > cheapest.cost_usd_per_hour * (1.0 + SAME_COST)
    passed_over = cheapest.cost_usd_per_hour if is_dearer else None
    return _Trial(VerifiedFleet(allocation, deployments, passed_over), groups, violations)


def _too_slow_networks(
    search: FleetSearch, wanted: Groups, groups: Groups, violations: Sequence[frozenset[Metric]]
) -> set[str]:
    """SKUs of the pairs that miss a target with the network of their site, and none with the reference server's."""
    found: set[str] = set()
    for (option, pools), (slower, _), metrics in zip(wanted, groups, violations, strict=True):
        if slower is not option and metrics and not any(_verify(search, [(option, pools)], None)[1]):
            found |= {
                own.config.sku.id for own, card in zip(slower.pools, option.pools, strict=True) if own is not card
            }
    return found


def _costs_less(one: Allocation, other: Allocation) -> bool:
    return one.cost_usd_per_hour < other.cost_usd_per_hour * (1.0 - SAME_COST)


def _cheaper(first: VerifiedFleet | None, second: VerifiedFleet) -> VerifiedFleet:
    """The cheaper of two fleets that hold, the second where they cost the same."""
    return first if first is not None and _costs_less(first.allocation, second.allocation) else second


def _witness_smaller(search: FleetSearch, trial: _Trial, left: Questions) -> bool:
    """Whether some smaller fleet holds in simulation; its pools are units of the program from now on."""
    request = search.request
    if request.objective is not Objective.MIN_COST or request.simulated_requests < LEAST_REQUESTS_TO_OVERRULE:
        return False

    def verified(option: DeploymentOption, pools: tuple[UsedPool, ...], requests: int) -> PlannedDeployment:
        seed = search.request.seed
        return verify_deployment(option, pools, search.slices, seed, requests, search.progress, search.slos)

    held = smaller_pools_that_hold(trial.groups, trial.fleet.deployments, search.slos, verified, left)
    for pool in held:
        search.columns.witness(pool.option, pool.service, pool.surviving, pool.rates_per_s)
    return bool(held)


def _verify(
    search: FleetSearch, groups: Groups, requests: int | None
) -> tuple[tuple[PlannedDeployment, ...], list[frozenset[Metric]]]:
    """The deployments, and the metrics whose targets each of them misses; of witnessed units simulation decides."""
    seed = search.request.seed
    deployments = tuple(
        verify_deployment(option, pools, search.slices, seed, requests, search.progress, search.slos)
        for option, pools in groups
    )
    witnessed = [
        any(search.columns.is_witnessed(name) for pool in pools for name in pool.columns) for _, pools in groups
    ]
    return deployments, [
        violated_metrics(deployment, search.slos, by_theory=not seen)
        for deployment, seen in zip(deployments, witnessed, strict=True)
    ]


def simplest_allocation(search: FleetSearch, cheapest: Allocation) -> Allocation:
    """Of fleets that cost little more than the cheapest (`SearchSpace.simplicity`) the one that is preferred.

    Fleets with strays or both modes count only where the others cost clearly more (`planner.fleet.preferences`).
    Predictions are not so exact that such differences count. In this order a fleet is preferred whose GPUs were all
    measured, that has one SKU, and that is mixed: two mixed replicas survive the loss of one, a prefill and a decode
    replica do not. Then kinds of pools are left out one by one, each time the one without which the rest costs least.
    """
    objective, columns = search.request.objective, search.columns
    if objective is not Objective.MIN_COST or cheapest.objective is None:
        return cheapest
    simplicity, lasting = search.request.search.simplicity, cheapest
    if simplicity > 0.0:
        lasting = plainest(columns, cheapest, _best_within(search, PLAINNESS, cheapest, RELATIVE_GAP))
    best = _best_within(search, simplicity, lasting, COARSE_GAP, like=lasting)
    best_of_few = _best_within(search, _excess_of_few(search, lasting), lasting, COARSE_GAP, like=lasting)
    chosen = with_fewest_kinds(columns, most_preferred(columns, lasting, best, best_of_few), best_of_few)
    if chosen is not lasting:
        chosen = search.refined_allocation(objective, partial(columns.of_members, columns.members(chosen)))
    if chosen.objective is None:
        chosen = lasting
    if chosen is cheapest or chosen.objective is None:
        return cheapest
    gap = 1.0 - cheapest.objective * (1.0 - (cheapest.gap or 0.0)) / chosen.objective
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    if cheapest.status.is_cut_short:
        status = cheapest.status
    return chosen.model_copy(update={"gap": gap, "status": status})


def _best_within(
    search: FleetSearch, excess: float, of: Allocation, finest_gap: float, like: Allocation | None = None
) -> Best:
    """The cheapest fleet of some columns if it is dearer by no more than a share, and as plain as another one is."""
    objective, columns = search.request.objective, search.columns
    most = (of.objective or 0.0) * (1.0 + excess + SAME_COST)
    need_be_plain = like is not None and is_plain(columns, like)

    def best(allowed: Callable[[], list[Column]]) -> Allocation | None:
        found = search.refined_allocation(objective, allowed, finest_gap=finest_gap, enough_usd_per_hour=most)
        if found.objective is None or found.objective > most:
            return None
        return None if need_be_plain and not is_plain(columns, found) else found

    return best


def _excess_of_few(search: FleetSearch, of: Allocation) -> float:
    """Share of its cost up to which a fleet that is simpler to run may be dearer: a tie, or `SHARE_OF_A_GPU`."""
    simplicity, usd_per_gpu_hour = search.request.search.simplicity, search.market.site_of(of).supply.cheapest
    if simplicity == 0.0 or not of.objective:
        return simplicity
    dearest = max(usd_per_gpu_hour[column.family.sku] for column in search.columns.chosen(of))
    return max(simplicity, SHARE_OF_A_GPU * dearest / of.objective)


def diagnosed_allocation(search: FleetSearch) -> Allocation:
    """Why nothing fits, and what would, by true rates: those of the cheapest fleet and of the most that can be had."""
    loosened = replace(
        search,
        request=search.request.model_copy(update={"limits": FleetLimits()}),
        market=replace(search.market, sites=tuple(_without_limits_at(site) for site in search.market.sites)),
    )
    loosened.refined_allocation(Objective.MIN_COST)
    search.refined_allocation(Objective.MAX_RATE)
    exact = [column for column in search.columns.all if column.is_exact]
    return search.allocation(exact, search.request.objective)


def _without_limits_at(site: SiteSupply) -> SiteSupply:
    resources = tuple(_without_limits(resource) for resource in site.supply.resources)
    return replace(site, supply=replace(site.supply, resources=resources))


def _without_limits(resource: Resource) -> Resource:
    purchases = tuple(purchase.model_copy(update={"at_most": None}) for purchase in resource.purchases)
    return resource.model_copy(update={"at_most": None, "at_least": 0.0, "purchases": purchases})
