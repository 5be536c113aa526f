"""What a running fleet measured of itself, as changes of the scenario that it was planned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.analysis import RunningFleet
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
