"""Streams of requests period by period, exactly and fast: covering knapsacks joined over their Pareto fronts.

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
from planner.optimizer.evaluate_allocation import sides
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Floats, Ints, Layout, Mask
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
        bound_usd_per_hour: no fleet costs less [USD/h]; None where that is not known.
        keeps_limits: the values meet every row of the program.
    """

    values: Floats
    bound_usd_per_hour: float | None
    keeps_limits: bool


def cheapest_cover(layout: Layout) -> Covering | None:
    """A fleet of units that serve one slice each, the cheapest for every slice and period by itself.

    Where there is one slice, periods are coupled by what is bought or kept for all of them only: commitments (taken at
    their price as though they could be had by the hour), starts (left out) and kinds. So the sum over periods is a
    bound, and the fleet is the answer where it costs no more than that. Several slices have no bound this way.

    None for steady units beside others, deferrable slices in several periods, pinned units or purchases; where nothing
    covers a demand, or a front grows beyond `MOST_LABELS`.
    """
    if not _is_covering(layout):
        return None
    demand = layout.demand_per_s
    if layout.steady.any():
        demand = np.broadcast_to(demand.max(axis=1, keepdims=True), demand.shape)
    cost = _unit_costs(layout)
    counts = _counts(layout, demand, cost, np.ones(len(cost), dtype=bool))
    if counts is None:
        return None
    total = counts.sum(axis=0)
    bound = math.fsum((layout.share * (cost @ total)).tolist()) if len(counts) == 1 else None
    allowed = _kinds_of_peak(layout, total, demand)
    if not allowed.all():
        counts = _counts(layout, demand, cost, allowed)
        if counts is None:
            return None
    values = _values(layout, counts, demand)
    return Covering(values, bound, _keeps_limits(layout, values))


def _is_covering(layout: Layout) -> bool:
    problem = layout.problem
    pinned = any(r.at_least > 0.0 or any(p.at_least > 0.0 for p in r.purchases) for r in problem.resources)
    waits = layout.deferrable.any() and layout.periods > 1
    mixed = layout.steady.any() and not layout.steady.all()
    known = not np.isnan(layout.demand_per_s).any()
    return bool(known and not (pinned or waits or mixed or layout.at_least.any()))


def _unit_costs(layout: Layout) -> Floats:
    """Cost of each unit [USD/h], its resources at their cheapest price and in parts of blocks."""
    price = np.full(len(layout.problem.resources), math.inf)
    np.minimum.at(price, layout.purchase_resource, _usd_per_usable_hour(layout))
    price = np.where(np.isfinite(price), price, 0.0)
    bought = np.bincount(
        layout.take_unit, weights=layout.take_amount * price[layout.take_resource], minlength=len(layout.stage)
    )
    return np.asarray(layout.usd_per_hour + bought)


def _usd_per_usable_hour(layout: Layout) -> Floats:
    return np.asarray(layout.purchase_usd / (layout.purchase_block * layout.purchase_usable))


def _rates(layout: Layout, one: int) -> Floats:
    """What each unit carries of a slice [1/s]; 0 where it cannot serve it."""
    rate = np.zeros(len(layout.stage))
    mine = layout.pair_slice == one
    rate[layout.pair_unit[mine]] = layout.pair_rate[mine]
    return rate


def _counts(layout: Layout, demand: Floats, cost: Floats, allowed: Mask) -> Ints | None:
    """Units for every slice and period, shape (slices, units, periods); None where something cannot be covered."""
    counts = np.zeros((len(demand), len(cost), layout.periods), dtype=np.int64)
    for one, by_period in enumerate(demand):
        rate = _rates(layout, one)
        units = np.flatnonzero((rate > 0.0) & allowed)
        for asked in np.unique(by_period[by_period > 0.0]):
            found = least_cost_cover(
                float(asked),
                cost[units],
                np.minimum(rate[units], asked),
                layout.stage[units],
                layout.channel[units],
                layout.unit_kind[units],
            )
            if found is None:
                return None
            counts[one][np.ix_(units, np.flatnonzero(by_period == asked))] = found[:, None]
    return counts


