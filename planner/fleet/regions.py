"""`plan_regions(request) -> RegionsPlan`: in which regions to stand, with which GPUs, and who is served from where.

In: a `PlanRequest` with `areas` of users, each with its rate by hour of its own clock, and targets that hold at the
user. Out: a fleet and its `Plan` for every region, the share of each area that it serves in every hour of UTC, what
the users of each area see, and what other ways of standing would cost.

**Distance.** What a request spends on the way (`planner.traffic.network_time`, N) and in the pool (S) is independent,
so that the latency at the user is their convolution. A pool that holds quantile_q(S) <= T - quantile_q(N) is taken to
hold quantile_q(N + S) <= T; the answer carries the quantile of the convolution itself (`UserLatency`), which is shorter
wherever the two are not long at once. A target on TTFT or E2E at T thus becomes one at T - quantile_q(N) in the region;
TPOT does not change.

**Program.** `planner.fleet.region_program` routes areas to regions for the least cost. Regions, then routes of less
than `LEAST_SHARE` of an area, then fleets in a region are given up, the least used first, as long as the cost stays
within `SearchSpace.simplicity` of the least. Then each fleet is planned by itself (`planner.fleet.plan`), with what the
program routes to it and the distance of the furthest area that it serves. The cost of the plan is that of these plans;
other ways of standing are compared by what the program says of each, and of this one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hardware_db import HardwareDb, area_called, area_names
from planner.core import FloatArray, InputError, Metric, UnknownNameError, UnsupportedFeatureError
from planner.fleet.planning import hardware_for, plan
from planner.fleet.region_program import DistanceClass, Kept, Routes, World, uncovered
from planner.fleet.types import Plan, PlanRequest, Progress
from planner.optimizer import Objective
from planner.supply import FleetLimits, Site
from planner.traffic import BYTES_PER_TOKEN, HOURS, DemandProfile
from planner.workload import LatencyDistribution, LatencyTarget, RecordedArrivals

LEAST_SHARE = 0.1
"""Of an area's requests, below which a region does not serve it where it can do without. A choice: simpler routes."""
RELIEF = (1.0, 0.95, 0.9)
"""Shares of their sustainable rates that pools are tried at after the loss of a region. A choice: simulations of a pool
at all that it sustains fall on either side."""
DEGRADED = 2.0
"""Times as long that TTFT and E2E may be while a region is lost. A choice: waits that users notice and bear."""
REFUSED = ("budget_usd_per_hour", "gpus", "power_kw", "co2_kg_per_hour", "skus_at_most", "pinned", "existing")
"""Limits on a whole fleet, which are not shared out between regions."""


# --- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RegionFleet:
    """A fleet in one region.

    Attributes:
        site: provider and region.
        plan: of what is routed to it.
        shares: by area, the share of its requests that is served here, in each hour of UTC, shape (24,).
        out_usd_per_hour: for sending answers to users [USD/h].
        moved: of its work of a day, prompts of sessions that come from another region [1].
        power_kw: of its GPUs at their TDP, times the PUE, mean over the day [kW]; None where no TDP is published.
    """

    site: Site
    plan: Plan
    shares: Mapping[str, tuple[float, ...]]
    out_usd_per_hour: float = 0.0
    moved: float = 0.0
    power_kw: float | None = None

    @property
    def gpus_by_hour(self) -> dict[str, FloatArray]:
        """GPUs held by SKU in each hour of UTC, shape (24,)."""
        by_hour = [period.gpus for period in self.plan.schedule] or [self.plan.gpus] * HOURS
        skus = sorted({sku for gpus in by_hour for sku in gpus})
        return {sku: np.array([float(gpus.get(sku, 0.0)) for gpus in by_hour]) for sku in skus}

    @property
    def co2_kg_per_hour(self) -> float | None:
        """Emissions of that power [kg CO2e/h]; None where those of the grid are not known."""
        grid = self.plan.request.limits.co2_kg_per_kwh
        return None if grid is None or self.power_kw is None else grid * self.power_kw

    @property
    def usd_per_hour(self) -> float:
        """Cost of GPUs and of transfer out [USD/h]; infinite where there is no fleet."""
        return self.plan.cost.usd_per_hour + self.out_usd_per_hour if self.plan.cost is not None else math.inf


