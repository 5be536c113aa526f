"""One function per constraint; each returns its rows as plain numbers, used by the program and by the report alike.

Notation: n[j, t] whole units of j on in period t, f[j, s, t] rate of slice s on them [1/s], b[r, p, t] blocks of
g[r, p] bought of resource r by purchase p, z[j, t] units switched on at the start of t, y[g] 1 where group g is in use,
w[k] where kind k is; h_t the hours of a period, H of the horizon; r[j, s] the rate of one unit, a[j, r] what it takes,
k[j] its own cost [USD/h] and w[j] that of a start [USD], c[r, p] the price [USD/h], d[s, t] the demand [1/s].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.core import BoolArray, IntArray
from planner.optimizer.coefficients import mean_cost, mean_rate, smallest_useful_rate
from planner.optimizer.constraint_rows import (
    WHOLE_HORIZON,
    ConstraintRows,
    Terms,
    no_rows,
    one_row,
    rows_by_period,
    terms_by_period,
)
from planner.optimizer.layout import FIRST, SECOND, STAGES, Layout
from planner.optimizer.types import Objective, Sense

Constraint = Callable[[Layout], ConstraintRows]


def serve_demand(layout: Layout) -> ConstraintRows:
    """All that arrives is served: ``sum_j f[j, s, t] >= d[s, t]`` over units of stages WHOLE and FIRST.

    Deferrable: ``sum_t h_t/H sum_j f >= sum_t h_t/H d``.

    Args:
        layout: of the problem.

    Returns:
        One row for each slice and period [1/s]; of a deferrable slice one over the horizon.
    """
    return _rows_of_slices(layout, "serve_demand", Sense.AT_LEAST)


def cap_at_demand(layout: Layout) -> ConstraintRows:
    """Nothing is served that does not arrive: ``sum_j f[j, s, t] <= d[s, t]``; deferrable: over the horizon.

    Args:
        layout: of the problem.

    Returns:
        Rows as those of `serve_demand` [1/s].
    """
    return _rows_of_slices(layout, "cap_at_demand", Sense.AT_MOST)


def serve_minimum(layout: Layout) -> ConstraintRows:
    """Enough is served: ``sum_t h_t/H sum_s sum_j f >= min_rate_per_s``.

    Without a minimum the least that is not nothing takes its place (`smallest_useful_rate`). That rules out the empty
    fleet, which answers no request and has no ratio.

    Args:
        layout: of the problem.

    Returns:
        One row over the horizon [1/s].
    """
    least = layout.problem.min_rate_per_s or smallest_useful_rate(layout)
    rate = mean_rate(layout)
    columns = np.flatnonzero(rate)
    terms = Terms(np.zeros(len(columns), dtype=np.int64), columns, rate[columns])
    return one_row("serve_minimum", "min_rate_per_s", Sense.AT_LEAST, least, terms)


def carry_rate(layout: Layout) -> ConstraintRows:
    """Units are not overloaded: ``sum_s f[j, s, t] / r[j, s] <= n[j, t]``.

    Args:
        layout: of the problem.

    Returns:
        One row for each unit and period [units].
    """
    units = terms_by_period(layout, np.arange(len(layout.usd_per_hour)), layout.column.units)
    used = terms_by_period(layout, layout.pair_unit, layout.column.rates, 1.0 / layout.pair_rate)
    subjects = [(unit.name,) for unit in layout.problem.units]
    return rows_by_period(layout, "carry_rate", Sense.AT_MOST, subjects, "units[{}].rates_per_s", used, units)


def hand_over(layout: Layout) -> ConstraintRows:
    """What the first stage hands over is taken: ``sum_FIRST f[j, s, t] <= sum_SECOND f[j, s, t]`` in each channel.

    Args:
        layout: of the problem.

    Returns:
        One row for each period, slice and channel in which a FIRST unit serves the slice [1/s].
    """
    if not layout.channels:
        return no_rows("hand_over")
    stage, width = layout.stage[layout.pair_unit], len(layout.channels)
    keys = [(s, c) for s in range(len(layout.deferrable)) for c in range(width)]
    pair_key = layout.pair_slice * width + layout.channel[layout.pair_unit]
    first, second = (
        terms_by_period(layout, pair_key[mine], layout.column.rates[mine]) for mine in (stage == FIRST, stage == SECOND)
    )
    subjects = [(layout.problem.slices[s].name, layout.channels[c]) for s, c in keys]
    rows = rows_by_period(layout, "hand_over", Sense.AT_MOST, subjects, "units.channel", first, second)
    is_used = np.zeros(len(rows), dtype=bool)
    is_used[rows.used.row] = True
    return rows.select(is_used)


def hold_resource(layout: Layout) -> ConstraintRows:
    """What units take was bought: ``sum_j a[j, r] n[j, t] <= sum_p usable_share[r, p] g[r, p] b[r, p, t]``.

    Resources without purchases are there already.

    Args:
        layout: of the problem.

    Returns:
        One row for each resource that has purchases and each period [units of the resource].
    """
    usable = layout.purchase_block * layout.purchase_usable
    blocks = terms_by_period(layout, layout.purchase_resource, layout.column.blocks, usable)
    limits = [0.0 if resource.purchases else None for resource in layout.problem.resources]
    return _rows_of_use(layout, "hold_resource", "resources[{}].purchases", limits, blocks)


def within_resource(layout: Layout) -> ConstraintRows:
    """No resource is overdrawn: ``sum_j a[j, r] n[j, t] <= at_most[r]``.

    Args:
        layout: of the problem.

    Returns:
        One row for each limited resource and period [units of the resource].
    """
    limits = [resource.at_most for resource in layout.problem.resources]
    return _rows_of_use(layout, "within_resource", "resources[{}].at_most", limits)


def pin_resource(layout: Layout) -> ConstraintRows:
    """As much is bought as is pinned: ``sum_p g[r, p] b[r, p, t] >= at_least[r]``.

    Args:
        layout: of the problem.

    Returns:
        One row for each pinned resource and period [units of the resource].
    """
    subjects = [(resource.name,) for resource in layout.problem.resources]
    limits = [resource.at_least or None for resource in layout.problem.resources]
    if not _any(limits):
        return no_rows("pin_resource")
    bought = terms_by_period(layout, layout.purchase_resource, layout.column.blocks, layout.purchase_block)
    source = "resources[{}].at_least"
    return rows_by_period(layout, "pin_resource", Sense.AT_LEAST, subjects, source, bought, limits=limits)


def within_purchase(layout: Layout) -> ConstraintRows:
    """No purchase option is overdrawn: ``g[r, p] b[r, p, t] <= at_most[r, p]``.

    Args:
        layout: of the problem.

    Returns:
        One row for each limited purchase and period [units of the resource].
    """
    limits = [purchase.at_most for resource in layout.problem.resources for purchase in resource.purchases]
    if not _any(limits):
        return no_rows("within_purchase")
    blocks, source = layout.column.blocks, "resources[{}].purchases[{}].at_most"
    used = terms_by_period(layout, np.arange(len(blocks)), blocks, layout.purchase_block)
    names = list(layout.purchase_names())
    return rows_by_period(layout, "within_purchase", Sense.AT_MOST, names, source, used, limits=limits)


def count_starts(layout: Layout) -> ConstraintRows:
    """Units switched on are counted: ``n[j, t] - n[j, t-1] <= z[j, t]``; the last period comes before the first.

    Args:
        layout: of the problem.

    Returns:
        One row for each unit whose start costs something and each period [units].
    """
    if not len(layout.start_units):
        return no_rows("count_starts")
    on, each = layout.column.units[layout.start_units], np.arange(len(layout.start_units))
    both, sign = np.concatenate([on, np.roll(on, 1, axis=1)]), np.repeat([1.0, -1.0], len(each))
    used = terms_by_period(layout, np.tile(each, 2), both, sign)
    supply = terms_by_period(layout, each, layout.column.starts)
    subjects = [(layout.problem.units[j].name,) for j in layout.start_units]
    return rows_by_period(layout, "count_starts", Sense.AT_MOST, subjects, "units.usd_per_start", used, supply)


def mark_group(layout: Layout) -> ConstraintRows:
    """A group that carries anything is in use: ``sum_{j in g} f[j, s, t] <= m y[g]``.

    m is the most that can be carried, the demand. Units of stage SECOND are counted apart from the others.

    Args:
        layout: of the problem.

    Returns:
        One row for each group, slice, part of the service and period [1/s].
    """
    names = [(name,) for name in layout.groups]
    return _rows_that_mark(layout, "mark_group", names, _units_of_groups(layout), layout.column.groups, "max_groups")


def mark_kind(layout: Layout) -> ConstraintRows:
    """A kind that carries anything is in use: ``sum_{j of kind k} f[j, s, t] <= m w[k]``, with m as in `mark_group`.

    Args:
        layout: of the problem.

    Returns:
        One row for each kind, slice, part of the service and period [1/s].
    """
    return _rows_that_mark(
        layout, "mark_kind", layout.kind_names(), _units_of_kinds(layout), layout.column.kinds, "units.kind"
    )


def keep_one_kind(layout: Layout) -> ConstraintRows:
    """The units of a stage in a channel are of one kind: ``sum_k w[k] <= 1`` over its kinds.

    Args:
        layout: of the problem.

    Returns:
        One row for each stage and channel with several kinds.
    """
    if not layout.kinds:
        return no_rows("keep_one_kind")
    places = sorted({key[:2] for key in layout.kinds})
    row = np.array([places.index(key[:2]) for key in layout.kinds], dtype=np.int64)
    count = len(places)
    return ConstraintRows(
        constraint="keep_one_kind",
        sense=Sense.AT_MOST,
        subjects=[(STAGES[stage].value, layout.channels[channel]) for stage, channel in places],
        subject=np.arange(count),
        field="units.kind",
        periods=np.full(count, WHOLE_HORIZON),
        limit=np.ones(count),
        used=Terms(row, layout.column.kinds, np.ones(len(row))),
    )


def within_groups(layout: Layout) -> ConstraintRows:
    """Not too many groups are in use: ``sum_g y[g] <= max_groups``.

    Args:
        layout: of the problem.

    Returns:
        One row over the horizon, or none without `max_groups`.
    """
    most, count = layout.problem.max_groups, len(layout.groups)
    if most is None:
        return no_rows("within_groups")
    terms = Terms(np.zeros(count, dtype=np.int64), layout.column.groups, np.ones(count))
    return one_row("within_groups", "max_groups", Sense.AT_MOST, float(most), terms)


def within_budget(layout: Layout) -> ConstraintRows:
    """The fleet is affordable: `mean_cost` ``<= budget_usd_per_hour``.

    Args:
        layout: of the problem.

    Returns:
        One row over the horizon [USD/h], or none without a budget.
    """
    most = layout.problem.budget_usd_per_hour
    if most is None:
        return no_rows("within_budget")
    cost = mean_cost(layout)
    columns = np.flatnonzero(cost)
    terms = Terms(np.zeros(len(columns), dtype=np.int64), columns, cost[columns])
    return one_row("within_budget", "budget_usd_per_hour", Sense.AT_MOST, most, terms)


_UNDER_EVERY_OBJECTIVE: tuple[Constraint, ...] = (
    carry_rate,
    hand_over,
    hold_resource,
    mark_group,
    mark_kind,
    keep_one_kind,
    within_groups,
    within_resource,
    pin_resource,
    within_purchase,
    count_starts,
    within_budget,
)
_OF_GREATEST_RATES: tuple[Constraint, ...] = (serve_minimum, cap_at_demand, *_UNDER_EVERY_OBJECTIVE)
CONSTRAINTS: Mapping[Objective, tuple[Constraint, ...]] = {
    Objective.MIN_COST: (serve_demand, *_UNDER_EVERY_OBJECTIVE),
    Objective.MAX_RATE: _OF_GREATEST_RATES,
    Objective.MAX_RATE_PER_COST: _OF_GREATEST_RATES,
}
"""Constraints of each objective, in the order of their rows."""

STRUCTURAL = frozenset(
    {"carry_rate", "hand_over", "hold_resource", "count_starts", "mark_group", "mark_kind", "keep_one_kind"}
)
"""Constraints that define what a fleet is. No input sets their limits, and no report lists them."""


def build_rows(objective: Objective, layout: Layout) -> tuple[ConstraintRows, ...]:
    """Every row of a problem, one entry for each constraint that has any.

    Args:
        objective: decides which constraints hold.
        layout: of the problem.

    Returns:
        In the order of `CONSTRAINTS`, which is that of the rows in the program.
    """
    every = (constraint(layout) for constraint in CONSTRAINTS[objective])
    return tuple(rows for rows in every if len(rows))


def _rows_that_mark(
    layout: Layout,
    constraint: str,
    names: Sequence[tuple[str, ...]],
    members: Sequence[BoolArray],
    columns: IntArray,
    source: str,
) -> ConstraintRows:
    """``sum f <= m column`` over the members of each name, by slice, part of the service and period."""
    if not names:
        return no_rows(constraint)
    slices = len(layout.deferrable)
    who, pair = np.nonzero(np.array(members)[:, layout.pair_unit])
    key = (who * slices + layout.pair_slice[pair]) * 2 + ~layout.served[pair]
    distinct, row = np.unique(key, return_inverse=True)
    mark, own, part = distinct // (2 * slices), distinct // 2 % slices, distinct % 2
    most = layout.ceiling_per_s[own]
    shown = zip(mark.tolist(), own.tolist(), part.tolist(), strict=True)
    subjects = [(*names[k], layout.problem.slices[s].name, ("served", "second")[p]) for k, s, p in shown]
    used = terms_by_period(layout, row, layout.column.rates[pair])
    supply = Terms(np.arange(most.size), np.repeat(columns[mark], layout.periods), most.ravel())
    return rows_by_period(layout, constraint, Sense.AT_MOST, subjects, source, used, supply)


def _any(limits: Sequence[float | None]) -> bool:
    return any(limit is not None for limit in limits)


def _units_of_kinds(layout: Layout) -> list[BoolArray]:
    """Which units are of each kind, by kind; each of shape (j,)."""
    return [np.asarray(layout.unit_kind == code) for code in range(len(layout.kinds))]


def _units_of_groups(layout: Layout) -> list[BoolArray]:
    """Which units take resources of each group, by group; each of shape (j,)."""
    takers = []
    for group in range(len(layout.groups)):
        takes = np.zeros(len(layout.usd_per_hour), dtype=bool)
        takes[layout.take_unit[layout.resource_group[layout.take_resource] == group]] = True
        takers.append(takes)
    return takers


def _rows_of_slices(layout: Layout, constraint: str, sense: Sense) -> ConstraintRows:
    """``sum_j f`` against the demand: in each period, or over the horizon where it is deferrable."""
    periods = layout.periods
    height = np.where(layout.deferrable, 1, periods)
    first = np.cumsum(height) - height
    slices = np.repeat(np.arange(len(height)), height)
    period = np.arange(len(slices)) - first[slices]
    late = layout.deferrable[slices]
    limit = np.where(late, layout.mean_demand_per_s[slices], layout.demand_per_s[slices, period])
    pairs = layout.served
    own = layout.pair_slice[pairs]
    waits = layout.deferrable[own][:, None]
    row = first[own][:, None] + np.where(waits, 0, np.arange(periods)[None, :])
    weight = np.where(waits, layout.share[None, :], 1.0)
    return ConstraintRows(
        constraint=constraint,
        sense=sense,
        subjects=[(slice_.name,) for slice_ in layout.problem.slices],
        subject=slices,
        field="slices[{}].demand_per_s",
        periods=np.where(late, WHOLE_HORIZON, period),
        limit=limit,
        used=Terms(row.ravel(), layout.column.rates[pairs].ravel(), weight.ravel()),
    )


def _rows_of_use(
    layout: Layout, constraint: str, source: str, limits: Sequence[float | None], supply: Terms | None = None
) -> ConstraintRows:
    """``sum_j a[j, r] n[j, t]`` for every resource that has a limit and every period."""
    if not _any(limits):
        return no_rows(constraint)
    used = terms_by_period(layout, layout.take_resource, layout.column.units[layout.take_unit], layout.take_amount)
    subjects = [(resource.name,) for resource in layout.problem.resources]
    return rows_by_period(layout, constraint, Sense.AT_MOST, subjects, source, used, supply, limits)
