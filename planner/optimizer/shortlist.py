"""The integer program solved over a shortlist of units, with proof that the others cannot do better.

The relaxation gives a bound and a penalty for each unit; branch and bound runs over the units of least penalty; units
whose penalty could still pay are added until none is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.core import BoolArray, FloatArray
from planner.optimizer.highs import ROUNDING_TOLERANCE, SolverOutcome, round_integers, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program
from planner.optimizer.relaxation import RelaxedSolution, solve_relaxation, strengthen, unit_penalties
from planner.optimizer.tightening import add_carry_most_rows, pool_rates, tighten_rates, unpool_rates

SHORTLIST_UNITS = 192
"""Units of the first shortlist; problems of no more go to branch and bound as they are.

A choice: affects speed, not what is proved.
"""
SHORTLIST_GROWTH = 2
"""Largest factor by which a shortlist grows at a time. A choice: affects speed, not what is proved."""
_GOAL_ROUNDING = 1e-9
"""Share of a goal by which floating-point sums may be off; far below `FEASIBILITY_TOLERANCE`."""

ProgramMaker = Callable[[Layout], Program]
"""States the same question over fewer units."""


@dataclass(frozen=True)
class SearchAnswer:
    """What one search found.

    Attributes:
        outcome: see `SolverOutcome`.
        layout: of the units that were searched last; those left out are proved to be no better.
        values: by column of that layout, integers rounded; empty without a solution.
        bound: no solution has a better goal than this; None if nothing was proved.
    """

    outcome: SolverOutcome
    layout: Layout
    values: FloatArray
    bound: float | None

    @property
    def has_values(self) -> bool:
        """Whether there is a solution."""
        return self.outcome.has_solution

    @staticmethod
    def without_values(outcome: SolverOutcome, layout: Layout) -> SearchAnswer:
        """Nothing found and nothing proved but the outcome."""
        return SearchAnswer(outcome, layout, np.zeros(0), None)


@dataclass(frozen=True)
class _Penalties:
    """How much worse than the relaxation's bound any solution with a unit is, in the unit of the program's goal.

    Attributes:
        bound: of the relaxation.
        penalty: by unit, >= 0.
        worse: +1 where a greater goal is worse (a cost), -1 where a smaller one is.
    """

    bound: float
    penalty: FloatArray
    worse: float

    @staticmethod
    def from_relaxation(layout: Layout, scaled: ScaledProgram, relaxed: RelaxedSolution) -> _Penalties:
        """From the relaxation in the units of its system."""
        penalty = unit_penalties(layout, relaxed.penalty) * abs(scaled.goal_unit)
        return _Penalties(relaxed.bound * scaled.goal_unit, penalty, math.copysign(1.0, scaled.goal_unit))

    def least(self, count: int) -> BoolArray:
        """The given number of units of least penalty; shape (j,)."""
        chosen = np.zeros(len(self.penalty), dtype=bool)
        chosen[np.argsort(self.penalty, kind="stable")[:count]] = True
        return chosen

    def can_beat(self, goal: float) -> BoolArray:
        """Units that a better solution than one of this goal may hold; rounding is given the benefit of the doubt."""
        reach = self.worse * (goal - self.bound) + _GOAL_ROUNDING * abs(goal)
        return np.asarray(self.penalty <= reach)

    def bound_without(self, kept: BoolArray, bound: float | None) -> float:
        """Bound over all solutions, from one over those of the kept units only; never worse than the relaxation's."""
        left_out = self.bound + self.worse * float(self.penalty[~kept].min(initial=math.inf))
        loosest = self.bound if bound is None else bound
        loosest = min(loosest, left_out) if self.worse > 0.0 else max(loosest, left_out)
        return max(loosest, self.bound) if self.worse > 0.0 else min(loosest, self.bound)


