"""What goals and constraints are made of, by hand."""

from __future__ import annotations

from planner.optimizer import FleetProblem, Period, UnitStage
from planner.optimizer.layout import build_layout
from tests.optimizer.problems import chat, unit

DAY = (Period(name="night", hours=6.0), Period(name="day", hours=18.0))


def test_the_smallest_useful_rate() -> None:
    """A quarter of the day of the slower of the unit and the demand; of nothing, nothing."""
    stated = FleetProblem(slices=(chat(3.0, 8.0),), units=(unit("a", 4.0), unit("b", 5.0)), periods=DAY)
    assert build_layout(stated).smallest_useful_rate_per_s == min(3.0 * 0.25, 4.0 * 0.75)
    none = FleetProblem(slices=(chat(0.0, 0.0),), units=(unit("a", 4.0),), periods=DAY)
    assert build_layout(none).smallest_useful_rate_per_s == 0.0


def test_only_stages_that_come_in_several_kinds_have_one_to_choose() -> None:
    """Of one kind there is nothing to tell apart, and of pools that do all by themselves there never is."""
    first, second = UnitStage.FIRST, UnitStage.SECOND
    units = (
        *(unit(f"f{kind}", 1.0, stage=first, channel="a", kind=kind) for kind in ("tp1", "tp2", "tp2 again")),
        unit("s", 1.0, stage=second, channel="a", kind="tp8"),
        unit("other", 1.0, stage=first, channel="b", kind="tp1"),
        unit("none", 1.0, stage=second, channel="b"),
        *(unit(f"w{kind}", 1.0, kind=kind) for kind in ("tp1", "tp2")),
    )
    kinds = build_layout(FleetProblem(slices=(chat(3.0),), units=units)).kinds
    assert kinds == ((1, 0, "tp1"), (1, 0, "tp2"), (1, 0, "tp2 again"))
