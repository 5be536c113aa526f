"""Least cost of large fleet problems: a bound by column generation, fleets by an integer program for each period.

For problems whose routing variables (units x slices x periods) are too many to be written down. What links the periods
(committed purchases, starts, work that may wait) is settled by the relaxation first; then every period is an integer
program over a shortlist of units that are cheap at the relaxation's prices. What is found is a fleet that meets every
limit, and how far it can be from the best is known from the bound. Nothing is ever called proven that is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from planner.core import InputError
from planner.optimizer.large_bound import first_prices, least_excess
from planner.optimizer.large_cover import Fleet, Known, fleet_of, routed
from planner.optimizer.large_master import Relaxed, cannot_serve, relax
from planner.optimizer.large_period import PeriodAnswer, PeriodProgram, Question
from planner.optimizer.large_tables import BEYOND, Floats, Tables, tables_of
from planner.optimizer.types import FEASIBILITY_TOLERANCE, FleetProblem, Stage

SHARE_FOR_BOUND = 0.4
"""Most of the time that the relaxation may take; the rest is for whole units."""
SHARE_FOR_SEARCH = 0.97
"""Part of the time after which the search stops, so that rates can be worked out within the limit."""
GROUPS = 16
"""Kin of units that a period's first shortlist takes of each section: beyond it the sum over slices of the cheapest
price of the 64-slice study's instances changes by less than 0.1 %. Tries that fail double it."""
LOAD_KEPT = 0.97
"""Share of the relaxation's cost whose groups are on the shortlist of a period."""
PRICE_BLEND = 0.02
"""Share of the plain purchase price added when units are ranked: thrift counts where held resources are free."""
THRESHOLDS = (0.25, 0.75)
"""Further places at which a dive rounds up, besides a half."""
THREADS = 2
"""Periods solved at the same time, one solver each: the two cores that the promise of the study is about."""
SIZES = 8
"""Units of one kin on a shortlist where their rates are not proportional, spread evenly on a logarithmic scale: each
then brings a row and a variable for every slice."""
LEAST_SEARCH_S = 0.5
"""Least time for searching one period [s]: less finds nothing at a few hundred units (measured on the study's fleets).
Where there is not that much for all, the periods that cost most above the bound get it."""
LEAST_GAP = 1e-3
"""Part of the gap asked for below which the programs of periods are not refined further."""
PERIOD_GAP = 0.3
"""Part of the gap asked for that the program of one period may leave."""


@dataclass(frozen=True)
class LargeAnswer:
    """The best fleet found, and what is proved about it.

    Attributes:
        units: by unit, how many are on in each period; only units in use.
        bought: by resource and purchase, how much is held in each period; only what is bought.
        routed_per_s: by unit and slice, the rate in each period [1/s].
        cost_usd_per_hour: mean over the horizon, recomputed from whole numbers [USD/h]; infinite: no fleet was found in
        time. lower_bound: no fleet costs less [USD/h]. proven: the fleet costs at most the gap asked for more than the
        bound.
    """

    units: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bought: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    routed_per_s: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    cost_usd_per_hour: float = np.inf
    lower_bound: float = 0.0
    proven: bool = False

    @property
    def has_fleet(self) -> bool:
        """Whether a fleet was found."""
        return bool(np.isfinite(self.cost_usd_per_hour))

    @property
    def gap(self) -> float:
        """Proved (cost - best possible) / cost; infinite without a fleet."""
        return gap_between(self.cost_usd_per_hour, self.lower_bound)


def gap_between(cost: float, bound: float) -> float:
    """Largest share of `cost` that could be saved if nothing costs less than `bound`.

    >>> gap_between(200.0, 199.0)
    0.005
    """
    if not np.isfinite(cost):
        return np.inf
    return max(cost - bound, 0.0) / cost if cost > 0.0 else 0.0


def supports(problem: FleetProblem) -> bool:
    """Whether `solve_large` can answer: every slice has a demand, and nothing asks for what links units in other ways.

    Not supported: `max_groups`, steady units over several periods, and pinned resources that are not bought.
    """
    return (
        problem.max_groups is None
        and bool(problem.units)
        and all(one.demand_per_s is not None for one in problem.slices)
        and not (len(problem.periods) > 1 and any(unit.steady for unit in problem.units))
        and all(one.purchases or one.at_least == 0.0 for one in problem.resources)
    )


