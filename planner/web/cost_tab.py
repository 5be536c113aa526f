"""The tab *Cost*: cost of the fleet and per what, where the money goes, hosted APIs, other purchase options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from hardware_db import sku_words
from planner.analysis import (
    ApiBreakEven,
    ApiPrice,
    CostRange,
    PurchaseAlternative,
    PurchaseOffer,
    alternative_purchases,
    api_break_even,
    api_prices_of,
    commitment_words,
    cost_year,
    fleet_growth,
    headline,
    headroom,
    mean_served_per_s,
    offer_from_plan,
    own_price,
    planned_offer,
    price_range,
)
from planner.charts import costs
from planner.core import money, percent, significant
from planner.fleet import BoughtGpus, CostBreakdown, Plan
from planner.report import growth, html_page, purchase_tables
from planner.report import plan as report
from planner.supply import SPOT, SpotTerms
from planner.traffic import Forecast
from planner.web import components, cost_day, fields, results, session, summary
from planner.web.results import Page

SPOT_INPUTS = ("cost-spot-often", "cost-spot-away", "cost-spot-sure")
"""Inputs of spot terms that the scenario lacks: assumptions, to be replaced by what the provider publishes."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if plan.cost is None:
        st.info("No feasible fleet yet. This tab shows what it costs, per what, and how it could be bought cheaper.")
        return
    _cost_cards(page, plan.cost)
    _money(plan)
    key = ("headroom" if plan.simulated else "headroom by theory", page.key)
    found = results.compute_once(key, partial(headroom, plan), "Looking for headroom")
    _year(page, _api_comparison(page, found.share), found.share)
    _purchase_options(page)
    cost_day.show(page)


# --- what it costs ----------------------------------------------------------------------------------------------------


@components.section("What does it cost, and per what?")
def _cost_cards(page: Page, cost: CostBreakdown) -> None:
    prices = f"Listed prices: {'; '.join(_price_in_words(bought) for bought in page.plan.bought)}."
    split = "Input and output share the cost of a pool by what they take from its largest stable rate (predicted)."
    method = "simulated" if page.plan.simulated else "predicted"
    goodput = significant(cost.goodput_per_s)
    costs_per_unit = (
        ("$ per hour", "usd_per_hour", f"USD/h for all GPUs of the fleet, used or not; mean over the day. {prices}"),
        ("$ per month", "usd_per_month", f"USD per month of 730 hours. {prices}"),
        ("$ per million input tokens", "usd_per_million_input_tokens", f"USD per 1,000,000 input tokens. {split}"),
        ("$ per million output tokens", "usd_per_million_output_tokens", f"USD per 1,000,000 output tokens. {split}"),
        (
            "$ per 1,000 requests",
            "usd_per_thousand_requests",
            f"USD per 1,000 requests served: cost per hour over requests per hour at the given demand. {prices}",
        ),
    )
    ends = summary.cached_cost_range(page)
    components.metric_cards(
        [
            *(_cost_card(page, label, cost, name, hint, ends) for label, name, hint in costs_per_unit),
            components.MetricCard(
                "Good requests per dollar",
                significant(cost.requests_per_usd),
                f"Goodput per dollar [requests/USD]: requests that meet every target at once ({method}: {goodput} a "
                "second) over the cost. Below: their tokens, read and written.",
                headline.token_words(cost.tokens_per_usd),
            ),
        ],
        "costs",
    )
    _price_range_caption(page)


def _cost_card(
    page: Page, label: str, cost: CostBreakdown, name: str, hint: str, ends: CostRange | None
) -> components.MetricCard:
    """One cost, with its interval once that is known."""
    usd, interval = getattr(cost, name), ""
    if ends is not None:
        interval = html_page.interval_words(page.plan, cost, ends, name, "")
        hint += f" {summary.INTERVAL_HINT}"
    return components.MetricCard(label, headline.dollars(usd), hint, interval)


def _price_in_words(bought: BoughtGpus) -> str:
    terms = commitment_words(bought.purchase)
    rate = f"{sku_words(bought.sku)} {money(bought.usd_per_gpu_hour)} USD/GPU-hour"
    price = bought.price
    if price is None:
        return f"{rate} ({terms}, given in the scenario)"
    source = f"region {price.region}, read {price.retrieved_on.isoformat()}, {price.source_url} "
    return f"{rate} ({price.provider}, {terms}, {source})"


