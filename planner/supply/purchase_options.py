"""Purchase options for the GPUs of one SKU, and what quotas leave of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hardware_db import GpuSku, Price
from planner.core import InputError
from planner.supply.availability import SPOT, least_spot_instances, spot_usable_share
from planner.supply.prices import (
    OWNED,
    block_gpus,
    counts_only_a_part,
    is_committed,
    owned_usd_per_gpu_hour,
    quota_counts,
)
from planner.supply.types import FleetLimits, Granularity, OwnedGpus, PricePolicy, Quota


@dataclass(frozen=True)
class PurchaseOption:
    """One way of getting GPUs of a SKU.

    Attributes:
        origin: the price, or the terms of one's own GPUs.
        usd_per_hour: of one GPU.
        block: GPUs bought at once.
        at_most: most GPUs; None: unlimited.
        usable_share: of what is bought, the rest being headroom (spot).
    """

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

    def limited_to(self, gpus: int) -> PurchaseOption:
        """The same with no more GPUs than these."""
        return replace(self, at_most=gpus if self.at_most is None else min(self.at_most, gpus))


def list_purchase_options(
    gpu: GpuSku, policy: PricePolicy, prices: Iterable[Price], spot_share: float | None
) -> list[PurchaseOption]:
    """Every option for GPUs of a SKU at these prices or owned, cheapest first; `spot_share` as in `build_supply`."""
    options = []
    for price in prices:
        share, block = 1.0, block_gpus(price, gpu, policy.granularity)
        if price.commitment == SPOT and policy.spot is not None:
            share = spot_usable_share(policy.spot, None) if spot_share is None else spot_share
            block *= least_spot_instances(policy.spot)
        options.append(PurchaseOption(price, price.usd_per_gpu_hour, block, None, share))
    if gpu.id in policy.owned:
        options.append(_owned_option(policy.owned[gpu.id], gpu, policy.granularity))
    return sorted(options, key=lambda option: option.usd_per_usable_hour)


def _owned_option(owned: OwnedGpus, gpu: GpuSku, granularity: Granularity) -> PurchaseOption:
    """GPUs that are there are used singly; those still to be bought come in servers where servers are bought."""
    usd = owned_usd_per_gpu_hour(owned, gpu)
    if usd <= 0.0:
        bound = "a GPU-hour that costs nothing makes every fleet of it as good as any other"
        fix = "give usd_per_kwh, other_usd_per_gpu_hour or capex_usd_per_gpu"
        raise InputError(f"prices.owned.{gpu.id}", usd, bound, fix)
    block = gpu.node.gpus if owned.count is None and granularity is Granularity.NODE else 1
    return PurchaseOption(owned, usd, block, owned.count)


@dataclass(frozen=True)
class QuotedOptions:
    """Purchase options as quotas leave them.

    Attributes:
        options: with their limits.
        most_in_use: GPUs under all options together; None: unlimited.
        assumptions: how limits were read that the program cannot hold word for word.
    """

    options: tuple[PurchaseOption, ...]
    most_in_use: int | None
    assumptions: tuple[str, ...]


def apply_quotas(sku: str, options: list[PurchaseOption], limits: FleetLimits) -> QuotedOptions:
    """Limit the options of a SKU by quotas and by the limit of its GPUs.

    The program limits a purchase, or all use of a resource. So a quota is held exactly where it counts one option, or
    all of them and these are bought in equal blocks. Any other is given to the cheapest option that it counts first.
    Limits of the SKU in all count GPUs in use.
    """
    most = [q.gpus for q in limits.quotas if q.sku == sku and not counts_only_a_part(q)]
    most += [limits.gpus[sku]] if sku in limits.gpus else []
    assumptions: list[str] = []
    has_headroom = any(option.usable_share < 1.0 for option in options)
    if most and len(options) > 1 and (_common_block(options) is None or has_headroom):
        text = f"the limit of {min(most)} {sku} counts GPUs in use: what blocks and spot headroom add is on top"
        assumptions.append(text)
    for quota in sorted((q for q in limits.quotas if q.sku == sku and counts_only_a_part(q)), key=lambda q: q.gpus):
        counted = [
            index
            for index, option in enumerate(options)
            if isinstance(option.origin, Price) and quota_counts(quota, option.origin)
        ]
        if not counted:
            assumptions.append(f"{_quota_name(quota)} counts nothing that may be bought")
        elif len(counted) == len(options) and _common_block(options) is not None:
            most.append(quota.gpus)
        else:
            options = _share_quota(options, counted, quota.gpus)
            if len(counted) > 1:
                text = f"{_quota_name(quota)} is used for the cheapest of {len(counted)} ways of buying first"
                assumptions.append(text)
    block = _common_block(options) or 1
    in_use = min(most) // block * block if most else None
    if in_use is not None:
        options = [
            option
            if in_use > 0 and in_use % option.block == 0 and option.usable_share == 1.0  # then nobody buys more
            else option.limited_to(in_use)
            for option in options
        ]
    kept = tuple(option for option in options if option.at_most is None or option.at_most >= option.block)
    return QuotedOptions(kept, in_use, tuple(assumptions))


def _common_block(options: Sequence[PurchaseOption]) -> int | None:
    blocks = {option.block for option in options}
    return blocks.pop() if len(blocks) == 1 else None


def _share_quota(options: list[PurchaseOption], counted: list[int], gpus: int) -> list[PurchaseOption]:
    """The counted options, cheapest first, limited so that together they do not exceed a number of GPUs."""
    shared = list(options)
    for index in counted:
        shared[index] = shared[index].limited_to(gpus)
        gpus -= shared[index].at_most or 0
    return shared


def _quota_name(quota: Quota) -> str:
    place = [name for name in (quota.provider, quota.region, quota.commitment) if name is not None]
    return f"quota of {quota.gpus} {quota.sku} ({', '.join(place)})"


def option_names(options: Sequence[PurchaseOption]) -> list[str]:
    """The commitment where that tells a option apart; else with provider and region, and with the block if need be."""
    names = [option.commitment for option in options]
    for endings in ([option.place for option in options], [f"x{option.block}" for option in options]):
        shared = {name for name in names if names.count(name) > 1}
        names = [f"{name} {end}" if name in shared else name for name, end in zip(names, endings, strict=True)]
    return names