def solve_large(problem: FleetProblem, *, time_limit_s: float, relative_gap: float) -> LargeAnswer | None:
    """Least cost of the whole demand; None: proved that the limits do not allow it.

    Args:
        problem: one that `supports` accepts.
        time_limit_s: for everything [s]; exceeded by at most one linear program and the last bookkeeping.
        relative_gap: stop when the fleet is proved to be this close to the best.

    Raises:
        InputError: the problem is not supported, or a limit is not positive.
    """
    if not supports(problem):
        raise InputError("problem", "large", "has max_groups, steady units, or a slice without demand", "use solve")
    if time_limit_s <= 0.0:
        raise InputError("time_limit_s", time_limit_s, "must be above 0")
    begin = time.monotonic()
    tables = tables_of(problem)
    relaxed = relax(tables, begin + SHARE_FOR_BOUND * time_limit_s)
    if relaxed is None:
        return LargeAnswer()
    budget = np.inf if problem.budget_usd_per_hour is None else problem.budget_usd_per_hour
    affordable = budget * (1.0 + FEASIBILITY_TOLERANCE)
    is_short = relaxed.shortfall > FEASIBILITY_TOLERANCE
    if relaxed.bound.cost > affordable or (is_short and cannot_serve(tables, begin + time_limit_s)):
        return None
    search = _search(problem, tables, relaxed, (begin, begin + SHARE_FOR_SEARCH * time_limit_s), relative_gap)
    is_whole = search is not None and search.relaxed is relaxed
    bound = max(search.bound if search is not None and is_whole else relaxed.bound.cost, 0.0)
    if search is None or search.best is None or search.best.cost > affordable:
        return None if bound > affordable else LargeAnswer(lower_bound=bound)
    return _answer(search.tables, search.demand, search.best, bound, relative_gap)


def _search(
    problem: FleetProblem, tables: Tables, relaxed: Relaxed, times: tuple[float, float], relative_gap: float
) -> _Search | None:
    """The finished search among units of one kind; None: those cannot serve the demand."""
    alike = of_one_kind(problem, tables, relaxed)
    if alike is not problem:
        tables = tables_of(alike)
        smaller = relax(tables, times[0] + 2.0 * SHARE_FOR_BOUND * (times[1] - times[0]))
        if smaller is None or smaller.shortfall > FEASIBILITY_TOLERANCE:
            return None
        relaxed = smaller
    search = _Search(tables, relaxed, times[1], relative_gap)
    search.run()
    return search


def of_one_kind(problem: FleetProblem, tables: Tables, relaxed: Relaxed) -> FleetProblem:
    """The problem with one kind of units in each stage of each channel; the same object where there is no choice.

    Chosen is a pinned kind, else that on which the relaxation, which may mix kinds, spends most. The bound of the
    relaxation holds for every choice; that of the smaller problem does not, and is not used.
    """
    load = _load(tables, relaxed).sum(axis=1)
    spent: dict[tuple[Stage, str], dict[str, float]] = {}
    for one, usd in zip(problem.units, load, strict=True):
        if one.stage is not Stage.WHOLE and one.kind:
            of_kind = spent.setdefault((one.stage, one.channel), {})
            of_kind[one.kind] = of_kind.get(one.kind, 0.0) + (np.inf if one.at_least > 0 else float(usd))
    kept = {place: max(sorted(kinds), key=lambda kind: kinds[kind]) for place, kinds in spent.items()}
    if all(len(kinds) == 1 for kinds in spent.values()):
        return problem
    units = tuple(one for one in problem.units if one.kind in ("", kept.get((one.stage, one.channel), one.kind)))
    return problem.model_copy(update={"units": units})


def _answer(tables: Tables, demand: Floats, fleet: Fleet, bound: float, relative_gap: float) -> LargeAnswer:
    bought: dict[str, dict[str, tuple[float, ...]]] = {}
    for buying, amounts in zip(tables.buyings, fleet.bought, strict=True):
        if amounts.any():
            row = bought.setdefault(tables.resource_names[buying.resource], {})
            row[buying.purchase.name] = tuple(float(one) for one in amounts)
    return LargeAnswer(
        units={
            tables.unit_names[unit]: tuple(int(count) for count in fleet.units[unit])
            for unit in np.flatnonzero(fleet.units.any(axis=1))
        },
        bought=bought,
        routed_per_s=routed(tables, demand, fleet.units),
        cost_usd_per_hour=fleet.cost,
        lower_bound=min(bound, fleet.cost),
        proven=gap_between(fleet.cost, bound) <= relative_gap,
    )


Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


