"""Streams of requests by themselves: a covering knapsack for each, solved exactly by label setting.

Where units stand still, the cheapest fleet of a slice is a covering knapsack. Limits are left out and blocks are taken
in parts: what is found is a lower bound, and it is the answer where it happens to keep the limits. Where it does not,
branch and bound takes over and the bound is kept.

A unit j has a rate r_j and a cost c_j; the least cost that covers the demand d is a covering knapsack (S. Martello and
P. Toth 1990, "Knapsack Problems", ch. 3). With prefill and decode units it is one for each stage, joined by the rate
that passes from one to the other:

    least  C_whole(x) + sum_channel cover(x_channel)     with  x + sum_channel x_channel >= d,
    where  cover(y) = C_first(y) + C_second(y),  C_stage(y) = least sum c_j n_j with sum r_j n_j >= y

Units of the stages FIRST and SECOND are of one kind per channel, so that such a stage has one front for each kind and
the least of them is taken. A front is a set of *labels* (cost, rate), none worse in both than another, grown unit by
unit. A label is kept only while its cost and the cheapest cost per rate of what is still missing stay below the best
fleet known, so that hardly any are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.evaluate_allocation import PartAnswer
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Layout
from planner.optimizer.load_split import proportional_rates

MAX_LABELS = 20_000
"""Labels beyond which a front is given up. A choice of speed: branch and bound is not slower from there."""
MAX_PAIRS = 100 * MAX_LABELS
"""Labels that are formed at once before the best are kept: 16 MB a column. A choice of memory."""
_COST_ROUNDING = 1e-12
"""Share by which floating-point sums of costs may differ that are equal."""


def cheapest_cover(layout: Layout) -> PartAnswer | None:
    """The cheapest units for every slice by itself, at the largest demand of any period.

    Where no unit serves two slices, they are coupled by blocks and limits only, so the sum is a bound, and the fleet is
    the answer where it costs no more than that. Where units serve several, there is a fleet to start from.

    Args:
        layout: of the problem.

    Returns:
        A fleet that may miss limits, and a bound [USD/h], 0 where units serve several slices. None where units move
        with the periods, for deferrable slices in several periods, pinned resources; where nothing covers a demand, or
        a front grows beyond `MAX_LABELS`.
    """
    pinned = any(resource.at_least > 0.0 for resource in layout.problem.resources)
    if pinned or (layout.periods > 1 and (layout.deferrable.any() or not layout.steady.all())):
        return None
    usd = layout.purchase_usd_per_hour / layout.purchase_usable
    price, block = layout.cheapest(usd), layout.cheapest(layout.purchase_usable)
    taken = layout.take_amount * price[layout.take_resource]
    cost, block_usd = layout.usd_per_hour.copy(), np.zeros(len(layout.usd_per_hour))
    np.add.at(cost, layout.take_unit, taken)
    counts = _counts(layout, cost, block_usd)
    if counts is None:
        return None
    is_bound = len(layout.pair_unit) == len(np.unique(layout.pair_unit))
    bound = math.fsum((cost * counts.sum(axis=0)).tolist()) if is_bound else 0.0
    values = _values(layout, counts)
    block_usd[layout.take_unit[taken > 0.0]] = (block * price)[layout.take_resource[taken > 0.0]]
    in_blocks = _counts(layout, cost, block_usd) if (layout.purchase_block > 1.0).any() else None
    if in_blocks is not None:
        values = min(values, _values(layout, in_blocks), key=lambda each: float(layout.mean_cost @ each))
    return PartAnswer(values, bound)


def _counts(layout: Layout, cost: FloatArray, block_usd: FloatArray) -> IntArray | None:
    """Units of every slice by itself, shape (slices, units); None where one cannot be covered."""
    demand = layout.demand_per_s.max(axis=1)
    counts = np.zeros((len(demand), len(cost)), dtype=np.int64)
    for s in np.flatnonzero(demand > 0.0):
        pairs = layout.pair_slice == s
        units, rate = layout.pair_unit[pairs], np.minimum(layout.pair_rate[pairs], demand[s])
        place = layout.stage[units], layout.channel[units], layout.unit_kind[units]
        cover = least_cost_cover(float(demand[s]), cost[units], rate, *place, block_usd[units])
        if cover is None:
            return None
        counts[s, units] = cover
    return counts


def _values(layout: Layout, counts: IntArray) -> FloatArray:
    """The columns of these units: all of a slice's equally loaded, and of each resource the cheapest purchases."""
    values, total = np.zeros(layout.columns), counts.sum(axis=0)
    values[layout.column.units] = total[:, None]
    for s, units in enumerate(counts):
        for t in range(layout.periods):
            values[layout.column.rates[:, t]] += proportional_rates(layout, units, s, t)
    taken, usable = layout.taken(total[:, None])[:, 0], layout.purchase_usable
    for resource in np.unique(layout.purchase_resource[taken[layout.purchase_resource] > 0.0]):
        mine = np.flatnonzero(layout.purchase_resource == resource)
        whole, usd, blocks = np.full(len(mine), WHOLE), layout.purchase_usd_per_hour[mine], None
        if len(mine) > 1:
            blocks = least_cost_cover(float(taken[resource]), usd, usable[mine], whole, whole, whole)
        if blocks is None:
            best = np.arange(len(mine)) == np.argmin(usd / usable[mine])
            blocks = np.where(best, np.ceil(taken[resource] / usable[mine] - 1e-9), 0.0)
        values[layout.column.blocks[mine]] = blocks[:, None]
    layout.fill_in(values)
    return values