def _kinds_of_peak(layout: Layout, counts: Ints, demand: Floats) -> Mask:
    """Units that may be used so that all periods have the kinds of the one with the largest demand; all, if they do."""
    everything = np.ones(len(counts), dtype=bool)
    used = counts.any(axis=1)
    kinds = {layout.kinds[kind] for kind in layout.unit_kind[used] if kind >= 0}
    if len({(stage, channel) for stage, channel, _ in kinds}) == len(kinds):
        return everything
    peak = counts[:, int(demand.sum(axis=0).argmax())] > 0
    wanted = set(layout.unit_kind[peak & (layout.unit_kind >= 0)].tolist())
    return np.array([kind < 0 or kind in wanted for kind in layout.unit_kind.tolist()])


def _values(layout: Layout, counts: Ints, demand: Floats) -> Floats:
    """The columns of these units: all of a slice's equally loaded, and the cheapest purchases for them."""
    values = np.zeros(layout.columns)
    total = counts.sum(axis=0)
    values[layout.units_column] = total
    for one, by_period in enumerate(layout.demand_per_s):
        rate = _rates(layout, one)
        mine = layout.pair_slice == one
        for t in range(layout.periods):
            carried = _carried(layout, counts[one, :, t] * rate, float(by_period[t]))
            values[layout.rate_column[mine, t]] += carried[layout.pair_unit[mine]]
    values[layout.blocks_column] = _blocks(layout, total)
    on = total[layout.start_units]
    values[layout.starts_column] = np.maximum(on - np.roll(on, 1, axis=1), 0)
    used = total.any(axis=1)
    group = layout.resource_group[layout.take_resource[used[layout.take_unit]]]
    values[layout.groups_column[group[group >= 0]]] = 1.0
    kind = layout.unit_kind[used]
    values[layout.kinds_column[kind[kind >= 0]]] = 1.0
    return values


def _carried(layout: Layout, can: Floats, demand: float) -> Floats:
    """Rate of each unit when all that serve a demand are equally loaded, handed-over requests on both sides alike."""
    carried = np.zeros(len(can))
    channels = range(len(layout.channels))
    handed = {ch: min(can[_is(layout, FIRST, ch)].sum(), can[_is(layout, SECOND, ch)].sum()) for ch in channels}
    whole = _is(layout, WHOLE, -1)
    most = can[whole].sum() + math.fsum(handed.values())
    if not most > 0.0:
        return carried
    share = demand / most
    carried[whole] = share * can[whole]
    for channel, both in handed.items():
        for stage in (FIRST, SECOND):
            mine = _is(layout, stage, channel)
            if both > 0.0:
                carried[mine] = share * both * can[mine] / can[mine].sum()
    return carried


def _blocks(layout: Layout, counts: Ints) -> Floats:
    """Blocks of each purchase, shape (purchases, periods): the cheapest committed and the cheapest other one.

    A committed block is worth it where what the other costs over the periods that need it is more.
    """
    blocks = np.zeros(layout.blocks_column.shape)
    usable, price = layout.purchase_block * layout.purchase_usable, _usd_per_usable_hour(layout)
    for resource in np.unique(layout.purchase_resource):
        takes = layout.take_resource == resource
        taken = layout.take_amount[takes] @ counts[layout.take_unit[takes]]
        mine = np.flatnonzero(layout.purchase_resource == resource)
        kinds = [mine[layout.purchase_committed[mine] == committed] for committed in (True, False)]
        kept, hired = (units[np.argmin(price[units])] if len(units) else -1 for units in kinds)
        levels = np.unique(np.concatenate([[0.0], np.ceil(taken / usable[kept] - 1e-9)])) if kept >= 0 else np.zeros(1)
        if hired < 0:
            levels = levels[-1:]
        rest = np.maximum(taken[None, :] - levels[:, None] * (usable[kept] if kept >= 0 else 0.0), 0.0)
        more = np.ceil(rest / usable[hired] - 1e-9) if hired >= 0 else np.zeros_like(rest)
        cost = (more @ layout.share) * (layout.purchase_usd[hired] if hired >= 0 else 0.0)
        cost = cost + levels * (layout.purchase_usd[kept] if kept >= 0 else 0.0)
        best = int(np.argmin(cost))
        if kept >= 0:
            blocks[kept] = levels[best]
        if hired >= 0:
            blocks[hired] = more[best]
    return blocks


def _is(layout: Layout, stage: int, channel: int) -> Ints:
    return np.flatnonzero((layout.stage == stage) & (layout.channel == channel))


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
