"""One period of a large fleet problem as an integer program over a shortlist of units."""

from __future__ import annotations

import time
from dataclasses import dataclass

import highspy
import numpy as np
from scipy.sparse import csc_array

from planner.optimizer.large_tables import BEYOND, Floats, Integers, Tables
from planner.optimizer.types import Stage

WHOLE_NUMBER = 1e-4
"""Largest distance of a solver's integer from a whole number (HiGHS `mip_feasibility_tolerance` is 1e-6)."""
SOLVER_TOLERANCE = 1e-8
"""HiGHS feasibility tolerances, a hundredth of `FEASIBILITY_TOLERANCE`, so that rounding passes our own check."""


@dataclass(frozen=True)
class Question:
    """What is asked of one period.

    Attributes:
        period: index.
        demand: of each slice [1/s; S].
        units: shortlist [indices].
        held: what is there already of each purchase, by index of `Tables.buyings` (committed only) [units of it].
        before, after: units on in the neighbouring periods, or None where starts cost nothing or are not known [J].
        credit: what a unit on is worth to the periods that follow [USD/h; J].
        incumbent: units on in a solution that is known [J], or None.
        may_commit: whether more may be committed to than is held.
        committed_usd: price of committed purchases in this period, by index of `Tables.buyings` [USD/h of the horizon
            mean]; None: what the whole horizon costs. Given, the program is the period's part of a Lagrangian
            relaxation, and its bound is one of the whole problem.
        worth: there, what serving all of a slice that may wait is worth [USD/h of the horizon mean; S].
    """

    period: int
    demand: Floats
    units: Integers
    held: Floats
    before: Floats | None = None
    after: Floats | None = None
    credit: Floats | None = None
    incumbent: Floats | None = None
    may_commit: bool = False
    committed_usd: Floats | None = None
    worth: Floats | None = None


@dataclass(frozen=True)
class PeriodAnswer:
    """What one period needs.

    Attributes:
        units: on [J].
        extra: further committed purchases that it would take, by index of `Tables.buyings`.
        cost, bound: of the period's own program [USD/h of the period].
    """

    units: Floats
    extra: Floats
    cost: float
    bound: float


class _Builder:
    """Columns and rows as they come."""

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

    def put(self, row: int, column: int, value: float) -> None:
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
        lp.integrality_ = [kinds[one] for one in self.whole]
        return lp


