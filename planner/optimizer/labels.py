"""Covering knapsacks by label setting: which numbers of units carry a demand at least cost.

Units of the stages FIRST and SECOND are of one kind per channel, so that such a stage has one front for each kind and
the least of them is taken. A front is a set of *labels* (cost, rate), none worse in both than another, grown unit by
unit. A label is kept only while its cost and the cheapest cost per rate of what is still missing stay below what a
fleet may cost, so that hardly any are (S. Martello and P. Toth 1990, "Knapsack Problems", ch. 3). Where resources are
counted, labels also hold what they take of each (`planner.optimizer.covering`). What is done for every label is
compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from planner.core import FloatArray, IntArray, compiled
from planner.optimizer.layout import FIRST, SECOND, WHOLE

MAX_LABELS = 20_000
"""Labels beyond which a front is given up. A choice of speed: branch and bound is not slower from there."""
MAX_PAIRS = 25 * MAX_LABELS
"""Labels that are formed at once before the best are kept: 4 MB a column. A choice of speed and memory."""
COST_ROUNDING = 1e-12
"""Share by which floating-point sums of costs may differ that are equal."""


class TooManyLabelsError(Exception):
    """A front is given up."""


@compiled
def _is_useful(cost: float, rate: float, limits: tuple[float, float, float, float]) -> bool:
    """True if a label may be part of a fleet within the cost limit; `limits`: those of `_chained`."""
    demand, most_cost, per_rate, others_per_rate = limits
    return cost + others_per_rate * rate + per_rate * (demand - rate) <= most_cost


@compiled(makes_arrays=True)
def _sieved(order: IntArray, same: FloatArray, rate: FloatArray) -> IntArray:
    """Those in this order, by rising cost among equal rows of `same`, that carry more than those of the row before."""
    best, kept, count = -1.0, np.empty_like(order), 0
    for i in range(len(order)):
        place = order[i]
        for c in range(same.shape[1]):
            if same[place, c] != same[order[i - 1], c]:
                best = -1.0
        if rate[place] > best:
            best, kept[count], count = rate[place], place, count + 1
    return kept[:count]


@compiled
def _with_label(front: FloatArray, count: int, label: FloatArray) -> int:
    """Put a label where it belongs in a front, unless another betters it, and leave out those that it betters.

    Of each label of the front, which has room for one more after `count`, size and rate come first, both rising.
    Returns how many there are now.
    """
    low, beyond = 0, count
    while low < beyond:
        middle = (low + beyond) // 2
        if front[middle, 0] < label[0]:
            low = middle + 1
        else:
            beyond = middle
    high = low
    if (low > 0 and front[low - 1, 1] >= label[1]) or (
        low < count and front[low, 0] == label[0] and front[low, 1] >= label[1]
    ):
        return count
    while high < count and front[high, 1] <= label[1]:
        high += 1
    moved = count - high
    for k in range(moved):
        i = high + k if high > low else count - 1 - k
        for c in range(len(label)):
            front[i + 1 + low - high, c] = front[i, c]
    for c in range(len(label)):
        front[low, c] = label[c]
    return low + 1 + moved


@compiled(makes_arrays=True)
def _chained(
    units: FloatArray,
    most: IntArray,
    columns: FloatArray,
    limits: tuple[float, float, float, float],
    most_labels: int,
) -> tuple[FloatArray, FloatArray]:
    """The labels of units that are taken one after another, none of which another betters in size and rate.

    `units`: rate of each [1/s], and its use as that of `Labels`; at most `most` of each. `columns`: worth of each
    column of the use, its room, and its weight in the size of labels. `limits`: demand [1/s], most a label may cost
    [USD/h], and the costs per rate of what a label lacks and of the other stages [USD/h per 1/s]. More than
    `most_labels` formed, or twenty times as many looked at for one unit, are given up: one more is returned.

    Returns size, rate and use of each label, and which it is: 0 the empty fleet, k the one formed k-th; and of all
    formed which label, unit and number they are made of.
    """
    demand, width = limits[0], 2 + columns.shape[1]
    front, label, made = np.empty((most_labels + 2, width + 1)), np.zeros(width + 1), np.empty((most_labels + 1, 3))
    front[0], formed = 0.0, 0
    count = len(front[:1])  # a literal 1 would be a type of its own, and `_with_label` compiled for it too
    for j in range(len(units)):
        before = front[:count].copy()
        if len(before) * most[j] > 20 * most_labels:
            return front[:count], made
        for a in range(len(before)):
            for number in range(1, most[j] + 1):
                if before[a, 1] + (number - 1) * units[j, 0] >= demand * (1.0 - COST_ROUNDING) or formed > most_labels:
                    break
                label[0], label[1] = 0.0, min(before[a, 1] + number * units[j, 0], demand)
                cost, has_room = 0.0, True
                for c in range(2, width):
                    label[c] = before[a, c] + number * units[j, c - 1]
                    cost += label[c] * columns[0, c - 2]
                    has_room = has_room and label[c] <= columns[1, c - 2]
                    label[0] += label[c] * columns[2, c - 2]
                if has_room and _is_useful(cost, label[1], limits):
                    made[formed, 0], made[formed, 1], made[formed, 2], formed = before[a, width], j, number, formed + 1
                    label[width] = formed
                    count = _with_label(front, count, label)
    return front[:count], made[:formed]


@compiled(makes_arrays=True)
def _pairs(
    first: FloatArray,
    second: FloatArray,
    begin: IntArray,
    columns: FloatArray,
    limits: tuple[float, float, float, float],
    asked: tuple[bool, int],
) -> IntArray:
    """Which pairs of two sets of labels, each by rate [1/s] and use, are of use: places in both, shape (pairs, 2).

    Of each of the first, from which of the second on pairs are looked at stands in `begin`. `columns`, `limits`: those
    of `_chained`. `asked`: whether the least of two rates counts, not their sum; how many pairs are listed at most.
    """
    is_least, most = asked
    pairs, count = np.empty((most, 2), dtype=np.int64), 0
    for a in range(len(first)):
        for b in range(begin[a], len(second)):
            rate = min(first[a, 0], second[b, 0]) if is_least else first[a, 0] + second[b, 0]
            cost, has_room = 0.0, True
            for c in range(1, first.shape[1]):
                amount = first[a, c] + second[b, c]
                cost += amount * columns[0, c - 1]
                has_room = has_room and amount <= columns[1, c - 1]
            if count < most and has_room and _is_useful(cost, min(rate, limits[0]), limits):
                pairs[count, 0], pairs[count, 1], count = a, b, count + 1
    return pairs[:count]


@dataclass(frozen=True)
class Labels:
    """Some labels: their use of resources, rate [1/s] and name.

    Attributes:
        use: cost but for that of counted resources [USD/h], and the amount of each of these; shape (labels, 1 + r).
        rate, name: shape (labels,).
    """

    use: FloatArray
    rate: FloatArray
    name: IntArray

    @staticmethod
    def empty_fleet(columns: int) -> Labels:
        """Label 0 alone, of so many columns."""
        return Labels(np.zeros((1, columns)), np.zeros(1), np.zeros(1, dtype=np.int64))

    def at(self, index: IntArray) -> Labels:
        """Some of them."""
        return Labels(self.use[index], self.rate[index], self.name[index])

    @property
    def rows(self) -> FloatArray:
        """Rate and use of each, shape (labels, 2 + r)."""
        return np.column_stack([self.rate, self.use])

    def unbeaten(self) -> Labels:
        """Those that no other of the same amounts taken beats in cost and rate, by rising cost and rate."""
        order = np.lexsort((-self.rate, self.use[:, 0], *self.use.T[1:]))
        return self.at(_sieved(order, np.ascontiguousarray(self.use[:, 1:]), self.rate))


def _together(parts: Sequence[Labels]) -> Labels:
    columns = zip(*((part.use, part.rate, part.name) for part in parts), strict=True)
    return Labels(*(np.concatenate(column) for column in columns))


@dataclass
class LabelSearch:
    """Labels, and how each was made: of two others, or of one and some copies of a unit.

    Attributes:
        demand: to be covered [1/s].
        use, rate: of each unit, as those of `Labels`.
        worth: least price of what each column of `use` counts; of the first 1.
        room: most of each column that there is.
        most_cost: labels whose least cost is more are of no use [USD/h].
        most: of each unit, how many there are.
        cost_per_rate: cheapest of any route, for what a label does not cover yet [USD/h per 1/s].
        slack: what covers may be too dear by [USD/h].
        made: two labels, a unit and its number, of every label.
        labels: how many there are.
        columns: worth, room and weight of each column of `use`.
        direction: a number for units that use the same in proportion.
    """

    demand: float
    use: FloatArray
    rate: FloatArray
    worth: FloatArray
    room: FloatArray
    most_cost: float
    most: FloatArray | None = None
    cost_per_rate: float = 0.0
    slack: float = 0.0
    made: list[IntArray] = field(default_factory=lambda: [np.zeros((1, 4), dtype=np.int64)])
    labels: int = 1

    def __post_init__(self) -> None:
        self.cost = self.use @ self.worth
        self.columns = np.stack([self.worth, self.room, np.where(self.worth > 0.0, self.worth, 1.0)])
        self.size = self.use @ self.columns[2]
        self.direction = np.zeros(len(self.use), dtype=np.int64)
        if len(self.worth) > 1:
            share = self.use / np.where(self.size > 0.0, self.size, 1.0)[:, None]
            self.direction = np.unique(share.round(9), axis=0, return_inverse=True)[1].ravel()

    def limits(self, others_per_rate: float) -> tuple[float, float, float, float]:
        """Those of `_chained`."""
        return self.demand, self.most_cost * (1.0 + COST_ROUNDING), self.cost_per_rate, others_per_rate

    def named(
        self, first: IntArray, second: IntArray | int, unit: IntArray | int = 0, number: IntArray | int = 0
    ) -> IntArray:
        """Names of labels made of labels `first` and `second` and so many copies of a unit."""
        made = np.empty((len(first), 4), dtype=np.int64)
        for column, part in enumerate((first, second, unit, number)):
            made[:, column] = part
        self.made.append(made)
        self.labels += len(first)
        return np.arange(self.labels - len(first), self.labels)

    def counts(self, label: int) -> IntArray:
        """Units of a label."""
        made, counts, left = np.concatenate(self.made), np.zeros(len(self.rate), dtype=np.int64), [int(label)]
        while left:
            first, second, unit, number = made[left.pop()].tolist()
            counts[unit] += number
            left += [each for each in (first, second) if each]
        return counts

    def covers(self, stage: IntArray, channel: IntArray, kind: IntArray, gap: float = 0.0) -> Labels:
        """Labels that cover the demand, the cheapest first, by units whose stage, channel and kind are as in `Layout`.

        Without a limit of cost that is one fleet alone, where nothing is cheaper than it by more than a share `gap`.
        """
        routes = [[(stage == WHOLE) & (self.direction == each)] for each in np.unique(self.direction[stage == WHOLE])]
        for code in np.unique(channel[stage != WHOLE]):
            routes.append([(stage == part) & (channel == code) for part in (FIRST, SECOND)])
        routes = [route for route in routes if all(units.any() for units in route)]
        none = Labels.empty_fleet(len(self.worth))
        if not routes:
            return none.at(np.zeros(0, dtype=np.int64))
        worth = [[float((self.cost[units] / self.rate[units]).min()) for units in route] for route in routes]
        self.cost_per_rate = min(map(math.fsum, worth))
        if math.isinf(self.most_cost):
            of_routes = ([self.greedy(np.flatnonzero(units), kind) for units in route] for route in routes)
            greedy = min((list(chain.from_iterable(stages)) for stages in of_routes), key=self.cost_of)
            self.most_cost = self.cost_of(greedy)
            least = self.cost_per_rate * self.demand
            if least >= self.most_cost * (1.0 - gap):
                self.slack = self.most_cost - least
                name = np.zeros(1, dtype=np.int64)
                for unit, number in greedy:
                    name = self.named(name, 0, unit, number)
                use = sum((number * self.use[unit] for unit, number in greedy), np.zeros(len(self.worth)))
                return Labels(use[None], np.zeros(1), name)
        by_route = []
        for route, per_rate in zip(routes, worth, strict=True):
            fronts = [
                self.front(np.flatnonzero(units), kind, math.fsum(per_rate) - own)
                for units, own in zip(route, per_rate, strict=True)
            ]
            by_route.append(fronts[0] if len(fronts) == 1 else self.joined(*fronts, least=True)[0].unbeaten())
        *fewer, most = sorted((one for one in by_route if len(one.rate) > 1), key=lambda one: len(one.rate)) or [none]
        for one in fewer:
            none = self.joined(none, one)[0].unbeaten() if none.name.any() else one
        best = self.joined(none, most, enough=self.demand)[0] if none.name.any() else most
        best = best.at(np.flatnonzero(best.rate >= self.demand * (1.0 - COST_ROUNDING)))
        best = replace(best, rate=np.zeros(len(best.rate))).unbeaten()
        return best.at(np.argsort(best.use @ self.worth, kind="stable"))

    def cost_of(self, taken: Sequence[tuple[int, int]]) -> float:
        """Cost of units and their numbers [USD/h]."""
        return math.fsum(number * float(self.cost[unit]) for unit, number in taken)

    def greedy(self, units: IntArray, kind: IntArray) -> list[tuple[int, int]]:
        """Units of a stage and their numbers that cover the demand: as many of the cheapest per rate as are used whole.

        What is left is carried by copies of one unit, at the step where that costs least. Of the kind of the first.
        """
        units = units[np.argsort(self.cost[units] / self.rate[units], kind="stable")]
        units = units[(kind[units] == kind[units[0]]) | (kind[units] == -1)]

        def with_last(taken: list[tuple[int, int]], left: float) -> list[tuple[int, int]]:
            number = np.ceil(left / self.rate[units] * (1.0 - COST_ROUNDING))
            last = int(np.argmin(number * self.cost[units]))
            return [*taken, (int(units[last]), int(number[last]))]

        taken, left = list[tuple[int, int]](), self.demand
        fleets = [with_last(taken, left)]
        for unit in units.tolist():
            whole = int(left / self.rate[unit])
            if whole:
                taken, left = [*taken, (unit, whole)], max(left - whole * float(self.rate[unit]), 0.0)
                fleets.append(with_last(taken, left))
        return min(fleets, key=self.cost_of)

    def front(self, units: IntArray, kind: IntArray, others_per_rate: float) -> Labels:
        """The labels of one stage: those of each kind, and of them all the best."""
        least = self.cost + others_per_rate * self.rate + self.cost_per_rate * (self.demand - self.rate)
        units = units[least[units] <= self.most_cost * (1.0 + COST_ROUNDING)]
        fronts = [] if len(units) else [Labels.empty_fleet(len(self.worth))]
        for each in sorted({code for code in kind[units].tolist() if code >= 0} or {-1} if len(units) else ()):
            own, front = units[(kind[units] == each) | (kind[units] == -1)], Labels.empty_fleet(len(self.worth))
            for place, direction in enumerate(sorted(set(self.direction[own].tolist()))):
                chain = self.chain(own[self.direction[own] == direction], others_per_rate)
                front = self.joined(front, chain, others_per_rate=others_per_rate)[0].unbeaten() if place else chain
            fronts.append(front)
        return fronts[0] if len(fronts) == 1 else _together(fronts).unbeaten()

    def chain(self, units: IntArray, others_per_rate: float = 0.0) -> Labels:
        """Labels of units that use the same in proportion, the cheapest per rate first."""
        units = units[np.argsort(self.size[units] / self.rate[units], kind="stable")]
        most = np.ceil(self.demand / self.rate[units] * (1.0 - COST_ROUNDING))
        most = most if self.most is None else np.minimum(most, self.most[units])
        use = np.column_stack([self.rate[units], self.use[units]])
        front, made = _chained(use, most.astype(np.int64), self.columns, self.limits(others_per_rate), 8 * MAX_LABELS)
        if len(made) > 8 * MAX_LABELS:
            raise TooManyLabelsError
        (first, unit, number), label = made.astype(np.int64).T, front[:, -1].astype(np.int64)
        before = self.labels - 1
        self.named(np.where(first > 0, first + before, 0), 0, units[unit], number)
        return Labels(front[:, 2:-1], front[:, 1], np.where(label > 0, label + before, 0))

    def joined(
        self, first: Labels, second: Labels, *, least: bool = False, others_per_rate: float = 0.0, enough: float = 0.0
    ) -> tuple[Labels, IntArray, IntArray]:
        """Labels of the useful pairs of two sets, and which of each these are; rates are added, or the least counts.

        `enough`: only pairs that carry so much; of rates that are added.
        """
        order = np.argsort(second.rate, kind="stable")
        begin = np.searchsorted(second.rate[order], enough * (1.0 - COST_ROUNDING) - first.rate)
        looked_at = len(begin) * len(order) - int(begin.sum())
        if looked_at > 20 * MAX_PAIRS:
            raise TooManyLabelsError
        most = min(looked_at, MAX_PAIRS + 1)
        limits = self.limits(others_per_rate)
        pairs = _pairs(first.rows, second.at(order).rows, begin, self.columns, limits, (least, most))
        if len(pairs) > MAX_PAIRS:
            raise TooManyLabelsError
        left, right, rate_of = pairs[:, 0], order[pairs[:, 1]], np.minimum if least else np.add
        rate = np.minimum(rate_of(first.rate[left], second.rate[right]), self.demand)
        name = self.named(first.name[left], second.name[right])
        return Labels(first.use[left] + second.use[right], rate, name), left, right
