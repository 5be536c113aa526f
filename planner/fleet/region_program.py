"""What regions carry at a distance, and the least cost of serving areas of users from them.

In: a request with `areas`, and what is sold where. Out: by region and class of distance, the rate [1/s] of every area
that it serves in every hour of UTC, and the cost [USD/h].

Pairs of area and region whose distances are alike to `DISTANCE_STEP_S`, rounded up, are of one *class*:
how much a pool carries depends on the threshold that is left, and not on where it stands or what it costs. Units are
pools of mixed replicas of one SKU in powers of two at a region and for a class, slices are areas, periods the hours of
a day, resources the GPUs of a region, bought for each class; a unit has rates for the areas no further than its class,
and costs what sending its answers would if it were full (`Routes` have what is sent). Shares are continuous:

    least sum over hours and regions of the cost of GPUs    so that every area is served in every hour

by `planner.optimizer`, to `COARSE_GAP` or as far as its work goes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from hardware_db import HardwareDb, ProviderRegion, RegionDistance, regions_in
from planner.core import FloatArray, Metric
from planner.fleet.columns import Column, SliceRate, unit_of
from planner.fleet.confidence import deviations_of, slow_rule
from planner.fleet.market import market_of
from planner.fleet.program import RELATIVE_GAP, demand_of
from planner.fleet.refinement import COARSE_GAP
from planner.fleet.simulation import requests_to_simulate
from planner.fleet.slices import periods_of
from planner.fleet.types import PlanRequest, Progress
from planner.optimizer import Allocation, FleetProblem, Objective, Purchase, Resource, Slice, Unit, solve
from planner.search import Mode, capacity_of, find_families, with_rounded_bursts
from planner.serving import MOST_REPLICAS, Deployment, Pool, evaluate
from planner.simulator import simulate
from planner.supply import FleetLimits, Site, SiteSupply, resource_use
from planner.traffic import BYTES_PER_TOKEN, HOURS, DemandProfile, utc_factors
from planner.workload import LatencyDistribution, LatencyTarget, Slo, Workload

DISTANCE_STEP_S = 0.05
"""Distances that differ by less are of one class [s]. A choice: finer makes more pools to evaluate and saves little."""
LONGEST_TTFT_S = 60.0
"""Threshold above which no pool is looked for where the least TTFT is asked [s]. A choice."""
WORK = 1e8
"""Of a solve (`planner.optimizer.solve`): half a minute of one core at most. A choice: of three areas in three regions
where reserved GPUs bind all hours, a fifth of it left 30 % above what was proved."""
MS = 1e-3
"""Seconds of a millisecond."""

DistanceClass = tuple[int, ...]
"""Distance by target on TTFT or E2E, in `DISTANCE_STEP_S`, rounded up."""


@dataclass(frozen=True)
class Place:
    """A region in which GPUs of the search space are sold.

    Attributes:
        site: provider and region.
        supply: what is sold there.
        classes: by area that may be served from here and whose targets are longer than the way.
        out_usd: price of sending an answer to its user [USD].
    """

    site: Site
    supply: SiteSupply
    classes: Mapping[str, DistanceClass]
    out_usd: float = 0.0

    def covers(self, other: Place) -> bool:
        """True if it serves every area of another from no further, and sells what that does for no more."""
        if self.out_usd > other.out_usd or any(
            area not in self.classes or not _within(self.classes[area], own) for area, own in other.classes.items()
        ):
            return False
        mine, most = {one.name: one for one in self.supply.supply.resources}, self.supply.most_gpus
        return all(
            one.name in mine
            and most.get(one.name, math.inf) >= other.supply.most_gpus.get(one.name, math.inf)
            and mine[one.name].at_most is None
            and all(
                any(
                    own.committed == sold.committed
                    and own.usd_per_hour / own.usable_share <= sold.usd_per_hour / sold.usable_share
                    and sold.block % own.block == 0
                    and own.at_most is None
                    for own in mine[one.name].purchases
                )
                for sold in one.purchases
            )
            for one in other.supply.supply.resources
        )


def uncovered(places: Sequence[Place]) -> list[Place]:
    """Those that no other covers; of two that cover each other the first."""
    kept: list[Place] = []
    for place in places:
        if not any(other.covers(place) for other in kept):
            kept = [other for other in kept if not place.covers(other)] + [place]
    return kept


@dataclass(frozen=True)
class Routes:
    """What the program routes where: by region and class, by area, the rate in every hour [1/s], shape (24,).

    The cost is that of GPUs and of transfer out; of the program, as if all pools were full.
    """

    rates_per_s: Mapping[tuple[Site, DistanceClass], Mapping[str, FloatArray]]
    usd_per_hour: float
    program_usd_per_hour: float

    @classmethod
    def together(cls, parts: Sequence[Routes]) -> Routes:
        """Of different areas, with nothing in common."""
        rates: dict[tuple[Site, DistanceClass], dict[str, FloatArray]] = {}
        for part in parts:
            for key, by_area in part.rates_per_s.items():
                rates.setdefault(key, {}).update(by_area)
        costs = ((part.usd_per_hour, part.program_usd_per_hour) for part in parts)
        return cls(rates, *map(math.fsum, zip(*costs, strict=True)))

    @property
    def sites(self) -> list[Site]:
        """Regions, the least used first."""
        used: dict[Site, float] = {}
        for (site, _), by_area in self.rates_per_s.items():
            used[site] = used.get(site, 0.0) + math.fsum(float(rates.sum()) for rates in by_area.values())
        return sorted(used, key=lambda site: (used[site], site.name))

    def share(self, site: Site, area: str, world: World) -> float:
        """Of an area's requests of a day, that a region serves."""
        served = [rates[area] for (where, _), rates in self.rates_per_s.items() if where == site and area in rates]
        return float(np.sum(served) / world.rates_per_s[area].sum())


