"""Programs given to HiGHS, with limits on work and time that all of them share.

What the solver says is turned into plain values here: "Optimal" is only what HiGHS proved, and integers are rounded,
never truncated. Work is counted in what does not depend on the machine: how often the solver asks whether to stop,
times the entries of the program, so that the same question gets the same answer on a busy machine. Only a caller who
sets a limit in seconds gets an answer that depends on them.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import highspy
import numpy as np

from planner.core import BoolArray, FloatArray, PlannerError
from planner.optimizer.program import SPREAD_FIX, Program, pool_rates, scale_program, unpool_rates

OWN_SOLVER = "highs"
"""The solver that needs no PuLP, and before which covers and periods are tried."""
SOLVER_TOLERANCE = 1e-8
"""HiGHS options `mip_feasibility_tolerance` and `primal_feasibility_tolerance`, on rows scaled to about 1.

A hundredth of `FEASIBILITY_TOLERANCE`, so that a solution of the solver passes our own check (defaults: 1e-6, 1e-7).
"""
ROUNDING_TOLERANCE = 1e-4
"""Largest distance of a solver's integer from a whole number; more is no rounding but a failure."""
_SUB_PROGRAMS = ("feasibility_jump", "rins", "rens")
"""HiGHS options `mip_heuristic_run_...` that look for better solutions beside the tree."""
FEW_ENTRIES = 1_000
"""Entries below which a program is solved without them, twice as many where it has a start: its tree is done before
they are. A choice that affects speed, and which of the fleets within the gap is found."""
MANY_UNITS = 1e6
"""Of a column, units beyond which it is solved without HiGHS's reduced program at the root too. Measured at 2 x 10^8:
79 s with it, 0.7 s without. A choice: no plan that is not refused later has as many."""
_ROW_WISE, _MINIMISE, _FEASIBLE = 2, 1, 2
"""HiGHS `MatrixFormat::kRowwise`, `ObjSense::kMinimize` and `SolutionStatus::kSolutionStatusFeasible`."""
LEAST_CHECKS = 100
"""Checks of the solver that every program is granted, whatever work is left: most end at their first node."""


@dataclass(frozen=True)
class Solution:
    """Result of one run, in the units of the program.

    Attributes:
        is_proven: that it is within the gap asked for, or that there is none; else work or time ran out.
        values: of each column; empty without a solution.
        bound: no solution has a better goal; infinite if nothing was proved.
        row_duals: d(goal)/d(limit) by row, of a linear program that was solved; else empty.
        work: of an integer program, how often the solver asked whether to stop x its entries.
    """

    is_proven: bool
    values: FloatArray
    bound: float
    row_duals: FloatArray
    work: float

    @property
    def is_found(self) -> bool:
        """True if there is a solution."""
        return len(self.values) > 0

    @property
    def is_infeasible(self) -> bool:
        """True if it is proved that there is none."""
        return self.is_proven and not self.is_found


def solve_program(
    program: Program,
    *,
    whole: bool,
    relative_gap: float = 0.0,
    absolute_gap: float = 0.0,
    most_work: float = math.inf,
    time_limit_s: float = math.inf,
    start: FloatArray | None = None,
    cutoff: float = math.inf,
) -> Solution:
    """HiGHS's solution and bound of a program that is not unbounded [units of the program].

    Args:
        program: as stated.
        whole: with whole numbers; else the linear relaxation.
        relative_gap: stop when the proved |bound - goal| / |goal| is at most this.
        absolute_gap: stop when the proved |bound - goal| is at most this.
        most_work: of an integer program, after how much of `Solution.work` it stops; one thread asks whether to stop in
            the same order whatever else the machine does.
        time_limit_s: of this run [s].
        start: a solution that is known, by column of the layout; only its whole numbers are used.
        cutoff: of an integer program that is minimised, solutions of a greater goal are not looked for; no bound is
            above it.

    Raises:
        PlannerError: HiGHS neither solved the program nor came to a limit.
    """
    scaled = scale_program(program)
    unit, most_goal = abs(scaled.goal_unit), cutoff / abs(scaled.goal_unit)
    kept = np.flatnonzero((scaled.upper > 0.0) | (np.arange(program.columns) == 0))  # HiGHS asks for one at least
    matrix, columns, size = scaled.matrix[:, kept], len(kept), max(1, scaled.matrix.nnz)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "mip_feasibility_tolerance": SOLVER_TOLERANCE,
        "primal_feasibility_tolerance": SOLVER_TOLERANCE,
        "presolve": "choose" if whole else "off",  # duals are those of a vertex, to the last digit
        "mip_rel_gap": relative_gap,
        "mip_abs_gap": absolute_gap / unit,
        "objective_bound": most_goal,
        "time_limit": max(0.0, time_limit_s),
        "mip_allow_restart": False,  # on some hundred columns they take longer than they save, with blocks by a third
    }
    if whole and matrix.nnz < (FEW_ENTRIES if start is None else 2 * FEW_ENTRIES):
        options |= {f"mip_heuristic_run_{name}": False for name in _SUB_PROGRAMS}
    integer = program.integer()[kept]
    options["mip_heuristic_run_root_reduced_cost"] = bool(scaled.upper[kept][integer].max(initial=0.0) <= MANY_UNITS)
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(
        columns, len(scaled.low), matrix.nnz, _ROW_WISE, _MINIMISE, 0.0,
        scaled.goal[kept], np.zeros(columns), scaled.upper[kept],
        scaled.low, scaled.high,
        matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data,
        (integer & whole).astype(np.int32),
    )  # fmt: skip
    if start is not None:  # extra columns are 0, and none is above its limit
        known = np.minimum(np.append(start, np.zeros(program.extra_columns)) / scaled.column_unit, scaled.upper)
        named = np.flatnonzero(integer)
        solver.setSolution(len(named), named.astype(np.int32), known[kept][named])
    checks, most_checks = 0, max(LEAST_CHECKS, most_work / size)

    def count_checks(event: highspy.highs.HighsCallbackEvent) -> None:
        nonlocal checks
        checks += 1
        if checks > most_checks:
            event.interrupt()

    if whole:
        solver.cbMipInterrupt += count_checks
    solver.run()
    (is_proven, is_found), point = _ended(solver), solver.getSolution()
    values, bound, row_duals = np.zeros(0), -math.inf, np.zeros(0)
    if is_found and (whole or is_proven):
        values = np.zeros(program.columns)
        values[kept] = point.col_value * scaled.column_unit[kept]
    if whole and math.isfinite(proved := min(float(solver.getInfo().mip_dual_bound), most_goal)):
        bound = proved
    elif len(values) and not whole:
        row_duals = np.array(point.row_dual) * scaled.goal_unit / scaled.row_unit
        bound = float(scaled.goal @ (values / scaled.column_unit))
    return Solution(is_proven, values, bound * scaled.goal_unit, row_duals, checks * size)


