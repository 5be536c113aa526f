"""What if: sliders on the scenario, and the plan they would give beside the present one, before anything changes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from hardware_db import sku_words
from planner.analysis import PlanMeasure, WhatIf, WhatIfSide, gain, outcome_of
from planner.core import PlannerError, Table, change, money, percent, significant
from planner.fleet import Plan
from planner.report import quantity, what_if
from planner.scenario import Content
from planner.traffic import load_lengths
from planner.web import components, fields, results, session
from planner.web.results import Page

FACTORS = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Positions of a slider, as factors on the scenario's value; few, so that a drag does not plan for every pixel."""
MAX_TARGET_SLIDERS = 4
"""Targets that get a slider, in the order of the scenario."""
NOTE = (
    "Before: the plan at the top. After: by theory, as simulating that plan corrected it. "
    "Once used as the scenario, the new plan is simulated too."
)
"""Under the table."""


@dataclass(frozen=True)
class Knob:
    """One slider.

    Attributes:
        name: unique among the knobs.
        label: what it moves.
        text: the value at a factor, in words.
        changes: values by dotted path of the scenario, at a factor.
        hint: shown on hover.
    """

    name: str
    label: str
    text: Callable[[float], str]
    changes: Callable[[float], Mapping[str, Any]]
    hint: str


def show(page: Page) -> None:
    """Sliders, then before and after side by side."""
    shown = knobs(page)
    places = slider_keys(page, shown)
    _show_sliders(shown, places)
    factors = {knob.name: st.session_state[places[knob.name]] for knob in shown}
    changes = slider_changes(shown, factors, page.content)
    if not changes:
        st.caption("Move a slider to see the plan before and after, side by side. Nothing changes until you use it.")
        return
    key = json.dumps(session.with_changes(page.content, changes), sort_keys=True)
    try:
        after = results.compared_plan(page, results.request_of(key), key)
    except PlannerError as error:
        st.error(components.plain(str(error)))
        return
    _side_by_side(page, page.plan, after)
    with st.container(horizontal=True):
        st.button(**fields.widget("whatif-use"), on_click=session.change, args=(changes,))
        middle = dict.fromkeys(places.values(), 1.0)
        st.button("Reset", key="whatif-reset", on_click=st.session_state.update, args=(middle,), icon=":material/undo:")


def slider_keys(page: Page, shown: tuple[Knob, ...]) -> dict[str, str]:
    """The key of each slider; another scenario or label has another key, so that its slider starts in the middle."""
    return {knob.name: f"whatif-{knob.name}-{abs(hash((page.key, knob.label))):x}" for knob in shown}


def _show_sliders(shown: tuple[Knob, ...], places: Mapping[str, str]) -> None:
    """Sliders in two columns."""
    columns = st.columns(2, gap="large")
    for place, knob in enumerate(shown):
        st.session_state.setdefault(places[knob.name], 1.0)
        with columns[place % 2]:
            st.select_slider(
                components.plain(knob.label),
                FACTORS,
                format_func=knob.text,
                key=places[knob.name],
                help=components.plain(knob.hint),
            )


# --- knobs ------------------------------------------------------------------------------------------------------------


def knobs(page: Page) -> tuple[Knob, ...]:
    """The sliders of a scenario: demand, targets, price of the SKUs in use, lengths."""
    return (*_demand_knob(page), *_target_knobs(page), *_price_knobs(page), *_length_knobs(page))


def slider_changes(shown: tuple[Knob, ...], factors: Mapping[str, float], content: Content) -> dict[str, Any]:
    """Changes of a scenario by all sliders together; those at 1 change nothing."""
    moved = {knob.name: knob for knob in shown if factors.get(knob.name, 1.0) != 1.0}
    changes: dict[str, Any] = {}
    for name, knob in moved.items():
        changes |= knob.changes(factors[name])
    if "input" in moved or "output" in moved:  # both change the same fields
        changes |= length_changes(content, factors.get("input", 1.0), factors.get("output", 1.0))
    return changes


def _demand_knob(page: Page) -> tuple[Knob, ...]:
    workload = page.content["workload"]
    if workload.get("concurrency"):
        users = workload["concurrency"]
        return (
            Knob(
                "demand",
                f"{_model_prefix(page)}Users at the same time",
                lambda factor: f"{max(1, round(factor * users)):,} users",
                lambda factor: {"workload.concurrency": max(1, round(factor * users))},
                "Concurrency of the closed loop.",
            ),
        )
    rate = page.request.workload.rate_per_s
    return (
        Knob(
            "demand",
            f"{_model_prefix(page)}Demand",
            lambda factor: f"{significant(_rounded(factor * rate))} requests/s",
            lambda factor: {"workload.rate_per_s": _rounded(factor * rate)},
            "Mean arrivals [requests/s].",
        ),
    )


def _model_prefix(page: Page) -> str:
    """The model of the scenario's own traffic, before a label, where there are several models."""
    return f"{page.request.llm.id}: " if page.request.services else ""


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _target_knobs(page: Page) -> tuple[Knob, ...]:
    return tuple(
        Knob(
            f"target-{index}",
            f"{_model_prefix(page)}{target.name} at most",
            partial(lambda threshold_s, factor: quantity(_rounded(factor * threshold_s), "s"), target.threshold_s),
            partial(
                lambda path, threshold_s, factor: {path: _rounded(factor * threshold_s)},
                f"slo.{index}.threshold_s",
                target.threshold_s,
            ),
            f"Threshold of the target on {target.name}: tighter to the left, looser to the right.",
        )
        for index, target in enumerate(page.request.slo.targets[:MAX_TARGET_SLIDERS])
    )


