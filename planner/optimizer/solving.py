"""From a problem to an allocation: which programs to solve, in which order, and what their answers mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.optimizer.checks import check, least_cost_usd_per_hour, unlimited_unit
from planner.optimizer.constraints import mean_cost, smallest_useful_rate
from planner.optimizer.covering import cheapest_cover
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.dominance import dominators
from planner.optimizer.evaluate_allocation import Fleet, fleet_of, reports
from planner.optimizer.highs import Outcome
from planner.optimizer.large import solve_large, supports
from planner.optimizer.layout import Floats, Layout, layout_of
from planner.optimizer.program import Program, build
from planner.optimizer.relaxation import duals
from planner.optimizer.shortlist import Answer, Maker, Solver
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
    check(problem, objective, time_limit_s, relative_gap)
    if not problem.units:
        none = "there is no unit to choose from: give at least one that meets its latency targets"
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=Diagnosis(summary=none))
    layout = layout_of(problem)
    if objective is not Objective.MIN_COST:
        if unit := unlimited_unit(layout):
            limits = "demand_per_s, budget_usd_per_hour, max_units, or at_most of a resource"
            summary = f"nothing limits unit {unit!r}: give {limits}"
            return Allocation(status=SolveStatus.UNBOUNDED, diagnosis=Diagnosis(summary=summary))
        layout = _with_least_rate(layout)
    covered = _covered(layout, relative_gap) if objective is Objective.MIN_COST else None
    return _solved(layout, objective, covered, time_limit_s, relative_gap)


def _solved(
    layout: Layout, objective: Objective, covered: _Found | None, time_limit_s: float, relative_gap: float
) -> Allocation:
    """The covering fleet where it is proved good enough, else what decomposition or branch and bound finds."""
    is_large = objective is Objective.MIN_COST and _is_large(layout)
    if covered is not None and covered.fleet is not None and covered.is_proven:
        return _allocation(layout, objective, covered, covered.fleet, has_duals=not is_large)
    if is_large:
        return _large(layout, time_limit_s, relative_gap, covered)
    layout = layout.only(dominators(layout) < 0)
    solver = Solver(time_limit_s, relative_gap)
    found = _better(covered, _SEARCHES[objective](solver, layout), relative_gap)
    if found.fleet is not None:
        return _allocation(layout, objective, found, found.fleet)
    if found.status is SolveStatus.INFEASIBLE:
        return Allocation(status=found.status, diagnosis=diagnose(solver, objective, layout))
    return Allocation(status=found.status)


def _is_large(layout: Layout) -> bool:
    most = LARGE_RATES if layout.periods == 1 else LARGE_RATES_OVER_PERIODS
    return layout.rate_column.size > most and supports(layout.problem)


def _covered(layout: Layout, relative_gap: float) -> _Found | None:
    """The fleet that covers every slice and period by itself, if it keeps all limits."""
    cover = cheapest_cover(layout)
    if cover is None or not cover.keeps_limits:
        return None
    fleet = fleet_of(Objective.MIN_COST, layout, cover.values)
    gap = _gap(fleet.cost_usd_per_hour, cover.bound_usd_per_hour, 1.0)
    if gap is None or gap > relative_gap + FEASIBILITY_TOLERANCE:
        return _Found(SolveStatus.TIME_LIMIT, fleet, gap)
    return _Found(SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP, fleet, gap)


def _better(covered: _Found | None, found: _Found, relative_gap: float) -> _Found:
    """The cheaper of two fleets, against the higher of their bounds."""
    if covered is None or covered.fleet is None or (found.fleet is None and found.status is SolveStatus.INFEASIBLE):
        return found
    bounds = [
        one.fleet.cost_usd_per_hour * (1.0 - one.gap)
        for one in (covered, found)
        if one.fleet is not None and one.gap is not None
    ]
    if found.fleet is not None and found.fleet.cost_usd_per_hour <= covered.fleet.cost_usd_per_hour:
        return found
    gap = _gap(covered.fleet.cost_usd_per_hour, max(bounds, default=None), 1.0)
    status = SolveStatus.TIME_LIMIT
    if gap is not None and gap <= relative_gap + FEASIBILITY_TOLERANCE:
        status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    return _Found(status, covered.fleet, gap)


def _large(layout: Layout, time_limit_s: float, relative_gap: float, covered: _Found | None) -> Allocation:
    """Least cost of a large problem, by decomposition. No duals: they would take its whole relaxation."""
    answer = solve_large(layout.problem, time_limit_s=time_limit_s, relative_gap=relative_gap)
    if answer is None:
        diagnosis = diagnose(Solver(0.0, relative_gap), Objective.MIN_COST, layout)
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=diagnosis)
    if not answer.has_fleet:
        if covered is not None and covered.fleet is not None:
            return _allocation(layout, Objective.MIN_COST, covered, covered.fleet, has_duals=False)
        return Allocation(status=SolveStatus.NO_SOLUTION_IN_TIME)
    own = layout.only(np.array([unit.name in answer.units for unit in layout.problem.units], dtype=bool))
    values = np.zeros(own.columns)
    units, slices = own.problem.units, own.problem.slices
    for row, unit in zip(own.units_column, units, strict=True):
        values[row] = answer.units[unit.name]
    for row, j, s in zip(own.rate_column, own.pair_unit, own.pair_slice, strict=True):
        values[row] = answer.routed_per_s.get(units[j].name, {}).get(slices[s].name, 0.0)
    names = zip(own.blocks_column, own.purchase_names(), own.purchase_block, strict=True)
    for row, (resource, purchase), block in names:
        values[row] = np.round(np.asarray(answer.bought.get(resource, {}).get(purchase, 0.0)) / block)
    fleet = fleet_of(Objective.MIN_COST, own, values, is_routed=True)
    gap = _gap(fleet.cost_usd_per_hour, answer.lower_bound, 1.0) or 0.0
    status = SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP
    if gap > relative_gap + FEASIBILITY_TOLERANCE:
        status = SolveStatus.TIME_LIMIT
    best = _better(covered, _Found(status, fleet, gap), relative_gap)
    assert best.fleet is not None
    return _allocation(own, Objective.MIN_COST, best, best.fleet, has_duals=False)


@dataclass(frozen=True)
class _Found:
    status: SolveStatus
    fleet: Fleet | None = None
    gap: float | None = None
    iterates: tuple[float, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether it is known to be as good as was asked for."""
        return self.status in (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP)


