"""One function per constraint; each returns its rows as plain numbers, used by the program and by the report alike.

Notation: n[j, t] whole units of j on in period t, f[j, s, t] rate of slice s on them [1/s], b[r, p, t] blocks of
g[r, p] bought of resource r by purchase p, z[j, t] units switched on at the start of t, y[g] 1 where group g is in use,
w[k] where kind k is; h_t the hours of a period, H of the horizon; r[j, s] the rate of one unit, a[j, r] what it takes,
k[j] its own cost [USD/h] and w[j] that of a start [USD], c[r, p] the price [USD/h], d[s, t] the demand [1/s]. A group
is one of resources, or of the units with a mark that is charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.constraint_rows import WHOLE_HORIZON, ConstraintRows, Entries, rows_by_period
from planner.optimizer.layout import SECOND, STAGES, Layout
from planner.optimizer.types import Objective, Sense

Constraint = Callable[[Layout], ConstraintRows]


def serve_demand(layout: Layout) -> ConstraintRows:
    """All that arrives is served: ``sum_j f[j, s, t] >= d[s, t]`` over units of stages WHOLE and FIRST [1/s].

    Of a deferrable slice one row over the horizon: ``sum_t h_t/H sum_j f >= sum_t h_t/H d``.

    Args:
        layout: of the problem.
    """
    return _rows_of_slices(layout, "serve_demand", Sense.AT_LEAST)


def cap_at_demand(layout: Layout) -> ConstraintRows:
    """Nothing is served that does not arrive: rows as those of `serve_demand` [1/s] with ``<=``.

    Args:
        layout: of the problem.
    """
    return _rows_of_slices(layout, "cap_at_demand", Sense.AT_MOST)


def serve_minimum(layout: Layout) -> ConstraintRows:
    """Enough is served, in one row over the horizon [1/s]: ``sum_t h_t/H sum_s sum_j f >= min_rate_per_s``.

    Without a minimum the least that is not nothing takes its place (`Layout.smallest_useful_rate_per_s`). That rules
    out the empty fleet, which answers no request and has no ratio.

    Args:
        layout: of the problem.
    """
    least = layout.problem.min_rate_per_s or layout.smallest_useful_rate_per_s
    return _row_over_horizon(layout, "serve_minimum", Sense.AT_LEAST, "min_rate_per_s", layout.mean_rate, least)


def carry_rate(layout: Layout) -> ConstraintRows:
    """Units are not overloaded: ``sum_s f[j, s, t] / r[j, s] <= n[j, t]``, for each unit and period [units].

    Args:
        layout: of the problem.
    """
    used = layout.pair_unit, layout.column.rates, 1.0 / layout.pair_rate
    units = np.arange(len(layout.usd_per_hour)), layout.column.units, -1.0
    subjects = [(unit.name,) for unit in layout.problem.units]
    return rows_by_period(layout, "carry_rate", subjects, "units[{}].rates_per_s", used, units)


def hand_over(layout: Layout) -> ConstraintRows:
    """The second stage takes what the first hands over: ``sum_FIRST f[j, s, t] <= sum_SECOND f[j, s, t]`` [1/s].

    For each period, slice and channel in which a FIRST unit serves the slice.

    Args:
        layout: of the problem.
    """
    stage, width = layout.stage[layout.pair_unit], len(layout.channels)
    staged = np.flatnonzero(layout.channel[layout.pair_unit] >= 0)
    key = layout.pair_slice[staged] * width + layout.channel[layout.pair_unit[staged]]
    sign = np.where(stage[staged] == SECOND, -1.0, 1.0)
    subjects = [(slice_.name, channel) for slice_ in layout.problem.slices for channel in layout.channels]
    limits = np.where(np.isin(np.arange(len(subjects)), key[sign > 0.0]), 0.0, math.inf)
    entries = key, layout.column.rates[staged], sign
    return rows_by_period(layout, "hand_over", subjects, "units.channel", entries, limits=limits)


def hold_resource(layout: Layout) -> ConstraintRows:
    """Units take what was bought: ``sum_j a[j, r] n[j, t] <= sum_p usable_share[r, p] g[r, p] b[r, p, t]`` [units].

    In each period; resources without purchases are there already.

    Args:
        layout: of the problem.
    """
    bought = layout.purchase_resource, layout.column.blocks, -layout.purchase_usable
    names, source = _resources(layout), "resources[{}].purchases"
    limits = np.where(np.isin(np.arange(len(names)), layout.purchase_resource), 0.0, math.inf)
    return rows_by_period(layout, "hold_resource", names, source, _in_use(layout), bought, limits=limits)


def within_resource(layout: Layout) -> ConstraintRows:
    """No limited resource is overdrawn in any period: ``sum_j a[j, r] n[j, t] <= at_most[r]`` [units].

    Args:
        layout: of the problem.
    """
    names, source, limits = _resources(layout), "resources[{}].at_most", layout.resource_most
    return rows_by_period(layout, "within_resource", names, source, _in_use(layout), limits=limits)


def pin_resource(layout: Layout) -> ConstraintRows:
    """As much is bought as is pinned, in each period: ``sum_p g[r, p] b[r, p, t] >= at_least[r]`` [units].

    Args:
        layout: of the problem.
    """
    limits = np.where(layout.resource_least > 0.0, layout.resource_least, math.inf)
    bought = layout.purchase_resource, layout.column.blocks, layout.purchase_block
    names, source, sense = _resources(layout), "resources[{}].at_least", Sense.AT_LEAST
    return rows_by_period(layout, "pin_resource", names, source, bought, limits=limits, sense=sense)


def within_purchase(layout: Layout) -> ConstraintRows:
    """No limited purchase is overdrawn in any period: ``g[r, p] b[r, p, t] <= at_most[r, p]`` [units].

    Args:
        layout: of the problem.
    """
    names, source = list(layout.purchase_names()), "resources[{}].purchases[{}].at_most"
    used = np.arange(len(names)), layout.column.blocks, layout.purchase_block
    return rows_by_period(layout, "within_purchase", names, source, used, limits=layout.purchase_most)


def count_starts(layout: Layout) -> ConstraintRows:
    """Units switched on are counted [units]: ``n[j, t] - n[j, t-1] <= z[j, t]``, where a start costs something.

    The last period comes before the first.

    Args:
        layout: of the problem.
    """
    on, each = layout.column.units[layout.start_units], np.arange(len(layout.start_units))
    started: tuple[Entries, ...] = ((each, on, 1.0), (each, np.roll(on, 1, axis=1), -1.0))
    subjects = [(layout.problem.units[j].name,) for j in layout.start_units]
    counted = each, layout.column.starts, -1.0
    return rows_by_period(layout, "count_starts", subjects, "units.usd_per_start", *started, counted)


def mark_group(layout: Layout) -> ConstraintRows:
    """A group that carries anything is in use: ``sum_{j in g} f[j, s, t] <= m y[g]``, for each g, s and t [1/s].

    m is the most that can be carried, the demand. Units of stage SECOND are counted apart from the others.

    Args:
        layout: of the problem.
    """
    names = [(name,) for name in layout.groups]
    return _rows_that_mark(layout, "mark_group", names, layout.in_group.T, layout.column.groups, "max_groups")


def mark_kind(layout: Layout) -> ConstraintRows:
    """A kind that carries anything is in use: ``sum_{j of kind k} f[j, s, t] <= m w[k]``, as in `mark_group` [1/s].

    Args:
        layout: of the problem.
    """
    is_member = layout.unit_kind == np.arange(len(layout.kinds))[:, None]
    return _rows_that_mark(layout, "mark_kind", layout.kind_names(), is_member, layout.column.kinds, "units.kind")


def keep_one_kind(layout: Layout) -> ConstraintRows:
    """The units of a stage in a channel are of one kind: ``sum_k w[k] <= 1`` [kinds], where there are several.

    Args:
        layout: of the problem.
    """
    places = sorted({key[:2] for key in layout.kinds})
    place = np.array([places.index(key[:2]) for key in layout.kinds], dtype=np.int64)
    names = [(STAGES[stage].value, layout.channels[channel]) for stage, channel in places]
    used = place, layout.column.kinds[:, None], 1.0
    return rows_by_period(layout, "keep_one_kind", names, "units.kind", used, limits=np.ones(len(names)))


def within_groups(layout: Layout) -> ConstraintRows:
    """Not too many groups are in use, over the horizon: ``sum_g y[g] <= max_groups`` [groups].

    Args:
        layout: of the problem.
    """
    is_group = np.isin(np.arange(layout.columns), layout.column.groups[layout.charge == 0.0]).astype(float)
    most = layout.problem.max_groups
    return _row_over_horizon(layout, "within_groups", Sense.AT_MOST, "max_groups", is_group, most)


def within_budget(layout: Layout) -> ConstraintRows:
    """The fleet is affordable, over the horizon: `Layout.mean_cost` ``<= budget_usd_per_hour`` [USD/h].

    Args:
        layout: of the problem.
    """
    most, source = layout.problem.budget_usd_per_hour, "budget_usd_per_hour"
    return _row_over_horizon(layout, "within_budget", Sense.AT_MOST, source, layout.mean_cost, most)


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
CONSTRAINTS: Mapping[Objective, tuple[Constraint, ...]] = {
    Objective.MIN_COST: (serve_demand, *_UNDER_EVERY_OBJECTIVE),
    Objective.MAX_RATE: (serve_minimum, cap_at_demand, *_UNDER_EVERY_OBJECTIVE),
    Objective.MAX_RATE_PER_COST: (serve_minimum, cap_at_demand, *_UNDER_EVERY_OBJECTIVE),
}
"""Constraints of each objective, in the order of their rows."""

STRUCTURAL = frozenset(
    {"carry_rate", "hand_over", "hold_resource", "count_starts", "mark_group", "mark_kind", "keep_one_kind"}
)
"""Constraints that define what a fleet is. No input sets their limits, and no report lists them."""


def build_rows(objective: Objective, layout: Layout) -> tuple[ConstraintRows, ...]:
    """Every row of a problem in the order of `CONSTRAINTS`, one entry for each that has any [units of the limits].

    Args:
        objective: decides which constraints hold.
        layout: of the problem.
    """
    every = (constraint(layout) for constraint in CONSTRAINTS[objective])
    return tuple(rows for rows in every if len(rows))


def _resources(layout: Layout) -> list[tuple[str]]:
    return [(resource.name,) for resource in layout.problem.resources]


def _in_use(layout: Layout) -> Entries:
    """``sum_j a[j, r] n[j, t]``, by resource."""
    unit, resource = np.nonzero(layout.takes)
    return resource, layout.column.units[unit], layout.takes[unit, resource]


def _row_over_horizon(
    layout: Layout, constraint: str, sense: Sense, source: str, by_column: FloatArray, limit: float | None
) -> ConstraintRows:
    """A single unindexed row; none without a limit."""
    columns = np.flatnonzero(by_column)
    used = np.zeros(len(columns), dtype=np.int64), columns[:, None], by_column[columns]
    limits = np.array([math.inf if limit is None else limit])
    return rows_by_period(layout, constraint, [()], source, used, limits=limits, sense=sense)


def _rows_of_slices(layout: Layout, constraint: str, sense: Sense) -> ConstraintRows:
    """``sum_j f`` against the demand: in each period, or over the horizon where it is deferrable."""
    served, width = layout.served, layout.periods
    subjects = [(slice_.name,) for slice_ in layout.problem.slices]
    used = layout.pair_slice[served], layout.column.rates[served], 1.0
    rows = rows_by_period(layout, constraint, subjects, "slices[{}].demand_per_s", used, sense=sense)
    waits, mean = layout.deferrable[rows.subject], layout.mean_demand_per_s[rows.subject]
    of_first, in_period = rows.row - rows.row % width, layout.share[rows.row % width]
    return replace(
        rows,
        limit=np.where(waits, mean, layout.demand_per_s.ravel()),
        periods=np.where(waits, WHOLE_HORIZON, rows.periods),
        row=np.where(waits[rows.row], of_first, rows.row),
        value=np.where(waits[rows.row], in_period, 1.0),
    ).select(~waits | (np.arange(len(rows)) % width == 0))


def _rows_that_mark(
    layout: Layout,
    constraint: str,
    names: Sequence[tuple[str, ...]],
    is_member: BoolArray,
    columns: IntArray,
    source: str,
) -> ConstraintRows:
    """``sum f <= m column`` over the members of each name, shape (names, j), by slice, part of service and period."""
    if not names:
        return rows_by_period(layout, constraint, names, source)
    slices = len(layout.deferrable)
    who, pair = np.nonzero(is_member[:, layout.pair_unit])
    key = (who * slices + layout.pair_slice[pair]) * 2 + ~layout.served[pair]
    distinct, row = np.unique(key, return_inverse=True)
    mark, own, part = distinct // (2 * slices), distinct // 2 % slices, distinct % 2
    shown = zip(mark.tolist(), own.tolist(), part.tolist(), strict=True)
    subjects = [(*names[k], layout.problem.slices[s].name, ("served", "second")[p]) for k, s, p in shown]
    used = row, layout.column.rates[pair], 1.0
    rows = rows_by_period(layout, constraint, subjects, source, used)
    return replace(
        rows,
        row=np.append(rows.row, np.arange(len(rows))),
        column=np.append(rows.column, np.repeat(columns[mark], layout.periods)),
        value=np.append(rows.value, -layout.ceiling_per_s[own].ravel()),
    )
