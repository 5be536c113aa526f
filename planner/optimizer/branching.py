"""Integer programs solved by HiGHS, with limits on work and time that all of them share.

Work is counted in what does not depend on the machine: how often the solver asks whether to stop, times the entries of
the program, so that the same question gets the same answer on a busy machine. Only a caller who sets a limit in
seconds gets an answer that depends on them.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from planner.core import FloatArray
from planner.optimizer.highs import Solution, SolverOutcome, round_integers, solve_scaled
from planner.optimizer.program import Program, scale_program
from planner.optimizer.tightening import pool_rates, unpool_rates

LEAST_CHECKS = 100
"""Checks of the solver that every program is granted, whatever work is left: most end at their first node."""


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
        program: Program,
        absolute_gap: float = 0.0,
        relative_gap: float | None = None,
        start: FloatArray | None = None,
    ) -> Solution:
        """Solve an integer program. It must not be unbounded.

        Args:
            program: as stated.
            absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
            relative_gap: instead of the solver's.
            start: values by column of the layout that are known to be a solution.

        Returns:
            The best solution, integers rounded, with what is proved, in the units of the program.
        """
        if self.is_out_of_time:
            return Solution(SolverOutcome.UNKNOWN, np.zeros(0), math.inf, math.inf, np.zeros(0))
        layout, scaled = program.layout, scale_program(pool_rates(program))
        size = max(1, scaled.matrix.nnz)
        if start is not None:  # none above its limit; extra columns are 0
            start = np.append(start, np.zeros(program.extra_columns)) / scaled.column_unit
            start = np.minimum(start, scaled.upper)
        solution = solve_scaled(
            scaled,
            whole=True,
            time_limit_s=self.time_left_s,
            relative_gap=self.relative_gap if relative_gap is None else relative_gap,
            absolute_gap=absolute_gap / abs(scaled.goal_unit),
            most_checks=max(LEAST_CHECKS, self.work_left / size),
            start=start,
        )
        self.work_left -= solution.checks * size
        goal, bound = solution.goal * scaled.goal_unit, solution.bound * scaled.goal_unit
        if not solution.outcome.has_solution:
            return replace(solution, goal=goal, bound=bound)
        values = round_integers(solution.values, scaled.integer) * scaled.column_unit
        values[: layout.columns] = unpool_rates(layout, values[: layout.columns])
        return replace(solution, values=values, goal=goal, bound=bound)
