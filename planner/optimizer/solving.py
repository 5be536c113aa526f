"""From a request to an allocation: which programs to solve, in which order, and what their answers mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import InputError
from planner.optimizer.constraints import (
    label,
    pools_of,
    total_cost,
    total_units,
)
from planner.optimizer.diagnosis import diagnose
from planner.optimizer.fleet import Fleet, fleet_of, reports
from planner.optimizer.highs import Answer, Outcome, Solver, duals
from planner.optimizer.program import build
from planner.optimizer.types import (
    FEASIBILITY_TOLERANCE,
    Allocation,
    Candidate,
    CandidatePool,
    Diagnosis,
    Limits,
    Objective,
    SolveStatus,
)

MAX_RATIO_STEPS = 50
"""Most Dinkelbach steps; more means a stall. Convergence is superlinear (S. Schaible 1976, "Fractional programming II,
on Dinkelbach's algorithm", Management Science 22(8)), so a handful is usual."""
_SAME_RATIO = 1e-9
"""Ratios closer than this share are the same: far above float rounding, far below `FEASIBILITY_TOLERANCE`."""


def solve(
    candidates: Sequence[Candidate],
    limits: Limits,
    objective: Objective,
    *,
    time_limit_s: float = 10.0,
    relative_gap: float = 1e-6,
) -> Allocation:
    """The best allocation of whole units, or what stands in its way.

    Args:
        candidates: what may be used; names of candidates, pools and resources must stay different when reduced to
            letters, digits and underscores.
        limits: what must be served and what may be spent.
        objective: what is best.
        time_limit_s: for all branch-and-bound runs together, diagnosis included [s].
        relative_gap: allowed |best possible - objective| / |objective|.

    Raises:
        InputError: a duplicate name; `min_cost` without a demand; a minimum rate above the demand;
            `max_rate_per_cost` with a candidate that costs nothing; a time limit or gap out of range.

    >>> cheap = Candidate(name="cheap", pools=(CandidatePool(name="c", rate_per_unit=1.0, cost_per_unit=2.0),))
    >>> big = Candidate(name="big", pools=(CandidatePool(name="b", rate_per_unit=5.0, cost_per_unit=8.0),))
    >>> solve([cheap, big], Limits(demand_per_s=6.0), Objective.MIN_COST).units
    {'c': 1, 'b': 1}
    >>> print(solve([cheap], Limits(demand_per_s=3.0, budget_per_h=5.0), Objective.MIN_COST).diagnosis.summary)
    serve_demand and within_budget cannot hold together; enough is any of: demand_per_s 3 -> 2; budget_per_h 5 -> 6
    """
    candidates = tuple(candidates)
    _check(candidates, limits, objective, time_limit_s, relative_gap)
    if not candidates:
        none = "there is no candidate to choose from: give at least one that meets its latency targets"
        return Allocation(status=SolveStatus.INFEASIBLE, diagnosis=Diagnosis(summary=none))
    unlimited = [c.name for c in candidates if _is_unlimited(c, limits)]
    if unlimited and objective is not Objective.MIN_COST and limits.demand_per_s is None:
        summary = f"nothing limits candidate {unlimited[0]!r}: give demand_per_s, budget_per_h, max_units or resources"
        return Allocation(status=SolveStatus.UNBOUNDED, diagnosis=Diagnosis(summary=summary))
    solver = Solver(time_limit_s, relative_gap)
    found = _SEARCHES[objective](solver, candidates, limits)
    if found.fleet is not None:
        return _allocation(candidates, limits, objective, found, found.fleet)
    if found.status is SolveStatus.INFEASIBLE:
        diagnosis = diagnose(solver, build(candidates, limits, objective), candidates, limits)
        return Allocation(status=found.status, diagnosis=diagnosis)
    return Allocation(status=found.status)


@dataclass(frozen=True)
class _Found:
    status: SolveStatus
    fleet: Fleet | None = None
    gap: float | None = None
    iterates: tuple[float, ...] = ()


def _cheapest(solver: Solver, candidates: Sequence[Candidate], limits: Limits) -> _Found:
    """Least cost; where some units are free, also the fewest units at that cost."""
    program = build(candidates, limits, Objective.MIN_COST)
    answer = solver.run(program, limits.demand_per_s)
    if not answer.has_units:
        return _nothing(answer)
    fleet = fleet_of(program.rows, candidates, limits, answer.units)
    found = _graded(solver, answer, fleet, _gap(fleet.cost_per_h, answer.bound))
    if all(pool.cost_per_unit for pool in pools_of(candidates)):
        return found
    kept = limits.model_copy(update={"budget_per_h": fleet.cost_per_h})
    fewest = replace(build(candidates, kept, Objective.MIN_COST), goal=total_units(candidates))
    second = solver.run(fewest, limits.demand_per_s)
    return replace(found, fleet=fleet_of(fewest.rows, candidates, limits, second.units)) if second.has_units else found


def _fastest(solver: Solver, candidates: Sequence[Candidate], limits: Limits) -> _Found:
    """Greatest rate, then the least cost at that rate (to the relative gap). The gap reported is that of the rate."""
    program = build(candidates, limits, Objective.MAX_RATE)
    first = solver.run(program, limits.demand_per_s)
    if not first.has_units:
        return _nothing(first)
    fleet = fleet_of(program.rows, candidates, limits, first.units)
    kept = limits.model_copy(update={"min_rate_per_s": fleet.rate_per_s})
    cheapest = replace(build(candidates, kept, Objective.MAX_RATE), goal=total_cost(candidates), maximise=False)
    second = solver.run(cheapest, limits.demand_per_s)
    if second.has_units:
        fleet = fleet_of(cheapest.rows, candidates, limits, second.units)
    last = second if first.outcome is Outcome.PROVEN else first
    return _graded(solver, last, fleet, _gap(fleet.rate_per_s, first.bound))


def _best_ratio(solver: Solver, candidates: Sequence[Candidate], limits: Limits) -> _Found:
    """Dinkelbach's method: maximise rate - q cost, set q to the ratio found, until no allocation has more than 0.

    F(q) = max(rate - q cost) is convex and falling, and F(q) = 0 exactly at the greatest ratio: W. Dinkelbach 1967,
    "On nonlinear fractional programming", Management Science 13(7). Each step solves an integer program,
    so the ratio is that of whole units. Since rate <= q cost + F(q), no ratio exceeds q + F(q) / (least cost > 0),
    which is the bound of the reported gap.
    """
    least_cost = min(math.fsum(p.cost_per_unit * p.granularity for p in candidate.pools) for candidate in candidates)
    fleets: list[Fleet] = []
    ratio, upper = 0.0, math.inf
    for _ in range(MAX_RATIO_STEPS):
        program = build(candidates, limits, Objective.MAX_RATE_PER_COST, ratio)
        answer = solver.run(program, limits.demand_per_s, solver.relative_gap * ratio * least_cost)
        upper = min(upper, math.inf if answer.bound is None else ratio + max(0.0, answer.bound) / least_cost)
        if not answer.has_units:
            break
        fleet = fleet_of(program.rows, candidates, limits, answer.units)
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


def _gap(objective: float, bound: float | None) -> float | None:
    """|bound - objective| / |objective|, with the objective recomputed from whole units; 0 for a free fleet."""
    if bound is None:
        return None
    return abs(bound - objective) / abs(objective) if objective else 0.0


def _allocation(
    candidates: Sequence[Candidate], limits: Limits, objective: Objective, found: _Found, fleet: Fleet
) -> Allocation:
    program = build(candidates, limits, objective)
    is_ratio = objective is Objective.MAX_RATE_PER_COST
    value = {
        Objective.MIN_COST: fleet.cost_per_h,
        Objective.MAX_RATE: fleet.rate_per_s,
        Objective.MAX_RATE_PER_COST: fleet.rate_per_cost,
    }
    return Allocation(
        status=found.status,
        objective=value[objective],
        gap=found.gap,
        units=fleet.units,
        routed_rate=fleet.routed,
        cost_per_h=fleet.cost_per_h,
        rate_per_s=fleet.rate_per_s,
        capacity_per_s=fleet.capacity_per_s,
        constraints=reports(program.rows, candidates, fleet, {} if is_ratio else duals(program)),
        iterates=found.iterates,
    )


def _is_unlimited(candidate: Candidate, limits: Limits) -> bool:
    """Whether each pool of the chain can grow without end: no limit counts it."""
    return limits.max_units is None and not any(_is_limited(pool, limits) for pool in candidate.pools)


def _is_limited(pool: CandidatePool, limits: Limits) -> bool:
    costs = limits.budget_per_h is not None and pool.cost_per_unit > 0.0
    return costs or any(pool.resources.get(name, 0.0) > 0.0 for name in limits.resources)


def _check(
    candidates: Sequence[Candidate], limits: Limits, objective: Objective, time_limit_s: float, relative_gap: float
) -> None:
    _check_names("candidate", [c.name for c in candidates])
    _check_names("pool", [pool.name for pool in pools_of(candidates)])
    _check_names("resource", list(limits.resources))
    if not time_limit_s > 0.0:
        raise InputError("time_limit_s", time_limit_s, "must be > 0 s", "give the solver some time, e.g. 10")
    if not 0.0 <= relative_gap < 1.0:
        raise InputError("relative_gap", relative_gap, "must lie in [0, 1)", "write 0.01 for one percent")
    demand, least = limits.demand_per_s, limits.min_rate_per_s
    if objective is Objective.MIN_COST and demand is None:
        raise InputError("demand_per_s", None, "min_cost needs a demand to serve", "give it, or choose max_rate")
    if demand is not None and least is not None and least > demand:
        raise InputError("min_rate_per_s", least, f"must be <= demand_per_s = {demand:g}", "lower it to the demand")
    free = [c.name for c in candidates if not any(pool.cost_per_unit for pool in c.pools)]
    if objective is Objective.MAX_RATE_PER_COST and free:
        fix = "give it a price, or choose max_rate"
        raise InputError(f"candidate {free[0]!r} cost_per_unit", 0.0, "a free candidate has no rate per cost", fix)


def _check_names(kind: str, names: Sequence[str]) -> None:
    by_label = Counter(label(name) for name in names)
    twice = [name for name in names if by_label[label(name)] > 1]
    if twice:
        bound = f"two {kind} names are equal once all but letters, digits and _ is replaced by _"
        raise InputError(f"{kind} name", twice[:2], bound, f"rename one of the {len(twice)}")
