"""From a problem to an allocation: which programs to solve, in which order, and what their answers mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.core import FloatArray
from planner.optimizer.checks import check_problem, least_cost_usd_per_hour, unlimited_unit
from planner.optimizer.coefficients import mean_cost, smallest_useful_rate
from planner.optimizer.covering import cheapest_cover
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.dominance import dominators
from planner.optimizer.evaluate_allocation import EvaluatedFleet, constraint_reports, evaluate_fleet
from planner.optimizer.highs import SolverOutcome
from planner.optimizer.large import LargeAnswer, is_supported, solve_large
from planner.optimizer.layout import Layout, build_layout
from planner.optimizer.program import Program, build_program
from planner.optimizer.relaxation import limit_duals
from planner.optimizer.shortlist import ProgramMaker, SearchAnswer, ShortlistSolver
from planner.optimizer.types import (
    FEASIBILITY_TOLERANCE,
    Allocation,
    Diagnosis,
    FleetProblem,
    Objective,
    SolveStatus,
)

MAX_RATIO_STEPS = 50
"""Most Dinkelbach steps; more means a stall. Convergence is superlinear (S. Schaible 1976, "Fractional programming II,
on Dinkelbach's algorithm", Management Science 22(8)), so a handful is usual."""
LARGE_RATES, LARGE_RATES_OVER_PERIODS = 20_000, 1_000
"""Least-cost problems of more rates to route than this go to `planner.optimizer.large`, which treats each period by
itself; the second is for several periods. Measured: at 1,440 rates in 8 periods it proves 1 % in 0.1 s and branch and
bound in 1 s, at 7,200 in 24 periods in 7 s and not at all; at 480 in 4 periods branch and bound is the better one."""
_SAME_RATIO = 1e-9
"""Ratios closer than this share are the same: far above float rounding, far below `FEASIBILITY_TOLERANCE`."""


def solve(
    problem: FleetProblem, objective: Objective, *, time_limit_s: float = 10.0, relative_gap: float = 1e-6
) -> Allocation:
    """The best allocation of whole units, or what stands in its way.

    Args:
        problem: what must be served, by what, and what may be spent. Names must stay different when all but letters
            and digits is replaced by an underscore.
        objective: what is best.
        time_limit_s: for all runs of the solver together, diagnosis included [s].
        relative_gap: allowed |best possible - objective| / |objective|.

    Returns:
        The allocation, or a status without one and the diagnosis.

    Raises:
        InputError: a duplicate name; a slice or resource that the problem does not have; `min_cost` with a slice
            without demand; a minimum rate above the demand; `max_rate_per_cost` with units that cost nothing; a pinned
            resource that cannot be bought; a time limit or gap out of range.

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
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=Diagnosis(summary=none))
    layout = build_layout(problem)
    if objective is not Objective.MIN_COST:
        if unit := unlimited_unit(layout):
            limits = "demand_per_s, budget_usd_per_hour, max_units, or at_most of a resource"
            summary = f"nothing limits unit {unit!r}: give {limits}"
            return Allocation(status=SolveStatus.UNBOUNDED, diagnosis=Diagnosis(summary=summary))
        layout = _with_least_rate(layout)
    covered = _cover(layout, relative_gap) if objective is Objective.MIN_COST else None
    is_large = objective is Objective.MIN_COST and _is_large(layout)
    if covered is not None and covered.is_proven:
        return _allocation(objective, covered, layout, has_duals=not is_large)
    if is_large:
        return _solve_by_decomposition(layout, covered, time_limit_s, relative_gap)
    return _solve_by_branch_and_bound(layout, objective, covered, ShortlistSolver(time_limit_s, relative_gap))


@dataclass(frozen=True)
class _FoundFleet:
    """A fleet, and how good it is known to be.

    Attributes:
        status: with an allocation.
        fleet: recomputed from whole numbers.
        gap: proved |best possible - objective| / |objective|; None: nothing was proved.
        iterates: Dinkelbach's ratios.
    """

    status: SolveStatus
    fleet: EvaluatedFleet
    gap: float | None
    iterates: tuple[float, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether it is known to be as good as was asked for."""
        return self.status in (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP)

    @property
    def cost_usd_per_hour(self) -> float:
        """Mean over the horizon [USD/h]."""
        return self.fleet.cost_usd_per_hour

    @property
    def bounds_usd_per_hour(self) -> tuple[float, ...]:
        """The cost below which no fleet lies [USD/h], where one was proved."""
        return () if self.gap is None else (self.cost_usd_per_hour * (1.0 - self.gap),)


@dataclass(frozen=True)
class _NoFleet:
    """Nothing was found: proved impossible, or the time ran out."""

    status: SolveStatus


def _is_large(layout: Layout) -> bool:
    most = LARGE_RATES if layout.periods == 1 else LARGE_RATES_OVER_PERIODS
    return layout.rate_column.size > most and is_supported(layout.problem)


def _cover(layout: Layout, relative_gap: float) -> _FoundFleet | None:
    """The fleet that covers every slice and period by itself, if it keeps all limits."""
    cover = cheapest_cover(layout)
    if cover is None or not cover.keeps_limits:
        return None
    fleet = evaluate_fleet(Objective.MIN_COST, layout, cover.values)
    gap = _gap(fleet.cost_usd_per_hour, cover.bound_usd_per_hour, 1.0)
    return _FoundFleet(_status(gap, relative_gap), fleet, gap)


def _cheaper(covered: _FoundFleet | None, other: _FoundFleet, relative_gap: float) -> _FoundFleet:
    """The cheaper of two fleets, against the higher of their bounds."""
    if covered is None or other.cost_usd_per_hour <= covered.cost_usd_per_hour:
        return other
    return _against(covered, (*covered.bounds_usd_per_hour, *other.bounds_usd_per_hour), relative_gap)


def _against(covered: _FoundFleet, bounds_usd_per_hour: Sequence[float], relative_gap: float) -> _FoundFleet:
    gap = _gap(covered.cost_usd_per_hour, max(bounds_usd_per_hour, default=None), 1.0)
    return _FoundFleet(_status(gap, relative_gap), covered.fleet, gap)


def _solve_by_branch_and_bound(
    layout: Layout, objective: Objective, covered: _FoundFleet | None, solver: ShortlistSolver
) -> Allocation:
    layout = layout.select(dominators(layout) < 0)
    result = _SEARCHES[objective](solver, layout)
    if isinstance(result, _FoundFleet):
        return _allocation(objective, _cheaper(covered, result, solver.relative_gap), layout)
    if result.status is SolveStatus.INFEASIBLE:
        return Allocation(status=result.status, diagnosis=diagnose(solver, objective, layout))
    if covered is not None:
        return _allocation(objective, _against(covered, covered.bounds_usd_per_hour, solver.relative_gap), layout)
    return Allocation(status=result.status)


def _solve_by_decomposition(
    layout: Layout, covered: _FoundFleet | None, time_limit_s: float, relative_gap: float
) -> Allocation:
    """Least cost of a large problem. No duals: they would take its whole relaxation."""
    answer = solve_large(layout.problem, time_limit_s=time_limit_s, relative_gap=relative_gap)
    if answer is None:
        diagnosis = diagnose(ShortlistSolver(0.0, relative_gap), Objective.MIN_COST, layout)
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=diagnosis)
    if not answer.has_fleet:
        if covered is not None:
            return _allocation(Objective.MIN_COST, covered, layout, has_duals=False)
        return Allocation(status=SolveStatus.NO_SOLUTION_IN_TIME)
    used = layout.select(np.array([unit.name in answer.units for unit in layout.problem.units], dtype=bool))
    fleet = evaluate_fleet(Objective.MIN_COST, used, _values_of(answer, used), is_routed=True)
    gap = _gap(fleet.cost_usd_per_hour, answer.lower_bound, 1.0) or 0.0
    best = _cheaper(covered, _FoundFleet(_status(gap, relative_gap), fleet, gap), relative_gap)
    return _allocation(Objective.MIN_COST, best, used, has_duals=False)


