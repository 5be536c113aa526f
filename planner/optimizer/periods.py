"""Problems of several periods, solved one period after the other.

Where purchases, units and work of the periods are not linked, the mean over periods of what each costs at least is a
bound. Where they are, the bound is that of the relaxation of the whole, and the periods do as it does: what is
committed to is what it holds, rounded, and work that may wait is done when it does it. Starts, steadiness, the budget,
kinds and groups over all periods are left out, and whether the fleet keeps them is looked at afterwards; where it has
too many kinds, it is solved once more with those of the period of the largest demand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.core import FloatArray
from planner.optimizer.evaluate_allocation import PartAnswer, evaluate_fleet
from planner.optimizer.highs import ROUNDING_TOLERANCE, Solution
from planner.optimizer.layout import Layout
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax, undominated
from planner.optimizer.types import Objective

HELD_PRICE = 0.1
"""Cost of using a block that is held, as a share of its price: so little that it is used before anything is bought,
but not for nothing, or one would not be told from two. A choice."""

PartSolver = Callable[[Layout, int], PartAnswer]
"""Answers a problem of one period, given how many may be asked at most from this one on."""


def fleet_by_period(
    layout: Layout, some: Layout, relaxed: Solution, solve_one: PartSolver, gap: float
) -> FloatArray | None:
    """A fleet from periods that hold what the relaxation of the whole does, by column; None: none keeps all limits.

    Args:
        layout: of a problem of several periods.
        some: of what was relaxed, the problem or `undominated_day` of it.
        relaxed: its relaxation.
        solve_one: answers a problem of one period.
        gap: see `Day.fleet`.

    Returns:
        Shape (columns,).
    """
    served = np.zeros_like(layout.demand_per_s)
    np.add.at(served, some.pair_slice[some.served], relaxed.values[some.column.rates[some.served]])
    total = (served @ layout.share)[:, None]
    waits = np.where(total > 0.0, served * layout.mean_demand_per_s[:, None] / np.where(total > 0.0, total, 1.0), 0.0)
    blocks: FloatArray = relaxed.values[some.column.blocks].max(axis=1) * layout.purchase_committed
    for held in (np.floor(blocks + 0.5), np.ceil(blocks - ROUNDING_TOLERANCE)):
        day = Day(layout, np.where(layout.deferrable[:, None], waits, layout.demand_per_s), held)
        if (values := day.fleet(solve_one, gap).values) is not None:
            return values
    return None


def undominated_day(layout: Layout) -> tuple[Layout, FloatArray]:
    """The problem but for what links periods beside purchases and work that may wait, over pairs that none betters.

    Which pair betters which in a period is the same at all prices, so that its relaxation is that of all pairs.

    Args:
        layout: of a problem too large to be written down.

    Returns:
        With fewer pairs; and their tight rates (of units that serve all that they can) [1/s].
    """
    free = _unlinked(layout)
    pairs = undominated(free, free.tight_rates_per_s)
    return free.select(pairs), free.tight_rates_per_s[pairs]


def _unlinked(layout: Layout) -> Layout:
    """The problem without starts, steadiness, groups and the budget."""
    return replace(
        layout,
        problem=layout.problem.model_copy(update={"budget_usd_per_hour": None, "max_groups": None}),
        usd_per_start=np.zeros_like(layout.usd_per_start),
        steady=np.zeros_like(layout.steady),
        groups=(),
        in_group=layout.in_group[:, :0],
        charge=layout.charge[:0],
    )


@dataclass(frozen=True)
class Day:
    """A problem by its periods.

    Attributes:
        layout: of the problem.
        demand_per_s: what each period serves; shape (s, t).
        held: blocks of committed purchases that are there already; None: they are bought by the period.
    """

    layout: Layout
    demand_per_s: FloatArray
    held: FloatArray | None = None

    def part(self, period: int) -> Layout:
        """The problem of one period."""
        layout = _unlinked(self.layout)
        demand, usd, most = self.demand_per_s[:, [period]], layout.purchase_usd_per_hour, layout.purchase_most
        if self.held is not None:
            usd = np.where(layout.purchase_committed, HELD_PRICE * usd, usd)
            most = np.where(layout.purchase_committed, self.held * layout.purchase_block, most)
        return replace(
            layout,
            problem=layout.problem.model_copy(update={"periods": layout.problem.periods[:1]}),
            share=np.ones(1),
            demand_per_s=demand,
            ceiling_per_s=demand,
            deferrable=np.zeros_like(layout.deferrable),
            purchase_usd_per_hour=usd,
            purchase_committed=np.zeros_like(layout.purchase_committed),
            purchase_most=most,
        )

    @property
    def least_usd_per_hour(self) -> float:
        """What no fleet costs less than by the relaxation of every period; infinite where one has no fleet."""
        programs = (build_program(self.part(period), Objective.MIN_COST) for period in range(self.layout.periods))
        bounds = [math.inf if (relaxed := relax(each)) is None else relaxed.bound for each in programs]
        return math.fsum(share * bound for share, bound in zip(self.layout.share, bounds, strict=True))

    def solve(self, solve_one: PartSolver, gap: float) -> list[PartAnswer]:
        """An answer for each period; periods of the same demand have the same.

        Where periods are alike but for a demand that rises in every slice, less of it never costs more: those between
        two whose costs are the same but for the gap have that cost too, and the fleet of the larger demand serves them.
        """
        by_sum = np.vstack([self.demand_per_s.sum(axis=0), self.demand_per_s])
        distinct, first, of_period = np.unique(by_sum, axis=1, return_index=True, return_inverse=True)
        demand = distinct[1:]
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

        if (np.diff(demand) >= 0.0).all():
            fill(0, len(first) - 1)
        return [solved(index) for index in np.ravel(of_period).tolist()]

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

    def fleet(self, solve_one: PartSolver, gap: float) -> PartAnswer:
        """A fleet that keeps all limits, of the kinds of the largest demand if need be; and the bound of free periods.

        The gap is one at which the fleet is good enough, and the share of its cost by which the fleet of a period may
        cost more than that of one of less demand before those between them are solved by themselves.
        """
        layout, parts = self.layout, self.solve(solve_one, gap)
        values = self.together(parts)
        bound = math.fsum(share * part.bound_usd_per_hour for share, part in zip(layout.share, parts, strict=True))
        if values is None or _keeps_limits(layout, values):
            return PartAnswer(values, bound)
        peak = values[layout.column.units[:, int(self.demand_per_s.sum(axis=0).argmax())]] > 0.0
        allowed = (layout.unit_kind < 0) | np.isin(layout.unit_kind, layout.unit_kind[peak])
        pairs = allowed[layout.pair_unit]
        of_fewer = replace(self, layout=layout.select(pairs))
        found = None if allowed.all() else of_fewer.together(of_fewer.solve(solve_one, gap))
        if found is None:
            return PartAnswer(None, bound)
        values = np.zeros(layout.columns)
        values[layout.columns_of(pairs)] = found
        return PartAnswer(values if _keeps_limits(layout, values) else None, bound)


def _keeps_limits(layout: Layout, values: FloatArray) -> bool:
    return evaluate_fleet(Objective.MIN_COST, layout, values, is_routed=True, may_miss=True).keeps_limits
