"""The program of a fleet: slices, columns whose rates fall, and its answers at the site where they cost least."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import sha256
from typing import Any

from planner.core import Metric, significant
from planner.fleet.columns import CandidateColumns, Column, unit_of
from planner.fleet.corrections import Corrections
from planner.fleet.market import Market, is_unstated, over_unstated
from planner.fleet.packing import PackedPool, lost_with_a_server, packed_replicas, servers_bought
from planner.fleet.sites import (
    SiteAnswers,
    bound_at,
    gpu_seconds_per_request,
    in_whole_blocks,
    lower_bound,
    usd_s_per_request,
)
from planner.fleet.slices import periods_of, program_slices, slices_of
from planner.fleet.types import PlanRequest, Progress
from planner.fleet.verification import ScopedSlo, scoped_slos
from planner.optimizer import (
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
    BoundedCache,
    ConfigurationFamily,
    Demand,
    Mode,
    Rejection,
    ShiftRule,
    capacity_of,
    find_families,
    with_rounded_bursts,
)
from planner.supply import InstanceNetwork, SiteSupply, resource_use
from planner.traffic import DemandSlice, Service
from planner.workload import LatencyTarget, Slo, Workload

RELATIVE_GAP = 1e-3
"""Gap to which the fleet is proved best, a dollar in a thousand. A choice that may show in the result."""
SAME_COST = 1e-9
"""Relative difference up to which two fleets cost the same; rounding of the solver."""
COARSE_WORK = WORK / 10.0
"""Most work of a solve as long as rates are still being refined. Affects speed only."""
CHARGED_WORK = WORK / 100.0
"""Most work of a solve with charges, which chooses among fleets that tie and whose bound is not used. A choice."""
WITHIN_A_DAY = Slo(targets=(LatencyTarget(metric=Metric.E2E, percentile=0.5, threshold_s=86_400.0),))
"""Stands for the targets of work that has none, and whose service has none: what shares replicas with requests under
targets is done at a rate at which these hold."""


_ANSWERS: BoundedCache[Allocation] = BoundedCache(2048)
"""Answers to programs, of a few kilobytes each, by the digest of all that was asked. Affects speed only."""


def _solved(problem: FleetProblem, **asked: Any) -> Allocation:  # noqa: ANN401
    """`solve`, whose answer depends on nothing else: the same plan again asks the same programs."""
    key = sha256(f"{problem.model_dump_json()} {asked}".encode()).digest()
    return _ANSWERS.get(key) or _ANSWERS.put(key, solve(problem, **asked))


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
    _units: dict[tuple[int, str, float, bool], tuple[Column, Unit]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    surfaces: dict[Hashable, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    """What counting worlds found of its deployments (`planner.fleet.confidence`)."""
    _without_pairs: dict[tuple[int, str, str], bool] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """Sites, counted, services and SKUs of pairs of pools for which the network between instances will not do; and
    whether those in one instance are left out too: not where nobody says what lies between several."""

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

    def asked_for_more(self, factor: float) -> FleetSearch:
        """The same search where this many times the demand is asked for; rates of columns stay as they are."""
        slices = {
            name: replace(slice_, demand_per_s=tuple(factor * rate for rate in slice_.demand_per_s))
            for name, slice_ in self.slices.items()
        }
        more = replace(self, slices=slices)
        more._units.update(self._units)
        more._without_pairs.update(self._without_pairs)
        return more

    def problem(
        self, columns: Sequence[Column], flat: bool = False, program: int = 0, charge: float = 0.0
    ) -> FleetProblem:
        """The program over some columns at one site; flat: one period of the largest demand of each slice."""
        limits, site = self.request.limits, self.market.sites[program]
        skus = self.market.hardware.skus
        slices, periods = program_slices(tuple(self.slices.values())), self.periods
        if flat:
            slices = tuple(
                slice_.model_copy(update={"demand_per_s": (max(slice_.demand_per_s or (0.0,)),)}) for slice_ in slices
            )
            periods = (Period(name="always", hours=math.fsum(period.hours for period in periods)),)
        instances = (
            Resource(name=f"{service} in pairs on {sku}", at_most=site.networks[sku].gpus)
            for (of, service, sku), all_of_them in sorted(self._without_pairs.items())
            if of == program and not all_of_them
        )
        return FleetProblem(
            slices=slices,
            units=tuple(
                self._unit(column, program)
                for column in columns
                if site.holds(skus[column.family.sku], column.family.gpus)
                and (column.is_mixed or not self._without_pairs.get((program, column.service, column.family.sku)))
                and (len(site.places) < 2 or self.columns.share_together(column) > 0.0)
            ),
            resources=(*site.supply.resources, *instances),
            periods=periods,
            budget_usd_per_hour=limits.budget_usd_per_hour,
            max_groups=limits.skus_at_most,
            charge=charge,
        )

    def _unit(self, column: Column, program: int) -> Unit:
        """A column as the program of a site sees it; made anew only where the column is another one."""
        limits, profile, site = self.request.limits, self.request.profile, self.market.sites[program]
        share = self.columns.share_together(column) if len(site.places) > 1 else 1.0
        is_pair = not column.is_mixed and (program, column.service, column.family.sku) in self._without_pairs
        known = self._units.get((program, column.name, share, is_pair))
        if known is not None and known[0] is column:
            return known[1]
        cheapest = site.supply.cheapest
        start_h = profile.cold_start_s / 3600.0 if profile else 0.0
        placed = _placed(column, site)
        pairs = {f"{column.service} in pairs on {sku}": count for sku, count in placed.gpus.items() if is_pair}
        unit = unit_of(
            placed,
            share,
            resource_use(placed.gpus, self.market.hardware.skus, limits, self.request.prices) | pairs,
            start_h * math.fsum(count * cheapest[sku] for sku, count in placed.gpus.items()),
            steady=profile is not None and not profile.autoscale,
        )
        self._units[program, column.name, share, is_pair] = (column, unit)
        return unit

    def allocation(
        self,
        columns: Sequence[Column],
        objective: Objective,
        flat: bool = False,
        gap: float = RELATIVE_GAP,
        *,
        known: dict[int, float] | None = None,
        most_usd_per_hour: float = math.inf,
        charge: float = 0.0,
        diagnosed: bool = False,
    ) -> Allocation:
        """The program's answer over some columns as their rates stand, at the best site.

        A site whose bound is not better than the best fleet found, by more than the gap, is not solved, and none whose
        bound is more than `most_usd_per_hour`: where that is true of all, the answer is infeasible. At a site, fleets
        are only looked for that may be better than the best so far, and no dearer than that. `known` are bounds on the
        cost at sites that hold as long as rates only fall; they are added to. A fleet whose replicas cannot be spread
        as its pools were taken to be is none: what it would cost is a bound on others. Only where no site has a fleet
        it is asked again at all of them what stands in the way (`diagnosed`).
        """
        before = dict(known or {})
        found = SiteAnswers(objective, gap, most_usd_per_hour, {} if known is None else known)
        work = CHARGED_WORK if charge else (WORK if gap <= RELATIVE_GAP else COARSE_WORK)
        for program, bound in self._bounds(columns, objective, flat):
            if not found.could_improve(bound):
                found.left.append(bound)
                break
            if not found.could_improve(found.known.get(program, bound)):
                found.left.append(found.known[program])
                continue
            problem = self.problem(columns, flat, program, charge)
            is_cheapest = objective is Objective.MIN_COST
            least = max(found.known.get(program, 0.0), bound) if is_cheapest else 0.0
            most = found.dearest_usd_per_hour if is_cheapest else math.inf
            asked = partial(
                _solved,
                objective=objective,
                relative_gap=gap,
                work=work,
                at_least_usd_per_hour=least,
                most_usd_per_hour=most,
                diagnosed=diagnosed,
                solver=self.request.search.solver,
            )
            solved = partial(self._solved_at, program, asked)
            answer = solved(problem)
            while unstated := over_unstated(
                self.columns.chosen(answer), answer.units, self.market.sites[program], self.market.hardware
            ):
                self.without_pairs(answer, unstated, all_of_them=False)
                problem = self.problem(columns, flat, program, charge)
                answer = solved(problem)
            if is_cheapest:
                found.known[program] = max(least, min(lower_bound(answer), most), answer.at_least_usd_per_hour)
            if answer.status is SolveStatus.INFEASIBLE and most < math.inf:
                found.left.append(most)
            fleet = self._spread(answer, problem, solved)
            if fleet is not answer:
                found.left.append(found.known.get(program, bound))
            if fleet is not None:
                found.answers.append(fleet)
        best = found.best_allocation
        if diagnosed or best.status is not SolveStatus.INFEASIBLE or most_usd_per_hour < math.inf:
            return best
        return self.allocation(columns, objective, flat, gap, known=before, charge=charge, diagnosed=True)

    def _solved_at(
        self, program: int, solved: Callable[[FleetProblem], Allocation], problem: FleetProblem
    ) -> Allocation:
        answer = self._as_few_units(solved(problem), problem, solved)
        answer = self._without_own_pins(answer.model_copy(update={"program": program}))
        return in_whole_blocks(answer, self.market.sites[program], self.request.limits)

    def _as_few_units(
        self, answer: Allocation, problem: FleetProblem, solved: Callable[[FleetProblem], Allocation]
    ) -> Allocation:
        """An answer with units of one configuration as the pool that they are, which carries more than its parts.

        It costs the same, so that the solver may take either; how much is routed to it and to others is not the same.
        """
        if len(self.periods) > 1 or not answer.status.has_allocation:
            return answer
        sizes: dict[str, int] = {}
        for column in self.columns.chosen(answer):
            kind = column.name.rpartition(" x")[0]
            sizes[kind] = sizes.get(kind, 0) + column.surviving * answer.units[column.name][0]
        whole = {f"{kind} x{size}" for kind, size in sizes.items()}
        units = tuple(unit for unit in problem.units if unit.name in whole)
        if whole == set(answer.units) or len(units) < len(whole):
            return answer
        found = solved(problem.model_copy(update={"units": units}))
        kept = {"gap": answer.gap, "status": answer.status, "bound_rests_on": answer.bound_rests_on}
        is_same = found.objective is not None and math.isclose(
            found.objective, answer.objective or 0.0, rel_tol=SAME_COST
        )
        return found.model_copy(update=kept) if is_same else answer

    def _spread(
        self, answer: Allocation, problem: FleetProblem, solved: Callable[[FleetProblem], Allocation]
    ) -> Allocation | None:
        """An answer that is spread as its pools were taken to be; else one without replicas that fill a server.

        What these fill others cannot be spread over. None: that one is not spread either.
        """
        if self._is_spread(answer):
            return answer
        skus, families = self.market.hardware.skus, {column.name: column.family for column in self.columns.all}
        small = {name for name, family in families.items() if family.gpus < skus[family.sku].node.gpus}
        units = tuple(unit for unit in problem.units if unit.name in small)
        other = solved(problem.model_copy(update={"units": units}))
        return other if self._is_spread(other) else None

    def _bounds(self, columns: Sequence[Column], objective: Objective, flat: bool) -> list[tuple[int, float]]:
        """Sites at which a fleet may be found, with what none there is better than; best first, at least one."""
        budget = self.request.limits.budget_usd_per_hour
        sites = {
            program: site
            for program, site in enumerate(self.market.sites)
            if self.columns.together or not site.is_alone
        }
        if len(sites) == 1:
            return [(program, 0.0) for program in sites]
        demand_per_s = {
            name: max(slice_.demand_per_s) if flat else self._mean_per_s(slice_) for name, slice_ in self.slices.items()
        }
        is_cheapest = objective is Objective.MIN_COST
        spent = cache(lambda servers: gpu_seconds_per_request([_over(servers, column) for column in columns]))
        bounds = []
        for program, site in sites.items():
            usd_s = usd_s_per_request(spent(site.servers_at_least), site, self.market.hardware)
            bound = bound_at(usd_s, demand_per_s, objective, budget)
            bounds.append((program, max(bound, site.usd_per_hour_at_least) if is_cheapest else bound))
        bounds.sort(key=lambda each: each[1] if is_cheapest else -each[1])
        none = math.inf if is_cheapest else 0.0
        return [each for each in bounds if each[1] != none] or bounds[:1]

    def _mean_per_s(self, slice_: DemandSlice) -> float:
        hours = math.fsum(period.hours for period in self.periods)
        served = zip(slice_.demand_per_s, self.periods, strict=True)
        return math.fsum(rate * period.hours for rate, period in served) / hours

    def without_pairs(
        self, allocation: Allocation, pairs: Collection[tuple[str, str]], *, all_of_them: bool = True
    ) -> None:
        """Offer no prefill and decode pools of some services and SKUs any more where an allocation is bought.

        Args:
            allocation: whose place and size of servers count.
            pairs: services and SKUs.
            all_of_them: or only those that do not fit into one instance.
        """
        place = self.market.site_of(allocation)
        for program, site in enumerate(self.market.sites):
            self._without_pairs.update(
                ((program, service, sku), all_of_them)
                for service, sku in pairs
                if site.name == place.name and site.most_gpus.get(sku) == place.most_gpus.get(sku)
            )

    @property
    def pairs_left_out(self) -> tuple[str, ...]:
        """Where no prefill and decode pools are offered any more, a line for each site and SKU."""
        sites = ((self.market.sites[program], sku) for program, _, sku in sorted(self._without_pairs))
        return tuple(dict.fromkeys(_without_pairs_words(site.name, sku, site.networks[sku]) for site, sku in sites))

    def _without_own_pins(self, answer: Allocation) -> Allocation:
        """An answer without the limits that only say over how many servers it was looked for."""
        if self.market.site_of(answer).servers_at_least == 1:
            return answer
        own = {f"resources[{sku}].at_least" for sku in self.market.site_of(answer).places}
        own -= {f"resources[{sku}].at_least" for sku in self.request.limits.pinned}
        return answer.model_copy(update={"constraints": tuple(c for c in answer.constraints if c.field not in own)})

    def _is_spread(self, answer: Allocation) -> bool:
        """True if no single server takes more replicas of a pool with it than may fail."""
        if self.market.site_of(answer).servers_at_least == 1 or not answer.status.has_allocation:
            return True
        columns, skus = self.chosen(answer), self.market.hardware.skus
        counts = [round(answer.units[column.name][0]) * column.replicas for column in columns]
        pools = [
            PackedPool(column.family.sku, column.family.gpus, skus[column.family.sku].node.gpus, count)
            for column, count in zip(columns, counts, strict=True)
        ]
        spares = self.request.limits.spares
        return all(
            count - spares(count) - lost >= round(answer.units[column.name][0]) * column.surviving
            for on_server in self.server_losses(answer, pools)
            for column, count, lost in zip(columns, counts, on_server, strict=True)
            if lost
        )

    def server_losses(self, allocation: Allocation, pools: Sequence[PackedPool]) -> list[tuple[int, ...]]:
        """Replicas of every pool that are lost with a server that an allocation buys (`lost_with_a_server`)."""
        held = ((sku, name, gpus) for sku, options in allocation.bought.items() for name, gpus in options.items())
        return lost_with_a_server(packed_replicas(pools, servers_bought(held, self.market.hardware.skus)))

    def chosen(self, allocation: Allocation) -> list[Column]:
        """The columns an allocation uses, at the size that they have where they are bought.

        Pools that may hand KV caches to one another have a channel in common.
        """
        site = self.market.site_of(allocation)
        return [_placed(column, site) for column in self.columns.chosen(allocation)]

    def gpus(self, allocation: Allocation) -> dict[str, int]:
        """GPUs of an allocation in use at once, by SKU."""
        counts: dict[str, list[float]] = {}
        for column in self.chosen(allocation):
            for sku, gpus in column.gpus.items():
                before = counts.get(sku, [0.0] * len(self.periods))
                counts[sku] = [
                    count + gpus * on for count, on in zip(before, allocation.units[column.name], strict=True)
                ]
        return {sku: round(max(count)) for sku, count in counts.items()}


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


def demand_of(service: Service, workload: Workload, slo: Slo, shift_of: ShiftRule | None = None) -> Demand:
    """The demand by which configurations that serve a model are judged.

    Args:
        service: the model, its formats, and what engines are told to take of one request.
        workload: of it that is to be served.
        slo: its targets.
        shift_of: how far step times are taken to be off their estimates; None: not at all.

    Returns:
        The demand.
    """
    return Demand(
        llm=service.llm,
        precision=service.precision,
        workload=workload,
        slo=slo,
        max_request_tokens=service.max_request_tokens,
        published=service.published,
        shift_of=shift_of,
    )


def search_fleet(
    request: PlanRequest,
    market: Market,
    services: Sequence[Service],
    progress: Progress = lambda _: None,
    shift_of: ShiftRule | None = None,
    corrections: Corrections | None = None,
    given: Sequence[ConfigurationFamily] = (),
) -> FleetSearch:
    """A search with nothing solved yet: slices, and for each the families of configurations that can serve it.

    Args:
        request: what is asked.
        market: what can be bought.
        services: the models served.
        progress: hears of every solve and simulation.
        shift_of: how far step times are taken to be off their estimates; None: not at all.
        corrections: what simulation taught in another plan; None: nothing.
        given: families that serve every slice; none: those of the search space.
    """
    slices = request_slices(request, services)
    families: dict[str, tuple[ConfigurationFamily, ...]] = {}
    capacities = {}
    rejections: dict[tuple[str, Mode], Rejection] = {}
    considered = 0
    for slice_ in slices:
        service = slice_.service
        workload = Workload(arrivals=slice_.workload.open_arrivals, classes=slice_.workload.classes)
        slo = slice_.slo or (service.slo if service.slo.targets else WITHIN_A_DAY)
        demand = demand_of(service, workload, slo, shift_of)
        capacities[slice_.name] = capacity_of(demand)
        if given:
            families[slice_.name] = tuple(given)
            continue
        family_set = find_families(with_rounded_bursts(demand), request.search, market.offers, market.hardware.engines)
        served, borrowed = _measured(family_set.families) if request.search.measured_only else (family_set.families, ())
        families[slice_.name], apart = _joined(served, market)
        considered += family_set.considered
        for rejection in (*family_set.rejections, *borrowed, *apart):
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
    reason = "its step times are not all its own measurements (search.measured_only)"
    return measured, _left_out(families, measured, reason)


def _joined(
    families: Sequence[ConfigurationFamily], market: Market
) -> tuple[tuple[ConfigurationFamily, ...], tuple[Rejection, ...]]:
    """The families whose replicas fit into a server or span such as RDMA joins at some site, and why others do not."""
    skus = market.hardware.skus
    joined = tuple(
        family
        for family in families
        if family.gpus <= skus[family.sku].node.gpus
        or any(site.holds(skus[family.sku], family.gpus) for site in market.sites)
    )
    reason = (
        "replicas that would do span servers, and none of the providers asked for states RDMA between these as fast as "
        "the reference server's (prices.rdma_gbps_per_gpu gives it)"
    )
    return joined, _left_out(families, joined, reason)


def _left_out(
    families: Sequence[ConfigurationFamily], kept: Sequence[ConfigurationFamily], reason: str
) -> tuple[Rejection, ...]:
    """SKUs and modes of which no family is kept."""
    left = {(family.sku, family.mode) for family in families} - {(family.sku, family.mode) for family in kept}
    return tuple(Rejection(sku, mode, f"{sku}: {reason}", math.inf) for sku, mode in sorted(left))


def _groups(request: PlanRequest, market: Market) -> dict[str, str]:
    """By SKU, what it may share KV caches with wherever it is bought: kernels of different vendors lay them out apart.

    With `SearchSpace.pair_skus` off every SKU stands by itself. `_placed` adds the place.
    """
    return {offer.sku.id: offer.sku.vendor if request.search.pair_skus else offer.sku.id for offer in market.offers}


def _without_pairs_words(place: str, sku: str, network: InstanceNetwork) -> str:
    """Why a site sells no pairs of a SKU, and what to do."""
    if network.bytes_per_s_per_gpu is None:
        said = f"{network.name} of a rate that is not stated" if network.name else "not stated"
        return (
            f"pairs of {sku} in several instances are not bought at {place}: the network between these is {said} "
            "(prices.rdma_gbps_per_gpu gives it); plan with search.modes=[mixed] or another prices.provider"
        )
    return (
        f"pairs of {sku} at {place} miss a target over the network between instances there ({network.name}, "
        f"{significant(network.bytes_per_s_per_gpu / 1e9)} GB/s of a GPU); plan with search.modes=[mixed] or another "
        "prices.provider"
    )


def _placed(column: Column, site: SiteSupply) -> Column:
    """A column whose channel says where it is bought: KV caches do not travel between places.

    Where nobody says what lies between instances, they stay in one: with GPUs of one SKU.
    """
    column = _over(site.servers_at_least, column)
    if column.is_mixed:
        return column
    sku = column.family.sku
    alone = f" {sku}" if is_unstated(site.networks.get(sku)) else ""
    return replace(column, channel=f"{column.channel}{alone} at {site.places[sku]}")


def _over(servers: int, column: Column) -> Column:
    """A column that is spread over so many servers at least."""
    return column if column.servers == servers else replace(column, servers=servers)
