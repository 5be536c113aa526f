"""One stream of requests in one period, exactly and fast: covering knapsacks joined over their Pareto fronts.

Where there is one slice and one period, a unit j has a rate r_j and a cost c_j, and the least cost that covers the
demand d is a covering knapsack (S. Martello and P. Toth 1990, "Knapsack Problems", ch. 3); with prefill and decode
units it is one per stage, joined by what is handed over:

    least  C_whole(x) + sum_channel max-cover(x_channel)     with  x + sum_channel x_channel >= d,
    where  cover(y) = C_first(y) + C_second(y),  C_stage(y) = least sum c_j n_j with sum r_j n_j >= y

Units of the stages FIRST and SECOND are of one kind per channel, so that such a stage has one front for each kind and
the least of them is taken. A front is a set of *labels* (cost, rate), none worse in both than another, grown unit by
unit. A label is kept only while its cost and the cheapest cost per rate of what is still missing stay below the best
fleet known, so that hardly any are. Limits are left out and blocks are taken in parts: what is found is a lower bound,
and it is the answer where it happens to keep the limits. Where it does not, branch and bound takes over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.optimizer.constraints import rows_for
from planner.optimizer.fleet import sides
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Floats, Ints, Layout
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Objective, Sense

MOST_LABELS = 20_000
"""A front that grows beyond this is given up: then branch and bound is not slower."""
_ROUNDING = 1e-12
"""Share by which floating-point sums of costs may differ that are equal."""


@dataclass(frozen=True)
class Covering:
    """What was found without limits.

    Attributes:
        values: by column of the layout.
        bound_per_h: no fleet costs less [USD/h].
        keeps_limits: the values meet every row of the program.
    """

    values: Floats
    bound_per_h: float
    keeps_limits: bool


def cheapest_cover(layout: Layout) -> Covering | None:
    """The cheapest fleet for a problem of one slice and one period without limits; None for other problems.

    None as well where nothing covers the demand or a front grows beyond `MOST_LABELS`.
    """
    if not _is_one_stream(layout):
        return None
    demand, cost, rate = float(layout.demand_per_s[0, 0]), _unit_costs(layout), np.zeros(len(layout.stage))
    rate[layout.pair_unit] = layout.pair_rate
    counts = least_cost_cover(demand, cost, np.minimum(rate, demand), layout.stage, layout.channel, layout.unit_kind)
    if counts is None:
        return None
    values = _values(layout, counts, rate, demand)
    return Covering(values, math.fsum((cost * counts).tolist()), _keeps_limits(layout, values))


def _is_one_stream(layout: Layout) -> bool:
    problem = layout.problem
    pinned = any(r.at_least > 0.0 or any(p.at_least > 0.0 for p in r.purchases) for r in problem.resources)
    is_one = layout.periods == 1 and len(problem.slices) == 1 and not pinned and not layout.at_least.any()
    return is_one and bool(layout.demand_per_s[0, 0] > 0.0) and len(layout.pair_unit) == len(layout.stage)


def _unit_costs(layout: Layout) -> Floats:
    """Cost of each unit [USD/h], its resources at their cheapest price and in parts of blocks."""
    price = np.zeros(len(layout.problem.resources))
    for q, resource in enumerate(layout.purchase_resource.tolist()):
        own = layout.purchase_usd[q] / (layout.purchase_block[q] * layout.purchase_usable[q])
        first = layout.purchase_resource[:q]
        price[resource] = min(price[resource], own) if resource in first else own
    bought = np.bincount(
        layout.take_unit, weights=layout.take_amount * price[layout.take_resource], minlength=len(layout.stage)
    )
    return np.asarray(layout.usd_per_h + bought)


def _values(layout: Layout, counts: Ints, rate: Floats, demand: float) -> Floats:
    """The columns of these units: all of a stage equally loaded, blocks of the cheapest purchase."""
    values = np.zeros(layout.columns)
    values[layout.units_column[:, 0]] = counts
    carried = np.zeros(len(counts))
    can = counts * rate
    handed = {
        ch: min(can[_is(layout, FIRST, ch)].sum(), can[_is(layout, SECOND, ch)].sum()) for ch in _channels(layout)
    }
    whole = _is(layout, WHOLE, -1)
    share = demand / (can[whole].sum() + math.fsum(handed.values()))
    carried[whole] = share * can[whole]
    for channel, most in handed.items():
        for stage in (FIRST, SECOND):
            mine = _is(layout, stage, channel)
            if most > 0.0:
                carried[mine] = share * most * can[mine] / can[mine].sum()
    values[layout.rate_column[:, 0]] = carried[layout.pair_unit]
    taken = np.bincount(
        layout.take_resource,
        weights=layout.take_amount * counts[layout.take_unit],
        minlength=len(layout.problem.resources),
    )
    usable = layout.purchase_block * layout.purchase_usable
    for resource in np.unique(layout.purchase_resource):
        mine = np.flatnonzero(layout.purchase_resource == resource)
        best = mine[np.argmin(layout.purchase_usd[mine] / usable[mine])]
        values[layout.blocks_column[best, 0]] = math.ceil(taken[resource] / usable[best] - 1e-9)
    group = layout.resource_group[layout.take_resource[counts[layout.take_unit] > 0]]
    values[layout.groups_column[group[group >= 0]]] = 1.0
    kind = layout.unit_kind[counts > 0]
    values[layout.kinds_column[kind[kind >= 0]]] = 1.0
    return values


def _is(layout: Layout, stage: int, channel: int) -> Ints:
    return np.flatnonzero((layout.stage == stage) & (layout.channel == channel))


def _channels(layout: Layout) -> list[int]:
    return list(range(len(layout.channels)))


def _keeps_limits(layout: Layout, values: Floats) -> bool:
    for rows in rows_for(Objective.MIN_COST, layout):
        used, limit = sides(rows, values)
        slack = limit - used if rows.sense is Sense.AT_MOST else used - limit
        if np.any(slack < -FEASIBILITY_TOLERANCE * np.maximum(np.abs(limit), np.abs(used))):
            return False
    return True


# --- the knapsacks --------------------------------------------------------------------------------------------------


def least_cost_cover(
    demand: float, cost: Floats, rate: Floats, stage: Ints, channel: Ints, kind: Ints | None = None
) -> Ints | None:
    """How many of each unit cover the demand at least cost; None when nothing does or there are too many labels.

    Args:
        demand: [1/s], above 0.
        cost: of one unit [USD/h]; shape (units,), as all that follow.
        rate: of one unit [1/s].
        stage: `WHOLE`, `FIRST` or `SECOND` of each unit.
        channel: of units of the stages FIRST and SECOND.
        kind: of each unit; of those of one stage and channel only units of one kind (and of kind -1) go together. None:
            all do.

    >>> least_cost_cover(10.0, np.array([8.0, 2.0]), np.array([5.0, 1.0]), np.zeros(2, int), np.full(2, -1))
    array([2, 0])
    """
    groups = {
        (int(s), int(c)): np.flatnonzero((stage == s) & (channel == c)) for s, c in zip(stage, channel, strict=True)
    }
    channels = sorted({c for s, c in groups if s == FIRST} & {c for s, c in groups if s == SECOND})
    parts = [((WHOLE, -1),)] if (WHOLE, -1) in groups else []
    ways: list[tuple[tuple[int, int], ...]] = [*parts, *(((FIRST, c), (SECOND, c)) for c in channels)]
    if not ways:
        return None
    dearness = {key: _ratio(cost[units], rate[units]) for key, units in groups.items()}
    per_rate = min(math.fsum(dearness[key] for key in way) for way in ways)
    best = min(math.fsum(_of_one_kind(demand, cost[groups[k]], rate[groups[k]]) for k in way) for way in ways)
    most = best * (1.0 + _ROUNDING)
    front: _Front | None = None
    for way in ways:
        fronts = []
        for key in way:
            others = math.fsum(dearness[other] for other in way if other != key)
            units = groups[key]
            kinds = np.full(len(units), -1) if kind is None else kind[units]
            grown = _grown(demand, cost[units], rate[units], units, kinds, most, (others, per_rate))
            if grown is None:
                return None
            fronts.append(grown)
        joined = fronts[0] if len(fronts) == 1 else _chained(fronts[0], fronts[1])
        front = joined if front is None else _sum(front, joined, demand, most, per_rate)
        if front is None:
            return None
    assert front is not None
    covers = np.flatnonzero(front.rate >= demand * (1.0 - _ROUNDING))
    if not len(covers):
        return None
    counts = np.zeros(len(cost), dtype=np.int64)
    front.count(int(covers[np.argmin(front.cost[covers])]), counts)
    return counts


def _ratio(cost: Floats, rate: Floats) -> float:
    return float((cost / rate).min())


def _of_one_kind(demand: float, cost: Floats, rate: Floats) -> float:
    """Least cost with units of a single kind."""
    return float((np.ceil(demand / rate * (1.0 - _ROUNDING)) * cost).min())


class _Front:
    """Labels by rising cost and rate, and how each was made.

    Attributes:
        cost, rate: shape (labels,).
        made: by label, what it was made of: a unit and an earlier label, or labels of two other fronts.
    """

    def __init__(self, cost: Floats, rate: Floats, first: Ints, second: Ints, of: tuple[_Front, _Front] | None) -> None:
        self.cost, self.rate = cost, rate
        self.first, self.second, self.of = first, second, of

    def count(self, label: int, counts: Ints) -> None:
        """Add the units of a label to `counts`."""
        if self.of is not None:
            self.of[0].count(int(self.first[label]), counts)
            self.of[1].count(int(self.second[label]), counts)


class _Grown(_Front):
    """A front of one stage: every label is an earlier one and some units of one kind (see `history`)."""

    def __init__(self, cost: Floats, rate: Floats, history: Ints, parent: Ints, unit: Ints, number: Ints) -> None:
        super().__init__(cost, rate, history, history, None)
        self.history, self.parent, self.unit, self.number = history, parent, unit, number

    def count(self, label: int, counts: Ints) -> None:
        """Add the units of a label to `counts`, from its last kind back to the first."""
        at = int(self.history[label])
        while at > 0:
            counts[self.unit[at]] += self.number[at]
            at = int(self.parent[at])


def _grown(
    demand: float, cost: Floats, rate: Floats, names: Ints, kinds: Ints, most: float, prices: tuple[float, float]
) -> _Grown | None:
    """The front of one stage: that of each kind, and of them all the best labels.

    `prices`: cost per rate of the other stages a handed-over request passes, and of serving what is still missing.
    """
    history = _History()
    fronts = []
    for chosen in [one for one in np.unique(kinds) if one >= 0] or [-1]:
        mine = np.flatnonzero((kinds == chosen) | (kinds == -1))
        front = _of_kind(demand, cost[mine], rate[mine], names[mine], most, prices, history)
        if front is None:
            return None
        fronts.append(front)
    labels_cost, labels_rate, made = (np.concatenate(parts) for parts in zip(*fronts, strict=True))
    kept = _pareto(labels_cost, labels_rate)
    return _Grown(labels_cost[kept], labels_rate[kept], made[kept], *history.arrays())


class _History:
    """How labels were made: from an earlier one by so many units of one kind. Label 0 is the empty fleet."""

    def __init__(self) -> None:
        start = np.zeros(1, dtype=np.int64)
        self.parent, self.unit, self.number, self.made = [start], [start], [start], 1

    def add(self, parent: Ints, unit: int, number: Ints) -> Ints:
        """Names of new labels."""
        self.parent.append(parent)
        self.unit.append(np.full(len(parent), unit))
        self.number.append(number)
        self.made += len(parent)
        return np.arange(self.made - len(parent), self.made)

    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """Parent, unit and number of units of every label."""
        return np.concatenate(self.parent), np.concatenate(self.unit), np.concatenate(self.number)


def _of_kind(
    demand: float,
    cost: Floats,
    rate: Floats,
    names: Ints,
    most: float,
    prices: tuple[float, float],
    history: _History,
) -> tuple[Floats, Floats, Ints] | None:
    """Labels (cost, rate, name in the history) of units that go together, the cheapest per rate first."""
    others, per_rate = prices
    labels_cost, labels_rate, made = np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64)
    for j in np.argsort(cost / rate, kind="stable"):
        times = np.arange(1, math.ceil(demand / rate[j] * (1.0 - _ROUNDING)) + 1)
        added_cost = labels_cost[:, None] + times * cost[j]
        added_rate = labels_rate[:, None] + times * rate[j]
        enough = np.minimum(added_rate, demand)
        least = added_cost + others * enough + per_rate * (demand - enough)
        before = added_rate - rate[j]
        row, column = np.nonzero((least <= most) & (before < demand * (1.0 - _ROUNDING)))
        if not len(row):
            continue
        if history.made + len(row) > 8 * MOST_LABELS:
            return None
        fresh = history.add(made[row], int(names[j]), times[column])
        labels_cost = np.concatenate([labels_cost, added_cost[row, column]])
        labels_rate = np.concatenate([labels_rate, np.minimum(added_rate[row, column], demand)])
        made = np.concatenate([made, fresh])
        kept = _pareto(labels_cost, labels_rate)
        labels_cost, labels_rate, made = labels_cost[kept], labels_rate[kept], made[kept]
    return labels_cost, labels_rate, made


def _pareto(cost: Floats, rate: Floats) -> Ints:
    """Indices of the labels that no other beats, by rising cost and rate."""
    order = np.lexsort((-rate, cost))
    best = np.maximum.accumulate(rate[order])
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = rate[order][1:] > best[:-1]
    return np.asarray(order[fresh])


def _chained(first: _Front, second: _Front) -> _Front:
    """What two stages do one after the other: of every rate that one of them just carries, the cheapest of both."""
    rate = np.unique(np.concatenate([first.rate, second.rate]))
    rate = rate[rate <= min(first.rate[-1], second.rate[-1])]
    one, two = np.searchsorted(first.rate, rate), np.searchsorted(second.rate, rate)
    kept = _pareto(first.cost[one] + second.cost[two], rate)
    return _Front((first.cost[one] + second.cost[two])[kept], rate[kept], one[kept], two[kept], (first, second))


def _sum(first: _Front, second: _Front, demand: float, most: float, per_rate: float) -> _Front | None:
    """What two ways of serving do side by side."""
    if len(first.cost) * len(second.cost) > 50 * MOST_LABELS * 10:
        return None
    cost = first.cost[:, None] + second.cost[None, :]
    rate = np.minimum(first.rate[:, None] + second.rate[None, :], demand)
    one, two = np.nonzero(cost + per_rate * (demand - rate) <= most)
    kept = _pareto(cost[one, two], rate[one, two])
    one, two = one[kept], two[kept]
    return _Front(cost[one, two], rate[one, two], one, two, (first, second))
