"""The answer: a sentence, four metrics, and a line that says how they are known and opens the warnings, each with what
helps; or why there is no fleet, and what would help. It stands above every tab, so that it is low; the tab Plan has the
rest of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from planner.analysis import CostRange, Headroom, fleet_growth, headline, headroom, is_calibrated
from planner.charts import fleets
from planner.core import change, number_of, percent, significant, with_unit
from planner.fleet import CostBreakdown, Loss, LossOf, Plan, PlanRequest, TargetCheck
from planner.report import html_page, sold_in_blocks, target_name
from planner.web import components, infeasible, results, session
from planner.web.results import Page

LAST = "last-headline"
"""Of the state of a visit: the sentence of the last answer shown."""
INTERVAL_FOLLOWS = "interval follows"
"""Under a metric whose interval is still to be computed."""
USUAL_CONFIDENCE: float = PlanRequest.model_fields["confidence"].default
"""That plans are made for where nobody asks for another."""
OFFERED_CONFIDENCES = (0.95, 0.99)
"""Confidences that a button offers beyond the plan's own. A choice."""
STOPS = "its loss stops the service"
"""End of the engine's warnings of pools of one replica, which the loss of a replica says better."""


def show(page: Page) -> None:
    """The answer to the scenario."""
    if page.plan.cost is None:
        infeasible.show(page)
        return
    st.session_state[LAST] = headline.short_headline(page.plan)
    show_figures(page, "" if page.plan.simulated else "Provisional: ")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="status"):
        _status(page)
        show_concerns(page.plan, cached_cost_range(page))


def show_figures(page: Page, before: str) -> None:
    """The sentence of an answer that is a fleet, with some words before it, and its figures."""
    assert page.plan.cost is not None
    sentence = components.plain(headline.short_headline(page.plan))
    unbroken = sentence.replace(" × ", "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}")  # count with thing
    st.markdown(f"#### {before}{unbroken}")
    components.metric_cards(_metric_cards(page, page.plan.cost), "answer")


def show_fleet(page: Page, cost: CostBreakdown) -> None:
    """Of the answer what only the tab Plan has: what targets come to, the fleet, what simulation changed, growth."""
    good = f" A dollar buys {headline.goodput_words(cost)} within all targets."
    st.markdown(components.plain(targets_line(page.plan) + good))
    checks = results.store().get(_overruled_key(page))
    before, known = results.known_theory_plan(page), checks if isinstance(checks, tuple) else ()
    lines = [sold_in_blocks(page.plan), swapped_words(before, page.plan, known), _growth_words(page)]
    st.caption(components.plain(" ".join(filter(None, lines))))
    components.chart(_drawn_fleet(page), fleets.fleet_rows(page.plan), "Fleet", "fleet")


def _drawn_fleet(page: Page) -> Any:  # noqa: ANN401 - an Altair chart
    """The picture of a fleet, drawn once and not at every run of the script."""
    key = ("drawn fleet", page.key, page.plan.simulated)
    picture = results.store().get(key)
    if picture is None:
        picture = fleets.fleet_picture(page.plan)
        results.store().put(key, picture)
    return picture


NO_TARGETS = "Work without targets: only how much of it is done counts."
"""In place of what targets come to."""


def targets_line(plan: Plan) -> str:
    """Every target with what it comes to, in a line: in simulation, or by theory until there is one."""
    if not plan.targets:
        return NO_TARGETS
    how = "Simulated" if plan.simulated else "By theory"
    slow = plan.slow_targets if len(plan.slow_targets) == len(plan.targets) else plan.targets
    shown = (_target_in_words(*pair, plan.simulated) for pair in zip(plan.targets, slow, strict=True))
    return f"{how}: {'; '.join(shown)}."


def _target_in_words(check: TargetCheck, slow: TargetCheck, is_simulated: bool) -> str:
    """A target; by theory with what slow steps make of it, since nothing has checked it yet."""
    seconds = check.simulated_s if is_simulated else check.predicted_s
    limit = with_unit(check.target.threshold_s, check.target.metric)
    missed = "" if check.met else ", missed"
    is_unsure = not is_simulated and slow.predicted_s > check.predicted_s
    unsure = f" ({with_unit(slow.predicted_s, check.target.metric)} if steps are slow)" if is_unsure else ""
    return (
        f"{check.of} {check.target.name} {with_unit(seconds, check.target.metric)}{unsure} of {limit}{missed}".strip()
    )


SKELETON = f"<div class='planner-skeleton'>{'<i></i>' * 4}</div>"
"""The places of figures that are being computed."""


def show_outdated(place: DeltaGenerator) -> None:
    """While another answer is under way: the last one as what it is. One element replaces all that stood in its place.

    A container would keep what it held until the script ends: badges of the old answer among them.
    """
    last = st.session_state.get(LAST)
    if last:
        place.caption(components.plain(f"The inputs have changed. The answer before: {last}"))


