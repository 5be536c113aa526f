"""What pools sustain where the rate varies: one member by steady theory, its rate by that under the drift."""

from __future__ import annotations

import pytest

from planner.search import Capacity, CapacityUnderDrift, ConfigurationFamily, capacity_of
from planner.search.candidates import RATE_TOLERANCE
from planner.serving import Role
from planner.workload import RateDrift
from tests.search.test_slo_margin import demand, option

DRIFT = RateDrift.random(0.3, 300.0, seed=5)


def family() -> ConfigurationFamily:
    return ConfigurationFamily(role=Role.MIXED, members=(option(limit=32), option(limit=96)))


def test_a_steady_demand_has_the_capacity_of_old() -> None:
    assert type(capacity_of(demand(None))) is Capacity
    assert isinstance(capacity_of(demand(DRIFT)), CapacityUnderDrift)


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
    assert under_drift.is_exact(some, 4) and not under_drift.is_exact(some, 3)
