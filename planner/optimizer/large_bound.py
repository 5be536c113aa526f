"""What prices of limits prove about the cost of a large fleet problem.

Every vector of prices of the limits proves a bound: each slice is then best served by its cheapest route (Geoffrion
1974; M. E. Lübbecke and J. Desrosiers, "Selected topics in column generation", Operations Research 53(6), 2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.large_tables import NEVER, Floats, Integers, Tables
from planner.optimizer.types import Stage

FREE = 1e-50
"""Stands for a price of zero, so that a route nobody can take (`NEVER`) is never free."""
NEGLIGIBLE = 1e-6
"""Shortfall, as a share of the demand, that counts as none: `FEASIBILITY_TOLERANCE`."""


@dataclass(frozen=True)
class Prices:
    """Prices of what units use. All are >= 0 and are made to prove a bound by `bound_of`.

    Attributes:
        limits: of each limit [L, T].
        starts: of the starts of each period, as a share of their cost [T].
        pins: of each pinned resource [T], by resource index.
        pools: of a unit whose number is limited, by (unit, period); absent: the price of what it takes.
    """

    limits: Floats
    starts: Floats
    pins: dict[int, Floats]
    pools: dict[tuple[int, int], float]


@dataclass(frozen=True)
class Bound:
    """What prices prove.

    Attributes:
        cost: no fleet costs less [USD/h].
        unit_price: of each unit in each period, prices of limits included [USD/h of horizon mean; J, T].
        route_price: cheapest way to serve one request per second [S, T].
        first, second: the units of that way; second is -1 for a whole unit [S, T].
        section_price: by section, the same within it [S, T].
        limits, starts: prices after repair [L, T] and [T].
        by_period: what of the bound each period proves, given these prices [T]; `rest` is what is proved between them.
        committed: price of one unit of each purchase in each period, as `Tables.buyings` [USD/h; T].
        worth: of all of a slice's amount [S, T].
        idle: (unit, period) that would pay for being on without serving, to save a start; the bound holds without.
    """

    cost: float
    unit_price: Floats
    route_price: Floats
    first: Integers
    second: Integers
    section_price: tuple[Floats, ...]
    limits: Floats
    starts: Floats
    by_period: Floats
    rest: float
    committed: Floats
    worth: Floats
    idle: tuple[tuple[int, int], ...]


def cheapest(price: Floats, tables: Tables, units: Integers) -> tuple[Floats, Integers]:
    """Cheapest unit of some for each slice and period, and its price per request per second [S, T]."""
    seconds = tables.seconds[units]
    best = np.empty((seconds.shape[1], price.shape[1]))
    chosen = np.empty(best.shape, dtype=np.int64)
    columns = np.arange(seconds.shape[1])
    for period in range(price.shape[1]):
        product = seconds * price[units, period][:, None]
        row = product.argmin(axis=0)
        best[:, period] = product[row, columns]
        chosen[:, period] = units[row]
    return best, chosen


def bound_of(tables: Tables, prices: Prices, most_worth: float = np.inf) -> Bound:
    r"""What these prices prove, after the least repair that makes them admissible.

    With price :math:`\pi_l` of limit :math:`l`, a unit costs :math:`c_j = u_j + \sum_l a_{jl} \pi_l`, a slice is worth
    :math:`\lambda_s = \min_j c_j / r_{js}`, and no fleet costs less than

    .. math:: \sum_s d_s \lambda_s - \sum_l \text{cap}_l \pi_l + \text{what purchases and limited units cannot avoid}

    Source: weak duality of the Lagrangian relaxation, A. M. Geoffrion, "Lagrangean relaxation for integer programming",
    Mathematical Programming Study 2 (1974), 82-114. Repair by scaling is A. A. Farley's bound, Operations Research
    38(5) (1990), 922-923, for one resource at a time. `most_worth` is what serving none of a slice costs, if that may
    be.
    """
    limits, pins = _affordable(tables, prices)
    starts = np.clip(prices.starts, 0.0, 1.0)
    full, idle = _unit_price(tables, limits, starts)
    own = full.copy()
    limited = np.isfinite(tables.high)
    gains = np.minimum(full[limited], 0.0) * tables.high[limited][:, None]
    by_period = gains.sum(axis=0) - np.where(np.isfinite(tables.caps), tables.caps, 0.0) @ limits
    for (unit, period), price in prices.pools.items():
        used = max(price, 0.0) if np.isfinite(tables.high[unit]) else min(max(price, 0.0), full[unit, period])
        rest = full[unit, period] - used
        by_period[period] += rest * (tables.low[unit] if rest >= 0.0 else tables.high[unit])
        if np.isfinite(tables.high[unit]):
            by_period[period] -= min(full[unit, period], 0.0) * tables.high[unit]
        own[unit, period] = used
    own = np.maximum(own, FREE)
    route, first, second, by_section = _routes(tables, own)
    worth = np.where(tables.amounts > 0.0, np.minimum(tables.amounts * route, most_worth), 0.0)
    by_period += worth[~tables.deferrable].sum(axis=0)
    bought, between, gain = _purchases(tables, limits, pins)
    by_period += bought
    rest = float(worth[tables.deferrable].min(axis=1, initial=np.inf).sum()) + between
    cost = float(by_period.sum()) + rest
    return Bound(cost, full, route, first, second, by_section, limits, starts, by_period, rest, gain, worth, idle)


def _unit_price(tables: Tables, limits: Floats, starts: Floats) -> tuple[Floats, tuple[tuple[int, int], ...]]:
    """Price of a unit on [J, T], and which units would be paid for idling: for those the credit of starts is cut."""
    base = tables.unit_usd[:, None] * tables.weights + tables.takes @ limits
    if not tables.has_starts:
        return base, ()
    price = base + tables.start_usd[:, None] * (starts - np.roll(starts, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        paid = (price < 0.0) & np.isinf(tables.high)[:, None]
        keep = np.where(paid, base / (base - price), 1.0).min()
        gain = np.where(price < 0.0, price / tables.start_usd[:, None], 0.0)
    idle = set()
    for takers in (tables.takes > 0.0).T:
        units = np.flatnonzero(takers)
        if len(units):
            best = units[gain[units].argmin(axis=0)]
            idle |= {(int(best[t]), t) for t in range(tables.periods) if gain[best[t], t] < -NEGLIGIBLE}
    kept = base + keep * (price - base)
    return np.where(np.isinf(tables.high)[:, None], np.maximum(kept, 0.0), kept), tuple(sorted(idle))


def _affordable(tables: Tables, prices: Prices) -> tuple[Floats, dict[int, Floats]]:
    """Prices no higher than what unlimited purchases ask, so that buying to sell is no business."""
    limits = np.maximum(prices.limits, 0.0)
    pins = {resource: np.maximum(price, 0.0) for resource, price in prices.pins.items()}
    for buying in tables.buyings:
        if np.isfinite(buying.high):
            continue
        pin = pins.get(buying.resource, np.zeros(tables.periods))
        gain = limits[buying.hold] * buying.purchase.usable_share + pin
        if buying.purchase.committed:
            keep = np.full(tables.periods, min(1.0, buying.purchase.usd_per_hour / max(gain.sum(), 1e-300)))
        else:
            keep = np.minimum(1.0, buying.purchase.usd_per_hour * tables.weights / np.maximum(gain, 1e-300))
        limits[buying.hold] *= keep
        if buying.resource in pins:
            pins[buying.resource] = pins[buying.resource] * keep
    return limits, pins


def _purchases(tables: Tables, limits: Floats, pins: dict[int, Floats]) -> tuple[Floats, float, Floats]:
    """Least that purchases cost when what they bring is paid at these prices, pinned amounts included.

    By period [T], for committed purchases together, and what one unit of each purchase brings [buyings, T].
    """
    by_period = np.zeros(tables.periods)
    between = 0.0
    gains = np.zeros((len(tables.buyings), tables.periods))
    for index, buying in enumerate(tables.buyings):
        gains[index] = limits[buying.hold] * buying.purchase.usable_share + pins.get(buying.resource, 0.0)
        usd = buying.purchase.usd_per_hour
        most = buying.high if np.isfinite(buying.high) else 0.0
        if buying.purchase.committed:
            net = usd - float(gains[index].sum())
            between += net * (buying.low if net >= 0.0 else most)
        else:
            nets = usd * tables.weights - gains[index]
            by_period += nets * np.where(nets >= 0.0, buying.low, most)
    for resource, price in pins.items():
        by_period += price * tables.pins[resource]
    return by_period, between, gains


def _routes(tables: Tables, price: Floats) -> tuple[Floats, Integers, Integers, tuple[Floats, ...]]:
    """Cheapest route of every slice and period over all sections."""
    shape = tables.demand.shape
    best = np.full(shape, NEVER)
    first = np.zeros(shape, dtype=np.int64)
    second = np.full(shape, -1, dtype=np.int64)
    found = [cheapest(price, tables, section.units) for section in tables.sections]
    seconds = {one.channel: at for at, one in enumerate(tables.sections) if one.stage is Stage.SECOND}
    for section, (cost, unit) in zip(tables.sections, found, strict=True):
        if section.stage is Stage.SECOND or (section.stage is Stage.FIRST and section.channel not in seconds):
            continue
        partner = np.full(shape, -1, dtype=np.int64)
        if section.stage is Stage.FIRST:
            cost, partner = cost + found[seconds[section.channel]][0], found[seconds[section.channel]][1]  # noqa: PLW2901
        better = cost < best
        best, first, second = (
            np.where(better, cost, best),
            np.where(better, unit, first),
            np.where(better, partner, second),
        )
    return best, first, second, tuple(cost for cost, _ in found)


def least_excess(tables: Tables, bound: Bound, period: int) -> Floats:
    """Least that a fleet with one such unit on in a period costs above the bound [USD/h; J].

    Its price less the most that one unit can earn: what slices pay it, each at most for all its demand (the fractional
    knapsack of Dantzig 1957, best payer first). Of a pair of stages the second is paid its cheapest unit's price.
    """
    demand = tables.amounts[:, period]
    earned = np.zeros(len(tables.unit_names))
    route = np.where(demand > 0.0, bound.route_price[:, period], 0.0)
    second = {
        section.channel: np.minimum(price[:, period], route)
        for section, price in zip(tables.sections, bound.section_price, strict=True)
        if section.stage is Stage.SECOND
    }
    for section in tables.sections:
        paid = route
        if section.stage is not Stage.WHOLE:
            later = second.get(section.channel, np.zeros_like(route))
            paid = later if section.stage is Stage.SECOND else route - later
        seconds = tables.seconds[section.units]
        rate_of_pay = paid / seconds
        order = np.argsort(-rate_of_pay, axis=1)
        most = np.take_along_axis(np.minimum(seconds * demand, 1.0), order, axis=1)
        shares = np.diff(np.minimum(np.cumsum(most, axis=1), 1.0), axis=1, prepend=0.0)
        earned[section.units] = (np.take_along_axis(rate_of_pay, order, axis=1) * shares).sum(axis=1)
    return bound.unit_price[:, period] - earned


def first_prices(tables: Tables) -> Prices:
    """What the cheapest purchase of each resource asks: exact where nothing is scarce."""
    limits = np.zeros((len(tables.caps), tables.periods))
    for hold in {buying.hold for buying in tables.buyings}:
        ask = min(one.purchase.usd_per_hour / one.purchase.usable_share for one in tables.buyings if one.hold == hold)
        limits[hold] = ask * tables.weights
    return Prices(limits, np.zeros(tables.periods), {}, {})