class ShortlistSolver:
    """Solves integer programs by HiGHS, with one time limit for all of them.

    Args:
        time_limit_s: for all runs of the solver together [s]; building comes on top.
        relative_gap: stop when the proved |bound - goal| / |goal| is at most this.
    """

    def __init__(self, time_limit_s: float, relative_gap: float) -> None:
        self.time_left_s = time_limit_s
        self.relative_gap = relative_gap

    def run(
        self, make: ProgramMaker, layout: Layout, absolute_gap: float = 0.0, relative_gap: float | None = None
    ) -> SearchAnswer:
        """Solve the integer program ``make(layout)``. It must not be unbounded.

        Args:
            make: the program over a layout's units.
            layout: of all units.
            absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
            relative_gap: instead of the solver's.

        Returns:
            The best solution over all units of the layout, with what is proved.
        """
        gap = self.relative_gap if relative_gap is None else relative_gap
        if len(layout.usd_per_hour) <= SHORTLIST_UNITS:
            return self._search(make(layout), gap, absolute_gap)
        if self.time_left_s <= 0.0:
            return SearchAnswer.without_values(SolverOutcome.UNKNOWN, layout)
        tight = tighten_rates(make(layout))
        scaled = scale_program(tight)
        relaxed = solve_relaxation(scaled, self.time_left_s)
        self.time_left_s -= relaxed.seconds
        if relaxed.outcome is not SolverOutcome.PROVEN:
            return SearchAnswer.without_values(relaxed.outcome, layout)
        penalties = _Penalties.from_relaxation(layout, scaled, relaxed)
        return self._shortlist(make, tight, penalties, gap, absolute_gap)

    def _tighter_penalties(self, strong: Program, penalties: _Penalties) -> _Penalties:
        """Penalties of the relaxation with the rows `carry_most`, if that is solved in time; else those given."""
        scaled = scale_program(strong)
        kept = penalties.least(SHORTLIST_UNITS) | (strong.layout.at_least > 0)
        relaxed = strengthen(strong, scaled, kept, self.time_left_s)
        if relaxed is None:
            return penalties
        self.time_left_s -= relaxed.seconds
        return _Penalties.from_relaxation(strong.layout, scaled, relaxed)

    def _shortlist(
        self, make: ProgramMaker, tight: Program, penalties: _Penalties, gap: float, absolute_gap: float
    ) -> SearchAnswer:
        """Solve over the units of least penalty; add those that could still be in a better solution; repeat.

        The costlier relaxation is only solved where the first answer is not yet proved by the plain one.
        """
        layout, strong = tight.layout, add_carry_most_rows(tight)
        kept = penalties.least(SHORTLIST_UNITS) | (layout.at_least > 0)
        best, goal = SearchAnswer.without_values(SolverOutcome.UNKNOWN, layout), penalties.worse * math.inf
        while True:
            fewer = layout.select(kept)
            program = make(fewer)
            answer = self._search(program, gap, absolute_gap)
            if answer.has_values:
                newest = float(program.goal @ answer.values)
                if penalties.worse * (newest - goal) <= 0.0:
                    best, goal = answer, newest
            bound = penalties.bound_without(kept, answer.bound)
            best = replace(best, bound=bound)
            if answer.outcome in (SolverOutcome.FOUND, SolverOutcome.UNKNOWN):
                return replace(best, outcome=SolverOutcome.FOUND if best.has_values else SolverOutcome.UNKNOWN)
            if kept.all():
                return best if best.has_values else answer
            if not best.has_values:
                kept |= penalties.least(SHORTLIST_GROWTH * int(kept.sum()))
                continue
            missing = ~kept & penalties.can_beat(goal)
            if not missing.any() or abs(goal - bound) <= max(absolute_gap, gap * abs(goal)):
                return best
            if strong is not tight:
                penalties = self._tighter_penalties(strong, penalties)
                strong = tight
                bound = penalties.bound_without(kept, answer.bound)
                best = replace(best, bound=bound)
                if abs(goal - bound) <= max(absolute_gap, gap * abs(goal)):
                    return best
                missing = ~kept & penalties.can_beat(goal)
            kept |= missing & penalties.least(SHORTLIST_GROWTH * int(kept.sum()))

    def _search(self, program: Program, gap: float, absolute_gap: float) -> SearchAnswer:
        """Branch and bound over one program."""
        layout = program.layout
        if self.time_left_s <= 0.0:
            return SearchAnswer.without_values(SolverOutcome.UNKNOWN, layout)
        stated = pool_rates(add_carry_most_rows(tighten_rates(program)))
        scaled = scale_program(stated)
        solution = solve_scaled(
            scaled,
            whole=True,
            time_limit_s=self.time_left_s,
            relative_gap=gap,
            absolute_gap=absolute_gap / abs(scaled.goal_unit),
        )
        self.time_left_s -= solution.seconds
        if not solution.outcome.has_solution:
            return SearchAnswer.without_values(solution.outcome, layout)
        values = round_integers(solution.values, scaled.integer) * scaled.column_unit
        values[stated.implied_integer] = np.ceil(values[stated.implied_integer] - ROUNDING_TOLERANCE)
        values[: layout.columns] = unpool_rates(layout, values[: layout.columns])
        bound = solution.bound * scaled.goal_unit if math.isfinite(solution.bound) else None
        return SearchAnswer(solution.outcome, layout, values, bound)

    def reoptimise_real_columns(self, program: Program, values: FloatArray) -> FloatArray:
        """The best real columns for the whole numbers found, to the precision of a linear program.

        Args:
            program: whose solution.
            values: of a solution, by column.

        Returns:
            By column; the values given where the linear program was not solved.
        """
        scaled = scale_program(tighten_rates(program))
        fixed = np.where(scaled.integer, values, 0.0)
        upper = np.where(scaled.integer, np.maximum(fixed, 0.0), scaled.upper)
        solution = solve_scaled(replace(scaled, upper=upper), whole=False, lower=fixed)
        return solution.values * scaled.column_unit if solution.outcome is SolverOutcome.PROVEN else values
