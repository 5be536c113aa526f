"""Many plans at once: a scenario at every combination of some values, plans side by side, and plans for many askers.

`sweep` runs in any executor and goes on where it was stopped; `WorkerPool` gives every asker a process of its own.
"""

from planner.studies import sweep_result, sweeps
from planner.studies.side_by_side import (
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
from planner.studies.sweep_result import Sweep, SweepPoint
from planner.studies.sweeps import sweep
from planner.studies.workers import Job, WorkerPool, serve

__all__ = [
    "SAME",
    "Job",
    "PlanSide",
    "Sweep",
    "SweepPoint",
    "WorkerPool",
    "bounded_side",
    "change_of_cost",
    "cheapest_first",
    "differing_cells",
    "differing_rows",
    "on_one_sku",
    "planned_side",
    "priced_skus",
    "scenario_in",
    "scenario_table",
    "serve",
    "settings_table",
    "share_of_threshold",
    "sku_table",
    "sweep",
    "sweep_result",
    "sweeps",
]
