"""KV caches between pools travel over what the provider has between instances, not over the reference server's cards.

The search knows each SKU's reference server (`NodeSku.nic_bytes_per_s_per_gpu`); where a fleet is bought is a choice of
the program. So a pair that was chosen is looked at again with the network of its site, as far as the provider states it
(``hardware_db/prices/instances.csv``), and where only that network makes it miss its targets the site sells no pairs of
that SKU. A network that is not stated is taken for the reference server's, and warned of where it is plain TCP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hardware_db import GpuSku, HardwareDb, NetworkKind, instance_of
from planner.core import rebuilt, significant
from planner.fleet.pairing import UsedPool
from planner.fleet.types import BoughtGpus, PlannedDeployment
from planner.search import DeploymentOption, Mode, PoolOption
from planner.serving import between_servers_bytes_per_s
from planner.supply import InstanceNetwork


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
    gpus = sum(pool.replicas * pool.option.gpus for pool in pools)
    together = sum(pool.option.gpus for pool in pools)
    slower = tuple(_on_network(each, gpus, together, networks) for each in option.pools)
    return option if slower == option.pools else replace(option, pools=slower)


def _on_network(option: PoolOption, gpus: int, together: int, networks: Mapping[str, InstanceNetwork]) -> PoolOption:
    sku = option.config.sku
    network = networks.get(sku.id)
    if network is None or gpus <= network.gpus or not _leaves_by_network(sku, together):
        return option
    slower = rebuilt(sku.node.nic_bytes_per_s_per_gpu, value=network.bytes_per_s_per_gpu, note=network.name)
    return replace(
        option, config=rebuilt(option.config, sku=rebuilt(sku, node=rebuilt(sku.node, nic_bytes_per_s_per_gpu=slower)))
    )


def _leaves_by_network(sku: GpuSku, gpus: int) -> bool:
    """Whether KV caches leave a GPU by the network, not by a scale-up link that holds so many."""
    return between_servers_bytes_per_s(sku, gpus) == sku.node.nic_bytes_per_s_per_gpu.value


def _skus_on_networks(deployments: Sequence[PlannedDeployment]) -> dict[str, GpuSku]:
    """By id, the SKUs of pairs of pools that hand KV caches over a network, with what they are planned with."""
    return {
        pool.config.sku.id: pool.config.sku
        for planned in deployments
        if planned.deployment.is_disaggregated
        for pool in planned.deployment.pools
        if _leaves_by_network(pool.config.sku, sum(each.config.parallelism.gpus for each in planned.deployment.pools))
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


def network_warnings(
    deployments: Sequence[PlannedDeployment], bought: Sequence[BoughtGpus], hardware: HardwareDb
) -> tuple[str, ...]:
    """A line for every instance type bought that pairs of pools use and that has plain TCP of unknown rate.

    Args:
        deployments: of the plan.
        bought: what it buys.
        hardware: with the instances of providers.

    Returns:
        The lines; none for mixed pools, where the scale-up link carries the caches, or where all is in one instance.
    """
    skus = _skus_on_networks(deployments)
    rented = {sku: sum(max(each.gpus) for each in bought if each.sku == sku and each.price is not None) for sku in skus}
    lines = []
    for purchase in bought:
        instance = instance_of(hardware, purchase.price) if purchase.price is not None else None
        if instance is None or purchase.sku not in skus or instance.network_bytes_per_s is not None:
            continue
        if rented[purchase.sku] <= instance.gpus:
            continue
        if instance.network is NetworkKind.TCP:
            wanted = significant(skus[purchase.sku].node.nic_bytes_per_s_per_gpu.value * instance.gpus / 1e9)
            lines.append(
                f"{instance.provider} {instance.instance_type}: the network between instances is "
                f"{instance.network_name} of a rate that is not stated; KV caches are planned to move at {wanted} "
                "GB/s: ask for RDMA or measure it, or plan with search.modes=[mixed]"
            )
    return tuple(dict.fromkeys(lines))
