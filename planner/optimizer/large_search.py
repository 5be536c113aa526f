"""From the relaxation of a large fleet problem to whole units, period by period."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.optimizer.large_bound import cheapest_purchase_prices, least_excess, proved_gap
from planner.optimizer.large_cover import CostedFleet, KnownPurchases, buy_fleet
from planner.optimizer.large_master import MasterSolution
from planner.optimizer.large_period import PeriodAnswer, PeriodProblem, PeriodProgram
from planner.optimizer.large_tables import UNSERVED_ABOVE, Tables

SHORTLIST_CLUSTERS = 16
"""Clusters of units that a period's first shortlist takes of each section. A search that fails doubles it.

A choice: beyond it the sum over slices of the cheapest price of the 64-slice study's instances changes by less than
0.1 %.
"""
SHORTLIST_COST_SHARE = 0.97
"""Share of the relaxation's cost whose clusters are on the shortlist of a period. A choice."""
PRICE_BLEND = 0.02
"""Share of the plain purchase price added when units are ranked: use counts where held resources are free. A choice."""
ROUND_UP_THRESHOLDS = (0.25, 0.75)
"""Parts of the smallest unit from which a rest is rounded up, besides a half. A choice."""
THREADS = 2
"""Periods solved at the same time, one solver each. A choice: the study of large fleets is about two cores."""
MAX_SIZES_PER_CLUSTER = 8
"""Units of one cluster on a shortlist where their rates are not proportional, evenly spread on a logarithmic scale.

A choice: each brings a row and a variable for every slice.
"""
MIN_SEARCH_S = 0.5
"""Least time for searching one period [s]: less finds nothing at a few hundred units (measured on the study's fleets).
Where there is not that much for all, the periods that cost most above the bound get it."""
MIN_GAP_SHARE = 1e-3
"""Part of the gap asked for below which the programs of periods are not refined further."""
PERIOD_GAP_SHARE = 0.3
"""Part of the gap asked for that the program of one period may leave."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Effort:
    """How one period is searched.

    Attributes:
        clusters: of units that its first shortlist takes of each section.
        time_limit_s: of branch and bound [s]; 0: none.
        gap: part of the bound that branch and bound may leave.
        threshold: of the rounding heuristic; None: none.
    """

    clusters: int
    time_limit_s: float = 0.0
    gap: float = 0.0
    threshold: float | None = None


@dataclass(frozen=True)
class _Neighbours:
    """Units on in the periods before and after [J]; None where starts cost nothing or that is not known yet."""

    before: FloatArray | None = None
    after: FloatArray | None = None


class LargeSearch:
    """Finds whole units period by period, and keeps the best fleet.

    Args:
        tables: of the problem.
        relaxed: its relaxation.
        deadline: of `time.monotonic` [s].
        relative_gap: stop when the fleet is proved to be this close to the best.
    """

    def __init__(self, tables: Tables, relaxed: MasterSolution, deadline: float, relative_gap: float) -> None:
        self.tables, self.relaxed = tables, relaxed
        self.deadline, self.relative_gap = deadline, relative_gap
        self.demand = _served_demand(tables, relaxed)
        self.held = _committed_of_relaxation(tables, relaxed.bought)
        self.spent = np.zeros((int(tables.cluster.max()) + 1, tables.periods))
        np.add.at(self.spent, tables.cluster, usd_spent(tables, relaxed))
        plain = tables.unit_usd[:, None] * tables.weights + tables.takes @ cheapest_purchase_prices(tables).limits
        self.price = relaxed.bound.unit_price + PRICE_BLEND * plain
        self.best: CostedFleet | None = None
        self.known: KnownPurchases = {}
        self.proved = relaxed.bound.by_period.copy()

    @property
    def bound(self) -> float:
        """What is proved so far: no fleet costs less [USD/h]."""
        return max(float(self.proved.sum()) + self.relaxed.bound.between_periods, 0.0)

    @property
    def is_done(self) -> bool:
        """Close enough, or no time left."""
        close = self.best is not None and proved_gap(self.best.cost, self.bound) <= self.relative_gap
        return close or time.monotonic() >= self.deadline

    def run(self, passes: int) -> None:
        """Round every period; then round again at other thresholds, then search, costliest periods first."""
        units = self._solve_every_period()
        if units is None:
            return
        self._keep_if_cheaper(units)
        self._resolve_periods(self._round_again)
        clusters, gap = SHORTLIST_CLUSTERS, PERIOD_GAP_SHARE
        for _ in range(passes):
            if self.is_done or self.best is None:
                return
            before = self.best.cost - self.bound
            self._resolve_periods(partial(self._branch_and_bound, clusters, gap * self.relative_gap))
            stuck = self.best.cost - self.bound >= before * (1.0 - 1e-3)
            if stuck and clusters > len(self.tables.group_seconds) and gap < MIN_GAP_SHARE:
                return
            clusters, gap = 2 * clusters, gap / 2.0

    def _solve_every_period(self) -> FloatArray | None:
        """Every period from scratch; one after the other where starts link them, from the one that asks for least."""
        tables = self.tables
        units = np.zeros((len(tables.unit_names), tables.periods))
        trough = int(self.demand.sum(axis=0).argmin())
        order = [(trough + step) % tables.periods for step in range(tables.periods)]
        together = 1 if tables.has_starts else THREADS
        for begin in range(0, tables.periods, together):
            neighbours = _Neighbours()
            if tables.has_starts and begin > 0:
                is_last = begin == tables.periods - 1
                neighbours = _Neighbours(units[:, order[begin - 1]], units[:, trough] if is_last else None)
            left = self.deadline - time.monotonic()
            share = min(max(left * together / (tables.periods - begin), MIN_SEARCH_S), left)
            gap = PERIOD_GAP_SHARE * self.relative_gap
            effort = _Effort(SHORTLIST_CLUSTERS, time_limit_s=share, gap=gap, threshold=0.5)
            solve = partial(self._solve_period, effort, neighbours, None)
            batch = order[begin : begin + together]
            for period, answer in zip(batch, _solve_together(solve, batch), strict=True):
                if answer is None:
                    return None
                units[:, period] = answer.units
                self.held += answer.extra
        return units

    def _keep_if_cheaper(self, units: FloatArray) -> bool:
        """Buy for these units; keep them if that is the cheapest fleet so far."""
        fleet = buy_fleet(self.tables, units, self.known)
        if fleet is None or (self.best is not None and fleet.cost >= self.best.cost):
            return False
        self.best = fleet
        self.held = _committed_of_fleet(self.tables, fleet.bought)
        return True

    def _resolve_periods(self, solve_again: Callable[[FloatArray, int, int], list[PeriodAnswer]]) -> None:
        """Solve the periods again, those first that cost most above the bound, and keep what is cheaper."""
        if self.best is None:
            return
        order = [int(period) for period in np.argsort(-self._excess_usd(self.best.units))]
        for begin in range(0, len(order), THREADS):
            if self.is_done:
                return
            batch = order[begin : begin + THREADS]
            solve = partial(solve_again, self.best.units, len(order) - begin)
            for answers, period in zip(_solve_together(solve, batch), batch, strict=True):
                for answer in answers:
                    units = self.best.units.copy()
                    units[:, period] = answer.units
                    self._keep_if_cheaper(units)

    def _round_again(self, units: FloatArray, _: int, period: int) -> list[PeriodAnswer]:
        """The cheapest of several roundings."""
        neighbours = self._neighbours(units, period)
        answers = [
            self._solve_period(_Effort(clusters, threshold=threshold), neighbours, None, period)
            for clusters in (SHORTLIST_CLUSTERS, 2 * SHORTLIST_CLUSTERS)
            for threshold in ROUND_UP_THRESHOLDS
            if not self.is_done
        ]
        return sorted((answer for answer in answers if answer is not None), key=lambda answer: answer.cost)[:1]

    def _branch_and_bound(
        self, clusters: int, gap: float, units: FloatArray, left: int, period: int
    ) -> list[PeriodAnswer]:
        """Branch and bound, starting from what there is."""
        neighbours = self._neighbours(units, period)
        remaining = self.deadline - time.monotonic()
        time_limit_s = min(max(remaining * THREADS / left, MIN_SEARCH_S), remaining) / 2.0
        proving = self._raise_bound(period, time_limit_s, gap, units[:, period])
        effort = _Effort(clusters, time_limit_s=time_limit_s, gap=gap)
        answers = [self._solve_period(effort, neighbours, units[:, period], period)]
        if not self.tables.deferrable.any():
            answers = [proving, *answers]
        return [answer for answer in answers if answer is not None]

    def _raise_bound(self, period: int, time_limit_s: float, gap: float, known: FloatArray) -> PeriodAnswer | None:
        """Raise what this period proves: its part of the Lagrangian relaxation with whole units and blocks.

        First roughly over a shortlist; then over all units that a solution as good as that could contain: one whose
        least excess over the bound is above that of the solution cannot be in a better one (reduced-cost fixing).
        """
        tables, bound = self.tables, self.relaxed.bound
        weight = float(tables.weights[period])
        starts = bound.starts[period] - bound.starts[(period + 1) % tables.periods]
        period_problem = PeriodProblem(
            period,
            np.where(tables.deferrable, tables.amounts[:, period], tables.demand[:, period]),
            np.flatnonzero((tables.low > 0.0) | (known > 0.0) | self._shortlist(period, SHORTLIST_CLUSTERS)),
            np.zeros(len(tables.purchases)),
            credit=-tables.start_usd * starts,
            incumbent=known,
            may_commit=True,
            committed_usd=bound.purchase_gain[:, period],
            worth=bound.worth.min(axis=1),
        )
        gap_usd = gap * max(bound.cost, 0.0)
        program = PeriodProgram(tables, period_problem)
        short = program.round_units(self.deadline) or program.solve(time_limit_s / 2.0, gap_usd)
        if short is None:
            return None
        excess = short.cost * weight - bound.by_period[period]
        units = np.flatnonzero((least_excess(tables, bound, period) <= excess * (1.0 + 1e-6)) | (tables.low > 0.0))
        period_problem = replace(period_problem, units=units, incumbent=short.units)
        full = PeriodProgram(tables, period_problem).solve(time_limit_s, gap_usd)
        if full is None:
            return short
        self.proved[period] = max(self.proved[period], min(short.cost, full.bound) * weight)
        return full if full.cost < short.cost else short

    def _neighbours(self, units: FloatArray, period: int) -> _Neighbours:
        """Units of a fleet in the periods beside one."""
        if not self.tables.has_starts:
            return _Neighbours()
        return _Neighbours(units[:, period - 1], units[:, (period + 1) % self.tables.periods])

    def _excess_usd(self, units: FloatArray) -> FloatArray:
        """What each period's units cost above what its slices are worth, at the bound's prices [T]."""
        bound = self.relaxed.bound
        excess: FloatArray = (bound.unit_price * units).sum(axis=0) - (bound.routes.price * self.demand).sum(axis=0)
        return excess

    def _solve_period(
        self, effort: _Effort, neighbours: _Neighbours, incumbent: FloatArray | None, period: int
    ) -> PeriodAnswer | None:
        """Solve one period; a shortlist on which nothing is found is doubled until it holds every cluster.

        `incumbent` are the units on in a solution that is known [J].
        """
        tables = self.tables
        gap_usd = effort.gap * max(self.relaxed.bound.cost, 0.0)
        before, after = neighbours.before, neighbours.after
        credit = None
        if tables.has_starts and after is None:
            credit = tables.start_usd * self.relaxed.bound.starts[(period + 1) % tables.periods]
        always = tables.low > 0.0
        for known in (before, after, incumbent):
            always = always if known is None else always | (known > 0.0)
        period_problem = PeriodProblem(
            period, self.demand[:, period], np.empty(0, np.int64), self.held, before, after, credit
        )
        clusters, time_limit_s = effort.clusters, effort.time_limit_s
        while True:
            units = np.flatnonzero(always | self._shortlist(period, clusters))
            program = PeriodProgram(tables, replace(period_problem, units=units, incumbent=incumbent))
            answer = None if effort.threshold is None else program.round_units(self.deadline, effort.threshold)
            if answer is None and time_limit_s > 0.0:
                answer = program.solve(time_limit_s, gap_usd)
            left = self.deadline - time.monotonic()
            is_complete = clusters > len(tables.group_seconds) and period_problem.may_commit
            if answer is not None or min(left, time_limit_s) <= 0.0 or is_complete:
                return answer
            clusters, time_limit_s = 2 * clusters, left / 2.0
            period_problem = replace(period_problem, may_commit=True)

    def _shortlist(self, period: int, count: int) -> BoolArray:
        """Units of the clusters that together serve the slices cheapest, and of those the relaxation spends most on."""
        tables = self.tables
        count_of_all = int(tables.cluster.max()) + 1
        demand = self.demand[:, period]
        chosen: set[int] = set()
        for section in tables.sections:
            each = np.minimum(tables.seconds[section.units] * self.price[section.units, period][:, None], 1e30)
            costs = np.full((count_of_all, len(demand)), 1e30)
            np.minimum.at(costs, tables.cluster[section.units], each)
            members = np.unique(tables.cluster[section.units])
            chosen |= {int(members[row]) for row in greedy_cover(costs[members] * demand, count)}
        spent = self.spent[:, period]
        order = np.argsort(-spent)
        used = order[: int(np.searchsorted(np.cumsum(spent[order]), SHORTLIST_COST_SHARE * spent.sum())) + 1]
        chosen |= {int(cluster) for cluster in used[:count] if spent[cluster] > 0.0}
        return self._units_of_clusters(chosen, demand)

    def _units_of_clusters(self, clusters: set[int], demand: FloatArray) -> BoolArray:
        """Units of some clusters: no size larger than the smallest that could serve all there is, and not too many."""
        tables = self.tables
        listed = np.zeros(len(tables.unit_names), dtype=bool)
        for cluster in clusters:
            members = np.flatnonzero(tables.cluster == cluster)
            members = members[np.argsort(tables.size[members])]
            seconds = np.where(tables.seconds[members] < UNSERVED_ABOVE, tables.seconds[members], 0.0)
            enough = np.flatnonzero(seconds @ demand <= 1.0)
            members = members[: enough[0] + 1] if len(enough) else members
            if len(np.unique(tables.group[members])) > MAX_SIZES_PER_CLUSTER:
                steps = np.geomspace(1.0, len(members), MAX_SIZES_PER_CLUSTER).round().astype(np.int64) - 1
                members = members[np.unique(steps)]
            listed[members] = True
        return listed


def _solve_together(work: Callable[[int], Result], periods: list[int]) -> list[Result]:
    """Solve some periods at the same time: the solver does not hold the interpreter's lock while it runs."""
    if len(periods) == 1:
        return [work(periods[0])]
    with ThreadPoolExecutor(len(periods)) as pool:
        return list(pool.map(work, periods))


