"""Integer programs solved by HiGHS, with limits on work and time that all of them share.

Work is counted in what does not depend on the machine: how often the solver asks whether to stop, times the entries of
the program, so that the same question gets the same answer on a busy machine. Only a caller who sets a limit in
seconds gets an answer that depends on them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray
from planner.optimizer.highs import SolverOutcome, round_integers, solve_scaled
from planner.optimizer.layout import Layout
from planner.optimizer.program import Program, ScaledProgram, scale_program
from planner.optimizer.tightening import pool_rates, unpool_rates

LEAST_CHECKS = 100
"""Checks of the solver that every program is granted, whatever work is left: most end at their first node."""

ProgramMaker = Callable[[Layout], Program]
"""States a question over units."""


@dataclass(frozen=True)
class SearchAnswer:
    """What one search found.

    Attributes:
        outcome: see `SolverOutcome`.
        values: by column of the layout, integers rounded; empty without a solution.
        bound: no solution has a better goal than this; None if nothing was proved.
    """

    outcome: SolverOutcome
    values: FloatArray
    bound: float | None

    @property
    def has_values(self) -> bool:
        """Whether there is a solution."""
        return self.outcome.has_solution


class ProgramSolver:
    """Solves integer programs by HiGHS, with one limit for all of them.

    Args:
        relative_gap: stop when the proved |bound - goal| / |goal| is at most this.
        work: checks x entries of all programs together.
        time_limit_s: from now on [s]; a linear program and bookkeeping come on top.
    """

    def __init__(self, relative_gap: float, work: float, time_limit_s: float = math.inf) -> None:
        self.relative_gap = relative_gap
        self.work_left = work
        self._deadline = time.monotonic() + time_limit_s

    @property
    def time_left_s(self) -> float:
        """Until the limit [s]; infinite without one."""
        return self._deadline - time.monotonic()

    @property
    def is_out_of_time(self) -> bool:
        """Whether the limit in seconds was reached."""
        return self.time_left_s <= 0.0

    def run(
        self,
        make: ProgramMaker,
        layout: Layout,
        absolute_gap: float = 0.0,
        relative_gap: float | None = None,
        start: FloatArray | None = None,
    ) -> SearchAnswer:
        """Solve the integer program ``make(layout)``. It must not be unbounded.

        Args:
            make: the program over a layout's units.
            layout: of the units.
            absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
            relative_gap: instead of the solver's.
            start: values by column of the layout that are known to be a solution.

        Returns:
            The best solution, with what is proved.
        """
        if self.is_out_of_time:
            return SearchAnswer(SolverOutcome.UNKNOWN, np.zeros(0), None)
        stated = pool_rates(make(layout))
        scaled = scale_program(stated)
        size = max(1, scaled.matrix.nnz)
        solution = solve_scaled(
            scaled,
            whole=True,
            time_limit_s=self.time_left_s,
            relative_gap=self.relative_gap if relative_gap is None else relative_gap,
            absolute_gap=absolute_gap / abs(scaled.goal_unit),
            most_checks=max(LEAST_CHECKS, self.work_left / size),
            start=None if start is None else _scaled_start(stated, scaled, start),
        )
        self.work_left -= solution.checks * size
        bound = solution.bound * scaled.goal_unit if math.isfinite(solution.bound) else None
        if not solution.outcome.has_solution:
            return SearchAnswer(solution.outcome, np.zeros(0), bound)
        values = round_integers(solution.values, scaled.integer) * scaled.column_unit
        values[: layout.columns] = unpool_rates(layout, values[: layout.columns])
        return SearchAnswer(solution.outcome, values, bound)


def _scaled_start(stated: Program, scaled: ScaledProgram, values: FloatArray) -> FloatArray:
    """Whole numbers of a solution as the solver counts them, none above its limit; extra columns are 0."""
    start = np.zeros(stated.columns)
    start[: len(values)] = values
    return np.minimum(start / scaled.column_unit, scaled.upper)
