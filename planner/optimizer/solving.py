"""From a problem to an allocation: which programs to solve, in which order, and what their answers mean."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.core import BoolArray, FloatArray, InputError
from planner.optimizer.checks import MOST_UNITS_OF_A_CAP, check_problem, check_size, least_cost_usd_per_hour
from planner.optimizer.covering import cheapest_cover
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.evaluate_allocation import EvaluatedFleet, PartAnswer, constraint_reports, evaluate_fleet
from planner.optimizer.highs import OWN_SOLVER, ProgramSolver, Solution
from planner.optimizer.layout import Layout, build_layout
from planner.optimizer.marks import MOST_PROGRAMS, charged_bound
from planner.optimizer.periods import Day, fleet_by_period, undominated_day
from planner.optimizer.program import Program, build_program
from planner.optimizer.relaxation import affordable, limit_duals, relax, shortlist
from planner.optimizer.types import FEASIBILITY_TOLERANCE, Allocation, Diagnosis, FleetProblem, Objective, SolveStatus

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
"""Rates from which periods that are linked are solved by themselves first. Affects what is reached."""
SHARE_OF_SHORTLISTS = 0.5
"""Share of the gap asked for to which shortlists are proved; the rest is for what pairs left out cost. A choice."""
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
    at_least_usd_per_hour: float = 0.0,
    most_usd_per_hour: float = math.inf,
    diagnosed: bool = True,
    solver: str = OWN_SOLVER,
) -> Allocation:
    """The best allocation of whole units, or what stands in its way.

    Without a time limit the answer is the same on every machine, however busy.

    Args:
        problem: what must be served, by what, and what may be spent. Names must stay different when all but letters
            and digits is replaced by an underscore.
        objective: what is best.
        time_limit_s: after which no integer program goes on [s]; covers and relaxations come on top.
        relative_gap: allowed |best possible - objective| / |objective|.
        work: what is done at most before the best found is returned as it is, see `planner.optimizer.highs`.
        at_least_usd_per_hour: known lower bound on cost (min_cost only).
        most_usd_per_hour: at least cost, allocations that cost more are not looked for: *infeasible* where it is proved
            that there are no others, and not diagnosed.
        diagnosed: whether what is infeasible is, which takes many times what it takes to prove it.
        solver: `highs`, or the name of one that PuLP finds on this machine (`cbc`, `gurobi`, ...), which is given the
            program as it is stated, without the shortcuts that come before HiGHS.

    Returns:
        The allocation, or a status without one and the diagnosis.

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
    until_s = time.monotonic() + time_limit_s
    check_problem(problem, objective, time_limit_s, relative_gap)
    if not problem.units:
        none = "there is no unit to choose from: give at least one that meets its latency targets"
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=Diagnosis(note=none))
    layout, program_solver = build_layout(problem), _solver(solver, relative_gap, work, until_s)
    if objective is Objective.MIN_COST:
        answer = _least_cost(program_solver, layout, at_least_usd_per_hour, most_usd_per_hour)
    else:
        check_size(layout, MOST_UNITS_OF_A_CAP)
        answer = (_greatest_rate if objective is Objective.MAX_RATE else _greatest_ratio)(program_solver, layout)
    if answer.status is not SolveStatus.INFEASIBLE or most_usd_per_hour < math.inf or not diagnosed:
        return answer
    is_large = objective is Objective.MIN_COST and _is_large(layout)
    diagnosis = _diagnosis_of_large(program_solver, layout) if is_large else diagnose(program_solver, objective, layout)
    return answer.model_copy(update={"diagnosis": diagnosis})


