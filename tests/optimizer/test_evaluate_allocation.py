"""What is bought beyond need, against taking off one block more."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Period, Purchase, Resource, Slice, Unit
from planner.optimizer.evaluate_allocation import _needed_blocks
from planner.optimizer.layout import build_layout


@pytest.mark.parametrize("seed", range(20))
def test_no_block_is_kept_that_is_not_needed_and_the_dearest_go_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ways = tuple(
        Purchase(name=f"p{i}", usd_per_hour=float(usd), block=int(rng.choice([1, 2, 4])), committed=i == 2)
        for i, usd in enumerate(rng.permutation([1.0, 2.0, 3.0]))
    )
    asked = FleetProblem(
        slices=(Slice(name="s", demand_per_s=(1.0, 1.0)),),
        units=(Unit(name="u", rates_per_s={"s": 1.0}, takes={"g": float(rng.integers(1, 4))}),),
        resources=(Resource(name="g", purchases=ways, at_least=float(rng.integers(0, 9))),),
        periods=(Period(name="day"), Period(name="night")),
    )
    layout, counts = build_layout(asked), rng.integers(0, 6, (1, 2))
    taken, sizes = asked.units[0].takes["g"] * counts[0], layout.purchase_block
    needed = np.maximum(taken, asked.resources[0].at_least)
    bought = np.ceil(needed.max() / sizes)[:, None] * rng.integers(1, 3, (3, 1)) + np.zeros(2)
    kept = _needed_blocks(layout, counts, bought)
    assert np.all(sizes @ kept >= needed) and np.all(kept <= bought)
    for q, way in enumerate(ways):
        fewer = kept[q].min() if way.committed else kept[q]
        is_short = sizes @ kept - sizes[q] < needed
        assert np.all((fewer == 0.0) | (is_short.any() if way.committed else is_short)), way
    dear, cheap = sorted((0, 1), key=lambda q: -ways[q].usd_per_hour)
    assert np.all((kept[dear] == 0.0) | (kept[cheap] == bought[cheap]))
