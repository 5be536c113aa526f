"""Other purchase options and hosted APIs as tables, with what every heading means."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.analysis import ApiBreakEven, PurchaseOffer, mean_served_per_s
from planner.core import HOURS_PER_MONTH, Table, change, money, percent, significant
from planner.fleet import Plan

OFFER_HINTS: dict[str, str] = {
    "way of buying": "Terms under which all GPUs of the fleet are bought, as price lists name them (listed).",
    "USD/month": "Mean cost over 730 hours of the cheapest fleet under these terms (listed prices times planned GPUs).",
    "against the plan": "Cost over that of the plan as it is bought now (counted).",
    "best fleet": "GPUs of the cheapest fleet under these terms, or why there is none (planned by theory).",
    "no price for": "SKUs of the search that have no usable price under these terms; the fleet does without them "
    "(listed).",
}
"""Headings of `offers_table` and what they mean."""
CACHED = "cached"
API_PRICE_HINTS: dict[str, str] = {
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
"""Headings of `api_prices_table` and what they mean."""


def offers_table(plan: Plan, offers: Sequence[PurchaseOffer]) -> Table:
    """The fleet under every purchase alternative, cheapest first."""
    own = plan.cost.usd_per_month if plan.cost else math.nan
    ordered = sorted(offers, key=lambda offer: (offer.usd_per_month is None, offer.usd_per_month or 0.0))
    rows = tuple(
        (
            offer.alternative.name,
            "-" if offer.usd_per_month is None else money(offer.usd_per_month),
            "-" if offer.usd_per_month is None else change(offer.usd_per_month / own - 1.0),
            offer.fleet or offer.reason,
            ", ".join(offer.alternative.unpriced) or "-",
        )
        for offer in ordered
    )
    note = (
        "The plan as it is; the others planned by theory, without simulation. Reservations are paid for the whole time."
    )
    return Table("Ways of buying", tuple(OFFER_HINTS), rows, note)


def api_prices_table(plan: Plan, break_evens: Sequence[ApiBreakEven]) -> Table:
    """Cost of hosted APIs for the traffic of a plan, beside that of its fleet; with page and day of every price.

    By the mean rate: cost of the API = rate x 3600 x 730 x USD per request.
    """
    own = plan.cost.usd_per_month if plan.cost else math.nan
    rate = mean_served_per_s(plan)
    prices = [api.price for api in break_evens]
    has_cache = any(price.usd_per_million_cached_tokens != price.usd_per_million_input_tokens for price in prices)
    columns = tuple(name for name in API_PRICE_HINTS if has_cache or name != CACHED)
    rows = tuple(_api_cells(api, own, rate, has_cache) for api in break_evens)
    notes = dict.fromkeys(f"{price.provider}: {price.note}" for price in prices if price.note)
    note = " · ".join((f"This fleet: {own:,.0f} USD/month. Prices in USD per million tokens.", *notes))
    return Table("Self-hosting against hosted APIs", columns, rows, note)


def _api_cells(api: ApiBreakEven, own_usd_per_month: float, rate_per_s: float, has_cache: bool) -> tuple[str, ...]:
    price = api.price
    asked = api.api_usd_per_thousand_requests / 1e3 * 3600.0 * HOURS_PER_MONTH * rate_per_s
    return (
        f"{price.provider} ({price.served_as})",
        significant(price.usd_per_million_input_tokens),
        *([significant(price.usd_per_million_cached_tokens)] if has_cache else []),
        significant(price.usd_per_million_output_tokens),
        f"{asked:,.0f}",
        "this fleet" if own_usd_per_month < asked else "API",
        significant(api.fleet_break_even_per_s),
        percent(api.fleet_break_even_per_s / rate_per_s) if rate_per_s else "-",
        price.read_on.isoformat(),
        price.source_url,
    )
