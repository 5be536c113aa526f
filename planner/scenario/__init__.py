"""The scenario a person writes, read into a `PlanRequest`, and back.

YAML, dictionaries and web addresses (`read`, `files`, `url`), parts made of what was imported (`snippets`), hardware of
a user's own (`user_hardware`), and changes that make an infeasible request feasible or wrong input right (`fixes`).
"""

from planner.scenario import catalogue, files, read, request_fixes, snippets, types, url, user_hardware
from planner.scenario.files import MAX_SCENARIO_BYTES, list_scenarios, parsed, scenario_content
from planner.scenario.input_fixes import fixes_for_error
from planner.scenario.plan_files import FOLDER_KEY, SCENARIO_KEY, load_request, plan_document_at, recorded_usd_per_hour
from planner.scenario.read import (
    build_request,
    file_references,
    lengths_of,
    load_scenario,
    read_scenario,
    scenario_of_text,
    scenario_text,
)
from planner.scenario.request_fixes import Fix, WorkedOut, fixes, limit_in_words
from planner.scenario.slos import SloPreset, slo_presets
from planner.scenario.types import Scenario, ScenarioPrices
from planner.scenario.url import Content, differences, first_name, full_content, value_at
from planner.scenario.user_hardware import QUANTITIES, Quantity, peak_quantities, shown_value

__all__ = [
    "FOLDER_KEY",
    "MAX_SCENARIO_BYTES",
    "QUANTITIES",
    "SCENARIO_KEY",
    "Content",
    "Fix",
    "Quantity",
    "Scenario",
    "ScenarioPrices",
    "SloPreset",
    "WorkedOut",
    "build_request",
    "catalogue",
    "differences",
    "file_references",
    "files",
    "first_name",
    "fixes",
    "fixes_for_error",
    "full_content",
    "lengths_of",
    "limit_in_words",
    "list_scenarios",
    "load_request",
    "load_scenario",
    "parsed",
    "peak_quantities",
    "plan_document_at",
    "read",
    "read_scenario",
    "recorded_usd_per_hour",
    "request_fixes",
    "scenario_content",
    "scenario_of_text",
    "scenario_text",
    "shown_value",
    "slo_presets",
    "snippets",
    "types",
    "url",
    "user_hardware",
    "value_at",
]
