"""Placement of each replica of a fleet: its servers, its GPUs there, and ports that no other process of a server has.

Replicas are spread over servers as the plan counts them (`planner.fleet.packed_replicas`). GPUs are numbered as the
driver numbers them, servers from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.fleet import PackedPool, packed_replicas
from planner.launch.servers import OWN_PORT_STEP, OwnPort
from planner.launch.spec import FIRST_PORT, NVIDIA, LaunchSpec


@dataclass(frozen=True)
class PlacedReplica:
    """One replica, where it runs.

    Attributes:
        spec: of its pool.
        number: of it in the pool, from 1.
        servers: it runs on, from 1; the first answers requests.
        gpus: of it on each of these servers, from 0.
    """

    spec: LaunchSpec
    number: int
    servers: tuple[int, ...]
    gpus: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of its process on the server that answers requests."""
        return f"{self.spec.name}-{self.number}"

    @property
    def port(self) -> int:
        """At which it answers requests: its first GPU tells it from the others of its server."""
        return FIRST_PORT + self.gpus[0]

    def own_port(self, port: OwnPort) -> str:
        """The value of a further port that every replica of a server needs one of its own for."""
        return f"{port.host}{port.first + OWN_PORT_STEP * self.gpus[0]}"

    @property
    def visible_gpus(self) -> tuple[str, str]:
        """The variable that shows it its GPUs, and its value.

        Sources: https://docs.nvidia.com/cuda/cuda-c-programming-guide (CUDA environment variables),
        https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html, read 2026-11-24.
        """
        name = "CUDA_VISIBLE_DEVICES" if self.spec.vendor == NVIDIA else "HIP_VISIBLE_DEVICES"
        return name, ",".join(map(str, self.gpus))


def place_replicas(specs: Sequence[LaunchSpec]) -> tuple[PlacedReplica, ...]:
    """Every replica of every pool on its servers, pool by pool."""
    packed = packed_replicas(
        [PackedPool(spec.sku, spec.gpus, spec.node_gpus, spec.replicas) for spec in specs],
        {spec.sku: spec.sku_servers for spec in specs},
    )
    in_order = dict.fromkeys(server for pool in packed for replica in pool for server in replica.servers)
    numbers = {server: number for number, server in enumerate(in_order, start=1)}
    return tuple(
        PlacedReplica(
            spec,
            number,
            tuple(numbers[server] for server in replica.servers),
            tuple(range(replica.first_gpu, replica.first_gpu + spec.gpus_each)),
        )
        for spec, pool in zip(specs, packed, strict=True)
        for number, replica in enumerate(pool, start=1)
    )


def encoder_urls(spec: LaunchSpec, replicas: Iterable[PlacedReplica], addresses: Mapping[int, str]) -> list[str]:
    """URLs of the encoders of a pool, given the address of each server; none where it has none."""
    return [
        f"http://{addresses[one.servers[0]]}:{one.port}"
        for one in replicas
        if spec.encoders and one.spec.encodes and one.spec.deployment == spec.deployment
    ]


def server_numbers(replicas: Iterable[PlacedReplica]) -> list[int]:
    """The servers of a fleet, from 1."""
    return sorted({server for replica in replicas for server in replica.servers})


def replicas_of(replicas: Iterable[PlacedReplica], pool: LaunchSpec) -> list[PlacedReplica]:
    """Those of one pool."""
    return [replica for replica in replicas if replica.spec.name == pool.name]