class PeriodProgram:
    """The integer program of one period.

    Units are whole; what slices take of them is told by group of units with proportional rates, whose capacities add
    up: sum_s rate_gs * seconds_gs <= sum_j scale_j n_j is the same as a row for each unit, with fewer variables.
    """

    def __init__(self, tables: Tables, question: Question) -> None:
        """Write it down."""
        self.tables, self.question = tables, question
        self.weight = float(tables.weights[question.period])
        self.build = _Builder()
        self.scale = self._needed_scale()
        self.size = np.minimum(self.scale * tables.group_size[tables.group], tables.size)
        self._units()
        self._limits()
        self._serve()
        if tables.has_starts:
            self._starts()

    def _needed_scale(self) -> Floats:
        """Capacity of units, no more than all that their group could serve: the same fleets, a tighter relaxation."""
        seconds = self.tables.group_seconds
        need = np.where(seconds < BEYOND, seconds, 0.0) @ self.question.demand
        return np.minimum(self.tables.scale, need[self.tables.group])

    def _units(self) -> None:
        tables, asked = self.tables, self.question
        usd = tables.unit_usd - (0.0 if asked.credit is None else asked.credit / self.weight)
        self.unit_column = {
            int(unit): self.build.column(float(usd[unit]), tables.low[unit], tables.high[unit], True)
            for unit in asked.units
        }

    def _limits(self) -> None:
        tables, build = self.tables, self.build
        rows = [build.row(-np.inf, 0.0 if np.isinf(cap) else float(cap)) for cap in tables.caps]
        for unit, column in self.unit_column.items():
            for limit in np.flatnonzero(tables.takes[unit]):
                build.put(rows[limit], column, float(tables.takes[unit, limit]))
        pins = {resource: build.row(most, np.inf) for resource, most in tables.pins.items()}
        self.buying_column: list[int] = []
        prices = self.question.committed_usd
        for index, (buying, held) in enumerate(zip(tables.buyings, self.question.held, strict=True)):
            block, usable = buying.purchase.block, buying.purchase.usable_share
            usd = buying.purchase.usd_per_hour * block / (self.weight if buying.purchase.committed else 1.0)
            if buying.purchase.committed and prices is not None:
                usd = float(prices[index]) * block / self.weight
            low = 0.0 if buying.purchase.committed and prices is None else buying.low / block
            most = (buying.high - held) / block if self.question.may_commit or not buying.purchase.committed else 0.0
            column = build.column(usd, low, max(most, 0.0), True)
            build.put(rows[buying.hold], column, -usable * block)
            build.row_high[rows[buying.hold]] += usable * held
            if buying.resource in pins:
                build.put(pins[buying.resource], column, float(block))
                build.row_low[pins[buying.resource]] -= held
            self.buying_column.append(column)

    def _serve(self) -> None:
        """A variable for each group and slice: the share of the slice's demand that the group carries."""
        tables, build, demand = self.tables, self.build, self.question.demand
        asked = np.flatnonzero(demand > 0.0)
        worth = np.zeros(len(demand)) if self.question.worth is None else self.question.worth / self.weight
        waits = tables.deferrable & (self.question.worth is not None)
        serve = {
            int(index): build.row(0.0 if waits[index] else 1.0, 1.0 if waits[index] else np.inf) for index in asked
        }
        hand_over: dict[tuple[str, int], int] = {}
        carry: dict[int, int] = {}
        for unit, column in self.unit_column.items():
            group = int(tables.group[unit])
            if group not in carry:
                carry[group] = build.row(-np.inf, 0.0)
            build.put(carry[group], column, -float(self.scale[unit]))
        for group, row in carry.items():
            section = tables.sections[int(tables.group_section[group])]
            for index in asked:
                seconds = float(tables.group_seconds[group, index])
                if seconds >= BEYOND:
                    continue
                credit = float(worth[index]) if waits[index] and section.stage is not Stage.SECOND else 0.0
                column = build.column(-credit, 0.0, 1.0, False)
                build.put(row, column, seconds * float(demand[index]))
                if section.stage is not Stage.SECOND:
                    build.put(serve[int(index)], column, 1.0)
                if section.stage is not Stage.WHOLE:
                    key = (section.channel, int(index))
                    if key not in hand_over:
                        hand_over[key] = build.row(0.0, np.inf)
                    build.put(hand_over[key], column, 1.0 if section.stage is Stage.SECOND else -1.0)

    def _starts(self) -> None:
        """What this period's units cost in starts: z >= n - before, and z' >= after - n for the next period."""
        for unit, column in self.unit_column.items():
            usd = float(self.tables.start_usd[unit]) / self.weight
            for neighbour, sign in ((self.question.before, 1.0), (self.question.after, -1.0)):
                if neighbour is not None and usd > 0.0:
                    row = self.build.row(-np.inf, sign * float(neighbour[unit]))
                    self.build.put(row, column, sign)
                    self.build.put(row, self.build.column(usd, 0.0, np.inf, False), -1.0)

    def dive(self, deadline: float, threshold: float = 0.5) -> PeriodAnswer | None:
        """Whole units by rounding one group of units after the other and solving the linear program again in between.

        What a group lacks or has too much after rounding is taken or left by those not yet rounded, so that only the
        last of them wastes anything. Coarse units are rounded first, the finest last. Purchases in blocks come before.

        Args:
            deadline: of `time.monotonic` [s].
            threshold: part of the smallest unit from which a rest is rounded up.
        """
        return Dive(self).run(deadline, threshold) or Dive(self).run(deadline, threshold, rounds_blocks=False)

    def solve(self, time_limit_s: float, gap_usd: float) -> PeriodAnswer | None:
        """The best found in the time, or the first that is within `gap_usd` [USD/h] of the best; None: nothing."""
        solver = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": 1,
            "time_limit": max(time_limit_s, 0.05),
            "mip_rel_gap": 0.0,
            "mip_abs_gap": gap_usd,
            "primal_feasibility_tolerance": SOLVER_TOLERANCE,
            "mip_feasibility_tolerance": SOLVER_TOLERANCE,
        }
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.passModel(self.build.model())
        if self.question.incumbent is not None:
            columns = np.array(list(self.unit_column.values()), dtype=np.int32)
            solver.setSolution(len(columns), columns, self.question.incumbent[list(self.unit_column)])
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != 2:
            return None
        values = np.array(solver.getSolution().col_value)
        cost, bound = float(info.objective_function_value), float(info.mip_dual_bound)
        return _answer(self.tables, values, self.unit_column, self.buying_column, cost, bound)


