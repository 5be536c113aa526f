"""What the goals and the constraints are made of, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.optimizer import FleetProblem, Period, Purchase, Resource, Unit
from planner.optimizer.coefficients import most_carried_per_s, smallest_useful_rate
from planner.optimizer.layout import build_layout
from tests.optimizer.problems import chat, problem, unit

DAY = (Period(name="night", hours=6.0), Period(name="day", hours=18.0))


def most(units: list[Unit], **change: object) -> float:
    """Most that all of them carry of one slice without a demand [1/s], alike in all periods."""
    layout = build_layout(problem(units, **change))
    found = most_carried_per_s(layout, np.ones(len(layout.pair_unit), dtype=bool))
    assert found.shape == (layout.periods,) and len(set(found.tolist())) == 1
    return float(found[0])


def test_counts_bound_what_is_carried() -> None:
    """3 x 4/s and 5 x 2/s; with at most 4 units in all, 4 of the fastest."""
    units = [unit("a", 4.0, at_most=3), unit("b", 2.0, at_most=5)]
    assert most(units) == 22.0
    assert most(units, max_units=4) == 16.0
    assert math.isinf(most([unit("a", 4.0)]))


def test_a_budget_bounds_what_is_carried() -> None:
    """12 USD/h on average buy 48 in the shorter quarter of the day: at 2 USD/h, 24 units of 4/s."""
    units = [unit("a", 4.0, 2.0), unit("b", 1.0, 1.0)]
    assert most(units, budget_usd_per_hour=12.0) == 24.0
    assert most(units, budget_usd_per_hour=12.0, periods=DAY) == 96.0
    assert math.isinf(most([*units, unit("free", 1.0)], budget_usd_per_hour=12.0))


def test_resources_bound_what_is_carried() -> None:
    """The better of 4/s for 2 and 3/s for 1, times what there is: the limit, or what can be bought and used of it."""
    units = [unit("a", 4.0, takes={"x": 2.0}), unit("b", 3.0, takes={"x": 1.0})]
    assert most(units, resources=(Resource(name="x", at_most=10.0),)) == 30.0
    ways = (
        Purchase(name="spot", usd_per_hour=1.0, usable_share=0.5, at_most=8.0),
        Purchase(name="kept", usd_per_hour=2.0, committed=True, at_most=3.0),
    )
    assert most(units, resources=(Resource(name="x", purchases=ways),)) == 3.0 * (0.5 * 8.0 + 3.0)
    assert most(units, resources=(Resource(name="x", at_most=5.0, purchases=ways),)) == 15.0
    free = (
        Purchase(name="spot", usd_per_hour=2.0, usable_share=0.5),
        Purchase(name="kept", usd_per_hour=4.0, committed=True),
    )
    limited = {"resources": (Resource(name="x", purchases=free),), "budget_usd_per_hour": 6.0, "periods": DAY}
    assert most(units, **limited) == pytest.approx(3.0 * (0.5 * 6.0 / 2.0 / 0.25 + 6.0 / 4.0))
    assert math.isinf(most(units, resources=(Resource(name="x", purchases=free),)))
    assert math.isinf(most([*units, unit("c", 1.0)], resources=(Resource(name="x", at_most=10.0),)))


def test_the_smallest_useful_rate() -> None:
    """A quarter of the day of the slower of the unit and the demand; of nothing, nothing."""
    stated = FleetProblem(slices=(chat(3.0, 8.0),), units=(unit("a", 4.0), unit("b", 5.0)), periods=DAY)
    assert smallest_useful_rate(build_layout(stated)) == min(3.0 * 0.25, 4.0 * 0.75)
    none = FleetProblem(slices=(chat(0.0, 0.0),), units=(unit("a", 4.0),), periods=DAY)
    assert smallest_useful_rate(build_layout(none)) == 0.0
