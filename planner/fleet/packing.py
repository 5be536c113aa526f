"""Which servers the replicas of a fleet fill: first fit, the largest replicas first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.serving import Pool


class PackedPool(NamedTuple):
    """Replicas that are alike.

    Attributes:
        sku: id of their GPU; a server has GPUs of one.
        gpus: of one replica.
        server_gpus: of one server.
        replicas: how many.
    """

    sku: str
    gpus: int
    server_gpus: int
    replicas: int

    @classmethod
    def of(cls, pool: Pool) -> PackedPool:
        """What packing needs to know of a pool."""
        return cls(pool.config.sku.id, pool.config.parallelism.gpus, pool.config.sku.node.gpus, pool.replicas)


class PackedReplica(NamedTuple):
    """Where one replica runs.

    Attributes:
        servers: by number from 0, in the order in which they are opened.
        first_gpu: of it on each of them, from 0.
    """

    servers: tuple[int, ...]
    first_gpu: int


def packed_replicas(pools: Sequence[PackedPool]) -> tuple[tuple[PackedReplica, ...], ...]:
    """Every replica of every pool on its servers, in the order given.

    Replicas fill servers of their SKU in the order in which these were opened, those of the pool with the largest
    replicas first. None straddles two servers, except one that is larger: it has ceil(gpus / server_gpus) for itself.

    >>> large, small = PackedPool("h100-sxm", 4, 8, 1), PackedPool("h100-sxm", 2, 8, 3)
    >>> packed_replicas([small])[0][-1], packed_replicas([small, large])[0][-1]
    (PackedReplica(servers=(0,), first_gpu=4), PackedReplica(servers=(1,), first_gpu=0))
    """
    used: list[int] = []
    """GPUs in use on every server."""
    of_sku: dict[str, list[int]] = {}
    places: list[tuple[PackedReplica, ...]] = [()] * len(pools)
    for index in sorted(range(len(pools)), key=lambda index: -pools[index].gpus):
        places[index] = tuple(_filled(pools[index], used, of_sku.setdefault(pools[index].sku, [])))
    return tuple(places)


def _filled(pool: PackedPool, used: list[int], of_sku: list[int]) -> Iterator[PackedReplica]:
    """Places of the replicas of a pool, on servers of its SKU that have room and on new ones."""
    spanned = -(-pool.gpus // pool.server_gpus)
    place = 0
    for _ in range(pool.replicas):
        if spanned > 1:
            place = len(of_sku)
        while place < len(of_sku) and used[of_sku[place]] + pool.gpus > pool.server_gpus:
            place += 1
        if place == len(of_sku):
            of_sku += range(len(used), len(used) + spanned)
            used += [0] * spanned
        servers = tuple(of_sku[place : place + spanned])
        yield PackedReplica(servers, used[servers[0]])
        for server in servers:
            used[server] = pool.server_gpus if spanned > 1 else used[server] + pool.gpus


def server_count(pools: Sequence[PackedPool]) -> int:
    """Servers that these pools fill together; one that two of them share counts once.

    >>> server_count([PackedPool("h100-sxm", 2, 8, 2), PackedPool("h100-sxm", 4, 8, 1)])
    1
    """
    return len({server for pool in packed_replicas(pools) for replica in pool for server in replica.servers})
