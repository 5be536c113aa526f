"""From a request to a costed plan: demand, capacity and supply become an integer program, its answer a verified fleet.

`plan` is the only orchestrator. `slices` and `cascades` cut the traffic, `columns` makes units of the program, `search`
solves it until its answer has been seen to hold (`verification`), `costs` adds up what it costs, `calibration_bounds`
shifts the kernels to the ends of their fits, `regions` plans where in the world to stand; `types` holds `PlanRequest`
and `Plan`.
"""

from planner.fleet import columns, planning, slices
from planner.fleet.calibration_bounds import (
    checked_slos,
    interval_confidence,
    shifted_deployment,
    shifted_hardware,
    step_time_ends,
    target_ranges_s,
)
from planner.fleet.cascades import cascade_services
from planner.fleet.confidence import deviations_of, slower_deployment
from planner.fleet.corrections import Corrections
from planner.fleet.given import (
    DEFAULT_RUNNING,
    DEFAULT_TOKENS,
    deployment_in_words,
    plan_of_given,
)
from planner.fleet.notes import weights_word
from planner.fleet.packing import PackedPool, packed_replicas, server_count
from planner.fleet.planning import hardware_for, least_usd_per_hour, plan
from planner.fleet.population import at_rates
from planner.fleet.program import request_slices
from planner.fleet.regions import RegionFleet, RegionLoss, RegionsPlan, Standing, UserLatency, plan_regions
from planner.fleet.simulation import requests_to_simulate
from planner.fleet.slices import slices_of, split_by_length
from planner.fleet.types import (
    AGREEMENT,
    KV_TIERS,
    SWITCHING,
    Alternative,
    BoughtGpus,
    CostBreakdown,
    Loss,
    LossOf,
    Plan,
    PlanConfidence,
    PlannedDeployment,
    PlanRequest,
    Progress,
    ReplayedTarget,
    ScheduledPeriod,
    SimulatedRun,
    TargetCheck,
    gpu_servers,
    pool_name,
)
from planner.fleet.verification import ScopedSlo, joint_share, routed_slo, routed_workload, target_checks
