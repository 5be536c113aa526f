"""With which probability the fleet holds, and how its targets fare where steps are as slow as it is planned for."""

from __future__ import annotations

from planner.core import Table, percent, with_unit
from planner.fleet import Plan, TargetCheck

COLUMNS = ("target", "threshold", "as estimated", "if slow", "share within it if slow")
NOTE = (
    "Step times are estimates: kernels scatter about their fits, and models, GPUs and engines about those. If slow: "
    "every step of the fleet is slower at once, by as much as "
)
MOST_STATED = 0.999
"""The largest probability that is written as a number. A choice: what is behind it knows no more."""


def confidence_words(plan: Plan) -> str:
    """E.g. ``holds with 93 % (90 % asked)``; empty where that is not known."""
    found = plan.confidence
    if found is None or found.uncalibrated:
        return ""
    return f"holds with {found.words} ({percent(found.asked)} asked)"


def confidence_table(plan: Plan) -> Table | None:
    """Every target as estimated and with slow step times; None where the plan was not simulated."""
    found = plan.confidence
    if found is None:
        return None
    if found.uncalibrated:
        note = f"Not known with which probability it holds: step times of {', '.join(found.uncalibrated)} are bounds."
    else:
        error = f"a standard error of {percent(found.error)} from the number of draws"
        starts = "over 99.9 %" if found.starts > MOST_STATED else percent(found.starts)
        note = f"All targets at once: {confidence_words(plan)}, with {error}; all replicas start with {starts}. {NOTE}"
        note += _how_slow(plan)
    pairs = zip(plan.targets, plan.slow_targets, strict=True)
    return Table("Confidence", COLUMNS, tuple(_cells(estimated, slow) for estimated, slow in pairs), note)


def _how_slow(plan: Plan) -> str:
    return f"{percent(plan.request.confidence)} confidence reckons with." if plan.given else "it was planned for."


def _cells(estimated: TargetCheck, slow: TargetCheck) -> tuple[str, ...]:
    metric = estimated.target.metric
    return (
        f"{estimated.of}: {estimated.target.name}" if estimated.of else estimated.target.name,
        with_unit(estimated.target.threshold_s, metric),
        with_unit(estimated.simulated_s, metric),
        with_unit(slow.simulated_s, metric),
        slow.share_words,
    )
