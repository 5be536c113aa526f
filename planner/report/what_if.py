"""A what-if, before and after, in a sentence and tables, as Markdown and as JSON."""

from __future__ import annotations

from typing import Any

from planner.analysis import Change, PlanMeasure, WhatIf, WhatIfSide
from planner.core import Report, Table, markdown_table, money, significant
from planner.fleet import TargetCheck
from planner.report.explanation import (
    cost_cell,
    document,
    gain_cell,
    gain_words,
    held_back_by,
    matters,
    outcome_words,
    quantity,
)
from planner.report.layout import markdown_page


def headline(what_if: WhatIf) -> str:
    """What the changes come to, in one sentence."""
    before, after = what_if.before.outcome, what_if.after.outcome
    if not after.feasible:
        return f"{what_if.name}: {outcome_words(after)}."
    if not before.feasible:
        return f"{what_if.name}: becomes feasible: {outcome_words(after)}."
    if what_if.gain is None or (before.fleet == after.fleet and not matters(what_if.gain, after)):
        return f"{what_if.name}: nothing changes: {outcome_words(after)}."
    gain = gain_words(what_if.gain, what_if.measure)
    return f"{what_if.name}: {gain}: {outcome_words(after)}, before {outcome_words(before)}."


def tables(what_if: WhatIf) -> tuple[Table, ...]:
    """Before and after, and each change by itself."""
    rows = [
        (name, *cells)
        for name, *cells in zip(_SIDE_ROWS, _side_cells(what_if.before), _side_cells(what_if.after), strict=True)
    ]
    before = {check.target.name: check for check in what_if.before.targets}
    after = {check.target.name: check for check in what_if.after.targets}
    for name in dict.fromkeys((*before, *after)):
        rows.append((name, *(_target_cell(side.get(name)) for side in (before, after))))
    changes = tuple(_change_cells(change, what_if.measure) for change in what_if.changes)
    columns = ("setting", f"gain [{what_if.measure.value}]", "cost [USD/h]", "fleet", "held back by")
    return (
        Table(
            "Before and after",
            ("what", "before", "after"),
            tuple(rows),
            "By theory, as simulation corrected it.",
        ),
        Table("What each change brings", columns, changes, "In the order given, each on top of those before it."),
    )


_SIDE_ROWS = (
    "fleet",
    "GPUs",
    "cost [USD/h]",
    "cost [USD/month]",
    "USD per million tokens",
    "USD per million input tokens",
    "USD per million output tokens",
    "served [requests/s]",
    "binding limits",
    "most step time",
)


def _side_cells(side: WhatIfSide) -> tuple[str, ...]:
    outcome, cost = side.outcome, side.cost
    gpus = ", ".join(f"{count} x {sku}" for sku, count in outcome.gpus.items())
    costs: tuple[str, ...] = ("-",) * 5
    if cost is not None:
        costs = (
            money(cost.usd_per_hour),
            money(cost.usd_per_month),
            money(cost.usd_per_million_tokens),
            money(cost.usd_per_million_input_tokens),
            money(cost.usd_per_million_output_tokens),
        )
    served = significant(outcome.rate_per_s) if outcome.feasible else "-"
    return (outcome.fleet, gpus or "-", *costs, served, ", ".join(outcome.binding) or "-", outcome.bound or "-")


def _target_cell(check: TargetCheck | None) -> str:
    if check is None:
        return "-"
    return f"{quantity(check.predicted_s, 's')} of {quantity(check.target.threshold_s, 's')}"


def _change_cells(change: Change, measure: PlanMeasure) -> tuple[str, ...]:
    outcome = change.outcome
    costs = (gain_cell(change.gain, measure), cost_cell(outcome))
    return (change.setting, *costs, outcome.fleet, held_back_by(outcome) or "-")


def report(what_if: WhatIf) -> Report:
    """Before and after as a terminal shows them."""
    return Report(headline(what_if), tables(what_if))


def what_if_document(what_if: WhatIf) -> dict[str, Any]:
    """Before and after as plain JSON data; null is infinite or absent."""
    return document("what_if", what_if)


def markdown(what_if: WhatIf) -> str:
    """Before and after as GitHub Markdown."""
    return markdown_page(f"What if: {what_if.name}", headline(what_if), map(markdown_table, tables(what_if)))
