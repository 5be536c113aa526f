"""Covering knapsacks by label setting: which numbers of units carry a demand at least cost.

Units of the stages FIRST and SECOND are of one kind per channel, so that such a stage has one front for each kind and
the least of them is taken. A front is a set of *labels* (cost, rate), none worse in both than another, grown unit by
unit. A label is kept only while its cost and the cheapest cost per rate of what is still missing stay below what a
fleet may cost, so that hardly any are (S. Martello and P. Toth 1990, "Knapsack Problems", ch. 3). Where resources are
counted, labels also hold what they take of each (`planner.optimizer.covering`).

What is done for every label is compiled. Labels are rows of an array: size, rate [1/s], *use* (cost but for that of
counted resources [USD/h], and the amount of each of these), and the number of the label, 0 for the empty fleet. How
each was made stands in another array: of two labels, or of one and so many copies of a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain, pairwise

import numpy as np

from planner.core import FloatArray, IntArray, compiled
from planner.optimizer.layout import FIRST, WHOLE

MAX_LABELS = 200_000
"""Labels of a slice beyond which they are given up. A choice of speed: branch and bound is not slower from there."""
FEW_LABELS = 1_000
"""Labels there is room for at first. A choice of speed."""
COST_ROUNDING = 1e-12
"""Share by which floating-point sums of costs may differ that are equal."""

Limits = tuple[float, float, float, float]
"""Demand [1/s], most a label may cost [USD/h], and the costs per rate of what a label lacks and of the other stages
[USD/h per 1/s]."""


class TooManyLabelsError(Exception):
    """A front is given up."""


@compiled
def _is_useful(cost: float, rate: float, limits: Limits) -> bool:
    """True if a label may be part of a fleet within the cost limit."""
    demand, most_cost, per_rate, others_per_rate = limits
    return cost + others_per_rate * rate + per_rate * (demand - rate) <= most_cost


@compiled
def _priced(label: FloatArray, columns: FloatArray, limits: Limits) -> bool:
    """Put the size of a label where it belongs; True if there is room for what it uses, and it is useful.

    `columns`: of each column of the use its worth, its room, and its weight in the size.
    """
    cost, label[0], has_room = 0.0, 0.0, True
    for c in range(columns.shape[1]):
        cost += label[c + 2] * columns[0, c]
        has_room = has_room and label[c + 2] <= columns[1, c]
        label[0] += label[c + 2] * columns[2, c]
    return has_room and _is_useful(cost, label[1], limits)


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


@compiled
def _formed(made: FloatArray, count: int, first: float, second: float, unit: int, number: int) -> int:
    """Keep how a label was made; how many there are now."""
    made[count, 0], made[count, 1], made[count, 2], made[count, 3] = first, second, unit, number
    return count + 1


@compiled
def _with_copies(
    before: FloatArray,
    j: int,
    units: FloatArray,
    codes: IntArray,
    columns: FloatArray,
    limits: Limits,
    label: FloatArray,
    front: FloatArray,
    made: FloatArray,
    counts: tuple[int, int],
) -> tuple[int, int]:
    """Put a label and any number of copies of unit j into a front; `label` has room for one. As `_chained`."""
    (count, formed), last = counts, columns.shape[1] + 2
    for number in range(1, codes[j, 0] + 1):
        if before[1] + (number - 1) * units[j, 1] >= limits[0] * (1.0 - COST_ROUNDING):
            break
        label[1] = min(before[1] + number * units[j, 1], limits[0])
        for c in range(2, last):
            label[c] = before[c] + number * units[j, c]
        if _priced(label, columns, limits):
            if formed == len(made) or count + 1 == len(front):
                return -1, formed
            label[last] = formed
            formed = _formed(made, formed, before[last], 0.0, j, number)
            count = _with_label(front, count, label)
    return count, formed


@compiled
def _chained(
    mine: IntArray,
    units: FloatArray,
    codes: IntArray,
    columns: FloatArray,
    limits: Limits,
    work: FloatArray,
    made: FloatArray,
    formed: int,
) -> tuple[int, int]:
    """Labels of units that are taken one after another, none of which another betters in size and rate.

    `mine`: which units; of all, `units`: size, rate [1/s] and use; `codes` as in `_fronts`. Returns how many labels
    there are, put into the first part of `work`, and how many were made; -1 where there is no room for them, or for a
    twentieth of what is looked at for one unit.
    """
    front, before, label = work[0], work[1], work[1, -1]
    for c in range(len(label)):
        front[0, c] = 0.0
    count = len(front[:1])  # a literal 1 would be a type of its own, and compiled for it too
    for j in mine:
        for i in range(count):
            for c in range(len(label)):
                before[i, c] = front[i, c]
        if count * codes[j, 0] > 20 * len(made):
            return -1, formed
        for a in range(count):
            counts = (count, formed)
            count, formed = _with_copies(before[a], j, units, codes, columns, limits, label, front, made, counts)
            if count < 0:
                return -1, formed
    return count, formed


@compiled
def _joined(
    first: FloatArray,
    second: FloatArray,
    order: IntArray,
    asked: tuple[bool, float],
    columns: FloatArray,
    limits: Limits,
    work: FloatArray,
    made: FloatArray,
    formed: int,
) -> tuple[int, int]:
    """Labels of the useful pairs of two sets, put into the first part of `work`; what is returned is as in `_chained`.

    `order`: the second by their rates. `asked`: whether the least of two rates counts, not their sum; and that only
    pairs are looked at that carry so much, of rates that are added.
    """
    (is_least, enough), last, labels, count, looked_at = asked, columns.shape[1] + 2, work[0], 0, 0
    for a in range(len(first)):
        low, beyond = 0, len(order)
        while low < beyond:
            middle = (low + beyond) // 2
            if second[order[middle], 1] < enough * (1.0 - COST_ROUNDING) - first[a, 1]:
                low = middle + 1
            else:
                beyond = middle
        looked_at += len(order) - low
        for b in order[low:]:
            if count == len(labels) or formed == len(made) or looked_at > 20 * len(made):
                return -1, formed
            rate = min(first[a, 1], second[b, 1]) if is_least else first[a, 1] + second[b, 1]
            labels[count, 1] = min(rate, limits[0])
            for c in range(2, last):
                labels[count, c] = first[a, c] + second[b, c]
            if _priced(labels[count], columns, limits):
                labels[count, last], count = formed, count + 1
                formed = _formed(made, formed, first[a, last], second[b, last], 0, 0)
    return count, formed


@compiled
def _ordered(labels: FloatArray, places: IntArray) -> None:
    """Put into the first row of `places` the labels' order: by amounts taken, the last foremost, by cost, by falling
    rate; of equal ones in that they stand in. The second row is for what is merged.
    """
    count, run = len(labels), 1
    for i in range(count):
        places[0, i] = i
    while run < count:  # runs of that length are in order, two of which are merged at a time
        for start in range(0, count, 2 * run):
            left, right, end = start, min(start + run, count), min(start + 2 * run, count)
            middle = right
            for i in range(start, end):
                is_right = left == middle
                if left < middle and right < end:
                    a, b, c = places[0, left], places[0, right], labels.shape[1] - 2
                    while c > 1 and labels[a, c] == labels[b, c]:
                        c -= 1
                    is_right = labels[b, c] < labels[a, c] if c > 1 else labels[b, 1] > labels[a, 1]
                if is_right:
                    places[1, i], right = places[0, right], right + 1
                else:
                    places[1, i], left = places[0, left], left + 1
        for i in range(count):
            places[0, i] = places[1, i]
        run *= 2


@compiled
def _unbeaten(labels: FloatArray, kept: FloatArray, places: IntArray) -> int:
    """Put into `kept` those that no other of the same amounts taken beats in cost and rate; how many there are."""
    _ordered(labels, places)
    best, count, width = -1.0, 0, labels.shape[1]
    for i in range(len(labels)):
        label = labels[places[0, i]]
        for c in range(3, width - 1):
            if label[c] != labels[places[0, i - 1], c]:
                best = -1.0
        if label[1] > best:
            best = label[1]
            for c in range(width):
                kept[count, c] = label[c]
            count += 1
    return count


@compiled
def _useful(
    order: IntArray, units: FloatArray, codes: IntArray, columns: FloatArray, limits: Limits, mine: IntArray
) -> tuple[int, int]:
    """Put into `mine` units that may be part of a fleet within the cost limit: how many, and the kinds there are."""
    count, kinds = 0, 0
    for j in order:
        cost = 0.0
        for c in range(columns.shape[1]):
            cost += units[j, c + 2] * columns[0, c]
        if _is_useful(cost, units[j, 1], limits):
            mine[count], count, kinds = j, count + 1, max(kinds, codes[j, 1] + 1)
    return count, kinds


@compiled
def _fronts(
    order: IntArray,
    mine: IntArray,
    units: FloatArray,
    codes: IntArray,
    columns: FloatArray,
    limits: Limits,
    work: FloatArray,
    made: FloatArray,
    formed: int,
) -> tuple[int, int]:
    """Labels of one stage, those of each kind below one another, put into the first part of `work`; as `_chained`.

    `order`: which units, the cheapest by size first; `mine` has room for twice as many. `codes`: of each unit how many
    are of use, and its kind or -1.
    """
    (useful, kinds), count = _useful(order, units, codes, columns, limits, mine[0]), 0
    for kind in range(min(kinds, 1) - 1, kinds):
        own, is_any = 0, kind == -1
        for j in mine[0, :useful]:
            if codes[j, 1] == kind or codes[j, 1] == -1:
                mine[1, own], own, is_any = j, own + 1, is_any or codes[j, 1] == kind
        if is_any:
            size, formed = _chained(mine[1, :own], units, codes, columns, limits, work[1:], made, formed)
            if size < 0 or count + size > len(made):
                return -1, formed
            for i in range(size):
                for c in range(work.shape[2]):
                    work[0, count + i, c] = work[1, i, c]
            count += size
    return count, formed


def unbeaten(labels: FloatArray) -> FloatArray:
    """Those that no other of the same amounts taken beats in cost and rate.

    Args:
        labels: a row for each, shape (labels, 3 + u).

    Returns:
        The same of those, by rising cost and rate [USD/h, 1/s].
    """
    kept = np.empty_like(labels)
    return kept[: _unbeaten(labels, kept, np.empty((2, len(labels)), dtype=np.int64))]


class LabelSearch:
    """Labels of a slice, and how each was made: of two others, or of one and some copies of a unit.

    Attributes:
        demand: to be covered [1/s].
        units: size, rate [1/s] and use of each.
        cost: of each [USD/h].
        codes: of each how many are of use, its kind or -1, and a number for units that use the same in proportion.
        columns: of each column of the use its worth, 1 of cost, its room, and its weight in the size.
        most_cost: labels whose least cost is more are of no use [USD/h].
        cost_per_rate: cheapest of any route, for what a label does not cover yet [USD/h per 1/s].
        slack: what covers may be too dear by [USD/h].
        made: two labels, a unit and its number, of every label; with room for more.
        formed: how many there are.
    """

    def __init__(
        self,
        demand: float,
        columns: FloatArray,
        use: FloatArray,
        rate: FloatArray,
        codes: IntArray,
        most_cost: float,
        most: FloatArray | float = math.inf,
    ) -> None:
        self.demand, self.columns, self.most_cost = demand, columns, most_cost
        self.cost = use @ columns[0]
        self.units = np.column_stack([use @ columns[2], rate, use])
        enough = np.minimum(np.ceil(demand / rate * (1.0 - COST_ROUNDING)), most)
        self.codes = np.column_stack([enough.astype(np.int64), codes])
        self.cost_per_rate = self.slack = 0.0
        self.made, self.formed = np.zeros((min(FEW_LABELS, MAX_LABELS) + len(use) + 2, 4)), 1  # and for `greedy`

    @property
    def empty_fleet(self) -> FloatArray:
        """Label 0 alone."""
        return np.zeros((1, self.columns.shape[1] + 3))

    def found(self, find: Callable[..., tuple[int, int]], others_per_rate: float, *asked: object) -> FloatArray:
        """Labels that a compiled function finds, given room for as many as it takes."""
        limits = self.demand, self.most_cost * (1.0 + COST_ROUNDING), self.cost_per_rate, others_per_rate
        while True:
            work = np.empty((3, len(self.made), self.columns.shape[1] + 3))
            count, formed = find(*asked, self.columns, limits, work, self.made, self.formed)
            if count >= 0:
                self.formed = formed
                return work[0, :count]
            if len(self.made) > MAX_LABELS:
                raise TooManyLabelsError
            more = np.empty((min(8 * len(self.made), MAX_LABELS + 1), 4))
            more[: self.formed], self.made = self.made[: self.formed], more

    def counts(self, label: float) -> IntArray:
        """Units of a label."""
        counts, left = np.zeros(len(self.units), dtype=np.int64), [label]
        while left:
            first, second, unit, number = self.made[int(left.pop())].tolist()
            counts[int(unit)] += int(number)
            left += [each for each in (first, second) if each]
        return counts

    def covers(self, stage: IntArray, channel: IntArray, gap: float = 0.0) -> FloatArray:
        """Labels that cover the demand, by units whose stage and channel are as in `Layout`.

        Without a limit of cost that is one fleet alone, where nothing is cheaper than it by more than a share `gap`.
        """
        alike, rate = self.codes[:, 2], self.units[:, 1]
        wholes = int(alike.max(initial=0)) + 1
        place = np.where(stage == WHOLE, alike, wholes + 2 * channel + stage - FIRST)
        order = np.lexsort((self.units[:, 0] / rate, place))
        ends = np.searchsorted(place[order], np.arange(wholes + 2 * int(channel.max(initial=-1)) + 3)).tolist()
        parts = [order[begin:end] for begin, end in pairwise(ends)]
        routes = [*zip(parts[:wholes]), *zip(parts[wholes::2], parts[wholes + 1 :: 2], strict=True)]
        routes = [route for route in routes if all(map(len, route))]
        if not routes:
            return self.empty_fleet[:0]
        ratio = self.cost / rate
        worth = [[float(ratio[units].min()) for units in route] for route in routes]
        self.cost_per_rate = min(map(math.fsum, worth))
        if math.isinf(self.most_cost):
            greedy = min((list(chain.from_iterable(map(self.greedy, route))) for route in routes), key=self.cost_of)
            self.most_cost = self.cost_of(greedy)
            least = self.cost_per_rate * self.demand
            if least >= self.most_cost * (1.0 - gap):
                self.slack = self.most_cost - least
                return self._made_of(greedy)
        by_route = []
        for route, per_rate in zip(routes, worth, strict=True):
            fronts = (self.front(units, math.fsum(per_rate) - own) for units, own in zip(route, per_rate, strict=True))
            by_route.append(reduce(lambda one, other: unbeaten(self.joined(one, other, least=True)), fronts))
        *fewer, most = sorted((one for one in by_route if len(one) > 1), key=len) or [self.empty_fleet]
        if fewer:
            some = reduce(lambda one, other: unbeaten(self.joined(one, other)), fewer)
            most = self.joined(some, most, enough=self.demand)
        best = most[most[:, 1] >= self.demand * (1.0 - COST_ROUNDING)]
        best[:, 1] = 0.0
        return unbeaten(best)

    def _made_of(self, taken: Sequence[tuple[int, int]]) -> FloatArray:
        """The label of units and their numbers, of no rate."""
        label = self.empty_fleet
        for unit, number in taken:
            self.made[self.formed] = label[0, -1], 0.0, unit, number
            label[0, 2:-1] += number * self.units[unit, 2:]
            label[0, -1], self.formed = self.formed, self.formed + 1
        return label

    def cost_of(self, taken: Sequence[tuple[int, int]]) -> float:
        """Cost of units and their numbers [USD/h]."""
        return math.fsum(number * float(self.cost[unit]) for unit, number in taken)

    def greedy(self, units: IntArray) -> list[tuple[int, int]]:
        """Units of a stage and their numbers that cover the demand: as many of the cheapest per rate as are used whole.

        What is left is carried by copies of one unit, at the step where that costs least. Of the kind of the first.
        """
        units = units[np.argsort(self.cost[units] / self.units[units, 1], kind="stable")]
        kind = self.codes[units, 1]
        units = units[(kind == kind[0]) | (kind == -1)]
        rate, cost = self.units[units, 1], self.cost[units]

        def with_last(taken: list[tuple[int, int]], left: float) -> list[tuple[int, int]]:
            number = np.ceil(left / rate * (1.0 - COST_ROUNDING))
            last = int(np.argmin(number * cost))
            return [*taken, (int(units[last]), int(number[last]))]

        taken, left = list[tuple[int, int]](), self.demand
        fleets = [with_last(taken, left)]
        for unit, of_one in zip(units.tolist(), rate.tolist(), strict=True):
            whole = int(left / of_one)
            if whole:
                taken, left = [*taken, (unit, whole)], max(left - whole * of_one, 0.0)
                fleets.append(with_last(taken, left))
        return min(fleets, key=self.cost_of)

    def front(self, units: IntArray, others_per_rate: float = 0.0) -> FloatArray:
        """The labels of one stage, the units by size: those of each kind, and of them all the best."""
        kinds, alike = self.codes[units, 1:].T
        if (alike == alike[0]).all():
            return self._front(units, others_per_rate)
        fronts = []
        for kind in sorted({code for code in kinds.tolist() if code >= 0} or {-1}):
            own = (kinds == kind) | (kinds == -1)
            of_each = (self._front(units[own & (alike == each)], others_per_rate) for each in np.unique(alike[own]))
            fronts.append(
                reduce(lambda one, other: unbeaten(self.joined(one, other, others_per_rate=others_per_rate)), of_each)
            )
        return unbeaten(np.concatenate(fronts))

    def _front(self, units: IntArray, others_per_rate: float) -> FloatArray:
        """The labels of units that use the same in proportion."""
        mine = np.empty((2, len(units)), dtype=np.int64)
        labels = self.found(_fronts, others_per_rate, units, mine, self.units, self.codes)
        return unbeaten(labels) if self.codes[units, 1].max() >= 0 else labels

    def joined(
        self,
        first: FloatArray,
        second: FloatArray,
        *,
        least: bool = False,
        others_per_rate: float = 0.0,
        enough: float = 0.0,
    ) -> FloatArray:
        """Labels of the useful pairs of two sets; rates are added, or the least counts.

        `enough`: only pairs that carry so much; of rates that are added.
        """
        order = np.argsort(second[:, 1], kind="stable")
        return self.found(_joined, others_per_rate, first, second, order, (least, enough))
