"""What a region leaves out of the prices listed, and what is taken for granted of sellers that name no region."""

from __future__ import annotations

from collections.abc import Iterable

from hardware_db import ANYWHERE, HardwareDb, Price, area_called, regions_in, sellers_without_regions
from planner.supply.types import PricePolicy


def region_notes(skus: Iterable[str], policy: PricePolicy, hardware: HardwareDb) -> tuple[str, ...]:
    """Which sellers of these SKUs count in the region asked for though they name none, and which do not, in sentences.

    >>> from hardware_db import load_hardware
    >>> print(*region_notes(["trainium2"], PricePolicy(region="us"), load_hardware()))
    prices.region=us: left out, since it is not known where they lie: AWS unclear
    """
    if policy.region is None:
        return ()
    wanted = set(skus)
    listed = [
        price
        for price in hardware.prices
        if price.sku in wanted
        and price.commitment in policy.commitments
        and policy.provider in (None, price.provider)
        and price not in hardware.own.prices
    ]
    alone = sellers_without_regions(hardware)
    everywhere = ", ".join(sorted({price.provider for price in listed if price.provider in alone}))
    area, places = area_called(hardware, policy.region), regions_in(hardware, policy.region)
    if area is None:
        return _notes_of_region(policy.region, everywhere, hardware)
    notes = []
    if everywhere:
        notes.append(
            f"prices.region={policy.region}: of {everywhere} one price is listed for all regions; it counts, and "
            f"whether they have GPUs in {area} is not known"
        )
    placed = {(place.provider, place.region) for place in hardware.regions} | places
    unplaced = {(price.provider, price.region) for price in listed if price.region not in ANYWHERE} - placed
    if unplaced:
        names = ", ".join(f"{provider} {region}" for provider, region in sorted(unplaced))
        notes.append(f"prices.region={policy.region}: left out, since it is not known where they lie: {names}")
    return tuple(notes)


def _notes_of_region(region: str, everywhere: str, hardware: HardwareDb) -> tuple[str, ...]:
    if not everywhere:
        return ()
    continents = {place.continent for place in hardware.regions if place.region == region}
    wider = f"; prices.region={min(continents)} counts them" if len(continents) == 1 else ""
    return (f"prices.region={region}: left out are {everywhere}, of which one price is listed for all regions{wider}",)


def region_warnings(bought: Iterable[Price], policy: PricePolicy, hardware: HardwareDb) -> tuple[str, ...]:
    """What to check of purchases at sellers that name no region, where one was asked for."""
    if policy.region is None:
        return ()
    alone = sellers_without_regions(hardware)
    return tuple(
        dict.fromkeys(
            f"{price.provider} lists one price for all its regions: check that it has {price.sku} in {policy.region}"
            for price in bought
            if price.provider in alone and price not in hardware.own.prices
        )
    )