def _values_of(answer: LargeAnswer, layout: Layout) -> FloatArray:
    """The fleet of a large problem, by column of the layout of its units."""
    values = np.zeros(layout.columns)
    units, slices = layout.problem.units, layout.problem.slices
    for row, unit in zip(layout.units_column, units, strict=True):
        values[row] = answer.units[unit.name]
    for row, j, s in zip(layout.rate_column, layout.pair_unit, layout.pair_slice, strict=True):
        values[row] = answer.routed_per_s.get(units[j].name, {}).get(slices[s].name, 0.0)
    names = zip(layout.blocks_column, layout.purchase_names(), layout.purchase_block, strict=True)
    for row, (resource, purchase), block in names:
        values[row] = np.round(np.asarray(answer.bought.get(resource, {}).get(purchase, 0.0)) / block)
    return values


def _with_least_rate(layout: Layout) -> Layout:
    """The default of `serve_minimum` is that of all units, so that it stays when some are left out."""
    least = layout.problem.min_rate_per_s or smallest_useful_rate(layout)
    if not least:
        return layout
    return replace(layout, problem=layout.problem.model_copy(update={"min_rate_per_s": least}))


def _search_least_cost(solver: ShortlistSolver, layout: Layout) -> _FoundFleet | _NoFleet:
    answer = solver.run(lambda fewer: build_program(fewer, Objective.MIN_COST), layout)
    if not answer.has_values:
        return _no_fleet(answer)
    fleet = evaluate_fleet(Objective.MIN_COST, answer.layout, answer.values)
    return _found_fleet(solver, answer, fleet, _gap(fleet.cost_usd_per_hour, answer.bound, 1.0))


