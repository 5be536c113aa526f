"""Problems of several periods, solved one period after the other.

What links the periods is priced: a committed purchase is bought by the period, at prices of which the mean is no more
than what it costs (`planner.optimizer.relaxation.purchase_prices`); starts, steadiness, the budget, kinds and groups
over all periods, and work that may wait, are left out. So the sum over periods of what each costs at least is a bound.

A fleet comes from the same periods: every period votes on what to commit to with the part of the price that it pays,
work that may wait is done when the relaxation does it, and each period is solved again with what is held. Whether the
fleet keeps what was left out is looked at afterwards; where it has too many kinds, it is solved once more with those of
the period of the largest demand.

Where periods are alike but for a demand that rises in every slice, less of it never costs more: periods between two
whose costs are the same have that cost too, and the fleet of the larger demand serves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.core import BoolArray, FloatArray, IntArray
from planner.optimizer.coefficients import mean_cost
from planner.optimizer.covering import keeps_limits, kinds_of_peak, mark_in_use
from planner.optimizer.highs import ROUNDING_TOLERANCE
from planner.optimizer.layout import Layout
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import RelaxedOptimum, purchase_prices, relax
from planner.optimizer.shortlist import Relaxer
from planner.optimizer.tightening import tighten_rates
from planner.optimizer.types import Objective, Purchase

HELD_PRICE = 0.1
"""What using a block that is held counts, as a share of its price: so little that it is used before anything is bought,
but not for nothing, or one would not be told from two. A choice."""
MOST_PRICINGS = 4
"""Most often that prices are taken from a relaxation over some pairs. A choice of what is proved in how long."""
PRICING_GAP = 1e-3
"""Prices are good enough when the periods by themselves prove all but this share of that relaxation. A choice."""


@dataclass(frozen=True)
class PartAnswer:
    """What is known of a problem.

    Attributes:
        values: of a fleet that keeps all limits, by column; None: none was found.
        usd_per_hour: its cost; infinite without one.
        bound_usd_per_hour: no fleet costs less [USD/h]; infinite where it was proved that there is none.
    """

    values: FloatArray | None
    usd_per_hour: float
    bound_usd_per_hour: float


PartSolver = Callable[[Layout, int], PartAnswer]
"""Answers a problem of one period, given how many may be asked at most from this one on."""


def have_nothing_in_common(layout: Layout) -> bool:
    """Whether a problem of least cost has several periods that neither purchases, nor units, nor work link.

    Args:
        layout: of the problem.

    Returns:
        False too where there is one period.
    """
    linked = layout.purchase_committed.any() or layout.steady.any() or layout.deferrable.any()
    return layout.periods > 1 and not linked and not len(layout.start_units)


def solve_by_period(layout: Layout, solve_one: PartSolver, gap: float, relaxer: Relaxer | None = None) -> PartAnswer:
    """A fleet and a bound from the periods by themselves.

    Args:
        layout: of a problem of several periods.
        solve_one: answers a problem of one period.
        gap: share of its cost by which the fleet of a period may cost more than that of one of less demand before
            those between them are solved by themselves.
        relaxer: for problems of which a single period is too large to be written down: prices come from a relaxation
            over some pairs then, the bound from relaxations of the periods, what is committed to from the former.

    Returns:
        The best fleet of all periods that was found to keep all limits, with the bound.
    """
    firm = np.where(layout.deferrable[:, None], 0.0, layout.demand_per_s)
    day = Day(layout, firm, purchase_prices(layout, None))
    days: Iterable[Day] = (day,)
    relaxed: RelaxedOptimum | None = None
    if have_nothing_in_common(layout):
        parts = day.solve(solve_one, gap)
    elif relaxer is not None:
        some, relaxed, parts = _relaxed_by_period(day, relaxer)
        if relaxed is None:
            return PartAnswer(None, math.inf, 0.0)
        blocks = relaxed.values[some.blocks_column].max(axis=1)
        votes: Iterable[FloatArray] = (np.round(blocks), np.ceil(blocks - ROUNDING_TOLERANCE))
    else:
        some = _without_budget(layout)
        relaxed = relax(tighten_rates(build_program(some, Objective.MIN_COST)))
        if relaxed is None:
            return PartAnswer(None, math.inf, math.inf)
        priced = replace(day, usd_per_block=purchase_prices(some, relaxed))
        parts = priced.solve(solve_one, gap)
        votes = priced.votes(parts)
    if relaxed is not None:
        served = _served(layout, firm, some, relaxed)
        days = (replace(day, demand_per_s=served, held=np.where(layout.purchase_committed, v, 0.0)) for v in votes)
    bound = math.fsum(share * part.bound_usd_per_hour for share, part in zip(layout.share.tolist(), parts, strict=True))
    best = PartAnswer(None, math.inf, bound)
    for each in days:
        values = each.fleet(parts if each is day else each.solve(solve_one, gap), solve_one, gap)
        usd = math.inf if values is None else math.fsum((mean_cost(layout) * values).tolist())
        if usd < best.usd_per_hour:
            best = PartAnswer(values, usd, bound)
        if best.usd_per_hour * (1.0 - gap) <= bound or (relaxer is not None and best.values is not None):
            break
    return best


def _relaxed_by_period(day: Day, relaxer: Relaxer) -> tuple[Layout, RelaxedOptimum | None, list[PartAnswer]]:
    """A relaxation over some pairs, and the bounds of the periods at its prices.

    Starting from those that pay by the period, pairs that pay at these prices are added until the periods by themselves
    prove what the whole does.
    """
    layout, everything = day.layout, np.ones(len(day.layout.usd_per_hour), dtype=bool)
    pairs, best, known = np.zeros(len(layout.pair_unit), dtype=bool), np.zeros(layout.periods), -math.inf
    some, relaxed, numbered = layout, None, day.part(0)
    found = [relaxer.relax(part) for part in day.parts()]
    for _ in range(MOST_PRICINGS):
        for part in found:
            pairs |= False if part is None else part.active[numbered.rate_column].any(axis=1)
        some = _without_budget(layout.select(everything, pairs))
        relaxed = relax(tighten_rates(build_program(some, Objective.MIN_COST)))
        if relaxed is None:
            break
        day = replace(day, usd_per_block=purchase_prices(some, relaxed))
        found = [relaxer.relax(part) for part in day.parts()]
        bounds = np.array([math.inf if part is None else part.bound for part in found])
        proved = math.fsum((layout.share * bounds).tolist())
        if proved > known:
            best, known = bounds, proved
        if proved >= relaxed.bound * (1.0 - PRICING_GAP):
            break
    return some, relaxed, [PartAnswer(None, math.inf, bound) for bound in best.tolist()]


def _without_budget(layout: Layout) -> Layout:
    """Whether a fleet can be paid for is for the caller to say, who knows the bound."""
    return replace(layout, problem=layout.problem.model_copy(update={"budget_usd_per_hour": None}))


def _served(layout: Layout, firm: FloatArray, some: Layout, relaxed: RelaxedOptimum) -> FloatArray:
    """What each period serves [1/s]: of work that may wait as much as the relaxation, and no less in all."""
    done = np.zeros_like(firm)
    np.add.at(done, some.pair_slice[some.served], relaxed.values[some.rate_column[some.served]])
    total = done @ layout.share
    factor = np.where(total > 0.0, layout.mean_demand_per_s / np.where(total > 0.0, total, 1.0), 0.0)
    waits = np.where((total > 0.0)[:, None], done * factor[:, None], layout.demand_per_s)
    return np.where(layout.deferrable[:, None], waits, firm)


@dataclass(frozen=True)
class Day:
    """A problem by its periods.

    Attributes:
        layout: of the problem.
        demand_per_s: what each period serves; shape (s, t).
        usd_per_block: of each purchase in each period; shape (q, t).
        held: blocks of committed purchases that are there already; None: they are bought by the period.
    """

    layout: Layout
    demand_per_s: FloatArray
    usd_per_block: FloatArray
    held: FloatArray | None = None

    def part(self, period: int) -> Layout:
        """The problem of one period."""
        layout, problem = self.layout, self.layout.problem
        demand, usd = self.demand_per_s[:, [period]], self.usd_per_block[:, period]
        held = iter(() if self.held is None else (self.held * layout.purchase_block).tolist())
        resources = tuple(
            r.model_copy(
                update={"purchases": tuple(_with_held(purchase, next(held, None)) for purchase in r.purchases)}
            )
            for r in problem.resources
        )
        slices = tuple(
            slice_.model_copy(update={"demand_per_s": (float(rate),), "deferrable": False})
            for slice_, rate in zip(problem.slices, demand[:, 0], strict=True)
        )
        update = {
            "slices": slices,
            "resources": resources,
            "periods": problem.periods[:1],
            "budget_usd_per_hour": None,
            "max_groups": None,
        }
        is_held = layout.purchase_committed & (self.held is not None)
        return replace(
            layout,
            problem=problem.model_copy(update=update),
            share=np.ones(1),
            demand_per_s=demand,
            ceiling_per_s=demand,
            deferrable=np.zeros_like(layout.deferrable),
            usd_per_start=np.zeros_like(layout.usd_per_start),
            steady=np.zeros_like(layout.steady),
            purchase_usd_per_hour=np.where(is_held, HELD_PRICE * usd, usd),
            purchase_committed=np.zeros(len(usd), dtype=bool),
            groups=(),
            resource_group=np.full_like(layout.resource_group, -1),
        ).numbered()

    def parts(self) -> Iterator[Layout]:
        """The problems of all periods."""
        return (self.part(period) for period in range(self.layout.periods))

    def solve(self, solve_one: PartSolver, gap: float) -> list[PartAnswer]:
        """An answer for each period; periods of the same demand and prices have the same."""
        what = np.vstack([self.demand_per_s.sum(axis=0), self.demand_per_s, self.usd_per_block])
        distinct, first, period_of = np.unique(what, axis=1, return_index=True, return_inverse=True)
        count = distinct.shape[1]
        found: dict[int, PartAnswer] = {}
        rises = bool((np.diff(distinct[: 1 + len(self.demand_per_s)], axis=1) >= 0.0).all())
        is_alike = bool((distinct[1 + len(self.demand_per_s) :] == distinct[1 + len(self.demand_per_s) :, :1]).all())

        def solved(index: int) -> PartAnswer:
            if index not in found:
                found[index] = solve_one(self.part(int(first[index])), count - len(found))
            return found[index]

        def fill(low: int, high: int) -> None:
            least, most = solved(low), solved(high)
            if high - low < 2:
                return
            if most.values is not None and most.usd_per_hour * (1.0 - gap) <= least.bound_usd_per_hour:
                one = self.part(int(first[high]))
                factors = distinct[1 : 1 + len(self.demand_per_s)] / np.maximum(one.demand_per_s, 1e-300)
                for index in range(low + 1, high):
                    values = most.values.copy()
                    values[one.rate_column] *= factors[one.pair_slice, index][:, None]
                    found[index] = replace(most, values=values, bound_usd_per_hour=least.bound_usd_per_hour)
                return
            middle = (low + high) // 2
            fill(low, middle)
            fill(middle, high)

        if rises and is_alike:
            fill(0, count - 1)
        return [solved(int(index)) for index in np.ravel(period_of)]

    def votes(self, parts: list[PartAnswer]) -> Iterator[FloatArray]:
        """Blocks to commit to: as many as periods ask for by what they pay, then the most that one of them asks for."""
        one = self.part(0)
        if all(part.values is not None for part in parts):
            asked = np.column_stack([part.values[one.blocks_column[:, 0]] for part in parts])  # type: ignore[index]
            pays = self.usd_per_block * self.layout.share
            total = pays.sum(axis=1)
            yield np.round((asked * pays).sum(axis=1) / np.where(total > 0.0, total, 1.0))
            yield np.where(pays > 0.0, asked, 0.0).max(axis=1, initial=0.0)

    def together(self, parts: list[PartAnswer]) -> FloatArray | None:
        """The columns of all periods; None where one of them has no fleet."""
        layout, one = self.layout, self.part(0)
        values = np.zeros(layout.columns)
        for period, part in enumerate(parts):
            if part.values is None:
                return None
            for whole, single in (
                (layout.units_column, one.units_column),
                (layout.rate_column, one.rate_column),
                (layout.blocks_column, one.blocks_column),
            ):
                values[whole[:, period]] = np.maximum(values[whole[:, period]], part.values[single[:, 0]])
        if self.held is not None:
            columns = layout.blocks_column[layout.purchase_committed]
            values[columns] = self.held[layout.purchase_committed][:, None]
        on = values[layout.units_column][layout.start_units]
        values[layout.starts_column] = np.maximum(on - np.roll(on, 1, axis=1), 0.0)
        mark_in_use(layout, values)
        return values

    def fleet(self, parts: list[PartAnswer], solve_one: PartSolver, gap: float) -> FloatArray | None:
        """The columns of all periods, of the kinds of the largest demand if need be; None: no limits are kept."""
        layout, values = self.layout, self.together(parts)
        if values is None or keeps_limits(layout, values):
            return values
        allowed = kinds_of_peak(layout, values[layout.units_column].astype(np.int64), self.demand_per_s)
        if allowed.all():
            return None
        fewer = layout.select(allowed)
        of_fewer = replace(self, layout=fewer)
        found = of_fewer.together(of_fewer.solve(solve_one, gap))
        if found is None:
            return None
        whole = of_more_units(layout, fewer, found, allowed, allowed[layout.pair_unit])
        return whole if keeps_limits(layout, whole) else None


def _with_held(purchase: Purchase, held: float | None) -> Purchase:
    """A committed purchase of which so much is there already; None: of which nothing is decided."""
    return (
        purchase.model_copy(update={"at_least": 0.0, "at_most": held})
        if purchase.committed and held is not None
        else purchase
    )


def of_more_units(layout: Layout, fewer: Layout, values: FloatArray, kept: BoolArray, pairs: BoolArray) -> FloatArray:
    """Values of some units and pairs by column of all.

    Args:
        layout: of all.
        fewer: of those kept, see `Layout.select`.
        values: by column of `fewer`.
        kept: which units.
        pairs: which pairs.

    Returns:
        By column of `layout`.
    """
    whole = np.zeros(layout.columns)
    for mine, theirs in _same_columns(layout, fewer, kept, pairs):
        whole[mine] = values[theirs]
    mark_in_use(layout, whole)
    return whole


def of_fewer_units(layout: Layout, fewer: Layout, values: FloatArray, kept: BoolArray, pairs: BoolArray) -> FloatArray:
    """Values of all units by column of some: the reverse of `of_more_units`.

    Args:
        layout: of all.
        fewer: of those kept.
        values: by column of `layout`.
        kept: which units.
        pairs: which pairs.

    Returns:
        By column of `fewer`.
    """
    some = np.zeros(fewer.columns)
    for theirs, mine in _same_columns(layout, fewer, kept, pairs):
        some[mine] = values[theirs]
    mark_in_use(fewer, some)
    return some


def _same_columns(
    layout: Layout, fewer: Layout, kept: BoolArray, pairs: BoolArray
) -> Iterator[tuple[IntArray, IntArray]]:
    yield layout.units_column[kept], fewer.units_column
    yield layout.rate_column[pairs], fewer.rate_column
    yield layout.blocks_column, fewer.blocks_column
    yield layout.starts_column[kept[layout.start_units]], fewer.starts_column
