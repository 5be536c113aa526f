"""From a problem to an allocation: which programs to solve, in which order, and what their answers mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from planner.core import FloatArray
from planner.optimizer.checks import MOST_UNITS_OF_A_CAP, check_problem, check_size, least_cost_usd_per_hour
from planner.optimizer.covering import cheapest_cover
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.evaluate_allocation import EvaluatedFleet, PartAnswer, constraint_reports, evaluate_fleet
from planner.optimizer.highs import ProgramSolver, Solution, SolverOutcome
from planner.optimizer.layout import Layout, build_layout
from planner.optimizer.periods import Day, fleet_by_period, solve_by_period, undominated_day
from planner.optimizer.program import Program, build_program
from planner.optimizer.relaxation import RelaxedOptimum, limit_duals, relax, shortlist
from planner.optimizer.types import (
    FEASIBILITY_TOLERANCE,
    Allocation,
    Diagnosis,
    FleetProblem,
    Objective,
    SolveStatus,
)

WORK = 2e7
"""Work of a solve, diagnosis included (`planner.optimizer.highs`): a few seconds of one core. A choice."""
MAX_RATIO_STEPS = 50
"""Most Dinkelbach steps; more means a stall. Convergence is superlinear (S. Schaible 1976, "Fractional programming II,
on Dinkelbach's algorithm", Management Science 22(8)), so a handful is usual."""
MOST_RATES = 20_000
"""Rates to route beyond which a problem of least cost is not written down as one integer program: its periods are
solved by themselves, each over a shortlist where it is too large itself. Affects what is reached; measured in
docs/explanation/optimizer.md."""
RATES_OF_PARTS = 2_000
"""Rates from which periods that are linked are solved by themselves first. Affects speed and gaps only."""
GAP_OF_PARTS = 0.5
"""Share of the gap asked for that periods and shortlists may use up by themselves; the rest is for what commitments and
pairs left out cost. A choice."""
SHARE_OF_COVERS = 0.1
"""Share of the gap asked for to which covers are proved: it costs next to nothing. Affects gaps only."""
_SAME_RATIO = 1e-9
"""Ratios closer than this share are the same: far above float rounding, far below `FEASIBILITY_TOLERANCE`."""


def solve(
    problem: FleetProblem,
    objective: Objective,
    *,
    time_limit_s: float = math.inf,
    relative_gap: float = 1e-6,
    work: float = WORK,
    duals: bool = True,
    at_least_usd_per_hour: float = 0.0,
    most_usd_per_hour: float = math.inf,
) -> Allocation:
    """The best allocation of whole units, or what stands in its way.

    Without a time limit the answer is the same on every machine, however busy.

    Args:
        problem: what must be served, by what, and what may be spent. Names must stay different when all but letters
            and digits is replaced by an underscore.
        objective: what is best.
        time_limit_s: for all runs of the solver together, diagnosis included [s].
        relative_gap: allowed |best possible - objective| / |objective|.
        work: what is done at most before the best found is returned as it is, see `planner.optimizer.highs`.
        duals: also solve the relaxation for `ConstraintReport.dual`, and diagnose what is infeasible; not for answers
            whose report nobody reads.
        at_least_usd_per_hour: at least cost, what it is known that no allocation costs less than.
        most_usd_per_hour: at least cost, allocations that cost more are not looked for: *infeasible* where it is proved
            that there are no others, and not diagnosed.

    Returns:
        The allocation, or a status without one and, with `duals`, the diagnosis.

    Raises:
        InputError: a duplicate name; a slice or resource that the problem does not have; a minimum rate above the
            demand; `max_rate_per_cost` with units that cost nothing; a pinned resource that cannot be bought; a demand
            that takes too many units; a time limit or gap out of range.

    >>> from planner.optimizer.types import Slice, Unit
    >>> cheap = Unit(name="cheap", rates_per_s={"chat": 1.0}, usd_per_hour=2.0)
    >>> big = Unit(name="big", rates_per_s={"chat": 5.0}, usd_per_hour=8.0)
    >>> chat = Slice(name="chat", demand_per_s=(6.0,))
    >>> solve(FleetProblem(slices=(chat,), units=(cheap, big)), Objective.MIN_COST).units
    {'cheap': (1,), 'big': (1,)}
    >>> poor = FleetProblem(slices=(chat,), units=(cheap,), budget_usd_per_hour=10.0)
    >>> print(solve(poor, Objective.MIN_COST).diagnosis.summary.split("; ", 1)[1])
    enough is any of: slices[chat].demand_per_s 6 -> 5; budget_usd_per_hour 10 -> 12
    """
    check_problem(problem, objective, time_limit_s, relative_gap)
    if not problem.units:
        none = "there is no unit to choose from: give at least one that meets its latency targets"
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=Diagnosis(note=none))
    layout = build_layout(problem)
    if objective is not Objective.MIN_COST:
        check_size(layout, MOST_UNITS_OF_A_CAP)
    solver = ProgramSolver(relative_gap, work, time_limit_s)
    if objective is Objective.MIN_COST:
        found = _search_least_cost(solver, layout, at_least_usd_per_hour, most_usd_per_hour)
    else:
        found = _SEARCHES[objective](solver, layout)
    if found.fleet is not None:
        return _allocation(objective, found, found.fleet, layout, duals)
    if found.status is not SolveStatus.INFEASIBLE or not duals or most_usd_per_hour < math.inf:
        return Allocation(status=found.status, at_least_usd_per_hour=found.at_least)
    if objective is Objective.MIN_COST and _is_large(layout):
        return Allocation(status=found.status, diagnosis=_diagnosis_of_large(solver, layout))
    return Allocation(status=found.status, diagnosis=diagnose(solver, objective, layout))


