"""The same request bought in other ways, what else the GPUs of a plan could cost, and what a fleet can carry by hour.

`ways_to_buy` names the commitments that a request could be bought under, `bought_as` is the request under one of them,
`offer_of` plans it by theory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from hardware_db import HardwareDb, is_cited, listed_prices
from planner.analysis.types import ApiBreakEven
from planner.core import InputError, Table, change, money, percent, rebuilt, significant
from planner.fleet import Plan, PlannedDeployment, PlanRequest, ScheduledPeriod
from planner.fleet import plan as make_plan
from planner.serving import sustainable_rate_per_s
from planner.supply import HOURS_PER_MONTH, SPOT, STALE_PRICE_DAYS, SpotTerms, is_committed, offered_prices

FIRST = ("on_demand", "reserved_1yr", "reserved", SPOT)
"""Ways of buying in the order people ask for them; the others follow by name."""
AHEAD = 3.0
"""Capacity is looked for up to so many times the demand of the hour."""


@dataclass(frozen=True)
class WayToBuy:
    """Commitments that a plan may be bought under together.

    Attributes:
        commitments: as price lists name them, e.g. ``("reserved_1yr",)``.
        priced: SKUs of the search with a price under one of them.
        unpriced: SKUs of the search without.
    """

    commitments: tuple[str, ...]
    priced: tuple[str, ...]
    unpriced: tuple[str, ...]

    @property
    def name(self) -> str:
        """In words.

        >>> WayToBuy(("on_demand", "reserved_1yr"), (), ()).name
        'on demand or reserved 1 yr'
        """
        return " or ".join(words_of(one) for one in self.commitments)


@dataclass(frozen=True)
class BuyingOffer:
    """What the fleet costs that is planned under a way of buying (by theory).

    Attributes:
        way: how it is bought.
        usd_per_month: mean over the horizon; None where there is no fleet.
        rate_per_s: served, mean over the horizon [1/s].
        fleet: GPUs in words.
        reason: why there is none; empty where there is one.
    """

    way: WayToBuy
    usd_per_month: float | None
    rate_per_s: float
    fleet: str
    reason: str = ""


def words_of(commitment: str) -> str:
    """A commitment as a person writes it.

    >>> words_of("reserved_1yr"), words_of("reserved_7_30d"), words_of("on_demand")
    ('reserved 1 yr', 'reserved 7 to 30 d', 'on demand')
    """
    known = {"reserved_1yr": "reserved 1 yr", "reserved_7_30d": "reserved 7 to 30 d"}
    return known.get(commitment, commitment.replace("_", " "))


def ways_to_buy(request: PlanRequest, hardware: HardwareDb) -> tuple[WayToBuy, ...]:
    """Every commitment under which a SKU of the search has a price, on demand first; the request's own way among them.

    With a demand profile also each reservation together with on demand: reserved GPUs for what is always needed, the
    others for the peak. An own price counts under every commitment, because it replaces all listed ones.
    """
    known = {price.commitment for price in hardware.prices if price.sku in request.search.skus}
    order = [*(name for name in FIRST if name in known), *sorted(known.difference(FIRST))]
    sets: list[tuple[str, ...]] = [(name,) for name in order]
    if request.profile is not None and "on_demand" in known:
        sets += [("on_demand", name) for name in order if is_committed(name)]
    if request.prices.commitments not in sets:
        sets.insert(0, request.prices.commitments)
    ways = [_way(request, hardware, commitments) for commitments in sets]
    return tuple(way for way in ways if way.priced or way.commitments == request.prices.commitments)


def _way(request: PlanRequest, hardware: HardwareDb, commitments: tuple[str, ...]) -> WayToBuy:
    placeholder = SpotTerms(interruptions_per_hour=1.0, recovery_s=1.0)  # whether there is a price hangs on no terms
    policy = rebuilt(request.prices, commitments=commitments, spot=request.prices.spot or placeholder)
    skus = tuple(dict.fromkeys(request.search.skus))
    priced = tuple(sku for sku in skus if offered_prices(sku, policy, hardware))
    return WayToBuy(commitments, priced, tuple(sku for sku in skus if sku not in priced))


def bought_as(request: PlanRequest, commitments: tuple[str, ...], spot: SpotTerms | None = None) -> PlanRequest:
    """The request under other commitments; `spot` is what spot capacity is worth where the request does not say."""
    return rebuilt(request, prices=rebuilt(request.prices, commitments=commitments, spot=request.prices.spot or spot))


def offer_of(
    request: PlanRequest,
    hardware: HardwareDb,
    way: WayToBuy,
    spot: SpotTerms | None = None,
    say: Callable[[str], None] | None = None,
) -> BuyingOffer:
    """The fleet under a way of buying, planned by theory; without terms for spot where it needs them there is none."""
    try:
        found = make_plan(bought_as(request, way.commitments, spot), hardware, say, simulate=False, alternatives=False)
    except InputError as error:
        return BuyingOffer(way, None, 0.0, "", str(error))
    return offer_made(found, way)


def offer_made(plan: Plan, way: WayToBuy) -> BuyingOffer:
    """A plan that was bought so, as an offer."""
    if plan.cost is None or plan.allocation is None:
        why = plan.diagnosis[0] if plan.diagnosis else "no fleet meets the targets"
        return BuyingOffer(way, None, 0.0, "", why)
    fleet = " + ".join(f"{count} x {sku}" for sku, count in plan.gpus.items())
    return BuyingOffer(way, plan.cost.usd_per_month, plan.allocation.rate_per_s, fleet)


# --- what else the same GPUs could cost -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PriceRange:
    """The same GPUs at other listed prices.

    Attributes:
        lowest_usd_per_hour: every SKU at its cheapest listed price of the same commitment.
        highest_usd_per_hour: every SKU at its dearest.
        offers: prices that were looked at.
    """

    lowest_usd_per_hour: float
    highest_usd_per_hour: float
    offers: int

    @property
    def usd_per_month(self) -> tuple[float, float]:
        """Both ends by the month of 730 hours."""
        return self.lowest_usd_per_hour * HOURS_PER_MONTH, self.highest_usd_per_hour * HOURS_PER_MONTH


def price_range(plan: Plan, hardware: HardwareDb) -> PriceRange | None:
    """What the GPUs of a plan would cost at the cheapest and at the dearest price listed for them.

    Equation: sum over purchases of USD/h times other price / price paid. Prices of the same SKU and commitment count
    that the policy allows (provider, region, confidence) and that are not older than `STALE_PRICE_DAYS`; GPUs of one's
    own and own prices stay as they are. None where nothing is bought at a listed price, or none is young enough.
    """
    policy = plan.request.prices
    low = high = 0.0
    offers = 0
    for one in plan.bought:
        usd: list[float] = []
        if one.price is not None and one.sku not in policy.usd_per_gpu_hour and one.price.usd_per_gpu_hour > 0.0:
            listed = listed_prices(
                hardware,
                one.sku,
                commitment=one.price.commitment,
                provider=policy.provider,
                region=policy.region,
                min_confidence=policy.min_confidence,
                not_before=policy.day - timedelta(days=STALE_PRICE_DAYS),
            )
            usd = [price.usd_per_gpu_hour for price in listed if is_cited(price) and price.usd_per_gpu_hour > 0.0]
        offers += len(usd)
        paid = one.price.usd_per_gpu_hour if one.price is not None and usd else 1.0
        low += one.usd_per_hour * min(usd, default=paid) / paid
        high += one.usd_per_hour * max(usd, default=paid) / paid
    return PriceRange(low, high, offers) if offers else None


# --- what a fleet can carry by hour -----------------------------------------------------------------------------------


def period_capacities_per_s(plan: Plan, say: Callable[[str], None] | None = None) -> tuple[float | None, ...]:
    """By period of the schedule, the largest rate [1/s] at which what is on meets its targets, by theory.

    Sum over deployments of `sustainable_rate_per_s` with the replicas of the period, less those that may fail, up to
    `AHEAD` times the largest demand. None for periods in which something is on that the busiest one does without, or in
    which pools of one configuration serve several deployments: there the schedule does not say what serves what.
    """
    known: dict[tuple[int, tuple[int, ...]], float] = {}
    names = [name for planned in plan.deployments for name in _pool_names(planned)]
    found: list[float | None] = []
    for period in plan.schedule:
        if len(set(names)) < len(names) or not set(period.replicas) <= set(names):
            found.append(None)
            continue
        rates = []
        for place, planned in enumerate(plan.deployments):
            sizes = _survivors(planned, period)
            if (place, sizes) not in known:
                (say or (lambda _: None))(f"capacity of {' + '.join(map(str, sizes))} replicas")
                known[place, sizes] = _sustained(planned, sizes)
            rates.append(known[place, sizes])
        found.append(math.fsum(rates))
    return tuple(found)


def _pool_names(planned: PlannedDeployment) -> list[str]:
    """As `ScheduledPeriod.replicas` names them."""
    return [f"{option.role} {option.name}" for option in planned.option.pools]


def _survivors(planned: PlannedDeployment, period: ScheduledPeriod) -> tuple[int, ...]:
    """Replicas that are on in a period and may be counted on, pool by pool."""
    pairs = zip(_pool_names(planned), planned.deployment.pools, planned.judged.pools, strict=True)
    return tuple(max(0, period.replicas.get(name, 0) - (all_.replicas - left.replicas)) for name, all_, left in pairs)


def _sustained(planned: PlannedDeployment, sizes: tuple[int, ...]) -> float:
    if min(sizes) < 1:
        return 0.0
    most = AHEAD * planned.workload.rate_per_s
    return sustainable_rate_per_s(planned.option.deployment(sizes), planned.workload, planned.slo, at_most=most)


# --- against hosted APIs ----------------------------------------------------------------------------------------------


def mean_served_per_s(plan: Plan) -> float:
    """Requests served, mean over the horizon [1/s]: what the cost of a plan is for. 0 without a fleet."""
    return plan.allocation.rate_per_s if plan.allocation is not None else 0.0


def mean_sustained_per_s(plan: Plan) -> float:
    """Mean rate [1/s] up to which the fleet meets its targets: what its deployments sustain at the peak, over it.

    Equation: served mean rate times the sum of sustained rates / sum of routed rates.
    """
    routed = math.fsum(planned.workload.rate_per_s for planned in plan.deployments)
    sustained = math.fsum(planned.sustained_per_s for planned in plan.deployments)
    return mean_served_per_s(plan) * sustained / routed if routed else 0.0


def api_names(found: Sequence[ApiBreakEven]) -> list[str]:
    """Providers, told apart by what they call the model where one is there twice."""
    providers = [one.price.provider for one in found]
    return [
        one.price.provider
        if providers.count(one.price.provider) == 1
        else f"{one.price.provider} {one.price.served_as}"
        for one in found
    ]


def api_table(plan: Plan, found: Sequence[ApiBreakEven]) -> Table:
    """What hosted APIs ask for the traffic of a plan, beside what its fleet costs; with page and day of every price.

    By the mean rate: cost of the API = rate x 3600 x 730 x USD per request.
    """
    own = plan.cost.usd_per_month if plan.cost else math.nan
    rate = mean_served_per_s(plan)
    has_cache = any(one.price.usd_per_million_cached_tokens != one.price.usd_per_million_input_tokens for one in found)
    columns = tuple(name for name in API_HINTS if has_cache or name != CACHED)
    rows = tuple(_api_cells(one, own, rate, has_cache) for one in found)
    notes = dict.fromkeys(f"{one.price.provider}: {one.price.note}" for one in found if one.price.note)
    note = " · ".join((f"This fleet: {own:,.0f} USD/month. Prices in USD per million tokens.", *notes))
    return Table("Self-hosting against hosted APIs", columns, rows, note)


def _api_cells(one: ApiBreakEven, own_usd_per_month: float, rate_per_s: float, has_cache: bool) -> tuple[str, ...]:
    price = one.price
    asked = one.api_usd_per_thousand_requests / 1e3 * 3600.0 * HOURS_PER_MONTH * rate_per_s
    return (
        f"{price.provider} ({price.served_as})",
        significant(price.usd_per_million_input_tokens),
        *([significant(price.usd_per_million_cached_tokens)] if has_cache else []),
        significant(price.usd_per_million_output_tokens),
        f"{asked:,.0f}",
        "this fleet" if own_usd_per_month < asked else "API",
        significant(one.fleet_break_even_per_s),
        percent(one.fleet_break_even_per_s / rate_per_s) if rate_per_s else "-",
        price.read_on.isoformat(),
        price.source_url,
    )


CACHED = "cached"
API_HINTS: dict[str, str] = {
    "API": "Who serves the model, and what the provider calls it or the tier it belongs to (listed).",
    "input": "Price of input tokens that no cache holds [USD per million tokens] (listed).",
    CACHED: "Price of input tokens found in the provider's prompt cache [USD per million tokens]; as other input where "
    "none is listed (listed).",
    "output": "Price of output tokens [USD per million tokens] (listed).",
    "USD/month": "What the API asks for the mean traffic of the plan over 730 hours: price times mean tokens of a "
    "request times requests (listed prices, given traffic; cached share as predicted for the fleet).",
    "cheaper": "Which of the two costs less at the planned demand.",
    "fleet pays from [1/s]": "Mean demand [requests/s] from which this fleet, paid whether used or not, costs less "
    "than the API: cost of the fleet / (3600 x price of a request).",
    "of planned": "That demand over the planned one; above 100 % the API is cheaper than this fleet.",
    "read on": "Day on which the price was read.",
    "source": "Page on which the price was read.",
}
"""Headings of `api_table` and what they mean."""


# --- tables of ways of buying -----------------------------------------------------------------------------------------


def buying_table(plan: Plan, offers: Sequence[BuyingOffer]) -> Table:
    """The fleet under every way of buying, cheapest first."""
    own = plan.cost.usd_per_month if plan.cost else math.nan
    ordered = sorted(offers, key=lambda offer: (offer.usd_per_month is None, offer.usd_per_month or 0.0))
    rows = tuple(
        (
            offer.way.name,
            "-" if offer.usd_per_month is None else money(offer.usd_per_month),
            "-" if offer.usd_per_month is None else change(offer.usd_per_month / own - 1.0),
            offer.fleet or offer.reason,
            ", ".join(offer.way.unpriced) or "-",
        )
        for offer in ordered
    )
    note = (
        "The plan as it is; the others planned by theory, without simulation. Reservations are paid for the whole time."
    )
    return Table("Ways of buying", tuple(BUYING_HINTS), rows, note)


BUYING_HINTS: dict[str, str] = {
    "way of buying": "Terms under which all GPUs of the fleet are bought, as price lists name them (listed).",
    "USD/month": "Mean cost over 730 hours of the cheapest fleet under these terms (listed prices times planned GPUs).",
    "against the plan": "Cost over that of the plan as it is bought now (counted).",
    "best fleet": "GPUs of the cheapest fleet under these terms, or why there is none (planned by theory).",
    "no price for": "SKUs of the search that have no usable price under these terms; the fleet does without them "
    "(listed).",
}
"""Headings of `buying_table` and what they mean."""
