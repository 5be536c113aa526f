"""The ways of getting the GPUs of one SKU, and what quotas leave of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hardware_db import GpuSku, HardwareDb, Price
from planner.core import InputError
from planner.supply.prices import (
    OWNED,
    SPOT,
    block_gpus,
    is_committed,
    least_spot_instances,
    names_a_place,
    offered_prices,
    owned_usd_per_gpu_hour,
    quota_counts,
    spot_usable_share,
)
from planner.supply.types import FleetLimits, Granularity, OwnedGpus, PricePolicy, Quota


@dataclass(frozen=True)
class Way:
    """One way of getting GPUs of a SKU: the price or terms, USD per GPU-hour, GPUs at once, most GPUs, usable share."""

    origin: Price | OwnedGpus
    usd_per_hour: float
    block: int
    at_most: int | None
    usable_share: float = 1.0

    @property
    def usd_per_usable_hour(self) -> float:
        """Cost [USD] of an hour of a GPU that can be counted on."""
        return self.usd_per_hour / self.usable_share

    @property
    def commitment(self) -> str:
        """The terms it is bought under."""
        return self.origin.commitment if isinstance(self.origin, Price) else OWNED

    @property
    def is_committed(self) -> bool:
        """Is it paid for the whole horizon, used or not?"""
        return isinstance(self.origin, OwnedGpus) or is_committed(self.commitment)

    @property
    def place(self) -> str:
        """Where it is bought."""
        return f"{self.origin.provider} {self.origin.region}" if isinstance(self.origin, Price) else ""

    def limited_to(self, gpus: int) -> Way:
        """The same with no more GPUs than these."""
        return replace(self, at_most=gpus if self.at_most is None else min(self.at_most, gpus))


def ways_of(
    gpu: GpuSku, policy: PricePolicy, limits: FleetLimits, hardware: HardwareDb, spot_share: float | None
) -> list[Way]:
    """Every way of getting GPUs of a SKU that the policy allows, cheapest first; `spot_share` as in `resources_of`."""
    ways = []
    for price in offered_prices(gpu.id, policy, hardware, limits.quotas):
        share, block = 1.0, block_gpus(price, gpu, policy.granularity)
        if price.commitment == SPOT and policy.spot is not None:
            share = spot_usable_share(policy.spot, None) if spot_share is None else spot_share
            block *= least_spot_instances(policy.spot)
        ways.append(Way(price, price.usd_per_gpu_hour, block, None, share))
    if gpu.id in policy.owned:
        ways.append(_owned_way(policy.owned[gpu.id], gpu, policy.granularity))
    return sorted(ways, key=lambda way: way.usd_per_usable_hour)


def _owned_way(owned: OwnedGpus, gpu: GpuSku, granularity: Granularity) -> Way:
    """GPUs that are there are used singly; those still to be bought come in servers where servers are bought."""
    usd = owned_usd_per_gpu_hour(owned, gpu)
    if usd <= 0.0:
        bound = "a GPU-hour that costs nothing makes every fleet of it as good as any other"
        fix = "give usd_per_kwh, other_usd_per_gpu_hour or capex_usd_per_gpu"
        raise InputError(f"prices.owned.{gpu.id}", usd, bound, fix)
    block = gpu.node.gpus if owned.count is None and granularity is Granularity.NODE else 1
    return Way(owned, usd, block, owned.count)


def within_quotas(sku: str, ways: list[Way], limits: FleetLimits) -> tuple[list[Way], int | None, list[str]]:
    """The ways with what quotas leave of them, most GPUs in use under any way, and how limits were read.

    The program limits a purchase, or all use of a resource. So a quota is held exactly where it counts one way, or all
    of them and these are bought in equal blocks. Any other is given to the cheapest way that it counts first. Limits of
    the SKU in all count GPUs in use.
    """
    most = [q.gpus for q in limits.quotas if q.sku == sku and not names_a_place(q)]
    most += [limits.gpus[sku]] if sku in limits.gpus else []
    read: list[str] = []
    if most and len(ways) > 1 and (_common_block(ways) is None or any(way.usable_share < 1.0 for way in ways)):
        read.append(f"the limit of {min(most)} {sku} counts GPUs in use: what blocks and spot headroom add is on top")
    for quota in sorted((q for q in limits.quotas if q.sku == sku and names_a_place(q)), key=lambda q: q.gpus):
        counted = [i for i, way in enumerate(ways) if isinstance(way.origin, Price) and quota_counts(quota, way.origin)]
        if not counted:
            read.append(f"{_quota_name(quota)} counts nothing that may be bought")
        elif len(counted) == len(ways) and _common_block(ways) is not None:
            most.append(quota.gpus)
        else:
            ways = _filled(ways, counted, quota.gpus)
            if len(counted) > 1:
                read.append(f"{_quota_name(quota)} is used for the cheapest of {len(counted)} ways of buying first")
    block = _common_block(ways) or 1
    in_use = min(most) // block * block if most else None
    if in_use is not None:
        ways = [way if _is_held(way, in_use) else way.limited_to(in_use) for way in ways]
    return [way for way in ways if way.at_most is None or way.at_most >= way.block], in_use, read


def _is_held(way: Way, in_use: int) -> bool:
    """Whether a limit of the GPUs in use says all: nobody buys more, so that the same limit of the way is none."""
    return in_use > 0 and in_use % way.block == 0 and way.usable_share == 1.0


def _common_block(ways: Sequence[Way]) -> int | None:
    blocks = {way.block for way in ways}
    return blocks.pop() if len(blocks) == 1 else None


def _filled(ways: list[Way], counted: list[int], gpus: int) -> list[Way]:
    """The counted ways, cheapest first, limited so that together they do not exceed a number of GPUs."""
    result = list(ways)
    for i in counted:
        result[i] = result[i].limited_to(gpus)
        gpus -= result[i].at_most or 0
    return result


def _quota_name(quota: Quota) -> str:
    place = [part for part in (quota.provider, quota.region, quota.commitment) if part is not None]
    return f"quota of {quota.gpus} {quota.sku} ({', '.join(place)})"


def names_of(ways: Sequence[Way]) -> list[str]:
    """The commitment where that tells a way apart; else with provider and region, and with the block if need be."""
    names = [way.commitment for way in ways]
    for endings in ([way.place for way in ways], [f"x{way.block}" for way in ways]):
        shared = {name for name in names if names.count(name) > 1}
        names = [f"{name} {end}" if name in shared else name for name, end in zip(names, endings, strict=True)]
    return names