@dataclass(frozen=True)
class Kept:
    """What regions serve in an hour.

    Attributes:
        shares: by area, of its requests.
        pools: that serve them, each with its class and the rate of every area routed to it [1/s].
    """

    shares: Mapping[str, float]
    pools: tuple[tuple[DistanceClass, Pool, Mapping[str, float]], ...] = ()

    @property
    def is_all(self) -> bool:
        """True if everybody is served."""
        return min(self.shares.values()) >= 1.0 - COARSE_GAP


def _within(one: DistanceClass, other: DistanceClass) -> bool:
    return all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


@dataclass(frozen=True, eq=False)
class World:
    """The question with what is learnt of it: how much pools of each class carry."""

    request: PlanRequest
    hardware: HardwareDb
    progress: Progress
    _pools: dict[DistanceClass, list[Column]] = field(init=False, default_factory=dict)

    @cached_property
    def rates_per_s(self) -> dict[str, FloatArray]:
        """Of each area by hour of UTC [1/s]."""
        offsets = {area.name: area.utc_offset_hours for area in self.hardware.areas}
        return {
            name: self.request.growth * area.rate_per_s * np.array(utc_factors(area.hours, offsets[name]))
            for name, area in self.request.areas.items()
        }

    @property
    def peak_per_s(self) -> float:
        """Of all areas together [1/s]."""
        return float(np.sum(list(self.rates_per_s.values()), axis=0).max())

    def workload(self, rates_per_s: Mapping[str, float], of_per_s: float) -> Workload:
        """The requests of some areas: as those of all are, or of areas with lengths of their own a class of each.

        Args:
            rates_per_s: of each area [1/s].
            of_per_s: of which they are part [1/s].
        """
        arrivals, total_per_s = self.request.workload.open_arrivals, math.fsum(rates_per_s.values())
        classes = self.request.workload.classes
        if any(self.request.areas[area].lengths for area in rates_per_s):
            known = {kind.name: kind for kind in classes}
            classes = tuple(
                known[area].model_copy(update={"share": rate / total_per_s}) for area, rate in rates_per_s.items()
            )
        part = arrivals.split(min(1.0, total_per_s / of_per_s))
        return Workload(arrivals=part.at_rate(total_per_s), classes=classes)

    @cached_property
    def shared_targets(self) -> tuple[LatencyTarget, ...]:
        """Targets to which the way counts."""
        return tuple(target for target in self.request.slo.targets if target.metric in (Metric.TTFT, Metric.E2E))

    def target_at(self, area: str, target: LatencyTarget) -> LatencyTarget:
        """A target as it holds for the users of an area."""
        own_s = self.request.areas[area].ttft_s if target.metric is Metric.TTFT else None
        return target if own_s is None else target.model_copy(update={"threshold_s": own_s})

    def time_to(self, area: str, distance: RegionDistance) -> LatencyDistribution:
        """On the way from an area to a region."""
        return self.request.areas[area].network_time(distance.round_trips_s[area])

    def delays_s(self, area: str, distance: RegionDistance) -> tuple[float, ...]:
        """By target to which the way counts, its quantile, and by how much the area's own is shorter [s]."""
        time = self.time_to(area, distance)
        return tuple(
            time.quantile_s(target.percentile) + target.threshold_s - self.target_at(area, target).threshold_s
            for target in self.shared_targets
        )

    @cached_property
    def known(self) -> dict[tuple[str, str], ProviderRegion]:
        """Facts about regions by provider and name."""
        return {(one.provider, one.region): one for one in self.hardware.regions}

    def out_usd(self, site: Site) -> float:
        """Price of sending an answer to its user [USD]: where no price of a region is known, by the dearest known."""
        own = self.known[site.provider, site.region].out_usd_per_gb
        listed = max(one.out_usd_per_gb or 0.0 for one in self.hardware.regions)
        size_gb = BYTES_PER_TOKEN * self.request.workload.lengths.mean_output / 1e9
        return size_gb * (listed if own is None else own)

    @cached_property
    def work_of_move(self) -> float:
        """Requests to which the prompts come that are computed again when all sessions of one request/s move [1].

        A session moves between two of its requests, as likely in one gap as in the next (Little's theorem: gaps in
        progress = rate of sessions x gap). Its next prompt, but for the system prompt, is new there; it counts as so
        many requests as have the same new tokens. A gap is a think time and an answer as long as the targets allow,
        at most an hour.
        """
        slo_s = {target.metric: target.threshold_s for target in self.request.slo.targets}
        work = 0.0
        for kind in self.request.workload.classes:
            talk = kind.sessions
            if talk is None or not any(self.request.search.prefix_cache):
                continue
            token_s = slo_s.get(Metric.TPOT, math.inf)
            answer_s = slo_s.get(Metric.E2E, slo_s.get(Metric.TTFT, 0.0) + token_s * kind.lengths.mean_output)
            gap_s = min(talk.think_time_s + answer_s, 3600.0)
            later = talk.requests.weights[1:]
            again = float(np.sum(later * (talk.requests.inputs[1:] - talk.system_prompt_tokens)))
            first = (talk.first_turn or talk.per_turn).mean_input
            work += kind.share * gap_s * again / (first + talk.per_turn.mean_input * float(later.sum()))
        return work

    def moved_per_s(self, routed: Mapping[str, FloatArray]) -> FloatArray:
        """What sessions that come to a region at the turn of an hour add to its requests in it [1/s], shape (24,).

        Args:
            routed: to the region, by area.
        """
        if self.work_of_move == 0.0:
            return np.zeros(HOURS)
        come = np.zeros(HOURS)
        for area, rates in routed.items():
            busy = np.flatnonzero(self.rates_per_s[area])
            last = busy[np.searchsorted(busy, np.arange(HOURS), side="right") - 1]  # nobody moves while nobody asks
            own = (rates[last] / self.rates_per_s[area][last]).round(9)  # no solver's dust
            come += self.rates_per_s[area] * np.maximum(0.0, np.diff(own, prepend=own[-1]))
        return self.work_of_move / 3600.0 * come

    @cached_property
    def distances(self) -> dict[Site, RegionDistance]:
        """Of regions that may be considered."""
        asked, priced = self.request.prices, {price.provider for price in self.hardware.prices}
        return {
            Site(provider=one.provider, region=one.region): one
            for one in self.hardware.distances
            if one.provider in priced
            and asked.provider in (None, one.provider)
            and (asked.region is None or (one.provider, one.region) in regions_in(self.hardware, asked.region))
        }

    def request_at(self, site: Site) -> PlanRequest:
        """The request for one region, with PUE and CO2 of its grid where the request itself says neither."""
        prices = self.request.prices.model_copy(update={"provider": site.provider, "region": site.region})
        place, limits = self.known[site.provider, site.region], self.request.limits
        facts = {"pue": place.pue, "co2_kg_per_kwh": place.kg_co2_per_kwh}
        new = {
            name: fact
            for name, fact in facts.items()
            if fact is not None and getattr(limits, name) == FleetLimits.model_fields[name].default
        }
        changes = {"prices": prices, "limits": limits.model_copy(update=new), "areas": {}, "profile": None}
        return self.request.model_copy(update=changes)

    @cached_property
    def places(self) -> list[Place]:
        """Regions that sell a SKU of the search space, one for each size of instances there."""
        places = []
        for site, distance in self.distances.items():
            market = market_of(self.request_at(site), self.hardware, {})
            classes = {
                area: tuple(math.ceil(delay_s / DISTANCE_STEP_S) for delay_s in self.delays_s(area, distance))
                for area in self.request.areas
                if self.may_serve(site, area)
            }
            near = {area: own for area, own in classes.items() if self.slo_left(self.thresholds_s(own))}
            places += [
                Place(site, supply, near, self.out_usd(site))
                for supply in market.sites
                if supply.supply.cheapest and not supply.is_alone and supply.servers_at_least == 1
            ]
        return places

    @property
    def has_quotas(self) -> bool:
        """True if there are so many GPUs of some SKU at most in a region."""
        return any(resource.at_most is not None for resource in _resources(self.places))

    def may_serve(self, site: Site, area: str) -> bool:
        """True if the requests of an area may be served in a region."""
        allowed = self.request.areas[area].residency
        names = (site.provider, site.region)
        return not allowed or any(name == site.provider or names in regions_in(self.hardware, name) for name in allowed)

    def thresholds_s(self, own: DistanceClass) -> tuple[float, ...]:
        """What a class takes from every target to which the way counts [s]."""
        return tuple(steps * DISTANCE_STEP_S for steps in own)

    def slo_left(self, delays_s: Sequence[float]) -> Slo | None:
        """The targets in the region; None where the way takes all of one."""
        taken = dict(zip(self.shared_targets, delays_s, strict=True))
        left = [
            target.model_copy(update={"threshold_s": target.threshold_s - taken[target]}) if target in taken else target
            for target in self.request.slo.targets
            if target not in taken or target.threshold_s > taken[target]
        ]
        is_whole = len(left) == len(self.request.slo.targets)
        return self.request.slo.model_copy(update={"targets": tuple(left)}) if is_whole else None

    # How much pools carry

    def pools(self, own: DistanceClass) -> list[Column]:
        """Pools of a class, with the rate that each carries of any area; see `_pools_for`."""
        if own not in self._pools:
            slo = self.slo_left(self.thresholds_s(own))
            self.progress(
                "rates of pools " + ", ".join(f"{1000 * delay_s:.0f} ms away" for delay_s in self.thresholds_s(own))
            )
            self._pools[own] = list(self._pools_for(slo)) if slo is not None else []
        return self._pools[own]

    def _pools_for(self, slo: Slo) -> Iterator[Column]:
        """Of each SKU pools of the configuration that carries most per GPU, in powers of two up to the whole demand.

        Their rates are of any area, or by area where these have lengths of their own.

        It is chosen at the size that carries an area of mean peak, by bounds, best first, until none can be better.
        """
        request, peak_per_s = self.request, self.peak_per_s
        market = market_of(request.model_copy(update={"profile": None}), self.hardware, {})
        service = request.main.model_copy(update={"slo": slo})
        shift_of = slow_rule(deviations_of(request.confidence), request.measured_steps)
        workload = Workload(
            arrivals=request.workload.open_arrivals.at_rate(peak_per_s), classes=request.workload.classes
        )
        demand = demand_of(service, workload, slo, shift_of)
        capacity = capacity_of(demand)
        peaks_per_s = {area: float(rates.max()) for area, rates in self.rates_per_s.items()}
        each = {
            area: capacity_of(demand_of(service, self.workload({area: peaks_per_s[area]}, peak_per_s), slo, shift_of))
            for area, own in request.areas.items()
            if own.lengths is not None
        } or {"": capacity}
        most_per_s = peak_per_s if "" in each else math.inf  # rates by area are compared with one another
        space = request.search.model_copy(update={"modes": (Mode.MIXED,)})
        found = find_families(with_rounded_bursts(demand), space, market.offers, self.hardware.engines).families
        usual_per_s = float(np.mean(list(peaks_per_s.values())))
        for sku in dict.fromkeys(family.sku for family in found):
            sized = []
            for family in (one for one in found if one.sku == sku):
                size = 1
                while capacity.bound_per_s(family, size) < usual_per_s and size < MOST_REPLICAS:
                    size *= 2
                sized.append((capacity.bound_per_s(family, size) / family.pool_gpus(size), size, family))
            best, most = None, 0.0
            for bound, size, family in sorted(sized, key=lambda each: -each[0]):
                if bound <= most:
                    break
                chosen = capacity.best(family, size, peak_per_s)
                if chosen.member is not None and chosen.rate_per_s / family.pool_gpus(size) > most:
                    best, most = (family, chosen.member), chosen.rate_per_s / family.pool_gpus(size)
            if best is None:
                continue
            family, member = best
            size, least_per_s = 1, 0.0
            while least_per_s < peak_per_s and size <= MOST_REPLICAS:
                rates_per_s = {area: own.rate_per_s(member, size, most_per_s) for area, own in each.items()}
                least_per_s = min(rates_per_s.values())
                rates = {area: SliceRate(rate, is_exact=True) for area, rate in rates_per_s.items() if rate > 0.0}
                if rates:
                    yield Column(service.name, family, size, request.limits, member, rates)
                size *= 2

    def work(self, own: DistanceClass, rates_per_s: Mapping[str, float]) -> dict[str, float]:
        """Work of a request of each area, over that of their mean: the fewer of them a pool carries, the more.

        Args:
            own: class of the pools.
            rates_per_s: of each area [1/s].
        """
        rates = next(
            column.rates
            for column in reversed(self.pools(own))
            if "" in column.rates or rates_per_s.keys() <= column.rates.keys()
        )
        each = {area: 1.0 / rates[area if area in rates else ""].rate_per_s for area in rates_per_s}
        mean = float(np.average(list(each.values()), weights=list(rates_per_s.values())))
        return {area: one / mean for area, one in each.items()}

    # The program

    def units(
        self,
        places: Sequence[Place],
        areas: Collection[str],
        only: Mapping[tuple[Site, DistanceClass], Collection[str]],
        share: float = 1.0,
    ) -> dict[str, tuple[Unit, Place, DistanceClass, Column]]:
        """Pools at regions for classes, by name, with the rates of the areas that they serve.

        Args:
            places: regions.
            areas: that are to be served.
            only: region and class of the pools that there may be, with the areas that they may serve; empty: all.
            share: of their rates that count.
        """
        request, units = self.request, dict[str, tuple[Unit, Place, DistanceClass, Column]]()
        profile = request.profile or DemandProfile(factors=(1.0,))
        for number, place in enumerate(places):
            classes = {area: own for area, own in place.classes.items() if area in areas}
            wanted = [own for site, own in only if site == place.site] if only else dict.fromkeys(classes.values())
            for own in wanted:
                here = only.get((place.site, own), areas)
                served = [area for area, other in classes.items() if area in here and _within(other, own)]
                if not served:
                    continue
                for column in self.pools(own):
                    sku = self.hardware.skus[column.family.sku]
                    if not place.supply.holds(sku, column.family.gpus):
                        continue
                    takes = resource_use(column.gpus, self.hardware.skus, request.limits, request.prices)
                    usd = place.supply.supply.cheapest[sku.id] * sum(column.gpus.values())
                    bare = unit_of(column, share, takes, profile.cold_start_s / 3600.0 * usd, not profile.autoscale)
                    name = f"{number} {'-'.join(map(str, own))} {bare.name}"
                    rates_per_s = {area: bare.rates_per_s.get(area, bare.rates_per_s.get("", 0.0)) for area in served}
                    if not any(rates_per_s.values()):
                        continue
                    unit = bare.model_copy(
                        update={
                            "name": name,
                            "rates_per_s": {area: rate for area, rate in rates_per_s.items() if rate > 0.0},
                            "takes": {f"{number} {resource}": count for resource, count in takes.items()},
                            "usd_per_hour": bare.usd_per_hour + 3600.0 * place.out_usd * max(rates_per_s.values()),
                            "marks": (),
                        }
                    )
                    units[name] = (unit, place, own, column)
        return units

    def routes(
        self,
        places: Sequence[Place],
        areas: Collection[str],
        only: Mapping[tuple[Site, DistanceClass], Collection[str]] = MappingProxyType({}),
        most_usd_per_hour: float = math.inf,
    ) -> Routes | None:
        """The least cost of serving some areas from some regions; None where it cannot be done.

        Args:
            places: regions.
            areas: that are to be served.
            only: see `units`.
            most_usd_per_hour: cost of the program above which no answer is looked for [USD/h].
        """
        kept = uncovered(places)
        units = self.units(kept, areas, only)
        demand = {area: self.rates_per_s[area] for area in areas}
        problem = FleetProblem(
            slices=tuple(Slice(name=area, demand_per_s=tuple(rates)) for area, rates in demand.items()),
            units=tuple(
                unit.model_copy(
                    update={"takes": {**unit.takes, **{_bought(name, own): n for name, n in unit.takes.items()}}}
                )
                for unit, _, own, _ in units.values()
            ),
            resources=tuple(_resources(kept)),
            periods=periods_of(DemandProfile(factors=(1.0,) * HOURS)),
        )
        self.progress(f"solving over {len(kept)} regions")
        answer = solve(
            problem,
            Objective.MIN_COST,
            relative_gap=COARSE_GAP,
            work=WORK,
            most_usd_per_hour=most_usd_per_hour,
            solver=self.request.search.solver,
        )
        return _routes_of(answer, units) if answer.status.has_allocation else None

    def kept(self, places: Sequence[Place], held: Mapping[Site, Mapping[str, float]], share: float = 1.0) -> Kept:
        """What regions serve with the GPUs they hold, in the hour in which they serve least in all.

        Args:
            places: regions.
            held: of each, GPUs by SKU.
            share: of the rates of pools that counts.
        """
        places = _whole(places)
        offered: dict[tuple[str, ...], dict[str, tuple[Unit, Place, DistanceClass, Column]]] = {}
        worst, found = (math.inf, 0.0), Kept(dict.fromkeys(self.request.areas, 0.0))
        resources = tuple(
            Resource(name=f"{number} {sku}", at_most=held[place.site].get(sku, 0.0))
            for number, place in enumerate(places)
            for sku in place.supply.supply.cheapest
        )
        for hour in range(HOURS):
            demand = {area: float(rates[hour]) for area, rates in self.rates_per_s.items() if rates[hour] > 0.0}
            if not demand:
                continue
            awake = tuple(demand)
            units = offered[awake] = offered.get(awake) or self.units(places, awake, {}, share)
            if not units:
                return found
            problem = FleetProblem(
                slices=tuple(Slice(name=area, demand_per_s=(rate,)) for area, rate in demand.items()),
                units=tuple(unit for unit, *_ in units.values()),
                resources=resources,
            )
            answer = solve(problem, Objective.MAX_RATE, relative_gap=RELATIVE_GAP)
            asked = math.fsum(demand.values())
            served = (round(min(1.0, answer.rate_per_s / asked), 6), -asked)  # of hours alike the busiest
            if served < worst:
                worst, found = served, Kept(_shares_of(answer, demand, self.request.areas), _pools_of(answer, units))
        return found

    def spare_usd_per_hour(
        self, places: Sequence[Place], held: Mapping[Site, Mapping[str, float]], share: float = 1.0
    ) -> float:
        """Least cost of GPUs held all day besides those that regions hold, so that they serve everybody [USD/h].

        Args:
            places: regions.
            held: of each, GPUs by SKU.
            share: of the rates of pools that counts.

        Returns:
            Infinite where they cannot.
        """
        places = _whole(places)
        resources = tuple(
            Resource(
                name=f"{number} {sku}",
                purchases=(
                    Purchase(name="held", usd_per_hour=0, committed=True, at_most=held.get(place.site, {}).get(sku, 0)),
                    Purchase(name="spare", usd_per_hour=usd, committed=True),
                ),
            )
            for number, place in enumerate(places)
            for sku, usd in place.supply.supply.cheapest.items()
        )
        free = {"usd_per_hour": 0.0, "usd_per_start": 0.0}
        problem = FleetProblem(
            slices=tuple(Slice(name=area, demand_per_s=tuple(rates)) for area, rates in self.rates_per_s.items()),
            units=tuple(
                unit.model_copy(update=free) for unit, *_ in self.units(places, self.request.areas, {}, share).values()
            ),
            resources=resources,
            periods=periods_of(DemandProfile(factors=(1.0,) * HOURS)),
        )
        answer = solve(problem, Objective.MIN_COST, relative_gap=COARSE_GAP)
        return answer.cost_usd_per_hour if answer.status.has_allocation else math.inf

    def holds(self, kept: Kept) -> bool:
        """True if the pools that serve an hour hold every target of their class, simulated at what they are sent."""
        request = self.request
        for own, pool, rates_per_s in kept.pools:
            self.progress("simulating the loss of a region")
            workload = self.workload(rates_per_s, self.peak_per_s)
            deployment, slo = Deployment(pools=(pool,)), self.slo_left(self.thresholds_s(own))
            requests = requests_to_simulate(request.simulated_requests, evaluate(deployment, workload))
            found = simulate(deployment, workload, seed=request.seed, requests=requests)
            targets = slo.targets if slo is not None else ()
            if not found.stable or any(found.latency_s(target) > target.threshold_s for target in targets):
                return False
        return True

    def least_ttft_s(self, place: int) -> float:
        """Least threshold on a TTFT at which some pool carries anything, to 1 %; infinite above `LONGEST_TTFT_S`.

        Args:
            place: of the target among those to which the way counts.
        """

        def holds(threshold_s: float) -> bool:
            targets = [
                target.model_copy(update={"threshold_s": threshold_s})
                if target == self.shared_targets[place]
                else target
                for target in self.request.slo.targets
            ]
            slo = self.request.slo.model_copy(update={"targets": tuple(targets)})
            return next(self._pools_for(slo), None) is not None

        low, high = MS, LONGEST_TTFT_S
        if not holds(high):
            return math.inf
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high


