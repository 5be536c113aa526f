"""Capacity of the fleet of a plan: with other kernels, prices or traffic, hour by hour, and until when it holds.

The deployments stay as they are and are evaluated by theory; only `next_purchases` plans again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

from planner.analysis.cost_year import CostYear
from planner.analysis.headline import fleet_words, gpus_words
from planner.analysis.replanner import CHANGE_TOLERANCE, Replanner
from planner.analysis.types import Headroom, KeptFleet
from planner.core import InputError, rebuilt
from planner.fleet import Corrections, Plan, PlannedDeployment, Progress, pool_name, slower_deployment
from planner.serving import Deployment, Performance, evaluate, sustainable_rate_per_s
from planner.traffic import DAYS_PER_MONTH, Forecast
from planner.workload import LatencyDistribution, Slo, Workload

SEARCHED_FACTOR = 3.0
"""Capacity of an hour is searched for up to so many times the demand of the deployment. A choice: more is cut off."""


# --- the fleet kept -------------------------------------------------------------------------------------------------


def kept_fleet(
    plan: Plan,
    fleets: Sequence[Deployment] | None = None,
    workload: Callable[[Workload], Workload] = lambda workload: workload,
    cost_factor: float = 1.0,
    shares: Sequence[float] | None = None,
) -> KeptFleet:
    """The fleet of a plan under other conditions, by theory.

    Args:
        plan: feasible.
        fleets: what becomes of each deployment; None: what is left of it after the failures that it withstands.
        workload: what becomes of the workload routed to each deployment.
        cost_factor: on the cost of the plan.
        shares: of the rates by theory, those that are kept; None: all.
    """
    fleets = fleets or [planned.surviving for planned in plan.deployments]
    margins = [
        _margin(planned, fleet, workload(planned.workload))
        for planned, fleet in zip(plan.deployments, fleets, strict=True)
    ]
    worst = max(margins, key=lambda margin: (margin.ratio, margin.tightest))
    planned_per_s = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    kept = shares or [1.0] * len(margins)
    return KeptFleet(
        holds=worst.ratio <= 1.0,
        tightest=worst.tightest,
        tightest_ratio=worst.ratio,
        usd_per_hour=cost_factor * plan.cost.usd_per_hour if plan.cost else math.inf,
        rate_per_s=planned_per_s * min(share * margin.growth for share, margin in zip(kept, margins, strict=True)),
    )


@dataclass(frozen=True)
class _Margin:
    """How far a deployment is from missing a target.

    Attributes:
        ratio: worst latency over threshold.
        tightest: its target.
        growth: largest factor on the planned rate at which every target holds.
    """

    ratio: float
    tightest: str
    growth: float


def _margin(planned: PlannedDeployment, fleet: Deployment, load: Workload) -> _Margin:
    """The margin of a deployment that serves another workload, by the targets of its own requests."""
    performance = evaluate(fleet, load)
    ratios: list[tuple[float, str]] = []
    most_per_s = math.inf
    for slo, names in _slos_by_class(planned, load):
        ratios += _ratios(_of_classes(performance, names), slo)
        judge = partial(_evaluated_for, names)
        most_per_s = min(most_per_s, sustainable_rate_per_s(fleet, load, slo, judge, CHANGE_TOLERANCE))
    ratio, tightest = max(ratios, default=(0.0, "no target"))
    return _Margin(ratio, tightest, most_per_s / planned.workload.arrivals.rate_per_s)


def _slos_by_class(planned: PlannedDeployment, load: Workload) -> list[tuple[Slo, frozenset[str]]]:
    """Each Slo of a deployment's requests with the classes it applies to.

    Where no class has targets of its own, all have those of the deployment; beside classes that have, one without has
    no targets.
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
    kinds = [kind for kind in performance.classes if kind.name in names]
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
    """Latency over threshold of each target with its name; of joint targets, the share that misses over what may."""
    if slo.attainment is not None:
        within = performance.attainment(slo)
        return [((1.0 - within) / (1.0 - slo.attainment), f"{100 * slo.attainment:g} % within all thresholds")]
    return [(performance.latency_s(target) / target.threshold_s, target.name) for target in slo.targets]


# --- headroom -------------------------------------------------------------------------------------------------------


def is_calibrated(plan: Plan) -> bool:
    """True if any step time has an interval."""
    return any(pool.config.calibration is not None for pool in plan.pools)


