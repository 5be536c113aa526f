"""One fleet to find: what is on offer, what is asked, and the program solved until its answer has been seen to hold.

Rates start optimistic. What the program chooses gets its true rate and the program is solved again; the allocation that
stands is evaluated at its real pool sizes and simulated, and what misses a target is lowered and everything solved once
more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardware_db import Calibration, HardwareDb, Price, select_calibration
from planner.core import Metric, UnknownNameError
from planner.fleet.columns import Column, Columns, unit_of
from planner.fleet.pairing import UsedPool, deployments_of, used_pools
from planner.fleet.slices import DemandSlice, Service, periods_of, program_slices, slices_of
from planner.fleet.types import PlannedDeployment, PlanRequest
from planner.fleet.verification import Promise, judged, missed, promises_of
from planner.optimizer import (
    FEASIBILITY_TOLERANCE,
    Allocation,
    FleetProblem,
    Objective,
    Period,
    Resource,
    SolveStatus,
    Stage,
    Unit,
    solve,
)
from planner.search import (
    Capacity,
    Demand,
    DeploymentOption,
    FamilySet,
    Mode,
    Offer,
    PoolOption,
    Rejection,
    find_families,
)
from planner.supply import FleetLimits, Supply, resources_of, taken
from planner.workload import LatencyTarget, Slo

RELATIVE_GAP, COARSE_GAP = 1e-3, 1e-2
"""To which the fleet is proved best, a dollar in a thousand; and as long as rates are still being refined."""
TIME_LIMIT_S, COARSE_TIME_LIMIT_S = 10.0, 1.0
"""For one solve, and as long as rates are still being refined."""
SAME_COST = 1e-9
"""Share by which costs of equally good fleets may differ."""
MAX_ROUNDS = 30
"""Plans that were simulated before one is shown as it stands, with what it misses."""
WITHIN_A_DAY = Slo(targets=(LatencyTarget(metric=Metric.E2E, percentile=0.5, threshold_s=86_400.0),))
"""What stands for the targets of work that has none."""


@dataclass(frozen=True)
class Market:
    """What can be had.

    Attributes:
        hardware: the database.
        supply: GPUs as resources of the program.
        offers: SKUs with a price.
        unpriced: SKUs without one.
    """

    hardware: HardwareDb
    supply: Supply
    offers: tuple[Offer, ...]
    unpriced: tuple[Rejection, ...]


def market_of(request: PlanRequest, hardware: HardwareDb, spot_shares: Mapping[str, float] | None = None) -> Market:
    """SKUs of the search space with their prices and calibrations; those without a price are rejected by name.

    `spot_shares` is the share of spot capacity that may be counted on, by SKU; by default that of a large fleet.
    """
    search, limits = request.search, request.limits
    for name in search.engines:
        if name not in hardware.engines:
            raise UnknownNameError("search.engine", name, hardware.engines)
    supply = resources_of(search.skus, request.prices, limits, hardware, spot_shares=spot_shares)
    offers = tuple(
        Offer(
            sku=hardware.skus[sku],
            calibrations={engine: _calibration(request, hardware, sku, engine) for engine in search.engines},
        )
        for sku in dict.fromkeys(search.skus)
        if sku in supply.cheapest
    )
    unpriced = tuple(
        Rejection(sku, mode, f"{sku}: {reason}", math.inf)
        for sku, reason in supply.unavailable.items()
        for mode in search.modes
    )
    return Market(hardware, supply, offers, unpriced)


def _calibration(request: PlanRequest, hardware: HardwareDb, sku: str, engine: str) -> Calibration | None:
    """What step times come from."""
    return select_calibration(hardware, sku, engine) if request.search.calibrated else None


@dataclass(frozen=True)
class FleetSearch:
    """One fleet to find: what stands still while the program is solved again and again, and the columns."""

    request: PlanRequest
    hardware: HardwareDb
    supply: Supply
    slices: Mapping[str, DemandSlice]
    periods: tuple[Period, ...]
    promises: tuple[Promise, ...]
    columns: Columns
    rejections: tuple[Rejection, ...]
    considered: int
    say: Callable[[str], None] = lambda _: None
    _units: dict[str, tuple[Column, Unit]] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def peak(self) -> int:
        """The period of the largest demand that cannot wait."""
        parts = [part for part in self.slices.values() if not part.deferrable] or list(self.slices.values())
        return max(range(len(self.periods)), key=lambda t: math.fsum(part.demand_per_s[t] for part in parts))

    def unserved(self) -> tuple[str, ...]:
        """Slices that no mixed pool, and no prefill pool together with a decode pool, can serve."""
        by_stage: dict[Stage, set[str]] = {stage: set() for stage in Stage}
        for column in self.columns.all:
            by_stage[column.stage] |= column.rates.keys()
        served = by_stage[Stage.WHOLE] | (by_stage[Stage.FIRST] & by_stage[Stage.SECOND])
        return tuple(name for name in self.slices if name not in served)

    def problem(self, columns: Sequence[Column], flat: bool = False) -> FleetProblem:
        """The program over some columns; flat: one period of the largest demand of each slice."""
        limits = self.request.limits
        slices, periods = program_slices(tuple(self.slices.values())), self.periods
        if flat:
            slices = tuple(
                one.model_copy(update={"demand_per_s": (max(one.demand_per_s or (0.0,)),)}) for one in slices
            )
            periods = (Period(name="always", hours=math.fsum(period.hours for period in periods)),)
        return FleetProblem(
            slices=slices,
            units=tuple(self._unit(column) for column in columns),
            resources=self.supply.resources,
            periods=periods,
            budget_usd_per_hour=limits.budget_usd_per_hour,
            max_groups=limits.skus_at_most,
        )

    def _unit(self, column: Column) -> Unit:
        """A column as the program sees it; made anew only where the column is another one."""
        known = self._units.get(column.name)
        if known is not None and known[0] is column:
            return known[1]
        limits, profile, cheapest = self.request.limits, self.request.profile, self.supply.cheapest
        start_h = profile.cold_start_s / 3600.0 if profile else 0.0
        unit = unit_of(
            column,
            lambda gpus: taken(gpus, self.hardware.skus, limits, self.request.prices),
            start_h * math.fsum(count * cheapest[sku] for sku, count in column.gpus.items()),
            steady=profile is not None and not profile.autoscale,
        )
        self._units[column.name] = (column, unit)
        return unit

    def solved(
        self, columns: Sequence[Column], objective: Objective, flat: bool = False, gap: float = RELATIVE_GAP
    ) -> Allocation:
        """The program over some columns as their rates stand."""
        time_limit_s = TIME_LIMIT_S if gap <= RELATIVE_GAP else COARSE_TIME_LIMIT_S
        return solve(self.problem(columns, flat), objective, relative_gap=gap, time_limit_s=time_limit_s)

    def refined(self, objective: Objective, flat: bool = False) -> Allocation:
        """Solve and replace optimistic rates by true ones until every chosen column has its true rates.

        The result is optimal over the true rates of all columns although only those of chosen ones were computed.
        """
        return self._refined(lambda: self.columns.all, objective, flat)

    def refined_in(self, is_wanted: Callable[[Column], bool]) -> Allocation:
        """The same over some of the columns, to `COARSE_GAP`."""
        return self._refined(
            lambda: [one for one in self.columns.all if is_wanted(one)],
            self.request.objective,
            flat=False,
            finest=COARSE_GAP,
        )

    def refined_over(self, members: Sequence[tuple[str, PoolOption]], finest: float = COARSE_GAP) -> Allocation:
        """The same with pools of some configurations only, proved to the finest gap."""
        return self._refined(
            lambda: self.columns.of_members(members), self.request.objective, flat=False, finest=finest
        )

    def _refined(
        self, columns: Callable[[], list[Column]], objective: Objective, flat: bool, finest: float = RELATIVE_GAP
    ) -> Allocation:
        gap = COARSE_GAP
        while True:
            self.say("solving")
            allocation = self.solved(columns(), objective, flat, gap)
            if not allocation.status.has_allocation:
                if allocation.diagnosis is not None or gap <= finest:
                    return allocation
                gap = finest
            elif self.columns.refine(allocation):
                gap = COARSE_GAP
            elif gap <= finest or (allocation.gap is not None and allocation.gap <= finest):
                return allocation
            else:
                gap = finest


def search_fleet(
    request: PlanRequest, market: Market, services: Sequence[Service], say: Callable[[str], None] = lambda _: None
) -> FleetSearch:
    """Slices, and for each of them the families of configurations that can serve it. `say` hears of every solve."""
    offline = [(services[0], work) for work in request.offline]
    slices = slices_of(
        services,
        split=request.split,
        profile=request.profile,
        offline=offline,
        growth=request.growth,
        by_class=request.by_class,
    )
    families, capacities = {}, {}
    rejections: dict[tuple[str, Mode], Rejection] = {}
    considered = 0
    for part in slices:
        demand = Demand(part.service.llm, part.service.precision, part.workload, part.slo or WITHIN_A_DAY)
        found: FamilySet = find_families(demand, request.search, market.offers, market.hardware.engines)
        families[part.name], capacities[part.name] = found.families, Capacity(demand)
        considered += found.considered
        for one in found.rejections:
            reason = one.reason if len(slices) == 1 else f"{part.name}: {one.reason}"
            rejections.setdefault((one.sku, one.mode), replace(one, reason=reason))
    return FleetSearch(
        request=request,
        hardware=market.hardware,
        supply=market.supply,
        slices={part.name: part for part in slices},
        periods=periods_of(request.profile),
        promises=promises_of(slices),
        columns=Columns(slices, families, capacities, request.limits, _sites(request, market)),
        rejections=tuple(rejections.values()),
        considered=considered,
        say=say,
    )


def _sites(request: PlanRequest, market: Market) -> dict[str, str]:
    """By SKU, where it stands, as far as handing over KV caches goes: SKUs of one vendor bought from one provider.

    Caches do not travel between clouds, nor between kernels of different vendors with their own layouts. With
    `SearchSpace.pair_skus` off every SKU stands by itself.
    """
    sites = {}
    for offer in market.offers:
        sku = offer.sku.id
        prices = [
            price for (name, _), price in market.supply.prices.items() if name == sku and isinstance(price, Price)
        ]
        cheapest = min(prices, key=lambda price: price.usd_per_gpu_hour, default=None)
        place = f"{offer.sku.vendor} at {cheapest.provider if cheapest else 'home'}"
        sites[sku] = place if request.search.pair_skus else sku
    return sites


# --- solving ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """The program's last answer, and the deployments it became; none where there is no fleet.

    `passed_over_usd_per_hour` is the cost of the cheapest fleet where a simpler one was taken.
    """

    allocation: Allocation | None
    deployments: tuple[PlannedDeployment, ...] = ()
    passed_over_usd_per_hour: float | None = None


def settle(found: FleetSearch, simulate: bool) -> Settled:
    """Solve, deploy and simulate; lower the rates of what misses and repeat, until everything holds.

    What misses by theory at the pool sizes and rates it was given is not simulated.
    """
    settled = Settled(None)
    for _ in range(MAX_ROUNDS if not found.unserved() else 0):
        best = found.refined(found.request.objective)
        allocation = simplest(found, best)
        passed = (
            best.cost_usd_per_hour
            if allocation.cost_usd_per_hour > best.cost_usd_per_hour * (1.0 + SAME_COST)
            else None
        )
        if not allocation.status.has_allocation:
            return Settled(None if found.unserved() else diagnosed(found))
        groups = deployments_of(used_pools(found.columns.chosen(allocation), allocation, found.peak))
        deployments, misses = _judged(found, groups, None)
        if simulate and not any(misses):
            deployments, misses = _judged(found, groups, found.request.simulated_requests)
        settled = Settled(allocation, deployments, passed)
        if not any(misses):
            break
        for (_, pools), metrics in zip(groups, misses, strict=True):
            for pool in pools:
                if pool.is_answerable(metrics):
                    found.columns.lower(pool.option, pool.service, pool.capacity_share)
    return settled


def _judged(
    found: FleetSearch, groups: Sequence[tuple[DeploymentOption, tuple[UsedPool, ...]]], requests: int | None
) -> tuple[tuple[PlannedDeployment, ...], list[frozenset[Metric]]]:
    """The deployments, and the metrics whose targets each of them misses."""
    seed = found.request.seed
    planned = tuple(judged(option, pools, found.slices, seed, requests, found.say) for option, pools in groups)
    return planned, [missed(one, found.promises) for one in planned]


def simplest(found: FleetSearch, best: Allocation) -> Allocation:
    """Of fleets that cost little more than the cheapest (`SearchSpace.simplicity`) one of few kinds of pools.

    Kinds are left out one by one, each time the one without which the rest costs least, as long as the fleet stays
    within that share of the cheapest. Fewer kinds of pools are easier to run, and a decode pool apart is a kind more.
    """
    search, objective = found.request.search, found.request.objective
    if objective is not Objective.MIN_COST or best.objective is None:
        return best
    most = best.objective * (1.0 + max(search.simplicity, SAME_COST))
    chosen, bound = best, best.objective * (1.0 - (best.gap or 0.0))
    while True:
        kinds = found.columns.members(chosen)
        parts = [[kind for kind in kinds if kind is not left_out] for left_out in kinds] if len(kinds) > 1 else []
        fewer = [found.refined_over(part) for part in parts]
        fewer = [one for one in fewer if one.objective is not None and one.objective <= most]
        if not fewer:
            break
        chosen = min(fewer, key=lambda one: one.objective or math.inf)
    if chosen is not best:
        chosen = found.refined_over(found.columns.members(chosen), RELATIVE_GAP)
    if chosen is best or chosen.objective is None:
        return best
    gap = 1.0 - bound / chosen.objective
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    if best.status is SolveStatus.TIME_LIMIT:
        status = best.status
    return chosen.model_copy(update={"gap": gap, "status": status})


def diagnosed(found: FleetSearch) -> Allocation:
    """Why nothing fits, and what would, by true rates: those of the cheapest fleet and of the most that can be had."""
    loosened = replace(
        found,
        request=found.request.model_copy(update={"limits": FleetLimits()}),
        supply=replace(found.supply, resources=tuple(_without_limits(one) for one in found.supply.resources)),
    )
    loosened.refined(Objective.MIN_COST)
    found.refined(Objective.MAX_RATE)
    return found.solved([column for column in found.columns.all if column.is_exact], found.request.objective)


def _without_limits(resource: Resource) -> Resource:
    purchases = tuple(one.model_copy(update={"at_most": None}) for one in resource.purchases)
    return resource.model_copy(update={"at_most": None, "at_least": 0.0, "purchases": purchases})