def write_program(problem: FleetProblem, objective: Objective, path: str | Path) -> None:
    """Write the program of a problem as an LP or MPS file.

    Args:
        problem: what must be served, and by what.
        objective: what is best.
        path: ends in ``.lp`` or ``.mps``.

    Raises:
        InputError: another ending.

    >>> import tempfile
    >>> from planner.optimizer.types import Slice, Unit
    >>> cheap = Unit(name="cheap", rates_per_s={"chat": 4.0}, usd_per_hour=2.0)
    >>> stated = FleetProblem(slices=(Slice(name="chat", demand_per_s=(6.0,)),), units=(cheap,))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_program(stated, Objective.MIN_COST, Path(folder, "fleet.lp"))
    ...     print(Path(folder, "fleet.lp").read_text().split("Subject To")[1].split("Bounds")[0].strip())
    carry_rate__cheap: 0.25 rate__cheap__chat - units__cheap <= 0
    serve_demand__chat: rate__cheap__chat >= 6
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".lp", ".mps"):
        raise InputError("--lp", str(path), "ends in neither .lp nor .mps", "name it plan.lp or plan.mps")
    from planner.optimizer.as_pulp import to_pulp  # noqa: PLC0415 - see `_solver`

    stated = to_pulp(build_program(build_layout(problem), objective))
    if suffix == ".lp":
        stated.writeLP(str(path))
    else:
        stated.writeMPS(str(path), mpsSense=1)  # a file that says nothing is minimised


def _solver(name: str, relative_gap: float, work: float, until_s: float) -> ProgramSolver:
    if name.lower() == OWN_SOLVER:
        return ProgramSolver(relative_gap, work, until_s)
    from planner.optimizer.as_pulp import PulpSolver  # noqa: PLC0415 - PuLP takes as long to load as a solve

    return PulpSolver(relative_gap, work, until_s, name=name)


def _diagnosis_of_large(solver: ProgramSolver, layout: Layout) -> Diagnosis:
    """The conflict in the relaxation of the first period that cannot be served; else the budget's with the bound."""
    day = Day(layout, np.where(layout.deferrable[:, None], 0.0, layout.demand_per_s))
    for part in map(day.part, range(layout.periods)) if layout.periods > 1 else (layout,):
        if relax(build_program(part, Objective.MIN_COST)) is None:
            return diagnose(solver, Objective.MIN_COST, part, is_relaxed=True)
    note = ": what is proved to be the least cost is above it"
    return Diagnosis(conflict=("within_budget",), fields=("budget_usd_per_hour",), is_proven=False, note=note)


def _is_large(layout: Layout) -> bool:
    return layout.column.rates.size > MOST_RATES


