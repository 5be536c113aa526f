"""A year month by month: the fleet of a plan as it grows with demand, the same GPUs reserved, and hosted APIs.

Nothing is planned again: of a demand g times today's each pool takes ceil(replicas x s) replicas, with s = g where g is
less than 1, 1 up to the headroom of the fleet, and g / (1 + headroom) beyond it. Many replicas behind one router carry
more than their number says, so fleets planned for that demand cost about as much or less. Fleets are sized for the
largest demand of a month, APIs are paid for its mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate

from hardware_db import HardwareDb, Price
from planner.analysis.api_prices import HOUR_S, mean_served_per_s, mean_tokens, price_names
from planner.analysis.headline import gpus_words
from planner.analysis.purchase_alternatives import commitment_words
from planner.core import HOURS_PER_MONTH, InputError, rebuilt
from planner.fleet import Plan
from planner.llm import ApiPrice
from planner.supply import OWNED, is_committed, offered_prices
from planner.traffic import DAYS_PER_MONTH, Forecast

YEAR_MONTHS = 12
AS_PLANNED = "as planned"
"""Name of the fleet bought as the plan buys it."""
LONGER_THAN_A_YEAR = "reserved_3yr"
"""Commitment that is left out: what it costs after the year is not in the table."""


@dataclass(frozen=True)
class MonthAhead:
    """A month of 730 hours.

    Attributes:
        start: its first day.
        demand: mean over it, over today's.
        requests: in it, of what the plan serves.
        gpus: that serve its largest demand, by SKU.
        fleet: the same in words.
    """

    start: date
    demand: float
    requests: float
    gpus: Mapping[str, int]
    fleet: str


@dataclass(frozen=True)
class CostPath:
    """One way to serve the year.

    Attributes:
        name: `AS_PLANNED`, a commitment in words, or the provider of an API.
        usd: of each month [USD].
        price: of the API; None for fleets.
    """

    name: str
    usd: tuple[float, ...]
    price: ApiPrice | None = None

    @property
    def cumulated_usd(self) -> tuple[float, ...]:
        """Up to the end of each month [USD]."""
        return tuple(accumulate(self.usd))


@dataclass(frozen=True)
class CostYear:
    """A year of a plan.

    Attributes:
        forecast: of its demand.
        months: ahead, in order.
        paths: the fleet as planned, then reserved where that is listed, then APIs.
        notes: what is left out, in words.
    """

    forecast: Forecast
    months: tuple[MonthAhead, ...]
    paths: tuple[CostPath, ...]
    notes: tuple[str, ...] = ()

    @property
    def fleet(self) -> CostPath:
        """As planned."""
        return self.paths[0]


def turn(one: Sequence[float], other: Sequence[float]) -> tuple[bool, int]:
    """True if the first is cheaper in the end, and the month (from 1) from which on who is cheaper stays the same.

    >>> turn([10, 10, 10], [4, 8, 12]), turn([1, 2], [3, 4])
    ((True, 3), (True, 1))
    """
    wins = [mine < theirs for mine, theirs in zip(one, other, strict=True)]
    since = max((month for month, won in enumerate(wins, 1) if won != wins[-1]), default=0)
    return wins[-1], since + 1


def cost_year(
    plan: Plan,
    forecast: Forecast,
    prices: Sequence[ApiPrice],
    hardware: HardwareDb,
    headroom: float = 0.0,
    months: int = YEAR_MONTHS,
) -> CostYear:
    """What serving costs month by month, own against API.

    Args:
        plan: feasible.
        forecast: factor 1 is the demand the plan was made for.
        prices: of hosted APIs of its model.
        hardware: where prices of reservations stand, and of GPUs beyond those owned.
        headroom: share by which demand may grow before the fleet does (`planner.analysis.headroom`).
        months: ahead.

    Raises:
        InputError: there is no fleet; or prices are given, and it serves several models.
    """
    request = plan.request
    if plan.cost is None:
        raise InputError("plan", "infeasible", "there is no fleet to pay", "see its diagnosis")
    if prices and (request.services or request.cascade is not None):
        fix = "plan each model by itself, or leave out the APIs"
        raise InputError("services", "several models", "no single API price compares with them", fix)
    hours, served, tokens = HOUR_S * HOURS_PER_MONTH, mean_served_per_s(plan), mean_tokens(plan)
    ahead = list[MonthAhead]()
    for month in range(months):
        first, last = (round((month + end) * DAYS_PER_MONTH) for end in (0, 1))
        factors = [forecast.factor(forecast.start + timedelta(days=day)) for day in range(first, last)]
        demand = math.fsum(factors) / len(factors)
        largest = max(factors)
        gpus = fleet_gpus(plan, min(largest, max(1.0, largest / (1.0 + max(headroom, 0.0)))))
        start = forecast.start + timedelta(days=first)
        ahead.append(MonthAhead(start, demand, demand * hours * served, gpus, gpus_words(gpus, [plan])))
    own = [_bought_usd_per_hour(plan, month.gpus, hardware) for month in ahead]
    paths = [CostPath(AS_PLANNED, tuple(HOURS_PER_MONTH * usd for usd in own))]
    reserved, why = _reserved(plan, [month.gpus for month in ahead], hardware)
    paths += [reserved] if reserved is not None else []
    for name, price in zip(price_names(prices), prices, strict=True):
        paths.append(CostPath(name, tuple(month.requests * tokens.usd(price) for month in ahead), price))
    return CostYear(forecast, tuple(ahead), tuple(paths), why)


def fleet_gpus(plan: Plan, scale: float) -> dict[str, int]:
    """GPUs by SKU with ceil(replicas x scale) replicas in each pool."""
    gpus: dict[str, int] = {}
    for planned in plan.deployments:
        for pool in planned.deployment.pools:
            replicas = max(1, math.ceil(pool.replicas * scale * (1.0 - 1e-12)))
            sku = pool.config.sku.id
            gpus[sku] = gpus.get(sku, 0) + -(-pool.gpus * replicas // pool.replicas)
    return gpus


def _bought_usd_per_hour(plan: Plan, gpus: Mapping[str, int], hardware: HardwareDb) -> float:
    """Cost of so many GPUs bought as the plan buys them [USD/h].

    What is bought of a SKU follows its GPUs, in whole instances. Owned GPUs that are counted cost the same used or not,
    and what goes beyond them is rented.
    """
    now, usd = fleet_gpus(plan, 1.0), 0.0
    for sku in dict.fromkeys(bought.sku for bought in plan.bought):
        mine = [bought for bought in plan.bought if bought.sku == sku]
        policy = plan.request.prices.owned.get(sku)
        owned = [bought for bought in mine if bought.purchase == OWNED] if policy and policy.count is not None else []
        rented = [bought for bought in mine if bought not in owned]
        have = round(sum(max(bought.gpus) for bought in owned))
        usd += math.fsum(bought.usd_per_hour for bought in owned)
        needed, needed_now = max(0, gpus.get(sku, 0) - have), max(0, now.get(sku, 0) - have)
        block = max((bought.price.block_gpus for bought in rented if bought.price is not None), default=1)
        if needed_now:
            ratio = _blocks(needed, block) / _blocks(needed_now, block)
            usd += ratio * math.fsum(bought.usd_per_hour for bought in rented)
        elif needed:
            usd += _least_usd_per_hour({sku: needed}, {sku: offered_prices(sku, plan.request.prices, hardware)})
    return usd


def _blocks(gpus: int, block: int) -> int:
    return math.ceil(gpus / block) * block


def _reserved(
    plan: Plan, gpus: Sequence[Mapping[str, int]], hardware: HardwareDb
) -> tuple[CostPath | None, tuple[str, ...]]:
    """The GPUs of each month reserved, at the cheapest commitment that all their SKUs are listed under; or why not.

    What is reserved is paid to the end of the year, used or not; owned GPUs that are counted stay what they are.
    """
    request = plan.request
    if all(is_committed(name) for name in request.prices.commitments):
        return None, ("reserved: as planned",)
    policy, skus = request.prices, list(plan.gpus)
    counted = {sku: each.count for sku, each in policy.owned.items() if each.count is not None}
    owned_usd = math.fsum(one.usd_per_hour for one in plan.bought if one.purchase == OWNED and one.sku in counted)
    most = [
        {sku: max(max(each.get(sku, 0) for each in gpus[: month + 1]) - (counted.get(sku) or 0), 0) for sku in skus}
        for month in range(len(gpus))
    ]
    known = {price.commitment for price in hardware.prices if price.sku in skus}
    found: dict[str, list[float]] = {}
    for name in sorted(known - {LONGER_THAN_A_YEAR}):
        if is_committed(name):
            bought = rebuilt(policy, commitments=(name,), usd_per_gpu_hour={})
            offers = {sku: offered_prices(sku, bought, hardware) for sku in skus}
            if all(offers.values()):
                found[name] = [owned_usd + _least_usd_per_hour(each, offers) for each in most]
    if not found:
        return None, (f"reserved: no price is listed for {', '.join(skus)}",)
    name = min(found, key=lambda one: math.fsum(found[one]))
    return CostPath(commitment_words(name), tuple(HOURS_PER_MONTH * usd for usd in found[name])), ()


def _least_usd_per_hour(gpus: Mapping[str, int], offers: Mapping[str, Sequence[Price]]) -> float:
    """So many GPUs, those of a SKU all at one of its prices, in whole instances [USD/h]."""
    return math.fsum(
        min((_blocks(count, one.block_gpus) * one.usd_per_gpu_hour for one in offers[sku]), default=math.inf)
        for sku, count in gpus.items()
        if count
    )