@dataclass(frozen=True)
class UserLatency:
    """A target on TTFT or E2E as the users of an area see it who are served from one region, in its busiest hour.

    Attributes:
        area: where they are.
        site: name of the region.
        share: of the area's requests of a day.
        target: at the user.
        network_s: that the way adds at its percentile [s].
        pool_s: at its percentile in the region [s].
    """

    area: str
    site: str
    share: float
    target: LatencyTarget
    network_s: float
    pool_s: float

    @property
    def at_user_s(self) -> float:
        """At its percentile at the user [s]."""
        return self.network_s + self.pool_s

    @property
    def met(self) -> bool:
        """True if the target holds."""
        return self.at_user_s <= self.target.threshold_s


@dataclass(frozen=True)
class Standing:
    """A way of standing, and its least cost by the program of all regions, which plans none of them closer.

    Attributes:
        name: ``this plan``, ``one region`` for all areas, ``every area for itself``; ``any regions``, however many;
            ``no distance``, as if no request took time on its way: less by what pools kept apart by distance cost.
        sites: names of its regions; empty where there is none.
        usd_per_hour: cost [USD/h]; infinite where the targets cannot hold.
    """

    name: str
    sites: tuple[str, ...]
    usd_per_hour: float


@dataclass(frozen=True)
class RegionLoss:
    """What is left when all GPUs of a region are lost, and the others grow to what they hold in their largest hour.

    Attributes:
        site: name of the region.
        kept: by area, the share of its requests that is served within every target, in the hour when the regions that
            are left serve the least share of all.
        kept_degraded: the same where TTFT and E2E may be `DEGRADED` times as long.
        more_usd_per_hour: what the least cost of standing elsewhere is above that of the plan, by the program [USD/h];
            infinite where the targets hold nowhere else: what the region is worth.
        spare_usd_per_hour: of GPUs held all day besides, with which everybody is served within every target, by the
            program; 0 where they are so as it is, infinite where they cannot be [USD/h].
        survives: everybody is still served within every target, in simulation too where it was asked for.
        survives_degraded: the same where TTFT and E2E may be `DEGRADED` times as long.
    """

    site: str
    kept: Mapping[str, float]
    kept_degraded: Mapping[str, float]
    more_usd_per_hour: float
    spare_usd_per_hour: float
    survives: bool
    survives_degraded: bool


@dataclass(frozen=True, eq=False)
class RegionsPlan:
    """The answer of `plan_regions`. Without fleets `diagnosis` says why, and what would help.

    Attributes:
        request: what was asked.
        fleets: by region; a region whose areas differ much in distance may have two.
        rates_per_s: of each area, in every hour of UTC [1/s], shape (24,).
        latencies: targets on TTFT and E2E at the users, by area and region.
        others: what this plan, one region for all, and fleets of its own for every area, cost by the program.
        losses: of each region.
        assumptions: what the numbers take for granted.
        diagnosis: why there is no plan.
    """

    request: PlanRequest
    fleets: tuple[RegionFleet, ...] = ()
    rates_per_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    latencies: tuple[UserLatency, ...] = ()
    others: tuple[Standing, ...] = ()
    losses: tuple[RegionLoss, ...] = ()
    assumptions: tuple[str, ...] = ()
    diagnosis: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """True if there are fleets to run."""
        return bool(self.fleets)

    @property
    def usd_per_hour(self) -> float:
        """Cost of all regions [USD/h]."""
        return math.fsum(fleet.usd_per_hour for fleet in self.fleets)


# --- from routes to fleets --------------------------------------------------------------------------------------------


