"""One function per constraint; each returns its rows as plain numbers, used by the program and by the report alike.

Notation: n[j, t] whole units of j on in period t, f[j, s, t] rate of slice s on them [1/s], b[r, p, t] blocks of
g[r, p] bought of resource r by purchase p, z[j, t] units switched on at the start of t, y[g] 1 where group g is in use,
w[k] where kind k is; h_t the hours of a period, H of the horizon; r[j, s] the rate of one unit, a[j, r] what it takes,
k[j] its own cost [USD/h] and w[j] that of a start [USD], c[r, p] the price [USD/h], d[s, t] the demand [1/s].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.core import InputError
from planner.optimizer.constraint_rows import WHOLE_HORIZON, Rows, Terms, limited, no_rows, one_row, rows_by_period
from planner.optimizer.layout import FIRST, SECOND, STAGES, Floats, Ints, Layout, Mask
from planner.optimizer.types import Objective, Sense

Constraint = Callable[[Layout], Rows]


def mean_cost(layout: Layout) -> Floats:
    """Coefficients of the mean cost over the horizon [USD/h], by column.

    ``sum_t h_t/H (sum_j k n + sum_flexible c g b) + sum_committed c g b + sum w z / H``
    """
    cost = np.zeros(layout.columns)
    np.add.at(cost, layout.units_column, layout.usd_per_hour[:, None] * layout.share[None, :])
    np.add.at(cost, layout.blocks_column, layout.purchase_usd[:, None] * layout.share[None, :])
    cost[layout.starts_column] = (layout.usd_per_start[layout.start_units] / layout.problem.hours)[:, None]
    return cost


def mean_rate(layout: Layout) -> Floats:
    """Coefficients of the served rate, mean over the horizon [1/s]: sum_t h_t/H sum_s f of WHOLE and FIRST units."""
    rate = np.zeros(layout.columns)
    rate[layout.rate_column[layout.served]] = layout.share[None, :]
    return rate


def smallest_useful_rate(layout: Layout) -> float:
    """Least mean rate [1/s] that a fleet can serve if it can serve anything: min h_t/H min(r[j, s], d[s, t] > 0).

    For deferrable work d is what may be done in that period if it is all done then. 0 where there is nothing to serve.
    """
    ceiling = layout.ceiling_per_s[layout.pair_slice]
    useful = np.minimum(layout.pair_rate[:, None], ceiling) * layout.share[None, :]
    return float(useful[ceiling > 0.0].min(initial=math.inf)) if (ceiling > 0.0).any() else 0.0


def serve_demand(layout: Layout) -> Rows:
    """All that arrives is served: ``sum_j f[j, s, t] >= d[s, t]`` over units of stages WHOLE and FIRST.

    Deferrable: ``sum_t h_t/H sum_j f >= sum_t h_t/H d`` [1/s]. One row for each slice (and period) with a demand.
    """
    return _rows_of_slices(layout, "serve_demand", Sense.AT_LEAST, np.ones(len(layout.deferrable)), "demand_per_s")


def cap_at_demand(layout: Layout) -> Rows:
    """Nothing is served that does not arrive: ``sum_j f[j, s, t] <= d[s, t]``; deferrable: over the horizon."""
    return _rows_of_slices(layout, "cap_at_demand", Sense.AT_MOST, np.ones(len(layout.deferrable)), "demand_per_s")


def serve_least_share(layout: Layout) -> Rows:
    """Of each slice its least share is served: ``sum_j f[j, s, t] >= least_share[s] d[s, t]``."""
    shares = np.array([one.least_share for one in layout.problem.slices])
    rows = _rows_of_slices(layout, "serve_least_share", Sense.AT_LEAST, shares, "least_share")
    return rows.only(shares[rows.subject] > 0.0)


def serve_minimum(layout: Layout) -> Rows:
    """Enough is served: ``sum_t h_t/H sum_s sum_j f >= min_rate_per_s``; by default the least that is not nothing.

    The default (`smallest_useful_rate`) rules out the empty fleet, which answers no request and has no ratio.
    """
    least = layout.problem.min_rate_per_s or smallest_useful_rate(layout)
    rate = mean_rate(layout)
    columns = np.flatnonzero(rate)
    terms = Terms(np.zeros(len(columns), dtype=np.int64), columns, rate[columns])
    return one_row("serve_minimum", "min_rate_per_s", Sense.AT_LEAST, least, terms)


def carry_rate(layout: Layout) -> Rows:
    """Units are not overloaded: ``sum_s f[j, s, t] / r[j, s] <= n[j, t]``."""
    periods, count = layout.periods, len(layout.usd_per_hour)
    row = layout.pair_unit[:, None] * periods + np.arange(periods)[None, :]
    per_rate = np.repeat(1.0 / layout.pair_rate, periods)
    units = Terms(np.arange(count * periods), layout.units_column.ravel(), np.ones(count * periods))
    used = Terms(row.ravel(), layout.rate_column.ravel(), per_rate)
    subjects = [(unit.name,) for unit in layout.problem.units]
    return rows_by_period(layout, "carry_rate", Sense.AT_MOST, subjects, "units[{}].rates_per_s", used, units)


def hand_over(layout: Layout) -> Rows:
    """What the first stage hands over is taken: ``sum_FIRST f[j, s, t] <= sum_SECOND f[j, s, t]`` in each channel."""
    stage, channel = layout.stage[layout.pair_unit], layout.channel[layout.pair_unit]
    keys = [(s, c) for s in range(len(layout.deferrable)) for c in range(len(layout.channels))]
    number = {key: index for index, key in enumerate(keys)}
    pair_key = [number.get((s, c), -1) for s, c in zip(layout.pair_slice.tolist(), channel.tolist(), strict=True)]
    pair_row = np.array(pair_key, dtype=np.int64)[:, None] * layout.periods + np.arange(layout.periods)[None, :]

    def side(code: int) -> Terms:
        mine = stage == code
        return Terms(pair_row[mine].ravel(), layout.rate_column[mine].ravel(), np.ones(pair_row[mine].size))

    subjects = [(layout.problem.slices[s].name, layout.channels[c]) for s, c in keys]
    rows = rows_by_period(layout, "hand_over", Sense.AT_MOST, subjects, "units.channel", side(FIRST), side(SECOND))
    handed = np.zeros(len(rows), dtype=bool)
    handed[rows.used.row] = True
    return rows.only(handed)


def hold_resource(layout: Layout) -> Rows:
    """What units take was bought: ``sum_j a[j, r] n[j, t] <= sum_p usable_share[r, p] g[r, p] b[r, p, t]``.

    Only resources that are bought; the others are there.
    """
    rows = _taken(layout, "hold_resource", "resources[{}].purchases")
    blocks = _bought(layout, layout.purchase_block * layout.purchase_usable)
    is_bought = np.array([bool(resource.purchases) for resource in layout.problem.resources], dtype=bool)
    return replace(rows, supply=blocks).only(np.repeat(is_bought, layout.periods))


def within_resource(layout: Layout) -> Rows:
    """No resource is overdrawn: ``sum_j a[j, r] n[j, t] <= at_most[r]``."""
    limits = [resource.at_most for resource in layout.problem.resources]
    rows = _taken(layout, "within_resource", "resources[{}].at_most")
    return limited(rows, limits, layout.periods)


def pin_resource(layout: Layout) -> Rows:
    """As much is bought as is pinned: ``sum_p g[r, p] b[r, p, t] >= at_least[r]``."""
    resources = layout.problem.resources
    subjects = [(resource.name,) for resource in resources]
    bought = _bought(layout, layout.purchase_block)
    rows = rows_by_period(layout, "pin_resource", Sense.AT_LEAST, subjects, "resources[{}].at_least", bought)
    return limited(rows, [resource.at_least or None for resource in resources], layout.periods)


def within_purchase(layout: Layout) -> Rows:
    """No way of buying is overdrawn: ``g[r, p] b[r, p, t] <= at_most[r, p]``."""
    limits = [purchase.at_most for resource in layout.problem.resources for purchase in resource.purchases]
    return _rows_of_purchases(layout, "within_purchase", Sense.AT_MOST, "at_most", limits)


def pin_purchase(layout: Layout) -> Rows:
    """As much is bought in that way as is pinned: ``g[r, p] b[r, p, t] >= at_least[r, p]``."""
    limits = [purchase.at_least or None for resource in layout.problem.resources for purchase in resource.purchases]
    return _rows_of_purchases(layout, "pin_purchase", Sense.AT_LEAST, "at_least", limits)


def pin_units(layout: Layout) -> Rows:
    """As many units are on as are pinned: ``n[j, t] >= at_least[j]``."""
    rows = _rows_of_units(layout, "pin_units", Sense.AT_LEAST, "at_least")
    return limited(rows, [unit.at_least or None for unit in layout.problem.units], layout.periods)


def limit_units(layout: Layout) -> Rows:
    """No more units are on than are allowed: ``n[j, t] <= at_most[j]``."""
    rows = _rows_of_units(layout, "limit_units", Sense.AT_MOST, "at_most")
    return limited(rows, [unit.at_most for unit in layout.problem.units], layout.periods)


def count_starts(layout: Layout) -> Rows:
    """Units switched on are counted: ``n[j, t] - n[j, t-1] <= z[j, t]``; the last period comes before the first.

    Only units whose start costs something.
    """
    on = layout.units_column[layout.start_units]
    count, row = on.size, np.arange(on.size)
    before = np.roll(on, 1, axis=1)
    used = Terms(np.tile(row, 2), np.concatenate([on.ravel(), before.ravel()]), np.repeat([1.0, -1.0], count))
    supply = Terms(row, layout.starts_column.ravel(), np.ones(count))
    subjects = [(layout.problem.units[j].name,) for j in layout.start_units]
    return rows_by_period(layout, "count_starts", Sense.AT_MOST, subjects, "units.usd_per_start", used, supply)


def mark_group(layout: Layout) -> Rows:
    """A group that carries anything is in use: ``sum_{j in g} f[j, s, t] <= m y[g]``.

    One row for each group, slice and part of the service (SECOND, or not), with m the most that can be carried: the
    demand, or `most_carried` without one.

    Raises InputError where nothing limits what a group carries.
    """
    names = [(name,) for name in layout.groups]
    return _mark(layout, "mark_group", names, _takers_of_groups(layout), layout.groups_column, "max_groups")


def mark_pinned_group(layout: Layout) -> Rows:
    """A group whose units are pinned is in use: ``y[g] >= 1``, one row for each pinned unit and group."""
    names = [(name,) for name in layout.groups]
    return _mark_pinned(layout, "mark_pinned_group", names, _takers_of_groups(layout), layout.groups_column)


def mark_kind(layout: Layout) -> Rows:
    """A kind that carries anything is in use: ``sum_{j of kind k} f[j, s, t] <= m w[k]``, with m as in `mark_group`."""
    return _mark(layout, "mark_kind", layout.kind_names(), _of_kinds(layout), layout.kinds_column, "units.kind")


def mark_pinned_kind(layout: Layout) -> Rows:
    """A kind whose units are pinned is in use: ``w[k] >= 1``, one row for each pinned unit."""
    return _mark_pinned(layout, "mark_pinned_kind", layout.kind_names(), _of_kinds(layout), layout.kinds_column)


def keep_one_kind(layout: Layout) -> Rows:
    """The units of a stage in a channel are of one kind: ``sum_k w[k] <= 1`` over its kinds."""
    places = sorted({key[:2] for key in layout.kinds})
    row = np.array([places.index(key[:2]) for key in layout.kinds], dtype=np.int64)
    count = len(places)
    return Rows(
        constraint="keep_one_kind",
        sense=Sense.AT_MOST,
        subjects=[(STAGES[stage].value, layout.channels[channel]) for stage, channel in places],
        subject=np.arange(count),
        field="units.kind",
        periods=np.full(count, WHOLE_HORIZON),
        limit=np.ones(count),
        used=Terms(row, layout.kinds_column, np.ones(len(row))),
    )


def within_groups(layout: Layout) -> Rows:
    """Not too many groups are in use: ``sum_g y[g] <= max_groups``."""
    most, count = layout.problem.max_groups, len(layout.groups)
    if most is None:
        return no_rows("within_groups")
    terms = Terms(np.zeros(count, dtype=np.int64), layout.groups_column, np.ones(count))
    return one_row("within_groups", "max_groups", Sense.AT_MOST, float(most), terms)


def within_units(layout: Layout) -> Rows:
    """The fleet is not too large to run: ``sum_j n[j, t] <= max_units``."""
    most = layout.problem.max_units
    if most is None:
        return no_rows("within_units")
    row = np.tile(np.arange(layout.periods), len(layout.units_column))
    used = Terms(row, layout.units_column.ravel(), np.ones(len(row)))
    rows = rows_by_period(layout, "within_units", Sense.AT_MOST, [()], "max_units", used)
    return replace(rows, limit=np.full(len(rows), float(most)))


def within_budget(layout: Layout) -> Rows:
    """The fleet is affordable: `mean_cost` ``<= budget_usd_per_hour``."""
    most = layout.problem.budget_usd_per_hour
    if most is None:
        return no_rows("within_budget")
    cost = mean_cost(layout)
    columns = np.flatnonzero(cost)
    terms = Terms(np.zeros(len(columns), dtype=np.int64), columns, cost[columns])
    return one_row("within_budget", "budget_usd_per_hour", Sense.AT_MOST, most, terms)


_ALWAYS: tuple[Constraint, ...] = (
    carry_rate,
    hand_over,
    hold_resource,
    within_units,
    mark_group,
    mark_pinned_group,
    mark_kind,
    mark_pinned_kind,
    keep_one_kind,
    within_groups,
    within_resource,
    pin_resource,
    within_purchase,
    pin_purchase,
    pin_units,
    limit_units,
    count_starts,
    within_budget,
)
_OF_A_GREATEST_RATE: tuple[Constraint, ...] = (serve_minimum, serve_least_share, cap_at_demand, *_ALWAYS)
CONSTRAINTS: Mapping[Objective, tuple[Constraint, ...]] = {
    Objective.MIN_COST: (serve_demand, *_ALWAYS),
    Objective.MAX_RATE: _OF_A_GREATEST_RATE,
    Objective.MAX_RATE_PER_COST: _OF_A_GREATEST_RATE,
}
"""Which constraints hold under which objective."""

PIN_MARKS = frozenset({"mark_pinned_group", "mark_pinned_kind"})
"""Constraints that follow from `pin_units`."""
STRUCTURAL = PIN_MARKS | {
    "carry_rate",
    "hand_over",
    "hold_resource",
    "count_starts",
    "mark_group",
    "mark_kind",
    "keep_one_kind",
}
"""Constraints that say what a fleet is, not what it may be: no input limits them, and no report lists them."""


def rows_for(objective: Objective, layout: Layout) -> tuple[Rows, ...]:
    """Every row of a problem, one entry for each constraint that has any."""
    found = (constraint(layout) for constraint in CONSTRAINTS[objective])
    return tuple(rows for rows in found if len(rows))


def most_carried(layout: Layout, pairs: Mask) -> Floats:
    """Most that some units can carry of one slice in a period within the limits [1/s]; infinite without limit.

    ``max_j (r_j / a_j) L`` for every limit L of which each of the units takes a_j > 0: a resource, the number of units,
    the budget; and ``sum_j r_j at_most_j``. Shape (t,).
    """
    unit, rate = layout.pair_unit[pairs], layout.pair_rate[pairs]
    bounds = [float(rate @ layout.at_most[unit])]
    if layout.problem.max_units is not None:
        bounds.append(float(rate.max(initial=0.0)) * layout.problem.max_units)
    usd, budget = layout.usd_per_hour[unit], layout.problem.budget_usd_per_hour
    if budget is not None and (usd > 0.0).all():
        bounds.append(float((rate / usd).max(initial=0.0)) * budget / float(layout.share.min()))
    for index, limit in enumerate(held_at_most(layout)):
        taken = np.zeros(len(layout.usd_per_hour))
        mine = layout.take_resource == index
        taken[layout.take_unit[mine]] = layout.take_amount[mine]
        if math.isfinite(limit) and (taken[unit] > 0.0).all():
            bounds.append(float((rate / taken[unit]).max(initial=0.0)) * limit)
    return np.full(layout.periods, min(bounds))


def held_at_most(layout: Layout) -> Iterator[float]:
    """Most of each resource that units can ever take: its limit, and what can be bought."""
    budget = layout.problem.budget_usd_per_hour
    for resource in layout.problem.resources:
        most = math.inf if resource.at_most is None else resource.at_most
        bought = 0.0
        for purchase in resource.purchases:
            limits = [math.inf if purchase.at_most is None else purchase.at_most]
            if budget is not None and purchase.usd_per_hour > 0.0:
                share = 1.0 if purchase.committed else float(layout.share.min())
                limits.append(budget / purchase.usd_per_hour / share)
            bought += purchase.usable_share * min(limits)
        yield min(most, bought) if resource.purchases else most


def _mark(
    layout: Layout,
    constraint: str,
    names: Sequence[tuple[str, ...]],
    members: Sequence[Mask],
    columns: Ints,
    source: str,
) -> Rows:
    """``sum f <= m column`` over the members of each name, by slice, part of the service and period."""
    subjects: list[tuple[str, ...]] = []
    rates, most, marks = [], [], []
    for name, units, column in zip(names, members, columns, strict=True):
        for s, one in enumerate(layout.problem.slices):
            for part, is_served in (("served", True), ("second", False)):
                pairs = units[layout.pair_unit] & (layout.pair_slice == s) & (layout.served == is_served)
                if pairs.any():
                    subjects.append((*name, one.name, part))
                    rates.append(layout.rate_column[pairs])
                    ceiling = layout.ceiling_per_s[s]
                    most.append(ceiling if np.isfinite(ceiling).all() else most_carried(layout, pairs))
                    marks.append(column)
    if not subjects:
        return no_rows(constraint)
    if not np.isfinite(most).all():
        bound, fix = "needs to know the most that can be carried", "give every slice a demand, or a limit to every unit"
        raise InputError(source, names[0], bound, fix)
    periods = np.arange(layout.periods)
    row = [np.tile(index * layout.periods + periods, len(found)) for index, found in enumerate(rates)]
    used = Terms(np.concatenate(row), np.concatenate([c.ravel() for c in rates]), np.ones(sum(c.size for c in rates)))
    supply = Terms(np.arange(len(marks) * layout.periods), np.repeat(marks, layout.periods), np.concatenate(most))
    return rows_by_period(layout, constraint, Sense.AT_MOST, subjects, source, used, supply)


def _mark_pinned(
    layout: Layout, constraint: str, names: Sequence[tuple[str, ...]], members: Sequence[Mask], columns: Ints
) -> Rows:
    """``column >= 1`` for each name and each of its pinned units, which comes first in the subject."""
    pinned = layout.at_least > 0
    found = [(int(j), index) for index, units in enumerate(members) for j in np.flatnonzero(units & pinned)]
    count = len(found)
    marks = np.array([columns[index] for _, index in found], dtype=np.int64)
    return Rows(
        constraint=constraint,
        sense=Sense.AT_LEAST,
        subjects=[(layout.problem.units[j].name, *names[index]) for j, index in found],
        subject=np.arange(count),
        field="units[{}].at_least",
        periods=np.full(count, WHOLE_HORIZON),
        limit=np.ones(count),
        used=Terms(np.arange(count), marks, np.ones(count)),
    )


def _of_kinds(layout: Layout) -> list[Mask]:
    """Which units are of each kind."""
    return [np.asarray(layout.unit_kind == code) for code in range(len(layout.kinds))]


def _takers_of_groups(layout: Layout) -> list[Mask]:
    """Which units take resources of each group."""
    found = []
    for group in range(len(layout.groups)):
        members = np.zeros(len(layout.usd_per_hour), dtype=bool)
        members[layout.take_unit[layout.resource_group[layout.take_resource] == group]] = True
        found.append(members)
    return found


def _rows_of_slices(layout: Layout, constraint: str, sense: Sense, shares: Floats, source: str) -> Rows:
    """``sum_j f`` against a share of the demand: in each period, or over the horizon where it is deferrable."""
    periods = layout.periods
    wanted = ~np.isnan(layout.demand_per_s[:, 0])
    height = np.where(layout.deferrable, 1, periods) * wanted
    first = np.cumsum(height) - height
    slices = np.repeat(np.arange(len(height)), height)
    period = np.arange(len(slices)) - first[slices]
    late = layout.deferrable[slices]
    limit = np.where(late, layout.mean_demand_per_s[slices], layout.demand_per_s[slices, period]) * shares[slices]
    pairs = layout.served & wanted[layout.pair_slice]
    own = layout.pair_slice[pairs]
    waits = layout.deferrable[own][:, None]
    row = first[own][:, None] + np.where(waits, 0, np.arange(periods)[None, :])
    weight = np.where(waits, layout.share[None, :], 1.0)
    return Rows(
        constraint=constraint,
        sense=sense,
        subjects=[(one.name,) for one in layout.problem.slices],
        subject=slices,
        field=f"slices[{{}}].{source}",
        periods=np.where(late, WHOLE_HORIZON, period),
        limit=limit,
        used=Terms(row.ravel(), layout.rate_column[pairs].ravel(), weight.ravel()),
    )


def _rows_of_units(layout: Layout, constraint: str, sense: Sense, source: str) -> Rows:
    count = layout.units_column.size
    used = Terms(np.arange(count), layout.units_column.ravel(), np.ones(count))
    subjects = [(unit.name,) for unit in layout.problem.units]
    return rows_by_period(layout, constraint, sense, subjects, f"units[{{}}].{source}", used)


def _rows_of_purchases(
    layout: Layout, constraint: str, sense: Sense, source: str, limits: Sequence[float | None]
) -> Rows:
    count = layout.blocks_column.size
    used = Terms(np.arange(count), layout.blocks_column.ravel(), np.repeat(layout.purchase_block, layout.periods))
    field_of = f"resources[{{}}].purchases[{{}}].{source}"
    rows = rows_by_period(layout, constraint, sense, list(layout.purchase_names()), field_of, used)
    return limited(rows, limits, layout.periods)


def _taken(layout: Layout, constraint: str, source: str) -> Rows:
    """``sum_j a[j, r] n[j, t]`` for every resource and period."""
    periods = np.arange(layout.periods)
    row = layout.take_resource[:, None] * layout.periods + periods[None, :]
    amount = np.repeat(layout.take_amount, layout.periods)
    used = Terms(row.ravel(), layout.units_column[layout.take_unit].ravel(), amount)
    subjects = [(resource.name,) for resource in layout.problem.resources]
    return rows_by_period(layout, constraint, Sense.AT_MOST, subjects, source, used)


def _bought(layout: Layout, per_block: Floats) -> Terms:
    """What is bought of every resource in every period, rows in the order of `_taken`."""
    row = layout.purchase_resource[:, None] * layout.periods + np.arange(layout.periods)[None, :]
    return Terms(row.ravel(), layout.blocks_column.ravel(), np.repeat(per_block, layout.periods))
