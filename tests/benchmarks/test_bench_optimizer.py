"""Speed of the fleet program at the size of a real request. Timed with ``--benchmark-enable``, else run once."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Objective, Purchase, Resource, Slice, SolveStatus, Unit, UnitStage, solve

PRICES = {f"sku{i}": usd for i, usd in enumerate([2.5, 0.8, 1.6, 3.0, 5.0, 0.4, 1.1, 2.0, 3.9, 6.5, 0.6, 1.3, 4.4])}
"""Assumed cost of one device [USD/h], of the sizes that rent today."""
FOUND = (SolveStatus.OPTIMAL, SolveStatus.WITHIN_GAP)


def many_units(slices: int, count: int = 3000, seed: int = 0, demand: float = 137.3) -> FleetProblem:
    """Families of 1 to 10 replicas of 1 to 8 devices of 13 kinds; half the kinds may also be reserved by eights."""
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(slices)]
    weight = 1.0 / np.arange(1, slices + 1)
    units: list[Unit] = []
    while len(units) < count:
        index = int(rng.integers(len(PRICES)))
        sku, devices = list(PRICES)[index], int(2 ** rng.integers(0, 4))
        stage = (UnitStage.WHOLE, UnitStage.WHOLE, UnitStage.FIRST, UnitStage.SECOND)[rng.integers(4)]
        channel = "" if stage is UnitStage.WHOLE else ("fp8", "bf16")[rng.integers(2)]
        base = 1.15 * PRICES[sku] * devices**0.9 * rng.uniform(0.6, 1.0) * (1.0 if stage is UnitStage.WHOLE else 1.9)
        mix = np.exp(-(0.6 + 0.28 * (index % 5)) * np.linspace(0.0, 1.0, slices) + rng.normal(0.0, 0.05, slices))
        for k in range(1, 11):
            rates = {name: float(base * m * k**1.03) for name, m in zip(names, mix, strict=True)}
            unit = Unit(
                name=f"u{len(units)}", stage=stage, channel=channel, rates_per_s=rates, takes={sku: float(devices * k)}
            )
            units.append(unit)
    resources = []
    for index, (sku, usd) in enumerate(PRICES.items()):
        ways = [Purchase(name="on_demand", usd_per_hour=usd)]
        if index % 2:
            ways.append(Purchase(name="reserved", usd_per_hour=0.65 * usd, committed=True, block=8, at_most=64.0))
        resources.append(Resource(name=sku, group=sku, purchases=tuple(ways), at_most=200.0))
    return FleetProblem(
        slices=tuple(
            Slice(name=name, demand_per_s=(float(demand * w / weight.sum()),))
            for name, w in zip(names, weight, strict=True)
        ),
        units=tuple(units[:count]),
        resources=tuple(resources),
    )


@pytest.mark.parametrize("slices", [1, 12])
def test_3000_units_to_two_percent(benchmark, slices):
    if benchmark.disabled and slices > 1:
        pytest.skip("one slice is enough to see that it works; --benchmark-enable times both")
    problem, rounds = many_units(slices), 1 if benchmark.disabled else 3
    answer = benchmark.pedantic(solve, (problem, Objective.MIN_COST), {"relative_gap": 0.02}, rounds=rounds)
    assert answer.status in FOUND