Result = TypeVar("Result")


class _Search:
    """From the relaxation to whole units, period by period, keeping the best fleet."""

    def __init__(self, tables: Tables, relaxed: Relaxed, deadline: float, relative_gap: float) -> None:
        self.tables, self.relaxed = tables, relaxed
        self.deadline, self.relative_gap = deadline, relative_gap
        self.demand = _demand(tables, relaxed)
        self.held = _held(tables, relaxed.bought)
        self.load = np.zeros((int(tables.kin.max()) + 1, tables.periods))
        np.add.at(self.load, tables.kin, _load(tables, relaxed))
        plain = tables.unit_usd[:, None] * tables.weights + tables.takes @ first_prices(tables).limits
        self.price = relaxed.bound.unit_price + PRICE_BLEND * plain
        self.best: Fleet | None = None
        self.known: Known = {}
        self.proved = relaxed.bound.by_period.copy()

    @property
    def bound(self) -> float:
        """What is proved so far: no fleet costs less [USD/h]."""
        return max(float(self.proved.sum()) + self.relaxed.bound.rest, 0.0)

    @property
    def is_done(self) -> bool:
        """Close enough, or no time left."""
        close = self.best is not None and gap_between(self.best.cost, self.bound) <= self.relative_gap
        return close or time.monotonic() >= self.deadline

    def run(self) -> None:
        """Round every period; then round again in other ways, then search, where it costs most too much."""
        units = self._first_pass()
        if units is None:
            return
        self._keep(units)
        self._improve(self._round_again)
        groups, gap = GROUPS, PERIOD_GAP
        while not self.is_done and self.best is not None:
            before = self.best.cost - self.bound
            self._improve(partial(self._branch, groups, gap * self.relative_gap))
            stuck = self.best.cost - self.bound >= before * (1.0 - 1e-3)
            if stuck and groups > len(self.tables.group_seconds) and gap < LEAST_GAP:
                return
            groups, gap = 2 * groups, gap / 2.0

    def _first_pass(self) -> Floats | None:
        """Every period from scratch; one after the other where starts link them, from the one that asks for least."""
        tables = self.tables
        units = np.zeros((len(tables.unit_names), tables.periods))
        trough = int(self.demand.sum(axis=0).argmin())
        order = [(trough + step) % tables.periods for step in range(tables.periods)]
        together = 1 if tables.has_starts else THREADS
        for begin in range(0, tables.periods, together):
            before = after = None
            if tables.has_starts and begin > 0:
                before = units[:, order[begin - 1]]
                after = units[:, trough] if begin == tables.periods - 1 else None
            left = self.deadline - time.monotonic()
            share = min(max(left * together / (tables.periods - begin), LEAST_SEARCH_S), left)
            gap = PERIOD_GAP * self.relative_gap
            look = partial(self._period, GROUPS, share, gap, before, after, None, 0.5)
            batch = order[begin : begin + together]
            for period, answer in zip(batch, _both(look, batch), strict=True):
                if answer is None:
                    return None
                units[:, period] = answer.units
                self.held += answer.extra
        return units

    def _keep(self, units: Floats) -> bool:
        """Buy for these units; keep them if that is the cheapest fleet so far."""
        fleet = fleet_of(self.tables, units, self.known)
        if fleet is None or (self.best is not None and fleet.cost >= self.best.cost):
            return False
        self.best = fleet
        self.held = _committed(self.tables, fleet.bought)
        return True

    def _improve(self, way: Callable[[Floats, int, int], list[PeriodAnswer]]) -> None:
        """Solve the periods again, those first that cost most above the bound, and keep what is cheaper."""
        if self.best is None:
            return
        order = [int(period) for period in np.argsort(-self._excess(self.best.units))]
        for begin in range(0, len(order), THREADS):
            if self.is_done:
                return
            batch = order[begin : begin + THREADS]
            found = _both(partial(way, self.best.units, len(order) - begin), batch)
            for period, answers in zip(batch, found, strict=True):
                for answer in answers:
                    units = self.best.units.copy()
                    units[:, period] = answer.units
                    self._keep(units)

    def _round_again(self, units: Floats, _: int, period: int) -> list[PeriodAnswer]:
        """The cheapest of several dives."""
        before, after = self._neighbours(units, period)
        found = [
            self._period(groups, 0.0, 0.0, before, after, None, threshold, period)
            for groups in (GROUPS, 2 * GROUPS)
            for threshold in THRESHOLDS
            if not self.is_done
        ]
        return sorted((one for one in found if one is not None), key=lambda one: one.cost)[:1]

    def _branch(self, groups: int, gap: float, units: Floats, left: int, period: int) -> list[PeriodAnswer]:
        """Branch and bound, starting from what there is."""
        before, after = self._neighbours(units, period)
        remaining = self.deadline - time.monotonic()
        time_limit_s = min(max(remaining * THREADS / left, LEAST_SEARCH_S), remaining) / 2.0
        other = self._prove(period, time_limit_s, gap, units[:, period])
        answer = self._period(groups, time_limit_s, gap, before, after, units[:, period], None, period)
        fits = [] if self.tables.deferrable.any() else [other]
        return [one for one in (*fits, answer) if one is not None]

    def _prove(self, period: int, time_limit_s: float, gap: float, known: Floats) -> PeriodAnswer | None:
        """Raise what this period proves: its part of the Lagrangian relaxation with whole units and blocks.

        First roughly over a shortlist; then over all units that a solution as good as that could contain: one whose
        least excess over the bound is above that of the solution cannot be in a better one (reduced-cost fixing).
        """
        tables, bound = self.tables, self.relaxed.bound
        weight = float(tables.weights[period])
        starts = bound.starts[period] - bound.starts[(period + 1) % tables.periods]
        question = Question(
            period,
            np.where(tables.deferrable, tables.amounts[:, period], tables.demand[:, period]),
            np.flatnonzero((tables.low > 0.0) | (known > 0.0) | self._shortlist(period, GROUPS)),
            np.zeros(len(tables.buyings)),
            credit=-tables.start_usd * starts,
            incumbent=known,
            may_commit=True,
            committed_usd=bound.committed[:, period],
            worth=bound.worth.min(axis=1),
        )
        gap_usd = gap * max(bound.cost, 0.0)
        program = PeriodProgram(tables, question)
        short = program.dive(self.deadline) or program.solve(time_limit_s / 2.0, gap_usd)
        if short is None:
            return None
        excess = short.cost * weight - bound.by_period[period]
        units = np.flatnonzero((least_excess(tables, bound, period) <= excess * (1.0 + 1e-6)) | (tables.low > 0.0))
        question = replace(question, units=units, incumbent=short.units)
        full = PeriodProgram(tables, question).solve(time_limit_s, gap_usd)
        if full is None:
            return short
        self.proved[period] = max(self.proved[period], min(short.cost, full.bound) * weight)
        return full if full.cost < short.cost else short

    def _neighbours(self, units: Floats, period: int) -> tuple[Floats | None, Floats | None]:
        if not self.tables.has_starts:
            return None, None
        return units[:, period - 1], units[:, (period + 1) % self.tables.periods]

    def _excess(self, units: Floats) -> Floats:
        """What each period's units cost above what its slices are worth, at the bound's prices [T]."""
        bound = self.relaxed.bound
        excess: Floats = (bound.unit_price * units).sum(axis=0) - (bound.route_price * self.demand).sum(axis=0)
        return excess

    def _period(
        self,
        groups: int,
        time_limit_s: float,
        gap: float,
        before: Floats | None,
        after: Floats | None,
        incumbent: Floats | None,
        threshold: float | None,
        period: int,
    ) -> PeriodAnswer | None:
        """Solve one period; a shortlist on which nothing is found is doubled until it holds every group."""
        tables = self.tables
        gap *= max(self.relaxed.bound.cost, 0.0)
        credit = None
        if tables.has_starts and after is None:
            credit = tables.start_usd * self.relaxed.bound.starts[(period + 1) % tables.periods]
        always = tables.low > 0.0
        for known in (before, after, incumbent):
            always = always if known is None else always | (known > 0.0)
        question = Question(period, self.demand[:, period], np.empty(0, np.int64), self.held, before, after, credit)
        while True:
            units = np.flatnonzero(always | self._shortlist(period, groups))
            program = PeriodProgram(tables, replace(question, units=units, incumbent=incumbent))
            answer = None if threshold is None else program.dive(self.deadline, threshold)
            if answer is None and time_limit_s > 0.0:
                answer = program.solve(time_limit_s, gap)
            left = self.deadline - time.monotonic()
            if (
                answer is not None
                or min(left, time_limit_s) <= 0.0
                or (groups > len(tables.group_seconds) and question.may_commit)
            ):
                return answer
            groups, time_limit_s = 2 * groups, left / 2.0
            question = replace(question, may_commit=True)

    def _shortlist(self, period: int, count: int) -> Flags:
        """Units of the kin that together serve the slices cheapest, and of those that the relaxation leans on."""
        tables = self.tables
        kinds = int(tables.kin.max()) + 1
        demand = self.demand[:, period]
        chosen: set[int] = set()
        for section in tables.sections:
            each = np.minimum(tables.seconds[section.units] * self.price[section.units, period][:, None], 1e30)
            costs = np.full((kinds, len(demand)), 1e30)
            np.minimum.at(costs, tables.kin[section.units], each)
            members = np.unique(tables.kin[section.units])
            chosen |= {int(members[one]) for one in greedy_cover(costs[members] * demand, count)}
        load = self.load[:, period]
        order = np.argsort(-load)
        leaned = order[: int(np.searchsorted(np.cumsum(load[order]), LOAD_KEPT * load.sum())) + 1]
        chosen |= {int(kin) for kin in leaned[:count] if load[kin] > 0.0}
        return self._sized(chosen, demand)

    def _sized(self, kinds: set[int], demand: Floats) -> Flags:
        """Units of those kin: no size larger than the smallest that could serve all there is, and not too many."""
        tables = self.tables
        listed = np.zeros(len(tables.unit_names), dtype=bool)
        for kin in kinds:
            members = np.flatnonzero(tables.kin == kin)
            members = members[np.argsort(tables.size[members])]
            seconds = np.where(tables.seconds[members] < BEYOND, tables.seconds[members], 0.0)
            enough = np.flatnonzero(seconds @ demand <= 1.0)
            members = members[: enough[0] + 1] if len(enough) else members
            if len(np.unique(tables.group[members])) > SIZES:
                steps = np.geomspace(1.0, len(members), SIZES).round().astype(np.int64) - 1
                members = members[np.unique(steps)]
            listed[members] = True
        return listed


