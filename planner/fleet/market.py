"""The market: SKUs with their prices and calibrations, the offer of each site, and the networks between its servers.

Networks carry KV caches, and replicas span servers only over RDMA. The search knows each SKU's reference server
(`NodeSku.nic_bytes_per_s_per_gpu`); where a fleet is bought is a choice of the program, and the network between
instances there is another fact (``hardware_db/prices/instances.csv``, or given: `PricePolicy.rdma_gbps_per_gpu`).

- Stated and slower than the reference server's: a pair that was chosen is looked at again with it, and where only that
  network makes it miss its targets the site sells no pairs of that SKU.
- Not stated: the site sells no pairs that are larger than one instance.
- A replica that spans servers has the step times of the reference server's RDMA network, and is bought only where one
  as fast is stated (`SiteSupply.holds`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hardware_db import Calibration, GpuSku, HardwareDb, select_calibration
from planner.core import UnknownNameError, rebuilt, significant
from planner.fleet.columns import Column
from planner.fleet.pairing import UsedPool
from planner.fleet.types import PlannedDeployment, PlanRequest
from planner.optimizer import Allocation, UnitStage
from planner.search import ConfigurationFamily, DeploymentOption, Mode, Offer, PoolOption, Rejection
from planner.supply import InstanceNetwork, SiteSupply, Supply, build_supply, site_supplies

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
    sites += tuple(alone for site in sites for alone in site.alone)
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


# --- networks between servers -----------------------------------------------------------------------------------------


def on_networks(
    option: DeploymentOption, pools: Sequence[UsedPool], networks: Mapping[str, InstanceNetwork]
) -> DeploymentOption:
    """A pair of pools with the networks of its site where these are slower; the same where none is.

    Args:
        option: the configurations.
        pools: their sizes.
        networks: of the site, by SKU.

    Returns:
        The same option for mixed pools, for a pair that fits in one instance, and where the scale-up link carries.
    """
    if option.mode is not Mode.DISAGGREGATED:
        return option
    gpus = sum(pool.option.pool(pool.replicas).gpus for pool in pools)
    together = sum(pool.option.gpus for pool in pools)
    slower = tuple(_on_network(each, gpus, together, networks) for each in option.pools)
    return option if slower == option.pools else replace(option, pools=slower)


def _on_network(option: PoolOption, gpus: int, together: int, networks: Mapping[str, InstanceNetwork]) -> PoolOption:
    sku = option.config.sku
    network = networks.get(sku.id)
    own = None if network is None else network.bytes_per_s_per_gpu
    if network is None or own is None or gpus <= network.gpus or not sku.leaves_by_network(together):
        return option
    if own >= sku.node.nic_bytes_per_s_per_gpu.value:
        return option
    slower = rebuilt(sku.node.nic_bytes_per_s_per_gpu, value=own, note=network.name)
    return replace(
        option, config=rebuilt(option.config, sku=rebuilt(sku, node=rebuilt(sku.node, nic_bytes_per_s_per_gpu=slower)))
    )


def _skus_on_networks(deployments: Sequence[PlannedDeployment]) -> dict[str, GpuSku]:
    """By id, the SKUs of pairs of pools that hand KV caches over a network, with what they are planned with."""
    return {
        pool.config.sku.id: pool.config.sku
        for planned in deployments
        if planned.deployment.is_disaggregated
        for pool in planned.deployment.pools
        if pool.config.sku.leaves_by_network(sum(each.config.parallelism.gpus for each in planned.deployment.pools))
    }


def network_notes(deployments: Sequence[PlannedDeployment], hardware: HardwareDb) -> tuple[str, ...]:
    """A line for every SKU whose KV caches are planned to move more slowly than in its reference server.

    Args:
        deployments: of the plan.
        hardware: with the reference servers.
    """
    lines = []
    for name, sku in _skus_on_networks(deployments).items():
        card, reference = sku.node.nic_bytes_per_s_per_gpu, hardware.skus[name].node.nic_bytes_per_s_per_gpu
        if card.value < reference.value:
            lines.append(
                f"{name}: KV caches move at {significant(card.value / 1e9)} GB/s of a GPU between instances "
                f"({card.note}), not at the {significant(reference.value / 1e9)} of the reference server"
            )
    return tuple(lines)


def over_unstated(
    columns: Iterable[Column], units: Mapping[str, Sequence[int]], site: SiteSupply, hardware: HardwareDb
) -> set[tuple[str, str]]:
    """Service and SKU of the pairs whose KV caches would travel between instances that nobody says the network of.

    Args:
        columns: that are used.
        units: how many of each, by period.
        site: where they are bought.
        hardware: with the datasheets.
    """
    pairs: dict[tuple[str, str], list[Column]] = {}
    for column in (column for column in columns if not column.is_mixed):
        pairs.setdefault((column.service, column.family.sku), []).append(column)

    def most_gpus(pools: Sequence[Column]) -> int:
        by_pool = [[count * sum(column.gpus.values()) for count in units[column.name]] for column in pools]
        return max(int(sum(gpus)) for gpus in zip(*by_pool, strict=True))

    return {
        (service, sku)
        for (service, sku), pools in pairs.items()
        if is_unstated(site.networks.get(sku))
        and most_gpus(pools) > site.networks[sku].gpus
        and hardware.skus[sku].leaves_by_network(_together(pools))
    }


def is_unstated(network: InstanceNetwork | None) -> bool:
    """True if a provider does not state how fast its network is. None: the reference server's, which is known."""
    return network is not None and network.bytes_per_s_per_gpu is None


def _together(pools: Sequence[Column]) -> int:
    """GPUs of the largest prefill and decode replica together."""
    return sum(max((one.family.gpus for one in pools if one.stage is stage), default=0) for stage in UnitStage)


def joined_notes(
    families: Iterable[ConfigurationFamily], sites: Sequence[SiteSupply], hardware: HardwareDb
) -> tuple[str, ...]:
    """A line for every SKU whose replicas over several servers were not looked for at some sites.

    Args:
        families: that were looked at.
        sites: likewise.
        hardware: with the datasheets.
    """
    left: dict[str, set[str]] = {}
    for family in families:
        sku = hardware.skus[family.sku]
        if family.gpus > sku.node.gpus:
            for site in (site for site in sites if sku.id in site.networks and not site.holds(sku, family.gpus)):
                left.setdefault(sku.id, set()).add(site.networks[sku.id].provider)
    return tuple(
        f"{sku}: replicas over several servers were not looked for at {', '.join(sorted(providers))}, where no RDMA as "
        "fast as the reference server's is stated (prices.rdma_gbps_per_gpu gives it)"
        for sku, providers in left.items()
    )
