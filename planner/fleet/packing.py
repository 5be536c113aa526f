"""Which servers the replicas of a fleet run on.

How many servers it takes is counted by first fit, the largest replicas first. Over these, or over those that are
bought, the replicas of every pool are spread, so that a server that is lost takes as few as can be of each.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hardware_db import GpuSku
from planner.serving import Pool
from planner.supply import OWNED


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
        """The size of a pool and of its servers."""
        return cls(pool.config.sku.id, pool.config.parallelism.gpus, pool.config.sku.node.gpus, pool.replicas)

    @classmethod
    def all_of(cls, pool: Pool) -> tuple[PackedPool, ...]:
        """The same, with its encoders beside it where it has some."""
        replicas = cls.of(pool)
        return (replicas, replicas._replace(gpus=1, replicas=pool.encoders)) if pool.encoders else (replicas,)


class PackedReplica(NamedTuple):
    """Where one replica runs.

    Attributes:
        servers: by number from 0, in the order in which they are opened.
        first_gpu: of it on each of them, from 0.
    """

    servers: tuple[int, ...]
    first_gpu: int


Packing = tuple[tuple[PackedReplica, ...], ...]
"""The replicas of every pool, in the order of the pools."""


def servers_of(gpus: float, server_gpus: int) -> tuple[int, ...]:
    """GPUs of every server that so many GPUs are bought in; the last may have fewer than a whole one.

    >>> servers_of(12.0, 8)
    (8, 4)
    """
    full, rest = divmod(math.ceil(gpus - 1e-6), server_gpus)
    return (server_gpus,) * full + ((rest,) if rest else ())


def servers_bought(
    gpus: Iterable[tuple[str, str, Sequence[float]]], skus: Mapping[str, GpuSku]
) -> dict[str, tuple[int, ...]]:
    """GPUs of every server that a fleet is bought in, by SKU: those of one's own are not those that are rented.

    Args:
        gpus: SKU, name of the purchase option, GPUs held in each period; what is no SKU is left out.
        skus: their records.
    """
    held: dict[str, dict[bool, list[float]]] = {}
    for sku, purchase, by_period in gpus:
        if sku in skus:
            sums = held.setdefault(sku, {}).setdefault(purchase == OWNED, [0.0] * len(by_period))
            sums[:] = (total + count for total, count in zip(sums, by_period, strict=True))
    return {
        sku: tuple(size for sums in of_sku.values() for size in servers_of(max(sums), skus[sku].node.gpus))
        for sku, of_sku in held.items()
    }


def packed_replicas(pools: Sequence[PackedPool], bought: Mapping[str, Sequence[int]] | None = None) -> Packing:
    """Every replica of every pool on its servers, in the order given.

    The replicas of a pool go one by one to the server of their SKU that has the fewest of that pool, of these to the
    one with most GPUs free; pools with the largest replicas come first. None straddles two servers, except one that is
    larger: it has ceil(gpus / server_gpus) for itself. Sizes that divide one another leave no gap; where others do, and
    servers run out, replicas fill one server after the other instead, and as many new ones as that takes.

    Args:
        pools: of the fleet.
        bought: GPUs of every server that is bought, by SKU; without one of its SKU a pool has as many as it takes.

    >>> large, small = PackedPool("h100-sxm", 4, 8, 1), PackedPool("h100-sxm", 2, 8, 3)
    >>> packed_replicas([small])[0][-1], packed_replicas([small, large])[0]
    (PackedReplica(servers=(0,), first_gpu=4), (PackedReplica(servers=(1,), first_gpu=0), \
PackedReplica(servers=(0,), first_gpu=4), PackedReplica(servers=(1,), first_gpu=2)))
    """
    servers = _Servers(bought or {})
    filled = _placed(pools, servers, _first_fit)
    emptied = servers.emptied()
    spread = _placed(pools, emptied, _spread)
    return spread if len(emptied.free) == len(servers.free) else filled


def server_count(pools: Sequence[PackedPool], bought: Mapping[str, Sequence[int]] | None = None) -> int:
    """Servers that these pools run on together; one that two of them share counts once. Arguments as above.

    >>> server_count([PackedPool("h100-sxm", 2, 8, 2), PackedPool("h100-sxm", 4, 8, 1)])
    1
    >>> server_count([PackedPool("h100-sxm", 3, 8, 5)]), server_count([PackedPool("h100-sxm", 16, 8, 5)])
    (3, 10)
    """
    if len(pools) == 1 and bought is None:
        (pool,) = pools
        on_one = pool.server_gpus // pool.gpus
        return math.ceil(pool.replicas / on_one) if on_one else pool.replicas * -(-pool.gpus // pool.server_gpus)
    return len({server for pool in packed_replicas(pools, bought) for replica in pool for server in replica.servers})


def lost_with_a_server(packing: Packing) -> list[tuple[int, ...]]:
    """Replicas of every pool that are lost with a server, each combination that some server has once.

    >>> lost_with_a_server(packed_replicas([PackedPool("h100-sxm", 4, 8, 2), PackedPool("h100-sxm", 2, 8, 3)]))
    [(1, 2), (1, 1)]
    """
    on: dict[int, list[int]] = {}
    for index, replicas in enumerate(packing):
        for replica in replicas:
            for server in replica.servers:
                on.setdefault(server, [0] * len(packing))[index] += 1
    return list(dict.fromkeys(tuple(on[server]) for server in sorted(on)))


class _Servers:
    """Servers and the GPUs free on each; a new one is opened where there is no room."""

    def __init__(self, bought: Mapping[str, Sequence[int]]) -> None:
        self.free: list[int] = []
        self.of_sku: dict[str, list[int]] = {}
        self._sizes: list[int] = []
        for sku, sizes in bought.items():
            for size in sizes:
                self.opened(sku, size)

    def opened(self, sku: str, gpus: int) -> int:
        """A further server with so many GPUs."""
        self.of_sku.setdefault(sku, []).append(len(self.free))
        self.free.append(gpus)
        self._sizes.append(gpus)
        return len(self.free) - 1

    def emptied(self) -> _Servers:
        """The same servers with nothing on them."""
        again = _Servers({})
        again.free, again._sizes = list(self._sizes), list(self._sizes)
        again.of_sku = {sku: list(servers) for sku, servers in self.of_sku.items()}
        return again

    def place(self, servers: Sequence[int], gpus: int) -> PackedReplica:
        """A replica that takes so many GPUs of each of these servers."""
        first = self._sizes[servers[0]] - self.free[servers[0]]
        for server in servers:
            self.free[server] -= gpus
        return PackedReplica(tuple(servers), first)


_Choose = Callable[[PackedPool, _Servers], Iterator[PackedReplica]]


def _placed(pools: Sequence[PackedPool], servers: _Servers, choose: _Choose) -> Packing:
    places: list[tuple[PackedReplica, ...]] = [()] * len(pools)
    for index in sorted(range(len(pools)), key=lambda index: -pools[index].gpus):
        pool = pools[index]
        places[index] = tuple((choose if pool.gpus <= pool.server_gpus else _whole)(pool, servers))
    return tuple(places)


def _whole(pool: PackedPool, servers: _Servers) -> Iterator[PackedReplica]:
    """Replicas that are larger than a server: whole ones, first those that nothing runs on."""
    empty = [at for at in servers.of_sku.get(pool.sku, ()) if servers.free[at] == pool.server_gpus]
    spanned = -(-pool.gpus // pool.server_gpus)
    for _ in range(pool.replicas):
        own, empty = empty[:spanned], empty[spanned:]
        own += [servers.opened(pool.sku, pool.server_gpus) for _ in range(spanned - len(own))]
        yield servers.place(own, pool.server_gpus)


def _first_fit(pool: PackedPool, servers: _Servers) -> Iterator[PackedReplica]:
    """Replicas that fill servers in the order in which these were opened."""
    place = 0
    for _ in range(pool.replicas):
        of_sku = servers.of_sku.get(pool.sku, [])
        while place < len(of_sku) and servers.free[of_sku[place]] < pool.gpus:
            place += 1
        at = of_sku[place] if place < len(of_sku) else servers.opened(pool.sku, pool.server_gpus)
        yield servers.place([at], pool.gpus)


def _spread(pool: PackedPool, servers: _Servers) -> Iterator[PackedReplica]:
    """Replicas that go where the fewest of their pool are, of these where most GPUs are free."""
    queue = [(0, -servers.free[at], at) for at in servers.of_sku.get(pool.sku, ())]
    heapq.heapify(queue)
    for _ in range(pool.replicas):
        while queue and servers.free[queue[0][2]] < pool.gpus:
            heapq.heappop(queue)
        if not queue:
            queue = [(0, 0, servers.opened(pool.sku, pool.server_gpus))]
        mine, _, at = heapq.heappop(queue)
        yield servers.place([at], pool.gpus)
        heapq.heappush(queue, (mine + 1, -servers.free[at], at))