def greedy_cover(costs: FloatArray, count: int) -> list[int]:
    """Rows that together make the sum over columns of the cheapest entry small, one after the other.

    The greedy method for uncapacitated facility location without opening costs.

    Source: G. Cornuejols, M. L. Fisher and G. L. Nemhauser, Management Science 23(8) (1977), 789-810.

    Args:
        costs: rows x columns.
        count: most rows chosen.

    Returns:
        Indices of rows, in the order in which they were chosen.

    >>> greedy_cover(np.array([[4.0, 4.0], [1.0, 9.0], [9.0, 1.0]]), 2)
    [0, 1]
    """
    best = np.full(costs.shape[1], np.inf)
    chosen: list[int] = []
    for _ in range(min(count, len(costs))):
        total = np.minimum(costs, best).sum(axis=1)
        total[chosen] = np.inf
        chosen.append(int(total.argmin()))
        best = np.minimum(best, costs[chosen[-1]])
    return chosen


def _served_demand(tables: Tables, relaxed: MasterSolution) -> FloatArray:
    """What each period serves [1/s; S, T]: work that may wait is done when the relaxation does it."""
    demand = tables.demand.copy()
    amounts = tables.amounts
    for index in np.flatnonzero(tables.deferrable):
        shares = np.zeros(tables.periods)
        for route, share in relaxed.routes:
            if route.slice_ == index:
                shares[route.period] += share
        demand[index] = amounts[index] * shares / shares.sum() if shares.sum() > 0.0 else demand[index]
    return demand


