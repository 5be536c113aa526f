"""Configurations of replicas, and the rate each sustains under the latency targets.

`enumerate` spans the grid of SKU, parallelism, batch limit, chunk budget, precision and role; `bounds` says
optimistically what each could sustain, for whole grids at once (`prompt_times`, `step_time_groups`); `capacity` finds
the true rate of those that the program chooses, evaluating as few `candidates` as it can against their targets
(`slo_margin`). What was found is kept for the process under `cache_keys`.
"""

from planner.search.cache_keys import MOST_RESULTS, BoundedCache
from planner.search.capacity import Capacity, worth_sizes
from planner.search.capacity_under_drift import CapacityUnderDrift, capacity_of, with_rounded_bursts
from planner.search.enumerate import FamilySet, find_families, setups_of
from planner.search.grid import largest_budget, may_share_prefixes
from planner.search.swap_sku import PoolOnSku, on_sku
from planner.search.types import (
    ConfigurationFamily,
    Demand,
    DeploymentOption,
    Dominated,
    Mode,
    Offer,
    PoolOption,
    Rejection,
    SearchSpace,
    ShiftRule,
)
