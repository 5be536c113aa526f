"""Planning again and again: requests are remembered, solves counted and bounded, and every plan is summed up alike.

A changed request is set beside the one before: how much the whole brings, and each single change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hardware_db import HardwareDb, load_hardware
from planner.analysis.types import PlanMeasure, PlanningCase, PlanOutcome, gain
from planner.core import InputError, PlannerError
from planner.fleet import CostBreakdown, Plan, PlanRequest, Progress, TargetCheck, least_usd_per_hour
from planner.fleet import plan as make_plan

Solve = Callable[[PlanRequest, HardwareDb], Plan]
"""From a request and the hardware to a plan; by theory alone is enough."""
CHANGE_TOLERANCE = 0.005
"""Relative width to which the place of a change is found, and twice that of prices and demands. A choice."""
REFUSED = "refused"
"""Status of a changed request that the planner does not accept."""


class OutOfSolvesError(PlannerError):
    """The number of solves that was allowed is used up."""


class Replanner:
    """Makes plans, remembers them by request, and counts.

    Plans are by theory as simulating the plan that they are compared with corrected it. That plan itself is not made
    again: what is said beside it is about its cost, its GPUs, its targets.

    Attributes:
        hardware: what requests are planned on unless a case says otherwise.
        solves: plans made so far.
        task: what they are for at the moment; part of what progress hears.
    """

    def __init__(
        self,
        solve: Solve | None = None,
        hardware: HardwareDb | None = None,
        at_most: int | None = None,
        progress: Progress | None = None,
        of: Plan | None = None,
    ) -> None:
        """A replanner that has made no plan yet.

        Args:
            solve: makes a plan; None: `planner.fleet.plan` by theory.
            hardware: the packaged database when None.
            at_most: plans allowed.
            progress: hears of every plan.
            of: the plan that others are compared with; None: it is made like the others when it is asked for.
        """
        self.hardware = hardware or load_hardware()
        self.solves = 0
        self.task = ""
        self._solve = solve or self._by_theory
        self._at_most = at_most
        self._progress = progress or (lambda _: None)
        self.corrections = None if of is None else of.corrections
        known = [] if of is None else [(PlanningCase(of.request, self.hardware), of)]
        self._known: list[tuple[PlanningCase, Plan | InputError]] = [*known]

    def outcome(self, asked: PlanRequest | PlanningCase) -> PlanOutcome:
        """Outcome of a request (on `hardware`) or of a case. Raises OutOfSolvesError."""
        answer = self._answer(asked)
        return outcome_of(answer) if isinstance(answer, Plan) else PlanOutcome(REFUSED, f"refused: {answer}")

    def plan(self, asked: PlanRequest | PlanningCase) -> Plan:
        """The plan of a request or a case. Raises OutOfSolvesError, and InputError as `planner.fleet.planning.plan`."""
        answer = self._answer(asked)
        if isinstance(answer, Plan):
            return answer
        raise answer

    def at_least_usd_per_hour(self, request: PlanRequest) -> float:
        """What its plan costs at least [USD/h], without making it; 0 where whoever solves knows no bound."""
        if self._solve != self._by_theory:
            return 0.0
        return least_usd_per_hour(request, self.hardware, self.corrections)

    def _answer(self, asked: PlanRequest | PlanningCase) -> Plan | InputError:
        case = asked if isinstance(asked, PlanningCase) else PlanningCase(asked, self.hardware)
        for known, known_answer in self._known:
            if known.hardware is case.hardware and known.request == case.request:
                return known_answer
        if self._at_most is not None and self.solves >= self._at_most:
            raise OutOfSolvesError("solves", self.solves, "as many as were allowed", "allow more, or ask less")
        self.solves += 1
        self._progress(self._stage)
        answer: Plan | InputError
        try:
            answer = self._solve(case.request, case.hardware)
        except InputError as error:
            answer = error
        self._known.append((case, answer))
        return answer

    @property
    def _stage(self) -> str:
        return f"{self.task}plan {self.solves}"

    def _by_theory(self, request: PlanRequest, hardware: HardwareDb) -> Plan:
        """The plan; progress hears what it is for at every stage, so that whoever waits may stop it there."""
        stage = self._stage
        return make_plan(
            request,
            hardware,
            lambda _: self._progress(stage),
            simulate=False,
            alternatives=False,
            corrections=self.corrections,
        )


def outcome_of(plan: Plan) -> PlanOutcome:
    """A plan in brief."""
    allocation = plan.allocation
    binding = tuple(row.name for row in allocation.binding) if allocation else ()
    if plan.cost is None:
        reason = plan.diagnosis[0] if plan.diagnosis else plan.status.value
        return PlanOutcome(plan.status.value, f"none: {reason}", binding=binding, diagnosis=plan.diagnosis)
    names = [" ".join(filter(None, (check.of, check.target.name))) for check in plan.targets]
    ratios = [
        (check.predicted_s / check.target.threshold_s, name) for check, name in zip(plan.targets, names, strict=True)
    ]
    ratio, tightest = max(ratios, default=(math.nan, ""))
    pools = [pool for planned in plan.deployments for pool in planned.predicted.pools]
    return PlanOutcome(
        status=plan.status.value,
        fleet=plan.summary,
        gpus=plan.gpus,
        usd_per_hour=plan.cost.usd_per_hour,
        rate_per_s=sum(planned.workload.arrivals.rate_per_s for planned in plan.deployments),
        tightest=tightest,
        tightest_ratio=ratio,
        bound=", ".join(dict.fromkeys(f"{pool.role.value} {pool.bound.value}" for pool in pools)),
        binding=binding,
    )


def nearest_change(
    changes: Callable[[float], bool],
    here: float,
    outward: tuple[float, ...],
    tolerance: float,
    likely: Callable[[float], float] | None = None,
) -> float | None:
    """The value nearest to `here` at which something changes, up to `tolerance`; None: at none of the values given.

    Walks outward until `changes` holds, then halves the last stretch. What changes once stays changed further out;
    where that is not so, this is a change, but perhaps not the nearest. With `likely`, from a value of another answer
    to where the present one may end, the two values are tried first between which halving would end there.

    >>> nearest_change(lambda x: x >= 3.3, 1.0, (2.0, 4.0, 8.0), 0.01)
    3.3046875
    """
    inner, outer = here, next((value for value in outward if changes(value)), None)
    if outer is None:
        return None
    inner = (here, *outward)[outward.index(outer)]
    near, far = inner, outer

    def is_changed(value: float) -> bool:
        nonlocal near, far
        if not abs(near - here) < abs(value - here) < abs(far - here):
            return abs(value - here) >= abs(far - here)
        changed = changes(value)
        near, far = (near, value) if changed else (value, far)
        return changed

    while likely is not None and abs(near - here) < abs((guess := likely(far)) - here) < abs(far - here):
        low, high = _halved(lambda value: abs(value - here) >= abs(guess - here), inner, outer, tolerance)
        if not (is_changed(high) and is_changed(low)):
            break
    return _halved(is_changed, inner, outer, tolerance)[1]


def _halved(changes: Callable[[float], bool], inner: float, outer: float, tolerance: float) -> tuple[float, float]:
    """The last stretch between what does not change and what does."""
    while abs(outer - inner) > tolerance:
        middle = (inner + outer) / 2.0
        inner, outer = (inner, middle) if changes(middle) else (middle, outer)
    return inner, outer


def baseline(plan: Plan, replanner: Replanner) -> tuple[PlanOutcome, PlanMeasure]:
    """The plan made again as everything else is, and what plans are compared by."""
    return replanner.outcome(plan.request), PlanMeasure.of(plan.request)


@dataclass(frozen=True)
class Change:
    """One change, on top of those before it.

    Attributes:
        setting: what was set, e.g. ``workload.rate_per_s=80``.
        outcome: with it and all before it.
        gain: over the one before (see `planner.analysis.types.gain`); None where either has no fleet.
    """

    setting: str
    outcome: PlanOutcome
    gain: float | None


@dataclass(frozen=True)
class WhatIfSide:
    """One side of the comparison; cost and targets are those of the plan, None and empty where there is no fleet."""

    outcome: PlanOutcome
    cost: CostBreakdown | None
    targets: tuple[TargetCheck, ...]


@dataclass(frozen=True)
class WhatIf:
    """Before and after.

    Attributes:
        name: of the request.
        measure: what plans are compared by.
        before: as it was.
        after: with every change.
        changes: one at a time, in the order given; their gains add up to that of the whole.
        gain: of the whole; None where either side has no fleet.
        solves: plans made for it.
    """

    name: str
    measure: PlanMeasure
    before: WhatIfSide
    after: WhatIfSide
    changes: tuple[Change, ...]
    gain: float | None
    solves: int


def what_if(before: PlanRequest, changed: Sequence[tuple[str, PlanRequest]], replanner: Replanner) -> WhatIf:
    """Plans for a request and for the same with changes, one added at a time.

    Args:
        before: the request.
        changed: each change in words, with the request that has it and all before it; at least one.
        replanner: makes the plans.

    Raises InputError as `planner.fleet.planning.plan`.
    """
    measure = PlanMeasure.of(before)
    plans = [replanner.plan(request) for request in (before, *(request for _, request in changed))]
    outcomes = [replanner.outcome(plan.request) for plan in plans]
    changes = tuple(
        Change(setting, after, gain(earlier, after, measure))
        for (setting, _), earlier, after in zip(changed, outcomes, outcomes[1:], strict=False)
    )
    return WhatIf(
        name=before.name,
        measure=measure,
        before=_side(plans[0], outcomes[0]),
        after=_side(plans[-1], outcomes[-1]),
        changes=changes,
        gain=gain(outcomes[0], outcomes[-1], measure),
        solves=replanner.solves,
    )


def _side(plan: Plan, outcome: PlanOutcome) -> WhatIfSide:
    return WhatIfSide(outcome, plan.cost, plan.targets)