def _price_range_caption(page: Page) -> None:
    """Range of the cost of the same GPUs over all listed prices; nothing where there is only one."""
    prices = price_range(page.plan, page.hardware)
    if prices is None or prices.highest_usd_per_hour <= prices.lowest_usd_per_hour:
        return
    low, high = prices.usd_per_month
    st.caption(
        components.plain(
            f"The same GPUs cost {headline.dollars(low)} to {headline.dollars(high)} a month over the {prices.offers} "
            "listed prices that the scenario allows. The plan takes the cheapest that fit."
        )
    )


@components.section("Where does the money go?")
def _money(plan: Plan) -> None:
    components.chart(costs.pool_cost_chart(plan), costs.pool_cost_rows(plan), "Cost by pool", "cost-pools")
    components.tables((table for table in report.tables(plan) if table.title == "Prices"), "cost-prices")


# --- hosted APIs ------------------------------------------------------------------------------------------------------


@components.section("Is a hosted API cheaper?")
def _api_comparison(page: Page, room: float) -> Sequence[ApiPrice]:
    """The prices that compare with the fleet, which has so much headroom."""
    request = page.request
    if request.services or request.cascade is not None:
        st.info("This fleet serves several models: no single API price compares with it.")
        return ()
    listed = api_prices_of(request.llm.id, request.prices.day)
    if not listed:
        st.markdown(
            components.plain(f"No API price is listed for {request.llm.id}. Enter one to compare it with this fleet.")
        )
    prices = [*listed, *_own_api_price(page)]
    if not prices:
        return ()
    apis = api_break_even(page.plan, prices)
    st.markdown(components.plain(_api_verdict(page.plan, apis, room)))
    components.chart(
        costs.api_cost_chart(page.plan, apis, room),
        costs.api_cost_rows(page.plan, apis, room),
        "Self-hosting or API",
        "cost-apis",
    )
    components.table(purchase_tables.api_prices_table(page.plan, apis), "cost-api-table")
    return prices


@components.section("What does a year of growth take?")
def _year(page: Page, prices: Sequence[ApiPrice], room: float) -> None:
    """How long the fleet lasts, and own against API, as demand grows as the scenario says or the visitor assumes."""
    expected = page.request.forecast
    if expected is None:
        share = st.number_input(**fields.widget("cost-growth"))
        expected = Forecast(start=page.request.prices.day, growth_per_month=share / 100.0)
    year = cost_year(page.plan, expected, prices, page.hardware, room)
    lasts = growth.headline(fleet_growth(page.plan, expected, headroom_share=room))
    st.markdown(components.plain(f"{lasts} {growth.cost_headline(year)}"))
    rows = costs.cost_year_rows(year)
    components.chart(costs.cost_year_chart(year), rows, "Own against API over a year", "cost-year")
    *turns, by_month, cumulated = growth.cost_tables(year)
    components.tables(turns, "cost-turns")
    with st.expander("Month by month as tables"):
        components.tables((by_month, cumulated), "cost-months")


def _own_api_price(page: Page) -> list[ApiPrice]:
    """The visitor's own price, once both numbers are given."""
    with st.container(horizontal=True):
        input_usd, output_usd = (
            st.number_input(**fields.widget(f"cost-own-{side}"), value=None) for side in ("input", "output")
        )
    if input_usd is None or output_usd is None or not input_usd + output_usd > 0.0:
        return []
    return [own_price(page.request.llm.id, f"{input_usd}/{output_usd}", page.request.prices.day)]


def _api_verdict(plan: Plan, apis: Sequence[ApiBreakEven], room: float) -> str:
    """Who is cheapest at the planned demand, in two sentences."""
    cheapest = min(apis, key=lambda api: api.api_usd_per_thousand_requests)
    served = mean_served_per_s(plan)
    most = served * (1.0 + max(0.0, room))
    fleet_usd = plan.cost.usd_per_thousand_requests if plan.cost else 0.0
    api_usd, provider = cheapest.api_usd_per_thousand_requests, cheapest.price.provider
    break_even, demand = significant(cheapest.fleet_break_even_per_s), f"at {significant(served)} requests/s"
    if fleet_usd < api_usd:
        return (
            f"Self-hosting is cheaper {demand}: {money(fleet_usd)} USD per 1,000 requests, against {money(api_usd)} at "
            f"{provider}, the cheapest API. This fleet would pay from {break_even} requests/s on."
        )
    cheaper = f"{provider} is cheaper {demand}: {money(api_usd)} USD per 1,000 requests, against {money(fleet_usd)}"
    if cheapest.fleet_break_even_per_s <= most:
        return f"{cheaper} on this fleet, which would pay from {break_even} requests/s on."
    return (
        f"{cheaper} on this fleet, which would pay from {break_even} requests/s on, more than the "
        f"{significant(most)} it can serve."
    )