def plan_regions(
    request: PlanRequest,
    hardware: HardwareDb | None = None,
    progress: Progress | None = None,
    *,
    simulate: bool = True,
) -> RegionsPlan:
    """Fleets in the regions in which the areas of a request are served for the least cost within their targets.

    Args:
        request: with `areas`; what it says of its own rate and profile does not count, but for starts and autoscaling.
        hardware: SKUs, prices, areas and distances; the packaged database when None.
        progress: called with the name of each stage as it starts.
        simulate: verify the fleet of each region by simulation too.

    Raises:
        InputError: no areas, an area or a place of `residency` that is not known, or a kind of request that is not
            planned over regions: another objective, several models, limits of a whole fleet, recorded arrivals.
    """
    hardware, say = hardware_for(request, hardware), progress or (lambda _: None)
    _check(request, hardware)
    world = World(request, hardware, say)
    reasons = tuple(reason for area in request.areas if (reason := _why_not(world, area)))
    joint = None if reasons else world.routes(world.places, request.areas)
    if joint is None:
        return RegionsPlan(request, diagnosis=reasons or ("no fleets carry the demand within limits.quotas",))
    each = [world.routes(world.places, [area]) for area in request.areas]
    alone: Routes | None = None
    for site in dict.fromkeys([*reversed(joint.sites), *(one.site for one in uncovered(world.places))]):
        alone = _at(world, [site], math.inf if alone is None else _cost(alone)) or alone
    known = [] if world.has_quotas else [alone, Routes.together(list(filter(None, each)))]
    joint = min(filter(None, [joint, *known]), key=_cost)
    routes = _simpler(world, joint)
    fleets = _fleets(world, routes, simulate)
    if not all(fleet.plan.feasible for fleet in fleets):
        reasons = tuple(f"{fleet.site.name}: {why}" for fleet in fleets for why in fleet.plan.diagnosis)
        return RegionsPlan(request, diagnosis=reasons)
    standings: dict[str, Sequence[Routes | None]] = {
        "this plan": [routes],
        "one region": [alone],
        "every area for itself": each,
        "any regions": [joint],
        "no distance": [_at_no_distance(world)],
    }
    return RegionsPlan(
        request=request,
        fleets=fleets,
        rates_per_s={area: tuple(rates.tolist()) for area, rates in world.rates_per_s.items()},
        latencies=tuple(_latencies(world, fleets)),
        others=tuple(_standing(name, found) for name, found in standings.items()),
        losses=tuple(_losses(world, fleets, joint, simulate)),
        assumptions=_assumptions(world, fleets),
    )


def _at_no_distance(world: World) -> Routes | None:
    """The least cost if no request took time on its way."""
    none = (0,) * len(world.shared_targets)
    allowed = [[area for area in world.request.areas if world.may_serve(place.site, area)] for place in world.places]
    near = (replace(place, classes=dict.fromkeys(own, none)) for place, own in zip(world.places, allowed, strict=True))
    return world.routes(list(near), world.request.areas)


def _standing(name: str, parts: Sequence[Routes | None]) -> Standing:
    """A way of standing, of routes that have nothing in common."""
    known = [part for part in parts if part is not None]
    sites = tuple(dict.fromkeys(site.name for part in known for site in part.sites))
    cost = math.fsum(part.usd_per_hour for part in known) if len(known) == len(parts) else math.inf
    return Standing(name, sites if math.isfinite(cost) else (), cost)


def _check(request: PlanRequest, hardware: HardwareDb) -> None:
    """Raise InputError for what is not planned over regions."""
    if not request.areas:
        bound = "says of no area of users what it asks for"
        raise InputError("demand", "{}", bound, "write demand: {us-east: {rate_per_s: 10}, japan: {rate_per_s: 5}}")
    known = [area.name for area in hardware.areas]
    places = {name for one in hardware.distances for name in (one.provider, one.region)}
    for name, area in request.areas.items():
        if name not in known:
            raise UnknownNameError("demand", name, known)
        for place in area.residency:
            if area_called(hardware, place) is None and place not in places:
                raise UnknownNameError(f"demand.{name}.residency", place, places | set(area_names(hardware)))
    limits = [f"limits.{name}" for name in REFUSED if getattr(request.limits, name) != getattr(FleetLimits(), name)]
    kinds = {
        "services": bool(request.services),
        "cascade": request.cascade is not None,
        "offline": bool(request.offline),
        "split": request.split is not None,
        "by_class": request.by_class,
        "workload.classes": any(kind.slo is not None for kind in request.workload.classes),
        "prices.owned": bool(request.prices.owned),
        "objective": request.objective is not Objective.MIN_COST,
        "slo": not request.slo.targets,
        "demand with ttft_s and without one target on TTFT": bool(
            any(area.ttft_s for area in request.areas.values())
            and [target.metric for target in request.slo.targets].count(Metric.TTFT) != 1
        ),
        **dict.fromkeys(limits, True),
    }
    for name, is_given in kinds.items():
        if is_given:
            bound = "is not planned over regions"
            raise UnsupportedFeatureError(name, "given", bound, "leave it out, or plan each region by itself")


