"""Until when a fleet holds as the demand grows, and what has to be bought then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from planner.analysis.fleet_capacity import headroom
from planner.analysis.headline import fleet_words
from planner.analysis.replanner import Replanner
from planner.core import InputError, rebuilt
from planner.fleet import Plan, Progress
from planner.traffic import DAYS_PER_MONTH, Forecast

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
        """E.g. ``p50 until 2027-08``."""
        name = f"p{100 * self.percentile:g}"
        if self.until is None:
            return f"{name} for ten years and more"
        return f"{name} not even at {start.isoformat()}" if self.until < start else f"{name} until {self.until:%Y-%m}"


@dataclass(frozen=True)
class NextFleet:
    """A fleet that the growth asks for.

    Attributes:
        needed_from: first day on which the one before no longer holds.
        growth: factor on today's demand it is planned for.
        fleet: in words; empty where none is found.
        gpus: by SKU.
        more_gpus: than the one before, by SKU.
        usd_per_hour: what it costs [USD/h].
        until: last day it holds, at the same percentile; None: not exceeded in ten years.
    """

    needed_from: date
    growth: float
    fleet: str
    gpus: dict[str, int]
    more_gpus: dict[str, int]
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
    """

    forecast: Forecast
    headroom: float
    horizons: tuple[FleetHorizon, ...]
    purchases: tuple[NextFleet, ...] = ()
    purchase_percentile: float = 0.5

    @property
    def words(self) -> str:
        """One line: until when."""
        return "holds " + ", ".join(horizon.words(self.forecast.start) for horizon in self.horizons)


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
    forecast, before = growth.forecast, plan.gpus
    purchases: list[NextFleet] = []
    until = forecast.holds_until(1.0 + growth.headroom, percentile)
    while until is not None and len(purchases) < count:
        needed = date.fromordinal(max(until, forecast.start).toordinal() + (until >= forecast.start))
        days = range(needed.toordinal(), needed.toordinal() + round(months * DAYS_PER_MONTH) + 1)
        factor = max(forecast.factor(date.fromordinal(day), percentile) for day in days)  # launches peak in between
        request = rebuilt(plan.request, growth=plan.request.growth * factor)
        found = replanner.plan(request)
        if not found.feasible or found.cost is None:
            purchases.append(NextFleet(needed, factor, "", {}, {}, float("inf"), until))
            break
        until = forecast.holds_until(
            factor * (1.0 + max(0.0, headroom(found, corrections=plan.corrections).share)), percentile
        )
        more = {sku: found.gpus.get(sku, 0) - before.get(sku, 0) for sku in {**before, **found.gpus}}
        changed = {sku: number for sku, number in more.items() if number}
        purchases.append(
            NextFleet(needed, factor, fleet_words(found), found.gpus, changed, found.cost.usd_per_hour, until)
        )
        before = found.gpus
    return FleetGrowth(forecast, growth.headroom, growth.horizons, tuple(purchases), percentile)
