"""From a request to a costed plan: demand, capacity and supply become an integer program, its answer a verified fleet.

`plan` is the only orchestrator. `slices` cuts the traffic, `columns` makes units of the program, `search` solves it
until its answer has been seen to hold (`verification`), `costs` says what it costs; `types` holds `PlanRequest` and
`Plan`.
"""

from planner.fleet import columns, latency_ranges, planning, slices
from planner.fleet.calibration_bounds import deviations_of, pessimistic_hardware, shifted_deployment
from planner.fleet.latency_ranges import calibration_ends
from planner.fleet.planning import Progress, hardware_for, plan
from planner.fleet.slices import cascade_services, slices_of
from planner.fleet.types import (
    AGREEMENT,
    Alternative,
    BoughtGpus,
    CostBreakdown,
    Plan,
    PlannedDeployment,
    PlanRequest,
    ScheduledPeriod,
    TargetCheck,
)
from planner.fleet.verification import requests_for, routed_workload

__all__ = [
    "AGREEMENT",
    "Alternative",
    "BoughtGpus",
    "CostBreakdown",
    "Plan",
    "PlanRequest",
    "PlannedDeployment",
    "Progress",
    "ScheduledPeriod",
    "TargetCheck",
    "calibration_ends",
    "cascade_services",
    "columns",
    "deviations_of",
    "hardware_for",
    "latency_ranges",
    "pessimistic_hardware",
    "plan",
    "planning",
    "requests_for",
    "routed_workload",
    "shifted_deployment",
    "slices",
    "slices_of",
]