def _why_not(world: World, area: str) -> str:
    """Why no region can serve an area, and what would help; empty where one can."""
    near = [place for place in world.places if area in place.classes and world.units([place], [area], {})]
    if near:
        return ""
    allowed = [place.site for place in world.places if world.may_serve(place.site, area)]
    if not allowed:
        loosened = {**world.request.areas, area: world.request.areas[area].model_copy(update={"residency": ()})}
        free = replace(world, request=world.request.model_copy(update={"areas": loosened}))
        routes = free.routes(free.places, [area]) if not _why_not(free, area) else None
        where = ", ".join(world.request.areas[area].residency)
        asked = f"demand.{area}.residency: nobody sells {', '.join(world.request.search.skus)} in {where}"
        if routes is None:
            return f"{asked}, and no other region holds the targets"
        cheapest = ", ".join(sorted(site.name for site in routes.sites))
        return f"{asked}; the cheapest that would do is {cheapest} for {routes.usd_per_hour:,.2f} USD/h"
    nearest = min(allowed, key=lambda site: world.delays_s(area, world.distances[site]))
    ttft = next((place for place, each in enumerate(world.shared_targets) if each.metric is Metric.TTFT), None)
    if ttft is None:
        return f"demand.{area}: no pool holds the targets in {nearest.name}, the nearest region"
    target, least_s = world.target_at(area, world.shared_targets[ttft]), world.least_ttft_s(ttft)
    network_s = world.time_to(area, world.distances[nearest]).quantile_s(target.percentile)
    found = "none below a minute" if math.isinf(least_s) else f"{1000 * (network_s + least_s):.0f} ms"
    asked = f"p{100 * target.percentile:g} TTFT of {1000 * target.threshold_s:.0f} ms"
    return (
        f"demand.{area}: {asked} cannot be had: the way to {nearest.name}, the nearest region, takes "
        f"{1000 * network_s:.0f} ms; the least TTFT there is {found}"
    )


def _at(world: World, sites: Collection[Site], most_usd_per_hour: float = math.inf) -> Routes | None:
    """The least cost of standing in some regions, if it is not above the most; None where they do not serve all."""
    places = [place for place in world.places if place.site in sites]
    served, areas = {area for place in places for area in place.classes}, world.request.areas
    return world.routes(places, areas, most_usd_per_hour=most_usd_per_hour) if served >= set(areas) else None


def _cost(routes: Routes) -> float:
    return routes.program_usd_per_hour


def _simpler(world: World, joint: Routes) -> Routes:
    """Routes over fewer regions, fewer fleets in them and fewer areas to each, as long as that is a tie.

    A tie costs at most `SearchSpace.simplicity` more than the least that was found.
    """
    areas, kept, least = world.request.areas, joint, joint.program_usd_per_hour

    def most() -> float:
        return least * (1.0 + world.request.search.simplicity)

    def is_taken(fewer: Routes | None) -> bool:
        """True of routes, which are a tie and then kept."""
        nonlocal kept, least
        if fewer is None:
            return False
        kept, least = fewer, min(least, fewer.program_usd_per_hour)
        return True

    def without(site: Site) -> Routes | None:
        return _at(world, [other for other in kept.sites if other != site], most())

    while len(kept.sites) > 1 and any(is_taken(without(site)) for site in kept.sites):
        pass
    places = [place for place in world.places if place.site in kept.sites]
    here = {site: [area for area in areas if kept.share(site, area, world) >= LEAST_SHARE] for site in kept.sites}
    if not is_taken(world.routes(places, areas, {key: here[key[0]] for key in kept.rates_per_s}, most())):
        here = {site: list(areas) for site in kept.sites}
    fleets = sorted(kept.rates_per_s, key=lambda key: float(np.sum(list(kept.rates_per_s[key].values()))))
    for fleet in fleets:
        others = {key: here[key[0]] for key in fleets if key in kept.rates_per_s and key != fleet}
        if others:
            is_taken(world.routes(places, areas, others, most()))
    return kept


