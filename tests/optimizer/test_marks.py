"""Branching on marks against every set of marks by itself."""

from __future__ import annotations

import math
from itertools import chain, combinations

import numpy as np
import pytest

from planner.core import BoolArray, FloatArray
from planner.optimizer.layout import build_layout
from planner.optimizer.marks import charged_bound, fewest_marks
from tests.fleet_oracle import small_problem
from tests.optimizer.problems import MIN_COST, chat, problem, unit, value


@pytest.mark.parametrize("seed", range(3000, 3008))
def test_no_set_of_marks_is_cheaper_than_the_bound_where_there_is_no_fleet_to_branch_on(seed: int) -> None:
    stated, rng = small_problem(seed, MIN_COST), np.random.default_rng(seed)
    units = [one.model_copy(update={"marks": tuple(str(m) for m in rng.choice(3, 2))}) for one in stated.units]
    stated = stated.model_copy(update={"units": tuple(units), "charge": float(rng.uniform(0.1, 2.0))})
    layout = build_layout(stated)
    of_unit = [sum(1 << layout.groups.index(mark) for mark in set(one.marks)) for one in units]

    def uncharged(pairs: BoolArray, charges: float) -> tuple[float, FloatArray | None]:
        few = tuple(units[j] for j in np.unique(layout.pair_unit[pairs]))
        assert charges == pytest.approx(stated.charge * fewest_marks(layout, of_unit))
        return (value(stated.model_copy(update={"units": few, "charge": 0.0}), MIN_COST) if few else math.inf), None

    bound, least = charged_bound(layout, uncharged, lambda: math.inf, 0.0), math.inf
    for used in map(set, chain(*(combinations(layout.groups, count) for count in range(1, 4)))):
        few = tuple(one for one in units if used.issuperset(one.marks))
        if few:
            alone = value(stated.model_copy(update={"units": few, "charge": 0.0}), MIN_COST)
            least = min(least, alone + stated.charge * len(used))
    assert bound <= least * (1.0 + 1e-9)


@pytest.mark.parametrize(("marks", "fewest"), [((1, 2), 2), ((1, 1), 1), ((3, 2), 2), ((3, 4), 3)])
def test_a_slice_adds_the_marks_that_no_slice_before_it_had(marks: tuple[int, int], fewest: int) -> None:
    """Two slices, each with one unit of its own: every fleet has the marks of both."""
    slices = (chat(1.0, name="a"), chat(1.0, name="b"))
    layout = build_layout(problem([unit("of a", {"a": 5.0}), unit("of b", {"b": 5.0})], slices=slices))
    assert fewest_marks(layout, list(marks)) == fewest
