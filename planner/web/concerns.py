"""Warnings of a plan that may overturn the headline, in order of weight, each with what helps.

Three at most stand open; the rest is folded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from planner.analysis import CostRange, headline
from planner.core import number_of, percent, with_unit
from planner.fleet import Loss, LossOf, Plan, PlanRequest
from planner.report import target_name
from planner.web import components, session

USUAL_CONFIDENCE: float = PlanRequest.model_fields["confidence"].default
"""That plans are made for where nobody asks for another."""
OFFERED_CONFIDENCES = (0.95, 0.99)
"""Confidences that a button offers beyond the plan's own. A choice."""
MOST_OPEN = 3
"""Warnings that stand open. A choice."""
STOPS = "its loss stops the service"
"""End of the engine's warnings of pools of one replica, which the loss of a replica says better."""


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


def show(plan: Plan, costs: CostRange | None) -> None:
    """The gravest open, each with its remedy; the rest behind a click."""
    known = list(concerns(plan, costs))
    for concern in known[:MOST_OPEN]:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f":orange[:material/warning:] {components.plain(concern.text)}", width="stretch")
            if concern.remedy is not None:
                st.button(
                    concern.remedy.label,
                    on_click=session.change,
                    args=(concern.remedy.changes,),
                    key=concern.remedy.key,
                    icon=":material/shield:",
                    help=concern.remedy.hint,
                )
    folded = [concern.text for concern in known[MOST_OPEN:]]
    if folded:
        with st.popover(number_of(len(folded), "further warning"), icon=":material/warning:", type="tertiary"):
            components.bullets(folded)


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
    if costs is not None and costs.high is not None and costs.confidence == following:
        label += f": {components.plain(headline.dollars(costs.high.usd_per_month))} a month"
    hint = "Plans again so that every target holds with this probability, uncertain as step times are."
    return Remedy(label, {"confidence": following}, "unsure-confidence", hint)


def next_confidence(confidence: float) -> float | None:
    """The next higher confidence that is offered; None beyond the last.

    >>> next_confidence(0.9), next_confidence(0.95), next_confidence(0.99)
    (0.95, 0.99, None)
    """
    return next((offered for offered in OFFERED_CONFIDENCES if offered > confidence), None)
