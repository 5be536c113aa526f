"""Where each replica of a fleet runs: its servers, its GPUs there, and ports that no other process of a server has.

Replicas fill the servers of their SKU one after the other, the largest first, none straddling two unless it is larger
than one. GPUs are numbered as the driver numbers them, servers from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.launch.own_ports import OWN_PORT_STEP, OwnPort
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
    filled: list[tuple[str, int]] = []
    places: dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for spec in sorted(specs, key=lambda spec: -spec.gpus):
        for number in range(1, spec.replicas + 1):
            room = [at for at, (sku, used) in enumerate(filled) if sku == spec.sku and _fits(spec, used)]
            if not room or spec.servers > 1:
                room = list(range(len(filled), len(filled) + spec.servers))
                filled += [(spec.sku, 0)] * spec.servers
            servers = tuple(room[: spec.servers])
            first = filled[servers[0]][1]
            for at in servers:
                filled[at] = (spec.sku, spec.node_gpus if spec.servers > 1 else first + spec.gpus_each)
            places[spec.name, number] = servers, tuple(range(first, first + spec.gpus_each))
    in_order = [(spec, number) for spec in specs for number in range(1, spec.replicas + 1)]
    names = {at: None for spec, number in in_order for at in places[spec.name, number][0]}
    numbers = {at: number for number, at in enumerate(names, start=1)}
    return tuple(
        PlacedReplica(spec, number, tuple(numbers[at] for at in servers), gpus)
        for spec, number in in_order
        for servers, gpus in [places[spec.name, number]]
    )


def _fits(spec: LaunchSpec, used: int) -> bool:
    return spec.servers == 1 and used + spec.gpus <= spec.node_gpus


def server_numbers(replicas: Iterable[PlacedReplica]) -> list[int]:
    """The servers of a fleet, from 1."""
    return sorted({server for replica in replicas for server in replica.servers})


def replicas_of(replicas: Iterable[PlacedReplica], pool: LaunchSpec) -> list[PlacedReplica]:
    """Those of one pool."""
    return [replica for replica in replicas if replica.spec.name == pool.name]
