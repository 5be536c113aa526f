"""Columns only ever get worse, and one that carries nothing is gone rather than an error."""

from __future__ import annotations

import pytest

from planner import columns as module
from planner.candidates import Demand, DeploymentOption, Mode, PoolOption
from planner.columns import Column, Columns, pool_sizes
from planner.deployment import Role
from planner.llm import Precision, load_llm
from planner.optimizer import Limits, Objective, solve
from planner.planning import PricePolicy, offered_price
from planner.workload import LatencyTarget, Metric, Slo
from tests.builders import HARDWARE, chat, replica

PRICE = offered_price("h100-sxm", PricePolicy(), HARDWARE)
SLO = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=0.5),))
DEMAND = Demand(load_llm("llama-3.1-8b"), Precision(), chat(100.0), SLO)
assert PRICE is not None
OPTION = DeploymentOption(Mode.MIXED, (PoolOption(Role.MIXED, replica(), PRICE, replicas=4),))


def unchecked(columns: Columns) -> list[Column]:
    """The columns whose rate is still a bound."""
    return [column for column in columns.all if not column.checked]


def test_sizes_that_carry_the_demand_start_checked_and_smaller_ones_as_bounds() -> None:
    columns = Columns([OPTION], DEMAND)
    assert [c.replicas for c in unchecked(columns)] == [(1,), (2,), (3,)]
    assert all(c.rate_per_s == 100.0 for c in columns.all if c.checked)


def test_a_computed_rate_bounds_smaller_pools_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sustained_rate_per_s", lambda *_: 60.0)
    columns = Columns([OPTION], DEMAND)
    before = {c.name: c.rate_per_s for c in columns.all}
    columns.check(unchecked(columns), DEMAND)
    rates = {c.replicas: c.rate_per_s for c in columns.all}
    assert rates[3,] == 60.0
    assert rates[2,] <= 40.0 + 1e-9
    assert rates[1,] <= 20.0 + 1e-9
    assert all(c.rate_per_s <= before[c.name] for c in columns.all)
    assert [c.replicas for c in unchecked(columns)] == [(1,), (2,)]


def test_a_pool_that_sustains_nothing_takes_the_smaller_ones_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sustained_rate_per_s", lambda *_: 0.0)
    columns = Columns([OPTION], DEMAND)
    columns.check(unchecked(columns), DEMAND)
    assert not unchecked(columns)
    program = [column.candidate() for column in columns.all]
    answer = solve(program, Limits(demand_per_s=100.0), Objective.MIN_COST)
    assert {name: units for name, units in answer.units.items() if units} == {f"{OPTION.name} x4": 1}


def test_columns_of_one_configuration_become_one_deployment() -> None:
    three, one = (Column(OPTION, (size,), 1.0, checked=True) for size in (3, 1))
    assert pool_sizes([(three, 2), (one, 1)]) == (7,)
