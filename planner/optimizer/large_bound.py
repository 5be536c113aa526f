"""What prices of limits prove about the cost of a large fleet problem.

Every vector of prices of the limits proves a bound: each slice is then best served by its cheapest route (Geoffrion
1974; M. E. Lübbecke and J. Desrosiers, "Selected topics in column generation", Operations Research 53(6), 2005).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.large_tables import SECONDS_UNSERVED, Tables
from planner.optimizer.types import UnitStage

ZERO_PRICE = 1e-50
"""Stands for a price of zero, so that a request that cannot be served (`SECONDS_UNSERVED`) is never free."""
NEGLIGIBLE = 1e-6
"""Shortfall, as a share of the demand, that counts as none: `FEASIBILITY_TOLERANCE`."""


@dataclass(frozen=True)
class Prices:
    """Prices of what units use. All are >= 0 and are made to prove a bound by `lagrangian_bound`.

    Attributes:
        limits: of each limit [L, T].
        starts: of the starts of each period, as a share of their cost [T].
        pins: of each pinned resource [T], by resource index.
        unit_limits: of a unit whose number is limited, by (unit, period); absent: the price of what it takes.
    """

    limits: FloatArray
    starts: FloatArray
    pins: dict[int, FloatArray]
    unit_limits: dict[tuple[int, int], float]


@dataclass(frozen=True)
class CheapestRoutes:
    """Cheapest way to serve one request per second of every slice in every period.

    Attributes:
        price: of the cheapest route of all [USD/h of horizon mean; S, T].
        first, second: the units of that route; second is -1 for a whole unit [S, T].
        section_price: by section, the price of its cheapest unit [S, T].
    """

    price: FloatArray
    first: IntArray
    second: IntArray
    section_price: tuple[FloatArray, ...]


@dataclass(frozen=True)
class LagrangianBound:
    """What prices prove.

    Attributes:
        cost: no fleet costs less [USD/h].
        unit_price: of each unit in each period, prices of limits included [USD/h of horizon mean; J, T].
        routes: cheapest way to serve each slice in each period.
        limits, starts: prices after repair [L, T] and [T].
        by_period: what of the bound each period proves, given these prices [USD/h; T].
        between_periods: what is proved beside that: of committed purchases and work that may wait [USD/h].
        purchase_gain: what one unit of each of `Tables.purchases` brings in each period [USD/h; purchases, T].
        worth: of all of a slice's amount [USD/h; S, T].
        idle: (unit, period) that would pay for being on without serving, to save a start; the bound holds without.
    """

    cost: float
    unit_price: FloatArray
    routes: CheapestRoutes
    limits: FloatArray
    starts: FloatArray
    by_period: FloatArray
    between_periods: float
    purchase_gain: FloatArray
    worth: FloatArray
    idle: tuple[tuple[int, int], ...]


def cheapest_units(price: FloatArray, tables: Tables, units: IntArray) -> tuple[FloatArray, IntArray]:
    """Cheapest unit of some for each slice and period.

    Args:
        price: of each unit in each period [USD/h of horizon mean; J, T].
        tables: of the problem.
        units: to choose from [indices].

    Returns:
        Price of one request per second [USD/h of horizon mean; S, T], and the unit [S, T].
    """
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


def lagrangian_bound(tables: Tables, prices: Prices, most_worth: float = np.inf) -> LagrangianBound:
    r"""What prices prove, after the least repair that makes them admissible.

    With price :math:`\pi_l` of limit :math:`l`, a unit costs :math:`c_j = u_j + \sum_l a_{jl} \pi_l`, a slice is worth
    :math:`\lambda_s = \min_j c_j / r_{js}`, and no fleet costs less than

    .. math:: \sum_s d_s \lambda_s - \sum_l \text{cap}_l \pi_l + \text{what purchases and limited units cannot avoid}

    Source: weak duality of the Lagrangian relaxation, A. M. Geoffrion, "Lagrangean relaxation for integer programming",
    Mathematical Programming Study 2 (1974), 82-114. Repair by scaling is A. A. Farley's bound, Operations Research
    38(5) (1990), 922-923, for one resource at a time.

    Args:
        tables: of the problem.
        prices: any; converged or not.
        most_worth: what serving none of a slice costs, if that may be [USD/h of horizon mean].

    Returns:
        The bound, with the prices that prove it.
    """
    limits, pins = _admissible_prices(tables, prices)
    starts = np.clip(prices.starts, 0.0, 1.0)
    full, idle = _unit_prices(tables, limits, starts)
    own = full.copy()
    limited = np.isfinite(tables.high)
    gains = np.minimum(full[limited], 0.0) * tables.high[limited][:, None]
    by_period = gains.sum(axis=0) - np.where(np.isfinite(tables.caps), tables.caps, 0.0) @ limits
    for (unit, period), price in prices.unit_limits.items():
        used = max(price, 0.0) if np.isfinite(tables.high[unit]) else min(max(price, 0.0), full[unit, period])
        rest = full[unit, period] - used
        by_period[period] += rest * (tables.low[unit] if rest >= 0.0 else tables.high[unit])
        if np.isfinite(tables.high[unit]):
            by_period[period] -= min(full[unit, period], 0.0) * tables.high[unit]
        own[unit, period] = used
    own = np.maximum(own, ZERO_PRICE)
    routes = _cheapest_routes(tables, own)
    worth = np.where(tables.amounts > 0.0, np.minimum(tables.amounts * routes.price, most_worth), 0.0)
    by_period += worth[~tables.deferrable].sum(axis=0)
    purchases = _purchases_bound(tables, limits, pins)
    by_period += purchases.by_period
    between = float(worth[tables.deferrable].min(axis=1, initial=np.inf).sum()) + purchases.between_periods
    return LagrangianBound(
        cost=float(by_period.sum()) + between,
        unit_price=full,
        routes=routes,
        limits=limits,
        starts=starts,
        by_period=by_period,
        between_periods=between,
        purchase_gain=purchases.gain,
        worth=worth,
        idle=idle,
    )


def proved_gap(cost: float, bound: float) -> float:
    """Largest share of a cost that could be saved.

    Args:
        cost: of a fleet [USD/h]; infinite: none was found.
        bound: no fleet costs less [USD/h].

    Returns:
        (cost - bound) / cost, at least 0; infinite without a fleet.

    >>> proved_gap(200.0, 199.0)
    0.005
    """
    if not np.isfinite(cost):
        return np.inf
    return max(cost - bound, 0.0) / cost if cost > 0.0 else 0.0


def _unit_prices(
    tables: Tables, limits: FloatArray, starts: FloatArray
) -> tuple[FloatArray, tuple[tuple[int, int], ...]]:
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


def _admissible_prices(tables: Tables, prices: Prices) -> tuple[FloatArray, dict[int, FloatArray]]:
    """Prices no higher than what unlimited purchases ask, so that nothing is gained by option more than is used."""
    limits = np.maximum(prices.limits, 0.0)
    pins = {resource: np.maximum(price, 0.0) for resource, price in prices.pins.items()}
    for option in tables.purchases:
        if np.isfinite(option.high):
            continue
        pin = pins.get(option.resource, np.zeros(tables.periods))
        gain = limits[option.limit_index] * option.purchase.usable_share + pin
        if option.purchase.committed:
            keep = np.full(tables.periods, min(1.0, option.purchase.usd_per_hour / max(gain.sum(), 1e-300)))
        else:
            keep = np.minimum(1.0, option.purchase.usd_per_hour * tables.weights / np.maximum(gain, 1e-300))
        limits[option.limit_index] *= keep
        if option.resource in pins:
            pins[option.resource] = pins[option.resource] * keep
    return limits, pins


@dataclass(frozen=True)
class _PurchasesBound:
    """Least that purchases cost when what they bring is paid, pinned amounts included.

    Attributes:
        by_period: of purchases by period and pinned resources [USD/h of horizon mean; T].
        between_periods: of committed purchases [USD/h].
        gain: what one unit of each purchase brings in each period [USD/h of horizon mean; purchases, T].
    """

    by_period: FloatArray
    between_periods: float
    gain: FloatArray


def _purchases_bound(tables: Tables, limits: FloatArray, pins: dict[int, FloatArray]) -> _PurchasesBound:
    """What purchases cost at the least at these prices of limits [L, T] and pins [T]."""
    by_period = np.zeros(tables.periods)
    between = 0.0
    gain = np.zeros((len(tables.purchases), tables.periods))
    for index, option in enumerate(tables.purchases):
        gain[index] = limits[option.limit_index] * option.purchase.usable_share + pins.get(option.resource, 0.0)
        usd = option.purchase.usd_per_hour
        most = option.high if np.isfinite(option.high) else 0.0
        if option.purchase.committed:
            net = usd - float(gain[index].sum())
            between += net * (option.low if net >= 0.0 else most)
        else:
            nets = usd * tables.weights - gain[index]
            by_period += nets * np.where(nets >= 0.0, option.low, most)
    for resource, price in pins.items():
        by_period += price * tables.pins[resource]
    return _PurchasesBound(by_period, between, gain)


def _cheapest_routes(tables: Tables, price: FloatArray) -> CheapestRoutes:
    """Cheapest route of every slice and period over all sections, at these prices of units [J, T]."""
    shape = tables.demand.shape
    best = np.full(shape, SECONDS_UNSERVED)
    first = np.zeros(shape, dtype=np.int64)
    second = np.full(shape, -1, dtype=np.int64)
    by_section = [cheapest_units(price, tables, section.units) for section in tables.sections]
    seconds = {section.channel: at for at, section in enumerate(tables.sections) if section.stage is UnitStage.SECOND}
    for section, (own_price, unit) in zip(tables.sections, by_section, strict=True):
        if section.stage is UnitStage.SECOND or (section.stage is UnitStage.FIRST and section.channel not in seconds):
            continue
        route_price, partner = own_price, np.full(shape, -1, dtype=np.int64)
        if section.stage is UnitStage.FIRST:
            partner_price, partner = by_section[seconds[section.channel]]
            route_price = own_price + partner_price
        better = route_price < best
        best = np.where(better, route_price, best)
        first = np.where(better, unit, first)
        second = np.where(better, partner, second)
    return CheapestRoutes(best, first, second, tuple(price for price, _ in by_section))


def least_excess(tables: Tables, bound: LagrangianBound, period: int) -> FloatArray:
    """Least that a fleet with one such unit on in a period costs above the bound.

    Its price less the most that one unit can earn: what slices pay it, each at most for all its demand (the fractional
    knapsack of Dantzig 1957, best payer first). Of a pair of stages the second is paid its cheapest unit's price.

    Args:
        tables: of the problem.
        bound: with the prices that prove it.
        period: index.

    Returns:
        By unit [USD/h; J].
    """
    demand = tables.amounts[:, period]
    earned = np.zeros(len(tables.unit_names))
    route = np.where(demand > 0.0, bound.routes.price[:, period], 0.0)
    second = {
        section.channel: np.minimum(price[:, period], route)
        for section, price in zip(tables.sections, bound.routes.section_price, strict=True)
        if section.stage is UnitStage.SECOND
    }
    for section in tables.sections:
        paid = route
        if section.stage is not UnitStage.WHOLE:
            later = second.get(section.channel, np.zeros_like(route))
            paid = later if section.stage is UnitStage.SECOND else route - later
        seconds = tables.seconds[section.units]
        rate_of_pay = paid / seconds
        order = np.argsort(-rate_of_pay, axis=1)
        most = np.take_along_axis(np.minimum(seconds * demand, 1.0), order, axis=1)
        shares = np.diff(np.minimum(np.cumsum(most, axis=1), 1.0), axis=1, prepend=0.0)
        earned[section.units] = (np.take_along_axis(rate_of_pay, order, axis=1) * shares).sum(axis=1)
    return bound.unit_price[:, period] - earned


def cheapest_purchase_prices(tables: Tables) -> Prices:
    """Prices that the cheapest purchase of each resource asks: exact where nothing is scarce.

    Args:
        tables: of the problem.

    Returns:
        Prices of limits; those of starts, pins and limited units are 0.
    """
    limits = np.zeros((len(tables.caps), tables.periods))
    for limit_index in {option.limit_index for option in tables.purchases}:
        asks = [
            option.purchase.usd_per_hour / option.purchase.usable_share
            for option in tables.purchases
            if option.limit_index == limit_index
        ]
        limits[limit_index] = min(asks) * tables.weights
    return Prices(limits, np.zeros(tables.periods), {}, {})
