"""The tab *Cost*: what does it cost, per what, and could I buy it cheaper?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from planner.analysis import (
    ApiBreakEven,
    ApiPrice,
    BuyingOffer,
    CostRange,
    Solver,
    WayToBuy,
    api_break_even,
    api_prices_of,
    headline,
    own_price,
    purchase_alternatives,
)
from planner.charts import costs
from planner.core import Table, money, percent, significant
from planner.fleet import BoughtGpus, CostBreakdown, Plan
from planner.report import plan as report
from planner.supply import SPOT, SpotTerms
from planner.web import components, cost_day, results, session, summary
from planner.web.results import Page, Say

SOLVES = 14
"""Plans that looking for the smallest demand takes at most (`planner.analysis.api_prices.api_break_even`)."""
DEMAND_GROWS = 8
"""That search goes up to so many times the planned demand."""
ASSUMED_SPOT: tuple[dict[str, Any], ...] = (
    {
        "label": "Spot interruptions per day",
        "value": 1.0,
        "min_value": 0.001,
        "step": 0.5,
        "key": "cost-spot-often",
        "help": "Of one instance (assumed: see what your provider publishes).",
    },
    {
        "label": "Minutes to replace one",
        "value": 10.0,
        "min_value": 0.1,
        "step": 1.0,
        "key": "cost-spot-away",
        "help": "From the interruption until a replacement serves, model loaded (assumed).",
    },
    {
        "label": "Enough is up, probability",
        "value": 0.99,
        "min_value": 0.5,
        "max_value": 0.9999,
        "step": 0.01,
        "format": "%.4f",
        "key": "cost-spot-sure",
        "help": "Probability that at any time enough of the spot capacity bought is up; the rest is headroom.",
    },
)
"""Shown at first where the scenario says nothing: interruptions of an instance per day, minutes until a replacement
serves, probability. Assumptions to be replaced by what the provider publishes, not measurements."""


def show(page: Page) -> None:
    """The tab."""
    plan = page.plan
    if plan.cost is None:
        st.info("Once there is a fleet, this tab shows what it costs, per what, and how it could be bought cheaper.")
        return
    _figures(page, plan.cost)
    _spending(plan)
    _apis(page)
    _ways(page)
    cost_day.show(page)


# --- what it costs ----------------------------------------------------------------------------------------------------


def _figures(page: Page, cost: CostBreakdown) -> None:
    st.subheader("What does it cost, and per what?")
    prices = f"Listed prices: {'; '.join(_price_words(one) for one in page.plan.bought)}."
    split = "Input and output share the cost of a pool by the step time that prompts add (predicted)."
    seen = "simulated" if page.plan.simulated else "predicted"
    goodput = significant(cost.goodput_per_s)
    shown = (
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
    found = results.store().get(summary.range_key(page))
    ends = found if isinstance(found, CostRange) else None
    components.figures(
        [
            *(_dollars(label, cost, name, hint, ends) for label, name, hint in shown),
            components.Figure(
                "Good requests per dollar",
                significant(cost.requests_per_usd),
                f"Goodput per dollar [requests/USD]: requests that meet every target at once ({seen}: {goodput} a "
                "second) over the cost.",
            ),
        ]
    )
    _elsewhere(page)


def _dollars(label: str, cost: CostBreakdown, name: str, hint: str, ends: CostRange | None) -> components.Figure:
    """A figure of the cost, with its interval once that is known."""
    usd = getattr(cost, name)
    interval = ""
    if ends is not None:
        low, high = (None if end is None else getattr(end, name) for end in (ends.low, ends.high))
        interval = headline.range_words(low, usd, high)
        hint += (
            " Interval: the cheapest fleets, by theory, with kernels at the fast and at the slow end of the middle "
            "90 % of their measurements (fitted)."
        )
    return components.Figure(label, headline.dollars(usd), hint, interval)


def _price_words(one: BoughtGpus) -> str:
    way = purchase_alternatives.words_of(one.purchase)
    if one.price is None:
        return f"{one.sku} {money(one.usd_per_gpu_hour)} USD/GPU-hour ({way}, given in the scenario)"
    price = one.price
    return (
        f"{one.sku} {money(one.usd_per_gpu_hour)} USD/GPU-hour ({price.provider}, {way}, region {price.region}, read "
        f"{price.retrieved_on.isoformat()}, {price.source_url} )"
    )


def _elsewhere(page: Page) -> None:
    """What the same GPUs cost over all listed prices; nothing where there is only one."""
    found = purchase_alternatives.price_range(page.plan, page.hardware)
    if found is None or found.highest_usd_per_hour <= found.lowest_usd_per_hour:
        return
    low, high = found.usd_per_month
    st.caption(
        components.plain(
            f"The same GPUs cost {headline.dollars(low)} to {headline.dollars(high)} a month over all "
            f"{found.offers} listed prices that the scenario allows; the plan takes the cheapest that fit."
        )
    )


# --- where the money goes ---------------------------------------------------------------------------------------------


def _spending(plan: Plan) -> None:
    st.subheader("Where does the money go?")
    components.chart(costs.pool_costs(plan), costs.pool_cost_rows(plan), "Cost by pool", "cost-pools")
    for table in _tables(plan, "Prices"):
        components.table(table, "cost-prices")


def _tables(plan: Plan, title: str) -> list[Table]:
    return [table for table in report.tables(plan) if table.title == title]


# --- hosted APIs ------------------------------------------------------------------------------------------------------


def _apis(page: Page) -> None:
    st.subheader("Is a hosted API cheaper?")
    request = page.request
    if request.services or request.cascade is not None:
        st.info("This fleet serves several models, which no single API price compares with.")
        return
    listed = api_prices_of(request.llm.id)
    if not listed:
        st.markdown(
            components.plain(f"No API price is listed for {request.llm.id}. Type one to compare it with this fleet.")
        )
    prices = [*listed, *_own(page)]
    if not prices:
        return
    found = api_break_even(page.plan, prices)
    st.markdown(components.plain(_api_verdict(page.plan, found)))
    components.chart(
        costs.api_costs(page.plan, found), costs.api_cost_rows(page.plan, found), "Self-hosting or API", "cost-apis"
    )
    components.table(
        purchase_alternatives.api_table(page.plan, found), "cost-api-table", purchase_alternatives.API_HINTS
    )
    _smallest_demand(page, prices)


def _own(page: Page) -> list[ApiPrice]:
    """The visitor's own price, once both numbers are there."""
    with st.container(horizontal=True):
        read = st.number_input(
            components.plain("Own API: $ per M input"),
            min_value=0.0,
            value=None,
            step=0.01,
            format="%.3f",
            placeholder="e.g. 0.50",
            key="cost-own-input",
            width=200,
            help="USD per million input tokens that an API asks you.",
        )
        written = st.number_input(
            components.plain("Own API: $ per M output"),
            min_value=0.0,
            value=None,
            step=0.01,
            format="%.3f",
            placeholder="e.g. 1.50",
            key="cost-own-output",
            width=200,
            help="USD per million output tokens that an API asks you.",
        )
    if read is None or written is None or not read + written > 0.0:
        return []
    return [own_price(page.request.llm.id, f"{read}/{written}", page.request.prices.day)]


