"""Why a plan is what it is, by solving again: marginal values, costs of requirements, runners-up, what would help.

An integer program has no duals. What a limit is worth is found by moving it and solving again: exact, but lumpy, as
half a GPU cannot be bought, so that a step may change nothing. `smallest_steps` finds the step that does.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count as numbered
from typing import Any

from planner.analysis.api_prices import api_break_even
from planner.analysis.perturbations import Requirement, requirements, without_mode, without_sku, without_tp
from planner.analysis.resolve import OutOfSolvesError, Solver, baseline, first_change
from planner.analysis.sensitivity import break_even_prices, pareto, robust, tornado
from planner.analysis.types import (
    ApiPrice,
    Explanation,
    Marginal,
    Measure,
    Outcome,
    Question,
    RequirementCost,
    RunnerUp,
    SmallestRelaxation,
    gain,
)
from planner.fleet import Plan, PlanRequest
from planner.search import Mode

__all__ = [
    "DEFAULT_QUESTIONS",
    "explain",
    "marginal_values",
    "requirement_costs",
    "runners_up",
    "smallest_relaxations",
    "smallest_steps",
]

FINEST = 0.005
"""Relative width to which the place of a change is found."""
FIRST_STRIDE = 0.01
"""First step of the search for a change, as a share of the value; the next ones double."""
STRIDES = 9
"""Steps of that search: up to 3.6 times the value."""
WHOLE_STRIDES = 6
"""The same of what is counted in pieces: up to 32 of them."""
RELAXING = 10
"""Doublings of a relaxation: up to 51 times the value."""

DEFAULT_QUESTIONS = (
    Question.MARGINAL,
    Question.REQUIREMENTS,
    Question.TORNADO,
    Question.PRICES,
    Question.API,
    Question.RUNNERS_UP,
    Question.ROBUST,
)
"""Asked unless told otherwise; of an infeasible request only the relaxations are."""


def marginal_values(plan: Plan, solver: Solver) -> tuple[Marginal, ...]:
    """What one step more or less of the demand, each target and each limit is worth.

    Steps are `Requirement.steps`: a round step and 10 % of thresholds, one piece of what is counted, 10 % of the rest.
    Two to four solves for each.
    """
    base, measure = baseline(plan, solver)
    return tuple(
        _marginal(requirement, value, base, solver.outcome(requirement.with_value(value)), measure)
        for requirement in requirements(plan.request)
        for value in requirement.steps()
    )


def _marginal(requirement: Requirement, value: float, base: Outcome, outcome: Outcome, measure: Measure) -> Marginal:
    """What a changed requirement is worth. Where it is looser the fleet of before still does, so it costs nothing."""
    assert requirement.value is not None
    worth = gain(base, outcome, measure)
    if requirement.is_looser(value) and (worth is None or worth < 0.0):
        outcome, worth = base, 0.0
    return Marginal(
        name=requirement.name,
        key=requirement.key,
        unit=requirement.unit,
        before=requirement.value,
        after=value,
        easier=requirement.is_looser(value),
        outcome=outcome,
        gain=worth,
    )


def smallest_steps(plan: Plan, solver: Solver) -> tuple[Marginal, ...]:
    """The smallest change of each target and limit, both ways, that changes the value of the plan.

    Found to `FINEST` of the value by doubling steps and halving the last one: at most 17 solves a direction. Where
    nothing changes, `after` is the furthest value tried and the gain 0.
    """
    base, measure = baseline(plan, solver)
    found = []
    for requirement in requirements(plan.request):
        for sign in (1.0, -1.0):
            outward = _outward(requirement, sign)
            if not outward:
                continue
            here = requirement.value or 0.0
            tolerance = 1.0 if requirement.whole else FINEST * here
            changes = _changing(requirement, base, solver, measure)
            after = first_change(changes, here, outward, tolerance)
            value = outward[-1] if after is None else after
            outcome = solver.outcome(requirement.with_value(value))
            found.append(_marginal(requirement, value, base, outcome, measure))
    return tuple(found)


def _changing(requirement: Requirement, base: Outcome, solver: Solver, measure: Measure) -> Callable[[float], bool]:
    def changes(value: float) -> bool:
        return solver.outcome(requirement.with_value(value)).differs(base, measure)

    return changes


def _outward(requirement: Requirement, sign: float) -> tuple[float, ...]:
    if requirement.value is None:
        return ()
    stride = 1.0 if requirement.whole else FIRST_STRIDE * requirement.value
    strides = WHOLE_STRIDES if requirement.whole else STRIDES
    values = (requirement.value + sign * stride * 2.0**power for power in range(strides))
    return tuple(value for value in values if value >= requirement.lowest)


def requirement_costs(plan: Plan, solver: Solver) -> tuple[RequirementCost, ...]:
    """What each target, limit and rule costs: the best plan with it less the best plan without it. One solve each."""
    base, measure = baseline(plan, solver)
    found = []
    for requirement in requirements(plan.request):
        if requirement.dropped is not None:
            without = solver.outcome(requirement.dropped)
            lost = gain(base, without, measure)
            found.append(RequirementCost(requirement.name, requirement.key, without, lost))
    return tuple(found)


# --- runners-up -----------------------------------------------------------------------------------------------------


def runners_up(plan: Plan, solver: Solver, count: int = 3) -> tuple[RunnerUp, ...]:
    """The next best plans that differ in SKU, mode or tensor-parallel degree, best first.

    The chosen SKUs, modes and degrees are forbidden one at a time; the best plan that comes of it is the first
    runner-up, and its own are forbidden in turn (the partition of Lawler 1972, Management Science 18(7), 401-405).
    Each costs as many solves as it has SKUs, modes and degrees.
    """
    base, measure = baseline(plan, solver)
    order = numbered()
    waiting: list[tuple[float, int, frozenset[str], PlanRequest]] = []
    fleets, visited = {base.fleet}, {frozenset[str]()}
    found: list[RunnerUp] = []
    labels: frozenset[str] = frozenset()
    request = plan.request
    while base.feasible:
        for label, without in _exclusions(request, solver.plan(request)):
            lost = gain(solver.outcome(without), base, measure)
            if lost is not None and labels | {label} not in visited:
                visited.add(labels | {label})
                heapq.heappush(waiting, (lost, next(order), labels | {label}, without))
        if not waiting or len(found) == count:
            break
        lost, _, labels, request = heapq.heappop(waiting)
        outcome = solver.outcome(request)
        if outcome.fleet not in fleets:
            fleets.add(outcome.fleet)
            found.append(RunnerUp(tuple(sorted(labels)), outcome, lost))
    return tuple(found)


def _exclusions(request: PlanRequest, plan: Plan) -> Iterator[tuple[str, PlanRequest]]:
    """The request without each SKU, mode and tensor-parallel degree that its plan uses, where another is left."""
    deployments = [planned.deployment for planned in plan.deployments]
    configs = [pool.config for deployment in deployments for pool in deployment.pools]
    modes = [Mode.DISAGGREGATED if deployment.is_disaggregated else Mode.MIXED for deployment in deployments]
    changes: list[tuple[str, PlanRequest | None]] = [(sku, without_sku(request, sku)) for sku in plan.gpus]
    changes += [(mode.value, without_mode(request, mode)) for mode in dict.fromkeys(modes)]
    degrees = dict.fromkeys(config.parallelism.tp for config in configs)
    changes += [(f"TP{degree}", without_tp(request, degree)) for degree in degrees]
    for label, changed in changes:
        if changed is not None:
            yield label, changed


# --- infeasible -----------------------------------------------------------------------------------------------------


def smallest_relaxations(plan: Plan, solver: Solver) -> tuple[SmallestRelaxation, ...]:
    """Of an infeasible request, the smallest change of each requirement alone that makes it feasible.

    What dropping does not help, no change does (one solve). For the rest the value is found to 1 % (pieces: exactly),
    starting at the ratio of latency to threshold of the nearest configuration that was rejected.
    """
    if solver.outcome(plan.request).feasible:
        return ()
    ratios = [rejection.ratio for rejection in plan.rejections if math.isfinite(rejection.ratio)]
    nearest = max(1.0, min(ratios, default=1.0))
    return tuple(_relaxation(requirement, nearest, solver) for requirement in requirements(plan.request))


def _relaxation(requirement: Requirement, nearest: float, solver: Solver) -> SmallestRelaxation:
    gone = requirement.dropped or requirement.with_value(requirement.lowest)
    without = solver.outcome(gone)
    needed, outcome = None, without if without.feasible else None
    if requirement.value is not None and without.feasible:
        needed = _least(requirement, nearest, solver)
        outcome = None if needed is None else solver.outcome(requirement.with_value(needed))
    return SmallestRelaxation(requirement.name, requirement.key, requirement.unit, requirement.value, needed, outcome)


def _least(requirement: Requirement, nearest: float, solver: Solver) -> float | None:
    assert requirement.value is not None
    here = requirement.value
    if requirement.whole:
        sign = 1.0 if requirement.looser_upwards else -1.0
        outward = [here + sign * 2.0**power for power in range(RELAXING)]
        outward += [] if requirement.looser_upwards else [requirement.lowest]
        tolerance = 1.0
    else:
        factors = [nearest * (1.0 + 0.05 * 2.0**power) for power in range(RELAXING)]
        outward = [here * factor if requirement.looser_upwards else here / factor for factor in factors]
        tolerance = 2.0 * FINEST * here
    values = tuple(value for value in outward if value >= requirement.lowest)
    return first_change(lambda value: solver.outcome(requirement.with_value(value)).feasible, here, values, tolerance)


# --- all at once ----------------------------------------------------------------------------------------------------


def explain(
    plan: Plan,
    solver: Solver,
    questions: Sequence[Question] | None = None,
    api_prices: Sequence[ApiPrice] = (),
) -> Explanation:
    """Answers to questions about a plan; those that were cut short are named with the reason.

    Args:
        plan: as made by `planner.fleet.planning.plan`.
        solver: solves again; its bound on solves holds for all questions together.
        questions: to answer, in this order; None: the default ones, or the relaxations of an infeasible plan.
        api_prices: to compare with.
    """
    started = time.perf_counter()
    base, measure = baseline(plan, solver)
    asked = questions or (DEFAULT_QUESTIONS if base.feasible else (Question.RELAXATIONS,))
    found = Explanation(plan.request.name, measure, base)
    unanswered: dict[str, str] = {}
    for number, question in enumerate(asked, start=1):
        solver.task = f"question {number} of {len(asked)}: {question}, "
        try:
            found = replace(found, **_answer(question, plan, solver, api_prices))
        except OutOfSolvesError as error:
            unanswered[question.value] = str(error)
    return replace(
        found,
        answered=tuple(question for question in asked if question.value not in unanswered),
        unanswered=unanswered,
        solves=solver.solves,
        elapsed_s=time.perf_counter() - started,
    )


def _answer(question: Question, plan: Plan, solver: Solver, api_prices: Sequence[ApiPrice]) -> dict[str, Any]:
    """The field of an `Explanation` that answers a question."""
    answers: dict[Question, tuple[str, Callable[[], object]]] = {
        Question.MARGINAL: ("marginals", lambda: marginal_values(plan, solver)),
        Question.STEPS: ("steps", lambda: smallest_steps(plan, solver)),
        Question.REQUIREMENTS: ("requirements", lambda: requirement_costs(plan, solver)),
        Question.TORNADO: ("tornado", lambda: tornado(plan, solver)),
        Question.PRICES: ("prices", lambda: break_even_prices(plan, solver)),
        Question.API: ("api", lambda: api_break_even(plan, api_prices, solver)),
        Question.RUNNERS_UP: ("runners_up", lambda: runners_up(plan, solver)),
        Question.RELAXATIONS: ("relaxations", lambda: smallest_relaxations(plan, solver)),
        Question.PARETO: ("pareto", lambda: pareto(plan.request, solver)),
        Question.ROBUST: ("robust", lambda: (robust(plan, solver),)),
    }
    name, answer = answers[question]
    return {name: answer()}
