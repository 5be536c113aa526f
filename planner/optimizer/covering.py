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
from dataclasses import replace

import numpy as np

from planner.core import FloatArray, IntArray
from planner.optimizer.evaluate_allocation import PartAnswer
from planner.optimizer.labels import COST_ROUNDING, Labels, LabelSearch, TooManyLabelsError
from planner.optimizer.layout import Layout
from planner.optimizer.load_split import proportional_rates
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Objective

FIRST_RISE, RISE = 0.01, 1.5
"""Share of the bound by which the limit of cost rises first, and how much more each time. A choice of speed."""
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
        self.room = layout.resource_most * (1.0 + _SAME)
        self.most_blocks = np.floor(layout.purchase_most / layout.purchase_block + _SAME)
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
        taken, values = total @ layout.takes, np.zeros(layout.columns)
        usd = np.zeros(len(taken))
        for resource, amount in enumerate(taken.tolist()):
            (usd[resource],), blocks = self._bought(resource, np.array([amount]), is_exact=False)
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
        chosen, total = np.zeros((1, 0), dtype=np.int64), Labels.empty_fleet(len(worth))
        together = LabelSearch(0.0, use, np.zeros(len(use)), worth, room, most)
        found = []
        for s in np.flatnonzero(self.demand > 0.0).tolist():
            pairs = layout.pair_slice == s
            units, rate = layout.pair_unit[pairs], np.minimum(layout.pair_rate[pairs], self.demand[s])
            of_others = float(self.least.sum() - self.least[s])
            search = LabelSearch(float(self.demand[s]), use[units], rate, worth, room, most - of_others)
            covers = search.covers(layout.stage[units], layout.channel[units], layout.unit_kind[units], gap)
            if math.isinf(most) and len(covers.rate):
                self.least[s] = float((covers.use @ worth).min()) - search.slack
            together.most_cost = most - float(self.least[s + 1 :].sum())
            total, left, right = together.joined(total, covers, least=True)
            if not len(left):
                return math.inf, None
            total = replace(total, name=np.arange(len(left))).unbeaten()
            chosen = np.column_stack([chosen[left], covers.name[right]])[total.name]
            found.append((s, units, search))
        usd = [self._bought(r, total.use[:, 1 + k], is_exact=True)[0] for k, r in enumerate(resources.tolist())]
        cost = total.use[:, 0] - self.surplus[~self.counted].sum() + sum(usd)
        same = np.flatnonzero(cost <= cost.min() + _SAME * abs(cost.min()))
        best = int(same[np.argmin((total.use @ worth)[same])])  # of equal cost that with most of its blocks free
        counts = np.zeros((len(self.demand), len(use)), dtype=np.int64)
        for (s, units, search), name in zip(found, chosen[best].tolist(), strict=True):
            counts[s, units] = search.counts(name)
        return float(cost[best]) - math.fsum(search.slack for _, _, search in found), counts

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
                need.max(), usd[:, None], usable, np.ones(1), np.full(1, math.inf), most_usd, most=most
            )
            try:
                mixes = search.chain(np.arange(len(usd)))
            except TooManyLabelsError:
                if is_exact:
                    raise
                return cost + beyond, blocks
            place = np.searchsorted(mixes.rate, need * (1.0 - _SAME))
            cost = np.append(mixes.use[:, 0], math.inf)[place]
            if place[-1] < len(mixes.name):
                blocks = search.counts(int(mixes.name[place[-1]])).astype(float)
        return cost + beyond, blocks