def _least_cost(solver: ProgramSolver, layout: Layout, at_least: float, most: float) -> Allocation:
    search = _LeastCost(solver, layout, at_least, most)
    search.run()
    if math.isinf(search.bound):
        return Allocation(status=SolveStatus.INFEASIBLE, at_least_usd_per_hour=search.beyond)
    if search.fleet is None:
        return Allocation(status=SolveStatus.NO_SOLUTION_IN_TIME)
    answer = _allocation(Objective.MIN_COST, solver, layout, search.fleet, search.gap)
    return answer.model_copy(update={"bound_rests_on": search.rests_on})


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
        self.solver, self.layout = solver, layout
        budget = layout.problem.budget_usd_per_hour
        self.most = most if budget is None or layout.charges.any() else min(most, budget)
        self.values: FloatArray | None = None
        self.fleet: EvaluatedFleet | None = None
        self.bound, self.beyond = 0.0, 0.0
        self.rests_on: dict[str, tuple[str, ...]] = {}
        self._add(bound=at_least)

    @property
    def gap(self) -> float:
        """Proved (cost - bound) / cost; infinite without a fleet."""
        return math.inf if self.fleet is None else _gap(self.cost, self.bound)

    @property
    def cost(self) -> float:
        """Of the fleet [USD/h], charges included; infinite without one."""
        return math.inf if self.fleet is None else self.fleet.value(Objective.MIN_COST)

    @property
    def dearest(self) -> float:
        """Fleets that cost more are not looked for, or the best is cheaper [USD/h]."""
        return min(self.most, self.cost)

    @property
    def is_over(self) -> bool:
        """True if the fleet is within the gap asked for, or it is proved that there is none."""
        is_close = self.gap <= self.solver.relative_gap + FEASIBILITY_TOLERANCE
        return math.isinf(self.bound) or is_close or self.cost - self.bound <= self.solver.absolute_gap

    def run(self) -> None:
        """Streams by themselves, then periods by themselves, then one program.

        What one of them proves suffices; the fleet of one is where the next starts.
        """
        layout, solver = self.layout, self.solver
        is_part = layout.problem.charge > 0.0 and not layout.charges.any()  # one of `MOST_PROGRAMS`
        is_mid_size = layout.column.rates.size > RATES_OF_PARTS / (MOST_PROGRAMS if is_part else 1)
        if not solver.is_own or layout.charges.any():  # charges link all streams and periods
            check_size(layout)
            (self._solve_by_marks if solver.is_own and layout.demand_per_s.size > 1 else self._solve_as_one)()
            return
        if not _is_large(layout):
            self._cover()
        if self.is_over:
            return
        check_size(layout)
        if layout.periods > 1 and not layout.are_periods_linked:
            self._solve_by_period()
            if self.fleet is not None and (is_mid_size or not (layout.kinds or layout.groups)):
                return  # there is nothing else to the problem, or too little for what the whole program takes
        elif layout.periods > 1 and is_mid_size:
            some, rate_per_s = undominated_day(layout) if _is_large(layout) else (layout, None)
            relaxed = self._relax(build_program(some, Objective.MIN_COST), rate_per_s)
            if relaxed is not None and not self.is_over:
                self._add(fleet_by_period(layout, some, relaxed, self._solve_part, solver.relative_gap))
        if not self.is_over and not (is_part and is_mid_size and layout.periods > 1):
            self._solve_as_one()

    def _solve_by_period(self) -> None:
        """Periods that are not linked, unless their relaxations say that no fleet is cheap enough."""
        day = Day(self.layout, self.layout.demand_per_s)
        if math.isfinite(self.most) and not self.layout.problem.charge:  # of marks ruled out few are that dear
            self._add(bound=day.least_usd_per_hour)
        if not self.is_over:
            parts = day.fleet(self._solve_part, self.solver.relative_gap)
            self._add(parts.values, parts.bound_usd_per_hour)

    def _solve_by_marks(self) -> None:
        """Without charges, and again without some marks (`planner.optimizer.marks`)."""
        bound = charged_bound(self.layout, self._solve_uncharged, lambda: self.dearest, self.solver.relative_gap)
        if math.isfinite(self.cost):
            bound = min(bound, self.cost)
        self._add(bound=bound)

    def _solve_uncharged(self, pairs: BoolArray, charges: float) -> tuple[float, FloatArray | None]:
        """Keep the cheapest fleet of some units; what none costs less than without charges, and its values.

        Charges are at least so much: where none is then cheaper than the best so far the bound is infinite.
        """
        layout = self.layout
        work = self.solver.work_left / MOST_PROGRAMS
        solver = ProgramSolver(self.solver.relative_gap, work, self.solver.until_s)
        own = _LeastCost(solver, layout.uncharged().select(pairs), most=self.dearest - charges)
        own.run()
        self.solver.work_left -= work - solver.work_left
        if own.values is None:
            return own.bound, None
        values = np.zeros(layout.columns)
        mine = layout.columns_of(pairs)
        mine[layout.column.groups[layout.charge > 0.0]] = False
        values[mine] = own.values
        layout.fill_in(values)
        fleet = evaluate_fleet(Objective.MIN_COST, layout, values, is_routed=_is_large(layout))
        if fleet.value(Objective.MIN_COST) <= self.most * (1.0 + FEASIBILITY_TOLERANCE):
            self._add(values)
        return own.bound, values

    def _cover(self) -> None:
        """Every stream by itself (`planner.optimizer.covering`)."""
        layout, gap = self.layout, SHARE_OF_COVERS * self.solver.relative_gap
        cover = cheapest_cover(layout, gap, self.bound, self.most)
        if cover is None:
            return
        self._add(cover.values, cover.bound_usd_per_hour, may_miss=True)
        if cover.values is not None and cover.bound_usd_per_hour > 0.0:
            for pair in np.flatnonzero(cover.values[layout.column.rates].any(axis=1)):
                unit = layout.problem.units[layout.pair_unit[pair]].name
                served = layout.problem.slices[layout.pair_slice[pair]].name
                self.rests_on[unit] = (*self.rests_on.get(unit, ()), served)

    def _relax(self, program: Program, rate_per_s: FloatArray | None = None) -> Solution | None:
        """The relaxation, of which the bound is kept; None where it has no solution."""
        relaxed = relax(program, rate_per_s)
        self._add(bound=math.inf if relaxed is None else relaxed.bound)
        return relaxed

    def _solve_part(self, part: Layout, left: int) -> PartAnswer:
        """One of so many problems, with its part of the work; close enough if it costs little of the whole too much."""
        work, gap = self.solver.work_left / left, self.solver.relative_gap
        own = ProgramSolver(gap, work, self.solver.until_s, gap * self.bound)
        search = _LeastCost(own, part)
        search.run()
        self.solver.work_left -= work - own.work_left
        return PartAnswer(search.values, search.bound)

    def _solve_as_one(self) -> None:
        """One program by HiGHS: of all units, of a shortlist, or of those of the fleet that is known.

        Of a shortlist, its bound is that of the relaxation of all units, if any.
        """
        layout, is_large = self.layout, _is_large(self.layout) and not self.layout.charges.any()
        if layout.charges.any():
            program = build_program(layout, Objective.MIN_COST)
            relaxed = self._relax(program)
            if relaxed is None:
                return
            pairs = affordable(program, relaxed, self.most * (1.0 + FEASIBILITY_TOLERANCE))
        elif not is_large:
            pairs = layout.unbettered()[layout.pair_unit]
        elif layout.periods == 1:
            program = build_program(layout, Objective.MIN_COST)
            relaxed = self._relax(program)
            if relaxed is None:
                return
            pairs = shortlist(program, relaxed)
        else:
            pairs = np.zeros(len(layout.pair_unit), dtype=bool)
        if self.values is not None:
            pairs |= self.values[layout.column.units[layout.pair_unit]].any(axis=1)
        if not pairs.any() or (layout.periods > 1 and is_large and pairs.sum() * layout.periods > MOST_RATES):
            return
        mine = layout.columns_of(pairs)
        answer = self.solver.run(
            build_program(layout.select(pairs), Objective.MIN_COST),
            start=None if self.values is None else self.values[mine],
            cutoff=self.dearest * (1.0 + 2.0 * FEASIBILITY_TOLERANCE),
            share_of_gap=SHARE_OF_SHORTLISTS if is_large else 1.0,
        )
        values = None
        if answer.is_found:
            values = np.zeros(layout.columns)
            values[mine] = answer.values
        bound = math.inf if answer.is_infeasible else answer.bound
        self._add(values, 0.0 if is_large else bound)

    def _add(self, values: FloatArray | None = None, bound: float = 0.0, *, may_miss: bool = False) -> None:
        """A fleet, if there is one (it keeps all limits, unless it may miss them), and a bound."""
        if bound > self.bound * (1.0 + _SAME_RATIO):
            self.bound, self.rests_on = bound, {}
        if self.most * (1.0 + FEASIBILITY_TOLERANCE) < self.bound < math.inf:
            self.beyond, self.bound = self.bound, math.inf
        if values is None or math.isinf(self.bound):
            return
        is_routed = _is_large(self.layout)  # spreading the load evenly takes a program for each period
        fleet = evaluate_fleet(Objective.MIN_COST, self.layout, values, is_routed=is_routed, may_miss=may_miss)
        is_kept = not may_miss or fleet.keeps_limits
        if is_kept and fleet.value(Objective.MIN_COST) < self.cost:
            self.values, self.fleet = values, fleet