def _committed_of_relaxation(tables: Tables, bought: FloatArray) -> FloatArray:
    """Committed purchases of the relaxation, rounded to whole blocks."""
    held = np.zeros(len(tables.purchases))
    for index, option in enumerate(tables.purchases):
        if option.purchase.committed:
            blocks = np.round(bought[index, 0] / option.purchase.block)
            held[index] = min(max(blocks * option.purchase.block, option.low), option.high)
    return held


def _committed_of_fleet(tables: Tables, bought: FloatArray) -> FloatArray:
    """What is committed to of each purchase; 0 for the others."""
    keep = np.array([option.purchase.committed for option in tables.purchases], dtype=bool)
    return np.where(keep, bought[:, 0], 0.0) if len(keep) else np.zeros(0)


def usd_spent(tables: Tables, relaxed: MasterSolution) -> FloatArray:
    """What the relaxation spends on each unit in each period, at its prices.

    Args:
        tables: of the problem.
        relaxed: its relaxation.

    Returns:
        [USD/h of horizon mean; J, T].
    """
    spent = np.zeros((len(tables.unit_names), tables.periods))
    for route, share in relaxed.routes:
        period = route.period
        rate_per_s = share * tables.amounts[route.slice_, period]
        for unit in (route.first, route.second):
            if unit >= 0:
                used = rate_per_s * tables.seconds[unit, route.slice_]
                spent[unit, period] += used * (relaxed.bound.unit_price[unit, period] + 1e-12)
    return spent