def _both(work: Callable[[int], Result], periods: list[int]) -> list[Result]:
    """Do some periods at the same time: the solver does not hold the interpreter's lock while it runs."""
    if len(periods) == 1:
        return [work(periods[0])]
    with ThreadPoolExecutor(len(periods)) as pool:
        return list(pool.map(work, periods))


def greedy_cover(costs: Floats, count: int) -> list[int]:
    """Rows that together make the sum over columns of the cheapest entry small, one after the other.

    The greedy method for uncapacitated facility location without opening costs: G. Cornuejols, M. L. Fisher and
    G. L. Nemhauser, Management Science 23(8) (1977), 789-810.

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


def _demand(tables: Tables, relaxed: Relaxed) -> Floats:
    """What each period serves [1/s; S, T]: work that may wait is done when the relaxation does it."""
    demand = tables.demand.copy()
    amounts = tables.amounts
    for index in np.flatnonzero(tables.deferrable):
        shares = np.zeros(tables.periods)
        for one, period, _, _, share in relaxed.routes:
            if one == index:
                shares[period] += share
        demand[index] = amounts[index] * shares / shares.sum() if shares.sum() > 0.0 else demand[index]
    return demand


def _held(tables: Tables, bought: Floats) -> Floats:
    """Committed purchases of the relaxation, rounded to whole blocks."""
    held = np.zeros(len(tables.buyings))
    for index, buying in enumerate(tables.buyings):
        if buying.purchase.committed:
            blocks = np.round(bought[index, 0] / buying.purchase.block)
            held[index] = min(max(blocks * buying.purchase.block, buying.low), buying.high)
    return held


def _committed(tables: Tables, bought: Floats) -> Floats:
    keep = np.array([one.purchase.committed for one in tables.buyings], dtype=bool)
    return np.where(keep, bought[:, 0], 0.0) if len(keep) else np.zeros(0)


def _load(tables: Tables, relaxed: Relaxed) -> Floats:
    """What the relaxation spends on each unit in each period, at its prices [USD/h; J, T]."""
    load = np.zeros((len(tables.unit_names), tables.periods))
    for index, period, first, second, share in relaxed.routes:
        rate_per_s = share * tables.amounts[index, period]
        for unit in (first, second):
            if unit >= 0:
                used = rate_per_s * tables.seconds[unit, index]
                load[unit, period] += used * (relaxed.bound.unit_price[unit, period] + 1e-12)
    return load