def _api_verdict(plan: Plan, found: Sequence[ApiBreakEven]) -> str:
    """Who is cheapest at the planned demand, in a sentence."""
    best = min(found, key=lambda one: one.api_usd_per_thousand_requests)
    served, sustained = purchase_alternatives.mean_served_per_s(plan), purchase_alternatives.mean_sustained_per_s(plan)
    own = plan.cost.usd_per_thousand_requests if plan.cost else 0.0
    asked = best.api_usd_per_thousand_requests
    even, at = significant(best.fleet_break_even_per_s), f"at {significant(served)} requests/s"
    if own < asked:
        costs_less = f"Self-hosting is cheaper {at}: {money(own)} USD per 1,000 requests, against {money(asked)} at"
        return f"{costs_less} {best.price.provider}, the cheapest. This fleet pays from {even} requests/s on."
    costs_less = f"{best.price.provider} is cheaper {at}: {money(asked)} USD per 1,000 requests, against {money(own)}"
    if best.fleet_break_even_per_s <= sustained:
        return f"{costs_less} on this fleet, which pays from {even} requests/s on."
    full = significant(sustained)
    return f"{costs_less} on this fleet, which would pay from {even} requests/s on, more than the {full} it can carry."


def _smallest_demand(page: Page, prices: Sequence[ApiPrice]) -> None:
    """From which demand on a fleet planned for it wins, on request."""
    if page.plan.schedule:
        return
    names = [f"{price.provider} ({price.served_as})" for price in prices]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox(
            "Find the smallest demand at which a fleet planned for it beats",
            range(len(names)),
            format_func=names.__getitem__,
            key=f"cost-smallest-api-{len(names)}-{page.request.llm.id}",
            width=380,
        )
        seconds = SOLVES * _theory_s(page)
        pressed = st.button(
            f"Find it (up to {_about(seconds)})",
            key="cost-smallest",
            help=f"Plans for up to {SOLVES} demands, by theory, from a 64th of the planned demand to "
            f"{DEMAND_GROWS} times it.",
        )
    if chosen is None:
        return
    price = prices[chosen]
    key = ("smallest demand", page.key, price.model_dump_json())
    if not pressed and results.store().get(key) is None:
        return

    def make(say: Say) -> ApiBreakEven:
        return api_break_even(page.plan, [price], Solver(hardware=page.hardware, say=say))[0]

    found = results.kept(key, make, "Looking for the smallest demand").smallest_break_even_per_s
    if found is None:
        text = f"Up to {DEMAND_GROWS} times the planned demand no fleet costs less than {names[chosen]}."
    else:
        text = (
            f"A fleet planned for {significant(found)} requests/s or more costs less than {names[chosen]}. Fleets come "
            "in whole GPUs, so that a little above that demand the API may win once more."
        )
    st.success(components.plain(text), icon=":material/balance:")


