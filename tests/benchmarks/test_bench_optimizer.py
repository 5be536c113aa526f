"""Speed of the program at the size of real fleets. Timed with ``--benchmark-enable``, else run once at a small one.

5,000 units x 64 slices x 24 hours to a gap of 0.5 %; what it takes is in docs/explanation/optimizer.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.optimizer import Objective, solve
from planner.optimizer.layout import build_layout
from planner.optimizer.periods import Day
from planner.optimizer.program import build_program
from planner.optimizer.relaxation import relax
from tests.optimizer.large_problems import hard_instance
from tests.optimizer.problems import check_allocation

SMALL: dict[str, int] = {"families": 12, "sizes": 3, "slices": 3, "periods": 2}
"""What is run where nothing is timed."""


@pytest.mark.parametrize("seed", [3, 5])
def test_five_thousand_units_64_slices_24_hours(benchmark: Any, seed: int) -> None:
    problem = hard_instance(seed, **(SMALL if benchmark.disabled else {}))
    gap = {"relative_gap": 0.02 if benchmark.disabled else 0.005}
    answer = benchmark.pedantic(solve, (problem, Objective.MIN_COST), gap, rounds=1)
    assert answer.status.has_allocation and answer.gap <= 0.05
    check_allocation(answer, problem, Objective.MIN_COST)


@pytest.mark.parametrize("slices", [4, 12])
def test_3000_units_of_one_period(benchmark: Any, slices: int) -> None:
    size = SMALL if benchmark.disabled else {"families": 300, "sizes": 10}
    problem = hard_instance(0, **size | {"slices": slices, "periods": 1})
    answer = benchmark.pedantic(solve, (problem, Objective.MIN_COST), {"relative_gap": 0.02}, rounds=1)
    assert answer.status.has_allocation


def test_the_relaxation_of_one_hour_of_them(benchmark: Any) -> None:
    """5,000 units x 64 slices: 280,000 rates."""
    layout = build_layout(hard_instance(1, **(SMALL if benchmark.disabled else {})))
    part = Day(layout, layout.demand_per_s).part(0)
    found = benchmark.pedantic(lambda: relax(build_program(part, Objective.MIN_COST)), rounds=1)
    assert found is not None and found.bound > 0.0
