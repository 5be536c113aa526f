"""Hits of a recording's curve in a pool: by memory, by rate, and the same in both roads."""

from __future__ import annotations

import math

import pytest

from planner.core import InputError
from planner.engine import Schedule, require_room
from planner.serving import Deployment, Pool, Role, Router, evaluate, largest_stable_rate_per_s
from planner.simulator import simulate
from planner.workload import ArrivalProcess, PrefixReuse, RequestClass, SharedPrefixes, TokenLengths, Workload
from tests.builders import replica

LENGTHS = TokenLengths.constant(1600, 100)
CAPACITY = 4.0e6
REUSE = PrefixReuse(
    rate_per_s=8.0,
    cache_tokens=(0.1e6, CAPACITY),
    replicas=(1, 2, 4),
    shares=((0.1, 0.8), (0.1, 0.6), (0.1, 0.4)),
    source="a recording",
)


CONFIG = replica(own_schedule=Schedule(prefix_cache=True))


def workload(rate_per_s: float, reuse: PrefixReuse | None = REUSE, hit_rate: float = 0.0) -> Workload:
    """Requests with a curve, or a number."""
    kind = RequestClass(lengths=LENGTHS, prefix_reuse=reuse, prefix_hit_rate=hit_rate)
    return Workload(arrivals=ArrivalProcess(rate_per_s=rate_per_s), classes=(kind,))


def test_a_pool_finds_what_the_curve_says_for_its_free_memory() -> None:
    found = evaluate(Deployment.mixed(CONFIG), workload(8.0)).pools[0]
    capacity = require_room(CONFIG, LENGTHS.max_total).kv_capacity_tokens
    expected = REUSE.share(capacity - found.mean_running * 100, rate_per_s=8.0)
    assert found.prefix_hits == pytest.approx(math.floor(expected * 1600 / 16) * 16 / 1600, abs=0.011)


def test_twice_the_users_find_what_half_the_memory_did() -> None:
    assert REUSE.share(2e6, rate_per_s=16.0) == REUSE.share(1e6, rate_per_s=8.0)
    hits = [evaluate(Deployment.mixed(CONFIG), workload(rate)).pools[0].prefix_hits for rate in (1.0, 4.0, 16.0)]
    assert hits == sorted(hits, reverse=True)
    assert hits[0] > hits[-1]


def test_affinity_finds_as_much_as_one_replica_at_its_share_of_the_rate() -> None:
    assert REUSE.share(1e6, rate_per_s=16.0, replicas=2, affinity=True) == REUSE.share(1e6, rate_per_s=8.0)
    shares = [REUSE.share(1e9, rate_per_s=8.0, replicas=count) for count in (1, 2, 3, 4, 8)]
    assert shares[:2] == [0.8, 0.6]
    assert shares[1] > shares[2] > shares[3] == 0.4
    assert shares[4] == pytest.approx(0.2)


def test_theory_and_simulation_find_the_same() -> None:
    pool = Pool(role=Role.MIXED, config=CONFIG, replicas=2, router=Router.PREFIX_AFFINITY)
    deployment = Deployment(pools=(pool,))
    theory = evaluate(deployment, workload(10.0))
    run = simulate(deployment, workload(10.0), requests=300)
    assert run.pools[0].prefix_hits == pytest.approx(theory.pools[0].prefix_hits, abs=0.02)


def test_a_flat_curve_is_a_number() -> None:
    flat = PrefixReuse(rate_per_s=8.0, cache_tokens=(1.0,), shares=((0.4,),))
    curve, number = (
        evaluate(Deployment.mixed(CONFIG), load) for load in (workload(4.0, flat), workload(4.0, None, 0.4))
    )
    assert curve.ttft.mean_s == pytest.approx(number.ttft.mean_s)
    assert curve.pools[0].prefix_hits == number.pools[0].prefix_hits == 0.4


def test_the_largest_stable_rate_is_one_at_its_own_hits() -> None:
    deployment = Deployment.mixed(CONFIG)
    limit = largest_stable_rate_per_s(deployment, workload(1.0))
    none, all_found = (
        largest_stable_rate_per_s(deployment, load) for load in (workload(1.0, None), workload(1.0, None, 0.8))
    )
    assert none < limit < all_found
    assert evaluate(deployment, workload(0.97 * limit)).stable
    assert not evaluate(deployment, workload(1.03 * limit)).stable


def test_without_a_prefix_cache_nothing_is_found() -> None:
    deployment = Deployment.mixed(replica(own_schedule=Schedule(prefix_cache=False)))
    assert simulate(deployment, workload(2.0), requests=50).pools[0].prefix_hits == 0.0
    assert evaluate(deployment, workload(2.0)).assumptions == evaluate(deployment, workload(2.0, None)).assumptions


@pytest.mark.parametrize(
    "wrong",
    [
        {"shares": ((0.5, 0.4),)},
        {"shares": ((0.1, 1.2),)},
        {"replicas": (1, 2)},
    ],
)
def test_a_curve_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"rate_per_s": 1.0, "cache_tokens": (1.0, 2.0), "shares": ((0.1, 0.2),), **wrong}
    with pytest.raises(InputError, match="prefix_reuse"):
        PrefixReuse(**fields)


def test_a_class_has_one_kind_of_prefix() -> None:
    with pytest.raises(InputError, match="give one of them"):
        RequestClass(lengths=LENGTHS, prefix_reuse=REUSE, prefixes=SharedPrefixes(tokens=100))
