"""Problems of several periods, solved one period after the other.

What links the periods is priced: a committed purchase is bought by the period, at prices of which the mean is no more
than what it costs (`planner.optimizer.relaxation.purchase_prices`); starts, steadiness, the budget, kinds and groups
over all periods, and work that may wait, are left out. So the sum over periods of what each costs at least is a bound.

A fleet comes from the same periods: what is committed to is what the relaxation holds, rounded; work that may wait is
done when the relaxation does it; and each period is solved again with what is held. Whether the fleet keeps what was
left out is looked at afterwards; where it has too many kinds, it is solved once more with those of the period of the
largest demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.core import FloatArray
from planner.optimizer.evaluate_allocation import PartAnswer, evaluate_fleet
from planner.optimizer.highs import ROUNDING_TOLERANCE
from planner.optimizer.layout import Layout
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import RelaxedOptimum, purchase_prices, relax, undominated_pairs
from planner.optimizer.types import Objective, Purchase

HELD_PRICE = 0.1
"""What using a block that is held counts, as a share of its price: so little that it is used before anything is bought,
but not for nothing, or one would not be told from two. A choice."""


Clock = Callable[[], float]
"""Seconds left."""
PartSolver = Callable[[Layout, int], PartAnswer]
"""Answers a problem of one period, given how many may be asked at most from this one on."""


def solve_by_period(
    layout: Layout,
    solve_one: PartSolver,
    gap: float,
    *,
    is_large: bool = False,
    time_left_s: Clock = lambda: math.inf,
) -> PartAnswer:
    """A fleet and a bound from the periods by themselves.

    Args:
        layout: of a problem of several periods.
        solve_one: answers a problem of one period.
        gap: relative gap at which the fleet is good enough, and share of its cost by which the fleet of a period may
            cost more than that of one of less demand before those between them are solved by themselves.
        is_large: a single period is too large to be written down: the bound is that of the relaxation then.
        time_left_s: how long linear programs may still take [s].

    Returns:
        The best fleet of all periods that was found to keep all limits, with the bound.
    """
    firm = np.where(layout.deferrable[:, None], 0.0, layout.demand_per_s)
    day = Day(layout, firm, purchase_prices(layout, None))
    if not layout.are_periods_linked:
        parts = day.solve(solve_one, gap)
        return PartAnswer(day.fleet(parts, solve_one, gap), _mean(layout, parts))
    some = _undominated(day) if is_large else _without(layout, budget_usd_per_hour=None)
    relaxed = relax(build_program(some, Objective.MIN_COST), time_left_s())
    if relaxed is None:
        return PartAnswer(None, math.inf if time_left_s() > 0.0 else 0.0)
    blocks = relaxed.values[some.column.blocks].max(axis=1)
    bound, votes = relaxed.bound, iter((np.round(blocks), np.ceil(blocks - ROUNDING_TOLERANCE)))
    if not is_large:
        priced = replace(day, usd_per_block=purchase_prices(some, relaxed))
        parts = priced.solve(solve_one, gap)
        votes, bound = priced.votes(parts), _mean(layout, parts)
    day = replace(day, demand_per_s=_served(layout, firm, some, relaxed))
    best, least = PartAnswer(None, bound), math.inf
    for vote in votes:
        held = replace(day, held=np.where(layout.purchase_committed, vote, 0.0))
        values = held.fleet(held.solve(solve_one, gap), solve_one, gap)
        usd = math.inf if values is None else math.fsum((layout.mean_cost * values).tolist())
        if usd < least:
            best, least = PartAnswer(values, bound), usd
        if least * (1.0 - gap) <= bound or (is_large and values is not None):
            break
    return best


def _mean(layout: Layout, parts: Sequence[PartAnswer]) -> float:
    """Bound on the whole from those of its periods."""
    return math.fsum(share * part.bound_usd_per_hour for share, part in zip(layout.share, parts, strict=True))


def _undominated(day: Day) -> Layout:
    """The problem but for what links periods beside purchases and work that may wait, over pairs that none betters.

    Which pair betters which in a period is the same at all prices, so that its relaxation is that of all pairs.
    """
    layout, pairs = day.layout, np.zeros(len(day.layout.pair_unit), dtype=bool)
    for part in replace(day, demand_per_s=layout.ceiling_per_s).parts():
        pairs |= undominated_pairs(build_program(part, Objective.MIN_COST))
    return _unlinked(layout).select(np.ones(len(layout.usd_per_hour), dtype=bool), pairs)


def _without(layout: Layout, **limits: None) -> Layout:
    """The problem without some limits, e.g. the budget, which the caller holds against the bound."""
    return replace(layout, problem=layout.problem.model_copy(update=limits))


def _unlinked(layout: Layout) -> Layout:
    """The problem without starts, steadiness, groups and the budget."""
    return replace(
        _without(layout, budget_usd_per_hour=None, max_groups=None),
        usd_per_start=np.zeros_like(layout.usd_per_start),
        steady=np.zeros_like(layout.steady),
        groups=(),
        resource_group=np.full_like(layout.resource_group, -1),
    )


def _served(layout: Layout, firm: FloatArray, some: Layout, relaxed: RelaxedOptimum) -> FloatArray:
    """What each period serves [1/s]: of work that may wait as much as the relaxation, and no less in all."""
    done = np.zeros_like(firm)
    np.add.at(done, some.pair_slice[some.served], relaxed.values[some.column.rates[some.served]])
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
        layout, problem = _unlinked(self.layout), self.layout.problem
        demand, usd = self.demand_per_s[:, [period]], self.usd_per_block[:, period]
        update: dict[str, object] = {"periods": problem.periods[:1]}
        is_held = layout.purchase_committed & (self.held is not None)
        if self.held is not None:
            held = iter((self.held * layout.purchase_block).tolist())
            update["resources"] = tuple(
                r.model_copy(update={"purchases": tuple(_with_at_most(p, next(held)) for p in r.purchases)})
                for r in problem.resources
            )
        return replace(
            layout,
            problem=layout.problem.model_copy(update=update),
            share=np.ones(1),
            demand_per_s=demand,
            ceiling_per_s=demand,
            deferrable=np.zeros_like(layout.deferrable),
            purchase_usd_per_hour=np.where(is_held, HELD_PRICE * usd, usd),
            purchase_committed=np.zeros(len(usd), dtype=bool),
        )

    def parts(self) -> Iterator[Layout]:
        """The problems of all periods."""
        return (self.part(period) for period in range(self.layout.periods))

    def solve(self, solve_one: PartSolver, gap: float) -> list[PartAnswer]:
        """An answer for each period; periods of the same demand and prices have the same.

        Where periods are alike but for a demand that rises in every slice, less of it never costs more: those between
        two whose costs are the same but for the gap have that cost too, and the fleet of the larger demand serves them.
        """
        what = np.vstack([self.demand_per_s.sum(axis=0), self.demand_per_s, self.usd_per_block])
        distinct, first, of_period = np.unique(what, axis=1, return_index=True, return_inverse=True)
        demand, usd = np.split(distinct[1:], [len(self.demand_per_s)])
        found: dict[int, PartAnswer] = {}

        def solved(index: int) -> PartAnswer:
            if index not in found:
                found[index] = solve_one(self.part(int(first[index])), len(first) - len(found))
            return found[index]

        def fill(low: int, high: int) -> None:
            least, most, one = solved(low), solved(high), self.part(int(first[high]))
            if most.values is None or one.mean_cost @ most.values * (1.0 - gap) > least.bound_usd_per_hour:
                middle = (low + high) // 2
                if middle > low:
                    fill(low, middle)
                    fill(middle, high)
                return
            factor = demand / np.where(demand[:, [high]] > 0.0, demand[:, [high]], 1.0)
            for index in range(low + 1, high):
                values = most.values.copy()
                values[one.column.rates] *= factor[one.pair_slice, index][:, None]
                found[index] = PartAnswer(values, least.bound_usd_per_hour)

        if (np.diff(demand) >= 0.0).all() and (np.diff(usd) == 0.0).all():
            fill(0, len(first) - 1)
        return [solved(index) for index in np.ravel(of_period).tolist()]

    def votes(self, parts: list[PartAnswer]) -> Iterator[FloatArray]:
        """Blocks to commit to: as many as periods ask for by what they pay, then the most that one of them asks for."""
        blocks = self.part(0).column.blocks[:, 0]
        asked = np.array([part.values[blocks] for part in parts if part.values is not None]).T
        if asked.shape[1:] == self.layout.share.shape:
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
                (layout.column.units, one.column.units),
                (layout.column.rates, one.column.rates),
                (layout.column.blocks, one.column.blocks),
            ):
                values[whole[:, period]] = np.maximum(values[whole[:, period]], part.values[single[:, 0]])
        if self.held is not None:
            columns = layout.column.blocks[layout.purchase_committed]
            values[columns] = self.held[layout.purchase_committed][:, None]
        layout.fill_in(values)
        return values

    def fleet(self, parts: list[PartAnswer], solve_one: PartSolver, gap: float) -> FloatArray | None:
        """The columns of all periods, of the kinds of the largest demand if need be; None: no limits are kept."""
        layout, values = self.layout, self.together(parts)
        if values is None or _keeps_limits(layout, values):
            return values
        peak = values[layout.column.units[:, int(self.demand_per_s.sum(axis=0).argmax())]] > 0.0
        allowed = (layout.unit_kind < 0) | np.isin(layout.unit_kind, layout.unit_kind[peak])
        if allowed.all():
            return None
        pairs = allowed[layout.pair_unit]
        fewer = layout.select(allowed, pairs)
        of_fewer = replace(self, layout=fewer)
        found = of_fewer.together(of_fewer.solve(solve_one, gap))
        if found is None:
            return None
        whole = np.zeros(layout.columns)
        whole[layout.columns_of(fewer, allowed, pairs)] = found
        return whole if _keeps_limits(layout, whole) else None


def _keeps_limits(layout: Layout, values: FloatArray) -> bool:
    return evaluate_fleet(Objective.MIN_COST, layout, values, is_routed=True, may_miss=True).keeps_limits


def _with_at_most(purchase: Purchase, held: float) -> Purchase:
    """A committed purchase of which so much is there already."""
    return purchase.model_copy(update={"at_most": held}) if purchase.committed else purchase