def _search_greatest_rate(solver: ShortlistSolver, layout: Layout) -> _FoundFleet | _NoFleet:
    """Greatest rate, then the least cost at that rate (to the relative gap). The gap reported is that of the rate."""
    first = solver.run(lambda fewer: build_program(fewer, Objective.MAX_RATE), layout)
    if not first.has_values:
        return _no_fleet(first)
    fleet = evaluate_fleet(Objective.MAX_RATE, first.layout, first.values)
    last = first
    if fleet.rate_per_s > 0.0:
        at_that_rate = layout.problem.model_copy(update={"min_rate_per_s": fleet.rate_per_s})

        def cheapest(fewer: Layout) -> Program:
            return replace(build_program(fewer, Objective.MAX_RATE), goal=mean_cost(fewer), maximise=False)

        second = solver.run(cheapest, replace(layout, problem=at_that_rate))
        if second.has_values:
            asked = second.layout.problem.model_copy(update={"min_rate_per_s": layout.problem.min_rate_per_s})
            fleet = evaluate_fleet(Objective.MAX_RATE, replace(second.layout, problem=asked), second.values)
        last = second if first.outcome is SolverOutcome.PROVEN else first
    return _found_fleet(solver, last, fleet, _gap(fleet.rate_per_s, first.bound, -1.0))


def _search_greatest_ratio(solver: ShortlistSolver, layout: Layout) -> _FoundFleet | _NoFleet:
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
        answer = solver.run(_parametric(ratio), layout, solver.relative_gap * ratio * least_cost)
        upper = min(upper, math.inf if answer.bound is None else ratio + max(0.0, answer.bound) / least_cost)
        if not answer.has_values:
            break
        fleet = evaluate_fleet(Objective.MAX_RATE_PER_COST, answer.layout, answer.values)
        if fleet.rate_per_cost <= ratio * (1.0 + _SAME_RATIO):
            break
        fleets.append(fleet)
        ratio = fleet.rate_per_cost
        if answer.outcome is not SolverOutcome.PROVEN:
            break
    if not fleets:
        return _no_fleet(answer)
    gap = max(0.0, upper / ratio - 1.0) if math.isfinite(upper) else None
    best = _found_fleet(solver, answer, fleets[-1], gap)
    return replace(best, iterates=tuple(fleet.rate_per_cost for fleet in fleets))


def _parametric(ratio: float) -> ProgramMaker:
    return lambda fewer: build_program(fewer, Objective.MAX_RATE_PER_COST, ratio)


