"""What the GPUs of a fleet cost, purchase by purchase."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware_db import Price
from planner.core import HOURS_PER_MONTH, InputError
from planner.optimizer import Period
from planner.supply.resources import Supply
from planner.supply.types import OwnedGpus


@dataclass(frozen=True)
class PurchaseCost:
    """What one purchase of one resource costs.

    Attributes:
        resource: the SKU, or its switching.
        purchase: its name among those of the resource.
        mean_amount: units held, mean over the horizon.
        most_amount: units held in the period with most.
        usd_per_hour: mean over the horizon.
        origin: the price or the terms behind it; None for switching.
    """

    resource: str
    purchase: str
    mean_amount: float
    most_amount: float
    usd_per_hour: float
    origin: Price | OwnedGpus | None

    @property
    def usd_per_month(self) -> float:
        """USD per month of 730 hours."""
        return self.usd_per_hour * HOURS_PER_MONTH


@dataclass(frozen=True)
class SupplyCost:
    """What all purchases cost: an allocation's `cost_usd_per_hour` less its starts and the own cost of units."""

    purchases: tuple[PurchaseCost, ...]

    @property
    def usd_per_hour(self) -> float:
        """Mean over the horizon."""
        return math.fsum(line.usd_per_hour for line in self.purchases)

    @property
    def usd_per_month(self) -> float:
        """USD per month of 730 hours."""
        return self.usd_per_hour * HOURS_PER_MONTH

    @property
    def by_resource(self) -> Mapping[str, float]:
        """USD per hour by SKU (and switching)."""
        names = dict.fromkeys(line.resource for line in self.purchases)
        return {n: math.fsum(line.usd_per_hour for line in self.purchases if line.resource == n) for n in names}


def supply_cost(
    bought: Mapping[str, Mapping[str, Sequence[float]]], supply: Supply, periods: Sequence[Period]
) -> SupplyCost:
    """What is bought, with its cost, by resource and purchase.

    Equation: sum_t hours_t / H x amount_t x USD/h for each purchase; a committed one is held alike in every period.

    Args:
        bought: amounts by resource and purchase in each period, as `Allocation.bought`.
        supply: that the program was given.
        periods: of the program, in its order.

    Raises UnknownNameError for what the supply does not hold and InputError for a wrong number of periods.
    """
    horizon = math.fsum(period.hours for period in periods)
    lines = []
    for resource, purchases in bought.items():
        for name, amounts in purchases.items():
            if len(amounts) != len(periods):
                bound = f"needs one amount for each of {len(periods)} periods"
                raise InputError(f"bought.{resource}.{name}", len(amounts), bound, "give the allocation's own periods")
            mean = math.fsum(x * p.hours for x, p in zip(amounts, periods, strict=True)) / horizon
            usd = mean * supply.purchase(resource, name).usd_per_hour
            most = max(amounts, default=0.0)
            lines.append(PurchaseCost(resource, name, mean, most, usd, supply.prices.get((resource, name))))
    return SupplyCost(tuple(lines))