def _bought(name: str, own: DistanceClass) -> str:
    """Name of a resource of a region as it is bought for one of its fleets."""
    return f"{name} for {own}"


def _resources(places: Sequence[Place]) -> Iterator[Resource]:
    """What there is of each resource of a region, and the ways to buy it for each of its fleets.

    Fleets of a region are planned by themselves, so that what is reserved for one serves no other.
    """
    for number, place in enumerate(places):
        for each in place.supply.supply.resources:
            name, sold = f"{number} {each.name}", [one.at_most for one in each.purchases]
            most = [each.at_most, math.fsum(one or 0.0 for one in sold) if sold and None not in sold else None]
            yield Resource(name=name, at_most=min((one for one in most if one is not None), default=None))
            for own in dict.fromkeys(place.classes.values()):
                yield each.model_copy(update={"name": _bought(name, own), "group": "", "at_most": None})


def _whole(places: Sequence[Place]) -> list[Place]:
    """Each region once, with its largest instances."""
    return list({place.site: place for place in places}.values())


def _shares_of(answer: Allocation, demand: Mapping[str, float], areas: Collection[str]) -> dict[str, float]:
    """By area, of what is asked for in the only period the share that is served; 1 where nothing is asked for."""
    routed = {
        area: math.fsum(served.get(area, (0.0,))[0] for served in answer.routed_per_s.values()) for area in demand
    }
    return {area: min(1.0, routed[area] / demand[area]) if area in demand else 1.0 for area in areas}


