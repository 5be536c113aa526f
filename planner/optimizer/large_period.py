"""One period of a large fleet problem as an integer program over a shortlist of units."""

from __future__ import annotations

import time
from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csc_array

from planner.core import FloatArray, IntArray
from planner.optimizer.highs import FEASIBLE, ROUNDING_TOLERANCE, SOLVER_TOLERANCE
from planner.optimizer.large_tables import UNSERVED_ABOVE, Tables
from planner.optimizer.types import UnitStage

MOST_NODES = 500
"""Nodes of branch and bound in the program of one period, the same on every machine. A choice."""


@dataclass(frozen=True)
class PeriodProblem:
    """What is asked of one period.

    Attributes:
        period: index.
        demand: of each slice [1/s; S].
        units: shortlist [indices].
        held: what is there already of each purchase, by index of `Tables.purchases` (committed only) [units of it].
        before, after: units on in the neighbouring periods, or None where starts cost nothing or are not known [J].
        credit: what a unit on is worth to the periods that follow [USD/h; J].
        incumbent: units on in a solution that is known [J], or None.
        may_commit: whether more may be committed to than is held.
        committed_usd: price of committed purchases in this period, by index of `Tables.purchases` [USD/h of the horizon
            mean]; None: what the whole horizon costs. Given, the program is the period's part of a Lagrangian
            relaxation, and its bound is one of the whole problem.
        worth: there, what serving all of a slice that may wait is worth [USD/h of the horizon mean; S].
    """

    period: int
    demand: FloatArray
    units: IntArray
    held: FloatArray
    before: FloatArray | None = None
    after: FloatArray | None = None
    credit: FloatArray | None = None
    incumbent: FloatArray | None = None
    may_commit: bool = False
    committed_usd: FloatArray | None = None
    worth: FloatArray | None = None


@dataclass(frozen=True)
class PeriodAnswer:
    """What one period needs.

    Attributes:
        units: on [J].
        extra: further committed purchases that it would take, by index of `Tables.purchases`.
        cost, bound: of the period's own program [USD/h of the period].
    """

    units: FloatArray
    extra: FloatArray
    cost: float
    bound: float


