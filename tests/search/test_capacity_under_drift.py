"""What pools sustain where the rate varies: one member by steady theory, its rate by that under the drift."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.search import Capacity, ConfigurationFamily, capacity_of
from planner.search.candidates import RATE_TOLERANCE
from planner.serving import Role, Router
from planner.workload import ArrivalProcess, RateDrift
from tests.search.test_slo_margin import demand, option

DRIFT = RateDrift.random(0.3, 300.0, seed=5)


def family() -> ConfigurationFamily:
    return ConfigurationFamily(role=Role.MIXED, members=(option(limit=32), option(limit=96)))


@pytest.mark.parametrize("replicas", [1, 4])
def test_the_best_member_has_its_rate_under_the_drift_and_no_other_has_more(replicas: int) -> None:
    under_drift, plain = capacity_of(demand(DRIFT)), Capacity(demand(DRIFT))
    some = family()
    best = under_drift.best(some, replicas)
    rates = [plain.rate_per_s(member, replicas) for member in some.members]
    assert best.member is not None
    assert best.rate_per_s == pytest.approx(max(rates), rel=3.0 * RATE_TOLERANCE)
    assert best.rate_per_s < Capacity(demand(None)).best(some, replicas).rate_per_s


def test_bounds_stay_above_the_rates_of_other_sizes() -> None:
    some, under_drift = family(), capacity_of(demand(DRIFT))
    under_drift.best(some, 1)
    bounds = {size: under_drift.bound_per_s(some, size) for size in (2, 4)}
    for size, bound_per_s in bounds.items():
        assert under_drift.best(some, size).rate_per_s <= bound_per_s * (1.0 + RATE_TOLERANCE)


def test_a_smaller_pool_takes_the_member_of_a_larger_one_and_loses_little_by_it() -> None:
    """The truth is the best member's own rate; of a smaller pool only that of one member is looked for."""
    some, after, alone = family(), capacity_of(demand(DRIFT)), capacity_of(demand(DRIFT))
    assert after.is_new(some)
    larger = after.best(some, 4)
    assert not after.is_new(some)
    smaller, own = after.best(some, 2), alone.best(some, 2)
    assert smaller.member is larger.member
    assert smaller.rate_per_s == pytest.approx(own.rate_per_s, rel=3.0 * RATE_TOLERANCE)


@pytest.mark.parametrize("replicas", [5, 11, 23])
def test_a_pool_that_another_stands_for_has_its_own_rate_within_the_tolerance(replicas: int) -> None:
    """The truth is every size solved itself; two rates are each known to the tolerance, and theory is uneven by 1 %."""
    some = family()
    member = option(limit=96)
    own = Capacity(demand(DRIFT)).rate_per_s(member, replicas)
    stood_for = capacity_of(demand(DRIFT)).rate_per_s(member, replicas)
    assert stood_for == pytest.approx(own, rel=3.0 * RATE_TOLERANCE)
    assert capacity_of(demand(DRIFT)).best(some, replicas).rate_per_s >= stood_for * (1.0 - RATE_TOLERANCE)


def test_what_a_router_sees_of_all_replicas_is_found_for_every_size() -> None:
    """The shortest of five queues is not the shortest of four."""
    member = replace(option(limit=96), router=Router.LEAST_REQUESTS)
    own = Capacity(demand(DRIFT)).rate_per_s(member, 5)
    assert capacity_of(demand(DRIFT)).rate_per_s(member, 5) == pytest.approx(own, rel=1e-9)


def test_a_size_between_two_known_ones_is_read_off_them_and_sustains_about_that() -> None:
    """What a replica sustains goes with the SCV of its arrivals, the pool's over the number of replicas."""
    some, under_drift = ConfigurationFamily(role=Role.MIXED, members=(option(limit=96),)), capacity_of(demand(DRIFT))
    for size in (12, 1):
        under_drift.best(some, size)
    before = under_drift.evaluations
    for size in (2, 3, 4, 6):
        found = under_drift.best(some, size)
        assert found.member is some.members[0]
        assert found.rate_per_s == pytest.approx(Capacity(demand(DRIFT)).rate_per_s(found.member, size), rel=0.04)
    assert under_drift.evaluations == before


@pytest.mark.parametrize("role", [Role.MIXED, Role.PREFILL])
def test_bounds_hold_where_prompts_are_longest_when_most_come(role: Role) -> None:
    """They are of the requests of the busiest windows, at their rate and what they must meet at least."""
    factors, inputs = (0.8,) * 8 + (1.8,) * 2, (0.9,) * 8 + (1.0 + 0.1 * 6.4 / 3.6,) * 2
    drift = RateDrift(window_s=60.0, factors=factors, input_factors=inputs, output_factors=(1.0,) * 10)
    asked = demand(drift)
    member = replace(option(limit=96), role=role)
    some, under_drift = ConfigurationFamily(role=role, members=(member,)), capacity_of(asked)
    bounds = {size: under_drift.bound_per_s(some, size) for size in (1, 4)}
    even = replace(asked, workload=asked.workload.model_copy(update={"arrivals": ArrivalProcess(rate_per_s=1.0)}))
    for size, bound_per_s in bounds.items():
        assert under_drift.best(some, size).rate_per_s <= bound_per_s
        assert bound_per_s < Capacity(even).bound_per_s(some, size)  # and closer than those of a steady rate