def _growth_words(page: Page) -> str:
    """Until when the fleet holds, where the scenario says how demand grows and the headroom is known; else empty."""
    forecast, found = page.request.forecast, cached_headroom(page)
    if forecast is None or found is None:
        return ""
    return f"As demand grows the fleet {fleet_growth(page.plan, forecast, headroom_share=found.share).words}."


def complete(page: Page) -> bool:
    """Compute what is missing beside a simulated plan: alternatives and intervals; True if there was anything to do."""
    plan = page.plan
    if plan.cost is None or not plan.simulated:
        return False
    jobs = [results.comparison(page)]
    before = results.known_theory_plan(page)
    if before is not None and swapped_words(before, plan, ()):
        compute = partial(headline.simulated_with_slow_steps, before, plan)
        jobs.append(results.Job(_overruled_key(page), compute, "Why simulation changed the fleet"))
    if is_calibrated(plan):
        for confidence in headline.range_confidences(plan):
            cost = partial(headline.cost_at, plan, page.hardware, confidence)
            what = f"Cost at {percent(confidence)} confidence"
            jobs.append(results.Job(_cost_key(page, confidence), cost, what))
    jobs.append(results.Job(("headroom", page.key), partial(headroom, plan), "Looking for headroom"))
    return results.compute_together(jobs)


def cached_headroom(page: Page) -> Headroom | None:
    """The headroom of the plan, once it was computed."""
    headroom = results.store().get(("headroom", page.key))
    return headroom if isinstance(headroom, Headroom) else None


def cached_cost_range(page: Page) -> CostRange | None:
    """The interval of the cost, once it was computed."""
    confidences = headline.range_confidences(page.plan)
    exact, sure = (results.store().get(_cost_key(page, confidence)) for confidence in confidences)
    if not (isinstance(exact, headline.CostEnd) and isinstance(sure, headline.CostEnd)):
        return None
    return CostRange(exact, sure, confidences[1])


def _cost_key(page: Page, confidence: float) -> tuple[str, str, float]:
    return ("cost at", page.key, confidence)


# --- status -----------------------------------------------------------------------------------------------------------


def _status(page: Page) -> None:
    """Badges that say how the numbers are known."""
    plan, sources = page.plan, headline.calibration_sources(page.plan)
    is_stopped = st.session_state.get(results.STOPPED) == results.name_of(("checked", page.key))
    checked = plan.simulated and all(check.met for check in plan.targets)
    st.badge(
        "By theory; simulation was stopped" if is_stopped else headline.status_words(plan),
        icon=":material/check_circle:" if checked else ":material/schedule:",
        color="green" if checked else "blue",
        help=components.plain(_simulation_hint(plan)),
    )
    calibration = headline.calibration_words(plan)
    st.badge(
        calibration,
        icon=":material/straighten:",
        color="green" if calibration == "Calibrated" else "orange",
        help="\n".join(["How step times are known:", "", *(f"- {components.plain(line)}" for line in sources)]),
    )


def _overruled_key(page: Page) -> tuple[str, str]:
    return "overruled", page.key


def swapped_words(before: Plan | None, plan: Plan, checks: Sequence[TargetCheck]) -> str:
    """The provisional fleet, where simulation led to another one, and the target that moved it; else empty.

    Args:
        before: by theory.
        plan: simulated.
        checks: targets of the provisional fleet with slow steps, simulated; empty: not known yet.
    """
    if before is None or not plan.simulated or before.cost is None or plan.cost is None:
        return ""
    old, new = headline.fleet_words(before), headline.fleet_words(plan)
    if old == new and headline.replica_words(before) == headline.replica_words(plan):
        return ""
    price = headline.dollars(before.cost.usd_per_month)
    first = f"By theory alone it was {old} for {price} a month ({headline.replica_words(before)})"
    missed = [check for check in checks if check.simulated_s > check.target.threshold_s]
    if not checks:
        return f"{first}; simulation changed it."
    if not missed:
        held = (
            "others that hold cost less"
            if plan.cost.usd_per_hour < before.cost.usd_per_hour
            else (f"it holds, but not with the {percent(plan.request.confidence)} asked for")
        )
        return f"{first}; simulated, {held}."
    reached = " and ".join(
        f"{target_name(check.target, check.of)} is {with_unit(check.simulated_s, check.target.metric)} of "
        f"{with_unit(check.target.threshold_s, check.target.metric)} "
        f"({change(check.simulated_s / check.target.threshold_s - 1.0)})"
        for check in missed
    )
    return f"{first}. Simulated with steps as slow as it is planned for, {reached} on that fleet."