_SEARCHES = {
    Objective.MIN_COST: _search_least_cost,
    Objective.MAX_RATE: _search_greatest_rate,
    Objective.MAX_RATE_PER_COST: _search_greatest_ratio,
}


def _no_fleet(answer: SearchAnswer) -> _NoFleet:
    infeasible = answer.outcome is SolverOutcome.INFEASIBLE
    return _NoFleet(SolveStatus.INFEASIBLE if infeasible else SolveStatus.NO_SOLUTION_IN_TIME)


def _found_fleet(
    solver: ShortlistSolver, answer: SearchAnswer, fleet: EvaluatedFleet, gap: float | None
) -> _FoundFleet:
    is_proven = answer.outcome is SolverOutcome.PROVEN
    return _FoundFleet(_status(gap, solver.relative_gap) if is_proven else SolveStatus.TIME_LIMIT, fleet, gap)


def _status(gap: float | None, relative_gap: float) -> SolveStatus:
    """How good a fleet of a proved gap is; without one the time ran out before anything was proved."""
    if gap is None or gap > relative_gap + FEASIBILITY_TOLERANCE:
        return SolveStatus.TIME_LIMIT
    return SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP


def _gap(objective: float, bound: float | None, worse: float) -> float | None:
    """(objective - bound) / |objective|, with the objective recomputed from whole units; 0 for a free fleet.

    Never below 0: dropping what is not needed may end a rounding beyond the bound. `worse` is +1 where a greater
    objective is worse, -1 where a smaller one is.
    """
    if bound is None:
        return None
    return max(0.0, worse * (objective - bound)) / abs(objective) if objective else 0.0


def _allocation(objective: Objective, result: _FoundFleet, layout: Layout, *, has_duals: bool = True) -> Allocation:
    """The answer as records; the duals are those of the program over `layout`."""
    fleet = result.fleet
    is_linear = has_duals and objective is not Objective.MAX_RATE_PER_COST
    duals: Mapping[str, float] = limit_duals(build_program(layout, objective)) if is_linear else {}
    value = {
        Objective.MIN_COST: fleet.cost_usd_per_hour,
        Objective.MAX_RATE: fleet.rate_per_s,
        Objective.MAX_RATE_PER_COST: fleet.rate_per_cost,
    }
    return Allocation(
        status=result.status,
        objective=value[objective],
        gap=result.gap,
        units=_units(fleet),
        bought=_bought(fleet),
        routed_per_s=_routed_per_s(fleet),
        cost_usd_per_hour=fleet.cost_usd_per_hour,
        starts_usd_per_hour=fleet.starts_usd_per_hour,
        rate_per_s=fleet.rate_per_s,
        constraints=constraint_reports(fleet, duals),
        iterates=result.iterates,
    )


def _units(fleet: EvaluatedFleet) -> dict[str, tuple[int, ...]]:
    counts = fleet.values[fleet.layout.units_column].round().astype(int)
    names = (unit.name for unit in fleet.layout.problem.units)
    return {name: tuple(row) for name, row in zip(names, counts.tolist(), strict=True)}


def _bought(fleet: EvaluatedFleet) -> dict[str, dict[str, tuple[float, ...]]]:
    layout = fleet.layout
    held: FloatArray = fleet.values[layout.blocks_column] * layout.purchase_block[:, None]
    bought: dict[str, dict[str, tuple[float, ...]]] = {}
    for (resource, purchase), row in zip(layout.purchase_names(), held, strict=True):
        if row.any():
            bought.setdefault(resource, {})[purchase] = tuple(row.tolist())
    return bought


def _routed_per_s(fleet: EvaluatedFleet) -> dict[str, dict[str, tuple[float, ...]]]:
    layout = fleet.layout
    routed: dict[str, dict[str, tuple[float, ...]]] = {}
    for j, s, row in zip(layout.pair_unit, layout.pair_slice, fleet.values[layout.rate_column], strict=True):
        if row.any():
            unit, slice_ = layout.problem.units[j].name, layout.problem.slices[s].name
            routed.setdefault(unit, {})[slice_] = tuple(row.tolist())
    return routed
