"""What a running fleet measured of itself, as changes of the scenario that it was planned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.analysis import RunningFleet, learned_steps
from planner.scenario.snippets import metrics_snippet
from planner.serving import MeasuredSteps
from planner.traffic import ServerMetrics


def measured_changes(
    running: RunningFleet, metrics: ServerMetrics, known: Mapping[str, MeasuredSteps]
) -> dict[str, dict[str, Any]]:
    """By what it is, fields of the scenario with their new values: the traffic, and step times where they are inferred.

    Args:
        running: the comparison.
        metrics: that it rests on.
        known: step times by SKU that the plan was made with.
    """
    changes = {"traffic as measured": {"workload": metrics_snippet(metrics)["workload"]}}
    if running.measured_steps is not None:
        steps = {**known, running.sku: running.measured_steps}
        dumped = {sku: one.model_dump() for sku, one in steps.items()}
        changes["step times as measured"] = {"measured_steps": dumped}
    return changes


def measured_changes_of_models(
    watched: Sequence[tuple[str, RunningFleet, ServerMetrics]], names: Sequence[str], known: Mapping[str, MeasuredSteps]
) -> dict[str, dict[str, Any]]:
    """As `measured_changes`, of a scenario with several models: each model's own traffic and step times.

    Args:
        watched: name of the service, its comparison and the metrics that it rests on.
        names: of the scenario's other ``services``, in their order; what is none of them is its first.
        known: step times by SKU, or model on a SKU, that the plan was made with.
    """
    places = {name: f"services.{index}." for index, name in enumerate(names)}
    traffic = {f"{places.get(name, '')}workload": metrics_snippet(metrics)["workload"] for name, _, metrics in watched}
    changes: dict[str, dict[str, Any]] = {"traffic as measured": traffic}
    learned = learned_steps([running for _, running, _ in watched])
    if learned:
        dumped = {key: one.model_dump() for key, one in {**known, **learned}.items()}
        changes["step times as measured"] = {"measured_steps": dumped}
    return changes