def headroom(plan: Plan, progress: Progress = lambda _: None, *, corrections: Corrections | None = None) -> Headroom:
    """How much the demand may grow before the fleet has to be planned anew.

    Args:
        plan: feasible.
        progress: called before each of up to two searches, half a second each for a pool under a recording.
        corrections: what the plan was made with where it was not simulated itself; None: `Plan.corrections`.
    """
    learned, request = corrections or plan.corrections, plan.request
    shares = [1.0 if learned is None else _share_kept(planned, learned) for planned in plan.deployments]
    demand_per_s = sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)

    def kept_with(deviations: float) -> KeptFleet:
        fleets = [slower_deployment(planned, deviations, request.measured_steps) for planned in plan.deployments]
        return kept_fleet(plan, fleets, shares=shares)

    progress("largest demand of this fleet")
    slow = kept_with(plan.slow_deviations)
    estimated_share = None
    if is_calibrated(plan):
        progress("the same with step times as estimated")
        estimated = kept_with(0.0) if plan.slow_deviations else slow
        estimated_share = estimated.rate_per_s / demand_per_s - 1.0
    share = slow.rate_per_s / demand_per_s - 1.0
    if plan.simulated and all(check.met for check in plan.slow_targets):  # at the demand itself, with steps as slow
        share = max(share, 0.0)
    return Headroom(share, slow.tightest, slow.tightest_ratio, request.confidence, estimated_share)


def _share_kept(planned: PlannedDeployment, learned: Corrections) -> float:
    """Of the rate that a deployment has by theory, the share that simulation left it; more than 1 where it held more.

    Of a prefill and a decode pool the smaller share: the one that is short limits both.
    """
    return min(
        learned.share_of(planned.service, option.role, pool_name(option), pool.replicas)
        for option, pool in zip(planned.option.pools, planned.surviving.pools, strict=True)
    )


# --- hour by hour ---------------------------------------------------------------------------------------------------


def period_capacities_per_s(plan: Plan, progress: Progress = lambda _: None) -> tuple[float | None, ...]:
    """By period of the schedule, the largest rate [1/s] at which what is on meets its targets, by theory.

    Sum over deployments of `sustainable_rate_per_s` with the replicas of the period, less those that may fail, up to
    `SEARCHED_FACTOR` times the largest demand. None for periods in which something is on that the busiest one does
    without, or in which pools of one configuration serve several deployments: there the schedule does not say what
    serves what.
    """
    known: dict[tuple[int, tuple[int, ...]], float] = {}
    names = [name for planned in plan.deployments for name in _pool_names(planned)]
    capacities: list[float | None] = []
    for period in plan.schedule:
        if len(set(names)) < len(names) or not set(period.replicas) <= set(names):
            capacities.append(None)
            continue
        rates_per_s = []
        for place, planned in enumerate(plan.deployments):
            pools = zip(_pool_names(planned), planned.deployment.pools, planned.surviving.pools, strict=True)
            failing = ((name, all_.replicas - left.replicas) for name, all_, left in pools)
            sizes = tuple(max(0, period.replicas.get(name, 0) - lost) for name, lost in failing)
            if (place, sizes) not in known:
                progress(f"capacity of {' + '.join(map(str, sizes))} replicas")
                known[place, sizes] = _sustained_per_s(planned, sizes)
            rates_per_s.append(known[place, sizes])
        capacities.append(math.fsum(rates_per_s))
    return tuple(capacities)


def _pool_names(planned: PlannedDeployment) -> list[str]:
    """As `ScheduledPeriod.replicas` names them."""
    return [pool_name(option) for option in planned.option.pools]


def _sustained_per_s(planned: PlannedDeployment, sizes: tuple[int, ...]) -> float:
    if min(sizes) < 1:
        return 0.0
    most_per_s = SEARCHED_FACTOR * planned.workload.rate_per_s
    return sustainable_rate_per_s(planned.option.deployment(sizes), planned.workload, planned.slo, at_most=most_per_s)


# --- until when it holds ----------------------------------------------------------------------------------------------

FORECAST_PERCENTILES = (0.5, 0.75, 0.9)
"""Of what the demand may be: as likely as not, one in four, one in ten. A choice."""


@dataclass(frozen=True)
class FleetHorizon:
    """Until when the fleet holds at a percentile of the demand.

    Attributes:
        percentile: of what the demand may be.
        until: last day on which every target holds; None: not exceeded in ten years; a day before the forecast's
            start: it does not hold from the first day on.
    """

    percentile: float
    until: date | None

    def words(self, start: date) -> str:
        """E.g. ``until 2027-08``."""
        if self.until is None:
            return "for ten years and more"
        return f"not even on {start.isoformat()}" if self.until < start else f"until {self.until:%Y-%m}"


