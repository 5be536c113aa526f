"""Streams of requests by themselves: a covering knapsack for each, solved exactly by label setting.

A unit j has a rate r_j and a cost c_j; the least cost that covers the demand d is a covering knapsack (S. Martello and
P. Toth 1990, "Knapsack Problems", ch. 3). With prefill and decode units it is one for each stage, joined by the rate
that passes from one to the other:

    least  C_whole(x) + sum_channel cover(x_channel)     with  x + sum_channel x_channel >= d,
    where  cover(y) = C_first(y) + C_second(y),  C_stage(y) = least sum c_j n_j with sum r_j n_j >= y

Labels are set for each stage (`planner.optimizer.labels`).

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
from contextlib import suppress

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.evaluate_allocation import PartAnswer
from planner.optimizer.labels import COST_ROUNDING, LabelSearch, TooManyLabelsError, unbeaten
from planner.optimizer.layout import Layout
from planner.optimizer.load_split import proportional_rates
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Objective

FIRST_RISE, RISE = 0.01, 1.5
"""Share of the bound by which the limit of cost rises first, and how much more each time. A choice of speed."""
_USD = np.array([[1.0], [math.inf], [1.0]])
"""Columns of labels that cost something and take nothing."""
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
    with suppress(TooManyLabelsError):
        cover.run(gap, is_bound)
    bound = cover.bound if is_bound else 0.0
    is_none = math.isinf(bound) or bound > cover.most
    values = None if is_none else cover.values
    return PartAnswer(values, bound) if is_none or values is not None else None


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
        self.price = layout.cheapest(layout.purchase_usd_per_hour / layout.purchase_usable)
        self.surplus = np.zeros(len(self.price))
        self.room = layout.resource_most * (1.0 + _SAME)
        self.most_blocks = np.floor(layout.purchase_most / layout.purchase_block + _SAME)
        self.counted = np.zeros(len(self.price), dtype=bool)
        self.demand = layout.demand_per_s.max(axis=1)
        self.least = np.zeros(len(self.demand))
        self.cost = math.inf
        self.counts: IntArray | None = None
        self.blocks = np.zeros(len(layout.purchase_resource))

    @property
    def values(self) -> FloatArray | None:
        """Of the best fleet, by column; None: there is none yet."""
        if self.counts is None:
            return None
        layout, values = self.layout, np.zeros(self.layout.columns)
        values[layout.column.blocks] = self.blocks[:, None]
        values[layout.column.units] = self.counts.sum(axis=0)[:, None]
        for s, units in enumerate(self.counts):
            for t in range(layout.periods):
                values[layout.column.rates[:, t]] += proportional_rates(layout, units, s, t)
        layout.fill_in(values)
        return values

    def run(self, gap: float, is_bound: bool) -> None:
        """Count more resources, and look among dearer fleets, until the best is proved to be within the gap.

        Without a bound to prove only the first fleet is looked for.
        """
        most, rise, is_scarce = math.inf, FIRST_RISE, self.room < math.inf
        is_scarce[self.layout.purchase_resource[self.most_blocks < math.inf]] = True
        while True:
            cost, counts = self._cheapest(most, gap)
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
        program, dual = build_program(self.layout, Objective.MIN_COST), np.zeros(len(self.price))
        relaxed = relax(program)
        if relaxed is None:
            return False
        for rows, duals in program.by_constraint(relaxed.row_duals):
            if rows.constraint in ("hold_resource", "within_resource"):
                np.subtract.at(dual, rows.subject, duals)
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
        taken, blocks, usd = total @ layout.takes, np.zeros_like(self.blocks), np.zeros(len(self.price))
        for resource in np.flatnonzero((taken > 0.0) | (layout.resource_least > 0.0)).tolist():
            amount = taken[resource : resource + 1]
            (usd[resource],), mine = self._bought(resource, amount, is_exact=False)
            blocks[layout.purchase_resource == resource] = mine
        cost = float(layout.usd_per_hour @ total) + math.fsum(usd.tolist())
        if self.counts is None or cost < self.cost:
            self.counts, self.blocks, self.cost = counts, blocks, cost
        is_wrong = (usd > (self.price * taken - self.surplus) * (1.0 + _SAME)) & ~self.counted
        self.counted |= is_wrong
        return bool(is_wrong.any())

    def _cheapest(self, most: float, gap: float) -> tuple[float, IntArray | None]:
        """The least cost, and its units, shape (slices, units), among those whose parts cost no more than so much.

        Without a limit it is kept what each slice costs by itself: no fleet of it costs less. There units may be dearer
        than the least cost by the gap.
        """
        layout, resources = self.layout, np.flatnonzero(self.counted)
        most += float(self.surplus.sum())
        use = layout.usd_per_hour + layout.takes @ np.where(self.counted, 0.0, self.price)
        use = np.column_stack([use, layout.takes[:, resources]])
        worth, room = np.append(1.0, self.price[resources]), np.append(math.inf, self.room[resources])
        columns = np.stack([worth, room, np.where(worth > 0.0, worth, 1.0)])
        size = use @ columns[2]
        share = use / np.where(size > 0.0, size, 1.0)[:, None]
        alike = (
            np.unique(share.round(9), axis=0, return_inverse=True)[1].ravel() if len(resources) else 0 * layout.stage
        )
        codes = np.column_stack([layout.unit_kind, alike])
        together = LabelSearch(0.0, columns, use[:0], np.zeros(0), codes[:0], most)
        found, labels = [], together.empty_fleet
        for s in np.flatnonzero(self.demand > 0.0).tolist():
            pairs = layout.pair_slice == s
            units, rate = layout.pair_unit[pairs], np.minimum(layout.pair_rate[pairs], self.demand[s])
            of_others = float(self.least.sum() - self.least[s])
            search = LabelSearch(float(self.demand[s]), columns, use[units], rate, codes[units], most - of_others)
            covers = search.covers(layout.stage[units], layout.channel[units], gap)
            if math.isinf(most) and len(covers):
                self.least[s] = float((covers[:, 2:-1] @ worth).min()) - search.slack
            together.most_cost = most - float(self.least[s + 1 :].sum())
            found.append((s, units, search, covers[:, -1].copy()))
            covers[:, -1] = np.arange(len(covers))
            labels = unbeaten(together.joined(labels, covers, least=True))
            if not len(labels):
                return math.inf, None
        usd = [self._bought(r, labels[:, 3 + k], is_exact=True)[0] for k, r in enumerate(resources.tolist())]
        cost = labels[:, 2] - self.surplus[~self.counted].sum() + sum(usd)
        same = np.flatnonzero(cost <= cost.min() + _SAME * abs(cost.min()))
        best = same[np.argmin((labels[:, 2:-1] @ worth)[same])]  # of equal cost that with most of its blocks free
        counts, label = np.zeros((len(self.demand), len(use)), dtype=np.int64), int(labels[best, -1])
        for s, units, search, names in reversed(found):
            label, of_slice = together.made[label, :2].astype(int).tolist()
            counts[s, units] = search.counts(names[of_slice])
        return float(cost[best]) - math.fsum(search.slack for _, _, search, _ in found), counts

    def _bought(self, resource: int, taken: FloatArray, *, is_exact: bool) -> tuple[FloatArray, FloatArray]:
        """The least cost of amounts of a resource, infinite where one is not to be had [USD/h]; and blocks of the last.

        Pinned ones are bought too. Of too many ways to buy that of one purchase alone, unless it is to be exact.
        """
        layout, mine = self.layout, self.layout.purchase_resource == resource
        usable, usd, most = layout.purchase_usable[mine], layout.purchase_usd_per_hour[mine], self.most_blocks[mine]
        beyond = np.where(taken > self.room[resource], math.inf, 0.0)
        if not len(usable):
            return beyond, usable
        pinned = (usable / layout.purchase_block[mine]).min() * layout.resource_least[resource]
        need = np.maximum(taken, pinned)
        alone = np.ceil(need[:, None] / usable - _SAME)
        of_each = alone * np.where(alone > most, math.inf, usd)
        cost, blocks = of_each.min(axis=1), np.where(np.arange(len(usd)) == of_each[-1].argmin(), alone[-1], 0.0)
        if len(usd) > 1:
            most_usd = float(cost.max()) * (1.0 + COST_ROUNDING)
            search = LabelSearch(
                float(need.max()), _USD, usd[:, None], usable, np.repeat([[-1, 0]], len(usd), axis=0), most_usd, most
            )
            try:
                mixes = search.front(np.argsort(usd / usable, kind="stable"))
            except TooManyLabelsError:
                if is_exact:
                    raise
                return cost + beyond, blocks
            place = np.searchsorted(mixes[:, 1], need * (1.0 - _SAME))
            cost = np.append(mixes[:, 2], math.inf)[place]
            if place[-1] < len(mixes):
                blocks = search.counts(mixes[place[-1], -1]).astype(float)
        return cost + beyond, blocks
