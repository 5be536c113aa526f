"""Streams of requests by themselves: a covering knapsack for each, solved exactly by label setting.

A unit j has a rate r_j and a cost c_j; the least cost that covers the demand d is a covering knapsack (S. Martello and
P. Toth 1990, "Knapsack Problems", ch. 3). With prefill and decode units it is one for each stage, joined by the rate
that passes from one to the other:

    least  C_whole(x) + sum_channel cover(x_channel)     with  x + sum_channel x_channel >= d,
    where  cover(y) = C_first(y) + C_second(y),  C_stage(y) = least sum c_j n_j with sum r_j n_j >= y

Units of the stages FIRST and SECOND are of one kind per channel, so that such a stage has one front for each kind and
the least of them is taken. A front is a set of *labels* (cost, rate), none worse in both than another, grown unit by
unit. A label is kept only while its cost and the cheapest cost per rate of what is still missing stay below what a
fleet may cost, so that hardly any are.

Streams share resources, which are sold in blocks and limited. At first that is left out: any part of a block can be
had, and as much as is asked for. That relaxes the problem: its optimum is a bound, and the answer where it happens to
be a fleet. Where it is not, the resources that it is wrong about are *counted*: labels are (cost, taken, rate), and
what all streams take is paid in whole blocks and kept within its limits. That is repeated until the optimum is a fleet.
(A state space that is relaxed and refined where it is wrong: G. Righini and M. Salani 2008, "New dynamic programming
algorithms for the resource constrained elementary shortest path problem", Networks 51(3).) Whole blocks cost no less
than their parts, so that fleets of at most so much are among labels whose parts cost no more: that limit starts at the
bound and rises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray, compiled
from planner.optimizer.evaluate_allocation import PartAnswer
from planner.optimizer.layout import FIRST, SECOND, WHOLE, Layout
from planner.optimizer.load_split import proportional_rates
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Objective

MAX_LABELS = 20_000
"""Labels beyond which a front is given up. A choice of speed: branch and bound is not slower from there."""
MAX_PAIRS = 100 * MAX_LABELS
"""Labels that are formed at once before the best are kept: 16 MB a column. A choice of memory."""
FIRST_RISE, RISE = 0.01, 1.5
"""Share of the bound by which the limit of cost rises first, and how much more each time. A choice of speed."""
_COST_ROUNDING = 1e-12
"""Share by which floating-point sums of costs may differ that are equal."""
_SAME = 1e-9
"""Share by which amounts and their costs differ that are the same: above rounding, far below tolerances."""


def cheapest_cover(
    layout: Layout, gap: float = 0.0, at_least_usd_per_hour: float = 0.0, most_usd_per_hour: float = math.inf
) -> PartAnswer | None:
    """The cheapest units for every slice by itself, at the largest demand of any period.

    Where no unit serves two slices, they are coupled by resources and limits only: resources are counted until the
    fleet is close enough to the bound. Where units serve several slices, there is a fleet to start from.

    Args:
        layout: of the problem.
        gap: share of its cost by which the fleet may be dearer than the bound.
        at_least_usd_per_hour: a bound that is known.
        most_usd_per_hour: dearer fleets are not looked for; a bound above it says that there is no other.

    Returns:
        A fleet that may miss limits, and a bound [USD/h]: 0 where units serve several slices, infinite where nothing
        serves all slices. None where units move with the periods, for deferrable slices in several periods; where
        no slices by themselves are served, or a front grows beyond `MAX_LABELS`.
    """
    if layout.periods > 1 and (layout.deferrable.any() or not layout.steady.all()):
        return None
    cover = _Cover(layout, at_least_usd_per_hour, most_usd_per_hour * (1.0 + 2.0 * FEASIBILITY_TOLERANCE))
    is_bound = len(layout.pair_unit) == len(np.unique(layout.pair_unit))
    with suppress(_TooManyLabelsError):
        cover.run(gap, is_bound)
    bound = cover.bound if is_bound else 0.0
    return PartAnswer(cover.values, bound) if cover.values is not None or math.isinf(bound) else None


class _Cover:
    """The search of `cheapest_cover`.

    A resource has one price for all of it, at first that of its cheapest purchase. Where as much is not to be had at
    that price, it is that of the relaxation, where limits make it scarce: what an amount u costs is at least
    ``price u - surplus``, with the surplus of what can be had for less (a Lagrangian bound: M. L. Fisher 1981, "The
    Lagrangian relaxation method for solving integer programming problems", Management Science 27(1)).

    Attributes:
        price, surplus: of each resource [USD/h of one, USD/h].
        counted: which resources are.
        least: of each slice, what no units for it cost less than at these prices [USD/h].
        bound: no fleet costs less [USD/h]; infinite where there is none.
        most: fleets that cost more are not looked for [USD/h].
        cost: of the best fleet [USD/h]; infinite where it misses limits of resources.
        values: of that, by column; None: there is none yet.
    """

    def __init__(self, layout: Layout, at_least: float = 0.0, most: float = math.inf) -> None:
        self.layout, self.bound, self.most = layout, at_least, most
        self.demand = layout.demand_per_s.max(axis=1)
        self.price = layout.cheapest(layout.purchase_usd_per_hour / layout.purchase_usable)
        self.surplus = np.zeros(len(self.price))
        self.takes = np.zeros((len(layout.usd_per_hour), len(self.price)))
        self.takes[layout.take_unit, layout.take_resource] = layout.take_amount
        resources = layout.problem.resources
        self.room = np.array([math.inf if r.at_most is None else r.at_most * (1.0 + _SAME) for r in resources])
        purchases = (purchase for resource in resources for purchase in resource.purchases)
        blocks = (math.inf if p.at_most is None else math.floor(p.at_most / p.block + _SAME) for p in purchases)
        self.most_blocks = np.fromiter(blocks, dtype=float)
        self.counted = np.zeros(len(self.price), dtype=bool)
        self.least = np.zeros(len(self.demand))
        self.cost = math.inf
        self.values: FloatArray | None = None

    def run(self, gap: float, is_bound: bool) -> None:
        """Count more resources, and look among dearer fleets, until the best is proved to be within the gap.

        Without a bound to prove only the first fleet is looked for.
        """
        most, rise, is_scarce = math.inf, FIRST_RISE, self.room < math.inf
        is_scarce[self.layout.purchase_resource[self.most_blocks < math.inf]] = True
        while True:
            cost, counts = self._cheapest(most)
            self.bound = max(self.bound, min(cost, most))
            is_wrong = counts is not None and self._add(counts)
            enough = self.cost * (1.0 - gap * (1.0 - _SAME))  # the gap itself may round to more
            if not is_bound or self.bound >= min(enough, self.most) or (cost <= most and not is_wrong):
                return
            if is_wrong and is_scarce[self.counted].any():
                is_scarce[:] = False
                most = math.inf
                if not self._price():
                    self.bound = math.inf
                    return
                continue
            rise *= 1.0 if cost <= most else RISE
            most = min(self.bound * (1.0 + rise) if rise <= 1.0 else math.inf, enough, self.most)

    def _price(self) -> bool:
        """Price resources as the relaxation does, from which on none is counted; whether it has a solution."""
        program, dual, start = build_program(self.layout, Objective.MIN_COST), np.zeros(len(self.price)), 0
        relaxed = relax(program)
        if relaxed is None:
            return False
        code = {resource.name: index for index, resource in enumerate(self.layout.problem.resources)}
        for rows in program.rows:
            if rows.constraint in ("hold_resource", "within_resource"):
                subject = np.array([code[name] for name, *_ in rows.subjects], dtype=np.int64)[rows.subject]
                np.subtract.at(dual, subject, relaxed.row_duals[start : start + len(rows)])
            start += len(rows)
        self.price = np.maximum(self.price, dual)
        self.surplus = np.array([self._surplus(resource) for resource in range(len(dual))])
        self.counted[:] = False
        return True

    def _surplus(self, resource: int) -> float:
        """The most that amounts of a resource cost less than by its price [USD/h]."""
        layout, mine = self.layout, np.flatnonzero(self.layout.purchase_resource == resource)
        usable, left, price = layout.purchase_usable[mine], float(self.room[resource]), float(self.price[resource])
        if not len(mine):
            return left * price if price else 0.0
        saved = price - layout.purchase_usd_per_hour[mine] / usable
        total = 0.0
        for q in np.argsort(-saved).tolist():
            amount = min(left, float(self.most_blocks[mine[q]] * usable[q]))
            if saved[q] <= _SAME * price or amount == 0.0:
                break
            total, left = total + amount * float(saved[q]), left - amount if amount < left else 0.0
        return total

    def _add(self, counts: IntArray) -> bool:
        """Keep the fleet of these units, shape (slices, units), if it is the best; whether more is counted now."""
        layout, total = self.layout, counts.sum(axis=0)
        taken, values = total @ self.takes, np.zeros(layout.columns)
        usd = np.zeros(len(taken))
        for resource, amount in enumerate(taken.tolist()):
            usd[resource], blocks = self._bought(resource, amount)
            values[layout.column.blocks[layout.purchase_resource == resource]] = blocks[:, None]
        cost = float(layout.usd_per_hour @ total) + math.fsum(usd.tolist())
        if self.values is None or cost < self.cost:
            values[layout.column.units] = total[:, None]
            for s, units in enumerate(counts):
                for t in range(layout.periods):
                    values[layout.column.rates[:, t]] += proportional_rates(layout, units, s, t)
            layout.fill_in(values)
            self.values, self.cost = values, cost
        is_wrong = (usd > (self.price * taken - self.surplus) * (1.0 + _SAME)) & ~self.counted
        self.counted |= is_wrong
        return bool(is_wrong.any())

    def _cheapest(self, most: float) -> tuple[float, IntArray | None]:
        """The least cost, and its units, shape (slices, units), among those whose parts cost no more than so much.

        Without a limit it is kept what each slice costs by itself: no fleet of it costs less.
        """
        layout, resources = self.layout, np.flatnonzero(self.counted)
        most += float(self.surplus.sum())
        use = layout.usd_per_hour + self.takes @ np.where(self.counted, 0.0, self.price)
        use = np.column_stack([use, self.takes[:, resources]])
        worth, room = np.append(1.0, self.price[resources]), np.append(math.inf, self.room[resources])
        chosen, total = np.zeros((1, 0), dtype=np.int64), _nothing(len(worth))
        together = _Search(0.0, use, np.zeros(len(use)), worth, room, most)
        found = []
        for s in np.flatnonzero(self.demand > 0.0).tolist():
            pairs = layout.pair_slice == s
            units, rate = layout.pair_unit[pairs], np.minimum(layout.pair_rate[pairs], self.demand[s])
            of_others = float(self.least.sum() - self.least[s])
            search = _Search(float(self.demand[s]), use[units], rate, worth, room, most - of_others)
            covers = search.covers(layout.stage[units], layout.channel[units], layout.unit_kind[units])
            if math.isinf(most) and len(covers.rate):
                self.least[s] = float((covers.use @ worth).min())
            together.most_cost = most - float(self.least[s + 1 :].sum())
            total, left, right = together.joined(total, covers, least=True)
            if not len(left):
                return math.inf, None
            chosen = np.column_stack([chosen[left], covers.name[right]])
            found.append((s, units, search))
        usd = [self._usd(resource, total.use[:, 1 + k]) for k, resource in enumerate(resources.tolist())]
        cost = total.use[:, 0] - self.surplus[~self.counted].sum() + sum(usd)
        same = np.flatnonzero(cost <= cost.min() * (1.0 + _SAME))
        best = int(
            same[np.argmin((total.use @ worth)[same])]
        )  # of equal cost that which leaves most of its blocks free
        counts = np.zeros((len(self.demand), len(use)), dtype=np.int64)
        for (s, units, search), name in zip(found, chosen[best].tolist(), strict=True):
            counts[s, units] = search.counts(name)
        return float(cost[best]), counts

    def _needed(self, resource: int, taken: FloatArray) -> FloatArray:
        """What must be bought of a resource at least [usable units], pinned ones included."""
        layout, mine = self.layout, self.layout.purchase_resource == resource
        usable = (layout.purchase_usable / layout.purchase_block)[mine].min(initial=1.0)
        return np.asarray(np.maximum(taken, usable * layout.problem.resources[resource].at_least))

    def _shop(self, resource: int, need: float, most_usd: float) -> tuple[_Search, _Labels]:
        """Ways to buy of a resource what may be a part of so much for at most so many USD/h."""
        layout, mine = self.layout, self.layout.purchase_resource == resource
        usd, usable = layout.purchase_usd_per_hour[mine, None], layout.purchase_usable[mine]
        search = _Search(need, usd, usable, np.ones(1), np.full(1, math.inf), most_usd, most=self.most_blocks[mine])
        return search, search.chain(np.arange(len(usd)))

    def _usd(self, resource: int, taken: FloatArray) -> FloatArray:
        """What amounts of a resource cost at least [USD/h]; infinite where so much is not to be had."""
        need = self._needed(resource, taken)
        _, labels = self._shop(resource, float(need.max()), math.inf)
        return np.asarray(np.append(labels.use[:, 0], math.inf)[np.searchsorted(labels.rate, need * (1.0 - _SAME))])

    def _bought(self, resource: int, taken: float) -> tuple[float, FloatArray]:
        """The least cost of so much of a resource [USD/h], infinite where that is not to be had, and its blocks."""
        layout, mine = self.layout, self.layout.purchase_resource == resource
        need = float(self._needed(resource, np.array([taken]))[0])
        is_beyond = math.inf if taken > self.room[resource] else 0.0
        if not mine.any() or need == 0.0:
            return is_beyond, np.zeros(int(mine.sum()))
        blocks = np.ceil(need / layout.purchase_usable[mine] - _SAME)
        usd = blocks * np.where(blocks > self.most_blocks[mine], math.inf, layout.purchase_usd_per_hour[mine])
        best = int(np.argmin(usd))
        cost, blocks = float(usd[best]), np.where(np.arange(len(usd)) == best, blocks, 0.0)
        if len(usd) > 1:
            try:
                search, labels = self._shop(resource, need, cost * (1.0 + _COST_ROUNDING))
            except _TooManyLabelsError:
                return cost + is_beyond, blocks
            if labels.rate[-1] >= need * (1.0 - _SAME):
                cost, blocks = float(labels.use[-1, 0]), search.counts(int(labels.name[-1])).astype(float)
        return cost + is_beyond, blocks


def least_cost_cover(
    demand: float, cost: FloatArray, rate: FloatArray, stage: IntArray, channel: IntArray, kind: IntArray
) -> IntArray | None:
    """How many of each unit cover the demand at least cost.

    Args:
        demand: [1/s], above 0.
        cost: of one unit [USD/h]; shape (units,), as all that follow.
        rate: of one unit [1/s].
        stage: `WHOLE`, `FIRST` or `SECOND` of each unit.
        channel: of units of the stages FIRST and SECOND.
        kind: of each unit; of those of one stage and channel only units of one kind (and of kind -1) go together.

    Returns:
        Number of each unit; None when nothing covers the demand or there are too many labels.

    >>> whole = np.zeros(2, int)
    >>> least_cost_cover(10.0, np.array([8.0, 2.0]), np.array([5.0, 1.0]), whole, whole - 1, whole - 1)
    array([2, 0])
    """
    search = _Search(demand, cost[:, None], rate, np.ones(1), np.full(1, math.inf), math.inf)
    try:
        covers = search.covers(stage, channel, kind)
    except _TooManyLabelsError:
        return None
    return search.counts(int(covers.name[0])) if len(covers.rate) else None


class _TooManyLabelsError(Exception):
    """A front is given up."""


@compiled
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
def _grown(rows: FloatArray) -> FloatArray:
    """The same rows with room for as many more."""
    more = np.empty((2 * len(rows), rows.shape[1]))
    for i in range(len(rows)):
        for c in range(rows.shape[1]):
            more[i, c] = rows[i, c]
    return more


@compiled
def _with_label(front: FloatArray, count: int, label: FloatArray) -> int:
    """Put a label where it belongs in a front, unless another betters it, and leave out those that it betters.

    Args:
        front: room for one more after `count` labels; of each its size and rate first, both rising.
        count: of labels.
        label: as those of the front.

    Returns:
        How many there are now.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if front[middle, 0] < label[0]:
            low = middle + 1
        else:
            high = middle
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
def _chained(
    units: FloatArray,
    most: IntArray,
    columns: FloatArray,
    limits: tuple[float, float, float, float],
    most_labels: int,
) -> tuple[FloatArray, FloatArray]:
    """The labels of units that are taken one after another, none of which another betters in size and rate.

    Args:
        units: rate of each [1/s], and its use as that of `_Labels`; shape (units, 1 + columns).
        most: of each unit.
        columns: worth of each column of the use, its room, and its weight in the size of labels; shape (3, columns).
        limits: demand [1/s], most a label may cost [USD/h], and the costs per rate of what a label lacks and of the
            other stages [USD/h per 1/s].
        most_labels: that may be formed, and a twentieth of those that may be looked at for one unit; with one more it
            is given up.

    Returns:
        Size, rate and use of each label, and which it is: 0 the empty fleet, k the one formed k-th; and of all formed
        which label, unit and number they are made of.
    """
    demand, most_cost, per_rate, others_per_rate = limits
    width = 2 + columns.shape[1]
    front, label, made = np.zeros((16, width + 1)), np.zeros(width + 1), np.empty((16, 3))
    count, formed = 1, 0
    for j in range(len(units)):
        before, old = _grown(front), count
        if old * most[j] > 20 * most_labels:
            return front[:count], np.empty((most_labels + 1, 3))
        for a in range(old):
            for number in range(1, most[j] + 1):
                if before[a, 1] + (number - 1) * units[j, 0] >= demand * (1.0 - _COST_ROUNDING) or formed > most_labels:
                    break
                label[0], label[1] = 0.0, min(before[a, 1] + number * units[j, 0], demand)
                cost, has_room = others_per_rate * label[1] + per_rate * (demand - label[1]), True
                for c in range(2, width):
                    label[c] = before[a, c] + number * units[j, c - 1]
                    cost += label[c] * columns[0, c - 2]
                    has_room = has_room and label[c] <= columns[1, c - 2]
                    label[0] += label[c] * columns[2, c - 2]
                if has_room and cost <= most_cost:
                    if formed == len(made):
                        made = _grown(made)
                    made[formed, 0], made[formed, 1], made[formed, 2], formed = before[a, width], j, number, formed + 1
                    label[width] = formed
                    front = _grown(front) if count == len(front) else front
                    count = _with_label(front, count, label)
    return front[:count], made[:formed]


@compiled
def _pairs(
    first: FloatArray,
    second: FloatArray,
    begin: IntArray,
    columns: FloatArray,
    limits: tuple[float, float, float, float],
    asked: tuple[bool, int],
) -> IntArray:
    """Which pairs of two sets of labels are of use.

    Args:
        first: rate of each label [1/s] and its use.
        second: the same.
        begin: of each of the first, from which of the second on pairs are looked at.
        columns: worth of each column of the use, and its room; shape (2 or more, columns).
        limits: those of `_chained`.
        asked: whether the least of two rates counts, not their sum; how many pairs are listed at most.

    Returns:
        Place in the first and in the second, shape (pairs, 2).
    """
    demand, most_cost, per_rate, others_per_rate = limits
    is_least, most = asked
    pairs, count = np.empty((most, 2), dtype=np.int64), 0
    for a in range(len(first)):
        for b in range(begin[a], len(second)):
            rate = min(first[a, 0], second[b, 0]) if is_least else first[a, 0] + second[b, 0]
            rate, cost, has_room = min(rate, demand), 0.0, True
            for c in range(1, first.shape[1]):
                amount = first[a, c] + second[b, c]
                cost += amount * columns[0, c - 1]
                has_room = has_room and amount <= columns[1, c - 1]
            if has_room and cost + others_per_rate * rate + per_rate * (demand - rate) <= most_cost and count < most:
                pairs[count, 0], pairs[count, 1], count = a, b, count + 1
    return pairs[:count]


@dataclass(frozen=True)
class _Labels:
    """What some labels use, their rate [1/s] and their name.

    Attributes:
        use: cost but for that of counted resources [USD/h], and the amount of each of these; shape (labels, 1 + r).
        rate, name: shape (labels,).
    """

    use: FloatArray
    rate: FloatArray
    name: IntArray

    def at(self, index: IntArray) -> _Labels:
        """Some of them."""
        return _Labels(self.use[index], self.rate[index], self.name[index])

    @property
    def columns(self) -> FloatArray:
        """Rate and use of each, shape (labels, 2 + r)."""
        return np.column_stack([self.rate, self.use])

    def unbeaten(self) -> _Labels:
        """Those that no other of the same amounts taken beats in cost and rate, by rising cost and rate."""
        order = np.lexsort((-self.rate, self.use[:, 0], *self.use.T[1:]))
        return self.at(_sieved(order, self.use[:, 1:], self.rate))


def _nothing(columns: int) -> _Labels:
    """The empty fleet, which is label 0."""
    return _Labels(np.zeros((1, columns)), np.zeros(1), np.zeros(1, dtype=np.int64))


def _together(parts: Sequence[_Labels]) -> _Labels:
    columns = zip(*((part.use, part.rate, part.name) for part in parts), strict=True)
    return _Labels(*(np.concatenate(column) for column in columns))


@dataclass
class _Search:
    """Labels, and how each was made: of two others, or of one and some copies of a unit.

    Attributes:
        demand: to be covered [1/s].
        use, rate: of each unit, as those of `_Labels`.
        worth: least price of what each column of `use` counts; of the first 1.
        room: most of each column that there is.
        most_cost: labels whose least cost is more are of no use [USD/h].
        most: of each unit, how many there are.
        cost_per_rate: cheapest of any route, for what a label does not cover yet [USD/h per 1/s].
        made: two labels, a unit and its number, of every label.
        labels: how many there are.
    """

    demand: float
    use: FloatArray
    rate: FloatArray
    worth: FloatArray
    room: FloatArray
    most_cost: float
    most: FloatArray | None = None
    cost_per_rate: float = 0.0
    made: list[IntArray] = field(default_factory=lambda: [np.zeros((1, 4), dtype=np.int64)])
    labels: int = 1

    def __post_init__(self) -> None:
        self.cost = self.use @ self.worth
        self.size = self.use @ self.columns[2]
        share = self.use / np.where(self.size > 0.0, self.size, 1.0)[:, None]
        self.direction = np.unique(share.round(9), axis=0, return_inverse=True)[1].ravel()

    @property
    def columns(self) -> FloatArray:
        """Worth, room and weight of each column of `use`."""
        return np.stack([self.worth, self.room, np.where(self.worth > 0.0, self.worth, 1.0)])

    def limits(self, others_per_rate: float) -> tuple[float, float, float, float]:
        """Those of `_chained`."""
        return self.demand, self.most_cost * (1.0 + _COST_ROUNDING), self.cost_per_rate, others_per_rate

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

    def is_useful(self, cost: FloatArray, rate: FloatArray, others_per_rate: float = 0.0) -> BoolArray:
        """Whether labels may be part of a fleet that costs no more than may be.

        `others_per_rate` is the cost per rate of the other stages that a request passes [USD/h per 1/s].
        """
        enough = np.minimum(rate, self.demand)
        least = cost + others_per_rate * enough + self.cost_per_rate * (self.demand - enough)
        return np.asarray(least <= self.most_cost * (1.0 + _COST_ROUNDING))

    def covers(self, stage: IntArray, channel: IntArray, kind: IntArray) -> _Labels:
        """What covers the demand, the cheapest first; see `least_cost_cover`."""
        routes = [[(stage == WHOLE) & (self.direction == each)] for each in np.unique(self.direction[stage == WHOLE])]
        for code in np.unique(channel[stage != WHOLE]):
            routes.append([(stage == part) & (channel == code) for part in (FIRST, SECOND)])
        routes = [route for route in routes if all(units.any() for units in route)]
        none = _nothing(len(self.worth))
        if not routes:
            return none.at(np.zeros(0, dtype=np.int64))
        if math.isinf(self.most_cost):
            of_one = np.ceil(self.demand / self.rate * (1.0 - _COST_ROUNDING)) * self.cost
            self.most_cost = min(math.fsum(of_one[units].min() for units in route) for route in routes)
        worth = [[float((self.cost[units] / self.rate[units]).min()) for units in route] for route in routes]
        self.cost_per_rate = min(map(math.fsum, worth))
        by_route = []
        for route, per_rate in zip(routes, worth, strict=True):
            fronts = [
                self.front(np.flatnonzero(units), kind, math.fsum(per_rate) - own)
                for units, own in zip(route, per_rate, strict=True)
            ]
            by_route.append(fronts[0] if len(fronts) == 1 else self.joined(*fronts, least=True)[0].unbeaten())
        *fewer, most = sorted(by_route, key=lambda one: len(one.rate))
        for one in fewer:
            none = self.joined(none, one)[0].unbeaten()
        best = self.joined(none, most, enough=self.demand)[0]
        best = best.at(np.flatnonzero(best.rate >= self.demand * (1.0 - _COST_ROUNDING)))
        best = replace(best, rate=np.zeros(len(best.rate))).unbeaten()
        return best.at(np.argsort(best.use @ self.worth, kind="stable"))

    def front(self, units: IntArray, kind: IntArray, others_per_rate: float) -> _Labels:
        """The labels of one stage: those of each kind, and of them all the best."""
        units = units[self.is_useful(self.cost[units], self.rate[units], others_per_rate)]
        fronts = []
        for each in [code for code in np.unique(kind[units]) if code >= 0] or [-1]:
            own, front = units[(kind[units] == each) | (kind[units] == -1)], _nothing(len(self.worth))
            for place, direction in enumerate(np.unique(self.direction[own])):
                chain = self.chain(own[self.direction[own] == direction], others_per_rate)
                front = self.joined(front, chain, others_per_rate=others_per_rate)[0].unbeaten() if place else chain
            fronts.append(front)
        return _together(fronts).unbeaten()

    def chain(self, units: IntArray, others_per_rate: float = 0.0) -> _Labels:
        """Labels of units that use the same in proportion, the cheapest per rate first."""
        units = units[np.argsort(self.size[units] / self.rate[units], kind="stable")]
        most = np.ceil(self.demand / self.rate[units] * (1.0 - _COST_ROUNDING))
        most = most if self.most is None else np.minimum(most, self.most[units])
        use = np.column_stack([self.rate[units], self.use[units]])
        front, made = _chained(use, most.astype(np.int64), self.columns, self.limits(others_per_rate), 8 * MAX_LABELS)
        if len(made) > 8 * MAX_LABELS:
            raise _TooManyLabelsError
        (first, unit, number), label = made.astype(np.int64).T, front[:, -1].astype(np.int64)
        before = self.labels - 1
        self.named(np.where(first > 0, first + before, 0), 0, units[unit], number)
        return _Labels(front[:, 2:-1], front[:, 1], np.where(label > 0, label + before, 0))

    def joined(
        self, first: _Labels, second: _Labels, *, least: bool = False, others_per_rate: float = 0.0, enough: float = 0.0
    ) -> tuple[_Labels, IntArray, IntArray]:
        """Labels of the useful pairs of two sets, and which of each these are; rates are added, or the least counts.

        `enough`: only pairs that carry so much; of rates that are added.
        """
        order = np.argsort(second.rate, kind="stable")
        begin = np.searchsorted(second.rate[order], enough * (1.0 - _COST_ROUNDING) - first.rate)
        looked_at = len(begin) * len(order) - int(begin.sum())
        if looked_at > 20 * MAX_PAIRS:
            raise _TooManyLabelsError
        most = min(looked_at, MAX_PAIRS + 1)
        limits = self.limits(others_per_rate)
        pairs = _pairs(first.columns, second.at(order).columns, begin, self.columns, limits, (least, most))
        if len(pairs) > MAX_PAIRS:
            raise _TooManyLabelsError
        left, right, rate_of = pairs[:, 0], order[pairs[:, 1]], np.minimum if least else np.add
        rate = np.minimum(rate_of(first.rate[left], second.rate[right]), self.demand)
        name = self.named(first.name[left], second.name[right])
        return _Labels(first.use[left] + second.use[right], rate, name), left, right