def _price_knobs(page: Page) -> tuple[Knob, ...]:
    paid = page.plan.paid_usd_per_gpu_hour
    prices = {sku: paid[sku] for sku in page.plan.gpus if sku in paid}
    if not prices:
        return ()

    def text(factor: float) -> str:
        return ", ".join(f"${money(factor * usd)}" for usd in prices.values())

    def changes(factor: float) -> dict[str, Any]:
        given = page.content["prices"]["usd_per_gpu_hour"]
        return {"prices.usd_per_gpu_hour": {**given, **{sku: _rounded(factor * usd) for sku, usd in prices.items()}}}

    names = [sku_words(sku) for sku in prices]
    hint = f"Price of a GPU-hour of the SKUs in use ({', '.join(names)}); a given price replaces all listed ones."
    return (Knob("price", f"Price of {' and '.join(names)} per GPU-hour", text, changes, hint),)


def _length_knobs(page: Page) -> tuple[Knob, ...]:
    if not length_changes(page.content, 1.0, 1.0) or page.content["workload"].get("replay"):
        return ()
    lengths = page.request.workload.lengths
    means = {"input": lengths.mean_input, "output": lengths.mean_output}

    hint = "Mean over requests; all lengths are scaled, so that their relative spread stays the same."
    return tuple(
        Knob(
            side,
            f"{_model_prefix(page)}Mean {side} length",
            partial(lambda mean, factor: f"{factor * mean:,.0f} tokens", mean),
            lambda _: {},
            hint,
        )
        for side, mean in means.items()
    )


def length_changes(content: Content, inputs: float, outputs: float) -> dict[str, Any]:
    """The lengths of a scenario times factors, in the form they have; empty where they are in a file or a trace."""
    workload = content["workload"]
    if workload.get("classes"):
        forms = {f"workload.classes.{index}.lengths": form["lengths"] for index, form in enumerate(workload["classes"])}
    else:
        forms = {"workload.lengths": workload.get("lengths")}
    scaled = {path: _scaled_lengths(form, inputs, outputs) for path, form in forms.items()}
    return {} if None in scaled.values() else scaled


def _scaled_lengths(form: Any, inputs: float, outputs: float) -> Any:  # noqa: ANN401
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
        means = {"mean_input_tokens": _rounded(mean_input), "mean_output_tokens": _rounded(mean_output)}
        return {"preset": form["preset"], **{name: max(1.0, mean) for name, mean in means.items()}}
    if "input_tokens" in form:
        pair = (max(1, round(inputs * form["input_tokens"])), max(1, round(outputs * form["output_tokens"])))
        return dict(zip(("input_tokens", "output_tokens"), pair, strict=True))
    return None


# --- before and after -------------------------------------------------------------------------------------------------


def what_if_of(before: Plan, after: Plan, name: str, measure: PlanMeasure) -> WhatIf:
    """Two plans as before and after a change."""
    first, second = outcome_of(before), outcome_of(after)
    sides = (WhatIfSide(first, before.cost, before.targets), WhatIfSide(second, after.cost, after.targets))
    return WhatIf(name, measure, *sides, (), gain(first, second, measure), 0)


def _side_by_side(page: Page, before: Plan, after: Plan) -> None:
    compared = what_if_of(before, after, page.request.name, PlanMeasure.of(page.request))
    headline = what_if.headline(compared).removeprefix(f"{compared.name}: ")
    st.markdown(f"**{components.plain(headline[:1].upper() + headline[1:])}**")
    if compared.after.outcome.feasible:
        components.metric_cards(_metric_cards(compared), "what-if")
    for full in what_if.tables(compared)[:1]:
        rows = tuple(row for row in full.rows if row[0] != "binding limits")
        table = Table(full.title, full.columns, rows, NOTE)
        targets = {
            check.target.name: "Predicted latency at its percentile, and its target." for check in before.targets
        }
        components.table(table, "whatif", targets)


def _metric_cards(compared: WhatIf) -> list[components.MetricCard]:
    before, after = compared.before.outcome, compared.after.outcome
    gpus = [sum(outcome.gpus.values()) for outcome in (before, after)]
    token_usd = [
        math.nan if side.cost is None else side.cost.usd_per_million_tokens
        for side in (compared.before, compared.after)
    ]
    return [
        components.MetricCard.named(
            "card-what-if-cost-per-hour",
            f"${money(after.usd_per_hour)}",
            _before_text(f"${money(before.usd_per_hour)}", before.usd_per_hour, after.usd_per_hour),
        ),
        components.MetricCard.named(
            "card-what-if-gpus", f"{gpus[1]:,}", _before_text(f"{gpus[0]:,}", gpus[0], gpus[1])
        ),
        components.MetricCard.named(
            "card-what-if-per-million-tokens",
            f"${money(token_usd[1])}",
            _before_text(f"${money(token_usd[0])}", token_usd[0], token_usd[1]),
        ),
        components.MetricCard(
            f"Tightest: {after.tightest}",
            percent(after.tightest_ratio),
            "Predicted latency over its target, of the target with the least left [%] (predicted).",
            f"before {percent(before.tightest_ratio)} ({before.tightest})" if before.feasible else "before: no fleet",
        ),
    ]


def _before_text(shown: str, old: float, new: float) -> str:
    if not (math.isfinite(old) and old > 0.0):
        return "before: no fleet"
    return f"before {shown} ({change(new / old - 1.0)})"