# --- other purchase options -------------------------------------------------------------------------------------------


@components.section("Could it be bought cheaper?")
def _purchase_options(page: Page) -> None:
    options = {option.name: option for option in alternative_purchases(page.request, page.hardware)}
    single = [name for name, option in options.items() if len(option.commitments) == 1]
    names = st.multiselect(
        **fields.widget("cost-ways-of-buying-to-compare", key=f"cost-ways-{'-'.join(options)}"),
        options=list(options),
        default=single,
    )
    chosen = [options[name] for name in names]
    components.bullets(_unpriced_in_words(page, chosen))
    terms = _spot_terms(page) if any(SPOT in option.commitments for option in chosen) else None
    if not chosen:
        st.info("Choose at least one way of buying.")
        return
    now = page.request.prices.commitments
    keys: dict[PurchaseAlternative, tuple[object, ...]] = {}
    for option in chosen:
        if option.commitments != now:
            spot = terms.model_dump_json() if terms is not None and SPOT in option.commitments else ""
            keys[option] = ("way of buying", page.key, page.plan.simulated, option.commitments, spot)
    missing = [option for option, key in keys.items() if results.store().get(key) is None]
    if missing:
        seconds = results.duration_text(len(missing) * results.theory_plan_s(page))
        placeholder = st.empty()
        hint = f"About {seconds}: the cheapest fleet is planned for each."
        if not placeholder.button("Compare them", key="cost-compare-ways", type="primary", help=hint):
            return
        placeholder.empty()
    offers = []
    for option in chosen:
        if option in keys:
            known = page.plan.corrections
            compute = partial(planned_offer, page.request, page.hardware, option, terms, corrections=known)
            offers.append(results.compute_once(keys[option], compute, f"Planning {option.name}"))
        else:
            offers.append(offer_from_plan(page.plan, option))
    components.chart(
        costs.purchase_option_chart(offers, page.plan),
        costs.purchase_option_rows(offers, page.plan),
        "Ways of buying",
        "cost-ways",
    )
    _use_buttons(page, offers, terms)
    with st.expander("All ways of buying as a table"):
        components.table(purchase_tables.offers_table(page.plan, offers), "cost-ways-table")


def _unpriced_in_words(page: Page, options: Sequence[PurchaseAlternative]) -> list[str]:
    """For each SKU of the plan, the purchase options under which it has no price."""
    confidence = page.request.prices.min_confidence
    lines = []
    for sku in page.plan.gpus:
        without = [option.name for option in options if sku in option.unpriced]
        if without:
            lines.append(
                f"No price of confidence {confidence} or above is listed for {sku_words(sku)}, which the plan uses, "
                f"under: {', '.join(without)}. Fleets bought that way do without it."
            )
    return lines


def _spot_terms(page: Page) -> SpotTerms:
    """Availability of spot capacity: as the scenario gives it, else as the visitor assumes it."""
    given = page.request.prices.spot
    if given is not None:
        st.caption(
            components.plain(
                f"Spot, as the scenario says: {significant(24.0 * given.interruptions_per_hour)} interruptions of an "
                f"instance per day, {significant(given.recovery_s / 60.0)} minutes until a replacement serves, enough "
                f"is up with probability {percent(given.probability)}."
            )
        )
        return given
    with st.container(horizontal=True):
        per_day, recovery_min, probability = (st.number_input(**fields.widget(name)) for name in SPOT_INPUTS)
    st.caption(
        "Spot capacity is interrupted. These three numbers are assumptions: set them to what your provider publishes."
    )
    return SpotTerms(interruptions_per_hour=per_day / 24.0, recovery_s=60.0 * recovery_min, probability=probability)


def _use_buttons(page: Page, offers: Sequence[PurchaseOffer], terms: SpotTerms | None) -> None:
    """A button for every other purchase option that has a fleet."""
    now = page.request.prices.commitments
    others = [offer for offer in offers if offer.usd_per_month is not None and offer.alternative.commitments != now]
    with st.container(horizontal=True):
        for offer in sorted(others, key=lambda offer: offer.usd_per_month or 0.0):
            option = offer.alternative
            changes: dict[str, object] = {"prices.commitments": list(option.commitments)}
            if SPOT in option.commitments and page.request.prices.spot is None and terms is not None:
                changes["prices.spot"] = terms.model_dump(mode="json")
            st.button(
                f"Use {option.name}",
                key=f"cost-use-{option.name}",
                on_click=session.change,
                args=(changes,),
                help=components.plain(f"Plans with {option.name} prices: {offer.fleet}."),
            )