def _diagnosis_of_large(solver: ProgramSolver, layout: Layout) -> Diagnosis:
    """The conflict in the relaxation of the first period that cannot be served; else the budget's with the bound."""
    firm = np.where(layout.deferrable[:, None], 0.0, layout.demand_per_s)
    for part in Day(layout, firm).parts() if layout.periods > 1 else (layout,):
        if relax(build_program(part, Objective.MIN_COST), solver.time_left_s) is None:
            return diagnose(solver, Objective.MIN_COST, part, is_relaxed=True)
    note = ": what is proved to be the least cost is above it"
    return Diagnosis(conflict=("within_budget",), fields=("budget_usd_per_hour",), is_proven=False, note=note)


@dataclass(frozen=True)
class _Found:
    """How a search ended.

    Attributes:
        status: of it.
        fleet: recomputed from whole numbers; None: there is none.
        gap: proved |best possible - objective| / |objective|; None: nothing was proved.
        iterates: Dinkelbach's ratios.
        bound_rests_on, at_least: see `Allocation`.
    """

    status: SolveStatus
    fleet: EvaluatedFleet | None = None
    gap: float | None = None
    iterates: tuple[float, ...] = ()
    bound_rests_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    at_least: float = 0.0


def _search_least_cost(solver: ProgramSolver, layout: Layout, at_least: float, most: float) -> _Found:
    search = _LeastCost(solver, layout, at_least, most)
    search.run()
    if math.isinf(search.bound):
        return _Found(SolveStatus.INFEASIBLE, at_least=search.beyond)
    if search.fleet is None:
        return _Found(SolveStatus.NO_SOLUTION_IN_TIME)
    return _Found(_status(search.gap, solver), search.fleet, search.gap, bound_rests_on=search.rests_on)


def _is_large(layout: Layout) -> bool:
    return layout.column.rates.size > MOST_RATES


