"""The integer program solved in tiers: relaxation, a shortlist of units, and proof that the others cannot do better."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.optimizer.highs import ROUNDING_TOLERANCE, Outcome, solve_system, whole_numbers
from planner.optimizer.layout import Floats, Layout, Mask
from planner.optimizer.program import Program, System, system_of
from planner.optimizer.relaxation import Relaxed, relax, strengthen, unit_penalties
from planner.optimizer.tightening import pooled, spread, tightened, with_carry_most

FEW_UNITS = 96
"""Problems of at most this many units go to branch and bound as they are; so many are in the first shortlist."""
GROWTH = 2
"""A shortlist grows at most by this factor at a time."""

_ROUNDING = 1e-9
"""Share of a goal that floating-point sums may be off; far below `FEASIBILITY_TOLERANCE`."""

Maker = Callable[[Layout], Program]
"""States the same question over fewer units."""


@dataclass(frozen=True)
class Answer:
    """What one search found.

    Attributes:
        outcome: see `Outcome`.
        layout: of the units that were searched last; those left out are proved to be no better.
        values: by column of that layout, integers rounded; empty without a solution.
        bound: no solution has a better goal than this; None if nothing was proved.
    """

    outcome: Outcome
    layout: Layout
    values: Floats
    bound: float | None

    @property
    def has_values(self) -> bool:
        """Whether there is a solution."""
        return self.outcome.has_solution


@dataclass(frozen=True)
class _Penalties:
    """How much worse than the relaxation's bound any solution with a unit is, in the unit of the program's goal.

    Attributes:
        bound: of the relaxation.
        penalty: by unit, >= 0.
        worse: +1 where a greater goal is worse (a cost), -1 where a smaller one is.
    """

    bound: float
    penalty: Floats
    worse: float

    @staticmethod
    def of(layout: Layout, system: System, relaxed: Relaxed) -> _Penalties:
        """From the relaxation in the units of its system."""
        penalty = unit_penalties(layout, relaxed.penalty) * abs(system.goal_unit)
        return _Penalties(relaxed.bound * system.goal_unit, penalty, math.copysign(1.0, system.goal_unit))

    def least(self, count: int) -> Mask:
        """The units of least penalty, so many of them."""
        chosen = np.zeros(len(self.penalty), dtype=bool)
        chosen[np.argsort(self.penalty, kind="stable")[:count]] = True
        return chosen

    def can_beat(self, goal: float) -> Mask:
        """Units that a better solution than one of this goal may hold; rounding is given the benefit of the doubt."""
        reach = self.worse * (goal - self.bound) + _ROUNDING * abs(goal)
        return np.asarray(self.penalty <= reach)

    def bound_without(self, kept: Mask, bound: float | None) -> float:
        """Bound over all solutions, from one over those of the kept units only; never worse than the relaxation's."""
        left_out = self.bound + self.worse * float(self.penalty[~kept].min(initial=math.inf))
        loosest = self.bound if bound is None else bound
        loosest = min(loosest, left_out) if self.worse > 0.0 else max(loosest, left_out)
        return max(loosest, self.bound) if self.worse > 0.0 else min(loosest, self.bound)