@dataclass(frozen=True)
class NextFleet:
    """A fleet that the growth asks for.

    Attributes:
        needed_from: first day on which the one before no longer holds.
        growth: factor on today's demand it is planned for.
        fleet: in words; empty where none is found.
        gpus: by SKU.
        more_gpus: than the one before, by SKU.
        more: the same in words.
        usd_per_hour: what it costs [USD/h].
        until: last day it holds, at the same percentile; None: not exceeded in ten years.
    """

    needed_from: date
    growth: float
    fleet: str
    gpus: dict[str, int]
    more_gpus: dict[str, int]
    more: str
    usd_per_hour: float
    until: date | None


@dataclass(frozen=True)
class FleetGrowth:
    """A fleet under a forecast.

    Attributes:
        forecast: of the demand.
        headroom: how much more than today's demand it serves, a share.
        horizons: until when, by percentile.
        purchases: next fleets, in order of time, at `purchase_percentile`.
        purchase_percentile: of the demand that is bought for.
        costs: month by month beside hosted APIs; None: not asked.
    """

    forecast: Forecast
    headroom: float
    horizons: tuple[FleetHorizon, ...]
    purchases: tuple[NextFleet, ...] = ()
    purchase_percentile: float = 0.5
    costs: CostYear | None = None

    @property
    def words(self) -> str:
        """One line: until when, at each percentile of the demand where these differ."""
        words = {f"p{100 * one.percentile:g} of the demand": one.words(self.forecast.start) for one in self.horizons}
        if len(set(words.values())) == 1:
            return f"holds {self.horizons[0].words(self.forecast.start)}"
        return "holds " + ", ".join(f"{until} at {name}" for name, until in words.items())


def fleet_growth(
    plan: Plan,
    forecast: Forecast,
    percentiles: tuple[float, ...] = FORECAST_PERCENTILES,
    headroom_share: float | None = None,
    progress: Progress = lambda _: None,
) -> FleetGrowth:
    """Until when the fleet of a plan holds, by theory.

    Args:
        plan: feasible.
        forecast: factor 1 is the demand the plan was made for.
        percentiles: of what the demand may be.
        headroom_share: where `headroom` has been asked already; None: it is asked here.
        progress: as `headroom`.
    """
    if not plan.feasible:
        raise InputError("plan", "infeasible", "there is no fleet to hold", "see its diagnosis")
    share = headroom(plan, progress).share if headroom_share is None else headroom_share
    horizons = tuple(FleetHorizon(p, forecast.holds_until(1.0 + share, p)) for p in sorted(percentiles))
    return FleetGrowth(forecast, share, horizons)


def next_purchases(
    plan: Plan, growth: FleetGrowth, replanner: Replanner, count: int = 2, months: int = 6, percentile: float = 0.5
) -> FleetGrowth:
    """The same with the fleets that follow, each planned anew for what the demand is some months after it is needed.

    Args:
        plan: today's.
        growth: of it.
        replanner: makes the plans, by theory.
        count: most fleets.
        months: that each has to hold for at least, where the demand grows steadily.
        percentile: of the demand that is bought for.
    """
    forecast, before = growth.forecast, plan
    purchases: list[NextFleet] = []
    until = forecast.holds_until(1.0 + growth.headroom, percentile)
    while until is not None and len(purchases) < count:
        needed = date.fromordinal(max(until, forecast.start).toordinal() + (until >= forecast.start))
        days = range(needed.toordinal(), needed.toordinal() + round(months * DAYS_PER_MONTH) + 1)
        factor = max(forecast.factor(date.fromordinal(day), percentile) for day in days)  # launches peak in between
        request = rebuilt(plan.request, growth=plan.request.growth * factor)
        found = replanner.plan(request)
        if not found.feasible or found.cost is None:
            purchases.append(NextFleet(needed, factor, "", {}, {}, "", float("inf"), until))
            break
        until = forecast.holds_until(
            factor * (1.0 + max(0.0, headroom(found, corrections=plan.corrections).share)), percentile
        )
        more = {sku: found.gpus.get(sku, 0) - before.gpus.get(sku, 0) for sku in {**before.gpus, **found.gpus}}
        changed = {sku: number for sku, number in more.items() if number}
        fleet, words = fleet_words(found), gpus_words(changed, [before, found], more=True)
        purchases.append(NextFleet(needed, factor, fleet, found.gpus, changed, words, found.cost.usd_per_hour, until))
        before = found
    return FleetGrowth(forecast, growth.headroom, growth.horizons, tuple(purchases), percentile)