def _answer(
    tables: Tables, values: Floats, unit_column: dict[int, int], buying_column: list[int], cost: float, bound: float
) -> PeriodAnswer:
    """Whole numbers out of a solver's."""
    units = np.zeros(len(tables.unit_names))
    for unit, column in unit_column.items():
        units[unit] = np.round(values[column])
    blocks = np.ceil(values[buying_column] - WHOLE_NUMBER)
    extra = np.array(
        [
            count * one.purchase.block if one.purchase.committed else 0.0
            for count, one in zip(blocks, tables.buyings, strict=True)
        ]
    )
    return PeriodAnswer(units, extra, cost, bound)


class Dive:
    """Rounding with repair, see `PeriodProgram.dive`."""

    def __init__(self, program: PeriodProgram) -> None:
        self.tables, self.build, self.size = program.tables, program.build, program.size
        self.unit_column, self.buying_column = program.unit_column, program.buying_column
        self.members: dict[int, list[int]] = {}
        for unit in self.unit_column:
            self.members.setdefault(int(self.tables.kin[unit]), []).append(unit)
        self.solver = highspy.Highs()
        self.solver.setOptionValue("output_flag", False)
        self.solver.setOptionValue("threads", 1)
        model = self.build.model()
        model.integrality_ = []
        self.solver.passModel(model)
        self.values: Floats = np.zeros(0)

    def run(self, deadline: float, threshold: float, rounds_blocks: bool = True) -> PeriodAnswer | None:
        """The rounded solution; None: stuck, or no time."""
        if not self._solve():
            return None
        bound = float(self.solver.getInfo().objective_function_value)
        if rounds_blocks:
            self._blocks()
        open_groups = sorted(self.members, key=self._grain, reverse=True)
        while True:
            used = [group for group in open_groups if self._capacity(group) > WHOLE_NUMBER * self._least(group)]
            if not used:
                break
            if time.monotonic() > deadline:
                return None
            tiny = [group for group in used if self._capacity(group) < threshold * self._least(group)]
            group = min(tiny, key=self._capacity) if tiny and len(used) > 1 else used[0]
            open_groups.remove(group)
            if not self._fix(group, threshold, len(used) == 1):
                return None
        blocks = self.values[self.buying_column]
        rounding = (np.ceil(blocks - WHOLE_NUMBER) - blocks) @ np.array(self.build.cost)[self.buying_column]
        cost = float(self.solver.getInfo().objective_function_value + rounding)
        return _answer(self.tables, self.values, self.unit_column, self.buying_column, cost, bound)

    def _solve(self) -> bool:
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return False
        self.values = np.array(self.solver.getSolution().col_value)
        return True

    def _blocks(self) -> None:
        """Round what is bought in blocks of several, the dearest block first; the last is left to follow use."""
        coarse = [
            (one.purchase.usd_per_hour * one.purchase.block, column)
            for one, column in zip(self.tables.buyings, self.buying_column, strict=True)
            if one.purchase.block > 1 and not one.purchase.committed
        ]
        for _, column in sorted(coarse, reverse=True)[:-1]:
            value = float(self.values[column])
            if abs(value - round(value)) > WHOLE_NUMBER:
                whole = float(round(value))
                if not self._bounds({column: (whole, whole)}) and not self._bounds({column: (np.ceil(value),) * 2}):
                    self._bounds({column: (self.build.low[column], self.build.high[column])})

    def _bounds(self, bounds: dict[int, tuple[float, float]]) -> bool:
        for column, (low, high) in bounds.items():
            self.solver.changeColBounds(column, low, high)
        return self._solve()

    def _grain(self, group: int) -> float:
        """Cost of the smallest unit: what rounding can waste."""
        unit = min(self.members[group], key=lambda one: float(self.size[one]))
        return float(self.build.cost[self.unit_column[unit]] + self.tables.takes[unit] @ self._usd)

    @property
    def _usd(self) -> Floats:
        usd = np.zeros(len(self.tables.caps))
        for buying in self.tables.buyings:
            usd[buying.hold] = buying.purchase.usd_per_hour
        return usd

    def _least(self, group: int) -> float:
        return float(min(self.size[unit] for unit in self.members[group]))

    def _capacity(self, group: int) -> float:
        return float(sum(self.size[unit] * self.values[self.unit_column[unit]] for unit in self.members[group]))

    def _fix(self, group: int, threshold: float, is_last: bool) -> bool:
        """Fix the units of a group near its capacity; where that cannot be, the other way round."""
        capacity = self._capacity(group)
        ways = [self._whole(group, capacity, up) for up in (1.0 - threshold if not is_last else 1.0, 1.0, 0.0)]
        for counts in (*ways, self._frugal(group)):
            if self._bounds({self.unit_column[unit]: (count, count) for unit, count in counts.items()}):
                return True
        return False

    def _frugal(self, group: int) -> dict[int, float]:
        """Largest sizes first, taking no more of any limit than the fractions do: for where a limit is short."""
        sizes = sorted(self.members[group], key=lambda one: -float(self.size[one]))
        fractions = np.array([self.values[self.unit_column[unit]] for unit in sizes])
        left = fractions @ self.tables.takes[sizes]
        counts: dict[int, float] = {}
        for unit in sizes:
            column, takes = self.unit_column[unit], self.tables.takes[unit]
            fits = np.divide(left, takes, out=np.full(len(takes), np.inf), where=takes > 0.0).min(initial=np.inf)
            whole = np.floor(min(fits, float(self.values[column]) if np.isinf(fits) else fits) + WHOLE_NUMBER)
            counts[unit] = float(np.clip(whole, self.build.low[column], self.build.high[column]))
            left = left - counts[unit] * takes
        return counts

    def _whole(self, group: int, capacity: float, up: float) -> dict[int, float]:
        """Largest sizes first; the rest is covered when it is more than 1 - `up` of the smallest size.

        `up` = 1 covers everything, 0 nothing.
        """
        counts: dict[int, float] = {}
        rest = capacity
        sizes = sorted(self.members[group], key=lambda one: -float(self.size[one]))
        for unit in sizes:
            column, scale = self.unit_column[unit], float(self.size[unit])
            low, high = self.build.low[column], self.build.high[column]
            counts[unit] = float(np.clip(np.floor(rest / scale + WHOLE_NUMBER), low, high))
            rest -= counts[unit] * scale
        if rest > (1.0 - up) * float(self.size[sizes[-1]]) + WHOLE_NUMBER:
            for unit in reversed(sizes):
                column = self.unit_column[unit]
                if float(self.size[unit]) >= rest and counts[unit] < self.build.high[column]:
                    counts[unit] += 1.0
                    break
        return counts