class _LeastCost:
    """The cheapest fleet of several methods, held against the highest of their bounds.

    Attributes:
        values: of the fleet, by column of the layout; None: there is none yet.
        fleet: the same, recomputed.
        bound: no fleet costs less [USD/h]; infinite where it was proved that there is none.
        beyond: the same before it was above `most`; else 0.
        most: fleets that cost more are not looked for [USD/h].
        rests_on: see `Allocation.bound_rests_on`.
    """

    def __init__(self, solver: ProgramSolver, layout: Layout, at_least: float = 0.0, most: float = math.inf) -> None:
        self.solver, self.layout, self.most = solver, layout, most
        if layout.problem.budget_usd_per_hour is not None:
            self.most = min(most, layout.problem.budget_usd_per_hour)
        self.values: FloatArray | None = None
        self.fleet: EvaluatedFleet | None = None
        self.bound, self.beyond = at_least, 0.0
        self.rests_on: dict[str, tuple[str, ...]] = {}

    @property
    def gap(self) -> float:
        """Proved (cost - bound) / cost; infinite without a fleet."""
        return math.inf if self.fleet is None else _gap(self.fleet.cost_usd_per_hour, self.bound, 1.0) or 0.0

    @property
    def is_over(self) -> bool:
        """Whether the fleet is as good as was asked for, it is proved that there is none, or the time ran out."""
        is_close = self.gap <= self.solver.relative_gap + FEASIBILITY_TOLERANCE
        if self.fleet is not None:
            is_close |= self.fleet.cost_usd_per_hour - self.bound <= self.solver.absolute_gap
        return math.isinf(self.bound) or is_close or self.solver.is_out_of_time

    def run(self) -> None:
        """Streams by themselves, then periods by themselves, then one program.

        What one of them proves suffices; the fleet of one is where the next starts.
        """
        layout, solver = self.layout, self.solver
        self._add(PartAnswer(None, self.bound))
        if solver.is_out_of_time:
            return
        if not _is_large(layout):
            self._cover()
        if self.is_over:
            return
        check_size(layout)
        is_mid_size = layout.column.rates.size > RATES_OF_PARTS
        if layout.periods > 1 and not layout.are_periods_linked:
            self._add(solve_by_period(layout, self._solve_part, solver.relative_gap))
            if self.fleet is not None and (is_mid_size or not (layout.kinds or layout.groups)):
                return  # there is nothing else to the problem, or too little for what the whole program takes
        elif layout.periods > 1 and is_mid_size:
            some, rate_per_s = undominated_day(layout) if _is_large(layout) else (layout, None)
            relaxed = self._relax(build_program(some, Objective.MIN_COST), rate_per_s)
            if relaxed is not None:
                values = fleet_by_period(layout, some, relaxed, self._solve_part, solver.relative_gap)
                self._add(PartAnswer(values, 0.0))
        if not self.is_over:
            self._solve_as_one()

    def _cover(self) -> None:
        """Every stream by itself (`planner.optimizer.covering`)."""
        gap = SHARE_OF_COVERS * self.solver.relative_gap
        cover = cheapest_cover(self.layout, gap, self.bound, self.most)
        if cover is None:
            return
        self._add(cover, may_miss=True)
        if cover.values is not None and cover.bound_usd_per_hour > 0.0:
            layout, units, slices = self.layout, self.layout.problem.units, self.layout.problem.slices
            rests_on: dict[str, tuple[str, ...]] = {}
            for pair in np.flatnonzero(cover.values[layout.column.rates].any(axis=1)):
                unit = units[layout.pair_unit[pair]].name
                rests_on[unit] = (*rests_on.get(unit, ()), slices[layout.pair_slice[pair]].name)
            self.rests_on = rests_on

    def _relax(self, program: Program, rate_per_s: FloatArray | None = None) -> RelaxedOptimum | None:
        """The relaxation, of which the bound is kept; None where it has no solution, or where the time ran out."""
        relaxed = relax(program, self.solver.time_left_s, rate_per_s)
        none = 0.0 if self.solver.is_out_of_time else math.inf
        self._add(PartAnswer(None, none if relaxed is None else relaxed.bound))
        return relaxed

    def _solve_part(self, part: Layout, left: int) -> PartAnswer:
        """One of so many problems, with its part of the work; close enough if it costs little of the whole too much."""
        work, gap = self.solver.work_left / left, self.solver.relative_gap
        own = ProgramSolver(gap, work, self.solver.time_left_s / left, GAP_OF_PARTS * gap * self.bound)
        search = _LeastCost(own, part)
        search.run()
        self.solver.work_left -= work - own.work_left
        return PartAnswer(search.values, search.bound)

    def _solve_as_one(self) -> None:
        """One program by HiGHS: of all units, of a shortlist, or of those of the fleet that is known.

        Of a shortlist, its bound is that of the relaxation of all units, if any.
        """
        layout, is_large = self.layout, _is_large(self.layout)
        units = layout.unbettered()
        if self.values is not None:
            units |= self.values[layout.column.units].any(axis=1)
        pairs = units[layout.pair_unit]
        if is_large and layout.periods == 1:
            program = build_program(layout, Objective.MIN_COST)
            relaxed = self._relax(program)
            if relaxed is None:
                return
            pairs = shortlist(program, relaxed)
        elif is_large:
            if self.values is None:
                return
            pairs = np.any(self.values[layout.column.units[layout.pair_unit]], axis=1)
            if pairs.sum() * layout.periods > MOST_RATES:
                return
        some = layout.select(pairs)
        mine = layout.columns_of(some, pairs)
        start = None if self.values is None else self.values[mine]
        gap = self.solver.relative_gap * (GAP_OF_PARTS if is_large else 1.0)
        answer = self.solver.run(
            build_program(some, Objective.MIN_COST),
            relative_gap=gap,
            start=start,
            cutoff=self.most * (1.0 + 2.0 * FEASIBILITY_TOLERANCE),
        )
        values = None
        if answer.outcome.has_solution:
            values = np.zeros(layout.columns)
            values[mine] = answer.values
        bound = math.inf if answer.outcome is SolverOutcome.INFEASIBLE else max(answer.bound, 0.0)
        self._add(PartAnswer(values, 0.0 if is_large else bound))

    def _add(self, answer: PartAnswer, *, may_miss: bool = False) -> None:
        """A fleet, if there is one (it keeps all limits, unless it may miss them), and a bound."""
        if answer.bound_usd_per_hour > self.bound * (1.0 + _SAME_RATIO):
            self.bound, self.rests_on = answer.bound_usd_per_hour, {}
        if self.most * (1.0 + FEASIBILITY_TOLERANCE) < self.bound < math.inf:
            self.beyond, self.bound = self.bound, math.inf
        if answer.values is None:
            return
        is_routed = _is_large(self.layout)  # spreading the load evenly takes a program for each period
        fleet = evaluate_fleet(Objective.MIN_COST, self.layout, answer.values, is_routed=is_routed, may_miss=may_miss)
        if may_miss and not fleet.keeps_limits:
            return
        if self.fleet is None or fleet.cost_usd_per_hour < self.fleet.cost_usd_per_hour:
            self.values, self.fleet = answer.values, fleet


