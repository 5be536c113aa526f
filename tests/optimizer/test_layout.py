"""What goals and constraints are made of, by hand."""

from __future__ import annotations

from planner.optimizer import FleetProblem, Period
from planner.optimizer.layout import build_layout
from tests.optimizer.problems import chat, unit

DAY = (Period(name="night", hours=6.0), Period(name="day", hours=18.0))


def test_the_smallest_useful_rate() -> None:
    """A quarter of the day of the slower of the unit and the demand; of nothing, nothing."""
    stated = FleetProblem(slices=(chat(3.0, 8.0),), units=(unit("a", 4.0), unit("b", 5.0)), periods=DAY)
    assert build_layout(stated).smallest_useful_rate_per_s == min(3.0 * 0.25, 4.0 * 0.75)
    none = FleetProblem(slices=(chat(0.0, 0.0),), units=(unit("a", 4.0),), periods=DAY)
    assert build_layout(none).smallest_useful_rate_per_s == 0.0
