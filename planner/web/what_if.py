"""What if: sliders beside the scenario, whose plan is shown next to the one there is before anything is changed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from planner.analysis import Case, Measure, Outcome, Side, WhatIf, gain, outcome_of, price_now
from planner.core import PlannerError, Table, change, money, percent, significant
from planner.fleet import Plan
from planner.report import quantity, what_if
from planner.scenario import Content
from planner.traffic import load_lengths
from planner.web import components, results, session
from planner.web.results import Page

FACTORS = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Places of a slider, as factors on what the scenario has; few, so that a drag does not plan for every pixel."""
MOST_TARGETS = 4
"""Targets that get a slider, in the order of the scenario."""
HINTS = {
    "what": "Figures of both plans, by theory.",
    "before": "With the scenario as it is.",
    "after": "With the sliders as they stand.",
    "most step time": "What most of a mean step waits for, by pool.",
    "served [requests/s]": "Arrivals that the fleet is planned for [requests/s] (given).",
    "fleet": "Replicas, SKU, TP degree and role of each pool (optimised).",
    "GPUs": "GPUs by SKU (optimised).",
    "cost [USD/h]": "Price of all GPUs for an hour [USD/h]: listed or given prices times GPUs.",
    "cost [USD/month]": "The same for a month of 730 hours [USD/month].",
    "USD per million input tokens": "Share of the cost for prompts over the prompt tokens served.",
    "USD per million output tokens": "Share of the cost for answers over the tokens written.",
}
NOTE = (
    "Predicted by theory, on both sides: the plan at the top is simulated too and may hold a few more GPUs. "
    "Used as the scenario, the plan after is simulated in turn."
)
"""Under the table."""


@dataclass(frozen=True)
class Knob:
    """One slider.

    Attributes:
        name: unique among the knobs.
        label: what it moves.
        said: the value at a factor, in words.
        changes: values by dotted path of the scenario, at a factor.
        hint: for the hover.
    """

    name: str
    label: str
    said: Callable[[float], str]
    changes: Callable[[float], Mapping[str, Any]]
    hint: str


def show(page: Page) -> None:
    """Sliders, then before and after side by side."""
    shown = knobs(page)
    places = keys_of(page, shown)
    _sliders(shown, places)
    factors = {knob.name: st.session_state[places[knob.name]] for knob in shown}
    changes = changes_of(shown, factors, page.content)
    if not changes:
        st.caption("Move a slider to see the plan before and after, side by side. Nothing is changed until you say so.")
        return
    key = json.dumps(session.changed(page.content, changes), sort_keys=True)
    try:
        before = results.theory(page.request, page.hardware, page.key)
        after = results.theory(results.request_of(key), page.hardware, key)
    except PlannerError as error:
        st.error(components.plain(str(error)))
        return
    _side_by_side(page, before, after)
    with st.container(horizontal=True):
        st.button(
            "Use this",
            key="whatif-use",
            on_click=session.change,
            args=(changes,),
            type="primary",
            icon=":material/check:",
            help="Writes the sliders into the scenario. Undo takes it back.",
        )
        st.button("Reset", key="whatif-reset", on_click=_reset, args=(tuple(places.values()),), icon=":material/undo:")


def keys_of(page: Page, shown: tuple[Knob, ...]) -> dict[str, str]:
    """The key of each slider: another one for another scenario or label, so that it starts in the middle again."""
    return {knob.name: f"whatif-{knob.name}-{abs(hash((page.key, knob.label))):x}" for knob in shown}


def _reset(keys: tuple[str, ...]) -> None:
    for key in keys:
        st.session_state[key] = 1.0


def _sliders(shown: tuple[Knob, ...], places: Mapping[str, str]) -> None:
    """Sliders in two columns."""
    columns = st.columns(2, gap="large")
    for place, knob in enumerate(shown):
        st.session_state.setdefault(places[knob.name], 1.0)
        with columns[place % 2]:
            st.select_slider(
                components.plain(knob.label),
                FACTORS,
                format_func=knob.said,
                key=places[knob.name],
                help=components.plain(knob.hint),
            )


# --- knobs ------------------------------------------------------------------------------------------------------------


def knobs(page: Page) -> tuple[Knob, ...]:
    """The sliders that make sense for a scenario: demand, targets, price of the SKUs in use, lengths."""
    return (*_demand(page), *_targets(page), *_prices(page), *_lengths(page))


