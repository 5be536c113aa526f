"""Cost and availability of GPUs: prices, purchase options and limits, as resources of the integer program.

A resource of the program is the GPUs of one SKU (`Resource.name` and `Resource.group` are the SKU id); its purchases
are its purchase options: on demand, reserved, spot, one's own. Power and CO2 are resources without a price. Where a
fleet runs already and change costs something, the GPUs of a SKU are counted a second time, in a resource whose first
units are free and whose further ones cost the switch.

Equations and sources: docs/explanation/money.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hardware_db import GpuSku, HardwareDb, Price
from planner.core import InputError, UnknownNameError
from planner.optimizer import Allocation, Period, Purchase, Resource
from planner.supply.availability import SPOT, least_spot_instances, spot_usable_share
from planner.supply.prices import PriceNote, known_sku, offered_prices, price_notes, watts_per_gpu
from planner.supply.purchase_options import QuotedOptions, apply_quotas, list_purchase_options, option_names
from planner.supply.types import FleetLimits, OwnedGpus, PricePolicy

POWER = "power_kw"
"""Resource of a limited power [kW]."""
CO2 = "co2_kg_per_h"
"""Resource of limited emissions [kg CO2e/h]."""


@dataclass(frozen=True)
class Supply:
    """Everything for sale, for the program and for the report.

    Attributes:
        resources: one per SKU that can be had; switching, power and CO2 where they count.
        prices: of every purchase of a SKU, where its cost comes from, by SKU and purchase.
        cheapest: by SKU, least cost [USD] of a GPU-hour that can be counted on, under any purchase; above 0.
        limited: SKUs whose GPUs a limit counts or that are bought in blocks: there a GPU more can cost more than its
            price.
        unavailable: SKUs that cannot be had, and why.
        notes: prices that are missing, zero, stale or uncited.
        assumptions: how limits were read that the program cannot hold word for word.
    """

    resources: tuple[Resource, ...]
    prices: Mapping[tuple[str, str], Price | OwnedGpus]
    cheapest: Mapping[str, float]
    limited: frozenset[str]
    unavailable: Mapping[str, str]
    notes: tuple[PriceNote, ...] = ()
    assumptions: tuple[str, ...] = ()

    def purchase(self, resource: str, name: str) -> Purchase:
        """A purchase by name. Raises UnknownNameError."""
        by_name = {(r.name, p.name): p for r in self.resources for p in r.purchases}
        if (resource, name) not in by_name:
            raise UnknownNameError("purchase", f"{resource}, {name}", (f"{r}, {p}" for r, p in by_name))
        return by_name[resource, name]


def build_supply(
    skus: Iterable[str],
    policy: PricePolicy,
    limits: FleetLimits,
    hardware: HardwareDb,
    *,
    spot_shares: Mapping[str, float] | None = None,
    offered: Mapping[str, Sequence[Price]] | None = None,
) -> Supply:
    """Supply of these SKUs under a price policy and limits.

    Args:
        skus: ids, in the order of the resources.
        policy: which prices, and which purchase options.
        limits: of the fleet; `resource_use` says what a unit takes of the limited resources.
        hardware: SKUs and prices.
        spot_shares: by SKU, share of the spot capacity bought that may be counted on; of a SKU not named here it is
            that of a large fleet. `spot_shortfalls` says when that was too much.
        offered: by SKU, the prices to buy at; None: the best of every provider (`offered_prices`), with all notes.

    Raises InputError or UnknownNameError for limits that name what is unknown or contradict one another; a limit that
    can merely not be met is left to the program, which explains it.
    """
    wanted = tuple(dict.fromkeys(skus))
    _check_names(wanted, policy, limits, hardware)
    _check_limits(limits)
    resources: list[Resource] = []
    prices: dict[tuple[str, str], Price | OwnedGpus] = {}
    cheapest: dict[str, float] = {}
    unavailable: dict[str, str] = {}
    assumptions: list[str] = []
    for sku in wanted:
        gpu = hardware.skus[sku]
        if reason := _reason_ruled_out(gpu, policy, limits):
            unavailable[sku] = reason
            continue
        at = offered_prices(sku, policy, hardware, limits.quotas) if offered is None else offered.get(sku, ())
        options = list_purchase_options(gpu, policy, at, (spot_shares or {}).get(sku))
        quoted = apply_quotas(sku, options, limits)
        assumptions += quoted.assumptions
        if not quoted.options:
            unavailable[sku] = _reason_for_no_option(sku, quoted.most_in_use, policy, limits)
            continue
        names = option_names(quoted.options)
        prices |= {(sku, name): option.origin for name, option in zip(names, quoted.options, strict=True)}
        cheapest[sku] = min(option.usd_per_usable_hour for option in quoted.options)
        resources.append(_gpu_resource(sku, names, quoted, limits))
    if offered is None:
        _check_pins(limits, unavailable, cheapest)
    resources += [_switching_costs(sku, limits) for sku in cheapest if limits.switching_usd_per_gpu > 0.0]
    if limits.power_kw is not None:
        resources.append(Resource(name=POWER, at_most=limits.power_kw))
    if limits.co2_kg_per_hour is not None:
        resources.append(Resource(name=CO2, at_most=limits.co2_kg_per_hour))
    noted = [sku for sku in wanted if sku not in limits.forbidden] if offered is None else []
    return Supply(
        resources=tuple(resources),
        prices=prices,
        cheapest=cheapest,
        limited=frozenset(r.name for r in resources if r.group and _is_limited(r, limits)),
        unavailable=unavailable,
        notes=price_notes(noted, policy, hardware),
        assumptions=tuple(assumptions),
    )


def switching_resource(sku: str) -> str:
    """Name of the resource in which the GPUs of a SKU are counted against those that run today."""
    return f"{sku} switching"


def resource_use(
    option_gpus: Mapping[str, int], skus: Mapping[str, GpuSku], limits: FleetLimits, policy: PricePolicy
) -> dict[str, float]:
    """Amount of every resource that a unit takes while it is on.

    Equations: GPUs by SKU; kW = sum GPUs x watts x PUE / 1000 with the TDP (one's own GPUs: `OwnedGpus.watts`) and
    `FleetLimits.pue`; kg CO2e/h = kW x kg CO2e/kWh of the grid (emissions of running it, scope 2 of the GHG Protocol;
    nothing for making the hardware).

    Args:
        option_gpus: GPUs of the unit by SKU id.
        skus: records of these SKUs.
        limits: what is limited; only that is counted.
        policy: the power of one's own GPUs.

    Raises InputError where power is limited and that of a SKU is unknown.

    >>> from hardware_db import load_hardware
    >>> limits = FleetLimits(power_kw=100, pue=1.2, co2_kg_per_hour=30, co2_kg_per_kwh=0.4)
    >>> unit = resource_use({"h100-sxm": 10}, load_hardware().skus, limits, PricePolicy())
    >>> {name: round(amount, 9) for name, amount in unit.items()}  # 10 x 700 W x 1.2, x 0.4 kg
    {'h100-sxm': 10.0, 'power_kw': 8.4, 'co2_kg_per_h': 3.36}
    """
    result = {sku: float(count) for sku, count in option_gpus.items() if count}
    if limits.switching_usd_per_gpu > 0.0:
        result |= {switching_resource(sku): float(count) for sku, count in option_gpus.items() if count}
    if limits.power_kw is None and limits.co2_kg_per_hour is None:
        return result
    watts = math.fsum(
        count * watts_per_gpu(skus[sku], policy.owned.get(sku)) for sku, count in option_gpus.items() if count
    )
    kilowatts = watts * limits.pue / 1000.0
    if limits.power_kw is not None:
        result[POWER] = kilowatts
    if limits.co2_kg_per_hour is not None:
        result[CO2] = kilowatts * _co2_kg_per_kwh(limits)
    return result


def _reason_ruled_out(gpu: GpuSku, policy: PricePolicy, limits: FleetLimits) -> str:
    """Why a SKU cannot be had at any price, in words; empty if it can."""
    if gpu.id in limits.forbidden:
        return "forbidden by limits.forbidden"
    power_counts = limits.power_kw is not None or limits.co2_kg_per_hour is not None
    is_known = gpu.tdp_watts is not None or (gpu.id in policy.owned and policy.owned[gpu.id].watts is not None)
    if power_counts and not is_known:
        return "its power is not published, so that it cannot be counted against a limit of power or CO2"
    return ""


def _reason_for_no_option(sku: str, most: int | None, policy: PricePolicy, limits: FleetLimits) -> str:
    if most == 0:
        return "limits allow 0 GPUs of it"
    listed = f"no {' or '.join(policy.commitments)} price that may be used is listed"
    fix = f"give one in prices.usd_per_gpu_hour.{sku}"
    if most is not None or any(quota.sku == sku for quota in limits.quotas):
        return f"{listed}, or quotas leave less than is sold at once; lift these or {fix}"
    return f"{listed}; {fix}"


def _gpu_resource(sku: str, names: Sequence[str], quoted: QuotedOptions, limits: FleetLimits) -> Resource:
    purchases = tuple(
        Purchase(
            name=name,
            usd_per_hour=option.usd_per_hour,
            committed=option.is_committed,
            block=option.block,
            at_most=option.at_most,
            usable_share=option.usable_share,
        )
        for name, option in zip(names, quoted.options, strict=True)
    )
    pinned = limits.pinned.get(sku, 0)
    return Resource(name=sku, purchases=purchases, at_most=quoted.most_in_use, at_least=pinned, group=sku)


def _switching_costs(sku: str, limits: FleetLimits) -> Resource:
    """GPUs of a SKU counted once more: those that run today are free, one beyond them costs its share of the switch.

    Equation: switching_usd_per_gpu / switching_hours [USD/h] for each GPU beyond `existing`, at the largest fleet of
    any period.
    """
    today = Purchase(name="running today", usd_per_hour=0.0, committed=True, at_most=limits.existing.get(sku, 0))
    usd = limits.switching_usd_per_gpu / limits.switching_hours
    new = Purchase(name="new", usd_per_hour=usd, committed=True)
    return Resource(name=switching_resource(sku), purchases=(today, new) if today.at_most else (new,))


def _is_limited(resource: Resource, limits: FleetLimits) -> bool:
    for_all = (limits.power_kw, limits.co2_kg_per_hour, limits.skus_at_most)
    if any(limit is not None for limit in for_all) or limits.switching_usd_per_gpu > 0.0:
        return True
    counted = resource.at_most is not None or resource.at_least > 0.0
    return counted or any(purchase.at_most is not None or purchase.block > 1 for purchase in resource.purchases)


def _co2_kg_per_kwh(limits: FleetLimits) -> float:
    if limits.co2_kg_per_kwh is None:
        bound = "needed to count limits.co2_kg_per_hour"
        raise InputError("limits.co2_kg_per_kwh", None, bound, "give the kg CO2e of one kWh of the grid")
    return limits.co2_kg_per_kwh


def _check_names(skus: Sequence[str], policy: PricePolicy, limits: FleetLimits, hardware: HardwareDb) -> None:
    for field, names in (
        ("search.skus", skus),
        ("prices.usd_per_gpu_hour", policy.usd_per_gpu_hour),
        ("prices.owned", policy.owned),
        ("limits.gpus", limits.gpus),
        ("limits.pinned", limits.pinned),
        ("limits.forbidden", limits.forbidden),
        ("limits.existing", limits.existing),
        ("limits.quotas.sku", [quota.sku for quota in limits.quotas]),
    ):
        for name in names:
            known_sku(field, name, hardware)
    for quota in limits.quotas:
        for field in ("provider", "region", "commitment"):
            name = getattr(quota, field)
            known = {getattr(price, field) for price in hardware.prices}
            if name is not None and name not in known:
                raise UnknownNameError(f"limits.quotas.{field}", name, known)


def _check_limits(limits: FleetLimits) -> None:
    if limits.co2_kg_per_hour is not None:
        _co2_kg_per_kwh(limits)
    for sku, count in limits.pinned.items():
        if count and sku in limits.forbidden:
            raise InputError(f"limits.pinned.{sku}", count, "is in limits.forbidden too", "take it out of one of them")


def _check_pins(limits: FleetLimits, unavailable: Mapping[str, str], available: Mapping[str, float]) -> None:
    """A pin on what cannot be had would vanish with its resource, so it is refused here."""
    for sku, count in limits.pinned.items():
        if count and sku not in available:
            reason = unavailable.get(sku, "it is not among search.skus")
            raise InputError(f"limits.pinned.{sku}", count, f"cannot be had: {reason}", "take the pin out or lift that")


def spot_shortfalls(
    bought: Mapping[str, Mapping[str, Sequence[float]]], supply: Supply, policy: PricePolicy
) -> dict[str, float]:
    """SKUs of which too little spot capacity was bought, with the share of it that may be counted on.

    That share depends on how many instances are bought, which only the program decides: plan with the share of a large
    fleet, and where this function names a SKU, plan again with `build_supply(..., spot_shares=...)`. Each round the
    shares fall, so that it comes to an end.

    Equation: of n instances of g GPUs floor(n g share) GPUs are in use at most; short where that is more than g m(n) of
    `spot_usable_share`.
    """
    short: dict[str, float] = {}
    at_once = least_spot_instances(policy.spot) if policy.spot is not None else 1
    for (sku, name), origin in supply.prices.items():
        if not (isinstance(origin, Price) and origin.commitment == SPOT and policy.spot is not None):
            continue
        purchase = supply.purchase(sku, name)
        for gpus in {amount for amount in bought.get(sku, {}).get(name, ()) if amount >= 1.0}:
            share = spot_usable_share(policy.spot, round(gpus * at_once / purchase.block))
            if math.floor(gpus * purchase.usable_share + 1e-9) > gpus * share + 1e-9:
                short[sku] = min(share, short.get(sku, share))
    return short


def with_all_owned(allocation: Allocation, supply: Supply) -> Allocation:
    """An allocation that pays for all GPUs of one's own, on or dark: they are there, whatever a fleet takes of them.

    Args:
        allocation: with a fleet.
        supply: that the program was given.
    """
    bought = {resource: dict(purchases) for resource, purchases in allocation.bought.items()}
    cost = allocation.cost_usd_per_hour
    periods = max((len(on) for on in allocation.units.values()), default=1)
    for (sku, name), origin in supply.prices.items():
        if isinstance(origin, OwnedGpus) and origin.count:
            held = max(bought.get(sku, {}).get(name, (0.0,)))
            cost += max(origin.count - held, 0.0) * supply.purchase(sku, name).usd_per_hour
            bought.setdefault(sku, {})[name] = (max(held, float(origin.count)),) * periods
    return allocation.model_copy(update={"bought": bought, "cost_usd_per_hour": cost})


@dataclass(frozen=True)
class PurchaseCost:
    """Cost of one purchase of one resource.

    Attributes:
        resource: the SKU, or its switching.
        purchase: its name among those of the resource.
        usd_per_hour: mean over the horizon.
        origin: the price or the terms behind it; None for switching.
    """

    resource: str
    purchase: str
    usd_per_hour: float
    origin: Price | OwnedGpus | None


def supply_cost(
    bought: Mapping[str, Mapping[str, Sequence[float]]], supply: Supply, periods: Sequence[Period]
) -> tuple[PurchaseCost, ...]:
    """Purchases with their cost: an allocation's `cost_usd_per_hour` less its starts and the own cost of units.

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
            lines.append(PurchaseCost(resource, name, usd, supply.prices.get((resource, name))))
    return tuple(lines)
