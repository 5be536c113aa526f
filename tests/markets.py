"""Small markets that several test modules share: prices, policies, limits, and what they come to."""

from __future__ import annotations

from datetime import date
from typing import Any

from hardware_db import HardwareDb, Price, load_hardware
from planner.optimizer import Resource
from planner.supply import FleetLimits, Granularity, PricePolicy, Supply

DB = load_hardware()
DAY = date(2026, 11, 21)


def make_price(**changes: Any) -> Price:
    fields: dict[str, Any] = {
        "sku": "h100-sxm",
        "provider": "P",
        "region": "any",
        "commitment": "on_demand",
        "usd_per_gpu_hour": 2.5,
        "source_url": "https://example.com",
        "retrieved_on": date(2026, 9, 20),
    }
    return Price(**{**fields, **changes})


def db_with(*prices: Price) -> HardwareDb:
    return HardwareDb(skus=DB.skus, prices=prices, engines={})


def policy(**changes: Any) -> PricePolicy:
    """Prices of one day, with GPUs bought singly unless said otherwise."""
    return PricePolicy(**{"as_of": DAY, "granularity": Granularity.GPU, **changes})


def limits(**changes: Any) -> FleetLimits:
    return FleetLimits(**changes)


def only(supply: Supply, name: str = "h100-sxm") -> Resource:
    (found,) = [resource for resource in supply.resources if resource.name == name]
    return found
