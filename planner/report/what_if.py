"""A what-if, before and after, in a sentence and tables."""

from __future__ import annotations

from collections.abc import Callable

from hardware_db import sku_words
from planner.analysis import Change, WhatIf, WhatIfSide
from planner.core import Columns, Report, Table, significant
from planner.fleet import CostBreakdown, TargetCheck
from planner.report.explanation import cost_cell, gain_cell, gain_words, held_back_by, matters, outcome_words, quantity
from planner.report.plan import COST_COLUMNS
from planner.report.robustness import target_name


def headline(what_if: WhatIf) -> str:
    """Effect of the changes, in one sentence."""
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
    sides = (what_if.before, what_if.after)
    checks = [{target_name(check.target, check.of): check for check in side.targets} for side in sides]
    names = dict.fromkeys(name for side in checks for name in side)
    rows = [(name, *map(cell, sides)) for name, cell in _SIDE_ROWS.items()]
    rows += [(name, *(_target_cell(side.get(name)) for side in checks)) for name in names]
    columns: Columns[Change] = {
        "setting": lambda change: change.setting,
        f"gain [{what_if.measure.value}]": lambda change: gain_cell(change.gain, what_if.measure),
        "cost [USD/h]": lambda change: cost_cell(change.outcome),
        "fleet": lambda change: change.outcome.fleet,
        "held back by": lambda change: held_back_by(change.outcome) or "-",
    }
    note = "In the order given, each on top of those before it."
    return (
        Table("Before and after", ("what", "before", "after"), tuple(rows), "By theory, as simulation corrected it."),
        Table.of("What each change brings", what_if.changes, columns, note),
    )


def _of_cost(cell: Callable[[CostBreakdown], str]) -> Callable[[WhatIfSide], str]:
    return lambda side: "-" if side.cost is None else cell(side.cost)


_SIDE_ROWS: Columns[WhatIfSide] = {
    "fleet": lambda side: side.outcome.fleet,
    "GPUs": lambda side: ", ".join(f"{count:,} × {sku_words(sku)}" for sku, count in side.outcome.gpus.items()) or "-",
    **{name: _of_cost(cell) for name, cell in COST_COLUMNS.items()},
    "served [requests/s]": lambda side: significant(side.outcome.rate_per_s) if side.outcome.feasible else "-",
    "binding limits": lambda side: ", ".join(side.outcome.binding) or "-",
    "most step time": lambda side: side.outcome.bound or "-",
}


def _target_cell(check: TargetCheck | None) -> str:
    if check is None:
        return "-"
    return f"{quantity(check.predicted_s, 's')} of {quantity(check.target.threshold_s, 's')}"


def report(what_if: WhatIf) -> Report:
    """Before and after."""
    return Report(headline(what_if), tables(what_if), title=f"What if: {what_if.name}")
