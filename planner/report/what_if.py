"""Before and after in a sentence and tables, as Markdown and as JSON. Shows only, computes nothing."""

from __future__ import annotations

from typing import Any

from planner.analysis import Change, Measure, Side, WhatIf
from planner.core import Table, markdown_table, money, significant
from planner.fleet import TargetCheck
from planner.report.explanation import (
    cost_cell,
    document,
    gained,
    in_short,
    matters,
    quantity,
    signed,
    why_held,
)


def headline(found: WhatIf) -> str:
    """What the changes come to, in one sentence."""
    before, after = found.before.outcome, found.after.outcome
    if not after.feasible:
        return f"{found.name}: {in_short(after)}."
    if not before.feasible:
        return f"{found.name}: becomes feasible: {in_short(after)}."
    assert found.gain is not None
    if before.fleet == after.fleet and not matters(found.gain, after):
        return f"{found.name}: nothing changes: {in_short(after)}."
    return f"{found.name}: {gained(found.gain, found.measure)}: {in_short(after)}, before {in_short(before)}."


def tables(found: WhatIf) -> tuple[Table, ...]:
    """Before and after, and each change by itself."""
    rows = [
        (name, *cells)
        for name, *cells in zip(_SIDE_ROWS, _side_cells(found.before), _side_cells(found.after), strict=True)
    ]
    before = {check.target.name: check for check in found.before.targets}
    after = {check.target.name: check for check in found.after.targets}
    for name in dict.fromkeys((*before, *after)):
        rows.append((name, *(_target_cell(side.get(name)) for side in (before, after))))
    changes = tuple(_change_cells(change, found.measure) for change in found.changes)
    columns = ("setting", f"gain [{found.measure.value}]", "cost [USD/h]", "fleet", "held back by")
    return (
        Table("Before and after", ("what", "before", "after"), tuple(rows), "Predicted by theory."),
        Table("What each change brings", columns, changes, "In the order given, each on top of those before it."),
    )


_SIDE_ROWS = (
    "fleet",
    "GPUs",
    "cost [USD/h]",
    "cost [USD/month]",
    "USD per million input tokens",
    "USD per million output tokens",
    "served [requests/s]",
    "binding limits",
    "most step time",
)


def _side_cells(side: Side) -> tuple[str, ...]:
    outcome, cost = side.outcome, side.cost
    gpus = ", ".join(f"{count} x {sku}" for sku, count in outcome.gpus.items())
    money_cells = (
        ("-",) * 4
        if cost is None
        else (
            money(cost.usd_per_hour),
            money(cost.usd_per_month),
            money(cost.usd_per_million_input_tokens),
            money(cost.usd_per_million_output_tokens),
        )
    )
    served = significant(outcome.rate_per_s) if outcome.feasible else "-"
    return (outcome.fleet, gpus or "-", *money_cells, served, ", ".join(outcome.binding) or "-", outcome.bound or "-")


def _target_cell(check: TargetCheck | None) -> str:
    if check is None:
        return "-"
    return f"{quantity(check.predicted_s, 's')} of {quantity(check.target.threshold_s, 's')}"


def _change_cells(change: Change, measure: Measure) -> tuple[str, ...]:
    outcome = change.outcome
    return (change.setting, signed(change.gain, measure), cost_cell(outcome), outcome.fleet, why_held(outcome) or "-")


def what_if_document(found: WhatIf) -> dict[str, Any]:
    """A comparison as plain JSON data; null is infinite or absent."""
    return document("what_if", found)


def markdown(found: WhatIf) -> str:
    """A comparison as GitHub Markdown."""
    parts = [f"# What if: {found.name}", f"**{headline(found)}**", *map(markdown_table, tables(found))]
    return "\n\n".join(parts) + "\n"
