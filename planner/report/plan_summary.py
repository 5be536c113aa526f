"""A plan on one screen: answer, fleet, cost, targets with their confidence, alternatives, and what warns of them.

What a decision needs first; `planner.report.plan` has all of it, in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from planner.core import Report, Table, columns_of
from planner.fleet import CostBreakdown, Plan, TargetCheck
from planner.report.plan import (
    COST_COLUMNS,
    GOODPUT_COLUMNS,
    MET_COLUMN,
    TARGET_COLUMNS,
    alternative_table,
    fleet_table,
    headline,
    length_words,
    service_table,
    sold_in_blocks,
)
from planner.report.robustness import confidence_words, how_slow

ALTERNATIVES, MOST_POOLS, MOST_WARNINGS, MOST_REASONS = 3, 8, 4, 10
"""Most alternatives, pools, warnings (missed targets and stale prices come first) and lines that say why there is no
fleet: a choice of what one screen has room for."""
_COSTS = {**{name: cell for name, cell in COST_COLUMNS.items() if name != "$ per million tokens"}, **GOODPUT_COLUMNS}
POPULATION = " users who each wait for an answer "
"""In what a plan assumes of traffic that depends on its answers (`planner.fleet.population`)."""
ALL_OF_IT = "planner plan ... --details"


def summary(plan: Plan) -> Report:
    """A plan on one screen. Numbers and words are those of the whole report."""
    if plan.cost is None:
        return Report(headline(plan), lists={"Why, and what would help": _first(plan.diagnosis[1:], MOST_REASONS)})
    cost = Table.of("Cost", [plan.cost], _COSTS)
    tables = [_fleet_table(plan), service_table(plan), cost, target_table(plan), *_alternative_tables(plan, plan.cost)]
    more = (f"{ALL_OF_IT}: latencies, load, prices and sources, what binds, what is assumed",)
    lists = {
        "Traffic": [line for line in plan.assumptions if POPULATION in line],
        "Warnings": _first(plan.warnings, MOST_WARNINGS),
        "More": more,
    }
    return Report(headline(plan), tuple(filter(None, tables)), lists)


def _first(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """The first lines, and how many there are more."""
    left = len(lines) - most
    return (*lines[:most], f"{left} more: {ALL_OF_IT}") if left > 0 else tuple(lines)


def _fleet_table(plan: Plan) -> Table:
    """The first pools; how long the requests are that they are for, and who sells GPUs by the server only."""
    whole, services = fleet_table(plan), plan.request.all_services
    left = len(whole.rows) - MOST_POOLS
    lengths = {f"{one.name}: " * (len(services) > 1) + length_words(one.workload.lengths): None for one in services}
    notes = (f"{left} more pools: {ALL_OF_IT}." * (left > 0), f"Requests: {'; '.join(lengths)}.", sold_in_blocks(plan))
    return Table(whole.title, whole.columns, whole.rows[:MOST_POOLS], " ".join(filter(None, notes)))


def target_table(plan: Plan) -> Table:
    """Every target by theory, in simulation, and with step times as slow as the fleet is planned for."""
    slow = plan.slow_targets if len(plan.slow_targets) == len(plan.targets) else (None,) * len(plan.targets)

    def if_slow(words: Callable[[TargetCheck], str]) -> Callable[[_Pair], str]:
        return lambda pair: "-" if pair[1] is None else words(pair[1])

    columns = {
        **columns_of(_estimated, TARGET_COLUMNS),
        "if slow": if_slow(TARGET_COLUMNS["simulated"]),
        **columns_of(_estimated, MET_COLUMN),
        "met if slow": if_slow(MET_COLUMN["met"]),
    }
    sure = confidence_words(plan)
    note = f"All at once: {sure}. If slow: every step as slow as {how_slow(plan)}." if sure else ""
    return Table.of("Targets", zip(plan.targets, slow, strict=True), columns, note)


_Pair: TypeAlias = tuple[TargetCheck, TargetCheck | None]


def _estimated(pair: _Pair) -> TargetCheck:
    return pair[0]


def _alternative_tables(plan: Plan, cost: CostBreakdown) -> list[Table]:
    """Narrower formats and shared contexts, then the cheapest other fleets, each once; nothing where there is none."""
    others = sorted(
        (one for one in plan.alternatives if one.usd_per_hour is not None and not one.is_chosen),
        key=lambda one: (
            one.kind not in ("format", "context"),
            math.inf if one.usd_per_hour is None else one.usd_per_hour,
        ),
    )
    shown = list({one.summary: one for one in reversed(others)}.values())[::-1][:ALTERNATIVES]
    if not shown:
        return []
    note = "From theory. >=: at least that much, at optimistic rates."
    return [alternative_table("Alternatives", shown, plan, cost.usd_per_hour, note)]
