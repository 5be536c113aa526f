"""Servers that replicas fill, against the rule itself and the least that could do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from planner.fleet import PackedPool, packed_replicas, server_count

NODE = 8
POOLS = st.lists(
    st.builds(
        PackedPool,
        sku=st.sampled_from(["one", "other"]),
        gpus=st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16]),
        server_gpus=st.just(NODE),
        replicas=st.integers(0, 6),
    ),
    max_size=6,
)


@given(POOLS)
def test_no_gpu_serves_two_replicas_and_none_straddles_servers_unless_it_is_larger(pools: list[PackedPool]) -> None:
    taken: set[tuple[int, int]] = set()
    skus: dict[int, str] = {}
    for pool, replicas in zip(pools, packed_replicas(pools), strict=True):
        assert len(replicas) == pool.replicas
        for replica in replicas:
            assert len(replica.servers) == math.ceil(pool.gpus / NODE)
            each = min(pool.gpus, NODE) if pool.gpus <= NODE else NODE  # a larger one has its servers to itself
            gpus = {(server, replica.first_gpu + gpu) for server in replica.servers for gpu in range(each)}
            assert all(gpu < NODE for _, gpu in gpus) and not gpus & taken
            taken |= gpus
            assert {skus.setdefault(server, pool.sku) for server in replica.servers} == {pool.sku}


@given(POOLS)
def test_each_server_that_is_opened_is_needed_when_it_is(pools: list[PackedPool]) -> None:
    """First fit: the first replica on a server had no room on any before it of its SKU."""
    used: dict[int, int] = {}
    skus: dict[int, str] = {}
    placed = packed_replicas(pools)
    for index in sorted(range(len(pools)), key=lambda index: -pools[index].gpus):
        pool = pools[index]
        for replica in placed[index]:
            if pool.gpus <= NODE:
                earlier = [at for at in used if at < replica.servers[0] and skus[at] == pool.sku]
                assert all(used[at] + pool.gpus > NODE for at in earlier)
            for server in replica.servers:
                used[server] = NODE if pool.gpus > NODE else used.get(server, 0) + pool.gpus
                skus[server] = pool.sku


@given(POOLS)
def test_pools_together_fill_no_more_servers_than_apart_and_no_fewer_than_their_gpus(pools: list[PackedPool]) -> None:
    together, apart = server_count(pools), sum(server_count([pool]) for pool in pools)
    gpus = {sku: sum(pool.gpus * pool.replicas for pool in pools if pool.sku == sku) for sku in ("one", "other")}
    assert sum(math.ceil(count / NODE) for count in gpus.values()) <= together <= apart


def test_replicas_of_powers_of_two_waste_nothing() -> None:
    """Largest first, sizes that divide each other leave no gap: the bound of their GPUs is reached."""
    pools = [PackedPool("one", gpus, NODE, replicas) for gpus, replicas in ((1, 5), (2, 3), (4, 3), (8, 1), (16, 2))]
    gpus = sum(pool.gpus * pool.replicas for pool in pools)
    assert server_count(pools) == math.ceil(gpus / NODE)
