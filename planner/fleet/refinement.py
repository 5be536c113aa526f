"""From optimistic rates to true ones: the cheapest fleet, though only the rates of chosen columns are computed.

The program is solved, the optimistic rates that its answer rests on are replaced by true ones, and so on. Rates fall,
so that the answer whose columns all have true rates is optimal over the true rates of all. The same program
over columns with true rates alone gives a fleet that can be had; once no fleet can be cheaper by a share that matters,
the rest need not be refined.

Where GPUs are sold in blocks, they are bought in parts at first: a fleet that costs no more, found sooner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

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
WORTH_A_TRIAL = 3.0
"""Of these gaps the bound may fall short of the cheapest fleet known before no other is looked for. Affects speed."""


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
) -> Allocation:
    """The best fleet over the true rates of all columns.

    Args:
        search: the program and its columns, whose rates are replaced.
        objective: of the program.
        columns: asked before every solve for the columns that may be chosen, those of the same configurations every
            time; None: all.
        flat: one period of the largest demand of each slice.
        finest_gap: to which the last answer is proved.
        enough_usd_per_hour: cost from which on it does not matter how much more it is: the answer then has optimistic
            rates or parts of blocks, with which no fleet costs less.
        most_usd_per_hour: fleets that cost more are not looked for.
        at_least_usd_per_hour: what no fleet costs less than, wherever it is bought: of some columns, the bound of all.

    Returns:
        The fleet, with its gap to a bound on what any costs; infeasible, or one that costs more, where none costs at
        most `most_usd_per_hour`.
    """
    known = dict.fromkeys(range(len(search.market.sites)), at_least_usd_per_hour)
    asked = search, objective, columns, flat, finest_gap, enough_usd_per_hour, most_usd_per_hour
    return _Refinement(*asked, known=known, rises=search.columns.rises).run()


def with_bound(allocation: Allocation, usd_per_hour: float) -> Allocation:
    """An allocation with its gap to a bound on what any costs [USD/h]."""
    gap = max(1.0 - usd_per_hour / (allocation.objective or math.inf), 0.0)
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    return allocation.model_copy(update={"gap": gap, "status": status})


@dataclass
class _Refinement:
    """What is asked, and how far it has come: to which gap, in parts of blocks or not, and the best fleet known."""

    search: FleetSearch
    objective: Objective
    columns: Callable[[], list[Column]] | None
    flat: bool
    finest_gap: float
    enough_usd_per_hour: float
    most_usd_per_hour: float
    gap: float = COARSE_GAP
    singly: bool = False
    best: Allocation | None = None
    known: dict[int, float] = field(default_factory=dict)
    rises: int = 0

    def run(self) -> Allocation:
        """Solve and refine until nothing is left to refine."""
        self.singly = self.objective is Objective.MIN_COST and self.search.market.sells_blocks
        while True:
            self.search.progress("solving")
            answer = self._solved(self._offered())
            if self._is_too_dear(answer):
                return answer
            if answer.status.has_allocation and self.search.columns.refine(answer):
                near = self._near_enough(lower_bound(answer))
                if near is not None and not self.singly:
                    return near
                if near is not None:
                    self._in_blocks()
                else:
                    self._coarsely()
            elif self.singly:
                self._in_blocks()
            elif self._is_last(answer):
                return answer

    def _offered(self) -> list[Column]:
        return self.search.columns.all if self.columns is None else self.columns()

    def _solved(self, columns: list[Column]) -> Allocation:
        if self.rises != self.search.columns.rises:
            self.known.clear()
            self.rises = self.search.columns.rises
        return self.search.allocation(
            columns,
            self.objective,
            self.flat,
            self.gap,
            singly=self.singly,
            known=self.known,
            most_usd_per_hour=self.most_usd_per_hour,
        )

    def _is_too_dear(self, answer: Allocation) -> bool:
        """Whether no fleet is as cheap as is asked: costs only rise as rates fall and blocks are bought whole."""
        if not answer.status.has_allocation:
            return answer.status is SolveStatus.INFEASIBLE and self.most_usd_per_hour < math.inf
        return answer.cost_usd_per_hour > min(self.enough_usd_per_hour, self.most_usd_per_hour)

    def _coarsely(self) -> None:
        """Solve coarsely again; in whole blocks a coarse answer would take as long."""
        if self.singly or not self.search.market.sells_blocks:
            self.gap = COARSE_GAP

    def _in_blocks(self) -> None:
        self.gap, self.singly, self.best = self.finest_gap, False, None

    def _is_last(self, answer: Allocation) -> bool:
        """Whether an answer that rests on true rates alone is proved as far as it can be; else to which gap next."""
        is_finest = self.gap <= self.finest_gap
        if not answer.status.has_allocation:
            last = is_finest or answer.diagnosis is not None
        elif is_finest and answer.status.is_cut_short and self.search.columns.refine_bound(answer):
            self._coarsely()
            return False
        else:
            last = is_finest or (answer.gap is not None and answer.gap <= self.finest_gap)
        self.gap = self.finest_gap
        return last

    def _near_enough(self, bound_usd_per_hour: float) -> Allocation | None:
        """A fleet of columns with true rates than which none is cheaper by a share that matters; None if none is known.

        It is looked for again only where the bound is not too far below the last one; bought in parts, always, but only
        where it may be near enough.
        """
        if self.objective is not Objective.MIN_COST:
            return None
        tie = max(RELATIVE_GAP, SHARE_OF_A_TIE * self.search.request.search.simplicity)
        gap = math.inf if self.best is None else with_bound(self.best, bound_usd_per_hour).gap or 0.0
        if gap > tie and (self.singly or self.best is None or gap <= WORTH_A_TRIAL * tie):
            most = bound_usd_per_hour / (1.0 - tie) if self.singly else math.inf
            if self.best is not None and self.best.objective is not None:
                most = min(most, self.best.objective)
            found = self._exact(most)
            if found is not None and found.objective is not None:
                self.best = found
        if self.best is None:
            return None
        proved = with_bound(self.best, bound_usd_per_hour)
        return proved if (proved.gap or 0.0) <= tie else None

    def _exact(self, most_usd_per_hour: float) -> Allocation | None:
        """The cheapest fleet of columns with true rates; None where no column has them."""
        exact = [column for column in self._offered() if column.is_exact]
        if not exact:
            return None
        return self.search.allocation(
            exact,
            self.objective,
            self.flat,
            singly=self.singly,
            known=dict(self.known),  # of these columns bounds may be higher
            most_usd_per_hour=most_usd_per_hour,
        )