class _ProgramBuilder:
    """Columns and rows of a program, collected one by one."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[bool] = []
        self.row_low: list[float] = []
        self.row_high: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def column(self, cost: float, low: float, high: float, whole: bool) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, low: float, high: float) -> int:
        self.row_low.append(low)
        self.row_high.append(high)
        return len(self.row_low) - 1

    def set(self, row: int, column: int, value: float) -> None:
        self.rows.append(row)
        self.columns.append(column)
        self.values.append(value)

    def model(self) -> highspy.HighsLp:
        shape = (len(self.row_low), len(self.cost))
        matrix = csc_array((self.values, (self.rows, self.columns)), shape=shape)
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = shape
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.array(self.cost), np.array(self.low), np.array(self.high)
        lp.row_lower_, lp.row_upper_ = np.array(self.row_low), np.array(self.row_high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[is_whole] for is_whole in self.whole]
        return lp


class PeriodProgram:
    """The integer program of one period.

    Units are whole; what slices take of them is counted by group of units with proportional rates, whose capacities add
    up: sum_s rate_gs * seconds_gs <= sum_j scale_j n_j is the same as a row for each unit, with fewer variables.
    """

    def __init__(self, tables: Tables, problem: PeriodProblem) -> None:
        """Write the program down.

        Args:
            tables: of the whole problem.
            problem: of the period.
        """
        self.tables, self.problem = tables, problem
        self.weight = float(tables.weights[problem.period])
        self.builder = _ProgramBuilder()
        self.scale = self._needed_scale()
        self.size = np.minimum(self.scale * tables.group_size[tables.group], tables.size)
        self._units()
        self._limits()
        self._serve()
        if tables.has_starts:
            self._starts()

    def _needed_scale(self) -> FloatArray:
        """Capacity of units, no more than all that their group could serve: the same fleets, a tighter relaxation."""
        seconds = self.tables.group_seconds
        need = np.where(seconds < UNSERVED_ABOVE, seconds, 0.0) @ self.problem.demand
        return np.minimum(self.tables.scale, need[self.tables.group])

    def _units(self) -> None:
        tables, problem = self.tables, self.problem
        usd = tables.unit_usd - (0.0 if problem.credit is None else problem.credit / self.weight)
        self.unit_column = {
            int(unit): self.builder.column(float(usd[unit]), tables.low[unit], tables.high[unit], True)
            for unit in problem.units
        }

    def _limits(self) -> None:
        tables, builder = self.tables, self.builder
        rows = [builder.row(-np.inf, 0.0 if np.isinf(cap) else float(cap)) for cap in tables.caps]
        for unit, column in self.unit_column.items():
            for limit in np.flatnonzero(tables.takes[unit]):
                builder.set(rows[limit], column, float(tables.takes[unit, limit]))
        pins = {resource: builder.row(most, np.inf) for resource, most in tables.pins.items()}
        self.purchase_columns: list[int] = []
        prices = self.problem.committed_usd
        for index, (option, held) in enumerate(zip(tables.purchases, self.problem.held, strict=True)):
            block, usable = option.purchase.block, option.purchase.usable_share
            usd = option.purchase.usd_per_hour * block / (self.weight if option.purchase.committed else 1.0)
            if option.purchase.committed and prices is not None:
                usd = float(prices[index]) * block / self.weight
            low = 0.0 if option.purchase.committed and prices is None else option.low / block
            most = (option.high - held) / block if self.problem.may_commit or not option.purchase.committed else 0.0
            column = builder.column(usd, low, max(most, 0.0), True)
            builder.set(rows[option.limit_index], column, -usable * block)
            builder.row_high[rows[option.limit_index]] += usable * held
            if option.resource in pins:
                builder.set(pins[option.resource], column, float(block))
                builder.row_low[pins[option.resource]] -= held
            self.purchase_columns.append(column)

    def _serve(self) -> None:
        """A variable for each group and slice: the share of the slice's demand that the group carries."""
        tables, builder, demand = self.tables, self.builder, self.problem.demand
        asked = np.flatnonzero(demand > 0.0)
        worth = np.zeros(len(demand)) if self.problem.worth is None else self.problem.worth / self.weight
        waits = tables.deferrable & (self.problem.worth is not None)
        serve = {
            int(index): builder.row(0.0 if waits[index] else 1.0, 1.0 if waits[index] else np.inf) for index in asked
        }
        stage_row: dict[tuple[str, int], int] = {}
        carry: dict[int, int] = {}
        for unit, column in self.unit_column.items():
            group = int(tables.group[unit])
            if group not in carry:
                carry[group] = builder.row(-np.inf, 0.0)
            builder.set(carry[group], column, -float(self.scale[unit]))
        for group, row in carry.items():
            section = tables.sections[int(tables.group_section[group])]
            for index in asked:
                seconds = float(tables.group_seconds[group, index])
                if seconds >= UNSERVED_ABOVE:
                    continue
                credit = float(worth[index]) if waits[index] and section.stage is not UnitStage.SECOND else 0.0
                column = builder.column(-credit, 0.0, 1.0, False)
                builder.set(row, column, seconds * float(demand[index]))
                if section.stage is not UnitStage.SECOND:
                    builder.set(serve[int(index)], column, 1.0)
                if section.stage is not UnitStage.WHOLE:
                    key = (section.channel, int(index))
                    if key not in stage_row:
                        stage_row[key] = builder.row(0.0, np.inf)
                    builder.set(stage_row[key], column, 1.0 if section.stage is UnitStage.SECOND else -1.0)

    def _starts(self) -> None:
        """What this period's units cost in starts: z >= n - before, and z' >= after - n for the next period."""
        for unit, column in self.unit_column.items():
            usd = float(self.tables.start_usd[unit]) / self.weight
            for neighbour, sign in ((self.problem.before, 1.0), (self.problem.after, -1.0)):
                if neighbour is not None and usd > 0.0:
                    row = self.builder.row(-np.inf, sign * float(neighbour[unit]))
                    self.builder.set(row, column, sign)
                    self.builder.set(row, self.builder.column(usd, 0.0, np.inf, False), -1.0)

    def round_units(self, deadline: float, threshold: float = 0.5) -> PeriodAnswer | None:
        """Whole units by rounding one cluster after the other and solving the linear program again in between.

        What a cluster lacks or has too much after rounding is taken or left by those not yet rounded, so that only the
        last of them wastes anything. Coarse units are rounded first, the finest last. Purchases in blocks come before.

        Args:
            deadline: of `time.monotonic` [s].
            threshold: part of the smallest unit from which a rest is rounded up.

        Returns:
            A solution; None: no rounding is feasible, or no time is left.
        """
        return RoundingHeuristic(self).run(deadline, threshold) or RoundingHeuristic(self).run(
            deadline, threshold, rounds_blocks=False
        )

    def solve(self, time_limit_s: float, gap_usd: float) -> PeriodAnswer | None:
        """Branch and bound.

        Args:
            time_limit_s: of the run [s].
            gap_usd: stop at the first solution this close to the best [USD/h].

        Returns:
            The best solution found; None: none was.
        """
        solver = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": 1,
            "time_limit": max(time_limit_s, 0.05),
            "mip_max_nodes": MOST_NODES,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": gap_usd,
            "primal_feasibility_tolerance": SOLVER_TOLERANCE,
            "mip_feasibility_tolerance": SOLVER_TOLERANCE,
        }
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self.builder.model())
        if self.problem.incumbent is not None:
            columns = np.array(list(self.unit_column.values()), dtype=np.int32)
            solver.setSolution(len(columns), columns, self.problem.incumbent[list(self.unit_column)])
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != FEASIBLE:
            return None
        values = np.array(solver.getSolution().col_value)
        cost, bound = float(info.objective_function_value), float(info.mip_dual_bound)
        return self.answer(values, cost, bound)

    def answer(self, values: FloatArray, cost: float, bound: float) -> PeriodAnswer:
        """Whole numbers from the values of a solver.

        Args:
            values: by column.
            cost: of the program [USD/h of the period].
            bound: on that cost [USD/h of the period].
        """
        units = np.zeros(len(self.tables.unit_names))
        for unit, column in self.unit_column.items():
            units[unit] = np.round(values[column])
        blocks = np.ceil(values[self.purchase_columns] - ROUNDING_TOLERANCE)
        extra = np.array(
            [
                count * option.purchase.block if option.purchase.committed else 0.0
                for count, option in zip(blocks, self.tables.purchases, strict=True)
            ]
        )
        return PeriodAnswer(units, extra, cost, bound)