def _search_greatest_rate(solver: ProgramSolver, layout: Layout) -> _Found:
    """Greatest rate, then the least cost at that rate (to the relative gap). The gap reported is that of the rate."""
    first = last = solver.run(build_program(layout, Objective.MAX_RATE))
    if not first.outcome.has_solution:
        return _no_fleet(first)
    fleet = evaluate_fleet(Objective.MAX_RATE, layout, first.values)
    if fleet.rate_per_s > 0.0:
        at_that_rate = layout.problem.model_copy(update={"min_rate_per_s": fleet.rate_per_s})
        program = build_program(replace(layout, problem=at_that_rate), Objective.MAX_RATE)
        second = solver.run(replace(program, goal=layout.mean_cost, maximise=False), start=first.values)
        if second.outcome.has_solution:
            fleet = evaluate_fleet(Objective.MAX_RATE, layout, second.values)
        last = second if first.outcome is SolverOutcome.PROVEN else first
    return _found(solver, last, fleet, _gap(fleet.rate_per_s, first.bound, -1.0))


def _search_greatest_ratio(solver: ProgramSolver, layout: Layout) -> _Found:
    """Dinkelbach's method: maximise rate - q cost, set q to the ratio found, until no allocation has more than 0.

    F(q) = max(rate - q cost) is convex and falling, and F(q) = 0 exactly at the greatest ratio: W. Dinkelbach 1967,
    "On nonlinear fractional programming", Management Science 13(7). Each step solves an integer program,
    so the ratio is that of whole units. Since rate <= q cost + F(q), no ratio exceeds q + F(q) / (least cost > 0),
    which is the bound of the reported gap.
    """
    least_cost = least_cost_usd_per_hour(layout)
    fleets: list[EvaluatedFleet] = []
    ratio, upper = 0.0, math.inf
    for _ in range(MAX_RATIO_STEPS):
        program = build_program(layout, Objective.MAX_RATE_PER_COST, ratio)
        answer = solver.run(program, solver.relative_gap * ratio * least_cost)
        upper = min(upper, ratio + max(0.0, answer.bound) / least_cost)
        if not answer.outcome.has_solution:
            break
        fleet = evaluate_fleet(Objective.MAX_RATE_PER_COST, layout, answer.values)
        if fleet.rate_per_cost <= ratio * (1.0 + _SAME_RATIO):
            break
        fleets.append(fleet)
        ratio = fleet.rate_per_cost
        if answer.outcome is not SolverOutcome.PROVEN:
            break
    if not fleets:
        return _no_fleet(answer)
    gap = max(0.0, upper / ratio - 1.0) if math.isfinite(upper) else None
    best = _found(solver, answer, fleets[-1], gap)
    return replace(best, iterates=tuple(fleet.rate_per_cost for fleet in fleets))