def _simulation_hint(plan: Plan) -> str:
    if not plan.simulated:
        return "Latencies so far are from queueing theory. The fleet is being simulated request by request."
    gaps = [f"mean {pair.metric.upper()} {change(pair.relative_difference)}" for pair in plan.agreement]
    agree = f" Theory against simulation: {', '.join(gaps)}." if gaps else ""
    return f"The fleet was simulated request by request; a missed target would have made it grow.{agree}"


# --- figures ----------------------------------------------------------------------------------------------------------


INTERVAL_HINT = (
    "Below: planned again, by theory, as if step times were exactly as estimated, and so that every target holds with "
    "the confidence named, uncertain as step times are."
)


def _metric_cards(page: Page, cost: CostBreakdown) -> list[components.MetricCard]:
    """The figures of the plan's own page, each with its meaning and provenance."""
    plan = page.plan
    costs = cached_cost_range(page) if plan.simulated else None
    growth = cached_headroom(page) if plan.simulated else None
    figures = html_page.figures(plan, cost, costs, growth, INTERVAL_FOLLOWS)
    shown = {label: (value, below) for label, value, below in figures}
    shown["Fleet"] = shown["Fleet"][0], f"in {number_of(plan.servers, 'server')}"
    if growth is None:
        shown["Headroom"] = "…", INTERVAL_FOLLOWS if plan.simulated else "follows the simulation"
    hints = (_fleet_hint(plan, costs), _month_hint(plan, cost), _token_hint(cost), _headroom_hint(plan, growth))
    return [
        components.MetricCard(label, value, hint, below)
        for (label, (value, below)), hint in zip(shown.items(), hints, strict=True)
    ]


def _fleet_hint(plan: Plan, costs: CostRange | None) -> str:
    ends = ""
    if costs is not None:
        sure = f"with {percent(costs.confidence)} confidence"
        ends = f" Were the estimates exact: {costs.exact.fleet}; {sure}: {costs.sure.fleet}. {INTERVAL_HINT}"
    return (
        f"GPUs rented or owned: {headline.fleet_words(plan)}. The cheapest fleet that holds every target, found by an "
        f"integer program over all configurations; counted. Step times: "
        f"{'; '.join(headline.calibration_sources(plan))}.{ends}"
    )


def _month_hint(plan: Plan, cost: CostBreakdown) -> str:
    mean = " Mean over the periods of the schedule." if plan.schedule else ""
    return (
        f"USD a month of 730 hours for all GPUs, at {headline.dollars(cost.usd_per_hour)} an hour.{mean} "
        f"Prices as listed: {'; '.join(headline.price_sources(plan))}. {INTERVAL_HINT}"
    )


def _token_hint(cost: CostBreakdown) -> str:
    return (
        f"USD per million output tokens at the planned load. Input tokens: "
        f"{headline.dollars(cost.usd_per_million_input_tokens)} per million; a thousand requests: "
        f"{headline.dollars(cost.usd_per_thousand_requests)}. Both kinds share the cost of a mixed pool by what they "
        "take from its largest stable rate; a prefill pool is all input, a decode pool all output. Cost as listed, "
        f"over tokens as given. {INTERVAL_HINT}"
    )


def _headroom_hint(plan: Plan, growth: Headroom | None) -> str:
    hint = (
        "By how much the demand may grow before a plan for it buys more: with step times as slow as the confidence "
        "asked for reckons with, traffic split as planned, and what simulation taught of this traffic. Predicted by "
        "theory. Below: the same with step times exactly as estimated."
    )
    if growth is None:
        return hint
    rate = significant(headline.served_per_s(plan) * (1.0 + growth.share))
    tightest = f"{growth.tightest} at {percent(growth.tightest_ratio)} of its threshold"
    return f"{hint} Up to {rate} requests/s. Tightest: {tightest}."


# --- concerns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remedy:
    """A button: what it is called, the changes that it makes, its key and its hint."""

    label: str
    changes: Mapping[str, Any]
    key: str
    hint: str


@dataclass(frozen=True)
class Concern:
    """One warning, and the button that does something about it where there is one."""

    text: str
    remedy: Remedy | None = None


def show_concerns(plan: Plan, costs: CostRange | None) -> None:
    """The gravest warning in a line, which opens: all of them, each with its remedy."""
    known = list(concerns(plan, costs))
    if not known:
        return
    count = number_of(len(known), "warning")
    with st.expander(f":orange[:material/warning: {count}:] {components.plain(known[0].text)}"):
        for concern in known:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(components.plain(concern.text), width="stretch")
                if concern.remedy is not None:
                    st.button(
                        concern.remedy.label,
                        on_click=session.change,
                        args=(concern.remedy.changes,),
                        key=concern.remedy.key,
                        icon=":material/shield:",
                        help=concern.remedy.hint,
                    )