def _with_least_rate(layout: Layout) -> Layout:
    """The default of `serve_minimum` is that of all units, so that it stays when some are left out."""
    least = layout.problem.min_rate_per_s or smallest_useful_rate(layout)
    if not least:
        return layout
    return replace(layout, problem=layout.problem.model_copy(update={"min_rate_per_s": least}))


def _cheapest(solver: Solver, layout: Layout) -> _Found:
    """Least cost."""
    answer = solver.run(lambda fewer: build(fewer, Objective.MIN_COST), layout)
    if not answer.has_values:
        return _nothing(answer)
    fleet = fleet_of(Objective.MIN_COST, answer.layout, answer.values)
    return _graded(solver, answer, fleet, _gap(fleet.cost_usd_per_hour, answer.bound, 1.0))


def _fastest(solver: Solver, layout: Layout) -> _Found:
    """Greatest rate, then the least cost at that rate (to the relative gap). The gap reported is that of the rate."""
    first = solver.run(lambda fewer: build(fewer, Objective.MAX_RATE), layout)
    if not first.has_values:
        return _nothing(first)
    fleet = fleet_of(Objective.MAX_RATE, first.layout, first.values)
    last = first
    if fleet.rate_per_s > 0.0:
        kept = layout.problem.model_copy(update={"min_rate_per_s": fleet.rate_per_s})

        def cheapest(fewer: Layout) -> Program:
            return replace(build(fewer, Objective.MAX_RATE), goal=mean_cost(fewer), maximise=False)

        second = solver.run(cheapest, replace(layout, problem=kept))
        if second.has_values:
            fewer = second.layout.problem.model_copy(update={"min_rate_per_s": layout.problem.min_rate_per_s})
            fleet = fleet_of(Objective.MAX_RATE, replace(second.layout, problem=fewer), second.values)
        last = second if first.outcome is Outcome.PROVEN else first
    return _graded(solver, last, fleet, _gap(fleet.rate_per_s, first.bound, -1.0))


