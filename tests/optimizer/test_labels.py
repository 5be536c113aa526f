"""Fronts of labels against the points that nothing betters, found by looking at all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from planner.optimizer.labels import _with_label


@pytest.mark.parametrize("seed", range(30))
def test_a_front_holds_what_nothing_betters_whatever_comes_first(seed: int) -> None:
    """Of points of small numbers, many equal in one or both, sizes are small and rates large."""
    points = np.random.default_rng(seed).integers(0, 5, (12, 2)).astype(float)
    front, count = np.empty((14, 3)), 0
    for number, (size, rate) in enumerate(points):
        count = _with_label(front, count, np.array([size, rate, number]))
    best = {
        (size, rate)
        for size, rate in points.tolist()
        if not any(s <= size and r >= rate and (s, r) != (size, rate) for s, r in points.tolist())
    }
    assert front[:count, :2].tolist() == [list(point) for point in sorted(best)]
    firsts = [points.tolist().index(point) for point in front[:count, :2].tolist()]
    assert front[:count, 2].tolist() == firsts
