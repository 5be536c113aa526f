"""Until when a fleet holds and what follows it, in a sentence and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date

from planner.analysis import CostPath, CostYear, FleetGrowth, MonthAhead, NextFleet, fleet_growth, headroom, turn
from planner.analysis import headline as answer
from planner.core import Columns, Report, Table, change, money, percent, significant
from planner.fleet import Plan


def headline(growth: FleetGrowth) -> str:
    """Until when, and why, in one sentence."""
    return f"The fleet {growth.words}: it serves {change(growth.headroom)} over today's demand within every target."


def tables(growth: FleetGrowth) -> tuple[Table, ...]:
    """Until when by percentile, and the fleets that follow."""
    start = growth.forecast.start
    until = {f"p{100 * one.percentile:g}": _day(one.until) or "ten years and more" for one in growth.horizons}
    horizons = tuple(until.items()) if len({*until.values()}) > 1 else (("any", *{*until.values()}),)
    found = (Table(f"Until when it holds, from {start.isoformat()}", ("demand", "last day"), horizons),)
    costs = () if growth.costs is None else cost_tables(growth.costs)
    if not growth.purchases:
        return (*found, *costs)
    columns: Columns[NextFleet] = {
        "needed from": lambda one: one.needed_from.isoformat(),
        "planned for": lambda one: f"{significant(one.growth)} x",
        "fleet": lambda one: one.fleet or "none found",
        "GPUs": lambda one: one.more or "-",
        "USD/h": lambda one: money(one.usd_per_hour) if one.gpus else "-",
        "holds until": lambda one: _day(one.until) or "ten years and more",
    }
    title = f"What to buy next, for p{100 * growth.purchase_percentile:g} of the demand"
    return (*found, Table.of(title, growth.purchases, columns, "Planned anew, by theory."), *costs)


# --- own against API --------------------------------------------------------------------------------------------------


def cost_headline(costs: CostYear) -> str:
    """Which is cheapest over the year, and when the fleet turns to be cheaper than the cheapest API, in a sentence."""
    own = costs.fleet
    apis = [path for path in costs.paths if path.price is not None]
    last = costs.months[-1]
    grown = "planned" if last.gpus == costs.months[0].gpus else f"it grows to {last.fleet}"
    if not apis:
        return f"The fleet as {grown} costs {own.cumulated_usd[-1]:,.0f} USD in {len(own.usd)} months."
    best = min(apis, key=lambda path: path.cumulated_usd[-1])
    by_month, in_all = turn_words(own.usd, best.usd), turn_words(own.cumulated_usd, best.cumulated_usd)
    turns = by_month if by_month == in_all else f"by month {by_month}, cumulated {in_all}"
    return (
        f"{len(own.usd)} months cost {own.cumulated_usd[-1]:,.0f} USD on the fleet as {grown}, "
        f"{best.cumulated_usd[-1]:,.0f} USD at {best.name}, the cheapest API: {turns}."
    )


def turn_words(own: Sequence[float], other: Sequence[float]) -> str:
    """From which month on who is cheaper.

    >>> turn_words([10, 10, 10], [4, 8, 12]), turn_words([3, 4], [1, 2])
    ('the fleet is cheaper from month 3 on', 'the API is cheaper throughout')
    """
    wins, month = turn(own, other)
    return f"the {'fleet' if wins else 'API'} is cheaper {'throughout' if month == 1 else f'from month {month} on'}"


def cost_tables(costs: CostYear) -> tuple[Table, ...]:
    """USD by month and cumulated, for each way to serve the year, and who is cheaper from when on."""
    own, months = costs.fleet, list(enumerate(costs.months))

    def usd(path: CostPath, cumulated: bool) -> Callable[[tuple[int, MonthAhead]], str]:
        values = path.cumulated_usd if cumulated else path.usd
        return lambda month: f"{values[month[0]]:,.0f}"

    head: Columns[tuple[int, MonthAhead]] = {
        "month": lambda month: str(month[0] + 1),
        "from": lambda month: month[1].start.isoformat(),
        "demand": lambda month: f"{month[1].demand:.2f} x",
    }
    gpus: Columns[tuple[int, MonthAhead]] = {"GPUs": lambda month: month[1].fleet}
    by_month = {**head, **gpus, **{path.name: usd(path, False) for path in costs.paths}}
    cumulated = {"month": head["month"], **{path.name: usd(path, True) for path in costs.paths}}
    apis = [path for path in costs.paths if path.price is not None]
    turns: Columns[CostPath] = {
        "API": lambda path: path.name,
        "by month": lambda path: turn_words(own.usd, path.usd),
        "cumulated": lambda path: turn_words(own.cumulated_usd, path.cumulated_usd),
        "input tokens": lambda path: significant(path.price.usd_per_million_input_tokens) if path.price else "",
        "cached tokens": lambda path: significant(path.price.usd_per_million_cached_tokens) if path.price else "",
        "output tokens": lambda path: significant(path.price.usd_per_million_output_tokens) if path.price else "",
        "read on": lambda path: path.price.read_on.isoformat() if path.price else "",
    }
    note = (
        "Nothing is planned again: beyond the fleet's headroom replicas grow as demand does, by whole instances, for "
        "the largest demand of the month; APIs are paid for its mean."
    )
    return (
        *((Table.of("When does it turn?", apis, turns, "Prices in USD per million tokens."),) if apis else ()),
        Table.of("USD by month", months, by_month, " ".join((note, *costs.notes))),
        Table.of("USD cumulated", months, cumulated),
    )


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
    said = headline(growth) if growth.costs is None else f"{headline(growth)} {cost_headline(growth.costs)}"
    return Report(said, tables(growth), {"Forecast": notes(growth)}, f"Growth: {name}")


def with_headroom(report: Report, plan: Plan) -> Report:
    """The report of a plan with its headroom and, where a forecast is given, until when its fleet holds."""
    if not plan.feasible:
        return report
    found, forecast = headroom(plan), plan.request.forecast
    lines = [f"Headroom {change(found.share)} ({answer.headroom_words(found)}) before a plan for more demand buys more"]
    lines += [headline(fleet_growth(plan, forecast, headroom_share=found.share))] if forecast else []
    return replace(report, lists={"Growth": tuple(lines), **report.lists})


def _day(one: date | None) -> str | None:
    return None if one is None else one.isoformat()