def _best_ratio(solver: Solver, layout: Layout) -> _Found:
    """Dinkelbach's method: maximise rate - q cost, set q to the ratio found, until no allocation has more than 0.

    F(q) = max(rate - q cost) is convex and falling, and F(q) = 0 exactly at the greatest ratio: W. Dinkelbach 1967,
    "On nonlinear fractional programming", Management Science 13(7). Each step solves an integer program,
    so the ratio is that of whole units. Since rate <= q cost + F(q), no ratio exceeds q + F(q) / (least cost > 0),
    which is the bound of the reported gap.
    """
    least_cost = least_cost_usd_per_hour(layout)
    fleets: list[Fleet] = []
    ratio, upper = 0.0, math.inf
    for _ in range(MAX_RATIO_STEPS):
        answer = solver.run(_parametric(ratio), layout, solver.relative_gap * ratio * least_cost)
        upper = min(upper, math.inf if answer.bound is None else ratio + max(0.0, answer.bound) / least_cost)
        if not answer.has_values:
            break
        fleet = fleet_of(Objective.MAX_RATE_PER_COST, answer.layout, answer.values)
        if fleet.rate_per_cost <= ratio * (1.0 + _SAME_RATIO):
            break
        fleets.append(fleet)
        ratio = fleet.rate_per_cost
        if answer.outcome is not Outcome.PROVEN:
            break
    if not fleets:
        return _nothing(answer)
    gap = max(0.0, upper / ratio - 1.0) if math.isfinite(upper) else None
    return replace(_graded(solver, answer, fleets[-1], gap), iterates=tuple(fleet.rate_per_cost for fleet in fleets))


def _parametric(ratio: float) -> Maker:
    return lambda fewer: build(fewer, Objective.MAX_RATE_PER_COST, ratio)


_SEARCHES = {
    Objective.MIN_COST: _cheapest,
    Objective.MAX_RATE: _fastest,
    Objective.MAX_RATE_PER_COST: _best_ratio,
}


def _nothing(answer: Answer) -> _Found:
    infeasible = answer.outcome is Outcome.INFEASIBLE
    return _Found(SolveStatus.INFEASIBLE if infeasible else SolveStatus.NO_SOLUTION_IN_TIME)


def _graded(solver: Solver, answer: Answer, fleet: Fleet, gap: float | None) -> _Found:
    if answer.outcome is not Outcome.PROVEN or gap is None or gap > solver.relative_gap + FEASIBILITY_TOLERANCE:
        return _Found(SolveStatus.TIME_LIMIT, fleet, gap)
    return _Found(SolveStatus.OPTIMAL if gap <= FEASIBILITY_TOLERANCE else SolveStatus.WITHIN_GAP, fleet, gap)


def _gap(objective: float, bound: float | None, worse: float) -> float | None:
    """(objective - bound) / |objective|, with the objective recomputed from whole units; 0 for a free fleet.

    Never below 0: dropping what is not needed may end a rounding beyond the bound.
    """
    if bound is None:
        return None
    return max(0.0, worse * (objective - bound)) / abs(objective) if objective else 0.0


def _allocation(
    layout: Layout, objective: Objective, found: _Found, fleet: Fleet, *, has_duals: bool = True
) -> Allocation:
    is_linear = has_duals and objective is not Objective.MAX_RATE_PER_COST
    worth: Mapping[str, float] = duals(build(layout, objective)) if is_linear else {}
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
        routed_per_s=_routed(fleet),
        cost_usd_per_hour=fleet.cost_usd_per_hour,
        starts_usd_per_hour=fleet.starts_usd_per_hour,
        rate_per_s=fleet.rate_per_s,
        constraints=reports(fleet, worth),
        iterates=found.iterates,
    )


def _units(fleet: Fleet) -> dict[str, tuple[int, ...]]:
    counts = fleet.values[fleet.layout.units_column].round().astype(int)
    names = (unit.name for unit in fleet.layout.problem.units)
    return {name: tuple(row) for name, row in zip(names, counts.tolist(), strict=True)}


def _bought(fleet: Fleet) -> dict[str, dict[str, tuple[float, ...]]]:
    layout = fleet.layout
    held: Floats = fleet.values[layout.blocks_column] * layout.purchase_block[:, None]
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for (resource, purchase), row in zip(layout.purchase_names(), held, strict=True):
        if row.any():
            found.setdefault(resource, {})[purchase] = tuple(row.tolist())
    return found


def _routed(fleet: Fleet) -> dict[str, dict[str, tuple[float, ...]]]:
    layout = fleet.layout
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for j, s, row in zip(layout.pair_unit, layout.pair_slice, fleet.values[layout.rate_column], strict=True):
        if row.any():
            unit, one = layout.problem.units[j].name, layout.problem.slices[s].name
            found.setdefault(unit, {})[one] = tuple(row.tolist())
    return found