class Solver:
    """HiGHS with a time budget that all runs share.

    Args:
        time_limit_s: for all runs of the solver together [s]; building comes on top.
        relative_gap: stop when the proved |bound - goal| / |goal| is at most this.
    """

    def __init__(self, time_limit_s: float, relative_gap: float) -> None:
        self.time_left_s = time_limit_s
        self.relative_gap = relative_gap

    def run(self, make: Maker, layout: Layout, absolute_gap: float = 0.0, relative_gap: float | None = None) -> Answer:
        """Solve the integer program ``make(layout)``. It must not be unbounded.

        Args:
            make: the program over a layout's units.
            layout: of all units.
            absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
            relative_gap: instead of the solver's.
        """
        gap = self.relative_gap if relative_gap is None else relative_gap
        if len(layout.usd_per_hour) <= FEW_UNITS:
            return self._search(make(layout), gap, absolute_gap)
        if self.time_left_s <= 0.0:
            return Answer(Outcome.UNKNOWN, layout, np.zeros(0), None)
        tight = tightened(make(layout))
        system = system_of(tight)
        relaxed = relax(system, self.time_left_s)
        self.time_left_s -= relaxed.seconds
        if relaxed.outcome is not Outcome.PROVEN:
            return Answer(relaxed.outcome, layout, np.zeros(0), None)
        above = _Penalties.of(layout, system, relaxed)
        return self._shortlist(make, tight, above, gap, absolute_gap)

    def _stronger(self, strong: Program, above: _Penalties) -> _Penalties:
        """With the rows that tighten units of several slices, if that is solved in time."""
        system = system_of(strong)
        kept = above.least(FEW_UNITS) | (strong.layout.at_least > 0)
        relaxed = strengthen(strong, system, kept, self.time_left_s)
        if relaxed is None:
            return above
        self.time_left_s -= relaxed.seconds
        return _Penalties.of(strong.layout, system, relaxed)

    def _shortlist(self, make: Maker, tight: Program, above: _Penalties, gap: float, absolute_gap: float) -> Answer:
        """Solve over the units of least penalty; add those that could still be in a better solution; repeat.

        The costlier relaxation is only solved where the first answer is not yet proved by the plain one.
        """
        layout, strong = tight.layout, with_carry_most(tight)
        kept = above.least(FEW_UNITS) | (layout.at_least > 0)
        best, goal = Answer(Outcome.UNKNOWN, layout, np.zeros(0), None), above.worse * math.inf
        while True:
            fewer = layout.only(kept)
            program = make(fewer)
            answer = self._search(program, gap, absolute_gap)
            if answer.has_values:
                found = float(program.goal @ answer.values)
                if above.worse * (found - goal) <= 0.0:
                    best, goal = answer, found
            bound = above.bound_without(kept, answer.bound)
            best = replace(best, bound=bound)
            if answer.outcome in (Outcome.FOUND, Outcome.UNKNOWN):
                return replace(best, outcome=Outcome.FOUND if best.has_values else Outcome.UNKNOWN)
            if kept.all():
                return best if best.has_values else answer
            if not best.has_values:
                kept |= above.least(GROWTH * int(kept.sum()))
                continue
            missing = ~kept & above.can_beat(goal)
            if not missing.any() or abs(goal - bound) <= max(absolute_gap, gap * abs(goal)):
                return best
            if strong is not tight:
                above = self._stronger(strong, above)
                strong = tight
                bound = above.bound_without(kept, answer.bound)
                best = replace(best, bound=bound)
                if abs(goal - bound) <= max(absolute_gap, gap * abs(goal)):
                    return best
                missing = ~kept & above.can_beat(goal)
            kept |= missing & above.least(GROWTH * int(kept.sum()))

    def _search(self, program: Program, gap: float, absolute_gap: float) -> Answer:
        """Branch and bound over one program."""
        layout = program.layout
        if self.time_left_s <= 0.0:
            return Answer(Outcome.UNKNOWN, layout, np.zeros(0), None)
        stated = pooled(with_carry_most(tightened(program)))
        system = system_of(stated)
        found = solve_system(
            system,
            whole=True,
            time_limit_s=self.time_left_s,
            relative_gap=gap,
            absolute_gap=absolute_gap / abs(system.goal_unit),
        )
        self.time_left_s -= found.seconds
        if not found.outcome.has_solution:
            return Answer(found.outcome, layout, np.zeros(0), None)
        values = whole_numbers(found.values, system.integer) * system.column_unit
        values[stated.implied] = np.ceil(values[stated.implied] - ROUNDING_TOLERANCE)
        values[: layout.columns] = spread(layout, values[: layout.columns])
        bound = found.bound * system.goal_unit if math.isfinite(found.bound) else None
        return Answer(found.outcome, layout, values, bound)

    def polished(self, program: Program, values: Floats) -> Floats:
        """The best real columns for the whole numbers found, to the precision of a linear program."""
        system = system_of(tightened(program))
        fixed = np.where(system.integer, values, 0.0)
        upper = np.where(system.integer, np.maximum(fixed, 0.0), system.upper)
        found = solve_system(replace(system, upper=upper), whole=False, lower=fixed)
        return found.values * system.column_unit if found.outcome is Outcome.PROVEN else values
