"""Where a plan hands KV caches over a network that the provider does not have between the instances bought.

Pools are planned with the network cards of the SKU's reference server (`NodeSku.nic_bytes_per_s_per_gpu`). What a
provider puts between its instances may be less, or plain TCP (``hardware_db/prices/instances.csv``).
"""

from __future__ import annotations

from collections.abc import Sequence

from hardware_db import HardwareDb, NetworkKind, instance_of
from planner.core import significant
from planner.fleet.types import BoughtGpus, PlannedDeployment
from planner.serving import between_servers_bytes_per_s

LESS = 0.9
"""Share of the bandwidth planned with below which an instance's network is worth a word. A choice."""


def network_warnings(
    deployments: Sequence[PlannedDeployment], bought: Sequence[BoughtGpus], hardware: HardwareDb
) -> tuple[str, ...]:
    """A line for every instance type bought whose network is slower than KV transfers are planned with, or plain TCP.

    Args:
        deployments: of the plan.
        bought: what it buys.
        hardware: with the instances of providers.

    Returns:
        The lines; none for mixed pools, or where the scale-up link carries the caches.
    """
    planned_with: dict[str, float] = {}
    for planned in deployments:
        pools = planned.deployment.pools if planned.deployment.is_disaggregated else ()
        gpus = sum(pool.config.parallelism.gpus for pool in pools)
        for pool in pools:
            sku, network = pool.config.sku, pool.config.sku.node.nic_bytes_per_s_per_gpu.value
            if between_servers_bytes_per_s(sku, gpus) == network:
                planned_with[sku.id] = network
    lines = []
    for purchase in bought:
        instance = instance_of(hardware, purchase.price) if purchase.price is not None else None
        if instance is None or purchase.sku not in planned_with:
            continue
        wanted = planned_with[purchase.sku] * instance.gpus
        has = instance.network_bytes_per_s
        if instance.network is not NetworkKind.TCP and (has is None or has >= LESS * wanted):
            continue
        rate = f", {significant(has / 1e9)} GB/s" if has is not None else ""
        lines.append(
            f"{instance.provider} {instance.instance_type}: the network between instances is {instance.network_name}"
            f"{rate}; KV caches are planned to move at {significant(wanted / 1e9)} GB/s: ask for RDMA or measure it, "
            "or plan with search.modes=[mixed]"
        )
    return tuple(dict.fromkeys(lines))
