"""Other purchase options and hosted APIs as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from planner.analysis import ApiBreakEven, ApiPrice, PurchaseOffer, mean_served_per_s
from planner.core import HOURS_PER_MONTH, Columns, Table, change, money, percent, significant
from planner.fleet import Plan


def offers_table(plan: Plan, offers: Sequence[PurchaseOffer]) -> Table:
    """The fleet under every purchase alternative, cheapest first."""
    own = plan.cost.usd_per_month if plan.cost else math.nan

    def priced(words: Callable[[float], str]) -> Callable[[PurchaseOffer], str]:
        return lambda offer: "-" if offer.usd_per_month is None else words(offer.usd_per_month)

    columns: Columns[PurchaseOffer] = {
        "way of buying": lambda offer: offer.alternative.name,
        "USD/month": priced(money),
        "cost against the plan": priced(lambda usd: change(usd / own - 1.0)),
        "cheapest fleet": lambda offer: offer.fleet or offer.reason,
        "no price for": lambda offer: ", ".join(offer.alternative.unpriced) or "-",
    }
    ordered = sorted(offers, key=lambda offer: math.inf if offer.usd_per_month is None else offer.usd_per_month)
    note = (
        "The plan as it is; the others planned by theory, without simulation. Reservations are paid for the whole time."
    )
    return Table.of("Ways of buying", ordered, columns, note)


def api_prices_table(plan: Plan, break_evens: Sequence[ApiBreakEven]) -> Table:
    """Cost of hosted APIs for the traffic of a plan, beside that of its fleet; with page and day of every price.

    By the mean rate: cost of the API = rate x 3600 x 730 x USD per request.
    """
    own = plan.cost.usd_per_month if plan.cost else math.nan
    rate = mean_served_per_s(plan)

    def asked(api: ApiBreakEven) -> float:
        return api.api_usd_per_thousand_requests / 1e3 * 3600.0 * HOURS_PER_MONTH * rate

    def of(words: Callable[[ApiPrice], str]) -> Callable[[ApiBreakEven], str]:
        return lambda api: words(api.price)

    prices = [api.price for api in break_evens]
    has_cache = any(price.usd_per_million_cached_tokens != price.usd_per_million_input_tokens for price in prices)
    cached = {"cached tokens": of(lambda price: significant(price.usd_per_million_cached_tokens))} if has_cache else {}
    columns: Columns[ApiBreakEven] = {
        "API": of(lambda price: f"{price.provider} ({price.served_as})"),
        "input tokens": of(lambda price: significant(price.usd_per_million_input_tokens)),
        **cached,
        "output tokens": of(lambda price: significant(price.usd_per_million_output_tokens)),
        "USD/month": lambda api: f"{asked(api):,.0f}",
        "cheaper": lambda api: "this fleet" if own < asked(api) else "API",
        "fleet pays from [1/s]": lambda api: significant(api.fleet_break_even_per_s),
        "of planned": lambda api: percent(api.fleet_break_even_per_s / rate) if rate else "-",
        "read on": of(lambda price: price.read_on.isoformat()),
        "source": of(lambda price: price.source_url),
    }
    notes = dict.fromkeys(f"{price.provider}: {price.note}" for price in prices if price.note)
    note = " · ".join((f"This fleet: {own:,.0f} USD/month. Prices in USD per million tokens.", *notes))
    return Table.of("Self-hosting against hosted APIs", break_evens, columns, note)