class RoundingHeuristic:
    """A diving heuristic: rounding with repair, see `PeriodProgram.round_units`."""

    def __init__(self, program: PeriodProgram) -> None:
        self.program = program
        self.tables, self.builder, self.size = program.tables, program.builder, program.size
        self.unit_column, self.purchase_columns = program.unit_column, program.purchase_columns
        self.members: dict[int, list[int]] = {}
        for unit in self.unit_column:
            self.members.setdefault(int(self.tables.cluster[unit]), []).append(unit)
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        model = self.builder.model()
        model.integrality_ = []
        self.solver.passModel(model)
        self.values: FloatArray = np.zeros(0)

    def run(self, deadline: float, threshold: float, rounds_blocks: bool = True) -> PeriodAnswer | None:
        """The rounded solution; None: no rounding is feasible, or no time is left."""
        if not self._solve_relaxation():
            return None
        bound = float(self.solver.getInfo().objective_function_value)
        if rounds_blocks:
            self._round_blocks()
        open_clusters = sorted(self.members, key=self._smallest_unit_usd, reverse=True)
        while True:
            used = [
                cluster
                for cluster in open_clusters
                if self._capacity(cluster) > ROUNDING_TOLERANCE * self._smallest_size(cluster)
            ]
            if not used:
                break
            if time.monotonic() > deadline:
                return None
            small = [cluster for cluster in used if self._capacity(cluster) < threshold * self._smallest_size(cluster)]
            cluster = min(small, key=self._capacity) if small and len(used) > 1 else used[0]
            open_clusters.remove(cluster)
            if not self._fix_cluster(cluster, threshold, len(used) == 1):
                return None
        blocks = self.values[self.purchase_columns]
        rounding = (np.ceil(blocks - ROUNDING_TOLERANCE) - blocks) @ np.array(self.builder.cost)[self.purchase_columns]
        cost = float(self.solver.getInfo().objective_function_value + rounding)
        return self.program.answer(self.values, cost, bound)

    def _solve_relaxation(self) -> bool:
        """Solve the linear program as it stands; False: infeasible."""
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return False
        self.values = np.array(self.solver.getSolution().col_value)
        return True

    def _round_blocks(self) -> None:
        """Round what is bought in blocks of several, the dearest block first; the last is left to follow use."""
        coarse = [
            (option.purchase.usd_per_hour * option.purchase.block, column)
            for option, column in zip(self.tables.purchases, self.purchase_columns, strict=True)
            if option.purchase.block > 1 and not option.purchase.committed
        ]
        for _, column in sorted(coarse, reverse=True)[:-1]:
            value = float(self.values[column])
            if abs(value - round(value)) > ROUNDING_TOLERANCE:
                whole = float(round(value))
                above = float(np.ceil(value))
                if not self._solve_within({column: (whole, whole)}) and not self._solve_within(
                    {column: (above, above)}
                ):
                    self._solve_within({column: (self.builder.low[column], self.builder.high[column])})

    def _solve_within(self, bounds: dict[int, tuple[float, float]]) -> bool:
        """Solve again with other bounds of some columns; False: infeasible."""
        for column, (low, high) in bounds.items():
            self.solver.changeColBounds(column, low, high)
        return self._solve_relaxation()

    def _smallest_unit_usd(self, cluster: int) -> float:
        """Cost of the smallest unit of a cluster [USD/h]: what rounding can waste."""
        unit = min(self.members[cluster], key=lambda unit: float(self.size[unit]))
        return float(self.builder.cost[self.unit_column[unit]] + self.tables.takes[unit] @ self._usd_of_limits)

    @property
    def _usd_of_limits(self) -> FloatArray:
        usd = np.zeros(len(self.tables.caps))
        for option in self.tables.purchases:
            usd[option.limit_index] = option.purchase.usd_per_hour
        return usd

    def _smallest_size(self, cluster: int) -> float:
        return float(min(self.size[unit] for unit in self.members[cluster]))

    def _capacity(self, cluster: int) -> float:
        return float(sum(self.size[unit] * self.values[self.unit_column[unit]] for unit in self.members[cluster]))

    def _fix_cluster(self, cluster: int, threshold: float, is_last: bool) -> bool:
        """Fix the units of a cluster near its capacity; where that is infeasible, round the other way."""
        capacity = self._capacity(cluster)
        choices = [
            self._counts_for_capacity(cluster, capacity, up)
            for up in (1.0 - threshold if not is_last else 1.0, 1.0, 0.0)
        ]
        for counts in (*choices, self._counts_within_use(cluster)):
            if self._solve_within({self.unit_column[unit]: (count, count) for unit, count in counts.items()}):
                return True
        return False

    def _counts_within_use(self, cluster: int) -> dict[int, float]:
        """Largest sizes first, taking no more of any limit than the fractions do: for where a limit is short."""
        sizes = sorted(self.members[cluster], key=lambda unit: -float(self.size[unit]))
        fractions = np.array([self.values[self.unit_column[unit]] for unit in sizes])
        left = fractions @ self.tables.takes[sizes]
        counts: dict[int, float] = {}
        for unit in sizes:
            column, takes = self.unit_column[unit], self.tables.takes[unit]
            fits = np.divide(left, takes, out=np.full(len(takes), np.inf), where=takes > 0.0).min(initial=np.inf)
            whole = np.floor(min(fits, float(self.values[column]) if np.isinf(fits) else fits) + ROUNDING_TOLERANCE)
            counts[unit] = float(np.clip(whole, self.builder.low[column], self.builder.high[column]))
            left = left - counts[unit] * takes
        return counts

    def _counts_for_capacity(self, cluster: int, capacity: float, up: float) -> dict[int, float]:
        """Largest sizes first; the rest is covered when it is more than 1 - `up` of the smallest size.

        `up` = 1 covers everything, 0 nothing.
        """
        counts: dict[int, float] = {}
        rest = capacity
        sizes = sorted(self.members[cluster], key=lambda unit: -float(self.size[unit]))
        for unit in sizes:
            column, scale = self.unit_column[unit], float(self.size[unit])
            low, high = self.builder.low[column], self.builder.high[column]
            counts[unit] = float(np.clip(np.floor(rest / scale + ROUNDING_TOLERANCE), low, high))
            rest -= counts[unit] * scale
        if rest > (1.0 - up) * float(self.size[sizes[-1]]) + ROUNDING_TOLERANCE:
            for unit in reversed(sizes):
                column = self.unit_column[unit]
                if float(self.size[unit]) >= rest and counts[unit] < self.builder.high[column]:
                    counts[unit] += 1.0
                    break
        return counts
