"""From optimistic rates to true ones: the cheapest fleet, though only the rates of chosen columns are computed.

The program is solved, the optimistic rates that its answer rests on are replaced by true ones, and so on. Rates fall,
so that the answer whose columns all have true rates is optimal over the true rates of all. The same program
over columns with true rates alone gives a fleet that can be had; once no fleet can be cheaper by a share that matters,
the rest need not be refined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.fleet.columns import Column
from planner.fleet.program import RELATIVE_GAP, FleetSearch
from planner.fleet.sites import lower_bound
from planner.optimizer import FEASIBILITY_TOLERANCE, Allocation, Objective, SolveStatus

COARSE_GAP = 1e-2
"""Gap to which the program is solved as long as rates are still being refined. Affects speed only."""
SHARE_OF_A_TIE = 0.2
"""Gap within which a fleet is as good as the cheapest, as a share of the difference in cost that is a tie
(`SearchSpace.simplicity`), where that is more than `RELATIVE_GAP`: a dollar in a hundred by default. A choice that may
show in the result."""
HOPED_SHARE = 0.9
"""Discount on optimistic rates when looking for a fleet likely to survive refinement. True rates were 0.5 to 1 of the
optimistic ones in plans of one and two models. A choice: with more, fewer of those found hold; with less, fewer are
found."""


def refined_allocation(
    search: FleetSearch,
    objective: Objective,
    columns: Callable[[], list[Column]] | None = None,
    *,
    flat: bool = False,
    finest_gap: float = RELATIVE_GAP,
    enough_usd_per_hour: float = math.inf,
    most_usd_per_hour: float = math.inf,
    at_least_usd_per_hour: float = 0.0,
    rounds_at_most: int | None = None,
) -> Allocation:
    """The best fleet over the true rates of all columns.

    Args:
        search: the program and its columns, whose rates are replaced.
        objective: of the program.
        columns: asked before every solve for the columns that may be chosen, those of the same configurations every
            time; None: all.
        flat: one period of the largest demand of each slice.
        finest_gap: to which the last answer is proved.
        enough_usd_per_hour: stop refining above this cost: the answer then has optimistic rates, with which no fleet
            costs less.
        most_usd_per_hour: fleets that cost more are not looked for.
        at_least_usd_per_hour: known lower bound on cost, wherever the fleet is bought: of some columns, that of all.
        rounds_at_most: times that optimistic rates are replaced; the answer may then still rest on some, and no fleet
            costs less. None: until it rests on none.

    Returns:
        The fleet, with its gap to a bound on what any costs; infeasible, or one that costs more, where none costs at
        most `most_usd_per_hour`.
    """
    known = dict.fromkeys(range(len(search.market.sites)), at_least_usd_per_hour) if at_least_usd_per_hour else {}
    asked = search, objective, columns, flat, finest_gap, enough_usd_per_hour, most_usd_per_hour, rounds_at_most
    return _Refinement(*asked, known=known, rises=search.columns.rises).run()


def tie_of(search: FleetSearch) -> float:
    """Share of its cost by which a fleet may be dearer than another that is as good."""
    return max(RELATIVE_GAP, SHARE_OF_A_TIE * search.request.search.simplicity)


def with_bound(allocation: Allocation, usd_per_hour: float) -> Allocation:
    """An allocation with its gap to a bound on what any costs [USD/h]."""
    gap = max(1.0 - usd_per_hour / (allocation.objective or math.inf), 0.0)
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    return allocation.model_copy(update={"gap": gap, "status": status})


@dataclass
class _Refinement:
    """One refinement: its question, the gap reached, and the best fleet known."""

    search: FleetSearch
    objective: Objective
    columns: Callable[[], list[Column]] | None
    flat: bool
    finest_gap: float
    enough_usd_per_hour: float
    most_usd_per_hour: float
    rounds_left: int | None = None
    gap: float = COARSE_GAP
    best: Allocation | None = None
    known: dict[int, float] = field(default_factory=dict)
    rises: int = 0

    def run(self) -> Allocation:
        """Solve and refine until nothing is left to refine."""
        while True:
            self.search.progress("solving")
            most = self._dearest_usd_per_hour()
            answer = self._solved(self._offered(), most)
            is_none = answer.objective is None or answer.objective > most
            if self.best is not None and self.is_decided and is_none:
                bound = most if answer.status is SolveStatus.INFEASIBLE else min(most, *self.known.values())
                if bound == most or self.gap <= self.finest_gap:
                    return with_bound(self.best, bound)
                self.gap = self.finest_gap
            elif self._is_too_dear(answer) or self._was_last_round(answer):
                return answer
            elif answer.status.has_allocation and self.search.columns.refine(answer):
                near = self._near_enough(answer)
                if near is not None:
                    return near
                self.gap = COARSE_GAP
            elif self._is_last(answer):
                return answer

    @property
    def is_decided(self) -> bool:
        """True if a challenger must beat the incumbent by a tie: where units are shared."""
        return self.objective is Objective.MIN_COST and self.search.columns.are_shared

    @property
    def tie(self) -> float:
        """See `tie_of`."""
        return tie_of(self.search)

    def _dearest_usd_per_hour(self) -> float:
        """Upper limit on the cost of a fleet worth finding."""
        if self.best is None or self.best.objective is None or not self.is_decided:
            return self.most_usd_per_hour
        return min(self.most_usd_per_hour, self.best.objective * (1.0 - self.tie))

    def _offered(self) -> list[Column]:
        return self.search.columns.all if self.columns is None else self.columns()

    def _solved(self, columns: list[Column], most_usd_per_hour: float) -> Allocation:
        if self.rises != self.search.columns.rises:
            self.known.clear()
            self.rises = self.search.columns.rises
        return self.search.allocation(
            columns,
            self.objective,
            self.flat,
            self.gap,
            known=self.known,
            most_usd_per_hour=most_usd_per_hour,
        )

    def _is_too_dear(self, answer: Allocation) -> bool:
        """True if no fleet is as cheap as is asked: costs only rise as rates fall."""
        if not answer.status.has_allocation:
            return answer.status is SolveStatus.INFEASIBLE and self.most_usd_per_hour < math.inf
        return answer.cost_usd_per_hour > min(self.enough_usd_per_hour, self.most_usd_per_hour)

    def _was_last_round(self, answer: Allocation) -> bool:
        """True if no more rates may be replaced; else one round less is left."""
        if self.rounds_left is None or not answer.status.has_allocation:
            return False
        self.rounds_left -= 1
        return self.rounds_left < 0

    def _is_last(self, answer: Allocation) -> bool:
        """True if an answer that rests on true rates alone is proved as far as it can be; else set the next gap."""
        is_finest = self.gap <= self.finest_gap
        if not answer.status.has_allocation:
            last = is_finest or answer.diagnosis is not None
        elif is_finest and answer.status.is_cut_short and self.search.columns.refine_bound(answer):
            self.gap = COARSE_GAP
            return False
        elif self.is_decided and (answer.gap or 0.0) > self.tie and not is_finest:
            self.best = answer
            return False
        elif self.is_decided:
            last = True
        else:
            last = is_finest or (answer.gap is not None and answer.gap <= self.finest_gap)
        self.gap = self.finest_gap
        return last

    def _near_enough(self, answer: Allocation) -> Allocation | None:
        """A fleet of true rates than which none is cheaper by a share that matters; None if none is known.

        Where units are shared it is looked for in what is likely to hold, up to the cost of the optimistic one, and a
        tie is close enough; elsewhere programs are solved so quickly that a closer bound costs next to nothing.
        """
        if self.objective is not Objective.MIN_COST or answer.objective is None:
            return None
        bound = lower_bound(answer)
        tie = self.tie if self.is_decided else RELATIVE_GAP
        most = bound / (1.0 - tie)
        if self.is_decided:
            found = self.best = self._hoped(max(most, answer.objective)) or self.best
        else:
            found = self._cheapest([column for column in self._offered() if column.is_exact], most)
        proved = None if found is None else with_bound(found, bound)
        return None if proved is None or (proved.gap or 0.0) > tie else proved

    def _hoped(self, most_usd_per_hour: float) -> Allocation | None:
        """A fleet of true rates that costs at most so much; None where none is likely to."""
        while True:
            found = self._cheapest([_as_hoped(column) for column in self._offered()], most_usd_per_hour, self.tie)
            if found is None or not self.search.columns.refine(found):
                return found

    def _cheapest(
        self, columns: list[Column], most_usd_per_hour: float, gap: float = RELATIVE_GAP
    ) -> Allocation | None:
        """The cheapest fleet of columns, whose rates are no more than those known; None where it costs more."""
        if not columns:
            return None
        found = self.search.allocation(
            columns,
            self.objective,
            self.flat,
            gap,
            known=dict(self.known),  # of these columns bounds may be higher
            most_usd_per_hour=most_usd_per_hour,
        )
        return None if found.objective is None or found.objective > most_usd_per_hour else found


def _as_hoped(column: Column) -> Column:
    """A column with what optimistic rates are likely to come to."""
    if column.is_exact:
        return column
    share = {True: 1.0, False: HOPED_SHARE}
    rates = {
        name: replace(rate, rate_per_s=share[rate.is_exact] * rate.rate_per_s) for name, rate in column.rates.items()
    }
    return replace(column, rates=rates)
