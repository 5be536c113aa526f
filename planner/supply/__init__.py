"""What GPUs cost and how many can be had.

Prices and the terms they hold under (`prices`, `price_lists`), purchase options (`purchase_options`), and GPUs, power
and CO2 as resources of the integer program (`resources`); replicas kept in case others fail (`spares`).
"""

from planner.supply.price_lists import PriceList, prices_csv, read_prices, with_prices
from planner.supply.prices import SPOT, is_committed, offered_prices
from planner.supply.resources import (
    HOURS_PER_MONTH,
    Supply,
    cost_of,
    resources_of,
    spot_shortfalls,
    switching_resource,
    taken,
)
from planner.supply.spares import replicas_that_may_fail
from planner.supply.types import STALE_PRICE_DAYS, FleetLimits, Granularity, OwnedGpus, PricePolicy, Quota, SpotTerms

__all__ = [
    "HOURS_PER_MONTH",
    "SPOT",
    "STALE_PRICE_DAYS",
    "FleetLimits",
    "Granularity",
    "OwnedGpus",
    "PriceList",
    "PricePolicy",
    "Quota",
    "SpotTerms",
    "Supply",
    "cost_of",
    "is_committed",
    "offered_prices",
    "prices_csv",
    "read_prices",
    "replicas_that_may_fail",
    "resources_of",
    "spot_shortfalls",
    "switching_resource",
    "taken",
    "with_prices",
]