_SEARCHES = {
    Objective.MAX_RATE: _search_greatest_rate,
    Objective.MAX_RATE_PER_COST: _search_greatest_ratio,
}


def _no_fleet(answer: Solution) -> _Found:
    infeasible = answer.outcome is SolverOutcome.INFEASIBLE
    return _Found(SolveStatus.INFEASIBLE if infeasible else SolveStatus.NO_SOLUTION_IN_TIME)


def _found(solver: ProgramSolver, answer: Solution, fleet: EvaluatedFleet, gap: float | None) -> _Found:
    is_proven = answer.outcome is SolverOutcome.PROVEN
    return _Found(_status(gap if is_proven else None, solver), fleet, gap)


def _status(gap: float | None, solver: ProgramSolver) -> SolveStatus:
    """How good a fleet of a proved gap is; without one the search was cut short before anything was proved."""
    if gap is None or gap > solver.relative_gap + FEASIBILITY_TOLERANCE:
        return SolveStatus.TIME_LIMIT if solver.is_out_of_time else SolveStatus.WORK_LIMIT
    return SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP


def _gap(objective: float, bound: float, worse: float) -> float | None:
    """(objective - bound) / |objective|, with the objective recomputed from whole units; 0 for a free fleet.

    Never below 0: dropping what is not needed may end a rounding beyond the bound. `worse` is +1 where a greater
    objective is worse, -1 where a smaller one is; None without a bound.
    """
    if math.isinf(bound):
        return None
    return max(0.0, worse * (objective - bound)) / abs(objective) if objective else 0.0


def _allocation(
    objective: Objective, found: _Found, fleet: EvaluatedFleet, layout: Layout, with_duals: bool
) -> Allocation:
    """The answer as records; the duals are those of the program over `layout`. Large problems come without."""
    has_duals = with_duals and not _is_large(layout) and objective is not Objective.MAX_RATE_PER_COST
    duals: Mapping[str, float] = limit_duals(build_program(layout, objective)) if has_duals else {}
    value = {
        Objective.MIN_COST: fleet.cost_usd_per_hour,
        Objective.MAX_RATE: fleet.rate_per_s,
        Objective.MAX_RATE_PER_COST: fleet.rate_per_cost,
    }
    return Allocation(
        status=found.status,
        objective=value[objective],
        gap=found.gap,
        units=_units(fleet),
        bought=_bought(fleet),
        routed_per_s=_routed_per_s(fleet),
        cost_usd_per_hour=fleet.cost_usd_per_hour,
        starts_usd_per_hour=fleet.starts_usd_per_hour,
        rate_per_s=fleet.rate_per_s,
        constraints=constraint_reports(fleet, duals),
        iterates=found.iterates,
        bound_rests_on=found.bound_rests_on,
    )


def _units(fleet: EvaluatedFleet) -> dict[str, tuple[int, ...]]:
    counts = fleet.values[fleet.layout.column.units].round().astype(int)
    names = (unit.name for unit in fleet.layout.problem.units)
    return {name: tuple(row) for name, row in zip(names, counts.tolist(), strict=True)}


def _bought(fleet: EvaluatedFleet) -> dict[str, dict[str, tuple[float, ...]]]:
    layout = fleet.layout
    held: FloatArray = fleet.values[layout.column.blocks] * layout.purchase_block[:, None]
    bought: dict[str, dict[str, tuple[float, ...]]] = {}
    for (resource, purchase), row in zip(layout.purchase_names(), held, strict=True):
        if row.any():
            bought.setdefault(resource, {})[purchase] = tuple(row.tolist())
    return bought


def _routed_per_s(fleet: EvaluatedFleet) -> dict[str, dict[str, tuple[float, ...]]]:
    layout = fleet.layout
    routed: dict[str, dict[str, tuple[float, ...]]] = {}
    for j, s, row in zip(layout.pair_unit, layout.pair_slice, fleet.values[layout.column.rates], strict=True):
        if row.any():
            unit, slice_ = layout.problem.units[j].name, layout.problem.slices[s].name
            routed.setdefault(unit, {})[slice_] = tuple(row.tolist())
    return routed
