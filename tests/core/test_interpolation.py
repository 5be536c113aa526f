"""Interpolation of single numbers, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from planner.core import interpolated_at


def test_lines_between_knots_are_those_of_numpy() -> None:
    knots, values = np.array([1.0, 2.0, 2.0, 5.0]), np.array([3.0, -1.0, 4.0, 0.5])
    asked = np.array([0.0, 1.0, 1.7, 2.0, 2.4, 5.0, 9.0])
    found = [interpolated_at(knots, values, float(x)) for x in asked]
    assert found == pytest.approx(np.interp(asked, knots, values))
