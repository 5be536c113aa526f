"""Effect of a changed request: before and after, and how much of it each single change brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.analysis.replanner import Replanner
from planner.analysis.types import PlanMeasure, PlanOutcome, gain
from planner.fleet import CostBreakdown, Plan, PlanRequest, TargetCheck


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