def concerns(plan: Plan, costs: CostRange | None) -> Iterator[Concern]:
    """Of a feasible plan, the gravest first.

    Missed targets, unsure ones, losses that it does not survive, what else it says, losses that it survives only with
    step times as estimated, its one seller.
    """
    missed = [line for line in plan.warnings if "misses the target" in line]
    yield from map(Concern, missed)
    unsure = unsure_words(plan)
    if unsure:
        yield Concern(unsure, _more_confidence(plan, costs))
    losses = {loss.failed: loss for loss in plan.losses if not loss.holds}  # of one replica each, the server stands
    yield from (_loss(loss, plan) for loss in losses.values() if not loss.holds_as_estimated)
    said = [line for line in plan.warnings if line not in missed and not (losses and line.endswith(STOPS))]
    yield from map(Concern, said)
    yield from (_loss(loss, plan) for loss in losses.values() if loss.holds_as_estimated)
    alone = one_seller(plan)
    if alone:
        yield Concern(alone)


def _loss(loss: Loss, plan: Plan) -> Concern:
    """A loss that the fleet does not survive, and the button that plans for it."""
    changes: Mapping[str, Any]
    if loss.of is LossOf.SERVER:
        what, text, changes = "server", "Plan for a lost server", {"limits.survives_node_loss": True}
    else:
        what, text, changes = "replica", "Plan one spare replica", {"limits.spare_replicas": 1}
    if loss.target is None:
        words = f"If one {what} fails ({loss.failed}), the service stops."
    elif not math.isfinite(loss.predicted_s):
        words = f"If one {what} fails ({loss.failed}), what is left cannot carry the traffic: queues grow without end."
    else:
        limit = with_unit(loss.target.threshold_s, loss.target.metric)
        expected = (
            f"{target_name(loss.target, loss.scope)} settles at {with_unit(loss.predicted_s, loss.target.metric)}"
        )
        if loss.holds_as_estimated:
            slow = with_unit(loss.slow_s, loss.target.metric)
            words = (
                f"If one {what} fails ({loss.failed}), {expected} of {limit} as estimated, but at {slow} where steps "
                f"are as slow as {percent(plan.request.confidence)} confidence reckons with."
            )
        else:
            words = f"If one {what} fails ({loss.failed}), {expected} instead of {limit}."
    hint = f"Plans again so that every target holds without one {what} as well: dearer."
    return Concern(words, Remedy(text, changes, f"loss-{loss.of}", hint))


def one_seller(plan: Plan) -> str:
    """That all is rented from one provider, whose stock and outages no plan knows; empty where it is not so."""
    prices = [purchase.price for purchase in plan.bought if any(purchase.gpus)]
    sellers = {price.provider for price in prices if price is not None}
    if None in prices or len(sellers) != 1:
        return ""
    count = number_of(sum(plan.gpus.values()), "GPU")
    (seller,) = sellers
    return (
        f"All {count} are to be had from {seller}, and stop together in an outage there. Prices are as listed: "
        "whether so many are free is not known here."
    )


def unsure_words(plan: Plan) -> str:
    """Probability of a missed target, where it is larger than plans are usually made for; else empty."""
    found = plan.confidence
    if found is None or found.uncalibrated or found.holds >= USUAL_CONFIDENCE - found.error:
        return ""
    return (
        f"With a probability of {percent(1.0 - found.holds)} step times are so much slower than estimated that a "
        "target is missed."
    )


def remedy_confidence(plan: Plan) -> float | None:
    """The confidence offered next, beyond what was asked and what this fleet reaches anyway; None beyond the last."""
    reached = 0.0 if plan.confidence is None else round(plan.confidence.holds, 2)
    return next_confidence(max(plan.request.confidence, reached))


def _more_confidence(plan: Plan, costs: CostRange | None) -> Remedy | None:
    """Planning with more confidence, with its cost where that is known."""
    following = remedy_confidence(plan)
    if following is None:
        return None
    label = f"Plan with {percent(following)} confidence"
    if costs is not None and costs.sure.cost is not None and costs.confidence == following:
        label += f": {components.plain(headline.dollars(costs.sure.cost.usd_per_month))} a month"
    hint = "Plans again so that every target holds with this probability, uncertain as step times are."
    return Remedy(label, {"confidence": following}, "unsure-confidence", hint)


def next_confidence(confidence: float) -> float | None:
    """The next higher confidence that is offered; None beyond the last.

    >>> next_confidence(0.9), next_confidence(0.95), next_confidence(0.99)
    (0.95, 0.99, None)
    """
    return next((offered for offered in OFFERED_CONFIDENCES if offered > confidence), None)
