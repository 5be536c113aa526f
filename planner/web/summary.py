"""The answer: a sentence, four figures and the fleet; or why there is no fleet, and what would help."""

from __future__ import annotations

import streamlit as st

from planner.analysis import CostRange, Headroom, headline
from planner.charts import fleets
from planner.core import change, counted, percent, significant
from planner.fleet import CostBreakdown, Plan
from planner.web import components, results
from planner.web.results import Page

WAITING = "interval follows"
"""Under a figure whose interval is still to be found."""


def show(page: Page) -> None:
    """The answer to the scenario."""
    if page.plan.cost is None:
        from planner.web import infeasible  # noqa: PLC0415 - it shows what this module does

        infeasible.show(page)
        return
    st.markdown(f"#### {_unbroken(components.plain(headline.short_headline(page.plan)))}")
    _status(page.plan)
    components.figures(_figures(page, page.plan.cost))
    components.chart(fleets.fleet_picture(page.plan), fleets.fleet_rows(page.plan), "Fleet", "fleet")


def _unbroken(text: str) -> str:
    """Text whose counts stay on one line with what they count."""
    return text.replace(" × ", "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}")


def complete(page: Page) -> bool:
    """Find what takes time and is not there yet, one thing at a call; whether anything was found (then redraw)."""
    plan = page.plan
    if plan.cost is None or not plan.simulated:
        return False
    if results.store().get(headroom_key(page)) is None:
        results.kept(headroom_key(page), lambda say: headline.headroom(plan, say), "Looking for headroom")
        return True
    if headline.is_calibrated(plan) and results.store().get(range_key(page)) is None:
        results.kept(range_key(page), lambda say: headline.cost_range(plan, page.hardware, say), "Interval of the cost")
        return True
    return False


def headroom_key(page: Page) -> tuple[str, str]:
    """What the headroom (`planner.analysis.headline.Headroom`) is kept by, once it was found."""
    return ("headroom", page.key)


def range_key(page: Page) -> tuple[str, str]:
    """What the interval of the cost (`planner.analysis.headline.CostRange`) is kept by, once it was found."""
    return ("cost range", page.key)


# --- status -----------------------------------------------------------------------------------------------------------