def _ended(solver: highspy.Highs) -> tuple[bool, bool]:
    """Status of a run of HiGHS: ended with a proof, ended with a solution.

    What is unbounded counts as infeasible, because nothing given is. Raises PlannerError where it neither solved the
    program nor came to a limit.
    """
    status = solver.getModelStatus().name
    if status in ("kTimeLimit", "kInterrupt", "kIterationLimit", "kUnknown"):
        return False, solver.getInfo().primal_solution_status == _FEASIBLE
    if status not in ("kOptimal", "kInfeasible", "kUnboundedOrInfeasible"):
        raise PlannerError("solver status", status, "HiGHS neither solved the program nor came to a limit", SPREAD_FIX)
    return True, status == "kOptimal"


def _rounded(values: FloatArray, integer: BoolArray) -> FloatArray:
    """The values with integers rounded: `int(value)` would turn 2.9999999 into 2. Others are kept, but not below 0.

    Raises PlannerError where one is no whole number to `ROUNDING_TOLERANCE`.
    """
    rounded = np.where(integer, np.round(values), values)
    off = np.flatnonzero(np.abs(rounded - values) > ROUNDING_TOLERANCE)
    if len(off):
        bound = f"is not a whole number to {ROUNDING_TOLERANCE}"
        raise PlannerError(f"column {int(off[0])}", float(values[off[0]]), bound, SPREAD_FIX)
    return np.maximum(rounded, 0.0)


@dataclass
class ProgramSolver:
    """Solves integer programs by HiGHS, with limits for all of them together.

    Attributes:
        relative_gap: stop when the proved |bound - goal| / |goal| is at most this.
        work_left: checks x entries of all programs together.
        until_s: when to stop, on `time.monotonic` [s].
        absolute_gap: also stop when |bound - goal| is at most this, in the unit of the goal.
    """

    relative_gap: float
    work_left: float
    until_s: float = math.inf
    absolute_gap: float = 0.0
    is_own: ClassVar[bool] = True
    """Covers and periods by themselves are tried before a program is handed over; other solvers get it at once."""

    def solution(self, program: Program, share_of_gap: float, start: FloatArray | None, cutoff: float) -> Solution:
        """The best solution of a program in pooled columns [units of the program]; arguments as those of `run`."""
        return solve_program(
            program,
            whole=True,
            relative_gap=share_of_gap * self.relative_gap,
            absolute_gap=self.absolute_gap,
            most_work=self.work_left,
            time_limit_s=self.until_s - time.monotonic(),
            start=start,
            cutoff=cutoff,
        )

    @property
    def is_out_of_time(self) -> bool:
        """True if the time is up."""
        return time.monotonic() >= self.until_s

    def run(
        self, program: Program, start: FloatArray | None = None, cutoff: float = math.inf, share_of_gap: float = 1.0
    ) -> Solution:
        """The best solution of an integer program that is not unbounded, integers rounded, with what is proved of it.

        `start`: values by column of the layout that are known to be a solution; `cutoff`: of what is minimised,
        solutions of a greater goal are not looked for; `share_of_gap`: of the relative one.
        """
        solution = self.solution(pool_rates(program), share_of_gap, start, cutoff)
        self.work_left -= solution.work
        if not solution.is_found:
            return solution
        layout, values = program.layout, _rounded(solution.values, program.integer())
        values[: layout.columns] = unpool_rates(layout, values[: layout.columns])
        return replace(solution, values=values)
