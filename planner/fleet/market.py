"""The market: SKUs with their prices and calibrations, and the offer of each site."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hardware_db import Calibration, HardwareDb, select_calibration
from planner.core import UnknownNameError
from planner.fleet.types import PlanRequest
from planner.optimizer import Allocation
from planner.search import Offer, Rejection
from planner.supply import SiteSupply, Supply, build_supply, site_supplies

SPREADS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Servers over which pools may be spread where the loss of one must not matter: each number is a program of its own. A
choice: between two of them the smaller is counted on; over more than the last, pools are spread as over that."""


@dataclass(frozen=True)
class Market:
    """SKUs on offer, by site.

    Attributes:
        hardware: the database.
        supply: what all sites sell together.
        sites: what each of them sells: one program each, counted by `Allocation.program`.
        offers: SKUs with a price.
        unpriced: SKUs without one.
    """

    hardware: HardwareDb
    supply: Supply
    sites: tuple[SiteSupply, ...]
    offers: tuple[Offer, ...]
    unpriced: tuple[Rejection, ...]

    def site_of(self, allocation: Allocation) -> SiteSupply:
        """Where the fleet of an allocation is bought."""
        return self.sites[allocation.program]


def market_of(request: PlanRequest, hardware: HardwareDb, spot_shares: Mapping[str, float] | None = None) -> Market:
    """SKUs of the search space with their prices and calibrations; those without a price are rejected by name.

    Args:
        request: whose search space, prices and limits count.
        hardware: the database.
        spot_shares: share of spot capacity that may be counted on, by SKU; None: that of a large fleet.
    """
    space, limits = request.search, request.limits
    for name in space.engines:
        if name not in hardware.engines:
            raise UnknownNameError("search.engine", name, hardware.engines)
    supply = build_supply(space.skus, request.prices, limits, hardware, spot_shares=spot_shares)
    sites = site_supplies(space.skus, request.prices, limits, hardware, spot_shares=spot_shares)
    if limits.survives_node_loss and request.profile is None:
        sites += tuple(
            site.spread(hardware.skus[sku], servers)
            for site in sites
            for sku in site.places
            if site.holds(hardware.skus[sku], hardware.skus[sku].node.gpus)
            for servers in SPREADS
        )
    offers = tuple(
        Offer(
            sku=hardware.skus[sku],
            calibrations={engine: _calibration(request, hardware, sku, engine) for engine in space.engines},
        )
        for sku in dict.fromkeys(space.skus)
        if sku in supply.cheapest
    )
    unpriced = tuple(
        Rejection(sku, mode, f"{sku}: {reason}", math.inf)
        for sku, reason in supply.unavailable.items()
        for mode in space.modes
    )
    return Market(hardware, supply, sites, offers, unpriced)


def _calibration(request: PlanRequest, hardware: HardwareDb, sku: str, engine: str) -> Calibration | None:
    """Source of the step times of a SKU; None: the datasheet."""
    return select_calibration(hardware, sku, engine) if request.search.calibrated else None
