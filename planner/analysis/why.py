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
from planner.analysis.fleet_capacity import headroom
from planner.analysis.perturbations import (
    NumericRequirement,
    Requirement,
    Rule,
    numeric_requirements,
    requirements,
    without_choice,
)
from planner.analysis.replanner import CHANGE_TOLERANCE, OutOfSolvesError, Replanner, baseline, nearest_change
from planner.analysis.sensitivity import break_even_prices, pareto, tornado
from planner.analysis.types import (
    ApiPrice,
    Explanation,
    Marginal,
    PlanMeasure,
    PlanOutcome,
    PlanQuestion,
    RequirementCost,
    RunnerUp,
    SmallestRelaxation,
    gain,
)
from planner.analysis.uncertain_steps import confidence_curve, measurement_values
from planner.fleet import Plan, PlanRequest
from planner.search import Mode

FIRST_STRIDE = 0.01
"""First step of the search for a change, as a share of the value; the next ones double. A choice."""
STRIDES = 9
"""Steps of that search: up to 3.6 times the value. A choice."""
WHOLE_STRIDES = 6
"""The same of what is counted in pieces: up to 32 of them. A choice."""
RELAXATION_STRIDES = 10
"""Doublings of a relaxation: up to 51 times the value. A choice."""

DEFAULT_QUESTIONS = (
    PlanQuestion.MARGINAL,
    PlanQuestion.REQUIREMENTS,
    PlanQuestion.TORNADO,
    PlanQuestion.PRICES,
    PlanQuestion.API,
    PlanQuestion.RUNNERS_UP,
    PlanQuestion.CONFIDENCE,
)
"""Asked unless told otherwise; of an infeasible request only the relaxations are."""


def marginal_values(plan: Plan, replanner: Replanner) -> tuple[Marginal, ...]:
    """Value of one step more or less of the demand, each target and each limit.

    Steps are `NumericRequirement.steps`: a round step and 10 % of thresholds, one piece of what is counted, 10 % of the
    rest. Two to four solves for each.
    """
    base, measure = baseline(plan, replanner)
    return tuple(
        _marginal(requirement, value, base, replanner.outcome(requirement.with_value(value)), measure)
        for requirement in numeric_requirements(plan.request)
        for value in requirement.steps()
    )


def _marginal(
    requirement: NumericRequirement, value: float, base: PlanOutcome, outcome: PlanOutcome, measure: PlanMeasure
) -> Marginal:
    """Value of a changed requirement. Where it is looser the present fleet still meets it, so it costs nothing."""
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


def smallest_steps(plan: Plan, replanner: Replanner) -> tuple[Marginal, ...]:
    """The smallest change of each target and limit, both ways, that changes the value of the plan.

    Found to `CHANGE_TOLERANCE` of the value by doubling steps and halving the last one: at most 17 solves a direction.
    Where nothing changes, `after` is the furthest value tried and the gain 0.
    """
    base, measure = baseline(plan, replanner)
    steps = []
    for requirement in numeric_requirements(plan.request):

        def changes(value: float, requirement: NumericRequirement = requirement) -> bool:
            return replanner.outcome(requirement.with_value(value)).differs(base, measure)

        for sign in (1.0, -1.0):
            outward = _values_outward(requirement, sign)
            if not outward:
                continue
            tolerance = 1.0 if requirement.whole else CHANGE_TOLERANCE * requirement.value
            after = nearest_change(changes, requirement.value, outward, tolerance)
            value = outward[-1] if after is None else after
            outcome = replanner.outcome(requirement.with_value(value))
            steps.append(_marginal(requirement, value, base, outcome, measure))
    return tuple(steps)


def _values_outward(requirement: NumericRequirement, sign: float) -> tuple[float, ...]:
    """Values tried one after the other, further and further from the one requested."""
    stride = 1.0 if requirement.whole else FIRST_STRIDE * requirement.value
    strides = WHOLE_STRIDES if requirement.whole else STRIDES
    values = (requirement.value + sign * stride * 2.0**power for power in range(strides))
    return tuple(value for value in values if value >= requirement.lowest)