def _theory_s(page: Page) -> float:
    """How long a plan by theory takes, from the last one [s]."""
    known = results.store().get(("theory", page.key))
    return known.elapsed_s if isinstance(known, Plan) else page.plan.elapsed_s


def _about(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90.0 else f"{round(seconds / 60.0)} min"


# --- other ways of buying ---------------------------------------------------------------------------------------------


def _ways(page: Page) -> None:
    st.subheader("Could it be bought cheaper?")
    ways = {way.name: way for way in purchase_alternatives.ways_to_buy(page.request, page.hardware)}
    single = [name for name, way in ways.items() if len(way.commitments) == 1]
    names = st.multiselect(
        "Ways of buying to compare",
        list(ways),
        default=single,
        key=f"cost-ways-{'-'.join(ways)}",
        help="Terms under which GPUs are listed; for each the cheapest fleet is planned anew.",
    )
    chosen = [ways[name] for name in names]
    components.bullets(_missing(page, chosen))
    terms = _spot_terms(page) if any(SPOT in way.commitments for way in chosen) else None
    if not chosen:
        st.info("Choose at least one way of buying.")
        return
    now = page.request.prices.commitments
    keys = {way: _way_key(page, way, terms) for way in chosen if way.commitments != now}
    unknown = [way for way, key in keys.items() if results.store().get(key) is None]
    if unknown:
        seconds = _about(len(unknown) * _theory_s(page))
        place = st.empty()
        if not place.button(f"Compare them (about {seconds})", key="cost-compare-ways", type="primary"):
            return
        place.empty()
    offers = [
        _offer(page, way, terms, keys[way]) if way in keys else purchase_alternatives.offer_made(page.plan, way)
        for way in chosen
    ]
    components.chart(
        costs.buying_costs(offers, page.plan), costs.buying_rows(offers, page.plan), "Ways of buying", "cost-ways"
    )
    _use(page, offers, terms)
    with st.expander("All ways of buying as a table"):
        components.table(
            purchase_alternatives.buying_table(page.plan, offers), "cost-ways-table", purchase_alternatives.BUYING_HINTS
        )


def _way_key(page: Page, way: WayToBuy, terms: SpotTerms | None) -> tuple[object, ...]:
    spot = terms.model_dump_json() if terms is not None and SPOT in way.commitments else ""
    return ("way of buying", page.key, way.commitments, spot)


def _offer(page: Page, way: WayToBuy, terms: SpotTerms | None, key: tuple[object, ...]) -> BuyingOffer:
    def make(say: Say) -> BuyingOffer:
        return purchase_alternatives.offer_of(page.request, page.hardware, way, terms, say)

    return results.kept(key, make, f"Planning {way.name}")


def _missing(page: Page, ways: Sequence[WayToBuy]) -> list[str]:
    """For each SKU of the plan, the terms under which it has no price."""
    least = page.request.prices.min_confidence
    lines = []
    for sku in page.plan.gpus:
        without = [way.name for way in ways if sku in way.unpriced]
        if without:
            lines.append(
                f"No price of confidence {least} or above is listed for {sku}, which the plan uses, under: "
                f"{', '.join(without)}. There the fleet does without it."
            )
    return lines


def _spot_terms(page: Page) -> SpotTerms:
    """What spot capacity is worth: as the scenario says, else as the visitor assumes."""
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
        often, away, sure = (st.number_input(width=220, **one) for one in ASSUMED_SPOT)
    st.caption(
        "Spot capacity goes away: these three numbers are assumptions. Set them to what your provider publishes."
    )
    return SpotTerms(interruptions_per_hour=often / 24.0, recovery_s=60.0 * away, probability=sure)


def _use(page: Page, offers: Sequence[BuyingOffer], terms: SpotTerms | None) -> None:
    """A button for every other way there is a fleet under."""
    now = page.request.prices.commitments
    useful = [offer for offer in offers if offer.usd_per_month is not None and offer.way.commitments != now]
    with st.container(horizontal=True):
        for offer in sorted(useful, key=lambda one: one.usd_per_month or 0.0):
            way = offer.way
            changes: dict[str, object] = {"prices.commitments": list(way.commitments)}
            if SPOT in way.commitments and page.request.prices.spot is None and terms is not None:
                changes["prices.spot"] = terms.model_dump(mode="json")
            st.button(
                f"Use {way.name}",
                key=f"cost-use-{way.name}",
                on_click=session.change,
                args=(changes,),
                help=components.plain(f"Plan with {way.name} prices: {offer.fleet}."),
            )