def _greatest_rate(solver: ProgramSolver, layout: Layout) -> Allocation:
    """Greatest rate, then the least cost at that rate (to the relative gap). The gap reported is that of the rate."""
    first = solver.run(build_program(layout, Objective.MAX_RATE))
    if not first.is_found:
        return _no_fleet(first)
    fleet, is_proven = evaluate_fleet(Objective.MAX_RATE, layout, first.values), True
    if fleet.rate_per_s > 0.0:
        unused = (layout.charge > 0.0) & (first.values[layout.column.groups] < 0.5)
        pairs = np.logical_not(layout.in_group[:, unused].any(axis=1))[layout.pair_unit]
        own = layout.select(pairs)
        at_that_rate = own.problem.model_copy(update={"min_rate_per_s": fleet.rate_per_s})
        program = build_program(replace(own, problem=at_that_rate), Objective.MAX_RATE)
        start = first.values[layout.columns_of(pairs)]
        second = solver.run(replace(program, goal=own.mean_cost, maximise=False), start=start)
        is_proven = second.is_proven
        if second.is_found:
            fleet = evaluate_fleet(Objective.MAX_RATE, own, second.values)
    answer = _allocation(Objective.MAX_RATE, solver, layout, fleet, _gap(fleet.value(Objective.MAX_RATE), first.bound))
    return answer if is_proven else answer.model_copy(update={"status": _cut_short(solver)})