def requirement_costs(plan: Plan, replanner: Replanner) -> tuple[RequirementCost, ...]:
    """Cost of each target, limit and rule: the best plan with it less the best plan without it. One solve each."""
    base, measure = baseline(plan, replanner)
    costs = []
    for requirement in requirements(plan.request):
        if requirement.dropped is not None:
            without = replanner.outcome(requirement.dropped)
            cost = gain(base, without, measure)
            costs.append(RequirementCost(requirement.name, requirement.key, without, cost))
    return tuple(costs)


# --- runners-up -----------------------------------------------------------------------------------------------------


def runners_up(plan: Plan, replanner: Replanner, count: int = 3) -> tuple[RunnerUp, ...]:
    """The next best plans that differ in SKU, mode or tensor-parallel degree, best first.

    The chosen SKUs, modes and degrees are forbidden one at a time; the best plan that comes of it is the first
    runner-up, and its own are forbidden in turn (the partition of Lawler 1972, Management Science 18(7), 401-405).
    Each costs as many solves as it has SKUs, modes and degrees.
    """
    base, measure = baseline(plan, replanner)
    order = numbered()
    queue: list[tuple[float, int, frozenset[str], PlanRequest]] = []
    fleets, visited = {base.fleet}, {frozenset[str]()}
    runners: list[RunnerUp] = []
    labels: frozenset[str] = frozenset()
    request = plan.request
    while base.feasible:
        for label, without in _exclusions(request, replanner.plan(request)):
            loss = gain(replanner.outcome(without), base, measure)
            if loss is not None and labels | {label} not in visited:
                visited.add(labels | {label})
                heapq.heappush(queue, (loss, next(order), labels | {label}, without))
        if not queue or len(runners) == count:
            break
        loss, _, labels, request = heapq.heappop(queue)
        outcome = replanner.outcome(request)
        if outcome.fleet not in fleets:
            fleets.add(outcome.fleet)
            runners.append(RunnerUp(tuple(sorted(labels)), outcome, loss))
    return tuple(runners)


def _exclusions(request: PlanRequest, plan: Plan) -> Iterator[tuple[str, PlanRequest]]:
    """The request without each SKU, mode and tensor-parallel degree that its plan uses, where another is left."""
    deployments = [planned.deployment for planned in plan.deployments]
    modes = [Mode.DISAGGREGATED if deployment.is_disaggregated else Mode.MIXED for deployment in deployments]
    used: list[tuple[str, str, object]] = [(sku, "skus", sku) for sku in plan.gpus]
    used += [(mode.value, "modes", mode) for mode in dict.fromkeys(modes)]
    used += [(f"TP{tp}", "tp", tp) for tp in dict.fromkeys(pool.config.parallelism.tp for pool in plan.pools)]
    for label, field, value in used:
        if (changed := without_choice(request, field, value)) is not None:
            yield label, changed


# --- infeasible -----------------------------------------------------------------------------------------------------


def smallest_relaxations(plan: Plan, replanner: Replanner) -> tuple[SmallestRelaxation, ...]:
    """Of an infeasible request, the smallest change of each requirement alone that makes it feasible.

    What dropping does not help, no change does (one solve). For the rest the value is found to 1 % (pieces: exactly),
    starting at the ratio of latency to threshold of the nearest configuration that was rejected.
    """
    if replanner.outcome(plan.request).feasible:
        return ()
    ratios = [rejection.ratio for rejection in plan.rejections if math.isfinite(rejection.ratio)]
    nearest = max(1.0, min(ratios, default=1.0))
    return tuple(_relaxation(requirement, nearest, replanner) for requirement in requirements(plan.request))


def _relaxation(requirement: Requirement, nearest: float, replanner: Replanner) -> SmallestRelaxation:
    name, key = requirement.name, requirement.key
    if isinstance(requirement, Rule):
        without = replanner.outcome(requirement.dropped)
        return SmallestRelaxation(name, key, "", None, None, without if without.feasible else None)
    without = replanner.outcome(requirement.dropped or requirement.with_value(requirement.lowest))
    needed, outcome = None, None
    if without.feasible:
        needed = _smallest_change(requirement, nearest, replanner)
        outcome = None if needed is None else replanner.outcome(requirement.with_value(needed))
    return SmallestRelaxation(name, key, requirement.unit, requirement.value, needed, outcome)