def _fleets(world: World, routes: Routes, simulate: bool) -> tuple[RegionFleet, ...]:
    """Every region of some routes planned by itself."""
    fleets = []
    for (site, own), by_area in sorted(routes.rates_per_s.items(), key=lambda each: (each[0][0].name, each[0][1])):
        shares = {
            area: tuple(np.divide(routed, world.rates_per_s[area], where=routed > 0.0, out=np.zeros(HOURS)).tolist())
            for area, routed in by_area.items()
        }
        world.progress(f"planning {site.name}")
        asked = _request_for(world, site, own, by_area)
        found = plan(asked, world.hardware, world.progress, simulate=simulate, alternatives=False)
        served_per_s, moved_per_s = np.sum(list(by_area.values()), axis=0), world.moved_per_s(by_area)
        fleet = RegionFleet(
            site,
            found,
            shares,
            out_usd_per_hour=3600.0 * world.out_usd(site) * float(served_per_s.mean()),
            moved=float(moved_per_s.sum() / (served_per_s + moved_per_s).sum()),
        )
        fleets.append(replace(fleet, power_kw=_power_kw(fleet, world.hardware)))
    return tuple(fleets)


def _power_kw(fleet: RegionFleet, hardware: HardwareDb) -> float | None:
    held = [(hardware.skus[sku].tdp_watts, float(gpus.mean())) for sku, gpus in fleet.gpus_by_hour.items()]
    watts = [fact.value * gpus for fact, gpus in held if fact is not None]
    return fleet.plan.request.limits.pue * math.fsum(watts) / 1000.0 if len(watts) == len(held) else None


def _request_for(world: World, site: Site, own: DistanceClass, by_area: Mapping[str, FloatArray]) -> PlanRequest:
    """What a region is asked for: its traffic by hour, and targets less the way of the furthest area.

    A request of an area counts by its work, so that hours of longer requests are those of more of them.
    """
    request, means_per_s = world.request, {area: float(rates.mean()) for area, rates in by_area.items()}
    work = world.work(own, means_per_s)
    hourly = np.sum([work[area] * rates for area, rates in by_area.items()], axis=0) + world.moved_per_s(by_area)
    mean_per_s = float(hourly.mean())
    delays_s = np.max([world.delays_s(area, world.distances[site]) for area in by_area], axis=0)
    slo = world.slo_left(delays_s.tolist())
    assert slo is not None  # the program routes nothing further than the targets
    of_all_per_s = float(np.sum(list(world.rates_per_s.values()), axis=0).mean())
    workload = world.workload(means_per_s, of_all_per_s)
    workload = workload.at_rate(mean_per_s / request.growth)
    given = request.profile or DemandProfile(factors=(1.0,))
    profile = given.model_copy(
        update={
            "factors": tuple((hourly / mean_per_s).tolist()),
            "period_hours": 1.0,
            "source": "routed, by hour of UTC",
        }
    )
    return world.request_at(site).model_copy(
        update={
            "name": f"{request.name} in {site.name}",
            "workload": workload,
            "slo": slo,
            "users": None,
            "profile": profile if np.ptp(hourly) > 0.0 else None,
        }
    )


def _latencies(world: World, fleets: Sequence[RegionFleet]) -> Iterator[UserLatency]:
    """Targets to which the way counts, as the users of every area see them."""
    for fleet in fleets:
        for area, shares in fleet.shares.items():
            rates = world.rates_per_s[area]
            time = world.time_to(area, world.distances[fleet.site])
            for target in world.shared_targets:
                pool = _latency_of(fleet.plan, area, target.metric)
                pool_s = pool.quantile_s(target.percentile)
                at_user_s = LatencyDistribution.independent_sum(pool, time).quantile_s(target.percentile)
                yield UserLatency(
                    area=area,
                    site=fleet.site.name,
                    share=float(np.dot(shares, rates) / rates.sum()),
                    target=world.target_at(area, target),
                    network_s=at_user_s - pool_s,
                    pool_s=pool_s,
                )


def _latency_of(found: Plan, area: str, metric: Metric) -> LatencyDistribution:
    """Of the requests of an area in a region; of all there where those of areas are alike or the area is alone."""
    answers = (one.simulated if found.simulated else one.predicted for one in found.deployments)
    own = [kind for answer in answers for kind in answer.classes if kind.name == area]
    if not own:
        return found.latency(metric, simulated=found.simulated)
    return LatencyDistribution.mixture([(getattr(kind, metric.value), kind.rate_per_s) for kind in own])