def least_cost_cover(
    demand: float,
    cost: FloatArray,
    rate: FloatArray,
    stage: IntArray,
    channel: IntArray,
    kind: IntArray,
    block_usd: FloatArray | None = None,
) -> IntArray | None:
    """How many of each unit cover the demand at least cost.

    With `block_usd`, units for which that is the same pay for whole blocks together. It is exact where all of them are
    in one stage, and elsewhere a fleet that stages do not share blocks in.

    Args:
        demand: [1/s], above 0.
        cost: of one unit [USD/h]; shape (units,), as all that follow.
        rate: of one unit [1/s].
        stage: `WHOLE`, `FIRST` or `SECOND` of each unit.
        channel: of units of the stages FIRST and SECOND.
        kind: of each unit; of those of one stage and channel only units of one kind (and of kind -1) go together.
        block_usd: what a block costs of what each unit takes [USD/h]; 0, or None: parts of blocks can be had.

    Returns:
        Number of each unit; None when nothing covers the demand or there are too many labels.

    >>> whole = np.zeros(2, int)
    >>> least_cost_cover(10.0, np.array([8.0, 2.0]), np.array([5.0, 1.0]), whole, whole - 1, whole - 1)
    array([2, 0])
    """
    block = np.zeros(len(cost)) if block_usd is None else block_usd
    routes = [[np.flatnonzero((stage == WHOLE) & (block == each))] for each in np.unique(block)]
    for code in np.unique(channel[stage != WHOLE]):
        routes.append([np.flatnonzero((stage == part) & (channel == code)) for part in (FIRST, SECOND)])
    routes = [route for route in routes if all(len(units) for units in route)]
    if not routes:
        return None
    of_one = _in_blocks(np.ceil(demand / rate * (1.0 - _COST_ROUNDING)) * cost, block)
    known = min(math.fsum(of_one[units].min() for units in route) for route in routes)
    worth = [[float((cost[units] / rate[units]).min()) for units in route] for route in routes]
    search = _Search(demand, cost, rate, kind, block, known * (1.0 + _COST_ROUNDING), min(map(math.fsum, worth)))
    try:
        fronts = [
            [search.front(units, math.fsum(per_rate) - own) for units, own in zip(route, per_rate, strict=True)]
            for route, per_rate in zip(routes, worth, strict=True)
        ]
        best = search.side_by_side([search.in_sequence(*front) for front in fronts])
    except _TooManyLabelsError:
        return None
    covers = np.flatnonzero(best.rate >= demand * (1.0 - _COST_ROUNDING))
    return search.counts(best.name[covers[np.argmin(best.cost[covers])]]) if len(covers) else None


def _in_blocks(cost: FloatArray, block_usd: FloatArray | float) -> FloatArray:
    """Costs raised to whole blocks; a block of 0 is none."""
    size = np.where(np.asarray(block_usd) > 0.0, block_usd, 1.0)
    return np.where(np.asarray(block_usd) > 0.0, np.ceil(cost / size * (1.0 - _COST_ROUNDING)) * size, cost)


class _TooManyLabelsError(Exception):
    """A front is given up."""


@dataclass(frozen=True)
class _Labels:
    """Cost [USD/h], rate [1/s] and name of some labels."""

    cost: FloatArray
    rate: FloatArray
    name: IntArray

    def unbeaten(self) -> _Labels:
        """Those that no other beats in both, by rising cost and rate."""
        order = np.lexsort((-self.rate, self.cost))
        rate = self.rate[order]
        kept = order[np.append(True, rate[1:] > np.maximum.accumulate(rate)[:-1])]
        return _Labels(self.cost[kept], self.rate[kept], self.name[kept])


_NOTHING = _Labels(np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64))
"""The empty fleet, which is label 0."""


def _together(parts: Sequence[_Labels]) -> _Labels:
    columns = zip(*((part.cost, part.rate, part.name) for part in parts), strict=True)
    return _Labels(*(np.concatenate(column) for column in columns)).unbeaten()