def _smallest_change(requirement: NumericRequirement, nearest: float, replanner: Replanner) -> float | None:
    """The nearest value found feasible; starts at the ratio `nearest` for what is not counted in pieces."""
    here = requirement.value
    if requirement.whole:
        sign = 1.0 if requirement.looser_upwards else -1.0
        outward = [here + sign * 2.0**power for power in range(RELAXATION_STRIDES)]
        outward += [] if requirement.looser_upwards else [requirement.lowest]
        tolerance = 1.0
    else:
        factors = [nearest * (1.0 + 0.05 * 2.0**power) for power in range(RELAXATION_STRIDES)]
        outward = [here * factor if requirement.looser_upwards else here / factor for factor in factors]
        tolerance = 2.0 * CHANGE_TOLERANCE * here
    values = tuple(value for value in outward if value >= requirement.lowest)
    return nearest_change(
        lambda value: replanner.outcome(requirement.with_value(value)).feasible, here, values, tolerance
    )


# --- all at once ----------------------------------------------------------------------------------------------------


def explain(
    plan: Plan,
    replanner: Replanner,
    questions: Sequence[PlanQuestion] | None = None,
    api_prices: Sequence[ApiPrice] = (),
) -> Explanation:
    """Answers to questions about a plan; those that were cut short are named with the reason.

    Args:
        plan: as made by `planner.fleet.planning.plan`.
        replanner: makes plans again; its bound on solves holds for all questions together.
        questions: to answer, in this order; None: the default ones, or the relaxations of an infeasible plan.
        api_prices: to compare with.
    """
    started = time.perf_counter()
    base, measure = baseline(plan, replanner)
    asked = questions or (DEFAULT_QUESTIONS if base.feasible else (PlanQuestion.RELAXATIONS,))
    explanation = Explanation(plan.request.name, measure, base)
    unanswered: dict[str, str] = {}
    for number, question in enumerate(asked, start=1):
        replanner.task = f"question {number} of {len(asked)}: {question}, "
        try:
            explanation = replace(explanation, **_answer(question, plan, replanner, api_prices))
        except OutOfSolvesError as error:
            unanswered[question.value] = str(error)
    return replace(
        explanation,
        answered=tuple(question for question in asked if question.value not in unanswered),
        unanswered=unanswered,
        solves=replanner.solves,
        elapsed_s=time.perf_counter() - started,
    )


def _answer(question: PlanQuestion, plan: Plan, replanner: Replanner, api_prices: Sequence[ApiPrice]) -> dict[str, Any]:
    """The field of an `Explanation` that answers a question."""
    answers: dict[PlanQuestion, tuple[str, Callable[[], object]]] = {
        PlanQuestion.MARGINAL: ("marginals", lambda: marginal_values(plan, replanner)),
        PlanQuestion.STEPS: ("steps", lambda: smallest_steps(plan, replanner)),
        PlanQuestion.REQUIREMENTS: ("requirements", lambda: requirement_costs(plan, replanner)),
        PlanQuestion.TORNADO: ("tornado", lambda: tornado(plan, replanner)),
        PlanQuestion.PRICES: ("prices", lambda: break_even_prices(plan, replanner)),
        PlanQuestion.API: ("api", lambda: api_break_even(plan, api_prices, replanner)),
        PlanQuestion.RUNNERS_UP: ("runners_up", lambda: runners_up(plan, replanner)),
        PlanQuestion.RELAXATIONS: ("relaxations", lambda: smallest_relaxations(plan, replanner)),
        PlanQuestion.PARETO: ("pareto", lambda: pareto(plan.request, replanner)),
        PlanQuestion.CONFIDENCE: ("confidence", lambda: confidence_curve(plan, replanner)),
        PlanQuestion.HEADROOM: (
            "headroom",
            lambda: headroom(plan, corrections=replanner.corrections) if plan.feasible else None,
        ),
        PlanQuestion.MEASURE: ("measurements", lambda: measurement_values(plan, replanner)),
    }
    name, answer = answers[question]
    return {name: answer()}
