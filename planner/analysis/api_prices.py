"""Self-hosting against hosted APIs: the load from which a fleet is cheaper than what they ask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from planner.analysis.replanner import CHANGE_TOLERANCE, Replanner, baseline
from planner.analysis.types import ApiBreakEven
from planner.core import InputError, rebuilt
from planner.fleet import CostBreakdown, Plan, PlanRequest
from planner.llm import ApiPrice

MILLION = 1e6
HOUR_S = 3600.0
SAME_SHARE = 1e-6
"""Difference of the shares of two demands that are served from which on costs are not compared across demands."""
DEMAND_HALVINGS = 6
"""The break-even demand is searched down to a 64th of the one planned. A choice."""
DEMAND_DOUBLINGS = 3
"""And up to 8 times it: beyond, fleets are slow to plan and cost per request hardly falls any more. A choice."""


@dataclass(frozen=True)
class MeanTokens:
    """Mean tokens of a request: read afresh, found in a cache, written."""

    fresh: float
    cached: float
    written: float

    def usd(self, price: ApiPrice) -> float:
        """Price of such a request at an API [USD].

        fresh * input price + cached * cached price + written * output price, over a million.

        >>> from datetime import date
        >>> from planner.llm import own_price
        >>> groq = own_price("llama-3.3-70b", "0.59/0.79", date(2026, 11, 22))
        >>> round(1e6 * MeanTokens(fresh=1000.0, cached=0.0, written=100.0).usd(groq), 6)  # 590 + 79
        669.0
        """
        return (
            self.fresh * price.usd_per_million_input_tokens
            + self.cached * price.usd_per_million_cached_tokens
            + self.written * price.usd_per_million_output_tokens
        ) / MILLION


def break_even_rate_per_s(usd_per_hour: float, usd_per_request: float) -> float:
    """The rate [1/s] from which a fleet that costs so much whether used or not is cheaper than paying by request.

    rate * 3600 s/h * usd_per_request = usd_per_hour.

    Args:
        usd_per_hour: cost of the fleet [USD/h].
        usd_per_request: price of the API [USD].

    >>> break_even_rate_per_s(36.0, 0.001)
    10.0
    """
    return usd_per_hour / (HOUR_S * usd_per_request)


def api_break_even(
    plan: Plan, prices: Sequence[ApiPrice], replanner: Replanner | None = None
) -> tuple[ApiBreakEven, ...]:
    """A plan against the price of each API: which is cheaper now, and from which load on self-hosting is.

    With a replanner also the demand at which a fleet planned for *that* demand breaks even, at most 14 solves a price;
    without a fleet there is no answer.
    """
    if plan.cost is None:
        return ()
    costs = None if replanner is None else _FleetCosts(plan.request, replanner)
    return tuple(_break_even(plan, plan.cost, price, costs) for price in prices)


def mean_tokens(plan: Plan) -> MeanTokens:
    """Mean tokens of a request that a plan serves, with the share found in its prefix caches."""
    rates = [planned.workload.arrivals.rate_per_s for planned in plan.deployments]
    fresh = cached = written = 0.0
    for planned, rate in zip(plan.deployments, rates, strict=True):
        hits = planned.predicted.pools[0].prefix_hits
        lengths, weight = planned.workload.lengths, rate / sum(rates)
        fresh += weight * lengths.mean_input * (1.0 - hits)
        cached += weight * lengths.mean_input * hits
        written += weight * lengths.mean_output
    return MeanTokens(fresh, cached, written)


def mean_rate_per_s(plan: Plan) -> float:
    """Mean rate over the horizon that a plan serves [1/s]: what its cost, a mean over the horizon too, is for.

    The deployments of a plan are those of the period of the largest demand, so that with a demand profile their rates
    are more than the mean, which is the hours-weighted one of the schedule.
    """
    hours = sum(period.hours for period in plan.schedule)
    if not hours:
        return sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments)
    return sum(period.hours * period.served_per_s for period in plan.schedule) / hours


def mean_served_per_s(plan: Plan) -> float:
    """Requests served, mean over the horizon [1/s]: what the cost of a plan is for. 0 without a fleet."""
    return plan.allocation.rate_per_s if plan.allocation is not None else 0.0


def api_names(break_evens: Sequence[ApiBreakEven]) -> list[str]:
    """Providers, told apart by what they call the model where one is there twice."""
    return price_names([api.price for api in break_evens])


def price_names(prices: Sequence[ApiPrice]) -> list[str]:
    """The same of prices.

    >>> from datetime import date
    >>> from planner.llm import own_price
    >>> price_names([own_price("llama-3.3-70b", "0.59/0.79", date(2026, 11, 22))])
    ['own price']
    """
    providers = [price.provider for price in prices]
    return [one.provider if providers.count(one.provider) == 1 else f"{one.provider} {one.served_as}" for one in prices]


def _break_even(plan: Plan, cost: CostBreakdown, price: ApiPrice, costs: _FleetCosts | None) -> ApiBreakEven:
    tokens, rate = mean_tokens(plan), mean_rate_per_s(plan)
    usd = tokens.usd(price)
    cached_share = tokens.cached / (tokens.fresh + tokens.cached)
    break_even_per_s = break_even_rate_per_s(cost.usd_per_hour, usd)
    return ApiBreakEven(
        price=price,
        api_usd_per_hour=HOUR_S * rate * usd,
        self_usd_per_hour=cost.usd_per_hour,
        api_usd_per_thousand_requests=1e3 * usd,
        cached_share=cached_share,
        self_usd_per_million_input_tokens=cost.usd_per_million_input_tokens / max(1.0 - cached_share, 1e-9),
        self_usd_per_million_output_tokens=cost.usd_per_million_output_tokens,
        fleet_break_even_per_s=break_even_per_s,
        utilisation=break_even_per_s / rate,
        smallest_break_even_per_s=None if costs is None else _smallest_break_even_per_s(plan, usd, costs),
    )


@dataclass
class _FleetCosts:
    """Costs of fleets planned for other demands, and what they say of those between: cost never falls as demand rises.

    Attributes:
        request: of the plan.
        replanner: makes the plans.
        known: by demand [1/s] the cost [USD/h], infinite where there is no fleet, and the mean rate that it serves over
            that demand (that of the plan before where there is none).
    """

    request: PlanRequest
    replanner: Replanner
    known: dict[float, tuple[float, float]] = field(default_factory=dict)

    def undercuts(self, rate_per_s: float, usd_per_request: float) -> bool:
        """True if the fleet planned for a demand costs less than paying by request; planned only if it has to be."""
        shares = [share for _, share in self.known.values()]
        if shares and max(shares) - min(shares) <= SAME_SHARE * max(shares):
            bill = HOUR_S * rate_per_s * shares[0] * usd_per_request
            if min((usd for at, (usd, _) in self.known.items() if at >= rate_per_s), default=math.inf) < bill:
                return True
            if max((usd for at, (usd, _) in self.known.items() if at <= rate_per_s), default=0.0) >= bill:
                return False
            if rate_per_s not in self.known and self.replanner.at_least_usd_per_hour(self._at_rate(rate_per_s)) >= bill:
                return False
        usd_per_hour, share = self._at(rate_per_s)
        return usd_per_hour < HOUR_S * rate_per_s * share * usd_per_request

    def _at_rate(self, rate_per_s: float) -> PlanRequest:
        return rebuilt(self.request, workload=self.request.workload.at_rate(rate_per_s))

    def _at(self, rate_per_s: float) -> tuple[float, float]:
        if rate_per_s not in self.known:
            try:
                fleet = self.replanner.plan(self._at_rate(rate_per_s))
            except InputError:
                fleet = None
            if fleet is None or fleet.cost is None:
                self.known[rate_per_s] = math.inf, next((share for _, share in self.known.values()), 1.0)
            else:
                self.known[rate_per_s] = fleet.cost.usd_per_hour, mean_rate_per_s(fleet) / rate_per_s
        return self.known[rate_per_s]


def _smallest_break_even_per_s(plan: Plan, usd_per_request: float, costs: _FleetCosts) -> float | None:
    """The demand at which a fleet planned for it starts to be cheaper than the API, nearest to the one planned.

    Doubled or halved until the other side wins, then halved on a logarithmic scale: fleets are lumpy, so that a little
    above it the API may win once more. A demand is the rate that the request states; with a demand profile it still
    moves over the day by its factors, and cost and bill are compared at their means.
    """
    request = plan.request
    if not baseline(plan, costs.replanner)[0].feasible:
        return None
    return _crossing(partial(costs.undercuts, usd_per_request=usd_per_request), request.workload.rate_per_s)


def _crossing(wins: Callable[[float], bool], start: float) -> float | None:
    """The least value that wins, nearest to `start`; the furthest tried where all win, None where none does."""
    winner = wins(start)
    inner = outer = start
    for _ in range(DEMAND_HALVINGS if winner else DEMAND_DOUBLINGS):
        inner, outer = outer, outer / 2.0 if winner else outer * 2.0
        if wins(outer) != winner:
            break
    else:
        return outer if winner else None
    lose, win = (outer, inner) if winner else (inner, outer)
    while win - lose > 2.0 * CHANGE_TOLERANCE * win:
        middle = math.sqrt(win * lose)
        lose, win = (lose, middle) if wins(middle) else (middle, win)
    return win