def _status(plan: Plan) -> None:
    """How the numbers are known, in small print, with what there is to warn of."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        checked = plan.simulated and all(check.met for check in plan.targets)
        st.badge(
            headline.status_words(plan),
            icon=":material/check_circle:" if checked else ":material/schedule:",
            color="green" if checked else "blue",
            help=components.plain(_simulation_hint(plan)),
        )
        calibrated = headline.calibration_words(plan)
        st.badge(
            calibrated,
            icon=":material/straighten:",
            color="green" if calibrated == "Calibrated" else "orange",
            help=_listed("How step times are known", headline.calibration_sources(plan)),
        )
        if plan.warnings:
            with st.popover(counted(len(plan.warnings), "warning"), icon=":material/warning:", type="tertiary"):
                components.bullets(plan.warnings)


def _simulation_hint(plan: Plan) -> str:
    if not plan.simulated:
        return "Latencies so far are from queueing theory. The same fleet is being simulated request by request."
    gaps = [f"mean {pair.metric.upper()} {change(pair.relative_difference)}" for pair in plan.agreement]
    agree = f" Theory against simulation: {', '.join(gaps)}." if gaps else ""
    return f"The chosen fleet was served request by request; a missed target would have made it grow.{agree}"


def _listed(title: str, lines: tuple[str, ...]) -> str:
    """A title and lines for a hover."""
    return "\n".join([f"{title}:", "", *(f"- {components.plain(line)}" for line in lines)])


# --- figures ----------------------------------------------------------------------------------------------------------


def _figures(page: Page, cost: CostBreakdown) -> list[components.Figure]:
    headroom = results.store().get(headroom_key(page)) if page.plan.simulated else None
    found = results.store().get(range_key(page)) if page.plan.simulated else None
    costs = found if isinstance(found, CostRange) else None
    return [
        _fleet_figure(page.plan, costs),
        _month_figure(page.plan, cost, costs),
        _token_figure(page.plan, cost, costs),
        _headroom_figure(page.plan, headroom if isinstance(headroom, Headroom) else None),
    ]


def _waiting(plan: Plan) -> str:
    return WAITING if headline.is_calibrated(plan) else "no interval: not calibrated"


def _fleet_figure(plan: Plan, costs: CostRange | None) -> components.Figure:
    gpus = sum(plan.gpus.values())
    servers = counted(sum(sum(planned.nodes) for planned in plan.deployments), "server")
    ends = f" With fast kernels: {costs.low_fleet}; with slow ones: {costs.high_fleet}. {_RANGE_HINT}" if costs else ""
    hint = (
        f"GPUs rented or owned: {headline.fleet_words(plan)}. The fleet of least cost that holds every target, found by "
        f"an integer program over all configurations; counted. {_sources(plan)}{ends}"
    )
    return components.Figure("Fleet", counted(gpus, "GPU"), hint, f"in {servers}")


_RANGE_HINT = (
    "Interval: the plan made again, by theory, with every kernel at the fast and at the slow end of the middle 90 % of "
    "its measurements."
)


def _sources(plan: Plan) -> str:
    return f"Step times: {'; '.join(headline.calibration_sources(plan))}."


def _month_figure(plan: Plan, cost: CostBreakdown, costs: CostRange | None) -> components.Figure:
    usd = cost.usd_per_month
    interval = _waiting(plan)
    if costs is not None:
        low, high = (None if end is None else end.usd_per_month for end in (costs.low, costs.high))
        interval = headline.range_words(low, usd, high)
    mean = " Mean over the periods of the schedule." if plan.schedule else ""
    hours = usd / cost.usd_per_hour if cost.usd_per_hour else 730.0
    hint = (
        f"USD a month of {hours:,.0f} hours for all GPUs, at {headline.dollars(cost.usd_per_hour)} an hour.{mean} "
        f"Prices as listed: {'; '.join(headline.price_sources(plan))}. {_RANGE_HINT}"
    )
    return components.Figure("Per month", headline.dollars(usd), hint, interval)


def _token_figure(plan: Plan, cost: CostBreakdown, costs: CostRange | None) -> components.Figure:
    usd = cost.usd_per_million_output_tokens
    interval = _waiting(plan)
    if costs is not None:
        ends = (None if end is None else end.usd_per_million_output_tokens for end in (costs.low, costs.high))
        low, high = ends
        interval = headline.range_words(low, usd, high)
    hint = (
        f"USD per million output tokens at the planned load. Input tokens: "
        f"{headline.dollars(cost.usd_per_million_input_tokens)} per million; a thousand requests: "
        f"{headline.dollars(cost.usd_per_thousand_requests)}. Both kinds share the cost of a mixed pool by the step "
        "time that prompts add; a prefill pool is all input, a decode pool all output. Cost as listed, over tokens as "
        f"given. {_RANGE_HINT}"
    )
    return components.Figure("Per million output tokens", headline.dollars(usd), hint, interval)


def _headroom_figure(plan: Plan, found: Headroom | None) -> components.Figure:
    hint = (
        "By how much the demand may grow before this fleet misses a target, the traffic split as planned. Predicted by "
        "theory at the calibrated step times. Interval: every kernel at the slow and at the fast end of the middle "
        "90 % of its measurements; below zero the fleet would miss a target at today's demand."
    )
    if found is None:
        return components.Figure("Headroom", "…", hint, "follows the simulation" if not plan.simulated else WAITING)
    tight = f" Tightest: {found.tightest} at {percent(found.tightest_ratio)} of its threshold."
    rate = significant(headline.served_per_s(plan) * (1.0 + found.share))
    value = change(found.share)
    return components.Figure(
        "Headroom", value, f"{hint} Up to {rate} requests/s.{tight}", headline.headroom_words(found)
    )
