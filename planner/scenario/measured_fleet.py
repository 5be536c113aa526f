"""What a running fleet measured of itself, as changes of the scenario that it was planned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.analysis import RunningFleet, learned_steps
from planner.core import InputError
from planner.fleet import PlanRequest
from planner.scenario.snippets import metrics_snippet
from planner.traffic import ServerMetrics


def measured_changes(
    request: PlanRequest, watched: Sequence[tuple[str, RunningFleet, ServerMetrics]]
) -> dict[str, dict[str, Any]]:
    """By what it is, fields of the scenario with their new values: traffic, and step times where they are inferred.

    Of a scenario with one model its step times go by SKU; of several models each has its own (`learned_steps`). The
    traffic of a cascade in sequence is what its small model got; which share of it goes on stays as the scenario has
    it, since the quality of the answers was measured at that share.

    Args:
        request: that the fleet was planned from.
        watched: name of the service, its comparison and the metrics that it rests on, for every model watched.

    Raises:
        InputError: a cascade with a router before it, or whose small model was not watched: its stream is not known.
    """
    places = {request.main.name: "", **{one.name: f"services.{at}." for at, one in enumerate(request.services)}}
    if request.cascade is not None:
        small = request.cascade.small.name
        if request.cascade.routed or small not in [name for name, _, _ in watched]:
            bound = "a router cuts its stream in two" if request.cascade.routed else f"{small} was not watched"
            fix = "plan again with --set and the step times of each model"
            raise InputError("cascade", small, f"{bound}, so what comes in is not known", fix)
        del places[request.main.name]
        places[small] = ""
    traffic = {
        f"{places[name]}workload": metrics_snippet(metrics)["workload"]
        for name, _, metrics in watched
        if name in places
    }
    changes: dict[str, dict[str, Any]] = {"traffic as measured": traffic}
    fleets = [running for _, running, _ in watched]
    learned = learned_steps(fleets)
    if request.has_one_model:
        learned = {one.sku: one.measured_steps for one in fleets if one.measured_steps is not None}
    if learned:
        known = {**request.measured_steps, **learned}
        changes["step times as measured"] = {"measured_steps": {key: one.model_dump() for key, one in known.items()}}
    return changes