def _greatest_ratio(solver: ProgramSolver, layout: Layout) -> Allocation:
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
        solver.absolute_gap = solver.relative_gap * ratio * least_cost
        answer = solver.run(program)
        upper = min(upper, ratio + max(0.0, answer.bound) / least_cost)
        if not answer.is_found:
            break
        fleet = evaluate_fleet(Objective.MAX_RATE_PER_COST, layout, answer.values)
        if fleet.value(Objective.MAX_RATE_PER_COST) <= ratio * (1.0 + _SAME_RATIO):
            break
        fleets.append(fleet)
        ratio = fleet.value(Objective.MAX_RATE_PER_COST)
        if not answer.is_proven:
            break
    if not fleets:
        return _no_fleet(answer)
    best = _allocation(Objective.MAX_RATE_PER_COST, solver, layout, fleets[-1], _gap(ratio, upper))
    ratios = tuple(fleet.value(Objective.MAX_RATE_PER_COST) for fleet in fleets)
    return best.model_copy(update={"iterates": ratios})


def _cut_short(solver: ProgramSolver) -> SolveStatus:
    return SolveStatus.TIME_LIMIT if solver.is_out_of_time else SolveStatus.WORK_LIMIT


def _no_fleet(answer: Solution) -> Allocation:
    return Allocation(status=SolveStatus.INFEASIBLE if answer.is_infeasible else SolveStatus.NO_SOLUTION_IN_TIME)


def _gap(objective: float, bound: float) -> float:
    """|bound - objective| / |objective|, with the objective recomputed from whole units; 0 for a free fleet.

    Dropping what is not needed may end a rounding beyond the bound. Infinite without a bound.
    """
    return abs(bound - objective) / abs(objective) if objective else 0.0


def _allocation(
    objective: Objective, solver: ProgramSolver, layout: Layout, fleet: EvaluatedFleet, gap: float
) -> Allocation:
    """The answer as records; the duals are those of the program over `layout`. Large problems come without."""
    has_duals = not _is_large(layout) and objective is not Objective.MAX_RATE_PER_COST
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    if gap > solver.relative_gap + FEASIBILITY_TOLERANCE:
        status = _cut_short(solver)
    own = fleet.layout
    units, slices = [unit.name for unit in own.problem.units], [slice_.name for slice_ in own.problem.slices]
    counts = fleet.values[own.column.units].round().astype(int).tolist()
    held = fleet.values[own.column.blocks] * own.purchase_block[:, None]
    bought: dict[str, dict[str, tuple[float, ...]]] = {}
    for (resource, purchase), row in zip(own.purchase_names(), held.tolist(), strict=True):
        if any(row):
            bought.setdefault(resource, {})[purchase] = tuple(row)
    routed: dict[str, dict[str, tuple[float, ...]]] = {}
    rates = fleet.values[own.column.rates].tolist()
    for j, s, row in zip(own.pair_unit, own.pair_slice, rates, strict=True):
        if any(row):
            routed.setdefault(units[j], {})[slices[s]] = tuple(row)
    return Allocation(
        status=status,
        objective=fleet.value(objective),
        gap=gap if math.isfinite(gap) else None,
        units={name: tuple(row) for name, row in zip(units, counts, strict=True)},
        bought=bought,
        routed_per_s=routed,
        cost_usd_per_hour=fleet.cost_usd_per_hour,
        starts_usd_per_hour=fleet.starts_usd_per_hour,
        rate_per_s=fleet.rate_per_s,
        constraints=constraint_reports(fleet, limit_duals(build_program(layout, objective)) if has_duals else {}),
    )