def _pools_of(
    answer: Allocation, units: Mapping[str, tuple[Unit, Place, DistanceClass, Column]]
) -> tuple[tuple[DistanceClass, Pool, Mapping[str, float]], ...]:
    """Class, pool and rates of what serves the only period: pools of one class, region and SKU are one."""
    pools: dict[tuple[Site, DistanceClass, str], tuple[DistanceClass, Pool, Mapping[str, float]]] = {}
    for name, (count, *_) in answer.units.items():
        _, place, own, column = units[name]
        assert column.member is not None  # as `pools` makes them
        key, routed = (place.site, own, column.family.sku), answer.routed_per_s.get(name, {})
        rates_per_s = {area: rate for area, (rate, *_) in routed.items() if rate > 0.0}
        replicas = count * column.replicas
        if key in pools:
            _, pool, before = pools[key]
            replicas += pool.replicas
            rates_per_s = {
                area: before.get(area, 0.0) + rates_per_s.get(area, 0.0) for area in {**before, **rates_per_s}
            }
        pools[key] = (own, column.member.pool(replicas), rates_per_s)
    return tuple(pools.values())


def _routes_of(answer: Allocation, units: Mapping[str, tuple[Unit, Place, DistanceClass, Column]]) -> Routes:
    rates: dict[tuple[Site, DistanceClass], dict[str, FloatArray]] = {}
    for name, by_area in answer.routed_per_s.items():
        _, place, own, _ = units[name]
        fleet = rates.setdefault((place.site, own), {})
        for area, routed in by_area.items():
            if max(routed) > 0.0:
                fleet[area] = fleet.get(area, np.zeros(HOURS)) + np.array(routed)
    usd = answer.cost_usd_per_hour
    for name, counts in answer.units.items():  # what is sent, in place of what full pools would send
        unit, place, *_ = units[name]
        sent_per_s = np.sum(list(answer.routed_per_s.get(name, {}).values()), axis=0)
        full_per_s = max(unit.rates_per_s.values()) * np.array(counts)
        usd += 3600.0 * place.out_usd * float(np.mean(sent_per_s - full_per_s))
    return Routes({key: by_area for key, by_area in rates.items() if by_area}, usd, answer.cost_usd_per_hour)
