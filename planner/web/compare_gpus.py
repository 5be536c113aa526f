"""The same request on each GPU alone, by theory."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from planner.charts import comparison
from planner.core import counted, money
from planner.studies import (
    SAME,
    SKU_COLUMNS,
    Side,
    bounded,
    change_of_cost,
    cheapest_first,
    on_one_sku,
    priced_skus,
    side,
    sku_table,
)
from planner.web import components
from planner.web.results import Page, Say, kept

PLAN = "the plan"
MOST_NAMED = 3
TABLE_KEY = "compare-skus"
STYLE = f"""<style>
.st-key-{TABLE_KEY} th.number {{white-space: normal}}
.st-key-{TABLE_KEY} td:nth-child(2) {{min-width: 11rem}}
.st-key-{TABLE_KEY} td:is(:nth-child(1), :nth-last-child(-n + 2)) {{min-width: 8.5rem}}
</style>"""
"""Many columns: headings wrap, words have room."""
HINTS = dict(
    zip(
        SKU_COLUMNS,
        (
            "The only GPU that the fleet may use. 'the plan' may mix those that are searched.",
            "Pools of the cheapest fleet that meets every target: replicas x GPU, TP degree, role (predicted)",
            "GPUs of the fleet, all pools (counted)",
            "Requests per second that the fleet serves (planned)",
            "Cost of the fleet for a month [USD] (listed or given prices times GPUs)",
            "Cost relative to that of the plan (computed)",
            "Cost of a million input tokens [USD]: its share of the fleet's cost by the step time that prompts add "
            "(predicted)",
            "Cost of a million output tokens [USD]: what input tokens leave of the fleet's cost (predicted)",
            "The latency target with the least left, and its latency over its threshold: 100 % just holds it "
            "(predicted; of a checked plan simulated)",
            "Measurements that kernel times are fitted to. Carried over: the shares of peak measured on another GPU. "
            "Datasheet peaks: no measurements, so times are the shortest that the hardware allows, and the fleet the "
            "smallest (fitted or assumed)",
        ),
        strict=True,
    )
)


def show(page: Page) -> None:
    """Bars and table of the request on each GPU alone."""
    if page.plan.feasible and not page.plan.alternatives and not page.plan.simulated:
        st.info("The GPUs follow as soon as the plan is checked by simulation: a few seconds.")
        return
    searched = tuple(dict.fromkeys(page.request.search.skus))
    bounds = {one.restriction: one for one in page.plan.alternatives if one.kind == "sku" and one.is_bound}
    with st.container(horizontal=True):
        skus = [*searched, *_others(page, searched)]
        if bounds and _toggle(
            f"Plan dearer GPUs exactly too ({len(bounds)})",
            "compare-dearer",
            "They cost over a quarter more than the plan even at optimistic rates. A second or so each.",
        ):
            bounds = {}
    sides = cheapest_first(
        bounded(sku, on_one_sku(page.request, sku), bounds[sku]) if sku in bounds else _alone(page, sku, place)
        for sku, place in _placed([sku for sku in skus if sku not in bounds], skus)
    )
    reference = Side(PLAN, page.request, page.plan) if page.plan.feasible else None
    st.markdown(f"**{components.plain(_headline(sides, reference))}**")
    measure = st.segmented_control(
        "Show",
        list(comparison.MEASURES),
        default=next(iter(comparison.MEASURES)),
        required=True,
        key="compare-gpus-measure",
        persist_state="session",
        wrap=True,
    )
    shown = [*([reference] if reference else []), *sides]
    rows = comparison.side_rows(shown, reference)
    picture = comparison.side_bars(rows, measure, "each GPU alone", _subject(page))
    components.chart(picture, rows, "GPUs compared", "compare-gpus")
    st.html(STYLE)
    with st.container(key=TABLE_KEY):
        components.table(sku_table(sides, reference), f"{TABLE_KEY}-table", HINTS)


def _others(page: Page, searched: tuple[str, ...]) -> list[str]:
    """GPUs that the scenario does not search and that have a price, if they are asked for."""
    others = [sku for sku in priced_skus(page.request, page.hardware) if sku not in searched]
    asked = bool(others) and _toggle(
        f"Also GPUs that are not searched ({len(others)} have a price)",
        "compare-all-gpus",
        "Whatever the scenario's prices allow to buy. A second or so each; what is known stays known.",
    )
    return others if asked else []


def _toggle(label: str, key: str, hint: str) -> bool:
    return bool(st.toggle(label, key=key, help=hint, persist_state="session"))


def _placed(planned: Sequence[str], skus: Sequence[str]) -> list[tuple[str, str]]:
    """Each SKU with how far planning is, e.g. ``2 of 5``."""
    return [(sku, f"{planned.index(sku) + 1} of {len(planned)}" if sku in planned else "") for sku in skus]


def _alone(page: Page, sku: str, place: str) -> Side:
    """The request on one GPU, kept."""

    def make(say: Say) -> Side:
        return side(sku, on_one_sku(page.request, sku), page.hardware, say)

    return kept(("on one sku", page.key, sku), make, f"Planning with {sku} only ({place})")


def _subject(page: Page) -> str:
    request = page.request
    rate = "" if request.workload.is_closed else f" at {request.growth * request.workload.rate_per_s:,.4g} requests/s"
    known = "the plan simulated, the others by theory" if page.plan.simulated else "by theory"
    return f"{request.llm.id}{rate}; {known}."


def _headline(sides: Sequence[Side], reference: Side | None) -> str:
    """Which GPU alone is cheapest, and how many cannot do it at all."""
    able = [one for one in sides if one.feasible]
    if not able:
        return "None of these GPUs alone meets every target within the limits; the table says why."
    first, unable = able[0], [one.name for one in sides if one.usd_per_month is None]
    usd, count = money(first.usd_per_month or 0.0), counted(first.gpus, "GPU")
    text = f"{first.name} costs least alone: {usd} USD per month for {count}"
    if reference is not None:
        change = change_of_cost(first, reference)
        text += ", as the plan does" if change == SAME else f", {change} against the plan"
    text += f" (step times: {first.step_times})"
    if not unable:
        return f"{text}."
    others = ", ".join(unable) if len(unable) <= MOST_NAMED else counted(len(unable), "GPU")
    return f"{text}. Alone {others} cannot."
