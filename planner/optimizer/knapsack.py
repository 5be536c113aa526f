"""The covering knapsack, solved exactly by label setting: the cheapest units that together carry a demand.

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
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.layout import FIRST, SECOND, WHOLE

MAX_LABELS = 20_000
"""Labels beyond which a front is given up. A choice of speed: branch and bound is not slower from there."""
MAX_PAIRS = 100 * MAX_LABELS
"""Labels that are formed at once before the best are kept: 16 MB a column. A choice of memory."""
_COST_ROUNDING = 1e-12
"""Share by which floating-point sums of costs may differ that are equal."""


def least_cost_cover(
    demand: float,
    cost: FloatArray,
    rate: FloatArray,
    stage: IntArray,
    channel: IntArray,
    kind: IntArray | None = None,
) -> IntArray | None:
    """How many of each unit cover the demand at least cost.

    Args:
        demand: [1/s], above 0.
        cost: of one unit [USD/h]; shape (units,), as all that follow.
        rate: of one unit [1/s].
        stage: `WHOLE`, `FIRST` or `SECOND` of each unit.
        channel: of units of the stages FIRST and SECOND.
        kind: of each unit; of those of one stage and channel only units of one kind (and of kind -1) go together. None:
            all do.

    Returns:
        Number of each unit; None when nothing covers the demand or there are too many labels.

    >>> least_cost_cover(10.0, np.array([8.0, 2.0]), np.array([5.0, 1.0]), np.zeros(2, int), np.full(2, -1))
    array([2, 0])
    """
    kinds = np.full(len(cost), -1) if kind is None else kind
    groups: dict[tuple[int, int], _StageUnits] = {}
    for s, c in zip(stage, channel, strict=True):
        if (int(s), int(c)) not in groups:
            index = np.flatnonzero((stage == s) & (channel == c))
            groups[int(s), int(c)] = _StageUnits(index, cost[index], rate[index], kinds[index])
    channels = sorted({c for s, c in groups if s == FIRST} & {c for s, c in groups if s == SECOND})
    routes = [[groups[WHOLE, -1]]] if (WHOLE, -1) in groups else []
    routes += [[groups[FIRST, c], groups[SECOND, c]] for c in channels]
    if not routes:
        return None
    known = min(math.fsum(units.cost_of_one_kind(demand) for units in route) for route in routes)
    cheapest = min(math.fsum(units.least_cost_per_rate for units in route) for route in routes)
    target = _Target(demand, known * (1.0 + _COST_ROUNDING), cheapest)
    fronts = [_route_front(route, target) for route in routes]
    front = fronts[0]
    for other in fronts[1:]:
        front = None if front is None or other is None else _side_by_side(front, other, target)
    if front is None:
        return None
    covers = np.flatnonzero(front.rate >= demand * (1.0 - _COST_ROUNDING))
    if not len(covers):
        return None
    counts = np.zeros(len(cost), dtype=np.int64)
    front.count(int(covers[np.argmin(front.cost[covers])]), counts)
    return counts


@dataclass(frozen=True)
class _StageUnits:
    """Units of one stage and channel: index in the problem, cost [USD/h], rate [1/s] and kind of each."""

    index: IntArray
    cost: FloatArray
    rate: FloatArray
    kind: IntArray

    @property
    def least_cost_per_rate(self) -> float:
        """Of any of the units [USD/h per 1/s]."""
        return float((self.cost / self.rate).min())

    def cost_of_one_kind(self, demand: float) -> float:
        """Least cost of covering a demand with copies of a single unit [USD/h]."""
        return float((np.ceil(demand / self.rate * (1.0 - _COST_ROUNDING)) * self.cost).min())

    def together_with(self, kind: int) -> _StageUnits:
        """The units of a kind, and those that go with every other."""
        mine = np.flatnonzero((self.kind == kind) | (self.kind == -1))
        return _StageUnits(self.index[mine], self.cost[mine], self.rate[mine], self.kind[mine])


@dataclass(frozen=True)
class _Target:
    """What labels are held against.

    Attributes:
        demand: to be covered [1/s].
        most_cost: of the best fleet known; no label beyond it is of use [USD/h].
        cost_per_rate: cheapest of any route, for what a label does not cover yet [USD/h per 1/s].
    """

    demand: float
    most_cost: float
    cost_per_rate: float


class _Front:
    """Labels by rising cost and rate, and how each was made.

    Attributes:
        cost, rate: shape (labels,).
        first, second: of each label, the labels of two other fronts that it was made of.
        sources: these fronts; None for the front of a single stage.
    """

    def __init__(
        self,
        cost: FloatArray,
        rate: FloatArray,
        first: IntArray,
        second: IntArray,
        sources: tuple[_Front, _Front] | None,
    ) -> None:
        self.cost, self.rate = cost, rate
        self.first, self.second, self.sources = first, second, sources

    def count(self, label: int, counts: IntArray) -> None:
        """Add the units of a label to `counts`."""
        if self.sources is not None:
            self.sources[0].count(int(self.first[label]), counts)
            self.sources[1].count(int(self.second[label]), counts)


class _StageFront(_Front):
    """A front of one stage: every label is an earlier one and some copies of one unit (see `_History`)."""

    def __init__(self, labels: _Labels, history: _History) -> None:
        super().__init__(labels.cost, labels.rate, labels.name, labels.name, None)
        self.name = labels.name
        self.parent, self.unit, self.number = history.arrays()

    def count(self, label: int, counts: IntArray) -> None:
        """Add the units of a label to `counts`, from its last unit back to the first."""
        at = int(self.name[label])
        while at > 0:
            counts[self.unit[at]] += self.number[at]
            at = int(self.parent[at])


class _History:
    """How labels were made: from an earlier one by so many copies of one unit. Label 0 is the empty fleet."""

    def __init__(self) -> None:
        start = np.zeros(1, dtype=np.int64)
        self.parent, self.unit, self.number, self.made = [start], [start], [start], 1

    def add(self, parent: IntArray, unit: int, number: IntArray) -> IntArray:
        """Names of new labels."""
        self.parent.append(parent)
        self.unit.append(np.full(len(parent), unit))
        self.number.append(number)
        self.made += len(parent)
        return np.arange(self.made - len(parent), self.made)

    def arrays(self) -> tuple[IntArray, IntArray, IntArray]:
        """Parent, unit and number of copies of every label, by name."""
        return np.concatenate(self.parent), np.concatenate(self.unit), np.concatenate(self.number)


@dataclass(frozen=True)
class _Labels:
    """Cost [USD/h], rate [1/s] and name in the history of some labels; none is worse in both than another."""

    cost: FloatArray
    rate: FloatArray
    name: IntArray

    def pareto(self) -> _Labels:
        """Those that no other beats, by rising cost and rate."""
        kept = _pareto(self.cost, self.rate)
        return _Labels(self.cost[kept], self.rate[kept], self.name[kept])


def _route_front(route: Sequence[_StageUnits], target: _Target) -> _Front | None:
    """The front of whole units, or of a first and a second stage that a request passes one after the other."""
    fronts = []
    for units in route:
        others = math.fsum(other.least_cost_per_rate for other in route if other is not units)
        front = _stage_front(units, target, others)
        if front is None:
            return None
        fronts.append(front)
    return fronts[0] if len(fronts) == 1 else _in_sequence(fronts[0], fronts[1])


def _stage_front(units: _StageUnits, target: _Target, others_per_rate: float) -> _StageFront | None:
    """The front of one stage: that of each kind, and of them all the best labels.

    `others_per_rate` is the cost per rate of the other stages that a request passes [USD/h per 1/s].
    """
    history = _History()
    by_kind = []
    for kind in [kind for kind in np.unique(units.kind) if kind >= 0] or [-1]:
        labels = _labels_of_kind(units.together_with(kind), target, others_per_rate, history)
        if labels is None:
            return None
        by_kind.append(labels)
    every = _Labels(
        np.concatenate([labels.cost for labels in by_kind]),
        np.concatenate([labels.rate for labels in by_kind]),
        np.concatenate([labels.name for labels in by_kind]),
    )
    return _StageFront(every.pareto(), history)


def _labels_of_kind(units: _StageUnits, target: _Target, others_per_rate: float, history: _History) -> _Labels | None:
    """Labels of units that go together, the cheapest per rate first."""
    demand = target.demand
    labels = _Labels(np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64))
    for j in np.argsort(units.cost / units.rate, kind="stable"):
        most = math.ceil(demand / units.rate[j] * (1.0 - _COST_ROUNDING))
        if len(labels.cost) * most > MAX_PAIRS:
            return None
        times = np.arange(1, most + 1)
        cost = labels.cost[:, None] + times * units.cost[j]
        rate = labels.rate[:, None] + times * units.rate[j]
        enough = np.minimum(rate, demand)
        least = cost + others_per_rate * enough + target.cost_per_rate * (demand - enough)
        before = rate - units.rate[j]
        row, column = np.nonzero((least <= target.most_cost) & (before < demand * (1.0 - _COST_ROUNDING)))
        if not len(row):
            continue
        if history.made + len(row) > 8 * MAX_LABELS:
            return None
        added = history.add(labels.name[row], int(units.index[j]), times[column])
        labels = _Labels(
            np.concatenate([labels.cost, cost[row, column]]),
            np.concatenate([labels.rate, np.minimum(rate[row, column], demand)]),
            np.concatenate([labels.name, added]),
        ).pareto()
    return labels


def _pareto(cost: FloatArray, rate: FloatArray) -> IntArray:
    """Indices of the labels that no other beats, by rising cost and rate."""
    order = np.lexsort((-rate, cost))
    best = np.maximum.accumulate(rate[order])
    rises = np.ones(len(order), dtype=bool)
    rises[1:] = rate[order][1:] > best[:-1]
    return np.asarray(order[rises])


def _in_sequence(first: _Front, second: _Front) -> _Front:
    """What two stages do one after the other: of every rate that one of them just carries, the cheapest of both."""
    rate = np.unique(np.concatenate([first.rate, second.rate]))
    rate = rate[rate <= min(first.rate[-1], second.rate[-1])]
    left, right = np.searchsorted(first.rate, rate), np.searchsorted(second.rate, rate)
    cost = first.cost[left] + second.cost[right]
    kept = _pareto(cost, rate)
    return _Front(cost[kept], rate[kept], left[kept], right[kept], (first, second))


def _side_by_side(first: _Front, second: _Front, target: _Target) -> _Front | None:
    """What two routes do beside one another."""
    if len(first.cost) * len(second.cost) > MAX_PAIRS:
        return None
    cost = first.cost[:, None] + second.cost[None, :]
    rate = np.minimum(first.rate[:, None] + second.rate[None, :], target.demand)
    left, right = np.nonzero(cost + target.cost_per_rate * (target.demand - rate) <= target.most_cost)
    kept = _pareto(cost[left, right], rate[left, right])
    left, right = left[kept], right[kept]
    return _Front(cost[left, right], rate[left, right], left, right, (first, second))
