"""Whether the fleet survives the loss of a replica and of a server."""

from __future__ import annotations

from planner.core import Table, duration, percent, unit
from planner.fleet import Loss, Plan

COLUMNS = (
    "loss of",
    "survives",
    "worst: without",
    "nearest target",
    "at most",
    "as estimated",
    "if slow",
    "to survive it",
)


def loss_table(plan: Plan) -> Table | None:
    """Each kind of loss; None without a fleet."""
    return Table("Losses", COLUMNS, tuple(map(_cells, plan.losses)), _note(plan)) if plan.losses else None


def _cells(loss: Loss) -> tuple[str, ...]:
    target, latencies = loss.scope or "-", ("-", "-", "-")
    if loss.target is not None:
        metric = loss.target.metric
        target = f"{f'{loss.scope}: ' if loss.scope else ''}{loss.target.name} [{unit(metric)}]"
        at_most, expected, slow = (
            duration(seconds, metric) for seconds in (loss.target.threshold_s, loss.predicted_s, loss.slow_s)
        )
        latencies = (at_most, expected, slow)
    survives = "yes" if loss.holds else "as estimated" if loss.holds_as_estimated else "no"
    return (f"a {loss.of}", survives, loss.failed, target, *latencies, "-" if loss.holds else loss.setting)


def _note(plan: Plan) -> str:
    asked = percent(plan.request.confidence)
    words = [
        "Queueing theory, with what is left serving all of the traffic in the period of the largest demand; of all "
        "pools the one whose loss hurts most."
    ]
    if any(loss.holds_as_estimated and not loss.holds for loss in plan.losses):
        words.append(
            f"As estimated: the targets hold then if steps take as long as estimated, but not with the {asked} that "
            "the fleet is planned for (if slow). What stands there to survive it buys that too."
        )
    return " ".join(words)