def changes_of(shown: tuple[Knob, ...], factors: Mapping[str, float], content: Content) -> dict[str, Any]:
    """What the sliders change of a scenario, together; those at 1 change nothing."""
    moved = {knob.name: knob for knob in shown if factors.get(knob.name, 1.0) != 1.0}
    found: dict[str, Any] = {}
    for name, knob in moved.items():
        if name not in ("input", "output", "price"):
            found |= knob.changes(factors[name])
    if "price" in moved:
        found |= moved["price"].changes(factors["price"])
    if "input" in moved or "output" in moved:
        found |= length_changes(content, factors.get("input", 1.0), factors.get("output", 1.0))
    return found


def _demand(page: Page) -> tuple[Knob, ...]:
    workload = page.content["workload"]
    if workload.get("concurrency"):
        users = workload["concurrency"]

        def said(factor: float) -> str:
            return f"{max(1, round(factor * users)):,} users"

        def changes(factor: float) -> dict[str, Any]:
            return {"workload.concurrency": max(1, round(factor * users))}

        label = f"{_whose(page)}Users at the same time"
        return (Knob("demand", label, said, changes, "Concurrency of the closed loop."),)
    rate = page.request.workload.rate_per_s
    return (
        Knob(
            "demand",
            f"{_whose(page)}Demand",
            lambda factor: f"{significant(_round(factor * rate))} requests/s",
            lambda factor: {"workload.rate_per_s": _round(factor * rate)},
            "Mean arrivals [requests/s].",
        ),
    )


def _whose(page: Page) -> str:
    """The model that a slider is about, where there are several: that of the scenario's own traffic."""
    return f"{page.request.llm.id}: " if page.request.services else ""


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _targets(page: Page) -> tuple[Knob, ...]:
    found = []
    for place, target in enumerate(page.request.slo.targets[:MOST_TARGETS]):

        def said(factor: float, threshold_s: float = target.threshold_s) -> str:
            return quantity(_round(factor * threshold_s), "s")

        def changes(factor: float, place: int = place, threshold_s: float = target.threshold_s) -> dict[str, Any]:
            return {f"slo.{place}.threshold_s": _round(factor * threshold_s)}

        hint = f"Threshold of the target on {target.name}: tighter to the left, looser to the right."
        found.append(Knob(f"target-{place}", f"{_whose(page)}{target.name} at most", said, changes, hint))
    return tuple(found)


def _prices(page: Page) -> tuple[Knob, ...]:
    case = Case(page.request, page.hardware)
    now = {sku: usd for sku in page.plan.gpus if (usd := price_now(case, sku)) is not None}
    if not now:
        return ()

    def said(factor: float) -> str:
        return ", ".join(f"${money(factor * usd)}" for usd in now.values())

    def changes(factor: float) -> dict[str, Any]:
        given = page.content["prices"]["usd_per_gpu_hour"]
        return {"prices.usd_per_gpu_hour": {**given, **{sku: _round(factor * usd) for sku, usd in now.items()}}}

    hint = (
        f"Price of one GPU for an hour of the SKUs in use ({', '.join(now)}); a given price replaces all listed ones."
    )
    return (Knob("price", f"Price of {' and '.join(now)} per GPU-hour", said, changes, hint),)


def _lengths(page: Page) -> tuple[Knob, ...]:
    if not length_changes(page.content, 1.0, 1.0) or page.content["workload"].get("replay"):
        return ()
    lengths = page.request.workload.lengths
    means = {"input": lengths.mean_input, "output": lengths.mean_output}

    def said(name: str) -> Callable[[float], str]:
        return lambda factor: f"{factor * means[name]:,.0f} tokens"

    words = {side: f"{_whose(page)}Mean {side} length" for side in ("input", "output")}
    hint = "Mean over requests; all lengths are scaled, so that their spread stays what it is."
    return tuple(Knob(name, label, said(name), lambda _: {}, hint) for name, label in words.items())


