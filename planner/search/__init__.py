"""Configurations of replicas, and the rate each sustains under the latency targets.

`enumerate` spans the grid of SKU, parallelism, batch limit, chunk budget, precision and role; `bounds` says
optimistically what each could sustain, for whole grids at once; `capacity` finds the true rate of those the program
chooses.
"""

from planner.search import bounds_prompts
from planner.search.cache_keys import Bounded
from planner.search.capacity import Capacity, worth_sizes
from planner.search.enumerate import FamilySet, find_families
from planner.search.swap_sku import PoolOnSku, on_sku
from planner.search.types import (
    Demand,
    DeploymentOption,
    Dominated,
    Family,
    Mode,
    Offer,
    PoolOption,
    Rejection,
    SearchSpace,
)

__all__ = [
    "Bounded",
    "Capacity",
    "Demand",
    "DeploymentOption",
    "Dominated",
    "Family",
    "FamilySet",
    "Mode",
    "Offer",
    "PoolOnSku",
    "PoolOption",
    "Rejection",
    "SearchSpace",
    "bounds_prompts",
    "find_families",
    "on_sku",
    "worth_sizes",
]
