"""The tab *Compare*: serving systems, the same request on each GPU alone, saved scenarios, and a fleet of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from hardware_db import sku_words
from planner.core import money, number_of
from planner.report import glossary
from planner.scenario import (
    SAME,
    PlanSide,
    bounded_side,
    change_of_cost,
    cheapest_first,
    on_one_sku,
    planned_side,
    priced_skus,
    sku_table,
)
from planner.web import compare_scenarios, compare_systems, components, fields, own_fleet, results
from planner.web.compare_scenarios import quantity_chart
from planner.web.results import Page, compute_once

PLAN = "the plan"
"""Name of the reference."""
NAMED_GPUS = 3
"""Most GPUs that the headline names; of more it gives the number."""
HINTS = glossary.hints_of("compare GPUs")


def show(page: Page) -> None:
    """The tab: one section at a time."""
    chosen = components.choose_one(**fields.widget("compare-section"), options=list(SECTIONS))
    SECTIONS[chosen](page)


# --- each GPU alone ---------------------------------------------------------------------------------------------------


def show_gpus(page: Page) -> None:
    """Bars and table of the request on each GPU alone."""
    if page.plan.feasible and not page.plan.alternatives and results.store().get(("complete", page.key)) is None:
        st.info("The comparison appears once the plan is checked by simulation and its alternatives are known.")
        return
    searched = tuple(dict.fromkeys(page.request.search.skus))
    bounds = {
        alternative.restriction: alternative
        for alternative in page.plan.alternatives
        if alternative.kind == "sku" and alternative.is_bound
    }
    with st.container(horizontal=True):
        skus = [*searched, *_other_skus(page, searched)]
        if bounds and components.switch(
            f"Plan dearer GPUs exactly too ({len(bounds)})",
            "compare-dearer",
            "Even at optimistic rates they cost clearly more than the plan. About a second each.",
        ):
            bounds = {}
    is_plan = [sku for sku in skus if set(page.plan.gpus) == {sku}]
    exact = [sku for sku in skus if sku not in bounds and sku not in is_plan]
    found = [
        bounded_side(sku_words(sku), on_one_sku(page.request, sku), bound)
        for sku, bound in bounds.items()
        if sku in skus
    ]
    found += [PlanSide(sku_words(sku), on_one_sku(page.request, sku), page.plan) for sku in is_plan]
    for number, sku in enumerate(exact, start=1):
        request, known = on_one_sku(page.request, sku), page.plan.corrections
        compute = partial(planned_side, sku_words(sku), request, page.hardware, corrections=known)
        doing = f"Planning with {sku_words(sku)} only ({number} of {len(exact)})"
        found.append(compute_once(("on one sku", page.key, page.plan.simulated, sku), compute, doing))
    sides = cheapest_first(found)
    reference = PlanSide(PLAN, page.request, page.plan) if page.plan.feasible else None
    st.markdown(f"**{components.plain(_headline(sides, reference))}**")
    all_sides = [*([reference] if reference else []), *sides]
    quantity_chart(all_sides, reference, "compare-gpus", "GPUs compared", "each GPU alone", _subtitle(page))
    components.table(sku_table(sides, reference), "compare-skus-table", HINTS)


def _other_skus(page: Page, searched: tuple[str, ...]) -> list[str]:
    """GPUs with a price that the scenario does not search, if the visitor wants them too."""
    others = [sku for sku in priced_skus(page.request, page.hardware) if sku not in searched]
    is_wanted = bool(others) and components.switch(
        f"Also GPUs that are not searched ({len(others)} have a price)",
        "compare-all-gpus",
        "All GPUs that the scenario's prices cover. About a second each, once.",
    )
    return others if is_wanted else []


def _subtitle(page: Page) -> str:
    request = page.request
    rate = f" at {request.growth * request.workload.rate_per_s:,.4g} requests/s"
    method = "the plan simulated, the others by theory" if page.plan.simulated else "by theory"
    return f"{request.llm.id}{rate}; {method}."


def _headline(sides: Sequence[PlanSide], reference: PlanSide | None) -> str:
    """Which GPU alone is cheapest, and which have no fleet."""
    able = [side for side in sides if side.feasible]
    if not able:
        return "None of these GPUs alone meets every target within the limits; the table says why."
    cheapest, unable = able[0], [side.name for side in sides if side.usd_per_month is None]
    usd, count = money(cheapest.usd_per_month or 0.0), number_of(cheapest.gpus, "GPU")
    text = f"{cheapest.name} costs least alone: {usd} USD per month for {count}"
    if reference is not None:
        change = change_of_cost(cheapest, reference)
        text += ", as the plan does" if change == SAME else f", {change} against the plan"
    text += f" (step times: {cheapest.step_times})"
    if not unable:
        return f"{text}."
    others = ", ".join(unable) if len(unable) <= NAMED_GPUS else number_of(len(unable), "GPU")
    return f"{text}. Alone {others} cannot."


SECTIONS = {
    "Serving systems": compare_systems.show,
    "GPUs": show_gpus,
    "Scenarios": compare_scenarios.show,
    "Your own fleet": own_fleet.show,
}
"""Sections of the tab."""