def length_changes(content: Content, inputs: float, outputs: float) -> dict[str, Any]:
    """The lengths of a scenario times factors, in the form they have. Empty where they stand in a file or a trace."""
    workload = content["workload"]
    if workload.get("classes"):
        forms = {f"workload.classes.{i}.lengths": one["lengths"] for i, one in enumerate(workload["classes"])}
    else:
        forms = {"workload.lengths": workload.get("lengths")}
    scaled = {path: _scaled(form, inputs, outputs) for path, form in forms.items()}
    return {} if None in scaled.values() else scaled


def _scaled(form: Any, inputs: float, outputs: float) -> Any:  # noqa: ANN401
    """One form of lengths times factors; None for those of a file."""
    if isinstance(form, str):
        form = {"preset": form}
    if not isinstance(form, Mapping):
        return None
    if "cells" in form:
        cells = [[max(1, round(a * inputs)), max(1, round(b * outputs)), share] for a, b, share in form["cells"]]
        return {**form, "cells": cells}
    if "preset" in form:
        distribution = load_lengths(form["preset"])
        mean_input = inputs * (form.get("mean_input_tokens") or distribution.mean_input)
        mean_output = outputs * (form.get("mean_output_tokens") or distribution.mean_output)
        means = {"mean_input_tokens": _round(mean_input), "mean_output_tokens": _round(mean_output)}
        return {"preset": form["preset"], **{name: max(1.0, mean) for name, mean in means.items()}}
    if "input_tokens" in form:
        pair = (max(1, round(inputs * form["input_tokens"])), max(1, round(outputs * form["output_tokens"])))
        return dict(zip(("input_tokens", "output_tokens"), pair, strict=True))
    return None


# --- before and after -------------------------------------------------------------------------------------------------


def compared(before: Plan, after: Plan, name: str, measure: Measure) -> WhatIf:
    """Two plans as before and after."""
    first, second = outcome_of(before), outcome_of(after)
    sides = (Side(first, before.cost, before.targets), Side(second, after.cost, after.targets))
    return WhatIf(name, measure, *sides, (), gain(first, second, measure), 0)


def _side_by_side(page: Page, before: Plan, after: Plan) -> None:
    found = compared(before, after, page.request.name, Measure.of(page.request))
    said = what_if.headline(found).removeprefix(f"{found.name}: ")
    st.markdown(f"**{components.plain(said[:1].upper() + said[1:])}**")
    if found.after.outcome.feasible:
        components.figures(_figures(found.before.outcome, found.after.outcome, before, after))
    for full in what_if.tables(found)[:1]:
        rows = tuple(row for row in full.rows if row[0] != "binding limits")
        table = Table(full.title, full.columns, rows, NOTE)
        targets = {
            check.target.name: "Predicted latency at its percentile, and its target." for check in before.targets
        }
        components.table(table, "whatif", {**HINTS, **targets})


def _figures(first: Outcome, second: Outcome, before: Plan, after: Plan) -> list[components.Figure]:
    assert after.cost is not None
    old, new = before.cost, after.cost
    gpus = [sum(one.gpus.values()) for one in (first, second)]
    tokens = [math.nan if cost is None else cost.usd_per_million_output_tokens for cost in (old, new)]
    return [
        components.Figure(
            "Cost per hour",
            f"${money(second.usd_per_hour)}",
            "Price of all GPUs for an hour [USD/h]: listed or given prices times GPUs, by theory.",
            _was(f"${money(first.usd_per_hour)}", first.usd_per_hour, second.usd_per_hour),
        ),
        components.Figure(
            "GPUs",
            f"{gpus[1]:,}",
            "GPUs of the whole fleet (optimised, by theory).",
            _was(f"{gpus[0]:,}", gpus[0], gpus[1]),
        ),
        components.Figure(
            "$ per million output tokens",
            f"${money(tokens[1])}",
            "Share of the cost for answers over the tokens written [USD per million] (predicted).",
            _was(f"${money(tokens[0])}", tokens[0], tokens[1]),
        ),
        components.Figure(
            f"Tightest: {second.tightest}",
            percent(second.tightest_ratio),
            "Predicted latency over its target, of the target with the least left [%] (predicted).",
            f"before {percent(first.tightest_ratio)} ({first.tightest})" if first.feasible else "before: no fleet",
        ),
    ]


def _was(shown: str, old: float, new: float) -> str:
    if not (math.isfinite(old) and old > 0.0):
        return "before: no fleet"
    return f"before {shown} ({change(new / old - 1.0)})"
