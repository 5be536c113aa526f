"""The scenario a person writes, read into a `PlanRequest`, and back.

YAML, dictionaries, plans and web addresses (`read`, `files`, `url`), plans read back (`saved_plans`), snippets made
from logs, metrics and a running fleet (`snippets`), hardware of a user's own (`user_hardware`), and changes that make
an infeasible request feasible (`request_fixes`) or wrong input right (`input_fixes`). Many of them at once: plans side
by side (`side_by_side`), and a scenario at every combination of some values, taken up where it was stopped (`sweeps`).
"""

from planner.scenario import (
    catalogue,
    files,
    llm_catalogue,
    quickstart,
    read,
    request_fixes,
    snippets,
    sweep_result,
    sweeps,
    types,
    url,
    user_hardware,
)
from planner.scenario.arrivals import workload_arrivals
from planner.scenario.files import MAX_SCENARIO_BYTES, list_scenarios, parse_fields, scenario_content
from planner.scenario.input_fixes import fixes_for_error
from planner.scenario.llm_catalogue import formats_with
from planner.scenario.read import (
    SCENARIO_KEY,
    build_request,
    demand_of_trace,
    file_references,
    folder_of,
    lengths_of,
    load_request,
    load_scenario,
    plan_document_at,
    read_scenario,
    scenario_of_region,
    scenario_of_text,
    scenario_text,
    service_names,
    with_scenarios,
)
from planner.scenario.request_fixes import CompletedFix, Fix, fixes, limit_in_words
from planner.scenario.saved_plans import load_plan
from planner.scenario.side_by_side import (
    SAME,
    PlanSide,
    bounded_side,
    change_of_cost,
    cheapest_first,
    differing_cells,
    differing_rows,
    on_one_sku,
    planned_side,
    priced_skus,
    scenario_in,
    scenario_table,
    settings_table,
    share_of_threshold,
    sku_table,
)
from planner.scenario.snippets import measured_changes
from planner.scenario.sweep_result import Sweep, SweepPoint
from planner.scenario.sweeps import sweep
from planner.scenario.types import NARROWER, Scenario, ScenarioPrices, SloPreset, slo_presets
from planner.scenario.url import Content, differences, first_name, full_content, value_at
from planner.scenario.user_hardware import QUANTITIES, SkuQuantity, peak_quantities, shown_value
