"""Sets of marks against fleets of every set by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.optimizer.layout import build_layout
from planner.optimizer.marks import fewest_marks, plain_sets
from tests.fleet_oracle import small_problem
from tests.optimizer.problems import MIN_COST, value


@pytest.mark.parametrize("seed", range(3000, 3008))
def test_bounds_are_below_every_fleet_of_a_set_and_a_limit_leaves_out_the_dearer_ones(seed: int) -> None:
    stated, rng = small_problem(seed, MIN_COST), np.random.default_rng(seed)
    units = [one.model_copy(update={"marks": tuple(str(m) for m in rng.choice(3, 2))}) for one in stated.units]
    stated = stated.model_copy(update={"units": tuple(units), "charge": float(rng.uniform(0.1, 2.0))})
    layout = build_layout(stated)
    sets, left_out = plain_sets(layout, math.inf)
    bounds = [bound for bound, _ in sets]
    assert left_out == math.inf and bounds == sorted(bounds)
    for bound, is_in in sets:
        used = {name for name, used in zip(layout.groups, is_in, strict=True) if used}
        few = tuple(one for one in units if used.issuperset(one.marks))
        alone = value(stated.model_copy(update={"units": few, "charge": 0.0}), MIN_COST) if few else 0.0
        assert len(used) > 1 or bound <= alone + stated.charge + 1e-9  # of several a slice may mix them
        assert len(used) >= fewest_marks(layout)
    for most in bounds[::3]:
        kept, _ = plain_sets(layout, most * (1.0 + 1e-12))
        assert [bound for bound, _ in kept] == pytest.approx([bound for bound in bounds if bound <= most])
