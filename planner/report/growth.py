"""Until when a fleet holds and what follows it, in a sentence and tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from planner.analysis import FleetGrowth, NextFleet, fleet_growth
from planner.core import Columns, Report, Table, change, money, percent, significant
from planner.fleet import Plan


def headline(growth: FleetGrowth) -> str:
    """Until when, and why, in one sentence."""
    return f"The fleet {growth.words}: it serves {change(growth.headroom)} over today's demand within every target."


def tables(growth: FleetGrowth) -> tuple[Table, ...]:
    """Until when by percentile, and the fleets that follow."""
    start = growth.forecast.start
    horizons = tuple((f"p{100 * one.percentile:g}", _day(one.until) or "ten years and more") for one in growth.horizons)
    found = (Table(f"Until when it holds, from {start.isoformat()}", ("demand", "last day"), horizons),)
    if not growth.purchases:
        return found
    columns: Columns[NextFleet] = {
        "needed from": lambda one: one.needed_from.isoformat(),
        "planned for": lambda one: f"{significant(one.growth)} x",
        "fleet": lambda one: one.fleet or "none found",
        "GPUs": lambda one: ", ".join(f"{count:+d} {sku}" for sku, count in one.more_gpus.items()) or "-",
        "USD/h": lambda one: money(one.usd_per_hour) if one.gpus else "-",
        "holds until": lambda one: _day(one.until) or "ten years and more",
    }
    title = f"What has to be there when, at p{100 * growth.purchase_percentile:g} of the demand"
    return (*found, Table.of(title, growth.purchases, columns, "Planned anew, by theory."))


def notes(growth: FleetGrowth) -> tuple[str, ...]:
    """The forecast in words, and what is taken for granted."""
    forecast = growth.forecast
    trend = f"{percent(forecast.growth_per_month, signed=True)} a month from {forecast.start.isoformat()}"
    unsure = (
        f"standard deviations: growth {percent(forecast.growth_uncertainty)} a month, random walk "
        f"{percent(forecast.volatility)} over a month, single days {percent(forecast.day_spread)}"
    )
    launches = tuple(
        f"launch on {launch.day.isoformat()}: {significant(launch.factor)} x"
        + ("" if launch.decay_days is None else f", 1/e of it left after {launch.decay_days:g} days")
        for launch in forecast.launches
    )
    shape = "the demand grows in rate alone: lengths, burstiness and the course of the day stay as they are"
    return (f"{trend} ({forecast.source}); {unsure}", *launches, shape)


def report(growth: FleetGrowth, name: str = "") -> Report:
    """The growth of the fleet of a plan of that name."""
    return Report(headline(growth), tables(growth), {"Forecast": notes(growth)}, f"Growth: {name}")


def with_horizon(report: Report, plan: Plan) -> Report:
    """The report of a plan with the line that says until when its fleet holds; as it is without a forecast."""
    if plan.request.forecast is None or not plan.feasible:
        return report
    line = headline(fleet_growth(plan, plan.request.forecast))
    return replace(report, lists={**report.lists, "Growth": (line,)})


def _day(one: date | None) -> str | None:
    return None if one is None else one.isoformat()
