"""Requests from what a person has at hand: the name of a scenario, a YAML file, or a plan written as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.core import PLAN, InputError
from planner.fleet import PlanRequest
from planner.scenario.read import build_request, load_scenario, read_scenario

MAX_PLAN_BYTES = 50_000_000
"""Largest plan document that is read; those of the packaged scenarios are below 1 MB."""
SCENARIO_KEY = "scenario"
"""Where a plan document keeps the scenario it answers, overrides included."""
FOLDER_KEY = "scenario_folder"
"""Where it keeps the folder from which the scenario's relative paths start; absent: that of the document."""


def load_request(subject: str | Path, overrides: Sequence[str] = ()) -> PlanRequest:
    """The request of a scenario (by name or path) or of a plan document (``plan.json``), with overrides.

    Raises InputError as `planner.scenario.read.load_scenario`, and for a plan document that does not hold its scenario.
    """
    document = plan_document_at(subject)
    if document is None:
        return load_scenario(subject, overrides)
    content = document.get(SCENARIO_KEY)
    if not isinstance(content, Mapping):
        bound = f"this plan does not hold its {SCENARIO_KEY}, which an older version left out"
        raise InputError("plan", str(subject), bound, "give the scenario, or plan it again with --json")
    folder = document.get(FOLDER_KEY) or str(Path(subject).parent)
    if not isinstance(folder, str):
        raise InputError(f"plan.{FOLDER_KEY}", folder, "must be a folder as text", "leave it out, or plan again")
    scenario, _ = read_scenario(content, overrides)
    return build_request(scenario, Path(folder))


def plan_document_at(subject: str | Path) -> dict[str, Any] | None:
    """The plan document in a JSON file, as of the current version; None where `subject` is something else.

    Raises InputError: no readable JSON, or a document of a newer version (see `planner.core.versions`).
    """
    path = Path(subject)
    try:
        if path.suffix != ".json" or not path.is_file():
            return None
        if path.stat().st_size > MAX_PLAN_BYTES:
            bound = f"is larger than {MAX_PLAN_BYTES / 1e6:g} MB"
            raise InputError("plan", str(subject), bound, "give a file of --json")
        content = json.loads(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("plan", str(subject), f"is not readable JSON: {error}", "give a file of --json") from None
    is_plan = isinstance(content, dict) and "schema_version" in content and "deployments" in content
    return PLAN.brought_up(content) if is_plan else None


def recorded_usd_per_hour(subject: str | Path) -> float | None:
    """The cost that a plan document states [USD/h]; None where `subject` is none or its plan is infeasible."""
    cost = (plan_document_at(subject) or {}).get("cost")
    usd = cost.get("usd_per_hour") if isinstance(cost, Mapping) else None
    return float(usd) if isinstance(usd, int | float) else None
