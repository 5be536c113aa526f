"""Cost and availability of GPUs.

Prices and the terms they hold under (`prices`, `price_lists`), what spot capacity is worth and how many replicas may
fail (`availability`), purchase options (`purchase_options`), GPUs, power and CO2 as resources of the integer program
and what a fleet of them costs (`resources`), and where they are bought together (`sites`).
"""

from planner.supply.availability import SPOT, replicas_that_may_fail
from planner.supply.price_lists import PriceList, prices_csv, read_prices, told_sku, typed_sku, with_prices
from planner.supply.prices import (
    OWN_PRICE_SOURCE,
    OWNED,
    commitment_notes,
    is_committed,
    offered_prices,
    region_notes,
)
from planner.supply.resources import (
    Supply,
    build_supply,
    resource_use,
    spot_shortfalls,
    supply_cost,
    switching_resource,
    with_all_owned,
)
from planner.supply.sites import InstanceNetwork, SiteSupply, site_supplies
from planner.supply.types import (
    FleetLimits,
    Granularity,
    OwnedGpus,
    PricePolicy,
    Quota,
    Redundancy,
    Site,
    SpotTerms,
)
