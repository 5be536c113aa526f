"""Whether the fleet survives the loss of a replica and of a server."""

from __future__ import annotations

from planner.core import Table, with_unit
from planner.fleet import Loss, Plan

COLUMNS = ("loss of", "survives", "worst: without", "nearest target", "latency then", "to survive it")
NOTE = (
    "By theory, with what is left serving all of the traffic in the period of the largest demand; of all pools the one "
    "whose loss hurts most."
)


def loss_table(plan: Plan) -> Table | None:
    """Each kind of loss; None without a fleet."""
    return Table("Losses", COLUMNS, tuple(map(_cells, plan.losses)), NOTE) if plan.losses else None


def _cells(loss: Loss) -> tuple[str, ...]:
    target, latency = loss.scope or "-", "-"
    if loss.target is not None:
        of = f"{loss.scope}: " if loss.scope else ""
        metric = loss.target.metric
        target = f"{of}{loss.target.name}"
        latency = f"{with_unit(loss.predicted_s, metric)} of {with_unit(loss.target.threshold_s, metric)}"
    return (
        f"a {loss.of}",
        "yes" if loss.holds else "no",
        loss.failed,
        target,
        latency,
        "-" if loss.holds else loss.setting,
    )