def _losses(world: World, fleets: Sequence[RegionFleet], joint: Routes, simulate_it: bool) -> Iterator[RegionLoss]:
    """What the others carry when a region is lost, what it is worth, and what it takes to survive."""
    by_hour: dict[Site, dict[str, FloatArray]] = {}
    for fleet in fleets:
        own = by_hour.setdefault(fleet.site, {})
        for sku, gpus in fleet.gpus_by_hour.items():
            own[sku] = own.get(sku, np.zeros(HOURS)) + gpus
    held = {site: {sku: float(gpus.max()) for sku, gpus in own.items()} for site, own in by_hour.items()}
    targets = tuple(
        target.model_copy(update={"threshold_s": DEGRADED * target.threshold_s})
        if target in world.shared_targets
        else target
        for target in world.request.slo.targets
    )
    areas = {
        name: area.model_copy(update={"ttft_s": area.ttft_s and DEGRADED * area.ttft_s})
        for name, area in world.request.areas.items()
    }
    slo = world.request.slo.model_copy(update={"targets": targets})
    degraded = world.request.model_copy(update={"slo": slo, "areas": areas})
    patient = replace(world, request=degraded)
    for site in held:
        others = held.keys() - {site}
        kept, share, survives = _carried(world, others, held, simulate_it)
        later, _, is_degraded = (kept, share, True) if survives else _carried(patient, others, held, simulate_it)
        without = _at(world, world.distances.keys() - {site})
        more = math.inf if without is None else max(0.0, round(without.usd_per_hour - joint.usd_per_hour, 6))
        left = [place for place in world.places if place.site != site]
        could = uncovered(left) + [place for place in left if place.site in others]
        spare = 0.0 if survives else world.spare_usd_per_hour(could, held, share)
        yield RegionLoss(site.name, kept.shares, later.shares, more, spare, survives, is_degraded)


def _carried(
    world: World, others: Collection[Site], held: Mapping[Site, Mapping[str, float]], simulate_it: bool
) -> tuple[Kept, float, bool]:
    """What regions carry, by how much of the rates of their pools, and whether that is everybody, simulated if asked.

    Pools that miss a target in simulation count for less, see `RELIEF`.
    """
    places = [place for place in world.places if place.site in others]
    for share in RELIEF:
        kept = world.kept(places, held, share)
        if not kept.is_all or not simulate_it or world.holds(kept):
            return kept, share, kept.is_all
    return kept, share, False


def _assumptions(world: World, fleets: Sequence[RegionFleet]) -> tuple[str, ...]:
    """What the numbers take for granted."""
    areas, request = {area.name: area for area in world.hardware.areas}, world.request
    lines = [
        f"users in {name} stand at {areas[name].stands_at} of Azure, with an access network of {own.access_text} in "
        f"the mean (exponential), on clocks {areas[name].utc_offset_hours:+g} h from UTC without daylight saving"
        + (f"; {100 * own.new_connections:.0f} % of requests open a connection" if own.new_connections else "")
        for name, own in request.areas.items()
    ]
    for site in dict.fromkeys(fleet.site for fleet in fleets):
        distance, place = world.distances[site], world.known[site.provider, site.region]
        if distance.how != "itself":
            lines.append(f"{site.name} stands at {distance.stands_at} of Azure ({distance.how})")
        if place.grid_of:
            lines.append(f"{site.name} has the grid of Google's {place.grid_of}, in the mean of 2024")
        if place.out_usd_per_gb is None:
            lines.append(f"no price of transfer out of {site.provider} is known: it counts as the dearest listed")
        if place.pue is None and request.limits.pue == 1.0:
            lines.append(f"no PUE of {site.provider} is known: its power is that of the GPUs alone")
    placed = {site.provider for site in world.distances}
    unplaced = {
        price.provider
        for price in world.hardware.prices
        if price.sku in request.search.skus and price.commitment in request.prices.commitments
    } - placed
    if isinstance(request.workload.arrivals, RecordedArrivals):
        lines.append("the recording counts by the process that sums it up, of which every region gets a random part")
    if (most := max(fleet.moved for fleet in fleets)) > 0.0:
        lines.append(
            "sessions stay in a region until the shares of an hour move them, evenly over it; their next prompt is new "
            f"there: up to {100 * most:.2g} % of a region's work of a day"
        )
    if unplaced:
        lines.append(f"no region is known of {', '.join(sorted(unplaced))}, where nothing is looked for")
    return (
        *lines,
        "round trips between regions are those of Azure's network, hardly varying; later tokens come as made",
        "regions are chosen by mixed pools; each is then planned with all modes asked for",
        "a price for all regions of a provider counts wherever it is known to have the SKU",
        f"answers are streamed in {BYTES_PER_TOKEN} bytes a token; what comes in is free, and so is what stays inside",
    )