@dataclass
class _Search:
    """Labels, and how each was made: of two others, or of one and some copies of a unit.

    Attributes:
        demand: to be covered [1/s].
        cost, rate, kind, block: of each unit, see `least_cost_cover`.
        most_cost: of the best fleet known; no label beyond it is of use [USD/h].
        cost_per_rate: cheapest of any route, for what a label does not cover yet [USD/h per 1/s].
        made: two labels, a unit and its number, of every label.
        labels: how many there are.
    """

    demand: float
    cost: FloatArray
    rate: FloatArray
    kind: IntArray
    block: FloatArray
    most_cost: float
    cost_per_rate: float
    made: list[IntArray] = field(default_factory=lambda: [np.zeros((1, 4), dtype=np.int64)])
    labels: int = 1

    def named(self, first: IntArray, second: IntArray | int, unit: int = 0, number: IntArray | int = 0) -> IntArray:
        """Names of labels made of labels `first` and `second` and so many copies of a unit."""
        made = np.empty((len(first), 4), dtype=np.int64)
        for column, part in enumerate((first, second, unit, number)):
            made[:, column] = part
        self.made.append(made)
        self.labels += len(first)
        return np.arange(self.labels - len(first), self.labels)

    def counts(self, label: int) -> IntArray:
        """Units of a label."""
        made, counts, left = np.concatenate(self.made), np.zeros(len(self.cost), dtype=np.int64), [int(label)]
        while left:
            first, second, unit, number = made[left.pop()].tolist()
            counts[unit] += number
            left += [each for each in (first, second) if each]
        return counts

    def is_useful(self, cost: FloatArray, rate: FloatArray, others_per_rate: float = 0.0) -> BoolArray:
        """Whether labels may be part of a fleet no dearer than the best known.

        `others_per_rate` is the cost per rate of the other stages that a request passes [USD/h per 1/s].
        """
        enough = np.minimum(rate, self.demand)
        least = cost + others_per_rate * enough + self.cost_per_rate * (self.demand - enough)
        return np.asarray(least <= self.most_cost)

    def front(self, units: IntArray, others_per_rate: float) -> _Labels:
        """The labels of one stage: those of each kind, and of them all the best."""
        units = units[self.is_useful(self.cost[units], self.rate[units], others_per_rate)]
        kinds = [kind for kind in np.unique(self.kind[units]) if kind >= 0] or [-1]
        of_kinds = (units[(self.kind[units] == kind) | (self.kind[units] == -1)] for kind in kinds)
        parts = [own[self.block[own] == block] for own in of_kinds for block in np.unique(self.block[own])]
        return _together([self._of_kind(own, others_per_rate) for own in parts] or [_NOTHING])

    def _of_kind(self, units: IntArray, others_per_rate: float) -> _Labels:
        """Labels of units that go together, the cheapest per rate first."""
        labels, demand, begin = _NOTHING, self.demand, self.labels
        for j in units[np.argsort(self.cost[units] / self.rate[units], kind="stable")].tolist():
            most = math.ceil(demand / self.rate[j] * (1.0 - _COST_ROUNDING))
            if len(labels.cost) * most > MAX_PAIRS:
                raise _TooManyLabelsError
            times = np.arange(1, most + 1)
            cost = labels.cost[:, None] + times * self.cost[j]
            rate = labels.rate[:, None] + times * self.rate[j]
            is_needed = rate - self.rate[j] < demand * (1.0 - _COST_ROUNDING)
            row, column = np.nonzero(self.is_useful(cost, rate, others_per_rate) & is_needed)
            if self.labels - begin + len(row) > 8 * MAX_LABELS:
                raise _TooManyLabelsError
            if len(row):
                name = self.named(labels.name[row], 0, j, times[column])
                more = _Labels(cost[row, column], np.minimum(rate[row, column], demand), name)
                labels = _together([labels, more])
        return _Labels(_in_blocks(labels.cost, self.block[units[0]]), labels.rate, labels.name).unbeaten()

    def in_sequence(self, first: _Labels, second: _Labels | None = None) -> _Labels:
        """What two stages do one after the other: of every rate that one of them just carries, the cheapest of both."""
        if second is None:
            return first
        rate = np.unique(np.concatenate([first.rate, second.rate]))
        rate = rate[rate <= min(first.rate[-1], second.rate[-1])]
        left, right = np.searchsorted(first.rate, rate), np.searchsorted(second.rate, rate)
        name = self.named(first.name[left], second.name[right])
        return _Labels(first.cost[left] + second.cost[right], rate, name).unbeaten()

    def side_by_side(self, routes: Sequence[_Labels]) -> _Labels:
        """What several routes do beside one another."""
        best = routes[0]
        for other in routes[1:]:
            if len(best.cost) * len(other.cost) > MAX_PAIRS:
                raise _TooManyLabelsError
            cost = best.cost[:, None] + other.cost[None, :]
            rate = np.minimum(best.rate[:, None] + other.rate[None, :], self.demand)
            left, right = np.nonzero(self.is_useful(cost, rate))
            pairs = _Labels(cost[left, right], rate[left, right], np.arange(len(left))).unbeaten()
            name = self.named(best.name[left[pairs.name]], other.name[right[pairs.name]])
            best = _Labels(pairs.cost, pairs.rate, name)
        return best
