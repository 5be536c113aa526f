"""Servers that replicas run on, against the rule written again, the least that could do, and an even deal."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hardware_db import load_hardware
from planner.fleet import PackedPool, packed_replicas, server_count
from planner.fleet.packing import lost_with_a_server, servers_bought

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


def first_fit(pools: list[PackedPool]) -> int:
    """Servers that replicas fill in order, the largest first: the rule written again, without spreading."""
    free: dict[str, list[int]] = {"one": [], "other": []}
    for pool in sorted(pools, key=lambda pool: -pool.gpus):
        for _ in range(pool.replicas):
            of_sku = free[pool.sku]
            place = next((at for at, left in enumerate(of_sku) if left >= pool.gpus), None)
            if pool.gpus > NODE:
                of_sku += [0] * math.ceil(pool.gpus / NODE)
            elif place is None:
                of_sku.append(NODE - pool.gpus)
            else:
                of_sku[place] -= pool.gpus
    return sum(map(len, free.values()))


@given(POOLS)
def test_spreading_takes_no_server_more_than_filling_them_does(pools: list[PackedPool]) -> None:
    assert server_count(pools) == first_fit(pools)


@given(st.sampled_from([1, 2, 4, 8]), st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 3))
def test_replicas_of_one_size_are_as_even_as_they_can_be(gpus: int, counts: list[int], more: int) -> None:
    """No server has more of a pool than its share rounded up, whatever the others have, so that none loses more."""
    pools = [PackedPool("one", gpus, NODE, count) for count in counts]
    servers = server_count(pools) + more
    lost = lost_with_a_server(packed_replicas(pools, {"one": (NODE,) * servers}))
    worst = [max(of_pool) for of_pool in zip(*lost, strict=True)]
    assert worst == [math.ceil(count / servers) for count in counts]


@given(POOLS, st.lists(st.integers(1, NODE), max_size=8))
def test_servers_that_are_bought_come_first_and_none_has_more_than_it_holds(
    pools: list[PackedPool], sizes: list[int]
) -> None:
    used: dict[int, int] = {}
    for pool, replicas in zip(pools, packed_replicas(pools, {"one": sizes}), strict=True):
        for replica in replicas:
            for server in replica.servers:
                used[server] = max(used.get(server, 0), replica.first_gpu + min(pool.gpus, NODE))
    assert all(gpus <= (sizes[server] if server < len(sizes) else NODE) for server, gpus in used.items())


def test_own_and_rented_gpus_are_on_servers_of_their_own() -> None:
    """Twelve of one's own are a server and half of one; four replicas of four GPUs need a rented one besides."""
    sku = load_hardware().skus["h100-sxm"]
    bought = servers_bought([(sku.id, "owned", (12.0,)), (sku.id, "on_demand", (6.0, 8.0))], {sku.id: sku})
    assert bought == {sku.id: (8, 4, 8)}
    pools = [PackedPool(sku.id, 4, 8, 4)]
    assert server_count(pools, bought) == 3 > server_count(pools)


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
